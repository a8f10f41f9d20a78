/* Shared by client.c (life), client_conn.c (one connection) and client_call.c (pool and retries). */
#pragma once

#include "base/id.h"
#include "base/lock.h"
#include "base/look.h"
#include "client/client.h"

#include <stdatomic.h>
#include <unistd.h>

#define CLIENT_MAGIC            0x636c6e74u
#define CLIENT_ADDRESS_MAX      256
#define CLIENT_TIMEOUT_MAX_MS   INT32_MAX /* more, as who wants no timeout gives, would go beyond the clock */
#define CLIENT_BACKOFF_FIRST_MS 20
#define CLIENT_BACKOFF_MAX_MS   500
#define CLIENT_LOOK_MS          100 /* between two questions whether an answer is still wanted */

/* One connection after HELLO. Owned by the pool while idle, by one call while busy. */
struct client_conn {
    struct client_conn *next; /* of the idle list */
    int fd;
    uint64_t epoch;
    bool passes_fds;
    struct look look; /* for replies */
};

struct client {
    uint32_t magic;
    char address[CLIENT_ADDRESS_MAX]; /* "unix:PATH" or "HOST:PORT" */
    char *access_key, *secret_key;    /* NULL: none */
    char *name;
    enum wire_via via;
    uint64_t timeout_ms;
    uint32_t max_connections, max_idle;
    bool passes_fds; /* said by the first HELLO */
    void (*before_call)(uint32_t op);
    uint64_t (*number)(uint32_t op); /* may be NULL */
    void (*before_sleep)(void);      /* never NULL */
    bool (*is_unwanted)(void);       /* may be NULL */
    bool (*must_not_wait)(void);     /* may be NULL */
    bool (*make_room)(void *arg);    /* may be NULL */
    void *room_arg;
    struct id128 family; /* its first bytes begin each session; zero: none */
    _Atomic uint64_t next_request_id;
    _Atomic bool hurries; /* no call is sent again */
    atomic_uint n_short;  /* calls under way whose answer is short */
    atomic_uint n_long;   /* and those of long operations */
    _Atomic pid_t owner; /* process whose connections these are; negative: it is about to drop its parent's */

    struct lock lock; /* covers what follows */
    struct cond freed;
    struct client_conn *idle; /* of the current epoch only */
    uint32_t n_idle;
    uint32_t n_open;    /* idle, busy and being opened, of any epoch */
    uint32_t n_current; /* of them those of the current epoch */
    uint64_t epoch;     /* from 1 */
    struct id128 session;
};

/* Connects and says hello as `session`; gives up at deadline_ms (monotonic). */
int client_conn_open(struct client *c, struct id128 session, uint64_t deadline_ms, struct client_conn **ret,
                     struct err *e);
void client_conn_free(struct client_conn *conn);
DEFINE_CLEANUP(struct client_conn, client_conn_free)
/* Whether an idle connection is still in step: nothing to read, not closed by the other side. */
bool client_conn_is_alive(const struct client_conn *conn);

/* How a call ended, beside its code. */
enum client_fate {
    CLIENT_ANSWERED, /* the node answered, with success or a failure; the connection is in step */
    CLIENT_UNSEEN,   /* the node cannot have run it; the connection is lost */
    CLIENT_LOST,     /* it may have run or not; the connection is lost */
};
/* How long to wait for a reply: ms, and again so long each time `go_on` (may be NULL) says so, which is asked
 * when no more than ask_ms of them are left; as many as it may take itself. */
struct client_patience {
    uint64_t ms, ask_ms;
    bool (*go_on)(void *arg);
    void *arg;
    void (*before_sleep)(void); /* may be NULL */
    bool (*is_unwanted)(void);  /* may be NULL; once it says so the call ends with -EINTR */
    bool looks;                 /* for the reply, before it sleeps */
};
/* One call on one connection. */
int client_conn_call(struct client_conn *conn, uint32_t op, const void *req, uint64_t request_id,
                     const struct client_patience *patience, struct buf *b, void *ret_rep,
                     enum client_fate *ret_fate, struct err *e);

/* Whether a call may be sent again although the node may have run it. */
bool client_op_is_repeatable(uint32_t op);
/* Whether it changes nothing and opens nothing that outlives its reply, so that it may be left alone. */
bool client_op_is_question(uint32_t op);
/* Whether the answer comes at once, from what the node has in memory. */
bool client_op_is_short(uint32_t op);
/* Whether the reply may take as long as the object is large, so that only the node's health bounds it. */
bool client_op_is_long(uint32_t op);

/* Begins each use of a client: a process that was forked drops the connections of its parent and begins a
 * session of its own. Two processes on one stream would take each other's replies. */
void client_own(struct client *c);
/* Starts the next session: handles of the old one are gone. Closes idle connections. */
void client_new_epoch_locked(struct client *c);

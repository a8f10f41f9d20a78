/*
 * A client of one node: finds it, keeps a bounded pool of connections, and makes wire calls. Blocking and
 * thread-safe: any number of threads may call at once; a connection carries one call at a time.
 *
 * The node may restart under a client. A call that only asks, or that may be repeated without harm, is sent
 * again until `timeout_ms` have passed. A call that changes something is sent again only while it is certain
 * that the node did not see it, or when it has a number by which the node knows it; otherwise it fails with
 * -EIO and a text that says so.
 *
 * Handles that the node gave out (OPEN, PUT_OPEN) belong to the session, and a restart ends it. Each session
 * of a client has a number, the *epoch*: a handle is used together with the epoch it was given in, and a call
 * with an older one fails with -EBADF without asking the node. client_file.h and client_writer.h do this for
 * their users.
 */
#pragma once

#include "base/buf.h"
#include "base/err.h"
#include "base/id.h"
#include "net/wire.h"

#include <stdatomic.h>

struct client;

#define CLIENT_TIMEOUT_MS  60000
#define CLIENT_CONNECTIONS 16
#define CLIENT_IDLE        8
/* A reply's body; give BUF_INIT(CLIENT_REPLY_MAX_BYTES) to calls. */
#define CLIENT_REPLY_MAX_BYTES WIRE_BODY_MAX_BYTES

/*
 * Where the node is. The first of these that is set wins: socket_path, data_dir, endpoint, then the
 * environment (FOREBAY_SOCKET, FOREBAY_DATA, FOREBAY_ENDPOINT). On a Unix socket root and the node's own user
 * need no credentials. Credentials: access_key and secret_key here, else FOREBAY_ACCESS_KEY and
 * FOREBAY_SECRET_KEY, else the file DIR/credentials of a data_dir. Strings are borrowed for the call only.
 */
struct client_options {
    const char *socket_path;
    const char *data_dir;
    const char *endpoint; /* HOST:PORT of the wire protocol */
    const char *access_key, *secret_key;
    const char *name;     /* shown in the node's log; NULL: "client" */
    enum wire_via via;    /* 0: WIRE_VIA_API */
    uint64_t timeout_ms;  /* most time a call may take while the node does not answer; 0: CLIENT_TIMEOUT_MS */
    uint32_t connections; /* most at a time; 0: CLIENT_CONNECTIONS */
    uint32_t idle;        /* of them, most that stay open while nobody uses them; 0: CLIENT_IDLE */
    /* Called by the thread that makes a call, before it does; NULL: nothing. */
    void (*before_call)(uint32_t op);
    /* The number under which a call that changes something may be sent again, with the highest bit, also when
     * the node may have run it: the same for the same change, and for no other one of the family. 0: it may
     * not. NULL: none has one. */
    uint64_t (*number)(uint32_t op);
    /* Called by it before it sleeps for the node, which it does not when the answer comes at once; NULL:
     * nothing. */
    void (*before_sleep)(void);
    /* Asked by it ten times a second while it waits for the answer to a question: whether nobody wants that
     * any more, or it may be waited for no longer. The call then fails with -EINTR, and the session goes on.
     * NULL: somebody always does. */
    bool (*is_unwanted)(void);
    /* Asked by it before each OPEN, FETCH and LIST of a reader: whether that has WIRE_NO_WAIT. NULL: none
     * has.
     */
    bool (*must_not_wait)(void);
    const struct id128 *family; /* of clients whose sessions may end each other (END_SIBLINGS); NULL: alone */
};

/* Finds the node and says hello. ERR_BAD_OPTION: nothing says where the node is; -ENOENT, -ECONNREFUSED: it
 * does not run (asked once, without waiting); ERR_UNAUTHENTICATED. Free with client_free, when no call runs
 * any more. */
int client_new(const struct client_options *o, struct client **ret, struct err *e);
/* After that, or a call that found no connection: whether it is of no use to try again, because the node has
 * refused the keys, or what answers there is none. All else, whatever connect(2) or the resolver says, is a
 * node that is away. */
bool client_is_refused(int code);
void client_free(struct client *c); /* NULL accepted; ends the session: uncommitted writes are dropped */
/* Its end is near: from now on no call is sent again, none waits for a node that is not there, and a reply
 * that does not come in time ends the session. */
void client_hurry(struct client *c);
/* Of the calling thread alone: once *stop is set none of its calls is sent again. NULL: none of that. */
void client_stop_when(const atomic_bool *stop);
/* Called by a call for whose connection this process may have no further descriptor, before it waits for
 * others to close some: whether some were closed. It may make calls. Set while no call runs; NULL: nobody
 * can.
 */
void client_on_no_room(struct client *c, bool (*make_room)(void *arg), void *arg);
DEFINE_CLEANUP(struct client, client_free)

/* "unix:/d/run/forebay.sock" or "127.0.0.1:7071", for messages. Lives as long as the client. */
const char *client_address(const struct client *c);
/* Whether replies may carry descriptors. */
bool client_passes_fds(const struct client *c);
enum wire_via client_via(const struct client *c);
/* Epoch of the session now. */
uint64_t client_epoch(struct client *c);
/* WIRE_NO_WAIT where a call of this thread must not wait for an origin now, else 0. */
uint32_t client_no_wait(const struct client *c);
/* For who makes no calls for a while, and is to learn of the session's end: what the node has closed ends it.
 * Asks nobody. */
void client_look(struct client *c);

/*
 * One call. req and ret_rep are the operation's structs of net/wire.h; the reply's slices point into b, which
 * is the caller's (buf_fini). A descriptor in ret_rep->fd is the caller's to close. Fails with the node's
 * code and text, or -EHOSTDOWN (not reached in time), -ETIMEDOUT, -EIO, ERR_PROTOCOL, -EMFILE (the
 * descriptor of the reply found no room; what the node opened is closed). Operations on a handle go through
 * client_call_at.
 */
int client_call(struct client *c, uint32_t op, const void *req, struct buf *b, void *ret_rep, struct err *e);
/*
 * As client_call for operations that make or use a handle. *epoch 0: any session, and on success *epoch is
 * the one that it ran in; else only in that session, -EBADF when that is over.
 */
int client_call_at(struct client *c, uint64_t *epoch, uint32_t op, const void *req, struct buf *b,
                   void *ret_rep, struct err *e);

/* What the calling thread has waited for the node since client_waits_begin, retries and all: `longest_op`
 * (0: it made no call) took the longest of it. */
struct client_waits {
    uint64_t ns, longest_ns;
    uint32_t longest_op;
};
void client_waits_begin(void);
struct client_waits client_waits_end(void);

/* Typed forms of client_call: client_stat(c, &req, &b, &rep, e), client_list, client_remove,
 * client_bucket_create... */
#define X(NAME, name, number)                                                                                \
    static inline int client_##name(struct client *c, const struct wire_##name##_req *req, struct buf *b,    \
                                    struct wire_##name##_rep *ret_rep, struct err *e)                        \
    {                                                                                                        \
        return client_call(c, WIRE_OP_##NAME, req, b, ret_rep, e);                                           \
    }
WIRE_OPS(X)
#undef X

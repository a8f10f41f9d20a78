/*
 * The table of open connections and their deadlines.
 *
 * Ownership: a connection belongs to the thread that claimed it when it received an epoll event of it, from
 * then until that thread lets it go or frees it. Everybody else may only ask the kernel to shut its socket
 * down, under the table's lock; that makes an event, and whoever gets the event closes the connection. So no
 * connection is freed while another thread looks at it.
 *
 * Events of connections that are armed for one (EPOLLONESHOT) come to one thread. Of those that are watched
 * (EPOLLET) a further one may come to another thread while they are owned, even when they have been closed
 * by then: it finds out by conn_claim, which leaves a note for the owner. That is why the memory of such
 * connections is never given back while the table is there, but used for later ones; an event that was for an
 * earlier one in the same place makes its owner look in vain, no more.
 *
 * Deadlines: each connection lies in one slot of a timer wheel. A busy connection has no deadline and one
 * whose deadline moves away is left in its slot: the sweep that finds it there puts it where it belongs. So a
 * request costs two plain stores here and no lock, and a sweep looks only at the connections of its slots.
 */
#pragma once

#include "base/lock.h"
#include "base/slice.h"
#include "net/http_conn.h"

#include <netinet/in.h>
#include <stdatomic.h>

/* X(NAME, name in metrics) */
#define CONN_KINDS(X)                                                                                        \
    X(HTTP, "http")                                                                                          \
    X(WIRE, "wire")                                                                                          \
    X(UNIX, "unix")

enum conn_kind {
#define X(NAME, name) CONN_##NAME,
    CONN_KINDS(X)
#undef X
        CONN_KIND_COUNT
};

const char *conn_kind_name(enum conn_kind kind);

enum conn_phase {
    CONN_LISTENING, /* not a connection: a listening socket */
    CONN_HANDSHAKE, /* TLS is not agreed on yet */
    CONN_HEAD,      /* waits for a request, or has a part of its head */
    CONN_QUEUED,    /* has a request that no worker was free for */
    CONN_REST,      /* the rest of a response waits for room in the socket */
    CONN_LINGER,    /* sending side shut: what arrives is discarded for a while */
};

/* Whose it is. */
enum conn_claim {
    CONN_FREE,  /* no connection: memory for one */
    CONN_WAITS, /* nobody's: who gets an event of it may claim it */
    CONN_OWNED, /* a thread's, or it is on the ready list */
    CONN_TOLD,  /* the same, and another event has come meanwhile */
};

struct wire_conn;

#define CONN_MAGIC 0x434f4e4eu
#define CONN_NEVER UINT64_MAX

struct conn {
    _Atomic uint8_t claim;  /* enum conn_claim */
    atomic_bool hung_up;    /* an event said so, of this connection or of one before in the same memory */
    struct conn *next_made; /* of those whose memory is kept; table lock */
    /* All that follows is cleared when the memory is used again. */
    uint32_t magic;
    int fd;
    uint8_t kind;          /* enum conn_kind */
    _Atomic uint8_t phase; /* enum conn_phase; written by the owner */
    atomic_bool expired;
    atomic_bool holds;            /* memory that others may wait for */
    bool is_kept;                 /* its memory is */
    bool watched;                 /* all that arrives makes an event (EPOLLET), without arming */
    bool drained;                 /* nothing has arrived that was not read, or will not make an event */
    bool pending_is_part;         /* `pending` is one of a head: it was parsed */
    bool ended;                   /* the peer's end has arrived, or may have */
    _Atomic uint64_t deadline_ms; /* monotonic; 0: busy; CONN_NEVER */
    struct conn *prev, *next;     /* of its slot; table lock */
    uint64_t visit_ms;            /* when its slot is swept; table lock */
    uint64_t head_deadline_ms;    /* of the handshake, or of the head that has begun; 0: none has */
    uint64_t linger_left_bytes;
    _Atomic uint32_t unsent, patience_ms; /* CONN_REST: bytes that the peer has not taken, see below */
    char *pending;                        /* received and not consumed: part of a head, or a queued request */
    size_t pending_n;
    struct tls *tls; /* from the first byte of the handshake on; NULL: plain */
    struct stream_pace pace;
    bool is_cut; /* table lock */
    struct http_rest *rest;
    struct wire_conn *wire; /* kinds WIRE and UNIX */
    struct conn *next_ready;
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } peer;
};

static_assert(sizeof(struct conn) <= 256, "ten thousand idle connections must cost little");

#define CONN_TICK_MS 250
#define CONN_SLOTS   512

struct conn_table {
    struct lock lock; /* slots, links, n, swept_ms, made, unused */
    struct conn *slots[CONN_SLOTS];
    struct conn *made;   /* whose memory is kept, in use or not */
    struct conn *unused; /* of them, linked by next_ready: as many as were open at once */
    uint64_t swept_ms;   /* slots before this time are done */
    atomic_size_t n;
};

void conn_table_init(struct conn_table *t, uint64_t now_ms);
/* All connections must be gone. */
void conn_table_fini(struct conn_table *t);

/* By who has an event of it; hung_up: of its end, which the owner hears of by the field of that name. True:
 * it is the caller's now. False: it is owned by another, who is told, or it is no more. */
bool conn_claim(struct conn *c, bool hung_up);
/* The owner's last act: the next one sees all that it did. False: there was an event meanwhile, and the
 * caller owns it still. */
bool conn_let_go(struct conn *c);

/* Takes fd. The connection is the caller's, and busy until conn_set_deadline. Never NULL. */
struct conn *conn_new(struct conn_table *t, int fd, enum conn_kind kind, uint64_t now_ms);
/* Closes the socket and frees all that hangs on it, except `wire`, which must be gone. */
void conn_free(struct conn_table *t, struct conn *c);

/* No deadline until the next call of conn_set_deadline. By the owner. */
static inline void conn_set_busy(struct conn *c)
{
    atomic_store_explicit(&c->deadline_ms, 0, memory_order_relaxed);
}
/* By the owner, before it arms the connection. */
void conn_set_deadline(struct conn_table *t, struct conn *c, uint64_t deadline_ms, bool exact);
/* A response waits for room in the socket (CONN_REST): expires when the peer takes nothing for patience_ms.
 * One that takes little by little goes on, although the kernel tells of room only once a good part of its
 * buffer is free. */
void conn_wait_for_room(struct conn_table *t, struct conn *c, uint64_t now_ms, uint64_t patience_ms);

/* Shuts down what is past its deadline: reading only, so that an answer can still be sent; both sides for a
 * rest. */
void conn_table_sweep(struct conn_table *t, uint64_t now_ms);
/* Does the same to all connections that are not busy (`busy_too`: to those also, and both sides). */
void conn_table_shutdown(struct conn_table *t, bool busy_too);

#define SLOW_BYTES_PER_S (32 * KIB) /* of a client for which a thread waits; less is slow */
#define SLOW_GRACE_MS    5000

/* Shuts down up to n connections that let their thread wait and are slow: reading only, where it receives, so
 * that it can answer. Those shut down before that wait still count. How many it were this time. `of_holders`:
 * only such as hold memory. */
unsigned conn_table_cut_slow(struct conn_table *t, uint64_t now_ms, unsigned n, bool of_holders);

/* Keeps a copy of bytes for later, replacing what was kept. */
void conn_keep_pending(struct conn *c, struct slice bytes);

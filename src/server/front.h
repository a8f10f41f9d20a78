/*
 * The front end: listening sockets, idle connections, worker threads. It knows HTTP and wire framing, and
 * calls the functions of its configuration for what the requests mean, so that tests can run it alone.
 */
#pragma once

#include "base/budget.h"
#include "base/err.h"
#include "base/id.h"
#include "net/http_conn.h"
#include "net/sock.h"
#include "net/tls.h"
#include "net/wire.h"
#include "server/conn.h"

struct front;

/* What runs the operations of wire sessions: the object service, or a test. Any thread. */
struct front_sessions {
    /* id: as the client chose it. access_key: who signed in; empty: who may do everything. NULL: no such user
     * any more. */
    void *(*open)(void *arg, struct id128 id, enum wire_via via, struct slice access_key);
    void (*close)(void *session);
    /* The secret of an access key other than the node's, appended: 0, or an error when there is none. NULL:
     * there are no others. */
    int (*secret)(void *arg, struct slice access_key, struct buf *ret_secret);
    /* As object_call. */
    int (*call)(void *session, uint32_t op, const void *req, struct arena *a, void *rep, struct err *e);
    /* As object_sent; NULL: nothing waits for it. */
    void (*sent)(void *session, uint32_t op, const void *rep);
    /* As object_session_abandon; NULL: nothing is to be done. Must not wait for operations. */
    void (*abandon)(void *session);
    /* As object_unsent; NULL: nothing is to be done. */
    void (*unsent)(void *session, uint32_t op, const void *req, const void *rep, struct arena *a);
    void *arg;
    /* As object_session_set_peer, of a user's session whose connections are of the Unix socket, before its
     * first call; NULL: nobody wants to know. */
    void (*identify)(void *session, const struct sock_peer *peer);
    /* As object_reply_bytes; NULL: nothing to speak of. */
    uint64_t (*reply_bytes)(void *session, uint32_t op, const void *req);
};

struct front_config {
    unsigned threads;         /* most workers */
    unsigned max_connections; /* of all kinds together; by the Unix socket a few more */
    uint64_t request_timeout_ms, idle_timeout_ms;
    uint64_t heads_bytes;   /* most memory for heads that are not complete or wait for a worker */
    uint64_t answers_bytes; /* most memory for ends of answers that clients do not take; 0: workers wait for
                               them */
    struct budget *buffers; /* large bodies of wire requests and replies are taken from here */
    http_handler_fn http;
    void *http_arg;
    /* Requests that the reserved thread may serve while all workers are busy: short ones that never block. */
    bool (*express)(void *http_arg, const struct http_request *r);
    struct front_sessions sessions;
    const char *access_key, *secret_key; /* who must sign in on the wire protocol signs with these */
    const char *node_id;
    struct tls_server *tls; /* of the HTTP port, borrowed; NULL: plain HTTP */
};

/* Copies the configuration; its strings must outlive the front. Starts its threads.
 */
int front_start(const struct front_config *config, struct front **ret, struct err *e);
/* Takes a listening socket, also when it fails, and serves it. */
int front_listen(struct front *f, int fd, enum conn_kind kind, struct err *e);
/* From now on: deadlines that run already stay, and connections that are open keep their socket's timeout. */
void front_set_timeouts(struct front *f, uint64_t request_timeout_ms, uint64_t idle_timeout_ms);
/* Closes the listeners and idle connections, and waits until running requests have ended; -ETIMEDOUT. */
int front_drain(struct front *f, uint64_t timeout_ms);
/* Cuts what is left and ends all threads. Waits for handlers that still run. */
void front_stop(struct front *f);
/* After front_stop, or of one that was never started. NULL accepted. */
void front_free(struct front *f);
DEFINE_CLEANUP(struct front, front_free)

size_t front_connections(struct front *f);
/* Connections that have a request running, of one kind. */
unsigned front_active(struct front *f, enum conn_kind kind);
unsigned front_workers(struct front *f);

/*
 * One HTTP connection as a worker thread sees it while a request runs: blocking reads of the body, a response
 * head, a body of known or unknown length, and a tail that is a range of a file.
 *
 * The poller owns the connection between requests and reads heads; a worker owns it from a complete head to
 * the end of the response. A handler does not have to wait for a slow client: it leaves the rest of the
 * response as a *tail* (file, offset, length), which the server sends when the socket has room, holding no
 * thread.
 */
#pragma once

#include "base/budget.h"
#include "net/http.h"
#include "net/stream.h"

struct http_conn;

struct http_tail {
    int fd; /* borrowed until done is called */
    uint64_t offset, n;
    void (*done)(void *arg, uint64_t sent,
                 bool whole);                     /* once, on any thread; then fd is not used any more */
    void (*unreadable)(void *arg, uint64_t sent); /* before done, where the file gave an error; may be NULL */
    void *arg;
};

const struct http_request *http_conn_request(const struct http_conn *c);
/* For one request; cleared when the response is complete. Limit 1 MiB. */
struct arena *http_conn_arena(struct http_conn *c);
const char *http_conn_peer(const struct http_conn *c); /* "127.0.0.1:4711", for logs */
uint64_t http_conn_id(const struct http_conn *c);      /* request id, unique in the process */
bool http_conn_is_tls(const struct http_conn *c);

/* Body bytes: >0, 0 at its end, or an error (-ETIMEDOUT, ERR_PROTOCOL, -EPIPE). Sends "100 Continue" on the
 * first call when the client waits for it. Chunked framing is removed. */
ssize_t http_conn_read(struct http_conn *c, void *p, size_t n);
/* A time (sys_mono_ms) after which no more of this request's body is waited for, however steadily it drips:
 * reading then gives -ETIMEDOUT. */
void http_conn_end_body(struct http_conn *c, uint64_t end_ms);
#define HTTP_WHOLE_MS 60000 /* what a body gets that is read as a whole */
/* Whole body into b, ERR_PROTOCOL/-E2BIG when over b's maximum; -ETIMEDOUT when it takes more than a minute.
 */
int http_conn_read_all(struct http_conn *c, struct buf *b);

/* Response: head once, then the body. n_bytes UINT64_MAX: length unknown (chunked, or until close for 1.0).
 * `headers` are lines "Name: value\r\n"; Date, Server, Content-Length, Connection and Transfer-Encoding are
 * added. */
int http_conn_head(struct http_conn *c, int status, struct slice headers, uint64_t n_bytes);
/* The last bytes of an announced body do not wait for the client: see http_conn_set_spare. */
int http_conn_write(struct http_conn *c, const void *p, size_t n);
int http_conn_sendfile(struct http_conn *c, int fd, uint64_t offset, uint64_t n);
/* Leaves the rest of the announced body to the server; call last. The server calls done exactly once, also on
 * errors. */
void http_conn_tail(struct http_conn *c, const struct http_tail *t);
/* Head and a small body in one go. */
int http_conn_reply(struct http_conn *c, int status, struct slice headers, struct slice body);
bool http_conn_head_sent(const struct http_conn *c);
/* Sends the head without what follows, which may be long in coming. */
int http_conn_send_head(struct http_conn *c);
/* Whether a few bytes can be written without waiting for the client, or it is gone, which a write tells. */
bool http_conn_has_room(const struct http_conn *c);
/* The connection cannot be kept (body unread and large, response cut): closed after this response. */
void http_conn_close_after(struct http_conn *c);

/* What the server calls for each request; must send a response. Runs on a worker thread. */
typedef void (*http_handler_fn)(struct http_conn *c, void *arg);

/*
 * ---- for the owner of the socket: the server's front end, and tests ----
 *
 * A struct http_conn belongs to a thread, not to a connection: it holds the buffers of the one request that
 * the thread runs (about 64 KiB) and is attached to a socket only meanwhile. Between requests a connection
 * needs nothing of it, so that ten thousand idle ones cost nothing here.
 *
 *     attach -> receive* -> parse -> serve -> (pending bytes: parse again) -> detach
 *
 * The socket is non-blocking, with SO_RCVTIMEO and SO_SNDTIMEO set: waits inside a handler are bounded by
 * them.
 */
struct sockaddr;

enum http_next {
    HTTP_NEXT_KEEP,   /* the response is complete; the next request may come */
    HTTP_NEXT_TAIL,   /* a tail, or what the socket did not take, is left: http_conn_take_rest */
    HTTP_NEXT_LINGER, /* shut the sending side, discard what arrives for a while, then close */
    HTTP_NEXT_CLOSE,  /* close at once */
};

/* The unsent rest of a response with everything that must live until it is sent. */
struct http_rest;

struct http_conn *http_conn_new(void);
void http_conn_free(struct http_conn *c);
DEFINE_CLEANUP(struct http_conn, http_conn_free)
/* `pending`: bytes received earlier, copied in; at most HTTP_HEAD_MAX_BYTES. is_part: http_conn_parse has
 * given -EAGAIN for them. peer (may be NULL) must live until the detach. */
void http_conn_attach(struct http_conn *c, struct stream s, const struct sockaddr *peer, struct slice pending,
                      bool is_part);
void http_conn_detach(struct http_conn *c);
/* Memory, borrowed, for the last bytes of responses that the socket does not take: they become a rest as
 * those of a tail do. Without it, or when it is used up, whoever writes waits, if it may; else the response
 * fails. */
void http_conn_set_spare(struct http_conn *c, struct budget *spare, bool may_wait);
/* Whether responses from now on say "Connection: close". */
void http_conn_set_draining(struct http_conn *c, bool draining);
/* Most bytes that the next read can give. */
size_t http_conn_room(const struct http_conn *c);
/* Whether a part of the body of the request parsed last is still to come. */
bool http_conn_awaits_body(const struct http_conn *c);
/* One non-blocking read: > 0, 0 at the end of the stream, -EAGAIN, or an error. */
ssize_t http_conn_receive(struct http_conn *c);
/* Bytes received and not yet consumed. */
struct slice http_conn_pending(const struct http_conn *c);
/* All bytes received since the beginning of the request parsed last, its head included: to hand it to another
 * thread. */
struct slice http_conn_received(const struct http_conn *c);
/* The head of the next request out of the pending bytes; as http_parse_head. */
int http_conn_parse(struct http_conn *c, int *ret_status, struct err *e);
/* Runs the handler on the parsed request and ends the response. */
enum http_next http_conn_serve(struct http_conn *c, http_handler_fn handler, void *arg);
/* Answers a request that could not be parsed or came too late, with a short text. */
enum http_next http_conn_refuse(struct http_conn *c, int status, const char *text);
/* Of the request served last, for the access log. */
int http_conn_status(const struct http_conn *c);
uint64_t http_conn_sent(const struct http_conn *c);
/* Body bytes of this request that were read so far; what was only announced does not count. */
uint64_t http_conn_taken(const struct http_conn *c);

/* The rest that HTTP_NEXT_TAIL announced; the caller's to send and free. */
struct http_rest *http_conn_take_rest(struct http_conn *c);
/* Sends what the socket takes without waiting, at most a turn of 2 MiB: 0 all sent, -EAGAIN some left, or an
 * error. */
int http_rest_send(struct http_rest *r, struct stream s);
bool http_rest_keep_alive(const struct http_rest *r);
/* Tells the tail's owner how it went and frees everything. */
void http_rest_free(struct http_rest *r);

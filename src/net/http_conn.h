/*
 * One HTTP connection as a worker thread sees it while a request runs: blocking reads of the body, a response head,
 * a body of known or unknown length, and a tail that is a range of a file.
 *
 * The poller owns the connection between requests and reads heads; a worker owns it from a complete head to the end
 * of the response. A handler does not have to wait for a slow client: it leaves the rest of the response as a *tail*
 * (file, offset, length), which the server sends when the socket has room, holding no thread.
 */
#pragma once

#include "net/http.h"

struct http_conn;

struct http_tail {
    int fd;               /* borrowed until done is called */
    uint64_t offset, n;
    void (*done)(void *arg, uint64_t sent, bool whole); /* once, on any thread; then fd is not used any more */
    void *arg;
};

const struct http_request *http_conn_request(const struct http_conn *c);
/* For one request; cleared when the response is complete. Limit 1 MiB. */
struct arena *http_conn_arena(struct http_conn *c);
const char *http_conn_peer(const struct http_conn *c); /* "127.0.0.1:4711", for logs */
uint64_t http_conn_id(const struct http_conn *c);       /* request id, unique in the process */

/* Body bytes: >0, 0 at its end, or an error (-ETIMEDOUT, ERR_PROTOCOL, -EPIPE). Sends "100 Continue" on the first
 * call when the client waits for it. Chunked framing is removed. */
ssize_t http_conn_read(struct http_conn *c, void *p, size_t n);
/* Whole body into b, ERR_PROTOCOL/-E2BIG when over b's maximum. */
int http_conn_read_all(struct http_conn *c, struct buf *b);

/* Response: head once, then the body. n_bytes UINT64_MAX: length unknown (chunked, or until close for 1.0).
 * `headers` are lines "Name: value\r\n"; Date, Server, Content-Length, Connection and Transfer-Encoding are added. */
int http_conn_head(struct http_conn *c, int status, struct slice headers, uint64_t n_bytes);
int http_conn_write(struct http_conn *c, const void *p, size_t n);
int http_conn_sendfile(struct http_conn *c, int fd, uint64_t offset, uint64_t n);
/* Leaves the rest of the announced body to the server; call last. The server calls done exactly once, also on errors. */
void http_conn_tail(struct http_conn *c, const struct http_tail *t);
/* Head and a small body in one go. */
int http_conn_reply(struct http_conn *c, int status, struct slice headers, struct slice body);
bool http_conn_head_sent(const struct http_conn *c);
/* The connection cannot be kept (body unread and large, response cut): closed after this response. */
void http_conn_close_after(struct http_conn *c);

/* What the server calls for each request; must send a response. Runs on a worker thread. */
typedef void (*http_handler_fn)(struct http_conn *c, void *arg);

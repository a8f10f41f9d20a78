/*
 * The server's side of TLS 1.2 and 1.3 (OpenSSL 3): certificates that can be exchanged while connections are
 * open, and connections whose calls never wait.
 *
 * A struct tls belongs to one thread at a time, like the socket below it; a struct tls_server to all of them.
 * SIGPIPE must be ignored: OpenSSL writes without MSG_NOSIGNAL.
 */
#pragma once

#include "base/err.h"
#include "base/slice.h"

#include <sys/types.h>

struct tls_server;
struct tls;

#define TLS_RECORD_BYTES 16384 /* most plain bytes of a record (RFC 8446, 5.1) */

/* Certificate chain and private key, PEM. Refused, naming the file and what is wrong with it: files that
 * cannot be read or parsed, keys with a passphrase, a key of another certificate, a certificate whose time is
 * over or has not come. */
int tls_server_open(const char *cert_path, const char *key_path, struct tls_server **ret, struct err *e);
/* The same files or others, for connections from now on. On failure nothing changes. */
int tls_server_reload(struct tls_server *s, const char *cert_path, const char *key_path, struct err *e);
/* Connections may outlive it. NULL accepted. */
void tls_server_free(struct tls_server *s);
DEFINE_CLEANUP(struct tls_server, tls_server_free)
/* "CN=node until 2027-01-31T00:00:00Z; kernel TLS: no (...)", for the log. */
#define TLS_TEXT_MAX 256
void tls_server_describe(struct tls_server *s, char ret[TLS_TEXT_MAX]);

/* A connection over a non-blocking socket, which stays the caller's and must outlive it. Never NULL. */
struct tls *tls_new(struct tls_server *s, int fd);
/* Tells the peer that nothing more comes, where the socket takes it at once. NULL accepted. */
void tls_free(struct tls *t);
/* Says that nothing more comes; once, and nothing is sent after it. */
void tls_end(struct tls *t);

/*
 * 0: done; -EAGAIN: call again when the socket is ready for tls_wants (POLLIN or POLLOUT); -EPIPE: the peer
 * is gone; ERR_PROTOCOL: refused, with the reason.
 */
int tls_handshake(struct tls *t, struct err *e);
short tls_wants(const struct tls *t);

/* > 0; 0 at the end of the stream; -EAGAIN; -EPIPE, ERR_PROTOCOL. */
ssize_t tls_recv(struct tls *t, void *p, size_t n);
/* Whether tls_recv may give bytes although the socket is not readable: look before waiting for it. */
bool tls_has_pending(const struct tls *t);
/* Takes up to a record: > 0, the bytes that will be sent (a part of them may wait for the next call or for
 * tls_flush), -EAGAIN, -EPIPE. */
ssize_t tls_send(struct tls *t, const void *p, size_t n);
/* Sends what tls_send has taken: 0, -EAGAIN, -EPIPE. */
int tls_flush(struct tls *t);
/* Some bytes of a file, by the kernel where it can: > 0 as tls_send, -EAGAIN, -EPIPE, -ENODATA when the file
 * is shorter, or the error of reading it. */
ssize_t tls_sendfile(struct tls *t, int file, uint64_t offset, uint64_t n);

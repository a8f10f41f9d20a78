/*
 * The receiving side of TLS 1.3 for a load: knows how many plain bytes have come without decrypting all of
 * them, so that a client on the server's own processors costs what a client without TLS does.
 *
 * Records are cut by their heads, which are plain. Of a record as large as they get, the plain bytes are 17
 * fewer than the sealed ones (RFC 8446, 5.2: the type of what is inside, and the tag). Every other record is
 * opened, as are every SEALED_EVERYth and all of those that the caller asks for: what is not the server's is
 * found there, as are alerts, which are small, and padding.
 */
#pragma once

#include "base/err.h"
#include "base/slice.h"

#include <openssl/ssl.h>

#define SEALED_SECRET_MAX 64 /* bytes of a traffic secret: a hash */
#define SEALED_EVERY      64 /* one record in so many is opened in any case */

/* n plain bytes have come, p of a record that was opened, NULL of one that was not. A negative code ends
 * sealed_take with it. */
typedef int (*sealed_fn)(void *arg, const char *p, size_t n);

struct sealed;

/* What the server sends on a session whose handshake is done, and of which nothing was read since. `secret`
 * is its first traffic secret (SSL_CTX_set_keylog_callback). Refused: anything but TLS 1.3 with AES-GCM. */
int sealed_new(const SSL *ssl, struct slice secret, struct sealed **ret, struct err *e);
/* NULL accepted. */
void sealed_free(struct sealed *s);
DEFINE_CLEANUP(struct sealed, sealed_free)

/* Whether each record that begins from now on is opened. So it is at first. */
void sealed_open_all(struct sealed *s, bool all);
/* Takes what came from the socket, cut anywhere: 0; ERR_PROTOCOL for a record that is none, that does not
 * open, or holds something other than data or a ticket for later sessions; or what fn gave. */
int sealed_take(struct sealed *s, struct slice bytes, sealed_fn fn, void *arg, struct err *e);
/* Whether all that was taken were whole records. */
bool sealed_is_between(const struct sealed *s);

/*
 * Secrets in the control store: sealed with a key that lies beside it, so that a copy of the store alone
 * tells none.
 *
 * The key file, mode 0600:
 *
 *     forebay-secret-key 1\n
 *     64 hex digits\n
 *
 * A sealed value is base64 of these bytes; AES-256-GCM, the context (what the value is of) is authenticated
 * too:
 *
 * | offset | size | meaning                        |
 * | ------ | ---- | ------------------------------ |
 * | 0      | 1    | 1: this form                   |
 * | 1      | 12   | nonce, random for each sealing |
 * | 13     | n    | the secret, encrypted          |
 * | 13+n   | 16   | tag                            |
 */
#pragma once

#include "base/buf.h"
#include "base/err.h"

#define SEAL_KEY_BYTES 32

struct seal;

/* Reads the key file, or makes it when there is none. The file must be the node's own: -EINVAL when others
 * may read it, or when it is none. */
int seal_open(const char *path, struct seal **ret, struct err *e);
/* From a key, for tests. */
struct seal *seal_new(const uint8_t key[SEAL_KEY_BYTES]);
void seal_free(struct seal *s);
DEFINE_CLEANUP(struct seal, seal_free)

/* Appends the sealed form; any thread. -E2BIG when `out` is too small. */
int seal_wrap(const struct seal *s, struct slice context, struct slice secret, struct buf *out);
/* Appends the secret. ERR_CORRUPT when the value is none of this key and context. */
int seal_unwrap(const struct seal *s, struct slice context, struct slice sealed, struct buf *out,
                struct err *e);

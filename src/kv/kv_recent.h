/*
 * Versions of keys that were read or written lately: conditions mostly name such keys, and need not be looked
 * up in the store then. Exact: keys are kept and compared, and nothing is kept that may be otherwise.
 *
 * The engine takes a ticket before it reads a key, and gives it back with what it read; that is left out when
 * a commit ran meanwhile. A commit says when it begins to write and when it has ended; commits come one after
 * the other (the caller's lock). Everything else may be called by any thread.
 */
#pragma once

#include "kv/kv_internal.h"

#define KV_RECENT_KEY_MAX 110 /* longer keys are not kept */

struct kv_recent;

struct kv_recent *kv_recent_new(void);    /* never NULL */
void kv_recent_free(struct kv_recent *r); /* NULL accepted */

/* Before a key is read from the store. */
uint64_t kv_recent_ticket(struct kv_recent *r);
/* What was read after that; version 0: there is no such key. */
void kv_recent_note(struct kv_recent *r, struct slice key, uint64_t version, uint64_t ticket);
/* The key's version now, 0: there is none. False: not known. */
bool kv_recent_find(struct kv_recent *r, struct slice key, uint64_t *ret_version);

/* A transaction is about to be written to the store. */
void kv_recent_begin(struct kv_recent *r);
/* It was, with this version; or it failed, and nobody knows how much of it is there. */
void kv_recent_end(struct kv_recent *r, const struct kv_txn *t, uint64_t version, bool failed);

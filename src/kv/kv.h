/*
 * The key-value interface: ordered byte keys, transactions with checks, two kinds of commit. One file per
 * engine; callers never know which one is below.
 *
 * A transaction collects conditions and changes, and commits all or nothing. Conditions name the version a
 * key must still have (0: the key must not exist), as etcd's compare does, so that the same code runs on
 * either engine. All functions are thread-safe except those on one kv_txn or kv_iter, which belong to one
 * thread.
 */
#pragma once

#include "base/buf.h"
#include "base/err.h"

struct kv;
struct kv_txn;
struct kv_iter;

enum kv_commit {
    KV_VISIBLE, /* survives kill -9; after power loss a prefix of such commits survives */
    KV_DURABLE, /* on disk before it returns; concurrent ones share one sync */
};

struct kv_options {
    uint64_t cache_bytes;        /* block cache, index and filter blocks included */
    uint64_t write_buffer_bytes; /* all memtables together */
    bool bulk;                   /* tuned for loading: no log, flushed by kv_close (tests, synthetic loads) */
    bool read_only; /* changes nothing on disk; commits give -EROFS; -ENOENT when there is none */
};

/* Opens or creates the embedded engine (RocksDB) in directory `path`. -EBUSY when another process holds it.
 */
int kv_open_rocksdb(const char *path, const struct kv_options *options, struct kv **ret, struct err *e);
/* An engine in memory with the same behaviour, for tests. */
int kv_open_memory(struct kv **ret);
/* Syncs what was committed; what that fails with is told in the log. NULL accepted. */
void kv_close(struct kv *kv);
DEFINE_CLEANUP(struct kv, kv_close)

/* Value of `key` appended to `ret_value` (may be NULL). -ENOENT. ret_version may be NULL; versions are > 0
 * and change with every put. They are kept inside the value by the embedded engine for keys written by
 * kv_txn_put (9 bytes); keys written by kv_txn_put_plain have no version (1 byte; version 1 is reported). A
 * damaged value: -EBADMSG. */
int kv_get(struct kv *kv, struct slice key, struct buf *ret_value, uint64_t *ret_version, struct err *e);

struct kv_txn *kv_txn_new(struct kv *kv);
void kv_txn_free(struct kv_txn *t);
/* As new. */
void kv_txn_clear(struct kv_txn *t);
DEFINE_CLEANUP(struct kv_txn, kv_txn_free)
/* Condition: the key still has this version (0: does not exist). */
void kv_txn_check(struct kv_txn *t, struct slice key, uint64_t version);
void kv_txn_put(struct kv_txn *t, struct slice key, struct slice value);
void kv_txn_put_plain(struct kv_txn *t, struct slice key, struct slice value);
void kv_txn_delete(struct kv_txn *t, struct slice key);
/* Deletes every key in [from, to). */
void kv_txn_delete_range(struct kv_txn *t, struct slice from, struct slice to);
size_t kv_txn_bytes(const struct kv_txn *t);
/* ERR_CONFLICT when a condition fails. The transaction is empty afterwards, also on failure. */
int kv_txn_commit(struct kv_txn *t, enum kv_commit kind, struct err *e);
/* The same; tells the version that every key it put with kv_txn_put has now, for callers that keep what they
 * wrote. */
int kv_txn_commit_version(struct kv_txn *t, enum kv_commit kind, uint64_t *ret_version, struct err *e);

/* Ordered scan of a consistent snapshot: keys in [from, to), `to` empty means to the end. */
struct kv_iter *kv_iter_new(struct kv *kv, struct slice from, struct slice to);
void kv_iter_free(struct kv_iter *it);
DEFINE_CLEANUP(struct kv_iter, kv_iter_free)
/* Next pair; the slices live until the next call. 0, -ENOENT at the end, or an error. */
int kv_iter_next(struct kv_iter *it, struct slice *ret_key, struct slice *ret_value, struct err *e);

/*
 * Whether an opening found the log damaged and had to leave out commits that may have been durable. It stays
 * so through later openings until whoever keeps data by these records has seen to it, and said kv_cut_mended.
 */
bool kv_is_cut(struct kv *kv);
int kv_cut_mended(struct kv *kv, struct err *e);

/* Makes everything committed so far durable. */
int kv_sync(struct kv *kv, struct err *e);
/* Engine's own estimate of the number of keys, and of the memory it holds. */
uint64_t kv_estimate_keys(struct kv *kv);
uint64_t kv_memory_bytes(struct kv *kv);
/* First key after all keys that begin with prefix, for scans: appended to `b`; nothing when there is none. */
int kv_prefix_end(struct slice prefix, struct buf *b);

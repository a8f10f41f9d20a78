/*
 * What an engine of the key-value interface provides, and how it reads a transaction.
 *
 * An engine embeds `struct kv` (and `struct kv_iter`) as first member and fills in its table. A transaction
 * is engine neutral: a flat list of operations in the order in which they were added, read with kv_txn_next.
 */
#pragma once

#include "kv/kv.h"

/* Most bytes that one transaction may hold; a larger one fails to commit with -E2BIG. */
#define KV_TXN_MAX_BYTES (256 * MIB)

enum kv_op_kind { KV_OP_CHECK, KV_OP_PUT, KV_OP_PUT_PLAIN, KV_OP_DELETE, KV_OP_DELETE_RANGE };

struct kv_op {
    enum kv_op_kind kind;
    struct slice key;   /* DELETE_RANGE: first key */
    struct slice value; /* PUT: the value; DELETE_RANGE: first key that stays */
    uint64_t version;   /* CHECK */
};

struct kv_engine {
    void (*close)(struct kv *kv);
    int (*get)(struct kv *kv, struct slice key, struct buf *ret_value, uint64_t *ret_version, struct err *e);
    /* Does not empty the transaction; kv_txn_commit does. ret_version is never NULL. */
    int (*commit)(struct kv *kv, const struct kv_txn *t, enum kv_commit kind, uint64_t *ret_version,
                  struct err *e);
    struct kv_iter *(*iter_new)(struct kv *kv, struct slice from, struct slice to);
    void (*iter_free)(struct kv_iter *it);
    int (*iter_next)(struct kv_iter *it, struct slice *ret_key, struct slice *ret_value, struct err *e);
    int (*sync)(struct kv *kv, struct err *e);
    uint64_t (*estimate_keys)(struct kv *kv);
    uint64_t (*memory_bytes)(struct kv *kv);
    /* Both NULL: commits are never left out. */
    bool (*is_cut)(struct kv *kv);
    int (*cut_mended)(struct kv *kv, struct err *e);
};

struct kv {
    const struct kv_engine *engine;
};

struct kv_iter {
    struct kv *kv;
};

/* The operation at *pos, and moves *pos behind it; false at the end. Start with *pos = 0. */
bool kv_txn_next(const struct kv_txn *t, size_t *pos, struct kv_op *ret);
/* Version that plain keys are reported with, and the first that a versioned put may use. */
#define KV_VERSION_PLAIN 1
#define KV_VERSION_FIRST 2

/*
 * The engine-neutral half of the key-value interface: dispatch, and transactions as a flat list of
 * operations.
 *
 * A transaction in memory is a run of records, each an op_head followed by the key and the value. It is never
 * stored or sent, so it is in the machine's own byte order.
 *
 * Failure modes: a transaction that outgrows KV_TXN_MAX_BYTES remembers it and fails at commit, so that the
 * adding functions need no result.
 */
#include "kv/kv_internal.h"

#include <string.h>

#define TXN_FIRST_BYTES 1000 /* room at first: what a change of the namespace takes */

struct kv_txn {
    struct kv *kv;
    struct buf ops;
    bool too_big;
};

struct op_head {
    uint32_t kind;
    uint32_t key_bytes;
    uint64_t value_bytes;
    uint64_t version;
};

void kv_close(struct kv *kv)
{
    if (kv)
        kv->engine->close(kv);
}

int kv_get(struct kv *kv, struct slice key, struct buf *ret_value, uint64_t *ret_version, struct err *e)
{
    assert(kv);
    return kv->engine->get(kv, key, ret_value, ret_version, e);
}

struct kv_txn *kv_txn_new(struct kv *kv)
{
    assert(kv);
    struct kv_txn *t = calloc(1, sizeof(*t));
    if (!t)
        abort();
    t->kv = kv;
    t->ops = BUF_INIT(KV_TXN_MAX_BYTES);
    (void)buf_reserve(&t->ops, TXN_FIRST_BYTES);
    return t;
}

void kv_txn_clear(struct kv_txn *t)
{
    buf_clear(&t->ops);
    t->too_big = false;
}

void kv_txn_free(struct kv_txn *t)
{
    if (!t)
        return;
    buf_fini(&t->ops);
    free(t);
}

static void txn_add(struct kv_txn *t, enum kv_op_kind kind, struct slice key, struct slice value,
                    uint64_t version)
{
    assert(t && key.n > 0 && key.n <= UINT32_MAX);
    struct op_head head = {kind, (uint32_t)key.n, value.n, version};
    size_t total = sizeof(head) + key.n + value.n;
    char *p = buf_reserve(&t->ops, total);
    if (!p) {
        t->too_big = true;
        return;
    }
    memcpy(p, &head, sizeof(head));
    memcpy(p + sizeof(head), key.p, key.n);
    if (value.n > 0)
        memcpy(p + sizeof(head) + key.n, value.p, value.n);
    buf_used(&t->ops, total);
}

void kv_txn_check(struct kv_txn *t, struct slice key, uint64_t version)
{
    txn_add(t, KV_OP_CHECK, key, SLICE_NULL, version);
}

void kv_txn_put(struct kv_txn *t, struct slice key, struct slice value)
{
    txn_add(t, KV_OP_PUT, key, value, 0);
}

void kv_txn_put_plain(struct kv_txn *t, struct slice key, struct slice value)
{
    txn_add(t, KV_OP_PUT_PLAIN, key, value, 0);
}

void kv_txn_delete(struct kv_txn *t, struct slice key)
{
    txn_add(t, KV_OP_DELETE, key, SLICE_NULL, 0);
}

void kv_txn_delete_range(struct kv_txn *t, struct slice from, struct slice to)
{
    assert(to.n > 0);
    txn_add(t, KV_OP_DELETE_RANGE, from, to, 0);
}

size_t kv_txn_bytes(const struct kv_txn *t)
{
    return t->ops.n;
}

bool kv_txn_next(const struct kv_txn *t, size_t *pos, struct kv_op *ret)
{
    struct op_head head;
    if (*pos >= t->ops.n)
        return false;
    memcpy(&head, t->ops.p + *pos, sizeof(head));
    const char *p = t->ops.p + *pos + sizeof(head);
    *ret = (struct kv_op){head.kind, slice_of(p, head.key_bytes),
                          slice_of(p + head.key_bytes, head.value_bytes), head.version};
    *pos += sizeof(head) + head.key_bytes + head.value_bytes;
    return true;
}

int kv_txn_commit_version(struct kv_txn *t, enum kv_commit kind, uint64_t *ret_version, struct err *e)
{
    assert(t && ret_version);
    int r = t->too_big ? err_set(e, -E2BIG, "transaction larger than %llu bytes",
                                 (unsigned long long)KV_TXN_MAX_BYTES)
                       : t->kv->engine->commit(t->kv, t, kind, ret_version, e);
    kv_txn_clear(t);
    return r;
}

int kv_txn_commit(struct kv_txn *t, enum kv_commit kind, struct err *e)
{
    uint64_t version;
    return kv_txn_commit_version(t, kind, &version, e);
}

struct kv_iter *kv_iter_new(struct kv *kv, struct slice from, struct slice to)
{
    assert(kv);
    struct kv_iter *it = kv->engine->iter_new(kv, from, to);
    it->kv = kv;
    return it;
}

void kv_iter_free(struct kv_iter *it)
{
    if (it)
        it->kv->engine->iter_free(it);
}

int kv_iter_next(struct kv_iter *it, struct slice *ret_key, struct slice *ret_value, struct err *e)
{
    assert(it);
    return it->kv->engine->iter_next(it, ret_key, ret_value, e);
}

bool kv_is_cut(struct kv *kv)
{
    assert(kv);
    return kv->engine->is_cut && kv->engine->is_cut(kv);
}

int kv_cut_mended(struct kv *kv, struct err *e)
{
    assert(kv);
    return kv->engine->cut_mended ? kv->engine->cut_mended(kv, e) : 0;
}

int kv_sync(struct kv *kv, struct err *e)
{
    assert(kv);
    return kv->engine->sync(kv, e);
}

uint64_t kv_estimate_keys(struct kv *kv)
{
    return kv->engine->estimate_keys(kv);
}

uint64_t kv_memory_bytes(struct kv *kv)
{
    return kv->engine->memory_bytes(kv);
}

int kv_prefix_end(struct slice prefix, struct buf *b)
{
    while (prefix.n > 0 && (uint8_t)prefix.p[prefix.n - 1] == 0xff)
        prefix.n--;
    if (prefix.n == 0)
        return 0;
    int r = buf_slice(b, slice_of(prefix.p, prefix.n - 1));
    return r < 0 ? r : buf_char(b, (char)((uint8_t)prefix.p[prefix.n - 1] + 1));
}

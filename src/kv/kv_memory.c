/*
 * The engine in memory: the same behaviour as the embedded one, for tests. Nothing survives kv_close.
 *
 * A skip list of keys, each with its values newest first, every value tagged with the commit that wrote it. A
 * scan reads the values as of the commit at which it began; older values are kept while any scan is open and
 * dropped when the last one closes.
 *
 * Invariants:
 *  1. Without open scans each key has exactly one value and none of them is a deletion mark.
 *  2. A node is freed only while no scan is open, so a scan may keep a pointer to its node between calls.
 */
#include "base/hash.h"
#include "base/lock.h"
#include "kv/kv_internal.h"

#include <string.h>

#define LEVELS_MAX 20

struct version {
    struct version *older;
    uint64_t commit;
    uint64_t version; /* as reported by kv_get */
    bool deleted;
    size_t n;
    char bytes[];
};

struct node {
    struct version *newest;
    struct node *next_dirty; /* list of nodes with more than one value or a deletion mark */
    bool dirty;
    int levels;
    size_t key_bytes;
    char *key;
    struct node *next[];
};

struct kv_memory {
    struct kv kv;
    struct lock lock; /* everything below */
    struct node *head;
    struct node *dirty;
    uint64_t commits;
    uint64_t seed;
    uint64_t keys, bytes;
    unsigned scans;
};

struct kv_memory_iter {
    struct kv_iter it;
    struct node *at; /* last one given; NULL before the first */
    uint64_t commit;
    bool ended;
    struct buf from, to;
};

static struct kv_memory *memory_of(struct kv *kv)
{
    return container_of(kv, struct kv_memory, kv);
}

static struct slice node_key(const struct node *n)
{
    return slice_of(n->key, n->key_bytes);
}

static void *alloc(size_t n)
{
    void *p = calloc(1, n);
    if (!p)
        abort();
    return p;
}

static struct node *node_new(struct slice key, int levels)
{
    struct node *n = alloc(sizeof(*n) + (size_t)levels * sizeof(n->next[0]));
    n->levels = levels;
    n->key_bytes = key.n;
    n->key = alloc(key.n + 1);
    if (key.n > 0)
        memcpy(n->key, key.p, key.n);
    return n;
}

static void node_free(struct node *n)
{
    for (struct version *v = n->newest; v;) {
        struct version *older = v->older;
        free(v);
        v = older;
    }
    free(n->key);
    free(n);
}

/* First node at or after `key`; ret_before (may be NULL) gets the last node before it on each level. */
static struct node *seek(struct kv_memory *m, struct slice key, struct node **ret_before)
{
    struct node *n = m->head;
    for (int level = LEVELS_MAX - 1; level >= 0; level--) {
        while (n->next[level] && slice_cmp(node_key(n->next[level]), key) < 0)
            n = n->next[level];
        if (ret_before)
            ret_before[level] = n;
    }
    return n->next[0];
}

static struct node *find_exact(struct kv_memory *m, struct slice key)
{
    struct node *n = seek(m, key, NULL);
    return n && slice_eq(node_key(n), key) ? n : NULL;
}

static const struct version *live_version(const struct node *n)
{
    return n && n->newest && !n->newest->deleted ? n->newest : NULL;
}

static struct node *find_or_add(struct kv_memory *m, struct slice key)
{
    struct node *before[LEVELS_MAX];
    struct node *n = seek(m, key, before);
    if (n && slice_eq(node_key(n), key))
        return n;
    m->seed = hash_mix(m->seed, 1);
    int levels = 1;
    for (uint64_t bits = m->seed; (bits & 3) == 0 && levels < LEVELS_MAX; bits >>= 2)
        levels++;
    n = node_new(key, levels);
    for (int i = 0; i < levels; i++) {
        n->next[i] = before[i]->next[i];
        before[i]->next[i] = n;
    }
    return n;
}

static void mark_dirty(struct kv_memory *m, struct node *n)
{
    if (n->dirty)
        return;
    n->dirty = true;
    n->next_dirty = m->dirty;
    m->dirty = n;
}

static void node_write(struct kv_memory *m, struct node *n, struct slice value, uint64_t version,
                       bool deleted)
{
    bool was_live = live_version(n) != NULL;
    struct version *v = alloc(sizeof(*v) + value.n);
    v->older = n->newest;
    v->commit = m->commits;
    v->version = version;
    v->deleted = deleted;
    v->n = value.n;
    if (value.n > 0)
        memcpy(v->bytes, value.p, value.n);
    n->newest = v;
    if (v->older || deleted)
        mark_dirty(m, n);
    m->keys += (uint64_t)!deleted - (uint64_t)was_live;
    m->bytes += value.n;
}

/* Drops old values and deleted keys; only without open scans. */
static void sweep(struct kv_memory *m)
{
    while (m->dirty) {
        struct node *n = m->dirty;
        m->dirty = n->next_dirty;
        n->dirty = false;
        for (struct version *v = n->newest->older; v;) {
            struct version *older = v->older;
            m->bytes -= v->n;
            free(v);
            v = older;
        }
        n->newest->older = NULL;
        if (!n->newest->deleted)
            continue;
        struct node *before[LEVELS_MAX];
        (void)seek(m, node_key(n), before);
        for (int i = 0; i < n->levels; i++)
            before[i]->next[i] = n->next[i];
        node_free(n);
    }
}

static void delete_range(struct kv_memory *m, struct slice from, struct slice to)
{
    for (struct node *n = seek(m, from, NULL); n && slice_cmp(node_key(n), to) < 0; n = n->next[0])
        if (live_version(n))
            node_write(m, n, SLICE_NULL, 0, /* deleted= */ true);
}

static void apply(struct kv_memory *m, const struct kv_op *op)
{
    struct node *n;
    switch (op->kind) {
    case KV_OP_CHECK:
        return;
    case KV_OP_PUT:
        node_write(m, find_or_add(m, op->key), op->value, m->commits + KV_VERSION_FIRST,
                   /* deleted= */ false);
        return;
    case KV_OP_PUT_PLAIN:
        node_write(m, find_or_add(m, op->key), op->value, KV_VERSION_PLAIN, /* deleted= */ false);
        return;
    case KV_OP_DELETE:
        n = find_exact(m, op->key);
        if (live_version(n))
            node_write(m, n, SLICE_NULL, 0, /* deleted= */ true);
        return;
    case KV_OP_DELETE_RANGE:
        delete_range(m, op->key, op->value);
        return;
    }
}

static int engine_commit(struct kv *kv, const struct kv_txn *t, enum kv_commit kind, uint64_t *ret_version,
                         struct err *e)
{
    struct kv_memory *m = memory_of(kv);
    struct kv_op op;
    LOCK_SCOPE(&m->lock);
    for (size_t pos = 0; kv_txn_next(t, &pos, &op);) {
        if (op.kind != KV_OP_CHECK)
            continue;
        const struct version *v = live_version(find_exact(m, op.key));
        if ((v ? v->version : 0) != op.version)
            return err_set(e, ERR_CONFLICT, "key changed meanwhile");
    }
    m->commits++;
    for (size_t pos = 0; kv_txn_next(t, &pos, &op);)
        apply(m, &op);
    if (m->scans == 0)
        sweep(m);
    *ret_version = m->commits + KV_VERSION_FIRST;
    return 0;
}

static int engine_get(struct kv *kv, struct slice key, struct buf *ret_value, uint64_t *ret_version,
                      struct err *e)
{
    struct kv_memory *m = memory_of(kv);
    LOCK_SCOPE(&m->lock);
    const struct version *v = live_version(find_exact(m, key));
    if (!v)
        return -ENOENT;
    int r = ret_value ? buf_append(ret_value, v->bytes, v->n) : 0;
    if (r == 0 && ret_version)
        *ret_version = v->version;
    return r;
}

static struct kv_iter *engine_iter_new(struct kv *kv, struct slice from, struct slice to)
{
    struct kv_memory *m = memory_of(kv);
    struct kv_memory_iter *it = alloc(sizeof(*it));
    it->from = BUF_INIT(KV_TXN_MAX_BYTES);
    it->to = BUF_INIT(KV_TXN_MAX_BYTES);
    if (buf_slice(&it->from, from) < 0 || buf_slice(&it->to, to) < 0)
        abort();
    LOCK_SCOPE(&m->lock);
    it->commit = m->commits;
    m->scans++;
    return &it->it;
}

static void engine_iter_free(struct kv_iter *base)
{
    struct kv_memory_iter *it = container_of(base, struct kv_memory_iter, it);
    struct kv_memory *m = memory_of(base->kv);
    lock_take(&m->lock);
    if (--m->scans == 0)
        sweep(m);
    lock_drop(&m->lock);
    buf_fini(&it->from);
    buf_fini(&it->to);
    free(it);
}

static int engine_iter_next(struct kv_iter *base, struct slice *ret_key, struct slice *ret_value,
                            struct err *e)
{
    struct kv_memory_iter *it = container_of(base, struct kv_memory_iter, it);
    struct kv_memory *m = memory_of(base->kv);
    LOCK_SCOPE(&m->lock);
    struct node *n = it->at ? it->at->next[0] : seek(m, buf_view(&it->from), NULL);
    for (; n && !it->ended; n = n->next[0]) {
        if (it->to.n > 0 && slice_cmp(node_key(n), buf_view(&it->to)) >= 0)
            break;
        const struct version *v = n->newest;
        while (v && v->commit > it->commit)
            v = v->older;
        if (!v || v->deleted)
            continue;
        it->at = n;
        *ret_key = node_key(n);
        *ret_value = slice_of(v->bytes, v->n);
        return 0;
    }
    it->ended = true;
    return -ENOENT;
}

static int engine_sync(struct kv *kv, struct err *e)
{
    return 0;
}

static uint64_t engine_estimate_keys(struct kv *kv)
{
    struct kv_memory *m = memory_of(kv);
    LOCK_SCOPE(&m->lock);
    return m->keys;
}

static uint64_t engine_memory_bytes(struct kv *kv)
{
    struct kv_memory *m = memory_of(kv);
    LOCK_SCOPE(&m->lock);
    return m->bytes;
}

static void engine_close(struct kv *kv)
{
    struct kv_memory *m = memory_of(kv);
    assert(m->scans == 0);
    for (struct node *n = m->head; n;) {
        struct node *next = n->next[0];
        node_free(n);
        n = next;
    }
    lock_fini(&m->lock);
    free(m);
}

static const struct kv_engine memory_engine = {
    .close = engine_close,
    .get = engine_get,
    .commit = engine_commit,
    .iter_new = engine_iter_new,
    .iter_free = engine_iter_free,
    .iter_next = engine_iter_next,
    .sync = engine_sync,
    .estimate_keys = engine_estimate_keys,
    .memory_bytes = engine_memory_bytes,
};

int kv_open_memory(struct kv **ret)
{
    struct kv_memory *m = alloc(sizeof(*m));
    m->kv.engine = &memory_engine;
    lock_init(&m->lock, LOCK_KV);
    m->head = node_new(SLICE_NULL, LEVELS_MAX);
    m->seed = 1;
    *ret = &m->kv;
    return 0;
}

/* A control store in memory of which one commit fails, for sweeps. */
#pragma once

#include "base/sys.h"
#include "kv/kv_internal.h"

#include <stdatomic.h>

/* The Nth commit fails, and is not carried out; or it is, and the caller is told that it failed. */
struct faulty {
    struct kv kv;
    struct kv *inner;
    _Atomic uint64_t calls, fail_at; /* from 1; 0: never */
    _Atomic uint64_t slow_ns;        /* before each commit */
    bool carried_out;
    void (*_Atomic look)(const struct kv_txn *t, enum kv_commit kind); /* at each commit; NULL: nobody does */
};

static struct faulty *faulty_of(struct kv *kv)
{
    return container_of(kv, struct faulty, kv);
}

static struct kv *inner_of(struct kv *kv)
{
    return faulty_of(kv)->inner;
}

static void faulty_close(struct kv *kv)
{
    kv_close(inner_of(kv));
}

static int faulty_get(struct kv *kv, struct slice key, struct buf *ret_value, uint64_t *ret_version,
                      struct err *e)
{
    return kv_get(inner_of(kv), key, ret_value, ret_version, e);
}

static int faulty_commit(struct kv *kv, const struct kv_txn *t, enum kv_commit kind, uint64_t *ret_version,
                         struct err *e)
{
    struct faulty *f = faulty_of(kv);
    uint64_t slow_ns = atomic_load(&f->slow_ns);
    void (*look)(const struct kv_txn *t, enum kv_commit kind) = atomic_load(&f->look);
    if (slow_ns > 0)
        sys->sleep_ns(slow_ns);
    if (look)
        look(t, kind);
    if (atomic_fetch_add(&f->calls, 1) + 1 == atomic_load(&f->fail_at)) {
        if (f->carried_out)
            (void)f->inner->engine->commit(f->inner, t, kind, ret_version, NULL);
        return err_set(e, -EIO, "commit: input/output error");
    }
    return f->inner->engine->commit(f->inner, t, kind, ret_version, e);
}

static struct kv_iter *faulty_iter_new(struct kv *kv, struct slice from, struct slice to)
{
    return kv_iter_new(inner_of(kv), from, to); /* belongs to the inner engine from here on */
}

/* kv_iter_new sets the iterator's kv to the outer one after iter_new returns, so these go by way of it. */
static void faulty_iter_free(struct kv_iter *it)
{
    it->kv = inner_of(it->kv);
    kv_iter_free(it);
}

static int faulty_iter_next(struct kv_iter *it, struct slice *ret_key, struct slice *ret_value, struct err *e)
{
    struct kv *outer = it->kv;
    it->kv = inner_of(outer);
    int r = kv_iter_next(it, ret_key, ret_value, e);
    it->kv = outer;
    return r;
}

static int faulty_sync(struct kv *kv, struct err *e)
{
    return kv_sync(inner_of(kv), e);
}

static uint64_t faulty_keys(struct kv *kv)
{
    return kv_estimate_keys(inner_of(kv));
}

static uint64_t faulty_memory(struct kv *kv)
{
    return kv_memory_bytes(inner_of(kv));
}

static const struct kv_engine faulty_engine = {
    .close = faulty_close,
    .get = faulty_get,
    .commit = faulty_commit,
    .iter_new = faulty_iter_new,
    .iter_free = faulty_iter_free,
    .iter_next = faulty_iter_next,
    .sync = faulty_sync,
    .estimate_keys = faulty_keys,
    .memory_bytes = faulty_memory,
};

/*
 * An index for tests whose content outlives its closing, and that can lose power: kv's contract, in memory.
 *
 * Each path has one memory engine and a journal of its commits. Losing power keeps every commit up to the
 * last durable one (or sync) and of the later ones a prefix, which is what kv.h promises of any engine, and
 * no more. The threads of a store use it beside the test, which tells it what to do by atomic variables.
 */
#pragma once

#include "kv/kv_internal.h"
#include "store/store_internal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>

#include <cmocka.h>

#define TESTKV_MAX 8

struct testkv_commit {
    struct testkv_commit *next;
    struct kv_op *ops;
    size_t n_ops;
};

struct testkv_disk {
    char path[512];
    struct kv *inner;
    struct testkv_commit *first, **last;
    size_t n_commits, n_durable;
    bool open;
};

struct testkv {
    struct kv kv;
    struct testkv_disk *disk;
};

static struct testkv_disk testkv_disks[TESTKV_MAX];
static pthread_mutex_t testkv_lock = PTHREAD_MUTEX_INITIALIZER;
/* Commits and syncs fail from the nth (from 1) on, and are not carried out; 0: never. */
static _Atomic uint64_t testkv_fail_at, testkv_calls;
/* Only the nth fails; with testkv_carry_out it happens and is durable all the same, as when a sync fails. */
static _Atomic uint64_t testkv_fail_once;
static atomic_int testkv_commit_error; /* how commits fail; 0: -EIO */
static atomic_bool testkv_carry_out;
static bool (*_Atomic testkv_is_dead)(void); /* the power is off: nothing is written any more */
/* Gets fail. */
static const struct testkv_disk *_Atomic testkv_unreadable;
static _Atomic uint64_t testkv_gets;                                /* all that there were */
static _Atomic uint64_t testkv_get_fails_from, testkv_get_fails_to; /* so do these, the second not any more */
static bool (*_Atomic testkv_get_fails)(struct slice key);          /* so do those of such keys */
static atomic_int testkv_get_error;                                 /* how; 0: -EIO */

static struct testkv_disk *testkv_of(struct kv *kv)
{
    return container_of(kv, struct testkv, kv)->disk;
}

static bool testkv_fails(void)
{
    uint64_t now = ++testkv_calls, from = testkv_fail_at;
    bool (*is_dead)(void) = testkv_is_dead;
    return (from > 0 && now >= from) || now == testkv_fail_once || (is_dead && is_dead());
}

static struct slice testkv_dup(struct slice s)
{
    char *p = malloc(s.n + 1);
    if (!p)
        abort();
    if (s.n > 0)
        memcpy(p, s.p, s.n);
    return slice_of(p, s.n);
}

static struct testkv_commit *testkv_record(const struct kv_txn *t)
{
    struct testkv_commit *c = calloc(1, sizeof(*c));
    struct kv_op op;
    for (size_t pos = 0; kv_txn_next(t, &pos, &op);)
        c->n_ops++;
    c->ops = calloc(c->n_ops + 1, sizeof(c->ops[0]));
    size_t i = 0;
    for (size_t pos = 0; kv_txn_next(t, &pos, &op); i++) {
        c->ops[i] = op;
        c->ops[i].key = testkv_dup(op.key);
        c->ops[i].value = testkv_dup(op.value);
    }
    return c;
}

static void testkv_commit_free(struct testkv_commit *c)
{
    for (size_t i = 0; i < c->n_ops; i++) {
        free((void *)(uintptr_t)c->ops[i].key.p);
        free((void *)(uintptr_t)c->ops[i].value.p);
    }
    free(c->ops);
    free(c);
}

static void testkv_replay(struct kv *kv, const struct testkv_commit *c)
{
    struct kv_txn *t = kv_txn_new(kv);
    for (size_t i = 0; i < c->n_ops; i++) {
        const struct kv_op *op = &c->ops[i];
        switch (op->kind) {
        case KV_OP_CHECK:
            break;
        case KV_OP_PUT:
            kv_txn_put(t, op->key, op->value);
            break;
        case KV_OP_PUT_PLAIN:
            kv_txn_put_plain(t, op->key, op->value);
            break;
        case KV_OP_DELETE:
            kv_txn_delete(t, op->key);
            break;
        case KV_OP_DELETE_RANGE:
            kv_txn_delete_range(t, op->key, op->value);
            break;
        }
    }
    assert_int_equal(kv_txn_commit(t, KV_VISIBLE, NULL), 0);
    kv_txn_free(t);
}

static void testkv_close(struct kv *kv)
{
    testkv_of(kv)->open = false;
    free(container_of(kv, struct testkv, kv));
}

static int testkv_get(struct kv *kv, struct slice key, struct buf *ret_value, uint64_t *ret_version,
                      struct err *e)
{
    uint64_t now = ++testkv_gets;
    bool (*fails)(struct slice) = testkv_get_fails;
    int error = testkv_get_error;
    if (testkv_of(kv) == testkv_unreadable || (now >= testkv_get_fails_from && now < testkv_get_fails_to) ||
        (fails && fails(key)))
        return err_errno(e, error ? error : -EIO, "get");
    return kv_get(testkv_of(kv)->inner, key, ret_value, ret_version, e);
}

static int testkv_commit_txn(struct kv *kv, const struct kv_txn *t, enum kv_commit kind,
                             uint64_t *ret_version, struct err *e)
{
    struct testkv_disk *d = testkv_of(kv);
    pthread_mutex_lock(&testkv_lock);
    int how = atomic_load(&testkv_commit_error);
    int r = testkv_fails() ? err_errno(e, how ? how : -EIO, "commit") : 0;
    if (r == 0 || (testkv_carry_out && testkv_calls == testkv_fail_once)) {
        struct testkv_commit *c = testkv_record(t);
        testkv_replay(d->inner, c);
        *d->last = c;
        d->last = &c->next;
        d->n_commits++;
        if (kind == KV_DURABLE)
            d->n_durable = d->n_commits;
        *ret_version = d->n_commits; /* nobody asks the index for it */
    }
    pthread_mutex_unlock(&testkv_lock);
    return r;
}

static struct kv_iter *testkv_iter_new(struct kv *kv, struct slice from, struct slice to)
{
    return kv_iter_new(testkv_of(kv)->inner, from, to); /* belongs to the inner engine from here on */
}

static int testkv_sync(struct kv *kv, struct err *e)
{
    struct testkv_disk *d = testkv_of(kv);
    pthread_mutex_lock(&testkv_lock);
    int r = testkv_fails() ? err_set(e, -EIO, "sync: input/output error") : 0;
    if (r == 0)
        d->n_durable = d->n_commits;
    pthread_mutex_unlock(&testkv_lock);
    return r;
}

static uint64_t testkv_estimate_keys(struct kv *kv)
{
    return kv_estimate_keys(testkv_of(kv)->inner);
}

static uint64_t testkv_memory_bytes(struct kv *kv)
{
    return kv_memory_bytes(testkv_of(kv)->inner);
}

/* kv_iter_new sets the iterator's kv to the outer one after iter_new returns, so these go by way of it. */
static void testkv_iter_free(struct kv_iter *it)
{
    it->kv = testkv_of(it->kv)->inner;
    kv_iter_free(it);
}

static int testkv_iter_next(struct kv_iter *it, struct slice *ret_key, struct slice *ret_value, struct err *e)
{
    struct kv *outer = it->kv;
    it->kv = testkv_of(outer)->inner;
    int r = kv_iter_next(it, ret_key, ret_value, e);
    it->kv = outer;
    return r;
}

static atomic_bool testkv_cut; /* the indexes came back without their last commits */

static bool testkv_is_cut(struct kv *kv)
{
    (void)kv;
    return testkv_cut;
}

static const struct kv_engine testkv_engine = {
    .close = testkv_close,
    .get = testkv_get,
    .commit = testkv_commit_txn,
    .iter_new = testkv_iter_new,
    .iter_free = testkv_iter_free,
    .iter_next = testkv_iter_next,
    .sync = testkv_sync,
    .estimate_keys = testkv_estimate_keys,
    .memory_bytes = testkv_memory_bytes,
    .is_cut = testkv_is_cut,
};

static int testkv_open(const char *path, const struct kv_options *o, struct kv **ret, struct err *e)
{
    struct testkv_disk *d = NULL;
    for (size_t i = 0; i < TESTKV_MAX && !d; i++)
        if (testkv_disks[i].path[0] == 0 || strcmp(testkv_disks[i].path, path) == 0)
            d = &testkv_disks[i];
    assert_non_null(d);
    if (d->open)
        return err_set(e, -EBUSY, "%s: in use by another process", path);
    if (!d->inner) {
        (void)snprintf(d->path, sizeof(d->path), "%s", path);
        assert_int_equal(kv_open_memory(&d->inner), 0);
        d->last = &d->first;
    }
    d->open = true;
    struct testkv *k = calloc(1, sizeof(*k));
    k->kv.engine = &testkv_engine;
    k->disk = d;
    *ret = &k->kv;
    return 0;
}

/* The power goes: of the commits after the last durable one the first `keep` survive. All must be closed. */
static inline void testkv_power_loss(struct testkv_disk *d, size_t keep)
{
    assert_false(d->open);
    size_t survive = MIN(d->n_durable + keep, d->n_commits);
    kv_close(d->inner);
    assert_int_equal(kv_open_memory(&d->inner), 0);
    struct testkv_commit **at = &d->first;
    for (size_t i = 0; i < survive; i++, at = &(*at)->next)
        testkv_replay(d->inner, *at);
    struct testkv_commit *lost = *at;
    *at = NULL;
    d->last = at;
    while (lost) {
        struct testkv_commit *next = lost->next;
        testkv_commit_free(lost);
        lost = next;
    }
    d->n_commits = d->n_durable = survive;
}

static inline void testkv_use(void)
{
    store_open_kv = testkv_open;
    testkv_fail_at = testkv_calls = testkv_fail_once = 0;
    testkv_carry_out = false;
    testkv_is_dead = NULL;
    testkv_unreadable = NULL;
    testkv_get_fails_from = testkv_get_fails_to = 0;
    testkv_get_fails = NULL;
    testkv_get_error = 0;
    testkv_cut = false;
}

/* n gets fail, behind the next `skipped`. */
static inline void testkv_fail_gets(uint64_t skipped, uint64_t n)
{
    testkv_get_fails_from = testkv_gets + skipped + 1;
    testkv_get_fails_to = testkv_get_fails_from + n;
}

/* Forgets everything and goes back to the real engine. */
static inline void testkv_reset(void)
{
    for (size_t i = 0; i < TESTKV_MAX; i++) {
        struct testkv_disk *d = &testkv_disks[i];
        assert_false(d->open);
        kv_close(d->inner);
        for (struct testkv_commit *c = d->first; c;) {
            struct testkv_commit *next = c->next;
            testkv_commit_free(c);
            c = next;
        }
        *d = (struct testkv_disk){0};
    }
    store_open_kv = kv_open_rocksdb;
}

/* Whether what is queued waits; until then nothing is recorded. */
static inline void hold_writer(struct disk *d, bool hold)
{
    lock_take(&d->lock);
    d->hold = hold;
    cond_signal(&d->wake_writer);
    lock_drop(&d->lock);
}

static inline uint64_t count_chunks(struct store *s)
{
    struct kv_iter *_cleanup_(kv_iter_freep) it = kv_iter_new(s->disks[0].kv, SLICE_LIT("c"), SLICE_LIT("d"));
    struct slice k, v;
    uint64_t n = 0;
    while (kv_iter_next(it, &k, &v, NULL) == 0)
        n++;
    return n;
}

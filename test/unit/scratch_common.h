/* What the tests of the scratch namespace share: an engine whose commits can fail, and short forms. */
#pragma once

#include "base/hash.h"
#include "kv/kv_internal.h"
#include "namespace/scratch_format.h"
#include "support/tmpdir.h"

#include <sys/stat.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define B 7 /* the bucket of most tests */

/* Delegates to an engine in memory; the commit at which fail_in reaches 1 fails and changes nothing. */
struct failing_kv {
    struct kv kv;
    struct kv *inner;
    uint64_t fail_in; /* 0: never */
    bool hit;
};

static struct kv *failing_inner(struct kv *kv)
{
    return container_of(kv, struct failing_kv, kv)->inner;
}

static void failing_close(struct kv *kv)
{
    kv_close(failing_inner(kv));
    free(container_of(kv, struct failing_kv, kv));
}

static int failing_get(struct kv *kv, struct slice key, struct buf *ret_value, uint64_t *ret_version,
                       struct err *e)
{
    return kv_get(failing_inner(kv), key, ret_value, ret_version, e);
}

static int failing_commit(struct kv *kv, const struct kv_txn *t, enum kv_commit kind, uint64_t *ret_version,
                          struct err *e)
{
    struct failing_kv *f = container_of(kv, struct failing_kv, kv);
    if (f->fail_in > 0 && --f->fail_in == 0) {
        f->hit = true;
        return err_set(e, -EIO, "commit: input/output error");
    }
    return f->inner->engine->commit(f->inner, t, kind, ret_version, e);
}

static struct kv_iter *failing_iter_new(struct kv *kv, struct slice from, struct slice to)
{
    return kv_iter_new(failing_inner(kv), from, to);
}

static void failing_iter_free(struct kv_iter *it)
{
    it->kv = failing_inner(it->kv);
    kv_iter_free(it);
}

static int failing_iter_next(struct kv_iter *it, struct slice *ret_key, struct slice *ret_value,
                             struct err *e)
{
    struct kv *outer = it->kv;
    it->kv = failing_inner(outer);
    int r = kv_iter_next(it, ret_key, ret_value, e);
    it->kv = outer;
    return r;
}

static int failing_sync(struct kv *kv, struct err *e)
{
    return kv_sync(failing_inner(kv), e);
}

static uint64_t failing_number(struct kv *kv)
{
    return kv_estimate_keys(failing_inner(kv));
}

static const struct kv_engine failing_engine = {
    .close = failing_close,
    .get = failing_get,
    .commit = failing_commit,
    .iter_new = failing_iter_new,
    .iter_free = failing_iter_free,
    .iter_next = failing_iter_next,
    .sync = failing_sync,
    .estimate_keys = failing_number,
    .memory_bytes = failing_number,
};

struct fixture {
    struct kv *kv;
    struct failing_kv *failing;
    struct scratch *s;
    struct arena *a;
    struct scratch_call call;
    uint64_t random;
    char *dir; /* of RocksDB; NULL: the engine in memory */
};

static inline uint64_t below(struct fixture *f, uint64_t n)
{
    f->random = hash_mix(f->random, 1);
    return f->random % n;
}

static inline void open_inner(struct fixture *f)
{
    struct kv_options o = {.cache_bytes = 4 * MIB, .write_buffer_bytes = 4 * MIB};
    int r =
        f->dir ? kv_open_rocksdb(f->dir, &o, &f->failing->inner, NULL) : kv_open_memory(&f->failing->inner);
    assert_int_equal(r, 0);
}

/* dir: taken over, NULL for the engine in memory. */
static inline int setup_in(void **state, char *dir)
{
    struct fixture *f = calloc(1, sizeof(*f));
    f->failing = calloc(1, sizeof(*f->failing));
    f->dir = dir;
    open_inner(f);
    f->failing->kv.engine = &failing_engine;
    f->kv = &f->failing->kv;
    assert_int_equal(scratch_open(f->kv, MIB, &f->s, NULL), 0);
    assert_int_equal(scratch_bucket_make(f->s, B, 0755, 0, 0, NULL), 0);
    f->a = arena_new(4 * MIB);
    f->call = (struct scratch_call){.bucket = B};
    *state = f;
    return 0;
}

static inline int setup(void **state)
{
    return setup_in(state, NULL);
}

static inline int teardown(void **state)
{
    struct fixture *f = *state;
    scratch_close(f->s);
    kv_close(f->kv);
    arena_free(f->a);
    tmpdir_free(f->dir);
    free(f);
    return 0;
}

/* The namespace opened again, as after a restart: nothing cached, nothing held; RocksDB too. */
static inline void reopen(struct fixture *f)
{
    scratch_close(f->s);
    if (f->dir) {
        kv_close(f->failing->inner);
        open_inner(f);
    }
    assert_int_equal(scratch_open(f->kv, MIB, &f->s, NULL), 0);
}

/* Makes something; its number, or a negative code. */
static inline int64_t make(struct fixture *f, uint64_t parent, const char *name, uint32_t mode)
{
    struct scratch_new n = {
        .mode = mode, .exclusive = true, .target = S_ISLNK(mode) ? SLICE_LIT("to") : SLICE_NULL};
    struct scratch_inode x;
    int r = scratch_create(f->s, &f->call, parent, slice_str(name), &n, f->a, &x, NULL, NULL);
    return r < 0 ? r : (int64_t)x.ino;
}

static inline struct scratch_inode attr(struct fixture *f, uint64_t ino)
{
    struct scratch_inode x = {0};
    int r = scratch_getattr(f->s, B, ino, f->a, &x, NULL);
    assert_true(r == 0 || r == -ENOENT);
    return x;
}

static inline void give_location(struct fixture *f, uint64_t ino, const char *text)
{
    struct scratch_set set = {.what = SCRATCH_SET_LOCATION | SCRATCH_SET_SIZE | SCRATCH_SET_ALLOCATED,
                              .location = slice_str(text),
                              .size_bytes = 10,
                              .allocated_bytes = 4096};
    struct scratch_inode x;
    assert_int_equal(scratch_setattr(f->s, &f->call, ino, &set, f->a, &x, NULL), 0);
}

/* Number of keys that begin with `c`. */
static inline size_t keys_of(struct fixture *f, char c)
{
    char from[2] = {c, 0}, to[2] = {(char)(c + 1), 0};
    struct kv_iter *_cleanup_(kv_iter_freep) it = kv_iter_new(f->kv, slice_str(from), slice_str(to));
    struct slice k, v;
    size_t n = 0;
    while (kv_iter_next(it, &k, &v, NULL) == 0)
        n++;
    return n;
}

/* What tests of upstreams share: one over the scripted origin. */
#pragma once

#include "base/quit.h"
#include "origin/origin_internal.h"
#include "script_origin.h"

#include "support/clock_sys.h"
#include "support/tmpdir.h"

struct fixture {
    char *dir;
    struct kv *kv;
    struct bucket_table *table;
    struct script *script;
    struct upstream *u;
    struct arena *arena;
};

static inline struct fixture *make(const char *settings)
{
    struct fixture *f = calloc(1, sizeof(*f));
    assert_non_null(f);
    f->dir = tmpdir_new();
    assert_int_equal(kv_open_memory(&f->kv), 0);
    f->script = script_new();
    f->u = script_upstream(f->script, f->kv, f->dir, settings, &f->table);
    f->arena = arena_new(16 * MIB);
    return f;
}

static inline void drop(struct fixture *f)
{
    upstream_unref(f->u);
    script_free(f->script);
    bucket_table_close(f->table);
    kv_close(f->kv);
    arena_free(f->arena);
    tmpdir_free(f->dir);
    free(f);
}

static inline ssize_t no_body(void *arg, void *p, size_t n, uint64_t offset)
{
    (void)arg, (void)p, (void)n, (void)offset;
    return -EIO;
}

/* What tests of filling share: a store, an origin that does what it is told, and the fill engine between
 * them. */
#pragma once

#include "script_origin.h"
#include "store_fixture.h"

#include "object/fill.h"
#include "support/tmpdir.h"

#define THREADS 16

struct fixture {
    char *dir, *disk;
    struct kv *kv;
    struct bucket_table *table;
    struct script *script;
    struct upstream *u;
    struct store *store;
    struct budget *budget;
    struct fill_engine *engine;
    struct arena *arena;
    bool cached; /* discovered objects are admitted */
    _Atomic unsigned changed;
    _Atomic bool gate;
};

static inline void on_changed(void *arg, struct upstream *u, struct slice key, struct extent *x)
{
    struct fixture *f = arg;
    (void)u, (void)key;
    atomic_fetch_add(&f->changed, 1);
    if (x)
        store_remove_extent(f->store, x);
}

static inline struct fixture *make(uint64_t memory, bool cached)
{
    struct fixture *f = calloc(1, sizeof(*f));
    assert_non_null(f);
    f->dir = tmpdir_new();
    f->disk = tmpdir_path(f->dir, "disk");
    f->cached = cached;
    assert_int_equal(kv_open_memory(&f->kv), 0);
    f->script = script_new();
    f->script->arg = f;
    f->u = script_upstream(f->script, f->kv, f->dir, "retry=60s\n", &f->table);
    f->store = store_of(f->disk, 128 * MIB);
    f->budget = budget_new(memory);
    f->engine = fill_engine_new(f->budget, THREADS, on_changed, f);
    f->arena = arena_new(64 * MIB);
    return f;
}

/* Nothing is left of any fill: no memory, no place at the origin, no leased byte. */
static inline void drop(struct fixture *f)
{
    fill_engine_stop(f->engine);
    fill_engine_free(f->engine);
    assert_int_equal(budget_used(f->budget), 0);
    assert_int_equal(f->u->places->running, 0);
    assert_int_equal(store_flush(f->store, NULL), 0); /* dropped files go with it */
    struct store_disk_status st;
    assert_int_equal(store_disk_status(f->store, 0, &st), 0);
    assert_int_equal(st.leased_bytes, 0);
    budget_free(f->budget);
    store_close(f->store);
    upstream_unref(f->u);
    script_free(f->script);
    bucket_table_close(f->table);
    kv_close(f->kv);
    arena_free(f->arena);
    free(f->disk);
    tmpdir_free(f->dir);
    free(f);
}

/* Reads [offset, offset + n) and compares with the version. */
static inline int read_range(struct fill *fill, uint64_t offset, uint64_t n, unsigned version)
{
    struct arena *a = arena_new(4 * MIB);
    char *piece = malloc(MIB), *expected = malloc(MIB);
    int r = 0;
    while (n > 0 && r == 0) {
        arena_clear(a);
        struct fill_bytes got;
        r = fill_wait(fill, offset, MIN(n, MIB), /* checked= */ false, a, &got, NULL);
        if (r < 0)
            break;
        uint64_t have = got.data.n ? got.data.n : MIN(got.available, MIB);
        if (have == 0)
            r = -ENODATA;
        else if (got.data.n)
            memcpy(piece, got.data.p, have);
        else {
            struct extent *x = fill_extent(fill);
            r = sys_pread_all(extent_use(x), piece, have, offset);
            extent_leave(x);
        }
        script_bytes(expected, have, offset, version);
        if (r == 0 && memcmp(piece, expected, have) != 0)
            r = ERR_CORRUPT;
        offset += have;
        n -= MIN(n, have);
    }
    free(expected);
    free(piece);
    arena_free(a);
    return r;
}

struct job {
    struct fill *fill;
    uint64_t size;
    int result;
};

static inline void *reader_main(void *arg)
{
    struct job *j = arg;
    j->result = read_range(j->fill, 0, j->size, 1);
    return NULL;
}

static inline void wait_for_gate(struct script *s, enum script_op op, unsigned nth,
                                 const struct origin_get *g, struct script_fate *fate)
{
    struct fixture *f = s->arg;
    (void)op, (void)nth, (void)fate;
    while (!atomic_load(&f->gate) && !atomic_load(g->cancel) && !quit_is_now())
        sys->sleep_ns(1000000);
}

static inline bool is_idle(struct upstream *u)
{
    LOCK_SCOPE(&u->places->lock);
    return u->places->running == 0;
}

static inline unsigned running(struct script *s)
{
    (void)pthread_mutex_lock(&s->lock);
    unsigned n = s->running;
    (void)pthread_mutex_unlock(&s->lock);
    return n;
}

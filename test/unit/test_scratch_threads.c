/* layer: namespace */
/* threaded */
/* The scratch namespace under threads that change the same directories. */
#include "scratch_common.h"

#include <pthread.h>
#include <stdatomic.h>

#define THREADS 4
#define ROUNDS  120

struct worker {
    struct fixture *f;
    uint64_t random;
    uint64_t dirs[3];
    unsigned id;
    uint64_t made; /* by test_one_create_wins */
};

static void on_codes(int r, const int *allowed, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (r == allowed[i])
            return;
    fail_msg("unexpected result %d", r);
}

static void one_change(struct worker *w, struct arena *a)
{
    static const char *const names[] = {"a", "b", "c", "d"};
    static const int codes[] = {0, -ENOENT, -EEXIST, -EISDIR, -ENOTDIR, -EINVAL, -EPERM};
    struct fixture *f = w->f;
    struct scratch_orphans o = {0};
    struct scratch_inode x;
    w->random = hash_mix(w->random, 1);
    uint64_t d1 = w->dirs[w->random % 3], d2 = w->dirs[w->random / 3 % 3];
    struct slice n1 = slice_str(names[w->random / 9 % 4]), n2 = slice_str(names[w->random / 36 % 4]);
    struct scratch_new n = {.mode = S_IFREG | 0644, .exclusive = true, .hold = true};
    int r = 0;
    switch (w->random / 144 % 6) {
    case 0:
    case 1:
        r = scratch_create(f->s, &f->call, d1, n1, &n, a, &x, NULL, NULL);
        if (r == 0)
            assert_int_equal(scratch_release(f->s, B, x.ino, &o, NULL), 0);
        break;
    case 2:
        r = scratch_unlink(f->s, &f->call, d1, n1, &o, NULL, NULL);
        break;
    case 3:
        r = scratch_lookup(f->s, &f->call, d1, n1, a, &x, NULL);
        if (r == 0)
            r = scratch_link(f->s, &f->call, x.ino, d2, n2, a, &x, NULL);
        break;
    default:
        r = scratch_rename(f->s, &f->call, d1, n1, d2, n2, w->random % 2 ? SCRATCH_EXCHANGE : 0, &o, NULL,
                           NULL);
        break;
    }
    on_codes(r, codes, ARRAY_SIZE(codes));
    assert_int_equal(o.n, 0);
}

static void *change_names(void *arg)
{
    struct worker *w = arg;
    struct arena *a = arena_new(MIB);
    for (int i = 0; i < ROUNDS; i++) {
        arena_clear(a);
        one_change(w, a);
    }
    arena_free(a);
    return NULL;
}

static void run(struct fixture *f, void *(*fn)(void *), struct worker *w, const uint64_t *dirs)
{
    pthread_t t[THREADS];
    for (unsigned i = 0; i < THREADS; i++) {
        w[i] = (struct worker){.f = f, .random = i + 1, .id = i};
        memcpy(w[i].dirs, dirs, sizeof(w[i].dirs));
        assert_int_equal(pthread_create(&t[i], NULL, fn, &w[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++)
        assert_int_equal(pthread_join(t[i], NULL), 0);
}

struct sum {
    struct fixture *f;
    uint64_t inos[64];
    uint32_t links[64];
    size_t n, entries;
};

static int count_link(void *arg, const struct scratch_entry *x)
{
    struct sum *q = arg;
    size_t i = 0;
    while (i < q->n && q->inos[i] != x->ino)
        i++;
    if (i == q->n) {
        assert_true(q->n < ARRAY_SIZE(q->inos));
        q->inos[q->n++] = x->ino;
    }
    q->links[i]++;
    q->entries++;
    return 0;
}

/* After many threads made, linked, renamed and removed in three directories, every link count is the number
 * of names, every directory knows how many entries it has, the sums are right, and what memory says is what
 * the store says. */
static void test_counts_agree_after_concurrent_changes(void **state)
{
    struct fixture *f = *state;
    struct worker w[THREADS];
    uint64_t dirs[3] = {SCRATCH_ROOT, (uint64_t)make(f, SCRATCH_ROOT, "one", S_IFDIR | 0755),
                        (uint64_t)make(f, SCRATCH_ROOT, "two", S_IFDIR | 0755)};
    run(f, change_names, w, dirs);
    for (int opened = 0; opened < 2; opened++) {
        struct sum q = {.f = f};
        for (size_t d = 0; d < 3; d++) {
            size_t before = q.entries;
            assert_int_equal(scratch_readdir(f->s, B, dirs[d], 0, 0, count_link, &q, NULL), 0);
            assert_int_equal(attr(f, dirs[d]).entries, q.entries - before);
        }
        for (size_t i = 0; i < q.n; i++)
            if (!S_ISDIR(attr(f, q.inos[i]).mode))
                assert_int_equal(attr(f, q.inos[i]).links, q.links[i]);
        struct scratch_counts counts;
        assert_int_equal(scratch_statfs(f->s, B, &counts, NULL), 0);
        assert_int_equal(counts.inodes, q.n);
        assert_int_equal(keys_of(f, 'z'), 0);
        reopen(f);
    }
}

static void *create_same(void *arg)
{
    struct worker *w = arg;
    struct arena *a = arena_new(MIB);
    struct scratch_new n = {.mode = S_IFREG | 0644, .exclusive = true};
    for (int i = 0; i < 40; i++) {
        char name[16];
        struct scratch_inode x;
        (void)snprintf(name, sizeof(name), "n%d", i);
        int r = scratch_create(w->f->s, &w->f->call, SCRATCH_ROOT, slice_str(name), &n, a, &x, NULL, NULL);
        assert_true(r == 0 || r == -EEXIST);
        w->made += r == 0;
        arena_clear(a);
    }
    arena_free(a);
    return NULL;
}

/* Of threads that make the same names exclusively, exactly one succeeds with each. */
static void test_one_exclusive_create_wins(void **state)
{
    struct fixture *f = *state;
    struct worker w[THREADS];
    const uint64_t dirs[3] = {0};
    run(f, create_same, w, dirs);
    uint64_t made = 0;
    for (size_t i = 0; i < THREADS; i++)
        made += w[i].made;
    assert_int_equal(made, 40);
    assert_int_equal(attr(f, SCRATCH_ROOT).entries, 40);
}

static void *move_directories(void *arg)
{
    struct worker *w = arg;
    static const int codes[] = {0, -ENOENT, -EINVAL, -ENOTEMPTY};
    for (int i = 0; i < ROUNDS; i++) {
        struct scratch_orphans o;
        w->random = hash_mix(w->random, 1);
        uint64_t from = w->random % 4, to = w->random / 4 % 4;
        char a[8], b[8];
        (void)snprintf(a, sizeof(a), "d%d", (int)(w->random / 16 % 3));
        (void)snprintf(b, sizeof(b), "d%d", (int)(w->random / 48 % 3));
        uint64_t parents[4] = {SCRATCH_ROOT, w->dirs[0], w->dirs[1], w->dirs[2]};
        int r = scratch_rename(w->f->s, &w->f->call, parents[from], slice_str(a), parents[to], slice_str(b),
                               SCRATCH_NOREPLACE, &o, NULL, NULL);
        if (r != -EEXIST)
            on_codes(r, codes, ARRAY_SIZE(codes));
    }
    return NULL;
}

/* Directories that are moved into each other at the same time never end up below themselves. */
static void test_directories_never_form_a_circle(void **state)
{
    struct fixture *f = *state;
    struct worker w[THREADS];
    uint64_t dirs[3];
    for (int i = 0; i < 3; i++) {
        char name[8];
        (void)snprintf(name, sizeof(name), "d%d", i);
        dirs[i] = (uint64_t)make(f, SCRATCH_ROOT, name, S_IFDIR | 0755);
    }
    run(f, move_directories, w, dirs);
    for (int i = 0; i < 3; i++) {
        uint64_t at = dirs[i];
        for (int depth = 0; at != SCRATCH_ROOT; depth++) {
            assert_true(depth < 4);
            at = attr(f, at).parent;
        }
    }
}

static void *put_same(void *arg)
{
    struct worker *w = arg;
    struct arena *a = arena_new(MIB);
    static const char *const keys[] = {"x/y/1", "x/y/2", "x", "x/y"};
    for (int i = 0; i < 40; i++) {
        struct scratch_orphans o = {0};
        struct scratch_put p = {0};
        struct scratch_inode x;
        struct slice key = slice_str(keys[hash_mix(w->id, (uint64_t)i) % ARRAY_SIZE(keys)]);
        int r = scratch_reserve(w->f->s, B, key, &p.ino, NULL);
        if (r == 0 && i % 3 != 0)
            r = scratch_put(w->f->s, &w->f->call, key, &p, a, &x, &o, NULL);
        else if (r == 0)
            r = scratch_remove_key(w->f->s, &w->f->call, key, SLICE_NULL, &o, NULL);
        assert_true(r == 0 || (r == -ENOENT && i % 3 == 0));
        arena_clear(a);
    }
    arena_free(a);
    return NULL;
}

/* Objects with clashing keys put and removed by many threads: none fails, and once all are removed nothing
 * that an object implied is left. */
static void test_objects_come_and_go_together(void **state)
{
    struct fixture *f = *state;
    struct worker w[THREADS];
    const uint64_t dirs[3] = {0};
    run(f, put_same, w, dirs);
    static const char *const keys[] = {"x/y/1", "x/y/2", "x/y", "x"};
    struct scratch_orphans o;
    for (int round = 0; round < 2; round++)
        for (size_t i = 0; i < ARRAY_SIZE(keys); i++)
            (void)scratch_remove_key(f->s, &f->call, slice_str(keys[i]), SLICE_NULL, &o, NULL);
    struct scratch_counts counts;
    assert_int_equal(scratch_statfs(f->s, B, &counts, NULL), 0);
    assert_int_equal(counts.keyed, 0);
    assert_true(counts.inodes <= 2); /* directories of a put that lost to a removal, which no listing shows */
}

#define RENAMES 20000

struct renaming {
    struct fixture *f;
    _Atomic bool ended;
    _Atomic unsigned missed;
};

static void *look_for(void *arg)
{
    struct renaming *q = arg;
    struct arena *a = arena_new(MIB);
    while (!atomic_load(&q->ended)) {
        struct scratch_inode x;
        arena_clear(a);
        if (scratch_lookup(q->f->s, &q->f->call, SCRATCH_ROOT, SLICE_LIT("b"), a, &x, NULL) != 0)
            (void)atomic_fetch_add(&q->missed, 1);
    }
    arena_free(a);
    return NULL;
}

/* A name that is replaced by renaming is never missing. Fails when note_write (scratch_change.c) keeps both
 * writes of a key. */
static void test_a_replaced_name_is_never_missing(void **state)
{
    struct fixture *f = *state;
    struct renaming q = {.f = f};
    struct scratch_orphans o;
    pthread_t t;
    assert_true(make(f, SCRATCH_ROOT, "b", S_IFREG | 0644) > 0);
    assert_int_equal(pthread_create(&t, NULL, look_for, &q), 0);
    for (int i = 0; i < RENAMES; i++) {
        assert_true(make(f, SCRATCH_ROOT, "a", S_IFREG | 0644) > 0);
        assert_int_equal(scratch_rename(f->s, &f->call, SCRATCH_ROOT, SLICE_LIT("a"), SCRATCH_ROOT,
                                        SLICE_LIT("b"), 0, &o, NULL, NULL),
                         0);
        arena_clear(f->a);
    }
    atomic_store(&q.ended, true);
    assert_int_equal(pthread_join(t, NULL), 0);
    assert_int_equal(atomic_load(&q.missed), 0);
}

struct moving {
    struct fixture *f;
    pthread_barrier_t begin, end;
    _Atomic unsigned lost;
};

static const char *const two_names[] = {"c", "d"};

static int find_name(struct fixture *f, int i, struct arena *a)
{
    struct scratch_inode x;
    arena_clear(a);
    return scratch_lookup(f->s, &f->call, SCRATCH_ROOT, slice_str(two_names[i % 2]), a, &x, NULL);
}

static void *follow(void *arg)
{
    struct moving *q = arg;
    struct arena *a = arena_new(MIB);
    for (int i = 0; i < RENAMES; i++) {
        (void)pthread_barrier_wait(&q->begin);
        while (find_name(q->f, i, a) == 0)
            ;
        (void)atomic_fetch_add(&q->lost, find_name(q->f, i + 1, a) != 0);
        (void)pthread_barrier_wait(&q->end);
    }
    arena_free(a);
    return NULL;
}

/* Who does not find a renamed file under its old name any more finds it under the new one. Fails when
 * cache_writes (scratch_change.c) goes in the order of the changes. */
static void test_a_renamed_file_is_somewhere(void **state)
{
    struct fixture *f = *state;
    struct moving q = {.f = f};
    struct scratch_orphans o;
    pthread_t t;
    assert_true(make(f, SCRATCH_ROOT, two_names[0], S_IFREG | 0644) > 0);
    assert_int_equal(pthread_barrier_init(&q.begin, NULL, 2), 0);
    assert_int_equal(pthread_barrier_init(&q.end, NULL, 2), 0);
    assert_int_equal(pthread_create(&t, NULL, follow, &q), 0);
    for (int i = 0; i < RENAMES; i++) {
        (void)pthread_barrier_wait(&q.begin);
        int r = scratch_rename(f->s, &f->call, SCRATCH_ROOT, slice_str(two_names[i % 2]), SCRATCH_ROOT,
                               slice_str(two_names[(i + 1) % 2]), 0, &o, NULL, NULL);
        (void)pthread_barrier_wait(&q.end);
        assert_int_equal(r, 0);
    }
    assert_int_equal(pthread_join(t, NULL), 0);
    assert_int_equal(atomic_load(&q.lost), 0);
    (void)pthread_barrier_destroy(&q.begin);
    (void)pthread_barrier_destroy(&q.end);
}

#define CONTESTS 5000

struct contest {
    struct fixture *f;
    pthread_barrier_t begin, end;
    _Atomic unsigned n; /* puts that succeeded */
};

static void *put_exclusively(void *arg)
{
    struct contest *q = arg;
    struct arena *a = arena_new(MIB);
    for (int i = 0; i < CONTESTS; i++) {
        struct scratch_put p = {.size_bytes = 1, .if_none_match = true};
        struct scratch_orphans o;
        struct scratch_inode x;
        arena_clear(a);
        assert_int_equal(scratch_reserve(q->f->s, B, SLICE_LIT("d/a"), &p.ino, NULL), 0);
        (void)pthread_barrier_wait(&q->begin);
        int r = scratch_put(q->f->s, &q->f->call, SLICE_LIT("d/a"), &p, a, &x, &o, NULL);
        assert_true(r == 0 || r == ERR_PRECONDITION);
        (void)atomic_fetch_add(&q->n, r == 0);
        (void)pthread_barrier_wait(&q->end);
    }
    arena_free(a);
    return NULL;
}

/* Of puts that must find no object one succeeds, also when a directory of that name goes meanwhile: those
 * that saw it and those that did not are for the same key. Fails without check_clash (scratch_object.c). */
static void test_one_exclusive_put_wins(void **state)
{
    struct fixture *f = *state;
    struct contest q = {.f = f};
    pthread_t t[2];
    int64_t d = make(f, SCRATCH_ROOT, "d", S_IFDIR | 0755);
    assert_int_equal(pthread_barrier_init(&q.begin, NULL, 3), 0);
    assert_int_equal(pthread_barrier_init(&q.end, NULL, 3), 0);
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&t[i], NULL, put_exclusively, &q), 0);
    for (int i = 0; i < CONTESTS; i++) {
        struct scratch_orphans o;
        assert_true(make(f, (uint64_t)d, "a", S_IFDIR | 0755) > 0);
        atomic_store(&q.n, 0);
        (void)pthread_barrier_wait(&q.begin);
        int r = scratch_rmdir(f->s, &f->call, (uint64_t)d, SLICE_LIT("a"), NULL);
        (void)pthread_barrier_wait(&q.end);
        assert_int_equal(r, 0);
        assert_int_equal(atomic_load(&q.n), 1);
        assert_int_equal(scratch_remove_key(f->s, &f->call, SLICE_LIT("d/a"), SLICE_NULL, &o, NULL), 0);
        arena_clear(f->a);
    }
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_join(t[i], NULL), 0);
    (void)pthread_barrier_destroy(&q.begin);
    (void)pthread_barrier_destroy(&q.end);
}

struct sent {
    struct fixture *f;
    struct scratch_call call;
    pthread_barrier_t *start;
    uint64_t ino;
    const char *name;
    enum { SENT_LINK, SENT_UNLINK, SENT_MAKE } what;
    int result;
};

static void *send_once(void *arg)
{
    struct sent *q = arg;
    _cleanup_(arena_freep) struct arena *a = arena_new(64 * KIB);
    struct scratch_orphans o = {0};
    struct scratch_inode x;
    struct scratch_new n = {.mode = S_IFREG | 0644, .exclusive = true};
    struct slice name = slice_str(q->name);
    (void)pthread_barrier_wait(q->start);
    if (q->what == SENT_LINK)
        q->result = scratch_link(q->f->s, &q->call, q->ino, SCRATCH_ROOT, name, a, &x, NULL);
    else if (q->what == SENT_UNLINK)
        q->result = scratch_unlink(q->f->s, &q->call, SCRATCH_ROOT, name, &o, NULL, NULL);
    else
        q->result = scratch_create(q->f->s, &q->call, SCRATCH_ROOT, name, &n, a, &x, NULL, NULL);
    return NULL;
}

/* A change that is sent again while it runs, because who had sent it was killed, is made once, and both are
 * answered alike. (Without is_done_meanwhile one of them is told EEXIST or ENOENT.) */
static void test_a_change_sent_again_while_it_runs(void **state)
{
    struct fixture *f = *state;
    pthread_barrier_t start;
    int64_t ino = make(f, SCRATCH_ROOT, "file", S_IFREG | 0644);
    assert_true(ino > 0);
    pthread_barrier_init(&start, NULL, 2);
    for (uint64_t i = 0; i < 3 * ROUNDS; i++) {
        struct sent twice[2];
        pthread_t threads[2];
        for (int k = 0; k < 2; k++) {
            twice[k] = (struct sent){f, f->call, &start, (uint64_t)ino, i % 3 == 2 ? "made" : "name", 0, 0};
            twice[k].what = i % 3 == 0 ? SENT_LINK : i % 3 == 1 ? SENT_UNLINK : SENT_MAKE;
            twice[k].call.mount = (struct id128){{7}};
            twice[k].call.request = i + 1;
            assert_int_equal(pthread_create(&threads[k], NULL, send_once, &twice[k]), 0);
        }
        for (int k = 0; k < 2; k++)
            assert_int_equal(pthread_join(threads[k], NULL), 0);
        assert_int_equal(twice[0].result, 0);
        assert_int_equal(twice[1].result, 0);
        struct scratch_orphans o = {0};
        if (i % 3 == 2)
            assert_int_equal(scratch_unlink(f->s, &f->call, SCRATCH_ROOT, SLICE_LIT("made"), &o, NULL, NULL),
                             0);
    }
    pthread_barrier_destroy(&start);
}

int main(void)
{
#define WITH(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        WITH(test_counts_agree_after_concurrent_changes),
        WITH(test_one_exclusive_create_wins),
        WITH(test_one_exclusive_put_wins),
        WITH(test_a_replaced_name_is_never_missing),
        WITH(test_a_renamed_file_is_somewhere),
        WITH(test_directories_never_form_a_circle),
        WITH(test_objects_come_and_go_together),
        WITH(test_a_change_sent_again_while_it_runs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

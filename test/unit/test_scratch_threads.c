/* layer: namespace */
/* threaded */
/* The scratch namespace under threads that change the same directories. */
#include "scratch_common.h"

#include <pthread.h>

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
        r = scratch_unlink(f->s, &f->call, d1, n1, &o, NULL);
        break;
    case 3:
        r = scratch_lookup(f->s, &f->call, d1, n1, a, &x, NULL);
        if (r == 0)
            r = scratch_link(f->s, &f->call, x.ino, d2, n2, a, &x, NULL);
        break;
    default:
        r = scratch_rename(f->s, &f->call, d1, n1, d2, n2, w->random % 2 ? SCRATCH_EXCHANGE : 0, &o, NULL);
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
                               SCRATCH_NOREPLACE, &o, NULL);
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

int main(void)
{
#define WITH(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        WITH(test_counts_agree_after_concurrent_changes),
        WITH(test_one_exclusive_create_wins),
        WITH(test_directories_never_form_a_circle),
        WITH(test_objects_come_and_go_together),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

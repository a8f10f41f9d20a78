/* layer: mount */
/* threaded */
/* What a mount counts: the places of times, that nothing counted by several threads is lost, and what is told
 * of operations that run, have ended, or were slow. */
#include "mount/stats.h"

#include "base/sys.h"
#include "mount/mount_internal.h"
#include "mount/tree.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define THREADS 4
#define ROUNDS  20000
#define MS      ((uint64_t)1000000)

/* ---- a mount whose operations take as long as they are told, by a clock of ours ---- */

static _Atomic uint64_t now_ns;
static uint64_t takes_ns;
static void (*meanwhile)(struct mount *m);

static uint64_t our_clock(void)
{
    return atomic_load(&now_ns);
}

/* libfuse's, for a request that is only the mount. */
void *fuse_req_userdata(fuse_req_t req)
{
    return req;
}

static void look_up(fuse_req_t req, fuse_ino_t ino, const char *name)
{
    (void)ino, (void)name;
    (void)atomic_fetch_add(&now_ns, takes_ns);
    if (meanwhile)
        meanwhile(mount_of(req));
}

static const struct fuse_lowlevel_ops real_ops = {.lookup = look_up};
static const struct mount_kind kind = {.operations = &real_ops};

struct fixture {
    struct mount m;
    struct tree tree; /* for those that are about inodes of a scratch bucket */
    struct fuse_lowlevel_ops counted;
    struct stats_report r;
    struct sys mine;
    const struct sys *before;
};

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    assert_non_null(f);
    f->before = sys;
    f->mine = *sys;
    f->mine.mono_ns = our_clock;
    sys = &f->mine;
    atomic_store(&now_ns, 5000 * MS);
    meanwhile = NULL;
    f->m.magic = MOUNT_MAGIC;
    f->m.kind = &kind;
    f->m.stats = stats_new();
    f->m.tree = &f->tree;
    f->tree.root = 1;
    f->tree.named = tree_named_new();
    stats_wrap(&real_ops, &f->counted);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    stats_free(f->m.stats);
    tree_named_free(f->tree.named);
    sys = f->before;
    free(f);
    return 0;
}

static void one_lookup(struct fixture *f, fuse_ino_t ino, uint64_t ns)
{
    takes_ns = ns;
    f->counted.lookup((fuse_req_t)&f->m, ino, "name");
}

/* Every time lies in exactly one place, between the top of the one before and its own, and no top is more
 * than a quarter above the smallest time of its place. */
static void test_places(void **state)
{
    (void)state;
    assert_int_equal(stats_place_of(0), 0);
    assert_int_equal(stats_place_of(1023), 0);
    assert_int_equal(stats_place_of(1024), 1);
    for (unsigned i = 0; i + 1 < STATS_PLACES; i++) {
        uint64_t top = stats_place_top(i);
        assert_int_equal(stats_place_of(top), i);
        assert_int_equal(stats_place_of(top + 1), i + 1);
        assert_true(i == 0 || (double)top < 1.25 * (double)(stats_place_top(i - 1) + 1));
    }
    assert_int_equal(stats_place_of(UINT64_MAX), STATS_PLACES - 1);
    assert_int_equal(stats_place_top(STATS_PLACES - 1), UINT64_MAX);
}

static void *count(void *arg)
{
    struct stats *s = arg;
    for (int i = 0; i < ROUNDS; i++) {
        stats_opened(s, i % 4 == 0, i % 2 == 0);
        stats_read(s, 3, i % 5 == 0);
    }
    return NULL;
}

/* Counters are exact, whoever counts. (Seen to fail with the kinds of opens exchanged.) */
static void test_counters(void **state)
{
    (void)state;
    struct stats *s = stats_new();
    pthread_t threads[THREADS];
    struct stats_report r;
    memset(&r, 0, sizeof(r));
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, count, s), 0);
    stats_fill(s, &r); /* meanwhile */
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    stats_fill(s, &r);
    assert_int_equal(r.counters[STATS_READING_OPENS], THREADS * ROUNDS / 4 * 3);
    assert_int_equal(r.counters[STATS_WRITING_OPENS], THREADS * ROUNDS / 4);
    assert_int_equal(r.counters[STATS_PASSTHROUGH_OPENS], THREADS * ROUNDS / 2);
    assert_int_equal(r.counters[STATS_READ_BYTES], 3 * THREADS * ROUNDS);
    assert_int_equal(r.counters[STATS_HERE_READ_BYTES], 3 * THREADS * ROUNDS / 5);
    assert_int_equal(r.n_running, 0);
    assert_int_equal(r.n_slow, 0);
    for (size_t i = 0; i < STATS_N_OPERATIONS; i++)
        assert_int_equal(r.operations[i].count, 0);
    stats_free(s);
}

/* A report is told with the names that the operations have. */
static void test_names(void **state)
{
    (void)state;
    assert_string_equal(stats_operation_name(STATS_OP_lookup), "lookup");
    assert_string_equal(stats_operation_name(STATS_OP_flock), "flock");
    for (size_t i = 0; i < STATS_N_OPERATIONS; i++)
        assert_true(strlen(stats_operation_name((enum stats_operation)i)) > 3);
}

/* Count, sum and maximum are exact; the median and the 99th percentile are those of the times, each known by
 * its place, and never above the maximum. */
static void test_latencies(void **state)
{
    struct fixture *f = *state;
    for (int i = 0; i < 98; i++)
        one_lookup(f, 7, 2000);
    one_lookup(f, 7, MS);
    one_lookup(f, 7, 50000);
    stats_fill(f->m.stats, &f->r);
    const struct stats_latency *l = &f->r.operations[STATS_OP_lookup];
    assert_int_equal(l->count, 100);
    assert_int_equal(l->sum_ns, 98 * 2000 + 50000 + MS);
    assert_int_equal(l->max_ns, MS);
    assert_int_equal(l->median_ns, stats_place_top(stats_place_of(2000)));
    assert_int_equal(l->p99_ns, MS); /* one of a hundred was slower than the other 99 */
    assert_int_equal(f->r.operations[STATS_OP_getattr].count, 0);
    assert_int_equal(f->r.n_slow, 0);
    assert_int_equal(f->r.up_ms, (98 * 2000 + 50000 + MS) / MS);
    assert_null(f->counted.getattr);
}

/* The last ones that took a tenth of a second are told of, newest first, with what they were about. */
static void test_slow_ones(void **state)
{
    struct fixture *f = *state;
    one_lookup(f, 1000, STATS_SLOW_NS - 1);
    stats_fill(f->m.stats, &f->r);
    assert_int_equal(f->r.n_slow, 0);
    one_lookup(f, 1001, STATS_SLOW_NS);
    stats_fill(f->m.stats, &f->r);
    assert_int_equal(f->r.n_slow, 1);
    for (unsigned i = 0; i < STATS_SLOW_MAX + 3; i++)
        one_lookup(f, 100 + i, STATS_SLOW_NS + i);
    (void)atomic_fetch_add(&now_ns, 7 * MS);
    stats_fill(f->m.stats, &f->r);
    assert_int_equal(f->r.n_slow, STATS_SLOW_MAX);
    for (unsigned i = 0; i < STATS_SLOW_MAX; i++) {
        const struct stats_slow *x = &f->r.slow[i];
        unsigned number = STATS_SLOW_MAX + 2 - i;
        char target[STATS_TARGET_BYTES];
        (void)snprintf(target, sizeof(target), "inode %u", 100 + number);
        assert_string_equal(x->target, target);
        assert_int_equal(x->operation, STATS_OP_lookup);
        assert_int_equal(x->took_ns, STATS_SLOW_NS + number);
        assert_int_equal(x->waited_ns, 0); /* the node was not asked */
        assert_int_equal(x->waited_op, 0);
    }
    assert_int_equal(f->r.slow[0].ago_ns, 7 * MS);
}

/* Asked about one inode those are told that were about it, of the last ones. (Seen to fail when fill_slow
 * passes over nothing.) */
static void test_slow_ones_of_one_file(void **state)
{
    struct fixture *f = *state;
    for (unsigned i = 0; i < STATS_SLOW_MAX + 2; i++)
        one_lookup(f, 100 + i % 3, STATS_SLOW_NS + i);
    struct stats_slow found[STATS_SLOW_MAX];
    assert_int_equal(stats_fill_slow(f->m.stats, 101, found), 5); /* the one of 1 was too long ago */
    for (unsigned i = 0; i < 5; i++) {
        assert_string_equal(found[i].target, "inode 101");
        assert_int_equal(found[i].took_ns, STATS_SLOW_NS + 16 - 3 * i);
    }
    assert_int_equal(stats_fill_slow(f->m.stats, 99, found), 0);
}

/* Of a path that is too long the end is told: the beginning is that of many. (Seen to fail without `skip` in
 * name_target.) */
static void test_long_names(void **state)
{
    struct fixture *f = *state;
    char name[STATS_TARGET_BYTES];
    memset(name, 'd', sizeof(name) - 1);
    name[sizeof(name) - 1] = '\0';
    f->m.nodes = node_table_new(NULL, /* keeps_all= */ false);
    struct node *root = node_get(f->m.nodes, NODE_ROOT_ID);
    const struct node_attr directory = {.is_dir = true}, file = {.etag = SLICE_LIT("v")};
    struct node *d = node_look_up(f->m.nodes, root, slice_str(name), &directory),
                *n = node_look_up(f->m.nodes, d, SLICE_LIT("file"), &file);
    one_lookup(f, d->id, STATS_SLOW_NS);
    one_lookup(f, n->id, STATS_SLOW_NS);
    stats_fill(f->m.stats, &f->r);
    assert_string_equal(f->r.slow[1].target, name);
    assert_int_equal(strlen(f->r.slow[0].target), STATS_TARGET_BYTES - 1);
    assert_string_equal(f->r.slow[0].target + STATS_TARGET_BYTES - 8, "dd/file");
    node_unref(f->m.nodes, n);
    node_unref(f->m.nodes, d);
    node_unref(f->m.nodes, root);
    node_table_free(TAKE_PTR(f->m.nodes));
}

static struct stats_report seen_by_itself, seen_by_another;

static void *look(void *arg)
{
    struct mount *m = arg;
    stats_fill(m->stats, &seen_by_another);
    return NULL;
}

static void look_while_it_runs(struct mount *m)
{
    pthread_t other;
    stats_fill(m->stats, &seen_by_itself);
    assert_int_equal(pthread_create(&other, NULL, look, m), 0);
    assert_int_equal(pthread_join(other, NULL), 0);
}

/* What runs is told to others with its time so far, and no more once it has ended; who asks is not told of
 * the asking. (Seen to fail without the store of 0 in `end`.) */
static void test_what_runs(void **state)
{
    struct fixture *f = *state;
    meanwhile = look_while_it_runs;
    one_lookup(f, 7, 3 * MS);
    assert_int_equal(seen_by_itself.n_running, 0);
    assert_int_equal(seen_by_another.n_running, 1);
    assert_int_equal(seen_by_another.running[0].operation, STATS_OP_lookup);
    assert_int_equal(seen_by_another.running[0].for_ns, 3 * MS);
    assert_int_equal(seen_by_another.operations[STATS_OP_lookup].count, 0);
    look_while_it_runs(&f->m);
    assert_int_equal(seen_by_another.n_running, 0);
    assert_int_equal(seen_by_another.operations[STATS_OP_lookup].count, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_places),
        cmocka_unit_test(test_counters),
        cmocka_unit_test(test_names),
        cmocka_unit_test_setup_teardown(test_latencies, setup, teardown),
        cmocka_unit_test_setup_teardown(test_slow_ones_of_one_file, setup, teardown),
        cmocka_unit_test_setup_teardown(test_slow_ones, setup, teardown),
        cmocka_unit_test_setup_teardown(test_long_names, setup, teardown),
        cmocka_unit_test_setup_teardown(test_what_runs, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* layer: origin */
/*
 * The NFS kind with its server failing: each call of each operation once, in every way. It succeeds or says
 * what is true; a name has the old object or the new one, whole and on the server's disk; nothing is left
 * open.
 */
#include "nfs_fake.h"
#include "origin/nfs_internal.h"

#define OLD "the old bytes"
#define NEW "the new and longer bytes"

static struct {
    struct origin *origin;
    struct arena *arena;
    struct err err;
    char etag[TREE_ETAG_SIZE]; /* of /k */
} T;

static uint64_t clock_ns(void)
{
    return sys_real.mono_ns() + fake.clock_ns;
}

static void open_origin(void)
{
    struct origin_options o;
    assert_int_equal(option_init(&origin_option_table, &o, &T.err), 0);
    assert_int_equal(option_set(&origin_option_table, &o, "origin.connections", "1", "x", &T.err), 0);
    if (origin_open("nfs://nas/export", &o, "b", &T.origin, &T.err) != 0)
        fail_msg("%s", T.err.text);
    option_fini(&origin_option_table, &o);
}

/* ---- operations ---- */

static ssize_t new_bytes(void *arg, void *p, size_t n, uint64_t offset)
{
    (void)arg;
    n = MIN(n, strlen(NEW) - offset);
    n = MIN(n, (size_t)10);
    memcpy(p, &NEW[offset], n);
    return (ssize_t)n;
}

static int put(const char *key, bool none, const char *etag)
{
    bool is_dir = key[strlen(key) - 1] == '/';
    struct origin_put p = {.key = slice_str(key),
                           .if_none_match = none,
                           .if_match = slice_str(etag),
                           .meta = SLICE_LIT("x-amz-meta-mtime: 1600000000\n")};
    struct origin_body b = {.size_bytes = is_dir ? 0 : strlen(NEW), .read = new_bytes};
    struct origin_attr attr;
    int r = origin_put(T.origin, &p, &b, T.arena, &attr, &T.err);
    assert_true(r < 0 || is_dir || attr.size_bytes == strlen(NEW));
    return r;
}

static int collect(void *arg, const struct origin_attr *attr, const void *p, size_t n)
{
    (void)attr;
    return buf_append(arg, p, n);
}

static int do_get(void)
{
    struct buf _cleanup_buf_ got = BUF_INIT(KIB);
    struct origin_get g = {.key = SLICE_LIT("k"), .whole = true};
    struct origin_attr attr;
    int r = origin_get(T.origin, &g, T.arena, &attr, collect, &got, &T.err);
    assert_true(r < 0 || slice_eq_str(buf_view(&got), OLD));
    return r;
}

static int do_head(void)
{
    struct buf _cleanup_buf_ got = BUF_INIT(KIB);
    struct origin_get g = {.key = SLICE_LIT("k"), .attributes_only = true};
    struct origin_attr attr;
    int r = origin_get(T.origin, &g, T.arena, &attr, collect, &got, &T.err);
    assert_true(r < 0 || (attr.size_bytes == strlen(OLD) && slice_eq_str(attr.etag, T.etag)));
    return r;
}

static int do_list(void)
{
    struct origin_page page;
    struct origin_list l = {.max = 100};
    int r = origin_list(T.origin, &l, T.arena, &page, &T.err);
    assert_true(r < 0 || (page.n == 3 && slice_eq_str(page.entries[0].key, "d/f") &&
                          slice_eq_str(page.entries[1].key, "e/") && slice_eq_str(page.entries[2].key, "k")));
    return r;
}

static int do_put(void)
{
    return put("k", false, "");
}

static int do_put_if_match(void)
{
    return put("k", false, T.etag);
}

static int do_put_new(void)
{
    return put("n", true, "");
}

static int do_put_deep(void)
{
    return put("a/b/n", false, "");
}

static int do_put_dir(void)
{
    return put("a/b/", false, "");
}

static int do_copy(void)
{
    struct origin_attr attr;
    return origin_copy(T.origin, SLICE_LIT("k"), SLICE_LIT("n"), SLICE_NULL, T.arena, &attr, &T.err);
}

static int do_remove(void)
{
    return origin_remove(T.origin, SLICE_LIT("k"), slice_str(T.etag), &T.err);
}

static int do_remove_dir(void)
{
    return origin_remove(T.origin, SLICE_LIT("e/"), SLICE_NULL, &T.err);
}

/* What may be under a name before and after; NULL: nothing. */
static const struct {
    const char *what;
    int (*run)(void);
    const char *name, *before, *after;
} ops[] = {
    {"get", do_get, "/k", OLD, OLD},
    {"head", do_head, "/k", OLD, OLD},
    {"list", do_list, "/k", OLD, OLD},
    {"put", do_put, "/k", OLD, NEW},
    {"put if-match", do_put_if_match, "/k", OLD, NEW},
    {"put if-none-match", do_put_new, "/n", NULL, NEW},
    {"put deep", do_put_deep, "/a/b/n", NULL, NEW},
    {"put dir", do_put_dir, "/a/b", NULL, ""},
    {"copy", do_copy, "/n", NULL, OLD},
    {"remove", do_remove, "/k", OLD, NULL},
    {"remove dir", do_remove_dir, "/e", "", NULL},
};

/* ---- what holds ---- */

static bool holds(const char *name, const char *text)
{
    const struct fake_file *f = fake_file_at(name);
    if (!f || !text)
        return !f && !text;
    return f->is_stable && f->n == strlen(text) && memcmp(f->bytes, text, f->n) == 0;
}

static size_t reserved_names(void)
{
    size_t n = 0;
    for (size_t i = 0; i < FAKE_NAMES_MAX; i++)
        n += fake.names[i].file && strstr(fake.names[i].path, "/" FILE_TMP_PREFIX);
    return n;
}

/* A reserved name may stay where removing it is what failed, where the server makes it after everything, or
 * where a copy has lost the only session that it may use. */
static bool may_leave_one(size_t op, bool is_late)
{
    bool lost = fake.fault >= FAKE_NOT_DONE || fake.fault == FAKE_STALE || fake.fault == FAKE_NOT_QUEUED;
    return strcmp(fake.failed, "unlink") == 0 || (is_late && strcmp(fake.failed, "create") == 0) ||
           (ops[op].run == do_copy && lost);
}

static bool is_truthful(int r)
{
    return r == -ETIMEDOUT || r == ERR_ORIGIN_DOWN || r == ERR_ORIGIN_FAILED;
}

static void fresh(void)
{
    struct nfs_stat_64 st;
    fake_clear();
    fake_write("/k", OLD);
    (void)fake_make("/d", true);
    fake_write("/d/f", OLD);
    (void)fake_make("/e", true);
    fake_stat(fake_file_at("/k"), &st);
    nfs_etag(&st, T.etag);
}

/* One operation with the Nth call failing. False when there were fewer calls. */
static bool round_of(size_t op, enum fake_fault fault, uint64_t n)
{
    fresh();
    open_origin();
    T.err = (struct err){0};
    fake.failed[0] = '\0';
    fake.fault = fault;
    fake.left = n;
    int r = ops[op].run();
    bool hit = fake.failed[0] != '\0', late = fake.has_late;
    fake.left = 0;
    bool before = holds(ops[op].name, ops[op].before), after = holds(ops[op].name, ops[op].after);
    bool ok = r == 0 ? after : hit && is_truthful(r) && T.err.text[0] && (before || after);
    if (!ok)
        fail_msg("%s, fault %d at call %lu (%s): %d, %s; before %d, after %d", ops[op].what, (int)fault,
                 (unsigned long)n, fake.failed, r, T.err.text, before, after);
    fake_arrive();
    if (!holds(ops[op].name, ops[op].before) && !holds(ops[op].name, ops[op].after))
        fail_msg("%s, fault %d at call %lu: a half object", ops[op].what, (int)fault, (unsigned long)n);
    if (reserved_names() > (may_leave_one(op, late) ? 1u : 0u))
        fail_msg("%s, fault %d at call %lu (%s): a reserved name is left", ops[op].what, (int)fault,
                 (unsigned long)n, fake.failed);
    /* The origin goes on. */
    assert_int_equal(put("other", false, ""), 0);
    assert_true(holds("/other", NEW) && holds("/d/f", OLD));
    origin_close(T.origin);
    assert_true(fake.contexts == 0 && fake.handles == 0 && fake.dirs == 0);
    arena_clear(T.arena);
    return hit;
}

static void sweep(enum fake_fault fault)
{
    struct sys table = sys_real;
    table.mono_ns = clock_ns;
    sys = &table;
    T.arena = arena_new(4 * MIB);
    for (size_t op = 0; op < ARRAY_SIZE(ops); op++) {
        uint64_t n = 1;
        while (round_of(op, fault, n))
            n++;
        assert_true(n > 2 && n < 100); /* a mount and something else */
    }
    fake_clear();
    fake_unlink(fake_find("/"));
    arena_free(T.arena);
    sys = &sys_real;
}

/* libnfs does not take a call. */
static void test_calls_that_are_not_queued(void **state)
{
    sweep(FAKE_NOT_QUEUED);
}

/* The server refuses one with an I/O error. */
static void test_refused_calls(void **state)
{
    sweep(FAKE_IO_ERROR);
}

/* The server has forgotten the handle. */
static void test_stale_handles(void **state)
{
    sweep(FAKE_STALE);
}

/* The connection breaks, before the server sees the call or after it has done it. */
static void test_broken_connections(void **state)
{
    sweep(FAKE_NOT_DONE);
    sweep(FAKE_NOT_HEARD);
}

/* No answer comes; the server may do it when nobody waits any more. */
static void test_missing_answers(void **state)
{
    sweep(FAKE_NO_ANSWER);
    sweep(FAKE_LATE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_calls_that_are_not_queued),
        cmocka_unit_test(test_refused_calls),
        cmocka_unit_test(test_stale_handles),
        cmocka_unit_test(test_broken_connections),
        cmocka_unit_test(test_missing_answers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

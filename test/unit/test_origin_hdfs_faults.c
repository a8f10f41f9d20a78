/* layer: origin */
/* threaded */
/*
 * The HDFS kind with its server failing: each request of each operation once, in every way, at a namenode
 * that knows the options of a rename and at one that does not. It succeeds or says what is true; a name has
 * the old object or the new one, whole.
 */
#include "hdfs_fake.h"
#include "origin/hdfs_internal.h"

#define OLD "the old bytes"
#define NEW "the new and longer bytes"

static struct {
    struct origin *origin;
    struct arena *arena;
    struct err err;
    char etag[TREE_ETAG_SIZE]; /* of k */
} T;

static void open_origin(void)
{
    struct origin_options o;
    char url[64];
    assert_int_equal(option_init(&origin_option_table, &o, &T.err), 0);
    assert_int_equal(option_set(&origin_option_table, &o, "origin.connections", "2", "x", &T.err), 0);
    assert_int_equal(option_set(&origin_option_table, &o, "origin.user", "me", "x", &T.err), 0);
    (void)snprintf(url, sizeof(url), "hdfs://127.0.0.1:%u/data", fake.port);
    if (origin_open(url, &o, "b", &T.origin, &T.err) != 0)
        fail_msg("%s", T.err.text);
    option_fini(&origin_option_table, &o);
}

/* ---- operations ---- */

static ssize_t new_bytes(void *arg, void *p, size_t n, uint64_t offset)
{
    (void)arg;
    n = MIN(n, strlen(NEW) - offset);
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

static int do_list_all(void)
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
    {"get", do_get, "/data/k", OLD, OLD},
    {"list", do_list_all, "/data/k", OLD, OLD},
    {"put", do_put, "/data/k", OLD, NEW},
    {"put if-match", do_put_if_match, "/data/k", OLD, NEW},
    {"put if-none-match", do_put_new, "/data/n", NULL, NEW},
    {"put dir", do_put_dir, "/data/a/b", NULL, ""},
    {"copy", do_copy, "/data/n", NULL, OLD},
    {"remove", do_remove, "/data/k", OLD, NULL},
    {"remove dir", do_remove_dir, "/data/e", "", NULL},
};

/* ---- what holds; under the mutex ---- */

static bool has(const struct fake_file *f, const char *text)
{
    return f->n == strlen(text) && memcmp(f->bytes, text, f->n) == 0;
}

static bool holds(const char *name, const char *text)
{
    const struct fake_file *f = fake_find(name);
    return f && text ? has(f, text) : !f && !text;
}

/* How many reserved names there are; *ret_whole: one has the new bytes, all of them. */
static size_t reserved_names(bool *ret_whole)
{
    size_t n = 0;
    *ret_whole = false;
    for (size_t i = 0; i < FAKE_FILES_MAX; i++) {
        const struct fake_file *f = &fake.files[i];
        if (!f->path[0] || !strstr(f->path, "/" FILE_TMP_PREFIX))
            continue;
        n++;
        *ret_whole = *ret_whole || has(f, NEW);
    }
    return n;
}

static bool is_truthful(int r)
{
    return r == -ETIMEDOUT || r == ERR_ORIGIN_DOWN || r == ERR_ORIGIN_FAILED || r == ERR_ORIGIN_SHORT ||
           r == ERR_ORIGIN_BUSY;
}

static void fresh(void)
{
    (void)fake_make("/data", true, NULL, 0);
    const struct fake_file *k = fake_make("/data/k", false, OLD, strlen(OLD));
    (void)fake_make("/data/d", true, NULL, 0);
    (void)fake_make("/data/d/f", false, OLD, strlen(OLD));
    (void)fake_make("/data/e", true, NULL, 0);
    tree_etag(k->mtime_ms, k->n, k->id, T.etag);
}

/* Between the removal of the old file and the renaming of the new one, where the server cannot replace. */
static bool is_aside(size_t op, int r, bool whole)
{
    return !fake.knows_options && r < 0 && whole && !fake_find(ops[op].name) &&
           (ops[op].run == do_put || ops[op].run == do_put_if_match);
}

static void check(size_t op, int r, enum fake_fault fault, uint64_t n)
{
    bool whole, hit = fake.failed[0] != '\0';
    size_t left = reserved_names(&whole);
    bool before = holds(ops[op].name, ops[op].before), after = holds(ops[op].name, ops[op].after);
    bool aside = is_aside(op, r, whole);
    bool ok = r == 0 ? after : hit && is_truthful(r) && T.err.text[0] && (before || after || aside);
    if (!ok)
        fail_msg("%s, fault %d at request %lu (%s): %d, %s; before %d, after %d", ops[op].what, (int)fault,
                 (unsigned long)n, fake.failed, r, T.err.text, before, after);
    /* One may stay where removing it is what failed, or where it is the only copy. */
    if (left > (strcmp(fake.failed, "DELETE") == 0 || aside ? 1u : 0u))
        fail_msg("%s, fault %d at request %lu (%s): a reserved name is left", ops[op].what, (int)fault,
                 (unsigned long)n, fake.failed);
}

/* One operation with the Nth request failing. False when there were fewer requests. */
static bool round_of(size_t op, enum fake_fault fault, uint64_t n)
{
    fake_start();
    fresh();
    open_origin();
    assert_true(do_get() == 0); /* a connection that is kept */
    T.err = (struct err){0};
    pthread_mutex_lock(&fake.mutex);
    fake.fault = fault;
    fake.left = n;
    pthread_mutex_unlock(&fake.mutex);
    int r = ops[op].run();
    pthread_mutex_lock(&fake.mutex);
    fake.left = 0;
    bool hit = fake.failed[0] != '\0';
    check(op, r, fault, n);
    pthread_mutex_unlock(&fake.mutex);
    assert_int_equal(put("other", false, ""), 0); /* it goes on */
    origin_close(T.origin);
    fake_stop();
    assert_true(holds("/data/other", NEW) && holds("/data/d/f", OLD));
    arena_clear(T.arena);
    return hit;
}

static void sweep(enum fake_fault fault)
{
    T.arena = arena_new(4 * MIB);
    for (int options = 0; options < 2; options++) {
        fake.knows_options = options;
        for (size_t op = 0; op < ARRAY_SIZE(ops); op++) {
            uint64_t n = 1;
            while (round_of(op, fault, n))
                n++;
            assert_true(n > 1 && n < 60);
        }
    }
    arena_free(T.arena);
}

static void test_refused_requests(void **state)
{
    sweep(FAKE_REFUSED);
    sweep(FAKE_BUSY);
}

/* The connection breaks before the request is done: of a body half has come. */
static void test_requests_that_are_not_done(void **state)
{
    sweep(FAKE_NOT_DONE);
}

/* ... after it is done: curl sends some of them again. */
static void test_answers_that_are_not_heard(void **state)
{
    sweep(FAKE_NOT_HEARD);
}

/* ... within the answer. */
static void test_cut_answers(void **state)
{
    sweep(FAKE_CUT);
    sweep(FAKE_EMPTY);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refused_requests),
        cmocka_unit_test(test_requests_that_are_not_done),
        cmocka_unit_test(test_answers_that_are_not_heard),
        cmocka_unit_test(test_cut_answers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

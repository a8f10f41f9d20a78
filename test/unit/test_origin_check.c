/* layer: origin */
/*
 * What origin_check says of an origin, over a directory, with requests that misbehave as the test wants.
 * Against real servers of every kind: test/system/test_origins.py.
 */
#include "origin/origin_check.h"

#include "base/sys.h"
#include "support/tmpdir.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

/* Ways to misbehave. */
enum way { HONEST, NO_CONDITIONS, WRONG_BYTES, UNPINNED, DENIED, STAYS, READ_ONLY };

static struct {
    struct origin *origin;
    const struct origin_ops *real;
    struct origin_ops ops;
    enum way way;
    char *dir;
} T;

static int put(struct origin *o, const struct origin_put *p, const struct origin_body *body, struct arena *a,
               struct origin_attr *ret, struct err *e)
{
    struct origin_put own = *p;
    if (T.way == DENIED)
        return err_set(e, ERR_ORIGIN_DENIED, "403 no\tway");
    if (T.way == READ_ONLY)
        return -EROFS;
    if (T.way == NO_CONDITIONS) {
        own.if_none_match = false;
        own.if_match = SLICE_NULL;
    }
    return T.real->put(o, &own, body, a, ret, e);
}

struct flip {
    origin_sink_fn sink;
    void *arg;
};

static int flip(void *arg, const struct origin_attr *attr, const void *p, size_t n)
{
    struct flip *f = arg;
    char *own = malloc(n + 1);
    for (size_t i = 0; i < n; i++)
        own[i] = (char)(((const char *)p)[i] ^ 1);
    int r = f->sink(f->arg, attr, own, n);
    free(own);
    return r;
}

static int get(struct origin *o, const struct origin_get *g, struct arena *a, struct origin_attr *ret,
               origin_sink_fn sink, void *arg, struct err *e)
{
    struct origin_get own = *g;
    struct flip f = {sink, arg};
    if (T.way == UNPINNED)
        own.if_match = SLICE_NULL;
    return T.way == WRONG_BYTES ? T.real->get(o, &own, a, ret, flip, &f, e)
                                : T.real->get(o, &own, a, ret, sink, arg, e);
}

static int remove_key(struct origin *o, struct slice key, struct slice if_match, struct err *e)
{
    return T.way == STAYS ? err_set(e, ERR_ORIGIN_DENIED, "no") : T.real->remove(o, key, if_match, e);
}

/* The line of a step, as "STATE TEXT" without its time. */
static void expect(const struct buf *b, const char *name, const char *state, const char *words)
{
    struct slice rest = buf_view(b);
    while (rest.n > 0) {
        struct slice text = slice_split(&rest, '\n'), own = slice_split(&text, '\t'),
                     s = slice_split(&text, '\t');
        if (!slice_eq_str(own, name))
            continue;
        (void)slice_split(&text, '\t');
        if (!slice_eq_str(s, state) || (words && slice_find_slice(text, slice_str(words)) < 0))
            fail_msg("%s: " SLICE_FMT ": " SLICE_FMT, name, SLICE_ARG(s), SLICE_ARG(text));
        return;
    }
    fail_msg("%s is not there", name);
}

static void run(enum way way, bool read_only, struct buf *b)
{
    T.way = way;
    buf_clear(b);
    assert_int_equal(origin_check(T.origin, read_only, b), 0);
    size_t lines = 0;
    for (size_t i = 0; i < b->n; i++)
        lines += b->p[i] == '\n';
    assert_int_equal(lines, 14);
}

static bool anything_left(void)
{
    struct arena *a = arena_new(MIB);
    struct origin_list l = {.prefix = SLICE_LIT(".forebay")};
    struct origin_page page;
    assert_int_equal(origin_list(T.origin, &l, a, &page, NULL), 0);
    bool any = page.n > 0;
    arena_free(a);
    return any;
}

/* A directory can everything but keep metadata, which is no failure; nothing stays behind. */
static void test_honest(void **state)
{
    struct buf _cleanup_buf_ b = BUF_INIT(64 * KIB);
    run(HONEST, false, &b);
    static const char *const good[] = {"list",
                                       "write",
                                       "read",
                                       "ranges",
                                       "pinned reads",
                                       "put if absent",
                                       "put if unchanged",
                                       "copy",
                                       "large write",
                                       "large read",
                                       "list what was written",
                                       "remove"};
    for (size_t i = 0; i < ARRAY_SIZE(good); i++)
        expect(&b, good[i], "ok", NULL);
    expect(&b, "attributes", "no", "metadata are not kept");
    assert_false(anything_left());
}

/* Each way to misbehave shows at its step, and what was written is removed all the same. */
static void test_misbehaviour(void **state)
{
    static const struct {
        enum way way;
        const char *name, *state, *words;
    } cases[] = {
        {NO_CONDITIONS, "put if absent", "no", "ignored by the service"},
        {NO_CONDITIONS, "put if unchanged", "no", "origin.conditional_put=no"},
        {WRONG_BYTES, "read", "failed", "not the ones that were written"},
        {WRONG_BYTES, "ranges", "failed", NULL},
        {WRONG_BYTES, "large read", "failed", NULL},
        {UNPINNED, "pinned reads", "failed", "not there was answered"},
        {DENIED, "write", "failed", "403 no way; check the credentials"},
        {DENIED, "copy", "skipped", NULL},
        {READ_ONLY, "write", "no", "read-only"},
    };
    struct buf _cleanup_buf_ b = BUF_INIT(64 * KIB);
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        run(cases[i].way, false, &b);
        expect(&b, cases[i].name, cases[i].state, cases[i].words);
        assert_false(anything_left());
    }
    run(STAYS, false, &b);
    expect(&b, "remove", "failed", "objects are left below .forebay-check-");
}

/* Nothing is written when nothing may be; what is there is read. */
static void test_read_only(void **state)
{
    struct buf _cleanup_buf_ b = BUF_INIT(64 * KIB);
    char path[4200];
    run(HONEST, true, &b);
    expect(&b, "write", "skipped", NULL);
    expect(&b, "read", "skipped", "no object");
    (void)snprintf(path, sizeof(path), "%s/object", T.dir);
    FILE *f = fopen(path, "w");
    assert_true(f && fputs("some bytes", f) >= 0 && fclose(f) == 0);
    run(HONEST, true, &b);
    expect(&b, "read", "ok", NULL);
    expect(&b, "ranges", "ok", NULL);
    expect(&b, "pinned reads", "ok", NULL);
    expect(&b, "remove", "skipped", NULL);
    run(READ_ONLY, false, &b); /* what cannot be written is still read */
    expect(&b, "large read", "ok", NULL);
    assert_false(anything_left());
    assert_int_equal(unlink(path), 0);
}

/* Results that do not fit are an error, never cut. */
static void test_too_small(void **state)
{
    struct buf _cleanup_buf_ b = BUF_INIT(100);
    T.way = DENIED;
    assert_int_equal(origin_check(T.origin, false, &b), -E2BIG);
}

static int start(void **state)
{
    struct origin_options o;
    struct err e = {0};
    char url[4200];
    T.dir = tmpdir_new();
    (void)snprintf(url, sizeof(url), "file://%s", T.dir);
    assert_int_equal(option_init(&origin_option_table, &o, &e), 0);
    assert_int_equal(origin_open(url, &o, "test", &T.origin, &e), 0);
    option_fini(&origin_option_table, &o);
    T.real = T.origin->ops;
    T.ops = *T.real;
    T.ops.put = put;
    T.ops.get = get;
    T.ops.remove = remove_key;
    T.origin->ops = &T.ops;
    return 0;
}

static int stop(void **state)
{
    T.origin->ops = T.real;
    origin_close(T.origin);
    tmpdir_free(T.dir);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_honest),
        cmocka_unit_test(test_read_only), /* before anything stays behind */
        cmocka_unit_test(test_too_small),
        cmocka_unit_test(test_misbehaviour),
    };
    return cmocka_run_group_tests(tests, start, stop);
}

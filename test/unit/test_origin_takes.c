/* layer: origin */
/* What no put can bring to an origin is known without asking it, by kind: origin_takes, which write-back asks
 * before it acknowledges. Nothing is sent here. */
#include "base/buf.h"
#include "origin/origin.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#define A50  "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define A250 A50 A50 A50 A50 A50
#define S50                                                                                                  \
    "a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/"
#define S250 S50 S50 S50 S50 S50
#define META "x-amz-meta-"

static const struct {
    const char *url, *key, *meta;
    uint64_t size;
    int result;
} rows[] = {
    {"s3://b", "a//b", META "a-b: c\n", 1, 0},
    {"s3://b", "d/", "", 1, 0},
    {"s3://b", "caf\xe9", "", 1, -EILSEQ},
    {"s3://b", A250 A250 A250 A250, "", 1, 0},
    {"s3://b/" A50, A250 A250 A250 A250, "", 1, -ENAMETOOLONG},
    {"s3://b", "k", META "a b: c\n", 1, -EINVAL},
    {"forebay://h:1/b", "caf\xe9", "", 1, -EILSEQ},
    {"gs://b", "a//b", META "a-b: c\n", 1, 0},
    {"gs://b", "caf\xe9", "", 1, -EILSEQ},
    {"gs://b", "k", META "a: \xe9\n", 1, -EINVAL},
    {"gs://b", "a\nb", "", 1, -EINVAL},
    {"gs://b", "a\rb", "", 1, -EINVAL},
    {"gs://b", "a\tb", "", 1, 0},
    {"gs://b", ".well-known/acme-challenge/x", "", 1, -EINVAL},
    {"gs://b/.well-known", "acme-challenge/x", "", 1, -EINVAL},
    {"gs://b/.well-known/acme-challenge/x", "y", "", 1, -EINVAL},
    {"gs://b/p", ".well-known/acme-challenge/x", "", 1, 0},
    {"gs://b", ".well-known/acme-challenge", "", 1, 0},
    {"az://c", "a//b", META "a_b: c\n", 1, 0},
    {"az://c", "k", META "a-b: c\n", 1, -EINVAL},
    {"az://c", "k", META "1: c\n", 1, -EINVAL},
    {"az://c", "a\tb", "", 1, -EINVAL},
    {"az://c", "a\xc2\x81", "", 1, -EINVAL},
    {"az://c", "caf\xc3\xa9", "", 1, 0},
    {"az://c", S250 "a/b/c/d", "", 1, 0},
    {"az://c", S250 "a/b/c/d/e", "", 1, -ENAMETOOLONG},
    {"az://c/p", S250 "a/b/c/d", "", 1, -ENAMETOOLONG},
    {"az://c/" A50, A250 A250 A250 A250, "", 1, -ENAMETOOLONG},
    {"file:///tmp", "a/b", META "a-b: c\n", 1, 0},
    {"file:///tmp", "caf\xe9", "", 1, 0},
    {"file:///tmp", "d/", "", 0, 0},
    {"file:///tmp", "d/", "", 1, -EINVAL},
    {"file:///tmp", "a//b", "", 1, -EINVAL},
    {"file:///tmp", "../x", "", 1, -EINVAL},
    {"file:///tmp", A250 "abcdef", "", 1, -EINVAL},
    {"file:///tmp", ".forebay-tmp-1", "", 1, -EINVAL},
    {"nfs://h/e", "a//b", "", 1, -EINVAL},
    {"nfs://h/e", "a/b", "", 1, 0},
    {"hdfs://h:1/", "a//b", "", 1, -EINVAL},
    {"hdfs://h:1/", "a:b", "", 1, -EINVAL},
    {"hdfs://h:1/", "a/b", "", 1, 0},
    {"http://h", "a", "", 1, -EROFS},
};

static void test_what_no_put_can_bring(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        struct origin_options o;
        struct origin *x = NULL;
        struct err e = {0};
        struct origin_put p = {.key = slice_str(rows[i].key), .meta = slice_str(rows[i].meta)};
        assert_int_equal(option_init(&origin_option_table, &o, &e), 0);
        o.account = slice_dup(SLICE_LIT("account"));
        if (origin_open(rows[i].url, &o, "b", &x, &e) < 0)
            fail_msg("%s", e.text);
        int r = origin_takes(x, &p, rows[i].size, &e);
        if (r != rows[i].result)
            fail_msg("row %zu: %s %s: %d: %s", i, rows[i].url, rows[i].key, r, e.text);
        origin_close(x);
        option_fini(&origin_option_table, &o);
    }
}

/* All of a few, so that no round of them follows another; of many a quarter, and never more than 16. */
static void test_parts_that_go_together(void **state)
{
    static const struct {
        uint64_t n;
        unsigned at_once;
    } parts[] = {{1, 1}, {2, 2}, {8, 8}, {9, 8}, {35, 8}, {36, 9}, {64, 16}, {10000, 16}, {UINT64_MAX, 16}};
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(parts); i++)
        assert_int_equal(origin_parts_at_once(parts[i].n), parts[i].at_once);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_what_no_put_can_bring),
                                       cmocka_unit_test(test_parts_that_go_together)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

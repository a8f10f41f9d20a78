/* layer: s3 */
/* The list of parts in a completion: its limit, and what is none. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "s3/complete_list.h"
#include "s3/part_list.h"

#define ROOM  (16 * MIB)
#define OPEN  "<CompleteMultipartUpload>"
#define CLOSE "</CompleteMultipartUpload>"

static int read_list(const char *document, size_t n, struct arena *a, const struct complete_part **ret,
                     size_t *ret_n)
{
    struct err e = {0};

    return complete_list_read(slice_of(document, n), a, ret, ret_n, &e);
}

/* `n` parts of rising numbers, or all of the same one. */
static int read_many(size_t n, bool same, size_t *ret_n)
{
    _cleanup_(arena_freep) struct arena *a = arena_new(ROOM);
    _cleanup_buf_ struct buf b = BUF_INIT(4 * MIB);
    const struct complete_part *parts = NULL;
    int status = buf_str(&b, OPEN);

    for (size_t i = 0; i < n && status == 0; i++)
        status = buf_printf(&b, "<Part><PartNumber>%zu</PartNumber><ETag>e</ETag></Part>", same ? 1 : i + 1);
    assert_int_equal(status, 0);
    assert_int_equal(buf_str(&b, CLOSE), 0);
    status = read_list(b.p, b.n, a, &parts, ret_n);
    for (size_t i = 0; status == 0 && i < n; i++)
        assert_true(parts[i].number == (same ? 1 : i + 1) && slice_eq_str(parts[i].etag, "e"));
    return status;
}

/* 10,000 parts are a list and one more is none, whatever number it has: there is room for no more. */
static void no_more_than_ten_thousand(void **state)
{
    size_t n = 0;
    (void)state;

    assert_int_equal(PART_LIST_NUMBER_MAX, 10000); /* S3's */
    assert_int_equal(read_many(10000, /* same= */ false, &n), 0);
    assert_int_equal(n, 10000);
    assert_int_equal(read_many(10000, /* same= */ true, &n), 0); /* their order is another's matter */
    assert_int_equal(read_many(10001, /* same= */ true, &n), ERR_PROTOCOL);
    assert_int_equal(read_many(10001, /* same= */ false, &n), ERR_PROTOCOL);
}

/* ETags lose their quotes, checksums are kept with their kind, blanks and what is not known are left out. */
static void parts_are_read(void **state)
{
    static const char document[] = OPEN
        "<Part><ETag>&quot;a&quot;</ETag><PartNumber> 3 </PartNumber><ChecksumSHA1> s= </ChecksumSHA1></Part>"
        "<Part><PartNumber>7</PartNumber><ETag>b</ETag><ChecksumXXHASH64>x</ChecksumXXHASH64></Part>" CLOSE;
    _cleanup_(arena_freep) struct arena *a = arena_new(ROOM);
    const struct complete_part *p = NULL;
    size_t n = 0;
    (void)state;

    assert_int_equal(read_list(document, sizeof document - 1, a, &p, &n), 0);
    assert_int_equal(n, 2);
    assert_true(p[0].number == 3 && slice_eq_str(p[0].etag, "a"));
    assert_true(p[0].sum_kind == CHECKSUM_SHA1 && slice_eq_str(p[0].sum, "s="));
    assert_true(p[1].number == 7 && slice_eq_str(p[1].etag, "b") && p[1].sum_kind == CHECKSUM_NONE);
}

/* What a list may not be; a part needs a number and an ETag, once each. */
static void bad_lists_are_refused(void **state)
{
    static const char *const rows[] = {
        "",
        OPEN CLOSE,
        "<Delete><Part><PartNumber>1</PartNumber><ETag>e</ETag></Part></Delete>",
        OPEN "<Part><PartNumber>1</PartNumber></Part>" CLOSE,
        OPEN "<Part><ETag>e</ETag></Part>" CLOSE,
        OPEN "<Part><PartNumber>1</PartNumber><ETag></ETag></Part>" CLOSE,
        OPEN "<Part><PartNumber>0</PartNumber><ETag>e</ETag></Part>" CLOSE,
        OPEN "<Part><PartNumber>10001</PartNumber><ETag>e</ETag></Part>" CLOSE,
        OPEN "<Part><PartNumber>1</PartNumber><ETag>e</ETag><ETag>f</ETag></Part>" CLOSE,
        OPEN "<Part><PartNumber>1</PartNumber><PartNumber>2</PartNumber><ETag>e</ETag></Part>" CLOSE,
        OPEN "<Part><PartNumber>1</PartNumber><ETag>e</ETag><ChecksumCRC32>a</ChecksumCRC32>"
             "<ChecksumSHA1>b</ChecksumSHA1></Part>" CLOSE,
        OPEN "<Part><PartNumber>1</PartNumber><ETag>e</ETag></Part>",
    };
    (void)state;

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        _cleanup_(arena_freep) struct arena *a = arena_new(ROOM);
        const struct complete_part *p;
        size_t n;

        if (read_list(rows[i], strlen(rows[i]), a, &p, &n) == 0)
            fail_msg("%s", rows[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_more_than_ten_thousand),
        cmocka_unit_test(parts_are_read),
        cmocka_unit_test(bad_lists_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

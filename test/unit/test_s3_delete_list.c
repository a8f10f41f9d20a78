/* layer: s3 */
/* The list of keys in a deletion: what is read of it, its limit, and what is none. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/buf.h"
#include "s3/delete_list.h"

static int read_list(const char *text, struct arena *a, struct delete_list *ret)
{
    struct err e = {0};
    return delete_list_read(slice_str(text), a, ret, &e);
}

static void keys_and_conditions_come_out(void **state)
{
    struct arena *_cleanup_(arena_freep) a = arena_new(MIB);
    struct delete_list l;
    (void)state;

    assert_int_equal(read_list("<Delete><Quiet> true </Quiet><Object><Key>a&amp;b</Key></Object>"
                               "<Object><ETag>\"e\"</ETag><Key>c</Key><VersionId>null</VersionId></Object>"
                               "<Object><Key>d</Key><Size>5</Size></Object></Delete>",
                               a, &l),
                     0);
    assert_int_equal(l.n, 3);
    assert_true(l.quiet);
    assert_true(slice_eq_str(l.keys[0].key, "a&b"));
    assert_null(l.keys[0].etag.p);
    assert_true(slice_eq_str(l.keys[1].key, "c") && slice_eq_str(l.keys[1].etag, "e"));
    assert_true(slice_eq_str(l.keys[1].version, "null"));
    assert_false(l.keys[1].has_other);
    assert_true(l.keys[2].has_other);
}

/* Of what is there twice one would be lost: of two conditions perhaps the one that does not hold. (Seen to be
 * taken where on_field lets the last one count.) */
static void what_is_no_list_is_refused(void **state)
{
    static const char *const wrong[] = {
        "",
        "<Delete/>",
        "<Delete><Object/></Delete>",
        "<Delete><Object><Key></Key></Object></Delete>",
        "<Delete><Object><Key>a</Key><Key>b</Key></Object></Delete>",
        "<Delete><Object><Key>a</Key><ETag>b</ETag><ETag>c</ETag></Object></Delete>",
        "<Delete><Object><Key>a</Key><ETag/><ETag>c</ETag></Object></Delete>",
        "<Delete><Object><Key>a</Key><VersionId>b</VersionId><VersionId>null</VersionId></Object></Delete>",
        "<Delete><Object><Key>a</Key></Object>",
        "<Other><Object><Key>a</Key></Object></Other>",
    };
    struct arena *_cleanup_(arena_freep) a = arena_new(MIB);
    struct delete_list l;
    (void)state;

    for (size_t i = 0; i < ARRAY_SIZE(wrong); i++)
        assert_true(read_list(wrong[i], a, &l) < 0);
}

/* A thousand and no more, whatever else is in the document. */
static void more_keys_than_a_list_may_have(void **state)
{
    struct arena *_cleanup_(arena_freep) a = arena_new(4 * MIB);
    _cleanup_buf_ struct buf text = BUF_INIT(MIB);
    struct delete_list l;
    (void)state;

    assert_int_equal(buf_str(&text, "<Delete>"), 0);
    for (int i = 0; i < DELETE_KEYS_MAX; i++)
        assert_int_equal(buf_str(&text, "<Object><Key>k</Key></Object>"), 0);
    size_t n = text.n;
    assert_int_equal(buf_str(&text, "</Delete>"), 0);
    assert_int_equal(delete_list_read(buf_view(&text), a, &l, NULL), 0);
    assert_int_equal(l.n, DELETE_KEYS_MAX);
    text.n = n;
    assert_int_equal(buf_str(&text, "<Object><Key>k</Key></Object></Delete>"), 0);
    assert_true(delete_list_read(buf_view(&text), a, &l, NULL) < 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_and_conditions_come_out),
        cmocka_unit_test(what_is_no_list_is_refused),
        cmocka_unit_test(more_keys_than_a_list_may_have),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* layer: s3 */
/* Pages of listings of uploads: all of them, in order, once, however they are found and however small a page
 * is. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "s3/upload_page.h"

struct found {
    const char *key, *id;
};

/* As they are found: in no order. */
static const struct found all[] = {
    {"b/2", "05"}, {"a", "09"},    {"b/1", "01"}, {"c", "02"}, {"b/", "03"},
    {"a", "01"},   {"bb/1", "04"}, {"a", "05"},   {"d", "06"}, {"b/2", "02"},
};

static struct upload_page page_of(struct upload_page asked)
{
    upload_page_init(&asked);
    for (size_t i = 0; i < ARRAY_SIZE(all); i++)
        upload_page_add(&asked, slice_str(all[i].key), all[i].id, i + 1);
    return asked;
}

/* "key:id " of each entry of each page, "|" where a page ends. */
static void walk(struct upload_page asked, struct buf *ret)
{
    char key[64] = "", id[UPLOAD_ID_SIZE] = "";
    bool more = true;

    buf_clear(ret);
    while (more) {
        asked.key_marker = slice_str(key);
        asked.id_marker = slice_str(id);
        struct upload_page p = page_of(asked);
        assert_true(p.n <= p.max && p.n > 0);
        for (size_t i = 0; i < p.n; i++)
            assert_int_equal(buf_printf(ret, SLICE_FMT ":%s ", SLICE_ARG(p.v[i].name), p.v[i].id), 0);
        (void)snprintf(key, sizeof key, SLICE_FMT, SLICE_ARG(p.v[p.n - 1].name));
        (void)snprintf(id, sizeof id, "%s", p.v[p.n - 1].id);
        more = p.truncated;
        upload_page_fini(&p);
        if (more)
            assert_int_equal(buf_char(ret, '|'), 0);
    }
}

/* Fails when the ids of a key are not a part of the order, or the marker's own id is not looked at. */
static void pages_together_are_everything(void **state)
{
    _cleanup_buf_ struct buf b = BUF_INIT(KIB);
    (void)state;

    walk((struct upload_page){.max = 1000}, &b);
    assert_string_equal(b.p, "a:01 a:05 a:09 b/:03 b/1:01 b/2:02 b/2:05 bb/1:04 c:02 d:06 ");
    walk((struct upload_page){.max = 2}, &b);
    assert_string_equal(b.p, "a:01 a:05 |a:09 b/:03 |b/1:01 b/2:02 |b/2:05 bb/1:04 |c:02 d:06 ");
    walk((struct upload_page){.max = 3, .prefix = SLICE_LIT("b")}, &b);
    assert_string_equal(b.p, "b/:03 b/1:01 b/2:02 |b/2:05 bb/1:04 ");
}

/* A common prefix is one entry, and the page behind it does not show it again. */
static void groups_come_once(void **state)
{
    _cleanup_buf_ struct buf b = BUF_INIT(KIB);
    (void)state;

    walk((struct upload_page){.max = 1000, .delimiter = SLICE_LIT("/")}, &b);
    assert_string_equal(b.p, "a:01 a:05 a:09 b/: bb/: c:02 d:06 ");
    for (size_t max = 1; max < 8; max++) {
        _cleanup_buf_ struct buf pages = BUF_INIT(KIB);
        size_t n = 0;

        walk((struct upload_page){.max = max, .delimiter = SLICE_LIT("/")}, &pages);
        for (size_t i = 0; i < pages.n; i++)
            if (pages.p[i] != '|')
                pages.p[n++] = pages.p[i];
        assert_int_equal(n, b.n);
        assert_memory_equal(pages.p, b.p, n);
    }
    walk((struct upload_page){.max = 9, .prefix = SLICE_LIT("b/"), .delimiter = SLICE_LIT("/")}, &b);
    assert_string_equal(b.p, "b/:03 b/1:01 b/2:02 b/2:05 ");
}

/* A key marker without an id leaves all uploads of the key out; an id without a key means nothing. */
static void markers_that_clients_choose(void **state)
{
    struct upload_page p =
        page_of((struct upload_page){.max = 9, .key_marker = SLICE_LIT("a"), .id_marker = SLICE_LIT("05")});
    (void)state;

    assert_string_equal(p.v[0].id, "09");
    assert_int_equal(p.v[0].created_ns, 2);
    upload_page_fini(&p);
    p = page_of((struct upload_page){.max = 9, .key_marker = SLICE_LIT("a")});
    assert_true(slice_eq_str(p.v[0].name, "b/"));
    upload_page_fini(&p);
    p = page_of((struct upload_page){.max = 9, .id_marker = SLICE_LIT("05")});
    assert_true(slice_eq_str(p.v[0].name, "a"));
    assert_true(p.truncated);
    upload_page_fini(&p);
    p = page_of((struct upload_page){.max = 9, .key_marker = SLICE_LIT("b/1"), .delimiter = SLICE_LIT("/")});
    assert_true(slice_eq_str(p.v[0].name, "bb/")); /* "b/" is not behind the marker, though its keys are */
    upload_page_fini(&p);
    p = page_of((struct upload_page){.max = 0});
    assert_int_equal(p.n, 0);
    upload_page_fini(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_together_are_everything),
        cmocka_unit_test(groups_come_once),
        cmocka_unit_test(markers_that_clients_choose),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* layer: jobs */
/* threaded */
#include "jobs/pages.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static void put(struct pages *p, const char *page, const char *after, bool last)
{
    pages_put(p, slice_str(page), slice_str(after), last);
}

static void expect(struct pages *p, const char *page, const char *after, bool last)
{
    struct page *got = NULL;
    assert_true(pages_wait(p, 0));
    assert_int_equal(pages_take(p, &got), PAGES_ONE);
    assert_int_equal(got->page_n, strlen(page));
    assert_memory_equal(got->bytes, page, got->page_n);
    assert_int_equal(got->after_n, strlen(after));
    assert_memory_equal(got->bytes + got->page_n, after, got->after_n);
    assert_true(got->last == last);
    free(got);
}

/* Pages come in their order with where the listing goes on; nothing is there until they come. */
static void pages_come_in_order(void **state)
{
    (void)state;
    _cleanup_(pages_freep) struct pages *p = pages_new(4096);
    struct page *none = NULL;
    assert_false(pages_wait(p, 1));
    put(p, "one", "k1", false);
    put(p, "", "k2", false);
    expect(p, "one", "k1", false);
    put(p, "three", "", true);
    expect(p, "", "k2", false);
    expect(p, "three", "", true);
    assert_false(pages_wait(p, 1));
    put(p, "left", "", false); /* freed with the queue */
    pages_end(p);
    expect(p, "left", "", false);
    assert_int_equal(pages_take(p, &none), PAGES_END);
    put(p, "left", "", false);
}

/* After a page that does not fit none is kept, so that there is no gap; what fitted is there. (Seen to fail
 * without `overflowed` being kept.) */
static void no_page_follows_one_that_did_not_fit(void **state)
{
    (void)state;
    size_t one = sizeof(struct page) + 4;
    _cleanup_(pages_freep) struct pages *p = pages_new(2 * one);
    struct page *none = NULL;
    put(p, "aaaa", "", false);
    put(p, "bbbbcccc", "", false);
    put(p, "dddd", "", false);
    expect(p, "aaaa", "", false);
    put(p, "eeee", "", true);
    pages_end(p);
    assert_true(pages_wait(p, 0));
    assert_int_equal(pages_take(p, &none), PAGES_ALONE);
}

/* What was taken makes room. */
static void what_is_taken_makes_room(void **state)
{
    (void)state;
    _cleanup_(pages_freep) struct pages *p = pages_new(sizeof(struct page) + 8);
    for (int i = 0; i < 100; i++) {
        put(p, "pagepage", "", false);
        expect(p, "pagepage", "", false);
    }
}

static void *put_all(void *arg)
{
    for (int i = 0; i < 1000; i++)
        put(arg, "page", "after", false);
    pages_end(arg);
    return NULL;
}

/* One puts while another takes: all of them arrive. */
static void one_puts_while_another_takes(void **state)
{
    (void)state;
    _cleanup_(pages_freep) struct pages *p = pages_new(1024 * 1024);
    pthread_t t;
    struct page *got = NULL;
    int n = 0;
    assert_int_equal(pthread_create(&t, NULL, put_all, p), 0);
    for (; pages_take(p, &got) == PAGES_ONE; n++)
        free(got);
    assert_int_equal(pthread_join(t, NULL), 0);
    assert_int_equal(n, 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_come_in_order),
        cmocka_unit_test(no_page_follows_one_that_did_not_fit),
        cmocka_unit_test(what_is_taken_makes_room),
        cmocka_unit_test(one_puts_while_another_takes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* layer: origin */
/* threaded */
/*
 * What stands between a node and an S3 service, or in its place: links that trickle, proxies whose pages look
 * as answers, other nodes.
 */
#include "origin_s3_common.h"

/* Twenty times as fast as the real one. */
static uint64_t look_at_fast_clock(void)
{
    return sys_real.mono_ns() * 20;
}

/* Whether an answer to a GET, of which a byte comes each half second of the fast clock, is waited for to its
 * end, which takes longer than a minute and a half. The next one is had in either case. */
static bool is_waited_for(const char *const *options, struct err *e)
{
    static const struct script_step steps[] = {
        {.answer = OK206("0-199/1000", "200"), .pad = 200, .trickle_ms = 25},
        {.answer = OK206("0-199/1000", "200"), .pad = 200},
    };
    struct fixture f;
    struct sink s;
    struct err next = {0};
    fixture_start(&f, "s3://b", steps, ARRAY_SIZE(steps), options);
    int r = get(&f, 0, 200, &s, e);
    assert_true(r == 0 ? s.bytes == 200 : r == -ETIMEDOUT && s.bytes < 100);
    assert_int_equal(get(&f, 0, 200, &s, &next), 0);
    fixture_stop(&f);
    return r == 0;
}

/* A body that trickles is given up after the option's time, although none of it passes without a byte; unless
 * the bucket says that it may. (Seen to fail without look_at_pace.) */
static void test_an_origin_that_trickles(void **state)
{
    (void)state;
    static const char *const any[] = {"origin.min_rate", "0", NULL};
    static const char *const less[] = {"origin.min_rate", "1", "origin.timeout", "1m", NULL};
    static const char *const no_options[] = {NULL};
    struct sys calls = sys_real;
    struct err e = {0};
    calls.mono_ns = look_at_fast_clock;
    sys = &calls;
    assert_false(is_waited_for(no_options, &e));
    assert_non_null(strstr(e.text, "fewer than origin.min_rate"));
    assert_true(is_waited_for(any, &e));
    assert_true(is_waited_for(less, &e));
    sys = &sys_real;
}

/* Another node says when asking again is in vain, in answers without words, too: then it is final. Its 502
 * without that, as of a proxy on the way, is not, nor is what a service says so. (Seen to fail without
 * take_retry.) */
static void test_a_node_whose_origin_is_wrongly_set_up(void **state)
{
#define IN_VAIN(how) "HTTP/1.1 502 Bad Gateway\r\nX-Forebay-Retry: " how "\r\nContent-Length: 0\r\n\r\n"
    static const struct {
        const char *url;
        struct script_step step;
        int result;
    } cases[] = {
        {"forebay://h:1/b", {.answer = IN_VAIN("no")}, ERR_ORIGIN_SETUP},
        {"forebay://h:1/b", {.answer = IN_VAIN("yes")}, ERR_ORIGIN_DOWN},
        {"forebay://h:1/b",
         {.answer = XML_ERROR("502 Bad Gateway", "Other", "a proxy"), .close = true},
         ERR_ORIGIN_DOWN},
        {"s3://b", {.answer = IN_VAIN("no")}, ERR_ORIGIN_DOWN},
    };
#undef IN_VAIN
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct fixture f;
        struct sink s;
        struct err e = {0};
        fixture_start(&f, cases[i].url, &cases[i].step, 1, NULL);
        assert_int_equal(get(&f, 0, 100, &s, &e), cases[i].result);
        fixture_stop(&f);
    }
}

#define PAGE   "HTTP/1.1 404 Not Found\r\nContent-Type: text/html\r\nContent-Length: 13\r\n\r\n"
#define ABSENT "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n"

/* That an object is not there is believed of an answer to HEAD, which has no document, unless it looks as a
 * proxy's page: then what a GET is told counts. Another node always says that it is one. (Seen to fail:
 * whatever has that status was believed, and what was cached was dropped.) */
static void test_absence_that_is_not_the_services_word(void **state)
{
    (void)state;
    static const struct {
        const char *url;
        struct script_step steps[2];
        size_t asked;
        int result;
    } cases[] = {
        {"s3://b", {{.answer = ABSENT "\r\n"}}, 1, -ENOENT},
        {"s3://b", {{.answer = ABSENT "Content-Type: application/xml\r\n\r\n"}}, 1, -ENOENT},
        {"s3://b", {{.answer = ABSENT "x-amz-request-id: 1\r\nContent-Type: text/html\r\n\r\n"}}, 1, -ENOENT},
        {"s3://b",
         {{.answer = PAGE}, {.answer = XML_ERROR("404 Not Found", "NoSuchKey", "none"), .close = true}},
         2,
         -ENOENT},
        {"s3://b", {{.answer = PAGE}, {.answer = PAGE "<html></html>"}}, 2, ERR_ORIGIN_FAILED},
        {"s3://b", {{.answer = PAGE}, {.answer = OK206("0-0/1", "1"), .pad = 1}}, 2, ERR_ORIGIN_FAILED},
        {"s3://b",
         {{.answer = PAGE}, {.answer = XML_ERROR("416 Range", "InvalidRange", "empty"), .close = true}},
         2,
         ERR_ORIGIN_FAILED},
        {"s3://b",
         {{.answer = PAGE}, {.answer = XML_ERROR("503 No", "SlowDown", ""), .close = true}},
         2,
         ERR_ORIGIN_BUSY},
        {"forebay://h:1/b", {{.answer = ABSENT "\r\n"}}, 1, ERR_ORIGIN_FAILED},
        {"forebay://h:1/b", {{.answer = ABSENT "x-amz-request-id: 1\r\n\r\n"}}, 1, -ENOENT},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct fixture f;
        struct sink s = {0};
        struct err e = {0};
        struct origin_attr attr;
        struct origin_get g = {.key = SLICE_LIT("k"), .attributes_only = true};
        fixture_start(&f, cases[i].url, cases[i].steps, cases[i].asked, NULL);
        assert_int_equal(origin_get(f.origin, &g, f.arena, &attr, on_bytes, &s, &e), cases[i].result);
        assert_int_equal(script_steps_taken(&f.script), cases[i].asked);
        fixture_stop(&f);
    }
}

/* A bucket that a proxy does not find is no empty one. */
static void test_a_listing_that_is_not_the_services_word(void **state)
{
    (void)state;
    static const struct script_step steps[] = {
        {.answer = PAGE "<html></html>"},
        {.answer = XML_ERROR("404 Not Found", "NoSuchBucket", "none"), .close = true},
    };
    struct fixture f;
    struct err e = {0};
    struct origin_page page;
    struct origin_list l = {.max = 10};
    fixture_start(&f, "s3://b", steps, ARRAY_SIZE(steps), NULL);
    assert_int_equal(origin_list(f.origin, &l, f.arena, &page, &e), ERR_ORIGIN_FAILED);
    assert_int_equal(origin_list(f.origin, &l, f.arena, &page, &e), -ENOENT);
    fixture_stop(&f);
}

/* The page of a proxy on the way to another node is no object; what has neither ETag nor time there has the
 * time that it says of such ones. */
static void test_a_node_behind_a_proxy_that_asks_for_a_user(void **state)
{
#define NAMELESS "HTTP/1.1 206 OK\r\nContent-Range: bytes 0-99/1000\r\nContent-Length: 100\r\n"
    static const struct script_step steps[] = {
        {.answer = NAMELESS "\r\n", .pad = 100, .close = true},
        {.answer = NAMELESS "Last-Modified: Thu, 01 Jan 1970 00:00:00 GMT\r\n\r\n", .pad = 100}};
#undef NAMELESS
    struct fixture f;
    struct sink s;
    struct err e = {0};
    fixture_start(&f, "forebay://h:1/b", steps, ARRAY_SIZE(steps), NULL);
    assert_int_equal(get(&f, 0, 100, &s, &e), ERR_ORIGIN_FAILED);
    assert_int_equal(get(&f, 0, 100, &s, &e), 0);
    assert_int_equal(s.bytes, 100);
    fixture_stop(&f);
}

int main(void)
{
    log_set_level(LOG_LEVEL_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_origin_that_trickles),
        cmocka_unit_test(test_a_node_whose_origin_is_wrongly_set_up),
        cmocka_unit_test(test_absence_that_is_not_the_services_word),
        cmocka_unit_test(test_a_listing_that_is_not_the_services_word),
        cmocka_unit_test(test_a_node_behind_a_proxy_that_asks_for_a_user),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

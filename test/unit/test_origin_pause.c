/* layer: origin */
/* threaded */
/*
 * Retry-After: every kind that speaks HTTP keeps what the service asked for, by the same way.
 */
#include "web_fixture.h"

#define BUSY(status, after) "HTTP/1.1 " status "\r\n" after "Content-Length: 0\r\nConnection: close\r\n\r\n"

static const struct {
    const char *url, *options[9];
} kinds[] = {
    {"s3://b/p",
     {"origin.endpoint", "http://127.0.0.1:%p", "origin.access_key", "K", "origin.secret_key", "S"}},
    {"gs://bucket/p", {"origin.endpoint", "http://127.0.0.1:%p"}},
    {"az://con/p",
     {"origin.endpoint", "http://127.0.0.1:%p/acc", "origin.account", "acc", "origin.account_key", "a2V5"}},
    {"http://127.0.0.1:%p/d", {NULL}},
    {"hdfs://127.0.0.1:%p/d", {"origin.user", "me"}},
};

/* What the origin wants after one answer to a question about an object. */
static uint64_t paused_ms(size_t kind, const char *answer)
{
    const struct script_step steps[] = {{.answer = answer, .close = true}, {.answer = answer, .close = true}};
    struct web_fixture f;
    struct origin_attr attr;
    struct err e;
    web_fixture_start(&f, kinds[kind].url, steps, ARRAY_SIZE(steps), kinds[kind].options);
    uint64_t now_ms = sys_mono_ms();
    assert_int_equal(origin_pause_ms(f.origin, now_ms), 0);
    int r = web_fixture_stat(&f, &attr, &e);
    if (r != ERR_ORIGIN_BUSY)
        fail_msg("%s: %d %s", kinds[kind].url, r, e.text);
    uint64_t paused = origin_pause_ms(f.origin, now_ms);
    web_fixture_stop(&f);
    return paused;
}

/* Seconds, after 503 and 429; counted from the answer, so that it is as much at least from before it. */
static void test_seconds_are_kept_by_each_kind(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(kinds); i++) {
        assert_true(paused_ms(i, BUSY("503 Slow Down", "Retry-After: 7\r\n")) >= 7000);
        assert_true(paused_ms(i, BUSY("429 Too Many", "retry-after: 7\r\n")) >= 7000);
    }
}

/* A date counts from the service's own clock, which may be years off. */
static void test_a_date_is_one_of_the_services_clock(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(kinds); i++) {
        const char *answer = BUSY("503 Slow Down", "Retry-After: Mon, 01 Jan 2001 00:00:09 GMT\r\n"
                                                   "Date: Mon, 01 Jan 2001 00:00:00 GMT\r\n");
        assert_true(paused_ms(i, answer) >= 9000);
    }
    /* Without a clock of its own it is this machine's, for which that is long ago. */
    assert_int_equal(paused_ms(0, BUSY("503 Slow Down", "Retry-After: Mon, 01 Jan 2001 00:00:09 GMT\r\n")),
                     0);
}

/* What makes no sense, or is not told, pauses nothing. */
static void test_nonsense_pauses_nothing(void **state)
{
    (void)state;
    static const char *const answers[] = {
        BUSY("503 Slow Down", ""), BUSY("503 Slow Down", "Retry-After: 0\r\n"),
        BUSY("503 Slow Down", "Retry-After: -5\r\n"), BUSY("503 Slow Down", "Retry-After: soon\r\n"),
        BUSY("503 Slow Down", "Retry-After: \r\n")};
    for (size_t i = 0; i < ARRAY_SIZE(answers); i++)
        assert_int_equal(paused_ms(0, answers[i]), 0);
}

/* However long a service asks for, no more than the maximum is believed; and less, said later, ends nothing.
 */
static void test_a_pause_has_a_maximum_and_none_shortens_it(void **state)
{
    (void)state;
    static const char *const long_ones[] = {
        BUSY("503 Slow Down", "Retry-After: 86400\r\n"),
        BUSY("503 Slow Down", "Retry-After: 18446744073709551615\r\n"),
        BUSY("503 Slow Down", "Retry-After: Fri, 01 Jan 2100 00:00:00 GMT\r\n")};
    struct origin o = {.url = NULL};
    for (size_t i = 0; i < ARRAY_SIZE(long_ones); i++)
        assert_true(paused_ms(0, long_ones[i]) >= ORIGIN_PAUSE_MAX_MS);
    uint64_t before_ms = sys_mono_ms();
    origin_pause(&o, UINT64_MAX);
    uint64_t after_ms = sys_mono_ms();
    assert_true(origin_pause_ms(&o, before_ms) >= ORIGIN_PAUSE_MAX_MS);
    assert_true(origin_pause_ms(&o, after_ms) <= ORIGIN_PAUSE_MAX_MS);
    uint64_t until_ms = o.paused_until_ms;
    origin_pause(&o, 0);
    assert_int_equal(o.paused_until_ms, until_ms);
    assert_int_equal(origin_pause_ms(&o, until_ms), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_seconds_are_kept_by_each_kind),
        cmocka_unit_test(test_a_date_is_one_of_the_services_clock),
        cmocka_unit_test(test_nonsense_pauses_nothing),
        cmocka_unit_test(test_a_pause_has_a_maximum_and_none_shortens_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

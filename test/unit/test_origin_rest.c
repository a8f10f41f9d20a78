/* layer: origin */
/* threaded */
/*
 * Connections that nobody uses any more are ended, by every kind that speaks HTTP (of NFS:
 * test_origin_nfs_faults.c).
 */
#include "web_fixture.h"

#define ANSWER                                                                                               \
    "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nETag: \"e\"\r\nLast-Modified: Mon, 01 Jan 2024 00:00:00 "       \
    "GMT\r\n\r\n"

static const struct {
    const char *url, *options[9];
} kinds[] = {
    {"s3://b/p",
     {"origin.endpoint", "http://127.0.0.1:%p", "origin.access_key", "K", "origin.secret_key", "S"}},
    {"gs://bucket/p", {"origin.endpoint", "http://127.0.0.1:%p", "origin.anonymous", "true"}},
    {"az://con/p",
     {"origin.endpoint", "http://127.0.0.1:%p/acc", "origin.account", "acc", "origin.account_key", "a2V5"}},
    {"http://127.0.0.1:%p/d", {NULL}},
    {"hdfs://127.0.0.1:%p/d", {"origin.user", "me"}},
    {"forebay://127.0.0.1:%p/b", {"origin.access_key", "K", "origin.secret_key", "S"}},
};

/* Whatever the answer is taken for: its connection is kept. */
static void ask(struct web_fixture *f)
{
    struct origin_attr attr;
    struct err e;
    (void)web_fixture_stat(f, &attr, &e);
}

/* One is kept for the next request for a minute; then it goes, without anybody asking that origin, and the
 * request after that makes another one. */
static void test_connections_end_when_nobody_uses_them(void **state)
{
    const struct script_step steps[] = {{.answer = ANSWER}, {.answer = ANSWER}, {.answer = ANSWER}};
    for (size_t i = 0; i < ARRAY_SIZE(kinds); i++) {
        struct web_fixture f;
        web_fixture_start(&f, kinds[i].url, steps, ARRAY_SIZE(steps), kinds[i].options);
        uint64_t began_ms = sys_mono_ms();
        ask(&f);
        ask(&f);
        uint64_t ended_ms = sys_mono_ms();
        assert_int_equal(origin_rest(f.origin, began_ms + ORIGIN_REST_MS), 0);
        if (script_connections(&f.script) != 1)
            fail_msg("%s: %zu connections for two requests", kinds[i].url, script_connections(&f.script));
        if (origin_rest(f.origin, ended_ms + ORIGIN_REST_MS + 1) != 1)
            fail_msg("%s keeps its connection", kinds[i].url);
        assert_int_equal(origin_rest(f.origin, ended_ms + 10 * ORIGIN_REST_MS), 0);
        ask(&f);
        assert_int_equal(script_connections(&f.script), 2);
        web_fixture_stop(&f);
    }
}

/* A file has none. */
static void test_files_have_none(void **state)
{
    struct web_fixture f;
    web_fixture_start(&f, "file:///tmp", NULL, 0, NULL);
    assert_int_equal(origin_rest(f.origin, UINT64_MAX), 0);
    web_fixture_stop(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_connections_end_when_nobody_uses_them),
        cmocka_unit_test(test_files_have_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

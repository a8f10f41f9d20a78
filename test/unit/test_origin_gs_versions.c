/* layer: origin */
/* threaded */
/*
 * Views of buckets of Cloud Storage that keep versions: what was there at a time, one generation; before a
 * scripted server. The same against a server that is not ours: test/system/test_restore.py.
 */
#include "origin/gs_internal.h"
#include "origin/meta.h"
#include "web_fixture.h"

static const char *const as_of[] = {"origin.endpoint", "http://127.0.0.1:%p", "origin.as_of",
                                    "2026-01-15T00:00:00Z", NULL};
static const char *const one[] = {"origin.endpoint", "http://127.0.0.1:%p", "origin.version", "8", NULL};

#define JSON "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n"
#define KEPT                                                                                                 \
    {                                                                                                        \
        .answer = JSON "{\"versioning\":{\"enabled\":true}}", .close = true                                  \
    }
#define ITEM(name, generation, created, deleted)                                                             \
    "{\"name\":\"" name "\",\"generation\":\"" generation                                                    \
    "\",\"size\":\"100\",\"updated\":\"2026-01-" created "T00:00:00Z\",\"timeCreated\":\"2026-01-" created   \
    "T00:00:00Z\"" deleted "}"
#define UNTIL(day)         ",\"timeDeleted\":\"2026-01-" day "T00:00:00.5Z\""
#define ITEMS(more, items) JSON "{" more "\"items\":[" items "]}"
#define MEDIA(generation)                                                                                    \
    "HTTP/1.1 206 Partial Content\r\nx-goog-generation: " generation                                         \
    "\r\nContent-Range: bytes 0-9/100\r\nContent-Length: 10\r\n\r\n"

/* Of each key the generation is listed that was there then, and nothing of what was removed by then or came
 * later; a page without any of them is no end. */
static void test_list_as_of(void **state)
{
    static const struct script_step steps[] = {
        KEPT,
        {.answer = ITEMS("\"nextPageToken\":\"t2\",",
                         ITEM("p/a", "7", "02", UNTIL("10")) "," ITEM("p/a", "8", "10", UNTIL("20")) "," ITEM(
                             "p/a", "9", "20", "") "," ITEM("p/b", "3", "01", UNTIL("14"))),
         .close = true},
        {.answer = ITEMS("\"nextPageToken\":\"t3\",", ITEM("p/c", "4", "16", "")), .close = true},
        {.answer = ITEMS("", ITEM("p/d", "5", "15", "") "," ITEM("p/e", "6", "01", UNTIL("15"))),
         .close = true},
    };
    struct web_fixture f;
    struct origin_page page;
    struct err e = {0};
    struct origin_list l = {.max = 10};
    web_fixture_start(&f, "gs://bucket/p", steps, ARRAY_SIZE(steps), as_of);
    WEB_FIXTURE_OK(origin_list(f.origin, &l, f.arena, &page, &e), e);
    assert_true(page.n == 1 && slice_eq_str(page.entries[0].key, "a") && page.truncated);
    assert_true(slice_eq_str(page.entries[0].attr.etag, "8"));
    l.token = page.next_token;
    WEB_FIXTURE_OK(origin_list(f.origin, &l, f.arena, &page, &e), e);
    assert_true(page.n == 0 && page.truncated);
    assert_true(slice_cmp(page.reached, SLICE_LIT("c")) > 0); /* which was not there then */
    l.token = page.next_token;
    WEB_FIXTURE_OK(origin_list(f.origin, &l, f.arena, &page, &e), e);
    /* "e" was removed within the second that the date is. */
    assert_true(page.n == 1 && slice_eq_str(page.entries[0].key, "d") && !page.truncated);
    assert_non_null(strstr(script_head(&f.script, 1), "versions=true"));
    assert_non_null(strstr(script_head(&f.script, 2), "pageToken=t2"));
    web_fixture_stop(&f);
}

/* Attributes are those of the generation that was there, and name it; bytes are asked for by its number, and
 * refused when they are of another. */
static void test_read_as_of(void **state)
{
    static const struct script_step steps[] = {
        {.answer = ITEMS("\"nextPageToken\":\"t2\",", ITEM("k", "9", "20", "")), .close = true},
        {.answer = ITEMS("", ITEM("k", "8", "10", UNTIL("20")) "," ITEM("k2", "5", "01", "")), .close = true},
        {.answer = MEDIA("8"), .pad = 10, .close = true},
        {.answer = ITEMS("", ITEM("k", "8", "10", "")), .close = true},
        {.answer = MEDIA("9"), .pad = 10, .close = true},
        {.answer = ITEMS("", ITEM("k", "9", "20", "") "," ITEM("k", "7", "01", UNTIL("12"))), .close = true},
    };
    struct web_fixture f;
    struct web_sink s;
    struct origin_attr attr;
    struct err e;
    web_fixture_start(&f, "gs://bucket", steps, ARRAY_SIZE(steps), as_of);
    WEB_FIXTURE_OK(web_fixture_stat(&f, &attr, &e), e);
    assert_true(slice_eq_str(attr.etag, "8") && slice_eq_str(meta_get(attr.meta, META_VERSION), "8"));
    WEB_FIXTURE_OK(web_fixture_get(&f, 0, 10, "8", &s, &e), e);
    assert_non_null(strstr(script_head(&f.script, 1), "pageToken=t2"));
    assert_non_null(strstr(script_head(&f.script, 2), "o/k?alt=media&generation=8&ifGenerationMatch=8 "));
    assert_int_equal(web_fixture_get(&f, 0, 10, "", &s, &e), ERR_ORIGIN_REFUSED);
    assert_int_equal(s.calls, 0);
    assert_int_equal(web_fixture_stat(&f, &attr, &e), -ENOENT); /* removed, and written again later */
    web_fixture_stop(&f);
}

/* One generation is the only object. */
static void test_one_generation(void **state)
{
    static const struct script_step steps[] = {
        {.answer = JSON ITEM("dir/k", "8", "10", UNTIL("20")), .close = true},
        {.answer = MEDIA("8"), .pad = 10, .close = true},
        {.answer = "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"},
    };
    struct web_fixture f;
    struct web_sink s;
    struct origin_page page;
    struct err e = {0};
    struct origin_list l = {.max = 10};
    web_fixture_start(&f, "gs://bucket/dir/k", steps, ARRAY_SIZE(steps), one);
    WEB_FIXTURE_OK(origin_list(f.origin, &l, f.arena, &page, &e), e);
    assert_true(page.n == 1 && slice_eq_str(page.entries[0].key, "k") &&
                page.entries[0].attr.size_bytes == 100);
    assert_non_null(strstr(script_head(&f.script, 0), "o/dir%2Fk?generation=8 "));
    WEB_FIXTURE_OK(web_fixture_get(&f, 0, 10, "8", &s, &e), e);
    assert_int_equal(origin_list(f.origin, &l, f.arena, &page, &e), -ENOENT);
    web_fixture_stop(&f);
}

/* Buckets without versions, and resources without times, are no listing. */
static void test_wrong_answers(void **state)
{
    static const struct {
        struct script_step steps[2];
        int code;
    } cases[] = {
        {{{.answer = JSON "{\"name\":\"bucket\"}", .close = true}}, ERR_NOT_IMPLEMENTED},
        {{{.answer = JSON "{\"versioning\":{\"enabled\":false}}", .close = true}}, ERR_NOT_IMPLEMENTED},
        {{KEPT, {.answer = JSON "{\"items\":[{\"name\":\"k\",\"generation\":\"1\"}]}", .close = true}},
         ERR_ORIGIN_FAILED},
        {{KEPT, {.answer = ITEMS("", ITEM("k", "1", "40", "")), .close = true}}, ERR_ORIGIN_FAILED},
        {{KEPT, {.answer = ITEMS("", ITEM("k", "1", "10", UNTIL("40"))), .close = true}}, ERR_ORIGIN_FAILED},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct web_fixture f;
        struct origin_page page;
        struct err e = {0};
        struct origin_list l = {.max = 10};
        web_fixture_start(&f, "gs://bucket", cases[i].steps, 2, as_of);
        assert_int_equal(origin_list(f.origin, &l, f.arena, &page, &e), cases[i].code);
        web_fixture_stop(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_list_as_of),
        cmocka_unit_test(test_read_as_of),
        cmocka_unit_test(test_one_generation),
        cmocka_unit_test(test_wrong_answers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* layer: origin */
/* threaded */
/*
 * Views of one version of a blob, before a scripted server: no server that keeps versions of az:// was at
 * hand. What Azurite, which keeps none, comes to: test/system/test_origins.py.
 */
#include "origin/az_internal.h"
#include "origin/meta.h"
#include "web_fixture.h"

#define ID "2026-01-31T23:59:59.1234567Z"

static const char *const one[] = {"origin.endpoint",
                                  "http://127.0.0.1:%p/acc",
                                  "origin.account",
                                  "acc",
                                  "origin.account_key",
                                  "a2V5",
                                  "origin.version",
                                  ID,
                                  NULL};

#define HEAD(version)                                                                                        \
    "HTTP/1.1 200 OK\r\nETag: \"0x7\"\r\nContent-Length: 10\r\nLast-Modified: Sat, 31 Jan 2026 23:59:59 "    \
    "GMT\r\n" version "\r\n"
#define MEDIA(version)                                                                                       \
    "HTTP/1.1 206 Partial Content\r\nETag: \"0x7\"\r\nContent-Range: bytes 0-9/10\r\nContent-Length: "       \
    "10\r\n" version "\r\n0123456789"
#define OF(id) "x-ms-version-id: " id "\r\n"

/* Attributes and bytes are asked for by the version's id, under the bucket's signature, and the manifest gets
 * to know it; what else lies there is not seen. (Without the query in az_view_pin the blob of now is asked
 * for.) */
static void test_one_version(void **state)
{
    static const struct script_step steps[] = {{.answer = HEAD(OF(ID))}, {.answer = MEDIA(OF(ID))}};
    struct web_fixture f;
    struct origin_attr attr;
    struct web_sink sink;
    struct err e = {0};
    (void)state;
    web_fixture_start(&f, "az://box/p/k", steps, ARRAY_SIZE(steps), one);
    WEB_FIXTURE_OK(web_fixture_stat(&f, &attr, &e), e);
    assert_true(attr.size_bytes == 10 && slice_eq_str(attr.etag, "0x7"));
    assert_true(slice_eq_str(meta_get(attr.meta, META_VERSION), ID));
    WEB_FIXTURE_OK(web_fixture_get(&f, 0, 10, "0x7", &sink, &e), e);
    for (unsigned i = 0; i < 2; i++) {
        assert_non_null(
            strstr(script_head(&f.script, i), " /acc/box/p/k?versionid=2026-01-31T23%3A59%3A59.1234567Z "));
        assert_non_null(strstr(script_head(&f.script, i), "Authorization: SharedKey acc:"));
    }
    assert_non_null(strstr(script_head(&f.script, 1), "\"0x7\""));
    struct origin_get other = {.key = SLICE_LIT("other"), .attributes_only = true};
    assert_int_equal(origin_get(f.origin, &other, f.arena, &attr, web_sink_take, &sink, &e), -ENOENT);
    web_fixture_stop(&f);
}

/* A service that answers with another version, or says nothing of versions and may have sent the blob of now,
 * is not believed: neither its attributes nor its bytes. (Without az_view_check they are.) */
static void test_another_version_is_not_believed(void **state)
{
    static const struct script_step steps[] = {
        {.answer = HEAD(""), .close = true},
        {.answer = MEDIA(""), .close = true},
        {.answer = HEAD(OF("2026-02-01T00:00:00.0000000Z")), .close = true},
        {.answer = MEDIA(OF("2026-02-01T00:00:00.0000000Z")), .close = true},
    };
    struct web_fixture f;
    struct origin_attr attr;
    struct err e = {0};
    (void)state;
    web_fixture_start(&f, "az://box/k", steps, ARRAY_SIZE(steps), one);
    for (int i = 0; i < 2; i++) {
        struct web_sink sink = {0};
        assert_int_equal(web_fixture_stat(&f, &attr, &e), ERR_ORIGIN_REFUSED);
        assert_non_null(strstr(e.text, i == 0 ? "of no version" : "of version 2026-02-01"));
        assert_int_equal(web_fixture_get(&f, 0, 10, NULL, &sink, &e), ERR_ORIGIN_REFUSED);
        assert_int_equal(sink.bytes, 0);
    }
    web_fixture_stop(&f);
}

/* A listing has the one blob, where it is asked for, and folders around it; that the version is not there is
 * an error and no empty page. */
static void test_list(void **state)
{
    static const struct script_step steps[] = {
        {.answer = HEAD(OF(ID))},
        {.answer = "HTTP/1.1 404 The specified version does not exist\r\nx-ms-error-code: BlobNotFound\r\n"
                   "Content-Length: 0\r\n\r\n"},
    };
    struct web_fixture f;
    struct origin_page page;
    struct err e = {0};
    struct origin_list l = {.max = 10}, behind = {.max = 10, .after = SLICE_LIT("l")};
    (void)state;
    web_fixture_start(&f, "az://box/p/k", steps, ARRAY_SIZE(steps), one);
    WEB_FIXTURE_OK(origin_list(f.origin, &l, f.arena, &page, &e), e);
    assert_true(page.n == 1 && slice_eq_str(page.entries[0].key, "k") &&
                page.entries[0].attr.size_bytes == 10);
    WEB_FIXTURE_OK(origin_list(f.origin, &behind, f.arena, &page, &e), e);
    assert_int_equal(page.n, 0);
    assert_int_equal(origin_list(f.origin, &l, f.arena, &page, &e), -ENOENT);
    assert_non_null(strstr(e.text, "version " ID " of k"));
    web_fixture_stop(&f);
}

/* What is no version, or names no blob, and a time, which the service cannot answer for, are refused with the
 * reason. */
static void test_options(void **state)
{
    static const struct {
        const char *url, *name, *value, *word;
    } cases[] = {
        {"az://box/k", "origin.version", "7", "is a time as"},
        {"az://box/k", "origin.version", "Sat, 31 Jan 2026 23:59:59 GMT", "is a time as"},
        {"az://box/k", "origin.version", "2026-01-31T23:59:59.1Z&x", "is a time as"},
        {"az://box", "origin.version", ID, "one object"},
        {"az://box/k", "origin.as_of", "2026-01-31", "when a blob was removed"},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct origin_options o;
        struct origin *origin = NULL;
        struct err e = {0};
        assert_int_equal(option_init(&origin_option_table, &o, &e), 0);
        web_fixture_option(&o, "origin.account", "acc");
        web_fixture_option(&o, cases[i].name, cases[i].value);
        assert_int_equal(origin_open(cases[i].url, &o, "b", &origin, &e), ERR_BAD_OPTION);
        option_fini(&origin_option_table, &o);
        if (!strstr(e.text, cases[i].word))
            fail_msg("%s", e.text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_version),
        cmocka_unit_test(test_another_version_is_not_believed),
        cmocka_unit_test(test_list),
        cmocka_unit_test(test_options),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

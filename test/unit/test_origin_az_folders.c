/* layer: origin */
/* threaded */
/*
 * What real accounts of Azure answer and Azurite does not: blobs that stand for directories, and why a
 * request is not authorized.
 */
#include "origin/az_internal.h"

#include "web_fixture.h"

static const char *const plain[] = {"origin.endpoint",
                                    "http://127.0.0.1:%p/acc",
                                    "origin.account",
                                    "acc",
                                    "origin.account_key",
                                    "a2V5",
                                    NULL};

#define CLOSED(status) "HTTP/1.1 " status "\r\nContent-Type: application/xml\r\nConnection: close\r\n\r\n"
#define PAGE(names)                                                                                          \
    CLOSED("200 OK") "<EnumerationResults><Blobs>" names "</Blobs><NextMarker/></EnumerationResults>"
#define ONE(name)                                                                                            \
    "<Blob><Name>" name "</Name><Properties><Content-Length>3</Content-Length></Properties></Blob>"
#define FOLDER(name, more)                                                                                   \
    "<Blob><Name>" name "</Name><Properties><Content-Length>0</Content-Length>" more "</Blob>"
#define MARKED(text) "</Properties><Metadata><hdi_isfolder>" text "</hdi_isfolder></Metadata>"

/* Blobs that stand for directories, of a hierarchical namespace or of Hadoop and blobfuse, are no objects:
 * neither in a listing nor by their names, where they would hide what lies below. (Seen to fail: "d", "e" and
 * "f" were files.) */
static void test_blobs_that_stand_for_directories(void **state)
{
    (void)state;
    static const struct script_step steps[] = {
        {.answer = PAGE(FOLDER("p/d", "<ResourceType>directory</ResourceType></Properties>")
                            FOLDER("p/e", MARKED("true")) FOLDER("p/f", MARKED("True"))
                                FOLDER("p/g", MARKED("false")) "<BlobPrefix><Name>p/h/</Name><Properties>"
                                                               "<ResourceType>directory</ResourceType>"
                                                               "</Properties></BlobPrefix>" ONE("p/i")),
         .close = true},
        {.answer = "HTTP/1.1 200 OK\r\nETag: \"0x1\"\r\nContent-Length: 0\r\nx-ms-meta-hdi_isfolder: "
                   "true\r\n\r\n"},
        {.answer = "HTTP/1.1 416 No\r\nContent-Length: 0\r\n\r\n"},
        {.answer = "HTTP/1.1 200 OK\r\nETag: \"0x1\"\r\nContent-Length: 0\r\nx-ms-meta-hdi_isfolder: "
                   "true\r\n\r\n"},
        {.answer = "HTTP/1.1 200 OK\r\nETag: \"0x1\"\r\nContent-Length: 7\r\nx-ms-meta-hdi_isfolder: "
                   "true\r\n\r\n"},
    };
    static const char *const wanted[] = {"g", "h/", "i"};
    struct web_fixture f;
    struct origin_page page;
    struct origin_attr attr;
    struct web_sink s;
    struct err e = {0};
    web_fixture_start(&f, "az://con/p", steps, ARRAY_SIZE(steps), plain);
    struct origin_list l = {.delimiter = '/'};
    WEB_FIXTURE_OK(origin_list(f.origin, &l, f.arena, &page, &e), e);
    assert_non_null(strstr(script_head(&f.script, 0), "&include=metadata&"));
    assert_int_equal(page.n, ARRAY_SIZE(wanted));
    for (size_t i = 0; i < page.n; i++)
        assert_true(slice_eq_str(page.entries[i].key, wanted[i]));
    assert_int_equal(web_fixture_stat(&f, &attr, &e), -ENOENT);
    assert_int_equal(web_fixture_get(&f, 0, 10, NULL, &s, &e), -ENOENT);
    WEB_FIXTURE_OK(web_fixture_stat(&f, &attr, &e), e); /* bytes are nobody's directory */
    assert_int_equal(script_connections(&f.script), 2); /* one for all but the first, which was closed */
    web_fixture_stop(&f);
}

/* Why a request is not authorized stands apart from the message, which blames the signature whatever it is:
 * a signature that has expired, a clock. (Seen to fail: the message alone.) */
static void test_why_it_is_not_authorized(void **state)
{
    (void)state;
#define UNAUTHORIZED(detail)                                                                                 \
    CLOSED("403 Forbidden")                                                                                  \
    "<Error><Code>AuthenticationFailed</Code><Message>Server failed to authenticate the request. Make sure " \
    "the value of Authorization header is formed correctly including the signature.\nRequestId:1\nTime:2"    \
    "</Message><AuthenticationErrorDetail>" detail "</AuthenticationErrorDetail></Error>"
    static const struct script_step steps[] = {
        {.answer = UNAUTHORIZED("Signature not valid in the specified time frame: Start [Mon, 01 Jan 2026 "
                                "00:00:00 GMT] - Expiry [Tue, 02 Jan 2026 00:00:00 GMT] - Current [Wed, 03 "
                                "Jan 2026 00:00:00 GMT]"),
         .close = true},
        {.answer = UNAUTHORIZED("The MAC signature found in the HTTP request 'x=' is not the same as any "
                                "computed signature. Server used following string to sign: 'GET\n\n'."),
         .close = true},
    };
    struct web_fixture f;
    struct web_sink s;
    struct err e;
    web_fixture_start(&f, "az://con", steps, ARRAY_SIZE(steps), plain);
    assert_int_equal(web_fixture_get(&f, 0, 10, NULL, &s, &e), ERR_ORIGIN_DENIED);
    if (!strstr(e.text, "Expiry [Tue, 02 Jan 2026") || strstr(e.text, "Make sure"))
        fail_msg("%s", e.text);
    assert_int_equal(web_fixture_get(&f, 0, 10, NULL, &s, &e), ERR_ORIGIN_DENIED);
    if (!strstr(e.text, "computed signature.") || strstr(e.text, "string to sign"))
        fail_msg("%s", e.text);
    web_fixture_stop(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_blobs_that_stand_for_directories),
        cmocka_unit_test(test_why_it_is_not_authorized),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* layer: s3 */
/* The XML writer escapes whatever it is given; the reader refuses what is broken, too deep, too large or has
 * entities. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "s3/s3_error.h"
#include "s3/xml.h"

struct seen {
    struct buf log; /* "path=text;" of each element */
    int stop_with;
};

static int on_element(void *arg, const char *path, struct slice text)
{
    struct seen *s = arg;

    assert_int_equal(buf_printf(&s->log, "%s=" SLICE_FMT ";", path, SLICE_ARG(text)), 0);
    return s->stop_with;
}

static int parse(const char *document, struct seen *s)
{
    struct err e = {0};

    *s = (struct seen){.log = BUF_INIT(64 * KIB)};
    return xml_parse(slice_str(document), on_element, s, &e);
}

/* Characters with a meaning in XML and control characters are escaped, everything else is left alone. */
static void texts_are_escaped(void **state)
{
    _cleanup_buf_ struct buf b = BUF_INIT(KIB);
    struct xml x = {&b, 0};
    (void)state;

    xml_text(&x, "Key", SLICE_LIT("a&b<c>\"d\"\x01\r\xc3\xa9/"));
    xml_text(&x, "Empty", SLICE_NULL);
    xml_u64(&x, "N", UINT64_MAX);
    xml_bool(&x, "B", true);
    assert_int_equal(x.status, 0);
    assert_string_equal(b.p, "<Key>a&amp;b&lt;c&gt;&quot;d&quot;&#x1;&#xD;\xc3\xa9/</Key><Empty/>"
                             "<N>18446744073709551615</N><B>true</B>");
}

/* What is no text at all becomes U+FFFD, byte by byte, and the document can be read. */
static void texts_that_are_none(void **state)
{
    static const char text[] = "a\xff\xc3\xa9\xe2\x82|\xed\xa0\x80|\xef\xbf\xbe\xf0\x9f\x98\x80\xf0\x9f\0z";
    _cleanup_buf_ struct buf b = BUF_INIT(KIB);
    struct xml x = {&b, 0};
    struct seen s;
    (void)state;

#define NONE "\xef\xbf\xbd"
    xml_text(&x, "Key", SLICE_LIT(text));
    assert_int_equal(x.status, 0);
    assert_int_equal(parse(b.p, &s), 0);
    assert_string_equal(s.log.p, "Key=a" NONE "\xc3\xa9" NONE NONE "|" NONE NONE NONE "|" NONE NONE NONE
                                 "\xf0\x9f\x98\x80" NONE NONE NONE "z;");
#undef NONE
    buf_fini(&s.log);
}

/* A buffer that is too small is reported at the end and not written beyond. */
static void full_buffers_are_reported(void **state)
{
    _cleanup_buf_ struct buf b = BUF_INIT(10);
    struct xml x = {&b, 0};
    (void)state;

    xml_text(&x, "Element", SLICE_LIT("text"));
    assert_int_equal(x.status, -E2BIG);
    assert_true(b.n <= 10);
}

/* Paths and texts of nested elements come in document order, with references resolved. */
static void elements_are_reported(void **state)
{
    struct seen s;
    (void)state;

    assert_int_equal(parse("<?xml version=\"1.0\"?><Delete xmlns=\"urn:x\"><Object><Key>a &amp; b</Key>"
                           "</Object><Quiet>true</Quiet></Delete>",
                           &s),
                     0);
    assert_string_equal(s.log.p, "Delete/Object/Key=a & b;Delete/Object=;Delete/Quiet=true;Delete=;");
    buf_fini(&s.log);
}

/* Writers name their namespaces as they like, and may begin with a byte order mark. */
static void prefixes_of_namespaces_are_left_out(void **state)
{
    struct seen s;
    (void)state;

    assert_int_equal(
        parse("\xef\xbb\xbf<?xml version=\"1.0\"?><s3:Delete xmlns:s3=\"urn:x\"><s3:Object><s3:Key>a:b"
              "</s3:Key></s3:Object><Quiet><![CDATA[true]]></Quiet></s3:Delete>",
              &s),
        0);
    assert_string_equal(s.log.p, "Delete/Object/Key=a:b;Delete/Object=;Delete/Quiet=true;Delete=;");
    buf_fini(&s.log);
}

/* Broken documents, document types, deep nesting and long texts are refused. */
static void bad_documents_are_refused(void **state)
{
    static const char *const documents[] = {
        "",
        "not xml",
        "<a>",
        "<a></b>",
        "<a/><b/>",
        "<!DOCTYPE a [<!ENTITY x \"y\">]><a>&x;</a>",
        "<a><a><a><a><a><a><a><a><a/></a></a></a></a></a></a></a></a>",
        "<a>&undefined;</a>",
        "<a><x:/></a>",
        "<x:/>",
        "<a>\xff\xfe</a>",
    };
    struct seen s;
    (void)state;

    for (size_t i = 0; i < ARRAY_SIZE(documents); i++) {
        assert_int_equal(parse(documents[i], &s), ERR_PROTOCOL);
        buf_fini(&s.log);
    }
    char *longest = malloc(2 * XML_TEXT_MAX + 16);
    memset(longest, 'x', 2 * XML_TEXT_MAX + 8);
    memcpy(longest, "<a>", 3);
    memcpy(longest + 2 * XML_TEXT_MAX, "</a>", 5);
    assert_int_equal(parse(longest, &s), ERR_PROTOCOL);
    buf_fini(&s.log);
    free(longest);
}

/* What the callback says ends the parser and is its result. */
static void callbacks_can_stop(void **state)
{
    struct seen s = {.log = BUF_INIT(KIB), .stop_with = -ECANCELED};
    struct err e = {0};
    (void)state;

    assert_int_equal(xml_parse(SLICE_LIT("<a><b/><c/></a>"), on_element, &s, &e), -ECANCELED);
    assert_string_equal(s.log.p, "a/b=;");
    buf_fini(&s.log);
}

/* An error document can be read back and holds the four fields that clients look for. */
static void error_documents_are_complete(void **state)
{
    _cleanup_buf_ struct buf b = BUF_INIT(4 * KIB);
    struct seen s;
    (void)state;

    assert_int_equal(
        s3_error_xml(&b, S3_ERR_NO_SUCH_KEY, SLICE_NULL, SLICE_LIT("/b/<k>"), "00AB", SLICE_NULL), 0);
    assert_int_equal(parse(b.p, &s), 0);
    assert_string_equal(s.log.p,
                        "Error/Code=NoSuchKey;Error/Message=There is no such key;Error/Resource=/b/<k>;"
                        "Error/RequestId=00AB;Error=;");
    buf_fini(&s.log);
}

/* Every code of the layers below has an answer of 3xx or more. */
static void every_code_is_an_error(void **state)
{
    static const int own[] = {
#define X(name, value, http, text) ERR_##name,
        ERR_TABLE(X)
#undef X
    };
    (void)state;

    for (size_t i = 0; i < ARRAY_SIZE(own); i++)
        assert_true(s3_error_info(s3_error_from(own[i]))->status >= 300);
    for (int code = 1; code < 134; code++)
        assert_true(s3_error_info(s3_error_from(-code))->status >= 400);
    assert_int_equal(s3_error_from(-ENOENT), S3_ERR_NO_SUCH_KEY);
    assert_int_equal(s3_error_from(ERR_ORIGIN_BUSY), S3_ERR_SLOW_DOWN);
    assert_int_equal(s3_error_from(ERR_CORRUPT), S3_ERR_INTERNAL);
    /* What an origin does not take, as a key that is no path there, is no fault inside. */
    assert_int_equal(s3_error_info(s3_error_from(ERR_ORIGIN_REFUSED))->status, 400);
    assert_true(s3_error_wants_text(ERR_ORIGIN_REFUSED));
    /* What only who set the bucket up can mend is not the client's fault; what passes is tried again. */
    assert_int_equal(s3_error_info(s3_error_from(ERR_ORIGIN_SETUP))->status, 502);
    assert_true(s3_error_wants_text(ERR_ORIGIN_SETUP));
    assert_int_equal(s3_error_info(s3_error_from(ERR_ORIGIN_DOWN))->status, 503);
    assert_int_equal(s3_error_info(s3_error_from(-ETIMEDOUT))->status, 503);
    assert_int_equal(s3_error_info(s3_error_from(ERR_ORIGIN_BUSY))->status, 503);
    /* no room is nothing that went wrong within, whoever says it; a client may try again */
    assert_int_equal(s3_error_from(ERR_NOT_ADMITTED), S3_ERR_UNAVAILABLE);
    assert_int_equal(s3_error_from(-ENOSPC), S3_ERR_UNAVAILABLE);
    assert_true(s3_error_wants_text(ERR_NOT_ADMITTED));
    assert_true(s3_error_wants_text(ERR_ORIGIN_FAILED));
    assert_false(s3_error_wants_text(-EIO));
    /* a file of its own that the node may not open is no matter of the client's rights */
    assert_int_equal(s3_error_from(-EACCES), S3_ERR_INTERNAL);
    assert_false(s3_error_wants_text(-EACCES));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_are_escaped),
        cmocka_unit_test(full_buffers_are_reported),
        cmocka_unit_test(elements_are_reported),
        cmocka_unit_test(bad_documents_are_refused),
        cmocka_unit_test(callbacks_can_stop),
        cmocka_unit_test(error_documents_are_complete),
        cmocka_unit_test(every_code_is_an_error),
        cmocka_unit_test(texts_that_are_none),
        cmocka_unit_test(prefixes_of_namespaces_are_left_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

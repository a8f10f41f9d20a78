/* layer: origin */
/* threaded */
/*
 * The Google Cloud Storage kind against a server that answers whatever the test scripts, and its tokens. The
 * same kind against a server that is not ours: test/system/test_origins.py.
 */
#include "origin/gs_internal.h"

#include "base/text.h"
#include "support/clock_sys.h"
#include "web_fixture.h"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rsa.h>

static const char *const plain[] = {"origin.endpoint", "http://127.0.0.1:%p", "origin.part_size", "5MiB",
                                    NULL};

#define JSON(status, length)                                                                                 \
    "HTTP/1.1 " status "\r\nContent-Type: application/json\r\nContent-Length: " length "\r\n\r\n"
#define CLOSED(status) "HTTP/1.1 " status "\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n"
#define RESOURCE(generation, size)                                                                           \
    "{\"name\":\"k\",\"generation\":\"" generation "\",\"size\":\"" size                                     \
    "\",\"updated\":\"2026-01-31T23:59:59.000Z\",\"contentType\":\"a/b\",\"cacheControl\":\"no\","           \
    "\"metadata\":{\"Colour\":\"red\",\"bad\":\"two\\nlines\"}}"
#define MEDIA(range, length)                                                                                 \
    "HTTP/1.1 206 Partial Content\r\nx-goog-generation: 7\r\nContent-Range: bytes " range                    \
    "\r\nContent-Length: " length "\r\n\r\n"

/* ---- reads ---- */

/* Attributes come from the resource: generation as version, headers and metadata under S3's names, broken
 * lines left out. */
static void test_stat(void **state)
{
    static const struct script_step steps[] = {
        {.answer = CLOSED("200 OK") RESOURCE("42", "1000"), .close = true}};
    struct web_fixture f;
    struct origin_attr attr;
    struct err e;
    web_fixture_start(&f, "gs://bucket/pre fix", steps, ARRAY_SIZE(steps), plain);
    WEB_FIXTURE_OK(web_fixture_stat(&f, &attr, &e), e);
    assert_true(slice_eq_str(attr.etag, "42") && attr.size_bytes == 1000 && attr.mtime_ns > 0);
    assert_true(slice_eq_str(attr.content_type, "a/b"));
    assert_true(slice_eq_str(attr.meta, "x-amz-meta-colour: red\ncache-control: no\n"));
    assert_non_null(
        strstr(script_head(&f.script, 0), "GET /storage/v1/b/bucket/o/pre%20fix%2Fk HTTP/1.1\r\n"));
    assert_null(script_header(script_head(&f.script, 0), "authorization"));
    web_fixture_stop(&f);
}

static int keep_meta(void *arg, const struct origin_attr *attr, const void *p, size_t n)
{
    (void)p, (void)n;
    assert_int_equal(attr->meta.n, 0);
    assert_true(slice_eq_str(attr->content_type, "a/b"));
    (*(unsigned *)arg)++;
    return 0;
}

/* What the headers of bytes say of caching, disposition and metadata is not the object's: the service puts
 * its own there, and leaves the user's metadata out. (Without tells_bytes_alone in gs.c it is taken for it.)
 */
static void test_bytes_tell_no_metadata(void **state)
{
    static const struct script_step steps[] = {
        {.answer = "HTTP/1.1 206 Partial Content\r\nx-goog-generation: 7\r\nContent-Range: bytes 0-39/100\r\n"
                   "Content-Length: 40\r\nContent-Type: a/b\r\nContent-Disposition: attachment\r\n"
                   "Cache-Control: no-cache, no-store, max-age=0, must-revalidate\r\n"
                   "Expires: Mon, 01 Jan 1990 00:00:00 GMT\r\nx-goog-meta-a: emulators\r\n\r\n",
         .pad = 40}};
    struct web_fixture f;
    struct origin_get g = {.key = SLICE_LIT("k"), .n = 40};
    struct origin_attr attr;
    struct err e = {0};
    unsigned calls = 0;
    web_fixture_start(&f, "gs://bucket", steps, ARRAY_SIZE(steps), plain);
    WEB_FIXTURE_OK(origin_get(f.origin, &g, f.arena, &attr, keep_meta, &calls, &e), e);
    assert_true(calls > 0 && attr.meta.n == 0);
    assert_true(f.origin->capabilities & ORIGIN_BYTES_ALONE);
    web_fixture_stop(&f);
}

/* A read is pinned by the generation, asks for stored bytes, and refuses whatever else comes. */
static void test_wrong_answers(void **state)
{
    static const struct {
        struct script_step step;
        int code;
        const char *text;
    } cases[] = {
        {{.answer = MEDIA("50-149/1000", "100"), .pad = 100}, 0, NULL},
        {{.answer = MEDIA("50-149/1000", "100"), .pad = 40, .close = true}, ERR_ORIGIN_SHORT, NULL},
        {{.answer = MEDIA("50-149/1000", "90"), .pad = 90}, ERR_ORIGIN_SHORT, "Content-Length 90"},
        {{.answer = MEDIA("0-99/1000", "100"), .pad = 100}, ERR_ORIGIN_SHORT, "asked for bytes 50-149"},
        {{.answer = "HTTP/1.1 206 OK\r\nx-goog-generation: 8\r\nContent-Range: bytes 50-149/1000\r\n"
                    "Content-Length: 100\r\n\r\n",
          .pad = 100},
         ERR_PRECONDITION,
         "no longer 7"},
        {{.answer = CLOSED("404 Not Found") "No such object", .close = true}, -ENOENT, "No such object"},
        {{.answer = CLOSED("404 Not Found") "\n<!DOCTYPE html><title>a proxy", .close = true},
         ERR_ORIGIN_FAILED,
         "no answer of the service: 404 Not Found"},
        {{.answer = CLOSED(
              "403 Forbidden") "{\"error\":{\"code\":403,\"message\":\"no way\",\"errors\":[{\"reason\":"
                               "\"forbidden\"}]}}",
          .close = true},
         ERR_ORIGIN_DENIED,
         "403 forbidden: no way"},
        {{.answer = CLOSED("403 Forbidden") "{\"error\":{\"message\":\"x\",\"errors\":[{\"reason\":"
                                            "\"userRateLimitExceeded\"}]}}",
          .close = true},
         ERR_ORIGIN_BUSY,
         "userRateLimitExceeded"},
        {{.answer = CLOSED("412 Precondition Failed"), .close = true}, ERR_PRECONDITION, "412"},
        {{.answer = CLOSED("429 Too Many Requests"), .close = true}, ERR_ORIGIN_BUSY, "429"},
        {{.answer = CLOSED("500 Oh"), .close = true}, ERR_ORIGIN_FAILED, "500 Oh"},
        {{.answer = CLOSED("503 Oh"), .close = true}, ERR_ORIGIN_BUSY, "503"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct web_fixture f;
        struct web_sink s;
        struct err e;
        web_fixture_start(&f, "gs://bucket", &cases[i].step, 1, plain);
        assert_int_equal(web_fixture_get(&f, 50, 100, "7", &s, &e), cases[i].code);
        if (cases[i].text && !strstr(e.text, cases[i].text))
            fail_msg("\"%s\" is not in \"%s\"", cases[i].text, e.text);
        const char *head = script_head(&f.script, 0);
        assert_non_null(
            strstr(head, "GET /storage/v1/b/bucket/o/k?alt=media&ifGenerationMatch=7 HTTP/1.1\r\n"));
        assert_non_null(strstr(head, "Accept-Encoding: gzip\r\n"));
        if (cases[i].code == ERR_PRECONDITION)
            assert_int_equal(s.calls, 0);
        web_fixture_stop(&f);
    }
}

/* A range of an empty object is refused by the service; its attributes say that nothing is wrong. */
static void test_empty_object(void **state)
{
    static const struct script_step steps[] = {
        {.answer = JSON("416 Requested range not satisfiable", "0")},
        {.answer = CLOSED("200 OK") RESOURCE("9", "0"), .close = true},
    };
    struct web_fixture f;
    struct web_sink s;
    struct err e;
    web_fixture_start(&f, "gs://bucket", steps, ARRAY_SIZE(steps), plain);
    WEB_FIXTURE_OK(web_fixture_get(&f, 0, 1000, "9", &s, &e), e);
    assert_true(s.calls == 1 && s.bytes == 0);
    web_fixture_stop(&f);
}

/* ---- writes ---- */

struct paid {
    uint64_t bytes;
    unsigned turns;
};

static void on_moved(void *arg, uint64_t bytes)
{
    ((struct paid *)arg)->bytes += bytes;
}

/* Every second time it is to look again in a millisecond. */
static uint64_t on_turn(void *arg)
{
    return ++((struct paid *)arg)->turns % 2;
}

/* A resumable upload goes on where the service says it stands, asks after a failure, and ends with the last
 * chunk. It waits for its turn before each chunk, and pays for the bytes of all that it sends, those of the
 * chunk that failed among them. (Without origin_wait_turn in gs_upload.c, and origin_moved in web_conn.c.) */
static void test_resumable(void **state)
{
    char location[160];
    struct script_step steps[] = {
        {.answer = location},
        {.answer = "HTTP/1.1 308 Resume\r\nRange: bytes=0-5242879\r\nContent-Length: 0\r\n\r\n"},
        {.answer = CLOSED("503 Slow"), .close = true}, /* a chunk fails */
        {.answer =
             "HTTP/1.1 308 Resume\r\nRange: bytes=0-6291455\r\nContent-Length: 0\r\n\r\n"}, /* asked: 6 MiB */
        {.answer = CLOSED("200 OK") RESOURCE("77", "10485760"), .close = true},
    };
    struct web_fixture f;
    struct origin_attr attr;
    struct err e;
    web_fixture_start(&f, "gs://bucket", steps, ARRAY_SIZE(steps), plain);
    (void)snprintf(
        location, sizeof(location),
        "HTTP/1.1 200 OK\r\nLocation: http://127.0.0.1:%u/session?id=1\r\nContent-Length: 0\r\n\r\n",
        f.script.port);
    struct paid paid = {0};
    const struct origin_meter meter = {.moved = on_moved, .turn = on_turn};
    f.origin->meter = &meter;
    f.origin->meter_arg = &paid;
    WEB_FIXTURE_OK(web_fixture_put(&f, 10 * MIB, &attr, &e), e);
    assert_int_equal(paid.turns, 4);
    assert_in_range(paid.bytes, 9 * MIB, 14 * MIB); /* 5 and 4 MiB, and what went of 5 */
    assert_true(slice_eq_str(attr.etag, "77") && attr.size_bytes == 10 * MIB);
    static const char *const ranges[] = {NULL, "bytes 0-5242879/10485760", "bytes 5242880-10485759/10485760",
                                         "bytes */10485760", "bytes 6291456-10485759/10485760"};
    for (size_t i = 1; i < ARRAY_SIZE(ranges); i++) {
        const char *range = script_header(script_head(&f.script, i), "content-range");
        if (!range || strncmp(range, ranges[i], strlen(ranges[i])) != 0)
            fail_msg("%zu: %s", i, script_head(&f.script, i));
        assert_non_null(strstr(script_head(&f.script, i), "PUT /session?id=1 HTTP/1.1"));
    }
    web_fixture_stop(&f);
}

/* Busy says that nothing was done: not when the last chunk may have made the object. */
static void test_resumable_lost_end(void **state)
{
    char location[160];
    struct script_step steps[] = {
        {.answer = location},
        {.answer = "HTTP/1.1 308 Resume\r\nRange: bytes=0-5242879\r\nContent-Length: 0\r\n\r\n"},
        {.answer = CLOSED("500 Oh"), .close = true},
        {.answer = CLOSED("503 Slow"), .close = true},
        {.answer = CLOSED("503 Slow"), .close = true},
        {.answer = CLOSED("503 Slow"), .close = true},
        {.answer = JSON("499 Gone", "0")},
    };
    struct web_fixture f;
    struct origin_attr attr;
    struct err e;
    web_fixture_start(&f, "gs://bucket", steps, ARRAY_SIZE(steps), plain);
    (void)snprintf(location, sizeof(location),
                   "HTTP/1.1 200 OK\r\nLocation: http://127.0.0.1:%u/s\r\nContent-Length: 0\r\n\r\n",
                   f.script.port);
    if (web_fixture_put(&f, 10 * MIB, &attr, &e) != ERR_ORIGIN_FAILED)
        fail_msg("%s", e.text);
    assert_non_null(strstr(e.text, "was lost, and now: 503"));
    assert_int_equal(strncmp(script_head(&f.script, 6), "DELETE /s ", 10), 0);
    web_fixture_stop(&f);
}

/* A service that claims bytes that were never sent, or stands still, ends the upload; the session is given
 * up. */
static void test_resumable_nonsense(void **state)
{
    static const char *const ranges[] = {"Range: bytes=0-9999999\r\n", ""};
    for (size_t i = 0; i < ARRAY_SIZE(ranges); i++) {
        char location[160], answer[160];
        struct script_step steps[] = {
            {.answer = location}, {.answer = answer}, {.answer = JSON("499 Gone", "0")}};
        struct web_fixture f;
        struct origin_attr attr;
        struct err e;
        web_fixture_start(&f, "gs://bucket", steps, ARRAY_SIZE(steps), plain);
        (void)snprintf(location, sizeof(location),
                       "HTTP/1.1 200 OK\r\nLocation: http://127.0.0.1:%u/s\r\nContent-Length: 0\r\n\r\n",
                       f.script.port);
        (void)snprintf(answer, sizeof(answer), "HTTP/1.1 308 Resume\r\n%sContent-Length: 0\r\n\r\n",
                       ranges[i]);
        if (web_fixture_put(&f, 10 * MIB, &attr, &e) != ERR_ORIGIN_FAILED)
            fail_msg("%s", e.text);
        assert_int_equal(strncmp(script_head(&f.script, 2), "DELETE /s ", 10), 0);
        web_fixture_stop(&f);
    }
}

/* Small objects go in one request; an object that came out shorter than it was sent is no success. */
static void test_single(void **state)
{
    static const struct script_step steps[] = {
        {.answer = CLOSED("200 OK") RESOURCE("5", "100"), .close = true},
        {.answer = CLOSED("200 OK") RESOURCE("5", "99"), .close = true},
        {.answer = CLOSED("412 Precondition Failed"), .close = true},
        {.answer = CLOSED("200 OK") RESOURCE("6", "10"), .close = true},
    };
    struct web_fixture f;
    struct origin_attr attr;
    struct err e;
    web_fixture_start(&f, "gs://bucket", steps, ARRAY_SIZE(steps), plain);
    WEB_FIXTURE_OK(web_fixture_put(&f, 100, &attr, &e), e);
    assert_non_null(
        strstr(script_head(&f.script, 0), "POST /upload/storage/v1/b/bucket/o?uploadType=multipart "));
    assert_int_equal(web_fixture_put(&f, 100, &attr, &e), ERR_ORIGIN_SHORT);
    struct origin_put p = {.key = SLICE_LIT("k"), .if_none_match = true};
    struct origin_body b = {.size_bytes = 10, .read = web_fixture_bytes};
    assert_int_equal(origin_put(f.origin, &p, &b, f.arena, &attr, &e), ERR_PRECONDITION);
    assert_non_null(strstr(script_head(&f.script, 2), "&ifGenerationMatch=0 "));
    p = (struct origin_put){.key = SLICE_LIT("k"), .if_match = SLICE_LIT("*")}; /* whatever is there */
    WEB_FIXTURE_OK(origin_put(f.origin, &p, &b, f.arena, &attr, &e), e);
    assert_non_null(strstr(script_head(&f.script, 3), "&ifGenerationNotMatch=0 "));
    p = (struct origin_put){.key = SLICE_LIT("k"), .if_match = SLICE_LIT("not-a-generation")};
    assert_int_equal(origin_put(f.origin, &p, &b, f.arena, &attr, &e), ERR_PRECONDITION);
    p = (struct origin_put){.key = SLICE_LIT("k"), .meta = SLICE_LIT("x-amz-meta-a: \xff\xfe\n")};
    assert_int_equal(origin_put(f.origin, &p, &b, f.arena, &attr, &e), -EINVAL);
    web_fixture_stop(&f);
}

/* A removal of whatever is there names no generation. */
static void test_remove_of_any(void **state)
{
    static const struct script_step steps[] = {
        {.answer = CLOSED("200 OK") RESOURCE("5", "100"), .close = true},
        {.answer = CLOSED("204 No Content"), .close = true},
    };
    struct web_fixture f;
    struct err e = {0};
    web_fixture_start(&f, "gs://bucket", steps, ARRAY_SIZE(steps), plain);
    WEB_FIXTURE_OK(origin_remove(f.origin, SLICE_LIT("k"), SLICE_LIT("*"), &e), e);
    assert_non_null(strstr(script_head(&f.script, 1), "?ifGenerationNotMatch=0 "));
    web_fixture_stop(&f);
}

/* A copy takes as many calls as the service wants, each with the token of the one before. */
static void test_rewrite(void **state)
{
    static const struct script_step steps[] = {
        {.answer = CLOSED("200 OK") RESOURCE("3", "100"), .close = true},
        {.answer = CLOSED("200 OK") "{\"done\":false,\"rewriteToken\":\"t/1\"}", .close = true},
        {.answer = CLOSED("200 OK") "{\"done\":true,\"resource\":" RESOURCE("4", "100") "}", .close = true},
        {.answer = CLOSED("200 OK") RESOURCE("3", "100"), .close = true},
        {.answer = CLOSED("200 OK") "{\"done\":false}", .close = true},
    };
    struct web_fixture f;
    struct origin_attr attr;
    struct err e = {0};
    web_fixture_start(&f, "gs://bucket/p", steps, ARRAY_SIZE(steps), plain);
    WEB_FIXTURE_OK(origin_copy(f.origin, SLICE_LIT("a"), SLICE_LIT("b"), SLICE_NULL, f.arena, &attr, &e), e);
    assert_true(slice_eq_str(attr.etag, "4"));
    assert_non_null(
        strstr(script_head(&f.script, 1), "/o/p%2Fa/rewriteTo/b/bucket/o/p%2Fb?ifSourceGenerationMatch=3 "));
    assert_non_null(strstr(script_head(&f.script, 2), "&rewriteToken=t%2F1 "));
    assert_int_equal(origin_copy(f.origin, SLICE_LIT("a"), SLICE_LIT("b"), SLICE_NULL, f.arena, &attr, &e),
                     ERR_ORIGIN_FAILED);
    web_fixture_stop(&f);
}

/* Metadata is a patch of the generation that is meant; the generation stays. */
static void test_set_meta(void **state)
{
    static const struct script_step steps[] = {
        {.answer = CLOSED("200 OK") RESOURCE("3", "100"), .close = true},
        {.answer = CLOSED("412 Precondition Failed"), .close = true},
    };
    struct web_fixture f;
    struct origin_attr attr;
    struct err e = {0};
    web_fixture_start(&f, "gs://bucket/p", steps, ARRAY_SIZE(steps), plain);
    struct origin_put p = {
        .key = SLICE_LIT("a"), .meta = SLICE_LIT("x-amz-meta-mode: 33188\n"), .if_match = SLICE_LIT("3")};
    WEB_FIXTURE_OK(origin_set_meta(f.origin, &p, 100, f.arena, &attr, &e), e);
    assert_true(slice_eq_str(attr.etag, "3"));
    assert_non_null(
        strstr(script_head(&f.script, 0), "PATCH /storage/v1/b/bucket/o/p%2Fa?ifGenerationMatch=3 "));
    assert_int_equal(origin_set_meta(f.origin, &p, 100, f.arena, &attr, &e), ERR_PRECONDITION);
    web_fixture_stop(&f);
}

/* ---- listings ---- */

/* Pages are told in order; a page that is longer than asked is cut where nothing can be missing, and gone on
 * from there. */
static void test_pages(void **state)
{
    static const struct script_step steps[] = {
        {.answer = CLOSED(
             "200 OK") "{\"items\":[{\"name\":\"p/b\",\"generation\":\"1\",\"size\":\"2\"},{\"name\":\"p/d\","
                       "\"generation\":\"1\"}],\"nextPageToken\":\"next\"}",
         .close = true},
        {.answer = CLOSED("200 OK") "{\"items\":[{\"name\":\"p/e\",\"generation\":\"1\"}],\"prefixes\":[\"p/"
                                    "c/\",\"p/z/\"],"
                                    "\"nextPageToken\":\"p/f\"}",
         .close = true},
        {.answer = CLOSED("200 OK") "{}", .close = true},
        {.answer = CLOSED("200 OK") "{\"items\":[{\"name\":\"outside\",\"generation\":\"1\"}]}",
         .close = true},
        {.answer = CLOSED("200 OK") "{\"items\":[{\"name\":\"p/x\"}]}", .close = true},
        {.answer = CLOSED("200 OK") "<html>", .close = true},
    };
    struct web_fixture f;
    struct origin_page page;
    struct err e = {0};
    web_fixture_start(&f, "gs://bucket/p", steps, ARRAY_SIZE(steps), plain);
    struct origin_list l = {.max = 2, .delimiter = '/', .after = SLICE_LIT("a")};
    WEB_FIXTURE_OK(origin_list(f.origin, &l, f.arena, &page, &e), e);
    assert_true(page.n == 2 && page.truncated && slice_eq_str(page.entries[1].key, "d"));
    assert_non_null(strstr(script_head(&f.script, 0), "maxResults=3&"));
    assert_non_null(strstr(script_head(&f.script, 0), "&startOffset=p%2Fa "));
    l = (struct origin_list){.max = 2, .delimiter = '/', .token = page.next_token};
    WEB_FIXTURE_OK(origin_list(f.origin, &l, f.arena, &page, &e), e);
    assert_non_null(strstr(script_head(&f.script, 1), "&pageToken=next "));
    assert_true(page.n == 2 && page.truncated && slice_eq_str(page.entries[0].key, "c/") &&
                page.entries[0].is_prefix && slice_eq_str(page.entries[1].key, "e"));
    l.token = page.next_token;
    WEB_FIXTURE_OK(origin_list(f.origin, &l, f.arena, &page, &e), e);
    assert_non_null(strstr(script_head(&f.script, 2), "&startOffset=p%2Fe "));
    assert_true(page.n == 0 && !page.truncated);
    for (int i = 0; i < 3; i++)
        assert_int_equal(origin_list(f.origin, &l, f.arena, &page, &e), ERR_ORIGIN_FAILED);
    web_fixture_stop(&f);
}

/* "." and ".." as a whole are not sent: the address of such an object would be the bucket's own, which a
 * removal would then mean. Below a prefix, and in longer names, dots are a name's own: its slashes are
 * encoded. */
static void test_names_that_lead_away(void **state)
{
    static const struct script_step steps[] = {{.answer = CLOSED("404 Not Found"), .close = true}};
    struct web_fixture f;
    struct origin_attr attr;
    struct web_sink s = {0};
    struct err e = {0};
    web_fixture_start(&f, "gs://bucket", steps, ARRAY_SIZE(steps), plain);
    for (int i = 1; i <= 2; i++) {
        struct origin_get g = {.key = slice_sub(SLICE_LIT(".."), 0, (size_t)i), .whole = true};
        assert_int_equal(origin_get(f.origin, &g, f.arena, &attr, web_sink_take, &s, &e), -EINVAL);
        assert_int_equal(origin_remove(f.origin, g.key, SLICE_NULL, &e), -EINVAL);
    }
    assert_int_equal(script_connections(&f.script), 0);
    assert_int_equal(origin_remove(f.origin, SLICE_LIT("../.."), SLICE_NULL, &e), -ENOENT);
    assert_non_null(strstr(script_head(&f.script, 0), "/b/bucket/o/..%2F.. HTTP/1.1"));
    web_fixture_stop(&f);
    web_fixture_start(&f, "gs://bucket/p", steps, ARRAY_SIZE(steps), plain);
    assert_int_equal(origin_remove(f.origin, SLICE_LIT(".."), SLICE_NULL, &e), -ENOENT);
    assert_non_null(strstr(script_head(&f.script, 0), "/b/bucket/o/p%2F.. HTTP/1.1"));
    web_fixture_stop(&f);
}

/* A token of a page that is longer than any is refused: it would not fit into what the request has. */
static void test_endless_token(void **state)
{
    static const char head[] = CLOSED("200 OK") "{\"nextPageToken\":\"", tail[] = "\"}";
    const size_t n = 9 * MIB;
    char *answer = malloc(sizeof(head) + n + sizeof(tail));
    assert_non_null(answer);
    memcpy(answer, head, sizeof(head) - 1);
    memset(answer + sizeof(head) - 1, 'x', n);
    memcpy(answer + sizeof(head) - 1 + n, tail, sizeof(tail));
    const struct script_step step = {.answer = answer, .close = true};
    struct web_fixture f;
    struct origin_page page;
    struct err e = {0};
    web_fixture_start(&f, "gs://bucket", &step, 1, plain);
    struct origin_list l = {.max = 2};
    assert_int_equal(origin_list(f.origin, &l, f.arena, &page, &e), ERR_ORIGIN_FAILED);
    assert_non_null(strstr(e.text, "the page's token has 9437184 bytes"));
    web_fixture_stop(&f);
    free(answer);
}

/* ---- tokens ---- */

static struct {
    char path[64];
    EVP_PKEY *key;
} T;

/* A credentials file of a service account with a fresh key, whose tokens come from the port. */
static void write_account(uint16_t port)
{
    BIO *bio = BIO_new(BIO_s_mem());
    char *pem;
    assert_int_equal(PEM_write_bio_PKCS8PrivateKey(bio, T.key, NULL, NULL, 0, NULL, NULL), 1);
    long n = BIO_get_mem_data(bio, &pem);
    json_t *j = json_pack("{s:s, s:s, s:s, s:s%, s:o}", "type", "service_account", "client_email",
                          "robot@example.invalid", "private_key_id", "kid1", "private_key", pem, (size_t)n,
                          "token_uri", json_sprintf("http://127.0.0.1:%u/token", port));
    assert_int_equal(json_dump_file(j, T.path, 0), 0);
    json_decref(j);
    BIO_free(bio);
}

static struct buf unbase64url(struct slice s)
{
    struct buf text = BUF_INIT(8192), plain_text = BUF_INIT(8192);
    assert_int_equal(buf_slice(&text, s), 0);
    for (size_t i = 0; i < text.n; i++)
        text.p[i] = text.p[i] == '-' ? '+' : text.p[i] == '_' ? '/' : text.p[i];
    while (text.n % 4)
        assert_int_equal(buf_char(&text, '='), 0);
    assert_int_equal(text_unbase64(&plain_text, buf_view(&text)), 0);
    buf_fini(&text);
    return plain_text;
}

static struct gs_token *open_token(const char *option, const char *value)
{
    struct origin_options o;
    struct err e = {0};
    struct gs_token *t = NULL;
    assert_int_equal(option_init(&origin_option_table, &o, &e), 0);
    web_fixture_option(&o, option, value);
    WEB_FIXTURE_OK(gs_token_new(&o, /* emulator= */ false, &t, &e), e);
    option_fini(&origin_option_table, &o);
    return t;
}

/* The assertion has the claims that the service wants, for an hour, and a signature that the public key
 * confirms. */
static void test_assertion(void **state)
{
    write_account(1);
    struct gs_token *t = open_token("origin.credentials_file", T.path);
    struct buf b = BUF_INIT(8192);
    struct err e = {0};
    WEB_FIXTURE_OK(gs_token_assertion(t, 1000000, &b, &e), e);
    struct slice rest = buf_view(&b), head = slice_split(&rest, '.'), claims = slice_split(&rest, '.');
    struct buf text = unbase64url(claims), signature = unbase64url(rest), first = unbase64url(head);
    assert_string_equal(first.p, "{\"alg\":\"RS256\",\"typ\":\"JWT\",\"kid\":\"kid1\"}");
    assert_non_null(strstr(text.p, "\"iss\":\"robot@example.invalid\""));
    assert_non_null(strstr(text.p, "\"iat\":1000000,\"exp\":1003600"));
    EVP_MD_CTX *c = EVP_MD_CTX_new();
    assert_int_equal(EVP_DigestVerifyInit(c, NULL, EVP_sha256(), NULL, T.key), 1);
    assert_int_equal(EVP_DigestVerify(c, (unsigned char *)signature.p, signature.n, (unsigned char *)b.p,
                                      head.n + 1 + claims.n),
                     1);
    EVP_MD_CTX_free(c);
    buf_fini(&text);
    buf_fini(&signature);
    buf_fini(&first);
    buf_fini(&b);
    gs_token_free(t);
}

#define TOKEN(name, life) CLOSED("200 OK") "{\"access_token\":\"" name "\",\"expires_in\":" life "}"

/* A token is asked for once and kept; one that soon ends is renewed, though not with each request; when that
 * fails the old one is still used, and nobody waits for the next try but seldom. */
static void test_renewal(void **state)
{
    static const struct script_step steps[] = {
        {.answer = TOKEN("first", "100"), .close = true},
        {.answer = CLOSED("500 Oh"), .close = true},
        {.answer = TOKEN("second", "3600"), .close = true},
        {.answer =
             CLOSED("400 Bad") "{\"error\":\"invalid_grant\",\"error_description\":\"key was deleted\"}",
         .close = true},
    };
    struct script s;
    clock_sys_start(1000000000000, 1000000000000000000);
    script_start(&s, steps, ARRAY_SIZE(steps));
    write_account(s.port);
    struct gs_token *t = open_token("origin.credentials_file", T.path);
    static const char *const expected[] = {"first", "first", "first", "first", "second", "second"};
    static const size_t asked[] = {1, 1, 2, 2, 3, 3};
    uint64_t version = 0, first = 0;
    for (size_t i = 0; i < ARRAY_SIZE(expected); i++) {
        if (i == 2 || i == 4)
            clock_sys_advance(10000000000);
        struct buf b = BUF_INIT(8192);
        struct err e = {0};
        WEB_FIXTURE_OK(gs_token_get(t, &b, &version, &e), e);
        assert_string_equal(b.p, expected[i]);
        assert_int_equal(script_steps_taken(&s), asked[i]);
        first = i == 0 ? version : first;
        if (i == 4) /* a late refusal of the one before */
            gs_token_drop(t, first);
        buf_fini(&b);
    }
    gs_token_drop(t, version);
    struct buf b = BUF_INIT(8192);
    struct err e = {0};
    assert_int_equal(gs_token_get(t, &b, &version, &e), ERR_ORIGIN_DENIED);
    assert_non_null(strstr(e.text, "invalid_grant: key was deleted"));
    gs_token_free(t);
    buf_fini(&b);
    script_stop(&s);
    clock_sys_stop();
}

/* Metadata services give the same token until shortly before its end, which may be later than it is renewed:
 * they are not asked for each request meanwhile. (Seen to fail: asked four times.) */
static void test_a_token_that_is_given_again(void **state)
{
    static const struct script_step steps[] = {
        {.answer = TOKEN("same", "290"), .close = true}, {.answer = TOKEN("same", "280"), .close = true},
        {.answer = TOKEN("same", "270"), .close = true}, {.answer = TOKEN("same", "260"), .close = true},
        {.answer = TOKEN("new", "3600"), .close = true},
    };
    struct script s;
    char service[64];
    static const size_t asked[] = {1, 1, 1, 1, 2, 2};
    clock_sys_start(1000000000000, 1000000000000000000);
    script_start(&s, steps, ARRAY_SIZE(steps));
    (void)snprintf(service, sizeof(service), "http://127.0.0.1:%u", s.port);
    struct gs_token *t = open_token("origin.metadata_endpoint", service);
    for (size_t i = 0; i < ARRAY_SIZE(asked); i++) {
        struct buf _cleanup_buf_ b = BUF_INIT(8192);
        struct err e = {0};
        uint64_t version;
        if (i == 4)
            clock_sys_advance(10000000000);
        WEB_FIXTURE_OK(gs_token_get(t, &b, &version, &e), e);
        assert_int_equal(script_steps_taken(&s), asked[i]);
    }
    gs_token_free(t);
    script_stop(&s);
    clock_sys_stop();
}

/* The metadata service is asked with its header, and its token goes with the requests; 401 makes a new one be
 * asked for. */
static void test_metadata_service(void **state)
{
    static const struct script_step steps[] = {
        {.answer = TOKEN("one", "3600"), .close = true},
        {.answer = CLOSED("401 Unauthorized"), .close = true},
        {.answer = TOKEN("two", "3600"), .close = true},
        {.answer = CLOSED("200 OK") RESOURCE("42", "1"), .close = true},
    };
    static const char *const options[] = {"origin.endpoint", "http://127.0.0.1:%p",
                                          "origin.metadata_endpoint", "http://127.0.0.1:%p", NULL};
    struct web_fixture f;
    struct origin_attr attr;
    struct err e;
    web_fixture_start(&f, "gs://bucket", steps, ARRAY_SIZE(steps), options);
    WEB_FIXTURE_OK(web_fixture_stat(&f, &attr, &e), e);
    assert_non_null(strstr(script_head(&f.script, 0),
                           "GET /computeMetadata/v1/instance/service-accounts/default/token "));
    assert_non_null(strstr(script_head(&f.script, 0), "metadata-flavor: Google\r\n"));
    assert_non_null(strstr(script_head(&f.script, 1), "Authorization: Bearer one\r\n"));
    assert_non_null(strstr(script_head(&f.script, 3), "Authorization: Bearer two\r\n"));
    web_fixture_stop(&f);
}

/* The session of an upload may lie elsewhere, also where its address begins like the endpoint's: the token
 * does not go there. */
static void test_token_stays_at_the_endpoint(void **state)
{
    char location[200];
    struct script_step steps[] = {{.answer = TOKEN("secret", "3600"), .close = true}, {.answer = location}};
    static const struct script_step end[] = {
        {.answer = CLOSED("200 OK") RESOURCE("5", "10485760"), .close = true}};
    static const char *const options[] = {"origin.endpoint",
                                          "http://127.0.0.1:%p",
                                          "origin.metadata_endpoint",
                                          "http://127.0.0.1:%p",
                                          "origin.part_size",
                                          "10MiB",
                                          NULL};
    struct script elsewhere;
    struct web_fixture f;
    struct origin_attr attr;
    struct err e;
    script_start(&elsewhere, end, ARRAY_SIZE(end));
    web_fixture_start(&f, "gs://bucket", steps, ARRAY_SIZE(steps), options);
    (void)snprintf(
        location, sizeof(location),
        "HTTP/1.1 200 OK\r\nLocation: http://127.0.0.1:%u@127.0.0.1:%u/s\r\nContent-Length: 0\r\n\r\n",
        f.script.port, elsewhere.port);
    WEB_FIXTURE_OK(web_fixture_put(&f, 10 * MIB, &attr, &e), e);
    assert_non_null(strstr(script_head(&f.script, 1), "Authorization: Bearer secret\r\n"));
    assert_int_equal(strncmp(script_head(&elsewhere, 0), "PUT /s ", 7), 0);
    assert_null(strstr(script_head(&elsewhere, 0), "secret"));
    web_fixture_stop(&f);
    script_stop(&elsewhere);
}

/* A token service that knows nobody says nothing about objects; a machine without a service account sends
 * anonymous requests. */
static void test_no_token_is_no_absence(void **state)
{
    static const struct script_step steps[] = {
        {.answer = CLOSED("404 Not Found") "no such account", .close = true}};
    static const struct script_step anonymous[] = {
        {.answer = CLOSED("404 Not Found"), .close = true},
        {.answer = CLOSED("200 OK") RESOURCE("42", "1"), .close = true},
        {.answer = CLOSED("200 OK") RESOURCE("42", "1"), .close = true},
    };
    static const char *const options[] = {"origin.endpoint", "http://127.0.0.1:%p",
                                          "origin.metadata_endpoint", "http://127.0.0.1:%p", NULL};
    struct script s;
    struct buf b = BUF_INIT(8192);
    uint64_t version;
    struct web_fixture f;
    struct origin_attr attr;
    struct err e = {0};
    script_start(&s, steps, ARRAY_SIZE(steps));
    write_account(s.port);
    struct gs_token *t = open_token("origin.credentials_file", T.path);
    assert_int_equal(gs_token_get(t, &b, &version, &e), ERR_ORIGIN_DENIED);
    assert_int_equal(e.code, ERR_ORIGIN_DENIED);
    assert_non_null(strstr(e.text, "404 Not Found: no such account"));
    gs_token_free(t);
    buf_fini(&b);
    script_stop(&s);
    web_fixture_start(&f, "gs://bucket", anonymous, ARRAY_SIZE(anonymous), options);
    for (int i = 0; i < 2; i++)
        WEB_FIXTURE_OK(web_fixture_stat(&f, &attr, &e), e);
    assert_null(script_header(script_head(&f.script, 1), "authorization"));
    assert_null(script_header(script_head(&f.script, 2), "authorization"));
    web_fixture_stop(&f);
}

/* Files that are no credentials are told by name, and nothing of them is. */
static void test_bad_files(void **state)
{
    static const char *const texts[] = {"", "{}", "not json",
                                        "{\"type\":\"service_account\",\"client_email\":\"a\"}",
                                        "{\"type\":\"authorized_user\",\"client_secret\":\"hush\"}"};
    for (size_t i = 0; i < ARRAY_SIZE(texts); i++) {
        struct origin_options o;
        struct origin *x = NULL;
        struct err e = {0};
        FILE *f = fopen(T.path, "w");
        assert_true(f && fputs(texts[i], f) >= 0 && fclose(f) == 0);
        assert_int_equal(option_init(&origin_option_table, &o, &e), 0);
        web_fixture_option(&o, "origin.credentials_file", T.path);
        assert_int_equal(origin_open("gs://b", &o, "t", &x, &e), ERR_BAD_OPTION);
        assert_true(strstr(e.text, T.path) && !strstr(e.text, "hush"));
        option_fini(&origin_option_table, &o);
    }
}

/* Whose project pays is said with each request, and with none without origin.billing_project. */
static void test_billing_project(void **state)
{
    static const struct script_step steps[] = {
        {.answer = CLOSED("200 OK") RESOURCE("42", "1000"), .close = true}};
    static const char *const pays[] = {"origin.endpoint", "http://127.0.0.1:%p", "origin.billing_project",
                                       "my-project", NULL};
    for (size_t i = 0; i < 2; i++) {
        struct web_fixture f;
        struct origin_attr attr;
        struct err e;
        web_fixture_start(&f, "gs://bucket", steps, ARRAY_SIZE(steps), i == 0 ? pays : plain);
        WEB_FIXTURE_OK(web_fixture_stat(&f, &attr, &e), e);
        const char *found = script_header(script_head(&f.script, 0), "x-goog-user-project");
        assert_true(i == 0 ? found && strncmp(found, "my-project\r\n", 12) == 0 : !found);
        web_fixture_stop(&f);
    }
}

/* With origin.anonymous the file that the environment names is not looked at. */
static void test_anonymous(void **state)
{
    (void)setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nonexistent/account.json", 1);
    for (size_t is_set = 0; is_set < 2; is_set++) {
        struct origin_options o;
        struct err e = {0};
        struct origin *x = NULL;
        struct buf _cleanup_buf_ told = BUF_INIT(KIB);
        assert_int_equal(option_init(&origin_option_table, &o, &e), 0);
        web_fixture_option(&o, "origin.anonymous", is_set ? "true" : "false");
        assert_int_equal(origin_open("gs://b", &o, "t", &x, &e), is_set ? 0 : ERR_BAD_OPTION);
        if (is_set) {
            WEB_FIXTURE_OK(origin_identify(x, &told, &e), e);
            assert_true(slice_starts(buf_view(&told), SLICE_LIT("none")));
        }
        origin_close(x);
        option_fini(&origin_option_table, &o);
    }
    (void)unsetenv("GOOGLE_APPLICATION_CREDENTIALS");
}

static int start(void **state)
{
    static const char *const away[] = {"GOOGLE_APPLICATION_CREDENTIALS", "STORAGE_EMULATOR_HOST",
                                       "GCE_METADATA_HOST"};
    for (size_t i = 0; i < ARRAY_SIZE(away); i++)
        (void)unsetenv(away[i]);
    (void)setenv("HOME", "/nonexistent", 1);
    (void)snprintf(T.path, sizeof(T.path), "/tmp/forebay-gs-XXXXXX");
    int fd = mkstemp(T.path);
    T.key = EVP_RSA_gen(2048);
    return fd >= 0 && close(fd) == 0 && T.key ? 0 : -1;
}

static int stop(void **state)
{
    EVP_PKEY_free(T.key);
    return unlink(T.path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_anonymous),
        cmocka_unit_test(test_billing_project),
        cmocka_unit_test(test_stat),
        cmocka_unit_test(test_bytes_tell_no_metadata),
        cmocka_unit_test(test_wrong_answers),
        cmocka_unit_test(test_empty_object),
        cmocka_unit_test(test_resumable),
        cmocka_unit_test(test_resumable_lost_end),
        cmocka_unit_test(test_resumable_nonsense),
        cmocka_unit_test(test_single),
        cmocka_unit_test(test_remove_of_any),
        cmocka_unit_test(test_rewrite),
        cmocka_unit_test(test_set_meta),
        cmocka_unit_test(test_pages),
        cmocka_unit_test(test_names_that_lead_away),
        cmocka_unit_test(test_endless_token),
        cmocka_unit_test(test_assertion),
        cmocka_unit_test(test_renewal),
        cmocka_unit_test(test_a_token_that_is_given_again),
        cmocka_unit_test(test_metadata_service),
        cmocka_unit_test(test_token_stays_at_the_endpoint),
        cmocka_unit_test(test_no_token_is_no_absence),
        cmocka_unit_test(test_bad_files),
    };
    return cmocka_run_group_tests(tests, start, stop);
}

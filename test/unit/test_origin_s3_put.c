/* layer: origin */
/* threaded */
/*
 * Writing to an S3 origin that answers whatever the test scripts: what was done, perhaps done, or not done is
 * never taken for another.
 */
#include "origin/meta.h"
#include "origin_s3_common.h"

/* ---- writes ---- */

static ssize_t zeros(void *arg, void *p, size_t n, uint64_t offset)
{
    if (arg)
        (void)atomic_fetch_add((_Atomic uint64_t *)arg, n);
    memset(p, 0, n);
    return (ssize_t)n;
}

static int put(struct fixture *f, uint64_t size, _Atomic uint64_t *read, struct origin_attr *ret,
               struct err *e)
{
    struct origin_put p = {.key = SLICE_LIT("k"), .content_type = SLICE_LIT("text/plain")};
    struct origin_body b = {.size_bytes = size, .read = zeros, .arg = read};
    return origin_put(f->origin, &p, &b, f->arena, ret, e);
}

/* Bodies that go in one request are signed with their hash, so that a server does not keep half of one;
 * conditions are passed on. */
static void test_put_headers(void **state)
{
    static const struct script_step steps[] = {
        {.answer = "HTTP/1.1 200 OK\r\nETag: \"new\"\r\nDate: Sat, 31 Jan 2026 23:59:59 "
                   "GMT\r\nContent-Length: 0\r\n\r\n"},
        {.answer = "HTTP/1.1 200 OK\r\nETag: \"big\"\r\nContent-Length: 0\r\n\r\n"},
        {.answer = "HTTP/1.1 412 Precondition Failed\r\nContent-Length: 0\r\n\r\n"},
    };
    struct fixture f;
    fixture_start(&f, "s3://b", steps, ARRAY_SIZE(steps), NULL);
    struct origin_attr attr;
    struct err e = {0};
    assert_int_equal(put(&f, 3, NULL, &attr, &e), 0);
    assert_true(slice_eq_str(attr.etag, "new"));
    assert_int_equal(attr.size_bytes, 3);
    assert_int_equal(attr.mtime_ns, (uint64_t)1769903999 * 1000000000);
    assert_true(slice_eq_str(attr.content_type, "text/plain"));
    /* SHA-256 of three zero bytes, by sha256sum. */
    assert_memory_equal(script_header(script_head(&f.script, 0), "x-amz-content-sha256"),
                        "709e80c88487a2411e1ee4dfb9f22a861492d20c4765150c0c794abd70f8147c", 64);
    assert_memory_equal(script_header(script_head(&f.script, 0), "content-type"), "text/plain\r\n", 12);
    assert_int_equal(put(&f, 8 * MIB, NULL, &attr, &e), 0);
    /* SHA-256 of 8 MiB of zero bytes, by sha256sum. */
    assert_memory_equal(script_header(script_head(&f.script, 1), "x-amz-content-sha256"),
                        "2daeb1f36095b44b318410b3f4e8b5d989dcc7bb023d1426c492dab0a3053e74", 64);
    assert_null(script_header(script_head(&f.script, 1), "if-none-match"));
    struct origin_put p = {.key = SLICE_LIT("k"), .if_none_match = true};
    struct origin_body b = {.size_bytes = 1, .read = zeros};
    assert_int_equal(origin_put(f.origin, &p, &b, f.arena, &attr, &e), ERR_PRECONDITION);
    assert_memory_equal(script_header(script_head(&f.script, 2), "if-none-match"), "*\r\n", 3);
    fixture_stop(&f);
}

/* A refusal before the body was read is told with its own words, not as a broken connection. */
static void test_early_refusal(void **state)
{
    static const struct script_step steps[] = {
        {.answer = XML_ERROR("403 Forbidden", "AccessDenied", "read only"), .ignore_body = true},
    };
    struct fixture f;
    fixture_start(&f, "s3://b", steps, 1, NULL);
    struct origin_attr attr;
    struct err e = {0};
    assert_int_equal(put(&f, 16 * MIB, NULL, &attr, &e), ERR_ORIGIN_DENIED);
    assert_non_null(strstr(e.text, "403 AccessDenied: read only"));
    fixture_stop(&f);
}

#define CREATED                                                                                              \
    "HTTP/1.1 200 OK\r\nContent-Length: 94\r\n\r\n"                                                          \
    "<InitiateMultipartUploadResult><UploadId>id&amp;1/2</UploadId></InitiateMultipartUploadResult>"
#define HELLO   "5d41402abc4b2a76b9719d911017c592" /* MD5 of "hello" */
#define PART_OK "HTTP/1.1 200 OK\r\nETag: \"" HELLO "\"\r\nContent-Length: 0\r\n\r\n"

/* One part of a multipart upload fails at first and is sent again; the order of requests is that of one
 * connection. */
static void test_multipart_retry(void **state)
{
    static const struct script_step steps[] = {
        {.answer = CREATED},
        {.answer = PART_OK},
        {.answer = "HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\n\r\n"},
        {.answer = PART_OK},
        {.answer = PART_OK},
        {.answer = PART_OK},
        {.answer = PART_OK},
        {.answer = "HTTP/1.1 200 OK\r\nContent-Length: 97\r\n\r\n"
                   "<CompleteMultipartUploadResult><ETag>&quot;abc-5&quot;</ETag></"
                   "CompleteMultipartUploadResult>\n\n\n\n"},
    };
    static const char *const options[] = {"origin.connections", "1", NULL};
    struct fixture f;
    fixture_start(&f, "s3://b", steps, ARRAY_SIZE(steps), options);
    struct origin_attr attr;
    struct err e = {0};
    _Atomic uint64_t read = 0;
    int r = put(&f, 21 * MIB, &read, &attr, &e);
    if (r != 0)
        fail_msg("%s", e.text);
    assert_true(slice_eq_str(attr.etag, "abc-5"));
    assert_int_equal(script_steps_taken(&f.script), ARRAY_SIZE(steps));
    assert_memory_equal(script_head(&f.script, 0), "POST /b/k?uploads= ", 19);
    assert_memory_equal(script_head(&f.script, 1), "PUT /b/k?partNumber=1&uploadId=id%261%2F2 ", 42);
    assert_memory_equal(script_head(&f.script, 3), "PUT /b/k?partNumber=2&", 22);
    assert_memory_equal(script_head(&f.script, 7), "POST /b/k?uploadId=id%261%2F2 ", 30);
    fixture_stop(&f);
}

#define AWAY                                                                                                 \
    {                                                                                                        \
        .answer = "HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n"                                    \
    }
#define AWAY_6 AWAY, AWAY, AWAY, AWAY, AWAY, AWAY

/* As long as its caller is patient a part is sent, and the end asked for, while the service is away; who has
 * no patience is told after four tries. (Fails where web_try_again counts tries of the patient, too.) */
static void test_multipart_patience(void **state)
{
    static const struct script_step steps[] = {
        {.answer = CREATED},
        AWAY_6,
        {.answer = PART_OK},
        {.answer = PART_OK},
        {.answer = PART_OK},
        {.answer = PART_OK},
        {.answer = PART_OK},
        AWAY_6,
        {.answer = "HTTP/1.1 200 OK\r\nContent-Length: 97\r\n\r\n"
                   "<CompleteMultipartUploadResult><ETag>&quot;abc-5&quot;</ETag></"
                   "CompleteMultipartUploadResult>\n\n\n\n"},
    };
    static const char *const options[] = {"origin.connections", "1", NULL};
    struct origin_put p = {.key = SLICE_LIT("k"), .patience_ms = 60000};
    struct origin_body b = {.size_bytes = 21 * MIB, .read = zeros};
    for (int patient = 1; patient >= 0; patient--) {
        struct fixture f;
        struct origin_attr attr;
        struct err e = {0};
        fixture_start(&f, "s3://b", steps, ARRAY_SIZE(steps), options);
        p.patience_ms = patient ? 60000 : 0;
        int r = origin_put(f.origin, &p, &b, f.arena, &attr, &e);
        if (r != (patient ? 0 : ERR_ORIGIN_DOWN))
            fail_msg("%d: %s", r, e.text);
        /* The last one aborts the upload. */
        assert_int_equal(script_steps_taken(&f.script), patient ? ARRAY_SIZE(steps) : 1 + 4 + 1);
        fixture_stop(&f);
    }
}

static int put_with_reach(struct fixture *f, uint64_t size, int *ret_reach)
{
    _Atomic int reach = ORIGIN_REACH_UNKNOWN;
    struct origin_put p = {.key = SLICE_LIT("k"), .if_none_match = true, .reach = &reach};
    struct origin_body b = {.size_bytes = size, .read = zeros};
    struct origin_attr attr;
    int r = origin_put(f->origin, &p, &b, f->arena, &attr, NULL);
    *ret_reach = atomic_load(&reach);
    return r;
}

/* Of a put with a condition it is known whether anything left that could make the object: nothing does where
 * connections are refused, nor before the end of an upload in parts. */
static void test_how_far_a_put_came(void **state)
{
    static const struct script_step away[] = {AWAY};
    static const struct script_step parts[] = {{.answer = CREATED}, AWAY, AWAY, AWAY, AWAY, AWAY};
    static const char *const one[] = {"origin.connections", "1", NULL};
    static const char *const refused[] = {"origin.endpoint", "http://127.0.0.1:1", NULL};
    struct fixture f;
    int reach;
    fixture_start(&f, "s3://b", NULL, 0, refused);
    assert_int_equal(put_with_reach(&f, 3, &reach), ERR_ORIGIN_DOWN);
    assert_int_equal(reach, ORIGIN_REACH_NOTHING);
    fixture_stop(&f);
    fixture_start(&f, "s3://b", away, ARRAY_SIZE(away), one);
    assert_int_equal(put_with_reach(&f, 3, &reach), ERR_ORIGIN_DOWN);
    assert_int_equal(reach, ORIGIN_REACH_PERHAPS);
    fixture_stop(&f);
    fixture_start(&f, "s3://b", parts, ARRAY_SIZE(parts), one);
    assert_int_equal(put_with_reach(&f, 21 * MIB, &reach), ERR_ORIGIN_DOWN);
    assert_int_equal(reach, ORIGIN_REACH_NOTHING);
    fixture_stop(&f);
}

/* A part that is refused for good, and an error inside the 200 of complete, fail the upload, which is
 * aborted. */
static void test_multipart_abort(void **state)
{
    static const struct script_step refused[] = {
        {.answer = CREATED},
        {.answer = "HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n"},
        {.answer = "HTTP/1.1 204 No Content\r\n\r\n"},
    };
    static const struct script_step late[] = {
        {.answer = CREATED},
        {.answer = PART_OK},
        {.answer = PART_OK},
        {.answer = PART_OK},
        {.answer = PART_OK},
        {.answer = PART_OK},
        {.answer = "HTTP/1.1 200 OK\r\nContent-Length: 67\r\n\r\n"
                   "<Error><Code>InvalidPart</Code><Message>not found</Message></Error>"},
        {.answer = "HTTP/1.1 204 No Content\r\n\r\n"},
    };
    static const char *const options[] = {"origin.connections", "1", NULL};
    const struct script_step *const scripts[] = {refused, late};
    const size_t sizes[] = {ARRAY_SIZE(refused), ARRAY_SIZE(late)};
    const int codes[] = {ERR_ORIGIN_DENIED, ERR_ORIGIN_REFUSED};
    const char *const texts[] = {"part 1 of 5: 403 Forbidden", "200 InvalidPart: not found"};
    for (int i = 0; i < 2; i++) {
        struct fixture f;
        fixture_start(&f, "s3://b", scripts[i], sizes[i], options);
        struct origin_attr attr;
        struct err e = {0};
        int r = put(&f, 21 * MIB, NULL, &attr, &e);
        if (r != codes[i] || !strstr(e.text, texts[i]))
            fail_msg("%s: %s", err_name(r), e.text);
        assert_int_equal(script_steps_taken(&f.script), sizes[i]);
        assert_memory_equal(script_head(&f.script, sizes[i] - 1), "DELETE /b/k?uploadId=", 21);
        fixture_stop(&f);
    }
}

/* When one of several parts in flight is refused for good, the others are not waited for. */
static void test_multipart_stop(void **state)
{
    static const struct script_step steps[] = {
        {.answer = CREATED},
        {.answer = "HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n", .after = 6},
        {.silent = true},
        {.silent = true},
        {.silent = true},
        {.silent = true},
        {.answer = "HTTP/1.1 204 No Content\r\n\r\n"},
    };
    struct fixture f;
    fixture_start(&f, "s3://b", steps, ARRAY_SIZE(steps), NULL);
    struct metric_series *done = metrics_series(METRIC_ORIGIN_REQUESTS, "scripted", "put_part", "200");
    uint64_t before = metrics_value(done);
    struct origin_attr attr;
    struct err e = {0};
    assert_int_equal(put(&f, 21 * MIB, NULL, &attr, &e), ERR_ORIGIN_DENIED);
    assert_int_equal(metrics_value(done) - before, 0);
    size_t last = script_steps_taken(&f.script) - 1;
    assert_memory_equal(script_head(&f.script, last), "DELETE /b/k?uploadId=", 21);
    fixture_stop(&f);
}

#define COMPLETED                                                                                            \
    "HTTP/1.1 200 OK\r\nETag: \"" HELLO "\"\r\nContent-Length: 97\r\n\r\n"                                   \
    "<CompleteMultipartUploadResult><ETag>&quot;abc-5&quot;</ETag></CompleteMultipartUploadResult>\n\n\n\n"

/* A condition that fails when curl sent the request twice, because a kept connection closed without an
 * answer, may have met our own object: it is no refusal. */
static void test_condition_sent_twice(void **state)
{
    static const struct script_step steps[] = {
        {.answer = PART_OK},
        {.answer = "", .close = true},
        {.answer = "HTTP/1.1 412 Precondition Failed\r\nContent-Length: 0\r\n\r\n"},
        {.answer = "HTTP/1.1 412 Precondition Failed\r\nContent-Length: 0\r\n\r\n"},
    };
    struct fixture f;
    fixture_start(&f, "s3://b", steps, ARRAY_SIZE(steps), NULL);
    struct origin_put p = {.key = SLICE_LIT("k"), .if_none_match = true};
    struct origin_body b = {.size_bytes = 0, .read = zeros}; /* with one, 100 Continue would have come */
    struct origin_attr attr;
    struct err e = {0};
    assert_int_equal(put(&f, 1, NULL, &attr, &e), 0);
    assert_int_equal(origin_put(f.origin, &p, &b, f.arena, &attr, &e), ERR_ORIGIN_FAILED);
    assert_non_null(strstr(e.text, "sent again"));
    assert_int_equal(script_steps_taken(&f.script), 3);
    assert_int_equal(origin_put(f.origin, &p, &b, f.arena, &attr, &e), ERR_PRECONDITION);
    fixture_stop(&f);
}

/* So may a conditional removal have met its own work. */
static void test_remove_sent_twice(void **state)
{
    static const struct script_step steps[] = {
        {.answer = OK200("5")},
        {.answer = "", .close = true},
        {.answer = "HTTP/1.1 412 Precondition Failed\r\nContent-Length: 0\r\n\r\n"},
    };
    struct fixture f;
    struct err e = {0};
    fixture_start(&f, "s3://b", steps, ARRAY_SIZE(steps), NULL);
    assert_int_equal(origin_remove(f.origin, SLICE_LIT("k"), SLICE_LIT("v1"), &e), ERR_ORIGIN_FAILED);
    assert_non_null(strstr(e.text, "sent again"));
    fixture_stop(&f);
}

#define GONE    "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
#define REFUSED "HTTP/1.1 412 Precondition Failed\r\nContent-Length: 0\r\n\r\n"

#define NO_UPLOAD XML_ERROR("404 Not Found", "NoSuchUpload", "gone")
#define NO_OBJECT XML_ERROR("404 Not Found", "NoSuchKey", "gone")
/* MD5 of the MD5s of "hello" and "world", by Python's hashlib. */
#define OURS   "HTTP/1.1 200 OK\r\nETag: \"065947336a2f2a95ba8899f3675c3be6-2\"\r\nContent-Length: 10\r\n\r\n"
#define THEIRS "HTTP/1.1 200 OK\r\nETag: \"065947336a2f2a95ba8899f3675c3be6-2\"\r\nContent-Length: 11\r\n\r\n"
#define LISTED "HTTP/1.1 200 OK\r\nContent-Length: 19\r\n\r\n<ListPartsResult />"
#define HIDDEN XML_ERROR("403 Forbidden", "AccessDenied", "no ListMultipartUploadParts")

static void assert_sent(struct fixture *f, size_t i, const char *method, const char *if_match)
{
    const char *head = script_head(&f->script, i), *got = script_header(head, "if-match");
    assert_memory_equal(head, method, strlen(method));
    if (!if_match)
        assert_null(got);
    else if (!got || strncmp(got, if_match, strlen(if_match)) != 0)
        fail_msg("request %zu: If-Match is %s", i, got ? got : "not there");
}

/* "*" of a removal is whatever is there: the ETag that was seen is what goes, and somebody who writes in
 * between leads to another look, not to a refusal; where nothing is, nothing is sent. */
static void test_remove_of_any(void **state)
{
    static const struct script_step steps[] = {
        {.answer = OK200("5")},
        {.answer = REFUSED},
        {.answer = "HTTP/1.1 200 OK\r\nETag: \"v2\"\r\n"
                   "Content-Length: 5\r\n\r\n"},
        {.answer = PART_OK},
        {.answer = GONE},
        {.answer = OK200("5")},
        {.answer = REFUSED},
        {.answer = OK200("5")},
        {.answer = REFUSED},
        {.answer = OK200("5")},
        {.answer = REFUSED},
        {.answer = OK200("5")},
        {.answer = REFUSED},
    };
    const struct slice key = SLICE_LIT("k"), any = SLICE_LIT("*");
    struct fixture f;
    struct err e = {0};
    fixture_start(&f, "s3://b", steps, ARRAY_SIZE(steps), NULL);
    assert_int_equal(origin_remove(f.origin, key, any, &e), 0);
    assert_sent(&f, 0, "HEAD", NULL);
    assert_sent(&f, 1, "DELETE", "\"v1\"\r\n");
    assert_sent(&f, 2, "HEAD", NULL);
    assert_sent(&f, 3, "DELETE", "\"v2\"\r\n");
    assert_int_equal(origin_remove(f.origin, key, any, &e), -ENOENT);
    assert_int_equal(origin_remove(f.origin, key, any, &e), ERR_CONFLICT); /* every time */
    assert_int_equal(script_steps_taken(&f.script), ARRAY_SIZE(steps));
    fixture_stop(&f);
}

/* The same of a PUT. Another node knows "*" by itself, and a weak ETag is none that a write could name. */
static void test_put_over_any(void **state)
{
    static const struct script_step steps[] = {
        {.answer = OK200("5")}, {.answer = REFUSED},
        {.answer = OK200("5")}, {.answer = PART_OK},
        {.answer = GONE},       {.answer = "HTTP/1.1 200 OK\r\nETag: W/\"v1\"\r\nContent-Length: 5\r\n\r\n"},
        {.answer = PART_OK},
    };
    static const struct script_step of_node[] = {{.answer = PART_OK}};
    const struct origin_put p = {.key = SLICE_LIT("k"), .if_match = SLICE_LIT("*")};
    const struct origin_body b = {.size_bytes = 1, .read = zeros};
    struct origin_attr attr;
    struct fixture f;
    struct err e = {0};
    fixture_start(&f, "s3://b", steps, ARRAY_SIZE(steps), NULL);
    assert_int_equal(origin_put(f.origin, &p, &b, f.arena, &attr, &e), 0);
    assert_sent(&f, 0, "HEAD", NULL);
    assert_sent(&f, 1, "PUT", "\"v1\"\r\n");
    assert_sent(&f, 3, "PUT", "\"v1\"\r\n");
    assert_int_equal(origin_put(f.origin, &p, &b, f.arena, &attr, &e), -ENOENT);
    assert_int_equal(origin_put(f.origin, &p, &b, f.arena, &attr, &e), 0);
    assert_sent(&f, 6, "PUT", "*\r\n");
    fixture_stop(&f);
    fixture_start(&f, "forebay://h:1/b", of_node, ARRAY_SIZE(of_node), NULL);
    assert_int_equal(origin_put(f.origin, &p, &b, f.arena, &attr, &e), 0);
    assert_sent(&f, 0, "PUT", "*\r\n");
    fixture_stop(&f);
}

/* A weak ETag is one that no service finds an If-Match to hold for: the node looks, and sends what holds
 * without, also at the end of an upload; a version that is another one by now stays. (Fails with the weak
 * ETag in the request: 412 for each that holds, and with write=back the object never gets there.) */
static void test_put_over_a_weak_etag(void **state)
{
#define WEAK(version) "HTTP/1.1 200 OK\r\nETag: W/\"" version "\"\r\nContent-Length: 5\r\n\r\n"
    static const struct script_step steps[] = {
        {.answer = WEAK("v1")}, {.answer = PART_OK},    {.answer = WEAK("v2")},
        {.answer = GONE},       {.answer = WEAK("v1")}, {.answer = COMPLETED},
    };
    const struct origin_put p = {.key = SLICE_LIT("k"), .if_match = SLICE_LIT("W/\"v1\"")};
    const struct origin_body b = {.size_bytes = 1, .read = zeros};
    const struct origin_part part = {.number = 1, .etag = SLICE_LIT(HELLO)};
    struct origin_attr attr;
    struct fixture f;
    struct err e = {0};
    fixture_start(&f, "s3://b", steps, ARRAY_SIZE(steps), NULL);
    assert_int_equal(origin_put(f.origin, &p, &b, f.arena, &attr, &e), 0);
    assert_sent(&f, 0, "HEAD", NULL);
    assert_sent(&f, 1, "PUT", NULL);
    assert_int_equal(origin_put(f.origin, &p, &b, f.arena, &attr, &e), ERR_PRECONDITION);
    assert_int_equal(origin_put(f.origin, &p, &b, f.arena, &attr, &e), ERR_PRECONDITION);
    assert_int_equal(origin_upload_complete(f.origin, &p, SLICE_LIT("id"), &part, 1, 5, f.arena, &attr, &e),
                     0);
    assert_sent(&f, 5, "POST", NULL);
    assert_int_equal(script_steps_taken(&f.script), ARRAY_SIZE(steps));
    fixture_stop(&f);
#undef WEAK
}

/* Where the service checks no conditions the node looks: what does not hold is not sent, and what does goes
 * without. */
static void test_conditions_that_are_looked_at(void **state)
{
    static const struct script_step steps[] = {
        {.answer = OK200("5")}, {.answer = PART_OK},    {.answer = OK200("5")},
        {.answer = OK200("5")}, {.answer = GONE},       {.answer = PART_OK},
        {.answer = GONE},       {.answer = OK200("5")}, {.answer = COMPLETED},
    };
    static const char *const options[] = {"origin.conditional_put", "false", NULL};
    struct origin_put p = {.key = SLICE_LIT("k"), .if_match = SLICE_LIT("v1")};
    const struct origin_put absent = {.key = SLICE_LIT("k"), .if_none_match = true};
    const struct origin_body b = {.size_bytes = 1, .read = zeros};
    const struct origin_part part = {.number = 1, .etag = SLICE_LIT(HELLO)};
    struct origin_attr attr;
    struct fixture f;
    struct err e = {0};
    fixture_start(&f, "s3://b", steps, ARRAY_SIZE(steps), options);
    assert_true(origin_heeds_conditions(f.origin));
    assert_int_equal(origin_put(f.origin, &p, &b, f.arena, &attr, &e), 0);
    assert_sent(&f, 0, "HEAD", NULL);
    assert_sent(&f, 1, "PUT", NULL);
    p.if_match = SLICE_LIT("v0");
    assert_int_equal(origin_put(f.origin, &p, &b, f.arena, &attr, &e), ERR_PRECONDITION);
    assert_int_equal(origin_put(f.origin, &absent, &b, f.arena, &attr, &e), ERR_PRECONDITION);
    assert_int_equal(origin_put(f.origin, &absent, &b, f.arena, &attr, &e), 0);
    assert_sent(&f, 5, "PUT", NULL);
    assert_int_equal(origin_put(f.origin, &p, &b, f.arena, &attr, &e), ERR_PRECONDITION);
    p.if_match = SLICE_LIT("*");
    assert_int_equal(origin_upload_complete(f.origin, &p, SLICE_LIT("id"), &part, 1, 5, f.arena, &attr, &e),
                     0);
    assert_sent(&f, 8, "POST", NULL);
    assert_int_equal(script_steps_taken(&f.script), ARRAY_SIZE(steps));
    fixture_stop(&f);
}

/* The same of the end of an upload. No object is no missing upload. */
static void test_complete_over_any(void **state)
{
    static const struct script_step steps[] = {
        {.answer = OK200("5")}, {.answer = REFUSED}, {.answer = OK200("5")},
        {.answer = COMPLETED},  {.answer = GONE},    {.answer = LISTED},
    };
    const struct origin_put p = {.key = SLICE_LIT("k"), .if_match = SLICE_LIT("*")};
    const struct origin_part part = {.number = 1, .etag = SLICE_LIT(HELLO)};
    struct origin_attr attr;
    struct fixture f;
    struct err e = {0};
    fixture_start(&f, "s3://b", steps, ARRAY_SIZE(steps), NULL);
    assert_int_equal(origin_upload_complete(f.origin, &p, SLICE_LIT("id"), &part, 1, 5, f.arena, &attr, &e),
                     0);
    assert_sent(&f, 1, "POST", "\"v1\"\r\n");
    assert_sent(&f, 3, "POST", "\"v1\"\r\n");
    assert_int_equal(origin_upload_complete(f.origin, &p, SLICE_LIT("id"), &part, 1, 5, f.arena, &attr, &e),
                     ERR_PRECONDITION);
    assert_int_equal(script_steps_taken(&f.script), ARRAY_SIZE(steps));
    fixture_stop(&f);
}

/* One end of an upload of two parts, whose requests the service answers so. */
static int complete_of(const struct script_step *steps, size_t n, bool if_none_match, struct slice if_match,
                       struct fixture *f, struct err *e)
{
    static const struct origin_part parts[] = {
        {.number = 1, .etag = SLICE_LIT("5d41402abc4b2a76b9719d911017c592")},
        {.number = 2, .etag = SLICE_LIT("7d793037a0760186574b0282f2f435e7")}};
    const struct origin_put p = {.key = SLICE_LIT("k"), .if_none_match = if_none_match, .if_match = if_match};
    struct origin_attr attr = {0};
    *e = (struct err){0};
    fixture_start(f, "s3://b", steps, n, NULL);
    int r = origin_upload_complete(f->origin, &p, SLICE_LIT("id"), parts, 2, 10, f->arena, &attr, e);
    assert_int_equal(script_steps_taken(&f->script), n);
    if (r == 0)
        assert_true(slice_eq_str(attr.etag, "065947336a2f2a95ba8899f3675c3be6-2") && attr.size_bytes == 10);
    return r;
}

/* A condition that meets what this very upload made, before its answer was lost, is no refusal: not in the
 * same call, and not when a client asks again. The service has the upload no more then, and the object is of
 * its parts. While it still has the upload the refusal is true, though an object of the same bytes be there;
 * of another object nobody is told that it is his. (Without judge in s3_complete.c the refusal is what is
 * told.) */
static void test_the_end_of_an_upload_that_was_there_before(void **state)
{
#define LOST                                                                                                 \
    {                                                                                                        \
        .answer = "", .close = true                                                                          \
    }
#define A(text)                                                                                              \
    {                                                                                                        \
        .answer = (text), .close = true                                                                      \
    }
    static const struct {
        struct script_step steps[5];
        size_t n;
        const char *if_match; /* NULL: If-None-Match */
        int r;
    } ends[] = {
        {{LOST, A(REFUSED), A(NO_UPLOAD), A(OURS)}, 4, NULL, 0},
        {{A(REFUSED), A(NO_UPLOAD), A(OURS)}, 3, NULL, 0},
        {{A(REFUSED), A(NO_UPLOAD), A(OURS)}, 3, "v1", 0},
        {{A(NO_UPLOAD), A(OURS)}, 2, NULL, 0},
        {{A(NO_UPLOAD), A(OURS)}, 2, "", 0},
        {{LOST, A(NO_OBJECT), A(OURS)}, 3, "v1", 0},
        {{LOST, A(REFUSED), A(HIDDEN), A(OURS)}, 4, NULL, 0},
        /* nothing was done */
        {{A(REFUSED), A(LISTED)}, 2, NULL, ERR_PRECONDITION},
        {{LOST, A(REFUSED), A(LISTED)}, 3, NULL, ERR_PRECONDITION},
        {{A(NO_OBJECT)}, 1, "v1", ERR_PRECONDITION},
        {{A(REFUSED), A(HIDDEN)}, 2, NULL, ERR_PRECONDITION},
        /* it is somebody else's */
        {{A(REFUSED), A(NO_UPLOAD), A(THEIRS)}, 3, NULL, ERR_PRECONDITION},
        {{LOST, A(REFUSED), A(NO_UPLOAD), A(GONE)}, 4, NULL, ERR_ORIGIN_FAILED},
        {{LOST, A(REFUSED), A(HIDDEN), A(THEIRS)}, 4, NULL, ERR_ORIGIN_FAILED},
        {{A(NO_UPLOAD), A(THEIRS)}, 2, NULL, -ENOENT},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(ends); i++) {
        struct fixture f;
        struct err e;
        const char *if_match = ends[i].if_match;
        int r = complete_of(ends[i].steps, ends[i].n, !if_match, slice_str(if_match), &f, &e);
        if (r != ends[i].r)
            fail_msg("end %zu: %s: %s", i, err_name(r), e.text);
        fixture_stop(&f);
    }
}

/* A look that fails says nothing: the end is asked for again, and looked at again. (Fails where such a look
 * counts as one that found nothing.) */
static void test_the_end_of_an_upload_that_nobody_can_look_at(void **state)
{
    static const struct script_step steps[] = {
        A(REFUSED), A(XML_ERROR("500 Oh", "InternalError", "oh")), A(REFUSED), A(NO_UPLOAD), A(OURS),
    };
    struct fixture f;
    struct err e;
    (void)state;
    assert_int_equal(complete_of(steps, ARRAY_SIZE(steps), true, SLICE_NULL, &f, &e), 0);
    assert_memory_equal(script_head(&f.script, 3), "GET /b/k?max-parts=1&uploadId=id ", 33);
    assert_memory_equal(script_head(&f.script, 4), "HEAD /b/k ", 10);
    fixture_stop(&f);
}

/* Where ETags of parts are no MD5s, or not those of their bytes, the key is looked at before the end: after a
 * lost answer another object of the size and of as many parts is the upload's own, what was there before is
 * not; nor is anything without a lost answer. With checksums that the service keeps nobody looks before, and
 * they decide, also when a client asks again. (Seen to fail without look_before and without whole_sum in
 * is_own; fails where ETags of 32 digits are believed to be MD5s.) */
static void test_the_end_of_an_upload_whose_etags_say_nothing(void **state)
{
#define OBJECT(etag, more) A("HTTP/1.1 200 OK\r\nETag: \"" etag "\"\r\n" more "Content-Length: 10\r\n\r\n")
#define OLD                OBJECT("old-2", "")
#define SUM(sum)           OBJECT("x-2", "x-amz-checksum-type: COMPOSITE\r\nx-amz-checksum-sha1: " sum "\r\n")
#define DIGEST             "qvTGHdzF6KLavt4PO0gs2a6pQ00="
    static const struct {
        struct script_step steps[5];
        size_t n;
        bool sums, if_none_match;
        int r;
        const char *etag;
    } ends[] = {
        {{OLD, LOST, A(NO_UPLOAD), OBJECT("new-2", "")}, 4, false, false, 0, "new-2"},
        {{OLD, LOST, A(NO_UPLOAD), OBJECT("of-another-kind", "")}, 4, false, false, 0, "of-another-kind"},
        {{A(GONE), LOST, A(REFUSED), A(NO_UPLOAD), OBJECT("new-2", "")}, 5, false, true, 0, "new-2"},
        {{OLD, LOST, A(NO_UPLOAD), OLD}, 4, false, false, -ENOENT, NULL},
        {{OLD, LOST, A(NO_UPLOAD), OBJECT("new-3", "")}, 4, false, false, -ENOENT, NULL},
        {{OLD, LOST, A(NO_UPLOAD), A(THEIRS)}, 4, false, false, -ENOENT, NULL},
        {{OLD, A(NO_UPLOAD), OBJECT("new-2", "")}, 3, false, false, -ENOENT, NULL},
        {{A(HIDDEN), LOST, A(NO_UPLOAD), OBJECT("new-2", "")}, 4, false, false, -ENOENT, NULL},
        {{LOST, A(NO_UPLOAD), SUM(DIGEST "-2")}, 3, true, false, 0, "x-2"},
        {{A(NO_UPLOAD), SUM(DIGEST "-2")}, 2, true, false, 0, "x-2"},
        {{A(REFUSED), A(NO_UPLOAD), SUM(DIGEST "-2")}, 3, true, true, 0, "x-2"},
        {{A(NO_UPLOAD), SUM(DIGEST "-3")}, 2, true, false, -ENOENT, NULL},
        {{LOST, A(NO_UPLOAD), OBJECT("x-2", "")}, 3, true, false, -ENOENT, NULL},
    };
    /* One that is no MD5 at all, and one that looks like it. */
    static const struct origin_part parts[] = {
        {.number = 1,
         .etag = SLICE_LIT("0x8D"),
         .sum = SLICE_LIT("aaf4c61ddcc5e8a2dabede0f3b482cd9aea9434d")},
        {.number = 2,
         .etag = SLICE_LIT("7d793037a0760186574b0282f2f435e7"),
         .sum = SLICE_LIT("7c211433f02071597741e6ff5a8ea34789abbf43")}};
    (void)state;
    for (size_t i = 0; i < 2 * ARRAY_SIZE(ends); i++) {
        size_t row = i / 2;
        struct origin_part sent[] = {parts[i % 2], parts[1]};
        struct origin_attr attr = {0};
        struct fixture f;
        struct err e = {0};
        struct origin_put p = {.key = SLICE_LIT("k"), .if_none_match = ends[row].if_none_match};
        if (ends[row].sums)
            p.sums = SLICE_LIT("sha1 COMPOSITE");
        p.whole_sum = SLICE_LIT("sha1 " DIGEST "-2");
        sent[0].number = 1;
        if (i % 2 == 1)
            sent[0].md5 = SLICE_LIT("5d41402abc4b2a76b9719d911017c592");
        fixture_start(&f, "s3://b", ends[row].steps, ends[row].n, NULL);
        int r = origin_upload_complete(f.origin, &p, SLICE_LIT("id"), sent, 2, 10, f.arena, &attr, &e);
        if (r != ends[row].r || script_steps_taken(&f.script) != ends[row].n)
            fail_msg("end %zu: %s after %zu requests: %s", i, err_name(r), script_steps_taken(&f.script),
                     e.text);
        if (ends[row].etag)
            assert_true(slice_eq_str(attr.etag, ends[row].etag));
        fixture_stop(&f);
    }
#undef OBJECT
#undef OLD
#undef SUM
#undef DIGEST
#undef LOST
#undef A
}

/* Gives each byte once. */
static ssize_t read_once(void *arg, void *p, size_t n, uint64_t offset)
{
    uint64_t *given = arg;
    if (offset < *given)
        return -ESPIPE;
    *given = offset;
    memset(p, 0, n);
    return (ssize_t)n;
}

/* A part whose bytes are gone when they were read is not read for its hash first. */
static void test_part_read_once(void **state)
{
    static const struct script_step steps[] = {{.answer = PART_OK}};
    struct fixture f;
    uint64_t given = 0;
    char etag[ORIGIN_ETAG_MAX + 1];
    struct err e = {0};
    fixture_start(&f, "s3://b", steps, ARRAY_SIZE(steps), NULL);
    struct origin_put p = {.key = SLICE_LIT("k")};
    struct origin_body b = {.size_bytes = 8 * MIB, .read = read_once, .arg = &given, .once = true};
    int r = origin_upload_part(f.origin, &p, SLICE_LIT("id"), 1, &b, etag, &e);
    if (r != 0)
        fail_msg("%s", e.text);
    assert_string_equal(etag, HELLO);
    assert_memory_equal(script_header(script_head(&f.script, 0), "x-amz-content-sha256"),
                        "UNSIGNED-PAYLOAD\r\n", 18);
    fixture_stop(&f);
}

/* Busy says that nothing was done: not when a former try to complete the upload may have done it. */
static void test_busy_after_a_lost_answer(void **state)
{
    static const struct script_step steps[] = {
        {.answer = CREATED},
        {.answer = PART_OK},
        {.answer = PART_OK},
        {.answer = "HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n"},
        {.answer = "HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\n\r\n"},
        {.answer = "HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\n\r\n"},
        {.answer = "HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\n\r\n"},
        {.answer = "HTTP/1.1 204 No Content\r\n\r\n"},
    };
    static const char *const options[] = {"origin.connections", "1", NULL};
    struct fixture f;
    fixture_start(&f, "s3://b", steps, ARRAY_SIZE(steps), options);
    struct origin_put p = {.key = SLICE_LIT("k"), .if_none_match = true};
    struct origin_body b = {.size_bytes = 10 * MIB, .read = zeros};
    struct origin_attr attr;
    struct err e = {0};
    assert_int_equal(origin_put(f.origin, &p, &b, f.arena, &attr, &e), ERR_ORIGIN_FAILED);
    assert_non_null(strstr(e.text, "was lost, and now: 503"));
    assert_int_equal(script_steps_taken(&f.script), ARRAY_SIZE(steps));
    fixture_stop(&f);
}

/* Metadata whose name or value would make another header, or another request, is sent by no means. */
static void test_metadata_makes_no_headers(void **state)
{
#define LINE(text)                                                                                           \
    {                                                                                                        \
        text, sizeof(text) - 1                                                                               \
    }
    static const struct slice lines[] = {
        LINE("x-amz-meta-a: b\rc: d\n"),     LINE("x-amz-meta-a\rc: d\n"), LINE("x-amz-meta-a c: d\n"),
        LINE("x-amz-meta-a\0c: d\n"),        LINE("x-amz-meta-a\"c: d\n"), LINE("x-amz-meta-\xc3\xa4: d\n"),
        LINE("x-amz-meta-a\r\rGET /b: d\n"),
    };
    struct fixture f;
    fixture_start(&f, "s3://bucket", NULL, 0, NULL);
    for (size_t i = 0; i < ARRAY_SIZE(lines); i++) {
        struct origin_attr attr;
        struct err e = {0};
        struct origin_body b = {.size_bytes = 0, .read = zeros};
        struct origin_put p = {.key = SLICE_LIT("k"), .meta = lines[i]};
        assert_int_equal(origin_put(f.origin, &p, &b, f.arena, &attr, &e), -EINVAL);
    }
    assert_int_equal(script_steps_taken(&f.script), 0);
    fixture_stop(&f);
}

#define SEEN "HTTP/1.1 200 OK\r\nETag: \"v1\"\r\nx-amz-storage-class: GLACIER_IR\r\nContent-Length: 5\r\n\r\n"

/* New metadata of an object that is copied onto itself in parts never takes the place of what somebody writes
 * behind the last part. Where its tags may not be read there is a copy all the same, and a line in the log;
 * of a service that fails there is none. (With every failure of s3_tags_of taken for "no tags" the last
 * request is one of many.) */
static void test_set_meta_in_parts(void **state)
{
    static const char part[] = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"
                               "<CopyPartResult><ETag>&quot;" HELLO "&quot;</ETag></CopyPartResult>";
    static const struct script_step steps[] = {
        {.answer = SEEN},
        {.answer = "HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n"},
        {.answer = CREATED},
        {.answer = part, .close = true},
        {.answer = part, .close = true},
        {.answer = "HTTP/1.1 412 Precondition Failed\r\nContent-Length: 0\r\n\r\n"},
        {.answer = LISTED},
        {.answer = "HTTP/1.1 204 No Content\r\n\r\n"},
        {.answer = SEEN},
        {.answer = "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n"},
    };
    static const char *const options[] = {"origin.connections", "1", NULL};
    struct fixture f;
    fixture_start(&f, "s3://b", steps, ARRAY_SIZE(steps), options);
    s3_of(f.origin)->copy_max_bytes = s3_of(f.origin)->copy_part_bytes = 5 * MIB;
    struct origin_put p = {
        .key = SLICE_LIT("k"), .meta = SLICE_LIT("x-amz-meta-mode: 1\n"), .if_match = SLICE_LIT("v1")};
    struct origin_attr attr;
    struct err e = {0};
    assert_int_equal(origin_set_meta(f.origin, &p, 6 * MIB, f.arena, &attr, &e), ERR_PRECONDITION);
    assert_int_equal(origin_set_meta(f.origin, &p, 6 * MIB, f.arena, &attr, &e), ERR_ORIGIN_FAILED);
    assert_int_equal(script_steps_taken(&f.script), ARRAY_SIZE(steps));
    const char *match = script_header(script_head(&f.script, 5), "if-match");
    assert_true(match && strncmp(match, "\"v1\"\r\n", 6) == 0);
    fixture_stop(&f);
}

/* A large body whose digest is known goes in one request when that is asked for (`whole`), so that its ETag
 * is that of one; a digest alone does not make it so. (Seen to fail without p->whole in single_max.) */
static void test_known_digests(void **state)
{
    static const struct {
        bool whole, sha256, is_one;
    } cases[] = {{true, true, true}, {true, false, true}, {false, false, false}, {false, true, false}};
    static const struct script_step ok = {.answer =
                                              "HTTP/1.1 200 OK\r\nETag: \"e\"\r\nContent-Length: 0\r\n\r\n"},
                                    no = {.answer = "HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n"};
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct fixture f;
        fixture_start(&f, "s3://b", cases[i].is_one ? &ok : &no, 1, NULL);
        struct origin_put p = {.key = SLICE_LIT("k"), .whole = cases[i].whole};
        struct origin_body b = {.size_bytes = 21 * MIB, .read = zeros};
        struct origin_attr attr;
        struct err e = {0};
        if (cases[i].sha256)
            p.payload_sha256 = SLICE_LIT("2daeb1f36095b44b318410b3f4e8b5d989dcc7bb023d1426c492dab0a3053e74");
        else
            p.content_md5 = SLICE_LIT("Q2hlY2sgSW50ZWdyaXR5IQ==");
        int r = origin_put(f.origin, &p, &b, f.arena, &attr, &e);
        assert_int_equal(r, cases[i].is_one ? 0 : ERR_ORIGIN_DENIED);
        assert_memory_equal(script_head(&f.script, 0), cases[i].is_one ? "PUT /b/k " : "POST /b/k", 9);
        if (cases[i].is_one && cases[i].sha256)
            assert_true(has_value(&f, 0, "x-amz-content-sha256", "2daeb1f36095b44b"));
        if (cases[i].is_one && !cases[i].sha256)
            assert_true(has_value(&f, 0, "content-md5", "Q2hlY2sgSW50ZWdyaXR5IQ==\r\n"));
        fixture_stop(&f);
    }
}

/* Its tags go with it, which a service would drop with the object whose place it takes. (Without the tags in
 * `create`, s3_multipart.c, they do not; versitygw keeps those that were there, and does not show it.) */
static void test_set_meta_in_parts_keeps_tags(void **state)
{
    static const char part[] = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"
                               "<CopyPartResult><ETag>&quot;" HELLO "&quot;</ETag></CopyPartResult>";
    static const struct script_step steps[] = {
        {.answer = SEEN},
        {.answer = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n<Tagging><TagSet><Tag><Key>a</Key>"
                   "<Value>b c</Value></Tag></TagSet></Tagging>",
         .close = true},
        {.answer = CREATED},
        {.answer = part, .close = true},
        {.answer = part, .close = true},
        {.answer = "HTTP/1.1 412 Precondition Failed\r\nContent-Length: 0\r\n\r\n"},
        {.answer = "HTTP/1.1 204 No Content\r\n\r\n"},
    };
    static const char *const options[] = {"origin.connections", "1", NULL};
    struct fixture f;
    fixture_start(&f, "s3://b", steps, ARRAY_SIZE(steps), options);
    s3_of(f.origin)->copy_max_bytes = s3_of(f.origin)->copy_part_bytes = 5 * MIB;
    struct origin_put p = {
        .key = SLICE_LIT("k"), .meta = SLICE_LIT("x-amz-meta-mode: 1\n"), .if_match = SLICE_LIT("v1")};
    struct origin_attr attr;
    struct err e = {0};
    assert_int_equal(origin_set_meta(f.origin, &p, 6 * MIB, f.arena, &attr, &e), ERR_PRECONDITION);
    assert_true(has_value(&f, 2, "x-amz-tagging", "a=b%20c\r\n"));
    assert_true(has_value(&f, 2, "x-amz-meta-mode", "1\r\n"));
    assert_true(has_value(&f, 2, "x-amz-storage-class", "GLACIER_IR\r\n"));
    fixture_stop(&f);
}

/* Tags of a write go in their own header, which is signed, or with origin.tags=false as metadata. Of an
 * object another node tells them because it is asked; a service tells how many there are. */
static void test_how_tags_travel(void **state)
{
    static const struct script_step steps[] = {
        {.answer = "HTTP/1.1 200 OK\r\nETag: \"v1\"\r\nContent-Length: 0\r\n\r\n"},
        {.answer = "HTTP/1.1 200 OK\r\nETag: \"v1\"\r\nx-amz-tagging-count: 1\r\n"
                   "x-forebay-tags: a=b\r\nx-amz-meta-m: 1\r\nContent-Length: 1\r\n\r\n"},
    };
    static const char *const none[] = {"origin.tags", "false", NULL};
    static const struct {
        const char *url;
        const char *const *options;
        bool as_tags, node;
    } cases[] = {{"s3://b", NULL, true, false},
                 {"s3://b", none, false, false},
                 {"forebay://127.0.0.1:1/b", NULL, true, true}};
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct fixture f;
        fixture_start(&f, cases[i].url, steps, ARRAY_SIZE(steps), cases[i].options);
        struct origin_put p = {.key = SLICE_LIT("k"),
                               .meta = SLICE_LIT(META_TAGS ": a=b\nx-amz-meta-m: 1\n")};
        struct origin_body b = {.size_bytes = 1, .read = zeros};
        struct origin_get g = {.key = SLICE_LIT("k"), .attributes_only = true, .whole = true};
        struct origin_attr attr;
        struct sink s = {0};
        struct err e = {0};
        bool as_tags = cases[i].as_tags, node = cases[i].node;
        assert_int_equal(!!(f.origin->capabilities & ORIGIN_CAN_TAGS), as_tags);
        if (!as_tags)
            assert_int_equal(origin_set_tags(f.origin, p.key, SLICE_LIT("a=b"), &e), ERR_NOT_IMPLEMENTED);
        assert_int_equal(origin_put(f.origin, &p, &b, f.arena, &attr, &e), 0);
        assert_true(slice_eq_str(meta_get(attr.meta, META_TAGS), "a=b"));
        assert_int_equal(has_value(&f, 0, "x-amz-tagging", "a=b\r\n"), as_tags);
        assert_int_equal(has_value(&f, 0, META_TAGS, "a=b\r\n"), !as_tags);
        assert_true(has_value(&f, 0, "x-amz-meta-m", "1\r\n"));
        assert_non_null(
            strstr(script_header(script_head(&f.script, 0), "authorization"),
                   as_tags ? ";x-amz-meta-m;x-amz-tagging," : ";x-amz-meta-forebay-tags;x-amz-meta-m,"));
        assert_int_equal(origin_get(f.origin, &g, f.arena, &attr, on_bytes, &s, &e), 0);
        assert_int_equal(has_value(&f, 1, "x-forebay-show", "tags\r\n"), node);
        assert_true(slice_eq_str(meta_get(attr.meta, META_TAGS), node ? "a=b" : ""));
        assert_true(slice_eq_str(meta_get(attr.meta, META_TAG_COUNT), node ? "" : "1"));
        assert_true(slice_eq_str(meta_get(attr.meta, "x-amz-meta-m"), "1"));
        fixture_stop(&f);
    }
}

struct slow_put {
    struct fixture *f;
    atomic_bool *go;
    int result;
};

/* The first byte is there at once, the rest when the test says so. */
static ssize_t slow_read(void *arg, void *p, size_t n, uint64_t offset)
{
    const struct slow_put *x = arg;
    while (offset > 0 && !atomic_load(x->go))
        script_sleep_ms(5);
    n = offset == 0 ? 1 : n;
    memset(p, 0, n);
    return (ssize_t)n;
}

static void *put_in_thread(void *arg)
{
    struct slow_put *x = arg;
    struct arena *_cleanup_(arena_freep) a = arena_new(8 * MIB);
    struct origin_put p = {.key = SLICE_LIT("k")};
    struct origin_body b = {.size_bytes = 9 * MIB, .read = slow_read, .arg = x, .slow = true};
    struct origin_attr attr;
    struct err e = {0};
    x->result = origin_put(x->f->origin, &p, &b, a, &attr, &e);
    return NULL;
}

static void wait_for_steps(struct fixture *f, size_t n)
{
    for (int i = 0; i < 12000 && script_steps_taken(&f->script) < n; i++)
        script_sleep_ms(5);
    assert_int_equal(script_steps_taken(&f->script), n);
}

/* Bodies that do not come, however many, leave a connection to those who read, and to bodies that are there:
 * who waits for a connection holds one of the places that readers need. */
static void test_slow_bodies(void **state)
{
    static const struct script_step steps[] = {
        {.answer = CREATED},   {.answer = COMPLETED}, /* of a part, which needs the ETag only */
        {.answer = CREATED},   {.answer = PART_OK},   {.answer = OK206("0-99/100", "100"), .pad = 100},
        {.answer = COMPLETED}, {.answer = COMPLETED}, {.answer = COMPLETED}};
    static const char *const options[] = {"origin.connections", "2", "origin.part_size", "16MiB", NULL};
    struct fixture f;
    atomic_bool go = false;
    fixture_start(&f, "s3://b", steps, ARRAY_SIZE(steps), options);
    struct slow_put puts[2] = {{.f = &f, .go = &go}, {.f = &f, .go = &go}};
    struct one_get one = {.f = &f};
    pthread_t threads[2], reader;
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, put_in_thread, &puts[i]), 0);
        wait_for_steps(&f, 2 + i);
    }
    script_sleep_ms(200);
    assert_int_equal(script_steps_taken(&f.script), 3); /* the second waits */
    struct origin_attr attr;
    struct err e = {0};
    assert_int_equal(put(&f, 1, NULL, &attr, &e), 0);
    assert_int_equal(pthread_create(&reader, NULL, get_in_thread, &one), 0);
    assert_int_equal(pthread_join(reader, NULL), 0);
    atomic_store(&go, true);
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(puts[i].result, 0);
    }
    assert_int_equal(one.result, 0);
    assert_int_equal(one.bytes, 100);
    fixture_stop(&f);
}

int main(void)
{
    log_set_level(LOG_LEVEL_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_put_headers),
        cmocka_unit_test(test_known_digests),
        cmocka_unit_test(test_early_refusal),
        cmocka_unit_test(test_multipart_retry),
        cmocka_unit_test(test_multipart_patience),
        cmocka_unit_test(test_how_far_a_put_came),
        cmocka_unit_test(test_multipart_abort),
        cmocka_unit_test(test_multipart_stop),
        cmocka_unit_test(test_condition_sent_twice),
        cmocka_unit_test(test_busy_after_a_lost_answer),
        cmocka_unit_test(test_metadata_makes_no_headers),
        cmocka_unit_test(test_how_tags_travel),
        cmocka_unit_test(test_set_meta_in_parts),
        cmocka_unit_test(test_set_meta_in_parts_keeps_tags),
        cmocka_unit_test(test_slow_bodies),
        cmocka_unit_test(test_remove_sent_twice),
        cmocka_unit_test(test_remove_of_any),
        cmocka_unit_test(test_put_over_any),
        cmocka_unit_test(test_complete_over_any),
        cmocka_unit_test(test_the_end_of_an_upload_that_was_there_before),
        cmocka_unit_test(test_the_end_of_an_upload_that_nobody_can_look_at),
        cmocka_unit_test(test_the_end_of_an_upload_whose_etags_say_nothing),
        cmocka_unit_test(test_put_over_a_weak_etag),
        cmocka_unit_test(test_conditions_that_are_looked_at),
        cmocka_unit_test(test_part_read_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

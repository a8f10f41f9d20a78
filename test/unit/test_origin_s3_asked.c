/* layer: origin */
/* threaded */
/*
 * What a bucket says of how its S3 origin is asked: class and encryption of what is written, who pays, and
 * whether requests are signed at all. The origin answers whatever the test scripts.
 */
#include "origin/meta.h"
#include "origin_s3_common.h"

#define COPIED                                                                                               \
    "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"                                                           \
    "<CopyObjectResult><ETag>&quot;5d41402abc4b2a76b9719d911017c592&quot;</ETag></CopyObjectResult>"
#define SEEN "HTTP/1.1 200 OK\r\nETag: \"v1\"\r\nx-amz-storage-class: GLACIER_IR\r\nContent-Length: 5\r\n\r\n"

#define SSE     "x-amz-server-side-encryption"
#define SSE_KEY "x-amz-server-side-encryption-aws-kms-key-id"

static ssize_t zeros(void *arg, void *p, size_t n, uint64_t offset)
{
    memset(p, 0, n);
    return (ssize_t)n;
}

static int put(struct fixture *f, uint64_t size, struct err *e)
{
    struct origin_put p = {.key = SLICE_LIT("k"), .content_type = SLICE_LIT("text/plain")};
    struct origin_body b = {.size_bytes = size, .read = zeros};
    struct origin_attr attr;
    return origin_put(f->origin, &p, &b, f->arena, &attr, e);
}

/* The storage class goes with what makes the object: a PUT, or the start of an upload in parts. */
static void test_storage_class(void **state)
{
    static const struct script_step steps[] = {
        {.answer = "HTTP/1.1 200 OK\r\nETag: \"new\"\r\nContent-Length: 0\r\n\r\n"},
        {.answer = "HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n"},
    };
    static const char *const options[] = {"origin.storage_class", "STANDARD_IA", NULL};
    struct fixture f;
    fixture_start(&f, "s3://b", steps, ARRAY_SIZE(steps), options);
    struct err e = {0};
    assert_int_equal(put(&f, 3, &e), 0);
    assert_int_equal(put(&f, 21 * MIB, &e), ERR_ORIGIN_DENIED);
    for (size_t i = 0; i < 2; i++)
        assert_memory_equal(script_header(script_head(&f.script, i), "x-amz-storage-class"),
                            "STANDARD_IA\r\n", 13);
    fixture_stop(&f);
}

/* How the service is to encrypt goes with what makes the object, signed like its class. */
static void test_encryption(void **state)
{
    static const struct script_step steps[] = {
        {.answer = "HTTP/1.1 200 OK\r\nETag: \"new\"\r\nContent-Length: 0\r\n\r\n"},
        {.answer = "HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n"},
    };
    static const char *const options[] = {"origin.sse", "aws:kms", "origin.sse_key", "alias/data", NULL};
    struct fixture f;
    fixture_start(&f, "s3://b", steps, ARRAY_SIZE(steps), options);
    struct err e = {0};
    assert_int_equal(put(&f, 3, &e), 0);
    assert_int_equal(put(&f, 21 * MIB, &e), ERR_ORIGIN_DENIED);
    for (size_t i = 0; i < 2; i++) {
        assert_true(has_value(&f, i, SSE, "aws:kms\r\n"));
        assert_true(has_value(&f, i, SSE_KEY, "alias/data\r\n"));
        assert_non_null(
            strstr(script_header(script_head(&f.script, i), "authorization"), ";" SSE ";" SSE_KEY));
    }
    fixture_stop(&f);
}

/* New metadata for an object that the service shows so, in a bucket with these options; the copy onto itself
 * is the second request. */
static void set_meta(struct fixture *f, const char *seen, const char *const *options)
{
    static struct script_step steps[] = {{.answer = NULL}, {.answer = COPIED, .close = true}};
    struct origin_put p = {.key = SLICE_LIT("k"), .if_match = SLICE_LIT("v1")};
    struct origin_attr attr;
    struct err e = {0};
    steps[0].answer = seen;
    fixture_start(f, "s3://b", steps, ARRAY_SIZE(steps), options);
    assert_int_equal(origin_set_meta(f->origin, &p, 5, f->arena, &attr, &e), 0);
    assert_int_equal(script_steps_taken(&f->script), 2);
}

/* An object whose metadata changes stays in its storage class, unless the bucket names one. (Seen to fail
 * without it: the copy went to the service's default.) */
static void test_set_meta_keeps_the_storage_class(void **state)
{
    static const char *const own[] = {"origin.storage_class", "STANDARD_IA", NULL};
    for (size_t is_set = 0; is_set < 2; is_set++) {
        struct fixture f;
        set_meta(&f, SEEN, is_set ? own : NULL);
        assert_true(has_value(&f, 1, "x-amz-storage-class", is_set ? "STANDARD_IA\r\n" : "GLACIER_IR\r\n"));
        fixture_stop(&f);
    }
}

/* ... and encrypted as it was, by the key that it has, unless the bucket says how. */
static void test_set_meta_keeps_the_encryption(void **state)
{
    static const char seen[] = "HTTP/1.1 200 OK\r\nETag: \"v1\"\r\n" SSE ": aws:kms\r\n" SSE_KEY
                               ": arn:aws:kms:eu-west-1:1:key/7\r\nContent-Length: 5\r\n\r\n";
    static const char *const own[] = {"origin.sse", "AES256", NULL};
    struct fixture f;
    set_meta(&f, seen, NULL);
    assert_true(has_value(&f, 1, SSE, "aws:kms\r\n"));
    assert_true(has_value(&f, 1, SSE_KEY, "arn:aws:kms:eu-west-1:1:key/7\r\n"));
    fixture_stop(&f);
    set_meta(&f, seen, own);
    assert_true(has_value(&f, 1, SSE, "AES256\r\n"));
    assert_null(script_header(script_head(&f.script, 1), SSE_KEY));
    fixture_stop(&f);
}

/* Whoever asks pays: said with each request, signed. */
static void test_requester_pays(void **state)
{
    static const struct script_step steps[] = {{.answer = OK200("0")}};
    static const char *const pays[] = {"origin.requester_pays", "true", NULL};
    for (size_t i = 0; i < 2; i++) {
        struct fixture f;
        struct sink s;
        struct err e = {0};
        fixture_start(&f, "s3://b", steps, 1, i == 0 ? pays : NULL);
        assert_int_equal(get(&f, 0, 0, &s, &e), 0);
        const char *found = script_header(script_head(&f.script, 0), "x-amz-request-payer");
        assert_true(i == 0 ? found && strncmp(found, "requester\r\n", 11) == 0 : !found);
        assert_int_equal(!strstr(script_header(script_head(&f.script, 0), "authorization"), "request-payer"),
                         i);
        fixture_stop(&f);
    }
}

/* Opened before a script with these options and no others. */
static int open_with(struct script *script, const char *const *options, struct origin **ret, struct err *e)
{
    struct origin_options o;
    char endpoint[64];
    (void)snprintf(endpoint, sizeof(endpoint), "http://127.0.0.1:%u", script->port);
    assert_int_equal(option_init(&origin_option_table, &o, e), 0);
    set_option(&o, "origin.endpoint", endpoint);
    for (; *options; options += 2)
        set_option(&o, options[0], options[1]);
    int r = origin_open("s3://b", &o, "scripted", ret, e);
    option_fini(&origin_option_table, &o);
    return r;
}

/* With origin.anonymous no keys are looked for: what the environment has signs nothing. What the bucket
 * itself has beside it is refused, and so is a key of KMS for nothing. */
static void test_anonymous(void **state)
{
    static const struct script_step steps[] = {{.answer = OK200("0")}};
    static const char *const without[] = {"origin.anonymous", "true", NULL};
    static const char *const refused[][5] = {
        {"origin.anonymous", "true", "origin.profile", "p", NULL},
        {"origin.anonymous", "true", "origin.session_token", "t", NULL},
        {"origin.sse", "AES256", "origin.sse_key", "k", NULL},
        {"origin.sse_key", "k", NULL},
    };
    struct fixture f = {.arena = arena_new(MIB)};
    struct sink s;
    struct err e = {0};
    (void)setenv("AWS_ACCESS_KEY_ID", "AK", 1);
    (void)setenv("AWS_SECRET_ACCESS_KEY", "SK", 1);
    script_start(&f.script, steps, 1);
    assert_int_equal(open_with(&f.script, without, &f.origin, &e), 0);
    assert_int_equal(get(&f, 0, 0, &s, &e), 0);
    const char *head = script_head(&f.script, 0);
    assert_null(script_header(head, "authorization"));
    assert_null(script_header(head, "x-amz-date"));
    for (size_t i = 0; i < ARRAY_SIZE(refused); i++) {
        struct origin *none = NULL;
        e = (struct err){0};
        assert_int_equal(open_with(&f.script, refused[i], &none, &e), ERR_BAD_OPTION);
        assert_non_null(strstr(e.text, i < 2 ? "origin.anonymous and " : "origin.sse_key: "));
    }
    fixture_stop(&f);
    (void)unsetenv("AWS_ACCESS_KEY_ID");
    (void)unsetenv("AWS_SECRET_ACCESS_KEY");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_storage_class),
        cmocka_unit_test(test_encryption),
        cmocka_unit_test(test_set_meta_keeps_the_storage_class),
        cmocka_unit_test(test_set_meta_keeps_the_encryption),
        cmocka_unit_test(test_requester_pays),
        cmocka_unit_test(test_anonymous),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

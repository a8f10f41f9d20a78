/* layer: origin */
/* threaded */
/*
 * Credentials of containers and instances: what is asked, kept, renewed and sent, against a scripted server.
 */
#include "origin/s3_internal.h"

#include "support/clock_sys.h"
#include "web_fixture.h"

static const char *const instance[] = {"origin.endpoint",
                                       "http://127.0.0.1:%p",
                                       "origin.metadata_endpoint",
                                       "http://127.0.0.1:%p/",
                                       "origin.style",
                                       "path",
                                       NULL};

#define TEXT(status, body) "HTTP/1.1 " status "\r\nConnection: close\r\n\r\n" body
#define KEYS(name, end)                                                                                      \
    TEXT("200 OK", "{\"Code\":\"Success\",\"AccessKeyId\":\"" name                                           \
                   "\",\"SecretAccessKey\":\"hush\",\"Token\":\"tok-" name "\","                             \
                   "\"Expiration\":\"" end "\"}")
#define FAR    "2099-01-01T00:00:00Z"
#define OBJECT "HTTP/1.1 200 OK\r\nETag: \"1\"\r\nContent-Length: 5\r\nConnection: close\r\n\r\n"

static bool is_signed_with(const char *head, const char *key)
{
    char credential[64], token[64];
    (void)snprintf(credential, sizeof(credential), "Credential=%s/", key);
    (void)snprintf(token, sizeof(token), "x-amz-security-token: tok-%s\r\n", key);
    return strstr(head, credential) && strstr(head, token);
}

/* An instance's role: a session token first, then the role, then its keys, which sign the requests and are
 * kept. */
static void test_instance(void **state)
{
    static const struct script_step steps[] = {
        {.answer = TEXT("200 OK", "session"), .close = true},
        {.answer = TEXT("200 OK", "my role\n"), .close = true},
        {.answer = KEYS("one", FAR), .close = true},
        {.answer = OBJECT, .close = true},
        {.answer = OBJECT, .close = true},
    };
    struct web_fixture f;
    struct origin_attr attr;
    struct err e;
    web_fixture_start(&f, "s3://bucket", steps, ARRAY_SIZE(steps), instance);
    for (int i = 0; i < 2; i++)
        WEB_FIXTURE_OK(web_fixture_stat(&f, &attr, &e), e);
    assert_non_null(strstr(script_head(&f.script, 0), "PUT /latest/api/token HTTP/1.1\r\n"));
    assert_non_null(script_header(script_head(&f.script, 0), "x-aws-ec2-metadata-token-ttl-seconds"));
    assert_non_null(
        strstr(script_head(&f.script, 1), "GET /latest/meta-data/iam/security-credentials/ HTTP/1.1\r\n"));
    assert_non_null(strstr(script_head(&f.script, 2), "/security-credentials/my%20role HTTP/1.1\r\n"));
    assert_non_null(strstr(script_head(&f.script, 2), "x-aws-ec2-metadata-token: session\r\n"));
    assert_true(is_signed_with(script_head(&f.script, 3), "one") &&
                is_signed_with(script_head(&f.script, 4), "one"));
    web_fixture_stop(&f);
}

/* The service of the instance takes the question of a container, and its answer goes no further than to the
 * machine: that is told, and what to do. */
static void test_an_answer_that_goes_no_further(void **state)
{
    (void)state;
    static const struct script_step steps[] = {{.silent = true}};
    static const char *const hasty[] = {"origin.endpoint",
                                        "http://127.0.0.1:%p",
                                        "origin.metadata_endpoint",
                                        "http://127.0.0.1:%p/",
                                        "origin.timeout",
                                        "200ms",
                                        NULL};
    struct web_fixture f;
    struct origin_attr attr;
    struct err e;
    web_fixture_start(&f, "s3://bucket", steps, ARRAY_SIZE(steps), hasty);
    assert_int_equal(web_fixture_stat(&f, &attr, &e), -ETIMEDOUT);
    if (!strstr(e.text, "/latest/api/token: ") ||
        !strstr(e.text, "set the instance's HttpPutResponseHopLimit to 2"))
        fail_msg("%s", e.text);
    web_fixture_stop(&f);
}

/* A machine without a role sends unsigned requests. */
static void test_no_role(void **state)
{
    static const struct script_step steps[] = {{.answer = TEXT("200 OK", "session"), .close = true},
                                               {.answer = TEXT("404 Not Found", ""), .close = true},
                                               {.answer = OBJECT, .close = true}};
    struct web_fixture f;
    struct origin_attr attr;
    struct err e;
    web_fixture_start(&f, "s3://bucket", steps, ARRAY_SIZE(steps), instance);
    WEB_FIXTURE_OK(web_fixture_stat(&f, &attr, &e), e);
    assert_null(script_header(script_head(&f.script, 2), "authorization"));
    web_fixture_stop(&f);
}

/* Keys "one" that end in a minute: soon enough to be renewed every ten seconds. */
static void keys_for_a_minute(char *ret, size_t size)
{
    char soon[40];
    time_t end = time(NULL) + 60;
    struct tm tm;
    (void)strftime(soon, sizeof(soon), "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&end, &tm));
    (void)snprintf(
        ret, size,
        "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{\"AccessKeyId\":\"one\",\"SecretAccessKey\":\"hush\","
        "\"Token\":\"tok-one\",\"Expiration\":\"%s\"}",
        soon);
}

static void write_keys(const char *path, const char *name)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fprintf(f,
                        "[default]\naws_access_key_id=%s\naws_secret_access_key=hush\n"
                        "aws_session_token=tok-%s\n",
                        name, name) > 0);
    assert_int_equal(fclose(f), 0);
}

/* Keys of a file that others renew there: once they are refused, the file is read again, and what was refused
 * is sent again, with those. (Without s3_provider_of_files the third request is signed with the first ones;
 * without `ended` in web_perform there is none.) */
static void test_a_file_that_is_renewed(void **state)
{
    static const struct script_step steps[] = {
        {.answer = OBJECT, .close = true},
        {.answer = TEXT("400 Bad", ""), .close = true}, /* to a HEAD */
        {.answer = OBJECT, .close = true},
    };
    static const char *const options[] = {"origin.endpoint", "http://127.0.0.1:%p", "origin.style", "path",
                                          NULL};
    char path[] = "/tmp/forebay-keys-XXXXXX";
    struct web_fixture f;
    struct origin_attr attr;
    struct err e;
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    (void)close(fd);
    (void)setenv("AWS_SHARED_CREDENTIALS_FILE", path, 1);
    write_keys(path, "one");
    web_fixture_start(&f, "s3://bucket", steps, ARRAY_SIZE(steps), options);
    WEB_FIXTURE_OK(web_fixture_stat(&f, &attr, &e), e);
    write_keys(path, "two");
    WEB_FIXTURE_OK(web_fixture_stat(&f, &attr, &e), e);
    assert_true(is_signed_with(script_head(&f.script, 0), "one") &&
                is_signed_with(script_head(&f.script, 1), "one") &&
                is_signed_with(script_head(&f.script, 2), "two"));
    web_fixture_stop(&f);
    (void)unsetenv("AWS_SHARED_CREDENTIALS_FILE");
    (void)unlink(path);
}

/* A profile whose keys a program prints, and says in `count` that it was run. */
static void write_profile(const char *path, const char *count, const char *printed, const char *end)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fprintf(f, "[default]\ncredential_process = echo run >>%s; printf '%%s' '%s'; %s\n", count,
                        printed, end) > 0);
    assert_int_equal(fclose(f), 0);
}

static size_t lines_of(const char *path)
{
    char *text = NULL;
    size_t n = 0, lines = 0;
    assert_int_equal(sys_read_file(path, MIB, &text, &n), 0);
    for (size_t i = 0; i < n; i++)
        lines += text[i] == '\n';
    free(text);
    return lines;
}

#define PRINTED(name, more)                                                                                  \
    "{\"Version\":1,\"AccessKeyId\":\"" name "\",\"SecretAccessKey\":\"hush\",\"SessionToken\":\"tok-" name  \
    "\"" more "}"

/* Keys that the profile's program prints sign the requests. They are kept until they end or are refused: then
 * it is run again. (Without s3_provider_of_process requests are not signed; with "Token" in read_printed the
 * session token is missing.) */
static void test_a_program(void **state)
{
    static const struct script_step steps[] = {
        {.answer = OBJECT, .close = true},
        {.answer = OBJECT, .close = true},
        {.answer = TEXT("400 Bad", ""), .close = true}, /* to a HEAD */
        {.answer = OBJECT, .close = true},
        {.answer = OBJECT, .close = true},
    };
    static const char *const options[] = {"origin.endpoint", "http://127.0.0.1:%p", "origin.style", "path",
                                          NULL};
    char config[] = "/tmp/forebay-config-XXXXXX", count[] = "/tmp/forebay-count-XXXXXX";
    struct web_fixture f;
    struct origin_attr attr;
    struct err e;
    (void)close(mkstemp(config));
    (void)close(mkstemp(count));
    (void)setenv("AWS_CONFIG_FILE", config, 1);
    write_profile(config, count, PRINTED("one", ",\"Expiration\":\"2099-01-01T00:00:00+00:00\""), "exit 0");
    web_fixture_start(&f, "s3://bucket", steps, ARRAY_SIZE(steps), options);
    for (int i = 0; i < 2; i++)
        WEB_FIXTURE_OK(web_fixture_stat(&f, &attr, &e), e);
    assert_int_equal(lines_of(count), 1);
    for (int i = 0; i < 2; i++)
        WEB_FIXTURE_OK(web_fixture_stat(&f, &attr, &e), e);
    assert_int_equal(lines_of(count), 2);
    for (size_t i = 0; i < ARRAY_SIZE(steps); i++)
        assert_true(is_signed_with(script_head(&f.script, i), "one"));
    web_fixture_stop(&f);
    (void)setenv("AWS_CONFIG_FILE", "/nonexistent", 1);
    (void)unlink(config);
    (void)unlink(count);
}

/* A program that fails, prints something else, or too much: no request is sent, and the error names it
 * without what it printed. */
static void test_programs_that_fail(void **state)
{
    static const struct {
        const char *printed, *end, *said;
    } bad[] = {
        {PRINTED("one", ""), "exit 7", "exit status 7"},
        {PRINTED("one", ""), "kill -9 $$", "ended by signal 9"},
        {"secret", "true", "Version"},
        {"{\"Version\":2,\"AccessKeyId\":\"secret\"}", "true", "Version"},
        {"{\"Version\":1,\"AccessKeyId\":\"secret\"}", "true", "has none"},
        {"secret", "head -c 3000000 /dev/zero", "too much"},
    };
    static const char *const options[] = {"origin.endpoint", "http://127.0.0.1:%p", NULL};
    char config[] = "/tmp/forebay-config-XXXXXX";
    (void)close(mkstemp(config));
    (void)setenv("AWS_CONFIG_FILE", config, 1);
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        struct web_fixture f;
        struct origin_attr attr;
        struct err e = {0};
        write_profile(config, "/dev/null", bad[i].printed, bad[i].end);
        web_fixture_start(&f, "s3://bucket", NULL, 0, options);
        assert_true(web_fixture_stat(&f, &attr, &e) < 0);
        if (!strstr(e.text, bad[i].said) || strstr(e.text, "secret"))
            fail_msg("%s: %s", bad[i].said, e.text);
        assert_int_equal(script_steps_taken(&f.script), 0);
        web_fixture_stop(&f);
    }
    (void)setenv("AWS_CONFIG_FILE", "/nonexistent", 1);
    (void)unlink(config);
}

static void *set_soon(void *flag)
{
    (void)usleep(300000);
    atomic_store((atomic_bool *)flag, true);
    return NULL;
}

/* A program that hangs is given up, and ended, when nobody wants what waits for it any more. (Fails where
 * only its own 30 seconds count.) */
static void test_a_program_that_hangs(void **state)
{
    static const char *const options[] = {"origin.endpoint", "http://127.0.0.1:%p", NULL};
    char config[] = "/tmp/forebay-config-XXXXXX";
    atomic_bool stop = false;
    struct web_fixture f;
    struct origin_attr attr;
    struct err e = {0};
    pthread_t thread;
    (void)close(mkstemp(config));
    (void)setenv("AWS_CONFIG_FILE", config, 1);
    write_profile(config, "/dev/null", PRINTED("one", ""), "sleep 29");
    web_fixture_start(&f, "s3://bucket", NULL, 0, options);
    f.origin->stop = &stop;
    uint64_t began_ms = sys_mono_ms();
    assert_int_equal(pthread_create(&thread, NULL, set_soon, &stop), 0);
    assert_int_equal(web_fixture_stat(&f, &attr, &e), -ECANCELED);
    assert_true(sys_mono_ms() - began_ms < 20000);
    assert_int_equal(pthread_join(thread, NULL), 0);
    web_fixture_stop(&f);
    (void)setenv("AWS_CONFIG_FILE", "/nonexistent", 1);
    (void)unlink(config);
}

/* An origin whose keys are a container's, from /creds of the script. */
static void container_start(struct web_fixture *f, const struct script_step *steps, size_t n, char uri[64])
{
    char endpoint[64];
    struct origin_options o;
    struct err e = {0};
    *f = (struct web_fixture){.arena = arena_new(MIB)};
    script_start(&f->script, steps, n);
    (void)snprintf(uri, 64, "http://127.0.0.1:%u/creds", f->script.port);
    (void)snprintf(endpoint, sizeof(endpoint), "http://127.0.0.1:%u", f->script.port);
    (void)setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", uri, 1);
    (void)setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN", "Basic abc", 1);
    assert_int_equal(option_init(&origin_option_table, &o, &e), 0);
    web_fixture_option(&o, "origin.endpoint", endpoint);
    WEB_FIXTURE_OK(origin_open("s3://bucket", &o, "t", &f->origin, &e), e);
    option_fini(&origin_option_table, &o);
    (void)unsetenv("AWS_CONTAINER_CREDENTIALS_FULL_URI");
    (void)unsetenv("AWS_CONTAINER_AUTHORIZATION_TOKEN");
}

/* A container's keys: with its token; renewed when they soon end, and after they were refused; a failure
 * tells where was asked. */
static void test_container(void **state)
{
    char first[400];
    struct script_step steps[] = {
        {.answer = first, .close = true}, /* ends in a minute */
        {.answer = OBJECT, .close = true},
        {.answer = TEXT("500 Oh", "no"), .close = true}, /* the old ones last */
        {.answer = OBJECT, .close = true},
        {.answer = KEYS("two", FAR), .close = true},
        {.answer = TEXT("400 Bad", "<Error><Code>ExpiredToken</Code></Error>"), .close = true},
        {.answer = TEXT("403 No", "who are you"), .close = true},
    };
    keys_for_a_minute(first, sizeof(first));
    char uri[64];
    struct web_fixture f;
    struct origin_attr attr;
    struct err e = {0};
    clock_sys_start(1000000000000, (uint64_t)time(NULL) * 1000000000);
    container_start(&f, steps, ARRAY_SIZE(steps), uri);
    WEB_FIXTURE_OK(web_fixture_stat(&f, &attr, &e), e);
    clock_sys_advance(10000000000);
    WEB_FIXTURE_OK(web_fixture_stat(&f, &attr, &e), e);
    clock_sys_advance(10000000000);
    struct web_sink sink;
    assert_int_equal(web_fixture_get(&f, 0, 0, NULL, &sink, &e), ERR_ORIGIN_DENIED); /* ExpiredToken first */
    if (!strstr(e.text, uri) || !strstr(e.text, "who are you") || strstr(e.text, "hush"))
        fail_msg("%s", e.text);
    assert_non_null(strstr(script_head(&f.script, 0), "GET /creds HTTP/1.1\r\n"));
    assert_non_null(strstr(script_head(&f.script, 0), "authorization: Basic abc\r\n"));
    assert_true(is_signed_with(script_head(&f.script, 1), "one") &&
                is_signed_with(script_head(&f.script, 3), "one"));
    assert_true(is_signed_with(script_head(&f.script, 5), "two"));
    web_fixture_stop(&f);
    clock_sys_stop();
}

/* A service that knows no keys says nothing about objects: none of them is told as not there, and no
 * condition as failed. */
static void test_no_keys_are_no_absence(void **state)
{
    static const struct script_step steps[] = {
        {.answer = TEXT("404 Not Found", "no such pod"), .close = true},
        {.answer = TEXT("412 Oh", "no"), .close = true},
        {.answer = TEXT("404 Not Found", "no such pod"), .close = true}};
    char uri[64];
    struct web_fixture f;
    struct origin_attr attr;
    struct err e = {0};
    container_start(&f, steps, ARRAY_SIZE(steps), uri);
    assert_int_equal(web_fixture_stat(&f, &attr, &e), ERR_ORIGIN_DENIED);
    assert_int_equal(e.code, ERR_ORIGIN_DENIED);
    if (!strstr(e.text, uri) || !strstr(e.text, "404 Not Found: no such pod"))
        fail_msg("%s", e.text);
    assert_int_equal(web_fixture_stat(&f, &attr, &e), ERR_ORIGIN_DENIED);
    assert_int_equal(origin_remove(f.origin, SLICE_LIT("k"), SLICE_NULL, &e), ERR_ORIGIN_DENIED);
    web_fixture_stop(&f);
}

/* Only an answer that says that keys have ended makes others be asked for. */
static void test_bad_requests_keep_keys(void **state)
{
    static const struct script_step steps[] = {
        {.answer = KEYS("one", FAR), .close = true},
        {.answer = TEXT("400 Bad", "<Error><Code>InvalidArgument</Code></Error>"), .close = true},
        {.answer = OBJECT, .close = true},
    };
    char uri[64];
    struct web_fixture f;
    struct web_sink sink;
    struct origin_attr attr;
    struct err e = {0};
    container_start(&f, steps, ARRAY_SIZE(steps), uri);
    assert_int_equal(web_fixture_get(&f, 0, 0, NULL, &sink, &e), ERR_ORIGIN_REFUSED);
    WEB_FIXTURE_OK(web_fixture_stat(&f, &attr, &e), e);
    assert_true(is_signed_with(script_head(&f.script, 2), "one"));
    web_fixture_stop(&f);
}

#define DENIED(words) TEXT("403 Forbidden", words)
#define WHY           "<Error><Code>AccessDenied</Code><Message>not yours</Message></Error>"

/* A HEAD that is refused without a word is told with the service's words: the first byte is asked for. Where
 * they are no end of the credentials nobody asks for others, nor, for a second, once more; that something
 * else may be read says nothing. (Without s3_request_why there is no AccessDenied in the text; without why_ms
 * the fourth request is a GET, and each refusal costs two.) */
static void test_refusals_of_head_get_their_words(void **state)
{
    static const struct script_step steps[] = {
        {.answer = KEYS("one", FAR), .close = true}, {.answer = DENIED(""), .close = true},
        {.answer = DENIED(WHY), .close = true},      {.answer = DENIED(""), .close = true},
        {.answer = DENIED(""), .close = true},       {.answer = DENIED(WHY), .close = true},
    };
    char uri[64];
    struct web_fixture f;
    struct origin_attr attr;
    struct err e = {0};
    container_start(&f, steps, ARRAY_SIZE(steps), uri);
    clock_sys_start(1000000000000, 1000000000000);
    assert_int_equal(web_fixture_stat(&f, &attr, &e), ERR_ORIGIN_DENIED);
    if (!strstr(e.text, "403 AccessDenied: not yours"))
        fail_msg("%s", e.text);
    assert_non_null(strstr(script_head(&f.script, 2), "GET /bucket/"));
    assert_non_null(strstr(script_head(&f.script, 2), "bytes=0-0\r\n"));
    assert_int_equal(web_fixture_stat(&f, &attr, &e), ERR_ORIGIN_DENIED);
    if (!strstr(e.text, "403 Forbidden"))
        fail_msg("%s", e.text);
    clock_sys_advance(1000000000);
    assert_int_equal(web_fixture_stat(&f, &attr, &e), ERR_ORIGIN_DENIED);
    if (!strstr(e.text, "403 AccessDenied: not yours"))
        fail_msg("%s", e.text);
    for (unsigned i = 1; i < ARRAY_SIZE(steps); i++)
        assert_true(is_signed_with(script_head(&f.script, i), "one"));
    clock_sys_stop();
    web_fixture_stop(&f);
}

/* Credentials that have ended, which the answer to a HEAD cannot say, with the status 403 that some services
 * have for that: the GET says it, others are asked for, and the HEAD is sent again with those. */
static void test_ended_keys_of_a_head(void **state)
{
    static const struct script_step steps[] = {
        {.answer = KEYS("one", FAR), .close = true},
        {.answer = DENIED(""), .close = true},
        {.answer = DENIED("<Error><Code>ExpiredToken</Code></Error>"), .close = true},
        {.answer = KEYS("two", FAR), .close = true},
        {.answer = OBJECT "12345", .close = true}, /* of a service that ignores ranges */
        {.answer = OBJECT, .close = true},
    };
    char uri[64];
    struct web_fixture f;
    struct origin_attr attr;
    struct err e = {0};
    container_start(&f, steps, ARRAY_SIZE(steps), uri);
    WEB_FIXTURE_OK(web_fixture_stat(&f, &attr, &e), e);
    assert_true(is_signed_with(script_head(&f.script, 2), "one") &&
                is_signed_with(script_head(&f.script, 4), "two") &&
                is_signed_with(script_head(&f.script, 5), "two"));
    assert_non_null(strstr(script_head(&f.script, 5), "HEAD "));
    web_fixture_stop(&f);
}

/* A role that is gone for a moment, while its keys are good, leaves requests signed. */
static void test_role_gone_for_a_moment(void **state)
{
    char keys[400];
    struct script_step steps[] = {
        {.answer = TEXT("200 OK", "session"), .close = true},
        {.answer = TEXT("200 OK", "role"), .close = true},
        {.answer = keys, .close = true},
        {.answer = OBJECT, .close = true},
        {.answer = TEXT("200 OK", "session"), .close = true},
        {.answer = TEXT("404 Not Found", ""), .close = true},
        {.answer = OBJECT, .close = true},
    };
    struct web_fixture f;
    struct origin_attr attr;
    struct err e;
    keys_for_a_minute(keys, sizeof(keys));
    clock_sys_start(1000000000000, (uint64_t)time(NULL) * 1000000000);
    web_fixture_start(&f, "s3://bucket", steps, ARRAY_SIZE(steps), instance);
    for (int i = 0; i < 2; i++) {
        WEB_FIXTURE_OK(web_fixture_stat(&f, &attr, &e), e);
        clock_sys_advance(10000000000);
    }
    assert_true(is_signed_with(script_head(&f.script, 6), "one"));
    web_fixture_stop(&f);
    clock_sys_stop();
}

static atomic_uint n_asking;

static void *stat_in_thread(void *arg)
{
    struct web_fixture own = {.origin = ((struct web_fixture *)arg)->origin, .arena = arena_new(MIB)};
    struct origin_attr attr;
    struct err e;
    (void)atomic_fetch_add(&n_asking, 1);
    int r = web_fixture_stat(&own, &attr, &e);
    arena_free(own.arena);
    return r == ERR_ORIGIN_FAILED && strstr(e.text, "500 Oh") ? arg : NULL;
}

/* Three want keys, whose service answers when all of them have come; how often it was asked. */
static size_t fail_together(struct web_fixture *f, atomic_bool *go)
{
    size_t before = script_steps_taken(&f->script);
    pthread_t threads[3];
    void *good;
    atomic_store(go, false);
    atomic_store(&n_asking, 0);
    for (size_t i = 0; i < ARRAY_SIZE(threads); i++)
        assert_int_equal(pthread_create(&threads[i], NULL, stat_in_thread, f), 0);
    while (atomic_load(&n_asking) < ARRAY_SIZE(threads) || script_steps_taken(&f->script) == before)
        script_sleep_ms(1);
    script_sleep_ms(200);
    atomic_store(go, true);
    for (size_t i = 0; i < ARRAY_SIZE(threads); i++) {
        assert_int_equal(pthread_join(threads[i], &good), 0);
        assert_non_null(good);
    }
    return script_steps_taken(&f->script) - before;
}

/* Who waits for keys that another asks for hears of its failure, and does not ask in turn: each would wait
 * for all before it. (Whether a thread waits already nobody sees: one round of many is what is asked for.) */
static void test_failure_is_shared(void **state)
{
    enum { ROUNDS = 20 };
    struct script_step steps[3 * ROUNDS];
    atomic_bool go;
    struct web_fixture f;
    size_t n_asked = 0;
    for (size_t i = 0; i < ARRAY_SIZE(steps); i++)
        steps[i] = (struct script_step){.answer = TEXT("500 Oh", "no"), .gate = &go, .close = true};
    web_fixture_start(&f, "s3://bucket", steps, ARRAY_SIZE(steps), instance);
    for (int i = 0; i < ROUNDS && n_asked != 1; i++)
        n_asked = fail_together(&f, &go);
    assert_int_equal(n_asked, 1);
    web_fixture_stop(&f);
}

/* Keys of one's own come first, nobody is asked; a container's address must be near or https; the instance
 * can be switched off. */
static void test_precedence(void **state)
{
    struct origin_options o;
    struct origin *x = NULL;
    struct err e = {0};
    assert_int_equal(option_init(&origin_option_table, &o, &e), 0);
    (void)setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://198.51.100.1/creds", 1);
    assert_int_equal(origin_open("s3://bucket", &o, "t", &x, &e), ERR_BAD_OPTION);
    assert_non_null(strstr(e.text, "AWS_CONTAINER_CREDENTIALS_FULL_URI"));
    web_fixture_option(&o, "origin.access_key", "AK");
    web_fixture_option(&o, "origin.secret_key", "SK");
    WEB_FIXTURE_OK(origin_open("s3://bucket", &o, "t", &x, &e), e);
    assert_null(s3_of(x)->keys.provider);
    origin_close(x);
    option_fini(&origin_option_table, &o);
    (void)unsetenv("AWS_CONTAINER_CREDENTIALS_FULL_URI");
    (void)setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://127.0.0.1:1", 1);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(option_init(&origin_option_table, &o, &e), 0);
        (void)setenv("AWS_EC2_METADATA_DISABLED", i ? "true" : "false", 1);
        WEB_FIXTURE_OK(origin_open("s3://bucket", &o, "t", &x, &e), e);
        assert_true(!s3_of(x)->keys.provider == (i == 1));
        origin_close(x);
        option_fini(&origin_option_table, &o);
    }
    (void)unsetenv("AWS_EC2_METADATA_SERVICE_ENDPOINT");
    (void)unsetenv("AWS_EC2_METADATA_DISABLED");
}

static int start(void **state)
{
    static const char *const away[] = {"AWS_ACCESS_KEY_ID",
                                       "AWS_SECRET_ACCESS_KEY",
                                       "AWS_PROFILE",
                                       "AWS_ENDPOINT_URL",
                                       "AWS_ENDPOINT_URL_S3",
                                       "AWS_CONTAINER_CREDENTIALS_FULL_URI",
                                       "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
                                       "AWS_EC2_METADATA_SERVICE_ENDPOINT",
                                       "AWS_EC2_METADATA_DISABLED",
                                       "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"};
    for (size_t i = 0; i < ARRAY_SIZE(away); i++)
        (void)unsetenv(away[i]);
    (void)setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent", 1);
    (void)setenv("AWS_CONFIG_FILE", "/nonexistent", 1);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_instance),
                                       cmocka_unit_test(test_an_answer_that_goes_no_further),
                                       cmocka_unit_test(test_no_role),
                                       cmocka_unit_test(test_a_file_that_is_renewed),
                                       cmocka_unit_test(test_a_program),
                                       cmocka_unit_test(test_programs_that_fail),
                                       cmocka_unit_test(test_a_program_that_hangs),
                                       cmocka_unit_test(test_container),
                                       cmocka_unit_test(test_precedence),
                                       cmocka_unit_test(test_failure_is_shared),
                                       cmocka_unit_test(test_no_keys_are_no_absence),
                                       cmocka_unit_test(test_bad_requests_keep_keys),
                                       cmocka_unit_test(test_refusals_of_head_get_their_words),
                                       cmocka_unit_test(test_ended_keys_of_a_head),
                                       cmocka_unit_test(test_role_gone_for_a_moment)};
    return cmocka_run_group_tests(tests, start, NULL);
}

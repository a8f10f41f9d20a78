/* layer: origin */
/*
 * Credentials files of Google Cloud without a key: what is exchanged for what, against a scripted server.
 */
#include "origin/gs_internal.h"

#include "support/fault_sys.h"
#include "web_fixture.h"

#include <unistd.h>

#define TEXT(status, body) "HTTP/1.1 " status "\r\nConnection: close\r\n\r\n" body
#define TOKEN(name)                                                                                          \
    TEXT("200 OK", "{\"access_token\":\"" name "\",\"expires_in\":3600,\"token_type\":\"Bearer\"}")
#define ACCOUNT(name, end) TEXT("200 OK", "{\"accessToken\":\"" name "\",\"expireTime\":\"" end "\"}")
#define FAR                "2099-01-01T00:00:00Z"

static char credentials_path[] = "/tmp/forebay-gs-XXXXXX";
static char subject_path[] = "/tmp/forebay-subject-XXXXXX";

static void write_text(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    assert_true(f && fputs(text, f) >= 0 && fclose(f) == 0);
}

static int setup(void **state)
{
    char *paths[] = {credentials_path, subject_path};
    for (size_t i = 0; i < ARRAY_SIZE(paths); i++) {
        int fd = mkstemp(paths[i]);
        assert_true(fd >= 0 && close(fd) == 0);
    }
    (void)unsetenv("GOOGLE_APPLICATION_CREDENTIALS");
    (void)unsetenv("GCE_METADATA_HOST");
    (void)setenv("HOME", "/nonexistent", 1);
    return 0;
}

static int teardown(void **state)
{
    (void)unlink(subject_path);
    return unlink(credentials_path);
}

static int open_token(const char *file, struct gs_token **ret, struct err *e)
{
    struct origin_options o;
    *e = (struct err){0};
    write_text(credentials_path, file);
    assert_int_equal(option_init(&origin_option_table, &o, e), 0);
    web_fixture_option(&o, "origin.credentials_file", credentials_path);
    int r = gs_token_new(&o, /* emulator= */ false, ret, e);
    option_fini(&origin_option_table, &o);
    return r;
}

/* An external account of the script: `more` members of its credential_source, and of the whole. */
static void start(struct script *s, const struct script_step *steps, size_t n, const char *source,
                  const char *account, struct gs_token **ret)
{
    char text[2048], whole[256] = "";
    struct err e;
    script_start(s, steps, n);
    if (account)
        (void)snprintf(whole, sizeof(whole),
                       ",\"service_account_impersonation_url\":\"http://127.0.0.1:%u/v1/%s\"", s->port,
                       account);
    (void)snprintf(text, sizeof(text),
                   "{\"type\":\"external_account\",\"audience\":\"//iam/pool\",\"subject_token_type\":"
                   "\"urn:jwt\",\"token_url\":\"http://127.0.0.1:%u/v1/token\",\"credential_source\":"
                   "{\"file\":\"%s\"%s}%s}",
                   s->port, subject_path, source, whole);
    WEB_FIXTURE_OK(open_token(text, ret, &e), e);
}

static void expect(struct gs_token *t, const char *token, uint64_t *ret_version)
{
    struct buf _cleanup_buf_ b = BUF_INIT(64 * KIB);
    struct err e = {0};
    WEB_FIXTURE_OK(gs_token_get(t, &b, ret_version, &e), e);
    assert_string_equal(b.p, token);
}

/* The token in the file is exchanged, read anew each time. */
static void test_exchange(void **state)
{
    static const struct script_step steps[] = {{.answer = TOKEN("one"), .close = true},
                                               {.answer = TOKEN("two"), .close = true}};
    struct script s;
    struct gs_token *t = NULL;
    uint64_t version = 0;
    write_text(subject_path, "first+token\n");
    start(&s, steps, ARRAY_SIZE(steps), "", NULL, &t);
    for (int i = 0; i < 2; i++)
        expect(t, "one", &version);
    assert_non_null(strstr(script_head(&s, 0), "POST /v1/token HTTP/1.1\r\n"));
    assert_null(script_header(script_head(&s, 0), "authorization"));
    assert_string_equal(s.body, "grant_type=urn%3Aietf%3Aparams%3Aoauth%3Agrant-type%3Atoken-exchange&"
                                "audience=%2F%2Fiam%2Fpool&scope=https%3A%2F%2Fwww.googleapis.com%2Fauth%2F"
                                "devstorage.read_write&requested_token_type=urn%3Aietf%3Aparams%3Aoauth%3A"
                                "token-type%3Aaccess_token&subject_token_type=urn%3Ajwt&"
                                "subject_token=first%2Btoken");
    assert_non_null(strstr(gs_token_told(t), "external account of /tmp/forebay-gs-"));
    assert_null(strstr(gs_token_told(t), "first"));
    gs_token_drop(t, version);
    write_text(subject_path, "second");
    expect(t, "two", &version);
    assert_non_null(strstr(s.body, "&subject_token=second"));
    gs_token_free(t);
    script_stop(&s);
}

/* In JSON, and then exchanged again for a token of a service account, for which the first one is asked with a
 * scope that may do that. */
static void test_service_account(void **state)
{
    static const struct script_step steps[] = {
        {.answer = TOKEN("federated"), .close = true},
        {.answer = ACCOUNT("robot", FAR), .close = true},
        {.answer = TOKEN("federated"), .close = true},
        {.answer = TEXT("403 Forbidden", "{\"error\":{\"code\":403,\"message\":\"no getAccessToken\"}}"),
         .close = true},
    };
    struct script s;
    struct gs_token *t = NULL;
    uint64_t version = 0;
    struct err e = {0};
    struct buf _cleanup_buf_ b = BUF_INIT(KIB);
    write_text(subject_path, "{\"access_token\":\"inner\",\"other\":1}");
    start(&s, steps, ARRAY_SIZE(steps),
          ",\"format\":{\"type\":\"json\",\"subject_token_field_name\":\"access_token\"}", "robot:generate",
          &t);
    expect(t, "robot", &version);
    assert_non_null(strstr(script_head(&s, 1), "POST /v1/robot:generate HTTP/1.1\r\n"));
    assert_non_null(strstr(script_head(&s, 1), "authorization: Bearer federated\r\n"));
    assert_string_equal(s.body, "{\"scope\":[\"https://www.googleapis.com/auth/devstorage.read_write\"],"
                                "\"lifetime\":\"3600s\"}");
    assert_non_null(strstr(gs_token_told(t), ", for robot:generate"));
    gs_token_drop(t, version);
    assert_int_equal(gs_token_get(t, &b, &version, &e), ERR_ORIGIN_DENIED);
    if (!strstr(e.text, "no getAccessToken") || !strstr(e.text, "robot:generate") ||
        strstr(e.text, "federated") || strstr(e.text, "inner"))
        fail_msg("%s", e.text);
    gs_token_free(t);
    script_stop(&s);
}

/* When a token of a service account ends is reckoned by the clock of whoever says so: by that this one has
 * nine seconds, and is not used any more when it is asked for again. (Fails with this machine's clock in
 * gs_federation_impersonate, by which it is good for decades.) */
static void test_the_end_is_by_the_clock_of_the_service(void **state)
{
    static const struct script_step steps[] = {
        {.answer = TOKEN("federated"), .close = true},
        {.answer = "HTTP/1.1 200 OK\r\nConnection: close\r\nDate: Thu, 01 Jan 2099 00:00:00 GMT\r\n\r\n"
                   "{\"accessToken\":\"one\",\"expireTime\":\"2099-01-01T00:00:09Z\"}",
         .close = true},
        {.answer = TOKEN("federated"), .close = true},
        {.answer = ACCOUNT("two", FAR), .close = true},
    };
    struct script s;
    struct gs_token *t = NULL;
    uint64_t version = 0;
    write_text(subject_path, "subject");
    start(&s, steps, ARRAY_SIZE(steps), "", "robot", &t);
    expect(t, "one", &version);
    expect(t, "two", &version);
    expect(t, "two", &version);
    assert_int_equal(script_steps_taken(&s), ARRAY_SIZE(steps));
    gs_token_free(t);
    script_stop(&s);
}

/* What the parser of the answers frees, where the token and the key of a file are, does not go back as it is.
 * (Fails without wipe_from_now_on, web_json.c.) */
static void test_the_parser_frees_by_other_means_than_free(void **state)
{
    json_malloc_t take = NULL;
    json_free_t give = NULL;
    json_t *j = web_json(SLICE_LIT("{\"private_key\":\"secret\"}"), 0, NULL);
    assert_string_equal(json_string_value(json_object_get(j, "private_key")), "secret");
    json_get_alloc_funcs(&take, &give);
    assert_true(take == malloc && give != free);
    char *text = json_dumps(j, JSON_COMPACT);
    assert_string_equal(text, "{\"private_key\":\"secret\"}");
    free(text); /* as everybody frees what it makes */
    json_decref(j);
}

/* A user of gcloud who acts for a service account. */
static void test_impersonated_by_a_user(void **state)
{
    static const struct script_step steps[] = {{.answer = TOKEN("mine"), .close = true},
                                               {.answer = ACCOUNT("robot", FAR), .close = true}};
    struct script s;
    struct gs_token *t = NULL;
    uint64_t version;
    struct err e;
    char text[1024];
    script_start(&s, steps, ARRAY_SIZE(steps));
    (void)snprintf(
        text, sizeof(text),
        "{\"type\":\"impersonated_service_account\",\"service_account_impersonation_url\":"
        "\"http://127.0.0.1:%u/v1/robot\",\"delegates\":[],\"source_credentials\":{\"type\":"
        "\"authorized_user\",\"client_id\":\"c\",\"client_secret\":\"hush\",\"refresh_token\":\"r\","
        "\"token_uri\":\"http://127.0.0.1:%u/token\"}}",
        s.port, s.port);
    WEB_FIXTURE_OK(open_token(text, &t, &e), e);
    expect(t, "robot", &version);
    assert_non_null(strstr(script_head(&s, 0), "POST /token HTTP/1.1\r\n"));
    assert_non_null(strstr(script_head(&s, 1), "authorization: Bearer mine\r\n"));
    assert_non_null(strstr(gs_token_told(t), "user of "));
    gs_token_free(t);
    script_stop(&s);
}

/* Files that say something else, or would send a token over plain http elsewhere, are told by name. */
static void test_bad_files(void **state)
{
#define EXTERNAL "{\"type\":\"external_account\",\"audience\":\"a\",\"subject_token_type\":\"t\","
    static const char *const cases[][2] = {
        {EXTERNAL "\"token_url\":\"https://t\",\"credential_source\":{\"url\":\"http://x\"}}", "\"file\""},
        {EXTERNAL "\"token_url\":\"https://t\",\"credential_source\":{\"environment_id\":\"aws1\"}}", "AWS"},
        {EXTERNAL "\"credential_source\":{\"file\":\"/f\"}}", "token_url"},
        {EXTERNAL "\"token_url\":\"http://198.51.100.1/t\",\"credential_source\":{\"file\":\"/f\"}}",
         "https only"},
        {EXTERNAL "\"token_url\":\"https://t\",\"credential_source\":{\"file\":\"/f\"},"
                  "\"service_account_impersonation_url\":\"http://198.51.100.1/t\"}",
         "https only"},
        {EXTERNAL "\"token_url\":\"https://t\",\"credential_source\":{\"file\":\"/f\",\"format\":{\"type\":"
                  "\"json\"}}}",
         "belong together"},
        {"{\"type\":\"impersonated_service_account\",\"source_credentials\":{\"type\":\"authorized_user\"}}",
         "needs service_account_impersonation_url"},
        {"{\"type\":\"impersonated_service_account\",\"service_account_impersonation_url\":\"https://x\","
         "\"source_credentials\":{\"type\":\"external_account\"}}",
         "source_credentials"},
        {"{\"type\":\"gdch_service_account\"}", "no JSON with type"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct gs_token *t = NULL;
        struct err e;
        int r = open_token(cases[i][0], &t, &e);
        if (r != ERR_BAD_OPTION || !strstr(e.text, cases[i][1]) || !strstr(e.text, credentials_path))
            fail_msg("%zu: %s: %s", i, err_name(r), e.text);
    }
}

/* Whatever call fails when the token's file is read, it is sent whole or not at all; and one without a token
 * in it is told by name. */
static void test_faults(void **state)
{
    static const struct script_step steps[] = {{.answer = TOKEN("one"), .close = true}};
    bool hit = true;
    uint64_t failed = 0;
    write_text(subject_path, "whole");
    for (uint64_t n = 1; hit; n++) {
        struct script s;
        struct gs_token *t = NULL;
        struct buf _cleanup_buf_ b = BUF_INIT(KIB);
        struct err e = {0};
        uint64_t version;
        start(&s, steps, ARRAY_SIZE(steps), "", NULL, &t);
        fault_sys_start();
        fault_sys_arm(FAULT_ALL, n, EIO, FAULT_ONCE);
        int r = gs_token_get(t, &b, &version, &e);
        hit = fault_sys_hit();
        fault_sys_disarm();
        fault_sys_stop();
        assert_true(r == 0 || (r == ERR_ORIGIN_DENIED && strstr(e.text, subject_path)));
        assert_true(r < 0 || strstr(s.body, "subject_token=whole"));
        assert_int_equal(script_steps_taken(&s), r == 0);
        failed += r < 0;
        gs_token_free(t);
        script_stop(&s);
    }
    assert_true(failed >= 2);
    static const char *const empty[] = {"", " \n"};
    for (size_t i = 0; i < ARRAY_SIZE(empty); i++) {
        struct script s;
        struct gs_token *t = NULL;
        struct buf _cleanup_buf_ b = BUF_INIT(KIB);
        struct err e = {0};
        uint64_t version;
        write_text(subject_path, empty[i]);
        start(&s, NULL, 0, "", NULL, &t);
        assert_int_equal(gs_token_get(t, &b, &version, &e), ERR_ORIGIN_DENIED);
        assert_non_null(strstr(e.text, "there is no token in it"));
        gs_token_free(t);
        script_stop(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exchange),
        cmocka_unit_test(test_service_account),
        cmocka_unit_test(test_the_end_is_by_the_clock_of_the_service),
        cmocka_unit_test(test_bad_files),
        cmocka_unit_test(test_impersonated_by_a_user),
        cmocka_unit_test(test_the_parser_frees_by_other_means_than_free),
        cmocka_unit_test(test_faults),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}

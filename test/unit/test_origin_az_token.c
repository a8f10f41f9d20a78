/* layer: origin */
/* threaded */
/*
 * Identities of machines and pods of Azure: what is asked, kept, renewed and sent, against a scripted server.
 */
#include "origin/az_internal.h"

#include "support/clock_sys.h"
#include "web_fixture.h"

#include <unistd.h>

#define TEXT(status, body) "HTTP/1.1 " status "\r\nConnection: close\r\n\r\n" body
#define OBJECT             "HTTP/1.1 200 OK\r\nETag: \"1\"\r\nContent-Length: 5\r\nConnection: close\r\n\r\n"
/* One service writes the number as a text. */
#define MANAGED(name, life)                                                                                  \
    TEXT("200 OK", "{\"access_token\":\"" name "\",\"expires_in\":\"" life "\",\"expires_on\":\"1\","        \
                   "\"resource\":\"https://storage.azure.com/\",\"token_type\":\"Bearer\"}")
#define WORKLOAD(name)                                                                                       \
    TEXT("200 OK", "{\"token_type\":\"Bearer\",\"expires_in\":86399,\"access_token\":\"" name "\"}")
#define DENIED                                                                                               \
    "HTTP/1.1 401 Unauthorized\r\nx-ms-error-code: AuthenticationFailed\r\nConnection: close\r\n\r\n"
#define QUESTION                                                                                             \
    "GET /metadata/identity/oauth2/token?api-version=2018-02-01&resource=https%3A%2F%2Fstorage.azure.com%2F"

static const char *const machine[] = {"origin.endpoint", "http://127.0.0.1:%p/acc",
                                      "origin.metadata_endpoint", "http://127.0.0.1:%p/", NULL};

/* The machine's identity: asked once, with the header that no page can send; the token goes with the
 * requests, and no key of the environment. One that soon ends is renewed, and so is one that was refused. */
static void test_managed_identity(void **state)
{
    (void)state;
    static const struct script_step steps[] = {
        {.answer = MANAGED("one", "60"), .close = true},
        {.answer = OBJECT, .close = true},
        {.answer = MANAGED("two", "86399"), .close = true},
        {.answer = OBJECT, .close = true},
        {.answer = DENIED, .close = true},
        {.answer = MANAGED("three", "86399"), .close = true},
        {.answer = OBJECT, .close = true},
    };
    struct web_fixture f;
    struct origin_attr attr;
    struct err e;
    clock_sys_start(1000000000000, 1000000000000000000);
    (void)setenv("AZURE_STORAGE_ACCOUNT", "acc", 1);
    (void)setenv("AZURE_STORAGE_KEY", "AAAA", 1);
    web_fixture_start(&f, "az://con", steps, ARRAY_SIZE(steps), machine);
    (void)unsetenv("AZURE_STORAGE_KEY");
    (void)unsetenv("AZURE_STORAGE_ACCOUNT");
    for (int i = 0; i < 3; i++) {
        WEB_FIXTURE_OK(web_fixture_stat(&f, &attr, &e), e);
        clock_sys_advance(10000000000);
    }
    clock_sys_stop();
    assert_non_null(strstr(script_head(&f.script, 0), QUESTION " HTTP/1.1\r\n"));
    assert_non_null(strstr(script_head(&f.script, 0), "metadata: true\r\n"));
    assert_non_null(strstr(script_head(&f.script, 1), "HEAD /acc/con/k HTTP/1.1\r\n"));
    assert_non_null(strstr(script_head(&f.script, 1), "Authorization: Bearer one\r\n"));
    assert_non_null(strstr(script_head(&f.script, 1), "x-ms-version: " AZ_VERSION "\r\n"));
    assert_non_null(strstr(script_head(&f.script, 3), "Authorization: Bearer two\r\n"));
    assert_non_null(strstr(script_head(&f.script, 4), "Authorization: Bearer two\r\n"));
    assert_non_null(strstr(script_head(&f.script, 6), "Authorization: Bearer three\r\n"));
    web_fixture_stop(&f);
}

/* Of several identities of a machine the environment names one. */
static void test_one_of_several(void **state)
{
    (void)state;
    static const struct script_step steps[] = {{.answer = MANAGED("mine", "3600"), .close = true},
                                               {.answer = OBJECT, .close = true}};
    struct web_fixture f;
    struct origin_attr attr;
    struct err e;
    (void)setenv("AZURE_CLIENT_ID", "a b", 1);
    web_fixture_start(&f, "az://con", steps, ARRAY_SIZE(steps), machine);
    (void)unsetenv("AZURE_CLIENT_ID");
    WEB_FIXTURE_OK(web_fixture_stat(&f, &attr, &e), e);
    assert_non_null(strstr(script_head(&f.script, 0), QUESTION "&client_id=a%20b HTTP/1.1\r\n"));
    web_fixture_stop(&f);
}

/* A machine without an identity sends requests without one; a service that fails, or is being updated, is no
 * word about the object. */
static void test_no_token_is_no_absence(void **state)
{
    (void)state;
    static const struct {
        const char *answer;
        int result; /* of a request for an object that is there */
    } rows[] = {
        {TEXT("400 Bad Request",
              "{\"error\":\"invalid_request\",\"error_description\":\"Identity not found\"}"),
         0},
        {TEXT("400 Bad Request", "{\"error\":\"invalid_resource\",\"error_description\":\"no such thing\"}"),
         ERR_ORIGIN_DENIED},
        {TEXT("404 Not Found", ""), ERR_ORIGIN_FAILED},
        {TEXT("410 Gone", ""), ERR_ORIGIN_FAILED},
        {TEXT("500 Oh", ""), ERR_ORIGIN_FAILED},
        {TEXT("429 Too Many Requests", ""), ERR_ORIGIN_BUSY},
        {TEXT("200 OK", "{\"access_token\":\"x\"}"), ERR_ORIGIN_FAILED},
        {TEXT("200 OK", "{\"access_token\":\"x\\r\\ny: z\",\"expires_in\":60}"), ERR_ORIGIN_FAILED},
        {TEXT("200 OK", "no JSON"), ERR_ORIGIN_FAILED},
    };
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        const struct script_step steps[] = {{.answer = rows[i].answer, .close = true},
                                            {.answer = OBJECT, .close = true}};
        struct web_fixture f;
        struct origin_attr attr;
        struct err e;
        web_fixture_start(&f, "az://con", steps, rows[i].result == 0 ? 2 : 1, machine);
        int r = web_fixture_stat(&f, &attr, &e);
        if (r != rows[i].result || (r < 0 && !strstr(e.text, "access token from http://127.0.0.1")))
            fail_msg("row %zu: %d %s", i, r, e.text);
        if (r == 0)
            assert_null(script_header(script_head(&f.script, 1), "authorization"));
        web_fixture_stop(&f);
    }
}

/* An origin of the script with a pod's identity, whose assertion stands in the file `path`. */
static void workload_start(struct web_fixture *f, const struct script_step *steps, size_t n, const char *path)
{
    char endpoint[64], authority[64];
    struct origin_options o;
    struct err e = {0};
    *f = (struct web_fixture){.arena = arena_new(MIB)};
    script_start(&f->script, steps, n);
    (void)snprintf(endpoint, sizeof(endpoint), "http://127.0.0.1:%u/acc", f->script.port);
    (void)snprintf(authority, sizeof(authority), "http://127.0.0.1:%u/", f->script.port);
    (void)setenv("AZURE_FEDERATED_TOKEN_FILE", path, 1);
    (void)setenv("AZURE_CLIENT_ID", "client", 1);
    (void)setenv("AZURE_TENANT_ID", "tenant", 1);
    (void)setenv("AZURE_AUTHORITY_HOST", authority, 1);
    assert_int_equal(option_init(&origin_option_table, &o, &e), 0);
    web_fixture_option(&o, "origin.endpoint", endpoint);
    WEB_FIXTURE_OK(origin_open("az://con", &o, "t", &f->origin, &e), e);
    option_fini(&origin_option_table, &o);
    (void)unsetenv("AZURE_FEDERATED_TOKEN_FILE");
    (void)unsetenv("AZURE_CLIENT_ID");
    (void)unsetenv("AZURE_TENANT_ID");
    (void)unsetenv("AZURE_AUTHORITY_HOST");
}

static void write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    assert_true(file && fputs(text, file) >= 0 && fclose(file) == 0);
}

/* A pod's identity: the assertion is posted, read anew each time, and never told. */
static void test_workload_identity(void **state)
{
    (void)state;
    static const struct script_step steps[] = {
        {.answer = WORKLOAD("one"), .close = true},
        {.answer = OBJECT, .close = true},
        {.answer = DENIED, .close = true},
        {.answer = TEXT("401 Unauthorized",
                        "{\"error\":\"invalid_client\",\"error_description\":\"AADSTS700024: no\"}"),
         .close = true},
    };
    char path[] = "/tmp/forebay-az-XXXXXX";
    int fd = mkstemp(path);
    struct web_fixture f;
    struct origin_attr attr;
    struct err e;
    assert_true(fd >= 0 && close(fd) == 0);
    write_file(path, "hush.one\n");
    workload_start(&f, steps, ARRAY_SIZE(steps), path);
    WEB_FIXTURE_OK(web_fixture_stat(&f, &attr, &e), e);
    assert_int_equal(web_fixture_stat(&f, &attr, &e), ERR_ORIGIN_DENIED);
    if (!strstr(e.text, "AADSTS700024") || strstr(e.text, "hush"))
        fail_msg("%s", e.text);
    assert_non_null(strstr(script_head(&f.script, 0), "POST /tenant/oauth2/v2.0/token HTTP/1.1\r\n"));
    struct buf _cleanup_buf_ form = BUF_INIT(4 * KIB);
    write_file(path, "hush.one\n");
    assert_int_equal(az_token_form(path, "client", &form, &e), 0);
    assert_non_null(
        strstr(form.p, "client_id=client&scope=https%3A%2F%2Fstorage.azure.com%2F.default"
                       "&grant_type=client_credentials&client_assertion_type=urn%3Aietf%3Aparams%3Aoauth%3A"
                       "client-assertion-type%3Ajwt-bearer&client_assertion=hush.one"));
    assert_non_null(strstr(script_head(&f.script, 1), "Authorization: Bearer one\r\n"));
    assert_int_equal(unlink(path), 0);
    assert_int_equal(web_fixture_stat(&f, &attr, &e), ERR_ORIGIN_DENIED);
    assert_non_null(strstr(e.text, path));
    web_fixture_stop(&f);
}

/* A client's secret: posted, never told, and before a pod's identity; the check says whose token it is. */
static void test_client_secret(void **state)
{
    (void)state;
    static const struct script_step steps[] = {
        {.answer = WORKLOAD("one"), .close = true},
        {.answer = OBJECT, .close = true},
        {.answer = DENIED, .close = true},
        {.answer = TEXT("401 Unauthorized", "{\"error\":\"invalid_client\"}"), .close = true},
    };
    struct web_fixture f;
    struct origin_attr attr;
    struct err e = {0};
    struct buf _cleanup_buf_ b = BUF_INIT(4 * KIB);
    (void)setenv("AZURE_CLIENT_SECRET", "hush&more", 1);
    workload_start(&f, steps, ARRAY_SIZE(steps), "/no/such/file");
    (void)unsetenv("AZURE_CLIENT_SECRET");
    WEB_FIXTURE_OK(origin_identify(f.origin, &b, &e), e);
    assert_non_null(strstr(b.p, "AZURE_CLIENT_SECRET of client client, asked of http://127.0.0.1:"));
    assert_string_equal(f.script.body, "client_id=client&scope=https%3A%2F%2Fstorage.azure.com%2F.default&"
                                       "grant_type=client_credentials&client_secret=hush%26more");
    assert_non_null(strstr(script_head(&f.script, 0), "POST /tenant/oauth2/v2.0/token HTTP/1.1\r\n"));
    WEB_FIXTURE_OK(web_fixture_stat(&f, &attr, &e), e);
    assert_non_null(strstr(script_head(&f.script, 1), "Authorization: Bearer one\r\n"));
    assert_int_equal(web_fixture_stat(&f, &attr, &e), ERR_ORIGIN_DENIED);
    if (!strstr(e.text, "401 invalid_client") || strstr(e.text, "hush"))
        fail_msg("%s", e.text);
    web_fixture_stop(&f);
}

/* A container's service is asked with what it wants to hear, and tells the end as a time. */
static void test_container(void **state)
{
    (void)state;
    char token[256], endpoint[64], service[64];
    struct script_step steps[] = {{.answer = token, .close = true},
                                  {.answer = OBJECT, .close = true},
                                  {.answer = OBJECT, .close = true}};
    struct web_fixture f = {.arena = arena_new(MIB)};
    struct origin_options o;
    struct origin_attr attr;
    struct err e = {0};
    struct buf _cleanup_buf_ b = BUF_INIT(4 * KIB);
    (void)snprintf(token, sizeof(token), TEXT("200 OK", "{\"access_token\":\"one\",\"expires_on\":\"%lld\"}"),
                   (long long)time(NULL) + 3600);
    script_start(&f.script, steps, ARRAY_SIZE(steps));
    (void)snprintf(endpoint, sizeof(endpoint), "http://127.0.0.1:%u/acc", f.script.port);
    (void)snprintf(service, sizeof(service), "http://127.0.0.1:%u/msi/token", f.script.port);
    (void)setenv("IDENTITY_ENDPOINT", service, 1);
    (void)setenv("IDENTITY_HEADER", "hush", 1);
    (void)setenv("AZURE_CLIENT_ID", "mine", 1);
    assert_int_equal(option_init(&origin_option_table, &o, &e), 0);
    web_fixture_option(&o, "origin.endpoint", endpoint);
    WEB_FIXTURE_OK(origin_open("az://con", &o, "t", &f.origin, &e), e);
    option_fini(&origin_option_table, &o);
    (void)unsetenv("IDENTITY_ENDPOINT");
    (void)unsetenv("IDENTITY_HEADER");
    (void)unsetenv("AZURE_CLIENT_ID");
    WEB_FIXTURE_OK(origin_identify(f.origin, &b, &e), e);
    assert_non_null(strstr(b.p, "managed identity, of http://127.0.0.1:"));
    for (int i = 0; i < 2; i++)
        WEB_FIXTURE_OK(web_fixture_stat(&f, &attr, &e), e);
    assert_non_null(strstr(script_head(&f.script, 0),
                           "GET /msi/token?api-version=2019-08-01&resource=https%3A%2F%2Fstorage.azure.com%2F"
                           "&client_id=mine HTTP/1.1\r\n"));
    assert_non_null(strstr(script_head(&f.script, 0), "x-identity-header: hush\r\n"));
    assert_non_null(strstr(script_head(&f.script, 2), "Authorization: Bearer one\r\n"));
    web_fixture_stop(&f);
}

/* What is used is told, and of keys where they are from. A certificate is refused, and no other identity used
 * in its place. */
static void test_what_is_told(void **state)
{
    (void)state;
    static const char *const rows[][3] = {
        {"origin.account_key", "a2V5", "origin.account_key of the bucket"},
        {"origin.sas", "sv=1&sig=x", "origin.sas of the bucket"},
        {"origin.account", "acc", "none: requests are anonymous"},
    };
    struct origin_options o;
    struct origin *x = NULL;
    struct err e = {0};
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        struct buf _cleanup_buf_ b = BUF_INIT(4 * KIB);
        assert_int_equal(option_init(&origin_option_table, &o, &e), 0);
        web_fixture_option(&o, "origin.account", "acc");
        web_fixture_option(&o, rows[i][0], rows[i][1]);
        WEB_FIXTURE_OK(origin_open("az://con", &o, "t", &x, &e), e);
        WEB_FIXTURE_OK(origin_identify(x, &b, &e), e);
        assert_string_equal(b.p, rows[i][2]);
        origin_close(x);
        option_fini(&origin_option_table, &o);
    }
    (void)setenv("AZURE_CLIENT_CERTIFICATE_PATH", "/cert.pem", 1);
    (void)setenv("AZURE_CLIENT_ID", "client", 1);
    (void)setenv("AZURE_TENANT_ID", "tenant", 1);
    assert_int_equal(option_init(&origin_option_table, &o, &e), 0);
    web_fixture_option(&o, "origin.account", "acc");
    assert_int_equal(origin_open("az://con", &o, "t", &x, &e), ERR_BAD_OPTION);
    assert_non_null(strstr(e.text, "AZURE_CLIENT_CERTIFICATE_PATH"));
    option_fini(&origin_option_table, &o);
    (void)unsetenv("AZURE_CLIENT_CERTIFICATE_PATH");
    (void)unsetenv("AZURE_CLIENT_ID");
    (void)unsetenv("AZURE_TENANT_ID");
}

/* An identity that nobody named for the bucket goes to no endpoint of plain http elsewhere, nor its assertion
 * to such an authority; without the rest of its settings it is an error that says so. */
static void test_where_it_may_go(void **state)
{
    (void)state;
    static const char *const rows[][2] = {{"http://store.example/acc", "http://127.0.0.1:9/"},
                                          {"https://store.example/acc", "http://login.example/"}};
    struct origin_options o;
    struct origin *x;
    struct err e = {0};
    (void)setenv("AZURE_FEDERATED_TOKEN_FILE", "/no/such/file", 1);
    (void)setenv("AZURE_TENANT_ID", "tenant", 1);
    for (size_t i = 0; i < ARRAY_SIZE(rows) + 1; i++) {
        bool incomplete = i == ARRAY_SIZE(rows);
        if (!incomplete) {
            (void)setenv("AZURE_CLIENT_ID", "client", 1);
            (void)setenv("AZURE_AUTHORITY_HOST", rows[i][1], 1);
        }
        assert_int_equal(option_init(&origin_option_table, &o, &e), 0);
        web_fixture_option(&o, "origin.endpoint", rows[incomplete ? 0 : i][0]);
        int r = origin_open("az://con", &o, "t", &x, &e);
        option_fini(&origin_option_table, &o);
        if (incomplete) {
            assert_int_equal(r, ERR_BAD_OPTION);
            assert_non_null(strstr(e.text, "AZURE_CLIENT_ID"));
            break;
        }
        assert_int_equal(r, 0);
        assert_null(az_of(x)->token);
        origin_close(x);
        (void)unsetenv("AZURE_CLIENT_ID");
    }
    (void)unsetenv("AZURE_FEDERATED_TOKEN_FILE");
    (void)unsetenv("AZURE_TENANT_ID");
    (void)unsetenv("AZURE_AUTHORITY_HOST");
}

static int start(void **state)
{
    (void)state;
    static const char *const away[] = {"AZURE_STORAGE_ACCOUNT",
                                       "AZURE_STORAGE_KEY",
                                       "AZURE_STORAGE_SAS_TOKEN",
                                       "AZURE_STORAGE_CONNECTION_STRING",
                                       "AZURE_CLIENT_ID",
                                       "AZURE_TENANT_ID",
                                       "AZURE_AUTHORITY_HOST",
                                       "AZURE_CLIENT_SECRET",
                                       "AZURE_CLIENT_CERTIFICATE_PATH",
                                       "IDENTITY_ENDPOINT",
                                       "IDENTITY_HEADER",
                                       "AZURE_FEDERATED_TOKEN_FILE",
                                       "AZURE_POD_IDENTITY_AUTHORITY_HOST"};
    for (size_t i = 0; i < ARRAY_SIZE(away); i++)
        (void)unsetenv(away[i]);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_managed_identity),
        cmocka_unit_test(test_one_of_several),
        cmocka_unit_test(test_no_token_is_no_absence),
        cmocka_unit_test(test_workload_identity),
        cmocka_unit_test(test_where_it_may_go),
        cmocka_unit_test(test_client_secret),
        cmocka_unit_test(test_container),

        cmocka_unit_test(test_what_is_told),
    };
    return cmocka_run_group_tests(tests, start, NULL);
}

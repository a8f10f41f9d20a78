/* layer: origin */
/* threaded */
/*
 * Whose credentials an S3 origin uses, and those of roles: what STS is asked, kept, renewed and sent, against
 * a scripted server.
 */
#include "origin/s3_internal.h"

#include "support/clock_sys.h"
#include "support/fault_sys.h"
#include "web_fixture.h"

#include <unistd.h>

#define TEXT(status, body) "HTTP/1.1 " status "\r\nConnection: close\r\n\r\n" body
#define OBJECT             "HTTP/1.1 200 OK\r\nETag: \"1\"\r\nContent-Length: 5\r\nConnection: close\r\n\r\n"
#define FAR                "2099-01-01T00:00:00Z"
#define ANSWER(action, name, end)                                                                            \
    "<" action "Response xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\"><" action "Result>"             \
    "<AssumedRoleUser><Arn>arn</Arn></AssumedRoleUser><Credentials><AccessKeyId>" name "</AccessKeyId>"      \
    "<SecretAccessKey>hush</SecretAccessKey><SessionToken>tok-" name "</SessionToken>"                       \
    "<Expiration>" end "</Expiration></Credentials></" action "Result></" action "Response>"
#define IDENTITY(name) TEXT("200 OK", ANSWER("AssumeRoleWithWebIdentity", name, FAR))
#define ROLE(name)     TEXT("200 OK", ANSWER("AssumeRole", name, FAR))
#define REFUSAL(status, code, message)                                                                       \
    TEXT(status, "<ErrorResponse><Error><Type>Sender</Type><Code>" code "</Code><Message>" message           \
                 "</Message></Error></ErrorResponse>")
#define ARN "arn:aws:iam::123456789012:role/reader"

static char config_path[] = "/tmp/forebay-config-XXXXXX";
static char keys_path[] = "/tmp/forebay-keys-XXXXXX";
static char token_path[] = "/tmp/forebay-identity-XXXXXX";

static const char *const variables[] = {
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_PROFILE",
    "AWS_DEFAULT_PROFILE",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "AWS_ENDPOINT_URL_STS",
    "AWS_STS_REGIONAL_ENDPOINTS",
    "AWS_CA_BUNDLE",
    "AWS_ROLE_ARN",
    "AWS_ROLE_SESSION_NAME",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_EC2_METADATA_SERVICE_ENDPOINT",
};

static void write_text(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

/* Variables of "A=B C=D", all others away, and what the config file says. */
static void set_environment(const char *pairs, const char *config)
{
    char text[1024];
    for (size_t i = 0; i < ARRAY_SIZE(variables); i++)
        (void)unsetenv(variables[i]);
    (void)setenv("AWS_EC2_METADATA_DISABLED", "true", 1);
    (void)setenv("AWS_CONFIG_FILE", config_path, 1);
    (void)setenv("AWS_SHARED_CREDENTIALS_FILE", keys_path, 1);
    write_text(config_path, config);
    write_text(keys_path, "");
    (void)snprintf(text, sizeof(text), "%s", pairs);
    for (char *p = strtok(text, " "); p; p = strtok(NULL, " ")) {
        char *equals = strchr(p, '=');
        *equals = '\0';
        (void)setenv(p, equals[1] == '@' ? token_path : equals + 1, 1);
    }
}

static int setup(void **state)
{
    char *paths[] = {config_path, keys_path, token_path};
    for (size_t i = 0; i < ARRAY_SIZE(paths); i++) {
        (void)memcpy(paths[i] + strlen(paths[i]) - 6, "XXXXXX", 6);
        int fd = mkstemp(paths[i]);
        assert_true(fd >= 0);
        (void)close(fd);
    }
    write_text(token_path, "first.token\n");
    return 0;
}

static int teardown(void **state)
{
    set_environment("", "");
    (void)setenv("AWS_CONFIG_FILE", "/nonexistent", 1);
    (void)setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent", 1);
    (void)unlink(config_path);
    (void)unlink(keys_path);
    (void)unlink(token_path);
    return 0;
}

/* An origin whose STS and S3 are both the script. */
static void start(struct web_fixture *f, const struct script_step *steps, size_t n)
{
    char endpoint[64];
    struct origin_options o;
    struct err e = {0};
    *f = (struct web_fixture){.arena = arena_new(MIB)};
    script_start(&f->script, steps, n);
    (void)snprintf(endpoint, sizeof(endpoint), "http://127.0.0.1:%u", f->script.port);
    (void)setenv("AWS_ENDPOINT_URL_STS", endpoint, 1);
    assert_int_equal(option_init(&origin_option_table, &o, &e), 0);
    web_fixture_option(&o, "origin.endpoint", endpoint);
    WEB_FIXTURE_OK(origin_open("s3://bucket", &o, "t", &f->origin, &e), e);
    option_fini(&origin_option_table, &o);
}

static bool is_signed_with(const char *head, const char *key)
{
    char credential[64], token[64];
    (void)snprintf(credential, sizeof(credential), "Credential=%s/", key);
    (void)snprintf(token, sizeof(token), "x-amz-security-token: tok-%s\r\n", key);
    return strstr(head, credential) && strstr(head, token);
}

static void identify(struct web_fixture *f, const char *words)
{
    struct buf _cleanup_buf_ b = BUF_INIT(16 * KIB);
    struct err e = {0};
    WEB_FIXTURE_OK(origin_identify(f->origin, &b, &e), e);
    if (!strstr(b.p, words) || strstr(b.p, "hush") || strstr(b.p, "tok"))
        fail_msg("%s", b.p);
}

static void expect_body(struct web_fixture *f, const char *form)
{
    if (strcmp(f->script.body, form) != 0)
        fail_msg("%s", f->script.body);
}

/* The role of a service account: the token is posted, nothing of it is signed; the keys sign the requests,
 * and are kept. Once they are refused others are asked for, with the token that is in the file by then. */
static void test_web_identity(void **state)
{
    static const struct script_step steps[] = {
        {.answer = IDENTITY("one"), .close = true},
        {.answer = OBJECT, .close = true},
        {.answer = OBJECT, .close = true},
        {.answer = TEXT("400 Bad", ""), .close = true}, /* to a HEAD */
        {.answer = IDENTITY("two"), .close = true},
        {.answer = OBJECT, .close = true},
    };
    struct web_fixture f;
    struct origin_attr attr;
    struct err e;
    set_environment("AWS_WEB_IDENTITY_TOKEN_FILE=@ AWS_ROLE_ARN=" ARN, "");
    write_text(token_path, "first.token\n");
    start(&f, steps, ARRAY_SIZE(steps));
    identify(&f, "role " ARN ", asked of http://127.0.0.1:");
    const char *head = script_head(&f.script, 0);
    assert_non_null(strstr(head, "POST / HTTP/1.1\r\n"));
    assert_non_null(strstr(head, "content-type: application/x-www-form-urlencoded"));
    assert_null(script_header(head, "authorization"));
    expect_body(&f, "Action=AssumeRoleWithWebIdentity&Version=2011-06-15&"
                    "RoleArn=arn%3Aaws%3Aiam%3A%3A123456789012%3Arole%2Freader&RoleSessionName=forebay&"
                    "WebIdentityToken=first.token");
    for (int i = 0; i < 2; i++)
        WEB_FIXTURE_OK(web_fixture_stat(&f, &attr, &e), e);
    write_text(token_path, "second.token");
    WEB_FIXTURE_OK(web_fixture_stat(&f, &attr, &e), e);
    identify(&f, token_path);
    const char *first = script_header(script_head(&f.script, 0), "content-length"); /* of "first.token" */
    const char *second = script_header(script_head(&f.script, 4), "content-length");
    assert_int_equal(strtol(second, NULL, 10), strtol(first, NULL, 10) + 1);
    for (size_t i = 1; i < 4; i++)
        assert_true(is_signed_with(script_head(&f.script, i), "one"));
    assert_true(is_signed_with(script_head(&f.script, 5), "two"));
    web_fixture_stop(&f);
}

/* Keys that end in a minute are renewed before; while STS cannot, the old ones are used as long as they last,
 * and then its words are the error. */
static void test_renewal(void **state)
{
    char first[1200], soon[40];
    struct script_step steps[] = {
        {.answer = first, .close = true},
        {.answer = OBJECT, .close = true},
        {.answer = REFUSAL("400 Bad Request", "IDPCommunicationError", "no answer"), .close = true},
        {.answer = OBJECT, .close = true},
        {.answer = REFUSAL("400 Bad Request", "ExpiredTokenException", "Token &lt;x&gt; expired"),
         .close = true},
        {.answer = REFUSAL("400 Bad Request", "Throttling", "slow"), .close = true},
    };
    time_t end = time(NULL) + 60;
    struct tm tm;
    struct web_fixture f;
    struct origin_attr attr;
    struct err e = {0};
    (void)strftime(soon, sizeof(soon), "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&end, &tm));
    (void)snprintf(first, sizeof(first), TEXT("200 OK", ANSWER("AssumeRoleWithWebIdentity", "one", "%s")),
                   soon);
    set_environment("AWS_WEB_IDENTITY_TOKEN_FILE=@ AWS_ROLE_ARN=" ARN, "");
    clock_sys_start(1000000000000, (uint64_t)time(NULL) * 1000000000);
    start(&f, steps, ARRAY_SIZE(steps));
    for (int i = 0; i < 2; i++) {
        WEB_FIXTURE_OK(web_fixture_stat(&f, &attr, &e), e);
        clock_sys_advance(10000000000);
    }
    assert_true(is_signed_with(script_head(&f.script, 1), "one") &&
                is_signed_with(script_head(&f.script, 3), "one"));
    clock_sys_advance(120000000000);
    assert_int_equal(web_fixture_stat(&f, &attr, &e), ERR_ORIGIN_DENIED);
    if (!strstr(e.text, "role " ARN ", asked of") ||
        !strstr(e.text, "400 ExpiredTokenException: Token <x> expired") || strstr(e.text, "first.token"))
        fail_msg("%s", e.text);
    assert_int_equal(web_fixture_stat(&f, &attr, &e), ERR_ORIGIN_BUSY);
    web_fixture_stop(&f);
    clock_sys_stop();
}

/* How long keys are good goes by the clock of who gives them: this machine's may be wrong, which is then told
 * where it matters. */
static void test_a_wrong_clock(void **state)
{
    static const struct script_step steps[] = {
        {.answer =
             "HTTP/1.1 200 OK\r\nDate: Sat, 31 Jan 2026 12:00:00 GMT\r\nConnection: close\r\n\r\n" ANSWER(
                 "AssumeRoleWithWebIdentity", "one", "2026-01-31T13:00:00Z"),
         .close = true},
        {.answer = OBJECT, .close = true},
    };
    struct web_fixture f;
    struct origin_attr attr;
    struct err e;
    set_environment("AWS_WEB_IDENTITY_TOKEN_FILE=@ AWS_ROLE_ARN=" ARN, "");
    clock_sys_start(1000000000000, 1800000000000000000); /* a year later */
    start(&f, steps, ARRAY_SIZE(steps));
    WEB_FIXTURE_OK(web_fixture_stat(&f, &attr, &e), e);
    assert_true(is_signed_with(script_head(&f.script, 1), "one"));
    web_fixture_stop(&f);
    clock_sys_stop();
}

/* Roles of profiles: each question is signed with the keys of the source, for the service sts. */
static void test_roles_of_profiles(void **state)
{
    static const struct script_step steps[] = {
        {.answer = ROLE("one"), .close = true},
        {.answer = ROLE("two"), .close = true},
        {.answer = OBJECT, .close = true},
    };
    struct web_fixture f;
    struct origin_attr attr;
    struct err e;
    set_environment("AWS_PROFILE=far",
                    "[profile far]\nregion=eu-west-1\nrole_arn=" ARN "\nsource_profile=near\n"
                    "external_id=shared/secret\nduration_seconds=1800\nrole_session_name=me\n"
                    "[profile near]\nrole_arn=arn:near\nsource_profile=user\n"
                    "[profile user]\naws_access_key_id=USER\naws_secret_access_key=hush\n");
    start(&f, steps, ARRAY_SIZE(steps));
    identify(&f, "by role arn:near, asked of http://127.0.0.1:");
    const char *head = script_head(&f.script, 0);
    assert_non_null(strstr(head, "Credential=USER/"));
    assert_non_null(
        strstr(head, "/eu-west-1/sts/aws4_request, SignedHeaders=content-type;host;x-amz-date, "));
    assert_null(script_header(head, "x-amz-security-token"));
    head = script_head(&f.script, 1);
    assert_true(is_signed_with(head, "one"));
    assert_non_null(strstr(head, "content-type;host;x-amz-date;x-amz-security-token"));
    expect_body(&f, "Action=AssumeRole&Version=2011-06-15&RoleArn=arn%3Aaws%3Aiam%3A%3A123456789012%3Arole%2F"
                    "reader&RoleSessionName=me&ExternalId=shared%2Fsecret&DurationSeconds=1800");
    WEB_FIXTURE_OK(web_fixture_stat(&f, &attr, &e), e);
    assert_true(is_signed_with(script_head(&f.script, 2), "two"));
    web_fixture_stop(&f);
}

/* Who signs the question for a role has ended: it is asked for anew, once STS says so. */
static void test_a_source_that_ended(void **state)
{
    static const struct script_step steps[] = {
        {.answer = ROLE("one"), .close = true},
        {.answer = REFUSAL("403 Forbidden", "AccessDenied", "not allowed"), .close = true},
        {.answer = REFUSAL("403 Forbidden", "ExpiredToken", "it ended"), .close = true},
        {.answer = ROLE("two"), .close = true},
        {.answer = ROLE("far"), .close = true},
        {.answer = OBJECT, .close = true},
    };
    struct web_fixture f;
    struct origin_attr attr;
    struct err e;
    set_environment("AWS_PROFILE=far",
                    "[profile far]\nrole_arn=" ARN "\nsource_profile=near\n"
                    "[profile near]\nrole_arn=arn:near\nsource_profile=user\n"
                    "[profile user]\naws_access_key_id=USER\naws_secret_access_key=hush\n");
    start(&f, steps, ARRAY_SIZE(steps));
    assert_int_equal(web_fixture_stat(&f, &attr, &e), ERR_ORIGIN_DENIED);
    assert_non_null(strstr(e.text, "403 AccessDenied: not allowed"));
    WEB_FIXTURE_OK(web_fixture_stat(&f, &attr, &e), e);
    assert_true(is_signed_with(script_head(&f.script, 2), "one") &&
                is_signed_with(script_head(&f.script, 4), "two") &&
                is_signed_with(script_head(&f.script, 5), "far"));
    web_fixture_stop(&f);
}

/* ---- who is asked ---- */

static int find(const char *profile, const char *metadata, struct s3_chain *ret, struct err *e)
{
    struct origin_options o;
    struct s3_aws _cleanup_(s3_aws_fini) aws;
    *e = (struct err){0};
    *ret = (struct s3_chain){0};
    assert_int_equal(option_init(&origin_option_table, &o, e), 0);
    if (profile)
        web_fixture_option(&o, "origin.profile", profile);
    if (metadata)
        web_fixture_option(&o, "origin.metadata_endpoint", metadata);
    s3_aws_load(o.profile, &aws);
    int r = s3_chain_find(&o, &aws, /* roles= */ true, ret, e);
    option_fini(&origin_option_table, &o);
    return r;
}

#define PROFILES                                                                                             \
    "[default]\naws_access_key_id=D\naws_secret_access_key=S\n"                                              \
    "[profile keys]\naws_access_key_id=K\naws_secret_access_key=S\ncredential_process=cat\n"                 \
    "[profile plain]\naws_access_key_id=K\naws_secret_access_key=S\n"                                        \
    "[profile web]\nweb_identity_token_file=/t\nrole_arn=arn:web\naws_access_key_id=K\n"                     \
    "aws_secret_access_key=S\n"                                                                              \
    "[profile role]\nrole_arn=arn:role\nsource_profile=plain\naws_access_key_id=K\n"                         \
    "aws_secret_access_key=S\n"                                                                              \
    "[profile itself]\nrole_arn=arn:itself\nsource_profile=itself\naws_access_key_id=K\n"                    \
    "aws_secret_access_key=S\n"                                                                              \
    "[profile of-web]\nrole_arn=arn:of-web\nsource_profile=web\n"                                            \
    "[profile of-role]\nrole_arn=arn:of-role\nsource_profile=role\n"                                         \
    "[profile env]\nrole_arn=arn:env\ncredential_source=Environment\n"                                       \
    "[profile box]\nrole_arn=arn:box\ncredential_source=EcsContainer\n"                                      \
    "[profile machine]\nrole_arn=arn:machine\ncredential_source=Ec2InstanceMetadata\n"                       \
    "[profile empty]\nregion=eu-west-1\ns3 =\n  aws_access_key_id = NO\n  aws_secret_access_key = NO\n"
#define KEYS      "AWS_ACCESS_KEY_ID=A AWS_SECRET_ACCESS_KEY=S "
#define POD       "AWS_WEB_IDENTITY_TOKEN_FILE=/pod AWS_ROLE_ARN=arn:pod "
#define CONTAINER "AWS_CONTAINER_CREDENTIALS_FULL_URI=http://127.0.0.1:9/c "
#define MACHINE   "AWS_EC2_METADATA_DISABLED=false AWS_EC2_METADATA_SERVICE_ENDPOINT=http://127.0.0.1:8 "

/* The order of other AWS tools; what a bucket names goes before its environment. */
static void test_order(void **state)
{
    static const struct {
        const char *environment, *profile, *metadata, *told;
    } cases[] = {
        {"", NULL, NULL, "keys of the AWS profile default"},
        {KEYS POD CONTAINER, NULL, NULL, "AWS_ACCESS_KEY_ID of the environment"},
        {KEYS POD, "plain", NULL, "keys of the AWS profile plain"},
        {KEYS POD, NULL, "http://127.0.0.1:7/", "the machine's role, of http://127.0.0.1:7"},
        {POD CONTAINER, NULL, NULL,
         "role arn:pod, asked of https://sts.us-east-1.amazonaws.com with the web identity in /pod"},
        {POD "AWS_PROFILE=web", NULL, NULL,
         "role arn:pod, asked of https://sts.us-east-1.amazonaws.com with the web identity in /pod"},
        {POD "AWS_PROFILE=role AWS_REGION=cn-north-1", NULL, NULL,
         "role arn:role, asked of https://sts.cn-north-1.amazonaws.com.cn by keys of the AWS profile plain"},
        {POD "AWS_PROFILE=role AWS_REGION=eusc-de-east-1", NULL, NULL,
         "role arn:role, asked of https://sts.eusc-de-east-1.amazonaws.eu by keys of the AWS profile plain"},
        {POD, "web", NULL,
         "role arn:web, asked of https://sts.us-east-1.amazonaws.com with the web identity in /t"},
        {"AWS_ROLE_ARN=arn:alone", NULL, NULL, "keys of the AWS profile default"},
        {CONTAINER, "keys", NULL, "credential_process of the AWS profile keys"},
        {"AWS_REGION=eu-west-1", "itself", NULL,
         "role arn:itself, asked of https://sts.eu-west-1.amazonaws.com by keys of the AWS profile itself"},
        {POD "AWS_ENDPOINT_URL_STS=https://sts.local/x", "of-web", NULL,
         "role arn:of-web, asked of https://sts.local by role arn:web, asked of https://sts.local with the "
         "web "
         "identity in /t"},
        {"AWS_STS_REGIONAL_ENDPOINTS=legacy AWS_REGION=eu-west-1", "of-role", NULL,
         "role arn:of-role, asked of https://sts.amazonaws.com by keys of the AWS profile role"},
        {"AWS_STS_REGIONAL_ENDPOINTS=legacy AWS_REGION=eu-south-1", "role", NULL,
         "role arn:role, asked of https://sts.eu-south-1.amazonaws.com by keys of the AWS profile plain"},
        {KEYS, "env", NULL,
         "role arn:env, asked of https://sts.us-east-1.amazonaws.com by AWS_ACCESS_KEY_ID of the "
         "environment"},
        {CONTAINER, "box", NULL,
         "role arn:box, asked of https://sts.us-east-1.amazonaws.com by the container's, of "
         "http://127.0.0.1:9/c"},
        {MACHINE, "machine", NULL,
         "role arn:machine, asked of https://sts.us-east-1.amazonaws.com by the machine's role, of "
         "http://127.0.0.1:8"},
        {CONTAINER MACHINE, "empty", NULL, "the container's, of http://127.0.0.1:9/c"},
        {MACHINE "AWS_PROFILE=empty", NULL, NULL, "the machine's role, of http://127.0.0.1:8"},
        {"AWS_PROFILE=empty", NULL, NULL, "none: requests are not signed"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct s3_chain c;
        struct err e;
        set_environment(cases[i].environment, PROFILES);
        WEB_FIXTURE_OK(find(cases[i].profile, cases[i].metadata, &c, &e), e);
        if (strcmp(c.told, cases[i].told) != 0)
            fail_msg("%s %s: %s", cases[i].environment, cases[i].profile, c.told);
        s3_chain_fini(&c);
    }
}

/* What is half there, or cannot be spoken, is an error that says what to do, and no other identity is used in
 * its place. */
static void test_refusals(void **state)
{
    static const struct {
        const char *environment, *profile, *words;
        int code;
    } cases[] = {
        {"AWS_WEB_IDENTITY_TOKEN_FILE=/pod", NULL, "set without AWS_ROLE_ARN", ERR_ORIGIN_SETUP},
        {POD "AWS_ENDPOINT_URL_STS=http://198.51.100.1", NULL, "https only", ERR_ORIGIN_SETUP},
        {POD "AWS_ENDPOINT_URL=http://198.51.100.1", NULL, "https only", ERR_ORIGIN_SETUP},
        {POD "AWS_REGION=a/b", NULL, "not the name of a region", ERR_ORIGIN_SETUP},
        {POD "AWS_PROFILE=nowhere", NULL, "AWS_PROFILE nowhere: no such profile", ERR_ORIGIN_SETUP},
        {"", "nowhere", "origin.profile nowhere: no such profile", ERR_BAD_OPTION},
        {"", "alone", "role_arn needs one of source_profile and credential_source", ERR_ORIGIN_SETUP},
        {"", "both", "role_arn needs one of source_profile and credential_source", ERR_ORIGIN_SETUP},
        {"", "lost", "source_profile nowhere: there is no such profile", ERR_ORIGIN_SETUP},
        {"", "poor", "source_profile empty has no credentials", ERR_ORIGIN_SETUP},
        {"", "circle", "source_profile leads in a circle", ERR_ORIGIN_SETUP},
        {"", "env", "credential_source Environment: there are no credentials", ERR_ORIGIN_SETUP},
        {"", "odd", "credential_source Moon: must be", ERR_ORIGIN_SETUP},
        {"", "device", "mfa_serial", ERR_ORIGIN_SETUP},
        {"", "browser", "aws configure export-credentials --profile browser", ERR_ORIGIN_SETUP},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct s3_chain c;
        struct err e;
        set_environment(cases[i].environment,
                        "[profile empty]\nregion=a\n[profile alone]\nrole_arn=a\n"
                        "[profile both]\nrole_arn=a\nsource_profile=empty\ncredential_source=Environment\n"
                        "[profile lost]\nrole_arn=a\nsource_profile=nowhere\n"
                        "[profile poor]\nrole_arn=a\nsource_profile=empty\n"
                        "[profile circle]\nrole_arn=a\nsource_profile=back\n"
                        "[profile back]\nrole_arn=a\nsource_profile=circle\n"
                        "[profile env]\nrole_arn=a\ncredential_source=Environment\n"
                        "[profile odd]\nrole_arn=a\ncredential_source=Moon\n"
                        "[profile device]\nrole_arn=a\nsource_profile=empty\nmfa_serial=b\n"
                        "[profile browser]\nsso_account_id=1\nsso_role_name=r\n");
        int r = find(cases[i].profile, NULL, &c, &e);
        if (r != cases[i].code || !strstr(e.text, cases[i].words) || c.told)
            fail_msg("%s: %s: %s", cases[i].words, err_name(r), e.text);
    }
}

/* Two buckets of one node, each with a profile of its own: two accounts at once. */
static void test_two_accounts(void **state)
{
    struct s3_chain one, two;
    struct err e;
    set_environment(KEYS, "[profile one]\naws_access_key_id=ONE\naws_secret_access_key=S1\n"
                          "[profile two]\naws_access_key_id=TWO\naws_secret_access_key=S2\n");
    WEB_FIXTURE_OK(find("one", NULL, &one, &e), e);
    WEB_FIXTURE_OK(find("two", NULL, &two, &e), e);
    assert_string_equal(one.fixed.access_key, "ONE");
    assert_string_equal(two.fixed.access_key, "TWO");
    assert_string_equal(two.fixed.secret_key, "S2");
    s3_chain_fini(&one);
    s3_chain_fini(&two);
}

/* ---- what comes ---- */

/* Only an answer with all of it counts; what would break a header does not. */
static void test_answers(void **state)
{
    static const struct {
        const char *text;
        bool good;
    } cases[] = {
        {ANSWER("AssumeRole", "K", FAR), true},
        {ANSWER("AssumeRole", "K", "2099-01-01T00:00:00.123Z"), true},
        {ANSWER("AssumeRole", "K", ""), false},
        {ANSWER("AssumeRole", "K", "tomorrow"), false},
        {ANSWER("AssumeRole", "", FAR), false},
        {ANSWER("AssumeRole", "a b", FAR), false},
        {ANSWER("AssumeRole", "a&#10;b", FAR), false},
        {"<R><Credentials><AccessKeyId>K</AccessKeyId></Credentials></R>", false},
        {"<R><Credentials><AccessKeyId>K</AccessKeyId><SecretAccessKey>S</SecretAccessKey><SessionToken>a b"
         "</SessionToken><Expiration>" FAR "</Expiration></Credentials></R>",
         false},
        {"<R><Other><AccessKeyId>K</AccessKeyId><SecretAccessKey>S</SecretAccessKey><SessionToken>T"
         "</SessionToken><Expiration>" FAR "</Expiration></Other></R>",
         false},
        {"<R><Credentials>", false},
        {"", false},
        {"{}", false},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct s3_credentials k = {0};
        uint64_t ends_ns = 0;
        struct err e = {0};
        int r = s3_sts_parse(slice_str(cases[i].text), &k, &ends_ns, &e);
        if ((r == 0) != cases[i].good || (r < 0 && r != ERR_ORIGIN_FAILED) || strstr(e.text, "hush"))
            fail_msg("%s: %d: %s", cases[i].text, r, e.text);
        if (r == 0) {
            assert_string_equal(k.access_key, "K");
            assert_string_equal(k.secret_key, "hush");
            assert_string_equal(k.session_token, "tok-K");
            assert_true(ends_ns > 4000000000000000000);
        } else {
            assert_null(k.access_key);
        }
        s3_credentials_fini(&k);
    }
}

/* A token file that is away, empty, or too long: no question is sent, and the error names the file. */
static void test_bad_tokens(void **state)
{
    struct web_fixture f;
    struct origin_attr attr;
    struct err e;
    char *_cleanup_free_ much = malloc(200000);
    memset(much, 'x', 199999);
    much[199999] = '\0';
    const char *texts[] = {"", " \n", much, NULL};
    set_environment("AWS_WEB_IDENTITY_TOKEN_FILE=@ AWS_ROLE_ARN=" ARN, "");
    start(&f, NULL, 0);
    for (size_t i = 0; i < ARRAY_SIZE(texts); i++) {
        (void)unlink(token_path);
        if (texts[i])
            write_text(token_path, texts[i]);
        assert_int_equal(web_fixture_stat(&f, &attr, &e), ERR_ORIGIN_DENIED);
        if (!strstr(e.text, token_path) || strstr(e.text, "xxx"))
            fail_msg("%zu: %s", i, e.text);
    }
    assert_int_equal(script_steps_taken(&f.script), 0);
    web_fixture_stop(&f);
    write_text(token_path, "first.token\n");
}

/* Whatever call fails when the token is read, the question is either sent with all of it or not at all. */
static void test_faults(void **state)
{
    static const struct script_step steps[] = {{.answer = IDENTITY("one"), .close = true}};
    set_environment("AWS_WEB_IDENTITY_TOKEN_FILE=@ AWS_ROLE_ARN=" ARN, "");
    bool hit = true;
    uint64_t failed = 0;
    for (uint64_t n = 1; hit; n++) {
        struct web_fixture f;
        struct buf _cleanup_buf_ b = BUF_INIT(16 * KIB);
        struct err e = {0};
        start(&f, steps, ARRAY_SIZE(steps));
        fault_sys_start();
        fault_sys_arm(FAULT_ALL, n, EIO, FAULT_ONCE);
        int r = origin_identify(f.origin, &b, &e);
        hit = fault_sys_hit();
        fault_sys_disarm();
        fault_sys_stop();
        if (r < 0)
            assert_non_null(strstr(e.text, token_path));
        else
            assert_non_null(strstr(f.script.body, "WebIdentityToken=first.token"));
        assert_int_equal(script_steps_taken(&f.script), r == 0);
        failed += r < 0;
        web_fixture_stop(&f);
    }
    assert_true(failed >= 2); /* opening and reading */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_web_identity),
        cmocka_unit_test(test_a_wrong_clock),
        cmocka_unit_test(test_renewal),
        cmocka_unit_test(test_roles_of_profiles),
        cmocka_unit_test(test_a_source_that_ended),
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_two_accounts),
        cmocka_unit_test(test_answers),
        cmocka_unit_test(test_bad_tokens),
        cmocka_unit_test(test_faults),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}

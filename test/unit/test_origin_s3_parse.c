/* layer: origin */
/*
 * The pure parts of the S3 kind: heads, error classes, documents, ETags, the AWS environment and its files.
 */
#include "origin/s3_internal.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

/* ---- heads ---- */

static void feed(struct web_response *r, const char *text)
{
    struct slice rest = slice_str(text);
    while (rest.n > 0)
        web_response_line(r, slice_split(&rest, '\n'));
}

/* Every header that matters is read, names in any case, values without the white space around them. */
static void test_head(void **state)
{
    struct web_response r;
    web_response_init(&r);
    feed(&r, "HTTP/1.1 206 Partial Content\r\nETAG:  \"abc\"  \r\ncontent-range: bytes "
             "5-9/1000\r\nContent-Length: 5\r\n"
             "Last-Modified: Sat, 31 Jan 2026 23:59:59 GMT\r\nDate: Sun, 01 Feb 2026 00:00:00 GMT\r\n"
             "Content-Type: image/jpeg\r\nX-Amz-Meta-Label: Cat 7\r\nCache-Control: no-cache\r\nServer: x\r\n"
             "x-amz-meta-: nameless\r\nx-amz-bucket-region: eu-west-1\r\n\r\n");
    struct origin_attr a = web_response_attr(&r);
    assert_int_equal(r.status, 206);
    assert_string_equal(r.reason, "Partial Content");
    assert_int_equal(a.size_bytes, 1000);
    assert_int_equal(r.range_first, 5);
    assert_int_equal(r.range_last, 9);
    assert_int_equal(r.length, 5);
    assert_true(slice_eq_str(a.etag, "abc"));
    assert_int_equal(a.mtime_ns, (uint64_t)1769903999 * 1000000000);
    assert_int_equal(r.date_ns, (uint64_t)1769904000 * 1000000000);
    assert_true(slice_eq_str(a.content_type, "image/jpeg"));
    assert_true(slice_eq_str(a.meta, "x-amz-meta-label: Cat 7\ncache-control: no-cache\n"));
    assert_string_equal(r.region, "eu-west-1");
    web_response_fini(&r);
}

/* A new status line forgets the head before it. */
static void test_interim_head(void **state)
{
    struct web_response r;
    web_response_init(&r);
    feed(&r, "HTTP/1.1 100 Continue\r\nETag: \"old\"\r\nContent-Type: a/b\r\nx-amz-meta-a: "
             "b\r\nContent-Length: 7\r\n\r\n"
             "HTTP/1.1 200 OK\r\n\r\n");
    struct origin_attr a = web_response_attr(&r);
    assert_int_equal(r.status, 200);
    assert_int_equal(a.etag.n + a.content_type.n + a.meta.n, 0);
    assert_false(r.has_length);
    web_response_fini(&r);
}

/* Headers that make no sense or are too long count as absent, whole. */
static void test_bad_headers(void **state)
{
    static const char *const ranges[] = {
        "bytes 9-5/10", "bytes 0-10/10", "bytes 0-9/*",   "bytes */10",
        "0-9/10",       "bytes 0-9",     "bytes -1-9/10", "bytes 99999999999999999999-1/2"};
    for (size_t i = 0; i < ARRAY_SIZE(ranges); i++) {
        struct web_response r;
        char line[128];
        web_response_init(&r);
        (void)snprintf(line, sizeof(line), "HTTP/1.1 206 X\r\nContent-Range: %s\r\n", ranges[i]);
        feed(&r, line);
        assert_false(r.has_range);
        web_response_fini(&r);
    }
    struct web_response r;
    char etag[400] = "ETag: \"";
    web_response_init(&r);
    memset(etag + 7, 'e', 130);
    (void)snprintf(etag + 137, sizeof(etag) - 137, "\"");
    feed(&r, "HTTP/1.1 200 OK\r\nContent-Length: 12x\r\nContent-Type: a\tb\r\nETag: ctl\x01\r\nno colon\r\n: "
             "empty\r\n");
    web_response_line(&r, slice_str(etag));
    assert_false(r.has_length);
    assert_string_equal(r.etag, "");
    web_response_fini(&r);
}

/* Metadata beyond its maximum is left out by whole lines. */
static void test_much_metadata(void **state)
{
    struct web_response r;
    web_response_init(&r);
    feed(&r, "HTTP/1.1 200 OK\r\n");
    char line[1100];
    for (int i = 0; i < 20; i++) {
        (void)snprintf(line, sizeof(line), "x-amz-meta-%02d: %01000d", i, i);
        web_response_line(&r, slice_str(line));
    }
    struct slice meta = web_response_attr(&r).meta, name, value;
    assert_true(meta.n <= ORIGIN_META_MAX_BYTES && meta.n > ORIGIN_META_MAX_BYTES - 1100);
    int n = 0;
    while (origin_next_meta(&meta, &name, &value)) {
        assert_int_equal(value.n, 1000);
        n++;
    }
    assert_int_equal(n, 8);
    web_response_fini(&r);
}

/* ---- errors ---- */

/* The code decides, the status where the code says nothing; every status has a class. */
static void test_classes(void **state)
{
    static const struct {
        int status;
        const char *code;
        int class;
    } cases[] = {
        {404, "NoSuchKey", -ENOENT},
        {404, "", -ENOENT},
        {403, "", ERR_ORIGIN_DENIED},
        {401, "", ERR_ORIGIN_DENIED},
        {400, "ExpiredToken", ERR_ORIGIN_DENIED},
        {400, "RequestTimeout", -ETIMEDOUT},
        {400, "InvalidArgument", ERR_ORIGIN_REFUSED},
        {400, "BadDigest", ERR_ORIGIN_SHORT},
        {404, "NoSuchUpload", ERR_ORIGIN_FAILED},
        {409, "", ERR_CONFLICT},
        {409, "ConditionalRequestConflict", ERR_CONFLICT},
        {409, "ExistingObjectIsDirectory", ERR_ORIGIN_REFUSED},
        {412, "", ERR_PRECONDITION},
        {304, "", ERR_NOT_MODIFIED},
        {301, "", ERR_ORIGIN_REFUSED},
        {301, "PermanentRedirect", ERR_ORIGIN_SETUP},
        {400, "AuthorizationHeaderMalformed", ERR_ORIGIN_SETUP},
        {416, "", ERR_RANGE},
        {429, "", ERR_ORIGIN_BUSY},
        {503, "", ERR_ORIGIN_BUSY},
        {503, "SlowDown", ERR_ORIGIN_BUSY},
        {500, "SlowDown", ERR_ORIGIN_BUSY},
        {500, "", ERR_ORIGIN_FAILED},
        {501, "NotImplemented", ERR_NOT_IMPLEMENTED},
        {504, "", -ETIMEDOUT},
        {507, "", -ENOSPC},
        {200, "InternalError", ERR_ORIGIN_FAILED},
        {200, "Whatever", ERR_ORIGIN_REFUSED},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
        assert_int_equal(s3_error_class(cases[i].status, slice_str(cases[i].code)), cases[i].class);
    for (int status = 0; status < 1000; status++)
        assert_true(s3_error_class(status, SLICE_NULL) < 0);
}

/* Errors in any frame: with and without namespace, cut in the middle, not XML at all. */
static void test_error_documents(void **state)
{
    struct web_error x;
    web_error_parse(
        SLICE_LIT(
            "<?xml version=\"1.0\"?>\n<Error xmlns=\"u\"><Code> AccessDenied </Code><Message>a &lt;b&gt;\n"
            "c</Message><Extra><Code>no</Code></Extra></Error>"),
        &x);
    assert_string_equal(x.code, "AccessDenied");
    assert_string_equal(x.message, "a <b> c");
    web_error_parse(SLICE_LIT("<Error><Code>SlowDown</Code><Mess"), &x);
    assert_string_equal(x.code, "SlowDown");
    web_error_parse(SLICE_LIT("<s3:Error xmlns:s3=\"u\"><s3:Code>X</s3:Code></s3:Error>"), &x);
    assert_string_equal(x.code, "X");
    web_error_parse(SLICE_LIT("not XML"), &x);
    assert_string_equal(x.code, "");
    web_error_parse(SLICE_NULL, &x);
    assert_string_equal(x.code, "");
    web_error_parse(SLICE_LIT("<!DOCTYPE x [<!ENTITY a \"b\">]><Error><Code>&a;</Code></Error>"), &x);
    assert_string_equal(x.code, "");
}

/* ---- documents ---- */

struct seen {
    unsigned elements;
    int answer;
};

static int count(void *arg, unsigned depth, const char *parent, const char *name, struct slice text,
                 struct err *e)
{
    struct seen *s = arg;
    s->elements++;
    return s->answer ? err_set(e, s->answer, "enough of %s", name) : 0;
}

/* Bytes, depth and text are bounded; what the reader's function says ends the parse, and stays its result. */
static void test_xml_limits(void **state)
{
    char *deep = malloc(64 * 3 + 1), *text = malloc(20000);
    for (int i = 0; i < 64; i++)
        memcpy(deep + i * 3, "<a>", 4);
    memset(text, 't', 20000);
    memcpy(text, "<a>", 3);
    struct seen s = {0};
    struct err e = {0};
    struct web_xml *x = web_xml_new(1 << 20, count, &s);
    assert_int_equal(web_xml_feed(x, deep, strlen(deep), &e), ERR_ORIGIN_FAILED);
    assert_non_null(strstr(e.text, "too deep"));
    assert_int_equal(web_xml_end(x, &e), ERR_ORIGIN_FAILED);
    web_xml_free(x);
    x = web_xml_new(1 << 20, count, &s);
    assert_int_equal(web_xml_feed(x, text, 20000, &e), ERR_ORIGIN_FAILED);
    assert_non_null(strstr(e.text, "too long"));
    web_xml_free(x);
    x = web_xml_new(100, count, &s);
    assert_int_equal(web_xml_feed(x, "<a>", 3, &e), 0);
    assert_int_equal(web_xml_feed(x, text, 98, &e), ERR_ORIGIN_FAILED);
    assert_non_null(strstr(e.text, "longer than 100 bytes"));
    assert_int_equal(web_xml_feed(x, "</a>", 4, &e), ERR_ORIGIN_FAILED);
    web_xml_free(x);
    s = (struct seen){.answer = -EXDEV};
    x = web_xml_new(100, count, &s);
    assert_int_equal(web_xml_feed(x, "<a><b/><c/></a>", 15, &e), -EXDEV);
    assert_string_equal(e.text, "enough of b");
    assert_int_equal(s.elements, 1);
    assert_int_equal(web_xml_end(x, &e), -EXDEV);
    web_xml_free(x);
    web_xml_free(NULL);
    free(deep);
    free(text);
}

/* What begins as a tag and does not end is refused long before the document is too long: the parser begins it
 * anew with each piece that comes. (Without is_piece_too_long it is the end of the document that says so,
 * after a minute or more where the document may have 32 MiB.) */
static void test_a_tag_without_an_end(void **state)
{
    static const char *const begin[] = {"", "<", "<a b=\"", "<!--", "<a>text<"};
    char piece[4096];
    memset(piece, 'z', sizeof(piece));
    for (size_t i = 0; i < ARRAY_SIZE(begin); i++) {
        struct seen s = {0};
        struct err e = {0};
        struct web_xml *x = web_xml_new(1 << 20, count, &s);
        int r = web_xml_feed(x, begin[i], strlen(begin[i]), &e);
        size_t n = 0;
        for (; r == 0 && n < 1 << 20; n += sizeof(piece))
            r = web_xml_feed(x, piece, sizeof(piece), &e);
        assert_int_equal(r, ERR_ORIGIN_FAILED);
        assert_non_null(strstr(e.text, "a tag is too long"));
        assert_true(n <= 128 * KIB);
        web_xml_free(x);
    }
}

/* Results of uploads and copies, with quoted and unquoted ETags; values that do not fit are left out; times
 * are in seconds, as those of HEAD. */
static void test_results(void **state)
{
    struct s3_result x;
    struct err e = {0};
    assert_int_equal(
        s3_result_parse(SLICE_LIT("<CopyObjectResult><ETag>\"e\"</ETag><LastModified>2026-01-31T23:59:59.789Z"
                                  "</LastModified></CopyObjectResult>"),
                        &x, &e),
        0);
    assert_string_equal(x.root, "CopyObjectResult");
    assert_string_equal(x.etag, "e");
    assert_int_equal(x.mtime_ns, (uint64_t)1769903999 * 1000000000);
    assert_int_equal(
        s3_result_parse(SLICE_LIT("<R><UploadId>  id&amp;  </UploadId><ETag>e-2</ETag></R>"), &x, &e), 0);
    assert_string_equal(x.upload_id, "id&");
    assert_string_equal(x.etag, "e-2");
    assert_int_equal(s3_result_parse(SLICE_LIT("<R><UploadId>"), &x, &e), ERR_ORIGIN_FAILED);
    assert_int_equal(s3_result_parse(SLICE_NULL, &x, &e), ERR_ORIGIN_FAILED);
    assert_string_equal(x.etag, "e-2"); /* untouched on failure */
}

/* Text is escaped for XML; bytes that XML cannot hold are refused. */
static void test_escape(void **state)
{
    struct buf _cleanup_buf_ b = BUF_INIT(KIB);
    assert_int_equal(web_xml_escape(&b, SLICE_LIT("a<b>&\"c\"")), 0);
    assert_string_equal(b.p, "a&lt;b&gt;&amp;&quot;c&quot;");
    assert_int_equal(web_xml_escape(&b, SLICE_LIT("\x01")), -EILSEQ);
}

/* ETags are quoted for headers, weak ones and "*" are not; what cannot be a header is refused. */
static void test_etag_header(void **state)
{
    char text[WEB_ETAG_MAX + 3], longest[WEB_ETAG_MAX + 1];
    struct err e = {0};
    assert_int_equal(web_etag_header(SLICE_LIT("abc-2"), text, &e), 0);
    assert_string_equal(text, "\"abc-2\"");
    assert_int_equal(web_etag_header(SLICE_LIT("W/\"x\""), text, &e), 0);
    assert_string_equal(text, "W/\"x\"");
    assert_int_equal(web_etag_header(SLICE_LIT("*"), text, &e), 0);
    assert_string_equal(text, "*");
    memset(longest, 'e', sizeof(longest));
    assert_int_equal(web_etag_header(slice_of(longest, WEB_ETAG_MAX), text, &e), 0);
    assert_int_equal(strlen(text), WEB_ETAG_MAX + 2);
    assert_int_equal(web_etag_header(slice_of(longest, WEB_ETAG_MAX + 1), text, &e), -EINVAL);
    assert_int_equal(web_etag_header(SLICE_LIT("a\r\nb"), text, &e), -EINVAL);
    assert_int_equal(web_etag_header(SLICE_LIT("a b"), text, &e), -EINVAL);
}

/* Entries are put in order, each once, and those not after the start are dropped. */
static void test_order(void **state)
{
    struct origin_entry x[] = {{.key = SLICE_LIT("c")},
                               {.key = SLICE_LIT("a")},
                               {.key = SLICE_LIT("b")},
                               {.key = SLICE_LIT("b")},
                               {.key = SLICE_LIT("a/")}};
    size_t n = ARRAY_SIZE(x);
    origin_order_entries(x, &n, SLICE_LIT("a"));
    assert_int_equal(n, 3);
    assert_true(slice_eq_str(x[0].key, "a/") && slice_eq_str(x[1].key, "b") && slice_eq_str(x[2].key, "c"));
    origin_order_entries(x, &n, SLICE_LIT("z"));
    assert_int_equal(n, 0);
}

/* ---- the AWS environment ---- */

/* Sections, comments, white space, line ends of other systems, keys outside any section. */
static void test_ini(void **state)
{
    struct slice text = SLICE_LIT(
        "key = outside\n# c\n; c\n[ one ]\r\n key=1 \r\nother = a = b\n[two]\nkey =\n[one\n[three]\nkey=3");
    static const char *const cases[][3] = {{"one", "key", "1"},    {"one", "other", "a = b"},
                                           {"two", "key", ""},     {"three", "key", "3"},
                                           {"two", "other", NULL}, {"none", "key", NULL}};
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        char _cleanup_free_ *v = s3_ini_get(text, cases[i][0], cases[i][1]);
        if (cases[i][2])
            assert_string_equal(v, cases[i][2]);
        else
            assert_null(v);
    }
    assert_null(s3_ini_get(SLICE_NULL, "a", "b"));
    text = SLICE_LIT("[a]\ns3 =\n  key = of s3\n  [b]\nkey = 1\n[c]\n  key = 2\n  more = 3\n");
    char _cleanup_free_ *own = s3_ini_get(text, "a", "key"), *indented = s3_ini_get(text, "c", "more");
    assert_string_equal(own, "1"); /* what is indented below a key belongs to that one */
    assert_string_equal(indented, "3");
}

static void write_text(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static void clear_environment(void)
{
    static const char *const names[] = {"AWS_ACCESS_KEY_ID",   "AWS_SECRET_ACCESS_KEY",
                                        "AWS_SESSION_TOKEN",   "AWS_PROFILE",
                                        "AWS_DEFAULT_PROFILE", "AWS_REGION",
                                        "AWS_DEFAULT_REGION",  "AWS_ENDPOINT_URL",
                                        "AWS_ENDPOINT_URL_S3", "AWS_SHARED_CREDENTIALS_FILE",
                                        "AWS_CONFIG_FILE",     "AWS_EC2_METADATA_DISABLED"};
    for (size_t i = 0; i < ARRAY_SIZE(names); i++)
        (void)unsetenv(names[i]);
}

struct told {
    struct s3_aws aws;
    struct s3_credentials keys;
};

/* What the environment says now, and the keys that are used with it. */
static void tell(struct told *t)
{
    struct origin_options o;
    struct s3_chain chain = {0};
    struct err e = {0};
    uint64_t version = 0;
    *t = (struct told){0};
    assert_int_equal(option_init(&origin_option_table, &o, &e), 0);
    s3_aws_load(NULL, &t->aws);
    if (s3_chain_find(&o, &t->aws, /* roles= */ true, &chain, &e) < 0)
        fail_msg("%s", e.text);
    if (chain.provider)
        assert_int_equal(s3_provider_get(chain.provider, &t->keys, &version, &e), 0);
    else
        t->keys = chain.fixed;
    chain.fixed = (struct s3_credentials){0};
    s3_chain_fini(&chain);
    option_fini(&origin_option_table, &o);
}

static void told_fini(struct told *t)
{
    s3_aws_fini(&t->aws);
    s3_credentials_fini(&t->keys);
}

/* Variables win over the credentials file, that over the config file; keys come as a set; the profile is the
 * one named. */
static void test_aws_chain(void **state)
{
    char home[] = "/tmp/forebay-aws-XXXXXX", path[128];
    assert_non_null(mkdtemp(home));
    (void)snprintf(path, sizeof(path), "%s/.aws", home);
    assert_int_equal(mkdir(path, 0700), 0);
    clear_environment();
    (void)setenv("HOME", home, 1);
    (void)setenv("AWS_EC2_METADATA_DISABLED", "true", 1);
    struct told t;
    tell(&t);
    assert_null(t.keys.access_key);
    assert_null(t.aws.region);
    told_fini(&t);
    (void)snprintf(path, sizeof(path), "%s/.aws/credentials", home);
    write_text(path, "[default]\naws_access_key_id=FILE\naws_secret_access_key=S1\naws_session_token=T1\n"
                     "[half]\naws_access_key_id=HALF\n");
    (void)snprintf(path, sizeof(path), "%s/.aws/config", home);
    write_text(path,
               "[default]\nregion=eu-west-1\naws_access_key_id=CONFIG\naws_secret_access_key=S2\n"
               "[profile half]\nregion=ap-south-1\naws_access_key_id=PROFILE\naws_secret_access_key=S3\n"
               "endpoint_url=http://10.0.0.9:9000\n");
    tell(&t);
    assert_string_equal(t.keys.access_key, "FILE");
    assert_string_equal(t.keys.secret_key, "S1");
    assert_string_equal(t.keys.session_token, "T1");
    assert_string_equal(t.aws.region, "eu-west-1");
    told_fini(&t);
    (void)setenv("AWS_PROFILE", "half", 1);
    tell(&t); /* half a set in the credentials file counts as none */
    assert_string_equal(t.keys.access_key, "PROFILE");
    assert_string_equal(t.keys.secret_key, "S3");
    assert_string_equal(t.aws.region, "ap-south-1");
    assert_string_equal(t.aws.endpoint, "http://10.0.0.9:9000");
    told_fini(&t);
    (void)setenv("AWS_ACCESS_KEY_ID", "ENV", 1);
    (void)setenv("AWS_SECRET_ACCESS_KEY", "S4", 1);
    (void)setenv("AWS_REGION", "us-west-2", 1);
    (void)setenv("AWS_ENDPOINT_URL", "http://e", 1);
    tell(&t);
    assert_string_equal(t.keys.access_key, "ENV");
    assert_string_equal(t.keys.secret_key, "S4");
    assert_null(t.keys.session_token);
    assert_string_equal(t.aws.region, "us-west-2");
    assert_string_equal(t.aws.endpoint, "http://e");
    told_fini(&t);
    clear_environment();
    char command[128];
    (void)snprintf(command, sizeof(command), "rm -rf %s", home);
    assert_int_equal(system(command), 0);
}

static struct s3 *open_s3(const char *url, const char *endpoint, const char *region, const char *style)
{
    struct origin_options o;
    struct origin *x = NULL;
    struct err e = {0};
    assert_int_equal(option_init(&origin_option_table, &o, &e), 0);
    if (endpoint)
        assert_int_equal(option_set(&origin_option_table, &o, "origin.endpoint", endpoint, "x", &e), 0);
    if (region)
        assert_int_equal(option_set(&origin_option_table, &o, "origin.region", region, "x", &e), 0);
    assert_int_equal(option_set(&origin_option_table, &o, "origin.style", style, "x", &e), 0);
    if (origin_open(url, &o, "n", &x, &e) != 0)
        fail_msg("%s", e.text);
    option_fini(&origin_option_table, &o);
    return s3_of(x);
}

/* Endpoint, region and style give the address, the Host header and the path before the key. */
static void test_addresses(void **state)
{
    clear_environment();
    (void)setenv("HOME", "/nonexistent", 1);
    static const struct {
        const char *url, *endpoint, *region, *style, *base_url, *host, *root, *prefix;
        bool loopback;
    } cases[] = {
        {"s3://b/p/q", "http://127.0.0.1:9000", NULL, "auto", "http://127.0.0.1:9000", "127.0.0.1:9000", "/b",
         "p/q/", true},
        {"s3://b/p/", "http://10.0.0.5", NULL, "auto", "http://10.0.0.5", "10.0.0.5", "/b", "p/", false},
        {"s3://b", "https://s3.local:443/", NULL, "virtual", "https://b.s3.local", "b.s3.local", "", "",
         false},
        {"s3://b", "http://localhost:80/deep/path/", NULL, "path", "http://localhost", "localhost",
         "/deep/path/b", "", true},
        {"s3://b", "http://[::1]:9000", NULL, "path", "http://[::1]:9000", "[::1]:9000", "/b", "", true},
        {"s3://b", NULL, NULL, "auto", "https://b.s3.us-east-1.amazonaws.com", "b.s3.us-east-1.amazonaws.com",
         "", "", false},
        {"s3://b.c", NULL, "eu-west-1", "auto", "https://s3.eu-west-1.amazonaws.com",
         "s3.eu-west-1.amazonaws.com", "/b.c", "", false},
        {"s3://b", NULL, "cn-north-1", "path", "https://s3.cn-north-1.amazonaws.com.cn",
         "s3.cn-north-1.amazonaws.com.cn", "/b", "", false},
        {"s3://b", NULL, "eusc-de-east-1", "path", "https://s3.eusc-de-east-1.amazonaws.eu",
         "s3.eusc-de-east-1.amazonaws.eu", "/b", "", false},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct s3 *s = open_s3(cases[i].url, cases[i].endpoint, cases[i].region, cases[i].style);
        assert_string_equal(s->endpoint.base, cases[i].base_url);
        assert_string_equal(s->endpoint.host, cases[i].host);
        assert_string_equal(s->path_root, cases[i].root);
        assert_string_equal(s->prefix, cases[i].prefix);
        assert_int_equal(s->endpoint.loopback, cases[i].loopback);
        origin_close(&s->base);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_head),        cmocka_unit_test(test_interim_head),
        cmocka_unit_test(test_bad_headers), cmocka_unit_test(test_much_metadata),
        cmocka_unit_test(test_classes),     cmocka_unit_test(test_error_documents),
        cmocka_unit_test(test_xml_limits),  cmocka_unit_test(test_a_tag_without_an_end),
        cmocka_unit_test(test_results),     cmocka_unit_test(test_escape),
        cmocka_unit_test(test_etag_header), cmocka_unit_test(test_order),
        cmocka_unit_test(test_ini),         cmocka_unit_test(test_aws_chain),
        cmocka_unit_test(test_addresses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/*
 * The target of measurements that is an S3 endpoint: Forebay's own or any other, path style, Signature V4 or,
 * without keys in the environment, unsigned. One curl handle and so one kept-alive connection for each
 * bench_conn.
 *
 * Failure modes: an answer that is not the one asked for ends the call with the server's words; nothing is
 * tried again, because what is measured is the server.
 */
#include "cli/bench_s3.h"

#include "base/sys.h"
#include "base/text.h"
#include "net/libcurl.h"
#include "net/sigv4.h"
#include "net/trust.h"

#include <inttypes.h>

#define URL_BYTES     (16 * KIB)
#define ERROR_BYTES   (4 * KIB)
#define PAGE_BYTES    (8 * MIB)
#define BUFFER_BYTES  (128 * 1024L)
#define UNSIGNED_BODY "UNSIGNED-PAYLOAD"

struct endpoint {
    char *base; /* "http://host:port" */
    char *host; /* as the Host header says it */
    char *access, *secret, *token, *region;
    char *ca_file; /* NULL: the system's authorities */
};

struct bench_conn {
    struct bench_target *t;
    CURL *easy;
    char curl_error[CURL_ERROR_SIZE];
    struct trust trust;
    struct buf url, body; /* body: of errors and listings */
    /* the call in progress */
    bench_sink_fn sink;
    void *arg;
    uint64_t at, first_ns, left;
    struct pattern pattern;
    int sink_result;
    bool ranged;
};

static const char *environment(const char *a, const char *b)
{
    const char *v = getenv(a);
    if (!v || !*v)
        v = b ? getenv(b) : NULL;
    return v && *v ? v : NULL;
}

static char *copy(const char *s)
{
    return s ? slice_dup(slice_str(s)) : NULL;
}

static void endpoint_free(struct endpoint *p)
{
    if (!p)
        return;
    free(p->base);
    free(p->host);
    free(p->access);
    free(p->secret);
    free(p->token);
    free(p->region);
    free(p->ca_file);
    free(p);
}

static int s3_open(struct bench_target *t, struct err *e)
{
    const char *url = t->options->s3_endpoint ? t->options->s3_endpoint
                                              : environment("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL");
    struct slice host = slice_str(url);
    if (!url)
        return err_set(e, ERR_BAD_OPTION, "s3://%s: needs --s3-endpoint URL or AWS_ENDPOINT_URL", t->root);
    bool plain = slice_starts(host, SLICE_LIT("http://"));
    if (!plain && !slice_starts(host, SLICE_LIT("https://")))
        return err_set(e, ERR_BAD_OPTION, "--s3-endpoint %s: must begin with http:// or https://", url);
    while (slice_ends(host, SLICE_LIT("/")))
        host.n--;
    struct endpoint *p = calloc(1, sizeof(*p));
    assert(p);
    p->base = slice_dup(host);
    host = slice_from(host, plain ? 7 : 8);
    if (slice_ends(host, plain ? SLICE_LIT(":80") : SLICE_LIT(":443")))
        host.n -= plain ? 3 : 4;
    p->host = slice_dup(host);
    p->access = copy(environment("AWS_ACCESS_KEY_ID", NULL));
    p->secret = copy(environment("AWS_SECRET_ACCESS_KEY", NULL));
    p->token = copy(environment("AWS_SESSION_TOKEN", NULL));
    p->ca_file = copy(environment("AWS_CA_BUNDLE", NULL));
    const char *region =
        t->options->region ? t->options->region : environment("AWS_REGION", "AWS_DEFAULT_REGION");
    p->region = copy(region ? region : "us-east-1");
    t->state = p;
    bool is_host = host.n > 0 && slice_find(host, '/') < 0;
    int r = is_host ? libcurl_start(e)
                    : err_set(e, ERR_BAD_OPTION, "--s3-endpoint %s: must be http[s]://HOST[:PORT]", url);
    if (r < 0)
        endpoint_free(p);
    return r;
}

static void s3_close(struct bench_target *t)
{
    endpoint_free(t->state);
}

/* ---- callbacks of curl ---- */

static size_t on_body(char *p, size_t one, size_t n, void *arg)
{
    struct bench_conn *c = arg;
    long status = 0;
    (void)curl.easy_getinfo(c->easy, CURLINFO_RESPONSE_CODE, &status);
    if (c->first_ns == 0)
        c->first_ns = sys->mono_ns();
    if (!c->sink || status != (c->ranged ? 206 : 200)) {
        if (c->body.n + n > c->body.max)
            n = MIN(n, c->body.max - c->body.n); /* of an error the beginning will do */
        return buf_append(&c->body, p, n) < 0 ? 0 : n;
    }
    c->sink_result = c->sink(c->arg, c->at, p, n);
    c->at += n;
    return c->sink_result < 0 ? 0 : n;
}

static size_t on_upload(char *p, size_t one, size_t n, void *arg)
{
    struct bench_conn *c = arg;
    n = (size_t)MIN(one * n, c->left);
    pattern_fill(c->pattern, c->at, p, n);
    c->at += n;
    c->left -= n;
    return n;
}

static int s3_connect(struct bench_target *t, struct bench_conn **ret, struct err *e)
{
    struct bench_conn *c = calloc(1, sizeof(*c));
    assert(c);
    c->t = t;
    c->easy = curl.easy_init();
    c->url = BUF_INIT(URL_BYTES);
    c->body = BUF_INIT(PAGE_BYTES);
    if (!c->easy) {
        free(c);
        return err_set(e, -ENOMEM, "curl cannot start");
    }
    *ret = c;
    return 0;
}

static void s3_disconnect(struct bench_conn *c)
{
    if (!c)
        return;
    curl.easy_cleanup(c->easy);
    buf_fini(&c->url);
    buf_fini(&c->body);
    free(c);
}

/* ---- one request ---- */

struct call {
    const char *method, *key;       /* key: below the prefix; NULL for the bucket itself */
    const struct sigv4_pair *query; /* sorted by name */
    size_t n_query;
    char range[64]; /* or empty */
};

static int add_header(struct curl_slist **list, const char *name, const char *value)
{
    _cleanup_buf_ struct buf line = BUF_INIT(8 * KIB);
    if (buf_printf(&line, "%s: %s", name, value) < 0)
        return -E2BIG;
    struct curl_slist *more = curl.slist_append(*list, line.p);
    assert(more);
    *list = more;
    return 0;
}

static int sign(const struct endpoint *p, const struct call *call, struct slice path,
                struct curl_slist **headers)
{
    char time[SIGV4_TIME_LEN + 1], signature[SIGV4_SIGNATURE_LEN + 1];
    sigv4_time(sys->real_ns(), time);
    struct sigv4_pair signed_headers[4] = {{SLICE_LIT("host"), slice_str(p->host)},
                                           {SLICE_LIT("x-amz-content-sha256"), SLICE_LIT(UNSIGNED_BODY)},
                                           {SLICE_LIT("x-amz-date"), slice_str(time)},
                                           {SLICE_LIT("x-amz-security-token"), slice_str(p->token)}};
    struct sigv4_request r = {.method = slice_str(call->method),
                              .path = path,
                              .query = call->query,
                              .n_query = call->n_query,
                              .headers = signed_headers,
                              .n_headers = p->token ? 4 : 3,
                              .payload_hash = SLICE_LIT(UNSIGNED_BODY)};
    struct sigv4_scope scope = {slice_str(time), slice_str(p->region), SLICE_LIT("s3")};
    struct sigv4_key key;
    struct slice day = slice_of(time, SIGV4_DATE_LEN);
    sigv4_derive_key(slice_str(p->secret), day, slice_str(p->region), SLICE_LIT("s3"), &key);
    int result = sigv4_sign(&r, &scope, &key, signature);
    _cleanup_buf_ struct buf b = BUF_INIT(4 * KIB);
    if (result == 0)
        result = buf_printf(
            &b, "AWS4-HMAC-SHA256 Credential=%s/" SLICE_FMT "/%s/s3/aws4_request, SignedHeaders=", p->access,
            SLICE_ARG(day), p->region);
    result = result < 0 ? result : sigv4_signed_headers(&r, &b);
    result = result < 0 ? result : buf_printf(&b, ", Signature=%s", signature);
    result = result < 0 ? result : add_header(headers, "Authorization", b.p);
    result = result < 0 ? result : add_header(headers, "x-amz-date", time);
    result = result < 0 ? result : add_header(headers, "x-amz-content-sha256", UNSIGNED_BODY);
    return result == 0 && p->token ? add_header(headers, "x-amz-security-token", p->token) : result;
}

/* The URL goes to c->url, what is signed of it to `path`, decoded. */
static int make_url(struct bench_conn *c, const struct call *call, struct buf *path)
{
    const struct endpoint *p = c->t->state;
    int r = buf_printf(path, "/%s", c->t->root);
    if (call->key)
        r = r < 0 ? r : buf_printf(path, "/%s%s", c->t->prefix, call->key);
    buf_clear(&c->url);
    r = r < 0 ? r : buf_str(&c->url, p->base);
    r = r < 0 ? r : text_uri_encode(&c->url, buf_view(path), /* keep_slash= */ true);
    for (size_t i = 0; i < call->n_query && r == 0; i++) {
        r = buf_char(&c->url, i ? '&' : '?');
        r = r < 0 ? r : text_uri_encode(&c->url, call->query[i].name, false);
        r = r < 0 ? r : buf_char(&c->url, '=');
        r = r < 0 ? r : text_uri_encode(&c->url, call->query[i].value, false);
    }
    return r;
}

static void set_up(struct bench_conn *c, const struct call *call, struct curl_slist *headers, struct err *e)
{
    CURL *easy = c->easy;
    curl.easy_reset(easy); /* keeps the connection */
    c->trust = (struct trust){.ca_file = ((const struct endpoint *)c->t->state)->ca_file, .e = e};
    trust_set(easy, &c->trust);
    curl_set(easy, CURLOPT_URL, c->url.p);
    curl_set(easy, CURLOPT_PATH_AS_IS, 1L);
    curl_set(easy, CURLOPT_NOSIGNAL, 1L);
    curl_set(easy, CURLOPT_TCP_NODELAY, 1L);
    curl_set(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    curl_set(easy, CURLOPT_BUFFERSIZE, BUFFER_BYTES);
    curl_set(easy, CURLOPT_ERRORBUFFER, c->curl_error);
    curl_set(easy, CURLOPT_HTTPHEADER, headers);
    curl_set(easy, CURLOPT_WRITEFUNCTION, on_body);
    curl_set(easy, CURLOPT_WRITEDATA, c);
    curl_set(easy, CURLOPT_CONNECTTIMEOUT_MS, (long)c->t->options->node.timeout_ms);
    curl_set(easy, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_set(easy, CURLOPT_LOW_SPEED_TIME, (long)MAX(c->t->options->node.timeout_ms / 1000, (uint64_t)1));
    if (strcmp(call->method, "PUT") == 0) {
        curl_set(easy, CURLOPT_UPLOAD, 1L);
        curl_set(easy, CURLOPT_READFUNCTION, on_upload);
        curl_set(easy, CURLOPT_READDATA, c);
        curl_set(easy, CURLOPT_INFILESIZE_LARGE, (curl_off_t)c->left);
        curl_set(easy, CURLOPT_UPLOAD_BUFFERSIZE, BUFFER_BYTES);
    } else if (strcmp(call->method, "DELETE") == 0) {
        curl_set(easy, CURLOPT_CUSTOMREQUEST, "DELETE");
    }
}

/* The text between <Code> and </Code>. */
static struct slice code_of(struct slice body)
{
    ssize_t at = slice_find_slice(body, SLICE_LIT("<Code>"));
    struct slice s = at < 0 ? SLICE_NULL : slice_from(body, (size_t)at + 6);
    return slice_sub(s, 0, (size_t)MAX(slice_find(s, '<'), (ssize_t)0));
}

static int result_of(struct bench_conn *c, const struct call *call, CURLcode code, struct err *e)
{
    const char *key = call->key ? call->key : c->t->root;
    long status = 0;
    (void)curl.easy_getinfo(c->easy, CURLINFO_RESPONSE_CODE, &status);
    if (c->trust.result < 0)
        return c->trust.result;
    if (c->sink_result < 0)
        return c->sink_result;
    long expected = c->ranged ? 206 : 200;
    bool cut_short = code == CURLE_WRITE_ERROR && status != expected; /* on_body had enough of an error */
    if (code != CURLE_OK && !cut_short)
        return err_set(e, code == CURLE_OPERATION_TIMEDOUT ? -ETIMEDOUT : -EIO, "%s %s: %s", call->method,
                       key, c->curl_error[0] ? c->curl_error : curl.easy_strerror(code));
    if (status == expected || (status == 204 && strcmp(call->method, "DELETE") == 0))
        return 0;
    struct slice word = code_of(buf_view(&c->body));
    return err_set(e, status == 404 ? -ENOENT : -EIO, "%s %s: %ld " SLICE_FMT, call->method, key, status,
                   SLICE_ARG(word));
}

static int perform(struct bench_conn *c, const struct call *call, struct err *e)
{
    const struct endpoint *p = c->t->state;
    _cleanup_buf_ struct buf path = BUF_INIT(URL_BYTES);
    struct curl_slist *headers = NULL;
    buf_clear(&c->body);
    c->body.max = c->sink ? ERROR_BYTES : PAGE_BYTES;
    c->first_ns = 0;
    c->sink_result = 0;
    c->curl_error[0] = '\0';
    c->ranged = call->range[0];
    int r = make_url(c, call, &path);
    if (r == 0)
        r = add_header(&headers, "Expect", ""); /* no round trip before a body */
    if (r == 0 && c->ranged)
        r = add_header(&headers, "Range", call->range);
    if (r == 0 && p->access && p->secret)
        r = sign(p, call, buf_view(&path), &headers);
    if (r < 0) {
        r = err_errno(e, r, "%s", call->key ? call->key : c->t->root);
    } else {
        set_up(c, call, headers, e);
        r = result_of(c, call, curl.easy_perform(c->easy), e);
    }
    curl_set(c->easy, CURLOPT_HTTPHEADER, NULL);
    curl.slist_free_all(headers);
    return r;
}

/* ---- operations ---- */

static int s3_get(struct bench_conn *c, const char *key, uint64_t offset, uint64_t n, bench_sink_fn sink,
                  void *arg, uint64_t *ret_first_ns, struct err *e)
{
    struct call call = {.method = "GET", .key = key};
    c->sink = sink;
    c->arg = arg;
    c->at = offset;
    if (n != UINT64_MAX)
        (void)snprintf(call.range, sizeof(call.range), "bytes=%" PRIu64 "-%" PRIu64, offset, offset + n - 1);
    else if (offset > 0)
        (void)snprintf(call.range, sizeof(call.range), "bytes=%" PRIu64 "-", offset);
    int r = perform(c, &call, e);
    if (r == 0 && c->first_ns)
        *ret_first_ns = c->first_ns;
    return r;
}

static int s3_put(struct bench_conn *c, const char *key, uint64_t size, struct pattern p, struct err *e)
{
    struct call call = {.method = "PUT", .key = key};
    c->sink = NULL;
    c->pattern = p;
    c->at = 0;
    c->left = size;
    return perform(c, &call, e);
}

static int s3_remove(struct bench_conn *c, const char *key, struct err *e)
{
    struct call call = {.method = "DELETE", .key = key};
    c->sink = NULL;
    int r = perform(c, &call, e);
    return r == -ENOENT ? 0 : r;
}

static int s3_list(struct bench_conn *c, const char *prefix, bench_entry_fn entry, void *arg, struct err *e)
{
    _cleanup_buf_ struct buf whole = BUF_INIT(4 * KIB), next = BUF_INIT(4 * KIB), asked = BUF_INIT(4 * KIB);
    int r = buf_printf(&whole, "%s%s", c->t->prefix, prefix);
    struct bench_s3_page page = {.skip = strlen(c->t->prefix), .entry = entry, .arg = arg, .next = &next};
    do {
        buf_clear(&asked);
        r = r < 0 ? r : buf_slice(&asked, buf_view(&next));
        struct sigv4_pair query[3] = {{SLICE_LIT("continuation-token"), buf_view(&asked)},
                                      {SLICE_LIT("list-type"), SLICE_LIT("2")},
                                      {SLICE_LIT("prefix"), buf_view(&whole)}};
        struct call call = {
            .method = "GET", .query = asked.n ? query : query + 1, .n_query = asked.n ? 3 : 2};
        c->sink = NULL;
        r = r < 0 ? r : perform(c, &call, e);
        r = r < 0 ? r : bench_s3_page_parse(&page, buf_view(&c->body), e);
        if (r == 0 && next.n > 0 && slice_eq(buf_view(&next), buf_view(&asked)))
            r = err_set(e, -EBADMSG, "LIST: the listing does not go on");
    } while (r == 0 && next.n > 0);
    return r;
}

const struct bench_target_ops bench_s3_ops = {
    .kind = "s3",
    .files_per_connection = 4, /* the socket, and what curl wakes itself by */
    .open = s3_open,
    .close = s3_close,
    .connect = s3_connect,
    .disconnect = s3_disconnect,
    .get = s3_get,
    .put = s3_put,
    .remove = s3_remove,
    .list = s3_list,
};

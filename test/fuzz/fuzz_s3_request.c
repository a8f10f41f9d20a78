/*
 * Fuzz target: what S3 clients send. The first byte chooses the reader: a request with its body ('r'), an
 * aws-chunked body ('c' signed, 'u' unsigned with trailer), an XML document ('x'). Bodies must come out the
 * same, and end the same, whatever pieces they come in; no request may pass verification, because nobody here
 * knows the secret.
 */
#include "base/text.h"
#include "s3/auth.h"
#include "s3/body.h"
#include "s3/complete_list.h"
#include "s3/condition.h"
#include "s3/part_list.h"
#include "s3/s3_internal.h"
#include "s3/xml.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

struct source {
    struct slice rest;
    size_t piece;
};

static ssize_t give(void *arg, void *p, size_t n)
{
    struct source *s = arg;

    n = MIN(MIN(n, s->piece), s->rest.n);
    if (n > 0)
        memcpy(p, s->rest.p, n);
    s->rest = slice_from(s->rest, n);
    return (ssize_t)n;
}

/* Reads a body in pieces; what came out is in *out. */
static enum s3_error read_body(const struct body_plan *plan, const struct chunked_signing *signing,
                               struct slice raw, size_t piece, struct buf *out)
{
    struct source s = {raw, piece};
    struct body b;
    char p[64];
    ssize_t n;

    body_init(&b, plan, signing, give, &s);
    while ((n = body_read(&b, p, sizeof p)) > 0)
        if (buf_append(out, p, (size_t)n))
            abort();
    enum s3_error error = n < 0 ? b.error : S3_OK;
    assert(error || plan->size_bytes == BODY_SIZE_UNKNOWN || out->n == plan->size_bytes);
    body_fini(&b);
    return error;
}

static void body(const struct body_plan *plan, const struct chunked_signing *signing, struct slice raw)
{
    _cleanup_buf_ struct buf whole = BUF_INIT(MIB), pieces = BUF_INIT(MIB);
    enum s3_error a = read_body(plan, signing, raw, 64, &whole);
    enum s3_error b = read_body(plan, signing, raw, 1, &pieces);

    assert(!a == !b); /* of two faults, which one is told depends on how much is seen at once */
    assert(a || slice_eq(buf_view(&whole), buf_view(&pieces)));
}

/* auth_secret_fn */
static int find_secret(void *arg, struct slice access_key, struct buf *ret_secret)
{
    (void)arg;
    return slice_eq_str(access_key, "KEY") ? buf_str(ret_secret, "a secret that is not in the corpus")
                                           : -ENOENT;
}

static void request(struct slice text)
{
    _cleanup_(arena_freep) struct arena *a = arena_new(4 * MIB);
    _cleanup_buf_ struct buf path = BUF_INIT(HTTP_HEAD_MAX_BYTES);
    struct http_request *http = arena_zalloc(a, sizeof *http);
    struct auth_request r = {.http = http};
    const struct wire_attr attr = {.etag = SLICE_LIT("etag"), .mtime_ns = 1000000000};
    struct auth_keys keys;
    struct auth_claim claim;
    struct condition condition;
    struct http_pair *query = NULL;
    struct slice bucket, key;
    struct body_plan plan;
    const char *reason = NULL;
    enum s3_op op;
    int status;

    if (http_parse_head(text, http, &status, NULL) ||
        text_uri_decode(&path, http->raw_path, /* plus_is_space= */ false) ||
        http_parse_query(http->raw_query, a, &query, &r.n_query))
        return;
    r.path = buf_view(&path);
    r.query = query;
    auth_keys_init(&keys, find_secret, NULL, SLICE_LIT("us-east-1"));
    if (auth_parse(&r, a, &claim, &reason) == S3_OK) {
        enum s3_error error = auth_verify(&r, &claim, &keys, claim.time_s, a, &reason);
        assert(error != S3_OK);
    }
    auth_keys_fini(&keys);
    if (route_path(r.path, &bucket, &key) == S3_OK) {
        assert(key.n <= S3_KEY_MAX_BYTES && slice_find(bucket, '/') < 0);
        if (route_op(http, bucket.n > 0, key.n > 0, query, r.n_query, &op, &reason) == S3_OK)
            assert(op > S3_OP_NONE && op < S3_OP_COUNT);
    }
    condition_read(http, "", &condition);
    (void)condition_check(&condition, &attr);
    condition_read(http, "x-amz-copy-source-", &condition);
    (void)condition_check(&condition, &attr);
    struct slice hash = http_header(http, "x-amz-content-sha256");
    if (body_plan(http, hash, true, &plan, &reason) == S3_OK && !plan.chunks_signed)
        body(&plan, NULL, slice_from(text, http->head_bytes));
}

static int on_element(void *arg, const char *path, struct slice text)
{
    size_t *n = arg;

    assert(path[0] && strlen(path) < XML_PATH_MAX && text.n <= XML_TEXT_MAX);
    return ++*n > 1000 ? -ECANCELED : 0;
}

/* The same document as the list of a completion. */
static void list(struct slice text)
{
    _cleanup_(arena_freep) struct arena *a = arena_new(4 * MIB);
    const struct complete_part *parts = NULL;
    size_t n = 0;

    if (complete_list_read(text, a, &parts, &n, NULL))
        return;
    assert(n >= 1 && n <= PART_LIST_NUMBER_MAX);
    for (size_t i = 0; i < n; i++)
        assert(parts[i].number >= 1 && parts[i].number <= PART_LIST_NUMBER_MAX && parts[i].etag.n > 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const struct chunked_signing signing = {
        .time = "20130524T000000Z", .scope = "20130524/us-east-1/s3/aws4_request", .previous = "seed"};
    const struct body_plan is_signed = {
        .size_bytes = BODY_SIZE_UNKNOWN, .aws_chunked = true, .chunks_signed = true};
    const struct body_plan is_unsigned = {.size_bytes = BODY_SIZE_UNKNOWN,
                                          .aws_chunked = true,
                                          .has_trailer = true,
                                          .kind = CHECKSUM_CRC32,
                                          .in_trailer = true};
    size_t elements = 0;

    if (n == 0)
        return 0;
    struct slice text = slice_of(data + 1, n - 1);
    switch (data[0]) {
    case 'r':
        request(text);
        break;
    case 'c':
        body(&is_signed, &signing, text);
        break;
    case 'u':
        body(&is_unsigned, NULL, text);
        break;
    case 'x':
        (void)xml_parse(text, on_element, &elements, NULL);
        list(text);
        break;
    default:
        break;
    }
    return 0;
}

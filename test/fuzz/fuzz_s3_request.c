/*
 * Fuzz target: the requests of S3 clients: heads, signatures, paths, conditions, bodies that are not signed
 * by chunks. No request may pass verification, because nobody here knows the secret.
 */
#include "base/text.h"
#include "body_pieces.h"
#include "s3/auth.h"
#include "s3/condition.h"
#include "s3/s3_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    request(slice_of(data, n));
    return 0;
}

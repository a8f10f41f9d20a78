/*
 * What is sent to the Blob service: URL, headers, and what authorizes them.
 *
 * SharedKey signs method, some standard headers, every x-ms- header, path and query with the account's key
 * (HMAC-SHA256; "Authorize with Shared Key" of the service's REST reference, form 2009-09-19). A shared
 * access signature is a query that is appended as given. An identity's token is a header.
 *
 * Invariants:
 *  1. The path and the query that are signed are the ones in the URL.
 *  2. Without key, signature and token requests are anonymous: nothing but the version is added.
 *
 * Failure modes: -EINVAL for values that cannot be headers, -E2BIG and -ENAMETOOLONG beyond the maxima.
 */
#include "origin/az_internal.h"

#include "base/text.h"

#include <inttypes.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#define TEXT_MAX  (64 * KIB)
#define PAIRS_MAX 128

int az_url(const struct az *z, bool has_key, struct slice key, struct buf *b)
{
    struct buf _cleanup_buf_ path = BUF_INIT(WEB_URL_MAX);
    int r = buf_printf(&path, "/%s%s%s", z->container, has_key ? "/" : "", has_key ? z->prefix : "");
    if (r == 0 && has_key)
        r = buf_slice(&path, key);
    if (r == 0)
        r = buf_printf(b, "%s%s", z->endpoint.base, z->endpoint.path);
    return r < 0 ? r : text_uri_encode(b, buf_view(&path), /* keep_slash= */ true);
}

static int compare_pairs(const void *a, const void *b)
{
    const struct sigv4_pair *x = a, *y = b;
    return slice_cmp(x->name, y->name);
}

/* As the service sorts headers: '_' before digits, which ASCII has behind them. Other characters that it
 * sorts in its own way are in no name here, or stand at the same place in all that begin alike. */
static int compare_headers(const void *a, const void *b)
{
    const struct sigv4_pair *x = a, *y = b;
    size_t n = MIN(x->name.n, y->name.n), i = 0;
    while (i < n && x->name.p[i] == y->name.p[i])
        i++;
    if (i == n)
        return (x->name.n > n) - (y->name.n > n);
    char v = x->name.p[i], w = y->name.p[i];
    return (v == '_' ? '0' - 1 : v) - (w == '_' ? '0' - 1 : w);
}

static struct slice find(const struct sigv4_pair *pairs, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (slice_eq_str(pairs[i].name, name))
            return slice_trim(pairs[i].value);
    return SLICE_NULL;
}

static int sign_ms_headers(const struct sigv4_pair *pairs, size_t n, struct buf *b)
{
    struct sigv4_pair own[PAIRS_MAX];
    size_t n_own = 0;
    for (size_t i = 0; i < n; i++)
        if (slice_starts(pairs[i].name, SLICE_LIT("x-ms-")))
            own[n_own++] = pairs[i];
    qsort(own, n_own, sizeof(*own), compare_headers);
    int r = 0;
    for (size_t i = 0; i < n_own && r == 0; i++) {
        struct slice value = slice_trim(own[i].value);
        r = buf_printf(b, SLICE_FMT ":" SLICE_FMT "\n", SLICE_ARG(own[i].name), SLICE_ARG(value));
    }
    return r;
}

int az_string_to_sign(struct slice method, const char *account, struct slice path,
                      const struct sigv4_pair *query, size_t n_query, const struct sigv4_pair *pairs,
                      size_t n, uint64_t body_bytes, struct buf *b)
{
    static const char *const before[] = {"content-encoding", "content-language"};
    static const char *const behind[] = {"content-md5",         "content-type", "date",
                                         "if-modified-since",   "if-match",     "if-none-match",
                                         "if-unmodified-since", "range"};
    assert(n <= PAIRS_MAX && n_query <= WEB_PAIRS_MAX);
    int r = buf_printf(b, SLICE_FMT "\n", SLICE_ARG(method));
    for (size_t i = 0; i < ARRAY_SIZE(before) && r == 0; i++)
        r = buf_printf(b, SLICE_FMT "\n", SLICE_ARG(find(pairs, n, before[i])));
    if (r == 0)
        r = body_bytes ? buf_printf(b, "%" PRIu64 "\n", body_bytes) : buf_char(b, '\n');
    for (size_t i = 0; i < ARRAY_SIZE(behind) && r == 0; i++)
        r = buf_printf(b, SLICE_FMT "\n", SLICE_ARG(find(pairs, n, behind[i])));
    if (r == 0)
        r = sign_ms_headers(pairs, n, b);
    if (r == 0)
        r = buf_printf(b, "/%s" SLICE_FMT, account, SLICE_ARG(path));
    struct sigv4_pair sorted[WEB_PAIRS_MAX];
    if (n_query > 0)
        memcpy(sorted, query, n_query * sizeof(*query));
    qsort(sorted, n_query, sizeof(*sorted), compare_pairs);
    for (size_t i = 0; i < n_query && r == 0; i++)
        r = buf_printf(b, "\n" SLICE_FMT ":" SLICE_FMT, SLICE_ARG(sorted[i].name),
                       SLICE_ARG(sorted[i].value));
    return r;
}

/* ---- the request ---- */

/* The call's headers and metadata under the names they are sent with; names of metadata go to `names`. */
static int gather(struct web_call *c, struct arena *names, struct sigv4_pair *pairs, size_t *ret_n,
                  struct err *e)
{
    static const struct slice ours = {"x-amz-meta-", sizeof("x-amz-meta-") - 1};
    struct slice meta = c->meta, name, value;
    size_t n = c->n_headers;
    memcpy(pairs, c->headers, n * sizeof(*pairs));
    while (origin_next_meta(&meta, &name, &value)) {
        if (n + 8 >= PAIRS_MAX || arena_left(names) < name.n + 64)
            return err_set(e, -E2BIG, "more than %d headers", PAIRS_MAX - 8);
        if (slice_starts(name, ours))
            name =
                slice_str(arena_printf(names, "x-ms-meta-" SLICE_FMT, SLICE_ARG(slice_from(name, ours.n))));
        pairs[n++] = (struct sigv4_pair){name, value};
    }
    *ret_n = n;
    return 0;
}

static int authorize(struct web_call *c, struct slice path, const struct sigv4_pair *pairs, size_t n,
                     struct web_request *q, struct err *e)
{
    const struct az *z = az_of(c->web->origin);
    struct buf _cleanup_buf_ text = BUF_INIT(TEXT_MAX), value = BUF_INIT(KIB);
    uint64_t body_bytes = c->method == WEB_PUT || c->body ? c->body_n : c->post.n;
    unsigned char sum[EVP_MAX_MD_SIZE];
    unsigned sum_n = 0;
    int r = az_string_to_sign(web_method_name(c->method), z->account, path, c->query, c->n_query, pairs, n,
                              body_bytes, &text);
    if (r == 0 &&
        !HMAC(EVP_sha256(), z->key, (int)z->key_n, (const unsigned char *)text.p, text.n, sum, &sum_n))
        r = -ENOMEM;
    if (r == 0)
        r = buf_printf(&value, "SharedKey %s:", z->account);
    if (r == 0)
        r = text_base64(&value, slice_of(sum, sum_n));
    if (r < 0)
        return err_set(e, r, "the request is too large to be signed");
    return web_request_header(q, SLICE_LIT("Authorization"), buf_view(&value), e);
}

static int add_token(struct az_token *t, struct web_call *c, struct web_request *q, struct err *e)
{
    struct buf _cleanup_buf_ value = BUF_INIT(32 * KIB);
    int r = buf_str(&value, "Bearer ");
    size_t empty_n = value.n;
    if (r == 0)
        r = az_token_get(t, &value, &c->credentials, e);
    if (r == 0 && value.n > empty_n)
        r = web_request_header(q, SLICE_LIT("Authorization"), buf_view(&value), e);
    if (value.p)
        explicit_bzero(value.p, value.n);
    return r;
}

int az_request_prepare(struct web_call *c, struct web_request *q, struct err *e)
{
    const struct az *z = az_of(c->web->origin);
    struct arena *_cleanup_(arena_freep) names = arena_new(64 * KIB);
    struct sigv4_pair pairs[PAIRS_MAX];
    char date[32];
    size_t n = 0;
    int r = az_url(z, c->has_key, c->key, &q->url);
    size_t path_end = q->url.n;
    if (r == 0)
        r = web_request_query(c, &q->url);
    if (r == 0 && z->sas)
        r = buf_printf(&q->url, "%c%s", c->n_query ? '&' : '?', z->sas);
    if (r < 0)
        return err_set(e, -ENAMETOOLONG, "the request's URL is too long");
    r = gather(c, names, pairs, &n, e);
    if (r == 0)
        r = web_request_headers(c, q, e);
    size_t n_own = n;
    text_http_date(sys->real_ns(), date);
    pairs[n++] = (struct sigv4_pair){SLICE_LIT("x-ms-version"), SLICE_LIT(AZ_VERSION)};
    if (z->key_n)
        pairs[n++] = (struct sigv4_pair){SLICE_LIT("x-ms-date"), slice_str(date)};
    for (size_t i = n_own; i < n && r == 0; i++)
        r = web_request_header(q, pairs[i].name, pairs[i].value, e);
    if (r == 0 && z->token)
        return add_token(z->token, c, q, e);
    if (r < 0 || !z->key_n)
        return r;
    struct slice path =
        slice_sub(buf_view(&q->url), strlen(z->endpoint.base), path_end - strlen(z->endpoint.base));
    return authorize(c, path, pairs, n, q, e);
}

/* ---- refusals ---- */

static const struct web_error_row table[] = {
    {"BlobNotFound", -ENOENT},
    {"ContainerNotFound", -ENOENT},
    {"ResourceNotFound", -ENOENT},
    {"ConditionNotMet", ERR_PRECONDITION},
    {"TargetConditionNotMet", ERR_PRECONDITION},
    {"SourceConditionNotMet", ERR_PRECONDITION},
    {"BlobAlreadyExists", ERR_PRECONDITION}, /* If-None-Match: * */
    {"InvalidBlockList", ERR_CONFLICT},      /* another upload of the same blob took the blocks away */
    {"ContainerBeingDeleted", ERR_CONFLICT},
    {"PendingCopyOperation", ERR_CONFLICT},
    {"NoPendingCopyOperation", ERR_CONFLICT},
    {"ServerBusy", ERR_ORIGIN_BUSY},
    {"OperationTimedOut", -ETIMEDOUT},
    {"InternalError", ERR_ORIGIN_FAILED},
    {"InvalidRange", ERR_RANGE},
    {"Md5Mismatch", ERR_ORIGIN_SHORT},
    {"RequestBodyTooLarge", -EFBIG},
    {"MetadataTooLarge", -E2BIG},
    {"AuthenticationFailed", ERR_ORIGIN_DENIED},
    {"AuthorizationFailure", ERR_ORIGIN_DENIED},
    {"AuthorizationPermissionMismatch", ERR_ORIGIN_DENIED},
    {"InsufficientAccountPermissions", ERR_ORIGIN_DENIED},
    {"AccountIsDisabled", ERR_ORIGIN_DENIED},
    {"NoAuthenticationInformation", ERR_ORIGIN_DENIED},
    {"PublicAccessNotPermitted", ERR_ORIGIN_DENIED},
    {"BlobImmutableDueToPolicy", ERR_ORIGIN_DENIED},
    {"BlobArchived", ERR_ORIGIN_DENIED},
    {"LeaseIdMissing", ERR_ORIGIN_DENIED},
};

int az_request_refused(struct web_call *c, struct err *e)
{
    const struct az *z = az_of(c->web->origin);
    struct web_error x;
    struct slice body = buf_view(&c->error_body);
    c->ended = c->response.status == 401 && z->token;
    if (c->ended)
        az_token_drop(z->token, c->credentials);
    web_error_parse(body, &x);
    if (!x.code[0]) /* answers to HEAD have no body */
        web_error_text(x.code, sizeof(x.code), slice_str(c->response.code));
    int strange;
    if (!x.code[0] && web_error_is_strange(&c->response, body, &strange, e))
        return strange;
    if (!x.code[0] && !x.message[0])
        web_error_line(body, x.message, sizeof(x.message));
    if (x.detail[0]) /* "Signature not valid in the specified time frame: ...", where the message blames all
                      */
        memcpy(x.message, x.detail, sizeof(x.message));
    /* And what follows says nothing to a reader. */
    static const char *const ends[] = {" RequestId:", " Server used following string", " String to sign"};
    for (size_t i = 0; i < ARRAY_SIZE(ends); i++) {
        char *behind = strstr(x.message, ends[i]);
        if (behind)
            *behind = '\0';
    }
    int class = web_error_lookup(table, ARRAY_SIZE(table), c->response.status, slice_str(x.code));
    return web_error_set(e, class, &c->response, x.code, x.message);
}

/*
 * Credentials of a role, which STS (the AWS Security Token Service, and whatever speaks like it) gives for a
 * while.
 *
 * AssumeRoleWithWebIdentity: the token in a file, which kubernetes or whoever signs it writes anew before it
 * ends, says who asks; nothing is signed. AssumeRole: signed with the credentials of a source.
 *
 * Both are forms that are posted, answered by XML. The address: AWS_ENDPOINT_URL_STS, else
 * https://sts.REGION.amazonaws.com; with sts_regional_endpoints "legacy" the one for all of the older
 * regions.
 *
 * Invariants:
 *  1. They are asked for over https, or on this machine: the answer holds a secret.
 *  2. Tokens and keys are never printed: errors carry the service's words only. What was sent and received is
 * wiped.
 *
 * Failure modes: ERR_ORIGIN_SETUP for an address that is none; ERR_ORIGIN_DENIED when the role is refused, or
 * the token cannot be read; those of web_perform.
 */
#include "origin/s3_internal.h"

#include "base/text.h"

#define API_VERSION "2011-06-15"
#define TOKEN_MAX   (64 * KIB)
#define FORM_MAX    (4 * TOKEN_MAX)
#define HEADER_MAX  (16 * KIB)
#define SESSION     "forebay"
#define CONTENT     "application/x-www-form-urlencoded; charset=utf-8"

/* Regions that were there when there was one address for all. */
static const char *const legacy_regions[] = {
    "ap-northeast-1", "ap-south-1", "ap-southeast-1", "ap-southeast-2", "aws-global", "ca-central-1",
    "eu-central-1",   "eu-north-1", "eu-west-1",      "eu-west-2",      "eu-west-3",  "sa-east-1",
    "us-east-1",      "us-east-2",  "us-west-1",      "us-west-2",
};

/* X(code of STS, class) */
#define STS_ERROR_TABLE(X)                                                                                   \
    X(Throttling, ERR_ORIGIN_BUSY)                                                                           \
    X(ThrottlingException, ERR_ORIGIN_BUSY)                                                                  \
    X(RequestLimitExceeded, ERR_ORIGIN_BUSY)                                                                 \
    X(ServiceUnavailable, ERR_ORIGIN_BUSY)                                                                   \
    X(IDPCommunicationError, ERR_ORIGIN_FAILED) /* STS did not reach who signed the token, this time */      \
    X(InternalFailure, ERR_ORIGIN_FAILED)

static const struct web_error_row table[] = {
#define X(code, class) {#code, (class)},
    STS_ERROR_TABLE(X)
#undef X
};

struct s3_role {
    char *arn, *session, *external_id, *duration;
    char *token_file;       /* of a web identity; NULL: signed */
    struct s3_chain source; /* by whom */
    char *region;           /* signed for */
    struct web_endpoint endpoint;
    struct web web;
    char *told;
};

static struct s3_role *of_web(struct web *w)
{
    return container_of(w, struct s3_role, web);
}

/* ---- what is sent ---- */

static int read_token(const struct s3_role *x, struct buf *form, struct err *e)
{
    char _cleanup_free_ *text = NULL;
    size_t n = 0;
    int r = sys_read_file(x->token_file, TOKEN_MAX, &text, &n);
    if (r < 0)
        return err_set(e, ERR_ORIGIN_DENIED, "web identity token file %s: %s", x->token_file, err_text(r));
    struct slice token = slice_of(text, n);
    while (token.n > 0 && (unsigned char)token.p[token.n - 1] <= ' ')
        token.n--;
    r = token.n > 0 ? web_form_pair(form, "WebIdentityToken", token)
                    : err_set(e, ERR_ORIGIN_DENIED, "web identity token file %s: it is empty", x->token_file);
    explicit_bzero(text, n);
    return r;
}

static int make_form(const struct s3_role *x, struct buf *form, struct err *e)
{
    const struct {
        const char *name, *value;
    } pairs[] = {
        {"Action", x->token_file ? "AssumeRoleWithWebIdentity" : "AssumeRole"},
        {"Version", API_VERSION},
        {"RoleArn", x->arn},
        {"RoleSessionName", x->session},
        {"ExternalId", x->external_id},
        {"DurationSeconds", x->duration},
    };
    int r = 0;
    for (size_t i = 0; i < ARRAY_SIZE(pairs) && r == 0; i++)
        if (pairs[i].value)
            r = web_form_pair(form, pairs[i].name, slice_str(pairs[i].value));
    if (r < 0)
        return err_set(e, ERR_ORIGIN_SETUP, "the role's name is too long");
    r = x->token_file ? read_token(x, form, e) : 0;
    return r < 0 && r != ERR_ORIGIN_DENIED
               ? err_set(e, ERR_ORIGIN_DENIED, "web identity token file %s: it is too long", x->token_file)
               : r;
}

/* Date, token and signature of the credentials `k`. */
static int sign(struct web_call *c, const struct s3_credentials *k, struct web_request *q, struct err *e)
{
    const struct s3_role *x = of_web(c->web);
    char time[SIGV4_TIME_LEN + 1], hash[65], signature[SIGV4_SIGNATURE_LEN + 1];
    struct sigv4_key key;
    char _cleanup_free_ *path = NULL;
    if (asprintf(&path, "%s/", x->endpoint.path) < 0)
        abort();
    sigv4_time(sys->real_ns(), time);
    sigv4_sha256_hex(c->post, hash);
    struct slice day = slice_of(time, SIGV4_DATE_LEN);
    struct sigv4_pair headers[] = {
        {SLICE_LIT("content-type"), SLICE_LIT(CONTENT)},
        {SLICE_LIT("host"), slice_str(x->endpoint.host)},
        {SLICE_LIT("x-amz-date"), slice_of(time, SIGV4_TIME_LEN)},
        {SLICE_LIT("x-amz-security-token"), slice_str(k->session_token)},
    };
    size_t n = k->session_token ? 4 : 3;
    struct sigv4_request s = {.method = SLICE_LIT("POST"),
                              .path = slice_str(path),
                              .headers = headers,
                              .n_headers = n,
                              .payload_hash = slice_of(hash, 64)};
    struct sigv4_scope scope = {slice_of(time, SIGV4_TIME_LEN), slice_str(x->region), SLICE_LIT("sts")};
    struct buf _cleanup_buf_ b = BUF_INIT(HEADER_MAX);
    sigv4_derive_key(slice_str(k->secret_key), day, scope.region, scope.service, &key);
    int r = sigv4_sign(&s, &scope, &key, signature);
    explicit_bzero(&key, sizeof(key));
    if (r == 0)
        r = buf_printf(&b, "AWS4-HMAC-SHA256 Credential=%s/" SLICE_FMT "/%s/sts/aws4_request, SignedHeaders=",
                       k->access_key, SLICE_ARG(day), x->region);
    if (r == 0)
        r = sigv4_signed_headers(&s, &b);
    if (r == 0)
        r = buf_printf(&b, ", Signature=%s", signature);
    if (r < 0)
        return err_set(e, r, "the question for a role is too large to be signed");
    for (size_t i = 2; i < n && r == 0; i++)
        r = web_request_header(q, headers[i].name, headers[i].value, e);
    return r < 0 ? r : web_request_header(q, SLICE_LIT("Authorization"), buf_view(&b), e);
}

static int prepare(struct web_call *c, struct web_request *q, struct err *e)
{
    struct s3_role *x = of_web(c->web);
    if (buf_printf(&q->url, "%s%s/", x->endpoint.base, x->endpoint.path) < 0)
        return err_set(e, -ENAMETOOLONG, "the address is too long");
    int r = web_request_headers(c, q, e);
    if (r < 0 || x->token_file)
        return r;
    if (!x->source.provider)
        return sign(c, &x->source.fixed, q, e);
    struct s3_credentials _cleanup_(s3_credentials_fini) k = {0};
    r = s3_provider_get(x->source.provider, &k, &c->credentials, e);
    if (r < 0)
        return r;
    return k.access_key ? sign(c, &k, q, e)
                        : err_set(e, ERR_ORIGIN_DENIED, "%s: has no credentials", x->source.told);
}

/* ---- what comes ---- */

/* Whether it is who signed that is not known any more. */
static bool has_ended(const char *code)
{
    return strcmp(code, "ExpiredToken") == 0 || strcmp(code, "InvalidClientTokenId") == 0;
}

static int refused(struct web_call *c, struct err *e)
{
    struct s3_role *x = of_web(c->web);
    struct web_error said;
    web_error_parse(buf_view(&c->error_body), &said);
    if (!said.code[0] && !said.message[0])
        web_error_line(buf_view(&c->error_body), said.message, sizeof(said.message));
    int status = c->response.status;
    int class = web_error_lookup(table, ARRAY_SIZE(table), status, slice_str(said.code));
    if (class == ERR_ORIGIN_REFUSED && status >= 400)
        class = ERR_ORIGIN_DENIED;
    c->ended = x->source.provider && has_ended(said.code);
    if (c->ended)
        s3_provider_drop(x->source.provider, c->credentials);
    return web_error_set(e, class, &c->response, said.code, said.message);
}

static const struct web_kind web_kind = {
    .version_header = "etag", .meta_prefix = "x-amz-meta-", .prepare = prepare, .refused = refused};

struct answer {
    struct s3_credentials keys;
    uint64_t ends_ns;
};

static void take(char **to, struct slice text)
{
    if (*to)
        explicit_bzero(*to, strlen(*to));
    free(*to);
    *to = text.n > 0 ? slice_dup(text) : NULL;
}

static int on_element(void *arg, unsigned depth, const char *parent, const char *name, struct slice text,
                      struct err *e)
{
    (void)depth, (void)e;
    struct answer *x = arg;
    text = slice_trim(text);
    if (strcmp(parent, "Credentials") != 0)
        return 0;
    if (strcmp(name, "AccessKeyId") == 0)
        take(&x->keys.access_key, text);
    else if (strcmp(name, "SecretAccessKey") == 0)
        take(&x->keys.secret_key, text);
    else if (strcmp(name, "SessionToken") == 0)
        take(&x->keys.session_token, text);
    else if (strcmp(name, "Expiration") == 0 && text_parse_date(text, &x->ends_ns) < 0)
        x->ends_ns = 0;
    return 0;
}

/* What becomes a header as it is. */
static bool is_word(const char *s)
{
    for (; *s; s++)
        if (*s <= ' ' || *s >= 0x7f)
            return false;
    return true;
}

int s3_sts_parse(struct slice body, struct s3_credentials *ret, uint64_t *ret_ends_ns, struct err *e)
{
    struct answer x = {0};
    struct web_xml *_cleanup_(web_xml_freep) xml = web_xml_new(WEB_RESULT_MAX, on_element, &x);
    int r = web_xml_feed(xml, body.p, body.n, e);
    if (r == 0)
        r = web_xml_end(xml, e);
    const struct s3_credentials *k = &x.keys;
    bool whole = k->access_key && k->secret_key && k->session_token && x.ends_ns > 0;
    if (r == 0 && (!whole || !is_word(k->access_key) || !is_word(k->session_token)))
        r = err_set(e, ERR_ORIGIN_FAILED, "the answer has no credentials with their end");
    if (r < 0) {
        s3_credentials_fini(&x.keys);
        return r;
    }
    *ret = x.keys;
    *ret_ends_ns = x.ends_ns;
    return 0;
}

int s3_role_ask(struct s3_role *x, struct s3_credentials *ret, uint64_t *ret_life_ms, struct err *e)
{
    struct buf _cleanup_buf_ form = BUF_INIT(FORM_MAX), body = BUF_INIT(WEB_RESULT_MAX);
    struct web_call _cleanup_(web_call_fini) c;
    uint64_t ends_ns = 0;
    web_call_init(&c, &x->web, WEB_POST, "token");
    int r = make_form(x, &form, e);
    c.post = buf_view(&form);
    web_header(&c, SLICE_LIT("content-type"), SLICE_LIT(CONTENT));
    c.on_body = web_collect;
    c.arg = &body;
    if (r == 0)
        r = web_perform(&c, e);
    if (r == 0)
        r = s3_sts_parse(buf_view(&body), ret, &ends_ns, e);
    web_wipe(&form);
    web_wipe(&body);
    if (r < 0)
        return web_error_of_credentials(err_prefix(e, r, "role %s, asked of %s", x->arn, x->endpoint.base),
                                        e);
    /* by the service's clock: this machine's may be off, which S3 then says, and not "they have ended" */
    uint64_t now_ns = c.response.date_ns ? c.response.date_ns : sys->real_ns();
    *ret_life_ms = ends_ns > now_ns ? (ends_ns - now_ns) / 1000000 : 0;
    return 0;
}

/* ---- made ---- */

void s3_role_free(struct s3_role *x)
{
    if (!x)
        return;
    web_fini(&x->web);
    web_endpoint_fini(&x->endpoint);
    s3_chain_fini(&x->source);
    free(x->arn);
    free(x->session);
    free(x->external_id);
    free(x->duration);
    free(x->token_file);
    free(x->region);
    free(x->told);
    free(x);
}

const char *s3_role_told(const struct s3_role *x)
{
    return x->told;
}

static bool is_legacy(const struct s3_role_ask *q)
{
    bool known = strcmp(q->region, "aws-global") == 0;
    if (!q->regional || strcasecmp(q->regional, "legacy") != 0)
        return known;
    for (size_t i = 0; i < ARRAY_SIZE(legacy_regions); i++)
        known |= strcmp(q->region, legacy_regions[i]) == 0;
    return known;
}

static int set_endpoint(struct s3_role *x, const struct s3_role_ask *q, struct err *e)
{
    char _cleanup_free_ *own = NULL;
    bool is_global = is_legacy(q);
    x->region = web_dup(is_global ? "us-east-1" : q->region);
    for (const char *p = q->region; *p; p++)
        if (*p <= ' ' || *p >= 0x7f || *p == '/' || *p == ',')
            return err_set(e, ERR_ORIGIN_SETUP, "region \"%s\": not the name of a region", q->region);
    if (is_global)
        own = web_dup("https://sts.amazonaws.com");
    else if (asprintf(&own, "https://sts.%s.%s", q->region, s3_aws_domain(q->region)) < 0)
        abort();
    const char *url = q->endpoint ? q->endpoint : own;
    int r = web_endpoint_parse(url, "AWS_ENDPOINT_URL_STS", "", &x->endpoint, e);
    if (r < 0)
        return r;
    if (!x->endpoint.https && !x->endpoint.loopback)
        return err_set(e, ERR_ORIGIN_SETUP,
                       "role %s: credentials are asked for over https only: set AWS_ENDPOINT_URL_STS to "
                       "https://..., in place of %s",
                       q->arn, url);
    return 0;
}

/* A certificate of the bucket's endpoint says nothing about the cloud's own STS. */
static int set_web(struct s3_role *x, bool is_named, const struct origin_options *o, struct err *e)
{
    const char *bundle = web_env("AWS_CA_BUNDLE");
    struct origin_options own = *o;
    char _cleanup_free_ *file = web_dup(bundle ? bundle : is_named ? o->ca_file : NULL);
    own.ca_file = file;
    own.connections = 2;
    x->web.loopback = x->endpoint.loopback;
    return web_init(&x->web, &web_kind, NULL, &own, e);
}

int s3_role_new(const struct s3_role_ask *q, const struct origin_options *o, struct s3_chain *source,
                struct s3_role **ret, struct err *e)
{
    struct s3_role *_cleanup_(s3_role_freep) x = calloc(1, sizeof(*x));
    if (!x)
        abort();
    x->arn = web_dup(q->arn);
    x->session = web_dup(q->session ? q->session : SESSION);
    x->token_file = web_dup(q->token_file);
    x->external_id = web_dup(q->external_id);
    x->duration = web_dup(q->duration);
    int r = set_endpoint(x, q, e);
    if (r == 0)
        r = set_web(x, q->endpoint != NULL, o, e);
    if (r < 0)
        return r;
    if (asprintf(&x->told, "role %s, asked of %s %s%s", x->arn, x->endpoint.base,
                 x->token_file ? "with the web identity in " : "by ",
                 x->token_file ? x->token_file : source->told) < 0)
        abort();
    x->source = *source;
    *source = (struct s3_chain){0};
    *ret = TAKE_PTR(x);
    return 0;
}

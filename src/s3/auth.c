/*
 * Signature version 4 (contract in auth.h).
 *
 * 1. A request is accepted only when its signature was compared, in constant time, with one computed from the
 * secret.
 * 2. Host and every x-amz-* and x-forebay-* header of the request must be among the signed ones, so that
 * nobody who sees a request can add one.
 * 3. Region and service must be the node's: a signing key for one day is derived once.
 *
 * Failure modes are the S3 errors of the header; none says more about the secret than that a signature was
 * wrong.
 */
#include "s3/auth_internal.h"

#include "base/text.h"
#include "origin/meta.h"

#define ALGORITHM   "AWS4-HMAC-SHA256"
#define HASH_HEADER "x-amz-content-sha256"

#define REFUSE(error, reason) (*ret_reason = (reason), S3_ERR_##error)

/* A claim that is not well formed, by where it stands. */
static enum s3_error malformed(const struct auth_claim *c)
{
    return c->kind == AUTH_URL_V4 ? S3_ERR_QUERY_AUTH_MALFORMED : S3_ERR_AUTH_MALFORMED;
}

struct slice auth_lower(struct arena *a, struct slice s)
{
    char *p = arena_alloc(a, s.n + 1);

    for (size_t i = 0; i < s.n; i++)
        p[i] = s.p[i] >= 'A' && s.p[i] <= 'Z' ? (char)(s.p[i] + 32) : s.p[i];
    return slice_of(p, s.n);
}

int auth_parse_date(struct slice s, uint64_t *ret_ns)
{
    bool zone = slice_ends(s, SLICE_LIT("+0000")) || slice_ends(s, SLICE_LIT("-0000"));
    char text[64];

    if (!zone || s.n >= sizeof text)
        return text_parse_date(s, ret_ns);
    (void)snprintf(text, sizeof text, SLICE_FMT "GMT", SLICE_ARG(slice_sub(s, 0, s.n - 5)));
    return text_parse_date(slice_str(text), ret_ns);
}

/* "20260131T235959Z" to seconds since 1970. */
static int parse_time(struct slice s, uint64_t *ret)
{
    static const char shape[] = "dddddddd"
                                "T"
                                "dddddd"
                                "Z";
    int64_t v[14], at = 0, year, month, day, hour, minute, second, days;

    if (s.n != SIGV4_TIME_LEN)
        return -EINVAL;
    for (size_t i = 0; i < s.n; i++) {
        bool digit = s.p[i] >= '0' && s.p[i] <= '9';

        if (shape[i] == 'd' ? !digit : s.p[i] != shape[i])
            return -EINVAL;
        if (digit)
            v[at++] = s.p[i] - '0';
    }
    year = v[0] * 1000 + v[1] * 100 + v[2] * 10 + v[3];
    month = v[4] * 10 + v[5];
    day = v[6] * 10 + v[7];
    hour = v[8] * 10 + v[9];
    minute = v[10] * 10 + v[11];
    second = v[12] * 10 + v[13];
    if (year < 1970 || month < 1 || month > 12 || day < 1 || day > 31 || hour > 23 || minute > 59 ||
        second > 60)
        return -EINVAL;
    /* As timegm, without the lock that it takes; years begin in March. */
    year -= month <= 2;
    days = year * 365 + year / 4 - year / 100 + year / 400 + (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 +
           day - 1 - 719468;
    *ret = (uint64_t)(days * 86400 + hour * 3600 + minute * 60 + second);
    return 0;
}

static int set_time(struct auth_claim *c, struct slice time)
{
    if (parse_time(time, &c->time_s))
        return -EINVAL;
    memcpy(c->time, time.p, SIGV4_TIME_LEN);
    c->time[SIGV4_TIME_LEN] = 0;
    return 0;
}

/* "KEY/20260131/us-east-1/s3/aws4_request"; the key itself may hold slashes. */
static int parse_credential(struct slice s, struct auth_claim *c)
{
    struct slice *fields[] = {NULL, &c->service, &c->region, &c->date};

    for (size_t i = 0; i < ARRAY_SIZE(fields); i++) {
        ssize_t slash = slice_rfind(s, '/');
        struct slice last;

        if (slash < 0)
            return -EINVAL;
        last = slice_from(s, (size_t)slash + 1);
        s = slice_sub(s, 0, (size_t)slash);
        if (fields[i])
            *fields[i] = last;
        else if (!slice_eq_str(last, "aws4_request"))
            return -EINVAL;
    }
    c->access_key = s;
    return s.n && c->date.n == SIGV4_DATE_LEN && c->region.n && c->region.n <= 64 ? 0 : -EINVAL;
}

static enum s3_error parse_header_time(const struct auth_request *r, struct auth_claim *c,
                                       const char **ret_reason)
{
    struct slice time = http_header(r->http, "x-amz-date"), date = http_header(r->http, "date");
    char converted[SIGV4_TIME_LEN + 1];
    uint64_t ns;

    if (!time.p && date.p && auth_parse_date(date, &ns) == 0) { /* the older header stands in for it */
        sigv4_time(ns, converted);
        time = slice_str(converted);
    }
    if (!time.p)
        return REFUSE(ACCESS_DENIED, "the header x-amz-date is missing");
    if (set_time(c, time))
        return REFUSE(ACCESS_DENIED, "the header x-amz-date is not of the form 20260131T235959Z");
    return S3_OK;
}

static enum s3_error parse_header(const struct auth_request *r, struct slice value, struct auth_claim *c,
                                  const char **ret_reason)
{
    struct slice algorithm = slice_split(&value, ' ');
    struct slice credential = SLICE_NULL;
    enum s3_error error;

    if (!slice_eq_str(algorithm, ALGORITHM))
        return REFUSE(INVALID_REQUEST,
                      "only " ALGORITHM " and AWS (version 2) are accepted in the Authorization header");
    while (value.n) {
        struct slice field = slice_trim(slice_split(&value, ','));
        struct slice name = slice_split(&field, '=');

        if (slice_eq_str(name, "Credential"))
            credential = field;
        else if (slice_eq_str(name, "SignedHeaders"))
            c->signed_headers = field;
        else if (slice_eq_str(name, "Signature"))
            c->signature = field;
        else
            return REFUSE(AUTH_MALFORMED, "the Authorization header has a field other than Credential, "
                                          "SignedHeaders and Signature");
    }
    if (parse_credential(credential, c) || !c->signed_headers.n || c->signature.n != SIGV4_SIGNATURE_LEN)
        return S3_ERR_AUTH_MALFORMED;
    error = parse_header_time(r, c, ret_reason);
    if (error)
        return error;
    c->payload_hash = http_header(r->http, HASH_HEADER);
    if (!c->payload_hash.p)
        return REFUSE(INVALID_REQUEST, "the header " HASH_HEADER " is missing");
    return S3_OK;
}

static enum s3_error parse_url(const struct auth_request *r, struct auth_claim *c, const char **ret_reason)
{
    const struct http_pair *algorithm = auth_query(r, "X-Amz-Algorithm");
    const struct http_pair *credential = auth_query(r, "X-Amz-Credential");
    const struct http_pair *time = auth_query(r, "X-Amz-Date");
    const struct http_pair *expires = auth_query(r, "X-Amz-Expires");
    const struct http_pair *headers = auth_query(r, "X-Amz-SignedHeaders");
    const struct http_pair *signature = auth_query(r, "X-Amz-Signature");
    struct slice hash = http_header(r->http, HASH_HEADER);
    uint64_t before;

    if (!algorithm || !credential || !time || !expires || !headers || !signature)
        return REFUSE(QUERY_AUTH_MALFORMED,
                      "a presigned URL needs X-Amz-Algorithm, X-Amz-Credential, X-Amz-Date, "
                      "X-Amz-Expires, X-Amz-SignedHeaders and X-Amz-Signature");
    if (!slice_eq_str(algorithm->value, ALGORITHM))
        return REFUSE(QUERY_AUTH_MALFORMED, "X-Amz-Algorithm must be " ALGORITHM);
    if (parse_credential(credential->value, c))
        return REFUSE(QUERY_AUTH_MALFORMED, "X-Amz-Credential must be KEY/DATE/REGION/s3/aws4_request");
    if (set_time(c, time->value))
        return REFUSE(QUERY_AUTH_MALFORMED, "X-Amz-Date must be of the form 20260131T235959Z");
    if (slice_starts(expires->value, SLICE_LIT("-")) &&
        slice_u64(slice_from(expires->value, 1), &before) == 0)
        return S3_ERR_REQUEST_EXPIRED; /* it ended before it began */
    if (slice_u64(expires->value, &c->expires_s) || c->expires_s < 1 || c->expires_s > AUTH_EXPIRES_MAX_S)
        return REFUSE(QUERY_AUTH_MALFORMED, "X-Amz-Expires must lie between 1 and 604800 seconds");
    if (!headers->value.n || signature->value.n != SIGV4_SIGNATURE_LEN)
        return S3_ERR_QUERY_AUTH_MALFORMED;
    c->signed_headers = headers->value;
    c->signature = signature->value;
    c->payload_hash = hash.p ? hash : SLICE_LIT("UNSIGNED-PAYLOAD");
    return S3_OK;
}

bool auth_is_v2(const struct auth_claim *c)
{
    return c->kind == AUTH_URL_V2 || c->kind == AUTH_HEADER_V2;
}

/* Whoever stands in between may have looked at the other one. */
static bool signs_again(const struct auth_request *r)
{
    const struct slice name = SLICE_LIT("authorization");
    size_t n = 0;

    for (size_t i = 0; i < r->http->n_headers; i++)
        n += r->http->headers[i].name.n == name.n && slice_eq_case(r->http->headers[i].name, name);
    return n > 1;
}

bool auth_is_anonymous(const struct auth_request *r)
{
    return !http_header(r->http, "authorization").n && !signs_again(r) && !auth_query(r, "X-Amz-Signature") &&
           !auth_query(r, "X-Amz-Algorithm") && !auth_query(r, "AWSAccessKeyId");
}

enum s3_error auth_parse(const struct auth_request *r, struct arena *a, struct auth_claim *ret,
                         const char **ret_reason)
{
    struct slice header = http_header(r->http, "authorization");
    struct auth_claim c = {0};
    enum s3_error error;

    if (header.p && (auth_query(r, "X-Amz-Signature") || auth_query(r, "AWSAccessKeyId") || signs_again(r)))
        return REFUSE(INVALID_ARGUMENT,
                      "only one way to sign is allowed: one Authorization header, or the URL");
    if (slice_starts(header, SLICE_LIT("AWS "))) {
        c.kind = AUTH_HEADER_V2;
        error = auth_v2_parse_header(r, header, &c, ret_reason);
    } else if (header.n) {
        c.kind = AUTH_HEADER_V4;
        error = parse_header(r, header, &c, ret_reason);
    } else if (auth_query(r, "X-Amz-Signature") || auth_query(r, "X-Amz-Algorithm")) {
        c.kind = AUTH_URL_V4;
        error = parse_url(r, &c, ret_reason);
    } else if (auth_query(r, "AWSAccessKeyId")) {
        c.kind = AUTH_URL_V2;
        error = auth_v2_parse(r, &c, ret_reason);
    } else {
        return REFUSE(ACCESS_DENIED, "the request is not signed");
    }
    if (error)
        return error;
    if (!auth_is_v2(&c) && memcmp(c.date.p, c.time, SIGV4_DATE_LEN) != 0) {
        *ret_reason = "the date of the credential is not that of the request";
        return malformed(&c);
    }
    *ret = c;
    return S3_OK;
}

void auth_keys_init(struct auth_keys *k, auth_secret_fn secret, void *arg, struct slice region)
{
    *k = (struct auth_keys){.region = region, .secret = secret, .arg = arg};
    lock_init(&k->lock, LOCK_LEAF);
}

void auth_keys_fini(struct auth_keys *k)
{
    lock_fini(&k->lock);
    explicit_bzero(k->recent, sizeof k->recent);
}

static void signing_key(struct auth_keys *k, const struct auth_claim *c, struct sigv4_key *ret)
{
    assert(c->access_key.n <= AUTH_ACCESS_KEY_MAX); /* find_secret knows none that is longer */
    {
        LOCK_SCOPE(&k->lock);
        for (size_t i = 0; i < k->n_recent; i++) {
            if (memcmp(k->recent[i].date, c->date.p, SIGV4_DATE_LEN) == 0 &&
                slice_eq_str(c->access_key, k->recent[i].access_key)) {
                *ret = k->recent[i].key;
                return;
            }
        }
    }
    sigv4_derive_key(c->secret_key, c->date, k->region, SLICE_LIT("s3"), ret);
    LOCK_SCOPE(&k->lock);
    memcpy(k->recent[k->next].date, c->date.p, SIGV4_DATE_LEN);
    memcpy(k->recent[k->next].access_key, c->access_key.p, c->access_key.n);
    k->recent[k->next].access_key[c->access_key.n] = 0;
    k->recent[k->next].key = *ret;
    k->next = (k->next + 1) % AUTH_KEYS_MAX;
    k->n_recent = MIN(k->n_recent + 1, AUTH_KEYS_MAX);
}

/* Headers that change what a request means: S3's, and ours but the one that nodes read each other with, which
 * adds to the answer, and which they do not sign. */
static bool must_be_signed(struct slice name)
{
    const struct slice amz = SLICE_LIT("x-amz-"), own = SLICE_LIT("x-forebay-");

    if (name.n < amz.n || (name.p[0] | 32) != 'x')
        return false;
    return slice_eq_case(slice_sub(name, 0, amz.n), amz) ||
           (slice_eq_case(slice_sub(name, 0, own.n), own) &&
            !slice_eq_case(name, SLICE_LIT(META_SHOW_HEADER)));
}

/* Everything that must be signed is: host, and all x-amz-* headers and those of ours; the hash of the body
 * may be left out when the URL is signed (its value is then not covered, and only what it says about the body
 * is checked). */
static bool signs_enough(const struct auth_request *r, const struct auth_claim *c, struct auth_list *headers)
{
    if (auth_list_find(headers, SLICE_LIT("host")) < 0)
        return false;
    for (size_t i = 0; i < r->http->n_headers; i++) {
        struct slice name = r->http->headers[i].name;

        if (headers->place[i] >= 0 || !must_be_signed(name))
            continue;
        if (c->kind != AUTH_URL_V4 || !slice_eq_case(name, SLICE_LIT(HASH_HEADER)))
            return false;
    }
    return true;
}

static enum s3_error check_signature(const struct auth_request *r, const struct auth_claim *c,
                                     struct auth_keys *keys, struct arena *a, const char **ret_reason)
{
    struct auth_list headers;
    struct sigv4_pair query[HTTP_PAIRS_MAX];
    struct sigv4_request q = {
        .method = r->http->method, .path = r->path, .query = query, .headers = headers.v};
    const struct sigv4_scope scope = {slice_str(c->time), keys->region, SLICE_LIT("s3")};
    char signature[SIGV4_SIGNATURE_LEN + 1];
    struct sigv4_key key;

    if (auth_list_signed(&headers, r->http, c->signed_headers, a))
        return malformed(c);
    if (!signs_enough(r, c, &headers))
        return REFUSE(ACCESS_DENIED,
                      "host and every x-amz- and x-forebay- header of the request must be signed");
    q.n_headers = headers.n;
    for (size_t i = 0; i < r->n_query && i < HTTP_PAIRS_MAX; i++)
        if (c->kind != AUTH_URL_V4 || !slice_eq_str(r->query[i].name, "X-Amz-Signature"))
            query[q.n_query++] = (struct sigv4_pair){r->query[i].name, r->query[i].value};
    q.payload_hash = c->payload_hash;
    if (c->kind == AUTH_URL_V4 && auth_list_find(&headers, SLICE_LIT(HASH_HEADER)) < 0)
        q.payload_hash = SLICE_LIT("UNSIGNED-PAYLOAD");
    signing_key(keys, c, &key);
    if (sigv4_sign(&q, &scope, &key, signature))
        return S3_ERR_INVALID_REQUEST;
    return sigv4_equal(slice_str(signature), c->signature) ? S3_OK : S3_ERR_SIGNATURE;
}

static enum s3_error check_time(const struct auth_claim *c, uint64_t now_s, const char **ret_reason)
{
    switch (c->kind) {
    case AUTH_HEADER_V2:
    case AUTH_HEADER_V4:
        return c->time_s > now_s + AUTH_SKEW_S || c->time_s + AUTH_SKEW_S < now_s ? S3_ERR_REQUEST_SKEWED
                                                                                  : S3_OK;
    case AUTH_URL_V4:
        if (c->time_s > now_s + AUTH_SKEW_S)
            return REFUSE(ACCESS_DENIED, "Request is not valid yet");
        return now_s > c->time_s + c->expires_s ? S3_ERR_REQUEST_EXPIRED : S3_OK;
    case AUTH_URL_V2:
        return now_s > c->time_s ? S3_ERR_REQUEST_EXPIRED : S3_OK;
    }
    return S3_ERR_ACCESS_DENIED;
}

static int find_secret(struct auth_claim *c, struct auth_keys *keys, struct arena *a)
{
    _cleanup_buf_ struct buf secret = BUF_INIT(AUTH_SECRET_KEY_MAX);
    int status = -ENOENT;

    if (c->access_key.n <= AUTH_ACCESS_KEY_MAX && !memchr(c->access_key.p, 0, c->access_key.n))
        status = keys->secret(keys->arg, c->access_key, &secret);
    if (status)
        return status;
    c->secret_key = arena_dup(a, buf_view(&secret));
    explicit_bzero(secret.p, secret.n);
    return 0;
}

enum s3_error auth_verify(const struct auth_request *r, struct auth_claim *claim, struct auth_keys *keys,
                          uint64_t now_s, struct arena *a, const char **ret_reason)
{
    enum s3_error error;

    if (find_secret(claim, keys, a))
        return S3_ERR_INVALID_ACCESS_KEY;
    if (auth_is_v2(claim)) {
        error = check_time(claim, now_s, ret_reason);
        if (!error || claim->kind == AUTH_URL_V2) { /* a URL that expired says so only to who made it */
            enum s3_error wrong = auth_v2_verify(r, claim, claim->secret_key, a);

            error = wrong ? wrong : error;
        }
        return error;
    }
    if (!slice_eq_str(claim->service, "s3") || !slice_eq(claim->region, keys->region)) {
        *ret_reason = slice_eq_str(claim->service, "s3") ? "the region of the credential is not this server's"
                                                         : "the service of the credential must be s3";
        return malformed(claim);
    }
    error = check_time(claim, now_s, ret_reason);
    if (error)
        return error;
    return check_signature(r, claim, keys, a, ret_reason);
}

void auth_chunk_signing(const struct auth_claim *claim, struct auth_keys *keys, struct chunked_signing *ret)
{
    assert(!auth_is_v2(claim));
    *ret = (struct chunked_signing){0};
    signing_key(keys, claim, &ret->key);
    memcpy(ret->time, claim->time, sizeof ret->time);
    (void)snprintf(ret->scope, sizeof ret->scope, SLICE_FMT "/" SLICE_FMT "/s3/aws4_request",
                   SLICE_ARG(claim->date), SLICE_ARG(claim->region));
    memcpy(ret->previous, claim->signature.p, SIGV4_SIGNATURE_LEN);
}

/* ---- POST forms ---- */

static enum s3_error verify_policy_v4(const struct auth_policy *p, struct auth_claim *c,
                                      struct auth_keys *keys, uint64_t now_s, const char **ret_reason)
{
    uint8_t mac[32];
    char hex[SIGV4_SIGNATURE_LEN + 1];
    struct sigv4_key key;

    if (!slice_eq_str(p->algorithm, ALGORITHM) || set_time(c, p->date))
        return REFUSE(INVALID_ARGUMENT, "x-amz-algorithm and x-amz-date must be of signature version 4");
    if (memcmp(c->date.p, c->time, SIGV4_DATE_LEN) != 0 || !slice_eq_str(c->service, "s3") ||
        !slice_eq(c->region, keys->region))
        return REFUSE(INVALID_ARGUMENT, "x-amz-credential is of another day, region or service");
    if (c->time_s > now_s + AUTH_SKEW_S || now_s > c->time_s + AUTH_EXPIRES_MAX_S)
        return S3_ERR_REQUEST_EXPIRED;
    signing_key(keys, c, &key);
    sigv4_hmac(&key, p->policy, mac);
    explicit_bzero(&key, sizeof key);
    text_hex(mac, sizeof mac, hex);
    return sigv4_equal(slice_str(hex), p->signature) ? S3_OK : S3_ERR_SIGNATURE;
}

enum s3_error auth_verify_policy(const struct auth_policy *p, struct auth_keys *keys, uint64_t now_s,
                                 struct arena *a, struct auth_claim *ret, const char **ret_reason)
{
    struct auth_claim c = {.payload_hash = SLICE_LIT("UNSIGNED-PAYLOAD")};
    bool v4 = p->algorithm.p || p->credential.p;
    enum s3_error error;

    c.kind = v4 ? AUTH_URL_V4 : AUTH_URL_V2;
    c.access_key = p->access_key;
    /* The key whose secret is looked for and that of the signature are of one reading of the credential. */
    if (v4 && parse_credential(p->credential, &c))
        return REFUSE(INVALID_ARGUMENT, "x-amz-credential must be KEY/DATE/REGION/s3/aws4_request");
    if (c.access_key.n == 0 || p->signature.n == 0 || p->policy.n == 0)
        return REFUSE(INVALID_ARGUMENT, "the form needs a policy, its signature and the access key");
    if (find_secret(&c, keys, a))
        return S3_ERR_INVALID_ACCESS_KEY;
    error = v4 ? verify_policy_v4(p, &c, keys, now_s, ret_reason)
               : auth_v2_verify_policy(p->policy, p->signature, c.secret_key);
    if (error)
        explicit_bzero((void *)(uintptr_t)c.secret_key.p, c.secret_key.n);
    else
        *ret = c;
    return error;
}

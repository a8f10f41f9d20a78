/*
 * AWS Signature Version 4.
 *
 * The canonical request is never held as a whole: an emitter writes it in chunks into the digest (signing) or
 * into a buffer (debug text), so that signing allocates nothing and has no size limit of its own. SHA-256 is
 * fetched from OpenSSL once, because a fetch costs more than the hash of a short request. HMAC is RFC 2104
 * over that digest: OpenSSL's own MAC objects take three times as long to set up as to run at these sizes.
 *
 * Invariants:
 *  1. Query pairs are ordered by (encoded name, encoded value), headers by name; headers of one name keep the
 * order in which they were given and are joined by a comma.
 *  2. Emitting into the digest and into a buffer gives the same bytes.
 *  3. Nothing here reads the clock, the environment or a socket; results depend on the arguments alone.
 *
 * Failure modes: -E2BIG for too many pairs, -EINVAL for a time of another length; aborts when OpenSSL cannot
 * give SHA-256 or memory is out.
 */
#include "net/sigv4.h"

#include "base/text.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <pthread.h>
#include <time.h>

#define SHA256_BYTES       32
#define SHA256_BLOCK_BYTES 64
#define EMIT_CHUNK_BYTES   1024

static EVP_MD *sha256;
static pthread_key_t context_key; /* frees it when its thread ends */
static pthread_once_t sha256_once = PTHREAD_ONCE_INIT;

static void context_free(void *c)
{
    EVP_MD_CTX_free(c);
}

static void sha256_fetch(void)
{
    sha256 = EVP_MD_fetch(NULL, "SHA256", NULL);
    if (!sha256 || pthread_key_create(&context_key, context_free) != 0)
        abort();
}

static EVP_MD_CTX *context_new(void)
{
    (void)pthread_once(&sha256_once, sha256_fetch);
    EVP_MD_CTX *c = EVP_MD_CTX_new();
    if (!c || pthread_setspecific(context_key, c) != 0)
        abort();
    return c;
}

/* The thread's digest context, for one call, which computes several digests one after the other. It is kept:
 * a new one is two allocations, and two changes of counters in EVP_MD that all threads share. */
static EVP_MD_CTX *digest_context(void)
{
    static _Thread_local EVP_MD_CTX *kept;
    if (!kept)
        kept = context_new();
    return kept;
}

static void digest_start(EVP_MD_CTX *c)
{
    if (EVP_DigestInit_ex2(c, sha256, NULL) != 1)
        abort();
}

static void digest_update(EVP_MD_CTX *c, const void *p, size_t n)
{
    if (n > 0 && EVP_DigestUpdate(c, p, n) != 1)
        abort();
}

static void digest_final(EVP_MD_CTX *c, uint8_t ret[SHA256_BYTES])
{
    if (EVP_DigestFinal_ex(c, ret, NULL) != 1)
        abort();
}

/* ---- HMAC (RFC 2104) ---- */

struct hmac {
    EVP_MD_CTX *c;
    uint8_t outer[SHA256_BLOCK_BYTES + SHA256_BYTES]; /* key xor opad, and room for the inner digest */
};

static void hmac_start(struct hmac *h, EVP_MD_CTX *c, struct slice key)
{
    uint8_t inner[SHA256_BLOCK_BYTES] = {0};
    if (key.n > sizeof(inner)) {
        digest_start(c);
        digest_update(c, key.p, key.n);
        digest_final(c, inner);
    } else if (key.n > 0) {
        memcpy(inner, key.p, key.n);
    }
    for (size_t i = 0; i < sizeof(inner); i++) {
        h->outer[i] = inner[i] ^ 0x5c;
        inner[i] ^= 0x36;
    }
    h->c = c;
    digest_start(c);
    digest_update(c, inner, sizeof(inner));
    OPENSSL_cleanse(inner, sizeof(inner));
}

static void hmac_final(struct hmac *h, uint8_t ret[SHA256_BYTES])
{
    digest_final(h->c, h->outer + SHA256_BLOCK_BYTES);
    digest_start(h->c);
    digest_update(h->c, h->outer, sizeof(h->outer));
    digest_final(h->c, ret);
    OPENSSL_cleanse(h->outer, sizeof(h->outer));
}

static void hmac(EVP_MD_CTX *c, struct slice key, struct slice data, uint8_t ret[SHA256_BYTES])
{
    struct hmac h;
    hmac_start(&h, c, key);
    digest_update(c, data.p, data.n);
    hmac_final(&h, ret);
}

/* ---- the emitter ---- */

/* Collects small writes; `digest` or `to` takes the chunks, the other is NULL. */
struct emit {
    EVP_MD_CTX *digest;
    struct buf *to;
    int error; /* of the buffer: first failure, later writes are dropped */
    size_t n;
    char chunk[EMIT_CHUNK_BYTES];
};

static void emit_init(struct emit *x, EVP_MD_CTX *digest, struct buf *to)
{
    x->digest = digest;
    x->to = to;
    x->error = 0;
    x->n = 0;
}

static void emit_out(struct emit *x, const void *p, size_t n)
{
    if (x->digest)
        digest_update(x->digest, p, n);
    else if (x->error == 0)
        x->error = buf_append(x->to, p, n);
}

static void emit_flush(struct emit *x)
{
    emit_out(x, x->chunk, x->n);
    x->n = 0;
}

static void emit_char(struct emit *x, char c)
{
    if (x->n == sizeof(x->chunk))
        emit_flush(x);
    x->chunk[x->n++] = c;
}

static void emit_slice(struct emit *x, struct slice s)
{
    if (s.n > sizeof(x->chunk) - x->n)
        emit_flush(x);
    if (s.n > sizeof(x->chunk)) {
        emit_out(x, s.p, s.n);
    } else if (s.n > 0) {
        memcpy(x->chunk + x->n, s.p, s.n);
        x->n += s.n;
    }
}

/* What stays as it is in a query, and in a path. RFC 3986, section 2.3. */
enum { KEPT_IN_QUERY = 1, KEPT_IN_PATH = 2, UNRESERVED = KEPT_IN_QUERY | KEPT_IN_PATH };
static const uint8_t kept[256] = {
    ['a' ... 'z'] = UNRESERVED, ['A' ... 'Z'] = UNRESERVED, ['0' ... '9'] = UNRESERVED, ['-'] = UNRESERVED,
    ['_'] = UNRESERVED,         ['.'] = UNRESERVED,         ['~'] = UNRESERVED,         ['/'] = KEPT_IN_PATH,
};

static bool is_unreserved(uint8_t c)
{
    return kept[c] & KEPT_IN_QUERY;
}

static void emit_encoded(struct emit *x, struct slice s, bool keep_slash)
{
    static const char digits[] = "0123456789ABCDEF";
    const uint8_t where = keep_slash ? KEPT_IN_PATH : KEPT_IN_QUERY;
    for (size_t i = 0; i < s.n;) {
        size_t from = i;
        while (i < s.n && kept[(uint8_t)s.p[i]] & where)
            i++;
        if (i > from)
            emit_slice(x, slice_of(s.p + from, i - from));
        if (i == s.n)
            return;
        uint8_t c = (uint8_t)s.p[i++];
        emit_char(x, '%');
        emit_char(x, digits[c >> 4]);
        emit_char(x, digits[c & 15]);
    }
}

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* Without white space at the ends, and with runs of it inside as one space. */
static void emit_header_value(struct emit *x, struct slice s)
{
    bool any = false, gap = false;
    for (size_t i = 0; i < s.n; i++) {
        if (is_space(s.p[i])) {
            gap = any;
            continue;
        }
        if (gap)
            emit_char(x, ' ');
        emit_char(x, s.p[i]);
        any = true;
        gap = false;
    }
}

/* ---- order ---- */

/*
 * Order of the percent-encoded forms without encoding them: '%' sorts before every unreserved byte, and two
 * encoded bytes sort as their values do.
 */
static int compare_encoded(struct slice a, struct slice b)
{
    size_t n = MIN(a.n, b.n);
    for (size_t i = 0; i < n; i++) {
        uint8_t x = (uint8_t)a.p[i], y = (uint8_t)b.p[i];
        if (x != y)
            return (is_unreserved(x) ? 256 + x : x) - (is_unreserved(y) ? 256 + y : y);
    }
    return a.n < b.n ? -1 : a.n > b.n;
}

static int compare_query(const void *pa, const void *pb)
{
    const struct sigv4_pair *const *a = pa, *const *b = pb;
    int c = compare_encoded((*a)->name, (*b)->name);
    return c ? c : compare_encoded((*a)->value, (*b)->value);
}

static int compare_header(const void *pa, const void *pb)
{
    const struct sigv4_pair *const *a = pa, *const *b = pb;
    int c = slice_cmp((*a)->name, (*b)->name);
    if (c)
        return c;
    return *a < *b ? -1 : *a > *b; /* places in one array: the order given */
}

static void sort_pairs(const struct sigv4_pair *pairs, size_t n, int (*compare)(const void *, const void *),
                       const struct sigv4_pair **ret)
{
    bool sorted = true;
    for (size_t i = 0; i < n; i++) {
        ret[i] = &pairs[i];
        if (i > 0 && compare(&ret[i - 1], &ret[i]) > 0)
            sorted = false;
    }
    if (!sorted)
        qsort(ret, n, sizeof(*ret), compare);
}

/* ---- the canonical request ---- */

static bool fits(const struct sigv4_request *r)
{
    return r->n_query <= SIGV4_PAIRS_MAX && r->n_headers <= SIGV4_PAIRS_MAX;
}

static void emit_query(struct emit *x, const struct sigv4_request *r)
{
    const struct sigv4_pair *q[SIGV4_PAIRS_MAX];
    sort_pairs(r->query, r->n_query, compare_query, q);
    for (size_t i = 0; i < r->n_query; i++) {
        if (i > 0)
            emit_char(x, '&');
        emit_encoded(x, q[i]->name, /* keep_slash= */ false);
        emit_char(x, '=');
        emit_encoded(x, q[i]->value, /* keep_slash= */ false);
    }
}

static void emit_headers(struct emit *x, const struct sigv4_pair **h, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (i > 0 && slice_eq(h[i]->name, h[i - 1]->name)) {
            emit_char(x, ',');
        } else {
            if (i > 0)
                emit_char(x, '\n');
            emit_slice(x, h[i]->name);
            emit_char(x, ':');
        }
        emit_header_value(x, h[i]->value);
    }
    if (n > 0)
        emit_char(x, '\n');
}

static void emit_header_names(struct emit *x, const struct sigv4_pair **h, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (i > 0 && slice_eq(h[i]->name, h[i - 1]->name))
            continue;
        if (i > 0)
            emit_char(x, ';');
        emit_slice(x, h[i]->name);
    }
}

static void emit_canonical(struct emit *x, const struct sigv4_request *r)
{
    const struct sigv4_pair *headers[SIGV4_PAIRS_MAX];
    sort_pairs(r->headers, r->n_headers, compare_header, headers);
    emit_slice(x, r->method);
    emit_char(x, '\n');
    emit_encoded(x, r->path.n ? r->path : SLICE_LIT("/"), /* keep_slash= */ true);
    emit_char(x, '\n');
    emit_query(x, r);
    emit_char(x, '\n');
    emit_headers(x, headers, r->n_headers);
    emit_char(x, '\n');
    emit_header_names(x, headers, r->n_headers);
    emit_char(x, '\n');
    emit_slice(x, r->payload_hash);
    emit_flush(x);
}

int sigv4_canonical(const struct sigv4_request *r, struct buf *b)
{
    assert(r && b);
    if (!fits(r))
        return -E2BIG;
    size_t before = b->n;
    struct emit x;
    emit_init(&x, /* digest= */ NULL, b);
    emit_canonical(&x, r);
    if (x.error)
        buf_cut(b, before);
    return x.error;
}

int sigv4_signed_headers(const struct sigv4_request *r, struct buf *b)
{
    assert(r && b);
    if (!fits(r))
        return -E2BIG;
    const struct sigv4_pair *headers[SIGV4_PAIRS_MAX];
    sort_pairs(r->headers, r->n_headers, compare_header, headers);
    size_t before = b->n;
    struct emit x;
    emit_init(&x, /* digest= */ NULL, b);
    emit_header_names(&x, headers, r->n_headers);
    emit_flush(&x);
    if (x.error)
        buf_cut(b, before);
    return x.error;
}

/* ---- signing ---- */

static void emit_string_to_sign(struct emit *x, const struct sigv4_scope *scope, const char *canonical_hash)
{
    emit_slice(x, SLICE_LIT("AWS4-HMAC-SHA256\n"));
    emit_slice(x, scope->time);
    emit_char(x, '\n');
    emit_slice(x, slice_sub(scope->time, 0, SIGV4_DATE_LEN));
    emit_char(x, '/');
    emit_slice(x, scope->region);
    emit_char(x, '/');
    emit_slice(x, scope->service);
    emit_slice(x, SLICE_LIT("/aws4_request\n"));
    emit_slice(x, slice_of(canonical_hash, 2 * SHA256_BYTES));
    emit_flush(x);
}

int sigv4_sign(const struct sigv4_request *r, const struct sigv4_scope *scope, const struct sigv4_key *key,
               char ret_signature[SIGV4_SIGNATURE_LEN + 1])
{
    assert(r && scope && key && ret_signature);
    if (!fits(r))
        return -E2BIG;
    if (scope->time.n != SIGV4_TIME_LEN)
        return -EINVAL;
    EVP_MD_CTX *c = digest_context();
    uint8_t sum[SHA256_BYTES];
    char hex[2 * SHA256_BYTES + 1];
    struct emit x;
    emit_init(&x, c, /* to= */ NULL);
    digest_start(c);
    emit_canonical(&x, r);
    digest_final(c, sum);
    text_hex(sum, sizeof(sum), hex);

    struct hmac h;
    hmac_start(&h, c, slice_of(key->k, sizeof(key->k)));
    emit_string_to_sign(&x, scope, hex);
    hmac_final(&h, sum);
    text_hex(sum, sizeof(sum), ret_signature);
    return 0;
}

void sigv4_derive_key(struct slice secret, struct slice date, struct slice region, struct slice service,
                      struct sigv4_key *ret)
{
    assert(ret);
    EVP_MD_CTX *c = digest_context();
    size_t n = 4 + secret.n;
    char *first = malloc(n);
    if (!first)
        abort();
    memcpy(first, "AWS4", 4);
    if (secret.n > 0)
        memcpy(first + 4, secret.p, secret.n);
    uint8_t k[SHA256_BYTES];
    hmac(c, slice_of(first, n), date, k);
    hmac(c, slice_of(k, sizeof(k)), region, k);
    hmac(c, slice_of(k, sizeof(k)), service, k);
    hmac(c, slice_of(k, sizeof(k)), SLICE_LIT("aws4_request"), ret->k);
    digest_start(c); /* the context is kept: without what the key could be seen from */
    OPENSSL_cleanse(first, n);
    OPENSSL_cleanse(k, sizeof(k));
    free(first);
}

bool sigv4_equal(struct slice a, struct slice b)
{
    return a.n == b.n && a.n > 0 && CRYPTO_memcmp(a.p, b.p, a.n) == 0;
}

void sigv4_sha256_hex(struct slice data, char ret[2 * SHA256_BYTES + 1])
{
    assert(ret);
    EVP_MD_CTX *c = digest_context();
    uint8_t sum[SHA256_BYTES];
    digest_start(c);
    digest_update(c, data.p, data.n);
    digest_final(c, sum);
    text_hex(sum, sizeof(sum), ret);
}

void sigv4_time(uint64_t real_ns, char ret[SIGV4_TIME_LEN + 1])
{
    assert(ret);
    time_t s = (time_t)(real_ns / 1000000000);
    struct tm tm;
    if (!gmtime_r(&s, &tm) || strftime(ret, SIGV4_TIME_LEN + 1, "%Y%m%dT%H%M%SZ", &tm) != SIGV4_TIME_LEN)
        memcpy(ret, "19700101T000000Z",
               SIGV4_TIME_LEN + 1); /* beyond the year 9999: refused by every server */
}

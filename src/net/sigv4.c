/*
 * AWS Signature Version 4.
 *
 * The canonical request is never held as a whole: an emitter writes it in chunks into the digest (signing) or
 * into a buffer (debug text), so that signing allocates nothing and has no size limit of its own. HMAC is RFC
 * 2104 over SHA-256; what the key makes of both halves of it is kept with the key, which saves two of about
 * eight blocks.
 *
 * SHA-256 is OpenSSL's by its plain functions. They are marked as deprecated since 3.0, in favour of objects
 * that pick an implementation at run time; the plain ones run the same code on the processor, need no memory,
 * and cost a request less (bench/NOTES.md, s3).
 *
 * Invariants:
 *  1. Query pairs are ordered by (encoded name, encoded value), headers by name; headers of one name keep the
 * order in which they were given and are joined by a comma.
 *  2. Emitting into the digest and into a buffer gives the same bytes.
 *  3. Nothing here reads the clock, the environment or a socket; results depend on the arguments alone.
 *
 * Failure modes: -E2BIG for too many pairs, -EINVAL for a time of another length; aborts when memory is out.
 */
#define OPENSSL_SUPPRESS_DEPRECATED
#include "net/sigv4.h"

#include "base/text.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <time.h>

#define SHA256_BYTES     SHA256_DIGEST_LENGTH
#define EMIT_CHUNK_BYTES 1024

static_assert(sizeof(((struct sigv4_key *)NULL)->inner) == sizeof(((SHA256_CTX *)NULL)->h), "the state");

/* They cannot fail: what they return says whether OpenSSL was asked for an impossible size. */
static void digest_start(SHA256_CTX *c)
{
    (void)SHA256_Init(c);
}

static void digest_update(SHA256_CTX *c, const void *p, size_t n)
{
    if (n > 0)
        (void)SHA256_Update(c, p, n);
}

static void digest_final(SHA256_CTX *c, uint8_t ret[SHA256_BYTES])
{
    (void)SHA256_Final(ret, c);
}

/* ---- HMAC (RFC 2104) ---- */

/* The state behind one block: the key with each byte changed by `pad`. */
static void half_of(const uint8_t key[SHA256_CBLOCK], uint8_t pad, uint32_t ret[8])
{
    uint8_t block[SHA256_CBLOCK];
    SHA256_CTX c;
    for (size_t i = 0; i < sizeof(block); i++)
        block[i] = key[i] ^ pad;
    digest_start(&c);
    digest_update(&c, block, sizeof(block));
    memcpy(ret, c.h, sizeof(c.h));
    OPENSSL_cleanse(block, sizeof(block));
    OPENSSL_cleanse(&c, sizeof(c));
}

static void key_prepare(struct slice key, struct sigv4_key *ret)
{
    uint8_t block[SHA256_CBLOCK] = {0};
    if (key.n > sizeof(block)) {
        SHA256_CTX c;
        digest_start(&c);
        digest_update(&c, key.p, key.n);
        digest_final(&c, block);
    } else if (key.n > 0) {
        memcpy(block, key.p, key.n);
    }
    half_of(block, 0x36, ret->inner);
    half_of(block, 0x5c, ret->outer);
    OPENSSL_cleanse(block, sizeof(block));
}

/* A digest that has taken one block. */
static void half_start(SHA256_CTX *c, const uint32_t half[8])
{
    digest_start(c);
    memcpy(c->h, half, sizeof(c->h));
    c->Nl = 8 * SHA256_CBLOCK; /* bits */
}

static void hmac_start(SHA256_CTX *c, const struct sigv4_key *key)
{
    half_start(c, key->inner);
}

static void hmac_final(SHA256_CTX *c, const struct sigv4_key *key, uint8_t ret[SHA256_BYTES])
{
    uint8_t sum[SHA256_BYTES];
    digest_final(c, sum);
    half_start(c, key->outer);
    digest_update(c, sum, sizeof(sum));
    digest_final(c, ret);
}

void sigv4_hmac(const struct sigv4_key *key, struct slice text, uint8_t ret[SHA256_BYTES])
{
    SHA256_CTX c;
    hmac_start(&c, key);
    digest_update(&c, text.p, text.n);
    hmac_final(&c, key, ret);
}

/* ---- the emitter ---- */

/* Collects small writes; `digest` or `to` takes the chunks, the other is NULL. */
struct emit {
    SHA256_CTX *digest;
    struct buf *to;
    int error; /* of the buffer: first failure, later writes are dropped */
    size_t n;
    char chunk[EMIT_CHUNK_BYTES];
};

static void emit_init(struct emit *x, SHA256_CTX *digest, struct buf *to)
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
    SHA256_CTX c;
    uint8_t sum[SHA256_BYTES];
    char hex[2 * SHA256_BYTES + 1];
    struct emit x;
    emit_init(&x, &c, /* to= */ NULL);
    digest_start(&c);
    emit_canonical(&x, r);
    digest_final(&c, sum);
    text_hex(sum, sizeof(sum), hex);

    hmac_start(&c, key);
    emit_string_to_sign(&x, scope, hex);
    hmac_final(&c, key, sum);
    text_hex(sum, sizeof(sum), ret_signature);
    return 0;
}

static void next_key(struct slice key, struct slice text, uint8_t ret[SHA256_BYTES])
{
    struct sigv4_key k;
    key_prepare(key, &k);
    sigv4_hmac(&k, text, ret);
    OPENSSL_cleanse(&k, sizeof(k));
}

void sigv4_derive_key(struct slice secret, struct slice date, struct slice region, struct slice service,
                      struct sigv4_key *ret)
{
    assert(ret);
    size_t n = 4 + secret.n;
    char *first = malloc(n);
    if (!first)
        abort();
    memcpy(first, "AWS4", 4);
    if (secret.n > 0)
        memcpy(first + 4, secret.p, secret.n);
    const struct slice k = slice_of(ret->k, sizeof(ret->k));
    next_key(slice_of(first, n), date, ret->k);
    next_key(k, region, ret->k);
    next_key(k, service, ret->k);
    next_key(k, SLICE_LIT("aws4_request"), ret->k);
    key_prepare(k, ret);
    OPENSSL_cleanse(first, n);
    free(first);
}

bool sigv4_equal(struct slice a, struct slice b)
{
    return a.n == b.n && a.n > 0 && CRYPTO_memcmp(a.p, b.p, a.n) == 0;
}

void sigv4_sha256_hex(struct slice data, char ret[2 * SHA256_BYTES + 1])
{
    assert(ret);
    SHA256_CTX c;
    uint8_t sum[SHA256_BYTES];
    digest_start(&c);
    digest_update(&c, data.p, data.n);
    digest_final(&c, sum);
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

/* Sums of a stream (contract in digest.h): SHA-256 by OpenSSL, CRC-32C by ISA-L, MD5 beside them. */
#include "jobs/digest.h"

#include "base/crc32c.h"
#include "base/text.h"

#include <inttypes.h>
#include <openssl/evp.h>

#define ETAG_MAX         64
#define BESIDE_MIN_BYTES (256 * KIB) /* whose MD5s are worth another thread */

struct digest {
    EVP_MD_CTX *sha256; /* NULL: not wanted */
    struct hasher *hasher;
    bool of_all, of_parts;     /* which MD5s are wanted */
    bool is_one_part;          /* whose sum is that of all */
    struct hasher_stream md5;  /* of_all: of all */
    struct hasher_stream part; /* of_parts: of the current part, unless there is but one */
    struct md5 parts;          /* of_parts: of the sums of parts */
    const void *last;          /* what was added last */
    size_t n_last;
    uint64_t size_bytes, part_bytes, in_part;
    uint32_t n_parts, crc32c;
    bool wants_crc32c;
};

/* These fail only when memory is out, or when the library has no such sum: nothing could be verified then. */
static EVP_MD_CTX *begin(const EVP_MD *md)
{
    EVP_MD_CTX *c = EVP_MD_CTX_new();
    if (!c || EVP_DigestInit_ex(c, md, NULL) != 1)
        abort();
    return c;
}

struct digest *digest_new(uint64_t size_bytes, uint64_t part_bytes, unsigned sums, struct hasher *hasher)
{
    unsigned etags = sums & DIGEST_ETAGS;
    assert(part_bytes > 0);
    struct digest *d = calloc(1, sizeof(*d));
    assert(d);
    d->part_bytes = part_bytes;
    d->is_one_part = etags && size_bytes <= part_bytes;
    d->of_all = etags & DIGEST_OF_ALL || d->is_one_part;
    d->of_parts = etags & DIGEST_OF_PARTS || d->is_one_part;
    d->hasher = size_bytes >= BESIDE_MIN_BYTES ? hasher : NULL;
    d->sha256 = sums & DIGEST_SHA256_OF_ALL ? begin(EVP_sha256()) : NULL;
    d->wants_crc32c = sums & DIGEST_CRC32C_OF_ALL;
    hasher_stream_init(&d->md5, d->hasher);
    hasher_stream_init(&d->part, d->hasher);
    md5_init(&d->parts);
    return d;
}

void digest_free(struct digest *d)
{
    if (!d)
        return;
    hasher_stream_fini(&d->md5);
    hasher_stream_fini(&d->part);
    EVP_MD_CTX_free(d->sha256);
    free(d);
}

static void count_part(struct digest *d, const uint8_t sum[DIGEST_MD5])
{
    md5_update(&d->parts, sum, DIGEST_MD5);
    d->n_parts++;
}

static void end_part(struct digest *d)
{
    uint8_t sum[DIGEST_MD5];
    hasher_stream_digest(&d->part, sum);
    hasher_stream_fini(&d->part);
    hasher_stream_init(&d->part, d->hasher);
    count_part(d, sum);
    d->in_part = 0;
}

static void add_to_parts(struct digest *d, const char *at, size_t n)
{
    while (n > 0) {
        size_t step = MIN(n, d->part_bytes - d->in_part);
        hasher_stream_add(&d->part, at, step);
        d->in_part += step;
        at += step;
        n -= step;
        if (d->in_part == d->part_bytes)
            end_part(d);
    }
}

void digest_add(struct digest *d, const void *p, size_t n)
{
    if (d->of_all)
        hasher_stream_add(&d->md5, p, n);
    if (d->of_parts && !d->is_one_part)
        add_to_parts(d, p, n);
    if (d->sha256 && EVP_DigestUpdate(d->sha256, p, n) != 1)
        abort();
    if (d->wants_crc32c)
        d->crc32c = crc32c(d->crc32c, p, n);
    d->last = p;
    d->n_last = n;
    d->size_bytes += n;
}

void digest_wait(struct digest *d)
{
    hasher_stream_wait(&d->md5, d->last, d->n_last);
    hasher_stream_wait(&d->part, d->last, d->n_last);
}

void digest_end(struct digest *d, struct digest_sums *ret)
{
    assert(!d->is_one_part || d->size_bytes <= d->part_bytes);
    unsigned there = (d->of_all ? DIGEST_OF_ALL : 0u) | (d->of_parts ? DIGEST_OF_PARTS : 0u) |
                     (d->sha256 ? DIGEST_SHA256_OF_ALL : 0u) | (d->wants_crc32c ? DIGEST_CRC32C_OF_ALL : 0u);
    *ret = (struct digest_sums){.size_bytes = d->size_bytes, .there = there, .crc32c = d->crc32c};
    if (d->sha256 && EVP_DigestFinal_ex(d->sha256, ret->sha256, NULL) != 1)
        abort();
    if (d->of_all)
        hasher_stream_digest(&d->md5, ret->md5);
    if (d->is_one_part && d->size_bytes > 0)
        count_part(d, ret->md5);
    else if (d->in_part > 0)
        end_part(d);
    if (d->of_parts)
        md5_final(&d->parts, ret->parts_md5);
    ret->n_parts = d->n_parts;
}

bool digest_is_etag(const struct digest_sums *s, struct slice etag)
{
    char whole[2 * DIGEST_MD5 + 1], hex[2 * DIGEST_MD5 + 1], parts[ETAG_MAX];
    text_hex(s->md5, sizeof(s->md5), whole);
    text_hex(s->parts_md5, sizeof(s->parts_md5), hex);
    (void)snprintf(parts, sizeof(parts), "%s-%" PRIu32, hex, s->n_parts);
    return (s->there & DIGEST_OF_ALL && slice_eq_str(etag, whole)) ||
           (s->there & DIGEST_OF_PARTS && slice_eq_str(etag, parts));
}

bool digest_is_same(const struct digest_sums *a, const struct digest_sums *b)
{
    unsigned both = a->there & b->there;
    assert(both != 0);
    return a->size_bytes == b->size_bytes &&
           (!(both & DIGEST_SHA256_OF_ALL) || memcmp(a->sha256, b->sha256, DIGEST_SHA256) == 0) &&
           (!(both & DIGEST_CRC32C_OF_ALL) || a->crc32c == b->crc32c) &&
           (!(both & DIGEST_OF_ALL) || memcmp(a->md5, b->md5, DIGEST_MD5) == 0) &&
           (!(both & DIGEST_OF_PARTS) || memcmp(a->parts_md5, b->parts_md5, DIGEST_MD5) == 0);
}

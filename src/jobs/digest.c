/* Sums of a stream (contract in digest.h), by OpenSSL and ISA-L. */
#include "jobs/digest.h"

#include "base/crc32c.h"
#include "base/text.h"

#include <inttypes.h>
#include <openssl/evp.h>

#define ETAG_MAX 64

struct digest {
    EVP_MD_CTX *sha256;       /* NULL: not wanted, as the next */
    EVP_MD_CTX *md5;          /* of all */
    EVP_MD_CTX *part, *parts; /* of the current part, and of the sums of parts */
    bool is_one_part;         /* whose sum is that of all */
    uint64_t size_bytes, part_bytes, in_part;
    uint32_t n_parts, crc32c;
    bool wants_crc32c;
};

/* These fail only when memory is out, or when the library has no such sum: nothing could be verified then. */
static EVP_MD_CTX *begin(EVP_MD_CTX *c, const EVP_MD *md)
{
    c = c ? c : EVP_MD_CTX_new();
    if (!c || EVP_DigestInit_ex(c, md, NULL) != 1)
        abort();
    return c;
}

static void add(EVP_MD_CTX *c, const void *p, size_t n)
{
    if (EVP_DigestUpdate(c, p, n) != 1)
        abort();
}

static void end(EVP_MD_CTX *c, uint8_t *ret)
{
    if (EVP_DigestFinal_ex(c, ret, NULL) != 1)
        abort();
}

struct digest *digest_new(uint64_t size_bytes, uint64_t part_bytes, unsigned sums)
{
    unsigned etags = sums & DIGEST_ETAGS;
    assert(part_bytes > 0);
    struct digest *d = calloc(1, sizeof(*d));
    assert(d);
    d->part_bytes = part_bytes;
    d->wants_crc32c = sums & DIGEST_CRC32C_OF_ALL;
    d->is_one_part = etags && size_bytes <= part_bytes;
    if (sums & DIGEST_SHA256_OF_ALL)
        d->sha256 = begin(NULL, EVP_sha256());
    if (etags & DIGEST_OF_ALL || d->is_one_part)
        d->md5 = begin(NULL, EVP_md5());
    if (etags & DIGEST_OF_PARTS || d->is_one_part)
        d->parts = begin(NULL, EVP_md5());
    if (d->parts && !d->is_one_part)
        d->part = begin(NULL, EVP_md5());
    return d;
}

void digest_free(struct digest *d)
{
    if (!d)
        return;
    EVP_MD_CTX_free(d->md5);
    EVP_MD_CTX_free(d->sha256);
    EVP_MD_CTX_free(d->part);
    EVP_MD_CTX_free(d->parts);
    free(d);
}

static void count_part(struct digest *d, const uint8_t sum[DIGEST_MD5])
{
    add(d->parts, sum, DIGEST_MD5);
    d->n_parts++;
}

static void end_part(struct digest *d)
{
    uint8_t sum[DIGEST_MD5];
    end(d->part, sum);
    count_part(d, sum);
    d->in_part = 0;
    (void)begin(d->part, EVP_md5());
}

static void add_to_parts(struct digest *d, const char *at, size_t n)
{
    while (n > 0) {
        size_t step = MIN(n, d->part_bytes - d->in_part);
        add(d->part, at, step);
        d->in_part += step;
        at += step;
        n -= step;
        if (d->in_part == d->part_bytes)
            end_part(d);
    }
}

void digest_add(struct digest *d, const void *p, size_t n)
{
    if (d->sha256)
        add(d->sha256, p, n);
    if (d->md5)
        add(d->md5, p, n);
    if (d->part)
        add_to_parts(d, p, n);
    if (d->wants_crc32c)
        d->crc32c = crc32c(d->crc32c, p, n);
    d->size_bytes += n;
}

void digest_end(struct digest *d, struct digest_sums *ret)
{
    assert(!d->is_one_part || d->size_bytes <= d->part_bytes);
    unsigned there = (d->md5 ? DIGEST_OF_ALL : 0u) | (d->parts ? DIGEST_OF_PARTS : 0u) |
                     (d->sha256 ? DIGEST_SHA256_OF_ALL : 0u) | (d->wants_crc32c ? DIGEST_CRC32C_OF_ALL : 0u);
    *ret = (struct digest_sums){.size_bytes = d->size_bytes, .there = there, .crc32c = d->crc32c};
    if (d->sha256)
        end(d->sha256, ret->sha256);
    if (d->md5)
        end(d->md5, ret->md5);
    if (d->is_one_part && d->size_bytes > 0)
        count_part(d, ret->md5);
    else if (d->in_part > 0)
        end_part(d);
    if (d->parts)
        end(d->parts, ret->parts_md5);
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

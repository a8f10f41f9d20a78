/* Sums of a stream (contract in digest.h): SHA-256 by OpenSSL, CRC-32C by ISA-L, MD5 beside them. */
#include "jobs/digest.h"

#include "base/crc32c.h"
#include "base/err.h"
#include "base/text.h"

#include <inttypes.h>
#include <openssl/evp.h>

#define ETAG_MAX         64
#define BESIDE_MIN_BYTES (256 * KIB) /* whose MD5s are worth another thread */
#define PIECE_BYTES      (128 * KIB)
#define LANE_BYTES       ((size_t)32 * KIB) /* of each part, in turn */
#define LANES            8                  /* parts at once: with more there is little to gain */

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

/* What is made of all bytes in their order, but for MD5s. */
static void add_in_order(struct digest *d, const void *p, size_t n)
{
    if (d->sha256 && EVP_DigestUpdate(d->sha256, p, n) != 1)
        abort();
    if (d->wants_crc32c)
        d->crc32c = crc32c(d->crc32c, p, n);
    d->size_bytes += n;
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
    add_in_order(d, p, n);
    d->last = p;
    d->n_last = n;
}

void digest_wait(struct digest *d)
{
    hasher_stream_wait(&d->md5, d->last, d->n_last);
    hasher_stream_wait(&d->part, d->last, d->n_last);
}

/* ---- files ---- */

/* Parts whose MD5s are computed together, and how far that is. What goes into an MD5 and what goes into the
 * sums of all are two readings, which must be of the same bytes. */
struct lanes {
    const struct digest_file *file;
    char *piece; /* LANE_BYTES for each lane, and the same again */
    uint64_t begin, done;
    struct lane {
        struct md5 md5;
        uint64_t at, end;
        uint32_t crc, crc_in_order; /* of either reading */
    } lane[LANES];
    unsigned n;
};

/* Each part that has more a piece further. 1, 0 when none has, or an error. */
static int step(struct lanes *l)
{
    struct md5_piece pieces[LANES];
    unsigned n = 0;
    for (unsigned i = 0; i < l->n; i++) {
        struct lane *x = &l->lane[i];
        char *to = l->piece + i * LANE_BYTES;
        if (x->at == x->end)
            continue;
        ssize_t got =
            l->file->read(l->file->arg, to, (size_t)MIN((uint64_t)LANE_BYTES, x->end - x->at), x->at);
        if (got < 0)
            return (int)got;
        pieces[n++] = (struct md5_piece){&x->md5, to, (size_t)got};
        x->crc = crc32c(x->crc, to, (size_t)got);
        x->at += (uint64_t)got;
        l->done += (uint64_t)got;
    }
    md5_update_each(md5_lanes_best(), pieces, n);
    return n > 0;
}

/* The sums of all, in order, as far as the parts are together. */
static int catch_up(struct digest *d, struct lanes *l)
{
    char *piece = l->piece + LANES * LANE_BYTES;
    while (d->size_bytes < l->done) {
        struct lane *x = &l->lane[(d->size_bytes - l->begin) / d->part_bytes];
        uint64_t end = MIN(l->done, x->end);
        size_t n = (size_t)MIN((uint64_t)LANE_BYTES, end - d->size_bytes);
        ssize_t got = l->file->read(l->file->arg, piece, n, d->size_bytes);
        if (got < 0)
            return (int)got;
        x->crc_in_order = crc32c(x->crc_in_order, piece, (size_t)got);
        add_in_order(d, piece, (size_t)got);
    }
    return 0;
}

static int sum_lanes(struct digest *d, struct lanes *l)
{
    int r = 1;
    while (r > 0) {
        l->file->follow(l->file->arg, l->done);
        r = step(l);
        int caught = r < 0 ? 0 : catch_up(d, l);
        r = caught < 0 ? caught : r;
    }
    uint8_t sum[DIGEST_MD5];
    for (unsigned i = 0; i < l->n && r == 0; i++) {
        r = l->lane[i].crc == l->lane[i].crc_in_order ? 0 : ERR_VERSION_CHANGED;
        md5_final(&l->lane[i].md5, sum);
        count_part(d, sum);
    }
    return r;
}

static int sum_parts(struct digest *d, const struct digest_file *f)
{
    _cleanup_free_ char *piece = malloc((LANES + 1) * LANE_BYTES);
    assert(piece);
    int r = 0;
    for (uint64_t at = 0; at < f->size_bytes && r == 0;) {
        struct lanes l = {.file = f, .piece = piece, .begin = at, .done = at};
        for (; l.n < LANES && at < f->size_bytes; l.n++) {
            struct lane *x = &l.lane[l.n];
            md5_init(&x->md5);
            x->at = at;
            at = x->end = MIN(at + d->part_bytes, f->size_bytes);
        }
        r = sum_lanes(d, &l);
    }
    return r;
}

static int sum_in_order(struct digest *d, const struct digest_file *f)
{
    _cleanup_free_ char *piece = malloc(PIECE_BYTES);
    assert(piece);
    while (d->size_bytes < f->size_bytes) {
        f->follow(f->arg, d->size_bytes);
        size_t n = (size_t)MIN((uint64_t)PIECE_BYTES, f->size_bytes - d->size_bytes);
        ssize_t got = f->read(f->arg, piece, n, d->size_bytes);
        if (got < 0)
            return (int)got;
        digest_add(d, piece, (size_t)got);
        digest_wait(d); /* before the next piece takes its place */
    }
    return 0;
}

int digest_file(struct digest *d, const struct digest_file *f)
{
    assert(d->size_bytes == 0);
    bool twice = d->sha256 || d->wants_crc32c; /* else no reading is left to be compared with */
    bool in_lanes = twice && !f->in_order && d->of_parts && !d->of_all && f->size_bytes > d->part_bytes;
    return in_lanes ? sum_parts(d, f) : sum_in_order(d, f);
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

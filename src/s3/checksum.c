/*
 * Checksums of bodies. CRC-32 and CRC-32C come from ISA-L, the digests from OpenSSL; CRC-64/NVME is computed
 * here, eight bytes a step with eight tables (the method of Kounavis and Berry, "A Systematic Approach to
 * Building High Performance Software-Based CRC Generators", 2005), because the ISA-L of older distributions
 * lacks it.
 *
 * 1. Values do not depend on how the bytes were cut into updates.
 */
#include "s3/checksum.h"

#include "base/crc32c.h"
#include "base/le.h"

#include <isa-l/crc.h>
#include <openssl/evp.h>
#include <pthread.h>

#define CRC64NVME_REFLECTED 0x9a6c9329ac4bc9b5ull

static uint64_t crc64_tables[8][256];

static const struct {
    const char *name, *suffix;
    size_t bytes;
} rows[] = {[CHECKSUM_NONE] = {"", "", 0},
#define X(name, suffix, bytes) [CHECKSUM_##name] = {#name, suffix, bytes},
            CHECKSUMS(X)
#undef X
};

const char *checksum_suffix(enum checksum_kind kind)
{
    assert((size_t)kind < ARRAY_SIZE(rows));
    return rows[kind].suffix;
}

const char *checksum_name(enum checksum_kind kind)
{
    assert((size_t)kind < ARRAY_SIZE(rows));
    return rows[kind].name;
}

size_t checksum_bytes(enum checksum_kind kind)
{
    assert((size_t)kind < ARRAY_SIZE(rows));
    return rows[kind].bytes;
}

enum checksum_kind checksum_of_name(struct slice name)
{
    for (size_t i = CHECKSUM_NONE + 1; i < CHECKSUM_MD5; i++)
        if (slice_eq_case(name, slice_str(rows[i].suffix)))
            return (enum checksum_kind)i;
    return CHECKSUM_NONE;
}

/* What is behind "x-amz-checksum-", empty for other headers. */
static struct slice suffix_of_header(struct slice name)
{
    const struct slice prefix = SLICE_LIT("x-amz-checksum-");

    return slice_eq_case(slice_sub(name, 0, prefix.n), prefix) ? slice_from(name, prefix.n) : SLICE_LIT("");
}

enum checksum_kind checksum_of_header(struct slice name)
{
    return checksum_of_name(suffix_of_header(name));
}

bool checksum_header_is_unknown(struct slice name)
{
    struct slice suffix = suffix_of_header(name);

    return suffix.n > 0 && checksum_of_name(suffix) == CHECKSUM_NONE &&
           !slice_eq_case(suffix, SLICE_LIT("algorithm")) && !slice_eq_case(suffix, SLICE_LIT("type")) &&
           !slice_eq_case(suffix, SLICE_LIT("mode"));
}

static void crc64_make_tables(void)
{
    for (unsigned i = 0; i < 256; i++) {
        uint64_t v = i;

        for (int bit = 0; bit < 8; bit++)
            v = (v & 1) ? (v >> 1) ^ CRC64NVME_REFLECTED : v >> 1;
        crc64_tables[0][i] = v;
    }
    for (unsigned i = 0; i < 256; i++)
        for (int t = 1; t < 8; t++)
            crc64_tables[t][i] =
                crc64_tables[0][crc64_tables[t - 1][i] & 0xff] ^ (crc64_tables[t - 1][i] >> 8);
}

uint64_t checksum_crc64nvme(uint64_t crc, const void *p, size_t n)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    const uint8_t *b = p;

    (void)pthread_once(&once, crc64_make_tables);
    crc = ~crc;
    for (; n >= 8; n -= 8, b += 8) {
        uint64_t v = le_get64(b) ^ crc;

        crc = 0;
        for (int t = 0; t < 8; t++)
            crc ^= crc64_tables[7 - t][(v >> (8 * t)) & 0xff];
    }
    for (; n > 0; n--, b++)
        crc = crc64_tables[0][(crc ^ *b) & 0xff] ^ (crc >> 8);
    return ~crc;
}

static const EVP_MD *digest_of(enum checksum_kind kind)
{
    switch (kind) {
    case CHECKSUM_MD5:
        return EVP_md5();
    case CHECKSUM_SHA1:
        return EVP_sha1();
    case CHECKSUM_SHA256:
        return EVP_sha256();
    default:
        return NULL;
    }
}

void checksum_init(struct checksum *c, enum checksum_kind kind)
{
    const EVP_MD *md = digest_of(kind);

    *c = (struct checksum){.kind = kind};
    if (md) {
        c->digest = EVP_MD_CTX_new();
        if (!c->digest || EVP_DigestInit_ex(c->digest, md, NULL) != 1)
            abort();
    }
}

void checksum_fini(struct checksum *c)
{
    EVP_MD_CTX_free(c->digest);
    *c = (struct checksum){.kind = CHECKSUM_NONE};
}

void checksum_update(struct checksum *c, const void *p, size_t n)
{
    switch (c->kind) {
    case CHECKSUM_NONE:
        return;
    case CHECKSUM_CRC32:
        c->crc = crc32_gzip_refl((uint32_t)c->crc, p, n);
        return;
    case CHECKSUM_CRC32C:
        c->crc = crc32c((uint32_t)c->crc, p, n);
        return;
    case CHECKSUM_CRC64NVME:
        c->crc = checksum_crc64nvme(c->crc, p, n);
        return;
    default:
        if (EVP_DigestUpdate(c->digest, p, n) != 1)
            abort();
    }
}

size_t checksum_final(struct checksum *c, uint8_t ret[CHECKSUM_MAX_BYTES])
{
    if (c->kind == CHECKSUM_CRC64NVME)
        be_put64(ret, c->crc);
    else if (c->kind == CHECKSUM_CRC32 || c->kind == CHECKSUM_CRC32C)
        be_put32(ret, (uint32_t)c->crc);
    else if (c->digest && EVP_DigestFinal_ex(c->digest, ret, NULL) != 1)
        abort();
    return checksum_bytes(c->kind);
}

/* ---- the CRC of two pieces ---- */

/* Polynomials modulo the CRC's own, reflected: bit (width - 1 - i) is the coefficient of x^i. */
struct field {
    unsigned width;
    uint64_t poly;
};

static struct field field_of(enum checksum_kind kind)
{
    switch (kind) {
    case CHECKSUM_CRC32:
        return (struct field){32, 0xedb88320};
    case CHECKSUM_CRC32C:
        return (struct field){32, 0x82f63b78};
    case CHECKSUM_CRC64NVME:
        return (struct field){64, 0x9a6c9329ac4bc9b5};
    default:
        return (struct field){0, 0};
    }
}

static uint64_t multiply(struct field f, uint64_t a, uint64_t b)
{
    uint64_t product = 0;

    for (uint64_t bit = 1ull << (f.width - 1); bit; bit >>= 1) {
        if (a & bit)
            product ^= b;
        b = b & 1 ? b >> 1 ^ f.poly : b >> 1;
    }
    return product;
}

bool checksum_combines(enum checksum_kind kind)
{
    return field_of(kind).width != 0;
}

/* Appending B multiplies A's CRC by x^(8 bytes_b). Initial value and final inversion of the two cancel out,
 * because both are all ones. */
void checksum_combine(enum checksum_kind kind, uint8_t *sum, const uint8_t *of_b, uint64_t bytes_b)
{
    const struct field f = field_of(kind);
    uint64_t a = 0, factor;

    assert(f.width);
    for (unsigned i = 0; i < f.width / 8; i++)
        a = a << 8 | sum[i];
    factor = 1ull << (f.width - 1 - 8);
    for (uint64_t n = bytes_b; n; n >>= 1) {
        if (n & 1)
            a = multiply(f, factor, a);
        factor = multiply(f, factor, factor);
    }
    for (unsigned i = f.width / 8; i-- > 0; a >>= 8)
        sum[i] = (uint8_t)a ^ of_b[i];
}

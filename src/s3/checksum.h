/*
 * The checksums that S3 clients send with a body: one incremental interface over CRC-32, CRC-32C,
 * CRC-64/NVME, MD5, SHA-1 and SHA-256.
 *
 * One thread at a time per struct.
 */
#pragma once

#include "base/buf.h"

/* X(NAME, header suffix, digest bytes). The header is "x-amz-checksum-SUFFIX"; MD5 has its own (Content-MD5).
 */
#define CHECKSUMS(X)                                                                                         \
    X(CRC32, "crc32", 4)                                                                                     \
    X(CRC32C, "crc32c", 4)                                                                                   \
    X(CRC64NVME, "crc64nvme", 8)                                                                             \
    X(SHA1, "sha1", 20)                                                                                      \
    X(SHA256, "sha256", 32)                                                                                  \
    X(MD5, "md5", 16)

enum checksum_kind {
    CHECKSUM_NONE,
#define X(name, suffix, bytes) CHECKSUM_##name,
    CHECKSUMS(X)
#undef X
};

#define CHECKSUM_MAX_BYTES  32
#define CHECKSUM_BASE64_MAX 48

struct checksum {
    enum checksum_kind kind;
    uint64_t crc;
    void *digest; /* EVP_MD_CTX of the last three kinds */
};

const char *checksum_suffix(enum checksum_kind kind);
/* As headers' values and XML have it: "CRC32". */
const char *checksum_name(enum checksum_kind kind);
size_t checksum_bytes(enum checksum_kind kind);
/* Kind of "x-amz-checksum-SUFFIX" (any case), CHECKSUM_NONE for other names. */
enum checksum_kind checksum_of_header(struct slice name);

/* Whether such a header is about the value of a checksum of a kind that is not here. */
bool checksum_header_is_unknown(struct slice name);
/* Kind of "CRC32" and its kin, but MD5, in any case; CHECKSUM_NONE for other names. */
enum checksum_kind checksum_of_name(struct slice name);

/* kind NONE is allowed: updates do nothing. */
void checksum_init(struct checksum *c, enum checksum_kind kind);
void checksum_fini(struct checksum *c);
void checksum_update(struct checksum *c, const void *p, size_t n);
/* The digest, big endian for CRCs as S3 writes them; gives its length. The struct can then only be finished.
 */
size_t checksum_final(struct checksum *c, uint8_t ret[CHECKSUM_MAX_BYTES]);

/* Reflected CRC-64 with the polynomial of the NVM Express specification, 0xad93d23594c93659; start with 0. */
uint64_t checksum_crc64nvme(uint64_t crc, const void *p, size_t n);

/* Whether the checksum of two pieces follows from theirs: that of the CRCs. */
bool checksum_combines(enum checksum_kind kind);
/* The CRC, as big-endian bytes, of A followed by B, from theirs and the length of B; `sum` holds A's and gets
 * the result. Only for kinds that combine. */
void checksum_combine(enum checksum_kind kind, uint8_t *sum, const uint8_t *of_b, uint64_t bytes_b);

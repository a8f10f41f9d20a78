/*
 * The checksums of an upload in parts, and the list of parts that is kept with the object that it became.
 * Pure.
 *
 * | offset | size | list of parts, numbers little-endian                                          |
 * | ------ | ---- | ----------------------------------------------------------------------------- |
 * | 0      | 1    | format, 1                                                                     |
 * | 1      | 1    | checksums: 0 none, 1 CRC32, 2 CRC32C, 3 CRC64NVME, 4 SHA1, 5 SHA256           |
 * | 2      | 1    | the object's is 0 that of the parts' checksums, 1 that of all bytes           |
 * | 3      | 1    | 0                                                                             |
 * | 4      | 4    | how many parts, 1 to 10000                                                    |
 * | 8      |      | each, by rising number: number(2), size(8), its checksum as bytes (big-endian |
 * |        |      | of CRCs, as in headers before their base64 form)                              |
 */
#pragma once

#include "s3/checksum.h"
#include "s3/s3_error.h"

#define PART_LIST_NUMBER_MAX 10000
#define PART_LIST_MAX_BYTES  (8 + PART_LIST_NUMBER_MAX * (2 + 8 + CHECKSUM_MAX_BYTES))

/* How the checksums of an upload are made. */
struct part_sums {
    enum checksum_kind kind; /* CHECKSUM_NONE: none are kept */
    bool whole;              /* the object's is one of all its bytes ("FULL_OBJECT"), else of the parts' */
};

/* Values of x-amz-checksum-algorithm and x-amz-checksum-type, empty when absent; without a type the one that
 * S3 takes. INVALID_REQUEST with *ret_reason. */
enum s3_error part_sums_plan(struct slice algorithm, struct slice type, struct part_sums *ret,
                             const char **ret_reason);
/* As an upload remembers them, "SUFFIX TYPE", empty for none. */
#define PART_SUMS_TAG_SIZE 32
const char *part_sums_tag(const struct part_sums *s, char ret[PART_SUMS_TAG_SIZE]);
/* What part_sums_tag wrote, or "SUFFIX" of older ones; anything else is none. */
struct part_sums part_sums_of_tag(struct slice tag);
/* "FULL_OBJECT", "COMPOSITE". */
const char *part_sums_type(bool whole);

/* A part's number as requests give it, 1 to PART_LIST_NUMBER_MAX. INVALID_ARGUMENT with *ret_reason. */
enum s3_error part_list_number(struct slice text, uint32_t *ret, const char **ret_reason);

struct part_entry {
    uint32_t number;
    uint64_t offset, size; /* offset in the object, out of the sizes before it */
    bool has_sum;
    uint8_t sum[CHECKSUM_MAX_BYTES];
};

/* The object's checksum, "SUFFIX BASE64" or "SUFFIX BASE64-N" (META_CHECKSUM), appended; nothing when a part
 * has none. Offsets are not looked at. */
void part_sums_of_object(const struct part_sums *s, const struct part_entry *v, size_t n, struct buf *ret);

/* kind counts as none when a part has no checksum. Appends. -E2BIG. */
int part_list_encode(const struct part_sums *s, const struct part_entry *v, size_t n, struct buf *ret);

struct part_list {
    struct part_sums sums;
    size_t n;
    struct slice text, records; /* all of it, and the parts in it */
};

/* Slices point into the text. ERR_CORRUPT. */
int part_list_decode(struct slice text, struct part_list *ret);
/* The next part; zero *at at first, it moves on. false behind the last. */
struct part_cursor {
    size_t i;
    uint64_t offset;
};
bool part_list_next(const struct part_list *l, struct part_cursor *at, struct part_entry *ret);
/* The part of that number. */
bool part_list_find(const struct part_list *l, uint32_t number, struct part_entry *ret);

/*
 * Checksums of uploads in parts, and lists of parts (contract in part_list.h).
 *
 * 1. A list that decodes has rising numbers, sizes whose sum fits, and not a byte more than it says.
 */
#include "s3/part_list.h"

#include "base/le.h"
#include "base/text.h"

#define FORMAT     1
#define HEAD_BYTES 8

static_assert(CHECKSUM_CRC32 == 1 && CHECKSUM_CRC32C == 2 && CHECKSUM_CRC64NVME == 3 && CHECKSUM_SHA1 == 4 &&
                  CHECKSUM_SHA256 == 5,
              "the numbers are on disk");

#define REFUSE(reason) (*ret_reason = (reason), S3_ERR_INVALID_REQUEST)

const char *part_sums_type(bool whole)
{
    return whole ? "FULL_OBJECT" : "COMPOSITE";
}

/* What S3 takes when nothing is said. */
static bool whole_by_default(enum checksum_kind kind)
{
    return kind == CHECKSUM_CRC64NVME;
}

enum s3_error part_sums_plan(struct slice algorithm, struct slice type, struct part_sums *ret,
                             const char **ret_reason)
{
    struct part_sums s = {.kind = checksum_of_name(algorithm)};

    if (algorithm.n == 0 && type.n == 0) {
        *ret = s;
        return S3_OK;
    }
    if (s.kind == CHECKSUM_NONE)
        return REFUSE("x-amz-checksum-algorithm must be CRC32, CRC32C, CRC64NVME, SHA1 or SHA256");
    s.whole = type.n ? slice_eq_case(type, SLICE_LIT("FULL_OBJECT")) : whole_by_default(s.kind);
    if (type.n && !s.whole && !slice_eq_case(type, SLICE_LIT("COMPOSITE")))
        return REFUSE("x-amz-checksum-type must be COMPOSITE or FULL_OBJECT");
    if (s.whole && !checksum_combines(s.kind))
        return REFUSE("SHA1 and SHA256 of an upload in parts can only be COMPOSITE");
    if (!s.whole && s.kind == CHECKSUM_CRC64NVME)
        return REFUSE("CRC64NVME of an upload in parts can only be FULL_OBJECT");
    *ret = s;
    return S3_OK;
}

const char *part_sums_tag(const struct part_sums *s, char ret[PART_SUMS_TAG_SIZE])
{
    ret[0] = 0;
    if (s->kind != CHECKSUM_NONE)
        (void)snprintf(ret, PART_SUMS_TAG_SIZE, "%s %s", checksum_suffix(s->kind), part_sums_type(s->whole));
    return ret;
}

struct part_sums part_sums_of_tag(struct slice tag)
{
    struct slice suffix = slice_split(&tag, ' ');
    struct part_sums s = {.kind = checksum_of_name(suffix)};

    s.whole = tag.n ? slice_eq_str(tag, part_sums_type(true)) : whole_by_default(s.kind);
    return s;
}

/* ---- the object's ---- */

static size_t sum_of_object(const struct part_sums *s, const struct part_entry *v, size_t n,
                            uint8_t ret[CHECKSUM_MAX_BYTES])
{
    const size_t bytes = checksum_bytes(s->kind);
    struct checksum c;

    if (s->whole) {
        memcpy(ret, v[0].sum, bytes);
        for (size_t i = 1; i < n; i++)
            checksum_combine(s->kind, ret, v[i].sum, v[i].size);
        return bytes;
    }
    checksum_init(&c, s->kind);
    for (size_t i = 0; i < n; i++)
        checksum_update(&c, v[i].sum, bytes);
    (void)checksum_final(&c, ret);
    checksum_fini(&c);
    return bytes;
}

static bool all_have_sums(const struct part_sums *s, const struct part_entry *v, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!v[i].has_sum)
            return false;
    return s->kind != CHECKSUM_NONE && n > 0;
}

void part_sums_of_object(const struct part_sums *s, const struct part_entry *v, size_t n, struct buf *ret)
{
    uint8_t sum[CHECKSUM_MAX_BYTES];
    int status;

    if (!all_have_sums(s, v, n))
        return;
    status = buf_printf(ret, "%s ", checksum_suffix(s->kind));
    if (status == 0)
        status = text_base64(ret, slice_of(sum, sum_of_object(s, v, n, sum)));
    if (status == 0 && !s->whole)
        status = buf_printf(ret, "-%zu", n);
    assert(status == 0); /* at most 60 bytes: the caller's buffer has room */
    (void)status;
}

/* ---- the list ---- */

enum s3_error part_list_number(struct slice text, uint32_t *ret, const char **ret_reason)
{
    uint64_t number;

    if (slice_u64(text, &number) || number < 1 || number > PART_LIST_NUMBER_MAX) {
        *ret_reason = "partNumber must be a number from 1 to 10000";
        return S3_ERR_INVALID_ARGUMENT;
    }
    *ret = (uint32_t)number;
    return S3_OK;
}

int part_list_encode(const struct part_sums *s, const struct part_entry *v, size_t n, struct buf *ret)
{
    bool sums = all_have_sums(s, v, n);
    const uint8_t head[4] = {FORMAT, sums ? (uint8_t)s->kind : 0, sums && s->whole, 0};
    struct le_writer w = le_writer_of(ret);

    assert(n >= 1 && n <= PART_LIST_NUMBER_MAX);
    le_add(&w, slice_of(head, sizeof head));
    le_add32(&w, (uint32_t)n);
    for (size_t i = 0; i < n; i++) {
        le_add16(&w, (uint16_t)v[i].number);
        le_add64(&w, v[i].size);
        if (sums)
            le_add(&w, slice_of(v[i].sum, checksum_bytes(s->kind)));
    }
    return le_add_end(&w);
}

static void read_record(const struct part_list *l, size_t i, struct part_entry *ret)
{
    const size_t bytes = checksum_bytes(l->sums.kind);
    const char *p = l->records.p + i * (10 + bytes);

    *ret = (struct part_entry){.number = le_get16(p), .size = le_get64(p + 2), .has_sum = bytes > 0};
    memcpy(ret->sum, p + 10, bytes);
}

int part_list_decode(struct slice text, struct part_list *ret)
{
    struct part_list l = {0};
    struct part_entry one;
    uint32_t last = 0;
    uint64_t total = 0;

    if (text.n < HEAD_BYTES || text.p[0] != FORMAT || (uint8_t)text.p[1] >= CHECKSUM_MD5 ||
        (uint8_t)text.p[2] > 1)
        return ERR_CORRUPT;
    l.sums = (struct part_sums){(enum checksum_kind)text.p[1], text.p[2] != 0};
    l.n = le_get32(text.p + 4);
    l.text = text;
    l.records = slice_from(text, HEAD_BYTES);
    if (l.n < 1 || l.n > PART_LIST_NUMBER_MAX || l.records.n != l.n * (10 + checksum_bytes(l.sums.kind)))
        return ERR_CORRUPT;
    for (size_t i = 0; i < l.n; i++) {
        read_record(&l, i, &one);
        if (one.number <= last || one.number > PART_LIST_NUMBER_MAX || one.size > INT64_MAX - total)
            return ERR_CORRUPT;
        last = one.number;
        total += one.size;
    }
    *ret = l;
    return 0;
}

bool part_list_next(const struct part_list *l, struct part_cursor *at, struct part_entry *ret)
{
    if (at->i == l->n)
        return false;
    read_record(l, at->i, ret);
    ret->offset = at->offset;
    at->offset += ret->size;
    at->i++;
    return true;
}

bool part_list_find(const struct part_list *l, uint32_t number, struct part_entry *ret)
{
    struct part_cursor at = {0};
    struct part_entry one;

    while (part_list_next(l, &at, &one)) {
        if (one.number != number)
            continue;
        *ret = one;
        return true;
    }
    return false;
}

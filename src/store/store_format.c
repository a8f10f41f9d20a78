/* Encoding and decoding of what the store keeps on disk; the tables are in store_format.h. Pure functions. */
#include "store/store_format.h"

#include "base/crc32c.h"
#include "base/le.h"
#include "store/store.h"

#include <stdio.h>
#include <string.h>

enum entry_offset {
    ENTRY_VERSION = 0,
    ENTRY_FLAGS = 1,
    ENTRY_ATTR_BYTES = 2,
    ENTRY_CHECK = 4,
    ENTRY_ID = 8,
    ENTRY_SIZE = 24,
    ENTRY_EPOCH = 32,
    ENTRY_LAST_READ = 40,
    ENTRY_SET = 48,
    ENTRY_PRESENT = 52,
    ENTRY_CRC = 56,
    ENTRY_ZERO = 60,
    ENTRY_ATTR = 64,
};

enum chunk_offset {
    CHUNK_VERSION = 0,
    CHUNK_ZERO = 1,
    CHUNK_BLOCKS = 2,
    CHUNK_CHECK = 4,
    CHUNK_EPOCH = 8,
    CHUNK_PRESENT = 16
};

enum hard_offset {
    HARD_VERSION = 0,
    HARD_ZERO = 1,
    HARD_CHECK = 4,
    HARD_SIZE = 8,
    HARD_ALLOCATED = 16,
    HARD_GENERATION = 24,
    HARD_CHUNKS = 32,
    HARD_CRC = 40,
    HARD_ZERO_TOO = 44,
};

enum hard_chunk_offset {
    HARD_CHUNK_VERSION = 0,
    HARD_CHUNK_ZERO = 1,
    HARD_CHUNK_BLOCKS = 2,
    HARD_CHUNK_CHECK = 4,
    HARD_CHUNK_GENERATION = 8,
    HARD_CHUNK_CRCS = 16,
};

static_assert(HARD_ZERO_TOO + 4 == FORMAT_HARD_BYTES, "hard record");
static_assert(HARD_ZERO == HARD_VERSION + 1 && HARD_CHECK == HARD_VERSION + 4,
              "three zeros behind the version");
static_assert(HARD_CHUNK_CRCS == FORMAT_HARD_CHUNK_HEAD, "hard chunk head");
static_assert(FORMAT_HARD_CHUNK_MAX == 4112, "hard chunk record");
static_assert(ENTRY_ATTR == FORMAT_ENTRY_HEAD_BYTES, "entry head");
static_assert(ENTRY_ID + sizeof(struct id128) == ENTRY_SIZE, "data id");
static_assert(CHUNK_PRESENT == FORMAT_CHUNK_HEAD_BYTES, "chunk head");
static_assert(FORMAT_CHUNK_MAX_BYTES == 4240, "chunk record");
static_assert(STORE_ATTR_MAX_BYTES <= UINT16_MAX, "attribute length field");
static_assert(STORE_KEY_MAX_BYTES + 1 == FORMAT_KEY_MAX, "key buffers");
static_assert(sizeof(struct id128) == 16, "data id in keys");
static_assert(sizeof(struct format_range) == 16, "range");

#define FILE_BLOCK_BYTES 4096 /* what a file's size is rounded up to when it is counted */

/* Room for a record of n bytes, zeroed. The callers' buffers are large enough for what they encode. */
static char *start(struct buf *b, size_t n)
{
    buf_clear(b);
    char *p = buf_reserve(b, n);
    assert(p);
    memset(p, 0, n);
    return p;
}

/* crc32c of a record whose check field at `at` counts as zero. */
static uint32_t check_of(struct slice s, size_t at)
{
    static const char zero[4];
    uint32_t crc = crc32c(0, s.p, at);
    crc = crc32c(crc, zero, sizeof(zero));
    return crc32c(crc, s.p + at + sizeof(zero), s.n - at - sizeof(zero));
}

/* ---- keys ---- */

struct slice format_key_view(const struct format_key *k)
{
    return slice_of(k->p, k->n);
}

void format_key_bytes(char letter, struct slice bytes, struct format_key *ret)
{
    assert(bytes.n < sizeof(ret->p));
    ret->p[0] = letter;
    if (bytes.n > 0)
        memcpy(ret->p + 1, bytes.p, bytes.n);
    ret->n = 1 + bytes.n;
}

void format_key_id(char letter, struct id128 id, struct format_key *ret)
{
    format_key_bytes(letter, slice_of(id.b, sizeof(id.b)), ret);
}

void format_key_chunk(struct id128 id, uint32_t chunk, struct format_key *ret)
{
    format_key_id('c', id, ret);
    be_put32(ret->p + ret->n, chunk);
    ret->n += sizeof(chunk);
}

void format_key_hard_chunk(struct id128 id, uint64_t chunk, struct format_key *ret)
{
    format_key_id('k', id, ret);
    be_put64(ret->p + ret->n, chunk);
    ret->n += sizeof(chunk);
}

int format_key_parse_id(struct slice key, struct id128 *ret_id)
{
    size_t tail = key.n == 0 ? 0 : key.p[0] == 'c' ? 4 : key.p[0] == 'k' ? 8 : 0;
    if (key.n != 1 + sizeof(ret_id->b) + tail)
        return -EBADMSG;
    memcpy(ret_id->b, key.p + 1, sizeof(ret_id->b));
    return 0;
}

/* ---- entries ---- */

void format_entry_encode(const struct format_entry *r, struct buf *b)
{
    assert(r->attr.n <= STORE_ATTR_MAX_BYTES && (r->flags & ~FORMAT_ENTRY_FLAGS) == 0);
    size_t n = FORMAT_ENTRY_HEAD_BYTES + r->attr.n;
    char *p = start(b, n);
    p[ENTRY_VERSION] = FORMAT_VERSION;
    p[ENTRY_FLAGS] = (char)r->flags;
    le_put16(p + ENTRY_ATTR_BYTES, (uint16_t)r->attr.n);
    memcpy(p + ENTRY_ID, r->id.b, sizeof(r->id.b));
    le_put64(p + ENTRY_SIZE, r->size_bytes);
    le_put64(p + ENTRY_EPOCH, r->epoch);
    le_put64(p + ENTRY_LAST_READ, r->last_read_ms);
    le_put32(p + ENTRY_SET, r->data_set);
    le_put32(p + ENTRY_PRESENT, r->present_blocks);
    le_put32(p + ENTRY_CRC, r->crc);
    if (r->attr.n > 0)
        memcpy(p + ENTRY_ATTR, r->attr.p, r->attr.n);
    le_put32(p + ENTRY_CHECK, check_of(slice_of(p, n), ENTRY_CHECK));
    buf_used(b, n);
}

int format_entry_decode(struct slice s, struct format_entry *ret)
{
    if (s.n < FORMAT_ENTRY_HEAD_BYTES || s.p[ENTRY_VERSION] != FORMAT_VERSION)
        return -EBADMSG;
    if (check_of(s, ENTRY_CHECK) != le_get32(s.p + ENTRY_CHECK))
        return -EBADMSG;
    struct format_entry r = {
        .flags = (uint8_t)s.p[ENTRY_FLAGS],
        .size_bytes = le_get64(s.p + ENTRY_SIZE),
        .epoch = le_get64(s.p + ENTRY_EPOCH),
        .last_read_ms = le_get64(s.p + ENTRY_LAST_READ),
        .data_set = le_get32(s.p + ENTRY_SET),
        .present_blocks = le_get32(s.p + ENTRY_PRESENT),
        .crc = le_get32(s.p + ENTRY_CRC),
        .attr = slice_from(s, ENTRY_ATTR),
    };
    memcpy(r.id.b, s.p + ENTRY_ID, sizeof(r.id.b));
    uint64_t blocks = format_blocks(r.size_bytes);
    bool complete = r.flags & FORMAT_ENTRY_COMPLETE;
    if ((r.flags & ~FORMAT_ENTRY_FLAGS) != 0 || le_get32(s.p + ENTRY_ZERO) != 0 ||
        le_get16(s.p + ENTRY_ATTR_BYTES) != r.attr.n || r.attr.n > STORE_ATTR_MAX_BYTES ||
        r.size_bytes > STORE_SIZE_MAX_BYTES || r.present_blocks > blocks ||
        complete != (r.present_blocks == blocks))
        return -EBADMSG;
    *ret = r;
    return 0;
}

/* ---- chunks ---- */

void format_chunk_encode(const struct format_chunk *r, struct buf *b)
{
    assert(r->n_blocks >= 1 && r->n_blocks <= FORMAT_CHUNK_BLOCKS);
    size_t map_bytes = (r->n_blocks + 7) / 8;
    size_t n = FORMAT_CHUNK_HEAD_BYTES + map_bytes + 4 * (size_t)r->n_blocks;
    char *p = start(b, n);
    p[CHUNK_VERSION] = FORMAT_VERSION;
    le_put16(p + CHUNK_BLOCKS, (uint16_t)r->n_blocks);
    le_put64(p + CHUNK_EPOCH, r->epoch);
    memcpy(p + CHUNK_PRESENT, r->present, map_bytes);
    for (uint32_t i = 0; i < r->n_blocks; i++)
        le_put32(p + CHUNK_PRESENT + map_bytes + 4 * (size_t)i, r->crc[i]);
    le_put32(p + CHUNK_CHECK, check_of(slice_of(p, n), CHUNK_CHECK));
    buf_used(b, n);
}

int format_chunk_decode(struct slice s, struct format_chunk *ret)
{
    if (s.n < FORMAT_CHUNK_HEAD_BYTES || s.p[CHUNK_VERSION] != FORMAT_VERSION || s.p[CHUNK_ZERO] != 0)
        return -EBADMSG;
    size_t n = le_get16(s.p + CHUNK_BLOCKS), map_bytes = (n + 7) / 8;
    if (n < 1 || n > FORMAT_CHUNK_BLOCKS || s.n != FORMAT_CHUNK_HEAD_BYTES + map_bytes + 4 * n ||
        check_of(s, CHUNK_CHECK) != le_get32(s.p + CHUNK_CHECK))
        return -EBADMSG;
    memset(ret, 0, sizeof(*ret));
    ret->n_blocks = (uint32_t)n;
    ret->epoch = le_get64(s.p + CHUNK_EPOCH);
    memcpy(ret->present, s.p + CHUNK_PRESENT, map_bytes);
    for (size_t i = 0; i < n; i++)
        ret->crc[i] = le_get32(s.p + CHUNK_PRESENT + map_bytes + 4 * i);
    return 0;
}

/* ---- hard extents ---- */

void format_hard_encode(const struct format_hard *r, struct buf *b)
{
    char *p = start(b, FORMAT_HARD_BYTES);
    p[HARD_VERSION] = FORMAT_VERSION;
    le_put64(p + HARD_SIZE, r->size_bytes);
    le_put64(p + HARD_ALLOCATED, r->allocated_bytes);
    le_put64(p + HARD_GENERATION, r->generation);
    le_put64(p + HARD_CHUNKS, r->n_chunks);
    le_put32(p + HARD_CRC, r->crc);
    le_put32(p + HARD_CHECK, check_of(slice_of(p, FORMAT_HARD_BYTES), HARD_CHECK));
    buf_used(b, FORMAT_HARD_BYTES);
}

int format_hard_decode(struct slice s, struct format_hard *ret)
{
    /* the version with the zeros behind it */
    if (s.n != FORMAT_HARD_BYTES || le_get32(s.p + HARD_VERSION) != FORMAT_VERSION ||
        check_of(s, HARD_CHECK) != le_get32(s.p + HARD_CHECK) || le_get32(s.p + HARD_ZERO_TOO) != 0)
        return -EBADMSG;
    struct format_hard r = {
        .size_bytes = le_get64(s.p + HARD_SIZE),
        .allocated_bytes = le_get64(s.p + HARD_ALLOCATED),
        .generation = le_get64(s.p + HARD_GENERATION),
        .n_chunks = le_get64(s.p + HARD_CHUNKS),
        .crc = le_get32(s.p + HARD_CRC),
    };
    uint64_t blocks = format_blocks(r.size_bytes);
    uint64_t chunks = blocks / FORMAT_CHUNK_BLOCKS + (blocks % FORMAT_CHUNK_BLOCKS != 0);
    if (r.size_bytes > INT64_MAX || r.n_chunks > chunks || (blocks <= 1 && r.n_chunks > 0) ||
        (blocks != 1 && r.crc != 0))
        return -EBADMSG;
    *ret = r;
    return 0;
}

void format_hard_chunk_encode(const struct format_hard_chunk *r, struct buf *b)
{
    assert(r->n_blocks >= 1 && r->n_blocks <= FORMAT_CHUNK_BLOCKS);
    size_t n = FORMAT_HARD_CHUNK_HEAD + 4 * (size_t)r->n_blocks;
    char *p = start(b, n);
    p[HARD_CHUNK_VERSION] = FORMAT_VERSION;
    le_put16(p + HARD_CHUNK_BLOCKS, (uint16_t)r->n_blocks);
    le_put64(p + HARD_CHUNK_GENERATION, r->generation);
    for (uint32_t i = 0; i < r->n_blocks; i++)
        le_put32(p + HARD_CHUNK_CRCS + 4 * (size_t)i, r->crc[i]);
    le_put32(p + HARD_CHUNK_CHECK, check_of(slice_of(p, n), HARD_CHUNK_CHECK));
    buf_used(b, n);
}

int format_hard_chunk_decode(struct slice s, struct format_hard_chunk *ret)
{
    if (s.n < FORMAT_HARD_CHUNK_HEAD || s.p[HARD_CHUNK_VERSION] != FORMAT_VERSION ||
        s.p[HARD_CHUNK_ZERO] != 0)
        return -EBADMSG;
    size_t n = le_get16(s.p + HARD_CHUNK_BLOCKS);
    if (n < 1 || n > FORMAT_CHUNK_BLOCKS || s.n != FORMAT_HARD_CHUNK_HEAD + 4 * n ||
        check_of(s, HARD_CHUNK_CHECK) != le_get32(s.p + HARD_CHUNK_CHECK))
        return -EBADMSG;
    ret->n_blocks = (uint32_t)n;
    ret->generation = le_get64(s.p + HARD_CHUNK_GENERATION);
    for (size_t i = 0; i < n; i++)
        ret->crc[i] = le_get32(s.p + HARD_CHUNK_CRCS + 4 * i);
    return 0;
}

/* ---- epochs and counts ---- */

void format_epoch_encode(const struct format_epoch *r, struct buf *b)
{
    assert(r->n_ranges <= FORMAT_RANGES_MAX);
    size_t n = 8 + 16 * (size_t)r->n_ranges;
    char *p = start(b, n);
    le_put64(p, r->durable);
    for (uint32_t i = 0; i < r->n_ranges; i++) {
        le_put64(p + 8 + 16 * (size_t)i, r->ranges[i].first);
        le_put64(p + 16 + 16 * (size_t)i, r->ranges[i].last);
    }
    buf_used(b, n);
}

int format_epoch_decode(struct slice s, struct format_epoch *ret)
{
    if (s.n < 8 || (s.n - 8) % 16 != 0 || (s.n - 8) / 16 > FORMAT_RANGES_MAX)
        return -EBADMSG;
    struct format_epoch r = {.durable = le_get64(s.p), .n_ranges = (uint32_t)((s.n - 8) / 16)};
    uint64_t before = 0;
    for (uint32_t i = 0; i < r.n_ranges; i++) {
        r.ranges[i].first = le_get64(s.p + 8 + 16 * (size_t)i);
        r.ranges[i].last = le_get64(s.p + 16 + 16 * (size_t)i);
        if (r.ranges[i].first <= before || r.ranges[i].last < r.ranges[i].first ||
            r.ranges[i].last > r.durable)
            return -EBADMSG;
        before = r.ranges[i].last;
    }
    *ret = r;
    return 0;
}

void format_count_encode(const struct format_count *r, struct buf *b)
{
    char *p = start(b, 16);
    le_put64(p, r->used_bytes);
    le_put64(p + 8, r->extents);
    buf_used(b, 16);
}

int format_count_decode(struct slice s, struct format_count *ret)
{
    if (s.n != 16)
        return -EBADMSG;
    *ret = (struct format_count){le_get64(s.p), le_get64(s.p + 8)};
    return 0;
}

bool format_epoch_is_suspect(const struct format_epoch *r, uint64_t epoch)
{
    for (uint32_t i = 0; i < r->n_ranges; i++)
        if (epoch >= r->ranges[i].first && epoch <= r->ranges[i].last)
            return true;
    return false;
}

void format_epoch_distrust(struct format_epoch *r, uint64_t last)
{
    assert(last > r->durable);
    struct format_range *newest = r->n_ranges > 0 ? &r->ranges[r->n_ranges - 1] : NULL;
    if (newest && newest->last == r->durable) {
        newest->last = last;
    } else {
        if (r->n_ranges == FORMAT_RANGES_MAX) {
            r->ranges[1].first = r->ranges[0].first;
            memmove(&r->ranges[0], &r->ranges[1], (FORMAT_RANGES_MAX - 1) * sizeof(r->ranges[0]));
            r->n_ranges--;
        }
        r->ranges[r->n_ranges++] = (struct format_range){r->durable + 1, last};
    }
    r->durable = last;
}

uint64_t format_blocks(uint64_t size_bytes)
{
    return size_bytes / STORE_BLOCK_BYTES + (size_bytes % STORE_BLOCK_BYTES != 0);
}

uint64_t format_charge(uint64_t size_bytes, uint64_t present_blocks)
{
    return MIN(present_blocks * STORE_BLOCK_BYTES, ALIGN_UP(size_bytes, FILE_BLOCK_BYTES));
}

/* ---- forebay-disk ---- */

void format_disk_encode(const struct format_disk *r, struct buf *b)
{
    char id[ID_TEXT_SIZE];
    id_text(r->id, id);
    buf_clear(b);
    int code = buf_printf(b, "forebay-disk %d\nid %s\nboot %s\nstate %s\n", FORMAT_VERSION, id, r->boot,
                          r->clean ? "clean" : "unclean");
    assert(code == 0);
}

/* The text behind "word " in the next line; false when the line begins otherwise. */
static bool next_line(struct slice *s, const char *word, struct slice *ret)
{
    if (slice_find(*s, '\n') < 0)
        return false;
    struct slice line = slice_split(s, '\n');
    size_t n = strlen(word);
    if (!slice_starts(line, slice_str(word)) || line.n <= n || line.p[n] != ' ')
        return false;
    *ret = slice_from(line, n + 1);
    return true;
}

int format_disk_decode(struct slice s, struct format_disk *ret)
{
    struct format_disk r = {0};
    struct slice version, id, boot, state;
    if (!next_line(&s, "forebay-disk", &version))
        return -EBADMSG;
    if (!slice_eq_str(version, "1")) /* whose other lines may be others */
        return -EPROTONOSUPPORT;
    if (!next_line(&s, "id", &id) || !next_line(&s, "boot", &boot) || !next_line(&s, "state", &state) ||
        s.n != 0)
        return -EBADMSG;
    if (id_parse(id, &r.id) < 0 || boot.n >= sizeof(r.boot))
        return -EBADMSG;
    memcpy(r.boot, boot.p, boot.n);
    r.clean = slice_eq_str(state, "clean");
    if (!r.clean && !slice_eq_str(state, "unclean"))
        return -EBADMSG;
    *ret = r;
    return 0;
}

char *format_key_text(struct slice key, char ret[FORMAT_KEY_TEXT_MAX])
{
    assert(ret);
    size_t n = 0;
    if (key.n >= 8 && key.p[0] == '\0') {
        n = (size_t)snprintf(ret, FORMAT_KEY_TEXT_MAX, "#%llu/", (unsigned long long)be_get64(key.p));
        key = slice_from(key, 8);
    }
    for (size_t i = 0; i < key.n; i++) {
        unsigned char c = (unsigned char)key.p[i];
        if (n + sizeof("\\xNN...") > FORMAT_KEY_TEXT_MAX) {
            n += (size_t)snprintf(ret + n, FORMAT_KEY_TEXT_MAX - n, "...");
            break;
        }
        n += (size_t)snprintf(ret + n, FORMAT_KEY_TEXT_MAX - n, c < ' ' || c == 0x7f ? "\\x%02x" : "%c", c);
    }
    ret[n] = '\0';
    return ret;
}

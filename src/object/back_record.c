/* Write-back: the record of a key, and what follows from it and from what the origin has. Pure. */
#include "object/back.h"

#include "base/text.h"

#include <inttypes.h>

#define FORMAT         1
#define FORMAT_OLDER   2 /* with older versions that were sent */
#define FORMAT_TAG     3 /* with a tag, and as many older versions as there are */
#define FLAG_REMOVAL   1
#define FLAG_SENT      2
#define FLAG_MD5       4 /* of FORMAT_TAG */
#define FLAG_LIVE      8
#define HEAD_BYTES     76
#define LOCATION_BYTES 33
#define SENT_BYTES     (8 + BACK_MD5_BYTES)
#define FIRST_DELAY_MS 100
#define DELAY_MAX_MS   60000

static void put_u64(uint8_t *p, uint64_t v)
{
    for (int i = 0; i < 8; i++)
        p[i] = (uint8_t)(v >> (8 * i));
}

static uint64_t get_u64(const uint8_t *p)
{
    uint64_t v = 0;
    for (int i = 0; i < 8; i++)
        v |= (uint64_t)p[i] << (8 * i);
    return v;
}

static int put_text(struct buf *b, struct slice s)
{
    if (s.n > UINT16_MAX)
        return -E2BIG;
    uint8_t n[2] = {(uint8_t)s.n, (uint8_t)(s.n >> 8)};
    int r = buf_append(b, n, sizeof(n));
    return r < 0 ? r : buf_slice(b, s);
}

static bool get_text(struct slice *from, struct slice *ret)
{
    if (from->n < 2)
        return false;
    size_t n = (size_t)(uint8_t)from->p[0] | (size_t)(uint8_t)from->p[1] << 8;
    if (from->n - 2 < n)
        return false;
    *ret = slice_sub(*from, 2, n);
    *from = slice_from(*from, 2 + n);
    return true;
}

static void put_sent(uint8_t p[SENT_BYTES], const struct back_sent *x)
{
    put_u64(p, x->size_bytes);
    memcpy(p + 8, x->md5, BACK_MD5_BYTES);
}

static void get_sent(const uint8_t p[SENT_BYTES], struct back_sent *ret)
{
    ret->size_bytes = get_u64(p);
    memcpy(ret->md5, p + 8, BACK_MD5_BYTES);
}

/* All but the last one, which is in the head. */
static int put_older(const struct back_record *r, struct buf *b)
{
    size_t n = r->n_sent > 0 ? r->n_sent - 1 : 0;
    uint8_t list[1 + (BACK_SENT_MAX - 1) * SENT_BYTES] = {(uint8_t)n};
    for (size_t i = 0; i < n; i++)
        put_sent(list + 1 + i * SENT_BYTES, &r->sent[i + 1]);
    return buf_append(b, list, 1 + n * SENT_BYTES);
}

static bool get_older(struct slice *from, bool may_be_none, struct back_record *r)
{
    size_t n = from->n > 0 ? (uint8_t)from->p[0] : 0;
    if (from->n < 1 + n * SENT_BYTES || n >= BACK_SENT_MAX || (n == 0 && !may_be_none) ||
        (n > 0 && r->n_sent != 1))
        return false;
    for (size_t i = 0; i < n; i++)
        get_sent((const uint8_t *)from->p + 1 + i * SENT_BYTES, &r->sent[r->n_sent++]);
    *from = slice_from(*from, 1 + n * SENT_BYTES);
    return true;
}

static bool get_tag(struct slice *from, struct back_record *r)
{
    if (from->n < BACK_TAG_BYTES)
        return false;
    memcpy(r->tag, from->p, BACK_TAG_BYTES);
    *from = slice_from(*from, BACK_TAG_BYTES);
    return true;
}

static unsigned flags_of(const struct back_record *r)
{
    unsigned flags = (r->removal ? FLAG_REMOVAL : 0) | (r->n_sent > 0 ? FLAG_SENT : 0);
    if (r->has_tag)
        flags |= (r->has_md5 ? FLAG_MD5 : 0) | (r->is_live ? FLAG_LIVE : 0);
    return flags;
}

int back_record_encode(const struct back_record *r, struct buf *b)
{
    uint8_t head[HEAD_BYTES] = {r->has_tag ? FORMAT_TAG : r->n_sent > 1 ? FORMAT_OLDER : FORMAT};
    assert(r->location.n == 0 || r->location.n == LOCATION_BYTES);
    assert(r->n_sent <= BACK_SENT_MAX && (r->has_tag || !r->is_live));
    head[1] = (uint8_t)flags_of(r);
    head[2] = (uint8_t)r->base;
    head[3] = (uint8_t)r->location.n;
    put_u64(head + 4, r->seq);
    put_u64(head + 12, r->acked_ns);
    put_u64(head + 20, r->since_ns);
    put_u64(head + 28, r->size_bytes);
    if (back_record_knows_md5(r))
        memcpy(head + 36, r->md5, BACK_MD5_BYTES);
    if (r->n_sent > 0)
        put_sent(head + 52, &r->sent[0]);
    int k = buf_append(b, head, sizeof(head));
    k = k < 0 ? k : buf_slice(b, r->location);
    k = k < 0 ? k : put_text(b, r->base_etag);
    k = k < 0 ? k : put_text(b, r->content_type);
    k = k < 0 ? k : put_text(b, r->meta);
    if (k == 0 && (r->has_tag || r->n_sent > 1))
        k = put_older(r, b);
    return k < 0 || !r->has_tag ? k : buf_append(b, r->tag, BACK_TAG_BYTES);
}

/* Whether a head can be of a record of ours. */
static bool is_head(const uint8_t *p)
{
    uint8_t flags = FLAG_REMOVAL | FLAG_SENT, tagged = FLAG_SENT | FLAG_MD5 | FLAG_LIVE;
    return p[0] >= FORMAT && p[0] <= FORMAT_TAG && (p[1] & ~(p[0] == FORMAT_TAG ? tagged : flags)) == 0 &&
           p[2] <= BACK_BASE_ETAG;
}

int back_record_decode(struct slice value, struct back_record *ret)
{
    const uint8_t *p = (const uint8_t *)value.p;
    if (value.n < HEAD_BYTES || !is_head(p))
        return ERR_CORRUPT;
    struct back_record r = {.removal = p[1] & FLAG_REMOVAL,
                            .has_tag = p[0] == FORMAT_TAG,
                            .has_md5 = p[1] & FLAG_MD5,
                            .is_live = p[1] & FLAG_LIVE,
                            .base = (enum back_base)p[2],
                            .seq = get_u64(p + 4),
                            .acked_ns = get_u64(p + 12),
                            .since_ns = get_u64(p + 20),
                            .size_bytes = get_u64(p + 28)};
    memcpy(r.md5, p + 36, BACK_MD5_BYTES);
    if (p[1] & FLAG_SENT)
        get_sent(p + 52, &r.sent[r.n_sent++]);
    struct slice rest = slice_from(value, HEAD_BYTES);
    if ((p[3] != 0 && p[3] != LOCATION_BYTES) || rest.n < p[3])
        return ERR_CORRUPT;
    r.location = slice_sub(rest, 0, p[3]);
    rest = slice_from(rest, p[3]);
    if (!get_text(&rest, &r.base_etag) || !get_text(&rest, &r.content_type) || !get_text(&rest, &r.meta) ||
        (p[0] != FORMAT && !get_older(&rest, r.has_tag, &r)) || (r.has_tag && !get_tag(&rest, &r)) ||
        rest.n > 0 || (r.location.n == 0) != (r.removal || r.size_bytes == 0))
        return ERR_CORRUPT;
    *ret = r;
    return 0;
}

bool back_record_knows_md5(const struct back_record *r)
{
    return !r->has_tag || r->has_md5;
}

void back_record_etag(const struct back_record *r, char ret[BACK_ETAG_SIZE])
{
    text_hex(r->has_tag ? r->tag : r->md5, BACK_MD5_BYTES, ret);
    if (r->has_tag)
        memcpy(ret + (2 * BACK_TAG_BYTES), "-1", 3);
}

static bool is_own(const struct back_record *r, const struct back_sent *x)
{
    return back_record_knows_md5(r) && x->size_bytes == r->size_bytes &&
           memcmp(x->md5, r->md5, BACK_MD5_BYTES) == 0;
}

bool back_record_was_sent(const struct back_record *r)
{
    bool was = false;
    for (unsigned i = 0; i < r->n_sent && !was; i++)
        was = is_own(r, &r->sent[i]);
    return was;
}

void back_record_forget_sent(struct back_record *r, const struct back_record *which)
{
    unsigned kept = 0;
    for (unsigned i = 0; i < r->n_sent; i++)
        if (!is_own(which, &r->sent[i]))
            r->sent[kept++] = r->sent[i];
    r->n_sent = kept;
}

bool back_record_note_sent(struct back_record *r)
{
    assert(back_record_knows_md5(r));
    back_record_forget_sent(r, r);
    bool full = r->n_sent == BACK_SENT_MAX;
    r->n_sent -= full;
    memmove(r->sent + 1, r->sent, r->n_sent * sizeof(r->sent[0]));
    r->sent[0].size_bytes = r->size_bytes;
    memcpy(r->sent[0].md5, r->md5, BACK_MD5_BYTES);
    r->n_sent++;
    return full;
}

enum back_step back_decide(const struct back_record *r, const struct back_found *now)
{
    if (!now->exists)
        return r->removal ? BACK_DONE : BACK_SEND;
    if (!r->removal && now->is_wanted)
        return BACK_DONE;
    bool as_before = r->base == BACK_BASE_ETAG && slice_eq(r->base_etag, now->etag);
    return now->is_directory || as_before || (r->n_sent > 0 && now->is_sent) ? BACK_SEND : BACK_CONFLICT;
}

int back_copy_key(struct slice key, const struct back_record *r, struct buf *ret)
{
    char digits[9];
    size_t keep = MIN(key.n, (size_t)(ORIGIN_KEY_MAX_BYTES - BACK_COPY_SUFFIX_MAX));
    while (keep < key.n && keep > 0 && ((uint8_t)key.p[keep] & 0xc0) == 0x80) /* not within a character */
        keep--;
    text_hex(r->has_tag ? r->tag : r->md5, 4, digits);
    int k = buf_slice(ret, slice_sub(key, 0, keep));
    return k < 0 ? k : buf_printf(ret, ".conflict-%" PRIu64 "-%s", r->acked_ns / 1000000, digits);
}

uint64_t back_delay_ms(uint32_t tries)
{
    return tries > 16 ? DELAY_MAX_MS : MIN((uint64_t)FIRST_DELAY_MS << tries, (uint64_t)DELAY_MAX_MS);
}

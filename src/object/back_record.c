/* Write-back: the record of a key, and what follows from it and from what the origin has. Pure. */
#include "object/back.h"

#include "base/le.h"
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

static void put_sent(uint8_t p[SENT_BYTES], const struct back_sent *x)
{
    le_put64(p, x->size_bytes);
    memcpy(p + 8, x->md5, BACK_MD5_BYTES);
}

static void get_sent(const uint8_t p[SENT_BYTES], struct back_sent *ret)
{
    ret->size_bytes = le_get64(p);
    memcpy(ret->md5, p + 8, BACK_MD5_BYTES);
}

/* All but the last one, which is in the head. */
static void add_older(struct le_writer *w, const struct back_record *r)
{
    uint8_t sent[SENT_BYTES];
    unsigned n = r->n_sent > 0 ? r->n_sent - 1 : 0;
    le_add8(w, (uint8_t)n);
    for (unsigned i = 1; i <= n; i++) {
        put_sent(sent, &r->sent[i]);
        le_add(w, slice_of(sent, sizeof(sent)));
    }
}

static bool take_older(struct le_reader *from, bool may_be_none, struct back_record *r)
{
    size_t n = le_take8(from);
    struct slice list = le_take(from, n * SENT_BYTES);
    if (from->bad || n >= BACK_SENT_MAX || (n == 0 && !may_be_none) || (n > 0 && r->n_sent != 1))
        return false;
    for (size_t i = 0; i < n; i++)
        get_sent((const uint8_t *)list.p + i * SENT_BYTES, &r->sent[r->n_sent++]);
    return true;
}

static bool take_tag(struct le_reader *from, struct back_record *r)
{
    struct slice tag = le_take(from, BACK_TAG_BYTES);
    if (tag.n == 0)
        return false;
    memcpy(r->tag, tag.p, BACK_TAG_BYTES);
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
    le_put64(head + 4, r->seq);
    le_put64(head + 12, r->acked_ns);
    le_put64(head + 20, r->since_ns);
    le_put64(head + 28, r->size_bytes);
    if (back_record_knows_md5(r))
        memcpy(head + 36, r->md5, BACK_MD5_BYTES);
    if (r->n_sent > 0)
        put_sent(head + 52, &r->sent[0]);
    struct le_writer w = le_writer_of(b);
    le_add(&w, slice_of(head, sizeof(head)));
    le_add(&w, r->location);
    le_add_text(&w, r->base_etag);
    le_add_text(&w, r->content_type);
    le_add_text(&w, r->meta);
    if (r->has_tag || r->n_sent > 1)
        add_older(&w, r);
    if (r->has_tag)
        le_add(&w, slice_of(r->tag, BACK_TAG_BYTES));
    return le_add_end(&w);
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
                            .seq = le_get64(p + 4),
                            .acked_ns = le_get64(p + 12),
                            .since_ns = le_get64(p + 20),
                            .size_bytes = le_get64(p + 28)};
    memcpy(r.md5, p + 36, BACK_MD5_BYTES);
    if (p[1] & FLAG_SENT)
        get_sent(p + 52, &r.sent[r.n_sent++]);
    if (p[3] != 0 && p[3] != LOCATION_BYTES)
        return ERR_CORRUPT;
    struct le_reader rest = le_reader_of(slice_from(value, HEAD_BYTES));
    r.location = le_take(&rest, p[3]);
    r.base_etag = le_take_text(&rest, UINT16_MAX);
    r.content_type = le_take_text(&rest, UINT16_MAX);
    r.meta = le_take_text(&rest, UINT16_MAX);
    if ((p[0] != FORMAT && !take_older(&rest, r.has_tag, &r)) || (r.has_tag && !take_tag(&rest, &r)) ||
        !le_took_all(&rest) || (r.location.n == 0) != (r.removal || r.size_bytes == 0))
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

int back_copy_key(struct slice key, size_t cut, const struct back_record *r, struct buf *ret)
{
    char digits[9];
    size_t keep = MIN(key.n - MIN(cut, key.n), (size_t)(ORIGIN_KEY_MAX_BYTES - BACK_COPY_SUFFIX_MAX));
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

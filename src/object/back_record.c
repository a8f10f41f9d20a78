/* Write-back: the record of a key, and what follows from it and from what the origin has. Pure. */
#include "object/back.h"

#include "base/le.h"
#include "base/text.h"

#include <inttypes.h>

#define FORMAT         1
#define FORMAT_OLDER   2 /* with older versions that were sent */
#define FLAG_REMOVAL   1
#define FLAG_SENT      2
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
    le_add8(w, (uint8_t)(r->n_sent - 1));
    for (unsigned i = 1; i < r->n_sent; i++) {
        put_sent(sent, &r->sent[i]);
        le_add(w, slice_of(sent, sizeof(sent)));
    }
}

static bool take_older(struct le_reader *from, struct back_record *r)
{
    size_t n = le_take8(from);
    struct slice list = le_take(from, n * SENT_BYTES);
    if (from->bad || r->n_sent != 1 || n == 0 || n >= BACK_SENT_MAX)
        return false;
    for (size_t i = 0; i < n; i++)
        get_sent((const uint8_t *)list.p + i * SENT_BYTES, &r->sent[r->n_sent++]);
    return true;
}

int back_record_encode(const struct back_record *r, struct buf *b)
{
    uint8_t head[HEAD_BYTES] = {r->n_sent > 1 ? FORMAT_OLDER : FORMAT};
    assert(r->location.n == 0 || r->location.n == LOCATION_BYTES);
    assert(r->n_sent <= BACK_SENT_MAX);
    head[1] = (uint8_t)((r->removal ? FLAG_REMOVAL : 0) | (r->n_sent > 0 ? FLAG_SENT : 0));
    head[2] = (uint8_t)r->base;
    head[3] = (uint8_t)r->location.n;
    le_put64(head + 4, r->seq);
    le_put64(head + 12, r->acked_ns);
    le_put64(head + 20, r->since_ns);
    le_put64(head + 28, r->size_bytes);
    memcpy(head + 36, r->md5, BACK_MD5_BYTES);
    if (r->n_sent > 0)
        put_sent(head + 52, &r->sent[0]);
    struct le_writer w = le_writer_of(b);
    le_add(&w, slice_of(head, sizeof(head)));
    le_add(&w, r->location);
    le_add_text(&w, r->base_etag);
    le_add_text(&w, r->content_type);
    le_add_text(&w, r->meta);
    if (r->n_sent > 1)
        add_older(&w, r);
    return le_add_end(&w);
}

int back_record_decode(struct slice value, struct back_record *ret)
{
    const uint8_t *p = (const uint8_t *)value.p;
    if (value.n < HEAD_BYTES || (p[0] != FORMAT && p[0] != FORMAT_OLDER) ||
        p[1] > (FLAG_REMOVAL | FLAG_SENT) || p[2] > BACK_BASE_ETAG)
        return ERR_CORRUPT;
    struct back_record r = {.removal = p[1] & FLAG_REMOVAL,
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
    if ((p[0] == FORMAT_OLDER && !take_older(&rest, &r)) || !le_took_all(&rest) ||
        (r.location.n == 0) != (r.removal || r.size_bytes == 0))
        return ERR_CORRUPT;
    *ret = r;
    return 0;
}

static bool is_own(const struct back_record *r, const struct back_sent *x)
{
    return x->size_bytes == r->size_bytes && memcmp(x->md5, r->md5, BACK_MD5_BYTES) == 0;
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
    char md5[9];
    size_t keep = MIN(key.n, (size_t)(ORIGIN_KEY_MAX_BYTES - BACK_COPY_SUFFIX_MAX));
    while (keep < key.n && keep > 0 && ((uint8_t)key.p[keep] & 0xc0) == 0x80) /* not within a character */
        keep--;
    text_hex(r->md5, 4, md5);
    int k = buf_slice(ret, slice_sub(key, 0, keep));
    return k < 0 ? k : buf_printf(ret, ".conflict-%" PRIu64 "-%s", r->acked_ns / 1000000, md5);
}

uint64_t back_delay_ms(uint32_t tries)
{
    return tries > 16 ? DELAY_MAX_MS : MIN((uint64_t)FIRST_DELAY_MS << tries, (uint64_t)DELAY_MAX_MS);
}

/*
 * The ledger of quotas (contract in ledger.h): a list of the buckets of which something is reserved.
 *
 * Invariant: a bucket is in the list exactly while the claims on it are more than 0 bytes together.
 */
#include "object/ledger.h"

#include "base/lock.h"

struct account {
    struct account *next;
    uint64_t bucket, reserved;
};

struct ledger {
    struct lock lock; /* covers what follows; held over the look at what is settled, see ledger_ask */
    struct account *accounts;
};

/* ---- decisions ---- */

uint64_t ledger_left(uint64_t quota, int64_t settled, uint64_t reserved)
{
    if (quota == 0)
        return UINT64_MAX;
    uint64_t there = settled > 0 ? (uint64_t)settled : 0;
    if (there >= quota || reserved >= quota - there)
        return 0;
    return quota - there - reserved;
}

uint64_t ledger_piece(uint64_t quota, uint64_t left, uint64_t least, uint64_t want, uint64_t ahead)
{
    if (quota == 0)
        return MAX(want, ahead);
    if (left < least)
        return 0;
    return want > left ? left : MAX(want, MIN(ahead, MIN(left / 4, quota / 64)));
}

/* ---- the table ---- */

struct ledger *ledger_new(void)
{
    struct ledger *l = calloc(1, sizeof(*l));
    assert(l);
    lock_init(&l->lock, LOCK_OBJECT);
    return l;
}

void ledger_free(struct ledger *l)
{
    if (!l)
        return;
    while (l->accounts) {
        struct account *x = l->accounts;
        l->accounts = x->next;
        free(x);
    }
    lock_fini(&l->lock);
    free(l);
}

/* Where the bucket's account is, or would be. */
static struct account **find_locked(struct ledger *l, uint64_t bucket)
{
    lock_assert_held(&l->lock);
    struct account **at = &l->accounts;
    while (*at && (*at)->bucket != bucket)
        at = &(*at)->next;
    return at;
}

static void add_locked(struct ledger *l, struct ledger_claim *c, uint64_t bucket, uint64_t bytes)
{
    assert(c->bytes == 0 || c->bucket == bucket);
    if (bytes == 0)
        return;
    struct account **at = find_locked(l, bucket);
    if (!*at) {
        *at = calloc(1, sizeof(**at));
        assert(*at);
        (*at)->bucket = bucket;
    }
    (*at)->reserved += bytes;
    c->bucket = bucket;
    c->bytes += bytes;
}

int ledger_take(struct ledger *l, struct ledger_claim *c, const struct ledger_ask *ask, uint64_t *ret_granted,
                struct err *e)
{
    int64_t settled = 0;
    LOCK_SCOPE(&l->lock);
    int r = ask->quota > 0 ? ask->settled(ask->arg, ask->bucket, &settled, e) : 0;
    if (r < 0)
        return r;
    struct account *x = *find_locked(l, ask->bucket);
    uint64_t reserved = x ? x->reserved : 0;
    uint64_t left = ledger_left(ask->quota, settled, reserved);
    bool has_much = ask->quota == 0 || reserved < ask->quota / LEDGER_HELD_SHARE;
    uint64_t ahead = has_much ? ask->ahead : 0;
    uint64_t granted = ledger_piece(ask->quota, left, ask->least, ask->want, ahead);
    if (granted < ask->least || granted > UINT64_MAX - reserved) /* also where no quota bounds it */
        return -EDQUOT;
    add_locked(l, c, ask->bucket, granted);
    *ret_granted = granted;
    return 0;
}

void ledger_back(struct ledger *l, struct ledger_claim *c, uint64_t bytes)
{
    LOCK_SCOPE(&l->lock);
    bytes = MIN(bytes, c->bytes);
    if (bytes == 0)
        return;
    struct account **at = find_locked(l, c->bucket), *x = *at;
    assert(x && x->reserved >= bytes);
    c->bytes -= bytes;
    x->reserved -= bytes;
    if (x->reserved > 0)
        return;
    *at = x->next;
    free(x);
}

void ledger_end(struct ledger *l, struct ledger_claim *c)
{
    ledger_back(l, c, UINT64_MAX);
}

uint64_t ledger_reserved(struct ledger *l, uint64_t bucket)
{
    LOCK_SCOPE(&l->lock);
    const struct account *x = *find_locked(l, bucket);
    return x ? x->reserved : 0;
}

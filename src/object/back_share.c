/*
 * Write-back: extents that several records name.
 *
 * The bytes of a record never change, so that a copy of a key, or its rename, names the same extent. Only
 * those with two records or more are in this table: an extent that is not has one, or none any more.
 *
 * Invariants:
 *  1. Who shares is busy with a key whose record names the extent: it is not given back before.
 *  2. The table counts a record before it is written, and until it is gone durably: after a failure whose end
 * is unknown it may count one too many, so that the extent stays until the next start, which counts anew.
 */
#include "object/back_internal.h"

#include "base/hash.h"

#define SHARE_CHAINS 4096

struct back_share {
    struct back_share *next;
    uint64_t n; /* records */
    uint8_t location[HARD_LOCATION_BYTES];
};

static struct back_share **find_locked(struct back *b, struct slice location)
{
    lock_assert_held(&b->lock);
    struct back_share **at = &b->shares[hash_table(location) % SHARE_CHAINS];
    while (*at && memcmp((*at)->location, location.p, HARD_LOCATION_BYTES) != 0)
        at = &(*at)->next;
    return at;
}

static void add_share(struct back_share **at, struct slice location, uint64_t n)
{
    *at = calloc(1, sizeof(**at));
    assert(*at);
    (*at)->n = n;
    memcpy((*at)->location, location.p, HARD_LOCATION_BYTES);
}

static void remove_share(struct back_share **at)
{
    struct back_share *x = *at;
    *at = x->next;
    free(x);
}

void back_share_init(struct back *b)
{
    b->shares = calloc(SHARE_CHAINS, sizeof(*b->shares));
    assert(b->shares);
}

void back_share_fini(struct back *b)
{
    for (size_t i = 0; i < SHARE_CHAINS; i++)
        while (b->shares[i])
            remove_share(&b->shares[i]);
    free(b->shares);
}

void back_share_found(struct back *b, struct slice location)
{
    LOCK_SCOPE(&b->lock);
    struct back_share **at = find_locked(b, location);
    if (*at)
        (*at)->n++;
    else
        add_share(at, location, 1);
}

void back_share_settle(struct back *b)
{
    LOCK_SCOPE(&b->lock);
    for (size_t i = 0; i < SHARE_CHAINS; i++)
        for (struct back_share **at = &b->shares[i]; *at;)
            if ((*at)->n == 1)
                remove_share(at);
            else
                at = &(*at)->next;
}

void back_share(struct back *b, struct slice location)
{
    LOCK_SCOPE(&b->lock);
    struct back_share **at = find_locked(b, location);
    if (*at)
        (*at)->n++;
    else
        add_share(at, location, 2);
}

bool back_share_leave(struct back *b, struct slice location)
{
    LOCK_SCOPE(&b->lock);
    struct back_share **at = find_locked(b, location);
    if (!*at)
        return true;
    if (--(*at)->n == 1)
        remove_share(at);
    return false;
}

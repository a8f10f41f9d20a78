/*
 * Recent versions (contract in kv_recent.h): a table with one place for each hash, where the newer key takes
 * the place of the older one.
 *
 * Invariants:
 *  1. A version in the table is the store's, but for keys of the commit that is under way: nobody may rely on
 * the version of one before it has ended, and who holds the commits' lock sees none under way.
 *  2. Commits count up twice, before they write and after they are in the table: a ticket is odd while one is
 * under way. What was read is noted only when its ticket is even and still the count, so that it is what the
 * store has.
 *
 * Failure modes: after a commit that failed, and after a range was deleted, nothing is known.
 */
#include "kv/kv_recent.h"

#include "base/crc32c.h"
#include "base/lock.h"

#include <stdatomic.h>
#include <string.h>

#define PLACES 4096 /* 128 bytes each */

struct place {
    uint64_t version;
    uint32_t key_n; /* 0: free */
    char key[KV_RECENT_KEY_MAX];
};

static_assert(sizeof(struct place) == 128, "what a place takes");

struct kv_recent {
    _Atomic uint64_t count; /* changed under the lock */
    struct lock lock;       /* covers what follows */
    bool is_used;           /* anything is kept */
    struct place places[PLACES];
};

struct kv_recent *kv_recent_new(void)
{
    struct kv_recent *r = calloc(1, sizeof(*r));
    if (!r)
        abort();
    lock_init(&r->lock, LOCK_LEAF);
    return r;
}

void kv_recent_free(struct kv_recent *r)
{
    if (!r)
        return;
    lock_fini(&r->lock);
    free(r);
}

static struct place *place_of(struct kv_recent *r, struct slice key)
{
    return &r->places[crc32c(0, key.p, key.n) % PLACES];
}

static bool is_of(const struct place *p, struct slice key)
{
    return p->key_n == key.n && memcmp(p->key, key.p, key.n) == 0;
}

static void set_locked(struct kv_recent *r, struct slice key, uint64_t version)
{
    lock_assert_held(&r->lock);
    if (key.n > KV_RECENT_KEY_MAX)
        return;
    struct place *p = place_of(r, key);
    p->version = version;
    p->key_n = (uint32_t)key.n;
    memcpy(p->key, key.p, key.n);
    r->is_used = true;
}

/* Keys that nobody named in a condition take no place. */
static void change_locked(struct kv_recent *r, struct slice key, uint64_t version)
{
    lock_assert_held(&r->lock);
    struct place *p = place_of(r, key);
    if (is_of(p, key))
        p->version = version;
}

static void clear_locked(struct kv_recent *r)
{
    lock_assert_held(&r->lock);
    for (size_t i = 0; r->is_used && i < PLACES; i++)
        r->places[i].key_n = 0;
    r->is_used = false;
}

/* ---- reading ---- */

uint64_t kv_recent_ticket(struct kv_recent *r)
{
    return atomic_load_explicit(&r->count, memory_order_acquire);
}

void kv_recent_note(struct kv_recent *r, struct slice key, uint64_t version, uint64_t ticket)
{
    if (ticket % 2 != 0 || key.n > KV_RECENT_KEY_MAX)
        return;
    LOCK_SCOPE(&r->lock);
    if (atomic_load_explicit(&r->count, memory_order_relaxed) == ticket)
        set_locked(r, key, version);
}

bool kv_recent_find(struct kv_recent *r, struct slice key, uint64_t *ret_version)
{
    if (key.n > KV_RECENT_KEY_MAX)
        return false;
    LOCK_SCOPE(&r->lock);
    const struct place *p = place_of(r, key);
    if (!is_of(p, key))
        return false;
    *ret_version = p->version;
    return true;
}

/* ---- commits ---- */

void kv_recent_begin(struct kv_recent *r)
{
    LOCK_SCOPE(&r->lock);
    uint64_t count = atomic_fetch_add(&r->count, 1);
    assert(count % 2 == 0);
}

/* In their order: what was deleted may have been put after that. */
static void apply_locked(struct kv_recent *r, const struct kv_txn *t, uint64_t version)
{
    struct kv_op op;
    size_t pos = 0;
    while (kv_txn_next(t, &pos, &op)) {
        switch (op.kind) {
        case KV_OP_CHECK:
            break;
        case KV_OP_PUT:
            set_locked(r, op.key, version);
            break;
        case KV_OP_PUT_PLAIN:
            change_locked(r, op.key, KV_VERSION_PLAIN);
            break;
        case KV_OP_DELETE:
            change_locked(r, op.key, 0);
            break;
        case KV_OP_DELETE_RANGE:
            clear_locked(r);
            break;
        }
    }
}

void kv_recent_end(struct kv_recent *r, const struct kv_txn *t, uint64_t version, bool failed)
{
    LOCK_SCOPE(&r->lock);
    if (failed)
        clear_locked(r);
    else
        apply_locked(r, t, version);
    uint64_t count = atomic_fetch_add(&r->count, 1);
    assert(count % 2 == 1);
}

/*
 * Connections and the timer wheel (contract, ownership and the reason for laziness in conn.h).
 *
 * Invariants:
 *  1. A connection is linked in exactly one slot from conn_new to conn_free; only the holder of the lock
 * follows links.
 *  2. A connection that has a deadline is swept at most max(CONN_SLOTS ticks, its former deadline) after it;
 * exactly (to a tick) when the deadline was set with `exact`.
 *  3. The sweep never frees, never blocks and never touches what the owner owns: it reads the deadline, sets
 *     `expired` and calls shutdown(2).
 *
 * Failure modes: a request that begins in the very moment in which its idle connection expires is cut. HTTP
 * clients repeat it, as they must with every server.
 */
#include "server/conn.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

const char *conn_kind_name(enum conn_kind kind)
{
    static const char *const names[] = {
#define X(NAME, name) [CONN_##NAME] = name,
        CONN_KINDS(X)
#undef X
    };
    assert(kind < CONN_KIND_COUNT);
    return names[kind];
}

void conn_table_init(struct conn_table *t, uint64_t now_ms)
{
    memset(t, 0, sizeof(*t));
    lock_init(&t->lock, LOCK_LEAF);
    t->swept_ms = now_ms / CONN_TICK_MS * CONN_TICK_MS;
}

void conn_table_fini(struct conn_table *t)
{
    assert(atomic_load(&t->n) == 0);
    while (t->made) {
        struct conn *c = t->made;
        t->made = c->next_made;
        free(c);
    }
    lock_fini(&t->lock);
}

/* ---- ownership ---- */

bool conn_claim(struct conn *c, bool hung_up)
{
    uint8_t was = atomic_load_explicit(&c->claim, memory_order_acquire);
    do {
        if (was == CONN_FREE || (was == CONN_TOLD && !hung_up))
            return false;
        if (hung_up) /* before the owner can hear of it; had that note been left before, it is left once more
                      */
            atomic_store(&c->hung_up, true);
    } while (!atomic_compare_exchange_weak(&c->claim, &was, was == CONN_WAITS ? CONN_OWNED : CONN_TOLD));
    return was == CONN_WAITS;
}

bool conn_let_go(struct conn *c)
{
    uint8_t owned = CONN_OWNED;
    if (atomic_compare_exchange_strong(&c->claim, &owned, CONN_WAITS))
        return true;
    assert(owned == CONN_TOLD && c->is_kept);
    /* Before the caller looks: an event of later tells it again. */
    atomic_store(&c->claim, CONN_OWNED);
    return false;
}

/* ---- slots; the lock is held ---- */

static struct conn **slot_of(struct conn_table *t, uint64_t visit_ms)
{
    return &t->slots[visit_ms / CONN_TICK_MS % CONN_SLOTS];
}

/* Puts it where the sweep finds it soonest after `when_ms`: never in a slot that is already done. */
static void link_locked(struct conn_table *t, struct conn *c, uint64_t when_ms)
{
    uint64_t last_ms = t->swept_ms + (uint64_t)(CONN_SLOTS - 1) * CONN_TICK_MS;
    c->visit_ms = MIN(MAX(when_ms, t->swept_ms), last_ms);
    struct conn **slot = slot_of(t, c->visit_ms);
    c->prev = NULL;
    c->next = *slot;
    if (c->next)
        c->next->prev = c;
    *slot = c;
}

static void unlink_locked(struct conn_table *t, struct conn *c)
{
    if (c->prev)
        c->prev->next = c->next;
    else
        *slot_of(t, c->visit_ms) = c->next;
    if (c->next)
        c->next->prev = c->prev;
    c->prev = c->next = NULL;
}

/* ---- life ---- */

/* One of before, or NULL. */
static struct conn *take_unused(struct conn_table *t)
{
    LOCK_SCOPE(&t->lock);
    struct conn *c = t->unused;
    if (c)
        t->unused = c->next_ready;
    return c;
}

/* What may be watched: who holds an event of an earlier one looks at `claim`, and at nothing else. */
static struct conn *make_kept(struct conn_table *t)
{
    struct conn *c = take_unused(t);
    if (c) {
        memset(&c->magic, 0, sizeof(*c) - offsetof(struct conn, magic));
    } else {
        c = calloc(1, sizeof(*c));
        if (!c)
            abort();
        LOCK_SCOPE(&t->lock);
        c->next_made = t->made;
        t->made = c;
    }
    c->is_kept = true;
    return c;
}

struct conn *conn_new(struct conn_table *t, int fd, enum conn_kind kind, uint64_t now_ms)
{
    assert(fd >= 0 && kind < CONN_KIND_COUNT);
    struct conn *c = kind == CONN_HTTP ? make_kept(t) : calloc(1, sizeof(*c));
    if (!c)
        abort();
    c->magic = CONN_MAGIC;
    c->fd = fd;
    c->kind = (uint8_t)kind;
    c->phase = CONN_HEAD;
    atomic_store(&c->claim, CONN_OWNED);
    LOCK_SCOPE(&t->lock);
    link_locked(t, c, now_ms);
    atomic_fetch_add(&t->n, 1);
    return c;
}

void conn_free(struct conn_table *t, struct conn *c)
{
    assert(c->magic == CONN_MAGIC && c->wire == NULL);
    lock_take(&t->lock);
    unlink_locked(t, c);
    atomic_fetch_sub(&t->n, 1);
    lock_drop(&t->lock);
    http_rest_free(c->rest);
    tls_free(c->tls); /* before its socket */
    free(c->pending);
    (void)close(c->fd); /* nothing more can be told to the peer */
    c->magic = 0;
    if (!c->is_kept) {
        free(c);
        return;
    }
    atomic_store(&c->claim, CONN_FREE);
    LOCK_SCOPE(&t->lock);
    c->next_ready = t->unused;
    t->unused = c;
}

void conn_keep_pending(struct conn *c, struct slice bytes)
{
    assert(c->magic == CONN_MAGIC);
    free(c->pending);
    c->pending = bytes.n > 0 ? slice_dup(bytes) : NULL;
    c->pending_n = bytes.n;
}

/* ---- deadlines ---- */

void conn_set_deadline(struct conn_table *t, struct conn *c, uint64_t deadline_ms, bool exact)
{
    assert(c->magic == CONN_MAGIC && deadline_ms > 0);
    if (!exact) {
        atomic_store_explicit(&c->deadline_ms, deadline_ms, memory_order_relaxed);
        return;
    }
    LOCK_SCOPE(&t->lock);
    atomic_store_explicit(&c->deadline_ms, deadline_ms, memory_order_relaxed);
    if (c->visit_ms > deadline_ms) {
        unlink_locked(t, c);
        link_locked(t, c, deadline_ms);
    }
}

static uint32_t unsent_bytes(const struct conn *c)
{
    int n = 0;
    return ioctl(c->fd, SIOCOUTQ, &n) < 0 ? 0 : (uint32_t)n;
}

void conn_wait_for_room(struct conn_table *t, struct conn *c, uint64_t now_ms, uint64_t patience_ms)
{
    atomic_store_explicit(&c->unsent, unsent_bytes(c), memory_order_relaxed);
    atomic_store_explicit(&c->patience_ms, (uint32_t)MIN(patience_ms, (uint64_t)UINT32_MAX),
                          memory_order_relaxed);
    conn_set_deadline(t, c, now_ms + patience_ms, /* exact= */ true);
}

/* Whether the peer took something since; then it gets another span. */
static bool goes_on(struct conn *c, uint64_t *deadline_ms, uint64_t now_ms)
{
    uint32_t unsent = c->phase == CONN_REST ? unsent_bytes(c) : UINT32_MAX;
    if (unsent >= atomic_load_explicit(&c->unsent, memory_order_relaxed))
        return false;
    atomic_store_explicit(&c->unsent, unsent, memory_order_relaxed);
    uint64_t later_ms = now_ms + atomic_load_explicit(&c->patience_ms, memory_order_relaxed);
    if (atomic_compare_exchange_strong(&c->deadline_ms, deadline_ms, later_ms))
        *deadline_ms = later_ms;
    return true; /* else its owner has it */
}

static void expire_locked(struct conn *c, bool both)
{
    atomic_store(&c->expired, true);
    /* Fails only when the peer has gone already, which makes an event too. */
    (void)shutdown(c->fd, both || c->phase == CONN_REST || c->phase == CONN_LINGER ? SHUT_RDWR : SHUT_RD);
}

static void sweep_slot_locked(struct conn_table *t, uint64_t now_ms)
{
    struct conn **slot = slot_of(t, t->swept_ms), *list = *slot;
    *slot = NULL;
    t->swept_ms += CONN_TICK_MS;
    while (list) {
        struct conn *c = list;
        list = c->next;
        uint64_t deadline_ms = atomic_load_explicit(&c->deadline_ms, memory_order_relaxed);
        if (deadline_ms > 0 && deadline_ms <= now_ms && !goes_on(c, &deadline_ms, now_ms))
            expire_locked(c, /* both= */ false);
        /* Busy or expired just now: looked at again after a while. */
        bool later = deadline_ms > now_ms;
        link_locked(t, c, later ? deadline_ms : now_ms + 8 * (uint64_t)CONN_TICK_MS);
    }
}

void conn_table_sweep(struct conn_table *t, uint64_t now_ms)
{
    LOCK_SCOPE(&t->lock);
    for (int i = 0; i < CONN_SLOTS && t->swept_ms + CONN_TICK_MS <= now_ms; i++)
        sweep_slot_locked(t, now_ms);
    if (t->swept_ms + CONN_TICK_MS <=
        now_ms) /* the clock jumped over more than the wheel: all slots are done */
        t->swept_ms = now_ms / CONN_TICK_MS * CONN_TICK_MS;
}

/* True: a thread waits for it no longer, or not much longer. */
static bool cut_locked(struct conn *c, uint64_t now_ms, unsigned *n_cut)
{
    if (!stream_pace_is_slow(&c->pace, now_ms, SLOW_BYTES_PER_S, SLOW_GRACE_MS))
        return false;
    bool sends = atomic_load(&c->pace.step) > 0;
    *n_cut += !c->is_cut;
    c->is_cut = true;
    (void)shutdown(c->fd, sends ? SHUT_RDWR : SHUT_RD); /* again, where bytes came in between */
    return true;
}

unsigned conn_table_cut_slow(struct conn_table *t, uint64_t now_ms, unsigned n, bool of_holders)
{
    unsigned n_cut = 0;
    LOCK_SCOPE(&t->lock);
    for (int i = 0; i < CONN_SLOTS && n > 0; i++)
        for (struct conn *c = t->slots[i]; c && n > 0; c = c->next)
            if (!of_holders || atomic_load(&c->holds))
                n -= cut_locked(c, now_ms, &n_cut);
    return n_cut;
}

void conn_table_shutdown(struct conn_table *t, bool busy_too)
{
    LOCK_SCOPE(&t->lock);
    for (int i = 0; i < CONN_SLOTS; i++)
        for (struct conn *c = t->slots[i]; c; c = c->next) {
            bool waits = c->phase == CONN_HEAD || c->phase == CONN_HANDSHAKE;
            if (busy_too || (waits && atomic_load(&c->deadline_ms) > 0))
                expire_locked(c, busy_too);
        }
}

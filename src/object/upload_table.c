/*
 * Slots of uploads in parts (contract in upload_table.h).
 *
 * Invariants:
 *  1. Nothing that a client was told depends on a slot: without one, after a restart, uploads go on and what
 * they become is fetched when it is read.
 *  2. Part N lies at (N-1) times the size of the part that was seen first. Whatever does not fit that, or is
 * written twice at once, ends the copy; a copy is never put together from other places.
 *  3. Parts on their way are found by their slot as long as they may be sent or copied; who does that is
 * stopped and asked under the lock, and freed only after they have left it.
 *  4. A part of the copy is good only when the origin has acknowledged the very bytes that were written there
 * last, before the upload's end was begun: what the end takes for the object is what is good from then on.
 */
#include "object/upload_table.h"

#include "base/sys.h"

#define WAIT_NS   1000000000ull
#define IDLE_NS   3600000000000ull
#define SETTLE_NS (5 * WAIT_NS) /* for parts that the origin may have all bytes of, before an end */
#define STOP_NS   (5 * WAIT_NS) /* for senders that were stopped, which takes a moment */
#define LOOK_NS   10000000ull

enum stage { STAGE_NONE, STAGE_WRITING, STAGE_GOOD };

struct upload_slot {
    struct upload_slot *next;
    uint64_t bucket;
    struct id128 id;
    /* Covered by service->upload_lock: */
    unsigned refs, active;
    bool closing, ended, unstaged;
    struct upload_way *ways;
    struct extent *extent;
    uint64_t part_bytes, used_ns;
    uint8_t stages[UPLOAD_NUMBER_MAX + 1];
};

struct upload_slot *upload_slot_get(struct object_service *s, uint64_t bucket, struct id128 id)
{
    struct upload_slot *fresh = calloc(1, sizeof(*fresh));
    assert(fresh);
    lock_take(&s->upload_lock);
    struct upload_slot *slot = s->upload_slots;
    while (slot && (slot->bucket != bucket || !id_eq(slot->id, id)))
        slot = slot->next;
    if (!slot) {
        slot = TAKE_PTR(fresh);
        slot->bucket = bucket;
        slot->id = id;
        slot->next = s->upload_slots;
        s->upload_slots = slot;
    }
    slot->refs++;
    slot->used_ns = sys->mono_ns();
    lock_drop(&s->upload_lock);
    free(fresh);
    return slot;
}

/* A slot stays as long as it has a copy. */
void upload_slot_put(struct object_service *s, struct upload_slot *slot)
{
    if (!slot)
        return;
    lock_take(&s->upload_lock);
    assert(slot->refs > 0);
    bool last = --slot->refs == 0 && !slot->extent;
    if (last) {
        struct upload_slot **at = &s->upload_slots;
        while (*at != slot)
            at = &(*at)->next;
        *at = slot->next;
    }
    lock_drop(&s->upload_lock);
    if (last)
        free(slot);
}

void upload_slots_free(struct object_service *s)
{
    while (s->upload_slots) {
        struct upload_slot *slot = s->upload_slots;
        assert(slot->refs == 0);
        s->upload_slots = slot->next;
        extent_unref(slot->extent);
        free(slot);
    }
}

/* ---- who runs ---- */

int upload_slot_enter(struct object_service *s, struct upload_slot *slot, struct err *e)
{
    LOCK_SCOPE(&s->upload_lock);
    if (slot->closing)
        return err_set(e, -ENOENT, "the upload is being completed or aborted");
    slot->active++;
    return 0;
}

void upload_slot_leave(struct object_service *s, struct upload_slot *slot)
{
    LOCK_SCOPE(&s->upload_lock);
    assert(slot->active > 0);
    slot->active--;
    cond_broadcast(&s->upload_ended);
}

static int add_way(struct object_service *s, struct upload_slot *slot, struct upload_way *w, struct err *e)
{
    LOCK_SCOPE(&s->upload_lock);
    if (slot->closing)
        return err_set(e, -ENOENT, "the upload is being completed or aborted");
    w->next = slot->ways;
    slot->ways = w;
    return 0;
}

int upload_slot_send(struct object_service *s, struct upload_slot *slot, struct upload_way *w,
                     struct part_send *send, struct err *e)
{
    *w = (struct upload_way){.send = send};
    return add_way(s, slot, w, e);
}

int upload_slot_copy(struct object_service *s, struct upload_slot *slot, struct upload_way *w,
                     atomic_bool *stop, struct err *e)
{
    *w = (struct upload_way){.stop_copy = stop};
    return add_way(s, slot, w, e);
}

void upload_slot_unsend(struct object_service *s, struct upload_slot *slot, struct upload_way *w)
{
    LOCK_SCOPE(&s->upload_lock);
    struct upload_way **at = &slot->ways;
    while (*at && *at != w)
        at = &(*at)->next;
    if (*at)
        *at = w->next;
    cond_broadcast(&s->upload_ended);
}

bool upload_slots_busy(struct object_service *s, uint64_t bucket, struct id128 id)
{
    LOCK_SCOPE(&s->upload_lock);
    for (const struct upload_slot *slot = s->upload_slots; slot; slot = slot->next)
        if (slot->bucket == bucket && id_eq(slot->id, id))
            return slot->active > 0;
    return false;
}

bool upload_slot_has_ended(struct object_service *s, struct upload_slot *slot)
{
    LOCK_SCOPE(&s->upload_lock);
    return slot->ended;
}

void upload_slot_end(struct object_service *s, struct upload_slot *slot)
{
    LOCK_SCOPE(&s->upload_lock);
    assert(slot->closing);
    slot->ended = true;
}

int upload_slot_close(struct object_service *s, struct upload_slot *slot, struct err *e)
{
    LOCK_SCOPE(&s->upload_lock);
    if (slot->closing)
        return err_set(e, ERR_CONFLICT, "the upload is being completed or aborted");
    slot->closing = true;
    return 0;
}

/* Whether it is on its way yet. */
static bool stop_way_locked(struct upload_way *w, bool whole_too)
{
    if (!w->send) {
        if (whole_too)
            atomic_store(w->stop_copy, true);
        return true;
    }
    part_send_stop(w->send, whole_too);
    return !part_send_has_ended(w->send);
}

/* Stops the parts, then waits for so long at most until nothing is sent. */
static void stop_locked(struct object_service *s, struct upload_slot *slot, bool whole_too, uint64_t wait_ns)
{
    uint64_t end_ns = sys->mono_ns() + wait_ns;
    for (bool first = true, sends = true; sends && (first || sys->mono_ns() < end_ns); first = false) {
        sends = false;
        for (struct upload_way *w = slot->ways; w; w = w->next)
            sends = stop_way_locked(w, whole_too) || sends;
        if (sends)
            (void)cond_wait_for(&s->upload_ended, &s->upload_lock, LOOK_NS);
    }
}

void upload_slot_stop(struct object_service *s, struct upload_slot *slot)
{
    LOCK_SCOPE(&s->upload_lock);
    assert(slot->closing);
    stop_locked(s, slot, /* whole_too= */ false, SETTLE_NS);
    stop_locked(s, slot, /* whole_too= */ true, STOP_NS);
}

void upload_slot_reopen(struct object_service *s, struct upload_slot *slot)
{
    LOCK_SCOPE(&s->upload_lock);
    slot->closing = slot->ended = false;
}

/* ---- the copy ---- */

static struct extent *unstage_locked(struct upload_slot *slot)
{
    slot->unstaged = true;
    return TAKE_PTR(slot->extent);
}

static void unstage(struct object_service *s, struct upload_slot *slot)
{
    lock_take(&s->upload_lock);
    struct extent *gone = unstage_locked(slot);
    lock_drop(&s->upload_lock);
    extent_unref(gone);
}

/* The next slot with a copy, of that bucket, or one that nobody has used since; a reference. */
static struct upload_slot *staged_of(struct object_service *s, uint64_t bucket, uint64_t since_ns)
{
    LOCK_SCOPE(&s->upload_lock);
    for (struct upload_slot *slot = s->upload_slots; slot; slot = slot->next) {
        if (slot->extent && (slot->bucket == bucket || (slot->refs == 0 && slot->used_ns < since_ns))) {
            slot->refs++;
            return slot;
        }
    }
    return NULL;
}

static void drop_copies(struct object_service *s, uint64_t bucket, uint64_t since_ns)
{
    struct upload_slot *slot;
    while ((slot = staged_of(s, bucket, since_ns))) {
        unstage(s, slot);
        upload_slot_put(s, slot);
    }
}

void upload_slots_forget(struct object_service *s, uint64_t bucket)
{
    drop_copies(s, bucket, 0);
}

void upload_slots_drop_idle(struct object_service *s)
{
    uint64_t now_ns = sys->mono_ns();
    drop_copies(s, /* bucket= */ 0, now_ns > IDLE_NS ? now_ns - IDLE_NS : 0);
}

/* Whether the part has a place in the copy, which is then its. */
static bool place_locked(struct upload_slot *slot, uint32_t number, uint64_t size, uint64_t most)
{
    if (slot->unstaged || !slot->extent)
        return false;
    if (slot->part_bytes == 0)
        slot->part_bytes = size;
    uint64_t end = (number - 1) * slot->part_bytes + size;
    if (size == 0 || size > slot->part_bytes || end > most || slot->stages[number] == STAGE_WRITING)
        return false;
    slot->stages[number] = STAGE_WRITING;
    return true;
}

static size_t count_copies_locked(const struct object_service *s)
{
    size_t n = 0;
    for (const struct upload_slot *slot = s->upload_slots; slot; slot = slot->next)
        n += slot->extent != NULL;
    return n;
}

/* Two that begin at the same moment may be one more. */
static bool wants_copy(struct object_service *s, struct upload_slot *slot)
{
    LOCK_SCOPE(&s->upload_lock);
    return !slot->unstaged && !slot->extent && count_copies_locked(s) < UPLOAD_COPIES_MAX;
}

void upload_stage_begin(struct object_service *s, struct upload_slot *slot, struct upstream *u,
                        struct slice key, uint32_t number, uint64_t size, struct upload_stage *ret)
{
    *ret = (struct upload_stage){.number = number};
    struct extent *fresh = NULL, *gone = NULL;
    if (wants_copy(s, slot) && bucket_keep(u->bucket, key) != RULE_KEEP_NEVER) {
        _cleanup_buf_ struct buf k = BUF_INIT(ORIGIN_KEY_MAX_BYTES + 8);
        object_store_key(u->bucket, key, &k);
        if (store_stage(s->config.store, buf_view(&k), 0, &fresh, NULL) < 0)
            fresh = NULL;
    }
    uint64_t most = object_room(s);
    lock_take(&s->upload_lock);
    if (!slot->unstaged && !slot->extent)
        slot->extent = TAKE_PTR(fresh);
    if (place_locked(slot, number, size, most)) {
        ret->extent = extent_ref(slot->extent);
        ret->offset = (number - 1) * slot->part_bytes;
    } else {
        gone = unstage_locked(slot);
    }
    lock_drop(&s->upload_lock);
    extent_unref(fresh);
    extent_unref(gone);
}

void upload_stage_write(struct object_service *s, struct upload_slot *slot, struct upload_stage *g,
                        uint64_t at, struct slice data)
{
    if (!g->extent || extent_write(g->extent, data.p, data.n, g->offset + at) == 0)
        return;
    unstage(s, slot);
    extent_unref(TAKE_PTR(g->extent));
}

void upload_stage_end(struct object_service *s, struct upload_slot *slot, struct upload_stage *g, bool ok)
{
    if (!g->extent)
        return;
    lock_take(&s->upload_lock);
    slot->stages[g->number] = ok && !slot->closing ? STAGE_GOOD : STAGE_NONE;
    lock_drop(&s->upload_lock);
    extent_unref(TAKE_PTR(g->extent));
}

static bool has_all(const struct upload_slot *slot, const uint32_t *numbers, const uint64_t *sizes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (numbers[i] != i + 1 || slot->stages[i + 1] != STAGE_GOOD ||
            (i + 1 < n && sizes[i] != slot->part_bytes))
            return false;
    return true;
}

struct extent *upload_stage_take(struct object_service *s, struct upload_slot *slot, const uint32_t *numbers,
                                 const uint64_t *sizes, size_t n)
{
    lock_take(&s->upload_lock);
    bool whole = n > 0 && has_all(slot, numbers, sizes, n);
    struct extent *x = unstage_locked(slot);
    lock_drop(&s->upload_lock);
    if (x && whole)
        return x;
    extent_unref(x);
    return NULL;
}

/*
 * The death of extents: out of the table, the file unlinked, the records deleted by the writer.
 *
 * Order, and what a crash leaves behind: first the id goes into the doomed set, so that its records no longer
 * count; then it is noted (dying.c); then the file is unlinked; then the deletion of the records is queued. A
 * kill after the note leaves records that the next start deletes, with the file if it is still there. A crash
 * before it leaves the entry alive, which is right: nobody was told that it is gone, and what it names is a
 * whole version. A power loss may keep the unlink and lose the note: then the entry is dropped when it is
 * asked for.
 *
 * Failure modes: a disk on which neither a file can be unlinked nor its records deleted, as one that has
 * become read-only, has the entry again after a restart. Nobody is told that it is gone before the disk
 * counts as forgetful (store_n_forgetful). Evicted ones may come back: they are what they were.
 */
#include "base/hash.h"
#include "base/log.h"
#include "base/sys.h"
#include "store/store_internal.h"

#include <string.h>

#define RECORD_MAX (STORE_ATTR_MAX_BYTES + FORMAT_ENTRY_HEAD_BYTES)

static struct doomed **bucket_of(struct disk *d, struct id128 id)
{
    uint64_t h;
    memcpy(&h, id.b, sizeof(h)); /* ids are random */
    return &d->doomed[h % DOOMED_BUCKETS];
}

static struct doomed *contains_locked(struct disk *d, struct id128 id)
{
    struct doomed *m = *bucket_of(d, id);
    while (m && !id_eq(m->id, id))
        m = m->in_bucket;
    return m;
}

bool doom_contains(struct disk *d, struct id128 id)
{
    LOCK_SCOPE(&d->lock);
    return contains_locked(d, id) != NULL;
}

uint64_t doom_rounds(struct disk *d)
{
    LOCK_SCOPE(&d->lock);
    return d->doom_rounds;
}

static struct doomed *doomed_new(struct id128 id, struct slice key, uint32_t n_chunks)
{
    struct doomed *m = calloc(1, sizeof(*m) + key.n);
    if (!m)
        abort();
    m->id = id;
    m->n_chunks = n_chunks;
    m->place = DYING_NOWHERE;
    m->key_bytes = key.n;
    if (key.n > 0)
        memcpy(m->key, key.p, key.n);
    return m;
}

void doom_forget_locked(struct disk *d, struct doomed *m)
{
    struct doomed **at = bucket_of(d, m->id);
    while (*at && *at != m)
        at = &(*at)->in_bucket;
    if (*at)
        *at = m->in_bucket;
    d->doom_rounds++;
    dying_forget_locked(d, m);
    free(m);
}

static void add_locked(struct disk *d, struct doomed *m)
{
    struct doomed **b = bucket_of(d, m->id);
    m->in_bucket = *b;
    *b = m;
}

void doom_remember(struct disk *d, struct id128 id)
{
    struct doomed *m = doomed_new(id, SLICE_NULL, 0);
    LOCK_SCOPE(&d->lock);
    add_locked(d, m);
}

/* late_bytes: of late_unlink; 0: at once. */
static int unlink_file(struct disk *d, struct id128 id, uint64_t late_bytes)
{
    char path[DISK_PATH_MAX];
    disk_extent_path(d, id, path);
    int r = late_unlink(d, path, late_bytes);
    return r < 0 && r != -ENOENT ? disk_log_error(d, "unlink an extent file", r) : 0;
}

/* Of an entry that is not to come back; unlinked: of its file. */
static void see_to_it(struct disk *d, struct id128 id, int unlinked)
{
    lock_take(&d->lock);
    bool is_known = d->forgets;
    lock_drop(&d->lock);
    if (unlinked == 0 || is_known)
        return;
    writer_drain(d);
    if (doom_contains(d, id))
        disk_forgets(d);
}

static uint32_t chunks_of(uint64_t size)
{
    uint64_t blocks = format_blocks(size);
    return blocks <= 1 ? 0 : (uint32_t)((blocks + FORMAT_CHUNK_BLOCKS - 1) / FORMAT_CHUNK_BLOCKS);
}

static void set_shrink(struct store *s, uint32_t data_set, uint64_t bytes)
{
    LOCK_SCOPE(&s->sets_lock);
    evict_set_grow(s->sets, data_set, -(int64_t)bytes);
}

/* The result of the unlink. */
static int doom(struct extent *x, bool late)
{
    struct disk *d = x->disk;
    bool staged = __atomic_load_n(&x->staged, __ATOMIC_ACQUIRE);
    assert(!x->dead);
    lock_take(&x->lock);
    __atomic_store_n(&x->dead, true, __ATOMIC_RELEASE);
    uint32_t n_chunks = MAX(chunks_of(x->size), x->chunks_written);
    struct doomed *m = doomed_new(x->id, staged ? SLICE_NULL : x->key, n_chunks);
    uint64_t charged = x->charged;
    writer_pending(d, -(int64_t)x->n_pending);
    lock_take(&d->lock);
    d->leased_bytes += charged;
    d->extents -= !staged;
    add_locked(d, m);
    lock_drop(&d->lock);
    lock_drop(&x->lock);

    if (!staged) {
        set_shrink(x->store, x->data_set, extent_size(x));
        table_remove(x->store, x);
        if (__atomic_load_n(&x->refs, __ATOMIC_ACQUIRE) > 1) /* than the caller's */
            descriptors_hold(x);
        (void)store_tell_gone(x->store, x->key);
    }
    dying_note(d, m);
    int unlinked = unlink_file(d, m->id, late ? extent_size(x) : 0);
    m->has_file = unlinked < 0;
    writer_queue_doomed(d, m);
    return unlinked;
}

void doom_victim(struct extent *x)
{
    (void)doom(x, /* late= */ false);
}

/* As doom. is_lost: its record is not in the index any more. */
static int doom_entry(struct disk *d, struct slice key, const struct format_entry *r, bool late, bool is_lost)
{
    struct doomed *m = doomed_new(r->id, key, chunks_of(r->size_bytes));
    uint64_t charge = format_charge(r->size_bytes, r->present_blocks);
    m->is_lost = is_lost;
    m->lost_bytes = is_lost ? charge : 0;
    lock_take(&d->lock);
    add_locked(d, m);
    d->extents -= d->extents > 0;
    lock_drop(&d->lock);
    set_shrink(d->store, r->data_set, r->size_bytes);
    dying_note(d, m);
    int unlinked = unlink_file(d, m->id, late ? charge : 0);
    m->has_file = unlinked < 0;
    space_give(d, charge, charge, 0);
    writer_queue_doomed(d, m);
    return unlinked;
}

void doom_victim_record(struct disk *d, struct slice key, const struct format_entry *r)
{
    (void)doom_entry(d, key, r, /* late= */ false, /* is_lost= */ false);
}

static void tell_removed(struct store *s, struct slice key, uint64_t bytes)
{
    if (s->removed && key.n > 0)
        s->removed(s->keep_arg, key, bytes);
}

void doom_extent(struct extent *x)
{
    bool staged = __atomic_load_n(&x->staged, __ATOMIC_ACQUIRE);
    if (!staged)
        tell_removed(x->store, x->key, extent_present_bytes(x));
    int unlinked = doom(x, /* late= */ true);
    if (!staged) /* which no entry names; and the writer may be who lets go of it */
        see_to_it(x->disk, x->id, unlinked);
}

void doom_record(struct disk *d, struct slice key, const struct format_entry *r)
{
    tell_removed(d->store, key, record_present_bytes(r));
    see_to_it(d, r->id, doom_entry(d, key, r, /* late= */ true, /* is_lost= */ false));
}

int doom_lost(struct disk *d, struct slice key, const struct format_entry *r)
{
    tell_removed(d->store, key, record_present_bytes(r));
    return doom_entry(d, key, r, /* late= */ true, /* is_lost= */ true);
}

void doom_bad_record(struct disk *d, struct slice index_key)
{
    struct id128 nobody;
    id_new(&nobody);
    struct doomed *m = doomed_new(nobody, index_key, 0);
    m->raw = true;
    lock_take(&d->lock);
    add_locked(d, m);
    lock_drop(&d->lock);
    writer_queue_doomed(d, m);
}

int doom_key(struct store *s, struct slice key, uint64_t hash)
{
    int result = -ENOENT, error = 0;
    struct extent *x = table_find(s, key, hash);
    if (x) {
        doom_extent(x);
        extent_unref(x);
        result = 0;
    }
    /* Other disks, or this one when the extent was not in memory. */
    struct buf _cleanup_buf_ b = BUF_INIT(RECORD_MAX);
    for (size_t i = 0; i < s->n_disks; i++) {
        struct format_entry r;
        int code = load_record(&s->disks[i], key, &r, &b);
        if (code == 0) {
            doom_record(&s->disks[i], key, &r);
            result = 0;
        } else if (code != -ENOENT && code != -EBADMSG) {
            disk_forgets(&s->disks[i]);
            error = error < 0 ? error : code; /* what the other disks have goes all the same */
        }
    }
    return error < 0 ? error : result;
}

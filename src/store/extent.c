/*
 * One extent in memory: what is present, what it counts, what is to be recorded.
 *
 * Presence is a bit per block. A block is *suspect* when it is present and was recorded in an epoch that is
 * not trusted; its bytes are compared before they are served (extent_verify.c). An extent is *whole* when
 * every block is present and none is suspect: the flag is read without the lock, so that warm reads take
 * none.
 *
 * Checksums are not kept in memory: what was filled and is not recorded yet waits in `pending` for the
 * writer; the rest is in the index. One-block extents are the exception, their checksum is part of the entry
 * record.
 *
 * Invariants (extent_check walks them):
 *  1. n_present and n_suspect count the bits of the maps; suspect blocks are present.
 *  2. A pending block that is not marked dropped is present.
 *  3. charged is at least what the present blocks count as, or the extent was trimmed and is not being
 * filled.
 */
#include "base/log.h"
#include "base/sys.h"
#include "store/store_internal.h"

#include <fcntl.h>
#include <string.h>

#define WORD_BITS 64

static bool bit(const uint64_t *map, uint32_t i)
{
    return map[i / WORD_BITS] >> (i % WORD_BITS) & 1;
}

static void bit_set(uint64_t *map, uint32_t i)
{
    map[i / WORD_BITS] |= (uint64_t)1 << (i % WORD_BITS);
}

static void bit_clear(uint64_t *map, uint32_t i)
{
    map[i / WORD_BITS] &= ~((uint64_t)1 << (i % WORD_BITS));
}

static size_t words(uint32_t blocks)
{
    return (blocks + WORD_BITS - 1) / WORD_BITS;
}

/* First bit at or after `from`, below n, that is `value`; n when there is none. */
static uint32_t bit_next(const uint64_t *map, uint32_t from, uint32_t n, bool value)
{
    while (from < n) {
        uint64_t w = map[from / WORD_BITS];
        w = (value ? w : ~w) >> (from % WORD_BITS);
        if (w)
            return MIN(from + (uint32_t)__builtin_ctzll(w), n);
        from = (from / WORD_BITS + 1) * WORD_BITS;
    }
    return n;
}

/* ---- making and freeing ---- */

struct extent *extent_new(struct disk *d, struct id128 id, uint64_t size)
{
    struct extent *x = calloc(1, sizeof(*x));
    if (!x)
        abort();
    x->magic = EXTENT_MAGIC;
    x->refs = 1;
    x->store = d->store;
    x->disk = d;
    x->id = id;
    x->fd = -1;
    x->fd_uses = FD_CLOSED;
    lock_init(&x->lock, LOCK_EXTENT);
    x->present = &x->one_word;
    x->blocks_room = WORD_BITS;
    extent_resize_maps_locked(x, size);
    return x;
}

void extent_free(struct extent *x)
{
    if (!x)
        return;
    assert(x->magic == EXTENT_MAGIC && x->refs == 0 && !x->dirty && !x->in_lru);
    if (x->dead)
        space_give(x->disk, x->charged, x->written, x->charged);
    descriptors_remove(x);
    if (x->present != &x->one_word)
        free(x->present);
    free(x->suspect);
    free(x->pending);
    free(x->attr);
    char *key = (char *)(uintptr_t)x->key.p;
    free(key);
    lock_fini(&x->lock);
    x->magic = 0;
    free(x);
}

uint64_t extent_memory_bytes(const struct extent *x)
{
    /* The descriptor's share of malloc's own bookkeeping is in the constant. */
    return sizeof(*x) + x->key.n + x->attr_bytes + x->blocks_room / 8 + 64;
}

void extent_set_key(struct extent *x, struct slice key, uint64_t hash)
{
    assert(!x->key.p);
    x->key = slice_of(slice_dup(key), key.n);
    x->hash = hash;
}

void extent_copy_attr_locked(struct extent *x, struct slice attr)
{
    free(x->attr);
    x->attr = attr.n > 0 ? slice_dup(attr) : NULL;
    x->attr_bytes = attr.n;
}

static void update_whole_locked(struct extent *x)
{
    bool whole = x->n_present == x->n_blocks && x->n_suspect == 0 && !x->staged;
    __atomic_store_n(&x->whole, whole, __ATOMIC_RELEASE);
}

void extent_resize_maps_locked(struct extent *x, uint64_t size)
{
    uint32_t n = (uint32_t)format_blocks(size);
    assert(size <= STORE_SIZE_MAX_BYTES && !x->suspect);
    if (n > x->blocks_room) {
        uint32_t room = (uint32_t)words(MAX(n, x->blocks_room * 2)) * WORD_BITS;
        uint64_t *map = calloc(words(room), sizeof(map[0]));
        if (!map)
            abort();
        memcpy(map, x->present, words(x->blocks_room) * sizeof(map[0]));
        if (x->present != &x->one_word)
            free(x->present);
        x->present = map;
        x->blocks_room = room;
    }
    for (uint32_t b = bit_next(x->present, n, x->blocks_room, true); b < x->blocks_room;
         b = bit_next(x->present, b, x->blocks_room, true)) {
        bit_clear(x->present, b);
        x->n_present--;
    }
    x->n_blocks = n;
    __atomic_store_n(&x->size, size, __ATOMIC_RELEASE);
    update_whole_locked(x);
}

/* ---- what callers may ask ---- */

uint64_t extent_size(const struct extent *x)
{
    assert(x->magic == EXTENT_MAGIC);
    return __atomic_load_n(&x->size, __ATOMIC_ACQUIRE);
}

struct id128 extent_data_id(const struct extent *x)
{
    return x->id;
}

int extent_fd(const struct extent *x)
{
    assert(x->magic == EXTENT_MAGIC && (x->fd_uses & ~FD_CLOSED) > 0);
    return x->fd;
}

int extent_open_fd(struct extent *x, int flags)
{
    assert(x->magic == EXTENT_MAGIC);
    if ((flags & O_ACCMODE) != O_RDONLY && !__atomic_load_n(&x->staged, __ATOMIC_ACQUIRE))
        return -EACCES;
    char path[DISK_PATH_MAX];
    disk_extent_path(x->disk, x->id, path);
    int fd = sys->open(path, (flags & O_ACCMODE) | O_CLOEXEC | O_NOFOLLOW, 0);
    if (fd >= 0)
        extent_see_end(x, fd);
    if (fd != -ENOENT)
        return fd;
    /* Unlinked since: the descriptor that was kept open for that leads to the file. */
    int own = extent_use(x);
    if (own < 0)
        return own;
    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", own);
    fd = sys->open(path, (flags & O_ACCMODE) | O_CLOEXEC, 0);
    extent_leave(x);
    return fd;
}

int extent_attr(struct extent *x, struct buf *ret)
{
    LOCK_SCOPE(&x->lock);
    return buf_append(ret, x->attr, x->attr_bytes);
}

struct slice extent_attr_in(struct extent *x, struct arena *a)
{
    LOCK_SCOPE(&x->lock);
    return arena_dup(a, slice_of(x->attr, x->attr_bytes));
}

int extent_set_attr(struct extent *x, struct slice attr)
{
    if (attr.n > STORE_ATTR_MAX_BYTES)
        return -E2BIG;
    LOCK_SCOPE(&x->lock);
    extent_copy_attr_locked(x, attr);
    x->entry_changed = true;
    if (x->staged)
        return 0;
    if (!writer_records(x->disk))
        return -EIO;
    writer_queue(x);
    return 0;
}

int extent_record_attr(struct extent *x)
{
    struct disk *d = x->disk;
    assert(x->magic == EXTENT_MAGIC);
    if (writer_drain(d))
        return 0;
    if (!writer_records(d))
        return -EIO;
    LOCK_SCOPE(&d->lock);
    return x->dirty || __atomic_load_n(&x->left, __ATOMIC_ACQUIRE) ? -EIO : 0;
}

/* As of a round that failed after it was called nothing is under way without a mark: what is queued is dirty,
 * and what the round could not commit was left. */
int extent_record_blocks(struct extent *x)
{
    struct disk *d = x->disk;
    assert(x->magic == EXTENT_MAGIC);
    if (writer_drain(d))
        return 0;
    LOCK_SCOPE(&d->lock);
    return x->dirty || __atomic_load_n(&x->left, __ATOMIC_ACQUIRE) ? -EIO : 0;
}

bool extent_is_dead(struct extent *x)
{
    return __atomic_load_n(&x->dead, __ATOMIC_ACQUIRE);
}

uint64_t extent_present_bytes(struct extent *x)
{
    if (__atomic_load_n(&x->whole, __ATOMIC_ACQUIRE))
        return extent_size(x);
    LOCK_SCOPE(&x->lock);
    uint64_t size = x->size, n = (uint64_t)x->n_present * STORE_BLOCK_BYTES;
    /* The last block is shorter. */
    if (x->n_blocks > 0 && bit(x->present, x->n_blocks - 1))
        n -= (uint64_t)x->n_blocks * STORE_BLOCK_BYTES - size;
    return n;
}

void extent_place(const struct extent *x, struct store_place *ret)
{
    assert(x->magic == EXTENT_MAGIC);
    static_assert(sizeof(ret->file) >= DISK_PATH_MAX, "room for any path");
    (void)snprintf(ret->disk, sizeof(ret->disk), "%s", x->disk->path);
    disk_extent_path(x->disk, x->id, ret->file);
}

void extent_count(struct extent *x, struct extent_counts *ret)
{
    LOCK_SCOPE(&x->lock);
    *ret = (struct extent_counts){.blocks = x->n_blocks,
                                  .present = x->n_present,
                                  .suspect = x->n_suspect,
                                  .last_read_ms = __atomic_load_n(&x->last_read_ms, __ATOMIC_RELAXED)};
}

int extent_next_missing(struct extent *x, uint64_t offset, uint64_t *ret_offset, uint64_t *ret_n)
{
    uint64_t size = extent_size(x);
    if (offset >= size || __atomic_load_n(&x->whole, __ATOMIC_ACQUIRE))
        return -ENOENT;
    LOCK_SCOPE(&x->lock);
    uint32_t first = bit_next(x->present, (uint32_t)(offset / STORE_BLOCK_BYTES), x->n_blocks, false);
    if (first >= x->n_blocks)
        return -ENOENT;
    uint32_t end = bit_next(x->present, first, x->n_blocks, true);
    *ret_offset = (uint64_t)first * STORE_BLOCK_BYTES;
    *ret_n = MIN((uint64_t)end * STORE_BLOCK_BYTES, size) - *ret_offset;
    return 0;
}

bool extent_has_block_locked(const struct extent *x, uint32_t block)
{
    return block < x->n_blocks && bit(x->present, block);
}

/* ---- changes of presence ---- */

static void pending_add_locked(struct extent *x, struct pending p)
{
    if (x->n_pending == x->pending_room) {
        x->pending_room = MAX(x->pending_room * 2, 8);
        x->pending = realloc(x->pending, x->pending_room * sizeof(p));
        if (!x->pending)
            abort();
    }
    x->pending[x->n_pending++] = p;
    /* Nobody waits for the records of a dead extent; its checksums are still asked for. */
    if (!x->dead)
        writer_pending(x->disk, 1);
}

/* Brings the count of bytes in files up to date with the present blocks. */
static void written_update_locked(struct extent *x)
{
    uint64_t now = format_charge(x->size, x->n_present);
    now = MIN(now, x->charged);
    if (now != x->written)
        space_written(x->disk, (int64_t)(now - x->written));
    x->written = now;
}

static void record_locked(struct extent *x)
{
    if (x->dead || (x->staged && x->n_pending < STAGED_PENDING_MAX))
        return;
    writer_queue(x);
}

void extent_block_filled(struct extent *x, uint32_t block, uint32_t crc)
{
    LOCK_SCOPE(&x->lock);
    if (block >= x->n_blocks || bit(x->present, block))
        return;
    bit_set(x->present, block);
    x->n_present++;
    if (x->n_blocks == 1 && !x->staged)
        x->crc = crc;
    pending_add_locked(x, (struct pending){block, crc, false});
    x->entry_changed = true;
    written_update_locked(x);
    update_whole_locked(x);
    record_locked(x);
}

static void forget_block_locked(struct extent *x, uint32_t block)
{
    bit_clear(x->present, block);
    x->n_present--;
    if (x->suspect && bit(x->suspect, block)) {
        bit_clear(x->suspect, block);
        x->n_suspect--;
    }
    pending_add_locked(x, (struct pending){block, 0, true});
    x->entry_changed = true;
    written_update_locked(x);
    update_whole_locked(x);
    record_locked(x);
}

void extent_block_dropped(struct extent *x, uint32_t block, const char *found)
{
    bool dropped = false;
    lock_take(&x->lock);
    if (extent_has_block_locked(x, block)) {
        forget_block_locked(x, block);
        dropped = true;
    }
    lock_drop(&x->lock);
    if (!dropped)
        return;
    char id[ID_TEXT_SIZE];
    id_text(x->id, id);
    metrics_count(METRIC_CORRUPT_BLOCKS, x->disk->path, found, NULL);
    log_warn("store", "disk %s: extent %s of %s: block %u failed its check (%s); it will be fetched again",
             x->disk->path, id, format_key_text(x->key, (char[FORMAT_KEY_TEXT_MAX]){0}), block, found);
}

/* Staged: the checksum of a block is no longer known. */
void extent_block_forgotten_locked(struct extent *x, uint32_t block)
{
    if (extent_has_block_locked(x, block))
        forget_block_locked(x, block);
}

void extent_set_all_present_locked(struct extent *x)
{
    for (size_t w = 0; w < words(x->n_blocks); w++)
        x->present[w] = UINT64_MAX;
    if (x->n_blocks % WORD_BITS)
        x->present[x->n_blocks / WORD_BITS] = ((uint64_t)1 << (x->n_blocks % WORD_BITS)) - 1;
    x->n_present = x->n_blocks;
    update_whole_locked(x);
}

void extent_set_present_locked(struct extent *x, uint32_t block, bool suspect)
{
    assert(block < x->n_blocks);
    if (!bit(x->present, block)) {
        bit_set(x->present, block);
        x->n_present++;
    }
    if (suspect) {
        if (!x->suspect && !(x->suspect = calloc(words(x->blocks_room), sizeof(x->suspect[0]))))
            abort();
        if (!bit(x->suspect, block)) {
            bit_set(x->suspect, block);
            x->n_suspect++;
        }
    }
    update_whole_locked(x);
}

void extent_distrust_locked(struct extent *x)
{
    for (uint32_t b = 0; b < x->n_blocks; b++)
        if (bit(x->present, b))
            extent_set_present_locked(x, b, /* suspect= */ true);
}

/* What was read may still be on its way to the disk, where it is safe when the running epoch is durable: a
 * flush that fails before that finds the extent by blocks_epoch. */
static void note_epoch_locked(struct extent *x)
{
    lock_take(&x->disk->lock);
    x->blocks_epoch = MAX(x->blocks_epoch, x->disk->running);
    lock_drop(&x->disk->lock);
}

void extent_block_trusted(struct extent *x, uint32_t block, uint64_t lost_flushes)
{
    LOCK_SCOPE(&x->lock);
    if (!x->suspect || block >= x->n_blocks || !bit(x->suspect, block))
        return;
    note_epoch_locked(x);
    if (disk_lost_flushes(x->disk) != lost_flushes)
        return; /* what was read was perhaps among what was lost meanwhile */
    bit_clear(x->suspect, block);
    if (--x->n_suspect > 0)
        return;
    free(x->suspect);
    x->suspect = NULL;
    /* Recorded anew, so that it is not verified again after the next start. */
    x->entry_changed = x->chunks_changed = true;
    update_whole_locked(x);
    record_locked(x);
}

void extent_block_doubted(struct extent *x, uint32_t block)
{
    LOCK_SCOPE(&x->lock);
    if (!extent_has_block_locked(x, block))
        return;
    extent_set_present_locked(x, block, /* suspect= */ true);
    x->entry_changed = x->chunks_changed = true; /* it was perhaps recorded as one to be trusted */
    record_locked(x);
}

/* All that is present from a block on. */
static void distrust_from_locked(struct extent *x, uint32_t from)
{
    for (uint32_t b = from; b < x->n_blocks; b++) {
        uint64_t known = x->suspect ? x->suspect[b / WORD_BITS] : 0;
        if (b % WORD_BITS == 0 && (x->present[b / WORD_BITS] & ~known) == 0)
            b += WORD_BITS - 1;
        else if (bit(x->present, b))
            extent_set_present_locked(x, b, /* suspect= */ true);
    }
}

void extent_see_end(struct extent *x, int fd)
{
    struct stat st;
    uint64_t size = extent_size(x);
    if (__atomic_load_n(&x->staged, __ATOMIC_ACQUIRE) || x->store->read_only || sys->fstat(fd, &st) < 0 ||
        (uint64_t)st.st_size >= size)
        return;
    LOCK_SCOPE(&x->lock);
    uint32_t before = x->n_suspect;
    distrust_from_locked(x, (uint32_t)((uint64_t)st.st_size / STORE_BLOCK_BYTES));
    if (x->n_suspect == before)
        return;
    x->entry_changed = x->chunks_changed = true;
    record_locked(x);
}

void extent_record_anew(struct extent *x)
{
    LOCK_SCOPE(&x->lock);
    x->entry_changed = true;
    writer_queue(x);
}

void extent_doubt(struct extent *x, uint64_t offset, uint64_t n)
{
    uint64_t size = extent_size(x);
    if (offset >= size || n == 0 || __atomic_load_n(&x->staged, __ATOMIC_ACQUIRE))
        return;
    uint64_t last = (offset + MIN(n, size - offset) - 1) / STORE_BLOCK_BYTES;
    for (uint64_t b = offset / STORE_BLOCK_BYTES; b <= last; b++)
        extent_block_doubted(x, (uint32_t)b);
    int fd = extent_use(x);
    if (fd < 0)
        return;
    extent_see_end(x, fd);
    extent_leave(x);
}

uint32_t extent_trusted_run_locked(const struct extent *x, uint32_t block, uint32_t n_max, bool *ret_suspect)
{
    uint32_t end = (uint32_t)MIN((uint64_t)block + n_max, x->n_blocks);
    *ret_suspect = false;
    if (block >= end)
        return 0;
    uint32_t stop = bit_next(x->present, block, end, false);
    if (x->suspect && stop > block) {
        stop = bit_next(x->suspect, block, stop, true);
        *ret_suspect = stop < end && bit(x->suspect, stop);
    }
    return stop - block;
}

uint32_t extent_next_suspect(struct extent *x, uint32_t from)
{
    LOCK_SCOPE(&x->lock);
    uint32_t b = x->suspect ? bit_next(x->suspect, from, x->n_blocks, true) : x->n_blocks;
    return b < x->n_blocks ? b : UINT32_MAX;
}

bool extent_range_is_suspect_locked(const struct extent *x, uint32_t first, uint32_t n)
{
    uint32_t end = MIN(first + n, x->n_blocks);
    return x->suspect && bit_next(x->suspect, first, end, true) < end;
}

/* ---- space ---- */

int extent_reserve(struct extent *x, uint64_t want)
{
    for (;;) {
        lock_take(&x->lock);
        uint64_t charged = x->charged;
        uint32_t data_set = x->data_set;
        lock_drop(&x->lock);
        if (charged >= want)
            return 0;
        bool staged = __atomic_load_n(&x->staged, __ATOMIC_ACQUIRE); /* then the key is not its own yet */
        struct slice who = staged ? SLICE_NULL : x->key;
        uint64_t step = MIN(MAX(want - charged, CHARGE_STEP_BYTES),
                            MAX(format_charge(x->size, x->n_blocks), want) - charged);
        if (space_take(x->disk, step, data_set, who, x->forced) < 0) {
            /* Perhaps the bare need fits where the step ahead does not. */
            if (step == want - charged || space_take(x->disk, want - charged, data_set, who, x->forced) < 0)
                return -ENOSPC;
            step = want - charged;
        }
        lock_take(&x->lock);
        x->charged += step;
        if (x->dead)
            space_lease(x->disk, step);
        lock_drop(&x->lock);
    }
}

int extent_reserve_blocks(struct extent *x)
{
    lock_take(&x->lock);
    uint64_t want = format_charge(x->size, (uint64_t)x->n_present + x->n_in_flight);
    bool enough = x->charged >= want;
    lock_drop(&x->lock);
    return enough ? 0 : extent_reserve(x, want);
}

void extent_trim_charge(struct extent *x)
{
    LOCK_SCOPE(&x->lock);
    uint64_t need = format_charge(x->size, x->n_present);
    if (x->charged <= need || x->n_in_flight > 0 || x->staged || x->dead)
        return;
    space_give(x->disk, x->charged - need, 0, 0);
    x->charged = need;
    written_update_locked(x);
}

/* ---- checking ---- */

void extent_check(struct extent *x)
{
    assert(x->magic == EXTENT_MAGIC);
    LOCK_SCOPE(&x->lock);
    uint32_t present = 0, suspect = 0;
    for (uint32_t b = 0; b < x->blocks_room; b++) {
        present += bit(x->present, b);
        assert(b < x->n_blocks || !bit(x->present, b));
        if (!x->suspect || b >= x->n_blocks)
            continue;
        suspect += bit(x->suspect, b);
        assert(!bit(x->suspect, b) || bit(x->present, b));
    }
    assert(present == x->n_present && suspect == x->n_suspect);
    assert(x->n_blocks == format_blocks(x->size));
    assert(x->whole == (present == x->n_blocks && suspect == 0 && !x->staged));
    assert(x->written <= x->charged);
    for (uint32_t i = 0; i < x->n_pending; i++) {
        bool last = true;
        for (uint32_t k = i + 1; k < x->n_pending && last; k++)
            last = x->pending[k].block != x->pending[i].block;
        uint32_t b = x->pending[i].block;
        assert(!last || x->pending[i].dropped == !(b < x->n_blocks && bit(x->present, b)));
    }
}

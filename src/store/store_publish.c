/*
 * From a staged extent to a current one: the size is set, the checksums that are not known are computed by
 * reading back, and the extent takes the place of the former one under its key.
 *
 * Failure modes: every step that can fail comes before the former extent dies, so that on error the old entry
 * stays and the staged extent can still be written or let go of. When a flush of the disk failed since it was
 * staged, it is not published: nobody knows which of its bytes are lost.
 */
#include "base/crc32c.h"
#include "base/sys.h"
#include "store/store_internal.h"

#include <string.h>

/* Checksum of a block whose bytes are in the file. */
static int read_crc(struct extent *x, uint32_t block, char *buf, uint32_t *ret_crc)
{
    uint64_t offset = (uint64_t)block * STORE_BLOCK_BYTES;
    uint64_t n = MIN(extent_size(x) - offset, STORE_BLOCK_BYTES);
    int r = sys_pread_all(x->fd, buf, n, offset);
    if (r == 0)
        *ret_crc = crc32c(0, buf, n);
    return r;
}

/* The last block, when the run of writes in order ended in it and with the file. */
static void finish_run(struct extent *x)
{
    lock_take(&x->lock);
    uint64_t end = x->run_offset;
    bool known = !x->run_busy && end == x->size && end % STORE_BLOCK_BYTES != 0;
    uint32_t crc = x->run_crc;
    lock_drop(&x->lock);
    if (known)
        extent_block_filled(x, (uint32_t)(end / STORE_BLOCK_BYTES), crc);
}

static int seal_blocks(struct extent *x)
{
    _cleanup_free_ char *buf = NULL;
    finish_run(x);
    for (uint32_t b = 0; b < x->n_blocks; b++) {
        lock_take(&x->lock);
        bool known = extent_has_block_locked(x, b);
        lock_drop(&x->lock);
        if (known)
            continue;
        if (!buf && !(buf = malloc(STORE_BLOCK_BYTES)))
            abort();
        uint32_t crc = 0;
        writer_throttle(x->disk);
        int r = read_crc(x, b, buf, &crc);
        if (r < 0)
            return r;
        extent_block_filled(x, b, crc);
    }
    return 0;
}

/* A one-block extent keeps its checksum in the entry record. */
static int seal_single(struct extent *x)
{
    if (x->n_blocks != 1)
        return 0;
    uint32_t crc = 0;
    int r = extent_block_crc(x, 0, &crc);
    if (r < 0)
        return r;
    lock_take(&x->lock);
    x->crc = crc;
    lock_drop(&x->lock);
    return 0;
}

static int seal(struct extent *x, uint64_t size)
{
    int r = 0;
    if (extent_size(x) != size)
        r = extent_truncate(x, size);
    if (r == 0)
        r = extent_reserve(x, format_charge(size, format_blocks(size)));
    if (r == 0)
        r = seal_blocks(x);
    if (r == 0)
        r = seal_single(x);
    return r;
}

static void take_place(struct extent *x, const struct store_new *n, uint32_t data_set, uint64_t hash)
{
    struct disk *d = x->disk;
    extent_set_key(x, n->key, hash);
    lock_take(&x->lock);
    extent_copy_attr_locked(x, n->attr);
    x->data_set = data_set;
    x->forced = n->pinned_admission;
    x->last_read_ms = x->set_read_ms = x->recorded_read_ms = store_now_ms();
    __atomic_store_n(&x->staged, false, __ATOMIC_RELEASE);
    x->entry_changed = true;
    extent_resize_maps_locked(x, x->size); /* decides whether it is whole */
    lock_drop(&x->lock);
    extent_leave(x); /* from here on only those who use it keep it open */
    extent_trim_charge(x);
    lock_take(&d->lock);
    d->extents++;
    lock_drop(&d->lock);
}

static bool lost_writes(const struct extent *x)
{
    return disk_lost_flushes(x->disk) != x->lost_flushes;
}

/* Whoever distrusts what the disk lost finds extents in the table: a flush that failed just now was perhaps
 * too early for that. */
static void distrust_if_lost(struct extent *x)
{
    if (!lost_writes(x))
        return;
    LOCK_SCOPE(&x->lock);
    extent_distrust_locked(x);
}

int store_publish(struct store *s, struct extent *x, const struct store_new *n, struct err *e)
{
    assert(s && x && x->magic == EXTENT_MAGIC && x->staged && n);
    if (n->key.n == 0 || n->key.n > STORE_KEY_MAX_BYTES || n->attr.n > STORE_ATTR_MAX_BYTES ||
        n->size_bytes > STORE_SIZE_MAX_BYTES)
        return err_set(e, -EINVAL, "publish: key, attributes or size too large");
    int r = writer_check(x->disk, e);
    if (r < 0)
        return r;
    r = seal(x, n->size_bytes);
    if (r == 0 && lost_writes(x)) /* perhaps its bytes; checksums that were read back would vouch for that */
        r = -EIO;
    if (r < 0)
        return err_errno(e, r, "disk %s: publish %s", x->disk->path,
                         format_key_text(n->key, (char[FORMAT_KEY_TEXT_MAX]){0}));
    lock_take(&s->sets_lock);
    uint32_t data_set = evict_set_of(s->sets, n->key, n->data_set, store_now_ms());
    lock_drop(&s->sets_lock);

    struct key_owner o;
    table_begin(s, n->key, &o);
    r = doom_key(s, n->key, o.hash);
    if (r == 0 || r == -ENOENT) {
        take_place(x, n, data_set, o.hash);
        lock_take(&s->sets_lock);
        evict_set_grow(s->sets, data_set, (int64_t)n->size_bytes);
        lock_drop(&s->sets_lock);
        table_insert(s, x);
        distrust_if_lost(x);
        writer_queue(x);
        r = 0;
    }
    table_end(s, &o);
    return r < 0 ? err_errno(e, r, "disk %s: index", x->disk->path) : 0;
}

/*
 * Writing into extents: fetched bytes in order through a writer, staged bytes anywhere.
 *
 * Fetched bytes go straight from the caller's memory to the file; the checksum of the block that is being
 * written is kept on the way. A block that is already present is never written to: its bytes are taken and
 * forgotten.
 *
 * Staged extents. What is "present" in a staged extent is only known by checksum: a run of writes in order
 * has its checksums computed on the way, every other write (a stray) makes the blocks it touches unknown, and
 * publishing reads those back. A run that overlaps in time with a stray keeps its bytes but not its checksum.
 *
 * Failure modes: a failed or short write leaves the block missing (staged: unknown); all others stay as they
 * are.
 */
#include "base/crc32c.h"
#include "base/sys.h"
#include "store/store_internal.h"

#include <fcntl.h>
#include <string.h>

#define WRITER_MAGIC 0x57524931u

struct extent_writer {
    uint32_t magic;
    struct extent *x;
    int fd; /* -1: not in use yet */
    uint64_t offset;
    uint64_t sent;         /* pages before this were sent to the disk */
    uint64_t lost_flushes; /* of the disk when the block was begun */
    uint32_t crc;          /* of the unfinished block */
    bool in_block;         /* counted in x->n_in_flight */
    bool skip;             /* the block is present already */
};

struct extent_writer *extent_writer_new(struct extent *x, uint64_t offset)
{
    assert(x && x->magic == EXTENT_MAGIC && offset % STORE_BLOCK_BYTES == 0);
    struct extent_writer *w = calloc(1, sizeof(*w));
    if (!w)
        abort();
    *w = (struct extent_writer){
        .magic = WRITER_MAGIC, .x = extent_ref(x), .fd = -1, .offset = offset, .sent = offset};
    return w;
}

static void leave_block(struct extent_writer *w)
{
    if (!w->in_block)
        return;
    w->in_block = false;
    lock_take(&w->x->lock);
    w->x->n_in_flight--;
    lock_drop(&w->x->lock);
}

void extent_writer_free(struct extent_writer *w)
{
    if (!w)
        return;
    assert(w->magic == WRITER_MAGIC);
    leave_block(w);
    if (w->fd >= 0)
        extent_leave(w->x);
    extent_unref(w->x);
    w->magic = 0;
    free(w);
}

uint64_t extent_writer_offset(const struct extent_writer *w)
{
    return w->offset;
}

static int enter_block(struct extent_writer *w)
{
    struct extent *x = w->x;
    uint32_t block = (uint32_t)(w->offset / STORE_BLOCK_BYTES);
    writer_throttle(x->disk);
    lock_take(&x->lock);
    w->skip = extent_has_block_locked(x, block);
    w->in_block = !w->skip;
    x->n_in_flight += w->in_block;
    lock_drop(&x->lock);
    w->crc = 0;
    w->lost_flushes = disk_lost_flushes(x->disk);
    int r = w->skip ? 0 : extent_reserve_blocks(x);
    if (r < 0)
        leave_block(w);
    return r;
}

/* Dirty pages go out early, so that the end of an epoch has little left to write. */
static void send_pages(struct extent_writer *w)
{
    if (w->offset - w->sent < WRITEBACK_BYTES)
        return;
    (void)sys->sync_file_range(w->fd, w->sent, w->offset - w->sent, SYNC_FILE_RANGE_WRITE);
    w->sent = w->offset;
}

/* A flush that fails from now on finds the block recorded or to be recorded, and distrusts it. */
static void block_whole(struct extent_writer *w, uint32_t block)
{
    extent_block_filled(w->x, block, w->crc);
    if (disk_lost_flushes(w->x->disk) != w->lost_flushes)
        extent_block_doubted(w->x, block);
}

int extent_writer_append(struct extent_writer *w, const void *p, size_t n)
{
    assert(w && w->magic == WRITER_MAGIC);
    struct extent *x = w->x;
    uint64_t size = extent_size(x);
    if (n > size || w->offset > size - n)
        return -EINVAL;
    if (w->fd < 0) {
        if ((w->fd = extent_use(x)) < 0)
            return w->fd;
        extent_see_end(x, w->fd);
    }
    for (size_t done = 0; done < n;) {
        const char *bytes = (const char *)p + done;
        size_t in_block = w->offset % STORE_BLOCK_BYTES;
        int r = 0;
        if (in_block == 0 || !(w->in_block || w->skip))
            r = in_block == 0 ? enter_block(w) : -EIO; /* an earlier append of this block failed */
        size_t part = MIN(n - done, STORE_BLOCK_BYTES - in_block);
        if (r == 0 && !w->skip)
            r = sys_pwrite_all(w->fd, bytes, part, w->offset);
        if (r < 0) {
            leave_block(w);
            w->skip = false;
            return r;
        }
        w->crc = crc32c(w->crc, bytes, part);
        w->offset += part;
        done += part;
        if (w->offset % STORE_BLOCK_BYTES == 0 || w->offset == size) {
            if (!w->skip)
                block_whole(w, (uint32_t)((w->offset - 1) / STORE_BLOCK_BYTES));
            leave_block(w);
            w->skip = false;
            send_pages(w);
        }
    }
    return 0;
}

/* ---- staged extents ---- */

static void forget_range_locked(struct extent *x, uint64_t offset, size_t n)
{
    if (n == 0)
        return;
    for (uint64_t b = offset / STORE_BLOCK_BYTES; b <= (offset + n - 1) / STORE_BLOCK_BYTES; b++)
        extent_block_forgotten_locked(x, (uint32_t)b);
}

/* Continues the run with bytes that are in the file: gives the checksums of the blocks it finishes to the
 * index. */
static void run_advance(struct extent *x, const char *p, size_t n, bool known)
{
    uint64_t offset = x->run_offset;
    uint32_t crc = x->run_crc;
    while (n > 0) {
        size_t part = MIN(n, STORE_BLOCK_BYTES - offset % STORE_BLOCK_BYTES);
        crc = crc32c(offset % STORE_BLOCK_BYTES ? crc : 0, p, part);
        offset += part;
        p += part;
        n -= part;
        if (offset % STORE_BLOCK_BYTES == 0 && known)
            extent_block_filled(x, (uint32_t)(offset / STORE_BLOCK_BYTES - 1), crc);
    }
    lock_take(&x->lock);
    x->run_offset = known ? offset : UINT64_MAX;
    x->run_crc = crc;
    x->run_busy = false;
    lock_drop(&x->lock);
}

int extent_write(struct extent *x, const void *p, size_t n, uint64_t offset)
{
    assert(x && x->magic == EXTENT_MAGIC && x->staged);
    if (n == 0)
        return 0;
    if (n > STORE_SIZE_MAX_BYTES || offset > STORE_SIZE_MAX_BYTES - n)
        return -EFBIG;
    writer_throttle(x->disk);
    uint64_t end = offset + n;
    int r = extent_reserve(x, MAX(end, extent_size(x)));
    if (r < 0)
        return ERR_NOT_ADMITTED;

    lock_take(&x->lock);
    forget_range_locked(x, offset, n);
    bool run = offset == x->run_offset && !x->run_busy;
    bool alone = x->strays_busy == 0;
    x->run_busy |= run;
    uint64_t strays = x->stray += !run;
    x->strays_busy += !run;
    /* A stray in front of the run's unfinished block does not hurt it; one inside does. */
    if (!run && x->run_offset != UINT64_MAX && offset < x->run_offset &&
        end > ALIGN_DOWN(x->run_offset, STORE_BLOCK_BYTES) && !x->run_busy)
        x->run_offset = UINT64_MAX;
    lock_drop(&x->lock);

    r = sys_pwrite_all(x->fd, p, n, offset);

    lock_take(&x->lock);
    if (r == 0 && end > x->size)
        extent_resize_maps_locked(x, end);
    if (!run) {
        x->strays_busy--;
        forget_range_locked(x, offset, n);
    }
    bool known = r == 0 && alone && x->stray == strays;
    lock_drop(&x->lock);
    if (run)
        run_advance(x, p, r == 0 ? n : 0, known);
    return r;
}

/* Every block from the one that is cut or grown on. */
static void forget_from_locked(struct extent *x, uint64_t block)
{
    for (uint64_t b = block; b < x->n_blocks; b++)
        extent_block_forgotten_locked(x, (uint32_t)b);
}

int extent_truncate(struct extent *x, uint64_t size)
{
    assert(x && x->magic == EXTENT_MAGIC && x->staged);
    if (size > STORE_SIZE_MAX_BYTES)
        return -EFBIG;
    uint64_t old = extent_size(x);
    if (size > old && extent_reserve(x, size) < 0)
        return ERR_NOT_ADMITTED;
    lock_take(&x->lock);
    x->stray++;
    x->strays_busy++;
    uint64_t from = MIN(size, old) / STORE_BLOCK_BYTES;
    forget_from_locked(x, from);
    if (x->run_offset > from * STORE_BLOCK_BYTES && !(x->run_offset == size && size == old))
        x->run_offset = UINT64_MAX;
    lock_drop(&x->lock);
    int r = sys->ftruncate(x->fd, size);
    lock_take(&x->lock);
    x->strays_busy--;
    forget_from_locked(x, from);
    if (r == 0)
        extent_resize_maps_locked(x, size);
    lock_drop(&x->lock);
    return r;
}

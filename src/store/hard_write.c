/*
 * The node's own writes into hard extents, and what begins and ends any writing.
 *
 * Bytes written in order from the first on are checksummed on the way (the *run*), so that what was put whole
 * is sealed without being read back. The run ends for good with a write elsewhere, or when a writable
 * descriptor leaves; truncating to nothing begins a new one while none is out.
 *
 * Failure modes: a failed or short write ends the run; what is in the file then is read when it is measured.
 * A failed hard_begin_writing leaves the file as it was: still sealed, or unsettled without having changed.
 */
#include "base/crc32c.h"
#include "base/sys.h"
#include "store/hard_internal.h"

#include <fcntl.h>

#define PAGE_BYTES  4096      /* what a write is rounded to when space is taken for it */
#define SEND_BYTES  MIB       /* written pages are sent to the disk after so many; a PUT ends with a sync */
#define EARLY_BYTES (4 * MIB) /* and synced after so many (hard_early.c) */

static struct hard_shard *shard(const struct hard *h)
{
    return hard_shard_of(h->store, h->id);
}

static int say(struct hard *h, int r, const char *what, struct err *e)
{
    char hex[ID_TEXT_SIZE];
    id_text(h->id, hex);
    return err_errno(e, r, "disk %s: %s hard extent %s", h->disk->path, what, hex);
}

/* ---- beginning and ending ---- */

/* Takes the hard record away. By the one who made h busy. */
static int unseal(struct hard *h)
{
    struct hard_change c = {.kind = HARD_UNSEAL, .id = h->id};
    return hard_commit(h->disk, &c, 1);
}

int hard_begin_writing(struct hard *h, struct err *e)
{
    assert(h && h->magic == HARD_MAGIC);
    if (h->store->read_only)
        return err_set(e, -EROFS, "the store is open read-only");
    struct hard_shard *t = shard(h);
    int r = 0;
    lock_take(&t->lock);
    hard_wait_idle_locked(t, h);
    __atomic_add_fetch(&h->changes, 1, __ATOMIC_RELEASE);
    h->pristine = false;
    if (h->measured)
        hard_drop_sums_locked(h);
    if (h->removed) {
        r = -ENOENT;
    } else if (h->head_may_exist) {
        h->busy = true;
        lock_drop(&t->lock);
        r = unseal(h);
        lock_take(&t->lock);
        h->busy = false;
        h->head_may_exist = r < 0;
        hard_set_sealed_locked(h, false);
        if (r == 0)
            hard_set_twice_locked(h, false);
        cond_broadcast(&t->idle);
    }
    h->writers += r == 0;
    lock_drop(&t->lock);
    return r < 0 ? say(h, r, "write to", e) : 0;
}

void hard_end_writing(struct hard *h)
{
    assert(h && h->magic == HARD_MAGIC);
    struct hard_shard *t = shard(h);
    struct stat st;
    lock_take(&t->lock);
    assert(h->writers > 0);
    bool last = --h->writers == 0;
    int fd = last ? TAKE_FD(h->write_fd) : -1;
    h->ahead = last ? 0 : h->ahead;
    lock_drop(&t->lock);
    if (fd >= 0)
        (void)sys->close(fd);
    if (last && sys->fstat(h->fd, &st) == 0)
        hard_account(h, hard_bytes_of(&st));
}

/* The descriptor for the node's writes, opened by the first of them. */
static int writable(struct hard *h)
{
    struct hard_shard *t = shard(h);
    lock_take(&t->lock);
    assert(h->writers > 0);
    h->blank = false;
    int fd = h->write_fd;
    lock_drop(&t->lock);
    if (fd >= 0)
        return fd;
    fd = hard_open_path(h, O_WRONLY);
    if (fd < 0)
        return fd;
    lock_take(&t->lock);
    int mine = fd;
    if (h->write_fd < 0)
        h->write_fd = TAKE_FD(mine);
    fd = h->write_fd;
    lock_drop(&t->lock);
    if (mine >= 0)
        (void)sys->close(mine);
    return fd;
}

/* ---- space ---- */

/* Bytes to be taken for a write of n bytes; 0 when enough is counted. */
static uint64_t needed_locked(const struct hard *h, size_t n)
{
    uint64_t need = h->allocated + h->grown + ALIGN_UP(n, PAGE_BYTES);
    if (need <= h->charged)
        return 0;
    return need - h->charged + (need > HARD_STEP ? HARD_STEP : 0);
}

/* Takes space for a write of n bytes. -ENOSPC when even eviction makes no room. */
static int reserve(struct hard *h, size_t n)
{
    struct hard_shard *t = shard(h);
    struct stat st;
    lock_take(&t->lock);
    uint64_t need = needed_locked(h, n);
    bool guessed = h->grown > 0;
    lock_drop(&t->lock);
    if (need > 0 && guessed) {
        /* Overwriting takes no space: see what the writes so far took. */
        int r = sys->fstat(h->fd, &st);
        if (r < 0)
            return r;
        hard_account(h, hard_bytes_of(&st));
        lock_take(&t->lock);
        need = needed_locked(h, n);
        lock_drop(&t->lock);
    }
    if (need > 0) {
        uint64_t bare = ALIGN_UP(n, PAGE_BYTES);
        if (space_take(h->disk, need, HARD_NO_SET, SLICE_NULL, /* force= */ true) < 0) {
            need = MIN(need, bare);
            if (space_take(h->disk, need, HARD_NO_SET, SLICE_NULL, /* force= */ true) < 0)
                return -ENOSPC;
        }
        space_written(h->disk, (int64_t)need);
        lock_take(&h->disk->lock);
        h->disk->hard->bytes += need;
        lock_drop(&h->disk->lock);
    }
    lock_take(&t->lock);
    h->charged += need;
    h->written += need;
    h->grown += ALIGN_UP(n, PAGE_BYTES);
    lock_drop(&t->lock);
    return 0;
}

/* ---- writing ---- */

/* Continues the run with bytes that are in the file. By the one who made it busy. */
static int advance(struct hard *h, const char *p, size_t n, struct err *e)
{
    uint64_t offset = h->run_offset;
    uint32_t crc = h->run_crc;
    int r = 0;
    while (n > 0 && r == 0) {
        size_t part = MIN(n, STORE_BLOCK_BYTES - offset % STORE_BLOCK_BYTES);
        crc = crc32c(offset % STORE_BLOCK_BYTES ? crc : 0, p, part);
        offset += part;
        p += part;
        n -= part;
        if (offset % STORE_BLOCK_BYTES == 0)
            r = hard_sums_add(h, h->sums, offset / STORE_BLOCK_BYTES - 1, crc, e);
    }
    h->run_offset = offset;
    h->run_crc = crc;
    return r;
}

static void send_pages(struct hard *h, int fd)
{
    if (h->run_offset - h->sent < SEND_BYTES)
        return;
    (void)sys->sync_file_range(fd, h->sent, h->run_offset - h->sent, SYNC_FILE_RANGE_WRITE);
    h->sent = h->run_offset;
    if (h->sent - h->early >= EARLY_BYTES) {
        h->early = h->sent;
        hard_early_sync(h);
    }
}

/* Whether a write at this offset continues the run; it is then the only one to do so. */
static bool begin_run(struct hard *h, uint64_t offset)
{
    struct hard_shard *t = shard(h);
    LOCK_SCOPE(&t->lock);
    h->dirty = true;
    bool run = h->run_ok && !h->run_busy && offset == h->run_offset;
    h->run_ok = run;
    h->run_busy |= run;
    if (run && !h->sums)
        h->sums = hard_sums_new();
    return run;
}

/* The bytes are in the file: a sync that began before may have ended without them. */
static void end_write(struct hard *h, bool run, bool ok)
{
    struct hard_shard *t = shard(h);
    LOCK_SCOPE(&t->lock);
    h->dirty = true;
    if (!run)
        return;
    h->run_busy = false;
    h->run_ok &= ok;
}

int hard_write(struct hard *h, const void *p, size_t n, uint64_t offset, struct err *e)
{
    assert(h && h->magic == HARD_MAGIC && (p || n == 0));
    if (n == 0)
        return 0;
    if (offset > (uint64_t)INT64_MAX - n)
        return say(h, -EFBIG, "write to", e);
    int fd = writable(h);
    int r = fd < 0 ? fd : reserve(h, n);
    if (r < 0)
        return say(h, r, "write to", e);
    bool run = begin_run(h, offset);
    r = sys_pwrite_all(fd, p, n, offset);
    /* Checksums that cannot be kept are no harm: they are computed again when it is measured. */
    int known = r < 0 || !run ? r : advance(h, p, n, NULL);
    if (run && known == 0)
        send_pages(h, fd);
    end_write(h, run, known == 0);
    return r < 0 ? say(h, r, "write to", e) : 0;
}

int hard_truncate(struct hard *h, uint64_t size, struct err *e)
{
    assert(h && h->magic == HARD_MAGIC);
    struct hard_shard *t = shard(h);
    if (size > (uint64_t)INT64_MAX)
        return say(h, -EFBIG, "truncate", e);
    int fd = writable(h);
    if (fd < 0)
        return say(h, fd, "truncate", e);
    lock_take(&t->lock);
    h->dirty = true;
    h->run_ok = h->run_ok && !h->run_busy && size == h->run_offset;
    lock_drop(&t->lock);
    int r = sys->ftruncate(fd, size);
    if (r < 0)
        return say(h, r, "truncate", e);
    lock_take(&t->lock);
    h->dirty = true; /* as in end_write */
    if (size == 0 && !h->handed && !h->run_busy) {
        hard_drop_sums_locked(h);
        h->run_ok = true;
        h->run_offset = h->sent = h->early = 0;
        h->run_crc = 0;
    }
    lock_drop(&t->lock);
    struct stat st;
    if (sys->fstat(h->fd, &st) == 0)
        hard_account(h, hard_bytes_of(&st));
    return 0;
}

int hard_set_mtime(struct hard *h, int64_t mtime_ns, struct err *e)
{
    assert(h && h->magic == HARD_MAGIC);
    int64_t s = mtime_ns / 1000000000, ns = mtime_ns % 1000000000;
    struct timespec times[2] = {{.tv_nsec = UTIME_OMIT},
                                {.tv_sec = s - (ns < 0), .tv_nsec = ns < 0 ? ns + 1000000000 : ns}};
    int r = sys->futimens(h->fd, times);
    if (r < 0)
        return say(h, r, "set the time of", e);
    struct hard_shard *t = shard(h);
    LOCK_SCOPE(&t->lock);
    h->synced = false; /* fdatasync may leave times behind */
    h->has_blank_time = !h->handed;
    h->blank_mtime_ns = mtime_ns;
    return 0;
}

static int sync_file(struct hard *h, bool times, struct err *e)
{
    assert(h && h->magic == HARD_MAGIC);
    struct hard_shard *t = shard(h);
    lock_take(&t->lock);
    bool whole = times || !h->synced;
    h->dirty = h->handed;
    h->syncing++;
    lock_drop(&t->lock);
    int r = whole ? sys->fsync(h->fd) : sys->fdatasync(h->fd);
    lock_take(&t->lock);
    h->synced |= whole && r == 0;
    h->dirty |= r < 0;
    h->syncing--;
    lock_drop(&t->lock);
    return r < 0 ? say(h, r, "sync", e) : 0;
}

int hard_sync(struct hard *h, struct err *e)
{
    return sync_file(h, /* times= */ false, e);
}

int hard_sync_times(struct hard *h, struct err *e)
{
    return sync_file(h, /* times= */ true, e);
}

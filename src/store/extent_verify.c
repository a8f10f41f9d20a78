/*
 * Reading with suspicion: which bytes may be served, and the comparison of blocks with their checksums.
 *
 * Invariant: a run that extent_present_run gives lies in present blocks none of which was suspect when it was
 * given.
 *
 * Failure modes: a block whose bytes do not match, cannot be read, or whose checksum is lost is dropped: it
 * reads as missing and is fetched again. Where the index does not tell the checksum it is asked again for a
 * moment; a reader does not wait longer for what the origin has, too. Disk reads happen without any lock; a
 * block that is dropped and filled again meanwhile is dropped a second time at worst.
 */
#include "base/crc32c.h"
#include "base/log.h"
#include "base/sys.h"
#include "store/store_internal.h"

#include <fcntl.h>
#include <string.h>

#define FORGET_BYTES (2 * MIB) /* the kernel may keep pages in pieces as large */
#define DIRECT_ALIGN 4096
#define ASK_TRIES    10
#define ASK_PAUSE_NS (20 * (uint64_t)1000000)

static uint64_t block_bytes(const struct extent *x, uint32_t block)
{
    return MIN(extent_size(x) - (uint64_t)block * STORE_BLOCK_BYTES, STORE_BLOCK_BYTES);
}

char *extent_block_buffer(void)
{
    void *p = NULL;
    if (posix_memalign(&p, DIRECT_ALIGN, STORE_BLOCK_BYTES) != 0)
        abort();
    return p;
}

int extent_block_crc(struct extent *x, uint32_t block, uint32_t *ret_crc)
{
    lock_take(&x->lock);
    int found = extent_has_block_locked(x, block) ? 0 : -ENOENT;
    bool single = x->n_blocks == 1 && !x->staged;
    if (found == 0 && single)
        *ret_crc = x->crc;
    for (uint32_t i = x->n_pending; i-- > 0 && found == 0 && !single;) {
        if (x->pending[i].block == block) {
            *ret_crc = x->pending[i].crc;
            found = 1;
        }
    }
    lock_drop(&x->lock);
    if (found != 0 || single)
        return MIN(found, 0);
    struct format_key k;
    struct buf _cleanup_buf_ b = BUF_INIT(FORMAT_CHUNK_MAX_BYTES);
    struct format_chunk c;
    format_key_chunk(x->id, block / FORMAT_CHUNK_BLOCKS, &k);
    uint32_t i = block % FORMAT_CHUNK_BLOCKS;
    int r = kv_get(x->disk->kv, format_key_view(&k), &b, NULL, NULL);
    if (r == 0)
        r = format_chunk_decode(buf_view(&b), &c);
    if (r < 0 && r != -ENOENT && !record_is_damaged(r))
        return r;
    if (r < 0 || i >= c.n_blocks || !(c.present[i / 8] >> (i % 8) & 1))
        return -EBADMSG;
    *ret_crc = c.crc[i];
    return 0;
}

/* Past the page cache: what is still dirty is written first, and an error of that is ours. The file of a dead
 * extent has no name, but a descriptor. -EINVAL: the file system cannot. */
static int read_direct(struct extent *x, int own, char *buf, uint64_t n, uint64_t offset)
{
    char path[DISK_PATH_MAX];
    disk_extent_path(x->disk, x->id, path);
    _cleanup_close_ int fd = sys->open(path, O_RDONLY | O_DIRECT | O_CLOEXEC | O_NOFOLLOW, 0);
    if (fd == -ENOENT) {
        (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", own);
        fd = sys->open(path, O_RDONLY | O_DIRECT | O_CLOEXEC, 0);
    }
    return fd < 0 ? -EINVAL : extent_pread_direct(fd, buf, n, offset);
}

int extent_pread_direct(int fd, char *buf, uint64_t n, uint64_t offset)
{
    for (uint64_t done = 0; done < n;) {
        ssize_t got = sys->pread(fd, buf + done, ALIGN_UP(n, DIRECT_ALIGN) - done, offset + done);
        if (got < 0)
            return (int)got;
        if (got == 0)
            return -ENODATA;
        done += (uint64_t)got;
        if (done < n && done % DIRECT_ALIGN != 0)
            return -EINVAL;
    }
    return 0;
}

/*
 * After a flush that failed, also one of a run that was killed, the page cache may have the bytes that the
 * disk has not: comparing those would vouch for what is gone as soon as they leave memory. So a suspect block
 * is read from the disk; where that cannot be, memory is asked to forget it first, which it does unless the
 * bytes are dirty or mapped.
 */
static int read_block(struct extent *x, int fd, uint32_t block, char *buf, uint64_t n, bool past_cache)
{
    uint64_t offset = (uint64_t)block * STORE_BLOCK_BYTES;
    lock_take(&x->lock);
    bool suspect = extent_range_is_suspect_locked(x, block, 1);
    lock_drop(&x->lock);
    if (suspect)
        (void)sys->fadvise(fd, ALIGN_DOWN(offset, FORGET_BYTES), FORGET_BYTES, POSIX_FADV_DONTNEED);
    if (suspect || past_cache) {
        int r = read_direct(x, fd, buf, n, offset);
        if (r != -EINVAL)
            return r;
    }
    return sys_pread_all(fd, buf, n, offset);
}

int extent_block_compare(struct extent *x, uint32_t block, char *buf, bool past_cache)
{
    uint32_t crc = 0;
    int r = extent_block_crc(x, block, &crc);
    if (r == -ENOENT)
        return r;
    if (r < 0 && r != -EBADMSG)
        return -EAGAIN;
    uint64_t n = block_bytes(x, block);
    int fd = r == 0 ? extent_use(x) : r;
    if (fd >= 0) {
        r = read_block(x, fd, block, buf, n, past_cache);
        if (r < 0)
            extent_see_end(x, fd);
        extent_leave(x);
    } else if (fd == -EMFILE || fd == -ENFILE) {
        return fd;
    } else {
        r = fd;
    }
    metrics_add(x->disk->m_verified, 1);
    return r == 0 && crc32c(0, buf, n) == crc ? 0 : ERR_CORRUPT;
}

int extent_verify_block(struct extent *x, uint32_t block, char *buf, const char *found)
{
    uint64_t lost_flushes = disk_lost_flushes(x->disk);
    int r;
    for (unsigned tries = 1;
         (r = extent_block_compare(x, block, buf, /* past_cache= */ false)) == -EAGAIN && tries < ASK_TRIES;
         tries++)
        sys->sleep_ns(ASK_PAUSE_NS);
    if (r == 0)
        extent_block_trusted(x, block, lost_flushes);
    if (r != ERR_CORRUPT && r != -EAGAIN)
        return r;
    if (extent_is_dead(x)) {
        /* Its records are being deleted, so that the checksum may be gone. */
        lock_take(&x->lock);
        extent_block_forgotten_locked(x, block);
        lock_drop(&x->lock);
        return -ENOENT;
    }
    if (!x->store->read_only)
        extent_block_dropped(x, block, r == -EAGAIN ? "unread" : found);
    return ERR_CORRUPT;
}

uint64_t extent_present_run(struct extent *x, uint64_t offset, uint64_t n)
{
    uint64_t size = extent_size(x);
    if (offset >= size || n == 0)
        return 0;
    n = MIN(n, size - offset);
    if (__atomic_load_n(&x->whole, __ATOMIC_ACQUIRE) || __atomic_load_n(&x->staged, __ATOMIC_ACQUIRE))
        return n;
    uint32_t first = (uint32_t)(offset / STORE_BLOCK_BYTES);
    uint32_t wanted = (uint32_t)((offset + n - 1) / STORE_BLOCK_BYTES) - first + 1;
    _cleanup_free_ char *buf = NULL;
    uint32_t run = 0;
    for (unsigned verified = 0; run < wanted; verified++) {
        bool suspect;
        lock_take(&x->lock);
        run += extent_trusted_run_locked(x, first + run, wanted - run, &suspect);
        lock_drop(&x->lock);
        if (!suspect || run == wanted || verified == VERIFY_RUN_BLOCKS || x->store->read_only)
            break;
        if (!buf)
            buf = extent_block_buffer();
        int r = extent_verify_block(x, first + run, buf, "start");
        if (r < 0 && r != ERR_CORRUPT && r != -ENOENT)
            break; /* for want of a descriptor: nothing is known, and nothing changes by asking on */
    }
    uint64_t end = (uint64_t)(first + run) * STORE_BLOCK_BYTES;
    return run == 0 ? 0 : MIN(end - offset, n);
}

bool extent_is_complete(struct extent *x)
{
    if (__atomic_load_n(&x->whole, __ATOMIC_ACQUIRE))
        return true;
    lock_take(&x->lock);
    bool try = x->n_present == x->n_blocks && x->n_suspect <= VERIFY_INLINE_BLOCKS && !x->staged;
    lock_drop(&x->lock);
    if (!try)
        return false;
    _cleanup_free_ char *buf = extent_block_buffer();
    for (uint32_t b = 0; (b = extent_next_suspect(x, b)) != UINT32_MAX; b++)
        if (extent_verify_block(x, b, buf, "start") < 0)
            break;
    return __atomic_load_n(&x->whole, __ATOMIC_ACQUIRE);
}

ssize_t extent_read_verified(struct extent *x, void *p, size_t n, uint64_t offset)
{
    uint64_t size = extent_size(x);
    if (offset >= size)
        return 0;
    n = MIN(n, size - offset);
    _cleanup_free_ char *buf = extent_block_buffer();
    for (size_t done = 0; done < n;) {
        uint64_t at = offset + done;
        uint32_t block = (uint32_t)(at / STORE_BLOCK_BYTES);
        size_t skip = at % STORE_BLOCK_BYTES, part = MIN(n - done, STORE_BLOCK_BYTES - skip);
        int r = extent_verify_block(x, block, buf, "read");
        if (r == -ENOENT && done > 0)
            return (ssize_t)done;
        if (r < 0)
            return r;
        memcpy((char *)p + done, buf + skip, part);
        done += part;
    }
    return (ssize_t)n;
}

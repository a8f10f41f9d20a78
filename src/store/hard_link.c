/*
 * One file by two names: a staged extent that becomes a hard one without a copy, and a hard one that is kept
 * in the cache without one.
 *
 * Each name is marked in the index before it is made, and goes by itself, as if the file had no other: the
 * bytes stay until the last one is gone. What they occupy counts once while one name follows the other: the
 * new one takes over what is counted. A name that stays beside counts it again when it is looked at.
 *
 * Invariants:
 *  1. The name of a hard extent is made durable before it is given to the caller; so were the bytes.
 *  2. An entry of the cache is made only of a hard extent that nobody writes any more: blocks that are
 * present never change (store.h).
 *
 * Failure modes: what a step left is a mark without a file, or a marked file that nobody names: the next
 * flush, or the next start, removes both.
 */
#include "base/sys.h"
#include "store/hard_internal.h"

#include <fcntl.h>
#include <string.h>

static int sync_dir_of(const char *path)
{
    char dir[DISK_PATH_MAX];
    (void)snprintf(dir, sizeof(dir), "%s", path);
    char *slash = strrchr(dir, '/');
    assert(slash);
    *slash = '\0';
    int fd = sys->open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    if (fd < 0)
        return fd;
    int r = sys->fsync(fd);
    (void)sys->close(fd);
    return r;
}

/* What was written to a staged file, and its names, are on the disk, and nothing was lost on the way there.
 * By the extent's own descriptor: the kernel tells it of every error since the file was made. */
static int sync_staged(struct extent *x)
{
    int r = sys->fsync(extent_fd(x));
    return r == 0 && disk_lost_flushes(x->disk) != x->lost_flushes ? -EIO : r;
}

/* The ready file `to`, which is empty, gives its name to the file `from`. */
static int take_name(const char *from, const char *to)
{
    int r = sys->unlink(to);
    return r < 0 && r != -ENOENT ? r : sys->link(from, to);
}

/* After the link: durable, and open for reading. */
static int sync_and_open(struct extent *x, const char *path, int *ret_fd)
{
    int r = sync_staged(x);
    r = r < 0 ? r : sync_dir_of(path);
    int fd = r < 0 ? r : sys->open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW, 0);
    if (fd < 0)
        return fd;
    *ret_fd = fd;
    return 0;
}

int hard_of_staged(struct store *s, struct extent *x, struct hard **ret, struct err *e)
{
    assert(s && x->magic == EXTENT_MAGIC && x->staged && ret);
    struct disk *d = x->disk;
    struct id128 id;
    struct stat st;
    char from[DISK_PATH_MAX], to[DISK_PATH_MAX];
    int fd = -1;
    int r = sys->fstat(extent_fd(x), &st);
    if (r < 0)
        return err_errno(e, r, "disk %s: look at a staged file", d->path);
    uint64_t bytes = hard_bytes_of(&st);
    if (space_take_there(d, bytes) < 0)
        return ERR_NOT_ADMITTED; /* who copies it waits for room */
    r = hard_pool_take(d, &id);
    if (r < 0) {
        space_give(d, bytes, bytes, 0);
        return err_errno(e, r, "disk %s: make a file", d->path);
    }
    disk_extent_path(d, x->id, from);
    hard_path(d, id, to);
    r = take_name(from, to);
    bool is_named = r == 0;
    r = r < 0 ? r : sync_and_open(x, to, &fd);
    if (r < 0) {
        int gone = sys->unlink(to);
        if (gone == 0 || gone == -ENOENT) /* else its mark stays, for the sweep */
            hard_gone(d, id, /* chunks= */ false);
        space_give(d, bytes, bytes, 0);
        (void)err_errno(e, r, "disk %s: a staged file and another name of it", d->path);
        return is_named ? r : ERR_NOT_ADMITTED;
    }
    struct hard *h = hard_new_written(d, id, fd, bytes);
    if (sys->fstat(fd, &st) == 0)
        hard_account(h, hard_bytes_of(&st));
    *ret = h;
    return 0;
}

int hard_is_written(struct hard *h)
{
    assert(h && h->magic == HARD_MAGIC);
    int r = sys->setlease(h->fd, F_RDLCK);
    if (r == 0)
        r = sys->setlease(h->fd, F_UNLCK);
    return r;
}

int hard_link_into(struct hard *h, const char *path)
{
    char from[DISK_PATH_MAX];
    hard_path(h->disk, h->id, from);
    return sys->link(from, path);
}

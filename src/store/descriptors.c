/*
 * Which extents have their file open.
 *
 * A process may have so many descriptors and no more, and there may be far more extents in memory, each with
 * readers that will hardly come back to it: a mount references every file that it keeps, and its kernel has
 * files of its own. So a descriptor is the extent's only while somebody uses it (extent_use). Afterwards it
 * stays open among the others of the store, and is closed when there are more than s->fds_max, used or not,
 * and it was not used again since the hand of the clock last passed it.
 *
 * Invariants:
 *  1. x->fd is open unless x->fd_uses has FD_CLOSED; it changes only under s->fds_lock, and only while it
 * is closed.
 *  2. An extent is in the clock exactly while x->fd is open.
 *  3. A staged extent and a dead one that somebody references are in use, so that their files stay open: the
 * former's is written, the latter's has no name any more.
 *
 * Failure modes: without a free descriptor the one that the clock would close next is closed and opening is
 * tried once more; then extent_use says -EMFILE. A file that is gone gives -ENOENT. Where the file system has
 * become read-only, as ext4 does after an error, files are opened for reading alone: what is there is served,
 * and writes fail.
 */
#include "base/log.h"
#include "base/sys.h"
#include "store/store_internal.h"

#include <fcntl.h>

void descriptors_init(struct store *s, size_t max)
{
    lock_init(&s->fds_lock, LOCK_LEAF);
    s->fds_max = max;
}

void descriptors_fini(struct store *s)
{
    assert(!s->fds_hand);
    lock_fini(&s->fds_lock);
}

/* ---- the clock ---- */

static void clock_add_locked(struct store *s, struct extent *x)
{
    struct extent *hand = s->fds_hand;
    x->fds_next = hand ? hand : x;
    x->fds_previous = hand ? hand->fds_previous : x;
    x->fds_next->fds_previous = x->fds_previous->fds_next = x;
    if (!hand)
        s->fds_hand = x;
    s->n_fds++;
}

static void clock_remove_locked(struct store *s, struct extent *x)
{
    if (s->fds_hand == x)
        s->fds_hand = x->fds_next == x ? NULL : x->fds_next;
    x->fds_next->fds_previous = x->fds_previous;
    x->fds_previous->fds_next = x->fds_next;
    x->fds_next = x->fds_previous = NULL;
    s->n_fds--;
}

/* Takes the descriptor of an extent that nobody uses, for the caller to close; -1: all are in use. */
static int take_one_locked(struct store *s)
{
    for (size_t looks = 2 * s->n_fds; looks > 0; looks--) {
        struct extent *x = s->fds_hand;
        s->fds_hand = x->fds_next;
        uint32_t unused = 0;
        if (__atomic_exchange_n(&x->fd_recent, false, __ATOMIC_RELAXED) ||
            !__atomic_compare_exchange_n(&x->fd_uses, &unused, FD_CLOSED, /* weak= */ false, __ATOMIC_ACQ_REL,
                                         __ATOMIC_RELAXED))
            continue;
        clock_remove_locked(s, x);
        return x->fd;
    }
    return -1;
}

static void close_one_over(struct store *s, size_t max)
{
    lock_take(&s->fds_lock);
    int fd = s->n_fds > max ? take_one_locked(s) : -1;
    lock_drop(&s->fds_lock);
    if (fd >= 0)
        (void)sys->close(fd);
}

/* ---- opening and closing ---- */

static int open_file(const char *path, bool read_only)
{
    int fd = read_only ? -EROFS : sys->open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0);
    return fd == -EROFS ? sys->open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW, 0) : fd;
}

int descriptors_open(struct extent *x)
{
    char path[DISK_PATH_MAX];
    disk_extent_path(x->disk, x->id, path);
    int fd = open_file(path, x->store->read_only);
    if (fd != -EMFILE && fd != -ENFILE)
        return fd;
    close_one_over(x->store, 0);
    return open_file(path, x->store->read_only);
}

void descriptors_add(struct extent *x, int fd, bool in_use)
{
    struct store *s = x->store;
    assert(x->fd_uses == FD_CLOSED);
    lock_take(&s->fds_lock);
    x->fd = fd;
    __atomic_store_n(&x->fd_uses, in_use ? 1 : 0, __ATOMIC_RELEASE);
    clock_add_locked(s, x);
    lock_drop(&s->fds_lock);
    close_one_over(s, s->fds_max);
}

void descriptors_remove(struct extent *x)
{
    struct store *s = x->store;
    int fd = -1;
    lock_take(&s->fds_lock);
    if (x->fds_next) {
        clock_remove_locked(s, x);
        fd = x->fd;
    }
    lock_drop(&s->fds_lock);
    if (fd >= 0)
        (void)sys->close(fd);
}

/* Counted as a use already. */
static int open_again(struct extent *x)
{
    struct store *s = x->store;
    int fd = descriptors_open(x);
    lock_take(&s->fds_lock);
    bool is_closed = __atomic_load_n(&x->fd_uses, __ATOMIC_ACQUIRE) & FD_CLOSED;
    int ours = is_closed ? -1 : fd; /* another thread was faster */
    if (is_closed && fd >= 0) {
        x->fd = fd;
        (void)__atomic_and_fetch(&x->fd_uses, ~FD_CLOSED, __ATOMIC_RELEASE);
        clock_add_locked(s, x);
    }
    int result = is_closed && fd < 0 ? fd : x->fd;
    lock_drop(&s->fds_lock);
    if (ours >= 0)
        (void)sys->close(ours);
    if (result < 0)
        extent_leave(x);
    else
        close_one_over(s, s->fds_max);
    return result;
}

int extent_use(struct extent *x)
{
    assert(x && x->magic == EXTENT_MAGIC);
    uint32_t before = __atomic_fetch_add(&x->fd_uses, 1, __ATOMIC_ACQ_REL);
    if (!__atomic_load_n(&x->fd_recent, __ATOMIC_RELAXED))
        __atomic_store_n(&x->fd_recent, true, __ATOMIC_RELAXED);
    return before & FD_CLOSED ? open_again(x) : x->fd;
}

void extent_leave(struct extent *x)
{
    uint32_t before = __atomic_fetch_sub(&x->fd_uses, 1, __ATOMIC_ACQ_REL);
    assert((before & ~FD_CLOSED) > 0);
    (void)before;
}

void descriptors_hold(struct extent *x)
{
    int r = extent_use(x);
    if (r < 0 && r != -ENOENT)
        log_warn("store", "disk %s: the file of a removed extent cannot be kept open for its readers: %s",
                 x->disk->path, err_text(r));
}

/*
 * Syncing what is being written before it is whole (contract in hard_internal.h).
 *
 * A disk with a volatile cache, as that of most virtual machines, takes a sync as long as writing all that
 * came since the last one: 25 ms for 16 MiB, as long as the MD5 of them. Who puts an object pays that at its
 * end, when nothing is left to do beside it. So a file that grows is synced on the way by a thread of its
 * own.
 *
 * One file at a time: what empties the disk's cache empties it for all that are written. Where a sync on the
 * way takes no time, as on disks that lose nothing, it is left out for some time.
 *
 * Failure modes: an error says nothing here. The file was opened for this alone, so that the kernel tells the
 * sync at the end of it, too.
 */
#include "base/sys.h"
#include "store/hard_internal.h"

#include <fcntl.h>

#define WORTH_NS ((uint64_t)1000000) /* what a sync on the way spares its file */
#define REST     256                 /* so many are left out after one that was not worth it */

static uint64_t early_turn(void *arg)
{
    struct hard_early *y = arg;
    lock_take(&y->lock);
    int fd = TAKE_FD(y->fd);
    y->is_syncing = fd >= 0;
    lock_drop(&y->lock);
    if (fd < 0)
        return CHORE_UNTIL_CALLED;
    uint64_t began_ns = sys->mono_ns();
    (void)sys->fdatasync(fd);
    bool worth = sys->mono_ns() - began_ns >= WORTH_NS;
    (void)sys->close(fd);
    lock_take(&y->lock);
    y->is_syncing = false;
    y->rest = worth ? 0 : REST;
    lock_drop(&y->lock);
    return CHORE_UNTIL_CALLED;
}

void hard_early_init(struct disk *d)
{
    struct hard_early *y = &d->hard->early;
    y->fd = -1;
    lock_init(&y->lock, LOCK_LEAF);
}

int hard_early_start(struct disk *d)
{
    struct hard_early *y = &d->hard->early;
    return chore_start(&y->chore, CHORE_UNTIL_CALLED, early_turn, y);
}

void hard_early_stop(struct disk *d)
{
    chore_stop(&d->hard->early.chore);
}

void hard_early_fini(struct disk *d)
{
    struct hard_early *y = &d->hard->early;
    if (y->fd >= 0)
        (void)sys->close(y->fd);
    lock_fini(&y->lock);
}

static bool is_wanted(struct hard_early *y)
{
    LOCK_SCOPE(&y->lock);
    if (y->fd >= 0 || y->is_syncing)
        return false;
    if (y->rest == 0)
        return true;
    y->rest--;
    return false;
}

void hard_early_sync(struct hard *h)
{
    struct hard_early *y = &h->disk->hard->early;
    int fd = is_wanted(y) ? hard_open_path(h, O_RDONLY) : -1;
    if (fd < 0)
        return;
    lock_take(&y->lock);
    if (y->fd < 0)
        y->fd = TAKE_FD(fd);
    lock_drop(&y->lock);
    if (fd >= 0)
        (void)sys->close(fd); /* another one came first */
    else
        chore_call(&y->chore);
}

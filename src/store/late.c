/*
 * Large files whose blocks are freed later.
 *
 * The kernel frees the pages and blocks of a file when its last name and its last descriptor are gone, while
 * the caller waits: 140 ms for 512 MiB here. Who replaces or removes something large does not wait for that:
 * the file is kept open over the unlink and closed by the flusher of its disk, once a second, or by whoever
 * finds no room.
 *
 * Eviction unlinks at once: what it frees is wanted.
 */
#include "base/sys.h"
#include "store/store_internal.h"

#include <fcntl.h>
#include <string.h>

#define LATE_MIN_BYTES (16 * MIB)

static bool keep(struct disk *d, int fd)
{
    LOCK_SCOPE(&d->lock);
    if (d->n_late == ARRAY_SIZE(d->late))
        return false;
    d->late[d->n_late++] = fd;
    return true;
}

int late_unlink(struct disk *d, const char *path, uint64_t bytes)
{
    int fd = bytes < LATE_MIN_BYTES ? -1 : sys->open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW, 0);
    int r = sys->unlink(path);
    if (fd >= 0 && (r < 0 || !keep(d, fd)))
        (void)sys->close(fd);
    return r;
}

bool late_close(struct disk *d)
{
    int fds[LATE_MAX];
    lock_take(&d->lock);
    size_t n = d->n_late;
    memcpy(fds, d->late, n * sizeof(fds[0]));
    d->n_late = 0;
    lock_drop(&d->lock);
    for (size_t i = 0; i < n; i++)
        (void)sys->close(fds[i]);
    if (n > 0)
        space_look_again(d);
    return n > 0;
}

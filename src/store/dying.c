/*
 * Which entries are dying: the id of each is noted in a file before its extent file is unlinked (doom.c). The
 * deletion of its records is committed later, with others; when the node is killed in between, the next start
 * deletes them (store_recover.c), and a check before it knows what they are.
 *
 * Places are taken in DISK/dying (store_format.h) and given back once the deletion was committed. They are
 * not cleared: an id that the index does not know means nothing.
 *
 * Invariant: nothing is written over the id of an entry whose records are still in the index.
 *
 * Failure modes: nothing is synced, so that a kill leaves what was noted and a power loss perhaps not. A note
 * that was lost, or could not be written or read, leaves an entry without a file, which is dropped when it is
 * asked for, sampled by eviction, or checked.
 */
#include "base/log.h"
#include "base/sys.h"
#include "store/store_internal.h"

#include <fcntl.h>

#define ID_BYTES     sizeof(((struct id128 *)0)->b)
#define AHEAD_BYTES  (64 * KIB) /* allocated at the start: eviction notes when the disk is full */
#define READ_AT_ONCE 1024       /* ids */

static void path_of(const struct disk *d, char ret[DISK_PATH_MAX])
{
    (void)snprintf(ret, DISK_PATH_MAX, "%s/dying", d->path);
}

/* ---- at the start ---- */

static int read_ids(int fd, uint64_t size, dying_fn fn, void *arg)
{
    struct id128 ids[READ_AT_ONCE], none = {{0}};
    uint64_t n = MIN(size / ID_BYTES, (uint64_t)DYING_MAX);
    for (uint64_t at = 0; at < n; at += READ_AT_ONCE) {
        size_t piece = (size_t)MIN(n - at, (uint64_t)READ_AT_ONCE);
        int r = sys_pread_all(fd, ids, piece * ID_BYTES, at * ID_BYTES);
        for (size_t i = 0; r == 0 && i < piece; i++)
            r = id_eq(ids[i], none) ? 0 : fn(arg, ids[i]);
        if (r < 0)
            return r;
    }
    return 0;
}

int dying_read(struct disk *d, dying_fn fn, void *arg)
{
    static_assert(sizeof(struct id128) == ID_BYTES, "a table of ids is what is in the file");
    char path[DISK_PATH_MAX];
    struct stat st;
    path_of(d, path);
    _cleanup_close_ int fd = sys->open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW, 0);
    if (fd < 0)
        return fd == -ENOENT ? 0 : fd;
    int r = sys->fstat(fd, &st);
    return r < 0 ? r : read_ids(fd, (uint64_t)st.st_size, fn, arg);
}

void dying_start(struct disk *d)
{
    char path[DISK_PATH_MAX];
    path_of(d, path);
    d->dying_free = malloc(DYING_MAX * sizeof(d->dying_free[0]));
    if (!d->dying_free)
        abort();
    d->dying_fd = sys->open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    int r = d->dying_fd < 0 ? d->dying_fd : sys->ftruncate(d->dying_fd, 0);
    if (r < 0)
        (void)disk_log_error(d, "begin the table of dying entries", r);
    else
        (void)sys->fallocate(d->dying_fd, 0, 0, AHEAD_BYTES); /* where that cannot be done, as it comes */
}

void dying_end(struct disk *d)
{
    if (d->dying_fd >= 0)
        (void)sys->close(d->dying_fd);
    d->dying_fd = -1;
    free(d->dying_free);
    d->dying_free = NULL;
}

/* ---- while it runs ---- */

static uint32_t take_place(struct disk *d)
{
    LOCK_SCOPE(&d->lock);
    if (d->n_dying_free > 0)
        return d->dying_free[--d->n_dying_free];
    return d->n_dying < DYING_MAX ? d->n_dying++ : DYING_NOWHERE;
}

void dying_note(struct disk *d, struct doomed *m)
{
    if (d->dying_fd < 0 || m->key_bytes == 0) /* of a staged one a marker says that nobody names it */
        return;
    m->place = take_place(d);
    if (m->place != DYING_NOWHERE)
        (void)sys_pwrite_all(d->dying_fd, m->id.b, ID_BYTES, m->place * (uint64_t)ID_BYTES);
}

void dying_forget_locked(struct disk *d, const struct doomed *m)
{
    if (m->place != DYING_NOWHERE)
        d->dying_free[d->n_dying_free++] = m->place;
}

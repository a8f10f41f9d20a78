/*
 * Power loss for the bytes of files.
 *
 * Each change keeps the size and bytes that were there before. At a crash every file is played back to its
 * state at the last sync, newest change first, and what the seed chooses is played forward again, oldest
 * first.
 *
 * Invariants:
 *  1. Before a crash the real file is as the program left it; records only add knowledge.
 *  2. A record's descriptor keeps its inode from being reused, so (device, inode) names one file.
 *
 * Failure modes: abort when the real file cannot be read or written back.
 */
#include "support/crash_internal.h"

#include <errno.h>
#include <fcntl.h>

#define PAGE   4096u /* the unit in which the kernel writes back */
#define SECTOR 512u  /* the unit that a disk writes whole */

struct segment { /* a run of bytes that is not a hole */
    struct segment *next;
    uint64_t offset, n;
    char bytes[];
};

struct change {
    struct change *older, *newer;
    enum crash_change kind;
    uint64_t offset, n; /* the range whose old bytes are kept; WRITE: also that of the new ones */
    uint64_t old_size, new_size;
    int mode;
    char *bytes;
    struct segment *old;
};

struct crash_file {
    struct crash_file *next;
    dev_t dev;
    ino_t ino;
    int fd;
    unsigned refs, fs;
    struct change *first, *last;
    struct change *pending; /* between _before and _after */
};

static struct crash_file *files;

static void *need(void *p)
{
    if (!p)
        crash_abort("out of memory", "");
    return p;
}

static uint64_t size_of(int fd)
{
    struct stat st;
    if (fstat(fd, &st) < 0)
        crash_abort("fstat", "");
    return (uint64_t)st.st_size;
}

static void free_change(struct change *c)
{
    while (c->old) {
        struct segment *s = c->old;
        c->old = s->next;
        free(s);
    }
    free(c->bytes);
    free(c);
}

static void free_changes(struct crash_file *f)
{
    while (f->first) {
        struct change *c = f->first;
        f->first = c->newer;
        free_change(c);
    }
    f->last = NULL;
}

static void drop_if_idle(struct crash_file *f)
{
    if (f->refs || f->first || f->pending)
        return;
    struct crash_file **at = &files;
    while (*at != f)
        at = &(*at)->next;
    *at = f->next;
    (void)close(f->fd);
    free(f);
}

struct crash_file *crash_data_of_path(const char *path)
{
    struct stat st;
    if (stat(path, &st) < 0)
        crash_abort("stat", path);
    for (struct crash_file *f = files; f; f = f->next)
        if (f->dev == st.st_dev && f->ino == st.st_ino)
            return f;
    struct crash_file *f = need(calloc(1, sizeof(*f)));
    _cleanup_free_ char *real = need(realpath(path, NULL));
    f->dev = st.st_dev;
    f->ino = st.st_ino;
    f->fs = crash_fs_of(real);
    f->fd = open(path, O_RDWR | O_CLOEXEC);
    if (f->fd < 0)
        crash_abort("open", path);
    f->next = files;
    files = f;
    return f;
}

struct crash_file *crash_data_of_fd(int fd)
{
    struct stat st;
    char path[32];
    if (fstat(fd, &st) < 0)
        crash_abort("fstat", "");
    for (struct crash_file *f = files; f; f = f->next)
        if (f->dev == st.st_dev && f->ino == st.st_ino)
            return f;
    if (st.st_nlink == 0)
        return NULL; /* no crash brings it back */
    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    return crash_data_of_path(path);
}

struct crash_file *crash_data_ref(struct crash_file *f)
{
    f->refs++;
    return f;
}

void crash_data_unref(struct crash_file *f)
{
    if (!f)
        return;
    assert(f->refs > 0);
    f->refs--;
    drop_if_idle(f);
}

static void read_whole(int fd, char *p, uint64_t n, uint64_t offset)
{
    while (n) {
        ssize_t got = pread(fd, p, n, (off_t)offset);
        if (got <= 0)
            crash_abort("pread", "");
        p += got;
        n -= (uint64_t)got;
        offset += (uint64_t)got;
    }
}

static void write_whole(int fd, const char *p, uint64_t n, uint64_t offset)
{
    while (n) {
        ssize_t put = pwrite(fd, p, n, (off_t)offset);
        if (put <= 0)
            crash_abort("pwrite", "");
        p += put;
        n -= (uint64_t)put;
        offset += (uint64_t)put;
    }
}

/* The bytes of [from, to) that are not holes; sparse files of terabytes are common here. */
static struct segment *save_range(int fd, uint64_t from, uint64_t to)
{
    struct segment *first = NULL, **tail = &first;
    while (from < to) {
        off_t data = lseek(fd, (off_t)from, SEEK_DATA);
        if (data < 0 && errno == ENXIO)
            break;
        off_t hole = data < 0 ? -1 : lseek(fd, data, SEEK_HOLE);
        if (hole < 0)
            crash_abort("lseek", "");
        uint64_t end = MIN((uint64_t)hole, to);
        if ((uint64_t)data >= to)
            break;
        struct segment *s = need(malloc(sizeof(*s) + (end - (uint64_t)data)));
        *s = (struct segment){NULL, (uint64_t)data, end - (uint64_t)data};
        read_whole(fd, s->bytes, s->n, s->offset);
        *tail = s;
        tail = &s->next;
        from = end;
    }
    return first;
}

void crash_data_before(struct crash_file *f, uint64_t offset, uint64_t n)
{
    assert(!f->pending);
    struct change *c = need(calloc(1, sizeof(*c)));
    c->offset = offset;
    c->old_size = size_of(f->fd);
    c->n = n > UINT64_MAX - offset ? UINT64_MAX - offset : n;
    c->old = save_range(f->fd, offset, MIN(c->old_size, offset + c->n));
    f->pending = c;
}

void crash_data_cancel(struct crash_file *f)
{
    free_change(TAKE_PTR(f->pending));
    drop_if_idle(f);
}

void crash_data_after(struct crash_file *f, enum crash_change change, const void *bytes, uint64_t n, int mode)
{
    struct change *c = TAKE_PTR(f->pending);
    c->kind = change;
    c->mode = mode;
    c->new_size = size_of(f->fd);
    if (change == CRASH_WRITE) {
        c->n = n;
        c->bytes = need(malloc(n + 1));
        memcpy(c->bytes, bytes, n);
    }
    c->older = f->last;
    if (f->last)
        f->last->newer = c;
    else
        f->first = c;
    f->last = c;
}

void crash_data_synced(int fd)
{
    struct stat st;
    if (fstat(fd, &st) < 0)
        crash_abort("fstat", "");
    for (struct crash_file *f = files; f; f = f->next) {
        if (f->dev == st.st_dev && f->ino == st.st_ino) {
            free_changes(f);
            drop_if_idle(f);
            return;
        }
    }
}

void crash_data_synced_fs(unsigned fs)
{
    struct crash_file *next;
    for (struct crash_file *f = files; f; f = next) {
        next = f->next;
        if (f->fs == fs) {
            free_changes(f);
            drop_if_idle(f);
        }
    }
}

static void make_hole(int fd, uint64_t offset, uint64_t n)
{
    uint64_t size = size_of(fd);
    if (offset >= size)
        return;
    n = MIN(n, size - offset);
    if (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset, (off_t)n) < 0)
        crash_abort("fallocate", "");
}

static void play_back(int fd, const struct change *c)
{
    if (c->n)
        make_hole(fd, c->offset, c->n);
    if (ftruncate(fd, (off_t)c->old_size) < 0)
        crash_abort("ftruncate", "");
    for (const struct segment *s = c->old; s; s = s->next)
        write_whole(fd, s->bytes, s->n, s->offset);
}

/* One page of a write: all of it, none, or some of its sectors. */
static void play_page(int fd, const char *p, uint64_t n, uint64_t offset, struct crash_rng *rng)
{
    if (rng->seed > CRASH_KEEP_ALL && crash_below(rng, 16) == 0) {
        for (uint64_t at = 0; at < n;) {
            uint64_t len = MIN(n - at, SECTOR - (offset + at) % SECTOR);
            if (crash_keeps(rng))
                write_whole(fd, p + at, len, offset + at);
            at += len;
        }
    } else if (crash_keeps(rng)) {
        write_whole(fd, p, n, offset);
    }
}

static void play_forward(int fd, const struct change *c, struct crash_rng *rng)
{
    if (c->kind == CRASH_WRITE) {
        for (uint64_t at = 0; at < c->n;) {
            uint64_t len = MIN(c->n - at, PAGE - (c->offset + at) % PAGE);
            play_page(fd, c->bytes + at, len, c->offset + at, rng);
            at += len;
        }
    } else if (!crash_keeps(rng)) {
        return;
    } else if (c->kind == CRASH_TRUNCATE) {
        if (ftruncate(fd, (off_t)c->new_size) < 0)
            crash_abort("ftruncate", "");
    } else if (fallocate(fd, c->mode, (off_t)c->offset, (off_t)c->n) < 0) {
        crash_abort("fallocate", "");
    }
}

static void crash_file(struct crash_file *f, struct crash_rng *rng)
{
    uint64_t size = size_of(f->fd);
    for (struct change *c = f->last; c; c = c->older)
        play_back(f->fd, c);
    for (struct change *c = f->first; c; c = c->newer)
        play_forward(f->fd, c, rng);
    /* Lengths and bytes are written apart: some file systems show the new length with zeros behind a crash.
     */
    if (rng->seed > CRASH_KEEP_ALL && crash_below(rng, 4) == 0 && size_of(f->fd) < size &&
        ftruncate(f->fd, (off_t)size) < 0)
        crash_abort("ftruncate", "");
}

void crash_data_crash(struct crash_rng *rng)
{
    struct crash_file *next;
    for (struct crash_file *f = files; f; f = next) {
        next = f->next;
        crash_file(f, rng);
        free_changes(f);
        drop_if_idle(f);
    }
}

void crash_data_copy(const struct crash_file *f, const char *path)
{
    struct stat st;
    if (fstat(f->fd, &st) < 0)
        crash_abort("fstat", path);
    _cleanup_close_ int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0 || fchmod(fd, st.st_mode & 07777) < 0 || ftruncate(fd, st.st_size) < 0)
        crash_abort("copy", path);
    struct segment *s = save_range(f->fd, 0, (uint64_t)st.st_size);
    while (s) {
        struct segment *next = s->next;
        write_whole(fd, s->bytes, s->n, s->offset);
        free(s);
        s = next;
    }
}

/*
 * Modes, owners, times and symbolic links of a directory as an origin, where the bucket keeps them
 * (origin->posix): those of the files themselves. To those above they look like everywhere, lines of metadata
 * and objects whose bytes are a target (net/posix_meta.h).
 *
 * Invariants:
 *  1. A symbolic link is shown and made, and never followed: neither as the last name of a path nor on the
 * way there (O_NOFOLLOW of file_open_below). Where it leads is the business of whoever mounted the bucket.
 *  2. No file gets set-user-ID or set-group-ID bits: whoever may write objects would make programs that run
 * as their owner. With an object's bytes they are left out; asked for alone they are refused.
 *
 * Failure modes: ERR_ORIGIN_DENIED where the node's user may not change a file.
 */
#include "origin/file_internal.h"

#include "net/posix_meta.h"

#include <fcntl.h>

#define PRIVILEGE (S_ISUID | S_ISGID)

void file_add_meta(const struct file_origin *f, const struct stat *st, struct arena *a,
                   struct origin_attr *attr)
{
    _cleanup_buf_ struct buf b = BUF_INIT(POSIX_META_MAX_BYTES);
    struct posix_meta p = {POSIX_HAS_ALL, st->st_mode, st->st_uid, st->st_gid, file_mtime_ns(st)};
    if (!f->base.posix)
        return;
    if (S_ISLNK(st->st_mode))
        attr->size_bytes = (uint64_t)st->st_size;
    if (st->st_mtim.tv_sec < 0)
        p.has &= ~(unsigned)POSIX_HAS_MTIME;
    int r = posix_meta_encode(&p, &b);
    assert(r == 0);
    attr->meta = arena_dup(a, buf_view(&b));
}

int file_open_link(int root, struct slice key, const char *path, struct stat *ret_st, struct err *e)
{
    int _cleanup_close_ fd = file_open_below(root, path, O_PATH | O_NOFOLLOW, 0);
    int r = fd < 0 ? fd : sys->fstat(fd, ret_st);
    if (r < 0)
        return file_error(e, r, "open", key);
    if (!S_ISLNK(ret_st->st_mode))
        return err_set(e, -ENOENT, SLICE_FMT " is no file", SLICE_ARG(key));
    return TAKE_FD(fd);
}

bool file_put_is_link(const struct file_origin *f, const struct origin_put *p)
{
    struct posix_meta meta;
    posix_meta_decode(p->meta, /* is_dir= */ false, &meta);
    return f->base.posix && meta.has & POSIX_HAS_MODE && S_ISLNK(meta.mode);
}

int file_read_target(const struct origin_put *p, const struct origin_body *body, char ret[FILE_TARGET_SIZE],
                     struct err *e)
{
    if (body->size_bytes == 0 || body->size_bytes >= FILE_TARGET_SIZE)
        return err_set(e, -ENAMETOOLONG, SLICE_FMT ": %zu bytes are no target of a link", SLICE_ARG(p->key),
                       (size_t)body->size_bytes);
    for (size_t at = 0; at < body->size_bytes;) {
        ssize_t n = body->read(body->arg, ret + at, (size_t)body->size_bytes - at, at);
        if (n <= 0)
            return n < 0 ? (int)n : err_set(e, -ENODATA, "the body to be written ended early");
        at += (size_t)n;
    }
    ret[body->size_bytes] = '\0';
    return strlen(ret) == body->size_bytes ? 0 : err_set(e, -EINVAL, "a target with a NUL byte");
}

/* dir and name, for a link; else fd. */
struct place {
    int fd, dir;
    const char *name;
};

static int change_owner(const struct place *at, uint32_t uid, uint32_t gid)
{
    int r =
        at->fd >= 0 ? fchown(at->fd, uid, gid) : fchownat(at->dir, at->name, uid, gid, AT_SYMLINK_NOFOLLOW);
    return r < 0 ? -errno : 0;
}

static int change_time(const struct place *at, uint64_t ns)
{
    const struct timespec t[2] = {{.tv_nsec = UTIME_OMIT},
                                  {(time_t)(ns / 1000000000), (long)(ns % 1000000000)}};
    if (at->fd >= 0)
        return sys->futimens(at->fd, t);
    return utimensat(at->dir, at->name, t, AT_SYMLINK_NOFOLLOW) < 0 ? -errno : 0;
}

/* A file system, or the rights of this process, have no such thing: the job looks at what became of it, and
 * says so. */
static bool is_refused(const struct file_origin *f, int r)
{
    return f->base.of_job && (r == -EPERM || r == -EOPNOTSUPP || r == -EINVAL);
}

/* What differs. Who gives a file away does not give away what it may do as its owner. */
static int change(const struct file_origin *f, const struct place *at, const struct stat *now,
                  const struct posix_meta *p)
{
    uint32_t uid = p->has & POSIX_HAS_UID ? p->uid : now->st_uid;
    uint32_t gid = p->has & POSIX_HAS_GID ? p->gid : now->st_gid;
    uint32_t mode = (p->has & POSIX_HAS_MODE ? p->mode : now->st_mode) & 07777;
    bool gives_away = uid != now->st_uid || gid != now->st_gid;
    if (gives_away && !S_ISDIR(now->st_mode))
        mode &= ~(uint32_t)PRIVILEGE;
    bool has_mode = !S_ISLNK(now->st_mode) && (gives_away || mode != (now->st_mode & 07777));
    int r = gives_away ? change_owner(at, uid, gid) : 0;
    if (is_refused(f, r))
        r = 0;
    if (r == 0 && has_mode && fchmod(at->fd, mode) < 0)
        r = is_refused(f, -errno) ? 0 : -errno;
    if (r == 0 && p->has & POSIX_HAS_MTIME && p->mtime_ns != file_mtime_ns(now))
        r = change_time(at, p->mtime_ns);
    return r;
}

int file_keep_meta(const struct file_origin *f, int fd, int dir, const char *name, const struct origin_put *p)
{
    struct posix_meta meta;
    struct stat now;
    struct place at = {.fd = fd, .dir = dir, .name = name};
    bool is_dir = slice_ends(p->key, SLICE_LIT("/"));
    posix_meta_decode(p->meta, is_dir, &meta);
    if (!f->base.posix)
        return meta.has & POSIX_HAS_MTIME && !is_dir ? change_time(&at, meta.mtime_ns) : 0;
    int r = fd >= 0 ? sys->fstat(fd, &now) : fstatat(dir, name, &now, AT_SYMLINK_NOFOLLOW) < 0 ? -errno : 0;
    if (!is_dir)
        meta.mode &= ~(uint32_t)PRIVILEGE;
    return r < 0 ? r : change(f, &at, &now, &meta);
}

int file_change_meta(const struct file_origin *f, int fd, int dir, const char *name, const struct stat *now,
                     const struct origin_put *p, struct err *e)
{
    struct posix_meta meta;
    struct place at = {.fd = S_ISLNK(now->st_mode) ? -1 : fd, .dir = dir, .name = name};
    bool is_dir = S_ISDIR(now->st_mode);
    posix_meta_decode(p->meta, is_dir, &meta);
    assert(f->base.posix);
    if (!is_dir && meta.has & POSIX_HAS_MODE && meta.mode & PRIVILEGE & ~now->st_mode)
        return err_set(e, -EPERM, "set-user-ID and set-group-ID bits are not given to files of an origin");
    int r = change(f, &at, now, &meta);
    if (r == 0 && at.fd >= 0)
        r = sys->fsync(at.fd);
    return r < 0 ? file_error(e, r, "change the attributes of", p->key) : 0;
}

/*
 * Writing into the directory: put, remove, copy, metadata.
 *
 * A file is written under a reserved name beside its place, fsynced, and renamed there; then the directory is
 * fsynced. A crash leaves the old file or the new one whole, and perhaps a file whose name begins with
 * FILE_TMP_PREFIX, which nobody sees as an object. A listing removes it, and so does who removes the
 * directory: at once in a later run of the same node, else a day later.
 *
 * Invariants:
 *  1. put returns 0 only after file and directory are on disk, as far as the file system tells the truth.
 *  2. If-None-Match is the file system's own atomicity (link or rename without replacing). For If-Match the
 * two files change places, and the one that was there is looked at under the reserved name: should it be
 * another one it gets its name back, and what replaced ours in that moment keeps it. File systems that cannot
 * exchange files have a look before the rename, which is atomic among the writers of this node only.
 *  3. On failure the reserved name is removed again.
 *  4. A removal of one version removes no other: the file is renamed to a reserved name, looked at there, and
 * put back when it is another one. What cannot be put back, because its name was given away, stays under the
 * reserved name; a crash in between is put right by a listing (file_list.c).
 *
 * Failure modes: as file_error; -EINVAL for keys that cannot be paths; ERR_PRECONDITION; what body->read
 * gave.
 */
#include "origin/file_internal.h"

#include "base/hash.h"
#include "base/log.h"
#include "base/quit.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sys/syscall.h>

#define REMOVE_TRIES 3

#define EXCHANGE_TRIES 8

#ifndef RENAME_NOREPLACE
#define RENAME_NOREPLACE 1
#endif
#ifndef RENAME_EXCHANGE
#define RENAME_EXCHANGE 2
#endif

struct target {
    struct slice key;
    char path[ORIGIN_KEY_MAX_BYTES + 1];
    const char *name;  /* last name in path */
    uint64_t nofollow; /* O_NOFOLLOW where links are objects */
    int root;
    int dir; /* the directory that holds it */
    char tmp[FILE_NAME_MAX + 1];
    bool has_tmp;
};

static void target_fini(struct target *t)
{
    if (t->has_tmp)
        (void)unlinkat(t->dir, t->tmp, 0);
    macro_close(&t->dir);
    macro_close(&t->root);
}

/* One that may not be on the disk goes again: whoever tries once more, and found it, would not sync it. */
static int make_dir(int parent, const char *name)
{
    if (mkdirat(parent, name, 0777) < 0)
        return -errno;
    int r = sys->fsync(parent);
    if (r < 0)
        (void)unlinkat(parent, name, AT_REMOVEDIR);
    return r;
}

/* mkdir -p of path[0..n), each step below the root. */
static int make_dirs(struct target *t, size_t n)
{
    char *path = t->path, end = path[n];
    path[n] = '\0';
    int r = 0;
    for (size_t i = 1; i <= n && r == 0; i++) {
        if (i < n && path[i] != '/')
            continue;
        char c = path[i];
        path[i] = '\0';
        char *slash = strrchr(path, '/');
        if (slash)
            *slash = '\0';
        int _cleanup_close_ parent =
            file_open_below(t->root, slash ? path : "", O_RDONLY | O_DIRECTORY | t->nofollow, 0);
        if (slash)
            *slash = '/';
        r = parent < 0 ? parent : make_dir(parent, slash ? slash + 1 : path);
        if (r == -EEXIST)
            r = 0;
        path[i] = c;
    }
    path[n] = end;
    return r;
}

/* Opens the directory that holds the key; makes it when `make`. */
static int open_dir(struct target *t, bool make, struct err *e)
{
    char *slash = strrchr(t->path, '/');
    t->name = slash ? slash + 1 : t->path;
    for (;;) {
        if (slash)
            *slash = '\0';
        t->dir = file_open_below(t->root, slash ? t->path : "", O_RDONLY | O_DIRECTORY | t->nofollow, 0);
        if (slash)
            *slash = '/';
        if (t->dir >= 0)
            return 0;
        if (t->dir != -ENOENT || !make || !slash)
            break;
        int r = make_dirs(t, (size_t)(slash - t->path));
        if (r < 0)
            return file_error(e, r, "create the directory of", t->key);
        make = false;
    }
    if ((t->dir == -ENOTDIR || (t->dir == -ELOOP && t->nofollow)) && make)
        return err_set(e, -EINVAL, SLICE_FMT ": a name on the way to it is a file", SLICE_ARG(t->key));
    return file_error(e, t->dir, "open the directory of", t->key);
}

static int target_open(struct file_origin *f, struct target *t, struct slice key, bool *ret_is_dir,
                       struct err *e)
{
    *t = (struct target){.key = key, .nofollow = file_nofollow(f), .root = -1, .dir = -1};
    int r = file_key_path(key, t->path, ret_is_dir, e);
    if (r < 0)
        return r;
    t->root = file_open_root(f, e);
    return t->root < 0 ? t->root : 0;
}

static int write_body(struct file_origin *f, int fd, const struct origin_put *p,
                      const struct origin_body *body, struct err *e)
{
    char _cleanup_free_ *piece = malloc(FILE_PIECE_BYTES);
    if (!piece)
        return err_set(e, -ENOMEM, "no memory to write");
    for (uint64_t at = 0; at < body->size_bytes;) {
        if ((p->cancel && atomic_load(p->cancel)) || quit_is_now())
            return err_set(e, -ECANCELED, "canceled");
        ssize_t n = body->read(body->arg, piece, MIN(body->size_bytes - at, (uint64_t)FILE_PIECE_BYTES), at);
        if (n <= 0)
            return n < 0 ? err_set(e, (int)n, "body: %s", err_text((int)n))
                         : err_set(e, -ENODATA, "the body to be written ended early");
        origin_moved(&f->base, (uint64_t)n);
        int r = sys_pwrite_all(fd, piece, (size_t)n, at);
        if (r < 0)
            return file_error(e, r, "write", p->key);
        at += (uint64_t)n;
    }
    return 0;
}

static void choose_tmp(struct target *t)
{
    char text[ID_TEXT_SIZE];
    file_tmp_id(text);
    (void)snprintf(t->tmp, sizeof(t->tmp), FILE_TMP_PREFIX "%s", text);
}

/* A symbolic link under the reserved name. */
static int link_tmp(struct file_origin *f, struct target *t, const struct origin_put *p,
                    const struct origin_body *body, struct stat *ret_st, struct err *e)
{
    char target[FILE_TARGET_SIZE];
    int r = file_read_target(p, body, target, e);
    if (r < 0)
        return r;
    choose_tmp(t);
    if (symlinkat(target, t->dir, t->tmp) < 0)
        return file_error(e, -errno, "create", t->key);
    t->has_tmp = true;
    r = file_keep_meta(f, -1, t->dir, t->tmp, p);
    if (r == 0 && fstatat(t->dir, t->tmp, ret_st, AT_SYMLINK_NOFOLLOW) < 0)
        r = -errno;
    return r < 0 ? file_error(e, r, "create", t->key) : 0;
}

/* Writes and fsyncs the reserved name; its stat is the object's. */
static int write_tmp(struct file_origin *f, struct target *t, const struct origin_put *p,
                     const struct origin_body *body, struct stat *ret_st, struct err *e)
{
    choose_tmp(t);
    int _cleanup_close_ fd =
        sys->openat(t->dir, t->tmp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (fd < 0)
        return file_error(e, fd, "create", t->key);
    t->has_tmp = true;
    int r = write_body(f, fd, p, body, e);
    if (r < 0)
        return r;
    r = file_keep_meta(f, fd, -1, NULL, p);
    r = r < 0 ? r : sys->fsync(fd);
    if (r == 0)
        r = sys->fstat(fd, ret_st);
    return r < 0 ? file_error(e, r, "sync", t->key) : 0;
}

int file_rename_new(int dir, const char *from, const char *to, bool *ret_both)
{
    *ret_both = false;
    if (syscall(SYS_renameat2, dir, from, dir, to, RENAME_NOREPLACE) == 0)
        return 0;
    if (errno != EINVAL && errno != ENOSYS)
        return -errno;
    *ret_both = linkat(dir, from, dir, to, 0) == 0;
    return *ret_both ? 0 : -errno;
}

static int place_new(struct target *t, struct err *e)
{
    bool both; /* then the reserved name goes with the target */
    int r = file_rename_new(t->dir, t->tmp, t->name, &both);
    t->has_tmp = r < 0 || both;
    if (r == -EEXIST)
        return err_set(e, ERR_PRECONDITION, "the file exists");
    return r < 0 ? file_error(e, r, "name", t->key) : 0;
}

static int check_etag(const struct file_origin *f, struct target *t, struct slice if_match, struct err *e)
{
    struct stat st;
    char etag[FILE_ETAG_SIZE];
    if (if_match.n == 0)
        return 0;
    int _cleanup_close_ fd = file_open_object(f, t->root, t->key, t->path, &st, e);
    if (fd < 0)
        return fd == -ENOENT ? err_set(e, ERR_PRECONDITION, "there is no such file") : fd;
    file_etag(&st, etag);
    if (file_matches(if_match, slice_str(etag)))
        return 0;
    return err_set(e, ERR_PRECONDITION, "the file's ETag is %s and not " SLICE_FMT, etag,
                   SLICE_ARG(if_match));
}

/* Over whatever is there. */
static int place_over(struct target *t, struct err *e)
{
    if (renameat(t->dir, t->tmp, t->dir, t->name) < 0)
        return errno == EISDIR || errno == ENOTEMPTY || errno == EEXIST
                   ? err_set(e, -EINVAL, SLICE_FMT ": a directory of that name is there", SLICE_ARG(t->key))
                   : file_error(e, -errno, "rename", t->key);
    t->has_tmp = false;
    return 0;
}

/* ---- one version only ---- */

static bool is_free(const struct target *t)
{
    struct stat st;
    return fstatat(t->dir, t->name, &st, AT_SYMLINK_NOFOLLOW) < 0 && errno == ENOENT;
}

/* What was taken aside is not ours to remove. Something that got its name meanwhile stays there. */
static void put_back(const struct target *t)
{
    bool both;
    int r = file_rename_new(t->dir, t->tmp, t->name, &both);
    if (r == 0 && both)
        (void)unlinkat(t->dir, t->tmp, 0);
    if (r < 0 && r != -EEXIST && r != -ENOENT && is_free(t)) /* a file system without links, or a directory */
        r = renameat(t->dir, t->tmp, t->dir, t->name) < 0 ? -errno : 0;
    if (r < 0 && r != -ENOENT) /* a listing may have put it back */
        log_warn("origin",
                 "%s: it was replaced while it was to go, and could not be put back (%s): it is %s beside "
                 "its place",
                 t->path, err_text(r), t->tmp);
    (void)sys->fsync(t->dir);
}

/* Opens what was taken aside, as it was under its name: a link's target lies below the root all the same. */
static int open_away(const struct file_origin *f, const struct target *t, struct stat *ret_st, struct err *e)
{
    char path[ORIGIN_KEY_MAX_BYTES + FILE_NAME_MAX + 2];
    (void)snprintf(path, sizeof(path), "%.*s%s", (int)(t->name - t->path), t->path, t->tmp);
    return file_open_object(f, t->root, t->key, path, ret_st, e);
}

/* The new file gets the name under which the old one will lie, so that a listing knows what either is if the
 * node ends in between. */
static int name_aside(struct target *t, const struct stat *own, struct slice if_match, struct err *e)
{
    char text[ID_TEXT_SIZE], etag[FILE_ETAG_SIZE], aside[sizeof(t->tmp)];
    file_tmp_id(text);
    file_etag(own, etag);
    int n = snprintf(aside, sizeof(aside), FILE_TMP_PREFIX "%s-%016" PRIx64 "+%016" PRIx64 "-%s", text,
                     hash_placement(if_match), hash_placement(slice_str(etag)), t->name);
    if (n < 0 || (size_t)n >= sizeof(aside))
        return 0;
    if (renameat(t->dir, t->tmp, t->dir, aside) < 0)
        return errno == ENAMETOOLONG ? 0 : file_error(e, -errno, "rename", t->key);
    memcpy(t->tmp, aside, (size_t)n + 1);
    return 0;
}

/* The files change places. -ENOENT: nothing has the name; -EOPNOTSUPP: the file system has no such call. */
static int exchange(const struct target *t)
{
    if (syscall(SYS_renameat2, t->dir, t->tmp, t->dir, t->name, RENAME_EXCHANGE) == 0)
        return 0;
    return errno == EINVAL || errno == ENOSYS ? -EOPNOTSUPP : -errno;
}

/* Tells the file itself apart from others, a link's target is not looked at. */
static int tell_apart(const struct target *t, char ret[FILE_ETAG_SIZE])
{
    struct stat st;
    if (fstatat(t->dir, t->tmp, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return -errno;
    file_etag(&st, ret);
    return 0;
}

/*
 * Undoes an exchange that took away another version than it should. What lies aside gets its name back from
 * ours. Should a third file have the name by then, which replaced ours, that one keeps it, and what lay aside
 * is what it has replaced: the same again, with the two for what is aside and what has the name.
 */
static void give_back(struct target *t, const struct stat *own)
{
    char named[FILE_ETAG_SIZE], aside[FILE_ETAG_SIZE], taken[FILE_ETAG_SIZE];
    file_etag(own, named);
    int r = tell_apart(t, aside);
    for (int i = 0; i < EXCHANGE_TRIES && r == 0; i++) {
        r = exchange(t);
        if (r == 0)
            r = tell_apart(t, taken);
        if (r == 0 && strcmp(taken, named) == 0) { /* what lies aside now is ours, or was replaced */
            (void)sys->fsync(t->dir);
            return;
        }
        memcpy(named, aside, sizeof(named));
        memcpy(aside, taken, sizeof(aside));
    }
    t->has_tmp = false; /* nobody else's file is removed */
    put_back(t);
}

/* Puts the file in the place of one version and of no other. */
static int place_instead(struct file_origin *f, struct target *t, const struct stat *own,
                         struct slice if_match, struct err *e)
{
    struct stat st;
    char etag[FILE_ETAG_SIZE];
    bool any = slice_eq_str(if_match, "*"); /* whatever it replaces may go, also after a crash */
    int r = any ? 0 : name_aside(t, own, if_match, e);
    if (r < 0)
        return r;
    r = exchange(t);
    if (r == -EOPNOTSUPP)
        return place_over(t, e);
    if (r < 0)
        return r == -ENOENT ? err_set(e, ERR_PRECONDITION, "there is no such file")
                            : file_error(e, r, "rename", t->key);
    int _cleanup_close_ fd = open_away(f, t, &st, e);
    if (fd >= 0)
        file_etag(&st, etag);
    if (fd >= 0 && file_matches(if_match, slice_str(etag)))
        return 0; /* has_tmp: what it replaced is removed */
    give_back(t, own);
    return fd >= 0 || fd == -ENOENT
               ? err_set(e, ERR_PRECONDITION, "the file was replaced while it was to be written")
               : fd;
}

static int place(struct file_origin *f, struct target *t, const struct origin_put *p, const struct stat *own,
                 struct err *e)
{
    LOCK_SCOPE(&f->commit);
    int r = check_etag(f, t, p->if_match, e);
    if (r < 0)
        return r;
    origin_set_reach(p, ORIGIN_REACH_PERHAPS);
    if (p->if_none_match)
        return place_new(t, e);
    return p->if_match.n > 0 ? place_instead(f, t, own, p->if_match, e) : place_over(t, e);
}

/* "a/b/": the object without bytes that a directory is. */
static int put_dir(struct file_origin *f, struct target *t, const struct origin_put *p,
                   const struct origin_body *body, struct stat *ret_st, struct err *e)
{
    if (body->size_bytes > 0)
        return file_no_bytes(e);
    int _cleanup_close_ before = file_open_below(t->root, t->path, O_PATH | O_DIRECTORY | t->nofollow, 0);
    if (before >= 0 && p->if_none_match)
        return err_set(e, ERR_PRECONDITION, "the directory exists");
    origin_set_reach(p, ORIGIN_REACH_PERHAPS);
    int r = make_dirs(t, strlen(t->path));
    int _cleanup_close_ fd =
        r < 0 ? r : file_open_below(t->root, t->path, O_RDONLY | O_DIRECTORY | t->nofollow, 0);
    if (fd == -ENOTDIR)
        return err_set(e, -EINVAL, SLICE_FMT ": a file of that name is there", SLICE_ARG(t->key));
    r = fd < 0 ? fd : file_keep_meta(f, fd, -1, NULL, p);
    r = r < 0 ? r : sys->fsync(fd);
    if (r == 0)
        r = sys->fstat(fd, ret_st);
    return r < 0 ? file_error(e, r, "create", t->key) : 0;
}

static int put(struct file_origin *f, const struct origin_put *p, const struct origin_body *body,
               struct arena *a, struct origin_attr *ret_attr, struct err *e)
{
    struct target _cleanup_(target_fini) t;
    struct stat st;
    bool is_dir;
    origin_set_reach(p, ORIGIN_REACH_NOTHING);
    int r = target_open(f, &t, p->key, &is_dir, e);
    if (r == 0 && is_dir) {
        r = put_dir(f, &t, p, body, &st, e);
    } else if (r == 0) {
        r = open_dir(&t, /* make= */ true, e);
        if (r == 0)
            r = file_put_is_link(f, p) ? link_tmp(f, &t, p, body, &st, e) : write_tmp(f, &t, p, body, &st, e);
        if (r == 0)
            r = place(f, &t, p, &st, e);
        if (r == 0) {
            int synced = sys->fsync(t.dir);
            r = synced < 0 ? file_error(e, synced, "sync the directory of", t.key) : 0;
        }
    }
    if (r < 0)
        return r;
    char etag[FILE_ETAG_SIZE];
    file_etag(&st, etag);
    *ret_attr = file_attr(&st, arena_dup(a, slice_str(etag)));
    file_add_meta(f, &st, a, ret_attr);
    return 0;
}

int file_put(struct origin *o, const struct origin_put *p, const struct origin_body *body, struct arena *a,
             struct origin_attr *ret_attr, struct err *e)
{
    int r = put(file_of(o), p, body, a, ret_attr, e);
    origin_count_request(o, "put", err_http_status(r < 0 ? r : 0));
    return r;
}

/* ---- remove ---- */

static void choose_away(struct target *t, struct slice if_match)
{
    char text[ID_TEXT_SIZE];
    file_tmp_id(text);
    int n = snprintf(t->tmp, sizeof(t->tmp), FILE_TMP_PREFIX "%s-%016" PRIx64 "-%s", text,
                     hash_placement(if_match), t->name);
    if (n < 0 || (size_t)n >= sizeof(t->tmp))
        (void)snprintf(t->tmp, sizeof(t->tmp), FILE_TMP_PREFIX "away-%s", text);
}

/* Removes this version of the file. It is taken aside and looked at there, so that a file that takes its name
 * after the look is never removed. -EAGAIN: somebody put it back. */
static int remove_version(const struct file_origin *f, struct target *t, struct slice if_match, struct err *e)
{
    struct stat st;
    char etag[FILE_ETAG_SIZE];
    choose_away(t, if_match);
    if (renameat(t->dir, t->name, t->dir, t->tmp) < 0)
        return errno == ENOENT ? err_set(e, ERR_PRECONDITION, "there is no such file")
                               : file_error(e, -errno, "remove", t->key);
    int _cleanup_close_ fd = open_away(f, t, &st, e);
    if (fd >= 0)
        file_etag(&st, etag);
    if (fd >= 0 && file_matches(if_match, slice_str(etag))) {
        if (unlinkat(t->dir, t->tmp, 0) == 0)
            return 0;
        int r = -errno;
        put_back(t);
        if (r == -ENOENT)
            return is_free(t) ? 0 : -EAGAIN;
        return file_error(e, r, "remove", t->key);
    }
    put_back(t);
    return fd >= 0 || fd == -ENOENT
               ? err_set(e, ERR_PRECONDITION, "the file was replaced while it was to be removed")
               : fd;
}

static int remove_if(struct file_origin *f, struct target *t, struct slice if_match, struct err *e)
{
    int r = -EAGAIN;
    for (int i = 0; i < REMOVE_TRIES && r == -EAGAIN; i++) {
        r = check_etag(f, t, if_match, e);
        if (r == 0)
            r = remove_version(f, t, if_match, e);
    }
    if (r == -EAGAIN)
        return err_set(e, ERR_CONFLICT, "somebody else renames the file again and again");
    if (r < 0)
        return r;
    r = sys->fsync(t->dir);
    return r < 0 ? file_error(e, r, "sync the directory of", t->key) : 0;
}

/* What a killed run of this node was writing there is no key, and would keep the directory for a day.
 * -EAGAIN: nothing else is in it. */
static int clear_left(const struct file_origin *f, const struct target *t)
{
    int own = openat(t->dir, t->name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *dir = own < 0 ? NULL : fdopendir(own);
    if (!dir) {
        macro_close(&own);
        return -ENOTEMPTY;
    }
    struct dirent *d = NULL;
    bool is_empty = true;
    int r = 0;
    while (is_empty && (r = sys->readdir(dir, &d)) == 0 && d) {
        if (slice_starts(slice_str(d->d_name), SLICE_LIT(FILE_TMP_PREFIX)))
            file_meet_tmp(f, own, d->d_name);
        else
            is_empty = strcmp(d->d_name, ".") == 0 || strcmp(d->d_name, "..") == 0;
    }
    (void)closedir(dir);
    return r < 0 ? r : is_empty ? -EAGAIN : -ENOTEMPTY;
}

static int remove_name(const struct file_origin *f, const struct target *t, bool is_dir)
{
    int flags = is_dir ? AT_REMOVEDIR : 0;
    if (unlinkat(t->dir, t->name, flags) == 0)
        return 0;
    int r = -errno;
    if (is_dir && (r == -ENOTEMPTY || r == -EEXIST))
        r = clear_left(f, t);
    if (r == -EAGAIN)
        r = unlinkat(t->dir, t->name, flags) < 0 ? -errno : 0;
    return r;
}

static int do_remove(struct file_origin *f, struct slice key, struct slice if_match, struct err *e)
{
    struct target _cleanup_(target_fini) t;
    bool is_dir;
    int r = target_open(f, &t, key, &is_dir, e);
    if (r == -EINVAL) /* such an object cannot be there */
        return err_set(e, -ENOENT, "no such file");
    if (r == 0)
        r = open_dir(&t, /* make= */ false, e);
    if (r < 0)
        return r;
    LOCK_SCOPE(&f->commit);
    if (!is_dir && if_match.n > 0 && !slice_eq_str(if_match, "*"))
        return remove_if(f, &t, if_match, e);
    if (!is_dir)
        r = check_etag(f, &t, if_match, e);
    if (r < 0)
        return r;
    r = remove_name(f, &t, is_dir);
    if (is_dir && (r == -ENOTEMPTY || r == -EEXIST))
        return 0; /* as in S3: what lies below stays, and with it the directory */
    if (!is_dir && (r == -EISDIR || r == -EPERM))
        return err_set(e, r == -EISDIR ? -ENOENT : ERR_ORIGIN_DENIED, SLICE_FMT ": %s", SLICE_ARG(key),
                       err_text(r));
    if (r < 0)
        return file_error(e, r, "remove", key);
    r = sys->fsync(t.dir);
    return r < 0 ? file_error(e, r, "sync the directory of", key) : 0;
}

int file_remove(struct origin *o, struct slice key, struct slice if_match, struct err *e)
{
    int r = do_remove(file_of(o), key, if_match, e);
    origin_count_request(o, "delete", r < 0 ? err_http_status(r) : 204);
    return r;
}

/* ---- copy ---- */

struct source {
    int fd;
    uint64_t size;
    bool is_link;
    char etag[FILE_ETAG_SIZE];
};

/* The last bytes are given only if the file still is the one whose first bytes were. */
static ssize_t read_source(void *arg, void *p, size_t n, uint64_t offset)
{
    const struct source *s = arg;
    if (quit_is_now())
        return -ECANCELED;
    ssize_t got = s->is_link ? readlinkat(s->fd, "", p, n) : sys->pread(s->fd, p, n, offset);
    if (s->is_link)
        return got < 0 ? -errno : got;
    if (got <= 0 || offset + (uint64_t)got < s->size)
        return got;
    struct stat st;
    char now[FILE_ETAG_SIZE];
    int r = sys->fstat(s->fd, &st);
    if (r < 0)
        return r;
    file_etag(&st, now);
    return strcmp(now, s->etag) == 0 ? got : ERR_ORIGIN_SHORT;
}

static int copy_from(struct file_origin *f, struct slice from, struct slice to, struct slice if_match,
                     struct arena *a, struct origin_attr *ret_attr, struct err *e)
{
    char path[ORIGIN_KEY_MAX_BYTES + 1];
    bool is_dir;
    struct stat st;
    if (file_key_path(from, path, &is_dir, e) < 0)
        return err_set(e, -ENOENT, "no such file");
    int _cleanup_close_ root = file_open_root(f, e);
    if (root < 0)
        return root;
    struct origin_put p = {.key = to};
    if (is_dir) {
        struct origin_body none = {.read = read_source};
        struct origin_attr there = {0};
        int _cleanup_close_ dir = file_open_below(root, path, O_PATH | O_DIRECTORY | file_nofollow(f), 0);
        int r = dir < 0 ? dir : sys->fstat(dir, &st);
        if (r < 0)
            return file_error(e, r, "open", from);
        file_add_meta(f, &st, a, &there);
        p.meta = there.meta;
        return put(f, &p, &none, a, ret_attr, e);
    }
    int _cleanup_close_ fd = file_open_object(f, root, from, path, &st, e);
    if (fd < 0)
        return fd;
    struct source source = {.fd = fd, .size = (uint64_t)st.st_size, .is_link = S_ISLNK(st.st_mode)};
    struct origin_attr there = {0};
    file_etag(&st, source.etag);
    if (!file_matches(if_match, slice_str(source.etag)))
        return err_set(e, ERR_PRECONDITION, "the file's ETag is %s and not " SLICE_FMT, source.etag,
                       SLICE_ARG(if_match));
    file_add_meta(f, &st, a, &there);
    p.meta = there.meta;
    struct origin_body body = {.size_bytes = source.size, .read = read_source, .arg = &source};
    return put(f, &p, &body, a, ret_attr, e);
}

int file_copy(struct origin *o, struct slice from, struct slice to, struct slice if_match, struct arena *a,
              struct origin_attr *ret_attr, struct err *e)
{
    int r = copy_from(file_of(o), from, to, if_match, a, ret_attr, e);
    origin_count_request(o, "copy", err_http_status(r < 0 ? r : 0));
    return r;
}

/* ---- metadata ---- */

static int set_meta(struct file_origin *f, const struct origin_put *p, struct arena *a,
                    struct origin_attr *ret_attr, struct err *e)
{
    struct target _cleanup_(target_fini) t;
    struct stat st;
    char etag[FILE_ETAG_SIZE];
    bool is_dir;
    int r = target_open(f, &t, p->key, &is_dir, e);
    if (r == 0)
        r = open_dir(&t, /* make= */ false, e);
    if (r < 0)
        return r;
    LOCK_SCOPE(&f->commit);
    int _cleanup_close_ fd = is_dir ? file_open_below(t.root, t.path, O_RDONLY | O_DIRECTORY | t.nofollow, 0)
                                    : file_open_object(f, t.root, p->key, t.path, &st, e);
    if (is_dir && (fd < 0 || fstat(fd, &st) < 0))
        return file_error(e, fd < 0 ? fd : -errno, "open", p->key);
    if (fd < 0)
        return fd;
    file_etag(&st, etag);
    if (!file_matches(p->if_match, slice_str(etag)))
        return err_set(e, ERR_PRECONDITION, "the file's ETag is %s and not " SLICE_FMT, etag,
                       SLICE_ARG(p->if_match));
    r = file_change_meta(f, fd, t.dir, t.name, &st, p, e);
    if (r < 0)
        return r;
    r = sys->fstat(fd, &st);
    if (r < 0)
        return file_error(e, r, "stat", p->key);
    file_etag(&st, etag);
    *ret_attr = file_attr(&st, arena_dup(a, slice_str(etag)));
    file_add_meta(f, &st, a, ret_attr);
    return 0;
}

int file_set_meta(struct origin *o, const struct origin_put *p, uint64_t size_bytes, struct arena *a,
                  struct origin_attr *ret_attr, struct err *e)
{
    (void)size_bytes;
    struct file_origin *f = file_of(o);
    int r = f->base.posix
                ? set_meta(f, p, a, ret_attr, e)
                : err_set(e, ERR_NOT_IMPLEMENTED, "files keep metadata only with the property posix=on");
    origin_count_request(o, "set_meta", err_http_status(r < 0 ? r : 0));
    return r;
}

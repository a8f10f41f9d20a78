/*
 * The file kind: a directory, usually of a network file system, as an origin. file:///mnt/nas/train
 *
 *     key        file
 *     a/b.tar    DIR/a/b.tar
 *     a/         the directory DIR/a, as an object without bytes
 *
 * Keys that are no paths ("a//b", "../x", "/x", a name over 255 bytes) are never found and cannot be written.
 * Symbolic links are followed while they stay below the directory; a link that leads out of it, or an
 * absolute one, is refused with ERR_ORIGIN_DENIED. (Where the bucket keeps links they are objects instead,
 * and never followed: file_posix.c.) Devices, sockets and pipes are no objects.
 *
 * The ETag is made of the file's modification time, size and inode. It is taken from the open file before a
 * range is read and again after, so that bytes of a file that was changed meanwhile are not passed off as one
 * version. (A file changed in place twice within the file system's clock tick, with its size kept, shows the
 * same ETag.)
 *
 * Invariants:
 *  1. No path below the directory is resolved without openat2(RESOLVE_BENEATH).
 *  2. The directory is opened anew for each operation: one that was unmounted and mounted again is found
 * again, and one that is gone is ERR_ORIGIN_DOWN, never "no such object". So is one that was a mount point
 * before, or is one by /etc/fstab, and is none now: nothing is read of what lies below the share, and nothing
 * is written there.
 *
 * Failure modes: as in origin.h; errors of the file system that have no class there are ERR_ORIGIN_FAILED.
 */
#include "origin/file_internal.h"

#include "base/hash.h"
#include "base/id.h"
#include "base/le.h"
#include "base/quit.h"

#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/openat2.h>
#include <stdatomic.h>
#include <sys/syscall.h>

#define FSTAB "/etc/fstab"

int file_error(struct err *e, int error, const char *what, struct slice key)
{
    assert(error < 0);
    int class;
    switch (error) {
    case -ENOENT:
    case -ENOTDIR:
        class = -ENOENT;
        break;
    case -EACCES:
    case -EPERM:
    case -EROFS:
    case -EXDEV:
    case -ELOOP:
        class = ERR_ORIGIN_DENIED;
        break;
    case -ENODEV:
    case -ENXIO:
    case -EHOSTDOWN:
    case -ENOTCONN:
        class = ERR_ORIGIN_DOWN;
        break;
    case -ENOSPC:
    case -EDQUOT:
        class = -ENOSPC;
        break;
    case -ETIMEDOUT:
    case -ECANCELED:
    case -ENAMETOOLONG:
    case -EFBIG:
    case -EMFILE:
    case -ENFILE:
    case -ENOMEM:
        class = error;
        break;
    default:
        class = ERR_ORIGIN_FAILED;
    }
    const char *text =
        error == -EXDEV || error == -ELOOP ? "a symbolic link leads out of the directory" : err_text(error);
    (void)err_set(e, class, "%s", text);
    return err_prefix(e, class, "%s " SLICE_FMT, what, SLICE_ARG(key));
}

/* What is left of a share that is not mounted is an empty directory of another file system: what is written
 * there would be hidden by the share, and what is missing there is not gone. */
static int check_mounted(struct file_origin *f, int fd, struct err *e)
{
    struct stat own, above;
    int r = sys->fstat(fd, &own);
    if (r == 0)
        r = sys->stat(f->above, &above);
    if (r < 0)
        return err_set(e, ERR_ORIGIN_DOWN, "directory %s: %s", f->root, err_text(r));
    if (own.st_dev != above.st_dev)
        atomic_store(&f->is_mount, true);
    else if (atomic_load(&f->is_mount))
        return err_set(e, ERR_ORIGIN_DOWN, "directory %s: what is to be mounted there is not", f->root);
    return 0;
}

int file_open_root(struct file_origin *f, struct err *e)
{
    int _cleanup_close_ fd = sys->open(f->root, O_PATH | O_DIRECTORY | O_CLOEXEC, 0);
    if (fd < 0)
        return err_set(e, ERR_ORIGIN_DOWN, "directory %s: %s", f->root, err_text(fd));
    int r = check_mounted(f, fd, e);
    return r < 0 ? r : TAKE_FD(fd);
}

int file_open_below(int root, const char *path, uint64_t flags, uint64_t mode)
{
    uint64_t links = flags & O_NOFOLLOW ? RESOLVE_NO_SYMLINKS : 0;
    struct open_how how = {
        .flags = flags | O_CLOEXEC, .mode = mode, .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS | links};
    for (;;) {
        long fd = syscall(SYS_openat2, root, *path ? path : ".", &how, sizeof(how));
        if (fd >= 0)
            return (int)fd;
        if (errno != EINTR && errno != EAGAIN) /* EAGAIN: renamed during the walk */
            return -errno;
    }
}

static int bad_key(struct err *e, const char *why)
{
    return err_set(e, -EINVAL, "the key cannot be a path: %s", why);
}

int file_no_bytes(struct err *e)
{
    return err_set(e, -EINVAL, "a key that ends with '/' is a directory and has no bytes");
}

int file_key_path(struct slice key, char *ret, bool *ret_is_dir, struct err *e)
{
    if (key.n == 0 || key.n > ORIGIN_KEY_MAX_BYTES)
        return bad_key(e, key.n ? "too long" : "empty");
    if (memchr(key.p, '\0', key.n))
        return bad_key(e, "it has a NUL byte");
    bool is_dir = key.p[key.n - 1] == '/';
    struct slice rest = slice_sub(key, 0, key.n - (is_dir ? 1 : 0)), path = rest;
    do {
        struct slice name = slice_split(&rest, '/');
        if (name.n == 0)
            return bad_key(e, "it has an empty name");
        if (slice_eq_str(name, ".") || slice_eq_str(name, ".."))
            return bad_key(e, "it has \".\" or \"..\"");
        if (name.n > 255)
            return bad_key(e, "it has a name of more than 255 bytes");
        if (slice_starts(name, SLICE_LIT(FILE_TMP_PREFIX)))
            return bad_key(e, "names that begin with " FILE_TMP_PREFIX " are reserved");
    } while (rest.n > 0);
    if (path.p[path.n - 1] == '/')
        return bad_key(e, "it has an empty name");
    memcpy(ret, path.p, path.n);
    ret[path.n] = '\0';
    *ret_is_dir = is_dir;
    return 0;
}

int file_takes(struct origin *o, const struct origin_put *p, uint64_t size_bytes, struct err *e)
{
    char path[ORIGIN_KEY_MAX_BYTES + 1];
    bool is_dir;
    (void)o;
    int r = file_key_path(p->key, path, &is_dir, e);
    return r == 0 && is_dir && size_bytes > 0 ? file_no_bytes(e) : r;
}

uint64_t file_mtime_ns(const struct stat *st)
{
    return (uint64_t)st->st_mtim.tv_sec * 1000000000 + (uint64_t)st->st_mtim.tv_nsec;
}

/* ---- whose reserved names are ---- */

/* Ids of reserved names: 8 bytes of the node, 4 of its run, 4 that count. */
#define RUN_AT   8
#define COUNT_AT 12

static struct {
    uint64_t node; /* 0: not known */
    uint32_t run;
    uint64_t since_ns;
    _Atomic uint32_t n;
} own;

void origin_set_node(struct slice node_id)
{
    own.node = hash_placement(node_id);
    sys->random(&own.run, sizeof(own.run));
    own.since_ns = sys->real_ns();
}

void file_tmp_id(char ret[ID_TEXT_SIZE])
{
    struct id128 id;
    id_new(&id);
    if (own.node != 0) {
        be_put64(id.b, own.node);
        be_put32(id.b + RUN_AT, own.run);
        be_put32(id.b + COUNT_AT, atomic_fetch_add(&own.n, 1));
    }
    id_text(id, ret);
}

/* Whether the name is one of this node's, of whichever run. */
static bool is_of_node(const char *name, struct id128 *ret)
{
    size_t n = strlen(FILE_TMP_PREFIX);
    return own.node != 0 && strncmp(name, FILE_TMP_PREFIX, n) == 0 && strlen(name + n) >= ID_TEXT_SIZE - 1 &&
           id_parse(slice_of(name + n, ID_TEXT_SIZE - 1), ret) == 0 && be_get64(ret->b) == own.node;
}

bool file_tmp_is_own(const char *name)
{
    struct id128 id;
    return is_of_node(name, &id);
}

/* A copy of the node's data directory has the same id; what that writes is younger. */
bool file_tmp_is_of_killed(const char *name, uint64_t ctime_ns)
{
    struct id128 id;
    return is_of_node(name, &id) && be_get32(id.b + RUN_AT) != own.run && ctime_ns < own.since_ns;
}

bool file_tmp_is_left(const char *name, uint64_t ctime_ns)
{
    size_t n = strlen(FILE_TMP_PREFIX);
    struct id128 id;
    uint64_t now_ns = sys->real_ns();
    if (strncmp(name, FILE_TMP_PREFIX, n) != 0 || id_parse(slice_str(name + n), &id) < 0)
        return false;
    return file_tmp_is_of_killed(name, ctime_ns) ||
           (now_ns > ctime_ns && now_ns - ctime_ns > FILE_TMP_KEEP_NS);
}

/* 16 digits behind the separator; what is behind them, or NULL. */
static const char *parse_hash(const char *name, char separator, uint64_t *ret_hash)
{
    char digits[17];
    if (name[0] != separator || strspn(name + 1, "0123456789abcdef") != sizeof(digits) - 1)
        return NULL;
    memcpy(digits, name + 1, sizeof(digits) - 1);
    digits[sizeof(digits) - 1] = '\0';
    *ret_hash = strtoull(digits, NULL, 16);
    return name + sizeof(digits);
}

const char *file_away_name(const char *name, uint64_t ret_hash[2])
{
    struct id128 id;
    uint64_t hash[2];
    size_t at = strlen(FILE_TMP_PREFIX), id_n = ID_TEXT_SIZE - 1;
    if (strncmp(name, FILE_TMP_PREFIX, at) != 0 || strlen(name) < at + id_n ||
        id_parse(slice_of(name + at, id_n), &id) < 0)
        return NULL;
    name = parse_hash(name + at + id_n, '-', &hash[0]);
    hash[1] = hash[0];
    if (name && name[0] == '+')
        name = parse_hash(name, '+', &hash[1]);
    if (!name || name[0] != '-' || !name[1])
        return NULL;
    name++;
    if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0 || strncmp(name, FILE_TMP_PREFIX, at) == 0)
        return NULL;
    memcpy(ret_hash, hash, sizeof(hash));
    return name;
}

void file_etag(const struct stat *st, char ret[FILE_ETAG_SIZE])
{
    (void)snprintf(ret, FILE_ETAG_SIZE, "%" PRIx64 "-%" PRIx64 "-%" PRIx64, file_mtime_ns(st),
                   (uint64_t)st->st_size, (uint64_t)st->st_ino);
}

struct origin_attr file_attr(const struct stat *st, struct slice etag)
{
    return (struct origin_attr){.size_bytes = S_ISREG(st->st_mode) ? (uint64_t)st->st_size : 0,
                                .mtime_ns = file_mtime_ns(st),
                                .etag = etag};
}

bool file_matches(struct slice want, struct slice etag)
{
    return want.n == 0 || slice_eq_str(want, "*") || slice_eq(want, etag);
}

int file_open_object(const struct file_origin *f, int root, struct slice key, const char *path,
                     struct stat *ret_st, struct err *e)
{
    /* O_NONBLOCK: a pipe must not hold the thread. */
    int _cleanup_close_ fd = file_open_below(root, path, O_RDONLY | O_NONBLOCK | file_nofollow(f), 0);
    if (fd == -ELOOP && f->base.posix)
        return file_open_link(root, key, path, ret_st, e);
    if (fd < 0)
        return file_error(e, fd, "open", key);
    int r = sys->fstat(fd, ret_st);
    if (r < 0)
        return file_error(e, r, "stat", key);
    if (!S_ISREG(ret_st->st_mode))
        return err_set(e, -ENOENT, SLICE_FMT " is no file", SLICE_ARG(key));
    return TAKE_FD(fd);
}

/* ---- reading ---- */

static int check_conditions(const struct origin_get *g, struct slice etag, struct err *e)
{
    if (file_matches(g->if_match, etag))
        return 0;
    return err_set(e, ERR_PRECONDITION, "the file's ETag is " SLICE_FMT " and no longer " SLICE_FMT,
                   SLICE_ARG(etag), SLICE_ARG(g->if_match));
}

/* The bytes of [offset, end) to the sink. */
static int pump(int fd, const struct origin_get *g, uint64_t end, const struct origin_attr *attr,
                origin_sink_fn sink, void *arg, struct err *e)
{
    char _cleanup_free_ *piece = malloc(FILE_PIECE_BYTES);
    if (!piece)
        return err_set(e, -ENOMEM, "no memory to read");
    for (uint64_t at = g->offset; at < end;) {
        if ((g->cancel && atomic_load(g->cancel)) || quit_is_now())
            return err_set(e, -ECANCELED, "canceled");
        ssize_t n = sys->pread(fd, piece, MIN(end - at, (uint64_t)FILE_PIECE_BYTES), at);
        if (n < 0)
            return file_error(e, (int)n, "read", g->key);
        if (n == 0)
            return err_set(e, ERR_ORIGIN_SHORT,
                           "the file ended at %" PRIu64 ", %" PRIu64 " bytes were expected", at,
                           attr->size_bytes);
        int r = sink(arg, attr, piece, (size_t)n);
        if (r != 0)
            return r;
        at += (uint64_t)n;
    }
    return g->offset == end ? sink(arg, attr, NULL, 0) : 0;
}

/* Whether the open file still is the version that was read. */
static int check_unchanged(int fd, const struct origin_get *g, const char *etag, struct err *e)
{
    struct stat st;
    char now[FILE_ETAG_SIZE];
    int r = sys->fstat(fd, &st);
    if (r < 0)
        return file_error(e, r, "stat", g->key);
    file_etag(&st, now);
    if (strcmp(now, etag) == 0)
        return 0;
    return err_set(e, g->if_match.n ? ERR_PRECONDITION : ERR_ORIGIN_SHORT,
                   "the file was changed while it was read");
}

/* The bytes of a link are its target. */
static int read_link(int fd, const struct origin_get *g, struct origin_attr *attr, origin_sink_fn sink,
                     void *arg, struct err *e)
{
    char target[FILE_TARGET_SIZE];
    ssize_t n = readlinkat(fd, "", target, sizeof(target));
    if (n < 0)
        return file_error(e, -errno, "read the link", g->key);
    if ((uint64_t)n != attr->size_bytes)
        return err_set(e, ERR_ORIGIN_SHORT, "the link was changed while it was read");
    if (g->offset >= (uint64_t)n)
        return err_set(e, ERR_RANGE, "offset %" PRIu64 " of a link of %zd bytes", g->offset, n);
    uint64_t left = (uint64_t)n - g->offset;
    return sink(arg, attr, target + g->offset, g->whole ? left : MIN(g->n, left));
}

static int read_file(const struct file_origin *f, int fd, const struct stat *st, const struct origin_get *g,
                     struct arena *a, struct origin_attr *ret, origin_sink_fn sink, void *arg, struct err *e)
{
    char etag[FILE_ETAG_SIZE];
    file_etag(st, etag);
    int r = check_conditions(g, slice_str(etag), e);
    if (r < 0)
        return r;
    *ret = file_attr(st, arena_dup(a, slice_str(etag)));
    file_add_meta(f, st, a, ret);
    if (g->attributes_only)
        return sink(arg, ret, NULL, 0);
    if (S_ISLNK(st->st_mode))
        return read_link(fd, g, ret, sink, arg, e);
    uint64_t size = ret->size_bytes;
    if (g->offset >= size && g->offset > 0)
        return err_set(e, ERR_RANGE, "offset %" PRIu64 " of a file of %" PRIu64 " bytes", g->offset, size);
    uint64_t end = g->whole || g->n > size - g->offset ? size : g->offset + g->n;
    r = pump(fd, g, end, ret, sink, arg, e);
    return r == 0 ? check_unchanged(fd, g, etag, e) : r;
}

static int read_dir(const struct file_origin *f, int root, const char *path, const struct origin_get *g,
                    struct arena *a, struct origin_attr *ret, origin_sink_fn sink, void *arg, struct err *e)
{
    struct stat st;
    int _cleanup_close_ fd = file_open_below(root, path, O_PATH | O_DIRECTORY | file_nofollow(f), 0);
    int r = fd < 0 ? fd : sys->fstat(fd, &st);
    if (r < 0)
        return file_error(e, r, "open", g->key);
    char etag[FILE_ETAG_SIZE];
    file_etag(&st, etag);
    r = check_conditions(g, slice_str(etag), e);
    if (r == 0 && !g->attributes_only && g->offset > 0)
        r = err_set(e, ERR_RANGE, "a directory has no bytes");
    if (r < 0)
        return r;
    *ret = file_attr(&st, arena_dup(a, slice_str(etag)));
    file_add_meta(f, &st, a, ret);
    return sink(arg, ret, NULL, 0);
}

static int get(struct file_origin *f, const struct origin_get *g, struct arena *a, struct origin_attr *ret,
               origin_sink_fn sink, void *arg, struct err *e)
{
    char path[ORIGIN_KEY_MAX_BYTES + 1];
    bool is_dir;
    if (file_key_path(g->key, path, &is_dir, e) < 0) {
        if (e)
            e->code = -ENOENT;
        return -ENOENT;
    }
    int _cleanup_close_ root = file_open_root(f, e);
    if (root < 0)
        return root;
    if (is_dir)
        return read_dir(f, root, path, g, a, ret, sink, arg, e);
    struct stat st;
    int _cleanup_close_ fd = file_open_object(f, root, g->key, path, &st, e);
    if (fd < 0)
        return fd;
    return read_file(f, fd, &st, g, a, ret, sink, arg, e);
}

static int file_get(struct origin *o, const struct origin_get *g, struct arena *a,
                    struct origin_attr *ret_attr, origin_sink_fn sink, void *arg, struct err *e)
{
    struct origin_attr attr;
    int r = get(file_of(o), g, a, &attr, sink, arg, e);
    origin_count_request(o, g->attributes_only ? "head" : "get", err_http_status(r < 0 ? r : 0));
    if (r == 0)
        *ret_attr = attr;
    return r;
}

/* ---- opening ---- */

/* The next word of a line of fstab, without its escapes ("\\040" is a space). */
static bool next_word(struct slice *line, char ret[PATH_MAX])
{
    size_t n = 0;
    while (line->n > 0 && strchr(" \t", line->p[0]))
        *line = slice_from(*line, 1);
    while (line->n > 0 && !strchr(" \t", line->p[0]) && n < PATH_MAX - 1) {
        bool is_escape = line->n >= 4 && line->p[0] == '\\';
        for (size_t i = 1; i < 4 && is_escape; i++)
            is_escape = line->p[i] >= '0' && line->p[i] <= '7';
        ret[n++] = !is_escape ? line->p[0]
                              : (char)((line->p[1] - '0') * 64 + (line->p[2] - '0') * 8 + line->p[3] - '0');
        *line = slice_from(*line, is_escape ? 4 : 1);
    }
    ret[n] = '\0';
    return n > 0;
}

static bool has_option(struct slice options, const char *name)
{
    bool found = false;
    while (options.n > 0 && !found)
        found = slice_eq_str(slice_split(&options, ','), name);
    return found;
}

bool file_is_in_fstab(struct slice text, struct slice path)
{
    while (text.n > 0) {
        struct slice line = slice_split(&text, '\n');
        char word[PATH_MAX], options[PATH_MAX];
        if (!next_word(&line, word) || word[0] == '#' || !next_word(&line, word))
            continue;
        struct slice at = slice_str(word), o = SLICE_NULL;
        while (at.n > 0 && at.p[at.n - 1] == '/')
            at.n--;
        if (next_word(&line, options) && next_word(&line, options)) /* behind the type */
            o = slice_str(options);
        bool when_asked = has_option(o, "noauto") && !has_option(o, "x-systemd.automount");
        bool binds = has_option(o, "bind") || has_option(o, "rbind"); /* is no other file system */
        if (at.n > 0 && slice_eq(at, path))
            return !when_asked && !binds;
    }
    return false;
}

/* At the start of a machine the share may come later than the node. */
static bool should_be_mounted(struct slice root)
{
    char _cleanup_free_ *text = NULL;
    size_t n = 0;
    return sys_read_file(FSTAB, MIB, &text, &n) == 0 && file_is_in_fstab(slice_of(text, n), root);
}

static int file_open(struct slice rest, const struct origin_options *o, struct origin **ret, struct err *e)
{
    (void)o;
    while (rest.n > 1 && rest.p[rest.n - 1] == '/')
        rest.n--;
    if (rest.n == 0 || rest.p[0] != '/')
        return err_set(e, ERR_BAD_OPTION, "write file:///DIR with an absolute path");
    struct file_origin *f = calloc(1, sizeof(*f));
    if (!f)
        abort();
    f->magic = FILE_MAGIC;
    f->base.ops = &origin_file_ops;
    f->base.capabilities = ORIGIN_CAN_RANGE | ORIGIN_CAN_IF_MATCH | ORIGIN_CAN_CONDITIONAL_PUT |
                           ORIGIN_CAN_COPY | ORIGIN_HAS_DIRECTORIES;
    f->root = slice_dup(rest);
    if (asprintf(&f->above, SLICE_FMT "/..", SLICE_ARG(rest)) < 0)
        abort();
    atomic_init(&f->is_mount, should_be_mounted(rest));
    lock_init(&f->commit, LOCK_ORIGIN);
    *ret = &f->base;
    return 0;
}

static void file_close(struct origin *o)
{
    struct file_origin *f = file_of(o);
    lock_fini(&f->commit);
    free(f->root);
    free(f->above);
    f->magic = 0;
    free(f);
}

const struct origin_ops origin_file_ops = {
    .scheme = "file",
    .is_deaf = true,
    .open = file_open,
    .close = file_close,
    .get = file_get,
    .list = file_list,
    .put = file_put,
    .remove = file_remove,
    .copy = file_copy,
    .takes = file_takes,
    .set_meta = file_set_meta,
};

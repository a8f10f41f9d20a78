/*
 * forebay cat, forebay get
 *
 * get writes beside the target and renames when all bytes are there: an interrupted get leaves no half file
 * under the final name, and several of one target do not meet. Several threads fetch several objects at once.
 */
#include "cli/cli.h"
#include "cli/command.h"

#include "base/lock.h"
#include "base/sys.h"
#include "client/client_file.h"

#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <unistd.h>

#define PIECE_BYTES (1 * MIB)
#define PATH_BYTES  4096
#define PART_BYTES  22 /* ".01234567.forebay-part" */

struct get_options {
    struct command_node node;
    bool recursive, quiet;
    uint64_t jobs, offset, length;
};

static const struct option get_rows[] = {
    COMMAND_FLAG(get_options, recursive, "recursive", 'r', "everything below the prefix"),
    COMMAND_FLAG(get_options, quiet, "quiet", 'q', "no progress and no summary"),
    {.name = "jobs",
     .short_flag = 'j',
     .type = OPTION_UINT,
     .offset = offsetof(struct get_options, jobs),
     .def = "8",
     .min = 1,
     .max = 256,
     .arg = "N",
     .doc = "-r: objects fetched at the same time"},
    COMMAND_NODE_ROWS(get_options),
};
static const struct option_table get_table = {get_rows, ARRAY_SIZE(get_rows), NULL};

static const struct option cat_rows[] = {
    {.name = "offset",
     .type = OPTION_SIZE,
     .offset = offsetof(struct get_options, offset),
     .def = "0",
     .arg = "SIZE",
     .doc = "begin at this byte"},
    {.name = "length",
     .type = OPTION_SIZE,
     .offset = offsetof(struct get_options, length),
     .def = "0",
     .arg = "SIZE",
     .doc = "at most so many bytes; 0 means to the end"},
    COMMAND_NODE_ROWS(get_options),
};
static const struct option_table cat_table = {cat_rows, ARRAY_SIZE(cat_rows), NULL};

static const struct command_usage cat_usage = {
    .command = "forebay cat",
    .operands = "BUCKET/KEY...",
    .about = "Writes the bytes of objects to standard output.",
    .min_operands = 1,
    .max_operands = -1,
};

static const struct command_usage get_usage = {
    .command = "forebay get",
    .operands = "BUCKET/KEY [TARGET]",
    .about =
        "Fetches an object into a file (default: its last name, here), or with -r everything below a prefix "
        "into a\n"
        "directory. A file appears under its name only when it is whole. \"-\" as target is standard output.",
    .min_operands = 1,
    .max_operands = 2,
};

/* Copies [offset, offset+n) of an open object to fd. */
static int copy_out(struct client_file *f, int fd, uint64_t offset, uint64_t n, struct progress *p,
                    struct err *e)
{
    _cleanup_free_ char *piece = malloc(PIECE_BYTES);
    assert(piece);
    while (n > 0) {
        ssize_t got = client_file_pread(f, piece, MIN(n, PIECE_BYTES), offset, e);
        if (got <= 0)
            return got < 0 ? (int)got : err_set(e, -ENODATA, "object ended early");
        for (ssize_t done = 0; done < got;) {
            ssize_t w = write(fd, piece + done, (size_t)(got - done));
            if (w < 0 && errno != EINTR)
                return err_errno(e, -errno, "write");
            done += MAX(w, 0);
        }
        offset += (uint64_t)got;
        n -= (uint64_t)got;
        if (p)
            progress_add(p, 0, (uint64_t)got);
    }
    return 0;
}

static int open_object(struct client *c, struct slice bucket, struct slice key, uint64_t offset,
                       uint64_t expect, struct client_file **ret, struct err *e)
{
    struct client_file_open q = {.bucket = bucket, .key = key, .offset = offset, .expect = expect};
    return client_file_open(c, &q, ret, e);
}

static int cat_one(struct client *c, const struct get_options *o, const char *path, struct err *e)
{
    struct slice bucket, key;
    _cleanup_(client_file_closep) struct client_file *f = NULL;
    int r = command_path(path, &bucket, &key, e);
    if (r == 0 && key.n == 0)
        r = err_set(e, ERR_BAD_OPTION, "'%s': must be BUCKET/KEY", path);
    if (r == 0)
        r = open_object(c, bucket, key, o->offset, o->length ? o->length : UINT64_MAX, &f, e);
    if (r < 0)
        return r;
    uint64_t size = client_file_attr(f)->size_bytes;
    if (o->offset > size)
        return err_set(e, ERR_RANGE, "%s: --offset %" PRIu64 " is beyond its %" PRIu64 " bytes", path,
                       o->offset, size);
    uint64_t n = size - o->offset;
    return copy_out(f, STDOUT_FILENO, o->offset, o->length ? MIN(n, o->length) : n, NULL, e);
}

int cmd_cat(int argc, char **argv)
{
    struct get_options o = {0};
    int n, status;
    if (command_parse(&cat_usage, &cat_table, &o, argc, argv, &n, &status)) {
        struct err e = {0};
        _cleanup_(client_freep) struct client *c = NULL;
        int r = command_connect(&o.node, &c, &e);
        for (int i = 0; r == 0 && i < n; i++)
            if ((r = cat_one(c, &o, argv[i], &e)) < 0)
                r = command_blame(&e, r, argv[i]);
        if (r < 0)
            status = command_fail(cat_usage.command, r, &e);
    }
    option_fini(&cat_table, &o);
    return status;
}

/* ---- get ---- */

/* A file without a name in the target's directory: nothing stays of a get that is killed. Negative where the
 * file system has none, or where it could not get a name later. */
static int open_nameless(const char *target)
{
    char directory[PATH_BYTES];
    const char *slash = strrchr(target, '/');
    if (access("/proc/self/fd", X_OK) < 0)
        return -errno;
    (void)snprintf(directory, sizeof(directory), "%.*s", slash ? (int)(slash - target) + 1 : 1,
                   slash ? target : ".");
    return sys->open(directory, O_WRONLY | O_TMPFILE | O_CLOEXEC, 0644);
}

static int give_name(int fd, const char *name)
{
    char self[32];
    (void)snprintf(self, sizeof(self), "/proc/self/fd/%d", fd);
    return linkat(AT_FDCWD, self, AT_FDCWD, name, AT_SYMLINK_FOLLOW) < 0 ? -errno : 0;
}

/* The name beside the target that its bytes have until all are there. Two gets of one target, and of a key
 * that ends like this, have files of their own; a long name is cut, so that any name can be fetched. */
static int part_name(const char *target, char ret[PATH_BYTES], struct err *e)
{
    const char *slash = strrchr(target, '/');
    size_t at = slash ? (size_t)(slash - target) + 1 : 0;
    size_t keep = at + MIN(strlen(target + at), (size_t)NAME_MAX - PART_BYTES);
    uint32_t tag;
    sys->random(&tag, sizeof(tag));
    if ((size_t)snprintf(ret, PATH_BYTES, "%.*s.%08" PRIx32 ".forebay-part", (int)keep, target, tag) >=
        PATH_BYTES)
        return err_set(e, -ENAMETOOLONG, "%s", target);
    return 0;
}

/* Into a new file beside the target, which then gets its name. close(2) is where NFS and mounts tell. */
static int get_beside(struct client_file *f, const char *target, uint64_t size, struct progress *p,
                      struct err *e)
{
    char part[PATH_BYTES];
    int r = part_name(target, part, e);
    if (r < 0)
        return r;
    _cleanup_close_ int fd = open_nameless(target);
    bool has_name = fd < 0;
    if (has_name)
        fd = sys->open(part, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd < 0)
        return err_errno(e, fd, "create %s", part);
    r = copy_out(f, fd, 0, size, p, e);
    if (r == 0 && !has_name) {
        r = give_name(fd, part);
        has_name = r == 0;
        if (r < 0)
            r = err_errno(e, r, "create %s", part);
    }
    int k = sys->close(TAKE_FD(fd));
    if (r == 0 && k < 0)
        r = err_errno(e, k, "write %s", part);
    if (r == 0 && (r = sys->rename(part, target)) < 0)
        r = err_errno(e, r, "rename %s", part);
    if (r < 0 && has_name)
        (void)sys->unlink(part);
    return r;
}

/* /dev/stdout and the like: a name of a descriptor, whatever that is of. */
static bool is_descriptor(const char *target)
{
    static const char proc[] = "/proc/";
    char to[sizeof(proc) - 1];
    return readlink(target, to, sizeof(to)) == (ssize_t)sizeof(to) && memcmp(to, proc, sizeof(to)) == 0;
}

/* A device or a pipe is written to, and stays what it is. */
static bool is_written_in_place(const char *target)
{
    struct stat st;
    return is_descriptor(target) ||
           (sys->stat(target, &st) == 0 && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode));
}

static int get_in_place(struct client_file *f, const char *target, uint64_t size, struct progress *p,
                        struct err *e)
{
    struct stat st;
    bool is_file = sys->stat(target, &st) == 0 && S_ISREG(st.st_mode); /* of a descriptor: behind its end */
    _cleanup_close_ int fd = sys->open(target, O_WRONLY | O_CLOEXEC | (is_file ? O_APPEND : 0), 0);
    if (fd < 0)
        return err_errno(e, fd, "open %s", target);
    int r = copy_out(f, fd, 0, size, p, e);
    int k = sys->close(TAKE_FD(fd));
    return r == 0 && k < 0 ? err_errno(e, k, "write %s", target) : r;
}

static int get_file(struct client *c, struct slice bucket, struct slice key, const char *target,
                    struct progress *p, struct err *e)
{
    _cleanup_(client_file_closep) struct client_file *f = NULL;
    int r = open_object(c, bucket, key, 0, UINT64_MAX, &f, e);
    if (r < 0)
        return r;
    uint64_t size = client_file_attr(f)->size_bytes;
    if (strcmp(target, "-") == 0) {
        r = copy_out(f, STDOUT_FILENO, 0, size, p, e);
    } else if (is_written_in_place(target)) {
        r = get_in_place(f, target, size, p, e);
    } else {
        r = get_beside(f, target, size, p, e);
    }
    if (r == 0)
        progress_add(p, 1, 0);
    return r;
}

/* The walk: one lister under a lock, several threads that each take the next key. */
struct walk {
    struct client *client;
    struct slice bucket, prefix;
    const char *target;
    struct progress *progress;
    struct lock lock; /* covers what follows */
    struct client_lister *lister;
    uint64_t seen, failed;
    int ended; /* 1: all were listed; negative: no more can be */
    struct err why;
};

/* Next object below the prefix: whether there is one, and a copy of its key. */
static bool walk_next(struct walk *w, char **ret_key, size_t *ret_key_n)
{
    LOCK_SCOPE(&w->lock); /* held over the listing's I/O: whoever waits needs its answer */
    struct wire_entry x;
    for (;;) {
        int r = w->ended == 0 ? client_lister_next(w->lister, &x, &w->why) : 0;
        if (r <= 0) {
            w->ended = w->ended != 0 ? w->ended : r < 0 ? r : 1;
            return false;
        }
        w->seen++;
        if (!slice_ends(x.key, SLICE_LIT("/"))) { /* markers of directories are no files */
            progress_grow(w->progress, 1, x.attr.size_bytes);
            *ret_key = slice_dup(x.key);
            *ret_key_n = x.key.n;
            return true;
        }
    }
}

static bool leaves_target(struct slice name)
{
    while (name.n > 0) {
        struct slice part = slice_split(&name, '/');
        if (part.n == 0 || slice_eq_str(part, ".") || slice_eq_str(part, "..") || memchr(part.p, 0, part.n))
            return true;
    }
    return false;
}

static int walk_get(struct walk *w, struct slice key, struct err *e)
{
    ssize_t slash = slice_rfind(w->prefix, '/');
    struct slice name = slice_from(key, (size_t)(slash + 1));
    if (leaves_target(name))
        return err_set(e, -EINVAL, SLICE_FMT ": not a name that a directory can hold", SLICE_ARG(key));
    char path[PATH_BYTES];
    if ((size_t)snprintf(path, sizeof(path), "%s/" SLICE_FMT, w->target, SLICE_ARG(name)) >= sizeof(path))
        return err_set(e, -ENAMETOOLONG, SLICE_FMT, SLICE_ARG(key));
    char *last = strrchr(path, '/');
    *last = '\0';
    int r = sys_mkdir_p(path, 0755);
    if (r < 0)
        return err_errno(e, r, "create %s", path);
    *last = '/';
    return get_file(w->client, w->bucket, key, path, w->progress, e);
}

static void walk_failed(struct walk *w, const struct err *e)
{
    command_complain(get_usage.command, e->text);
    LOCK_SCOPE(&w->lock);
    w->failed++;
}

static void *walk_main(void *arg)
{
    struct walk *w = arg;
    for (;;) {
        struct err e = {0};
        _cleanup_free_ char *key = NULL;
        size_t key_n = 0;
        if (!walk_next(w, &key, &key_n))
            return NULL;
        int r = walk_get(w, slice_of(key, key_n), &e);
        if (r < 0) {
            (void)command_blame(&e, r, key);
            walk_failed(w, &e);
        }
    }
}

static int get_tree(struct client *c, const struct get_options *o, struct slice bucket, struct slice prefix,
                    const char *target, struct err *e)
{
    struct client_lister_open q = {.bucket = bucket, .prefix = prefix};
    struct walk w = {.client = c, .bucket = bucket, .prefix = prefix, .target = target};
    w.lister = client_lister_new(c, &q);
    w.progress = progress_new("got", 0, 0, o->quiet);
    lock_init(&w.lock, LOCK_SERVER);
    pthread_t threads[256];
    uint64_t n = 0;
    while (n < o->jobs && pthread_create(&threads[n], NULL, walk_main, &w) == 0)
        n++;
    for (uint64_t i = 0; i < n; i++)
        (void)pthread_join(threads[i], NULL);
    progress_end(w.progress);
    client_lister_free(w.lister);
    lock_fini(&w.lock);
    if (n == 0)
        return err_set(e, -EAGAIN, "no thread can be started, nothing was fetched");
    if (w.ended < 0) {
        *e = w.why;
        return err_prefix(e, w.ended, "list " SLICE_FMT "/" SLICE_FMT, SLICE_ARG(bucket), SLICE_ARG(prefix));
    }
    if (w.seen == 0 && prefix.n > 0)
        return err_set(e, -ENOENT, SLICE_FMT "/" SLICE_FMT ": nothing there", SLICE_ARG(bucket),
                       SLICE_ARG(prefix));
    return w.failed ? err_set(e, -EIO, "%" PRIu64 " objects failed", w.failed) : 0;
}

static int get_one(struct client *c, const struct get_options *o, struct slice bucket, struct slice key,
                   const char *target, struct err *e)
{
    char path[PATH_BYTES];
    struct slice name = slice_from(key, (size_t)(slice_rfind(key, '/') + 1));
    struct stat st;
    bool into = target && strcmp(target, "-") != 0 && sys->stat(target, &st) == 0 && S_ISDIR(st.st_mode);
    if ((!target || into) && leaves_target(name.n ? name : SLICE_LIT("..")))
        return err_set(e, -EINVAL, "give a target: the key's last part is no file name");
    int n =
        snprintf(path, sizeof(path), "%s%s" SLICE_FMT, into ? target : "", into ? "/" : "", SLICE_ARG(name));
    if (n < 0 || (size_t)n >= sizeof(path))
        return err_set(e, -ENAMETOOLONG, "target is too long");
    bool to_stdout = target && strcmp(target, "-") == 0;
    struct progress *p = progress_new("got", 1, 0, o->quiet || to_stdout);
    int r = get_file(c, bucket, key, target && !into ? target : path, p, e);
    if (r == 0)
        progress_end(p);
    else
        progress_drop(p);
    return r;
}

int cmd_get(int argc, char **argv)
{
    struct get_options o = {0};
    int n, status;
    if (command_parse(&get_usage, &get_table, &o, argc, argv, &n, &status)) {
        struct err e = {0};
        struct slice bucket, key;
        _cleanup_(client_freep) struct client *c = NULL;
        int r = command_path(argv[0], &bucket, &key, &e);
        if (r == 0 && key.n == 0 && !o.recursive)
            r = err_set(&e, ERR_BAD_OPTION, "'%s': must be BUCKET/KEY, or give -r for all of it", argv[0]);
        if (r == 0 && o.recursive && n > 1 && strcmp(argv[1], "-") == 0)
            r = err_set(&e, ERR_BAD_OPTION, "-r: takes a directory, not '-'; ./- is one of that name");
        o.node.connections = MAX((uint32_t)o.jobs, (uint32_t)CLIENT_CONNECTIONS);
        if (r == 0)
            r = command_connect(&o.node, &c, &e);
        if (r == 0 && o.recursive)
            r = get_tree(c, &o, bucket, key, n > 1 ? argv[1] : ".", &e);
        else if (r == 0 && (r = get_one(c, &o, bucket, key, n > 1 ? argv[1] : NULL, &e)) < 0)
            r = command_blame(&e, r, argv[0]);
        if (r < 0)
            status = command_fail(get_usage.command, r, &e);
    }
    option_fini(&get_table, &o);
    return status;
}

/* forebay put: files and directories into a bucket. What is reported as put, the origin has. */
#include "cli/cli.h"
#include "cli/command.h"

#include "base/lock.h"
#include "base/sys.h"
#include "client/client_writer.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sys/stat.h>

#define PIECE_BYTES (1 * MIB)
#define DEPTH_MAX   64

struct put_options {
    struct command_node node;
    bool recursive, quiet, no_overwrite;
    uint64_t jobs;
    char *content_type;
};

static const struct option rows[] = {
    COMMAND_FLAG(put_options, recursive, "recursive", 'r', "a directory with everything below it"),
    COMMAND_FLAG(put_options, no_overwrite, "no-overwrite", 'n', "fail where an object exists"),
    COMMAND_FLAG(put_options, quiet, "quiet", 'q', "no progress and no summary"),
    {.name = "jobs",
     .short_flag = 'j',
     .type = OPTION_UINT,
     .offset = offsetof(struct put_options, jobs),
     .def = "8",
     .min = 1,
     .max = 256,
     .arg = "N",
     .doc = "-r: files sent at the same time"},
    {.name = "content-type",
     .type = OPTION_STRING,
     .offset = offsetof(struct put_options, content_type),
     .arg = "TYPE",
     .doc = "content type of the objects"},
    COMMAND_NODE_ROWS(put_options),
};
static const struct option_table table = {rows, ARRAY_SIZE(rows), NULL};

static const struct command_usage usage = {
    .command = "forebay put",
    .operands = "FILE BUCKET/KEY",
    .about = "Writes a file to an object, or with -r a directory to everything below a prefix. \"-\" reads "
             "standard input.\n"
             "A key that ends with / gets the file's name. Returns when the origin has the bytes; with "
             "write=back, or\nwithout origin, when they are durable on the node.",
    .min_operands = 2,
    .max_operands = 2,
};

/* Reads fd to its end into the writer. */
static int copy_in(int fd, struct client_writer *w, struct progress *p, struct err *e)
{
    _cleanup_free_ char *piece = malloc(PIECE_BYTES);
    assert(piece);
    for (;;) {
        ssize_t n = read(fd, piece, PIECE_BYTES);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_errno(e, -errno, "read");
        if (n == 0)
            return 0;
        int r = client_writer_write(w, piece, (size_t)n, e);
        if (r < 0)
            return r;
        progress_add(p, 0, (uint64_t)n);
    }
}

static int put_fd(struct client *c, const struct put_options *o, int fd, uint64_t size, struct slice bucket,
                  struct slice key, struct progress *p, struct err *e)
{
    struct client_writer_open q = {
        .bucket = bucket,
        .key = key,
        .size_bytes = size,
        .content_type = slice_str(o->content_type),
        .if_none_match = o->no_overwrite,
    };
    _cleanup_(client_writer_freep) struct client_writer *w = NULL;
    int r = client_writer_open(c, &q, &w, e);
    if (r == 0)
        r = copy_in(fd, w, p, e);
    if (r == 0)
        r = client_writer_commit(w, NULL, e);
    if (r == 0)
        progress_add(p, 1, 0);
    return r;
}

static int put_file(struct client *c, const struct put_options *o, const char *path, struct slice bucket,
                    struct slice key, struct progress *p, struct err *e)
{
    _cleanup_close_ int fd = sys->open(path, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0)
        return err_errno(e, fd, "open %s", path);
    struct stat st;
    int r = sys->fstat(fd, &st);
    if (r < 0)
        return err_errno(e, r, "stat %s", path);
    if (S_ISDIR(st.st_mode))
        return err_set(e, -EISDIR, "%s is a directory; use -r", path);
    uint64_t size = S_ISREG(st.st_mode) ? (uint64_t)st.st_size : 0;
    progress_grow(p, 1, size);
    /* Files that the kernel makes while they are read, as those of /proc, have no size before. */
    r = put_fd(c, o, fd, size > 0 ? size : UINT64_MAX, bucket, key, p, e);
    return r < 0 ? err_prefix(e, r, "%s", path) : 0;
}

/* ---- trees ---- */

/* Files waiting to be sent: the walk fills a bounded queue, threads empty it. */
#define QUEUE_MAX 256

struct tree {
    struct client *client;
    const struct put_options *options;
    struct slice bucket, prefix;
    const char *root;
    struct progress *progress;
    struct lock lock; /* covers what follows */
    struct cond moved;
    char *queue[QUEUE_MAX]; /* paths below the root */
    size_t head, n;
    bool done;
    uint64_t failed;
};

static void tree_failed(struct tree *t, const struct err *e)
{
    command_complain(usage.command, e->text);
    LOCK_SCOPE(&t->lock);
    t->failed++;
}

static void tree_push(struct tree *t, char *path)
{
    LOCK_SCOPE(&t->lock);
    while (t->n == QUEUE_MAX)
        cond_wait(&t->moved, &t->lock);
    t->queue[(t->head + t->n++) % QUEUE_MAX] = path;
    cond_broadcast(&t->moved);
}

static char *tree_pop(struct tree *t)
{
    LOCK_SCOPE(&t->lock);
    while (t->n == 0 && !t->done)
        cond_wait(&t->moved, &t->lock);
    if (t->n == 0)
        return NULL;
    char *path = t->queue[t->head];
    t->head = (t->head + 1) % QUEUE_MAX;
    t->n--;
    cond_broadcast(&t->moved);
    return path;
}

static void *tree_main(void *arg)
{
    struct tree *t = arg;
    for (;;) {
        _cleanup_free_ char *path = tree_pop(t);
        if (!path)
            return NULL;
        struct err e = {0};
        _cleanup_buf_ struct buf file = BUF_INIT(16 * KIB), key = BUF_INIT(16 * KIB);
        int r = buf_printf(&file, "%s/%s", t->root, path);
        const char *slash = t->prefix.n > 0 && !slice_ends(t->prefix, SLICE_LIT("/")) ? "/" : "";
        r = r < 0 ? r : buf_printf(&key, SLICE_FMT "%s%s", SLICE_ARG(t->prefix), slash, path);
        if (r < 0)
            r = err_set(&e, -ENAMETOOLONG, "%s", path);
        else
            r = put_file(t->client, t->options, file.p, t->bucket, buf_view(&key), t->progress, &e);
        if (r < 0)
            tree_failed(t, &e);
    }
}

static void walk_failed(struct tree *t, int code, const char *path)
{
    struct err e = {0};
    (void)err_errno(&e, code, "%s", path);
    tree_failed(t, &e);
}

/* What cannot be sent is not left out in silence. */
static void refused(struct tree *t, const char *path, const char *why)
{
    struct err e = {0};
    (void)err_set(&e, -EINVAL, "%s: %s", path, why);
    tree_failed(t, &e);
}

static bool is_link(const char *path)
{
    char c;
    return readlink(path, &c, 1) >= 0;
}

/* A directory that is being walked; a link that leads back to one has no end. */
struct level {
    const struct level *up;
    dev_t dev;
    ino_t ino;
};

static bool is_inside(const struct level *l, const struct stat *st)
{
    while (l && (l->dev != st->st_dev || l->ino != st->st_ino))
        l = l->up;
    return l != NULL;
}

static void walk(struct tree *t, const char *below, const struct level *up, int depth)
{
    struct err e = {0};
    _cleanup_buf_ struct buf path = BUF_INIT(16 * KIB);
    errno = ENAMETOOLONG;
    DIR *d = buf_printf(&path, "%s/%s", t->root, below) == 0 ? opendir(path.p) : NULL;
    if (!d || depth > DEPTH_MAX) {
        if (d)
            (void)err_set(&e, -ENAMETOOLONG, "%s: more than %d directories below each other", path.p,
                          DEPTH_MAX);
        else
            (void)err_errno(&e, -errno, "%s%s%s", t->root, *below ? "/" : "", below);
        tree_failed(t, &e);
        if (d)
            (void)closedir(d);
        return;
    }
    struct stat self = {0};
    (void)sys->fstat(dirfd(d), &self);
    const struct level here = {.up = up, .dev = self.st_dev, .ino = self.st_ino};
    struct dirent *x = NULL;
    int code;
    while ((code = sys->readdir(d, &x)) == 0 && x) {
        if (strcmp(x->d_name, ".") == 0 || strcmp(x->d_name, "..") == 0)
            continue;
        _cleanup_buf_ struct buf name = BUF_INIT(16 * KIB), full = BUF_INIT(16 * KIB);
        struct stat st;
        int r = buf_printf(&name, "%s%s%s", below, *below ? "/" : "", x->d_name);
        if (r == 0)
            r = buf_printf(&full, "%s/%s", t->root, name.p);
        if (r < 0) {
            walk_failed(t, -ENAMETOOLONG, x->d_name);
            continue;
        }
        r = sys->stat(full.p, &st);
        if (r == -ENOENT && !is_link(full.p)) /* gone meanwhile */
            continue;
        if (r == -ENOENT) /* as those to a drive that is not mounted */
            refused(t, full.p, "is a link to what is not there");
        else if (r < 0)
            walk_failed(t, r, full.p);
        else if (S_ISDIR(st.st_mode) && is_inside(&here, &st))
            walk_failed(t, -ELOOP, full.p);
        else if (S_ISDIR(st.st_mode))
            walk(t, name.p, &here, depth + 1);
        else if (S_ISREG(st.st_mode))
            tree_push(t, buf_take(&name));
        else
            refused(t, full.p, "is no file and no directory");
    }
    if (code < 0) /* the rest of the directory is not known */
        walk_failed(t, code, path.p);
    (void)closedir(d);
}

static int put_tree(struct client *c, const struct put_options *o, const char *root, struct slice bucket,
                    struct slice prefix, struct err *e)
{
    struct tree t = {.client = c, .options = o, .bucket = bucket, .prefix = prefix, .root = root};
    t.progress = progress_new("put", 0, 0, o->quiet);
    lock_init(&t.lock, LOCK_SERVER);
    cond_init(&t.moved);
    pthread_t threads[256];
    uint64_t n = 0;
    while (n < o->jobs && pthread_create(&threads[n], NULL, tree_main, &t) == 0)
        n++;
    if (n > 0)
        walk(&t, "", NULL, 0);
    lock_take(&t.lock);
    t.done = true;
    cond_broadcast(&t.moved);
    lock_drop(&t.lock);
    for (uint64_t i = 0; i < n; i++)
        (void)pthread_join(threads[i], NULL);
    progress_end(t.progress);
    cond_fini(&t.moved);
    lock_fini(&t.lock);
    return t.failed || n == 0 ? err_set(e, -EIO, "%" PRIu64 " files failed", t.failed) : 0;
}

static int put(struct client *c, const struct put_options *o, const char *source, const char *target,
               struct err *e)
{
    struct slice bucket, key;
    int r = command_path(target, &bucket, &key, e);
    if (r < 0)
        return r;
    if (o->recursive)
        return put_tree(c, o, source, bucket, key, e);
    bool from_stdin = strcmp(source, "-") == 0;
    _cleanup_buf_ struct buf full = BUF_INIT(16 * KIB);
    r = buf_slice(&full, key);
    if (r == 0 && (key.n == 0 || slice_ends(key, SLICE_LIT("/"))) && !from_stdin) {
        const char *slash = strrchr(source, '/');
        r = buf_str(&full, slash ? slash + 1 : source);
    }
    if (r < 0 || full.n == 0)
        return err_set(e, ERR_BAD_OPTION, "'%s': must be BUCKET/KEY", target);
    struct progress *p = progress_new("put", 0, 0, o->quiet);
    r = from_stdin ? put_fd(c, o, STDIN_FILENO, UINT64_MAX, bucket, buf_view(&full), p, e)
                   : put_file(c, o, source, bucket, buf_view(&full), p, e);
    if (r == 0)
        progress_end(p);
    else
        progress_drop(p);
    return r;
}

int cmd_put(int argc, char **argv)
{
    struct put_options o = {0};
    int n, status;
    if (command_parse(&usage, &table, &o, argc, argv, &n, &status)) {
        struct err e = {0};
        _cleanup_(client_freep) struct client *c = NULL;
        o.node.connections = MAX((uint32_t)o.jobs, (uint32_t)CLIENT_CONNECTIONS);
        int r = command_connect(&o.node, &c, &e);
        if (r == 0)
            r = put(c, &o, argv[0], argv[1], &e);
        if (r < 0)
            status = command_fail(usage.command, r, &e);
    }
    option_fini(&table, &o);
    return status;
}

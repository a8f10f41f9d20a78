/* The target of measurements that is a directory: plain files, opened for each call as applications do. */
#include "cli/bench_target.h"

#include "base/sys.h"

#include <dirent.h>
#include <fcntl.h>

#define PATH_BYTES (16 * KIB)

struct bench_conn {
    struct bench_target *t;
    char *block;
};

static int dir_open(struct bench_target *t, struct err *e)
{
    struct stat st;
    int r = sys->stat(t->root, &st);
    if (r == 0 && !S_ISDIR(st.st_mode))
        r = -ENOTDIR;
    return r < 0 ? err_errno(e, r, "%s", t->root) : 0;
}

static void dir_close(struct bench_target *t)
{
}

static int dir_connect(struct bench_target *t, struct bench_conn **ret, struct err *e)
{
    struct bench_conn *c = calloc(1, sizeof(*c));
    assert(c);
    c->t = t;
    if (posix_memalign((void **)&c->block, 4096, t->options->block) != 0) {
        free(c);
        return err_set(e, -ENOMEM, "no memory for a block of %llu bytes",
                       (unsigned long long)t->options->block);
    }
    *ret = c;
    return 0;
}

static void dir_disconnect(struct bench_conn *c)
{
    if (!c)
        return;
    free(c->block);
    free(c);
}

static int path_of(const struct bench_target *t, const char *key, struct buf *b, struct err *e)
{
    int r = buf_printf(b, "%s/%s", t->root, key);
    return r < 0 ? err_errno(e, r, "%s", key) : 0;
}

static int dir_get(struct bench_conn *c, const char *key, uint64_t offset, uint64_t n, bench_sink_fn sink,
                   void *arg, uint64_t *ret_first_ns, struct err *e)
{
    _cleanup_buf_ struct buf path = BUF_INIT(PATH_BYTES);
    int r = path_of(c->t, key, &path, e);
    if (r < 0)
        return r;
    _cleanup_close_ int fd = sys->open(path.p, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0)
        return err_errno(e, fd, "%s", path.p);
    for (uint64_t done = 0; done < n;) {
        size_t want = (size_t)MIN(n - done, c->t->options->block);
        ssize_t got = sys->pread(fd, c->block, want, offset + done);
        if (got < 0)
            return err_errno(e, (int)got, "read %s", path.p);
        if (got == 0)
            break;
        if (done == 0)
            *ret_first_ns = sys->mono_ns();
        r = sink(arg, offset + done, c->block, (size_t)got);
        if (r < 0)
            return r;
        done += (uint64_t)got;
    }
    return 0;
}

/* Directories above a path, where they are missing. */
static int make_parents(char *path)
{
    char *slash = strrchr(path, '/');
    if (!slash || slash == path)
        return 0;
    *slash = '\0';
    int r = sys_mkdir_p(path, 0777);
    *slash = '/';
    return r;
}

static int dir_put(struct bench_conn *c, const char *key, uint64_t size, struct pattern p, struct err *e)
{
    _cleanup_buf_ struct buf path = BUF_INIT(PATH_BYTES);
    int r = path_of(c->t, key, &path, e);
    if (r < 0)
        return r;
    int fd = sys->open(path.p, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd == -ENOENT && make_parents(path.p) == 0)
        fd = sys->open(path.p, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0)
        return err_errno(e, fd, "%s", path.p);
    for (uint64_t at = 0; r == 0 && at < size;) {
        size_t n = (size_t)MIN(size - at, c->t->options->block);
        pattern_fill(p, at, c->block, n);
        r = sys_pwrite_all(fd, c->block, n, at);
        at += n;
    }
    int closed = sys->close(fd);
    r = r < 0 ? r : closed;
    return r < 0 ? err_errno(e, r, "write %s", path.p) : 0;
}

static int dir_remove(struct bench_conn *c, const char *key, struct err *e)
{
    _cleanup_buf_ struct buf path = BUF_INIT(PATH_BYTES);
    int r = path_of(c->t, key, &path, e);
    r = r < 0 ? r : sys->unlink(path.p);
    if (r < 0 && r != -ENOENT)
        return err_errno(e, r, "remove %s", key);
    for (size_t root = strlen(c->t->root); r == 0;) { /* directories that are empty now */
        char *slash = strrchr(path.p, '/');
        *slash = '\0';
        if (slash <= path.p + root || rmdir(path.p) < 0)
            break;
    }
    return 0;
}

/* `below` is relative to the root and empty, or ends with '/'. */
static int walk(const char *root, const char *below, bench_entry_fn entry, void *arg, struct err *e)
{
    _cleanup_buf_ struct buf path = BUF_INIT(PATH_BYTES);
    int r = buf_printf(&path, "%s/%s", root, below);
    DIR *d = r == 0 ? opendir(path.p) : NULL;
    if (!d)
        return errno == ENOENT && *below ? 0 : err_errno(e, -errno, "%s/%s", root, below);
    struct dirent *x = NULL;
    int listed = 0;
    while (r == 0 && (listed = sys->readdir(d, &x)) == 0 && x) {
        _cleanup_buf_ struct buf name = BUF_INIT(PATH_BYTES), full = BUF_INIT(PATH_BYTES);
        struct stat st;
        if (strcmp(x->d_name, ".") == 0 || strcmp(x->d_name, "..") == 0)
            continue;
        r = buf_printf(&name, "%s%s", below, x->d_name);
        r = r < 0 ? r : buf_printf(&full, "%s/%s", root, name.p);
        r = r < 0 ? r : sys->stat(full.p, &st);
        if (r < 0)
            r = err_errno(e, r, "%s/%s", path.p, x->d_name);
        else if (S_ISREG(st.st_mode))
            r = entry(arg, buf_view(&name), (uint64_t)st.st_size);
        else if (S_ISDIR(st.st_mode) && buf_char(&name, '/') == 0)
            r = walk(root, name.p, entry, arg, e);
    }
    if (r == 0 && listed < 0) /* not the end: what was not listed must not be missed in silence */
        r = err_errno(e, listed, "list %s", path.p);
    (void)closedir(d);
    return r;
}

static int dir_list(struct bench_conn *c, const char *prefix, bench_entry_fn entry, void *arg, struct err *e)
{
    _cleanup_buf_ struct buf below = BUF_INIT(PATH_BYTES);
    if (buf_str(&below, prefix) < 0 || (below.n && prefix[below.n - 1] != '/' && buf_char(&below, '/') < 0))
        return err_set(e, -ENAMETOOLONG, "%s: too long", prefix);
    return walk(c->t->root, below.p ? below.p : "", entry, arg, e);
}

const struct bench_target_ops bench_dir_ops = {
    .kind = "directory",
    .files_per_connection = 1,
    .open = dir_open,
    .close = dir_close,
    .connect = dir_connect,
    .disconnect = dir_disconnect,
    .get = dir_get,
    .put = dir_put,
    .remove = dir_remove,
    .list = dir_list,
};

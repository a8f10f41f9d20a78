/*
 * libnfs, as far as the NFS kind uses it, over files in memory: its functions are defined here, in the
 * program itself, so that every call to the server can fail in turn. One thread at a
 * time uses it; those whose calls hang wait beside it, and have the clock in common with it.
 *
 * Bytes that were written are on the server's disk after a COMMIT only; `is_stable` says whether all are.
 */
#pragma once

#include "base/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <nfsc/libnfs.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include <cmocka.h>

#define FAKE_NAMES_MAX 64
#define FAKE_BYTES_MAX 4096
#define FAKE_OLDER_MAX 8

/* How a call ends that shall fail. */
enum fake_fault {
    FAKE_NOT_QUEUED, /* libnfs does not take it */
    FAKE_IO_ERROR,   /* the server refuses it with NFS3ERR_IO */
    FAKE_STALE,      /* ... with NFS3ERR_STALE */
    FAKE_NOT_DONE,   /* the connection breaks before the server sees it */
    FAKE_NOT_HEARD,  /* ... after the server has done it */
    FAKE_NO_ANSWER,  /* nothing comes: done or not */
    FAKE_LATE,       /* the same, and the server does it after everything else */
    FAKE_FAULT_COUNT,
};

struct fake_file {
    unsigned links, handles;
    uint64_t id, mtime_ns;
    bool is_dir, is_stable;
    size_t n;
    char bytes[FAKE_BYTES_MAX];
};

struct fake_name {
    char path[600];
    struct fake_file *file; /* NULL: unused */
};

/* A call with all that it needs, also when it is done late. */
struct fake_call {
    const char *what;
    int (*run)(struct fake_call *c, void **ret_data);
    char path[600], to[600];
    struct nfsfh *fh;
    uint64_t offset, n;
    char bytes[FAKE_BYTES_MAX];
    char out[FAKE_BYTES_MAX > sizeof(struct nfs_stat_64) ? FAKE_BYTES_MAX : sizeof(struct nfs_stat_64)];
    nfs_cb cb;
    void *arg;
};

struct nfs_context {
    int fd; /* readable while a call is under way */
    bool is_pending, is_dead, is_hung;
    struct fake_call call;
    size_t n_older; /* calls that nobody waits for any more; the handles that they close are here */
    struct nfsfh *older[FAKE_OLDER_MAX];
};

struct nfsfh {
    struct fake_file *file;
};

struct nfsdir {
    struct nfsdirent entries[FAKE_NAMES_MAX];
    char names[FAKE_NAMES_MAX][300];
    size_t n, at;
};

static struct {
    struct fake_name names[FAKE_NAMES_MAX];
    uint64_t last_id;
    _Atomic uint64_t clock_ns;
    unsigned contexts, handles, dirs; /* open */
    uint64_t left;                    /* calls until one fails; 0: none */
    atomic_bool *not_wanted;          /* set when one hangs, in place of the day that passes */
    enum fake_fault fault;
    char failed[32]; /* the call that did; empty: none yet */
    struct fake_call late;
    bool has_late;
    const char *away; /* the server's address at which nothing is; NULL: none */
    unsigned n_away;  /* how often it was tried */
    bool is_endless;  /* listings are asked for and answered for ever */
    unsigned trickle; /* so many bytes of the first answer to a listing come one by one, a second each */
} fake;

/* ---- the files ---- */

static struct fake_name *fake_find(const char *path)
{
    for (size_t i = 0; i < FAKE_NAMES_MAX; i++)
        if (fake.names[i].file && strcmp(fake.names[i].path, path) == 0)
            return &fake.names[i];
    return NULL;
}

static struct fake_file *fake_file_at(const char *path)
{
    struct fake_name *x = fake_find(path);
    return x ? x->file : NULL;
}

static void fake_file_drop(struct fake_file *f)
{
    if (f->links == 0 && f->handles == 0)
        free(f);
}

/* 0, or why the directory of the path is none. */
static int fake_parent(const char *path)
{
    char parent[600];
    (void)snprintf(parent, sizeof(parent), "%s", path);
    *strrchr(parent, '/') = '\0';
    const struct fake_file *f = fake_file_at(*parent ? parent : "/");
    return !f ? -ENOENT : f->is_dir ? 0 : -ENOTDIR;
}

static void fake_link(const char *path, struct fake_file *f)
{
    size_t i = 0;
    while (i < FAKE_NAMES_MAX && fake.names[i].file)
        i++;
    assert_true(i < FAKE_NAMES_MAX);
    (void)snprintf(fake.names[i].path, sizeof(fake.names[i].path), "%s", path);
    fake.names[i].file = f;
    f->links++;
}

static void fake_unlink(struct fake_name *x)
{
    struct fake_file *f = x->file;
    x->file = NULL;
    f->links--;
    fake_file_drop(f);
}

static struct fake_file *fake_make(const char *path, bool is_dir)
{
    struct fake_file *f = calloc(1, sizeof(*f));
    assert_non_null(f);
    f->id = ++fake.last_id;
    f->mtime_ns = ++fake.clock_ns;
    f->is_dir = is_dir;
    f->is_stable = true;
    fake_link(path, f);
    return f;
}

static void fake_write(const char *path, const char *text)
{
    struct fake_file *f = fake_make(path, false);
    f->n = strlen(text);
    memcpy(f->bytes, text, f->n);
}

/* What is there ends; an empty root is left. */
static void fake_clear(void)
{
    for (size_t i = 0; i < FAKE_NAMES_MAX; i++)
        if (fake.names[i].file)
            fake_unlink(&fake.names[i]);
    (void)fake_make("/", true);
}

static void fake_stat(const struct fake_file *f, struct nfs_stat_64 *st)
{
    *st = (struct nfs_stat_64){.nfs_ino = f->id,
                               .nfs_mode = (f->is_dir ? S_IFDIR : S_IFREG) | 0644u,
                               .nfs_size = f->is_dir ? 0 : f->n,
                               .nfs_mtime = f->mtime_ns / 1000000000,
                               .nfs_mtime_nsec = f->mtime_ns % 1000000000,
                               .nfs_ctime = f->mtime_ns / 1000000000};
}

static bool fake_has_below(const char *path)
{
    size_t n = strlen(path);
    for (size_t i = 0; i < FAKE_NAMES_MAX; i++)
        if (fake.names[i].file && strncmp(fake.names[i].path, path, n) == 0 && fake.names[i].path[n] == '/')
            return true;
    return false;
}

/* ---- what the calls do ---- */

static int run_nothing(struct fake_call *c, void **data)
{
    (void)c, (void)data;
    return -ECONNREFUSED;
}

static int run_mount(struct fake_call *c, void **data)
{
    (void)c, (void)data;
    return 0;
}

static int run_stat(struct fake_call *c, void **data)
{
    const struct fake_file *f = c->fh ? c->fh->file : fake_file_at(c->path);
    if (!f)
        return -ENOENT;
    fake_stat(f, (struct nfs_stat_64 *)(void *)c->out);
    *data = c->out;
    return 0;
}

static struct nfsfh *fake_handle(struct fake_file *f)
{
    struct nfsfh *fh = calloc(1, sizeof(*fh));
    assert_non_null(fh);
    fh->file = f;
    f->handles++;
    fake.handles++;
    return fh;
}

static int run_open(struct fake_call *c, void **data)
{
    struct fake_file *f = fake_file_at(c->path);
    if (!f || f->is_dir)
        return f ? -EISDIR : -ENOENT;
    *data = fake_handle(f);
    return 0;
}

static int run_create(struct fake_call *c, void **data)
{
    int r = fake_parent(c->path);
    if (r < 0 || fake_find(c->path))
        return r < 0 ? r : -EEXIST;
    *data = fake_handle(fake_make(c->path, false));
    return 0;
}

static int run_read(struct fake_call *c, void **data)
{
    const struct fake_file *f = c->fh->file;
    size_t n = c->offset < f->n ? MIN(c->n, f->n - c->offset) : 0;
    n = n > 1 ? n / 2 : n; /* short */
    memcpy(c->out, f->bytes + MIN(c->offset, f->n), n);
    *data = c->out;
    return (int)n;
}

static int run_write(struct fake_call *c, void **data)
{
    struct fake_file *f = c->fh->file;
    size_t n = c->n > 1 ? c->n / 2 : c->n; /* short */
    (void)data;
    assert_true(c->offset + n <= FAKE_BYTES_MAX);
    memcpy(f->bytes + c->offset, c->bytes, n);
    f->n = MAX(f->n, c->offset + n);
    f->mtime_ns = ++fake.clock_ns;
    f->is_stable = false;
    return (int)n;
}

static int run_sync(struct fake_call *c, void **data)
{
    (void)data;
    c->fh->file->is_stable = true;
    return 0;
}

/* The handle goes whatever the server says. */
static int run_close(struct fake_call *c, void **data)
{
    (void)c, (void)data;
    return 0;
}

static void fake_close(struct nfsfh *fh)
{
    fh->file->handles--;
    fake.handles--;
    fake_file_drop(fh->file);
    free(fh);
}

static int run_rename(struct fake_call *c, void **data)
{
    struct fake_name *from = fake_find(c->path), *to = fake_find(c->to);
    (void)data;
    if (!from || (to && to->file->is_dir))
        return !from ? -ENOENT : -EISDIR;
    if (to)
        fake_unlink(to);
    (void)snprintf(from->path, sizeof(from->path), "%s", c->to);
    return 0;
}

static int run_link(struct fake_call *c, void **data)
{
    struct fake_file *f = fake_file_at(c->path);
    (void)data;
    if (!f || fake_find(c->to))
        return !f ? -ENOENT : -EEXIST;
    fake_link(c->to, f);
    return 0;
}

static int run_unlink(struct fake_call *c, void **data)
{
    struct fake_name *x = fake_find(c->path);
    (void)data;
    if (!x || x->file->is_dir)
        return !x ? -ENOENT : -EISDIR;
    fake_unlink(x);
    return 0;
}

static int run_mkdir(struct fake_call *c, void **data)
{
    int r = fake_parent(c->path);
    (void)data;
    if (r < 0 || fake_find(c->path))
        return r < 0 ? r : -EEXIST;
    (void)fake_make(c->path, true);
    return 0;
}

static int run_rmdir(struct fake_call *c, void **data)
{
    struct fake_name *x = fake_find(c->path);
    (void)data;
    if (!x || !x->file->is_dir)
        return !x ? -ENOENT : -ENOTDIR;
    if (fake_has_below(c->path))
        return -ENOTEMPTY;
    fake_unlink(x);
    return 0;
}

static int run_utimes(struct fake_call *c, void **data)
{
    struct fake_file *f = fake_file_at(c->path);
    (void)data;
    if (!f)
        return -ENOENT;
    f->mtime_ns = c->n;
    return 0;
}

static int run_opendir(struct fake_call *c, void **data)
{
    struct fake_file *f = fake_file_at(c->path);
    if (!f || !f->is_dir)
        return f ? -ENOTDIR : -ENOENT;
    struct nfsdir *d = calloc(1, sizeof(*d));
    assert_non_null(d);
    size_t n = strcmp(c->path, "/") == 0 ? 0 : strlen(c->path);
    for (size_t i = 0; i < FAKE_NAMES_MAX; i++) {
        const struct fake_name *x = &fake.names[i];
        if (!x->file || strncmp(x->path, c->path, n) != 0 || x->path[n] != '/' || !x->path[n + 1] ||
            strchr(x->path + n + 1, '/'))
            continue;
        (void)snprintf(d->names[d->n], sizeof(d->names[0]), "%s", x->path + n + 1);
        d->entries[d->n] = (struct nfsdirent){.name = d->names[d->n],
                                              .inode = x->file->id,
                                              .type = x->file->is_dir ? 2 : 1,
                                              .size = x->file->n,
                                              .mtime.tv_sec = (time_t)(x->file->mtime_ns / 1000000000),
                                              .mtime_nsec = (uint32_t)(x->file->mtime_ns % 1000000000)};
        d->n++;
    }
    fake.dirs++;
    *data = d;
    return 0;
}

/* ---- calls ---- */

static bool fake_is_hit(const char *what)
{
    if (fake.left == 0 || --fake.left > 0)
        return false;
    (void)snprintf(fake.failed, sizeof(fake.failed), "%s", what);
    return true;
}

static struct fake_call *fake_begin(struct nfs_context *nfs, const char *path, nfs_cb cb, void *arg)
{
    if (nfs->is_pending && nfs->call.run == run_close) {
        assert_true(nfs->n_older < FAKE_OLDER_MAX);
        nfs->older[nfs->n_older++] = nfs->call.fh;
    }
    nfs->is_pending = false;
    nfs->call = (struct fake_call){.cb = cb, .arg = arg};
    (void)snprintf(nfs->call.path, sizeof(nfs->call.path), "%s", path);
    return &nfs->call;
}

static int fake_queue(struct nfs_context *nfs, const char *what, int (*run)(struct fake_call *, void **))
{
    uint64_t one = 1;
    nfs->call.what = what;
    nfs->call.run = run;
    if (nfs->is_dead)
        return -1;
    nfs->is_pending = true;
    if (fake.left == 1 && fake.fault == FAKE_NOT_QUEUED && fake_is_hit(what)) {
        nfs->is_pending = false;
        if (run == run_close)
            fake_close(nfs->call.fh);
        return -1;
    }
    assert_int_equal(write(nfs->fd, &one, sizeof(one)), sizeof(one));
    return 0;
}

static void fake_answer(struct nfs_context *nfs, int status, void *data)
{
    struct fake_call *c = &nfs->call;
    nfs->is_pending = false;
    if (c->run == run_close)
        fake_close(c->fh);
    c->cb(status, nfs, data, c->arg);
}

/* What it opened nobody hears of. */
static void fake_run_unheard(struct fake_call *c)
{
    void *data = NULL;
    int r = c->run(c, &data);
    if (r >= 0 && (c->run == run_open || c->run == run_create))
        fake_close(data);
    if (r >= 0 && c->run == run_opendir) {
        fake.dirs--;
        free(data);
    }
}

/* Late are only calls on names: a handle ends with its session. */
static void fake_hang(struct nfs_context *nfs)
{
    nfs->is_hung = true;
    if (fake.not_wanted)
        atomic_store(fake.not_wanted, true);
    fake.has_late = fake.fault == FAKE_LATE && !nfs->call.fh;
    if (fake.has_late)
        fake.late = nfs->call;
}

static bool fake_is_endless(const struct nfs_context *nfs)
{
    return fake.is_endless && nfs->is_pending && nfs->call.run == run_opendir;
}

static bool fake_trickles(struct nfs_context *nfs)
{
    return fake.trickle > 0 && nfs->is_pending && nfs->call.run == run_opendir;
}

int nfs_service(struct nfs_context *nfs, int revents)
{
    static char words[] = "as told";
    uint64_t count;
    void *data = NULL;
    if (!(revents & POLLIN) || !nfs->is_pending || nfs->is_hung || fake_is_endless(nfs) || fake_trickles(nfs))
        return 0;
    assert_int_equal(read(nfs->fd, &count, sizeof(count)), sizeof(count));
    if (!fake_is_hit(nfs->call.what)) {
        int r = nfs->call.run(&nfs->call, &data);
        fake_answer(nfs, r, r < 0 ? words : data);
        return 0;
    }
    switch (fake.fault) {
    case FAKE_IO_ERROR:
    case FAKE_STALE:
        fake_answer(nfs, fake.fault == FAKE_STALE ? -ESTALE : -EIO, words);
        return 0;
    case FAKE_NO_ANSWER:
    case FAKE_LATE:
        fake_hang(nfs);
        return 0;
    case FAKE_NOT_HEARD:
        fake_run_unheard(&nfs->call);
        break;
    default:
        break;
    }
    nfs->is_dead = true;
    return -1;
}

/* The late call arrives. */
static void fake_arrive(void)
{
    if (fake.has_late)
        fake_run_unheard(&fake.late);
    fake.has_late = false;
}

struct nfs_context *nfs_init_context(void)
{
    struct nfs_context *nfs = calloc(1, sizeof(*nfs));
    assert_non_null(nfs);
    nfs->fd = eventfd(0, EFD_CLOEXEC);
    assert_true(nfs->fd >= 0);
    fake.contexts++;
    return nfs;
}

void nfs_destroy_context(struct nfs_context *nfs)
{
    if (nfs->is_pending)
        fake_answer(nfs, -EINTR, NULL);
    for (size_t i = 0; i < nfs->n_older; i++)
        fake_close(nfs->older[i]);
    (void)close(nfs->fd);
    fake.contexts--;
    free(nfs);
}

struct nfs_url *nfs_parse_url_dir(struct nfs_context *nfs, const char *url)
{
    (void)nfs, (void)url;
    return calloc(1, sizeof(struct nfs_url));
}

void nfs_destroy_url(struct nfs_url *url)
{
    free(url);
}

void nfs_set_dircache(struct nfs_context *nfs, int enabled)
{
    (void)nfs, (void)enabled;
}

int nfs_get_fd(struct nfs_context *nfs)
{
    return nfs->is_hung ? -1 : nfs->fd;
}

/* Whoever waits for a call that hangs does so for a day. What has no end is asked for again at once. */
int nfs_which_events(struct nfs_context *nfs)
{
    if (nfs->is_hung && !fake.not_wanted)
        fake.clock_ns += 86400ull * 1000000000;
    if (fake_trickles(nfs)) {
        fake.trickle--;
        fake.clock_ns += 1000000000;
    }
    return fake_is_endless(nfs) ? POLLIN | POLLOUT : POLLIN;
}

char *nfs_get_error(struct nfs_context *nfs)
{
    static char words[] = "as told";
    (void)nfs;
    return words;
}

#define FAKE_PATH_CALL(name, what, run)                                                                      \
    int name(struct nfs_context *nfs, const char *path, nfs_cb cb, void *arg)                                \
    {                                                                                                        \
        (void)fake_begin(nfs, path, cb, arg);                                                                \
        return fake_queue(nfs, what, run);                                                                   \
    }
FAKE_PATH_CALL(nfs_stat64_async, "stat", run_stat)
FAKE_PATH_CALL(nfs_unlink_async, "unlink", run_unlink)
FAKE_PATH_CALL(nfs_rmdir_async, "rmdir", run_rmdir)
FAKE_PATH_CALL(nfs_opendir_async, "opendir", run_opendir)

#define FAKE_HANDLE_CALL(name, what, run)                                                                    \
    int name(struct nfs_context *nfs, struct nfsfh *fh, nfs_cb cb, void *arg)                                \
    {                                                                                                        \
        fake_begin(nfs, "", cb, arg)->fh = fh;                                                               \
        return fake_queue(nfs, what, run);                                                                   \
    }
FAKE_HANDLE_CALL(nfs_fstat64_async, "fstat", run_stat)
FAKE_HANDLE_CALL(nfs_fsync_async, "fsync", run_sync)

int nfs_close_async(struct nfs_context *nfs, struct nfsfh *fh, nfs_cb cb, void *arg)
{
    fake_begin(nfs, "", cb, arg)->fh = fh;
    if (nfs->is_dead || nfs->is_hung) /* as libnfs: the handle is nobody's any more */
        fake_close(fh);
    return nfs->is_dead || nfs->is_hung ? -1 : fake_queue(nfs, "close", run_close);
}

int nfs_mount_async(struct nfs_context *nfs, const char *server, const char *path, nfs_cb cb, void *arg)
{
    (void)fake_begin(nfs, path, cb, arg);
    fake.n_away += fake.away && strcmp(server, fake.away) == 0;
    return fake_queue(nfs, "mount", fake.away && strcmp(server, fake.away) == 0 ? run_nothing : run_mount);
}

int nfs_open_async(struct nfs_context *nfs, const char *path, int flags, nfs_cb cb, void *arg)
{
    (void)flags;
    (void)fake_begin(nfs, path, cb, arg);
    return fake_queue(nfs, "open", run_open);
}

int nfs_create_async(struct nfs_context *nfs, const char *path, int flags, int mode, nfs_cb cb, void *arg)
{
    (void)flags, (void)mode;
    (void)fake_begin(nfs, path, cb, arg);
    return fake_queue(nfs, "create", run_create);
}

int nfs_mkdir2_async(struct nfs_context *nfs, const char *path, int mode, nfs_cb cb, void *arg)
{
    (void)mode;
    (void)fake_begin(nfs, path, cb, arg);
    return fake_queue(nfs, "mkdir", run_mkdir);
}

int nfs_pread_async(struct nfs_context *nfs, struct nfsfh *fh, uint64_t offset, uint64_t n, nfs_cb cb,
                    void *arg)
{
    struct fake_call *c = fake_begin(nfs, "", cb, arg);
    c->fh = fh;
    c->offset = offset;
    c->n = n;
    return fake_queue(nfs, "read", run_read);
}

int nfs_pwrite_async(struct nfs_context *nfs, struct nfsfh *fh, uint64_t offset, uint64_t n, const void *p,
                     nfs_cb cb, void *arg)
{
    struct fake_call *c = fake_begin(nfs, "", cb, arg);
    c->fh = fh;
    c->offset = offset;
    c->n = n;
    assert_true(n <= sizeof(c->bytes));
    memcpy(c->bytes, p, n);
    return fake_queue(nfs, "write", run_write);
}

static int fake_two_names(struct nfs_context *nfs, const char *what, const char *from, const char *to,
                          int (*run)(struct fake_call *, void **), nfs_cb cb, void *arg)
{
    struct fake_call *c = fake_begin(nfs, from, cb, arg);
    (void)snprintf(c->to, sizeof(c->to), "%s", to);
    return fake_queue(nfs, what, run);
}

int nfs_rename_async(struct nfs_context *nfs, const char *from, const char *to, nfs_cb cb, void *arg)
{
    return fake_two_names(nfs, "rename", from, to, run_rename, cb, arg);
}

int nfs_link_async(struct nfs_context *nfs, const char *from, const char *to, nfs_cb cb, void *arg)
{
    return fake_two_names(nfs, "link", from, to, run_link, cb, arg);
}

int nfs_utimes_async(struct nfs_context *nfs, const char *path, struct timeval *times, nfs_cb cb, void *arg)
{
    fake_begin(nfs, path, cb, arg)->n =
        (uint64_t)times[1].tv_sec * 1000000000 + (uint64_t)times[1].tv_usec * 1000;
    return fake_queue(nfs, "utimes", run_utimes);
}

struct nfsdirent *nfs_readdir(struct nfs_context *nfs, struct nfsdir *d)
{
    (void)nfs;
    return d->at < d->n ? &d->entries[d->at++] : NULL;
}

void nfs_closedir(struct nfs_context *nfs, struct nfsdir *d)
{
    (void)nfs;
    fake.dirs--;
    free(d);
}

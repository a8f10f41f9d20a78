/*
 * Sessions with an NFS server, and one call over them.
 *
 * A session is a libnfs context: a TCP connection and the handle of the mounted directory. libnfs serves one
 * thread a context, so each call of the origin takes a session of its own from a pool and gives it back.
 * Calls are sent through the asynchronous half of libnfs and waited for here, so that a cancel flag and a
 * stall are noticed within QUIT_LOOK_MS and to the millisecond of the option.
 *
 * Invariants:
 *  1. At most `limit` sessions are in use; others wait. No lock is held over network I/O. Bodies that
 * may wait for somebody who sends slowly or reads from this very origin leave sessions to the others.
 *  2. libnfs never reconnects by itself: what was written and not yet committed is lost when a server starts
 * anew, and a COMMIT over another connection would not tell.
 *  3. A session that failed, was given up or holds a stale handle is ended, never used again; after a stale
 * handle no idle session is.
 *
 * Failure modes: classified codes of origin.h with the words of libnfs.
 */
#include "origin/nfs_internal.h"

#include "net/host.h"

#include <inttypes.h>
#include <poll.h>
#include <sys/time.h>

#define CONN_MAGIC  0x4e465343u
#define STEP_MS     10 /* between looks while libnfs changes sockets */
#define SPARE_SHARE 8  /* one session in so many is not for slow bodies */
#define WORDS_MAX   200
/* Requests of one call that has steps: an answer of 8 KiB holds 16 of the longest names, so that a listing of
 * more has too many names or does not end. libnfs keeps all of them before it says anything. */
#define STEPS_MAX (TREE_NAMES_MAX / 16)

struct nfs_conn {
    uint32_t magic;
    struct nfs *owner;
    struct nfs_context *nfs;
    uint64_t idle_since_ms, generation, timeout_ms;
    bool broken, stale; /* stale: the server forgot a handle */
    bool upload;        /* taken for a slow body */
    atomic_bool *cancel;

    /* of the call under way; libnfs writes here until the context is gone */
    bool done;
    int status;
    void *to; /* what the answer is copied to; NULL: nowhere */
    size_t to_n;
    bool to_is_bytes; /* as many as the status says */
    bool has_steps;   /* libnfs asks the server again and again: each whole answer is progress */
    void *handle;     /* file or directory that was opened */
    char words[WORDS_MAX];
};

/* ---- errors ---- */

int nfs_error_class(int error)
{
    switch (error) {
    case -ENOENT:
    case -ENOTDIR:
        return -ENOENT;
    case -EACCES:
    case -EPERM:
    case -EROFS:
    case -ELOOP:
        return ERR_ORIGIN_DENIED;
    case -EFAULT: /* libnfs: the connection failed under a call */
    case -EINTR:  /* libnfs: the call was dropped with its session */
    case -ESTALE:
    case -ECONNREFUSED:
    case -ECONNRESET:
    case -EPIPE:
    case -EHOSTUNREACH:
    case -ENETUNREACH:
        return ERR_ORIGIN_DOWN;
    case -EAGAIN: /* NFS3ERR_JUKEBOX */
        return ERR_ORIGIN_BUSY;
    case -ENOSPC:
    case -EDQUOT:
        return -ENOSPC;
    case -ETIMEDOUT:
    case -ECANCELED:
    case -ENAMETOOLONG:
    case -EFBIG:
    case -ENOMEM:
        return error;
    default:
        return ERR_ORIGIN_FAILED;
    }
}

int nfs_error(const struct nfs_conn *c, struct err *e, int error, const char *what, struct slice key)
{
    assert(error < 0);
    int class = nfs_error_class(error);
    if (error == -ECANCELED)
        return err_set(e, error, "canceled");
    if (error == -ETIMEDOUT)
        (void)err_set(e, error, "no answer for %" PRIu64 " ms", quit_patience_ms(c->timeout_ms));
    else if (class == ERR_ORIGIN_DOWN && error != -ESTALE)
        (void)err_set(e, class, "%s", c->words[0] ? c->words : "the connection failed");
    else
        (void)err_set(e, class, "%s", err_text(error));
    return err_prefix(e, class, "%s " SLICE_FMT, what, SLICE_ARG(key));
}

/* Whether a session may be used after this answer. */
static bool ends_session(int status)
{
    int class = status < 0 ? nfs_error_class(status) : 0;
    return class == ERR_ORIGIN_DOWN || class == -ETIMEDOUT || class == -ECANCELED;
}

/* ---- one call ---- */

static void take_words(struct nfs_conn *c, const char *words)
{
    (void)snprintf(c->words, sizeof(c->words), "%s", words ? words : "");
    for (char *p = c->words; *p; p++)
        if ((unsigned char)*p < ' ')
            *p = ' ';
}

static void on_done(int status, struct nfs_context *nfs, void *data, void *arg)
{
    struct nfs_conn *c = arg;
    (void)nfs;
    assert(c->magic == CONN_MAGIC);
    c->done = true;
    c->status = status;
    if (status < 0) {
        take_words(c, data);
    } else if (c->to && data) {
        size_t n = c->to_is_bytes ? (size_t)status : c->to_n;
        if (n > c->to_n)
            c->status = -EIO; /* more than was asked for */
        else
            memcpy(c->to, data, n);
    } else {
        c->handle = data;
    }
}

/* Sets the session up for a call whose answer is copied to `to`. */
static void begin(struct nfs_conn *c, void *to, size_t n, bool is_bytes)
{
    assert(c->magic == CONN_MAGIC);
    c->done = false;
    c->status = 0;
    c->to = to;
    c->to_n = n;
    c->to_is_bytes = is_bytes;
    c->has_steps = false;
    c->handle = NULL;
    c->words[0] = '\0';
}

static bool is_canceled(const atomic_bool *cancel)
{
    return (cancel && atomic_load(cancel)) || quit_is_now();
}

/* Waits for what was queued (0 of libnfs's async functions). The status of the call. */
static int finish(struct nfs_conn *c, int queued)
{
    uint64_t heard_ms = sys_mono_ms();
    unsigned steps = 0;
    int r = c->broken ? -EFAULT : queued < 0 ? -EFAULT : 0;
    if (queued < 0)
        take_words(c, nfs_get_error(c->nfs));
    while (r == 0 && !c->done) {
        uint64_t now_ms = sys_mono_ms(), deadline_ms = heard_ms + quit_patience_ms(c->timeout_ms);
        struct pollfd fd = {.fd = nfs_get_fd(c->nfs), .events = (short)nfs_which_events(c->nfs)};
        if (is_canceled(c->cancel))
            r = -ECANCELED;
        else if (now_ms >= deadline_ms)
            r = -ETIMEDOUT;
        if (r < 0)
            break;
        int wait_ms = (int)MIN(deadline_ms - now_ms, (uint64_t)(fd.fd < 0 ? STEP_MS : QUIT_LOOK_MS));
        int n = poll(&fd, 1, wait_ms);
        if (n < 0 && errno != EINTR)
            r = -errno;
        else if (nfs_service(c->nfs, n > 0 ? fd.revents : 0) < 0 && !c->done) {
            take_words(c, nfs_get_error(c->nfs));
            r = -EFAULT;
        }
        if (n > 0 && fd.revents & POLLOUT && c->has_steps) { /* the answer to the step before is whole */
            heard_ms = sys_mono_ms();
            r = ++steps > STEPS_MAX ? -E2BIG : r;
        }
    }
    if (c->done)
        r = c->status;
    c->to = NULL;
    c->broken |= !c->done || ends_session(r); /* one that is still under way would answer the next call */
    c->stale |= r == -ESTALE;
    return r;
}

const struct nfs *nfs_conn_owner(const struct nfs_conn *c)
{
    return c->owner;
}

/* ---- the calls ---- */

int nfs_call_stat(struct nfs_conn *c, const char *path, struct nfs_stat_64 *ret)
{
    begin(c, ret, sizeof(*ret), false);
    return finish(c, nfs_stat64_async(c->nfs, path, on_done, c));
}

int nfs_call_fstat(struct nfs_conn *c, struct nfsfh *fh, struct nfs_stat_64 *ret)
{
    begin(c, ret, sizeof(*ret), false);
    return finish(c, nfs_fstat64_async(c->nfs, fh, on_done, c));
}

/* The status of a call that opened something. */
static int opened(struct nfs_conn *c, int queued, void **ret)
{
    int r = finish(c, queued);
    if (r >= 0 && !c->handle)
        r = -EIO;
    if (r >= 0)
        *ret = c->handle;
    return r < 0 ? r : 0;
}

int nfs_call_open(struct nfs_conn *c, const char *path, struct nfsfh **ret)
{
    void *fh = NULL;
    begin(c, NULL, 0, false);
    int r = opened(c, nfs_open_async(c->nfs, path, O_RDONLY, on_done, c), &fh);
    if (r == 0)
        *ret = fh;
    return r;
}

int nfs_call_create(struct nfs_conn *c, const char *path, struct nfsfh **ret)
{
    void *fh = NULL;
    begin(c, NULL, 0, false);
    int r = opened(
        c, nfs_create_async(c->nfs, path, O_WRONLY | O_CREAT | O_EXCL, /* mode= */ 0666, on_done, c), &fh);
    if (r == 0)
        *ret = fh;
    return r;
}

int nfs_call_read(struct nfs_conn *c, struct nfsfh *fh, void *p, size_t n, uint64_t offset)
{
    begin(c, p, n, true);
    return finish(c, nfs_pread_async(c->nfs, fh, offset, n, on_done, c));
}

int nfs_call_write(struct nfs_conn *c, struct nfsfh *fh, const void *p, size_t n, uint64_t offset)
{
    /* libnfs copies the bytes when it queues them, though its prototypes do not say const. */
    begin(c, NULL, 0, false);
    return finish(c, nfs_pwrite_async(c->nfs, fh, offset, n, (void *)(uintptr_t)p, on_done, c));
}

int nfs_call_sync(struct nfs_conn *c, struct nfsfh *fh)
{
    begin(c, NULL, 0, false);
    return finish(c, nfs_fsync_async(c->nfs, fh, on_done, c));
}

int nfs_call_close(struct nfs_conn *c, struct nfsfh *fh)
{
    begin(c, NULL, 0, false);
    return finish(c, nfs_close_async(c->nfs, fh, on_done, c));
}

int nfs_call_opendir(struct nfs_conn *c, const char *path, struct nfsdir **ret)
{
    void *dir = NULL;
    begin(c, NULL, 0, false);
    c->has_steps = true; /* a READDIRPLUS of 8 KiB for each 40 names or so */
    int r = opened(c, nfs_opendir_async(c->nfs, path, on_done, c), &dir);
    if (r == 0)
        *ret = dir;
    return r;
}

struct nfsdirent *nfs_call_readdir(struct nfs_conn *c, struct nfsdir *dir)
{
    return nfs_readdir(c->nfs, dir);
}

void nfs_call_closedir(struct nfs_conn *c, struct nfsdir *dir)
{
    nfs_closedir(c->nfs, dir);
}

int nfs_call_rename(struct nfs_conn *c, const char *from, const char *to)
{
    begin(c, NULL, 0, false);
    return finish(c, nfs_rename_async(c->nfs, from, to, on_done, c));
}

int nfs_call_link(struct nfs_conn *c, const char *from, const char *to)
{
    begin(c, NULL, 0, false);
    return finish(c, nfs_link_async(c->nfs, from, to, on_done, c));
}

int nfs_call_unlink(struct nfs_conn *c, const char *path)
{
    begin(c, NULL, 0, false);
    return finish(c, nfs_unlink_async(c->nfs, path, on_done, c));
}

int nfs_call_mkdir(struct nfs_conn *c, const char *path)
{
    begin(c, NULL, 0, false);
    return finish(c, nfs_mkdir2_async(c->nfs, path, /* mode= */ 0777, on_done, c));
}

int nfs_call_rmdir(struct nfs_conn *c, const char *path)
{
    begin(c, NULL, 0, false);
    return finish(c, nfs_rmdir_async(c->nfs, path, on_done, c));
}

int nfs_call_utimes(struct nfs_conn *c, const char *path, uint64_t mtime_ns)
{
    struct timeval t = {(time_t)(mtime_ns / 1000000000), (suseconds_t)(mtime_ns % 1000000000 / 1000)};
    struct timeval times[2] = {t, t};
    begin(c, NULL, 0, false);
    return finish(c, nfs_utimes_async(c->nfs, path, times, on_done, c));
}

int nfs_call_chmod(struct nfs_conn *c, const char *path, uint32_t mode)
{
    begin(c, NULL, 0, false);
    return finish(c, nfs_chmod_async(c->nfs, path, (int)mode, on_done, c));
}

int nfs_call_chown(struct nfs_conn *c, const char *path, uint32_t uid, uint32_t gid)
{
    begin(c, NULL, 0, false);
    return finish(c, nfs_chown_async(c->nfs, path, (int)uid, (int)gid, on_done, c));
}

/* ---- sessions ---- */

static void conn_free(struct nfs_conn *c)
{
    if (!c)
        return;
    assert(c->magic == CONN_MAGIC);
    c->to = NULL;
    if (c->nfs)
        nfs_destroy_context(c->nfs); /* calls under way end in on_done */
    c->magic = 0;
    free(c);
}
DEFINE_CLEANUP(struct nfs_conn, conn_free)

/* Says what a refused mount means. */
static int mount_error(struct nfs_conn *c, int r, struct err *e)
{
    char words[WORDS_MAX];
    (void)snprintf(words, sizeof(words), "%s", c->words);
    if (r == -ECANCELED)
        return err_set(e, r, "canceled");
    if (r == -ETIMEDOUT)
        return err_set(e, ERR_ORIGIN_DOWN, "no answer to the mount within %" PRIu64 " ms", c->timeout_ms);
    if (r == -ENOENT || r == -ENOTDIR)
        return err_set(e, ERR_ORIGIN_DOWN, "no such directory there: create it, or correct the path");
    if (r == -EACCES || r == -EPERM) /* some servers say so of directories that are not there, too */
        return err_set(
            e, ERR_ORIGIN_DENIED,
            "the mount is refused: is the directory there, and exported to this machine, with version 3 "
            "and sec=sys?");
    return err_set(e, ERR_ORIGIN_DOWN,
                   "mount: %s: is this its address, does it speak NFS version 3, is origin.mount_port right?",
                   words[0] ? words : err_text(r));
}

static int conn_at(struct nfs *x, const char *address, uint64_t timeout_ms, atomic_bool *cancel,
                   struct nfs_conn **ret, struct err *e)
{
    struct nfs_conn *_cleanup_(conn_freep) c = calloc(1, sizeof(*c));
    if (!c)
        abort();
    c->magic = CONN_MAGIC;
    c->owner = x;
    c->cancel = cancel;
    c->nfs = nfs_init_context();
    if (!c->nfs)
        return err_set(e, -ENOMEM, "no memory for an NFS session");
    struct nfs_url *url = nfs_parse_url_dir(c->nfs, x->settings);
    if (!url)
        return err_set(e, ERR_BAD_OPTION, "%s", nfs_get_error(c->nfs));
    nfs_destroy_url(url);
    nfs_set_dircache(c->nfs, 0);
    c->timeout_ms = timeout_ms;
    begin(c, NULL, 0, false);
    int r = finish(c, nfs_mount_async(c->nfs, address, x->path, on_done, c));
    if (r < 0)
        return mount_error(c, r, e);
    c->timeout_ms = x->timeout_ms;
    *ret = TAKE_PTR(c);
    return 0;
}

static inline void free_addresses(struct addrinfo **a)
{
    if (*a)
        freeaddrinfo(*a);
}

/* The addresses of the name in their order: one that is away must not take the others with it, so that each
 * has its part of the time that is left. */
static int conn_new(struct nfs *x, atomic_bool *cancel, struct nfs_conn **ret, struct err *e)
{
    char address[HOST_ADDRESS_MAX];
    struct addrinfo *_cleanup_(free_addresses) found = NULL;
    uint64_t end_ms = sys_mono_ms() + x->connect_timeout_ms, n = 0;
    /* libnfs would wait for name servers as long as those like */
    int r = host_addresses(x->host, /* port= */ 0, x->connect_timeout_ms, cancel, &found, e);
    for (const struct addrinfo *a = found; a; a = a->ai_next)
        n++;
    if (r < 0 && e && r != -ECANCELED)
        e->code = ERR_ORIGIN_DOWN;
    if (r < 0)
        return r == -ECANCELED ? r : ERR_ORIGIN_DOWN;
    r = ERR_ORIGIN_DOWN;
    for (const struct addrinfo *a = found; a && r == ERR_ORIGIN_DOWN; a = a->ai_next, n--) {
        uint64_t now_ms = sys_mono_ms(), left_ms = end_ms > now_ms ? end_ms - now_ms : 0;
        if (e)
            e->code = 0;
        r = host_text(a, address, e) < 0 ? ERR_ORIGIN_DOWN
                                         : conn_at(x, address, MAX(left_ms / n, (uint64_t)1), cancel, ret, e);
    }
    return r;
}

/* Whether an idle session still stands: a server that ended it, or says anything unasked, is seen. */
static bool stands(struct nfs_conn *c)
{
    struct pollfd fd = {.fd = nfs_get_fd(c->nfs), .events = POLLIN};
    return fd.fd >= 0 && sys_mono_ms() - c->idle_since_ms <= ORIGIN_REST_MS && poll(&fd, 1, 0) == 0;
}

static bool has_place_locked(const struct nfs *x, bool upload)
{
    size_t spare = MIN(MAX(x->limit / SPARE_SHARE, (size_t)1), x->limit - 1);
    return x->in_use < x->limit && (!upload || x->uploading < x->limit - spare);
}

/* A place in the pool, with an idle session when there is one. */
static int take_place(struct nfs *x, bool upload, atomic_bool *cancel, struct nfs_conn **ret,
                      uint64_t *ret_generation)
{
    uint64_t began_ms = sys_mono_ms();
    LOCK_SCOPE(&x->lock);
    while (!has_place_locked(x, upload)) {
        if (is_canceled(cancel) || sys_mono_ms() - began_ms >= quit_patience_ms(UINT64_MAX))
            return -ECANCELED;
        (void)cond_wait_for(&x->freed, &x->lock, QUIT_LOOK_MS * (uint64_t)1000000);
    }
    x->in_use++;
    x->uploading += upload;
    *ret = x->n_idle > 0 ? x->idle[--x->n_idle] : NULL;
    *ret_generation = x->generation;
    return 0;
}

static void leave_place(struct nfs *x, bool upload)
{
    LOCK_SCOPE(&x->lock);
    assert(x->in_use > 0 && (!upload || x->uploading > 0));
    x->in_use--;
    x->uploading -= upload;
    cond_broadcast(&x->freed); /* not every waiter may take this place */
}

static int take(struct nfs *x, bool upload, atomic_bool *cancel, struct nfs_conn **ret, struct err *e)
{
    for (;;) {
        struct nfs_conn *c = NULL;
        uint64_t generation = 0;
        int r = take_place(x, upload, cancel, &c, &generation);
        if (r < 0)
            return err_set(e, r, "canceled while waiting for a session");
        if (c && (c->generation != generation || !stands(c))) {
            conn_free(c);
            leave_place(x, upload);
            continue;
        }
        if (!c)
            r = conn_new(x, cancel, &c, e);
        if (r < 0) {
            leave_place(x, upload);
            return r;
        }
        c->generation = generation;
        c->cancel = cancel;
        c->upload = upload;
        *ret = c;
        return 0;
    }
}

int nfs_conn_take(struct nfs *x, atomic_bool *cancel, struct nfs_conn **ret, struct err *e)
{
    return take(x, /* upload= */ false, cancel, ret, e);
}

int nfs_conn_take_for_slow(struct nfs *x, atomic_bool *cancel, struct nfs_conn **ret, struct err *e)
{
    return take(x, /* upload= */ true, cancel, ret, e);
}

void nfs_conn_uncancel(struct nfs_conn *c)
{
    c->cancel = NULL;
}

bool nfs_conn_is_broken(const struct nfs_conn *c)
{
    return c->broken;
}

void nfs_conn_give(struct nfs_conn *c)
{
    if (!c)
        return;
    struct nfs *x = c->owner;
    bool upload = c->upload;
    c->cancel = NULL;
    c->idle_since_ms = sys_mono_ms();
    lock_take(&x->lock);
    if (c->stale && x->generation == c->generation)
        x->generation++;
    if (!c->broken && c->generation == x->generation && x->n_idle < x->limit)
        x->idle[x->n_idle++] = TAKE_PTR(c);
    lock_drop(&x->lock);
    conn_free(c);
    leave_place(x, upload);
}

static struct nfs_conn *take_stale(struct nfs *x, uint64_t now_ms)
{
    LOCK_SCOPE(&x->lock);
    if (x->n_idle == 0 || now_ms <= x->idle[0]->idle_since_ms + ORIGIN_REST_MS)
        return NULL;
    struct nfs_conn *old = x->idle[0];
    x->n_idle--;
    memmove(x->idle, x->idle + 1, x->n_idle * sizeof(x->idle[0]));
    return old;
}

size_t nfs_conn_rest(struct nfs *x, uint64_t now_ms)
{
    struct nfs_conn *old;
    size_t n = 0;
    for (; (old = take_stale(x, now_ms)); n++)
        conn_free(old);
    return n;
}

void nfs_conn_close_all(struct nfs *x)
{
    assert(x->in_use == 0);
    while (x->n_idle > 0)
        conn_free(x->idle[--x->n_idle]);
}

/*
 * Watching (contract in client_watch.h).
 *
 * Invariants:
 *  1. What is read from the pipe is told under the lock, in its order; so is its end, once.
 *  2. The thread alone opens and closes the pipe.
 *
 * Failure modes: while the node gives no pipe it is asked again every RETRY_MS. One that passes no
 * descriptors gives none: then the client is only told of a session that is over (client_look). Where there
 * is no room for a descriptor or a thread nothing is watched.
 */
#include "client/client_watch.h"

#include "base/le.h"
#include "base/lock.h"
#include "client/client.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define RECORDS_MAX 512  /* taken out of the pipe at once */
#define RETRY_MS    1000 /* between two tries to get a pipe */

struct watcher {
    struct client *c;
    char *bucket, *prefix; /* prefix: of names; NULL: of hashes */
    const struct watcher_calls *calls;
    void *arg;
    pthread_t thread;
    int wake_fd;            /* eventfd: stop */
    atomic_bool must_stop;  /* the same, for a call that waits for a node that is away */
    uint64_t handle, epoch; /* of the watch at the node */
    struct lock lock;       /* covers what follows; above those of whoever is told */
    int fd;                 /* the pipe; -1: none */
    bool is_over;           /* it has ended, and that was told */
};

/* Waits until fd can be read or has ended; false: stop. fd -1: waits RETRY_MS. */
static bool wait_for(struct watcher *w, int fd)
{
    struct pollfd p[] = {{.fd = w->wake_fd, .events = POLLIN}, {.fd = fd, .events = POLLIN}};
    while (poll(p, ARRAY_SIZE(p), fd < 0 ? RETRY_MS : -1) < 0 && errno == EINTR)
        ;
    return p[0].revents == 0;
}

static void end_locked(struct watcher *w)
{
    if (!w->is_over)
        w->calls->ended(w->arg);
    w->is_over = true;
}

/* Takes what is there. false: the pipe has ended. */
static bool take_locked(struct watcher *w)
{
    uint64_t records[RECORDS_MAX];
    while (!w->is_over) {
        ssize_t n = read(w->fd, records, sizeof(records));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            return true;
        if (n <= 0 || n % (ssize_t)sizeof(records[0]) != 0) {
            end_locked(w);
            break;
        }
        size_t count = (size_t)n / sizeof(records[0]);
        for (size_t i = 0; i < count; i++)
            records[i] = le_get64(&records[i]);
        w->calls->records(w->arg, records, count);
    }
    return false;
}

/* Takes records until the pipe ends or we are to stop; false: stop. */
static bool follow(struct watcher *w)
{
    while (wait_for(w, w->fd)) {
        LOCK_SCOPE(&w->lock);
        if (!take_locked(w))
            return true;
    }
    return false;
}

static int ask(struct watcher *w, int *ret_fd)
{
    struct wire_watch_req req = {.bucket = slice_str(w->bucket)};
    struct wire_watch_rep rep = {.fd = -1};
    struct wire_watch_names_req names_req = {.bucket = req.bucket,
                                             .prefix = w->prefix ? slice_str(w->prefix) : SLICE_NULL};
    struct wire_watch_names_rep names_rep = {.fd = -1};
    struct err ignored = {0}; /* tried again, and all works without */
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    w->epoch = 0;
    if (!client_passes_fds(w->c)) { /* the pipe would stay at the node */
        client_look(w->c);          /* instead of its end */
        return -EOPNOTSUPP;
    }
    int r = w->prefix
                ? client_call_at(w->c, &w->epoch, WIRE_OP_WATCH_NAMES, &names_req, &b, &names_rep, &ignored)
                : client_call_at(w->c, &w->epoch, WIRE_OP_WATCH, &req, &b, &rep, &ignored);
    if (r < 0)
        return r;
    w->handle = w->prefix ? names_rep.handle : rep.handle;
    *ret_fd = w->prefix ? names_rep.fd : rep.fd;
    return 0;
}

/* Nobody else ends what the node has opened. */
static void close_handle(struct watcher *w)
{
    struct wire_close_req req = {.handle = w->handle};
    struct wire_close_rep rep;
    struct err ignored = {0}; /* a node that is gone has closed it */
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    if (w->epoch == client_epoch(w->c))
        (void)client_call_at(w->c, &w->epoch, WIRE_OP_CLOSE, &req, &b, &rep, &ignored);
}

static void begin(struct watcher *w)
{
    int fd = -1;
    if (ask(w, &fd) < 0)
        return;
    int flags = fd < 0 ? -1 : fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0) { /* it passes none any more, perhaps */
        macro_close(&fd);
        close_handle(w);
        return;
    }
    LOCK_SCOPE(&w->lock);
    w->fd = fd;
    w->is_over = false;
    w->calls->begun(w->arg);
}

static void end(struct watcher *w)
{
    lock_take(&w->lock);
    end_locked(w);
    int fd = w->fd;
    w->fd = -1; /* first: a process that is forked now closes what it finds here */
    lock_drop(&w->lock);
    macro_close(&fd);
    close_handle(w);
}

static void *watcher_main(void *arg)
{
    struct watcher *w = arg;
    client_stop_when(&w->must_stop);
    for (bool go_on = true; go_on;) {
        if (w->fd < 0)
            begin(w);
        if (w->fd < 0) {
            go_on = wait_for(w, -1);
            continue;
        }
        go_on = follow(w);
        end(w);
    }
    return NULL;
}

/* Signals are for the program's own threads, which may have blocked them for a moment. */
static bool start_thread(struct watcher *w)
{
    sigset_t all, before;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_BLOCK, &all, &before);
    int r = pthread_create(&w->thread, NULL, watcher_main, w);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return r == 0;
}

static void watcher_free(struct watcher *w)
{
    macro_close(&w->wake_fd);
    free(w->bucket);
    free(w->prefix);
    free(w);
}

static struct watcher *start(struct client *c, struct slice bucket, const struct slice *prefix,
                             const struct watcher_calls *calls, void *arg)
{
    struct watcher *w = calloc(1, sizeof(*w));
    if (!w)
        abort();
    *w = (struct watcher){.c = c,
                          .bucket = slice_dup(bucket),
                          .prefix = prefix ? slice_dup(*prefix) : NULL,
                          .calls = calls,
                          .arg = arg,
                          .fd = -1};
    lock_init(&w->lock, LOCK_SESSION);
    w->wake_fd = eventfd(0, EFD_CLOEXEC);
    if (w->wake_fd >= 0)
        begin(w);
    if (w->wake_fd >= 0 && start_thread(w))
        return w;
    if (w->fd >= 0)
        end(w);
    lock_fini(&w->lock);
    watcher_free(w);
    return NULL;
}

struct watcher *watcher_start(struct client *c, struct slice bucket, const struct watcher_calls *calls,
                              void *arg)
{
    return start(c, bucket, NULL, calls, arg);
}

struct watcher *watcher_start_names(struct client *c, struct slice bucket, struct slice prefix,
                                    const struct watcher_calls *calls, void *arg)
{
    return start(c, bucket, &prefix, calls, arg);
}

void watcher_drain(struct watcher *w)
{
    LOCK_SCOPE(&w->lock);
    if (w->fd >= 0)
        (void)take_locked(w);
}

void watcher_end(struct watcher *w)
{
    if (!w)
        return;
    atomic_store(&w->must_stop, true);
    (void)eventfd_write(w->wake_fd, 1);
    (void)pthread_join(w->thread, NULL);
    lock_fini(&w->lock);
    watcher_free(w);
}

void watcher_abandon(struct watcher *w)
{
    if (!w)
        return;
    macro_close(&w->fd);
    watcher_free(w); /* the lock may be held, by a thread of the parent */
}

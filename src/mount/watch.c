/*
 * Watching (contract in watch.h).
 *
 * Failure modes: while the node gives no pipe it is asked again every RETRY_MS.
 */
#include "mount/watch.h"

#include "base/sys.h"
#include "mount/mount_internal.h"

#include <endian.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>

#define RECORDS_MAX 512  /* taken out of the pipe at once */
#define RETRY_MS    1000 /* between two tries to get a pipe */

struct watcher {
    struct mount *m;
    const struct watcher_calls *calls;
    void *arg;
    pthread_t thread;
    int wake_fd;            /* eventfd: stop */
    int fd;                 /* the pipe; -1: none */
    uint64_t handle, epoch; /* of the watch at the node */
};

/* Waits until fd can be read or has ended; false: stop. fd -1: waits RETRY_MS. */
static bool wait_for(struct watcher *w, int fd)
{
    struct pollfd p[] = {{.fd = w->wake_fd, .events = POLLIN}, {.fd = fd, .events = POLLIN}};
    while (poll(p, ARRAY_SIZE(p), fd < 0 ? RETRY_MS : -1) < 0 && errno == EINTR)
        ;
    return p[0].revents == 0;
}

/* Takes records until the pipe ends or we are to stop. */
static bool follow(struct watcher *w)
{
    uint64_t records[RECORDS_MAX];
    while (wait_for(w, w->fd)) {
        ssize_t n = read(w->fd, records, sizeof(records));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0 || n % (ssize_t)sizeof(records[0]) != 0)
            return true;
        size_t count = (size_t)n / sizeof(records[0]);
        for (size_t i = 0; i < count; i++)
            records[i] = le64toh(records[i]);
        w->calls->records(w->arg, records, count);
    }
    return false;
}

static void begin(struct watcher *w)
{
    struct wire_watch_req req = {.bucket = slice_str(w->m->bucket)};
    struct wire_watch_rep rep = {.fd = -1};
    struct err ignored = {0}; /* tried again, and the mount works without */
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    w->epoch = 0;
    if (client_call_at(w->m->client, &w->epoch, WIRE_OP_WATCH, &req, &b, &rep, &ignored) < 0)
        return;
    w->handle = rep.handle;
    w->fd = rep.fd;
    if (w->fd >= 0)
        w->calls->begun(w->arg);
}

static void end(struct watcher *w)
{
    w->calls->ended(w->arg);
    macro_close(&w->fd);
    w->fd = -1;
    struct wire_close_req req = {.handle = w->handle};
    struct wire_close_rep rep;
    struct err ignored = {0}; /* a node that is gone has closed it */
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    if (w->epoch == client_epoch(w->m->client))
        (void)client_call_at(w->m->client, &w->epoch, WIRE_OP_CLOSE, &req, &b, &rep, &ignored);
}

static void *watcher_main(void *arg)
{
    struct watcher *w = arg;
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

struct watcher *watcher_start(struct mount *m, const struct watcher_calls *calls, void *arg)
{
    struct watcher *w = calloc(1, sizeof(*w));
    if (!w)
        abort();
    *w = (struct watcher){.m = m, .calls = calls, .arg = arg, .fd = -1};
    begin(w);
    w->wake_fd = eventfd(0, EFD_CLOEXEC);
    if (w->wake_fd < 0 || pthread_create(&w->thread, NULL, watcher_main, w) != 0)
        abort();
    return w;
}

void watcher_end(struct watcher *w)
{
    if (!w)
        return;
    (void)eventfd_write(w->wake_fd, 1);
    (void)pthread_join(w->thread, NULL);
    macro_close(&w->wake_fd);
    free(w);
}

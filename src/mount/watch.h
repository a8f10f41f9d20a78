/*
 * The pipe through which the node tells a mount what others change (WATCH): a thread that gets one, reads its
 * records, and gets another when it has ended.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct mount;
struct watcher;

/* Called by the watcher's thread; `begun` for the first time by watcher_start. */
struct watcher_calls {
    void (*begun)(void *arg);
    void (*records)(void *arg, const uint64_t *v, size_t n);
    void (*ended)(void *arg); /* anything may have changed; also before watcher_end returns */
};

/* Tries at once, so that the first request finds it running. Never NULL. */
struct watcher *watcher_start(struct mount *m, const struct watcher_calls *calls, void *arg);
/* NULL accepted. */
void watcher_end(struct watcher *w);

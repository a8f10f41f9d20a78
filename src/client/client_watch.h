/*
 * The pipe through which the node tells what changes in a bucket (WATCH, WATCH_NAMES): a thread that gets
 * one, reads its records, and gets another when it has ended.
 */
#pragma once

#include "base/slice.h"

#include <stddef.h>
#include <stdint.h>

struct client;
struct watcher;

/* Called by the watcher's thread or by watcher_drain, one at a time; `begun` for the first time by
 * watcher_start. */
struct watcher_calls {
    void (*begun)(void *arg);
    void (*records)(void *arg, const uint64_t *v, size_t n);
    void (*ended)(void *arg); /* anything may have changed; also before watcher_end returns */
};

/* Tries at once, so that the first request finds it running. NULL: this process may not have one more
 * descriptor or thread; the calls have been told of the end of what they were told of. */
struct watcher *watcher_start(struct client *c, struct slice bucket, const struct watcher_calls *calls,
                              void *arg);
/* The same of names that begin with the prefix (WATCH_NAMES): what the calls get are words of
 * net/wire_names.h, perhaps a part of a record. */
struct watcher *watcher_start_names(struct client *c, struct slice bucket, struct slice prefix,
                                    const struct watcher_calls *calls, void *arg);
/* On return the calls have been told what the node said before: what was acknowledged by now is known. */
void watcher_drain(struct watcher *w);
/* NULL accepted. */
void watcher_end(struct watcher *w);
/* Of the parent, in a process that was forked: its thread is not here. NULL accepted. */
void watcher_abandon(struct watcher *w);

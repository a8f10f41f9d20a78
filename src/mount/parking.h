/*
 * Requests that wait for a thread. A thread of the mount that waits for long has a *place*; there are fewer
 * places than threads, so that an origin that says nothing cannot hold all of them, and what is cached here
 * is opened and read by those that are left. A request that would wait for long and finds no place is
 * *parked*: the kernel is not answered, and a thread that has a place runs it once more from its beginning.
 *
 * - A question (request.h) asks the node for what is here only (WIRE_NO_WAIT) while all places are taken, and
 *   is parked when that is not enough, or when it has waited for a while. Whatever it was doing ends as if
 *   its program had been killed, and its error is not told.
 * - A change takes its place before it begins; it is never ended by this.
 * - All else (RELEASE, WRITE, FORGET) is neither counted nor parked.
 *
 * A thread of this file's own looks at what is parked twice a second: questions whose programs are killed
 * end, and the others are tried again without waiting, as the node may have been slow, or may know more by
 * now.
 *
 * A process has one mount. Who is killed leaves what was parked to the kernel, which sends it again to who
 * takes over.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct parking_calls {
    /* Does what such a request asks for, as read from /dev/fuse, between parking_begin and parking_next. */
    void (*run)(void *arg, void *request, size_t n);
    /* A thread that waits for the kernel's next request is to call parking_next. */
    void (*wake)(void *arg);
    /* The program has been killed (as stuck_is_gone). */
    bool (*is_gone)(pid_t asker, pid_t *process);
    void *arg;
};

/* How many of so many threads may wait for long; 0: there are too few for a difference. */
unsigned parking_places(unsigned n_threads);
/* Before the threads are started; fd is /dev/fuse. Without it, and with 0 places, all may wait. */
void parking_start(int fd, unsigned n_places, const struct parking_calls *calls);
/* Starts the thread that looks at what is parked. */
void parking_watch(void);
/* When no thread serves any more: whoever still waits is told that the mount has ended. */
void parking_end(void);

/* What this thread works on, as read from /dev/fuse; the bytes stay until parking_next. Behind request_begin.
 */
void parking_begin(const void *request, size_t n);
/* Whether what this thread is about to ask the node is to be answered without waiting for an origin. */
bool parking_must_not_wait(void);
/* Whether this thread may wait on for the node; asked ten times a second. false: it is to end with an error,
 * any, and parking_is_due. */
bool parking_may_wait(void);
/* The same before it waits for another request of the mount. Under any lock. */
bool parking_may_stay(void);
/* The same before a change begins. */
bool parking_may_begin(void);
/* Instead of being answered with this error the request shall be parked, which is done, when nothing of it is
 * used any more, by: */
bool parking_is_due(int code);
void parking_park(void);
/* That was done. */
bool parking_is_done(void);

/* The end of what this thread works on, and with it of its place. The next parked request into p, which has
 * room for n bytes, if there is one and a place for it; else 0. Takes no lock where nothing is parked. */
ssize_t parking_next(void *p, size_t n);
/* Looks at what is parked once; how many have left. By the thread of this file's own. */
size_t parking_look(void);

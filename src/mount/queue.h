/*
 * Who reads the kernel's requests. One thread at a time *leads*: it alone reads from /dev/fuse, and it leads
 * on while it serves a request that surely does not wait (opening and closing a file that is kept). Before it
 * may wait for anything it passes the lead on, and the next thread reads. A call to the node is no waiting as
 * long as the client looks for its answer (base/look.h); only when it comes to sleep the lead goes. Where
 * that keeps requests of others waiting the lead is passed on before the calls.
 *
 * A leader that is asked often looks for the next request for a moment before it sleeps. To wake a thread
 * takes the kernel longer than such a request takes us, several times longer on a virtual machine, where a
 * processor without work has to be fetched back.
 */
#pragma once

#include "base/lock.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* X(NAME, opcode): enum fuse_opcode of linux/fuse.h, as far as it is asked for here. */
#define QUEUE_OPS(X)                                                                                         \
    X(LOOKUP, 1)                                                                                             \
    X(FORGET, 2)                                                                                             \
    X(GETATTR, 3)                                                                                            \
    X(SYMLINK, 6)                                                                                            \
    X(MKNOD, 8)                                                                                              \
    X(MKDIR, 9)                                                                                              \
    X(UNLINK, 10)                                                                                            \
    X(RMDIR, 11)                                                                                             \
    X(RENAME, 12)                                                                                            \
    X(LINK, 13)                                                                                              \
    X(OPEN, 14)                                                                                              \
    X(RELEASE, 18)                                                                                           \
    X(FLUSH, 25)                                                                                             \
    X(CREATE, 35)                                                                                            \
    X(BATCH_FORGET, 42)                                                                                      \
    X(RENAME2, 45)

enum queue_op {
#define X(NAME, opcode) QUEUE_##NAME = (opcode),
    QUEUE_OPS(X)
#undef X
};

#define QUEUE_BIT(NAME) ((uint64_t)1 << QUEUE_##NAME)

/* Before the threads are started; fd is /dev/fuse. quick: QUEUE_BITs of the operations that keep to
 * queue_may_wait. Without memory for it every thread reads for itself. */
void queue_start(int fd, uint64_t quick);
/* The next request into p, which has room for n bytes, as read(2) of /dev/fuse, which never is -EAGAIN; or
 * one that was parked (parking.h). */
ssize_t queue_read(int fd, void *p, size_t n);
/* A thread that waits for the next request looks at what is parked. Any thread. */
void queue_wake(void);
/* The request that this thread serves may wait, for the node, a disk or a lock that is held for long. Any
 * thread, at any time. */
void queue_may_wait(void);
/* It is about to call the node, and will say queue_may_wait before it sleeps for the answer. */
void queue_calls(void);
/* Takes a lock that may be held over a call to the node. */
void queue_lock(struct lock *l);

/* ---- how often requests come: pure ---- */

#define QUEUE_PACE 4

struct queue_pace {
    uint64_t came_ns[QUEUE_PACE]; /* monotonic; the last ones, in turn */
    unsigned next;
};

void queue_pace_add(struct queue_pace *p, uint64_t now_ns);
/* Whether looking for the next one is worth it: the last ones came within a millisecond. */
bool queue_pace_is_fast(const struct queue_pace *p, uint64_t now_ns);

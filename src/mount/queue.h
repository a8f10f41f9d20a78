/*
 * Who reads the kernel's requests. One thread at a time *leads*: it alone reads from /dev/fuse, and it leads
 * on while it serves a request that surely does not wait (opening and closing a file that is kept). Before it
 * may wait for anything it passes the lead on, and the next thread reads.
 *
 * A leader that is asked often looks for the next request for a moment before it sleeps. To wake a thread
 * takes the kernel longer than such a request takes us, several times longer on a virtual machine, where a
 * processor without work has to be fetched back.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Before the threads are started; fd is /dev/fuse. quick: the operations keep to queue_may_wait. Without
 * memory for it every thread reads for itself. */
void queue_start(int fd, bool quick);
/* The next request into p, which has room for n bytes, as read(2) of /dev/fuse, which never is -EAGAIN. */
ssize_t queue_read(int fd, void *p, size_t n);
/* The request that this thread serves may wait, for the node, a disk or a lock that is held for long. Any
 * thread, at any time. */
void queue_may_wait(void);

/* ---- how often requests come: pure ---- */

#define QUEUE_PACE 4

struct queue_pace {
    uint64_t came_ns[QUEUE_PACE]; /* monotonic; the last ones, in turn */
    unsigned next;
};

void queue_pace_add(struct queue_pace *p, uint64_t now_ns);
/* Whether looking for the next one is worth it: the last ones came within a millisecond. */
bool queue_pace_is_fast(const struct queue_pace *p, uint64_t now_ns);

/*
 * The keeper of a mount: a process that does nothing but hold /dev/fuse open and wait for the one that
 * serves. When that one is killed, or crashes, another takes over: the kernel sends again what was not
 * answered, and programs have only waited.
 */
#pragma once

#include "mount/kept.h"
#include "mount/mount.h"

/* What a process that serves is given. */
struct keeper_seat {
    struct kept *kept;
    int fuse_fd; /* of the process before it; -1: this is the first one */
    int post_fd;
};

/*
 * Forks. In the process that is to serve: returns 0 and the seat. In the keeper: never returns; it exits with
 * the status of the last process that served, 1 when that was killed and nobody could take over. SIGTERM and
 * SIGINT to the keeper end the mount; the keeper's own end, whatever its cause, ends it too. `on_ready` (may
 * be NULL) is called in the keeper when the first process serves.
 */
int keeper_fork(void (*on_ready)(void *arg), void *arg, struct keeper_seat *ret, struct err *e);

/* From the serving process: it serves. fuse_fd: what a successor takes over; -1: nobody can. */
void keeper_tell_ready(const struct keeper_seat *seat, int fuse_fd);

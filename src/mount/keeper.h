/*
 * The keeper of a mount: a process that does nothing but hold descriptors open, /dev/fuse above all, and wait
 * for the one that serves. When that one is killed, or crashes, another takes over: the kernel sends again
 * what was not answered, and programs have only waited.
 */
#pragma once

#include "mount/kept.h"
#include "mount/mount.h"

/* What a process that serves is given. */
struct keeper_seat {
    struct kept *kept;
    int fuse_fd; /* of the process before it; -1: this is the first one */
    int post_fd;
    int *held; /* owned: by slot, what the process before it had held (keeper_hold), -1: nothing */
    size_t n_held;
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

#define KEEPER_SLOTS_MAX 65536
/* From the serving process: a successor gets this descriptor, too, until it is dropped. A slot is in use for
 * one descriptor at a time. */
int keeper_hold(const struct keeper_seat *seat, uint32_t slot, int fd);
void keeper_drop(const struct keeper_seat *seat, uint32_t slot);

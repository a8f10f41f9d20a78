/*
 * The keeper of a mount: a process that does nothing but hold descriptors open, /dev/fuse above all, and wait
 * for the one that serves. When that one is killed, or crashes, another takes over: the kernel sends again
 * what was not answered, and programs have only waited.
 *
 * The one that takes over may be a newer program: an upgrade is a kill that was asked for, after which the
 * keeper starts the program that lies where it was started from itself. The keeper stays what it is.
 */
#pragma once

#include "mount/kept.h"
#include "mount/mount.h"

/* What a process that serves is given. */
struct keeper_seat {
    struct kept *kept;
    int fuse_fd; /* of the process before it; -1: this is the first one */
    int post_fd;
    bool is_upgraded; /* this is the program as it was found on the disk by then */
};

/*
 * Forks. In the process that is to serve: returns 0 and the seat. In the keeper: never returns; it exits with
 * the status of the last process that served, 1 when that was killed and nobody could take over. SIGTERM and
 * SIGINT to the keeper end the mount; the keeper's own end, whatever its cause, ends it too. `on_ready` (may
 * be NULL) is called in the keeper when the first process serves. In a program that a keeper has started:
 * returns at once, with the seat that it was given. timeout_ms: of the mount; a program that is started for
 * an upgrade serves after half of that (5 s at least), or says that it goes on, or is ended.
 */
int keeper_fork(uint64_t timeout_ms, void (*on_ready)(void *arg), void *arg, struct keeper_seat *ret,
                struct err *e);

/* Whether this process was started by a keeper. It then asks nobody about the mount point, which would be
 * itself, but kept_facts. */
bool keeper_has_started_us(void);

/* The directory in which the mount was begun, the caller's to free; NULL: unknown. In the process that begins
 * it and, before keeper_fork, in a program that a keeper has started. */
char *keeper_started_in(void);

/* From the serving process: it serves. fuse_fd: what a successor takes over; -1: nobody can. */
void keeper_tell_ready(const struct keeper_seat *seat, int fuse_fd);
/* From a process that takes over and has still much to do before it serves: it is not to be given up. */
void keeper_tell_going_on(const struct keeper_seat *seat);

/* From the serving process: a successor gets this descriptor, too, until it is dropped. A slot is in use for
 * one descriptor at a time. */
int keeper_hold(const struct keeper_seat *seat, uint32_t slot, int fd);
void keeper_drop(const struct keeper_seat *seat, uint32_t slot);
/* Another program shall take over. The process that says so is killed. */
void keeper_ask_upgrade(const struct keeper_seat *seat);

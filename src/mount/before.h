/*
 * What a process before this one, which was killed (keeper.h), had asked the node for. It goes on there, and
 * must not come between the changes of the successor: an upload that began before the kill would replace what
 * was written after it. So changes wait until no session of the process before is left; those that begin here
 * do not, because the kernel does not let two change one name at a time, and the one before is asked for
 * again; but for publications of what the processes before wrote: the kernel keeps no close or fsync apart
 * from another one, or from a rename of a directory above.
 */
#pragma once

#include "client/client.h"

/* This process takes over, and ends the sessions of those before it, whose sockets may still be open: see
 * keeper.c. c is of the same family as their clients. */
void before_start(struct client *c);
/* Waits, as long as operations run that those processes asked for. In a first process: returns at once. */
void before_wait(void);
/* Called before each call of the client; may wait so. */
void before_call(uint32_t op);

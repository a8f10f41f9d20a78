/* What the commands about jobs share. */
#pragma once

#include "cli/command.h"
#include "net/job_spec.h"

/* First member of such a command's options. */
struct job_common {
    struct command_node node;
    bool json, quiet;
};

/* COMMAND_NODE_ROWS for an options struct that begins with a struct job_common named `job`. */
#define JOB_NODE_ROWS(owner) COMMAND_NODE_ROWS_AT(owner, job.node)

/* Waits for the end of the job, a paused one too, and shows progress. Gives the exit status: 0 all done, 3
 * partly failed, 1 failed or cancelled. */
int job_wait(struct client *c, const struct job_common *o, uint64_t id, int *ret_status, struct err *e);
/* pause, resume, cancel, retry or rm. */
int job_change(struct client *c, uint64_t id, const char *action, struct err *e);

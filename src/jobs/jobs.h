/*
 * The node's jobs: bulk work on buckets that outlives the command that asked for it and the node's restart.
 *
 * At most JOBS_RUNNING_MAX run at once, in the order of their numbers; the others are queued. What a job has
 * settled is committed durably every JOBS_CHECKPOINT_NS, and at its end.
 *
 * Of jobs that have ended JOBS_ENDED_MAX are kept, with their failures: with each new one those that ended
 * first of what is more than these go. While JOBS_UNFINISHED_MAX have not ended, none is taken in.
 */
#pragma once

#include "object/object.h"

#define JOBS_RUNNING_MAX   4
#define JOBS_CHECKPOINT_NS ((uint64_t)1000000000)
#define JOBS_ENDED_MAX     1000

#define JOBS_UNFINISHED_MAX 1000

struct jobs;

/* Reads the records; jobs that ran when the node ended are queued again, and begin at once. Registers itself
 * for the operations JOB_* of `objects`, which must live longer, as must `seal` (object.h; NULL as there). */
int jobs_open(struct object_service *objects, struct kv *control, const struct seal *seal, struct jobs **ret,
              struct err *e);
/* Tells what runs to stop; it goes on at the next start. None begins any more. */
void jobs_stop(struct jobs *j);
/* The same, and waits for it. No JOB_* operation may run any more. */
void jobs_close(struct jobs *j);
DEFINE_CLEANUP(struct jobs, jobs_close)

/* What jobs.c (table, records, scheduling), jobs_ops.c (operations) and run.c (one running job) share. */
#pragma once

#include "base/chore.h"
#include "base/lock.h"
#include "jobs/job.h"
#include "jobs/jobs.h"
#include "jobs/kind.h"

#define JOBS_MAGIC 0x6a6f6273u

/* X(name): how far a job is, but for its cursor. Its thread moves that on, and a checkpoint commits it. */
#define JOB_PROGRESS(X)                                                                                      \
    X(phase)                                                                                                 \
    X(total_objects)                                                                                         \
    X(total_bytes)                                                                                           \
    X(done_objects)                                                                                          \
    X(done_bytes)                                                                                            \
    X(skipped_objects)                                                                                       \
    X(removed_objects)                                                                                       \
    X(modes_lost)                                                                                            \
    X(failed_objects)

struct job_progress {
#define X(name) uint64_t name;
    JOB_PROGRESS(X)
#undef X
    char *cursor;
};

struct job {
    struct job *next;              /* by rising id */
    struct job_record record;      /* jobs->lock */
    bool active;                   /* jobs->lock: its thread runs */
    struct job_progress committed; /* jobs->lock: of `record`, what the control store has while active */
    bool has_choice;  /* jobs->lock: the control store has what --newest chose, and nothing of before */
    atomic_bool stop; /* tells the thread to end soon */
};

struct jobs {
    uint32_t magic;
    struct object_service *objects;
    struct object_session *session;
    struct kv *kv;
    const struct seal *seal; /* of secrets in records; may be NULL */
    struct lock lock;        /* covers what follows, and the records */
    struct cond ended;       /* a thread of a job, or a job */
    struct job *first;
    unsigned running;
    unsigned waiting; /* clients in JOB_WAIT */
    bool closing;
    bool is_short; /* of threads: something queued waits for one, and `again` tries */
    struct chore again;
};

/* What a checkpoint adds to the record about one object: that it failed, or that it failed before and is done
 * now, or its line of the manifest. */
struct job_note {
    struct job_note *next;
    char *key;
    size_t key_n;
    int code;     /* 0: done */
    char *reason; /* of a failure */
    char *line;   /* of the manifest, or NULL */
};
void job_notes_free(struct job_note *f);

/* ---- jobs.c ---- */
struct job *jobs_find_locked(struct jobs *j, uint64_t id);
/* The record as it is and these notes, durably, all or nothing. */
int jobs_commit_locked(struct jobs *j, struct job *job, const struct job_note *notes, struct err *e);
/* The record durably, but while its thread runs only as far as the last checkpoint was: what was settled
 * since has notes that only the thread has. */
int jobs_commit_state_locked(struct jobs *j, struct job *job, struct err *e);
/* What was settled since the last commit is not: it could not be written down, or not be kept. */
void jobs_roll_back_locked(struct jobs *j, struct job *job);
/* Names further objects for a job that is over a list: lines, of keys below its prefix. Durable. */
int jobs_add_keys(struct jobs *j, uint64_t id, struct slice keys, struct err *e);
/* Starts queued jobs while there is room. */
void jobs_kick_locked(struct jobs *j);
/* Whether one more job is taken in; -EBUSY. */
int jobs_check_room(struct jobs *j, struct err *e);
/* Takes over the record of a new job: number, commit, queue. */
int jobs_add(struct jobs *j, struct job_record *r, uint64_t *ret_id, struct err *e);
/* Record and error list are gone on return. */
int jobs_remove(struct jobs *j, uint64_t id, struct err *e);

/* ---- manifest.c ---- */
struct ends;
/* Writes down at the target what the job exported or imported so far (docs/DATA.md has the form). */
int manifest_write(struct jobs *j, struct object_session *session, const struct job_record *r,
                   const struct ends *x, struct err *e);
/* Whether a key is that of a manifest, which no import takes for data. */
bool manifest_is(struct slice key);

/* ---- jobs_ops.c ---- */
int jobs_call(void *arg, uint32_t op, const void *req, struct arena *a, void *rep, struct err *e);

/* ---- run.c ---- */
struct job_run_arg {
    struct jobs *jobs;
    struct job *job;
};
/* The thread of a job: works until its end or until job->stop; then active is false. */
void *job_run(void *arg);

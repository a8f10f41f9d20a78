/*
 * A job: its kind, its states, its record in the control store. Pure: no clock, no file, no thread.
 *
 * A job walks what it is about in byte order of keys. Its cursor is the last key below which every object is
 * settled (done, skipped or failed); counters count exactly the settled ones. The record is committed with
 * the cursor, so that a job that was killed goes on behind it: nothing is left out, nothing counted twice.
 * What was done beyond the cursor is done again, which changes nothing (every kind is idempotent).
 *
 * Keys in the control store; ID is the job's number, 16 hex digits:
 *
 * | key      | value                                                                                  |
 * | -------- | -------------------------------------------------------------------------------------- |
 * | j/r/ID   | the record, text: "forebay job 1\n", the fields of JOB_FIELDS in order as              |
 * |          | "name=value\n", "modes_lost=N\n" unless that is 0, "list_comes=1\n" while its list     |
 * |          | comes, an empty line, the spec as                                                      |
 * |          | net/job_spec.h writes it. Numbers are                                                  |
 * |          | decimal; texts are percent-encoded (RFC 3986). Lines "set=VALUE" of the spec, which may |
 * |          | hold secrets, are "set@1=SEALED" instead (namespace/seal.h) where there is a key to    |
 * |          | seal with; the context is "job\0" and ID                                               |
 * | j/e/ID/K | object K failed: its error code, decimal, "\n", the reason                             |
 * | j/l/ID/K | the job is about object K, among others (empty); until it is done or cancelled         |
 * | j/c/ID/N | number N, three digits, of what --newest chose, as the spec has it, where together they are |
 * |          | too long for the record; until the job is done or cancelled                            |
 * | j/m/ID/K | object K was exported or imported: its line of the manifest, without the key; so long  |
 * | n/job    | the last number given, decimal                                                         |
 */
#pragma once

#include "base/buf.h"
#include "base/err.h"
#include "net/job_spec.h"

#define JOB_RECORD_MAX (128 * KIB)
#define JOB_KEY_MAX    (1024 + 32)

/* X(NAME, name, final) */
#define JOB_STATES(X)                                                                                        \
    X(QUEUED, "queued", false)                                                                               \
    X(RUNNING, "running", false)                                                                             \
    X(PAUSED, "paused", false)                                                                               \
    X(DONE, "done", true)                                                                                    \
    X(PARTIAL, "partly failed", true)                                                                        \
    X(FAILED, "failed", true)                                                                                \
    X(CANCELLED, "cancelled", true)

enum job_state {
#define X(NAME, name, final) JOB_##NAME,
    JOB_STATES(X)
#undef X
        JOB_N_STATES
};

/* X(NAME, word that a user gives or NULL) */
#define JOB_EVENTS(X)                                                                                        \
    X(BEGIN, NULL)         /* a place among the running ones */                                              \
    X(PAUSE, "pause")      /* keeps its place in the walk */                                                 \
    X(RESUME, "resume")    /* goes on: a paused one, or one that failed as a whole */                        \
    X(LISTED, "listed")    /* its list has come whole */                                                     \
    X(CANCEL, "cancel")    /* for good */                                                                    \
    X(RETRY, "retry")      /* works on its failed objects again */                                           \
    X(FINISH, NULL)        /* every object settled, none failed */                                           \
    X(FINISH_PARTLY, NULL) /* every object settled, some failed */                                           \
    X(FAIL, NULL)          /* it could not go on: listing failed, bucket gone */                             \
    X(INTERRUPT, NULL)     /* the node stops, or was killed */

enum job_event {
#define X(NAME, word) JOB_ON_##NAME,
    JOB_EVENTS(X)
#undef X
        JOB_N_EVENTS
};

const char *job_state_name(enum job_state s);
bool job_state_is_final(enum job_state s);
/* 0 and the state after the event; -EINVAL where it makes no sense in this state. */
int job_next_state(enum job_state s, enum job_event ev, enum job_state *ret);
/* The event of a user's word; -ENOENT. */
int job_event_of_word(struct slice word, enum job_event *ret);

/* What the walk is over. COUNT learns the totals, and what is newest; where it can the walk has begun then,
 * and the cursor is the walk's; AGAIN walks the failed objects; MANIFEST writes down what was exported or
 * imported; DIRS gives directories their attributes, after all that is in them.
 */
enum job_phase { JOB_COUNT, JOB_WALK, JOB_SWEEP, JOB_AGAIN, JOB_MANIFEST, JOB_DIRS, JOB_N_PHASES };

/* X(type, name): u64 counters and texts of a record, in the order of the text form. */
#define JOB_FIELDS(X)                                                                                        \
    X(text, kind)                                                                                            \
    X(u64, state)                                                                                            \
    X(u64, phase)                                                                                            \
    X(u64, created_ns) /* real time */                                                                       \
    X(u64, ended_ns)                                                                                         \
    X(u64, total_objects) /* learned by COUNT; what lacks a tag is taken off later */                        \
    X(u64, total_bytes)                                                                                      \
    X(u64, done_objects) /* worked on and verified */                                                        \
    X(u64, done_bytes)                                                                                       \
    X(u64, skipped_objects) /* nothing was to be done for them; counted in done too */                       \
    X(u64, removed_objects) /* sync --delete */                                                              \
    X(u64, failed_objects)  /* so many are in the error list */                                              \
    X(text, source)         /* BUCKET/PREFIX, or a URL */                                                    \
    X(text, target)         /* of copy, sync, export, import: BUCKET/PREFIX or URL */                        \
    X(text, cursor)         /* last settled key of the phase */                                              \
    X(text, reason)         /* why it failed as a whole */

#define JOB_C_u64  uint64_t
#define JOB_C_text char *

struct job_record {
    uint64_t id;
#define X(type, name) JOB_C_##type name;
    JOB_FIELDS(X)
#undef X
    uint64_t modes_lost; /* objects whose mode or owner is another one at the target; counted in done too */
    uint64_t list_comes; /* 1: keys of its list are still to come, so that it is paused and cannot go on */
    struct job_spec spec;
};

void job_record_fini(struct job_record *r);
/* Replaces a text. */
void job_set_text(char **field, struct slice s);
struct seal;
/* seal: for what the record holds of secrets; NULL: it stands there as it is. -E2BIG, ERR_BAD_OPTION. */
int job_record_encode(const struct job_record *r, const struct seal *seal, struct buf *b, struct err *e);
/* Whether what --newest chose is too long for the record, which is encoded without it then. */
bool job_choice_is_apart(const struct job_record *r);
/* ret zeroed but for its id, and to be freed with job_record_fini also after a failure. ERR_CORRUPT. */
int job_record_decode(struct slice value, const struct seal *seal, struct job_record *ret, struct err *e);

/* The keys of the table above; b is cleared first. */
void job_key_record(uint64_t id, struct buf *b);
void job_key_error(uint64_t id, struct slice key, struct buf *b);
void job_key_listed(uint64_t id, struct slice key, struct buf *b);
void job_key_manifest(uint64_t id, struct slice key, struct buf *b);
void job_key_choice(uint64_t id, struct slice number, struct buf *b);
int job_parse_key_record(struct slice k, uint64_t *ret_id);
#define JOB_KEY_HEAD 21 /* bytes of "j/e/ID/", and of the two others */
int job_error_encode(int code, const char *reason, struct buf *b);
int job_error_decode(struct slice value, int *ret_code, struct slice *ret_reason);

/* Whether it is a URL, and no BUCKET/PREFIX. */
bool job_is_url(struct slice path);
/* "BUCKET/PREFIX" cut at the first slash. */
void job_split(const char *path, struct slice *ret_bucket, struct slice *ret_prefix);

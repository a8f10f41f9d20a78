/*
 * The table of jobs: records in the control store, what runs and what waits (contract in jobs.h).
 *
 * Invariants:
 *  1. A state in memory that a user was told of is in the control store: it is committed before the answer.
 *  2. At most one thread works on a job (`active`); a job that is queued while its thread still ends waits.
 *  3. jobs->lock is held over commits of records: they are rare (one a second for each running job), and the
 *     order of commits must be the order of changes.
 *  4. A cursor and its counters are committed only together with the notes of what they passed, and after the
 *     kind's `keep`: by the job's thread. Others commit the state beside the progress of the last checkpoint.
 *  5. What the store holds of jobs is bounded by JOBS_UNFINISHED_MAX that have not ended and JOBS_ENDED_MAX
 * more. What only the work needs, the list of its objects and the lines of a manifest, goes with the commit
 * of an end after which there is no work any more.
 */
#include "jobs/jobs_internal.h"

#include "base/log.h"
#include "base/sys.h"

#include <inttypes.h>

#define FORGET_AT_ONCE 16 /* of what is more than is kept, with each job that comes */
#define AGAIN_NS       ((uint64_t)1000000000)

void job_notes_free(struct job_note *f)
{
    while (f) {
        struct job_note *next = f->next;
        free(f->key);
        free(f->reason);
        free(f->line);
        free(f);
        f = next;
    }
}

static void job_free(struct job *job)
{
    free(job->committed.cursor);
    job_record_fini(&job->record);
    free(job);
}

struct job *jobs_find_locked(struct jobs *j, uint64_t id)
{
    lock_assert_held(&j->lock);
    struct job *job = j->first;
    while (job && job->record.id != id)
        job = job->next;
    return job;
}

static void insert_locked(struct jobs *j, struct job *job)
{
    struct job **at = &j->first;
    while (*at && (*at)->record.id < job->record.id)
        at = &(*at)->next;
    job->next = *at;
    *at = job;
}

/* ---- records ---- */

static int put_note(struct kv_txn *t, uint64_t id, const struct job_note *f)
{
    _cleanup_buf_ struct buf key = BUF_INIT(JOB_KEY_MAX), value = BUF_INIT(4 * KIB);
    struct slice k = slice_of(f->key, f->key_n);
    int r = 0;
    job_key_error(id, k, &key);
    if (f->code == 0)
        kv_txn_delete(t, buf_view(&key));
    else if ((r = job_error_encode(f->code, f->reason, &value)) == 0)
        kv_txn_put(t, buf_view(&key), buf_view(&value));
    if (f->line) {
        job_key_manifest(id, k, &key);
        kv_txn_put(t, buf_view(&key), slice_str(f->line));
    }
    return r;
}

static int put_record(struct jobs *j, struct kv_txn *t, const struct job_record *rec, struct err *e)
{
    _cleanup_buf_ struct buf key = BUF_INIT(JOB_KEY_MAX), value = BUF_INIT(JOB_RECORD_MAX);
    int r = job_record_encode(rec, j->seal, &value, e);
    if (r < 0)
        return r;
    job_key_record(rec->id, &key);
    kv_txn_put(t, buf_view(&key), buf_view(&value));
    return 0;
}

/* The control store has the job's progress as it is. */
static void progress_committed(struct job *job)
{
#define X(name) job->committed.name = job->record.name;
    JOB_PROGRESS(X)
#undef X
    job_set_text(&job->committed.cursor, slice_str(job->record.cursor));
}

/* A record as far as the control store has it, with the state that it has now. Borrows what it points to. */
static struct job_record record_committed(const struct job *job)
{
    struct job_record rec = job->record;
#define X(name) rec.name = job->committed.name;
    JOB_PROGRESS(X)
#undef X
    rec.cursor = job->committed.cursor;
    return rec;
}

void jobs_roll_back_locked(struct jobs *j, struct job *job)
{
    lock_assert_held(&j->lock);
#define X(name) job->record.name = job->committed.name;
    JOB_PROGRESS(X)
#undef X
    job_set_text(&job->record.cursor, slice_str(job->committed.cursor));
}

/* Every key that begins with `from`, which is what one of job_key_* made without an object. */
static int delete_all(struct kv_txn *t, const struct buf *from)
{
    _cleanup_buf_ struct buf to = BUF_INIT(JOB_KEY_MAX);
    int r = kv_prefix_end(buf_view(from), &to);
    if (r == 0)
        kv_txn_delete_range(t, buf_view(from), buf_view(&to));
    return r;
}

static bool has_manifest(const struct job_record *rec)
{
    const struct kind *k = kind_find(slice_str(rec->kind));
    return (k && k->has_manifest) || rec->spec.manifest || job_spec_restores(&rec->spec);
}

/* A job that is partly failed may be retried, and one that failed resumed. */
static bool is_for_good(const struct job_record *rec)
{
    return rec->state == JOB_DONE || rec->state == JOB_CANCELLED;
}

static int delete_choice(struct kv_txn *t, uint64_t id)
{
    _cleanup_buf_ struct buf key = BUF_INIT(JOB_KEY_MAX);
    job_key_choice(id, SLICE_NULL, &key);
    return delete_all(t, &key);
}

/* In the place of what an earlier count chose, also where the record has it, or nothing was chosen now: else
 * that would be loaded for it. */
static int put_choice(struct kv_txn *t, const struct job_record *rec)
{
    _cleanup_buf_ struct buf key = BUF_INIT(JOB_KEY_MAX);
    int r = delete_choice(t, rec->id);
    size_t n = job_choice_is_apart(rec) ? rec->spec.chosen.n : 0;
    for (size_t i = 0; r == 0 && i < n; i++) {
        char number[8];
        (void)snprintf(number, sizeof(number), "%03u", (unsigned)i);
        job_key_choice(rec->id, slice_str(number), &key);
        kv_txn_put(t, buf_view(&key), slice_str(rec->spec.chosen.v[i]));
    }
    return r;
}

/* What the work needs and nobody shows. */
static int delete_work(struct kv_txn *t, const struct job_record *rec)
{
    _cleanup_buf_ struct buf key = BUF_INIT(JOB_KEY_MAX);
    int r = 0;
    if (rec->spec.listed) {
        job_key_listed(rec->id, SLICE_NULL, &key);
        r = delete_all(t, &key);
    }
    if (r == 0 && has_manifest(rec)) {
        job_key_manifest(rec->id, SLICE_NULL, &key);
        r = delete_all(t, &key);
    }
    return r == 0 && rec->spec.newest > 0 ? delete_choice(t, rec->id) : r;
}

/* rec: of the job, as it is or was. works: its thread may go on after this. */
static int commit_record(struct jobs *j, struct job *job, const struct job_record *rec,
                         const struct job_note *notes, bool works, struct err *e)
{
    bool has_new = !job->has_choice && rec->spec.newest > 0;
    _cleanup_(kv_txn_freep) struct kv_txn *t = kv_txn_new(j->kv);
    int r = put_record(j, t, rec, e);
    for (const struct job_note *f = notes; f && r == 0; f = f->next)
        r = put_note(t, rec->id, f);
    if (r == 0 && has_new)
        r = put_choice(t, rec);
    if (r == 0 && !works && is_for_good(rec))
        r = delete_work(t, rec);
    if (r == 0)
        r = kv_txn_commit(t, KV_DURABLE, e);
    job->has_choice = job->has_choice || (r == 0 && has_new);
    return r < 0 ? err_prefix(e, r, "record of job %" PRIu64, rec->id) : 0;
}

int jobs_commit_locked(struct jobs *j, struct job *job, const struct job_note *notes, struct err *e)
{
    lock_assert_held(&j->lock);
    /* Who is cancelled hears of it before this lock is free, and works no more. */
    int r = commit_record(j, job, &job->record, notes, /* works= */ false, e);
    if (r == 0)
        progress_committed(job);
    return r;
}

int jobs_commit_state_locked(struct jobs *j, struct job *job, struct err *e)
{
    lock_assert_held(&j->lock);
    /* The thread goes on with the record as it is. */
    const struct job_record rec = job->active ? record_committed(job) : job->record;
    return commit_record(j, job, &rec, NULL, job->active, e);
}

static int next_id(struct jobs *j, struct kv_txn *t, uint64_t *ret, struct err *e)
{
    _cleanup_buf_ struct buf value = BUF_INIT(32);
    uint64_t version = 0, last = 0;
    int r = kv_get(j->kv, SLICE_LIT("n/job"), &value, &version, e);
    if (r < 0 && r != -ENOENT)
        return r;
    if (r == 0 && slice_u64(buf_view(&value), &last) < 0)
        return err_set(e, ERR_CORRUPT, "control store: counter of jobs is not a number");
    char text[32];
    (void)snprintf(text, sizeof(text), "%" PRIu64, last + 1);
    kv_txn_check(t, SLICE_LIT("n/job"), version);
    kv_txn_put(t, SLICE_LIT("n/job"), slice_str(text));
    *ret = last + 1;
    return 0;
}

static int delete_objects(struct kv_txn *t, uint64_t id)
{
    _cleanup_buf_ struct buf key = BUF_INIT(JOB_KEY_MAX);
    job_key_error(id, SLICE_NULL, &key);
    int r = delete_all(t, &key);
    job_key_listed(id, SLICE_NULL, &key);
    r = r < 0 ? r : delete_all(t, &key);
    r = r < 0 ? r : delete_choice(t, id);
    job_key_manifest(id, SLICE_NULL, &key);
    return r < 0 ? r : delete_all(t, &key);
}

/* The record and all that is listed of it. */
static int delete_job(struct kv_txn *t, uint64_t id)
{
    _cleanup_buf_ struct buf key = BUF_INIT(JOB_KEY_MAX);
    job_key_record(id, &key);
    kv_txn_delete(t, buf_view(&key));
    return delete_objects(t, id);
}

static void unlink_locked(struct jobs *j, struct job *job)
{
    struct job **at = &j->first;
    while (*at != job)
        at = &(*at)->next;
    *at = job->next;
    job_free(job);
}

static bool has_ended(const struct job *job)
{
    return !job->active && job_state_is_final((enum job_state)job->record.state);
}

/* Those that ended first of what is more than is kept, a few at a time. How many. */
static size_t find_surplus_locked(struct jobs *j, struct job *ret[FORGET_AT_ONCE])
{
    size_t ended = 0, n = 0;
    for (const struct job *job = j->first; job; job = job->next)
        ended += has_ended(job);
    size_t most = ended > JOBS_ENDED_MAX ? MIN(ended - JOBS_ENDED_MAX, (size_t)FORGET_AT_ONCE) : 0;
    for (struct job *job = j->first; job && most > 0; job = job->next) {
        uint64_t ns = job->record.ended_ns;
        if (!has_ended(job) || (n == most && ns >= ret[n - 1]->record.ended_ns))
            continue;
        size_t i = n < most ? n++ : n - 1;
        for (; i > 0 && ret[i - 1]->record.ended_ns > ns; i--)
            ret[i] = ret[i - 1];
        ret[i] = job;
    }
    return n;
}

static int check_room_locked(struct jobs *j, struct err *e)
{
    size_t n = 0;
    for (const struct job *job = j->first; job; job = job->next)
        n += !has_ended(job);
    return n < JOBS_UNFINISHED_MAX
               ? 0
               : err_set(e, -EBUSY,
                         "%zu jobs have not ended, and a node takes no more than %d: wait for some, or "
                         "`forebay job ls` shows which to cancel",
                         n, JOBS_UNFINISHED_MAX);
}

int jobs_check_room(struct jobs *j, struct err *e)
{
    LOCK_SCOPE(&j->lock);
    return check_room_locked(j, e);
}

int jobs_add(struct jobs *j, struct job_record *r, uint64_t *ret_id, struct err *e)
{
    struct job *job = calloc(1, sizeof(*job)), *surplus[FORGET_AT_ONCE] = {0};
    assert(job);
    job->record = *r;
    *r = (struct job_record){0};
    LOCK_SCOPE(&j->lock);
    _cleanup_(kv_txn_freep) struct kv_txn *t = kv_txn_new(j->kv);
    int k = check_room_locked(j, e);
    size_t n = k == 0 ? find_surplus_locked(j, surplus) : 0;
    k = k < 0 ? k : next_id(j, t, &job->record.id, e);
    if (k == 0)
        k = put_record(j, t, &job->record, e);
    for (size_t i = 0; k == 0 && i < n; i++)
        k = delete_job(t, surplus[i]->record.id);
    if (k == 0)
        k = kv_txn_commit(t, KV_DURABLE, e);
    if (k < 0) {
        job_free(job);
        return err_prefix(e, k, "new job");
    }
    for (size_t i = 0; i < n; i++)
        unlink_locked(j, surplus[i]);
    *ret_id = job->record.id;
    insert_locked(j, job);
    jobs_kick_locked(j);
    return 0;
}

int jobs_remove(struct jobs *j, uint64_t id, struct err *e)
{
    LOCK_SCOPE(&j->lock);
    struct job *job = jobs_find_locked(j, id);
    if (!job)
        return err_set(e, -ENOENT, "job %" PRIu64 " does not exist", id);
    if (!has_ended(job))
        return err_set(e, -EBUSY, "job %" PRIu64 " has not ended: cancel it first", id);
    _cleanup_(kv_txn_freep) struct kv_txn *t = kv_txn_new(j->kv);
    int r = delete_job(t, id);
    if (r == 0)
        r = kv_txn_commit(t, KV_DURABLE, e);
    if (r < 0)
        return err_prefix(e, r, "remove job %" PRIu64, id);
    unlink_locked(j, job);
    return 0;
}

static int put_listed(struct kv_txn *t, const struct job_record *r, struct slice key, struct err *e)
{
    struct slice bucket, prefix;
    job_split(r->source, &bucket, &prefix);
    if (job_is_url(slice_str(r->source)))
        prefix = SLICE_NULL;
    if (key.n > ORIGIN_KEY_MAX_BYTES)
        return err_set(e, ERR_BAD_OPTION, "--list: a key of %zu bytes", key.n);
    if (!slice_starts(key, prefix))
        return err_set(e, ERR_BAD_OPTION, "--list: '" SLICE_FMT "' does not lie below %s", SLICE_ARG(key),
                       r->source);
    _cleanup_buf_ struct buf k = BUF_INIT(JOB_KEY_MAX);
    job_key_listed(r->id, key, &k);
    kv_txn_put(t, buf_view(&k), SLICE_NULL);
    return 0;
}

int jobs_add_keys(struct jobs *j, uint64_t id, struct slice keys, struct err *e)
{
    LOCK_SCOPE(&j->lock);
    struct job *job = jobs_find_locked(j, id);
    if (!job)
        return err_set(e, -ENOENT, "job %" PRIu64 " does not exist", id);
    if (!job->record.list_comes || job->record.state != JOB_PAUSED)
        return err_set(e, -EINVAL, "job %" PRIu64 " does not wait for a list", id);
    _cleanup_(kv_txn_freep) struct kv_txn *t = kv_txn_new(j->kv);
    int r = 0;
    while (r == 0 && keys.n > 0) {
        struct slice key = slice_split(&keys, '\n');
        if (key.n > 0)
            r = put_listed(t, &job->record, key, e);
    }
    if (r == 0)
        r = kv_txn_commit(t, KV_DURABLE, e);
    return r < 0 ? err_prefix(e, r, "job %" PRIu64, id) : 0;
}

/* ---- scheduling ---- */

static int start_thread(struct jobs *j, struct job *job)
{
    struct job_run_arg *arg = calloc(1, sizeof(*arg));
    assert(arg);
    *arg = (struct job_run_arg){j, job};
    pthread_t thread;
    int r = -pthread_create(&thread, NULL, job_run, arg);
    if (r < 0)
        free(arg);
    else
        (void)pthread_detach(thread); /* jobs_close waits for `active` */
    return r;
}

void jobs_kick_locked(struct jobs *j)
{
    lock_assert_held(&j->lock);
    bool closing = j->closing || object_is_stopping(j->objects);
    for (struct job *job = j->first; job && j->running < JOBS_RUNNING_MAX && !closing; job = job->next) {
        enum job_state next;
        if (job->active || job->record.state != JOB_QUEUED)
            continue;
        atomic_store(&job->stop, false);
        if (start_thread(j, job) < 0) {
            if (!j->is_short)
                chore_call(&j->again);
            j->is_short = true;
            return;
        }
        (void)job_next_state(JOB_QUEUED, JOB_ON_BEGIN, &next);
        job->record.state = next; /* not committed: after a kill it is queued again either way */
        progress_committed(job);
        job->active = true;
        j->running++;
    }
    j->is_short = false;
}

/* A turn of jobs.again: perhaps no other job ends, or is made, by which what is queued would begin. */
static uint64_t start_again(void *arg)
{
    struct jobs *j = arg;
    LOCK_SCOPE(&j->lock);
    jobs_kick_locked(j);
    return j->is_short ? AGAIN_NS : CHORE_UNTIL_CALLED;
}

/* ---- life ---- */

/* What --newest chose, where it is not in the record. */
static int load_choice(struct jobs *j, struct job *job, struct err *e)
{
    _cleanup_buf_ struct buf from = BUF_INIT(JOB_KEY_MAX), to = BUF_INIT(JOB_KEY_MAX);
    struct option_list *l = &job->record.spec.chosen;
    if (job->record.spec.newest == 0 || l->n > 0 || is_for_good(&job->record))
        return 0;
    job_key_choice(job->record.id, SLICE_NULL, &from);
    int r = kv_prefix_end(buf_view(&from), &to);
    _cleanup_(kv_iter_freep) struct kv_iter *it = kv_iter_new(j->kv, buf_view(&from), buf_view(&to));
    struct slice key, value;
    while (r == 0 && (r = kv_iter_next(it, &key, &value, e)) == 0) {
        l->v = realloc(l->v, (l->n + 1) * sizeof(*l->v));
        assert(l->v);
        l->v[l->n++] = slice_dup(value);
    }
    job->has_choice = l->n > 0;
    return r == -ENOENT ? 0 : r;
}

static int load_record(struct jobs *j, struct slice key, struct slice value, struct err *e)
{
    struct job *job = calloc(1, sizeof(*job));
    assert(job);
    int r = job_parse_key_record(key, &job->record.id);
    if (r == 0)
        r = job_record_decode(value, j->seal, &job->record, e);
    if (r < 0) { /* one bad record must not keep the node from starting */
        log_error("jobs", "a job is lost, its record " SLICE_FMT " is damaged: %s", SLICE_ARG(key),
                  e ? e->text : err_text(r));
        job_free(job);
        return 0;
    }
    r = load_choice(j, job, e);
    if (r < 0) {
        job_free(job);
        return r;
    }
    enum job_state next;
    if (job_next_state((enum job_state)job->record.state, JOB_ON_INTERRUPT, &next) == 0)
        job->record.state = next;
    insert_locked(j, job);
    return 0;
}

static int load(struct jobs *j, struct err *e)
{
    _cleanup_(kv_iter_freep) struct kv_iter *it = kv_iter_new(j->kv, SLICE_LIT("j/r/"), SLICE_LIT("j/r0"));
    struct slice key, value;
    int r;
    LOCK_SCOPE(&j->lock);
    while ((r = kv_iter_next(it, &key, &value, e)) == 0)
        if ((r = load_record(j, key, value, e)) < 0)
            break;
    if (r != -ENOENT)
        return err_prefix(e, r, "jobs");
    jobs_kick_locked(j);
    return 0;
}

int jobs_open(struct object_service *objects, struct kv *control, const struct seal *seal, struct jobs **ret,
              struct err *e)
{
    struct jobs *j = calloc(1, sizeof(*j));
    assert(j);
    j->magic = JOBS_MAGIC;
    j->objects = objects;
    j->kv = control;
    j->seal = seal;
    lock_init(&j->lock, LOCK_JOBS);
    cond_init(&j->ended);
    j->session = object_session_new(objects, WIRE_VIA_API);
    (void)chore_start(&j->again, CHORE_UNTIL_CALLED, start_again, j); /* without it other jobs do */
    object_service_extend(objects, jobs_call, j);
    int r = load(j, e);
    if (r < 0) {
        jobs_close(j);
        return r;
    }
    *ret = j;
    return 0;
}

void jobs_stop(struct jobs *j)
{
    assert(j->magic == JOBS_MAGIC);
    LOCK_SCOPE(&j->lock);
    j->closing = true;
    for (struct job *job = j->first; job; job = job->next)
        atomic_store(&job->stop, true);
    cond_broadcast(&j->ended);
}

void jobs_close(struct jobs *j)
{
    if (!j)
        return;
    jobs_stop(j);
    chore_stop(&j->again);
    lock_take(&j->lock);
    while (j->running > 0)
        cond_wait(&j->ended, &j->lock);
    lock_drop(&j->lock);
    object_service_extend(j->objects, NULL, NULL);
    object_session_free(j->session);
    while (j->first) {
        struct job *job = j->first;
        j->first = job->next;
        job_free(job);
    }
    lock_fini(&j->lock);
    cond_fini(&j->ended);
    j->magic = 0;
    free(j);
}

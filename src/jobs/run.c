/*
 * One running job: its thread walks and settles, workers do one object each.
 *
 * Objects go through a window, a ring in the order of the walk. Workers take from it in order and finish in
 * any; the job's thread settles them from the oldest on, which moves the cursor and the counters. What a
 * checkpoint commits is therefore exact: everything up to the cursor is settled and counted once.
 *
 * The work begins with the first page of the listing: a thread counts what follows (count.h), and leaves the
 * pages for the walk. The phase is COUNT until it is through; a job that goes on before that counts anew, and
 * walks on from its cursor.
 *
 * Invariants:
 *  1. head <= next <= tail; items in [head, next) are with a worker or finished, those in [next, tail) wait.
 *  2. After a stop the items that were not finished are not settled: the next run begins with them.
 *
 * Failure modes: an object that fails is a line in the error list, and the job goes on. When the walk itself
 * fails (listing, control store) the job fails with the reason; `resume` goes on at its cursor.
 */
#include "net/job_spec.h"

#include "jobs/count.h"
#include "jobs/digest.h"
#include "jobs/ends.h"
#include "jobs/filter.h"
#include "jobs/jobs_internal.h"
#include "jobs/newest.h"
#include "jobs/rate.h"
#include "jobs/source.h"

#include "base/log.h"
#include "base/sys.h"

#include "origin/origin.h"

#include <inttypes.h>
#include <limits.h>

#define WINDOW         1024
#define PARALLEL_MAX   256
#define PARALLEL_LARGE 16 /* where nobody said it, of objects that are not small */
#define PARALLEL_HUGE  4  /* of those that are copied, and of more no more bytes together than these: */
#define TOGETHER_BYTES (256 * MIB)
#define SMALL_BYTES    MIB /* one block: a prefetch fetches it in one request by its own thread */
#define WAIT_NS        ((uint64_t)100000000)
#define NOTES_COMMIT   500  /* notes that a checkpoint waits for at most */
#define DONE_COMMIT    4096 /* objects that are done, likewise, where they are remembered */
#define ARENA_BYTES    (32 * MIB)
#define REQUESTS_MIN   16 /* that uploads in several may have together, however few objects are worked on */
/* Of a listing that is counted so much is kept for the walk: some thousand objects are not listed twice. */
#define COUNTED_BYTES (1 * MIB)

enum item_state { ITEM_WAITING, ITEM_FINISHED };

struct item {
    enum item_state state;
    char *key;
    size_t key_n;
    uint64_t size, mtime_ns, counted;
    bool is_to_ask; /* whether it is chosen is not known yet */
    bool is_unfit;
    int result; /* enum kind_result or an error */
    uint64_t bytes;
    bool modes_lost;
    char *reason; /* of an error */
    char *line;   /* of the manifest */
};

/* What was settled as done since the last commit. */
struct done {
    struct done *next;
    char *key;
    size_t key_n;
    uint64_t bytes;
    bool is_skipped;
};

struct run {
    struct jobs *jobs;
    struct job *job;
    struct object_session *session; /* the job's own: what it waits for ends with job->stop */
    const struct kind *kind;
    struct filter *filter;
    struct ends ends;
    struct pages *counted; /* what the count goes, or went, over, for the walk; may be NULL */
    struct count *count;   /* under way; NULL: there is none, or it is through */
    bool has_ends, has_manifest;
    bool is_tagged; /* only objects with this tag */
    struct slice tag_name, tag_value;
    int (*work)(struct kind_work *w, const struct kind_object *o, struct err *e); /* of the phase */
    struct lock lock;                                                             /* covers what follows */
    struct cond work_there, finished, requests_there;
    struct item items[WINDOW];
    uint64_t head, next, tail; /* item i is items[i % WINDOW] */
    uint64_t busy;             /* workers with an item */
    uint64_t busy_bytes;       /* of those items */
    bool is_walked;            /* no item comes any more */
    bool is_again;             /* what is worked on failed before */
    bool no_more;              /* the walk ended or stopped: workers end when nothing waits */
    struct rate rate;
    uint64_t requests;           /* of uploads in several at a time */
    struct kind_witness witness; /* has a lock of its own */
    /* The job's thread: */
    struct job_note *notes;
    struct done *done; /* where the kind may find that it is not kept */
    unsigned n_notes, n_done;
    uint64_t committed_ns;
};

/* The node is told to stop before its jobs are: what has failed in between is no failure of theirs. */
static bool stopping(const struct run *r)
{
    return atomic_load(&r->job->stop) || object_is_stopping(r->jobs->objects);
}

static bool is_prefetch(const struct run *r)
{
    return r->kind->target == KIND_NOWHERE && r->kind->over == KIND_OVER_ORIGIN;
}

/* How many objects are worked on at a time. A small file costs its origin's first byte, however fast the
 * link: the origin's own limit says how many of those to wait for together. Where bytes or requests are
 * limited that brings nothing but a burst: what is under way is paid for when it has come. */
static uint64_t parallel_of(const struct run *r)
{
    const struct job_spec *s = &r->job->record.spec;
    bool is_free = is_prefetch(r) && !r->ends.is_limited && !s->rate;
    uint64_t most = is_free ? MAX(r->ends.requests_max, (uint64_t)PARALLEL_LARGE) : PARALLEL_LARGE;
    return MIN(s->parallel > 0 ? s->parallel : most, (uint64_t)PARALLEL_MAX);
}

static uint64_t window_of(const struct run *r)
{
    return MIN((uint64_t)WINDOW, parallel_of(r) * 4);
}

/* ---- workers ---- */

static int on_move(void *arg, uint64_t n)
{
    struct run *r = arg;
    uint64_t wait = 0;
    if (r->rate.bytes_per_s > 0) { /* which was settled before the workers began */
        LOCK_SCOPE(&r->lock);
        wait = rate_take(&r->rate, n, sys->mono_ns());
    }
    while (wait > 0 && !stopping(r)) {
        uint64_t step = MIN(wait, WAIT_NS);
        sys->sleep_ns(step);
        wait -= step;
    }
    return stopping(r) ? -ECANCELED : 0;
}

/* Those of one object always fit. */
static int on_take_requests(void *arg, unsigned n)
{
    struct run *r = arg;
    uint64_t most = MAX(parallel_of(r), (uint64_t)REQUESTS_MIN);
    LOCK_SCOPE(&r->lock);
    while (r->requests > 0 && r->requests + n > most && !stopping(r))
        (void)cond_wait_for(&r->requests_there, &r->lock, WAIT_NS);
    if (stopping(r))
        return -ECANCELED;
    r->requests += n;
    return 0;
}

static void on_give_requests(void *arg, unsigned n)
{
    struct run *r = arg;
    LOCK_SCOPE(&r->lock);
    assert(r->requests >= n);
    r->requests -= n;
    cond_broadcast(&r->requests_there);
}

/* Whether the filters choose an object whose attributes could not be had when it was walked over: 1, 0, or
 * the error. Who named it hears that it is missing, as without filters. */
static int ask_item(struct run *r, const struct item *it, struct arena *a, struct err *e)
{
    struct wire_stat_req req = {.bucket = r->ends.source_bucket,
                                .key = slice_of(it->key, it->key_n),
                                .flags = WIRE_FRESH | (r->ends.modes ? WIRE_MODES : 0)};
    struct wire_stat_rep rep;
    int k = object_stat(r->session, &req, a, &rep, e);
    if (k < 0)
        return k;
    return filter_match(r->filter, req.key, rep.attr.size_bytes, rep.attr.mtime_ns);
}

/* The manifest has SHA-256s, and the target's ETags are compared with MD5s. Of a bucket without origin they
 * would say little, being made here, of the bytes as they were given: its files are read back. */
static unsigned sums_of(const struct run *r)
{
    int verify = r->job->record.spec.verify;
    unsigned sums = r->has_manifest ? DIGEST_SHA256_OF_ALL : 0;
    if (verify == JOB_VERIFY_READ)
        sums |= DIGEST_SHA256_OF_ALL;
    else if (verify == JOB_VERIFY_AUTO && r->ends.etags == DIGEST_OF_ALL)
        sums |= DIGEST_CRC32C_OF_ALL;
    else if (verify == JOB_VERIFY_AUTO)
        sums |= r->ends.etags;
    return sums;
}

/* Whether the object has the tag that the job is about, if any: 1, 0, or the error. */
static int ask_tag(struct run *r, struct slice key, struct err *e)
{
    bool has = true;
    int k = r->is_tagged ? object_guest_has_tag(r->jobs->objects, r->ends.source_bucket, key, r->tag_name,
                                                r->tag_value, &r->job->stop, &has, e)
                         : 0;
    return k < 0 ? k : has;
}

static int refuse_unfit(struct err *e)
{
    return err_set(e, -ENAMETOOLONG,
                   "names that begin so are longer than any key (%d bytes) or one name in it (%d): shorten "
                   "them, or those of the directories around them",
                   ORIGIN_KEY_MAX_BYTES, NAME_MAX);
}

/* What was not there may be remembered as absent for the bucket's `validate`: a retry, which a user asked
 * for, asks the origin. */
static int work_on(struct run *r, struct kind_work *w, const struct kind_object *o, struct err *e)
{
    struct wire_stat_req req = {.bucket = r->ends.source_bucket,
                                .key = o->key,
                                .flags = WIRE_FRESH | (r->ends.modes ? WIRE_MODES : 0)};
    struct wire_stat_rep rep;
    int k = r->work(w, o, e);
    if (k != -ENOENT || !r->is_again)
        return k;
    arena_clear(w->arena);
    if (object_stat(r->session, &req, w->arena, &rep, NULL) < 0)
        return k;
    arena_clear(w->arena);
    *e = (struct err){0};
    return r->work(w, o, e);
}

static void do_item(struct run *r, struct item *it, struct arena *a)
{
    struct err e = {0};
    struct kind_work w = {.session = r->session,
                          .spec = &r->job->record.spec,
                          .created_ns = r->job->record.created_ns,
                          .source_bucket = r->ends.source_bucket,
                          .source_prefix = r->ends.source_prefix,
                          .target_bucket = r->ends.target_bucket,
                          .target_prefix = r->ends.target_prefix,
                          .part_bytes = r->ends.part_bytes,
                          .to_origin = r->ends.to_url,
                          .from_origin = r->ends.from_url,
                          .from_tree = r->ends.is_tree,
                          .sums = sums_of(r),
                          .modes = r->ends.modes,
                          .has_dirs = r->ends.has_dirs,
                          .no_set = r->ends.no_set,
                          .no_links = r->ends.no_links,
                          .is_named = r->is_again || r->job->record.spec.listed,
                          .hasher = object_hasher(r->jobs->objects),
                          .witness = &r->witness,
                          .arena = a,
                          .move = on_move,
                          .take_requests = on_take_requests,
                          .give_requests = on_give_requests,
                          .sends_parts = r->ends.sends_parts,
                          .arg = r};
    struct kind_object o = {.key = slice_of(it->key, it->key_n),
                            .size_bytes = it->size,
                            .mtime_ns = it->mtime_ns,
                            .counted_bytes = it->counted};
    int chosen = it->is_unfit ? refuse_unfit(&e) : it->is_to_ask ? ask_item(r, it, a, &e) : 1;
    arena_clear(a);
    int has_tag = chosen > 0 ? ask_tag(r, o.key, &e) : 1;
    it->result = chosen < 0     ? chosen
                 : chosen == 0  ? KIND_SKIPPED
                 : has_tag < 0  ? has_tag
                 : has_tag == 0 ? KIND_LEFT_OUT
                                : work_on(r, &w, &o, &e);
    it->bytes = w.bytes;
    bool is_done = it->result == KIND_WORKED || (it->result == KIND_SKIPPED && chosen > 0);
    it->modes_lost = w.modes_lost;
    it->line = is_done && r->has_manifest ? slice_dup(w.line) : NULL;
    if (it->result < 0)
        it->reason = slice_dup(slice_str(e.text[0] ? e.text : err_text(it->result)));
}

/* Whether the job's thread is needed, once an item was finished: soon nobody has one to work on, or this was
 * the last. Otherwise it settles many at once when it looks by itself: to be woken for each is a tenth of
 * what a small object costs. */
static bool is_needed_locked(const struct run *r)
{
    uint64_t waiting = r->tail - r->next;
    return r->is_walked ? waiting + r->busy == 0 : waiting < window_of(r) / 2;
}

/* Whether the next item, which there is, may be begun. Large objects have the link filled by a few at a time,
 * and are better ended one after the other than all begun: where they are copied, what follows the last byte
 * (sums, the disk, the proof) would leave the link idle for all of them at once. Of those that leave in parts
 * twice as many are begun: they wait for requests (on_take_requests), opened and looked at, so that the next
 * goes as soon as one needs fewer. */
static bool may_begin_locked(const struct run *r)
{
    uint64_t size = r->items[r->next % WINDOW].size;
    bool copies = r->kind->target != KIND_NOWHERE;
    unsigned ahead = r->ends.sends_parts ? 2 : 1;
    if (r->job->record.spec.parallel > 0)
        return true;
    if (copies && r->busy >= PARALLEL_HUGE * ahead && r->busy_bytes + size > TOGETHER_BYTES * ahead)
        return false;
    return r->busy < PARALLEL_LARGE || size <= SMALL_BYTES;
}

static void *worker(void *arg)
{
    struct run *r = arg;
    _cleanup_(arena_freep) struct arena *a = arena_new(ARENA_BYTES);
    LOCK_SCOPE(&r->lock);
    for (;;) {
        while (r->next == r->tail ? !r->no_more : !may_begin_locked(r) && !stopping(r))
            cond_wait(&r->work_there, &r->lock);
        if (r->next == r->tail || stopping(r))
            return NULL;
        struct item *it = &r->items[r->next++ % WINDOW];
        r->busy++;
        r->busy_bytes += it->size;
        lock_drop(&r->lock);
        do_item(r, it, a);
        lock_take(&r->lock);
        r->busy--;
        r->busy_bytes -= it->size;
        /* An error after a stop may be the stop's doing: the object is for the next run. */
        if (it->result >= 0 || !stopping(r))
            it->state = ITEM_FINISHED;
        if (is_needed_locked(r))
            cond_signal(&r->finished);
        if (r->next < r->tail &&
            may_begin_locked(r)) /* which it perhaps could not while this was worked on */
            cond_signal(&r->work_there);
    }
}

/* ---- settling ---- */

static void item_clear(struct item *it)
{
    free(it->key);
    free(it->reason);
    free(it->line);
    *it = (struct item){0};
}

static void note(struct run *r, struct item *it)
{
    struct job_note *f = calloc(1, sizeof(*f));
    assert(f);
    *f = (struct job_note){.next = r->notes,
                           .key = TAKE_PTR(it->key),
                           .key_n = it->key_n,
                           .code = MIN(it->result, 0),
                           .reason = TAKE_PTR(it->reason),
                           .line = TAKE_PTR(it->line)};
    r->notes = f;
    r->n_notes++;
}

static void note_done(struct run *r, const struct item *it)
{
    struct done *d = calloc(1, sizeof(*d));
    assert(d);
    *d = (struct done){.next = r->done,
                       .key = slice_dup(slice_of(it->key, it->key_n)),
                       .key_n = it->key_n,
                       .bytes = it->bytes,
                       .is_skipped = it->result == KIND_SKIPPED};
    r->done = d;
    r->n_done++;
}

static void done_free(struct run *r)
{
    while (r->done) {
        struct done *d = r->done;
        r->done = d->next;
        free(d->key);
        free(d);
    }
    r->n_done = 0;
}

static void settle_one(struct run *r, struct item *it)
{
    struct job_record *rec = &r->job->record;
    LOCK_SCOPE(&r->jobs->lock);
    job_set_text(&rec->cursor, slice_of(it->key, it->key_n));
    if (rec->phase == JOB_SWEEP) {
        rec->removed_objects += it->result == KIND_WORKED;
        return;
    }
    if (rec->phase == JOB_DIRS)
        return;
    rec->modes_lost += it->modes_lost && it->result >= 0;
    bool again = rec->phase == JOB_AGAIN;
    if (it->result == KIND_LEFT_OUT) {
        bool was_counted = rec->spec.newest == 0; /* else the count has asked for its tags itself */
        rec->total_objects -= was_counted ? MIN(rec->total_objects, (uint64_t)1) : 0;
        rec->total_bytes -= was_counted ? MIN(rec->total_bytes, it->counted) : 0;
        rec->failed_objects -= again ? 1 : 0;
    } else if (it->result >= 0) {
        rec->done_objects++;
        rec->done_bytes += it->bytes;
        rec->skipped_objects += it->result == KIND_SKIPPED;
        rec->failed_objects -= again ? 1 : 0;
        if (r->kind->kept)
            note_done(r, it);
    } else {
        rec->failed_objects += again ? 0 : 1;
    }
    if (it->result < 0 || again || it->line)
        note(r, it);
}

/* Settles what is finished, oldest first. A failed removal of a sweep ends the job, and so do attributes that
 * a directory does not get. */
static int settle(struct run *r, struct err *e)
{
    for (;;) {
        lock_take(&r->lock);
        struct item *it = &r->items[r->head % WINDOW];
        bool ready = r->head < r->next && it->state == ITEM_FINISHED;
        lock_drop(&r->lock);
        if (!ready)
            return 0;
        if (r->job->record.phase == JOB_SWEEP && it->result < 0)
            return err_set(e, it->result, "remove %.*s: %s", (int)it->key_n, it->key, it->reason);
        if (r->job->record.phase == JOB_DIRS && it->result < 0)
            return err_set(e, it->result, "attributes of %.*s: %s", (int)it->key_n, it->key, it->reason);
        settle_one(r, it);
        item_clear(it);
        lock_take(&r->lock);
        r->head++;
        lock_drop(&r->lock);
    }
}

/* What was settled as done has failed. */
static void take_back(struct run *r, const struct done *d, int code, const struct err *why)
{
    struct job_record *rec = &r->job->record;
    struct slice key = slice_of(d->key, d->key_n);
    struct job_note *f = r->notes;
    LOCK_SCOPE(&r->jobs->lock);
    rec->done_objects--;
    rec->done_bytes -= d->bytes;
    rec->skipped_objects -= d->is_skipped;
    rec->failed_objects++;
    while (f && !slice_eq(slice_of(f->key, f->key_n), key)) /* that it failed before and is done now */
        f = f->next;
    if (!f) {
        struct item it = {.key = slice_dup(key), .key_n = key.n};
        note(r, &it);
        f = r->notes;
    }
    f->code = code;
    free(f->reason);
    f->reason = slice_dup(slice_str(why->text));
}

/* What the counters say is done must not come undone by a kill: where an index cannot be written it is looked
 * which objects that is true of. */
static int keep(struct run *r, struct err *e)
{
    struct slice bucket = r->has_ends ? r->ends.source_bucket : SLICE_NULL;
    struct err local = {0};
    int k = r->has_ends && r->kind->keep ? r->kind->keep(r->session, bucket, &local) : 0;
    if (k < 0 && !(k == -EIO && r->kind->kept)) {
        *e = local;
        return k;
    }
    for (const struct done *d = k < 0 ? r->done : NULL; d; d = d->next) {
        struct err why = {0};
        int lost = r->kind->kept(r->session, bucket, slice_of(d->key, d->key_n), &why);
        if (lost < 0)
            take_back(r, d, lost, &why);
    }
    done_free(r);
    return 0;
}

static int commit(struct run *r, struct err *e)
{
    int k = keep(r, e);
    if (k < 0)
        return k;
    LOCK_SCOPE(&r->jobs->lock);
    k = jobs_commit_locked(r->jobs, r->job, r->notes, e);
    if (k < 0)
        return k;
    job_notes_free(TAKE_PTR(r->notes));
    r->n_notes = 0;
    r->committed_ns = sys->mono_ns();
    return 0;
}

static int checkpoint(struct run *r, struct err *e)
{
    bool due = sys->mono_ns() - r->committed_ns >= JOBS_CHECKPOINT_NS || r->n_notes >= NOTES_COMMIT ||
               r->n_done >= DONE_COMMIT;
    return due ? commit(r, e) : 0;
}

/* How much it is in all, once that is known (`wait`: now, unless the job is to stop): what is counted beside
 * the walk ends the first phase. */
static int learn(struct run *r, bool wait, struct err *e)
{
    struct count_result total;
    int k = r->count ? count_ask(r->count, wait, &total, e) : 0;
    if (k <= 0)
        return k;
    struct job_record *rec = &r->job->record;
    count_free(TAKE_PTR(r->count));
    LOCK_SCOPE(&r->jobs->lock);
    rec->total_objects = total.objects;
    rec->total_bytes = total.bytes;
    rec->phase = JOB_WALK;
    return 0;
}

/* Settles and commits; waits a little when nothing could be done. */
static int turn(struct run *r, bool wait, struct err *e)
{
    if (wait) {
        lock_take(&r->lock);
        if (r->head < r->tail && r->items[r->head % WINDOW].state != ITEM_FINISHED)
            (void)cond_wait_for(&r->finished, &r->lock, WAIT_NS);
        lock_drop(&r->lock);
    }
    int k = settle(r, e);
    if (k == 0)
        k = learn(r, /* wait= */ false, e);
    return k < 0 ? k : checkpoint(r, e);
}

/* ---- one phase ---- */

static void push(struct run *r, const struct kind_object *o)
{
    const struct job_record *rec = &r->job->record;
    /* What failed of a list may have failed before it was known whether it is chosen. */
    bool again = rec->phase == JOB_AGAIN && rec->spec.listed && filter_needs_attributes(r->filter);
    LOCK_SCOPE(&r->lock);
    r->items[r->tail % WINDOW] = (struct item){.key = slice_dup(o->key),
                                               .key_n = o->key.n,
                                               .size = o->size_bytes,
                                               .counted = o->counted_bytes,
                                               .mtime_ns = o->mtime_ns,
                                               .is_to_ask = o->is_unknown || again,
                                               .is_unfit = o->is_unfit};
    r->tail++;
    cond_signal(&r->work_there);
}

static bool window_full(struct run *r)
{
    LOCK_SCOPE(&r->lock);
    return r->tail - r->head >= window_of(r);
}

static bool window_empty(struct run *r)
{
    LOCK_SCOPE(&r->lock);
    return r->head == r->tail;
}

static void end_walk(struct run *r)
{
    LOCK_SCOPE(&r->lock);
    r->is_walked = true;
}

/* Whether the filters choose an object of the target: by the name that it has, or would have, in the source.
 * A marker of the target's prefix has none there, and stays; so does what exports and imports wrote down. */
static bool sweep_wanted(const struct run *r, const struct kind_object *o)
{
    _cleanup_buf_ struct buf key = BUF_INIT(2 * ORIGIN_KEY_MAX_BYTES);
    if (o->key.n <= r->ends.target_prefix.n || ((r->ends.from_url || r->ends.to_url) && manifest_is(o->key)))
        return false;
    if (buf_slice(&key, r->ends.source_prefix) < 0 ||
        buf_slice(&key, slice_from(o->key, r->ends.target_prefix.n)) < 0)
        return false;
    return filter_match(r->filter, buf_view(&key), o->size_bytes, o->mtime_ns);
}

/* Whether the filters choose an object of the source. Any thread. */
static bool chosen(const void *arg, const struct kind_object *o)
{
    const struct run *r = arg;
    if (r->ends.from_url && manifest_is(o->key))
        return false;
    if (o->is_unknown || o->is_unfit) /* who works on it finds out, or tells of it */
        return true;
    return filter_match(r->filter, o->key, o->size_bytes, o->mtime_ns);
}

/* What the job is about: by its filters, and by what --newest chose. */
static bool wanted(const struct run *r, const struct kind_object *o)
{
    const struct job_spec *s = &r->job->record.spec;
    if (r->job->record.phase == JOB_SWEEP)
        return sweep_wanted(r, o);
    if (r->job->record.phase == JOB_DIRS && !slice_ends(o->key, SLICE_LIT("/")))
        return false;
    if (s->newest > 0 && r->job->record.phase != JOB_COUNT && !newest_holds(&s->chosen, o->key) &&
        !newest_holds_plain(&s->only, o->key))
        return false;
    return chosen(r, o);
}

/* Feeds the window from the walk until its end, a stop or an error; then waits for what is under way. */
static int feed(struct run *r, struct source *s, struct err *e)
{
    struct kind_object o;
    bool all = r->job->record.phase == JOB_AGAIN; /* failed objects were selected before */
    int k = 0;
    while (k == 0 && !stopping(r)) {
        k = turn(r, window_full(r), e);
        if (k < 0 || window_full(r) || !source_wait(s, WAIT_NS))
            continue;
        int found = source_next(s, &o, e);
        if (found <= 0) {
            k = found;
            break;
        }
        if (all || wanted(r, &o))
            push(r, &o);
    }
    end_walk(r);
    while (k == 0 && !stopping(r) && !window_empty(r))
        k = turn(r, /* wait= */ true, e);
    return k == 0 && !stopping(r) ? learn(r, /* wait= */ true, e) : k;
}

static struct source_open over(struct run *r)
{
    struct job_record *rec = &r->job->record;
    bool sweep = rec->phase == JOB_SWEEP, again = rec->phase == JOB_AGAIN;
    bool copies = r->kind->target != KIND_NOWHERE; /* what is not copied is told */
    return (struct source_open){.session = r->session,
                                .bucket = sweep ? r->ends.target_bucket : r->ends.source_bucket,
                                .prefix = sweep ? r->ends.target_prefix : r->ends.source_prefix,
                                .over = sweep ? KIND_OVER_ORIGIN : r->kind->over,
                                .kv = again || rec->spec.listed ? r->jobs->kv : NULL,
                                .id = rec->id,
                                .flags =
                                    (r->ends.modes ? WIRE_MODES : 0) | (copies && !sweep ? WIRE_UNFIT : 0),
                                .errors = again,
                                .stat = !again && filter_needs_attributes(r->filter)};
}

static struct source *open_source(struct run *r)
{
    struct source_open o = over(r);
    return source_new(&o, slice_str(r->job->record.cursor));
}

/* Whether the work can begin before it is known how much it is. Not where the count chooses what is worked
 * on, where the work changes what is counted, and where what is worked on is taken off the count. */
static bool counts_beside(const struct run *r)
{
    const struct job_spec *s = &r->job->record.spec;
    return r->kind->over == KIND_OVER_ORIGIN && !s->listed && !s->dry_run && s->newest == 0 && !r->is_tagged;
}

static int begin_count(struct run *r, struct err *e)
{
    struct count_open o = {.source = over(r),
                           .pages = pages_new(COUNTED_BYTES),
                           .stop = &r->job->stop,
                           .chosen = chosen,
                           .arg = r};
    r->counted = o.pages;
    r->count = count_new(&o);
    return r->count ? 0 : err_set(e, -EAGAIN, "no thread to be had");
}

/* Of a prefetch no more than find a place at the origin, which keeps one for others: each fetches small
 * objects in its own thread (fill.h, FILL_PATIENT). One more would be queued, and with it, one after the
 * other, all. */
static uint64_t workers_of(const struct run *r)
{
    uint64_t n = parallel_of(r), places = r->ends.requests_max;
    return is_prefetch(r) && places > 1 ? MIN(n, places - 1) : n;
}

/* Workers' share of a phase: begins them, feeds, ends them, settles what they finished. */
static int work_phase(struct run *r, struct err *e)
{
    struct job_record *rec = &r->job->record;
    int k = rec->phase == JOB_COUNT ? begin_count(r, e) : 0;
    if (k < 0)
        return k;
    _cleanup_(source_freep) struct source *s = open_source(r);
    if (r->counted && rec->phase <= JOB_WALK && !rec->cursor[0])
        source_follow(s, r->counted);
    pthread_t threads[PARALLEL_MAX];
    uint64_t n = 0, want = workers_of(r);
    r->work = rec->phase == JOB_SWEEP  ? r->kind->sweep
              : rec->phase == JOB_DIRS ? r->kind->dir
                                       : r->kind->work;
    r->is_again = rec->phase == JOB_AGAIN;
    r->no_more = r->is_walked = false;
    while (n < want && pthread_create(&threads[n], NULL, worker, r) == 0)
        n++;
    k = n > 0 ? feed(r, s, e) : err_set(e, -EAGAIN, "no threads to be had");
    lock_take(&r->lock);
    r->no_more = true;
    if (k < 0) /* what waits is for the next run */
        r->tail = r->next;
    cond_broadcast(&r->work_there);
    lock_drop(&r->lock);
    for (uint64_t i = 0; i < n; i++)
        (void)pthread_join(threads[i], NULL);
    count_free(TAKE_PTR(r->count));
    struct err late = {0};
    int settled = settle(r, k < 0 ? &late : e);
    return k < 0 ? k : settled;
}

/* What a count chose that was not committed. */
static void forget_choice(struct option_list *only)
{
    for (size_t i = 0; i < only->n; i++)
        free(only->v[i]);
    free(only->v);
    *only = (struct option_list){0};
}

/* Learns how much it is, and with --newest what: the choice is kept with the record from then on. */
static int count_phase(struct run *r, struct err *e)
{
    struct job_record *rec = &r->job->record;
    _cleanup_(source_freep) struct source *s = open_source(r);
    _cleanup_(pages_freep) struct pages *pages = pages_new(COUNTED_BYTES);
    _cleanup_(newest_freep) struct newest *newest =
        rec->spec.newest > 0 ? newest_new(rec->spec.newest, r->ends.source_prefix.n) : NULL;
    struct kind_object o;
    uint64_t objects = 0, bytes = 0;
    bool asks = rec->spec.dry_run || newest; /* else who works on an object asks for its tags */
    int k;
    source_share(s, pages);
    while ((k = source_next(s, &o, e)) > 0 && !stopping(r)) {
        if (!wanted(r, &o))
            continue;
        int has_tag = asks ? ask_tag(r, o.key, e) : 1;
        if (has_tag == 0 || has_tag == -ENOENT) /* or it is gone by now */
            continue;
        if (has_tag < 0)
            return stopping(r) ? 0 : err_prefix(e, has_tag, SLICE_FMT, SLICE_ARG(o.key));
        objects++;
        bytes += o.counted_bytes;
        if (newest)
            newest_add(newest, o.key, o.size_bytes, o.mtime_ns);
    }
    if (k < 0 || stopping(r))
        return MIN(k, 0);
    pages_end(pages);
    r->counted = TAKE_PTR(pages);
    LOCK_SCOPE(&r->jobs->lock);
    if (newest) {
        forget_choice(&rec->spec.only);
        forget_choice(&rec->spec.chosen);
        newest_end(newest, &rec->spec.chosen, &objects, &bytes);
        r->job->has_choice = false;
    }
    rec->total_objects = objects;
    rec->total_bytes = bytes;
    return 0;
}

/* ---- all phases ---- */

/* The phase after the one that ended; false when that was the last: its cursor stays, so that a job whose
 * last commit fails does nothing again. */
static bool next_phase(struct run *r)
{
    struct job_record *rec = &r->job->record;
    LOCK_SCOPE(&r->jobs->lock);
    bool sweeps = r->kind->sweep && rec->spec.remove && rec->failed_objects == 0;
    bool is_counted = rec->phase == JOB_COUNT;
    if (is_counted && !rec->spec.dry_run)
        rec->phase = JOB_WALK;
    else if ((rec->phase == JOB_WALK || rec->phase == JOB_AGAIN || is_counted) && sweeps)
        rec->phase = JOB_SWEEP; /* a dry run counts what it would remove, too */
    else if ((rec->phase == JOB_WALK || rec->phase == JOB_AGAIN) && r->kind->dir && r->ends.has_dirs)
        rec->phase = JOB_DIRS;
    else if ((rec->phase == JOB_WALK || rec->phase == JOB_AGAIN || rec->phase == JOB_DIRS) && r->has_manifest)
        rec->phase = JOB_MANIFEST;
    else
        return false;
    job_set_text(&rec->cursor, SLICE_NULL);
    return true;
}

static int run_phase(struct run *r, struct err *e)
{
    switch (r->job->record.phase) {
    case JOB_COUNT:
        return counts_beside(r) ? work_phase(r, e) : count_phase(r, e);
    case JOB_MANIFEST:
        return manifest_write(r->jobs, r->session, &r->job->record, &r->ends, e);
    default:
        return work_phase(r, e);
    }
}

static int run_phases(struct run *r, struct err *e)
{
    for (;;) {
        int k = run_phase(r, e);
        if (k < 0 || stopping(r))
            return k;
        if (!next_phase(r))
            return 0; /* `conclude` commits */
        k = commit(r, e);
        if (k < 0 || stopping(r)) /* what was cancelled has no lines of a manifest any more */
            return k;
    }
}

static int prepare(struct run *r, struct err *e)
{
    struct job_record *rec = &r->job->record;
    r->kind = kind_find(slice_str(rec->kind));
    if (!r->kind)
        return err_set(e, ERR_BAD_OPTION, "'%s': no such kind of job", rec->kind);
    if (rec->spec.rate && rec->spec.rate[0])
        (void)job_spec_parse_rate(rec->spec.rate, &r->rate.bytes_per_s);
    r->is_tagged = job_spec_tag(&rec->spec, &r->tag_name, &r->tag_value);
    r->has_manifest = r->kind->has_manifest || rec->spec.manifest || job_spec_restores(&rec->spec);
    int k = filter_open(&rec->spec, &r->filter, e);
    if (k == 0)
        k = ends_open(r->jobs->objects, r->session, rec, r->kind, /* probe= */ false, &r->ends, e);
    r->has_ends = k == 0;
    return k;
}

/* A state that a user chose meanwhile stays. */
static void set_end_locked(struct run *r, enum job_event ev, const char *reason)
{
    struct job_record *rec = &r->job->record;
    enum job_state next;
    if (rec->state != JOB_RUNNING || job_next_state(JOB_RUNNING, ev, &next) < 0)
        return;
    rec->state = next;
    rec->ended_ns = job_state_is_final(next) ? sys->real_ns() : 0;
    if (next == JOB_FAILED || next == JOB_PARTIAL)
        job_set_text(&rec->reason, slice_str(reason));
}

/* The state after the last phase, durably: who could not write down that it is done has failed. A node that
 * stops leaves the job queued. */
static int commit_end_locked(struct run *r, enum job_event ev, const char *reason, bool kept, struct err *e)
{
    struct job_record *rec = &r->job->record;
    const struct job_note *notes = kept ? r->notes : NULL;
    set_end_locked(r, ev, reason);
    int k = jobs_commit_locked(r->jobs, r->job, notes, e);
    if (k == 0 || (rec->state != JOB_DONE && rec->state != JOB_PARTIAL))
        return k;
    rec->state = JOB_RUNNING;
    set_end_locked(r, JOB_ON_FAIL, e->text);
    e->code = 0;
    return jobs_commit_locked(r->jobs, r->job, notes, e);
}

/* Whether what is left can wait for the retry of the objects that failed: that does it once more. */
static bool can_wait(const struct run *r)
{
    const struct job_record *rec = &r->job->record;
    return rec->failed_objects > 0 && (rec->phase == JOB_DIRS || rec->phase == JOB_MANIFEST);
}

static void conclude(struct run *r, int k, struct err *why)
{
    struct jobs *j = r->jobs;
    struct job_record *rec = &r->job->record;
    bool stopped = stopping(r);
    struct err e = {0};
    int kept = keep(r, &e);
    if (kept < 0)
        log_warn("jobs", "job %" PRIu64 ": what it did since its last checkpoint is done again: %s", rec->id,
                 e.text);
    if (k == 0 && kept < 0) {
        k = kept;
        *why = e;
    }
    if (r->has_ends)
        ends_close(j->objects, &r->ends);
    object_session_free(TAKE_PTR(r->session));
    enum job_event ev = stopped                                ? JOB_ON_INTERRUPT
                        : k < 0 && !(kept == 0 && can_wait(r)) ? JOB_ON_FAIL
                        : rec->failed_objects > 0              ? JOB_ON_FINISH_PARTLY
                                                               : JOB_ON_FINISH;
    LOCK_SCOPE(&j->lock);
    if (kept < 0)
        jobs_roll_back_locked(j, r->job);
    e.code = 0;
    if (commit_end_locked(r, ev, k == 0 ? "" : why->text[0] ? why->text : err_text(k), kept == 0, &e) < 0) {
        log_error("jobs", "%s", e.text);
        jobs_roll_back_locked(j, r->job); /* its notes go with this thread */
    }
    log_info("jobs", "job %" PRIu64 " (%s %s): %s, %" PRIu64 " objects done, %" PRIu64 " failed%s%s", rec->id,
             rec->kind, rec->source, job_state_name((enum job_state)rec->state), rec->done_objects,
             rec->failed_objects, rec->reason[0] ? ": " : "", rec->reason);
    r->job->active = false;
    j->running--;
    jobs_kick_locked(j);
    cond_broadcast(&j->ended);
}

static void run_free(struct run *r)
{
    for (size_t i = 0; i < WINDOW; i++)
        item_clear(&r->items[i]);
    job_notes_free(r->notes);
    done_free(r);
    pages_free(r->counted);
    filter_free(r->filter);
    cond_fini(&r->work_there);
    cond_fini(&r->finished);
    buf_fini(&r->witness.key);
    lock_fini(&r->witness.lock);
    cond_fini(&r->requests_there);
    lock_fini(&r->lock);
    free(r);
}

void *job_run(void *arg)
{
    struct job_run_arg *ra = arg;
    struct run *r = calloc(1, sizeof(*r));
    assert(r);
    r->jobs = ra->jobs;
    r->job = ra->job;
    free(ra);
    r->session = object_session_new(r->jobs->objects, WIRE_VIA_API);
    object_session_set_quit(r->session, &r->job->stop);
    lock_init(&r->lock, LOCK_JOBS);
    lock_init(&r->witness.lock, LOCK_LEAF);
    r->witness.key = BUF_INIT(ORIGIN_KEY_MAX_BYTES);
    cond_init(&r->work_there);
    cond_init(&r->finished);
    cond_init(&r->requests_there);
    /* The record is set before the lock that its starter holds is free. */
    lock_take(&r->jobs->lock);
    lock_drop(&r->jobs->lock);
    r->committed_ns = sys->mono_ns();
    struct err e = {0};
    int k = prepare(r, &e);
    if (k == 0)
        k = run_phases(r, &e);
    conclude(r, k, &e);
    run_free(r);
    return NULL;
}

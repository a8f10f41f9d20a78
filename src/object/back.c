/*
 * Write-back: the records, in the control store and in memory.
 *
 * Invariants:
 *  1. A key has an entry with `recorded` exactly when its record is in the control store, but within a change
 * by who is busy with it.
 *  2. An extent is given back only after every record that names it was replaced or removed durably.
 *  3. A bucket with records is not removed, and of one that was removed nothing is recorded: no command would
 * reach it any more. Nor does it get another origin, and what was begun with the former one is not recorded:
 * its base says what was there.
 *
 * Failure modes: a commit that fails may have happened: the record is read again, and the entry follows what
 * is there. Records that cannot be read at the start end it. Records of buckets that are gone, which nodes of
 * before could leave, are dropped there.
 * A kill between a record and the moment when its writer has what was cached of the key forgotten leaves a
 * version that nobody is to find any more: the start lets go of it.
 */
#include "object/back_internal.h"

#include "namespace/upload.h"

#include "base/hash.h"
#include "base/le.h"
#include "base/log.h"
#include "base/sys.h"

#include <inttypes.h>

#define TICK_MS   200ull
#define TICK_NS   (TICK_MS * 1000000)
#define UNHURRIED (1ull << 63) /* places behind those that somebody waits for */
#define GONE_MS   5000         /* by then the room of a record that went is free */

/* ---- keys ---- */

static void record_key(uint64_t bucket_id, struct slice key, struct buf *ret)
{
    char head[10] = {'d', '/'};
    be_put64(head + 2, bucket_id);
    int r = buf_append(ret, head, sizeof(head));
    r = r < 0 ? r : buf_slice(ret, key);
    assert(r == 0);
}

void back_range(uint64_t bucket_id, struct slice prefix, struct slice after, struct buf *ret_from,
                struct buf *ret_to)
{
    record_key(bucket_id, slice_cmp(after, prefix) >= 0 ? after : prefix, ret_from);
    _cleanup_buf_ struct buf all = BUF_INIT(BACK_KEY_BYTES);
    record_key(bucket_id, prefix, &all);
    int r = kv_prefix_end(buf_view(&all), ret_to);
    if (r == 0 && slice_cmp(after, prefix) >= 0)
        r = buf_append(ret_from, "", 1); /* behind it */
    assert(r == 0);
}

/* ---- entries ---- */

static struct back_entry **chain_of(struct back *b, uint64_t bucket_id, struct slice key)
{
    return &b->chains[hash_mix(hash_table(key), bucket_id) % BACK_CHAINS];
}

static struct back_entry *find_locked(struct back *b, uint64_t bucket_id, struct slice key)
{
    struct back_entry *x = *chain_of(b, bucket_id, key);
    while (x && (x->bucket_id != bucket_id || !slice_eq(back_key(x), key)))
        x = x->chain;
    return x;
}

static struct back_bucket *find_bucket_locked(struct back *b, uint64_t id)
{
    struct back_bucket *x = b->buckets;
    while (x && x->bucket_id != id)
        x = x->next;
    return x;
}

static struct back_bucket *bucket_locked(struct back *b, uint64_t id)
{
    struct back_bucket *x = find_bucket_locked(b, id);
    if (x)
        return x;
    x = calloc(1, sizeof(*x));
    assert(x);
    *x = (struct back_bucket){.next = b->buckets, .bucket_id = id};
    b->buckets = x;
    return x;
}

static struct back_entry *make_locked(struct back *b, uint64_t bucket_id, struct slice key)
{
    struct back_entry *x = find_locked(b, bucket_id, key);
    if (x)
        return x;
    x = calloc(1, sizeof(*x) + key.n);
    assert(x);
    x->bucket_id = bucket_id;
    x->bucket = bucket_locked(b, bucket_id);
    x->key_n = key.n;
    memcpy(x->key, key.p, key.n);
    struct back_entry **at = chain_of(b, bucket_id, key);
    x->chain = *at;
    *at = x;
    return x;
}

void back_forget_unused_locked(struct back *b, struct back_entry *x)
{
    if (x->users > 0 || x->recorded || x->sending)
        return;
    struct back_entry **at = chain_of(b, x->bucket_id, back_key(x));
    while (*at != x)
        at = &(*at)->chain;
    *at = x->chain;
    free(x->error);
    free(x);
}

struct back_entry *back_enter(struct back *b, uint64_t bucket_id, struct slice key)
{
    LOCK_SCOPE(&b->lock);
    struct back_entry *x = make_locked(b, bucket_id, key);
    x->users++;
    while (x->busy)
        cond_wait(&b->moved, &b->lock);
    x->busy = true;
    return x;
}

static void leave_locked(struct back *b, struct back_entry *x)
{
    assert(x->busy && x->users > 0);
    x->busy = false;
    x->users--;
    cond_broadcast(&b->moved);
    back_forget_unused_locked(b, x);
}

void back_leave(struct back *b, struct back_entry *x)
{
    LOCK_SCOPE(&b->lock);
    leave_locked(b, x);
}

static void end_using_locked(struct back *b, struct back_entry *x)
{
    assert(x->users > 0);
    x->users--;
    back_forget_unused_locked(b, x);
}

bool back_begin_copying(struct back *b, struct back_entry *x, atomic_bool *over)
{
    LOCK_SCOPE(&b->lock);
    bool is_first = !x->copying;
    x->users++;
    if (is_first)
        x->copying = over;
    leave_locked(b, x);
    if (is_first)
        return true;
    while (x->copying)
        cond_wait(&b->moved, &b->lock);
    end_using_locked(b, x);
    return false;
}

void back_end_copying(struct back *b, struct back_entry *x)
{
    LOCK_SCOPE(&b->lock);
    x->copying = NULL;
    cond_broadcast(&b->moved);
    end_using_locked(b, x);
}

/* The record is another one, or gone. */
static void end_copy_locked(const struct back_entry *x)
{
    if (x->copying)
        atomic_store(x->copying, true);
}

bool back_has(struct back *b, uint64_t bucket_id, struct slice key)
{
    if (atomic_load(&b->n) == 0)
        return false;
    LOCK_SCOPE(&b->lock);
    struct back_entry *x = find_locked(b, bucket_id, key);
    return x && x->recorded;
}

static void queue_take_locked(struct back *b, struct back_entry *x)
{
    *(x->prev ? &x->prev->next : &b->first) = x->next;
    *(x->next ? &x->next->prev : &b->last) = x->prev;
    x->next = x->prev = NULL;
}

/* after NULL: at the head. */
static void queue_put_locked(struct back *b, struct back_entry *after, struct back_entry *x)
{
    x->place = ++b->places + (x->noted_ms > 0 ? UNHURRIED : 0);
    x->prev = after;
    x->next = after ? after->next : b->first;
    *(after ? &after->next : &b->first) = x;
    *(x->next ? &x->next->prev : &b->last) = x;
}

/* The entry as its record is now: in the queue at the place of the first write that is not in the origin. */
static void follow_locked(struct back *b, struct back_entry *x, const struct back_record *r)
{
    b->bytes -= x->recorded ? x->size_bytes : 0;
    b->gone_ms = x->recorded ? sys_mono_ms() : b->gone_ms;
    end_copy_locked(x);
    if (!x->recorded) {
        x->noted_ms = sys_mono_ms();
        queue_put_locked(b, b->last, x);
        (void)atomic_fetch_add(&b->n, 1);
    }
    x->recorded = true;
    x->seq = r->seq;
    x->size_bytes = r->removal ? 0 : r->size_bytes;
    x->since_ns = r->since_ns;
    b->bytes += x->size_bytes;
    back_queue_file_locked(b, x, sys_mono_ms());
    cond_signal(&b->work);
}

static void unrecord_locked(struct back *b, struct back_entry *x)
{
    if (!x->recorded)
        return;
    queue_take_locked(b, x);
    end_copy_locked(x);
    x->recorded = false;
    x->tries = x->waits = 0;
    x->retry_ms = 0;
    free(TAKE_PTR(x->error));
    b->bytes -= x->size_bytes;
    b->gone_ms = sys_mono_ms();
    back_queue_file_locked(b, x, 0);
    (void)atomic_fetch_sub(&b->n, 1);
    cond_broadcast(&b->moved);
}

static bool is_below(const struct back_entry *x, uint64_t bucket_id, struct slice prefix)
{
    return bucket_id == 0 || (x->bucket_id == bucket_id && slice_starts(back_key(x), prefix));
}

/* A name on the way to the prefix: where the origin has directories it may have to change first. */
static bool is_above(const struct back_entry *x, uint64_t bucket_id, struct slice prefix)
{
    struct slice key = back_key(x);
    return x->bucket_id == bucket_id && key.n > 0 && slice_starts(prefix, key) &&
           (key.p[key.n - 1] == '/' || (key.n < prefix.n && prefix.p[key.n] == '/'));
}

/* Somebody waits for room, which all that is in the queue takes. */
static void hurry_all_locked(struct back *b)
{
    lock_assert_held(&b->lock);
    b->hurried_ms = sys_mono_ms();
    cond_broadcast(&b->work);
}

/* Somebody waits for these: they go to the head of the queue, behind those that others wait for. */
static void hurry_locked(struct back *b, uint64_t bucket_id, struct slice prefix)
{
    struct back_entry *hurried = NULL; /* the last of them */
    lock_assert_held(&b->lock);
    for (struct back_entry *x = b->first, *next; x; x = next) {
        next = x->next;
        if (x->noted_ms > 0 && (is_below(x, bucket_id, prefix) || is_above(x, bucket_id, prefix))) {
            x->noted_ms = 0;
            queue_take_locked(b, x);
            queue_put_locked(b, hurried, x);
            back_queue_file_locked(b, x, sys_mono_ms());
        }
        hurried = x->noted_ms == 0 ? x : hurried;
    }
    cond_broadcast(&b->work);
}

/* ---- records ---- */

/* Whether the record of this sequence is of a run before. */
static bool was_found(struct back *b, uint64_t bucket_id, struct slice key, uint64_t seq)
{
    LOCK_SCOPE(&b->lock);
    const struct back_entry *x = find_locked(b, bucket_id, key);
    return x && x->found_seq == seq;
}

int back_load(struct back *b, uint64_t bucket_id, struct slice key, struct buf *value,
              struct back_record *ret, struct err *e)
{
    _cleanup_buf_ struct buf k = BUF_INIT(BACK_KEY_BYTES);
    record_key(bucket_id, key, &k);
    buf_clear(value);
    int r = kv_get(b->kv, buf_view(&k), value, NULL, e);
    if (r == 0 && back_record_decode(buf_view(value), ret) < 0)
        r = err_set(e, ERR_CORRUPT, "the record of a write that is not in the origin is damaged");
    bool may_be_sent = r == 0 && !ret->removal && !ret->has_tag;
    if (may_be_sent && !back_record_was_sent(ret) && was_found(b, bucket_id, key, ret->seq))
        (void)back_record_note_sent(ret);
    return r;
}

/* After a commit whose end is not known: what is there. */
static void look_again(struct back *b, struct back_entry *x, uint64_t seq, bool *ret_there)
{
    _cleanup_buf_ struct buf value = BUF_INIT(BACK_RECORD_MAX_BYTES + 64);
    struct back_record now;
    int r = back_load(b, x->bucket_id, back_key(x), &value, &now, NULL);
    *ret_there = r < 0 ? r != -ENOENT : now.seq == seq;
    LOCK_SCOPE(&b->lock);
    if (r == 0)
        follow_locked(b, x, &now);
    else if (r == -ENOENT)
        unrecord_locked(b, x);
}

static void end_saving_locked(struct back *b, struct back_entry *x)
{
    assert(x->bucket->saving > 0);
    x->bucket->saving--;
    if (b->held == x->bucket_id)
        cond_broadcast(&b->moved);
}

/* From here to end_saving_locked the bucket stays where it is. */
static int begin_saving(struct back *b, struct back_entry *x, const struct bucket *known, struct err *e)
{
    lock_take(&b->lock);
    while (b->held == x->bucket_id)
        cond_wait(&b->moved, &b->lock);
    x->bucket->saving++;
    lock_drop(&b->lock);
    _cleanup_(bucket_unrefp) struct bucket *bucket = bucket_find_id(b->service->buckets, x->bucket_id);
    if (bucket && bucket_same_origin(bucket, known))
        return 0;
    LOCK_SCOPE(&b->lock);
    end_saving_locked(b, x);
    return bucket ? err_set(e, -EBUSY, "the bucket got another origin meanwhile: write again")
                  : err_set(e, ERR_NO_BUCKET, "the bucket was removed meanwhile");
}

/* The upload whose file the record names becomes its version. */
static int complete_upload(struct kv_txn *t, uint64_t bucket_id, const struct back_record *r, struct err *e)
{
    struct upload_record done = *r->upload;
    char etag[BACK_ETAG_SIZE];
    back_record_etag(r, etag);
    done.etag = slice_str(etag);
    return upload_put(t, bucket_id, &done, e);
}

int back_save(struct back *b, struct back_entry *x, const struct bucket *known, const struct back_record *r,
              enum kv_commit kind, bool *ret_unknown, struct err *e)
{
    assert(x->busy);
    *ret_unknown = false;
    _cleanup_buf_ struct buf k = BUF_INIT(BACK_KEY_BYTES), value = BUF_INIT(BACK_RECORD_MAX_BYTES);
    record_key(x->bucket_id, back_key(x), &k);
    int result = back_record_encode(r, &value);
    if (result < 0)
        return err_set(e, result, "attributes of the object are too large");
    result = begin_saving(b, x, known, e);
    if (result < 0)
        return result;
    _cleanup_(kv_txn_freep) struct kv_txn *t = kv_txn_new(b->kv);
    kv_txn_put_plain(t, buf_view(&k), buf_view(&value));
    if (r->upload)
        result = complete_upload(t, x->bucket_id, r, e);
    bool sent = result == 0;
    if (sent)
        result = kv_txn_commit(t, kind, e);
    if (result < 0 && sent)
        look_again(b, x, r->seq, ret_unknown);
    LOCK_SCOPE(&b->lock);
    x->bucket->delay_ms = known->p.write == BUCKET_WRITE_BACK ? known->p.write_delay : 0;
    if (result == 0)
        follow_locked(b, x, r);
    end_saving_locked(b, x);
    return result;
}

int back_drop(struct back *b, struct back_entry *x, struct err *e)
{
    assert(x->busy);
    _cleanup_buf_ struct buf k = BUF_INIT(BACK_KEY_BYTES);
    record_key(x->bucket_id, back_key(x), &k);
    _cleanup_(kv_txn_freep) struct kv_txn *t = kv_txn_new(b->kv);
    kv_txn_delete(t, buf_view(&k));
    int r = kv_txn_commit(t, KV_DURABLE, e);
    if (r < 0) {
        bool there;
        look_again(b, x, x->seq, &there);
        return r;
    }
    LOCK_SCOPE(&b->lock);
    unrecord_locked(b, x);
    return 0;
}

void back_free_extent(struct back *b, struct slice location)
{
    struct hard *h = NULL;
    struct err e = {0};
    if (location.n == 0 || !back_share_leave(b, location))
        return;
    int r = hard_find(b->store, location, &h, &e);
    if (r == 0)
        hard_give_back(h);
    else if (r != -ENOENT) /* the next start removes it */
        log_warn("object", "bytes of a write that is in the origin: %s", e.text);
}

/* ---- metadata that changes at the origin ---- */

struct back_entry *back_begin_changing(struct back *b, uint64_t bucket_id, struct slice key)
{
    LOCK_SCOPE(&b->lock);
    struct back_entry *x = make_locked(b, bucket_id, key);
    if (x->recorded)
        return NULL;
    x->users++;
    x->changing++;
    return x;
}

/* A put or a removal that was acknowledged meanwhile is of what is there still. */
static void follow_base(struct back *b, const struct back_entry *x, const struct bucket *bucket,
                        struct slice before, struct slice after)
{
    _cleanup_buf_ struct buf value = BUF_INIT(BACK_RECORD_MAX_BYTES);
    struct back_record rec = {0};
    struct err e = {0};
    bool unknown;
    struct back_entry *same = back_enter(b, x->bucket_id, back_key(x));
    int r = back_load(b, x->bucket_id, back_key(x), &value, &rec, &e);
    bool is_of_it =
        r == 0 && (before.n == 0 || (rec.base == BACK_BASE_ETAG && slice_eq(rec.base_etag, before)));
    rec.base = BACK_BASE_ETAG;
    rec.base_etag = after;
    if (is_of_it)
        r = back_save(b, same, bucket, &rec, KV_DURABLE, &unknown, &e);
    if (is_of_it && r < 0)
        log_warn("object", "%s/" SLICE_FMT ": what is written there is taken for a conflict: %s",
                 bucket->name, SLICE_ARG(back_key(x)), e.text);
    back_leave(b, same);
}

void back_end_changing(struct back *b, struct back_entry *x, const struct bucket *bucket, struct slice before,
                       struct slice after)
{
    if (after.n > 0 && !slice_eq(before, after) && back_has(b, x->bucket_id, back_key(x)))
        follow_base(b, x, bucket, before, after);
    LOCK_SCOPE(&b->lock);
    assert(x->changing > 0 && x->users > 0);
    x->changing--;
    x->users--;
    back_queue_file_locked(b, x, sys_mono_ms());
    cond_signal(&b->work);
    back_forget_unused_locked(b, x);
}

/* ---- room, counts ---- */

uint64_t back_keys_max(uint64_t budget_bytes)
{
    return MIN(budget_bytes / BACK_KEY_COST, (uint64_t)BACK_KEYS_MAX);
}

static uint64_t watermark(struct back *b)
{
    uint64_t all, room;
    store_room(b->store, &all, &room);
    unsigned percent = b->service->config.dirty_max_percent;
    return all / 100 * (percent > 0 ? percent : BACK_DIRTY_MAX);
}

static bool is_stopping(const struct back *b)
{
    const struct object_service *s = b->service;
    return atomic_load(&b->stop) || atomic_load(&s->stopping) || atomic_load(&s->stopping_soon);
}

/* Nobody waits any more for what is sent: the node is told to stop, or who waits is given up. */
static bool is_over(const struct back *b)
{
    return is_stopping(b) || quit_level() != QUIT_NO;
}

/* Why a wait for room ended before its time: 0 when it did not. */
static int say_over(const struct back *b, struct err *e)
{
    if (is_stopping(b))
        return err_set(e, ERR_CLOSED,
                       "the node is stopping, and this waited for room that writes take which are not in the "
                       "origin yet: try again when it has started");
    return is_over(b) ? err_set(e, -ECANCELED, "given up while it waited for room") : 0;
}

bool back_begin_wait(struct back *b, bool may_refuse)
{
    unsigned most = b->service->config.gate.waiting; /* 0: there is no front */
    unsigned n = atomic_fetch_add(&b->n_waiting, 1);
    if (!may_refuse || most == 0 || n < most)
        return true;
    back_end_wait(b);
    return false;
}

void back_end_wait(struct back *b)
{
    (void)atomic_fetch_sub(&b->n_waiting, 1);
}

static bool has_room_locked(const struct back *b, uint64_t size_bytes, uint64_t most)
{
    return atomic_load(&b->n) < b->keys_max && (b->bytes == 0 || b->bytes + size_bytes <= most);
}

int back_wait_room(struct back *b, const struct bucket *bucket, uint64_t size_bytes, bool may_refuse,
                   struct err *e)
{
    uint64_t most = watermark(b), until_ms = sys_mono_ms() + bucket->p.retry_time;
    lock_take(&b->lock);
    bool room = has_room_locked(b, size_bytes, most), waits = !room && back_begin_wait(b, may_refuse);
    while (waits && !room && !is_over(b) && sys_mono_ms() < until_ms) {
        hurry_all_locked(b);
        (void)cond_wait_for(&b->moved, &b->lock, TICK_NS);
        room = has_room_locked(b, size_bytes, most);
    }
    if (waits)
        back_end_wait(b);
    uint64_t bytes = b->bytes;
    lock_drop(&b->lock);
    int r = room ? 0 : say_over(b, e);
    if (room || r < 0)
        return r;
    return err_set(e, -ENOSPC,
                   "%" PRIu64 " objects of %" PRIu64 " bytes are not in the origin yet, at most %" PRIu64
                   " bytes may be (--dirty-max): see `forebay status`",
                   atomic_load(&b->n), bytes, most);
}

/* Whether bytes of writes take room now, or did a moment ago: what is left of a record goes after it. */
static bool may_free_locked(const struct back *b, uint64_t now_ms)
{
    return !is_over(b) && (b->bytes > 0 || (b->gone_ms > 0 && now_ms - b->gone_ms < GONE_MS));
}

bool back_wait_freed(struct back *b, uint64_t until_ms)
{
    uint64_t began_ms = sys_mono_ms(), now_ms = began_ms;
    LOCK_SCOPE(&b->lock);
    uint64_t before = b->bytes;
    while (b->bytes >= before && may_free_locked(b, now_ms) && now_ms < MIN(until_ms, began_ms + TICK_MS)) {
        hurry_all_locked(b);
        (void)cond_wait_for(&b->moved, &b->lock, TICK_NS);
        now_ms = sys_mono_ms();
    }
    return now_ms < until_ms && (b->bytes < before || may_free_locked(b, now_ms));
}

bool back_is_hungry(const struct back *b)
{
    return atomic_load(&b->hungry) > 0;
}

int back_no_room(struct back *b, uint64_t size_bytes, struct err *e)
{
    int r = say_over(b, e);
    if (r < 0)
        return r;
    return err_set(
        e, -ENOSPC,
        "the disks of the cache have no room for a write of %" PRIu64
        " bytes: what they hold is pinned, kept for a bucket, in use, or not in the origin yet, or "
        "other files have filled their file systems (see `forebay status` and `forebay du`)",
        size_bytes);
}

int back_wait_record(struct back *b, const struct bucket *bucket, struct slice key, struct err *e)
{
    uint64_t until_ms = sys_mono_ms() + bucket->p.retry_time;
    LOCK_SCOPE(&b->lock);
    for (;;) {
        struct back_entry *x = find_locked(b, bucket->id, key);
        if ((x && x->recorded) || atomic_load(&b->n) < b->keys_max)
            return 0;
        int r = say_over(b, e);
        if (r < 0)
            return r;
        if (sys_mono_ms() >= until_ms)
            return err_set(e, -ENOSPC,
                           "%" PRIu64 " writes and removals are not in the origin yet, at most %" PRIu64
                           " may be: see `forebay status`",
                           atomic_load(&b->n), b->keys_max);
        hurry_all_locked(b);
        (void)cond_wait_for(&b->moved, &b->lock, TICK_NS);
    }
}

int back_wait_sent(struct back *b, const struct bucket *bucket, struct slice key, struct err *e)
{
    uint64_t until_ms = sys_mono_ms() + bucket->p.retry_time;
    LOCK_SCOPE(&b->lock);
    for (;;) {
        struct back_entry *x = find_locked(b, bucket->id, key);
        if (!x || !x->recorded)
            return 0;
        if (is_over(b) || sys_mono_ms() >= until_ms)
            return err_set(e, -ETIMEDOUT, "an earlier write of the target is not in the origin yet: %s",
                           x->error ? x->error : "it is on its way");
        x->retry_ms = x->waited_ms < until_ms ? 0 : x->retry_ms; /* at once, for each who waits */
        x->waited_ms = MAX(x->waited_ms, until_ms);
        back_queue_file_locked(b, x, sys_mono_ms());
        if (x->noted_ms > 0)
            hurry_locked(b, bucket->id, key); /* with what is to go before it, as what is below a directory */
        cond_broadcast(&b->work);
        (void)cond_wait_for(&b->moved, &b->lock, TICK_NS);
    }
}

bool back_is_waited_for(struct back *b, const struct back_entry *x)
{
    LOCK_SCOPE(&b->lock);
    return sys_mono_ms() < x->waited_ms;
}

char *back_first_below(struct back *b, uint64_t bucket_id, struct slice dir)
{
    LOCK_SCOPE(&b->lock);
    for (const struct back_entry *x = b->first; x; x = x->next)
        if (x->key_n > dir.n && x->key[dir.n] == '/' && is_below(x, bucket_id, dir))
            return slice_dup(back_key(x));
    return NULL;
}

void back_count(struct back *b, uint64_t bucket_id, struct slice prefix, struct back_count *ret)
{
    *ret = (struct back_count){0};
    LOCK_SCOPE(&b->lock);
    if (bucket_id != 0 && !find_bucket_locked(b, bucket_id)) /* it never had any: no walk over all for that */
        return;
    for (const struct back_entry *x = b->first; x; x = x->next) {
        if (!is_below(x, bucket_id, prefix))
            continue;
        ret->objects++;
        ret->bytes += x->size_bytes;
        ret->failing += x->error != NULL;
        ret->since_ns = ret->since_ns == 0 ? x->since_ns : MIN(ret->since_ns, x->since_ns);
        if (x->error && !ret->error[0])
            (void)snprintf(ret->error, sizeof(ret->error), "%s", x->error);
    }
}

void back_hurry(struct back *b, uint64_t bucket_id, struct slice prefix)
{
    LOCK_SCOPE(&b->lock);
    for (struct back_entry *x = b->first; x; x = x->next)
        if (is_below(x, bucket_id, prefix) && x->retry_ms > 0) {
            x->retry_ms = 0;
            back_queue_file_locked(b, x, 0);
        }
    hurry_locked(b, bucket_id, prefix);
}

static uint64_t alias_hash(uint64_t bucket_id, struct slice key)
{
    return hash_mix(hash_table(key), bucket_id) | 1;
}

void back_alias_add(struct back *b, const struct back_entry *entry, uint64_t seq, const char *from,
                    struct slice to)
{
    uint64_t hash = alias_hash(entry->bucket_id, back_key(entry));
    if (to.n > ORIGIN_ETAG_MAX)
        return;
    LOCK_SCOPE(&b->lock);
    struct back_alias *x = &b->aliases[hash / 2 % BACK_ALIASES];
    x->hash = hash;
    x->is_new = seq != entry->found_seq;
    (void)snprintf(x->from, sizeof(x->from), "%s", from);
    (void)snprintf(x->to, sizeof(x->to), SLICE_FMT, SLICE_ARG(to));
}

bool back_alias_find(struct back *b, uint64_t bucket_id, struct slice key, struct slice from,
                     char ret[ORIGIN_ETAG_MAX + 1])
{
    uint64_t hash = alias_hash(bucket_id, key);
    if (from.n >= BACK_ETAG_SIZE)
        return false;
    LOCK_SCOPE(&b->lock);
    const struct back_alias *x = &b->aliases[hash / 2 % BACK_ALIASES];
    if (x->hash != hash || !slice_eq_str(from, x->from))
        return false;
    memcpy(ret, x->to, sizeof(x->to));
    return true;
}

bool back_may_rename(struct back *b, uint64_t bucket_id, struct slice key, struct slice etag)
{
    char there[ORIGIN_ETAG_MAX + 1];
    return back_has(b, bucket_id, key) || back_alias_find(b, bucket_id, key, etag, there);
}

bool back_is_sent_as(struct back *b, uint64_t bucket_id, struct slice key, struct slice etag,
                     struct slice there)
{
    char now[ORIGIN_ETAG_MAX + 1];
    return back_alias_find(b, bucket_id, key, etag, now) && slice_eq_str(there, now);
}

bool back_other_etag(struct back *b, uint64_t bucket_id, struct slice key, struct slice etag,
                     char ret[ORIGIN_ETAG_MAX + 1])
{
    uint64_t hash = alias_hash(bucket_id, key);
    LOCK_SCOPE(&b->lock);
    const struct back_alias *x = &b->aliases[hash / 2 % BACK_ALIASES];
    bool was = slice_eq_str(etag, x->from);
    if (x->hash != hash || (!was && !slice_eq_str(etag, x->to)))
        return false;
    (void)snprintf(ret, ORIGIN_ETAG_MAX + 1, "%s", was ? x->to : x->from);
    return true;
}

bool back_is_new(struct back *b, uint64_t bucket_id, struct slice key, struct slice etag)
{
    uint64_t hash = alias_hash(bucket_id, key);
    LOCK_SCOPE(&b->lock);
    const struct back_entry *entry = find_locked(b, bucket_id, key);
    if (entry && entry->recorded)
        return entry->seq != entry->found_seq;
    const struct back_alias *x = &b->aliases[hash / 2 % BACK_ALIASES];
    return x->hash == hash && x->is_new && slice_eq_str(etag, x->to);
}

bool back_is_copy(struct back *b, uint64_t bucket_id, struct slice from, struct slice to)
{
    _cleanup_buf_ struct buf was = BUF_INIT(BACK_RECORD_MAX_BYTES), is = BUF_INIT(BACK_RECORD_MAX_BYTES);
    struct back_record x, y;
    return back_load(b, bucket_id, from, &was, &x, NULL) == 0 &&
           back_load(b, bucket_id, to, &is, &y, NULL) == 0 && x.location.n > 0 &&
           slice_eq(x.location, y.location) && slice_eq(x.meta, y.meta);
}

void back_note_conflict(struct back *b, uint64_t bucket_id)
{
    LOCK_SCOPE(&b->lock);
    bucket_locked(b, bucket_id)->conflicts++;
}

bool back_is_silent(struct back *b, const struct back_entry *x)
{
    LOCK_SCOPE(&b->lock);
    return x->bucket->silent;
}

void back_note_silence(struct back *b, struct back_entry *x, bool silent)
{
    LOCK_SCOPE(&b->lock);
    x->bucket->silent = silent;
}

uint64_t back_conflicts(struct back *b, uint64_t bucket_id)
{
    LOCK_SCOPE(&b->lock);
    for (const struct back_bucket *x = b->buckets; x; x = x->next)
        if (x->bucket_id == bucket_id)
            return x->conflicts;
    return 0;
}

/* ---- a bucket that goes, or moves ---- */

int back_hold(struct back *b, const struct bucket *bucket, const char *what, struct err *e)
{
    int r = back_check_gone(b, bucket, what, e);
    if (r < 0)
        return r;
    lock_take(&b->lock);
    while (b->held != 0) /* one at a time: it is rarely done */
        cond_wait(&b->moved, &b->lock);
    b->held = bucket->id;
    const struct back_bucket *x = find_bucket_locked(b, bucket->id);
    while (x && x->saving > 0)
        cond_wait(&b->moved, &b->lock);
    lock_drop(&b->lock);
    r = back_check_gone(b, bucket, what, e); /* once more: what was recorded until it was held */
    if (r < 0)
        back_release(b, bucket);
    return r;
}

void back_release(struct back *b, const struct bucket *bucket)
{
    LOCK_SCOPE(&b->lock);
    assert(b->held == bucket->id);
    b->held = 0;
    cond_broadcast(&b->moved);
}

/* ---- life ---- */

/* Of a bucket that is gone: no command reaches it. Its bytes go with the sweep; after power loss the record
 * may be there again, and goes again. */
static int drop_stray(struct back *b, struct slice k, uint64_t *strays, struct err *e)
{
    _cleanup_(kv_txn_freep) struct kv_txn *t = kv_txn_new(b->kv);
    kv_txn_delete(t, k);
    ++*strays;
    return kv_txn_commit(t, KV_VISIBLE, e);
}

static int load_one(struct back *b, struct slice k, struct slice value, uint64_t *strays, struct err *e)
{
    struct back_record r;
    if (k.n <= 10 || back_record_decode(value, &r) < 0)
        return err_set(e, ERR_CORRUPT, "the record of a write that is not in the origin is damaged");
    uint64_t id = be_get64(k.p + 2);
    _cleanup_(bucket_unrefp) struct bucket *bucket = bucket_find_id(b->service->buckets, id);
    if (!bucket)
        return drop_stray(b, k, strays, e);
    int p = r.location.n > 0 ? hard_protect(b->store, r.location, e) : 0;
    if (p < 0 && p != -ENODEV) /* a disk that is not here is not swept either */
        return err_prefix(e, p, "a write that is not in the origin");
    if (r.location.n > 0)
        back_share_found(b, r.location);
    if (k.n - 10 <= ORIGIN_KEY_MAX_BYTES) /* its writer was killed before he did so, perhaps */
        object_forget_entry(b->service, bucket, slice_from(k, 10));
    LOCK_SCOPE(&b->lock);
    atomic_store(&b->seq, MAX(atomic_load(&b->seq), r.seq));
    struct back_entry *x = make_locked(b, id, slice_from(k, 10));
    x->found_seq = r.seq;
    follow_locked(b, x, &r);
    return 0;
}

static int load_all(struct back *b, struct err *e)
{
    _cleanup_(kv_iter_freep) struct kv_iter *it = kv_iter_new(b->kv, SLICE_LIT("d/"), SLICE_LIT("d0"));
    struct slice k, value;
    uint64_t strays = 0;
    int r;
    while ((r = kv_iter_next(it, &k, &value, e)) == 0)
        if ((r = load_one(b, k, value, &strays, e)) < 0)
            return r;
    back_share_settle(b);
    if (strays > 0)
        log_warn("object", "%" PRIu64 " writes of buckets that were removed are dropped", strays);
    return r == -ENOENT ? 0 : r;
}

int back_open(struct object_service *s, struct back **ret, struct err *e)
{
    struct back *b = calloc(1, sizeof(*b));
    assert(b);
    b->magic = BACK_MAGIC;
    b->service = s;
    b->kv = s->config.control;
    b->store = s->config.store;
    b->keys_max = back_keys_max(budget_total(s->config.budget));
    b->aliases = calloc(BACK_ALIASES, sizeof(*b->aliases));
    assert(b->aliases);
    back_share_init(b);
    lock_init(&b->lock, LOCK_OBJECT);
    cond_init(&b->moved);
    cond_init(&b->work);
    int r = load_all(b, e);
    if (r < 0) {
        back_close(b);
        return r;
    }
    if (atomic_load(&b->n) > 0)
        log_info("object", "%" PRIu64 " writes of the last run are not in the origin yet",
                 atomic_load(&b->n));
    *ret = b;
    return 0;
}

void back_start(struct back *b)
{
    while (b->n_threads < BACK_THREADS &&
           pthread_create(&b->threads[b->n_threads], NULL, back_sender_main, b) == 0)
        b->n_threads++;
    if (b->n_threads == 0)
        log_error("object", "no thread to carry writes to the origin: they stay here until the next start");
}

void back_stop(struct back *b)
{
    if (!b)
        return;
    lock_take(&b->lock);
    atomic_store(&b->stop, true);
    cond_broadcast(&b->work);
    cond_broadcast(&b->moved);
    lock_drop(&b->lock);
    for (; b->n_threads > 0; b->n_threads--)
        (void)pthread_join(b->threads[b->n_threads - 1], NULL);
}

void back_close(struct back *b)
{
    if (!b)
        return;
    assert(b->magic == BACK_MAGIC && b->n_threads == 0);
    for (size_t i = 0; i < BACK_CHAINS; i++)
        while (b->chains[i]) {
            struct back_entry *x = b->chains[i];
            b->chains[i] = x->chain;
            free(x->error);
            free(x);
        }
    while (b->buckets) {
        struct back_bucket *x = b->buckets;
        b->buckets = x->next;
        back_queue_fini(x);
        free(x);
    }
    free(b->aliases);
    back_share_fini(b);
    cond_fini(&b->moved);
    cond_fini(&b->work);
    lock_fini(&b->lock);
    b->magic = 0;
    free(b);
}

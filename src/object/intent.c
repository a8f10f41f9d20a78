/*
 * Intents (contract and format in intent.h): their records, and the table of those that run, of those that
 * another run of the node has left, and of what was done last.
 *
 * Invariants:
 *  1. An intent that runs is of one thread; the lock covers all others, and the lists.
 *  2. What the table says of an intent is what its record says, or its record is not written yet.
 *  3. At most INTENT_DONE_MAX of what was done are kept, the last ones.
 *  4. One whose end nobody is told of, because it was given up for others or the node stops, is left as by a
 * run of before: the record stays.
 *
 * Failure modes: a record that cannot be written fails the change before the origin is asked for it; one that
 * cannot be read is dropped, and the log says so: who asks for it again is answered as if for the first time.
 */
#include "object/intent.h"

#include "object/object_internal.h"

#include "base/le.h"
#include "base/log.h"
#include "base/quit.h"
#include "base/sys.h"

#define MAGIC        0x696e7474u
#define FORMAT       1
#define HEAD_BYTES   28
#define KEY_BYTES    18
#define FAMILY_AT    2
#define NUMBER_AT    10
#define FLAG_TREE    1
#define FINISH_ARENA (1 * MIB)

struct intent {
    struct intent *next, *next_done;
    struct intents *table;
    uint64_t family, number;
    bool is_running;
    bool is_of_before;      /* or was given up in this run */
    uint64_t due_ns;        /* from when on nobody asks for it again, monotonic */
    bool is_recorded;       /* or may be */
    bool is_put_off;        /* to the next turn; of before */
    struct intent_record r; /* its strings are the intent's */
};

struct intents {
    uint32_t magic;
    struct object_service *service;
    struct kv *kv;
    uint64_t opened_ns; /* monotonic */
    struct lock lock;   /* covers what follows */
    struct cond ended;
    struct intent *all;
    struct intent *done_first, *done_last; /* the oldest first */
    unsigned n_done, n_of_before;          /* n_of_before: found at the start, or left, and not done */
};

/* ---- records ---- */

int intent_encode(const struct intent_record *x, struct buf *b)
{
    uint8_t head[HEAD_BYTES] = {FORMAT, (uint8_t)x->kind, (uint8_t)x->state, x->is_tree ? FLAG_TREE : 0};
    assert(x->state != INTENT_NEW);
    le_put64(head + 4, x->bucket_id);
    le_put64(head + 12, x->size_bytes);
    le_put64(head + 20, x->mtime_ns);
    struct le_writer w = le_writer_of(b);
    le_add(&w, slice_of(head, sizeof(head)));
    le_add_text(&w, x->key);
    le_add_text(&w, x->to);
    le_add_text(&w, x->etag);
    return le_add_end(&w);
}

int intent_decode(struct slice value, struct intent_record *ret)
{
    const uint8_t *p = (const uint8_t *)value.p;
    if (value.n < HEAD_BYTES || p[0] != FORMAT || p[1] < INTENT_REMOVE || p[1] > INTENT_META ||
        p[2] < INTENT_BEGUN || p[2] > INTENT_DONE || p[3] & ~FLAG_TREE)
        return ERR_CORRUPT;
    struct intent_record x = {.kind = (enum intent_kind)p[1],
                              .state = (enum intent_state)p[2],
                              .is_tree = p[3] & FLAG_TREE,
                              .bucket_id = le_get64(p + 4),
                              .size_bytes = le_get64(p + 12),
                              .mtime_ns = le_get64(p + 20)};
    struct le_reader rest = le_reader_of(slice_from(value, HEAD_BYTES));
    x.key = le_take_text(&rest, UINT16_MAX);
    x.to = le_take_text(&rest, UINT16_MAX);
    x.etag = le_take_text(&rest, UINT16_MAX);
    if (!le_took_all(&rest))
        return ERR_CORRUPT;
    *ret = x;
    return 0;
}

static struct slice record_key(const struct intent *x, uint8_t buf[KEY_BYTES])
{
    buf[0] = 'i';
    buf[1] = '/';
    memcpy(buf + FAMILY_AT, &x->family, sizeof(x->family));
    be_put64(buf + NUMBER_AT, x->number);
    return slice_of(buf, KEY_BYTES);
}

static int save(const struct intent *x, struct kv_txn *t)
{
    uint8_t key[KEY_BYTES];
    _cleanup_buf_ struct buf value = BUF_INIT(INTENT_RECORD_MAX_BYTES);
    int r = intent_encode(&x->r, &value);
    if (r == 0)
        kv_txn_put_plain(t, record_key(x, key), buf_view(&value));
    return r;
}

static void erase(const struct intent *x, struct kv_txn *t)
{
    uint8_t key[KEY_BYTES];
    kv_txn_delete(t, record_key(x, key));
}

static void replace_text(struct slice *at, struct slice with)
{
    char *old = (char *)(uintptr_t)at->p;
    *at = slice_of(slice_dup(with), with.n);
    free(old);
}

/* ---- the table ---- */

static struct intent *make_locked(struct intents *t, uint64_t family, uint64_t number,
                                  const struct intent_record *r)
{
    struct intent *x = calloc(1, sizeof(*x));
    assert(x);
    *x = (struct intent){.next = t->all, .table = t, .family = family, .number = number, .r = *r};
    x->r.key = slice_of(slice_dup(r->key), r->key.n);
    x->r.to = slice_of(slice_dup(r->to), r->to.n);
    x->r.etag = slice_of(slice_dup(r->etag), r->etag.n);
    t->all = x;
    return x;
}

static void intent_free(struct intent *x)
{
    free((char *)(uintptr_t)x->r.key.p);
    free((char *)(uintptr_t)x->r.to.p);
    free((char *)(uintptr_t)x->r.etag.p);
    free(x);
}

static void unlink_locked(struct intents *t, struct intent *x)
{
    struct intent **at = &t->all;
    while (*at != x)
        at = &(*at)->next;
    *at = x->next;
}

static void push_done_locked(struct intents *t, struct intent *x)
{
    x->next_done = NULL;
    *(t->done_last ? &t->done_last->next_done : &t->done_first) = x;
    t->done_last = x;
    t->n_done++;
}

static void take_done_locked(struct intents *t, struct intent *x)
{
    struct intent **at = &t->done_first, *before = NULL;
    for (; *at != x; at = &(*at)->next_done)
        before = *at;
    *at = x->next_done;
    if (t->done_last == x)
        t->done_last = before;
    t->n_done--;
}

/* The oldest of what was done, when there is no room for one more: the caller's. */
static struct intent *take_oldest_locked(struct intents *t)
{
    struct intent *x = t->n_done >= INTENT_DONE_MAX ? t->done_first : NULL;
    if (x) {
        take_done_locked(t, x);
        unlink_locked(t, x);
    }
    return x;
}

static struct intent *find_locked(struct intents *t, uint64_t family, uint64_t number)
{
    struct intent *x = t->all;
    while (x && (x->number != number || x->family != family))
        x = x->next;
    return x;
}

/* ---- start and end ---- */

static int open_one(struct intents *t, struct slice key, struct slice value, struct err *e)
{
    struct intent_record r;
    uint64_t family;
    if (key.n != KEY_BYTES || intent_decode(value, &r) < 0) {
        log_warn("object", "a record of a change that a mount had asked for is damaged, and dropped");
        _cleanup_(kv_txn_freep) struct kv_txn *txn = kv_txn_new(t->kv);
        kv_txn_delete(txn, key);
        return kv_txn_commit(txn, KV_VISIBLE, e);
    }
    memcpy(&family, key.p + FAMILY_AT, sizeof(family));
    LOCK_SCOPE(&t->lock);
    struct intent *x = make_locked(t, family, be_get64(key.p + NUMBER_AT), &r);
    x->is_recorded = true;
    if (r.state == INTENT_DONE) {
        push_done_locked(t, x);
    } else {
        x->is_of_before = true;
        x->due_ns = t->opened_ns + INTENT_WAIT_NS;
        t->n_of_before++;
    }
    return 0;
}

int intents_open(struct object_service *s, struct intents **ret, struct err *e)
{
    struct intents *t = calloc(1, sizeof(*t));
    assert(t);
    t->magic = MAGIC;
    t->service = s;
    t->kv = s->config.control;
    t->opened_ns = sys->mono_ns();
    lock_init(&t->lock, LOCK_LEAF);
    cond_init(&t->ended);
    *ret = t;
    _cleanup_(kv_iter_freep) struct kv_iter *it = kv_iter_new(t->kv, SLICE_LIT("i/"), SLICE_LIT("i0"));
    struct slice key, value;
    int r;
    while ((r = kv_iter_next(it, &key, &value, e)) == 0)
        if ((r = open_one(t, key, value, e)) < 0)
            return r;
    return r == -ENOENT ? 0 : r;
}

void intents_close(struct intents *t)
{
    if (!t)
        return;
    assert(t->magic == MAGIC);
    for (struct intent *x; (x = t->all);) {
        assert(!x->is_running);
        t->all = x->next;
        intent_free(x);
    }
    cond_fini(&t->ended);
    lock_fini(&t->lock);
    t->magic = 0;
    free(t);
}

/* ---- one change ---- */

static bool is_same_change(const struct intent_record *x, const struct intent_record *y)
{
    return x->kind == y->kind && x->bucket_id == y->bucket_id && slice_eq(x->key, y->key) &&
           slice_eq(x->to, y->to);
}

static void take_over_locked(struct intents *t, struct intent *x)
{
    if (x->r.state == INTENT_DONE)
        take_done_locked(t, x);
    t->n_of_before -= x->is_of_before;
    x->is_of_before = false;
    x->is_running = true;
}

struct intent *intent_begin(struct object_session *ses, uint64_t number, const struct intent_record *what)
{
    struct intents *t = ses->service->intents;
    if (ses->family == 0 || !(number & WIRE_NUMBERED))
        return NULL;
    LOCK_SCOPE(&t->lock);
    struct intent *x;
    while ((x = find_locked(t, ses->family, number)) && x->is_running)
        cond_wait(&t->ended, &t->lock);
    bool is_another = x && !is_same_change(&x->r, what); /* of which nobody asks any more */
    if (is_another) {
        take_over_locked(t, x);
        unlink_locked(t, x);
        intent_free(x);
        x = NULL;
    }
    if (!x)
        x = make_locked(t, ses->family, number, what);
    take_over_locked(t, x);
    x->is_recorded |= is_another;
    return x;
}

enum intent_state intent_state(const struct intent *x)
{
    return x ? x->r.state : INTENT_NEW;
}

const struct intent_record *intent_known(const struct intent *x)
{
    return x ? &x->r : NULL;
}

int intent_note(struct intent *x, const struct intent_record *now, enum kv_commit kind, struct err *e)
{
    if (!x)
        return 0;
    x->r.state = now->state;
    x->r.is_tree = now->is_tree;
    x->r.size_bytes = now->size_bytes;
    x->r.mtime_ns = now->mtime_ns;
    replace_text(&x->r.etag, now->etag);
    _cleanup_(kv_txn_freep) struct kv_txn *t = kv_txn_new(x->table->kv);
    int r = save(x, t);
    if (r < 0)
        return r;
    x->is_recorded = true; /* a commit that fails may be there all the same */
    return kv_txn_commit(t, kind, e);
}

/* What was done is known as long as somebody may have lost the answer; a failure was told, and whoever asks
 * for it again means it. */
static void record_end(struct intent *x, int result, const struct intent *oldest)
{
    struct err e = {0};
    _cleanup_(kv_txn_freep) struct kv_txn *t = kv_txn_new(x->table->kv);
    int r = result == 0 ? save(x, t) : 0;
    if (result < 0)
        erase(x, t);
    if (oldest)
        erase(oldest, t);
    if (r == 0)
        r = kv_txn_commit(t, KV_VISIBLE, &e);
    if (r < 0)
        log_warn("object", "the end of a change cannot be recorded: %s", e.text[0] ? e.text : err_text(r));
}

/* Whether nobody is told of the end, so that it is asked for again: who was given up for others is, and who
 * is cut by the end of the node (front_wire.c, is_given_up). It may have been done, or be done yet. */
static bool is_asked_again(const struct intent *x, int result)
{
    bool is_given_up = (result == -ECANCELED || result == -ETIMEDOUT) &&
                       (quit_is_refused() || atomic_load(&x->table->service->stopping_soon));
    return is_given_up && x->is_recorded && x->r.state != INTENT_NEW;
}

static void leave(struct intent *x)
{
    struct intents *t = x->table;
    uint64_t now_ns = sys->mono_ns();
    LOCK_SCOPE(&t->lock);
    x->is_running = false;
    x->is_of_before = true;
    x->due_ns = now_ns + INTENT_GIVEN_UP_NS;
    t->n_of_before++;
    cond_broadcast(&t->ended);
}

void intent_end(struct intent *x, int result)
{
    if (!x)
        return;
    if (is_asked_again(x, result)) {
        leave(x);
        return;
    }
    struct intents *t = x->table;
    bool is_kept = result == 0 && x->is_recorded;
    struct intent *oldest = NULL;
    x->r.state = result == 0 ? INTENT_DONE : x->r.state;
    if (x->is_recorded) {
        lock_take(&t->lock);
        oldest = is_kept ? take_oldest_locked(t) : NULL;
        lock_drop(&t->lock);
        record_end(x, result, oldest);
    }
    lock_take(&t->lock);
    x->is_running = false;
    if (is_kept)
        push_done_locked(t, x);
    else
        unlink_locked(t, x);
    cond_broadcast(&t->ended);
    lock_drop(&t->lock);
    if (!is_kept)
        intent_free(x);
    if (oldest)
        intent_free(oldest);
}

/* ---- what nobody has asked for again ---- */

static struct intent *take_left(struct intents *t, uint64_t now_ns)
{
    LOCK_SCOPE(&t->lock);
    struct intent *x = t->n_of_before > 0 ? t->all : NULL;
    while (x && (!x->is_of_before || x->is_put_off || now_ns < x->due_ns))
        x = x->next;
    if (x)
        take_over_locked(t, x);
    return x;
}

static int finish_left(struct object_service *s, struct intent *x)
{
    struct err e = {0};
    _cleanup_(arena_freep) struct arena *a = arena_new(FINISH_ARENA);
    _cleanup_(bucket_unrefp) struct bucket *b = bucket_find_id(s->buckets, x->r.bucket_id);
    _cleanup_(upstream_unrefp) struct upstream *u = NULL;
    const char *name = b ? b->name : "?";
    if (!b || x->r.kind != INTENT_MOVE)
        return 0;
    if (x->r.state == INTENT_BEGUN) {
        log_warn("object",
                 "%s: renaming " SLICE_FMT " to " SLICE_FMT
                 " was cut, and nobody has asked for it again: there may be copies under the new name",
                 name, SLICE_ARG(x->r.key), SLICE_ARG(x->r.to));
        return 0;
    }
    int r = object_upstream(s, slice_str(b->name), &u, &e);
    if (r == 0)
        r = object_finish_move(s, u, &x->r, a, &e);
    if (u)
        watch_gone(s, /* by= */ NULL, b, x->r.key);
    if (r < 0)
        log_warn("object",
                 "%s: renaming " SLICE_FMT " to " SLICE_FMT " was cut, and could not be finished: %s", name,
                 SLICE_ARG(x->r.key), SLICE_ARG(x->r.to), e.text[0] ? e.text : err_text(r));
    else
        log_info("object", "%s: renaming " SLICE_FMT " to " SLICE_FMT " was cut, and is finished now", name,
                 SLICE_ARG(x->r.key), SLICE_ARG(x->r.to));
    return r;
}

/* Those of the same bucket would only wait for the same origin. */
static void put_off(struct intents *t, struct intent *x)
{
    LOCK_SCOPE(&t->lock);
    x->is_running = false;
    x->is_of_before = true;
    t->n_of_before++;
    for (struct intent *y = t->all; y; y = y->next)
        y->is_put_off |= y->r.bucket_id == x->r.bucket_id;
    cond_broadcast(&t->ended);
}

static void end_turn(struct intents *t)
{
    LOCK_SCOPE(&t->lock);
    for (struct intent *x = t->all; x; x = x->next)
        x->is_put_off = false;
}

void intents_turn(struct object_service *s, uint64_t now_ns)
{
    struct intents *t = s->intents;
    struct quit _cleanup_(quit_leave) soon;
    struct intent *x;
    quit_enter_impatient(&soon); /* the steward has other things to do than to wait for an origin */
    while (!atomic_load(&s->stopping) && (x = take_left(t, now_ns))) {
        int r = finish_left(s, x);
        if (r == -ECANCELED || retry_is_transient(r)) /* in a later turn, or after the next start */
            put_off(t, x);
        else
            intent_end(x, -ENOENT); /* its record goes */
    }
    end_turn(t);
}

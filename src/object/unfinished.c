/*
 * The table of unfinished uploads (contract and format in unfinished.h).
 *
 * Invariants:
 *  1. An entry that is left (`is_left`) is of nobody; who aborts it takes that away before.
 *  2. A record goes only when the service has said that it has no such upload.
 */
#include "object/unfinished.h"

#include "object/object_internal.h"

#include "base/le.h"
#include "base/log.h"
#include "base/md5.h"
#include "base/quit.h"
#include "base/sys.h"

#define MAGIC        0x756e6669u
#define FORMAT       1
#define HEAD         "n/left/"
#define HEAD_BYTES   (sizeof(HEAD) - 1)
#define PLACE_BYTES  ORIGIN_PLACE_BYTES
#define KEY_BYTES    (HEAD_BYTES + PLACE_BYTES + 8)
#define RECORD_MAX   (ORIGIN_KEY_MAX_BYTES + ORIGIN_UPLOAD_ID_MAX + 16)
#define FIRST_TRY_NS ((uint64_t)2000000000) /* then twice as long each time, and at last: */
#define TRY_AGAIN_NS ((uint64_t)60000000000)

struct entry {
    struct entry *next;
    uint8_t record_key[KEY_BYTES];
    char *key, *id;
    bool is_left, is_told; /* is_told: the log has why it could not be aborted */
};

struct unfinished {
    uint32_t magic;
    struct kv *kv;
    _Atomic uint64_t turn_ns; /* not before, monotonic */
    struct lock lock;         /* covers what follows */
    struct entry *all;
    uint64_t wait_ns; /* until the next turn; also set by turns, which are one thread's */
};

/* ---- records ---- */

static void place_of(const struct bucket *b, uint8_t ret[PLACE_BYTES])
{
    struct md5 m;
    md5_init(&m);
#define ADD(text) md5_update(&m, (text) ? (text) : "", (text) ? strlen(text) + 1 : 1)
#define X(field)  ADD(b->p.origin_options.field);
    ADD(b->p.origin);
    BUCKET_PLACE(X)
#undef X
#undef ADD
    md5_final(&m, ret);
}

static bool is_at(const struct entry *x, const uint8_t place[PLACE_BYTES])
{
    return memcmp(x->record_key + HEAD_BYTES, place, PLACE_BYTES) == 0;
}

static struct entry *entry_new(const void *record_key, struct slice key, struct slice id)
{
    struct entry *x = calloc(1, sizeof(*x));
    assert(x);
    memcpy(x->record_key, record_key, KEY_BYTES);
    x->key = slice_dup(key);
    x->id = slice_dup(id);
    return x;
}

static void entry_free(struct entry *x)
{
    free(x->key);
    free(x->id);
    free(x);
}

/* After a failure one may be left at the service some day, or is asked for once too often. */
static void save(struct unfinished *t, const struct entry *x, bool is_gone)
{
    _cleanup_(kv_txn_freep) struct kv_txn *txn = kv_txn_new(t->kv);
    _cleanup_buf_ struct buf value = BUF_INIT(RECORD_MAX);
    struct slice record_key = slice_of(x->record_key, KEY_BYTES);
    struct le_writer w = le_writer_of(&value);
    struct err e = {0};
    le_add8(&w, FORMAT);
    le_add_text(&w, slice_str(x->key));
    le_add_text(&w, slice_str(x->id));
    int r = le_add_end(&w);
    assert(r == 0);
    if (is_gone)
        kv_txn_delete(txn, record_key);
    else
        kv_txn_put_plain(txn, record_key, buf_view(&value));
    r = kv_txn_commit(txn, KV_VISIBLE, &e);
    if (r < 0)
        log_warn("object", "%s: the record of an unfinished upload: %s", x->key, e.text);
}

static struct entry *decode(struct slice record_key, struct slice value)
{
    struct le_reader from = le_reader_of(value);
    uint8_t format = le_take8(&from);
    struct slice key = le_take_text(&from, ORIGIN_KEY_MAX_BYTES);
    struct slice id = le_take_text(&from, ORIGIN_UPLOAD_ID_MAX - 1);
    bool ok = le_took_all(&from) && format == FORMAT && record_key.n == KEY_BYTES;
    return ok ? entry_new(record_key.p, key, id) : NULL;
}

/* ---- the table ---- */

static void put(struct unfinished *t, struct entry *x)
{
    LOCK_SCOPE(&t->lock);
    x->next = t->all;
    t->all = x;
}

static void put_last(struct unfinished *t, struct entry *x)
{
    LOCK_SCOPE(&t->lock);
    struct entry **at = &t->all;
    while (*at)
        at = &(*at)->next;
    x->next = NULL;
    *at = x;
}

static struct entry **find_locked(struct unfinished *t, const uint8_t place[PLACE_BYTES], struct slice id,
                                  bool is_left)
{
    struct entry **at = &t->all;
    while (*at &&
           !(is_at(*at, place) && (*at)->is_left == is_left && (id.n == 0 || slice_eq_str(id, (*at)->id))))
        at = &(*at)->next;
    return at;
}

/* The first that is left at the place, and is of the caller from now on; with an id that one, and of several
 * one that is not left. NULL: none. */
static struct entry *take(struct unfinished *t, const uint8_t place[PLACE_BYTES], struct slice id)
{
    LOCK_SCOPE(&t->lock);
    struct entry **at = find_locked(t, place, id, /* is_left= */ id.n == 0);
    if (!*at && id.n > 0)
        at = find_locked(t, place, id, /* is_left= */ true);
    struct entry *x = *at;
    if (x)
        *at = x->next;
    return x;
}

static bool has_left(struct unfinished *t, const uint8_t place[PLACE_BYTES])
{
    LOCK_SCOPE(&t->lock);
    const struct entry *x = t->all;
    while (x && !(x->is_left && is_at(x, place)))
        x = x->next;
    return x;
}

size_t unfinished_left(struct unfinished *t)
{
    size_t n = 0;
    LOCK_SCOPE(&t->lock);
    for (const struct entry *x = t->all; x; x = x->next)
        n += x->is_left;
    return n;
}

/* ---- what origins tell ---- */

static void on_begun(const struct origin *o, struct slice key, struct slice id)
{
    struct unfinished *t = CAST_MAGIC(unfinished, o->uploads_arg, MAGIC);
    uint8_t record_key[KEY_BYTES];
    memcpy(record_key, HEAD, HEAD_BYTES);
    memcpy(record_key + HEAD_BYTES, o->place, PLACE_BYTES);
    sys->random(record_key + HEAD_BYTES + PLACE_BYTES, 8);
    struct entry *x = entry_new(record_key, key, id);
    save(t, x, /* is_gone= */ false);
    put(t, x);
}

/* What was left just now is worth another try before those that have been left for long; not at once, since
 * something of it may still be under way. */
static void leave(struct unfinished *t, struct entry *x)
{
    uint64_t soon_ns = sys->mono_ns() + FIRST_TRY_NS;
    bool is_first = unfinished_left(t) == 0;
    x->is_left = true;
    put(t, x);
    LOCK_SCOPE(&t->lock);
    t->wait_ns = FIRST_TRY_NS;
    atomic_store(&t->turn_ns, is_first ? soon_ns : MIN(atomic_load(&t->turn_ns), soon_ns));
}

static void try_later(struct unfinished *t)
{
    LOCK_SCOPE(&t->lock);
    t->wait_ns = MIN(MAX(2 * t->wait_ns, FIRST_TRY_NS), TRY_AGAIN_NS);
    atomic_store(&t->turn_ns, sys->mono_ns() + t->wait_ns);
}

static void on_ended(const struct origin *o, struct slice id, bool is_gone)
{
    struct unfinished *t = CAST_MAGIC(unfinished, o->uploads_arg, MAGIC);
    struct entry *x = take(t, o->place, id);
    if (!x)
        return;
    if (is_gone) {
        save(t, x, /* is_gone= */ true);
        entry_free(x);
        return;
    }
    leave(t, x);
}

static const struct origin_uploads uploads = {.begun = on_begun, .ended = on_ended};

void unfinished_watch(struct unfinished *t, struct upstream *u)
{
    place_of(u->bucket, u->origin->place);
    u->origin->uploads_arg = t;
    u->origin->uploads = &uploads;
}

/* ---- what is left ---- */

int unfinished_tidy(struct unfinished *t, struct upstream *u)
{
    struct quit _cleanup_(quit_leave) soon;
    struct entry *x;
    int r = 0;
    quit_enter_impatient(
        &soon); /* nobody waits long for a service that says nothing: it is tried again later */
    while (r == 0 && origin_has_uploads(u->origin) && (x = take(t, u->origin->place, SLICE_NULL))) {
        struct err e = {0};
        upstream_charge_request(u);
        r = origin_upload_abort(u->origin, slice_str(x->key), slice_str(x->id), &e);
        r = r == -ENOENT ? 0 : r;
        if (r == 0) {
            log_info("object", "%s: an upload of %s that was cut is aborted", u->bucket->name, x->key);
            save(t, x, /* is_gone= */ true);
            entry_free(x);
            continue;
        }
        if (!x->is_told)
            log_warn("object", "%s: an upload of %s that was cut cannot be aborted yet: %s", u->bucket->name,
                     x->key, e.text);
        x->is_told = true;
        put_last(t, x); /* it may be refused for ever: the next turn begins with another */
    }
    return r;
}

void unfinished_turn(struct object_service *s)
{
    struct unfinished *t = s->unfinished;
    uint8_t place[PLACE_BYTES];
    if (!t || sys->mono_ns() < atomic_load(&t->turn_ns) || unfinished_left(t) == 0)
        return;
    for (struct bucket *b = NULL; (b = bucket_next(s->buckets, b));) {
        _cleanup_(upstream_unrefp) struct upstream *u = NULL;
        if (!b->p.origin)
            continue;
        place_of(b, place);
        if (has_left(t, place) && object_upstream(s, slice_str(b->name), &u, NULL) == 0)
            (void)unfinished_tidy(t, u);
    }
    try_later(t);
}

/* ---- life ---- */

int unfinished_open(struct object_service *s, struct unfinished **ret, struct err *e)
{
    struct unfinished *t = calloc(1, sizeof(*t));
    assert(t);
    t->magic = MAGIC;
    t->kv = s->config.control;
    lock_init(&t->lock, LOCK_LEAF);
    _cleanup_(kv_iter_freep) struct kv_iter *it = kv_iter_new(t->kv, SLICE_LIT(HEAD), SLICE_LIT("n/left0"));
    struct slice key, value;
    int r;
    while ((r = kv_iter_next(it, &key, &value, e)) == 0) {
        struct entry *x = decode(key, value);
        if (x) {
            x->is_left = true;
            put(t, x);
        } else {
            log_warn("object", "the record of an unfinished upload is damaged, and passed over");
        }
    }
    if (r != -ENOENT) {
        unfinished_close(t);
        return r;
    }
    *ret = t;
    return 0;
}

void unfinished_close(struct unfinished *t)
{
    if (!t)
        return;
    assert(t->magic == MAGIC);
    while (t->all) {
        struct entry *x = t->all;
        t->all = x->next;
        entry_free(x);
    }
    lock_fini(&t->lock);
    t->magic = 0;
    free(t);
}

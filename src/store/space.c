/*
 * What a disk may hold: the count of bytes, and eviction when a newcomer needs some.
 *
 * Counted as used is what living extents were charged (bytes present, and what fills took ahead) and what
 * dead ones still occupy. Two things are full at once or alone: the limit of the disk, and the file system,
 * of which a reserve stays free. The free bytes of the file system are asked at most once a second; in
 * between, what was charged since and what was charged before but not yet written count against them.
 *
 * Eviction samples 32 random entries (data ids are random, so a run of neighbours from a random id is an even
 * sample), lets the policy choose the best victim, and goes on with the rest of the sample and then with new
 * ones until there is room. When three samples in a row hold no victim, the newcomer's data set is refused
 * for one second without looking again, unless room appears: a scan over more than fits would otherwise pay
 * for samples with each object.
 *
 * What must be admitted is not refused by samples: on a disk that is nearly all pinned they miss the few that
 * may go. All entries are looked through then, from where the last such walk ended, for at most WALK_MS; one
 * thread at a time, and not for a second, or four times as long as it took, after a walk that found no room.
 *
 * Entries in use are not evicted, nor those that store_on_evict keeps. Mounts keep files open that nobody
 * uses; they are asked to close those that eviction would take, and given a moment.
 *
 * Invariant: used_bytes never exceeds limit_bytes through space_try and space_take. (It may at start, when
 * the user lowered the limit, and through hard extents, which grow by writes that the node does not see.)
 */
#include "base/hash.h"
#include "base/log.h"
#include "base/sys.h"
#include "store/store_internal.h"

#include <string.h>

#define SAMPLE          32
#define REFILE_MAX      8 /* of one sample: each is read from the index and written again */
#define SAMPLES_VAIN    3
#define VICTIMS_MAX     4096 /* for one newcomer */
#define ASKED_WAITS     20   /* for those who keep a file open without using it to close it */
#define ASKED_WAIT_NS   (2 * 1000000ull)
#define FREE_AGE_MS     1000
#define DENIED_MS       1000
#define WALK_MS         2000
#define WALK_REST       4 /* times as long as a walk took that found no room, nobody looks again */
#define WALK_WAIT_NS    (2 * 1000000ull)
#define VICTIM_ATTR_MAX (STORE_ATTR_MAX_BYTES + FORMAT_ENTRY_HEAD_BYTES)

struct victim {
    char *key;
    size_t key_bytes;
    uint64_t hash;
    struct id128 id;
};

static void refresh_free_locked(struct disk *d)
{
    uint64_t now = sys_mono_ms(), free_bytes = 0, total = 0;
    if (d->free_valid && now - d->free_checked_ms < FREE_AGE_MS)
        return;
    /* One statfs a second under the lock: it reads memory of the kernel, not the disk. */
    if (sys->statfs_free(d->path, &free_bytes, &total) < 0)
        return;
    d->free_valid = true;
    d->free_checked_ms = now;
    d->free_bytes = free_bytes;
    d->written_at_check = d->written_bytes;
}

/* What somebody wants room for. */
struct taking {
    uint64_t bytes;
    uint32_t data_set;
    struct slice newcomer;
    bool force; /* it must be admitted */
    bool there; /* its bytes are in the file system already, and take none of its room */
};

static bool fits_locked(struct disk *d, const struct taking *t)
{
    uint64_t n = t->bytes;
    if (n > d->limit_bytes || d->used_bytes > d->limit_bytes - n)
        return false;
    if (t->there)
        return true;
    refresh_free_locked(d);
    uint64_t to_come = d->used_bytes > d->written_at_check ? d->used_bytes - d->written_at_check : 0;
    return d->free_bytes >= d->store->config.reserve_bytes + to_come + n;
}

static bool try_take(struct disk *d, const struct taking *t)
{
    LOCK_SCOPE(&d->lock);
    if (!fits_locked(d, t))
        return false;
    d->used_bytes += t->bytes;
    d->written_bytes += t->there ? t->bytes : 0;
    d->free_valid = d->free_valid && !t->there; /* what was looked at last has them, or not: look again */
    return true;
}

bool space_try(struct disk *d, uint64_t n)
{
    return try_take(d, &(struct taking){.bytes = n});
}

/* Never below zero: records that were damaged on disk may make the counts too small. */
static void subtract(uint64_t *count, uint64_t n)
{
    *count -= MIN(*count, n);
}

/* Whether try_take would succeed. */
static bool could_take(struct disk *d, const struct taking *t)
{
    LOCK_SCOPE(&d->lock);
    return fits_locked(d, t);
}

void space_give(struct disk *d, uint64_t n, uint64_t written, uint64_t leased)
{
    LOCK_SCOPE(&d->lock);
    subtract(&d->used_bytes, n);
    subtract(&d->written_bytes, written);
    subtract(&d->leased_bytes, leased);
    /* The file system's free bytes grew by what was in files: look again. */
    if (written > 0)
        d->free_valid = false;
}

void space_lease(struct disk *d, uint64_t n)
{
    LOCK_SCOPE(&d->lock);
    d->leased_bytes += n;
}

void space_written(struct disk *d, int64_t n)
{
    LOCK_SCOPE(&d->lock);
    if (n >= 0)
        d->written_bytes += (uint64_t)n;
    else
        subtract(&d->written_bytes, (uint64_t)-n);
}

/* ---- eviction ---- */

static void victims_free(struct victim *v, size_t n)
{
    for (size_t i = 0; i < n; i++)
        free(v[i].key);
}

static bool is_kept(struct store *s, struct slice key, struct slice newcomer, uint64_t bytes, bool takes)
{
    return s->keep && s->keep(s->keep_arg, key, newcomer, bytes, takes);
}

/* Reads the entry behind one back reference; false when it is no candidate. */
static bool judge(struct disk *d, struct slice key, struct id128 id, struct slice newcomer, bool in_use_too,
                  struct victim *v, struct evict_candidate *c)
{
    struct buf _cleanup_buf_ b = BUF_INIT(VICTIM_ATTR_MAX);
    struct format_entry r;
    if (key.n == 0 || key.n > STORE_KEY_MAX_BYTES || load_record(d, key, &r, &b) < 0 || !id_eq(r.id, id))
        return false;
    *c = (struct evict_candidate){
        .set = r.data_set, .last_read_ms = r.last_read_ms, .size_bytes = r.size_bytes};
    v->hash = hash_table(key);
    bool referenced;
    uint64_t last_read_ms;
    if (table_peek(d->store, key, v->hash, &referenced, &last_read_ms)) {
        c->referenced = referenced && !in_use_too;
        c->last_read_ms = last_read_ms;
    }
    if (c->referenced || is_kept(d->store, key, newcomer, record_present_bytes(&r),
                                 /* takes= */ false))
        return false;
    v->key = slice_dup(key);
    v->key_bytes = key.n;
    v->id = id;
    return true;
}

/* Sets are split as they grow: an entry that belongs to another set than when it was made moves there, with
 * its bytes. */
static void refile(struct disk *d, const struct victim *v, uint32_t set)
{
    struct store *s = d->store;
    struct slice key = slice_of(v->key, v->key_bytes);
    struct key_owner o;
    struct extent *x = NULL;
    table_begin(s, key, &o); /* its owner: it does not die meanwhile */
    x = table_find(s, key, o.hash);
    if (x || load_extent(s, key, o.hash, &x) == 0) {
        lock_take(&x->lock);
        bool moves = id_eq(x->id, v->id) && x->data_set != set;
        uint32_t before = x->data_set;
        if (moves) {
            __atomic_store_n(&x->data_set, set, __ATOMIC_RELAXED);
            x->entry_changed = true;
        }
        lock_drop(&x->lock);
        if (moves) {
            lock_take(&s->sets_lock);
            evict_set_grow(s->sets, before, -(int64_t)extent_size(x));
            evict_set_grow(s->sets, set, (int64_t)extent_size(x));
            lock_drop(&s->sets_lock);
            writer_queue(x);
        }
        extent_unref(x);
    }
    table_end(s, &o);
}

static void refile_all(struct disk *d, const struct victim *v, struct evict_candidate *c, size_t n)
{
    for (size_t i = 0, moved = 0; i < n && moved < REFILE_MAX; i++) {
        lock_take(&d->store->sets_lock);
        uint32_t set = evict_set_find(d->store->sets, slice_of(v[i].key, v[i].key_bytes));
        lock_drop(&d->store->sets_lock);
        if (set == c[i].set)
            continue;
        refile(d, &v[i], set);
        c[i].set = set;
        moved++;
    }
}

/* Those of the next `max` entries from `from` on and before `hi` that are candidates; adds them to the *n
 * there are. How many entries were looked at; *ret_last: the last of them. */
static size_t candidates(struct disk *d, const struct format_key *from, struct slice hi, size_t max,
                         struct slice newcomer, bool in_use_too, struct victim *v, struct evict_candidate *c,
                         size_t *n, struct id128 *ret_last)
{
    struct kv_iter *_cleanup_(kv_iter_freep) it = kv_iter_new(d->kv, format_key_view(from), hi);
    struct slice k, key;
    size_t seen = 0;
    while (seen < max && kv_iter_next(it, &k, &key, NULL) == 0) {
        seen++;
        if (format_key_parse_id(k, ret_last) == 0 &&
            judge(d, key, *ret_last, newcomer, in_use_too, &v[*n], &c[*n]))
            (*n)++;
    }
    return seen;
}

/* Up to SAMPLE candidates from a random place on, going round at the end. */
static size_t sample(struct disk *d, struct slice newcomer, bool in_use_too, struct victim *v,
                     struct evict_candidate *c)
{
    struct format_key from, first;
    struct id128 at, zero = {{0}};
    sys->random(at.b, sizeof(at.b));
    format_key_id('x', at, &from);
    format_key_id('x', zero, &first);
    size_t n = 0, seen = 0;
    for (int part = 0; part < 2 && seen < SAMPLE; part++) {
        struct slice hi = part == 0 ? SLICE_LIT("y") : format_key_view(&from);
        seen +=
            candidates(d, part == 0 ? &from : &first, hi, SAMPLE - seen, newcomer, in_use_too, v, c, &n, &at);
    }
    return n;
}

static const char *verdict_name(enum evict_verdict v)
{
    return v == EVICT_DEAD ? "dead" : v == EVICT_STALE ? "stale" : v == EVICT_IDLE_SET ? "idle" : "forced";
}

/* So that a read of it soon after shows that it was given up too early. */
static void note_evicted(struct store *s, struct slice key, uint64_t last_read_ms)
{
    LOCK_SCOPE(&s->sets_lock);
    evict_note_evicted(s->sets, key, last_read_ms);
}

/* Evicts one entry if it is still what was sampled and nobody uses it. *asked_bytes grows by what may become
 * free because whoever uses it was asked to let go. */
static bool evict_one(struct disk *d, const struct victim *v, enum evict_verdict why, struct slice newcomer,
                      uint64_t *asked_bytes)
{
    struct store *s = d->store;
    struct slice key = slice_of(v->key, v->key_bytes);
    struct key_owner o;
    bool done = false;
    uint64_t bytes = 0, last_read_ms = 0;
    table_begin(s, key, &o);
    struct extent *x = table_find(s, key, o.hash);
    if (x) {
        /* A second reference means that somebody found it meanwhile. One found after this check keeps its
         * bytes. */
        if (id_eq(x->id, v->id) && __atomic_load_n(&x->refs, __ATOMIC_ACQUIRE) == 1) {
            bytes = extent_present_bytes(x);
            last_read_ms = __atomic_load_n(&x->last_read_ms, __ATOMIC_RELAXED);
            done = !is_kept(s, key, newcomer, bytes, /* takes= */ true);
            if (done)
                doom_victim(x);
        } else if (id_eq(x->id, v->id) && s->on_gone && s->on_gone(s->on_gone_arg, key)) {
            *asked_bytes += extent_present_bytes(x);
        }
        extent_unref(x);
    } else {
        struct buf _cleanup_buf_ b = BUF_INIT(VICTIM_ATTR_MAX);
        struct format_entry r;
        if (load_record(d, key, &r, &b) == 0 && id_eq(r.id, v->id)) {
            bytes = format_charge(r.size_bytes, r.present_blocks);
            last_read_ms = r.last_read_ms;
            done = !is_kept(s, key, newcomer, record_present_bytes(&r), /* takes= */ true);
            if (done)
                doom_victim_record(d, key, &r);
        }
    }
    table_end(s, &o);
    if (!done)
        return false;
    note_evicted(s, key, last_read_ms);
    metrics_add(metrics_series(METRIC_EVICTED_BYTES, d->path, verdict_name(why), NULL), bytes);
    return true;
}

/* The policy's choice; with force, when it keeps all, the one that was not read for the longest time. */
static int choose(struct disk *d, const struct evict_candidate *c, size_t n, uint32_t data_set, bool force,
                  enum evict_verdict *ret_why)
{
    struct store *s = d->store;
    uint64_t now = store_now_ms();
    LOCK_SCOPE(&s->sets_lock);
    int best = n == 0  ? -1
               : force ? evict_choose_forced(s->sets, c, n, data_set, now)
                       : evict_choose(s->sets, c, n, data_set, now);
    *ret_why = best >= 0 ? evict_judge(s->sets, &c[best], data_set, now) : EVICT_KEEP;
    return best;
}

static bool denied(struct disk *d, uint32_t data_set)
{
    LOCK_SCOPE(&d->lock);
    return d->denied_until_ms[data_set % ARRAY_SIZE(d->denied_until_ms)] > sys_mono_ms();
}

static void deny(struct disk *d, uint32_t data_set)
{
    LOCK_SCOPE(&d->lock);
    d->denied_until_ms[data_set % ARRAY_SIZE(d->denied_until_ms)] = sys_mono_ms() + DENIED_MS;
}

/* Evicts of `left` candidates until there could be room, or until the users of as much were asked to let go.
 * Gives how many victims there were. Frees the candidates. */
static size_t evict_of(struct disk *d, const struct taking *t, struct victim *v, struct evict_candidate *c,
                       size_t left, uint64_t *ret_asked_bytes)
{
    size_t evicted = 0;
    refile_all(d, v, c, left);
    *ret_asked_bytes = 0;
    while (left > 0 && *ret_asked_bytes < t->bytes && !could_take(d, t)) {
        enum evict_verdict why;
        int i = choose(d, c, left, t->data_set, t->force, &why);
        if (i < 0)
            break;
        evicted += evict_one(d, &v[i], why, t->newcomer, ret_asked_bytes);
        free(v[i].key);
        left--;
        v[i] = v[left];
        c[i] = c[left];
        v[left].key = NULL;
    }
    victims_free(v, left);
    return evicted;
}

static size_t evict_sample(struct disk *d, const struct taking *t, bool in_use_too, uint64_t *ret_asked_bytes)
{
    struct victim v[SAMPLE] = {0};
    struct evict_candidate c[SAMPLE];
    size_t found = sample(d, t->newcomer, in_use_too, v, c);
    return evict_of(d, t, v, c, found, ret_asked_bytes);
}

/* ---- looking through all of them ---- */

/* One walk, and where it is. */
struct walk {
    struct disk *disk;
    const struct taking *taking;
    struct format_key from; /* the next entry */
    struct id128 last;      /* the one before it */
    unsigned waits;         /* for those who were asked to let go */
    size_t evicted, seen;   /* of the present piece */
};

static void walk_piece(struct walk *w, struct slice hi, bool in_use_too, uint64_t *ret_asked_bytes)
{
    struct victim v[SAMPLE] = {0};
    struct evict_candidate c[SAMPLE];
    size_t found = 0;
    w->seen =
        candidates(w->disk, &w->from, hi, SAMPLE, w->taking->newcomer, in_use_too, v, c, &found, &w->last);
    w->evicted = evict_of(w->disk, w->taking, v, c, found, ret_asked_bytes);
}

/* Evicts what may go of the next entries before `hi`, and goes behind them. False: there are none. */
static bool walk_on(struct walk *w, struct slice hi)
{
    uint64_t asked_bytes;
    bool again;
    do {
        walk_piece(w, hi, /* in_use_too= */ false, &asked_bytes);
        if (w->evicted == 0 && w->disk->store->on_gone && !could_take(w->disk, w->taking))
            walk_piece(w, hi, /* in_use_too= */ true, &asked_bytes);
        again = w->evicted == 0 && asked_bytes > 0 && w->waits++ < ASKED_WAITS;
        if (again)
            sys->sleep_ns(ASKED_WAIT_NS);
    } while (again);
    if (w->seen == 0)
        return false;
    format_key_id('x', w->last, &w->from);
    w->from.p[w->from.n++] = '\0';
    return true;
}

/* True: nobody else walks, and it is not so that all were found to be kept a moment ago. */
static bool walk_begin(struct disk *d)
{
    LOCK_SCOPE(&d->lock);
    if (d->is_walked || d->walk_next_ms > sys_mono_ms())
        return false;
    return d->is_walked = true;
}

static bool walk_rests(struct disk *d)
{
    LOCK_SCOPE(&d->lock);
    return d->walk_next_ms > sys_mono_ms();
}

static bool is_walked(struct disk *d)
{
    LOCK_SCOPE(&d->lock);
    return d->is_walked;
}

/* Evicts until there could be room; every entry is looked at once, or as many as there is time for. */
static void walk_all(struct disk *d, const struct taking *t)
{
    uint64_t began_ms = sys_mono_ms();
    struct format_key end;
    struct id128 zero = {{0}};
    struct walk w = {.disk = d, .taking = t, .last = d->walk_at};
    writer_drain(d); /* what was made a moment ago is to be seen */
    format_key_id('x', w.last, &end);
    end.p[end.n++] = '\0';
    w.from = end;
    for (int part = 0; part < 2; part++) {
        struct slice hi = part == 0 ? SLICE_LIT("y") : format_key_view(&end);
        while (!could_take(d, t) && sys_mono_ms() - began_ms < WALK_MS && walk_on(&w, hi))
            ;
        if (part == 0 && (could_take(d, t) || sys_mono_ms() - began_ms >= WALK_MS))
            break;
        if (part == 0)
            format_key_id('x', zero, &w.from);
    }
    bool found = could_take(d, t);
    uint64_t now_ms = sys_mono_ms();
    LOCK_SCOPE(&d->lock);
    d->walk_at = w.last;
    d->walk_next_ms = found ? 0 : now_ms + MAX((uint64_t)DENIED_MS, WALK_REST * (now_ms - began_ms));
    d->is_walked = false;
}

/* For what must be admitted, after samples in vain. */
static int take_of_all(struct disk *d, const struct taking *t)
{
    uint64_t until_ms = sys_mono_ms() + WALK_MS;
    do {
        if (walk_begin(d))
            walk_all(d, t);
        while (is_walked(d) && sys_mono_ms() < until_ms)
            sys->sleep_ns(WALK_WAIT_NS);
        if (try_take(d, t))
            return 0;
    } while (!walk_rests(d) && sys_mono_ms() < until_ms);
    return ERR_NOT_ADMITTED;
}

static int take(struct disk *d, const struct taking *t)
{
    if (try_take(d, t) || (!t->there && late_close(d) && try_take(d, t)))
        return 0;
    if (t->bytes > d->limit_bytes || d->store->read_only || (!t->force && denied(d, t->data_set)))
        return ERR_NOT_ADMITTED;
    for (size_t vain = 0, victims = 0, waits = 0; vain < SAMPLES_VAIN && victims < VICTIMS_MAX;) {
        writer_throttle(d);
        uint64_t asked_bytes = 0;
        size_t evicted = evict_sample(d, t, /* in_use_too= */ false, &asked_bytes);
        if (evicted == 0 && d->store->on_gone)
            evicted = evict_sample(d, t, /* in_use_too= */ true, &asked_bytes);
        if (try_take(d, t))
            return 0;
        victims += evicted;
        if (evicted == 0 && asked_bytes > 0 && waits++ < ASKED_WAITS)
            sys->sleep_ns(ASKED_WAIT_NS);
        else
            vain = evicted > 0 ? 0 : vain + 1;
    }
    if (t->force)
        return take_of_all(d, t);
    deny(d, t->data_set);
    return ERR_NOT_ADMITTED;
}

int space_take(struct disk *d, uint64_t n, uint32_t data_set, struct slice newcomer, bool force)
{
    return take(d, &(struct taking){.bytes = n, .data_set = data_set, .newcomer = newcomer, .force = force});
}

int space_take_there(struct disk *d, uint64_t n)
{
    return take(d, &(struct taking){.bytes = n, .data_set = UINT32_MAX, .force = true, .there = true});
}

void space_grow(struct disk *d, uint64_t n)
{
    bool taken = space_take(d, n, UINT32_MAX, SLICE_NULL, /* force= */ true) == 0;
    LOCK_SCOPE(&d->lock);
    d->used_bytes += taken ? 0 : n;
}

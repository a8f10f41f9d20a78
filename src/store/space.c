/*
 * What a disk may hold: the count of bytes, and eviction when a newcomer needs some.
 *
 * Counted as used is what living extents were charged (bytes present, and what fills took ahead) and what
 * dead ones still occupy. Two things are full at once or alone: the limit of the disk, and the file system,
 * of which a reserve stays free. The free bytes of the file system are asked at most once a second; in
 * between, what was charged since and what was charged before but not yet written count against them, of all
 * disks that are on it.
 *
 * Disks on one file system have limits that are together what it has, less the reserve: those whose size was
 * not given have equal parts of what the others leave, and sizes that are too much for it are cut down, each
 * by as large a part. Eviction knows one disk only: with larger limits one that came first would keep the
 * file system full, and another never get room.
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

#include <inttypes.h>
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

/* ---- file systems ---- */

static int join_file_system(struct disk *d, struct err *e)
{
    struct store *s = d->store;
    struct stat st = {0};
    uint64_t free_bytes = 0, total = 0;
    int r = sys->statfs_free(d->path, &free_bytes, &total);
    r = r < 0 ? r : sys->stat(d->path, &st);
    if (r < 0)
        return err_errno(e, r, "disk %s: look at its file system", d->path);
    struct file_system *f = s->file_systems, *end = f + s->n_file_systems;
    while (f < end && f->number != st.st_dev)
        f++;
    if (f == end) {
        s->n_file_systems++;
        *f = (struct file_system){.number = st.st_dev, .total_bytes = total};
        lock_init(&f->lock, LOCK_LEAF);
    }
    f->used_bytes += d->used_bytes;
    f->written_bytes += d->written_bytes;
    d->file_system = f;
    return 0;
}

uint64_t space_limit(uint64_t room, uint64_t asked, uint64_t all_asked, size_t n, size_t n_rest)
{
    if (asked == 0)
        return (room - MIN(room, all_asked)) / n_rest;
    bool fits = n == 1 || all_asked <= room; /* one alone is what was asked for: the reserve stays anyway */
    return fits ? asked : (uint64_t)((unsigned __int128)asked * room / all_asked);
}

static void set_limit(struct disk *d, const struct store_config *config)
{
    struct store *s = d->store;
    uint64_t total = d->file_system->total_bytes, asked = config->disks[d->index].size_bytes, all_asked = 0;
    size_t n = 0, n_rest = 0;
    for (size_t i = 0; i < s->n_disks; i++) {
        uint64_t one = config->disks[i].size_bytes;
        if (s->disks[i].file_system != d->file_system)
            continue;
        n++;
        n_rest += one == 0;
        all_asked += MIN(one, UINT64_MAX - all_asked);
    }
    d->limit_bytes = space_limit(total - MIN(total, s->config.reserve_bytes), asked, all_asked, n, n_rest);
    d->weight = MAX(d->limit_bytes, 1);
    metrics_set(d->m_limit, (int64_t)d->limit_bytes);
    if (s->read_only)
        return;
    if (d->limit_bytes == 0)
        log_warn("store",
                 "disk %s: nothing will be kept there: its file system has %" PRIu64
                 " bytes, of which the reserve is to stay free, and what other disks there have; make the "
                 "reserve smaller",
                 d->path, total);
    else if (n > 1 && (asked == 0 || d->limit_bytes < asked))
        log_warn("store",
                 "disk %s: its file system, of %" PRIu64
                 " bytes, is that of other disks, too: this one may hold %" PRIu64,
                 d->path, total, d->limit_bytes);
}

int space_begin(struct store *s, const struct store_config *config, struct err *e)
{
    s->file_systems = calloc(s->n_disks, sizeof(s->file_systems[0]));
    if (!s->file_systems)
        abort();
    for (size_t i = 0; i < s->n_disks; i++) {
        int r = join_file_system(&s->disks[i], e);
        if (r < 0)
            return r;
    }
    for (size_t i = 0; i < s->n_disks; i++)
        set_limit(&s->disks[i], config);
    return 0;
}

void space_end(struct store *s)
{
    for (size_t i = 0; i < s->n_file_systems; i++)
        lock_fini(&s->file_systems[i].lock);
    free(TAKE_PTR(s->file_systems));
}

/* ---- counting ---- */

/* For what counts for the disk and its file system. */
static void enter(struct disk *d)
{
    lock_take(&d->lock);
    lock_take(&d->file_system->lock);
}

static void leave(struct disk *d)
{
    lock_drop(&d->file_system->lock);
    lock_drop(&d->lock);
}

static void add(struct disk *d, uint64_t used, uint64_t written)
{
    d->used_bytes += used;
    d->written_bytes += written;
    d->file_system->used_bytes += used;
    d->file_system->written_bytes += written;
}

/* Never below zero: records that were damaged on disk may make the counts too small. */
static void subtract(struct disk *d, uint64_t used, uint64_t written)
{
    used = MIN(d->used_bytes, used);
    written = MIN(d->written_bytes, written);
    d->used_bytes -= used;
    d->written_bytes -= written;
    d->file_system->used_bytes -= used;
    d->file_system->written_bytes -= written;
}

static void refresh_free_locked(struct disk *d)
{
    struct file_system *f = d->file_system;
    uint64_t now = sys_mono_ms(), free_bytes = 0, total = 0;
    if (f->free_valid && now - f->free_checked_ms < FREE_AGE_MS)
        return;
    /* One statfs a second under the locks: it reads memory of the kernel, not the disk. */
    if (sys->statfs_free(d->path, &free_bytes, &total) < 0)
        return;
    f->free_valid = true;
    f->free_checked_ms = now;
    f->free_bytes = free_bytes;
    f->written_at_check = f->written_bytes;
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
    const struct file_system *f = d->file_system;
    uint64_t to_come = f->used_bytes > f->written_at_check ? f->used_bytes - f->written_at_check : 0;
    return f->free_bytes >= d->store->config.reserve_bytes + to_come + n;
}

static bool try_take(struct disk *d, const struct taking *t)
{
    enter(d);
    bool fits = fits_locked(d, t);
    if (fits)
        add(d, t->bytes, t->there ? t->bytes : 0);
    if (fits && t->there)
        d->file_system->free_valid = false; /* what was looked at last has them, or not: look again */
    leave(d);
    return fits;
}

bool space_try(struct disk *d, uint64_t n)
{
    return try_take(d, &(struct taking){.bytes = n});
}

/* Whether try_take would succeed. */
static bool could_take(struct disk *d, const struct taking *t)
{
    enter(d);
    bool fits = fits_locked(d, t);
    leave(d);
    return fits;
}

void space_look_again(struct disk *d)
{
    LOCK_SCOPE(&d->file_system->lock);
    d->file_system->free_valid = false;
}

void space_give(struct disk *d, uint64_t n, uint64_t written, uint64_t leased)
{
    enter(d);
    subtract(d, n, written);
    d->leased_bytes -= MIN(d->leased_bytes, leased);
    if (written > 0) /* the file system's free bytes grew by what was in files */
        d->file_system->free_valid = false;
    leave(d);
}

void space_lease(struct disk *d, uint64_t n)
{
    LOCK_SCOPE(&d->lock);
    d->leased_bytes += n;
}

void space_written(struct disk *d, int64_t n)
{
    enter(d);
    if (n >= 0)
        add(d, 0, (uint64_t)n);
    else
        subtract(d, 0, (uint64_t)-n);
    leave(d);
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
        } else if (id_eq(x->id, v->id) && store_tell_gone(s, key)) {
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
    if (space_take(d, n, UINT32_MAX, SLICE_NULL, /* force= */ true) == 0)
        return;
    enter(d);
    add(d, n, 0);
    leave(d);
}

/*
 * Files kept open (contract in client_kept.h).
 *
 * Invariants:
 *  1. A file is in the table while its bytes are known to be those that the node would give: its bucket was
 * watched without a break from before the node was asked for it, and none of what came through the pipe since
 * was of that file. No record of the bucket moves the serial on between asking and entering it in the table.
 *  2. A file of the table that nobody has open is in one of two orders of use: of those that have a seat, and
 * of those that pass through. What is not in the table belongs to who opened it.
 *  3. A seat is kept while the file is open. What passes through waits, with the few that were closed at
 * about the same time, for its turn to take a seat, perhaps another's, or to be closed (client_admit.h);
 * so does, to be closed, what may not be used any longer. Those of one turn are closed by one call.
 *  4. Nothing calls the node while it holds the lock.
 *
 * The lock is one for all of the process: fork(2) is made to wait for it, so that a child finds whole tables.
 *
 * Failure modes: where the process may not have one more descriptor, for a file or for a connection, half of
 * what is kept goes. Without a watch (a node without the pipe, over TCP, a bucket without origin, no rights)
 * every open asks the node.
 */
#include "client/client_kept.h"

#include "base/hash.h"
#include "base/lock.h"
#include "base/sys.h"
#include "client/client_admit.h"
#include "client/client_watch.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <unistd.h>

#define KEPT_MAGIC   0x6b657074u
#define PLACES       32768
#define BUCKETS_MAX  64 /* more are not watched */
#define VALID_MS_MAX (24 * 3600 * 1000ull)
#define DEFAULT_MAX  32768
#define FD_SHARE     8
#define MAX_MOST     (1u << 20) /* more descriptors a process can hardly have */
#define ROOM_TRIES   8
#define PASSING_MAX  31 /* files that pass through */
#define PASS_SHARE   8  /* but at most one in so many of those that may be kept */
#define AT_ONCE      64 /* uses as close as this are one: a head is read, then the rest */
#define CLOSED_MAX   64 /* told to the node by one call */

struct kept_bucket {
    struct kept_bucket *next;
    struct client_kept *kept;
    char *name;
    uint64_t hash;           /* of the name */
    struct watcher *watcher; /* NULL: not yet, or never */
    bool is_asked;           /* somebody begins to watch it, or did, or need not */
    bool is_watched;
    uint64_t serial;
};

struct client_kept_file {
    struct client_file *file;
    struct client_kept *kept;
    struct kept_bucket *bucket; /* NULL: of none that is watched */
    uint64_t hash;              /* hash_placement of the key */
    char *key;                  /* NULL: never in the table */
    size_t key_n;
    uint64_t valid_until_ms;
    uint64_t used; /* the number of its last open */
    uint32_t n_open;
    bool is_listed, has_seat, has_returned;
    bool is_over;        /* its time is: it only waits to be closed with others */
    struct order *order; /* NULL: in none */
    struct client_kept_file *in_place, *older, *newer;
    struct client_kept_file *in_trash;
};

/* By the time of the last close. */
struct order {
    struct client_kept_file *oldest, *newest;
    uint32_t n;
};

struct client_kept {
    uint32_t magic;
    struct client *c;
    _Atomic uint32_t max;
    uint32_t n_seats; /* taken */
    uint64_t n_opens;
    struct order seated, passing;
    struct client_admit *admit;
    uint64_t times_made; /* room for descriptors */
    struct lock room_lock;
    _Atomic pid_t owner;
    struct kept_bucket *buckets;
    struct client_kept_file *places[PLACES];
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct lock lock; /* covers every table, bucket and listed file */

static void before_fork(void)
{
    lock_take(&lock);
}

static void after_fork(void)
{
    lock_drop(&lock);
}

static void start_once(void)
{
    lock_init(&lock, LOCK_CLIENT);
    (void)pthread_atfork(before_fork, after_fork, after_fork);
}

uint32_t client_kept_default(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
        return 0;
    return (uint32_t)MIN(limit.rlim_cur / FD_SHARE, (rlim_t)DEFAULT_MAX);
}

/* ---- the table and the order of use ---- */

static struct client_kept_file **place_of(struct client_kept *k, uint64_t hash)
{
    return &k->places[hash % PLACES];
}

static void order_remove_locked(struct client_kept_file *f)
{
    struct order *o = f->order;
    *(f->older ? &f->older->newer : &o->oldest) = f->newer;
    *(f->newer ? &f->newer->older : &o->newest) = f->older;
    f->older = f->newer = NULL;
    f->order = NULL;
    o->n--;
}

static void order_add_locked(struct order *o, struct client_kept_file *f)
{
    f->older = o->newest;
    *(o->newest ? &o->newest->newer : &o->oldest) = f;
    o->newest = f;
    f->order = o;
    o->n++;
}

/* Out of the table; into the trash when nobody has it open. */
static void forget_locked(struct client_kept *k, struct client_kept_file *f, struct client_kept_file **trash)
{
    struct client_kept_file **at = place_of(k, f->hash);
    while (*at != f)
        at = &(*at)->in_place;
    *at = f->in_place;
    f->is_listed = false;
    k->n_seats -= f->has_seat;
    f->has_seat = false;
    if (!f->order)
        return;
    order_remove_locked(f);
    f->in_trash = *trash;
    *trash = f;
}

static void empty(struct client_kept_file *trash)
{
    struct client_file *files[CLOSED_MAX];
    while (trash) {
        size_t n = 0;
        while (trash && n < ARRAY_SIZE(files)) {
            struct client_kept_file *f = trash;
            trash = f->in_trash;
            files[n++] = f->file;
            free(f->key);
            free(f);
        }
        client_file_close_all(files, n);
    }
}

static bool is_valid(const struct client_kept_file *f)
{
    return f->bucket->is_watched && sys_mono_ms() < f->valid_until_ms;
}

static struct client_kept_file *find_locked(struct client_kept *k, const struct kept_bucket *b, uint64_t hash,
                                            struct slice key)
{
    struct client_kept_file *f = *place_of(k, hash);
    while (f &&
           (f->is_over || f->hash != hash || f->bucket != b || !slice_eq(slice_of(f->key, f->key_n), key)))
        f = f->in_place;
    return f;
}

/* ---- what the node tells ---- */

static void forget_hash_locked(struct kept_bucket *b, uint64_t hash, struct client_kept_file **trash)
{
    struct client_kept_file *next;
    for (struct client_kept_file *f = *place_of(b->kept, hash); f; f = next) {
        next = f->in_place;
        if (f->hash == hash && f->bucket == b)
            forget_locked(b->kept, f, trash);
    }
}

static void forget_bucket_locked(struct kept_bucket *b, struct client_kept_file **trash)
{
    for (size_t i = 0; i < PLACES; i++) {
        struct client_kept_file *next;
        for (struct client_kept_file *f = b->kept->places[i]; f; f = next) {
            next = f->in_place;
            if (f->bucket == b)
                forget_locked(b->kept, f, trash);
        }
    }
}

static void on_begun(void *arg)
{
    struct kept_bucket *b = arg;
    LOCK_SCOPE(&lock);
    b->serial++; /* who asked before may have missed a record */
    b->is_watched = true;
}

static void on_records(void *arg, const uint64_t *v, size_t n)
{
    struct kept_bucket *b = arg;
    struct client_kept_file *trash = NULL;
    lock_take(&lock);
    b->serial++;
    for (size_t i = 0; i < n; i++)
        forget_hash_locked(b, v[i], &trash);
    lock_drop(&lock);
    empty(trash);
}

static void on_ended(void *arg)
{
    struct kept_bucket *b = arg;
    struct client_kept_file *trash = NULL;
    lock_take(&lock);
    b->serial++;
    b->is_watched = false;
    forget_bucket_locked(b, &trash);
    lock_drop(&lock);
    empty(trash);
}

static const struct watcher_calls calls = {.begun = on_begun, .records = on_records, .ended = on_ended};

/* ---- buckets ---- */

/* A scratch bucket's watchers are counted as mounts, and its files change without a word. *ret_known: the
 * node has said so. */
static bool has_origin(struct client *c, struct slice bucket, bool *ret_known)
{
    struct wire_bucket_get_req req = {.name = bucket};
    struct wire_bucket_get_rep rep;
    struct err ignored = {0}; /* no rights to ask: nothing is kept */
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    int r = client_bucket_get(c, &req, &b, &rep, &ignored);
    *ret_known = r != -EHOSTDOWN && r != -ETIMEDOUT && r != -EMFILE && r != ERR_NO_BUCKET;
    if (r < 0)
        return false;
    while (rep.settings.n > 0)
        if (slice_starts(slice_split(&rep.settings, '\n'), SLICE_LIT("origin=")))
            return true;
    return false;
}

/* *ret_is_new: the caller begins to watch it. NULL: there are too many. */
static struct kept_bucket *find_bucket(struct client_kept *k, struct slice name, struct watcher **ret_watcher,
                                       bool *ret_is_new)
{
    LOCK_SCOPE(&lock);
    struct kept_bucket *b = k->buckets;
    size_t n = 0;
    for (; b && !slice_eq_str(name, b->name); b = b->next)
        n++;
    *ret_watcher = b ? b->watcher : NULL;
    *ret_is_new = b ? !b->is_asked : n < BUCKETS_MAX;
    if (b)
        b->is_asked = true;
    if (b || !*ret_is_new)
        return b;
    b = calloc(1, sizeof(*b));
    if (!b)
        abort();
    b->kept = k;
    b->is_asked = true;
    b->name = slice_dup(name);
    b->hash = hash_placement(name);
    b->next = k->buckets;
    k->buckets = b;
    return b;
}

/* Watches it if that makes sense; where it could not be found out, or there is no room, the next open tries
 * again. */
static struct watcher *begin_watching(struct client_kept *k, struct kept_bucket *b)
{
    bool is_known = false;
    bool has = has_origin(k->c, slice_str(b->name), &is_known);
    struct watcher *w = has ? watcher_start(k->c, slice_str(b->name), &calls, b) : NULL;
    LOCK_SCOPE(&lock);
    b->watcher = w;
    b->is_asked = has ? w != NULL : is_known;
    return w;
}

/* The bucket, with all told that the node has said of it; NULL when it is not watched. */
static struct kept_bucket *ready_bucket(struct client_kept *k, struct slice name)
{
    bool is_new;
    struct watcher *w;
    struct kept_bucket *b = find_bucket(k, name, &w, &is_new);
    if (!b)
        return NULL;
    if (is_new)
        w = begin_watching(k, b);
    if (!w)
        return NULL;
    watcher_drain(w);
    return b;
}

/* ---- forked ---- */

/* What the parent kept is closed here, without telling the node; what is open goes on as its users' own. A
 * watcher of the parent may have been making room. */
static void forget_parent_locked(struct client_kept *k, struct client_kept_file **trash)
{
    lock_init(&k->room_lock, LOCK_READER);
    for (struct kept_bucket *b; (b = k->buckets);) {
        forget_bucket_locked(b, trash);
        watcher_abandon(b->watcher);
        k->buckets = b->next;
        free(b->name);
        free(b);
    }
}

static void own(struct client_kept *k)
{
    struct client_kept_file *trash = NULL;
    pid_t me = getpid();
    if (atomic_load(&k->owner) == me)
        return;
    (void)client_epoch(k->c); /* a new one: closing finds that the session is another process's */
    lock_take(&lock);
    if (atomic_load(&k->owner) != me) {
        forget_parent_locked(k, &trash);
        client_admit_forget(k->admit);
    }
    atomic_store(&k->owner, me);
    lock_drop(&lock);
    empty(trash);
}

/* ---- who keeps a seat ---- */

static uint32_t passing_max(uint32_t max)
{
    return MIN(max / PASS_SHARE, (uint32_t)PASSING_MAX);
}

static uint64_t admit_key(const struct client_kept_file *f)
{
    return hash_mix(f->hash, f->bucket->hash);
}

/* Whether the file is to be kept in the place of the one that was not opened for longest. */
static bool is_admitted_locked(struct client_kept *k, const struct client_kept_file *f)
{
    const struct client_kept_file *oldest = k->seated.oldest;
    if (!oldest) /* all are open */
        return false;
    const struct client_admit_kept kept = {
        .key = admit_key(oldest), .used = oldest->used, .has_returned = oldest->has_returned};
    return client_admit_use(k->admit, admit_key(f), f->used, kept) || !is_valid(oldest);
}

static void seat_locked(struct client_kept *k, struct client_kept_file *f)
{
    f->has_seat = true;
    f->has_returned = false;
    k->n_seats++;
}

/* When there are enough of them, it is the turn of all that pass through. */
static void settle_locked(struct client_kept *k, struct client_kept_file **trash)
{
    uint32_t max = atomic_load(&k->max), seats = max - passing_max(max);
    if (k->passing.n <= passing_max(max))
        return;
    for (struct client_kept_file *f; (f = k->passing.oldest);) {
        if (!f->is_over && k->n_seats >= seats && is_admitted_locked(k, f))
            forget_locked(k, k->seated.oldest, trash);
        if (f->is_over || k->n_seats >= seats) {
            forget_locked(k, f, trash);
            continue;
        }
        order_remove_locked(f);
        seat_locked(k, f);
        order_add_locked(&k->seated, f);
    }
}

/* ---- opening and closing ---- */

/* Nobody gets it any more, and nobody has it open: it is closed with others. That is not in time where the
 * node does not tell what it lets go; false: the bucket is not watched. */
static bool retire_locked(struct client_kept *k, struct client_kept_file *f)
{
    if (!f->bucket->is_watched)
        return false;
    f->is_over = true;
    k->n_seats -= f->has_seat;
    f->has_seat = false;
    if (f->order)
        order_remove_locked(f);
    order_add_locked(&k->passing, f);
    return true;
}

static struct client_kept_file *take_kept(struct client_kept *k, struct kept_bucket *b, uint64_t hash,
                                          struct slice key, uint64_t *ret_serial)
{
    struct client_kept_file *trash = NULL;
    lock_take(&lock);
    struct client_kept_file *f = find_locked(k, b, hash, key);
    if (f && !is_valid(f)) {
        if (f->n_open > 0 || !retire_locked(k, f))
            forget_locked(k, f, &trash);
        settle_locked(k, &trash);
        f = NULL;
    }
    uint64_t now = ++k->n_opens;
    if (f) {
        f->has_returned |= f->has_seat && now - f->used > AT_ONCE;
        f->used = now;
    }
    if (f && f->n_open++ == 0)
        order_remove_locked(f);
    *ret_serial = b->serial;
    lock_drop(&lock);
    empty(trash);
    return f;
}

static struct client_kept_file *file_new(struct client_kept *k, struct client_file *file, uint64_t asked_ms)
{
    struct client_kept_file *f = calloc(1, sizeof(*f));
    if (!f)
        abort();
    f->kept = k;
    f->file = file;
    f->n_open = 1;
    f->valid_until_ms = asked_ms + MIN(client_file_valid_ms(file), VALID_MS_MAX);
    return f;
}

/* Into the table, when nothing was told since the node was asked and no other thread was faster. */
static void list_file(struct client_kept_file *f, struct kept_bucket *b, uint64_t hash, struct slice key,
                      uint64_t serial)
{
    struct client_kept *k = f->kept;
    LOCK_SCOPE(&lock);
    if (b->serial != serial || !b->is_watched || find_locked(k, b, hash, key))
        return;
    f->bucket = b;
    f->hash = hash;
    f->key = slice_dup(key);
    f->key_n = key.n;
    f->used = k->n_opens;
    f->in_place = *place_of(k, hash);
    *place_of(k, hash) = f;
    f->is_listed = true;
}

static _Thread_local bool makes_room; /* this thread is at it: its own calls go on without */

/* Closes the half that was not opened for longest, and keeps no more from now on: the process has no place
 * for another descriptor. false: nothing is kept. */
static bool make_room(struct client_kept *k, uint64_t seen)
{
    struct client_kept_file *trash = NULL;
    LOCK_SCOPE(&k->room_lock); /* held over calls to the node: who waits for it finds room */
    lock_take(&lock);
    uint32_t n = k->seated.n + k->passing.n, stay = n / 2;
    bool is_made = k->times_made != seen, any = n > 0;
    if (!is_made && any) {
        atomic_store(&k->max, MAX(stay, 1u));
        k->times_made++;
        for (; n > stay; n--)
            forget_locked(k, k->passing.oldest ? k->passing.oldest : k->seated.oldest, &trash);
    }
    lock_drop(&lock);
    makes_room = true;
    empty(trash);
    makes_room = false;
    return is_made || any;
}

/* For a connection of any call. */
static bool on_no_room(void *arg)
{
    struct client_kept *k = arg;
    if (makes_room)
        return false;
    own(k);
    lock_take(&lock);
    uint64_t seen = k->times_made;
    lock_drop(&lock);
    return make_room(k, seen);
}

static int open_file(struct client_kept *k, const struct client_file_open *o, struct client_file **ret,
                     struct err *e)
{
    int r = -EMFILE;
    for (int i = 0; r == -EMFILE && i < ROOM_TRIES; i++) {
        lock_take(&lock);
        uint64_t seen = k->times_made;
        lock_drop(&lock);
        r = client_file_open(k->c, o, ret, e);
        if (r == -EMFILE && !make_room(k, seen))
            break;
    }
    return r;
}

int client_kept_open(struct client_kept *k, const struct client_file_open *o, struct client_kept_file **ret,
                     struct err *e)
{
    assert(k != NULL && k->magic == KEPT_MAGIC);
    own(k);
    struct client_file_open ask = *o;
    bool may_keep = atomic_load(&k->max) > 0 && client_passes_fds(k->c) && !o->no_fd && o->if_match.n == 0;
    struct kept_bucket *b = may_keep ? ready_bucket(k, o->bucket) : NULL;
    uint64_t hash = b ? hash_placement(o->key) : 0, serial = 0;
    *ret = b ? take_kept(k, b, hash, o->key, &serial) : NULL;
    if (*ret)
        return 0;
    struct client_file *file;
    uint64_t asked_ms = sys_mono_ms();
    ask.high_fd = b != NULL;
    int r = open_file(k, &ask, &file, e);
    if (r < 0)
        return r;
    *ret = file_new(k, file, asked_ms);
    if (b)
        list_file(*ret, b, hash, o->key, serial);
    return 0;
}

/* After the last close: whether the file is kept, or was put into the trash; else it is the caller's. */
static bool keep_locked(struct client_kept *k, struct client_kept_file *f, struct client_kept_file **trash)
{
    if (!f->is_listed)
        return false;
    bool is_complete = client_file_is_complete(f->file), stays = is_complete && is_valid(f);
    if (!stays && !(is_complete && retire_locked(k, f))) {
        forget_locked(k, f, trash);
        return false;
    }
    uint32_t max = atomic_load(&k->max), seats = max - passing_max(max);
    if (stays && !f->has_seat && k->n_seats < seats)
        seat_locked(k, f);
    if (stays)
        order_add_locked(f->has_seat ? &k->seated : &k->passing, f);
    settle_locked(k, trash);
    while (k->n_seats > seats && k->seated.oldest) /* fewer are kept than before */
        forget_locked(k, k->seated.oldest, trash);
    return true;
}

void client_kept_close(struct client_kept_file *f)
{
    if (!f)
        return;
    struct client_kept *k = f->kept;
    struct client_kept_file *trash = NULL;
    own(k);
    lock_take(&lock);
    if (--f->n_open == 0 && !keep_locked(k, f, &trash)) {
        f->in_trash = trash;
        trash = f;
    }
    lock_drop(&lock);
    empty(trash);
}

struct client_file *client_kept_of(const struct client_kept_file *f)
{
    return f->file;
}

struct client_kept *client_kept_new(struct client *c, uint32_t max)
{
    struct client_kept *k = calloc(1, sizeof(*k));
    if (!k)
        abort();
    max = MIN(max, MAX_MOST);
    (void)pthread_once(&once, start_once);
    k->magic = KEPT_MAGIC;
    k->c = c;
    atomic_init(&k->max, max);
    k->admit = client_admit_new(max);
    lock_init(&k->room_lock, LOCK_READER);
    atomic_init(&k->owner, getpid());
    client_on_no_room(c, on_no_room, k);
    return k;
}

void client_kept_free(struct client_kept *k)
{
    if (!k)
        return;
    assert(k->magic == KEPT_MAGIC);
    own(k);
    for (struct kept_bucket *b; (b = k->buckets);) { /* no other thread is in a call */
        watcher_end(b->watcher);                     /* tells on_ended, which closes what is kept of it */
        k->buckets = b->next;
        free(b->name);
        free(b);
    }
    client_on_no_room(k->c, NULL, NULL);
    k->magic = 0;
    client_admit_free(k->admit);
    lock_fini(&k->room_lock);
    free(k);
}

/*
 * The life of hard extents: locations, the table of those in memory, references, what they occupy.
 *
 * Invariants:
 *  1. One struct for each data id in the table; whoever loads, seals, unseals or removes it is the only one.
 *  2. An unsettled extent that was taken, or was found once, stays in the table until it is sealed or
 * removed: its share of the disk's used bytes is known only here. The share of a sealed one is in its hard
 * record.
 *  3. fd does not change while the extent is referenced.
 *
 * Failure modes: an extent that cannot be loaded leaves the table again, so that the next one to ask tries
 * anew. A damaged hard record reads as "not sealed", with a warning: its checksums are lost, its bytes are
 * not, and are counted already: as many as the file has.
 */
#include "base/log.h"
#include "base/sys.h"
#include "store/hard_internal.h"

#include <fcntl.h>
#include <string.h>

#define CHAINS_MIN   64
#define RELIEF_BYTES 4096 /* room that is made on a disk that hard extents have overfilled */

/* ---- the table ---- */

void hard_table_init(struct store *s)
{
    s->hard = calloc(1, sizeof(*s->hard));
    if (!s->hard)
        abort();
    for (size_t i = 0; i < HARD_SHARDS; i++) {
        struct hard_shard *t = &s->hard->shards[i];
        lock_init(&t->lock, LOCK_STORE);
        cond_init(&t->idle);
        t->n_chains = CHAINS_MIN;
        t->chains = calloc(t->n_chains, sizeof(t->chains[0]));
        if (!t->chains)
            abort();
    }
}

static void hard_free(struct hard *h)
{
    assert(h->magic == HARD_MAGIC && h->refs == 0 && !h->busy && h->write_fd < 0);
    if (h->fd >= 0)
        (void)sys->close(h->fd);
    hard_sums_free(h->sums);
    h->magic = 0;
    free(h);
}

void hard_table_fini(struct store *s)
{
    for (size_t i = 0; s->hard && i < HARD_SHARDS; i++) {
        struct hard_shard *t = &s->hard->shards[i];
        for (size_t c = 0; c < t->n_chains; c++) {
            while (t->chains[c]) {
                struct hard *h = t->chains[c];
                t->chains[c] = h->chain;
                hard_free(h);
            }
        }
        free(t->chains);
        lock_fini(&t->lock);
        cond_fini(&t->idle);
    }
    free(TAKE_PTR(s->hard));
}

struct hard_shard *hard_shard_of(const struct store *s, struct id128 id)
{
    /* The first byte names a directory, of which the pool fills one at a time. */
    return &s->hard->shards[id.b[15] % HARD_SHARDS];
}

static struct hard **chain_of(struct hard_shard *t, struct id128 id)
{
    uint64_t h;
    memcpy(&h, id.b + 4, sizeof(h)); /* ids are random */
    return &t->chains[h % t->n_chains];
}

static struct hard *lookup_locked(struct hard_shard *t, struct id128 id)
{
    struct hard *h = *chain_of(t, id);
    while (h && !id_eq(h->id, id))
        h = h->chain;
    return h;
}

static void grow_locked(struct hard_shard *t)
{
    struct hard **old = t->chains;
    size_t n_old = t->n_chains;
    t->n_chains = 2 * n_old;
    t->chains = calloc(t->n_chains, sizeof(t->chains[0]));
    if (!t->chains)
        abort();
    for (size_t c = 0; c < n_old; c++) {
        while (old[c]) {
            struct hard *h = old[c];
            old[c] = h->chain;
            struct hard **chain = chain_of(t, h->id);
            h->chain = *chain;
            *chain = h;
        }
    }
    free(old);
}

static void insert_locked(struct hard_shard *t, struct hard *h)
{
    assert(!lookup_locked(t, h->id));
    if (t->n >= t->n_chains)
        grow_locked(t);
    struct hard **chain = chain_of(t, h->id);
    h->chain = *chain;
    *chain = h;
    t->n++;
}

static void unchain_locked(struct hard_shard *t, struct hard *h)
{
    struct hard **at = chain_of(t, h->id);
    while (*at && *at != h)
        at = &(*at)->chain;
    if (!*at)
        return;
    *at = h->chain;
    h->chain = NULL;
    t->n--;
}

static struct hard *alloc_hard(struct disk *d, struct id128 id)
{
    struct hard *h = calloc(1, sizeof(*h));
    if (!h)
        abort();
    *h = (struct hard){
        .magic = HARD_MAGIC, .store = d->store, .disk = d, .id = id, .refs = 1, .fd = -1, .write_fd = -1};
    return h;
}

static void count_unsettled(struct disk *d, int n)
{
    LOCK_SCOPE(&d->lock);
    d->hard->unsettled += (uint64_t)(int64_t)n;
}

void hard_set_twice_locked(struct hard *h, bool counts_twice)
{
    LOCK_SCOPE(&h->disk->lock);
    h->disk->hard->twice += (uint64_t)counts_twice - (uint64_t)h->counts_twice;
    h->counts_twice = counts_twice;
}

static void count_bytes(struct disk *d, int64_t n)
{
    LOCK_SCOPE(&d->lock);
    d->hard->bytes += (uint64_t)n;
}

/* Sets the count of what the file occupies; of a sealed one only where that is what its hard record says. */
static void account(struct hard *h, uint64_t allocated, bool also_sealed)
{
    struct hard_shard *t = hard_shard_of(h->store, h->id);
    struct disk *d = h->disk;
    lock_take(&t->lock);
    if (h->sealed && !also_sealed) {
        lock_drop(&t->lock); /* it was looked at before */
        return;
    }
    uint64_t before = h->charged, written = h->written, now = MAX(allocated, h->ahead);
    h->charged = now;
    h->written = h->allocated = allocated;
    h->grown = 0;
    lock_drop(&t->lock);
    if (now > before)
        space_grow(d, now - before);
    if (allocated == 0) /* the file system has them back */
        space_give(d, before - MIN(before, now), written, 0);
    else if (now < before)
        space_give(d, before - now, 0, 0);
    if (allocated > 0 && allocated != written)
        space_written(d, (int64_t)(allocated - written));
    if (now != before)
        count_bytes(d, (int64_t)(now - before));
}

/* It is not in the table any more, and counts no more. */
static void forget(struct hard *h)
{
    account(h, 0, /* also_sealed= */ true);
    hard_set_twice_locked(h, false);
    if (!h->sealed)
        count_unsettled(h->disk, -1);
}

/* Into the table, in the place of one that was found by a location of before the id was given back to the
 * pool. NULL, and h is freed, while somebody holds that one, unless the file has been replaced. */
static struct hard *add_new(struct hard *h, int fd, bool is_replaced)
{
    struct disk *d = h->disk;
    struct hard_shard *t = hard_shard_of(d->store, h->id);
    h->fd = fd;
    count_unsettled(d, 1);
    lock_take(&t->lock);
    struct hard *stale = lookup_locked(t, h->id);
    bool held = stale && stale->refs > 0, fits = !held || is_replaced;
    if (stale && fits) {
        unchain_locked(t, stale);
        stale->removed = true; /* goes with its last reference */
    }
    if (fits)
        insert_locked(t, h);
    lock_drop(&t->lock);
    if (stale && !held) {
        forget(stale);
        hard_free(stale);
    }
    if (fits)
        return h;
    count_unsettled(d, -1);
    h->refs = 0;
    h->fd = -1; /* the caller's again */
    hard_free(h);
    return NULL;
}

struct hard *hard_new(struct disk *d, struct id128 id, int fd)
{
    struct hard *h = alloc_hard(d, id);
    h->pristine = h->blank = h->run_ok = true;
    return add_new(h, fd, /* is_replaced= */ false);
}

struct hard *hard_new_written(struct disk *d, struct id128 id, int fd, uint64_t bytes)
{
    struct hard *h = alloc_hard(d, id);
    h->handed = true;
    h->charged = h->written = h->allocated = bytes;
    count_bytes(d, (int64_t)bytes);
    return add_new(h, fd, /* is_replaced= */ true);
}

bool hard_is_known(struct disk *d, struct id128 id)
{
    struct hard_shard *t = hard_shard_of(d->store, id);
    LOCK_SCOPE(&t->lock);
    return lookup_locked(t, id) != NULL;
}

void hard_wait_idle_locked(struct hard_shard *t, struct hard *h)
{
    while (h->busy)
        cond_wait(&t->idle, &t->lock);
}

void hard_set_sealed_locked(struct hard *h, bool sealed)
{
    if (h->sealed != sealed)
        count_unsettled(h->disk, sealed ? -1 : 1);
    h->sealed = sealed;
    if (sealed)
        hard_set_twice_locked(h, false);
}

void hard_note_removed(struct hard *h)
{
    struct hard_shard *t = hard_shard_of(h->store, h->id);
    LOCK_SCOPE(&t->lock);
    h->removed = true;
}

void hard_drop_sums_locked(struct hard *h)
{
    hard_sums_free(TAKE_PTR(h->sums));
    h->measured = false;
}

/* ---- locations ---- */

void hard_path(const struct disk *d, struct id128 id, char ret[DISK_PATH_MAX])
{
    char hex[ID_TEXT_SIZE];
    id_text(id, hex);
    int n = snprintf(ret, DISK_PATH_MAX, "%s/hard/%.2s/%s", d->path, hex, hex);
    assert(n > 0 && n < DISK_PATH_MAX);
}

enum location_offset { LOCATION_FORMAT = 0, LOCATION_DISK = 1, LOCATION_DATA = 17 };
static_assert(LOCATION_DATA + sizeof(struct id128) == HARD_LOCATION_BYTES, "location");
#define LOCATION_VERSION 1

void hard_location_of(const struct disk *d, struct id128 id, uint8_t ret[HARD_LOCATION_BYTES])
{
    ret[LOCATION_FORMAT] = LOCATION_VERSION;
    memcpy(ret + LOCATION_DISK, d->id.b, sizeof(d->id.b));
    memcpy(ret + LOCATION_DATA, id.b, sizeof(id.b));
}

void hard_location(const struct hard *h, uint8_t ret[HARD_LOCATION_BYTES])
{
    assert(h && h->magic == HARD_MAGIC);
    hard_location_of(h->disk, h->id, ret);
}

int hard_parse(struct store *s, struct slice location, struct disk **ret_disk, struct id128 *ret_id,
               struct err *e)
{
    struct id128 disk, id;
    if (location.n != HARD_LOCATION_BYTES || location.p[LOCATION_FORMAT] != LOCATION_VERSION)
        return err_set(e, ERR_CORRUPT, "location of a hard extent: %zu bytes that are none", location.n);
    memcpy(disk.b, location.p + LOCATION_DISK, sizeof(disk.b));
    memcpy(id.b, location.p + LOCATION_DATA, sizeof(id.b));
    for (size_t i = 0; i < s->n_disks; i++) {
        if (id_eq(s->disks[i].id, disk)) {
            *ret_disk = &s->disks[i];
            *ret_id = id;
            return 0;
        }
    }
    char hex[ID_TEXT_SIZE];
    id_text(disk, hex);
    return err_set(e, -ENODEV, "the disk with id %s is not among those given with --disk", hex);
}

/* ---- getting one ---- */

/* What is read without the lock while h is busy, and taken over under it. */
struct loaded {
    bool fresh, open; /* what is wanted */
    bool head_may_exist, sealed;
    bool is_counted; /* by the disk's count record, whose part it is */
    uint64_t allocated;
    int fd;
};

uint64_t hard_file_bytes(const struct disk *d, struct id128 id)
{
    char path[DISK_PATH_MAX];
    struct stat st;
    hard_path(d, id, path);
    return sys->stat(path, &st) == 0 ? hard_bytes_of(&st) : 0;
}

static int load_head(const struct hard *h, struct loaded *l)
{
    struct format_hard head = {0};
    int r = hard_head(h->disk, h->id, &head);
    if (r == -EBADMSG) {
        char hex[ID_TEXT_SIZE];
        id_text(h->id, hex);
        log_warn("store", "disk %s: the hard record of %s is damaged; its checksums are lost", h->disk->path,
                 hex);
        head.allocated_bytes = hard_file_bytes(h->disk, h->id);
    }
    l->head_may_exist = r != -ENOENT;
    l->sealed = r == 0;
    l->is_counted = r == 0 || r == -EBADMSG;
    l->allocated = head.allocated_bytes;
    return r == -ENOENT || r == -EBADMSG ? 0 : r;
}

/* By the one who made h busy. */
static int load(const struct hard *h, struct loaded *l)
{
    l->fd = -1;
    int r = l->fresh ? load_head(h, l) : 0;
    if (r < 0 || !l->open)
        return r;
    char path[DISK_PATH_MAX];
    hard_path(h->disk, h->id, path);
    int fd = sys->open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW, 0);
    if (fd < 0)
        return fd;
    l->fd = fd;
    return 0;
}

static void loaded(struct hard_shard *t, struct hard *h, const struct loaded *l, int r)
{
    LOCK_SCOPE(&t->lock);
    h->busy = false;
    cond_broadcast(&t->idle);
    h->lost = r < 0 && l->fresh;
    if (h->lost)
        unchain_locked(t, h);
    if (r < 0)
        return;
    if (l->open)
        h->fd = l->fd;
    if (!l->fresh)
        return;
    h->head_may_exist = l->head_may_exist;
    h->sealed = l->sealed;
    h->stale_chunks = h->dirty = true;
    if (l->is_counted)
        h->charged = h->written = h->allocated = l->allocated;
    if (!h->sealed)
        count_unsettled(h->disk, 1);
    hard_set_twice_locked(h, l->is_counted && !l->sealed);
}

/* Counts what an unsettled extent occupies that was not known before. */
static void account_new(struct hard *h)
{
    struct stat st;
    if (!hard_is_sealed(h) && h->fd >= 0 && sys->fstat(h->fd, &st) == 0)
        hard_account(h, hard_bytes_of(&st));
}

static int get_error(struct hard *h, int r, struct err *e)
{
    char hex[ID_TEXT_SIZE];
    struct disk *d = h->disk;
    id_text(h->id, hex);
    hard_unref(h);
    return err_errno(e, r, "disk %s: hard extent %s", d->path, hex);
}

int hard_get(struct disk *d, struct id128 id, bool open, struct hard **ret, struct err *e)
{
    struct hard_shard *t = hard_shard_of(d->store, id);
    for (;;) {
        lock_take(&t->lock);
        struct hard *h = lookup_locked(t, id);
        bool fresh = !h;
        if (fresh) {
            h = alloc_hard(d, id);
            insert_locked(t, h);
        } else {
            h->refs++;
            hard_wait_idle_locked(t, h);
        }
        bool again = h->lost, gone = h->removed && open;
        struct loaded l = {.fresh = fresh, .open = open && h->fd < 0 && !h->removed};
        bool loads = (l.fresh || l.open) && !again;
        h->busy |= loads;
        lock_drop(&t->lock);
        if (again) {
            hard_unref(h);
            continue;
        }
        int r = loads ? load(h, &l) : gone ? -ENOENT : 0;
        if (loads)
            loaded(t, h, &l, r);
        if (r < 0)
            return get_error(h, r, e);
        if (fresh)
            account_new(h);
        *ret = h;
        return 0;
    }
}

int hard_find(struct store *s, struct slice location, struct hard **ret, struct err *e)
{
    assert(s && ret);
    struct disk *d = NULL;
    struct id128 id;
    int r = hard_parse(s, location, &d, &id, e);
    return r < 0 ? r : hard_get(d, id, /* open= */ true, ret, e);
}

/* ---- references ---- */

struct hard *hard_ref(struct hard *h)
{
    assert(h && h->magic == HARD_MAGIC);
    struct hard_shard *t = hard_shard_of(h->store, h->id);
    LOCK_SCOPE(&t->lock);
    assert(h->refs > 0);
    h->refs++;
    return h;
}

/* What nobody needs while an unsettled extent is not referenced. */
static int shrink_locked(struct hard *h)
{
    if (h->sums && h->sums->v != &h->sums->one) {
        hard_drop_sums_locked(h);
        h->run_ok = false;
    }
    h->pristine = false;
    return TAKE_FD(h->fd);
}

void hard_unref(struct hard *h)
{
    if (!h)
        return;
    assert(h->magic == HARD_MAGIC);
    struct hard_shard *t = hard_shard_of(h->store, h->id);
    lock_take(&t->lock);
    assert(h->refs > 0);
    if (--h->refs > 0) {
        lock_drop(&t->lock);
        return;
    }
    assert(h->writers == 0 && !h->busy);
    bool removed = h->removed, goes = removed || h->lost || h->sealed || h->store->read_only;
    int fd = -1;
    if (goes)
        unchain_locked(t, h);
    else
        fd = shrink_locked(h);
    lock_drop(&t->lock);
    if (removed)
        forget(h);
    if (goes)
        hard_free(h);
    else if (fd >= 0)
        (void)sys->close(fd);
}

bool hard_is_open(struct hard *h)
{
    assert(h && h->magic == HARD_MAGIC);
    int r = sys->setlease(h->fd, F_WRLCK);
    if (r == 0)
        (void)sys->setlease(h->fd, F_UNLCK);
    return r == -EAGAIN;
}

bool hard_is_untouched(const struct hard *h, const struct stat *st)
{
    return h->blank && h->has_blank_time && st->st_size == 0 && st->st_blocks == 0 &&
           st->st_mtim.tv_sec * 1000000000 + st->st_mtim.tv_nsec == h->blank_mtime_ns;
}

/* Whether it is empty, was never written, and nobody has it open, for which a write lease asks. A file that
 * was written and truncated could have its bytes back after power loss; but writing sets its time. */
static bool is_blank(struct hard *h)
{
    struct stat st;
    return h->fd >= 0 && sys->fstat(h->fd, &st) == 0 && hard_is_untouched(h, &st) &&
           sys->setlease(h->fd, F_WRLCK) == 0 && sys->setlease(h->fd, F_UNLCK) == 0;
}

bool hard_forget(struct hard *h)
{
    struct hard_shard *t = hard_shard_of(h->store, h->id);
    uint64_t changes = __atomic_load_n(&h->changes, __ATOMIC_ACQUIRE);
    bool blank = is_blank(h);
    lock_take(&t->lock);
    bool pristine = (h->pristine || (blank && h->changes == changes && !h->head_may_exist)) && h->refs == 1 &&
                    h->charged == 0;
    if (pristine)
        unchain_locked(t, h);
    lock_drop(&t->lock);
    if (!pristine) {
        hard_unref(h);
        return false;
    }
    count_unsettled(h->disk, -1);
    h->refs = 0;
    hard_free(h);
    return true;
}

/* ---- what callers may ask ---- */

int hard_fd(const struct hard *h)
{
    assert(h && h->magic == HARD_MAGIC);
    return h->fd;
}

int hard_stat(struct hard *h, struct stat *ret)
{
    assert(h && h->magic == HARD_MAGIC);
    return sys->fstat(h->fd, ret);
}

bool hard_is_sealed(struct hard *h)
{
    assert(h && h->magic == HARD_MAGIC);
    struct hard_shard *t = hard_shard_of(h->store, h->id);
    LOCK_SCOPE(&t->lock);
    return h->sealed;
}

void hard_place(const struct hard *h, struct store_place *ret)
{
    assert(h && h->magic == HARD_MAGIC);
    (void)snprintf(ret->disk, sizeof(ret->disk), "%s", h->disk->path);
    hard_path(h->disk, h->id, ret->file);
}

int hard_open_path(struct hard *h, int flags)
{
    char path[DISK_PATH_MAX];
    hard_path(h->disk, h->id, path);
    int fd = sys->open(path, flags | O_CLOEXEC | O_NOFOLLOW, 0);
    if (fd != -ENOENT)
        return fd;
    /* Removed since: the descriptor that is still open leads to the file. */
    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", h->fd);
    return sys->open(path, flags | O_CLOEXEC, 0);
}

int hard_open_ahead(struct hard *h)
{
    assert(h && h->magic == HARD_MAGIC);
    return hard_open_path(h, O_RDWR);
}

void hard_hand_out(struct hard *h)
{
    assert(h && h->magic == HARD_MAGIC);
    struct hard_shard *t = hard_shard_of(h->store, h->id);
    LOCK_SCOPE(&t->lock);
    assert(h->writers > 0);
    h->pristine = false;
    h->handed = h->dirty = true;
    h->run_ok = false;
}

int hard_open_fd(struct hard *h, int flags)
{
    assert(h && h->magic == HARD_MAGIC);
    int mode = flags & O_ACCMODE;
    assert(mode == O_RDONLY || mode == O_RDWR);
    if (mode == O_RDWR) {
        hard_hand_out(h);
        return hard_open_path(h, mode);
    }
    struct hard_shard *t = hard_shard_of(h->store, h->id);
    lock_take(&t->lock);
    h->pristine = false;
    lock_drop(&t->lock);
    return hard_open_path(h, mode);
}

/* ---- space ---- */

void hard_account(struct hard *h, uint64_t allocated)
{
    account(h, allocated, /* also_sealed= */ false);
}

void hard_account_sealed(struct hard *h, uint64_t allocated)
{
    account(h, allocated, /* also_sealed= */ true);
}

uint64_t hard_lend_room(struct hard *h, uint64_t bytes)
{
    struct hard_shard *t = hard_shard_of(h->store, h->id);
    struct disk *d = h->disk;
    lock_take(&t->lock);
    uint64_t lent = h->sealed ? 0 : MIN(bytes, h->charged), written = MIN(lent, h->written);
    h->charged -= lent;
    h->written -= written;
    lock_drop(&t->lock);
    count_bytes(d, -(int64_t)lent);
    space_written(d, -(int64_t)written);
    return lent;
}

int hard_reserve(struct hard *h, uint64_t bytes)
{
    assert(h && h->magic == HARD_MAGIC);
    struct hard_shard *t = hard_shard_of(h->store, h->id);
    struct disk *d = h->disk;
    lock_take(&t->lock);
    assert(h->writers > 0);
    uint64_t more = bytes - MIN(bytes, h->charged);
    lock_drop(&t->lock);
    if (more > 0 && space_take(d, more, HARD_NO_SET, SLICE_NULL, /* force= */ true) < 0)
        return ERR_NOT_ADMITTED;
    count_bytes(d, (int64_t)more);
    LOCK_SCOPE(&t->lock);
    h->charged += more;
    h->ahead = MAX(h->ahead, bytes);
    return 0;
}

/* Up to max unsettled extents from where the last look ended, each with a reference. */
static size_t collect(struct disk *d, struct hard **v, size_t max)
{
    struct hard_disk *hd = d->hard;
    size_t n = 0;
    for (unsigned seen = 0; seen <= HARD_SHARDS && n < max; seen++) {
        struct hard_shard *t = &d->store->hard->shards[hd->watch_shard % HARD_SHARDS];
        lock_take(&t->lock);
        for (; hd->watch_chain < t->n_chains && n < max; hd->watch_chain++) {
            for (struct hard *h = t->chains[hd->watch_chain]; h && n < max; h = h->chain) {
                if (h->disk != d || h->sealed || h->busy || h->removed)
                    continue;
                h->refs++;
                v[n++] = h;
            }
        }
        if (hd->watch_chain >= t->n_chains) {
            hd->watch_chain = 0;
            hd->watch_shard++;
        }
        lock_drop(&t->lock);
    }
    return n;
}

void hard_watch(struct disk *d)
{
    struct hard *v[HARD_WATCH_MAX];
    lock_take(&d->lock);
    bool any = d->hard->unsettled > 0;
    bool over = d->hard->bytes > 0 && d->used_bytes > d->limit_bytes;
    lock_drop(&d->lock);
    size_t n = any ? collect(d, v, ARRAY_SIZE(v)) : 0;
    for (size_t i = 0; i < n; i++) {
        char path[DISK_PATH_MAX];
        struct stat st;
        hard_path(d, v[i]->id, path);
        if (sys->stat(path, &st) == 0)
            hard_account(v[i], hard_bytes_of(&st));
        hard_unref(v[i]);
    }
    /* What could not be evicted when they grew, because it was in use. */
    if (over && space_take(d, RELIEF_BYTES, HARD_NO_SET, SLICE_NULL, /* force= */ true) == 0)
        space_give(d, RELIEF_BYTES, 0, 0);
}

void hard_status(struct disk *d, struct store_disk_status *ret)
{
    LOCK_SCOPE(&d->lock);
    ret->hard_bytes = d->hard->bytes;
    ret->hard_unsettled = d->hard->unsettled;
    ret->hard_extents = d->hard->count.extents + d->hard->unsettled - d->hard->twice;
}

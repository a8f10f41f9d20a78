/*
 * The store as a whole: opening and closing, finding, making and removing entries.
 *
 * Memory. Of memory_bytes five sixteenths go to the caches of the indexes, which take up to twice that
 * because their blocks are allocated and freed by different threads (measured with two arenas), an eighth to
 * their write buffers (each at least 2 MiB per disk), a quarter to extents that are kept after their
 * last reference; what referenced extents need is bounded by the callers, who bound their number. Of the
 * descriptors that the process may have, at most a quarter are kept for extents that nobody uses now.
 */
#include "base/hash.h"
#include "base/log.h"
#include "base/sys.h"
#include "store/hard_internal.h"
#include "store/placement.h"

#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/resource.h>

#define FDS_MAX (32 * 1024) /* descriptors of extents that nobody uses now */

/* ---- opening and closing ---- */

static void set_limits(struct store *s)
{
    struct rlimit fds;
    uint64_t n_fds = getrlimit(RLIMIT_NOFILE, &fds) == 0 ? fds.rlim_cur : 1024;
    s->lru_bytes_max = s->config.memory_bytes / 4 / TABLE_SHARDS;
    descriptors_init(s, (size_t)MIN(n_fds / 4, (uint64_t)FDS_MAX));
}

static void store_free(struct store *s)
{
    table_fini(s);
    hard_table_fini(s);
    for (size_t i = 0; i < s->n_disks; i++)
        disk_fini(&s->disks[i]);
    space_end(s);
    evict_sets_free(s->sets);
    descriptors_fini(s);
    lock_fini(&s->sets_lock);
    lock_fini(&s->gone_lock);
    free(s->disks);
    free(s);
}

static void stop_disks(struct store *s, bool clean)
{
    for (size_t i = 0; i < s->n_disks; i++)
        disk_stop(&s->disks[i], clean);
}

static int check_config(const struct store_config *c, struct err *e)
{
    if (c->n_disks < 1 || c->n_disks > STORE_DISKS_MAX)
        return err_set(e, -EINVAL, "%zu disks: between 1 and %d are possible", c->n_disks, STORE_DISKS_MAX);
    for (size_t i = 0; i < c->n_disks; i++)
        for (size_t k = 0; k < i; k++)
            if (strcmp(c->disks[i].path, c->disks[k].path) == 0)
                return err_set(e, -EINVAL, "disk %s: given twice", c->disks[i].path);
    return 0;
}

static int open_disks(struct store *s, const struct store_config *config, struct err *e)
{
    for (size_t i = 0; i < config->n_disks; i++) {
        struct disk *d = &s->disks[i];
        d->store = s;
        d->index = (uint32_t)i;
        s->n_disks = i + 1;
        int r = disk_open(d, &config->disks[i], e);
        if (r < 0)
            return r;
        for (size_t k = 0; k < i; k++)
            if (id_eq(s->disks[k].id, d->id))
                return err_set(e, -EINVAL, "disks %s and %s have the same id; is one a copy?",
                               s->disks[k].path, d->path);
    }
    return 0;
}

int store_open(const struct store_config *config, struct store **ret, struct err *e)
{
    assert(config && ret);
    int r = check_config(config, e);
    if (r < 0)
        return r;
    struct store *s = calloc(1, sizeof(*s));
    if (!s)
        abort();
    s->config = *config;
    s->config.disks = NULL; /* the caller's */
    s->read_only = config->read_only;
    lock_init(&s->sets_lock, LOCK_LEAF);
    lock_init(&s->gone_lock, LOCK_DISK); /* below it others' LEAF locks are taken, and above it a shard's */
    table_init(s);
    hard_table_init(s);
    set_limits(s);
    s->disks = calloc(config->n_disks, sizeof(s->disks[0]));
    if (!s->disks)
        abort();
    r = open_disks(s, config, e);
    if (r == 0)
        r = space_begin(s, config, e);
    if (r == 0)
        r = recover_sets(s, e);
    for (size_t i = 0; i < s->n_disks && r == 0 && !s->read_only; i++)
        r = disk_start(&s->disks[i], e);
    if (r < 0) {
        for (size_t i = 0; i < s->n_disks; i++)
            disk_leave(&s->disks[i]);
        stop_disks(s, /* clean= */ false);
        store_free(s);
        return r;
    }
    *ret = s;
    return 0;
}

void store_close(struct store *s)
{
    if (!s)
        return;
    stop_disks(s, /* clean= */ !s->read_only);
    store_free(s);
}

void store_abandon(struct store *s)
{
    if (!s)
        return;
    stop_disks(s, /* clean= */ false);
    store_free(s);
}

void store_on_evict(struct store *s, store_keep_fn keep, store_removed_fn removed, void *arg)
{
    s->keep = keep;
    s->removed = removed;
    s->keep_arg = arg;
}

void store_on_gone(struct store *s, store_gone_fn fn, void *arg)
{
    LOCK_SCOPE(&s->gone_lock); /* the flushers go on */
    s->on_gone = fn;
    s->on_gone_arg = arg;
}

bool store_tell_gone(struct store *s, struct slice key)
{
    LOCK_SCOPE(&s->gone_lock);
    return s->on_gone && s->on_gone(s->on_gone_arg, key);
}

/* ---- finding ---- */

void store_place(struct store *s, struct slice key, uint32_t *ret_order)
{
    struct placement_place places[STORE_DISKS_MAX];
    if (s->n_disks == 1) {
        ret_order[0] = 0;
        return;
    }
    for (size_t i = 0; i < s->n_disks; i++)
        places[i] = (struct placement_place){s->disks[i].id, s->disks[i].weight};
    placement_order(places, s->n_disks, key, ret_order);
}

static bool key_is_valid(struct slice key)
{
    return key.n > 0 && key.n <= STORE_KEY_MAX_BYTES;
}

int store_find(struct store *s, struct slice key, struct extent **ret)
{
    assert(s && ret);
    if (!key_is_valid(key))
        return -ENOENT;
    struct extent *x = table_find(s, key, hash_table(key));
    if (!x) {
        struct key_owner o;
        table_begin(s, key, &o);
        x = table_find(s, key, o.hash);
        int r = x ? 0 : load_extent(s, key, o.hash, &x);
        table_end(s, &o);
        if (r < 0)
            return r;
    }
    *ret = x;
    return 0;
}

int store_find_used(struct store *s, struct slice key, struct extent **ret)
{
    bool referenced = false;
    uint64_t last_read_ms, hash = hash_table(key);
    if (!key_is_valid(key) || !table_peek(s, key, hash, &referenced, &last_read_ms) || !referenced)
        return -ENOENT;
    struct extent *x = table_find(s, key, hash);
    if (!x)
        return -ENOENT;
    *ret = x;
    return 0;
}

/* ---- making ---- */

static int check_new(const struct store_new *n, struct err *e)
{
    if (!key_is_valid(n->key))
        return err_set(e, -EINVAL, "key of %zu bytes: between 1 and %llu are possible", n->key.n,
                       (unsigned long long)STORE_KEY_MAX_BYTES);
    if (n->attr.n > STORE_ATTR_MAX_BYTES)
        return err_set(e, -E2BIG, "attributes of %zu bytes: at most %llu are possible", n->attr.n,
                       (unsigned long long)STORE_ATTR_MAX_BYTES);
    if (n->size_bytes > STORE_SIZE_MAX_BYTES)
        return err_set(e, -EFBIG, "object too large");
    return 0;
}

static uint32_t data_set_of(struct store *s, struct slice key, struct slice marked)
{
    LOCK_SCOPE(&s->sets_lock);
    return evict_set_of(s->sets, key, marked, store_now_ms());
}

/* Another name for the file of a hard extent. By way of a new one, so that there is a directory for it. */
static int link_file(struct disk *d, struct id128 id, struct hard *from)
{
    char path[DISK_PATH_MAX];
    disk_extent_path(d, id, path);
    int fd = disk_create_file(d, id);
    if (fd < 0)
        return fd;
    (void)sys->close(fd);
    int r = sys->unlink(path);
    r = r < 0 ? r : hard_link_into(from, path);
    return r < 0 ? r : sys->open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0);
}

/* Makes the marker, the file and the extent. On failure nothing is left but perhaps the marker, which stays
 * when the file cannot be removed. from: NULL, or whose file it is to be, of `size` bytes. */
static int make_extent(struct disk *d, uint64_t size, bool in_use, struct hard *from, struct extent **ret,
                       struct err *e)
{
    struct id128 id;
    bool is_left = false;
    int r = disk_mark_birth(d, &id, e);
    if (r < 0)
        return err_prefix(e, r, "disk %s: index", d->path);
    int fd = from ? link_file(d, id, from) : disk_create_file(d, id);
    r = fd < 0 ? fd : size > 0 && !from ? sys->ftruncate(fd, size) : 0;
    if (r < 0) {
        if (fd >= 0 || from) {
            char path[DISK_PATH_MAX];
            disk_extent_path(d, id, path);
            if (fd >= 0)
                (void)sys->close(fd);
            int gone = sys->unlink(path);
            is_left = gone < 0 && gone != -ENOENT;
        }
        if (!is_left)
            disk_unmark_birth(d, id);
        return err_errno(e, r, "disk %s: create an extent file", d->path);
    }
    *ret = extent_new(d, id, size);
    descriptors_add(*ret, fd, in_use);
    return 0;
}

static int disk_for_new(struct store *s, struct slice key, struct disk **ret, struct err *e)
{
    uint32_t order[STORE_DISKS_MAX];
    if (s->read_only)
        return err_set(e, -EROFS, "the store is open read-only");
    store_place(s, key, order);
    struct disk *d = &s->disks[order[0]];
    int r = writer_check(d, e);
    if (r < 0)
        return r;
    writer_throttle(d);
    *ret = d;
    return 0;
}

/* x becomes the current extent of its key. By the key's owner, after the former one died. */
static void install(struct extent *x)
{
    struct store *s = x->store;
    lock_take(&x->disk->lock);
    x->disk->extents++;
    lock_drop(&x->disk->lock);
    lock_take(&s->sets_lock);
    evict_set_grow(s->sets, x->data_set, (int64_t)extent_size(x));
    /* Made because somebody reads it: when its key was evicted not long ago, that tells the interval. */
    uint64_t former = evict_former_read(s->sets, x->key);
    if (former > 0)
        evict_set_read(s->sets, x->data_set, former, store_now_ms(), 0);
    lock_drop(&s->sets_lock);
    table_insert(s, x);
    writer_queue(x);
}

int store_create(struct store *s, const struct store_new *n, struct extent **ret, struct err *e)
{
    assert(s && n && ret);
    struct disk *d = NULL;
    struct extent *x = NULL;
    int r = check_new(n, e);
    if (r == 0)
        r = disk_for_new(s, n->key, &d, e);
    if (r < 0)
        return r;
    uint32_t data_set = data_set_of(s, n->key, n->data_set);
    uint64_t charge = MIN(format_charge(n->size_bytes, format_blocks(n->size_bytes)), CHARGE_AHEAD_MAX);
    r = space_take(d, charge, data_set, n->key, n->pinned_admission);
    if (r < 0)
        return err_set(e, r, "disk %s: no room for %s", d->path,
                       format_key_text(n->key, (char[FORMAT_KEY_TEXT_MAX]){0}));
    r = make_extent(d, n->size_bytes, /* in_use= */ false, /* from= */ NULL, &x, e);
    if (r < 0) {
        space_give(d, charge, 0, 0);
        return r;
    }
    x->charged = charge;
    x->data_set = data_set;
    x->forced = n->pinned_admission;
    x->last_read_ms = x->set_read_ms = x->recorded_read_ms = store_now_ms();
    extent_copy_attr_locked(x, n->attr);

    struct key_owner o;
    table_begin(s, n->key, &o);
    r = doom_key(s, n->key, o.hash);
    if (r == 0 || r == -ENOENT) {
        extent_set_key(x, n->key, o.hash);
        install(x);
        r = 0;
    }
    table_end(s, &o);
    if (r < 0) {
        x->staged = true; /* its file and marker go with it */
        extent_unref(x);
        return err_errno(e, r, "disk %s: index", d->path);
    }
    *ret = x;
    return 0;
}

/* from: as of make_extent, on the disk d. */
static int stage_on(struct disk *d, struct slice key, uint64_t size, struct hard *from, struct extent **ret,
                    struct err *e)
{
    uint32_t data_set = data_set_of(d->store, key, SLICE_NULL);
    uint64_t charge = format_charge(size, format_blocks(size));
    charge = from ? charge : MIN(charge, CHARGE_AHEAD_MAX);
    uint64_t lent = from ? hard_lend_room(from, charge) : 0;
    int r = lent < charge ? space_take(d, charge - lent, data_set, key, /* force= */ true) : 0;
    if (r < 0) {
        space_give(d, lent, 0, 0);
        return err_set(e, r, "disk %s: no room for " SLICE_FMT, d->path, SLICE_ARG(key));
    }
    struct extent *x = NULL;
    uint64_t lost_flushes = disk_lost_flushes(d);
    r = make_extent(d, from ? size : 0, /* in_use= */ true, from, &x, e);
    if (r < 0) {
        space_give(d, charge, 0, 0);
        return r;
    }
    x->charged = charge;
    x->data_set = data_set;
    x->staged = x->forced = true;
    x->whole = false;
    x->lost_flushes = lost_flushes;
    *ret = x;
    return 0;
}

int store_stage(struct store *s, struct slice key, uint64_t size_hint, struct extent **ret, struct err *e)
{
    assert(s && ret);
    struct disk *d = NULL;
    int r = key_is_valid(key) ? disk_for_new(s, key, &d, e) : err_set(e, -EINVAL, "key too long or empty");
    return r < 0 ? r : stage_on(d, key, size_hint, /* from= */ NULL, ret, e);
}

int store_stage_hard(struct store *s, struct slice key, struct hard *h, uint64_t size_bytes,
                     const uint32_t *sums, struct extent **ret, struct err *e)
{
    assert(s && h->magic == HARD_MAGIC && ret);
    if (!key_is_valid(key) || size_bytes == 0 || size_bytes > STORE_SIZE_MAX_BYTES)
        return err_set(e, -EINVAL, "a key of %zu bytes, a size of %" PRIu64, key.n, size_bytes);
    int r = s->read_only ? err_set(e, -EROFS, "the store is open read-only") : writer_check(h->disk, e);
    if (r < 0)
        return r;
    r = stage_on(h->disk, key, size_bytes, h, ret, e);
    for (uint32_t i = 0; r == 0 && sums && i < (*ret)->n_blocks; i++)
        extent_block_filled(*ret, i, sums[i]);
    return r;
}

/* ---- removing ---- */

int store_remove(struct store *s, struct slice key)
{
    assert(s);
    if (!key_is_valid(key))
        return -ENOENT;
    struct key_owner o;
    table_begin(s, key, &o);
    int r = doom_key(s, key, o.hash);
    table_end(s, &o);
    return r;
}

void store_remove_extent(struct store *s, struct extent *x)
{
    assert(s && x && x->magic == EXTENT_MAGIC);
    if (__atomic_load_n(&x->staged, __ATOMIC_ACQUIRE))
        return; /* it goes with its last reference */
    struct key_owner o;
    table_begin(s, x->key, &o);
    if (!__atomic_load_n(&x->dead, __ATOMIC_ACQUIRE)) {
        /* The caller is a reader, too, and its file is kept open only for others than who dooms it. */
        extent_ref(x);
        doom_extent(x);
        extent_unref(x);
    }
    table_end(s, &o);
}

int store_drop_if_gone(struct store *s, struct slice key, struct disk *d, struct id128 id)
{
    struct buf _cleanup_buf_ b = BUF_INIT(STORE_ATTR_MAX_BYTES + FORMAT_ENTRY_HEAD_BYTES);
    struct format_entry r;
    struct key_owner o;
    table_begin(s, key, &o);
    struct extent *x = table_find(s, key, o.hash);
    int code = x ? 0 : load_record(d, key, &r, &b);
    bool is_it = x ? id_eq(x->id, id) : code == 0 && id_eq(r.id, id);
    if (is_it && x)
        doom_extent(x);
    else if (is_it)
        doom_record(d, key, &r);
    table_end(s, &o);
    extent_unref(x);
    return code < 0 && code != -ENOENT && code != -EBADMSG ? code : is_it;
}

int store_drop_if_damaged(struct store *s, struct slice key, struct disk *d)
{
    struct buf _cleanup_buf_ b = BUF_INIT(STORE_ATTR_MAX_BYTES + FORMAT_ENTRY_HEAD_BYTES);
    struct format_entry r;
    struct format_key k;
    struct key_owner o;
    format_key_bytes('o', key, &k);
    table_begin(s, key, &o);
    struct extent *x = table_find(s, key, o.hash);
    int code = kv_get(d->kv, format_key_view(&k), &b, NULL, NULL);
    bool is_bad =
        code == -EBADMSG || code == -E2BIG || (code == 0 && format_entry_decode(buf_view(&b), &r) < 0);
    if (is_bad && x && x->disk == d) {
        extent_record_anew(x);
    } else if (is_bad) {
        doom_bad_record(d, format_key_view(&k));
    }
    table_end(s, &o);
    extent_unref(x);
    return is_bad ? 1 : code == -ENOENT ? 0 : code;
}

uint64_t store_doubted_before_ns(const struct store *s)
{
    uint64_t last = 0;
    for (size_t i = 0; i < s->n_disks; i++)
        last = MAX(last, s->disks[i].doubted_before_ns);
    return last;
}

uint64_t store_n_forgetful(const struct store *s)
{
    return __atomic_load_n(&s->n_forgetful, __ATOMIC_ACQUIRE);
}

#define PREFIX_PAGE 256

/* One page of keys of one disk from *from on; moves *from behind them. Gives their number. */
static int64_t remove_page(struct store *s, struct disk *d, struct buf *from, struct slice to)
{
    char *keys[PREFIX_PAGE];
    size_t sizes[PREFIX_PAGE], n = 0;
    struct slice k, v;
    struct kv_iter *it = kv_iter_new(d->kv, buf_view(from), to);
    int r = 0;
    while (n < PREFIX_PAGE && (r = kv_iter_next(it, &k, &v, NULL)) == 0) {
        sizes[n] = k.n - 1;
        keys[n++] = slice_dup(slice_from(k, 1));
    }
    kv_iter_free(it);
    buf_clear(from);
    if (n > 0 && (buf_char(from, 'o') < 0 || buf_append(from, keys[n - 1], sizes[n - 1] + 1) < 0))
        abort(); /* its maximum is larger; the NUL behind the key makes it the next key */
    int64_t removed = 0;
    for (size_t i = 0; i < n; i++) {
        removed += store_remove(s, slice_of(keys[i], sizes[i])) == 0;
        free(keys[i]);
    }
    writer_throttle(d);
    if (r < 0 && r != -ENOENT)
        return r;
    return n == 0 ? -ENOENT : removed;
}

/* What is in memory and not in the indexes, when one cannot be written: nothing is made meanwhile. */
static int64_t remove_unrecorded(struct store *s, struct slice prefix)
{
    struct slice keys[PREFIX_PAGE];
    int64_t removed = 0, before;
    do {
        size_t n = table_keys(s, prefix, keys, PREFIX_PAGE);
        before = removed;
        for (size_t i = 0; i < n; i++) {
            removed += store_remove(s, keys[i]) == 0;
            free((char *)(uintptr_t)keys[i].p);
        }
    } while (removed > before);
    return removed;
}

int64_t store_remove_prefix(struct store *s, struct slice prefix)
{
    assert(s);
    if (prefix.n > STORE_KEY_MAX_BYTES)
        return 0;
    struct format_key k;
    struct buf _cleanup_buf_ from = BUF_INIT(FORMAT_KEY_MAX + 1), to = BUF_INIT(FORMAT_KEY_MAX + 1);
    format_key_bytes('o', prefix, &k);
    int r = kv_prefix_end(format_key_view(&k), &to);
    int64_t total = 0;
    for (size_t i = 0; i < s->n_disks && r == 0; i++) {
        /* What was made a moment ago must be in the index to be seen by the scan. */
        writer_drain(&s->disks[i]);
        buf_clear(&from);
        r = buf_slice(&from, format_key_view(&k));
        for (int64_t n; r == 0 && (n = remove_page(s, &s->disks[i], &from, buf_view(&to))) != -ENOENT;) {
            r = n < 0 ? (int)n : 0;
            total += MAX(n, 0);
        }
        if (r == 0 && writer_is_broken(&s->disks[i]))
            total += remove_unrecorded(s, prefix);
    }
    buf_fini(&to);
    return r < 0 ? r : total;
}

/* ---- looking after it ---- */

size_t store_n_disks(const struct store *s)
{
    return s->n_disks;
}

static uint64_t less(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

/* Others use the file system, too: what the limit leaves may not be there. */
static uint64_t room_of(const struct store_disk_status *st, uint64_t reserve)
{
    uint64_t there = less(st->used_bytes, st->hard_bytes) + less(st->free_bytes, reserve);
    return MIN(there, less(st->limit_bytes, st->hard_bytes));
}

int store_disk_status(struct store *s, size_t disk, struct store_disk_status *ret)
{
    if (disk >= s->n_disks)
        return -EINVAL;
    struct disk *d = &s->disks[disk];
    struct store_disk_status st = {.id = d->id, .limit_bytes = d->limit_bytes, .was_clean = d->was_clean};
    (void)snprintf(st.path, sizeof(st.path), "%s", d->path);
    int r = sys->statfs_free(d->path, &st.free_bytes, &st.total_bytes);
    if (r < 0)
        return r;
    st.index_entries = kv_estimate_keys(d->kv);
    lock_take(&d->lock);
    st.used_bytes = d->used_bytes;
    st.leased_bytes = d->leased_bytes;
    st.extents = d->extents;
    lock_drop(&d->lock);
    hard_status(d, &st);
    st.room_bytes = room_of(&st, s->config.reserve_bytes);
    *ret = st;
    return 0;
}

/* All disks of the file system that a disk is on, as if they were one; false: an earlier one is of them. */
static bool join_disks(struct store *s, size_t first, struct store_disk_status *ret)
{
    struct store_disk_status one, all = {0};
    for (size_t i = 0; i < first; i++)
        if (s->disks[i].file_system == s->disks[first].file_system)
            return false;
    for (size_t i = first; i < s->n_disks; i++) {
        if (s->disks[i].file_system != s->disks[first].file_system || store_disk_status(s, i, &one) < 0)
            continue;
        all.used_bytes += one.used_bytes;
        all.hard_bytes += one.hard_bytes;
        all.limit_bytes += one.limit_bytes;
        all.free_bytes = one.free_bytes;
        all.total_bytes = one.total_bytes;
    }
    *ret = all;
    return true;
}

void store_room(struct store *s, uint64_t *ret_total_bytes, uint64_t *ret_room_bytes)
{
    uint64_t total = 0, room = 0;
    struct store_disk_status d;
    for (size_t i = 0; i < s->n_disks; i++) {
        if (!join_disks(s, i, &d))
            continue;
        total += MIN(d.limit_bytes, less(d.total_bytes, s->config.reserve_bytes));
        room += room_of(&d, s->config.reserve_bytes);
    }
    *ret_total_bytes = total;
    *ret_room_bytes = room;
}

int store_flush(struct store *s, struct err *e)
{
    int result = 0;
    for (size_t i = 0; i < s->n_disks && !s->read_only; i++) {
        int r = flush_epoch(&s->disks[i], e);
        if (r < 0)
            result = r;
    }
    return result;
}

/* ---- reads, as the policy sees them ---- */

void extent_touch(struct extent *x, uint64_t n)
{
    assert(x && x->magic == EXTENT_MAGIC);
    uint64_t now = store_now_ms();
    uint64_t last = __atomic_load_n(&x->set_read_ms, __ATOMIC_RELAXED);
    uint64_t bytes = __atomic_add_fetch(&x->touched_bytes, n, __ATOMIC_RELAXED);
    __atomic_store_n(&x->last_read_ms, now, __ATOMIC_RELAXED);
    /* Reads of one pass over the extent are one read; whoever moves the time forward reports it. */
    if (now < last + TOUCH_INTERVAL_MS ||
        !__atomic_compare_exchange_n(&x->set_read_ms, &last, now, /* weak= */ false, __ATOMIC_RELAXED,
                                     __ATOMIC_RELAXED))
        return;
    __atomic_sub_fetch(&x->touched_bytes, bytes, __ATOMIC_RELAXED);
    struct store *s = x->store;
    LOCK_SCOPE(&s->sets_lock);
    evict_set_read(s->sets, __atomic_load_n(&x->data_set, __ATOMIC_RELAXED), last, now, bytes);
}

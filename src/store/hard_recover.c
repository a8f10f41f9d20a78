/*
 * Removing hard extents, and at start those that nobody names.
 *
 * Order of a removal, and what a crash leaves: the file gets its mark back, durably (one that was never
 * sealed has it); then it is unlinked; the mark goes with the next flush of the disk, which makes the unlink
 * durable. A crash in between leaves a marked file, or a mark without a file; the sweep at start removes
 * both.
 *
 * The sweep looks at marks only, never at all files: a file without a mark is sealed, or named by a writing
 * record for which the caller called hard_protect.
 *
 * When an index or the control store was opened without its last commits (kv_is_cut), a file that looks like
 * nobody's may be somebody's only copy: the caller looks for who names it (hard_unprotected, hard_protect),
 * and what has bytes and is named by nobody then is renamed into DISK/set-aside, which is synced before its
 * mark goes. The hard record of a file that a writing record names may be one of before it was written: it
 * goes. So may that of a file which was changed since the last epoch that the index knows of, and was sealed
 * again: the caller is told of those, too, and makes a writing record.
 *
 * Failure modes: a file that cannot be unlinked or renamed keeps its mark. A disk that does not sync keeps
 * all marks.
 */
#include "base/log.h"
#include "base/sys.h"
#include "store/hard_internal.h"

#include <dirent.h>
#include <errno.h>
#include <string.h>

#define MARKS_PER_COMMIT 1000
#define CLOCK_SLACK_NS   ((uint64_t)1000000000) /* times of files are those of the kernel's last tick */

/* ---- removing ---- */

/* One call of hard_remove. */
struct removal {
    struct hard *h;
    bool busy, done;
};

/* Makes an extent busy; with `wait`, waits for that. True when there is nothing (more) to be done with it. */
static bool begin_removal(struct removal *x, bool wait)
{
    struct hard *h = x->h;
    struct hard_shard *t = hard_shard_of(h->store, h->id);
    LOCK_SCOPE(&t->lock);
    if (wait)
        hard_wait_idle_locked(t, h);
    if (h->removed)
        return true;
    if (!h->busy)
        x->busy = h->busy = true;
    return false;
}

static void end_removal(struct removal *x, bool removed)
{
    struct hard *h = x->h;
    struct hard_shard *t = hard_shard_of(h->store, h->id);
    LOCK_SCOPE(&t->lock);
    h->busy = x->busy = false;
    h->removed = removed;
    /* A commit that failed may have taken the hard record away all the same. */
    if (!removed)
        hard_set_sealed_locked(h, false);
    cond_broadcast(&t->idle);
}

static int unlink_file(struct hard *h)
{
    char path[DISK_PATH_MAX];
    struct hard_shard *t = hard_shard_of(h->store, h->id);
    lock_take(&t->lock);
    uint64_t bytes = h->allocated;
    lock_drop(&t->lock);
    hard_path(h->disk, h->id, path);
    int r = late_unlink(h->disk, path, bytes);
    if (r < 0 && r != -ENOENT)
        return r;
    hard_gone(h->disk, h->id, h->stale_chunks);
    return 0;
}

/* Commits the marks of those of one disk that are busy, and unlinks their files. */
static int remove_on(struct disk *d, struct removal *v, size_t n, struct err *e)
{
    struct hard_change *changes = calloc(n + 1, sizeof(changes[0]));
    if (!changes)
        abort();
    size_t n_changes = 0;
    for (size_t i = 0; i < n; i++)
        if (v[i].busy && v[i].h->disk == d)
            changes[n_changes++] = (struct hard_change){.kind = HARD_REMOVE, .id = v[i].h->id};
    int first = hard_commit(d, changes, n_changes);
    if (first < 0)
        (void)err_errno(e, first, "disk %s: index", d->path);
    for (size_t i = 0, k = 0; i < n; i++) {
        if (!v[i].busy || v[i].h->disk != d)
            continue;
        int r = changes[k++].result;
        if (r == 0 && (r = unlink_file(v[i].h)) < 0 && first == 0) {
            char hex[ID_TEXT_SIZE];
            id_text(v[i].h->id, hex);
            first = err_errno(e, r, "disk %s: remove hard extent %s", d->path, hex);
        }
        end_removal(&v[i], /* removed= */ r == 0);
        v[i].done = true;
    }
    free(changes);
    return first;
}

/* Waits for one, so that two callers with the same ones do not wait for each other, and takes what is idle.
 */
static int remove_pass(struct store *s, struct removal *v, size_t n, bool *ret_more, struct err *e)
{
    bool waited = false;
    int first = 0;
    *ret_more = false;
    for (size_t i = 0; i < n; i++) {
        if (v[i].done)
            continue;
        v[i].done = begin_removal(&v[i], !waited);
        waited |= v[i].busy;
        *ret_more |= !v[i].done && !v[i].busy;
    }
    for (size_t k = 0; k < s->n_disks && waited; k++) {
        int r = remove_on(&s->disks[k], v, n, first == 0 ? e : NULL);
        first = first < 0 ? first : r;
    }
    return first;
}

int hard_remove(struct store *s, const struct slice *locations, size_t n, struct err *e)
{
    assert(s && (locations || n == 0));
    if (s->read_only)
        return err_set(e, -EROFS, "the store is open read-only");
    struct removal *v = calloc(n + 1, sizeof(v[0]));
    if (!v)
        abort();
    int first = 0;
    size_t found = 0;
    for (size_t i = 0; i < n; i++) {
        struct disk *d;
        struct id128 id;
        struct err *wanted = first == 0 ? e : NULL;
        int r = hard_parse(s, locations[i], &d, &id, wanted);
        if (r == 0)
            r = hard_get(d, id, /* open= */ false, &v[found].h, wanted);
        found += r == 0;
        first = first < 0 ? first : r;
    }
    for (bool more = found > 0; more;) {
        int r = remove_pass(s, v, found, &more, first == 0 ? e : NULL);
        first = first < 0 ? first : r;
    }
    for (size_t i = 0; i < found; i++)
        hard_unref(v[i].h);
    free(v);
    return first;
}

/* ---- at start ---- */

int hard_protect(struct store *s, struct slice location, struct err *e)
{
    assert(s && !s->read_only);
    struct disk *d;
    struct id128 id;
    struct hard *h = NULL;
    int r = hard_parse(s, location, &d, &id, e);
    if (r == 0)
        r = hard_get(d, id, /* open= */ false, &h, e);
    if (r < 0)
        return r;
    if (hard_is_sealed(h) && kv_is_cut(d->kv)) {
        r = hard_begin_writing(h, e);
        if (r < 0) {
            hard_unref(h);
            return r;
        }
        hard_end_writing(h);
    }
    if (!hard_is_sealed(h)) {
        char path[DISK_PATH_MAX];
        struct stat st;
        hard_path(d, id, path);
        r = sys->stat(path, &st);
        if (r == 0)
            hard_account(h, hard_bytes_of(&st));
        else if (r == -ENOENT)
            hard_note_removed(h); /* nothing to be kept in mind */
    }
    hard_unref(h);
    return r == -ENOENT ? 0 : r < 0 ? err_errno(e, r, "disk %s: look at a hard extent", d->path) : 0;
}

typedef int (*each_fn)(struct disk *d, struct id128 id, void *arg);

/* fn for each id with a key in [from, to) whose extent nobody protected; ends at its first error. */
static int each_not_known(struct disk *d, struct slice from, struct slice to, each_fn fn, void *arg,
                          struct err *e)
{
    struct kv_iter *_cleanup_(kv_iter_freep) it = kv_iter_new(d->kv, from, to);
    struct slice k, v;
    int r;
    while ((r = kv_iter_next(it, &k, &v, e)) == 0) {
        struct id128 id;
        if (format_key_parse_id(k, &id) < 0 || hard_is_known(d, id))
            continue;
        r = fn(d, id, arg);
        if (r < 0)
            return err_errno(e, r, "disk %s: sweep", d->path);
    }
    return r == -ENOENT ? 0 : r;
}

/* Of marked files. */
static int each_unprotected(struct disk *d, each_fn fn, void *arg, struct err *e)
{
    return each_not_known(d, SLICE_LIT("f"), SLICE_LIT("g"), fn, arg, e);
}

struct sweep {
    bool keep_bytes;
    struct hard_swept n_files;
    int first; /* error of an unlink or a rename */
    struct kv_txn *txn;
    size_t n;
};

/* Whether there is something in the file; also when that cannot be told. */
static bool has_bytes(struct disk *d, struct id128 id)
{
    char path[DISK_PATH_MAX];
    struct stat st;
    hard_path(d, id, path);
    int r = sys->stat(path, &st);
    return r == 0 ? st.st_size > 0 || st.st_blocks > 0 : r != -ENOENT;
}

static void set_aside_path(const struct disk *d, const char *name, char ret[DISK_PATH_MAX])
{
    int n = snprintf(ret, DISK_PATH_MAX, "%s/set-aside%s%s", d->path, name ? "/" : "", name ? name : "");
    assert(n > 0 && n < DISK_PATH_MAX);
}

static int set_aside(struct disk *d, struct id128 id)
{
    char from[DISK_PATH_MAX], to[DISK_PATH_MAX], hex[ID_TEXT_SIZE];
    set_aside_path(d, NULL, to);
    int r = sys->mkdir(to, 0700);
    if (r < 0 && r != -EEXIST)
        return r;
    id_text(id, hex);
    hard_path(d, id, from);
    set_aside_path(d, hex, to);
    r = sys->rename(from, to);
    if (r == 0)
        log_error("store", "disk %s: a scratch file that no name leads to any more is set aside as %s",
                  d->path, to);
    return r;
}

static int sweep_file(struct disk *d, struct id128 id, void *arg)
{
    struct sweep *w = arg;
    char path[DISK_PATH_MAX];
    hard_path(d, id, path);
    bool keep = w->keep_bytes && has_bytes(d, id);
    int r = keep ? set_aside(d, id) : sys->unlink(path);
    w->n_files.set_aside += r == 0 && keep;
    w->n_files.removed += r == 0 && !keep;
    if (r < 0 && r != -ENOENT && w->first == 0)
        w->first = r;
    return 0;
}

static int delete_chunks(struct disk *d, struct id128 id, struct kv_txn *t)
{
    struct format_key from, to;
    hard_chunks_range(id, &from, &to);
    struct kv_iter *_cleanup_(kv_iter_freep) it =
        kv_iter_new(d->kv, format_key_view(&from), format_key_view(&to));
    struct slice k, v;
    int r;
    while ((r = kv_iter_next(it, &k, &v, NULL)) == 0)
        kv_txn_delete(t, k);
    return r == -ENOENT ? 0 : r;
}

/* The removal of the file is on disk, if it could be removed: its mark goes. */
static int sweep_mark(struct disk *d, struct id128 id, void *arg)
{
    struct sweep *w = arg;
    char path[DISK_PATH_MAX];
    struct stat st;
    struct format_key k;
    hard_path(d, id, path);
    if (w->first < 0 && sys->stat(path, &st) != -ENOENT)
        return 0;
    int r = delete_chunks(d, id, w->txn);
    if (r < 0)
        return r;
    format_key_id('f', id, &k);
    kv_txn_delete(w->txn, format_key_view(&k));
    return ++w->n % MARKS_PER_COMMIT ? 0 : kv_txn_commit(w->txn, KV_VISIBLE, NULL);
}

static int count_set_aside(struct disk *d, uint64_t *files, uint64_t *bytes)
{
    char path[DISK_PATH_MAX];
    struct id128 id;
    struct stat st;
    set_aside_path(d, NULL, path);
    DIR *o = opendir(path);
    if (!o)
        return errno == ENOENT ? 0 : -errno;
    struct dirent *de = NULL;
    int r;
    while ((r = sys->readdir(o, &de)) == 0 && de) {
        if (id_parse(slice_str(de->d_name), &id) < 0)
            continue;
        set_aside_path(d, de->d_name, path);
        ++*files;
        *bytes += sys->stat(path, &st) == 0 ? (uint64_t)st.st_size : 0;
    }
    (void)closedir(o);
    return r;
}

static int sweep_disk(struct disk *d, bool keep_bytes, struct hard_swept *ret, struct err *e)
{
    struct sweep w = {.keep_bytes = keep_bytes};
    int fd = d->hard->dir_fd;
    if (fd < 0)
        return 0; /* no hard extent was ever made */
    int r = each_unprotected(d, sweep_file, &w, e);
    ret->removed += w.n_files.removed;
    ret->set_aside += w.n_files.set_aside;
    if (r == 0 && (r = sys->syncfs(fd)) < 0) {
        (void)err_errno(e, r, "disk %s: sweep", d->path);
        hard_ask_each(d);
    }
    if (r < 0)
        return r;
    w.txn = kv_txn_new(d->kv);
    r = each_unprotected(d, sweep_mark, &w, e);
    if (r == 0)
        r = kv_txn_commit(w.txn, KV_VISIBLE, e);
    kv_txn_free(w.txn);
    if (w.n_files.removed > 0)
        log_info("store", "disk %s: removed %llu hard files that nobody names", d->path,
                 (unsigned long long)w.n_files.removed);
    uint64_t kept = 0, bytes = 0;
    if (count_set_aside(d, &kept, &bytes) == 0)
        metrics_set(metrics_series(METRIC_SET_ASIDE_FILES, d->path, NULL, NULL), (int64_t)kept);
    if (r == 0 && w.first < 0)
        r = err_errno(e, w.first, "disk %s: remove a hard file that nobody names", d->path);
    return r;
}

int hard_sweep(struct store *s, bool keep_bytes, struct hard_swept *ret, struct err *e)
{
    assert(s && ret && !s->read_only);
    int first = 0;
    *ret = (struct hard_swept){0};
    for (size_t i = 0; i < s->n_disks; i++) {
        assert(!s->disks[i].hard->pool.has_thread); /* before the first hard_take */
        int r = sweep_disk(&s->disks[i], keep_bytes, ret, first == 0 ? e : NULL);
        first = first < 0 ? first : r;
    }
    return first;
}

/* ---- files that look like nobody's, one by one ---- */

struct each {
    int (*fn)(void *arg, struct slice location);
    void *arg;
};

static int on_unprotected(struct disk *d, struct id128 id, void *arg)
{
    const struct each *x = arg;
    uint8_t location[HARD_LOCATION_BYTES];
    if (!has_bytes(d, id))
        return 0;
    hard_location_of(d, id, location);
    return x->fn(x->arg, slice_of(location, sizeof(location)));
}

/* Whether the file was changed when the commits were made that the index has lost, or after that. */
static bool is_changed_since(struct disk *d, struct id128 id)
{
    char path[DISK_PATH_MAX];
    struct stat st;
    hard_path(d, id, path);
    return sys->stat(path, &st) == 0 &&
           (uint64_t)st.st_ctim.tv_sec * 1000000000 + (uint64_t)st.st_ctim.tv_nsec + CLOCK_SLACK_NS >=
               d->opened_time_ns;
}

static int on_sealed(struct disk *d, struct id128 id, void *arg)
{
    const struct each *x = arg;
    uint8_t location[HARD_LOCATION_BYTES];
    if (!is_changed_since(d, id))
        return 0;
    hard_location_of(d, id, location);
    return x->fn(x->arg, slice_of(location, sizeof(location)));
}

int hard_unprotected(struct store *s, int (*fn)(void *arg, struct slice location), void *arg, struct err *e)
{
    assert(s && fn);
    struct each x = {fn, arg};
    int r = 0;
    for (size_t i = 0; i < s->n_disks && r == 0; i++) {
        struct disk *d = &s->disks[i];
        r = each_unprotected(d, on_unprotected, &x, e);
        if (r == 0 && kv_is_cut(d->kv))
            r = each_not_known(d, SLICE_LIT("h"), SLICE_LIT("i"), on_sealed, &x, e);
    }
    return r;
}

bool hard_is_forgotten(struct store *s, struct slice location)
{
    struct disk *d;
    struct id128 id;
    struct format_hard head;
    return hard_parse(s, location, &d, &id, NULL) == 0 && !hard_is_known(d, id) &&
           hard_head(d, id, &head) == -ENOENT;
}

int hard_set_aside(struct store *s, uint64_t *ret_files, uint64_t *ret_bytes, struct err *e)
{
    *ret_files = *ret_bytes = 0;
    for (size_t i = 0; i < s->n_disks; i++) {
        int r = count_set_aside(&s->disks[i], ret_files, ret_bytes);
        if (r < 0)
            return err_errno(e, r, "disk %s: look at set-aside", s->disks[i].path);
    }
    return 0;
}

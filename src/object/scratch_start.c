/*
 * What a start does for scratch buckets before anybody is served.
 *
 * Order: the control store is made durable, so that nothing is freed that could come back; files that writing
 * records name are protected, and every other marked file is removed; inodes without links are handed to the
 * freeing thread, but for those whose file a mount still has open, or may have, because they have none yet,
 * or because a record says that it had them open by calls: they are kept until it has come back.
 * Inodes with writing records are unsettled from the beginning: their files may have been written to until
 * the last moment, and descendants of mounts may still write to them. In a bucket with a quota they are
 * counted as they are now.
 *
 * When the control store or the index of a disk came back without its last commits (kv_is_cut), records do
 * not tell any more whose a marked file is: the commit that made its inode may be among those, or the one
 * that took its mark away. Nor do they tell which files were being written: their writing records may be
 * lost, or all that the index had of them. Then every inode is looked at; whose file is marked, or neither
 * sealed nor named by a writing record, gets one, and a marked file with bytes that no inode names is set
 * aside instead of removed. A file that was written to and settled again at that time may have its checksums
 * of before back: it gets a writing record, too, and new ones. A start that was killed in between does so
 * again.
 *
 * Failure modes: a broken record ends the start before anything is removed. A disk that is missing is logged:
 * its files are not found until it is back. When a file could not be protected, no marked file is removed:
 * the next start does it.
 */
#include "object/scratch_node.h"

#include "base/log.h"
#include "base/sys.h"

#include <inttypes.h>
#include <string.h>

#define START_ARENA (256 * KIB)

struct start {
    struct snode *n;
    struct arena *a;
    struct scratch_unsettled *stale;
    size_t n_stale, cap;
    uint64_t n_orphans;
    bool unprotected; /* a file that is named may look like nobody's */
    bool away;        /* of a disk that is not here */
    struct place {
        uint8_t b[HARD_LOCATION_BYTES];
    } * places; /* of files that look like nobody's */
    size_t n_places, places_cap;
};

/* The record of an inode that is gone or has another location: no change leaves one, but it would keep a file
 * for ever. */
static void note_stale(struct start *s, const struct scratch_unsettled *x)
{
    if (s->n_stale == s->cap) {
        s->cap = s->cap ? s->cap * 2 : 16;
        s->stale = realloc(s->stale, s->cap * sizeof(*s->stale));
        assert(s->stale);
    }
    s->stale[s->n_stale++] = *x;
}

static int on_protect(void *arg, const struct scratch_unsettled *x)
{
    struct start *s = arg;
    struct scratch_inode inode;
    struct err e = {0};
    struct slice location = slice_of(x->location, x->location_bytes);
    arena_clear(s->a);
    int r = scratch_getattr(s->n->names, x->bucket, x->ino, s->a, &inode, &e);
    if (r < 0 && r != -ENOENT)
        return r;
    if (r == -ENOENT || !slice_eq(inode.location, location)) {
        note_stale(s, x);
        return 0;
    }
    r = hard_protect(s->n->store, location, &e);
    if (r < 0)
        log_warn("object", "a file of a scratch bucket: %s", e.text);
    s->unprotected = s->unprotected || (r < 0 && r != -ENODEV); /* a missing disk is not swept either */
    s->away |= r == -ENODEV;
    return 0;
}

/* ---- after commits were lost ---- */

static bool is_cut(const struct start *s)
{
    return kv_is_cut(s->n->service->config.control) || store_is_cut(s->n->store);
}

static int by_bytes(const void *a, const void *b)
{
    return memcmp(a, b, sizeof(struct place));
}

static int on_nobodys(void *arg, struct slice location)
{
    struct start *s = arg;
    if (s->n_places == s->places_cap) {
        s->places_cap = s->places_cap ? s->places_cap * 2 : 64;
        s->places = realloc(s->places, s->places_cap * sizeof(*s->places));
        assert(s->places);
    }
    memcpy(s->places[s->n_places++].b, location.p, sizeof(s->places[0].b));
    return 0;
}

/* From now on the file knows its time, which is the inode's: unless what was lost are changes of inodes, and
 * the file was written to after the last one that there is. */
static int set_time(struct start *s, struct hard *h, const struct scratch_inode *inode, struct err *e)
{
    struct stat st;
    if (kv_is_cut(s->n->service->config.control) && hard_stat(h, &st) == 0 &&
        snode_ns(st.st_mtim) > inode->mtime_ns)
        return 0;
    return hard_set_mtime(h, inode->mtime_ns, e);
}

/* The file is an inode's after all: it counts as written to, and is settled like any other. */
static int keep(struct start *s, const struct scratch_unsettled *x, struct err *e)
{
    struct scratch_call call = {.bucket = x->bucket, .commit = KV_DURABLE};
    struct slice location = slice_of(x->location, x->location_bytes);
    _cleanup_(hard_unrefp) struct hard *h = NULL;
    struct scratch_inode inode = {0};
    arena_clear(s->a);
    int r = scratch_getattr(s->n->names, x->bucket, x->ino, s->a, &inode, e);
    if (r == 0)
        r = hard_find(s->n->store, location, &h, e);
    if (r == 0)
        r = set_time(s, h, &inode, e);
    struct scratch_set set = {.what = SCRATCH_SET_WRITING | SCRATCH_SET_CTIME, .ctime_ns = inode.ctime_ns};
    return r == 0 ? scratch_setattr(s->n->names, &call, x->ino, &set, s->a, &inode, e) : r;
}

static bool is_doubtful(const struct start *s, const struct scratch_unsettled *x)
{
    if (x->location_bytes != sizeof(struct place))
        return false;
    bool is_listed = s->n_places > 0 &&
                     bsearch(x->location, s->places, s->n_places, sizeof(struct place), by_bytes) != NULL;
    return is_listed || hard_is_forgotten(s->n->store, slice_of(x->location, x->location_bytes));
}

static int on_located(void *arg, const struct scratch_unsettled *x)
{
    struct start *s = arg;
    struct err e = {0};
    int r = is_doubtful(s, x) ? keep(s, x, &e) : 0;
    if (r < 0)
        log_error("object", "inode %" PRIu64 ": %s", x->ino, e.text[0] ? e.text : err_text(r));
    s->unprotected |= r < 0 && r != -ENOENT; /* there is no file */
    return 0;
}

static int find_owners(struct start *s, struct err *e)
{
    log_error("object",
              "the last changes of a database are lost (see above): looking at all scratch files for those "
              "that were among them");
    int r = hard_unprotected(s->n->store, on_nobodys, s, e);
    if (r < 0)
        return r;
    if (s->n_places > 0)
        qsort(s->places, s->n_places, sizeof(struct place), by_bytes);
    return scratch_located(s->n->names, on_located, s, e);
}

static int sweep(struct start *s, struct err *e)
{
    struct snode *n = s->n;
    struct hard_swept swept = {0};
    bool cut = is_cut(s);
    if (s->unprotected) {
        log_error("object", "files of scratch buckets that nobody names are kept: one that is named is among "
                            "them, perhaps");
        return 0;
    }
    int r = hard_sweep(n->store, cut, &swept, e);
    if (swept.set_aside > 0)
        log_error("object", "%" PRIu64 " scratch files whose names are lost are in DISK/set-aside",
                  swept.set_aside);
    if (r < 0) { /* the next start tries again */
        log_warn("object", "files of scratch buckets that nobody names: %s", e ? e->text : "");
        return 0;
    }
    if (!cut || s->away)
        return 0;
    r = store_cut_mended(n->store, e);
    return r == 0 ? kv_cut_mended(n->service->config.control, e) : r;
}

/* A file to which nothing was ever written, or nothing that lasted, has the time of its inode: it was given
 * it when it came from the pool, and need not have it durably. Without bytes it has no other, as whoever
 * takes them away tells the inode the time. */
static void keep_time(struct start *s, const struct scratch_unsettled *x)
{
    struct scratch_inode inode;
    struct stat st;
    struct hard *h = NULL;
    struct err e = {0};
    arena_clear(s->a);
    int r = scratch_getattr(s->n->names, x->bucket, x->ino, s->a, &inode, &e);
    if (r < 0 || inode.size_bytes > 0)
        return;
    r = hard_find(s->n->store, slice_of(x->location, x->location_bytes), &h, &e);
    if (r == 0)
        r = hard_stat(h, &st);
    bool is_other = r == 0 && st.st_size == 0 && st.st_blocks == 0 && snode_ns(st.st_mtim) != inode.mtime_ns;
    if (is_other && hard_is_written(h) != -EAGAIN) /* else a mount goes on with it: the power was on */
        r = hard_set_mtime(h, inode.mtime_ns, &e);
    if (r < 0)
        log_info("object", "inode %" PRIu64 ": its time is its file's: %s", x->ino,
                 e.text[0] ? e.text : err_text(r));
    hard_unref(h);
}

/* What is on disk of a file that was being written counts in its bucket's quota from the beginning. */
static void count_unsettled(struct start *s, const struct scratch_unsettled *x)
{
    struct scratch_call call = {.bucket = x->bucket};
    struct hard *h = NULL;
    struct stat st;
    struct err e = {0};
    if (!sroom_is_limited(s->n->service, x->bucket))
        return;
    arena_clear(s->a);
    int r = hard_find(s->n->store, slice_of(x->location, x->location_bytes), &h, &e);
    if (r == 0)
        r = hard_stat(h, &st);
    if (r == 0)
        r = snode_record(s->n, &call, x->ino, &st, s->a, /* ret= */ NULL, &e);
    if (r < 0) /* settling does */
        log_info("object", "inode %" PRIu64 " is not counted in its bucket's quota yet: %s", x->ino,
                 e.text[0] ? e.text : err_text(r));
    hard_unref(h);
}

static int on_unsettled(void *arg, const struct scratch_unsettled *x)
{
    struct start *s = arg;
    struct sfile *f = sfile_get(s->n, x->bucket, x->ino);
    lock_take(&s->n->lock);
    sfile_set_unsettled_locked(s->n, f, true);
    sfile_queue_locked(s->n, f);
    lock_drop(&s->n->lock);
    sfile_put(s->n, f);
    keep_time(s, x);
    count_unsettled(s, x);
    return 0;
}

static bool is_open(const struct start *s, const struct scratch_orphan *x)
{
    _cleanup_(hard_unrefp) struct hard *h = NULL;
    struct err ignored = {0};
    return hard_find(s->n->store, slice_of(x->location, x->location_bytes), &h, &ignored) == 0 &&
           hard_is_open(h);
}

static int on_orphan(void *arg, const struct scratch_orphan *x)
{
    struct start *s = arg;
    struct scratch_orphans o = {.n = 1};
    if (x->location_bytes == 0) /* whether a mount has it open, and will write to it, no file tells */
        return stree_keep_orphan(s->n, x, NULL) == 0 ? -EAGAIN : 0;
    if (is_open(s, x) && stree_keep_orphan(s->n, x, NULL) == 0)
        return -EAGAIN;
    if (stree_is_awaited(s->n, x->bucket, x->ino))
        return -EAGAIN;
    o.v[0] = *x;
    snode_free_orphans(s->n, &o);
    s->n_orphans++;
    return -EAGAIN; /* buried when its data is gone */
}

/* A bucket that was made when the last run ended may lack its root. */
static int make_roots(struct snode *n, struct err *e)
{
    int r = 0;
    for (struct bucket *b = NULL; (b = bucket_next(n->service->buckets, b));)
        if (r == 0 && bucket_is_scratch(b))
            r = scratch_bucket_make(n->names, b->id, b->root_mode, b->owner_uid, b->owner_gid, e);
    return r;
}

static int protect(struct start *s, struct err *e)
{
    s->n_stale = 0;
    int r = scratch_unsettled(s->n->names, on_protect, s, e);
    return r == 0 ? scratch_settled(s->n->names, s->stale, s->n_stale, e) : r;
}

static int reconcile(struct start *s, struct err *e)
{
    struct snode *n = s->n;
    int r = scratch_sync(n->names, e);
    if (r == 0)
        r = protect(s, e);
    if (r == 0 && is_cut(s))
        r = find_owners(s, e);
    if (r == 0 && is_cut(s)) /* what has owners now, too */
        r = protect(s, e);
    if (r == 0)
        r = sweep(s, e);
    if (r == 0)
        r = stree_await_opened(n, e);
    if (r == 0)
        r = scratch_sweep(n->names, on_orphan, s, e);
    if (r == 0)
        r = scratch_unsettled(n->names, on_unsettled, s, e);
    if (r == 0)
        r = make_roots(n, e);
    if (r == 0 && (s->n_orphans > 0 || n->n_unsettled > 0))
        log_info("object",
                 "scratch buckets: %" PRIu64 " files to be settled, %" PRIu64 " removed ones to be freed",
                 n->n_unsettled, s->n_orphans);
    return r;
}

int snode_reconcile(struct snode *n, struct err *e)
{
    struct start s = {.n = n, .a = arena_new(START_ARENA)};
    n->started_ms = sys_mono_ms();
    int r = reconcile(&s, e);
    arena_free(s.a);
    free(s.stale);
    free(s.places);
    return r;
}

/*
 * Verifying everything: every present block of every entry against its checksum, every file against the
 * index.
 *
 * Works on a running store: entries are visited a page of keys at a time, so that no snapshot of the index is
 * held for long, and each is loaded as a reader would load it. On a store that was opened read-only, beside a
 * stopped node, it only reports.
 *
 * Failure modes: an entry that changes, dies or appears during the check is either seen or not. A block that
 * a reader drops at the same time is counted by one of the two.
 */
#include "base/hash.h"
#include "base/log.h"
#include "base/sys.h"
#include "store/hard_internal.h"

#include <string.h>

#define PAGE       256
#define RECORD_MAX (STORE_ATTR_MAX_BYTES + FORMAT_ENTRY_HEAD_BYTES)

struct check {
    struct store *s;
    bool repair, stopped;
    int code;               /* of the index, about the present entry */
    const char *found;      /* what metrics and log call it */
    store_before_fn before; /* of a scrub: before each block; then the disk is read, not memory */
    store_check_fn fn;
    void *arg;
    struct store_check_report report;
    char *buf; /* one block */
};

static void tell(struct check *c, const char *problem)
{
    if (c->fn && !c->stopped && !c->fn(&c->report, problem, c->arg))
        c->stopped = true;
}

/* One block; drops it when it is bad and repairs are wanted. */
static bool check_block(struct check *c, struct extent *x, uint32_t block)
{
    uint64_t offset = (uint64_t)block * STORE_BLOCK_BYTES;
    uint64_t n = MIN(extent_size(x) - offset, STORE_BLOCK_BYTES);
    uint64_t lost_flushes = disk_lost_flushes(x->disk);
    if (c->before && !c->before(c->arg, n)) {
        c->stopped = true;
        return true;
    }
    int r = extent_block_compare(x, block, c->buf, /* past_cache= */ c->before != NULL);
    bool good = r == 0;
    lock_take(&x->lock);
    bool present = extent_has_block_locked(x, block);
    lock_drop(&x->lock);
    if (!present || extent_is_dead(x) || r == -EMFILE ||
        r == -ENFILE) /* dropped meanwhile; or nobody knows */
        return true;
    if (r == -EAGAIN) {
        c->code = -EIO;
        return true;
    }
    c->report.blocks++;
    c->report.bytes += n;
    if (good) {
        extent_block_trusted(x, block, lost_flushes);
        return true;
    }
    c->report.bad_blocks++;
    if (c->repair)
        extent_block_dropped(x, block, c->found);
    else
        metrics_count(METRIC_CORRUPT_BLOCKS, x->disk->path, c->found, NULL);
    return false;
}

/* A file that ends before the blocks that its record has; who repairs has lost the entry with it. */
static void check_lost(struct check *c, struct disk *d, struct slice key, uint32_t lost, uint32_t dropped)
{
    char problem[ERR_TEXT_MAX];
    c->report.bad_blocks += dropped;
    (void)snprintf(problem, sizeof(problem), "disk %s: %s: the file is too short, %u blocks are lost",
                   d->path, format_key_text(key, (char[FORMAT_KEY_TEXT_MAX]){0}), lost);
    tell(c, problem);
}

static void check_extent(struct check *c, struct extent *x)
{
    char problem[ERR_TEXT_MAX];
    uint32_t bad = 0, first_bad = 0;
    for (uint32_t b = 0; b < x->n_blocks && !c->stopped && c->code == 0; b++) {
        lock_take(&x->lock);
        bool present = extent_has_block_locked(x, b);
        lock_drop(&x->lock);
        if (!present || check_block(c, x, b))
            continue;
        first_bad = bad++ ? first_bad : b;
    }
    c->report.extents++;
    if (x->n_lost > 0)
        check_lost(c, x->disk, x->key, x->n_lost, x->n_lost);
    char id[ID_TEXT_SIZE];
    id_text(x->id, id);
    if (bad > 0)
        (void)snprintf(problem, sizeof(problem),
                       "disk %s: extent %s of %s: %u blocks with wrong checksum, the first is %u",
                       x->disk->path, id, format_key_text(x->key, (char[FORMAT_KEY_TEXT_MAX]){0}), bad,
                       first_bad);
    tell(c, bad > 0 ? problem : NULL);
}

/* The entry of a key on this disk, which cannot be loaded: says why. */
static void check_unloadable(struct check *c, struct disk *d, struct slice key, bool damaged)
{
    char problem[ERR_TEXT_MAX];
    if (damaged)
        c->report.bad_records++;
    else
        c->report.missing_files++;
    (void)snprintf(problem, sizeof(problem), "disk %s: %s: %s", d->path,
                   format_key_text(key, (char[FORMAT_KEY_TEXT_MAX]){0}),
                   damaged ? "index record is damaged" : "extent file is missing");
    tell(c, problem);
}

/* The record did not decode when its page was read, which may be long ago: whether it is so now. */
static bool is_damaged(struct check *c, struct disk *d, struct slice key)
{
    struct format_key k;
    if (!c->repair)
        return true;
    if (key.n > 0 && key.n <= STORE_KEY_MAX_BYTES)
        return store_drop_if_damaged(c->s, key, d) != 0;
    if (key.n < sizeof(k.p)) { /* nobody's */
        format_key_bytes('o', key, &k);
        doom_bad_record(d, format_key_view(&k));
    }
    return true;
}

/* Its file is gone: whether it is the key's entry still. What was evicted, removed or replaced since its page
 * was read is not missing; a new version is visited in its own right or not at all. */
static bool is_missing(struct check *c, struct disk *d, struct slice key, struct id128 id)
{
    struct buf _cleanup_buf_ b = BUF_INIT(RECORD_MAX);
    struct format_entry now;
    return c->repair ? store_drop_if_gone(c->s, key, d, id) > 0
                     : load_record(d, key, &now, &b) == 0 && id_eq(now.id, id);
}

static int check_key(struct check *c, struct disk *d, struct slice key, struct slice record)
{
    struct format_entry r;
    char path[DISK_PATH_MAX];
    struct stat st = {0};
    if (key.n == 0 || key.n > STORE_KEY_MAX_BYTES || format_entry_decode(record, &r) < 0) {
        if (is_damaged(c, d, key))
            check_unloadable(c, d, key, /* damaged= */ true);
        return 0;
    }
    disk_extent_path(d, r.id, path);
    int there = sys->stat(path, &st);
    if (there == -ENOENT && !doom_contains(d, r.id)) {
        if (is_missing(c, d, key, r.id))
            check_unloadable(c, d, key, /* damaged= */ false);
        return 0;
    }
    struct extent *_cleanup_(extent_unrefp) x = NULL;
    int code = store_find(c->s, key, &x);
    c->code = 0;
    uint32_t left = (uint32_t)((uint64_t)st.st_size / STORE_BLOCK_BYTES);
    if (code == 0 && x->disk == d)
        check_extent(c, x);
    else if (code == -ENOENT && there == 0 && (uint64_t)st.st_size < r.size_bytes && r.present_blocks > 0)
        /* It went when it was looked for. Of a file with holes one is lost at least. */
        check_lost(c, d, key, r.present_blocks > left ? r.present_blocks - left : 1, r.present_blocks);
    return code == -ENOENT ? 0 : code < 0 ? code : c->code;
}

/* One page of entries; moves *from behind it. -ENOENT at the end. */
static int check_page(struct check *c, struct disk *d, struct buf *from, struct err *e)
{
    struct buf keys[PAGE], records[PAGE];
    struct slice k, v;
    size_t n = 0;
    int r = 0;
    bool rewound = false;
    struct kv_iter *it = kv_iter_new(d->kv, buf_view(from), SLICE_LIT("p"));
    while (n < PAGE && (r = kv_iter_next(it, &k, &v, e)) == 0) {
        keys[n] = BUF_INIT(64 * KIB);
        records[n] = BUF_INIT(64 * KIB);
        if (buf_slice(&keys[n], k) < 0 || buf_slice(&records[n], v) < 0)
            buf_clear(&records[n]); /* longer than any record: damaged */
        n++;
    }
    kv_iter_free(it);
    if (n > 0) {
        buf_clear(from);
        if (buf_slice(from, buf_view(&keys[n - 1])) < 0 || buf_char(from, 0) < 0)
            r = -EBADMSG;
    }
    for (size_t i = 0; i < n; i++) {
        int code = c->stopped ? 0 : check_key(c, d, slice_from(buf_view(&keys[i]), 1), buf_view(&records[i]));
        if (code < 0 && (r == 0 || r == -ENOENT))
            r = err_errno(e, code, "disk %s: check", d->path);
        if (c->stopped && !rewound) { /* in the middle of this one, or before it */
            rewound = true;
            buf_clear(from);
            r = buf_slice(from, buf_view(&keys[i])) < 0 ? -EBADMSG : r;
        }
        buf_fini(&keys[i]);
        buf_fini(&records[i]);
    }
    return r;
}

static bool before_hard(void *arg, uint64_t bytes)
{
    struct check *c = arg;
    return c->before(c->arg, bytes);
}

/* After each hard extent: whether to go on. */
static bool tell_hard(void *arg, const char *problem)
{
    struct check *c = arg;
    tell(c, problem);
    return !c->stopped;
}

static int check_hard_page(struct check *c, struct disk *d, struct buf *from, struct err *e)
{
    const struct hard_check h = {.report = &c->report,
                                 .buf = c->buf,
                                 .found = c->found,
                                 .past_cache = c->before != NULL,
                                 .before = c->before ? before_hard : NULL,
                                 .tell = tell_hard,
                                 .arg = c};
    bool stopped;
    int r = hard_check_page(d, &h, from, &stopped, e);
    c->stopped = c->stopped || stopped;
    return r;
}

static int check_disk(struct check *c, struct disk *d, struct err *e)
{
    struct buf _cleanup_buf_ from = BUF_INIT(64 * KIB);
    int r = buf_char(&from, 'o');
    c->report.unfinished += d->n_left_dying;
    if (!c->s->read_only)
        writer_drain(d);
    while (r == 0 && !c->stopped)
        r = check_page(c, d, &from, e);
    if (r < 0 && r != -ENOENT)
        return r;
    buf_clear(&from);
    r = buf_str(&from, HARD_CHECK_FIRST);
    while (r == 0 && !c->stopped)
        r = check_hard_page(c, d, &from, e);
    if (r < 0 && r != -ENOENT)
        return r;
    uint64_t files = 0, bytes = 0;
    if (c->repair) /* what lost its record goes, too */
        writer_drain(d);
    if (!c->stopped)
        r = recover_orphans(d, c->repair, &files, &bytes);
    if (r < 0 && r != -ENOENT && r != -ECANCELED)
        return err_errno(e, r, "disk %s: walk the extents", d->path);
    c->report.orphan_files += files;
    c->report.orphan_bytes += bytes;
    char problem[ERR_TEXT_MAX];
    (void)snprintf(problem, sizeof(problem), "disk %s: %llu files without entries, %llu bytes", d->path,
                   (unsigned long long)files, (unsigned long long)bytes);
    if (files > 0)
        tell(c, problem);
    return 0;
}

/* What a damaged log of a database left behind. */
static int check_losses(struct check *c, struct err *e)
{
    char problem[ERR_TEXT_MAX];
    for (size_t i = 0; i < c->s->n_disks; i++) {
        const struct disk *d = &c->s->disks[i];
        if (!kv_is_cut(d->kv))
            continue;
        c->report.cut_indexes++;
        (void)snprintf(problem, sizeof(problem),
                       "disk %s: the log of its index is damaged, and its last changes are lost", d->path);
        tell(c, problem);
    }
    int r = hard_set_aside(c->s, &c->report.set_aside_files, &c->report.set_aside_bytes, e);
    (void)snprintf(problem, sizeof(problem),
                   "%llu scratch files whose names were lost, %llu bytes, are in set-aside on the disks",
                   (unsigned long long)c->report.set_aside_files,
                   (unsigned long long)c->report.set_aside_bytes);
    if (r == 0 && c->report.set_aside_files > 0)
        tell(c, problem);
    return r;
}

int store_check(struct store *s, bool repair, store_check_fn fn, void *arg, struct store_check_report *ret,
                struct err *e)
{
    assert(s && ret);
    struct check c = {.s = s, .repair = repair && !s->read_only, .found = "check", .fn = fn, .arg = arg};
    c.buf = extent_block_buffer();
    int r = 0;
    for (size_t i = 0; i < s->n_disks && r == 0 && !c.stopped; i++)
        r = check_disk(&c, &s->disks[i], e);
    if (r == 0 && !c.stopped)
        r = check_losses(&c, e);
    free(c.buf);
    if (r < 0)
        return r;
    *ret = c.report;
    return 0;
}

/* ---- scrub ---- */

int store_scrub(struct store *s, size_t disk, struct buf *at, store_before_fn before, store_check_fn fn,
                void *arg, struct store_check_report *ret, struct err *e)
{
    assert(s && disk < s->n_disks && at && before && ret && !s->read_only);
    struct disk *d = &s->disks[disk];
    struct check c = {
        .s = s, .repair = true, .found = "scrub", .before = before, .fn = fn, .arg = arg, .report = *ret};
    int r = at->n == 0 ? buf_char(at, 'o') : 0;
    bool soft = r == 0 && at->p[0] == 'o';
    if (r < 0 || (!soft && at->p[0] != HARD_CHECK_FIRST[0])) /* not what an earlier step left */
        r = -EINVAL;
    c.buf = extent_block_buffer();
    if (r == 0)
        r = soft ? check_page(&c, d, at, e) : check_hard_page(&c, d, at, e);
    free(c.buf);
    *ret = c.report;
    if (r == -ENOENT && !c.stopped) {
        buf_clear(at);
        return soft ? buf_str(at, HARD_CHECK_FIRST) : -ENOENT;
    }
    return r == -ENOENT ? 0 : r;
}

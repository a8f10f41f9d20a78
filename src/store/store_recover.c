/*
 * Opening: what an unclean stop left, and the state that is read before the first request.
 *
 * Only small records are read, never all entries: the epoch and count records, the markers of files that no
 * entry named yet, what is noted of entries that were dying, the data-set table. A disk with 50 million
 * entries opens as fast as an empty one.
 *
 * An entry whose record does not decode is dropped where it is met, which leaves its file and what else names
 * that; the walk over the directories, which a check with repair makes, too, removes both.
 *
 * After an unclean stop of any kind the epochs that were not durable become suspect. After power loss, which
 * may have lost markers, a walk over the directories removes files that nothing names; it runs behind the
 * scenes, at later starts too until one has ended.
 */
#include "base/le.h"
#include "base/log.h"
#include "base/sys.h"
#include "store/hard_internal.h"

#include <dirent.h>
#include <string.h>

#define MARKERS_PER_COMMIT 1000
#define EPOCHS_AT_MOST     2 /* epochs beyond the durable one that records may carry */
#define SWEEP_KEY          SLICE_LIT("msweep")
#define START_KEY          SLICE_LIT("mstart")
#define CUT_KEY            SLICE_LIT("mcut")
#define BEYOND_NS          ((uint64_t)3600 * 1000000000) /* many times the length of an epoch */

static int get_record(struct disk *d, struct slice key, struct buf *b, struct err *e)
{
    buf_clear(b);
    return kv_get(d->kv, key, b, NULL, e);
}

static int load_counts(struct disk *d, struct err *e)
{
    struct buf _cleanup_buf_ b = BUF_INIT(16 * (FORMAT_RANGES_MAX + 1));
    int r = get_record(d, SLICE_LIT("mepoch"), &b, e);
    if (r == 0 && format_epoch_decode(buf_view(&b), &d->epoch) < 0)
        return err_set(e, -EBADMSG,
                       "the index's epoch record is damaged; remove the directory to start afresh");
    if (r < 0 && r != -ENOENT)
        return r;
    r = get_record(d, SLICE_LIT("mcount"), &b, e);
    if (r == 0 && format_count_decode(buf_view(&b), &d->count) < 0)
        return err_set(e, -EBADMSG,
                       "the index's count record is damaged; remove the directory to start afresh");
    if (r < 0 && r != -ENOENT)
        return r;
    d->used_bytes = d->written_bytes = d->count.used_bytes;
    d->extents = d->count.extents;
    return 0;
}

/* From now on what the disk held until now is doubted. Where the clock is behind what it was, as without a
 * battery, until it is right again and has passed all that was confirmed before: a little more than the time
 * of the last epoch. */
static void put_doubt(struct disk *d, struct kv_txn *t)
{
    char value[8];
    lock_take(&d->lock);
    uint64_t now_ns = sys->real_ns(), then_ns = d->time_ns > now_ns ? d->time_ns + BEYOND_NS : now_ns;
    lock_drop(&d->lock);
    d->doubted_before_ns = MAX(d->doubted_before_ns, then_ns);
    le_put64(value, d->doubted_before_ns);
    kv_txn_put_plain(t, SLICE_LIT("mdoubt"), slice_of(value, sizeof(value)));
}

/* The index came back without its last commits: until somebody has seen to that, also through later starts,
 * it is known from when on they are missing. Epochs that end meanwhile say nothing of files changed then. */
static int note_cut(struct disk *d, struct kv_txn *t, struct err *e)
{
    struct buf _cleanup_buf_ b = BUF_INIT(16);
    char value[8];
    int r = get_record(d, CUT_KEY, &b, e);
    if (r < 0 && r != -ENOENT)
        return r;
    if (r == 0 && b.n >= sizeof(uint64_t)) {
        d->opened_time_ns = MIN(d->opened_time_ns, le_get64(b.p));
        return 0;
    }
    le_put64(value, d->opened_time_ns);
    kv_txn_put_plain(t, CUT_KEY, slice_of(value, sizeof(value)));
    return 0;
}

int recover_doubts(struct disk *d, struct err *e)
{
    struct buf _cleanup_buf_ b = BUF_INIT(16);
    int r = get_record(d, SLICE_LIT("mdoubt"), &b, e);
    if (r < 0 && r != -ENOENT)
        return r;
    if (r == 0 && b.n >= sizeof(uint64_t))
        d->doubted_before_ns = le_get64(b.p);
    buf_clear(&b);
    r = kv_get(d->kv, TIME_KEY, &b, NULL, e);
    if (r < 0 && r != -ENOENT)
        return r;
    if (r == 0 && b.n >= sizeof(uint64_t))
        d->time_ns = d->opened_time_ns = le_get64(b.p);
    r = kv_get(d->kv, SWEEP_KEY, NULL, NULL, e);
    if (r < 0 && r != -ENOENT)
        return r;
    d->sweep_wanted = r == 0;
    bool cut = kv_is_cut(d->kv);
    d->was_clean &= !cut; /* records of later epochs are lost, others are there again */
    if (((d->was_clean || d->same_boot) && !cut) || d->store->read_only)
        return 0;
    d->sweep_wanted = true;
    struct kv_txn *_cleanup_(kv_txn_freep) t = kv_txn_new(d->kv);
    put_doubt(d, t);
    kv_txn_put_plain(t, SWEEP_KEY, SLICE_NULL);
    r = cut ? note_cut(d, t, e) : 0;
    return r < 0 ? r : kv_txn_commit(t, KV_DURABLE, e);
}

/* ---- disks that were away ---- */

static int note_start(struct disk *d, struct id128 last, struct id128 now, struct err *e)
{
    struct buf _cleanup_buf_ b = BUF_INIT(sizeof(last.b));
    struct id128 before = {{0}};
    int r = get_record(d, START_KEY, &b, e);
    if (r < 0 && r != -ENOENT)
        return r;
    if (b.n == sizeof(before.b))
        memcpy(before.b, b.p, b.n);
    lock_take(&d->lock);
    bool empty = d->extents == 0;
    lock_drop(&d->lock);
    struct kv_txn *_cleanup_(kv_txn_freep) t = kv_txn_new(d->kv);
    if (!empty && !id_eq(before, last)) {
        log_warn("store",
                 "disk %s: was away while the node ran, or a disk failed: origins are asked about what it "
                 "holds",
                 d->path);
        put_doubt(d, t);
    }
    kv_txn_put_plain(t, START_KEY, slice_of(now.b, sizeof(now.b)));
    return kv_txn_commit(t, KV_DURABLE, e);
}

int store_note_start(struct store *s, struct id128 last, struct id128 now, struct err *e)
{
    assert(s && !s->read_only);
    for (size_t i = 0; i < s->n_disks; i++) {
        int r = note_start(&s->disks[i], last, now, e);
        if (r < 0)
            return err_prefix(e, r, "disk %s: index", s->disks[i].path);
    }
    return 0;
}

/* ---- an index without its last commits ---- */

bool store_is_cut(const struct store *s)
{
    bool cut = false;
    for (size_t i = 0; i < s->n_disks; i++)
        cut |= kv_is_cut(s->disks[i].kv);
    return cut;
}

/* When this is cut short the note stays, by which the next cut has more files looked at than it must. */
static int forget_cut(struct disk *d, struct err *e)
{
    struct kv_txn *_cleanup_(kv_txn_freep) t = kv_txn_new(d->kv);
    kv_txn_delete(t, CUT_KEY);
    return kv_txn_commit(t, KV_VISIBLE, e);
}

int store_cut_mended(struct store *s, struct err *e)
{
    for (size_t i = 0; i < s->n_disks; i++) {
        bool was_cut = kv_is_cut(s->disks[i].kv);
        int r = kv_cut_mended(s->disks[i].kv, e);
        if (r == 0 && was_cut)
            r = forget_cut(&s->disks[i], e);
        if (r < 0)
            return err_prefix(e, r, "disk %s: index", s->disks[i].path);
    }
    return 0;
}

/* ---- what was not finished ---- */

/* Deletes the chunk records of a staged extent that never became an entry. */
static int delete_chunks(struct disk *d, struct id128 id, struct kv_txn *t, struct err *e)
{
    struct format_key from, to;
    format_key_chunk(id, 0, &from);
    format_key_chunk(id, UINT32_MAX, &to);
    struct kv_iter *_cleanup_(kv_iter_freep) it =
        kv_iter_new(d->kv, format_key_view(&from), format_key_view(&to));
    struct slice k, v;
    int r;
    while ((r = kv_iter_next(it, &k, &v, e)) == 0)
        kv_txn_delete(t, k);
    return r == -ENOENT ? 0 : r;
}

/* Removes the files that the last run had made and no entry names. */
static int remove_staged(struct disk *d, struct err *e)
{
    struct kv_iter *_cleanup_(kv_iter_freep) it = kv_iter_new(d->kv, SLICE_LIT("s"), SLICE_LIT("t"));
    struct kv_txn *_cleanup_(kv_txn_freep) t = kv_txn_new(d->kv);
    struct slice k, v;
    uint64_t n = 0, files = 0;
    int r;
    while ((r = kv_iter_next(it, &k, &v, e)) == 0) {
        struct id128 id;
        char path[DISK_PATH_MAX];
        if (format_key_parse_id(k, &id) == 0) {
            disk_extent_path(d, id, path);
            int u = sys->unlink(path);
            if (u < 0 && u != -ENOENT) { /* its bytes are in nobody's way: the next start tries again */
                (void)disk_log_error(d, "unlink an extent file", u);
                continue;
            }
            files += u == 0; /* markers are made ahead of files */
            int c = delete_chunks(d, id, t, e);
            if (c < 0)
                return c;
        }
        kv_txn_delete(t, k);
        if (++n % MARKERS_PER_COMMIT == 0 && (r = kv_txn_commit(t, KV_VISIBLE, e)) < 0)
            return r;
    }
    if (r != -ENOENT)
        return r;
    if (files > 0)
        log_info("store", "disk %s: removed %llu unfinished files", d->path, (unsigned long long)files);
    return kv_txn_commit(t, KV_VISIBLE, e);
}

/* ---- what was on its way out ---- */

struct remains {
    struct disk *d;
    struct kv_txn *txn; /* NULL: read-only */
    uint64_t n, in_txn;
    int code; /* of the index or of an unlink */
    struct err *e;
};

/* One that cannot be read is a matter of the check. */
static int get_or_none(struct disk *d, struct slice key, struct buf *b, struct err *e)
{
    int r = get_record(d, key, b, e);
    return r == -E2BIG || r == -EBADMSG ? -ENOENT : r;
}

/* The entry that the index still has of an id, which a run has noted as dying. -ENOENT: none any more. */
static int entry_of(struct disk *d, struct id128 id, struct format_key *ret_key, struct format_entry *ret,
                    struct buf *b, struct err *e)
{
    struct format_key back;
    struct buf _cleanup_buf_ key = BUF_INIT(STORE_KEY_MAX_BYTES);
    format_key_id('x', id, &back);
    int r = get_or_none(d, format_key_view(&back), &key, e);
    if (r < 0)
        return r;
    format_key_bytes('o', buf_view(&key), ret_key);
    r = get_or_none(d, format_key_view(ret_key), b, e);
    bool is_it = r == 0 && format_entry_decode(buf_view(b), ret) == 0 && id_eq(ret->id, id);
    return r < 0 ? r : is_it ? 0 : -ENOENT;
}

static void discount(struct disk *d, const struct format_entry *r)
{
    uint64_t charge = format_charge(r->size_bytes, r->present_blocks);
    charge = MIN(charge, d->count.used_bytes);
    d->count.used_bytes -= charge;
    d->used_bytes -= charge;
    d->written_bytes -= charge;
    d->extents -= d->count.extents > 0;
    d->count.extents -= d->count.extents > 0;
}

static int commit_remains(struct remains *m)
{
    struct buf _cleanup_buf_ b = BUF_INIT(64);
    if (m->in_txn == 0)
        return 0;
    m->in_txn = 0;
    format_count_encode(&m->d->count, &b);
    kv_txn_put_plain(m->txn, SLICE_LIT("mcount"), buf_view(&b));
    return kv_txn_commit(m->txn, KV_VISIBLE, m->e);
}

/* Its file, if it is still there, and its records. */
static int remove_remains(struct remains *m, struct id128 id, const struct format_key *key,
                          const struct format_entry *entry)
{
    struct disk *d = m->d;
    struct format_key k;
    char path[DISK_PATH_MAX];
    disk_extent_path(d, id, path);
    int r = sys->unlink(path);
    if (r < 0 && r != -ENOENT)
        return err_errno(m->e, r, "unlink %s", path);
    discount(d, entry);
    kv_txn_delete(m->txn, format_key_view(key));
    format_key_id('x', id, &k);
    kv_txn_delete(m->txn, format_key_view(&k));
    r = delete_chunks(d, id, m->txn, m->e);
    return r < 0 || ++m->in_txn < MARKERS_PER_COMMIT ? r : commit_remains(m);
}

static int end_dying(void *arg, struct id128 id)
{
    struct remains *m = arg;
    struct buf _cleanup_buf_ b = BUF_INIT(STORE_ATTR_MAX_BYTES + FORMAT_ENTRY_HEAD_BYTES);
    struct format_key key;
    struct format_entry entry;
    int r = entry_of(m->d, id, &key, &entry, &b, m->e);
    if (r == -ENOENT)
        return 0;
    m->n += r == 0;
    if (r == 0 && m->txn)
        r = remove_remains(m, id, &key, &entry);
    else if (r == 0)
        doom_remember(m->d, id);
    m->code = r;
    return r;
}

/* Entries whose file the last run had unlinked, or was about to, and whose records it had not deleted yet. */
static int end_all_dying(struct disk *d, struct err *e)
{
    struct kv_txn *_cleanup_(kv_txn_freep) t = d->store->read_only ? NULL : kv_txn_new(d->kv);
    struct remains m = {.d = d, .txn = t, .e = e};
    int r = d->was_clean ? 0 : dying_read(d, end_dying, &m);
    if (r < 0 && m.code == 0) /* what it would have told is found by whoever asks for it */
        (void)disk_log_error(d, "read the table of dying entries", r);
    r = m.code;
    if (r == 0 && t)
        r = commit_remains(&m);
    if (r < 0)
        return r;
    if (t && m.n > 0)
        log_info("store", "disk %s: removed %llu entries that were on their way out", d->path,
                 (unsigned long long)m.n);
    d->n_left_dying = t ? 0 : m.n;
    if (t)
        dying_start(d);
    return 0;
}

int recover_disk(struct disk *d, struct err *e)
{
    int r = load_counts(d, e);
    if (r < 0)
        return err_prefix(e, r, "index");
    d->used_bytes += d->hard->bytes;
    d->written_bytes += d->hard->bytes;
    d->running = d->epoch.durable + 1;
    if (d->store->read_only) {
        /* Nothing is written, but what the last run left behind is judged as at a real start. */
        if (!d->was_clean)
            format_epoch_distrust(&d->epoch, d->epoch.durable + EPOCHS_AT_MOST);
        return end_all_dying(d, e);
    }
    if (!d->was_clean) {
        log_info("store",
                 "disk %s: was not stopped cleanly; recent blocks are verified before they are served",
                 d->path);
        struct format_epoch epoch = d->epoch;
        format_epoch_distrust(&epoch, epoch.durable + EPOCHS_AT_MOST);
        r = flush_commit_epoch(d, &epoch, e);
        if (r < 0)
            return err_prefix(e, r, "index");
        d->epoch = epoch;
        d->running = epoch.durable + 1;
    }
    r = end_all_dying(d, e);
    if (r == 0)
        r = remove_staged(d, e);
    return r < 0 ? err_prefix(e, r, "unfinished files") : 0;
}

/* The newest of the disks' data-set tables. */
int recover_sets(struct store *s, struct err *e)
{
    uint64_t cache_bytes = 0;
    for (size_t i = 0; i < s->n_disks; i++)
        cache_bytes += s->disks[i].limit_bytes;
    cache_bytes = MAX(cache_bytes, (uint64_t)1); /* all of them may be no larger than the reserve */
    for (size_t i = 0; i < s->n_disks; i++) {
        struct buf _cleanup_buf_ b = BUF_INIT(STORE_SETS_MAX_BYTES);
        int r = get_record(&s->disks[i], SLICE_LIT("d"), &b, e);
        if (r == -ENOENT || (r == 0 && b.n < 8))
            continue;
        if (r < 0)
            return err_prefix(e, r, "disk %s: index", s->disks[i].path);
        uint64_t generation = le_get64(b.p);
        struct evict_sets *t = NULL;
        if (generation <= s->sets_generation ||
            evict_sets_decode(slice_from(buf_view(&b), 8), cache_bytes, &t) < 0)
            continue;
        evict_sets_free(s->sets);
        s->sets = t;
        s->sets_generation = generation;
    }
    if (!s->sets)
        s->sets = evict_sets_new(cache_bytes);
    return 0;
}

/* ---- files that nothing names ---- */

/* 1: the key's entry on this disk is of this id, or its record is damaged, so that nobody knows; 0: it is
 * not; or an error of the index. */
static int has_entry(struct disk *d, struct slice key, struct id128 id)
{
    struct buf _cleanup_buf_ b = BUF_INIT(STORE_ATTR_MAX_BYTES + FORMAT_ENTRY_HEAD_BYTES);
    struct format_entry r;
    struct format_key k;
    if (key.n == 0 || key.n > STORE_KEY_MAX_BYTES)
        return 1;
    format_key_bytes('o', key, &k);
    int code = kv_get(d->kv, format_key_view(&k), &b, NULL, NULL);
    if (code == 0)
        code = format_entry_decode(buf_view(&b), &r);
    return code == 0 ? id_eq(r.id, id) : code == -ENOENT ? 0 : record_is_damaged(code) ? 1 : code;
}

/* 1, 0, or an error of the index, after which nothing is known. The marker is asked for first: it disappears
 * in the commit that writes the back reference. *ret_key: not named and not empty, the key that a back
 * reference names although it has no such entry: its record was damaged, and dropped. */
static int is_named(struct disk *d, struct id128 id, struct buf *ret_key)
{
    struct format_key k;
    buf_clear(ret_key);
    format_key_id('s', id, &k);
    int r = kv_get(d->kv, format_key_view(&k), NULL, NULL, NULL);
    if (r != -ENOENT)
        return r == 0 || record_is_damaged(r) ? 1 : r;
    format_key_id('x', id, &k);
    r = kv_get(d->kv, format_key_view(&k), ret_key, NULL, NULL);
    if (r == 0)
        return has_entry(d, buf_view(ret_key), id);
    return r == -ENOENT ? 0 : record_is_damaged(r) ? 1 : r;
}

/* Blocks that the records of an extent with so many say are there; one has no such record. */
static int count_present(struct disk *d, struct id128 id, uint64_t blocks, uint32_t *ret)
{
    struct format_key from, to;
    struct format_chunk c;
    struct slice k, v;
    uint32_t n = blocks == 1;
    int r = -ENOENT;
    format_key_chunk(id, 0, &from);
    format_key_chunk(id, UINT32_MAX, &to);
    struct kv_iter *_cleanup_(kv_iter_freep) it =
        kv_iter_new(d->kv, format_key_view(&from), format_key_view(&to));
    while (blocks > 1 && (r = kv_iter_next(it, &k, &v, NULL)) == 0) {
        if (format_chunk_decode(v, &c) < 0)
            continue;
        for (uint32_t i = 0; i < c.n_blocks; i++)
            n += c.present[i / 8] >> (i % 8) & 1;
    }
    *ret = (uint32_t)MIN((uint64_t)n, blocks);
    return r == -ENOENT ? 0 : r;
}

/* The file of an entry whose record was dropped, and what is left of its records and counts. */
static int drop_lost(struct disk *d, struct slice key, struct id128 id, uint64_t size_bytes)
{
    struct store *s = d->store;
    struct format_entry r = {.id = id, .size_bytes = size_bytes, .data_set = UINT32_MAX};
    struct buf _cleanup_buf_ again = BUF_INIT(STORE_KEY_MAX_BYTES);
    struct key_owner o;
    int code = size_bytes > STORE_SIZE_MAX_BYTES ? -EFBIG : 0;
    if (code == 0)
        code = count_present(d, id, format_blocks(size_bytes), &r.present_blocks);
    if (code < 0)
        return code;
    table_begin(s, key, &o);
    uint64_t rounds = doom_rounds(d);
    struct extent *x = table_find(s, key, o.hash);
    if (x && id_eq(x->id, id)) {
        extent_record_anew(x);
    } else if ((code = is_named(d, id, &again)) == 0 && slice_eq(buf_view(&again), key) &&
               !doom_contains(d, id) && doom_rounds(d) == rounds) {
        code = doom_lost(d, key, &r);
    }
    table_end(s, &o);
    extent_unref(x);
    return MIN(code, 0);
}

static bool stopping(struct disk *d)
{
    LOCK_SCOPE(&d->lock);
    return d->stop;
}

struct orphans {
    bool repair;
    uint64_t files, bytes;
};

/* A file of this name in the directory. */
static int walk_file(struct disk *d, const char *dir, const char *name, struct orphans *w)
{
    struct buf _cleanup_buf_ key = BUF_INIT(STORE_KEY_MAX_BYTES);
    struct id128 id;
    struct stat st;
    char path[DISK_PATH_MAX + 256];
    if (id_parse(slice_str(name), &id) < 0)
        return 0;
    int named = is_named(d, id, &key);
    if (named != 0)
        return MIN(named, 0);
    (void)snprintf(path, sizeof(path), "%s/%s", dir, name);
    int r = sys->stat(path, &st);
    /* Deleted between readdir and here, or made between the two: neither is an orphan. */
    named = r == 0 ? is_named(d, id, &key) : 0;
    if (r < 0 || named != 0)
        return r == -ENOENT ? 0 : MIN(r < 0 ? r : named, 0);
    w->files++;
    w->bytes += (uint64_t)st.st_blocks * 512;
    if (!w->repair)
        return 0;
    r = key.n > 0 ? drop_lost(d, buf_view(&key), id, (uint64_t)st.st_size) : sys->unlink(path);
    return r == -ENOENT ? 0 : r;
}

/* The first error; what can be seen to behind it is. */
static int walk_directory(struct disk *d, const char *dir, struct orphans *w)
{
    DIR *o = opendir(dir);
    if (!o)
        return errno == ENOENT ? 0 : -errno;
    struct dirent *de = NULL;
    int first = 0, r;
    while ((r = sys->readdir(o, &de)) == 0 && de && !stopping(d)) {
        int one = walk_file(d, dir, de->d_name, w);
        first = first < 0 ? first : one;
    }
    (void)closedir(o);
    if (stopping(d))
        return -ECANCELED;
    return first < 0 ? first : r;
}

int recover_orphans(struct disk *d, bool repair, uint64_t *ret_files, uint64_t *ret_bytes)
{
    struct orphans w = {.repair = repair};
    int r = 0;
    for (unsigned i = 0; i < 256 && r != -ECANCELED; i++) {
        char dir[DISK_PATH_MAX];
        int n = snprintf(dir, sizeof(dir), "%s/extents/%02x", d->path, i);
        assert(n > 0 && n < (int)sizeof(dir));
        int one = stopping(d) ? -ECANCELED : walk_directory(d, dir, &w);
        r = r == 0 || one == -ECANCELED ? one : r;
    }
    *ret_files += w.files;
    *ret_bytes += w.bytes;
    return r;
}

void recover_sweep(struct disk *d)
{
    uint64_t files = 0, bytes = 0;
    struct err e = {0};
    int r = recover_orphans(d, /* repair= */ true, &files, &bytes);
    if (files > 0)
        log_info("store", "disk %s: removed %llu files without entries, %llu bytes", d->path,
                 (unsigned long long)files, (unsigned long long)bytes);
    if (r == 0) {
        struct kv_txn *_cleanup_(kv_txn_freep) t = kv_txn_new(d->kv);
        kv_txn_delete(t, SWEEP_KEY);
        r = kv_txn_commit(t, KV_VISIBLE, &e);
    }
    if (r < 0 && r != -ECANCELED)
        log_warn("store", "disk %s: looking for files without entries: %s; the next start looks again",
                 d->path, e.text[0] ? e.text : err_text(r));
}

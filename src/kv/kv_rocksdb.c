/*
 * The embedded engine: RocksDB through its C API.
 *
 * Stored value
 *
 *     offset  size  meaning
 *     0       1     form: 0 plain, 1 versioned
 *     1       8     version, little endian; only in form 1
 *     1 or 9  rest  the caller's value
 *
 * Invariants:
 *  1. All commits run one after the other under `commit_lock`, from the reading of the conditions to the
 * write into the log and the memtable, so that no commit comes between a check and the changes that rest on
 * it. The lock is held over a write(2) into the page cache (a few microseconds) and over the reads of the
 * conditions, as far as kv_recent.h does not know their versions; never over a sync.
 *  2. A version is the sequence number before the commit plus KV_VERSION_FIRST. RocksDB's numbers rise with
 * every change and come back with the log, so no two surviving commits share one.
 *  3. A durable commit returns after a sync of the log that began after its write. Waiting commits share one
 * sync: the first becomes leader, and its sync covers all that was written before it started.
 *
 * Files beside RocksDB's own: `forebay-lock`, which also says whether the last holder closed the database or
 * in which boot of the machine it was opened; `forebay-cut`, text, there from an opening that left out
 * commits until kv_cut_mended; `forebay-cut-N.log`, the log as it was then, for people.
 *
 * Failure modes: after power loss RocksDB replays its log up to the first record that is not whole; hence a
 * prefix of the commits survives. A record that is damaged in the middle looks the same to it: so the log is
 * read before (kv_wal.h), and when RocksDB comes back with less than it holds, the database is *cut*. After a
 * power loss that may be no more than what nobody had synced; it cannot be told. An I/O error in a sync
 * leaves the database refusing writes until it is opened again; every later commit reports it. So does a log
 * that takes no more, on a full disk: RocksDB writes to it again when there is room, and aborts the process
 * where nothing was written to that log before. What failed is told here, and the log left alone, until
 * RocksDB has removed it by itself, which it does unless it had nothing to flush. A second process is refused
 * by an flock on `forebay-lock` before RocksDB looks at the files.
 */
#include "base/le.h"
#include "base/lock.h"
#include "base/log.h"
#include "base/metrics.h"
#include "base/sys.h"
#include "base/thread.h"
#include "kv/kv_recent.h"
#include "kv/kv_wal.h"
#include "kv/rocks.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>

#define VERSIONED_HEAD   9
#define SMALL_VALUE      1024 /* copied behind its head */
#define SORTED_MAX       32   /* changes of a commit that are put in order */
#define BATCH_KEPT_BYTES (64 * KIB)
#define WAL_BYTES_MAX    (64 * MIB)
#define MANIFEST_MAX     (16 * MIB)
#define FILES_OPEN_MAX   512
#define BLOCK_BYTES      (8 * KIB)
#define METADATA_BYTES   (4 * KIB)
#define BLOOM_BITS       10
#define MEMTABLE_BLOOM   0.02 /* of a write buffer: some 20 bits for a key of the namespace */
#define WRITE_BUFFER_MIN (1 * MIB)
#define LOCK_TEXT_MAX    128
#define LOG_HEADERS      5 /* HEADER_LEVEL of rocksdb/env.h */
#define OPENING_BYTES    (4 * MIB)
#define OPENING_THREADS  20 /* 16 of them open tables */
#define STACK_BYTES      (64 * KIB)
#define LOCK_CLOSED      "closed\n"
#define CUT_NAME         "forebay-cut"
#define PATH_BYTES       8192

struct kv_rocksdb {
    struct kv kv;
    rocksdb_t *db;
    rocksdb_options_t *options;
    rocksdb_block_based_table_options_t *table;
    rocksdb_cache_t *cache;
    rocksdb_readoptions_t *read;
    rocksdb_writeoptions_t *write;
    int lock_fd;
    char *path;
    bool bulk, read_only;
    bool settled; /* no write of the last holder can have been on its way to the disk when it ended */
    bool cut;

    struct kv_recent *recent; /* for conditions */

    struct lock commit_lock;     /* order of commits; the two fields below */
    uint64_t written;            /* commits written to the log, for the syncs */
    rocksdb_writebatch_t *batch; /* empty between commits */

    struct lock fault_lock; /* the fields below */
    struct err fault;       /* of the write that failed; code 0: none */
    uint64_t fault_log;     /* the number of the log that took no more */

    struct lock sync_lock; /* the fields below */
    struct cond synced_cond;
    uint64_t synced; /* commits known to be on disk */
    bool syncing;    /* a leader is at work */
};

struct kv_rocksdb_iter {
    struct kv_iter it;
    rocksdb_readoptions_t *read;
    const rocksdb_snapshot_t *snapshot;
    rocksdb_iterator_t *iter;
    char *from, *to; /* RocksDB keeps pointers to the bounds */
    bool started;
};

static struct kv_rocksdb *rocksdb_of(struct kv *kv)
{
    return container_of(kv, struct kv_rocksdb, kv);
}

/* Takes ownership of RocksDB's error text and gives a code for it. */
static int take_error(struct err *e, char *text, const char *what)
{
    int code = -EIO;
    if (strncmp(text, "Corruption", strlen("Corruption")) == 0)
        code = -EBADMSG;
    else if (strstr(text, "No space left"))
        code = -ENOSPC;
    else if (strstr(text, "Read-only file system") ||
             strncmp(text, "Not implemented", strlen("Not implemented")) == 0)
        code = -EROFS;
    (void)err_set(e, code, "%s: %s", what, text);
    rocks.free(text);
    return code;
}

/* ---- opening ---- */

static void set_table_options(struct kv_rocksdb *r, const struct kv_options *o)
{
    r->table = rocks.block_based_options_create();
    r->cache = rocks.cache_create_lru(MAX(o->cache_bytes, MIB));
    rocks.block_based_options_set_block_cache(r->table, r->cache);
    rocks.block_based_options_set_block_size(r->table, BLOCK_BYTES);
    rocks.block_based_options_set_format_version(r->table, 5);
    /* Filters and indexes are cut into pieces and live in the cache, so that their memory is bounded by it.
     */
    rocks.block_based_options_set_filter_policy(r->table, rocks.filterpolicy_create_bloom_full(BLOOM_BITS));
    rocks.block_based_options_set_index_type(r->table,
                                             rocksdb_block_based_table_index_type_two_level_index_search);
    rocks.block_based_options_set_partition_filters(r->table, 1);
    rocks.block_based_options_set_metadata_block_size(r->table, METADATA_BYTES);
    rocks.block_based_options_set_cache_index_and_filter_blocks(r->table, 1);
    rocks.block_based_options_set_cache_index_and_filter_blocks_with_high_priority(r->table, 1);
    rocks.block_based_options_set_pin_top_level_index_and_filter(r->table, 1);
    rocks.options_set_block_based_table_factory(r->options, r->table);
}

static void set_options(struct kv_rocksdb *r, const struct kv_options *o)
{
    uint64_t buffers = MAX(o->write_buffer_bytes, 2 * WRITE_BUFFER_MIN);
    r->options = rocks.options_create();
    rocks.options_set_create_if_missing(r->options, 1);
    rocks.options_set_paranoid_checks(r->options, 1);
    rocks.options_set_write_buffer_size(r->options, MIN(buffers / 2, 64 * MIB));
    rocks.options_set_db_write_buffer_size(r->options, buffers);
    rocks.options_set_max_write_buffer_number(r->options, 4);
    /* Conditions ask for keys that are not there: new names, new inodes, answers. */
    rocks.options_set_memtable_prefix_bloom_size_ratio(r->options, MEMTABLE_BLOOM);
    rocks.options_set_memtable_whole_key_filtering(r->options, 1);
    rocks.options_set_max_total_wal_size(r->options, WAL_BYTES_MAX);
    rocks.options_set_wal_bytes_per_sync(r->options, MIB);
    rocks.options_set_bytes_per_sync(r->options, MIB);
    rocks.options_set_wal_recovery_mode(r->options, rocksdb_point_in_time_recovery);
    rocks.options_set_compression(r->options, rocksdb_lz4_compression);
    rocks.options_set_level_compaction_dynamic_level_bytes(r->options, 1);
    rocks.options_set_max_background_jobs(r->options, 2);
    rocks.options_set_max_open_files(r->options, FILES_OPEN_MAX);
    /* What would read every table file at open, or write statistics that nobody reads. */
    rocks.options_set_skip_stats_update_on_db_open(r->options, 1);
    rocks.options_set_skip_checking_sst_file_sizes_on_db_open(r->options, 1);
    rocks.options_set_stats_dump_period_sec(r->options, 0);
    rocks.options_set_stats_persist_period_sec(r->options, 0);
    /* A second line that finds no room in its file LOG aborts the process: nothing but what it has to say at
     * the opening, for which take_room sees to it that there is some. Errors are told to who meets them. */
    rocks.options_set_info_log_level(r->options, LOG_HEADERS);
    rocks.options_set_keep_log_file_num(r->options, 2);
    rocks.options_set_max_log_file_size(r->options, MIB);
    /* It has a line for each flush and compaction since the opening, all of which the next opening reads: by
     * itself RocksDB would go on to 1 GiB. */
    rocks.options_set_max_manifest_file_size(r->options, MANIFEST_MAX);
    if (o->bulk) {
        rocks.options_set_level0_slowdown_writes_trigger(r->options, 64);
        rocks.options_set_level0_stop_writes_trigger(r->options, 128);
    }
    set_table_options(r, o);
}

static void rocksdb_free_all(struct kv_rocksdb *r)
{
    if (r->db) {
        rocks.cancel_all_background_work(r->db, /* wait= */ 1);
        rocks.close(r->db);
    }
    if (r->read)
        rocks.readoptions_destroy(r->read);
    if (r->write)
        rocks.writeoptions_destroy(r->write);
    if (r->options)
        rocks.options_destroy(r->options);
    if (r->table)
        rocks.block_based_options_destroy(r->table);
    if (r->cache)
        rocks.cache_destroy(r->cache);
    if (r->lock_fd >= 0)
        (void)sys->close(r->lock_fd);
    free(r->path);
    rocks.writebatch_destroy(r->batch);
    kv_recent_free(r->recent);
    lock_fini(&r->commit_lock);
    lock_fini(&r->fault_lock);
    lock_fini(&r->sync_lock);
    cond_fini(&r->synced_cond);
    free(r);
}

/* One process per directory. The lock goes with the descriptor, so a killed holder leaves nothing behind. */
static int take_directory(struct kv_rocksdb *r, const char *path, struct err *e)
{
    _cleanup_free_ char *name = NULL;
    if (asprintf(&name, "%s/forebay-lock", path) < 0)
        abort();
    if (!r->read_only) {
        int m = sys_mkdir_p(path, 0700);
        if (m < 0)
            return err_errno(e, m, "make directory %s", path);
    }
    int flags = r->read_only ? O_RDONLY | O_CLOEXEC : O_RDWR | O_CREAT | O_CLOEXEC;
    int fd = sys->open(name, flags, 0600);
    if (fd < 0)
        return err_errno(e, fd, "open %s", name);
    r->lock_fd = fd;
    if (flock(fd, LOCK_EX | LOCK_NB) < 0)
        return errno == EWOULDBLOCK ? err_set(e, -EBUSY, "%s: in use by another process", path)
                                    : err_errno(e, -errno, "lock %s", name);
    return 0;
}

/* What the lock says from now on, while the database is open. */
static void this_boot(char ret[LOCK_TEXT_MAX])
{
    _cleanup_free_ char *boot = NULL;
    size_t n = 0;
    ret[0] = '\0';
    if (sys_read_file("/proc/sys/kernel/random/boot_id", LOCK_TEXT_MAX, &boot, &n) == 0)
        (void)snprintf(ret, LOCK_TEXT_MAX, "boot %.64s", boot);
}

/* What the lock says of its last holder. */
static void read_lock(struct kv_rocksdb *r)
{
    char now[LOCK_TEXT_MAX], before[LOCK_TEXT_MAX] = "";
    this_boot(now);
    ssize_t got = sys->pread(r->lock_fd, before, sizeof(before) - 1, 0);
    r->settled = got > 0 && (strcmp(before, LOCK_CLOSED) == 0 || strcmp(before, now) == 0);
}

/* After RocksDB has read the log, so that an opening that is cut short says nothing of the one before.
 * Synced: after a power loss "closed" would be wrong. Only a hint: what cannot be written reads as "not
 * settled". */
static void note_open(struct kv_rocksdb *r)
{
    char now[LOCK_TEXT_MAX];
    this_boot(now);
    if (r->read_only || sys->ftruncate(r->lock_fd, 0) < 0)
        return;
    if (sys_pwrite_all(r->lock_fd, now, strlen(now), 0) == 0)
        (void)sys->fdatasync(r->lock_fd);
}

static void note_closed(struct kv_rocksdb *r)
{
    if (sys->ftruncate(r->lock_fd, 0) == 0)
        (void)sys_pwrite_all(r->lock_fd, LOCK_CLOSED, strlen(LOCK_CLOSED), 0);
}

/* ---- a log that is damaged ---- */

static void cut_path(const struct kv_rocksdb *r, char ret[PATH_BYTES])
{
    (void)snprintf(ret, PATH_BYTES, "%s/" CUT_NAME, r->path);
}

/* fn for each log in the directory: RocksDB's, or ours. */
static int each_log(const struct kv_rocksdb *r, bool ours, void (*fn)(const char *dir, const char *name))
{
    DIR *d = opendir(r->path);
    if (!d)
        return -errno;
    struct dirent *de = NULL;
    int code;
    while ((code = sys->readdir(d, &de)) == 0 && de) {
        size_t n = strlen(de->d_name);
        bool is_log = n > 4 && strcmp(de->d_name + n - 4, ".log") == 0;
        bool is_ours = strncmp(de->d_name, CUT_NAME, strlen(CUT_NAME)) == 0;
        if (is_log && is_ours == ours)
            fn(r->path, de->d_name);
    }
    (void)closedir(d);
    return code;
}

static void keep_log(const char *dir, const char *name)
{
    char from[PATH_BYTES], to[PATH_BYTES];
    (void)snprintf(from, sizeof(from), "%s/%s", dir, name);
    (void)snprintf(to, sizeof(to), "%s/" CUT_NAME "-%s", dir, name);
    if (link(from, to) < 0 && errno != EEXIST)
        log_warn("kv", "keep %s: %s", from, err_text(-errno));
}

static void drop_log(const char *dir, const char *name)
{
    char path[PATH_BYTES];
    (void)snprintf(path, sizeof(path), "%s/%s", dir, name);
    (void)sys->unlink(path);
}

/* Before RocksDB reads a log that is damaged, after which nobody can see that any more: for the next opening,
 * if this one is cut short. */
static int note_damage(struct kv_rocksdb *r, struct err *e)
{
    static const char text[] =
        "The log of this database was damaged when it was opened, and what lay behind that "
        "place was left out.\nforebay-cut-*.log are the logs as they were.\n";
    char path[PATH_BYTES];
    cut_path(r, path);
    int code = each_log(r, /* ours= */ false, keep_log);
    if (code < 0)
        return err_errno(e, code, "%s: keep the log", r->path);
    code = sys_write_file_atomic(path, text, strlen(text), 0600);
    return code < 0 ? err_errno(e, code, "write %s", path) : 0;
}

static void forget_damage(struct kv_rocksdb *r)
{
    char path[PATH_BYTES];
    cut_path(r, path);
    int code = each_log(r, /* ours= */ true, drop_log);
    if (code < 0)
        log_warn("kv", "%s: remove " CUT_NAME "-*.log: %s", r->path, err_text(code));
    (void)sys->unlink(path);
}

/* After the opening: whether RocksDB left out what the log has. */
static void judge(struct kv_rocksdb *r, const struct kv_wal *w, bool was_cut)
{
    uint64_t last = rocks.get_latest_sequence_number(r->db);
    bool lost = w->last > last || w->gap || (w->bad_end && r->settled);
    r->cut = was_cut || lost;
    if (lost)
        metrics_count(METRIC_LOGS_CUT, r->path, NULL, NULL);
    if (lost)
        log_error(
            "kv",
            "%s: the log is damaged: the last changes in it, at least %llu, are lost, perhaps also some that "
            "were durable; the log is kept as " CUT_NAME "-*.log",
            r->path, (unsigned long long)(w->last > last ? w->last - last : 1));
    else if (w->damaged && !was_cut && !r->read_only)
        forget_damage(r);
}

/* Whether there is room for what RocksDB writes in any opening; where there is none it aborts the process.
 * Only a file that is made finds out about quotas, inodes and what is kept for others. */
static int take_room(const struct kv_rocksdb *r, struct err *e)
{
    char path[PATH_BYTES];
    (void)snprintf(path, sizeof(path), "%s/forebay-room", r->path);
    int fd = sys->open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0)
        return err_errno(e, fd, "open %s", path);
    int code = sys->fallocate(fd, /* mode= */ 0, 0, OPENING_BYTES);
    (void)sys->close(fd);
    (void)sys->unlink(path);
    if (code == -ENOSPC || code == -EDQUOT)
        return err_errno(e, code, "%s: to be opened it needs %d MiB of room, which is not there", r->path,
                         (int)(OPENING_BYTES / MIB));
    return 0; /* where nothing can be taken ahead, the opening will tell */
}

static void *pass(void *arg)
{
    struct lock *gate = arg;
    LOCK_SCOPE(gate);
    return NULL;
}

/* Whether RocksDB can have its threads, at once; where it gets none it aborts the process. */
static int take_threads(const struct kv_rocksdb *r, struct err *e)
{
    pthread_t threads[OPENING_THREADS];
    struct lock gate;
    size_t n = 0;
    int code = 0;
    lock_init(&gate, LOCK_LEAF);
    lock_take(&gate);
    while (code == 0 && n < OPENING_THREADS) {
        code = thread_start(&threads[n], STACK_BYTES, pass, &gate);
        n += code == 0;
    }
    lock_drop(&gate);
    for (size_t i = 0; i < n; i++)
        (void)pthread_join(threads[i], NULL);
    lock_fini(&gate);
    if (code < 0)
        return err_errno(e, code, "%s: no more than %zu threads can be made (ulimit -u, pids.max)", r->path,
                         n);
    return 0;
}

static int open_db(struct kv_rocksdb *r, struct err *e)
{
    struct kv_wal wal;
    struct stat st;
    char path[PATH_BYTES], *text = NULL;
    cut_path(r, path);
    bool was_cut = sys->stat(path, &st) == 0;
    int code = kv_wal_read(r->path, &wal);
    if (code < 0)
        return err_errno(e, code, "%s: read the log", r->path);
    if (wal.damaged && !was_cut && !r->read_only && (code = note_damage(r, e)) < 0)
        return code;
    if (!r->read_only && (code = take_room(r, e)) < 0)
        return code;
    if ((code = take_threads(r, e)) < 0)
        return code;
    r->db = r->read_only
                ? rocks.open_for_read_only(r->options, r->path, /* error_if_wal_file_exists= */ 0, &text)
                : rocks.open(r->options, r->path, &text);
    if (text)
        return take_error(e, text, r->path);
    judge(r, &wal, was_cut);
    return 0;
}

static const struct kv_engine rocksdb_engine;

int kv_open_rocksdb(const char *path, const struct kv_options *options, struct kv **ret, struct err *e)
{
    assert(path && options && ret);
    int code = rocks_load(e);
    if (code < 0)
        return code;
    struct kv_rocksdb *r = calloc(1, sizeof(*r));
    if (!r)
        abort();
    r->kv.engine = &rocksdb_engine;
    r->lock_fd = -1;
    r->bulk = options->bulk;
    r->read_only = options->read_only;
    if (asprintf(&r->path, "%s", path) < 0)
        abort();
    r->recent = kv_recent_new();
    r->batch = rocks.writebatch_create();
    lock_init(&r->commit_lock, LOCK_KV);
    lock_init(&r->fault_lock, LOCK_LEAF);
    lock_init(&r->sync_lock, LOCK_KV);
    cond_init(&r->synced_cond);
    code = strlen(path) < PATH_BYTES / 2 ? take_directory(r, path, e) : err_errno(e, -ENAMETOOLONG, "open");
    if (code < 0)
        goto fail;
    read_lock(r);
    set_options(r, options);
    r->read = rocks.readoptions_create();
    r->write = rocks.writeoptions_create();
    rocks.writeoptions_set_sync(r->write, 0);
    rocks.writeoptions_disable_WAL(r->write, r->bulk);
    code = open_db(r, e);
    if (code < 0)
        goto fail;
    note_open(r);
    *ret = &r->kv;
    return 0;

fail:
    rocksdb_free_all(r);
    return code;
}

/* ---- reading ---- */

/* Splits a stored value; -EBADMSG when its form is unknown. */
static int value_decode(struct slice stored, struct slice *ret_value, uint64_t *ret_version)
{
    if (stored.n >= 1 && stored.p[0] == 0) {
        *ret_value = slice_from(stored, 1);
        *ret_version = KV_VERSION_PLAIN;
        return 0;
    }
    if (stored.n < VERSIONED_HEAD || stored.p[0] != 1)
        return -EBADMSG;
    *ret_value = slice_from(stored, VERSIONED_HEAD);
    *ret_version = le_get64(stored.p + 1);
    return 0;
}

/* RocksDB counts each comparison of two keys, for each thread, unless the thread asks it not to. */
static void count_nothing(void)
{
    static _Thread_local bool asked;
    if (!asked)
        rocks.set_perf_level(rocksdb_disable);
    asked = true;
}

static int engine_get(struct kv *kv, struct slice key, struct buf *ret_value, uint64_t *ret_version,
                      struct err *e)
{
    struct kv_rocksdb *r = rocksdb_of(kv);
    char *text = NULL;
    count_nothing();
    uint64_t ticket = kv_recent_ticket(r->recent);
    rocksdb_pinnableslice_t *pinned = rocks.get_pinned(r->db, r->read, key.p, key.n, &text);
    if (text)
        return take_error(e, text, "get");
    if (!pinned) {
        if (ret_version) /* who asks for it may name it as a condition */
            kv_recent_note(r->recent, key, 0, ticket);
        return -ENOENT;
    }
    size_t n = 0;
    const char *p = rocks.pinnableslice_value(pinned, &n);
    struct slice value = SLICE_NULL;
    uint64_t version = 0;
    int code = value_decode(slice_of(p, n), &value, &version);
    if (code < 0)
        (void)err_set(e, code, "get: value of unknown form");
    else if (ret_value)
        code = buf_slice(ret_value, value);
    rocks.pinnableslice_destroy(pinned);
    if (code < 0 || !ret_version)
        return code;
    *ret_version = version;
    kv_recent_note(r->recent, key, version, ticket);
    return 0;
}

static char *dup_bytes(struct slice s)
{
    char *p = malloc(s.n + 1);
    if (!p)
        abort();
    if (s.n > 0)
        memcpy(p, s.p, s.n);
    return p;
}

static struct kv_iter *engine_iter_new(struct kv *kv, struct slice from, struct slice to)
{
    struct kv_rocksdb *r = rocksdb_of(kv);
    struct kv_rocksdb_iter *it = calloc(1, sizeof(*it));
    if (!it)
        abort();
    it->snapshot = rocks.create_snapshot(r->db);
    it->read = rocks.readoptions_create();
    rocks.readoptions_set_snapshot(it->read, it->snapshot);
    /* A scan must not push out of the cache what gets need. */
    rocks.readoptions_set_fill_cache(it->read, 0);
    it->from = dup_bytes(from);
    if (to.n > 0) {
        it->to = dup_bytes(to);
        rocks.readoptions_set_iterate_upper_bound(it->read, it->to, to.n);
    }
    it->iter = rocks.create_iterator(r->db, it->read);
    rocks.iter_seek(it->iter, it->from, from.n);
    return &it->it;
}

static void engine_iter_free(struct kv_iter *base)
{
    struct kv_rocksdb_iter *it = container_of(base, struct kv_rocksdb_iter, it);
    rocks.iter_destroy(it->iter);
    rocks.release_snapshot(rocksdb_of(base->kv)->db, it->snapshot);
    rocks.readoptions_destroy(it->read);
    free(it->from);
    free(it->to);
    free(it);
}

static int engine_iter_next(struct kv_iter *base, struct slice *ret_key, struct slice *ret_value,
                            struct err *e)
{
    struct kv_rocksdb_iter *it = container_of(base, struct kv_rocksdb_iter, it);
    if (it->started)
        rocks.iter_next(it->iter);
    if (!rocks.iter_valid(it->iter)) {
        it->started = false; /* stays at the end however often it is asked */
        char *text = NULL;
        rocks.iter_get_error(it->iter, &text);
        return text ? take_error(e, text, "scan") : -ENOENT;
    }
    it->started = true;
    size_t key_bytes = 0, value_bytes = 0;
    const char *k = rocks.iter_key(it->iter, &key_bytes);
    const char *v = rocks.iter_value(it->iter, &value_bytes);
    uint64_t version;
    struct slice value;
    int code = value_decode(slice_of(v, value_bytes), &value, &version);
    if (code < 0)
        return err_set(e, code, "scan: value of unknown form");
    *ret_key = slice_of(k, key_bytes);
    *ret_value = value;
    return 0;
}

/* ---- writing ---- */

static int check_conditions(struct kv_rocksdb *r, const struct kv_txn *t, struct err *e)
{
    struct kv_op op;
    size_t pos = 0;
    while (kv_txn_next(t, &pos, &op)) {
        if (op.kind != KV_OP_CHECK)
            continue;
        uint64_t version = 0;
        bool known = kv_recent_find(r->recent, op.key, &version);
        int code = known ? 0 : engine_get(&r->kv, op.key, NULL, &version, e);
        if (code < 0 && code != -ENOENT)
            return code;
        if (version != op.version)
            return err_set(e, ERR_CONFLICT, "key changed meanwhile");
    }
    return 0;
}

static void batch_put(rocksdb_writebatch_t *b, const struct kv_op *op, uint64_t version)
{
    char head[VERSIONED_HEAD + SMALL_VALUE];
    size_t head_bytes = 1;
    head[0] = 0;
    if (op->kind == KV_OP_PUT) {
        head[0] = 1;
        le_put64(head + 1, version);
        head_bytes = VERSIONED_HEAD;
    }
    if (op->value.n <= SMALL_VALUE) {
        if (op->value.n > 0)
            memcpy(head + head_bytes, op->value.p, op->value.n);
        rocks.writebatch_put(b, op->key.p, op->key.n, head, head_bytes + op->value.n);
        return;
    }
    const char *keys[] = {op->key.p}, *values[] = {head, op->value.p};
    const size_t key_sizes[] = {op->key.n}, value_sizes[] = {head_bytes, op->value.n};
    rocks.writebatch_putv(b, 1, keys, key_sizes, 2, values, value_sizes);
}

static void batch_add(rocksdb_writebatch_t *b, const struct kv_op *op, uint64_t version)
{
    switch (op->kind) {
    case KV_OP_CHECK:
        break;
    case KV_OP_PUT:
    case KV_OP_PUT_PLAIN:
        batch_put(b, op, version);
        break;
    case KV_OP_DELETE:
        rocks.writebatch_delete(b, op->key.p, op->key.n);
        break;
    case KV_OP_DELETE_RANGE:
        rocks.writebatch_delete_range(b, op->key.p, op->key.n, op->value.p, op->value.n);
        break;
    }
}

/* The changes in the order of their keys, those of one key in the order in which they came: a memtable takes
 * a key beside the one before it without a search. SORTED_MAX + 1: they are more, or one is of a range, whose
 * order counts. */
static size_t sort_changes(const struct kv_txn *t, struct kv_op ret[SORTED_MAX])
{
    struct kv_op op;
    size_t pos = 0, n = 0;
    while (kv_txn_next(t, &pos, &op)) {
        if (op.kind == KV_OP_CHECK)
            continue;
        if (op.kind == KV_OP_DELETE_RANGE || n == SORTED_MAX)
            return SORTED_MAX + 1;
        size_t i = n++;
        for (; i > 0 && slice_cmp(ret[i - 1].key, op.key) > 0; i--)
            ret[i] = ret[i - 1];
        ret[i] = op;
    }
    return n;
}

/* Makes the batch; gives how many changes are in it. */
static size_t batch_fill(rocksdb_writebatch_t *b, const struct kv_txn *t, uint64_t version)
{
    struct kv_op sorted[SORTED_MAX], op;
    size_t pos = 0, n = sort_changes(t, sorted);
    if (n <= SORTED_MAX) {
        for (size_t i = 0; i < n; i++)
            batch_add(b, &sorted[i], version);
        return n;
    }
    for (n = 0; kv_txn_next(t, &pos, &op); n += op.kind != KV_OP_CHECK)
        batch_add(b, &op, version);
    return n;
}

/* For the next commit; what a large one took is given back. */
static void batch_clear(struct kv_rocksdb *r)
{
    size_t bytes = 0;
    (void)rocks.writebatch_data(r->batch, &bytes);
    rocks.writebatch_clear(r->batch);
    if (bytes <= BATCH_KEPT_BYTES)
        return;
    rocks.writebatch_destroy(r->batch);
    r->batch = rocks.writebatch_create();
}

/* Number of the log that RocksDB's error names, "DIR/000007.log"; 0: none, as where it was a table that found
 * no room. */
static uint64_t log_of(const char *text)
{
    uint64_t number = 0, found = 0;
    for (const char *end = text; (end = strstr(end, ".log")); end++) {
        const char *begin = end;
        while (begin > text && begin[-1] >= '0' && begin[-1] <= '9')
            begin--;
        found = slice_u64(slice_of(begin, (size_t)(end - begin)), &number) == 0 ? number : found;
    }
    return found;
}

/* A write failed, after which its log may end in the middle of a record. Takes over the text. */
static int write_failed(struct kv_rocksdb *r, char *text, struct err *e)
{
    uint64_t number = log_of(text);
    struct err fault = {0};
    int code = take_error(&fault, text, "commit");
    if (number > 0) {
        LOCK_SCOPE(&r->fault_lock);
        r->fault = fault;
        r->fault_log = number;
    }
    if (e)
        *e = fault;
    return code;
}

/* Whether the log takes no more: 0, or as what that was told. RocksDB removes it when all that is in it is
 * elsewhere, and touches it no more then. */
static int check_log(struct kv_rocksdb *r, struct err *e)
{
    char path[PATH_BYTES];
    struct stat st;
    LOCK_SCOPE(&r->fault_lock); /* over a look at the disk, while nothing can be changed anyway */
    if (r->fault.code == 0)
        return 0;
    (void)snprintf(path, sizeof(path), "%s/%06llu.log", r->path, (unsigned long long)r->fault_log);
    if (sys->stat(path, &st) != -ENOENT)
        return err_set(e, r->fault.code, "an earlier change failed (%s): once that is mended, start again",
                       r->fault.text);
    r->fault.code = 0;
    return 0;
}

/* Returns once commits up to `ticket` are on disk. */
static int sync_to(struct kv_rocksdb *r, uint64_t ticket, struct err *e)
{
    int code = 0;
    lock_take(&r->sync_lock);
    while (r->synced < ticket) {
        if (r->syncing) {
            cond_wait(&r->synced_cond, &r->sync_lock);
            continue;
        }
        r->syncing = true;
        uint64_t covers = __atomic_load_n(&r->written, __ATOMIC_ACQUIRE);
        lock_drop(&r->sync_lock);
        char *text = NULL;
        code = check_log(r, e);
        if (code == 0)
            rocks.flush_wal(r->db, /* sync= */ 1, &text);
        lock_take(&r->sync_lock);
        r->syncing = false;
        if (code == 0 && !text)
            r->synced = MAX(r->synced, covers);
        cond_broadcast(&r->synced_cond);
        if (text)
            code = take_error(e, text, "sync");
        if (code < 0)
            break;
    }
    lock_drop(&r->sync_lock);
    return code;
}

static void engine_close(struct kv *kv)
{
    struct kv_rocksdb *r = rocksdb_of(kv);
    struct err e = {0};
    int code = r->read_only ? 0 : kv_sync(kv, &e);
    if (code < 0) /* whoever closes has nobody to tell */
        log_error("kv", "%s: its last changes may not be on the disk: %s", r->path, e.text);
    else if (!r->bulk && !r->read_only)
        note_closed(r);
    rocksdb_free_all(r);
}

static int engine_commit(struct kv *kv, const struct kv_txn *t, enum kv_commit kind, uint64_t *ret_version,
                         struct err *e)
{
    struct kv_rocksdb *r = rocksdb_of(kv);
    if (r->read_only)
        return err_set(e, -EROFS, "commit: opened read-only");
    uint64_t ticket, version = 0;
    char *text = NULL;
    count_nothing();
    lock_take(&r->commit_lock);
    int code = check_log(r, e);
    if (code == 0)
        code = check_conditions(r, t, e);
    if (code == 0) {
        version = rocks.get_latest_sequence_number(r->db) + KV_VERSION_FIRST;
        if (batch_fill(r->batch, t, version) > 0) {
            kv_recent_begin(r->recent);
            rocks.write(r->db, r->write, r->batch, &text);
            kv_recent_end(r->recent, t, version, /* failed= */ text != NULL);
            batch_clear(r);
        }
    }
    if (code == 0 && !text)
        __atomic_add_fetch(&r->written, 1, __ATOMIC_RELEASE);
    if (text) /* before the next one is written */
        code = write_failed(r, text, e);
    ticket = r->written;
    lock_drop(&r->commit_lock);
    if (code == 0 && kind == KV_DURABLE && !r->bulk)
        code = sync_to(r, ticket, e);
    if (code == 0)
        *ret_version = version;
    return code;
}

static int engine_sync(struct kv *kv, struct err *e)
{
    struct kv_rocksdb *r = rocksdb_of(kv);
    if (r->read_only)
        return 0;
    if (!r->bulk)
        return sync_to(r, __atomic_load_n(&r->written, __ATOMIC_ACQUIRE), e);
    rocksdb_flushoptions_t *flush = rocks.flushoptions_create();
    rocks.flushoptions_set_wait(flush, 1);
    char *text = NULL;
    rocks.flush(r->db, flush, &text);
    rocks.flushoptions_destroy(flush);
    return text ? take_error(e, text, "flush") : 0;
}

static uint64_t property(struct kv_rocksdb *r, const char *name)
{
    uint64_t v = 0;
    return rocks.property_int(r->db, name, &v) == 0 ? v : 0;
}

static uint64_t engine_estimate_keys(struct kv *kv)
{
    return property(rocksdb_of(kv), "rocksdb.estimate-num-keys");
}

static uint64_t engine_memory_bytes(struct kv *kv)
{
    struct kv_rocksdb *r = rocksdb_of(kv);
    return rocks.cache_get_usage(r->cache) + property(r, "rocksdb.cur-size-all-mem-tables") +
           property(r, "rocksdb.estimate-table-readers-mem");
}

static bool engine_is_cut(struct kv *kv)
{
    return rocksdb_of(kv)->cut;
}

static int engine_cut_mended(struct kv *kv, struct err *e)
{
    struct kv_rocksdb *r = rocksdb_of(kv);
    char path[PATH_BYTES];
    if (!r->cut || r->read_only)
        return 0;
    cut_path(r, path);
    int code = sys->unlink(path);
    if (code < 0 && code != -ENOENT)
        return err_errno(e, code, "remove %s", path);
    r->cut = false;
    return 0;
}

static const struct kv_engine rocksdb_engine = {
    .close = engine_close,
    .get = engine_get,
    .commit = engine_commit,
    .iter_new = engine_iter_new,
    .iter_free = engine_iter_free,
    .iter_next = engine_iter_next,
    .sync = engine_sync,
    .estimate_keys = engine_estimate_keys,
    .memory_bytes = engine_memory_bytes,
    .is_cut = engine_is_cut,
    .cut_mended = engine_cut_mended,
};

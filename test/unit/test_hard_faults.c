/* layer: store */
/*
 * The fault sweep over hard extents: the Nth file call, or the Nth commit of the index, fails, for N = 1, 2,
 * ... until none does. Whatever fails: what was acknowledged is there, nothing wrong is called right, the
 * same call works again later, and in the end there are no files but those that are named, no marks but
 * theirs, no descriptors left, and the counts agree.
 *
 * Seen to fail with the guarding line removed: with `sealed` instead of `head_may_exist` in
 * hard_begin_writing; with the batch kept after a failed sync in sync_batch; without unmake in fill.
 */
#include "test_store_common.h"
#include "test_store_kv.h"

#include "test_hard_common.h"

#include "base/log.h"
#include "support/fault_sys.h"

enum { FILES = 4 };

/* One file as its owner knows it. */
struct file {
    struct location l;
    bool taken, removed;
    bool known; /* the content is `seed` over `size` bytes */
    uint64_t seed, size;
};

struct told {
    struct file v[FILES];
};

static bool tolerable(int r)
{
    return r == 0 || r == -EIO || r == -ENOSPC || r == -EAGAIN || r == -ENOENT || r == ERR_CLOSED;
}

/* Notes an error, which must say something. */
static int said(int r, struct err *e)
{
    assert_true(tolerable(r));
    assert_true(r == 0 || r == -EAGAIN || strlen(e->text) > 10);
    *e = (struct err){0};
    return r;
}

static struct hard *take_file(struct store *s, struct file *x, uint64_t seed)
{
    struct err e = {0};
    struct hard *h = NULL;
    if (said(hard_take(s, &h, &e), &e) < 0)
        return NULL;
    hard_location(h, x->l.b);
    *x = (struct file){.l = x->l, .taken = true, .known = true, .seed = seed};
    return h;
}

/* Appends up to `size`. */
static void write_file(struct hard *h, struct file *x, uint64_t size)
{
    struct err e = {0};
    if (said(hard_begin_writing(h, &e), &e) < 0)
        return;
    _cleanup_free_ char *p = content_new(x->seed, x->size, size - x->size);
    if (said(hard_write(h, p, size - x->size, x->size, &e), &e) == 0)
        x->size = size;
    else
        x->known = false;
    (void)said(hard_sync(h, &e), &e);
    hard_end_writing(h);
}

static void write_by_descriptor(struct hard *h, struct file *x, uint64_t size)
{
    struct err e = {0};
    if (said(hard_begin_writing(h, &e), &e) < 0)
        return;
    int fd = hard_open_fd(h, O_RDWR);
    if (fd >= 0) {
        _cleanup_free_ char *p = content_new(x->seed, 0, size);
        assert_int_equal(pwrite(fd, p, size, 0), size);
        x->size = size;
        assert_int_equal(close(fd), 0);
    }
    hard_end_writing(h);
}

static void settle(struct store *s, struct hard **h, size_t n)
{
    struct err e = {0};
    struct stat st;
    bool ok[FILES];
    for (size_t i = 0; i < n; i++)
        if (h[i])
            (void)said(hard_measure(h[i], &st, &e), &e);
    size_t kept = 0;
    struct hard *some[FILES];
    for (size_t i = 0; i < n; i++)
        if (h[i])
            some[kept++] = h[i];
    (void)said(hard_settle(s, some, kept, ok, &e), &e);
    for (size_t i = 0; i < kept; i++)
        assert_int_equal(ok[i], hard_is_sealed(some[i]));
}

static void remove_file(struct store *s, struct file *x)
{
    struct err e = {0};
    struct slice l = location_view(&x->l);
    if (x->taken && !x->removed)
        x->removed = said(hard_remove(s, &l, 1, &e), &e) == 0;
}

static void work(struct store *s, struct told *t)
{
    struct hard *h[FILES];
    s->disks[0].hard->pool.batch = 2; /* many calls less in each round */
    for (size_t i = 0; i < FILES; i++)
        h[i] = take_file(s, &t->v[i], i + 1);
    if (h[0])
        write_file(h[0], &t->v[0], MIB + 5);
    if (h[1])
        write_by_descriptor(h[1], &t->v[1], 2 * MIB);
    if (h[2])
        write_file(h[2], &t->v[2], 1000);
    settle(s, h, 3);
    if (h[0])
        write_file(h[0], &t->v[0], 2 * MIB + 5);
    remove_file(s, &t->v[1]);
    remove_file(s, &t->v[2]);
    hard_unref(h[0]);
    hard_unref(h[1]);
    hard_unref(h[2]);
    if (h[3]) {
        hard_give_back(h[3]);
        t->v[3].taken = false;
    }
    (void)store_flush(s, NULL);
}

/* Without faults everything is as it was told, and can be brought to an end. */
static void verify(struct fixture *f, struct told *t)
{
    struct store *s = f->s;
    uint64_t named = 0;
    for (size_t i = 0; i < FILES; i++) {
        struct file *x = &t->v[i];
        struct hard *h = NULL;
        if (!x->taken)
            continue;
        int r = hard_find(s, location_view(&x->l), &h, NULL);
        /* A removal that failed may have removed it. */
        assert_true(x->removed ? r == -ENOENT : r == 0 || (r == -ENOENT && i > 0 && i < 3));
        if (r < 0) {
            remove_file(s, x);
            assert_true(x->removed);
            continue;
        }
        if (x->known)
            assert_true(hard_holds(h, x->seed, 0, x->size));
        assert_int_equal(measure_and_settle(s, h), 0);
        if (x->known)
            assert_true(hard_holds(h, x->seed, 0, x->size));
        hard_unref(h);
        named++;
    }
    struct store_check_report report;
    assert_int_equal(store_check(s, false, NULL, NULL, &report, NULL), 0);
    assert_int_equal(report.hard_bad, 0);
    assert_int_equal(report.hard_extents, named);
    assert_int_equal(store_flush(s, NULL), 0);
    struct store_disk_status st = disk_status(s, 0);
    assert_int_equal(st.hard_unsettled, 0);
    assert_int_equal(st.hard_extents, named);
    assert_int_equal(st.hard_bytes, s->disks[0].hard->count.used_bytes);
    assert_int_equal(st.used_bytes, st.hard_bytes);
}

/* After a start: all that is not named goes. */
static void verify_sweep(struct fixture *f, struct told *t)
{
    struct hard_swept swept;
    uint64_t named = 0;
    for (size_t i = 0; i < FILES; i++) {
        named += t->v[i].taken && !t->v[i].removed;
        if (t->v[i].taken && !t->v[i].removed)
            assert_int_equal(hard_protect(f->s, location_view(&t->v[i].l), NULL), 0);
    }
    assert_int_equal(hard_sweep(f->s, /* keep_bytes= */ false, &swept, NULL), 0);
    verify(f, t);
    named = 0;
    for (size_t i = 0; i < FILES; i++)
        named += t->v[i].taken && !t->v[i].removed;
    assert_int_equal(count_files(f), named);
    assert_int_equal(count_keys(f->s, 'f'), 0);
    assert_int_equal(count_keys(f->s, 'h'), named);
}

static size_t count_fds(void)
{
    size_t n = 0;
    DIR *d = opendir("/proc/self/fd");
    assert_non_null(d);
    while (readdir(d))
        n++;
    (void)closedir(d);
    return n;
}

/* One round; the process goes on afterwards, or is killed. False when the fault was not reached any more. */
static bool round_sys(unsigned calls, uint64_t n, enum fault_mode mode, int error)
{
    bool kill = mode == FAULT_FOREVER ? error == EIO : n % 2;
    struct fixture f;
    struct told t = {0};
    size_t fds = count_fds();
    fixture_init(&f, 1, 64 * MIB);
    testkv_use();
    fault_sys_start();
    fault_sys_arm(calls, n, error, mode);
    int r = fixture_try_open(&f);
    if (r == 0)
        work(f.s, &t);
    bool hit = fault_sys_hit();
    fault_sys_disarm();
    assert_true(r == 0 || hit);
    if (r == 0 && !kill) {
        verify(&f, &t);
        uint64_t pool = pool_size(f.s); /* at rest, before files are counted */
        assert_int_equal(count_files(&f), count_keys(f.s, 'h') + pool);
    }
    if (r == 0 && kill)
        fixture_abandon(&f);
    else if (r == 0)
        fixture_close(&f);
    fault_sys_stop();
    fixture_open(&f);
    verify_sweep(&f, &t);
    fixture_fini(&f);
    testkv_reset();
    assert_int_equal(count_fds(), fds);
    return hit;
}

static void sweep(unsigned calls, enum fault_mode mode, int error)
{
    uint64_t n = 1;
    while (round_sys(calls, n, mode, error))
        n++;
    assert_true(n > 10);
}

/* Each file call fails once. */
static void test_any_call_fails_once(void **state)
{
    sweep(FAULT_ALL & ~(unsigned)FAULT_STATFS_FREE, FAULT_ONCE, EIO);
}

/* The disk is dead from some call on, and lives again after the restart. */
static void test_disk_dead_from_some_call_on(void **state)
{
    sweep(FAULT_ALL, FAULT_FOREVER, EIO);
}

/* The disk is full from some call on that makes a file or writes to one. */
static void test_disk_full_from_some_call_on(void **state)
{
    sweep(FAULT_OPENAT | FAULT_PWRITE | FAULT_MKDIR, FAULT_FOREVER, ENOSPC);
}

/* A disk that does not take the bytes: none of them is sealed, the caller is told, and can try again. */
static void test_sync_errors_are_told(void **state)
{
    for (size_t n = 1; n <= 12; n += 11) { /* synced one by one, and all at once */
        struct fixture f;
        struct hard *h[12];
        struct stat st;
        bool ok[12];
        struct err e = {0};
        fixture_init(&f, 1, 64 * MIB);
        testkv_use();
        fault_sys_start();
        fixture_open(&f);
        for (size_t i = 0; i < n; i++) {
            struct location l;
            h[i] = take(f.s, &l);
            assert_int_equal(hard_put(h[i], i, 0, 5000), 0);
            assert_int_equal(hard_measure(h[i], &st, NULL), 0);
        }
        fault_sys_arm(FAULT_SYNCS, 1, EIO, FAULT_FOREVER);
        assert_int_equal(hard_settle(f.s, h, n, ok, &e), -EIO);
        assert_non_null(strstr(e.text, "sync"));
        for (size_t i = 0; i < n; i++)
            assert_true(!ok[i] && !hard_is_sealed(h[i]));
        fault_sys_disarm();
        assert_int_equal(hard_settle(f.s, h, n, ok, &e), 0);
        for (size_t i = 0; i < n; i++) {
            assert_true(ok[i] && hard_is_sealed(h[i]));
            hard_unref(h[i]);
        }
        fault_sys_stop();
        fixture_fini(&f);
        testkv_reset();
    }
}

static int lost_fd;

static int syncfs_fails(int fd)
{
    (void)fd;
    return -EIO;
}

static int fdatasync_of_one_fails(int fd)
{
    return fd == lost_fd ? -EIO : sys_real.fdatasync(fd);
}

/* A sync of the whole disk that fails says of no file that it was that one: it is the one whose own sync
 * fails, which is not sealed and is told; the others are sealed. (When sync_batch leaves it at the first, the
 * next one seals what was lost, and nobody hears of it.) */
static void test_whose_bytes_a_disk_has_lost(void **state)
{
    enum { N = 12, LOST = 3 };
    struct fixture f;
    struct hard *h[N];
    struct stat st;
    bool ok[N];
    struct err e = {0};
    const struct sys *before = sys;
    struct sys table = *sys;
    (void)state;
    fixture_init(&f, 1, 64 * MIB);
    fixture_open(&f);
    for (size_t i = 0; i < N; i++) {
        struct location l;
        h[i] = take(f.s, &l);
        assert_int_equal(hard_put(h[i], i, 0, 5000), 0);
        assert_int_equal(hard_measure(h[i], &st, NULL), 0);
    }
    lost_fd = h[LOST]->fd;
    table.syncfs = syncfs_fails;
    table.fdatasync = fdatasync_of_one_fails;
    sys = &table;
    assert_int_equal(hard_settle(f.s, h, N, ok, &e), -EIO);
    sys = before;
    for (size_t i = 0; i < N; i++) {
        assert_int_equal(ok[i], i != LOST);
        assert_int_equal(hard_take_fault(h[i]), i == LOST ? -EIO : 0);
        hard_unref(h[i]);
    }
    fixture_fini(&f);
}

static int failing_syncfs; /* so many of the next ones */

static int syncfs_fails_at_first(int fd)
{
    if (failing_syncfs == 0)
        return sys_real.syncfs(fd);
    failing_syncfs--;
    return -EIO;
}

/* That sync has told of all that the disk lost, also of files that are settled later: those are asked, too.
 * (Without asks_each the second batch is sealed by a sync of the whole disk, which succeeds, and so is the
 * file whose bytes are lost.) */
static void test_what_a_disk_has_lost_of_a_later_batch(void **state)
{
    enum { N = 24, HALF = 12, LOST = 17 };
    struct fixture f;
    struct hard *h[N];
    struct stat st;
    bool ok[N];
    const struct sys *before = sys;
    struct sys table = *sys;
    (void)state;
    fixture_init(&f, 1, 64 * MIB);
    fixture_open(&f);
    for (size_t i = 0; i < N; i++) {
        struct location l;
        h[i] = take(f.s, &l);
        assert_int_equal(hard_put(h[i], i, 0, 5000), 0);
        assert_int_equal(hard_measure(h[i], &st, NULL), 0);
    }
    lost_fd = h[LOST]->fd;
    failing_syncfs = 1;
    table.syncfs = syncfs_fails_at_first;
    table.fdatasync = fdatasync_of_one_fails;
    sys = &table;
    assert_int_equal(hard_settle(f.s, h, HALF, ok, NULL), 0);
    assert_int_equal(hard_settle(f.s, h + HALF, N - HALF, ok + HALF, NULL), -EIO);
    sys = before;
    for (size_t i = 0; i < N; i++) {
        assert_int_equal(ok[i], i != LOST);
        assert_int_equal(hard_take_fault(h[i]), i == LOST ? -EIO : 0);
        hard_unref(h[i]);
    }
    fixture_fini(&f);
}

/* The index refuses every commit from some one on, and works again later. */
static void test_index_refuses_commits(void **state)
{
    for (uint64_t n = 1;; n++) {
        struct fixture f;
        struct told t = {0};
        fixture_init(&f, 1, 64 * MIB);
        testkv_use();
        testkv_fail_at = n;
        int r = fixture_try_open(&f);
        if (r == 0)
            work(f.s, &t);
        bool hit = testkv_calls >= n;
        testkv_fail_at = 0;
        if (r == 0 && n % 2)
            verify(&f, &t);
        if (r == 0)
            fixture_abandon(&f);
        fixture_open(&f);
        verify_sweep(&f, &t);
        fixture_fini(&f);
        testkv_reset();
        if (!hit)
            break;
        assert_true(n < 1000);
    }
}

/* A commit whose sync failed is in the index all the same: nothing is taken for sealed that is not, and
 * nothing is written to that the index takes for sealed. */
static void test_commits_that_happened(void **state)
{
    for (uint64_t n = 1;; n++) {
        struct fixture f;
        struct told t = {0};
        fixture_init(&f, 1, 64 * MIB);
        testkv_use();
        testkv_carry_out = true;
        testkv_fail_once = n;
        int r = fixture_try_open(&f);
        if (r == 0)
            work(f.s, &t);
        bool hit = testkv_calls >= n;
        testkv_fail_once = 0;
        if (r == 0 && n % 2)
            verify(&f, &t);
        if (r == 0)
            fixture_abandon(&f);
        testkv_carry_out = false;
        fixture_open(&f);
        verify_sweep(&f, &t);
        fixture_fini(&f);
        testkv_reset();
        if (!hit)
            break;
        assert_true(n < 1000);
    }
}

/* A file of the pool that is bad is not the next one for ever. */
static void test_bad_file_in_the_pool(void **state)
{
    struct fixture f;
    struct location l;
    struct hard *h = NULL;
    char path[DISK_PATH_MAX];
    fixture_init(&f, 1, 64 * MIB);
    testkv_use();
    fixture_open(&f);
    hard_unref(take(f.s, &l));
    assert_true(pool_size(f.s) > 0);
    struct hard_pool *p = &f.s->disks[0].hard->pool;
    hard_path(&f.s->disks[0], p->v[p->n - 1], path);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(hard_take(f.s, &h, NULL), -ENOENT);
    hard_unref(take(f.s, &l));
    fixture_fini(&f);
    testkv_reset();
}

static struct store_check_report check_all(struct store *s)
{
    struct store_check_report r;
    assert_int_equal(store_check(s, /* repair= */ false, NULL, NULL, &r, NULL), 0);
    return r;
}

/* A hole costs its check nothing, however large it is: a file of 8 EiB would keep it for hours, and the
 * node's stop with it. What lies between holes is compared, also where the file has lost it. (Chunk by chunk
 * there are 1,024 looks into the index here.) */
static void test_a_hole_is_not_gone_through(void **state)
{
    (void)state;
    struct fixture f;
    struct location l;
    char path[DISK_PATH_MAX];
    fixture_init(&f, 1, 64 * MIB);
    testkv_use();
    fixture_open(&f);
    struct hard *h = take(f.s, &l);
    assert_int_equal(hard_begin_writing(h, NULL), 0);
    assert_int_equal(hard_truncate(h, 1024 * GIB + 1, NULL), 0);
    assert_int_equal(hard_put(h, 1, 0, MIB), 0);
    assert_int_equal(hard_put(h, 2, 300 * GIB, 2 * MIB), 0);
    hard_end_writing(h);
    assert_int_equal(measure_and_settle(f.s, h), 0);
    (void)pool_size(f.s); /* at rest */
    testkv_gets = 0;
    struct store_check_report r = check_all(f.s);
    assert_true(testkv_gets < 100);
    assert_int_equal(r.hard_extents, 1);
    assert_int_equal(r.hard_bad, 0);
    hard_path(h->disk, h->id, path);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 300 * GIB, 2 * MIB), 0);
    assert_int_equal(close(fd), 0);
    r = check_all(f.s);
    assert_int_equal(r.hard_bad, 1);
    hard_unref(h);
    fixture_fini(&f);
    testkv_reset();
}

/* A file was sealed, written to and named by a writing record; the index comes back as it was before, which
 * was durable: with its checksums of then. Who is protected is not vouched for by those. (Without it verified
 * reads fail for good, although nothing is wrong with the bytes.) */
static void test_a_seal_that_came_back(void **state)
{
    (void)state;
    struct fixture f;
    struct location l;
    struct format_key k;
    struct err e = {0};
    _cleanup_buf_ struct buf record = BUF_INIT(KIB);
    fixture_init(&f, 1, 64 * MIB);
    testkv_use();
    fixture_open(&f);
    struct hard *h = take(f.s, &l);
    assert_int_equal(hard_put(h, 1, 0, 5000), 0);
    assert_int_equal(measure_and_settle(f.s, h), 0);
    format_key_id('h', h->id, &k);
    assert_int_equal(kv_get(f.s->disks[0].kv, format_key_view(&k), &record, NULL, NULL), 0);
    assert_int_equal(hard_put(h, 2, 0, 5000), 0);
    assert_int_equal(hard_sync(h, NULL), 0);
    hard_unref(h);
    fixture_abandon(&f);
    fixture_open(&f);
    struct kv_txn *t = kv_txn_new(f.s->disks[0].kv);
    kv_txn_put_plain(t, format_key_view(&k), buf_view(&record));
    assert_int_equal(kv_txn_commit(t, KV_DURABLE, NULL), 0);
    kv_txn_free(t);
    testkv_cut = true;
    if (hard_protect(f.s, location_view(&l), &e) < 0)
        fail_msg("%s", e.text);
    h = find(f.s, &l);
    assert_false(hard_is_sealed(h));
    assert_true(hard_holds(h, 2, 0, 5000));
    assert_int_equal(measure_and_settle(f.s, h), 0);
    assert_true(hard_holds(h, 2, 0, 5000));
    hard_unref(h);
    fixture_fini(&f);
    testkv_reset();
}

static struct hard *during;
static unsigned during_syncs;

static int count_sync(int fd)
{
    during_syncs++;
    return 0;
}

/* Another thread seals what is being synced. */
static int sync_and_settle(int fd)
{
    struct hard *h = TAKE_PTR(during);
    bool ok = false;
    if (h)
        assert_int_equal(hard_settle(h->store, &h, 1, &ok, NULL), 0);
    assert_true(!h || ok);
    return 0;
}

/* What a hard_sync that has not ended yet syncs is not taken for synced: a power loss would leave checksums
 * of bytes that are not there. */
static void test_sealing_during_a_sync(void **state)
{
    struct fixture f;
    struct location l;
    struct stat st;
    fixture_init(&f, 1, 64 * MIB);
    testkv_use();
    const struct sys *before = sys;
    struct sys mine = *sys;
    mine.fsync = sync_and_settle;
    mine.fdatasync = count_sync;
    sys = &mine;
    fixture_open(&f);
    struct hard *h = take(f.s, &l);
    assert_int_equal(hard_put(h, 1, 0, 5000), 0);
    assert_int_equal(hard_measure(h, &st, NULL), 0);
    (void)pool_size(f.s); /* its thread syncs nothing any more */
    during_syncs = 0;
    during = h;
    assert_int_equal(hard_sync(h, NULL), 0);
    assert_null(during);
    assert_int_equal(during_syncs, 1);
    assert_true(hard_is_sealed(h));
    hard_unref(h);
    fixture_fini(&f);
    sys = before;
    testkv_reset();
}

/* Whichever look into the index fails: a verified read gives the bytes that were sealed, or an error, and
 * never other ones as if nobody vouched for them; and a check calls nothing right that it could not look at.
 * (Fails where a hard record that could not be read a second time was taken for none.) */
static void test_verified_reads_of_an_index_that_cannot_be_read(void **state)
{
    enum { SIZE = 2 * MIB + 5 };
    struct fixture f;
    struct location l;
    struct err e = {0};
    struct store_check_report report;
    char path[DISK_PATH_MAX];
    _cleanup_free_ char *p = malloc(SIZE);
    fixture_init(&f, 1, 64 * MIB);
    testkv_use();
    fixture_open(&f);
    struct hard *h = take(f.s, &l);
    assert_int_equal(hard_put(h, 1, 0, SIZE), 0);
    assert_int_equal(measure_and_settle(f.s, h), 0);
    (void)pool_size(f.s); /* at rest: all gets are ours */
    hard_path(h->disk, h->id, path);
    flip_bit(path, MIB + 1);
    unsigned fails = 0;
    for (uint64_t n = 0; n < 20; n++) {
        testkv_get_error = n < 10 ? -EIO : -EBADMSG; /* a damaged record is one */
        testkv_fail_gets(n % 10, 1);
        ssize_t got = hard_read_verified(h, p, SIZE, 0, &e);
        fails += got == -EIO;
        assert_true((got == -EIO && n < 10) || got == ERR_CORRUPT);
        assert_true(e.text[0]);
        e = (struct err){0};
    }
    assert_true(fails >= 3); /* the head, the checksums, the head again */
    hard_unref(h);
    fails = 0;
    for (uint64_t n = 0; n < 20; n++) {
        testkv_get_error = n < 10 ? -EIO : -EBADMSG;
        testkv_fail_gets(n % 10, 1);
        int r = store_check(f.s, false, NULL, NULL, &report, &e);
        fails += r == -EIO;
        assert_true((r == -EIO && n < 10) || (r == 0 && report.hard_bad == 1));
    }
    assert_true(fails >= 2);
    testkv_get_error = 0;
    testkv_fail_gets(0, 0);
    fixture_fini(&f);
    testkv_reset();
}

/* Three files of 5,000 bytes that nobody names, found by a new run. */
static void leave_unnamed(struct fixture *f)
{
    struct location l;
    fixture_init(f, 1, 64 * MIB);
    testkv_use();
    fault_sys_start();
    fixture_open(f);
    f->s->disks[0].hard->pool.batch = 2;
    for (int i = 0; i < 3; i++) {
        struct hard *h = take(f->s, &l);
        assert_int_equal(hard_put(h, 1, 0, 5000), 0);
        hard_unref(h);
    }
    fixture_abandon(f);
    fixture_open(f);
}

/* The next start's sweep, to which nothing happens, leaves neither marks nor files in their places. */
static void sweep_again(struct fixture *f, bool keep_bytes)
{
    struct hard_swept swept;
    uint64_t files, bytes;
    fixture_abandon(f);
    fixture_open(f);
    assert_int_equal(hard_sweep(f->s, keep_bytes, &swept, NULL), 0);
    assert_int_equal(count_keys(f->s, 'f') + count_files(f), 0);
    assert_int_equal(hard_set_aside(f->s, &files, &bytes, NULL), 0);
    assert_int_equal(files, keep_bytes ? 3 : 0);
    fault_sys_stop();
    fixture_fini(f);
    testkv_reset();
}

/* A file that cannot be removed at a start, or set aside, keeps its mark, alone; the caller is told, and the
 * next start ends it. (Fails where hard_sweep forgets what a disk said.) */
static void test_a_sweep_that_cannot_remove(void **state)
{
    (void)state;
    for (int keep = 0; keep < 2; keep++) {
        uint64_t n = 1;
        for (bool hit = true; hit; n++) {
            struct fixture f;
            struct hard_swept swept;
            leave_unnamed(&f);
            fault_sys_arm(FAULT_UNLINK | FAULT_RENAME | FAULT_MKDIR, n, EIO, FAULT_ONCE);
            int r = hard_sweep(f.s, keep, &swept, NULL);
            hit = fault_sys_hit();
            fault_sys_disarm();
            assert_int_equal(r, hit ? -EIO : 0);
            assert_int_equal(count_files(&f), hit ? 1 : 0);
            assert_int_equal(count_keys(f.s, 'f'), hit ? 1 : 0);
            sweep_again(&f, keep);
        }
        assert_true(n > 4);
    }
}

/* While the disk does not sync all marks stay: what was removed, or renamed, may be in its place again after
 * a power failure. (Fails where sweep_disk goes on after syncfs has failed: nobody would find the file.) */
static void test_a_sweep_whose_disk_does_not_sync(void **state)
{
    (void)state;
    for (int keep = 0; keep < 2; keep++) {
        struct fixture f;
        struct hard_swept swept;
        leave_unnamed(&f);
        uint64_t marks = count_keys(f.s, 'f');
        fault_sys_arm(FAULT_SYNCFS, 1, EIO, FAULT_ONCE);
        assert_int_equal(hard_sweep(f.s, keep, &swept, NULL), -EIO);
        fault_sys_disarm();
        assert_int_equal(count_files(&f), 0);
        assert_int_equal(count_keys(f.s, 'f'), marks);
        sweep_again(&f, keep);
    }
}

int main(void)
{
    log_set_level(LOG_LEVEL_ERROR);
    fixture_skip_syncs();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_call_fails_once),
        cmocka_unit_test(test_disk_dead_from_some_call_on),
        cmocka_unit_test(test_disk_full_from_some_call_on),
        cmocka_unit_test(test_sync_errors_are_told),
        cmocka_unit_test(test_whose_bytes_a_disk_has_lost),
        cmocka_unit_test(test_what_a_disk_has_lost_of_a_later_batch),
        cmocka_unit_test(test_a_sweep_that_cannot_remove),
        cmocka_unit_test(test_a_sweep_whose_disk_does_not_sync),
        cmocka_unit_test(test_bad_file_in_the_pool),
        cmocka_unit_test(test_a_hole_is_not_gone_through),
        cmocka_unit_test(test_a_seal_that_came_back),
        cmocka_unit_test(test_sealing_during_a_sync),
        cmocka_unit_test(test_index_refuses_commits),
        cmocka_unit_test(test_commits_that_happened),
        cmocka_unit_test(test_verified_reads_of_an_index_that_cannot_be_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

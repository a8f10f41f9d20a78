/* layer: object */
/* threaded */
/* Write-back on disks without room: who waits for some keeps nobody from making it. */
#include "test_back_common.h"

#include "object/back_internal.h"

/* That one bucket may have. The disk has no room for the copies of two files more beside each other. */
#define SENDERS (BACK_THREADS - BACK_SPARE)

static _Atomic uint64_t free_at_most = UINT64_MAX;
static const char *_Atomic counted_dir; /* whose files take from that; NULL: none does */
static _Atomic uint64_t counted_bytes;

/* A file by several names is one. */
static int count_file(const char *path, const struct stat *st, int kind, struct FTW *where)
{
    (void)path, (void)where;
    if (kind == FTW_F && st->st_nlink > 0)
        (void)atomic_fetch_add(&counted_bytes, (uint64_t)st->st_blocks * 512 / st->st_nlink);
    return 0;
}

static uint64_t bytes_of_files(const char *dir)
{
    atomic_store(&counted_bytes, 0);
    (void)nftw(dir, count_file, /* nopenfd= */ 8, FTW_PHYS);
    return atomic_load(&counted_bytes);
}

static int statfs_of_full_disk(const char *path, uint64_t *ret_free, uint64_t *ret_total)
{
    int r = sys_real.statfs_free(path, ret_free, ret_total);
    const char *dir = atomic_load(&counted_dir);
    uint64_t most = atomic_load(&free_at_most), taken = dir ? bytes_of_files(dir) : 0;
    *ret_free = MIN(*ret_free, most - MIN(most, taken));
    return r;
}

static const struct sys *sys_before;

static void begin_full_disk(void)
{
    static struct sys table;
    sys_before = sys;
    table = *sys;
    table.statfs_free = statfs_of_full_disk;
    sys = &table;
}

/* A file that takes more than half of the disk is kept as it is: it is there, and needs no room again. */
static void test_a_file_that_leaves_less_room_than_it_took(void **state)
{
    (void)state;
    begin_full_disk();
    atomic_store(&free_at_most, FILE_SIZE / 2);
    struct fixture *f = fixture_new();
    set_bucket(f, "write_delay=1h\n");
    assert_int_equal(put_file(f, "k", 'a'), 0);
    atomic_store(&free_at_most, UINT64_MAX);
    assert_int_equal(look(f, "k"), 'a');
    flush(f);
    assert_int_equal(origin_look(f, "k"), 'a');
    fixture_free(f);
    sys = sys_before;
}

/* A file of zeros that takes no room, synced, that its writer still has open. */
static void acknowledge_hole(struct fixture *f, const char *key, struct wire_put_open_rep *ret)
{
    assert_int_equal(stage(f, key, ret), 0);
    assert_int_equal(ftruncate(ret->fd, FILE_SIZE), 0);
    assert_int_equal(commit_file(f, ret->handle, FILE_SIZE, WIRE_KEEP | WIRE_UNMAPPED), 0);
}

/* As many files as there are senders, each open still, and one that is closed behind them. */
static struct fixture *many_open(const char *properties, struct wire_put_open_rep ret[SENDERS])
{
    struct fixture *f = fixture_new();
    struct wire_put_open_rep last;
    char byte = 'a';
    set_bucket(f, properties);
    f->service->config.dirty_max_percent = 1000; /* all of them may be here */
    for (unsigned i = 0; i < SENDERS; i++)
        acknowledge_hole(f, arena_printf(f->arena, "open%u", i), &ret[i]);
    assert_int_equal(stage(f, "last", &last), 0);
    assert_int_equal(pwrite(last.fd, &byte, 1, 0), 1);
    assert_int_equal(commit_file(f, last.handle, 1, 0), 0);
    return f;
}

/* For a minute, until the one that is closed is in the origin. */
static void wait_for_last(struct fixture *f)
{
    struct wire_flush_req req = {.bucket = SLICE_LIT("data")};
    struct wire_flush_rep rep;
    for (int i = 0; i < 60000 && origin_look(f, "last") == 0; i++) {
        assert_int_equal(object_flush(f->session, &req, f->arena, &rep, NULL), 0);
        sys->sleep_ns(1000000);
        arena_clear(f->arena);
    }
}

/* As many files as there are senders would have to be copied, and the disk is full: the others are sent,
 * which makes room. */
static void test_files_that_find_no_room_keep_nobody(void **state)
{
    (void)state;
    struct wire_put_open_rep o[SENDERS];
    begin_full_disk();
    struct fixture *f = many_open("retry=10m\nwrite_delay=1h\n", o);
    atomic_store(&free_at_most, 0);
    sys->sleep_ns(2500000000); /* the moment for which senders wait for files to be closed */
    wait_for_last(f);
    assert_int_equal(origin_look(f, "last"), 'a');
    atomic_store(&free_at_most, UINT64_MAX);
    for (unsigned i = 0; i < ARRAY_SIZE(o); i++)
        abort_file(f, o[i].handle);
    flush(f);
    fixture_free(f);
    sys = sys_before;
}

struct full_disk_reader {
    pthread_t thread;
    struct fixture *f;
    char key[16];
    int result;
    atomic_bool has_ended;
};

static void *full_disk_reader_main(void *arg)
{
    struct full_disk_reader *x = arg;
    struct wire_open_req req = {
        .bucket = SLICE_LIT("data"), .key = slice_str(x->key), .expect = 1, .via = WIRE_VIA_API};
    struct wire_open_rep o;
    struct arena *a = arena_new(64 * KIB);
    x->result = object_open(x->f->session, &req, a, &o, NULL);
    struct wire_close_req close_req = {.handle = x->result == 0 ? o.handle : 0};
    struct wire_close_rep close_rep;
    if (x->result == 0) /* what is open is not evicted for the next one */
        (void)object_close(x->f->session, &close_req, a, &close_rep, NULL);
    atomic_store(&x->has_ended, true);
    arena_free(a);
    return NULL;
}

static void start_reader(struct fixture *f, struct full_disk_reader *x, const char *key)
{
    *x = (struct full_disk_reader){.f = f};
    (void)snprintf(x->key, sizeof(x->key), "%s", key);
    assert_int_equal(pthread_create(&x->thread, NULL, full_disk_reader_main, x), 0);
}

/* The node believes for a second what it saw of the disk's room. */
static void fill_disk(void)
{
    atomic_store(&free_at_most, 0);
    sys->sleep_ns(1500000000);
}

/* Whether the reader waits, and not a thread that fetches for it with a place at the origin. */
static bool waits_by_itself(struct full_disk_reader *x)
{
    for (int i = 0; i < 1000 && !atomic_load(&x->has_ended); i++)
        sys->sleep_ns(1000000);
    return !atomic_load(&x->has_ended);
}

static void wait_until_hungry(struct fixture *f, unsigned n)
{
    for (int i = 0; i < 60000 && atomic_load(&f->service->back->hungry) < n; i++)
        sys->sleep_ns(1000000);
    assert_int_equal(atomic_load(&f->service->back->hungry), n);
}

/* As many readers as there are senders wait for room for copies of files that are still written, and the disk
 * is full: other keys are sent, which makes room, and each reader has its copy then. (When readers are busy
 * with the key while they wait, as back_enter_settled was, all senders wait for them, and nothing is sent.)
 */
static void readers_keep_nobody(const char *properties)
{
    struct wire_put_open_rep o[SENDERS];
    struct full_disk_reader readers[SENDERS];
    begin_full_disk();
    struct fixture *f = many_open(properties, o);
    fill_disk();
    for (unsigned i = 0; i < ARRAY_SIZE(o); i++)
        start_reader(f, &readers[i], arena_printf(f->arena, "open%u", i));
    wait_until_hungry(f, ARRAY_SIZE(readers));
    bool waits = waits_by_itself(&readers[0]);
    wait_for_last(f);
    char sent = origin_look(f, "last");
    atomic_store(&free_at_most, UINT64_MAX);
    for (unsigned i = 0; i < ARRAY_SIZE(o); i++) {
        assert_int_equal(pthread_join(readers[i].thread, NULL), 0);
        assert_int_equal(readers[i].result, 0);
        abort_file(f, o[i].handle);
    }
    assert_true(waits);
    assert_int_equal(sent, 'a');
    flush(f);
    fixture_free(f);
    sys = sys_before;
}

static void test_readers_that_find_no_room_keep_nobody(void **state)
{
    (void)state;
    readers_keep_nobody("retry=10m\nwrite_delay=1h\n");
}

/* Nor do those of a bucket with verify=read, who read it like what is in the origin: there it was a thread
 * that fetches which waited, with a place at the origin. (Seen to fail where open_unsent does not settle the
 * key before.) */
static void test_verifying_readers_that_find_no_room_keep_nobody(void **state)
{
    (void)state;
    readers_keep_nobody("retry=10m\nwrite_delay=1h\nverify=read\n");
}

/* As many readers as can be of files that are still written, and a disk that has room for the copies of one
 * and a half: each has its copy in its turn, as what was copied is sent and goes. The room comes bit by bit,
 * and is nobody's before it is enough for one. (Seen to fail without wait_for_all, back_layer.c: each reader
 * has a part and waits for the others' until the bucket's `retry` is over; and without end_waits,
 * back_live.c: what is copied is not sent before its next try.) */
static void test_readers_that_do_not_fit_have_their_turns(void **state)
{
    (void)state;
    enum { STEPS = 3 };
    struct wire_put_open_rep o[SENDERS];
    struct full_disk_reader readers[SENDERS];
    begin_full_disk();
    struct fixture *f = many_open("retry=5m\nwrite_delay=1h\n", o);
    fill_disk();
    for (unsigned i = 0; i < ARRAY_SIZE(o); i++)
        start_reader(f, &readers[i], arena_printf(f->arena, "open%u", i));
    wait_until_hungry(f, ARRAY_SIZE(readers));
    uint64_t before = bytes_of_files(f->disk);
    atomic_store(&counted_dir, f->disk);
    for (unsigned i = 1; i <= STEPS; i++) {
        atomic_store(&free_at_most, before + i * (FILE_SIZE / 2));
        sys->sleep_ns(1500000000);
    }
    for (unsigned i = 0; i < ARRAY_SIZE(o); i++) {
        assert_int_equal(pthread_join(readers[i].thread, NULL), 0);
        abort_file(f, o[i].handle);
    }
    atomic_store(&counted_dir, NULL);
    atomic_store(&free_at_most, UINT64_MAX);
    for (unsigned i = 0; i < ARRAY_SIZE(o); i++)
        assert_int_equal(readers[i].result, 0);
    flush(f);
    fixture_free(f);
    sys = sys_before;
}

/* The writer closes the file that a reader waits for, on a full disk: that does not wait for the reader, who
 * needs no copy any more, and no room. (Without end_copy_locked the reader waits until its bucket's `retry`
 * and fails; when it is busy with the key meanwhile, the close waits with it.) */
static void test_a_reader_without_room_has_what_is_closed(void **state)
{
    (void)state;
    struct wire_put_open_rep o;
    struct full_disk_reader reader;
    begin_full_disk();
    struct fixture *f = fixture_new();
    set_bucket(f, "retry=5m\nwrite_delay=1h\n");
    acknowledge_hole(f, "k", &o);
    fill_disk();
    start_reader(f, &reader, "k");
    wait_until_hungry(f, 1);
    assert_int_equal(commit_file(f, o.handle, FILE_SIZE, WIRE_UNMAPPED), 0);
    assert_int_equal(pthread_join(reader.thread, NULL), 0);
    assert_int_equal(reader.result, 0);
    atomic_store(&free_at_most, UINT64_MAX);
    flush(f);
    fixture_free(f);
    sys = sys_before;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_files_that_find_no_room_keep_nobody),
        cmocka_unit_test(test_readers_that_find_no_room_keep_nobody),
        cmocka_unit_test(test_verifying_readers_that_find_no_room_keep_nobody),
        cmocka_unit_test(test_readers_that_do_not_fit_have_their_turns),
        cmocka_unit_test(test_a_reader_without_room_has_what_is_closed),
        cmocka_unit_test(test_a_file_that_leaves_less_room_than_it_took),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* layer: object */
/* threaded */
/* Write-back of files that are kept as they are: on the disk once, and read, sent and changed while their
 * writers have them open. */
#include "test_back_common.h"

#include "base/md5.h"
#include "base/text.h"
#include "object/back_internal.h"

static struct wire_attr stat_key(struct fixture *f, const char *key)
{
    struct wire_stat_req req = {.bucket = SLICE_LIT("data"), .key = slice_str(key)};
    struct wire_stat_rep rep;
    assert_int_equal(object_stat(f->session, &req, f->arena, &rep, NULL), 0);
    return rep.attr;
}

/* Files of the store with so many bytes, by whatever names; links of one: of the first of them. */
static struct {
    off_t size;
    uint64_t n;
    ino_t first, other;
} found_files;

static int count_file(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void)path, (void)at;
    if (type != FTW_F || st->st_size != found_files.size)
        return 0;
    found_files.n++;
    if (found_files.first == 0)
        found_files.first = st->st_ino;
    else if (st->st_ino != found_files.first)
        found_files.other = st->st_ino;
    return 0;
}

static bool is_one_file_of(struct fixture *f, off_t size)
{
    found_files.size = size;
    found_files.n = 0;
    found_files.first = found_files.other = 0;
    assert_int_equal(nftw(f->disk, count_file, 16, FTW_PHYS), 0);
    return found_files.n > 0 && found_files.other == 0;
}

static bool is_one_file(struct fixture *f)
{
    return is_one_file_of(f, FILE_SIZE);
}

/* A file of FILE_SIZE bytes 'a' that was synced, and that its writer still has open. */
static void acknowledge(struct fixture *f, const char *key, struct wire_put_open_rep *ret)
{
    assert_int_equal(stage(f, key, ret), 0);
    fill_file(ret->fd, 'a');
    assert_int_equal(commit_file(f, ret->handle, FILE_SIZE, WIRE_KEEP | WIRE_UNMAPPED), 0);
}

static bool is_cached(struct fixture *f, const char *key)
{
    struct wire_explain_req explain = {.bucket = SLICE_LIT("data"), .key = slice_str(key)};
    struct wire_explain_rep said;
    assert_int_equal(object_explain(f->session, &explain, f->arena, &said, NULL), 0);
    return slice_find_slice(said.json, SLICE_LIT("\"complete\":true")) >= 0;
}

/* Another run, after kill -9, which cannot send what the last one left, as it would at once, before
 * let_send(). */
static void restart_without_origin(struct fixture *f)
{
    assert_int_equal(rename(f->origin, arena_printf(f->arena, "%s.away", f->origin)), 0);
    node_close(f, store_abandon);
    node_open(f);
}

static void let_send(struct fixture *f)
{
    assert_int_equal(rename(arena_printf(f->arena, "%s.away", f->origin), f->origin), 0);
}

/* What a mount wrote is on the disk once, under its old name, the new one after a rename, and in the cache
 * when the origin has it; it has one ETag, which is no MD5, until then, and is open by its descriptor. */
static void test_a_file_is_on_the_disk_once(void **state)
{
    (void)state;
    struct fixture *f = fixture_new();
    set_bucket(f, "write_delay=1h\n");
    assert_int_equal(put_file(f, "tmp", 'a'), 0);
    assert_true(is_one_file(f));
    struct slice etag = stat_key(f, "tmp").etag;
    assert_true(slice_ends(etag, SLICE_LIT("-1")));
    struct wire_copy_req move = {
        .bucket = SLICE_LIT("data"), .from = SLICE_LIT("tmp"), .to = SLICE_LIT("k"), .flags = WIRE_MOVE};
    struct wire_copy_rep moved;
    assert_int_equal(object_copy(f->session, &move, f->arena, &moved, NULL), 0);
    assert_true(slice_eq(stat_key(f, "k").etag, etag) && is_one_file(f));
    struct wire_open_req open = {.bucket = SLICE_LIT("data"), .key = SLICE_LIT("k"), .via = WIRE_VIA_MOUNT};
    struct wire_open_rep o;
    assert_int_equal(object_open(f->session, &open, f->arena, &o, NULL), 0);
    assert_true(o.state == WIRE_COMPLETE && o.fd >= 0 && o.attr.size_bytes == FILE_SIZE);
    restart_without_origin(f);
    assert_true(slice_eq(stat_key(f, "k").etag, etag) && is_one_file(f));
    assert_int_equal(look(f, "k"), 'a');
    let_send(f);
    assert_int_equal(open_key(f, "tmp"), -ENOENT);
    flush(f);
    assert_true(is_one_file(f));
    assert_int_equal(origin_look(f, "k"), 'a');
    assert_int_equal(look(f, "k"), 'a');
    assert_true(is_cached(f, "k"));
    fixture_free(f);
}

static void open_put(struct fixture *f, const char *key, uint64_t size, uint32_t flags,
                     struct wire_put_open_rep *ret)
{
    struct wire_put_open_req req = {.bucket = SLICE_LIT("data"),
                                    .key = slice_str(key),
                                    .size = size,
                                    .via = WIRE_VIA_API,
                                    .flags = flags};
    assert_int_equal(object_put_open(f->session, &req, f->arena, ret, NULL), 0);
}

/* n bytes `c` at `offset`. */
static int write_put(struct fixture *f, uint64_t handle, char c, uint64_t n, uint64_t offset)
{
    char *p = malloc(n);
    assert_non_null(p);
    memset(p, c, n);
    struct wire_put_write_req req = {.handle = handle, .data = slice_of(p, n), .offset = offset};
    struct wire_put_write_rep rep;
    int r = object_put_write(f->session, &req, f->arena, &rep, NULL);
    free(p);
    return r;
}

static struct slice md5_of(struct fixture *f, char c, uint64_t n)
{
    struct md5 md5;
    uint8_t digest[MD5_BYTES];
    char *hex = arena_alloc(f->arena, 2 * MD5_BYTES + 1);
    md5_init(&md5);
    for (uint64_t i = 0; i < n; i++)
        md5_update(&md5, &c, 1);
    md5_final(&md5, digest);
    text_hex(digest, MD5_BYTES, hex);
    return slice_str(hex);
}

/* What the node is sent is on the disk once, too, and its ETag is its MD5: before and after a restart, and
 * in the cache when the origin has it. */
static void test_a_put_is_on_the_disk_once(void **state)
{
    (void)state;
    struct fixture *f = fixture_new();
    set_bucket(f, "write_delay=1h\n");
    assert_int_equal(put_by(f->session, f->arena, "k", 'a'), 0);
    assert_true(is_one_file_of(f, SIZE));
    struct slice etag = stat_key(f, "k").etag;
    assert_true(slice_eq(etag, md5_of(f, 'a', SIZE)));
    assert_int_equal(look(f, "k"), 'a');
    restart_without_origin(f);
    assert_true(slice_eq(stat_key(f, "k").etag, etag) && is_one_file_of(f, SIZE));
    assert_int_equal(look(f, "k"), 'a');
    let_send(f);
    flush(f);
    assert_int_equal(origin_look(f, "k"), 'a');
    assert_true(is_one_file_of(f, SIZE) && is_cached(f, "k"));
    assert_int_equal(look(f, "k"), 'a');
    fixture_free(f);
}

/* Of unknown size, in pieces, out of order, cut at the commit, committed while more is to come: what was
 * committed is there. The ETag is the MD5 where the bytes came in order, or who commits knows it. */
static void test_puts_of_all_kinds(void **state)
{
    (void)state;
    struct fixture *f = fixture_new();
    struct wire_put_open_rep o;
    set_bucket(f, "write_delay=1h\n");
    open_put(f, "k", UINT64_MAX, 0, &o);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(write_put(f, o.handle, 'a', 300000, i * 300000), 0);
    assert_int_equal(commit_file(f, o.handle, 700000, 0), 0); /* fewer than were written */
    assert_true(is_one_file_of(f, 700000));
    assert_int_equal(stat_key(f, "k").size_bytes, 700000);
    assert_int_equal(look(f, "k"), 'a');
    open_put(f, "k", 2 * SIZE, 0, &o);
    assert_int_equal(write_put(f, o.handle, 'b', SIZE, SIZE), 0);
    assert_int_equal(write_put(f, o.handle, 'b', SIZE, 0), 0);
    assert_int_equal(commit_file(f, o.handle, 2 * SIZE, 0), 0);
    assert_int_equal(look(f, "k"), 'b');
    assert_true(slice_ends(stat_key(f, "k").etag, SLICE_LIT("-1")));
    open_put(f, "k", UINT64_MAX, 0, &o);
    assert_int_equal(write_put(f, o.handle, 'c', SIZE, 0), 0);
    assert_int_equal(commit_file(f, o.handle, SIZE, WIRE_KEEP), 0);
    assert_int_equal(look(f, "k"), 'c');
    assert_int_equal(write_put(f, o.handle, 'd', SIZE, 0), 0);
    assert_int_equal(look(f, "k"), 'c');
    assert_int_equal(commit_file(f, o.handle, SIZE, 0), 0);
    assert_int_equal(look(f, "k"), 'd');
    open_put(f, "k", SIZE, WIRE_ETAG, &o);
    assert_int_equal(write_put(f, o.handle, 'e', SIZE, 0), 0);
    struct wire_put_commit_req req = {.handle = o.handle, .size = SIZE, .etag = md5_of(f, 'e', SIZE)};
    struct wire_put_commit_rep rep;
    assert_int_equal(object_put_commit(f->session, &req, f->arena, &rep, NULL), 0);
    assert_true(slice_eq(stat_key(f, "k").etag, req.etag));
    open_put(f, "empty", UINT64_MAX, 0, &o);
    assert_int_equal(commit_file(f, o.handle, 0, 0), 0);
    assert_int_equal(stat_key(f, "empty").size_bytes, 0);
    open_put(f, "given up", SIZE, 0, &o);
    assert_int_equal(write_put(f, o.handle, 'f', SIZE, 0), 0);
    abort_file(f, o.handle);
    flush(f);
    assert_int_equal(origin_look(f, "k"), 'e');
    assert_int_equal(origin_look(f, "given up"), 0);
    assert_true(is_one_file_of(f, SIZE));
    fixture_free(f);
}

/* A commit that is told to have failed, and was carried out, is tried again: the extent that a record may
 * name by now is not named once more, nor given back. */
static void test_a_put_whose_record_may_be_there(void **state)
{
    (void)state;
    bool hit = true;
    for (uint64_t n = 1; hit; n++) {
        struct fixture *f = fixture_new();
        set_bucket(f, "write_delay=1h\nretry=1m\n");
        faulty.carried_out = true;
        atomic_store(&faulty.calls, 0);
        atomic_store(&faulty.fail_at, n);
        int r = put_by(f->session, f->arena, "k", 'a');
        hit = atomic_load(&faulty.calls) >= n;
        atomic_store(&faulty.fail_at, 0);
        char there = look(f, "k");
        assert_true(there == 'a' || r < 0);
        node_close(f, store_abandon);
        node_open(f);
        assert_int_equal(look(f, "k"), there);
        flush(f);
        assert_int_equal(origin_look(f, "k"), there);
        assert_int_equal(look(f, "k"), there);
        fixture_free(f);
    }
}

/* It is renamed before its writer has closed it: that copies no byte either. */
static void test_a_file_is_renamed_while_it_is_open(void **state)
{
    (void)state;
    struct fixture *f = fixture_new();
    struct wire_put_open_rep o;
    set_bucket(f, "write_delay=1h\n");
    acknowledge(f, "tmp", &o);
    struct wire_copy_req move = {
        .bucket = SLICE_LIT("data"), .from = SLICE_LIT("tmp"), .to = SLICE_LIT("k"), .flags = WIRE_MOVE};
    struct wire_copy_rep moved;
    assert_int_equal(object_copy(f->session, &move, f->arena, &moved, NULL), 0);
    assert_true(is_one_file(f));
    abort_file(f, o.handle); /* as a mount does, whose file has another name now */
    assert_int_equal(look(f, "k"), 'a');
    assert_int_equal(open_key(f, "tmp"), -ENOENT);
    assert_true(is_one_file(f));
    flush(f);
    assert_int_equal(origin_look(f, "k"), 'a');
    assert_int_equal(origin_look(f, "tmp"), 0);
    fixture_free(f);
}

/* A directory is renamed around it: neither. */
static void test_a_directory_is_renamed_around_an_open_file(void **state)
{
    (void)state;
    struct fixture *f = fixture_new();
    struct wire_put_open_rep o;
    set_bucket(f, "write_delay=1h\n");
    acknowledge(f, "d/k", &o);
    assert_int_equal(put_by(f->session, f->arena, "d/e/other", 'b'), 0);
    struct wire_copy_req move = {.bucket = SLICE_LIT("data"),
                                 .from = SLICE_LIT("d"),
                                 .to = SLICE_LIT("new"),
                                 .flags = WIRE_MOVE | WIRE_POSIX};
    struct wire_copy_rep moved;
    assert_int_equal(object_copy(f->session, &move, f->arena, &moved, NULL), 0);
    assert_true(is_one_file(f) && is_one_file_of(f, SIZE));
    abort_file(f, o.handle);
    assert_int_equal(look(f, "new/k"), 'a');
    assert_int_equal(look(f, "new/e/other"), 'b');
    assert_int_equal(open_key(f, "d/k"), -ENOENT);
    assert_true(is_one_file(f));
    node_close(f, store_abandon);
    node_open(f);
    assert_int_equal(look(f, "new/k"), 'a');
    flush(f);
    assert_int_equal(origin_look(f, "new/k"), 'a');
    assert_int_equal(origin_look(f, "new/e/other"), 'b');
    assert_int_equal(origin_look(f, "d/k"), 0);
    fixture_free(f);
}

/* Who reads a file that its writer still has open gets bytes that stay as they are, whatever the writer does
 * next; what is written then is seen when it is committed. */
static void test_a_reader_of_an_open_file(void **state)
{
    (void)state;
    struct fixture *f = fixture_new();
    struct wire_put_open_rep o;
    set_bucket(f, "write_delay=1h\n");
    acknowledge(f, "k", &o);
    struct slice etag = stat_key(f, "k").etag;
    assert_int_equal(look(f, "k"), 'a');
    fill_file(o.fd, 'b');
    assert_int_equal(look(f, "k"), 'a');
    assert_true(slice_eq(stat_key(f, "k").etag, etag));
    assert_int_equal(commit_file(f, o.handle, FILE_SIZE, WIRE_KEEP | WIRE_UNMAPPED), 0);
    assert_false(slice_eq(stat_key(f, "k").etag, etag));
    fill_file(o.fd, 'c');
    assert_int_equal(look(f, "k"), 'b');
    assert_int_equal(commit_file(f, o.handle, FILE_SIZE, WIRE_KEEP | WIRE_UNMAPPED), 0);
    assert_int_equal(commit_file(f, o.handle, FILE_SIZE, WIRE_UNMAPPED), 0);
    assert_int_equal(look(f, "k"), 'c');
    flush(f);
    assert_int_equal(origin_look(f, "k"), 'c');
    assert_int_equal(look(f, "k"), 'c');
    fixture_free(f);
}

/* What was acknowledged is not there any more, because the writer cut the file: the version has the bytes
 * that are there, and another ETag. */
static void test_a_reader_of_a_file_that_was_cut(void **state)
{
    (void)state;
    struct fixture *f = fixture_new();
    struct wire_put_open_rep o;
    set_bucket(f, "write_delay=1h\n");
    acknowledge(f, "k", &o);
    struct slice etag = stat_key(f, "k").etag;
    assert_int_equal(ftruncate(o.fd, 100), 0);
    assert_int_equal(look(f, "k"), 'a');
    assert_true(stat_key(f, "k").size_bytes == 100 && !slice_eq(stat_key(f, "k").etag, etag));
    abort_file(f, o.handle);
    assert_int_equal(look(f, "k"), 'a');
    fixture_free(f);
}

/* Cut to nothing, and its writer is gone. */
static void test_a_file_that_was_emptied(void **state)
{
    (void)state;
    struct fixture *f = fixture_new();
    struct wire_put_open_rep o;
    set_bucket(f, "write_delay=1h\n");
    acknowledge(f, "k", &o);
    assert_int_equal(ftruncate(o.fd, 0), 0);
    abort_file(f, o.handle);
    flush(f);
    struct stat st;
    assert_int_equal(stat(arena_printf(f->arena, "%s/k", f->origin), &st), 0);
    assert_int_equal(st.st_size, 0);
    fixture_free(f);
}

/* Writes that are not in the origin yet take a share of the disks and a number of keys; beyond that the next
 * one is refused. With none of them there is room for the first, however large it is. */
static void test_room_of_what_is_not_in_the_origin(void **state)
{
    (void)state;
    struct fixture *f = fixture_new();
    struct back *b = f->service->back;
    struct bucket *bucket = NULL;
    struct store_disk_status d;
    set_bucket(f, "write_delay=1h\n");
    assert_int_equal(bucket_find(f->service->buckets, SLICE_LIT("data"), &bucket, NULL), 0);
    assert_int_equal(store_disk_status(f->store, 0, &d), 0);
    uint64_t most = d.limit_bytes / 100 * BACK_DIRTY_MAX;
    assert_int_equal(back_wait_room(b, bucket, GIB, /* may_refuse= */ true, NULL), 0);
    assert_int_equal(put_file(f, "k", 'a'), 0);
    assert_int_equal(back_wait_room(b, bucket, most - FILE_SIZE, /* may_refuse= */ true, NULL), 0);
    assert_int_equal(back_wait_room(b, bucket, most - FILE_SIZE + 1, /* may_refuse= */ true, NULL), -ENOSPC);
    (void)atomic_fetch_add(&b->n, BACK_KEYS_MAX);
    assert_int_equal(back_wait_room(b, bucket, 0, /* may_refuse= */ true, NULL), -ENOSPC);
    (void)atomic_fetch_sub(&b->n, BACK_KEYS_MAX);
    bucket_unref(bucket);
    flush(f);
    assert_int_equal(origin_look(f, "k"), 'a');
    fixture_free(f);
}

struct waiter {
    struct fixture *f;
    pthread_t thread;
    int result;
    struct err err;
};

static void *waiter_main(void *arg)
{
    struct waiter *w = arg;
    struct bucket *bucket = NULL;
    assert_int_equal(bucket_find(w->f->service->buckets, SLICE_LIT("data"), &bucket, NULL), 0);
    w->result = back_wait_room(w->f->service->back, bucket, GIB, /* may_refuse= */ false, &w->err);
    bucket_unref(bucket);
    return NULL;
}

/* Who waits for room when the node is told to stop is told so, soon, whatever the bucket's `retry` is; so is
 * who comes then, also with a removal, and whom a disk refuses. (Without stopping_soon in is_stopping the
 * first one waits for an hour.) */
static void test_waits_for_room_end_with_the_node(void **state)
{
    (void)state;
    struct fixture *f = fixture_new();
    struct back *b = f->service->back;
    struct waiter w = {.f = f};
    struct bucket *bucket = NULL;
    set_bucket(f, "write_delay=1h\nretry=1h\n");
    assert_int_equal(bucket_find(f->service->buckets, SLICE_LIT("data"), &bucket, NULL), 0);
    assert_int_equal(put_file(f, "k", 'a'), 0);
    set_bucket(f, "origin.timeout=1s\n");
    char *away = arena_printf(f->arena, "%s.away", f->origin);
    assert_int_equal(rename(f->origin, away), 0); /* nothing gets there */
    assert_int_equal(pthread_create(&w.thread, NULL, waiter_main, &w), 0);
    while (atomic_load(&b->n_waiting) == 0)
        sys->sleep_ns(1000000);
    object_stop_soon(f->service);
    assert_int_equal(pthread_join(w.thread, NULL), 0);
    assert_int_equal(w.result, ERR_CLOSED);
    assert_non_null(strstr(w.err.text, "the node is stopping"));
    assert_int_equal(back_wait_room(b, bucket, GIB, /* may_refuse= */ true, NULL), ERR_CLOSED);
    assert_int_equal(back_no_room(b, 1, NULL), ERR_CLOSED);
    assert_false(back_wait_freed(b, UINT64_MAX));
    (void)atomic_fetch_add(&b->n, BACK_KEYS_MAX);
    assert_int_equal(back_wait_record(b, bucket, SLICE_LIT("other"), NULL), ERR_CLOSED);
    (void)atomic_fetch_sub(&b->n, BACK_KEYS_MAX);
    assert_int_equal(rename(away, f->origin), 0);
    bucket_unref(bucket);
    fixture_free(f);
}

/* Until when the limit of requests is taken. */
static uint64_t owed_until_ns(struct fixture *f)
{
    struct upstream *u = NULL;
    assert_int_equal(object_upstream(f->service, SLICE_LIT("data"), &u, NULL), 0);
    lock_take(&u->places->lock);
    uint64_t until_ns = u->places->requests.free_at_ns;
    lock_drop(&u->places->lock);
    upstream_unref(u);
    return until_ns;
}

/* What a write asks the origin, and what its way there asks beside the request that has a place, is paid for
 * with limit.origin-requests, too. (Without `pays` in back_layer.c nothing is; without asked() in back_send.c
 * a look and a removal are one request.) */
static void test_questions_are_paid_for(void **state)
{
    (void)state;
    struct fixture *f = fixture_new();
    set_bucket(f, "write_delay=1h\nlimit.origin-requests=1\n");
    assert_int_equal(put_file(f, "k", 'a'), 0);
    assert_true(owed_until_ns(f) > 0);
    flush(f);
    assert_int_equal(origin_look(f, "k"), 'a');
    assert_int_equal(remove_key(f, "k"), 0);
    uint64_t before_ns = owed_until_ns(f);
    flush(f); /* looks, and removes */
    assert_true(owed_until_ns(f) >= before_ns + 2000000000ull);
    fixture_free(f);
}

/* A writer that has gone on after its fsync: the origin gets nothing that was not acknowledged, and status
 * says why. */
static void test_a_file_that_is_written_on_is_not_sent(void **state)
{
    (void)state;
    struct fixture *f = fixture_new();
    struct wire_put_open_rep o;
    struct wire_flush_req req = {.bucket = SLICE_LIT("data")};
    struct wire_flush_rep rep = {0};
    set_bucket(f, "write_delay=1h\n"); /* nothing is sent before it is written on */
    acknowledge(f, "k", &o);
    fill_file(o.fd, 'b');
    for (int i = 0; i < 60000 && rep.failing == 0; i++) {
        assert_int_equal(object_flush(f->session, &req, f->arena, &rep, NULL), 0);
        assert_int_equal(rep.objects, 1);
        sys->sleep_ns(1000000);
        arena_clear(f->arena);
    }
    assert_int_equal(rep.failing, 1);
    assert_int_equal(origin_look(f, "k"), 0);
    assert_int_equal(commit_file(f, o.handle, FILE_SIZE, WIRE_KEEP | WIRE_UNMAPPED), 0);
    flush(f);
    assert_int_equal(origin_look(f, "k"), 'b');
    abort_file(f, o.handle);
    fixture_free(f);
}

/* Asks for the flush until what is there cannot be sent, which status says. */
static void flush_until_it_waits(struct fixture *f)
{
    struct wire_flush_req req = {.bucket = SLICE_LIT("data")};
    struct wire_flush_rep rep = {0};
    for (int i = 0; i < 60000 && rep.failing == 0; i++) {
        assert_int_equal(object_flush(f->session, &req, f->arena, &rep, NULL), 0);
        if (rep.objects == 0)
            fail_msg("it was sent");
        sys->sleep_ns(1000000);
        arena_clear(f->arena);
    }
    assert_int_equal(rep.failing, 1);
}

static int copy_key(struct fixture *f, const char *from, const char *to, unsigned flags)
{
    struct wire_copy_req req = {
        .bucket = SLICE_LIT("data"), .from = slice_str(from), .to = slice_str(to), .flags = flags};
    struct wire_copy_rep rep;
    return object_copy(f->session, &req, f->arena, &rep, NULL);
}

/* ... nor when somebody renames it then, or sets its mode: that acknowledges no byte. */
static void test_a_file_that_is_written_on_and_renamed(void **state)
{
    (void)state;
    struct fixture *f = fixture_new();
    struct wire_put_open_rep o;
    set_bucket(f, "write_delay=1h\n");
    acknowledge(f, "tmp", &o);
    fill_file(o.fd, 'b');
    sys->sleep_ns(50000000); /* so that the rename would be after it by the kernel's clock for files, too */
    assert_int_equal(copy_key(f, "tmp", "k", WIRE_MOVE), 0);
    flush_until_it_waits(f);
    assert_int_equal(origin_look(f, "k"), 0);
    abort_file(f, o.handle);
    flush(f);
    fixture_free(f);
}

/* What is in the origin is renamed over a file that its writer still has open and has written to since: that
 * waits until what was acknowledged is there, though the writer never syncs it again. */
static void test_a_file_that_is_written_on_and_replaced(void **state)
{
    (void)state;
    struct fixture *f = fixture_new();
    struct wire_put_open_rep o;
    set_bucket(f, "retry=60s\n");
    assert_int_equal(put_file(f, "new", 'n'), 0);
    flush(f);
    acknowledge(f, "k", &o);
    fill_file(o.fd, 'b');
    assert_int_equal(copy_key(f, "new", "k", WIRE_MOVE), 0);
    assert_int_equal(look(f, "k"), 'n');
    flush(f);
    assert_int_equal(origin_look(f, "k"), 'n');
    assert_int_equal(origin_look(f, "new"), 0);
    abort_file(f, o.handle);
    fixture_free(f);
}

/* Another renames it, and its writer goes on: two versions have the file by two names, and each its own
 * bytes, whether the second one was kept as it is or copied. */
static void test_a_file_that_is_renamed_and_appended_to(void **state)
{
    (void)state;
    for (int synced = 0; synced < 2; synced++) {
        struct fixture *f = fixture_new();
        struct wire_put_open_rep o;
        struct stat st;
        set_bucket(f, "write_delay=1h\n");
        acknowledge(f, "tmp", &o);
        assert_int_equal(copy_key(f, "tmp", "k", WIRE_MOVE), 0);
        assert_int_equal(pwrite(o.fd, "a", 1, FILE_SIZE), 1);
        if (synced)
            assert_int_equal(commit_file(f, o.handle, FILE_SIZE + 1, WIRE_KEEP | WIRE_UNMAPPED), 0);
        assert_int_equal(commit_file(f, o.handle, FILE_SIZE + 1, WIRE_UNMAPPED), 0);
        flush(f);
        assert_int_equal(stat(arena_printf(f->arena, "%s/k", f->origin), &st), 0);
        assert_int_equal(st.st_size, FILE_SIZE);
        assert_int_equal(stat(arena_printf(f->arena, "%s/tmp", f->origin), &st), 0);
        assert_int_equal(st.st_size, FILE_SIZE + 1);
        assert_true(look(f, "tmp") == 'a' && look(f, "k") == 'a');
        assert_true(stat_key(f, "tmp").size_bytes == FILE_SIZE + 1);
        assert_true(stat_key(f, "k").size_bytes == FILE_SIZE);
        fixture_free(f);
    }
}

/* The checksum that comes with the commit of an upload, whose parts lie in a staged file, stays with the
 * object where the origin has no place for it: while it is not there yet, over a restart, and as long as it
 * is cached, also when the origin is asked each time. */
static void test_a_checksum_of_the_commit_stays(void **state)
{
    (void)state;
    struct fixture *f = fixture_new();
    struct wire_put_open_rep o;
    struct wire_put_commit_rep rep;
    set_bucket(f, "write_delay=1h\n");
    assert_int_equal(stage(f, "k", &o), 0);
    fill_file(o.fd, 'a');
    struct wire_put_commit_req req = {
        .handle = o.handle, .size = FILE_SIZE, .checksum = SLICE_LIT("crc32c AAAAAA==-2")};
    assert_int_equal(object_put_commit(f->session, &req, f->arena, &rep, NULL), 0);
    for (int i = 0; i < 4; i++) {
        assert_true(slice_find_slice(stat_key(f, "k").meta, SLICE_LIT("x-amz-checksum: crc32c AAAAAA==-2")) >=
                    0);
        if (i == 0)
            restart_without_origin(f);
        if (i == 1) {
            let_send(f);
            flush(f);
        }
        if (i == 2)
            set_bucket(f, "validate=always\n");
    }
    fixture_free(f);
}

/* A write that moved its file's time, and whose last byte comes when somebody waits for the file's lock. */
static atomic_int slow_fd = -1;

static void end_slow_write(void)
{
    struct stat st;
    int fd = atomic_exchange(&slow_fd, -1);
    if (fd < 0)
        return;
    assert_int_equal(fstat(fd, &st), 0);
    struct timespec times[2] = {st.st_atim, st.st_mtim};
    assert_int_equal(pwrite(fd, "b", 1, FILE_SIZE - 1), 1);
    assert_int_equal(futimens(fd, times), 0);
}

static int64_t lseek_of_slow_write(int fd, uint64_t offset, int whence)
{
    end_slow_write();
    return sys_real.lseek(fd, offset, whence);
}

/* A file is synced while another thread is in the middle of a long write to it: the version at its close has
 * all of that, though the file's time is the same as before. */
static void test_a_file_that_is_synced_during_a_write(void **state)
{
    (void)state;
    static struct sys table;
    const struct sys *before = sys;
    struct wire_put_open_rep o;
    table = *sys;
    table.lseek = lseek_of_slow_write;
    sys = &table;
    struct fixture *f = fixture_new();
    set_bucket(f, "write_delay=1h\n");
    acknowledge(f, "k", &o);
    assert_int_equal(pwrite(o.fd, "b", 1, 0), 1);
    atomic_store(&slow_fd, o.fd);
    assert_int_equal(commit_file(f, o.handle, FILE_SIZE, WIRE_KEEP | WIRE_UNMAPPED), 0);
    end_slow_write();
    assert_int_equal(commit_file(f, o.handle, FILE_SIZE, WIRE_UNMAPPED), 0);
    assert_int_equal(look(f, "k"), 'b');
    fixture_free(f);
    sys = before;
}

static atomic_int late_fd = -1;

/* The writer goes on while its file is copied, behind what was copied already. */
static ssize_t pwrite_and_writer(int fd, const void *p, size_t n, uint64_t offset)
{
    int to = n > 1 ? atomic_exchange(&late_fd, -1) : -1;
    if (to >= 0)
        assert_int_equal(pwrite(to, "b", 1, FILE_SIZE - 1), 1);
    return sys_real.pwrite(fd, p, n, offset);
}

/* ... nor a mix of two states, when the writer goes on while the sender copies what was acknowledged. */
static void test_a_file_that_is_written_on_while_it_is_copied(void **state)
{
    (void)state;
    static struct sys table;
    const struct sys *before = sys;
    struct wire_put_open_rep o;
    table = *sys;
    table.pwrite = pwrite_and_writer;
    sys = &table;
    struct fixture *f = fixture_new();
    set_bucket(f, "write_delay=1h\n");
    acknowledge(f, "k", &o);
    atomic_store(&late_fd, o.fd);
    flush_until_it_waits(f);
    assert_int_equal(atomic_load(&late_fd), -1);
    assert_int_equal(origin_look(f, "k"), 0);
    assert_int_equal(commit_file(f, o.handle, FILE_SIZE, WIRE_UNMAPPED), 0);
    flush(f);
    assert_int_equal(origin_look(f, "k"), 'a');
    fixture_free(f);
    sys = before;
}

/* The node is killed while a file is open that outlives it, as a mount's does: what was acknowledged is
 * there, and what is written through it afterwards changes nothing of what was read or sent. */
static void test_a_file_that_is_open_over_a_kill(void **state)
{
    (void)state;
    for (int read_first = 0; read_first < 2; read_first++) {
        struct fixture *f = fixture_new();
        struct wire_put_open_rep o;
        assert_int_equal(stage(f, "k", &o), 0);
        int fd = dup(o.fd);
        fill_file(fd, 'a');
        assert_int_equal(commit_file(f, o.handle, FILE_SIZE, WIRE_KEEP | WIRE_UNMAPPED), 0);
        node_close(f, store_abandon);
        node_open(f);
        if (read_first)
            assert_int_equal(look(f, "k"), 'a');
        else
            flush(f); /* after the moment for which the sender waits for it to be closed */
        fill_file(fd, 'b');
        assert_int_equal(look(f, "k"), 'a');
        flush(f);
        assert_int_equal(origin_look(f, "k"), 'a');
        (void)close(fd);
        fixture_free(f);
    }
}

/* Its writer was killed, and had appended more than was acknowledged: that goes. */
static void test_a_file_whose_writer_was_killed(void **state)
{
    (void)state;
    struct fixture *f = fixture_new();
    struct wire_put_open_rep o;
    set_bucket(f, "write_delay=1h\n");
    acknowledge(f, "k", &o);
    struct slice etag = stat_key(f, "k").etag;
    assert_int_equal(pwrite(o.fd, "b", 1, FILE_SIZE), 1);
    abort_file(f, o.handle);
    assert_int_equal(look(f, "k"), 'a');
    assert_true(slice_eq(stat_key(f, "k").etag, etag) && is_one_file(f));
    flush(f);
    struct stat st;
    assert_int_equal(stat(arena_printf(f->arena, "%s/k", f->origin), &st), 0);
    assert_int_equal(st.st_size, FILE_SIZE);
    fixture_free(f);
}

static atomic_uint n_notes, n_lost_notes, n_unsent;

/* Records that say that their version was sent, of those with a tag. */
static void look_at_notes(const struct kv_txn *t, enum kv_commit kind)
{
    struct back_record r;
    struct kv_op op;
    size_t pos = 0;
    while (kv_txn_next(t, &pos, &op)) {
        bool is_put = op.kind == KV_OP_PUT || op.kind == KV_OP_PUT_PLAIN;
        if (!is_put || !slice_starts(op.key, SLICE_LIT("d/")) || back_record_decode(op.value, &r) < 0)
            continue;
        bool is_note = r.has_tag && back_record_was_sent(&r);
        atomic_fetch_add(&n_notes, is_note);
        atomic_fetch_add(&n_lost_notes, is_note && kind != KV_DURABLE);
        atomic_fetch_add(&n_unsent, r.has_tag && r.has_md5 && r.n_sent == 0);
    }
}

/* The MD5 of a file is in its record before anything of it is sent, and is not computed anew by the next
 * start; such a record is not one that was sent. */
static void test_the_md5_is_kept_before_it_is_sent(void **state)
{
    (void)state;
    struct fixture *f = fixture_new();
    char *away = arena_printf(f->arena, "%s.away", f->origin);
    set_bucket(f, "write_delay=1h\n");
    assert_int_equal(put_file(f, "k", 'a'), 0);
    assert_int_equal(rename(f->origin, away), 0);
    atomic_store(&n_unsent, 0);
    atomic_store(&faulty.look, look_at_notes);
    struct wire_flush_req req = {.bucket = SLICE_LIT("data")};
    struct wire_flush_rep rep;
    for (int i = 0; i < 60000 && atomic_load(&n_unsent) == 0; i++) {
        assert_int_equal(object_flush(f->session, &req, f->arena, &rep, NULL), 0);
        sys->sleep_ns(1000000);
        arena_clear(f->arena);
    }
    assert_int_equal(atomic_load(&n_unsent), 1);
    node_close(f, store_abandon);
    away = arena_printf(f->arena, "%s.away", f->origin);
    assert_int_equal(rename(away, f->origin), 0);
    node_open(f);
    flush(f);
    atomic_store(&faulty.look, NULL);
    assert_int_equal(atomic_load(&n_unsent), 1);
    assert_int_equal(origin_look(f, "k"), 'a');
    fixture_free(f);
}

/* A version whose MD5 was not known is known again at the origin by the note that it was sent: power loss
 * must not take that, or our own object would be somebody else's. */
static void test_the_note_that_it_was_sent_is_durable(void **state)
{
    (void)state;
    struct fixture *f = fixture_new();
    set_bucket(f, "write_delay=1h\n");
    assert_int_equal(put_file(f, "k", 'a'), 0);
    atomic_store(&faulty.look, look_at_notes);
    flush(f);
    assert_int_equal(origin_look(f, "k"), 'a');
    fixture_free(f);
    assert_true(atomic_load(&n_notes) > 0);
    assert_int_equal(atomic_load(&n_lost_notes), 0);
}

/* A copy within the origin waits for what the target has to send, and holds no place there meanwhile: the one
 * place is the sender's. Nor while live bytes are copied. */
static _Atomic(struct upstream *) watched;
static atomic_uint n_watched, n_placed;

static ssize_t watch_places(int fd, const void *p, size_t n, uint64_t offset)
{
    struct upstream *u = atomic_load(&watched);
    atomic_fetch_add(&n_watched, u != NULL);
    atomic_fetch_add(&n_placed, u && !upstream_has_place(u, /* ahead= */ false));
    return sys_real.pwrite(fd, p, n, offset);
}

static void test_a_copy_waits_without_a_place(void **state)
{
    (void)state;
    static struct sys table;
    const struct sys *before = sys;
    struct upstream *u;
    struct wire_put_open_rep o;
    struct err e = {0};
    table = *sys;
    table.pwrite = watch_places;
    sys = &table;
    struct fixture *f = fixture_new();
    set_bucket(f, "origin.connections=1\nretry=120s\n");
    assert_int_equal(put_by(f->session, f->arena, "x", 'x'), 0);
    flush(f);
    set_bucket(f, "write_delay=1h\n");
    assert_int_equal(put_by(f->session, f->arena, "y", 'y'), 0);
    assert_int_equal(copy_key(f, "x", "y", 0), 0);
    assert_int_equal(origin_look(f, "y"), 'x');
    acknowledge(f, "k", &o);
    assert_int_equal(object_upstream(f->service, SLICE_LIT("data"), &u, &e), 0);
    atomic_store(&watched, u);
    assert_int_equal(copy_key(f, "k", "l", 0), 0);
    atomic_store(&watched, NULL);
    upstream_unref(u);
    assert_true(atomic_load(&n_watched) > 0);
    assert_int_equal(atomic_load(&n_placed), 0);
    assert_int_equal(look(f, "l"), 'a');
    abort_file(f, o.handle);
    fixture_free(f);
    sys = before;
}

/* What the origin can never take is refused before anything of it is kept, and not acknowledged and then
 * tried again for ever. (Without origin_takes in back_layer.c all of these succeed, and the flush never
 * ends.) */
static void test_what_the_origin_can_never_take(void **state)
{
    (void)state;
    static const char *const keys[] = {"a//b", "../x", "d/", ".forebay-tmp-1"};
    struct fixture *f = fixture_new();
    set_bucket(f, "write_delay=1h\n");
    assert_int_equal(put_by(f->session, f->arena, "k", 'k'), 0);
    for (size_t i = 0; i < ARRAY_SIZE(keys); i++) {
        assert_int_equal(put_by(f->session, f->arena, keys[i], 'x'), -EINVAL);
        assert_int_equal(copy_key(f, "k", keys[i], 0), -EINVAL);
        assert_int_equal(copy_key(f, "k", keys[i], WIRE_MOVE), -EINVAL);
    }
    assert_int_equal(look(f, "k"), 'k');
    set_bucket(f, "write_delay=0s\n");
    flush(f);
    assert_int_equal(origin_look(f, "k"), 'k');
    fixture_free(f);
}

/* Nor is a removal of what it can never have, which it would say nothing of for ever, so that the flush never
 * ended and the bucket could not be removed: of an object store by name alone, whether it is there or not.
 * (Without check_removable in back_layer.c all of these succeed, and stay.) */
static void test_a_removal_that_the_origin_can_never_take(void **state)
{
    (void)state;
    struct fixture *f = fixture_new();
    char key[ORIGIN_KEY_MAX_BYTES + 1] = {0};
    memset(key, 'k', sizeof(key) - 1);
    struct bucket *b; /* not by the operation, which asks the origin */
    struct slice settings = SLICE_LIT("origin=s3://b/prefix\norigin.endpoint=http://127.0.0.1:1\nretry=0s\n"
                                      "origin.access_key=a\norigin.secret_key=s\nwrite=back\n");
    assert_int_equal(bucket_create(f->service->buckets, SLICE_LIT("far"), settings, &b, NULL), 0);
    bucket_unref(b);
    struct wire_remove_req req = {.bucket = SLICE_LIT("far"), .key = slice_str(key)};
    struct wire_remove_rep rep;
    assert_int_equal(object_remove(f->session, &req, f->arena, &rep, NULL), -ENAMETOOLONG);
    req.key = SLICE_LIT("caf\xe9");
    assert_int_equal(object_remove(f->session, &req, f->arena, &rep, NULL), -EILSEQ);
    struct wire_flush_req flush_req = {.bucket = SLICE_LIT("far"), .flags = WIRE_NO_WAIT};
    struct wire_flush_rep flushed;
    assert_int_equal(object_flush(f->session, &flush_req, f->arena, &flushed, NULL), 0);
    assert_int_equal(flushed.objects, 0);
    req.key = SLICE_LIT("k"); /* which may be there */
    assert_int_equal(object_remove(f->session, &req, f->arena, &rep, NULL), 0);
    assert_int_equal(object_flush(f->session, &flush_req, f->arena, &flushed, NULL), 0);
    assert_int_equal(flushed.objects, 1);
    fixture_free(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_the_origin_can_never_take),
        cmocka_unit_test(test_a_removal_that_the_origin_can_never_take),
        cmocka_unit_test(test_a_file_is_on_the_disk_once),
        cmocka_unit_test(test_a_put_is_on_the_disk_once),
        cmocka_unit_test(test_puts_of_all_kinds),
        cmocka_unit_test(test_a_put_whose_record_may_be_there),
        cmocka_unit_test(test_a_file_is_renamed_while_it_is_open),
        cmocka_unit_test(test_a_directory_is_renamed_around_an_open_file),
        cmocka_unit_test(test_a_reader_of_an_open_file),
        cmocka_unit_test(test_a_reader_of_a_file_that_was_cut),
        cmocka_unit_test(test_a_file_that_was_emptied),
        cmocka_unit_test(test_room_of_what_is_not_in_the_origin),
        cmocka_unit_test(test_waits_for_room_end_with_the_node),
        cmocka_unit_test(test_questions_are_paid_for),
        cmocka_unit_test(test_a_file_that_is_written_on_is_not_sent),
        cmocka_unit_test(test_a_file_that_is_written_on_while_it_is_copied),
        cmocka_unit_test(test_a_file_that_is_written_on_and_renamed),
        cmocka_unit_test(test_a_file_that_is_written_on_and_replaced),
        cmocka_unit_test(test_a_file_that_is_renamed_and_appended_to),
        cmocka_unit_test(test_a_checksum_of_the_commit_stays),
        cmocka_unit_test(test_a_file_that_is_synced_during_a_write),
        cmocka_unit_test(test_a_file_that_is_open_over_a_kill),
        cmocka_unit_test(test_a_file_whose_writer_was_killed),
        cmocka_unit_test(test_the_md5_is_kept_before_it_is_sent),
        cmocka_unit_test(test_the_note_that_it_was_sent_is_durable),
        cmocka_unit_test(test_a_copy_waits_without_a_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

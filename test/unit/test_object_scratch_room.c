/* layer: object */
/* threaded */
/* Quotas of scratch buckets through the operations: who gets room, and when it is free again. */
#include "scratch_service.h"

#include "base/metrics.h"

#define ROOT   1
#define QUOTA  (4 * MIB)
#define BLOCK  4096
#define TRY_NS 20000000 /* from one try to get room to the next (scratch_room.c) */

static const struct sys *real;
static atomic_bool is_hasty;
static atomic_uint n_tries;
static _Atomic uint64_t later_ns; /* by how much the clock is ahead */
static struct fixture *closes;    /* what a mount tells after the given number of tries; NULL: nothing */
static uint64_t closes_handle;
static unsigned closes_after;

static void sleep_less(uint64_t ns)
{
    bool is_try = atomic_load(&is_hasty) && ns == TRY_NS;
    if (is_try && atomic_fetch_add(&n_tries, 1) + 1 == closes_after && closes)
        assert_int_equal(close_handle(closes, closes_handle), 0);
    real->sleep_ns(is_try ? ns / 20 : ns);
}

static uint64_t mono_later(void)
{
    return real->mono_ns() + atomic_load(&later_ns);
}

/* A call that waits for others to give room back: nobody does, and so it need not wait long. */
#define assert_after_waiting(call, expected)                                                                 \
    do {                                                                                                     \
        atomic_store(&is_hasty, true);                                                                       \
        assert_int_equal(call, expected);                                                                    \
        atomic_store(&is_hasty, false);                                                                      \
    } while (0)
#define assert_refused(call) assert_after_waiting(call, -EDQUOT)

static void set_quota(struct fixture *f, const char *settings)
{
    struct wire_bucket_set_req req = {.name = BUCKET, .settings = slice_str(settings)};
    struct wire_bucket_set_rep rep = {0};
    if (object_bucket_set(f->session, &req, f->arena, &rep, &f->e) < 0)
        fail_msg("%s", f->e.text);
}

static int room(struct fixture *f, uint64_t ino, uint64_t back, uint64_t least, uint64_t want, uint64_t *ret)
{
    struct wire_tree_room_req req = {
        .bucket = BUCKET, .ino = ino, .back = back, .least = least, .want = want};
    struct wire_tree_room_rep rep = {0};
    int r = object_tree_room(f->session, &req, f->arena, &rep, &f->e);
    if (r == 0 && ret)
        *ret = rep.granted;
    return r;
}

static uint64_t free_bytes(struct fixture *f)
{
    struct wire_tree_statfs_req req = {.bucket = BUCKET};
    struct wire_tree_statfs_rep rep = {0};
    assert_int_equal(object_tree_statfs(f->session, &req, f->arena, &rep, &f->e), 0);
    return rep.bytes_free;
}

static void open_new(struct fixture *f, const char *name, struct wire_tree_create_rep *ret)
{
    assert_int_equal(create_file(f, ROOT, name, WIRE_WRITE, ret), 0);
    assert_true(ret->is_limited);
}

static int open_put(struct fixture *f, const char *key, uint64_t size, uint64_t *ret)
{
    struct wire_put_open_req req = {
        .bucket = BUCKET, .key = slice_str(key), .size = size, .via = WIRE_VIA_API};
    struct wire_put_open_rep rep = {0};
    int r = object_put_open(f->session, &req, f->arena, &rep, &f->e);
    *ret = rep.handle;
    return r;
}

static int abort_put(struct fixture *f, uint64_t handle)
{
    struct wire_put_abort_req req = {.handle = handle};
    struct wire_put_abort_rep rep = {0};
    return object_put_abort(f->session, &req, f->arena, &rep, &f->e);
}

/* What one open file has reserved no other gets, until its handle is closed; what is on disk then stays. */
static void room_ends_with_its_handle(void **state)
{
    struct fixture *f = *state;
    struct wire_tree_create_rep a = {0}, b = {0};
    uint64_t got = 0;
    set_quota(f, "quota=4MiB\n");
    open_new(f, "a", &a);
    open_new(f, "b", &b);
    assert_int_equal(room(f, a.inode.ino, 0, 3 * MIB, 3 * MIB, &got), 0);
    assert_int_equal(got, 3 * MIB);
    assert_refused(room(f, b.inode.ino, 0, 2 * MIB, 2 * MIB, &got));
    assert_non_null(strstr(f->e.text, "quota=SIZE"));
    assert_after_waiting(room(f, b.inode.ino, 0, BLOCK, 2 * MIB, &got), 0);
    assert_int_equal(got, MIB);
    assert_int_equal(free_bytes(f), 0);
    assert_int_equal(pwrite(a.fd, "x", 1, 0), 1);
    assert_int_equal(room(f, a.inode.ino, BLOCK, 0, 0, NULL), 0); /* tells, and wants nothing */
    assert_int_equal(free_bytes(f), 0);
    assert_int_equal(close_handle(f, a.handle), 0);
    assert_int_equal(free_bytes(f), QUOTA - MIB - BLOCK);
    assert_int_equal(room(f, b.inode.ino, MIB, QUOTA - BLOCK, QUOTA - BLOCK, NULL), 0);
    assert_int_equal(close_handle(f, b.handle), 0);
    assert_int_equal(free_bytes(f), QUOTA - BLOCK);
}

/* A session that ends without a word leaves no reservation: neither of files nor of PUTs. */
static void room_ends_with_its_session(void **state)
{
    struct fixture *f = *state;
    struct object_session *ours = f->session;
    struct wire_tree_create_rep a = {0};
    uint64_t handle = 0;
    set_quota(f, "quota=4MiB\n");
    f->session = object_session_new(f->service, WIRE_VIA_MOUNT);
    open_new(f, "a", &a);
    assert_int_equal(pwrite(a.fd, "x", 1, 0), 1);
    assert_int_equal(room(f, a.inode.ino, 0, MIB, MIB, NULL), 0);
    assert_int_equal(open_put(f, "k", 2 * MIB, &handle), 0);
    assert_true(free_bytes(f) <= MIB);
    object_session_free(f->session);
    f->session = ours;
    assert_int_equal(free_bytes(f), QUOTA - BLOCK);
    assert_int_equal(room(f, a.inode.ino, 0, BLOCK, BLOCK, NULL), -ESTALE); /* not of this session */
}

/* After a restart what is on disk counts, also of a file that was being written, and nothing is reserved. */
static void a_restart_begins_with_what_is_there(void **state)
{
    struct fixture *f = *state;
    struct wire_tree_create_rep a = {0};
    set_quota(f, "quota=4MiB\n");
    open_new(f, "a", &a);
    assert_int_equal(room(f, a.inode.ino, 0, 2 * MIB, 2 * MIB, NULL), 0);
    char *bytes = calloc(1, MIB);
    assert_int_equal(pwrite(a.fd, bytes, MIB, 0), MIB);
    free(bytes);
    restart(f);
    assert_int_equal(free_bytes(f), 3 * MIB);
}

/* A removed file that a mount goes on writing to is the quota's after a restart, too: before the mount has
 * opened it again, and after; until it is closed. */
static void a_removed_open_file_counts_after_a_restart(void **state)
{
    struct fixture *f = *state;
    struct wire_tree_create_rep a = {0}, b = {0};
    struct wire_tree_open_rep o = {0};
    static char bytes[MIB];
    set_quota(f, "quota=4MiB\n");
    open_new(f, "a", &a);
    open_new(f, "b", &b);
    int mount = dup(a.fd);
    assert_int_equal(pwrite(mount, bytes, MIB, 0), MIB);
    assert_int_equal(pwrite(b.fd, bytes, MIB, 0), MIB);
    assert_int_equal(unlink_name(f, ROOT, "a"), 0);
    assert_int_equal(unlink_name(f, ROOT, "b"), 0);
    restart(f);
    assert_int_equal(pwrite(mount, bytes, MIB, MIB), MIB);
    assert_int_equal(open_ino(f, a.inode.ino, WIRE_WRITE, &o), 0);
    assert_int_equal(open_ino(f, b.inode.ino, WIRE_WRITE, &(struct wire_tree_open_rep){0}), -ENOENT);
    assert_true(free_bytes(f) <= 2 * MIB);
    assert_refused(room(f, a.inode.ino, 0, 3 * MIB, 3 * MIB, NULL));
    assert_int_equal(close(mount), 0);
    assert_int_equal(close_handle(f, o.handle), 0);
    for (int i = 0; i < 6000 && free_bytes(f) < QUOTA; i++)
        sys->sleep_ns(10000000);
    assert_int_equal(free_bytes(f), QUOTA);
}

/* Room of a removed file comes with the close that its mount is about to tell, if a good while after the
 * removal. One that has been open since long is not waited for as long. */
static void a_late_close_of_a_removed_file_is_waited_for(void **state)
{
    struct fixture *f = *state;
    struct wire_tree_create_rep a = {0}, b = {0};
    static char bytes[3 * MIB];
    set_quota(f, "quota=4MiB\n");
    open_new(f, "b", &b);
    for (int is_old = 0; is_old < 2; is_old++) {
        open_new(f, "a", &a);
        assert_int_equal(room(f, a.inode.ino, 0, 3 * MIB, 3 * MIB, NULL), 0);
        assert_int_equal(pwrite(a.fd, bytes, sizeof(bytes), 0), sizeof(bytes));
        assert_int_equal(room(f, a.inode.ino, 3 * MIB, 0, 0, NULL), 0);
        assert_int_equal(unlink_name(f, ROOT, "a"), 0);
        atomic_store(&n_tries, 0);
        if (is_old) {
            atomic_store(&later_ns, (uint64_t)3600 * 1000000000);
            assert_refused(room(f, b.inode.ino, 0, 3 * MIB, 3 * MIB, NULL));
            assert_true(atomic_load(&n_tries) < 20);
            assert_int_equal(close_handle(f, a.handle), 0);
            break;
        }
        closes = f;
        closes_handle = a.handle;
        closes_after = 100;
        assert_after_waiting(room(f, b.inode.ino, 0, 3 * MIB, 3 * MIB, NULL), 0);
        closes = NULL;
        assert_true(atomic_load(&n_tries) >= 100);
        assert_int_equal(room(f, b.inode.ino, 3 * MIB, 0, 0, NULL), 0);
    }
    atomic_store(&later_ns, 0);
}

/* A PUT reserves what it announces; one that is too large is refused at once, one of unknown size where it
 * passes the quota; what is given up is free again. */
static void puts_are_refused(void **state)
{
    struct fixture *f = *state;
    uint64_t a = 0, b = 0;
    static char piece[MIB];
    struct wire_put_write_rep wrote = {0};
    set_quota(f, "quota=4MiB\n");
    assert_int_equal(put(f, "there", "text", NULL), 0);
    assert_int_equal(open_put(f, "a", 3 * MIB, &a), 0);
    assert_int_equal(free_bytes(f), MIB - BLOCK);
    assert_refused(open_put(f, "b", MIB, &b));
    assert_int_equal(abort_put(f, a), 0);
    assert_int_equal(open_put(f, "b", UINT64_MAX, &b), 0);
    struct wire_put_write_req w = {.handle = b, .data = slice_of(piece, sizeof(piece))};
    for (; w.offset < 3 * MIB; w.offset += MIB)
        assert_int_equal(object_put_write(f->session, &w, f->arena, &wrote, &f->e), 0);
    assert_refused(object_put_write(f->session, &w, f->arena, &wrote, &f->e));
    assert_int_equal(abort_put(f, b), 0);
    assert_int_equal(free_bytes(f), QUOTA - BLOCK);
    assert_int_equal(remove_key(f, "there", 0), 0);
    assert_int_equal(open_put(f, "a", QUOTA, &a), 0); /* waits until what was removed is freed */
    assert_int_equal(abort_put(f, a), 0);
}

/* A staged PUT asks before its descriptor is written to; parts that were given up count no more. */
static void staged_puts_ask(void **state)
{
    struct fixture *f = *state;
    struct wire_put_open_req open = {
        .bucket = BUCKET, .key = SLICE_LIT("k"), .size = UINT64_MAX, .flags = WIRE_STAGED};
    struct wire_put_open_rep opened = {0};
    struct wire_put_room_rep rep = {0};
    set_quota(f, "quota=4MiB\n");
    assert_int_equal(object_put_open(f->session, &open, f->arena, &opened, &f->e), 0);
    struct wire_put_room_req ask = {.handle = opened.handle, .least = 3 * MIB};
    assert_int_equal(object_put_room(f->session, &ask, f->arena, &rep, &f->e), 0);
    assert_refused(object_put_room(f->session, &ask, f->arena, &rep, &f->e));
    assert_int_equal(free_bytes(f), MIB);
    ask = (struct wire_put_room_req){.handle = opened.handle, .back = 3 * MIB};
    assert_int_equal(object_put_room(f->session, &ask, f->arena, &rep, &f->e), 0);
    assert_int_equal(free_bytes(f), QUOTA);
    assert_int_equal(pwrite(opened.fd, "x", 1, 5 * MIB), 1); /* a block, wherever it lies */
    ask = (struct wire_put_room_req){.handle = opened.handle, .least = QUOTA - BLOCK};
    assert_int_equal(object_put_room(f->session, &ask, f->arena, &rep, &f->e), 0);
    assert_int_equal(abort_put(f, opened.handle), 0);
    assert_int_equal(free_bytes(f), QUOTA);
}

/* What an upload in parts has on disk counts after a restart, too, whatever the quota is by then; and it is
 * found at once: nobody waits for room that is taken already. Fails when resume (scratch_writer.c) asks for
 * it as for more. */
static void an_upload_counts_after_a_restart(void **state)
{
    struct fixture *f = *state;
    struct wire_put_open_req open = {
        .bucket = BUCKET, .key = SLICE_LIT("k"), .size = UINT64_MAX, .flags = WIRE_STAGED};
    struct wire_put_open_rep opened = {0};
    struct wire_upload_keep_req keep = {.tag = SLICE_LIT("tag")};
    struct wire_upload_keep_rep kept = {0};
    struct wire_upload_resume_rep resumed = {0};
    struct wire_upload_abort_rep aborted = {0};
    static char bytes[3 * MIB];
    assert_int_equal(object_put_open(f->session, &open, f->arena, &opened, &f->e), 0);
    keep.handle = opened.handle;
    assert_int_equal(object_upload_keep(f->session, &keep, f->arena, &kept, &f->e), 0);
    assert_int_equal(pwrite(opened.fd, bytes, sizeof(bytes), 0), sizeof(bytes));
    set_quota(f, "quota=2MiB\n");
    restart(f);
    struct wire_upload_resume_req resume = {.bucket = BUCKET, .key = SLICE_LIT("k"), .id = kept.id};
    assert_int_equal(object_upload_resume(f->session, &resume, f->arena, &resumed, &f->e), 0);
    assert_int_equal(free_bytes(f), 0);
    struct wire_put_room_req ask = {.handle = resumed.handle, .least = BLOCK};
    struct wire_put_room_rep rep = {0};
    assert_refused(object_put_room(f->session, &ask, f->arena, &rep, &f->e));
    set_quota(f, "quota=4MiB\n");
    assert_int_equal(free_bytes(f), MIB);
    ask.least = MIB;
    assert_int_equal(object_put_room(f->session, &ask, f->arena, &rep, &f->e), 0);
    struct wire_upload_abort_req end = {.bucket = BUCKET, .key = SLICE_LIT("k"), .id = kept.id};
    assert_int_equal(object_upload_abort(f->session, &end, f->arena, &aborted, &f->e), 0);
    assert_int_equal(abort_put(f, resumed.handle), 0);
    assert_int_equal(free_bytes(f), QUOTA);
}

/* Without a quota everything is granted; requests that make no sense are refused. */
static void without_a_quota_there_is_no_end(void **state)
{
    struct fixture *f = *state;
    struct wire_tree_create_rep a = {0};
    struct wire_tree_open_rep o = {0};
    uint64_t got = 0;
    assert_int_equal(create_file(f, ROOT, "a", WIRE_WRITE, &a), 0);
    assert_false(a.is_limited);
    assert_int_equal(room(f, a.inode.ino, 0, 1000 * MIB, 1000 * MIB, &got), 0);
    assert_true(got >= 1000 * MIB && free_bytes(f) > QUOTA);
    assert_int_equal(room(f, a.inode.ino, 0, 2, 1, NULL), -EINVAL);
    assert_int_equal(close_handle(f, a.handle), 0);
    assert_int_equal(room(f, a.inode.ino, 0, 1, 1, NULL), -ESTALE);
    set_quota(f, "quota=4MiB\n");
    assert_int_equal(open_ino(f, a.inode.ino, 0, &o), 0);
    assert_true(o.is_limited);
    assert_int_equal(room(f, a.inode.ino, 0, 1, 1, NULL), -ESTALE); /* open for reading */
    assert_int_equal(close_handle(f, o.handle), 0);
    assert_int_equal(make_bucket(f, SLICE_LIT("mem"), "values=memory\nquota=1MiB\n"), ERR_BAD_OPTION);
}

static int64_t gauge(struct fixture *f, enum metric m, const char *bucket)
{
    object_service_refresh_metrics(f->service);
    return (int64_t)metrics_value(metrics_series(m, bucket, NULL, NULL));
}

/* What open files hold back of a quota shows in the metrics, and nothing of it once they are closed. */
static void reserved_room_shows_in_the_metrics(void **state)
{
    struct fixture *f = *state;
    struct wire_tree_create_rep a = {0};
    uint64_t got = 0, handle;
    set_quota(f, "quota=4MiB\n");
    open_new(f, "a", &a);
    assert_int_equal(gauge(f, METRIC_SCRATCH_RESERVED_BYTES, "scr"), 0);
    assert_int_equal(room(f, a.inode.ino, 0, MIB, MIB, &got), 0);
    assert_int_equal(gauge(f, METRIC_SCRATCH_RESERVED_BYTES, "scr"), MIB);
    assert_int_equal(open_put(f, "k", 2 * MIB, &handle), 0);
    assert_int_equal(gauge(f, METRIC_SCRATCH_RESERVED_BYTES, "scr"), 3 * MIB);
    assert_int_equal(abort_put(f, handle), 0);
    assert_int_equal(gauge(f, METRIC_SCRATCH_RESERVED_BYTES, "scr"), MIB);
    assert_int_equal(close_handle(f, a.handle), 0);
    assert_int_equal(gauge(f, METRIC_SCRATCH_RESERVED_BYTES, "scr"), 0);
}

/* However many buckets there are, each has its gauges. */
static void every_bucket_has_its_gauges(void **state)
{
    struct fixture *f = *state;
    for (int i = 0; i < 300; i++) {
        char name[32];
        (void)snprintf(name, sizeof(name), "many-%03d", i);
        assert_int_equal(make_bucket(f, slice_str(name), ""), 0);
    }
    struct wire_tree_create_req req = {
        .bucket = SLICE_LIT("many-299"), .parent = ROOT, .name = SLICE_LIT("a"), .mode = S_IFREG | 0644};
    struct wire_tree_create_rep rep = {0};
    assert_int_equal(object_tree_create(f->session, &req, f->arena, &rep, &f->e), 0);
    assert_int_equal(gauge(f, METRIC_SCRATCH_INODES, "many-299"), 1);
}

/* Room beyond everything is refused, with and without a quota, however often a client asks. */
static void endless_room_is_refused(void **state)
{
    struct fixture *f = *state;
    struct wire_tree_create_rep a = {0}, b = {0};
    const uint64_t most = (uint64_t)1 << 50;
    assert_int_equal(create_file(f, ROOT, "a", WIRE_WRITE, &a), 0);
    assert_int_equal(create_file(f, ROOT, "b", WIRE_WRITE, &b), 0);
    assert_int_equal(room(f, a.inode.ino, 0, 0, UINT64_MAX, NULL), -EFBIG);
    for (int i = 0; i < 16383; i++) /* as long as it can be counted */
        assert_int_equal(room(f, a.inode.ino, 0, 0, most, NULL), 0);
    assert_refused(room(f, b.inode.ino, 0, most, most, NULL));
    assert_int_equal(close_handle(f, b.handle), 0);
    assert_int_equal(close_handle(f, a.handle), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        BOTH(room_ends_with_its_handle),
        BOTH(room_ends_with_its_session),
        BOTH(a_restart_begins_with_what_is_there),
        BOTH(a_removed_open_file_counts_after_a_restart),
        BOTH(a_late_close_of_a_removed_file_is_waited_for),
        BOTH(puts_are_refused),
        BOTH(staged_puts_ask),
        BOTH(an_upload_counts_after_a_restart),
        BOTH(without_a_quota_there_is_no_end),
        BOTH(reserved_room_shows_in_the_metrics),
        BOTH(every_bucket_has_its_gauges),
        BOTH(endless_room_is_refused),
    };
    static struct sys hasty;
    real = sys;
    hasty = *sys;
    hasty.sleep_ns = sleep_less;
    hasty.mono_ns = mono_later;
    sys = &hasty;
    return cmocka_run_group_tests_name("object_scratch_room", tests, NULL, NULL);
}

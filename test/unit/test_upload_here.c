/* layer: object */
/* threaded */
/* Uploads in parts that are in a file of this node: what was acknowledged is there after a crash, what ended
 * leaves nothing. */
#include "scratch_service.h"

#include "namespace/upload.h"
#include "object/upload_here.h"
#include "support/crash_sys.h"
#include "support/fault_sys.h"

#include <dirent.h>

#define PART   (256 * KIB)
#define PARTS  3
#define SYNCS  (FAULT_FSYNC | FAULT_FDATASYNC)
#define ETAG   SLICE_LIT("00112233445566778899aabbccddeeff")
#define RESULT SLICE_LIT("00112233445566778899aabbccddeeff-2")

/* One upload of key "k", by its handle. */
struct up {
    uint64_t handle;
    int fd;
    struct slice id;
};

/* ---- short forms ---- */

static int open_put(struct fixture *f, struct up *ret)
{
    struct wire_put_open_req req = {.bucket = BUCKET,
                                    .key = SLICE_LIT("k"),
                                    .size = UINT64_MAX,
                                    .content_type = SLICE_LIT("a/b"),
                                    .via = WIRE_VIA_S3,
                                    .flags = WIRE_STAGED};
    struct wire_put_open_rep rep = {0};
    *ret = (struct up){.fd = -1};
    int r = object_put_open(f->session, &req, f->arena, &rep, &f->e);
    ret->handle = rep.handle;
    ret->fd = r == 0 ? rep.fd : -1;
    return r;
}

static int keep(struct fixture *f, struct up *u, struct slice join)
{
    struct wire_upload_keep_req req = {.handle = u->handle, .id = join, .tag = SLICE_LIT("tag")};
    struct wire_upload_keep_rep rep = {0};
    int r = object_upload_keep(f->session, &req, f->arena, &rep, &f->e);
    if (r == 0)
        u->id = rep.id;
    return r;
}

static int begin(struct fixture *f, struct up *ret)
{
    int r = open_put(f, ret);
    return r == 0 ? keep(f, ret, SLICE_NULL) : r;
}

static int write_part(struct up *u, uint32_t number)
{
    static uint8_t bytes[PART];
    memset(bytes, (int)number, sizeof(bytes));
    return sys_pwrite_all(u->fd, bytes, sizeof(bytes), (number - 1) * (uint64_t)PART);
}

static int keep_part(struct fixture *f, const struct up *u, uint32_t number, uint32_t flags)
{
    struct wire_upload_keep_part_req req = {.handle = u->handle,
                                            .number = number,
                                            .size = PART,
                                            .offset = (number - 1) * (uint64_t)PART,
                                            .slot_bytes = PART,
                                            .etag = ETAG,
                                            .flags = flags};
    struct wire_upload_keep_part_rep rep = {0};
    return object_upload_keep_part(f->session, &req, f->arena, &rep, &f->e);
}

static int put_part(struct fixture *f, struct up *u, uint32_t number)
{
    int r = write_part(u, number);
    return r == 0 ? keep_part(f, u, number, 0) : r;
}

static int commit(struct fixture *f, const struct up *u, uint64_t size)
{
    struct wire_put_commit_req req = {.handle = u->handle, .size = size, .etag = RESULT};
    struct wire_put_commit_rep rep = {0};
    return object_put_commit(f->session, &req, f->arena, &rep, &f->e);
}

static int resume(struct fixture *f, struct slice id, struct up *ret)
{
    struct wire_upload_resume_req req = {.bucket = BUCKET, .key = SLICE_LIT("k"), .id = id};
    struct wire_upload_resume_rep rep = {0};
    int r = object_upload_resume(f->session, &req, f->arena, &rep, &f->e);
    *ret = (struct up){.handle = rep.handle, .fd = r == 0 ? rep.fd : -1, .id = id};
    return r;
}

static int abort_upload(struct fixture *f, struct slice id)
{
    struct wire_upload_abort_req req = {.bucket = BUCKET, .key = SLICE_LIT("k"), .id = id};
    struct wire_upload_abort_rep rep = {0};
    return object_upload_abort(f->session, &req, f->arena, &rep, &f->e);
}

static void drop(struct fixture *f, const struct up *u)
{
    struct wire_put_abort_req req = {.handle = u->handle};
    struct wire_put_abort_rep rep = {0};
    if (u->handle)
        (void)object_put_abort(f->session, &req, f->arena, &rep, NULL);
}

/* The first open upload that is here; empty: none. */
static struct slice listed(struct fixture *f)
{
    struct wire_upload_list_req req = {.bucket = BUCKET, .flags = WIRE_STAGED};
    struct wire_upload_list_rep rep = {0};
    struct wire_upload u;
    assert_int_equal(object_upload_list(f->session, &req, f->arena, &rep, &f->e), 0);
    return wire_upload_decode(&rep.uploads, &u) == 0 ? u.id : SLICE_NULL;
}

static int parts(struct fixture *f, struct slice id, struct wire_upload_parts_rep *ret)
{
    struct wire_upload_parts_req req = {
        .bucket = BUCKET, .key = SLICE_LIT("k"), .id = id, .max = 1000, .flags = WIRE_STAGED};
    return object_upload_parts(f->session, &req, f->arena, ret, &f->e);
}

/* Which parts are recorded, one bit each; what is recorded is on the disk. */
static unsigned recorded(struct fixture *f, const struct up *u)
{
    struct wire_upload_parts_rep rep = {0};
    struct wire_part p;
    uint8_t byte;
    unsigned set = 0;
    assert_int_equal(parts(f, u->id, &rep), 0);
    assert_true(slice_eq_str(rep.tag, "tag") && slice_eq_str(rep.content_type, "a/b"));
    while (wire_part_decode(&rep.parts, &p) == 0) {
        assert_true(p.size_bytes == PART && p.slot_bytes == PART && slice_eq(p.etag, ETAG));
        for (uint64_t at = 0; at < PART; at += 4096) {
            assert_int_equal(pread(u->fd, &byte, 1, (off_t)(p.offset + at)), 1);
            assert_int_equal(byte, p.number);
        }
        set |= 1u << p.number;
    }
    return set;
}

/* Files with bytes below DISK/hard. */
static unsigned files(struct fixture *f)
{
    unsigned n = 0;
    for (unsigned i = 0; i < 256; i++) {
        char path[4096];
        (void)snprintf(path, sizeof(path), "%s/hard/%02x", f->disk, i);
        DIR *d = opendir(path);
        struct stat st;
        for (struct dirent *x; d && (x = readdir(d));)
            n += fstatat(dirfd(d), x->d_name, &st, 0) == 0 && S_ISREG(st.st_mode) && st.st_size > 0;
        if (d)
            (void)closedir(d);
    }
    return n;
}

/* Whatever is open is aborted, and leaves nothing. */
static void assert_leaves_nothing(struct fixture *f)
{
    for (struct slice id; (id = listed(f)).n > 0;)
        assert_int_equal(abort_upload(f, id), 0);
    (void)remove_key(f, "k", 0);
    restart(f);
    for (int i = 0; i < 12000 && files(f) > 0; i++) /* the freeing thread */
        sys->sleep_ns(10000000);
    assert_int_equal(files(f), 0);
}

/* ---- tests ---- */

/* A restart leaves an upload and its parts, whose handle one at a time has; with the commit it is completed,
 * and is no upload any more, but tells what it became. (Fails where the start does not look for uploads,
 * and where the commit leaves the record.) */
static void an_upload_outlives_the_node(void **state)
{
    struct fixture *f = *state;
    struct wire_upload_parts_rep rep = {0};
    struct up u, again;
    assert_int_equal(begin(f, &u), 0);
    assert_int_equal(put_part(f, &u, 1), 0);
    assert_int_equal(put_part(f, &u, 2), 0);
    assert_int_equal(resume(f, u.id, &again), -EBUSY);
    restart(f);
    assert_true(slice_eq(listed(f), u.id));
    assert_int_equal(resume(f, u.id, &u), 0);
    assert_int_equal(recorded(f, &u), 1u << 1 | 1u << 2);
    assert_int_equal(put_part(f, &u, 3), 0);
    assert_int_equal(keep_part(f, &u, 3, WIRE_CANCEL), 0);
    assert_int_equal(recorded(f, &u), 1u << 1 | 1u << 2);
    assert_int_equal(commit(f, &u, 2 * (uint64_t)PART), 0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(listed(f).n, 0);
        assert_int_equal(resume(f, u.id, &again), -ENOENT);
        assert_int_equal(abort_upload(f, u.id), -ENOENT);
        assert_int_equal(parts(f, u.id, &rep), 0);
        assert_true(slice_eq(rep.etag, RESULT) && rep.n_parts == 0);
        struct wire_attr attr = {0};
        assert_int_equal(stat_key(f, "k", &attr), 0);
        assert_true(attr.size_bytes == 2 * PART && slice_eq(attr.etag, RESULT));
        restart(f);
    }
    assert_int_equal(files(f), 1);
    assert_leaves_nothing(f);
}

/* What is told of a part is no more than a file can have: whoever finds the upload again counts with it, ten
 * thousand times as much where parts lie one behind the other. */
static void what_no_file_can_have_is_refused(void **state)
{
    struct fixture *f = *state;
    struct wire_upload_keep_part_rep rep = {0};
    struct up u;
    assert_int_equal(begin(f, &u), 0);
    const struct wire_upload_keep_part_req ok = {
        .handle = u.handle, .number = 1, .size = PART, .slot_bytes = PART, .etag = ETAG};
    struct wire_upload_keep_part_req bad[] = {ok, ok, ok, ok};
    bad[0].size = bad[1].offset = bad[2].slot_bytes = STORE_SIZE_MAX_BYTES + 1;
    bad[3].slot_bytes = UINT64_MAX / UPLOAD_NUMBER_MAX + 1;
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
        assert_int_equal(object_upload_keep_part(f->session, &bad[i], f->arena, &rep, &f->e), -EINVAL);
    assert_int_equal(recorded(f, &u), 0);
    drop(f, &u);
    assert_leaves_nothing(f);
}

/* The commit of another file completes the upload as well, whose own file goes. */
static void another_file_completes_it(void **state)
{
    struct fixture *f = *state;
    struct up u, second;
    assert_int_equal(begin(f, &u), 0);
    assert_int_equal(put_part(f, &u, 1), 0);
    assert_int_equal(open_put(f, &second), 0);
    assert_int_equal(keep(f, &second, SLICE_LIT("0")), -ENOENT);
    assert_int_equal(keep(f, &second, u.id), 0);
    assert_int_equal(write_part(&second, 1), 0);
    assert_int_equal(commit(f, &second, PART), 0);
    assert_int_equal(listed(f).n, 0);
    assert_int_equal(put_part(f, &u, 2), -ENOENT);
    drop(f, &u);
    restart(f);
    assert_int_equal(files(f), 1);
    assert_int_equal(stat_key(f, "k", NULL), 0);
    assert_leaves_nothing(f);
}

/* An abort takes record and file, whether somebody has the upload open or not; a handle that goes without one
 * leaves both. */
static void an_abort_takes_all(void **state)
{
    struct fixture *f = *state;
    struct up u;
    for (int is_open = 0; is_open < 2; is_open++) {
        assert_int_equal(begin(f, &u), 0);
        assert_int_equal(put_part(f, &u, 1), 0);
        if (!is_open)
            drop(f, &u);
        assert_true(slice_eq(listed(f), u.id));
        assert_int_equal(files(f), 1);
        assert_int_equal(abort_upload(f, u.id), 0);
        assert_int_equal(abort_upload(f, u.id), -ENOENT);
        if (is_open)
            assert_int_equal(keep_part(f, &u, 2, 0), -ENOENT);
        if (is_open)
            drop(f, &u);
        assert_int_equal(listed(f).n, 0);
        assert_leaves_nothing(f);
    }
}

struct seen {
    uint64_t bucket;
    struct id128 id;
};

static int note_upload(void *arg, uint64_t bucket, const struct upload_record *u)
{
    struct seen *ret = arg;
    *ret = (struct seen){.bucket = bucket, .id = u->id};
    return 1;
}

/* An abort that found the upload open, and takes it when the commit has made an object of its file. (Fails
 * where the record is removed whatever it says: the object has no bytes then.) */
static void an_abort_beside_the_commit(void **state)
{
    struct fixture *f = *state;
    struct upload_record found;
    struct seen seen = {0};
    struct up u;
    assert_int_equal(begin(f, &u), 0);
    assert_int_equal(put_part(f, &u, 1), 0);
    assert_int_equal(upload_each(f->kv, 0, NULL, note_upload, &seen, &f->e), 1);
    assert_int_equal(upload_find(f->kv, seen.bucket, seen.id, f->arena, &found, &f->e), 0);
    assert_true(!found.completed && found.location.n > 0);
    assert_int_equal(commit(f, &u, PART), 0);
    assert_int_equal(upload_here_abort(f->service, seen.bucket, &found, &f->e), -ENOENT);
    restart(f);
    assert_int_equal(stat_key(f, "k", NULL), 0);
    assert_int_equal(files(f), 1);
    assert_leaves_nothing(f);
}

/* A record whose file is gone, and one of a bucket that is gone, are dropped by a start; the file of the
 * second goes, too. (Fails where a record without its file is kept.) */
static void what_a_start_finds_halved(void **state)
{
    struct fixture *f = *state;
    struct wire_bucket_remove_req req = {.name = BUCKET};
    struct wire_bucket_remove_rep rep = {0};
    struct upload_record u;
    struct up lost, left;
    uint8_t location[UPLOAD_LOCATION] = {1};
    _cleanup_buf_ struct buf key = BUF_INIT(64);
    assert_int_equal(begin(f, &lost), 0);
    assert_int_equal(put_part(f, &lost, 1), 0);
    char path[64], name[4096] = {0};
    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", lost.fd);
    assert_true(readlink(path, name, sizeof(name) - 1) > 0);
    drop(f, &lost);
    assert_int_equal(unlink(name), 0);
    restart(f);
    assert_int_equal(listed(f).n, 0);
    assert_int_equal(begin(f, &left), 0);
    assert_int_equal(put_part(f, &left, 1), 0);
    drop(f, &left);
    assert_int_equal(files(f), 1);
    assert_int_equal(object_bucket_remove(f->session, &req, f->arena, &rep, &f->e), 0);
    assert_int_equal(files(f), 0);
    u = (struct upload_record){.key = SLICE_LIT("k"), .location = slice_of(location, sizeof(location))};
    assert_int_equal(upload_save(f->kv, 999, &u, NULL), 0);
    restart(f);
    upload_key(999, u.id, &key);
    assert_int_equal(kv_get(f->kv, buf_view(&key), NULL, NULL, NULL), -ENOENT);
    assert_int_equal(make_bucket(f, BUCKET, ""), 0);
    assert_int_equal(listed(f).n, 0);
    assert_leaves_nothing(f);
}

/* What the disk did not take once is not recorded, nor is anything after it, nor committed: whose bytes are
 * lost nobody knows. After a start what was recorded before is there. */
static void a_sync_that_failed_ends_it(void **state)
{
    struct fixture *f = *state;
    struct up u;
    assert_int_equal(begin(f, &u), 0);
    assert_int_equal(put_part(f, &u, 1), 0);
    fault_sys_arm(SYNCS, 1, EIO, FAULT_ONCE);
    assert_int_equal(put_part(f, &u, 2), -EIO);
    fault_sys_disarm();
    assert_int_equal(put_part(f, &u, 3), -EIO);
    assert_int_equal(commit(f, &u, PART), -EIO);
    restart(f);
    assert_int_equal(resume(f, u.id, &u), 0);
    assert_int_equal(recorded(f, &u), 1u << 1);
    assert_int_equal(put_part(f, &u, 2), 0);
    assert_int_equal(commit(f, &u, 2 * (uint64_t)PART), 0);
    assert_leaves_nothing(f);
}

/* What a sweep's turn was told. */
struct told {
    struct up u;
    unsigned acked; /* parts */
    bool kept, committed;
};

static void work(struct fixture *f, struct told *ret)
{
    *ret = (struct told){0};
    ret->kept = begin(f, &ret->u) == 0;
    for (uint32_t n = 1; ret->kept && n <= PARTS; n++)
        ret->acked |= put_part(f, &ret->u, n) == 0 ? 1u << n : 0;
    ret->committed = ret->kept && ret->acked == 14 && commit(f, &ret->u, PARTS * (uint64_t)PART) == 0;
}

/* Of what was told nothing is missing; what was not told may be there. */
static void verify(struct fixture *f, const struct told *t)
{
    struct slice id = listed(f);
    struct wire_attr attr = {0};
    if (t->committed)
        assert_int_equal(id.n, 0);
    if (t->committed || (t->kept && id.n == 0)) {
        assert_int_equal(stat_key(f, "k", &attr), 0);
        assert_true(attr.size_bytes == PARTS * PART && slice_eq(attr.etag, RESULT));
    }
    if (id.n > 0) {
        struct up u;
        assert_int_equal(resume(f, id, &u), 0);
        unsigned set = recorded(f, &u);
        assert_int_equal(set & t->acked, t->acked);
        drop(f, &u);
    }
    assert_leaves_nothing(f);
}

/* Whichever call of the file system fails once: what was acknowledged is there, and the rest leaves nothing.
 */
static void any_call_may_fail(void **state)
{
    struct fixture *f = *state;
    struct told t;
    bool hit = true;
    for (uint64_t n = 1; hit; n++) {
        fault_sys_arm(FAULT_ALL & ~(FAULT_OPEN | FAULT_OPENAT | FAULT_UNLINK | FAULT_STATFS_FREE), n, EIO,
                      FAULT_ONCE);
        work(f, &t);
        hit = fault_sys_hit();
        fault_sys_disarm();
        restart(f);
        verify(f, &t);
    }
    assert_true(t.committed);
}

/* The power goes at any change of the disk, and all that was not synced with it: every part that was
 * acknowledged has its bytes. (Fails where a part is recorded without a sync.) */
static void the_power_may_go(void **state)
{
    struct fixture *f = *state;
    struct told t;
    bool died = true;
    for (uint64_t n = 1; died; n++) {
        close_service(f);
        crash_sys_start(f->disk);
        open_service(f);
        uint64_t before = crash_sys_changes();
        crash_sys_kill_at(before + n);
        work(f, &t);
        died = crash_sys_dead();
        crash_sys_kill();
        object_session_free(f->session);
        object_service_close(f->service);
        store_abandon(f->store);
        crash_sys_crash(CRASH_DROP_ALL);
        crash_sys_stop();
        open_service(f);
        verify(f, &t);
    }
    assert_true(t.committed);
}

static int setup_faults(void **state)
{
    fault_sys_start();
    return setup_local(state);
}

static int teardown_faults(void **state)
{
    int r = teardown(state);
    fault_sys_stop();
    return r;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        BOTH(an_upload_outlives_the_node),
        BOTH(what_no_file_can_have_is_refused),
        BOTH(another_file_completes_it),
        BOTH(an_abort_takes_all),
        cmocka_unit_test_setup_teardown(an_abort_beside_the_commit, setup_local, teardown),
        cmocka_unit_test_setup_teardown(what_a_start_finds_halved, setup_local, teardown),
        cmocka_unit_test_setup_teardown(a_sync_that_failed_ends_it, setup_faults, teardown_faults),
        cmocka_unit_test_setup_teardown(any_call_may_fail, setup_faults, teardown_faults),
        cmocka_unit_test_setup_teardown(the_power_may_go, setup_local, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* layer: object */
/* threaded */
/*
 * Scratch buckets after power loss that takes the times of files: a file system writes those when it likes,
 * unless it was told to. Size, bytes and names stay here, as does the control store.
 */
#include "scratch_service.h"

#include "kv/kv_internal.h"

#include <ftw.h>

#define ROOT     1
#define FILES    256
#define OLD_NS   1000000000ll /* of a file whose time never was durable */
#define TOUCH_NS 1234567890000000000ll

/* What is on the disk of a file beside its bytes. */
struct durable {
    ino_t ino;
    struct timespec mtime;
    off_t size;
    blkcnt_t blocks;
};

static const struct sys *below;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct durable durable[FILES];
static size_t n_durable;
static atomic_bool is_off;
static const struct kv_engine *engine_below;

/* fdatasync writes times when it writes the inode for something else. */
static void note(const struct stat *st, bool with_times)
{
    size_t i = 0;
    (void)pthread_mutex_lock(&lock);
    while (i < n_durable && durable[i].ino != st->st_ino)
        i++;
    assert_true(i < FILES);
    struct durable *d = &durable[i];
    if (!is_off && (with_times || i == n_durable || d->size != st->st_size || d->blocks != st->st_blocks))
        *d = (struct durable){st->st_ino, st->st_mtim, st->st_size, st->st_blocks};
    n_durable += i == n_durable && !is_off;
    (void)pthread_mutex_unlock(&lock);
}

static void note_fd(int fd, bool with_times)
{
    struct stat st;
    if (below->fstat(fd, &st) == 0 && S_ISREG(st.st_mode))
        note(&st, with_times);
}

static int noted_fsync(int fd)
{
    note_fd(fd, /* with_times= */ true);
    return below->fsync(fd);
}

static int noted_fdatasync(int fd)
{
    note_fd(fd, /* with_times= */ false);
    return below->fdatasync(fd);
}

/* What ends with the process changes nothing any more. */
static int commit_until_off(struct kv *kv, const struct kv_txn *t, enum kv_commit kind, uint64_t *ret_version,
                            struct err *e)
{
    return is_off ? err_set(e, -EIO, "the power is off") : engine_below->commit(kv, t, kind, ret_version, e);
}

static int on_lost(const char *path, const struct stat *st, int type, struct FTW *where)
{
    struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = OLD_NS / 1000000000}};
    (void)where;
    if (type != FTW_F)
        return 0;
    for (size_t i = 0; i < n_durable; i++)
        if (durable[i].ino == st->st_ino)
            times[1] = durable[i].mtime;
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
    return 0;
}

static void lose_power(struct fixture *f)
{
    is_off = true;
    object_session_free(f->session);
    object_service_close(f->service);
    store_abandon(f->store);
    char *hard = tmpdir_path(f->disk, "hard");
    assert_int_equal(nftw(hard, on_lost, 16, FTW_PHYS), 0);
    free(hard);
    is_off = false;
    open_service(f);
}

static int setup(void **state)
{
    static struct sys table;
    static struct kv_engine engine;
    below = sys;
    table = *sys;
    table.fsync = noted_fsync;
    table.fdatasync = noted_fdatasync;
    sys = &table;
    n_durable = 0;
    (void)setup_local(state);
    struct fixture *f = *state;
    engine_below = f->kv->engine;
    engine = *engine_below;
    engine.commit = commit_until_off;
    f->kv->engine = &engine;
    return 0;
}

static int done(void **state)
{
    (void)teardown(state);
    sys = below;
    return 0;
}

static int set_mtime(struct fixture *f, uint64_t ino, int64_t mtime_ns)
{
    struct wire_tree_setattr_req req = {
        .bucket = BUCKET, .ino = ino, .what = WIRE_SET_MTIME, .mtime_ns = mtime_ns};
    struct wire_tree_setattr_rep rep = {0};
    return object_tree_setattr(f->session, &req, f->arena, &rep, &f->e);
}

/* A time that a job gave to an object is there when it was acknowledged. (Without sync_times in
 * scratch_attr.c the object has the time of its PUT back.) */
static void test_a_time_that_a_job_set(void **state)
{
    struct fixture *f = *state;
    struct wire_attr before = {0}, after = {0};
    struct wire_inode x = {0};
    uint64_t ino = write_file(f, ROOT, "by mount", "bytes");
    assert_int_equal(put(f, "k", "bytes", &before), 0);
    static const char *const keys[] = {"k", "by mount"};
    for (size_t i = 0; i < ARRAY_SIZE(keys); i++) {
        struct wire_set_meta_req req = {.bucket = BUCKET,
                                        .key = slice_str(keys[i]),
                                        .meta = SLICE_LIT("x-amz-meta-mtime: 1234567890\n"),
                                        .flags = WIRE_MODES};
        struct wire_set_meta_rep rep = {0};
        assert_int_equal(object_set_meta(f->session, &req, f->arena, &rep, &f->e), 0);
        assert_int_equal(rep.attr.mtime_ns, TOUCH_NS);
    }
    lose_power(f);
    assert_int_equal(stat_key(f, "k", &after), 0);
    assert_int_equal(after.mtime_ns, TOUCH_NS);
    assert_true(slice_eq(after.etag, before.etag));
    assert_int_equal(getattr(f, ino, &x), 0);
    assert_int_equal(x.mtime_ns, TOUCH_NS);
}

/* An object keeps its ETag when a mount has given it another time, which nobody has synced: its bytes are
 * those that were put. (Without the sync in set_file_time, scratch_attr.c, it has one that says nothing.) */
static void test_an_etag_of_which_the_time_was_set(void **state)
{
    struct fixture *f = *state;
    struct wire_attr before = {0}, after = {0};
    struct wire_inode x = {0};
    assert_int_equal(put(f, "k", "bytes", &before), 0);
    assert_int_equal(lookup(f, ROOT, "k", &x), 0);
    assert_int_equal(set_mtime(f, x.ino, TOUCH_NS), 0);
    lose_power(f);
    assert_int_equal(stat_key(f, "k", &after), 0);
    assert_true(slice_eq(after.etag, before.etag));
}

/* A file without bytes that was opened for writing, and not written to, has the time that was made durable
 * before; an object its ETag, too. (Without keep_time in scratch_start.c they have the time of a file that
 * came from the pool.) */
static void test_an_empty_file_that_is_open(void **state)
{
    struct fixture *f = *state;
    struct wire_attr before = {0}, after = {0};
    struct wire_inode x = {0};
    struct wire_tree_create_rep c = {0};
    struct wire_tree_open_rep o = {0};
    assert_int_equal(put(f, "k", "", &before), 0);
    assert_int_equal(lookup(f, ROOT, "k", &x), 0);
    assert_int_equal(open_ino(f, x.ino, WIRE_WRITE, &o), 0);
    assert_int_equal(create_file(f, ROOT, "touched", 0, &c), 0);
    assert_int_equal(set_mtime(f, c.inode.ino, TOUCH_NS), 0);
    assert_int_equal(sync_ino(f, c.inode.ino), 0);
    assert_int_equal(open_ino(f, c.inode.ino, WIRE_WRITE, &o), 0);
    lose_power(f);
    assert_int_equal(stat_key(f, "k", &after), 0);
    assert_int_equal(after.mtime_ns, before.mtime_ns);
    assert_true(slice_eq(after.etag, before.etag));
    assert_int_equal(getattr(f, c.inode.ino, &x), 0);
    assert_int_equal(x.mtime_ns, TOUCH_NS);
}

/* An upload whose part was sent twice, to the same place, has its ETag. (Without hard_sync_times in
 * extent_to_name, scratch_writer.c, it has one that says nothing.) */
static void test_an_upload_of_which_a_part_came_twice(void **state)
{
    struct fixture *f = *state;
    struct wire_put_open_req po = {.bucket = BUCKET,
                                   .key = SLICE_LIT("k"),
                                   .size = UINT64_MAX,
                                   .via = WIRE_VIA_S3,
                                   .flags = WIRE_STAGED};
    struct wire_put_open_rep por = {0};
    struct wire_upload_keep_rep kr = {0};
    struct wire_put_commit_rep pcr = {0};
    struct wire_attr after = {0};
    assert_int_equal(object_put_open(f->session, &po, f->arena, &por, &f->e), 0);
    struct wire_upload_keep_req k = {.handle = por.handle};
    assert_int_equal(object_upload_keep(f->session, &k, f->arena, &kr, &f->e), 0);
    for (int i = 0; i < 2; i++) {
        struct wire_upload_keep_part_req kp = {
            .handle = por.handle, .number = 1, .size = 5, .slot_bytes = 5, .etag = SLICE_LIT("x")};
        struct wire_upload_keep_part_rep kpr = {0};
        sys->sleep_ns(20000000); /* clocks of files move in steps */
        assert_int_equal(pwrite(por.fd, i == 0 ? "first" : "again", 5, 0), 5);
        assert_int_equal(object_upload_keep_part(f->session, &kp, f->arena, &kpr, &f->e), 0);
    }
    struct wire_put_commit_req pc = {.handle = por.handle, .size = 5, .etag = SLICE_LIT("abc-1")};
    assert_int_equal(object_put_commit(f->session, &pc, f->arena, &pcr, &f->e), 0);
    lose_power(f);
    assert_int_equal(stat_key(f, "k", &after), 0);
    assert_true(slice_eq_str(after.etag, "abc-1"));
    assert_int_equal(after.mtime_ns, pcr.attr.mtime_ns);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_time_that_a_job_set, setup, done),
        cmocka_unit_test_setup_teardown(test_an_etag_of_which_the_time_was_set, setup, done),
        cmocka_unit_test_setup_teardown(test_an_empty_file_that_is_open, setup, done),
        cmocka_unit_test_setup_teardown(test_an_upload_of_which_a_part_came_twice, setup, done),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

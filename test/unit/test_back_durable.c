/* layer: object */
/* threaded */
/*
 * What "acknowledged" means with write-back: the operation was one durable commit of the key's record, and
 * before that the bytes which it names were synced after the last of them was written. A store on files that
 * are never cut off tells nobody when that is left out, so that the calls are looked at.
 */
#include "test_back_common.h"

#include "object/back_internal.h"

#define SYNCED_MAX 256

/* What happened, in its order: each write to a file and each sync of one has a number. */
static _Atomic uint64_t now;

static struct {
    pthread_mutex_t lock;
    size_t n;
    struct {
        ino_t ino;
        uint64_t written, synced; /* the last of each; of a sync that gave 0 when it began */
        uint64_t synced_before;   /* the last durable commit of a record */
    } files[SYNCED_MAX];
} seen = {.lock = PTHREAD_MUTEX_INITIALIZER};

static struct {
    atomic_uint durable, visible;
} commits;

static void note_file(int fd, bool is_sync, uint64_t at)
{
    struct stat st;
    assert_int_equal(sys_real.fstat(fd, &st), 0);
    (void)pthread_mutex_lock(&seen.lock);
    size_t i = 0;
    while (i < seen.n && seen.files[i].ino != st.st_ino)
        i++;
    assert_true(i < SYNCED_MAX);
    seen.n = MAX(seen.n, i + 1);
    seen.files[i].ino = st.st_ino;
    uint64_t *last = is_sync ? &seen.files[i].synced : &seen.files[i].written;
    *last = MAX(*last, at); /* a sync on the way may end behind one that began later */
    (void)pthread_mutex_unlock(&seen.lock);
}

static ssize_t seen_pwrite(int fd, const void *p, size_t n, uint64_t offset)
{
    ssize_t r = sys_real.pwrite(fd, p, n, offset);
    note_file(fd, /* is_sync= */ false, atomic_fetch_add(&now, 1) + 1);
    return r;
}

static int seen_sync(int (*call)(int fd), int fd)
{
    uint64_t at = atomic_fetch_add(&now, 1) + 1;
    int r = call(fd);
    if (r == 0)
        note_file(fd, /* is_sync= */ true, at);
    return r;
}

static int seen_fsync(int fd)
{
    return seen_sync(sys_real.fsync, fd);
}

static int seen_fdatasync(int fd)
{
    return seen_sync(sys_real.fdatasync, fd);
}

static void note_durable(void)
{
    (void)pthread_mutex_lock(&seen.lock);
    for (size_t i = 0; i < seen.n; i++)
        seen.files[i].synced_before = seen.files[i].synced;
    (void)pthread_mutex_unlock(&seen.lock);
}

/* Commits that put or take away the record of a key. */
static void look_at_records(const struct kv_txn *t, enum kv_commit kind)
{
    struct kv_op op;
    size_t pos = 0;
    bool is_record = false;
    while (kv_txn_next(t, &pos, &op))
        is_record |= slice_starts(op.key, SLICE_LIT("d/"));
    if (is_record && kind == KV_DURABLE)
        note_durable();
    if (is_record)
        (void)atomic_fetch_add(kind == KV_DURABLE ? &commits.durable : &commits.visible, 1);
}

static const struct sys *sys_before;

/* Nothing is sent unless it is asked for. */
static struct fixture *begin(void)
{
    static struct sys table;
    table = *sys;
    table.pwrite = seen_pwrite;
    table.fsync = seen_fsync;
    table.fdatasync = seen_fdatasync;
    sys_before = sys;
    sys = &table;
    seen.n = 0;
    struct fixture *f = fixture_new();
    set_bucket(f, "write_delay=1h\n");
    atomic_store(&faulty.look, look_at_records);
    return f;
}

static void end(struct fixture *f)
{
    fixture_free(f);
    sys = sys_before;
}

/* What follows is looked at. */
static uint64_t mark(void)
{
    atomic_store(&commits.durable, 0);
    atomic_store(&commits.visible, 0);
    return atomic_fetch_add(&now, 1) + 1;
}

/* The file that the key's record names; 0: it has none. */
static ino_t file_of(struct fixture *f, const char *key, struct back_record *ret)
{
    _cleanup_buf_ struct buf value = BUF_INIT(BACK_RECORD_MAX_BYTES);
    struct bucket *bucket = NULL;
    struct hard *h = NULL;
    struct stat st;
    assert_int_equal(bucket_find(f->service->buckets, SLICE_LIT("data"), &bucket, NULL), 0);
    assert_int_equal(back_load(f->service->back, bucket->id, slice_str(key), &value, ret, NULL), 0);
    bucket_unref(bucket);
    if (ret->location.n == 0)
        return 0;
    assert_int_equal(hard_find(f->store, ret->location, &h, NULL), 0);
    assert_int_equal(hard_stat(h, &st), 0);
    hard_unref(h);
    return st.st_ino;
}

/* After the last byte of it and after `since`; before_commit: and before the last durable commit. */
static void check_synced(ino_t ino, uint64_t since, bool before_commit)
{
    (void)pthread_mutex_lock(&seen.lock);
    size_t i = 0;
    while (i < seen.n && seen.files[i].ino != ino)
        i++;
    uint64_t written = i < seen.n ? seen.files[i].written : 0, synced = 0;
    if (i < seen.n)
        synced = before_commit ? seen.files[i].synced_before : seen.files[i].synced;
    (void)pthread_mutex_unlock(&seen.lock);
    assert_true(synced > since && synced > written);
}

static void check_one_durable(void)
{
    assert_int_equal(atomic_load(&commits.durable), 1);
}

/* The last operation on the key, which began at `since`, is durable, with its bytes. */
static void check_put(struct fixture *f, const char *key, uint64_t since)
{
    struct back_record r;
    check_one_durable();
    ino_t ino = file_of(f, key, &r);
    assert_true(ino != 0);
    check_synced(ino, since, /* before_commit= */ true);
}

/* What the node was sent, over nothing and over another write that is not in the
 * origin; an empty object has its record alone. (Fails with KV_VISIBLE in replace, back_layer.c, and without
 * hard_sync in finish_hard, writer.c.) */
static void test_a_put_is_durable(void **state)
{
    (void)state;
    struct fixture *f = begin();
    struct back_record r;
    for (char c = 'a'; c < 'c'; c++) {
        uint64_t since = mark();
        assert_int_equal(put_by(f->session, f->arena, "k", c), 0);
        check_put(f, "k", since);
    }
    struct wire_put_open_req open = {
        .bucket = SLICE_LIT("data"), .key = SLICE_LIT("empty"), .via = WIRE_VIA_API};
    struct wire_put_open_rep o;
    (void)mark();
    assert_int_equal(object_put_open(f->session, &open, f->arena, &o, NULL), 0);
    assert_int_equal(commit_file(f, o.handle, 0, 0), 0);
    check_one_durable();
    assert_int_equal(file_of(f, "empty", &r), 0);
    end(f);
}

/* What is copied to be acknowledged: a small file of a mount, what is committed while more is to come, a
 * large file that was synced, changed and synced again. (Fails without hard_sync in keep_bytes,
 * back_layer.c.) */
static void test_a_copy_is_durable(void **state)
{
    (void)state;
    struct fixture *f = begin();
    struct wire_put_open_rep o;
    assert_int_equal(stage(f, "small", &o), 0);
    assert_int_equal(pwrite(o.fd, "hello", 5, 0), 5);
    uint64_t since = mark();
    assert_int_equal(commit_file(f, o.handle, 5, WIRE_UNMAPPED), 0);
    check_put(f, "small", since);
    struct wire_put_open_req open = {
        .bucket = SLICE_LIT("data"), .key = SLICE_LIT("kept"), .size = UINT64_MAX, .via = WIRE_VIA_API};
    assert_int_equal(object_put_open(f->session, &open, f->arena, &o, NULL), 0);
    struct wire_put_write_req w = {.handle = o.handle, .data = SLICE_LIT("hello")};
    struct wire_put_write_rep wrep;
    assert_int_equal(object_put_write(f->session, &w, f->arena, &wrep, NULL), 0);
    since = mark();
    assert_int_equal(commit_file(f, o.handle, 5, WIRE_KEEP), 0);
    check_put(f, "kept", since);
    abort_file(f, o.handle);
    assert_int_equal(stage(f, "large", &o), 0);
    fill_file(o.fd, 'a');
    assert_int_equal(commit_file(f, o.handle, FILE_SIZE, WIRE_KEEP | WIRE_UNMAPPED), 0);
    fill_file(o.fd, 'b');
    since = mark();
    assert_int_equal(commit_file(f, o.handle, FILE_SIZE, WIRE_KEEP | WIRE_UNMAPPED), 0);
    check_put(f, "large", since);
    abort_file(f, o.handle);
    end(f);
}

/* A large file of a mount, which gets another name instead of a copy. (Fails without sync_staged in
 * hard_link.c.) */
static void test_a_file_is_durable(void **state)
{
    (void)state;
    struct fixture *f = begin();
    struct wire_put_open_rep o;
    assert_int_equal(stage(f, "k", &o), 0);
    fill_file(o.fd, 'a');
    uint64_t since = mark();
    assert_int_equal(commit_file(f, o.handle, FILE_SIZE, WIRE_KEEP | WIRE_UNMAPPED), 0);
    check_put(f, "k", since);
    abort_file(f, o.handle);
    end(f);
}

/* A removal: of what the origin has, of what has a record over that, and of what was only here. (Fails with
 * KV_VISIBLE in replace, back_layer.c, or in back_drop, back.c.) */
static void test_a_removal_is_durable(void **state)
{
    (void)state;
    struct fixture *f = begin();
    struct back_record r;
    origin_write(f, "there", 'o');
    origin_write(f, "over", 'o');
    assert_int_equal(put_by(f->session, f->arena, "over", 'n'), 0);
    assert_int_equal(put_by(f->session, f->arena, "here", 'n'), 0);
    static const char *const keys[] = {"there", "over", "here"};
    for (size_t i = 0; i < ARRAY_SIZE(keys); i++) {
        (void)mark();
        assert_int_equal(remove_key(f, keys[i]), 0);
        check_one_durable();
    }
    assert_int_equal(file_of(f, "there", &r), 0);
    assert_true(r.removal);
    assert_int_equal(file_of(f, "over", &r), 0);
    assert_true(r.removal);
    end(f);
}

static void check_copied(struct fixture *f, const char *from, const char *to, uint32_t flags, unsigned most)
{
    struct wire_copy_req req = {
        .bucket = SLICE_LIT("data"), .from = slice_str(from), .to = slice_str(to), .flags = flags};
    struct wire_copy_rep rep;
    struct back_record r;
    (void)mark();
    assert_int_equal(object_copy(f->session, &req, f->arena, &rep, NULL), 0);
    assert_int_equal(atomic_load(&commits.durable), most);
    assert_int_equal(atomic_load(&commits.visible), 0);
    assert_true(file_of(f, to, &r) != 0);
}

/* A copy of what is not in the origin is one commit, a renaming two: the new name, and then the old one. Both
 * name bytes that were synced for the first. So is a change of its metadata one. (Fails with KV_VISIBLE in
 * replace, back_layer.c, or in back_drop, back.c.) */
static void test_a_copy_and_a_renaming_are_durable(void **state)
{
    (void)state;
    struct fixture *f = begin();
    assert_int_equal(put_by(f->session, f->arena, "k", 'a'), 0);
    check_copied(f, "k", "copy", 0, 1);
    check_copied(f, "k", "moved", WIRE_MOVE, 2);
    assert_int_equal(put_file(f, "file", 'a'), 0);
    check_copied(f, "file", "moved file", WIRE_MOVE, 2);
    struct wire_set_meta_req req = {.bucket = SLICE_LIT("data"),
                                    .key = SLICE_LIT("moved"),
                                    .meta = SLICE_LIT("x-amz-meta-mode: 33152\n")};
    struct wire_set_meta_rep rep;
    (void)mark();
    assert_int_equal(object_set_meta(f->session, &req, f->arena, &rep, NULL), 0);
    check_one_durable();
    end(f);
}

/* What was written to a file after its acknowledgement, by a writer that went without another, becomes the
 * version that is read and sent: synced before the record says so, or a power failure would take bytes that
 * readers have seen. (Fails without hard_sync in settle_closed, back_live.c.) */
static void test_what_a_writer_left_is_synced(void **state)
{
    (void)state;
    struct fixture *f = begin();
    struct wire_put_open_rep o;
    struct back_record r;
    assert_int_equal(stage(f, "k", &o), 0);
    fill_file(o.fd, 'a');
    assert_int_equal(commit_file(f, o.handle, FILE_SIZE, WIRE_KEEP | WIRE_UNMAPPED), 0);
    ino_t ino = file_of(f, "k", &r);
    assert_true(r.is_live);
    fill_file(o.fd, 'b');
    abort_file(f, o.handle);
    uint64_t since = mark();
    assert_int_equal(look(f, "k"), 'b');
    assert_true(file_of(f, "k", &r) == ino && !r.is_live);
    check_synced(ino, since, /* before_commit= */ false);
    end(f);
}

/* One byte. */
static ssize_t read_b(void *arg, void *p, size_t n, uint64_t offset)
{
    (void)arg, (void)n;
    assert_int_equal(offset, 0);
    *(char *)p = 'b';
    return 1;
}

/* What was written and removed is there after a kill that came between the record and the end of what was
 * cached of the key, also where nobody asks about that: here, while it is on its way, and when the origin has
 * it. (Fails without object_forget_entry in load_one, back.c.) */
static void test_what_was_cached_before_a_record(void **state)
{
    (void)state;
    struct fixture *f = fixture_new();
    struct upstream *u = NULL;
    const struct origin_put put_k = {.key = SLICE_LIT("k")};
    const struct origin_body body = {.size_bytes = 1, .read = read_b};
    struct origin_attr answer;
    set_bucket(f, "validate=never\nwrite_delay=1h\n");
    origin_write(f, "k", 'a');
    origin_write(f, "gone", 'g');
    assert_true(look(f, "k") == 'a' && look(f, "gone") == 'g');
    assert_int_equal(store_flush(f->store, NULL), 0);
    /* The records alone: nothing is forgotten. */
    assert_int_equal(object_upstream(f->service, SLICE_LIT("data"), &u, NULL), 0);
    assert_int_equal(upstream_put(u, &put_k, &body, f->arena, &answer, NULL), 0);
    assert_int_equal(upstream_remove(u, SLICE_LIT("gone"), SLICE_NULL, NULL), 0);
    upstream_unref(u);
    node_close(f, store_abandon);
    node_open(f);
    assert_true(look(f, "k") == 'b' && look(f, "gone") == 0);
    flush(f);
    assert_true(look(f, "k") == 'b' && look(f, "gone") == 0);
    assert_true(origin_look(f, "k") == 'b' && origin_look(f, "gone") == 0);
    fixture_free(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_put_is_durable),
        cmocka_unit_test(test_a_copy_is_durable),
        cmocka_unit_test(test_a_file_is_durable),
        cmocka_unit_test(test_a_removal_is_durable),
        cmocka_unit_test(test_a_copy_and_a_renaming_are_durable),
        cmocka_unit_test(test_what_a_writer_left_is_synced),
        cmocka_unit_test(test_what_was_cached_before_a_record),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

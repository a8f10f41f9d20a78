/* layer: object */
/* threaded */
/* Scratch buckets under many threads, with settling and freeing going on: nobody ever sees half an object,
 * and once all is removed nothing is left, in the control store or on the disk. */
#include "scratch_service.h"

#define ROOT       1
#define THREADS    6
#define STEPS      150
#define NAMES      4
#define OBJECT_MAX 4000

struct hand {
    struct fixture *f;
    struct object_session *session;
    struct arena *arena;
    uint64_t random;
    pthread_t thread;
    const char *failed;
};

static uint64_t below(struct hand *h, uint64_t n)
{
    h->random ^= h->random << 13;
    h->random ^= h->random >> 7;
    h->random ^= h->random << 17;
    return h->random % n;
}

static void must(struct hand *h, int r, const char *what)
{
    if (r != 0 && r != -ENOENT)
        h->failed = what;
}

/* Objects are runs of one letter. */
static void put_object(struct hand *h, struct slice key)
{
    char data[OBJECT_MAX];
    size_t n = below(h, OBJECT_MAX);
    memset(data, 'a' + (int)below(h, 26), sizeof(data));
    struct wire_put_open_req po = {.bucket = BUCKET, .key = key, .size = n};
    struct wire_put_open_rep por;
    struct wire_put_write_rep pwr;
    struct wire_put_commit_rep pcr;
    must(h, object_put_open(h->session, &po, h->arena, &por, NULL), "put open");
    struct wire_put_write_req pw = {.handle = por.handle, .data = slice_of(data, n)};
    must(h, object_put_write(h->session, &pw, h->arena, &pwr, NULL), "put write");
    struct wire_put_commit_req pc = {.handle = por.handle, .size = n};
    must(h, object_put_commit(h->session, &pc, h->arena, &pcr, NULL), "put commit");
}

static void get_object(struct hand *h, struct slice key)
{
    struct wire_open_req req = {.bucket = BUCKET, .key = key};
    struct wire_open_rep o;
    struct wire_fetch_rep fr = {.fd = -1};
    int r = object_open(h->session, &req, h->arena, &o, NULL);
    must(h, r, "open");
    if (r < 0)
        return;
    struct wire_fetch_req fq = {.handle = o.handle, .n = OBJECT_MAX, .flags = WIRE_INLINE};
    if (object_fetch(h->session, &fq, h->arena, &fr, NULL) != 0 || fr.data.n != o.attr.size_bytes)
        h->failed = "fetch";
    for (size_t i = 1; i < fr.data.n; i++)
        if (fr.data.p[i] != fr.data.p[0])
            h->failed = "an object of two letters";
    struct wire_close_req c = {.handle = o.handle};
    struct wire_close_rep cr;
    must(h, object_close(h->session, &c, h->arena, &cr, NULL), "close");
}

static void remove_object(struct hand *h, struct slice key)
{
    struct wire_remove_req req = {.bucket = BUCKET, .key = key};
    struct wire_remove_rep rep;
    must(h, object_remove(h->session, &req, h->arena, &rep, NULL), "remove");
}

static void write_some(struct hand *h, struct slice name)
{
    struct wire_tree_create_req req = {.bucket = BUCKET,
                                       .parent = ROOT,
                                       .name = name,
                                       .mode = S_IFREG | 0644,
                                       .flags = WIRE_WRITE | (below(h, 2) ? WIRE_TRUNCATE : 0)};
    struct wire_tree_create_rep c;
    int r = object_tree_create(h->session, &req, h->arena, &c, NULL);
    must(h, r, "create");
    if (r < 0)
        return;
    if (c.fd < 0 || (below(h, 3) > 0 && pwrite(c.fd, "bytes", 5, (off_t)below(h, 100)) != 5))
        h->failed = "pwrite";
    struct wire_tree_sync_req sq = {.bucket = BUCKET, .ino = c.inode.ino};
    struct wire_tree_sync_rep sr;
    if (below(h, 4) == 0)
        must(h, object_tree_sync(h->session, &sq, h->arena, &sr, NULL), "sync");
    struct wire_close_req cq = {.handle = c.handle};
    struct wire_close_rep cr;
    must(h, object_close(h->session, &cq, h->arena, &cr, NULL), "close");
}

static void change_some(struct hand *h, struct slice name, struct slice other)
{
    struct wire_tree_lookup_req lq = {.bucket = BUCKET, .parent = ROOT, .name = name};
    struct wire_tree_lookup_rep lr;
    if (object_tree_lookup(h->session, &lq, h->arena, &lr, NULL) < 0)
        return;
    struct wire_tree_setattr_req sq = {.bucket = BUCKET,
                                       .ino = lr.inode.ino,
                                       .what = below(h, 2) ? WIRE_SET_SIZE : WIRE_SET_MTIME,
                                       .size = below(h, 50),
                                       .mtime_ns = 1000000000};
    struct wire_tree_setattr_rep sr;
    must(h, object_tree_setattr(h->session, &sq, h->arena, &sr, NULL), "setattr");
    struct wire_tree_rename_req rq = {
        .bucket = BUCKET, .parent = ROOT, .name = name, .to_parent = ROOT, .to_name = other};
    struct wire_tree_rename_rep rr;
    struct wire_tree_unlink_req uq = {.bucket = BUCKET, .parent = ROOT, .name = name};
    struct wire_tree_unlink_rep ur;
    if (below(h, 2))
        must(h, object_tree_rename(h->session, &rq, h->arena, &rr, NULL), "rename");
    else if (below(h, 2))
        must(h, object_tree_unlink(h->session, &uq, h->arena, &ur, NULL), "unlink");
}

static void *work(void *arg)
{
    struct hand *h = arg;
    for (int i = 0; i < STEPS && !h->failed; i++) {
        arena_clear(h->arena);
        struct slice key = slice_str(arena_printf(h->arena, "o%d", (int)below(h, NAMES)));
        struct slice name = slice_str(arena_printf(h->arena, "t%d", (int)below(h, NAMES)));
        struct slice other = slice_str(arena_printf(h->arena, "t%d", (int)below(h, NAMES)));
        switch (below(h, 8)) {
        case 0:
        case 1:
            put_object(h, key);
            break;
        case 2:
        case 3:
            get_object(h, key);
            break;
        case 4:
            remove_object(h, key);
            break;
        case 5:
        case 6:
            write_some(h, name);
            break;
        case 7:
            change_some(h, name, other);
            break;
        }
    }
    return NULL;
}

static void test_many_threads(void **state)
{
    struct fixture *f = *state;
    struct hand hands[THREADS];
    for (size_t i = 0; i < THREADS; i++) {
        hands[i] = (struct hand){.f = f,
                                 .session = object_session_new(f->service, WIRE_VIA_API),
                                 .arena = arena_new(MIB),
                                 .random = 88172645463325252u + i};
        assert_int_equal(pthread_create(&hands[i].thread, NULL, work, &hands[i]), 0);
    }
    const char *failed = NULL;
    for (size_t i = 0; i < THREADS; i++) {
        pthread_join(hands[i].thread, NULL);
        failed = hands[i].failed ? hands[i].failed : failed;
        object_session_free(hands[i].session);
        arena_free(hands[i].arena);
    }
    if (failed)
        fail_msg("%s", failed);
    for (int i = 0; i < NAMES; i++) {
        assert_int_equal(remove_key(f, arena_printf(f->arena, "o%d", i), 0), 0);
        assert_int_equal(remove_key(f, arena_printf(f->arena, "t%d", i), 0), 0);
    }
    struct wire_bucket_remove_req req = {.name = BUCKET};
    struct wire_bucket_remove_rep rep;
    assert_int_equal(object_bucket_remove(f->session, &req, f->arena, &rep, &f->e), 0);
    restart(f); /* the pool goes */
    struct store_disk_status d;
    assert_int_equal(store_disk_status(f->store, 0, &d), 0);
    assert_int_equal(d.hard_extents, 0);
}

#define OVERWRITES 1500

static _Atomic bool overwritten;

static void *overwrite(void *arg)
{
    struct hand *h = arg;
    for (int i = 0; i < OVERWRITES; i++) {
        arena_clear(h->arena);
        put_object(h, SLICE_LIT("k"));
    }
    atomic_store(&overwritten, true);
    return NULL;
}

/* What is replaced is freed at once, because somebody waits for that. */
static void *hurry_freeing(void *arg)
{
    struct hand *h = arg;
    struct wire_bucket_remove_req req = {.name = BUCKET};
    struct wire_bucket_remove_rep rep;
    while (!atomic_load(&overwritten)) {
        arena_clear(h->arena);
        if (object_bucket_remove(h->session, &req, h->arena, &rep, NULL) != -ENOTEMPTY)
            h->failed = "remove";
    }
    return NULL;
}

static void *read_always(void *arg)
{
    struct hand *h = arg;
    while (!atomic_load(&overwritten)) {
        struct wire_open_req req = {.bucket = BUCKET, .key = SLICE_LIT("k")};
        struct wire_open_rep o;
        struct wire_close_rep c;
        arena_clear(h->arena);
        if (object_open(h->session, &req, h->arena, &o, NULL) < 0) {
            h->failed = "an object that is always there was not found";
            continue;
        }
        struct wire_close_req close = {.handle = o.handle};
        must(h, object_close(h->session, &close, h->arena, &c, NULL), "close");
    }
    return NULL;
}

/* Who reads a key that is replaced again and again finds an object each time. Fails when op_scratch_open
 * looks it up only once. */
static void test_a_replaced_object_is_always_found(void **state)
{
    struct fixture *f = *state;
    void *(*const fn[])(void *) = {overwrite, hurry_freeing, read_always, read_always, read_always};
    struct hand hands[ARRAY_SIZE(fn)];
    atomic_store(&overwritten, false);
    assert_int_equal(put(f, "k", "first", NULL), 0);
    for (size_t i = 0; i < ARRAY_SIZE(fn); i++) {
        hands[i] = (struct hand){.session = object_session_new(f->service, WIRE_VIA_API),
                                 .arena = arena_new(MIB),
                                 .random = 88172645463325252u + i};
        assert_int_equal(pthread_create(&hands[i].thread, NULL, fn[i], &hands[i]), 0);
    }
    const char *failed = NULL;
    for (size_t i = 0; i < ARRAY_SIZE(fn); i++) {
        pthread_join(hands[i].thread, NULL);
        failed = hands[i].failed ? hands[i].failed : failed;
        object_session_free(hands[i].session);
        arena_free(hands[i].arena);
    }
    if (failed)
        fail_msg("%s", failed);
}

/* A user who signed in does not work on the tree, whatever the role; objects are a matter of rights. */
static void test_users_do_not_mount(void **state)
{
    struct fixture *f = *state;
    struct wire_user_create_req u = {
        .name = SLICE_LIT("boss"), .role = SLICE_LIT("admin"), .buckets = SLICE_NULL};
    struct wire_user_create_rep ur;
    assert_int_equal(object_user_create(f->session, &u, f->arena, &ur, &f->e), 0);
    struct object_session *own = f->session, *s = object_session_new(f->service, WIRE_VIA_API);
    assert_int_equal(object_session_sign_in(s, ur.access_key, &f->e), 0);
    f->session = s;
    struct wire_inode x;
    assert_int_equal(getattr(f, ROOT, &x), -EACCES);
    assert_int_equal(put(f, "k", "x", NULL), 0);
    assert_string_equal(get(f, "k"), "x");
    f->session = own;
    object_session_free(s);
}

/* Several connections of one session write one value, and open more of them than there is memory for. */
struct value_hand {
    struct fixture *f;
    uint64_t handle;
    char letter;
    pthread_t thread;
    int result;
};

static void *write_value(void *arg)
{
    struct value_hand *h = arg;
    char bytes[10 * KIB];
    memset(bytes, h->letter, sizeof(bytes));
    struct wire_put_write_req req = {.handle = h->handle, .data = slice_of(bytes, sizeof(bytes))};
    struct wire_put_write_rep rep;
    struct arena *a = arena_new(MIB);
    h->result = object_put_write(h->f->session, &req, a, &rep, NULL);
    arena_free(a);
    return NULL;
}

static uint64_t open_value(struct fixture *f, int *ret)
{
    struct wire_put_open_req req = {.bucket = SLICE_LIT("values"), .key = SLICE_LIT("k"), .size = 10 * KIB};
    struct wire_put_open_rep rep = {0};
    *ret = object_put_open(f->session, &req, f->arena, &rep, &f->e);
    return rep.handle;
}

/* Of two writes of the same place one succeeds, and its bytes are the value. */
static void test_one_value_is_written_by_one_at_a_time(void **state)
{
    struct fixture *f = *state;
    int r;
    assert_int_equal(make_bucket(f, SLICE_LIT("values"), "values=memory\n"), 0);
    for (int i = 0; i < 100; i++) {
        struct value_hand hands[2] = {{.f = f, .letter = 'a'}, {.f = f, .letter = 'b'}};
        hands[0].handle = hands[1].handle = open_value(f, &r);
        assert_int_equal(r, 0);
        for (size_t k = 0; k < 2; k++)
            assert_int_equal(pthread_create(&hands[k].thread, NULL, write_value, &hands[k]), 0);
        for (size_t k = 0; k < 2; k++)
            pthread_join(hands[k].thread, NULL);
        assert_int_equal(MIN(hands[0].result, hands[1].result), -EINVAL);
        assert_int_equal(MAX(hands[0].result, hands[1].result), 0);
        struct wire_put_commit_req cq = {.handle = hands[0].handle, .size = 10 * KIB};
        struct wire_put_commit_rep cr;
        assert_int_equal(object_put_commit(f->session, &cq, f->arena, &cr, &f->e), 0);
        struct wire_open_req oq = {
            .bucket = SLICE_LIT("values"), .key = SLICE_LIT("k"), .expect = UINT64_MAX, .flags = WIRE_INLINE};
        struct wire_open_rep or ;
        assert_int_equal(object_open(f->session, &oq, f->arena, & or, &f->e), 0);
        assert_int_equal(or.data.n, 10 * KIB);
        assert_int_equal(or.data.p[0], hands[0].result == 0 ? 'a' : 'b');
        assert_int_equal(or.data.p[10 * KIB - 1], or.data.p[0]);
    }
}

/* Handles of values are memory: there are no more of them than it allows, and a closed one makes room. */
static void test_open_values_are_bounded(void **state)
{
    struct fixture *f = *state;
    uint64_t first;
    int r, n = 0;
    assert_int_equal(make_bucket(f, SLICE_LIT("values"), "values=memory\n"), 0);
    first = open_value(f, &r);
    while (r == 0 && n++ < 1000)
        (void)open_value(f, &r);
    assert_int_equal(r, -EBUSY);
    struct wire_put_abort_req req = {.handle = first};
    struct wire_put_abort_rep rep;
    assert_int_equal(object_put_abort(f->session, &req, f->arena, &rep, &f->e), 0);
    (void)open_value(f, &r);
    assert_int_equal(r, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        BOTH(test_many_threads),
        cmocka_unit_test_setup_teardown(test_a_replaced_object_is_always_found, setup_local, teardown),
        BOTH(test_users_do_not_mount),
        BOTH(test_one_value_is_written_by_one_at_a_time),
        BOTH(test_open_values_are_bounded),
    };
    return cmocka_run_group_tests_name("object_scratch_threads", tests, NULL, NULL);
}

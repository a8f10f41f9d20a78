/* layer: object */
/* threaded */
/* What ends an open object: by a call of its own or with others, what its reader says then, and how many may
 * be open. */
#include "base/metrics.h"
#include "base/sys.h"
#include "node_fixture.h"
#include "object/object_internal.h"

static int setup(void **state, enum object_route route)
{
    struct fixture *f = calloc(1, sizeof(*f));
    assert_non_null(f);
    f->route = route;
    node_around(f);
    node_open(f);
    *state = f;
    return 0;
}

static int setup_local(void **state)
{
    return setup(state, OBJECT_ROUTE_LOCAL);
}

static int setup_loop(void **state)
{
    return setup(state, OBJECT_ROUTE_LOOP);
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    node_close(f, store_close);
    node_gone(f);
    free(f);
    return 0;
}

/* "k", of 100 bytes. */
static void write_object(struct fixture *f)
{
    char bytes[100] = {1};
    assert_int_equal(
        sys_write_file_atomic(arena_printf(f->arena, "%s/k", f->origin), bytes, sizeof(bytes), 0644), 0);
}

static int fetch(struct fixture *f, uint64_t handle)
{
    struct wire_fetch_req req = {.handle = handle, .n = 10};
    struct wire_fetch_rep rep;
    return object_fetch(f->session, &req, f->arena, &rep, NULL);
}

/* Bytes that were charged to the bucket's limit. */
static uint64_t charged(struct fixture *f)
{
    json_t *all = gate_json(f->service->gate), *x;
    uint64_t n = 0;
    size_t i;
    json_array_foreach(json_object_get(all, "limits"), i,
                       x) if (strcmp(json_string_value(json_object_get(x, "name")), "data") == 0) n +=
        (uint64_t)json_integer_value(json_object_get(x, "bytes"));
    json_decref(all);
    return n;
}

/* Several are closed by one call, each as by a CLOSE of its own: what was read is counted and paid for. What
 * is not open is passed over; what has another form is refused. */
static void test_several_are_closed_at_once(void **state)
{
    struct fixture *f = *state;
    node_bucket(f, "limit.bytes=1TiB\n");
    write_object(f);
    struct metric_series *read = metrics_series(METRIC_READ_BYTES, "data", "api", "cache");
    uint64_t before = metrics_value(read);
    _cleanup_buf_ struct buf closed = BUF_INIT(KIB);
    const struct wire_open_req open_req = {
        .bucket = SLICE_LIT("data"), .key = SLICE_LIT("k"), .via = WIRE_VIA_API};
    struct wire_open_rep o[3];
    struct wire_close_many_rep rep;
    struct err e = {0};
    for (size_t i = 0; i < ARRAY_SIZE(o); i++) {
        const struct wire_closed none = {.handle = UINT64_MAX - i, .read_cached = 1};
        assert_int_equal(object_call_shaped(f->session, WIRE_OP_OPEN, &open_req, f->arena, &o[i], &e), 0);
        const struct wire_closed x = {.handle = o[i].handle, .read_cached = 1000 + i};
        assert_int_equal(wire_closed_encode(&none, &closed), 0);
        assert_int_equal(wire_closed_encode(&x, &closed), 0);
    }
    struct wire_close_many_req req = {.closed = buf_view(&closed)};
    for (int twice = 0; twice < 2; twice++) { /* as when the answer was lost */
        assert_int_equal(object_call_shaped(f->session, WIRE_OP_CLOSE_MANY, &req, f->arena, &rep, &e), 0);
        assert_int_equal(metrics_value(read) - before, 3003);
        assert_int_equal(charged(f), 3003);
    }
    for (size_t i = 0; i < ARRAY_SIZE(o); i++)
        assert_int_equal(fetch(f, o[i].handle), -EBADF);
    req.closed.n--;
    assert_int_equal(object_call_shaped(f->session, WIRE_OP_CLOSE_MANY, &req, f->arena, &rep, &e), -EINVAL);
}

/* The access key of a user who may read. */
static struct slice new_reader(struct fixture *f)
{
    struct wire_user_create_req u = {
        .name = SLICE_LIT("ann"), .role = SLICE_LIT("reader"), .buckets = SLICE_LIT("*")};
    struct wire_user_create_rep made;
    assert_int_equal(object_user_create(f->session, &u, f->arena, &made, NULL), 0);
    return made.access_key;
}

static struct object_session *session_of(struct fixture *f, struct slice access_key)
{
    struct object_session *s = object_session_new(f->service, WIRE_VIA_API);
    assert_int_equal(object_session_sign_in(s, access_key, NULL), 0);
    return s;
}

/* CLOSE of an object that the session has opened, with what it says it has read from its descriptor. */
static void close_with_claim(struct fixture *f, struct object_session *s, uint64_t cached, uint64_t origin)
{
    const struct wire_open_req open_req = {
        .bucket = SLICE_LIT("data"), .key = SLICE_LIT("k"), .via = WIRE_VIA_API};
    struct wire_open_rep o;
    struct wire_close_rep rep;
    struct err e = {0};
    assert_int_equal(object_call_shaped(s, WIRE_OP_OPEN, &open_req, f->arena, &o, &e), 0);
    const struct wire_close_req req = {.handle = o.handle, .read_cached = cached, .read_origin = origin};
    assert_int_equal(object_call_shaped(s, WIRE_OP_CLOSE, &req, f->arena, &rep, &e), 0);
}

/* Users get no descriptors: what one of them says it has read from one is neither counted nor paid for by all
 * who share the bucket's limit. Others are believed up to a bound, and no counter turns over. */
static void test_what_a_client_says_it_read_is_believed_within_bounds(void **state)
{
    struct fixture *f = *state;
    node_bucket(f, "limit.bytes=64TiB\n");
    write_object(f);
    struct metric_series *read[] = {metrics_series(METRIC_READ_BYTES, "data", "api", "cache"),
                                    metrics_series(METRIC_READ_BYTES, "data", "api", "origin")};
    uint64_t before[] = {metrics_value(read[0]), metrics_value(read[1])};
    struct object_session *ann = session_of(f, new_reader(f));
    close_with_claim(f, ann, 1000, UINT64_MAX);
    object_session_free(ann);
    assert_int_equal(metrics_value(read[0]) - before[0], 0);
    assert_int_equal(metrics_value(read[1]) - before[1], 0);
    assert_int_equal(charged(f), 0);
    close_with_claim(f, f->session, 1000, UINT64_MAX);
    assert_int_equal(metrics_value(read[0]) - before[0], 1000);
    assert_int_equal(metrics_value(read[1]) - before[1], 1024 * TIB - 1000);
    assert_int_equal(charged(f), TIB);
}

static int open_in(struct fixture *f, struct object_session *s, uint64_t *ret_handle)
{
    const struct wire_open_req req = {
        .bucket = SLICE_LIT("data"), .key = SLICE_LIT("k"), .via = WIRE_VIA_API};
    struct wire_open_rep rep = {0};
    int r = object_open(s, &req, f->arena, &rep, NULL);
    *ret_handle = rep.handle;
    return r;
}

/* However many sessions users begin, their handles together are bounded; those of the node's own clients are
 * not among them, and what is closed, or ends with its session, makes room. */
static void test_handles_of_users_are_bounded_together(void **state)
{
    struct fixture *f = *state;
    node_bucket(f, "");
    write_object(f);
    struct slice key = new_reader(f);
    struct object_session *one = session_of(f, key), *two = session_of(f, key);
    uint64_t handle, ignored;
    assert_int_equal(atomic_load(&f->service->of_users_max), OBJECT_OF_USERS_MAX);
    atomic_store(&f->service->of_users_max, 3);
    assert_int_equal(open_in(f, one, &handle), 0);
    assert_int_equal(open_in(f, one, &ignored), 0);
    assert_int_equal(open_in(f, two, &ignored), 0);
    assert_int_equal(open_in(f, two, &ignored), -EMFILE);
    assert_int_equal(open_in(f, f->session, &ignored), 0);
    struct wire_close_req close = {.handle = ignored};
    struct wire_close_rep closed;
    assert_int_equal(object_close(f->session, &close, f->arena, &closed, NULL), 0);
    close.handle = handle;
    assert_int_equal(object_close(one, &close, f->arena, &closed, NULL), 0);
    assert_int_equal(open_in(f, two, &ignored), 0);
    assert_int_equal(open_in(f, one, &ignored), -EMFILE);
    object_session_free(two);
    assert_int_equal(open_in(f, one, &ignored), 0);
    object_session_free(one);
    assert_int_equal(atomic_load(&f->service->of_users), 0);
}

static void report(struct object_session *ses, struct arena *a, const char *point)
{
    struct wire_report_req req = {
        .mount_point = slice_str(point), .bucket = SLICE_LIT("data"), .passthrough = 1};
    struct wire_report_rep rep;
    assert_int_equal(object_report(ses, &req, a, &rep, NULL), 0);
}

static bool is_shown(const char *point)
{
    _cleanup_buf_ struct buf b = BUF_INIT(MIB);
    char *line = NULL;
    assert_int_equal(metrics_text(&b), 0);
    assert_int_equal(buf_char(&b, '\0'), 0);
    assert_true(asprintf(&line, "forebay_mount_passthrough{mount=\"%s\"} 1", point) > 0);
    bool is = strstr(b.p, line) != NULL;
    free(line);
    return is;
}

/* What is shown of a mount ends with its session, and where that says that it is elsewhere; but not while
 * another session is of the same mount, as of the process that took over. (Seen to fail with a gauge that
 * stays, which filled up the table with mounts that are gone, and without the look at the other sessions.) */
static void test_what_is_shown_of_a_mount_ends_with_it(void **state)
{
    struct fixture *f = *state;
    struct object_session *one = object_session_new(f->service, WIRE_VIA_MOUNT),
                          *two = object_session_new(f->service, WIRE_VIA_MOUNT);
    report(one, f->arena, "/m/first");
    assert_true(is_shown("/m/first"));
    report(one, f->arena, "/m/second");
    assert_false(is_shown("/m/first"));
    report(two, f->arena, "/m/second");
    object_session_free(one);
    assert_true(is_shown("/m/second"));
    object_session_free(two);
    assert_false(is_shown("/m/second"));
}

struct rows {
    uint64_t bucket_id, n;
};

static void count_row(void *arg, const struct usage_row *r)
{
    struct rows *rows = arg;
    rows->n += r->bucket_id == rows->bucket_id;
}

static uint64_t rows_of(struct fixture *f, uint64_t bucket_id)
{
    struct rows rows = {.bucket_id = bucket_id};
    usage_each(f->service->usage, count_row, &rows);
    return rows.n;
}

/* Counters of reads of a bucket that is gone, which a job that was killed had of its own, or for which
 * something was under way when it was removed, leave their rows to others. (Seen to fail with rows that stay:
 * a killed job over thousands of directories left none to anybody, for ever.) */
static void test_counters_of_buckets_that_are_gone_end(void **state)
{
    struct fixture *f = *state;
    _cleanup_(bucket_unrefp) struct bucket *b = NULL;
    node_bucket(f, "");
    assert_int_equal(bucket_find(f->service->buckets, SLICE_LIT("data"), &b, NULL), 0);
    uint64_t own = b->id, gone = own | (uint64_t)1 << 63;
    for (size_t i = 0; i < 3; i++) {
        usage_opened(f->service->usage, own, slice_str(arena_printf(f->arena, "%zu/k", i)));
        usage_opened(f->service->usage, gone, slice_str(arena_printf(f->arena, "%zu/k", i)));
    }
    assert_int_equal(rows_of(f, gone), 3);
    node_close(f, store_close);
    node_open(f);
    assert_int_equal(rows_of(f, own), 3);
    assert_int_equal(rows_of(f, gone), 0);
}

int main(void)
{
#define BOTH(name)                                                                                           \
    {#name " here", name, setup_local, teardown, NULL},                                                      \
    {                                                                                                        \
#name " by way of a socket", name, setup_loop, teardown, NULL                                        \
    }
    const struct CMUnitTest tests[] = {
        BOTH(test_several_are_closed_at_once),
        BOTH(test_what_a_client_says_it_read_is_believed_within_bounds),
        BOTH(test_handles_of_users_are_bounded_together),
        BOTH(test_what_is_shown_of_a_mount_ends_with_it),
        BOTH(test_counters_of_buckets_that_are_gone_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

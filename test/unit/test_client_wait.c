/* layer: client */
/* threaded */
/* How long a client waits: for a node that takes its time, for one that hangs, and for a connection. */
#include "client/client_internal.h"
#include "client_fake.h"

#include <sys/resource.h>

#define LONG_MS (TIMEOUT_MS + TIMEOUT_MS / 2)
#define SLOW_MS 4000 /* where it counts which of two waits ends first */

static int get_bucket(struct client *c)
{
    struct wire_bucket_get_req req = {.name = SLICE_LIT("b")};
    struct wire_bucket_get_rep rep;
    struct err e = {0};
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    return client_bucket_get(c, &req, &b, &rep, &e);
}

static void *get_one(void *arg)
{
    (void)get_bucket(arg);
    return NULL;
}

static int copy(struct client *c)
{
    struct wire_copy_req req = {.bucket = SLICE_LIT("b"), .from = SLICE_LIT("a"), .to = SLICE_LIT("z")};
    struct wire_copy_rep rep;
    struct err e = {0};
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    return client_copy(c, &req, &b, &rep, &e);
}

static void *copy_one(void *arg)
{
    (void)copy(arg);
    return NULL;
}

/* Something that takes longer than the timeout: it is waited for, and asked for once. (Where the machine is
 * so slow that the node seems to be silent it is tried again.) */
static void expect_one_long(struct fake *f, struct client *c, int (*call)(struct client *c), uint32_t op)
{
    int r = -ETIMEDOUT, n = 0;
    for (int i = 0; i < TRIES && (is_late(r) || n != 1); i++) {
        int before = atomic_load(&f->seen[op]);
        r = call(c);
        n = atomic_load(&f->seen[op]) - before;
    }
    assert_int_equal(r, 0);
    assert_int_equal(n, 1);
}

/* What the node knows at once, and takes and never answers, costs the timeout, not for ever. */
static void test_hanging_operation(void **state)
{
    struct fake *f = *state;
    _cleanup_(client_freep) struct client *c = connect_in_haste(f, 0);
    atomic_store(&f->hang_ms[WIRE_OP_BUCKET_GET], 3600000);
    assert_int_equal(get_bucket(c), -ETIMEDOUT);
}

/* A node that does not answer others in the second half of the timeout hangs: a long operation ends when the
 * timeout is over, with an error even if the node would go on soon after. (Seen to fail with a probe that has
 * a whole timeout behind the first one.) */
static void test_hanging_node_is_found_out_in_time(void **state)
{
    struct fake *f = *state;
    _cleanup_(client_freep) struct client *c = connect_for(f, 0, SLOW_MS);
    int r = stat_key(c, "k");
    for (int i = 0; i < TRIES && r >= 0; i++) { /* who asks may be slow, too */
        atomic_store(&f->hang_ms[WIRE_OP_STAT], SLOW_MS + SLOW_MS / 2);
        atomic_store(&f->hang_ms[WIRE_OP_HELLO], SLOW_MS - SLOW_MS / 5);
        r = stat_key(c, "k");
    }
    assert_int_equal(r, -ETIMEDOUT);
}

/* An answer that comes in the rest of the timeout is taken, although the node did not answer others. (Seen to
 * fail without that rest.) */
static void test_answer_of_a_node_in_doubt(void **state)
{
    struct fake *f = *state;
    int r = -ETIMEDOUT;
    for (int i = 0; i < TRIES && is_late(r); i++) {
        _cleanup_(client_freep) struct client *c = connect_for(f, 0, SLOW_MS);
        atomic_store(&f->hang_ms[WIRE_OP_STAT], SLOW_MS - SLOW_MS / 4);
        atomic_store(&f->cut[WIRE_OP_HELLO], 1000);
        r = stat_key(c, "k");
        atomic_store(&f->cut[WIRE_OP_HELLO], 0);
    }
    assert_int_equal(r, 0);
}

/* A long operation may take longer than the timeout, as long as the node answers others. */
static void test_long_operation(void **state)
{
    struct fake *f = *state;
    _cleanup_(client_freep) struct client *c = connect_in_haste(f, 0);
    atomic_store(&f->hang_ms[WIRE_OP_COPY], 2 * TIMEOUT_MS + TIMEOUT_MS / 2);
    expect_one_long(f, c, copy, WIRE_OP_COPY);
    atomic_store(&f->hang_ms[WIRE_OP_COPY], 3600000);
    atomic_store(&f->hang_ms[WIRE_OP_HELLO], 3600000);
    assert_int_equal(copy(c), -ETIMEDOUT);
}

/* So is what else an origin may carry out slowly, and asked for once: who gives up waiting is told that a
 * change failed which is made; and what asks an origin first whether it is there. */
static void test_what_asks_an_origin_is_long(void **state)
{
    static const uint32_t ops[] = {WIRE_OP_REMOVE,   WIRE_OP_MKDIR,         WIRE_OP_RMDIR,
                                   WIRE_OP_SET_META, WIRE_OP_BUCKET_CREATE, WIRE_OP_BUCKET_SET,
                                   WIRE_OP_JOB_START};
    struct fake *f = *state;
    _cleanup_(client_freep) struct client *c = connect_in_haste(f, 0);
    for (size_t i = 0; i < ARRAY_SIZE(ops); i++)
        assert_true(client_op_is_long(ops[i]));
    atomic_store(&f->hang_ms[WIRE_OP_MKDIR], 2 * TIMEOUT_MS + TIMEOUT_MS / 2);
    expect_one_long(f, c, make_dir, WIRE_OP_MKDIR);
}

static int open_and_read(struct client *c)
{
    struct client_file_open o = {.bucket = SLICE_LIT("b"), .key = SLICE_LIT("k")};
    struct client_file *file;
    struct err e = {0};
    int r = client_file_open(c, &o, &file, &e);
    if (r < 0)
        return r;
    ssize_t n = read_bytes(file, 1000, 1000);
    client_file_close(file);
    assert_true(n < 0 || n == 1000);
    return (int)MIN(n, 0);
}

/* Reads and listings are waited for in the same way, as the node tries the origin for as long as the bucket's
 * `retry` says; and so is what limits and shares let wait for its turn, or a disk. (Seen to fail with the
 * list of client_op_is_long without them.) */
static void test_reads_are_waited_for(void **state)
{
    static const uint32_t ops[] = {WIRE_OP_STAT,        WIRE_OP_LIST,        WIRE_OP_OPEN,
                                   WIRE_OP_FETCH,       WIRE_OP_CONFIRM,     WIRE_OP_TAGS,
                                   WIRE_OP_TREE_READ,   WIRE_OP_TREE_WRITE,  WIRE_OP_TREE_SYNC,
                                   WIRE_OP_TREE_CREATE, WIRE_OP_TREE_READDIR};
    struct fake *f = *state;
    _cleanup_(client_freep) struct client *c = connect_in_haste(f, 0);
    for (size_t i = 0; i < ARRAY_SIZE(ops); i++)
        assert_true(client_op_is_long(ops[i]));
    atomic_store(&f->hang_ms[WIRE_OP_OPEN], LONG_MS);
    expect_one_long(f, c, open_and_read, WIRE_OP_OPEN);
    atomic_store(&f->hang_ms[WIRE_OP_OPEN], 0);
    atomic_store(&f->hang_ms[WIRE_OP_FETCH], LONG_MS);
    expect_one_long(f, c, open_and_read, WIRE_OP_FETCH);
}

/* A read that was waited for longer than the timeout has that time before it to find the node again when that
 * is restarted. (Seen to fail when only changes with a number have it.) */
static void test_read_that_is_cut_late(void **state)
{
    struct fake *f = *state;
    _cleanup_(client_freep) struct client *c = connect_in_haste(f, 0);
    int r = -ETIMEDOUT, n = 0;
    for (int i = 0; i < TRIES && (is_late(r) || n != 2); i++) {
        int before = atomic_load(&f->seen[WIRE_OP_STAT]);
        atomic_store(&f->hang_ms[WIRE_OP_STAT], LONG_MS);
        atomic_store(&f->cut[WIRE_OP_STAT], 1);
        r = stat_key(c, "k");
        n = atomic_load(&f->seen[WIRE_OP_STAT]) - before;
    }
    assert_int_equal(r, 0);
    assert_int_equal(n, 2);
}

static int put_three(struct client *c)
{
    struct client_writer_open o = {.bucket = SLICE_LIT("b"), .key = SLICE_LIT("k"), .size_bytes = 3};
    struct client_writer *w;
    struct err e = {0};
    int r = client_writer_open(c, &o, &w, &e);
    if (r < 0)
        return r;
    r = client_writer_write(w, "abc", 3, &e);
    r = r < 0 ? r : client_writer_commit(w, NULL, &e);
    client_writer_free(w);
    return r;
}

/* What an object is made of is waited for as its commit is: the node may let it wait for its turn, for room
 * or for an origin that takes the bytes; and what makes a bucket or a job asks an origin first. */
static void test_writes_are_waited_for(void **state)
{
    static const uint32_t ops[] = {WIRE_OP_BUCKET_CREATE, WIRE_OP_BUCKET_SET, WIRE_OP_BUCKET_RULE,
                                   WIRE_OP_JOB_START};
    struct fake *f = *state;
    _cleanup_(client_freep) struct client *c = connect_in_haste(f, 0);
    for (size_t i = 0; i < ARRAY_SIZE(ops); i++)
        assert_true(client_op_is_long(ops[i]));
    atomic_store(&f->hang_ms[WIRE_OP_PUT_OPEN], 2 * TIMEOUT_MS + TIMEOUT_MS / 2);
    expect_one_long(f, c, put_three, WIRE_OP_PUT_OPEN);
    atomic_store(&f->hang_ms[WIRE_OP_PUT_OPEN], 0);
    atomic_store(&f->hang_ms[WIRE_OP_PUT_WRITE], 2 * TIMEOUT_MS + TIMEOUT_MS / 2);
    expect_one_long(f, c, put_three, WIRE_OP_PUT_WRITE);
}

/* What the node refuses for want of memory or threads is sent again until it takes it, also bytes of a
 * stream, which it has not seen then; and nothing else of the session ends. (Seen to fail without ERR_CLOSED
 * in try_once.) */
static void test_what_is_refused_is_sent_again(void **state)
{
    struct fake *f = *state;
    _cleanup_(client_freep) struct client *c = connect_to(f, 0);
    struct client_writer_open o = {.bucket = SLICE_LIT("b"), .key = SLICE_LIT("k"), .size_bytes = UINT64_MAX};
    struct client_writer *w[2];
    struct err e = {0};
    for (size_t i = 0; i < ARRAY_SIZE(w); i++)
        assert_int_equal(client_writer_open(c, &o, &w[i], &e), 0);
    uint64_t epoch = client_epoch(c);
    atomic_store(&f->refused[WIRE_OP_PUT_WRITE], 3);
    for (size_t i = 0; i < ARRAY_SIZE(w); i++) {
        assert_int_equal(client_writer_write(w[i], "abc", 3, &e), 0);
        assert_int_equal(client_writer_commit(w[i], NULL, &e), 0);
        client_writer_free(w[i]);
    }
    assert_int_equal(atomic_load(&f->seen[WIRE_OP_PUT_WRITE]), 3 + ARRAY_SIZE(w));
    assert_int_equal(client_epoch(c), epoch);
    atomic_store(&f->refused[WIRE_OP_STAT], 3);
    assert_int_equal(stat_key(c, "k"), 0);
}

/* While long operations hold all connections, a call waits for one of them; it does not say that the node is
 * down. */
static void test_calls_wait_behind_long_operations(void **state)
{
    struct fake *f = *state;
    _cleanup_(client_freep) struct client *c = connect_in_haste(f, 1);
    int r = -ETIMEDOUT;
    atomic_store(&f->hang_ms[WIRE_OP_COPY], 2 * TIMEOUT_MS + TIMEOUT_MS / 2);
    for (int i = 0; i < TRIES && is_late(r); i++) {
        pthread_t copying;
        atomic_store(&f->seen[WIRE_OP_COPY], 0);
        start_one(f, copy_one, c, WIRE_OP_COPY, &copying);
        r = get_bucket(c);
        (void)pthread_join(copying, NULL);
    }
    assert_int_equal(r, 0);
}

/* A copy that has waited for its connection through most of its time. *ret_asked: how often the node's health
 * was asked meanwhile, and *ret_ms for how long. */
static int copy_after_waiting(struct fake *f, struct client *c, int *ret_asked, uint64_t *ret_ms)
{
    pthread_t asking;
    atomic_store(&f->seen[WIRE_OP_BUCKET_GET], 0);
    start_one(f, get_one, c, WIRE_OP_BUCKET_GET, &asking);
    int before = atomic_load(&f->seen[WIRE_OP_HELLO]);
    uint64_t from_ms = sys_mono_ms();
    int r = copy(c);
    *ret_ms = sys_mono_ms() - from_ms;
    *ret_asked = atomic_load(&f->seen[WIRE_OP_HELLO]) - before;
    (void)pthread_join(asking, NULL);
    return r;
}

/* A long operation that waited for its connection asks after the node's health no more often than others:
 * twice in a timeout. (Where the machine is so slow that the connection comes too late, it is tried again.)
 */
static void test_health_is_asked_rarely(void **state)
{
    struct fake *f = *state;
    _cleanup_(client_freep) struct client *c = connect_in_haste(f, 1);
    int asked = 0, r = -EHOSTDOWN;
    uint64_t ms = 0;
    atomic_store(&f->hang_ms[WIRE_OP_BUCKET_GET], TIMEOUT_MS - TIMEOUT_MS / 5);
    atomic_store(&f->hang_ms[WIRE_OP_COPY], 2 * TIMEOUT_MS);
    for (int i = 0; i < 50 && is_late(r); i++)
        r = copy_after_waiting(f, c, &asked, &ms);
    assert_int_equal(r, 0);
    assert_in_range(asked, 0, 2 * ms / TIMEOUT_MS + 3);
}

/* A process that may have no further descriptor cannot ask after the node's health, which says nothing of the
 * node: it waits on. (Seen to fail when that counts as no answer.) */
static void test_no_descriptor_to_ask_by(void **state)
{
    struct fake *f = *state;
    _cleanup_(client_freep) struct client *c = connect_in_haste(f, 0);
    struct rlimit before;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    const struct rlimit full = {.rlim_cur = STDERR_FILENO + 1, .rlim_max = before.rlim_max};
    atomic_store(&f->hang_ms[WIRE_OP_STAT], LONG_MS);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &full), 0);
    int r = stat_key(c, "k");
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(r, 0);
    assert_int_equal(atomic_load(&f->seen[WIRE_OP_STAT]), 1);
}

static atomic_bool nobody_waits;

static bool is_unwanted(void)
{
    return atomic_load(&nobody_waits);
}

/* Asks for as long as somebody waits: *arg is the client, and then the answer. */
static void *stat_unwanted(void *arg)
{
    struct {
        struct client *c;
        int r;
    } *one = arg;
    one->r = stat_key(one->c, "k");
    return NULL;
}

/* A question whose answer nobody wants any more is left at once, also by who waits for a connection yet, and
 * the session goes on, although that was its only connection. A change is waited for. */
static void test_an_answer_that_nobody_wants(void **state)
{
    struct fake *f = *state;
    struct client_options o = {
        .socket_path = f->path, .timeout_ms = PATIENCE_MS, .connections = 1, .is_unwanted = is_unwanted};
    _cleanup_(client_freep) struct client *c = NULL;
    struct err e = {0};
    assert_int_equal(client_new(&o, &c, &e), 0);
    uint64_t epoch = client_epoch(c);
    struct {
        struct client *c;
        int r;
    } asks[2] = {{c, 0}, {c, 0}};
    pthread_t threads[2];
    atomic_store(&f->hang_ms[WIRE_OP_STAT], 3600000);
    start_one(f, stat_unwanted, (void *)&asks[0], WIRE_OP_STAT, &threads[0]);
    assert_int_equal(pthread_create(&threads[1], NULL, stat_unwanted, &asks[1]), 0);
    sys->sleep_ns((uint64_t)3 * CLIENT_LOOK_MS * 1000000);
    atomic_store(&nobody_waits, true);
    for (size_t i = 0; i < ARRAY_SIZE(threads); i++) {
        (void)pthread_join(threads[i], NULL);
        assert_int_equal(asks[i].r, -EINTR);
    }
    atomic_store(&f->hang_ms[WIRE_OP_MKDIR], 5 * CLIENT_LOOK_MS);
    assert_int_equal(make_dir(c), 0);
    assert_int_equal(client_epoch(c), epoch);
    assert_int_equal(atomic_load(&f->seen[WIRE_OP_MKDIR]), 1);
    atomic_store(&nobody_waits, false);
}

static atomic_bool has_no_time;

static bool must_not_wait(void)
{
    return atomic_load(&has_no_time);
}

/* A thread that must not wait for an origin says so to the node, and hears that the bytes are not here; when
 * it may wait it gets them. (Seen to fail without client_no_wait in client_file.c and client_lister.c.) */
static void test_who_must_not_wait_says_so(void **state)
{
    struct fake *f = *state;
    struct client_options o = {
        .socket_path = f->path, .timeout_ms = PATIENCE_MS, .must_not_wait = must_not_wait};
    for (int by_fd = 0; by_fd < 2; by_fd++) {
        atomic_store(&f->gives_fds, by_fd);
        _cleanup_(client_freep) struct client *c = NULL;
        struct client_file_open open = {.bucket = SLICE_LIT("b"), .key = SLICE_LIT("k")};
        _cleanup_(client_file_closep) struct client_file *file = NULL;
        struct err e = {0};
        char byte;
        assert_int_equal(client_new(&o, &c, &e), 0);
        int before = atomic_load(&f->n_no_wait);
        atomic_store(&has_no_time, true);
        assert_int_equal(client_file_open(c, &open, &file, &e), 0);
        assert_int_equal(client_file_pread(file, &byte, 1, 0, &e), -EAGAIN);
        struct client_lister_open all = {.bucket = SLICE_LIT("b")};
        _cleanup_(client_lister_freep) struct client_lister *l = client_lister_new(c, &all);
        struct wire_entry entry;
        assert_int_equal(client_lister_next(l, &entry, &e), 1);
        assert_int_equal(atomic_load(&f->n_no_wait), before + 3);
        assert_int_equal(client_no_wait(c), WIRE_NO_WAIT);
        atomic_store(&has_no_time, false);
        assert_int_equal(client_file_pread(file, &byte, 1, 0, &e), 1);
        assert_int_equal(atomic_load(&f->n_no_wait), before + 3);
        assert_int_equal(client_no_wait(c), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        NODE_TEST(test_hanging_operation),
        NODE_TEST(test_hanging_node_is_found_out_in_time),
        NODE_TEST(test_answer_of_a_node_in_doubt),
        NODE_TEST(test_long_operation),
        NODE_TEST(test_what_asks_an_origin_is_long),
        NODE_TEST(test_reads_are_waited_for),
        NODE_TEST(test_read_that_is_cut_late),
        NODE_TEST(test_writes_are_waited_for),
        NODE_TEST(test_what_is_refused_is_sent_again),
        NODE_TEST(test_calls_wait_behind_long_operations),
        NODE_TEST(test_health_is_asked_rarely),
        NODE_TEST(test_no_descriptor_to_ask_by),
        NODE_TEST(test_an_answer_that_nobody_wants),
        NODE_TEST(test_who_must_not_wait_says_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* layer: mount */
/* threaded */
/* Who reads the kernel's requests: each is read once, nobody who waits keeps another from being read, and the
 * end reaches all. A pair of sockets that keep messages apart stands for /dev/fuse. */
#include "mount/queue.h"

#include "base/sys.h"
#include "mount/parking.h"
#include "mount/request.h"
#include "mount/versions.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/socket.h>

#include <cmocka.h>

#define THREADS  6
#define MESSAGES 20000
#define KEY      SLICE_LIT("dir/key")
enum { LOOKUP = QUEUE_LOOKUP, OPEN = QUEUE_OPEN, RELEASE = QUEUE_RELEASE };

struct message {
    uint32_t len, opcode;
    uint64_t unique, nodeid;
    uint32_t uid, gid, pid, padding;
};

struct fixture {
    int kernel, fd;
    pthread_t threads[THREADS];
    atomic_uint seen[MESSAGES];
    atomic_uint n_seen, n_ended;
    atomic_bool gate;    /* who waits goes on */
    atomic_uint waiting; /* threads in wait_for_gate */
    uint32_t pid;        /* of the program that asks now */
    struct versions versions;
};

static void wait_for_gate(struct fixture *f)
{
    (void)atomic_fetch_add(&f->waiting, 1);
    while (!atomic_load(&f->gate))
        sys->sleep_ns(1000000);
}

/* A message whose number is a multiple of 1000 makes its thread wait, as OPEN of a file that is not kept; one
 * less: it calls the node and looks for the answer; two less: it asks what became of a version. */
static void serve(struct fixture *f, const struct message *x)
{
    if (x->unique % 1000 == 0) {
        queue_may_wait();
        wait_for_gate(f);
    }
    if (x->unique % 1000 == 999) {
        queue_calls();
        wait_for_gate(f);
    }
    if (x->unique % 1000 == 998)
        free(versions_now(&f->versions, KEY, SLICE_LIT("a"), NULL));
    (void)atomic_fetch_add(&f->seen[x->unique], 1);
    (void)atomic_fetch_add(&f->n_seen, 1);
}

static void *serve_main(void *arg)
{
    struct fixture *f = arg;
    struct message x;
    ssize_t n;
    while ((n = queue_read(f->fd, &x, sizeof(x))) == (ssize_t)sizeof(x))
        serve(f, &x);
    (void)atomic_fetch_add(&f->n_ended, 1);
    return NULL;
}

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    f->kernel = pair[0];
    f->fd = pair[1];
    versions_init(&f->versions);
    queue_start(f->fd, QUEUE_BIT(OPEN) | QUEUE_BIT(RELEASE));
    for (size_t i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&f->threads[i], NULL, serve_main, f), 0);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    atomic_store(&f->gate, true);
    assert_int_equal(close(f->kernel), 0);
    for (size_t i = 0; i < THREADS; i++)
        assert_int_equal(pthread_join(f->threads[i], NULL), 0);
    assert_int_equal(atomic_load(&f->n_ended), THREADS);
    parking_end();
    versions_fini(&f->versions);
    (void)close(f->fd);
    free(f);
    return 0;
}

static void say(struct fixture *f, uint32_t opcode, uint64_t unique)
{
    struct message x = {.len = sizeof(x), .opcode = opcode, .unique = unique, .pid = f->pid};
    assert_int_equal(write(f->kernel, &x, sizeof(x)), sizeof(x));
}

static void wait_until_seen(struct fixture *f, unsigned n)
{
    for (int i = 0; i < 30000 && atomic_load(&f->n_seen) < n; i++)
        sys->sleep_ns(1000000);
    assert_int_equal(atomic_load(&f->n_seen), n);
}

/* Of many requests, quick ones and others, each is read once; also when they come one at a time. */
static void test_each_is_read_once(void **state)
{
    struct fixture *f = *state;
    static const uint32_t opcodes[] = {OPEN, RELEASE, LOOKUP};
    atomic_store(&f->gate, true);
    unsigned n = 0;
    for (uint64_t i = 1; i < MESSAGES; i++) {
        if (i % 97 == 0)
            wait_until_seen(f, n);
        say(f, opcodes[i % 3], i);
        n++;
    }
    wait_until_seen(f, n);
    for (uint64_t i = 1; i < MESSAGES; i++)
        assert_int_equal(atomic_load(&f->seen[i]), 1);
}

/* A thread that waits while it serves has passed the lead on, whether it was told that its request may wait,
 * as of a lookup, or said so itself. */
static void test_who_waits_holds_up_nobody(void **state)
{
    struct fixture *f = *state;
    unsigned n = 0;
    for (uint64_t i = 1; i < THREADS; i++) /* one thread is left */
        say(f, i % 2 ? OPEN : LOOKUP, 1000 * i);
    for (uint64_t i = 1; i < 500; i++, n++)
        say(f, OPEN, i);
    wait_until_seen(f, n);
    for (int i = 0; i < 30000 && atomic_load(&f->waiting) < THREADS - 1; i++)
        sys->sleep_ns(1000000);
    assert_int_equal(atomic_load(&f->waiting), THREADS - 1);
    atomic_store(&f->gate, true);
    wait_until_seen(f, n + THREADS - 1);
}

static void wait_until_waiting(struct fixture *f, unsigned n)
{
    for (int i = 0; i < 30000 && atomic_load(&f->waiting) < n; i++)
        sys->sleep_ns(1000000);
    assert_int_equal(atomic_load(&f->waiting), n);
}

/* Calls to the node, by the program `caller`, while another one asks for something. */
static void call_beside_another(struct fixture *f, uint64_t unique, unsigned n_waiting)
{
    f->pid = 7;
    say(f, OPEN, unique);
    wait_until_waiting(f, n_waiting);
    f->pid = 8;
    say(f, OPEN, unique - 100);
}

/* Who looks for an answer of the node leads on: nobody need be woken when it comes. That holds up another
 * program's request, and is not done again at once. */
static void test_a_call_holds_the_lead_unless_others_had_to_wait(void **state)
{
    struct fixture *f = *state;
    call_beside_another(f, 999, 1);
    sys->sleep_ns(50000000);
    assert_int_equal(atomic_load(&f->n_seen), 0);
    atomic_store(&f->gate, true);
    wait_until_seen(f, 2);
    atomic_store(&f->gate, false);
    call_beside_another(f, 1999, 2);
    wait_until_seen(f, 3); /* the other one's */
    atomic_store(&f->gate, true);
    wait_until_seen(f, 4);
}

/* A program's own next request does not come while it waits for an answer. */
static void test_a_program_alone_does_not_make_its_thread_pass_the_lead_on(void **state)
{
    struct fixture *f = *state;
    f->pid = 7;
    for (uint64_t i = 1; i <= 3; i++) {
        atomic_store(&f->gate, false);
        say(f, OPEN, i * 1000 + 999);
        wait_until_waiting(f, (unsigned)i);
        say(f, RELEASE, i * 1000 + 2);
        sys->sleep_ns(20000000);
        assert_int_equal(atomic_load(&f->n_seen), 2 * (i - 1));
        atomic_store(&f->gate, true);
        wait_until_seen(f, (unsigned)(2 * i));
    }
}

/* Who looks a name up while its mode is being changed waits for that, as long as the origin takes. Others do
 * not. */
static void test_a_change_at_the_origin_holds_up_who_asks_for_that_name(void **state)
{
    struct fixture *f = *state;
    struct version_change c;
    versions_begin(&f->versions, &c, KEY);
    say(f, OPEN, 998);
    say(f, OPEN, 1);
    for (int i = 0; i < 10000 && atomic_load(&f->n_seen) == 0; i++)
        sys->sleep_ns(1000000);
    unsigned n_others = atomic_load(&f->seen[1]);
    versions_end(&f->versions, &c, SLICE_LIT("a"), SLICE_LIT("b"));
    assert_int_equal(n_others, 1);
    wait_until_seen(f, 2);
}

static void *park_one(void *arg)
{
    struct fixture *f = arg;
    struct message x = {.len = sizeof(x), .opcode = LOOKUP, .unique = 4};
    request_begin(&x, sizeof(x));
    parking_begin(&x, sizeof(x));
    assert_false(parking_may_wait());
    wait_for_gate(f);
    parking_park();
    return NULL;
}

/* A thread that waits for the kernel runs what is parked when it is woken. (Seen to fail without the event in
 * queue_wake.) */
static void test_who_waits_for_the_kernel_is_woken_for_what_is_parked(void **state)
{
    struct fixture *f = *state;
    struct message x = {.len = sizeof(x), .opcode = LOOKUP, .unique = 2};
    const struct parking_calls calls = {0};
    pthread_t parker;
    parking_start(f->fd, /* n_places= */ 1, &calls);
    request_begin(&x, sizeof(x));
    parking_begin(&x, sizeof(x));
    assert_true(parking_may_wait());
    assert_int_equal(pthread_create(&parker, NULL, park_one, f), 0);
    wait_until_waiting(f, 1);
    assert_int_equal(parking_next(&x, sizeof(x)), 0);
    atomic_store(&f->gate, true);
    (void)pthread_join(parker, NULL);
    queue_wake();
    wait_until_seen(f, 1);
    assert_int_equal(atomic_load(&f->seen[4]), 1);
}

/* The next request is looked for when the last four came within a millisecond, by any clock. */
static void test_pace(void **state)
{
    (void)state;
    struct queue_pace p = {0};
    uint64_t now = 5000000000ull;
    assert_false(queue_pace_is_fast(&p, now));
    for (int i = 0; i < QUEUE_PACE; i++) {
        assert_false(queue_pace_is_fast(&p, now));
        queue_pace_add(&p, now += 100000);
    }
    assert_true(queue_pace_is_fast(&p, now));
    assert_true(queue_pace_is_fast(&p, now + 699999));
    assert_false(queue_pace_is_fast(&p, now + 700000));
    queue_pace_add(&p, now + 5000000);
    assert_false(queue_pace_is_fast(&p, now + 5000000));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_each_is_read_once, setup, teardown),
        cmocka_unit_test_setup_teardown(test_who_waits_holds_up_nobody, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_call_holds_the_lead_unless_others_had_to_wait, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_a_program_alone_does_not_make_its_thread_pass_the_lead_on, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_a_change_at_the_origin_holds_up_who_asks_for_that_name, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_who_waits_for_the_kernel_is_woken_for_what_is_parked, setup,
                                        teardown),
        cmocka_unit_test(test_pace),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

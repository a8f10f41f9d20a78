/* layer: mount */
/* threaded */
/* Requests that wait for a thread: so many threads wait for long and no more, the others' requests are
 * parked, and none is lost. */
#include "mount/parking.h"

#include "base/sys.h"
#include "mount/holdings.h"
#include "mount/request.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

enum { UNLINK = 10, READ = 15 };

struct message {
    uint32_t len, opcode;
    uint64_t unique, nodeid;
    uint32_t uid, gid, pid, padding;
    char more[9000]; /* more than is parked */
};

struct answer {
    uint32_t len;
    int32_t error;
    uint64_t unique;
};

/* A thread of the mount, which does one thing after the other as it is told. */
struct hand {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    void (*job)(struct hand *h);
    bool must_end;
    struct message x; /* what it works on */
    ssize_t got;
    bool yes;
};

static struct fixture {
    int kernel, fd;
    struct hand hands[2];
    unsigned n_run, n_woken;
    uint64_t run_last;
    bool is_here, is_gone; /* what the node has by now; whether the programs have been killed */
    bool is_slow;          /* the node takes a second to say that it has nothing */
    pid_t killed;          /* this program has been; 0: is_gone tells of all */
    struct hand *leaves;   /* while a request is looked at */
} * fixture;

static void *hand_main(void *arg)
{
    struct hand *h = arg;
    (void)pthread_mutex_lock(&h->lock);
    while (!h->must_end) {
        if (h->job) {
            h->job(h);
            h->job = NULL;
            (void)pthread_cond_broadcast(&h->changed);
        }
        if (!h->must_end)
            (void)pthread_cond_wait(&h->changed, &h->lock);
    }
    (void)pthread_mutex_unlock(&h->lock);
    return NULL;
}

static void tell(struct hand *h, void (*job)(struct hand *h))
{
    (void)pthread_mutex_lock(&h->lock);
    h->job = job;
    (void)pthread_cond_broadcast(&h->changed);
    while (h->job)
        (void)pthread_cond_wait(&h->changed, &h->lock);
    (void)pthread_mutex_unlock(&h->lock);
}

static void begin_job(struct hand *h)
{
    request_begin(&h->x, h->x.len);
    parking_begin(&h->x, h->x.len);
}

static void next_job(struct hand *h)
{
    h->got = parking_next(&h->x, sizeof(h->x));
    if (h->got > 0)
        begin_job(h);
}

static void wait_job(struct hand *h)
{
    h->yes = parking_may_wait();
}

static void change_job(struct hand *h)
{
    h->yes = parking_may_begin();
}

static void ask_job(struct hand *h)
{
    h->yes = parking_must_not_wait();
}

static void park_job(struct hand *h)
{
    (void)h;
    parking_park();
}

static void begin(struct hand *h, uint32_t opcode, uint64_t unique, size_t more)
{
    h->x = (struct message){.len = (uint32_t)(offsetof(struct message, more) + more),
                            .opcode = opcode,
                            .unique = unique,
                            .pid = 7};
    tell(h, begin_job);
}

static bool does(struct hand *h, void (*job)(struct hand *h))
{
    tell(h, job);
    return h->yes;
}

/* What it gets next; 0: nothing is parked, or there is no place. */
static uint64_t next_of(struct hand *h)
{
    tell(h, next_job);
    return h->got > 0 ? h->x.unique : 0;
}

static struct sys slow;
static _Atomic uint64_t slow_ns; /* that have gone by since it was slow */

static uint64_t slow_clock(void)
{
    return sys_real.mono_ns() + atomic_load(&slow_ns);
}

static void run(void *arg, void *request, size_t n)
{
    struct fixture *f = arg;
    (void)atomic_fetch_add(&slow_ns, f->is_slow ? 1000000000ull : 0);
    (void)n;
    f->n_run++;
    f->run_last = ((const struct message *)request)->unique;
    assert_true(parking_must_not_wait());
    if (f->leaves)
        assert_int_equal(next_of(f->leaves), 0);
    if (!f->is_here && parking_is_due(-EAGAIN))
        parking_park();
}

static void wake(void *arg)
{
    ((struct fixture *)arg)->n_woken++;
}

static bool is_gone(pid_t asker, pid_t *process)
{
    (void)process;
    if (fixture->killed != 0)
        return asker == fixture->killed;
    assert_int_equal(asker, 7);
    return fixture->is_gone;
}

/* With one place. */
static int setup(void **state)
{
    struct fixture *f = fixture = calloc(1, sizeof(*f));
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    const int room = 1 << 20; /* for an answer to each request that a test leaves */
    assert_int_equal(setsockopt(pair[1], SOL_SOCKET, SO_SNDBUF, &room, sizeof(room)), 0);
    f->kernel = pair[0];
    f->fd = pair[1];
    const struct parking_calls calls = {.run = run, .wake = wake, .is_gone = is_gone, .arg = f};
    parking_start(f->fd, 1, &calls);
    for (size_t i = 0; i < ARRAY_SIZE(f->hands); i++) {
        struct hand *h = &f->hands[i];
        (void)pthread_mutex_init(&h->lock, NULL);
        (void)pthread_cond_init(&h->changed, NULL);
        assert_int_equal(pthread_create(&h->thread, NULL, hand_main, h), 0);
    }
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    for (size_t i = 0; i < ARRAY_SIZE(f->hands); i++) {
        struct hand *h = &f->hands[i];
        (void)pthread_mutex_lock(&h->lock);
        h->must_end = true;
        (void)pthread_cond_broadcast(&h->changed);
        (void)pthread_mutex_unlock(&h->lock);
        (void)pthread_join(h->thread, NULL);
        (void)pthread_cond_destroy(&h->changed);
        (void)pthread_mutex_destroy(&h->lock);
    }
    parking_end();
    assert_int_equal(holdings_of(HOLDING_PARKED), 0);
    (void)close(f->kernel);
    (void)close(f->fd);
    free(f);
    return 0;
}

static void expect_answer(const struct fixture *f, uint64_t unique, int code)
{
    struct answer a;
    assert_int_equal(recv(f->kernel, &a, sizeof(a), MSG_DONTWAIT), sizeof(a));
    assert_int_equal(a.len, sizeof(a));
    assert_int_equal(a.unique, unique);
    assert_int_equal(a.error, code);
}

/* The first waits for long, the second is parked. */
static void fill_up(struct fixture *f)
{
    begin(&f->hands[0], READ, 2, 0);
    assert_true(does(&f->hands[0], wait_job));
    begin(&f->hands[1], READ, 4, 16);
    assert_false(does(&f->hands[1], wait_job));
    tell(&f->hands[1], park_job);
}

/* A few threads of many do not wait; where there are too few all do. */
static void test_places(void **state)
{
    (void)state;
    assert_int_equal(parking_places(64), 60);
    assert_int_equal(parking_places(256), 240);
    assert_int_equal(parking_places(4), 3);
    assert_int_equal(parking_places(2), 1);
    assert_int_equal(parking_places(1), 0);
}

/* Who finds no place waits as a request, and is run as it came by the thread that leaves the place, which it
 * keeps then. (Seen to fail without the look at what is parked behind leave_place in parking_next.) */
static void test_who_leaves_a_place_runs_what_is_parked(void **state)
{
    struct fixture *f = *state;
    fill_up(f);
    assert_true(holdings_of(HOLDING_PARKED) > 0);
    assert_int_equal(next_of(&f->hands[1]), 0);
    assert_int_equal(next_of(&f->hands[0]), 4);
    assert_int_equal(f->hands[0].x.len, offsetof(struct message, more) + 16);
    assert_int_equal(holdings_of(HOLDING_PARKED), 0);
    assert_false(does(&f->hands[0], ask_job));
    assert_true(does(&f->hands[0], wait_job));
    begin(&f->hands[1], READ, 6, 0);
    assert_false(does(&f->hands[1], wait_job));
    tell(&f->hands[1], park_job);
    assert_int_equal(next_of(&f->hands[0]), 6);
    assert_int_equal(next_of(&f->hands[0]), 0);
}

/* They are run in the order in which they came. */
static void test_first_come_first_served(void **state)
{
    struct fixture *f = *state;
    fill_up(f);
    for (uint64_t unique = 6; unique <= 20; unique += 2) {
        begin(&f->hands[1], READ, unique, 0);
        assert_false(does(&f->hands[1], wait_job));
        tell(&f->hands[1], park_job);
    }
    for (uint64_t unique = 4; unique <= 20; unique += 2)
        assert_int_equal(next_of(&f->hands[0]), unique);
}

/* One more that is parked, after fill_up. */
static void park(struct fixture *f, uint32_t opcode, uint64_t unique)
{
    struct hand *h = &f->hands[1];
    begin(h, opcode, unique, 0);
    assert_false(does(h, opcode == UNLINK ? change_job : wait_job));
    tell(h, park_job);
}

/* So it is whatever was tried in vain meanwhile, which is not all of them at once, and whatever came
 * meanwhile: nobody is overtaken for ever. (Seen to fail with one list, to whose end went what was tried.) */
static void test_the_first_stays_the_first(void **state)
{
    struct fixture *f = *state;
    const uint64_t most = 4 + 2 * 300;
    fill_up(f);
    for (uint64_t unique = 6; unique <= most; unique += 2) {
        park(f, unique % 3 ? READ : UNLINK, unique);
        if (unique % 200 == 0)
            assert_int_equal(parking_look(), 0);
    }
    for (uint64_t unique = 4; unique <= most; unique += 2) {
        assert_int_equal(next_of(&f->hands[0]), unique);
        if (unique % 200 == 0)
            assert_int_equal(parking_look(), 0);
    }
    assert_int_equal(next_of(&f->hands[0]), 0);
}

/* A change has its place before it begins, or is parked before: it is never cut. */
static void test_a_change_waits_before_it_begins(void **state)
{
    struct fixture *f = *state;
    begin(&f->hands[0], UNLINK, 2, 0);
    assert_true(does(&f->hands[0], change_job));
    begin(&f->hands[1], UNLINK, 4, 0);
    assert_true(does(&f->hands[1], wait_job));
    assert_false(does(&f->hands[1], change_job));
    tell(&f->hands[1], park_job);
    f->is_gone = true;
    assert_int_equal(parking_look(), 0); /* it is waited for */
    assert_int_equal(f->n_run, 0);
    assert_int_equal(next_of(&f->hands[0]), 4);
    assert_true(does(&f->hands[0], change_job));
}

/* While all places are taken the node is asked for what it has, and only then its word that it has nothing
 * parks who asked. Who waits for such an answer does so for a while. */
static void test_the_node_is_asked_for_what_is_here(void **state)
{
    struct fixture *f = *state;
    begin(&f->hands[1], READ, 8, 0);
    assert_false(does(&f->hands[1], ask_job));
    assert_int_equal(next_of(&f->hands[1]), 0);
    fill_up(f);
    begin(&f->hands[1], READ, 10, 0);
    assert_true(does(&f->hands[1], ask_job));
    unsigned n = 0;
    while (n < 1000 && does(&f->hands[1], wait_job))
        n++;
    assert_in_range(n, 2, 10); /* ten a second */
    begin(&f->hands[1], UNLINK, 12, 0);
    assert_false(does(&f->hands[1], ask_job));
}

/* What is parked is tried again, without waiting, and leaves when it is answered. */
static void test_what_is_parked_is_tried_again(void **state)
{
    struct fixture *f = *state;
    fill_up(f);
    assert_int_equal(parking_look(), 0);
    assert_int_equal(parking_look(), 0);
    assert_int_equal(f->n_run, 2);
    f->is_here = true;
    assert_int_equal(parking_look(), 1);
    assert_int_equal(parking_look(), 0);
    assert_int_equal(f->n_run, 3);
    assert_int_equal(f->n_woken, 0);
    assert_int_equal(next_of(&f->hands[0]), 0);
}

/* Who leaves the last place while a request is being tried does not see it: another thread is woken for it.
 * (Seen to fail without the wake in parking_look.) */
static void test_what_is_tried_while_a_place_is_left_is_not_forgotten(void **state)
{
    struct fixture *f = *state;
    fill_up(f);
    f->leaves = &f->hands[0];
    assert_int_equal(parking_look(), 0);
    assert_int_equal(f->n_woken, 1);
    assert_int_equal(next_of(&f->hands[1]), 4);
}

/* A program that is killed gets its answer although nobody has run its question. */
static void test_who_is_killed_is_answered(void **state)
{
    struct fixture *f = *state;
    fill_up(f);
    f->is_gone = true;
    assert_int_equal(parking_look(), 1);
    expect_answer(f, 4, -EINTR);
    assert_int_equal(f->n_run, 0);
    assert_int_equal(next_of(&f->hands[0]), 0);
}

/* So it does behind others, however long the node takes for each of these; and each of them is tried. (Seen
 * to fail without LOOK_MAX_NS: the node was asked a hundred times first; and without tried_to: only the first
 * ones were tried.) */
static void test_who_is_killed_is_answered_beside_a_slow_node(void **state)
{
    struct fixture *f = *state;
    const struct sys *before = sys;
    slow = *sys;
    slow.mono_ns = slow_clock;
    sys = &slow;
    fill_up(f);
    for (uint64_t unique = 6; unique <= 200; unique += 2)
        park(f, READ, unique);
    begin(&f->hands[1], READ, 202, 0);
    f->hands[1].x.pid = 8;
    tell(&f->hands[1], begin_job);
    assert_false(does(&f->hands[1], wait_job));
    tell(&f->hands[1], park_job);
    f->is_slow = true;
    f->killed = 8;
    assert_int_equal(parking_look(), 1);
    unsigned n_run = f->n_run;
    for (int i = 0; i < 100 && f->run_last != 200; i++)
        assert_int_equal(parking_look(), 0);
    sys = before;
    expect_answer(f, 202, -EINTR);
    assert_in_range(n_run, 1, 3);
    assert_int_equal(f->run_last, 200);
}

/* When the mount ends whoever waits is told. */
static void test_the_end_is_told(void **state)
{
    struct fixture *f = *state;
    fill_up(f);
    parking_watch();
    parking_end();
    expect_answer(f, 4, -ENOTCONN);
    begin(&f->hands[1], READ, 6, 0);
    assert_true(does(&f->hands[1], wait_job));
}

/* What would take too much memory waits in its thread, as do all where the mount has none left. */
static void test_what_cannot_be_parked_waits(void **state)
{
    struct fixture *f = *state;
    fill_up(f);
    begin(&f->hands[1], READ, 6, sizeof(f->hands[1].x.more));
    assert_true(does(&f->hands[1], wait_job));
    holdings_start(HOLDINGS_BASE_BYTES, 0);
    begin(&f->hands[1], READ, 8, 0);
    bool may = does(&f->hands[1], wait_job);
    holdings_start(0, 0);
    assert_true(may);
    assert_false(does(&f->hands[1], wait_job));
}

#define PARKING_TEST(name) cmocka_unit_test_setup_teardown(test_##name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_places),
        PARKING_TEST(who_leaves_a_place_runs_what_is_parked),
        PARKING_TEST(first_come_first_served),
        PARKING_TEST(the_first_stays_the_first),
        PARKING_TEST(a_change_waits_before_it_begins),
        PARKING_TEST(the_node_is_asked_for_what_is_here),
        PARKING_TEST(what_is_parked_is_tried_again),
        PARKING_TEST(what_is_tried_while_a_place_is_left_is_not_forgotten),
        PARKING_TEST(who_is_killed_is_answered),
        PARKING_TEST(who_is_killed_is_answered_beside_a_slow_node),
        PARKING_TEST(the_end_is_told),
        PARKING_TEST(what_cannot_be_parked_waits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

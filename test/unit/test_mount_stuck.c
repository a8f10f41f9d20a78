/* layer: mount */
/* Whether a process that was killed cannot end. A process whose first thread has left stands for it. */
#include "mount/stuck.h"

#include "base/sys.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static void the_state_stands_behind_the_name(void **state)
{
    (void)state;
    assert_int_equal(stuck_state("12 (forebay) S 1 12"), 'S');
    assert_int_equal(stuck_state("12 (a) Z (b) D 1 12"), 'D');
    assert_int_equal(stuck_state("12 (forebay)"), 0);
    assert_int_equal(stuck_state("12 (forebay"), 0);
    assert_int_equal(stuck_state(""), 0);
}

static void *wait_for_ever(void *arg)
{
    for (;;)
        (void)pause();
    return arg;
}

static void *run_for_ever(void *arg)
{
    for (atomic_uint *n = arg;;)
        atomic_fetch_add(n, 1);
    return NULL;
}

/* A process with another thread; its first one ends, or waits. */
static pid_t start(void *(*other)(void *arg), bool first_ends)
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid > 0)
        return pid;
    static atomic_uint n;
    pthread_t t;
    if (pthread_create(&t, NULL, other, &n) != 0)
        _exit(1);
    while (other == run_for_ever && atomic_load(&n) == 0) /* a thread that begins may sleep */
        sys->sleep_ns(1000000);
    if (first_ends)
        pthread_exit(NULL);
    (void)wait_for_ever(NULL);
    _exit(1);
}

static void end(pid_t pid)
{
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
}

static bool becomes_stuck(pid_t pid, unsigned tries)
{
    while (tries-- > 0 && !stuck_is(pid))
        sys->sleep_ns(10000000);
    return stuck_is(pid);
}

static void stuck_is_who_has_lost_its_first_thread_and_waits(void **state)
{
    (void)state;
    pid_t stuck = start(wait_for_ever, true), whole = start(wait_for_ever, false),
          runs = start(run_for_ever, true);
    assert_true(becomes_stuck(stuck, 3000));
    assert_false(becomes_stuck(whole, 20));
    assert_false(becomes_stuck(runs, 20));
    end(stuck);
    end(whole);
    end(runs);
    assert_false(stuck_is(stuck));
}

static void a_kill_is_seen_before_it_ends_the_thread(void **state)
{
    (void)state;
    assert_true(stuck_has_kill("Name:\tcat\nSigPnd:\t0000000000000100\nShdPnd:\t0000000000000000\n"));
    assert_true(stuck_has_kill("Name:\tcat\nSigPnd:\t0000000000000103\n"));
    assert_false(stuck_has_kill("Name:\tcat\nSigPnd:\t0000000000000002\nShdPnd:\t0000000000000100\n"));
    assert_false(stuck_has_kill("Name:\tSigPnd:\t0000000000000100\n"));
    assert_false(stuck_has_kill(""));
}

static void gone_is_who_has_ended(void **state)
{
    (void)state;
    pid_t pid = start(wait_for_ever, false), process = 0, own = 0, unknown = 0;
    assert_false(stuck_is_gone(pid, &process));
    assert_int_equal(process, pid);
    assert_false(stuck_is_gone(getpid(), &own));
    assert_int_equal(own, getpid());
    end(pid);
    assert_true(stuck_is_gone(pid, &process));
    assert_false(stuck_is_gone(pid, &unknown));
}

struct beginner {
    _Atomic pid_t tid;
    atomic_bool may_end;
};

static void *begin_and_end(void *arg)
{
    struct beginner *b = arg;
    atomic_store(&b->tid, gettid());
    while (!atomic_load(&b->may_end))
        sys->sleep_ns(1000000);
    return NULL;
}

/* Who has begun to read, and leaves the rest to others of its process, is not gone with its thread. */
static void a_thread_that_has_ended_is_not_gone(void **state)
{
    (void)state;
    struct beginner b = {0};
    pthread_t thread;
    pid_t process = 0, unknown = 0;
    assert_int_equal(pthread_create(&thread, NULL, begin_and_end, &b), 0);
    while (atomic_load(&b.tid) == 0)
        sys->sleep_ns(1000000);
    assert_false(stuck_is_gone(atomic_load(&b.tid), &process));
    assert_int_equal(process, getpid());
    atomic_store(&b.may_end, true);
    assert_int_equal(pthread_join(thread, NULL), 0);
    while (kill(atomic_load(&b.tid), 0) == 0) /* the kernel has it a moment longer */
        sys->sleep_ns(1000000);
    assert_false(stuck_is_gone(atomic_load(&b.tid), &process));
    assert_false(stuck_is_gone(atomic_load(&b.tid), &unknown));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_state_stands_behind_the_name),
        cmocka_unit_test(stuck_is_who_has_lost_its_first_thread_and_waits),
        cmocka_unit_test(a_kill_is_seen_before_it_ends_the_thread),
        cmocka_unit_test(gone_is_who_has_ended),
        cmocka_unit_test(a_thread_that_has_ended_is_not_gone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

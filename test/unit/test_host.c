/* layer: net */
/* threaded */
#include "base/quit.h"
#include "base/sys.h"
#include "net/host.h"
#include "net/sock.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static atomic_bool is_over; /* what name servers that say nothing are asked for */
static _Atomic unsigned n_silent;
static atomic_bool takes_signals; /* a thread that asked them would have run a handler of the program */

/* In the place of the system's: name servers say nothing about "silent.test". */
int getaddrinfo(const char *name, const char *service, const struct addrinfo *hints, struct addrinfo **ret)
{
    int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
    *(void **)&real = dlsym(RTLD_NEXT, "getaddrinfo");
    if (!name || strcmp(name, "silent.test") != 0 || hints->ai_flags & AI_NUMERICHOST)
        return real(name, service, hints, ret);
    sigset_t blocked;
    if (pthread_sigmask(SIG_BLOCK, NULL, &blocked) != 0 || !sigismember(&blocked, SIGTERM))
        atomic_store(&takes_signals, true);
    (void)atomic_fetch_add(&n_silent, 1);
    while (!atomic_load(&is_over))
        sys->sleep_ns(1000000);
    (void)atomic_fetch_sub(&n_silent, 1);
    return EAI_AGAIN;
}

/* The first address of a name, as text. */
static int host_address(const char *name, uint64_t timeout_ms, const atomic_bool *cancel,
                        char ret[HOST_ADDRESS_MAX], struct err *e)
{
    struct addrinfo *found = NULL;
    int r = host_addresses(name, /* port= */ 0, timeout_ms, cancel, &found, e);
    if (r < 0)
        return r;
    r = host_text(found, ret, e);
    freeaddrinfo(found);
    return r;
}

/* An address is its own, of either family, and a name has one. */
static void test_addresses(void **state)
{
    (void)state;
    static const char *const numbers[] = {"127.0.0.1", "::1", "10.255.0.3"};
    char found[HOST_ADDRESS_MAX];
    struct err e = {0};
    for (size_t i = 0; i < ARRAY_SIZE(numbers); i++) {
        assert_int_equal(host_address(numbers[i], /* timeout_ms= */ 0, NULL, found, &e), 0);
        assert_string_equal(found, numbers[i]);
    }
    if (host_address("localhost", 60000, NULL, found, &e) < 0)
        fail_msg("%s", e.text);
    assert_true(strcmp(found, "127.0.0.1") == 0 || strcmp(found, "::1") == 0);
}

/* A name that cannot be one is said to be none, in the resolver's words. */
static void test_no_name(void **state)
{
    (void)state;
    char found[HOST_ADDRESS_MAX] = "as before";
    struct err e = {0};
    assert_int_equal(host_address("a..b", 60000, NULL, found, &e), -EADDRNOTAVAIL);
    assert_non_null(strstr(e.text, "a..b: "));
    assert_string_equal(found, "as before");
}

/* Who does not wait, or is not wanted any more, has no answer, and leaves the question to its thread. (Of
 * many such questions a sanitizer finds what is given back too early, or never.) */
static void test_who_does_not_wait(void **state)
{
    (void)state;
    char found[HOST_ADDRESS_MAX];
    atomic_bool cancel = true;
    for (int i = 0; i < 200; i++) {
        int r = host_address("localhost", /* timeout_ms= */ 0, i % 2 ? &cancel : NULL, found, NULL);
        assert_true(r == 0 || r == (i % 2 ? -ECANCELED : -ETIMEDOUT));
    }
}

/* A connection is not waited for beyond its time where the name servers say nothing, as when the network is
 * gone; nor is an address. (With getaddrinfo in the caller's thread it takes as long as the resolver likes.)
 */
static void test_silent_name_servers(void **state)
{
    (void)state;
    char found[HOST_ADDRESS_MAX];
    struct err e = {0};
    int fd = -1;
    assert_int_equal(sock_connect_tcp("silent.test:80", 50, &fd, &e), -ETIMEDOUT);
    assert_non_null(strstr(e.text, "silent.test: no answer of the name servers for 50 ms"));
    assert_int_equal(fd, -1);
    assert_int_equal(host_address("silent.test", 50, NULL, found, &e), -ETIMEDOUT);
    atomic_store(&is_over, true);
    while (atomic_load(&n_silent) > 0)
        sys->sleep_ns(1000000);
}

/* The thread that asks, which may be there for long after its caller has gone on, takes no signal of the
 * program; the caller's own are as before. (Without start_thread it takes them.) */
static void test_signals_are_the_programs(void **state)
{
    (void)state;
    char found[HOST_ADDRESS_MAX];
    sigset_t blocked;
    struct err e = {0};
    atomic_store(&is_over, true);
    atomic_store(&takes_signals, false);
    assert_int_equal(host_address("silent.test", 60000, NULL, found, &e), -EADDRNOTAVAIL);
    assert_false(atomic_load(&takes_signals));
    assert_int_equal(pthread_sigmask(SIG_BLOCK, NULL, &blocked), 0);
    assert_false(sigismember(&blocked, SIGTERM));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_addresses),
        cmocka_unit_test(test_no_name),
        cmocka_unit_test(test_who_does_not_wait),
        cmocka_unit_test(test_silent_name_servers),
        cmocka_unit_test(test_signals_are_the_programs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

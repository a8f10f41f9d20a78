/* layer: net */
/* threaded */
#include "base/quit.h"
#include "net/host.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_addresses),
        cmocka_unit_test(test_no_name),
        cmocka_unit_test(test_who_does_not_wait),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* layer: server */
/* The division of --memory and the measurement of what is used. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "server/memory.h"

static uint64_t sum(const struct memory_plan *p)
{
    return p->control_cache_bytes + p->control_write_bytes + p->store_bytes + p->heads_bytes +
           p->answers_bytes + p->documents_bytes + p->wire_bytes + p->budget_bytes;
}

/* The shares leave room for the process itself, at every size that the option allows, and grow with it. */
static void shares_stay_below_the_whole(void **state)
{
    struct memory_plan before = memory_divide(64 * MIB);
    for (uint64_t m = 64 * MIB; m <= TIB; m += m / 7) {
        struct memory_plan p = memory_divide(m);
        assert_true(sum(&p) <= m - m / 16);
        assert_true(p.budget_bytes >= before.budget_bytes && p.store_bytes >= before.store_bytes);
        assert_true(p.wire_bytes > 8 * MIB); /* the largest frame fits */
        before = p;
    }
}

/* What is measured follows what is allocated. */
static void measures_what_is_allocated(void **state)
{
    struct memory_use before = memory_measure();
    size_t n = 32 * MIB;
    char *p = malloc(n);
    assert_non_null(p);
    for (size_t i = 0; i < n; i += 4096)
        ((volatile char *)p)[i] = 1;
    struct memory_use after = memory_measure();
    assert_true(before.anon_bytes > 0 && before.file_bytes > 0);
    assert_true(after.anon_bytes >= before.anon_bytes + 30 * MIB);
    free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shares_stay_below_the_whole),
        cmocka_unit_test(measures_what_is_allocated),
    };
    return cmocka_run_group_tests_name("server_memory", tests, NULL, NULL);
}

/* layer: base */
#include "base/library.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define FUNCTIONS(X)                                                                                         \
    X(len)                                                                                                   \
    X(cmp)
#define LACKING(X)                                                                                           \
    X(len)                                                                                                   \
    X(_forebay_none)

struct table {
#define X(name) __typeof__(str##name) *name;
    FUNCTIONS(X)
#undef X
};

static struct table table, of_none, of_less;
static struct library library = LIBRARY("libc.so.6", "str", FUNCTIONS, table);
static struct library missing = LIBRARY("libforebay-none.so.7", "str", FUNCTIONS, of_none);
static struct library lacking = LIBRARY("libc.so.6", "str", LACKING, of_less);

/* Each function of the table is the one of its name, and loading again changes nothing. */
static void functions_are_found_by_name(void **state)
{
    assert_int_equal(library_load(&library, NULL), 0);
    assert_int_equal(table.len("four"), 4);
    assert_true(table.cmp("a", "b") < 0);
    struct table before = table;
    assert_int_equal(library_load(&library, NULL), 0);
    assert_memory_equal(&table, &before, sizeof(table));
}

/* A library that is not installed is named, each time that it is asked for. */
static void missing_library_is_named(void **state)
{
    for (int i = 0; i < 2; i++) {
        struct err e = {0};
        assert_int_equal(library_load(&missing, &e), -ELIBACC);
        assert_non_null(strstr(e.text, "libforebay-none.so.7"));
    }
}

/* So is a function that the library does not have. */
static void missing_function_is_named(void **state)
{
    struct err e = {0};
    assert_int_equal(library_load(&lacking, &e), -ELIBACC);
    assert_non_null(strstr(e.text, "str_forebay_none"));
    assert_int_equal(library_load(&lacking, NULL), -ELIBACC);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(functions_are_found_by_name),
        cmocka_unit_test(missing_library_is_named),
        cmocka_unit_test(missing_function_is_named),
    };
    return cmocka_run_group_tests_name("library", tests, NULL, NULL);
}

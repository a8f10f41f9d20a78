/* layer: base */
#include "base/library.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

struct table {
    size_t (*strlen)(const char *);
    int (*abs)(int);
};

/* Each function of the table is the one of its name, and loading again changes nothing. */
static void functions_are_found_by_name(void **state)
{
    static const char *const names[] = {"strlen", "abs"};
    static struct table table;
    static struct library library = LIBRARY("libc.so.6", names, table);
    assert_int_equal(library_load(&library, NULL), 0);
    assert_int_equal(table.strlen("four"), 4);
    assert_int_equal(table.abs(-7), 7);
    struct table before = table;
    assert_int_equal(library_load(&library, NULL), 0);
    assert_memory_equal(&table, &before, sizeof(table));
}

/* A library that is not installed is named, each time that it is asked for. */
static void missing_library_is_named(void **state)
{
    static const char *const names[] = {"strlen", "abs"};
    static struct table table;
    static struct library library = LIBRARY("libforebay-none.so.7", names, table);
    for (int i = 0; i < 2; i++) {
        struct err e = {0};
        assert_int_equal(library_load(&library, &e), -ELIBACC);
        assert_non_null(strstr(e.text, "libforebay-none.so.7"));
    }
}

/* So is a function that the library does not have. */
static void missing_function_is_named(void **state)
{
    static const char *const names[] = {"strlen", "forebay_none"};
    static struct table table;
    static struct library library = LIBRARY("libc.so.6", names, table);
    struct err e = {0};
    assert_int_equal(library_load(&library, &e), -ELIBACC);
    assert_non_null(strstr(e.text, "forebay_none"));
    assert_int_equal(library_load(&library, NULL), -ELIBACC);
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

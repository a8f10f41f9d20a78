/* layer: base */
#include "base/id.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

/* New ids differ and are not zero. */
static void new_ids_differ(void **state)
{
    struct id128 a, b;
    id_new(&a);
    id_new(&b);
    assert_false(id_eq(a, b) || id_is_zero(a) || id_is_zero(b));
    assert_true(id_eq(a, a) && id_is_zero((struct id128){{0}}));
}

/* Those of a time come behind those of an earlier one, and differ from others of the same time. */
static void ids_of_a_time_are_in_its_order(void **state)
{
    static const uint64_t times[] = {0, 1, 255, 256, 1ull << 32, 1764510000000000000, UINT64_MAX};
    char before[ID_TEXT_SIZE] = "", text[ID_TEXT_SIZE];
    for (size_t i = 0; i < ARRAY_SIZE(times); i++) {
        struct id128 a, b;
        id_new_at(times[i], &a);
        id_new_at(times[i], &b);
        assert_false(id_eq(a, b));
        id_text(a, text);
        assert_true(strcmp(before, text) < 0);
        memcpy(before, text, sizeof before);
    }
}

/* The text form reads back. */
static void text_form_reads_back(void **state)
{
    struct id128 a = {{0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef, 0xfe, 0xdc, 0xba, 0x98, 0x76, 0x54,
                       0x32, 0x10}},
                 b;
    char text[ID_TEXT_SIZE];
    id_text(a, text);
    assert_string_equal(text, "0123456789abcdeffedcba9876543210");
    assert_int_equal(id_parse(slice_str(text), &b), 0);
    assert_true(id_eq(a, b));
}

/* Nothing but 32 lower-case hex digits is an id, and a refused text changes nothing. */
static void other_texts_are_refused(void **state)
{
    static const char *const bad[] = {"",
                                      "0123456789abcdeffedcba987654321",
                                      "0123456789abcdeffedcba98765432100",
                                      "0123456789ABCDEFFEDCBA9876543210",
                                      "0123456789abcdeffedcba987654321g",
                                      " 123456789abcdeffedcba9876543210"};
    struct id128 a, b;
    id_new(&a);
    b = a;
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
        assert_int_equal(id_parse(slice_str(bad[i]), &b), -EINVAL);
    assert_true(id_eq(a, b));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(new_ids_differ),
        cmocka_unit_test(ids_of_a_time_are_in_its_order),
        cmocka_unit_test(text_form_reads_back),
        cmocka_unit_test(other_texts_are_refused),
    };
    return cmocka_run_group_tests_name("id", tests, NULL, NULL);
}

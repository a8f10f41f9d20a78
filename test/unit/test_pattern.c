/* layer: base */
#include "base/pattern.h"

#include "base/hash.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define N 10000

/* Any piece made by itself is the same piece of the whole, and checks as such. */
static void pieces_are_those_of_the_whole(void **state)
{
    struct pattern p = pattern_of(7, SLICE_LIT("name"));
    static char whole[N], piece[N];
    pattern_fill(p, 0, whole, N);
    for (uint64_t i = 0; i < 500; i++) {
        size_t from = hash_mix(1, i) % N, n = hash_mix(2, i) % (N - from + 1);
        pattern_fill(p, from, piece, n);
        assert_memory_equal(piece, whole + from, n);
        assert_int_equal(pattern_check(p, from, whole + from, n), -1);
    }
    assert_int_equal(pattern_check(p, 0, whole, 0), -1);
}

/* Any flipped bit is found, at its place. */
static void a_flipped_bit_is_found(void **state)
{
    struct pattern p = pattern_of(7, SLICE_LIT("name"));
    static char bytes[N];
    for (uint64_t i = 0; i < 300; i++) {
        size_t at = hash_mix(3, i) % N;
        uint64_t offset = i % 2 ? 5 * GIB + 17 : 3;
        pattern_fill(p, offset, bytes, N);
        bytes[at] = (char)(bytes[at] ^ 1 << i % 8);
        assert_int_equal(pattern_check(p, offset, bytes, N), (int64_t)(offset + at));
    }
}

/* Bytes of another file, of another seed or of another place are wrong, also when moved by whole lines or
 * megabytes; so are zeros. */
static void other_bytes_are_wrong(void **state)
{
    struct pattern p = pattern_of(7, SLICE_LIT("name"));
    static char bytes[N], zeros[N];
    static const uint64_t moved[] = {1, 64, 4096, MIB, GIB};
    for (size_t i = 0; i < ARRAY_SIZE(moved); i++) {
        pattern_fill(p, moved[i], bytes, N);
        assert_true(pattern_check(p, 0, bytes, N) >= 0);
    }
    pattern_fill(pattern_of(7, SLICE_LIT("nane")), 0, bytes, N);
    assert_true(pattern_check(p, 0, bytes, N) >= 0);
    pattern_fill(pattern_of(8, SLICE_LIT("name")), 0, bytes, N);
    assert_true(pattern_check(p, 0, bytes, N) >= 0);
    assert_true(pattern_check(p, 0, zeros, N) >= 0);
}

/* The bytes themselves: files made by one version are checked by another. */
static void the_bytes_do_not_change(void **state)
{
    static const unsigned char expected[16] = {0xb0, 0x8f, 0x58, 0x00, 0x24, 0x6e, 0x0a, 0x62,
                                               0x99, 0x45, 0x59, 0x8d, 0xe0, 0xe7, 0x41, 0x00};
    unsigned char bytes[16];
    pattern_fill((struct pattern){1}, 64, bytes, sizeof(bytes));
    assert_memory_equal(bytes, expected, sizeof(bytes));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_are_those_of_the_whole),
        cmocka_unit_test(a_flipped_bit_is_found),
        cmocka_unit_test(other_bytes_are_wrong),
        cmocka_unit_test(the_bytes_do_not_change),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* layer: base */
#include "base/crc32c.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

/* The vectors of RFC 3720, appendix B.4 (values as numbers), and the usual check value. */
static void published_vectors(void **state)
{
    unsigned char zeros[32] = {0}, ones[32], up[32], down[32];
    static const unsigned char scsi_read[48] = {
        0x01, 0xc0, [16] = 0x14, [22] = 0x04, [27] = 0x14, [31] = 0x18, [32] = 0x28, [40] = 0x02};
    memset(ones, 0xff, sizeof(ones));
    for (unsigned i = 0; i < 32; i++) {
        up[i] = (unsigned char)i;
        down[i] = (unsigned char)(31 - i);
    }
    assert_int_equal(crc32c(0, zeros, 32), 0x8a9136aa);
    assert_int_equal(crc32c(0, ones, 32), 0x62a8ab43);
    assert_int_equal(crc32c(0, up, 32), 0x46dd794e);
    assert_int_equal(crc32c(0, down, 32), 0x113fdb5c);
    assert_int_equal(crc32c(0, scsi_read, 48), 0xd9963a56);
    assert_int_equal(crc32c(0, "123456789", 9), 0xe3069283);
}

/* The definition, bit by bit: reflected polynomial 0x82f63b78, inverted in and out. */
static uint32_t by_definition(const unsigned char *p, size_t n)
{
    uint32_t crc = ~(uint32_t)0;
    for (size_t i = 0; i < n; i++) {
        crc ^= p[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78 : 0);
    }
    return ~crc;
}

/* All lengths and alignments around the sizes where fast implementations change their method. */
static void agrees_with_the_definition(void **state)
{
    static unsigned char data[4200];
    for (size_t i = 0; i < sizeof(data); i++)
        data[i] = (unsigned char)(i * 197 + i / 251);
    for (size_t shift = 0; shift < 9; shift++)
        for (size_t n = 0; n < 300; n++)
            assert_int_equal(crc32c(0, data + shift, n), by_definition(data + shift, n));
    for (size_t n = 4000; n < 4200; n += 7)
        assert_int_equal(crc32c(0, data, n), by_definition(data, n));
}

/* Feeding pieces gives the value of the whole, wherever it is cut; nothing fed changes nothing. */
static void pieces(void **state)
{
    static const char text[] = "the quick brown fox jumps over the lazy dog, twice";
    const uint32_t whole = crc32c(0, text, sizeof(text));
    for (size_t cut = 0; cut <= sizeof(text); cut++)
        assert_int_equal(crc32c(crc32c(0, text, cut), text + cut, sizeof(text) - cut), whole);
    assert_int_equal(crc32c(whole, NULL, 0), whole);
    assert_int_equal(crc32c(0, NULL, 0), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_vectors),
        cmocka_unit_test(agrees_with_the_definition),
        cmocka_unit_test(pieces),
    };
    return cmocka_run_group_tests_name("crc32c", tests, NULL, NULL);
}

/* layer: s3 */
/* Checksums of bodies against published values, and independence of how the bytes were cut. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/text.h"
#include "s3/checksum.h"

static void digest_hex(enum checksum_kind kind, struct slice data, char *ret_hex)
{
    struct checksum c;
    uint8_t digest[CHECKSUM_MAX_BYTES];
    size_t n;

    checksum_init(&c, kind);
    checksum_update(&c, data.p, data.n);
    n = checksum_final(&c, digest);
    checksum_fini(&c);
    text_hex(digest, n, ret_hex);
}

/* The check values of the CRC catalogue, and the digests of RFC 1321 and FIPS 180, for "123456789" and "abc".
 */
static void published_values_come_out(void **state)
{
    static const struct {
        enum checksum_kind kind;
        const char *text, *hex;
    } rows[] = {
        {CHECKSUM_CRC32, "123456789", "cbf43926"},
        {CHECKSUM_CRC32C, "123456789", "e3069283"},
        {CHECKSUM_CRC64NVME, "123456789", "ae8b14860a799888"},
        {CHECKSUM_MD5, "abc", "900150983cd24fb0d6963f7d28e17f72"},
        {CHECKSUM_SHA1, "abc", "a9993e364706816aba3e25717850c26c9cd0d89d"},
        {CHECKSUM_SHA256, "abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        {CHECKSUM_CRC32, "", "00000000"},
        {CHECKSUM_CRC64NVME, "", "0000000000000000"},
    };
    (void)state;

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        char hex[2 * CHECKSUM_MAX_BYTES + 1];

        digest_hex(rows[i].kind, slice_str(rows[i].text), hex);
        assert_string_equal(hex, rows[i].hex);
    }
}

/* Each kind gives the same value for one update and for every way to cut the bytes in two. */
static void cutting_does_not_matter(void **state)
{
    char data[61], whole[2 * CHECKSUM_MAX_BYTES + 1], parts[2 * CHECKSUM_MAX_BYTES + 1];
    (void)state;

    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (char)(i * 37 + 11);
    for (int kind = CHECKSUM_CRC32; kind <= CHECKSUM_MD5; kind++) {
        digest_hex((enum checksum_kind)kind, slice_of(data, sizeof data), whole);
        for (size_t cut = 0; cut <= sizeof data; cut++) {
            struct checksum c;
            uint8_t digest[CHECKSUM_MAX_BYTES];

            checksum_init(&c, (enum checksum_kind)kind);
            checksum_update(&c, data, cut);
            checksum_update(&c, data + cut, sizeof data - cut);
            text_hex(digest, checksum_final(&c, digest), parts);
            checksum_fini(&c);
            assert_string_equal(parts, whole);
        }
    }
}

/* Header names are found in any case; names that only begin alike are not. */
static void header_names_are_recognised(void **state)
{
    static const char *const others[] = {"x-amz-checksum-crc32",     "x-amz-checksum-type",
                                         "x-amz-checksum-Algorithm", "x-amz-checksum-mode",
                                         "x-amz-checksum-",          "x-amz-meta-checksum-sha512"};
    (void)state;
    assert_int_equal(checksum_of_header(SLICE_LIT("x-amz-checksum-crc32")), CHECKSUM_CRC32);
    assert_int_equal(checksum_of_header(SLICE_LIT("X-Amz-Checksum-CRC64NVME")), CHECKSUM_CRC64NVME);
    assert_int_equal(checksum_of_header(SLICE_LIT("x-amz-checksum-sha256")), CHECKSUM_SHA256);
    assert_int_equal(checksum_of_header(SLICE_LIT("x-amz-checksum-md5")), CHECKSUM_NONE);
    assert_int_equal(checksum_of_header(SLICE_LIT("x-amz-checksum-type")), CHECKSUM_NONE);
    assert_int_equal(checksum_of_header(SLICE_LIT("x-amz-checksum-")), CHECKSUM_NONE);
    assert_int_equal(checksum_of_header(SLICE_LIT("x-amz-date")), CHECKSUM_NONE);
    assert_int_equal(checksum_of_name(SLICE_LIT("CRC32C")), CHECKSUM_CRC32C);
    assert_int_equal(checksum_of_name(SLICE_LIT("MD5")), CHECKSUM_NONE);
    assert_true(checksum_header_is_unknown(SLICE_LIT("X-Amz-Checksum-SHA512")));
    assert_true(checksum_header_is_unknown(SLICE_LIT("x-amz-checksum-md5")));
    for (size_t i = 0; i < ARRAY_SIZE(others); i++)
        assert_false(checksum_header_is_unknown(slice_str(others[i])));
}

/* The checksum of two pieces is that of the whole, wherever it is cut; empty pieces too. */
static void test_checksums_combine(void **state)
{
    const enum checksum_kind kinds[] = {CHECKSUM_CRC32, CHECKSUM_CRC32C, CHECKSUM_CRC64NVME};
    const size_t cuts[] = {0, 1, 7, 4096, 99999, 100000};
    _cleanup_free_ char *bytes = malloc(100000);

    (void)state;
    assert_non_null(bytes);
    for (size_t i = 0; i < 100000; i++)
        bytes[i] = (char)(i * 31 + (i >> 9));
    for (size_t k = 0; k < ARRAY_SIZE(kinds); k++) {
        assert_true(checksum_combines(kinds[k]));
        for (size_t c = 0; c < ARRAY_SIZE(cuts); c++) {
            const size_t from[] = {0, cuts[c], 0};
            uint8_t sums[3][CHECKSUM_MAX_BYTES];

            for (size_t i = 0; i < 3; i++) {
                struct checksum sum;

                checksum_init(&sum, kinds[k]);
                checksum_update(&sum, bytes + from[i], (i == 0 ? cuts[c] : 100000) - from[i]);
                (void)checksum_final(&sum, sums[i]);
                checksum_fini(&sum);
            }
            checksum_combine(kinds[k], sums[0], sums[1], 100000 - cuts[c]);
            assert_memory_equal(sums[0], sums[2], checksum_bytes(kinds[k]));
        }
    }
    assert_false(checksum_combines(CHECKSUM_SHA256));
    assert_false(checksum_combines(CHECKSUM_NONE));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_checksums_combine),
        cmocka_unit_test(published_values_come_out),
        cmocka_unit_test(cutting_does_not_matter),
        cmocka_unit_test(header_names_are_recognised),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

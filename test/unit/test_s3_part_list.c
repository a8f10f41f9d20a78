/* layer: s3 */
/* Checksums of uploads in parts, and the list of parts that is kept: what is accepted, what comes out, byte
 * by byte. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "s3/part_list.h"

/* The type that S3 takes when none is given, and the combinations that it refuses. */
static void what_an_upload_may_ask_for(void **state)
{
    static const struct {
        const char *algorithm, *type;
        enum s3_error error;
        enum checksum_kind kind;
        bool whole;
    } rows[] = {
        {"", "", S3_OK, CHECKSUM_NONE, false},
        {"CRC32", "", S3_OK, CHECKSUM_CRC32, false},
        {"crc32c", "COMPOSITE", S3_OK, CHECKSUM_CRC32C, false},
        {"CRC32C", "FULL_OBJECT", S3_OK, CHECKSUM_CRC32C, true},
        {"CRC64NVME", "", S3_OK, CHECKSUM_CRC64NVME, true},
        {"SHA1", "", S3_OK, CHECKSUM_SHA1, false},
        {"SHA256", "COMPOSITE", S3_OK, CHECKSUM_SHA256, false},
        {"SHA256", "FULL_OBJECT", S3_ERR_INVALID_REQUEST, 0, false},
        {"CRC64NVME", "COMPOSITE", S3_ERR_INVALID_REQUEST, 0, false},
        {"MD5", "", S3_ERR_INVALID_REQUEST, 0, false},
        {"CRC32", "SOME", S3_ERR_INVALID_REQUEST, 0, false},
        {"", "COMPOSITE", S3_ERR_INVALID_REQUEST, 0, false},
    };
    (void)state;

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        const char *reason = NULL;
        struct part_sums s = {0};

        assert_int_equal(part_sums_plan(slice_str(rows[i].algorithm), slice_str(rows[i].type), &s, &reason),
                         rows[i].error);
        assert_int_equal(reason != NULL, rows[i].error != S3_OK);
        assert_int_equal(s.kind, rows[i].kind);
        assert_int_equal(s.whole, rows[i].whole);
    }
}

/* What an upload remembers reads back as it was; uploads of before, whose tag has no type, are read too. */
static void tags_of_uploads(void **state)
{
    static const struct part_sums all[] = {
        {CHECKSUM_NONE, false},   {CHECKSUM_CRC32, false}, {CHECKSUM_CRC32, true},
        {CHECKSUM_CRC32C, false}, {CHECKSUM_CRC32C, true}, {CHECKSUM_CRC64NVME, true},
        {CHECKSUM_SHA256, false},
    };
    struct part_sums s;
    char tag[PART_SUMS_TAG_SIZE];
    (void)state;

    for (size_t i = 0; i < ARRAY_SIZE(all); i++) {
        s = part_sums_of_tag(slice_str(part_sums_tag(&all[i], tag)));
        assert_int_equal(s.kind, all[i].kind);
        assert_int_equal(s.whole, all[i].whole);
    }
    s = part_sums_of_tag(SLICE_LIT("crc32"));
    assert_true(s.kind == CHECKSUM_CRC32 && !s.whole);
    s = part_sums_of_tag(SLICE_LIT("crc64nvme"));
    assert_true(s.kind == CHECKSUM_CRC64NVME && s.whole);
    assert_int_equal(part_sums_of_tag(SLICE_LIT("other")).kind, CHECKSUM_NONE);
}

/* Parts with the bytes of "hello ", "wor" and "ld". */
static void make_parts(enum checksum_kind kind, struct part_entry v[3])
{
    static const char *const text[] = {"hello ", "wor", "ld"};

    for (size_t i = 0; i < 3; i++) {
        struct checksum c;

        v[i] = (struct part_entry){.number = (uint32_t)(2 * i + 1), .size = strlen(text[i]), .has_sum = true};
        checksum_init(&c, kind);
        checksum_update(&c, text[i], v[i].size);
        (void)checksum_final(&c, v[i].sum);
        checksum_fini(&c);
    }
}

/* One of all bytes is the checksum of the bytes; one of the parts is that of their checksums, with their
 * number behind it. The values come from zlib and hashlib of Python. */
static void the_checksum_of_the_object(void **state)
{
    static const struct {
        struct part_sums sums;
        const char *expected;
    } rows[] = {
        {{CHECKSUM_CRC32, true}, "crc32 DUoRhQ=="},
        {{CHECKSUM_CRC32, false}, "crc32 9Epnzg==-3"},
        {{CHECKSUM_SHA256, false}, "sha256 vKDmuIymAoRsSW68dLoEVGZROZBQbLTKn/ogE/z4u2k=-3"},
        {{CHECKSUM_SHA1, false}, "sha1 Zu42ScqVvHjax4EmDdDWvibG/xQ=-3"},
    };
    struct part_entry v[3];
    (void)state;

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        _cleanup_buf_ struct buf b = BUF_INIT(128);

        make_parts(rows[i].sums.kind, v);
        part_sums_of_object(&rows[i].sums, v, 3, &b);
        assert_string_equal(b.p, rows[i].expected);
        buf_clear(&b);
        v[1].has_sum = false; /* one that nobody knows spoils all */
        part_sums_of_object(&rows[i].sums, v, 3, &b);
        assert_int_equal(b.n, 0);
    }
}

/* The list as part_list.h describes it, byte by byte. */
static void golden_list(void **state)
{
    static const uint8_t golden[] = {
        1,    1,    0, 0, 2,    0, 0, 0, /* format, CRC32, of the parts', two parts */
        1,    0,    6, 0, 0,    0, 0, 0, 0, 0, 0xaa, 0xbb, 0xcc, 0xdd, /* number 1, 6 bytes */
        0x10, 0x27, 0, 0, 0x50, 0, 0, 0, 0, 0, 1,    2,    3,    4,    /* number 10000, 5 MiB */
    };
    const struct part_sums sums = {CHECKSUM_CRC32, false};
    const struct part_entry v[] = {
        {.number = 1, .size = 6, .has_sum = true, .sum = {0xaa, 0xbb, 0xcc, 0xdd}},
        {.number = 10000, .size = 5 * MIB, .has_sum = true, .sum = {1, 2, 3, 4}},
    };
    _cleanup_buf_ struct buf b = BUF_INIT(PART_LIST_MAX_BYTES);
    struct part_entry one = {0};
    struct part_list l;
    (void)state;

    assert_int_equal(part_list_encode(&sums, v, 2, &b), 0);
    assert_int_equal(b.n, sizeof golden);
    assert_memory_equal(b.p, golden, sizeof golden);
    assert_int_equal(part_list_decode(buf_view(&b), &l), 0);
    assert_true(l.n == 2 && l.sums.kind == CHECKSUM_CRC32 && !l.sums.whole);
    assert_true(part_list_find(&l, 10000, &one));
    assert_true(one.offset == 6 && one.size == 5 * MIB && one.has_sum);
    assert_memory_equal(one.sum, v[1].sum, 4);
    assert_false(part_list_find(&l, 2, &one));
    for (size_t n = 0; n < b.n; n++) /* nothing shorter is a list */
        assert_int_equal(part_list_decode(slice_of(b.p, n), &l), ERR_CORRUPT);
}

/* Parts are numbered from 1 to 10,000, and nothing else is a number of one. */
static void numbers_of_parts(void **state)
{
    static const char *const bad[] = {
        "", "0", "10001", "-1", "+1", " 1", "1 ", "1.0", "0x1", "4294967297", "18446744073709551617"};
    const char *reason = NULL;
    uint32_t number = 0;
    (void)state;

    assert_int_equal(part_list_number(SLICE_LIT("1"), &number, &reason), S3_OK);
    assert_int_equal(number, 1);
    assert_int_equal(part_list_number(SLICE_LIT("10000"), &number, &reason), S3_OK);
    assert_int_equal(number, 10000);
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
        if (part_list_number(slice_str(bad[i]), &number, &reason) != S3_ERR_INVALID_ARGUMENT)
            fail_msg("'%s'", bad[i]);
    assert_non_null(reason);
    assert_int_equal(part_list_number(SLICE_NULL, &number, &reason), S3_ERR_INVALID_ARGUMENT);
}

/* A list without checksums has none, also when only some parts had one. The largest fits the maximum. */
static void lists_without_checksums(void **state)
{
    const struct part_sums sums = {CHECKSUM_SHA256, false};
    struct part_entry *v = calloc(PART_LIST_NUMBER_MAX, sizeof *v);
    _cleanup_buf_ struct buf b = BUF_INIT(PART_LIST_MAX_BYTES);
    struct part_cursor at = {0};
    struct part_entry one;
    struct part_list l;
    (void)state;

    assert_non_null(v);
    for (uint32_t i = 0; i < PART_LIST_NUMBER_MAX; i++)
        v[i] = (struct part_entry){.number = i + 1, .size = i, .has_sum = true};
    assert_int_equal(part_list_encode(&sums, v, PART_LIST_NUMBER_MAX, &b), 0);
    assert_int_equal(b.n, PART_LIST_MAX_BYTES);
    buf_clear(&b);
    v[77].has_sum = false;
    assert_int_equal(part_list_encode(&sums, v, PART_LIST_NUMBER_MAX, &b), 0);
    assert_int_equal(part_list_decode(buf_view(&b), &l), 0);
    assert_true(l.sums.kind == CHECKSUM_NONE && l.n == PART_LIST_NUMBER_MAX);
    for (uint64_t i = 0, offset = 0; i < l.n; offset += i, i++) {
        assert_true(part_list_next(&l, &at, &one));
        assert_true(one.number == i + 1 && one.size == i && one.offset == offset && !one.has_sum);
    }
    assert_false(part_list_next(&l, &at, &one));
    free(v);
}

/* What breaks a list: numbers that do not rise, unknown kinds and formats, sizes that no file has. */
static void broken_lists(void **state)
{
    static const uint8_t good[] = {1, 0, 0, 0, 2, 0, 0, 0, 1, 0, 6, 0, 0, 0,
                                   0, 0, 0, 0, 2, 0, 1, 0, 0, 0, 0, 0, 0, 0};
    static const struct {
        size_t at;
        uint8_t value;
    } rows[] = {{0, 2}, {1, 6}, {1, 1},  {2, 2},     {4, 0},     {4, 1},    {4, 3},
                {8, 0}, {8, 2}, {18, 1}, {19, 0x28}, {17, 0x80}, {27, 0x7f}};
    struct part_list l;
    (void)state;

    assert_int_equal(part_list_decode(slice_of((const char *)good, sizeof good), &l), 0);
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        uint8_t bad[sizeof good];
        bool same_size = rows[i].at != 27;

        memcpy(bad, good, sizeof good);
        bad[rows[i].at] = rows[i].value;
        if (!same_size) /* two sizes that fit by themselves */
            bad[17] = 0x7f;
        assert_int_equal(part_list_decode(slice_of((const char *)bad, sizeof bad), &l), ERR_CORRUPT);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_an_upload_may_ask_for),
        cmocka_unit_test(tags_of_uploads),
        cmocka_unit_test(the_checksum_of_the_object),
        cmocka_unit_test(golden_list),
        cmocka_unit_test(numbers_of_parts),
        cmocka_unit_test(lists_without_checksums),
        cmocka_unit_test(broken_lists),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

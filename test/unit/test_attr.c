/* layer: namespace */
#include "namespace/attr.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static const struct attr sample = {
    .has_meta = true,
    .size_bytes = 0x0102030405060708,
    .mtime_ns = 1767225600000000000,
    .confirmed_ns = 1767225601000000000,
    .etag = {"abc", 3},
    .content_type = {"a/b", 3},
    .meta = {"k: v\n", 5},
};

/* The bytes on disk are these; another layout needs another format number. */
static void test_encoding_is_the_documented_one(void **state)
{
    (void)state;
    static const uint8_t golden[] = {
        0x01, 0x01, 0x08, 0x07, 0x06, 0x05, 0x04, 0x03, 0x02, 0x01, 0x00, 0x00, 0xfa,
        0xed, 0x51, 0x72, 0x86, 0x18, 0x00, 0xca, 0x94, 0x29, 0x52, 0x72, 0x86, 0x18,
    };
    _cleanup_buf_ struct buf b = BUF_INIT(ATTR_BLOB_MAX_BYTES);
    assert_int_equal(attr_encode(&sample, &b), 0);
    assert_int_equal(b.n, 26 + 5 + 5 + 7);
    assert_memory_equal(b.p, golden, sizeof(golden));
    assert_memory_equal(b.p + 26, "\x03\0abc\x03\0a/b\x05\0k: v\n", 17);
}

/* What is encoded comes back. */
static void test_attributes_come_back(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf b = BUF_INIT(ATTR_BLOB_MAX_BYTES);
    assert_int_equal(attr_encode(&sample, &b), 0);
    struct attr got;
    assert_int_equal(attr_decode(buf_view(&b), &got), 0);
    assert_true(got.has_meta && !got.is_directory && !got.is_absent);
    assert_int_equal(got.size_bytes, sample.size_bytes);
    assert_int_equal(got.mtime_ns, sample.mtime_ns);
    assert_int_equal(got.confirmed_ns, sample.confirmed_ns);
    assert_true(slice_eq(got.etag, sample.etag));
    assert_true(slice_eq(got.content_type, sample.content_type));
    assert_true(slice_eq(got.meta, sample.meta));
}

/* What the same version has now counts; a checksum that was verified here stays until the origin tells one.
 */
static void test_metadata_of_now_is_taken(void **state)
{
    (void)state;
    _cleanup_(arena_freep) struct arena *arena = arena_new(64 * KIB);
    struct attr a = sample;
    a.has_meta = false;
    a.meta = SLICE_LIT("k: v\nx-amz-checksum: crc32 AAAAAA==\n");
    struct origin_attr now = {
        .mtime_ns = 77, .content_type = SLICE_LIT("c/d"), .meta = SLICE_LIT("x-amz-meta-new: 1\n")};
    attr_take_meta(&a, &now, arena);
    assert_true(a.has_meta);
    assert_int_equal(a.mtime_ns, 77);
    assert_true(slice_eq_str(a.content_type, "c/d"));
    assert_true(slice_eq_str(a.meta, "x-amz-meta-new: 1\nx-amz-checksum: crc32 AAAAAA==\n"));
    now.mtime_ns = 0; /* the origin says nothing of it */
    now.meta = SLICE_LIT("x-amz-checksum: sha1 BBBB\n");
    attr_take_meta(&a, &now, arena);
    assert_int_equal(a.mtime_ns, 77);
    assert_true(slice_eq_str(a.meta, "x-amz-checksum: sha1 BBBB\n"));
    assert_int_equal(a.size_bytes, sample.size_bytes);
    assert_true(slice_eq(a.etag, sample.etag));
}

/* Every shorter or longer blob, and every other format number, is refused. */
static void test_damaged_blobs_are_refused(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf b = BUF_INIT(ATTR_BLOB_MAX_BYTES);
    assert_int_equal(attr_encode(&sample, &b), 0);
    struct attr got;
    for (size_t n = 0; n < b.n; n++)
        assert_int_equal(attr_decode(slice_of(b.p, n), &got), ERR_CORRUPT);
    assert_int_equal(buf_char(&b, 'x'), 0);
    assert_int_equal(attr_decode(buf_view(&b), &got), ERR_CORRUPT);
    b.p[0] = 2;
    assert_int_equal(attr_decode(slice_of(b.p, b.n - 1), &got), ERR_CORRUPT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_encoding_is_the_documented_one),
        cmocka_unit_test(test_attributes_come_back),
        cmocka_unit_test(test_metadata_of_now_is_taken),
        cmocka_unit_test(test_damaged_blobs_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

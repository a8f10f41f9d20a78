/* layer: base */
#include "base/le.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

/* The bytes of a number are these, wherever they stand, and its neighbours are left alone. */
static void bytes_are_these(void **state)
{
    for (size_t at = 1; at < 9; at++) {
        uint8_t p[18], le[18], be[18];
        memset(p, 0xee, sizeof(p));
        memset(le, 0xee, sizeof(le));
        memset(be, 0xee, sizeof(be));
        memcpy(le + at, "\x08\x07\x06\x05\x04\x03\x02\xf1", 8);
        memcpy(be + at, "\xf1\x02\x03\x04\x05\x06\x07\x08", 8);
        le_put64(p + at, 0xf102030405060708);
        assert_memory_equal(p, le, sizeof(p));
        assert_true(le_get64(p + at) == 0xf102030405060708);
        be_put64(p + at, 0xf102030405060708);
        assert_memory_equal(p, be, sizeof(p));
        assert_true(be_get64(p + at) == 0xf102030405060708);

        memcpy(le + at, "\x04\x03\x02\xf1\x05\x06\x07\x08", 8);
        memcpy(be + at, "\xf1\x02\x03\x04", 4);
        le_put32(p + at, 0xf1020304);
        assert_memory_equal(p, le, sizeof(p));
        assert_true(le_get32(p + at) == 0xf1020304);
        be_put32(p + at, 0xf1020304);
        assert_memory_equal(p, be, sizeof(p));
        assert_true(be_get32(p + at) == 0xf1020304);

        memcpy(le + at, "\x02\xf1\x03\x04", 4);
        memcpy(be + at, "\xf1\x02", 2);
        le_put16(p + at, 0xf102);
        assert_memory_equal(p, le, sizeof(p));
        assert_int_equal(le_get16(p + at), 0xf102);
        be_put16(p + at, 0xf102);
        assert_memory_equal(p, be, sizeof(p));
        assert_int_equal(be_get16(p + at), 0xf102);
    }
}

#define RECORD      "\x81\x02\xf1\x04\x03\x02\xf1\x08\x07\x06\x05\x04\x03\x02\xf1\x03\x00key\x00\x00raw"
#define RECORD_SIZE 25

static void read_record(struct slice s, bool *ret_all, struct slice *ret_text)
{
    struct le_reader r = le_reader_of(s);
    uint8_t small = le_take8(&r);
    uint16_t medium = le_take16(&r);
    uint32_t large = le_take32(&r);
    uint64_t largest = le_take64(&r);
    struct slice text = le_take_text(&r, /* max= */ 3), none = le_take_text(&r, /* max= */ 0);
    struct slice raw = le_take(&r, 3);
    *ret_all = le_took_all(&r);
    *ret_text = text;
    assert_true(small == 0x81 || s.n < 1);
    assert_true(medium == 0xf102 || (s.n < 3 && medium == 0));
    assert_true(large == 0xf1020304 || (s.n < 7 && large == 0));
    assert_true(largest == 0xf102030405060708 || (s.n < 15 && largest == 0));
    assert_true(slice_eq_str(text, "key") || (s.n < 20 && text.n == 0));
    assert_int_equal(none.n, 0);
    assert_true(slice_eq_str(raw, "raw") || (s.n < RECORD_SIZE && raw.n == 0));
}

/* What is read is what stands there. Of every shorter form the reader knows that it was cut, and of a longer
 * one that something is left. */
static void reads_in_order(void **state)
{
    static_assert(sizeof(RECORD) == RECORD_SIZE + 1, "no escape reaches further than it should");
    for (size_t n = 0; n <= RECORD_SIZE + 1; n++) {
        _cleanup_free_ char *cut = malloc(MAX(n, (size_t)1)); /* a sanitizer sees who reads behind it */
        struct slice text;
        bool all;
        assert_non_null(cut);
        memcpy(cut, RECORD, n);
        read_record(slice_of(cut, n), &all, &text);
        assert_int_equal(all, n == RECORD_SIZE);
        assert_true(text.n == 0 || text.p == cut + 17); /* borrowed */
    }
}

/* After a failure nothing is read any more, also what would be there. */
static void reader_stays_bad(void **state)
{
    struct le_reader r = le_reader_of(SLICE_LIT("\1\2\3"));
    assert_int_equal(le_take32(&r), 0);
    assert_int_equal(le_take8(&r), 0);
    assert_int_equal(le_take(&r, 0).n, 0);
    assert_false(le_took_all(&r));
}

/* A text over its limit is bad, even when it is there. */
static void text_has_a_limit(void **state)
{
    struct le_reader at_limit = le_reader_of(SLICE_LIT("\2\0ab")), above = at_limit;
    assert_true(slice_eq_str(le_take_text(&at_limit, 2), "ab"));
    assert_true(le_took_all(&at_limit));
    assert_int_equal(le_take_text(&above, 1).n, 0);
    assert_false(le_took_all(&above));
}

static int write_record(struct buf *b)
{
    struct le_writer w = le_writer_of(b);
    le_add8(&w, 0x81);
    le_add16(&w, 0xf102);
    le_add32(&w, 0xf1020304);
    le_add64(&w, 0xf102030405060708);
    le_add_text(&w, SLICE_LIT("key"));
    le_add_text(&w, SLICE_NULL);
    le_add(&w, SLICE_LIT("raw"));
    return le_add_end(&w);
}

/* A writer gives these bytes behind what was there; one whose buffer is too small, by however much, leaves it
 * as it was. */
static void writes_all_or_nothing(void **state)
{
    for (size_t max = 3; max <= 3 + RECORD_SIZE; max++) {
        _cleanup_buf_ struct buf b = BUF_INIT(max);
        bool fits = max == 3 + RECORD_SIZE;
        assert_int_equal(buf_str(&b, "old"), 0);
        assert_int_equal(write_record(&b), fits ? 0 : -E2BIG);
        assert_int_equal(b.n, fits ? 3 + RECORD_SIZE : 3);
        assert_memory_equal(b.p, "old" RECORD, b.n);
        assert_int_equal(b.p[b.n], '\0');
    }
    _cleanup_buf_ struct buf none = BUF_INIT(0);
    assert_int_equal(write_record(&none), -E2BIG);
    assert_int_equal(none.n, 0);
}

/* A text that its length field cannot hold is refused, and what follows is not written either. */
static void longest_text(void **state)
{
    _cleanup_free_ char *text = calloc(1, UINT16_MAX + 1);
    assert_non_null(text);
    for (size_t n = UINT16_MAX; n <= UINT16_MAX + 1; n++) {
        _cleanup_buf_ struct buf b = BUF_INIT(1 << 20);
        struct le_writer w = le_writer_of(&b);
        le_add8(&w, 1);
        le_add_text(&w, slice_of(text, n));
        le_add8(&w, 2);
        assert_int_equal(le_add_end(&w), n > UINT16_MAX ? -E2BIG : 0);
        assert_int_equal(b.n, n > UINT16_MAX ? 0 : 1 + 2 + UINT16_MAX + 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_are_these),  cmocka_unit_test(reads_in_order),
        cmocka_unit_test(reader_stays_bad), cmocka_unit_test(text_has_a_limit),
        cmocka_unit_test(longest_text),     cmocka_unit_test(writes_all_or_nothing),
    };
    return cmocka_run_group_tests_name("le", tests, NULL, NULL);
}

/* layer: store */
/* What is on disk stays readable: golden bytes, refusal of everything else, epochs, and the vectors of
 * placement. */
#include "base/text.h"
#include "store/placement.h"
#include "store/store.h"
#include "store/store_format.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

/* Computed by an independent program from the tables in store_format.h. */
#define ENTRY_GOLDEN                                                                                         \
    "010104004596c036000102030405060708090a0b0c0d0e0f563412000000000007000000000000008877665544332211"       \
    "0900000002000000000000000000000061747472"
#define CHUNK_GOLDEN                                                                                         \
    "01000a00a849c6210500000000000000090211111111000000000000000033333333000000000000000000000000000000"     \
    "000000000099999999"

#define HARD_GOLDEN                                                                                          \
    "0100000092caa77d56341200000000000000200000000000887766554433221101000000000000000000000000000000"
#define HARD_ONE_GOLDEN                                                                                      \
    "010000001206ea93e803000000000000001000000000000007000000000000000000000000000000efbeadde00000000"
#define HARD_CHUNK_GOLDEN "010002009542225688776655443322111111111122222222"

static void assert_hex(struct slice s, const char *hex)
{
    _cleanup_free_ char *text = malloc(2 * s.n + 1);
    assert_non_null(text);
    text_hex(s.p, s.n, text);
    assert_string_equal(text, hex);
}

static struct format_entry example_entry(void)
{
    struct format_entry r = {.flags = FORMAT_ENTRY_COMPLETE,
                             .size_bytes = 0x123456,
                             .epoch = 7,
                             .last_read_ms = 0x1122334455667788,
                             .data_set = 9,
                             .present_blocks = 2,
                             .attr = SLICE_LIT("attr")};
    for (unsigned i = 0; i < 16; i++)
        r.id.b[i] = (uint8_t)i;
    return r;
}

/* An entry record has the bytes of its table, and comes back as it was. */
static void test_entry_record(void **state)
{
    struct buf _cleanup_buf_ b = BUF_INIT(KIB);
    struct format_entry r = example_entry(), back;
    format_entry_encode(&r, &b);
    assert_hex(buf_view(&b), ENTRY_GOLDEN);
    assert_int_equal(format_entry_decode(buf_view(&b), &back), 0);
    assert_true(id_eq(back.id, r.id) && slice_eq(back.attr, r.attr));
    assert_true(back.flags == r.flags && back.size_bytes == r.size_bytes && back.epoch == r.epoch);
    assert_true(back.last_read_ms == r.last_read_ms && back.data_set == 9 && back.present_blocks == 2);
}

/* A chunk record likewise. */
static void test_chunk_record(void **state)
{
    struct buf _cleanup_buf_ b = BUF_INIT(8 * KIB);
    struct format_chunk r = {.epoch = 5, .n_blocks = 10}, back;
    r.present[0] = 0x09;
    r.present[1] = 0x02;
    r.crc[0] = 0x11111111;
    r.crc[3] = 0x33333333;
    r.crc[9] = 0x99999999;
    format_chunk_encode(&r, &b);
    assert_hex(buf_view(&b), CHUNK_GOLDEN);
    assert_int_equal(format_chunk_decode(buf_view(&b), &back), 0);
    assert_memory_equal(&back, &r, sizeof(r));
    r.n_blocks = FORMAT_CHUNK_BLOCKS;
    format_chunk_encode(&r, &b);
    assert_int_equal(b.n, FORMAT_CHUNK_MAX_BYTES);
    assert_int_equal(format_chunk_decode(buf_view(&b), &back), 0);
}

/* Hard records and their chunks likewise. */
static void test_hard_records(void **state)
{
    struct buf _cleanup_buf_ b = BUF_INIT(8 * KIB);
    struct format_hard r = {.size_bytes = 0x123456,
                            .allocated_bytes = 0x200000,
                            .generation = 0x1122334455667788,
                            .n_chunks = 1},
                       back;
    format_hard_encode(&r, &b);
    assert_hex(buf_view(&b), HARD_GOLDEN);
    assert_int_equal(format_hard_decode(buf_view(&b), &back), 0);
    assert_memory_equal(&back, &r, sizeof(r));
    r = (struct format_hard){.size_bytes = 1000, .allocated_bytes = 4096, .generation = 7, .crc = 0xdeadbeef};
    format_hard_encode(&r, &b);
    assert_hex(buf_view(&b), HARD_ONE_GOLDEN);
    assert_int_equal(format_hard_decode(buf_view(&b), &back), 0);
    assert_memory_equal(&back, &r, sizeof(r));

    struct format_hard_chunk c = {.generation = 0x1122334455667788, .n_blocks = 2}, c_back = {0};
    c.crc[0] = 0x11111111;
    c.crc[1] = 0x22222222;
    format_hard_chunk_encode(&c, &b);
    assert_hex(buf_view(&b), HARD_CHUNK_GOLDEN);
    assert_int_equal(format_hard_chunk_decode(buf_view(&b), &c_back), 0);
    assert_memory_equal(&c_back, &c, sizeof(c));
    c.n_blocks = FORMAT_CHUNK_BLOCKS;
    format_hard_chunk_encode(&c, &b);
    assert_int_equal(b.n, FORMAT_HARD_CHUNK_MAX);
    assert_int_equal(format_hard_chunk_decode(buf_view(&b), &c_back), 0);
}

/* Hard records whose fields contradict each other are refused although their checksum is right. */
static void test_hard_contradictions(void **state)
{
    struct buf _cleanup_buf_ b = BUF_INIT(KIB);
    static const struct format_hard bad[] = {
        {.size_bytes = 1000, .n_chunks = 1},     /* one block: its checksum is in the record */
        {.size_bytes = 2 * MIB, .crc = 5},       /* more than one: it is not */
        {.size_bytes = 0, .crc = 5},             /* no block */
        {.size_bytes = 2 * MIB, .n_chunks = 2},  /* more chunks than there are */
        {.size_bytes = (uint64_t)INT64_MAX + 1}, /* no file is that large */
    };
    struct format_hard back;
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        format_hard_encode(&bad[i], &b);
        assert_int_equal(format_hard_decode(buf_view(&b), &back), -EBADMSG);
    }
}

/* Keys sort by letter, id and chunk number. */
static void test_keys(void **state)
{
    struct format_key k;
    struct id128 id = example_entry().id, back;
    format_key_bytes('o', SLICE_LIT("b/k"), &k);
    assert_true(slice_eq_str(format_key_view(&k), "ob/k"));
    format_key_chunk(id, 0x01020304, &k);
    assert_hex(format_key_view(&k), "63000102030405060708090a0b0c0d0e0f01020304");
    assert_int_equal(format_key_parse_id(format_key_view(&k), &back), 0);
    assert_true(id_eq(id, back));
    format_key_hard_chunk(id, 0x0102030405, &k);
    assert_hex(format_key_view(&k), "6b000102030405060708090a0b0c0d0e0f0000000102030405");
    assert_int_equal(format_key_parse_id(format_key_view(&k), &back), 0);
    format_key_id('x', id, &k);
    assert_hex(format_key_view(&k), "78000102030405060708090a0b0c0d0e0f");
    assert_int_equal(format_key_parse_id(format_key_view(&k), &back), 0);
    k.n--;
    assert_int_equal(format_key_parse_id(format_key_view(&k), &back), -EBADMSG);
}

static int decode(int kind, struct slice s)
{
    struct format_entry e;
    struct format_chunk c;
    struct format_hard h;
    struct format_hard_chunk hc;
    return kind == 0   ? format_entry_decode(s, &e)
           : kind == 1 ? format_chunk_decode(s, &c)
           : kind == 2 ? format_hard_decode(s, &h)
                       : format_hard_chunk_decode(s, &hc);
}

/* Every single changed bit and every other length is refused, by each decoder that has a checksum. */
static void test_damage_is_refused(void **state)
{
    struct buf _cleanup_buf_ b = BUF_INIT(8 * KIB);
    struct format_entry entry = example_entry();
    struct format_chunk chunk = {.epoch = 5, .n_blocks = 10};
    struct format_hard hard = {.size_bytes = 3 * MIB, .n_chunks = 1};
    struct format_hard_chunk hard_chunk = {.generation = 5, .n_blocks = 3};
    for (int kind = 0; kind < 4; kind++) {
        if (kind == 0)
            format_entry_encode(&entry, &b);
        else if (kind == 1)
            format_chunk_encode(&chunk, &b);
        else if (kind == 2)
            format_hard_encode(&hard, &b);
        else
            format_hard_chunk_encode(&hard_chunk, &b);
        for (size_t bit = 0; bit < 8 * b.n; bit++) {
            b.p[bit / 8] ^= (char)(1 << bit % 8);
            assert_int_equal(decode(kind, buf_view(&b)), -EBADMSG);
            b.p[bit / 8] ^= (char)(1 << bit % 8);
        }
        for (size_t n = 0; n < b.n; n++)
            assert_int_equal(decode(kind, slice_of(b.p, n)), -EBADMSG);
    }
}

/* Records whose fields contradict each other are refused although their checksum is right. */
static void test_contradictions_are_refused(void **state)
{
    struct buf _cleanup_buf_ b = BUF_INIT(KIB);
    struct format_entry r = example_entry(), back;
    r.present_blocks = 1; /* complete, but one of two */
    format_entry_encode(&r, &b);
    assert_int_equal(format_entry_decode(buf_view(&b), &back), -EBADMSG);
    r.flags = 0;
    format_entry_encode(&r, &b);
    assert_int_equal(format_entry_decode(buf_view(&b), &back), 0);
    r.present_blocks = 3; /* more than there are */
    format_entry_encode(&r, &b);
    assert_int_equal(format_entry_decode(buf_view(&b), &back), -EBADMSG);
    r.present_blocks = 2; /* all, but not complete */
    format_entry_encode(&r, &b);
    assert_int_equal(format_entry_decode(buf_view(&b), &back), -EBADMSG);
    r.present_blocks = 0;
    r.size_bytes = STORE_SIZE_MAX_BYTES + 1;
    format_entry_encode(&r, &b);
    assert_int_equal(format_entry_decode(buf_view(&b), &back), -EBADMSG);
}

/* Counts and epochs come back as they were; ranges out of order are refused. */
static void test_small_records(void **state)
{
    struct buf _cleanup_buf_ b = BUF_INIT(2 * KIB);
    struct format_count count = {0x1234, 7}, count_back;
    format_count_encode(&count, &b);
    assert_hex(buf_view(&b), "34120000000000000700000000000000");
    assert_int_equal(format_count_decode(buf_view(&b), &count_back), 0);
    assert_memory_equal(&count, &count_back, sizeof(count));
    assert_int_equal(format_count_decode(slice_of(b.p, 15), &count_back), -EBADMSG);

    struct format_epoch epoch = {.durable = 9, .n_ranges = 2, .ranges = {{1, 2}, {5, 9}}}, epoch_back;
    format_epoch_encode(&epoch, &b);
    assert_hex(buf_view(&b),
               "09000000000000000100000000000000020000000000000005000000000000000900000000000000");
    assert_int_equal(format_epoch_decode(buf_view(&b), &epoch_back), 0);
    assert_memory_equal(&epoch, &epoch_back, sizeof(epoch));
    assert_int_equal(format_epoch_decode(slice_of(b.p, 12), &epoch_back), -EBADMSG);
    epoch.ranges[1].first = 2;
    format_epoch_encode(&epoch, &b);
    assert_int_equal(format_epoch_decode(buf_view(&b), &epoch_back), -EBADMSG);
    epoch.ranges[1] = (struct format_range){5, 10}; /* suspect, but not behind the durable one */
    format_epoch_encode(&epoch, &b);
    assert_int_equal(format_epoch_decode(buf_view(&b), &epoch_back), -EBADMSG);
}

/* Distrust covers exactly the epochs since the durable one, for ever, however often it happens. */
static void test_distrust(void **state)
{
    struct format_epoch r = {.durable = 4};
    format_epoch_distrust(&r, 6);
    assert_int_equal(r.durable, 6);
    for (uint64_t e = 0; e < 10; e++)
        assert_int_equal(format_epoch_is_suspect(&r, e), e == 5 || e == 6);
    format_epoch_distrust(&r, 8); /* adjacent: one range */
    assert_int_equal(r.n_ranges, 1);
    assert_true(format_epoch_is_suspect(&r, 7) && format_epoch_is_suspect(&r, 8) &&
                !format_epoch_is_suspect(&r, 9));

    struct buf _cleanup_buf_ b = BUF_INIT(2 * KIB);
    r = (struct format_epoch){0};
    bool suspect[1000] = {0};
    for (int i = 0; i < 3 * FORMAT_RANGES_MAX; i++) {
        r.durable += 3; /* some good epochs */
        suspect[r.durable + 1] = suspect[r.durable + 2] = true;
        format_epoch_distrust(&r, r.durable + 2);
        struct format_epoch back;
        format_epoch_encode(&r, &b);
        assert_int_equal(format_epoch_decode(buf_view(&b), &back), 0);
        uint64_t wrong = 0;
        for (uint64_t e = 0; e < ARRAY_SIZE(suspect); e++) {
            assert_true(!suspect[e] || format_epoch_is_suspect(&r, e));
            wrong += !suspect[e] && format_epoch_is_suspect(&r, e);
        }
        /* Only the oldest range grows when the table is full. */
        assert_true(i < FORMAT_RANGES_MAX ? wrong == 0 : wrong == (uint64_t)(i - FORMAT_RANGES_MAX + 1) * 3);
    }
}

/* The mark has the four lines of its description; anything else is refused, a later version by a code of its
 * own. */
static void test_disk_mark(void **state)
{
    struct buf _cleanup_buf_ b = BUF_INIT(FORMAT_DISK_FILE_MAX);
    struct format_disk r = {.id = example_entry().id, .boot = "a-b-c", .clean = true}, back;
    format_disk_encode(&r, &b);
    const char *text = "forebay-disk 1\nid 000102030405060708090a0b0c0d0e0f\nboot a-b-c\nstate clean\n";
    assert_true(slice_eq_str(buf_view(&b), text));
    assert_int_equal(format_disk_decode(buf_view(&b), &back), 0);
    assert_true(id_eq(back.id, r.id) && back.clean && strcmp(back.boot, "a-b-c") == 0);
    for (size_t n = 0; n < b.n; n++)
        assert_true(format_disk_decode(slice_of(b.p, n), &back) < 0);
    const char *bad[] = {
        "",
        "forebay-disk 1\n",
        "forebay-disk 1\nid 00\nboot x\nstate clean\n",
        "forebay-disk 1\nid 000102030405060708090a0b0c0d0e0f\nboot x\nstate dirty\n",
        "forebay-disk 1\nid 000102030405060708090a0b0c0d0e0f\nboot x\nstate clean\nmore\n",
    };
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
        assert_int_equal(format_disk_decode(slice_str(bad[i]), &back), -EBADMSG);
    const char *later[] = {
        "forebay-disk 2\nid 000102030405060708090a0b0c0d0e0f\nboot x\nstate clean\n",
        "forebay-disk 2\nid 000102030405060708090a0b0c0d0e0f\nboot x\nstate clean\nmore 1\n",
        "forebay-disk 10\nall is different\n",
    };
    for (size_t i = 0; i < ARRAY_SIZE(later); i++)
        assert_int_equal(format_disk_decode(slice_str(later[i]), &back), -EPROTONOSUPPORT);
}

/* Blocks and counted bytes of a size. */
static void test_sizes(void **state)
{
    assert_int_equal(format_blocks(0), 0);
    assert_int_equal(format_blocks(1), 1);
    assert_int_equal(format_blocks(MIB), 1);
    assert_int_equal(format_blocks(MIB + 1), 2);
    assert_int_equal(format_charge(0, 0), 0);
    assert_int_equal(format_charge(1, 1), 4096);
    assert_int_equal(format_charge(5 * MIB + 1, 2), 2 * MIB);
    assert_int_equal(format_charge(5 * MIB + 1, 6), 5 * MIB + 4096);
}

/* Placement, against an independent program that computed logarithms to 60 digits. */
static void test_placement_vectors(void **state)
{
    assert_int_equal(placement_neglog2(0), 274877906944);
    assert_int_equal(placement_neglog2(1), 270582939648);
    assert_int_equal(placement_neglog2(2), 268070544839);
    assert_int_equal(placement_neglog2(0x7fffffffffffffff), 4294967296);
    assert_int_equal(placement_neglog2(0xfffffffffffffffe), 1);
    assert_int_equal(placement_neglog2(0xffffffffffffffff), 1);
    assert_int_equal(placement_neglog2(0x0123456789abcdef), 33559934675);
    assert_int_equal(placement_neglog2(0xdeadbeefcafebabe), 864062718);

    struct placement_place places[4];
    const uint64_t weights[4] = {100, 100, 200, 50};
    for (int i = 0; i < 4; i++) {
        memset(places[i].id.b, i + 1, sizeof(places[i].id.b));
        places[i].weight = weights[i];
    }
    struct {
        struct slice key;
        uint32_t order[4];
    } cases[] = {
        {SLICE_NULL, {2, 1, 3, 0}},
        {SLICE_LIT("a"), {1, 2, 0, 3}},
        {SLICE_LIT("b/key"), {1, 2, 0, 3}},
        {SLICE_LIT("photos/0001.jpg"), {3, 1, 2, 0}},
        {SLICE_LIT("photos/0002.jpg"), {3, 2, 1, 0}},
        {SLICE_LIT("\x00\xff\x00\xff\x00\xff\x00\xff\x00\xff\x00\xff\x00\xff\x00\xff"), {3, 0, 1, 2}},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        uint32_t order[4];
        placement_order(places, 4, cases[i].key, order);
        assert_memory_equal(order, cases[i].order, sizeof(order));
    }
    uint64_t first[4] = {0};
    for (int i = 0; i < 4500; i++) {
        char key[16];
        uint32_t order[4];
        placement_order(places, 4, slice_of(key, (size_t)sprintf(key, "k%d", i)), order);
        first[order[0]]++;
    }
    assert_true(first[0] == 997 && first[1] == 973 && first[2] == 2040 && first[3] == 490);
}

/* Removing a place moves only its own keys. */
static void test_placement_moves_little(void **state)
{
    struct placement_place places[5];
    for (int i = 0; i < 5; i++) {
        memset(places[i].id.b, i + 1, sizeof(places[i].id.b));
        places[i].weight = 1;
    }
    for (int i = 0; i < 1000; i++) {
        char key[16];
        uint32_t with[5], without[4];
        struct slice k = slice_of(key, (size_t)sprintf(key, "k%d", i));
        placement_order(places, 5, k, with);
        placement_order(places, 4, k, without);
        size_t n = 0;
        for (size_t j = 0; j < 5; j++)
            if (with[j] != 4)
                assert_int_equal(with[j], without[n++]);
    }
}

/* Messages name an entry as a person can look it up: the bucket's number and the key, or plain text; never
 * cut short by a zero byte, never longer than their room. */
static void test_key_text(void **state)
{
    char text[FORMAT_KEY_TEXT_MAX], key[4000];
    assert_string_equal(format_key_text(SLICE_LIT("\0\0\0\0\0\0\1\2dir/na me"), text), "#258/dir/na me");
    assert_string_equal(format_key_text(SLICE_LIT("\0\0\0\0\0\0\0\7"), text), "#7/");
    assert_string_equal(format_key_text(SLICE_LIT("plain \xc3\xa9"), text), "plain \xc3\xa9");
    assert_string_equal(format_key_text(SLICE_LIT("a\nb\0c\x7f"), text), "a\\x0ab\\x00c\\x7f");
    assert_string_equal(format_key_text(SLICE_NULL, text), "");
    for (int c = 1; c < 128; c += 63) {
        memset(key, c, sizeof(key));
        size_t n = strlen(format_key_text(slice_of(key, sizeof(key)), text));
        assert_in_range(n, FORMAT_KEY_TEXT_MAX - 10, FORMAT_KEY_TEXT_MAX - 1);
        assert_string_equal(text + n - 3, "...");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_entry_record),
        cmocka_unit_test(test_chunk_record),
        cmocka_unit_test(test_hard_records),
        cmocka_unit_test(test_hard_contradictions),
        cmocka_unit_test(test_keys),
        cmocka_unit_test(test_key_text),
        cmocka_unit_test(test_damage_is_refused),
        cmocka_unit_test(test_contradictions_are_refused),
        cmocka_unit_test(test_small_records),
        cmocka_unit_test(test_distrust),
        cmocka_unit_test(test_disk_mark),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_placement_vectors),
        cmocka_unit_test(test_placement_moves_little),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

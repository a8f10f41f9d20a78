/* layer: namespace */
/* Records of uploads in parts: their bytes, refusal of everything else, and what walks and removals find. */
#include "namespace/upload.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static const struct id128 id = {{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}};

static const uint8_t golden_key[] = {'m', 'u', 0, 0, 0, 0, 0, 0,  1,  2,  0,  1,  2,
                                     3,   4,   5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
static const uint8_t golden_upload[] = {1, 0,   8,   7,   6,   5,   4,   3,   2,   1,   1,   0,    'k',
                                        3, 0,   'a', '/', 'b', 5,   0,   'm', ':', ' ', '1', '\n', 2,
                                        0, 'o', 'i', 5,   0,   'c', 'r', 'c', '3', '2', 0,   0};
static const uint8_t golden_part[] = {1, 0, 0, 80, 0,   0,   0, 0, 0,   9,   0,   0, 0, 0,   0,
                                      0, 0, 2, 0,  'e', '1', 3, 0, 'o', 'e', '1', 2, 0, 'f', 'f'};

static const struct upload_record upload = {.id = {{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}},
                                            .at_ns = 0x0102030405060708,
                                            .key = SLICE_LIT("k"),
                                            .content_type = SLICE_LIT("a/b"),
                                            .meta = SLICE_LIT("m: 1\n"),
                                            .origin_id = SLICE_LIT("oi"),
                                            .tag = SLICE_LIT("crc32")};
static const struct upload_part_record part = {.number = 7,
                                               .size_bytes = 5 * MIB,
                                               .at_ns = 9,
                                               .etag = SLICE_LIT("e1"),
                                               .origin_etag = SLICE_LIT("oe1"),
                                               .checksum = SLICE_LIT("ff")};

static int setup(void **state)
{
    struct kv *kv;
    assert_int_equal(kv_open_memory(&kv), 0);
    *state = kv;
    return 0;
}

static int teardown(void **state)
{
    kv_close(*state);
    return 0;
}

static void assert_bytes(const struct buf *b, const uint8_t *golden, size_t n)
{
    assert_int_equal(b->n, n);
    assert_memory_equal(b->p, golden, n);
}

/* Keys and values as version 1 writes them, byte by byte, and what it reads out of them. */
static void test_records_are_golden(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf b = BUF_INIT(UPLOAD_RECORD_MAX);
    upload_key(0x102, id, &b);
    assert_bytes(&b, golden_key, sizeof(golden_key));
    upload_part_key(0x102, id, 7, &b);
    assert_int_equal(b.n, sizeof(golden_key) + 2);
    assert_true(b.p[1] == 'p' && memcmp(b.p + 2, golden_key + 2, sizeof(golden_key) - 2) == 0);
    assert_memory_equal(b.p + sizeof(golden_key), "\0\7", 2);
    buf_clear(&b);
    assert_int_equal(upload_encode(&upload, &b), 0);
    assert_bytes(&b, golden_upload, sizeof(golden_upload));
    struct upload_record u = {0};
    assert_int_equal(upload_decode(slice_of(golden_upload, sizeof(golden_upload)), &u), 0);
    assert_true(!u.completed && u.at_ns == upload.at_ns && slice_eq(u.key, upload.key));
    assert_true(slice_eq(u.content_type, upload.content_type) && slice_eq(u.meta, upload.meta));
    assert_true(slice_eq(u.origin_id, upload.origin_id) && slice_eq(u.tag, upload.tag) && u.etag.n == 0);
    buf_clear(&b);
    assert_int_equal(upload_part_encode(&part, &b), 0);
    assert_bytes(&b, golden_part, sizeof(golden_part));
    struct upload_part_record p = {0};
    assert_int_equal(upload_part_decode(slice_of(golden_part, sizeof(golden_part)), &p), 0);
    assert_true(p.size_bytes == part.size_bytes && p.at_ns == 9 && slice_eq(p.etag, part.etag));
    assert_true(slice_eq(p.origin_etag, part.origin_etag) && slice_eq(p.checksum, part.checksum));
}

/* The same of an upload that is here, version 2: the file behind the upload, the place behind the part. */
static void test_records_of_what_is_here_are_golden(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf b = BUF_INIT(UPLOAD_RECORD_MAX);
    uint8_t location[UPLOAD_LOCATION], golden[64] = {2, 0, 8, 7, 6, 5, 4, 3, 2, 1, 1, 0, 'k'};
    const uint8_t golden_place[] = {2, 0, 0, 80, 0,   0,   0, 0,  0, 9, 0,   0,   0, 0, 0,
                                    0, 0, 2, 0,  'e', '1', 0, 0,  2, 0, 'f', 'f', 0, 0, 160,
                                    0, 0, 0, 0,  0,   0,   0, 80, 0, 0, 0,   0,   0};
    for (size_t i = 0; i < sizeof(location); i++)
        location[i] = (uint8_t)(100 + i);
    memcpy(golden + 13 + 2 * 3 + 2, "t", 1);
    golden[13 + 2 * 3] = 1;
    memcpy(golden + 13 + 2 * 3 + 3 + 2, location, sizeof(location));
    struct upload_record u = {.id = id,
                              .at_ns = upload.at_ns,
                              .key = SLICE_LIT("k"),
                              .tag = SLICE_LIT("t"),
                              .location = slice_of(location, sizeof(location))};
    struct upload_record read;
    const size_t n = 13 + 2 * 3 + 3 + 2 + sizeof(location);
    assert_int_equal(upload_encode(&u, &b), 0);
    assert_bytes(&b, golden, n);
    assert_int_equal(upload_decode(buf_view(&b), &read), 0);
    assert_true(slice_eq(read.location, u.location) && slice_eq_str(read.tag, "t") && !read.completed);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(upload_decode(slice_of(golden, i), &read), ERR_CORRUPT);
    golden[1] = 1; /* completed: it has no file */
    assert_int_equal(upload_decode(slice_of(golden, n), &read), ERR_CORRUPT);
    golden[1] = 0;
    golden[0] = 1;
    assert_int_equal(upload_decode(slice_of(golden, n), &read), ERR_CORRUPT);
    buf_clear(&b);
    struct upload_part_record p = part, found;
    p.origin_etag = SLICE_NULL;
    p.is_here = true;
    p.offset = 10 * MIB;
    p.slot_bytes = 5 * MIB;
    assert_int_equal(upload_part_encode(&p, &b), 0);
    assert_bytes(&b, golden_place, sizeof(golden_place));
    assert_int_equal(upload_part_decode(buf_view(&b), &found), 0);
    assert_true(found.is_here && found.offset == 10 * MIB && found.slot_bytes == 5 * MIB);
    assert_true(slice_eq(found.etag, p.etag) && slice_eq(found.checksum, p.checksum));
    for (size_t i = 0; i < sizeof(golden_place); i++)
        assert_int_equal(upload_part_decode(slice_of(golden_place, i), &found), ERR_CORRUPT);
}

/* The same of an upload whose parts the origin has with checksums, version 3: but for the format it is as
 * version 1, and open. (Fails where the format is not written.) */
static void test_a_record_with_checksums_is_golden(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf b = BUF_INIT(UPLOAD_RECORD_MAX);
    uint8_t golden[sizeof(golden_upload)];
    struct upload_record u = upload, read;
    memcpy(golden, golden_upload, sizeof(golden));
    golden[0] = 3;
    u.gives_sums = true;
    assert_int_equal(upload_encode(&u, &b), 0);
    assert_bytes(&b, golden, sizeof(golden));
    assert_int_equal(upload_decode(buf_view(&b), &read), 0);
    assert_true(read.gives_sums && slice_eq(read.tag, u.tag) && read.location.n == 0);
    assert_int_equal(upload_decode(slice_of(golden_upload, sizeof(golden_upload)), &read), 0);
    assert_false(read.gives_sums);
    for (size_t i = 0; i < sizeof(golden); i++)
        assert_int_equal(upload_decode(slice_of(golden, i), &read), ERR_CORRUPT);
    golden[1] = 1; /* completed: its tag is the object's checksum */
    assert_int_equal(upload_decode(slice_of(golden, sizeof(golden)), &read), ERR_CORRUPT);
}

/* A value that ends early or late, or has another format or state, is refused. */
static void test_damage_is_refused(void **state)
{
    (void)state;
    struct upload_record u;
    struct upload_part_record p;
    for (size_t n = 0; n < sizeof(golden_upload); n++)
        assert_int_equal(upload_decode(slice_of(golden_upload, n), &u), ERR_CORRUPT);
    for (size_t n = 0; n < sizeof(golden_part); n++)
        assert_int_equal(upload_part_decode(slice_of(golden_part, n), &p), ERR_CORRUPT);
    uint8_t copy[sizeof(golden_upload) + 1] = {0};
    memcpy(copy, golden_upload, sizeof(golden_upload));
    assert_int_equal(upload_decode(slice_of(copy, sizeof(copy)), &u), ERR_CORRUPT);
    copy[1] = 2;
    assert_int_equal(upload_decode(slice_of(copy, sizeof(golden_upload)), &u), ERR_CORRUPT);
    copy[0] = 4;
    copy[1] = 0;
    assert_int_equal(upload_decode(slice_of(copy, sizeof(golden_upload)), &u), ERR_CORRUPT);
    uint8_t part_copy[sizeof(golden_part)];
    memcpy(part_copy, golden_part, sizeof(golden_part));
    part_copy[0] = 3; /* which no part has */
    assert_int_equal(upload_part_decode(slice_of(part_copy, sizeof(golden_part)), &p), ERR_CORRUPT);
}

struct seen {
    unsigned uploads, parts, last;
    uint64_t bucket;
};

static int see_upload(void *arg, uint64_t bucket, const struct upload_record *u)
{
    struct seen *s = arg;
    s->uploads++;
    s->bucket = bucket;
    s->last = u->id.b[0];
    return 0;
}

static int see_part(void *arg, const struct upload_part_record *p)
{
    struct seen *s = arg;
    assert_true(p->number > s->last);
    s->last = p->number;
    s->parts++;
    return s->parts == 3;
}

static unsigned count_parts(struct kv *kv, uint64_t bucket, struct id128 of)
{
    struct seen s = {0};
    (void)upload_each_part(kv, bucket, of, 0, see_part, &s, NULL);
    return s.parts;
}

/* What was saved is found, by bucket and behind a place; a completed upload has no parts; what is removed is
 * gone with its parts, and nothing else. */
static void test_walks_and_removals(void **state)
{
    struct kv *kv = *state;
    _cleanup_(arena_freep) struct arena *a = arena_new(64 * KIB);
    struct upload_record u = upload, found = {0};
    for (uint64_t bucket = 1; bucket <= 3; bucket++) {
        for (uint8_t first = 1; first <= 2; first++) {
            u.id.b[0] = first;
            assert_int_equal(upload_save(kv, bucket, &u, NULL), 0);
            struct upload_part_record p = part;
            for (p.number = 1; p.number <= UPLOAD_NUMBER_MAX; p.number += UPLOAD_NUMBER_MAX - 1)
                assert_int_equal(upload_save_part(kv, bucket, u.id, &p, NULL), 0);
        }
    }
    struct seen all = {0}, two = {0}, behind = {0}, parts = {.last = 1};
    assert_int_equal(upload_each(kv, 0, NULL, see_upload, &all, NULL), 0);
    assert_int_equal(upload_each(kv, 2, NULL, see_upload, &two, NULL), 0);
    assert_true(all.uploads == 6 && two.uploads == 2 && two.bucket == 2);
    u.id.b[0] = 1;
    assert_int_equal(upload_each(kv, 2, &u.id, see_upload, &behind, NULL), 0);
    assert_true(behind.uploads == 1 && behind.last == 2);
    assert_int_equal(upload_each_part(kv, 2, u.id, 1, see_part, &parts, NULL), 0);
    assert_true(parts.parts == 1 && parts.last == UPLOAD_NUMBER_MAX);

    u.completed = true;
    u.etag = SLICE_LIT("done-2");
    assert_int_equal(upload_save(kv, 2, &u, NULL), 0);
    assert_int_equal(upload_find(kv, 2, u.id, a, &found, NULL), 0);
    assert_true(found.completed && slice_eq(found.etag, u.etag) && id_eq(found.id, u.id));
    assert_int_equal(count_parts(kv, 2, u.id), 0);
    assert_int_equal(count_parts(kv, 1, u.id), 2);
    assert_int_equal(upload_remove(kv, 1, u.id, NULL), 0);
    assert_int_equal(upload_find(kv, 1, u.id, a, &found, NULL), -ENOENT);
    assert_int_equal(count_parts(kv, 1, u.id), 0);
    u.id.b[0] = 2;
    assert_int_equal(count_parts(kv, 1, u.id), 2);
    assert_int_equal(upload_remove_bucket(kv, 2, NULL), 0);
    assert_int_equal(count_parts(kv, 2, u.id), 0);
    assert_int_equal(count_parts(kv, 3, u.id), 2);
    all = (struct seen){0};
    assert_int_equal(upload_each(kv, 0, NULL, see_upload, &all, NULL), 0);
    assert_int_equal(all.uploads, 3);
}

/* A part that ends after its upload was completed or removed, as with a bucket that goes meanwhile, leaves no
 * record: nothing walks parts without an upload. (Without the check in upload_save_part it stays for ever.)
 */
static void test_no_part_without_its_upload(void **state)
{
    struct kv *kv = *state;
    struct upload_record u = upload;
    assert_int_equal(upload_save_part(kv, 1, u.id, &part, NULL), -ENOENT);
    assert_int_equal(upload_save(kv, 1, &u, NULL), 0);
    assert_int_equal(upload_save_part(kv, 1, u.id, &part, NULL), 0);
    assert_int_equal(count_parts(kv, 1, u.id), 1);
    u.completed = true;
    assert_int_equal(upload_save(kv, 1, &u, NULL), 0);
    assert_int_equal(upload_save_part(kv, 1, u.id, &part, NULL), -ENOENT);
    assert_int_equal(upload_remove_bucket(kv, 1, NULL), 0);
    assert_int_equal(upload_save_part(kv, 1, u.id, &part, NULL), -ENOENT);
    assert_int_equal(count_parts(kv, 1, u.id), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_records_are_golden),
        cmocka_unit_test(test_records_of_what_is_here_are_golden),
        cmocka_unit_test(test_a_record_with_checksums_is_golden),
        cmocka_unit_test(test_damage_is_refused),
        cmocka_unit_test_setup_teardown(test_walks_and_removals, setup, teardown),
        cmocka_unit_test_setup_teardown(test_no_part_without_its_upload, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

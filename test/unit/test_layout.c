/* layer: object */
#include "object/layout.h"

#include "base/buf.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

/* A file of which only the beginning and the end exist: everything between is zeros that nobody may look at.
 */
struct image {
    uint64_t size;
    struct buf head, tail;
};

static void image_init(struct image *f, uint64_t size)
{
    *f = (struct image){.size = size, .head = BUF_INIT(MIB), .tail = BUF_INIT(MIB)};
}

static void image_fini(struct image *f)
{
    buf_fini(&f->head);
    buf_fini(&f->tail);
}

static void put(struct buf *b, const void *p, size_t n)
{
    assert_int_equal(buf_append(b, p, n), 0);
}

static void put_le(struct buf *b, uint64_t v, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++) {
        char c = i < 8 ? (char)(v >> (8 * i)) : '\0';
        put(b, &c, 1);
    }
}

static struct slice image_at(const struct image *f, uint64_t offset, uint64_t n)
{
    uint64_t tail_at = f->size - f->tail.n;
    if (f->tail.n > 0 && offset >= tail_at)
        return slice_sub(buf_view(&f->tail), offset - tail_at, n);
    return slice_sub(buf_view(&f->head), offset, n);
}

/* Follows the looks. ret_looks: how many there were. */
static struct layout *look_at(const struct image *f, const char *name, bool at_end, unsigned *ret_looks)
{
    struct layout *l = NULL;
    struct layout_look look = layout_guess(slice_str(name), f->size, at_end);
    *ret_looks = 0;
    while (look.n > 0) {
        assert_true(*ret_looks < 4);
        assert_true(look.n <= LAYOUT_LOOK_MAX_BYTES && look.offset + look.n <= f->size);
        struct slice bytes = image_at(f, look.offset, look.n);
        assert_int_equal(bytes.n, look.n);
        layout_see(&look, bytes, f->size, &l);
        (*ret_looks)++;
    }
    if (l)
        layout_check(l, f->size);
    return l;
}

static struct layout *layout_of(const struct image *f, const char *name)
{
    unsigned looks;
    return look_at(f, name, /* at_end= */ false, &looks);
}

/* ---- safetensors ---- */

static void make_safetensors(struct image *f, uint64_t size, const char *json)
{
    image_init(f, size);
    put_le(&f->head, strlen(json), 8);
    put(&f->head, json, strlen(json));
}

#define TENSORS                                                                                              \
    "{\"__metadata__\":{\"data_offsets\":\"no\",\"x\":\"{[\\\"\"}, "                                         \
    "\"b\":{\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[2097152,8388608]},\n"                        \
    "\"a\" : {\"data_offsets\" : [ 0 , 2097152 ],\"shape\":[]},"                                             \
    "\"empty\":{\"data_offsets\":[0,0]}}"

/* The tensors of a safetensors file begin where its header says, in whatever order it names them; one without
 * bytes has no place. By the name or by the bytes, in two looks or three. */
static void test_safetensors_has_its_tensors(void **state)
{
    (void)state;
    static const char *const names[] = {"dir/m.safetensors", "m.SAFETENSORS", "model"};
    uint64_t base = 8 + strlen(TENSORS);
    for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
        struct image f;
        unsigned looks;
        make_safetensors(&f, base + 8 * MIB, TENSORS);
        struct layout *l = look_at(&f, names[i], false, &looks);
        assert_non_null(l);
        assert_int_equal(looks, i < 2 ? 2 : 3);
        assert_int_equal(l->kind, LAYOUT_SAFETENSORS);
        assert_int_equal(l->n, 2);
        assert_int_equal(l->starts[0], base);
        assert_int_equal(l->starts[1], base + 2 * MIB);
        assert_int_equal(l->end, base + 8 * MIB);
        assert_int_equal(layout_find(l, base - 1), -1);
        assert_int_equal(layout_find(l, base + 2 * MIB - 1), 0);
        assert_int_equal(layout_find(l, base + 2 * MIB), 1);
        assert_int_equal(layout_find(l, l->end), -1);
        layout_free(l);
        image_fini(&f);
    }
}

/* Headers that are none, or that name places outside the file, give no layout. */
static void test_broken_safetensors_has_none(void **state)
{
    (void)state;
    static const char *const headers[] = {
        "{}",
        "{\"a\":{\"data_offsets\":[0,99999999]}}",
        "{\"a\":{\"data_offsets\":[5,4]}}",
        "{\"a\":{\"data_offsets\":[-5,4]}}",
        "{\"a\":{\"data_offsets\":[0,18446744073709551616]}}",
        "{\"a\":{\"data_offsets\":[0,4}}",
        "{\"a\":{\"data_offsets\":[0,4]}",
        "{\"a\":{\"data_offsets\":[0,4]}}}",
        "{\"a\":{\"data_offsets",
        "{\"a\\",
        "{\"data_offsets\":[0,4]}",
    };
    for (size_t i = 0; i < ARRAY_SIZE(headers); i++) {
        struct image f;
        make_safetensors(&f, 16 * MIB, headers[i]);
        struct layout *l = layout_of(&f, "m.safetensors");
        if (i == 7) /* what follows the object is not looked at */
            assert_non_null(l);
        else
            assert_null(l);
        layout_free(l);
        image_fini(&f);
    }
}

/* A header longer than what is looked at, or than the file, is not asked for. */
static void test_long_header_is_not_looked_at(void **state)
{
    (void)state;
    uint64_t lengths[] = {LAYOUT_LOOK_MAX_BYTES + 1, 64 * MIB, UINT64_MAX, 1, 0};
    for (size_t i = 0; i < ARRAY_SIZE(lengths); i++) {
        struct image f;
        unsigned looks;
        image_init(&f, 32 * MIB);
        put_le(&f.head, lengths[i], 8);
        put(&f.head, "{", 1);
        assert_null(look_at(&f, "m.safetensors", false, &looks));
        assert_int_equal(looks, 1);
        image_fini(&f);
    }
}

/* ---- zip ---- */

struct member {
    uint64_t place;
    const char *name;
};

static void put_entry(struct buf *b, const struct member *m, bool wide)
{
    put(b, "PK\1\2", 4);
    put_le(b, 0, 16);
    put_le(b, 100, 4);
    put_le(b, wide ? UINT32_MAX : 100, 4);
    put_le(b, strlen(m->name), 2);
    put_le(b, wide ? 4 + 3 + 4 + 16 : 0, 2);
    put_le(b, 0, 2 + 8);
    put_le(b, wide ? UINT32_MAX : m->place, 4);
    put(b, m->name, strlen(m->name));
    if (!wide)
        return;
    put_le(b, 0x5455, 2); /* another program's field */
    put_le(b, 3, 2);
    put_le(b, 0, 3);
    put_le(b, 1, 2);
    put_le(b, 16, 2);
    put_le(b, 100, 8);
    put_le(b, m->place, 8);
}

/* A zip of `size` bytes; shift: bytes in front of it that its places do not count. */
static void make_zip(struct image *f, uint64_t size, const struct member *m, size_t n, bool wide,
                     uint64_t shift, const char *comment)
{
    image_init(f, size);
    size_t comment_n = strlen(comment);
    for (size_t i = 0; i < n; i++)
        put_entry(&f->tail, &m[i], wide);
    uint64_t directory_n = f->tail.n, records = wide ? 56 + 20 : 0;
    uint64_t place = size - comment_n - 22 - records - directory_n - shift;
    if (wide) {
        put(&f->tail, "PK\6\6", 4);
        put_le(&f->tail, 44, 8);
        put_le(&f->tail, 0, 12);
        put_le(&f->tail, n, 8);
        put_le(&f->tail, n, 8);
        put_le(&f->tail, directory_n, 8);
        put_le(&f->tail, place, 8);
        put(&f->tail, "PK\6\7", 4);
        put_le(&f->tail, 0, 4);
        put_le(&f->tail, place + directory_n, 8);
        put_le(&f->tail, 1, 4);
    }
    put(&f->tail, "PK\5\6", 4);
    put_le(&f->tail, 0, 4);
    put_le(&f->tail, wide ? 0xffff : n, 2);
    put_le(&f->tail, wide ? 0xffff : n, 2);
    put_le(&f->tail, wide ? UINT32_MAX : directory_n, 4);
    put_le(&f->tail, wide ? UINT32_MAX : place, 4);
    put_le(&f->tail, comment_n, 2);
    put(&f->tail, comment, comment_n);
    put(&f->head, "PK\3\4-----------", 15);
    /* The first look takes in more than the records: pad the front, as a member's bytes would. */
    struct buf padded = BUF_INIT(MIB);
    char zeros[1024] = {0};
    while (padded.n + f->tail.n < 70000 && padded.n + f->tail.n + sizeof(zeros) < size)
        put(&padded, zeros, sizeof(zeros));
    put(&padded, f->tail.p, f->tail.n);
    buf_fini(&f->tail);
    f->tail = padded;
}

/* The members of an archive begin where its directory says: small and zip64, with a comment, with bytes in
 * front of it, found by its name, by its beginning and by its end. */
static void test_zip_has_its_members(void **state)
{
    (void)state;
    static const struct member members[] = {{40 * MIB, "c.npy"}, {0, "a.npy"}, {3 * MIB, "b.npy"}};
    static const char *const names[] = {"x.npz", "x.pt", "x.bin"};
    for (unsigned i = 0; i < 24; i++) {
        bool wide = i % 2, at_end = i % 4 > 1;
        uint64_t shift = i / 4 % 2 ? 512 : 0;
        const char *name = names[i / 8], *comment = i / 8 < 2 && i % 3 ? "PK\5\6 a comment" : "";
        struct image f;
        unsigned looks;
        make_zip(&f, 64 * MIB, members, ARRAY_SIZE(members), wide, shift, comment);
        struct layout *l = look_at(&f, name, at_end, &looks);
        assert_non_null(l);
        assert_int_equal(l->kind, LAYOUT_ZIP);
        assert_int_equal(l->n, 3);
        assert_int_equal(l->starts[0], shift);
        assert_int_equal(l->starts[1], shift + 3 * MIB);
        assert_int_equal(l->starts[2], shift + 40 * MIB);
        assert_true(l->end > 63 * MIB && l->end < 64 * MIB);
        layout_free(l);
        image_fini(&f);
    }
}

/* Members smaller than a block are joined with what follows, so that an archive of many costs little; large
 * ones keep their beginnings. */
static void test_small_members_are_joined(void **state)
{
    (void)state;
    enum { MEMBERS = 2000 };
    struct member *m = calloc(MEMBERS, sizeof(*m));
    assert_non_null(m);
    for (uint64_t i = 0; i < MEMBERS; i++)
        m[i] = (struct member){i * 10 * KIB, "m"};
    m[MEMBERS - 1].place = 40 * MIB;
    struct image f;
    make_zip(&f, 64 * MIB, m, MEMBERS, false, 0, "");
    struct layout *l = layout_of(&f, "x.zip");
    assert_non_null(l);
    assert_true(l->n >= 15 && l->n <= 25);
    assert_int_equal(l->starts[l->n - 1], 40 * MIB);
    assert_int_equal(l->starts[l->n - 2], (MEMBERS - 2) * 10 * KIB);
    layout_free(l);
    image_fini(&f);
    free(m);
}

/* A directory cut short, or that is none, gives no layout. */
static void test_broken_zip_has_none(void **state)
{
    (void)state;
    static const struct member members[] = {{0, "a.npy"}, {3 * MIB, "b.npy"}};
    for (unsigned i = 0; i < 3; i++) {
        struct image f;
        make_zip(&f, 64 * MIB, members, ARRAY_SIZE(members), false, 0, "");
        char *p = f.tail.p + f.tail.n;
        if (i == 0)
            p[-22 - 2 * 51 + 28] = (char)0xff; /* the first name's length: beyond the directory */
        else if (i == 1)
            p[-22 - 2 * 51] = 'X';
        else
            p[-22 + 15] = 0x7f; /* the directory's size: beyond the file */
        assert_null(layout_of(&f, "x.zip"));
        image_fini(&f);
    }
}

/* ---- parquet ---- */

/* The footer, length and name of a file that pyarrow 26 wrote: two row groups of two columns, whose chunks
 * begin at 4, 79, 126 and 201. */
static const char PYARROW[] =
    "\x15\x04\x19\x3c\x35\x00\x18\x06\x73\x63\x68\x65\x6d\x61\x15\x04\x00\x15\x04\x25\x02\x18\x01\x6e"
    "\x00\x15\x0c\x25\x02\x18\x01\x74\x25\x00\x4c\x1c\x00\x00\x00\x16\x10\x19\x2c\x19\x2c\x26\x00\x1c"
    "\x15\x04\x19\x35\x00\x06\x10\x19\x18\x01\x6e\x15\x00\x16\x08\x16\x96\x01\x16\x96\x01\x26\x64\x26"
    "\x08\x29\x2c\x15\x04\x15\x00\x15\x02\x00\x15\x00\x15\x10\x15\x02\x00\x3c\x29\x06\x19\x26\x00\x08"
    "\x00\x00\x00\x26\x00\x1c\x15\x0c\x19\x35\x00\x06\x10\x19\x18\x01\x74\x15\x00\x16\x08\x16\x5e\x16"
    "\x5e\x26\xc4\x01\x26\x9e\x01\x29\x2c\x15\x04\x15\x00\x15\x02\x00\x15\x00\x15\x10\x15\x02\x00\x3c"
    "\x16\x08\x19\x06\x19\x26\x00\x08\x00\x00\x00\x16\xf4\x01\x16\x08\x26\x08\x16\xf4\x01\x00\x19\x2c"
    "\x26\x00\x1c\x15\x04\x19\x35\x00\x06\x10\x19\x18\x01\x6e\x15\x00\x16\x08\x16\x96\x01\x16\x96\x01"
    "\x26\xd8\x02\x26\xfc\x01\x29\x2c\x15\x04\x15\x00\x15\x02\x00\x15\x00\x15\x10\x15\x02\x00\x3c\x29"
    "\x06\x19\x26\x00\x08\x00\x00\x00\x26\x00\x1c\x15\x0c\x19\x35\x00\x06\x10\x19\x18\x01\x74\x15\x00"
    "\x16\x08\x16\x5e\x16\x5e\x26\xb8\x03\x26\x92\x03\x29\x2c\x15\x04\x15\x00\x15\x02\x00\x15\x00\x15"
    "\x10\x15\x02\x00\x3c\x16\x08\x19\x06\x19\x26\x00\x08\x00\x00\x00\x16\xf4\x01\x16\x08\x26\xfc\x01"
    "\x16\xf4\x01\x00\x28\x20\x70\x61\x72\x71\x75\x65\x74\x2d\x63\x70\x70\x2d\x61\x72\x72\x6f\x77\x20"
    "\x76\x65\x72\x73\x69\x6f\x6e\x20\x32\x36\x2e\x30\x2e\x31\x19\x2c\x1c\x00\x00\x1c\x00\x00\x00\x4f"
    "\x01\x00\x00\x50\x41\x52\x31";
#define PYARROW_BYTES (sizeof(PYARROW) - 1)

/* The chunks of a parquet file begin where its footer says, by row and column. */
static void test_parquet_has_its_chunks(void **state)
{
    (void)state;
    static const char *const names[] = {"t.parquet", "t", "t"};
    for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
        struct image f;
        unsigned looks;
        image_init(&f, 591);
        put(&f.head, "PAR1 and then", 13);
        put(&f.tail, PYARROW, PYARROW_BYTES);
        struct layout *l = look_at(&f, names[i], i == 2, &looks);
        static const uint64_t starts[] = {4, 79, 126, 201};
        assert_non_null(l);
        assert_int_equal(l->kind, LAYOUT_PARQUET);
        assert_int_equal(l->n, ARRAY_SIZE(starts));
        assert_int_equal(l->group, 2);
        for (size_t k = 0; k < ARRAY_SIZE(starts); k++)
            assert_int_equal(l->starts[k], starts[k]);
        assert_int_equal(l->end, 591 - PYARROW_BYTES);
        layout_free(l);
        image_fini(&f);
    }
}

/* A footer cut at any byte gives no layout, or the same one where nothing of it is behind the cut. */
static void test_cut_footer_gives_nothing_else(void **state)
{
    (void)state;
    size_t n = PYARROW_BYTES - 8;
    for (size_t cut = 1; cut < n; cut++) {
        struct layout_look look = {.kind = LAYOUT_PARQUET, .stage = 1, .offset = 248, .n = cut};
        struct layout *l = NULL;
        char *p = malloc(cut); /* of its own: reading beyond it is seen */
        assert_non_null(p);
        memcpy(p, PYARROW, cut);
        layout_see(&look, slice_of(p, cut), 591, &l);
        assert_true(!l || (l->n == 4 && l->starts[3] == 201));
        assert_int_equal(look.n, 0);
        layout_free(l);
        free(p);
    }
}

/* Every byte of the footer changed in turn: whatever comes of it is sound or nothing. */
static void test_changed_footer_is_sound_or_nothing(void **state)
{
    (void)state;
    size_t n = PYARROW_BYTES - 8;
    char *p = malloc(n);
    assert_non_null(p);
    for (size_t at = 0; at < n; at++)
        for (unsigned v = 0; v < 256; v += 3) {
            struct layout_look look = {.kind = LAYOUT_PARQUET, .stage = 1, .offset = 248, .n = n};
            struct layout *l = NULL;
            memcpy(p, PYARROW, n);
            p[at] = (char)v;
            layout_see(&look, slice_of(p, n), 591, &l);
            if (l)
                layout_check(l, 591);
            layout_free(l);
        }
    free(p);
}

/* A file of which nothing says what it is, and one too small for anything, has no layout after one look at
 * most. */
static void test_other_files_have_none(void **state)
{
    (void)state;
    struct image f;
    unsigned looks;
    image_init(&f, 16 * MIB);
    put(&f.head, "0123456789012345", 16);
    put(&f.tail, "0123456789012345678901234567890", 31);
    assert_null(look_at(&f, "a.tar", false, &looks));
    assert_int_equal(looks, 1);
    assert_null(look_at(&f, "a.tar", true, &looks));
    assert_int_equal(looks, 1);
    assert_int_equal(layout_guess(SLICE_LIT("m.safetensors"), 21, false).n, 0);
    image_fini(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_safetensors_has_its_tensors),
        cmocka_unit_test(test_broken_safetensors_has_none),
        cmocka_unit_test(test_long_header_is_not_looked_at),
        cmocka_unit_test(test_zip_has_its_members),
        cmocka_unit_test(test_small_members_are_joined),
        cmocka_unit_test(test_broken_zip_has_none),
        cmocka_unit_test(test_parquet_has_its_chunks),
        cmocka_unit_test(test_cut_footer_gives_nothing_else),
        cmocka_unit_test(test_changed_footer_is_sound_or_nothing),
        cmocka_unit_test(test_other_files_have_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

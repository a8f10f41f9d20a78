/* layer: net */
/* threaded */
/* The wire protocol: its bytes are fixed, every operation survives encode and decode, and no body that is
 * cut, prolonged or damaged is accepted. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/crc32c.h"
#include "base/text.h"
#include "net/sock.h"
#include "net/wire.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/stat.h>

/* ---- values for every field of every operation ---- */

static const char *const words[] = {"", "a", "bucket", "key with spaces/\xc3\xbc", "0123456789abcdef"};
static unsigned turn;

static void make_u32(uint32_t *v)
{
    *v = 0x01020304u + turn++;
}

static void make_u64(uint64_t *v)
{
    *v = 0x0102030405060708u + turn++;
}

static void make_i64(int64_t *v)
{
    *v = -(int64_t)turn++;
}

static void make_str(struct slice *v)
{
    *v = slice_str(words[turn++ % ARRAY_SIZE(words)]);
}

static void make_attr(struct wire_attr *v)
{
    make_u32(&v->kind);
    make_u64(&v->size_bytes);
    make_u64(&v->mtime_ns);
    make_str(&v->etag);
    make_str(&v->content_type);
    make_str(&v->meta);
}

static void make_inode(struct wire_inode *v)
{
    make_u64(&v->ino);
    make_u32(&v->mode);
    make_u32(&v->uid);
    make_u32(&v->gid);
    make_u32(&v->links);
    make_u32(&v->rdev);
    make_u32(&v->flags);
    make_u64(&v->size_bytes);
    make_u64(&v->allocated_bytes);
    make_i64(&v->atime_ns);
    make_i64(&v->mtime_ns);
    make_i64(&v->ctime_ns);
    make_i64(&v->birth_ns);
    make_str(&v->target);
}

static bool same_u32(uint32_t a, uint32_t b)
{
    return a == b;
}

static bool same_u64(uint64_t a, uint64_t b)
{
    return a == b;
}

static bool same_i64(int64_t a, int64_t b)
{
    return a == b;
}

static bool same_str(struct slice a, struct slice b)
{
    return slice_eq(a, b);
}

static bool same_attr(struct wire_attr a, struct wire_attr b)
{
    return a.kind == b.kind && a.size_bytes == b.size_bytes && a.mtime_ns == b.mtime_ns &&
           slice_eq(a.etag, b.etag) && slice_eq(a.content_type, b.content_type) && slice_eq(a.meta, b.meta);
}

static bool same_inode(struct wire_inode a, struct wire_inode b)
{
    return a.ino == b.ino && a.mode == b.mode && a.uid == b.uid && a.gid == b.gid && a.links == b.links &&
           a.rdev == b.rdev && a.flags == b.flags && a.size_bytes == b.size_bytes &&
           a.allocated_bytes == b.allocated_bytes && a.atime_ns == b.atime_ns && a.mtime_ns == b.mtime_ns &&
           a.ctime_ns == b.ctime_ns && a.birth_ns == b.birth_ns && slice_eq(a.target, b.target);
}

#define MAKE(kind, field) make_##kind(&w.field);
#define SAME(kind, field) assert_true(same_##kind(w.field, got.field));

/* Decoding from a heap copy of exactly the body's size lets AddressSanitizer see reads beyond it. */
static char *exact(struct slice s)
{
    char *p = malloc(MAX(s.n, (size_t)1));
    if (s.n)
        memcpy(p, s.p, s.n);
    return p;
}

/* Cut at every length, and prolonged by one byte, a body is refused. */
static void check_cuts(struct slice body, int (*decode)(struct slice, void *), void *into)
{
    for (size_t n = 0; n < body.n; n++) {
        _cleanup_free_ char *cut = exact(slice_of(body.p, n));
        assert_int_equal(decode(slice_of(cut, n), into), ERR_PROTOCOL);
    }
    _cleanup_buf_ struct buf longer = BUF_INIT(WIRE_BODY_MAX_BYTES);
    assert_int_equal(buf_slice(&longer, body), 0);
    assert_int_equal(buf_char(&longer, '\0'), 0);
    assert_int_equal(decode(buf_view(&longer), into), ERR_PROTOCOL);
}

/* Any byte of a length field set to 255 claims more than there is, or shifts what follows; the decoder must
 * say so or give slices inside the body. AddressSanitizer watches. */
static void check_damage(struct slice body, int (*decode)(struct slice, void *), void *into)
{
    for (size_t i = 0; i < body.n; i++) {
        _cleanup_free_ char *damaged = exact(body);
        damaged[i] = (char)0xff;
        (void)decode(slice_of(damaged, body.n), into);
    }
}

#define X(NAME, op_name, number)                                                                             \
    static void round_trip_##op_name##_req(void)                                                             \
    {                                                                                                        \
        struct wire_##op_name##_req w = {0}, got = {0};                                                      \
        _cleanup_buf_ struct buf b = BUF_INIT(WIRE_BODY_MAX_BYTES);                                          \
        const struct wire_op_info *info = wire_op_info(number);                                              \
        assert_string_equal(info->name, #op_name);                                                           \
        assert_int_equal(info->req_bytes, sizeof(w));                                                        \
        WIRE_REQ_##op_name(MAKE) assert_int_equal(info->encode_req(&w, &b), 0);                              \
        assert_int_equal(info->decode_req(buf_view(&b), &got), 0);                                           \
        WIRE_REQ_##op_name(SAME) check_cuts(buf_view(&b), info->decode_req, &got);                           \
        check_damage(buf_view(&b), info->decode_req, &got);                                                  \
    }                                                                                                        \
    static void round_trip_##op_name##_rep(void)                                                             \
    {                                                                                                        \
        struct wire_##op_name##_rep w = {.fd = 7}, got = {0};                                                \
        _cleanup_buf_ struct buf b = BUF_INIT(WIRE_BODY_MAX_BYTES);                                          \
        const struct wire_op_info *info = wire_op_info(number);                                              \
        WIRE_REP_##op_name(MAKE) assert_int_equal(info->encode_rep(&w, &b), 0);                              \
        assert_int_equal(info->decode_rep(buf_view(&b), &got), 0);                                           \
        assert_int_equal(got.fd, -1); /* descriptors travel beside the body */                               \
        WIRE_REP_##op_name(SAME) check_cuts(buf_view(&b), info->decode_rep, &got);                           \
        check_damage(buf_view(&b), info->decode_rep, &got);                                                  \
    }
WIRE_OPS(X)
#undef X

/* Every operation of the table gives back what was put in. */
static void every_operation_survives_the_wire(void **state)
{
    for (turn = 0; turn < ARRAY_SIZE(words); turn++) {
        unsigned at = turn;
#define X(NAME, name, number)                                                                                \
    turn = at;                                                                                               \
    round_trip_##name##_req();                                                                               \
    turn = at;                                                                                               \
    round_trip_##name##_rep();
        WIRE_OPS(X)
#undef X
        turn = at;
    }
    assert_null(wire_op_info(0));
    assert_null(wire_op_info(9));
    assert_null(wire_op_info(UINT32_MAX));
}

static void assert_hex(struct slice bytes, const char *want)
{
    _cleanup_free_ char *text = malloc(bytes.n * 2 + 1);
    text_hex(bytes.p, bytes.n, text);
    assert_string_equal(text, want);
}

/* The bytes of docs/WIRE.md, literally: whoever changes them breaks every client that is out there. */
static void the_bytes_are_fixed(void **state)
{
    uint8_t head[WIRE_HEADER_BYTES];
    const struct wire_header h = {.body_bytes = 0x112233,
                                  .op = 22,
                                  .flags = 3,
                                  .request_id = 0x0102030405060708,
                                  .status = -2,
                                  .crc = 0xaabbccdd};
    wire_header_encode(&h, head);
    assert_hex(slice_of(head, sizeof(head)), "33221100"
                                             "1600"
                                             "0300"
                                             "0807060504030201"
                                             "feffffff"
                                             "ddccbbaa");
    const struct wire_list_req list = {.bucket = SLICE_LIT("b"),
                                       .prefix = SLICE_LIT("p/"),
                                       .delimiter = '/',
                                       .after = SLICE_NULL,
                                       .max = 1000,
                                       .flags = WIRE_POSIX | WIRE_FRESH};
    _cleanup_buf_ struct buf b = BUF_INIT(4096);
    assert_int_equal(wire_op_info(WIRE_OP_LIST)->encode_req(&list, &b), 0);
    assert_hex(buf_view(&b), "01000000"
                             "62"
                             "02000000"
                             "702f"
                             "2f000000"
                             "00000000"
                             "e8030000"
                             "03000000");
    assert_int_equal(crc32c(0, b.p, b.n), 0xc7673506); /* as in the example of docs/WIRE.md */
    buf_clear(&b);
    const struct wire_open_rep open = {.fd = 5,
                                       .handle = 258,
                                       .attr = {.kind = WIRE_FILE,
                                                .size_bytes = 4096,
                                                .mtime_ns = 1,
                                                .etag = SLICE_LIT("e"),
                                                .content_type = SLICE_LIT("t"),
                                                .meta = SLICE_LIT("a: b\n")},
                                       .state = WIRE_COMPLETE,
                                       .present = 4096,
                                       .valid_ms = 60000,
                                       .data = SLICE_LIT("")};
    assert_int_equal(wire_op_info(WIRE_OP_OPEN)->encode_rep(&open, &b), 0);
    assert_hex(buf_view(&b), "0201000000000000"
                             "01000000"
                             "0010000000000000"
                             "0100000000000000"
                             "0100000065"
                             "0100000074"
                             "05000000613a20620a"
                             "01000000"
                             "0010000000000000"
                             "60ea000000000000"
                             "00000000");
}

/* And those of a part's checksum, on its way to an origin and back. */
static void the_bytes_of_checksums_are_fixed(void **state)
{
    const struct wire_upload_part_req q = {.bucket = SLICE_LIT("b"),
                                           .key = SLICE_LIT("k"),
                                           .id = SLICE_LIT("i"),
                                           .number = 7,
                                           .size = 5,
                                           .checksum = SLICE_LIT("crc32 352441c2")};
    const struct wire_part_rep rep = {
        .n_parts = 2, .offset = 258, .size = 5, .checksum = SLICE_LIT("crc32 NSRBwg==")};
    _cleanup_buf_ struct buf b = BUF_INIT(4096);
    (void)state;
    assert_int_equal(wire_op_info(WIRE_OP_UPLOAD_PART)->encode_req(&q, &b), 0);
    assert_hex(buf_view(&b), "0100000062"
                             "010000006b"
                             "0100000069"
                             "07000000"
                             "0500000000000000"
                             "0e000000"
                             "6372633332203335323434316332");
    buf_clear(&b);
    assert_int_equal(wire_op_info(WIRE_OP_PART)->encode_rep(&rep, &b), 0);
    assert_hex(buf_view(&b), "02000000"
                             "0201000000000000"
                             "0500000000000000"
                             "0e000000"
                             "6372633332204e53524277673d3d");
}

/* So are those of list items and error texts. */
static void the_bytes_of_items_are_fixed(void **state)
{
    _cleanup_buf_ struct buf b = BUF_INIT(4096);
    const struct wire_entry entry = {.key = SLICE_LIT("k"), .attr = {.kind = WIRE_DIRECTORY}};
    assert_int_equal(wire_entry_encode(&entry, &b), 0);
    assert_hex(buf_view(&b), "010000006b"
                             "02000000"
                             "0000000000000000"
                             "0000000000000000"
                             "000000000000000000000000");
    buf_clear(&b);
    const struct wire_bucket bucket = {.name = SLICE_LIT("n"), .origin = SLICE_LIT("o"), .created_ns = 2};
    assert_int_equal(wire_bucket_encode(&bucket, &b), 0);
    assert_hex(buf_view(&b), "010000006e"
                             "010000006f"
                             "0200000000000000");
    buf_clear(&b);
    const struct wire_dirent plain = {.name = SLICE_LIT("d"), .ino = 3, .mode = S_IFDIR, .cookie = 4};
    assert_int_equal(wire_dirent_encode(&plain, &b), 0);
    assert_hex(buf_view(&b), "0100000064"
                             "0300000000000000"
                             "00400000"
                             "0400000000000000"
                             "00000000");
    buf_clear(&b);
    const struct wire_closed closed = {.handle = 258, .read_cached = 5, .read_origin = 6};
    assert_int_equal(wire_closed_encode(&closed, &b), 0);
    assert_hex(buf_view(&b), "0201000000000000"
                             "0500000000000000"
                             "0600000000000000");
    buf_clear(&b);
    assert_int_equal(wire_error_encode(SLICE_LIT("no"), &b), 0);
    assert_hex(buf_view(&b), "020000006e6f");
}

/* What is cached has its version behind it when the flags say so, and else the bytes that it always had; one
 * that is cut off is told. */
static void the_bytes_of_cached_entries_are_fixed(void **state)
{
    _cleanup_buf_ struct buf b = BUF_INIT(4096);
    struct wire_cached cached = {
        .key = SLICE_LIT("c"), .size_bytes = 258, .present_bytes = 7, .last_read_ms = 8};
    cached.flags = WIRE_CACHED_PINNED;
    assert_int_equal(wire_cached_encode(&cached, &b), 0);
    assert_hex(buf_view(&b), "0100000063"
                             "0201000000000000"
                             "0700000000000000"
                             "0800000000000000"
                             "01000000");
    buf_clear(&b);
    cached.flags |= WIRE_CACHED_VERSION;
    cached.mtime_ns = 9;
    cached.etag = SLICE_LIT("e");
    assert_int_equal(wire_cached_encode(&cached, &b), 0);
    assert_hex(buf_view(&b), "0100000063"
                             "0201000000000000"
                             "0700000000000000"
                             "0800000000000000"
                             "05000000"
                             "0900000000000000"
                             "0100000065");
    struct slice rest = buf_view(&b);
    struct wire_cached again;
    assert_int_equal(wire_cached_decode(&rest, &again), 0);
    assert_true(slice_eq(again.etag, cached.etag) && again.mtime_ns == 9 && rest.n == 0);
    rest = slice_sub(buf_view(&b), 0, b.n - 1);
    assert_int_equal(wire_cached_decode(&rest, &again), ERR_PROTOCOL);
}

/* An inode's bytes: in a reply, and in an entry of a directory that brings it along. */
static void the_bytes_of_inodes_are_fixed(void **state)
{
    static const char inode_hex[] = "0201000000000000" /* ino */
                                    "a4810000"         /* mode */
                                    "e8030000"
                                    "64000000"
                                    "01000000"
                                    "00000000"
                                    "00000000"
                                    "0010000000000000" /* size */
                                    "0020000000000000"
                                    "0100000000000000"
                                    "feffffffffffffff" /* 2 ns before 1970 */
                                    "0300000000000000"
                                    "0400000000000000"
                                    "0100000074";
    const struct wire_inode inode = {.ino = 258,
                                     .mode = 0100644,
                                     .uid = 1000,
                                     .gid = 100,
                                     .links = 1,
                                     .size_bytes = 4096,
                                     .allocated_bytes = 8192,
                                     .atime_ns = 1,
                                     .mtime_ns = -2,
                                     .ctime_ns = 3,
                                     .birth_ns = 4,
                                     .target = SLICE_LIT("t")};
    _cleanup_buf_ struct buf b = BUF_INIT(4096);
    const struct wire_tree_lookup_rep rep = {.fd = -1, .inode = inode};
    assert_int_equal(wire_op_info(WIRE_OP_TREE_LOOKUP)->encode_rep(&rep, &b), 0);
    assert_hex(buf_view(&b), inode_hex);
    buf_clear(&b);
    const struct wire_dirent plus = {
        .name = SLICE_LIT("f"), .ino = 258, .mode = S_IFREG, .cookie = 5, .has_inode = 1, .inode = inode};
    assert_int_equal(wire_dirent_encode(&plus, &b), 0);
    char want[2 * 256] = "0100000066"
                         "0201000000000000"
                         "00800000"
                         "0500000000000000"
                         "01000000";
    strcat(want, inode_hex);
    assert_hex(buf_view(&b), want);
}

/* Entries of directories are taken apart one by one, with and without inodes; whatever is cut off or claimed
 * wrongly is refused and changes nothing. */
static void walks_entries_of_directories(void **state)
{
    _cleanup_buf_ struct buf b = BUF_INIT(4096);
    for (uint32_t i = 0; i < 2; i++) {
        struct wire_dirent w = {.name = SLICE_LIT("name"), .ino = 7 + i, .mode = S_IFREG, .cookie = 3 + i};
        w.has_inode = i;
        if (i)
            make_inode(&w.inode);
        assert_int_equal(wire_dirent_encode(&w, &b), 0);
    }
    struct slice rest = buf_view(&b);
    struct wire_dirent got;
    assert_int_equal(wire_dirent_decode(&rest, &got), 0);
    assert_true(got.ino == 7 && got.cookie == 3 && !got.has_inode && slice_eq_str(got.name, "name"));
    struct slice second = rest;
    assert_int_equal(wire_dirent_decode(&rest, &got), 0);
    assert_true(got.ino == 8 && got.has_inode && got.inode.mode != 0);
    assert_int_equal(wire_dirent_decode(&rest, &got), -ENOENT);
    for (size_t n = 1; n < second.n; n++) {
        _cleanup_free_ char *copy = exact(slice_of(second.p, n));
        struct slice cut = slice_of(copy, n), before = cut;
        assert_int_equal(wire_dirent_decode(&cut, &got), ERR_PROTOCOL);
        assert_true(cut.p == before.p && cut.n == before.n);
    }
    b.p[4 + 4 + 8 + 4 + 8] = 2; /* has_inode of the first: neither 0 nor 1 */
    rest = buf_view(&b);
    assert_int_equal(wire_dirent_decode(&rest, &got), ERR_PROTOCOL);
}

/* Numbers and names are part of the protocol: an operation may be added, never renumbered. */
static void the_numbers_are_fixed(void **state)
{
    static const struct {
        uint32_t number;
        const char *name;
    } fixed[] = {{1, "challenge"},       {2, "hello"},
                 {10, "bucket_create"},  {11, "bucket_list"},
                 {12, "bucket_get"},     {13, "bucket_set"},
                 {14, "bucket_remove"},  {20, "stat"},
                 {21, "list"},           {22, "open"},
                 {23, "fetch"},          {24, "close"},
                 {30, "put_open"},       {31, "put_write"},
                 {32, "put_commit"},     {33, "put_abort"},
                 {40, "remove"},         {41, "copy"},
                 {42, "mkdir"},          {43, "rmdir"},
                 {49, "set_meta"},       {50, "status"},
                 {51, "report"},         {80, "tree_lookup"},
                 {81, "tree_getattr"},   {82, "tree_setattr"},
                 {83, "tree_create"},    {84, "tree_open"},
                 {85, "tree_sync"},      {86, "tree_link"},
                 {87, "tree_unlink"},    {88, "tree_rmdir"},
                 {89, "tree_rename"},    {90, "tree_readdir"},
                 {91, "tree_xattr_get"}, {92, "tree_xattr_list"},
                 {93, "tree_xattr_set"}, {94, "tree_xattr_remove"},
                 {95, "tree_statfs"},    {96, "tree_lock"},
                 {97, "tree_leave"},     {98, "tree_room"},
                 {99, "put_room"},       {100, "strand"},
                 {101, "stranded"},      {102, "stranded_end"},
                 {103, "tree_close"},    {104, "close_many"},
                 {105, "tags"},          {108, "upload_copy"},
                 {109, "upload_keep"},   {110, "upload_keep_part"},
                 {111, "upload_resume"}, {112, "watch_names"}};
    for (size_t i = 0; i < ARRAY_SIZE(fixed); i++)
        assert_string_equal(wire_op_info(fixed[i].number)->name, fixed[i].name);
}

/* A frame header is refused when its body is over the maximum, or flags or status are not of this version. */
static void refuses_broken_headers(void **state)
{
    uint8_t head[WIRE_HEADER_BYTES];
    struct wire_header h = {.body_bytes = WIRE_BODY_MAX_BYTES, .op = 1}, got;
    wire_header_encode(&h, head);
    assert_int_equal(wire_header_decode(head, &got), 0);
    assert_int_equal(got.body_bytes, WIRE_BODY_MAX_BYTES);
    head[0] = 1; /* one byte more than the maximum */
    assert_int_equal(wire_header_decode(head, &got), ERR_PROTOCOL);
    head[0] = 0;
    head[6] = 4;
    assert_int_equal(wire_header_decode(head, &got), ERR_PROTOCOL);
    head[6] = 0;
    head[16] = 1; /* status above 0 */
    assert_int_equal(wire_header_decode(head, &got), ERR_PROTOCOL);
}

/* Lists of entries and buckets are taken apart one by one; the end and damage are told apart. */
static void walks_entries_and_buckets(void **state)
{
    _cleanup_buf_ struct buf b = BUF_INIT(64 * KIB);
    for (int i = 0; i < 3; i++) {
        char key[16];
        snprintf(key, sizeof(key), "key-%d", i);
        const struct wire_entry w = {.key = slice_str(key),
                                     .attr = {.kind = WIRE_FILE, .size_bytes = (uint64_t)i}};
        assert_int_equal(wire_entry_encode(&w, &b), 0);
    }
    struct slice rest = buf_view(&b);
    struct wire_entry got;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(wire_entry_decode(&rest, &got), 0);
        assert_int_equal(got.attr.size_bytes, i);
        assert_int_equal(got.key.n, 5);
    }
    assert_int_equal(wire_entry_decode(&rest, &got), -ENOENT);
    struct slice cut = slice_of(b.p, b.n / 3 - 1), before = cut;
    assert_int_equal(wire_entry_decode(&cut, &got), ERR_PROTOCOL);
    assert_true(cut.p == before.p && cut.n == before.n); /* untouched on failure */
    buf_clear(&b);
    const struct wire_bucket bucket = {
        .name = SLICE_LIT("n"), .origin = SLICE_LIT("s3://o"), .created_ns = 5};
    assert_int_equal(wire_bucket_encode(&bucket, &b), 0);
    struct wire_bucket got_bucket;
    for (size_t n = 1; n < b.n; n++) {
        cut = slice_of(b.p, n);
        assert_int_equal(wire_bucket_decode(&cut, &got_bucket), ERR_PROTOCOL);
    }
    rest = buf_view(&b);
    assert_int_equal(wire_bucket_decode(&rest, &got_bucket), 0);
    assert_true(slice_eq_str(got_bucket.origin, "s3://o") && got_bucket.created_ns == 5);
    assert_int_equal(wire_bucket_decode(&rest, &got_bucket), -ENOENT);
}

/* An encoder that finds no room leaves the buffer as it was, wherever the room ends. */
static void a_failed_encoder_changes_nothing(void **state)
{
    const struct wire_open_rep w = {.attr = {.etag = SLICE_LIT("etag"), .content_type = SLICE_LIT("type")}};
    const struct wire_op_info *info = wire_op_info(WIRE_OP_OPEN);
    _cleanup_buf_ struct buf whole = BUF_INIT(4096);
    assert_int_equal(info->encode_rep(&w, &whole), 0);
    for (size_t max = 3; max < 3 + whole.n; max++) {
        _cleanup_buf_ struct buf b = BUF_INIT(max);
        assert_int_equal(buf_str(&b, "abc"), 0);
        assert_int_equal(info->encode_rep(&w, &b), -E2BIG);
        assert_true(slice_eq_str(buf_view(&b), "abc"));
    }
}

/* ---- over sockets ---- */

struct peer {
    int fd;
    int pass_fd;
    int status;
    uint16_t reply_op;
    bool damage;
    pthread_t thread;
};

/* Answers one STAT, or fails it, as told. */
static void *peer_main(void *arg)
{
    struct peer *p = arg;
    struct wire_header h;
    int fd = -1;
    _cleanup_buf_ struct buf b = BUF_INIT(WIRE_BODY_MAX_BYTES), out = BUF_INIT(WIRE_BODY_MAX_BYTES);
    if (wire_recv(p->fd, &h, &b, &fd) < 0)
        return NULL;
    struct wire_stat_req req;
    if (wire_op_info(h.op)->decode_req(buf_view(&b), &req) < 0)
        return NULL;
    struct wire_stat_rep rep = {.attr = {.kind = WIRE_FILE, .size_bytes = req.key.n, .etag = req.key}};
    int k = p->status < 0 ? wire_error_encode(SLICE_LIT("it said no"), &out)
                          : wire_op_info(h.op)->encode_rep(&rep, &out);
    if (k == 0 && p->damage) { /* the crc is of the undamaged body */
        struct wire_header damaged = {.body_bytes = (uint32_t)out.n,
                                      .op = h.op,
                                      .flags = WIRE_FLAG_REPLY,
                                      .request_id = h.request_id,
                                      .crc = crc32c(0, out.p, out.n)};
        uint8_t head[WIRE_HEADER_BYTES];
        wire_header_encode(&damaged, head);
        out.p[out.n - 1] ^= 1;
        (void)sock_send_all(p->fd, head, sizeof(head), 0);
        (void)sock_send_all(p->fd, out.p, out.n, 0);
    } else if (k == 0) {
        (void)wire_send(p->fd, p->reply_op ? p->reply_op : h.op, WIRE_FLAG_REPLY, h.request_id, p->status,
                        buf_view(&out), p->pass_fd);
    }
    return NULL;
}

static int call_peer(struct peer *p, struct wire_stat_rep *rep, struct buf *b, struct err *e)
{
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    p->fd = pair[1];
    assert_int_equal(pthread_create(&p->thread, NULL, peer_main, p), 0);
    const struct wire_stat_req req = {
        .request_id = 42, .bucket = SLICE_LIT("b"), .key = SLICE_LIT("the key")};
    int k = wire_call(pair[0], WIRE_OP_STAT, &req, b, rep, e);
    pthread_join(p->thread, NULL);
    (void)close(pair[0]);
    (void)close(pair[1]);
    return k;
}

/* A call gives the decoded reply, with the descriptor that came along. */
static void calls_and_gets_a_descriptor(void **state)
{
    int file = open("/dev/null", O_RDONLY | O_CLOEXEC);
    struct peer p = {.pass_fd = file};
    struct wire_stat_rep rep;
    _cleanup_buf_ struct buf b = BUF_INIT(WIRE_BODY_MAX_BYTES);
    struct err e = {0};
    assert_int_equal(call_peer(&p, &rep, &b, &e), 0);
    assert_int_equal(rep.attr.size_bytes, 7);
    assert_true(slice_eq_str(rep.attr.etag, "the key"));
    assert_true(rep.fd >= 0 && rep.fd != file);
    assert_true(fcntl(rep.fd, F_GETFD) & FD_CLOEXEC);
    (void)close(rep.fd);
    (void)close(file);
}

/* A failed reply gives its code and its words. */
static void a_failed_reply_gives_its_words(void **state)
{
    struct peer p = {.pass_fd = -1, .status = ERR_ORIGIN_DOWN};
    struct wire_stat_rep rep;
    _cleanup_buf_ struct buf b = BUF_INIT(WIRE_BODY_MAX_BYTES);
    struct err e = {0};
    assert_int_equal(call_peer(&p, &rep, &b, &e), ERR_ORIGIN_DOWN);
    assert_string_equal(e.text, "it said no");
}

/* A damaged body and a reply to something else are protocol errors. */
static void refuses_replies_that_do_not_fit(void **state)
{
    struct wire_stat_rep rep;
    _cleanup_buf_ struct buf b = BUF_INIT(WIRE_BODY_MAX_BYTES);
    struct err e = {0};
    struct peer damaged = {.pass_fd = -1, .damage = true};
    assert_int_equal(call_peer(&damaged, &rep, &b, &e), ERR_PROTOCOL);
    struct peer other = {.pass_fd = -1, .reply_op = WIRE_OP_LIST};
    assert_int_equal(call_peer(&other, &rep, &b, &e), ERR_PROTOCOL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_operation_survives_the_wire),
        cmocka_unit_test(the_bytes_are_fixed),
        cmocka_unit_test(the_bytes_of_checksums_are_fixed),
        cmocka_unit_test(the_bytes_of_items_are_fixed),
        cmocka_unit_test(the_bytes_of_cached_entries_are_fixed),
        cmocka_unit_test(the_bytes_of_inodes_are_fixed),
        cmocka_unit_test(walks_entries_of_directories),
        cmocka_unit_test(the_numbers_are_fixed),
        cmocka_unit_test(refuses_broken_headers),
        cmocka_unit_test(walks_entries_and_buckets),
        cmocka_unit_test(a_failed_encoder_changes_nothing),
        cmocka_unit_test(calls_and_gets_a_descriptor),
        cmocka_unit_test(a_failed_reply_gives_its_words),
        cmocka_unit_test(refuses_replies_that_do_not_fit),
    };
    return cmocka_run_group_tests_name("wire", tests, NULL, NULL);
}

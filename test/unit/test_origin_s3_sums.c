/* layer: origin */
/* threaded */
/*
 * Checksums of the parts of an upload, before an S3 origin that answers whatever the test scripts: whether it
 * is given any, and what the requests look like.
 */
#include "origin/meta.h"
#include "origin_s3_common.h"

#define DOCUMENT "<InitiateMultipartUploadResult><UploadId>id</UploadId></InitiateMultipartUploadResult>"
#define BEGUN(headers)                                                                                       \
    {                                                                                                        \
        .answer = "HTTP/1.1 200 OK\r\n" headers "Content-Length: 86\r\n\r\n" DOCUMENT                        \
    }
#define ALGORITHM(name) "x-amz-checksum-algorithm: " name "\r\n"
#define TYPE(name)      "x-amz-checksum-type: " name "\r\n"
#define PART_OK                                                                                              \
    {                                                                                                        \
        .answer = "HTTP/1.1 200 OK\r\nETag: \"part\"\r\nContent-Length: 0\r\n\r\n"                           \
    }

static bool begin(struct fixture *f, const char *sums, struct err *e)
{
    const struct origin_put p = {.key = SLICE_LIT("k"), .sums = slice_str(sums)};
    char id[ORIGIN_UPLOAD_ID_MAX];
    bool taken = false;
    int r = origin_upload_create(f->origin, &p, id, &taken, e);
    if (r == 0)
        assert_string_equal(id, "id");
    return r == 0 && taken;
}

/* An upload asks for the checksums of its parts, and has them when the answer repeats algorithm and type; no
 * type is the composite one. (Fails where the answer is not looked at.) */
static void test_the_answer_decides(void **state)
{
    static const struct {
        const char *sums;
        struct script_step answer;
        bool taken;
    } rows[] = {
        {"crc32c COMPOSITE", BEGUN(ALGORITHM("CRC32C") TYPE("COMPOSITE")), true},
        {"crc64nvme FULL_OBJECT", BEGUN(ALGORITHM("CRC64NVME") TYPE("FULL_OBJECT")), true},
        {"sha1 COMPOSITE", BEGUN(ALGORITHM("SHA1")), true},
        {"crc32 COMPOSITE", BEGUN(""), false},
        {"sha256", BEGUN(""), false}, /* of before there were types: not asked for */
        {"x COMPOSITE", BEGUN(""), false},
        {"", BEGUN(ALGORITHM("CRC32")), false},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        struct fixture f;
        struct err e = {0};
        fixture_start(&f, "s3://b", &rows[i].answer, 1, NULL);
        assert_int_equal(begin(&f, rows[i].sums, &e), rows[i].taken);
        assert_int_equal(e.code, 0);
        const char *algorithm = script_header(script_head(&f.script, 0), "x-amz-checksum-algorithm");
        const char *type = script_header(script_head(&f.script, 0), "x-amz-checksum-type");
        const char *asked = strchr(rows[i].sums, ' ');
        bool known = asked && rows[i].sums[0] != 'x';
        assert_int_equal(algorithm != NULL, known);
        if (known) {
            assert_true(strncasecmp(algorithm, rows[i].sums, (size_t)(asked - rows[i].sums)) == 0);
            assert_memory_equal(type, asked + 1, strlen(asked + 1));
        }
        fixture_stop(&f);
    }
}

/* A service that refuses the question, or would keep others, is not told of any: the upload begins anew
 * without, and what was begun with others is aborted. Trouble of another kind is no answer. (Fails where the
 * second try is left out, and where the abort is.) */
static void test_other_answers_begin_without(void **state)
{
    static const struct {
        struct script_step steps[3];
        const char *heads[3];
        size_t n;
    } rows[] = {
        {{{.answer = XML_ERROR("501 Not Implemented", "NotImplemented", "a header"), .close = true},
          BEGUN("")},
         {"POST /b/k?uploads= ", "POST /b/k?uploads= "},
         2},
        {{{.answer = XML_ERROR("400 Bad Request", "InvalidArgument", "a header"), .close = true}, BEGUN("")},
         {"POST /b/k?uploads= ", "POST /b/k?uploads= "},
         2},
        {{BEGUN(ALGORITHM("CRC32C") TYPE("COMPOSITE")),
          {.answer = "HTTP/1.1 204 No Content\r\n\r\n"},
          BEGUN("")},
         {"POST /b/k?uploads= ", "DELETE /b/k?uploadId=id ", "POST /b/k?uploads= "},
         3},
        {{BEGUN(ALGORITHM("CRC32")), {.answer = "HTTP/1.1 204 No Content\r\n\r\n"}, BEGUN("")},
         {"POST /b/k?uploads= ", "DELETE /b/k?uploadId=id ", "POST /b/k?uploads= "},
         3},
        {{{.answer = XML_ERROR("503 Slow Down", "SlowDown", "later"), .close = true}},
         {"POST /b/k?uploads= "},
         1},
        {{{.answer = XML_ERROR("403 Forbidden", "AccessDenied", "no"), .close = true}},
         {"POST /b/k?uploads= "},
         1},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        struct fixture f;
        struct err e = {0};
        fixture_start(&f, "s3://b", rows[i].steps, rows[i].n, NULL);
        assert_false(begin(&f, "crc32c FULL_OBJECT", &e));
        if ((e.code == 0) != (rows[i].n > 1))
            fail_msg("%zu: %s", i, e.text);
        assert_int_equal(script_steps_taken(&f.script), rows[i].n);
        for (size_t j = 0; j < rows[i].n; j++)
            assert_memory_equal(script_head(&f.script, j), rows[i].heads[j], strlen(rows[i].heads[j]));
        assert_non_null(script_header(script_head(&f.script, 0), "x-amz-checksum-algorithm"));
        if (rows[i].n > 1)
            assert_null(script_header(script_head(&f.script, rows[i].n - 1), "x-amz-checksum-algorithm"));
        fixture_stop(&f);
    }
}

static char told[128];

static void note_begun(const struct origin *o, struct slice key, struct slice id)
{
    size_t n = strlen(told);
    (void)o;
    (void)snprintf(told + n, sizeof(told) - n, SLICE_FMT " " SLICE_FMT "|", SLICE_ARG(key), SLICE_ARG(id));
}

static void note_ended(const struct origin *o, struct slice id, bool is_gone)
{
    size_t n = strlen(told);
    (void)o;
    (void)snprintf(told + n, sizeof(told) - n, SLICE_FMT " %s|", SLICE_ARG(id), is_gone ? "gone" : "left");
}

/* An upload that was begun with others and that the service does not abort now is one that is known to be
 * left there, for who aborts those later; one that it aborts is not. (Fails where nobody is told of it.) */
static void test_what_is_not_aborted_is_told(void **state)
{
    static const struct origin_uploads uploads = {note_begun, note_ended};
    static const struct {
        struct script_step abort;
        const char *told;
    } rows[] = {
        {{.answer = XML_ERROR("503 Slow Down", "SlowDown", "later"), .close = true}, "k id|id left|"},
        {{.answer = "HTTP/1.1 204 No Content\r\n\r\n"}, "k id|id gone|"},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        const struct script_step steps[] = {BEGUN(ALGORITHM("CRC32")), rows[i].abort, BEGUN("")};
        struct fixture f;
        struct err e = {0};
        told[0] = '\0';
        fixture_start(&f, "s3://b", steps, ARRAY_SIZE(steps), NULL);
        f.origin->uploads = &uploads;
        assert_false(begin(&f, "crc32c FULL_OBJECT", &e));
        assert_int_equal(e.code, 0);
        assert_string_equal(told, rows[i].told);
        fixture_stop(&f);
    }
}

/* origin.checksums=false asks for none. (Fails where the option is not looked at.) */
static void test_who_is_not_asked(void **state)
{
    static const char *const off[] = {"origin.checksums", "false", NULL};
    static const struct script_step answer = BEGUN(ALGORITHM("CRC32") TYPE("COMPOSITE"));
    struct fixture f;
    struct err e = {0};
    (void)state;
    fixture_start(&f, "s3://b", &answer, 1, off);
    assert_false(begin(&f, "crc32 COMPOSITE", &e));
    assert_int_equal(e.code, 0);
    assert_null(script_header(script_head(&f.script, 0), "x-amz-checksum-algorithm"));
    fixture_stop(&f);
}

/* ---- parts ---- */

struct bytes {
    const char *p;
    const char *hex; /* its checksum */
    bool is_known;   /* before who waits for it */
};

static ssize_t bytes_read(void *arg, void *p, size_t n, uint64_t offset)
{
    const struct bytes *b = arg;
    memcpy(p, b->p + offset, n);
    return (ssize_t)n;
}

static struct slice bytes_sum(void *arg, bool wait)
{
    const struct bytes *b = arg;
    return wait || b->is_known ? slice_str(b->hex) : SLICE_NULL;
}

static struct origin_body body_of(struct bytes *b, size_t n)
{
    return (struct origin_body){.size_bytes = n, .read = bytes_read, .sum = bytes_sum, .arg = b};
}

static int put_part(struct fixture *f, const char *sums, const struct origin_body *body, struct err *e)
{
    const struct origin_put p = {.key = SLICE_LIT("k"), .sums = slice_str(sums)};
    char etag[ORIGIN_ETAG_MAX + 1];
    return origin_upload_part(f->origin, &p, SLICE_LIT("id"), 1, body, etag, e);
}

static void assert_header(struct fixture *f, size_t i, const char *name, const char *value)
{
    const char *found = script_header(script_head(&f->script, i), name);
    assert_non_null(found);
    assert_memory_equal(found, value, strlen(value));
    assert_memory_equal(found + strlen(value), "\r\n", 2);
}

/* Checksum and hash of "abc" by `rhash --crc32` and `sha256sum`. */
#define ABC_CRC32  "352441c2"
#define ABC_BASE64 "NSRBwg=="

/* What is known before goes in a header, of a body that is signed with its hash; what is not goes behind the
 * bytes, as clients send it, and both are byte by byte. (Fails where the trailer has the checksum of another
 * kind, or no announcement.) */
static void test_a_part_with_a_checksum(void **state)
{
    static const struct script_step steps[] = {PART_OK, PART_OK, PART_OK, PART_OK};
    static const char golden[] = "3\r\nabc\r\n0\r\nx-amz-checksum-crc32:" ABC_BASE64 "\r\n\r\n";
    struct bytes b = {"abc", ABC_CRC32, true};
    struct origin_body body = body_of(&b, 3);
    struct fixture f;
    struct err e = {0};
    char length[16];
    (void)state;
    fixture_start(&f, "s3://b", steps, ARRAY_SIZE(steps), NULL);
    assert_int_equal(put_part(&f, "crc32 FULL_OBJECT", &body, &e), 0);
    assert_header(&f, 0, "x-amz-checksum-crc32", ABC_BASE64);
    assert_header(&f, 0, "content-length", "3");
    assert_header(&f, 0, "x-amz-content-sha256",
                  "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    b.is_known = false;
    assert_int_equal(put_part(&f, "crc32 COMPOSITE", &body, &e), 0);
    assert_header(&f, 1, "x-amz-content-sha256", "STREAMING-UNSIGNED-PAYLOAD-TRAILER");
    assert_header(&f, 1, "x-amz-trailer", "x-amz-checksum-crc32");
    assert_header(&f, 1, "x-amz-decoded-content-length", "3");
    assert_header(&f, 1, "content-encoding", "aws-chunked");
    (void)snprintf(length, sizeof(length), "%zu", sizeof(golden) - 1);
    assert_header(&f, 1, "content-length", length);
    assert_null(script_header(script_head(&f.script, 1), "x-amz-checksum-crc32"));
    assert_non_null(strstr(script_header(script_head(&f.script, 1), "authorization"), ";x-amz-trailer,"));
    assert_string_equal(f.script.body, golden);
    body.size_bytes = 0;
    assert_int_equal(put_part(&f, "crc32 COMPOSITE", &body, &e), 0);
    assert_string_equal(f.script.body, "0\r\nx-amz-checksum-crc32:" ABC_BASE64 "\r\n\r\n");
    assert_int_equal(put_part(&f, "", &body, &e), 0); /* of an upload without: nobody asks for it */
    assert_null(script_header(script_head(&f.script, 3), "x-amz-trailer"));
    fixture_stop(&f);
}

/* A checksum that is none of its kind, or none at all because the part was given up, sends no part. */
static void test_a_part_without_its_checksum(void **state)
{
    static const struct script_step steps[] = {PART_OK, PART_OK};
    struct fixture f;
    (void)state;
    for (int i = 0; i < 3; i++) {
        struct bytes b = {"abc", i == 2 ? "" : "3524", i == 0};
        const struct origin_body body = body_of(&b, 3);
        struct err e = {0};
        fixture_start(&f, "s3://b", steps, ARRAY_SIZE(steps), NULL);
        assert_int_equal(put_part(&f, "crc32 COMPOSITE", &body, &e), i == 2 ? -ECANCELED : -EINVAL);
        fixture_stop(&f);
    }
}

/* The framed body of any size, read from anywhere in pieces of any size, is what the format says: whole MiB
 * and the rest. (Fails where the last frame has the length of the others.) */
static void test_frames(void **state)
{
    static const size_t sizes[] = {0, 1, 3, MIB - 1, MIB, MIB + 1, 2 * MIB, 2 * MIB + 17};
    static const size_t steps[] = {1, 7, 16 * KIB, 3 * MIB};
    const size_t room = 3 * MIB;
    char *bytes = malloc(room), *expected = malloc(room + 1024), *got = malloc(room + 1024);
    (void)state;
    assert_true(bytes && expected && got);
    for (size_t i = 0; i < room; i++)
        bytes[i] = (char)(i * 31 + i / 4093);
    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
        struct bytes b = {bytes, "01020304", false};
        const struct origin_body inner = body_of(&b, sizes[i] + 5);
        struct s3_sums sums;
        struct s3_framed framed;
        struct fixture f;
        struct web_call c;
        size_t n = 0;
        assert_true(s3_sums_of(SLICE_LIT("crc32c COMPOSITE"), &sums));
        fixture_start(&f, "s3://b", NULL, 0, NULL);
        web_call_init(&c, &s3_of(f.origin)->web, WEB_PUT, "x");
        c.body = &inner;
        c.body_offset = 5;
        c.body_n = sizes[i];
        assert_int_equal(s3_sums_part(&c, &sums, &framed, NULL), 0);
        for (size_t at = 0; at < sizes[i]; at += MIB) {
            size_t here = MIN((size_t)MIB, sizes[i] - at);
            n += (size_t)sprintf(expected + n, "%zx\r\n", here);
            memcpy(expected + n, bytes + 5 + at, here);
            n += here;
            n += (size_t)sprintf(expected + n, "\r\n");
        }
        n += (size_t)sprintf(expected + n, "0\r\nx-amz-checksum-crc32c:AQIDBA==\r\n\r\n");
        assert_int_equal(c.body_n, n);
        for (size_t j = 0; j < ARRAY_SIZE(steps); j++) {
            size_t from = j == 0 && n > 3000 ? n - 3000 : 0; /* single bytes: of the end */
            memset(got, 0, n);
            for (size_t at = from; at < n;) {
                ssize_t r = c.body->read(c.body->arg, got + at, MIN(steps[j], n - at), at);
                assert_true(r > 0 && (size_t)r <= steps[j]);
                at += (size_t)r;
            }
            assert_memory_equal(got + from, expected + from, n - from);
        }
        web_call_fini(&c);
        fixture_stop(&f);
    }
    free(bytes);
    free(expected);
    free(got);
}

/* The completion has each part's checksum where the upload has some. (Fails where it is left out.) */
static void test_the_list_has_checksums(void **state)
{
#define DONE "<CompleteMultipartUploadResult><ETag>&quot;abc-2&quot;</ETag></CompleteMultipartUploadResult>"
    static const struct script_step steps[] = {
        {.answer = "HTTP/1.1 200 OK\r\nContent-Length: 93\r\n\r\n" DONE},
        {.answer = "HTTP/1.1 200 OK\r\nContent-Length: 93\r\n\r\n" DONE},
    };
#define A_MD5 "0cc175b9c0f1b6a831c399e269772661"
    static const struct origin_part parts[] = {
        {.number = 2, .etag = SLICE_LIT(A_MD5), .sum = SLICE_LIT("01020304")},
        {.number = 3, .etag = SLICE_LIT(A_MD5), .sum = SLICE_LIT(ABC_CRC32)}};
    struct origin_put p = {.key = SLICE_LIT("k"), .sums = SLICE_LIT("crc32 COMPOSITE")};
    struct origin_attr attr;
    struct fixture f;
    struct err e = {0};
    (void)state;
    fixture_start(&f, "s3://b", steps, ARRAY_SIZE(steps), NULL);
    assert_int_equal(origin_upload_complete(f.origin, &p, SLICE_LIT("id"), parts, 2, 8, f.arena, &attr, &e),
                     0);
    assert_non_null(strstr(f.script.body, "<PartNumber>2</PartNumber><ETag>&quot;" A_MD5 "&quot;</ETag>"
                                          "<ChecksumCRC32>AQIDBA==</ChecksumCRC32></Part><Part>"));
    assert_non_null(strstr(f.script.body, "<ChecksumCRC32>" ABC_BASE64 "</ChecksumCRC32></Part></Complete"));
    p.sums = SLICE_NULL;
    assert_int_equal(origin_upload_complete(f.origin, &p, SLICE_LIT("id"), parts, 2, 8, f.arena, &attr, &e),
                     0);
    assert_null(strstr(f.script.body, "Checksum"));
    fixture_stop(&f);
}

/* ---- what the service tells ---- */

static int head(struct fixture *f, uint32_t part, struct origin_attr *ret)
{
    const struct origin_get g = {.key = SLICE_LIT("k"), .whole = true, .attributes_only = true, .part = part};
    struct sink s = {0};
    struct err e = {0};
    return origin_get(f->origin, &g, f->arena, ret, on_bytes, &s, &e);
}

/* An object's checksum is believed in the form that its type has; a part's is told with the part. (Fails
 * where the type is not looked at, and where a HEAD of a part does not ask.) */
static void test_what_is_told(void **state)
{
#define HEAD(status, more)                                                                                   \
    {                                                                                                        \
        .answer = "HTTP/1.1 " status "\r\nETag: \"e\"\r\nContent-Length: 8\r\n" more "\r\n"                  \
    }
    static const struct script_step steps[] = {
        HEAD("200 OK", "x-amz-checksum-crc32: AQIDBA==-2\r\n" TYPE("COMPOSITE")),
        HEAD("200 OK", TYPE("COMPOSITE") "x-amz-meta-a: b\r\nx-amz-checksum-crc32: AQIDBA==\r\n"),
        HEAD("200 OK", "x-amz-checksum-crc32: AQIDBA==\r\n" TYPE("FULL_OBJECT")),
        HEAD("206 Partial Content", "Content-Range: bytes 5-12/20\r\nx-amz-mp-parts-count: 2\r\n"
                                    "x-amz-checksum-sha1: AQID\r\n" TYPE("COMPOSITE")),
        HEAD("206 Partial Content", "Content-Range: bytes 5-12/20\r\nx-amz-mp-parts-count: 2\r\n"),
    };
    static const char *const sums[] = {"crc32 AQIDBA==-2", "", "crc32 AQIDBA=="};
    struct origin_attr attr;
    struct fixture f;
    (void)state;
    fixture_start(&f, "s3://b", steps, ARRAY_SIZE(steps), NULL);
    for (size_t i = 0; i < ARRAY_SIZE(sums); i++) {
        assert_int_equal(head(&f, 0, &attr), 0);
        assert_true(slice_eq_str(meta_get(attr.meta, META_CHECKSUM), sums[i]));
        assert_int_equal(meta_get(attr.meta, "x-amz-meta-a").n, i == 1);
    }
    assert_int_equal(head(&f, 2, &attr), 0);
    assert_true(slice_eq_str(attr.part_sum, "sha1 AQID") && attr.n_parts == 2);
    assert_header(&f, 3, "x-amz-checksum-mode", "ENABLED");
    assert_int_equal(head(&f, 2, &attr), 0);
    assert_int_equal(attr.part_sum.n, 0);
    fixture_stop(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_answer_decides),
        cmocka_unit_test(test_other_answers_begin_without),
        cmocka_unit_test(test_what_is_not_aborted_is_told),
        cmocka_unit_test(test_who_is_not_asked),
        cmocka_unit_test(test_a_part_with_a_checksum),
        cmocka_unit_test(test_a_part_without_its_checksum),
        cmocka_unit_test(test_frames),
        cmocka_unit_test(test_the_list_has_checksums),
        cmocka_unit_test(test_what_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

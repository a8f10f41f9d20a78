/* layer: jobs */
#include "jobs/digest.h"
#include "jobs/filter.h"
#include "jobs/job.h"
#include "jobs/newest.h"
#include "jobs/rate.h"
#include "namespace/seal.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static enum job_state next_of(enum job_state s, enum job_event ev)
{
    enum job_state next = JOB_N_STATES;
    (void)job_next_state(s, ev, &next);
    return next;
}

/* The life of a job as users see it: begin, pause, resume, end, retry. */
static void test_states_follow_what_users_ask(void **state)
{
    (void)state;
    assert_int_equal(next_of(JOB_QUEUED, JOB_ON_BEGIN), JOB_RUNNING);
    assert_int_equal(next_of(JOB_RUNNING, JOB_ON_PAUSE), JOB_PAUSED);
    assert_int_equal(next_of(JOB_PAUSED, JOB_ON_RESUME), JOB_QUEUED);
    assert_int_equal(next_of(JOB_RUNNING, JOB_ON_INTERRUPT), JOB_QUEUED);
    assert_int_equal(next_of(JOB_RUNNING, JOB_ON_FINISH_PARTLY), JOB_PARTIAL);
    assert_int_equal(next_of(JOB_PARTIAL, JOB_ON_RETRY), JOB_QUEUED);
    assert_int_equal(next_of(JOB_FAILED, JOB_ON_RESUME), JOB_QUEUED);
}

/* What has ended well or was cancelled never runs again, and an interruption changes no state but running. */
static void test_final_states_stay(void **state)
{
    (void)state;
    static const enum job_state ended[] = {JOB_DONE, JOB_CANCELLED};
    for (size_t i = 0; i < ARRAY_SIZE(ended); i++)
        for (int ev = 0; ev < JOB_N_EVENTS; ev++) {
            enum job_state next = ended[i];
            (void)job_next_state(ended[i], (enum job_event)ev, &next);
            assert_int_equal(next, ended[i]);
        }
    for (int s = 0; s < JOB_N_STATES; s++)
        assert_int_equal(next_of((enum job_state)s, JOB_ON_INTERRUPT), s == JOB_RUNNING ? JOB_QUEUED : s);
}

#define GOLDEN_FIELDS                                                                                        \
    "forebay job 1\nkind=copy\nstate=1\nphase=1\ncreated_ns=17\nended_ns=0\ntotal_objects=9\n"               \
    "total_bytes=900\ndone_objects=3\ndone_bytes=300\nskipped_objects=1\nremoved_objects=0\n"                \
    "failed_objects=2\nsource=data/a%20b/\ntarget=other/\ncursor=a%20b/%0Ax\nreason=\n"
#define GOLDEN_SPEC "\ninclude=*.bin\ninclude=a,b\nrate=5M/s\nparallel=3\n"
#define GOLDEN      GOLDEN_FIELDS GOLDEN_SPEC

/* The record's bytes are these and no others: they are read by later versions. */
static void test_record_is_golden(void **state)
{
    (void)state;
    struct job_record r = {0}, back = {0};
    struct err e = {0};
    assert_int_equal(job_record_decode(SLICE_LIT(GOLDEN), NULL, &r, &e), 0);
    assert_string_equal(r.source, "data/a b/");
    assert_string_equal(r.cursor, "a b/\nx");
    assert_int_equal(r.spec.include.n, 2);
    assert_string_equal(r.spec.include.v[1], "a,b");
    assert_int_equal(r.spec.parallel, 3);
    assert_int_equal(r.failed_objects, 2);
    _cleanup_buf_ struct buf b = BUF_INIT(JOB_RECORD_MAX);
    assert_int_equal(job_record_encode(&r, NULL, &b, &e), 0);
    assert_string_equal(b.p, GOLDEN);
    assert_int_equal(job_record_decode(buf_view(&b), NULL, &back, &e), 0);
    job_record_fini(&r);
    job_record_fini(&back);
}

/* What a target did not take stands behind the fields, where there is any; records of before have none. */
static void test_lost_modes_are_kept(void **state)
{
    (void)state;
    struct job_record r = {0}, bad = {0};
    struct err e = {0};
    assert_int_equal(job_record_decode(SLICE_LIT(GOLDEN_FIELDS "modes_lost=7\n" GOLDEN_SPEC), NULL, &r, &e),
                     0);
    assert_int_equal(r.modes_lost, 7);
    assert_int_equal(r.spec.parallel, 3);
    _cleanup_buf_ struct buf b = BUF_INIT(JOB_RECORD_MAX);
    assert_int_equal(job_record_encode(&r, NULL, &b, &e), 0);
    assert_string_equal(b.p, GOLDEN_FIELDS "modes_lost=7\n" GOLDEN_SPEC);
    assert_int_equal(
        job_record_decode(SLICE_LIT(GOLDEN_FIELDS "modes_lost=x\n" GOLDEN_SPEC), NULL, &bad, NULL),
        ERR_CORRUPT);
    job_record_fini(&r);
    job_record_fini(&bad);
}

/* So does that its list has not come whole. */
static void test_a_list_that_comes_is_noted(void **state)
{
    (void)state;
    struct job_record r = {0};
    static const char text[] = GOLDEN_FIELDS "modes_lost=7\nlist_comes=1\n" GOLDEN_SPEC;
    assert_int_equal(job_record_decode(slice_str(text), NULL, &r, NULL), 0);
    assert_int_equal(r.list_comes, 1);
    assert_int_equal(r.modes_lost, 7);
    _cleanup_buf_ struct buf b = BUF_INIT(JOB_RECORD_MAX);
    assert_int_equal(job_record_encode(&r, NULL, &b, NULL), 0);
    assert_string_equal(b.p, text);
    job_record_fini(&r);
}

/* Where there is a key, what --set says is not readable in the record; the job that it is of reads it again,
 * and no other. */
static void test_settings_are_sealed(void **state)
{
    (void)state;
    static const uint8_t key[SEAL_KEY_BYTES] = {7};
    _cleanup_(seal_freep) struct seal *seal = seal_new(key);
    struct job_record r = {.id = 5}, back = {.id = 5}, other = {.id = 6}, none = {.id = 5};
    assert_int_equal(job_record_decode(SLICE_LIT(GOLDEN "set=origin.secret_key=hush\n"), NULL, &r, NULL), 0);
    _cleanup_buf_ struct buf b = BUF_INIT(JOB_RECORD_MAX);
    assert_int_equal(job_record_encode(&r, seal, &b, NULL), 0);
    assert_null(strstr(b.p, "hush"));
    assert_non_null(strstr(b.p, "include=a,b\n"));
    assert_non_null(strstr(b.p, "\nset@1="));
    assert_int_equal(job_record_decode(buf_view(&b), seal, &back, NULL), 0);
    assert_string_equal(back.spec.set.v[0], "origin.secret_key=hush");
    assert_int_equal(job_record_decode(buf_view(&b), seal, &other, NULL), ERR_CORRUPT);
    assert_int_equal(job_record_decode(buf_view(&b), NULL, &none, NULL), ERR_CORRUPT);
    job_record_fini(&r);
    job_record_fini(&back);
    job_record_fini(&other);
    job_record_fini(&none);
}

/* A record cut anywhere before its spec is refused, never half taken; so is a state that does not exist. */
static void test_damaged_records_are_refused(void **state)
{
    (void)state;
    size_t fields = (size_t)slice_find_slice(SLICE_LIT(GOLDEN), SLICE_LIT("\n\n")) + 1;
    for (size_t n = 0; n < fields; n++) {
        struct job_record r = {0};
        assert_int_equal(job_record_decode(slice_sub(SLICE_LIT(GOLDEN), 0, n), NULL, &r, NULL), ERR_CORRUPT);
        job_record_fini(&r);
    }
    _cleanup_free_ char *bad = slice_dup(SLICE_LIT(GOLDEN));
    *(strstr(bad, "state=1") + 6) = '9';
    struct job_record r = {0};
    assert_int_equal(job_record_decode(slice_str(bad), NULL, &r, NULL), ERR_CORRUPT);
    job_record_fini(&r);
}

/* Keys and error records of the control store are these bytes. */
static void test_keys_are_golden(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf b = BUF_INIT(JOB_KEY_MAX);
    uint64_t id = 0;
    int code = 0;
    struct slice reason;
    job_key_record(0x1f, &b);
    assert_string_equal(b.p, "j/r/000000000000001f");
    assert_int_equal(job_parse_key_record(buf_view(&b), &id), 0);
    assert_int_equal(id, 0x1f);
    job_key_error(0x1f, SLICE_LIT("a/b"), &b);
    assert_string_equal(b.p, "j/e/000000000000001f/a/b");
    assert_int_equal(slice_cmp(slice_from(buf_view(&b), JOB_KEY_HEAD), SLICE_LIT("a/b")), 0);
    buf_clear(&b);
    assert_int_equal(job_error_encode(-5, "two\nlines", &b), 0);
    assert_string_equal(b.p, "-5\ntwo\nlines");
    assert_int_equal(job_error_decode(buf_view(&b), &code, &reason), 0);
    assert_int_equal(code, -5);
    assert_true(slice_eq_str(reason, "two\nlines"));
    assert_int_equal(job_error_decode(SLICE_LIT("5\nx"), &code, &reason), ERR_CORRUPT);
}

/* Globs: stars cross slashes, sets and their negation, escapes, an open bracket that is not closed. */
static void test_globs(void **state)
{
    (void)state;
    static const struct {
        const char *glob, *key;
        bool match;
    } cases[] = {
        {"*", "", true},
        {"*.bin", "a/b.bin", true},
        {"*.bin", "a.bin2", false},
        {"a?c", "abc", true},
        {"a?c", "ac", false},
        {"[a-c]x", "bx", true},
        {"[!a-c]x", "bx", false},
        {"[!a-c]x", "dx", true},
        {"[]]", "]", true},
        {"[ab", "[ab", true},
        {"\\*", "*", true},
        {"\\*", "x", false},
        {"a*b*c", "aXbYbZc", true},
        {"a*b*c", "aXcYb", false},
        {"**", "anything", true},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
        if (filter_glob(slice_str(cases[i].glob), slice_str(cases[i].key)) != cases[i].match)
            fail_msg("%s against %s", cases[i].glob, cases[i].key);
}

static bool matches(const char *spec, const char *key, uint64_t size, uint64_t mtime_s)
{
    struct job_spec s = {0};
    struct err e = {0};
    struct filter *f = NULL;
    if (job_spec_decode(slice_str(spec), &s, &e) < 0 || filter_open(&s, &f, &e) < 0)
        fail_msg("%s", e.text);
    bool m = filter_match(f, slice_str(key), size, mtime_s * 1000000000);
    filter_free(f);
    job_spec_fini(&s);
    return m;
}

/* Every condition must hold; one of several globs is enough; ends of ranges are as documented. */
static void test_filters_select(void **state)
{
    (void)state;
    assert_true(matches("", "k", 1, 1));
    assert_true(matches("include=a*\ninclude=b*\n", "bx", 1, 1));
    assert_false(matches("include=a*\n", "bx", 1, 1));
    assert_false(matches("include=b*\nexclude=*x\n", "bx", 1, 1));
    assert_true(matches("regex=^b[0-9]+$\n", "b12", 1, 1));
    assert_false(matches("regex=^b[0-9]+$\n", "b12x", 1, 1));
    assert_true(matches("min-size=10\nmax-size=20\n", "k", 10, 1));
    assert_true(matches("min-size=10\nmax-size=20\n", "k", 20, 1));
    assert_false(matches("min-size=10\nmax-size=20\n", "k", 21, 1));
    assert_true(matches("newer=1970-01-01T00:01:40Z\n", "k", 1, 100));
    assert_false(matches("newer=1970-01-01T00:01:40Z\n", "k", 1, 99));
    assert_false(matches("older=1970-01-01T00:01:40Z\n", "k", 1, 100));
}

static int open_regex(const char *regex)
{
    struct job_spec s = {.regex = (char *)(uintptr_t)regex};
    struct err e = {0};
    struct filter *f = NULL;
    int r = filter_open(&s, &f, &e);
    if (r < 0)
        assert_non_null(strstr(e.text, "--regex"));
    filter_free(f);
    return r;
}

/* An expression that regcomp would need the whole stack or gigabytes for is refused before it is compiled;
 * those that people write are not. */
static void test_huge_regexes_are_refused(void **state)
{
    (void)state;
    char deep[1001];
    memset(deep, '(', 500);
    memset(deep + 500, ')', 500);
    deep[1000] = '\0';
    assert_int_equal(open_regex(deep), ERR_BAD_OPTION);
    assert_int_equal(open_regex("((a{1,255}){1,255}){1,255}"), ERR_BAD_OPTION);
    assert_int_equal(open_regex("((((((((((a+)+)+)+)+)+)+)+)+)+)+"), ERR_BAD_OPTION);
    assert_int_equal(open_regex("a{99999999999999999999}"), ERR_BAD_OPTION);
    assert_int_equal(open_regex("(a*)*\\1"), ERR_BAD_OPTION);
    assert_int_equal(open_regex("^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"), 0);
    assert_int_equal(open_regex("^(train|val)/[[:alpha:]_]+-[](){}]?[0-9]{5}-of-[0-9]{5}\\.(tar|zst)$"), 0);
}

/* What cannot be understood is refused with the option's name. */
static void test_bad_filters_are_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {"regex=(\n", "newer=yesterday\n", "min-size=9\nmax-size=8\n",
                                      "newer=2026-01-02\nolder=2026-01-01\n",
                                      "newer=2026-01-02\nolder=2026-01-02\n"};
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        struct job_spec s = {0};
        struct err e = {0};
        struct filter *f = NULL;
        assert_int_equal(job_spec_decode(slice_str(bad[i]), &s, &e), 0);
        assert_int_equal(filter_open(&s, &f, &e), ERR_BAD_OPTION);
        assert_non_null(strstr(e.text, "--"));
        job_spec_fini(&s);
    }
}

/* Over any stretch the bytes let through are at most the rate plus a second's burst, and idle time is not
 * saved up beyond that. */
static void test_rate_holds(void **state)
{
    (void)state;
    struct rate r = {.bytes_per_s = 1000};
    uint64_t now = 100ull * 1000000000, began = now, moved = 0;
    for (int i = 0; i < 1000; i++) {
        now += rate_take(&r, 70, now);
        moved += 70;
        assert_true(moved <= 1000 + (now - began) / 1000000 + 1);
    }
    assert_true(now - began >= 68ull * 1000000000 && now - began <= 70ull * 1000000000);
    struct rate none = {0};
    assert_int_equal(rate_take(&none, UINT64_MAX, now), 0);
}

/* The sums do not depend on how the stream is cut, and ETags of both kinds are known again. */
static void test_digests(void **state)
{
    (void)state;
    static const size_t steps[] = {1, 3, 7, 100};
    for (size_t i = 0; i < ARRAY_SIZE(steps); i++) {
        struct digest_sums s;
        _cleanup_(digest_freep) struct digest *d =
            digest_new(10, 4, DIGEST_OF_ALL | DIGEST_OF_PARTS, /* hasher= */ NULL);
        const char *text = "0123456789";
        for (size_t at = 0; at < 10; at += steps[i])
            digest_add(d, text + at, MIN(steps[i], 10 - at));
        digest_end(d, &s);
        assert_int_equal(s.size_bytes, 10);
        assert_int_equal(s.n_parts, 3);
        assert_true(digest_is_etag(&s, SLICE_LIT("781e5e245d69b566979b86e28d23f2c7")));
        assert_true(digest_is_etag(&s, SLICE_LIT("61e3716e3a7767581863b67c4e785584-3")));
        assert_false(digest_is_etag(&s, SLICE_LIT("61e3716e3a7767581863b67c4e785584-2")));
        assert_false(digest_is_etag(&s, SLICE_LIT("")));
    }
}

/* Bytes that are read in any order, at most so many at once. */
struct fake_file {
    size_t most;
    uint64_t changes_at; /* whose byte is another one each time it is read */
    uint8_t changed;
    uint64_t read, told;
    bool fails;
};

static char byte_at(uint64_t at)
{
    return (char)(at * 7 + (at >> 8));
}

static ssize_t fake_read(void *arg, void *p, size_t n, uint64_t offset)
{
    struct fake_file *f = arg;
    n = MIN(n, f->most);
    for (size_t i = 0; i < n; i++)
        ((char *)p)[i] = byte_at(offset + i);
    if (f->changes_at >= offset && f->changes_at - offset < n)
        ((char *)p)[f->changes_at - offset] = (char)f->changed++;
    f->read += n;
    return f->fails && f->read > 1000000 ? -EIO : (ssize_t)n;
}

static void fake_follow(void *arg, uint64_t summed)
{
    struct fake_file *f = arg;
    assert_true(summed <= f->read && summed >= f->told);
    f->told = summed;
}

static int sums_of_file(struct fake_file *fake, uint64_t size, uint64_t part_bytes, unsigned sums,
                        bool in_order, struct digest_sums *ret)
{
    _cleanup_(digest_freep) struct digest *d = digest_new(size, part_bytes, sums, /* hasher= */ NULL);
    const struct digest_file f = {
        .size_bytes = size, .in_order = in_order, .read = fake_read, .follow = fake_follow, .arg = fake};
    int r = digest_file(d, &f);
    if (r == 0)
        digest_end(d, ret);
    return r;
}

static void assert_same_sums(const struct digest_sums *x, const struct digest_sums *y)
{
    assert_int_equal(x->size_bytes, y->size_bytes);
    assert_int_equal(x->there, y->there);
    assert_int_equal(x->n_parts, y->n_parts);
    assert_int_equal(x->crc32c, y->crc32c);
    assert_memory_equal(x->sha256, y->sha256, DIGEST_SHA256);
    assert_memory_equal(x->parts_md5, y->parts_md5, DIGEST_MD5);
}

/* A file's sums are those of its bytes in their order, however many parts are computed at once, and however
 * little a reading gives. */
static void test_digest_of_a_file(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {0, 1, 100000, 100001, 799999, 800000, 800001, 1700123};
    unsigned sums = DIGEST_OF_PARTS | DIGEST_SHA256_OF_ALL | DIGEST_CRC32C_OF_ALL;
    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
        struct fake_file whole = {SIZE_MAX, UINT64_MAX}, little = {777, UINT64_MAX};
        struct digest_sums wanted, found, in_order;
        _cleanup_(digest_freep) struct digest *d = digest_new(sizes[i], 100000, sums, /* hasher= */ NULL);
        for (uint64_t at = 0; at < sizes[i]; at++) {
            char c = byte_at(at);
            digest_add(d, &c, 1);
        }
        digest_end(d, &wanted);
        assert_int_equal(sums_of_file(&whole, sizes[i], 100000, sums, false, &found), 0);
        assert_int_equal(sums_of_file(&little, sizes[i], 100000, sums, true, &in_order), 0);
        assert_same_sums(&found, &wanted);
        assert_same_sums(&in_order, &wanted);
        assert_int_equal(little.read, sizes[i]); /* once */
        little = (struct fake_file){777, UINT64_MAX};
        assert_int_equal(sums_of_file(&little, sizes[i], 100000, sums, false, &found), 0);
        assert_same_sums(&found, &wanted);
    }
}

/* The sums of one file are of the same bytes: one that is written to while it is read in lanes, wherever, has
 * none. (Without the comparison in sum_lanes the manifest could have the sum of bytes that were not sent.)
 * An error of a reading is told. */
static void test_digest_of_a_file_that_changes(void **state)
{
    (void)state;
    static const uint64_t places[] = {0, 99999, 100000, 900000, 1700122};
    struct digest_sums s;
    unsigned sums = DIGEST_OF_PARTS | DIGEST_SHA256_OF_ALL;
    for (size_t i = 0; i < ARRAY_SIZE(places); i++) {
        struct fake_file f = {SIZE_MAX, places[i]};
        assert_int_equal(sums_of_file(&f, 1700123, 100000, sums, false, &s), ERR_VERSION_CHANGED);
    }
    struct fake_file broken = {SIZE_MAX, UINT64_MAX, .fails = true};
    assert_int_equal(sums_of_file(&broken, 1700123, 100000, sums, false, &s), -EIO);
}

#define LARGE_BYTES  (MIB + 12345)
#define LARGE_PIECES ((size_t)100 * 1000)

static void sums_of_large(struct hasher *h, uint64_t part_bytes, struct digest_sums *ret)
{
    _cleanup_(digest_freep) struct digest *d =
        digest_new(LARGE_BYTES, part_bytes, DIGEST_OF_ALL | DIGEST_OF_PARTS, h);
    char piece[LARGE_PIECES];
    for (size_t at = 0; at < LARGE_BYTES;) {
        size_t n = MIN(sizeof(piece), LARGE_BYTES - at);
        for (size_t i = 0; i < n; i++)
            piece[i] = (char)((at + i) * 7 + ((at + i) >> 8));
        digest_add(d, piece, n);
        digest_wait(d);
        at += n;
    }
    digest_end(d, ret);
}

/* A hasher gives the same sums, of parts that are smaller than a piece, larger, and all; a digest may be
 * given up with bytes on their way. */
static void test_digests_beside(void **state)
{
    (void)state;
    static const uint64_t parts[] = {10000, 300000, 2 * LARGE_BYTES};
    struct hasher *h = hasher_start(2);
    assert_non_null(h);
    for (size_t i = 0; i < ARRAY_SIZE(parts); i++) {
        struct digest_sums alone, beside;
        sums_of_large(NULL, parts[i], &alone);
        sums_of_large(h, parts[i], &beside);
        assert_int_equal(alone.n_parts, beside.n_parts);
        assert_memory_equal(alone.md5, beside.md5, DIGEST_MD5);
        assert_memory_equal(alone.parts_md5, beside.parts_md5, DIGEST_MD5);
        assert_memory_equal(alone.sha256, beside.sha256, DIGEST_SHA256);
    }
    char *bytes = calloc(1, MIB);
    assert_non_null(bytes);
    struct digest *d = digest_new(MIB, 300000, DIGEST_OF_ALL | DIGEST_OF_PARTS, h);
    digest_add(d, bytes, MIB);
    digest_free(d);
    free(bytes);
    hasher_stop(h);
}

static bool is_etag(uint64_t part_bytes, unsigned etags, const char *etag)
{
    struct digest_sums s;
    _cleanup_(digest_freep) struct digest *d = digest_new(10, part_bytes, etags, /* hasher= */ NULL);
    digest_add(d, "0123456789", 10);
    digest_end(d, &s);
    return digest_is_etag(&s, slice_str(etag));
}

/* What is not asked for is not computed and matches nothing; of one part each kind gives the other. */
static void test_digests_of_what_is_asked_for(void **state)
{
    (void)state;
    static const char all[] = "781e5e245d69b566979b86e28d23f2c7",
                      parts[] = "61e3716e3a7767581863b67c4e785584-3",
                      one[] = "8e938564cd1410f0ec1c1781466a6738-1";
    assert_true(is_etag(4, DIGEST_OF_ALL, all) && !is_etag(4, DIGEST_OF_ALL, parts));
    assert_true(is_etag(4, DIGEST_OF_PARTS, parts) && !is_etag(4, DIGEST_OF_PARTS, all));
    for (unsigned etags = DIGEST_OF_ALL; etags <= (DIGEST_OF_ALL | DIGEST_OF_PARTS); etags++)
        assert_true(is_etag(10, etags, all) && is_etag(10, etags, one));
    assert_false(is_etag(4, DIGEST_NO_ETAG, all) || is_etag(10, DIGEST_NO_ETAG, all) ||
                 is_etag(4, DIGEST_NO_ETAG, "d41d8cd98f00b204e9800998ecf8427e"));
}

/* Two streams are the same when all sums that both have are, whichever those are. */
static void test_digests_tell_streams_apart(void **state)
{
    (void)state;
    for (unsigned sums = 1; sums <= (DIGEST_ETAGS | DIGEST_SHA256_OF_ALL | DIGEST_CRC32C_OF_ALL); sums++) {
        struct digest_sums a, b, other;
        static const char *const texts[] = {"0123456789", "0123456789", "0123456780"};
        struct digest_sums *rets[] = {&a, &b, &other};
        for (size_t i = 0; i < ARRAY_SIZE(texts); i++) {
            _cleanup_(digest_freep) struct digest *d = digest_new(10, 4, sums, /* hasher= */ NULL);
            digest_add(d, texts[i], 10);
            digest_end(d, rets[i]);
            assert_int_equal(rets[i]->there, sums);
        }
        assert_true(digest_is_same(&a, &b));
        assert_false(digest_is_same(&a, &other));
    }
}

static void choose(uint64_t n, size_t prefix_bytes, const char *const *keys, size_t n_keys,
                   struct option_list *ret, uint64_t *ret_objects, uint64_t *ret_bytes)
{
    _cleanup_(newest_freep) struct newest *w = newest_new(n, prefix_bytes);
    for (size_t i = 0; i < n_keys; i++) /* "KEY=TIME", one byte each */
        newest_add(w, slice_sub(slice_str(keys[i]), 0, strcspn(keys[i], "=")), 1,
                   strtoull(strchr(keys[i], '=') + 1, NULL, 10));
    newest_end(w, ret, ret_objects, ret_bytes);
}

static void list_free(struct option_list *l)
{
    for (size_t i = 0; i < l->n; i++)
        free(l->v[i]);
    free(l->v);
    *l = (struct option_list){0};
}

/* Entries are folders or objects; a folder is as new as the newest in it; what is chosen holds just these
 * keys. */
static void test_newest_entries(void **state)
{
    (void)state;
    static const char *const keys[] = {"p/=9", "p/a/1=5", "p/a/2=1", "p/a0=4", "p/b/x/y=3", "p/c=2"};
    struct option_list l = {0};
    uint64_t objects, bytes;
    choose(2, 2, keys, ARRAY_SIZE(keys), &l, &objects, &bytes);
    assert_int_equal(l.n, 2);
    assert_int_equal(objects, 3);
    assert_int_equal(bytes, 3);
    assert_true(newest_holds(&l, SLICE_LIT("p/a/2")));
    assert_true(newest_holds(&l, SLICE_LIT("p/a0")));
    assert_false(newest_holds(&l, SLICE_LIT("p/a00")));
    assert_false(newest_holds(&l, SLICE_LIT("p/b/x/y")));
    assert_false(newest_holds(&l, SLICE_LIT("p/")));
    list_free(&l);
    choose(100, 1, keys, ARRAY_SIZE(keys), &l, &objects, &bytes); /* the prefix without its slash */
    assert_int_equal(l.n, 4);
    assert_int_equal(objects, 5);
    list_free(&l);
    choose(1, 0, NULL, 0, &l, &objects, &bytes);
    assert_int_equal(l.n + objects + bytes, 0);
    list_free(&l);
}

/* Names with line breaks, percent signs and bytes that are no text are chosen like all others, and what a
 * record keeps of the choice comes back as it was. */
static void test_newest_entries_of_any_name(void **state)
{
    (void)state;
    static const char *const keys[] = {"a\n%0A/1=5", "a\nb=6", "caf\xe9=7", "z\x7f=1"};
    struct option_list l = {0};
    uint64_t objects, bytes;
    choose(3, 0, keys, ARRAY_SIZE(keys), &l, &objects, &bytes);
    assert_int_equal(l.n, 3);
    struct job_record r = {0}, back = {0};
    struct err e = {0};
    assert_int_equal(job_spec_decode(SLICE_NULL, &r.spec, &e), 0);
    r.spec.chosen = l;
    _cleanup_buf_ struct buf b = BUF_INIT(JOB_SPEC_MAX_BYTES);
    assert_int_equal(job_spec_encode(&r.spec, &b, &e), 0);
    assert_int_equal(job_spec_decode(buf_view(&b), &back.spec, &e), 0);
    const struct option_list *c = &back.spec.chosen;
    assert_true(newest_holds(c, SLICE_LIT("a\n%0A/1")) && newest_holds(c, SLICE_LIT("a\n%0A/2")));
    assert_true(newest_holds(c, SLICE_LIT("a\nb")) && newest_holds(c, SLICE_LIT("caf\xe9")));
    assert_false(newest_holds(c, SLICE_LIT("a")) || newest_holds(c, SLICE_LIT("a%0Ab")) ||
                 newest_holds(c, SLICE_LIT("a\n\n/1")) || newest_holds(c, SLICE_LIT("z\x7f")));
    job_spec_fini(&back.spec);
    job_spec_fini(&r.spec); /* and the list */
}

/* Of entries that changed at the same time the last ones in byte order are chosen, however many there are. */
static void test_newest_entries_of_one_time(void **state)
{
    (void)state;
    static const char *const keys[] = {"a/1=5", "b/1=5", "c/1=5", "d/1=5", "e/1=1"};
    struct option_list l = {0};
    uint64_t objects, bytes;
    choose(2, 0, keys, ARRAY_SIZE(keys), &l, &objects, &bytes);
    assert_int_equal(l.n, 2);
    assert_true(newest_holds(&l, SLICE_LIT("c/1")) && newest_holds(&l, SLICE_LIT("d/1")));
    list_free(&l);
}

/* Rates as people write them; nothing and zero are refused. */
static void test_rates_parse(void **state)
{
    (void)state;
    uint64_t v = 0;
    assert_int_equal(job_spec_parse_rate("5MiB/s", &v), 0);
    assert_int_equal(v, 5 * MIB);
    assert_int_equal(job_spec_parse_rate("100", &v), 0);
    assert_int_equal(job_spec_parse_rate("0", &v), -EINVAL);
    assert_int_equal(job_spec_parse_rate("fast", &v), -EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_states_follow_what_users_ask),
        cmocka_unit_test(test_final_states_stay),
        cmocka_unit_test(test_record_is_golden),
        cmocka_unit_test(test_lost_modes_are_kept),
        cmocka_unit_test(test_a_list_that_comes_is_noted),
        cmocka_unit_test(test_settings_are_sealed),
        cmocka_unit_test(test_damaged_records_are_refused),
        cmocka_unit_test(test_keys_are_golden),
        cmocka_unit_test(test_globs),
        cmocka_unit_test(test_filters_select),
        cmocka_unit_test(test_huge_regexes_are_refused),
        cmocka_unit_test(test_bad_filters_are_refused),
        cmocka_unit_test(test_rate_holds),
        cmocka_unit_test(test_rates_parse),
        cmocka_unit_test(test_digests),
        cmocka_unit_test(test_digests_beside),
        cmocka_unit_test(test_digest_of_a_file),
        cmocka_unit_test(test_digest_of_a_file_that_changes),
        cmocka_unit_test(test_digests_of_what_is_asked_for),
        cmocka_unit_test(test_digests_tell_streams_apart),
        cmocka_unit_test(test_newest_entries),
        cmocka_unit_test(test_newest_entries_of_any_name),
        cmocka_unit_test(test_newest_entries_of_one_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

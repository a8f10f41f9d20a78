/* layer: object */
#include "object/plan.h"

#include "store/store.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define WINDOW (128 * MIB)

/* One open file under a plan, and what was wanted of it so far. */
struct file {
    struct plan *p;
    uint64_t size, max_window, present, missing_at;
    struct plan_wants w;
};

static struct file opened(const char *name, uint64_t size, uint64_t offset)
{
    return (struct file){.p = plan_new(slice_str(name), size, offset),
                         .size = size,
                         .max_window = WINDOW,
                         .missing_at = UINT64_MAX};
}

static void reads(struct file *f, uint64_t offset, uint64_t n)
{
    struct plan_ask q = {offset, n, f->max_window, f->present, f->missing_at};
    plan_read(f->p, &q, &f->w);
}

/* How far the range with the read reaches. */
static uint64_t reach(const struct file *f)
{
    return f->w.range[0].end;
}

/* Bytes of ranges beside the first. */
static uint64_t elsewhere(const struct file *f)
{
    uint64_t n = 0;
    for (unsigned i = 1; i < f->w.n; i++)
        n += f->w.range[i].end - f->w.range[i].offset;
    return n;
}

static bool wants(const struct file *f, uint64_t offset, uint64_t n)
{
    for (unsigned i = 0; i < f->w.n; i++)
        if (f->w.range[i].offset <= offset && f->w.range[i].end >= offset + n)
            return true;
    return false;
}

static bool knows(const struct file *f, enum plan_pattern pattern)
{
    return plan_patterns(f->p) >> pattern & 1;
}

/* A layout of n pieces, each `length` long, from `first` on. */
static void has_layout(struct file *f, enum layout_kind kind, uint64_t first, uint64_t length, uint32_t n,
                       uint32_t group)
{
    struct layout *l = calloc(1, sizeof(*l));
    assert_non_null(l);
    *l = (struct layout){.kind = kind, .end = first + n * length, .n = n, .group = group};
    l->starts = calloc(n, sizeof(l->starts[0]));
    assert_non_null(l->starts);
    for (uint32_t i = 0; i < n; i++)
        l->starts[i] = first + i * length;
    layout_check(l, f->size);
    struct layout_look seen = plan_look(f->p), next = {.kind = kind};
    assert_true(plan_learn(f->p, &seen, &next, &l));
    assert_null(l);
}

static uint64_t draw(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005ull + 1442695040888963407ull;
    return *seed >> 20;
}

/* ---- one place ---- */

/* A small object is always fetched whole, wherever it is touched. */
static void test_small_object_is_fetched_whole(void **state)
{
    (void)state;
    struct plan_range r = plan_alone(100000, 10, 110000);
    assert_int_equal(r.offset, 0);
    assert_int_equal(r.end, 110000);
}

/* The first touch of a large object asks for one block around it and nothing ahead. */
static void test_first_touch_asks_for_one_block(void **state)
{
    (void)state;
    struct file f = opened("f", 100 * GIB, 0);
    reads(&f, 0, 4096);
    assert_int_equal(f.w.n, 1);
    assert_int_equal(f.w.range[0].offset, 0);
    assert_int_equal(reach(&f), MIB);
    plan_free(f.p);
}

/* A reader that jumps about never gets a window. */
static void test_random_reads_fetch_no_more_than_their_block(void **state)
{
    (void)state;
    struct file f = opened("f", 100 * GIB, 0);
    uint64_t offsets[] = {90 * GIB, 3 * GIB, 50 * GIB, 7 * MIB, 20 * GIB};
    for (size_t i = 0; i < ARRAY_SIZE(offsets); i++) {
        reads(&f, offsets[i], 4096);
        assert_int_equal(f.w.n, 1);
        assert_int_equal(f.w.range[0].offset, offsets[i]);
        assert_true(reach(&f) - offsets[i] <= MIB);
    }
    plan_free(f.p);
}

/* Ten thousand random small reads of 160 MiB ask for at most a fiftieth more than the blocks they touch. */
static void test_random_reads_waste_little(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 5; seed++) {
        struct file f = opened("f", 160 * MIB, 0);
        uint64_t s = seed, asked = 0, n = 10000;
        for (uint64_t i = 0; i < n; i++) {
            uint64_t offset = draw(&s) % (160 * MIB - 4096);
            reads(&f, offset, 4096);
            uint64_t own = MAX(offset + 4096, ALIGN_DOWN(offset, MIB) + MIB);
            asked += reach(&f) - own + elsewhere(&f);
        }
        assert_true(asked / MIB <= n / 50);
        plan_free(f.p);
    }
}

/* A sequential reader of 1 MiB pieces has the whole window ahead of it after 24 MiB at the latest. */
static void test_window_of_a_sequential_reader_grows_to_its_maximum(void **state)
{
    (void)state;
    struct file f = opened("f", 10 * GIB, 0);
    for (uint64_t at = 0; at < 24 * MIB; at += MIB)
        reads(&f, at, MIB);
    assert_int_equal(reach(&f), 24 * MIB + WINDOW);
    assert_true(knows(&f, PLAN_SEQUENTIAL));
    plan_free(f.p);
}

/* As the window slides, what is asked for anew comes in whole parts: a gigabyte costs some 128 requests, not
 * a thousand. */
static void test_sliding_window_asks_for_whole_parts(void **state)
{
    (void)state;
    struct file f = opened("f", GIB, 0);
    uint64_t ends = 0, last = 0;
    for (uint64_t at = 0; at < GIB; at += MIB) {
        reads(&f, at, MIB);
        ends += reach(&f) > last;
        last = MAX(last, reach(&f));
    }
    assert_true(ends <= 140);
    plan_free(f.p);
}

/* Reads of 8 MiB of which each is answered in part, so that the next begins a little further on (as S3's GET
 * fetches), are sequential. */
static void test_overlapping_reads_are_sequential(void **state)
{
    (void)state;
    struct file f = opened("f", 10 * GIB, 0);
    for (uint64_t at = 0; at < 64 * MIB; at += 64 * KIB)
        reads(&f, at, 8 * MIB);
    assert_true(reach(&f) >= 64 * MIB + WINDOW - PLAN_PART_BYTES);
    plan_free(f.p);
}

/* Three small sequential reads of a tar do not fetch a hundred megabytes. */
static void test_few_small_sequential_reads_fetch_little(void **state)
{
    (void)state;
    struct file f = opened("f", 100 * GIB, 0);
    for (uint64_t i = 0; i < 3; i++)
        reads(&f, i * 4096, 4096);
    assert_true(reach(&f) <= 16 * MIB);
    plan_free(f.p);
}

/* Members of 110 KB of which only the 512 bytes of their heads are read are a sequential reader's. */
static void test_heads_of_small_members_are_sequential(void **state)
{
    (void)state;
    struct file f = opened("a.tar", GIB, 0);
    for (uint64_t i = 0; i < 20; i++)
        reads(&f, i * 110 * KIB, 512);
    assert_true(reach(&f) >= 8 * MIB);
    plan_free(f.p);
}

/* Neighbouring pieces that arrive a little out of order, as a kernel sends them, count as sequential. */
static void test_slightly_disordered_reads_are_sequential(void **state)
{
    (void)state;
    struct file f = opened("f", GIB, 0);
    reads(&f, 0, 128 * KIB);
    reads(&f, 256 * KIB, 128 * KIB);
    reads(&f, 128 * KIB, 128 * KIB);
    assert_true(reach(&f) >= 8 * MIB);
    plan_free(f.p);
}

/* The rest of one read of 1 MiB, which a kernel divides at its pages, is not a second read; the next one is.
 */
static void test_rest_of_a_divided_read_is_no_pattern(void **state)
{
    (void)state;
    struct file f = opened("f", GIB, 0);
    reads(&f, 0, MIB - 1152);
    reads(&f, MIB - 1152, 1152);
    assert_true(reach(&f) <= MIB);
    reads(&f, MIB, MIB - 1152);
    assert_true(reach(&f) >= 8 * MIB);
    plan_free(f.p);
}

/* A jump begins without a window; who comes back finds his own again. */
static void test_jump_has_no_window_and_coming_back_has(void **state)
{
    (void)state;
    struct file f = opened("f", 10 * GIB, 0);
    for (uint64_t at = 0; at < 32 * MIB; at += MIB)
        reads(&f, at, MIB);
    reads(&f, 5 * GIB, 4096);
    assert_true(reach(&f) - 5 * GIB <= MIB);
    reads(&f, 32 * MIB, MIB);
    assert_true(reach(&f) >= 32 * MIB + WINDOW / 2);
    plan_free(f.p);
}

/* ---- several places ---- */

/* Eight workers that read one file through one handle, in pieces of 8 KiB and in turn, each get a window, and
 * together no more than one. */
static void test_interleaved_readers_share_the_window(void **state)
{
    (void)state;
    struct file f = opened("a.tar", 10 * GIB, 0);
    uint64_t ahead[8] = {0}, sum = 0;
    for (uint64_t i = 0; i < 4096; i++)
        for (uint64_t worker = 0; worker < 8; worker++) {
            uint64_t at = worker * GIB + i * 8 * KIB;
            reads(&f, at, 8 * KIB);
            ahead[worker] = reach(&f) - at - 8 * KIB;
        }
    for (size_t i = 0; i < ARRAY_SIZE(ahead); i++) {
        assert_true(ahead[i] >= PLAN_WINDOW_BYTES / 2);
        sum += ahead[i];
    }
    assert_true(sum <= WINDOW);
    assert_true(knows(&f, PLAN_INTERLEAVED));
    plan_free(f.p);
}

/* A place that was not read from for 64 reads has no share of the window any more. */
static void test_a_place_that_is_left_gives_its_share_back(void **state)
{
    (void)state;
    for (uint64_t more = 0; more < 16; more++) { /* the window may grow every 16 reads */
        struct file f = opened("a.tar", 10 * GIB, 0);
        uint64_t at = 0;
        for (; at < (64 + more) * MIB; at += MIB)
            reads(&f, at, MIB);
        assert_true(reach(&f) - at > WINDOW / 2);
        for (uint64_t i = 0; i < 3; i++)
            reads(&f, 5 * GIB + i * MIB, MIB);
        for (int i = 0; i < 64; i++, at += MIB) {
            reads(&f, at, MIB);
            assert_true(reach(&f) - at - MIB <= WINDOW / 2);
        }
        bool is_back = false;
        for (int i = 0; i < 16; i++, at += MIB) {
            reads(&f, at, MIB);
            is_back = is_back || reach(&f) - at - MIB > WINDOW / 2;
            assert_true(is_back || more != 0);
        }
        assert_true(is_back);
        plan_free(f.p);
    }
}

/* What is ahead of a place ends with a part, the next one where the window allows it, else the one before. */
static void test_windows_end_with_a_part(void **state)
{
    (void)state;
    static const struct {
        uint64_t max_window, end; /* of 8 MiB ahead of 2 MiB */
    } rows[] = {{WINDOW, 16 * MIB}, {14 * MIB, 16 * MIB}, {14 * MIB - 1, 8 * MIB}, {8 * MIB, 8 * MIB}};
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        struct file f = opened("f", 10 * GIB, 0);
        f.max_window = rows[i].max_window;
        reads(&f, 0, MIB);
        reads(&f, MIB, MIB);
        assert_int_equal(reach(&f), rows[i].end);
        plan_free(f.p);
    }
}

/* After three pieces at equal steps the next ones are had ahead, without what lies between them. */
static void test_equal_steps_fetch_the_next_pieces_only(void **state)
{
    (void)state;
    struct file f = opened("f", 10 * GIB, 0);
    for (uint64_t i = 0; i < 3; i++)
        reads(&f, 5 * MIB + i * 16 * MIB, 64 * KIB);
    assert_true(knows(&f, PLAN_STRIDED));
    for (uint64_t i = 3; i < 7; i++)
        assert_true(wants(&f, 5 * MIB + i * 16 * MIB, 64 * KIB));
    assert_true(elsewhere(&f) <= 4 * 64 * KIB);
    for (uint64_t i = 3; i < 10; i++)
        reads(&f, 5 * MIB + i * 16 * MIB, 64 * KIB);
    assert_int_equal(elsewhere(&f), 16 * 64 * KIB);
    plan_free(f.p);
}

/* So many pieces of a stride are had ahead as the window has room for, each with the block that it may lie
 * across. */
static void test_steps_fit_the_window(void **state)
{
    (void)state;
    static const struct {
        uint64_t max_window;
        unsigned steps; /* of 1 MiB */
    } rows[] = {{WINDOW, 4}, {8 * MIB, 4}, {8 * MIB - 1, 3}, {4 * MIB, 2}, {4 * MIB - 1, 1}};
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        struct file f = opened("f", 10 * GIB, 0);
        f.max_window = rows[i].max_window;
        for (uint64_t k = 0; k < 3; k++)
            reads(&f, 5 * MIB + k * 100 * MIB, MIB);
        for (unsigned k = 0; k < 5; k++)
            assert_int_equal(wants(&f, 5 * MIB + (3 + (uint64_t)k) * 100 * MIB, MIB), k < rows[i].steps);
        plan_free(f.p);
    }
}

/* Pieces that are themselves read in several reads are foretold in their whole length, and not beyond it. */
static void test_pieces_of_a_stride_have_their_length(void **state)
{
    (void)state;
    struct file f = opened("f", 10 * GIB, 0);
    for (uint64_t i = 0; i < 6; i++)
        for (uint64_t k = 0; k < 4; k++)
            reads(&f, i * 100 * MIB + k * MIB, MIB);
    assert_int_equal(reach(&f), 504 * MIB);
    reads(&f, 600 * MIB, MIB);
    assert_int_equal(reach(&f), 604 * MIB);
    assert_true(wants(&f, 700 * MIB, 4 * MIB) && !wants(&f, 704 * MIB, 1));
    plan_free(f.p);
}

/* Two workers whose steps are equal, one handle, in turn: after four pieces of one its next are had ahead. */
static void test_interleaved_strides_are_recognised(void **state)
{
    (void)state;
    struct file f = opened("f", 10 * GIB, 0);
    for (uint64_t i = 0; i < 4; i++) {
        reads(&f, i * 16 * MIB, 64 * KIB);
        reads(&f, 5 * GIB + i * 48 * MIB, 64 * KIB);
    }
    assert_true(wants(&f, 5 * GIB + 4 * 48 * MIB, 64 * KIB));
    plan_free(f.p);
}

/* Steps back are steps as well; none is foretold before the file's beginning or behind its end. */
static void test_steps_end_with_the_file(void **state)
{
    (void)state;
    struct file f = opened("f", 100 * MIB, 90 * MIB);
    for (uint64_t i = 0; i < 3; i++)
        reads(&f, 90 * MIB - i * 20 * MIB, MIB);
    assert_true(wants(&f, 30 * MIB, MIB) && wants(&f, 10 * MIB, MIB));
    assert_int_equal(f.w.n, 3);
    plan_free(f.p);
    f = opened("f", 100 * MIB, 0);
    for (uint64_t i = 0; i < 3; i++)
        reads(&f, 10 * MIB + i * 20 * MIB, MIB);
    assert_int_equal(f.w.n, 3);
    assert_true(wants(&f, 70 * MIB, MIB) && wants(&f, 90 * MIB, MIB));
    plan_free(f.p);
}

/* Who reads backward piece by piece has what lies before him on its way, the nearest part first. */
static void test_backward_reader_has_what_lies_before(void **state)
{
    (void)state;
    struct file f = opened("f", 10 * GIB, 5 * GIB);
    for (uint64_t i = 1; i <= 8; i++)
        reads(&f, 5 * GIB - i * 64 * KIB, 64 * KIB);
    assert_true(knows(&f, PLAN_BACKWARD) && !knows(&f, PLAN_SEQUENTIAL));
    assert_true(f.w.n >= 2);
    assert_int_equal(f.w.range[1].end, 5 * GIB - 8 * 64 * KIB);
    assert_true(elsewhere(&f) >= PLAN_WINDOW_BYTES - MIB);
    plan_free(f.p);
}

/* Twice is chance: the third read that ends where the last one began has what lies before it, and only then
 * may there be gaps of up to a MiB between them. */
static void test_backward_is_sure_at_the_third_read(void **state)
{
    (void)state;
    struct file f = opened("f", 10 * GIB, 5 * GIB);
    for (uint64_t i = 0; i < 3; i++) {
        reads(&f, 5 * GIB - i * 64 * KIB, 64 * KIB);
        assert_true(f.w.n == 1 && !knows(&f, PLAN_BACKWARD));
    }
    reads(&f, 5 * GIB - 3 * 64 * KIB, 64 * KIB);
    assert_true(f.w.n > 1 && knows(&f, PLAN_BACKWARD));
    reads(&f, 5 * GIB - 1100 * KIB, 64 * KIB); /* 844 KiB before it */
    assert_true(f.w.n > 1);
    assert_int_equal(f.w.range[1].end, 5 * GIB - 1100 * KIB);
    plan_free(f.p);
    f = opened("f", 10 * GIB, 5 * GIB);
    for (uint64_t i = 0; i < 3; i++)
        reads(&f, 5 * GIB - i * 64 * KIB, 64 * KIB);
    reads(&f, 5 * GIB - 400 * KIB, 64 * KIB); /* 208 KiB before it: another place */
    assert_true(f.w.n == 1 && !knows(&f, PLAN_BACKWARD));
    plan_free(f.p);
}

/* ---- formats ---- */

/* A touch in a tensor's middle, as the kernel reads around a page, fetches that tensor from its beginning to
 * its end; the second tensor begins to fetch the file from what is missing first, the fifth with the whole
 * window. */
static void test_touched_tensors_are_fetched_and_then_the_file(void **state)
{
    (void)state;
    struct file f = opened("m.safetensors", GIB + MIB, 0);
    has_layout(&f, LAYOUT_SAFETENSORS, MIB, 16 * MIB, 64, 0);
    reads(&f, MIB + 16 * MIB * 7 + 5 * MIB, MIB);
    assert_true(wants(&f, MIB + 16 * MIB * 7, 5 * MIB) && wants(&f, MIB + 16 * MIB * 7 + 5 * MIB, 11 * MIB));
    assert_false(plan_is_whole(f.p, f.present));
    reads(&f, MIB + 16 * MIB * 30, MIB);
    assert_true(plan_is_whole(f.p, f.present));
    f.missing_at = 3 * MIB;
    reads(&f, MIB + 16 * MIB * 50 - 512 * KIB, MIB); /* around the first page of tensor 50 */
    assert_true(wants(&f, MIB + 16 * MIB * 50, 16 * MIB));
    assert_false(wants(&f, MIB + 16 * MIB * 49, MIB));
    reads(&f, MIB + 16 * MIB * 10, MIB);
    assert_true(wants(&f, 3 * MIB, 64 * MIB) && elsewhere(&f) <= WINDOW);
    plan_free(f.p);
}

/* A member of an archive is fetched whole when its beginning is read; its neighbours are not, until the
 * reader has gone on into the next one. */
static void test_members_are_fetched_whole_and_alone(void **state)
{
    (void)state;
    struct file f = opened("a.npz", GIB + MIB, 0);
    has_layout(&f, LAYOUT_ZIP, 0, 32 * MIB, 32, 0);
    reads(&f, 64 * MIB, 4096);
    assert_int_equal(reach(&f), 96 * MIB);
    reads(&f, 64 * MIB + 4096, MIB);
    reads(&f, 65 * MIB + 4096, MIB);
    assert_true(reach(&f) <= 96 * MIB);
    reads(&f, 94 * MIB, MIB);
    reads(&f, 95 * MIB, 512 * KIB);
    assert_true(reach(&f) <= 96 * MIB);
    reads(&f, 95 * MIB + 512 * KIB, MIB); /* a buffer that goes beyond */
    assert_true(reach(&f) <= 97 * MIB);
    for (uint64_t at = 96 * MIB + 512 * KIB; at < 100 * MIB; at += MIB)
        reads(&f, at, MIB);
    assert_true(reach(&f) > 128 * MIB);
    reads(&f, 700 * MIB, 4096); /* the middle of one */
    assert_true(reach(&f) <= 701 * MIB);
    plan_free(f.p);
}

/* Reading a column's chunk in the second row group fetches that column's next ones. */
static void test_columns_are_fetched_ahead(void **state)
{
    (void)state;
    struct file f = opened("t.parquet", GIB + MIB, 0);
    has_layout(&f, LAYOUT_PARQUET, 4, 4 * MIB, 200, 10);
    reads(&f, 4 + 3 * 4 * MIB, 64 * KIB);
    assert_int_equal(reach(&f), 4 + 4 * 4 * MIB);
    assert_int_equal(elsewhere(&f), 0);
    reads(&f, 4 + 13 * 4 * MIB, 64 * KIB);
    assert_true(knows(&f, PLAN_COLUMNS));
    assert_true(wants(&f, 4 + 23 * 4 * MIB, 4 * MIB) && wants(&f, 4 + 33 * 4 * MIB, 4 * MIB));
    assert_false(wants(&f, 4 + 24 * 4 * MIB, 1));
    plan_free(f.p);
}

/* What tells where an archive's members are is had with the first read, by the archive's name; once. */
static void test_directory_of_a_named_format_is_had_early(void **state)
{
    (void)state;
    struct file f = opened("a.npz", GIB, 0);
    reads(&f, 0, 4096);
    assert_true(wants(&f, GIB - 100, 100));
    reads(&f, 4096, 100);
    assert_false(wants(&f, GIB - 100, 100));
    plan_free(f.p);
    f = opened("a.bin", GIB, 0);
    reads(&f, 0, 4096);
    assert_int_equal(f.w.n, 1);
    plan_free(f.p);
}

/* ---- the rest of a file ---- */

/* Once more than half of a file is here the rest is wanted, in windows, from what is missing first. */
static void test_rest_is_wanted_when_half_is_here(void **state)
{
    (void)state;
    struct file f = opened("f", GIB, 0);
    f.present = GIB / 2;
    f.missing_at = 10 * MIB;
    reads(&f, 700 * MIB, 4096);
    assert_false(plan_is_whole(f.p, f.present));
    assert_int_equal(f.w.n, 1);
    f.present = GIB / 2 + 1;
    assert_true(plan_is_whole(f.p, f.present));
    reads(&f, 300 * MIB, 4096);
    assert_true(wants(&f, 10 * MIB, WINDOW));
    assert_true(knows(&f, PLAN_WHOLE));
    plan_free(f.p);
}

/* ---- always ---- */

static void check_wants(const struct file *f, uint64_t offset, uint64_t n)
{
    uint64_t end = MIN(offset + n, f->size), least = MAX(end, MIN(ALIGN_DOWN(offset, MIB) + MIB, f->size));
    uint64_t ahead = elsewhere(f) + reach(f) - least;
    assert_true(f->w.n >= 1 && f->w.n <= PLAN_RANGES);
    assert_true(f->w.range[0].offset <= offset && reach(f) >= end);
    for (unsigned i = 0; i < f->w.n; i++)
        assert_true(f->w.range[i].offset <= f->w.range[i].end && f->w.range[i].end <= f->size);
    assert_true(ahead <= f->max_window);
}

/* Reads of all patterns, mixed: jumps, steps, forward, backward, the end, the same again. */
static uint64_t next_offset(uint64_t *seed, uint64_t last, uint64_t n, uint64_t step, uint64_t size)
{
    switch (draw(seed) % 7) {
    case 0:
        return draw(seed) % size;
    case 1:
    case 2:
        return (last + step) % size;
    case 3:
        return (last + n) % size;
    case 4:
        return last > n ? last - n : 0;
    case 5:
        return size - 1 - draw(seed) % MIN(size, (uint64_t)100000);
    default:
        return last;
    }
}

/* Whatever is read in whatever order, of whatever format and with whatever bound: the read is in the plan, no
 * range leaves the file, and what is ahead of the read and of its block is at most the bound. */
static void test_plans_stay_inside_the_file_and_the_bound(void **state)
{
    (void)state;
    static const char *const names[] = {"f", "a.npz", "m.safetensors", "t.parquet"};
    for (uint64_t seed = 1; seed <= 300; seed++) {
        uint64_t s = seed, size = PLAN_SMALL_BYTES + 1 + draw(&s) % (seed % 2 ? 64 * MIB : 6 * TIB);
        uint64_t last = 0, n = 4096, step = 1 + draw(&s) % (size / 8);
        struct file f = opened(names[seed % 4], size, seed % 3 ? 0 : size - 1);
        f.max_window = seed % 5 == 0 ? 0 : draw(&s) % WINDOW;
        if (seed % 4 && seed % 8 < 6)
            has_layout(&f, (enum layout_kind)(1 + seed % 3), seed % 100, (size - 100) / 50, 50,
                       seed % 3 == 2 ? 10 : 0);
        for (int i = 0; i < 600; i++) {
            if (draw(&s) % 16 == 0)
                n = 1 + draw(&s) % (draw(&s) % 4 ? 128 * KIB : 16 * MIB);
            last = next_offset(&s, last, n, step, size);
            f.present = draw(&s) % 3 ? size / 8 : draw(&s) % (size + 1);
            f.missing_at = draw(&s) % 4 ? draw(&s) % size : UINT64_MAX;
            reads(&f, last, n);
            check_wants(&f, last, n);
        }
        plan_free(f.p);
    }
}

/* Without a bound to read ahead by, nothing but the read and its block is asked for. */
static void test_nothing_is_ahead_when_readahead_is_zero(void **state)
{
    (void)state;
    struct file f = opened("m.safetensors", GIB, 0);
    has_layout(&f, LAYOUT_SAFETENSORS, 1000, 10 * MIB, 100, 0);
    f.max_window = 0;
    f.present = GIB - MIB;
    f.missing_at = 0;
    for (uint64_t at = 0; at < 64 * MIB; at += MIB) {
        reads(&f, at, MIB);
        assert_int_equal(f.w.n, 1);
        assert_int_equal(reach(&f), at + MIB);
    }
    plan_free(f.p);
}

/* A layout that comes when the plan looks elsewhere already is not taken. */
static void test_late_layout_is_left_to_its_owner(void **state)
{
    (void)state;
    struct file f = opened("m.safetensors", GIB, 0);
    struct layout_look first = plan_look(f.p),
                       second = {.kind = LAYOUT_SAFETENSORS, .stage = 1, .offset = 8, .n = 100};
    struct layout *l = NULL;
    assert_true(plan_learn(f.p, &first, &second, &l));
    l = calloc(1, sizeof(*l));
    assert_false(plan_learn(f.p, &first, &second, &l));
    assert_non_null(l);
    layout_free(l);
    assert_int_equal(plan_look(f.p).stage, 1);
    plan_free(f.p);
}

/* ---- requests ---- */

/* The first request for an unknown object is aligned, covers the read, and is at most one part. */
static void test_discovery_is_aligned_and_bounded(void **state)
{
    (void)state;
    struct plan_range r = plan_discover(5 * MIB + 77, 0);
    assert_int_equal(r.offset, 5 * MIB);
    assert_int_equal(r.end, 6 * MIB);
    r = plan_discover(0, UINT64_MAX);
    assert_int_equal(r.offset, 0);
    assert_int_equal(r.end, PLAN_PART_BYTES);
    r = plan_discover(MIB - 1, 2);
    assert_int_equal(r.offset, 0);
    assert_int_equal(r.end, 2 * MIB);
}

/* Parts end at part boundaries, at what is missing, at what is wanted (whole blocks) and at the object's end.
 */
static void test_parts_are_cut_at_every_border(void **state)
{
    (void)state;
    struct plan_range r = plan_part((struct plan_range){3 * MIB, 40 * MIB}, (struct plan_range){0, GIB}, GIB);
    assert_int_equal(r.offset, 3 * MIB);
    assert_int_equal(r.end, PLAN_PART_BYTES);
    r = plan_part((struct plan_range){3 * MIB, 4 * MIB}, (struct plan_range){0, GIB}, GIB);
    assert_int_equal(r.end, 4 * MIB);
    r = plan_part((struct plan_range){8 * MIB, 16 * MIB}, (struct plan_range){8 * MIB, 8 * MIB + 5}, GIB);
    assert_int_equal(r.end, 9 * MIB);
    r = plan_part((struct plan_range){8 * MIB, 8 * MIB + 100}, (struct plan_range){0, UINT64_MAX},
                  8 * MIB + 100);
    assert_int_equal(r.end, 8 * MIB + 100);
}

/* Who reads one piece after the other keeps his window when the rest of the file is fetched from a place far
 * before him; where that place is his own, the file's window is enough. */
static void test_rest_of_an_archive_takes_no_window_away(void **state)
{
    (void)state;
    struct file f = opened("a.npz", GIB + MIB, 512 * MIB);
    has_layout(&f, LAYOUT_ZIP, 0, 32 * MIB, 32, 0);
    for (uint64_t at = 512 * MIB; at < 560 * MIB; at += MIB)
        reads(&f, at, MIB);
    f.present = 700 * MIB;
    f.missing_at = 0;
    reads(&f, 560 * MIB, MIB);
    assert_true(knows(&f, PLAN_WHOLE));
    reads(&f, 561 * MIB, MIB);
    assert_true(reach(&f) >= 562 * MIB + WINDOW / 2);
    f.missing_at = 562 * MIB;
    reads(&f, 562 * MIB, MIB);
    assert_int_equal(reach(&f), 563 * MIB);
    assert_true(wants(&f, 563 * MIB, WINDOW / 2));
    plan_free(f.p);
}

/* Small members that were joined into one piece are not read as one: each read fetches its own block. */
static void test_joined_members_are_not_one(void **state)
{
    (void)state;
    struct file f = opened("a.zip", GIB + MIB, 0);
    has_layout(&f, LAYOUT_ZIP, 0, MIB + 100 * KIB, 900, 0);
    uint64_t pieces[] = {10, 500, 77};
    for (size_t i = 0; i < ARRAY_SIZE(pieces); i++) {
        uint64_t at = pieces[i] * (MIB + 100 * KIB) + 4 * KIB;
        reads(&f, at, 8 * KIB);
        assert_int_equal(reach(&f), ALIGN_DOWN(at, MIB) + MIB);
        assert_int_equal(f.w.n, 1);
    }
    plan_free(f.p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_small_object_is_fetched_whole),
        cmocka_unit_test(test_first_touch_asks_for_one_block),
        cmocka_unit_test(test_random_reads_fetch_no_more_than_their_block),
        cmocka_unit_test(test_random_reads_waste_little),
        cmocka_unit_test(test_window_of_a_sequential_reader_grows_to_its_maximum),
        cmocka_unit_test(test_sliding_window_asks_for_whole_parts),
        cmocka_unit_test(test_overlapping_reads_are_sequential),
        cmocka_unit_test(test_few_small_sequential_reads_fetch_little),
        cmocka_unit_test(test_heads_of_small_members_are_sequential),
        cmocka_unit_test(test_slightly_disordered_reads_are_sequential),
        cmocka_unit_test(test_rest_of_a_divided_read_is_no_pattern),
        cmocka_unit_test(test_jump_has_no_window_and_coming_back_has),
        cmocka_unit_test(test_interleaved_readers_share_the_window),
        cmocka_unit_test(test_a_place_that_is_left_gives_its_share_back),
        cmocka_unit_test(test_windows_end_with_a_part),
        cmocka_unit_test(test_equal_steps_fetch_the_next_pieces_only),
        cmocka_unit_test(test_steps_fit_the_window),
        cmocka_unit_test(test_pieces_of_a_stride_have_their_length),
        cmocka_unit_test(test_interleaved_strides_are_recognised),
        cmocka_unit_test(test_steps_end_with_the_file),
        cmocka_unit_test(test_backward_reader_has_what_lies_before),
        cmocka_unit_test(test_backward_is_sure_at_the_third_read),
        cmocka_unit_test(test_touched_tensors_are_fetched_and_then_the_file),
        cmocka_unit_test(test_members_are_fetched_whole_and_alone),
        cmocka_unit_test(test_columns_are_fetched_ahead),
        cmocka_unit_test(test_directory_of_a_named_format_is_had_early),
        cmocka_unit_test(test_rest_is_wanted_when_half_is_here),
        cmocka_unit_test(test_plans_stay_inside_the_file_and_the_bound),
        cmocka_unit_test(test_nothing_is_ahead_when_readahead_is_zero),
        cmocka_unit_test(test_late_layout_is_left_to_its_owner),
        cmocka_unit_test(test_discovery_is_aligned_and_bounded),
        cmocka_unit_test(test_parts_are_cut_at_every_border),
        cmocka_unit_test(test_rest_of_an_archive_takes_no_window_away),
        cmocka_unit_test(test_joined_members_are_not_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

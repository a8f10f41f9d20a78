/* layer: client */
/* What a load of a model is timed by: its file is the source of this test, because commands are in no
 * library. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cli/bench_model.c"

#define TENSORS      5
#define TENSOR_BYTES 1000
#define HEADER_BYTES 72

/* ---- what the command stands on ---- */

static struct sys counting;
static unsigned compared, looked; /* tensors; and times at the clock after the first of them */
static char path[] = "/tmp/forebay-test-model-XXXXXX";

static uint64_t mono_ns(void)
{
    looked += compared > 0;
    return sys_real.mono_ns();
}

struct progress *progress_new(const char *verb, uint64_t total_objects, uint64_t total_bytes, bool quiet)
{
    return NULL;
}

void progress_add(struct progress *p, uint64_t objects, uint64_t bytes)
{
    compared += objects == 0;
}

void progress_drop(struct progress *p)
{
}

bool command_parse(const struct command_usage *u, const struct option_table *t, void *opts, int argc,
                   char **argv, int *ret_n, int *ret_status)
{
    *ret_status = 2;
    return false;
}

int command_fail(const char *command, int code, const struct err *e)
{
    return 1;
}

void bench_interrupts(void)
{
}

static unsigned looks_left = UINT32_MAX; /* until the measurement is interrupted */

bool bench_interrupted(void)
{
    looks_left -= looks_left > 0;
    return looks_left == 0;
}

int model_file_open(const char *name, struct model_file *ret, struct err *e)
{
    *ret = (struct model_file){.n = TENSORS, .bytes = HEADER_BYTES + TENSORS * TENSOR_BYTES};
    ret->tensors = calloc(TENSORS, sizeof(ret->tensors[0]));
    assert_non_null(ret->tensors);
    ret->data_offset = HEADER_BYTES;
    for (uint64_t i = 0; i < TENSORS; i++)
        ret->tensors[i] = (struct model_tensor){i * TENSOR_BYTES, (i + 1) * TENSOR_BYTES};
    return 0;
}

void model_file_close(struct model_file *f)
{
    free(f->tensors);
}

int model_file_make(const char *name, uint64_t bytes, uint64_t tensors, uint64_t seed, struct err *e)
{
    return -ENOSYS;
}

/* ---- the test ---- */

/* All is read before the first tensor is compared, so that none arrives in time that does not count. Every
 * tensor is compared. */
static void nothing_is_compared_before_all_is_read(void **state)
{
    (void)state;
    static const char *const ways[] = {"mmap", "pread", "whole"};
    for (size_t i = 0; i < ARRAY_SIZE(ways); i++) {
        struct model_options o = {.ways = (char *)(uintptr_t)ways[i], .passes = 1, .order = 1, .json = true};
        struct model m = {.o = &o, .path = path};
        struct err e = {0};
        compared = looked = 0;
        assert_int_equal(run(&m, &e), 0);
        assert_int_equal(compared, TENSORS);
        assert_int_equal(looked, 0);
        for (int way = 0; way < WAY_COUNT; way++)
            if (m.ways[way])
                assert_true(m.loads[way].first_ns > 0 && m.loads[way].first_ns <= m.loads[way].ns);
        model_file_close(&m.file);
        free(m.order);
        free(m.loads);
        free(m.memory);
    }
}

/* A signal between any two tensors, read or compared, ends the measurement with what it was. */
static void an_interrupted_load_is_told(void **state)
{
    (void)state;
    static const char *const ways[] = {"mmap", "pread", "whole"};
    for (size_t i = 0; i < ARRAY_SIZE(ways); i++) {
        int r = -EINTR;
        for (unsigned n = 1; r < 0; n++) {
            struct model_options o = {
                .ways = (char *)(uintptr_t)ways[i], .passes = 2, .order = 1, .json = true};
            struct model m = {.o = &o, .path = path};
            struct err e = {0};
            compared = 0;
            looks_left = n;
            r = run(&m, &e);
            assert_true(looks_left == 0 ? r == -EINTR : r == 0);
            assert_string_equal(e.text, r < 0 ? "interrupted" : "");
            assert_true(compared <= n);
            model_file_close(&m.file);
            free(m.order);
            free(m.loads);
            free(m.memory);
        }
        assert_int_equal(compared, 2 * TENSORS);
    }
    looks_left = UINT32_MAX;
}

static int make_file(void **state)
{
    (void)state;
    counting = sys_real;
    counting.mono_ns = mono_ns;
    sys = &counting;
    int fd = mkstemp(path);
    int r = fd < 0 ? -1 : sys->ftruncate(fd, HEADER_BYTES + TENSORS * TENSOR_BYTES);
    return r < 0 ? r : close(fd);
}

static int remove_file(void **state)
{
    (void)state;
    sys = &sys_real;
    return unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_compared_before_all_is_read),
        cmocka_unit_test(an_interrupted_load_is_told),
    };
    return cmocka_run_group_tests(tests, make_file, remove_file);
}

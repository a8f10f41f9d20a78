/* layer: net */
/* Records of names: byte for byte, and whole again from pieces. */
#include "net/wire_names.h"

#include "base/le.h"
#include "base/macro.h"

#include <errno.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define MANY 40

struct seen {
    char key[MANY][WIRE_NAME_MAX_BYTES + 1];
    uint32_t flags[MANY];
    size_t n;
};

static void on_name(void *arg, struct slice key, uint32_t flags)
{
    struct seen *s = arg;
    assert_true(s->n < MANY && key.n <= WIRE_NAME_MAX_BYTES);
    memcpy(s->key[s->n], key.p, key.n);
    s->key[s->n][key.n] = '\0';
    s->flags[s->n++] = flags;
}

/* As whoever reads the pipe gets them. */
static size_t words_of(const uint8_t *bytes, size_t n, uint64_t *ret)
{
    assert_int_equal(n % sizeof(*ret), 0);
    for (size_t i = 0; i < n / sizeof(*ret); i++)
        ret[i] = le_get64(bytes + i * sizeof(*ret));
    return n / sizeof(*ret);
}

/* The layout is this one: other programs may read the pipe. */
static void golden(void **state)
{
    (void)state;
    uint8_t record[WIRE_NAME_RECORD_BYTES];
    static const uint8_t want[24] = "\x0b\0\0\0\1\0\0\0dir/name.gz";
    assert_int_equal(wire_name_put(record, SLICE_LIT("dir/name.gz"), WIRE_NAME_GONE), sizeof(want));
    assert_memory_equal(record, want, sizeof(want));
    assert_int_equal(wire_name_put(record, SLICE_LIT("12345678"), 0), 16);
}

/* The longest record goes into a pipe at once or not at all. */
static void the_longest_is_written_at_once(void **state)
{
    (void)state;
    assert_true(WIRE_NAME_RECORD_BYTES <= PIPE_BUF);
}

/* Keys of all lengths come out as they went in, whatever number of words is read at once. (Mutation: `filled`
 * that stays after a record.) */
static void whole_again_from_pieces(void **state)
{
    (void)state;
    static uint8_t bytes[MANY * WIRE_NAME_RECORD_BYTES];
    static uint64_t words[sizeof(bytes) / sizeof(uint64_t)];
    static struct seen seen;
    char key[MANY][WIRE_NAME_MAX_BYTES + 1];
    size_t n = 0;
    for (size_t i = 0; i < MANY; i++) {
        size_t length = i < 20 ? i + 1 : WIRE_NAME_MAX_BYTES - (MANY - 1 - i);
        memset(key[i], 'a' + (int)(i % 26), length);
        key[i][length] = '\0';
        n += wire_name_put(bytes + n, slice_str(key[i]), i % 3 == 0 ? WIRE_NAME_GONE : 0);
    }
    size_t n_words = words_of(bytes, n, words);
    for (size_t at_once = 1; at_once < 200; at_once += 13) {
        struct wire_names reader = {0};
        seen.n = 0;
        for (size_t i = 0; i < n_words; i += at_once)
            assert_int_equal(wire_names_take(&reader, words + i, MIN(at_once, n_words - i), on_name, &seen),
                             0);
        assert_int_equal(seen.n, MANY);
        for (size_t i = 0; i < MANY; i++) {
            assert_string_equal(seen.key[i], key[i]);
            assert_int_equal(seen.flags[i], i % 3 == 0 ? WIRE_NAME_GONE : 0);
        }
    }
}

/* Lengths that no key has, and flags that nobody knows, are refused, and no byte of a key is taken for them.
 */
static void what_is_no_record_is_refused(void **state)
{
    (void)state;
    static struct seen seen;
    const uint64_t wrong[] = {0, WIRE_NAME_MAX_BYTES + 1, UINT32_MAX, 1ull << 33 | 1, UINT64_MAX};
    seen.n = 0;
    for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
        struct wire_names reader = {0};
        assert_int_equal(wire_names_take(&reader, &wrong[i], 1, on_name, &seen), -EPROTO);
    }
    assert_int_equal(seen.n, 0);
    struct wire_names reader = {0};
    const uint64_t words[] = {8, UINT64_MAX, 3, 0x636261};
    assert_int_equal(wire_names_take(&reader, words, ARRAY_SIZE(words), on_name, &seen), 0);
    assert_int_equal(seen.n, 2);
    assert_string_equal(seen.key[1], "abc");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden),
        cmocka_unit_test(the_longest_is_written_at_once),
        cmocka_unit_test(whole_again_from_pieces),
        cmocka_unit_test(what_is_no_record_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

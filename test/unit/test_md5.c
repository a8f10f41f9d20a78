/* layer: net */
/* MD5 of streams, of one and of several at once: the sums are those of OpenSSL, which comes with this layer.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/md5.h"

#include <openssl/evp.h>
#include <string.h>

#define STREAMS   (2 * MD5_LANES_MAX + 3)
#define BYTES_MAX ((size_t)20000)

static uint64_t state = 0x6d6435;

/* xorshift64*; the same numbers in every run. */
static size_t below(size_t n)
{
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return (size_t)((state * 0x2545f4914f6cdd1dull) >> 33) % n;
}

static uint8_t *random_bytes(size_t n)
{
    uint8_t *p = malloc(n + 1);
    assert_non_null(p);
    for (size_t i = 0; i < n; i++)
        p[i] = (uint8_t)below(256);
    return p;
}

static void assert_sum(struct md5 *m, const void *p, size_t n)
{
    uint8_t ours[MD5_BYTES], theirs[EVP_MAX_MD_SIZE];
    md5_final(m, ours);
    assert_int_equal(EVP_Digest(p, n, theirs, NULL, EVP_md5(), NULL), 1);
    assert_memory_equal(ours, theirs, MD5_BYTES);
}

/* RFC 1321, A.5. */
static void the_vectors_of_the_rfc(void **unused)
{
    static const struct {
        const char *text, *sum;
    } rows[] = {
        {"", "d41d8cd98f00b204e9800998ecf8427e"},
        {"a", "0cc175b9c0f1b6a831c399e269772661"},
        {"abc", "900150983cd24fb0d6963f7d28e17f72"},
        {"message digest", "f96b697d7cb7938d525a2f31aaf161d0"},
        {"abcdefghijklmnopqrstuvwxyz", "c3fcd3d76192e4007dfb496cca67e13b"},
        {"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789",
         "d174ab98d277d9f5a5611c2c9f419d9f"},
        {"12345678901234567890123456789012345678901234567890123456789012345678901234567890",
         "57edf4a22be3c955ac49da2e2107b67a"},
    };
    (void)unused;
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        uint8_t sum[MD5_BYTES];
        char hex[2 * MD5_BYTES + 1];
        struct md5 m;
        md5_init(&m);
        md5_update(&m, rows[i].text, strlen(rows[i].text));
        md5_final(&m, sum);
        for (size_t k = 0; k < MD5_BYTES; k++)
            (void)snprintf(hex + 2 * k, 3, "%02x", sum[k]);
        assert_string_equal(hex, rows[i].sum);
    }
}

/* Every length up to some blocks, in one piece and byte by byte. */
static void every_short_length(void **unused)
{
    uint8_t *p = random_bytes(5 * MD5_BLOCK_BYTES);
    (void)unused;
    for (size_t n = 0; n <= 5 * MD5_BLOCK_BYTES; n++) {
        struct md5 whole, bytewise;
        md5_init(&whole);
        md5_init(&bytewise);
        md5_update(&whole, p, n);
        for (size_t i = 0; i < n; i++)
            md5_update(&bytewise, p + i, 1);
        assert_sum(&whole, p, n);
        assert_sum(&bytewise, p, n);
    }
    free(p);
}

/* With each set of instructions and every number of lanes, each lane gets what it would get alone: the states
 * after some blocks are those of the portable way, one stream at a time. */
static void every_number_of_lanes(void **unused)
{
    uint8_t *p = random_bytes(BYTES_MAX);
    (void)unused;
    for (int set = 0; set < MD5_SET_COUNT; set++) {
        if (!md5_lanes_has(set)) {
            print_message("not run: %s, which this processor does not have\n", md5_lanes_name(set));
            continue;
        }
        for (unsigned n = 0; n <= md5_lanes_width(set); n++)
            for (size_t blocks = 0; blocks < 6; blocks++) {
                uint32_t states[MD5_LANES_MAX][4], alone[MD5_LANES_MAX][4];
                struct md5_lane lanes[MD5_LANES_MAX];
                for (unsigned i = 0; i < n; i++) {
                    for (unsigned k = 0; k < 4; k++)
                        states[i][k] = alone[i][k] = (uint32_t)below((size_t)1 << 32);
                    lanes[i] = (struct md5_lane){alone[i], p + below(BYTES_MAX - blocks * MD5_BLOCK_BYTES)};
                    md5_lanes_run(MD5_PORTABLE, &lanes[i], 1, blocks);
                    lanes[i].state = states[i];
                }
                md5_lanes_run(set, lanes, n, blocks);
                for (unsigned i = 0; i < n; i++)
                    assert_memory_equal(states[i], alone[i], sizeof(states[i]));
            }
    }
    free(p);
}

/* One stream gets the same in a lane and in a plain word, whichever this processor is faster at. */
static void one_stream_either_way(void **unused)
{
    uint8_t *p = random_bytes(8 * MD5_BLOCK_BYTES);
    (void)unused;
    for (int set = 0; set < MD5_SET_COUNT; set++)
        for (size_t blocks = 0; blocks <= 8 && md5_lanes_has(set); blocks++) {
            uint32_t in_lane[4] = {1, 2, 3, 4}, chosen[4] = {1, 2, 3, 4};
            const struct md5_lane lane = {in_lane, p}, other = {chosen, p};
            if (!md5_lanes_run_in_lane(set, &lane, blocks))
                continue;
            md5_lanes_run(set, &other, 1, blocks);
            assert_memory_equal(in_lane, chosen, sizeof(in_lane));
        }
    free(p);
}

struct stream {
    struct md5 md5;
    uint8_t *p;
    size_t n, at;
};

/* The next pieces of some of n streams, of any lengths. Gives whether there was any. */
static bool add_some(enum md5_set set, struct stream *s, size_t n)
{
    struct md5_piece pieces[STREAMS];
    size_t n_pieces = 0, most = below(4) ? 200 : 4000;
    bool left = false;
    for (size_t i = 0; i < n; i++) {
        size_t step = below(most);
        step = MIN(step, s[i].n - s[i].at);
        left = left || s[i].at < s[i].n;
        if (below(4) == 0)
            continue;
        pieces[n_pieces++] = (struct md5_piece){&s[i].md5, s[i].p + s[i].at, step};
        s[i].at += step;
    }
    md5_update_each(set, pieces, n_pieces);
    return left;
}

/* Streams of different lengths that come in pieces of different lengths, any number of them at once, more
 * than there are lanes too: the sums are OpenSSL's. */
static void streams_of_different_lengths(void **unused)
{
    struct stream s[STREAMS];
    (void)unused;
    for (int set = 0; set < MD5_SET_COUNT; set++)
        for (size_t n = 0; n <= STREAMS && md5_lanes_has(set); n++) {
            for (size_t i = 0; i < n; i++) {
                s[i] = (struct stream){.n = below(below(3) ? 300 : BYTES_MAX)};
                s[i].p = random_bytes(s[i].n);
                md5_init(&s[i].md5);
            }
            while (add_some(set, s, n))
                ;
            for (size_t i = 0; i < n; i++) {
                assert_sum(&s[i].md5, s[i].p, s[i].n);
                free(s[i].p);
            }
        }
}

/* The sets that the processor has are a beginning of the list, and the best is the last of them. */
static void the_best_set_is_there(void **unused)
{
    (void)unused;
    assert_true(md5_lanes_has(MD5_PORTABLE));
    assert_true(md5_lanes_has(md5_lanes_best()));
    for (int set = md5_lanes_best() + 1; set < MD5_SET_COUNT; set++)
        assert_false(md5_lanes_has(set));
    for (int set = 0; set < MD5_SET_COUNT; set++)
        assert_in_range(md5_lanes_width(set), 1, MD5_LANES_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_vectors_of_the_rfc),       cmocka_unit_test(every_short_length),
        cmocka_unit_test(every_number_of_lanes),        cmocka_unit_test(one_stream_either_way),
        cmocka_unit_test(streams_of_different_lengths), cmocka_unit_test(the_best_set_is_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

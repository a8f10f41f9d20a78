/*
 * MD5 (RFC 1321) in the lanes of vector registers (contract in md5_lanes.h).
 *
 * The same 64 steps are compiled once for a plain word, and once for each width of vectors. Vectors are those
 * of the compiler (vector_size), which every processor has in some form; AVX-512 also has the two things that
 * MD5 is made of in one instruction each: any function of three words, and rotation. There even a single
 * stream may be faster in a lane than in a plain register, where each of those instructions takes one cycle:
 * 0.8 of the time on an Intel Xeon, 1.8 times as long on an AMD EPYC of family 26. Which it is is measured
 * once.
 *
 * 1. What a lane gives does not depend on the other lanes. Lanes without a stream repeat the first one's
 * bytes and are thrown away.
 *
 * Failure modes: none.
 */
#include "base/md5_lanes.h"

#include "base/le.h"

#include <stdatomic.h>
#include <string.h>

#if defined(__x86_64__)
#define HAS_X86 1
#include <immintrin.h>
#else
#define HAS_X86 0
#endif

#define N_STATE 4
#define N_WORDS 16

#define TRIALS       5
#define TRIAL_BLOCKS 32 /* some microseconds */

typedef uint32_t v4 __attribute__((vector_size(16)));
#if HAS_X86
typedef uint32_t v8 __attribute__((vector_size(32)));
typedef uint32_t v16 __attribute__((vector_size(64)));
#endif

/* ---- the four functions, and rotation ---- */

/* The compiler takes x as it is here for a value of its own: it would add in another order, and put one more
 * addition between two steps that wait for each other. */
#define HOLD_IN(where, x) __asm__("" : "+" where(x))
#if HAS_X86
#define VECTOR_REGISTER "x"
#elif defined(__aarch64__)
#define VECTOR_REGISTER "w"
#else
#define VECTOR_REGISTER "m"
#endif

/* The "early" part of a function does not wait for the step before, whose result is b. The halves of G have
 * no bit in common, so that their sum is their union. */
#define PLAIN(f, b, c, d)    PLAIN_##f(b, c, d)
#define PLAIN_EARLY(f, c, d) PLAIN_EARLY_##f(c, d)
#define PLAIN_ROTATE(x, n)   ((x) << (n) | (x) >> (32 - (n)))
#define PLAIN_HOLD(x)        HOLD_IN(VECTOR_REGISTER, x)
#define PLAIN_F(b, c, d)     ((d) ^ ((b) & ((c) ^ (d))))
#define PLAIN_G(b, c, d)     ((b) & (d))
#define PLAIN_H(b, c, d)     ((b) ^ ((c) ^ (d)))
#define PLAIN_I(b, c, d)     ((c) ^ ((b) | ~(d)))
#define PLAIN_EARLY_F(c, d)  0
#define PLAIN_EARLY_G(c, d)  ((c) & ~(d))
#define PLAIN_EARLY_H(c, d)  0
#define PLAIN_EARLY_I(c, d)  0

#define WORD(f, b, c, d)    PLAIN(f, b, c, d)
#define WORD_EARLY(f, c, d) PLAIN_EARLY(f, c, d)
#define WORD_ROTATE(x, n)   PLAIN_ROTATE(x, n)
#define WORD_HOLD(x)        HOLD_IN("r", x)

/* Without holding: of 8 words in AVX2's registers gcc 12 would keep the state in memory then. */
#define LOOSE(f, b, c, d)    PLAIN(f, b, c, d)
#define LOOSE_EARLY(f, c, d) PLAIN_EARLY(f, c, d)
#define LOOSE_ROTATE(x, n)   PLAIN_ROTATE(x, n)
#define LOOSE_HOLD(x)        (void)0

#if HAS_X86
/* Functions of three bits by their tables: bit 4 b + 2 c + d is the value. */
#define TABLE_F 0xca
#define TABLE_G 0xe4
#define TABLE_H 0x96
#define TABLE_I 0x39

#define X4(f, b, c, d)     ((v4)_mm_ternarylogic_epi32((__m128i)(b), (__m128i)(c), (__m128i)(d), TABLE_##f))
#define X4_EARLY(f, c, d)  0
#define X4_ROTATE(x, n)    ((v4)_mm_rol_epi32((__m128i)(x), n))
#define X4_HOLD(x)         HOLD_IN("v", x)
#define X8(f, b, c, d)     ((v8)_mm256_ternarylogic_epi32((__m256i)(b), (__m256i)(c), (__m256i)(d), TABLE_##f))
#define X8_EARLY(f, c, d)  0
#define X8_ROTATE(x, n)    ((v8)_mm256_rol_epi32((__m256i)(x), n))
#define X8_HOLD(x)         HOLD_IN("v", x)
#define X16(f, b, c, d)    ((v16)_mm512_ternarylogic_epi32((__m512i)(b), (__m512i)(c), (__m512i)(d), TABLE_##f))
#define X16_EARLY(f, c, d) 0
#define X16_ROTATE(x, n)   ((v16)_mm512_rol_epi32((__m512i)(x), n))
#define X16_HOLD(x)        HOLD_IN("v", x)
#endif

/* ---- one block ---- */

#define STEP(S, f, a, b, c, d, word, constant, n)                                                            \
    a += (word) + (constant) + S##_EARLY(f, c, d);                                                           \
    S##_HOLD(a);                                                                                             \
    a += S(f, b, c, d);                                                                                      \
    a = S##_ROTATE(a, n) + b;

/* clang-format off */
/* The 64 steps of RFC 1321, 3.4, by the functions of S. W(i): word i of the block. */
#define STEPS(S, W)                                                                                     \
    STEP(S, F, a, b, c, d, W(0), 0xd76aa478u, 7)                                                            \
    STEP(S, F, d, a, b, c, W(1), 0xe8c7b756u, 12)                                                           \
    STEP(S, F, c, d, a, b, W(2), 0x242070dbu, 17)                                                           \
    STEP(S, F, b, c, d, a, W(3), 0xc1bdceeeu, 22)                                                           \
    STEP(S, F, a, b, c, d, W(4), 0xf57c0fafu, 7)                                                            \
    STEP(S, F, d, a, b, c, W(5), 0x4787c62au, 12)                                                           \
    STEP(S, F, c, d, a, b, W(6), 0xa8304613u, 17)                                                           \
    STEP(S, F, b, c, d, a, W(7), 0xfd469501u, 22)                                                           \
    STEP(S, F, a, b, c, d, W(8), 0x698098d8u, 7)                                                            \
    STEP(S, F, d, a, b, c, W(9), 0x8b44f7afu, 12)                                                           \
    STEP(S, F, c, d, a, b, W(10), 0xffff5bb1u, 17)                                                          \
    STEP(S, F, b, c, d, a, W(11), 0x895cd7beu, 22)                                                          \
    STEP(S, F, a, b, c, d, W(12), 0x6b901122u, 7)                                                           \
    STEP(S, F, d, a, b, c, W(13), 0xfd987193u, 12)                                                          \
    STEP(S, F, c, d, a, b, W(14), 0xa679438eu, 17)                                                          \
    STEP(S, F, b, c, d, a, W(15), 0x49b40821u, 22)                                                          \
    STEP(S, G, a, b, c, d, W(1), 0xf61e2562u, 5)                                                            \
    STEP(S, G, d, a, b, c, W(6), 0xc040b340u, 9)                                                            \
    STEP(S, G, c, d, a, b, W(11), 0x265e5a51u, 14)                                                          \
    STEP(S, G, b, c, d, a, W(0), 0xe9b6c7aau, 20)                                                           \
    STEP(S, G, a, b, c, d, W(5), 0xd62f105du, 5)                                                            \
    STEP(S, G, d, a, b, c, W(10), 0x02441453u, 9)                                                           \
    STEP(S, G, c, d, a, b, W(15), 0xd8a1e681u, 14)                                                          \
    STEP(S, G, b, c, d, a, W(4), 0xe7d3fbc8u, 20)                                                           \
    STEP(S, G, a, b, c, d, W(9), 0x21e1cde6u, 5)                                                            \
    STEP(S, G, d, a, b, c, W(14), 0xc33707d6u, 9)                                                           \
    STEP(S, G, c, d, a, b, W(3), 0xf4d50d87u, 14)                                                           \
    STEP(S, G, b, c, d, a, W(8), 0x455a14edu, 20)                                                           \
    STEP(S, G, a, b, c, d, W(13), 0xa9e3e905u, 5)                                                           \
    STEP(S, G, d, a, b, c, W(2), 0xfcefa3f8u, 9)                                                            \
    STEP(S, G, c, d, a, b, W(7), 0x676f02d9u, 14)                                                           \
    STEP(S, G, b, c, d, a, W(12), 0x8d2a4c8au, 20)                                                          \
    STEP(S, H, a, b, c, d, W(5), 0xfffa3942u, 4)                                                            \
    STEP(S, H, d, a, b, c, W(8), 0x8771f681u, 11)                                                           \
    STEP(S, H, c, d, a, b, W(11), 0x6d9d6122u, 16)                                                          \
    STEP(S, H, b, c, d, a, W(14), 0xfde5380cu, 23)                                                          \
    STEP(S, H, a, b, c, d, W(1), 0xa4beea44u, 4)                                                            \
    STEP(S, H, d, a, b, c, W(4), 0x4bdecfa9u, 11)                                                           \
    STEP(S, H, c, d, a, b, W(7), 0xf6bb4b60u, 16)                                                           \
    STEP(S, H, b, c, d, a, W(10), 0xbebfbc70u, 23)                                                          \
    STEP(S, H, a, b, c, d, W(13), 0x289b7ec6u, 4)                                                           \
    STEP(S, H, d, a, b, c, W(0), 0xeaa127fau, 11)                                                           \
    STEP(S, H, c, d, a, b, W(3), 0xd4ef3085u, 16)                                                           \
    STEP(S, H, b, c, d, a, W(6), 0x04881d05u, 23)                                                           \
    STEP(S, H, a, b, c, d, W(9), 0xd9d4d039u, 4)                                                            \
    STEP(S, H, d, a, b, c, W(12), 0xe6db99e5u, 11)                                                          \
    STEP(S, H, c, d, a, b, W(15), 0x1fa27cf8u, 16)                                                          \
    STEP(S, H, b, c, d, a, W(2), 0xc4ac5665u, 23)                                                           \
    STEP(S, I, a, b, c, d, W(0), 0xf4292244u, 6)                                                            \
    STEP(S, I, d, a, b, c, W(7), 0x432aff97u, 10)                                                           \
    STEP(S, I, c, d, a, b, W(14), 0xab9423a7u, 15)                                                          \
    STEP(S, I, b, c, d, a, W(5), 0xfc93a039u, 21)                                                           \
    STEP(S, I, a, b, c, d, W(12), 0x655b59c3u, 6)                                                           \
    STEP(S, I, d, a, b, c, W(3), 0x8f0ccc92u, 10)                                                           \
    STEP(S, I, c, d, a, b, W(10), 0xffeff47du, 15)                                                          \
    STEP(S, I, b, c, d, a, W(1), 0x85845dd1u, 21)                                                           \
    STEP(S, I, a, b, c, d, W(8), 0x6fa87e4fu, 6)                                                            \
    STEP(S, I, d, a, b, c, W(15), 0xfe2ce6e0u, 10)                                                          \
    STEP(S, I, c, d, a, b, W(6), 0xa3014314u, 15)                                                           \
    STEP(S, I, b, c, d, a, W(13), 0x4e0811a1u, 21)                                                          \
    STEP(S, I, a, b, c, d, W(4), 0xf7537e82u, 6)                                                            \
    STEP(S, I, d, a, b, c, W(11), 0xbd3af235u, 10)                                                          \
    STEP(S, I, c, d, a, b, W(2), 0x2ad7d2bbu, 15)                                                           \
    STEP(S, I, b, c, d, a, W(9), 0xeb86d391u, 21)
/* clang-format on */

/* ---- any number of blocks ---- */

/* Of one stream, in a plain word or in the first lane of a vector. */
#define OF_DATA(i) le_get32(p + 4 * (i))
#define ONE(name, target, type, S)                                                                           \
    target static void name(const struct md5_lane *lanes, unsigned n, size_t blocks)                         \
    {                                                                                                        \
        uint32_t *state = lanes->state;                                                                      \
        const uint8_t *p = lanes->data;                                                                      \
        type a = {state[0]}, b = {state[1]}, c = {state[2]}, d = {state[3]};                                 \
        (void)n;                                                                                             \
        for (; blocks > 0; blocks--, p += MD5_BLOCK_BYTES) {                                                 \
            const type a0 = a, b0 = b, c0 = c, d0 = d;                                                       \
            STEPS(S, OF_DATA)                                                                                \
            a += a0, b += b0, c += c0, d += d0;                                                              \
        }                                                                                                    \
        const type end[N_STATE] = {a, b, c, d};                                                              \
        for (unsigned k = 0; k < N_STATE; k++)                                                               \
            memcpy(&state[k], &end[k], sizeof(state[k]));                                                    \
    }

/* Words of a block of each of n streams: words[i * n + l] is word i of stream l. */
static inline __attribute__((always_inline)) void turn_block(const uint8_t **data, unsigned n,
                                                             uint32_t *words)
{
    for (unsigned l = 0; l < n; l++, data++) {
        for (unsigned i = 0; i < N_WORDS; i++)
            words[i * n + l] = le_get32(*data + 4 * i);
        *data += MD5_BLOCK_BYTES;
    }
}

/* Of up to `width` streams. The words of the next block are turned while the steps of this one wait for each
 * other. */
#define OF_TABLE(i) words[turn][i]
#define LANES(name, target, type, width, S)                                                                  \
    target static void name(const struct md5_lane *lanes, unsigned n, size_t blocks)                         \
    {                                                                                                        \
        type words[2][N_WORDS], a, b, c, d;                                                                  \
        uint32_t state[N_STATE][width];                                                                      \
        const uint8_t *data[width];                                                                          \
        for (unsigned l = 0; l < (width); l++) {                                                             \
            const struct md5_lane *x = &lanes[l < n ? l : 0];                                                \
            data[l] = x->data;                                                                               \
            for (unsigned k = 0; k < N_STATE; k++)                                                           \
                state[k][l] = x->state[k];                                                                   \
        }                                                                                                    \
        memcpy(&a, state[0], sizeof(a));                                                                     \
        memcpy(&b, state[1], sizeof(b));                                                                     \
        memcpy(&c, state[2], sizeof(c));                                                                     \
        memcpy(&d, state[3], sizeof(d));                                                                     \
        turn_block(data, width, (uint32_t *)words[0]);                                                       \
        for (unsigned turn = 0; blocks > 0; blocks--, turn = !turn) {                                        \
            const type a0 = a, b0 = b, c0 = c, d0 = d;                                                       \
            if (blocks > 1)                                                                                  \
                turn_block(data, width, (uint32_t *)words[!turn]);                                           \
            STEPS(S, OF_TABLE)                                                                               \
            a += a0, b += b0, c += c0, d += d0;                                                              \
        }                                                                                                    \
        memcpy(state[0], &a, sizeof(a));                                                                     \
        memcpy(state[1], &b, sizeof(b));                                                                     \
        memcpy(state[2], &c, sizeof(c));                                                                     \
        memcpy(state[3], &d, sizeof(d));                                                                     \
        for (unsigned l = 0; l < n; l++)                                                                     \
            for (unsigned k = 0; k < N_STATE; k++)                                                           \
                lanes[l].state[k] = state[k][l];                                                             \
    }

ONE(one_plain, , uint32_t, WORD)
LANES(lanes4_plain, , v4, 4, PLAIN)
#if HAS_X86
#define TARGET_AVX2   __attribute__((target("avx2")))
#define TARGET_AVX512 __attribute__((target("avx512f,avx512vl")))
LANES(lanes8_avx2, TARGET_AVX2, v8, 8, LOOSE)
ONE(one_avx512, TARGET_AVX512, v4, X4)
LANES(lanes4_avx512, TARGET_AVX512, v4, 4, X4)
LANES(lanes8_avx512, TARGET_AVX512, v8, 8, X8)
LANES(lanes16_avx512, TARGET_AVX512, v16, 16, X16)
#endif

/* ---- choosing ---- */

typedef void (*kernel_fn)(const struct md5_lane *lanes, unsigned n, size_t blocks);

static const struct {
    kernel_fn lane; /* one stream in a lane; NULL: in a plain word only */
    kernel_fn upto4, upto8, upto16;
} sets[MD5_SET_COUNT] = {
    [MD5_PORTABLE] = {NULL, lanes4_plain, NULL, NULL},
#if HAS_X86
    [MD5_AVX2] = {NULL, lanes4_plain, lanes8_avx2, NULL},
    [MD5_AVX512] = {one_avx512, lanes4_avx512, lanes8_avx512, lanes16_avx512},
#endif
};

#if HAS_X86
/* The least time of some trials, in the processor's own ticks. */
static uint64_t ticks_of(kernel_fn kernel)
{
    static const uint8_t data[TRIAL_BLOCKS * MD5_BLOCK_BYTES];
    uint32_t state[N_STATE] = {0};
    const struct md5_lane lane = {state, data};
    uint64_t least = UINT64_MAX;
    for (unsigned i = 0; i < TRIALS; i++) {
        uint64_t began = __rdtsc();
        kernel(&lane, 1, TRIAL_BLOCKS);
        least = MIN(least, __rdtsc() - began);
    }
    return least;
}
#endif

/* Whether one stream is faster in a lane of the set. */
static bool is_lane_faster(enum md5_set set)
{
#if HAS_X86
    static _Atomic int known; /* of the only set that has such a lane; 0: not yet */
    int is = atomic_load_explicit(&known, memory_order_relaxed);
    if (is == 0 && sets[set].lane) {
        is = ticks_of(sets[set].lane) < ticks_of(one_plain) ? 1 : -1;
        atomic_store_explicit(&known, is, memory_order_relaxed);
    }
    return sets[set].lane && is > 0;
#else
    (void)set;
    return false;
#endif
}

static kernel_fn kernel_of(enum md5_set set, unsigned n)
{
    if (n == 1)
        return is_lane_faster(set) ? sets[set].lane : one_plain;
    return n <= 4 ? sets[set].upto4 : n <= 8 ? sets[set].upto8 : sets[set].upto16;
}

const char *md5_lanes_name(enum md5_set set)
{
    static const char *const names[] = {
#define X(NAME, name, lanes) name,
        MD5_SETS(X)
#undef X
    };
    assert((unsigned)set < MD5_SET_COUNT);
    return names[set];
}

unsigned md5_lanes_width(enum md5_set set)
{
    static const unsigned widths[] = {
#define X(NAME, name, lanes) lanes,
        MD5_SETS(X)
#undef X
    };
    assert((unsigned)set < MD5_SET_COUNT);
    return widths[set];
}

bool md5_lanes_has(enum md5_set set)
{
#if HAS_X86
    if (set == MD5_AVX2)
        return __builtin_cpu_supports("avx2");
    if (set == MD5_AVX512)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl");
#endif
    return set == MD5_PORTABLE;
}

enum md5_set md5_lanes_best(void)
{
    return md5_lanes_has(MD5_AVX512) ? MD5_AVX512 : md5_lanes_has(MD5_AVX2) ? MD5_AVX2 : MD5_PORTABLE;
}

bool md5_lanes_run_in_lane(enum md5_set set, const struct md5_lane *lane, size_t blocks)
{
    assert(md5_lanes_has(set));
    if (sets[set].lane)
        sets[set].lane(lane, 1, blocks);
    return sets[set].lane;
}

void md5_lanes_run(enum md5_set set, const struct md5_lane *lanes, unsigned n, size_t blocks)
{
    assert(n <= md5_lanes_width(set) && md5_lanes_has(set));
    if (n > 0 && blocks > 0)
        kernel_of(set, n)(lanes, n, blocks);
}

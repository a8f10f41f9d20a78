/*
 * SipHash-2-4 after J.-P. Aumasson and D. J. Bernstein, "SipHash: a fast short-input PRF" (2012), and the
 * finaliser of splitmix64 (Steele, Lea and Flood, 2014).
 *
 * Invariants:
 *  1. hash_sip and hash_placement give the same value on every machine and in every release.
 *  2. hash_table differs from process to process and is never stored.
 *
 * Failure modes: none.
 */
#include "base/hash.h"

#include "base/le.h"
#include "base/sys.h"

#include <pthread.h>

static uint64_t rotl(uint64_t x, unsigned n)
{
    return x << n | x >> (64 - n);
}

static void sip_rounds(uint64_t v[4], unsigned rounds)
{
    while (rounds--) {
        v[0] += v[1];
        v[1] = rotl(v[1], 13) ^ v[0];
        v[0] = rotl(v[0], 32);
        v[2] += v[3];
        v[3] = rotl(v[3], 16) ^ v[2];
        v[0] += v[3];
        v[3] = rotl(v[3], 21) ^ v[0];
        v[2] += v[1];
        v[1] = rotl(v[1], 17) ^ v[2];
        v[2] = rotl(v[2], 32);
    }
}

static void sip_word(uint64_t v[4], uint64_t word)
{
    v[3] ^= word;
    sip_rounds(v, 2);
    v[0] ^= word;
}

uint64_t hash_sip(struct hash_key key, struct slice data)
{
    /* "somepseudorandomlygeneratedbytes", the paper's initial state */
    uint64_t v[4] = {key.k0 ^ 0x736f6d6570736575u, key.k1 ^ 0x646f72616e646f6du, key.k0 ^ 0x6c7967656e657261u,
                     key.k1 ^ 0x7465646279746573u};
    size_t whole = ALIGN_DOWN(data.n, 8);
    for (size_t i = 0; i < whole; i += 8)
        sip_word(v, le_get64(data.p + i));
    uint64_t word = (uint64_t)data.n << 56;
    for (size_t i = whole; i < data.n; i++)
        word |= (uint64_t)(unsigned char)data.p[i] << (8 * (i - whole));
    sip_word(v, word);
    v[2] ^= 0xff;
    sip_rounds(v, 4);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

uint64_t hash_placement(struct slice data)
{
    return hash_sip((struct hash_key){0, 0}, data);
}

static struct hash_key table_key;
static pthread_once_t table_key_once = PTHREAD_ONCE_INIT;

static void make_table_key(void)
{
    sys->random(&table_key, sizeof(table_key));
}

uint64_t hash_table(struct slice data)
{
    (void)pthread_once(&table_key_once, make_table_key);
    return hash_sip(table_key, data);
}

static uint64_t splitmix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

uint64_t hash_mix(uint64_t a, uint64_t b)
{
    return splitmix(splitmix(a + 0x9e3779b97f4a7c15u) ^ (b + 0x9e3779b97f4a7c15u));
}

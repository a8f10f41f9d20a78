/* layer: net */
/* threaded */
/* MD5 beside: whatever many threads hand over, in whatever pieces, and whenever they end, the sums are
 * OpenSSL's and no memory is read that was given back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/hasher.h"

#include <openssl/evp.h>
#include <string.h>
#include <unistd.h>

#define THREADS       24 /* more than there are lanes */
#define TURNS         30
#define PIECE_BYTES   ((size_t)100 * 1000) /* some steps of the hasher, and no whole number of blocks */
#define STREAM_PIECES 6

struct source {
    uint64_t state;
};

static size_t below(struct source *s, size_t n)
{
    s->state ^= s->state >> 12;
    s->state ^= s->state << 25;
    s->state ^= s->state >> 27;
    return (size_t)((s->state * 0x2545f4914f6cdd1dull) >> 33) % n;
}

static void fill(struct source *s, uint8_t *p, size_t n)
{
    uint8_t start = (uint8_t)below(s, 256), step = (uint8_t)below(s, 256);
    for (size_t i = 0; i < n; i++)
        p[i] = (uint8_t)(start + i * step + (i >> 8));
}

static size_t piece_length(struct source *s)
{
    switch (below(s, 4)) {
    case 0:
        return below(s, 200);
    case 1:
        return below(s, 5000);
    default:
        return 1 + below(s, PIECE_BYTES);
    }
}

/* Threads cannot end a test by themselves. */
static void must(bool ok)
{
    if (!ok)
        abort();
}

/* One stream by two pieces of memory in turn, as who receives bytes does it. ends_early: cut somewhere. The
 * memory is given back right after the end: what still read it would be found by the sanitizers. */
static void run_stream(struct hasher *h, struct source *s, bool ends_early)
{
    uint8_t *pieces[2] = {malloc(PIECE_BYTES), malloc(PIECE_BYTES)}, ours[MD5_BYTES], theirs[EVP_MAX_MD_SIZE];
    EVP_MD_CTX *openssl = EVP_MD_CTX_new();
    size_t n_pieces = below(s, STREAM_PIECES + 1);
    struct hasher_stream stream;
    must(pieces[0] && pieces[1] && openssl && EVP_DigestInit_ex(openssl, EVP_md5(), NULL) == 1);
    hasher_stream_init(&stream, h);
    for (size_t i = 0; i < n_pieces; i++) {
        uint8_t *p = pieces[i % 2];
        size_t n = piece_length(s);
        hasher_stream_wait(&stream, p, PIECE_BYTES);
        fill(s, p, n);
        hasher_stream_add(&stream, p, n);
        must(EVP_DigestUpdate(openssl, p, n) == 1);
    }
    if (!ends_early) {
        hasher_stream_digest(&stream, ours);
        must(EVP_DigestFinal_ex(openssl, theirs, NULL) == 1 && memcmp(ours, theirs, MD5_BYTES) == 0);
    }
    hasher_stream_fini(&stream);
    memset(pieces[0], 0, PIECE_BYTES);
    free(pieces[0]);
    free(pieces[1]);
    hasher_stream_fini(&stream); /* once more is fine */
    EVP_MD_CTX_free(openssl);
}

struct worker {
    struct hasher *hasher;
    struct source source;
    unsigned cut_one_in; /* 0: none */
    pthread_t thread;
};

static void *work(void *arg)
{
    struct worker *w = arg;
    for (unsigned i = 0; i < TURNS; i++)
        run_stream(w->hasher, &w->source, w->cut_one_in && below(&w->source, w->cut_one_in) == 0);
    return NULL;
}

static void run_threads(struct hasher *h, unsigned cut_one_in)
{
    struct worker workers[THREADS];
    for (unsigned i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){.hasher = h, .source = {i + 1}, .cut_one_in = cut_one_in};
        assert_int_equal(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++)
        (void)pthread_join(workers[i].thread, NULL);
}

/* More streams than lanes, whose pieces have all kinds of lengths. */
static void many_streams_at_once(void **state)
{
    struct hasher *h = hasher_start(2);
    (void)state;
    assert_non_null(h);
    run_threads(h, 0);
    hasher_stop(h);
}

/* Every second stream is cut, with pieces waiting and in work; the others get their sums. */
static void streams_that_are_cut(void **state)
{
    struct hasher *h = hasher_start(2);
    (void)state;
    assert_non_null(h);
    run_threads(h, 2);
    hasher_stop(h);
}

/* With one processor there is no hasher, and streams compute at once. */
static void without_a_hasher(void **state)
{
    struct source s = {1};
    (void)state;
    assert_null(hasher_start(1));
    for (unsigned i = 0; i < TURNS; i++)
        run_stream(NULL, &s, i % 4 == 0);
    hasher_stop(NULL);
}

/* Who adds more pieces than may be on their way waits for the first; memory that is not used is not waited
 * for. */
static void more_pieces_than_may_wait(void **state)
{
    static uint8_t bytes[64 * HASHER_PIECES_MAX][5000];
    struct hasher *h = hasher_start(2);
    struct hasher_stream stream;
    struct source s = {7};
    uint8_t ours[MD5_BYTES], theirs[EVP_MAX_MD_SIZE];
    (void)state;
    fill(&s, (uint8_t *)bytes, sizeof(bytes));
    hasher_stream_init(&stream, h);
    for (size_t i = 0; i < ARRAY_SIZE(bytes); i++) {
        hasher_stream_add(&stream, bytes[i], sizeof(bytes[i]));
        hasher_stream_wait(&stream, ours, sizeof(ours));
    }
    hasher_stream_digest(&stream, ours);
    hasher_stream_fini(&stream);
    assert_int_equal(EVP_Digest(bytes, sizeof(bytes), theirs, NULL, EVP_md5(), NULL), 1);
    assert_memory_equal(ours, theirs, MD5_BYTES);
    hasher_stop(h);
}

#define STEALS 200
#define STEPS  2

struct steal {
    _Atomic unsigned turns;
    uint8_t bytes[STEPS * 32 * 1024]; /* two steps of the hasher */
};

/* As many streams as make their owners help; the first has one step's bytes, the others two. Who waits for
 * the first takes them all, and is done with one step: the thread, which found nothing to do meanwhile, has
 * to do the others'. */
static void *steal(void *arg)
{
    struct steal *x = arg;
    for (; x->turns < STEALS; x->turns++) {
        struct hasher *h = hasher_start(2);
        struct hasher_stream v[MD5_LANES_MAX];
        uint8_t sum[MD5_BYTES];
        unsigned n = md5_lanes_width(md5_lanes_best()) / 2;
        must(h && n > 0);
        for (unsigned i = 0; i < n; i++)
            hasher_stream_init(&v[i], h);
        for (unsigned i = 0; i < n; i++)
            hasher_stream_add(&v[i], x->bytes, sizeof(x->bytes) / (i == 0 ? STEPS : 1));
        for (unsigned i = 0; i < n; i++)
            hasher_stream_digest(&v[i], sum);
        for (unsigned i = 0; i < n; i++)
            hasher_stream_fini(&v[i]);
        hasher_stop(h);
    }
    return NULL;
}

/* What somebody else began and left is gone on with, although nothing is added any more. */
static void what_others_leave_is_computed(void **state)
{
    struct steal *x = calloc(1, sizeof(*x));
    pthread_t thread;
    (void)state;
    assert_non_null(x);
    assert_int_equal(pthread_create(&thread, NULL, steal, x), 0);
    unsigned seen = 0;
    for (unsigned ms = 0; ms < 60000 && x->turns < STEALS; ms++) {
        (void)usleep(1000);
        ms = x->turns != seen ? 0 : ms; /* of rest, not of work */
        seen = x->turns;
    }
    assert_int_equal(x->turns, STEALS);
    (void)pthread_join(thread, NULL);
    free(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(many_streams_at_once),
        cmocka_unit_test(streams_that_are_cut),
        cmocka_unit_test(without_a_hasher),
        cmocka_unit_test(more_pieces_than_may_wait),
        cmocka_unit_test(what_others_leave_is_computed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

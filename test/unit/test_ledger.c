/* layer: object */
/* Quotas: what is settled and what is reserved never pass them together, and claims leave nothing behind. */
#include "object/ledger.h"

#include "base/hash.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define QUOTA_UNIT 1024ull
#define BUCKET     7

struct fixture {
    struct ledger *l;
    int64_t settled;
    int fails; /* of the look at what is settled */
    struct err e;
};

static int settled(void *arg, uint64_t bucket, int64_t *ret, struct err *e)
{
    struct fixture *f = arg;
    (void)e;
    assert_int_equal(bucket, BUCKET);
    *ret = f->settled;
    return f->fails;
}

static int take(struct fixture *f, struct ledger_claim *c, uint64_t quota, uint64_t least, uint64_t want,
                uint64_t ahead, uint64_t *ret)
{
    struct ledger_ask ask = {.bucket = BUCKET,
                             .quota = quota,
                             .least = least,
                             .want = want,
                             .ahead = ahead,
                             .settled = settled,
                             .arg = f};
    return ledger_take(f->l, c, &ask, ret, &f->e);
}

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    assert_non_null(f);
    f->l = ledger_new();
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(ledger_reserved(f->l, BUCKET), 0);
    ledger_free(f->l);
    free(f);
    return 0;
}

/* What is left is never negative, whatever was counted, and without a quota there is no end of it. */
static void left_is_what_nobody_has(void **state)
{
    (void)state;
    assert_int_equal(ledger_left(100, 30, 20), 50);
    assert_int_equal(ledger_left(100, 80, 20), 0);
    assert_int_equal(ledger_left(100, 80, 50), 0);
    assert_int_equal(ledger_left(100, 200, 0), 0);
    assert_int_equal(ledger_left(100, -5, 20), 80);
    assert_int_equal(ledger_left(100, 0, UINT64_MAX), 0);
    assert_true(ledger_left(0, 200, 200) == UINT64_MAX);
}

/* A piece is what is wanted, more of it while there is plenty, less when there is little, nothing when there
 * is too little. */
static void pieces_become_smaller_towards_the_end(void **state)
{
    (void)state;
    const uint64_t quota = 6400 * MIB, piece = LEDGER_PIECE_BYTES;
    assert_int_equal(ledger_piece(quota, quota, 4096, 4096, piece), piece);
    assert_int_equal(ledger_piece(64 * MIB, 64 * MIB, 4096, 4096, piece), MIB);
    assert_int_equal(ledger_piece(quota, 8 * MIB, 4096, 4096, piece), 2 * MIB);
    assert_int_equal(ledger_piece(quota, 8 * MIB, 4096, 8 * MIB, piece), 8 * MIB);
    assert_int_equal(ledger_piece(quota, 8 * MIB, 4096, 9 * MIB, piece), 8 * MIB);
    assert_int_equal(ledger_piece(quota, 8 * MIB, 9 * MIB, 9 * MIB, piece), 0);
    assert_int_equal(ledger_piece(quota, quota, 4096, 4096, 0), 4096);
    assert_int_equal(ledger_piece(0, UINT64_MAX, 4096, 4096, piece), piece);
    assert_int_equal(ledger_piece(0, UINT64_MAX, 99 * MIB, 99 * MIB, piece), 99 * MIB);
}

/* What one claim has the others cannot get, until it is given back or ends; a refusal changes nothing. */
static void claims_share_a_quota(void **state)
{
    struct fixture *f = *state;
    struct ledger_claim a = {0}, b = {0};
    uint64_t got = 77;
    f->settled = 40;
    assert_int_equal(take(f, &a, 100, 50, 50, 0, &got), 0);
    assert_int_equal(got, 50);
    assert_int_equal(take(f, &b, 100, 11, 11, 0, &got), -EDQUOT);
    assert_true(got == 50 && b.bytes == 0 && ledger_reserved(f->l, BUCKET) == 50);
    assert_int_equal(take(f, &b, 100, 5, 30, 0, &got), 0);
    assert_int_equal(got, 10);
    ledger_back(f->l, &a, 20);
    assert_int_equal(a.bytes, 30);
    assert_int_equal(take(f, &b, 100, 20, 20, 0, &got), 0);
    assert_int_equal(b.bytes, 30);
    ledger_end(f->l, &a);
    assert_true(a.bytes == 0 && ledger_reserved(f->l, BUCKET) == 30);
    ledger_back(f->l, &b, UINT64_MAX); /* never more than it has */
    assert_int_equal(ledger_reserved(f->l, BUCKET), 0);
    ledger_end(f->l, &b);
}

/* However many writers ask for a little, and then do nothing, together they hold back what they asked for and
 * about a quarter of the quota: the rest is there for who writes. */
static void idle_writers_leave_room(void **state)
{
    struct fixture *f = *state;
    enum { WRITERS = 1000 };
    static struct ledger_claim c[WRITERS];
    const uint64_t quota = 1024 * MIB;
    struct ledger_claim big = {0};
    uint64_t got;
    for (size_t i = 0; i < WRITERS; i++)
        assert_int_equal(take(f, &c[i], quota, 4096, 4096, LEDGER_PIECE_BYTES, &got), 0);
    assert_true(ledger_reserved(f->l, BUCKET) <=
                quota / LEDGER_HELD_SHARE + LEDGER_PIECE_BYTES + WRITERS * 4096);
    assert_int_equal(take(f, &big, quota, 700 * MIB, 700 * MIB, 0, &got), 0);
    ledger_end(f->l, &big);
    for (size_t i = 0; i < WRITERS; i++)
        ledger_end(f->l, &c[i]);
}

/* A quota that was lowered takes nothing away and grants nothing; one that goes grants everything; a bucket
 * that cannot be looked at grants nothing and says why. */
static void quotas_may_change(void **state)
{
    struct fixture *f = *state;
    struct ledger_claim a = {0};
    uint64_t got = 0;
    f->settled = 100;
    assert_int_equal(take(f, &a, 1000, 500, 500, 0, &got), 0);
    assert_int_equal(take(f, &a, 50, 1, 1, 0, &got), -EDQUOT);
    assert_int_equal(a.bytes, 500);
    assert_int_equal(take(f, &a, 0, 5000, 5000, 0, &got), 0);
    assert_int_equal(a.bytes, 5500);
    f->fails = -EIO;
    assert_int_equal(take(f, &a, 1000000, 1, 1, 0, &got), -EIO);
    assert_int_equal(a.bytes, 5500);
    ledger_end(f->l, &a);
}

/* Writers that take, write, tell and end at random: what they have on disk never passes the quota, and when
 * all have ended all that is not settled is free again. */
static void nothing_passes_the_quota(void **state)
{
    struct fixture *f = *state;
    enum { WRITERS = 16 };
    struct ledger_claim c[WRITERS] = {0};
    uint64_t disk[WRITERS] = {0}, counted[WRITERS] = {0}, room[WRITERS] = {0}, spent[WRITERS] = {0};
    const uint64_t quota = 1000 * QUOTA_UNIT;
    uint64_t seed = 1;
    for (int round = 0; round < 200000; round++) {
        seed = hash_mix(seed, (uint64_t)round);
        size_t i = seed % WRITERS;
        uint64_t n = seed >> 8 & 0xffff, got = 0;
        switch (seed >> 32 & 7) {
        case 0: /* its handle ends: counted first */
            f->settled += (int64_t)(disk[i] - counted[i]);
            counted[i] = disk[i];
            ledger_end(f->l, &c[i]);
            room[i] = spent[i] = 0;
            break;
        case 1: /* removed, also by somebody else */
            if (c[i].bytes == 0) {
                f->settled -= (int64_t)counted[i];
                disk[i] = counted[i] = 0;
            }
            break;
        case 2:
        case 3: /* tells what it used, which is counted first, and asks */
            f->settled += (int64_t)(disk[i] - counted[i]);
            counted[i] = disk[i];
            ledger_back(f->l, &c[i], spent[i]);
            spent[i] = 0;
            if (take(f, &c[i], quota, 1, n + 1, LEDGER_PIECE_BYTES, &got) == 0)
                room[i] += got;
            break;
        default: /* writes where it has room */
            n = MIN(n, room[i]);
            disk[i] += n;
            room[i] -= n;
            spent[i] += n;
        }
        uint64_t all = 0;
        for (size_t k = 0; k < WRITERS; k++)
            all += disk[k];
        assert_true(all <= quota);
        assert_true((uint64_t)f->settled + ledger_reserved(f->l, BUCKET) >= all);
    }
    for (size_t i = 0; i < WRITERS; i++)
        ledger_end(f->l, &c[i]);
    assert_int_equal(ledger_reserved(f->l, BUCKET), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(left_is_what_nobody_has),
        cmocka_unit_test(pieces_become_smaller_towards_the_end),
        cmocka_unit_test_setup_teardown(claims_share_a_quota, setup, teardown),
        cmocka_unit_test_setup_teardown(idle_writers_leave_room, setup, teardown),
        cmocka_unit_test_setup_teardown(quotas_may_change, setup, teardown),
        cmocka_unit_test_setup_teardown(nothing_passes_the_quota, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

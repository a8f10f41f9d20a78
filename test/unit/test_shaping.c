/* layer: base */
/* Limits and shares, with virtual time: what goes when, and who gets how much. */
#include "base/shape.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define SECOND   ((uint64_t)1000000000)
#define START    (100 * SECOND)
#define FLOWS    4
#define REQUESTS 64

/* A limit lets a request go when nothing is owed, charges afterwards, saves up no more than its burst, and
 * takes back what was charged too much; none lets all go. */
static void test_a_limit_is_paid_afterwards(void **state)
{
    (void)state;
    struct shape_limit none = {0}, l = {.per_s = 1000};
    shape_charge(&none, INT64_MAX, START);
    assert_int_equal(shape_wait_ns(&none, START), 0);
    assert_int_equal(shape_wait_ns(&l, START), 0);
    shape_charge(&l, 2000, START);
    assert_int_equal(shape_wait_ns(&l, START), 2 * SECOND - SHAPE_BURST_NS);
    assert_int_equal(shape_wait_ns(&l, START + 2 * SECOND), 0);
    shape_charge(&l, -1000, START);
    assert_int_equal(shape_wait_ns(&l, START), SECOND - SHAPE_BURST_NS);
    shape_charge(&l, -1000000, START);
    assert_int_equal(shape_wait_ns(&l, START), 0);
    shape_charge(&l, 1000, START + 3600 * SECOND); /* an idle hour is no credit */
    assert_int_equal(shape_wait_ns(&l, START + 3600 * SECOND), SECOND - SHAPE_BURST_NS);
    shape_charge(&l, INT64_MAX, START);
    shape_charge(&l, INT64_MAX, START);
    assert_true(shape_wait_ns(&l, START) > 0);
}

/* What goes first of two that wait. */
static void test_the_order_of_the_waiting(void **state)
{
    (void)state;
    struct shape_share slow = {.weight = 100, .virtual_time = 9}, fast = {.weight = 100};
    struct shape_share late = {.weight = 100, .virtual_time = 5}, early = {.weight = 100};
    struct shape_limit owes = {.per_s = 1, .free_at_ns = START + 7};
    struct shape_room room = {.slots = 4};
    uint64_t wait_ns;
    const struct {
        struct shape_request a, b;
        ssize_t first;
    } cases[] = {
        {{.number = 2, .shares = {&fast, &late, &late}}, {.number = 1, .shares = {&fast, &late, &late}}, 1},
        {{.number = 1, .shares = {&slow, &early, &early}}, {.number = 2, .shares = {&fast, &late, &late}}, 1},
        {{.number = 1, .shares = {&fast, &late, &late}}, {.number = 2, .shares = {&fast, &early, &late}}, 1},
        {{.number = 1, .shares = {&fast, &late, &late}}, {.number = 2, .shares = {&fast, &late, &early}}, 1},
        {{.number = 1, .background = true, .shares = {&fast, &early, &early}},
         {.number = 2, .shares = {&slow, &late, &late}},
         1},
        {{.number = 1, .limits = {&owes}, .n_limits = 1, .shares = {&fast, &early, &early}},
         {.number = 2, .shares = {&slow, &late, &late}},
         1},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct shape_request a = cases[i].a, b = cases[i].b, *waiting[] = {&a, &b};
        assert_int_equal(shape_pick(waiting, 2, &room, START, &wait_ns), cases[i].first);
    }
}

/* Who owes waits exactly until that is paid; without a slot nobody goes; background takes half of them. */
static void test_waiting_and_slots(void **state)
{
    (void)state;
    struct shape_share s = {.weight = 100};
    struct shape_limit owes = {.per_s = 1, .free_at_ns = START + 7},
                       more = {.per_s = 1, .free_at_ns = START + 9};
    struct shape_request r = {.limits = {&owes, &more}, .n_limits = 2, .shares = {&s, &s, &s}},
                         *waiting[] = {&r};
    struct shape_room room = {.slots = 4}, full = {.slots = 4, .running = 4},
                      half = {.slots = 4, .running = 2, .running_background = 2};
    uint64_t wait_ns;
    size_t limit = 0;
    assert_int_equal(shape_pick(waiting, 1, &room, START, &wait_ns), -1);
    assert_int_equal(wait_ns, 9);
    assert_int_equal(shape_longest_ns(&r, START, &limit), 9);
    assert_int_equal(limit, 1);
    assert_int_equal(shape_pick(waiting, 1, &room, START + 9, &wait_ns), 0);
    assert_int_equal(shape_pick(waiting, 1, &full, START + 9, &wait_ns), -1);
    assert_true(wait_ns == UINT64_MAX);
    r.background = true;
    assert_int_equal(shape_pick(waiting, 1, &half, START + 9, &wait_ns), -1);
    assert_true(wait_ns == UINT64_MAX);
    r.background = false;
    assert_int_equal(shape_pick(waiting, 1, &half, START + 9, &wait_ns), 0);
}

/* ---- fairness, simulated ---- */

/* Flows that always have requests waiting at one server, which runs `slots` at a time, each for its bytes. */
struct simulation {
    uint64_t seed, now_ns;
    struct shape_share root, shares[FLOWS], leaves[FLOWS];
    struct shape_limit limit;
    struct shape_request requests[FLOWS];
    uint64_t bytes[FLOWS], number;
};

static uint64_t next_random(struct simulation *m)
{
    m->seed = m->seed * 6364136223846793005u + 1442695040888963407u;
    return m->seed >> 33;
}

static void wait_again(struct simulation *m, size_t i)
{
    m->requests[i] = (struct shape_request){.number = m->number++,
                                            .limits = {&m->limit},
                                            .n_limits = 1,
                                            .shares = {&m->shares[i], &m->leaves[i], &m->leaves[i]}};
    shape_share_begin(&m->shares[i], m->root.children_clock);
}

static void simulation_init(struct simulation *m, uint64_t seed, const uint32_t weights[FLOWS])
{
    *m = (struct simulation){
        .seed = seed, .now_ns = START, .root = {.weight = 100}, .limit = {.per_s = 1 << 20}};
    for (size_t i = 0; i < FLOWS; i++) {
        m->shares[i].weight = weights[i];
        m->leaves[i].weight = 100;
        wait_again(m, i);
    }
}

/* One request of those of `mask` goes, of random size; time passes as the limit says. */
static void step(struct simulation *m, unsigned mask)
{
    struct shape_request *waiting[FLOWS];
    const struct shape_room room = {.slots = 1};
    size_t who[FLOWS], n = 0;
    uint64_t wait_ns;
    ssize_t at;
    for (size_t i = 0; i < FLOWS; i++)
        if (mask & 1u << i) {
            who[n] = i;
            waiting[n++] = &m->requests[i];
        }
    while ((at = shape_pick(waiting, n, &room, m->now_ns, &wait_ns)) < 0)
        m->now_ns += wait_ns;
    size_t i = who[at];
    int64_t bytes = (int64_t)(1 + next_random(m) % (64 << 10));
    m->root.children_clock = MAX(m->root.children_clock, m->shares[i].virtual_time);
    shape_charge(&m->limit, bytes, m->now_ns);
    shape_share_charge(&m->shares[i], bytes);
    m->bytes[i] += (uint64_t)bytes;
    shape_share_end(&m->shares[i]);
    wait_again(m, i);
}

/* Whatever the weights and sizes, flows that always want something get bytes in proportion to their weights,
 * and together what the limit allows. */
static void test_shares_hold_in_bytes(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 50; seed++) {
        struct simulation m;
        uint32_t weights[FLOWS];
        uint64_t sum = 0, all = 0;
        simulation_init(&m, seed, (const uint32_t[FLOWS]){1, 1, 1, 1});
        for (size_t i = 0; i < FLOWS; i++)
            sum += weights[i] = (uint32_t)(50 + next_random(&m) % 500);
        simulation_init(&m, seed, weights);
        for (int i = 0; i < 20000; i++)
            step(&m, (1u << FLOWS) - 1);
        for (size_t i = 0; i < FLOWS; i++)
            all += m.bytes[i];
        for (size_t i = 0; i < FLOWS; i++) {
            double share = (double)m.bytes[i] / (double)all, wanted = weights[i] / (double)sum;
            assert_true(share > wanted * 0.95 && share < wanted * 1.05);
        }
        double rate = (double)all * 1e9 / (double)(m.now_ns - START);
        assert_true(rate > 0.95 * m.limit.per_s && rate < 1.2 * m.limit.per_s);
    }
}

/* Who was idle neither gets what he missed nor waits for others: from his return on shares hold. */
static void test_idle_time_is_not_saved_up(void **state)
{
    (void)state;
    struct simulation m;
    simulation_init(&m, 7, (const uint32_t[FLOWS]){300, 100, 100, 100});
    shape_share_end(&m.shares[0]); /* idle from the beginning */
    for (int i = 0; i < 10000; i++)
        step(&m, 0xe);
    wait_again(&m, 0);
    uint64_t before[FLOWS];
    for (size_t i = 0; i < FLOWS; i++)
        before[i] = m.bytes[i];
    for (int i = 0; i < 10000; i++)
        step(&m, 0x3);
    double ratio = (double)(m.bytes[0] - before[0]) / (double)(m.bytes[1] - before[1]);
    assert_true(ratio > 2.8 && ratio < 3.2);
}

/* Nor does a share save up that is never quite idle, because one request of it waits for something else. */
static void test_waiting_elsewhere_is_not_saved_up(void **state)
{
    (void)state;
    struct simulation m;
    simulation_init(&m, 7, (const uint32_t[FLOWS]){300, 100, 100, 100});
    for (int i = 0; i < 10000; i++)
        step(&m, 0xe); /* the request of flow 0 waits all the time */
    wait_again(&m, 0);
    uint64_t before[FLOWS];
    for (size_t i = 0; i < FLOWS; i++)
        before[i] = m.bytes[i];
    for (int i = 0; i < 10000; i++)
        step(&m, 0x3);
    double ratio = (double)(m.bytes[0] - before[0]) / (double)(m.bytes[1] - before[1] + 1);
    assert_true(ratio > 2.8 && ratio < 3.6);
}

/* A raised limit shortens what is owed, a lowered one lengthens it; taken away and set again nothing is owed.
 */
static void test_debts_follow_the_rate(void **state)
{
    (void)state;
    struct shape_limit l = {.per_s = 1000, .free_at_ns = START + 100 * SECOND};
    shape_limit_set(&l, 10000, START);
    assert_int_equal(shape_wait_ns(&l, START), 10 * SECOND);
    shape_limit_set(&l, 1000, START);
    assert_int_equal(shape_wait_ns(&l, START), 100 * SECOND);
    shape_limit_set(&l, 0, START);
    shape_limit_set(&l, 1000, START);
    assert_int_equal(shape_wait_ns(&l, START), 0);
}

/* A foreground request goes next however much background has waited for however long. */
static void test_foreground_never_waits_for_background(void **state)
{
    (void)state;
    struct shape_share busy = {.weight = 1, .virtual_time = UINT64_MAX / 2}, idle = {.weight = 10000};
    struct shape_request requests[REQUESTS], *waiting[REQUESTS];
    const struct shape_room room = {.slots = 2, .running = 1, .running_background = 1};
    uint64_t wait_ns;
    for (size_t i = 0; i < REQUESTS; i++) {
        requests[i] =
            (struct shape_request){.background = true, .number = i, .shares = {&idle, &idle, &idle}};
        waiting[i] = &requests[i];
    }
    requests[REQUESTS - 1] = (struct shape_request){.number = REQUESTS, .shares = {&busy, &busy, &busy}};
    assert_int_equal(shape_pick(waiting, REQUESTS, &room, START, &wait_ns), REQUESTS - 1);
    assert_int_equal(shape_pick(waiting, REQUESTS - 1, &room, START, &wait_ns), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_limit_is_paid_afterwards),
        cmocka_unit_test(test_the_order_of_the_waiting),
        cmocka_unit_test(test_waiting_and_slots),
        cmocka_unit_test(test_shares_hold_in_bytes),
        cmocka_unit_test(test_idle_time_is_not_saved_up),
        cmocka_unit_test(test_waiting_elsewhere_is_not_saved_up),
        cmocka_unit_test(test_debts_follow_the_rate),
        cmocka_unit_test(test_foreground_never_waits_for_background),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

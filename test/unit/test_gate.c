/* layer: object */
/* threaded */
/* The gate: who waits, who is refused, who is let through. Time stands still, so that only leaving moves it.
 */
#include "object/gate.h"
#include "support/clock_sys.h"

#include "base/sys.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#define START 1000000000000

static int setup(void **state)
{
    (void)state;
    clock_sys_start(START, START);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    clock_sys_stop();
    return 0;
}

static struct gate *gate_of(unsigned active, unsigned waiting)
{
    const struct gate_config config = {.active = active, .waiting = waiting};
    struct gate *g = gate_new(&config);
    gate_close(g);
    return g;
}

/* A request in a thread of its own. */
struct asker {
    struct gate *g;
    struct gate_who who;
    struct gate_pass pass;
    pthread_t thread;
    atomic_bool inside;
    int result;
};

static void *ask(void *arg)
{
    struct asker *a = arg;
    a->result = gate_enter(a->g, &a->who, &a->pass, NULL);
    atomic_store(&a->inside, true);
    return NULL;
}

static void start(struct asker *a, struct gate *g, const char *client, bool may_refuse)
{
    *a = (struct asker){.g = g, .who = {.client = slice_str(client), .may_refuse = may_refuse}};
    assert_int_equal(pthread_create(&a->thread, NULL, ask, a), 0);
}

static void join(struct asker *a)
{
    assert_int_equal(pthread_join(a->thread, NULL), 0);
}

static json_int_t number_of(struct gate *g, const char *name)
{
    json_t *o = gate_json(g);
    json_int_t n = json_integer_value(json_object_get(o, name));
    json_decref(o);
    return n;
}

static void wait_for(struct gate *g, const char *name, json_int_t n)
{
    while (number_of(g, name) != n)
        (void)usleep(1000);
}

/* Waits for one of those that were started and not taken yet to be inside. */
static struct asker *next_inside(struct asker *all, size_t n)
{
    for (size_t i = 0;; i = (i + 1) % n) {
        if (all[i].g && atomic_load(&all[i].inside)) {
            join(&all[i]);
            return &all[i];
        }
        (void)usleep(1000);
    }
}

/* While nothing is limited nobody is counted; a pass that is not inside may leave. */
static void test_an_open_gate_does_nothing(void **state)
{
    (void)state;
    const struct gate_config config = {.active = 1, .waiting = 1};
    const struct gate_who who = {.client = SLICE_LIT("a"), .may_refuse = true};
    struct gate *g = gate_new(&config);
    struct gate_pass one, two;
    assert_false(gate_is_closed(g));
    assert_int_equal(gate_enter(g, &who, &one, NULL), 0);
    assert_int_equal(gate_enter(g, &who, &two, NULL), 0);
    assert_int_equal(number_of(g, "active"), 0);
    gate_leave(g, &one, 1);
    gate_leave(g, &two, 1);
    gate_free(g);
}

/* A request waits while as many run as may; whoever leaves lets one in; what ran is counted. */
static void test_leaving_lets_in(void **state)
{
    (void)state;
    struct gate *g = gate_of(1, 8);
    struct asker first, more[3];
    start(&first, g, "a", true);
    join(&first);
    assert_int_equal(first.result, 0);
    for (size_t i = 0; i < 3; i++)
        start(&more[i], g, "a", true);
    wait_for(g, "waiting", 3);
    assert_int_equal(number_of(g, "active"), 1);
    gate_leave(g, &first.pass, 100);
    for (int left = 2; left >= 0; left--) {
        struct asker *in = next_inside(more, 3);
        assert_int_equal(number_of(g, "active"), 1);
        assert_int_equal(number_of(g, "waiting"), left);
        in->g = NULL;
        gate_leave(g, &in->pass, 100);
    }
    assert_int_equal(number_of(g, "active"), 0);
    assert_int_equal(number_of(g, "waited"), 3);
    gate_free(g);
}

/* Beyond what may wait a request is refused, or, where it may not be, let through; a client of S3 has a bound
 * of its own. Opening the gate for good lets everybody in. */
static void test_the_bounds_of_waiting(void **state)
{
    (void)state;
    struct gate *g = gate_of(1, GATE_WAITING_MAX + 1);
    struct asker first, waiting[GATE_WAITING_MAX], other, refused, through;
    start(&first, g, "a", true);
    join(&first);
    for (size_t i = 0; i < GATE_WAITING_MAX; i++)
        start(&waiting[i], g, "a", true);
    wait_for(g, "waiting", GATE_WAITING_MAX);
    start(&refused, g, "a", true);
    join(&refused);
    assert_int_equal(refused.result, -EBUSY);
    gate_leave(g, &refused.pass, 1); /* not inside */
    start(&other, g, "b", true);
    wait_for(g, "waiting", GATE_WAITING_MAX + 1);
    start(&refused, g, "c", true);
    join(&refused);
    assert_int_equal(refused.result, -EBUSY);
    start(&through, g, "c", false);
    join(&through);
    assert_int_equal(through.result, 0);
    assert_int_equal(number_of(g, "active"), 2);
    assert_int_equal(number_of(g, "refused"), 2);
    gate_open(g);
    join(&other);
    for (size_t i = 0; i < GATE_WAITING_MAX; i++) {
        join(&waiting[i]);
        assert_int_equal(waiting[i].result, 0);
        gate_leave(g, &waiting[i].pass, 1);
    }
    gate_leave(g, &other.pass, 1);
    gate_leave(g, &first.pass, 1);
    gate_leave(g, &through.pass, 1);
    gate_free(g);
}

/* A request that has run for a while counts no more: slow clients keep nobody out. */
static void test_slow_requests_hold_nobody_up(void **state)
{
    (void)state;
    struct gate *g = gate_of(1, 8);
    struct asker first, second;
    start(&first, g, "a", true);
    join(&first);
    start(&second, g, "b", true);
    wait_for(g, "waiting", 1);
    clock_sys_advance(600000000);
    join(&second);
    assert_int_equal(second.result, 0);
    gate_leave(g, &first.pass, 1);
    gate_leave(g, &second.pass, 1);
    gate_free(g);
}

/* Who may be refused does not wait for debts that are paid long after its client has gone; others do. */
static void test_nobody_waits_for_hours(void **state)
{
    (void)state;
    const struct gate_config config = {.active = 4, .waiting = 8, .bytes_per_s = 1};
    struct gate *g = gate_new(&config);
    struct asker first, second, third;
    start(&first, g, "a", true);
    join(&first); /* its estimate alone owes hours */
    start(&second, g, "b", true);
    start(&third, g, "c", false);
    wait_for(g, "waiting", 2);
    clock_sys_advance(61000000000);
    join(&second);
    assert_int_equal(second.result, -EBUSY);
    assert_int_equal(number_of(g, "waiting"), 1);
    gate_open(g);
    join(&third);
    assert_int_equal(third.result, 0);
    gate_leave(g, &first.pass, 1);
    gate_leave(g, &third.pass, 1);
    gate_free(g);
}

/* ---- shares ---- */

#define FLOWS      2
#define ASKERS_MAX 12

/* One that always has so many requests at the gate. */
struct flow {
    struct gate_who who;
    unsigned n;
    uint64_t bytes; /* of each request */
    struct asker askers[ASKERS_MAX];
    uint64_t got;
};

static void ask_again(struct gate *g, struct flow *f, struct asker *a)
{
    *a = (struct asker){.g = g, .who = f->who};
    assert_int_equal(pthread_create(&a->thread, NULL, ask, a), 0);
}

/* The request that is inside; all others wait. */
static struct asker *inside_of(struct flow *flows, size_t *ret_flow)
{
    for (;; (void)usleep(200))
        for (size_t i = 0; i < FLOWS; i++)
            for (unsigned k = 0; k < flows[i].n; k++)
                if (atomic_load(&flows[i].askers[k].inside)) {
                    *ret_flow = i;
                    return &flows[i].askers[k];
                }
}

/* Bytes of the first flow to those of the second, of `rounds` requests one by one at a gate with one slot. */
static double ratio_of(struct flow *flows, unsigned rounds)
{
    struct gate *g = gate_of(1, 100);
    json_int_t n = 0;
    for (size_t i = 0; i < FLOWS; i++)
        for (unsigned k = 0; k < flows[i].n; k++, n++)
            ask_again(g, &flows[i], &flows[i].askers[k]);
    for (unsigned i = 0; i < rounds; i++) {
        size_t flow;
        wait_for(g, "waiting", n - 1);
        struct asker *a = inside_of(flows, &flow);
        join(a);
        flows[flow].got += flows[flow].bytes;
        gate_leave(g, &a->pass, flows[flow].bytes);
        ask_again(g, &flows[flow], a);
    }
    gate_open(g);
    for (size_t i = 0; i < FLOWS; i++)
        for (unsigned k = 0; k < flows[i].n; k++) {
            join(&flows[i].askers[k]);
            gate_leave(g, &flows[i].askers[k].pass, flows[i].bytes);
        }
    gate_free(g);
    return (double)flows[0].got / (double)MAX(flows[1].got, (uint64_t)1);
}

static struct bucket bucket_of(const char *name, uint64_t share)
{
    struct bucket b = {.p.share = share};
    (void)snprintf(b.name, sizeof(b.name), "%s", name);
    return b;
}

static struct user user_of(const char *name, uint32_t share)
{
    struct user u = {.limits.share = share};
    (void)snprintf(u.name, sizeof(u.name), "%s", name);
    return u;
}

/* Two buckets of one user get bytes as their shares say, whichever has more requests waiting, and whoever's
 * are larger. (With SHAPE_WEIGHT_ONE for the share of USER_BUCKET in gate.c they get alike.) */
static void test_buckets_of_a_user_share_by_weight(void **state)
{
    (void)state;
    const struct bucket less = bucket_of("less", 25), more = bucket_of("more", 100);
    const struct user u = user_of("u", 100);
    struct flow flows[FLOWS] = {
        {.who = {.bucket = &more, .user = &u, .client = SLICE_LIT("a")}, .n = 2, .bytes = 64 * KIB},
        {.who = {.bucket = &less, .user = &u, .client = SLICE_LIT("a")}, .n = 8, .bytes = 64 * KIB}};
    double ratio = ratio_of(flows, 200);
    assert_true(ratio > 3.2 && ratio < 4.8);
    flows[0].got = flows[1].got = 0;
    flows[1].bytes = 256 * KIB;
    ratio = ratio_of(flows, 200);
    assert_true(ratio > 3 && ratio < 5);
}

/* So do two users, whatever the shares of the buckets that they read. (With SHAPE_WEIGHT_ONE for USER.) */
static void test_users_share_by_weight(void **state)
{
    (void)state;
    const struct bucket low = bucket_of("low", 1), high = bucket_of("high", 10000);
    const struct user less = user_of("less", 100), more = user_of("more", 400);
    struct flow flows[FLOWS] = {
        {.who = {.bucket = &low, .user = &more, .client = SLICE_LIT("a")}, .n = 2, .bytes = 64 * KIB},
        {.who = {.bucket = &high, .user = &less, .client = SLICE_LIT("a")}, .n = 8, .bytes = 64 * KIB}};
    double ratio = ratio_of(flows, 200);
    assert_true(ratio > 3.2 && ratio < 4.8);
}

/* Two clients of a user in a bucket get bytes alike, the one with one request at a time like the one with
 * twelve. (With USER_BUCKET in the place of USER_BUCKET_CLIENT in share_kinds the first gets a twelfth.) */
static void test_clients_share_alike(void **state)
{
    (void)state;
    const struct bucket b = bucket_of("b", 100);
    struct flow flows[FLOWS] = {
        {.who = {.bucket = &b, .client = SLICE_LIT("127.0.0.1")}, .n = 1, .bytes = 64 * KIB},
        {.who = {.bucket = &b, .client = SLICE_LIT("127.0.0.2")}, .n = 12, .bytes = 64 * KIB}};
    double ratio = ratio_of(flows, 200);
    assert_true(ratio > 0.8 && ratio < 1.25);
}

/* A thousand clients that come and go leave nothing behind but what counts for all. */
static void test_clients_that_go_are_forgotten(void **state)
{
    (void)state;
    struct gate *g = gate_of(4, 8);
    char client[32];
    for (unsigned i = 0; i < 5000; i++) {
        struct gate_pass pass;
        (void)snprintf(client, sizeof(client), "client %u", i);
        const struct gate_who who = {.client = slice_str(client), .may_refuse = true};
        assert_int_equal(gate_enter(g, &who, &pass, NULL), 0);
        gate_leave(g, &pass, 10);
    }
    json_t *o = gate_json(g);
    assert_true(json_array_size(json_object_get(o, "limits")) < 2500);
    json_decref(o);
    gate_free(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_an_open_gate_does_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(test_leaving_lets_in, setup, teardown),
        cmocka_unit_test_setup_teardown(test_the_bounds_of_waiting, setup, teardown),
        cmocka_unit_test_setup_teardown(test_slow_requests_hold_nobody_up, setup, teardown),
        cmocka_unit_test_setup_teardown(test_nobody_waits_for_hours, setup, teardown),
        cmocka_unit_test_setup_teardown(test_buckets_of_a_user_share_by_weight, setup, teardown),
        cmocka_unit_test_setup_teardown(test_users_share_by_weight, setup, teardown),
        cmocka_unit_test_setup_teardown(test_clients_share_alike, setup, teardown),
        cmocka_unit_test_setup_teardown(test_clients_that_go_are_forgotten, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

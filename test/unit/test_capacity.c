/* layer: base */
#include "base/capacity.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define HOUR_S  3600.0
#define MONTH_S (30.4375 * 86400)
#define GIB_D   ((double)GIB)

static struct capacity_plan plan(void)
{
    return (struct capacity_plan){
        .raw_bytes = 100 * TIB,
        .nodes = 16,
        .disks = 12,
        .clients = 32,
        .readers = 8,
        .disk_read_bytes_per_s = 3e9,
        .disk_write_bytes_per_s = 1e9,
        .node_bytes_per_s = 12.5e9,
        .client_bytes_per_s = 12.5e9,
        .efficiency = 0.95,
        .redundancy = {.data = 1},
        .rebuild_share = 0.25,
        .grace_s = 900,
        .disk_mttf_s = 876000 * HOUR_S,
    };
}

static struct capacity_result compute(const struct capacity_plan *p)
{
    struct capacity_result r;
    struct err e = {0};
    if (capacity_compute(p, &r, &e) < 0)
        fail_msg("%s", e.text);
    return r;
}

static void assert_within(double value, double expected, double share)
{
    if (value < expected * (1 - share) || value > expected * (1 + share))
        fail_msg("%g is not within %g %% of %g", value, share * 100, expected);
}

/* Sixteen nodes with 100 Gb/s each gave a published 178 GiB/s: the network at 95 % of its rate. */
static void sixteen_nodes_at_line_rate(void **state)
{
    struct capacity_plan p = plan();
    struct capacity_result r = compute(&p);
    assert_within(r.read.bytes_per_s, 178 * GIB_D, 0.01);
    assert_int_equal(r.read.limit, CAPACITY_NETWORK);
}

/* A service on rented local disks publishes 1.15 GiB/s read and 0.5 GiB/s written per TiB. Its disks are sold
 * with 9,360 and 4,680 MiB/s for 24 of 375 GiB: the disks are the limit, and bring the figures within an
 * eighth. */
static void rates_per_tib_of_rented_disks(void **state)
{
    struct capacity_plan p = plan();
    p.nodes = 12;
    p.disks = 24; /* 9000 GiB each */
    p.raw_bytes = 12 * 9000 * GIB;
    p.disk_read_bytes_per_s = 9360.0 / 24 * (double)MIB;
    p.disk_write_bytes_per_s = 4680.0 / 24 * (double)MIB;
    p.clients = 256;
    struct capacity_result r = compute(&p);
    double tib = (double)p.raw_bytes / (double)TIB;
    assert_int_equal(r.read.limit, CAPACITY_DISKS);
    assert_int_equal(r.write.limit, CAPACITY_DISKS);
    assert_within(r.read.bytes_per_s / tib, 1.15 * GIB_D, 0.125);
    assert_within(r.write.bytes_per_s / tib, 0.5 * GIB_D, 0.125);
}

/* The same service publishes a mean time to data loss of 2, 4 and 16 months for 100, 48 and 12 TiB: what
 * disks of 375 GiB that fail 2.3 times in 100 years give when nothing replaces a lost one. */
static void two_months_at_100_tib_without_redundancy(void **state)
{
    static const struct {
        uint64_t tib;
        double months;
    } published[] = {{100, 2}, {48, 4}, {12, 16}};
    for (size_t i = 0; i < ARRAY_SIZE(published); i++) {
        struct capacity_plan p = plan();
        p.raw_bytes = published[i].tib * TIB;
        p.nodes = 1;
        p.disks = (p.raw_bytes + 375 * GIB - 1) / (375 * GIB);
        p.disk_mttf_s = 365.25 * 86400 / 0.023;
        assert_within(compute(&p).mttdl_s, published[i].months * MONTH_S, 0.05);
    }
}

/* With one and with two spare pieces the time to loss is that of the classic formulas of RAID 5 and 6
 * (Patterson, Gibson and Katz, 1988; Chen and others, 1994), whose disks failed every 30,000 hours and were
 * back after one. */
static void loss_with_redundancy_is_that_of_raid(void **state)
{
    double mttf = 30000 * HOUR_S, mttr = 1 * HOUR_S;
    struct capacity_plan p = plan();
    p.nodes = 1;
    p.disks = 11;
    p.disk_mttf_s = mttf;
    p.raw_bytes = 1; /* rebuilt at once: the grace is all of the repair time */
    p.grace_s = mttr;
    p.redundancy = (struct capacity_redundancy){.data = 10, .extra = 1, .coded = true};
    assert_within(compute(&p).mttdl_s, mttf * mttf / (11 * 10 * mttr), 0.001);
    p.disks = 12;
    p.redundancy.extra = 2;
    assert_within(compute(&p).mttdl_s, mttf * mttf * mttf / (12.0 * 11 * 10 * mttr * mttr), 0.001);
}

/* When disks fail as fast as they are replaced, the exact solution of the chain holds and not its
 * approximation: for two of two it is (3 a + b) / (2 a a), a and b being the rates of failing and of coming
 * back. */
static void loss_is_exact_for_slow_repair(void **state)
{
    double a = 1 / (10 * HOUR_S), b = 1 / (20 * HOUR_S);
    struct capacity_plan p = plan();
    p.nodes = 1;
    p.disks = 2;
    p.raw_bytes = 1;
    p.disk_mttf_s = 1 / a;
    p.grace_s = 1 / b;
    p.redundancy = (struct capacity_redundancy){.data = 1, .extra = 1};
    assert_within(compute(&p).mttdl_s, (3 * a + b) / (2 * a * a), 1e-6);
}

/* Usable capacity is the share of data pieces; a rebuild reads as many pieces as there are data pieces, with
 * the share of the network that it may use. */
static void capacity_and_rebuild_of_coded_data(void **state)
{
    struct capacity_plan p = plan();
    p.redundancy = (struct capacity_redundancy){.data = 8, .extra = 2, .coded = true};
    struct capacity_result r = compute(&p);
    assert_within(r.usable_bytes, 80.0 * (double)TIB, 1e-9);
    double disk = (double)p.raw_bytes / (16 * 12);
    assert_int_equal(r.rebuild_limit, CAPACITY_NETWORK);
    assert_within(r.rebuild_disk_s, disk * 8 / (16 * 12.5e9 * 0.95 * 0.25), 1e-9);
    assert_within(r.rebuild_node_s, 12 * disk * 8 / (15 * 12.5e9 * 0.95 * 0.25), 1e-9);
    assert_true(r.pieces_on_nodes);
    /* 3 copies while open, then 10/8 of it: 4.25 bytes to disks, and all but the piece that stays over the
     * network */
    assert_within(r.write.by_limit[CAPACITY_NETWORK], 16 * 12.5e9 * 0.95 / 4.125, 1e-9);
    assert_within(r.write.bytes_per_s, 16 * 12 * 1e9 / 4.25, 1e-9);
}

/* A request to any node crosses the network once more, unless that node holds the bytes: with 16 nodes in 15
 * of 16 cases. A single node has nobody to ask, and keeps copies without its network. */
static void requests_to_any_node(void **state)
{
    struct capacity_plan p = plan();
    struct capacity_result r = compute(&p);
    assert_within(r.read_any.bytes_per_s, r.read.bytes_per_s / (1 + 15.0 / 16), 1e-9);
    p.nodes = 1;
    p.redundancy.extra = 1;
    r = compute(&p);
    assert_within(r.read_any.bytes_per_s, r.read.bytes_per_s, 1e-9);
    assert_within(r.write.by_limit[CAPACITY_NETWORK], 12.5e9 * 0.95, 1e-9);
    assert_false(r.pieces_on_nodes);
}

/* A byte that is written costs its copies, on the disks and, on more than one node, on the network; through
 * any node one hop more. The clients' network bounds what they write as it does what they read. */
static void copies_cost_their_bytes(void **state)
{
    struct capacity_plan p = plan();
    for (uint64_t copies = 1; copies <= 4; copies++) {
        p.redundancy.extra = copies - 1;
        struct capacity_result r = compute(&p);
        assert_within(r.write.by_limit[CAPACITY_DISKS], 16 * 12 * 1e9 / (double)copies, 1e-9);
        assert_within(r.write.by_limit[CAPACITY_NETWORK], 16 * 12.5e9 * 0.95 / (double)copies, 1e-9);
        assert_within(r.write_any.by_limit[CAPACITY_NETWORK],
                      16 * 12.5e9 * 0.95 / ((double)copies + 15.0 / 16), 1e-9);
        assert_within(r.write_any.by_limit[CAPACITY_DISKS], r.write.by_limit[CAPACITY_DISKS], 1e-9);
        assert_within(r.write.by_limit[CAPACITY_CLIENTS], 32 * 12.5e9 * 0.95, 1e-9);
        assert_within(r.usable_bytes, 100.0 * (double)TIB / (double)copies, 1e-9);
    }
}

/* A rebuild takes as long as the slowest of reading, writing and the network, each with the share that it may
 * use; of mirrors one copy is read. Without redundancy nothing is rebuilt. */
static void rebuilds_are_bound_by_the_slowest(void **state)
{
    struct capacity_plan p = plan();
    p.redundancy = (struct capacity_redundancy){.data = 8, .extra = 2, .coded = true};
    double disk = (double)p.raw_bytes / (16 * 12), left = 16 * 12 - 1;
    p.node_bytes_per_s = 1e15;
    p.disk_read_bytes_per_s = 1e9;
    p.disk_write_bytes_per_s = 1e9;
    struct capacity_result r = compute(&p);
    assert_int_equal(r.rebuild_limit, CAPACITY_DISKS);
    assert_within(r.rebuild_disk_s, 8 * disk / (left * 1e9 * 0.25), 1e-9); /* reading: eight pieces for one */
    p.disk_write_bytes_per_s = 1e8;
    assert_within(compute(&p).rebuild_disk_s, disk / (left * 1e8 * 0.25), 1e-9); /* writing */
    assert_within(compute(&p).rebuild_node_s, 12 * disk / ((16 - 1) * 12 * 1e8 * 0.25), 1e-9);
    p.redundancy = (struct capacity_redundancy){.data = 1, .extra = 1};
    p.node_bytes_per_s = 1e6;
    r = compute(&p);
    assert_int_equal(r.rebuild_limit, CAPACITY_NETWORK);
    assert_within(r.rebuild_disk_s, disk / (16 * 1e6 * 0.95 * 0.25), 1e-9);
    p.redundancy.extra = 0;
    assert_true(compute(&p).rebuild_disk_s == 0 && compute(&p).rebuild_node_s == 0);
}

/* Where nothing is ever lost, the time to loss is still a number. */
static void loss_is_a_number(void **state)
{
    struct capacity_plan p = plan();
    p.nodes = 64;
    p.disks = 1000;
    p.disk_mttf_s = 1e17;
    p.grace_s = 0.001;
    p.redundancy.extra = 63;
    assert_true(compute(&p).mttdl_s == CAPACITY_MOST_S);
    p = plan();
    p.grace_s = 0;
    p.redundancy.extra = 1;
    assert_true(compute(&p).mttdl_s > 0 && compute(&p).mttdl_s < CAPACITY_MOST_S);
}

/* More machines never lower a rate, more redundancy never raises one, and the named limit is the lowest. */
static void rates_are_monotonic(void **state)
{
    double read = 0, write = 0;
    for (uint64_t nodes = 1; nodes <= 64; nodes *= 2) {
        struct capacity_plan p = plan();
        p.nodes = nodes;
        struct capacity_result r = compute(&p);
        assert_true(r.read.bytes_per_s >= read && r.write.bytes_per_s >= write);
        read = r.read.bytes_per_s;
        write = r.write.bytes_per_s;
        for (int i = 0; i < CAPACITY_LIMIT_COUNT; i++)
            assert_true(r.read.by_limit[i] >= r.read.by_limit[r.read.limit]);
        p.redundancy.extra = 2;
        if (nodes >= 3)
            assert_true(compute(&p).write.bytes_per_s < write);
    }
    assert_within(read, 32 * 12.5e9 * 0.95, 1e-9); /* in the end the clients are the limit */
}

/* From the second node on that holds for every redundancy, and through any node; the first one keeps its
 * copies without the network. */
static void nodes_never_lower_a_rate(void **state)
{
    static const struct capacity_redundancy kinds[] = {{.data = 1, .extra = 2},
                                                       {.data = 8, .extra = 2, .coded = true},
                                                       {.data = 2, .extra = 1, .coded = true}};
    for (size_t i = 0; i < ARRAY_SIZE(kinds); i++) {
        struct capacity_plan p = plan();
        p.redundancy = kinds[i];
        p.disk_write_bytes_per_s = 1e12; /* the network is the limit */
        p.disk_read_bytes_per_s = 1e12;
        p.clients = 1000;
        p.nodes = 1;
        double alone = compute(&p).write.bytes_per_s, write = 0, write_any = 0, read_any = 0;
        for (p.nodes = 2; p.nodes <= 64; p.nodes++) {
            struct capacity_result r = compute(&p);
            assert_int_equal(r.write.limit, CAPACITY_NETWORK);
            assert_true(r.write.bytes_per_s > write && r.write_any.bytes_per_s > write_any &&
                        r.read_any.bytes_per_s > read_any);
            assert_true(p.nodes > 2 || r.write.bytes_per_s < alone);
            write = r.write.bytes_per_s;
            write_any = r.write_any.bytes_per_s;
            read_any = r.read_any.bytes_per_s;
        }
    }
}

/* What cannot hold its redundancy is refused with what is missing. */
static void refuses_what_does_not_fit(void **state)
{
    struct capacity_plan p = plan();
    struct capacity_result r;
    struct err e = {0};
    p.nodes = 1;
    p.disks = 4;
    p.redundancy = (struct capacity_redundancy){.data = 8, .extra = 2, .coded = true};
    assert_int_equal(capacity_compute(&p, &r, &e), ERR_BAD_OPTION);
    assert_non_null(strstr(e.text, "10 pieces do not fit on 4 disks"));
    p = plan();
    p.raw_bytes = 0;
    assert_int_equal(capacity_compute(&p, &r, NULL), ERR_BAD_OPTION);
}

/* Rates in bits and in bytes, redundancies and clients; anything else is refused with the option's name. */
static void texts(void **state)
{
    double rate;
    struct capacity_redundancy r;
    uint64_t clients, readers;
    struct err e = {0};
    assert_int_equal(capacity_parse_rate("100Gb", "--network", &rate, &e), 0);
    assert_true(rate == 12.5e9);
    assert_int_equal(capacity_parse_rate("2.5Gbit/s", "--network", &rate, &e), 0);
    assert_true(rate == 2.5e9 / 8);
    assert_int_equal(capacity_parse_rate("12.5GB/s", "--network", &rate, &e), 0);
    assert_true(rate == 12.5e9);
    static const char *const bad_rates[] = {"",    "100",  "100G", "100Gib", "fast",
                                            "0Gb", "-1Gb", "b",    "10Gb/h"};
    for (size_t i = 0; i < ARRAY_SIZE(bad_rates); i++)
        assert_int_equal(capacity_parse_rate(bad_rates[i], "--network", &rate, &e), ERR_BAD_OPTION);
    assert_int_equal(strncmp(e.text, "--network 10Gb/h: ", 18), 0);
    assert_int_equal(capacity_parse_redundancy("ec=8+2", "--redundancy", &r, &e), 0);
    assert_true(r.data == 8 && r.extra == 2 && r.coded);
    assert_int_equal(capacity_parse_redundancy("mirror=3", "--redundancy", &r, &e), 0);
    assert_true(r.data == 1 && r.extra == 2 && !r.coded);
    assert_int_equal(capacity_parse_redundancy("none", "--redundancy", &r, &e), 0);
    assert_true(r.data == 1 && r.extra == 0);
    static const char *const bad_codes[] = {"",        "ec=8",     "ec=0+2",  "ec=8+0",
                                            "ec=63+2", "mirror=1", "mirror=", "raid5"};
    for (size_t i = 0; i < ARRAY_SIZE(bad_codes); i++)
        assert_int_equal(capacity_parse_redundancy(bad_codes[i], "--redundancy", &r, &e), ERR_BAD_OPTION);
    assert_int_equal(capacity_parse_clients("32x8", "--clients", &clients, &readers, &e), 0);
    assert_true(clients == 32 && readers == 8);
    assert_int_equal(capacity_parse_clients("5", "--clients", &clients, &readers, &e), 0);
    assert_true(clients == 5 && readers == 1);
    static const char *const bad_clients[] = {"", "x8", "32x", "32x8x2", "0x8", "32x0", "many"};
    for (size_t i = 0; i < ARRAY_SIZE(bad_clients); i++)
        assert_int_equal(capacity_parse_clients(bad_clients[i], "--clients", &clients, &readers, &e),
                         ERR_BAD_OPTION);
}

/* With no more nodes than pieces each of the others has one of the same stripe, and can take no second one:
 * the disks beside a lost one take what it had, by one node's network, and a new node what a node had. Where
 * nothing is left that could, a new disk does. (Seen to fail: all survivors took a part of it, which put two
 * pieces of a stripe in one place.) */
static void without_a_spare_place_a_rebuild_is_slower(void **state)
{
    (void)state;
    struct capacity_plan p = plan();
    p.nodes = 3;
    p.disks = 4;
    p.redundancy = (struct capacity_redundancy){.data = 2, .extra = 1, .coded = true};
    p.node_bytes_per_s = 12.5e9;
    p.disk_read_bytes_per_s = 3e9;
    p.disk_write_bytes_per_s = 1e9;
    double disk = (double)p.raw_bytes / 12;
    struct capacity_result r = compute(&p);
    assert_within(r.rebuild_disk_s, disk / (3 * 1e9 * 0.25), 1e-9);
    assert_within(r.rebuild_node_s, 4 * disk / (4 * 1e9 * 0.25), 1e-9);
    assert_true(!r.disk_into_new && r.node_into_new);
    p.node_bytes_per_s = 1e8; /* two pieces are received for one, by one node */
    assert_within(compute(&p).rebuild_disk_s, 2 * disk / (1e8 * 0.95 * 0.25), 1e-9);
    assert_within(compute(&p).rebuild_node_s, 4 * 2 * disk / (1e8 * 0.95 * 0.25), 1e-9);
    p.node_bytes_per_s = 12.5e9;
    p.nodes = 4; /* one to spare */
    r = compute(&p);
    assert_within(r.rebuild_disk_s, disk * 12 / 16 / (15 * 1e9 * 0.25), 1e-9);
    assert_true(!r.disk_into_new && !r.node_into_new);
    p.nodes = 3;
    p.disks = 1;
    r = compute(&p);
    assert_within(r.rebuild_disk_s, 4 * disk / (1e9 * 0.25), 1e-9);
    assert_true(r.disk_into_new && r.node_into_new);
    p.nodes = 1;
    p.disks = 3; /* a piece on each disk */
    r = compute(&p);
    assert_within(r.rebuild_disk_s, 4 * disk / (1e9 * 0.25), 1e-9);
    assert_true(r.disk_into_new && !r.node_into_new && r.rebuild_node_s == 0);
    p.disks = 4;
    r = compute(&p);
    assert_within(r.rebuild_disk_s, 3 * disk / (3 * 1e9 * 0.25), 1e-9);
    assert_false(r.disk_into_new);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sixteen_nodes_at_line_rate),
        cmocka_unit_test(rates_per_tib_of_rented_disks),
        cmocka_unit_test(two_months_at_100_tib_without_redundancy),
        cmocka_unit_test(loss_with_redundancy_is_that_of_raid),
        cmocka_unit_test(loss_is_exact_for_slow_repair),
        cmocka_unit_test(loss_is_a_number),
        cmocka_unit_test(capacity_and_rebuild_of_coded_data),
        cmocka_unit_test(requests_to_any_node),
        cmocka_unit_test(copies_cost_their_bytes),
        cmocka_unit_test(rebuilds_are_bound_by_the_slowest),
        cmocka_unit_test(without_a_spare_place_a_rebuild_is_slower),
        cmocka_unit_test(rates_are_monotonic),
        cmocka_unit_test(nodes_never_lower_a_rate),
        cmocka_unit_test(refuses_what_does_not_fit),
        cmocka_unit_test(texts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

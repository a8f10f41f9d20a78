/* forebay plan: what a cluster of a given shape can be expected to do. Asks no node; base/capacity.h
 * computes. */
#include "cli/cli.h"
#include "cli/command.h"

#include "base/capacity.h"
#include "base/text.h"

#include <inttypes.h>

struct plan_options {
    uint64_t capacity, nodes, disks, efficiency, rebuild_share, grace_ms, disk_mttf_ms;
    char *network, *client_network, *redundancy, *clients, *disk_read, *disk_write;
    bool json;
};

#define ROW_NUMBER(name_, type_, field, def_, max_, arg_, doc_)                                              \
    {                                                                                                        \
        .name = (name_), .type = (type_), .offset = offsetof(struct plan_options, field), .def = (def_),     \
        .min = 1, .max = (max_), .arg = (arg_), .doc = (doc_)                                                \
    }
#define ROW_TEXT(name_, field, def_, arg_, doc_)                                                             \
    {                                                                                                        \
        .name = (name_), .type = OPTION_STRING, .offset = offsetof(struct plan_options, field),              \
        .def = (def_), .arg = (arg_), .doc = (doc_)                                                          \
    }

static const struct option rows[] = {
    ROW_NUMBER("capacity", OPTION_SIZE, capacity, "100TiB", 0, "SIZE", "of all disks together"),
    ROW_NUMBER("nodes", OPTION_UINT, nodes, "1", 100000, "N", "nodes"),
    ROW_NUMBER("disks", OPTION_UINT, disks, "1", 1000, "N", "disks of each node"),
    ROW_TEXT("network", network, "100Gb", "RATE", "network of each node, in each direction"),
    ROW_TEXT("redundancy", redundancy, "none", "none|mirror=N|ec=K+M", "how the bytes are kept"),
    ROW_TEXT("clients", clients, "32x8", "MACHINESxREADERS", "machines that read, accelerators in each"),
    ROW_TEXT("client-network", client_network, NULL, "RATE",
             "network of each of these machines; as --network when not given"),
    ROW_TEXT("disk-read", disk_read, "3GB/s", "RATE", "what one disk reads"),
    ROW_TEXT("disk-write", disk_write, "1GB/s", "RATE", "what one disk writes for hours"),
    ROW_NUMBER("efficiency", OPTION_UINT, efficiency, "95", 100, "PERCENT",
               "share of the network's rate that carries bytes of files"),
    ROW_NUMBER("rebuild-share", OPTION_UINT, rebuild_share, "25", 100, "PERCENT",
               "share of disks and network that a rebuild may use"),
    {.name = "grace",
     .type = OPTION_DURATION,
     .offset = offsetof(struct plan_options, grace_ms),
     .def = "15m",
     .arg = "TIME",
     .doc = "from a failure to its rebuild"},
    ROW_NUMBER("disk-mttf", OPTION_DURATION, disk_mttf_ms, "876000h", 0, "TIME",
               "mean time to failure of one disk; 876000h is 1 % a year"),
    COMMAND_FLAG(plan_options, json, "json", 0, "JSON instead of the table"),
};
static const struct option_table table = {rows, ARRAY_SIZE(rows), NULL};

static const struct command_usage usage = {
    .command = "forebay plan",
    .operands = "",
    .about =
        "Expected rates, usable capacity, time to rebuild and mean time to data loss of a cluster of this "
        "shape.\n"
        "The formulas, what they were checked against, and what they leave out: docs/PLANNING.md.",
};

static int plan_of(const struct plan_options *o, struct capacity_plan *ret, struct err *e)
{
    struct capacity_plan p = {
        .raw_bytes = o->capacity,
        .nodes = o->nodes,
        .disks = o->disks,
        .efficiency = (double)o->efficiency / 100,
        .rebuild_share = (double)o->rebuild_share / 100,
        .grace_s = (double)o->grace_ms / 1000,
        .disk_mttf_s = (double)o->disk_mttf_ms / 1000,
    };
    int r = capacity_parse_rate(o->network, "--network", &p.node_bytes_per_s, e);
    if (r == 0)
        r = capacity_parse_rate(o->client_network ? o->client_network : o->network, "--client-network",
                                &p.client_bytes_per_s, e);
    if (r == 0)
        r = capacity_parse_rate(o->disk_read, "--disk-read", &p.disk_read_bytes_per_s, e);
    if (r == 0)
        r = capacity_parse_rate(o->disk_write, "--disk-write", &p.disk_write_bytes_per_s, e);
    if (r == 0)
        r = capacity_parse_redundancy(o->redundancy, "--redundancy", &p.redundancy, e);
    if (r == 0)
        r = capacity_parse_clients(o->clients, "--clients", &p.clients, &p.readers, e);
    if (r == 0)
        *ret = p;
    return r;
}

/* As a whole number; what no 64 bits hold is the most they do. */
static uint64_t whole(double v)
{
    return v < (double)UINT64_MAX ? (uint64_t)v : UINT64_MAX;
}

/* ---- for programs ---- */

static void json_rate(const char *name, const struct capacity_rate *r)
{
    (void)printf(", \"%s\": {\"bytes_per_s\": %.0f, \"bottleneck\": \"%s\"", name, r->bytes_per_s,
                 capacity_limit_name(r->limit));
    for (int i = 0; i < CAPACITY_LIMIT_COUNT; i++)
        (void)printf(", \"%s_bytes_per_s\": %.0f", capacity_limit_name((enum capacity_limit)i),
                     r->by_limit[i]);
    (void)fputs("}", stdout);
}

static void print_json(const struct capacity_plan *p, const struct capacity_result *c)
{
    (void)printf("{\"raw_bytes\": %" PRIu64 ", \"usable_bytes\": %.0f", p->raw_bytes, c->usable_bytes);
    json_rate("read", &c->read);
    json_rate("read_through_any_node", &c->read_any);
    json_rate("write", &c->write);
    json_rate("write_through_any_node", &c->write_any);
    (void)printf(", \"read_bytes_per_s_per_reader\": %.0f",
                 c->read.bytes_per_s / (double)p->clients / (double)p->readers);
    (void)printf(", \"rebuild_disk_s\": %.0f, \"rebuild_node_s\": %.0f, \"rebuild_bottleneck\": \"%s\"",
                 c->rebuild_disk_s, c->rebuild_node_s, capacity_limit_name(c->rebuild_limit));
    (void)printf(", \"rebuild_disk_into_new\": %s, \"rebuild_node_into_new\": %s",
                 c->disk_into_new ? "true" : "false", c->node_into_new ? "true" : "false");
    (void)printf(", \"pieces_on_different\": \"%s\", \"mean_time_to_data_loss_s\": %.0f}\n",
                 c->pieces_on_nodes ? "nodes" : "disks", c->mttdl_s);
}

/* ---- for people ---- */

static void print_rate(const char *name, const struct capacity_rate *r)
{
    char size[3][TEXT_SIZE_MAX], of[TEXT_SIZE_MAX];
    for (int i = 0; i < CAPACITY_LIMIT_COUNT; i++)
        (void)text_size(whole(r->by_limit[i]), size[i]);
    (void)printf("%-28s %12s/s   bound by %s (disks %s/s, network %s/s, clients %s/s)\n", name,
                 text_size(whole(r->bytes_per_s), of), capacity_limit_text(r->limit), size[CAPACITY_DISKS],
                 size[CAPACITY_NETWORK], size[CAPACITY_CLIENTS]);
}

static void print_years(double seconds)
{
    double years = seconds / (365.25 * 86400);
    if (years < 2)
        (void)printf("%.1f months", years * 12);
    else if (years < 1e4)
        (void)printf("%.0f years", years);
    else
        (void)printf("%.1e years", years);
}

static void print_rebuild(const struct capacity_result *c)
{
    char text[TEXT_SIZE_MAX];
    if (c->rebuild_disk_s <= 0) {
        (void)printf("%-28s nothing to rebuild from: cached data is fetched again, other data is lost\n",
                     "rebuild");
        return;
    }
    (void)printf("%-28s %14s   bound by %s%s\n", "rebuild of a full disk",
                 text_duration(whole(c->rebuild_disk_s * 1000), text), capacity_limit_text(c->rebuild_limit),
                 c->disk_into_new ? ", once a new one is there: all others have pieces of the same" : "");
    if (c->rebuild_node_s > 0)
        (void)printf(
            "%-28s %14s%s\n", "rebuild of a full node", text_duration(whole(c->rebuild_node_s * 1000), text),
            c->node_into_new ? "   once a new one is there: all others have pieces of the same" : "");
}

static void print_table(const struct plan_options *o, const struct capacity_plan *p,
                        const struct capacity_result *c)
{
    char raw[TEXT_SIZE_MAX], usable[TEXT_SIZE_MAX], each[TEXT_SIZE_MAX];
    (void)printf("%" PRIu64 " node%s, %" PRIu64 " disk%s each, %s, redundancy %s\n\n", p->nodes,
                 p->nodes == 1 ? "" : "s", p->disks, p->disks == 1 ? "" : "s", text_size(p->raw_bytes, raw),
                 o->redundancy);
    (void)printf("%-28s %14s\n", "usable capacity", text_size(whole(c->usable_bytes), usable));
    print_rate("read", &c->read);
    print_rate("  S3, through any node", &c->read_any);
    print_rate("write", &c->write);
    print_rate("  S3, through any node", &c->write_any);
    (void)printf("%-28s %12s/s\n", "read for each reader",
                 text_size(whole(c->read.bytes_per_s / (double)p->clients / (double)p->readers), each));
    print_rebuild(c);
    (void)printf("%-28s ", "mean time to data loss");
    print_years(c->mttdl_s);
    (void)printf(", disks alone, failing independently%s\n",
                 p->redundancy.extra && !c->pieces_on_nodes ? "; the loss of a node may lose data" : "");
}

int cmd_plan(int argc, char **argv)
{
    struct plan_options o = {0};
    int n, status;
    if (command_parse(&usage, &table, &o, argc, argv, &n, &status)) {
        struct err e = {0};
        struct capacity_plan p;
        struct capacity_result c;
        int r = plan_of(&o, &p, &e);
        if (r == 0)
            r = capacity_compute(&p, &c, &e);
        if (r < 0)
            status = command_fail(usage.command, r, &e);
        else if (o.json)
            print_json(&p, &c);
        else
            print_table(&o, &p, &c);
    }
    option_fini(&table, &o);
    return status;
}

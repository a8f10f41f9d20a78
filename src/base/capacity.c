/*
 * Capacity planning; contract in capacity.h, formulas in docs/PLANNING.md.
 *
 * Invariants:
 *  1. Every rate is the least of its limits, and the limit that is named is the one that gave it.
 *  2. More of anything (nodes, disks, network) never lowers a rate; more redundancy never raises one. But for
 *     writes to a second node with redundancy: on one node the copies do not cross the network.
 *
 * Failure modes: ERR_BAD_OPTION for texts of another form and for shapes that cannot hold their redundancy.
 */
#include "base/capacity.h"

#include "base/text.h"

#include <string.h>

static const struct {
    const char *name, *text;
} limits[] = {
#define X(NAME, name, doc) {name, doc},
    CAPACITY_LIMITS(X)
#undef X
};

const char *capacity_limit_name(enum capacity_limit l)
{
    return limits[l].name;
}

const char *capacity_limit_text(enum capacity_limit l)
{
    return limits[l].text;
}

/* ---- texts ---- */

static int bad(struct err *e, const char *name, const char *text, const char *expected)
{
    return err_set(e, ERR_BAD_OPTION, "%s %s: not %s", name, text, expected);
}

int capacity_parse_redundancy(const char *text, const char *name, struct capacity_redundancy *ret,
                              struct err *e)
{
    static const char expected[] = "none, mirror=N or ec=K+M of at most 64 pieces, such as ec=8+2";
    struct slice s = slice_str(text);
    struct capacity_redundancy r = {.data = 1};
    if (slice_starts(s, SLICE_LIT("mirror="))) {
        if (slice_u64(slice_from(s, 7), &r.extra) < 0 || r.extra < 2)
            return bad(e, name, text, expected);
        r.extra--;
    } else if (slice_starts(s, SLICE_LIT("ec="))) {
        struct slice extra = slice_from(s, 3), data = slice_split(&extra, '+');
        if (slice_u64(data, &r.data) < 0 || slice_u64(extra, &r.extra) < 0 || r.data < 1 || r.extra < 1)
            return bad(e, name, text, expected);
        r.coded = true;
    } else if (!slice_eq_str(s, "none")) {
        return bad(e, name, text, expected);
    }
    if (r.data > CAPACITY_PIECES_MAX || r.extra > CAPACITY_PIECES_MAX ||
        r.data + r.extra > CAPACITY_PIECES_MAX)
        return bad(e, name, text, expected);
    *ret = r;
    return 0;
}

int capacity_parse_rate(const char *text, const char *name, double *ret_bytes_per_s, struct err *e)
{
    static const char expected[] = "a rate such as 100Gb (bits per second) or 12.5GB/s (bytes)";
    struct slice s = slice_trim(slice_str(text));
    if (slice_ends(s, SLICE_LIT("/s")))
        s.n -= 2;
    bool bits = true;
    if (slice_ends(s, SLICE_LIT("bit")))
        s.n -= 3;
    else if (slice_ends(s, SLICE_LIT("b")))
        s.n -= 1;
    else
        bits = false;
    /* "100G" alone could be either, and is refused */
    if (bits ? s.n == 0 || !memchr("kMGT", s.p[s.n - 1], 4) : !slice_ends(s, SLICE_LIT("B")))
        return bad(e, name, text, expected);
    _cleanup_buf_ struct buf b = BUF_INIT(256); /* as a size: the decimal units of both are powers of 1000 */
    uint64_t v;
    if (buf_slice(&b, s) < 0 || (bits && buf_char(&b, 'B') < 0) || text_parse_size(buf_view(&b), &v) < 0 ||
        v == 0)
        return bad(e, name, text, expected);
    *ret_bytes_per_s = bits ? (double)v / 8 : (double)v;
    return 0;
}

int capacity_parse_clients(const char *text, const char *name, uint64_t *ret_clients, uint64_t *ret_readers,
                           struct err *e)
{
    struct slice readers = slice_str(text), clients = slice_split(&readers, 'x');
    uint64_t c, r = 1;
    if (slice_u64(clients, &c) < 0 || (strchr(text, 'x') && slice_u64(readers, &r) < 0) || c < 1 || r < 1 ||
        c > 1000000 || r > 1000000)
        return bad(e, name, text, "MACHINESxREADERS such as 32x8, each from 1 to 1000000");
    *ret_clients = c;
    *ret_readers = r;
    return 0;
}

/* ---- rates ---- */

static void lowest(struct capacity_rate *r)
{
    r->limit = CAPACITY_DISKS;
    for (int i = 1; i < CAPACITY_LIMIT_COUNT; i++)
        if (r->by_limit[i] < r->by_limit[r->limit])
            r->limit = (enum capacity_limit)i;
    r->bytes_per_s = r->by_limit[r->limit];
}

static double all_disks(const struct capacity_plan *p)
{
    return (double)p->nodes * (double)p->disks;
}

/* Bytes per second over the nodes' network, one direction, all nodes. */
static double all_network(const struct capacity_plan *p)
{
    return (double)p->nodes * p->node_bytes_per_s * p->efficiency;
}

/* Share of the requests that reach a node which does not hold the bytes. */
static double hops(const struct capacity_plan *p)
{
    return (double)(p->nodes - 1) / (double)p->nodes;
}

static void read_rate(const struct capacity_plan *p, double hop, struct capacity_rate *ret)
{
    ret->by_limit[CAPACITY_DISKS] = all_disks(p) * p->disk_read_bytes_per_s;
    ret->by_limit[CAPACITY_NETWORK] = all_network(p) / (1 + hop);
    ret->by_limit[CAPACITY_CLIENTS] = (double)p->clients * p->client_bytes_per_s * p->efficiency;
    lowest(ret);
}

/* What one byte written costs, sooner or later. Coded data is replicated while it is open and coded when it
 * is sealed: both are written. On a single node only the byte itself crosses the network. */
static void write_cost(const struct capacity_plan *p, double *ret_network, double *ret_disks)
{
    const struct capacity_redundancy *r = &p->redundancy;
    double copies = 1 + (double)r->extra, pieces = (double)(r->data + r->extra);
    *ret_network = p->nodes == 1 ? 1 : copies + (r->coded ? (pieces - 1) / (double)r->data : 0);
    *ret_disks = copies + (r->coded ? pieces / (double)r->data : 0);
}

static void write_rate(const struct capacity_plan *p, double hop, struct capacity_rate *ret)
{
    double network, disks;
    write_cost(p, &network, &disks);
    ret->by_limit[CAPACITY_DISKS] = all_disks(p) * p->disk_write_bytes_per_s / disks;
    ret->by_limit[CAPACITY_NETWORK] = all_network(p) / (network + hop);
    ret->by_limit[CAPACITY_CLIENTS] = (double)p->clients * p->client_bytes_per_s * p->efficiency;
    lowest(ret);
}

/* ---- rebuild and loss ---- */

/* What lost bytes are read from, and what they go to. */
struct rebuilding {
    double lost_bytes, from_disks, to_disks, to_nodes;
    bool into_new; /* nothing that is left can take them */
};

/* Of a disk: all disks that are left take a part, where there is one for each stripe without a piece of it.
 * Else those beside it in its node, or, if there are none, a new one in its place. */
static struct rebuilding of_disk(const struct capacity_plan *p, bool on_nodes)
{
    double disks = all_disks(p);
    uint64_t pieces = p->redundancy.data + p->redundancy.extra;
    struct rebuilding r = {.lost_bytes = (double)p->raw_bytes / disks,
                           .from_disks = disks - 1,
                           .to_disks = disks - 1,
                           .to_nodes = (double)p->nodes};
    if (pieces < (on_nodes ? p->nodes : p->nodes * p->disks))
        return r;
    r.into_new = !on_nodes || p->disks == 1;
    r.to_disks = r.into_new ? 1 : (double)(p->disks - 1);
    r.to_nodes = 1;
    return r;
}

/* Of a node, where pieces lie on different ones: the others, or a new one. */
static struct rebuilding of_node(const struct capacity_plan *p)
{
    double disks = (double)p->disks, left = (double)(p->nodes - 1);
    bool into_new = p->redundancy.data + p->redundancy.extra == p->nodes;
    return (struct rebuilding){.lost_bytes = (double)p->raw_bytes / all_disks(p) * disks,
                               .from_disks = left * disks,
                               .to_disks = into_new ? disks : left * disks,
                               .to_nodes = into_new ? 1 : left,
                               .into_new = into_new};
}

/* Seconds until they are whole again; every survivor helps. */
static double rebuild(const struct capacity_plan *p, const struct rebuilding *b,
                      enum capacity_limit *ret_limit)
{
    double read = b->lost_bytes * (double)(p->redundancy.coded ? p->redundancy.data : 1);
    double from_disks = read / (b->from_disks * p->disk_read_bytes_per_s * p->rebuild_share);
    double to_disks = b->lost_bytes / (b->to_disks * p->disk_write_bytes_per_s * p->rebuild_share);
    double network =
        p->nodes > 1 ? read / (b->to_nodes * p->node_bytes_per_s * p->efficiency * p->rebuild_share) : 0;
    double disks = MAX(from_disks, to_disks);
    *ret_limit = network > disks ? CAPACITY_NETWORK : CAPACITY_DISKS;
    return MAX(network, disks);
}

/*
 * Expected time until more pieces of one stripe are gone than can be spared: a birth and death process whose
 * state is the number of disks that are down. From state i another disk fails at rate a(i), and one comes
 * back after `window_s` on average. E(i), the expected time from i to i+1 for the first time, is 1/a(i) +
 * E(i-1) / (a(i) * window). Disks in the same place as one that is down hold no other piece of its stripes
 * and are not counted.
 */
static double loss(const struct capacity_plan *p, double window_s, bool on_nodes)
{
    double place = on_nodes ? (double)p->disks : 1, total = 0, step = 0;
    for (uint64_t i = 0; i <= p->redundancy.extra; i++) {
        double rate = (all_disks(p) - (double)i * place) / p->disk_mttf_s;
        step = 1 / rate + (i > 0 ? step / (rate * window_s) : 0);
        total += step;
    }
    return total;
}

static int check(const struct capacity_plan *p, struct err *e)
{
    uint64_t pieces = p->redundancy.data + p->redundancy.extra;
    assert(p->efficiency > 0 && p->efficiency <= 1 && p->rebuild_share > 0 && p->rebuild_share <= 1);
    if (!p->raw_bytes || !p->nodes || !p->disks || !p->clients || p->disk_read_bytes_per_s <= 0 ||
        p->disk_write_bytes_per_s <= 0 || p->node_bytes_per_s <= 0 || p->client_bytes_per_s <= 0 ||
        p->disk_mttf_s <= 0)
        return err_set(e, ERR_BAD_OPTION, "capacity, nodes, disks, clients and rates must be above 0");
    if (pieces > p->nodes && pieces > p->nodes * p->disks)
        return err_set(e, ERR_BAD_OPTION,
                       "--redundancy: %llu pieces do not fit on %llu disks; each must lie on one of its own",
                       (unsigned long long)pieces, (unsigned long long)(p->nodes * p->disks));
    return 0;
}

int capacity_compute(const struct capacity_plan *p, struct capacity_result *ret, struct err *e)
{
    int r = check(p, e);
    if (r < 0)
        return r;
    struct capacity_result out = {0};
    uint64_t pieces = p->redundancy.data + p->redundancy.extra;
    out.usable_bytes = (double)p->raw_bytes * (double)p->redundancy.data / (double)pieces;
    read_rate(p, /* hop= */ 0, &out.read);
    read_rate(p, hops(p), &out.read_any);
    write_rate(p, /* hop= */ 0, &out.write);
    write_rate(p, hops(p), &out.write_any);
    out.pieces_on_nodes = pieces <= p->nodes;
    if (p->redundancy.extra > 0) {
        enum capacity_limit limit_of_node;
        struct rebuilding disk = of_disk(p, out.pieces_on_nodes), node = of_node(p);
        out.rebuild_disk_s = rebuild(p, &disk, &out.rebuild_limit);
        out.disk_into_new = disk.into_new;
        if (out.pieces_on_nodes) {
            out.rebuild_node_s = rebuild(p, &node, &limit_of_node);
            out.node_into_new = node.into_new;
        }
    }
    out.mttdl_s = loss(p, p->grace_s + out.rebuild_disk_s, out.pieces_on_nodes);
    out.mttdl_s = MIN(out.mttdl_s, CAPACITY_MOST_S);
    *ret = out;
    return 0;
}

/* Counters; contract in stats.h. */
#include "stats.h"

#include "base/sys.h"

#include <errno.h>

static const char *const verb_names[] = {
#define X(name, text) text,
    HEAD_VERBS(X)
#undef X
};

static const char *const kind_names[] = {
#define X(name, text) text,
    HEAD_KINDS(X)
#undef X
};

void stats_init(struct stats *s)
{
    memset(s, 0, sizeof(*s));
    lock_init(&s->lock, LOCK_LEAF);
    s->n_systems = 1;
    s->since_ns = sys->mono_ns();
}

void stats_fini(struct stats *s)
{
    lock_fini(&s->lock);
}

void stats_reset(struct stats *s)
{
    LOCK_SCOPE(&s->lock);
    memset(s->verbs, 0, sizeof(s->verbs));
    memset(s->kinds, 0, sizeof(s->kinds));
    s->ranges = (struct stats_ranges){0};
    for (unsigned i = 0; i < s->n_systems; i++) { /* names stay: requests in flight point to them */
        struct stats_system *x = &s->systems[i];
        memset(x->verbs, 0, sizeof(x->verbs));
        memset(x->kinds, 0, sizeof(x->kinds));
        x->ranges = (struct stats_ranges){0};
    }
    s->max_in_flight = s->in_flight;
    s->max_connections = s->connections;
    s->connections_total = s->connections;
    s->faults = 0;
    s->busy = 0;
    s->waits = s->wait_ns = 0;
    for (int d = 0; d < 2; d++)
        s->own_lost_ns[d] = s->lost_ns[d] = 0;
    s->since_ns = sys->mono_ns();
}

int stats_system(struct stats *s, const char *name)
{
    size_t n = strlen(name);
    if (n >= STATS_NAME_MAX ||
        name[strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.")])
        return -EINVAL;
    LOCK_SCOPE(&s->lock);
    unsigned i = 0;
    while (i < s->n_systems && strcmp(s->systems[i].name, name) != 0)
        i++;
    if (i == s->n_systems && i <= STATS_SYSTEMS_MAX)
        memcpy(s->systems[s->n_systems++].name, name, n + 1);
    s->system = i < s->n_systems ? i : 0;
    return 0;
}

void stats_connection(struct stats *s, bool opened)
{
    LOCK_SCOPE(&s->lock);
    if (!opened) {
        s->connections--;
        return;
    }
    s->connections++;
    s->connections_total++;
    s->max_connections = MAX(s->max_connections, s->connections);
}

static void count_range(struct stats_ranges *r, uint64_t bytes)
{
    if (bytes == 0)
        return;
    r->smallest = r->requests++ ? MIN(r->smallest, bytes) : bytes;
    r->largest = MAX(r->largest, bytes);
    r->bytes += bytes;
}

struct stats_key stats_begin(struct stats *s, enum head_verb verb, enum head_kind kind, uint64_t range_bytes)
{
    LOCK_SCOPE(&s->lock);
    struct stats_system *x = &s->systems[s->system];
    s->verbs[verb].requests++;
    s->kinds[kind].requests++;
    x->verbs[verb].requests++;
    x->kinds[kind].requests++;
    if (kind == KIND_GET_RANGE) {
        count_range(&s->ranges, range_bytes);
        count_range(&x->ranges, range_bytes);
    }
    s->in_flight++;
    s->max_in_flight = MAX(s->max_in_flight, s->in_flight);
    return (struct stats_key){verb, kind, s->system};
}

void stats_end(struct stats *s, struct stats_key k, int status)
{
    LOCK_SCOPE(&s->lock);
    s->verbs[k.verb].status[status / 100]++;
    s->kinds[k.kind].status[status / 100]++;
    s->systems[k.system].verbs[k.verb].status[status / 100]++;
    s->systems[k.system].kinds[k.kind].status[status / 100]++;
    s->in_flight--;
}

void stats_bytes(struct stats *s, struct stats_key k, enum stats_direction d, int64_t n)
{
    LOCK_SCOPE(&s->lock);
    s->verbs[k.verb].bytes[d] += (uint64_t)n;
    s->kinds[k.kind].bytes[d] += (uint64_t)n;
    s->systems[k.system].verbs[k.verb].bytes[d] += (uint64_t)n;
    s->systems[k.system].kinds[k.kind].bytes[d] += (uint64_t)n;
}

void stats_busy(struct stats *s)
{
    LOCK_SCOPE(&s->lock);
    s->busy++;
}

void stats_wait(struct stats *s, uint64_t ns)
{
    LOCK_SCOPE(&s->lock);
    s->waits++;
    s->wait_ns += ns;
}

void stats_lost(struct stats *s, enum stats_direction d, uint64_t own_ns, uint64_t total_ns)
{
    LOCK_SCOPE(&s->lock);
    s->own_lost_ns[d] += own_ns;
    s->lost_ns[d] += total_ns;
}

void stats_fault(struct stats *s)
{
    LOCK_SCOPE(&s->lock);
    s->faults++;
}

#define ull unsigned long long

static int row_json(const struct stats_row *row, const char *name, bool last, struct buf *b)
{
    int r = buf_printf(b,
                       "\"%s\": {\"requests\": %llu, \"request_bytes\": %llu, \"response_bytes\": %llu, "
                       "\"cut\": %llu",
                       name, (ull)row->requests, (ull)row->bytes[STATS_REQUEST],
                       (ull)row->bytes[STATS_RESPONSE], (ull)row->status[0]);
    for (int i = 2; i < 6 && !r; i++)
        r = buf_printf(b, ", \"%dxx\": %llu", i, (ull)row->status[i]);
    return r ? r : buf_str(b, last ? "}" : "},\n");
}

/* Sums of a table of verbs, the table itself and that of kinds, and the ranges: members of an object. */
static int tables_json(const struct stats_row *verbs, const struct stats_row *kinds,
                       const struct stats_ranges *ranges, struct buf *b)
{
    struct stats_row sum = {0};
    for (int i = 0; i < VERB_COUNT; i++) {
        sum.requests += verbs[i].requests;
        sum.bytes[0] += verbs[i].bytes[0];
        sum.bytes[1] += verbs[i].bytes[1];
    }
    int r =
        buf_printf(b,
                   "\"requests\": %llu, \"request_bytes\": %llu, \"response_bytes\": %llu,\n\"ranges\": "
                   "{\"requests\": %llu, \"bytes\": %llu, \"smallest\": %llu, \"largest\": %llu},\n"
                   "\"verbs\": {\n",
                   (ull)sum.requests, (ull)sum.bytes[STATS_REQUEST], (ull)sum.bytes[STATS_RESPONSE],
                   (ull)ranges->requests, (ull)ranges->bytes, (ull)ranges->smallest, (ull)ranges->largest);
    for (int i = 0; i < VERB_COUNT && !r; i++)
        r = row_json(&verbs[i], verb_names[i], i == VERB_COUNT - 1, b);
    r = r ? r : buf_str(b, "},\n\"kinds\": {\n");
    for (int i = 0; i < KIND_COUNT && !r; i++)
        r = row_json(&kinds[i], kind_names[i], i == KIND_COUNT - 1, b);
    return r ? r : buf_str(b, "}");
}

static int systems_json(const struct stats *s, struct buf *b)
{
    int r = buf_str(b, ",\n\"systems\": {");
    for (unsigned i = 0; i < s->n_systems && !r; i++) {
        const struct stats_system *x = &s->systems[i];
        r = buf_printf(b, "%s\n\"%s\": {", i ? "," : "", x->name);
        r = r ? r : tables_json(x->verbs, x->kinds, &x->ranges, b);
        r = r ? r : buf_str(b, "}");
    }
    return r ? r : buf_str(b, "}");
}

static int shape_json(const struct stats *s, struct buf *b)
{
    return buf_printf(b,
                      "\"first_byte\": {\"requests\": %llu, \"seconds\": %.9f},\n"
                      "\"lost_s\": {\"request\": {\"per_connection\": %.6f, \"total\": %.6f}, "
                      "\"response\": {\"per_connection\": %.6f, \"total\": %.6f}},\n",
                      (ull)s->waits, (double)s->wait_ns / 1e9, (double)s->own_lost_ns[STATS_REQUEST] / 1e9,
                      (double)s->lost_ns[STATS_REQUEST] / 1e9, (double)s->own_lost_ns[STATS_RESPONSE] / 1e9,
                      (double)s->lost_ns[STATS_RESPONSE] / 1e9);
}

int stats_json(struct stats *s, uint64_t armed, struct buf *b)
{
    LOCK_SCOPE(&s->lock);
    int r = buf_printf(b,
                       "{\"seconds\": %.3f, \"in_flight\": %llu, \"max_in_flight\": %llu,\n"
                       "\"connections\": %llu, \"max_connections\": %llu, \"connections_total\": %llu,\n"
                       "\"faults_armed\": %llu, \"faults_injected\": %llu, \"busy\": %llu,\n",
                       (double)(sys->mono_ns() - s->since_ns) / 1e9, (ull)s->in_flight, (ull)s->max_in_flight,
                       (ull)s->connections, (ull)s->max_connections, (ull)s->connections_total, (ull)armed,
                       (ull)s->faults, (ull)s->busy);
    r = r ? r : shape_json(s, b);
    r = r ? r : tables_json(s->verbs, s->kinds, &s->ranges, b);
    r = r ? r : systems_json(s, b);
    return r ? r : buf_str(b, "}\n");
}

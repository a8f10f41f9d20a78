/* Counters; contract in stats.h. */
#include "stats.h"

#include "base/sys.h"

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
    s->max_in_flight = s->in_flight;
    s->max_connections = s->connections;
    s->connections_total = s->connections;
    s->faults = 0;
    s->since_ns = sys->mono_ns();
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

void stats_begin(struct stats *s, enum head_verb verb, enum head_kind kind)
{
    LOCK_SCOPE(&s->lock);
    s->verbs[verb].requests++;
    s->kinds[kind].requests++;
    s->in_flight++;
    s->max_in_flight = MAX(s->max_in_flight, s->in_flight);
}

void stats_end(struct stats *s, enum head_verb verb, enum head_kind kind, int status)
{
    LOCK_SCOPE(&s->lock);
    s->verbs[verb].status[status / 100]++;
    s->kinds[kind].status[status / 100]++;
    s->in_flight--;
}

void stats_bytes(struct stats *s, enum head_verb verb, enum head_kind kind, enum stats_direction d, int64_t n)
{
    LOCK_SCOPE(&s->lock);
    s->verbs[verb].bytes[d] += (uint64_t)n;
    s->kinds[kind].bytes[d] += (uint64_t)n;
}

void stats_fault(struct stats *s)
{
    LOCK_SCOPE(&s->lock);
    s->faults++;
}

static int row_json(const struct stats_row *row, const char *name, bool last, struct buf *b)
{
    int r = buf_printf(b,
                       "    \"%s\": {\"requests\": %llu, \"request_bytes\": %llu, \"response_bytes\": %llu, "
                       "\"cut\": %llu",
                       name, (unsigned long long)row->requests, (unsigned long long)row->bytes[STATS_REQUEST],
                       (unsigned long long)row->bytes[STATS_RESPONSE], (unsigned long long)row->status[0]);
    for (int i = 2; i < 6 && !r; i++)
        r = buf_printf(b, ", \"%dxx\": %llu", i, (unsigned long long)row->status[i]);
    return r ? r : buf_str(b, last ? "}\n" : "},\n");
}

static void add_rows(struct stats_row *sum, const struct stats_row *row)
{
    sum->requests += row->requests;
    sum->bytes[0] += row->bytes[0];
    sum->bytes[1] += row->bytes[1];
}

int stats_json(struct stats *s, uint64_t armed, struct buf *b)
{
    LOCK_SCOPE(&s->lock);
    struct stats_row sum = {0};
    for (int i = 0; i < VERB_COUNT; i++)
        add_rows(&sum, &s->verbs[i]);
    int r = buf_printf(
        b,
        "{\n  \"seconds\": %.3f,\n  \"requests\": %llu,\n  \"request_bytes\": %llu,\n"
        "  \"response_bytes\": %llu,\n  \"in_flight\": %llu,\n  \"max_in_flight\": %llu,\n"
        "  \"connections\": %llu,\n  \"max_connections\": %llu,\n  \"connections_total\": %llu,\n"
        "  \"faults_armed\": %llu,\n  \"faults_injected\": %llu,\n  \"verbs\": {\n",
        (double)(sys->mono_ns() - s->since_ns) / 1e9, (unsigned long long)sum.requests,
        (unsigned long long)sum.bytes[STATS_REQUEST], (unsigned long long)sum.bytes[STATS_RESPONSE],
        (unsigned long long)s->in_flight, (unsigned long long)s->max_in_flight,
        (unsigned long long)s->connections, (unsigned long long)s->max_connections,
        (unsigned long long)s->connections_total, (unsigned long long)armed, (unsigned long long)s->faults);
    for (int i = 0; i < VERB_COUNT && !r; i++)
        r = row_json(&s->verbs[i], verb_names[i], i == VERB_COUNT - 1, b);
    r = r ? r : buf_str(b, "  },\n  \"kinds\": {\n");
    for (int i = 0; i < KIND_COUNT && !r; i++)
        r = row_json(&s->kinds[i], kind_names[i], i == KIND_COUNT - 1, b);
    return r ? r : buf_str(b, "  }\n}\n");
}

/* forebay mount --stats (contract in mount_stats.h). */
#include "cli/mount_stats.h"

#include "base/text.h"
#include "cli/command.h"
#include "mount/stats.h"

#include <inttypes.h>
#include <jansson.h>
#include <signal.h>
#include <time.h>

#define EVERY_S     1
#define CLEAR       "\033[H\033[2J"
#define NS_PER_US   1000.0
#define NS_PER_MS   1000000ull
#define SHOWN_RUNS  8
#define SHOWN_SLOWS 8

/* A share of 0 to 1, or -1 when there is nothing to take it of. */
static double share(uint64_t part, uint64_t whole)
{
    return whole > 0 ? (double)part / (double)whole : -1;
}

static double passthrough_share(const struct stats_report *r)
{
    return share(r->counters[STATS_PASSTHROUGH_OPENS],
                 r->counters[STATS_READING_OPENS] + r->counters[STATS_WRITING_OPENS]);
}

/* Where the kernel opens files by itself only bytes can be counted. */
static double hit_share(const struct stats_report *r)
{
    return r->is_openless ? share(r->counters[STATS_HERE_READ_BYTES], r->counters[STATS_READ_BYTES])
                          : share(r->counters[STATS_HERE_OPENS], r->counters[STATS_READING_OPENS]);
}

/* ---- JSON ---- */

static json_t *share_json(double v)
{
    return v < 0 ? json_null() : json_real(v);
}

/* Text that may hold any bytes. */
static json_t *text_json(const char *s)
{
    _cleanup_buf_ struct buf utf8 = BUF_INIT(3 * strlen(s) + 1);
    return json_string(text_utf8(&utf8, slice_str(s)));
}

static json_t *operations_json(const struct stats_report *r)
{
    json_t *all = json_object();
    for (size_t i = 0; i < STATS_N_OPERATIONS; i++) {
        const struct stats_latency *l = &r->operations[i];
        if (l->count == 0)
            continue;
        (void)json_object_set_new(all, stats_operation_name((enum stats_operation)i),
                                  json_pack("{s:I, s:f, s:f, s:f, s:f}", "count", (json_int_t)l->count,
                                            "mean_us", (double)l->sum_ns / (double)l->count / NS_PER_US,
                                            "median_us", (double)l->median_ns / NS_PER_US, "p99_us",
                                            (double)l->p99_ns / NS_PER_US, "max_us",
                                            (double)l->max_ns / NS_PER_US));
    }
    return all;
}

static json_t *running_json(const struct stats_report *r)
{
    json_t *all = json_array();
    for (uint32_t i = 0; i < r->n_running; i++)
        (void)json_array_append_new(
            all, json_pack("{s:s, s:I}", "operation",
                           stats_operation_name((enum stats_operation)r->running[i].operation), "for_ms",
                           (json_int_t)(r->running[i].for_ns / NS_PER_MS)));
    return all;
}

/* The node's operation that a slow one waited for; "": it waited for the disk, or for its turn. */
static const char *waited_for(const struct stats_slow *x)
{
    const struct wire_op_info *info = x->waited_op ? wire_op_info(x->waited_op) : NULL;
    return info ? info->name : "";
}

json_t *mount_stats_slow_json(const struct stats_slow *v, uint32_t n)
{
    json_t *all = json_array();
    for (uint32_t i = 0; i < n; i++)
        (void)json_array_append_new(
            all, json_pack("{s:s, s:o, s:I, s:I, s:s, s:I}", "operation",
                           stats_operation_name((enum stats_operation)v[i].operation), "target",
                           text_json(v[i].target), "took_ms", (json_int_t)(v[i].took_ns / NS_PER_MS),
                           "ago_ms", (json_int_t)(v[i].ago_ns / NS_PER_MS), "waited_for", waited_for(&v[i]),
                           "waited_ms", (json_int_t)(v[i].waited_ns / NS_PER_MS)));
    return all;
}

static uint64_t held(const struct stats_report *r)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < HOLDINGS_N; i++)
        bytes += r->memory.held_bytes[i];
    return bytes;
}

static json_t *memory_json(const struct stats_report *r)
{
    json_t *parts = json_object();
    for (size_t i = 0; i < HOLDINGS_N; i++)
        (void)json_object_set_new(parts, holding_name((enum holding)i),
                                  json_integer((json_int_t)r->memory.held_bytes[i]));
    return json_pack("{s:I, s:I, s:I, s:o}", "limit_bytes", (json_int_t)r->memory.limit_bytes, "held_bytes",
                     (json_int_t)held(r), "resident_bytes", (json_int_t)r->memory.resident_bytes, "parts",
                     parts);
}

static void print_json(const struct stats_report *r)
{
    json_t *o = json_pack(
        "{s:o, s:o, s:s, s:s, s:o, s:b, s:b, s:o, s:I, s:I, s:I, s:o, s:o, s:o, s:o, s:o}", "directory",
        text_json(r->directory), "bucket", text_json(r->bucket), "kind", r->is_scratch ? "scratch" : "mirror",
        "profile", r->is_openless ? "read-only" : "default", "node", text_json(r->node), "read_only",
        (int)r->is_read_only, "passthrough", (int)r->is_passthrough, "reason", text_json(r->reason), "pid",
        (json_int_t)r->pid, "up_ms", (json_int_t)r->up_ms, "open_files", (json_int_t)r->open_files,
        "operations", operations_json(r), "running", running_json(r), "slow",
        mount_stats_slow_json(r->slow, r->n_slow), "hit_share", share_json(hit_share(r)), "passthrough_share",
        share_json(passthrough_share(r)));
#define X(NAME, name, doc)                                                                                   \
    (void)json_object_set_new(o, #name, json_integer((json_int_t)r->counters[STATS_##NAME]));
    STATS_COUNTERS(X)
#undef X
    (void)json_object_set_new(o, "memory", memory_json(r));
    command_json_print(o, JSON_INDENT(2) | JSON_PRESERVE_ORDER);
    (void)putchar('\n');
    json_decref(o);
}

/* ---- for people ---- */

static void print_share(const char *what, double v)
{
    if (v >= 0)
        (void)printf("; %.1f %% %s", 100 * v, what);
}

/* "17us", "3.2ms", "1.5s" in eight columns. */
static void print_time(uint64_t ns)
{
    double us = (double)ns / NS_PER_US;
    char text[32];
    (void)snprintf(text, sizeof(text),
                   us < 1000  ? "%.0fus"
                   : us < 1e6 ? "%.1fms"
                              : "%.1fs",
                   us < 1000  ? us
                   : us < 1e6 ? us / 1e3
                              : us / 1e6);
    (void)printf("%9s", text);
}

static void print_head(const struct stats_report *r)
{
    char up[TEXT_SIZE_MAX];
    command_print_name(stdout, slice_str(r->directory));
    (void)fputs(": ", stdout);
    command_print_name(stdout, slice_str(r->bucket));
    (void)printf(" (%s%s), ", r->is_scratch ? "scratch" : "mirror",
                 r->is_openless    ? ", read-only profile"
                 : r->is_read_only ? ", read-only"
                                   : "");
    (void)fputs(r->is_passthrough ? "passthrough" : "no passthrough: ", stdout);
    if (!r->is_passthrough)
        command_print_name(stdout, slice_str(r->reason));
    (void)printf("\nprocess %" PRIu32 ", up %s, node ", r->pid, text_duration(r->up_ms, up));
    command_print_name(stdout, slice_str(r->node));
    (void)putchar('\n');
}

static void print_shares(const struct stats_report *r)
{
    const uint64_t *c = r->counters;
    char read_text[TEXT_SIZE_MAX], written[TEXT_SIZE_MAX];
    (void)printf("opens:   %" PRIu64 " for reading, %" PRIu64 " for writing, %" PRIu64 " files open now",
                 c[STATS_READING_OPENS], c[STATS_WRITING_OPENS], r->open_files);
    print_share("by passthrough", passthrough_share(r));
    (void)putchar('\n');
    (void)printf("hits:    %" PRIu64 " opens found every byte here, %" PRIu64
                 " of them without asking the node",
                 c[STATS_HERE_OPENS], c[STATS_UNASKED_OPENS]);
    print_share(r->is_openless ? "of the bytes" : "of the opens", hit_share(r));
    (void)printf("\nbytes:   %s read, %s written through the mount's process; passthrough is not counted\n",
                 text_size(c[STATS_READ_BYTES], read_text), text_size(c[STATS_WRITTEN_BYTES], written));
    (void)printf("failed:  %" PRIu64 " operations\n", c[STATS_FAILURES]);
}

/* What takes a hundredth of all is told of. */
static void print_memory(const struct stats_report *r)
{
    char text[TEXT_SIZE_MAX], of[TEXT_SIZE_MAX];
    (void)printf("memory:  %s of %s", text_size(held(r), text), text_size(r->memory.limit_bytes, of));
    if (r->memory.resident_bytes > 0)
        (void)printf(", %s resident", text_size(r->memory.resident_bytes, text));
    const char *between = ": ";
    for (size_t i = 0; i < HOLDINGS_N; i++) {
        if (r->memory.held_bytes[i] * 100 < held(r))
            continue;
        (void)printf("%s%s %s", between, holding_name((enum holding)i),
                     text_size(r->memory.held_bytes[i], text));
        between = ", ";
    }
    (void)putchar('\n');
}

/* before: the report of `seconds` ago, or NULL. */
static void print_operations(const struct stats_report *r, const struct stats_report *before, double seconds)
{
    (void)printf("\n%-16s %12s %10s %8s %8s %8s %8s\n", "operation", "count", before ? "per second" : "",
                 "mean", "median", "99 %", "longest");
    for (size_t i = 0; i < STATS_N_OPERATIONS; i++) {
        const struct stats_latency *l = &r->operations[i];
        if (l->count == 0)
            continue;
        (void)printf("%-16s %12" PRIu64, stats_operation_name((enum stats_operation)i), l->count);
        if (before)
            (void)printf(" %10.0f", (double)(l->count - before->operations[i].count) / seconds);
        else
            (void)printf(" %10s", "");
        print_time(l->sum_ns / l->count);
        print_time(l->median_ns);
        print_time(l->p99_ns);
        print_time(l->max_ns);
        (void)putchar('\n');
    }
}

void mount_stats_print_slow(const struct stats_slow *x)
{
    char ago[TEXT_SIZE_MAX];
    (void)printf("%s took", stats_operation_name((enum stats_operation)x->operation));
    print_time(x->took_ns);
    if (x->waited_op) {
        (void)printf(", of which the node's %s", waited_for(x));
        print_time(x->waited_ns);
    }
    (void)printf(", %s ago", text_duration(x->ago_ns / NS_PER_MS, ago));
}

static void print_now(const struct stats_report *r)
{
    for (uint32_t i = 0; i < MIN(r->n_running, (uint32_t)SHOWN_RUNS); i++) {
        (void)printf("%s%s for", i == 0 ? "\nrunning: " : "         ",
                     stats_operation_name((enum stats_operation)r->running[i].operation));
        print_time(r->running[i].for_ns);
        (void)putchar('\n');
    }
    for (uint32_t i = 0; i < MIN(r->n_slow, (uint32_t)SHOWN_SLOWS); i++) {
        (void)fputs(i == 0 ? "\nslow:    " : "         ", stdout);
        mount_stats_print_slow(&r->slow[i]);
        (void)fputs(": ", stdout);
        command_print_name(stdout, slice_str(r->slow[i].target));
        (void)putchar('\n');
    }
}

static void print_people(const struct stats_report *r, const struct stats_report *before)
{
    double seconds = before && r->up_ms > before->up_ms ? (double)(r->up_ms - before->up_ms) / 1000.0 : 0;
    print_head(r);
    print_shares(r);
    print_memory(r);
    print_operations(r, seconds > 0 ? before : NULL, seconds);
    print_now(r);
    (void)fflush(stdout);
}

/* ---- again and again ---- */

/* False: SIGINT or SIGTERM came, which wait while this runs. */
static bool pause_for(const sigset_t *ends)
{
    struct timespec t = {.tv_sec = EVERY_S};
    return sigtimedwait(ends, NULL, &t) < 0;
}

static int show_repeatedly(const char *directory, struct stats_report *r, struct err *e)
{
    struct stats_report before;
    sigset_t ends;
    (void)sigemptyset(&ends);
    (void)sigaddset(&ends, SIGINT);
    (void)sigaddset(&ends, SIGTERM);
    (void)sigprocmask(SIG_BLOCK, &ends, NULL);
    bool first = true;
    int k;
    do {
        (void)fputs(CLEAR, stdout);
        print_people(r, first ? NULL : &before);
        first = false;
        before = *r;
        if (ferror(stdout) || !pause_for(&ends)) /* the terminal has gone, and main says so */
            return 0;
        k = stats_ask(directory, r, e);
        if (r->pid != before.pid) /* another mount is there now */
            first = true;
    } while (k == 0);
    return k;
}

int mount_stats_show(const char *directory, bool json, struct err *e)
{
    struct stats_report r;
    int k = stats_ask(directory, &r, e);
    if (k < 0)
        return k;
    if (json)
        print_json(&r);
    else if (isatty(STDOUT_FILENO))
        return show_repeatedly(directory, &r, e);
    else
        print_people(&r, NULL);
    return 0;
}

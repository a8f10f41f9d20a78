/*
 * How the store's index behaves at size: makes N synthetic entries, opens the store as after a clean stop,
 * and prints how long that took, how much memory it holds, and how many lookups a second it answers.
 *
 *     index_scale DIR N [MEMORY_MIB [FILE_EVERY]]
 *
 * DIR is made when missing and kept; a second run with the same DIR skips the load. 50 million entries of
 * 110,000 bytes take about 13 GB in DIR without files.
 */
#include "base/hash.h"
#include "base/log.h"
#include "base/sys.h"
#include "store/store_synthetic.h"

#include <inttypes.h>
#include <malloc.h>
#include <pthread.h>
#include <string.h>

#define LOOKUPS        200000
#define LOOKUP_THREADS 4
#define READY_GOAL_S   10

static double seconds_since(uint64_t start_ns)
{
    return (double)(sys->mono_ns() - start_ns) / 1e9;
}

/* RssAnon of this process in bytes; 0 when unknown. */
static uint64_t rss_anon(void)
{
    _cleanup_fclose_ FILE *f = fopen("/proc/self/status", "re");
    char line[256];
    uint64_t kib = 0;
    while (f && fgets(line, sizeof(line), f))
        if (sscanf(line, "RssAnon: %" SCNu64, &kib) == 1)
            break;
    return kib * KIB;
}

static bool json;
static unsigned rows;

/* One result; goal 0: none, else the most that the value may be. */
static void say_goal(const char *what, double value, const char *unit, double goal)
{
    if (!json) {
        (void)printf("%-44s %14.1f %s\n", what, value, unit);
    } else {
        char at_most[64] = "";
        if (goal > 0)
            (void)snprintf(at_most, sizeof(at_most), "at most %g %s", goal, unit);
        (void)printf(
            "%s{\"title\": \"Index: %s\", \"goal\": \"%s\", \"value\": \"%.1f %s\", \"steal_percent\": null, "
            "\"met\": %s}",
            rows++ ? ",\n" : "", what, at_most, value, unit,
            goal == 0       ? "null"
            : value <= goal ? "true"
                            : "false");
    }
    (void)fflush(stdout);
}

static void say(const char *what, double value, const char *unit)
{
    say_goal(what, value, unit, /* goal= */ 0);
}

struct lookups {
    struct store *s;
    uint64_t entries, from, wrong;
    bool exist, open_files;
};

static void *run_lookups(void *arg)
{
    struct lookups *l = arg;
    for (uint64_t i = 0; i < LOOKUPS; i++) {
        char key[STORE_SYNTHETIC_KEY_MAX];
        uint64_t n = hash_mix(l->from + i, 7) % l->entries;
        struct slice k = store_synthetic_key(l->exist ? n : n + l->entries, key);
        int r = store_synthetic_lookup(l->s, k);
        l->wrong += (r == 0) != l->exist;
    }
    return NULL;
}

/* Lookups a second by n threads together; exits when one of them gave the wrong answer. */
static double lookup_rate(struct store *s, uint64_t entries, bool exist, unsigned n)
{
    static uint64_t from;
    struct lookups l[LOOKUP_THREADS];
    pthread_t threads[LOOKUP_THREADS];
    uint64_t start = sys->mono_ns();
    for (unsigned i = 0; i < n; i++) {
        l[i] = (struct lookups){.s = s, .entries = entries, .from = from += LOOKUPS, .exist = exist};
        if (pthread_create(&threads[i], NULL, run_lookups, &l[i]) != 0)
            abort();
    }
    uint64_t wrong = 0;
    for (unsigned i = 0; i < n; i++) {
        (void)pthread_join(threads[i], NULL);
        wrong += l[i].wrong;
    }
    if (wrong > 0) {
        (void)fprintf(stderr, "%" PRIu64 " lookups gave the wrong answer\n", wrong);
        exit(1);
    }
    return (double)n * LOOKUPS / seconds_since(start);
}

/* Rate of store_find on entries that have files, over a range small enough to stay in memory or not. */
static double find_rate(struct store *s, uint64_t entries, uint64_t every, uint64_t range, uint64_t finds)
{
    uint64_t start = sys->mono_ns();
    for (uint64_t i = 0; i < finds; i++) {
        char key[STORE_SYNTHETIC_KEY_MAX];
        uint64_t n = hash_mix(i, 9) % MIN(range, (entries + every - 1) / every) * every;
        struct extent *x = NULL;
        if (store_find(s, store_synthetic_key(n, key), &x) < 0) {
            (void)fprintf(stderr, "entry %" PRIu64 " was not found\n", n);
            exit(1);
        }
        extent_unref(x);
    }
    return (double)finds / seconds_since(start);
}

static int load(const char *dir, uint64_t entries, uint64_t memory, uint64_t every, struct err *e)
{
    _cleanup_free_ char *mark = NULL;
    struct stat st;
    if (asprintf(&mark, "%s/forebay-disk", dir) < 0)
        abort();
    if (sys->stat(mark, &st) == 0)
        return 0;
    struct store_synthetic what = {
        .entries = entries, .size_bytes = 110000, .file_every = every, .memory_bytes = memory};
    uint64_t start = sys->mono_ns();
    int r = store_synthetic_load(dir, &what, e);
    if (r == 0 && !json)
        say("load", seconds_since(start), "s");
    return r;
}

static int measure(const char *dir, uint64_t entries, uint64_t memory, uint64_t every, struct err *e)
{
    struct store_disk_config disk = {dir, 100 * TIB};
    struct store_config config = {
        .disks = &disk, .n_disks = 1, .memory_bytes = memory, .flush_interval_ms = 30000};
    struct store *s = NULL;
    uint64_t start = sys->mono_ns();
    int r = store_open(&config, &s, e);
    if (r < 0)
        return r;
    if (json)
        (void)printf("{\"rows\": [\n");
    say_goal("ready after a clean stop", seconds_since(start), "s", READY_GOAL_S);
    say("entries", (double)entries, "entries");
    say("anonymous memory when ready", (double)rss_anon() / (double)MIB, "MiB");
    say("lookups of random entries, 1 thread, first", lookup_rate(s, entries, true, 1), "/s");
    say("lookups of random entries, 1 thread, again", lookup_rate(s, entries, true, 1), "/s");
    say("lookups of random entries, 4 threads", lookup_rate(s, entries, true, 4), "/s");
    say("lookups that miss, 1 thread", lookup_rate(s, entries, false, 1), "/s");
    say("lookups that miss, 4 threads", lookup_rate(s, entries, false, 4), "/s");
    if (every > 0) {
        say("store_find, any entry with a file", find_rate(s, entries, every, UINT64_MAX, 100000), "/s");
        say("store_find, warm", find_rate(s, entries, every, 1000, 2000000), "/s");
    }
    say_goal("anonymous memory afterwards", (double)rss_anon() / (double)MIB, "MiB",
             (double)memory / (double)MIB);
    start = sys->mono_ns();
    store_close(s);
    say("clean stop", seconds_since(start), "s");
    if (json)
        (void)printf("\n]}\n");
    return 0;
}

int main(int argc, char **argv)
{
    bool only_load = argc > 1 && strcmp(argv[1], "--load") == 0;
    json = argc > 1 && strcmp(argv[1], "--json") == 0;
    argc -= only_load || json;
    argv += only_load || json;
    if (argc < 3) {
        (void)fprintf(stderr, "usage: index_scale [--load | --json] DIR N [MEMORY_MIB [FILE_EVERY]]\n");
        return 2;
    }
    log_set_level(LOG_LEVEL_WARN);
    (void)mallopt(M_ARENA_MAX, 2); /* as the node does: blocks are freed by other threads than took them */
    uint64_t entries = strtoull(argv[2], NULL, 10);
    uint64_t memory = (argc > 3 ? strtoull(argv[3], NULL, 10) : 128) * MIB;
    uint64_t every = argc > 4 ? strtoull(argv[4], NULL, 10) : 0;
    if (entries == 0 || memory == 0) {
        (void)fprintf(stderr, "index_scale: N and MEMORY_MIB must be numbers above 0\n");
        return 2;
    }
    struct err e = {0};
    int r = load(argv[1], entries, memory, every, &e);
    if (r == 0 && !only_load)
        r = measure(argv[1], entries, memory, every, &e);
    if (r < 0)
        (void)fprintf(stderr, "index_scale: %s\n", e.text);
    return r < 0;
}

/*
 * Times each call apart that reading a small file takes: the same program for the files of a mount and for
 * their copies on a disk.
 *
 *     filecosts DIR LIST [PASSES [SEED]]
 *
 * LIST: a file with the names below DIR, one a line. Each pass takes all of them in an order of its own,
 * drawn by SEED:
 *
 *     lookup   stat(2) by its path: the name, and the attributes
 *     open     open(2)
 *     read     read(2) of the whole file at once
 *     close    close(2)
 *
 * The first pass of PASSES (default 2) is not counted. Prints one line of JSON: files, bytes, calls: for each
 * of them mean_us and median_us; whole_us, the mean of a file from before its lookup to after its close.
 *
 * Invariants:
 *  1. Names, order and buffer are there before the clock starts, and times are kept in memory that was
 * touched.
 *  2. A file is read by one call; one that gives less than its attributes say has no figure.
 *
 * Failure modes: a list or a file that cannot be read or is shorter than stat said, more than a million
 * files, files above 16 MiB: one line on stderr, exit 1.
 */
#include "base/err.h"
#include "base/hash.h"
#include "base/macro.h"
#include "base/sys.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FILES_MAX      1000000
#define FILE_MAX_BYTES (16 * MIB)
#define NS_PER_US      1e3

enum call { LOOKUP, OPEN, READ, CLOSE, N_CALLS };
static const char *const call_names[N_CALLS] = {"lookup", "open", "read", "close"};

struct costs {
    char **paths;
    size_t n;
    size_t *order;
    char *buffer;
    uint64_t *ns[N_CALLS]; /* of every file of every counted pass */
    size_t n_taken;
    uint64_t bytes;
};

static int fail(const char *path, int code)
{
    (void)fprintf(stderr, "filecosts: %s: %s\n", path, err_text(code));
    return 1;
}

/* ---- what is there before the clock starts ---- */

static int read_list(struct costs *c, const char *dir, const char *list)
{
    _cleanup_free_ char *line = NULL;
    size_t room = 0;
    ssize_t n;
    FILE *f = fopen(list, "re");
    if (!f)
        return -errno;
    c->paths = calloc(FILES_MAX, sizeof(c->paths[0]));
    while (c->paths && (n = getline(&line, &room, f)) > 0) {
        line[strcspn(line, "\n")] = '\0';
        if (c->n == FILES_MAX || asprintf(&c->paths[c->n], "%s/%s", dir, line) < 0)
            break;
        c->n++;
    }
    int r = !c->paths ? -ENOMEM : !feof(f) ? -E2BIG : c->n == 0 ? -ENODATA : 0;
    (void)fclose(f);
    return r;
}

static int prepare(struct costs *c, uint64_t passes)
{
    size_t room = c->n * (size_t)(passes - 1);
    c->order = malloc(c->n * sizeof(c->order[0]));
    if (!c->order || posix_memalign((void **)&c->buffer, 4096, FILE_MAX_BYTES) != 0)
        return -ENOMEM;
    memset(c->buffer, 1, FILE_MAX_BYTES); /* no page faults in the measured time */
    for (size_t i = 0; i < N_CALLS; i++) {
        c->ns[i] = malloc(room * sizeof(c->ns[i][0]));
        if (!c->ns[i])
            return -ENOMEM;
        memset(c->ns[i], 1, room * sizeof(c->ns[i][0]));
    }
    return 0;
}

static void costs_fini(struct costs *c)
{
    for (size_t i = 0; i < c->n; i++)
        free(c->paths[i]);
    free(c->paths);
    free(c->order);
    free(c->buffer);
    for (size_t i = 0; i < N_CALLS; i++)
        free(c->ns[i]);
}

/* Fisher and Yates, by the seed and the pass. */
static void shuffle(struct costs *c, uint64_t seed)
{
    for (size_t i = 0; i < c->n; i++)
        c->order[i] = i;
    for (size_t i = c->n - 1; i > 0; i--) {
        size_t j = hash_mix(seed, i) % (i + 1), kept = c->order[i];
        c->order[i] = c->order[j];
        c->order[j] = kept;
    }
}

/* ---- the calls ---- */

static int one_file(struct costs *c, const char *path, bool is_counted)
{
    struct stat st;
    uint64_t at[N_CALLS + 1];
    at[LOOKUP] = sys->mono_ns();
    int r = sys->stat(path, &st);
    if (r < 0)
        return r;
    at[OPEN] = sys->mono_ns();
    int fd = sys->open(path, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0)
        return fd;
    at[READ] = sys->mono_ns();
    ssize_t n = read(fd, c->buffer, FILE_MAX_BYTES);
    r = n < 0 ? -errno : n < st.st_size ? -ENODATA : 0;
    at[CLOSE] = sys->mono_ns();
    if (close(fd) < 0 && r == 0)
        r = -errno;
    at[N_CALLS] = sys->mono_ns();
    if (r < 0 || !is_counted)
        return r;
    for (size_t i = 0; i < N_CALLS; i++)
        c->ns[i][c->n_taken] = at[i + 1] - at[i];
    c->n_taken++;
    c->bytes += (uint64_t)n;
    return 0;
}

static int take(struct costs *c, uint64_t passes, uint64_t seed)
{
    for (uint64_t pass = 0; pass < passes; pass++) {
        shuffle(c, hash_mix(seed, pass));
        for (size_t i = 0; i < c->n; i++) {
            int r = one_file(c, c->paths[c->order[i]], pass > 0);
            if (r < 0)
                return fail(c->paths[c->order[i]], r);
        }
    }
    return 0;
}

/* ---- telling ---- */

static int by_size(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void tell(struct costs *c)
{
    uint64_t whole_ns = 0;
    (void)printf("{\"files\": %zu, \"bytes\": %" PRIu64 ", \"calls\": {", c->n_taken, c->bytes);
    for (size_t i = 0; i < N_CALLS; i++) {
        uint64_t sum_ns = 0;
        for (size_t j = 0; j < c->n_taken; j++)
            sum_ns += c->ns[i][j];
        qsort(c->ns[i], c->n_taken, sizeof(c->ns[i][0]), by_size);
        (void)printf("%s\"%s\": {\"mean_us\": %.4f, \"median_us\": %.4f}", i > 0 ? ", " : "", call_names[i],
                     (double)sum_ns / (double)c->n_taken / NS_PER_US,
                     (double)c->ns[i][c->n_taken / 2] / NS_PER_US);
        whole_ns += sum_ns;
    }
    (void)printf("}, \"whole_us\": %.4f}\n", (double)whole_ns / (double)c->n_taken / NS_PER_US);
}

static uint64_t number(int argc, char **argv, int i, uint64_t otherwise)
{
    return i < argc ? strtoull(argv[i], NULL, 10) : otherwise;
}

int main(int argc, char **argv)
{
    uint64_t passes = number(argc, argv, 3, 2), seed = number(argc, argv, 4, 1);
    if (argc < 3 || argc > 5 || passes < 2 || passes > 100) {
        (void)fputs("usage: filecosts DIR LIST [PASSES [SEED]]; PASSES: 2 to 100, the first is not counted\n",
                    stderr);
        return 2;
    }
    struct costs c = {0};
    int r = read_list(&c, argv[1], argv[2]), status;
    if (r == 0)
        r = prepare(&c, passes);
    status = r < 0 ? fail(argv[2], r) : take(&c, passes, seed);
    if (status == 0)
        tell(&c);
    costs_fini(&c);
    return status;
}

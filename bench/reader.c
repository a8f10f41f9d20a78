/*
 * Reads one file in one way and says how long that took: the same program for a file of a mount and for its
 * copy on a disk.
 *
 *     reader MODE FILE [BLOCK-BYTES [COUNT [SEED]]]
 *
 *     seq      the whole file by read(2), COUNT times over (default 1)
 *     random   COUNT blocks by pread(2) at places drawn by SEED (default as many as the file has)
 *     mmap     the whole file through a mapping of its own, every cache line, COUNT times over (default 1)
 *     first    the first block only
 *
 * Prints one line of JSON: bytes, seconds (from before open to after close), first_s (to the first block).
 *
 * Invariants:
 *  1. What is read is not looked at, but for one word of each cache line of a mapping: the time is that of
 *     reading.
 *  2. The places of random reads are drawn before the clock starts.
 *
 * Failure modes: a file that cannot be read, or is shorter than fstat said: one line on stderr, exit 1.
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
#include <sys/mman.h>
#include <unistd.h>

#define BLOCK_MAX_BYTES (64 * MIB)
#define LINE_BYTES      64

struct job {
    const char *path;
    uint64_t block, count, seed;
    char *buffer;
    uint64_t *places; /* random: block numbers */
    uint64_t size;
    uint64_t bytes, first_ns; /* results */
    uint64_t started_ns;
};

static volatile uint64_t sink; /* keeps the loads of a mapping */

static int fail(const char *path, int code)
{
    (void)fprintf(stderr, "reader: %s: %s\n", path, err_text(code));
    return 1;
}

static void count_read(struct job *j, uint64_t n)
{
    if (j->bytes == 0)
        j->first_ns = sys->mono_ns() - j->started_ns;
    j->bytes += n;
}

static int read_seq(struct job *j, int fd)
{
    for (uint64_t pass = 0; pass < j->count; pass++) {
        uint64_t at = 0;
        ssize_t n;
        if (lseek(fd, 0, SEEK_SET) < 0)
            return -errno;
        while ((n = read(fd, j->buffer, j->block)) > 0) {
            count_read(j, (uint64_t)n);
            at += (uint64_t)n;
        }
        if (n < 0 || at < j->size)
            return n < 0 ? -errno : -ENODATA;
    }
    return 0;
}

static int read_random(struct job *j, int fd)
{
    for (uint64_t i = 0; i < j->count; i++) {
        ssize_t n = pread(fd, j->buffer, j->block, (off_t)(j->places[i] * j->block));
        if (n < (ssize_t)j->block)
            return n < 0 ? -errno : -ENODATA;
        count_read(j, (uint64_t)n);
    }
    return 0;
}

static int read_mmap(struct job *j, int fd)
{
    for (uint64_t pass = 0; pass < j->count; pass++) {
        const char *p = mmap(NULL, j->size, PROT_READ, MAP_SHARED, fd, 0);
        if (p == MAP_FAILED)
            return -errno;
        uint64_t sum = 0;
        for (uint64_t at = 0; at + LINE_BYTES <= j->size; at += LINE_BYTES) {
            uint64_t word;
            memcpy(&word, p + at, sizeof(word));
            sum += word;
            if (at == 0)
                count_read(j, j->size);
        }
        sink += sum;
        (void)munmap((void *)(uintptr_t)p, j->size);
    }
    return 0;
}

static int read_first(struct job *j, int fd)
{
    ssize_t n = read(fd, j->buffer, j->block);
    if (n <= 0)
        return n < 0 ? -errno : -ENODATA;
    count_read(j, (uint64_t)n);
    return 0;
}

static const struct mode {
    const char *name;
    int (*run)(struct job *j, int fd);
} modes[] = {{"seq", read_seq}, {"random", read_random}, {"mmap", read_mmap}, {"first", read_first}};

/* What must be known of the file before the clock starts: its size is asked by path, as `ls` would. */
static int prepare(struct job *j, bool random, bool looks)
{
    struct stat st;
    if (looks) {
        int r = sys->stat(j->path, &st);
        if (r < 0)
            return r;
        j->size = (uint64_t)st.st_size;
    }
    if (posix_memalign((void **)&j->buffer, 4096, j->block) != 0)
        return -ENOMEM;
    memset(j->buffer, 1, j->block); /* no page faults in the measured time */
    uint64_t blocks = j->size / j->block;
    if (!random) {
        j->count = MAX(j->count, (uint64_t)1);
        return 0;
    }
    if (blocks == 0)
        return -ENODATA;
    j->count = j->count ? j->count : blocks;
    j->places = malloc(j->count * sizeof(j->places[0]));
    if (!j->places)
        return -ENOMEM;
    for (uint64_t i = 0; i < j->count; i++)
        j->places[i] = hash_mix(j->seed, i) % blocks;
    return 0;
}

static int measure(struct job *j, const struct mode *mode, uint64_t *ret_ns)
{
    j->started_ns = sys->mono_ns();
    int fd = sys->open(j->path, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0)
        return fd;
    int r = mode->run(j, fd);
    (void)close(fd);
    *ret_ns = sys->mono_ns() - j->started_ns;
    return r;
}

static uint64_t number(int argc, char **argv, int i, uint64_t otherwise)
{
    return i < argc ? strtoull(argv[i], NULL, 10) : otherwise;
}

int main(int argc, char **argv)
{
    const struct mode *mode = NULL;
    for (size_t i = 0; argc > 2 && i < ARRAY_SIZE(modes); i++)
        if (strcmp(argv[1], modes[i].name) == 0)
            mode = &modes[i];
    struct job j = {.block = number(argc, argv, 3, MIB),
                    .count = number(argc, argv, 4, 0),
                    .seed = number(argc, argv, 5, 1)};
    if (!mode || argc > 6 || j.block == 0 || j.block > BLOCK_MAX_BYTES) {
        (void)fputs("usage: reader seq|random|mmap|first FILE [BLOCK-BYTES [COUNT [SEED]]]\n", stderr);
        return 2;
    }
    j.path = argv[2];
    uint64_t ns = 0;
    int r = prepare(&j, mode->run == read_random, mode->run != read_first);
    if (r == 0)
        r = measure(&j, mode, &ns);
    free(j.buffer);
    free(j.places);
    if (r < 0)
        return fail(j.path, r);
    (void)printf("{\"bytes\": %" PRIu64 ", \"seconds\": %.9f, \"first_s\": %.9f}\n", j.bytes,
                 (double)ns / 1e9, (double)j.first_ns / 1e9);
    return 0;
}

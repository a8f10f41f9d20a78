/*
 * Reading RocksDB's log (contract and format in kv_wal.h). Only heads of batches are looked at.
 *
 * Behind a place that is no record the next one is looked for byte by byte: a head whose checksum is right by
 * accident is found in one of some 100,000 damaged blocks.
 */
#include "kv/kv_wal.h"

#include "base/crc32c.h"
#include "base/le.h"
#include "base/sys.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK_BYTES 32768
#define HEAD_BYTES  7
#define BATCH_HEAD  12
#define LOGS_MAX    4096
#define MASK_DELTA  0xa282ead8u

enum { RECORD_NONE, RECORD_WHOLE, RECORD_FIRST, RECORD_MIDDLE, RECORD_LAST };

struct reading {
    struct kv_wal *ret;
    bool bad;      /* something that is no record was seen, and no record since */
    bool bad_full; /* it is no record that was cut short */
    uint64_t next; /* number of the change behind the last one of this file; 0: not known */
    bool in_batch; /* pieces of one */
    char head[BATCH_HEAD];
    size_t head_bytes;
};

/* Whether a record begins here; p has n bytes. */
static bool is_record(const char *p, size_t n)
{
    size_t bytes = n < HEAD_BYTES ? 0 : le_get16(p + 4);
    if (n < HEAD_BYTES || bytes > n - HEAD_BYTES)
        return false;
    uint32_t crc = crc32c(0, p + 6, 1 + bytes);
    return le_get32(p) == (crc >> 15 | crc << 17) + MASK_DELTA;
}

static void on_batch(struct reading *g)
{
    uint64_t first = le_get64(g->head), n = le_get32(g->head + 8);
    if (g->head_bytes < BATCH_HEAD || n == 0)
        return;
    g->ret->damaged |= g->bad;
    g->ret->gap |= g->next > 0 && first > g->next && !g->bad;
    g->ret->last = MAX(g->ret->last, first + n - 1);
    g->next = first + n;
    g->bad = g->bad_full = false;
}

static void on_record(struct reading *g, unsigned type, const char *p, size_t n)
{
    if (type == RECORD_NONE || type > RECORD_LAST)
        return;
    bool begins = type == RECORD_WHOLE || type == RECORD_FIRST;
    if (begins ? g->in_batch && !g->bad : !g->in_batch)
        g->bad = g->bad_full = true; /* a piece without the others */
    if (begins)
        g->head_bytes = 0;
    else if (!g->in_batch)
        return;
    size_t part = MIN(n, BATCH_HEAD - g->head_bytes);
    memcpy(g->head + g->head_bytes, p, part);
    g->head_bytes += part;
    g->in_batch = type == RECORD_FIRST || type == RECORD_MIDDLE;
    if (!g->in_batch)
        on_batch(g);
}

/* Zeros from here on: never written, or never reached the disk. What lies behind them tells. */
static bool is_unwritten(const char *p, size_t n)
{
    return n < HEAD_BYTES || (p[0] == 0 && memcmp(p, p + 1, HEAD_BYTES - 1) == 0);
}

static void on_block(struct reading *g, const char *p, size_t n)
{
    for (size_t at = 0; at < n;) {
        if (is_record(p + at, n - at)) {
            size_t bytes = le_get16(p + at + 4);
            on_record(g, (uint8_t)p[at + 6], p + at + HEAD_BYTES, bytes);
            at += HEAD_BYTES + bytes;
            continue;
        }
        bool is_short = n - at < HEAD_BYTES || HEAD_BYTES + (size_t)le_get16(p + at + 4) > n - at;
        if (is_unwritten(p + at, n - at) && (n == BLOCK_BYTES || n - at >= HEAD_BYTES))
            return; /* the rest of the block */
        g->bad = true;
        g->bad_full |= !is_short || n == BLOCK_BYTES;
        g->in_batch = false;
        for (at++; at < n && !is_record(p + at, n - at);)
            at++;
    }
}

static int read_log(struct reading *g, const char *path, char *block)
{
    int fd = sys->open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW, 0);
    int r = fd < 0 ? fd : 0;
    g->next = 0;
    g->in_batch = false;
    for (uint64_t at = 0; r == 0; at += BLOCK_BYTES) {
        size_t n = 0;
        while (n < BLOCK_BYTES) {
            ssize_t got = sys->pread(fd, block + n, BLOCK_BYTES - n, at + n);
            r = got < 0 ? (int)got : 0;
            if (got <= 0)
                break;
            n += (size_t)got;
        }
        on_block(g, block, n);
        if (n < BLOCK_BYTES)
            break;
    }
    if (fd >= 0)
        (void)sys->close(fd);
    return r == -ENOENT ? 0 : r;
}

static int by_number(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static int list_logs(const char *dir, uint64_t *numbers, size_t *ret_n)
{
    DIR *d = opendir(dir);
    if (!d)
        return errno == ENOENT ? 0 : -errno;
    struct dirent *de = NULL;
    int r;
    while ((r = sys->readdir(d, &de)) == 0 && de && *ret_n < LOGS_MAX) {
        char *end;
        unsigned long long number = strtoull(de->d_name, &end, 10);
        if (end > de->d_name && strcmp(end, ".log") == 0)
            numbers[(*ret_n)++] = number;
    }
    (void)closedir(d);
    qsort(numbers, *ret_n, sizeof(numbers[0]), by_number);
    return r;
}

int kv_wal_read(const char *dir, struct kv_wal *ret)
{
    *ret = (struct kv_wal){0};
    struct reading g = {.ret = ret};
    _cleanup_free_ char *block = malloc(BLOCK_BYTES);
    _cleanup_free_ uint64_t *numbers = calloc(LOGS_MAX, sizeof(numbers[0]));
    size_t n = 0;
    if (!block || !numbers)
        abort();
    int r = list_logs(dir, numbers, &n);
    for (size_t i = 0; i < n && r == 0; i++) {
        char path[4096 + 32];
        (void)snprintf(path, sizeof(path), "%s/%06llu.log", dir, (unsigned long long)numbers[i]);
        if (read_log(&g, path, block) < 0)
            g.bad = true;
    }
    ret->bad_end = g.bad && g.bad_full;
    ret->damaged |= ret->bad_end || ret->gap;
    return r;
}

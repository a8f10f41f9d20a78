/* What the tests of the store share: a store in a directory of its own, objects whose bytes follow from their
 * name. */
#pragma once

#include "base/hash.h"
#include "base/sys.h"
#include "store/store.h"
#include "store/store_internal.h"
#include "support/tmpdir.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define FIXTURE_DISKS_MAX 4

struct fixture {
    char *dir;
    char *disks[FIXTURE_DISKS_MAX];
    struct store_disk_config disk_config[FIXTURE_DISKS_MAX];
    struct store_config config;
    struct store *s;
};

static inline int no_sync(int fd)
{
    return 0;
}

/* Syncs do nothing from here on: for tests that open thousands of stores and never lose power for real. */
static inline void fixture_skip_syncs(void)
{
    static struct sys table;
    table = *sys;
    table.fsync = table.fdatasync = table.syncfs = no_sync;
    sys = &table;
}

static inline void fixture_init(struct fixture *f, size_t n_disks, uint64_t size_bytes)
{
    *f = (struct fixture){.dir = tmpdir_new()};
    for (size_t i = 0; i < n_disks; i++) {
        char name[8];
        (void)snprintf(name, sizeof(name), "d%zu", i);
        f->disks[i] = tmpdir_path(f->dir, name);
        f->disk_config[i] = (struct store_disk_config){f->disks[i], size_bytes};
    }
    f->config = (struct store_config){
        .disks = f->disk_config,
        .n_disks = n_disks,
        .memory_bytes = 16 * MIB,
        .flush_interval_ms = 3600000, /* tests flush when they want to */
    };
}

static inline int fixture_try_open(struct fixture *f)
{
    struct err e = {0};
    int r = store_open(&f->config, &f->s, &e);
    if (r < 0)
        f->s = NULL;
    return r;
}

static inline void fixture_open(struct fixture *f)
{
    struct err e = {0};
    if (store_open(&f->config, &f->s, &e) < 0)
        fail_msg("%s", e.text);
}

static inline void fixture_close(struct fixture *f)
{
    store_close(f->s);
    f->s = NULL;
}

static inline void fixture_abandon(struct fixture *f)
{
    store_abandon(f->s);
    f->s = NULL;
}

static inline void fixture_fini(struct fixture *f)
{
    store_close(f->s);
    for (size_t i = 0; i < FIXTURE_DISKS_MAX; i++)
        free(f->disks[i]);
    tmpdir_free(f->dir);
}

/* Byte at an offset of the version of a key. */
static inline uint8_t content_byte(uint64_t seed, uint64_t offset)
{
    return (uint8_t)(hash_mix(seed, offset / 8) >> (offset % 8 * 8));
}

/* The bytes from offset on, a word at a time: tests make and compare many megabytes. */
static inline void content_put(char *p, uint64_t seed, uint64_t offset, size_t n)
{
    while (n > 0) {
        uint64_t word = hash_mix(seed, offset / 8) >> (offset % 8 * 8);
        size_t part = MIN(n, 8 - offset % 8);
        memcpy(p, &word, part);
        p += part;
        offset += part;
        n -= part;
    }
}

static inline char *content_new(uint64_t seed, uint64_t offset, size_t n)
{
    char *p = malloc(n + 1);
    assert_non_null(p);
    content_put(p, seed, offset, n);
    return p;
}

static inline bool content_is(const char *p, uint64_t seed, uint64_t offset, size_t n)
{
    _cleanup_free_ char *want = content_new(seed, offset, n);
    return memcmp(p, want, n) == 0;
}

/* Fills [offset, offset + n); offset at a block boundary. The result of the append. */
static inline int fill_range(struct extent *x, uint64_t seed, uint64_t offset, size_t n)
{
    _cleanup_free_ char *p = content_new(seed, offset, n);
    struct extent_writer *_cleanup_(extent_writer_freep) w = extent_writer_new(x, offset);
    /* In two pieces of uneven size, as a network gives them. */
    size_t first = n / 3;
    int r = extent_writer_append(w, p, first);
    return r < 0 ? r : extent_writer_append(w, p + first, n - first);
}

static inline int try_put(struct store *s, const char *key, uint64_t seed, uint64_t size)
{
    struct store_new n = {.key = slice_str(key), .attr = SLICE_LIT("attr"), .size_bytes = size};
    struct extent *_cleanup_(extent_unrefp) x = NULL;
    int r = store_create(s, &n, &x, NULL);
    return r < 0 ? r : size > 0 ? fill_range(x, seed, 0, size) : 0;
}

static inline void put(struct store *s, const char *key, uint64_t seed, uint64_t size)
{
    assert_int_equal(try_put(s, key, seed, size), 0);
}

/* Bytes that may be served from `offset` on, all checked against what they should be. */
static inline uint64_t check_run(struct extent *x, uint64_t seed, uint64_t offset, uint64_t n)
{
    uint64_t run = extent_present_run(x, offset, n);
    _cleanup_free_ char *p = malloc(run + 1);
    assert_non_null(p);
    assert_int_equal(pread(extent_use(x), p, run, (off_t)offset), run);
    extent_leave(x);
    assert_true(content_is(p, seed, offset, run));
    return run;
}

/* Whether the key is there in full; what is there must be right. */
static inline bool is_whole(struct store *s, const char *key, uint64_t seed, uint64_t size)
{
    struct extent *_cleanup_(extent_unrefp) x = NULL;
    int r = store_find(s, slice_str(key), &x);
    if (r < 0) {
        assert_int_equal(r, -ENOENT);
        return false;
    }
    extent_check(x);
    assert_int_equal(extent_size(x), size);
    bool whole = true;
    for (uint64_t at = 0; at < size;) {
        uint64_t run = check_run(x, seed, at, size - at);
        if (run == 0) {
            whole = false;
            run = STORE_BLOCK_BYTES - at % STORE_BLOCK_BYTES;
        }
        at += run;
    }
    return whole;
}

static inline bool is_there(struct store *s, const char *key)
{
    struct extent *_cleanup_(extent_unrefp) x = NULL;
    return store_find(s, slice_str(key), &x) == 0;
}

/* After the writer let go of what it recorded. */
static inline struct store_disk_status disk_status(struct store *s, size_t disk)
{
    struct store_disk_status st;
    writer_drain(&s->disks[disk]);
    assert_int_equal(store_disk_status(s, disk, &st), 0);
    return st;
}

static inline void extent_path(struct extent *x, char ret[DISK_PATH_MAX])
{
    disk_extent_path(x->disk, x->id, ret);
}

/* Path of the file of a key. */
static inline void key_path(struct store *s, const char *key, char ret[DISK_PATH_MAX])
{
    struct extent *_cleanup_(extent_unrefp) x = NULL;
    assert_int_equal(store_find(s, slice_str(key), &x), 0);
    extent_path(x, ret);
}

static inline void flip_bit(const char *path, uint64_t offset)
{
    int fd = open(path, O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    char c;
    assert_int_equal(pread(fd, &c, 1, (off_t)offset), 1);
    c ^= 1;
    assert_int_equal(pwrite(fd, &c, 1, (off_t)offset), 1);
    assert_int_equal(close(fd), 0);
}

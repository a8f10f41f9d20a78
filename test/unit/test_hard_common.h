/* What the tests of hard extents share. */
#pragma once

#include "store/hard_internal.h"
#include "test_store_common.h"

#include <dirent.h>

struct location {
    uint8_t b[HARD_LOCATION_BYTES];
};

static inline struct slice location_view(const struct location *l)
{
    return slice_of(l->b, sizeof(l->b));
}

static inline struct hard *take(struct store *s, struct location *ret)
{
    struct err e = {0};
    struct hard *h = NULL;
    if (hard_take(s, &h, &e) < 0)
        fail_msg("%s", e.text);
    hard_location(h, ret->b);
    return h;
}

static inline struct hard *find(struct store *s, const struct location *l)
{
    struct err e = {0};
    struct hard *h = NULL;
    if (hard_find(s, location_view(l), &h, &e) < 0)
        fail_msg("%s", e.text);
    return h;
}

/* The bytes of `seed` at [offset, offset + n), written by the node in pieces of uneven size. */
static inline int hard_put(struct hard *h, uint64_t seed, uint64_t offset, uint64_t n)
{
    _cleanup_free_ char *p = content_new(seed, offset, n);
    int r = hard_begin_writing(h, NULL);
    if (r < 0)
        return r;
    for (uint64_t done = 0; done < n && r == 0;) {
        uint64_t part = MIN(n - done, 300001);
        r = hard_write(h, p + done, part, offset + done, NULL);
        done += part;
    }
    hard_end_writing(h);
    return r;
}

static inline int measure_and_settle(struct store *s, struct hard *h)
{
    struct stat st;
    bool ok = false;
    int r = hard_measure(h, &st, NULL);
    if (r == 0)
        r = hard_settle(s, &h, 1, &ok, NULL);
    return r < 0 ? r : ok ? 0 : -EAGAIN;
}

static inline bool hard_holds(struct hard *h, uint64_t seed, uint64_t offset, uint64_t n)
{
    _cleanup_free_ char *p = malloc(n + 1);
    assert_non_null(p);
    return hard_read_verified(h, p, n + 1, offset, NULL) == (ssize_t)n && content_is(p, seed, offset, n);
}

static inline uint64_t count_keys(struct store *s, char letter)
{
    uint64_t n = 0;
    char from[1] = {letter}, to[1] = {(char)(letter + 1)};
    for (size_t i = 0; i < s->n_disks; i++) {
        struct kv_iter *it = kv_iter_new(s->disks[i].kv, slice_of(from, 1), slice_of(to, 1));
        struct slice k, v;
        while (kv_iter_next(it, &k, &v, NULL) == 0)
            n++;
        kv_iter_free(it);
    }
    return n;
}

/* Files below DISK/hard of all disks. */
static inline uint64_t count_files(const struct fixture *f)
{
    uint64_t n = 0;
    for (size_t i = 0; i < f->config.n_disks; i++) {
        for (unsigned sub = 0; sub < 256; sub++) {
            char path[DISK_PATH_MAX];
            (void)snprintf(path, sizeof(path), "%s/hard/%02x", f->disks[i], sub);
            DIR *d = opendir(path);
            for (struct dirent *de; d && (de = readdir(d));)
                n += de->d_name[0] != '.';
            if (d)
                (void)closedir(d);
        }
    }
    return n;
}

/* The pool is at rest: its thread does not fill. */
static inline size_t pool_size(struct store *s)
{
    size_t n = 0;
    for (size_t i = 0; i < s->n_disks; i++) {
        struct hard_pool *p = &s->disks[i].hard->pool;
        lock_take(&p->lock);
        while (p->has_thread && (p->asked || (p->n < p->batch / 2 && p->error == 0)))
            cond_wait(&p->filled, &p->lock);
        n += p->n;
        lock_drop(&p->lock);
    }
    return n;
}

/* What the tests of freshness and of steering the cache share: a service whose bucket "data" mirrors a
 * directory. */
#pragma once

#include "base/sys.h"
#include "node_fixture.h"
#include "object/object_internal.h"

#include <fcntl.h>

static inline void make_bucket(struct fixture *f, const char *name, const char *settings)
{
    struct bucket *b = NULL;
    struct err e = {0};
    if (bucket_create(f->service->buckets, slice_str(name), slice_str(settings), &b, &e) < 0)
        fail_msg("%s", e.text);
    bucket_unref(b);
}

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    assert_non_null(f);
    node_around(f);
    node_open(f);
    make_bucket(f, "data",
                arena_printf(f->arena, "origin=file://%s\nvalidate=never\nevents.token=hush\n", f->origin));
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    node_close(f, store_close);
    node_gone(f);
    free(f);
    return 0;
}

static inline void origin_write(struct fixture *f, const char *key, const char *text)
{
    char *path = arena_printf(f->arena, "%s/%s", f->origin, key),
         *tmp = arena_printf(f->arena, "%s.new", path);
    int fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    assert_true(fd >= 0);
    assert_int_equal(sys_pwrite_all(fd, text, strlen(text), 0), 0);
    (void)close(fd);
    assert_int_equal(rename(tmp, path), 0);
}

/* What a reader gets of the object; its attributes. NULL: there is none. */
static inline const char *read_all(struct fixture *f, const char *key, struct wire_attr *ret)
{
    struct wire_open_req req = {
        .bucket = SLICE_LIT("data"), .key = slice_str(key), .expect = KIB, .via = WIRE_VIA_API};
    struct wire_open_rep rep;
    int r = object_open(f->session, &req, f->arena, &rep, NULL);
    if (r == -ENOENT)
        return NULL;
    assert_int_equal(r, 0);
    struct wire_fetch_req fetch = {.handle = rep.handle, .n = KIB, .flags = WIRE_INLINE};
    struct wire_fetch_rep got;
    assert_int_equal(object_fetch(f->session, &fetch, f->arena, &got, NULL), 0);
    struct wire_close_req close_req = {.handle = rep.handle};
    struct wire_close_rep closed;
    assert_int_equal(object_close(f->session, &close_req, f->arena, &closed, NULL), 0);
    if (ret)
        *ret = rep.attr;
    return arena_printf(f->arena, SLICE_FMT, SLICE_ARG(got.data));
}

static inline bool is_cached(struct fixture *f, const char *key)
{
    struct wire_cached_req req = {.bucket = SLICE_LIT("data"), .prefix = slice_str(key), .flags = WIRE_EXACT};
    struct wire_cached_rep rep;
    assert_int_equal(object_cached(f->session, &req, f->arena, &rep, NULL), 0);
    return rep.n_entries == 1;
}

static inline size_t list(struct fixture *f, unsigned flags)
{
    struct wire_list_req req = {.bucket = SLICE_LIT("data"), .flags = flags};
    struct wire_list_rep rep;
    assert_int_equal(object_list(f->session, &req, f->arena, &rep, NULL), 0);
    return rep.n_entries;
}

static inline void rule(struct fixture *f, const char *prefix, const char *setting)
{
    struct wire_bucket_rule_req req = {
        .bucket = SLICE_LIT("data"), .prefix = slice_str(prefix), .settings = slice_str(setting)};
    struct wire_bucket_rule_rep rep;
    assert_int_equal(object_bucket_rule(f->session, &req, f->arena, &rep, NULL), 0);
}

static inline void set_bucket(struct fixture *f, const char *setting)
{
    struct wire_bucket_set_req req = {.name = SLICE_LIT("data"), .settings = slice_str(setting)};
    struct wire_bucket_set_rep rep;
    assert_int_equal(object_bucket_set(f->session, &req, f->arena, &rep, NULL), 0);
}

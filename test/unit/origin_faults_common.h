/*
 * What the fault sweeps of the kinds that keep files share: the operations, each of which may meet the fault,
 * on an origin with "k", "d/f" and the empty directory "e". The includer defines FAKE_ROOT, the path of the
 * origin's root at the server.
 */
#pragma once

#include "base/buf.h"
#include "base/sys.h"
#include "origin/origin.h"
#include "origin/tree.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define OLD "the old bytes"
#define NEW "the new and longer bytes"

static struct {
    struct origin *origin;
    struct arena *arena;
    struct err err;
    char etag[TREE_ETAG_SIZE]; /* of k */
} T;

static inline ssize_t new_bytes(void *arg, void *p, size_t n, uint64_t offset)
{
    (void)arg;
    n = MIN(n, strlen(NEW) - offset);
    n = MIN(n, (size_t)10);
    memcpy(p, &NEW[offset], n);
    return (ssize_t)n;
}

static inline int put(const char *key, bool none, const char *etag)
{
    bool is_dir = key[strlen(key) - 1] == '/';
    struct origin_put p = {.key = slice_str(key),
                           .if_none_match = none,
                           .if_match = slice_str(etag),
                           .meta = SLICE_LIT("x-amz-meta-mtime: 1600000000\n")};
    struct origin_body b = {.size_bytes = is_dir ? 0 : strlen(NEW), .read = new_bytes};
    struct origin_attr attr;
    int r = origin_put(T.origin, &p, &b, T.arena, &attr, &T.err);
    assert_true(r < 0 || is_dir || attr.size_bytes == strlen(NEW));
    return r;
}

static inline int collect(void *arg, const struct origin_attr *attr, const void *p, size_t n)
{
    (void)attr;
    return buf_append(arg, p, n);
}

static inline int do_get(void)
{
    struct buf _cleanup_buf_ got = BUF_INIT(KIB);
    struct origin_get g = {.key = SLICE_LIT("k"), .whole = true};
    struct origin_attr attr;
    int r = origin_get(T.origin, &g, T.arena, &attr, collect, &got, &T.err);
    assert_true(r < 0 || slice_eq_str(buf_view(&got), OLD));
    return r;
}

static inline int do_head(void)
{
    struct buf _cleanup_buf_ got = BUF_INIT(KIB);
    struct origin_get g = {.key = SLICE_LIT("k"), .attributes_only = true};
    struct origin_attr attr;
    int r = origin_get(T.origin, &g, T.arena, &attr, collect, &got, &T.err);
    assert_true(r < 0 || (attr.size_bytes == strlen(OLD) && slice_eq_str(attr.etag, T.etag)));
    return r;
}

static inline int do_list_all(void)
{
    struct origin_page page;
    struct origin_list l = {.max = 100};
    int r = origin_list(T.origin, &l, T.arena, &page, &T.err);
    assert_true(r < 0 || (page.n == 3 && slice_eq_str(page.entries[0].key, "d/f") &&
                          slice_eq_str(page.entries[1].key, "e/") && slice_eq_str(page.entries[2].key, "k")));
    return r;
}

static inline int do_put(void)
{
    return put("k", false, "");
}

static inline int do_put_if_match(void)
{
    return put("k", false, T.etag);
}

static inline int do_put_new(void)
{
    return put("n", true, "");
}

static inline int do_put_deep(void)
{
    return put("a/b/n", false, "");
}

static inline int do_put_dir(void)
{
    return put("a/b/", false, "");
}

static inline int do_copy(void)
{
    struct origin_attr attr;
    return origin_copy(T.origin, SLICE_LIT("k"), SLICE_LIT("n"), SLICE_NULL, T.arena, &attr, &T.err);
}

static inline int do_remove(void)
{
    return origin_remove(T.origin, SLICE_LIT("k"), slice_str(T.etag), &T.err);
}

static inline int do_remove_dir(void)
{
    return origin_remove(T.origin, SLICE_LIT("e/"), SLICE_NULL, &T.err);
}

/* What may be under a name before and after; NULL: nothing. */
static const struct {
    const char *what;
    int (*run)(void);
    const char *name, *before, *after;
} ops[] = {
    {"get", do_get, FAKE_ROOT "/k", OLD, OLD},
    {"head", do_head, FAKE_ROOT "/k", OLD, OLD},
    {"list", do_list_all, FAKE_ROOT "/k", OLD, OLD},
    {"put", do_put, FAKE_ROOT "/k", OLD, NEW},
    {"put if-match", do_put_if_match, FAKE_ROOT "/k", OLD, NEW},
    {"put if-none-match", do_put_new, FAKE_ROOT "/n", NULL, NEW},
    {"put deep", do_put_deep, FAKE_ROOT "/a/b/n", NULL, NEW},
    {"put dir", do_put_dir, FAKE_ROOT "/a/b", NULL, ""},
    {"copy", do_copy, FAKE_ROOT "/n", NULL, OLD},
    {"remove", do_remove, FAKE_ROOT "/k", OLD, NULL},
    {"remove dir", do_remove_dir, FAKE_ROOT "/e", "", NULL},
};

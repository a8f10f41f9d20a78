/* A node with one write-back bucket whose origin is a directory, and a control store that can fail. */
#pragma once

#include "base/sys.h"
#include "faulty_kv.h"
#include "net/posix_meta.h"
#include "node_fixture.h"
#include "object/back.h"
#include "store/hard.h"
#include "support/fault_sys.h"

#include <fcntl.h>
#include <ftw.h>
#include <pthread.h>
#include <unistd.h>

#define SIZE      (MIB + 77)
#define FILE_SIZE (8 * MIB + 77) /* of a staged file, which is kept as it is */

static struct faulty faulty; /* the fixture's control store */

static inline void origin_write(struct fixture *f, const char *key, char c)
{
    char *path = arena_printf(f->arena, "%s/%s", f->origin, key);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, &c, 1, 0), 1);
    (void)close(fd);
}

static inline void create_bucket(struct fixture *f)
{
    node_bucket(f, "retry=0s\nwrite=back\nposix=on\n");
}

static inline struct fixture *fixture_new(void)
{
    struct fixture *f = calloc(1, sizeof(*f));
    assert_non_null(f);
    faulty = (struct faulty){.kv.engine = &faulty_engine};
    assert_int_equal(kv_open_memory(&faulty.inner), 0);
    f->kv = &faulty.kv;
    node_around(f);
    node_open(f);
    create_bucket(f);
    return f;
}

/* Ends it as kill -9 would, as far as the store goes. */
static inline void fixture_free(struct fixture *f)
{
    node_close(f, store_abandon);
    node_gone(f);
    free(f);
}

/* Puts SIZE bytes `c` under the key. */
static inline int put_by(struct object_session *session, struct arena *a, const char *key, char c)
{
    struct wire_put_open_req open = {
        .bucket = SLICE_LIT("data"), .key = slice_str(key), .size = SIZE, .via = WIRE_VIA_API};
    struct wire_put_open_rep o;
    int r = object_put_open(session, &open, a, &o, NULL);
    if (r < 0)
        return r;
    char *p = malloc(SIZE);
    assert_non_null(p);
    memset(p, c, SIZE);
    struct wire_put_write_req w = {.handle = o.handle, .data = slice_of(p, SIZE)};
    struct wire_put_write_rep wrep;
    r = object_put_write(session, &w, a, &wrep, NULL);
    free(p);
    struct wire_put_commit_req commit = {.handle = o.handle, .size = SIZE};
    struct wire_put_commit_rep crep;
    if (r == 0)
        r = object_put_commit(session, &commit, a, &crep, NULL);
    if (r < 0) {
        struct wire_put_abort_req ab = {.handle = o.handle};
        struct wire_put_abort_rep abrep;
        (void)object_put_abort(session, &ab, a, &abrep, NULL);
    }
    return r;
}

static inline int stage(struct fixture *f, const char *key, struct wire_put_open_rep *ret)
{
    struct wire_put_open_req open = {.bucket = SLICE_LIT("data"),
                                     .key = slice_str(key),
                                     .size = UINT64_MAX,
                                     .via = WIRE_VIA_MOUNT,
                                     .flags = WIRE_STAGED};
    return object_put_open(f->session, &open, f->arena, ret, NULL);
}

static inline void fill_file(int fd, char c)
{
    char *p = malloc(FILE_SIZE);
    assert_non_null(p);
    memset(p, c, FILE_SIZE);
    assert_int_equal(pwrite(fd, p, FILE_SIZE, 0), FILE_SIZE);
    free(p);
}

static inline int commit_file(struct fixture *f, uint64_t handle, uint64_t size, uint32_t flags)
{
    struct wire_put_commit_req req = {.handle = handle, .size = size, .flags = flags};
    struct wire_put_commit_rep rep;
    return object_put_commit(f->session, &req, f->arena, &rep, NULL);
}

static inline void abort_file(struct fixture *f, uint64_t handle)
{
    struct wire_put_abort_req req = {.handle = handle};
    struct wire_put_abort_rep rep;
    (void)object_put_abort(f->session, &req, f->arena, &rep, NULL);
}

/* As a mount does: fsync, then close. */
static inline int put_file(struct fixture *f, const char *key, char c)
{
    struct wire_put_open_rep o;
    int r = stage(f, key, &o);
    if (r < 0)
        return r;
    fill_file(o.fd, c);
    r = commit_file(f, o.handle, FILE_SIZE, WIRE_KEEP | WIRE_UNMAPPED);
    if (r < 0 || commit_file(f, o.handle, FILE_SIZE, WIRE_UNMAPPED) < 0)
        abort_file(f, o.handle);
    return r;
}

static inline int put(struct fixture *f, const char *key, char c)
{
    return f->is_staged ? put_file(f, key, c) : put_by(f->session, f->arena, key, c);
}

static inline int remove_key(struct fixture *f, const char *key)
{
    struct wire_remove_req req = {.bucket = SLICE_LIT("data"), .key = slice_str(key)};
    struct wire_remove_rep rep;
    return object_remove(f->session, &req, f->arena, &rep, NULL);
}

/* First and last byte of the object are the same: which; 0 when it is not there. */
static inline char look(struct fixture *f, const char *key)
{
    struct wire_open_req req = {
        .bucket = SLICE_LIT("data"), .key = slice_str(key), .expect = 1, .via = WIRE_VIA_API};
    struct wire_open_rep o;
    int r = object_open(f->session, &req, f->arena, &o, NULL);
    if (r == -ENOENT)
        return 0;
    assert_int_equal(r, 0);
    char seen[2] = {0, 0};
    for (int i = 0; i < 2; i++) {
        struct wire_fetch_req fetch = {
            .handle = o.handle, .offset = i ? o.attr.size_bytes - 1 : 0, .n = 1, .flags = WIRE_INLINE};
        struct wire_fetch_rep rep;
        struct err e = {0};
        if (object_fetch(f->session, &fetch, f->arena, &rep, &e) < 0)
            fail_msg("%s", e.text);
        assert_int_equal(rep.data.n, 1);
        seen[i] = rep.data.p[0];
    }
    struct wire_close_req close_req = {.handle = o.handle};
    struct wire_close_rep close_rep;
    assert_int_equal(object_close(f->session, &close_req, f->arena, &close_rep, NULL), 0);
    assert_int_equal(seen[0], seen[1]);
    return seen[0];
}

static inline void set_bucket(struct fixture *f, const char *settings)
{
    struct wire_bucket_set_req req = {.name = SLICE_LIT("data"), .settings = slice_str(settings)};
    struct wire_bucket_set_rep rep;
    assert_int_equal(object_bucket_set(f->session, &req, f->arena, &rep, NULL), 0);
}

static inline int open_key(struct fixture *f, const char *key)
{
    struct wire_open_req req = {
        .bucket = SLICE_LIT("data"), .key = slice_str(key), .expect = 1, .via = WIRE_VIA_API};
    struct wire_open_rep o;
    return object_open(f->session, &req, f->arena, &o, NULL);
}

static inline void flush(struct fixture *f)
{
    struct wire_flush_req req = {.bucket = SLICE_LIT("data")};
    struct wire_flush_rep rep;
    for (int i = 0; i < 60000; i++) {
        assert_int_equal(object_flush(f->session, &req, f->arena, &rep, NULL), 0);
        if (rep.objects == 0)
            return;
        sys->sleep_ns(1000000);
    }
    fail_msg("not in the origin: " SLICE_FMT, SLICE_ARG(rep.error));
}

static inline char origin_look(struct fixture *f, const char *key)
{
    char *path = arena_printf(f->arena, "%s/%s", f->origin, key), c = 0;
    int fd = open(path, O_RDONLY);
    if (fd < 0)
        return 0;
    assert_int_equal(pread(fd, &c, 1, 0), 1);
    (void)close(fd);
    return c;
}

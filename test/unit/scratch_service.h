/* What the tests of scratch buckets in the object layer share: a service over a real store, and short forms
 * of the operations. */
#pragma once

#include "base/sys.h"
#include "object/object.h"
#include "store_fixture.h"
#include "support/tmpdir.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <unistd.h>

#define BUCKET SLICE_LIT("scr")

struct fixture {
    char *dir, *disk, *control;
    enum object_route route;
    struct kv *kv;
    struct store *store;
    struct budget *budget;
    struct object_service *service;
    struct object_session *session;
    struct arena *arena;
    bool on_disk; /* the control store is RocksDB */
    struct err e;
};

static inline void open_service(struct fixture *f)
{
    f->store = store_of(f->disk, 256 * MIB);
    struct object_config oc = {.control = f->kv, .store = f->store, .budget = f->budget, .route = f->route};
    if (object_service_open(&oc, &f->service, &f->e) < 0)
        fail_msg("%s", f->e.text);
    f->session = object_session_new(f->service, WIRE_VIA_MOUNT);
}

static inline void close_service(struct fixture *f)
{
    object_session_free(f->session);
    object_service_close(f->service);
    store_close(f->store);
}

/* As after kill -9: nothing is written any more. */
static inline void restart(struct fixture *f)
{
    object_session_free(f->session);
    object_service_close(f->service);
    store_abandon(f->store);
    open_service(f);
}

static inline int make_bucket(struct fixture *f, struct slice name, const char *settings)
{
    struct wire_bucket_create_req req = {.name = name, .settings = slice_str(settings)};
    struct wire_bucket_create_rep rep = {0};
    return object_bucket_create(f->session, &req, f->arena, &rep, &f->e);
}

static inline struct fixture *fixture_new(enum object_route route)
{
    struct fixture *f = calloc(1, sizeof(*f));
    f->route = route;
    f->dir = tmpdir_new();
    f->disk = tmpdir_path(f->dir, "disk");
    f->arena = arena_new(64 * MIB);
    f->budget = budget_new(64 * MIB);
    assert_int_equal(kv_open_memory(&f->kv), 0);
    open_service(f);
    assert_int_equal(make_bucket(f, BUCKET, ""), 0);
    return f;
}

static inline int setup_local(void **state)
{
    *state = fixture_new(OBJECT_ROUTE_LOCAL);
    return 0;
}

static inline int setup_loop(void **state)
{
    *state = fixture_new(OBJECT_ROUTE_LOOP);
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    close_service(f);
    kv_close(f->kv);
    budget_free(f->budget);
    arena_free(f->arena);
    tmpdir_free(f->dir);
    free(f->disk);
    free(f);
    return 0;
}

/* A test in both routes. */
#define BOTH(test)                                                                                           \
    cmocka_unit_test_setup_teardown(test, setup_local, teardown),                                            \
        cmocka_unit_test_setup_teardown(test, setup_loop, teardown)

/* ---- the tree ---- */

static inline int lookup(struct fixture *f, uint64_t parent, const char *name, struct wire_inode *ret)
{
    struct wire_tree_lookup_req req = {.bucket = BUCKET, .parent = parent, .name = slice_str(name)};
    struct wire_tree_lookup_rep rep = {0};
    int r = object_tree_lookup(f->session, &req, f->arena, &rep, &f->e);
    if (r == 0 && ret)
        *ret = rep.inode;
    return r;
}

static inline int getattr(struct fixture *f, uint64_t ino, struct wire_inode *ret)
{
    struct wire_tree_getattr_req req = {.bucket = BUCKET, .ino = ino};
    struct wire_tree_getattr_rep rep = {0};
    int r = object_tree_getattr(f->session, &req, f->arena, &rep, &f->e);
    if (r == 0)
        *ret = rep.inode;
    return r;
}

static inline int create_file(struct fixture *f, uint64_t parent, const char *name, uint32_t flags,
                              struct wire_tree_create_rep *ret)
{
    struct wire_tree_create_req req = {.bucket = BUCKET,
                                       .parent = parent,
                                       .name = slice_str(name),
                                       .mode = S_IFREG | 0666,
                                       .uid = 5,
                                       .gid = 6,
                                       .umask = 022,
                                       .flags = flags};
    return object_tree_create(f->session, &req, f->arena, ret, &f->e);
}

static inline int make_dir(struct fixture *f, uint64_t parent, const char *name, uint64_t *ret)
{
    struct wire_tree_create_req req = {
        .bucket = BUCKET, .parent = parent, .name = slice_str(name), .mode = S_IFDIR | 0755};
    struct wire_tree_create_rep rep = {0};
    int r = object_tree_create(f->session, &req, f->arena, &rep, &f->e);
    if (r == 0 && ret)
        *ret = rep.inode.ino;
    return r;
}

static inline int open_ino(struct fixture *f, uint64_t ino, uint32_t flags, struct wire_tree_open_rep *ret)
{
    struct wire_tree_open_req req = {.bucket = BUCKET, .ino = ino, .flags = flags};
    return object_tree_open(f->session, &req, f->arena, ret, &f->e);
}

static inline int close_handle(struct fixture *f, uint64_t handle)
{
    struct wire_close_req req = {.handle = handle};
    struct wire_close_rep rep = {0};
    return object_close(f->session, &req, f->arena, &rep, &f->e);
}

static inline int unlink_name(struct fixture *f, uint64_t parent, const char *name)
{
    struct wire_tree_unlink_req req = {.bucket = BUCKET, .parent = parent, .name = slice_str(name)};
    struct wire_tree_unlink_rep rep = {0};
    return object_tree_unlink(f->session, &req, f->arena, &rep, &f->e);
}

static inline int rename_name(struct fixture *f, uint64_t parent, const char *name, uint64_t to_parent,
                              const char *to, uint32_t flags)
{
    struct wire_tree_rename_req req = {.bucket = BUCKET,
                                       .parent = parent,
                                       .name = slice_str(name),
                                       .to_parent = to_parent,
                                       .to_name = slice_str(to),
                                       .flags = flags};
    struct wire_tree_rename_rep rep = {0};
    return object_tree_rename(f->session, &req, f->arena, &rep, &f->e);
}

static inline int set_size(struct fixture *f, uint64_t ino, uint64_t size, struct wire_inode *ret)
{
    struct wire_tree_setattr_req req = {.bucket = BUCKET, .ino = ino, .what = WIRE_SET_SIZE, .size = size};
    struct wire_tree_setattr_rep rep = {0};
    int r = object_tree_setattr(f->session, &req, f->arena, &rep, &f->e);
    if (r == 0 && ret)
        *ret = rep.inode;
    return r;
}

static inline int sync_with(struct fixture *f, uint64_t ino, uint32_t flags)
{
    struct wire_tree_sync_req req = {.bucket = BUCKET, .ino = ino, .flags = flags};
    struct wire_tree_sync_rep rep = {0};
    return object_tree_sync(f->session, &req, f->arena, &rep, &f->e);
}

static inline int sync_ino(struct fixture *f, uint64_t ino)
{
    return sync_with(f, ino, 0);
}

/* A new file with these bytes, closed; its number. */
static inline uint64_t write_file(struct fixture *f, uint64_t parent, const char *name, const char *text)
{
    struct wire_tree_create_rep c = {0};
    assert_int_equal(create_file(f, parent, name, WIRE_WRITE, &c), 0);
    assert_true(c.fd >= 0);
    assert_int_equal(pwrite(c.fd, text, strlen(text), 0), (ssize_t)strlen(text));
    assert_int_equal(close_handle(f, c.handle), 0);
    return c.inode.ino;
}

static inline void assert_file(struct fixture *f, uint64_t ino, const char *text)
{
    struct wire_tree_open_rep o = {0};
    char got[256] = {0};
    assert_int_equal(open_ino(f, ino, 0, &o), 0);
    assert_int_equal(o.inode.size_bytes, strlen(text));
    if (o.fd < 0) {
        assert_string_equal(text, "");
    } else {
        assert_int_equal(pread(o.fd, got, sizeof(got) - 1, 0), (ssize_t)strlen(text));
        assert_string_equal(got, text);
        assert_true(pwrite(o.fd, "x", 1, 0) < 0); /* for reading only */
    }
    assert_int_equal(close_handle(f, o.handle), 0);
}

/* ---- objects ---- */

static inline int put(struct fixture *f, const char *key, const char *text, struct wire_attr *ret)
{
    struct wire_put_open_req po = {
        .bucket = BUCKET, .key = slice_str(key), .size = strlen(text), .via = WIRE_VIA_API};
    struct wire_put_open_rep por = {0};
    int r = object_put_open(f->session, &po, f->arena, &por, &f->e);
    if (r < 0)
        return r;
    struct wire_put_write_req pw = {.handle = por.handle, .data = slice_str(text)};
    struct wire_put_write_rep pwr = {0};
    r = object_put_write(f->session, &pw, f->arena, &pwr, &f->e);
    struct wire_put_commit_req pc = {.handle = por.handle, .size = strlen(text)};
    struct wire_put_commit_rep pcr = {0};
    if (r == 0)
        r = object_put_commit(f->session, &pc, f->arena, &pcr, &f->e);
    if (r < 0) {
        struct wire_put_abort_req pa = {.handle = por.handle};
        struct wire_put_abort_rep par = {0};
        (void)object_put_abort(f->session, &pa, f->arena, &par, NULL);
        return r;
    }
    if (ret)
        *ret = pcr.attr;
    return 0;
}

static inline int stat_key(struct fixture *f, const char *key, struct wire_attr *ret)
{
    struct wire_stat_req req = {.bucket = BUCKET, .key = slice_str(key)};
    struct wire_stat_rep rep = {0};
    int r = object_stat(f->session, &req, f->arena, &rep, &f->e);
    if (r == 0 && ret)
        *ret = rep.attr;
    return r;
}

/* The object's bytes as a text in the arena; NULL when there is none. */
static inline const char *get(struct fixture *f, const char *key)
{
    struct wire_open_req req = {.bucket = BUCKET, .key = slice_str(key), .via = WIRE_VIA_API};
    struct wire_open_rep o = {0};
    if (object_open(f->session, &req, f->arena, &o, &f->e) < 0)
        return NULL;
    struct wire_fetch_req fq = {.handle = o.handle, .n = o.attr.size_bytes, .flags = WIRE_INLINE};
    struct wire_fetch_rep fr = {0};
    assert_int_equal(object_fetch(f->session, &fq, f->arena, &fr, &f->e), 0);
    assert_int_equal(fr.data.n, o.attr.size_bytes);
    char *text = arena_str(f->arena, fr.data);
    assert_int_equal(close_handle(f, o.handle), 0);
    return text;
}

static inline int remove_key(struct fixture *f, const char *key, uint32_t flags)
{
    struct wire_remove_req req = {.bucket = BUCKET, .key = slice_str(key), .flags = flags};
    struct wire_remove_rep rep = {0};
    return object_remove(f->session, &req, f->arena, &rep, &f->e);
}

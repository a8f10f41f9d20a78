/* A node around one bucket whose changes of names are asked for again after it was killed. */
#pragma once

#include "base/quit.h"
#include "base/sys.h"
#include "faulty_kv.h"
#include "name_watch.h"
#include "object/object_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#define NUMBER (WIRE_NUMBERED | 77)

static struct fixture T;

static const uint8_t family[WIRE_FAMILY_BYTES] = "a mount";

static inline int setup(void **state)
{
    (void)state;
    node_around(&T);
    node_open(&T);
    node_bucket(&T, "");
    object_session_set_family(T.session, family);
    return 0;
}

static inline int teardown(void **state)
{
    (void)state;
    node_close(&T, store_abandon);
    node_gone(&T);
    return 0;
}

/* Killed and started again, with these system calls; the mount makes another session. */
static inline void kill_node_with(const struct sys *calls)
{
    node_close(&T, store_abandon); /* its threads look at `sys` */
    sys = calls;
    node_open(&T);
    object_session_set_family(T.session, family);
}

static inline void kill_node(void)
{
    kill_node_with(sys);
}

static inline char *path_of(const char *key)
{
    return arena_printf(T.arena, "%s/%s", T.origin, key);
}

static inline void put(const char *key, const char *text)
{
    int fd = open(path_of(key), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    assert_true(fd >= 0);
    assert_int_equal(sys_pwrite_all(fd, text, strlen(text), 0), 0);
    assert_int_equal(close(fd), 0);
}

static inline bool has(const char *key, const char *text)
{
    char got[64] = {0};
    int fd = open(path_of(key), O_RDONLY);
    if (fd < 0)
        return text == NULL;
    ssize_t n = read(fd, got, sizeof(got) - 1);
    assert_int_equal(close(fd), 0);
    return text && n >= 0 && strcmp(got, text) == 0;
}

static inline bool is_there(const char *key)
{
    return access(path_of(key), F_OK) == 0;
}

static inline int stat_in(struct arena *a, const char *key, struct wire_attr *ret)
{
    struct wire_stat_req req = {
        .bucket = SLICE_LIT("data"), .key = slice_str(key), .flags = WIRE_POSIX | WIRE_FRESH};
    struct wire_stat_rep rep;
    int r = object_stat(T.session, &req, a, &rep, NULL);
    if (r == 0)
        *ret = rep.attr;
    return r;
}

static inline int do_stat(const char *key, struct wire_attr *ret)
{
    return stat_in(T.arena, key, ret);
}

static inline uint64_t bucket_id(void)
{
    struct wire_bucket_get_req req = {.name = SLICE_LIT("data")};
    struct wire_bucket_get_rep rep;
    assert_int_equal(object_bucket_get(T.session, &req, T.arena, &rep, NULL), 0);
    return rep.id;
}

static inline void leave_record(uint64_t number, const struct intent_record *x)
{
    uint8_t k[18] = {'i', '/'};
    memcpy(k + 2, family, sizeof(family));
    for (unsigned i = 0; i < 8; i++)
        k[10 + i] = (uint8_t)(number >> (8 * (7 - i)));
    _cleanup_buf_ struct buf b = BUF_INIT(INTENT_RECORD_MAX_BYTES);
    assert_int_equal(intent_encode(x, &b), 0);
    _cleanup_(kv_txn_freep) struct kv_txn *t = kv_txn_new(T.kv);
    kv_txn_put_plain(t, slice_of(k, sizeof(k)), buf_view(&b));
    assert_int_equal(kv_txn_commit(t, KV_VISIBLE, NULL), 0);
}

/* What the node has noted before it was killed, of the object `of` as it is now (NULL: of none). */
static inline void leave(enum intent_kind kind, enum intent_state state, bool is_tree, const char *key,
                         const char *to, const char *of)
{
    struct intent_record x = {.kind = kind,
                              .state = state,
                              .is_tree = is_tree,
                              .bucket_id = bucket_id(),
                              .key = slice_str(key),
                              .to = slice_str(to)};
    struct wire_attr attr = {0};
    if (of) {
        assert_int_equal(do_stat(of, &attr), 0);
        x.etag = attr.etag;
        x.size_bytes = attr.size_bytes;
        x.mtime_ns = attr.mtime_ns;
    }
    leave_record(NUMBER, &x);
}

static inline size_t n_records(void)
{
    _cleanup_(kv_iter_freep) struct kv_iter *it = kv_iter_new(T.kv, SLICE_LIT("i/"), SLICE_LIT("i0"));
    struct slice key, value;
    size_t n = 0;
    while (kv_iter_next(it, &key, &value, NULL) == 0)
        n++;
    return n;
}

static inline int unlink_in(struct arena *a, uint64_t number, const char *key)
{
    struct wire_remove_req req = {
        .request_id = number, .bucket = SLICE_LIT("data"), .key = slice_str(key), .flags = WIRE_POSIX};
    struct wire_remove_rep rep;
    return object_remove(T.session, &req, a, &rep, NULL);
}

static inline int do_unlink(uint64_t number, const char *key)
{
    return unlink_in(T.arena, number, key);
}

static inline int do_mkdir(uint64_t number, const char *key)
{
    struct wire_mkdir_req req = {.request_id = number, .bucket = SLICE_LIT("data"), .key = slice_str(key)};
    struct wire_mkdir_rep rep;
    int r = object_mkdir(T.session, &req, T.arena, &rep, NULL);
    assert_true(r < 0 || rep.attr.kind == WIRE_DIRECTORY);
    return r;
}

static inline int do_rmdir(uint64_t number, const char *key)
{
    struct wire_rmdir_req req = {.request_id = number, .bucket = SLICE_LIT("data"), .key = slice_str(key)};
    struct wire_rmdir_rep rep;
    return object_rmdir(T.session, &req, T.arena, &rep, NULL);
}

static inline int do_rename(uint64_t number, const char *from, const char *to, uint32_t flags)
{
    struct wire_copy_req req = {.request_id = number,
                                .bucket = SLICE_LIT("data"),
                                .from = slice_str(from),
                                .to = slice_str(to),
                                .flags = WIRE_MOVE | WIRE_POSIX | flags};
    struct wire_copy_rep rep;
    return object_copy(T.session, &req, T.arena, &rep, NULL);
}

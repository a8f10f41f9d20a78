/* What tests of the object layer share that end a node and start it again: a service over a real store, with
 * an origin that is a directory and a control store that outlives it. */
#pragma once

#include "object/object_internal.h"
#include "support/tmpdir.h"

#include <setjmp.h>
#include <stdarg.h>
#include <sys/stat.h>

#include <cmocka.h>

static struct {
    char *dir, *origin, *disk;
    struct kv *kv;
    struct store *store;
    struct budget *budget;
    struct object_service *service;
    struct object_session *session;
    struct arena *arena;
} T;

static inline void open_node(void)
{
    struct err e = {0};
    struct store_disk_config disk = {.path = T.disk, .size_bytes = 64 * MIB};
    struct store_config sc = {
        .disks = &disk, .n_disks = 1, .memory_bytes = 32 * MIB, .flush_interval_ms = 3600000};
    if (store_open(&sc, &T.store, &e) < 0)
        fail_msg("%s", e.text);
    struct object_config oc = {.control = T.kv, .store = T.store, .budget = T.budget};
    if (object_service_open(&oc, &T.service, &e) < 0)
        fail_msg("%s", e.text);
    T.session = object_session_new(T.service, WIRE_VIA_API);
}

/* close_store: store_close, or store_abandon, as kill -9 does. */
static inline void end_node(void (*close_store)(struct store *))
{
    object_session_free(T.session);
    object_service_close(T.service);
    close_store(T.store);
    T.session = NULL;
    T.service = NULL;
    T.store = NULL;
}

/* Everything but the node. */
static inline void begin_around(void)
{
    T.dir = tmpdir_new();
    T.origin = tmpdir_path(T.dir, "origin");
    T.disk = tmpdir_path(T.dir, "disk");
    assert_int_equal(mkdir(T.origin, 0755), 0);
    T.arena = arena_new(64 * MIB);
    T.budget = budget_new(256 * MIB);
    assert_int_equal(kv_open_memory(&T.kv), 0);
}

static inline void end_around(void)
{
    kv_close(T.kv);
    budget_free(T.budget);
    arena_free(T.arena);
    tmpdir_free(T.dir);
    free(T.origin);
    free(T.disk);
}

/* "data", with the directory as its origin. */
static inline void create_bucket(const char *settings)
{
    struct err e = {0};
    char *text = arena_printf(T.arena, "origin=file://%s\n%s", T.origin, settings);
    struct wire_bucket_create_req req = {.name = SLICE_LIT("data"), .settings = slice_str(text)};
    struct wire_bucket_create_rep rep;
    if (object_bucket_create(T.session, &req, T.arena, &rep, &e) < 0)
        fail_msg("%s", e.text);
}

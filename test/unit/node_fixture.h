/* What tests of a node's layers stand on: a service over a real store of one disk, an origin that is a
 * directory, and a control store that outlives the service, which may be ended and opened again. */
#pragma once

#include "object/object.h"
#include "store_fixture.h"
#include "support/tmpdir.h"

#include <sys/stat.h>

struct fixture {
    char *dir, *origin, *disk;
    enum object_route route;
    struct kv *kv; /* the control store */
    struct store *store;
    struct budget *budget;
    struct object_service *service;
    struct object_session *session;
    struct arena *arena;
    struct jobs *jobs; /* where a test has them */
    unsigned dirty_max_percent;
    bool is_staged; /* puts are of files that are written through a descriptor, as by a mount */
};

static inline void node_open(struct fixture *f)
{
    struct err e = {0};
    f->store = store_of(f->disk, 64 * MIB);
    struct object_config oc = {.control = f->kv,
                               .store = f->store,
                               .budget = f->budget,
                               .dirty_max_percent = f->dirty_max_percent,
                               .route = f->route};
    if (object_service_open(&oc, &f->service, &e) < 0)
        fail_msg("%s", e.text);
    f->session = object_session_new(f->service, WIRE_VIA_API);
}

/* close_store: store_close, or store_abandon, as kill -9 does. */
static inline void node_close(struct fixture *f, void (*close_store)(struct store *))
{
    object_session_free(f->session);
    object_service_close(f->service);
    close_store(f->store);
    f->session = NULL;
    f->service = NULL;
    f->store = NULL;
}

/* Everything but the node. The control store is in memory where the test has none of its own. */
static inline void node_around(struct fixture *f)
{
    f->dir = tmpdir_new();
    f->origin = tmpdir_path(f->dir, "origin");
    f->disk = tmpdir_path(f->dir, "disk");
    assert_int_equal(mkdir(f->origin, 0755), 0);
    f->arena = arena_new(64 * MIB);
    f->budget = budget_new(256 * MIB);
    if (!f->kv)
        assert_int_equal(kv_open_memory(&f->kv), 0);
}

static inline void node_gone(struct fixture *f)
{
    kv_close(f->kv);
    budget_free(f->budget);
    arena_free(f->arena);
    tmpdir_free(f->dir);
    free(f->origin);
    free(f->disk);
    *f = (struct fixture){0};
}

/* "data", with the directory as its origin. */
static inline void node_bucket(struct fixture *f, const char *settings)
{
    struct err e = {0};
    char *text = arena_printf(f->arena, "origin=file://%s\n%s", f->origin, settings);
    struct wire_bucket_create_req req = {.name = SLICE_LIT("data"), .settings = slice_str(text)};
    struct wire_bucket_create_rep rep;
    if (object_bucket_create(f->session, &req, f->arena, &rep, &e) < 0)
        fail_msg("%s", e.text);
}

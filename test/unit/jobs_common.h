/* Jobs over a real store and an origin that is a directory; the control store outlives the service. */
#pragma once

#include "base/sys.h"
#include "jobs/job.h"
#include "jobs/jobs.h"
#include "node_fixture.h"

#include <fcntl.h>
#include <jansson.h>
#include <stdatomic.h>
#include <unistd.h>

static inline void open_node(struct fixture *f)
{
    struct err e = {0};
    node_open(f);
    if (jobs_open(f->service, f->kv, NULL, &f->jobs, &e) < 0)
        fail_msg("%s", e.text);
}

static inline void close_node(struct fixture *f)
{
    jobs_close(f->jobs);
    node_close(f, store_close);
}

static inline int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    assert_non_null(f);
    node_around(f);
    open_node(f);
    node_bucket(f, "retry=0s\n");
    *state = f;
    return 0;
}

static inline int teardown(void **state)
{
    struct fixture *f = *state;
    close_node(f);
    node_gone(f);
    free(f);
    return 0;
}

static inline void write_objects(struct fixture *f, int n, size_t size)
{
    char *p = calloc(1, size);
    for (int i = 0; i < n; i++) {
        char *path = arena_printf(f->arena, "%s/k%03d", f->origin, i);
        int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
        assert_true(fd >= 0);
        assert_int_equal(sys_pwrite_all(fd, p, size, 0), 0);
        (void)close(fd);
    }
    free(p);
}

static inline void put_object(struct fixture *f, struct arena *a, const char *bucket, const char *key,
                              const char *text)
{
    struct wire_put_open_req open = {
        .bucket = slice_str(bucket), .key = slice_str(key), .size = strlen(text), .via = WIRE_VIA_API};
    struct wire_put_open_rep o;
    assert_int_equal(object_put_open(f->session, &open, a, &o, NULL), 0);
    struct wire_put_write_req write = {.handle = o.handle, .data = slice_str(text)};
    struct wire_put_write_rep written;
    assert_int_equal(object_put_write(f->session, &write, a, &written, NULL), 0);
    struct wire_put_commit_req commit = {.handle = o.handle, .size = strlen(text)};
    struct wire_put_commit_rep done;
    assert_int_equal(object_put_commit(f->session, &commit, a, &done, NULL), 0);
}

static inline int start_to(struct fixture *f, const char *kind, const char *target, const char *spec,
                           uint64_t *ret_id)
{
    struct wire_job_start_req req = {.kind = slice_str(kind),
                                     .source = SLICE_LIT("data/"),
                                     .target = slice_str(target),
                                     .spec = slice_str(spec)};
    struct wire_job_start_rep rep;
    int r = object_job_start(f->session, &req, f->arena, &rep, NULL);
    if (r == 0)
        *ret_id = rep.id;
    return r;
}

static inline int start(struct fixture *f, const char *kind, const char *spec, uint64_t *ret_id)
{
    return start_to(f, kind, NULL, spec, ret_id);
}

static inline int change(struct fixture *f, uint64_t id, const char *action)
{
    struct wire_job_change_req req = {.id = id, .action = slice_str(action)};
    struct wire_job_change_rep rep;
    return object_job_change(f->session, &req, f->arena, &rep, NULL);
}

/* Brings keys, a line each, to a job that is listed. */
static inline int list_keys(struct fixture *f, uint64_t id, const char *keys)
{
    struct wire_job_keys_req req = {.id = id, .keys = slice_str(keys)};
    struct wire_job_keys_rep rep;
    return object_job_keys(f->session, &req, f->arena, &rep, NULL);
}

static inline json_t *get(struct fixture *f, uint64_t id)
{
    struct wire_job_get_req req = {.id = id};
    struct wire_job_get_rep rep;
    assert_int_equal(object_job_get(f->session, &req, f->arena, &rep, NULL), 0);
    json_t *o = json_loadb(rep.json.p, rep.json.n, 0, NULL);
    assert_non_null(o);
    return o;
}

static inline long long number(struct fixture *f, uint64_t id, const char *name)
{
    json_t *o = get(f, id);
    long long v = json_integer_value(json_object_get(o, name));
    json_decref(o);
    return v;
}

static inline bool is_in(struct fixture *f, uint64_t id, const char *state)
{
    json_t *o = get(f, id);
    bool is = strcmp(json_string_value(json_object_get(o, "state")), state) == 0;
    json_decref(o);
    return is;
}

static inline void wait_for(struct fixture *f, uint64_t id, const char *state)
{
    for (int i = 0; i < 24000 && !is_in(f, id, state); i++)
        sys->sleep_ns(5000000);
    assert_true(is_in(f, id, state));
}

static inline void add_bucket(struct fixture *f, const char *name, const char *settings)
{
    struct wire_bucket_create_req req = {.name = slice_str(name), .settings = slice_str(settings)};
    struct wire_bucket_create_rep rep;
    struct err e = {0};
    if (object_bucket_create(f->session, &req, f->arena, &rep, &e) < 0)
        fail_msg("%s", e.text);
}

/* A directory below the fixture's, and a bucket of this name over it; its path. */
static inline const char *add_mirror(struct fixture *f, const char *name, const char *below)
{
    const char *path = arena_printf(f->arena, "%s/%s", f->dir, below);
    assert_int_equal(mkdir(path, 0755), 0);
    add_bucket(f, name, arena_printf(f->arena, "origin=file://%s\nretry=0s\n", path));
    return path;
}

static inline void put_file(struct fixture *f, const char *dir, const char *name, const char *text)
{
    int fd = open(arena_printf(f->arena, "%s/%s", dir, name), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    assert_true(fd >= 0);
    assert_int_equal(sys_pwrite_all(fd, text, strlen(text), 0), 0);
    (void)close(fd);
}

static inline bool is_there(struct fixture *f, const char *dir, const char *name)
{
    return access(arena_printf(f->arena, "%s/%s", dir, name), F_OK) == 0;
}

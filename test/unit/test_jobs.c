/* layer: jobs */
/* threaded */
#include "jobs_common.h"

#include "base/metrics.h"
#include "jobs/ends.h"

#include <dlfcn.h>
#include <unistd.h>

static _Atomic int n_refused; /* so many of the next threads are not to be had */

__attribute__((visibility("default"))) int pthread_create(pthread_t *ret, const pthread_attr_t *attr,
                                                          void *(*fn)(void *), void *arg)
{
    int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    *(void **)&real = dlsym(RTLD_NEXT, "pthread_create");
    if (atomic_load(&n_refused) == 0)
        return real(ret, attr, fn, arg);
    atomic_fetch_sub(&n_refused, 1);
    return EAGAIN;
}

/* A prefetch does every object once, and a second one finds nothing to do. */
static void test_prefetch_settles_everything(void **state)
{
    struct fixture *f = *state;
    uint64_t id = 0;
    write_objects(f, 50, 3000);
    assert_int_equal(start(f, "prefetch", "", &id), 0);
    wait_for(f, id, "done");
    assert_int_equal(number(f, id, "done_objects"), 50);
    assert_int_equal(number(f, id, "done_bytes"), 150000);
    assert_int_equal(number(f, id, "total_objects"), 50);
    assert_int_equal(start(f, "prefetch", "", &id), 0);
    wait_for(f, id, "done");
    assert_int_equal(number(f, id, "skipped_objects"), 50);
    assert_int_equal(start(f, "evict", "", &id), 0);
    wait_for(f, id, "done");
    assert_int_equal(number(f, id, "done_objects"), 50);
}

/* A node that closes in the middle of a job, and opens again, goes on: counts are exact in the end. (Without
 * the cursor in run.c, open_source, objects are counted twice.) */
static void test_reopened_jobs_go_on(void **state)
{
    struct fixture *f = *state;
    uint64_t id = 0;
    write_objects(f, 60, 10000);
    assert_int_equal(start(f, "prefetch", "rate=400000\nparallel=2\n", &id), 0);
    for (int round = 0; round < 3; round++) {
        sys->sleep_ns(100000000);
        close_node(f);
        open_node(f);
    }
    wait_for(f, id, "done");
    assert_int_equal(number(f, id, "done_objects"), 60);
    assert_int_equal(number(f, id, "done_bytes"), 600000);
    assert_int_equal(number(f, id, "failed_objects"), 0);
}

/* More jobs than may run at once are all done in the end; numbers are not given twice, also after rm. */
static void test_jobs_queue(void **state)
{
    struct fixture *f = *state;
    uint64_t ids[3 * JOBS_RUNNING_MAX] = {0};
    write_objects(f, 5, 100);
    for (size_t i = 0; i < ARRAY_SIZE(ids); i++) {
        assert_int_equal(start(f, "prefetch", "parallel=2\n", &ids[i]), 0);
        assert_int_equal(ids[i], i + 1);
    }
    for (size_t i = 0; i < ARRAY_SIZE(ids); i++)
        wait_for(f, ids[i], "done");
    uint64_t last = ids[ARRAY_SIZE(ids) - 1], id = 0;
    int r = -EBUSY;
    for (int i = 0; i < 60000 && r == -EBUSY; i++) {
        r = change(f, last, "rm");
        sys->sleep_ns(1000000);
    }
    assert_int_equal(r, 0);
    assert_int_equal(change(f, last, "rm"), -ENOENT);
    assert_int_equal(start(f, "prefetch", "", &id), 0);
    assert_int_equal(id, last + 1);
    wait_for(f, id, "done");
}

/* A job for which there was no thread begins when there is one, although no other job ends or is made. (Seen
 * to wait for ever without chore_call in jobs_kick_locked.) */
static void test_a_job_waits_for_a_thread(void **state)
{
    struct fixture *f = *state;
    uint64_t id = 0;
    write_objects(f, 5, 100);
    atomic_store(&n_refused, 2);
    assert_int_equal(start(f, "prefetch", "", &id), 0);
    wait_for(f, id, "done");
    assert_int_equal(atomic_load(&n_refused), 0);
    assert_int_equal(number(f, id, "done_objects"), 5);
}

/* A pause keeps its place over a restart, and only resume ends it. */
static void test_pause_outlives_a_restart(void **state)
{
    struct fixture *f = *state;
    uint64_t id = 0;
    write_objects(f, 40, 10000);
    assert_int_equal(start(f, "prefetch", "rate=100\nparallel=1\n", &id), 0);
    assert_int_equal(change(f, id, "pause"), 0);
    close_node(f);
    open_node(f);
    assert_true(is_in(f, id, "paused"));
    assert_int_equal(change(f, id, "retry"), -EINVAL);
    assert_int_equal(change(f, id, "resume"), 0);
    assert_int_equal(change(f, id, "cancel"), 0);
    assert_true(is_in(f, id, "cancelled"));
    assert_int_equal(change(f, id, "resume"), -EINVAL);
}

/* ---- between buckets ---- */

/* sync --delete chooses what to remove by its name in the source, so that what is excluded stays, and refuses
 * prefixes that also begin the names of others. (Without sweep_wanted in run.c keep-1 goes.) */
static void test_sync_removes_only_what_it_is_about(void **state)
{
    struct fixture *f = *state;
    uint64_t id = 0;
    write_objects(f, 3, 100);
    const char *back = add_mirror(f, "back", "back");
    assert_int_equal(mkdir(arena_printf(f->arena, "%s/to", back), 0755), 0);
    put_file(f, back, "to/keep-1", "x");
    put_file(f, back, "to/gone", "x");
    put_file(f, back, "tower", "x");
    assert_int_equal(start_to(f, "sync", "back/to", "delete=true\n", &id), ERR_BAD_OPTION);
    assert_int_equal(start_to(f, "sync", "back/to/", "exclude=keep-*\ndelete=true\n", &id), 0);
    wait_for(f, id, "done");
    assert_int_equal(number(f, id, "removed_objects"), 1);
    assert_true(is_there(f, back, "to/k002") && is_there(f, back, "to/keep-1") && is_there(f, back, "tower"));
    assert_false(is_there(f, back, "to/gone"));
}

/* sync --delete removes nothing as long as something of the source has failed to arrive; a retry that brings
 * the rest removes then. (Without the look at failed_objects in next_phase the first run removes.) */
static void test_failed_syncs_remove_nothing(void **state)
{
    struct fixture *f = *state;
    uint64_t id = 0;
    write_objects(f, 3, 100);
    const char *back = add_mirror(f, "back", "back");
    const char *in_the_way = arena_printf(f->arena, "%s/to/k001", back);
    assert_int_equal(mkdir(arena_printf(f->arena, "%s/to", back), 0755), 0);
    assert_int_equal(mkdir(in_the_way, 0755), 0);
    put_file(f, back, "to/k001/inner", "x");
    put_file(f, back, "to/gone", "x");
    assert_int_equal(start_to(f, "sync", "back/to/", "delete=true\n", &id), 0);
    wait_for(f, id, "partly failed");
    assert_int_equal(number(f, id, "failed_objects"), 1);
    assert_int_equal(number(f, id, "removed_objects"), 0);
    assert_true(is_there(f, back, "to/gone") && is_there(f, back, "to/k001/inner"));
    assert_int_equal(unlink(arena_printf(f->arena, "%s/inner", in_the_way)), 0);
    assert_int_equal(rmdir(in_the_way), 0);
    assert_int_equal(change(f, id, "retry"), 0);
    wait_for(f, id, "done");
    assert_int_equal(number(f, id, "removed_objects"), 1);
    assert_false(is_there(f, back, "to/gone"));
    assert_true(is_there(f, back, "to/k001"));
}

/* The folder whose contents are copied to the top of another bucket is nothing that fails, where it is listed
 * itself. */
static void test_a_folder_goes_to_the_top(void **state)
{
    struct fixture *f = *state;
    struct wire_job_start_rep rep;
    const char *top = add_mirror(f, "top", "top");
    assert_int_equal(mkdir(arena_printf(f->arena, "%s/d", f->origin), 0755), 0);
    put_file(f, f->origin, "d/x", "x");
    struct wire_job_start_req req = {
        .kind = SLICE_LIT("sync"), .source = SLICE_LIT("data/d/"), .target = SLICE_LIT("top")};
    assert_int_equal(object_job_start(f->session, &req, f->arena, &rep, NULL), 0);
    wait_for(f, rep.id, "done");
    assert_true(is_there(f, top, "x"));
}

/* Two buckets whose origins lie in one another overlap, as two prefixes of one bucket do: a copy would never
 * end, and sync --delete would remove its own source. Names that only begin alike do not. */
static void test_windows_on_one_origin_overlap(void **state)
{
    struct fixture *f = *state;
    uint64_t id = 0;
    write_objects(f, 2, 100);
    (void)add_mirror(f, "data2", "other");
    assert_int_equal(start_to(f, "copy", "data2", "", &id), 0);
    wait_for(f, id, "done");
    (void)add_mirror(f, "part", "origin/sub");
    assert_int_equal(start_to(f, "copy", "part/", "", &id), ERR_BAD_OPTION);
    assert_int_equal(start_to(f, "copy", "data/to/", "", &id), ERR_BAD_OPTION);
}

/* Places of one name in two accounts, or at two services, do not overlap; an account that is not said may be
 * any. (Without the look at origin.account a container cannot be copied into that of another account.) */
static void test_places_that_overlap(void **state)
{
    (void)state;
    static const struct {
        const char *x, *x_prefix, *y, *y_prefix;
        bool overlap;
    } rows[] = {
        {"origin=az://data\norigin.account=one\n", "", "origin=az://data\norigin.account=two\n", "", false},
        {"origin=az://data\norigin.account=one\n", "", "origin=az://data\norigin.account=one\n", "a/", true},
        {"origin=az://data\norigin.account=one\n", "", "origin=az://data\n", "", true},
        {"origin=s3://data\norigin.endpoint=http://a\n", "", "origin=s3://data\norigin.endpoint=http://b\n",
         "", false},
        {"origin=s3://data\norigin.endpoint=http://a\norigin.endpoint=http://b\n", "",
         "origin=s3://data\norigin.endpoint=http://b\n", "", true},
        {"origin=s3://data\n", "a/", "origin=s3://data/a\n", "b/", true},
        {"origin=s3://data\n", "a/", "origin=s3://data/b\n", "", false},
        {"origin=s3://data/\n", "", "origin=s3://database\n", "", false},
        {"write=back\n", "", "origin=s3://data\n", "", false},
        {"origin=s3://data\norigin.endpoint=http://h:9000\n", "",
         "origin=s3://data\norigin.endpoint=HTTP://H:9000/\n", "a/", true},
        {"origin=s3://data\norigin.endpoint=https://h:443\n", "",
         "origin=s3://data\norigin.endpoint=https://h\n", "", true},
        {"origin=s3://data\norigin.endpoint=http://h/a\n", "",
         "origin=s3://data\norigin.endpoint=http://h/A\n", "", false},
        {"origin=s3://data\n", "", "origin=s3://Data\n", "", false},
        {"origin=hdfs://NN:9870/x\n", "", "origin=hdfs://nn:9870/x/y\n", "", true},
        {"origin=nfs://nas:2049/x\n", "", "origin=nfs://NAS/x\n", "y/", true},
        {"origin=nfs://nas/x\n", "", "origin=nfs://nas/X\n", "", false},
        {"origin=file:///\n", "", "origin=file:///tmp\n", "", true},
        {"origin=file:///tmp/.\n", "", "origin=file:///tmp//\n", "a/", true},
        {"origin=file:///proc/self/cwd\n", "", "origin=file:///proc/self/../self/cwd/\n", "", true},
    };
    struct arena *a = arena_new(64 * KIB);
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        struct ends_place x = {slice_str(rows[i].x), slice_str(rows[i].x_prefix)};
        struct ends_place y = {slice_str(rows[i].y), slice_str(rows[i].y_prefix)};
        assert_int_equal(ends_overlap(&x, &y, a), rows[i].overlap);
        assert_int_equal(ends_overlap(&y, &x, a), rows[i].overlap);
    }
    arena_free(a);
}

/* Two objects that an export would give one name do not replace each other: one fails. (Without check_alone
 * in kind_copy.c both are told as done.) */
static void test_exports_do_not_replace_each_other(void **state)
{
    struct fixture *f = *state;
    char found[8] = "";
    struct wire_job_start_rep rep;
    const char *out = arena_printf(f->arena, "%s/out", f->dir);
    const char *dirs[] = {"run", "run/1", "run1"};
    assert_int_equal(mkdir(out, 0755), 0);
    for (size_t i = 0; i < ARRAY_SIZE(dirs); i++)
        assert_int_equal(mkdir(arena_printf(f->arena, "%s/%s", f->origin, dirs[i]), 0755), 0);
    put_file(f, f->origin, "run/1/x", "slash");
    put_file(f, f->origin, "run1/x", "plain");
    struct wire_job_start_req req = {.kind = SLICE_LIT("export"),
                                     .source = SLICE_LIT("data/run"),
                                     .target = slice_str(arena_printf(f->arena, "file://%s", out))};
    assert_int_equal(object_job_start(f->session, &req, f->arena, &rep, NULL), 0);
    wait_for(f, rep.id, "partly failed");
    assert_int_equal(number(f, rep.id, "done_objects"), 1);
    int fd = open(arena_printf(f->arena, "%s/1/x", out), O_RDONLY);
    assert_true(fd >= 0);
    assert_int_equal(read(fd, found, sizeof(found) - 1), 5);
    (void)close(fd);
    assert_string_equal(found, "plain");
}

/* What is copied into a bucket without origin is read back for comparison, unless only sizes are to be
 * compared: its ETag would be a sum of the memory that was written, not of what is in the file. */
static void test_scratch_targets_are_read_back(void **state)
{
    struct fixture *f = *state;
    uint64_t id = 0;
    write_objects(f, 5, 3000);
    add_bucket(f, "own", "");
    struct metric_series *read = metrics_series(METRIC_READ_BYTES, "own", "api", "cache");
    static const char *const specs[] = {"", "verify=read\n", "verify=size\n"};
    for (size_t i = 0; i < ARRAY_SIZE(specs); i++) {
        const char *to = arena_printf(f->arena, "own/%zu/", i);
        uint64_t before = metrics_value(read);
        assert_int_equal(start_to(f, "copy", to, specs[i], &id), 0);
        wait_for(f, id, "done");
        assert_int_equal(number(f, id, "done_objects"), 5);
        assert_int_equal(number(f, id, "skipped_objects"), 0);
        assert_int_equal(metrics_value(read) - before, strstr(specs[i], "size") ? 0 : 15000);
    }
}

/* What works on the cache is refused for a bucket that has none, with the reason, before there is a job. */
static void test_cache_jobs_of_scratch_buckets_are_refused(void **state)
{
    struct fixture *f = *state;
    static const char *const kinds[] = {"prefetch", "evict", "validate"};
    add_bucket(f, "own", "");
    for (size_t i = 0; i < ARRAY_SIZE(kinds); i++) {
        struct wire_job_start_req req = {.kind = slice_str(kinds[i]), .source = SLICE_LIT("own/")};
        struct wire_job_start_rep rep;
        struct err e = {0};
        assert_int_equal(object_job_start(f->session, &req, f->arena, &rep, &e), ERR_BAD_OPTION);
        assert_non_null(strstr(e.text, "is a scratch bucket"));
    }
}

/* A job over keys that are no UTF-8 is shown and listed as any other, and its errors have their reasons. */
static void test_names_of_any_bytes_are_shown(void **state)
{
    struct fixture *f = *state;
    struct wire_job_start_req req = {.kind = SLICE_LIT("prefetch"), .source = SLICE_LIT("data/caf\xe9/")};
    struct wire_job_start_rep started;
    struct wire_job_get_req get_req;
    struct wire_job_get_rep got;
    struct wire_job_list_req list_req = {0};
    struct wire_job_list_rep list;
    assert_int_equal(object_job_start(f->session, &req, f->arena, &started, NULL), 0);
    get_req = (struct wire_job_get_req){.id = started.id};
    assert_int_equal(object_job_get(f->session, &get_req, f->arena, &got, NULL), 0);
    assert_true(slice_find_slice(got.json, SLICE_LIT("data/caf")) >= 0);
    assert_int_equal(object_job_list(f->session, &list_req, f->arena, &list, NULL), 0);
    assert_true(slice_find_slice(list.json, SLICE_LIT("data/caf")) >= 0);
    wait_for(f, started.id, "done");
}

/* An object of a list that the origin refuses to tell the size of fails as any other object that fails, and
 * the job goes on; a retry finds out whether it was chosen at all. One that is not there fails, too, as it
 * does without filters. (With the error given up by named_page in source.c the job fails as a whole, however
 * often it is resumed; with -ENOENT taken for "not chosen" in source.c or run.c nobody hears of `absent`.) */
static void test_a_refused_object_of_a_list_fails_alone(void **state)
{
    struct fixture *f = *state;
    uint64_t id = 0;
    const char *loop = arena_printf(f->arena, "%s/loop", f->origin);
    write_objects(f, 2, 100);
    assert_int_equal(symlink("loop", loop), 0);
    assert_int_equal(start(f, "prefetch", "listed=true\nmin-size=10\n", &id), 0);
    assert_int_equal(list_keys(f, id, "absent\nk000\nloop\nk001\n"), 0);
    assert_int_equal(change(f, id, "listed"), 0);
    wait_for(f, id, "partly failed");
    assert_int_equal(number(f, id, "done_objects"), 2);
    assert_int_equal(number(f, id, "failed_objects"), 2);
    assert_int_equal(unlink(loop), 0);
    put_file(f, f->origin, "loop", "small");
    assert_int_equal(change(f, id, "retry"), 0);
    wait_for(f, id, "partly failed");
    assert_int_equal(number(f, id, "failed_objects"), 1);
    put_file(f, f->origin, "absent", "large enough");
    assert_int_equal(change(f, id, "retry"), 0);
    wait_for(f, id, "done");
    assert_int_equal(number(f, id, "failed_objects"), 0);
    assert_int_equal(number(f, id, "skipped_objects"), 1);
}

/* A retry asks the origin for what was not there, however long the bucket believes that: of each kind of
 * work. (Without the question in work_on of run.c all three fail again.) */
static void test_a_retry_asks_for_what_was_missing(void **state)
{
    struct fixture *f = *state;
    static const char *const specs[] = {"", "metadata-only=true\n"};
    add_bucket(f, "own", "");
    write_objects(f, 1, 100);
    struct wire_bucket_set_req set = {.name = SLICE_LIT("data"), .settings = SLICE_LIT("validate=ttl:1h\n")};
    struct wire_bucket_set_rep was_set;
    assert_int_equal(object_bucket_set(f->session, &set, f->arena, &was_set, NULL), 0);
    for (unsigned i = 0; i < 3; i++) {
        uint64_t id = 0;
        const char *key = arena_printf(f->arena, "late%u", i);
        const char *spec = arena_printf(f->arena, "listed=true\n%s", i < 2 ? specs[i] : "");
        assert_int_equal(start_to(f, i < 2 ? "prefetch" : "copy", i < 2 ? NULL : "own/", spec, &id), 0);
        assert_int_equal(list_keys(f, id, arena_printf(f->arena, "%s\nk000\n", key)), 0);
        assert_int_equal(change(f, id, "listed"), 0);
        wait_for(f, id, "partly failed");
        assert_int_equal(number(f, id, "failed_objects"), 1);
        put_file(f, f->origin, key, "late");
        assert_int_equal(change(f, id, "retry"), 0);
        wait_for(f, id, "done");
        assert_int_equal(number(f, id, "failed_objects"), 0);
    }
}

/* What an evict's list names and is not cached is counted apart, and so is what is not there at all. (Seen to
 * fail with all of them counted as dropped.) */
static void test_an_evict_tells_what_was_not_cached(void **state)
{
    struct fixture *f = *state;
    uint64_t id = 0;
    write_objects(f, 3, 100);
    assert_int_equal(start(f, "prefetch", "exclude=k001\n", &id), 0);
    wait_for(f, id, "done");
    assert_int_equal(start(f, "evict", "listed=true\n", &id), 0);
    assert_int_equal(list_keys(f, id, "absent\nk000\nk001\nk002\n"), 0);
    assert_int_equal(change(f, id, "listed"), 0);
    wait_for(f, id, "done");
    assert_int_equal(number(f, id, "done_objects"), 4);
    assert_int_equal(number(f, id, "skipped_objects"), 2);
    assert_int_equal(number(f, id, "done_bytes"), 200);
}

/* A retry, whose walk is over the names of what failed, counts the bytes that are here, as the first walk
 * does, and what is here no more apart. (Without is_named in kind.c it counts none of them.) */
static void test_a_retried_evict_counts_what_is_here(void **state)
{
    struct fixture *f = *state;
    uint64_t id = 0;
    struct wire_bucket_set_req set = {.name = SLICE_LIT("data"),
                                      .settings = SLICE_LIT("write=back\nwrite_delay=1h\n")};
    struct wire_bucket_set_req now = {.name = SLICE_LIT("data"), .settings = SLICE_LIT("write=through\n")};
    struct wire_bucket_set_rep done;
    assert_int_equal(object_bucket_set(f->session, &set, f->arena, &done, NULL), 0);
    put_object(f, f->arena, "data", "k", "not sent yet");
    assert_int_equal(start(f, "evict", "", &id), 0);
    wait_for(f, id, "partly failed");
    assert_int_equal(number(f, id, "done_bytes"), 0);
    assert_int_equal(object_bucket_set(f->session, &now, f->arena, &done, NULL), 0);
    for (int i = 0; i < 6000 && !is_there(f, f->origin, "k"); i++)
        sys->sleep_ns(5000000);
    for (int i = 0; i < 6000 && !is_in(f, id, "done"); i++) { /* it may be sent, and not yet known as that */
        (void)change(f, id, "retry");
        sys->sleep_ns(50000000);
    }
    assert_true(is_in(f, id, "done"));
    assert_int_equal(number(f, id, "done_bytes"), 12);
}

struct waiter {
    struct fixture *f;
    uint64_t id;
    struct arena *arena;
    int result;
    uint32_t final;
};

static void *wait_in_node(void *arg)
{
    struct waiter *w = arg;
    struct wire_job_wait_req req = {.id = w->id, .timeout_ms = 60000};
    struct wire_job_wait_rep rep = {0};
    do /* the node answers after a second at the latest */
        w->result = object_job_wait(w->f->session, &req, w->arena, &rep, NULL);
    while (w->result == 0 && !rep.final);
    w->final = rep.final;
    return NULL;
}

static int ask_waiting(struct fixture *f, uint64_t id, uint32_t timeout_ms, uint32_t *ret_final)
{
    struct wire_job_wait_req req = {.id = id, .timeout_ms = timeout_ms};
    struct wire_job_wait_rep rep = {0};
    int r = object_job_wait(f->session, &req, f->arena, &rep, NULL);
    *ret_final = rep.final;
    return r;
}

/* Sixteen wait for a job, which is cancelled: how long they waited after that, in ms. */
static uint64_t wait_and_cancel(struct fixture *f)
{
    struct waiter w[16];
    pthread_t threads[ARRAY_SIZE(w)];
    uint64_t id = 0;
    assert_int_equal(start(f, "prefetch", "listed=true\n", &id), 0);
    for (size_t i = 0; i < ARRAY_SIZE(w); i++) {
        w[i] = (struct waiter){.f = f, .id = id, .arena = arena_new(MIB)};
        assert_int_equal(pthread_create(&threads[i], NULL, wait_in_node, &w[i]), 0);
    }
    sys->sleep_ns(50000000);
    uint64_t began_ms = sys_mono_ms();
    assert_int_equal(change(f, id, "cancel"), 0);
    for (size_t i = 0; i < ARRAY_SIZE(w); i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(w[i].result, 0);
        assert_int_equal(w[i].final, 1);
        arena_free(w[i].arena);
    }
    return sys_mono_ms() - began_ms;
}

/* Who waits for a job in the node is answered when it has ended, and after the timeout when it has not; a job
 * that is not there is none. (Without the broadcast in op_change all rounds take the rest of a second, which
 * is the most that anybody waits.) */
static void test_who_waits_hears_of_the_end(void **state)
{
    struct fixture *f = *state;
    uint64_t id = 0, ms = UINT64_MAX;
    uint32_t final = 2;
    assert_int_equal(start(f, "prefetch", "listed=true\n", &id), 0); /* paused until it has its list */
    uint64_t began_ms = sys_mono_ms();
    assert_int_equal(ask_waiting(f, id, 300, &final), 0);
    assert_int_equal(final, 0);
    assert_true(sys_mono_ms() - began_ms >= 290);
    assert_int_equal(change(f, id, "cancel"), 0);
    assert_int_equal(ask_waiting(f, id, 60000, &final), 0);
    assert_int_equal(final, 1);
    assert_int_equal(change(f, id, "rm"), 0);
    assert_int_equal(ask_waiting(f, id, 60000, &final), -ENOENT);
    for (int round = 0; round < 10 && ms > 500; round++) /* other rounds: the machine is busy */
        ms = wait_and_cancel(f);
    assert_true(ms <= 500);
}

/* Keys of a list that are brought twice, as by a client that did not hear the answer, are there once, and
 * what comes late is refused. */
static void test_keys_may_come_twice(void **state)
{
    struct fixture *f = *state;
    uint64_t id = 0;
    write_objects(f, 3, 100);
    assert_int_equal(start(f, "prefetch", "listed=true\n", &id), 0);
    for (int i = 0; i < 2; i++)
        assert_int_equal(list_keys(f, id, "k000\nk001\n"), 0);
    assert_int_equal(change(f, id, "listed"), 0);
    assert_int_equal(change(f, id, "listed"), 0); /* nor did it hear that */
    wait_for(f, id, "done");
    assert_int_equal(list_keys(f, id, "k000\nk001\n"), -EINVAL);
    assert_int_equal(number(f, id, "total_objects"), 2);
    assert_int_equal(number(f, id, "done_objects"), 2);
}

/* A job whose list has not come whole, because the command that sent it was killed, says so and cannot be
 * made to go on with what has come, which would end as done; not after a restart of the node either. Nor does
 * one that was paused in its work take further keys, which would be behind its cursor. (Without list_comes in
 * the record, or the look at it in op_change, it ends as done.) */
static void test_a_list_that_did_not_come_whole(void **state)
{
    struct fixture *f = *state;
    uint64_t id = 0;
    write_objects(f, 3, 30000);
    assert_int_equal(start(f, "prefetch", "listed=true\n", &id), 0);
    assert_int_equal(list_keys(f, id, "k000\n"), 0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(change(f, id, "resume"), -EINVAL);
        assert_true(is_in(f, id, "paused"));
        json_t *job = get(f, id);
        assert_string_equal(json_string_value(json_object_get(job, "reason")), "its list has not come whole");
        json_decref(job);
        close_node(f);
        open_node(f);
    }
    assert_int_equal(change(f, id, "cancel"), 0);
    assert_int_equal(change(f, id, "listed"), -EINVAL);

    assert_int_equal(start(f, "prefetch", "listed=true\nrate=100\nparallel=1\n", &id), 0);
    assert_int_equal(list_keys(f, id, "k000\nk001\nk002\n"), 0);
    assert_int_equal(change(f, id, "listed"), 0);
    assert_int_equal(change(f, id, "pause"), 0);
    assert_int_equal(list_keys(f, id, "absent\n"), -EINVAL);
    assert_int_equal(change(f, id, "resume"), 0);
    assert_int_equal(change(f, id, "cancel"), 0);
}

/* evict walks what is cached and what is not in the origin yet as one, over pages that end at other keys:
 * each object once, the unsent ones refused. (Where merge_cached in source.c goes on behind the end of a page
 * that was cut, some are left out.) */
static void test_evict_meets_each_object_once(void **state)
{
    struct fixture *f = *state;
    enum { N = 2300, UNSENT = 1200 };
    uint64_t id = 0;
    write_objects(f, N, 10);
    assert_int_equal(start(f, "prefetch", "", &id), 0);
    wait_for(f, id, "done");
    struct wire_bucket_set_req set = {.name = SLICE_LIT("data"),
                                      .settings = SLICE_LIT("write=back\nwrite_delay=1h\n")};
    struct wire_bucket_set_rep done;
    assert_int_equal(object_bucket_set(f->session, &set, f->arena, &done, NULL), 0);
    struct arena *a = arena_new(MIB);
    for (int i = 0; i < UNSENT; i++) { /* behind every other key, then the same keys as cached ones */
        char key[32];
        (void)snprintf(key, sizeof(key), i < UNSENT / 2 ? "k%03dx" : "k%03d", i);
        arena_clear(a);
        put_object(f, a, "data", key, "not sent yet");
    }
    arena_free(a);
    assert_int_equal(start(f, "evict", "", &id), 0);
    wait_for(f, id, "partly failed");
    assert_int_equal(number(f, id, "failed_objects"), UNSENT);
    assert_int_equal(number(f, id, "done_objects"), N - UNSENT / 2);
    assert_int_equal(number(f, id, "total_objects"), N + UNSENT / 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_prefetch_settles_everything, setup, teardown),
        cmocka_unit_test_setup_teardown(test_reopened_jobs_go_on, setup, teardown),
        cmocka_unit_test_setup_teardown(test_jobs_queue, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_job_waits_for_a_thread, setup, teardown),
        cmocka_unit_test_setup_teardown(test_pause_outlives_a_restart, setup, teardown),
        cmocka_unit_test_setup_teardown(test_sync_removes_only_what_it_is_about, setup, teardown),
        cmocka_unit_test_setup_teardown(test_failed_syncs_remove_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_folder_goes_to_the_top, setup, teardown),
        cmocka_unit_test_setup_teardown(test_windows_on_one_origin_overlap, setup, teardown),
        cmocka_unit_test(test_places_that_overlap),
        cmocka_unit_test_setup_teardown(test_exports_do_not_replace_each_other, setup, teardown),
        cmocka_unit_test_setup_teardown(test_scratch_targets_are_read_back, setup, teardown),
        cmocka_unit_test_setup_teardown(test_cache_jobs_of_scratch_buckets_are_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(test_names_of_any_bytes_are_shown, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_refused_object_of_a_list_fails_alone, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_retry_asks_for_what_was_missing, setup, teardown),
        cmocka_unit_test_setup_teardown(test_an_evict_tells_what_was_not_cached, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_retried_evict_counts_what_is_here, setup, teardown),
        cmocka_unit_test_setup_teardown(test_who_waits_hears_of_the_end, setup, teardown),
        cmocka_unit_test_setup_teardown(test_keys_may_come_twice, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_list_that_did_not_come_whole, setup, teardown),
        cmocka_unit_test_setup_teardown(test_evict_meets_each_object_once, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

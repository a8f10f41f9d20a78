/* layer: jobs */
/* threaded */
/* Jobs whose control store fails: the Nth commit, for every N. */
#include "faulty_kv.h"
#include "jobs/pour.h"
#include "jobs_common.h"
#include "test_store_kv.h"

#include <unistd.h>

static struct faulty store;

/* Puts the faulty store in the place of the fixture's. */
static int setup_faulty(void **state)
{
    int r = setup(state);
    struct fixture *f = *state;
    close_node(f);
    store = (struct faulty){.kv.engine = &faulty_engine, .inner = f->kv};
    f->kv = &store.kv;
    open_node(f);
    return r;
}

static void arm(uint64_t n)
{
    atomic_store(&store.calls, 0);
    atomic_store(&store.fail_at, n);
}

/* Waits until the job stands still. */
static void settle(struct fixture *f, uint64_t id)
{
    for (int i = 0; i < 30000 && (is_in(f, id, "running") || is_in(f, id, "queued")); i++)
        sys->sleep_ns(2000000);
}

/* One job with the Nth commit failing, and what a person does then: open the node again, resume what failed.
 * In the end every object was done and counted once. False when no commit failed any more. */
static bool survives(struct fixture *f, const char *kind, const char *target, uint64_t n)
{
    uint64_t id = 0;
    arm(n);
    int r = start_to(f, kind, target, "parallel=2\n", &id);
    if (r == 0)
        settle(f, id);
    bool hit = atomic_load(&store.calls) >= n;
    arm(0);
    if (r < 0) { /* refused as a whole */
        assert_int_equal(r, -EIO);
        assert_int_equal(start_to(f, kind, target, "parallel=2\n", &id), 0);
    }
    close_node(f);
    open_node(f);
    settle(f, id);
    if (is_in(f, id, "failed"))
        assert_int_equal(change(f, id, "resume"), 0);
    wait_for(f, id, "done");
    assert_int_equal(number(f, id, "done_objects"), 12);
    assert_int_equal(number(f, id, "failed_objects"), 0);
    assert_int_equal(number(f, id, "total_objects"), 12);
    return hit;
}

/* Whichever commit of a job fails, the job is refused, or fails and goes on, and nothing is left out or
 * counted twice. (Without the check of the commit's result in run.c, commit_end_locked, jobs are told as done
 * that a restart does again.) */
static void test_every_commit_may_fail(void **state)
{
    struct fixture *f = *state;
    char *out = tmpdir_path(f->dir, "out");
    assert_int_equal(mkdir(out, 0755), 0);
    char *url = arena_printf(f->arena, "file://%s", out);
    write_objects(f, 12, 2000);
    static const char *const kinds[] = {"prefetch", "evict", "export"};
    for (size_t i = 0; i < ARRAY_SIZE(kinds); i++) {
        const char *target = i == 2 ? url : NULL;
        uint64_t n = 1, id = 0;
        do {
            if (i == 1) { /* something to evict */
                assert_int_equal(start(f, "prefetch", "", &id), 0);
                wait_for(f, id, "done");
            }
        } while (survives(f, kinds[i], target, n++));
        assert_true(n > 3);
    }
    free(out);
}

/* How many objects are listed with a reason. */
static size_t count_errors(struct fixture *f, uint64_t id)
{
    struct wire_job_errors_req req = {.id = id};
    struct wire_job_errors_rep rep;
    assert_int_equal(object_job_errors(f->session, &req, f->arena, &rep, NULL), 0);
    json_t *list = json_loadb(rep.json.p, rep.json.n, 0, NULL);
    size_t n = json_array_size(list);
    json_decref(list);
    return n;
}

/* The error list is committed with the counters: after a failed commit and a resume, it has each failed
 * object once, and a retry empties it. */
static void test_failures_are_listed_once(void **state)
{
    struct fixture *f = *state;
    write_objects(f, 6, 2000);
    for (uint64_t n = 2; n < 5; n++) {
        uint64_t id = 0;
        arm(n);
        assert_int_equal(start(f, "prefetch", "listed=true\n", &id), 0);
        int r = list_keys(f, id, "k000\nnone1\nnone2\n");
        if (r < 0)
            assert_int_equal(list_keys(f, id, "k000\nnone1\nnone2\n"), 0);
        if (change(f, id, "listed") < 0)
            assert_int_equal(change(f, id, "listed"), 0);
        settle(f, id);
        arm(0);
        close_node(f);
        open_node(f);
        settle(f, id);
        if (is_in(f, id, "failed"))
            assert_int_equal(change(f, id, "resume"), 0);
        wait_for(f, id, "partly failed");
        assert_int_equal(count_errors(f, id), 2);
        assert_int_equal(number(f, id, "done_objects"), 1);
        assert_int_equal(number(f, id, "failed_objects"), 2);
    }
}

/* A pause writes the state down and no progress: what failed since the last checkpoint is not passed by
 * without its line in the error list, when the node dies before the job's thread wrote that. (Without
 * jobs_commit_state_locked in op_change the list is empty, and a retry has nothing to do.) */
static void test_a_pause_passes_no_failure_by(void **state)
{
    struct fixture *f = *state;
    uint64_t id = 0;
    write_objects(f, 6, 30000);
    assert_int_equal(start(f, "prefetch", "listed=true\nrate=20000\nparallel=1\n", &id), 0);
    assert_int_equal(list_keys(f, id, "absent\nk000\nk001\nk002\nk003\nk004\nk005\n"), 0);
    assert_int_equal(change(f, id, "listed"), 0);
    for (int i = 0; i < 2000 && number(f, id, "failed_objects") == 0; i++)
        sys->sleep_ns(1000000);
    int r = -EIO;
    for (int i = 0; i < 3 && r == -EIO; i++) { /* a checkpoint that is due may come before it */
        arm(2); /* the pause is written, what the thread writes at its end is not */
        r = change(f, id, "pause");
    }
    assert_int_equal(r, 0);
    close_node(f);
    arm(0);
    open_node(f);
    assert_int_equal(change(f, id, "resume"), 0);
    wait_for(f, id, "partly failed");
    assert_int_equal(count_errors(f, id), 1);
    assert_int_equal(number(f, id, "done_objects"), 6);
    assert_int_equal(number(f, id, "failed_objects"), 1);
}

static uint64_t stopped_ns;

static uint64_t stopped_clock(void)
{
    return stopped_ns;
}

/* What waits for its turn, by the job's rate, does not. */
static void sleep_little(uint64_t ns)
{
    (void)usleep((useconds_t)MIN(ns / 1000, (uint64_t)10));
}

/* How many objects are in the cache. */
static size_t count_cached(struct fixture *f)
{
    struct wire_cached_req req = {.bucket = SLICE_LIT("data"), .max = 100};
    struct wire_cached_rep rep;
    assert_int_equal(object_cached(f->session, &req, f->arena, &rep, NULL), 0);
    return rep.n_entries;
}

/* What a job did and cannot keep is done again: here its bucket was removed, and another of its name is there
 * when it goes on. (Without the roll-back in conclude, run.c, the first object is passed by.) */
static void test_what_cannot_be_kept_is_done_again(void **state)
{
    struct fixture *f = *state;
    struct wire_bucket_remove_req gone = {.name = SLICE_LIT("data")};
    struct wire_bucket_remove_rep removed;
    uint64_t id = 0;
    write_objects(f, 6, 1000);
    write_objects(f, 1, 1);
    const struct sys *real = sys;
    static struct sys still, hasty;
    stopped_ns = sys->mono_ns();
    hasty = still = *sys;
    still.mono_ns = stopped_clock; /* no checkpoint is due */
    hasty.sleep_ns = sleep_little;
    close_node(f); /* its threads look at `sys` */
    sys = &still;
    open_node(f);
    /* The second object waits a quarter of an hour: longer than the slowest machine needs for what follows.
     */
    assert_int_equal(start(f, "prefetch", "rate=1\nparallel=1\n", &id), 0);
    for (int i = 0; i < 60000 && (number(f, id, "done_objects") == 0 || number(f, id, "total_objects") == 0);
         i++)
        sys->sleep_ns(1000000); /* counted, too: what cannot be listed fails the job */
    assert_int_equal(object_bucket_remove(f->session, &gone, f->arena, &removed, NULL), 0);
    /* A walk that had not come to its end has failed by now, which is as good. */
    if (change(f, id, "pause") < 0)
        assert_true(is_in(f, id, "failed"));
    close_node(f);
    sys = &hasty;
    open_node(f);
    assert_int_equal(number(f, id, "done_objects"), 0);
    struct wire_bucket_create_req again = {
        .name = SLICE_LIT("data"),
        .settings = slice_str(arena_printf(f->arena, "origin=file://%s\nretry=0s\n", f->origin))};
    struct wire_bucket_create_rep created;
    assert_int_equal(object_bucket_create(f->session, &again, f->arena, &created, NULL), 0);
    assert_int_equal(change(f, id, "resume"), 0);
    for (int i = 0; i < 60000 && !is_in(f, id, "done"); i++)
        (void)usleep(1000);
    assert_int_equal(number(f, id, "done_objects"), 6);
    assert_int_equal(count_cached(f), 6);
    close_node(f);
    sys = real;
    open_node(f);
}

static void hold_index(struct fixture *f, bool on)
{
    struct disk *d = &f->store->disks[0];
    LOCK_SCOPE(&d->lock);
    d->hold = on;
    cond_broadcast(&d->wake_writer);
}

/* What a job tells as done is done also after kill -9: it is in the index of the disk before. (Without the
 * kind's keep in conclude, run.c, the job is done while the index holds nothing, and the cache is empty after
 * the kill.) */
static void test_done_is_in_the_index(void **state)
{
    struct fixture *f = *state;
    uint64_t id = 0;
    write_objects(f, 6, 30000);
    hold_index(f, true);
    assert_int_equal(start(f, "prefetch", "", &id), 0);
    for (int i = 0; i < 200; i++) { /* it is given time to go wrong */
        assert_false(is_in(f, id, "done"));
        sys->sleep_ns(5000000);
    }
    hold_index(f, false);
    wait_for(f, id, "done");
    jobs_close(f->jobs);
    object_session_free(f->session);
    object_service_close(f->service);
    store_abandon(f->store);
    open_node(f);
    assert_int_equal(count_cached(f), 6);
}

static int setup_index(void **state)
{
    testkv_use();
    return setup(state);
}

static int teardown_index(void **state)
{
    testkv_fail_at = 0;
    int r = teardown(state);
    testkv_reset();
    return r;
}

/* How many objects are whole in the cache, whether the index has them or not. */
static int count_whole(struct fixture *f, int n)
{
    int whole = 0;
    for (int i = 0; i < n; i++) {
        const char *key = arena_printf(f->arena, "k%03d", i);
        struct wire_cached_req req = {
            .bucket = SLICE_LIT("data"), .prefix = slice_str(key), .max = 1, .flags = WIRE_EXACT};
        struct wire_cached_rep rep;
        struct wire_cached c = {0};
        assert_int_equal(object_cached(f->session, &req, f->arena, &rep, NULL), 0);
        if (rep.n_entries == 1)
            assert_int_equal(wire_cached_decode(&rep.entries, &c), 0);
        whole += c.size_bytes > 0 && c.present_bytes == c.size_bytes;
    }
    return whole;
}

/* What was fetched onto a disk whose index takes nothing would be lost by a kill: the job says so of each,
 * also when it is tried again, and has done them once the index is written again. (Where keep_cached believes
 * that it was written the job is done; without the look for its note in take_back the second time has no
 * errors.) */
static void test_an_index_that_takes_nothing(void **state)
{
    struct fixture *f = *state;
    uint64_t id = 0;
    write_objects(f, 6, 30000);
    hold_index(f, true);
    assert_int_equal(start(f, "prefetch", "", &id), 0);
    for (int i = 0; i < 20000 && count_whole(f, 6) < 6; i++)
        sys->sleep_ns(1000000);
    assert_int_equal(count_whole(f, 6), 6);
    testkv_fail_at = 1;
    hold_index(f, false);
    wait_for(f, id, "partly failed");
    for (int i = 0; i < 2; i++) {
        assert_int_equal(number(f, id, "done_objects"), 0);
        assert_int_equal(number(f, id, "done_bytes"), 0);
        assert_int_equal(number(f, id, "skipped_objects"), 0);
        assert_int_equal(number(f, id, "failed_objects"), 6);
        assert_int_equal(count_errors(f, id), 6);
        if (i == 0)
            assert_int_equal(change(f, id, "retry"), 0);
        wait_for(f, id, "partly failed");
    }
    testkv_fail_at = 0;
    assert_int_equal(change(f, id, "retry"), 0);
    wait_for(f, id, "done");
    assert_int_equal(number(f, id, "done_objects"), 6);
    assert_int_equal(number(f, id, "failed_objects"), 0);
    assert_int_equal(count_errors(f, id), 0);
    jobs_close(f->jobs);
    node_close(f, store_abandon);
    open_node(f);
    assert_int_equal(count_cached(f), 6);
}

/* Where only sizes are compared, a target of another size is no success; nor where nothing is there. (Without
 * the look at the size in pour_verify it is.) */
static void test_another_size_is_no_success(void **state)
{
    struct fixture *f = *state;
    struct job_spec spec = {.verify = JOB_VERIFY_SIZE};
    struct kind_work w = {
        .session = f->session, .arena = f->arena, .spec = &spec, .target_bucket = SLICE_LIT("data")};
    struct digest_sums sent = {.size_bytes = 100};
    struct wire_attr found;
    struct err e = {0};
    write_objects(f, 1, 100);
    assert_int_equal(pour_verify(&w, SLICE_LIT("k000"), &sent, &found, NULL), 0);
    assert_int_equal(found.size_bytes, 100);
    assert_int_equal(pour_verify(&w, SLICE_LIT("k001"), &sent, &found, NULL), -ENOENT);
    sent.size_bytes = 99;
    assert_int_equal(pour_verify(&w, SLICE_LIT("k000"), &sent, &found, &e), ERR_ORIGIN_FAILED);
    assert_non_null(strstr(e.text, "100 bytes, 99 were written"));
}

/* What is compared with the origin is told as it was found: the same, another one, gone, or that the origin
 * could not be asked, which is a failure. (Without the look at the code in ask, fresh.c, that is told as
 * done; without the kinds of answers in validate, kind.c, nothing as changed.) */
static void test_validation_tells_what_it_found(void **state)
{
    struct fixture *f = *state;
    uint64_t id = 0;
    write_objects(f, 4, 1000);
    assert_int_equal(start(f, "prefetch", "", &id), 0);
    wait_for(f, id, "done");
    assert_int_equal(truncate(arena_printf(f->arena, "%s/k001", f->origin), 999), 0);
    assert_int_equal(unlink(arena_printf(f->arena, "%s/k002", f->origin)), 0);
    char *around = arena_printf(f->arena, "%s/k003", f->origin);
    assert_int_equal(unlink(around), 0);
    assert_int_equal(symlink("k003", around), 0);
    assert_int_equal(start(f, "validate", "", &id), 0);
    wait_for(f, id, "partly failed");
    assert_int_equal(number(f, id, "done_objects"), 3);
    assert_int_equal(number(f, id, "skipped_objects"), 1);
    assert_int_equal(number(f, id, "failed_objects"), 1);
    assert_int_equal(count_errors(f, id), 1);
    assert_int_equal(count_cached(f), 2); /* what is the same, and what could not be asked about */
}

static bool has_text(struct fixture *f, uint64_t id, const char *name)
{
    json_t *o = get(f, id);
    bool has = json_string_value(json_object_get(o, name))[0] != '\0';
    json_decref(o);
    return has;
}

/* What a person asks of a job that has ended, and could not be written down, has not happened: the job is as
 * it was, with its end and the reason why it failed. */
static void test_a_change_that_fails_changes_nothing(void **state)
{
    struct fixture *f = *state;
    uint64_t id = 0;
    char *aside = arena_printf(f->arena, "%s.aside", f->origin);
    write_objects(f, 2, 100);
    assert_int_equal(rename(f->origin, aside), 0);
    assert_int_equal(start(f, "prefetch", "", &id), 0); /* cannot list */
    wait_for(f, id, "failed");
    assert_true(has_text(f, id, "reason") && has_text(f, id, "ended"));
    arm(1);
    assert_int_equal(change(f, id, "resume"), -EIO);
    arm(0);
    assert_true(is_in(f, id, "failed"));
    assert_true(has_text(f, id, "reason") && has_text(f, id, "ended"));
    assert_int_equal(rename(aside, f->origin), 0);
    assert_int_equal(change(f, id, "resume"), 0);
    wait_for(f, id, "done");
    assert_false(has_text(f, id, "reason"));
}

static struct {
    struct fixture *f;
    pthread_t test;
    _Atomic bool is_armed, has_failed;
} stop;

/* The node is told to stop, of which its jobs have not heard yet; so what is read from the origin fails, and
 * is not asked for again. */
static ssize_t pread_of_a_node_that_stops(int fd, void *p, size_t n, uint64_t offset)
{
    char path[4096] = {0}, link[64];
    (void)snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    bool is_its = !pthread_equal(pthread_self(), stop.test) && readlink(link, path, sizeof(path) - 1) > 0 &&
                  slice_starts(slice_str(path), slice_str(stop.f->origin));
    if (!is_its || !atomic_load(&stop.is_armed))
        return sys_real.pread(fd, p, n, offset);
    object_stop_soon(stop.f->service);
    atomic_store(&stop.has_failed, true);
    return -EIO;
}

/* What fails because the node stops is done after the next start, and is no failure of the job. (Seen to be
 * told as partly failed where only the word to the job itself counted.) */
static void test_what_fails_because_the_node_stops_is_done_again(void **state)
{
    struct fixture *f = *state;
    uint64_t id = 0;
    static struct sys table;
    const struct sys *real = sys;
    write_objects(f, 6, 30000);
    close_node(f); /* its threads look at `sys` */
    table = *sys;
    table.pread = pread_of_a_node_that_stops;
    stop.f = f;
    stop.test = pthread_self();
    atomic_store(&stop.is_armed, true);
    sys = &table;
    open_node(f);
    assert_int_equal(start(f, "prefetch", "parallel=1\n", &id), 0);
    for (int i = 0; i < 60000 && !(atomic_load(&stop.has_failed) && !is_in(f, id, "running")); i++)
        sys_real.sleep_ns(1000000);
    assert_true(atomic_load(&stop.has_failed));
    close_node(f);
    atomic_store(&stop.is_armed, false);
    sys = real;
    open_node(f);
    settle(f, id);
    assert_true(is_in(f, id, "done"));
    assert_int_equal(number(f, id, "done_objects"), 6);
    assert_int_equal(number(f, id, "failed_objects"), 0);
    assert_int_equal(count_errors(f, id), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_every_commit_may_fail, setup_faulty, teardown),
        cmocka_unit_test_setup_teardown(test_failures_are_listed_once, setup_faulty, teardown),
        cmocka_unit_test_setup_teardown(test_a_pause_passes_no_failure_by, setup_faulty, teardown),
        cmocka_unit_test_setup_teardown(test_what_cannot_be_kept_is_done_again, setup_faulty, teardown),
        cmocka_unit_test_setup_teardown(test_a_change_that_fails_changes_nothing, setup_faulty, teardown),
        cmocka_unit_test_setup_teardown(test_done_is_in_the_index, setup_faulty, teardown),
        cmocka_unit_test_setup_teardown(test_an_index_that_takes_nothing, setup_index, teardown_index),
        cmocka_unit_test_setup_teardown(test_what_fails_because_the_node_stops_is_done_again, setup_faulty,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_another_size_is_no_success, setup_faulty, teardown),
        cmocka_unit_test_setup_teardown(test_validation_tells_what_it_found, setup_faulty, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

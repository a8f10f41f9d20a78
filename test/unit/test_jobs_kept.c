/* layer: jobs */
/* threaded */
/* What the control store keeps of jobs that have ended: not what only their work needed, and not all of them.
 */
#include "jobs_common.h"

#include "kv/kv.h"

#include <dirent.h>

typedef void (*key_fn)(uint64_t id, struct slice key, struct buf *b);

/* How many records of objects there are of a job. */
static size_t count(struct fixture *f, key_fn key_of, uint64_t id)
{
    _cleanup_buf_ struct buf from = BUF_INIT(JOB_KEY_MAX), to = BUF_INIT(JOB_KEY_MAX);
    key_of(id, SLICE_NULL, &from);
    assert_int_equal(kv_prefix_end(buf_view(&from), &to), 0);
    _cleanup_(kv_iter_freep) struct kv_iter *it = kv_iter_new(f->kv, buf_view(&from), buf_view(&to));
    struct slice k, v;
    size_t n = 0;
    while (kv_iter_next(it, &k, &v, NULL) == 0)
        n++;
    return n;
}

static const char *export_place(struct fixture *f)
{
    const char *out = arena_printf(f->arena, "%s/out", f->dir);
    assert_int_equal(mkdir(out, 0755), 0);
    return out;
}

/* Lines of the one manifest there, its head too. */
static size_t manifest_lines(struct fixture *f, const char *out)
{
    size_t n = 0, files = 0;
    DIR *d = opendir(out);
    assert_non_null(d);
    for (const struct dirent *x; (x = readdir(d));) {
        if (strncmp(x->d_name, ".forebay-export-", 16) != 0)
            continue;
        FILE *file = fopen(arena_printf(f->arena, "%s/%s", out, x->d_name), "re");
        assert_non_null(file);
        for (int c; (c = fgetc(file)) != EOF;)
            n += c == '\n';
        (void)fclose(file);
        files++;
    }
    (void)closedir(d);
    assert_int_equal(files, 1);
    return n;
}

static uint64_t start_listed(struct fixture *f, const char *out, const char *spec, const char *keys,
                             bool whole)
{
    uint64_t id = 0;
    const char *url = arena_printf(f->arena, "file://%s", out);
    assert_int_equal(start_to(f, "export", url, arena_printf(f->arena, "%slisted=true\n", spec), &id), 0);
    assert_int_equal(list_keys(f, id, keys), 0);
    if (whole)
        assert_int_equal(change(f, id, "listed"), 0);
    return id;
}

/* The keys that a job was given and the lines of its manifest are there as long as it may go on, or be tried
 * again, so that a manifest has all of it; with its end for good they are gone. (Without delete_work in
 * jobs.c they stay for ever; when those that are partly failed are for good, too, the manifest of a retry
 * lacks lines.) */
static void test_what_only_the_work_needs_goes(void **state)
{
    struct fixture *f = *state;
    struct wire_bucket_set_req set = {.name = SLICE_LIT("data"), .settings = SLICE_LIT("validate=always\n")};
    struct wire_bucket_set_rep done;
    const char *out = export_place(f);
    assert_int_equal(object_bucket_set(f->session, &set, f->arena, &done, NULL), 0);
    write_objects(f, 3, 2000);
    uint64_t id = start_listed(f, out, "", "k000\nk001\nlate\n", /* whole= */ true);
    wait_for(f, id, "partly failed");
    assert_int_equal(count(f, job_key_listed, id), 3);
    assert_int_equal(count(f, job_key_manifest, id), 2);
    assert_int_equal(count(f, job_key_error, id), 1);
    put_file(f, f->origin, "late", "it came");
    assert_int_equal(change(f, id, "retry"), 0);
    wait_for(f, id, "done");
    assert_int_equal(count(f, job_key_listed, id), 0);
    assert_int_equal(count(f, job_key_manifest, id), 0);
    assert_int_equal(count(f, job_key_error, id), 0);
    assert_int_equal(manifest_lines(f, out), 1 + 3);
}

/* So it is with one that is cancelled: while it waits for its list, and while it works. Its failures stay. */
static void test_what_a_cancelled_job_needed_goes(void **state)
{
    struct fixture *f = *state;
    const char *out = export_place(f);
    write_objects(f, 3, 2000);
    uint64_t id = start_listed(f, out, "", "k000\nk001\n", /* whole= */ false);
    assert_int_equal(count(f, job_key_listed, id), 2);
    assert_int_equal(change(f, id, "cancel"), 0);
    assert_int_equal(count(f, job_key_listed, id), 0);

    put_file(f, f->origin, "k000", "tiny"); /* the next one takes minutes */
    id = start_listed(f, out, "rate=10\nparallel=1\n", "absent\nk000\nk001\nk002\n", /* whole= */ true);
    for (int i = 0; i < 60000 && count(f, job_key_manifest, id) == 0; i++)
        sys->sleep_ns(1000000); /* a checkpoint */
    assert_true(count(f, job_key_manifest, id) > 0 && count(f, job_key_listed, id) == 4);
    assert_int_equal(change(f, id, "cancel"), 0);
    for (int i = 0; i < 60000 && count(f, job_key_listed, id) + count(f, job_key_manifest, id) > 0; i++)
        sys->sleep_ns(1000000); /* its thread ends */
    assert_int_equal(count(f, job_key_listed, id) + count(f, job_key_manifest, id), 0);
    assert_int_equal(count(f, job_key_error, id), 1);
}

/* ---- how many are kept ---- */

#define N (JOBS_ENDED_MAX + 30)

/* Records as earlier jobs left them, each with a failure: 1 has ended last of all, 2 is paused, the others
 * ended in the order of their numbers. */
static void put_records(struct fixture *f)
{
    _cleanup_(kv_txn_freep) struct kv_txn *t = kv_txn_new(f->kv);
    for (uint64_t id = 1; id <= N; id++) {
        _cleanup_buf_ struct buf key = BUF_INIT(JOB_KEY_MAX), value = BUF_INIT(JOB_RECORD_MAX);
        struct job_record rec = {.id = id, .state = id == 2 ? JOB_PAUSED : JOB_PARTIAL, .failed_objects = 1};
        char **texts[] = {&rec.kind, &rec.source, &rec.target, &rec.cursor, &rec.reason};
        for (size_t i = 0; i < ARRAY_SIZE(texts); i++)
            job_set_text(texts[i], i == 0 ? SLICE_LIT("prefetch") : i == 1 ? SLICE_LIT("data/") : SLICE_NULL);
        assert_int_equal(job_spec_decode(SLICE_NULL, &rec.spec, NULL), 0);
        rec.ended_ns = id == 1 ? 2 * N : id == 2 ? 0 : id;
        assert_int_equal(job_record_encode(&rec, NULL, &value, NULL), 0);
        job_key_record(id, &key);
        kv_txn_put(t, buf_view(&key), buf_view(&value));
        buf_clear(&value);
        assert_int_equal(job_error_encode(-EIO, "it failed", &value), 0);
        job_key_error(id, SLICE_LIT("k"), &key);
        kv_txn_put(t, buf_view(&key), buf_view(&value));
        job_record_fini(&rec);
    }
    kv_txn_put(t, SLICE_LIT("n/job"), slice_str(arena_printf(f->arena, "%d", N)));
    assert_int_equal(kv_txn_commit(t, KV_DURABLE, NULL), 0);
}

static bool is_known(struct fixture *f, uint64_t id)
{
    struct wire_job_get_req req = {.id = id};
    struct wire_job_get_rep rep;
    int r = object_job_get(f->session, &req, f->arena, &rep, NULL);
    assert_true(r == 0 || r == -ENOENT);
    assert_int_equal(count(f, job_key_error, id), r == 0 && id <= N ? 1 : 0);
    return r == 0;
}

static size_t count_known(struct fixture *f)
{
    size_t n = 0;
    for (uint64_t id = 1; id <= N + 10; id++)
        n += is_known(f, id);
    return n;
}

static uint64_t run_one(struct fixture *f)
{
    uint64_t id = 0;
    assert_int_equal(start(f, "evict", "", &id), 0);
    wait_for(f, id, "done");
    return id;
}

/* Of jobs that have ended a thousand are kept: with a new one those go that ended first, a few at a time,
 * with what is listed of them; not those with the lowest numbers, which may have worked until just now, and
 * none that has not ended. It is so after a restart, too. (Without find_surplus_locked in jobs.c all stay;
 * with the order of numbers 1 goes.) */
static void test_a_thousand_are_kept(void **state)
{
    struct fixture *f = *state;
    close_node(f);
    put_records(f);
    open_node(f);
    assert_int_equal(count_known(f), N);
    assert_int_equal(run_one(f), N + 1);
    assert_true(is_known(f, 1) && is_known(f, 2) && !is_known(f, 3) && !is_known(f, 18) && is_known(f, 19));
    for (int i = 0; i < 3; i++)
        (void)run_one(f);
    /* 2, one that has not been counted yet, perhaps, and what came last. */
    assert_in_range(count_known(f), JOBS_ENDED_MAX + 1, JOBS_ENDED_MAX + 3);
    assert_true(is_known(f, 1) && is_known(f, 2) && is_known(f, N) && is_known(f, N + 4));
    close_node(f);
    open_node(f);
    assert_in_range(count_known(f), JOBS_ENDED_MAX + 1, JOBS_ENDED_MAX + 3);
    assert_true(is_known(f, 1) && is_known(f, 2) && is_known(f, N) && is_known(f, N + 4));
}

/* A thousand jobs that have not ended are the most; the next one is told so, pins nothing, and is taken when
 * one of them has been cancelled, also by a node that is started again. (Seen to fail without
 * check_room_locked; without jobs_check_room it has pinned its prefix.) */
static void test_a_thousand_that_have_not_ended_are_the_most(void **state)
{
    struct fixture *f = *state;
    uint64_t id = 0, first = 0;
    struct wire_job_start_req req = {
        .kind = SLICE_LIT("prefetch"), .source = SLICE_LIT("data/"), .spec = SLICE_LIT("pin=true\n")};
    struct wire_job_start_rep rep;
    struct wire_bucket_get_req get_req = {.name = SLICE_LIT("data")};
    struct wire_bucket_get_rep got;
    struct err e = {0};
    for (int i = 0; i < JOBS_UNFINISHED_MAX; i++, first = first ? first : id)
        assert_int_equal(start(f, "prefetch", "listed=true\n", &id), 0); /* whose lists never come */
    close_node(f);
    open_node(f);
    assert_int_equal(object_job_start(f->session, &req, f->arena, &rep, &e), -EBUSY);
    assert_non_null(strstr(e.text, "1000 jobs have not ended"));
    assert_non_null(strstr(e.text, "forebay job ls"));
    assert_int_equal(object_bucket_get(f->session, &get_req, f->arena, &got, NULL), 0);
    assert_true(slice_find_slice(got.settings, SLICE_LIT("pin")) < 0);
    assert_int_equal(change(f, first, "cancel"), 0);
    assert_int_equal(start(f, "prefetch", "", &id), 0);
    wait_for(f, id, "done");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_what_only_the_work_needs_goes, setup, teardown),
        cmocka_unit_test_setup_teardown(test_what_a_cancelled_job_needed_goes, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_thousand_are_kept, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_thousand_that_have_not_ended_are_the_most, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

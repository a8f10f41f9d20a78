/* layer: s3 */
/* threaded */
/* Lifecycle passes beside writers of the same keys. */
#include "scratch_service.h"

#include "base/log.h"
#include "base/metrics.h"
#include "s3/s3.h"

#define DAY_NS  (24 * 3600 * (uint64_t)1000000000)
#define WAIT_NS (60 * (uint64_t)1000000000)
#define RULES                                                                                                \
    "s3.lifecycle=<LifecycleConfiguration><Rule><Prefix></Prefix><Status>Enabled</Status><Expiration>"       \
    "<Days>1</Days></Expiration></Rule></LifecycleConfiguration>\n"

static const struct sys *below;
static _Atomic uint64_t later_ns;  /* what the clock is ahead */
static _Thread_local bool is_test; /* its own looks count for nothing */
/* The object is put at this look at the clock, counted down; 0: not (any more). */
static _Atomic uint64_t put_at;
static _Atomic(struct fixture *) writes;

static int put_again(struct fixture *f)
{
    struct arena *_cleanup_(arena_freep) a = arena_new(MIB);
    struct wire_put_open_req po = {.bucket = BUCKET, .key = SLICE_LIT("k"), .size = 4, .via = WIRE_VIA_S3};
    struct wire_put_open_rep por = {0};
    int r = object_put_open(f->session, &po, a, &por, NULL);
    struct wire_put_write_req pw = {.handle = por.handle, .data = SLICE_LIT("same")};
    struct wire_put_write_rep pwr = {0};
    r = r == 0 ? object_put_write(f->session, &pw, a, &pwr, NULL) : r;
    struct wire_put_commit_req pc = {.handle = por.handle, .size = 4};
    struct wire_put_commit_rep pcr = {0};
    return r == 0 ? object_put_commit(f->session, &pc, a, &pcr, NULL) : r;
}

static uint64_t clock_that_writes(void)
{
    uint64_t left = is_test ? 0 : atomic_load(&put_at);
    while (left > 0 && !atomic_compare_exchange_weak(&put_at, &left, left - 1))
        ;
    struct fixture *f = left == 1 ? atomic_exchange(&writes, NULL) : NULL;
    if (f)
        assert_int_equal(put_again(f), 0);
    return below->real_ns() + atomic_load(&later_ns);
}

static void wait_settled(struct fixture *f)
{
    uint64_t end_ns = sys->mono_ns() + WAIT_NS;
    do {
        assert_true(sys->mono_ns() < end_ns);
        sys->sleep_ns(20000000);
        object_service_refresh_metrics(f->service);
    } while (metrics_value(metrics_series(METRIC_SCRATCH_UNSETTLED, NULL, NULL, NULL)) > 0);
}

/* One object that has expired is written with the same bytes at the nth look at the clock from when the
 * passes begin. False: they had removed it before. */
static bool write_beside_passes(struct fixture *f, uint64_t nth)
{
    const struct s3_config config = {.objects = f->service,
                                     .region = "r",
                                     .access_key = "a",
                                     .secret_key = "s",
                                     .node_id = "n",
                                     .lifecycle_ms = 1,
                                     .documents_bytes = MIB};
    uint64_t end_ns = sys->mono_ns() + WAIT_NS;
    assert_int_equal(put(f, "k", "same", NULL), 0);
    wait_settled(f);
    (void)atomic_fetch_add(&later_ns, 3 * DAY_NS);
    atomic_store(&writes, f);
    atomic_store(&put_at, nth);
    struct s3 *s3 = s3_new(&config);
    while (atomic_load(&writes) && sys->mono_ns() < end_ns) {
        struct wire_stat_req req = {.bucket = BUCKET, .key = SLICE_LIT("k")};
        struct wire_stat_rep rep;
        arena_clear(f->arena);
        below->sleep_ns(1000000);
        if (object_stat(f->session, &req, f->arena, &rep, NULL) == -ENOENT)
            break;
    }
    atomic_store(&put_at, 0);
    bool wrote = !atomic_exchange(&writes, NULL);
    below->sleep_ns(100000000); /* more passes */
    s3_free(s3);
    return wrote;
}

/* What was acknowledged stays, whenever in a pass it was written: also the same bytes as before, which have
 * the same ETag. (Without check_version in scratch_object.c, and if_mtime_ns in values.c, it is removed when
 * it is written between the last look at the object and its removal.) */
static void the_same_bytes_stay(const char *settings)
{
    struct fixture *f = fixture_new(OBJECT_ROUTE_LOCAL);
    struct wire_bucket_remove_req rm = {.name = BUCKET};
    struct wire_bucket_remove_rep rmr = {0};
    void *state = f;
    assert_int_equal(object_bucket_remove(f->session, &rm, f->arena, &rmr, &f->e), 0);
    assert_int_equal(make_bucket(f, BUCKET, settings), 0);
    uint64_t n = 1;
    while (write_beside_passes(f, n)) {
        const char *text = get(f, "k");
        if (!text)
            fail_msg("written at look %llu at the clock, and removed", (unsigned long long)n);
        assert_string_equal(text, "same");
        n++;
    }
    assert_in_range(n, 4, 1000);
    (void)teardown(&state);
}

static void the_same_bytes_stay_on_disk(void **state)
{
    (void)state;
    the_same_bytes_stay(RULES);
}

static void the_same_bytes_stay_in_memory(void **state)
{
    (void)state;
    the_same_bytes_stay(RULES "values=memory\n");
}

int main(void)
{
    static struct sys table;
    log_set_level(LOG_LEVEL_ERROR);
    is_test = true;
    below = sys;
    table = *sys;
    table.real_ns = clock_that_writes;
    sys = &table;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_bytes_stay_on_disk),
        cmocka_unit_test(the_same_bytes_stay_in_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

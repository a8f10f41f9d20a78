/* layer: object */
/* threaded */
/*
 * Readers that are given up while the origin says nothing: they end, what is on its way for them alone ends
 * with them, and nobody else notices. The origin waits for a gate, or until its request is cancelled.
 */
#include "fill_fixture.h"

#define SIZE (3 * MIB)

struct waiter {
    struct fixture *f;
    struct fill *fill; /* NULL: of an object of which nothing is known */
    const char *key;
    uint64_t n;
    unsigned how;
    bool whole; /* is waited for, too, of the latter */
    atomic_bool quit;
    pthread_t thread;
    int result;
};

static int admit(void *arg, const struct attr *attr, struct extent **ret_extent, struct err *e)
{
    struct fixture *f = arg;
    struct store_new n = {.key = SLICE_LIT("found"), .attr = SLICE_LIT("x"), .size_bytes = attr->size_bytes};
    return store_create(f->store, &n, ret_extent, e);
}

static int discover(struct waiter *w, struct arena *a)
{
    struct fill *fill = NULL;
    struct attr attr;
    int r = fill_discover(w->f->engine, w->f->u, slice_str(w->key), (struct plan_range){0, w->n}, w->whole,
                          admit, w->f, a, &attr, &fill, NULL);
    fill_unref(fill);
    return r;
}

static void *waiter_main(void *arg)
{
    struct waiter *w = arg;
    struct arena *a = arena_new(4 * MIB);
    struct fill_bytes got;
    struct quit q = {.now = &w->quit};
    quit_enter(&q);
    w->result = w->fill ? fill_wait(w->fill, 0, w->n, w->how, a, &got, NULL) : discover(w, a);
    quit_leave(&q);
    arena_free(a);
    return NULL;
}

static void begin(struct waiter *w)
{
    assert_int_equal(pthread_create(&w->thread, NULL, waiter_main, w), 0);
}

static void give_up(struct waiter *w)
{
    atomic_store(&w->quit, true);
    (void)pthread_join(w->thread, NULL);
    assert_int_equal(w->result, -ECANCELED);
}

static struct fill *fill_of_new(struct fixture *f, const char *key, uint64_t size)
{
    struct store_new n = {.key = slice_str(key), .attr = SLICE_LIT("x"), .size_bytes = size};
    struct extent *x;
    assert_int_equal(store_create(f->store, &n, &x, NULL), 0);
    struct fill *fill = fill_of_extent(f->engine, f->u, slice_str(key), x, SLICE_NULL);
    extent_unref(x);
    return fill;
}

static void wait_until_asked(struct fixture *f, unsigned n)
{
    while (running(f->script) < n)
        sys->sleep_ns(1000000);
}

static void wait_until_idle(struct fixture *f)
{
    while (!is_idle(f->u))
        sys->sleep_ns(1000000);
}

static struct fixture *make_gated(void)
{
    struct fixture *f = make(256 * MIB, true);
    script_set(f->script, "k", SIZE, 1);
    script_set(f->script, "small", 1000, 1);
    f->script->fn = wait_for_gate;
    return f;
}

/* A reader of the pool's requests, one that asks himself, and one who does not know the object yet: each
 * ends, and its place at the origin is free. Who comes later gets the bytes. (Without quit_is_now in
 * wait_part_locked, fill_wait or fill_discover he waits for ever, and without give_up_locked the origin's
 * place is held.) */
static void test_a_reader_that_is_given_up_ends(void **state)
{
    (void)state;
    struct fixture *f = make_gated();
    struct waiter w[] = {{.f = f, .key = "k", .n = SIZE},
                         {.f = f, .key = "small", .n = 1000, .how = FILL_PATIENT},
                         {.f = f, .key = "small", .n = 1000, .how = FILL_WHOLE},
                         {.f = f, .key = "k", .n = MIB},
                         {.f = f, .key = "small", .n = MIB, .whole = true}};
    for (size_t i = 0; i < ARRAY_SIZE(w); i++) {
        w[i].fill = i < 3 ? fill_of_new(f, w[i].key, w[i].n) : NULL;
        begin(&w[i]);
        wait_until_asked(f, 1);
        give_up(&w[i]);
        wait_until_idle(f); /* though the gate is shut */
    }
    atomic_store(&f->gate, true);
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(read_range(w[i].fill, 0, w[i].n, 1), 0);
        fill_unref(w[i].fill);
    }
    for (size_t i = 3; i < ARRAY_SIZE(w); i++) {
        atomic_store(&w[i].quit, false);
        (void)waiter_main(&w[i]);
        assert_int_equal(w[i].result, 0);
    }
    wait_until_idle(f);
    drop(f);
}

/* What another one waits for, too, goes on, and he gets it; also what the one who was given up was fetching
 * himself, which is then asked for again. (Without part_result_locked's look at -ECANCELED he gets that.) */
static void test_others_get_what_they_wait_for(void **state)
{
    (void)state;
    struct fixture *f = make_gated();
    for (int i = 0; i < 2; i++) {
        struct waiter w[2] = {{.f = f, .n = i ? 1000 : SIZE, .how = i ? FILL_PATIENT : 0}};
        atomic_store(&f->gate, false);
        w[0].fill = fill_of_new(f, i ? "small" : "k", w[0].n);
        w[1] = w[0];
        begin(&w[0]);
        wait_until_asked(f, 1);
        begin(&w[1]);
        sys->sleep_ns(50000000);
        give_up(&w[0]);
        atomic_store(&f->gate, true);
        (void)pthread_join(w[1].thread, NULL);
        assert_int_equal(w[1].result, 0);
        assert_int_equal(read_range(w[0].fill, 0, w[0].n, 1), 0);
        fill_unref(w[0].fill);
        wait_until_idle(f);
    }
    drop(f);
}

/* What waits in the queue for a place at the origin is not asked for when nobody wants it any more. (Without
 * given_up in fill_part_run, or fill_engine_withdraw, three are asked for, or the third waits for the first.)
 */
static void test_what_is_queued_is_not_begun(void **state)
{
    (void)state;
    struct fixture *f = make_gated();
    lock_take(&f->u->places->lock);
    f->u->places->concurrency.limit = 2;
    f->u->places->concurrency.last_cut_ms = 1; /* it grows slowly */
    lock_drop(&f->u->places->lock);
    struct waiter first = {.f = f, .n = MIB},
                  others[2] = {{.f = f, .n = MIB}, {.f = f, .key = "k", .n = MIB}};
    upstream_enter(f->u); /* which leaves one */
    script_set(f->script, "other", MIB, 1);
    first.fill = fill_of_new(f, "k", SIZE);
    begin(&first);
    wait_until_asked(f, 1);
    others[0].fill = fill_of_new(f, "other", MIB);
    for (size_t i = 0; i < ARRAY_SIZE(others); i++) {
        begin(&others[i]);
        sys->sleep_ns(50000000);
        give_up(&others[i]);
    }
    assert_int_equal(running(f->script), 1);
    uint64_t before = f->script->bytes_sent;
    atomic_store(&f->gate, true);
    (void)pthread_join(first.thread, NULL);
    assert_int_equal(first.result, 0);
    fill_unref(first.fill);
    fill_unref(others[0].fill);
    upstream_leave(f->u, -ECANCELED);
    wait_until_idle(f);
    assert_true(f->script->bytes_sent - before <= SIZE);
    drop(f);
}

/* Bytes come, slowly, so that the readers' turns are not over; a node that stops ends them all the same.
 * (With quit_is_now alone in fill_wait they ask for ever again for what ends at once, and the node waits for
 * them.) */
static void test_readers_of_a_slow_origin_end_when_the_node_stops(void **state)
{
    (void)state;
    static const unsigned hows[] = {0, FILL_PATIENT, FILL_WHOLE};
    for (size_t i = 0; i < ARRAY_SIZE(hows); i++) {
        struct fixture *f = make_gated();
        atomic_bool stopping = false;
        f->u->origin->stop = &stopping;
        struct waiter w[2] = {{.f = f, .n = SIZE, .how = hows[i], .fill = fill_of_new(f, "k", SIZE)}};
        w[1] = w[0];
        begin(&w[0]);
        wait_until_asked(f, 1);
        begin(&w[1]);
        atomic_store(&stopping, true);
        for (size_t k = 0; k < ARRAY_SIZE(w); k++) {
            (void)pthread_join(w[k].thread, NULL);
            assert_int_equal(w[k].result, -ECANCELED);
        }
        fill_unref(w[0].fill);
        wait_until_idle(f);
        drop(f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_reader_that_is_given_up_ends),
        cmocka_unit_test(test_others_get_what_they_wait_for),
        cmocka_unit_test(test_what_is_queued_is_not_begun),
        cmocka_unit_test(test_readers_of_a_slow_origin_end_when_the_node_stops),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

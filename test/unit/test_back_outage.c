/* layer: object */
/* threaded */
/* Write-back while its origin is away, for an hour, on a clock that the test moves; what is told of it. */
#include "test_back_common.h"

#include "object/back_internal.h"
#include "origin/origin_internal.h"

#define MINUTE_NS ((uint64_t)60 * 1000000000)
#define STEPS     15 /* of four minutes */
#define KEYS      3

static _Atomic uint64_t ahead_ns;

static uint64_t ahead_mono_ns(void)
{
    return sys_real.mono_ns() + atomic_load(&ahead_ns);
}

static uint64_t ahead_real_ns(void)
{
    return sys_real.real_ns() + atomic_load(&ahead_ns);
}

static int setup_clock(void **state)
{
    static struct sys table;
    table = sys_real;
    table.mono_ns = ahead_mono_ns;
    table.real_ns = ahead_real_ns;
    atomic_store(&ahead_ns, 0);
    sys = &table;
    *state = fixture_new();
    return 0;
}

static int teardown_clock(void **state)
{
    fixture_free(*state);
    sys = &sys_real;
    return 0;
}

/* How often the one was tried that was tried least; 0 while not all of them are there. */
static uint32_t tries(struct fixture *f)
{
    struct back *b = f->service->back;
    uint32_t least = UINT32_MAX;
    size_t n = 0;
    LOCK_SCOPE(&b->lock);
    for (const struct back_entry *x = b->first; x; x = x->next, n++)
        least = MIN(least, x->tries);
    return n == KEYS ? least : 0;
}

static void expect_more_tries(struct fixture *f, uint32_t than)
{
    for (int i = 0; i < 12000 && tries(f) <= than; i++)
        sys->sleep_ns(5000000);
    assert_true(tries(f) > than);
}

static struct wire_flush_rep ask(struct fixture *f)
{
    struct wire_flush_req req = {.bucket = SLICE_LIT("data"), .flags = WIRE_NO_WAIT};
    struct wire_flush_rep rep;
    assert_int_equal(object_flush(f->session, &req, f->arena, &rep, NULL), 0);
    return rep;
}

/* For an hour nobody reaches the origin. What was written and removed is tried again all the time, a minute
 * apart at most, is seen as it was written, and told with its age and the reason; none of it is given up, and
 * all of it gets there within a minute once the origin is back. (Without the cap in back_delay_ms nothing is
 * tried for longer and longer; where note_result takes a failure for done the writes are gone.) */
static void test_an_hour_without_the_origin(void **state)
{
    struct fixture *f = *state;
    const char *away = arena_printf(f->arena, "%s.away", f->origin);
    set_bucket(f, "write_delay=0s\n");
    origin_write(f, "gone", 'g');
    assert_int_equal(look(f, "gone"), 'g');
    assert_int_equal(rename(f->origin, away), 0);
    assert_int_equal(put(f, "a", 'a'), 0);
    assert_int_equal(put(f, "b", 'b'), 0);
    assert_int_equal(remove_key(f, "gone"), 0);
    assert_int_equal(put(f, "a", 'A'), 0);
    expect_more_tries(f, 0);
    for (int i = 0; i < STEPS; i++) {
        uint32_t before = tries(f);
        atomic_fetch_add(&ahead_ns, 4 * MINUTE_NS);
        expect_more_tries(f, before);
        assert_true(look(f, "a") == 'A' && look(f, "b") == 'b' && look(f, "gone") == 0);
    }
    struct wire_flush_rep rep = ask(f);
    assert_int_equal(rep.objects, KEYS);
    assert_int_equal(rep.failing, KEYS);
    assert_true(rep.oldest_ms >= STEPS * 4 * 60000);
    assert_true(rep.error.n > 0);
    assert_int_equal(rename(away, f->origin), 0);
    atomic_fetch_add(&ahead_ns, MINUTE_NS);
    for (int i = 0; i < 12000 && ask(f).objects > 0; i++)
        sys->sleep_ns(5000000);
    assert_int_equal(ask(f).objects, 0);
    assert_true(origin_look(f, "a") == 'A' && origin_look(f, "b") == 'b' && origin_look(f, "gone") == 0);
    LOCK_SCOPE(&f->service->back->lock);
    assert_int_equal(f->service->back->buckets->conflicts, 0);
}

static _Atomic int patience_ms;

static int say_nothing(struct origin *o, const struct origin_get *g, struct arena *a,
                       struct origin_attr *ret_attr, origin_sink_fn sink, void *arg, struct err *e)
{
    (void)o, (void)g, (void)a, (void)ret_attr, (void)sink, (void)arg;
    atomic_store(&patience_ms, (int)quit_patience_ms(600000));
    return err_set(e, -ETIMEDOUT, "silence");
}

/* An origin that said nothing when a writer asked what it has is asked by the others, too, and waited for no
 * longer than a moment: what they write is taken all the same. (Fails without ask_impatiently: each write
 * takes as long as `origin.timeout` says.) */
static void test_who_writes_does_not_wait_for_a_silent_origin(void **state)
{
    struct fixture *f = *state;
    struct origin_ops silent = origin_file_ops;
    struct upstream *u = NULL;
    set_bucket(f, "write_delay=1h\n");
    assert_int_equal(object_upstream(f->service, SLICE_LIT("data"), &u, NULL), 0);
    silent.get = say_nothing;
    steward_stop(TAKE_PTR(f->service->steward)); /* who looks at what is changed here */
    u->origin->ops = &silent;
    assert_int_equal(put(f, "a", 'a'), 0);
    assert_int_equal(atomic_load(&patience_ms), 600000);
    assert_int_equal(put(f, "b", 'b'), 0);
    assert_int_equal(atomic_load(&patience_ms), QUIT_SILENCE_MS);
    u->origin->ops = &origin_file_ops;
    upstream_unref(u);
}

/* Why a write is not in the origin is told also while there is no place at its origin for another try. (Seen
 * to fail when note_result forgets what was said before each try that comes to nothing.) */
static void test_why_it_failed_is_told_until_another_try(void **state)
{
    struct fixture *f = *state;
    struct upstream *u;
    unsigned n = 0;
    char *away = arena_printf(f->arena, "%s.away", f->origin);
    assert_int_equal(rename(f->origin, away), 0);
    assert_int_equal(put(f, "k", 'a'), 0);
    struct wire_flush_req req = {.bucket = SLICE_LIT("data")};
    struct wire_flush_rep rep = {0};
    for (int i = 0; i < 12000 && ask(f).failing == 0; i++) {
        assert_int_equal(object_flush(f->session, &req, f->arena, &rep, NULL), 0);
        sys->sleep_ns(5000000);
    }
    assert_int_equal(ask(f).failing, 1);
    assert_int_equal(object_upstream(f->service, SLICE_LIT("data"), &u, NULL), 0);
    while (upstream_try_enter(u, /* ahead= */ false))
        n++;
    assert_true(n > 0);
    for (int i = 0; i < 40; i++) {
        assert_int_equal(object_flush(f->session, &req, f->arena, &rep, NULL), 0);
        assert_true(rep.failing == 1 && rep.error.n > 0);
        sys->sleep_ns(5000000);
    }
    for (; n > 0; n--)
        upstream_leave(u, 0);
    upstream_unref(u);
    assert_int_equal(rename(away, f->origin), 0);
    flush(f);
    assert_int_equal(origin_look(f, "k"), 'a');
}

static _Atomic bool refuses;
static _Atomic unsigned n_refused;

static int refuse(struct origin *o, struct slice key, struct slice if_match, struct err *e)
{
    if (!atomic_load(&refuses))
        return origin_file_ops.remove(o, key, if_match, e);
    (void)atomic_fetch_add(&n_refused, 1);
    return err_set(e, ERR_PRECONDITION, "the object is another one now");
}

/* A removal whose condition the origin never takes is told as one that fails, and waits before it is tried
 * again; it gets there when the origin takes it. (Fails without AGAIN_MAX, back_send.c: it is asked again and
 * again at once, and nobody is told.) */
static void test_a_removal_that_is_refused_every_time(void **state)
{
    struct fixture *f = *state;
    struct origin_ops ops = origin_file_ops;
    struct upstream *u = NULL;
    set_bucket(f, "write_delay=0s\n");
    origin_write(f, "gone", 'g');
    assert_int_equal(look(f, "gone"), 'g');
    assert_int_equal(object_upstream(f->service, SLICE_LIT("data"), &u, NULL), 0);
    steward_stop(TAKE_PTR(f->service->steward)); /* who looks at what is changed here */
    atomic_store(&refuses, true);
    atomic_store(&n_refused, 0);
    ops.remove = refuse;
    u->origin->ops = &ops;
    assert_int_equal(remove_key(f, "gone"), 0);
    for (int i = 0; i < 12000 && ask(f).failing == 0; i++)
        sys->sleep_ns(5000000);
    assert_int_equal(ask(f).failing, 1);
    sys->sleep_ns(200000000);
    unsigned n = atomic_load(&n_refused);
    lock_take(&f->service->back->lock);
    uint32_t tried = f->service->back->first->tries;
    lock_drop(&f->service->back->lock);
    assert_true(tried > 0 && n <= 4 * (tried + 1)); /* a look at once three times, and a wait */
    assert_true(look(f, "gone") == 0 && origin_look(f, "gone") == 'g');
    atomic_store(&refuses, false);
    atomic_fetch_add(&ahead_ns, MINUTE_NS);
    for (int i = 0; i < 12000 && ask(f).objects > 0; i++)
        sys->sleep_ns(5000000);
    assert_int_equal(ask(f).objects, 0);
    assert_int_equal(origin_look(f, "gone"), 0);
    u->origin->ops = &origin_file_ops;
    upstream_unref(u);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_an_hour_without_the_origin, setup_clock, teardown_clock),
        cmocka_unit_test_setup_teardown(test_who_writes_does_not_wait_for_a_silent_origin, setup_clock,
                                        teardown_clock),
        cmocka_unit_test_setup_teardown(test_why_it_failed_is_told_until_another_try, setup_clock,
                                        teardown_clock),
        cmocka_unit_test_setup_teardown(test_a_removal_that_is_refused_every_time, setup_clock,
                                        teardown_clock),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

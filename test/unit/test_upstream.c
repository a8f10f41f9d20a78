/* layer: namespace */
/* threaded */
#include "upstream_common.h"

static void fail_first_two(struct script *s, enum script_op op, unsigned nth, const struct origin_get *g,
                           struct script_fate *fate)
{
    (void)s, (void)op, (void)g;
    fate->error = nth <= 2 ? ERR_ORIGIN_BUSY : 0;
}

static void always_down(struct script *s, enum script_op op, unsigned nth, const struct origin_get *g,
                        struct script_fate *fate)
{
    (void)s, (void)op, (void)g, (void)nth;
    fate->error = ERR_ORIGIN_DOWN;
}

/* A request that fails in passing is repeated until it succeeds, and no place stays taken. */
static void test_passing_failure_is_repeated(void **state)
{
    (void)state;
    clock_sys_start(1000000000, 1000000000);
    struct fixture *f = make("");
    script_set(f->script, "k", 10, 1);
    f->script->fn = fail_first_two;
    struct origin_attr attr;
    assert_int_equal(upstream_head(f->u, SLICE_LIT("k"), SLICE_NULL, f->arena, &attr, NULL), 0);
    assert_int_equal(script_count(f->script, SCRIPT_HEAD), 3);
    assert_int_equal(f->u->places->running, 0);
    drop(f);
    clock_sys_stop();
}

/* An origin that stays away is given up within the bucket's time and with its own error. */
static void test_lasting_failure_is_given_up_in_time(void **state)
{
    (void)state;
    clock_sys_start(1000000000, 1000000000);
    struct fixture *f = make("retry=3s\n");
    f->script->fn = always_down;
    struct origin_attr attr;
    struct err e = {0};
    assert_int_equal(upstream_head(f->u, SLICE_LIT("k"), SLICE_NULL, f->arena, &attr, &e), ERR_ORIGIN_DOWN);
    assert_true(clock_sys_slept_ns() <= 3000000000ull);
    assert_true(script_count(f->script, SCRIPT_HEAD) >= 2);
    assert_non_null(strstr(e.text, "script://"));
    drop(f);
    clock_sys_stop();
}

/* An outage is not multiplied: when the budget of retries is spent, who waits asks every five seconds at
 * most, for as long as the bucket's `retry` says. (Fails without budget_left in backoff_ms, origin/retry.c.)
 */
static void test_budget_bounds_the_retries_of_an_outage(void **state)
{
    (void)state;
    clock_sys_start(1000000000, 1000000000);
    struct fixture *f = make("retry=60s\n");
    f->script->fn = always_down;
    struct origin_attr attr;
    for (int i = 0; i < 300; i++) {
        uint64_t before_ns = clock_sys_slept_ns();
        assert_int_equal(upstream_head(f->u, SLICE_LIT("k"), SLICE_NULL, f->arena, &attr, NULL),
                         ERR_ORIGIN_DOWN);
        assert_true(clock_sys_slept_ns() - before_ns >= (60000 - RETRY_LAST_MS) * 1000000ull);
    }
    /* 12 of 5 s, and the last few of half of what is left each; 100 are free. */
    assert_true(script_count(f->script, SCRIPT_HEAD) <= 300 * (12 + 4) + 100);
    drop(f);
    clock_sys_stop();
}

static void busy_for_five_seconds(struct script *s, enum script_op op, unsigned nth,
                                  const struct origin_get *g, struct script_fate *fate)
{
    (void)op, (void)g;
    if (nth == 1) {
        origin_pause(&s->origin, 5000);
        fate->error = ERR_ORIGIN_BUSY;
    } else if (origin_pause_ms(&s->origin, sys_mono_ms()) > 0) {
        fail_msg("asked while it wanted no request");
    }
}

/* An origin that says for how long it wants no request is not asked before, neither again nor by others; who
 * has less time gives up at once. (Without origin_pause_ms in owed_ns_locked, and in upstream_try_again.) */
static void test_an_origin_is_not_asked_while_it_pauses(void **state)
{
    (void)state;
    clock_sys_start(1000000000, 1000000000);
    struct fixture *f = make("retry=20s\n");
    struct origin_attr attr;
    script_set(f->script, "k", 10, 1);
    f->script->fn = busy_for_five_seconds;
    assert_int_equal(upstream_head(f->u, SLICE_LIT("k"), SLICE_NULL, f->arena, &attr, NULL), 0);
    assert_int_equal(script_count(f->script, SCRIPT_HEAD), 2);
    assert_true(clock_sys_slept_ns() >= 5000000000ull);
    origin_pause(&f->script->origin, 1000);
    assert_false(upstream_try_enter(f->u, /* ahead= */ false));
    assert_false(upstream_try_enter_behind(f->u, 0));
    sys->sleep_ns(1000000000);
    assert_true(upstream_try_enter(f->u, /* ahead= */ false));
    upstream_leave(f->u, 0);
    drop(f);
    f = make("retry=3s\n");
    f->script->fn = busy_for_five_seconds;
    uint64_t before_ns = clock_sys_slept_ns();
    assert_int_equal(upstream_head(f->u, SLICE_LIT("k"), SLICE_NULL, f->arena, &attr, NULL), ERR_ORIGIN_BUSY);
    assert_int_equal(clock_sys_slept_ns(), before_ns);
    drop(f);
    clock_sys_stop();
}

/* A conditional PUT is repeated only when the origin said that it did nothing. */
static void test_conditional_put_is_not_repeated_blindly(void **state)
{
    (void)state;
    clock_sys_start(1000000000, 1000000000);
    struct fixture *f = make("");
    f->script->fn = always_down;
    struct origin_put p = {.key = SLICE_LIT("k"), .if_none_match = true};
    struct origin_body body = {.read = no_body};
    struct origin_attr attr;
    assert_int_equal(upstream_put(f->u, &p, &body, f->arena, &attr, NULL), ERR_ORIGIN_DOWN);
    assert_int_equal(script_count(f->script, SCRIPT_PUT), 1);
    f->script->fn = fail_first_two;
    f->script->count[SCRIPT_PUT] = 0;
    assert_int_equal(upstream_put(f->u, &p, &body, f->arena, &attr, NULL), 0);
    assert_int_equal(script_count(f->script, SCRIPT_PUT), 3);
    drop(f);
    clock_sys_stop();
}

static void lost_answer(struct script *s, enum script_op op, unsigned nth, const struct origin_get *g,
                        struct script_fate *fate)
{
    (void)g, (void)op;
    if (nth == 1) {
        script_set(s, "k", 0, 0);
        fate->error = ERR_ORIGIN_DOWN;
    }
}

/* A removal whose answer was lost has removed: the second try's "no such key" is no error. */
static void test_removal_with_a_lost_answer_has_happened(void **state)
{
    (void)state;
    clock_sys_start(1000000000, 1000000000);
    struct fixture *f = make("");
    script_set(f->script, "k", 10, 1);
    f->script->fn = lost_answer;
    assert_int_equal(upstream_remove(f->u, SLICE_LIT("k"), SLICE_NULL, NULL), 0);
    f->script->fn = NULL;
    assert_int_equal(upstream_remove(f->u, SLICE_LIT("k"), SLICE_NULL, NULL), -ENOENT);
    drop(f);
    clock_sys_stop();
}

/* The tries of a removal as a tree of files answers them: a condition on what is not there fails. */
static void lost_answer_to_a_condition(struct script *s, enum script_op op, unsigned nth,
                                       const struct origin_get *g, struct script_fate *fate)
{
    if (op == SCRIPT_REMOVE && nth == 1)
        lost_answer(s, op, nth, g, fate);
    else if (op == SCRIPT_REMOVE)
        fate->error = ERR_PRECONDITION;
}

/* So is a condition that fails because nothing is left; but not one of a first try, nor one before another
 * object. */
static void test_conditional_removal_with_a_lost_answer_has_happened(void **state)
{
    (void)state;
    clock_sys_start(1000000000, 1000000000);
    struct fixture *f = make("");
    struct slice etag = SLICE_LIT("v1-10");
    script_set(f->script, "k", 10, 1);
    f->script->fn = lost_answer_to_a_condition;
    assert_int_equal(upstream_remove(f->u, SLICE_LIT("k"), etag, NULL), 0);
    assert_int_equal(script_count(f->script, SCRIPT_REMOVE), 2);
    assert_int_equal(upstream_remove(f->u, SLICE_LIT("k"), etag, NULL), ERR_PRECONDITION);
    assert_int_equal(script_count(f->script, SCRIPT_REMOVE), 3);
    f->script->count[SCRIPT_REMOVE] = 0;
    script_set(f->script, "other", 10, 2); /* by somebody, after the first try */
    assert_int_equal(upstream_remove(f->u, SLICE_LIT("other"), etag, NULL), ERR_PRECONDITION);
    drop(f);
    clock_sys_stop();
}

/* Limits end when whoever opened the upstream says so, whatever is owed. */
static void test_limits_end_when_the_node_stops(void **state)
{
    (void)state;
    clock_sys_start(1000000000, 1000000000);
    struct fixture *f = make("limit.origin-bytes=64KiB\n");
    atomic_bool unlimited = false;
    f->u->unlimited = &unlimited;
    assert_true(upstream_try_enter(f->u, /* ahead= */ false));
    upstream_leave(f->u, 0);
    upstream_charge(f->u, GIB);
    assert_false(upstream_try_enter(f->u, /* ahead= */ false));
    atomic_store(&unlimited, true);
    upstream_enter(f->u);
    upstream_leave(f->u, 0);
    drop(f);
    clock_sys_stop();
}

/* A place that was taken for a request that was not sent is not paid for, and says nothing of the origin. */
static void test_who_asks_nothing_pays_nothing(void **state)
{
    (void)state;
    clock_sys_start(1000000000, 1000000000);
    struct fixture *f = make("limit.origin-requests=2\n");
    double before = f->u->places->concurrency.limit;
    for (int i = 0; i < 100; i++) {
        assert_true(upstream_try_enter(f->u, /* ahead= */ false));
        upstream_step_back(f->u);
    }
    assert_true(f->u->places->concurrency.limit == before);
    int sent = 0;
    while (sent < 100 && upstream_try_enter(f->u, /* ahead= */ false)) {
        upstream_leave(f->u, 0);
        sent++;
    }
    assert_true(sent > 0 && sent < 100); /* those that are sent are */
    drop(f);
    clock_sys_stop();
}

static ssize_t give_zeros(void *arg, void *p, size_t n, uint64_t offset)
{
    (void)arg, (void)offset;
    memset(p, 0, n);
    return (ssize_t)n;
}

/* A put that takes no place is a request all the same: it waits until nothing is owed, and is paid for.
 * (Without upstream_enter_slowly in put() it passes by the limit.) */
static void test_slow_puts_are_paid_for(void **state)
{
    (void)state;
    clock_sys_start(1000000000, 1000000000);
    struct fixture *f = make("limit.origin-requests=2\n");
    atomic_bool cancel = false;
    const struct origin_put p = {.key = SLICE_LIT("k"), .cancel = &cancel};
    const struct origin_body body = {.size_bytes = 10, .read = give_zeros};
    struct origin_attr attr;
    assert_int_equal(upstream_put_slowly(f->u, &p, &body, f->arena, &attr, NULL), 0);
    assert_false(upstream_has_place(f->u, /* ahead= */ false));
    assert_int_equal(f->u->places->running, 0);
    atomic_store(&cancel, true);
    assert_int_equal(upstream_put_slowly(f->u, &p, &body, f->arena, &attr, NULL), -ECANCELED);
    atomic_store(&cancel, false);
    clock_sys_advance(500000000);
    assert_int_equal(upstream_put_slowly(f->u, &p, &body, f->arena, &attr, NULL), 0);
    drop(f);
    clock_sys_stop();
}

/* A further bucket of the fixture, over the files of its directory. */
static struct upstream *over_files(struct fixture *f, const char *name, const char *settings)
{
    char text[1024];
    struct bucket *b = NULL;
    struct upstream *u = NULL;
    (void)snprintf(text, sizeof(text), "origin=file://%s\n%s", f->dir, settings);
    assert_int_equal(bucket_create(f->table, slice_str(name), slice_str(text), &b, NULL), 0);
    assert_int_equal(upstream_open(b, &u, NULL), 0);
    bucket_unref(b);
    return u;
}

static ssize_t give_zeros_of_one_mib(void *arg, void *p, size_t n, uint64_t offset)
{
    return offset >= MIB ? -EIO : give_zeros(arg, p, MIN(n, (size_t)(MIB - offset)), offset);
}

static int ignore_bytes(void *arg, const struct origin_attr *attr, const void *p, size_t n)
{
    (void)arg, (void)attr, (void)p, (void)n;
    return 0;
}

/* What is owed now is paid after `ms`, and not a quarter of that before. */
static void assert_owes_ms(struct upstream *u, uint64_t ms)
{
    clock_sys_advance(ms * 750000);
    assert_false(upstream_has_place(u, /* ahead= */ false));
    assert_false(upstream_try_enter_behind(u, UPSTREAM_BEHIND_NS));
    clock_sys_advance(ms * 260000);
    assert_true(upstream_has_place(u, /* ahead= */ false));
}

/* Bytes that are written to the origin are owed like those that are read from it, also those of a put that
 * fails half-way, and no more than went. (Without origin_moved in file_put.c nothing is owed for puts,
 * without the one in origin_get nothing for reads.) */
static void test_bytes_are_paid_for_both_ways(void **state)
{
    (void)state;
    clock_sys_start(1000000000, 1000000000);
    struct fixture *f = make("");
    struct upstream *u = over_files(f, "files", "limit.origin-bytes=1MiB\nretry=0s\n");
    const struct origin_put p = {.key = SLICE_LIT("k")};
    const struct origin_body body = {.size_bytes = 8 * MIB, .read = give_zeros},
                             ends = {.size_bytes = 8 * MIB, .read = give_zeros_of_one_mib};
    const struct origin_get g = {.key = SLICE_LIT("k"), .whole = true},
                            head = {.key = SLICE_LIT("k"), .whole = true, .attributes_only = true};
    struct origin_attr attr;
    assert_int_equal(upstream_put(u, &p, &body, f->arena, &attr, NULL), 0);
    assert_owes_ms(u, 8000);
    assert_int_equal(upstream_put_slowly(u, &p, &body, f->arena, &attr, NULL), 0);
    assert_owes_ms(u, 8000);
    assert_int_equal(upstream_put(u, &p, &ends, f->arena, &attr, NULL), -EIO);
    assert_owes_ms(u, 1000);
    assert_int_equal(upstream_get_once(u, &g, f->arena, &attr, ignore_bytes, NULL, NULL), 0);
    assert_owes_ms(u, 8000);
    assert_int_equal(upstream_get_once(u, &head, f->arena, &attr, ignore_bytes, NULL, NULL), 0);
    assert_true(upstream_has_place(u, /* ahead= */ false));
    upstream_unref(u);
    drop(f);
    clock_sys_stop();
}

/* The further requests of one operation, as the parts of an object, wait for the limits and are paid for
 * each; not when the operation is given up, or the limits have ended. (Without the wait in on_turn the first
 * fails, without its charge the second.) */
static void test_parts_take_their_turns(void **state)
{
    (void)state;
    clock_sys_start(1000000000, 1000000000);
    struct fixture *f = make("limit.origin-bytes=1MiB\nlimit.origin-requests=1\n");
    const atomic_bool cancel = true;
    atomic_bool unlimited = false;
    f->u->unlimited = &unlimited;
    upstream_charge(f->u, 5 * MIB);
    uint64_t from_ns = sys->mono_ns();
    origin_wait_turn(f->u->origin, NULL, NULL);
    assert_in_range(sys->mono_ns() - from_ns, 4800000000, 5200000000);
    origin_wait_turn(f->u->origin, NULL, NULL);
    assert_in_range(sys->mono_ns() - from_ns, 5700000000, 6200000000);
    from_ns = sys->mono_ns();
    upstream_charge(f->u, GIB);
    origin_wait_turn(f->u->origin, &cancel, NULL);
    origin_wait_turn(f->u->origin, NULL, &cancel);
    atomic_store(&unlimited, true);
    origin_wait_turn(f->u->origin, NULL, NULL);
    assert_int_equal(sys->mono_ns(), from_ns);
    drop(f);
    clock_sys_stop();
}

/* A cancelled retry sleeps no longer than it takes to notice. */
static void test_cancelled_retry_ends(void **state)
{
    (void)state;
    clock_sys_start(1000000000, 1000000000);
    struct fixture *f = make("");
    atomic_bool cancel = true;
    struct retry r = {.started_ms = sys_mono_ms()};
    assert_false(upstream_try_again(f->u, &r, ERR_ORIGIN_DOWN, &cancel));
    assert_int_equal(clock_sys_slept_ns(), 0);
    drop(f);
    clock_sys_stop();
}

static void *try_to_enter(void *arg)
{
    struct upstream *u = arg;
    upstream_enter(u);
    upstream_leave(u, -ECANCELED);
    return NULL;
}

/* Who is given up, or whose node stops, waits for no place and tries nothing again; others do. (Without the
 * look at upstream_is_quitting in upstream_enter it never returns.) */
static void test_who_is_given_up_waits_for_nothing(void **state)
{
    (void)state;
    struct fixture *f = make("origin.connections=1\nretry=1h\n");
    atomic_bool stop = false, soon = false;
    struct quit q = {.now = &stop};
    struct retry r = {.started_ms = sys_mono_ms()};
    pthread_t t;
    f->u->origin->stop_soon = &soon;
    upstream_enter(f->u);
    quit_enter(&q);
    assert_false(upstream_is_quitting(f->u));
    atomic_store(&stop, true);
    assert_true(upstream_is_quitting(f->u));
    (void)try_to_enter(f->u);
    assert_false(upstream_try_again(f->u, &r, ERR_ORIGIN_DOWN, NULL));
    assert_int_equal(r.attempt, 0);
    quit_leave(&q);
    assert_true(upstream_try_again(f->u, &r, ERR_ORIGIN_DOWN, NULL));
    assert_int_equal(pthread_create(&t, NULL, try_to_enter, f->u), 0);
    for (unsigned waiting = 0; waiting == 0;) {
        LOCK_SCOPE(&f->u->places->lock);
        waiting = f->u->places->waiting;
    }
    atomic_store(&soon, true);
    (void)pthread_join(t, NULL);
    upstream_leave(f->u, 0);
    assert_false(upstream_try_again(f->u, &r, ERR_ORIGIN_DOWN, NULL));
    drop(f);
}

static void *many_heads(void *arg)
{
    struct fixture *f = arg;
    struct arena *a = arena_new(MIB);
    for (int i = 0; i < 100; i++) {
        struct origin_attr attr;
        arena_clear(a);
        if (upstream_head(f->u, SLICE_LIT("k"), SLICE_NULL, a, &attr, NULL) < 0)
            break;
    }
    arena_free(a);
    return NULL;
}

/* However many threads ask, no more requests run at once than the bucket allows, and all are served. */
static void test_concurrency_stays_within_its_limit(void **state)
{
    (void)state;
    struct fixture *f = make("origin.connections=3\n");
    script_set(f->script, "k", 10, 1);
    pthread_t t[8];
    for (size_t i = 0; i < ARRAY_SIZE(t); i++)
        assert_int_equal(pthread_create(&t[i], NULL, many_heads, f), 0);
    for (size_t i = 0; i < ARRAY_SIZE(t); i++)
        (void)pthread_join(t[i], NULL);
    assert_int_equal(script_count(f->script, SCRIPT_HEAD), 800);
    assert_true(f->script->most_running <= 3);
    assert_int_equal(f->u->places->running, 0);
    drop(f);
}

/* An origin is asked by 64 at a time from the beginning, or as many as it may be; twice as many after one
 * round trip. (Seen to fail with a beginning of 16.) */
static void test_an_origin_is_asked_by_many_at_once(void **state)
{
    (void)state;
    struct fixture *f = make("origin.connections=128\n");
    for (unsigned i = 0; i < 64; i++)
        assert_true(upstream_try_enter(f->u, /* ahead= */ false));
    assert_false(upstream_try_enter(f->u, /* ahead= */ false));
    for (unsigned i = 0; i < 64; i++)
        upstream_leave(f->u, 0);
    assert_true(f->u->places->concurrency.limit == 128);
    drop(f);
    f = make("origin.connections=8\n");
    assert_true(f->u->places->concurrency.limit == 8);
    drop(f);
}

/* Busy answers lower the limit, but never so far that nothing could run. */
static void test_busy_answers_lower_the_limit(void **state)
{
    (void)state;
    clock_sys_start(1000000000, 1000000000);
    struct fixture *f = make("");
    double before = f->u->places->concurrency.limit;
    for (int i = 0; i < 50; i++) {
        assert_true(upstream_try_enter(f->u, /* ahead= */ false));
        upstream_leave(f->u, ERR_ORIGIN_BUSY);
        clock_sys_advance(2000000000);
    }
    assert_true(f->u->places->concurrency.limit < before);
    assert_true(upstream_try_enter(f->u, /* ahead= */ false));
    upstream_leave(f->u, 0);
    drop(f);
    clock_sys_stop();
}

/* Requests that nobody waits for leave a place to those for which somebody does; of one place they get that.
 */
static void test_readahead_leaves_a_place(void **state)
{
    (void)state;
    struct fixture *f = make("origin.connections=8\n");
    for (unsigned i = 0; i < 7; i++)
        assert_true(upstream_try_enter(f->u, /* ahead= */ true));
    assert_false(upstream_try_enter(f->u, /* ahead= */ true));
    assert_true(upstream_try_enter(f->u, /* ahead= */ false));
    assert_false(upstream_try_enter(f->u, /* ahead= */ false));
    for (unsigned i = 0; i < 8; i++)
        upstream_leave(f->u, 0);
    drop(f);
    f = make("origin.connections=1\n");
    assert_true(upstream_try_enter(f->u, /* ahead= */ true));
    upstream_leave(f->u, 0);
    drop(f);
}

/* Of many places they leave one, and a few while somebody waits: as requests end all the time, who waits gets
 * the next one soon. */
static void test_readahead_leaves_few_of_many(void **state)
{
    (void)state;
    struct fixture *f = make("origin.connections=64\n");
    for (unsigned i = 0; i < 64; i++) {
        assert_true(upstream_try_enter(f->u, /* ahead= */ false));
        upstream_leave(f->u, 0);
    }
    unsigned taken = 0;
    while (upstream_has_place(f->u, /* ahead= */ true)) {
        assert_true(upstream_try_enter(f->u, /* ahead= */ true));
        taken++;
    }
    assert_int_equal(taken, 63);
    assert_false(upstream_try_enter(f->u, /* ahead= */ true));
    assert_true(upstream_try_enter(f->u, /* ahead= */ false));
    assert_false(upstream_has_place(f->u, /* ahead= */ false));
    f->u->places->waiting = 1;
    for (unsigned i = 0; i < 4; i++) {
        upstream_leave(f->u, 0);
        assert_true(upstream_has_place(f->u, /* ahead= */ false));
        assert_false(upstream_has_place(f->u, /* ahead= */ true));
    }
    upstream_leave(f->u, 0);
    assert_true(upstream_has_place(f->u, /* ahead= */ true));
    f->u->places->waiting = 0;
    for (unsigned i = 0; i < 59; i++)
        upstream_leave(f->u, 0);
    drop(f);
}

#define MS ((uint64_t)1000000)

/* What goes behind leaves half of the places, whoever asks: a read finds one at once. */
static void test_write_back_leaves_half(void **state)
{
    (void)state;
    clock_sys_start(1000000000, 1000000000);
    struct fixture *f = make("origin.connections=8\n");
    for (unsigned i = 0; i < 4; i++)
        assert_true(upstream_try_enter_behind(f->u, /* waited_ns= */ 0));
    assert_false(upstream_try_enter_behind(f->u, 0));
    assert_false(upstream_try_enter_behind(f->u, UPSTREAM_BEHIND_NS)); /* waiting alone gives none */
    for (unsigned i = 0; i < 4; i++)
        assert_true(upstream_try_enter(f->u, /* ahead= */ false));
    for (unsigned i = 0; i < 4; i++) {
        upstream_leave(f->u, 0);
        upstream_leave_behind(f->u, 0);
    }
    drop(f);
    f = make("origin.connections=1\n");
    assert_true(upstream_try_enter_behind(f->u, 0));
    upstream_leave_behind(f->u, 0);
    drop(f);
    clock_sys_stop();
}

/* While prefetch finds no place, what goes behind has one at a time, where that does no harm, and the others
 * wait until nobody was refused for a second. (Without `wanted` in upstream_try_enter_behind it takes each
 * place that a prefetch has left.) */
static void test_prefetch_goes_before_write_back(void **state)
{
    (void)state;
    clock_sys_start(1000000000, 1000000000);
    struct fixture *f = make("origin.connections=8\n");
    for (unsigned i = 0; i < 7; i++)
        assert_true(upstream_try_enter(f->u, /* ahead= */ true));
    assert_false(upstream_try_enter(f->u, /* ahead= */ true)); /* and will look again */
    for (unsigned i = 0; i < 4; i++)
        upstream_leave(f->u, 0);
    assert_true(upstream_try_enter_behind(f->u, 0));
    assert_false(upstream_try_enter_behind(f->u, 0));
    assert_false(upstream_try_enter_behind(f->u, 10 * UPSTREAM_BEHIND_NS));
    clock_sys_advance(1001 * MS);
    assert_false(upstream_try_enter_behind(f->u, 0)); /* half of the places: three and one are taken */
    upstream_leave(f->u, 0);
    assert_true(upstream_try_enter_behind(f->u, 0));
    for (unsigned i = 0; i < 2; i++) {
        upstream_leave(f->u, 0);
        upstream_leave_behind(f->u, 0);
    }
    drop(f);
    clock_sys_stop();
}

/* Where requests are limited, a prefetch that looks for one gets it, and what goes behind has one a second:
 * it is put off and not given up. */
static void test_write_back_is_put_off_at_a_limited_origin(void **state)
{
    (void)state;
    clock_sys_start(1000000000, 1000000000);
    struct fixture *f = make("limit.origin-requests=10\n");
    unsigned ahead = 0, behind = 0;
    uint64_t since_ns = 0;
    for (unsigned ms = 0; ms < 20000; ms += 10) {
        clock_sys_advance(10 * MS);
        uint64_t now_ns = sys->mono_ns();
        bool entered = upstream_try_enter_behind(f->u, since_ns > 0 ? now_ns - since_ns : 0);
        since_ns = entered ? 0 : since_ns > 0 ? since_ns : now_ns;
        if (entered)
            upstream_leave_behind(f->u, 0);
        behind += entered;
        for (; upstream_try_enter(f->u, /* ahead= */ true); ahead++)
            upstream_leave(f->u, 0);
    }
    assert_in_range(behind, 5, 22);
    assert_true(ahead > 150); /* the rest of what 20 seconds allow */
    drop(f);
    clock_sys_stop();
}

struct reader {
    struct upstream *u;
    pthread_t thread;
};

static void *reader_main(void *arg)
{
    struct reader *r = arg;
    upstream_enter(r->u);
    upstream_leave(r->u, 0);
    return NULL;
}

/* Who waits for a place, as a read does, is not overtaken by what goes behind when some get free. */
static void test_reads_go_before_write_back(void **state)
{
    (void)state;
    struct fixture *f = make("origin.connections=3\n");
    struct reader r = {.u = f->u};
    for (unsigned i = 0; i < 3; i++)
        assert_true(upstream_try_enter(f->u, /* ahead= */ false));
    assert_int_equal(pthread_create(&r.thread, NULL, reader_main, &r), 0);
    for (bool waits = false; !waits;) {
        lock_take(&f->u->places->lock);
        waits = f->u->places->waiting > 0;
        if (waits) /* two places get free, and the reader has not heard of it */
            f->u->places->running -= 2;
        lock_drop(&f->u->places->lock);
        sys->sleep_ns(MS);
    }
    bool overtook = upstream_try_enter_behind(f->u, 0);
    if (overtook)
        upstream_leave_behind(f->u, 0);
    upstream_leave(f->u, 0);
    assert_int_equal(pthread_join(r.thread, NULL), 0);
    assert_false(overtook);
    assert_int_equal(f->u->places->running, 0);
    drop(f);
}

/* ---- buckets at one service ---- */

#define AT_SERVICE                                                                                           \
    "origin.endpoint=http://127.0.0.1:1\norigin.secret_key=S\norigin.region=r\norigin.access_key="

/* A bucket of that name at the service, asked for as `account`. */
static struct upstream *at_service(struct fixture *f, struct service_table *t, const char *name,
                                   const char *account, const char *settings)
{
    char text[1024];
    struct bucket *b = NULL;
    struct upstream *u = NULL;
    (void)snprintf(text, sizeof(text), "origin=s3://%s\n" AT_SERVICE "%s\n%s", name, account, settings);
    assert_int_equal(bucket_create(f->table, slice_str(name), slice_str(text), &b, NULL), 0);
    assert_int_equal(upstream_open(b, &u, NULL), 0);
    bucket_unref(b);
    upstream_join(u, t);
    return u;
}

/* One request that ends so. */
static void ask_once(struct upstream *u, int result)
{
    assert_true(upstream_try_enter(u, /* ahead= */ false));
    upstream_leave(u, result);
}

/* What the service asks one bucket to wait for all of them wait for, and no other account does. (Without
 * shared_pause in upstream_join the second one asks.) */
static void test_a_pause_holds_for_all_buckets_of_a_service(void **state)
{
    (void)state;
    clock_sys_start(1000000000, 1000000000);
    struct fixture *f = make("");
    struct service_table *t = service_table_new();
    struct upstream *one = at_service(f, t, "one", "K", ""), *two = at_service(f, t, "two", "K", ""),
                    *other = at_service(f, t, "other", "L", "");
    origin_pause(one->origin, 5000);
    assert_false(upstream_try_enter(one, /* ahead= */ false));
    assert_false(upstream_try_enter(two, /* ahead= */ false));
    ask_once(other, 0);
    struct upstream *late = at_service(f, t, "late", "K", "");
    assert_false(upstream_try_enter(late, /* ahead= */ false));
    clock_sys_advance(5001 * MS);
    ask_once(two, 0);
    ask_once(late, 0);
    upstream_unref(one);
    upstream_unref(two);
    upstream_unref(other);
    upstream_unref(late);
    service_table_free(t);
    drop(f);
    clock_sys_stop();
}

/* A busy answer to one bucket halves how many requests each of the service has at once, and each raises that
 * again by its own successes, up to its own origin.connections; what was busy long ago lowers nothing.
 * (Without hear_locked the second goes on as before.) */
static void test_a_busy_answer_lowers_all_buckets_of_a_service(void **state)
{
    (void)state;
    clock_sys_start(1000000000, 1000000000);
    struct fixture *f = make("");
    struct service_table *t = service_table_new();
    struct upstream *one = at_service(f, t, "one", "K", ""),
                    *two = at_service(f, t, "two", "K", "origin.connections=8\n"),
                    *three = at_service(f, t, "three", "K", ""), *other = at_service(f, t, "other", "L", "");
    ask_once(one, ERR_ORIGIN_BUSY);
    assert_true(one->places->concurrency.limit == 32);
    assert_true(upstream_has_place(two, /* ahead= */ false));
    assert_true(two->places->concurrency.limit == 4);
    assert_true(upstream_has_place(two, /* ahead= */ false));
    assert_true(two->places->concurrency.limit == 4); /* once for each answer */
    assert_true(upstream_has_place(other, /* ahead= */ false));
    assert_true(other->places->concurrency.limit == 64);
    for (int i = 0; i < 100; i++)
        ask_once(two, 0);
    assert_true(two->places->concurrency.limit == 8);
    assert_true(one->places->concurrency.limit == 32);
    clock_sys_advance(SERVICE_SLOW_MS * MS);
    ask_once(three, -ENOENT);
    assert_true(three->places->concurrency.limit == 64);
    upstream_unref(one);
    upstream_unref(two);
    upstream_unref(three);
    upstream_unref(other);
    service_table_free(t);
    drop(f);
    clock_sys_stop();
}

/* While a service is slow, a bucket's reads that find no place there go before what another one prefetches or
 * writes back, which have one request a second; not before its reads, not when the service is not slow, and
 * not for the sake of limits of their own. (Without must_yield_locked prefetch goes on, without `others` in
 * upstream_try_enter_behind write-back does.) */
static void test_reads_go_before_prefetch_of_another_bucket(void **state)
{
    (void)state;
    clock_sys_start(1000000000, 1000000000);
    struct fixture *f = make("");
    struct service_table *t = service_table_new();
    struct upstream *reads = at_service(f, t, "reads", "K", "origin.connections=1\n"),
                    *other = at_service(f, t, "other", "K", ""), *apart = at_service(f, t, "apart", "L", "");
    unsigned taken = 0;
    assert_true(upstream_try_enter(reads, /* ahead= */ false));
    assert_false(upstream_try_enter(reads, /* ahead= */ false)); /* by its own number of connections */
    for (int i = 0; i < 2; i++)
        assert_true(upstream_try_enter(other, /* ahead= */ true));
    taken += 2;
    ask_once(other, ERR_ORIGIN_BUSY);
    ask_once(apart, ERR_ORIGIN_BUSY);
    for (int second = 0; second < 3; second++) {
        assert_false(upstream_try_enter(reads, /* ahead= */ false));
        assert_true(upstream_has_place(other, /* ahead= */ true));
        assert_true(upstream_try_enter(other, /* ahead= */ true));
        assert_false(upstream_has_place(other, /* ahead= */ true));
        assert_false(upstream_try_enter(other, /* ahead= */ true));
        assert_true(upstream_try_enter(other, /* ahead= */ false));
        assert_true(upstream_try_enter(apart, /* ahead= */ true));
        upstream_leave(apart, 0);
        taken += 2;
        clock_sys_advance(999 * MS);
        assert_false(upstream_try_enter(other, /* ahead= */ true));
        clock_sys_advance(MS);
    }
    assert_false(upstream_try_enter(reads, /* ahead= */ false));
    assert_false(upstream_try_enter_behind(other, /* waited_ns= */ 0));
    assert_true(upstream_try_enter_behind(other, UPSTREAM_BEHIND_NS));
    assert_false(upstream_try_enter_behind(other, UPSTREAM_BEHIND_NS)); /* one at a time */
    upstream_leave_behind(other, 0);
    upstream_leave(reads, 0);
    assert_true(upstream_try_enter(reads, /* ahead= */ false));
    clock_sys_advance(1001 * MS); /* nobody looks any more */
    for (int i = 0; i < 2; i++)
        assert_true(upstream_try_enter(other, /* ahead= */ true));
    taken += 2;
    clock_sys_advance(SERVICE_SLOW_MS * MS);
    assert_false(upstream_try_enter(reads, /* ahead= */ false)); /* while it is not slow any more */
    for (int i = 0; i < 2; i++)
        assert_true(upstream_try_enter(other, /* ahead= */ true));
    taken += 2;
    while (taken-- > 0)
        upstream_leave(other, 0);
    upstream_leave(reads, 0);
    upstream_unref(reads);
    upstream_unref(other);
    upstream_unref(apart);
    service_table_free(t);
    drop(f);
    clock_sys_stop();
}

struct asking {
    struct upstream *u;
    bool ahead;
};

static void *ask_many_times(void *arg)
{
    struct asking *a = arg;
    for (int i = 0; i < 2000; i++)
        if (!a->ahead) {
            upstream_enter(a->u);
            upstream_leave(a->u, i % 100 == 0 ? ERR_ORIGIN_BUSY : 0);
        } else if (upstream_try_enter(a->u, /* ahead= */ true)) {
            upstream_leave(a->u, 0);
        } else if (upstream_try_enter_behind(a->u, UPSTREAM_BEHIND_NS)) {
            upstream_leave_behind(a->u, 0);
        }
    return NULL;
}

/* Threads of two buckets at one service, of which some are told that it is busy, all come to their end, and
 * no place stays taken. (For ThreadSanitizer, too.) */
static void test_two_buckets_of_a_service_in_threads(void **state)
{
    (void)state;
    struct fixture *f = make("");
    struct service_table *t = service_table_new();
    struct upstream *u[2] = {at_service(f, t, "one", "K", "origin.connections=3\n"),
                             at_service(f, t, "two", "K", "")};
    struct asking asking[8];
    pthread_t threads[8];
    for (size_t i = 0; i < ARRAY_SIZE(threads); i++) {
        asking[i] = (struct asking){.u = u[i % 2], .ahead = i >= 4};
        assert_int_equal(pthread_create(&threads[i], NULL, ask_many_times, &asking[i]), 0);
    }
    for (size_t i = 0; i < ARRAY_SIZE(threads); i++)
        (void)pthread_join(threads[i], NULL);
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(u[i]->places->running, 0);
        assert_true(upstream_has_place(u[i], /* ahead= */ false));
        upstream_unref(u[i]);
    }
    service_table_free(t);
    drop(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_passing_failure_is_repeated),
        cmocka_unit_test(test_lasting_failure_is_given_up_in_time),
        cmocka_unit_test(test_budget_bounds_the_retries_of_an_outage),
        cmocka_unit_test(test_an_origin_is_not_asked_while_it_pauses),
        cmocka_unit_test(test_conditional_put_is_not_repeated_blindly),
        cmocka_unit_test(test_removal_with_a_lost_answer_has_happened),
        cmocka_unit_test(test_conditional_removal_with_a_lost_answer_has_happened),
        cmocka_unit_test(test_limits_end_when_the_node_stops),
        cmocka_unit_test(test_who_asks_nothing_pays_nothing),
        cmocka_unit_test(test_slow_puts_are_paid_for),
        cmocka_unit_test(test_bytes_are_paid_for_both_ways),
        cmocka_unit_test(test_parts_take_their_turns),
        cmocka_unit_test(test_cancelled_retry_ends),
        cmocka_unit_test(test_who_is_given_up_waits_for_nothing),
        cmocka_unit_test(test_concurrency_stays_within_its_limit),
        cmocka_unit_test(test_an_origin_is_asked_by_many_at_once),
        cmocka_unit_test(test_busy_answers_lower_the_limit),
        cmocka_unit_test(test_readahead_leaves_few_of_many),
        cmocka_unit_test(test_readahead_leaves_a_place),
        cmocka_unit_test(test_write_back_leaves_half),
        cmocka_unit_test(test_prefetch_goes_before_write_back),
        cmocka_unit_test(test_write_back_is_put_off_at_a_limited_origin),
        cmocka_unit_test(test_reads_go_before_write_back),
        cmocka_unit_test(test_a_pause_holds_for_all_buckets_of_a_service),
        cmocka_unit_test(test_a_busy_answer_lowers_all_buckets_of_a_service),
        cmocka_unit_test(test_reads_go_before_prefetch_of_another_bucket),
        cmocka_unit_test(test_two_buckets_of_a_service_in_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* layer: namespace */
/* threaded */
/*
 * Places at an S3 origin of which several change one key under conditions: those that wait for their turn
 * hold none.
 */
#include "namespace/upstream.h"

#include "http_script.h"
#include "support/tmpdir.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define MADE   "HTTP/1.1 200 OK\r\nETag: \"new\"\r\nContent-Length: 0\r\n\r\n"
#define PLACES "4"

struct fixture {
    struct kv *kv;
    struct bucket_table *table;
    struct upstream *u;
    struct script script;
    struct origin_meter meter; /* the upstream's own, which tells of what it is told */
    const struct origin_meter *own;
    atomic_uint aside, back;
};

/* Reached from the meter, whose argument is the upstream's. */
static struct fixture *now;

static void on_aside(void *arg)
{
    now->own->aside(arg);
    (void)atomic_fetch_add(&now->aside, 1);
}

static void on_back(void *arg, bool goes_on)
{
    (void)atomic_fetch_add(&now->back, 1);
    now->own->back(arg, goes_on);
}

static void start(struct fixture *f, const struct script_step *steps, size_t n)
{
    struct err e = {0};
    struct bucket *b = NULL;
    char text[512];
    memset(f, 0, sizeof(*f));
    script_start(&f->script, steps, n);
    (void)snprintf(
        text, sizeof(text),
        "origin=s3://b\norigin.endpoint=http://127.0.0.1:%u\norigin.access_key=a\norigin.secret_key=s\n"
        "origin.connections=" PLACES "\n",
        f->script.port);
    assert_int_equal(kv_open_memory(&f->kv), 0);
    if (bucket_table_open(f->kv, NULL, &f->table, &e) < 0 ||
        bucket_create(f->table, SLICE_LIT("data"), slice_str(text), &b, &e) < 0 ||
        upstream_open(b, &f->u, &e) < 0)
        fail_msg("%s", e.text);
    bucket_unref(b);
    f->own = f->u->origin->meter;
    f->meter = *f->own;
    f->meter.aside = on_aside;
    f->meter.back = on_back;
    f->u->origin->meter = &f->meter;
    now = f;
}

static void stop(struct fixture *f)
{
    assert_int_equal(f->u->places->running, 0);
    assert_int_equal(f->u->places->behind, 0);
    upstream_unref(f->u);
    script_stop(&f->script);
    bucket_table_close(f->table);
    kv_close(f->kv);
}

static ssize_t zeros(void *arg, void *p, size_t n, uint64_t offset)
{
    (void)arg, (void)offset;
    memset(p, 0, n);
    return (ssize_t)n;
}

struct change {
    struct fixture *f;
    bool behind;
    atomic_bool cancel;
    pthread_t thread;
    int result;
};

static int put(struct change *c, bool behind)
{
    struct arena *_cleanup_(arena_freep) a = arena_new(64 * KIB);
    const struct origin_put p = {.key = SLICE_LIT("k"), .if_none_match = true, .cancel = &c->cancel};
    const struct origin_body body = {.size_bytes = 1, .read = zeros};
    struct upstream *u = c->f->u;
    struct origin_attr attr;
    struct upstream_held place;
    if (!behind)
        return upstream_put(u, &p, &body, a, &attr, NULL);
    while (!upstream_try_enter_behind(u, UPSTREAM_BEHIND_NS))
        script_sleep_ms(5);
    upstream_hold(&place, u, /* behind= */ true);
    int r = origin_put(u->origin, &p, &body, a, &attr, NULL);
    upstream_unhold(&place);
    upstream_leave_behind(u, r);
    return r;
}

static void *put_main(void *arg)
{
    struct change *c = arg;
    c->result = put(c, c->behind);
    return NULL;
}

static void begin(struct change *c, struct fixture *f, bool behind)
{
    *c = (struct change){.f = f, .behind = behind};
    assert_int_equal(pthread_create(&c->thread, NULL, put_main, c), 0);
}

static int end(struct change *c)
{
    assert_int_equal(pthread_join(c->thread, NULL), 0);
    return c->result;
}

static void wait_for(atomic_uint *n, unsigned least)
{
    for (int i = 0; i < 12000 && atomic_load(n) < least; i++)
        script_sleep_ms(5);
    assert_true(atomic_load(n) >= least);
}

static void wait_for_steps(struct fixture *f, size_t n)
{
    for (int i = 0; i < 12000 && script_steps_taken(&f->script) < n; i++)
        script_sleep_ms(5);
    assert_int_equal(script_steps_taken(&f->script), n);
}

/* One change of a key is at the origin, which does not answer, and others wait for their turn, more than
 * there are places: there is one for a read. In the end each has had a place again, also of those that go
 * behind. (With nothing done in on_aside and on_back of upstream.c the fourth finds no place, and
 * never comes so far.) */
static void test_who_waits_for_a_turn_has_no_place(void **state)
{
    atomic_bool go = false;
    const struct script_step steps[6] = {{.answer = MADE, .gate = &go},
                                         {.answer = MADE},
                                         {.answer = MADE},
                                         {.answer = MADE},
                                         {.answer = MADE},
                                         {.answer = MADE}};
    struct change changes[6];
    struct fixture f;
    (void)state;
    start(&f, steps, ARRAY_SIZE(steps));
    begin(&changes[0], &f, /* behind= */ false);
    wait_for_steps(&f, 1);
    for (unsigned i = 1; i < ARRAY_SIZE(changes); i++) {
        begin(&changes[i], &f, /* behind= */ i == 3);
        wait_for(&f.aside, i);
    }
    assert_true(upstream_try_enter(f.u, /* ahead= */ false));
    upstream_step_back(f.u);
    assert_int_equal(atomic_load(&f.back), 0);
    atomic_store(&go, true);
    for (size_t i = 0; i < ARRAY_SIZE(changes); i++)
        assert_int_equal(end(&changes[i]), 0);
    assert_int_equal(script_steps_taken(&f.script), ARRAY_SIZE(steps));
    stop(&f);
}

/* Who is given up while he waits for his turn asks nothing, needs no place for that, and leaves none taken.
 * (Fails with enter_anyway left out of on_back of upstream.c, and waits for ever with upstream_enter in its
 * place.) */
static void test_who_is_given_up_before_his_turn_leaves(void **state)
{
    atomic_bool go = false;
    const struct script_step steps[] = {{.answer = MADE, .gate = &go}};
    struct change first, second;
    struct fixture f;
    (void)state;
    start(&f, steps, ARRAY_SIZE(steps));
    begin(&first, &f, /* behind= */ false);
    wait_for_steps(&f, 1);
    begin(&second, &f, /* behind= */ false);
    wait_for(&f.aside, 1);
    for (int i = 0; i < 3; i++) /* all that are left */
        assert_true(upstream_try_enter(f.u, /* ahead= */ false));
    atomic_store(&second.cancel, true);
    assert_int_equal(end(&second), -ECANCELED);
    for (int i = 0; i < 3; i++)
        upstream_step_back(f.u);
    atomic_store(&go, true);
    assert_int_equal(end(&first), 0);
    stop(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_who_waits_for_a_turn_has_no_place),
        cmocka_unit_test(test_who_is_given_up_before_his_turn_leaves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

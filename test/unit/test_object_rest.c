/* layer: object */
/* threaded */
/* Connections to origins that nobody uses any more are ended: what ends them is in test_origin_rest.c. */
#include "base/sys.h"
#include "node_fixture.h"
#include "object/object_internal.h"

static struct fixture T;
static atomic_uint rested;

static int setup(void **state)
{
    (void)state;
    node_around(&T);
    node_open(&T);
    node_bucket(&T, "");
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    node_close(&T, store_close);
    node_gone(&T);
    return 0;
}

static size_t count_rest(struct origin *o, uint64_t now_ms)
{
    (void)o, (void)now_ms;
    (void)atomic_fetch_add(&rested, 1);
    return 0;
}

/* The steward has the origin of each bucket do it, now and then: of one that nobody uses nobody else would.
 */
static void test_the_steward_has_origins_rest(void **state)
{
    (void)state;
    struct upstream *u = NULL;
    assert_int_equal(object_upstream(T.service, SLICE_LIT("data"), &u, NULL), 0);
    const struct origin_ops *ops = u->origin->ops;
    struct origin_ops counting = *ops;
    counting.rest = count_rest;
    u->origin->ops = &counting;
    steward_hurry(T.service->steward);
    for (int i = 0; i < 2000 && atomic_load(&rested) == 0; i++)
        sys->sleep_ns(10000000);
    object_session_free(T.session);
    object_service_close(T.service); /* which ends the steward */
    u->origin->ops = ops;
    upstream_unref(u);
    store_close(T.store);
    node_open(&T);
    assert_true(atomic_load(&rested) > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_the_steward_has_origins_rest, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

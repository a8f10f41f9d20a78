/* layer: object */
/* threaded */
/* What nobody uses any more: connections to origins are ended (what ends them is in test_origin_rest.c), and
 * copies of uploads that nobody goes on with are so many at most. */
#include "base/sys.h"
#include "node_fixture.h"
#include "object/object_internal.h"
#include "object/upload_table.h"

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

/* Of uploads that nobody goes on with so many have a copy of their parts, and an open file, and no more;
 * those that come later have one when there are fewer. (Without count_copies_locked all have.) */
static void test_copies_of_uploads_are_bounded(void **state)
{
    (void)state;
    static struct upload_slot *slots[UPLOAD_COPIES_MAX + 1];
    struct upload_stage g;
    struct upstream *u = NULL;
    assert_int_equal(object_upstream(T.service, SLICE_LIT("data"), &u, NULL), 0);
    for (size_t i = 0; i < ARRAY_SIZE(slots); i++) {
        struct id128 id;
        id_new(&id);
        slots[i] = upload_slot_get(T.service, u->bucket->id, id);
        upload_stage_begin(T.service, slots[i], u, SLICE_LIT("k"), 1, 10, &g);
        assert_int_equal(g.extent != NULL, i < UPLOAD_COPIES_MAX);
        upload_stage_end(T.service, slots[i], &g, /* ok= */ true);
        upload_slot_put(T.service, slots[i]);
    }
    upload_slots_forget(T.service, u->bucket->id);
    struct id128 id;
    id_new(&id);
    struct upload_slot *slot = upload_slot_get(T.service, u->bucket->id, id);
    upload_stage_begin(T.service, slot, u, SLICE_LIT("k"), 1, 10, &g);
    assert_non_null(g.extent);
    upload_stage_end(T.service, slot, &g, /* ok= */ true);
    upload_slot_put(T.service, slot);
    upstream_unref(u);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_the_steward_has_origins_rest, setup, teardown),
        cmocka_unit_test_setup_teardown(test_copies_of_uploads_are_bounded, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* layer: object */
/* threaded */
/* Slots of uploads in parts: an end waits for the parts of its own upload. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "object/upload_table.h"

#include <pthread.h>

struct closer {
    struct object_service *service;
    struct upload_slot *slot;
    int result;
    _Atomic bool done;
};

static void *close_it(void *arg)
{
    struct closer *c = arg;

    c->result = upload_slot_close(c->service, c->slot, NULL);
    c->done = true;
    return NULL;
}

/* Parts of other uploads that end do not shorten the wait, however many there are. Fails where waits are
 * counted instead of time. */
static void an_end_waits_for_its_own_parts(void **state)
{
    struct object_service *s = calloc(1, sizeof *s);
    struct id128 mine, other;
    struct closer c = {.service = s};
    struct upload_slot *busy;
    pthread_t thread;
    (void)state;

    assert_non_null(s);
    lock_init(&s->upload_lock, LOCK_OBJECT);
    cond_init(&s->upload_ended);
    id_new(&mine);
    id_new(&other);
    c.slot = upload_slot_get(s, 1, mine);
    busy = upload_slot_get(s, 1, other);
    assert_int_equal(upload_slot_enter(s, c.slot, NULL), 0);
    assert_int_equal(pthread_create(&thread, NULL, close_it, &c), 0);
    while (!upload_slot_is_closing(s, c.slot))
        (void)usleep(1000);
    for (int i = 0; i < 500; i++) {
        assert_int_equal(upload_slot_enter(s, busy, NULL), 0);
        upload_slot_leave(s, busy);
        (void)usleep(1000);
    }
    assert_false(c.done);
    upload_slot_leave(s, c.slot);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(c.result, 0);
    upload_slot_reopen(s, c.slot);
    upload_slot_put(s, c.slot);
    upload_slot_put(s, busy);
    assert_null(s->upload_slots);
    cond_fini(&s->upload_ended);
    lock_fini(&s->upload_lock);
    free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(an_end_waits_for_its_own_parts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

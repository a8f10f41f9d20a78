/* layer: object */
/* threaded */
/* Slots of uploads in parts: who may begin and end what. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "object/upload_table.h"
#include "support/clock_sys.h"

#include <pthread.h>

/* An end waits for no part: from then on none begins, until the end has failed. One end at a time. (Seen to
 * take a minute, and to be a conflict then, where an end waits for parts that have begun.) */
static void an_end_waits_for_no_part(void **state)
{
    struct object_service *s = calloc(1, sizeof *s);
    struct id128 mine;
    (void)state;

    assert_non_null(s);
    lock_init(&s->upload_lock, LOCK_OBJECT);
    cond_init(&s->upload_ended);
    id_new(&mine);
    struct upload_slot *slot = upload_slot_get(s, 1, mine);
    assert_int_equal(upload_slot_enter(s, slot, NULL), 0);
    assert_true(upload_slots_busy(s, 1, mine));
    assert_int_equal(upload_slot_close(s, slot, NULL), 0);
    assert_int_equal(upload_slot_close(s, slot, NULL), ERR_CONFLICT);
    assert_int_equal(upload_slot_enter(s, slot, NULL), -ENOENT);
    upload_slot_stop(s, slot);
    assert_false(upload_slot_has_ended(s, slot)); /* it may fail yet */
    upload_slot_end(s, slot);
    assert_true(upload_slot_has_ended(s, slot));
    upload_slot_reopen(s, slot);
    assert_false(upload_slot_has_ended(s, slot));
    assert_int_equal(upload_slot_enter(s, slot, NULL), 0);
    upload_slot_leave(s, slot);
    upload_slot_leave(s, slot);
    upload_slot_put(s, slot);
    assert_null(s->upload_slots);
    cond_fini(&s->upload_ended);
    lock_fini(&s->upload_lock);
    free(s);
}

/* A copy that the origin makes, by a thread of its own: it ends when it is told to, or by itself once the end
 * waits for it. */
struct copier {
    struct object_service *service;
    struct upload_slot *slot;
    struct upload_way way;
    atomic_bool stop, waits;
    bool ends_itself;
};

static void *copy_it(void *arg)
{
    struct copier *c = arg;

    while (!atomic_load(&c->stop) && !(c->ends_itself && atomic_load(&c->waits))) {
        (void)usleep(1000);
        if (atomic_load(&c->waits) && !c->ends_itself)
            clock_sys_advance(100000000);
    }
    upload_slot_unsend(c->service, c->slot, &c->way);
    return NULL;
}

/* An end waits for what the origin copies by itself, as for parts that it may have all bytes of: one that is
 * done within five seconds is not disturbed, another one is given up. Behind the end none begins. (Seen to
 * fail where stop_way_locked tells none, or tells one at once.) */
static void an_end_gives_up_copies(void **state)
{
    struct object_service *s = calloc(1, sizeof *s);
    (void)state;

    assert_non_null(s);
    lock_init(&s->upload_lock, LOCK_OBJECT);
    cond_init(&s->upload_ended);
    for (int ends_itself = 1; ends_itself >= 0; ends_itself--) {
        struct copier c = {.service = s, .ends_itself = ends_itself};
        struct upload_way late;
        pthread_t thread;
        struct id128 mine;

        id_new(&mine);
        atomic_init(&c.stop, false);
        atomic_init(&c.waits, false);
        c.slot = upload_slot_get(s, 1, mine);
        assert_int_equal(upload_slot_copy(s, c.slot, &c.way, &c.stop, NULL), 0);
        assert_int_equal(upload_slot_close(s, c.slot, NULL), 0);
        clock_sys_start(1, 1);
        assert_int_equal(pthread_create(&thread, NULL, copy_it, &c), 0);
        atomic_store(&c.waits, true);
        upload_slot_stop(s, c.slot);
        assert_int_equal(atomic_load(&c.stop), !ends_itself);
        assert_int_equal(pthread_join(thread, NULL), 0);
        clock_sys_stop();
        assert_int_equal(upload_slot_copy(s, c.slot, &late, &c.stop, NULL), -ENOENT);
        upload_slot_put(s, c.slot);
    }
    assert_null(s->upload_slots);
    cond_fini(&s->upload_ended);
    lock_fini(&s->upload_lock);
    free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_end_waits_for_no_part),
        cmocka_unit_test(an_end_gives_up_copies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

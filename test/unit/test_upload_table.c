/* layer: object */
/* threaded */
/* Slots of uploads in parts: who may begin and end what. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "object/upload_table.h"

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

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(an_end_waits_for_no_part)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* layer: object */
/* threaded */
/* Parts on their way to an origin: the memory that one takes has a bound that its size does not move. */
#include "object/part_send.h"
#include "object/upload_table.h"
#include "script_origin.h"

#include "base/metrics.h"
#include "support/tmpdir.h"

#define PIECE (128 * KIB)

struct fixture {
    char *dir;
    struct kv *kv;
    struct bucket_table *table;
    struct script *script;
    struct origin_ops ops;
    struct upstream *u;
    struct object_service *service;
};

static _Atomic uint64_t arrived;
static _Atomic uint64_t fails_at; /* the next call fails at this byte; 0: it does not */
static atomic_int n_calls;
static atomic_int n_refused; /* so many calls find no connection */
static atomic_bool was_once;
static atomic_bool answers_never; /* the origin takes all bytes, and waits until it is given up */

static bool fails_here(uint64_t at)
{
    return atomic_load(&fails_at) > 0 && at >= atomic_load(&fails_at);
}

/* Takes all of the part, and looks at it. */
static int take_part(struct origin *o, const struct origin_put *p, struct slice id, uint32_t number,
                     const struct origin_body *body, char ret_etag[ORIGIN_ETAG_MAX + 1], struct err *e)
{
    char piece[16 * KIB];
    (void)o, (void)id, (void)number;
    (void)atomic_fetch_add(&n_calls, 1);
    atomic_store(&was_once, body->once);
    if (atomic_load(&n_refused) > 0) {
        (void)atomic_fetch_sub(&n_refused, 1);
        return err_set(e, ERR_ORIGIN_DOWN, "refused");
    }
    for (uint64_t at = 0; at < body->size_bytes;) {
        if (fails_here(at)) {
            atomic_store(&fails_at, 0);
            return err_set(e, ERR_ORIGIN_FAILED, "as told");
        }
        ssize_t n = body->read(body->arg, piece, sizeof(piece), at);
        if (n < 0)
            return err_set(e, (int)n, "the body");
        if (piece[0] != (char)(at / PIECE) || piece[n - 1] != (char)((at + (uint64_t)n - 1) / PIECE))
            return err_set(e, ERR_CORRUPT, "other bytes");
        at += (uint64_t)n;
        atomic_store(&arrived, at);
    }
    if (atomic_load(&answers_never)) {
        while (!atomic_load(p->cancel))
            (void)usleep(1000);
        return err_set(e, -ECANCELED, "canceled");
    }
    (void)snprintf(ret_etag, ORIGIN_ETAG_MAX + 1, "e");
    return 0;
}

static int no_create(struct origin *o, const struct origin_put *p, char ret_id[ORIGIN_UPLOAD_ID_MAX],
                     bool *ret_sums, struct err *e)
{
    (void)o, (void)p, (void)ret_id, (void)ret_sums;
    return err_set(e, ERR_NOT_IMPLEMENTED, "not asked for");
}

static struct fixture *make(uint64_t budget_bytes)
{
    struct fixture *f = calloc(1, sizeof(*f));
    assert_non_null(f);
    f->dir = tmpdir_new();
    assert_int_equal(kv_open_memory(&f->kv), 0);
    f->script = script_new();
    f->u = script_upstream(f->script, f->kv, f->dir, "", &f->table);
    f->ops = *f->u->origin->ops;
    f->ops.upload_create = no_create;
    f->ops.upload_part = take_part;
    f->u->origin->ops = &f->ops;
    f->service = calloc(1, sizeof(*f->service));
    assert_non_null(f->service);
    f->service->part_budget = budget_new(budget_bytes);
    atomic_store(&arrived, 0);
    atomic_store(&n_calls, 0);
    return f;
}

static void drop(struct fixture *f)
{
    assert_int_equal(budget_used(f->service->part_budget), 0);
    assert_int_equal(f->service->parts, 0);
    budget_free(f->service->part_budget);
    free(f->service);
    upstream_unref(f->u);
    script_free(f->script);
    bucket_table_close(f->table);
    kv_close(f->kv);
    tmpdir_free(f->dir);
    free(f);
}

static struct part_plan plan_of(uint32_t number, uint64_t size)
{
    return (struct part_plan){
        .key = SLICE_LIT("k"), .origin_id = SLICE_LIT("id"), .number = number, .size = size};
}

static struct part_send *begin(struct fixture *f, uint64_t size)
{
    const struct part_plan plan = plan_of(1, size);
    struct part_send *p = NULL;
    struct err e = {0};
    int r = part_send_new(f->service, f->u, &plan, /* wait_ms= */ 0, &p, &e);
    if (r < 0)
        fail_msg("%s", e.text);
    return p;
}

/* A part of 5 GiB takes what one of 16 MiB does, and a small one its own size. */
static void test_memory_does_not_grow_with_the_part(void **state)
{
    static const struct {
        uint64_t size, taken;
    } rows[] = {
        {0, 4096},
        {1, 4096},
        {5 * MIB, 5 * MIB},
        {16 * MIB, 16 * MIB},
        {16 * MIB + 1, 16 * MIB},
        {100 * MIB, 16 * MIB},
        {5 * GIB, 16 * MIB},
    };
    struct fixture *f = make(64 * MIB);
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        struct part_send *p = begin(f, rows[i].size);
        assert_int_equal(budget_used(f->service->part_budget), rows[i].taken);
        part_send_free(p);
        assert_int_equal(budget_used(f->service->part_budget), 0);
    }
    drop(f);
}

/* Nor does it while the bytes go through, four times as many as there is memory for; the origin has each of
 * them.
 */
static void test_memory_stays_while_bytes_pass(void **state)
{
    struct fixture *f = make(64 * MIB);
    struct part_send *p = begin(f, 64 * MIB);
    _cleanup_free_ char *piece = malloc(PIECE);
    struct slice etag;
    struct err e = {0};
    (void)state;
    assert_non_null(piece);
    for (uint64_t i = 0; i < 64 * MIB / PIECE; i++) {
        memset(piece, (char)i, PIECE);
        assert_int_equal(part_send_write(p, slice_of(piece, PIECE), &e), 0);
        assert_int_equal(budget_used(f->service->part_budget), 16 * MIB);
        assert_true(part_send_written(p) - atomic_load(&arrived) <= 16 * MIB + PIECE);
    }
    assert_int_equal(part_send_end(p, &etag, &e), 0);
    assert_true(slice_eq_str(etag, "e"));
    assert_int_equal(atomic_load(&arrived), 64 * MIB);
    part_send_free(p);
    drop(f);
}

static uint64_t refused(void)
{
    return metrics_value(metrics_series(METRIC_MEMORY_REFUSED, "parts", NULL, NULL));
}

/* A part that there are too many others for is refused for that, and not for want of memory. (Fails where
 * every ERR_ORIGIN_BUSY of part_send_new counts as one.) */
static void test_too_many_parts_are_no_want_of_memory(void **state)
{
    struct fixture *f = make(4 * MIB);
    struct metric_series *crowd = metrics_series(METRIC_CROWD_REFUSED, "parts", NULL, NULL);
    const struct part_plan plan = plan_of(1, 1);
    const uint64_t before = refused(), crowd_before = metrics_value(crowd);
    struct part_send *p = NULL;
    struct err e = {0};
    (void)state;
    (void)atomic_fetch_add(&f->service->parts, 256);
    assert_int_equal(part_send_new(f->service, f->u, &plan, /* wait_ms= */ 1, &p, &e), ERR_ORIGIN_BUSY);
    (void)atomic_fetch_sub(&f->service->parts, 256);
    assert_null(p);
    assert_int_equal(refused(), before);
    assert_int_equal(metrics_value(crowd), crowd_before + 1);
    drop(f);
}

/* Where all parts together have less than that, one has all of it, and the next is told to come later. Who
 * was ready to wait is counted; who was not has another way. [Not without the metrics_count in part_send.c,
 * nor where it counts both.] */
static void test_parts_share_what_there_is(void **state)
{
    struct fixture *f = make(4 * MIB);
    struct part_send *first = begin(f, 5 * GIB), *second = NULL;
    struct err e = {0};
    (void)state;
    assert_int_equal(budget_used(f->service->part_budget), 4 * MIB);
    const struct part_plan plan = plan_of(2, 1);
    const uint64_t before = refused();
    assert_int_equal(part_send_new(f->service, f->u, &plan, /* wait_ms= */ 0, &second, &e), ERR_ORIGIN_BUSY);
    assert_int_equal(refused(), before);
    assert_int_equal(part_send_new(f->service, f->u, &plan, /* wait_ms= */ 1, &second, &e), ERR_ORIGIN_BUSY);
    assert_int_equal(refused(), before + 1);
    assert_null(second);
    assert_int_equal(budget_used(f->service->part_budget), 4 * MIB);
    part_send_free(first);
    second = begin(f, 1);
    part_send_free(second);
    drop(f);
}

/* Who waits for memory waits for the origin that others of the parts wait for: a node that stops gives it up,
 * and so does a crowd that is full. (Fails where the time is waited for, and told as a lack of memory.) */
static void test_who_waits_for_memory_is_given_up(void **state)
{
    struct fixture *f = make(4 * MIB);
    struct part_send *first = begin(f, 5 * GIB), *second = NULL;
    const struct part_plan plan = plan_of(2, 1);
    struct quit_crowd crowd = {.most = 1};
    struct quit_turn turn;
    atomic_bool stop = true;
    struct quit stops = {.now = &stop}, crowded = {.turn = &turn};
    struct err e = {0};
    (void)state;
    quit_enter(&stops);
    assert_int_equal(part_send_new(f->service, f->u, &plan, PART_WAIT_MS, &second, &e), -ECANCELED);
    quit_leave(&stops);
    atomic_store(&crowd.n, 1);
    quit_turn_begin(&turn, &crowd);
    quit_enter(&crowded);
    assert_int_equal(part_send_new(f->service, f->u, &plan, PART_WAIT_MS, &second, &e), -ECANCELED);
    quit_leave(&crowded);
    assert_true(quit_turn_end(&turn));
    assert_int_equal(budget_used(f->service->part_budget), 4 * MIB);
    part_send_free(first);
    second = begin(f, 1);
    part_send_free(second);
    drop(f);
}

/* Of a part without bytes that is given up the origin hears nothing; one that is ended it has. (Fails where
 * its request goes at once: it takes the place of the part of its number, whatever becomes of it.) */
static void test_a_part_without_bytes_waits_for_its_end(void **state)
{
    struct fixture *f = make(64 * MIB);
    struct slice etag;
    struct err e = {0};
    (void)state;
    part_send_free(begin(f, 0));
    assert_int_equal(atomic_load(&n_calls), 0);
    struct part_send *p = begin(f, 0);
    assert_int_equal(part_send_end(p, &etag, &e), 0);
    assert_true(slice_eq_str(etag, "e"));
    assert_int_equal(atomic_load(&n_calls), 1);
    part_send_free(p);
    drop(f);
}

/* Writes pieces until the part is whole, or has failed. */
static int write_all(struct part_send *p, uint64_t size, struct err *e)
{
    _cleanup_free_ char *piece = malloc(PIECE);
    int r = 0;
    assert_non_null(piece);
    for (uint64_t i = 0; i < size / PIECE && r == 0; i++) {
        memset(piece, (char)i, PIECE);
        r = part_send_write(p, slice_of(piece, PIECE), e);
    }
    return r;
}

/* Of a part that was not ended the origin never has the last byte, however long ago it was written. */
static void test_the_last_byte_waits_for_the_end(void **state)
{
    static const uint64_t sizes[] = {PIECE, 32 * MIB}; /* in the buffer as a whole, and not */
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
        struct fixture *f = make(64 * MIB);
        struct part_send *p = begin(f, sizes[i]);
        struct slice etag;
        struct err e = {0};
        assert_int_equal(write_all(p, sizes[i], &e), 0);
        for (int ms = 0; ms < 60000 && atomic_load(&arrived) < sizes[i] - 1; ms++)
            sys->sleep_ns(1000000);
        assert_int_equal(atomic_load(&arrived), sizes[i] - 1);
        assert_int_equal(part_send_end(p, &etag, &e), 0);
        assert_int_equal(atomic_load(&arrived), sizes[i]);
        part_send_free(p);
        drop(f);
    }
}

/* A part that is in the buffer as a whole is sent again from its first byte; one that is not fails when some
 * of it is gone, and the origin's connection knows that it may not send it twice. Where connections are
 * refused nothing is. (The last fails where only parts that fit are sent again.) */
static void test_what_is_sent_again(void **state)
{
    struct fixture *f = make(64 * MIB);
    struct slice etag;
    struct err e = {0};
    (void)state;
    atomic_store(&fails_at, 2 * MIB);
    struct part_send *p = begin(f, 4 * MIB);
    assert_int_equal(write_all(p, 4 * MIB, &e), 0);
    assert_int_equal(part_send_end(p, &etag, &e), 0);
    assert_int_equal(atomic_load(&n_calls), 2);
    assert_int_equal(atomic_load(&arrived), 4 * MIB);
    assert_false(atomic_load(&was_once));
    part_send_free(p);

    atomic_store(&n_calls, 0);
    atomic_store(&fails_at, 20 * MIB);
    p = begin(f, 64 * MIB);
    int r = write_all(p, 64 * MIB, &e);
    assert_int_equal(r == 0 ? part_send_end(p, &etag, &e) : r, ERR_ORIGIN_FAILED);
    assert_int_equal(atomic_load(&n_calls), 1);
    assert_true(atomic_load(&was_once));
    part_send_free(p);

    atomic_store(&n_calls, 0);
    atomic_store(&n_refused, 3);
    p = begin(f, 64 * MIB);
    assert_int_equal(write_all(p, 64 * MIB, &e), 0);
    assert_int_equal(part_send_end(p, &etag, &e), 0);
    assert_int_equal(atomic_load(&n_calls), 4);
    assert_int_equal(atomic_load(&arrived), 64 * MIB);
    part_send_free(p);
    drop(f);
}

static bool ends(struct part_send *p)
{
    for (int ms = 0; ms < 60000 && !part_send_has_ended(p); ms++)
        (void)usleep(1000);
    return part_send_has_ended(p);
}

/* Who waits for bytes that nobody sends ends at once when the part is stopped, and who goes on writing hears
 * of it. */
static void test_a_part_is_stopped(void **state)
{
    struct fixture *f = make(64 * MIB);
    struct part_send *p = begin(f, 4 * MIB);
    struct slice etag;
    struct err e = {0};
    (void)state;
    assert_false(part_send_has_ended(p));
    part_send_stop(p, /* whole_too= */ false);
    assert_true(ends(p));
    assert_int_equal(write_all(p, 4 * MIB, &e), -ECANCELED);
    assert_int_equal(part_send_end(p, &etag, &e), ERR_PROTOCOL); /* not all was written */
    part_send_free(p);
    drop(f);
}

/* A part whose last byte may have left is not stopped unless that is asked for. */
static void test_a_whole_part_is_stopped_last(void **state)
{
    struct fixture *f = make(64 * MIB);
    struct part_send *p = begin(f, PIECE);
    struct slice etag;
    struct err e = {0};
    (void)state;
    atomic_store(&answers_never, true);
    assert_int_equal(write_all(p, PIECE, &e), 0);
    part_send_finish(p);
    while (atomic_load(&arrived) < PIECE)
        (void)usleep(1000);
    part_send_stop(p, /* whole_too= */ false);
    (void)usleep(100000);
    assert_false(part_send_has_ended(p));
    part_send_stop(p, /* whole_too= */ true);
    assert_true(ends(p));
    assert_int_equal(part_send_end(p, &etag, &e), -ECANCELED);
    atomic_store(&answers_never, false);
    part_send_free(p);
    drop(f);
}

/* Of a part that is given up the origin may still have all bytes when its answer was not waited for, or is
 * bad; not when its last byte never left, or all of it was acknowledged. */
static void test_what_may_still_come_at_the_origin(void **state)
{
    struct fixture *f = make(64 * MIB);
    struct err e = {0};
    (void)state;
    for (int way = 0; way < 4; way++) {
        bool is_whole = way > 0, is_silent = way == 1, is_bad = way == 2;
        struct part_send *p = begin(f, PIECE);
        atomic_store(&answers_never, is_silent || is_bad); /* before it has all bytes, and may answer */
        assert_int_equal(write_all(p, PIECE, &e), 0);
        if (is_whole)
            part_send_finish(p);
        if (is_bad) { /* all bytes have left, and a bad answer comes */
            while (atomic_load(&arrived) < PIECE)
                (void)usleep(1000);
            part_send_stop(p, /* whole_too= */ true);
        }
        bool is_settled = part_send_settle(p, sys->mono_ns() + (is_silent ? 300000000ull : 60000000000ull));
        assert_int_equal(is_settled, !is_silent && !is_bad);
        atomic_store(&arrived, 0);
        part_send_free(p);
        atomic_store(&answers_never, false);
    }
    drop(f);
}

/* Looks whether the checksum is known before the bytes, takes them, and waits for it. */
static int take_with_sum(struct origin *o, const struct origin_put *p, struct slice id, uint32_t number,
                         const struct origin_body *body, char ret_etag[ORIGIN_ETAG_MAX + 1], struct err *e)
{
    char piece[64];
    (void)o, (void)id, (void)number;
    struct slice first = body->sum(body->arg, /* wait= */ false);
    (void)snprintf(ret_etag, ORIGIN_ETAG_MAX + 1, SLICE_FMT "/", SLICE_ARG(first));
    (void)atomic_fetch_add(&n_calls, 1);
    for (uint64_t at = 0; at < body->size_bytes;) {
        ssize_t n = body->read(body->arg, piece, sizeof(piece), at);
        if (n < 0)
            return err_set(e, (int)n, "the body");
        at += (uint64_t)n;
    }
    struct slice last = body->sum(body->arg, /* wait= */ false); /* by now it is there */
    if (last.n == 0)
        return err_set(e, -ECANCELED, "given up");
    (void)snprintf(ret_etag + first.n, ORIGIN_ETAG_MAX + 1 - first.n, "/" SLICE_FMT "/" SLICE_FMT,
                   SLICE_ARG(last), SLICE_ARG(p->sums));
    return 0;
}

/* The checksum of a part of an upload with some: told before the bytes when it is known then, else once its
 * end is, as always of no bytes; of an upload without there is none. Who gives up waits for none. (Fails
 * where the last byte may leave before it.) */
static void test_checksums(void **state)
{
    static const struct {
        uint64_t size;
        const char *sums, *before, *after, *seen;
    } rows[] = {
        {100, "crc32 COMPOSITE", "01", "01", "01/01/crc32 COMPOSITE"},
        {100, "crc32 COMPOSITE", "", "02", "/02/crc32 COMPOSITE"},
        {0, "sha1 COMPOSITE", "", "03", "03/03/sha1 COMPOSITE"},
        {100, "crc32 COMPOSITE", "", NULL, NULL},
        {0, "crc32 COMPOSITE", "", NULL, NULL},
        {100, "", "", "04", NULL},
    };
    static const char bytes[100];
    struct fixture *f = make(64 * MIB);
    (void)state;
    f->ops.upload_part = take_with_sum;
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        struct part_plan plan = plan_of(1, rows[i].size);
        struct part_send *p = NULL;
        struct slice etag;
        struct err e = {0};
        plan.sums = slice_str(rows[i].sums);
        plan.sum = slice_str(rows[i].before);
        atomic_store(&n_calls, 0);
        assert_int_equal(part_send_new(f->service, f->u, &plan, /* wait_ms= */ 0, &p, &e), 0);
        assert_int_equal(part_send_write(p, slice_of(bytes, rows[i].size), &e), 0);
        while (rows[i].size > 0 && atomic_load(&n_calls) == 0)
            (void)usleep(1000);
        if (rows[i].after) {
            part_send_sum(p, slice_str(rows[i].after));
            assert_int_equal(part_send_end(p, &etag, &e), rows[i].seen ? 0 : -ECANCELED);
        } else {
            part_send_stop(p, /* whole_too= */ false);
            assert_true(ends(p));
        }
        if (rows[i].seen)
            assert_true(slice_eq_str(etag, rows[i].seen));
        part_send_free(p);
    }
    drop(f);
}

/* An end stops what its upload sends, whether the client or the origin stalls, and nothing of others; it
 * waits for no client. Fails where it waits until the parts have left. */
static void test_an_end_stops_the_parts_of_its_upload(void **state)
{
    struct fixture *f = make(64 * MIB);
    struct object_service *s = f->service;
    struct upload_way ways[3] = {0}, late = {0};
    struct upload_slot *slot, *other;
    struct part_send *p[3];
    struct id128 ids[2];
    (void)state;
    lock_init(&s->upload_lock, LOCK_OBJECT);
    cond_init(&s->upload_ended);
    id_new(&ids[0]);
    id_new(&ids[1]);
    slot = upload_slot_get(s, 1, ids[0]);
    other = upload_slot_get(s, 1, ids[1]);
    atomic_store(&answers_never, true);
    for (size_t i = 0; i < ARRAY_SIZE(p); i++) {
        struct upload_slot *its = i == 2 ? other : slot;
        p[i] = begin(f, PIECE);
        assert_int_equal(upload_slot_enter(s, its, NULL), 0);
        assert_int_equal(upload_slot_send(s, its, &ways[i], p[i], NULL), 0);
    }
    assert_int_equal(write_all(p[0], PIECE, NULL), 0);
    part_send_finish(p[0]);
    assert_int_equal(upload_slot_close(s, slot, NULL), 0);
    upload_slot_stop(s, slot);
    assert_true(ends(p[0]) && ends(p[1]));
    assert_false(part_send_has_ended(p[2]));
    assert_int_equal(upload_slot_enter(s, slot, NULL), -ENOENT);
    assert_int_equal(upload_slot_send(s, slot, &late, p[2], NULL), -ENOENT);
    atomic_store(&answers_never, false);
    for (size_t i = 0; i < ARRAY_SIZE(p); i++) {
        upload_slot_unsend(s, i == 2 ? other : slot, &ways[i]);
        part_send_free(p[i]);
        upload_slot_leave(s, i == 2 ? other : slot);
    }
    upload_slot_unsend(s, slot, &late);
    upload_slot_put(s, slot);
    upload_slot_put(s, other);
    assert_null(s->upload_slots);
    cond_fini(&s->upload_ended);
    lock_fini(&s->upload_lock);
    drop(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory_does_not_grow_with_the_part),
        cmocka_unit_test(test_memory_stays_while_bytes_pass),
        cmocka_unit_test(test_parts_share_what_there_is),
        cmocka_unit_test(test_too_many_parts_are_no_want_of_memory),
        cmocka_unit_test(test_who_waits_for_memory_is_given_up),
        cmocka_unit_test(test_the_last_byte_waits_for_the_end),
        cmocka_unit_test(test_a_part_without_bytes_waits_for_its_end),
        cmocka_unit_test(test_what_is_sent_again),
        cmocka_unit_test(test_a_part_is_stopped),
        cmocka_unit_test(test_a_whole_part_is_stopped_last),
        cmocka_unit_test(test_what_may_still_come_at_the_origin),
        cmocka_unit_test(test_checksums),
        cmocka_unit_test(test_an_end_stops_the_parts_of_its_upload),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

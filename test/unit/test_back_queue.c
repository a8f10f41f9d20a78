/* layer: object */
/* Which record is sent next: against a model, and at what cost. */
#include "base/sys.h"
#include "object/back_internal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#define BUCKETS 3

struct fake {
    struct back back;
    struct back_bucket buckets[BUCKETS];
    struct back_entry **entries; /* in the order of the queue */
    size_t n;
};

static struct fake *fake_new(size_t n)
{
    struct fake *f = calloc(1, sizeof(*f));
    assert_non_null(f);
    lock_init(&f->back.lock, LOCK_OBJECT);
    for (unsigned i = 0; i < BUCKETS; i++) {
        f->buckets[i].next = f->back.buckets;
        f->back.buckets = &f->buckets[i];
    }
    f->entries = calloc(n, sizeof(struct back_entry *));
    assert_non_null(f->entries);
    lock_take(&f->back.lock);
    return f;
}

static struct back_entry *fake_add(struct fake *f, unsigned bucket, uint64_t retry_ms, uint64_t now_ms)
{
    struct back_entry *x = calloc(1, sizeof(*x));
    assert_non_null(x);
    *x = (struct back_entry){.bucket = &f->buckets[bucket],
                             .recorded = true,
                             .retry_ms = retry_ms,
                             .noted_ms = now_ms,
                             .place = ++f->back.places};
    f->entries[f->n++] = x;
    back_queue_file_locked(&f->back, x, now_ms);
    return x;
}

static void fake_free(struct fake *f)
{
    lock_drop(&f->back.lock);
    for (size_t i = 0; i < f->n; i++)
        free(f->entries[i]);
    for (unsigned i = 0; i < BUCKETS; i++)
        back_queue_fini(&f->buckets[i]);
    lock_fini(&f->back.lock);
    free(f->entries);
    free(f);
}

/* Whether a bucket may have one more thread, by looking at each entry. */
static bool is_asked(const struct fake *f, const struct back_bucket *of)
{
    unsigned all = 0, own = 0;
    for (size_t i = 0; i < f->n; i++) {
        all += f->entries[i]->sending;
        own += f->entries[i]->sending && f->entries[i]->bucket == of;
    }
    assert_int_equal(of->n_sending, own);
    return !(f->back.n_doubted >= BACK_THREADS / 2 && of->failed >= BACK_DOUBT) &&
           (own == 0 || all < BACK_THREADS - BACK_SPARE);
}

/* Of the buckets with the fewest on their way the first one in the queue that may be sent, by looking at
 * each. */
static struct back_entry *model(struct fake *f, uint64_t now_ms, uint64_t *ret_steps)
{
    struct back_entry *next = NULL;
    bool asked[BUCKETS];
    for (unsigned i = 0; i < BUCKETS; i++)
        asked[i] = is_asked(f, &f->buckets[i]);
    for (size_t i = 0; i < f->n; i++) {
        struct back_entry *x = f->entries[i];
        ++*ret_steps;
        if (x->recorded && !x->sending && x->changing == 0 && x->retry_ms <= now_ms &&
            x->bucket->full_ms <= now_ms &&
            (x->noted_ms <= f->back.hurried_ms || x->noted_ms + x->bucket->delay_ms <= now_ms) &&
            asked[x->bucket - f->buckets] && (!next || x->bucket->n_sending < next->bucket->n_sending))
            next = x;
    }
    return next;
}

/* Each parent before its children, each entry where it says that it is. */
static size_t check_heap(const struct back_heap *h, bool is_by_time)
{
    for (size_t i = 0; i < h->n; i++) {
        const struct back_entry *x = h->x[i], *parent = h->x[i > 0 ? (i - 1) / 2 : 0];
        assert_ptr_equal(x->heap, h);
        assert_int_equal(x->heap_at, i);
        if (is_by_time)
            assert_true(parent->retry_ms <= x->retry_ms);
        else
            assert_true(parent->place <= x->place);
    }
    return h->n;
}

/* An entry is in a heap exactly when it may be sent now or later, and none that may be sent waits in the one
 * of those that may be later. */
static void check(struct fake *f, uint64_t now_ms)
{
    size_t wanted = 0, there = 0;
    for (size_t i = 0; i < f->n; i++) {
        const struct back_entry *x = f->entries[i];
        bool is_wanted = x->recorded && !x->sending && x->changing == 0;
        assert_int_equal(x->heap != NULL, is_wanted);
        wanted += is_wanted;
    }
    for (unsigned i = 0; i < BUCKETS; i++) {
        const struct back_bucket *of = &f->buckets[i];
        there +=
            check_heap(&of->ready, /* is_by_time= */ false) + check_heap(&of->later, /* is_by_time= */ true);
        assert_true(!is_asked(f, of) || of->later.n == 0 || of->later.x[0]->retry_ms > now_ms);
    }
    assert_int_equal(there, wanted);
}

static size_t below(size_t n)
{
    uint64_t x;
    sys->random(&x, sizeof(x));
    return (size_t)(x % n);
}

/* A try begins, or one that runs ends, with as many threads as the node has. */
static void begin_or_end(struct fake *f, struct back_entry *x, uint64_t now_ms)
{
    bool begins = below(2);
    for (size_t i = 0; !begins && f->back.n_sending > 0 && !x->sending; i++)
        x = f->entries[i];
    if (x->sending || (begins && f->back.n_sending < BACK_THREADS))
        back_queue_send_locked(&f->back, x, !x->sending, now_ms);
}

/* One thing changes, as the node changes it. */
static void change(struct fake *f, struct back_entry *x, uint64_t now_ms)
{
    switch (below(6)) {
    case 0:
        x->retry_ms = now_ms + below(below(2) ? 50 : 5000); /* some soon, many late */
        break;
    case 1:
        begin_or_end(f, x, now_ms);
        break;
    case 2:
        x->changing = x->changing == 0;
        break;
    case 3:
        x->recorded = !x->recorded;
        break;
    case 4:
        x->bucket->full_ms = now_ms + below(5);
        break;
    default:
        x->bucket->failed = below(2) ? BACK_DOUBT : 0;
        f->back.n_doubted = below(2) ? BACK_THREADS / 2 : 0;
    }
    back_queue_file_locked(&f->back, x, now_ms);
}

/* Whatever is tried, sent, removed, changed and delayed: what is sent next is the first in the queue that may
 * be, and nobody sleeps past the moment when one may. */
static void test_next_is_as_the_model(void **state)
{
    (void)state;
    struct fake *f = fake_new(200);
    uint64_t steps = 0, now_ms = 1000, wait_ms = 0;
    f->buckets[1].delay_ms = 7;
    f->buckets[2].delay_ms = 100;
    for (int i = 0; i < 20000; i++, now_ms += below(3)) {
        if (f->n < 200 && below(20) == 0)
            (void)fake_add(f, (unsigned)below(BUCKETS), now_ms + below(3), now_ms);
        else if (f->n > 0)
            change(f, f->entries[below(f->n)], now_ms);
        if (below(1000) == 0)
            f->back.hurried_ms = now_ms;
        wait_ms = 500;
        struct back_entry *x = back_queue_next_locked(&f->back, now_ms, &wait_ms);
        check(f, now_ms);
        assert_ptr_equal(x, model(f, now_ms, &steps));
        for (uint64_t ms = 1; !x && ms < wait_ms && ms < 60; ms++)
            assert_null(model(f, now_ms + ms, &steps));
    }
    fake_free(f);
}

/* Whoever wants room does not wait for what was written in the same moment, either. */
static void test_what_came_when_room_was_wanted_is_sent(void **state)
{
    (void)state;
    struct fake *f = fake_new(2);
    uint64_t wait_ms = 500;
    f->buckets[0].delay_ms = 100;
    struct back_entry *x = fake_add(f, 0, 0, 1000);
    assert_null(back_queue_next_locked(&f->back, 1000, &wait_ms));
    assert_int_equal(wait_ms, 100);
    f->back.hurried_ms = 1000;
    assert_ptr_equal(back_queue_next_locked(&f->back, 1000, &wait_ms), x);
    back_queue_send_locked(&f->back, x, /* sends= */ true, 1000);
    (void)fake_add(f, 0, 0, 1001);
    assert_null(back_queue_next_locked(&f->back, 1001, &wait_ms));
    fake_free(f);
}

/* The first of whom a bucket has many come later than those of a bucket that has none on its way; the last
 * threads are for such a bucket only. (Fails where the first in the queue is next, whoever's it is.) */
static void test_buckets_take_turns(void **state)
{
    (void)state;
    struct fake *f = fake_new(BACK_THREADS + 3);
    uint64_t wait_ms = 500;
    for (unsigned i = 0; i < BACK_THREADS; i++)
        (void)fake_add(f, 0, 0, 1000);
    for (unsigned i = 0; i < BACK_THREADS - BACK_SPARE; i++) {
        assert_ptr_equal(back_queue_next_locked(&f->back, 1000, &wait_ms), f->entries[i]);
        back_queue_send_locked(&f->back, f->entries[i], /* sends= */ true, 1000);
    }
    assert_null(back_queue_next_locked(&f->back, 1000, &wait_ms)); /* its share is on its way */
    struct back_entry *second = fake_add(f, 1, 0, 1000), *behind = fake_add(f, 1, 0, 1000);
    assert_ptr_equal(back_queue_next_locked(&f->back, 1000, &wait_ms), second);
    back_queue_send_locked(&f->back, second, /* sends= */ true, 1000);
    assert_null(back_queue_next_locked(&f->back, 1000, &wait_ms)); /* a third bucket may come */
    struct back_entry *third = fake_add(f, 2, 0, 1000);
    assert_ptr_equal(back_queue_next_locked(&f->back, 1000, &wait_ms), third);
    back_queue_send_locked(&f->back, third, /* sends= */ true, 1000);
    for (unsigned i = 0; i < 3; i++)
        back_queue_send_locked(&f->back, f->entries[i], /* sends= */ false, 1000);
    assert_ptr_equal(back_queue_next_locked(&f->back, 1000, &wait_ms), behind); /* 5 of the first, 1 of it */
    fake_free(f);
}

/* 20,000 records wait for their next try, as of an origin that is away; one more write wakes a sender: that
 * looks at each bucket, and not at each record. (By the model, which is how it was, 20,001 steps.) */
static void test_a_write_behind_a_long_queue(void **state)
{
    (void)state;
    struct fake *f = fake_new(20001);
    uint64_t steps = 0, wait_ms = 500;
    for (unsigned i = 0; i < 20000; i++)
        (void)fake_add(f, i % BUCKETS, 5000 + i * 7919 % 20000, 1000);
    assert_null(back_queue_next_locked(&f->back, 1000, &wait_ms));
    f->back.n_steps = 0;
    struct back_entry *last = fake_add(f, 0, 0, 2000);
    assert_ptr_equal(back_queue_next_locked(&f->back, 2000, &wait_ms), last);
    assert_true(f->back.n_steps <= 2 * BUCKETS);
    assert_ptr_equal(model(f, 2000, &steps), last);
    assert_int_equal(steps, 20001);
    back_queue_send_locked(&f->back, last, /* sends= */ true, 2000);
    f->back.n_steps = 0;
    assert_null(back_queue_next_locked(&f->back, 2000, &wait_ms));
    assert_true(f->back.n_steps <= 2 * BUCKETS);
    fake_free(f);
}

/* Nor does the end of a try, after which its record waits for the next one. */
static void test_a_try_that_fails_in_a_long_queue(void **state)
{
    (void)state;
    struct fake *f = fake_new(20000);
    uint64_t wait_ms = 500;
    for (unsigned i = 0; i < 20000; i++)
        (void)fake_add(f, 0, 0, 1000);
    f->back.n_steps = 0;
    for (unsigned i = 0; i < 20000; i++) {
        struct back_entry *x = back_queue_next_locked(&f->back, 1000, &wait_ms);
        assert_ptr_equal(x, f->entries[i]);
        x->retry_ms = 5000;
        back_queue_file_locked(&f->back, x, 1000);
    }
    assert_true(f->back.n_steps < 20000 * 64); /* of the model: 200 million */
    fake_free(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_next_is_as_the_model),
        cmocka_unit_test(test_what_came_when_room_was_wanted_is_sent),
        cmocka_unit_test(test_buckets_take_turns),
        cmocka_unit_test(test_a_write_behind_a_long_queue),
        cmocka_unit_test(test_a_try_that_fails_in_a_long_queue),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

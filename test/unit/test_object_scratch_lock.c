/* layer: object */
/* threaded */
/* Locks of files of scratch buckets. */
#include "scratch_service.h"

#define ROOT 1

struct ask {
    struct object_session *session;
    uint64_t ino, owner;
    uint32_t kind, type, flags;
    uint64_t start, end;
};

static int ask_lock(const struct ask *q, struct wire_tree_lock_rep *rep, struct err *e)
{
    _cleanup_(arena_freep) struct arena *a = arena_new(MIB);
    struct wire_tree_lock_req req = {.bucket = BUCKET,
                                     .ino = q->ino,
                                     .owner = q->owner,
                                     .kind = q->kind,
                                     .type = q->type,
                                     .start = q->start,
                                     .end = q->end,
                                     .pid = (uint32_t)q->owner + 100,
                                     .flags = q->flags};
    return object_tree_lock(q->session, &req, a, rep, e);
}

static int flock_of(struct object_session *s, uint64_t ino, uint64_t owner, uint32_t type)
{
    struct ask q = {.session = s, .ino = ino, .owner = owner, .kind = WIRE_LOCK_FLOCK, .type = type};
    struct wire_tree_lock_rep rep;
    return ask_lock(&q, &rep, NULL);
}

static int range(struct object_session *s, uint64_t owner, uint32_t type, uint64_t start, uint64_t end)
{
    struct ask q = {.session = s,
                    .ino = ROOT,
                    .owner = owner,
                    .kind = WIRE_LOCK_POSIX,
                    .type = type,
                    .start = start,
                    .end = end};
    struct wire_tree_lock_rep rep;
    return ask_lock(&q, &rep, NULL);
}

/* What is in the way of the whole range for writing by a stranger; its beginning, UINT64_MAX when nothing is.
 */
static uint64_t in_the_way(struct object_session *s, uint64_t start, uint64_t end, uint64_t *ret_end)
{
    struct ask q = {.session = s,
                    .ino = ROOT,
                    .owner = 999,
                    .kind = WIRE_LOCK_POSIX,
                    .type = WIRE_LOCK_WRITE,
                    .flags = WIRE_TEST,
                    .start = start,
                    .end = end};
    struct wire_tree_lock_rep rep;
    assert_int_equal(ask_lock(&q, &rep, NULL), 0);
    if (rep.type == WIRE_LOCK_NONE)
        return UINT64_MAX;
    *ret_end = rep.end;
    return rep.start;
}

/* Locks of whole files exclude each other by owner and session, are exchanged, and end with their session. */
static void test_whole_files(void **state)
{
    struct fixture *f = *state;
    struct object_session *other = object_session_new(f->service, WIRE_VIA_MOUNT);
    assert_int_equal(flock_of(f->session, 7, 1, WIRE_LOCK_READ), 0);
    assert_int_equal(flock_of(other, 7, 1, WIRE_LOCK_READ), 0);
    assert_int_equal(flock_of(other, 7, 2, WIRE_LOCK_WRITE), -EAGAIN);
    assert_int_equal(flock_of(other, 8, 2, WIRE_LOCK_WRITE), 0); /* another file */
    assert_int_equal(flock_of(f->session, 7, 1, WIRE_LOCK_NONE), 0);
    assert_int_equal(flock_of(other, 7, 1, WIRE_LOCK_WRITE), 0); /* its own is exchanged */
    assert_int_equal(flock_of(f->session, 7, 1, WIRE_LOCK_READ), -EAGAIN);
    object_session_free(other);
    assert_int_equal(flock_of(f->session, 7, 1, WIRE_LOCK_WRITE), 0);
    assert_int_equal(flock_of(f->session, 8, 1, WIRE_LOCK_WRITE), 0);
    struct ask bad = {.session = f->session, .ino = 7, .owner = 1, .kind = 3, .type = 1};
    struct wire_tree_lock_rep rep;
    assert_int_equal(ask_lock(&bad, &rep, NULL), -EINVAL);
}

/* A session whose client is gone has no locks, and gets none by what still runs for it. */
static void test_an_abandoned_session(void **state)
{
    struct fixture *f = *state;
    struct object_session *other = object_session_new(f->service, WIRE_VIA_MOUNT);
    assert_int_equal(flock_of(other, 7, 1, WIRE_LOCK_WRITE), 0);
    assert_int_equal(range(other, 1, WIRE_LOCK_READ, 0, 9), 0);
    assert_int_equal(flock_of(f->session, 7, 1, WIRE_LOCK_READ), -EAGAIN);
    object_session_abandon(other);
    object_session_abandon(other);
    assert_int_equal(flock_of(f->session, 7, 1, WIRE_LOCK_READ), 0);
    assert_int_equal(range(f->session, 2, WIRE_LOCK_WRITE, 0, 9), 0);
    assert_int_equal(flock_of(other, 7, 2, WIRE_LOCK_READ), -EINTR);
    assert_int_equal(flock_of(other, 8, 2, WIRE_LOCK_READ), -EINTR);
    assert_int_equal(flock_of(f->session, 7, 1, WIRE_LOCK_WRITE), 0);
    object_session_free(other);
}

/* Ranges are cut and joined as their owner locks and unlocks within them; kinds do not meet. */
static void test_ranges(void **state)
{
    struct fixture *f = *state;
    struct object_session *s = f->session;
    uint64_t end = 0;
    assert_int_equal(range(s, 1, WIRE_LOCK_WRITE, 0, 99), 0);
    assert_int_equal(range(s, 2, WIRE_LOCK_READ, 50, 60), -EAGAIN);
    assert_int_equal(range(s, 2, WIRE_LOCK_READ, 100, UINT64_MAX), 0);
    assert_int_equal(range(s, 1, WIRE_LOCK_NONE, 40, 59), 0);
    assert_int_equal(in_the_way(s, 40, 59, &end), UINT64_MAX);
    assert_int_equal(in_the_way(s, 0, 59, &end), 0);
    assert_int_equal(end, 39);
    assert_int_equal(in_the_way(s, 40, 99, &end), 60);
    assert_int_equal(end, 99);
    assert_int_equal(range(s, 2, WIRE_LOCK_WRITE, 45, 50), 0);
    assert_int_equal(range(s, 2, WIRE_LOCK_WRITE, 55, 57), 0);
    assert_int_equal(in_the_way(s, 40, UINT64_MAX, &end),
                     45); /* the first in the file, in whatever order they came */
    assert_int_equal(end, 50);
    assert_int_equal(range(s, 2, WIRE_LOCK_NONE, 0, UINT64_MAX), 0);
    assert_int_equal(range(s, 1, WIRE_LOCK_WRITE, 40, 59), 0); /* one again */
    assert_int_equal(in_the_way(s, 70, 70, &end), 0);
    assert_int_equal(end, 99);
    assert_int_equal(range(s, 1, WIRE_LOCK_READ, 10, 19), 0);
    assert_int_equal(range(s, 2, WIRE_LOCK_READ, 10, 19), 0);
    assert_int_equal(range(s, 2, WIRE_LOCK_READ, 9, 9), -EAGAIN);
    assert_int_equal(flock_of(s, ROOT, 5, WIRE_LOCK_WRITE), 0);
    assert_int_equal(range(s, 1, WIRE_LOCK_READ, 5, 4), -EINVAL);
}

struct waiting {
    struct ask ask;
    int result;
    pthread_t thread;
};

static void *wait_main(void *arg)
{
    struct waiting *w = arg;
    struct wire_tree_lock_rep rep;
    do
        w->result = ask_lock(&w->ask, &rep, NULL);
    while (w->result == -ETIMEDOUT);
    if (w->result == -EDEADLK) /* it gives way */
        (void)range(w->ask.session, w->ask.owner, WIRE_LOCK_NONE, 0, UINT64_MAX);
    return NULL;
}

static void start_waiting(struct waiting *w, struct object_session *s, uint64_t owner, uint64_t at)
{
    w->ask = (struct ask){.session = s,
                          .ino = ROOT,
                          .owner = owner,
                          .kind = WIRE_LOCK_POSIX,
                          .type = WIRE_LOCK_WRITE,
                          .flags = WIRE_WAIT,
                          .start = at,
                          .end = at};
    assert_int_equal(pthread_create(&w->thread, NULL, wait_main, w), 0);
}

/* Who waits gets the lock when it is free; a wait can be ended; one that would never end is refused. */
static void test_waiting(void **state)
{
    struct fixture *f = *state;
    struct object_session *s = f->session;
    struct wire_tree_lock_rep rep;
    struct waiting w;
    assert_int_equal(range(s, 1, WIRE_LOCK_WRITE, 0, 0), 0);
    start_waiting(&w, s, 2, 0);
    assert_int_equal(range(s, 1, WIRE_LOCK_NONE, 0, 0), 0);
    pthread_join(w.thread, NULL);
    assert_int_equal(w.result, 0);
    assert_int_equal(range(s, 1, WIRE_LOCK_WRITE, 0, 0), -EAGAIN);

    start_waiting(&w, s, 1, 0);
    struct ask cancel = w.ask;
    cancel.flags = WIRE_CANCEL;
    do { /* until the wait has begun */
        assert_int_equal(ask_lock(&cancel, &rep, NULL), 0);
        sys->sleep_ns(1000000);
    } while (pthread_tryjoin_np(w.thread, NULL) != 0);
    assert_int_equal(w.result, -EINTR);

    assert_int_equal(range(s, 1, WIRE_LOCK_WRITE, 1, 1), 0); /* 1 has byte 1, 2 has byte 0 */
    start_waiting(&w, s, 1, 0);
    struct ask circle = w.ask;
    circle.owner = 2;
    circle.start = circle.end = 1;
    int r;
    do
        r = ask_lock(&circle, &rep, NULL);
    while (r == -ETIMEDOUT);
    /* Whoever came second closed the circle. */
    if (r == -EDEADLK)
        assert_int_equal(range(s, 2, WIRE_LOCK_NONE, 0, UINT64_MAX), 0);
    pthread_join(w.thread, NULL);
    assert_true((r == -EDEADLK && w.result == 0) || (r == 0 && w.result == -EDEADLK));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        BOTH(test_whole_files),
        BOTH(test_an_abandoned_session),
        BOTH(test_ranges),
        BOTH(test_waiting),
    };
    return cmocka_run_group_tests_name("object_scratch_lock", tests, NULL, NULL);
}

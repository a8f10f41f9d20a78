/*
 * MD5 of many streams by one thread (contract in hasher.h).
 *
 * The thread takes as many streams as the processor has lanes, each one step further, and looks again who has
 * something to do, so that streams which come join it after a short time. When half as many as there are
 * lanes wait besides, the one thread is not enough: then those who would sleep do what it does.
 *
 * Invariants (under `lock`, but for what is in work):
 *  1. A stream that has bytes to be computed is in the queue, once, or in work by one thread.
 *  2. Its pieces are computed in the order in which they came.
 *  3. Bytes of a stream are read only while it is in work, and it leaves hasher_stream_fini only when it is
 * not.
 *
 * Failure modes: none.
 */
#include "base/hasher.h"

#include <sched.h>

#define MAGIC      0x68617368u
#define STEP_BYTES ((size_t)32 * KIB) /* of each stream, until the queue is looked at again */

struct hasher {
    uint32_t magic;
    enum md5_set set;
    unsigned width; /* streams at once */
    pthread_t thread;
    struct lock lock; /* covers what follows */
    struct cond called;
    struct hasher_stream *head, **tail; /* the queue, who waits longest first */
    unsigned n_queued;
    bool is_stopping;
};

/* By the thread itself, too, which then does not sleep: but others who do its work may end later than it, and
 * leave what is not computed yet to it. */
static void enqueue_locked(struct hasher *h, struct hasher_stream *s)
{
    lock_assert_held(&h->lock);
    assert(s->place == HASHER_IDLE && s->n_pieces > 0);
    s->place = HASHER_QUEUED;
    s->next = NULL;
    *h->tail = s;
    h->tail = &s->next;
    h->n_queued++;
    cond_signal(&h->called);
}

static void dequeue_locked(struct hasher *h, struct hasher_stream *s)
{
    lock_assert_held(&h->lock);
    struct hasher_stream **at = &h->head;
    while (*at != s)
        at = &(*at)->next;
    *at = s->next;
    if (h->tail == &s->next)
        h->tail = at;
    s->place = HASHER_IDLE;
    h->n_queued--;
}

/* What was computed of a stream. */
static void advance_locked(struct hasher *h, struct hasher_stream *s, size_t n)
{
    lock_assert_held(&h->lock);
    s->place = HASHER_IDLE;
    if (s->n_pieces > 0 && n == s->pieces[0].n) {
        s->n_pieces--;
        for (unsigned i = 0; i < s->n_pieces; i++)
            s->pieces[i] = s->pieces[i + 1];
        cond_broadcast(&s->moved);
    } else if (s->n_pieces > 0) {
        s->pieces[0].p += n;
        s->pieces[0].n -= n;
    } else { /* dropped meanwhile */
        cond_broadcast(&s->moved);
    }
    if (s->n_pieces > 0)
        enqueue_locked(h, s);
}

/* One step of the streams that wait longest; there are some. Lets go of the lock meanwhile. */
static void step_locked(struct hasher *h)
{
    struct hasher_stream *taken[MD5_LANES_MAX];
    struct md5_piece pieces[MD5_LANES_MAX];
    size_t steps[MD5_LANES_MAX];
    unsigned n = 0;
    lock_assert_held(&h->lock);
    for (; h->head && n < h->width; n++) {
        struct hasher_stream *s = taken[n] = h->head;
        dequeue_locked(h, s);
        s->place = HASHER_IN_WORK;
        steps[n] = MIN(s->pieces[0].n, STEP_BYTES);
        pieces[n] = (struct md5_piece){&s->md5, s->pieces[0].p, steps[n]};
    }
    lock_drop(&h->lock);
    md5_update_each(h->set, pieces, n);
    lock_take(&h->lock);
    for (unsigned i = 0; i < n; i++)
        advance_locked(h, taken[i], steps[i]);
}

static void *hasher_main(void *arg)
{
    struct hasher *h = CAST_MAGIC(hasher, arg, MAGIC);
    LOCK_SCOPE(&h->lock);
    while (!h->is_stopping)
        if (h->head)
            step_locked(h);
        else
            cond_wait(&h->called, &h->lock);
    return NULL;
}

static unsigned count_processors(void)
{
    cpu_set_t cpus;
    return sched_getaffinity(0, sizeof(cpus), &cpus) == 0 ? (unsigned)CPU_COUNT(&cpus) : 1;
}

struct hasher *hasher_start(unsigned processors)
{
    if ((processors ? processors : count_processors()) < 2)
        return NULL;
    struct hasher *h = calloc(1, sizeof(*h));
    assert(h);
    h->magic = MAGIC;
    h->set = md5_lanes_best();
    h->width = md5_lanes_width(h->set);
    h->tail = &h->head;
    lock_init(&h->lock, LOCK_LEAF);
    cond_init(&h->called);
    if (pthread_create(&h->thread, NULL, hasher_main, h) == 0)
        return h;
    cond_fini(&h->called);
    lock_fini(&h->lock);
    free(h);
    return NULL;
}

void hasher_stop(struct hasher *h)
{
    if (!h)
        return;
    assert(h->magic == MAGIC);
    lock_take(&h->lock);
    assert(!h->head);
    h->is_stopping = true;
    cond_broadcast(&h->called);
    lock_drop(&h->lock);
    (void)pthread_join(h->thread, NULL);
    cond_fini(&h->called);
    lock_fini(&h->lock);
    h->magic = 0;
    free(h);
}

/* ---- streams ---- */

void hasher_stream_init(struct hasher_stream *s, struct hasher *h)
{
    *s = (struct hasher_stream){.hasher = h};
    md5_init(&s->md5);
    if (h)
        cond_init(&s->moved);
}

void hasher_stream_fini(struct hasher_stream *s)
{
    struct hasher *h = s->hasher;
    if (!h)
        return;
    assert(h->magic == MAGIC);
    lock_take(&h->lock);
    if (s->place == HASHER_QUEUED)
        dequeue_locked(h, s);
    s->n_pieces = 0;
    while (s->place == HASHER_IN_WORK)
        cond_wait(&s->moved, &h->lock);
    lock_drop(&h->lock);
    cond_fini(&s->moved);
    s->hasher = NULL;
}

static bool needs(const struct hasher_stream *s, const uint8_t *p, size_t n)
{
    for (unsigned i = 0; i < s->n_pieces; i++)
        if (s->pieces[i].p < p + n && p < s->pieces[i].p + s->pieces[i].n)
            return true;
    return false;
}

/* Until something of the stream was computed: does it, rather than sleep, where the thread has too much. */
static void wait_locked(struct hasher *h, struct hasher_stream *s)
{
    if (s->place == HASHER_QUEUED && h->n_queued >= h->width / 2)
        step_locked(h);
    else
        cond_wait(&s->moved, &h->lock);
}

void hasher_stream_add(struct hasher_stream *s, const void *p, size_t n)
{
    struct hasher *h = s->hasher;
    if (n == 0)
        return;
    if (!h) {
        md5_update(&s->md5, p, n);
        return;
    }
    LOCK_SCOPE(&h->lock);
    while (s->n_pieces == HASHER_PIECES_MAX)
        wait_locked(h, s);
    s->pieces[s->n_pieces].p = p;
    s->pieces[s->n_pieces++].n = n;
    if (s->place == HASHER_IDLE)
        enqueue_locked(h, s);
}

void hasher_stream_wait(struct hasher_stream *s, const void *p, size_t n)
{
    struct hasher *h = s->hasher;
    if (!h)
        return;
    LOCK_SCOPE(&h->lock);
    while (needs(s, p, n))
        wait_locked(h, s);
}

void hasher_stream_digest(struct hasher_stream *s, uint8_t ret[MD5_BYTES])
{
    struct hasher *h = s->hasher;
    if (h) {
        lock_take(&h->lock);
        while (s->n_pieces > 0)
            wait_locked(h, s);
        lock_drop(&h->lock);
    }
    md5_final(&s->md5, ret);
}

/*
 * Sending one part (contract in part_send.h). The buffer is a ring of which the sender gives back what the
 * origin's connection has taken.
 *
 * Invariants:
 *  1. Bytes [given, written) are in the ring; given is 0 as long as the part fits there whole, or no more of
 * it was asked for than its first piece, so that all of it can be sent again.
 *  2. The origin never gets the last byte before part_send_end, nor anything of a part without bytes: of a
 * part that was not ended it has nothing.
 *  3. The checksum of a part with one is known before its last byte may go, and does not change.
 *  4. The memory of all parts together is a quarter of the node's budget (UPLOAD_SHARE) at most, and their
 * threads PARTS_MAX.
 */
#include "object/part_send.h"

#include "base/metrics.h"
#include "base/sys.h"
#include "base/thread.h"
#include "namespace/upload.h"

#include <sys/mman.h>

#define MAGIC       0x70617274u
#define PARTS_MAX   256
#define WAIT_NS     1000000000ull
#define STACK_BYTES (512 * KIB)

struct part_send {
    uint32_t magic;
    struct object_service *service;
    struct upstream *upstream;
    char *key, *origin_id, *sums; /* sums: "" without checksums */
    uint32_t number;
    uint64_t size, cap;
    char *ring;
    const struct quit *quit;  /* of who sends it: the session's, which outlives it */
    _Atomic uint64_t life_ms; /* when bytes left last, monotonic; 0: never */
    atomic_bool cancel;
    pthread_t thread;
    bool started, joined;

    struct lock lock; /* covers what follows */
    struct cond moved;
    uint64_t given, written;
    bool final, done;
    char sum[UPLOAD_CHECKSUM_MAX + 1]; /* "": not known; it does not change from then on */
    int result;
    struct err err;
    char etag[ORIGIN_ETAG_MAX + 1];
};

static bool fits_whole(const struct part_send *p)
{
    return p->size <= p->cap;
}

/* ---- the sender ---- */

static uint64_t limit_locked(const struct part_send *p)
{
    return p->final ? p->size : MIN(p->written, p->size - 1);
}

static ssize_t body_read(void *arg, void *to, size_t n, uint64_t offset)
{
    struct part_send *p = arg;
    lock_take(&p->lock);
    if (!fits_whole(p) && offset > p->given) { /* what is before it has left */
        p->given = offset;
        cond_broadcast(&p->moved);
    }
    while (limit_locked(p) <= offset && !atomic_load(&p->cancel))
        (void)cond_wait_for(&p->moved, &p->lock, WAIT_NS);
    uint64_t limit = limit_locked(p);
    bool gone = offset < p->given;
    lock_drop(&p->lock);
    if (atomic_load(&p->cancel))
        return -ECANCELED;
    if (gone)
        return -ESPIPE;
    uint64_t at = offset % p->cap;
    n = MIN(MIN((uint64_t)n, limit - offset), p->cap - at);
    memcpy(to, p->ring + at, n);
    return (ssize_t)n;
}

static struct slice body_sum(void *arg, bool wait)
{
    struct part_send *p = arg;
    LOCK_SCOPE(&p->lock);
    while (wait && !p->sum[0] && !atomic_load(&p->cancel))
        (void)cond_wait_for(&p->moved, &p->lock, WAIT_NS);
    return slice_str(p->sum);
}

/* Whether all of it can be sent again. */
static bool is_there(struct part_send *p)
{
    LOCK_SCOPE(&p->lock);
    return p->given == 0;
}

/* Of a part without bytes the request is all there is. False: it is given up. */
static bool wait_end(struct part_send *p)
{
    LOCK_SCOPE(&p->lock);
    while (!p->final && !atomic_load(&p->cancel))
        (void)cond_wait_for(&p->moved, &p->lock, WAIT_NS);
    return !atomic_load(&p->cancel);
}

static int send_part(struct part_send *p, char *ret_etag, struct err *e)
{
    if (p->size == 0 && !wait_end(p))
        return -ECANCELED;
    const struct origin_put put = {
        .key = slice_str(p->key), .sums = slice_str(p->sums), .cancel = &p->cancel};
    const struct origin_body body = {.size_bytes = p->size,
                                     .read = body_read,
                                     .sum = body_sum,
                                     .arg = p,
                                     .once = !fits_whole(p),
                                     .slow = true};
    struct retry retry = {.started_ms = sys_mono_ms()};
    for (;;) {
        if (!upstream_enter_slowly(p->upstream, &p->cancel))
            return -ECANCELED;
        int r = origin_upload_part(p->upstream->origin, &put, slice_str(p->origin_id), p->number, &body,
                                   ret_etag, e);
        upstream_heard(p->upstream, r);
        if (r == 0 || !is_there(p) || !upstream_try_again(p->upstream, &retry, r, &p->cancel))
            return r;
    }
}

static void *sender_main(void *arg)
{
    struct part_send *p = CAST_MAGIC(part_send, arg, MAGIC);
    char etag[ORIGIN_ETAG_MAX + 1] = "";
    struct err e = {0};
    struct quit own = {.life_ms = &p->life_ms};
    (void)quit_use(p->quit);
    quit_enter(&own);
    int r = send_part(p, etag, &e);
    quit_leave(&own);
    if (r < 0 && atomic_load(&p->cancel)) /* between two tries, perhaps */
        r = err_set(&e, -ECANCELED, "given up");
    LOCK_SCOPE(&p->lock);
    memcpy(p->etag, etag, sizeof(etag));
    p->result = r;
    p->err = e;
    p->done = true;
    cond_broadcast(&p->moved);
    return NULL;
}

static int start(struct part_send *p)
{
    int r = thread_start(&p->thread, STACK_BYTES, sender_main, p);
    p->started = r == 0;
    return r;
}

static void join(struct part_send *p)
{
    if (p->started && !p->joined) {
        p->joined = true;
        (void)pthread_join(p->thread, NULL);
    }
}

/* ---- life ---- */

static bool may_wait(void *arg)
{
    uint64_t *looks = arg;
    return !quit_is_now() && *looks > 0 && (*looks)-- > 0;
}

/* Others have it until the origin takes their parts: that is what is waited for. */
static int take_memory(struct part_send *p, uint64_t wait_ms, struct err *e)
{
    struct object_service *s = p->service;
    uint64_t most = MIN((uint64_t)PART_BUFFER_MAX, budget_total(s->part_budget));
    uint64_t cap = MIN(MAX(p->size, (uint64_t)4096), most), looks = wait_ms / QUIT_LOOK_MS;
    const _Atomic uint64_t *watched = quit_watch(&p->upstream->places->life_ms);
    int r = budget_take_asking(s->part_budget, cap, QUIT_LOOK_MS, may_wait, &looks);
    bool given_up = r < 0 && quit_is_now();
    (void)quit_watch(watched);
    if (given_up)
        return err_set(e, -ECANCELED, "given up while it waited for memory");
    if (r < 0)
        return err_set(e, ERR_ORIGIN_BUSY,
                       "no memory for another part now: more parts come than the origin takes");
    void *ring = mmap(NULL, cap, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (ring == MAP_FAILED) {
        budget_give(s->part_budget, cap);
        return err_set(e, ERR_ORIGIN_BUSY, "no memory for another part now");
    }
    p->ring = ring;
    p->cap = cap;
    return 0;
}

void part_send_stop(struct part_send *p, bool whole_too)
{
    assert(p->magic == MAGIC);
    LOCK_SCOPE(&p->lock);
    if (p->final && !whole_too)
        return;
    atomic_store(&p->cancel, true);
    cond_broadcast(&p->moved);
}

bool part_send_has_ended(struct part_send *p)
{
    assert(p->magic == MAGIC);
    LOCK_SCOPE(&p->lock);
    return p->done;
}

void part_send_free(struct part_send *p)
{
    if (!p)
        return;
    part_send_stop(p, /* whole_too= */ true);
    join(p);
    if (p->ring) {
        (void)munmap(p->ring, p->cap);
        budget_give(p->service->part_budget, p->cap);
    }
    (void)atomic_fetch_sub(&p->service->parts, 1);
    upstream_unref(p->upstream);
    cond_fini(&p->moved);
    lock_fini(&p->lock);
    free(p->key);
    free(p->origin_id);
    free(p->sums);
    p->magic = 0;
    free(p);
}

static void put_sum(struct part_send *p, struct slice sum)
{
    assert(sum.n < sizeof(p->sum));
    if (!p->sums[0] || sum.n == 0 || p->sum[0])
        return;
    assert(!p->final);
    memcpy(p->sum, sum.p, sum.n);
}

int part_send_new(struct object_service *s, struct upstream *u, const struct part_plan *plan,
                  uint64_t wait_ms, struct part_send **ret, struct err *e)
{
    struct part_send *p = calloc(1, sizeof(*p));
    assert(p && plan->number > 0);
    p->magic = MAGIC;
    p->service = s;
    p->upstream = upstream_ref(u);
    p->quit = quit_lasting();
    p->key = slice_dup(plan->key);
    p->origin_id = slice_dup(plan->origin_id);
    p->sums = slice_dup(plan->sums);
    p->number = plan->number;
    p->size = plan->size;
    put_sum(p, plan->sum);
    lock_init(&p->lock, LOCK_LEAF); /* part_send_stop is called under others */
    cond_init(&p->moved);
    enum metric refused = METRIC_CROWD_REFUSED;
    bool has_turn = atomic_fetch_add(&s->parts, 1) < PARTS_MAX;
    int r = has_turn ? take_memory(p, wait_ms, e)
                     : err_set(e, ERR_ORIGIN_BUSY, "%d parts are on their way already", PARTS_MAX);
    if (r < 0 && has_turn)
        refused = METRIC_MEMORY_REFUSED;
    if (r == 0 && start(p) < 0)
        r = err_set(e, ERR_ORIGIN_BUSY, "no thread for another part now");
    if (r == ERR_ORIGIN_BUSY && wait_ms > 0) /* else there is another way: nobody is refused for it */
        metrics_count(refused, "parts", NULL, NULL);
    if (r < 0) {
        part_send_free(p);
        return r;
    }
    *ret = p;
    return 0;
}

/* ---- bytes ---- */

static int failed_locked(const struct part_send *p, struct err *e)
{
    if (e)
        *e = p->err;
    return p->result;
}

/* Waits a little for what the sender does. Who may not wait any longer gives the part up: the sender ends.
 */
static void wait_sender_locked(struct part_send *p)
{
    (void)cond_wait_for(&p->moved, &p->lock, (uint64_t)QUIT_LOOK_MS * 1000000);
    quit_lives_at(atomic_load(&p->life_ms));
    if (quit_is_now() && !p->done)
        atomic_store(&p->cancel, true);
}

/* Waits until some of the ring is free; gives how much in one piece. */
static int wait_room(struct part_send *p, uint64_t *ret_n, struct err *e)
{
    const _Atomic uint64_t *watched = quit_watch(&p->upstream->places->life_ms);
    LOCK_SCOPE(&p->lock);
    while (!p->done && p->written == p->given + p->cap)
        wait_sender_locked(p);
    (void)quit_watch(watched);
    if (p->done) /* before its last byte: it has failed */
        return failed_locked(p, e);
    *ret_n = MIN(p->given + p->cap - p->written, p->cap - p->written % p->cap);
    return 0;
}

int part_send_write(struct part_send *p, struct slice data, struct err *e)
{
    assert(p->magic == MAGIC);
    if (data.n > p->size - p->written)
        return err_set(e, -EFBIG, "more bytes than the announced %llu", (unsigned long long)p->size);
    while (data.n > 0) {
        uint64_t room = 0;
        int r = wait_room(p, &room, e);
        if (r < 0)
            return r;
        size_t n = (size_t)MIN(room, (uint64_t)data.n);
        memcpy(p->ring + p->written % p->cap, data.p, n);
        data = slice_from(data, n);
        LOCK_SCOPE(&p->lock);
        p->written += n;
        cond_broadcast(&p->moved);
    }
    return 0;
}

void part_send_sum(struct part_send *p, struct slice sum)
{
    assert(p->magic == MAGIC);
    LOCK_SCOPE(&p->lock);
    put_sum(p, sum);
    cond_broadcast(&p->moved);
}

void part_send_finish(struct part_send *p)
{
    assert(p->magic == MAGIC && p->written == p->size);
    LOCK_SCOPE(&p->lock);
    p->final = true;
    cond_broadcast(&p->moved);
}

bool part_send_settle(struct part_send *p, uint64_t until_ns)
{
    assert(p->magic == MAGIC);
    LOCK_SCOPE(&p->lock);
    while (p->final && !p->done && sys->mono_ns() < until_ns)
        (void)cond_wait_for(&p->moved, &p->lock, WAIT_NS);
    return !p->final || (p->done && p->result == 0);
}

static void wait_done(struct part_send *p)
{
    const _Atomic uint64_t *watched = quit_watch(&p->upstream->places->life_ms);
    LOCK_SCOPE(&p->lock);
    while (!p->done)
        wait_sender_locked(p);
    (void)quit_watch(watched);
}

int part_send_end(struct part_send *p, struct slice *ret_etag, struct err *e)
{
    assert(p->magic == MAGIC);
    if (p->written != p->size)
        return err_set(e, ERR_PROTOCOL, "the part ended before all of its %llu bytes were written",
                       (unsigned long long)p->size);
    part_send_finish(p);
    wait_done(p);
    join(p);
    LOCK_SCOPE(&p->lock);
    if (p->result < 0)
        return failed_locked(p, e);
    *ret_etag = slice_str(p->etag);
    return 0;
}

uint64_t part_send_written(const struct part_send *p)
{
    return p->written;
}

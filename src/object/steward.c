/*
 * The steward: one thread of the service that does now and then what nobody waits for: writes counters down,
 * trims buckets to their quotas, ends uploads that were abandoned.
 */
#include "object/object_internal.h"

#include "base/log.h"
#include "base/sys.h"

#define MAGIC   0x73747764u
#define TURN_NS ((uint64_t)5000000000)
#define SAVE_NS ((uint64_t)60000000000)

struct steward {
    uint32_t magic;
    struct object_service *service;
    pthread_t thread;
    bool started;
    uint64_t saved_ns;
    struct lock lock; /* covers what follows */
    struct cond called;
    bool stop, hurry;
};

static void save(struct steward *w)
{
    struct err e = {0};
    w->saved_ns = sys->mono_ns();
    if (usage_save(w->service->usage, &e) < 0)
        log_warn("object", "%s", e.text);
}

static void turn(struct steward *w)
{
    if (sys->mono_ns() - w->saved_ns >= SAVE_NS)
        save(w);
    quota_turn(w->service);
    upload_turn(w->service);
    sobject_expire_turn(w->service);
    values_sweep(w->service->values, sys->real_ns());
}

static void *run(void *arg)
{
    struct steward *w = CAST_MAGIC(steward, arg, MAGIC);
    lock_take(&w->lock);
    while (!w->stop) {
        if (!w->hurry)
            (void)cond_wait_for(&w->called, &w->lock, TURN_NS);
        w->hurry = false;
        lock_drop(&w->lock);
        turn(w);
        lock_take(&w->lock);
    }
    lock_drop(&w->lock);
    return NULL;
}

struct steward *steward_start(struct object_service *s)
{
    struct steward *w = calloc(1, sizeof(*w));
    assert(w);
    *w = (struct steward){.magic = MAGIC, .service = s, .saved_ns = sys->mono_ns()};
    lock_init(&w->lock, LOCK_LEAF);
    cond_init(&w->called);
    w->started = pthread_create(&w->thread, NULL, run, w) == 0;
    if (!w->started)
        log_warn("object", "no thread for what is done now and then: counters are written at the end only");
    return w;
}

void steward_hurry(struct steward *w)
{
    LOCK_SCOPE(&w->lock);
    w->hurry = true;
    cond_signal(&w->called);
}

void steward_stop(struct steward *w)
{
    if (!w)
        return;
    lock_take(&w->lock);
    w->stop = true;
    cond_broadcast(&w->called);
    lock_drop(&w->lock);
    if (w->started)
        (void)pthread_join(w->thread, NULL);
    save(w);
    cond_fini(&w->called);
    lock_fini(&w->lock);
    w->magic = 0;
    free(w);
}

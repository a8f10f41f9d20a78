/*
 * The steward: one thread of the service that does now and then what nobody waits for: writes counters down,
 * trims buckets to their quotas, ends uploads that were abandoned.
 */
#include "object/object_internal.h"

#include "base/chore.h"
#include "base/log.h"
#include "base/sys.h"

#define MAGIC   0x73747764u
#define TURN_NS ((uint64_t)5000000000)
#define SAVE_NS ((uint64_t)60000000000)

struct steward {
    uint32_t magic;
    struct object_service *service;
    struct chore chore;
    uint64_t saved_ns;
};

static void save(struct steward *w)
{
    struct err e = {0};
    w->saved_ns = sys->mono_ns();
    if (usage_save(w->service->usage, &e) < 0)
        log_warn("object", "%s", e.text);
}

static uint64_t turn(void *arg)
{
    struct steward *w = CAST_MAGIC(steward, arg, MAGIC);
    if (sys->mono_ns() - w->saved_ns >= SAVE_NS)
        save(w);
    quota_turn(w->service);
    keep_turn(w->service);
    upload_turn(w->service);
    sobject_expire_turn(w->service);
    values_sweep(w->service->values, sys->real_ns());
    return TURN_NS;
}

struct steward *steward_start(struct object_service *s)
{
    struct steward *w = calloc(1, sizeof(*w));
    assert(w);
    *w = (struct steward){.magic = MAGIC, .service = s, .saved_ns = sys->mono_ns()};
    if (chore_start(&w->chore, TURN_NS, turn, w) < 0)
        log_warn("object", "no thread for what is done now and then: counters are written at the end only");
    return w;
}

void steward_hurry(struct steward *w)
{
    chore_call(&w->chore);
}

void steward_stop(struct steward *w)
{
    if (!w)
        return;
    chore_stop(&w->chore);
    save(w);
    w->magic = 0;
    free(w);
}

/*
 * The thread of count.h. What it learned is read by others only after `ended` was set, and then does not
 * change.
 */
#include "jobs/count.h"

#include <pthread.h>

struct count {
    struct count_open o;
    pthread_t thread;
    bool joined;
    atomic_bool quit, ended;
    struct count_result so_far;
    int result; /* 1: through; 0: told to stop; an error */
    struct err why;
};

static bool told_to_stop(struct count *c)
{
    return atomic_load(&c->quit) || atomic_load(c->o.stop);
}

static void *run(void *arg)
{
    struct count *c = arg;
    _cleanup_(source_freep) struct source *s = source_new(&c->o.source, SLICE_NULL);
    struct kind_object o;
    int r = 0;
    source_share(s, c->o.pages);
    while (!told_to_stop(c) && (r = source_next(s, &o, &c->why)) > 0) {
        if (!c->o.chosen(c->o.arg, &o))
            continue;
        c->so_far.objects++;
        c->so_far.bytes += o.counted_bytes;
    }
    c->result = r < 0 ? r : r == 0 && !told_to_stop(c);
    atomic_store(&c->ended, true);
    pages_end(c->o.pages); /* also where it failed: nobody waits for a page that does not come */
    return NULL;
}

struct count *count_new(const struct count_open *o)
{
    struct count *c = calloc(1, sizeof(*c));
    assert(c);
    c->o = *o;
    atomic_init(&c->quit, false);
    atomic_init(&c->ended, false);
    if (pthread_create(&c->thread, NULL, run, c) != 0)
        free(TAKE_PTR(c));
    return c;
}

static void join(struct count *c)
{
    if (!c->joined)
        (void)pthread_join(c->thread, NULL);
    c->joined = true;
}

void count_free(struct count *c)
{
    if (!c)
        return;
    atomic_store(&c->quit, true);
    join(c);
    free(c);
}

int count_ask(struct count *c, bool wait, struct count_result *ret, struct err *e)
{
    if (!wait && !atomic_load(&c->ended))
        return 0;
    join(c);
    *ret = c->so_far;
    return c->result < 0 ? err_set(e, c->result, "%s", c->why.text) : c->result;
}

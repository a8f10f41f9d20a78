/*
 * Looking (contract in look.h).
 *
 * Failure modes: none; a look that finds nothing costs its time.
 */
#include "base/look.h"

#include "base/macro.h"
#include "base/sys.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#define LOOK_NS   200000
#define LOOKS_MAX 1000 /* where a test's clock stands still */

static pthread_once_t counted = PTHREAD_ONCE_INIT;
static int most; /* threads that look at a time */
static atomic_int n_looking;
static _Thread_local bool never;

bool look_is_due(struct look *l)
{
    if (l->left == 0)
        return true;
    l->left--;
    return false;
}

void look_note(struct look *l, bool found)
{
    l->skips = found ? 0 : (uint8_t)MIN(2 * l->skips + 1, LOOK_SKIPS_MAX);
    l->left = l->skips;
}

static void count_processors(void)
{
    cpu_set_t cpus;
    most = sched_getaffinity(0, sizeof(cpus), &cpus) == 0 ? CPU_COUNT(&cpus) / 2 : 0;
}

static bool has_something(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return poll(&p, 1, 0) > 0;
}

static bool look(int fd)
{
    uint64_t began_ns = sys->mono_ns();
    bool found;
    for (int i = 0; !(found = has_something(fd)) && i < LOOKS_MAX && sys->mono_ns() - began_ns < LOOK_NS; i++)
        (void)sched_yield();
    return found;
}

bool look_may_beside(unsigned others)
{
    (void)pthread_once(&counted, count_processors);
    return most > 0 && others < (unsigned)most;
}

void look_never(void)
{
    never = true;
}

bool look_for(struct look *l, int fd)
{
    if (never || !look_is_due(l))
        return false;
    (void)pthread_once(&counted, count_processors);
    if (atomic_fetch_add(&n_looking, 1) >= most) {
        (void)atomic_fetch_sub(&n_looking, 1);
        return false;
    }
    bool found = look(fd);
    (void)atomic_fetch_sub(&n_looking, 1);
    look_note(l, found);
    return found;
}

/* Starting threads (contract in thread.h). */
#include "base/thread.h"

#include <assert.h>
#include <stdlib.h>

int thread_start(pthread_t *ret, size_t stack_bytes, void *(*fn)(void *arg), void *arg)
{
    pthread_t unnamed;
    pthread_attr_t attr;
    int r = pthread_attr_init(&attr);
    assert(r == 0);
    (void)pthread_attr_setstacksize(&attr, stack_bytes);
    if (!ret)
        (void)pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    r = pthread_create(ret ? ret : &unnamed, &attr, fn, arg);
    (void)pthread_attr_destroy(&attr);
    return -r;
}

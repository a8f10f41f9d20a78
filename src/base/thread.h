/*
 * Threads with a stack of their own size: the default of the system is 8 MiB of addresses each, and many are
 * started.
 */
#pragma once

#include <pthread.h>
#include <stddef.h>

/* Starts fn(arg). stack_bytes: at least PTHREAD_STACK_MIN. ret NULL: nobody joins it. 0, or -errno and there
 * is no thread, as with too many of them. Any thread. */
int thread_start(pthread_t *ret, size_t stack_bytes, void *(*fn)(void *arg), void *arg);

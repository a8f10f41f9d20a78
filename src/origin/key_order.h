/*
 * Changes of one key at one service, in the order in which this process asks for them. For services that
 * decide a condition and the change itself in two steps, or know no condition at all.
 *
 * A change that depends on what is there is made alone; others of the same key wait for those before them
 * that are, and run beside each other. Who waits holds neither a connection nor a lock, nor a place among the
 * requests of its bucket (origin_enter); but at NFS, where who is in has had his before he waited. Who is in
 * sends its requests, again while the service is away, and waits for nothing else: not for the bytes of a
 * body.
 *
 * Changes by other processes know nothing of it.
 */
#pragma once

#include "base/err.h"

#include <stdatomic.h>
#include <stdint.h>

/* On the stack of who makes the change. Zero: of nobody. */
struct key_order {
    struct key_order *next;
    uint64_t key;
    bool alone, is_in;
};

/* Queues up behind those that change the key. key: a hash of service and key; two that have the same one only
 * wait for each other. Whether it is in at once; else key_order_wait is next. One thread is in once. */
bool key_order_begin(struct key_order *x, uint64_t key, bool alone);
/* Until it is in. cancel may be NULL. -ECANCELED: it is not wanted any more (also base/quit.h), and of
 * nobody. */
int key_order_wait(struct key_order *x, const atomic_bool *cancel, struct err *e);
/* Of nobody's: nothing. */
void key_order_leave(struct key_order *x);

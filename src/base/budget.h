/*
 * The memory number the user gives (--memory), handed out in named shares. Every buffer, queue and cache
 * either reserves from a budget or states a maximum of its own that was subtracted at start.
 */
#pragma once

#include "base/lock.h"

struct budget;

struct budget *budget_new(uint64_t total_bytes);
void budget_free(struct budget *b);
/* Takes n bytes or gives -ENOMEM at once. */
int budget_try(struct budget *b, uint64_t n);
/* Waits up to timeout_ms for n bytes; -ENOMEM when n is over the total, -ETIMEDOUT otherwise. */
int budget_take(struct budget *b, uint64_t n, uint64_t timeout_ms);
/* Waits as long as `ask` says true: it is called without a lock, first before any wait and then every
 * step_ms, and may give back what others can do without. Nobody who came later goes before who waits so.
 * -ENOMEM as above, -ETIMEDOUT once `ask` said false. */
int budget_take_asking(struct budget *b, uint64_t n, uint64_t step_ms, bool (*ask)(void *arg), void *arg);
void budget_give(struct budget *b, uint64_t n);
uint64_t budget_used(struct budget *b);
/* Whether somebody waits for bytes. */
bool budget_is_wanted(struct budget *b);
uint64_t budget_total(const struct budget *b);

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
void budget_give(struct budget *b, uint64_t n);
uint64_t budget_used(struct budget *b);
uint64_t budget_total(const struct budget *b);

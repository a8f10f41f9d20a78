/*
 * A clock that stands still until a test moves it. sleep_ns moves it by the time asked for and returns at
 * once, so that an hour of back-off takes no time. Waits on struct cond stay real: they do not go through the
 * table.
 */
#pragma once

#include "base/macro.h"

/* Puts a copy of the table in force, with this clock, in front of it. One at a time; no other thread may run.
 */
void clock_sys_start(uint64_t mono_ns, uint64_t real_ns);
void clock_sys_stop(void);
/* Both clocks. Any thread. */
void clock_sys_advance(uint64_t ns);
/* The wall clock alone, as an administrator would set it. */
void clock_sys_set_real(uint64_t real_ns);
/* Sum of all sleeps since the start. */
uint64_t clock_sys_slept_ns(void);

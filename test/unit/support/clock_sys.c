/*
 * The clock under a test's control.
 *
 * Invariants:
 *  1. The monotonic clock never goes back.
 *
 * Failure modes: abort when started twice or stopped while another table lies in front.
 */
#include "support/clock_sys.h"

#include "base/sys.h"

#include <stdatomic.h>

static struct {
    struct sys table;
    const struct sys *inner;
    _Atomic uint64_t mono, real, slept;
} fake;

static uint64_t fake_mono_ns(void)
{
    return atomic_load(&fake.mono);
}

static uint64_t fake_real_ns(void)
{
    return atomic_load(&fake.real);
}

void clock_sys_advance(uint64_t ns)
{
    atomic_fetch_add(&fake.mono, ns);
    atomic_fetch_add(&fake.real, ns);
}

static void fake_sleep_ns(uint64_t ns)
{
    atomic_fetch_add(&fake.slept, ns);
    clock_sys_advance(ns);
}

void clock_sys_set_real(uint64_t real_ns)
{
    atomic_store(&fake.real, real_ns);
}

uint64_t clock_sys_slept_ns(void)
{
    return atomic_load(&fake.slept);
}

void clock_sys_start(uint64_t mono_ns, uint64_t real_ns)
{
    assert(!fake.inner);
    atomic_store(&fake.mono, mono_ns);
    atomic_store(&fake.real, real_ns);
    atomic_store(&fake.slept, 0);
    fake.inner = sys;
    fake.table = *sys;
    fake.table.mono_ns = fake_mono_ns;
    fake.table.real_ns = fake_real_ns;
    fake.table.sleep_ns = fake_sleep_ns;
    sys = &fake.table;
}

void clock_sys_stop(void)
{
    assert(sys == &fake.table);
    sys = TAKE_PTR(fake.inner);
}

/* The scopes of a thread (contract in quit.h): a chain, innermost first. */
#include "base/quit.h"

#include "base/macro.h"
#include "base/sys.h"

#include <assert.h>
#include <stddef.h>

static _Thread_local const struct quit *here;

static bool is_set(const atomic_bool *flag)
{
    return flag && atomic_load(flag);
}

enum quit_level quit_level(void)
{
    enum quit_level level = QUIT_NO;
    for (const struct quit *q = here; q; q = q->outer) {
        if (q->tidy_until_ms > 0 && sys_mono_ms() < q->tidy_until_ms)
            return QUIT_NO;
        if (is_set(q->now))
            level = QUIT_NOW;
        else if (is_set(q->soon))
            level = MAX(level, QUIT_SOON);
    }
    return level;
}

uint64_t quit_patience_ms(uint64_t timeout_ms)
{
    return quit_level() == QUIT_NO ? timeout_ms : MIN(timeout_ms, (uint64_t)QUIT_SILENCE_MS);
}

void quit_enter(struct quit *q)
{
    q->outer = here;
    q->tidy_until_ms = 0;
    here = q;
}

void quit_enter_tidy(struct quit *q)
{
    *q = (struct quit){0};
    quit_enter(q);
    q->tidy_until_ms = sys_mono_ms() + QUIT_TIDY_MS;
}

void quit_leave(struct quit *q)
{
    assert(here == q);
    here = q->outer;
}

const struct quit *quit_here(void)
{
    return here;
}

const struct quit *quit_use(const struct quit *q)
{
    const struct quit *before = here;
    here = q;
    return before;
}

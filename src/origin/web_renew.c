/*
 * Credentials that somebody gives for a while: asked for, kept, renewed. What they are, and who is asked, is
 * the kind's.
 *
 * Invariants:
 *  1. One thread asks, the others wait, and a failure is the answer of all of them, but where the one gave up
 * for reasons of its own; no lock is held meanwhile.
 *  2. They are renewed WEB_RENEW_BEFORE_MS before their end; should that fail, the old ones are used while
 * they last, and it is asked again after AGAIN_MS. The same holds where others are given that end as soon:
 * metadata services give the same ones again until shortly before their end, some later than they are
 * renewed here, and must not be asked for each request until then.
 *  3. Nothing that was answered here is told as the origin's word about an object: a service that knows no
 * keys (404) is ERR_ORIGIN_DENIED, not -ENOENT.
 *  4. That there are none is believed only when those at hand have ended.
 *
 * Failure modes: those of web_error_of_credentials.
 */
#include "origin/web_internal.h"

#define LEAST_MS 10000 /* with less left they are not used */
#define AGAIN_MS 10000 /* between a renewal that failed, or gained no time, and the next */
#define NONE_MS  60000 /* that there are none is believed for so long */
#define WAIT_NS  ((uint64_t)QUIT_LOOK_MS * 1000000)

void web_renewed_init(struct web_renewed *n, const struct web_renewed_kind *kind, void *arg)
{
    *n = (struct web_renewed){.kind = kind, .arg = arg};
    lock_init(&n->lock, LOCK_ORIGIN);
    cond_init(&n->moved);
}

void web_renewed_fini(struct web_renewed *n)
{
    n->kind->free(n->now);
    cond_fini(&n->moved);
    lock_fini(&n->lock);
}

static uint64_t left_ms_locked(const struct web_renewed *n)
{
    uint64_t now_ms = sys_mono_ms();
    lock_assert_held(&n->lock);
    return n->known && n->ends_ms > now_ms ? n->ends_ms - now_ms : 0;
}

void web_renewed_drop(struct web_renewed *n, uint64_t version)
{
    LOCK_SCOPE(&n->lock);
    if (version != n->version) /* a late refusal says nothing of those that came since */
        return;
    n->known = false;
    n->again_ms = 0;
}

static int ask(struct web_renewed *n, bool has, void **ret, uint64_t *ret_life_ms, struct err *e)
{
    int r = n->kind->ask(n->arg, ret, ret_life_ms, e);
    if (r != -ENOENT || has)
        return web_error_of_credentials(r, e);
    *ret = NULL;
    *ret_life_ms = NONE_MS + WEB_RENEW_BEFORE_MS;
    return 0;
}

/* Asks without the lock; with it again on return. */
static int renew_locked(struct web_renewed *n, struct err *e)
{
    void *found = NULL;
    uint64_t life_ms = 0;
    bool has = n->now && left_ms_locked(n) >= LEAST_MS;
    n->asking = true;
    lock_drop(&n->lock);
    int r = ask(n, has, &found, &life_ms, e);
    lock_take(&n->lock);
    n->asking = false;
    if (r == -ECANCELED) { /* somebody else asks */
        cond_broadcast(&n->moved);
        return r;
    }
    n->rounds++;
    n->result = r;
    n->again_ms = r < 0 || life_ms < WEB_RENEW_BEFORE_MS ? sys_mono_ms() + AGAIN_MS : 0;
    if (r < 0 && e)
        n->why = *e;
    if (r == 0) {
        n->kind->free(n->now);
        n->now = found;
        n->known = true;
        n->version++;
        n->ends_ms = sys_mono_ms() + life_ms;
    }
    cond_broadcast(&n->moved);
    return r;
}

/* Whether it is this thread's turn to ask. */
static bool is_due_locked(const struct web_renewed *n)
{
    uint64_t left_ms = left_ms_locked(n);
    return !n->asking && left_ms < WEB_RENEW_BEFORE_MS &&
           (left_ms < LEAST_MS || sys_mono_ms() >= n->again_ms);
}

int web_renewed_get(struct web_renewed *n, void *ret, uint64_t *ret_version, struct err *e)
{
    LOCK_SCOPE(&n->lock);
    uint64_t before = n->rounds;
    while (n->asking && left_ms_locked(n) < LEAST_MS && !(n->rounds != before && n->result < 0)) {
        if (quit_is_now())
            return err_set(e, -ECANCELED, "canceled");
        (void)cond_wait_for(&n->moved, &n->lock, WAIT_NS);
    }
    if (n->rounds != before && n->result < 0 && left_ms_locked(n) < LEAST_MS) {
        if (e)
            *e = n->why;
        return n->result;
    }
    if (is_due_locked(n)) {
        int r = renew_locked(n, e);
        if (r < 0 && left_ms_locked(n) < LEAST_MS)
            return r;
        if (e)
            e->code = 0;
    }
    if (left_ms_locked(n) == 0)
        return err_set(e, ERR_ORIGIN_DENIED, "the credentials have ended");
    *ret_version = n->version;
    return n->now ? n->kind->copy(n->now, ret, e) : 0;
}

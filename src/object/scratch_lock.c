/*
 * Locks on files of scratch buckets that mounts ask for: whole files (flock) and ranges of bytes (posix), in
 * memory, by session and the kernel's owner.
 *
 * Invariants:
 *  1. Two locks of one inode and kind that overlap and of which one is for writing have the same owner.
 *  2. An owner's posix locks of one inode do not overlap; those of one type do not touch.
 *  3. A posix request waits only while its wait does not close a circle of owners that wait for each other.
 *
 * A wait ends by itself after WAIT_MS with -ETIMEDOUT, and is to be asked again: only an answer shows that
 * the client is still there.
 */
#include "object/scratch_node.h"

#include "base/hash.h"
#include "base/sys.h"

#define CHAINS       4096
#define LOCKS_MAX    1000000
#define OF_USER_MAX  65536  /* of a session that the node checks for: others are to have some, too */
#define OF_USERS_MAX 131072 /* of all of those */
#define WAIT_MS      4000
#define CIRCLE_MAX   1000 /* owners looked at */
#define WAITERS_MAX  64   /* that hold a thread of the server; what comes on top waits a moment only */
#define MOMENT_MS    20

struct owner {
    struct object_session *session;
    uint64_t id;
    uint32_t kind; /* enum wire_lock_kind */
};

struct slock {
    struct slock *next;
    uint64_t bucket, ino;
    struct owner owner;
    uint32_t type, pid;
    uint64_t start, end;
};

struct waiter {
    struct waiter *next;
    uint64_t bucket, ino;
    struct owner owner, blocker;
    bool cancelled;
};

struct slocks {
    struct lock lock; /* covers what follows */
    struct cond changed;
    struct slock *chains[CHAINS];
    struct waiter *waiters;
    uint64_t n, n_of_users, n_waiters;
    bool stopping;
};

struct slocks *slocks_new(void)
{
    struct slocks *l = calloc(1, sizeof(*l));
    assert(l);
    lock_init(&l->lock, LOCK_OBJECT);
    cond_init(&l->changed);
    return l;
}

void slocks_free(struct slocks *l)
{
    if (!l)
        return;
    for (size_t i = 0; i < CHAINS; i++)
        while (l->chains[i]) {
            struct slock *x = l->chains[i];
            l->chains[i] = x->next;
            free(x);
        }
    cond_fini(&l->changed);
    lock_fini(&l->lock);
    free(l);
}

static bool same_owner(const struct owner *a, const struct owner *b)
{
    return a->session == b->session && a->id == b->id && a->kind == b->kind;
}

static struct slock **chain_of(struct slocks *l, uint64_t bucket, uint64_t ino)
{
    return &l->chains[hash_mix(bucket, ino) % CHAINS];
}

static bool is_at(const struct slock *x, const struct slock *want)
{
    return x->bucket == want->bucket && x->ino == want->ino && x->owner.kind == want->owner.kind;
}

static bool overlaps(const struct slock *x, const struct slock *want)
{
    return x->start <= want->end && want->start <= x->end;
}

/* ---- taking and dropping ---- */

/* The first in the file, as F_GETLK has it. */
static const struct slock *conflict_locked(struct slocks *l, const struct slock *want)
{
    const struct slock *first = NULL;
    for (const struct slock *x = *chain_of(l, want->bucket, want->ino); x; x = x->next)
        if (is_at(x, want) && overlaps(x, want) && !same_owner(&x->owner, &want->owner) &&
            (x->type == WIRE_LOCK_WRITE || want->type == WIRE_LOCK_WRITE) &&
            (!first || x->start < first->start))
            first = x;
    return first;
}

static void insert_locked(struct slocks *l, const struct slock *want)
{
    struct slock *x = malloc(sizeof(*x)), **chain = chain_of(l, want->bucket, want->ino);
    assert(x);
    *x = *want;
    x->next = *chain;
    *chain = x;
    l->n++;
    l->n_of_users += x->owner.session->has_peer;
    x->owner.session->n_locks++;
}

static void remove_locked(struct slocks *l, struct slock **at)
{
    struct slock *x = *at;
    *at = x->next;
    l->n--;
    l->n_of_users -= x->owner.session->has_peer;
    x->owner.session->n_locks--;
    free(x);
}

/* The owner's locks leave this range; those that reach beyond it are cut, or become two. */
static void carve_locked(struct slocks *l, const struct slock *want)
{
    struct slock **at = chain_of(l, want->bucket, want->ino);
    while (*at) {
        struct slock *x = *at;
        if (!is_at(x, want) || !overlaps(x, want) || !same_owner(&x->owner, &want->owner)) {
            at = &x->next;
            continue;
        }
        struct slock left = *x, right = *x;
        remove_locked(l, at);
        left.end = want->start - 1;
        right.start = want->end + 1;
        bool has_left = left.start<want->start, has_right = right.end> want->end;
        if (has_right)
            insert_locked(l, &right); /* in front: not looked at again but harmlessly */
        if (has_left)
            insert_locked(l, &left);
        if (has_left || has_right)
            at = chain_of(l, want->bucket, want->ino);
    }
}

/* Takes what touches the range and is the same into it. */
static void merge_locked(struct slocks *l, struct slock *want)
{
    struct slock **at = chain_of(l, want->bucket, want->ino);
    while (*at) {
        struct slock *x = *at;
        bool touches = (x->end == UINT64_MAX || x->end + 1 >= want->start) &&
                       (want->end == UINT64_MAX || want->end + 1 >= x->start);
        if (!is_at(x, want) || !same_owner(&x->owner, &want->owner) || x->type != want->type || !touches) {
            at = &x->next;
            continue;
        }
        want->start = MIN(want->start, x->start);
        want->end = MAX(want->end, x->end);
        remove_locked(l, at);
        at = chain_of(l, want->bucket, want->ino); /* the range has grown */
    }
}

static void take_locked(struct slocks *l, const struct slock *want)
{
    struct slock x = *want;
    carve_locked(l, want);
    merge_locked(l, &x);
    insert_locked(l, &x);
    cond_broadcast(&l->changed); /* it may be weaker than what was there */
}

/* ---- waiting ---- */

/* Whether `blocker` waits, over others, for `owner`. */
static bool is_circle_locked(const struct slocks *l, const struct owner *owner, struct owner blocker)
{
    for (int i = 0; i < CIRCLE_MAX; i++) {
        if (same_owner(&blocker, owner))
            return true;
        const struct waiter *w = l->waiters;
        while (w && !same_owner(&w->owner, &blocker))
            w = w->next;
        if (!w)
            return false;
        blocker = w->blocker;
    }
    return false;
}

static void unwait_locked(struct slocks *l, struct waiter *w)
{
    struct waiter **at = &l->waiters;
    while (*at != w)
        at = &(*at)->next;
    *at = w->next;
    l->n_waiters--;
}

static int wait_locked(struct slocks *l, const struct slock *want, struct err *e)
{
    struct waiter w = {.next = l->waiters, .bucket = want->bucket, .ino = want->ino, .owner = want->owner};
    uint64_t end_ms = sys_mono_ms() + (l->n_waiters < WAITERS_MAX ? WAIT_MS : MOMENT_MS), now_ms;
    const struct slock *x;
    int r = 0;
    l->waiters = &w;
    l->n_waiters++;
    while (r == 0 && (x = conflict_locked(l, want))) {
        w.blocker = x->owner;
        now_ms = sys_mono_ms();
        if (w.cancelled || l->stopping || want->owner.session->is_abandoned)
            r = err_set(e, -EINTR, "the wait for a lock was ended");
        else if (want->owner.kind == WIRE_LOCK_POSIX && is_circle_locked(l, &want->owner, x->owner))
            r = err_set(e, -EDEADLK, "owners of locks wait for each other");
        else if (now_ms >= end_ms)
            r = err_set(e, -ETIMEDOUT, "somebody else has the lock still");
        else
            (void)cond_wait_for(&l->changed, &l->lock, (end_ms - now_ms) * 1000000);
    }
    unwait_locked(l, &w);
    if (r == 0 && want->owner.session->is_abandoned)
        r = err_set(e, -EINTR, "the session is over");
    return r;
}

static void cancel_locked(struct slocks *l, const struct slock *want)
{
    for (struct waiter *w = l->waiters; w; w = w->next)
        if (w->bucket == want->bucket && w->ino == want->ino && same_owner(&w->owner, &want->owner))
            w->cancelled = true;
    cond_broadcast(&l->changed);
}

static bool is_full_locked(const struct slocks *l, const struct object_session *session)
{
    bool is_user_full = session->n_locks >= OF_USER_MAX || l->n_of_users >= OF_USERS_MAX;
    return l->n >= LOCKS_MAX || (session->has_peer && is_user_full);
}

/* Whether one of the owner's locks would become two when this range leaves it. */
static bool splits_locked(struct slocks *l, const struct slock *want)
{
    for (const struct slock *x = *chain_of(l, want->bucket, want->ino); x; x = x->next)
        if (is_at(x, want) && same_owner(&x->owner, &want->owner) && x->start < want->start &&
            x->end > want->end)
            return true;
    return false;
}

/* ---- TREE_LOCK ---- */

static int check_request(const struct wire_tree_lock_req *q, struct err *e)
{
    if ((q->kind != WIRE_LOCK_FLOCK && q->kind != WIRE_LOCK_POSIX) || q->type > WIRE_LOCK_WRITE)
        return err_set(e, -EINVAL, "unknown kind or type of lock");
    if (q->kind == WIRE_LOCK_POSIX && q->start > q->end)
        return err_set(e, -EINVAL, "the range of a lock ends before it begins");
    if (q->flags & WIRE_TEST && q->kind != WIRE_LOCK_POSIX)
        return err_set(e, -EINVAL, "only posix locks are tested for");
    return 0;
}

static int lock_locked(struct slocks *l, const struct slock *want, uint32_t flags, struct err *e)
{
    if (is_full_locked(l, want->owner.session))
        return err_set(e, -ENOLCK, "too many locks");
    if (want->owner.kind == WIRE_LOCK_FLOCK) { /* another type takes the place of what the owner has */
        carve_locked(l, want);
        cond_broadcast(&l->changed);
    }
    if (conflict_locked(l, want)) {
        int r = flags & WIRE_WAIT ? wait_locked(l, want, e) : err_set(e, -EAGAIN, "somebody else has a lock");
        if (r < 0)
            return r;
    }
    take_locked(l, want);
    return 0;
}

int slocks_call(struct slocks *l, struct object_session *session, uint64_t bucket,
                const struct wire_tree_lock_req *q, struct wire_tree_lock_rep *rep, struct err *e)
{
    int r = check_request(q, e);
    if (r < 0)
        return r;
    bool whole = q->kind == WIRE_LOCK_FLOCK;
    struct slock want = {.bucket = bucket,
                         .ino = q->ino,
                         .owner = {session, q->owner, q->kind},
                         .type = q->type,
                         .pid = q->pid,
                         .start = whole ? 0 : q->start,
                         .end = whole ? UINT64_MAX : q->end};
    LOCK_SCOPE(&l->lock);
    if (session->is_abandoned)
        return err_set(e, -EINTR, "the session is over");
    if (q->flags & WIRE_CANCEL) {
        cancel_locked(l, &want);
    } else if (q->flags & WIRE_TEST) {
        const struct slock *x = q->type == WIRE_LOCK_NONE ? NULL : conflict_locked(l, &want);
        if (x)
            *rep = (struct wire_tree_lock_rep){
                .fd = -1, .type = x->type, .start = x->start, .end = x->end, .pid = x->pid};
    } else if (q->type == WIRE_LOCK_NONE && is_full_locked(l, session) && splits_locked(l, &want)) {
        r = err_set(e, -ENOLCK, "too many locks");
    } else if (q->type == WIRE_LOCK_NONE) {
        carve_locked(l, &want);
        cond_broadcast(&l->changed);
    } else {
        r = lock_locked(l, &want, q->flags, e);
    }
    return r;
}

void slocks_end_session(struct slocks *l, struct object_session *session)
{
    LOCK_SCOPE(&l->lock);
    if (session->is_abandoned)
        return;
    session->is_abandoned = true;
    for (size_t i = 0; l->n > 0 && i < CHAINS; i++) {
        struct slock **at = &l->chains[i];
        while (*at) {
            struct slock *x = *at;
            if (x->owner.session != session) {
                at = &x->next;
                continue;
            }
            remove_locked(l, at);
        }
    }
    cond_broadcast(&l->changed);
}

void slocks_stop(struct slocks *l)
{
    LOCK_SCOPE(&l->lock);
    l->stopping = true;
    cond_broadcast(&l->changed);
}

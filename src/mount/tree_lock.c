/*
 * GETLK, SETLK, FLOCK. The node has the locks of all mounts; this side remembers its own, to take them again
 * after the node was restarted, and waits for those that are not free.
 *
 * Waiting takes no thread of the mount: requests that wait are in a list, and one thread asks for them again,
 * at once when this mount gives a lock back, else every few milliseconds. The kernel's INTERRUPT ends one.
 * A wait that could never end because the owners of this mount wait for each other gives EDEADLK (POSIX locks
 * only, as elsewhere).
 *
 * The kernel does not wait for our end of a close, which is when locks of flock(2) and those of an open
 * (F_OFD_*) go. Who is refused because of such a lock of this mount is therefore answered only when it has
 * not gone within a while (tree_held_grace_ms).
 *
 * What another owner of this mount has is refused without asking, and told of when the node knows of nothing:
 * in a new session of the node it may not have been taken again yet.
 *
 * The kernel calls an open by an address that it uses again for the next one while RELEASE is on its way: an
 * owner may therefore take anew what the open before it has not given back yet. What ends with an open is
 * only what was last taken through it.
 *
 * Invariants:
 *  1. What is remembered of an owner on a file is what the node answered last, and what it may do yet after
 *     it did not answer in time: f->order_lock is held over both.
 *  2. A request in the list is answered by the thread alone, once.
 *
 * Failure modes: after a restart of the node somebody else may have what was ours; it is then forgotten, and
 * the log says so. While the node does not answer, those who wait wait.
 */
#include "mount/tree.h"
#include "mount/tree_held.h"

#include "base/log.h"
#include "base/sys.h"
#include "mount/holdings.h"
#include "mount/queue.h"

#include <fcntl.h>
#include <sys/file.h>

#define WAIT_FIRST_MS 2
#define WAIT_MOST_MS  50
#define TO_THE_END    UINT64_MAX
#define CHAIN_MAX     1000 /* owners that wait one for the other */

/* One request that waits. */
struct waiter {
    struct waiter *next;
    fuse_req_t req;
    struct tree_file *file; /* referenced */
    struct tree_held wanted;
    uint64_t until_ms; /* then it is refused (monotonic); 0: never */
    bool is_test;      /* asks only what is in the way */
    bool is_ready;     /* libfuse knows whom to tell of an interrupt: from here on it may be answered */
    bool is_interrupted, is_looked_at;
};

#define WAITER_BYTES holdings_chunk(sizeof(struct waiter))

struct tree_waiters {
    struct mount *m;
    pthread_t thread;
    struct lock lock; /* covers what follows, and the `locks` of every file */
    struct cond woken;
    struct waiter *first;
    bool must_look, must_stop;
};

/* ---- who waits for whom ---- */

/* Whether `owner` waits for something that, over any number of owners, waits for `by`: who is refused after a
 * while does not. Each request is looked at once. */
static bool waits_for_locked(const struct tree_waiters *w, uint64_t owner, uint64_t by, int depth)
{
    for (struct waiter *x = w->first; x && depth < CHAIN_MAX; x = x->next) {
        if (x->wanted.owner != owner || x->wanted.kind != WIRE_LOCK_POSIX || x->until_ms > 0 ||
            x->is_looked_at)
            continue;
        x->is_looked_at = true;
        for (const struct tree_held *h = x->file->locks; h; h = h->next)
            if (tree_held_conflicts(h, &x->wanted) &&
                (h->owner == by || waits_for_locked(w, h->owner, by, depth + 1)))
                return true;
    }
    return false;
}

static bool would_deadlock_locked(struct tree_waiters *w, struct tree_file *f, const struct tree_held *x)
{
    lock_assert_held(&w->lock);
    if (x->kind != WIRE_LOCK_POSIX)
        return false;
    for (struct waiter *y = w->first; y; y = y->next)
        y->is_looked_at = false;
    for (const struct tree_held *h = f->locks; h; h = h->next)
        if (tree_held_conflicts(h, x) && waits_for_locked(w, h->owner, x->owner, /* depth= */ 0))
            return true;
    return false;
}

/* ---- asking the node ---- */

static int ask(struct mount *m, struct tree_file *f, const struct tree_held *x, uint32_t flags,
               struct wire_tree_lock_rep *ret, struct err *e)
{
    struct wire_tree_lock_req req = {
        .bucket = slice_str(m->bucket),
        .ino = f->ino,
        .owner = x->owner,
        .kind = x->kind,
        .type = x->type,
        .start = x->start,
        .end = x->end,
        .pid = x->pid,
        .flags = flags,
    };
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    return client_tree_lock(m->client, &req, &b, ret, e);
}

/* Whether this mount alone says no. Of flock(2) the node knows first what goes when an owner asks for more.
 */
static bool is_refused_here(struct tree_waiters *w, const struct tree_file *f, const struct tree_held *x)
{
    LOCK_SCOPE(&w->lock);
    bool is_taken = false, is_owner = false;
    for (const struct tree_held *h = f->locks; h; h = h->next) {
        is_taken |= tree_held_conflicts(h, x);
        is_owner |= h->owner == x->owner && h->kind == x->kind;
    }
    return is_taken && !(is_owner && x->kind == WIRE_LOCK_FLOCK);
}

/* Whether there is room to remember it. Giving back needs some only in the middle of what is held. */
static bool has_room(struct mount *m, const struct tree_file *f, const struct tree_held *x)
{
    if (kept_has_room(m->seat.kept) && holdings_may(KEPT_CELL_BYTES))
        return true;
    LOCK_SCOPE(&m->tree->waiters->lock);
    return x->type == WIRE_LOCK_NONE && !tree_held_splits(f->locks, x);
}

static int take_in_order(struct mount *m, struct tree_file *f, const struct tree_held *x, struct err *e)
{
    struct tree_waiters *w = m->tree->waiters;
    struct wire_tree_lock_rep rep;
    struct tree_held now = *x;
    lock_assert_held(&f->order_lock);
    if (!has_room(m, f, x))
        return -ENOLCK;
    if (is_refused_here(w, f, x))
        return -EAGAIN;
    int r = ask(m, f, x, /* flags= */ 0, &rep, e);
    bool is_lost = r == -EAGAIN && x->kind == WIRE_LOCK_FLOCK; /* what flock(2) had goes before it asks */
    /* It has the request, and the session may go on: nobody else would give back what it does when it wakes.
     */
    bool may_come = r == -ETIMEDOUT && x->type != WIRE_LOCK_NONE;
    if (r < 0 && !is_lost && !may_come)
        return r;
    LOCK_SCOPE(&w->lock);
    now.type = is_lost ? WIRE_LOCK_NONE : x->type;
    tree_held_set(m->seat.kept, &f->locks, &now);
    if (w->first && r == 0 && now.type != WIRE_LOCK_WRITE) {
        w->must_look = true;
        cond_signal(&w->woken);
    }
    return r;
}

/* Takes or gives back, and remembers. -EAGAIN: somebody has it. What of its open was closed until now says
 * nothing of a lock that it gets now. */
static int take(struct mount *m, struct tree_file *f, const struct tree_held *x, struct err *e)
{
    LOCK_SCOPE(&f->order_lock);
    int r = take_in_order(m, f, x, e);
    if (r == 0) {
        atomic_store(&x->through->is_closing, false);
        atomic_store(&x->through->has_stayed, false);
    }
    return r;
}

/* What is in the way, the first in the file: as the node says, else what this mount has. */
static int find_in_the_way(struct mount *m, struct tree_file *f, const struct tree_held *wanted,
                           struct wire_tree_lock_rep *ret, struct err *e)
{
    int r = ask(m, f, wanted, WIRE_TEST, ret, e);
    if (r < 0 || ret->type != WIRE_LOCK_NONE)
        return r;
    LOCK_SCOPE(&m->tree->waiters->lock);
    for (const struct tree_held *h = f->locks; h; h = h->next)
        if (tree_held_conflicts(h, wanted) && (ret->type == WIRE_LOCK_NONE || h->start < ret->start))
            *ret = (struct wire_tree_lock_rep){
                .fd = -1, .type = h->type, .start = h->start, .end = h->end, .pid = h->pid};
    return 0;
}

/* Whether a lock of this mount is in the way, and how long it may take to go by itself. */
static bool is_in_the_way_here(struct mount *m, struct tree_file *f, const struct tree_held *wanted,
                               uint64_t *ret_grace_ms)
{
    LOCK_SCOPE(&m->tree->waiters->lock);
    bool is_here = false;
    uint64_t ms = 0;
    for (const struct tree_held *h = f->locks; h; h = h->next) {
        struct tree_handle *through = h->through;
        if (!tree_held_conflicts(h, wanted))
            continue;
        uint64_t own_ms =
            tree_held_grace_ms(h->kind, atomic_load(&through->is_closing), atomic_load(&through->has_stayed));
        is_here = true;
        ms = MAX(ms, own_ms);
    }
    *ret_grace_ms = ms;
    return is_here;
}

/* Who has what is wanted was closed, and not within the time that was given it. */
static void note_stayed(struct mount *m, const struct tree_file *f, const struct tree_held *wanted)
{
    LOCK_SCOPE(&m->tree->waiters->lock);
    for (const struct tree_held *h = f->locks; h; h = h->next)
        if (tree_held_conflicts(h, wanted) && atomic_load(&h->through->is_closing))
            atomic_store(&h->through->has_stayed, true);
}

static void reply_found(fuse_req_t req, const struct wire_tree_lock_rep *rep)
{
    struct flock found = {
        .l_type = rep->type == WIRE_LOCK_NONE   ? F_UNLCK
                  : rep->type == WIRE_LOCK_READ ? F_RDLCK
                                                : F_WRLCK,
        .l_whence = SEEK_SET,
        .l_start = (off_t)rep->start,
        .l_len = rep->end == TO_THE_END ? 0 : (off_t)(rep->end - rep->start + 1),
        .l_pid = (pid_t)rep->pid,
    };
    (void)fuse_reply_lock(req, &found);
}

/* ---- waiting ---- */

static void on_interrupt(fuse_req_t req, void *arg)
{
    struct tree_waiters *w = arg;
    LOCK_SCOPE(&w->lock);
    for (struct waiter *x = w->first; x; x = x->next)
        if (x->req == req)
            x->is_interrupted = true;
    w->must_look = true;
    cond_signal(&w->woken);
}

/* `found` is of a test that came to an end. */
static void answer(struct mount *m, struct waiter *x, int r, const struct wire_tree_lock_rep *found,
                   const struct err *e)
{
    fuse_req_interrupt_func(x->req, NULL, NULL);
    if (x->is_test && r == 0)
        reply_found(x->req, found);
    else
        tree_reply(x->req, "lock", r, e);
    tree_file_unref(m, x->file);
    free(x);
    holdings_give(HOLDING_LOCKS, WAITER_BYTES);
}

/* Takes all that wait off the list; they are put back by try_all. */
static struct waiter *take_list(struct tree_waiters *w)
{
    LOCK_SCOPE(&w->lock);
    return w->first;
}

static void remove_waiter(struct tree_waiters *w, struct waiter *x)
{
    LOCK_SCOPE(&w->lock);
    struct waiter **at = &w->first;
    while (*at != x)
        at = &(*at)->next;
    *at = x->next;
}

/* -EAGAIN: somebody has it, of a test *ret_found says who. */
static int try_one(struct mount *m, struct waiter *x, struct wire_tree_lock_rep *ret_found, struct err *e)
{
    if (!x->is_test)
        return take(m, x->file, &x->wanted, e);
    int r = find_in_the_way(m, x->file, &x->wanted, ret_found, e);
    return r == 0 && ret_found->type != WIRE_LOCK_NONE ? -EAGAIN : r;
}

/* One round: the oldest first. Only this thread takes requests off the list, so that it may walk it; new ones
 * come at its end. */
static bool try_all(struct tree_waiters *w)
{
    bool got_one = false;
    for (struct waiter *x = take_list(w), *next; x; x = next) {
        struct err e = {0};
        struct wire_tree_lock_rep found = {0};
        lock_take(&w->lock);
        int r = !x->is_ready ? -EAGAIN : x->is_interrupted || w->must_stop ? -EINTR : 0;
        lock_drop(&w->lock);
        if (r == 0)
            r = try_one(w->m, x, &found, &e);
        lock_take(&w->lock);
        next = x->next;
        bool may_wait = !x->is_ready || x->until_ms == 0 || sys_mono_ms() < x->until_ms;
        lock_drop(&w->lock);
        if (may_wait && (r == -EAGAIN || r == -EHOSTDOWN || r == -ETIMEDOUT))
            continue;
        if (r == -EAGAIN)
            note_stayed(w->m, x->file, &x->wanted);
        remove_waiter(w, x);
        answer(w->m, x, x->is_test && r == -EAGAIN ? 0 : r, &found, &e);
        got_one = true;
    }
    return got_one;
}

static void *waiters_main(void *arg)
{
    struct tree_waiters *w = arg;
    uint64_t pause_ms = WAIT_FIRST_MS;
    bool must_stop = false;
    while (!must_stop) {
        lock_take(&w->lock);
        while (!w->first && !w->must_stop)
            cond_wait(&w->woken, &w->lock);
        if (!w->must_look && !w->must_stop)
            (void)cond_wait_for(&w->woken, &w->lock, pause_ms * 1000000);
        if (w->must_look)
            pause_ms = WAIT_FIRST_MS;
        w->must_look = false;
        must_stop = w->must_stop;
        lock_drop(&w->lock);
        pause_ms = try_all(w) ? WAIT_FIRST_MS : MIN(pause_ms * 2, (uint64_t)WAIT_MOST_MS);
    }
    return NULL;
}

struct tree_waiters *tree_waiters_start(struct mount *m)
{
    struct tree_waiters *w = calloc(1, sizeof(*w));
    if (!w)
        abort();
    w->m = m;
    lock_init(&w->lock, LOCK_MOUNT); /* above that of kept cells */
    cond_init(&w->woken);
    if (pthread_create(&w->thread, NULL, waiters_main, w) != 0)
        abort();
    return w;
}

void tree_waiters_end(struct tree_waiters *w)
{
    lock_take(&w->lock);
    w->must_stop = true;
    cond_signal(&w->woken);
    lock_drop(&w->lock);
    (void)pthread_join(w->thread, NULL);
    (void)try_all(w); /* what came last */
}

void tree_waiters_free(struct tree_waiters *w)
{
    if (!w)
        return;
    assert(!w->first);
    cond_fini(&w->woken);
    lock_fini(&w->lock);
    free(w);
}

/* At the end of the list, unless that would close a circle: two that come at once must not both find none. */
static bool enlist(struct tree_waiters *w, struct waiter *x)
{
    LOCK_SCOPE(&w->lock);
    if (x->until_ms == 0 && would_deadlock_locked(w, x->file, &x->wanted))
        return false;
    struct waiter **at = &w->first;
    while (*at)
        at = &(*at)->next;
    *at = x;
    return true;
}

/* until_ms 0: for as long as it takes; -EDEADLK when it would take for ever. -ENOLCK: no memory to wait in.
 */
static int wait_for(fuse_req_t req, struct tree_file *f, const struct tree_held *wanted, uint64_t until_ms,
                    bool is_test)
{
    struct mount *m = mount_of(req);
    struct tree_waiters *w = m->tree->waiters;
    if (!holdings_may(WAITER_BYTES))
        return -ENOLCK;
    struct waiter *x = calloc(1, sizeof(*x));
    if (!x)
        abort();
    holdings_take(HOLDING_LOCKS, WAITER_BYTES);
    *x = (struct waiter){
        .req = req, .file = tree_file_ref(m, f), .wanted = *wanted, .until_ms = until_ms, .is_test = is_test};
    if (!enlist(w, x)) {
        tree_file_unref(m, f);
        free(x);
        holdings_give(HOLDING_LOCKS, WAITER_BYTES);
        return -EDEADLK;
    }
    /* Calls back at once when the request was interrupted already. */
    fuse_req_interrupt_func(req, on_interrupt, w);
    lock_take(&w->lock);
    x->is_ready = true;
    w->must_look = true;
    cond_signal(&w->woken);
    lock_drop(&w->lock);
    return 0;
}

/* ---- operations ---- */

static uint32_t type_of(short type)
{
    return type == F_RDLCK ? WIRE_LOCK_READ : type == F_WRLCK ? WIRE_LOCK_WRITE : WIRE_LOCK_NONE;
}

/* libfuse has made the range absolute; l_len 0: to the end. */
static struct tree_held held_of(const struct fuse_file_info *fi, const struct flock *lock)
{
    return (struct tree_held){
        .ino = tree_handle_of(fi)->ino,
        .owner = fi->lock_owner,
        .kind = WIRE_LOCK_POSIX,
        .type = type_of(lock->l_type),
        .start = (uint64_t)lock->l_start,
        .end = lock->l_len == 0 ? TO_THE_END : (uint64_t)lock->l_start + (uint64_t)lock->l_len - 1,
        .pid = (uint32_t)lock->l_pid,
        .through = tree_handle_of(fi),
    };
}

void tree_op_getlk(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi, struct flock *lock)
{
    (void)ino;
    struct err e = {0};
    struct tree_held wanted = held_of(fi, lock);
    struct wire_tree_lock_rep rep;
    struct mount *m = mount_of(req);
    struct tree_file *f = tree_handle_of(fi)->file;
    uint64_t grace_ms = 0;
    int r = find_in_the_way(m, f, &wanted, &rep, &e);
    if (r == 0 && rep.type != WIRE_LOCK_NONE && !is_in_the_way_here(m, f, &wanted, &grace_ms))
        r = find_in_the_way(m, f, &wanted, &rep, &e); /* perhaps it has just gone */
    if (r == 0 && rep.type != WIRE_LOCK_NONE && grace_ms > 0)
        r = wait_for(req, f, &wanted, sys_mono_ms() + grace_ms, /* is_test= */ true);
    else if (r == 0)
        reply_found(req, &rep);
    if (r < 0)
        mount_reply_error(req, "lock", r, &e);
}

static void set_lock(fuse_req_t req, struct tree_handle *h, const struct tree_held *wanted, bool may_wait)
{
    struct mount *m = mount_of(req);
    struct err e = {0};
    uint64_t grace_ms = 0;
    int r = take(m, h->file, wanted, &e);
    if (r == -EAGAIN && !is_in_the_way_here(m, h->file, wanted, &grace_ms)) /* perhaps it has just gone */
        r = take(m, h->file, wanted, &e);
    if (r == -EAGAIN && (may_wait || grace_ms > 0)) {
        uint64_t until_ms = may_wait ? 0 : sys_mono_ms() + grace_ms;
        r = wait_for(req, h->file, wanted, until_ms, /* is_test= */ false);
        if (r == 0)
            return; /* answered when it has the lock */
    }
    tree_reply(req, "lock", r, &e);
}

void tree_op_setlk(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi, struct flock *lock, int sleep)
{
    (void)ino;
    struct tree_held wanted = held_of(fi, lock);
    set_lock(req, tree_handle_of(fi), &wanted, sleep != 0);
}

void tree_op_flock(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi, int op)
{
    (void)ino;
    int kind = op & ~LOCK_NB;
    struct tree_held wanted = {
        .ino = tree_handle_of(fi)->ino,
        .owner = fi->lock_owner,
        .kind = WIRE_LOCK_FLOCK,
        .type = kind == LOCK_SH   ? WIRE_LOCK_READ
                : kind == LOCK_EX ? WIRE_LOCK_WRITE
                                  : WIRE_LOCK_NONE,
        .end = TO_THE_END,
        .pid = (uint32_t)fuse_req_ctx(req)->pid,
        .through = tree_handle_of(fi),
    };
    set_lock(req, tree_handle_of(fi), &wanted, !(op & LOCK_NB));
}

/* ---- for the others ---- */

/* A lock of this owner (any: 0), of this kind (any: 0) and asked through this open (any: NULL). */
static bool find_held(struct mount *m, struct tree_file *f, uint64_t owner, uint32_t kind,
                      const void *through, struct tree_held *ret)
{
    LOCK_SCOPE(&m->tree->waiters->lock);
    for (const struct tree_held *h = f->locks; h; h = h->next)
        if ((owner == 0 || h->owner == owner) && (kind == 0 || h->kind == kind) &&
            (!through || h->through == through)) {
            *ret = *h;
            return true;
        }
    return false;
}

static void note(struct mount *m, struct tree_file *f, const struct tree_held *x)
{
    LOCK_SCOPE(&m->tree->waiters->lock);
    tree_held_set(m->seat.kept, &f->locks, x);
}

static void unlock(struct mount *m, struct tree_file *f, struct tree_held x)
{
    struct err e = {0};
    x.type = WIRE_LOCK_NONE;
    if (take_in_order(m, f, &x, &e) == 0)
        return;
    log_debug("mount", "unlock: %s", e.text); /* the session is over, and its locks with it */
    note(m, f, &x);
}

void tree_unlock_owner(struct mount *m, struct tree_file *f, uint64_t owner)
{
    struct tree_held x;
    queue_lock(&f->order_lock);
    if (find_held(m, f, owner, WIRE_LOCK_POSIX, /* through= */ NULL, &x)) {
        x.start = 0; /* all that it has */
        x.end = TO_THE_END;
        unlock(m, f, x);
    }
    lock_drop(&f->order_lock);
}

void tree_unlock_handle(struct mount *m, struct tree_handle *h)
{
    struct tree_held x;
    queue_lock(&h->file->order_lock);
    while (find_held(m, h->file, /* owner= */ 0, /* kind= */ 0, h, &x))
        unlock(m, h->file, x);
    lock_drop(&h->file->order_lock);
}

/* The i-th lock of a file, in the order of the list. */
static bool nth_held(struct mount *m, struct tree_file *f, size_t i, struct tree_held *ret)
{
    LOCK_SCOPE(&m->tree->waiters->lock);
    const struct tree_held *h = f->locks;
    while (h && i-- > 0)
        h = h->next;
    if (h)
        *ret = *h;
    return h != NULL;
}

/* The session before may have the lock still, as long as anything runs for it: a long fsync. */
static int ask_again(struct mount *m, struct tree_file *f, const struct tree_held *x, struct err *e)
{
    struct wire_tree_lock_rep rep;
    struct wire_end_siblings_req req = {0};
    struct wire_end_siblings_rep ended;
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    int r = ask(m, f, x, /* flags= */ 0, &rep, e);
    if (r == -EAGAIN && client_end_siblings(m->client, &req, &b, &ended, e) == 0)
        r = ask(m, f, x, /* flags= */ 0, &rep, e);
    return r;
}

bool tree_relock(struct mount *m, struct tree_file *f, uint64_t epoch, bool is_open)
{
    struct tree_held x;
    LOCK_SCOPE(&f->order_lock);
    if (f->locks_epoch == epoch)
        return true;
    f->locks_epoch = epoch;
    for (size_t i = 0; nth_held(m, f, i, &x);) {
        struct err e = {0};
        int r = ask_again(m, f, &x, &e);
        if (r == 0) {
            i++;
            continue;
        }
        if (r == -EHOSTDOWN || r == -ETIMEDOUT || (r == -EACCES && !is_open)) { /* all are asked for again */
            f->locks_epoch = 0;
            return false;
        }
        log_warn("mount", "inode %llu: a lock was lost with the session: %s", (unsigned long long)f->ino,
                 e.text[0] ? e.text : "somebody else has it");
        x.type = WIRE_LOCK_NONE;
        note(m, f, &x);
    }
    return true;
}

void tree_locks_resume(struct mount *m)
{
    for (struct tree_held *h = NULL, *next = kept_next(m->seat.kept, KEPT_LOCK, NULL); (h = next);) {
        next = kept_next(m->seat.kept, KEPT_LOCK, h);
        struct tree_file *f = h->ino ? tree_file_find(m, h->ino) : NULL;
        if (!f) { /* half-made, or of a file that was being closed */
            kept_give(m->seat.kept, h);
            continue;
        }
        lock_take(&m->tree->waiters->lock);
        h->next = f->locks;
        f->locks = h;
        lock_drop(&m->tree->waiters->lock);
        tree_file_unref(m, f);
    }
    tree_files_relock(m);
}

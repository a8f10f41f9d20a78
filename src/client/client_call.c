/*
 * Calls: a connection from the pool, the call, and what to do when the connection is lost.
 *
 * Invariants:
 *  1. n_open never exceeds max_connections; every connection is idle, or owned by exactly one call.
 *  2. A session is used for one epoch only. Whenever a connection of it broke, or its last one closed, the
 * node may have ended it: the next epoch begins with a new session id, so that a handle's number of an old
 * session can never meet a handle of a new one.
 *  3. A call that changes something reaches the node at most once, unless the operation is repeatable, or has
 * a number (client_options): then it is sent again with that.
 *  4. Every wait has an end: for a free connection, for connecting and for a reply the call's deadline; for
 * the reply of a long operation, and for a connection while such operations hold some, the node's health. It
 * is asked, for half of the timeout, each time the other half has passed: so a node that hangs is found out
 * when the timeout is over.
 *
 * Failure modes: -EHOSTDOWN when the node could not be reached in time, -ETIMEDOUT when it did not answer in
 * time, -EIO when a call that must not be repeated was cut, -EBADF for a handle of an epoch that is over,
 * else what the node says.
 */
#include "client/client_internal.h"

#include "base/sys.h"

#define LONG_CUTS_MAX 3

/* ---- what an operation allows ---- */

/* Long because every operation is named: the compiler asks for a decision about a new one. */
bool client_op_is_repeatable(uint32_t op)
{
    switch ((enum wire_op)op) {
    /* Questions. */
    case WIRE_OP_CHALLENGE:
    case WIRE_OP_BUCKET_LIST:
    case WIRE_OP_BUCKET_GET:
    case WIRE_OP_STAT:
    case WIRE_OP_LIST:
    case WIRE_OP_FETCH:
    case WIRE_OP_CACHED:
    case WIRE_OP_CONFIRM:
    case WIRE_OP_PARTS:
    case WIRE_OP_PART:
    case WIRE_OP_TAGS:
    case WIRE_OP_STRANDED:
    case WIRE_OP_UPLOAD_PARTS:
    case WIRE_OP_UPLOAD_LIST:
    case WIRE_OP_STATUS:
    case WIRE_OP_USAGE:
    case WIRE_OP_EXPLAIN:
    case WIRE_OP_JOB_LIST:
    case WIRE_OP_JOB_GET:
    case WIRE_OP_JOB_WAIT:
    case WIRE_OP_JOB_ERRORS:
    case WIRE_OP_USER_LIST:
    case WIRE_OP_USER_GET:
    case WIRE_OP_TREE_LOOKUP:
    case WIRE_OP_TREE_GETATTR:
    case WIRE_OP_TREE_READDIR:
    case WIRE_OP_TREE_XATTR_GET:
    case WIRE_OP_TREE_XATTR_LIST:
    case WIRE_OP_TREE_STATFS:
    /* What they open for nobody is of a session that ends. */
    case WIRE_OP_OPEN:
    case WIRE_OP_WATCH:
    case WIRE_OP_WATCH_NAMES:
    case WIRE_OP_PUT_OPEN:
    /* A second time they change nothing more: a value is set, or something is gone. */
    case WIRE_OP_HELLO:
    case WIRE_OP_END_SIBLINGS:
    case WIRE_OP_BUCKET_SET:
    case WIRE_OP_BUCKET_RULE:
    case WIRE_OP_CLOSE:
    case WIRE_OP_CLOSE_MANY:
    case WIRE_OP_EVICT:
    case WIRE_OP_EVENTS:
    case WIRE_OP_PUT_ABORT:
    case WIRE_OP_UPLOAD_COMPLETE: /* what is completed answers as it did */
    case WIRE_OP_FLUSH:
    case WIRE_OP_STRAND: /* the same bytes take the place of those before */
    case WIRE_OP_SET_META:
    case WIRE_OP_SET_TAGS:
    case WIRE_OP_COPY_FROM:
    case WIRE_OP_UPLOAD_COPY: /* the same part again */
    case WIRE_OP_REPORT:
    case WIRE_OP_JOB_KEYS: /* each key is a record of its own */
    case WIRE_OP_USER_LIMIT:
    case WIRE_OP_TREE_SYNC:
    case WIRE_OP_TREE_LOCK:
    case WIRE_OP_TREE_LEAVE:
    case WIRE_OP_TREE_CLOSE:
    /* The same pair of mount and request gives the same answer. */
    case WIRE_OP_TREE_SETATTR:
    case WIRE_OP_TREE_CREATE:
    case WIRE_OP_TREE_OPEN:
    case WIRE_OP_TREE_LINK:
    case WIRE_OP_TREE_UNLINK:
    case WIRE_OP_TREE_REMOVE:
    case WIRE_OP_TREE_RMDIR:
    case WIRE_OP_TREE_RENAME:
    case WIRE_OP_TREE_MOVE:
    case WIRE_OP_TREE_XATTR_SET:
    case WIRE_OP_TREE_XATTR_REMOVE:
    case WIRE_OP_TREE_APPEND:
    /* Of the session that had the file open; another is refused. */
    case WIRE_OP_TREE_ROOM:
    case WIRE_OP_TREE_READ:
    case WIRE_OP_TREE_WRITE: /* the same bytes in the same place */
    case WIRE_OP_TREE_ALLOCATE:
    case WIRE_OP_TREE_SEEK:
        return true;
    case WIRE_OP_BUCKET_CREATE:
    case WIRE_OP_BUCKET_REMOVE:
    case WIRE_OP_ORIGIN_CHECK:
    case WIRE_OP_PUT_WRITE: /* bytes of a stream */
    case WIRE_OP_PUT_ROOM:  /* counted */
    case WIRE_OP_PUT_COMMIT:
    case WIRE_OP_UPLOAD_CREATE:
    case WIRE_OP_UPLOAD_PART:
    case WIRE_OP_UPLOAD_WRITE:
    case WIRE_OP_UPLOAD_END:
    case WIRE_OP_UPLOAD_ABORT:
    case WIRE_OP_UPLOAD_KEEP:
    case WIRE_OP_UPLOAD_KEEP_PART:
    case WIRE_OP_UPLOAD_RESUME: /* of who has it open already it is refused */
    case WIRE_OP_REMOVE:
    case WIRE_OP_REMOVE_SINCE:
    case WIRE_OP_COPY:
    case WIRE_OP_MKDIR:
    case WIRE_OP_RMDIR:
    case WIRE_OP_USER_CREATE:
    case WIRE_OP_USER_REMOVE:
    case WIRE_OP_USER_ADD_KEY:
    case WIRE_OP_USER_REMOVE_KEY:
    case WIRE_OP_JOB_START:
    case WIRE_OP_JOB_CHANGE:
    case WIRE_OP_STRANDED_END:
        return false;
    }
    return false;
}

/* What an origin may take its time for, and a change be done with although nobody waited; what waits for its
 * turn among others first, as limits and shares have it (object/shaped.c), for room, or for a disk. */
bool client_op_is_long(uint32_t op)
{
    switch ((enum wire_op)op) {
    case WIRE_OP_STAT:
    case WIRE_OP_LIST:
    case WIRE_OP_OPEN:
    case WIRE_OP_FETCH:
    case WIRE_OP_CONFIRM:
    case WIRE_OP_PART:
    case WIRE_OP_TAGS:
    case WIRE_OP_PUT_OPEN:
    case WIRE_OP_PUT_WRITE:
    case WIRE_OP_PUT_COMMIT:
    case WIRE_OP_COPY:
    case WIRE_OP_REMOVE:
    case WIRE_OP_REMOVE_SINCE:
    case WIRE_OP_MKDIR:
    case WIRE_OP_RMDIR:
    case WIRE_OP_SET_META:
    case WIRE_OP_SET_TAGS:
    case WIRE_OP_COPY_FROM:
    case WIRE_OP_UPLOAD_COPY:
    case WIRE_OP_BUCKET_CREATE:
    case WIRE_OP_BUCKET_SET:
    case WIRE_OP_BUCKET_REMOVE:
    case WIRE_OP_BUCKET_RULE:
    case WIRE_OP_ORIGIN_CHECK:
    case WIRE_OP_JOB_START:
    case WIRE_OP_STRAND:
    case WIRE_OP_STRANDED_END:
    case WIRE_OP_TREE_LOOKUP:
    case WIRE_OP_TREE_SETATTR:
    case WIRE_OP_TREE_CREATE:
    case WIRE_OP_TREE_OPEN:
    case WIRE_OP_TREE_SYNC:
    case WIRE_OP_TREE_LINK:
    case WIRE_OP_TREE_UNLINK:
    case WIRE_OP_TREE_REMOVE:
    case WIRE_OP_TREE_RMDIR:
    case WIRE_OP_TREE_RENAME:
    case WIRE_OP_TREE_MOVE:
    case WIRE_OP_TREE_READDIR:
    case WIRE_OP_TREE_XATTR_SET:
    case WIRE_OP_TREE_XATTR_REMOVE:
    case WIRE_OP_TREE_READ:
    case WIRE_OP_TREE_WRITE:
    case WIRE_OP_TREE_APPEND:
    case WIRE_OP_TREE_ALLOCATE:
        return true;
    default:
        return false;
    }
}

bool client_op_is_short(uint32_t op)
{
    switch ((enum wire_op)op) {
    case WIRE_OP_CLOSE:
    case WIRE_OP_CLOSE_MANY:
    case WIRE_OP_TREE_LOOKUP:
    case WIRE_OP_TREE_GETATTR:
    case WIRE_OP_TREE_SETATTR:
    case WIRE_OP_TREE_CREATE:
    case WIRE_OP_TREE_OPEN:
    case WIRE_OP_TREE_LINK:
    case WIRE_OP_TREE_UNLINK:
    case WIRE_OP_TREE_REMOVE:
    case WIRE_OP_TREE_RMDIR:
    case WIRE_OP_TREE_RENAME:
    case WIRE_OP_TREE_MOVE:
        return true;
    default:
        return false;
    }
}

bool client_op_is_question(uint32_t op)
{
    switch ((enum wire_op)op) {
    case WIRE_OP_STAT:
    case WIRE_OP_LIST:
    case WIRE_OP_OPEN: /* the node closes what a reply that nobody gets has opened */
    case WIRE_OP_FETCH:
    case WIRE_OP_CONFIRM:
    case WIRE_OP_TREE_LOOKUP:
    case WIRE_OP_TREE_GETATTR:
    case WIRE_OP_TREE_READDIR:
    case WIRE_OP_TREE_READ:
    case WIRE_OP_TREE_XATTR_GET:
    case WIRE_OP_TREE_XATTR_LIST:
    case WIRE_OP_TREE_STATFS:
        return true;
    default:
        return false;
    }
}

/* How long the node's health is asked for; the rest of the timeout is waited for a reply before. */
static uint64_t probe_ms(const struct client *c)
{
    return (c->timeout_ms + 1) / 2;
}

/* Where this process may have no further descriptor for the question nobody knows: the end of a node ends its
 * connections in any case. */
static bool node_answers(struct client *c)
{
    struct err ignored = {0};
    struct id128 session;
    _cleanup_(client_conn_freep) struct client_conn *probe = NULL;
    id_new(&session);
    int r = client_conn_open(c, session, sys_mono_ms() + probe_ms(c), &probe, &ignored);
    return r == 0 || r == -EMFILE || r == -ENFILE;
}

/* ---- the pool ---- */

struct client_attempt {
    struct client *c;
    uint64_t deadline_ms;
    uint64_t want_epoch; /* 0: any */
    uint64_t number;     /* of the change; 0: none */
    unsigned n_cut;      /* tries of a long operation that ended with the node */
    struct client_conn *conn;
    bool (*is_unwanted)(void); /* NULL: somebody wants it */
};

static bool may_repeat(const struct client_attempt *a, uint32_t op)
{
    return a->number != 0 || client_op_is_repeatable(op);
}

static int no_session(struct err *e)
{
    return err_set(e, -EBADF, "the node was restarted, its handles are gone");
}

/* Drops a connection from the counts. A lost one, or the last, ends the epoch. */
static void discard(struct client *c, struct client_conn *conn, bool is_lost)
{
    LOCK_SCOPE(&c->lock);
    c->n_open--;
    if (conn->epoch == c->epoch) {
        c->n_current--;
        if (is_lost || c->n_current == 0)
            client_new_epoch_locked(c);
    }
    cond_broadcast(&c->freed);
    client_conn_free(conn);
}

static struct client_conn *take_dead(struct client *c)
{
    LOCK_SCOPE(&c->lock);
    for (struct client_conn **at = &c->idle, *conn; (conn = *at); at = &conn->next)
        if (!client_conn_is_alive(conn)) {
            *at = conn->next;
            c->n_idle--;
            return conn;
        }
    return NULL;
}

void client_look(struct client *c)
{
    struct client_conn *conn;
    client_own(c);
    while ((conn = take_dead(c)))
        discard(c, conn, /* is_lost= */ true);
}

static void give_back(struct client *c, struct client_conn *conn)
{
    lock_take(&c->lock);
    if (conn->epoch == c->epoch && c->n_idle < c->max_idle) {
        conn->next = c->idle;
        c->idle = conn;
        c->n_idle++;
        cond_signal(&c->freed);
        lock_drop(&c->lock);
        return;
    }
    lock_drop(&c->lock);
    discard(c, conn, /* is_lost= */ false);
}

/* Of a call whose answer nobody wants any more, and which the node has not answered: the session has another
 * connection before it loses this one, as others may have only that. */
static void replace(struct client *c, struct client_conn *conn)
{
    struct err ignored = {0};
    struct client_conn *fresh;
    lock_take(&c->lock);
    bool is_current = conn->epoch == c->epoch;
    struct id128 session = c->session;
    lock_drop(&c->lock);
    if (!is_current || client_conn_open(c, session, sys_mono_ms() + probe_ms(c), &fresh, &ignored) < 0) {
        discard(c, conn, /* is_lost= */ false);
        return;
    }
    fresh->epoch = conn->epoch;
    client_conn_free(conn);
    give_back(c, fresh);
}

static int unwanted(struct err *e)
{
    return err_set(e, -EINTR, "nobody waits for the answer any more");
}

struct place_wait {
    bool was_long;   /* for longer than the timeout, as the node answers others */
    bool is_doubted; /* it did not when it was asked last */
};

/* All connections are busy. What waits behind long operations waits as they do, and then has its time still
 * before it; but while the node does not answer others it only has the rest of its time. */
static int wait_for_place_locked(struct client_attempt *a, struct place_wait *w, struct err *e)
{
    struct client *c = a->c;
    bool asks = !w->is_doubted && atomic_load_explicit(&c->n_long, memory_order_relaxed) > 0;
    uint64_t until_ms = a->deadline_ms - (asks ? probe_ms(c) : 0), now_ms = sys_mono_ms();
    c->before_sleep();
    if (now_ms < until_ms) {
        uint64_t most_ms = a->is_unwanted ? CLIENT_LOOK_MS : UINT32_MAX;
        (void)cond_wait_for(&c->freed, &c->lock, MIN(until_ms - now_ms, most_ms) * 1000000);
        return 0;
    }
    if (!asks)
        return err_set(e, -ETIMEDOUT, "all %u connections to the node are busy", c->max_connections);
    lock_drop(&c->lock);
    w->is_doubted = !node_answers(c);
    lock_take(&c->lock);
    if (w->is_doubted)
        return 0;
    a->deadline_ms = sys_mono_ms() + c->timeout_ms;
    w->was_long = true;
    return 0;
}

/* 1: *ret is an idle connection; 0: the caller opens one, *ret_epoch and *ret_session say as whom. */
static int reserve(struct client_attempt *a, struct client_conn **ret, uint64_t *ret_epoch,
                   struct id128 *ret_session, struct err *e)
{
    struct client *c = a->c;
    struct place_wait place = {0};
    LOCK_SCOPE(&c->lock);
    for (;;) {
        if (a->want_epoch != 0 && a->want_epoch != c->epoch)
            return no_session(e);
        if (place.was_long && (c->idle || c->n_open < c->max_connections))
            a->deadline_ms = sys_mono_ms() + c->timeout_ms;
        if (c->idle) {
            *ret = c->idle;
            c->idle = (*ret)->next;
            c->n_idle--;
            return 1;
        }
        if (c->n_open < c->max_connections)
            break;
        int r = wait_for_place_locked(a, &place, e);
        if (r < 0)
            return r;
        lock_drop(&c->lock);
        bool is_unwanted = a->is_unwanted && a->is_unwanted();
        lock_take(&c->lock);
        if (is_unwanted)
            return unwanted(e);
    }
    c->n_open++;
    c->n_current++;
    *ret_epoch = c->epoch;
    *ret_session = c->session;
    return 0;
}

/* Takes back the place that reserve() counted. */
static void unreserve(struct client *c, uint64_t epoch)
{
    LOCK_SCOPE(&c->lock);
    c->n_open--;
    if (epoch == c->epoch && --c->n_current == 0)
        client_new_epoch_locked(c);
    cond_broadcast(&c->freed);
}

/* Gets a connection into a->conn. */
static int acquire(struct client_attempt *a, uint32_t op, struct err *e)
{
    for (;;) {
        struct client_conn *conn = NULL;
        uint64_t epoch = 0;
        struct id128 session;
        int r = reserve(a, &conn, &epoch, &session, e);
        if (r < 0)
            return r;
        if (r == 0) {
            a->c->before_sleep();
            r = client_conn_open(a->c, session, a->deadline_ms, &conn, e);
            if (r < 0) {
                unreserve(a->c, epoch);
                return r;
            }
            conn->epoch = epoch;
            a->conn = conn;
            return 0;
        }
        /* What may be repeated finds out by itself whether the connection is dead. */
        if (may_repeat(a, op) || client_conn_is_alive(conn)) {
            a->conn = conn;
            return 0;
        }
        discard(a->c, conn, /* is_lost= */ true);
    }
}

/* ---- waiting for slow replies ---- */

static bool still_answers(void *arg)
{
    return node_answers(CAST_MAGIC(client, arg, CLIENT_MAGIC));
}

/* A long operation is waited for as long as the node answers others. */
static struct client_patience patience_of(const struct client_attempt *a, uint32_t op)
{
    uint64_t now_ms = sys_mono_ms();
    struct client_patience p = {.ms = now_ms < a->deadline_ms ? a->deadline_ms - now_ms : 0,
                                .arg = a->c,
                                .before_sleep = a->c->before_sleep,
                                .is_unwanted = a->is_unwanted};
    unsigned others = atomic_load_explicit(&a->c->n_short, memory_order_relaxed) - client_op_is_short(op);
    p.looks = look_may_beside(others);
    if (client_op_is_long(op)) {
        p.go_on = still_answers;
        p.ms = a->c->timeout_ms; /* each time, however little the call has left */
        p.ask_ms = probe_ms(a->c);
    }
    return p;
}

static void count(struct client *c, uint32_t op, int by)
{
    if (client_op_is_short(op))
        (void)atomic_fetch_add_explicit(&c->n_short, (unsigned)by, memory_order_relaxed);
    if (client_op_is_long(op))
        (void)atomic_fetch_add_explicit(&c->n_long, (unsigned)by, memory_order_relaxed);
}

/* ---- one call ---- */

bool client_is_refused(int code)
{
    return code == ERR_UNAUTHENTICATED || code == ERR_PROTOCOL || code == ERR_BAD_OPTION;
}

/* A long operation that was cut has its time for finding the node again before it, however long it had run;
 * but not for ever. */
static void grant_again(struct client_attempt *a, uint32_t op, int code)
{
    if (may_repeat(a, op) && client_op_is_long(op) && code != -ETIMEDOUT && a->n_cut++ < LONG_CUTS_MAX)
        a->deadline_ms = sys_mono_ms() + a->c->timeout_ms;
}

/* One try. *ret_again: worth another. */
static int try_once(struct client_attempt *a, uint32_t op, const void *req, struct buf *b, void *ret_rep,
                    uint64_t *ret_epoch, bool *ret_again, struct err *e)
{
    int r = acquire(a, op, e);
    if (r < 0) {
        bool is_final = client_is_refused(r) || r == -EINTR;
        *ret_again = r != -EBADF && !is_final;
        if (r == -EBADF || is_final)
            return err_prefix(e, r, "node at %s", a->c->address);
        if (r == -EMFILE || r == -ENFILE) /* it lies with us; others may close something meanwhile */
            return err_prefix(e, r, "node at %s", a->c->address);
        /* Whatever connect(2) says, as ENOENT, or EACCES while nobody has opened the way to a new socket: it
         * is not the node's answer about an object. */
        return err_prefix(e, -EHOSTDOWN, "the node does not answer");
    }
    enum client_fate fate;
    uint64_t id = a->number ? a->number : atomic_fetch_add(&a->c->next_request_id, 1) + 1;
    *ret_epoch = a->conn->epoch;
    count(a->c, op, 1);
    struct client_patience patience = patience_of(a, op);
    r = client_conn_call(a->conn, op, req, id, &patience, b, ret_rep, &fate, e);
    count(a->c, op, -1);
    if (fate == CLIENT_ANSWERED) {
        give_back(a->c, a->conn);
        *ret_again = r == ERR_CLOSED; /* shutting down, or its threads all wait: refused, or to be repeated */
        if (r == ERR_CLOSED && client_op_is_long(op)) /* as long as the node answers */
            a->deadline_ms = sys_mono_ms() + a->c->timeout_ms;
        return r;
    }
    if (r == -EINTR && a->is_unwanted) {
        replace(a->c, a->conn);
        *ret_again = false;
        return unwanted(e);
    }
    /* A reply that is only late says nothing about the session's other connections; but whoever ends does not
     * wait for it on each of them. */
    discard(a->c, a->conn, /* is_lost= */ r != -ETIMEDOUT || atomic_load(&a->c->hurries));
    *ret_again = fate == CLIENT_UNSEEN || may_repeat(a, op);
    grant_again(a, op, r);
    if (!*ret_again)
        return err_set(e, r == -ETIMEDOUT ? r : -EIO,
                       "node at %s: no answer (%s): it is not known whether the operation was done",
                       a->c->address, err_text(r));
    return err_prefix(e, r, "node at %s", a->c->address);
}

static _Thread_local struct client_waits waits;

void client_waits_begin(void)
{
    waits = (struct client_waits){0};
}

struct client_waits client_waits_end(void)
{
    return waits;
}

static _Thread_local const atomic_bool *stop_flag;

void client_stop_when(const atomic_bool *stop)
{
    stop_flag = stop;
}

static bool must_end(const struct client *c)
{
    return atomic_load(&c->hurries) || (stop_flag && atomic_load(stop_flag));
}

static void note_wait(uint32_t op, uint64_t ns)
{
    waits.ns += ns;
    if (waits.longest_op != 0 && ns <= waits.longest_ns)
        return;
    waits.longest_op = op;
    waits.longest_ns = ns;
}

static int call_until(struct client *c, uint64_t want_epoch, uint32_t op, const void *req, struct buf *b,
                      void *ret_rep, uint64_t *ret_epoch, struct err *e)
{
    client_own(c);
    if (c->before_call)
        c->before_call(op);
    struct client_attempt a = {
        .c = c,
        .deadline_ms = sys_mono_ms() + c->timeout_ms,
        .want_epoch = want_epoch,
        .number = c->number ? c->number(op) : 0,
        .is_unwanted = client_op_is_question(op) ? c->is_unwanted : NULL,
    };
    uint64_t backoff_ms = CLIENT_BACKOFF_FIRST_MS;
    for (;;) {
        bool again = false;
        int r = try_once(&a, op, req, b, ret_rep, ret_epoch, &again, e);
        if (r == 0)
            return 0;
        uint64_t now_ms = sys_mono_ms();
        if (!again || now_ms >= a.deadline_ms || must_end(c))
            return r;
        if (a.is_unwanted && a.is_unwanted())
            return unwanted(e);
        if ((r == -EMFILE || r == -ENFILE) && c->make_room && c->make_room(c->room_arg))
            continue;
        c->before_sleep();
        sys->sleep_ns(MIN(backoff_ms, a.deadline_ms - now_ms) * 1000000);
        backoff_ms = MIN(backoff_ms * 2, (uint64_t)CLIENT_BACKOFF_MAX_MS);
    }
}

static int call(struct client *c, uint64_t want_epoch, uint32_t op, const void *req, struct buf *b,
                void *ret_rep, uint64_t *ret_epoch, struct err *e)
{
    uint64_t began_ns = sys->mono_ns();
    int r = call_until(c, want_epoch, op, req, b, ret_rep, ret_epoch, e);
    note_wait(op, sys->mono_ns() - began_ns);
    return r;
}

int client_call(struct client *c, uint32_t op, const void *req, struct buf *b, void *ret_rep, struct err *e)
{
    assert(c != NULL && c->magic == CLIENT_MAGIC);
    uint64_t epoch;
    return call(c, /* want_epoch= */ 0, op, req, b, ret_rep, &epoch, e);
}

int client_call_at(struct client *c, uint64_t *epoch, uint32_t op, const void *req, struct buf *b,
                   void *ret_rep, struct err *e)
{
    assert(c != NULL && c->magic == CLIENT_MAGIC);
    uint64_t ran_in = 0;
    int r = call(c, *epoch, op, req, b, ret_rep, &ran_in, e);
    if (r == 0)
        *epoch = ran_in;
    return r;
}

/*
 * Signs of life (contract in pulse.h).
 *
 * 1. The head goes out at most once, by the thread that sends for all or, after the pulse has stopped, by the
 * request's.
 * 2. A pulse is in the list or at_work, or stopped; the list is in the order of due_ns, because each comes to
 * its end with the same time to wait.
 * 3. Nobody waits for a client: a sign that its socket has no room for is left out, so that one that does not
 * read holds up neither the signs of others nor its own request.
 *
 * Failure modes: without a thread there are no signs of life, which is logged.
 */
#include "s3/pulse.h"

#include "s3/xml.h"

#include "base/chore.h"
#include "base/log.h"
#include "base/sys.h"

static const char first_line[] = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n";

struct pulser {
    struct chore chore;
    struct lock lock;      /* covers what follows */
    struct cond rested;    /* at_work has changed */
    struct pulse *at_work; /* whose sign is being sent; in no list */
    struct pulse *first, **end;
};

/* At the end, to be due a while from now. Whether the thread must be told. */
static bool append_locked(struct pulser *ps, struct pulse *p)
{
    bool was_empty = !ps->first;

    lock_assert_held(&ps->lock);
    p->due_ns = sys->mono_ns() + PULSE_MS * (uint64_t)1000000;
    p->next = NULL;
    *ps->end = p;
    ps->end = &p->next;
    return was_empty;
}

static void remove_locked(struct pulser *ps, struct pulse *p)
{
    struct pulse **at = &ps->first;

    lock_assert_held(&ps->lock);
    while (*at && *at != p)
        at = &(*at)->next;
    if (!*at)
        return;
    *at = p->next;
    if (ps->end == &p->next)
        ps->end = at;
}

static void send_sign(struct pulse *p)
{
    struct http_conn *c = p->r->conn;

    if (!http_conn_has_room(c))
        return;
    if (p->told) {
        p->status = http_conn_write(c, " ", 1);
        return;
    }
    p->told = true;
    p->status = http_conn_head(c, 200, buf_view(&p->lines), UINT64_MAX);
    if (p->status == 0)
        p->status = http_conn_write(c, first_line, sizeof first_line - 1);
}

/* Who is due now, from now on at_work; or NULL, and for how long nobody is. */
static struct pulse *take_due(struct pulser *ps, uint64_t *ret_ns)
{
    LOCK_SCOPE(&ps->lock);
    struct pulse *p = ps->first;
    uint64_t now_ns = sys->mono_ns();

    *ret_ns = !p ? CHORE_UNTIL_CALLED : p->due_ns - MIN(now_ns, p->due_ns);
    if (!p || now_ns < p->due_ns)
        return NULL;
    remove_locked(ps, p);
    ps->at_work = p;
    return p;
}

static uint64_t send_due(void *arg)
{
    struct pulser *ps = arg;
    uint64_t ns;

    for (struct pulse *p; (p = take_due(ps, &ns));) {
        send_sign(p);
        LOCK_SCOPE(&ps->lock);
        ps->at_work = NULL;
        if (!p->is_over && p->status == 0)
            (void)append_locked(ps, p); /* it is looked for at the head before this turn ends */
        cond_broadcast(&ps->rested);
    }
    return ns;
}

struct pulser *pulser_start(void)
{
    struct pulser *ps = calloc(1, sizeof *ps);

    if (!ps)
        abort();
    lock_init(&ps->lock, LOCK_LEAF);
    cond_init(&ps->rested);
    ps->end = &ps->first;
    int status = chore_start(&ps->chore, CHORE_UNTIL_CALLED, send_due, ps);
    if (status)
        log_warn("s3", "no thread for signs of life: %s", err_text(status));
    return ps;
}

void pulser_stop(struct pulser *ps)
{
    if (!ps)
        return;
    assert(!ps->first && !ps->at_work);
    chore_stop(&ps->chore);
    cond_fini(&ps->rested);
    lock_fini(&ps->lock);
    free(ps);
}

void pulse_start(struct pulse *p, struct s3_request *r)
{
    struct pulser *ps = r->s3->pulser;

    assert(r->status == 0);
    *p = (struct pulse){.r = r, .lines = BUF_INIT(S3_HEAD_MAX_BYTES)};
    reply_lines(r, "application/xml", &p->lines);
    lock_take(&ps->lock);
    bool is_first = append_locked(ps, p);
    lock_drop(&ps->lock);
    if (is_first)
        chore_call(&ps->chore);
}

void pulse_stop(struct pulse *p)
{
    struct pulser *ps = p->r->s3->pulser;

    lock_take(&ps->lock);
    p->is_over = true;
    while (ps->at_work == p)
        cond_wait(&ps->rested, &ps->lock);
    remove_locked(ps, p);
    lock_drop(&ps->lock);
    if (p->told)
        p->r->status = 200;
    buf_fini(&p->lines);
}

enum s3_error pulse_answer(struct s3_request *r, enum s3_error error, pulse_put_fn put, const void *arg)
{
    _cleanup_buf_ struct buf b = BUF_INIT(S3_XML_MAX_BYTES);
    struct xml x = {&b, 0};

    if (!error && r->status == 0)
        xml_start(&x);
    if (!error)
        put(r, &x, arg);
    if (x.status) {
        buf_clear(&b);
        error = S3_ERR_INTERNAL;
    }
    if (r->status == 0 && error)
        return error;
    if (error && s3_error_xml_root(&b, error, r->message, reply_resource(r), r->id, r->extra))
        buf_clear(&b);
    if (r->status == 0)
        reply_send(r, 200, "application/xml", buf_view(&b));
    else if (http_conn_head_sent(r->conn))
        (void)http_conn_write(r->conn, b.p, b.n);
    return S3_OK;
}

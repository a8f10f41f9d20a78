/*
 * Signs of life (contract in pulse.h).
 *
 * 1. The head goes out at most once, by the thread of the pulse or, after that has ended, by the request's.
 * 2. A client that does not read holds its own request only: a blank that cannot be sent within the
 * connection's time ends the sending, not the work.
 *
 * Failure modes: without a thread there are no signs of life, which is logged.
 */
#include "s3/pulse.h"

#include "s3/xml.h"

#include "base/log.h"

static const char first_line[] = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n";

/* Whether it is to end. */
static bool wait_stop(struct pulse *p)
{
    LOCK_SCOPE(&p->lock);
    while (!p->stop)
        if (cond_wait_for(&p->stopped, &p->lock, PULSE_MS * (uint64_t)1000000) == -ETIMEDOUT)
            break;
    return p->stop;
}

static void *pulse_main(void *arg)
{
    struct pulse *p = arg;
    struct http_conn *c = p->r->conn;
    int status;

    if (wait_stop(p))
        return NULL;
    p->told = true; /* read once this thread has ended */
    status = http_conn_head(c, 200, buf_view(&p->lines), UINT64_MAX);
    if (status == 0)
        status = http_conn_write(c, first_line, sizeof first_line - 1);
    while (!wait_stop(p))
        if (status == 0)
            status = http_conn_write(c, " ", 1);
    return NULL;
}

void pulse_start(struct pulse *p, struct s3_request *r)
{
    int status;

    assert(r->status == 0);
    *p = (struct pulse){.r = r, .lines = BUF_INIT(S3_HEAD_MAX_BYTES)};
    reply_lines(r, "application/xml", &p->lines);
    lock_init(&p->lock, LOCK_LEAF);
    cond_init(&p->stopped);
    status = -pthread_create(&p->thread, NULL, pulse_main, p);
    p->started = status == 0;
    if (!p->started)
        log_warn("s3", "%s no thread for signs of life: %s", r->id, err_text(status));
}

void pulse_stop(struct pulse *p)
{
    lock_take(&p->lock);
    p->stop = true;
    cond_signal(&p->stopped);
    lock_drop(&p->lock);
    if (p->started)
        (void)pthread_join(p->thread, NULL);
    if (p->told)
        p->r->status = 200;
    cond_fini(&p->stopped);
    lock_fini(&p->lock);
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

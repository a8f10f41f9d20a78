/*
 * Connections to one S3 origin, and one exchange over them.
 *
 * A connection is a curl easy handle inside a multi handle of its own: curl keeps the socket alive between
 * requests, and the multi interface lets this file wait by itself, so that a cancel flag and a stall are
 * noticed within CANCEL_LOOK_MS, to the millisecond of the option and not to curl's second. Time spent in the
 * caller's own callbacks (a slow disk, a body that is not there yet) never counts as a stall of the origin.
 *
 * Invariants:
 *  1. At most `limit` connections are in use; others wait. No lock is held over network I/O.
 *  2. A connection whose exchange did not run to its end is closed, never used again: its socket may hold the
 * rest of an answer.
 *  3. on_body sees bytes of 2xx answers only; other bodies go to error_body, cut at its maximum.
 *  4. Redirects are not followed and bodies not decoded: bytes arrive as they are stored.
 *
 * Failure modes: classified codes of origin.h with the words of curl or the origin.
 */
#include "origin/s3_internal.h"

#include <inttypes.h>

#define CONN_MAGIC     0x53334330u
#define BUFFER_MAX     (128 * KIB) /* of curl, per connection and direction: more was not faster */
#define BUFFERS_MAX    (16 * MIB)  /* of all connections of an origin together, per direction */
#define CANCEL_LOOK_MS 100
#define WAIT_MS        1000
#define IDLE_MAX_MS    60000 /* idle connections beyond this age are closed when others come back */
#define EXPECT_WAIT_MS 1000L
#define USER_AGENT     "forebay/" FOREBAY_VERSION

struct s3_conn {
    uint32_t magic;
    CURL *easy;
    CURLM *multi;
    uint64_t idle_since_ms;
    char error[CURL_ERROR_SIZE];
};

/* ---- the pool ---- */

static CURLcode global_result;
static pthread_once_t global_once = PTHREAD_ONCE_INIT;

static void global_init(void)
{
    global_result = curl_global_init(CURL_GLOBAL_DEFAULT);
}

int s3_conn_global(struct err *e)
{
    (void)pthread_once(&global_once, global_init);
    if (global_result != CURLE_OK)
        return err_set(e, -ENOMEM, "libcurl does not start: %s", curl_easy_strerror(global_result));
    return 0;
}

static void conn_free(struct s3_conn *c)
{
    if (!c)
        return;
    assert(c->magic == CONN_MAGIC);
    curl_easy_cleanup(c->easy);
    (void)curl_multi_cleanup(c->multi);
    c->magic = 0;
    free(c);
}

static struct s3_conn *conn_new(void)
{
    struct s3_conn *c = calloc(1, sizeof(*c));
    if (!c)
        abort();
    c->magic = CONN_MAGIC;
    c->easy = curl_easy_init();
    c->multi = curl_multi_init();
    if (!c->easy || !c->multi)
        abort();
    (void)curl_multi_setopt(c->multi, CURLMOPT_MAXCONNECTS, 1L);
    return c;
}

static bool is_canceled(const struct s3_call *call)
{
    return (call->cancel && atomic_load(call->cancel)) ||
           (call->also_cancel && atomic_load(call->also_cancel));
}

/* Waits for a free place; -ECANCELED when a flag says so first. */
static int conn_take(struct s3_call *call, struct s3_conn **ret)
{
    struct s3 *s = call->s3;
    struct s3_conn *c = NULL;
    lock_take(&s->lock);
    while (s->in_use >= s->limit && !is_canceled(call))
        (void)cond_wait_for(&s->freed, &s->lock, CANCEL_LOOK_MS * (uint64_t)1000000);
    bool canceled = is_canceled(call);
    if (!canceled) {
        s->in_use++;
        if (s->n_idle > 0)
            c = s->idle[--s->n_idle];
    }
    lock_drop(&s->lock);
    if (canceled)
        return -ECANCELED;
    *ret = c ? c : conn_new();
    return 0;
}

/* Takes the oldest idle connection out when it has been idle for long. */
static struct s3_conn *take_stale_locked(struct s3 *s, uint64_t now_ms)
{
    lock_assert_held(&s->lock);
    if (s->n_idle == 0 || now_ms - s->idle[0]->idle_since_ms <= IDLE_MAX_MS)
        return NULL;
    struct s3_conn *old = s->idle[0];
    s->n_idle--;
    memmove(s->idle, s->idle + 1, s->n_idle * sizeof(struct s3_conn *));
    return old;
}

static void conn_give(struct s3 *s, struct s3_conn *c, bool keep)
{
    struct s3_conn *stale[2];
    uint64_t now_ms = sys_mono_ms();
    c->idle_since_ms = now_ms;
    lock_take(&s->lock);
    assert(s->in_use > 0);
    s->in_use--;
    for (size_t i = 0; i < ARRAY_SIZE(stale); i++)
        stale[i] = take_stale_locked(s, now_ms);
    if (keep) {
        assert(s->n_idle < s->limit);
        s->idle[s->n_idle++] = TAKE_PTR(c);
    }
    cond_signal(&s->freed);
    lock_drop(&s->lock);
    for (size_t i = 0; i < ARRAY_SIZE(stale); i++)
        conn_free(stale[i]);
    conn_free(c);
}

void s3_conn_close_all(struct s3 *s)
{
    for (size_t i = 0; i < s->n_idle; i++)
        conn_free(s->idle[i]);
    s->n_idle = 0;
}

/* ---- the call ---- */

void s3_call_init(struct s3_call *c, struct s3 *s, enum s3_method method, const char *op)
{
    memset(c, 0, sizeof(*c));
    c->s3 = s;
    c->method = method;
    c->op = op;
    s3_response_init(&c->response);
    c->error_body = BUF_INIT(S3_ERROR_BODY_MAX);
}

void s3_call_fini(struct s3_call *c)
{
    s3_response_fini(&c->response);
    buf_fini(&c->error_body);
}

void s3_call_query(struct s3_call *c, struct slice name, struct slice value)
{
    assert(c->n_query < S3_PAIRS_MAX);
    c->query[c->n_query++] = (struct sigv4_pair){name, value};
}

void s3_call_header(struct s3_call *c, struct slice name, struct slice value)
{
    assert(c->n_headers < S3_PAIRS_MAX);
    c->headers[c->n_headers++] = (struct sigv4_pair){name, value};
}

int s3_collect(void *arg, const void *p, size_t n)
{
    struct buf *b = arg;
    return buf_append(b, p, n) < 0 ? ERR_ORIGIN_FAILED : 0;
}

/* ---- callbacks of curl ---- */

static size_t on_header(char *p, size_t size, size_t n, void *arg)
{
    struct s3_call *c = arg;
    s3_response_line(&c->response, slice_of(p, size * n));
    c->progress_ms = sys_mono_ms();
    return size * n;
}

static size_t on_write(char *p, size_t size, size_t n, void *arg)
{
    struct s3_call *c = arg;
    n *= size;
    if (c->response.status < 200 || c->response.status >= 300) {
        size_t room = c->error_body.max - c->error_body.n;
        (void)buf_append(&c->error_body, p, MIN(n, room));
    } else if (c->on_body) {
        c->stopped = c->on_body(c->arg, p, n);
    }
    c->progress_ms = sys_mono_ms();
    return c->stopped ? CURL_WRITEFUNC_ERROR : n;
}

static size_t on_read(char *p, size_t size, size_t n, void *arg)
{
    struct s3_call *c = arg;
    uint64_t want = MIN((uint64_t)(size * n), c->body_n - c->body_sent);
    if (want == 0)
        return 0;
    ssize_t r = c->body->read(c->body->arg, p, want, c->body_offset + c->body_sent);
    if (r == 0)
        r = err_set(c->err, -ENODATA, "the body to be uploaded ended early");
    c->progress_ms = sys_mono_ms();
    if (r < 0) {
        c->stopped = (int)r;
        return CURL_READFUNC_ABORT;
    }
    c->body_sent += (uint64_t)r;
    return (size_t)r;
}

/* curl sends the body again when a kept connection turns out to be closed. */
static int on_seek(void *arg, curl_off_t offset, int origin)
{
    struct s3_call *c = arg;
    if (origin != SEEK_SET || offset < 0 || (uint64_t)offset > c->body_n)
        return CURL_SEEKFUNC_FAIL;
    c->body_sent = (uint64_t)offset;
    return CURL_SEEKFUNC_OK;
}

/* ---- options ---- */

static long buffer_bytes(const struct s3 *s)
{
    return (long)MIN(BUFFER_MAX, BUFFERS_MAX / s->limit);
}

static void set_method(struct s3_call *c, CURL *easy)
{
    switch (c->method) {
    case S3_GET:
        break;
    case S3_HEAD:
        (void)curl_easy_setopt(easy, CURLOPT_NOBODY, 1L);
        break;
    case S3_PUT:
        (void)curl_easy_setopt(easy, CURLOPT_UPLOAD, 1L);
        (void)curl_easy_setopt(easy, CURLOPT_INFILESIZE_LARGE, (curl_off_t)c->body_n);
        (void)curl_easy_setopt(easy, CURLOPT_READFUNCTION, on_read);
        (void)curl_easy_setopt(easy, CURLOPT_READDATA, c);
        (void)curl_easy_setopt(easy, CURLOPT_SEEKFUNCTION, on_seek);
        (void)curl_easy_setopt(easy, CURLOPT_SEEKDATA, c);
        (void)curl_easy_setopt(easy, CURLOPT_UPLOAD_BUFFERSIZE, buffer_bytes(c->s3));
        (void)curl_easy_setopt(easy, CURLOPT_EXPECT_100_TIMEOUT_MS, EXPECT_WAIT_MS);
        break;
    case S3_POST:
        (void)curl_easy_setopt(easy, CURLOPT_POST, 1L);
        (void)curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)c->post.n);
        (void)curl_easy_setopt(easy, CURLOPT_POSTFIELDS, c->post.n ? c->post.p : "");
        break;
    case S3_DELETE:
        (void)curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, "DELETE");
        break;
    }
}

static void set_options(struct s3_call *c, struct s3_conn *conn, const char *url, struct curl_slist *headers)
{
    struct s3 *s = c->s3;
    CURL *easy = conn->easy;
    curl_easy_reset(easy); /* options only: the connection stays */
    conn->error[0] = '\0';
    (void)curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, conn->error);
    (void)curl_easy_setopt(easy, CURLOPT_URL, url);
    (void)curl_easy_setopt(easy, CURLOPT_PATH_AS_IS, 1L);
    (void)curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    (void)curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    (void)curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    (void)curl_easy_setopt(easy, CURLOPT_TCP_NODELAY, 1L);
    (void)curl_easy_setopt(easy, CURLOPT_TCP_KEEPALIVE, 1L);
    (void)curl_easy_setopt(easy, CURLOPT_BUFFERSIZE, buffer_bytes(c->s3));
    (void)curl_easy_setopt(easy, CURLOPT_USERAGENT, USER_AGENT);
    (void)curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, (long)s->connect_timeout_ms);
    (void)curl_easy_setopt(easy, CURLOPT_HTTPHEADER, headers);
    (void)curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, on_header);
    (void)curl_easy_setopt(easy, CURLOPT_HEADERDATA, c);
    (void)curl_easy_setopt(easy, CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
    (void)curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, on_write);
    (void)curl_easy_setopt(easy, CURLOPT_WRITEDATA, c);
    if (s->ca_file)
        (void)curl_easy_setopt(easy, CURLOPT_CAINFO, s->ca_file);
    if (s->loopback)
        (void)curl_easy_setopt(easy, CURLOPT_PROXY, "");
    set_method(c, easy);
}

/* ---- running it ---- */

/* 0 while it may go on. */
static int look_around(struct s3_call *c, struct err *e)
{
    if (is_canceled(c))
        return err_set(e, -ECANCELED, "canceled");
    uint64_t now_ms = sys_mono_ms();
    if (now_ms > c->progress_ms && now_ms - c->progress_ms >= c->s3->timeout_ms)
        return err_set(e, -ETIMEDOUT, "no progress for %" PRIu64 " ms", c->s3->timeout_ms);
    return 0;
}

static int wait_ms(const struct s3_call *c)
{
    uint64_t now_ms = sys_mono_ms(), deadline_ms = c->progress_ms + c->s3->timeout_ms;
    uint64_t left = deadline_ms > now_ms ? deadline_ms - now_ms : 0;
    return (int)MIN(left, (uint64_t)(c->cancel || c->also_cancel ? CANCEL_LOOK_MS : WAIT_MS));
}

/* Until curl is done: its result in *ret_curl. Negative when it was given up before. */
static int run(struct s3_call *c, struct s3_conn *conn, CURLcode *ret_curl, struct err *e)
{
    if (curl_multi_add_handle(conn->multi, conn->easy) != CURLM_OK)
        abort();
    int r = 0, running = 1;
    c->progress_ms = sys_mono_ms();
    while (r == 0) {
        if (curl_multi_perform(conn->multi, &running) != CURLM_OK)
            r = err_set(e, ERR_ORIGIN_FAILED, "libcurl failed inside");
        if (!running)
            break;
        if (r == 0)
            r = look_around(c, e);
        if (r == 0)
            (void)curl_multi_poll(conn->multi, NULL, 0, wait_ms(c), NULL);
    }
    CURLMsg *m;
    int left;
    while ((m = curl_multi_info_read(conn->multi, &left)))
        if (m->msg == CURLMSG_DONE)
            *ret_curl = m->data.result;
    (void)curl_multi_remove_handle(conn->multi, conn->easy);
    return r;
}

static bool has_connected(CURL *easy)
{
    curl_off_t t = 0;
    return curl_easy_getinfo(easy, CURLINFO_PRETRANSFER_TIME_T, &t) == CURLE_OK && t > 0;
}

static int class_of_curl(CURLcode code, const struct s3_call *c, CURL *easy)
{
    switch (code) {
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_CONNECT:
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_GOT_NOTHING:
    case CURLE_PROXY:
        return ERR_ORIGIN_DOWN;
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
        return c->response.status >= 200 ? ERR_ORIGIN_SHORT : ERR_ORIGIN_DOWN;
    case CURLE_PARTIAL_FILE:
        return ERR_ORIGIN_SHORT;
    case CURLE_OPERATION_TIMEDOUT:
        return has_connected(easy) ? -ETIMEDOUT : ERR_ORIGIN_DOWN;
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_ISSUER_ERROR:
        return ERR_ORIGIN_REFUSED;
    default:
        return ERR_ORIGIN_FAILED;
    }
}

/* What an exchange that curl ended came to. */
static int conclude(struct s3_call *c, struct s3_conn *conn, CURLcode code, struct err *e)
{
    if (c->stopped)
        return e && e->code == 0 ? err_set(e, c->stopped, "%s", err_text(c->stopped)) : c->stopped;
    int status = c->response.status;
    bool refused = status >= 300;
    if (code != CURLE_OK && !refused) /* a refusal may cut an upload short; the answer says more than curl */
        return err_set(e, class_of_curl(code, c, conn->easy), "%s",
                       conn->error[0] ? conn->error : curl_easy_strerror(code));
    if (status == 0)
        return err_set(e, ERR_ORIGIN_FAILED, "the answer is no HTTP");
    if (refused)
        return s3_error_of(c->s3, &c->response, buf_view(&c->error_body), e);
    if (status < 200)
        return err_set(e, ERR_ORIGIN_FAILED, "the answer ended with status %d", status);
    return 0;
}

static int exchange(struct s3_call *c, struct s3_conn *conn, bool *ret_keep, struct err *e)
{
    struct s3_request _cleanup_(s3_request_fini) request;
    int r = s3_request_build(c, &request, e);
    if (r < 0)
        return r;
    set_options(c, conn, request.url.p, request.headers);
    CURLcode code = CURLE_OK;
    r = run(c, conn, &code, e);
    *ret_keep = r == 0 && !c->stopped && code == CURLE_OK;
    if (r == 0)
        r = conclude(c, conn, code, e);
    (void)curl_easy_setopt(conn->easy, CURLOPT_HTTPHEADER, NULL); /* the list goes away with this call */
    int status = c->response.status;
    origin_count_request(&c->s3->base, c->op, status >= 200 ? status : 0); /* an interim answer is none */
    return r;
}

int s3_perform(struct s3_call *c, struct err *e)
{
    struct s3 *s = c->s3;
    struct err local = {0};
    s3_response_fini(&c->response);
    s3_response_init(&c->response);
    buf_clear(&c->error_body);
    c->err = e ? e : &local;
    c->err->code = 0;
    c->stopped = 0;
    c->body_sent = 0;
    struct s3_conn *conn;
    int r = conn_take(c, &conn);
    if (r < 0)
        return err_set(e, r, "canceled while waiting for a connection");
    bool keep = true;
    r = exchange(c, conn, &keep, c->err);
    conn_give(s, conn, keep);
    return r;
}

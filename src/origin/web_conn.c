/*
 * Connections to one origin, and one exchange over them.
 *
 * A connection is a curl easy handle inside a multi handle of its own: curl keeps the socket alive between
 * requests, and the multi interface lets this file wait by itself, so that a cancel flag and a stall are
 * noticed within QUIT_LOOK_MS, to the millisecond of the option and not to curl's second. Time spent in the
 * caller's own callbacks (a slow disk, a body that is not there yet) never counts as a stall of the origin.
 *
 * Progress is a head, and a piece of a body. Of a body that trickles each piece is one, so that what is read
 * has a least rate besides, over each time-out. Not so answers to changes: services send a space now and then
 * while they put together an upload, or copy.
 *
 * Invariants:
 *  1. At most `limit` connections are in use; others wait. No lock is held over network I/O.
 *  2. A connection whose exchange did not run to its end is closed, never used again: its socket may hold the
 * rest of an answer.
 *  3. on_body sees bytes of 2xx answers only; other bodies go to error_body, cut at its maximum.
 *  4. Redirects are not followed and bodies not decoded: bytes arrive as they are stored.
 *  5. Requests with a body leave places to the others; those whose body may wait for somebody who sends
 * slowly or reads from this very origin leave some also to bodies that are there, which would wait for them
 * with a place among the bucket's requests in their hands.
 *  6. What curl sent twice by itself, over a kept connection that was closed and over a new one, is never
 * told as refused by its own condition, nor as not done, nor a removal as of what was not there: the first
 * may have done it.
 *
 * Failure modes: classified codes of origin.h with the words of curl or the origin.
 */
#include "origin/web_internal.h"

#include "net/sock.h"

#include <inttypes.h>
#include <openssl/x509_vfy.h>

#define CONN_MAGIC 0x53334330u
/* Of curl, per connection and direction: more was not faster. It takes them anew for each request: what
 * malloc maps by itself (128 KiB and more, server/memory.c) costs fresh pages each time, a tenth of the
 * processor time of fetching a file of 110 KB. */
#define BUFFER_MAX         (120 * KIB)
#define BUFFERS_MAX        (16 * MIB) /* of all connections of an origin together, per direction */
#define SPARE_SHARE        8 /* one place in so many is not for bodies, and as many more not for slow ones */
#define LIFE_MAX_S         600L
#define UNWANTED_MAX       MIB /* of a body that nobody reads: errors, and what follows on a success */
#define EXPECT_WAIT_MS     1000L
#define EXPECT_ABOVE_BYTES ((uint64_t)MIB) /* of curl, which expects nothing for less */
#define USER_AGENT         "forebay/" FOREBAY_VERSION

struct web_conn {
    uint32_t magic;
    CURL *easy;
    CURLM *multi;
    uint64_t idle_since_ms;
    char error[CURL_ERROR_SIZE];
};

/* ---- the pool ---- */

static void conn_free(struct web_conn *c)
{
    if (!c)
        return;
    assert(c->magic == CONN_MAGIC);
    curl.easy_cleanup(c->easy);
    (void)curl.multi_cleanup(c->multi);
    c->magic = 0;
    free(c);
}

static struct web_conn *conn_new(void)
{
    struct web_conn *c = calloc(1, sizeof(*c));
    if (!c)
        abort();
    c->magic = CONN_MAGIC;
    c->easy = curl.easy_init();
    c->multi = curl.multi_init();
    if (!c->easy || !c->multi)
        abort();
    (void)curl.multi_setopt(c->multi, CURLMOPT_MAXCONNECTS, 1L);
    return c;
}

static bool has_body(const struct web_call *call)
{
    return call->body && call->body_n > 0;
}

static bool is_slow(const struct web_call *call)
{
    return has_body(call) && call->body->slow;
}

static bool has_place_locked(const struct web *w, const struct web_call *call)
{
    size_t spare = MIN(MAX(w->limit / SPARE_SHARE, (size_t)1), w->limit - 1);
    size_t slow_max = w->limit > 2 * spare ? w->limit - 2 * spare : 1;
    size_t body_max = MAX(w->limit - spare, MIN(slow_max + 1, w->limit));
    return w->in_use < w->limit && (!has_body(call) || w->uploading < body_max) &&
           (!is_slow(call) || w->slow < slow_max);
}

/* Waits for a free place; -ECANCELED when a flag says so first, or when there is none for too long while the
 * node stops. */
static int conn_take(struct web_call *call, struct web_conn **ret)
{
    struct web *w = call->web;
    struct web_conn *c = NULL;
    uint64_t began_ms = sys_mono_ms();
    bool canceled;
    lock_take(&w->lock);
    while (!(canceled = web_is_canceled(call) || sys_mono_ms() - began_ms >= quit_patience_ms(UINT64_MAX)) &&
           !has_place_locked(w, call))
        (void)cond_wait_for(&w->freed, &w->lock, QUIT_LOOK_MS * (uint64_t)1000000);
    if (!canceled) {
        w->in_use++;
        w->uploading += has_body(call);
        w->slow += is_slow(call);
        if (w->n_idle > 0)
            c = w->idle[--w->n_idle];
    }
    lock_drop(&w->lock);
    if (canceled)
        return -ECANCELED;
    *ret = c ? c : conn_new();
    return 0;
}

static struct web_conn *take_oldest_locked(struct web *w)
{
    lock_assert_held(&w->lock);
    struct web_conn *old = w->idle[0];
    w->n_idle--;
    memmove(w->idle, w->idle + 1, w->n_idle * sizeof(struct web_conn *));
    return old;
}

/* Takes the oldest idle connection out when it has been idle for long. `now_ms` was looked at before the lock
 * was had: others may have come back later than that. */
static struct web_conn *take_stale_locked(struct web *w, uint64_t now_ms)
{
    lock_assert_held(&w->lock);
    if (w->n_idle == 0 || now_ms <= w->idle[0]->idle_since_ms + ORIGIN_REST_MS)
        return NULL;
    return take_oldest_locked(w);
}

/* What was idle already at `began_ms`. */
static void drop_idle(struct web *w, uint64_t began_ms)
{
    struct web_conn *old;
    do {
        lock_take(&w->lock);
        old = w->n_idle > 0 && w->idle[0]->idle_since_ms <= began_ms ? take_oldest_locked(w) : NULL;
        lock_drop(&w->lock);
        conn_free(old);
    } while (old);
}

static void conn_give(struct web_call *call, struct web_conn *c, bool keep)
{
    struct web *w = call->web;
    struct web_conn *stale[2];
    uint64_t now_ms = sys_mono_ms();
    c->idle_since_ms = now_ms;
    lock_take(&w->lock);
    assert(w->in_use > 0 && (!has_body(call) || w->uploading > 0) && (!is_slow(call) || w->slow > 0));
    w->in_use--;
    w->uploading -= has_body(call);
    w->slow -= is_slow(call);
    for (size_t i = 0; i < ARRAY_SIZE(stale); i++)
        stale[i] = take_stale_locked(w, now_ms);
    if (keep) {
        assert(w->n_idle < w->limit);
        w->idle[w->n_idle++] = TAKE_PTR(c);
    }
    cond_broadcast(&w->freed); /* not every waiter may take this place */
    lock_drop(&w->lock);
    for (size_t i = 0; i < ARRAY_SIZE(stale); i++)
        conn_free(stale[i]);
    conn_free(c);
}

int web_init(struct web *w, const struct web_kind *kind, struct origin *origin,
             const struct origin_options *o, struct err *e)
{
    int r = libcurl_start(e);
    if (r < 0)
        return r;
    w->kind = kind;
    w->origin = origin;
    w->spreads = origin != NULL;
    w->ca_file = web_dup(o->ca_file);
    w->timeout_ms = o->timeout;
    w->connect_timeout_ms = o->connect_timeout;
    w->least_rate = o->min_rate;
    w->limit = o->connections;
    w->idle = calloc(w->limit, sizeof(struct web_conn *));
    if (!w->idle)
        abort();
    lock_init(&w->lock, LOCK_ORIGIN);
    cond_init(&w->freed);
    return 0;
}

size_t web_rest(struct web *w, uint64_t now_ms)
{
    for (size_t n = 0;; n++) {
        lock_take(&w->lock);
        struct web_conn *old = take_stale_locked(w, now_ms);
        lock_drop(&w->lock);
        if (!old)
            return n;
        conn_free(old);
    }
}

void web_fini(struct web *w)
{
    if (!w->kind)
        return;
    assert(w->in_use == 0);
    for (size_t i = 0; i < w->n_idle; i++)
        conn_free(w->idle[i]);
    free(w->idle);
    free(w->ca_file);
    cond_fini(&w->freed);
    lock_fini(&w->lock);
    *w = (struct web){0};
}

/* ---- callbacks of curl ---- */

static bool is_success(const struct web_call *c)
{
    return c->response.status >= 200 && c->response.status < 300;
}

/* Heads end with a line without anything; so do trailers. */
static size_t on_header(char *p, size_t size, size_t n, void *arg)
{
    struct web_call *c = arg;
    n *= size;
    web_response_line(&c->response, slice_of(p, n));
    c->is_continued |= c->response.status == 100;
    bool ends = p[0] == '\r' || p[0] == '\n';
    if (c->on_head && is_success(c) && ends)
        c->stopped = c->on_head(c->arg);
    if (ends || slice_starts(slice_of(p, n), SLICE_LIT("HTTP/")))
        c->progress_ms = sys_mono_ms();
    /* Behind the head of an answer to HEAD comes nothing, and its connection is good for the next. */
    return c->stopped && c->method != WEB_HEAD ? CURL_WRITEFUNC_ERROR : n;
}

static bool is_refused(const struct web_call *c)
{
    return c->response.status >= 300 && c->response.status != c->accept;
}

/* What nobody reads is no progress, and has an end here. A refusal is told by its beginning all the same. */
static size_t pass_over(struct web_call *c, const char *p, size_t n)
{
    if (!is_success(c)) {
        size_t room = c->error_body.max - c->error_body.n;
        (void)buf_append(&c->error_body, p, MIN(n, room));
    }
    c->unwanted += n;
    if (c->unwanted <= UNWANTED_MAX)
        return n;
    if (!is_refused(c))
        c->stopped = err_set(c->err, ERR_ORIGIN_FAILED, "a body of more than %zu bytes where none belongs",
                             (size_t)UNWANTED_MAX);
    return CURL_WRITEFUNC_ERROR;
}

static size_t on_write(char *p, size_t size, size_t n, void *arg)
{
    struct web_call *c = arg;
    n *= size;
    if (!is_success(c) || !c->on_body)
        return pass_over(c, p, n);
    uint64_t came_ms = sys_mono_ms();
    c->stopped = c->on_body(c->arg, p, n);
    if (c->stopped && c->on_body == web_collect)
        (void)err_set(c->err, c->stopped, "the answer is longer than %zu bytes", ((struct buf *)c->arg)->max);
    c->progress_ms = sys_mono_ms();
    c->paced_bytes += n;
    c->paced_since_ms = (c->paced_since_ms ? c->paced_since_ms : came_ms) + (c->progress_ms - came_ms);
    return c->stopped ? CURL_WRITEFUNC_ERROR : n;
}

static size_t on_read(char *p, size_t size, size_t n, void *arg)
{
    struct web_call *c = arg;
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
    if (c->web->origin)
        origin_moved(c->web->origin, (uint64_t)r);
    return (size_t)r;
}

/* curl sends the body again when a kept connection turns out to be closed. */
static int on_seek(void *arg, curl_off_t offset, int origin)
{
    struct web_call *c = arg;
    if (origin != SEEK_SET || offset < 0 || (uint64_t)offset > c->body_n)
        return CURL_SEEKFUNC_FAIL;
    c->body_sent = (uint64_t)offset;
    return CURL_SEEKFUNC_OK;
}

/* Each time before the request is sent. */
static int on_begin(void *arg, char *there, char *here, int there_port, int here_port)
{
    (void)there, (void)here, (void)there_port, (void)here_port;
    struct web_call *c = arg;
    c->begun++;
    if (c->reach)
        atomic_store(c->reach, ORIGIN_REACH_PERHAPS);
    return CURL_PREREQFUNC_OK;
}

/* The socket of a new connection. */
static curl_socket_t on_open(void *arg, curlsocktype purpose, struct curl_sockaddr *at)
{
    (void)arg, (void)purpose;
    int fd = socket(at->family, at->socktype | SOCK_CLOEXEC, at->protocol);
    if (fd >= 0)
        sock_free_of_clocks(fd, &at->addr);
    return fd < 0 ? CURL_SOCKET_BAD : fd;
}

/* ---- options ---- */

static long buffer_bytes(const struct web *w)
{
    return (long)MIN(BUFFER_MAX, BUFFERS_MAX / w->limit);
}

static void set_upload(struct web_call *c, CURL *easy)
{
    curl_set(easy, CURLOPT_UPLOAD, 1L);
    curl_set(easy, CURLOPT_INFILESIZE_LARGE, (curl_off_t)c->body_n);
    curl_set(easy, CURLOPT_READFUNCTION, on_read);
    curl_set(easy, CURLOPT_READDATA, c);
    curl_set(easy, CURLOPT_SEEKFUNCTION, on_seek);
    curl_set(easy, CURLOPT_SEEKDATA, c);
    curl_set(easy, CURLOPT_UPLOAD_BUFFERSIZE, buffer_bytes(c->web));
    curl_set(easy, CURLOPT_EXPECT_100_TIMEOUT_MS, EXPECT_WAIT_MS);
}

static void set_method(struct web_call *c, CURL *easy)
{
    switch (c->method) {
    case WEB_GET:
        break;
    case WEB_HEAD:
        curl_set(easy, CURLOPT_NOBODY, 1L);
        break;
    case WEB_PUT:
        set_upload(c, easy);
        break;
    case WEB_POST:
    case WEB_PATCH:
        if (c->body) {
            set_upload(c, easy);
            curl_set(easy, CURLOPT_CUSTOMREQUEST, web_method_name(c->method).p);
            break;
        }
        curl_set(easy, CURLOPT_POST, 1L);
        if (c->method == WEB_PATCH)
            curl_set(easy, CURLOPT_CUSTOMREQUEST, "PATCH");
        curl_set(easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)c->post.n);
        curl_set(easy, CURLOPT_POSTFIELDS, c->post.n ? c->post.p : "");
        break;
    case WEB_DELETE:
        curl_set(easy, CURLOPT_CUSTOMREQUEST, "DELETE");
        break;
    }
}

static void set_options(struct web_call *c, struct web_conn *conn, const char *url,
                        struct curl_slist *headers)
{
    struct web *w = c->web;
    CURL *easy = conn->easy;
    curl.easy_reset(easy); /* options only: the connection stays */
    conn->error[0] = '\0';
    curl_set(easy, CURLOPT_ERRORBUFFER, conn->error);
    curl_set(easy, CURLOPT_URL, url);
    curl_set(easy, CURLOPT_PATH_AS_IS, 1L);
    curl_set(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_set(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    curl_set(easy, CURLOPT_NOSIGNAL, 1L);
    /* Else who gives up waits for the name servers, which know of no timeout and no cancel flag of ours. */
    curl_set(easy, CURLOPT_QUICK_EXIT, 1L);
    curl_set(easy, CURLOPT_OPENSOCKETFUNCTION, on_open);
    curl_set(easy, CURLOPT_DNS_SHUFFLE_ADDRESSES, w->spreads ? 1L : 0L);
    /* One that is never idle would stay for weeks at an address that the name has no more. */
    curl_set(easy, CURLOPT_MAXLIFETIME_CONN, LIFE_MAX_S);
    curl_set(easy, CURLOPT_TCP_NODELAY, 1L);
    curl_set(easy, CURLOPT_TCP_KEEPALIVE, 1L);
    curl_set(easy, CURLOPT_BUFFERSIZE, buffer_bytes(c->web));
    curl_set(easy, CURLOPT_USERAGENT, USER_AGENT);
    curl_set(easy, CURLOPT_CONNECTTIMEOUT_MS, (long)w->connect_timeout_ms);
    curl_set(easy, CURLOPT_HTTPHEADER, headers);
    curl_set(easy, CURLOPT_HEADERFUNCTION, on_header);
    curl_set(easy, CURLOPT_HEADERDATA, c);
    curl_set(easy, CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
    curl_set(easy, CURLOPT_WRITEFUNCTION, on_write);
    curl_set(easy, CURLOPT_WRITEDATA, c);
    curl_set(easy, CURLOPT_PREREQFUNCTION, on_begin);
    curl_set(easy, CURLOPT_PREREQDATA, c);
    c->trust = (struct trust){.ca_file = w->ca_file, .e = c->err};
    trust_set(easy, &c->trust);
    if (w->loopback)
        curl_set(easy, CURLOPT_PROXY, "");
    set_method(c, easy);
}

/* ---- running it ---- */

/* Each time-out begins anew, so that what came fast at first makes up for nothing. */
static int look_at_pace(struct web_call *c, uint64_t now_ms, struct err *e)
{
    const struct web *w = c->web;
    if (c->method != WEB_GET || c->paced_since_ms == 0 || now_ms < c->paced_since_ms + w->timeout_ms)
        return 0;
    uint64_t ms = now_ms - c->paced_since_ms, bytes = c->paced_bytes;
    if ((double)bytes * 1000 < (double)w->least_rate * (double)ms)
        return err_set(e, -ETIMEDOUT, "%" PRIu64 " bytes in %" PRIu64 " ms: fewer than origin.min_rate",
                       bytes, ms);
    c->paced_since_ms = now_ms;
    c->paced_bytes = 0;
    return 0;
}

/* 0 while it may go on. */
static int look_around(struct web_call *c, struct err *e)
{
    if (web_is_canceled(c))
        return err_set(e, -ECANCELED, "canceled");
    uint64_t now_ms = sys_mono_ms(), patience_ms = quit_patience_ms(c->web->timeout_ms);
    if (now_ms > c->progress_ms && now_ms - c->progress_ms >= patience_ms)
        return err_set(e, -ETIMEDOUT, "no progress for %" PRIu64 " ms", patience_ms);
    return look_at_pace(c, now_ms, e);
}

static int wait_ms(const struct web_call *c)
{
    uint64_t now_ms = sys_mono_ms(), deadline_ms = c->progress_ms + c->web->timeout_ms;
    uint64_t left = deadline_ms > now_ms ? deadline_ms - now_ms : 0;
    return (int)MIN(left, (uint64_t)QUIT_LOOK_MS);
}

/* Until curl is done: its result in *ret_curl. Negative when it was given up before. */
static int run(struct web_call *c, struct web_conn *conn, CURLcode *ret_curl, struct err *e)
{
    if (curl.multi_add_handle(conn->multi, conn->easy) != CURLM_OK)
        abort();
    int r = 0, running = 1;
    c->progress_ms = sys_mono_ms();
    while (r == 0) {
        if (curl.multi_perform(conn->multi, &running) != CURLM_OK)
            r = err_set(e, ERR_ORIGIN_FAILED, "libcurl failed inside");
        if (!running)
            break;
        if (r == 0)
            r = look_around(c, e);
        if (r == 0)
            (void)curl.multi_poll(conn->multi, NULL, 0, wait_ms(c), NULL);
    }
    CURLMsg *m;
    int left;
    while ((m = curl.multi_info_read(conn->multi, &left)))
        if (m->msg == CURLMSG_DONE)
            *ret_curl = m->data.result;
    (void)curl.multi_remove_handle(conn->multi, conn->easy);
    return r;
}

static long get_long(CURL *easy, CURLINFO what)
{
    long x = 0;
    return curl.easy_getinfo(easy, what, &x) == CURLE_OK ? x : 0;
}

static bool has_connected(CURL *easy)
{
    curl_off_t t = 0;
    return curl.easy_getinfo(easy, CURLINFO_PRETRANSFER_TIME_T, &t) == CURLE_OK && t > 0;
}

/* A proxy that does not let this request through as it is: not reached is the service with other answers. */
static bool is_barred(CURL *easy)
{
    long status = get_long(easy, CURLINFO_HTTP_CONNECTCODE);
    return status == 403 || status == 407;
}

static int class_of_curl(CURLcode code, const struct web_call *c, CURL *easy)
{
    if (is_barred(easy))
        return ERR_ORIGIN_SETUP;
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
        return ERR_ORIGIN_SETUP;
    default:
        return ERR_ORIGIN_FAILED;
    }
}

/* What to do about it, behind curl's words. */
static const char *advise(CURLcode code, int class, CURL *easy)
{
    static const char authority[] =
        "; set origin.ca_file to the authority that signed the origin's certificate";
    if (class != ERR_ORIGIN_SETUP)
        return "";
    if (is_barred(easy))
        return get_long(easy, CURLINFO_HTTP_CONNECTCODE) == 407
                   ? "; the proxy of the node's environment wants a user and a password in its URL"
                   : "; the proxy of the node's environment does not let it through: see NO_PROXY";
    if (code != CURLE_PEER_FAILED_VERIFICATION)
        return authority;
    switch (get_long(easy, CURLINFO_SSL_VERIFYRESULT)) {
    case X509_V_OK: /* and yet refused, or nobody knows why: curl itself compares the names */
    case X509_V_ERR_UNSPECIFIED:
        return "; the certificate is for another host: check the address";
    case X509_V_ERR_CERT_NOT_YET_VALID:
    case X509_V_ERR_CERT_HAS_EXPIRED:
        return "; unless this machine's clock is wrong, the origin needs a new certificate";
    default:
        return authority;
    }
}

/* A refusal of what was sent twice says nothing about the first time. */
static int refuse(struct web_call *c, struct err *e)
{
    int r = c->web->kind->refused(c, e);
    bool gone = c->method == WEB_DELETE && r == -ENOENT;
    if (!c->once || c->begun < 2 || (r != ERR_PRECONDITION && r != ERR_ORIGIN_BUSY && !gone))
        return r;
    if (e)
        e->code = ERR_ORIGIN_FAILED;
    return err_prefix(e, ERR_ORIGIN_FAILED, "sent again, because the connection closed without an answer");
}

/* What an exchange that curl ended came to. */
static int conclude(struct web_call *c, struct web_conn *conn, CURLcode code, struct err *e)
{
    if (c->trust.result < 0)
        return c->trust.result;
    if (c->stopped)
        return e && e->code == 0 ? err_set(e, c->stopped, "%s", err_text(c->stopped)) : c->stopped;
    int status = c->response.status;
    bool refused = is_refused(c);
    if (code != CURLE_OK && !refused) { /* a refusal may cut an upload short; it says more than curl */
        int class = class_of_curl(code, c, conn->easy);
        return err_set(e, class, "%s%s", conn->error[0] ? conn->error : curl.easy_strerror(code),
                       advise(code, class, conn->easy));
    }
    if (status == 0)
        return err_set(e, ERR_ORIGIN_FAILED, "the answer is no HTTP");
    if (refused)
        return refuse(c, e);
    if (status < 200)
        return err_set(e, ERR_ORIGIN_FAILED, "the answer ended with status %d", status);
    return 0;
}

static int exchange(struct web_call *c, struct web_conn *conn, bool *ret_keep, struct err *e)
{
    struct web_request _cleanup_(web_request_fini) request = {.url = BUF_INIT(WEB_URL_MAX)};
    int r = c->web->kind->prepare(c, &request, e);
    if (r < 0)
        return r;
    set_options(c, conn, request.url.p, request.headers);
    CURLcode code = CURLE_OK;
    uint64_t began_ms = sys_mono_ms();
    r = run(c, conn, &code, e);
    *ret_keep = r == 0 && (!c->stopped || c->method == WEB_HEAD) && code == CURLE_OK;
    /* What went between forgot this connection without a word (NAT, a firewall, a link that moved), and so it
     * did those that were idle beside it: each of them would cost a try as long as this one. */
    if (r == -ETIMEDOUT && c->response.status == 0 && get_long(conn->easy, CURLINFO_NUM_CONNECTS) == 0)
        drop_idle(c->web, began_ms);
    if (r == 0)
        r = conclude(c, conn, code, e);
    curl_set(conn->easy, CURLOPT_HTTPHEADER, NULL); /* the list goes away with this call */
    int status = c->response.status;
    if (r == 0 && has_body(c) && c->body_n > EXPECT_ABOVE_BYTES && !c->is_continued)
        atomic_store(&c->web->is_mute, true);
    if (c->web->origin)
        origin_count_request(c->web->origin, c->op,
                             status >= 200 ? status : 0); /* an interim answer is none */
    if (c->web->origin && (status == 429 || status == 503))
        origin_pause(c->web->origin, web_response_pause_ms(&c->response));
    return r;
}

static int perform_once(struct web_call *c, struct err *e)
{
    struct err local = {0};
    web_response_fini(&c->response);
    web_response_init(&c->response);
    c->response.kind = c->web->kind;
    buf_clear(&c->error_body);
    c->err = e ? e : &local;
    c->err->code = 0;
    c->stopped = 0;
    c->body_sent = 0;
    c->unwanted = 0;
    c->paced_bytes = c->paced_since_ms = 0;
    c->begun = 0;
    c->is_continued = false;
    c->ended = false;
    struct web_conn *conn;
    int r = conn_take(c, &conn);
    if (r < 0)
        return err_set(e, r, "canceled while waiting for a connection");
    bool keep = true;
    r = exchange(c, conn, &keep, c->err);
    conn_give(c, conn, keep);
    return r;
}

/* Whether the body is there no more: its bytes came from somebody who sends them once. */
static bool is_body_gone(const struct web_call *c)
{
    return c->body && c->body->once && c->body_sent > 0;
}

static bool is_wordless(const struct web_call *c, int r)
{
    int status = c->response.status;
    return r < 0 && c->method == WEB_HEAD && c->web->kind->why && c->stopped == 0 &&
           (status == 400 || status == 401 || status == 403 || status == 404) && !web_is_canceled(c);
}

int web_perform(struct web_call *c, struct err *e)
{
    int r = perform_once(c, e);
    bool asks = is_wordless(c, r) && !c->ended;
    if (asks)
        r = c->web->kind->why(c, r, e);
    if (r == 0 || !c->ended || is_body_gone(c) || web_is_canceled(c))
        return r;
    r = perform_once(c, e);
    return is_wordless(c, r) && !asks ? c->web->kind->why(c, r, e) : r;
}

/*
 * Requests of WebHDFS: addressing, who asks, and the way to the nodes that have the bytes.
 *
 *     BASE/webhdfs/v1/ROOT/PATH?op=OP&...&user.name=USER   or   &delegation=TOKEN
 *     BASE/webhdfs/v1/.reserved/.inodes/ID?op=OPEN&...     the file of this id, whatever its path is by now
 *
 * OPEN and CREATE of a namenode answer 307 with the address of a datanode, where the same operation is asked
 * for again, with the body of a CREATE. HttpFS redirects to itself, or answers an OPEN at once.
 *
 * Invariants:
 *  1. Credentials go into the query of the request only; no text of an error or of the log has a URL's query.
 *  2. A redirect is followed once, and only where the protocol has one.
 *  3. A body is sent to the node that takes it, and once.
 *
 * Failure modes: those of web_perform, with "datanode HOST" before what a second node said.
 */
#include "origin/hdfs_internal.h"

#include "base/text.h"

#include <inttypes.h>

#define REDIRECT 307

static int prepare(struct web_call *c, struct web_request *q, struct err *e)
{
    struct hdfs *h = hdfs_of(c->web->origin);
    int r;
    if (c->url.n) {
        r = buf_slice(&q->url, c->url); /* a datanode's, with all it needs in its query */
    } else {
        r = buf_printf(&q->url, "%s%s/webhdfs/v1", h->endpoint.base, h->endpoint.path);
        if (r == 0)
            r = text_uri_encode(&q->url, c->key, /* keep_slash= */ true);
        if (r == 0)
            r = web_request_query(c, &q->url);
    }
    return r < 0 ? err_set(e, -ENAMETOOLONG, "the request's URL is too long") : web_request_headers(c, q, e);
}

static int refused(struct web_call *c, struct err *e)
{
    const struct web_response *r = &c->response;
    if (r->status >= 300 && r->status < 400)
        return err_set(e, ERR_ORIGIN_SETUP, "%d %s: a redirect where WebHDFS has none; is this its port?",
                       r->status, r->reason);
    return hdfs_json_refused(r, buf_view(&c->error_body), e);
}

const struct web_kind hdfs_web_kind = {
    .version_header = "etag",
    .meta_prefix = "x-amz-meta-",
    .prepare = prepare,
    .refused = refused,
};

/* ---- calls ---- */

int hdfs_path(const struct hdfs *h, const char *path, char ret[HDFS_PATH_SIZE], struct err *e)
{
    int n = snprintf(ret, HDFS_PATH_SIZE, "%s%s%s", h->root, *path ? "/" : "", path);
    if (n < 0 || n >= (int)HDFS_PATH_SIZE)
        return err_set(e, -ENAMETOOLONG, "the path is too long");
    if (n == 0)
        (void)strcpy(ret, "/");
    return 0;
}

int hdfs_call_init(struct hdfs_call *c, struct hdfs *h, enum web_method method, const char *counted,
                   const char *op, const char *path, struct buf *body, struct err *e)
{
    web_call_init(&c->web, &h->web, method, counted);
    int r = hdfs_path(h, path, c->path, e);
    if (r < 0)
        return r;
    c->web.has_key = true;
    c->web.key = slice_str(c->path);
    web_query(&c->web, SLICE_LIT("op"), slice_str(op));
    if (h->token)
        web_query(&c->web, SLICE_LIT("delegation"), slice_str(h->token));
    else
        web_query(&c->web, SLICE_LIT("user.name"), slice_str(h->user));
    if (body) {
        c->web.on_body = web_collect;
        c->web.arg = body;
    }
    return 0;
}

void hdfs_call_fini(struct hdfs_call *c)
{
    web_call_fini(&c->web);
}

bool hdfs_is_sent_again(const struct hdfs_call *c)
{
    return c->web.begun > 1;
}

int hdfs_stat(struct hdfs *h, const char *path, atomic_bool *cancel, struct hdfs_status *ret, struct err *e)
{
    struct buf _cleanup_buf_ body = BUF_INIT(WEB_RESULT_MAX);
    struct hdfs_call _cleanup_(hdfs_call_fini) c;
    int r = hdfs_call_init(&c, h, WEB_GET, "head", "GETFILESTATUS", path, &body, e);
    c.web.cancel = cancel;
    if (r == 0)
        r = web_perform(&c.web, e);
    return r == 0 ? hdfs_json_status(buf_view(&body), ret, e) : r;
}

void hdfs_etag(const struct hdfs_status *st, char ret[TREE_ETAG_SIZE])
{
    tree_etag(st->mtime_ms, st->size, st->id, ret);
}

struct origin_attr hdfs_attr(const struct hdfs_status *st, struct arena *a)
{
    char etag[TREE_ETAG_SIZE];
    hdfs_etag(st, etag);
    return (struct origin_attr){
        .size_bytes = st->size, .mtime_ns = st->mtime_ms * 1000000, .etag = arena_dup(a, slice_str(etag))};
}

/* ---- datanodes ---- */

/* HOST:PORT of a URL, for words. */
static struct slice host_of(struct slice url)
{
    ssize_t at = slice_find_slice(url, SLICE_LIT("://"));
    struct slice rest = at < 0 ? SLICE_NULL : slice_from(url, (size_t)at + 3);
    return slice_split(&rest, '/');
}

/* Copies where an answer leads to. ERR_ORIGIN_FAILED when it leads nowhere. */
static int take_location(const struct web_call *c, char ret[WEB_LOCATION_MAX], struct err *e)
{
    struct slice to = slice_str(c->response.location);
    bool known = slice_starts(to, SLICE_LIT("http://")) || slice_starts(to, SLICE_LIT("https://"));
    if (!known)
        return err_set(e, ERR_ORIGIN_FAILED, "%d without a Location that can be followed", REDIRECT);
    memcpy(ret, to.p, to.n);
    ret[to.n] = '\0';
    return 0;
}

/* The same operation at another node. */
static int perform_at(struct web_call *c, const char *location, struct err *e)
{
    c->url = slice_str(location);
    c->accept = 0;
    int r = web_perform(c, e);
    struct slice host = host_of(c->url);
    return r < 0 ? err_prefix(e, r, "datanode " SLICE_FMT, SLICE_ARG(host)) : 0;
}

struct counter {
    int (*on_body)(void *arg, const void *p, size_t n);
    void *arg;
    uint64_t n, want;
    struct web_call *call;
};

static int count(void *arg, const void *p, size_t n)
{
    struct counter *x = arg;
    if (n > x->want - x->n)
        return err_set(x->call->err, ERR_ORIGIN_SHORT, "more than the %" PRIu64 " bytes asked for", x->want);
    x->n += n;
    return x->on_body(x->arg, p, n);
}

/* id 0: by the path. *ret_begun: on_body was called. */
static int open_range(struct hdfs *h, const char *path, uint64_t id, uint64_t offset, uint64_t n,
                      atomic_bool *cancel, int (*on_body)(void *arg, const void *p, size_t n), void *arg,
                      bool *ret_begun, struct err *e)
{
    char from[24], length[24], location[WEB_LOCATION_MAX];
    struct hdfs_call _cleanup_(hdfs_call_fini) c;
    struct counter x = {.on_body = on_body, .arg = arg, .want = n, .call = &c.web};
    (void)snprintf(from, sizeof(from), "%" PRIu64, offset);
    (void)snprintf(length, sizeof(length), "%" PRIu64, n);
    *ret_begun = false;
    int r = hdfs_call_init(&c, h, WEB_GET, "get", "OPEN", path, NULL, e);
    if (r < 0)
        return r;
    if (id != 0) {
        (void)snprintf(c.path, sizeof(c.path), "/.reserved/.inodes/%" PRIu64, id);
        c.web.key = slice_str(c.path);
    }
    web_query(&c.web, SLICE_LIT("offset"), slice_str(from));
    web_query(&c.web, SLICE_LIT("length"), slice_str(length));
    c.web.cancel = cancel;
    c.web.accept = REDIRECT;
    c.web.on_body = count;
    c.web.arg = &x;
    r = web_perform(&c.web, e);
    if (r == 0 && c.web.response.status == REDIRECT) {
        r = take_location(&c.web, location, e);
        if (r == 0)
            r = perform_at(&c.web, location, e);
    }
    *ret_begun = x.n > 0;
    if (r == ERR_ORIGIN_FAILED && id != 0 && c.web.response.status == 404)
        return err_prefix(e, -ENOENT, "no file of id %" PRIu64, id); /* of a gateway that knows no ids */
    if (r == 0 && x.n != n)
        return err_set(e, ERR_ORIGIN_SHORT, "%" PRIu64 " of %" PRIu64 " bytes", x.n, n);
    return r;
}

int hdfs_check_unchanged(struct hdfs *h, const char *path, const struct hdfs_status *before,
                         atomic_bool *cancel, struct err *e)
{
    struct hdfs_status now;
    int r = hdfs_stat(h, path, cancel, &now, e);
    if (r < 0 && r != -ENOENT)
        return r;
    if (r == 0 && now.mtime_ms == before->mtime_ms && now.size == before->size && now.id == before->id)
        return 0;
    return err_set(e, ERR_ORIGIN_SHORT, "the file was changed while it was read");
}

int hdfs_open_range(struct hdfs *h, const char *path, const struct hdfs_status *st, uint64_t offset,
                    uint64_t n, atomic_bool *cancel, int (*on_body)(void *arg, const void *p, size_t n),
                    void *arg, struct err *e)
{
    bool begun, by_id = st->id != 0 && !atomic_load(&h->no_ids);
    int r = open_range(h, path, by_id ? st->id : 0, offset, n, cancel, on_body, arg, &begun, e);
    if (r >= 0 || begun || !by_id || retry_is_transient(r) || (cancel && atomic_load(cancel)))
        return r;
    /* The file is gone, or the server finds none by id: a router, or another file system behind HttpFS. */
    r = hdfs_check_unchanged(h, path, st, cancel, e);
    if (r == 0)
        r = open_range(h, path, 0, offset, n, cancel, on_body, arg, &begun, e);
    if (r == 0)
        atomic_store(&h->no_ids, true);
    return r;
}

/* ---- CREATE ---- */

static int create_at(struct hdfs *h, const char *location, const struct origin_body *body,
                     atomic_bool *cancel, struct err *e)
{
    struct web_call _cleanup_(web_call_fini) c;
    web_call_init(&c, &h->web, WEB_PUT, "put");
    web_header(&c, SLICE_LIT("content-type"), SLICE_LIT("application/octet-stream"));
    c.body = body;
    c.body_n = body->size_bytes;
    c.cancel = cancel;
    return perform_at(&c, location, e);
}

int hdfs_create(struct hdfs *h, const char *path, const struct origin_body *body, atomic_bool *cancel,
                struct err *e)
{
    char location[WEB_LOCATION_MAX];
    int r = web_wait_for_body(body, 0, e); /* no node waits for a body that is not there yet */
    if (r < 0)
        return r;
    struct hdfs_call _cleanup_(hdfs_call_fini) c;
    r = hdfs_call_init(&c, h, WEB_PUT, "put", "CREATE", path, NULL, e);
    if (r < 0)
        return r;
    web_query(&c.web, SLICE_LIT("overwrite"), SLICE_LIT("false"));
    c.web.cancel = cancel;
    c.web.accept = REDIRECT;
    r = web_perform(&c.web, e);
    if (r < 0)
        return r;
    if (c.web.response.status == REDIRECT) {
        r = take_location(&c.web, location, e);
        return r < 0 ? r : create_at(h, location, body, cancel, e);
    }
    if (body->size_bytes == 0)
        return 0;
    /* Made at once, and empty: the server takes the bytes itself. */
    struct hdfs_call _cleanup_(hdfs_call_fini) again;
    r = hdfs_call_init(&again, h, WEB_PUT, "put", "CREATE", path, NULL, e);
    if (r < 0)
        return r;
    web_query(&again.web, SLICE_LIT("overwrite"), SLICE_LIT("true"));
    web_query(&again.web, SLICE_LIT("data"), SLICE_LIT("true"));
    web_header(&again.web, SLICE_LIT("content-type"), SLICE_LIT("application/octet-stream"));
    again.web.cancel = cancel;
    again.web.body = body;
    again.web.body_n = body->size_bytes;
    return web_perform(&again.web, e);
}

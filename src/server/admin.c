/*
 * Everything below "/-/": health, metrics, status.
 *
 * | path                    | credentials | answer                                                        |
 * | ----------------------- | ----------- | ------------------------------------------------------------- |
 * | /-/health               | none        | 200 {"status":"ok",...}; 503 "stopping" once told to stop     |
 * | /-/metrics              | none        | Prometheus text exposition format                             |
 * | /-/api/v1/status        | signature   | JSON: the node, its disks, buckets and mounts                 |
 * | /-/api/v1/events/BUCKET | token       | POST of an S3 event: {"changed":N,"ignored":N}; 403 otherwise |
 *
 * The token is the bucket's property events.token, sent as `Authorization: Bearer TOKEN`.
 *
 * Health and metrics need no credentials on any address, because what asks for them (load balancers,
 * Prometheus) cannot sign. They hold no secrets and no keys of objects; metrics do name buckets and disks.
 * Who does not want to show that listens on loopback, which is the default.
 *
 * Failure modes: unknown paths 404, other methods 405, both without saying more.
 */
#include "base/metrics.h"
#include "base/sys.h"
#include "server/server_internal.h"

#include <jansson.h>

#define ANSWER_MAX_BYTES (8 * MIB)
#define EVENTS_MAX_BYTES (4 * MIB)
#define EVENTS_PATH      "/-/api/v1/events/"

/* X(path, express, handler) */
#define PAGES(X)                                                                                             \
    X("/-/health", true, health)                                                                             \
    X("/-/metrics", true, metrics)                                                                           \
    X("/-/api/v1/status", false, status)

bool admin_is_ours(const struct http_request *r)
{
    return slice_starts(r->raw_path, SLICE_LIT("/-/")) || slice_eq_str(r->raw_path, "/-");
}

bool admin_is_express(const struct http_request *r)
{
#define X(path, express, handler)                                                                            \
    if ((express) && slice_eq_str(r->raw_path, path))                                                        \
        return true;
    PAGES(X)
#undef X
    return false;
}

static void reply_json(struct http_conn *c, int status, json_t *o)
{
    _cleanup_buf_ struct buf b = BUF_INIT(ANSWER_MAX_BYTES);
    _cleanup_free_ char *text = o ? json_dumps(o, JSON_INDENT(2) | JSON_PRESERVE_ORDER) : NULL;
    json_decref(o);
    /* A failure to answer shows in the connection, which the front end closes. */
    if (text && buf_printf(&b, "%s\n", text) == 0)
        (void)http_conn_reply(c, status,
                              SLICE_LIT("Content-Type: application/json\r\nCache-Control: no-store\r\n"),
                              buf_view(&b));
    else
        (void)http_conn_reply(c, 500, SLICE_NULL, SLICE_NULL);
}

static void reply_error(struct http_conn *c, int status, const char *text)
{
    reply_json(c, status, json_pack("{s:s}", "error", text));
}

/* Of the monotonic clock: the wall clock may be set. */
static double uptime_s(const struct server *s)
{
    return (double)(sys->mono_ns() - s->up_since_ns) / 1e9;
}

static void page_health(struct server *s, struct http_conn *c)
{
    bool stopping = atomic_load(&s->stopping);
    reply_json(c, stopping ? 503 : 200,
               json_pack("{s:s, s:s, s:s, s:f}", "status", stopping ? "stopping" : "ok", "version",
                         FOREBAY_VERSION, "node", s->dir.node_id, "uptime_s", uptime_s(s)));
}

static void set_gauge(enum metric m, const char *label, uint64_t value)
{
    metrics_set(metrics_series(m, label, NULL, NULL), (int64_t)value);
}

static void refresh(struct server *s)
{
    struct memory_use m = memory_measure();
    set_gauge(METRIC_RESIDENT_BYTES, "anon", m.anon_bytes);
    set_gauge(METRIC_RESIDENT_BYTES, "shmem", m.shmem_bytes);
    set_gauge(METRIC_RESIDENT_BYTES, "file", m.file_bytes);
    for (int i = 0; i < CONN_KIND_COUNT; i++)
        set_gauge(METRIC_CONNECTIONS_ACTIVE, conn_kind_name((enum conn_kind)i),
                  front_active(s->front, (enum conn_kind)i));
    object_service_refresh_metrics(s->objects);
}

static void page_metrics(struct server *s, struct http_conn *c)
{
    _cleanup_buf_ struct buf b = BUF_INIT(METRICS_TEXT_MAX_BYTES);
    refresh(s);
    if (metrics_text(&b) < 0)
        reply_error(c, 500, "metrics are larger than their maximum");
    else
        (void)http_conn_reply(c, 200, SLICE_LIT("Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"),
                              buf_view(&b));
}

static void page_status(struct server *s, struct http_conn *c)
{
    struct err e = {0};
    if (s3_authenticate(s->s3, c, &e) < 0) {
        reply_error(c, 403, e.text);
        return;
    }
    _cleanup_(arena_freep) struct arena *a = arena_new(ANSWER_MAX_BYTES);
    struct wire_status_req req = {.request_id = http_conn_id(c)};
    struct wire_status_rep rep = {.fd = -1};
    int k = object_status(s->session, &req, a, &rep, &e);
    json_t *o = k < 0 ? NULL : json_loadb(rep.json.p, rep.json.n, 0, NULL);
    if (!o) {
        reply_error(c, k < 0 ? err_http_status(k) : 500, k < 0 ? e.text : "status is not JSON");
        return;
    }
    struct memory_use m = memory_measure();
    (void)json_object_set_new(o, "node", json_string(s->dir.node_id));
    (void)json_object_set_new(o, "uptime_s", json_real(uptime_s(s)));
    (void)json_object_set_new(o, "http", json_string(s->http_address));
    (void)json_object_set_new(o, "wire", json_string(s->wire_address));
    (void)json_object_set_new(o, "connections", json_integer((json_int_t)front_connections(s->front)));
    (void)json_object_set_new(o, "workers", json_integer(front_workers(s->front)));
    (void)json_object_set_new(o, "resident_bytes", json_integer((json_int_t)(m.anon_bytes + m.shmem_bytes)));
    (void)json_object_set_new(o, "memory_bytes", json_integer((json_int_t)s->memory_bytes));
    reply_json(c, 200, o);
}

/* POST of an origin's notification. Bodies are taken of those who know the token and of nobody else: they lie
 * in memory, and a thread waits for them. */
static void take_events(struct server *s, struct http_conn *c, struct slice bucket)
{
    const struct http_request *r = http_conn_request(c);
    struct slice token = http_header(r, "authorization");
    _cleanup_buf_ struct buf body = BUF_INIT(EVENTS_MAX_BYTES);
    struct err e = {0};
    if (!slice_eq_str(r->method, "POST")) {
        reply_error(c, 405, "only POST");
        return;
    }
    bool bearer = token.n > 7 && slice_eq_case(slice_sub(token, 0, 7), SLICE_LIT("Bearer "));
    struct wire_events_req req = {.request_id = http_conn_id(c),
                                  .bucket = bucket,
                                  .token = bearer ? slice_trim(slice_from(token, 7)) : SLICE_NULL,
                                  .json = SLICE_LIT("{\"Records\": []}")};
    struct wire_events_rep rep;
    int k = object_events(s->session, &req, http_conn_arena(c), &rep, &e);
    int got = k < 0 ? 0 : http_conn_read_all(c, &body);
    if (got < 0) {
        reply_error(c, got == -E2BIG ? 413 : 400, "the body is not complete, or larger than 4 MiB");
        return;
    }
    req.json = buf_view(&body);
    if (k == 0)
        k = object_events(s->session, &req, http_conn_arena(c), &rep, &e);
    if (k < 0)
        reply_error(c, k == -EACCES ? 403 : k == -EINVAL ? 400 : err_http_status(k), e.text);
    else
        reply_json(
            c, 200,
            json_pack("{s:I, s:I}", "changed", (json_int_t)rep.changed, "ignored", (json_int_t)rep.ignored));
}

void admin_handle(struct server *s, struct http_conn *c)
{
    assert(s->magic == SERVER_MAGIC);
    const struct http_request *r = http_conn_request(c);
    bool reads = slice_eq_str(r->method, "GET") || slice_eq_str(r->method, "HEAD");
    void (*page)(struct server *, struct http_conn *) = NULL;
    const char *op = "other";
#define X(path, express, handler)                                                                            \
    if (slice_eq_str(r->raw_path, path)) {                                                                   \
        page = page_##handler;                                                                               \
        op = #handler;                                                                                       \
    }
    PAGES(X)
#undef X
    if (slice_starts(r->raw_path, SLICE_LIT(EVENTS_PATH))) {
        op = "events";
        take_events(s, c, slice_from(r->raw_path, strlen(EVENTS_PATH)));
    } else if (!page)
        reply_error(c, 404, "no such page");
    else if (!reads)
        reply_error(c, 405, "only GET and HEAD");
    else
        page(s, c);
    char code[8];
    snprintf(code, sizeof(code), "%d", http_conn_status(c));
    metrics_count(METRIC_REQUESTS, "admin", op, code);
}

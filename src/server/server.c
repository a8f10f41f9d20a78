/*
 * A node from start to stop (contract in server.h).
 *
 * Invariants:
 *  1. Parts are opened in the order of `struct server` and closed in the reverse; a start that fails half-way
 * closes what it had opened. Listeners come last: whoever can connect is served.
 *  2. The store and the control store are closed, which marks the stop as clean, only after every thread that
 * could change them has ended.
 *
 * Failure modes: each error names the part and what it is about ("listen on 127.0.0.1:7070: Address in use").
 */
#include "base/log.h"
#include "base/metrics.h"
#include "base/sys.h"
#include "namespace/seal.h"
#include "net/sock.h"
#include "origin/origin.h"
#include "server/server_internal.h"

#include <inttypes.h>
#include <signal.h>

#define LISTEN_BACKLOG    4096
#define DISKS_MAX         64
#define SPARE_DESCRIPTORS 1024 /* extents, index files, connections to origins */

/* ---- the parts ---- */

static int open_control(struct server *s, const struct memory_plan *plan, struct err *e)
{
    const struct kv_options options = {.cache_bytes = plan->control_cache_bytes,
                                       .write_buffer_bytes = plan->control_write_bytes};
    int k = seal_open(s->dir.seal_path, &s->seal, e);
    if (k == 0)
        k = kv_open_rocksdb(s->dir.control_path, &options, &s->control, e);
    return k < 0 ? err_prefix(e, k, "control store") : 0;
}

/* Whether the control store names files that are on the disks and nowhere else: of scratch buckets, or writes
 * that are not in their origins. */
static bool has_hard_data(struct kv *control)
{
    static const char *const from[] = {"s", "d/"}, *const to[] = {"t", "d0"};
    bool has = false;
    for (size_t i = 0; i < ARRAY_SIZE(from) && !has; i++) {
        struct slice key, value;
        struct kv_iter *it = kv_iter_new(control, slice_str(from[i]), slice_str(to[i]));
        has = kv_iter_next(it, &key, &value, NULL) != -ENOENT;
        kv_iter_free(it);
    }
    return has;
}

static int open_store(struct server *s, const struct config *config, const struct memory_plan *plan,
                      struct err *e)
{
    struct config_disk parsed[DISKS_MAX] = {0};
    struct store_disk_config disks[DISKS_MAX] = {{.path = s->dir.cache_path}};
    size_t n = config->disk.n;
    int k = 0;
    if (n > DISKS_MAX)
        return err_set(e, ERR_BAD_OPTION, "--disk: more than %d", DISKS_MAX);
    for (size_t i = 0; i < n && k == 0; i++) {
        k = config_parse_disk(config->disk.v[i], &parsed[i], e);
        disks[i] = (struct store_disk_config){parsed[i].path, parsed[i].size_bytes};
    }
    const struct store_config store = {
        .disks = disks,
        .n_disks = n ? n : 1,
        .memory_bytes = plan->store_bytes,
        .reserve_bytes = config->reserve,
        .flush_interval_ms = config->flush_interval,
    };
    char *paths[DISKS_MAX];
    for (size_t i = 0; i < n; i++)
        paths[i] = parsed[i].path;
    if (k == 0)
        k = data_dir_expect_disks(&s->dir, paths, n, has_hard_data(s->control), e);
    if (k == 0)
        k = store_open(&store, &s->store, e);
    if (k == 0)
        k = data_dir_note_disks(&s->dir, paths, n, e);
    for (size_t i = 0; i < n; i++)
        free(paths[i]);
    return k;
}

static int open_objects(struct server *s, const struct config *options, const struct memory_plan *plan,
                        struct err *e)
{
    const char *route = getenv("FOREBAY_ROUTE");
    s->budget = budget_new(plan->budget_bytes);
    s->buffers = budget_new(plan->wire_bytes);
    const struct object_config config = {
        .control = s->control,
        .seal = s->seal,
        .store = s->store,
        .budget = s->budget,
        .gate = {.requests_per_s = options->limit_requests,
                 .bytes_per_s = options->limit_bytes,
                 .client_requests_per_s = options->client_limit_requests,
                 .client_bytes_per_s = options->client_limit_bytes,
                 .active = (unsigned)options->limit_active,
                 .waiting = (unsigned)options->threads / 2},
        .scrub_bytes_per_s = options->scrub_rate,
        .dirty_max_percent = (unsigned)options->dirty_max,
        .route = route && strcmp(route, "loop") == 0 ? OBJECT_ROUTE_LOOP : OBJECT_ROUTE_LOCAL,
    };
    int k = object_service_open(&config, &s->objects, e);
    if (k < 0)
        return k;
    s->session = object_session_new(s->objects, WIRE_VIA_API);
    return jobs_open(s->objects, s->control, s->seal, &s->jobs, e);
}

/* ---- the front end's callbacks ---- */

/* A host that names a bucket has keys that look like ours. */
static bool is_express(void *arg, const struct http_request *r)
{
    struct server *s = CAST_MAGIC(server, arg, SERVER_MAGIC);
    return admin_is_express(r) && !s3_is_bucket_host(s->s3, r);
}

static void on_http(struct http_conn *c, void *arg)
{
    struct server *s = CAST_MAGIC(server, arg, SERVER_MAGIC);
    const struct http_request *r = http_conn_request(c);
    if (admin_is_ours(r) && !s3_is_bucket_host(s->s3, r))
        admin_handle(s, c);
    else
        s3_handle(c, s->s3);
}

static void *on_session_open(void *arg, struct id128 id, enum wire_via via, struct slice access_key)
{
    struct server *s = CAST_MAGIC(server, arg, SERVER_MAGIC);
    _cleanup_(object_session_freep) struct object_session *session = object_session_new(s->objects, via);
    object_session_set_remote(session);
    if (via == WIRE_VIA_MOUNT)
        object_session_set_family(session, id.b);
    if (access_key.n > 0 && object_session_sign_in(session, access_key, NULL) < 0)
        return NULL;
    return TAKE_PTR(session);
}

static void on_session_identify(void *session, const struct sock_peer *peer)
{
    object_session_set_peer(session, peer->uid, peer->gid, peer->groups, peer->n_groups);
}

static int on_secret(void *arg, struct slice access_key, struct buf *ret_secret)
{
    struct server *s = CAST_MAGIC(server, arg, SERVER_MAGIC);
    char secret[USER_SECRET_KEY_LEN + 1];
    _cleanup_(user_unrefp) struct user *u = object_find_user(s->objects, access_key, secret);
    int k = u ? buf_str(ret_secret, secret) : ERR_UNAUTHENTICATED;
    explicit_bzero(secret, sizeof(secret));
    return k;
}

static void on_session_close(void *session)
{
    object_session_free(session);
}

static void on_session_sent(void *session, uint32_t op, const void *rep)
{
    object_sent(session, op, rep);
}

static void on_session_unsent(void *session, uint32_t op, const void *req, const void *rep, struct arena *a)
{
    object_unsent(session, op, req, rep, a);
}

static void on_session_abandon(void *session)
{
    object_session_abandon(session);
}

static int on_session_call(void *session, uint32_t op, const void *req, struct arena *a, void *rep,
                           struct err *e)
{
    return object_call_shaped(session, op, req, a, rep, e);
}

static uint64_t on_reply_bytes(void *session, uint32_t op, const void *req)
{
    return object_reply_bytes(session, op, req);
}

/* How many connections the descriptors that we may have are enough for. */
static unsigned divide_descriptors(uint64_t files, uint64_t wanted)
{
    uint64_t spare = MIN((uint64_t)SPARE_DESCRIPTORS, files / 2);
    if (files == 0 || wanted + spare <= files)
        return (unsigned)wanted;
    log_info("server",
             "--max-connections %" PRIu64 " lowered to %" PRIu64 ": the process may open %" PRIu64 " files",
             wanted, files - spare, files);
    return (unsigned)(files - spare);
}

static int open_tls(struct server *s, const struct config *config, struct err *e)
{
    char text[TLS_TEXT_MAX];
    if (!config->tls_cert)
        return 0;
    int k = tls_server_open(config->tls_cert, config->tls_key, &s->tls, e);
    if (k < 0)
        return k;
    tls_server_describe(s->tls, text);
    log_info("server", "TLS: %s", text);
    return 0;
}

/* The files may have changed without their names. */
static void reload_tls(struct server *s, const struct config *config)
{
    struct err e = {0};
    char text[TLS_TEXT_MAX];
    if (!s->tls != !config->tls_cert) {
        log_warn("server", "TLS: is taken up and given up by the next start only");
        return;
    }
    if (!s->tls)
        return;
    if (tls_server_reload(s->tls, config->tls_cert, config->tls_key, &e) < 0) {
        log_error("server", "TLS: the former certificate stays: %s", e.text);
        return;
    }
    tls_server_describe(s->tls, text);
    log_info("server", "TLS: %s", text);
}

static int start_front(struct server *s, const struct config *config, const struct memory_plan *plan,
                       struct err *e)
{
    const struct s3_config s3 = {.objects = s->objects,
                                 .region = config->region,
                                 .access_key = s->dir.access_key,
                                 .secret_key = s->dir.secret_key,
                                 .node_id = s->dir.node_id,
                                 .lifecycle_ms = config->lifecycle_interval,
                                 .documents_bytes = plan->documents_bytes,
                                 .domain = config->domain};
    s->s3 = s3_new(&s3);
    const struct front_config front = {
        .threads = (unsigned)config->threads,
        .max_connections = divide_descriptors(s->files_max, config->max_connections),
        .request_timeout_ms = config->request_timeout,
        .idle_timeout_ms = config->idle_timeout,
        .heads_bytes = plan->heads_bytes,
        .answers_bytes = plan->answers_bytes,
        .buffers = s->buffers,
        .http = on_http,
        .http_arg = s,
        .express = is_express,
        .sessions = {on_session_open, on_session_close, on_secret, on_session_call, on_session_sent,
                     on_session_abandon, on_session_unsent, s, on_session_identify, on_reply_bytes},
        .access_key = s->dir.access_key,
        .secret_key = s->dir.secret_key,
        .node_id = s->dir.node_id,
        .tls = s->tls,
    };
    return front_start(&front, &s->front, e);
}

static int start_listeners(struct server *s, const struct config *config, struct err *e)
{
    int http = -1, wire = -1, local = -1;
    int k = sock_listen_tcp(config->listen, LISTEN_BACKLOG, &http, s->http_address, e);
    if (k < 0)
        return err_prefix(e, k, "--listen");
    k = sock_listen_tcp(config->wire, LISTEN_BACKLOG, &wire, s->wire_address, e);
    if (k < 0) {
        (void)close(http);
        return err_prefix(e, k, "--wire");
    }
    k = sock_listen_unix(s->dir.socket_path, LISTEN_BACKLOG, &local, e);
    if (k < 0) {
        (void)close(http);
        (void)close(wire);
        return k;
    }
    const struct {
        enum conn_kind kind;
        int fd;
    } listeners[] = {{CONN_UNIX, local}, {CONN_WIRE, wire}, {CONN_HTTP, http}};
    for (size_t i = 0; i < ARRAY_SIZE(listeners); i++) {
        if (k == 0)
            k = front_listen(s->front, listeners[i].fd, listeners[i].kind, e);
        else
            (void)close(listeners[i].fd);
    }
    return k;
}

/* ---- life ---- */

static void announce(struct server *s, uint64_t began_ns)
{
    _cleanup_buf_ struct buf b = BUF_INIT(16 * KIB);
    if (buf_printf(&b, "forebay %s ready: s3 http%s://%s wire %s socket %s", FOREBAY_VERSION,
                   s->tls ? "s" : "", s->http_address, s->wire_address, s->dir.socket_path) < 0)
        abort();
    s->ready_line = buf_take(&b);
    metrics_set(metrics_series(METRIC_INFO, FOREBAY_VERSION, NULL, NULL), 1);
    metrics_set(metrics_series(METRIC_UP_SINCE, NULL, NULL, NULL), (int64_t)(s->started_ns / 1000000000));
    /* Gauges are whole numbers: started within a second shows as 0 or 1. */
    metrics_set(metrics_series(METRIC_START_SECONDS, NULL, NULL, NULL),
                (int64_t)((sys->mono_ns() - began_ns + 500000000) / 1000000000));
}

int server_start(const struct config *config, struct server **ret, struct err *e)
{
    assert(config != NULL && config->data != NULL && ret != NULL);
    uint64_t began_ns = sys->mono_ns();
    struct server *s = calloc(1, sizeof(*s));
    if (!s)
        abort();
    s->magic = SERVER_MAGIC;
    s->dir.lock_fd = -1;
    s->started_ns = sys->real_ns();
    s->up_since_ns = began_ns;
    s->memory_bytes = config->memory;
    s->files_max = sys_raise_file_limit(); /* the store divides it, too */
    s->drain_timeout_ms = config->drain_timeout;
    memory_prepare();
    (void)signal(SIGPIPE, SIG_IGN); /* sendfile has no flag against it */
    struct memory_plan plan = memory_divide(config->memory);
    int k = data_dir_open(config->data, &s->dir, e);
    if (k < 0)
        err_prefix(e, k, "--data");
    if (k == 0)
        origin_set_node(slice_str(s->dir.node_id));
    if (k == 0)
        k = open_control(s, &plan, e);
    if (k == 0)
        k = open_store(s, config, &plan, e);
    if (k == 0)
        k = open_objects(s, config, &plan, e);
    if (k == 0)
        k = open_tls(s, config, e);
    if (k == 0)
        k = start_front(s, config, &plan, e);
    if (k == 0)
        k = start_listeners(s, config, e);
    if (k < 0) {
        server_free(s);
        return k;
    }
    announce(s, began_ns);
    *ret = s;
    return 0;
}

const char *server_ready_line(const struct server *s)
{
    assert(s->magic == SERVER_MAGIC);
    return s->ready_line;
}

void server_set_options(struct server *s, const struct config *config)
{
    assert(s->magic == SERVER_MAGIC && s->front != NULL);
    s->drain_timeout_ms = config->drain_timeout;
    front_set_timeouts(s->front, config->request_timeout, config->idle_timeout);
    reload_tls(s, config);
}

/* Everything that has threads or changes disks, in reverse order of its start. */
static void close_parts(struct server *s)
{
    if (s->front)
        front_stop(s->front);
    front_free(TAKE_PTR(s->front));
    tls_server_free(TAKE_PTR(s->tls));
    s3_free(TAKE_PTR(s->s3));
    jobs_close(TAKE_PTR(s->jobs));
    object_session_free(TAKE_PTR(s->session));
    object_service_close(TAKE_PTR(s->objects));
    store_close(TAKE_PTR(s->store));
    kv_close(TAKE_PTR(s->control));
    seal_free(TAKE_PTR(s->seal));
}

void server_stop(struct server *s)
{
    assert(s->magic == SERVER_MAGIC && s->front != NULL);
    atomic_store(&s->stopping, true);
    object_gate_open(s->objects);
    object_stop_soon(s->objects);
    jobs_stop(s->jobs);
    if (front_drain(s->front, s->drain_timeout_ms) < 0)
        log_warn("server", "%zu connections cut: their requests did not end within --drain-timeout",
                 front_connections(s->front));
    object_stop_now(s->objects);
    close_parts(s);
    (void)sys->unlink(s->dir.socket_path); /* a stale one is replaced by the next start */
    log_info("server", "stopped");
}

void server_free(struct server *s)
{
    if (!s)
        return;
    assert(s->magic == SERVER_MAGIC);
    close_parts(s);
    budget_free(s->buffers);
    budget_free(s->budget);
    data_dir_close(&s->dir);
    free(s->ready_line);
    s->magic = 0;
    free(s);
}

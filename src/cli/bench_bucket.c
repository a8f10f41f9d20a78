/* The target of measurements that is a bucket of a node, over the wire protocol: what libforebay does. */
#include "cli/bench_target.h"

#include "base/sys.h"
#include "client/client_kept.h"
#include "client/client_writer.h"

#define KEY_BYTES  (2 * KIB)
#define FILES_FREE 128   /* descriptors for all else: the calls have theirs, this is to spare */
#define KEPT_MAX   32768 /* files kept open, as libforebay does where the limit of descriptors allows */

struct bucket_state {
    struct client *client;
    struct client_kept *kept;
};

struct bench_conn {
    struct bench_target *t;
    char *block;
};

static struct client *client_of(const struct bench_conn *c)
{
    return ((struct bucket_state *)c->t->state)->client;
}

static int bucket_open(struct bench_target *t, struct err *e)
{
    const struct command_node *n = &t->options->node;
    struct client_options o = {
        .socket_path = n->socket,
        .data_dir = n->data,
        .endpoint = n->endpoint,
        .name = "bench",
        .via = WIRE_VIA_API,
        .timeout_ms = n->timeout_ms,
        .connections = (uint32_t)t->options->connections,
        .idle = (uint32_t)t->options->connections, /* as many as are asked for are there all the time */
    };
    struct client *c;
    int r = client_new(&o, &c, e);
    if (r < 0)
        return r;
    struct bucket_state *s = calloc(1, sizeof(*s));
    assert(s);
    uint64_t files =
        sys_raise_file_limit() - BENCH_FILES_FREE; /* target_open has seen that there are as many */
    files -= t->options->connections * t->ops->files_per_connection;
    *s = (struct bucket_state){
        .client = c,
        .kept = client_kept_new(
            c, (uint32_t)MIN(files - MIN(files / 4, (uint64_t)FILES_FREE), (uint64_t)KEPT_MAX))};
    t->state = s;
    return 0;
}

static void bucket_close(struct bench_target *t)
{
    struct bucket_state *s = t->state;
    if (!s)
        return;
    client_kept_free(s->kept);
    client_free(s->client);
    free(s);
}

static int bucket_connect(struct bench_target *t, struct bench_conn **ret, struct err *e)
{
    struct bench_conn *c = calloc(1, sizeof(*c));
    assert(c);
    c->t = t;
    if (posix_memalign((void **)&c->block, 4096, t->options->block) != 0) {
        free(c);
        return err_set(e, -ENOMEM, "no memory for a block of %llu bytes",
                       (unsigned long long)t->options->block);
    }
    *ret = c;
    return 0;
}

static void bucket_disconnect(struct bench_conn *c)
{
    if (!c)
        return;
    free(c->block);
    free(c);
}

/* The whole key; `room` holds it. */
static int key_of(const struct bench_target *t, const char *key, char room[KEY_BYTES], struct slice *ret,
                  struct err *e)
{
    int n = snprintf(room, KEY_BYTES, "%s%s", t->prefix, key);
    if (n < 0 || (size_t)n >= KEY_BYTES)
        return err_set(e, -ENAMETOOLONG, "%s: too long", key);
    *ret = slice_of(room, (size_t)n);
    return 0;
}

static int bucket_get(struct bench_conn *c, const char *key, uint64_t offset, uint64_t n, bench_sink_fn sink,
                      void *arg, uint64_t *ret_first_ns, struct err *e)
{
    char room[KEY_BYTES];
    struct client_file_open o = {.bucket = slice_str(c->t->root), .offset = offset};
    o.expect = n == UINT64_MAX ? 0 : n;
    int r = key_of(c->t, key, room, &o.key, e);
    if (r < 0)
        return r;
    struct bucket_state *s = c->t->state;
    _cleanup_(client_kept_closep) struct client_kept_file *kept = NULL;
    r = client_kept_open(s->kept, &o, &kept, e);
    if (r < 0)
        return r;
    struct client_file *f = client_kept_of(kept);
    for (uint64_t done = 0; done < n;) {
        size_t want = (size_t)MIN(n - done, c->t->options->block);
        ssize_t got = client_file_pread(f, c->block, want, offset + done, e);
        if (got < 0)
            return (int)got;
        if (got == 0)
            break;
        if (done == 0)
            *ret_first_ns = sys->mono_ns();
        r = sink(arg, offset + done, c->block, (size_t)got);
        if (r < 0)
            return r;
        done += (uint64_t)got;
    }
    return 0;
}

static int bucket_put(struct bench_conn *c, const char *key, uint64_t size, struct pattern p, struct err *e)
{
    char room[KEY_BYTES];
    struct client_writer_open o = {.bucket = slice_str(c->t->root), .size_bytes = size};
    int r = key_of(c->t, key, room, &o.key, e);
    if (r < 0)
        return r;
    _cleanup_(client_writer_freep) struct client_writer *w = NULL;
    r = client_writer_open(client_of(c), &o, &w, e);
    for (uint64_t at = 0; r == 0 && at < size;) {
        size_t n = (size_t)MIN(size - at, c->t->options->block);
        pattern_fill(p, at, c->block, n);
        r = client_writer_write(w, c->block, n, e);
        at += n;
    }
    return r < 0 ? r : client_writer_commit(w, NULL, e);
}

static int bucket_remove(struct bench_conn *c, const char *key, struct err *e)
{
    char room[KEY_BYTES];
    struct wire_remove_req req = {.bucket = slice_str(c->t->root)};
    struct wire_remove_rep rep;
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    int r = key_of(c->t, key, room, &req.key, e);
    r = r < 0 ? r : client_remove(client_of(c), &req, &b, &rep, e);
    return r == -ENOENT ? 0 : r;
}

static int bucket_list(struct bench_conn *c, const char *prefix, bench_entry_fn entry, void *arg,
                       struct err *e)
{
    char room[KEY_BYTES];
    struct client_lister_open o = {.bucket = slice_str(c->t->root)};
    int r = key_of(c->t, prefix, room, &o.prefix, e);
    if (r < 0)
        return r;
    _cleanup_(client_lister_freep) struct client_lister *l = client_lister_new(client_of(c), &o);
    struct wire_entry x;
    while ((r = client_lister_next(l, &x, e)) > 0) {
        r = entry(arg, slice_from(x.key, strlen(c->t->prefix)), x.attr.size_bytes);
        if (r < 0)
            return r;
    }
    return r;
}

const struct bench_target_ops bench_bucket_ops = {
    .kind = "bucket",
    .files_per_connection = 3, /* the socket, and the files of a call */
    .open = bucket_open,
    .close = bucket_close,
    .connect = bucket_connect,
    .disconnect = bucket_disconnect,
    .get = bucket_get,
    .put = bucket_put,
    .remove = bucket_remove,
    .list = bucket_list,
};

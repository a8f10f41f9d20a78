/*
 * The HDFS kind, by WebHDFS: URL, opening, reads.
 *
 *     hdfs://HOST:PORT[/PATH]   http://HOST:PORT/webhdfs/v1/PATH; the port is that of HTTP (9870, HttpFS
 * 14000)
 *
 * origin.endpoint says otherwise where the service is (https, a gateway's path); HOST and PORT then only name
 * it.
 *
 * Keys are as in the file kind: "a/b" is a file below PATH, "a/" a directory without bytes; keys that are no
 * paths are never found and cannot be written. The ETag is made of modification time, length and file id. It
 * is taken before a range is read and again after, and the range is that of the file with this id, so that
 * bytes of a file that was changed or replaced meanwhile are not passed off as one version.
 *
 * Invariants: those of hdfs_request.c; nothing is sent at open.
 *
 * Failure modes: ERR_BAD_OPTION with the option's name; those of web_perform. A directory of the URL that is
 * not there is ERR_ORIGIN_DOWN, never "no such object".
 */
#include "origin/hdfs_internal.h"

#include "base/text.h"

#include <inttypes.h>
#include <pwd.h>

/* ---- reads ---- */

struct reader {
    origin_sink_fn sink;
    void *arg;
    const struct origin_attr *attr;
};

static int on_bytes(void *arg, const void *p, size_t n)
{
    const struct reader *x = arg;
    return x->sink(x->arg, x->attr, p, n);
}

static int check_conditions(const struct origin_get *g, struct slice etag, struct err *e)
{
    if (file_matches(g->if_match, etag))
        return 0;
    return err_set(e, ERR_PRECONDITION, "the file's ETag is " SLICE_FMT " and no longer " SLICE_FMT,
                   SLICE_ARG(etag), SLICE_ARG(g->if_match));
}

static int read_range(struct hdfs *h, const char *path, const struct hdfs_status *st,
                      const struct origin_get *g, const struct origin_attr *attr, origin_sink_fn sink,
                      void *arg, struct err *e)
{
    struct reader x = {sink, arg, attr};
    uint64_t size = attr->size_bytes;
    if (g->offset >= size && g->offset > 0)
        return err_set(e, ERR_RANGE, "offset %" PRIu64 " of a file of %" PRIu64 " bytes", g->offset, size);
    uint64_t n = g->whole || g->n > size - g->offset ? size - g->offset : g->n;
    if (n == 0)
        return sink(arg, attr, NULL, 0);
    int r = hdfs_open_range(h, path, st, g->offset, n, g->cancel, on_bytes, &x, e);
    bool whole = r == 0;
    if (r == 0)
        r = hdfs_check_unchanged(h, path, st, g->cancel, e);
    if (r == ERR_ORIGIN_SHORT && whole && g->if_match.n)
        r = err_set(e, ERR_PRECONDITION, "the file was changed while it was read");
    return r;
}

static int hdfs_get(struct origin *o, const struct origin_get *g, struct arena *a,
                    struct origin_attr *ret_attr, origin_sink_fn sink, void *arg, struct err *e)
{
    struct hdfs *h = hdfs_of(o);
    char path[ORIGIN_KEY_MAX_BYTES + 1];
    struct hdfs_status st;
    bool is_dir;
    if (file_key_path(g->key, path, &is_dir, e) < 0) {
        if (e)
            e->code = -ENOENT;
        return -ENOENT;
    }
    int r = hdfs_stat(h, path, g->cancel, &st, e);
    if (r < 0)
        return r;
    if (is_dir ? !st.is_dir : !st.is_file)
        return err_set(e, -ENOENT, "no such %s", is_dir ? "directory" : "file");
    struct origin_attr attr = hdfs_attr(&st, a);
    r = check_conditions(g, attr.etag, e);
    if (r == 0)
        r = g->attributes_only ? sink(arg, &attr, NULL, 0) : read_range(h, path, &st, g, &attr, sink, arg, e);
    if (r == 0)
        *ret_attr = attr;
    return r;
}

/* "InvalidPathException" of a namenode, for a ':' in a name. */
static int hdfs_takes(struct origin *o, const struct origin_put *p, uint64_t size_bytes, struct err *e)
{
    int r = file_takes(o, p, size_bytes, e);
    return r == 0 && slice_find(p->key, ':') >= 0
               ? err_set(e, -EINVAL, "the key cannot be a path: HDFS has no names with ':'")
               : r;
}

static int hdfs_list(struct origin *o, const struct origin_list *l, struct arena *a, struct origin_page *ret,
                     struct err *e)
{
    return tree_list(&hdfs_of(o)->tree, l, a, ret, e);
}

/* ---- opening ---- */

static void hdfs_free(struct hdfs *h)
{
    if (!h)
        return;
    assert(h->magic == HDFS_MAGIC);
    tree_fini(&h->tree);
    web_fini(&h->web);
    web_endpoint_fini(&h->endpoint);
    if (h->token)
        explicit_bzero(h->token, strlen(h->token));
    free(h->root);
    free(h->user);
    free(h->token);
    h->magic = 0;
    free(h);
}
DEFINE_CLEANUP(struct hdfs, hdfs_free)

static int bad_url(struct err *e, const char *why)
{
    return err_set(e, ERR_BAD_OPTION, "%s; write hdfs://HOST:PORT[/PATH] with the port of WebHDFS (9870)",
                   why);
}

/* The path of the URL, as it is written. */
static int set_root(struct hdfs *h, struct slice path, struct err *e)
{
    char plain[ORIGIN_KEY_MAX_BYTES + 1];
    bool is_dir;
    while (path.n > 0 && path.p[path.n - 1] == '/')
        path.n--;
    if (path.n > 0 && file_key_path(slice_from(path, 1), plain, &is_dir, NULL) < 0)
        return bad_url(e, "the path is none");
    h->root = slice_dup(path);
    return 0;
}

static int set_endpoint(struct hdfs *h, struct slice rest, const struct origin_options *o, struct err *e)
{
    char _cleanup_free_ *url = NULL;
    ssize_t slash = slice_find(rest, '/');
    struct slice host = slash < 0 ? rest : slice_sub(rest, 0, (size_t)slash);
    if (host.n == 0)
        return bad_url(e, "there is no name of a server");
    if (slice_find(rest, '?') >= 0)
        return bad_url(e, "user and token are properties of the bucket (origin.user, "
                          "origin.delegation_token), not of the URL");
    if (!o->endpoint && slice_rfind(host, ':') <= slice_rfind(host, ']'))
        return bad_url(e, "there is no port");
    if (asprintf(&url, "http://" SLICE_FMT, SLICE_ARG(host)) < 0)
        abort();
    int r = web_endpoint_parse(o->endpoint ? o->endpoint : url, o->endpoint ? "origin.endpoint" : "server",
                               "", &h->endpoint, e);
    h->web.loopback = h->endpoint.loopback;
    return r < 0 ? r : set_root(h, slash < 0 ? SLICE_NULL : slice_from(rest, (size_t)slash), e);
}

/* Who asks: a token, else a name. */
static int set_user(struct hdfs *h, const struct origin_options *o, struct err *e)
{
    if (o->delegation_token && o->user)
        return err_set(e, ERR_BAD_OPTION, "origin.user: a delegation token tells who asks; set one of them");
    h->token = web_dup(o->delegation_token);
    if (h->token)
        return 0;
    const char *name = o->user ? o->user : web_env("HADOOP_USER_NAME");
    struct passwd pw, *found = NULL;
    char room[4 * KIB];
    if (!name && getpwuid_r(geteuid(), &pw, room, sizeof(room), &found) == 0 && found)
        name = pw.pw_name;
    h->user = web_dup(name ? name : "forebay");
    return 0;
}

static int hdfs_open(struct slice rest, const struct origin_options *o, struct origin **ret, struct err *e)
{
    struct hdfs *_cleanup_(hdfs_freep) h = calloc(1, sizeof(*h));
    if (!h)
        abort();
    h->magic = HDFS_MAGIC;
    h->base.ops = &origin_hdfs_ops;
    h->base.capabilities = ORIGIN_CAN_RANGE | ORIGIN_CAN_IF_MATCH | ORIGIN_CAN_CONDITIONAL_PUT |
                           ORIGIN_CAN_COPY | ORIGIN_HAS_DIRECTORIES;
    tree_init(&h->tree, hdfs_read_folder, h);
    struct origin_options own = *o; /* a copy reads while it writes: one connection would wait for itself */
    own.connections = MAX(own.connections, (uint64_t)2);
    int r = web_init(&h->web, &hdfs_web_kind, &h->base, &own, e);
    if (r == 0)
        r = set_endpoint(h, rest, o, e);
    if (r == 0)
        r = set_user(h, o, e);
    if (r < 0)
        return r;
    *ret = &TAKE_PTR(h)->base;
    return 0;
}

static int hdfs_identify(struct origin *o, struct buf *b, struct err *e)
{
    const struct hdfs *h = hdfs_of(o);
    (void)e;
    return h->token ? buf_str(b, "origin.delegation_token of the bucket")
                    : buf_printf(b, "none: the service believes the name of the user, %s", h->user);
}

static void hdfs_close(struct origin *o)
{
    hdfs_free(hdfs_of(o));
}

static size_t hdfs_rest(struct origin *o, uint64_t now_ms)
{
    return web_rest(&hdfs_of(o)->web, now_ms);
}

const struct origin_ops origin_hdfs_ops = {
    .scheme = "hdfs",
    .open = hdfs_open,
    .close = hdfs_close,
    .rest = hdfs_rest,
    .identify = hdfs_identify,
    .get = hdfs_get,
    .list = hdfs_list,
    .put = hdfs_put,
    .remove = hdfs_remove,
    .copy = hdfs_copy,
    .takes = hdfs_takes,
};

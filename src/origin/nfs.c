/*
 * The NFS kind: a directory of an NFS server (version 3), without a mount of the kernel. URL, keys and paths,
 * reads. Version 4 is left out: libnfs 4.0 cannot write with it.
 *
 *     nfs://HOST[:PORT]/EXPORT[/DIR]
 *
 *     key        file
 *     a/b.tar    /EXPORT/DIR/a/b.tar
 *     a/         the directory /EXPORT/DIR/a, as an object without bytes
 *
 * The whole path is mounted: the server must have that directory. Keys are as in the file kind: those that
 * are no paths are never found and cannot be written; devices, sockets and pipes are no objects. Links are
 * followed by libnfs, which does not leave the mounted directory.
 *
 * The ETag is made of the file's modification time, size and file id, as the server tells them. It is taken
 * before a range is read and again after, so that bytes of a file that was changed meanwhile are not passed
 * off as one version. (A file changed in place twice within the server's clock tick, with its size kept,
 * shows the same ETag.)
 *
 * Invariants and failure modes: those of nfs_conn.c; errors have the classes of origin.h. A directory that is
 * not there is ERR_ORIGIN_DOWN, never "no such object".
 */
#include "origin/nfs_internal.h"

#include "net/posix_meta.h"

#include <inttypes.h>
#include <sys/stat.h>

/* ---- attributes, paths ---- */

uint64_t nfs_mtime_ns(const struct nfs_stat_64 *st)
{
    return st->nfs_mtime * 1000000000 + st->nfs_mtime_nsec;
}

void nfs_etag(const struct nfs_stat_64 *st, char ret[TREE_ETAG_SIZE])
{
    tree_etag(nfs_mtime_ns(st), st->nfs_size, st->nfs_ino, ret);
}

/* Mode, owner and time as lines. */
static struct slice modes_of(const struct nfs_stat_64 *st, struct arena *a)
{
    struct posix_meta p = {POSIX_HAS_ALL, (uint32_t)st->nfs_mode, (uint32_t)st->nfs_uid,
                           (uint32_t)st->nfs_gid, nfs_mtime_ns(st)};
    _cleanup_buf_ struct buf b = BUF_INIT(POSIX_META_MAX_BYTES);
    int r = posix_meta_encode(&p, &b);
    assert(r == 0);
    return arena_dup(a, buf_view(&b));
}

struct origin_attr nfs_attr(const struct nfs_conn *c, const struct nfs_stat_64 *st, struct arena *a)
{
    char etag[TREE_ETAG_SIZE];
    nfs_etag(st, etag);
    return (struct origin_attr){.size_bytes = S_ISREG(st->nfs_mode) ? st->nfs_size : 0,
                                .mtime_ns = nfs_mtime_ns(st),
                                .etag = arena_dup(a, slice_str(etag)),
                                .meta = nfs_conn_owner(c)->base.posix ? modes_of(st, a) : SLICE_NULL};
}

int nfs_key_path(struct slice key, char ret[NFS_PATH_SIZE], bool *ret_is_dir, struct err *e)
{
    ret[0] = '/';
    return file_key_path(key, ret + 1, ret_is_dir, e);
}

/* ---- reading ---- */

static int check_conditions(const struct origin_get *g, struct slice etag, struct err *e)
{
    if (file_matches(g->if_match, etag))
        return 0;
    return err_set(e, ERR_PRECONDITION, "the file's ETag is " SLICE_FMT " and no longer " SLICE_FMT,
                   SLICE_ARG(etag), SLICE_ARG(g->if_match));
}

/* The bytes of [offset, end) to the sink. */
static int pump(struct nfs_conn *c, struct nfsfh *fh, const struct origin_get *g, uint64_t end,
                const struct origin_attr *attr, origin_sink_fn sink, void *arg, struct err *e)
{
    char _cleanup_free_ *piece = malloc(MAX(MIN(end - g->offset, (uint64_t)NFS_PIECE_BYTES), (uint64_t)1));
    if (!piece)
        return err_set(e, -ENOMEM, "no memory to read");
    for (uint64_t at = g->offset; at < end;) {
        int n = nfs_call_read(c, fh, piece, MIN(end - at, (uint64_t)NFS_PIECE_BYTES), at);
        if (n < 0)
            return nfs_error(c, e, n, "read", g->key);
        if (n == 0)
            return err_set(e, ERR_ORIGIN_SHORT,
                           "the file ended at %" PRIu64 ", %" PRIu64 " bytes were expected", at,
                           attr->size_bytes);
        int r = sink(arg, attr, piece, (size_t)n);
        if (r != 0)
            return r;
        at += (uint64_t)n;
    }
    return g->offset == end ? sink(arg, attr, NULL, 0) : 0;
}

static int check_unchanged(struct nfs_conn *c, struct nfsfh *fh, const struct origin_get *g,
                           struct slice etag, struct err *e)
{
    struct nfs_stat_64 st;
    char now[TREE_ETAG_SIZE];
    int r = nfs_call_fstat(c, fh, &st);
    if (r < 0)
        return nfs_error(c, e, r, "stat", g->key);
    nfs_etag(&st, now);
    if (slice_eq_str(etag, now))
        return 0;
    return err_set(e, g->if_match.n ? ERR_PRECONDITION : ERR_ORIGIN_SHORT,
                   "the file was changed while it was read");
}

static int read_open(struct nfs_conn *c, struct nfsfh *fh, const struct origin_get *g, struct arena *a,
                     struct origin_attr *ret, origin_sink_fn sink, void *arg, struct err *e)
{
    struct nfs_stat_64 st;
    int r = nfs_call_fstat(c, fh, &st);
    if (r < 0)
        return nfs_error(c, e, r, "stat", g->key);
    if (!S_ISREG(st.nfs_mode))
        return err_set(e, -ENOENT, SLICE_FMT " is no file", SLICE_ARG(g->key));
    *ret = nfs_attr(c, &st, a);
    r = check_conditions(g, ret->etag, e);
    if (r < 0)
        return r;
    uint64_t size = ret->size_bytes;
    if (g->offset >= size && g->offset > 0)
        return err_set(e, ERR_RANGE, "offset %" PRIu64 " of a file of %" PRIu64 " bytes", g->offset, size);
    uint64_t end = g->whole || g->n > size - g->offset ? size : g->offset + g->n;
    r = pump(c, fh, g, end, ret, sink, arg, e);
    return r == 0 ? check_unchanged(c, fh, g, ret->etag, e) : r;
}

int nfs_get_file(struct nfs_conn *c, const struct origin_get *g, const char *path, struct arena *a,
                 struct origin_attr *ret, origin_sink_fn sink, void *arg, struct err *e)
{
    struct nfsfh *fh = NULL;
    int r = nfs_call_open(c, path, &fh);
    if (r < 0)
        return r == -EISDIR || r == -EINVAL ? err_set(e, -ENOENT, SLICE_FMT " is no file", SLICE_ARG(g->key))
                                            : nfs_error(c, e, r, "open", g->key);
    r = read_open(c, fh, g, a, ret, sink, arg, e);
    (void)nfs_call_close(c, fh); /* of a file that was read */
    return r;
}

/* Attributes of a file, or a directory as an object. */
static int get_attributes(struct nfs_conn *c, const struct origin_get *g, const char *path, bool is_dir,
                          struct arena *a, struct origin_attr *ret, origin_sink_fn sink, void *arg,
                          struct err *e)
{
    struct nfs_stat_64 st;
    int r = nfs_call_stat(c, path, &st);
    if (r < 0)
        return nfs_error(c, e, r, "stat", g->key);
    if (is_dir ? !S_ISDIR(st.nfs_mode) : !S_ISREG(st.nfs_mode))
        return err_set(e, -ENOENT, SLICE_FMT " is no %s", SLICE_ARG(g->key), is_dir ? "directory" : "file");
    *ret = nfs_attr(c, &st, a);
    r = check_conditions(g, ret->etag, e);
    if (r == 0 && !g->attributes_only && g->offset > 0)
        r = err_set(e, ERR_RANGE, "a directory has no bytes");
    return r < 0 ? r : sink(arg, ret, NULL, 0);
}

static int get(struct nfs *x, const struct origin_get *g, struct arena *a, struct origin_attr *ret,
               origin_sink_fn sink, void *arg, struct err *e)
{
    char path[NFS_PATH_SIZE];
    bool is_dir;
    struct nfs_conn *_cleanup_(nfs_conn_givep) c = NULL;
    if (nfs_key_path(g->key, path, &is_dir, e) < 0) {
        if (e)
            e->code = -ENOENT;
        return -ENOENT;
    }
    int r = nfs_conn_take(x, g->cancel, &c, e);
    if (r < 0)
        return r;
    return g->attributes_only || is_dir ? get_attributes(c, g, path, is_dir, a, ret, sink, arg, e)
                                        : nfs_get_file(c, g, path, a, ret, sink, arg, e);
}

static int nfs_get(struct origin *o, const struct origin_get *g, struct arena *a,
                   struct origin_attr *ret_attr, origin_sink_fn sink, void *arg, struct err *e)
{
    struct origin_attr attr;
    int r = get(nfs_of(o), g, a, &attr, sink, arg, e);
    origin_count_request(o, g->attributes_only ? "head" : "get", err_http_status(r < 0 ? r : 0));
    if (r == 0)
        *ret_attr = attr;
    return r;
}

static int nfs_list(struct origin *o, const struct origin_list *l, struct arena *a, struct origin_page *ret,
                    struct err *e)
{
    int r = tree_list(&nfs_of(o)->tree, l, a, ret, e);
    origin_count_request(o, "list", err_http_status(r < 0 ? r : 0));
    return r;
}

/* ---- opening ---- */

static int bad_url(struct err *e, const char *why)
{
    return err_set(e, ERR_BAD_OPTION, "%s; write nfs://HOST[:PORT]/EXPORT[/DIR]", why);
}

/* What other programs take behind a '?'. */
static int bad_query(struct slice query, struct err *e)
{
    while (query.n > 0) {
        struct slice value = slice_split(&query, '&'), name = slice_split(&value, '=');
        bool is_version = slice_eq_str(name, "version") || slice_eq_str(name, "vers");
        if (is_version && !slice_eq_str(value, "3"))
            return bad_url(e, "version 3 of NFS is spoken, no other: the server must export with it, too");
        if (slice_eq_str(name, "sec") && !slice_eq_str(value, "sys"))
            return bad_url(e,
                           "Kerberos is not spoken: the server must export with sec=sys, and origin.uid and "
                           "origin.gid say who asks");
    }
    return bad_url(
        e, "settings are properties of the bucket (origin.uid, origin.mount_port...), not behind a ?");
}

static bool is_host(struct slice s)
{
    bool good = s.n > 0 && s.n <= 255;
    for (size_t i = 0; i < s.n && good; i++) {
        char c = s.p[i];
        good = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
               c == '-' || c == '_' || c == ':';
    }
    return good;
}

/* "HOST", "HOST:PORT", "[ADDRESS]:PORT". */
static int parse_host(struct slice all, struct slice *ret_host, uint64_t *ret_port, struct err *e)
{
    struct slice host = all, port = SLICE_NULL;
    ssize_t colon;
    if (slice_starts(all, SLICE_LIT("["))) {
        ssize_t end = slice_find(all, ']');
        if (end < 0)
            return bad_url(e, "the address has no ]");
        host = slice_sub(all, 1, (size_t)end - 1);
        port = slice_from(all, (size_t)end + 1);
        if (port.n > 0 && port.p[0] != ':')
            return bad_url(e, "something stands behind the ]");
    } else if ((colon = slice_find(all, ':')) >= 0) {
        host = slice_sub(all, 0, (size_t)colon);
        port = slice_from(all, (size_t)colon);
        if (slice_find(slice_from(port, 1), ':') >= 0)
            return bad_url(e, "an IPv6 address stands in brackets");
    }
    uint64_t n = 0;
    if (port.n > 0 && (slice_u64(slice_from(port, 1), &n) < 0 || n == 0 || n > 65535))
        return bad_url(e, "the port is no number from 1 to 65535");
    if (!is_host(host))
        return bad_url(e, "there is no name of a server");
    *ret_host = host;
    *ret_port = n;
    return 0;
}

int nfs_parse_url(struct slice rest, char **ret_host, uint64_t *ret_port, char **ret_path, struct err *e)
{
    struct slice host = SLICE_NULL;
    uint64_t port = 0;
    ssize_t slash = slice_find(rest, '/');
    struct slice path = slash < 0 ? SLICE_NULL : slice_from(rest, (size_t)slash);
    int r = parse_host(slash < 0 ? rest : slice_sub(rest, 0, (size_t)slash), &host, &port, e);
    if (r < 0)
        return r;
    while (path.n > 1 && path.p[path.n - 1] == '/')
        path.n--;
    if (path.n < 2 || path.n > ORIGIN_KEY_MAX_BYTES || memchr(path.p, '\0', path.n))
        return bad_url(e, "there is no path of an export");
    ssize_t query = slice_find(path, '?');
    if (query >= 0)
        return bad_query(slice_from(path, (size_t)query + 1), e);
    *ret_host = slice_dup(host);
    *ret_path = slice_dup(path);
    *ret_port = port;
    return 0;
}

/* "&NAME=VALUE" when the option is set. */
static int add_id(struct buf *b, const char *name, const char *value, struct err *e)
{
    uint64_t n;
    if (!value || !*value)
        return 0;
    if (slice_u64(slice_str(value), &n) < 0 || n > INT32_MAX)
        return err_set(e, ERR_BAD_OPTION, "origin.%s \"%s\": must be the number of a %s", name, value,
                       name[0] == 'u' ? "user" : "group");
    return buf_printf(b, "&%s=%" PRIu64, name, n);
}

/* What libnfs reads out of a URL; server and path of this one do not count. */
static int make_settings(struct nfs *x, const struct origin_options *o, uint64_t port, struct err *e)
{
    struct buf _cleanup_buf_ b = BUF_INIT(4 * KIB);
    int r = buf_str(&b, "nfs://server/dir?version=3&autoreconnect=0");
    if (r == 0 && port)
        r = buf_printf(&b, "&nfsport=%" PRIu64, port);
    if (r == 0 && o->mount_port)
        r = buf_printf(&b, "&mountport=%" PRIu64, o->mount_port);
    if (r == 0)
        r = add_id(&b, "uid", o->uid, e);
    if (r == 0)
        r = add_id(&b, "gid", o->gid, e);
    if (r == 0)
        x->settings = buf_take(&b);
    return r;
}

static void nfs_free(struct nfs *x)
{
    if (!x)
        return;
    assert(x->magic == NFS_MAGIC);
    nfs_conn_close_all(x);
    tree_fini(&x->tree);
    cond_fini(&x->freed);
    lock_fini(&x->lock);
    free(x->idle);
    free(x->host);
    free(x->path);
    free(x->settings);
    x->magic = 0;
    free(x);
}
DEFINE_CLEANUP(struct nfs, nfs_free)

static struct nfs *nfs_new(const struct origin_options *o)
{
    struct nfs *x = calloc(1, sizeof(*x));
    if (!x)
        abort();
    x->magic = NFS_MAGIC;
    x->base.ops = &origin_nfs_ops;
    x->base.capabilities = ORIGIN_CAN_RANGE | ORIGIN_CAN_IF_MATCH | ORIGIN_CAN_CONDITIONAL_PUT |
                           ORIGIN_CAN_COPY | ORIGIN_HAS_DIRECTORIES | ORIGIN_CAN_MODES;
    x->timeout_ms = o->timeout;
    x->connect_timeout_ms = o->connect_timeout;
    x->limit = o->connections;
    x->idle = calloc(x->limit, sizeof(*x->idle));
    if (!x->idle)
        abort();
    lock_init(&x->lock, LOCK_ORIGIN);
    cond_init(&x->freed);
    tree_init(&x->tree, nfs_read_folder, x);
    return x;
}

static int nfs_open_origin(struct slice rest, const struct origin_options *o, struct origin **ret,
                           struct err *e)
{
    uint64_t port = 0;
    struct nfs *_cleanup_(nfs_freep) x = nfs_new(o);
    int r = nfs_parse_url(rest, &x->host, &port, &x->path, e);
    if (r == 0)
        r = make_settings(x, o, port, e);
    if (r < 0)
        return r;
    *ret = &TAKE_PTR(x)->base;
    return 0;
}

static int nfs_identify(struct origin *o, struct buf *b, struct err *e)
{
    (void)o, (void)e;
    return buf_str(b, "none: the server believes the numbers of user and group");
}

static void nfs_close_origin(struct origin *o)
{
    nfs_free(nfs_of(o));
}

static size_t nfs_rest(struct origin *o, uint64_t now_ms)
{
    return nfs_conn_rest(nfs_of(o), now_ms);
}

const struct origin_ops origin_nfs_ops = {
    .scheme = "nfs",
    .open = nfs_open_origin,
    .close = nfs_close_origin,
    .rest = nfs_rest,
    .identify = nfs_identify,
    .get = nfs_get,
    .list = nfs_list,
    .put = nfs_put,
    .remove = nfs_remove,
    .copy = nfs_copy,
    .takes = file_takes,
};

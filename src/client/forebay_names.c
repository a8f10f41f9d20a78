/* The public API: names, listings and buckets (contract in forebay/forebay.h). */
#include "client/forebay_internal.h"

struct forebay_listing {
    struct client_lister *lister;
    char *key; /* of the entry given last */
};

/* ---- names ---- */

static void stat_of_wire(struct forebay_stat *ret, const struct wire_attr *a)
{
    _cleanup_free_ char *etag = slice_dup(a->etag), *type = slice_dup(a->content_type);
    struct client_attr attr = {
        .size_bytes = a->size_bytes, .mtime_ns = a->mtime_ns, .etag = etag, .content_type = type};
    forebay_stat_fill(ret, &attr);
    ret->is_directory = a->kind == WIRE_DIRECTORY;
}

int forebay_stat(struct forebay *f, const char *bucket, const char *key, struct forebay_stat *ret)
{
    struct err *e = forebay_err_begin();
    struct wire_stat_req req = {.bucket = slice_str(bucket), .key = slice_str(key)};
    struct wire_stat_rep rep;
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    int r = client_stat(f->client, &req, &b, &rep, e);
    if (r == 0)
        stat_of_wire(ret, &rep.attr);
    return forebay_err_end(r);
}

int forebay_remove(struct forebay *f, const char *bucket, const char *key)
{
    struct err *e = forebay_err_begin();
    struct wire_remove_req req = {.bucket = slice_str(bucket), .key = slice_str(key)};
    struct wire_remove_rep rep;
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    return forebay_err_end(client_remove(f->client, &req, &b, &rep, e));
}

int forebay_copy(struct forebay *f, const char *bucket, const char *from, const char *to)
{
    struct err *e = forebay_err_begin();
    struct wire_copy_req req = {.bucket = slice_str(bucket), .from = slice_str(from), .to = slice_str(to)};
    struct wire_copy_rep rep;
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    return forebay_err_end(client_copy(f->client, &req, &b, &rep, e));
}

/* ---- listing ---- */

int forebay_list(struct forebay *f, const char *bucket, const char *prefix, char delimiter,
                 struct forebay_listing **ret)
{
    (void)forebay_err_begin();
    struct client_lister_open o = {
        .bucket = slice_str(bucket), .prefix = slice_str(prefix), .delimiter = delimiter};
    struct forebay_listing *l = calloc(1, sizeof(*l));
    if (!l)
        abort();
    l->lister = client_lister_new(f->client, &o);
    *ret = l;
    return 0;
}

int forebay_list_next(struct forebay_listing *l, const char **ret_key, struct forebay_stat *ret_stat)
{
    struct err *e = forebay_err_begin();
    struct wire_entry entry;
    int r = client_lister_next(l->lister, &entry, e);
    if (r <= 0)
        return forebay_err_end(r);
    free(l->key);
    l->key = slice_dup(entry.key);
    *ret_key = l->key;
    if (ret_stat)
        stat_of_wire(ret_stat, &entry.attr);
    return 1;
}

void forebay_list_close(struct forebay_listing *l)
{
    if (!l)
        return;
    client_lister_free(l->lister);
    free(l->key);
    free(l);
}

/* ---- buckets ---- */

int forebay_bucket_create(struct forebay *f, const char *bucket, const char *settings)
{
    struct err *e = forebay_err_begin();
    struct wire_bucket_create_req req = {.name = slice_str(bucket), .settings = slice_str(settings)};
    struct wire_bucket_create_rep rep;
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    return forebay_err_end(client_bucket_create(f->client, &req, &b, &rep, e));
}

int forebay_bucket_set(struct forebay *f, const char *bucket, const char *settings)
{
    struct err *e = forebay_err_begin();
    struct wire_bucket_set_req req = {.name = slice_str(bucket), .settings = slice_str(settings)};
    struct wire_bucket_set_rep rep;
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    return forebay_err_end(client_bucket_set(f->client, &req, &b, &rep, e));
}

int forebay_bucket_get(struct forebay *f, const char *bucket, char **ret)
{
    struct err *e = forebay_err_begin();
    struct wire_bucket_get_req req = {.name = slice_str(bucket)};
    struct wire_bucket_get_rep rep;
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    int r = client_bucket_get(f->client, &req, &b, &rep, e);
    if (r == 0)
        *ret = slice_dup(rep.settings);
    return forebay_err_end(r);
}

int forebay_bucket_remove(struct forebay *f, const char *bucket)
{
    struct err *e = forebay_err_begin();
    struct wire_bucket_remove_req req = {.name = slice_str(bucket)};
    struct wire_bucket_remove_rep rep;
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    return forebay_err_end(client_bucket_remove(f->client, &req, &b, &rep, e));
}

/* One page; *last is replaced by its last name. Gives what `each` gave, 0 or an error. */
static int bucket_page(struct forebay *f, int (*each)(void *arg, const char *name, const char *origin),
                       void *arg, char **last, bool *ret_more, struct err *e)
{
    struct wire_bucket_list_req req = {.after = slice_str(*last)};
    struct wire_bucket_list_rep rep;
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    int r = client_bucket_list(f->client, &req, &b, &rep, e);
    if (r < 0)
        return r;
    struct wire_bucket w;
    while ((r = wire_bucket_decode(&rep.buckets, &w)) == 0) {
        _cleanup_free_ char *origin = slice_dup(w.origin);
        if (slice_cmp(w.name, slice_str(*last)) <= 0) /* it would never end */
            return err_set(e, ERR_PROTOCOL, "list of buckets does not go on");
        free(*last);
        *last = slice_dup(w.name);
        int stop = each(arg, *last, origin);
        if (stop != 0)
            return stop;
        *ret_more = rep.truncated != 0;
    }
    return r == -ENOENT ? 0 : err_set(e, r, "broken list of buckets");
}

int forebay_bucket_list(struct forebay *f, int (*each)(void *arg, const char *name, const char *origin),
                        void *arg)
{
    struct err *e = forebay_err_begin();
    _cleanup_free_ char *last = slice_dup(SLICE_LIT(""));
    bool more;
    do {
        more = false;
        int r = bucket_page(f, each, arg, &last, &more, e);
        if (r != 0)
            return r < 0 ? forebay_err_end(r) : r;
    } while (more);
    return 0;
}

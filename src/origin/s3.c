/*
 * The S3 kind: opening an origin. Options, the AWS environment and the URL become a `struct s3`, whose
 * strings never change afterwards; requests read them without a lock.
 *
 *     s3://BUCKET[/PREFIX]   endpoint http://10.0.0.5:9000, path style   ->
 * http://10.0.0.5:9000/BUCKET/PREFIX/key no endpoint, region eu-west-1, virtual style ->
 * https://BUCKET.s3.eu-west-1.amazonaws.com/...
 *
 *     forebay://HOST:PORT/BUCKET[/PREFIX]   another node, by its S3 port: http, path style, its keys as
 * credentials
 *
 * A prefix stands for a folder: "s3://b/train" and "s3://b/train/" are the same, keys below it begin behind
 * the slash.
 *
 * Credentials: s3_chain.c says whose.
 *
 * Invariants:
 *  1. path_root is empty or begins with '/' and does not end with one.
 *  2. Nothing is sent at open: a wrong endpoint shows at the first request.
 *
 * Failure modes: ERR_BAD_OPTION with the option's name.
 */
#include "origin/s3_internal.h"

#include "base/log.h"

enum style { STYLE_AUTO, STYLE_PATH, STYLE_VIRTUAL }; /* the choices of origin.style, in their order */

static int use_endpoint(struct s3 *s, const char *url, bool virtual_host, struct err *e)
{
    char _cleanup_free_ *before = NULL;
    if (asprintf(&before, "%s%s", virtual_host ? s->bucket : "", virtual_host ? "." : "") < 0)
        abort();
    int r = web_endpoint_parse(url, "origin.endpoint", before, &s->endpoint, e);
    if (r < 0)
        return r;
    s->service = slice_dup(slice_str(url));
    s->web.loopback = s->endpoint.loopback;
    if (asprintf(&s->path_root, "%s%s%s", s->endpoint.path, virtual_host ? "" : "/",
                 virtual_host ? "" : s->bucket) < 0)
        abort();
    return 0;
}

const char *s3_aws_domain(const char *region)
{
    return strncmp(region, "cn-", 3) == 0     ? "amazonaws.com.cn"
           : strncmp(region, "eusc-", 5) == 0 ? "amazonaws.eu" /* the European Sovereign Cloud */
                                              : "amazonaws.com";
}

/* A bucket name with dots does not match the certificate of *.s3.amazonaws.com, so it takes path style. */
static int set_address(struct s3 *s, const struct origin_options *o, const struct s3_aws *aws, struct err *e)
{
    const char *endpoint = o->endpoint ? o->endpoint : aws->endpoint;
    bool virtual_host =
        o->style == STYLE_VIRTUAL || (o->style == STYLE_AUTO && !endpoint && !strchr(s->bucket, '.'));
    s->tells_trail = endpoint;
    if (endpoint)
        return use_endpoint(s, endpoint, virtual_host, e);
    char _cleanup_free_ *own = NULL;
    if (asprintf(&own, "https://s3.%s.%s", s->region, s3_aws_domain(s->region)) < 0)
        abort();
    return use_endpoint(s, own, virtual_host, e);
}

static bool plain_word(const char *s)
{
    for (; *s; s++)
        if (*s <= ' ' || *s >= 0x7f || *s == '/' || *s == ',')
            return false;
    return true;
}

static int set_region(struct s3 *s, const struct origin_options *o, const struct s3_aws *aws, struct err *e)
{
    const char *region = o->region ? o->region : aws->region ? aws->region : "us-east-1";
    if (!*region || !plain_word(region))
        return err_set(e, ERR_BAD_OPTION, "origin.region \"%s\": not the name of a region", region);
    s->region = slice_dup(slice_str(region));
    return 0;
}

static int set_credentials(struct s3 *s, const struct origin_options *o, const struct s3_aws *aws,
                           struct err *e)
{
    int r = s3_chain_find(o, aws, /* roles= */ s->base.ops == &origin_s3_ops, &s->keys, e);
    if (r < 0)
        return r;
    const char *words[] = {s->keys.fixed.access_key, s->keys.fixed.session_token};
    for (size_t i = 0; i < ARRAY_SIZE(words); i++) {
        for (const char *p = words[i]; p && *p; p++)
            if (*p <= ' ' || *p >= 0x7f)
                return err_set(e, ERR_BAD_OPTION, "the origin's %s has a character that cannot be sent",
                               i == 0 ? "access key" : "session token");
    }
    return 0;
}

static void s3_free(struct s3 *s)
{
    if (!s)
        return;
    assert(s->magic == S3_MAGIC);
    web_fini(&s->web);
    web_endpoint_fini(&s->endpoint);
    s3_chain_fini(&s->keys);
    free(s->bucket);
    free(s->prefix);
    free(s->path_root);
    free(s->service);
    free(s->region);
    free(s->sse_key);
    free(s->view.version);
    free(s->view.key);
    s3_known_free(s->view.known);
    lock_fini(&s->lock);
    s->magic = 0;
    free(s);
}
DEFINE_CLEANUP(struct s3, s3_free)

static int set_version(struct s3 *s, const char *id, struct err *e)
{
    if (strlen(id) > WEB_VERSION_ID_MAX)
        return err_set(e, ERR_BAD_OPTION, "origin.version: longer than any version's id");
    s->view.version = web_dup(id);
    return web_cut_object(s->prefix, &s->view.key, e);
}

static int set_view(struct s3 *s, const struct origin_options *o, struct err *e)
{
    bool has_date = o->as_of && o->as_of[0], has_version = o->version && o->version[0];
    s->view.is_on = has_date || has_version;
    if (has_version)
        return set_version(s, o->version, e);
    if (!has_date)
        return 0;
    s->view.known = s3_known_new();
    return origin_parse_as_of(o, &s->view.as_of_ns, e);
}

/* As other AWS tools do, for an endpoint of their environment or their own. */
static int set_web(struct s3 *s, const struct web_kind *kind, const struct origin_options *o, struct err *e)
{
    const char *bundle = kind == &s3_web_kind && !o->ca_file ? web_env("AWS_CA_BUNDLE") : NULL;
    char _cleanup_free_ *file = web_dup(bundle ? bundle : o->ca_file);
    struct origin_options own = *o;
    own.ca_file = file;
    return web_init(&s->web, kind, &s->base, &own, e);
}

static int set_keeping(struct s3 *s, const struct origin_options *o, struct err *e)
{
    static const char *const names[] = {NULL, "AES256", "aws:kms", "aws:kms:dsse"}; /* as in origin.h */
    bool has_key = o->sse_key && o->sse_key[0];
    s->pays = o->requester_pays;
    s->sse = names[o->sse];
    s->sse_key = has_key ? web_dup(o->sse_key) : NULL;
    if (has_key && (!s->sse || s->sse[0] != 'a'))
        return err_set(e, ERR_BAD_OPTION, "origin.sse_key: is of origin.sse=aws:kms or aws:kms:dsse");
    return 0;
}

static int open_as(const struct origin_ops *ops, struct slice rest, const struct origin_options *o,
                   struct origin **ret, struct err *e)
{
    struct s3 *_cleanup_(s3_freep) s = calloc(1, sizeof(*s));
    if (!s)
        abort();
    s->magic = S3_MAGIC;
    s->base.ops = ops;
    s->base.capabilities = ORIGIN_CAN_RANGE | ORIGIN_CAN_IF_MATCH | ORIGIN_CAN_CONDITIONAL_PUT |
                           ORIGIN_CAN_COPY | ORIGIN_CAN_MULTIPART | ORIGIN_CAN_META | ORIGIN_CAN_PARTS |
                           ORIGIN_SENDS_PARTS | ORIGIN_LOOKS_FIRST;
    lock_init(&s->lock, LOCK_ORIGIN);
    s->part_bytes = o->part_size;
    s->copy_max_bytes = S3_PUT_MAX_BYTES;
    s->copy_part_bytes = GIB / 2;
    struct s3_aws _cleanup_(s3_aws_fini) aws;
    s3_aws_load(o->profile, &aws);
    const struct web_kind *kind = ops == &origin_forebay_ops ? &s3_node_kind : &s3_web_kind;
    int r = set_web(s, kind, o, e);
    if (r == 0)
        r = web_parse_name(rest, "an S3 bucket", "s3://BUCKET/PREFIX", &s->bucket, &s->prefix, e);
    if (r == 0)
        r = set_region(s, o, &aws, e);
    if (r == 0)
        r = set_credentials(s, o, &aws, e);
    if (r == 0)
        r = set_address(s, o, &aws, e);
    if (r == 0)
        r = set_view(s, o, e);
    if (r == 0)
        r = set_keeping(s, o, e);
    if (r < 0)
        return r;
    s->web.sends_tags = kind->is_node || o->tags;
    s->gives_sums = o->checksums && (s->keys.fixed.access_key || s->keys.provider);
    if (s->view.is_on)
        s->web.kind = &s3_view_kind;
    *ret = &TAKE_PTR(s)->base;
    return 0;
}

static int s3_open(struct slice rest, const struct origin_options *o, struct origin **ret, struct err *e)
{
    return open_as(&origin_s3_ops, rest, o, ret, e);
}

/* "HOST:PORT/BUCKET[/PREFIX]": the S3 port of another node; origin.endpoint says otherwise, for example with
 * https. */
static int forebay_open(struct slice rest, const struct origin_options *o, struct origin **ret, struct err *e)
{
    struct slice host = slice_split(&rest, '/');
    char _cleanup_free_ *endpoint = NULL;
    if (host.n == 0 || rest.n == 0)
        return err_set(e, ERR_BAD_OPTION, "write forebay://HOST:PORT/BUCKET[/PREFIX]");
    if (asprintf(&endpoint, "http://" SLICE_FMT, SLICE_ARG(host)) < 0)
        abort();
    struct origin_options own = *o;
    own.endpoint = o->endpoint ? o->endpoint : endpoint;
    own.style = STYLE_PATH;
    return open_as(&origin_forebay_ops, rest, &own, ret, e);
}

static bool is_same(const char *a, const char *b)
{
    return a == b || (a && b && strcmp(a, b) == 0);
}

/* Whose keys somebody gives may have others at another time: only the bucket itself is known to be beside. */
static bool s3_is_beside(const struct origin *o, const struct origin *source)
{
    const struct s3 *s = (const struct s3 *)(const void *)o, *x = (const struct s3 *)(const void *)source;
    const struct s3_credentials *k = &s->keys.fixed, *l = &x->keys.fixed;
    if (o == source)
        return true;
    return !s->keys.provider && !x->keys.provider && is_same(k->access_key, l->access_key) &&
           is_same(k->secret_key, l->secret_key) && is_same(k->session_token, l->session_token) &&
           is_same(s->service, x->service) && is_same(s->region, x->region);
}

static int s3_identify(struct origin *o, struct buf *b, struct err *e)
{
    const struct s3 *s = s3_of(o);
    struct s3_credentials _cleanup_(s3_credentials_fini) k = {0};
    uint64_t version = 0;
    int r = buf_str(b, s->keys.told);
    if (r < 0 || !s->keys.provider)
        return r;
    r = s3_provider_get(s->keys.provider, &k, &version, e);
    return r < 0 || k.access_key ? r : buf_str(b, ", which has none: requests are not signed");
}

static void s3_close(struct origin *o)
{
    s3_free(s3_of(o));
}

static size_t s3_rest(struct origin *o, uint64_t now_ms)
{
    return web_rest(&s3_of(o)->web, now_ms);
}

static int s3_get(struct origin *o, const struct origin_get *g, struct arena *a, struct origin_attr *ret_attr,
                  origin_sink_fn sink, void *arg, struct err *e)
{
    struct s3 *s = s3_of(o);
    int r = web_check_key(s->prefix, g->key, e);
    return r < 0 ? r : web_get(&s->web, g, a, ret_attr, sink, arg, e);
}

static int s3_takes(struct origin *o, const struct origin_put *p, uint64_t size_bytes, struct err *e)
{
    struct s3 *s = s3_of(o);
    (void)size_bytes;
    return web_takes(&s->web, s->prefix, p, e);
}

const struct web_kind s3_web_kind = {
    .version_header = "etag",
    .names_objects = true,
    .meta_prefix = "x-amz-meta-",
    .tells_checksums = true,
    .prepare = s3_request_prepare,
    .refused = s3_request_refused,
    .why = s3_request_why,
};

const struct web_kind s3_view_kind = {
    .version_header = "etag",
    .names_objects = true,
    .meta_prefix = "x-amz-meta-",
    .tells_checksums = true,
    .tells_versions = true,
    .prepare = s3_request_prepare,
    .refused = s3_request_refused,
    .why = s3_request_why,
    .pin = s3_view_pin,
    .check = s3_view_check,
};

const struct web_kind s3_node_kind = {
    .version_header = "etag",
    .meta_prefix = "x-amz-meta-",
    .tells_checksums = true,
    .names_objects = true,
    .is_node = true,
    .prepare = s3_request_prepare,
    .refused = s3_request_refused,
    .why = s3_request_why,
};

const struct origin_ops origin_s3_ops = {
    .scheme = "s3",
    .keeps = ORIGIN_CAN_VERSIONS | ORIGIN_CAN_TAGS,
    .open = s3_open,
    .close = s3_close,
    .rest = s3_rest,
    .identify = s3_identify,
    .get = s3_get,
    .list = s3_list,
    .put = s3_put,
    .remove = s3_remove,
    .copy = s3_copy,
    .takes = s3_takes,
    .set_meta = s3_set_meta,
    .upload_create = s3_upload_create,
    .upload_part = s3_upload_part,
    .upload_complete = s3_upload_complete,
    .upload_abort = s3_upload_abort,
    .has_tag = s3_has_tag,
    .tags = s3_tags,
    .set_tags = s3_set_tags,
    .is_beside = s3_is_beside,
    .copy_from = s3_copy_from,
    .upload_copy = s3_upload_copy,
};

const struct origin_ops origin_forebay_ops = {
    .scheme = "forebay",
    .keeps = ORIGIN_CAN_TAGS,
    .open = forebay_open,
    .close = s3_close,
    .rest = s3_rest,
    .identify = s3_identify,
    .get = s3_get,
    .list = s3_list,
    .put = s3_put,
    .remove = s3_remove,
    .copy = s3_copy,
    .takes = s3_takes,
    .set_meta = s3_set_meta,
    .upload_create = s3_upload_create,
    .upload_part = s3_upload_part,
    .upload_complete = s3_upload_complete,
    .upload_abort = s3_upload_abort,
    .has_tag = s3_has_tag,
    .tags = s3_tags,
    .set_tags = s3_set_tags,
    .is_beside = s3_is_beside,
    .copy_from = s3_copy_from,
    .upload_copy = s3_upload_copy,
};

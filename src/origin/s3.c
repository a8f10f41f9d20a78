/*
 * The S3 kind: opening an origin. Options, the AWS environment and the URL become a `struct s3`, whose
 * strings never change afterwards; requests read them without a lock.
 *
 *     s3://BUCKET[/PREFIX]   endpoint http://10.0.0.5:9000, path style   ->
 * http://10.0.0.5:9000/BUCKET/PREFIX/key no endpoint, region eu-west-1, virtual style ->
 * https://BUCKET.s3.eu-west-1.amazonaws.com/...
 *
 * A prefix stands for a folder: "s3://b/train" and "s3://b/train/" are the same, keys below it begin behind
 * the slash.
 *
 * Credentials: both options, else AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, else the profile AWS_PROFILE
 * of
 * ~/.aws/credentials and ~/.aws/config; anonymous (unsigned requests) when there are none. They are read
 * once, when the origin is opened.
 *
 * Invariants:
 *  1. prefix is empty or ends with '/'; base_url has no slash at its end; path_root is empty or begins with
 * '/' and does not end with one.
 *  2. Nothing is sent at open: a wrong endpoint shows at the first request.
 *
 * Failure modes: ERR_BAD_OPTION with the option's name.
 */
#include "origin/s3_internal.h"

enum style { STYLE_AUTO, STYLE_PATH, STYLE_VIRTUAL }; /* the choices of origin.style, in their order */

#define BUCKET_NAME_MAX 255

static bool valid_bucket(struct slice s)
{
    if (s.n == 0 || s.n > BUCKET_NAME_MAX)
        return false;
    for (size_t i = 0; i < s.n; i++) {
        char c = s.p[i];
        bool good = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
                    c == '-' || c == '_';
        if (!good)
            return false;
    }
    return s.p[0] != '.' && s.p[0] != '-';
}

static int parse_url(struct s3 *s, struct slice rest, struct err *e)
{
    struct slice name = slice_split(&rest, '/');
    if (!valid_bucket(name))
        return err_set(e, ERR_BAD_OPTION,
                       "\"" SLICE_FMT "\" is no name of an S3 bucket; write s3://BUCKET/PREFIX",
                       SLICE_ARG(name));
    if (rest.n > ORIGIN_KEY_MAX_BYTES - 2)
        return err_set(e, ERR_BAD_OPTION, "the prefix is longer than %d bytes", ORIGIN_KEY_MAX_BYTES - 2);
    if (rest.n && memchr(rest.p, '\0', rest.n))
        return err_set(e, ERR_BAD_OPTION, "the prefix has a NUL byte");
    s->bucket = slice_dup(name);
    bool slash = rest.n > 0 && rest.p[rest.n - 1] != '/';
    if (asprintf(&s->prefix, SLICE_FMT "%s", SLICE_ARG(rest), slash ? "/" : "") < 0)
        abort();
    return 0;
}

static void curlu_freep(CURLU **u)
{
    curl_url_cleanup(*u);
}

static void curl_strp(char **p)
{
    curl_free(*p);
}

static bool is_loopback(const char *host)
{
    return strcasecmp(host, "localhost") == 0 || strncmp(host, "127.", 4) == 0 || strcmp(host, "[::1]") == 0;
}

static char *url_part(CURLU *u, CURLUPart part)
{
    char *p = NULL;
    return curl_url_get(u, part, &p, 0) == CURLUE_OK ? p : NULL;
}

/* Fills https, loopback, base_url, host and path_root from scheme, host and path of the endpoint. */
static int use_endpoint(struct s3 *s, const char *endpoint, bool virtual_host, struct err *e)
{
    CURLU *_cleanup_(curlu_freep) u = curl_url();
    if (!u)
        abort();
    bool scheme_ok = strncmp(endpoint, "http://", 7) == 0 || strncmp(endpoint, "https://", 8) == 0;
    if (!scheme_ok || curl_url_set(u, CURLUPART_URL, endpoint, CURLU_PATH_AS_IS) != CURLUE_OK)
        return err_set(e, ERR_BAD_OPTION,
                       "origin.endpoint %s: must be http://HOST[:PORT] or https://HOST[:PORT]", endpoint);
    char *_cleanup_(curl_strp) scheme = url_part(u, CURLUPART_SCHEME);
    char *_cleanup_(curl_strp) host = url_part(u, CURLUPART_HOST);
    char *_cleanup_(curl_strp) port = url_part(u, CURLUPART_PORT);
    char *_cleanup_(curl_strp) path = url_part(u, CURLUPART_PATH);
    char *_cleanup_(curl_strp) user = url_part(u, CURLUPART_USER);
    char *_cleanup_(curl_strp) query = url_part(u, CURLUPART_QUERY);
    if (!scheme || !host || user || query)
        return err_set(e, ERR_BAD_OPTION, "origin.endpoint %s: must have neither user nor query", endpoint);
    s->https = strcmp(scheme, "https") == 0;
    s->loopback = is_loopback(host);
    bool default_port = port && strcmp(port, s->https ? "443" : "80") == 0;
    bool show_port = port && !default_port;
    struct slice root = slice_str(path);
    while (root.n > 0 && root.p[root.n - 1] == '/')
        root.n--;
    if (asprintf(&s->host, "%s%s%s%s%s", virtual_host ? s->bucket : "", virtual_host ? "." : "", host,
                 show_port ? ":" : "", show_port ? port : "") < 0 ||
        asprintf(&s->base_url, "%s://%s", scheme, s->host) < 0 ||
        asprintf(&s->path_root, SLICE_FMT "%s%s", SLICE_ARG(root), virtual_host ? "" : "/",
                 virtual_host ? "" : s->bucket) < 0)
        abort();
    return 0;
}

/* A bucket name with dots does not match the certificate of *.s3.amazonaws.com, so it takes path style. */
static int set_address(struct s3 *s, const struct origin_options *o, const struct s3_aws *aws, struct err *e)
{
    const char *endpoint = o->endpoint ? o->endpoint : aws->endpoint;
    bool virtual_host =
        o->style == STYLE_VIRTUAL || (o->style == STYLE_AUTO && !endpoint && !strchr(s->bucket, '.'));
    if (endpoint)
        return use_endpoint(s, endpoint, virtual_host, e);
    char _cleanup_free_ *own = NULL;
    bool china = strncmp(s->region, "cn-", 3) == 0;
    if (asprintf(&own, "https://s3.%s.amazonaws.com%s", s->region, china ? ".cn" : "") < 0)
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

static char *dup_or_null(const char *s)
{
    return s ? slice_dup(slice_str(s)) : NULL;
}

static int set_credentials(struct s3 *s, const struct origin_options *o, struct s3_aws *aws, struct err *e)
{
    if (!o->access_key != !o->secret_key)
        return err_set(e, ERR_BAD_OPTION, "%s is set without %s",
                       o->access_key ? "origin.access_key" : "origin.secret_key",
                       o->access_key ? "origin.secret_key" : "origin.access_key");
    if (o->access_key) {
        s->credentials = (struct s3_credentials){dup_or_null(o->access_key), dup_or_null(o->secret_key),
                                                 dup_or_null(o->session_token)};
    } else {
        s->credentials = aws->credentials;
        aws->credentials = (struct s3_credentials){0};
    }
    const char *words[] = {s->credentials.access_key, s->credentials.session_token};
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
    assert(s->magic == S3_MAGIC && s->in_use == 0);
    s3_conn_close_all(s);
    s3_credentials_fini(&s->credentials);
    free(s->bucket);
    free(s->prefix);
    free(s->base_url);
    free(s->host);
    free(s->path_root);
    free(s->region);
    free(s->ca_file);
    free(s->idle);
    cond_fini(&s->freed);
    lock_fini(&s->lock);
    s->magic = 0;
    free(s);
}
DEFINE_CLEANUP(struct s3, s3_free)

static int s3_open(struct slice rest, const struct origin_options *o, struct origin **ret, struct err *e)
{
    int r = s3_conn_global(e);
    if (r < 0)
        return r;
    struct s3 *_cleanup_(s3_freep) s = calloc(1, sizeof(*s));
    if (!s)
        abort();
    s->magic = S3_MAGIC;
    s->base.ops = &origin_s3_ops;
    s->base.capabilities = ORIGIN_CAN_RANGE | ORIGIN_CAN_IF_MATCH | ORIGIN_CAN_CONDITIONAL_PUT |
                           ORIGIN_CAN_COPY | ORIGIN_CAN_MULTIPART | ORIGIN_CAN_META;
    lock_init(&s->lock, LOCK_ORIGIN);
    cond_init(&s->freed);
    s->timeout_ms = o->timeout;
    s->connect_timeout_ms = o->connect_timeout;
    s->part_bytes = o->part_size;
    s->copy_max_bytes = S3_PUT_MAX_BYTES;
    s->copy_part_bytes = GIB / 2;
    s->limit = o->connections;
    s->idle = calloc(s->limit, sizeof(struct s3_conn *));
    if (!s->idle)
        abort();
    s->ca_file = dup_or_null(o->ca_file);
    struct s3_aws _cleanup_(s3_aws_fini) aws;
    s3_aws_load(&aws);
    r = parse_url(s, rest, e);
    if (r == 0)
        r = set_region(s, o, &aws, e);
    if (r == 0)
        r = set_credentials(s, o, &aws, e);
    if (r == 0)
        r = set_address(s, o, &aws, e);
    if (r < 0)
        return r;
    *ret = &TAKE_PTR(s)->base;
    return 0;
}

static void s3_close(struct origin *o)
{
    s3_free(s3_of(o));
}

int s3_check_key(const struct s3 *s, struct slice key, struct err *e)
{
    if (key.n == 0)
        return err_set(e, -EINVAL, "an empty key");
    if (strlen(s->prefix) + key.n > ORIGIN_KEY_MAX_BYTES)
        return err_set(e, -ENAMETOOLONG, "a key of %zu bytes with the prefix; S3 allows %d",
                       strlen(s->prefix) + key.n, ORIGIN_KEY_MAX_BYTES);
    return 0;
}

const struct origin_ops origin_s3_ops = {
    .scheme = "s3",
    .open = s3_open,
    .close = s3_close,
    .get = s3_get,
    .list = s3_list,
    .put = s3_put,
    .remove = s3_remove,
    .copy = s3_copy,
};

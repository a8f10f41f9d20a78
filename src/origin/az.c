/*
 * The Azure Blob kind: opening an origin, reads.
 *
 *     az://CONTAINER[/PREFIX]   https://ACCOUNT.blob.core.windows.net, or origin.endpoint with the account in
 * its path where the service has it there ("http://127.0.0.1:10000/devstoreaccount1")
 *
 * Credentials, the first that is said: origin.account_key, origin.sas; AZURE_STORAGE_KEY,
 * AZURE_STORAGE_SAS_TOKEN; those of AZURE_STORAGE_CONNECTION_STRING; the identity of a client, pod or machine
 * (az_token.c, which origin.metadata_endpoint puts before the environment); else anonymous. The account:
 * origin.account, AZURE_STORAGE_ACCOUNT, the connection string.
 *
 * An account with a hierarchical namespace (Data Lake Storage) has a blob without bytes for each of its
 * directories, "a" beside "a/b", and Hadoop, blobfuse and azcopy write such ones elsewhere. They are no
 * objects: as files they would hide what lies below them.
 *
 * Invariants: nothing is sent at open; secrets are wiped when the origin is closed.
 *
 * Failure modes: ERR_BAD_OPTION with the option's name.
 */
#include "origin/az_internal.h"

#include "base/text.h"
#include "origin/meta.h"

#define DEFAULT_SUFFIX "core.windows.net"
#define PARTS_MAX      254 /* of a name, between its slashes */

/* Heap copies of what was said; NULL where nothing was. */
struct said {
    char *account, *key, *sas, *endpoint;
    const char *from; /* where key or signature are from; NULL: nowhere */
};

static void said_fini(struct said *s)
{
    char *all[] = {s->account, s->key, s->sas, s->endpoint};
    for (size_t i = 0; i < ARRAY_SIZE(all); i++) {
        if (all[i])
            explicit_bzero(all[i], strlen(all[i]));
        free(all[i]);
    }
}

static void set_if_empty(char **to, struct slice v)
{
    if (!*to && v.n)
        *to = slice_dup(v);
}

/* "AccountName=a;AccountKey=k==;BlobEndpoint=http://..." */
static void from_connection_string(struct said *s, struct slice text)
{
    struct slice scheme = SLICE_LIT("https"), suffix = SLICE_LIT(DEFAULT_SUFFIX), name = SLICE_NULL;
    while (text.n > 0) {
        struct slice value = slice_split(&text, ';'), key = slice_trim(slice_split(&value, '='));
        if (slice_eq_str(key, "AccountName"))
            name = value;
        else if (slice_eq_str(key, "AccountKey") && !s->sas)
            set_if_empty(&s->key, value);
        else if (slice_eq_str(key, "SharedAccessSignature") && !s->key)
            set_if_empty(&s->sas, value);
        else if (slice_eq_str(key, "BlobEndpoint"))
            set_if_empty(&s->endpoint, value);
        else if (slice_eq_str(key, "DefaultEndpointsProtocol"))
            scheme = value;
        else if (slice_eq_str(key, "EndpointSuffix"))
            suffix = value;
    }
    set_if_empty(&s->account, name);
    if (!s->endpoint && name.n &&
        asprintf(&s->endpoint, SLICE_FMT "://" SLICE_FMT ".blob." SLICE_FMT, SLICE_ARG(scheme),
                 SLICE_ARG(name), SLICE_ARG(suffix)) < 0)
        abort();
}

/* Credentials of one place never join those of another. */
static void gather(const struct origin_options *o, struct said *s)
{
    s->endpoint = web_dup(o->endpoint);
    s->account = web_dup(o->account ? o->account : web_env("AZURE_STORAGE_ACCOUNT"));
    s->key = web_dup(o->account_key);
    s->sas = web_dup(o->sas);
    s->from = s->key ? "origin.account_key of the bucket" : s->sas ? "origin.sas of the bucket" : NULL;
    if (s->from || o->metadata_endpoint || o->anonymous)
        return;
    s->key = web_dup(web_env("AZURE_STORAGE_KEY"));
    s->sas = s->key ? NULL : web_dup(web_env("AZURE_STORAGE_SAS_TOKEN"));
    s->from = s->key   ? "AZURE_STORAGE_KEY of the environment"
              : s->sas ? "AZURE_STORAGE_SAS_TOKEN of the environment"
                       : NULL;
    const char *connection = web_env("AZURE_STORAGE_CONNECTION_STRING");
    if (connection && !s->key && !s->sas && !o->account && !o->endpoint)
        from_connection_string(s, slice_str(connection));
    if (!s->from && (s->key || s->sas))
        s->from = "AZURE_STORAGE_CONNECTION_STRING of the environment";
}

static bool valid_account(const char *s)
{
    size_t n = strlen(s);
    for (size_t i = 0; i < n; i++)
        if (!((s[i] >= 'a' && s[i] <= 'z') || (s[i] >= '0' && s[i] <= '9') || s[i] == '-'))
            return false;
    return n > 0 && n <= 63;
}

static int set_credentials(struct az *z, const struct said *s, struct err *e)
{
    if (s->account && !valid_account(s->account))
        return err_set(e, ERR_BAD_OPTION, "origin.account \"%s\": not the name of a storage account",
                       s->account);
    z->account = web_dup(s->account);
    if (s->key) {
        struct buf _cleanup_buf_ key = BUF_INIT(AZ_KEY_MAX);
        if (!s->account)
            return err_set(e, ERR_BAD_OPTION, "origin.account_key is set without origin.account");
        int r = text_unbase64(&key, slice_trim(slice_str(s->key)));
        if (r == 0 && key.n > 0) {
            memcpy(z->key, key.p, key.n);
            z->key_n = key.n;
        }
        if (key.p)
            explicit_bzero(key.p, key.n);
        return z->key_n ? 0
                        : err_set(e, ERR_BAD_OPTION, "origin.account_key: no base64 of at most %d bytes",
                                  AZ_KEY_MAX);
    }
    if (s->sas) {
        struct slice sas = slice_trim(slice_str(s->sas));
        if (slice_starts(sas, SLICE_LIT("?")))
            sas = slice_from(sas, 1);
        for (size_t i = 0; i < sas.n; i++)
            if (sas.p[i] <= ' ' || sas.p[i] >= 0x7f || sas.p[i] == '#')
                return err_set(e, ERR_BAD_OPTION, "origin.sas: has a character that no query can have");
        if (slice_find_slice(sas, SLICE_LIT("sig=")) < 0)
            return err_set(e, ERR_BAD_OPTION,
                           "origin.sas: has no sig=; give the whole query of the signature");
        z->sas = slice_dup(sas);
    }
    return 0;
}

static int set_endpoint(struct az *z, const struct said *s, struct err *e)
{
    char _cleanup_free_ *own = NULL;
    if (!s->endpoint && !s->account)
        return err_set(e, ERR_BAD_OPTION, "an az:// origin needs origin.account, or AZURE_STORAGE_ACCOUNT");
    if (!s->endpoint && asprintf(&own, "https://%s.blob." DEFAULT_SUFFIX, s->account) < 0)
        abort();
    int r = web_endpoint_parse(own ? own : s->endpoint, "origin.endpoint", "", &z->endpoint, e);
    z->web.loopback = z->endpoint.loopback;
    return r;
}

static void az_free(struct az *z)
{
    if (!z)
        return;
    assert(z->magic == AZ_MAGIC);
    web_fini(&z->web);
    web_endpoint_fini(&z->endpoint);
    az_hints_fini(&z->hints);
    az_token_free(z->token);
    if (z->sas)
        explicit_bzero(z->sas, strlen(z->sas));
    free(z->sas);
    free(z->account);
    free(z->container);
    free(z->prefix);
    free(z->version);
    free(z->version_key);
    explicit_bzero(z, sizeof(*z));
    free(z);
}
DEFINE_CLEANUP(struct az, az_free)

static int az_open(struct slice rest, const struct origin_options *o, struct origin **ret, struct err *e)
{
    struct az *_cleanup_(az_freep) z = calloc(1, sizeof(*z));
    if (!z)
        abort();
    z->magic = AZ_MAGIC;
    z->base.ops = &origin_az_ops;
    z->base.capabilities = ORIGIN_CAN_RANGE | ORIGIN_CAN_IF_MATCH | ORIGIN_CAN_CONDITIONAL_PUT |
                           ORIGIN_CAN_COPY | ORIGIN_CAN_MULTIPART | ORIGIN_CAN_META | ORIGIN_SENDS_PARTS;
    z->part_bytes = o->part_size;
    az_hints_init(&z->hints);
    struct said _cleanup_(said_fini) s = {0};
    gather(o, &s);
    z->told = s.from;
    int r = web_init(&z->web, &az_web_kind, &z->base, o, e);
    if (r == 0)
        r = web_parse_name(rest, "a container", "az://CONTAINER/PREFIX", &z->container, &z->prefix, e);
    if (r == 0)
        r = az_view_open(z, o, e);
    if (r == 0)
        r = set_credentials(z, &s, e);
    if (r == 0)
        r = set_endpoint(z, &s, e);
    if (r == 0 && !z->key_n && !z->sas && !o->anonymous)
        r = az_token_new(o, &z->endpoint, &z->token, e);
    if (r < 0)
        return r;
    if (z->version)
        z->web.kind = &az_view_kind;
    *ret = &TAKE_PTR(z)->base;
    return 0;
}

static int az_identify(struct origin *o, struct buf *b, struct err *e)
{
    const struct az *z = az_of(o);
    if (!z->token)
        return buf_str(b, z->told ? z->told : "none: requests are anonymous");
    struct buf _cleanup_buf_ token = BUF_INIT(WEB_RESULT_MAX);
    uint64_t version;
    int r = az_token_get(z->token, &token, &version, e);
    return r < 0 ? r : web_token_tell(az_token_told(z->token), &token, b);
}

static void az_close(struct origin *o)
{
    az_free(az_of(o));
}

static size_t az_rest(struct origin *o, uint64_t now_ms)
{
    return web_rest(&az_of(o)->web, now_ms);
}

/* However it is encoded: the service reads a backslash as a slash and follows "." and "..". */
static bool is_taken_for_another(struct slice key)
{
    return slice_find(key, '\\') >= 0 || web_leads_away(key);
}

int az_check_key(const struct az *z, struct slice key, struct err *e)
{
    int r = web_check_key(z->prefix, key, e);
    return r == 0 && is_taken_for_another(key) ? err_set(e, -ENOENT, "no blob can have that name") : r;
}

/* U+0000 to U+001F and U+0080 to U+009F, of what is UTF-8. */
static bool has_controls(struct slice key)
{
    for (size_t i = 0; i < key.n; i++) {
        unsigned char c = (unsigned char)key.p[i], next = i + 1 < key.n ? (unsigned char)key.p[i + 1] : 0;
        if (c < 0x20 || (c == 0xc2 && next < 0xa0))
            return true;
    }
    return false;
}

static size_t count_parts(struct slice path)
{
    size_t n = 0;
    for (; path.n > 0; n++)
        (void)slice_split(&path, '/');
    return n;
}

int az_check_written(const struct az *z, struct slice key, struct err *e)
{
    bool taken = is_taken_for_another(key);
    int r = web_check_key(z->prefix, key, e);
    for (struct slice rest = key; rest.n > 0 && !taken;)
        taken = slice_ends(slice_split(&rest, '/'), SLICE_LIT("."));
    if (r < 0)
        return r;
    if (taken)
        return err_set(e, -EINVAL,
                       "the service would take the name for another one: it has a backslash, "
                       "\".\", \"..\", or a dot at the end of a part");
    if (has_controls(key)) /* which emulators take */
        return err_set(e, -EINVAL, "the service has no blobs with control characters in their names");
    return count_parts(slice_str(z->prefix)) + count_parts(key) > PARTS_MAX
               ? err_set(e, -ENAMETOOLONG, "a name of more than %d parts with the prefix", PARTS_MAX)
               : 0;
}

static int az_get(struct origin *o, const struct origin_get *g, struct arena *a, struct origin_attr *ret_attr,
                  origin_sink_fn sink, void *arg, struct err *e)
{
    struct az *z = az_of(o);
    int r = az_check_key(z, g->key, e);
    return r < 0 ? r : web_get(&z->web, g, a, ret_attr, sink, arg, e);
}

static int check_object(const struct web_call *c, struct err *e)
{
    const struct web_response *r = &c->response;
    struct slice said = meta_get(buf_view(&r->meta), "x-amz-meta-" AZ_FOLDER);
    if (web_response_attr(r).size_bytes > 0 || !slice_eq_case(said, SLICE_LIT("true")))
        return 0;
    return err_set(e, -ENOENT, "%d: no object, but a directory", r->status);
}

const struct web_kind az_web_kind = {
    .version_header = "etag",
    .names_objects = true,
    .meta_prefix = "x-ms-meta-",
    .prepare = az_request_prepare,
    .refused = az_request_refused,
    .check = check_object,
};

const struct web_kind az_view_kind = {
    .version_header = "etag",
    .names_objects = true,
    .meta_prefix = "x-ms-meta-",
    .tells_versions = true,
    .prepare = az_request_prepare,
    .refused = az_request_refused,
    .pin = az_view_pin,
    .check = az_view_check,
};

const struct origin_ops origin_az_ops = {
    .scheme = "az",
    .keeps = ORIGIN_CAN_VERSIONS,
    .open = az_open,
    .close = az_close,
    .rest = az_rest,
    .identify = az_identify,
    .get = az_get,
    .list = az_list,
    .put = az_put,
    .remove = az_remove,
    .copy = az_copy,
    .takes = az_takes,
    .set_meta = az_set_meta,
    .upload_create = az_upload_create,
    .upload_part = az_upload_part,
    .upload_complete = az_upload_complete,
    .upload_abort = az_upload_abort,
};

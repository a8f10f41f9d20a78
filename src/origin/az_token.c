/*
 * Access tokens of Azure: identities that a machine or a pod is given, so that no key stands anywhere.
 *
 *     client              AZURE_CLIENT_SECRET with AZURE_TENANT_ID and AZURE_CLIENT_ID is posted to
 *                         AZURE_AUTHORITY_HOST
 *     workload identity   the assertion in AZURE_FEDERATED_TOKEN_FILE is posted to AZURE_AUTHORITY_HOST for
 *                         AZURE_TENANT_ID and AZURE_CLIENT_ID (kubernetes); the file is read anew each time
 *     managed identity    IDENTITY_ENDPOINT is asked, with IDENTITY_HEADER, where a container has them; else
 * the instance metadata service is asked; origin.metadata_endpoint, AZURE_POD_IDENTITY_AUTHORITY_HOST, or a
 * machine of that cloud; of several identities the one of AZURE_CLIENT_ID
 *
 * Invariants:
 *  1. Tokens and assertions are never printed: errors carry the service's words only.
 *  2. An identity that nobody named for the bucket is used over https only, so that no token leaks to a test
 *     server; or when whoever gives it is on this machine, too.
 *  3. Those of web_renew.c.
 *
 * Failure modes: ERR_BAD_OPTION for settings that are incomplete; ERR_ORIGIN_DENIED when the identity is
 * refused; those of web_renew.c. A machine without an identity has no token: requests are then anonymous.
 */
#include "origin/az_internal.h"

#include "base/text.h"

#include <jansson.h>

#define ASSERTION_MAX (64 * KIB)
#define RESOURCE      "https://storage.azure.com/"
#define AUTHORITY     "https://login.microsoftonline.com"
#define SERVICE       "http://169.254.169.254"
#define SERVICE_PATH                                                                                         \
    "/metadata/identity/oauth2/token?api-version=2018-02-01&resource=https%3A%2F%2Fstorage.azure.com%2F"
#define CONTAINER_QUERY "?api-version=2019-08-01&resource=https%3A%2F%2Fstorage.azure.com%2F"
#define GRANT_TYPE      "client_credentials"
#define ASSERTION_TYPE  "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
#define TAG_FILE        "/sys/class/dmi/id/chassis_asset_tag"
#define TAG             "7783-7084-3265-9085-8269-3286-77" /* of every machine of that cloud */
#define CONNECT_MS      1000
#define TIMEOUT_MS      10000

struct az_token {
    struct web web;
    char *uri;            /* where tokens are asked for */
    char *assertion_file; /* of a workload; NULL with ... */
    char *secret;         /* of a client; both NULL: a managed identity */
    char *identity;       /* the client */
    char *header;         /* what a container's service wants to hear; NULL: it is a machine's */
    char *told;
    struct web_renewed renewed; /* the token's text */
};

static struct az_token *of_web(struct web *w)
{
    return container_of(w, struct az_token, web);
}

static bool is_posted(const struct az_token *t)
{
    return t->assertion_file || t->secret;
}

/* ---- asking ---- */

static int prepare(struct web_call *c, struct web_request *q, struct err *e)
{
    const struct az_token *t = of_web(c->web);
    if (buf_str(&q->url, t->uri) < 0)
        return err_set(e, -ENAMETOOLONG, "the token service's address is too long");
    return web_request_headers(c, q, e);
}

/* {"error": "...", "error_description": "..."} of both services. */
static int refused(struct web_call *c, struct err *e)
{
    char code[64] = "", message[200] = "";
    struct slice body = buf_view(&c->error_body);
    json_t *j = web_json(body, 0, NULL);
    web_error_text(code, sizeof(code), slice_str(json_string_value(json_object_get(j, "error"))));
    struct slice said = slice_str(json_string_value(json_object_get(j, "error_description")));
    web_error_line(said.n ? said : body, message, sizeof(message));
    json_decref(j);
    int status = c->response.status, class = web_error_class(status);
    if (!is_posted(of_web(c->web)) && status == 400 && strstr(message, "Identity not found"))
        class = -ENOENT;                     /* the machine has none */
    else if (status == 404 || status == 410) /* it is being updated, as its documentation says */
        class = ERR_ORIGIN_FAILED;
    else if (status >= 400 && status < 500 && class == ERR_ORIGIN_REFUSED)
        class = ERR_ORIGIN_DENIED;
    return web_error_set(e, class, &c->response, code, message);
}

static const struct web_kind web_kind = {
    .version_header = "etag", .meta_prefix = "x-amz-meta-", .prepare = prepare, .refused = refused};

int az_token_form(const char *assertion_file, const char *identity, struct buf *form, struct err *e)
{
    char _cleanup_free_ *text = NULL;
    size_t n = 0;
    int r = sys_read_file(assertion_file, ASSERTION_MAX, &text, &n);
    if (r < 0)
        return err_set(e, ERR_ORIGIN_DENIED, "AZURE_FEDERATED_TOKEN_FILE %s: %s", assertion_file,
                       err_text(r));
    r = web_form_pair(form, "client_id", slice_str(identity));
    if (r == 0)
        r = web_form_pair(form, "scope", SLICE_LIT(RESOURCE ".default"));
    if (r == 0)
        r = web_form_pair(form, "grant_type", SLICE_LIT(GRANT_TYPE));
    if (r == 0)
        r = web_form_pair(form, "client_assertion_type", SLICE_LIT(ASSERTION_TYPE));
    if (r == 0)
        r = web_form_pair(form, "client_assertion", slice_trim(slice_of(text, n)));
    explicit_bzero(text, n);
    return r < 0 ? err_set(e, r, "AZURE_FEDERATED_TOKEN_FILE %s: longer than any assertion", assertion_file)
                 : 0;
}

static int secret_form(const struct az_token *t, struct buf *form, struct err *e)
{
    int r = web_form_pair(form, "client_id", slice_str(t->identity));
    if (r == 0)
        r = web_form_pair(form, "scope", SLICE_LIT(RESOURCE ".default"));
    if (r == 0)
        r = web_form_pair(form, "grant_type", SLICE_LIT(GRANT_TYPE));
    if (r == 0)
        r = web_form_pair(form, "client_secret", slice_str(t->secret));
    return r < 0 ? err_set(e, r, "AZURE_CLIENT_SECRET: longer than any secret") : 0;
}

static int ask(void *arg, void **ret, uint64_t *ret_life_ms, struct err *e)
{
    struct az_token *t = arg;
    struct buf _cleanup_buf_ form = BUF_INIT(4 * ASSERTION_MAX);
    bool posts = is_posted(t);
    struct web_token_ask q = {.uri = t->uri,
                              .form = posts ? &form : NULL,
                              .header = t->header ? SLICE_LIT("x-identity-header") : SLICE_LIT("metadata"),
                              .header_value = t->header ? slice_str(t->header) : SLICE_LIT("true")};
    int r = t->assertion_file ? az_token_form(t->assertion_file, t->identity, &form, e)
            : t->secret       ? secret_form(t, &form, e)
                              : 0;
    if (r == 0)
        return web_token_ask(&t->web, &q, ret, ret_life_ms, e);
    web_wipe(&form);
    return web_error_of_credentials(err_prefix(e, r, "access token from %s", t->uri), e);
}

static const struct web_renewed_kind renewed_kind = {
    .ask = ask, .copy = web_token_copy, .free = web_token_free};

int az_token_get(struct az_token *t, struct buf *b, uint64_t *ret_version, struct err *e)
{
    return web_renewed_get(&t->renewed, b, ret_version, e);
}

void az_token_drop(struct az_token *t, uint64_t version)
{
    web_renewed_drop(&t->renewed, version);
}

/* ---- finding ---- */

void az_token_free(struct az_token *t)
{
    if (!t)
        return;
    web_fini(&t->web);
    web_renewed_fini(&t->renewed);
    free(t->uri);
    if (t->secret)
        explicit_bzero(t->secret, strlen(t->secret));
    free(t->secret);
    if (t->header)
        explicit_bzero(t->header, strlen(t->header));
    free(t->header);
    free(t->told);
    free(t->assertion_file);
    free(t->identity);
    free(t);
}
DEFINE_CLEANUP(struct az_token, az_token_free)

static char *without_slashes(const char *s)
{
    char *own = web_dup(s);
    for (size_t n = own ? strlen(own) : 0; n > 0 && own[n - 1] == '/'; n--)
        own[n - 1] = '\0';
    return own;
}

/* "BASE/metadata/..." with the identity that is meant; NULL: no service is known. */
static char *service_uri(const char *named)
{
    struct buf _cleanup_buf_ b = BUF_INIT(WEB_URL_MAX);
    const char *other = web_env("AZURE_POD_IDENTITY_AUTHORITY_HOST"), *identity = web_env("AZURE_CLIENT_ID");
    char _cleanup_free_ *base = without_slashes(named                                        ? named
                                                : other                                      ? other
                                                : web_machine_says(TAG_FILE, SLICE_LIT(TAG)) ? SERVICE
                                                                                             : NULL);
    if (!base)
        return NULL;
    int r = buf_str(&b, base);
    if (r == 0)
        r = buf_str(&b, SERVICE_PATH);
    if (r == 0 && identity)
        r = web_form_pair(&b, "client_id", slice_str(identity));
    return r < 0 ? NULL : slice_dup(buf_view(&b));
}

/* What a container is given (App Service, Container Apps); false when it is not. */
static bool find_container(struct az_token *t)
{
    struct buf _cleanup_buf_ b = BUF_INIT(WEB_URL_MAX);
    const char *service = web_env("IDENTITY_ENDPOINT"), *header = web_env("IDENTITY_HEADER");
    const char *identity = web_env("AZURE_CLIENT_ID");
    if (!service || !header)
        return false;
    int r = buf_printf(&b, "%s%s", service, CONTAINER_QUERY);
    if (r == 0 && identity)
        r = web_form_pair(&b, "client_id", slice_str(identity));
    if (r < 0)
        return false;
    t->uri = slice_dup(buf_view(&b));
    t->header = web_dup(header);
    return true;
}

/* What a client or a pod is given; false when neither is. */
static int find_posted(struct az_token *t, bool *ret, struct err *e)
{
    const char *file = web_env("AZURE_FEDERATED_TOKEN_FILE"), *host = web_env("AZURE_AUTHORITY_HOST");
    const char *identity = web_env("AZURE_CLIENT_ID"), *tenant = web_env("AZURE_TENANT_ID");
    const char *secret = identity && tenant ? web_env("AZURE_CLIENT_SECRET") : NULL;
    const char *certificate = identity && tenant ? web_env("AZURE_CLIENT_CERTIFICATE_PATH") : NULL;
    *ret = secret || file;
    if (certificate && !secret)
        return err_set(e, ERR_BAD_OPTION,
                       "AZURE_CLIENT_CERTIFICATE_PATH: certificates of clients are not spoken; set "
                       "AZURE_CLIENT_SECRET, or origin.account_key or origin.sas of the bucket");
    if (!secret && !file)
        return 0;
    if (!identity || !tenant)
        return err_set(e, ERR_BAD_OPTION,
                       "AZURE_FEDERATED_TOKEN_FILE is set without AZURE_CLIENT_ID and AZURE_TENANT_ID");
    char _cleanup_free_ *base = without_slashes(host ? host : AUTHORITY);
    t->secret = web_dup(secret);
    t->assertion_file = secret ? NULL : web_dup(file);
    t->identity = web_dup(identity);
    if (asprintf(&t->uri, "%s/%s/oauth2/v2.0/token", base, tenant) < 0)
        abort();
    return 0;
}

/* Whether a token may go to the endpoint, and the assertion to whoever gives it. */
static bool may_be_used(const struct web_endpoint *service, const struct web_endpoint *endpoint,
                        bool is_named, bool sends_assertion)
{
    if (sends_assertion && !service->https && !service->loopback)
        return false;
    return is_named || endpoint->https || (service->loopback && endpoint->loopback);
}

static void tell(struct az_token *t, const char *base)
{
    int r = t->secret ? asprintf(&t->told, "AZURE_CLIENT_SECRET of client %s, asked of %s", t->identity, base)
            : t->assertion_file ? asprintf(&t->told, "workload identity of client %s in %s, asked of %s",
                                           t->identity, t->assertion_file, base)
                                : asprintf(&t->told, "managed identity, of %s", base);
    if (r < 0)
        abort();
}

const char *az_token_told(const struct az_token *t)
{
    return t->told;
}

int az_token_new(const struct origin_options *o, const struct web_endpoint *endpoint, struct az_token **ret,
                 struct err *e)
{
    struct az_token *_cleanup_(az_token_freep) t = calloc(1, sizeof(*t));
    struct web_endpoint _cleanup_(web_endpoint_fini) x = {0};
    bool posts = false, is_named = o->metadata_endpoint != NULL;
    if (!t)
        abort();
    *ret = NULL;
    web_renewed_init(&t->renewed, &renewed_kind, t);
    int r = is_named ? 0 : find_posted(t, &posts, e);
    if (r == 0 && !posts && (is_named || !find_container(t)))
        t->uri = service_uri(o->metadata_endpoint);
    if (r < 0 || !t->uri)
        return r;
    struct slice query = slice_str(t->uri);
    char _cleanup_free_ *base = slice_dup(slice_split(&query, '?'));
    const char *name = posts       ? "AZURE_AUTHORITY_HOST"
                       : t->header ? "IDENTITY_ENDPOINT"
                                   : "origin.metadata_endpoint";
    r = web_endpoint_parse(base, name, "", &x, e);
    if (r < 0 || !may_be_used(&x, endpoint, is_named, posts))
        return r;
    r = web_init(&t->web, &web_kind, NULL, o, e);
    if (r < 0)
        return r;
    t->web.loopback = x.loopback || !posts; /* no proxy leads to a machine's own service */
    if (!posts) {
        t->web.connect_timeout_ms = MIN(t->web.connect_timeout_ms, (uint64_t)CONNECT_MS);
        t->web.timeout_ms = MIN(t->web.timeout_ms, (uint64_t)TIMEOUT_MS);
    }
    tell(t, base);
    *ret = TAKE_PTR(t);
    return 0;
}

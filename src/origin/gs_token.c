/*
 * Access tokens of Google Cloud: where credentials come from, and how they become tokens.
 *
 *     service account file   an assertion (JWT, RS256) signed with its key is posted to its token_uri
 *     user file              its refresh token is posted (authorized_user, made by gcloud)
 *     external account, impersonated service account   gs_federation.c
 *     metadata service       asked; GCE_METADATA_HOST, origin.metadata_endpoint, or a machine of that cloud
 *
 * Invariants:
 *  1. Keys and tokens are never printed: errors carry the service's words only.
 *  2. Those of web_renew.c.
 *
 * Failure modes: ERR_BAD_OPTION for files that are no credentials; ERR_ORIGIN_DENIED when the token is
 * refused; those of web_renew.c. A machine without a service account has no token: requests are then
 * anonymous.
 */
#include "origin/gs_internal.h"

#include "base/text.h"

#include <inttypes.h>
#include <openssl/evp.h>
#include <openssl/pem.h>

#define FILE_MAX      MIB
#define TOKEN_MAX     (8 * KIB)
#define FORM_MAX      (256 * KIB)
#define LIFE_S        3600
#define SCOPE         "https://www.googleapis.com/auth/devstorage.read_write"
#define TOKEN_URI     "https://oauth2.googleapis.com/token"
#define METADATA_PATH "/computeMetadata/v1/instance/service-accounts/default/token"
#define METADATA_HOST "http://metadata.google.internal"
#define GRANT         "urn:ietf:params:oauth:grant-type:jwt-bearer"
#define PRODUCT_FILE  "/sys/class/dmi/id/product_name"

enum source { FROM_ACCOUNT, FROM_USER, FROM_FEDERATION, FROM_METADATA };

struct gs_token {
    enum source source;
    struct web web;
    char *uri; /* where tokens are asked for */
    char *email, *key_id;
    EVP_PKEY *key;
    char *client_id, *client_secret, *refresh_token;
    struct gs_federation federation;
    char *told;
    struct web_renewed renewed; /* the token's text */
};

static struct gs_token *of_web(struct web *w)
{
    return container_of(w, struct gs_token, web);
}

/* ---- asking ---- */

static int prepare(struct web_call *c, struct web_request *q, struct err *e)
{
    const struct gs_token *t = of_web(c->web);
    if ((c->url.n ? buf_slice(&q->url, c->url) : buf_str(&q->url, t->uri)) < 0)
        return err_set(e, -ENAMETOOLONG, "the token service's address is too long");
    return web_request_headers(c, q, e);
}

static int refused(struct web_call *c, struct err *e)
{
    int r = gs_json_refused(&c->response, buf_view(&c->error_body), e);
    bool client_error = c->response.status >= 400 && c->response.status < 500 && r == ERR_ORIGIN_REFUSED;
    if (client_error && e) /* invalid_grant comes as 400 */
        e->code = ERR_ORIGIN_DENIED;
    return client_error ? ERR_ORIGIN_DENIED : r;
}

static const struct web_kind web_kind = {
    .version_header = "etag",
    .meta_prefix = "x-amz-meta-",
    .prepare = prepare,
    .refused = refused,
};

static int base64url(struct buf *b, struct slice s)
{
    size_t from = b->n;
    int r = text_base64(b, s);
    if (r < 0)
        return r;
    while (b->n > from && b->p[b->n - 1] == '=')
        b->p[--b->n] = '\0';
    for (size_t i = from; i < b->n; i++)
        b->p[i] = b->p[i] == '+' ? '-' : b->p[i] == '/' ? '_' : b->p[i];
    return 0;
}

static void digest_freep(EVP_MD_CTX **c)
{
    EVP_MD_CTX_free(*c);
}

static int sign(EVP_PKEY *key, struct slice text, struct buf *b)
{
    EVP_MD_CTX *_cleanup_(digest_freep) c = EVP_MD_CTX_new();
    unsigned char signature[1024];
    size_t n = sizeof(signature);
    if (!c || EVP_DigestSignInit(c, NULL, EVP_sha256(), NULL, key) != 1 ||
        EVP_DigestSign(c, signature, &n, (const unsigned char *)text.p, text.n) != 1)
        return -EINVAL;
    return base64url(b, slice_of(signature, n));
}

int gs_token_assertion(const struct gs_token *t, uint64_t real_s, struct buf *b, struct err *e)
{
    assert(t->source == FROM_ACCOUNT);
    json_t *_cleanup_(gs_json_unrefp) head = json_pack("{s:s, s:s}", "alg", "RS256", "typ", "JWT");
    json_t *_cleanup_(gs_json_unrefp) claims =
        json_pack("{s:s, s:s, s:s, s:I, s:I}", "iss", t->email, "scope",
                  t->federation.account_uri ? GS_SCOPE_ALL : SCOPE, "aud", t->uri, "iat", (json_int_t)real_s,
                  "exp", (json_int_t)(real_s + LIFE_S));
    if (t->key_id)
        (void)json_object_set_new(head, "kid", json_string(t->key_id));
    char _cleanup_free_ *head_text = json_dumps(head, JSON_COMPACT);
    char _cleanup_free_ *claims_text = json_dumps(claims, JSON_COMPACT);
    if (!head_text || !claims_text)
        return err_set(e, -EINVAL, "the service account's fields are no UTF-8");
    size_t from = b->n;
    int r = base64url(b, slice_str(head_text));
    if (r == 0)
        r = buf_char(b, '.');
    if (r == 0)
        r = base64url(b, slice_str(claims_text));
    struct buf _cleanup_buf_ signature = BUF_INIT(4 * KIB);
    if (r == 0)
        r = sign(t->key, slice_from(buf_view(b), from), &signature);
    if (r == 0)
        r = buf_char(b, '.');
    if (r == 0)
        r = buf_slice(b, buf_view(&signature));
    return r < 0 ? err_set(e, r, "the assertion could not be signed") : 0;
}

static int make_form(const struct gs_token *t, struct buf *form, struct err *e)
{
    struct buf _cleanup_buf_ assertion = BUF_INIT(TOKEN_MAX);
    int r;
    if (t->source == FROM_FEDERATION)
        return gs_federation_form(&t->federation, SCOPE, form, e);
    if (t->source == FROM_ACCOUNT) {
        r = gs_token_assertion(t, sys->real_ns() / 1000000000, &assertion, e);
        if (r < 0)
            return r;
        r = web_form_pair(form, "grant_type", SLICE_LIT(GRANT));
        if (r == 0)
            r = web_form_pair(form, "assertion", buf_view(&assertion));
    } else {
        r = web_form_pair(form, "grant_type", SLICE_LIT("refresh_token"));
        if (r == 0)
            r = web_form_pair(form, "client_id", slice_str(t->client_id));
        if (r == 0)
            r = web_form_pair(form, "client_secret", slice_str(t->client_secret));
        if (r == 0)
            r = web_form_pair(form, "refresh_token", slice_str(t->refresh_token));
    }
    return r < 0 ? err_set(e, r, "the request for a token is too long") : 0;
}

static int ask(void *arg, void **ret, uint64_t *ret_life_ms, struct err *e)
{
    struct gs_token *t = arg;
    struct buf _cleanup_buf_ form = BUF_INIT(FORM_MAX);
    bool posts = t->source != FROM_METADATA;
    struct web_token_ask q = {.uri = t->uri,
                              .form = posts ? &form : NULL,
                              .header = SLICE_LIT("metadata-flavor"),
                              .header_value = SLICE_LIT("Google")};
    int r = posts ? make_form(t, &form, e) : 0;
    if (r < 0) {
        web_wipe(&form);
        return web_error_of_credentials(err_prefix(e, r, "access token from %s", t->uri), e);
    }
    void *token = NULL;
    r = web_token_ask(&t->web, &q, &token, ret_life_ms, e);
    if (r == 0 && t->federation.account_uri)
        r = gs_federation_impersonate(&t->federation, &t->web, SCOPE, &token, ret_life_ms, e);
    if (r < 0)
        web_token_free(token);
    else
        *ret = token;
    return r;
}

static const struct web_renewed_kind renewed_kind = {
    .ask = ask, .copy = web_token_copy, .free = web_token_free};

int gs_token_get(struct gs_token *t, struct buf *b, uint64_t *ret_version, struct err *e)
{
    return web_renewed_get(&t->renewed, b, ret_version, e);
}

void gs_token_drop(struct gs_token *t, uint64_t version)
{
    web_renewed_drop(&t->renewed, version);
}

/* ---- finding ---- */

void gs_token_free(struct gs_token *t)
{
    if (!t)
        return;
    web_fini(&t->web);
    web_renewed_fini(&t->renewed);
    EVP_PKEY_free(t->key);
    char *secrets[] = {t->client_secret, t->refresh_token};
    for (size_t i = 0; i < ARRAY_SIZE(secrets); i++) {
        if (secrets[i])
            explicit_bzero(secrets[i], strlen(secrets[i]));
        free(secrets[i]);
    }
    gs_federation_fini(&t->federation);
    free(t->told);
    free(t->uri);
    free(t->email);
    free(t->key_id);
    free(t->client_id);
    free(t);
}
DEFINE_CLEANUP(struct gs_token, gs_token_free)

static char *text_member(const json_t *j, const char *name)
{
    return web_dup(json_string_value(json_object_get(j, name)));
}

static int take_account(struct gs_token *t, const json_t *j, const char *path, struct err *e)
{
    const char *pem = json_string_value(json_object_get(j, "private_key"));
    t->source = FROM_ACCOUNT;
    t->email = text_member(j, "client_email");
    t->key_id = text_member(j, "private_key_id");
    if (pem) {
        BIO *bio = BIO_new_mem_buf(pem, (int)MIN(strlen(pem), (size_t)FILE_MAX));
        t->key = bio ? PEM_read_bio_PrivateKey(bio, NULL, NULL, NULL) : NULL;
        BIO_free(bio);
    }
    if (!t->email || !t->key || EVP_PKEY_get_base_id(t->key) != EVP_PKEY_RSA)
        return err_set(e, ERR_BAD_OPTION, "%s: a service account needs client_email and an RSA private_key",
                       path);
    return 0;
}

static int take_user(struct gs_token *t, const json_t *j, const char *path, struct err *e)
{
    t->source = FROM_USER;
    t->client_id = text_member(j, "client_id");
    t->client_secret = text_member(j, "client_secret");
    t->refresh_token = text_member(j, "refresh_token");
    if (!t->client_id || !t->client_secret || !t->refresh_token)
        return err_set(e, ERR_BAD_OPTION, "%s: a user needs client_id, client_secret and refresh_token",
                       path);
    return 0;
}

static int take_federation(struct gs_token *t, const json_t *j, const char *path, struct err *e)
{
    t->source = FROM_FEDERATION;
    int r = gs_federation_take(j, path, &t->federation, e);
    if (r < 0)
        return r;
    free(t->uri);
    t->uri = text_member(j, "token_url");
    return 0;
}

/* Who signed in with gcloud acts for a service account. */
static int take_impersonated(struct gs_token *t, const json_t *j, const char *path, struct err *e)
{
    const json_t *source = json_object_get(j, "source_credentials");
    struct slice type = slice_str(json_string_value(json_object_get(source, "type")));
    int r = gs_federation_account(j, path, &t->federation, e);
    if (r == 0 && (!t->federation.account_uri || json_array_size(json_object_get(j, "delegates")) > 0))
        r = err_set(
            e, ERR_BAD_OPTION,
            "credentials file %s: an impersonated account needs service_account_impersonation_url, and "
            "no delegates",
            path);
    if (r < 0)
        return r;
    char *uri = text_member(source, "token_uri");
    if (uri) {
        free(t->uri);
        t->uri = uri;
    }
    if (slice_eq_str(type, "service_account"))
        return take_account(t, source, path, e);
    if (slice_eq_str(type, "authorized_user"))
        return take_user(t, source, path, e);
    return err_set(e, ERR_BAD_OPTION,
                   "credentials file %s: source_credentials are neither a service_account nor an "
                   "authorized_user",
                   path);
}

static int take_file(struct gs_token *t, const char *path, struct err *e)
{
    char _cleanup_free_ *text = NULL;
    size_t n = 0;
    int r = sys_read_file(path, FILE_MAX, &text, &n);
    if (r < 0)
        return err_set(e, ERR_BAD_OPTION, "credentials file %s: %s", path, err_text(r));
    json_t *_cleanup_(gs_json_unrefp) j = web_json(slice_of(text, n), 0, NULL);
    explicit_bzero(text, n);
    struct slice type = slice_str(json_string_value(json_object_get(j, "type")));
    t->uri = text_member(j, "token_uri");
    if (!t->uri)
        t->uri = slice_dup(SLICE_LIT(TOKEN_URI));
    if (slice_eq_str(type, "service_account"))
        return take_account(t, j, path, e);
    if (slice_eq_str(type, "authorized_user"))
        return take_user(t, j, path, e);
    if (slice_eq_str(type, "external_account"))
        return take_federation(t, j, path, e);
    if (slice_eq_str(type, "impersonated_service_account"))
        return take_impersonated(t, j, path, e);
    return err_set(
        e, ERR_BAD_OPTION,
        "credentials file %s: no JSON with type service_account, authorized_user, external_account "
        "or impersonated_service_account",
        path);
}

static char *metadata_uri(const struct origin_options *o)
{
    char *uri = NULL;
    const char *host = web_env("GCE_METADATA_HOST");
    if (o->metadata_endpoint) {
        if (asprintf(&uri, "%s" METADATA_PATH, o->metadata_endpoint) < 0)
            abort();
    } else if (host) {
        if (asprintf(&uri, "http://%s" METADATA_PATH, host) < 0)
            abort();
    } else if (web_machine_says(PRODUCT_FILE, SLICE_LIT("Google"))) {
        uri = slice_dup(SLICE_LIT(METADATA_HOST METADATA_PATH));
    }
    return uri;
}

/* The file to read: a heap copy, or NULL. */
static char *find_file(const struct origin_options *o)
{
    const char *path = o->credentials_file ? o->credentials_file : web_env("GOOGLE_APPLICATION_CREDENTIALS");
    const char *home = web_env("HOME");
    if (path)
        return web_dup(path);
    char *own = NULL;
    if (home && asprintf(&own, "%s/.config/gcloud/application_default_credentials.json", home) < 0)
        abort();
    if (own && access(own, R_OK) < 0) {
        free(own);
        own = NULL;
    }
    return own;
}

/* After the source was found. */
static void tell(struct gs_token *t, const char *file)
{
    static const char *const words[] = {"service account", "user", "external account"};
    const char *account = t->federation.account_uri ? strrchr(t->federation.account_uri, '/') : NULL;
    struct slice query = slice_str(t->uri), place = slice_split(&query, '?');
    int r = file ? asprintf(&t->told, "%s%s%s of %s, asked of " SLICE_FMT "%s%s", words[t->source],
                            t->email ? " " : "", t->email ? t->email : "", file, SLICE_ARG(place),
                            account ? ", for " : "", account ? account + 1 : "")
                 : asprintf(&t->told, "the machine's service account, of " SLICE_FMT, SLICE_ARG(place));
    if (r < 0)
        abort();
}

const char *gs_token_told(const struct gs_token *t)
{
    return t->told;
}

int gs_token_new(const struct origin_options *o, bool emulator, struct gs_token **ret, struct err *e)
{
    char _cleanup_free_ *file = emulator                                       ? web_dup(o->credentials_file)
                                : o->metadata_endpoint && !o->credentials_file ? NULL
                                                                               : find_file(o);
    char _cleanup_free_ *metadata = file || (emulator && !o->metadata_endpoint) ? NULL : metadata_uri(o);
    if (!file && !metadata) {
        *ret = NULL;
        return 0;
    }
    struct gs_token *_cleanup_(gs_token_freep) t = calloc(1, sizeof(*t));
    if (!t)
        abort();
    web_renewed_init(&t->renewed, &renewed_kind, t);
    t->source = FROM_METADATA;
    if (metadata)
        t->uri = TAKE_PTR(metadata);
    int r = file ? take_file(t, file, e) : 0;
    struct web_endpoint _cleanup_(web_endpoint_fini) x = {0};
    if (r == 0)
        r = web_endpoint_parse(t->uri, file ? "token_uri" : "origin.metadata_endpoint", "", &x, e);
    if (r == 0)
        r = web_init(&t->web, &web_kind, NULL, o, e);
    if (r < 0)
        return r;
    t->web.loopback = x.loopback || !file;
    tell(t, file);
    *ret = TAKE_PTR(t);
    return 0;
}

/*
 * Credentials that a machine or a container is given, or a file is lent, and that end: how they are asked
 * for.
 *
 *     files       keys of a profile of ~/.aws/credentials or ~/.aws/config, where it has a session token
 *     process     a profile's credential_process (s3_process.c)
 *     role        of STS (s3_sts.c)
 *     container   AWS_CONTAINER_CREDENTIALS_FULL_URI, or ..._RELATIVE_URI below http://169.254.170.2; with
 * the text of AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE or AWS_CONTAINER_AUTHORIZATION_TOKEN as Authorization
 *     instance    IMDSv2: a session token by PUT, the role's name, its credentials; origin.metadata_endpoint,
 *                 AWS_EC2_METADATA_SERVICE_ENDPOINT, or a machine of that cloud; not with
 * AWS_EC2_METADATA_DISABLED=true
 *
 * Invariants:
 *  1. Keys of a container are asked for over https, on loopback or at the addresses of container services
 * only.
 *  2. Secrets are never printed: errors carry the service's words only.
 *  3. Those of web_renew.c.
 *
 * Failure modes: those of web_renew.c, prefixed with where was asked. A machine without a role has no
 * credentials: requests are then unsigned.
 */
#include "origin/s3_internal.h"

#include "base/text.h"

#include <jansson.h>
#include <stdarg.h>

#define FOREVER_MS       3600000 /* keys without an end are asked for again after so long */
#define UNREAD_MS        600000  /* those of a program whose end is not understood */
#define CONNECT_MS       1000
#define TIMEOUT_MS       5000
#define VENDOR_FILE      "/sys/class/dmi/id/sys_vendor"
#define XEN_FILE         "/sys/hypervisor/uuid" /* of older machines (P2, P3, M4), whose vendor is Xen */
#define INSTANCE_SERVICE "http://169.254.169.254"
#define CONTAINER_HOST   "http://169.254.170.2"
#define TOKEN_SECONDS    "21600"
#define ROLES_PATH       "/latest/meta-data/iam/security-credentials/"
#define FILE_MAX         (16 * KIB)

enum asked { FILES, PROCESS, ROLE, CONTAINER, INSTANCE };

struct s3_provider {
    enum asked asked;
    char *told;
    char *profile;  /* of the files */
    bool of_config; /* of the two files the config file */
    char *process;  /* the command */
    struct s3_role *role;
    struct web web;                           /* of a container and an instance */
    char *base;                               /* of the instance's service, or the container's whole URI */
    char *authorization_file, *authorization; /* of a container; may be NULL */
    struct web_renewed keys;                  /* struct s3_credentials */
};

/* ---- asking ---- */

static int prepare(struct web_call *c, struct web_request *q, struct err *e)
{
    if (buf_slice(&q->url, c->url) < 0)
        return err_set(e, -ENAMETOOLONG, "the address is too long");
    return web_request_headers(c, q, e);
}

static int refused(struct web_call *c, struct err *e)
{
    char line[160];
    web_error_line(buf_view(&c->error_body), line, sizeof(line));
    return web_error_set(e, web_error_class(c->response.status), &c->response, "", line);
}

static const struct web_kind web_kind = {
    .version_header = "etag", .meta_prefix = "x-amz-meta-", .prepare = prepare, .refused = refused};

static int ask(struct s3_provider *p, enum web_method method, const char *path, const char *header,
               struct slice value, struct buf *ret, struct err *e)
{
    struct buf _cleanup_buf_ url = BUF_INIT(WEB_URL_MAX);
    struct origin_body none = {0};
    struct web_call _cleanup_(web_call_fini) c;
    if (buf_printf(&url, "%s%s", p->base, path) < 0)
        return err_set(e, -ENAMETOOLONG, "the address is too long");
    web_call_init(&c, &p->web, method, "token");
    c.url = buf_view(&url);
    if (method == WEB_PUT)
        c.body = &none;
    if (value.n)
        web_header(&c, slice_str(header), value);
    c.on_body = web_collect;
    c.arg = ret;
    int r = web_perform(&c, e);
    return r < 0 ? err_prefix(e, r, "credentials from %s", url.p) : 0;
}

static int read_answer(struct slice text, const char *token, struct s3_credentials *ret,
                       uint64_t *ret_life_ms, struct err *e)
{
    json_t *j = web_json(text, 0, NULL);
    uint64_t ends_ns = 0, now_ns = sys->real_ns();
    struct s3_credentials x = {
        web_dup(json_string_value(json_object_get(j, "AccessKeyId"))),
        web_dup(json_string_value(json_object_get(j, "SecretAccessKey"))),
        web_dup(json_string_value(json_object_get(j, token))),
    };
    struct slice expiration = slice_str(json_string_value(json_object_get(j, "Expiration")));
    bool dated = expiration.n && text_parse_date(expiration, &ends_ns) == 0;
    json_decref(j);
    if (!x.access_key || !x.secret_key) {
        s3_credentials_fini(&x);
        return err_set(e, ERR_ORIGIN_FAILED, "the answer to the question for credentials has none");
    }
    *ret_life_ms = !dated ? FOREVER_MS : ends_ns > now_ns ? (ends_ns - now_ns) / 1000000 : 0;
    *ret = x;
    return 0;
}

static int ask_container(struct s3_provider *p, struct buf *ret, struct err *e)
{
    char _cleanup_free_ *text = NULL;
    size_t n = 0;
    int r = p->authorization_file ? sys_read_file(p->authorization_file, FILE_MAX, &text, &n) : 0;
    if (r < 0)
        return err_set(e, ERR_ORIGIN_DENIED, "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE %s: %s",
                       p->authorization_file, err_text(r));
    struct slice value = text ? slice_of(text, n) : slice_str(p->authorization);
    while (value.n > 0 && (value.p[value.n - 1] == '\n' || value.p[value.n - 1] == '\r'))
        value.n--;
    return ask(p, WEB_GET, "", "authorization", value, ret, e);
}

static int ask_instance(struct s3_provider *p, struct buf *ret, struct err *e)
{
    struct buf _cleanup_buf_ token = BUF_INIT(4 * KIB), roles = BUF_INIT(4 * KIB), path = BUF_INIT(4 * KIB);
    int r = ask(p, WEB_PUT, "/latest/api/token", "x-aws-ec2-metadata-token-ttl-seconds",
                SLICE_LIT(TOKEN_SECONDS), &token, e);
    if (r == -ETIMEDOUT) /* the answer may be let go no further than to the machine itself */
        web_error_add(e, "; in a container, set the instance's HttpPutResponseHopLimit to 2");
    if (r == 0)
        r = ask(p, WEB_GET, ROLES_PATH, "x-aws-ec2-metadata-token", buf_view(&token), &roles, e);
    if (r < 0)
        return r;
    struct slice rest = buf_view(&roles), role = slice_trim(slice_split(&rest, '\n'));
    if (role.n == 0)
        return err_set(e, -ENOENT, "the machine has no role");
    r = buf_str(&path, ROLES_PATH);
    if (r == 0)
        r = text_uri_encode(&path, role, /* keep_slash= */ false);
    return r < 0 ? err_set(e, r, "the role's name is too long")
                 : ask(p, WEB_GET, path.p, "x-aws-ec2-metadata-token", buf_view(&token), ret, e);
}

/* The file does not say when they end. */
static int ask_files(const struct s3_provider *p, struct s3_credentials *ret, uint64_t *ret_life_ms,
                     struct err *e)
{
    struct s3_aws _cleanup_(s3_aws_fini) aws;
    s3_aws_load(p->profile, &aws);
    if (!s3_aws_keys(&aws, p->profile, p->of_config, ret))
        return err_set(e, ERR_ORIGIN_DENIED, "the AWS profile %s has no keys any more", p->profile);
    *ret_life_ms = FOREVER_MS;
    return 0;
}

static int ask_web(struct s3_provider *p, struct s3_credentials *ret, uint64_t *ret_life_ms, struct err *e)
{
    struct buf _cleanup_buf_ body = BUF_INIT(WEB_RESULT_MAX);
    int r = p->asked == CONTAINER ? ask_container(p, &body, e) : ask_instance(p, &body, e);
    if (r == 0)
        r = read_answer(buf_view(&body), "Token", ret, ret_life_ms, e);
    if (body.p)
        explicit_bzero(body.p, body.n);
    /* of an instance -ENOENT says that it has no role */
    return r < 0 && p->asked == CONTAINER ? web_error_of_credentials(r, e) : r;
}

/* The end, if it is said, of what a program printed: "+00:00" is what many write for 'Z'. */
static bool is_dated(const json_t *j, uint64_t *ret_ns)
{
    struct slice at = slice_str(json_string_value(json_object_get(j, "Expiration")));
    if (slice_ends(at, SLICE_LIT("+00:00")))
        at.n -= 6;
    char text[64];
    int n = snprintf(text, sizeof(text), SLICE_FMT "%s", SLICE_ARG(at),
                     slice_ends(at, SLICE_LIT("Z")) ? "" : "Z");
    return at.n > 0 && n > 0 && (size_t)n < sizeof(text) && text_parse_date(slice_str(text), ret_ns) == 0;
}

static int read_printed(struct slice text, struct s3_credentials *ret, uint64_t *ret_life_ms, struct err *e)
{
    uint64_t ends_ns = 0, now_ns = sys->real_ns();
    json_t *j = web_json(text, 0, NULL);
    bool is_known = json_integer_value(json_object_get(j, "Version")) == 1;
    bool has_end = json_object_get(j, "Expiration") != NULL, dated = is_dated(j, &ends_ns);
    json_decref(j);
    if (!is_known)
        return err_set(e, ERR_ORIGIN_DENIED,
                       "credential_process of the AWS profile: what it prints is no JSON of \"Version\": 1");
    int r = read_answer(text, "SessionToken", ret, ret_life_ms, e);
    if (r < 0 || !has_end)
        return r;
    *ret_life_ms = !dated ? UNREAD_MS : ends_ns > now_ns ? (ends_ns - now_ns) / 1000000 : 0;
    return 0;
}

static int ask_process(struct s3_provider *p, struct s3_credentials *ret, uint64_t *ret_life_ms,
                       struct err *e)
{
    struct buf _cleanup_buf_ printed = BUF_INIT(WEB_RESULT_MAX);
    int r = s3_process_run(p->process, &printed, e);
    if (r == 0)
        r = read_printed(buf_view(&printed), ret, ret_life_ms, e);
    if (printed.p)
        explicit_bzero(printed.p, printed.n);
    return r;
}

static int ask_all(void *arg, void **ret, uint64_t *ret_life_ms, struct err *e)
{
    struct s3_provider *p = arg;
    struct s3_credentials found;
    int r = p->asked == FILES     ? ask_files(p, &found, ret_life_ms, e)
            : p->asked == PROCESS ? ask_process(p, &found, ret_life_ms, e)
            : p->asked == ROLE    ? s3_role_ask(p->role, &found, ret_life_ms, e)
                                  : ask_web(p, &found, ret_life_ms, e);
    if (r < 0)
        return r;
    struct s3_credentials *own = malloc(sizeof(*own));
    if (!own)
        abort();
    *own = found;
    *ret = own;
    return 0;
}

static int copy_keys(const void *now, void *ret, struct err *e)
{
    const struct s3_credentials *k = now;
    (void)e;
    *(struct s3_credentials *)ret =
        (struct s3_credentials){web_dup(k->access_key), web_dup(k->secret_key), web_dup(k->session_token)};
    return 0;
}

static void free_keys(void *now)
{
    if (now)
        s3_credentials_fini(now);
    free(now);
}

static const struct web_renewed_kind renewed_kind = {.ask = ask_all, .copy = copy_keys, .free = free_keys};

int s3_provider_get(struct s3_provider *p, struct s3_credentials *ret, uint64_t *ret_version, struct err *e)
{
    *ret = (struct s3_credentials){0};
    return web_renewed_get(&p->keys, ret, ret_version, e);
}

void s3_provider_drop(struct s3_provider *p, uint64_t version)
{
    web_renewed_drop(&p->keys, version);
}

/* ---- finding ---- */

static struct s3_provider *provider_new(enum asked asked)
{
    struct s3_provider *p = calloc(1, sizeof(*p));
    if (!p)
        abort();
    web_renewed_init(&p->keys, &renewed_kind, p);
    p->asked = asked;
    return p;
}

static void PRINTF_LIKE(2, 3) tell(struct s3_provider *p, const char *fmt, ...)
{
    va_list v;
    va_start(v, fmt);
    if (vasprintf(&p->told, fmt, v) < 0)
        abort();
    va_end(v);
}

const char *s3_provider_told(const struct s3_provider *p)
{
    return p->told;
}

struct s3_provider *s3_provider_of_files(const char *profile, bool of_config)
{
    struct s3_provider *p = provider_new(FILES);
    p->profile = web_dup(profile);
    p->of_config = of_config;
    tell(p, "keys with a session token of the AWS profile %s", profile);
    return p;
}

struct s3_provider *s3_provider_of_process(const char *command, const char *profile)
{
    struct s3_provider *p = provider_new(PROCESS);
    p->process = web_dup(command);
    tell(p, "credential_process of the AWS profile %s", profile);
    return p;
}

struct s3_provider *s3_provider_of_role(struct s3_role *role)
{
    struct s3_provider *p = provider_new(ROLE);
    p->role = role;
    tell(p, "%s", s3_role_told(role));
    return p;
}

void s3_provider_free(struct s3_provider *p)
{
    if (!p)
        return;
    free(p->process);
    free(p->profile);
    free(p->told);
    s3_role_free(p->role);
    web_fini(&p->web);
    web_renewed_fini(&p->keys);
    if (p->authorization)
        explicit_bzero(p->authorization, strlen(p->authorization));
    free(p->authorization);
    free(p->authorization_file);
    free(p->base);
    free(p);
}

static bool may_be_asked(const struct web_endpoint *x)
{
    static const char *const hosts[] = {"169.254.170.2", "169.254.170.23", "[fd00:ec2::23]"};
    bool known = x->https || x->loopback;
    for (size_t i = 0; i < ARRAY_SIZE(hosts); i++)
        known |= strcmp(x->host, hosts[i]) == 0;
    return known;
}

/* Where the address leads; the keys are asked for there. */
static int of_address(enum asked asked, const char *base, const char *variable,
                      const struct origin_options *o, struct s3_provider **ret, struct err *e)
{
    struct web_endpoint _cleanup_(web_endpoint_fini) x = {0};
    int r = web_endpoint_parse(base, variable, "", &x, e);
    if (r == 0 && asked == CONTAINER && !may_be_asked(&x))
        return err_set(e, ERR_BAD_OPTION, "%s %s: must be https, or an address of this machine", variable,
                       base);
    struct s3_provider *_cleanup_(s3_provider_freep) p = provider_new(asked);
    if (r == 0)
        r = web_init(&p->web, &web_kind, NULL, o, e);
    if (r < 0)
        return r;
    p->web.loopback = true; /* no proxy leads there */
    p->web.connect_timeout_ms = MIN(p->web.connect_timeout_ms, (uint64_t)CONNECT_MS);
    p->web.timeout_ms = MIN(p->web.timeout_ms, (uint64_t)TIMEOUT_MS);
    p->base = web_dup(base);
    *ret = TAKE_PTR(p);
    return 0;
}

int s3_provider_of_container(const struct origin_options *o, struct s3_provider **ret, struct err *e)
{
    static const char name[] = "AWS_CONTAINER_CREDENTIALS_FULL_URI";
    const char *full = web_env(name), *relative = web_env("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
    char _cleanup_free_ *base = NULL;
    *ret = NULL;
    if (!full && !relative)
        return 0;
    if (asprintf(&base, "%s%s", relative ? CONTAINER_HOST : "", relative ? relative : full) < 0)
        abort();
    struct s3_provider *p = NULL;
    int r = of_address(CONTAINER, base, name, o, &p, e);
    if (r < 0)
        return r;
    p->authorization_file = web_dup(web_env("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"));
    p->authorization = web_dup(web_env("AWS_CONTAINER_AUTHORIZATION_TOKEN"));
    struct slice query = slice_str(base), place = slice_split(&query, '?');
    tell(p, "the container's, of " SLICE_FMT, SLICE_ARG(place));
    *ret = p;
    return 0;
}

int s3_provider_of_instance(const struct origin_options *o, struct s3_provider **ret, struct err *e)
{
    const char *disabled = web_env("AWS_EC2_METADATA_DISABLED");
    const char *service =
        o->metadata_endpoint ? o->metadata_endpoint : web_env("AWS_EC2_METADATA_SERVICE_ENDPOINT");
    *ret = NULL;
    if (!o->metadata_endpoint && disabled && strcasecmp(disabled, "true") == 0)
        return 0;
    if (!service && (web_machine_says(VENDOR_FILE, SLICE_LIT("Amazon EC2")) ||
                     web_machine_says(XEN_FILE, SLICE_LIT("ec2"))))
        service = INSTANCE_SERVICE;
    if (!service)
        return 0;
    char _cleanup_free_ *base = web_dup(service);
    for (size_t n = strlen(base); n > 0 && base[n - 1] == '/'; n--)
        base[n - 1] = '\0';
    int r = of_address(INSTANCE, base, "origin.metadata_endpoint", o, ret, e);
    if (r == 0)
        tell(*ret, "the machine's role, of %s", base);
    return r;
}

/*
 * What HTTP kinds need before a request: endpoints and names out of URLs, the call a verb fills.
 *
 * Invariants:
 *  1. The base of an endpoint has no slash at its end, its path is empty or begins with one and has none at
 * its end.
 *  2. A prefix stands for a folder: it is empty or ends with '/'.
 *
 * Failure modes: ERR_BAD_OPTION with the option's name; keys that do not fit with their prefix.
 */
#include "origin/web_internal.h"

#include <arpa/inet.h>
#include <inttypes.h>

#define NAME_MAX_BYTES 255

const char *web_env(const char *name)
{
    const char *v = getenv(name);
    return v && *v ? v : NULL;
}

char *web_dup(const char *s)
{
    return s ? slice_dup(slice_str(s)) : NULL;
}

static bool valid_name(struct slice s)
{
    if (s.n == 0 || s.n > NAME_MAX_BYTES)
        return false;
    for (size_t i = 0; i < s.n; i++) {
        char c = s.p[i];
        bool good = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
                    c == '-' || c == '_' || (c == '$' && i == 0);
        if (!good)
            return false;
    }
    return s.p[0] != '.' && s.p[0] != '-';
}

int web_parse_name(struct slice rest, const char *what, const char *form, char **ret_name, char **ret_prefix,
                   struct err *e)
{
    struct slice name = slice_split(&rest, '/'), shown = name;
    if (!valid_name(name)) {
        shown = slice_split(&shown, '?'); /* what is behind it may be a signature */
        return err_set(e, ERR_BAD_OPTION, "\"" SLICE_FMT "\" is no name of %s; write %s", SLICE_ARG(shown),
                       what, form);
    }
    if (rest.n > ORIGIN_KEY_MAX_BYTES - 2)
        return err_set(e, ERR_BAD_OPTION, "the prefix is longer than %d bytes", ORIGIN_KEY_MAX_BYTES - 2);
    if (rest.n && memchr(rest.p, '\0', rest.n))
        return err_set(e, ERR_BAD_OPTION, "the prefix has a NUL byte");
    bool slash = rest.n > 0 && rest.p[rest.n - 1] != '/';
    if (asprintf(ret_prefix, SLICE_FMT "%s", SLICE_ARG(rest), slash ? "/" : "") < 0)
        abort();
    *ret_name = slice_dup(name);
    return 0;
}

int web_cut_object(char *prefix, char **ret_key, struct err *e)
{
    struct slice whole = slice_str(prefix);
    if (whole.n == 0)
        return err_set(e, ERR_BAD_OPTION, "origin.version: the URL must be that of one object");
    whole.n--; /* the slash at its end */
    ssize_t slash = slice_rfind(whole, '/');
    *ret_key = slice_dup(slice_from(whole, (size_t)(slash + 1)));
    prefix[slash + 1] = '\0';
    return 0;
}

int web_check_length(const char *prefix, struct slice key, struct err *e)
{
    if (key.n == 0)
        return err_set(e, -EINVAL, "an empty key");
    if (strlen(prefix) + key.n > ORIGIN_KEY_MAX_BYTES)
        return err_set(e, -ENAMETOOLONG, "a key of %zu bytes with the prefix; at most %d are allowed",
                       strlen(prefix) + key.n, ORIGIN_KEY_MAX_BYTES);
    return 0;
}

int web_check_key(const char *prefix, struct slice key, struct err *e)
{
    int r = web_check_length(prefix, key, e);
    return r == 0 && !slice_is_utf8(key) ? err_set(e, -EILSEQ, "a key that is not UTF-8") : r;
}

bool web_leads_away(struct slice path)
{
    bool away = memchr(path.p ? path.p : "", '\0', path.n) != NULL;
    while (path.n > 0 && !away) {
        struct slice one = slice_split(&path, '/');
        do {
            struct slice part = slice_split(&one, '\\');
            away = away || slice_eq_str(part, ".") || slice_eq_str(part, "..");
        } while (one.n > 0);
    }
    return away;
}

/* ---- endpoints ---- */

static void curlu_freep(CURLU **u)
{
    curl.url_cleanup(*u);
}

static void curl_strp(char **p)
{
    curl.free(*p);
}

static bool is_loopback(const char *host)
{
    struct in_addr a;
    bool is_net =
        inet_pton(AF_INET, host, &a) == 1 && ntohl(a.s_addr) >> 24 == 127; /* and no name 127.x.com */
    return strcasecmp(host, "localhost") == 0 || is_net || strcmp(host, "[::1]") == 0;
}

static char *url_part(CURLU *u, CURLUPart part)
{
    char *p = NULL;
    return curl.url_get(u, part, &p, 0) == CURLUE_OK ? p : NULL;
}

int web_endpoint_parse(const char *url, const char *option, const char *host_prefix, struct web_endpoint *ret,
                       struct err *e)
{
    int r = libcurl_start(e);
    if (r < 0)
        return r;
    CURLU *_cleanup_(curlu_freep) u = curl.url();
    if (!u)
        abort();
    bool scheme_ok = strncmp(url, "http://", 7) == 0 || strncmp(url, "https://", 8) == 0;
    struct slice rest = slice_str(url), plain = slice_split(&rest, '?'); /* a query may be secret */
    if (!scheme_ok || curl.url_set(u, CURLUPART_URL, url, CURLU_PATH_AS_IS) != CURLUE_OK)
        return err_set(e, ERR_BAD_OPTION,
                       "%s " SLICE_FMT ": must be http://HOST[:PORT] or https://HOST[:PORT]", option,
                       SLICE_ARG(plain));
    char *_cleanup_(curl_strp) scheme = url_part(u, CURLUPART_SCHEME);
    char *_cleanup_(curl_strp) host = url_part(u, CURLUPART_HOST);
    char *_cleanup_(curl_strp) port = url_part(u, CURLUPART_PORT);
    char *_cleanup_(curl_strp) path = url_part(u, CURLUPART_PATH);
    char *_cleanup_(curl_strp) user = url_part(u, CURLUPART_USER);
    char *_cleanup_(curl_strp) query = url_part(u, CURLUPART_QUERY);
    if (!scheme || !host || user || query) /* which are not shown: they may be secret */
        return err_set(e, ERR_BAD_OPTION, "%s %s://%s...: must have neither user nor query", option,
                       scheme ? scheme : "", host ? host : "");
    struct web_endpoint x = {.https = strcmp(scheme, "https") == 0, .loopback = is_loopback(host)};
    bool default_port = port && strcmp(port, x.https ? "443" : "80") == 0;
    bool show_port = port && !default_port;
    struct slice root = slice_str(path);
    while (root.n > 0 && root.p[root.n - 1] == '/')
        root.n--;
    if (asprintf(&x.host, "%s%s%s%s", host_prefix, host, show_port ? ":" : "", show_port ? port : "") < 0 ||
        asprintf(&x.base, "%s://%s", scheme, x.host) < 0)
        abort();
    x.path = slice_dup(root);
    *ret = x;
    return 0;
}

void web_endpoint_fini(struct web_endpoint *x)
{
    free(x->base);
    free(x->host);
    free(x->path);
    *x = (struct web_endpoint){0};
}

/* ---- the call ---- */

void web_call_init(struct web_call *c, struct web *w, enum web_method method, const char *op)
{
    memset(c, 0, offsetof(struct web_call, response));
    c->web = w;
    c->method = method;
    c->op = op;
    web_response_init(&c->response);
    c->response.kind = w->kind;
    c->error_body = BUF_INIT(WEB_ERROR_BODY_MAX);
}

void web_call_fini(struct web_call *c)
{
    web_response_fini(&c->response);
    buf_fini(&c->error_body);
}

void web_query(struct web_call *c, struct slice name, struct slice value)
{
    assert(c->n_query < WEB_PAIRS_MAX);
    c->query[c->n_query++] = (struct sigv4_pair){name, value};
}

void web_header(struct web_call *c, struct slice name, struct slice value)
{
    assert(c->n_headers < WEB_PAIRS_MAX);
    c->headers[c->n_headers++] = (struct sigv4_pair){name, value};
}

bool web_is_canceled(const struct web_call *c)
{
    return (c->cancel && atomic_load(c->cancel)) || (c->also_cancel && atomic_load(c->also_cancel)) ||
           quit_is_now();
}

struct slice web_method_name(enum web_method m)
{
    static const char *const names[] = {"GET", "HEAD", "PUT", "POST", "PATCH", "DELETE"};
    return slice_str(names[m]);
}

int web_collect(void *arg, const void *p, size_t n)
{
    struct buf *b = arg;
    return buf_append(b, p, n) < 0 ? ERR_ORIGIN_FAILED : 0;
}

/* ---- versions ---- */

int web_etag_header(struct slice etag, char *ret, struct err *e)
{
    if (etag.n > WEB_ETAG_MAX)
        return err_set(e, -EINVAL, "an ETag of %zu bytes", etag.n);
    for (size_t i = 0; i < etag.n; i++)
        if ((unsigned char)etag.p[i] <= ' ' || etag.p[i] == 0x7f)
            return err_set(e, -EINVAL, "an ETag with white space");
    bool as_is = slice_starts(etag, SLICE_LIT("W/")) || slice_eq_str(etag, "*");
    (void)snprintf(ret, WEB_ETAG_MAX + 3, "%s" SLICE_FMT "%s", as_is ? "" : "\"", SLICE_ARG(etag),
                   as_is ? "" : "\"");
    return 0;
}

bool web_etag_is_weak(struct slice etag)
{
    return slice_starts(etag, SLICE_LIT("W/"));
}

struct slice web_unquote(struct slice s)
{
    s = slice_trim(s);
    if (s.n >= 2 && s.p[0] == '"' && s.p[s.n - 1] == '"')
        s = slice_sub(s, 1, s.n - 2);
    return s.n > WEB_ETAG_MAX ? SLICE_NULL : s;
}

struct slice web_version(const struct origin_attr *attr, struct arena *a)
{
    if (attr->mtime_ns == 0)
        return SLICE_NULL;
    return slice_str(
        arena_printf(a, "W/\"%" PRIx64 "-%" PRIx64 "\"", attr->mtime_ns / 1000000000, attr->size_bytes));
}

/*
 * Credentials files of Google Cloud that name no key: whoever runs the machine says who it is.
 *
 *     external_account               workload identity federation: a token in a file, which its issuer writes
 *                                    anew before it ends, is exchanged at token_url (RFC 8693)
 *     impersonated_service_account   a token of its source_credentials
 *
 * With service_account_impersonation_url the token that came is then exchanged for one of that service
 * account.
 *
 * Invariants:
 *  1. Tokens are sent over https, or on this machine, and never printed; what was sent and received is wiped.
 *
 * Failure modes: ERR_BAD_OPTION for files that say something else; ERR_ORIGIN_DENIED when the token's file
 * cannot be read; those of web_perform and of web_error_of_credentials.
 */
#include "origin/gs_internal.h"

#include "base/text.h"

#define SUBJECT_MAX (64 * KIB)
#define TOKEN_MAX   (16 * KIB)
#define GRANT       "urn:ietf:params:oauth:grant-type:token-exchange"
#define ACCESS      "urn:ietf:params:oauth:token-type:access_token"
#define LIFE_S      3600

void gs_federation_fini(struct gs_federation *f)
{
    free(f->file);
    free(f->field);
    free(f->audience);
    free(f->subject_type);
    free(f->account_uri);
    *f = (struct gs_federation){0};
}

static char *text_of(const json_t *j, const char *name)
{
    const char *v = json_string_value(json_object_get(j, name));
    return v && *v ? web_dup(v) : NULL;
}

static int check_address(const char *url, const char *name, const char *path, struct err *e)
{
    struct web_endpoint _cleanup_(web_endpoint_fini) x = {0};
    int r = web_endpoint_parse(url, name, "", &x, e);
    if (r < 0)
        return err_prefix(e, r, "credentials file %s", path);
    return x.https || x.loopback
               ? 0
               : err_set(e, ERR_BAD_OPTION, "credentials file %s: %s %s: a token goes over https only", path,
                         name, url);
}

int gs_federation_account(const json_t *j, const char *path, struct gs_federation *ret, struct err *e)
{
    const json_t *life =
        json_object_get(json_object_get(j, "service_account_impersonation"), "token_lifetime_seconds");
    ret->account_uri = text_of(j, "service_account_impersonation_url");
    ret->life_s = json_integer_value(life) > 0 ? (uint64_t)json_integer_value(life) : LIFE_S;
    return ret->account_uri ? check_address(ret->account_uri, "service_account_impersonation_url", path, e)
                            : 0;
}

int gs_federation_take(const json_t *j, const char *path, struct gs_federation *ret, struct err *e)
{
    const json_t *source = json_object_get(j, "credential_source");
    const json_t *format = json_object_get(source, "format");
    struct slice type = slice_str(json_string_value(json_object_get(format, "type")));
    ret->file = text_of(source, "file");
    ret->field = text_of(format, "subject_token_field_name");
    ret->audience = text_of(j, "audience");
    ret->subject_type = text_of(j, "subject_token_type");
    if (!ret->file)
        return err_set(e, ERR_BAD_OPTION,
                       "credentials file %s: credential_source needs \"file\"; tokens of a URL, a program or "
                       "of AWS are not spoken: let something write the token into a file",
                       path);
    if (!ret->audience || !ret->subject_type || !json_string_value(json_object_get(j, "token_url")))
        return err_set(e, ERR_BAD_OPTION,
                       "credentials file %s: an external account needs audience, subject_token_type and "
                       "token_url",
                       path);
    if (slice_eq_str(type, "json") != (ret->field != NULL))
        return err_set(e, ERR_BAD_OPTION,
                       "credentials file %s: format \"json\" and subject_token_field_name belong together",
                       path);
    int r = check_address(json_string_value(json_object_get(j, "token_url")), "token_url", path, e);
    return r < 0 ? r : gs_federation_account(j, path, ret, e);
}

/* The token itself, as it lies in the file or in a member of its JSON. */
static int add_subject(const struct gs_federation *f, struct slice text, struct buf *form, struct err *e)
{
    json_t *_cleanup_(gs_json_unrefp) j = f->field ? web_json(text, 0, NULL) : NULL;
    struct slice token =
        f->field ? slice_str(json_string_value(json_object_get(j, f->field))) : slice_trim(text);
    while (token.n > 0 && (unsigned char)token.p[token.n - 1] <= ' ')
        token.n--;
    if (token.n == 0)
        return err_set(e, ERR_ORIGIN_DENIED, "token file %s: there is no token in it", f->file);
    return web_form_pair(form, "subject_token", token) < 0
               ? err_set(e, ERR_ORIGIN_DENIED, "token file %s: the token is too long", f->file)
               : 0;
}

int gs_federation_form(const struct gs_federation *f, const char *scope, struct buf *form, struct err *e)
{
    const struct {
        const char *name, *value;
    } pairs[] = {
        {"grant_type", GRANT},
        {"audience", f->audience},
        {"scope", f->account_uri ? GS_SCOPE_ALL : scope},
        {"requested_token_type", ACCESS},
        {"subject_token_type", f->subject_type},
    };
    char _cleanup_free_ *text = NULL;
    size_t n = 0;
    int r = sys_read_file(f->file, SUBJECT_MAX, &text, &n);
    if (r < 0)
        return err_set(e, ERR_ORIGIN_DENIED, "token file %s: %s", f->file, err_text(r));
    for (size_t i = 0; i < ARRAY_SIZE(pairs) && r == 0; i++)
        r = web_form_pair(form, pairs[i].name, slice_str(pairs[i].value));
    r = r < 0 ? err_set(e, ERR_ORIGIN_DENIED, "the question for a token is too long")
              : add_subject(f, slice_of(text, n), form, e);
    explicit_bzero(text, n);
    return r;
}

/* {"accessToken": TEXT, "expireTime": DATE}. now_ns: by the clock of whoever says when it ends. */
static int read_account(struct slice text, uint64_t now_ns, char **ret, uint64_t *ret_life_ms, struct err *e)
{
    json_t *_cleanup_(gs_json_unrefp) j = web_json(text, 0, NULL);
    const char *token = json_string_value(json_object_get(j, "accessToken"));
    struct slice end = slice_str(json_string_value(json_object_get(j, "expireTime")));
    uint64_t ends_ns = 0;
    bool good = token && *token && strlen(token) <= TOKEN_MAX && text_parse_date(end, &ends_ns) == 0;
    for (const char *p = token; good && *p; p++)
        good = *p > ' ' && *p < 0x7f;
    if (!good)
        return err_set(e, ERR_ORIGIN_FAILED, "the answer has no accessToken with expireTime");
    *ret = web_dup(token);
    *ret_life_ms = ends_ns > now_ns ? (ends_ns - now_ns) / 1000000 : 0;
    return 0;
}

int gs_federation_impersonate(const struct gs_federation *f, struct web *w, const char *scope, void **token,
                              uint64_t *ret_life_ms, struct err *e)
{
    struct buf _cleanup_buf_ bearer = BUF_INIT(TOKEN_MAX + 16), body = BUF_INIT(WEB_RESULT_MAX);
    struct web_call _cleanup_(web_call_fini) c;
    char _cleanup_free_ *post = NULL;
    char *found = NULL;
    if (asprintf(&post, "{\"scope\":[\"%s\"],\"lifetime\":\"%llus\"}", scope, (unsigned long long)f->life_s) <
        0)
        abort();
    web_call_init(&c, w, WEB_POST, "token");
    c.url = slice_str(f->account_uri);
    c.post = slice_str(post);
    int r = buf_printf(&bearer, "Bearer %s", (const char *)*token);
    web_header(&c, SLICE_LIT("content-type"), SLICE_LIT("application/json"));
    web_header(&c, SLICE_LIT("authorization"), buf_view(&bearer));
    c.on_body = web_collect;
    c.arg = &body;
    if (r == 0)
        r = web_perform(&c, e);
    /* as in s3_role_ask: this machine's clock may be off */
    uint64_t now_ns = c.response.date_ns ? c.response.date_ns : sys->real_ns();
    if (r == 0)
        r = read_account(buf_view(&body), now_ns, &found, ret_life_ms, e);
    web_wipe(&bearer);
    web_wipe(&body);
    if (r < 0)
        return web_error_of_credentials(err_prefix(e, r, "access token from %s", f->account_uri), e);
    web_token_free(*token);
    *token = found;
    return 0;
}

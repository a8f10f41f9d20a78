/*
 * Access tokens (RFC 6750), as token and metadata services of several clouds give them (contract in
 * web_internal.h): {"access_token": TEXT, "expires_in": SECONDS}, or "expires_on", in seconds since 1970.
 *
 * Invariants:
 *  1. A token is printable ASCII without blanks: it becomes a header as it is.
 *  2. What was sent and received for it is wiped.
 *
 * Failure modes: those of web_error_of_credentials for a service that was named; a machine's own gives its
 * errors as they are, so that -ENOENT says that there is no identity.
 */
#include "origin/web_internal.h"

#include "base/text.h"

#include <jansson.h>

#define TOKEN_MAX  (16 * KIB)
#define LIFE_MAX_S ((uint64_t)7 * 86400)
#define DMI_MAX    4096

/* A number, which some services write as a text; 0: none. */
static uint64_t number(const json_t *x)
{
    uint64_t v = json_is_integer(x) && json_integer_value(x) > 0 ? (uint64_t)json_integer_value(x) : 0;
    if (json_is_string(x) && slice_u64(slice_str(json_string_value(x)), &v) < 0)
        v = 0;
    return v;
}

static bool read_life(const json_t *j, uint64_t *ret_s)
{
    uint64_t v = number(json_object_get(j, "expires_in")), now_s = sys->real_ns() / 1000000000;
    uint64_t end_s = number(json_object_get(j, "expires_on"));
    if (v == 0 && end_s > now_s)
        v = end_s - now_s;
    *ret_s = MIN(v, LIFE_MAX_S);
    return v > 0;
}

static int read_answer(struct slice text, char **ret_token, uint64_t *ret_life_s, struct err *e)
{
    json_t *j = web_json(text, 0, NULL);
    const json_t *token = json_object_get(j, "access_token");
    size_t n = json_string_length(token);
    bool good = n > 0 && n <= TOKEN_MAX && read_life(j, ret_life_s);
    for (size_t i = 0; i < n && good; i++) {
        char c = json_string_value(token)[i];
        good = c > ' ' && c < 0x7f;
    }
    if (good)
        *ret_token = slice_dup(slice_of(json_string_value(token), n));
    json_decref(j);
    return good ? 0 : err_set(e, ERR_ORIGIN_FAILED, "the answer has no access_token with expires_in");
}

int web_token_ask(struct web *w, const struct web_token_ask *q, void **ret, uint64_t *ret_life_ms,
                  struct err *e)
{
    char *token = NULL;
    uint64_t life_s = 0;
    struct buf _cleanup_buf_ body = BUF_INIT(WEB_RESULT_MAX);
    struct web_call _cleanup_(web_call_fini) c;
    web_call_init(&c, w, q->form ? WEB_POST : WEB_GET, "token");
    if (q->form) {
        c.post = buf_view(q->form);
        web_header(&c, SLICE_LIT("content-type"), SLICE_LIT("application/x-www-form-urlencoded"));
    } else {
        web_header(&c, q->header, q->header_value);
    }
    c.on_body = web_collect;
    c.arg = &body;
    int r = web_perform(&c, e);
    if (r == 0)
        r = read_answer(buf_view(&body), &token, &life_s, e);
    web_wipe(q->form);
    web_wipe(&body);
    if (r < 0) {
        struct slice rest = slice_str(q->uri), at = slice_split(&rest, '?');
        r = err_prefix(e, r, "access token from " SLICE_FMT, SLICE_ARG(at));
        return q->form ? web_error_of_credentials(r, e) : r;
    }
    *ret = token;
    *ret_life_ms = life_s * 1000;
    return 0;
}

int web_token_copy(const void *now, void *ret, struct err *e)
{
    int r = buf_str(ret, now);
    return r < 0 ? err_set(e, ERR_ORIGIN_FAILED, "the access token is too long") : 0;
}

void web_token_free(void *now)
{
    if (now)
        explicit_bzero(now, strlen(now));
    free(now);
}

int web_token_tell(const char *who, struct buf *token, struct buf *b)
{
    const char *what = token->n ? "" : ", which has none: requests are anonymous";
    web_wipe(token);
    return buf_printf(b, "%s%s", who, what);
}

/* ---- small ---- */

void web_wipe(struct buf *b)
{
    if (b && b->p)
        explicit_bzero(b->p, b->n);
}

int web_form_pair(struct buf *b, const char *name, struct slice value)
{
    int r = buf_printf(b, "%s%s=", b->n ? "&" : "", name);
    return r < 0 ? r : text_uri_encode(b, value, /* keep_slash= */ false);
}

bool web_machine_says(const char *file, struct slice start)
{
    char _cleanup_free_ *text = NULL;
    size_t n = 0;
    return sys_read_file(file, DMI_MAX, &text, &n) == 0 && slice_starts(slice_of(text, n), start);
}

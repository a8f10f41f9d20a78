/*
 * What a status means, and how a refusal is told.
 *
 * Invariants: every status maps to a negative code; texts hold no control characters, whatever the origin
 * sent. Failure modes: none.
 */
#include "origin/web_internal.h"

#include "base/sys.h"

#include <inttypes.h>

#define CLOCK_OFF_S 300 /* services take signatures that are 5 to 15 minutes off */

int web_error_class(int status)
{
    switch (status) {
    case 304:
        return ERR_NOT_MODIFIED;
    case 401:
    case 403:
        return ERR_ORIGIN_DENIED;
    case 404:
    case 410:
        return -ENOENT;
    case 408:
        return -ETIMEDOUT;
    case 409:
        return ERR_CONFLICT;
    case 412:
        return ERR_PRECONDITION;
    case 413:
        return -EFBIG;
    case 416:
        return ERR_RANGE;
    case 429:
    case 503:
        return ERR_ORIGIN_BUSY;
    case 501:
        return ERR_NOT_IMPLEMENTED;
    case 502: /* of a proxy that does not reach the service */
        return ERR_ORIGIN_DOWN;
    case 504:
        return -ETIMEDOUT;
    case 507:
        return -ENOSPC;
    case 508: /* what it asks leads back to who asks it */
        return ERR_ORIGIN_SETUP;
    default:
        /* 200 with an error document: services put their own troubles there by codes of their tables. */
        return status >= 200 && status < 500 ? ERR_ORIGIN_REFUSED : ERR_ORIGIN_FAILED;
    }
}

void web_error_text(char *to, size_t room, struct slice s)
{
    size_t n = MIN(s.n, room - 1);
    for (size_t i = 0; i < n; i++)
        to[i] = (unsigned char)s.p[i] < ' ' || s.p[i] == 0x7f ? ' ' : s.p[i];
    to[n] = '\0';
}

void web_error_add(struct err *e, const char *words)
{
    size_t n = e ? strlen(e->text) : 0;
    if (e)
        (void)snprintf(e->text + n, sizeof(e->text) - n, "%s", words);
}

void web_error_line(struct slice body, char *to, size_t room)
{
    body = slice_trim(slice_split(&body, '\n'));
    bool markup = body.n > 0 && body.p[0] == '<';
    web_error_text(to, room, markup ? SLICE_NULL : slice_sub(body, 0, MIN(body.n, (size_t)120)));
}

/* A signature is refused, too, when the clocks differ; answers to HEAD and some services do not say so. */
static void add_clock(struct err *e, const struct web_response *r)
{
    int64_t off_s = ((int64_t)sys->real_ns() - (int64_t)r->date_ns) / 1000000000;
    if ((r->status != 401 && r->status != 403) || r->date_ns == 0 || llabs(off_s) < CLOCK_OFF_S)
        return;
    size_t n = strlen(e->text);
    (void)snprintf(e->text + n, sizeof(e->text) - n,
                   "; this machine's clock is %" PRId64 " s %s the service's: is it right?",
                   off_s < 0 ? -off_s : off_s, off_s < 0 ? "behind" : "ahead of");
}

int web_error_set(struct err *e, int class, const struct web_response *r, const char *code,
                  const char *message)
{
    const char *name = code[0] ? code : r->reason;
    (void)err_set(e, class, "%d%s%s%s%s", r->status, name[0] ? " " : "", name, message[0] ? ": " : "",
                  message);
    if (e)
        add_clock(e, r);
    return class;
}

bool web_error_is_strange(const struct web_response *r, struct slice body, int *ret, struct err *e)
{
    char line[128];
    if (r->has_id || (r->status != 404 && r->status != 410))
        return false;
    web_error_line(body, line, sizeof(line));
    *ret = err_set(e, ERR_ORIGIN_FAILED, "no answer of the service: %d %s%s%s", r->status, r->reason,
                   line[0] ? ": " : "", line);
    return true;
}

int web_error_of_credentials(int r, struct err *e)
{
    static const int as_they_are[] = {0,
                                      ERR_ORIGIN_BUSY,
                                      ERR_ORIGIN_DOWN,
                                      ERR_ORIGIN_FAILED,
                                      ERR_ORIGIN_SHORT,
                                      ERR_ORIGIN_REFUSED,
                                      ERR_ORIGIN_SETUP,
                                      -ETIMEDOUT,
                                      -ECANCELED};
    for (size_t i = 0; i < ARRAY_SIZE(as_they_are); i++)
        if (r == as_they_are[i])
            return r;
    if (e)
        e->code = ERR_ORIGIN_DENIED;
    return ERR_ORIGIN_DENIED;
}

int web_error_lookup(const struct web_error_row *table, size_t n, int status, struct slice code)
{
    for (size_t i = 0; code.n > 0 && i < n; i++)
        if (slice_eq_str(code, table[i].code))
            return table[i].class;
    /* Of the conflicts only those of the table pass by themselves; "a directory is there" does not. */
    return status == 409 && code.n > 0 ? ERR_ORIGIN_REFUSED : web_error_class(status);
}

/* ---- documents ---- */

static int on_element(void *arg, unsigned depth, const char *parent, const char *name, struct slice text,
                      struct err *e)
{
    (void)e;
    struct web_error *x = arg;
    if (depth < 2 || strcmp(parent, "Error") != 0)
        return 0;
    text = slice_trim(text);
    if (strcmp(name, "Code") == 0)
        web_error_text(x->code, sizeof(x->code), text);
    else if (strcmp(name, "Message") == 0)
        web_error_text(x->message, sizeof(x->message), text);
    else if (strcmp(name, "Region") == 0)
        web_error_text(x->region, sizeof(x->region), text);
    else if (strcmp(name, "AuthenticationErrorDetail") == 0)
        web_error_text(x->detail, sizeof(x->detail), text);
    return 0;
}

void web_error_parse(struct slice body, struct web_error *ret)
{
    memset(ret, 0, sizeof(*ret));
    struct web_xml *_cleanup_(web_xml_freep) x = web_xml_new(WEB_ERROR_BODY_MAX, on_element, ret);
    /* A document that is cut or broken tells what stands before the break. */
    if (web_xml_feed(x, body.p, body.n, NULL) == 0)
        (void)web_xml_end(x, NULL);
}

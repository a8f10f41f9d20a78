/*
 * Error codes and their texts.
 *
 * Invariants:
 *  1. The text of a struct err is always NUL-terminated and never longer than ERR_TEXT_MAX - 1 bytes.
 *  2. A code that is set is negative; 0 would read as success further up.
 *
 * Failure modes: none; a text that does not fit is cut at the end, or before the reason that stands there.
 */
#include "base/err.h"

#include <limits.h>
#include <string.h>

#define CUT_LEAST 80 /* bytes of a text that are left when it is cut for what stands behind it */

static void PRINTF_LIKE(5, 0)
    set_text(struct err *e, int code, const char *file, int line, const char *fmt, va_list ap)
{
    e->code = code;
    e->file = file;
    e->line = line;
    if (vsnprintf(e->text, sizeof(e->text), fmt, ap) < 0)
        e->text[0] = '\0';
}

/* ": why" behind a text of ERR_TEXT_MAX bytes, or the bare reason. A text that leaves no room for it, as the
 * name of something may be, is cut: what is wrong with it matters more. */
static void put_behind(char *text, const char *why)
{
    size_t n = strlen(text), room = ERR_TEXT_MAX - 1, behind = strlen(": ") + strlen(why);
    size_t most = MAX(room - MIN(room, behind), (size_t)CUT_LEAST);
    if (n > most) {
        n = most;
        memcpy(text + n - strlen("..."), "...", strlen("..."));
    }
    (void)snprintf(text + n, ERR_TEXT_MAX - n, "%s%s", n ? ": " : "", why);
}

int err_set_at(struct err *e, int code, const char *file, int line, const char *fmt, ...)
{
    assert(code < 0);
    if (e) {
        va_list ap;
        va_start(ap, fmt);
        set_text(e, code, file, line, fmt, ap);
        va_end(ap);
    }
    return code;
}

int err_errno_at(struct err *e, int code, const char *file, int line, const char *fmt, ...)
{
    assert(code < 0);
    if (e) {
        va_list ap;
        va_start(ap, fmt);
        set_text(e, code, file, line, fmt, ap);
        va_end(ap);
        put_behind(e->text, err_text(code));
    }
    return code;
}

int err_prefix(struct err *e, int code, const char *fmt, ...)
{
    if (!e)
        return code;
    char text[ERR_TEXT_MAX];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    if (n < 0)
        return code;
    put_behind(text, e->text[0] ? e->text : err_text(code));
    memcpy(e->text, text, sizeof(text));
    if (e->code == 0)
        e->code = code;
    return code;
}

/* Also of a peer's number that has no positive counterpart. */
static bool is_errno(int code)
{
    return code < 0 && code >= -INT_MAX;
}

const char *err_text(int code)
{
    switch (code) {
#define X(name, value, http, text)                                                                           \
    case -(value):                                                                                           \
        return text;
        ERR_TABLE(X)
#undef X
    default:
        break;
    }
    const char *text = is_errno(code) ? strerrordesc_np(-code) : code == 0 ? "success" : NULL;
    return text ? text : "unknown error";
}

const char *err_name(int code)
{
    switch (code) {
#define X(name, value, http, text)                                                                           \
    case -(value):                                                                                           \
        return #name;
        ERR_TABLE(X)
#undef X
    default:
        break;
    }
    const char *name = is_errno(code) ? strerrorname_np(-code) : code == 0 ? "OK" : NULL;
    return name ? name : "UNKNOWN";
}

/* X(errno value, HTTP status) of the errno values that have a better answer than 500. */
#define ERRNO_HTTP_TABLE(X)                                                                                  \
    X(ENOENT, 404)                                                                                           \
    X(ENOTDIR, 404)                                                                                          \
    X(EACCES, 403)                                                                                           \
    X(EPERM, 403)                                                                                            \
    X(EROFS, 403)                                                                                            \
    X(EEXIST, 409)                                                                                           \
    X(EISDIR, 409)                                                                                           \
    X(ENOTEMPTY, 409)                                                                                        \
    X(EBUSY, 409)                                                                                            \
    X(ESTALE, 409)                                                                                           \
    X(EINVAL, 400)                                                                                           \
    X(ENAMETOOLONG, 400)                                                                                     \
    X(EILSEQ, 400)                                                                                           \
    X(ELOOP, 400)                                                                                            \
    X(EFBIG, 413)                                                                                            \
    X(E2BIG, 413)                                                                                            \
    X(ENOSPC, 507)                                                                                           \
    X(EDQUOT, 507)                                                                                           \
    X(ETIMEDOUT, 504)                                                                                        \
    X(ECONNREFUSED, 502)                                                                                     \
    X(ECONNRESET, 502)                                                                                       \
    X(EHOSTUNREACH, 502)                                                                                     \
    X(ENETUNREACH, 502)                                                                                      \
    X(ENOMEM, 503)                                                                                           \
    X(EAGAIN, 503)                                                                                           \
    X(EMFILE, 503)                                                                                           \
    X(ENFILE, 503)                                                                                           \
    X(ENOSYS, 501)                                                                                           \
    X(EOPNOTSUPP, 501)

int err_http_status(int code)
{
    switch (code) {
    case 0:
        return 200;
#define X(name, value, http, text)                                                                           \
    case -(value):                                                                                           \
        return http;
        ERR_TABLE(X)
#undef X
#define X(value, http)                                                                                       \
    case -(value):                                                                                           \
        return http;
        ERRNO_HTTP_TABLE(X)
#undef X
    default:
        return 500;
    }
}

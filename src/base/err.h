/*
 * The one error type.
 *
 * A function that can fail returns 0 or a negative code: a negated errno value at the edge of the system, or
 * one of the negative ERR_* codes below for conditions that errno cannot name. What a person needs to
 * understand the failure travels beside it in an optional `struct err *`, which each level prefixes on the
 * way up:
 *
 *     open bucket data: origin s3://x: 403 AccessDenied
 *
 * A function either logs or returns an error, not both. `struct err` holds no pointers and needs no
 * destructor.
 */
#pragma once

#include "base/macro.h"

#include <errno.h>
#include <stdarg.h>

/* X(NAME, value, HTTP status, text). Values are stable: they travel in wire replies. */
#define ERR_TABLE(X)                                                                                         \
    X(CORRUPT, 4096, 500, "stored data failed its check")                                                    \
    X(PROTOCOL, 4097, 400, "message breaks the protocol")                                                    \
    X(CONFLICT, 4098, 409, "changed by someone else meanwhile")                                              \
    X(PRECONDITION, 4099, 412, "precondition failed")                                                        \
    X(NOT_MODIFIED, 4100, 304, "not modified")                                                               \
    X(RANGE, 4101, 416, "range outside the object")                                                          \
    X(VERSION_CHANGED, 4102, 409, "the origin's object changed while it was read")                           \
    X(ORIGIN_DENIED, 4103, 403, "the origin refused access")                                                 \
    X(ORIGIN_BUSY, 4104, 503, "the origin asked to slow down")                                               \
    X(ORIGIN_DOWN, 4105, 502, "the origin cannot be reached")                                                \
    X(ORIGIN_FAILED, 4106, 502, "the origin answered with an error")                                         \
    X(ORIGIN_SHORT, 4107, 502, "the origin sent fewer or more bytes than it announced")                      \
    X(NO_BUCKET, 4108, 404, "no such bucket")                                                                \
    X(BUCKET_EXISTS, 4109, 409, "a bucket of that name exists")                                              \
    X(NOT_ADMITTED, 4110, 507, "the cache has no room for it")                                               \
    X(BAD_OPTION, 4111, 400, "option or value not understood")                                               \
    X(UNAUTHENTICATED, 4112, 403, "credentials missing or wrong")                                            \
    X(NOT_IMPLEMENTED, 4113, 501, "not implemented")                                                         \
    X(CLOSED, 4114, 503, "shutting down")                                                                    \
    X(NO_ROUTE, 4115, 503, "no node for this key")                                                           \
    X(ORIGIN_REFUSED, 4116, 502, "the origin refused the request")                                           \
    X(ORIGIN_SETUP, 4117, 502, "the origin cannot be used as it is set up")

enum err_code {
#define X(name, value, http, text) ERR_##name = -(value),
    ERR_TABLE(X)
#undef X
};

#define ERR_TEXT_MAX 512

struct err {
    int code;         /* 0, -errno or ERR_* */
    const char *file; /* where it was raised */
    int line;
    char text[ERR_TEXT_MAX]; /* for people; cut at the end when too long */
};

/* Fills `e` (may be NULL) and returns `code`, so that `return err_set(e, -ENOENT, "no such file %s", p);`
 * works. */
#define err_set(e, code, ...) err_set_at((e), (code), __FILE__, __LINE__, __VA_ARGS__)
int err_set_at(struct err *e, int code, const char *file, int line, const char *fmt, ...) PRINTF_LIKE(5, 6);

/* As err_set with the code's own text appended: `err_errno(e, -errno, "open %s", path)` reads "open x: No
 * such..". */
#define err_errno(e, code, ...) err_errno_at((e), (code), __FILE__, __LINE__, __VA_ARGS__)
int err_errno_at(struct err *e, int code, const char *file, int line, const char *fmt, ...) PRINTF_LIKE(5, 6);

/* Puts "prefix: ", cut where that is needed, before the text that is there and returns `code` unchanged. `e`
 * may be NULL. */
int err_prefix(struct err *e, int code, const char *fmt, ...) PRINTF_LIKE(3, 4);

/* Text of a code alone, never NULL; static storage. */
const char *err_text(int code);
/* Short stable name: "ENOENT", "CORRUPT", ...; static storage. */
const char *err_name(int code);
/* HTTP status that fits the code: 404 for -ENOENT, 500 for what has no better. */
int err_http_status(int code);

/*
 * HTTP/1.1 request heads, strictly (RFC 9112): pure, no socket. Refused with a status: bare LF in header
 * lines, spaces before the colon, obsolete folding, bytes below 0x20, both Content-Length and
 * Transfer-Encoding, two different lengths, an HTTP/1.1 request without Host, a Host other than that of a
 * target in the absolute form, transfer codings other than chunked.
 */
#pragma once

#include "base/arena.h"
#include "base/buf.h"
#include "base/err.h"

#define HTTP_HEAD_MAX_BYTES (32 * KIB)
#define HTTP_HEADERS_MAX    128
#define HTTP_PAIRS_MAX      64

struct http_header {
    struct slice name;  /* as sent; compare with slice_eq_case */
    struct slice value; /* trimmed */
};

struct http_request {
    struct slice method;
    struct slice target;   /* as sent */
    struct slice raw_path; /* before '?' */
    struct slice raw_query;
    int minor; /* HTTP/1.x */
    struct http_header headers[HTTP_HEADERS_MAX];
    size_t n_headers;
    bool has_length, chunked, expect_continue, keep_alive;
    uint64_t content_length;
    size_t head_bytes; /* length of the head with its empty line */
};

/* Parses what is in `text`. -EAGAIN: not complete yet; ERR_PROTOCOL with ret_status (400, 413, 414, 431,
 * 501, 505) otherwise. Slices point into text. */
int http_parse_head(struct slice text, struct http_request *ret, int *ret_status, struct err *e);
/* Whether parsing `text` could give anything but -EAGAIN, when its first `seen` bytes have given that. For
 * heads that arrive in small pieces: parsing anew for each byte would cost as much as the square of the head.
 */
bool http_head_may_end(struct slice text, size_t seen);
/* First header of that name, or SLICE_NULL. */
struct slice http_header_named(const struct http_request *r, struct slice name);
/* The same; inline, so that the length of a literal is known and not counted for each request. */
static inline struct slice http_header(const struct http_request *r, const char *name)
{
    return http_header_named(r, slice_str(name));
}

struct http_pair {
    struct slice name, value; /* decoded */
    bool has_value;           /* "?uploads" against "?uploads=" */
};
/* First pair of that name, or NULL. */
const struct http_pair *http_pair_named(const struct http_pair *pairs, size_t n, struct slice name);
/* Query string split and decoded: slices point into `raw`, or into the arena. -E2BIG beyond HTTP_PAIRS_MAX,
 * -EINVAL for broken escapes. */
int http_parse_query(struct slice raw, struct arena *a, struct http_pair **ret, size_t *ret_n);

struct http_range {
    uint64_t offset, n;
};
/* One "bytes=" range against a size: 0 and the range; -ENOENT when there is no (usable) Range: serve all;
 * ERR_RANGE when it lies outside. Several ranges count as none, as S3 does. */
int http_parse_range(struct slice value, uint64_t size, struct http_range *ret);
const char *http_reason(int status);

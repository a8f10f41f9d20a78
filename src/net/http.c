/*
 * HTTP/1.1 request heads, query strings and ranges (contract in http.h). Pure: no socket, no clock, no heap
 * besides the caller's arena.
 *
 * Invariants:
 *  1. Nothing beyond text.n is read, and every slice handed out lies inside `text` (or in the arena for
 * queries).
 *  2. A head is answered -EAGAIN only while more bytes could still make it valid: a bare LF, a head over its
 * maximum or a broken request line is refused at once, so that a sender cannot hold a connection with
 * garbage.
 *  3. Each byte of a complete head is looked at a constant number of times; of one that arrives in pieces,
 * once more for each line that ends in another piece, of which there are as many as headers
 * (http_head_may_end).
 *
 * Source of the grammar: RFC 9112 sections 2 to 6, RFC 9110 sections 5, 7.2, 10.1.1 and 14.
 */
#include "net/http.h"

#include "base/text.h"

#define TARGET_MAX_BYTES       (16 * KIB)
#define REQUEST_LINE_MAX_BYTES (TARGET_MAX_BYTES + 64)

/* Sets the status that the peer gets with the error. */
#define REFUSE(http_status, ...) (*ret_status = (http_status), err_set(e, ERR_PROTOCOL, __VA_ARGS__))

/* RFC 9110 5.6.2: the characters of methods and header names. */
static bool is_token_char(unsigned char c)
{
    static const uint8_t table[256] = {
        ['!'] = 1, ['#'] = 1, ['$'] = 1, ['%'] = 1,         ['&'] = 1,         ['\''] = 1,
        ['*'] = 1, ['+'] = 1, ['-'] = 1, ['.'] = 1,         ['^'] = 1,         ['_'] = 1,
        ['`'] = 1, ['|'] = 1, ['~'] = 1, ['0' ... '9'] = 1, ['a' ... 'z'] = 1, ['A' ... 'Z'] = 1,
    };
    return table[c];
}

static bool is_token(struct slice s)
{
    for (size_t i = 0; i < s.n; i++)
        if (!is_token_char((unsigned char)s.p[i]))
            return false;
    return s.n > 0;
}

/* Takes the next item of a comma-separated list off *s; false at its end. */
static bool next_item(struct slice *s, struct slice *ret)
{
    while (s->n > 0) {
        struct slice item = slice_trim(slice_split(s, ','));
        if (item.n > 0) {
            *ret = item;
            return true;
        }
    }
    return false;
}

/* ---- request line ---- */

/* "http://host:port/path" becomes "/path" (RFC 9112 3.2.2: a server must accept the absolute form). */
static bool strip_authority(struct slice *path, struct slice *ret_authority)
{
    struct slice s = *path;
    if (s.n >= 7 && slice_eq_case(slice_sub(s, 0, 7), SLICE_LIT("http://")))
        s = slice_from(s, 7);
    else if (s.n >= 8 && slice_eq_case(slice_sub(s, 0, 8), SLICE_LIT("https://")))
        s = slice_from(s, 8);
    else
        return false;
    ssize_t slash = slice_find(s, '/');
    if (slash <= 0)
        return false;
    *ret_authority = slice_sub(s, 0, (size_t)slash);
    *path = slice_from(s, (size_t)slash);
    return true;
}

static int refuse_target(struct slice target, int *ret_status, struct err *e)
{
    size_t i = 0;
    while (i + 1 < target.n && target.p[i] != '#' && slice_is_visible(slice_sub(target, i, 1)))
        i++;
    return REFUSE(400, "byte 0x%02x in the request target", (unsigned char)target.p[i]);
}

struct seen {
    struct slice authority; /* of the target; empty: it has none */
    struct slice host_value;
    bool host, coding;
    bool connection_close, connection_keep;
};

static int parse_target(struct slice target, struct http_request *r, struct seen *seen, int *ret_status,
                        struct err *e)
{
    if (target.n > TARGET_MAX_BYTES)
        return REFUSE(414, "request target of %zu bytes, at most %d", target.n, (int)TARGET_MAX_BYTES);
    if (!slice_is_visible(target) || slice_find(target, '#') >= 0)
        return refuse_target(target, ret_status, e);
    r->target = target;
    struct slice rest = target;
    r->raw_path = slice_split(&rest, '?');
    r->raw_query = rest;
    bool asterisk = slice_eq_str(target, "*") && slice_eq_str(r->method, "OPTIONS");
    if (!asterisk && (r->raw_path.n == 0 || r->raw_path.p[0] != '/') &&
        !strip_authority(&r->raw_path, &seen->authority))
        return REFUSE(400, "request target does not begin with '/'");
    return 0;
}

static int parse_version(struct slice v, struct http_request *r, int *ret_status, struct err *e)
{
    if (v.n != 8 || memcmp(v.p, "HTTP/", 5) != 0 || v.p[5] < '0' || v.p[5] > '9' || v.p[6] != '.' ||
        v.p[7] < '0' || v.p[7] > '9')
        return REFUSE(400, "broken protocol version");
    if (v.p[5] != '1')
        return REFUSE(505, "HTTP major version %c", v.p[5]);
    r->minor = v.p[7] == '0' ? 0 : 1;
    return 0;
}

static int parse_request_line(struct slice line, struct http_request *r, struct seen *seen, int *ret_status,
                              struct err *e)
{
    ssize_t first = slice_find(line, ' '), last = slice_rfind(line, ' ');
    if (first <= 0 || last <= first + 1)
        return REFUSE(400, "broken request line");
    r->method = slice_sub(line, 0, (size_t)first);
    if (!is_token(r->method) || r->method.n > 32)
        return REFUSE(400, "broken method");
    int k = parse_version(slice_from(line, (size_t)last + 1), r, ret_status, e);
    if (k < 0)
        return k;
    return parse_target(slice_sub(line, (size_t)first + 1, (size_t)(last - first - 1)), r, seen, ret_status,
                        e);
}

/* ---- headers ---- */

static int on_length(struct slice value, struct http_request *r, int *ret_status, struct err *e)
{
    uint64_t n;
    int k = slice_u64(value, &n);
    if (k == -ERANGE || (k == 0 && n > INT64_MAX))
        return REFUSE(413, "Content-Length too large");
    if (k < 0)
        return REFUSE(400, "Content-Length is not a number");
    if (r->has_length && n != r->content_length)
        return REFUSE(400, "two different Content-Length");
    r->has_length = true;
    r->content_length = n;
    return 0;
}

static int on_coding(struct slice value, struct http_request *r, struct seen *seen, int *ret_status,
                     struct err *e)
{
    if (seen->coding || r->minor == 0)
        return REFUSE(400, "Transfer-Encoding twice or in HTTP/1.0");
    seen->coding = true;
    if (!slice_eq_case(value, SLICE_LIT("chunked")))
        return REFUSE(501, "transfer coding not supported");
    r->chunked = true;
    return 0;
}

static int on_host(struct slice value, struct seen *seen, int *ret_status, struct err *e)
{
    if (seen->host)
        return REFUSE(400, "two Host headers");
    seen->host = true;
    static const bool wrong[256] = {[0] = true,   [' '] = true, ['\t'] = true, ['/'] = true, ['?'] = true,
                                    ['#'] = true, ['@'] = true, ['\\'] = true, [','] = true};
    for (size_t i = 0; i < value.n; i++)
        if (wrong[(unsigned char)value.p[i]])
            return REFUSE(400, "broken Host header");
    seen->host_value = value;
    return 0;
}

static void on_connection(struct slice value, struct seen *seen)
{
    struct slice item;
    while (next_item(&value, &item)) {
        if (slice_eq_case(item, SLICE_LIT("close")))
            seen->connection_close = true;
        else if (slice_eq_case(item, SLICE_LIT("keep-alive")))
            seen->connection_keep = true;
    }
}

/* What the framing of the message depends on; other headers are the handler's business. */
static int on_header(const struct http_header *h, struct http_request *r, struct seen *seen, int *ret_status,
                     struct err *e)
{
    switch (h->name.n) {
    case 4:
        if (slice_eq_case(h->name, SLICE_LIT("host")))
            return on_host(h->value, seen, ret_status, e);
        return 0;
    case 6:
        if (!slice_eq_case(h->name, SLICE_LIT("expect")))
            return 0;
        if (!slice_eq_case(h->value, SLICE_LIT("100-continue")))
            return 0; /* RFC 9110, 10.1.1 leaves it to the server; clients that send others expect to be
                         served */
        r->expect_continue = r->minor > 0;
        return 0;
    case 10:
        if (slice_eq_case(h->name, SLICE_LIT("connection")))
            on_connection(h->value, seen);
        return 0;
    case 14:
        if (slice_eq_case(h->name, SLICE_LIT("content-length")))
            return on_length(h->value, r, ret_status, e);
        return 0;
    case 17:
        if (slice_eq_case(h->name, SLICE_LIT("transfer-encoding")))
            return on_coding(h->value, r, seen, ret_status, e);
        return 0;
    default:
        return 0;
    }
}

static int parse_header_line(struct slice line, struct http_request *r, struct seen *seen, int *ret_status,
                             struct err *e)
{
    if (r->n_headers == HTTP_HEADERS_MAX)
        return REFUSE(431, "more than %d headers", HTTP_HEADERS_MAX);
    ssize_t colon = slice_find(line, ':');
    if (colon < 0)
        return REFUSE(400, "header line without a colon");
    struct http_header *h = &r->headers[r->n_headers];
    h->name = slice_sub(line, 0, (size_t)colon);
    if (!is_token(h->name)) /* also catches folded lines and blanks before the colon */
        return REFUSE(400, "broken header name");
    h->value =
        slice_trim(slice_of(line.p + colon + 1, line.n - (size_t)colon - 1)); /* empty: there all the same */
    if (slice_has_control(h->value)) /* visible ASCII, blanks, tabs and bytes from 0x80 on may be in one */
        return REFUSE(400, "control character in header " SLICE_FMT, SLICE_ARG(h->name));
    r->n_headers++;
    return on_header(h, r, seen, ret_status, e);
}

static int check_whole(struct http_request *r, const struct seen *seen, int *ret_status, struct err *e)
{
    if (r->minor > 0 && !seen->host)
        return REFUSE(400, "no Host header");
    /* RFC 9112 3.2.2 lets the target decide, and clients send the same: who stands in between may have looked
     * at the other one. */
    if (seen->authority.n > 0 && seen->host && !slice_eq_case(seen->authority, seen->host_value))
        return REFUSE(400, "the Host header is not the host of the request target");
    if (r->has_length && r->chunked)
        return REFUSE(400, "both Content-Length and Transfer-Encoding");
    r->keep_alive = seen->connection_close ? false : r->minor > 0 || seen->connection_keep;
    if (!r->chunked && r->content_length == 0)
        r->expect_continue = false;
    return 0;
}

/* Finds the CRLF that ends the line at *at; lines end in CRLF only. -EAGAIN when the end is not there yet. */
static int next_line(struct slice text, size_t *at, struct slice *ret, int *ret_status, struct err *e)
{
    const char *start = text.p + *at;
    const char *lf = memchr(start, '\n', text.n - *at);
    if (!lf)
        return -EAGAIN;
    if (lf == start || lf[-1] != '\r')
        return REFUSE(400, "line ends without CR");
    *ret = slice_of(start, (size_t)(lf - start) - 1);
    *at = (size_t)(lf - text.p) + 1;
    return 0;
}

/* Too long to be worth waiting for more? */
static int check_incomplete(struct slice text, bool in_request_line, int *ret_status, struct err *e)
{
    if (in_request_line && text.n > REQUEST_LINE_MAX_BYTES)
        return REFUSE(414, "request line of more than %d bytes", (int)TARGET_MAX_BYTES);
    if (text.n >= HTTP_HEAD_MAX_BYTES)
        return REFUSE(431, "request head of more than %d bytes", (int)HTTP_HEAD_MAX_BYTES);
    return -EAGAIN;
}

/* Nothing is decided but where a line ends, or where check_incomplete draws a line. */
bool http_head_may_end(struct slice text, size_t seen)
{
    assert(seen <= text.n);
    return (text.n > seen && memchr(text.p + seen, '\n', text.n - seen)) || text.n >= HTTP_HEAD_MAX_BYTES ||
           (seen <= REQUEST_LINE_MAX_BYTES && text.n > REQUEST_LINE_MAX_BYTES);
}

int http_parse_head(struct slice text, struct http_request *ret, int *ret_status, struct err *e)
{
    assert(ret != NULL && ret_status != NULL);
    /* A head is always parsed from its beginning. */
    size_t at =
        text.n >= 2 && memcmp(text.p, "\r\n", 2) == 0 ? 2 : 0; /* RFC 9112 2.2: one empty line before */
    struct seen seen = {0};
    struct slice line;
    memset(ret, 0, offsetof(struct http_request, headers));
    ret->n_headers = 0;
    ret->has_length = ret->chunked = ret->expect_continue = ret->keep_alive = false;
    ret->content_length = 0;
    int k = next_line(text, &at, &line, ret_status, e);
    if (k == -EAGAIN)
        return check_incomplete(text, true, ret_status, e);
    if (k == 0)
        k = parse_request_line(line, ret, &seen, ret_status, e);
    while (k == 0) {
        k = next_line(text, &at, &line, ret_status, e);
        if (k == -EAGAIN)
            return check_incomplete(text, false, ret_status, e);
        if (k < 0 || line.n == 0)
            break;
        k = parse_header_line(line, ret, &seen, ret_status, e);
    }
    if (k == 0 && at > HTTP_HEAD_MAX_BYTES)
        k = REFUSE(431, "request head of more than %d bytes", (int)HTTP_HEAD_MAX_BYTES);
    if (k == 0)
        k = check_whole(ret, &seen, ret_status, e);
    ret->head_bytes = k == 0 ? at : 0;
    return k;
}

struct slice http_header_named(const struct http_request *r, struct slice name)
{
    for (size_t i = 0; i < r->n_headers; i++)
        if (r->headers[i].name.n == name.n && slice_eq_case(r->headers[i].name, name))
            return r->headers[i].value;
    return SLICE_NULL;
}

/* ---- query ---- */

const struct http_pair *http_pair_named(const struct http_pair *pairs, size_t n, struct slice name)
{
    for (size_t i = 0; i < n; i++)
        if (slice_eq(pairs[i].name, name))
            return &pairs[i];
    return NULL;
}

static int decode_into(struct slice raw, struct arena *a, struct slice *ret)
{
    char *to = arena_alloc(a, raw.n);
    ssize_t n = text_uri_decode_to(to, raw, /* plus_is_space= */ true);
    if (n < 0)
        return -EINVAL;
    *ret = slice_of(to, (size_t)n);
    return 0;
}

static bool needs_decoding(struct slice s)
{
    return slice_find(s, '%') >= 0 || slice_find(s, '+') >= 0;
}

/* What has nothing to decode stays where it is. */
static int take_pair(struct slice item, bool is_escaped, struct arena *a, struct http_pair *ret)
{
    ssize_t equals = slice_find(item, '=');
    ret->has_value = equals >= 0;
    ret->name = slice_of(item.p, equals >= 0 ? (size_t)equals : item.n);
    ret->value = equals >= 0 ? slice_of(item.p + equals + 1, item.n - (size_t)equals - 1) : SLICE_LIT("");
    int k = is_escaped && needs_decoding(ret->name) ? decode_into(ret->name, a, &ret->name) : 0;
    return k == 0 && is_escaped ? decode_into(ret->value, a, &ret->value) : k;
}

/* What stands between '&', without what is empty. */
static int split_query(struct slice raw, struct slice items[HTTP_PAIRS_MAX], size_t *ret_n)
{
    size_t n = 0;
    for (size_t seen = 1; raw.n > 0; seen++) {
        ssize_t end = slice_find(raw, '&');
        struct slice item = end >= 0 ? slice_of(raw.p, (size_t)end) : raw;
        if (end >= 0 && seen == HTTP_PAIRS_MAX)
            return -E2BIG;
        if (item.n > 0)
            items[n++] = item;
        raw = end >= 0 ? slice_from(raw, (size_t)end + 1) : SLICE_NULL;
    }
    *ret_n = n;
    return 0;
}

int http_parse_query(struct slice raw, struct arena *a, struct http_pair **ret, size_t *ret_n)
{
    assert(a != NULL && ret != NULL && ret_n != NULL);
    struct slice items[HTTP_PAIRS_MAX];
    size_t n;
    if (split_query(raw, items, &n) < 0)
        return -E2BIG;
    bool has_plus = slice_find(raw, '+') >= 0;
    const char *end = n > 0 ? raw.p + raw.n : NULL, *percent = NULL;
    struct http_pair *pairs = arena_alloc(a, n * sizeof(*pairs));
    for (size_t i = 0; i < n; i++) {
        if (!percent || percent < items[i].p) { /* the next one, or the end */
            percent = memchr(items[i].p, '%', (size_t)(end - items[i].p));
            percent = percent ? percent : end;
        }
        int k = take_pair(items[i], has_plus || percent < items[i].p + items[i].n, a, &pairs[i]);
        if (k < 0)
            return k;
    }
    *ret = pairs;
    *ret_n = n;
    return 0;
}

/* ---- range ---- */

/* Decimal; what does not fit counts as "very far". */
static int range_number(struct slice s, uint64_t *ret)
{
    int k = slice_u64(s, ret);
    if (k == -ERANGE) {
        *ret = UINT64_MAX;
        return 0;
    }
    return k;
}

int http_parse_range(struct slice value, uint64_t size, struct http_range *ret)
{
    uint64_t from = 0, to = UINT64_MAX;
    if (value.n < 6 || !slice_eq_case(slice_sub(value, 0, 6), SLICE_LIT("bytes=")))
        return -ENOENT;
    struct slice spec = slice_trim(slice_from(value, 6));
    if (slice_find(spec, ',') >= 0 || slice_find(spec, '-') < 0)
        return -ENOENT;
    struct slice first = slice_trim(slice_split(&spec, '-')), last = slice_trim(spec);
    if (first.n == 0) { /* "-n": the last n bytes */
        if (range_number(last, &from) < 0)
            return -ENOENT;
        if (from == 0 || size == 0)
            return ERR_RANGE;
        from = MIN(from, size);
        *ret = (struct http_range){size - from, from};
        return 0;
    }
    if (range_number(first, &from) < 0 || (last.n > 0 && range_number(last, &to) < 0) || to < from)
        return -ENOENT;
    if (from >= size)
        return ERR_RANGE;
    to = MIN(to, size - 1);
    *ret = (struct http_range){from, to - from + 1};
    return 0;
}

/* X(status, reason): RFC 9110 section 15, and 508 of RFC 5842, those that this server or a handler may send.
 */
#define REASONS(X)                                                                                           \
    X(100, "Continue")                                                                                       \
    X(200, "OK")                                                                                             \
    X(201, "Created")                                                                                        \
    X(202, "Accepted")                                                                                       \
    X(204, "No Content")                                                                                     \
    X(206, "Partial Content")                                                                                \
    X(301, "Moved Permanently")                                                                              \
    X(303, "See Other")                                                                                      \
    X(304, "Not Modified")                                                                                   \
    X(307, "Temporary Redirect")                                                                             \
    X(400, "Bad Request")                                                                                    \
    X(401, "Unauthorized")                                                                                   \
    X(403, "Forbidden")                                                                                      \
    X(404, "Not Found")                                                                                      \
    X(405, "Method Not Allowed")                                                                             \
    X(408, "Request Timeout")                                                                                \
    X(409, "Conflict")                                                                                       \
    X(411, "Length Required")                                                                                \
    X(412, "Precondition Failed")                                                                            \
    X(413, "Content Too Large")                                                                              \
    X(414, "URI Too Long")                                                                                   \
    X(416, "Range Not Satisfiable")                                                                          \
    X(417, "Expectation Failed")                                                                             \
    X(429, "Too Many Requests")                                                                              \
    X(431, "Request Header Fields Too Large")                                                                \
    X(500, "Internal Server Error")                                                                          \
    X(501, "Not Implemented")                                                                                \
    X(502, "Bad Gateway")                                                                                    \
    X(503, "Service Unavailable")                                                                            \
    X(504, "Gateway Timeout")                                                                                \
    X(505, "HTTP Version Not Supported")                                                                     \
    X(507, "Insufficient Storage")                                                                           \
    X(508, "Loop Detected")

const char *http_reason(int status)
{
    switch (status) {
#define X(number, text)                                                                                      \
    case number:                                                                                             \
        return text;
        REASONS(X)
#undef X
    default:
        return "Unknown";
    }
}

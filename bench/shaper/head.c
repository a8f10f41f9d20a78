/* Heads of HTTP messages and the end of chunked bodies; contract in head.h. Bytes are only looked at, never
 * changed. */
#include "head.h"

#include <errno.h>

#define CHUNK_MAX_BYTES ((uint64_t)1 << 50)

size_t head_length(struct slice s)
{
    ssize_t at = slice_find_slice(s, SLICE_LIT("\r\n\r\n"));
    return at < 0 ? 0 : (size_t)at + 4;
}

enum head_verb head_verb(struct slice method)
{
    static const struct slice names[] = {
#define X(name, text) SLICE_LIT(text),
        HEAD_VERBS(X)
#undef X
    };
    for (int i = 0; i < VERB_OTHER; i++)
        if (slice_eq(method, names[i]))
            return (enum head_verb)i;
    return VERB_OTHER;
}

/* True when the comma-separated value has the token. */
static bool has_token(struct slice value, const char *token)
{
    while (value.n)
        if (slice_eq_case(slice_trim(slice_split(&value, ',')), slice_str(token)))
            return true;
    return false;
}

/* Bytes that "bytes=A-B" asks for; 0 for every other form. */
static uint64_t range_length(struct slice value)
{
    uint64_t first, last;
    if (!slice_starts(value, SLICE_LIT("bytes=")))
        return 0;
    struct slice to = slice_from(value, 6), from = slice_split(&to, '-');
    if (slice_u64(from, &first) < 0 || slice_u64(to, &last) < 0 || last < first)
        return 0;
    return last - first + 1;
}

static int read_field(struct slice name, struct slice value, struct head *h, bool *keep)
{
    if (slice_eq_case(name, SLICE_LIT("content-length"))) {
        uint64_t n;
        if (slice_u64(value, &n) < 0 || (h->length_value.n && n != h->body_bytes) || h->body == BODY_CHUNKED)
            return -EINVAL;
        h->body = BODY_LENGTH;
        h->body_bytes = n;
        h->length_value = value;
    } else if (slice_eq_case(name, SLICE_LIT("transfer-encoding"))) {
        if (!slice_eq_case(value, SLICE_LIT("chunked")) || h->length_value.n)
            return -EINVAL;
        h->body = BODY_CHUNKED;
    } else if (slice_eq_case(name, SLICE_LIT("connection"))) {
        h->close = h->close || has_token(value, "close");
        *keep = *keep || has_token(value, "keep-alive");
    } else if (slice_eq_case(name, SLICE_LIT("expect"))) {
        h->expects_continue = slice_eq_case(value, SLICE_LIT("100-continue"));
    } else if (slice_eq_case(name, SLICE_LIT("range"))) {
        h->has_range = true;
        h->range_bytes = range_length(value);
    }
    return 0;
}

/* Fields from the second line on. `old`: HTTP/1.0, which closes unless told to keep. */
static int read_fields(struct slice rest, bool old, struct head *h)
{
    bool keep = false;
    while (rest.n) {
        struct slice line = slice_split(&rest, '\n');
        if (slice_ends(line, SLICE_LIT("\r")))
            line.n--;
        if (line.n == 0)
            break;
        if (slice_find(line, ':') <= 0)
            return -EINVAL;
        struct slice name = slice_split(&line, ':');
        int r = read_field(name, slice_trim(line), h, &keep);
        if (r < 0)
            return r;
    }
    h->close = h->close || (old && !keep);
    return 0;
}

static int read_version(struct slice v, bool *ret_old)
{
    *ret_old = slice_eq_str(v, "HTTP/1.0");
    return *ret_old || slice_eq_str(v, "HTTP/1.1") ? 0 : -EINVAL;
}

int head_parse_request(struct slice raw, struct head *ret)
{
    struct head h = {.raw = raw, .body = BODY_NONE};
    struct slice rest = raw, line = slice_split(&rest, '\n');
    if (slice_ends(line, SLICE_LIT("\r")))
        line.n--;
    h.method = slice_split(&line, ' ');
    h.target = slice_split(&line, ' ');
    bool old;
    if (!h.method.n || !h.target.n || read_version(line, &old) < 0 || read_fields(rest, old, &h) < 0)
        return -EINVAL;
    *ret = h;
    return 0;
}

int head_parse_response(struct slice raw, enum head_verb verb, struct head *ret)
{
    struct head h = {.raw = raw, .body = BODY_TO_END};
    struct slice rest = raw, line = slice_split(&rest, '\n');
    struct slice version = slice_split(&line, ' ');
    uint64_t status;
    bool old;
    if (line.n < 3 || slice_u64(slice_sub(line, 0, 3), &status) < 0 || status < 100 || status > 599)
        return -EINVAL;
    if (read_version(version, &old) < 0 || read_fields(rest, old, &h) < 0)
        return -EINVAL;
    h.status = (int)status;
    if (verb == VERB_HEAD || status < 200 || status == 204 || status == 304)
        h.body = BODY_NONE;
    if (h.body == BODY_TO_END)
        h.close = true;
    *ret = h;
    return 0;
}

/* True when the query has the parameter, with or without a value. */
static bool query_has(struct slice query, const char *name)
{
    while (query.n) {
        struct slice value = slice_split(&query, '&');
        if (slice_eq_str(slice_split(&value, '='), name))
            return true;
    }
    return false;
}

static enum head_kind kind_of_get(const struct head *h)
{
    struct slice query = h->target, path = slice_split(&query, '?');
    static const char *const properties[] = {
        "acl",        "cors",        "location",          "policy",    "tagging",    "uploads",   "uploadId",
        "versioning", "object-lock", "ownershipControls", "lifecycle", "encryption", "attributes"};
    for (size_t i = 0; i < ARRAY_SIZE(properties); i++)
        if (query_has(query, properties[i]))
            return KIND_OTHER;
    struct slice key = slice_from(path, 1);
    (void)slice_split(&key, '/');
    if (key.n == 0)
        return KIND_LIST;
    return h->has_range ? KIND_GET_RANGE : KIND_GET;
}

enum head_kind head_kind(const struct head *request)
{
    switch (head_verb(request->method)) {
    case VERB_GET:
        return kind_of_get(request);
    case VERB_HEAD:
        return KIND_HEAD;
    case VERB_PUT:
        return KIND_PUT;
    case VERB_POST:
        return KIND_POST;
    case VERB_DELETE:
        return KIND_DELETE;
    default:
        return KIND_OTHER;
    }
}

/* ---- chunked bodies ---- */

enum { CHUNK_SIZE, CHUNK_EXTENSION, CHUNK_DATA, CHUNK_DATA_END, CHUNK_TRAILER_START, CHUNK_TRAILER };

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c = (char)(c | 0x20);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* One byte outside of chunk data. */
static int chunk_byte(struct chunk_scan *c, char byte)
{
    if (byte == '\r')
        return 0; /* every line of this grammar ends at the line feed */
    switch (c->state) {
    case CHUNK_SIZE:
        if (hex_digit(byte) >= 0) {
            c->left = c->left * 16 + (uint64_t)hex_digit(byte);
            return c->left > CHUNK_MAX_BYTES ? -EINVAL : 0;
        }
        if (byte != '\n' && byte != ';' && byte != ' ')
            return -EINVAL;
        c->state = CHUNK_EXTENSION;
        /* fall through */
    case CHUNK_EXTENSION:
        if (byte == '\n')
            c->state = c->left ? CHUNK_DATA : CHUNK_TRAILER_START;
        return 0;
    case CHUNK_DATA_END:
        c->state = CHUNK_SIZE;
        return byte == '\n' ? 0 : -EINVAL;
    case CHUNK_TRAILER_START:
        c->done = byte == '\n';
        c->state = CHUNK_TRAILER;
        return 0;
    default: /* CHUNK_TRAILER */
        if (byte == '\n')
            c->state = CHUNK_TRAILER_START;
        return 0;
    }
}

ssize_t chunk_scan(struct chunk_scan *c, struct slice s)
{
    size_t i = 0;
    while (i < s.n && !c->done) {
        if (c->state == CHUNK_DATA) {
            uint64_t n = MIN(c->left, s.n - i);
            i += n;
            c->left -= n;
            if (c->left == 0)
                c->state = CHUNK_DATA_END;
            continue;
        }
        if (chunk_byte(c, s.p[i++]) < 0)
            return -EINVAL;
    }
    return (ssize_t)i;
}

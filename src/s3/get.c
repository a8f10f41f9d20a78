/*
 * GetObject and HeadObject.
 *
 * 1. Head and body are of the one version that was opened.
 * 2. The body has as many bytes as the head announced, or the connection is closed behind a shorter one: it
 * is never padded and never ends as if it were whole.
 * 3. A read handle is closed exactly once, with the count of what was read through its descriptor: by the
 * function that opened it, or by the tail that took it over.
 *
 * A complete object leaves as a tail and holds no thread. Of one that is still being filled, what has arrived
 * is sent while the rest comes; as soon as all the rest is there it becomes a tail too.
 */
#include "origin/meta.h"
#include "s3/condition.h"
#include "s3/part_list.h"
#include "s3/s3_internal.h"
#include "s3/tags.h"

#include "base/often.h"
#include "base/sys.h"
#include "base/text.h"

#define PARTS_ARENA MIB
#define TRIES       3         /* for an object that is replaced between two questions */
#define FETCH_BYTES (8 * MIB) /* asked for at once; the bucket's readahead goes further by itself */
#define CLOSE_ARENA (16 * KIB)

/* The part that partNumber names. */
struct one_part {
    uint32_t number;         /* 0: the request names none */
    uint32_t n_parts;        /* of the object; 0: it was not uploaded in parts */
    struct http_range range; /* of its bytes */
    struct slice checksum;   /* as kept, in the request's arena; empty: none */
    const char *type;        /* of the object's checksum */
};

struct get {
    struct s3_request *r;
    struct one_part part;
    uint64_t handle;
    int fd;
    uint32_t state;
    struct slice data; /* all of an object that came with the open */
    struct wire_attr attr;
    bool ranged;
    struct http_range range; /* what to send */
    uint64_t sent;           /* of it, so far */
    uint64_t present;        /* bytes of it that were there at the beginning, as far as is known */
    uint64_t by_fd;          /* bytes read through the descriptor */
};

/* What a tail needs to know when it is done; in the connection's arena. */
struct parked {
    struct s3 *s3;
    struct arena *arena; /* the one that this lies in */
    uint64_t handle, offset, by_fd, present, started_ns;
    int status;
};

static void close_handle(struct s3 *s3, struct arena *a, uint64_t handle, uint64_t by_fd, uint64_t present)
{
    struct wire_close_req req = {.handle = handle, .read_cached = MIN(by_fd, present)};
    struct wire_close_rep rep;

    req.read_origin = by_fd - req.read_cached;
    (void)object_close(s3->session, &req, a, &rep, NULL);
}

/* The disk did not give these bytes: the response is cut, and whoever asks again finds them verified. */
static void tell_unreadable(struct s3 *s3, uint64_t handle, uint64_t offset, uint64_t n)
{
    _cleanup_(arena_freep) struct arena *a = arena_new(CLOSE_ARENA);
    struct wire_fetch_req req = {.handle = handle, .offset = offset, .n = n, .flags = WIRE_UNREADABLE};
    struct wire_fetch_rep rep;

    (void)object_fetch(s3->session, &req, a, &rep, NULL);
}

static void on_tail_unreadable(void *arg, uint64_t sent)
{
    struct parked *p = arg;

    tell_unreadable(p->s3, p->handle, p->offset + sent, 1);
}

static void on_tail_done(void *arg, uint64_t sent, bool whole)
{
    struct parked *p = arg;

    close_handle(p->s3, p->arena, p->handle, p->by_fd + sent, p->present);
    reply_count(p->s3, S3_OP_GET_OBJECT, p->status, p->started_ns);
}

/* ---- head ---- */

/* X(query parameter, header) */
#define OVERRIDES(X)                                                                                         \
    X("response-content-type", "Content-Type")                                                               \
    X("response-content-language", "Content-Language")                                                       \
    X("response-expires", "Expires")                                                                         \
    X("response-cache-control", "Cache-Control")                                                             \
    X("response-content-disposition", "Content-Disposition")                                                 \
    X("response-content-encoding", "Content-Encoding")

static bool has_overrides(const struct s3_request *r)
{
    for (size_t i = 0; i < r->n_query; i++)
        if (slice_starts(r->query[i].name, SLICE_LIT("response-")))
            return true;
    return false;
}

static struct slice override(const struct s3_request *r, struct slice header)
{
#define X(parameter, name)                                                                                   \
    if (slice_eq_case(header, SLICE_LIT(name)))                                                              \
        return request_query(r, parameter);
    OVERRIDES(X)
#undef X
    return SLICE_NULL;
}

static void put_overrides(struct s3_request *r)
{
    if (!has_overrides(r))
        return;
#define X(parameter, name)                                                                                   \
    if (request_query(r, parameter).p)                                                                       \
        reply_header(r, name, request_query(r, parameter));
    OVERRIDES(X)
#undef X
}

/* When an object with an end of its own ends. */
static void put_end(struct s3_request *r, struct slice value)
{
    char text[32];
    uint64_t ns;

    if (slice_u64(value, &ns))
        return;
    text_iso8601(ns, text);
    reply_header(r, "x-forebay-expires", slice_str(text));
}

/* How many tags; and which, to another node whose origin this is. */
static void put_tags(struct s3_request *r, struct slice kept)
{
    reply_header(r, "x-amz-tagging-count", slice_str(arena_printf(r->arena, "%zu", tags_count(kept))));
    if (slice_eq_str(request_header(r, META_SHOW_HEADER), META_SHOW_TAGS))
        reply_header(r, META_TAGS_HEADER, kept);
}

/* Clients of the wire protocol may write any line: one that is no header of an object, as Content-Length or
 * Set-Cookie, or that ends the line, does not get into the head. */
static bool may_be_shown(struct slice name)
{
    for (size_t i = 0; i < name.n; i++)
        if ((unsigned char)name.p[i] <= ' ' || name.p[i] == 0x7f)
            return false;
    return put_is_kept(name);
}

static void put_meta(struct s3_request *r, struct slice meta)
{
    const bool has_tags = meta_get(meta, META_TAGS).n > 0;

    while (meta.n) {
        struct slice value = slice_split(&meta, '\n');
        struct slice name = slice_split(&value, ':');

        if (slice_eq_str(name, META_CHECKSUM))
            continue;
        if (slice_eq_str(name, META_EXPIRES))
            put_end(r, slice_trim(value));
        else if (slice_eq_str(name, META_TAGS))
            put_tags(r, slice_trim(value));
        else if (slice_eq_str(name, META_TAG_COUNT) && !has_tags)
            reply_header(r, META_TAG_COUNT, slice_trim(value));
        else if (may_be_shown(name) && !override(r, name).p)
            reply_header(r, arena_str(r->arena, name), slice_trim(value));
    }
}

static void put_attributes(struct s3_request *r, const struct wire_attr *attr)
{
    char date[32];

    text_http_date(attr->mtime_ns, date);
    reply_header(r, "Last-Modified", slice_str(date));
    reply_etag(r, attr->etag);
    reply_fixed(r, SLICE_LIT("Accept-Ranges: bytes\r\n"));
}

static void put_content(struct s3_request *r, const struct wire_attr *attr)
{
    if (!request_query(r, "response-content-type").p)
        reply_header(r, "Content-Type",
                     attr->content_type.n ? attr->content_type : SLICE_LIT(S3_DEFAULT_TYPE));
    put_meta(r, attr->meta);
    put_overrides(r);
}

/* What of the content a 304 has, too, for whoever keeps the object (RFC 9110, 15.4.5). */
static void put_caching(struct s3_request *r, const struct wire_attr *attr)
{
    static const struct {
        const char *name, *kept;
    } rows[] = {{"Cache-Control", "cache-control"}, {"Expires", "expires"}};

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        struct slice chosen = override(r, slice_str(rows[i].name));
        struct slice value = chosen.p ? chosen : meta_get(attr->meta, rows[i].kept);

        if (value.n)
            reply_header(r, rows[i].name, value);
    }
}

static void put_content_range(struct s3_request *r, const struct http_range *range, uint64_t size)
{
    reply_header(r, "Content-Range",
                 slice_str(arena_printf(r->arena, "bytes %llu-%llu/%llu", (unsigned long long)range->offset,
                                        (unsigned long long)(range->offset + range->n - 1),
                                        (unsigned long long)size)));
}

static enum s3_error refuse_range(struct s3_request *r, uint64_t size, struct slice asked)
{
    reply_header(r, "Content-Range",
                 slice_str(arena_printf(r->arena, "bytes */%llu", (unsigned long long)size)));
    r->extra = slice_str(arena_printf(
        r->arena, "<RangeRequested>" SLICE_FMT "</RangeRequested><ActualObjectSize>%llu</ActualObjectSize>",
        SLICE_ARG(asked), (unsigned long long)size)); /* digits and dashes, or it were no range */
    return S3_ERR_INVALID_RANGE;
}

/* ---- partNumber ---- */

/* What is asked for besides conditions and a range. */
static enum s3_error read_number(struct s3_request *r, struct one_part *ret)
{
    struct slice value = request_query(r, "partNumber");
    const char *reason = NULL;
    enum s3_error error = put_refuse_keys(r);

    *ret = (struct one_part){0};
    if (error || !value.p)
        return error;
    error = part_list_number(value, &ret->number, &reason);
    if (error)
        return reply_refuse(r, error, reason);
    if (request_header(r, "range").p)
        return reply_refuse(r, S3_ERR_INVALID_REQUEST, "a Range and partNumber exclude each other");
    return S3_OK;
}

/* An ETag as S3 makes it of several parts: 32 hex digits, '-', their number, which is given; else 1. */
static uint64_t parts_of_etag(struct slice etag)
{
    uint8_t md5[16];
    uint64_t n;

    if (etag.n <= 33 || etag.p[32] != '-' || text_unhex(slice_sub(etag, 0, 32), md5, sizeof md5) < 0)
        return 1;
    return slice_u64(slice_from(etag, 33), &n) == 0 && n > 1 ? n : 1;
}

static enum s3_error refuse_number(struct s3_request *r, uint32_t number, uint64_t n_parts)
{
    r->extra = slice_str(arena_printf(r->arena,
                                      "<PartNumberRequested>%u</PartNumberRequested>"
                                      "<ActualPartCount>%llu</ActualPartCount>",
                                      number, (unsigned long long)n_parts));
    return S3_ERR_INVALID_PART_NUMBER;
}

/* The same of an object whose parts are not kept here: its origin may know. */
static enum s3_error ask_origin(struct s3_request *r, const struct wire_attr *attr, struct one_part *p,
                                struct arena *a)
{
    struct wire_part_req req = {.bucket = r->bucket, .key = r->key, .etag = attr->etag, .number = p->number};
    struct slice kept = meta_get(attr->meta, META_CHECKSUM);
    struct wire_part_rep rep;
    struct err e = {0};
    int status = object_part(r->s3->session, &req, a, &rep, &e);

    if (status == -ESTALE)
        return S3_ERR_CONFLICT;
    if (status == ERR_RANGE)
        return refuse_number(r, p->number, parts_of_etag(attr->etag));
    if (status && status != ERR_NOT_IMPLEMENTED)
        return reply_failed(r, status, &e);
    if (status || rep.n_parts == 0)
        return reply_refuse(r, S3_ERR_NOT_IMPLEMENTED, "the parts of this object are not known here");
    if (rep.offset > attr->size_bytes || rep.size > attr->size_bytes - rep.offset)
        return S3_ERR_INTERNAL;
    p->n_parts = rep.n_parts;
    p->range = (struct http_range){rep.offset, rep.size};
    p->checksum = arena_dup(r->arena, rep.checksum);
    p->type = kept.n ? put_kept_type(kept) : NULL;
    return S3_OK;
}

/* Where the part is in the object of these attributes. CONFLICT: the object is another one by now. */
static enum s3_error find_part(struct s3_request *r, const struct wire_attr *attr, struct one_part *p)
{
    _cleanup_(arena_freep) struct arena *a = arena_new(PARTS_ARENA);
    struct part_list list;
    struct part_entry one;
    enum s3_error error = attributes_parts(r, attr->etag, a, &list);

    if (error)
        return error;
    p->range = (struct http_range){0, attr->size_bytes};
    if (list.n == 0) {
        if (parts_of_etag(attr->etag) > 1)
            return ask_origin(r, attr, p, a);
        return p->number == 1 ? S3_OK : refuse_number(r, p->number, 1);
    }
    if (!part_list_find(&list, p->number, &one))
        return refuse_number(r, p->number, list.n);
    if (one.offset > attr->size_bytes || one.size > attr->size_bytes - one.offset)
        return S3_ERR_INTERNAL;
    p->n_parts = (uint32_t)list.n;
    p->range = (struct http_range){one.offset, one.size};
    p->type = part_sums_type(list.sums.whole);
    if (one.has_sum)
        p->checksum = put_checksum_text(r->arena, list.sums.kind, one.sum);
    return S3_OK;
}

/* Conditions and range against the attributes. */
static enum s3_error settle(struct s3_request *r, const struct wire_attr *attr, const struct one_part *part,
                            struct http_range *ret_range, bool *ret_ranged)
{
    struct condition c;
    struct slice range = request_header(r, "range");
    struct slice if_range = range.p ? request_header(r, "if-range") : SLICE_NULL;
    enum s3_error error;
    int status;

    condition_read(r->http, "", &c);
    if (c.has_match || c.has_none_match || if_range.p)
        c.also = object_other_etag(r->s3->objects, r->bucket, r->key, attr->etag, r->arena);
    error = condition_check(&c, attr);
    if (error == S3_ERR_NOT_MODIFIED) {
        put_attributes(r, attr);
        put_caching(r, attr);
    }
    if (error)
        return error;
    *ret_range = part->number ? part->range : (struct http_range){0, attr->size_bytes};
    *ret_ranged = part->number && part->range.n > 0;
    if (!range.p || !condition_if_range(if_range, attr, c.also))
        return S3_OK;
    status = http_parse_range(range, attr->size_bytes, ret_range);
    if (status == ERR_RANGE)
        return refuse_range(r, attr->size_bytes, range);
    *ret_ranged = status == 0;
    return S3_OK;
}

/* Of the bytes that are sent: of the whole object, or of a part. */
static void put_checksum(struct s3_request *r, const struct wire_attr *attr, const struct one_part *part,
                         bool whole)
{
    struct slice kept = meta_get(attr->meta, META_CHECKSUM);

    if (!slice_eq_case(request_header(r, "x-amz-checksum-mode"), SLICE_LIT("ENABLED")))
        return;
    if (part->n_parts)
        put_kept_checksum(r, part->checksum, part->type);
    else if (whole)
        put_kept_checksum(r, kept, put_kept_type(kept));
}

static enum s3_error send_head(struct s3_request *r, const struct wire_attr *attr,
                               const struct one_part *part, const struct http_range *range, bool ranged)
{
    put_attributes(r, attr);
    put_content(r, attr);
    if (ranged)
        put_content_range(r, range, attr->size_bytes);
    if (part->n_parts)
        reply_header(r, "x-amz-mp-parts-count", slice_str(arena_printf(r->arena, "%u", part->n_parts)));
    expiration_header(r, attr);
    put_checksum(r, attr, part, !ranged || part->number);
    return reply_head(r, ranged ? 206 : 200, range->n) ? S3_ERR_INTERNAL : S3_OK;
}

/* ---- body ---- */

static void send_tail(struct get *g)
{
    struct s3_request *r = g->r;
    struct parked *p = arena_alloc(r->arena, sizeof *p);
    struct http_tail tail = {.fd = g->fd,
                             .offset = g->range.offset + g->sent,
                             .n = g->range.n - g->sent,
                             .done = on_tail_done,
                             .unreadable = on_tail_unreadable,
                             .arg = p};

    *p = (struct parked){r->s3,    r->arena,   g->handle,     tail.offset,
                         g->by_fd, g->present, r->started_ns, r->status};
    if (g->present == g->attr.size_bytes)
        p->present = g->range.n;
    r->parked = true;
    r->tail_bytes = tail.n;
    g->handle = 0;
    http_conn_tail(r->conn, &tail);
}

/* Sends what a fetch gave. */
static int send_fetched(struct get *g, const struct wire_fetch_rep *rep)
{
    uint64_t left = g->range.n - g->sent, n;
    int status;

    if (rep->data.n) {
        n = MIN(rep->data.n, left);
        status = http_conn_write(g->r->conn, rep->data.p, n);
    } else {
        n = MIN(rep->available, left);
        if (n == 0 || g->fd < 0)
            return -ENODATA;
        status = http_conn_sendfile(g->r->conn, g->fd, g->range.offset + g->sent, n);
        if (status == -EIO || status == -ENODATA) /* no socket says so; the latter: the file ends early */
            tell_unreadable(g->r->s3, g->handle, g->range.offset + g->sent, n);
        g->by_fd += status ? 0 : n;
    }
    g->sent += status ? 0 : n;
    return status;
}

/* Of an object that is being filled: how much of the range's beginning is there already. Where nothing is,
 * the head goes ahead: the client need not wait for bytes to learn what will come. */
static int ask_present(struct get *g, struct arena *a)
{
    struct wire_fetch_req req = {.handle = g->handle,
                                 .offset = g->range.offset,
                                 .n = MIN(g->range.n, FETCH_BYTES),
                                 .flags = WIRE_NO_WAIT | WIRE_BACKGROUND};
    struct wire_fetch_rep rep = {0};
    int status = object_fetch(g->r->s3->session, &req, a, &rep, NULL);

    arena_clear(a);
    g->present = MIN(g->present, g->range.n);
    if (status)
        return 0; /* whoever asks next is told */
    if (g->range.n < g->attr.size_bytes)
        g->present = MIN(g->present, rep.available);
    return rep.available ? 0 : http_conn_send_head(g->r->conn);
}

static int send_filling(struct get *g, struct err *e)
{
    _cleanup_(arena_freep) struct arena *a = arena_new(S3_ARENA_BYTES);

    if (g->fd >= 0 && ask_present(g, a))
        return err_set(e, -EPIPE, "the client went away");
    while (g->sent < g->range.n) {
        struct wire_fetch_req req = {.handle = g->handle,
                                     .offset = g->range.offset + g->sent,
                                     .n = MIN(g->range.n - g->sent, FETCH_BYTES),
                                     .flags = g->fd < 0 ? WIRE_INLINE : 0};
        struct wire_fetch_rep rep;
        int status = object_fetch(g->r->s3->session, &req, a, &rep, e);

        if (status)
            return status;
        if (g->fd >= 0 && rep.data.n == 0 && rep.available >= g->range.n - g->sent) {
            send_tail(g);
            return 0;
        }
        if (send_fetched(g, &rep))
            return err_set(e, -EPIPE, "the client went away");
        arena_clear(a);
    }
    return 0;
}

static void send_body(struct get *g)
{
    struct s3_request *r = g->r;
    struct err e = {0};
    int status;

    if (g->range.n == 0)
        return;
    if (g->state == WIRE_INLINED) {
        (void)http_conn_write(r->conn, g->data.p + g->range.offset, g->range.n); /* the connection knows */
        return;
    }
    if (g->state == WIRE_COMPLETE && g->fd >= 0) {
        send_tail(g);
        return;
    }
    status = send_filling(g, &e);
    if (status) {
        if (status != -EPIPE)
            log_often("s3", "%s GetObject " SLICE_FMT ": cut after %llu of %llu bytes: %s", r->id,
                      SLICE_ARG(r->http->raw_path), (unsigned long long)g->sent,
                      (unsigned long long)g->range.n, e.text);
        http_conn_close_after(r->conn);
    }
}

/* ---- operations ---- */

static int stat_object(struct s3_request *r, struct wire_attr *ret, struct err *e)
{
    struct wire_stat_req req = {.bucket = r->bucket, .key = r->key};
    struct wire_stat_rep rep;
    int status = object_stat(r->s3->session, &req, r->arena, &rep, e);

    if (status == 0)
        *ret = rep.attr;
    return status;
}

/* Where a read will begin and how much it will ask for, from the Range header alone; a range that counts from
 * the end needs the size first. */
static int plan_open(struct s3_request *r, struct wire_open_req *q, struct err *e)
{
    struct slice range = request_header(r, "range");
    struct http_range at;
    struct wire_attr attr;
    bool from_end;
    int status;

    q->expect = UINT64_MAX;
    if (!range.p)
        return 0;
    from_end = slice_find(range, '-') == slice_find(range, '=') + 1;
    if (from_end) {
        status = stat_object(r, &attr, e);
        if (status)
            return status;
    }
    if (http_parse_range(range, from_end ? attr.size_bytes : INT64_MAX, &at) == 0) {
        q->offset = at.offset;
        q->expect = at.offset + at.n == INT64_MAX ? UINT64_MAX : at.n;
    }
    return 0;
}

static int open_object(struct get *g, struct err *e)
{
    struct s3_request *r = g->r;
    struct wire_open_req req = {.bucket = r->bucket, .key = r->key, .via = WIRE_VIA_S3, .flags = WIRE_INLINE};
    struct wire_open_rep rep;
    int status = plan_open(r, &req, e);

    if (status == 0)
        status = object_open(r->s3->session, &req, r->arena, &rep, e);
    if (status)
        return status;
    g->handle = rep.handle;
    g->fd = rep.fd;
    g->state = rep.state;
    g->data = rep.data;
    g->attr = rep.attr;
    g->present = rep.present;
    return 0;
}

/* Opens the object, and finds the part where one is named: both of one version. */
static enum s3_error begin(struct get *g)
{
    struct s3_request *r = g->r;
    enum s3_error error = S3_ERR_CONFLICT;

    for (int i = 0; error == S3_ERR_CONFLICT && i < TRIES; i++) {
        struct err e = {0};
        int status = open_object(g, &e);

        if (status)
            return reply_failed(r, status, &e);
        error = g->part.number ? find_part(r, &g->attr, &g->part) : S3_OK;
        if (error && g->handle)
            close_handle(r->s3, r->arena, g->handle, 0, 0);
    }
    return error;
}

enum s3_error s3_op_get_object(struct s3_request *r)
{
    struct get g = {.r = r, .fd = -1};
    enum s3_error error = read_number(r, &g.part);

    if (!error)
        error = begin(&g);
    if (error)
        return error;
    error = settle(r, &g.attr, &g.part, &g.range, &g.ranged);
    if (!error)
        error = send_head(r, &g.attr, &g.part, &g.range, g.ranged);
    if (!error)
        send_body(&g);
    if (!r->parked && g.handle)
        close_handle(r->s3, r->arena, g.handle, g.by_fd, g.present);
    return error;
}

enum s3_error s3_op_head_object(struct s3_request *r)
{
    struct wire_attr attr = {0};
    struct one_part part = {0};
    struct http_range range = {0};
    bool ranged = false;
    enum s3_error error = read_number(r, &part), found = S3_ERR_CONFLICT;

    for (int i = 0; !error && found == S3_ERR_CONFLICT && i < TRIES; i++) {
        struct err e = {0};
        int status = stat_object(r, &attr, &e);

        if (status)
            return reply_failed(r, status, &e);
        found = part.number ? find_part(r, &attr, &part) : S3_OK;
    }
    error = error ? error : found;
    if (!error)
        error = settle(r, &attr, &part, &range, &ranged);
    return error ? error : send_head(r, &attr, &part, &range, ranged);
}

/*
 * GetObjectAttributes, and the parts that an object was uploaded in, as other operations need them.
 *
 * 1. Parts and checksums are of the version whose ETag is in the answer.
 * 2. Parts that only the origin knows are asked for one by one, so a page of those is short; the part that
 * ends where the object does is the last, whatever numbers they have. Where that fails on the way it tells
 * how many there are, as S3 itself does of objects without checksums of parts.
 */
#include "origin/meta.h"
#include "s3/part_list.h"
#include "s3/s3_internal.h"
#include "s3/xml.h"

#include "base/sys.h"
#include "base/text.h"

#define PARTS_ARENA_BYTES MIB
#define TRIES             3 /* for an object that is replaced between two questions */
#define ASKED_MAX         200
#define ASKED_MAX_NS      10000000000ull

struct wanted {
    bool etag, size, storage_class, checksum, parts;
    uint64_t after, max; /* of the parts */
};

static enum s3_error read_names(struct s3_request *r, struct wanted *ret)
{
    bool any = false;

    for (size_t i = 0; i < r->http->n_headers; i++) {
        struct slice rest = r->http->headers[i].value;

        if (!slice_eq_case(r->http->headers[i].name, SLICE_LIT("x-amz-object-attributes")))
            continue;
        while (rest.n) {
            struct slice one = slice_trim(slice_split(&rest, ','));

            any = true;
            if (slice_eq_str(one, "ETag"))
                ret->etag = true;
            else if (slice_eq_str(one, "ObjectSize"))
                ret->size = true;
            else if (slice_eq_str(one, "StorageClass"))
                ret->storage_class = true;
            else if (slice_eq_str(one, "Checksum"))
                ret->checksum = true;
            else if (slice_eq_str(one, "ObjectParts"))
                ret->parts = true;
            else
                return reply_refuse(r, S3_ERR_INVALID_ARGUMENT,
                                    "x-amz-object-attributes names an unknown one");
        }
    }
    return any ? S3_OK : reply_refuse(r, S3_ERR_INVALID_REQUEST, "x-amz-object-attributes is missing");
}

static enum s3_error read_wanted(struct s3_request *r, struct wanted *ret)
{
    struct slice max = request_header(r, "x-amz-max-parts"),
                 after = request_header(r, "x-amz-part-number-marker");

    ret->max = S3_LIST_MAX;
    if ((max.n && slice_u64(max, &ret->max)) || (after.n && slice_u64(after, &ret->after)))
        return reply_refuse(r, S3_ERR_INVALID_ARGUMENT,
                            "x-amz-max-parts and x-amz-part-number-marker must be numbers");
    ret->max = MIN(ret->max, (uint64_t)S3_LIST_MAX);
    return read_names(r, ret);
}

void attributes_put_checksum(struct xml *x, struct slice kept)
{
    struct slice suffix = slice_split(&kept, ' ');

    for (size_t i = CHECKSUM_NONE + 1; i < CHECKSUM_MD5 && kept.n; i++) {
        char name[32];

        if (!slice_eq_str(suffix, checksum_suffix((enum checksum_kind)i)))
            continue;
        (void)snprintf(name, sizeof name, "Checksum%s", checksum_name((enum checksum_kind)i));
        xml_text(x, name, kept);
    }
}

static void put_checksum(struct xml *x, struct slice kept)
{
    if (kept.n == 0)
        return;
    xml_open(x, "Checksum");
    attributes_put_checksum(x, kept);
    xml_text(x, "ChecksumType", slice_str(put_kept_type(kept)));
    xml_close(x, "Checksum");
}

enum s3_error attributes_parts(struct s3_request *r, struct slice etag, struct arena *a,
                               struct part_list *ret)
{
    struct wire_parts_req req = {.bucket = r->bucket, .key = r->key, .etag = etag};
    struct wire_parts_rep rep;
    struct err e = {0};
    int status = object_parts(r->s3->session, &req, a, &rep, &e);

    *ret = (struct part_list){0};
    if (status == -ESTALE)
        return S3_ERR_CONFLICT;
    if (status)
        return reply_failed(r, status, &e);
    return rep.parts.n && part_list_decode(rep.parts, ret) ? S3_ERR_INTERNAL : S3_OK;
}

/* What is shown of an object's parts. */
struct page {
    struct one {
        uint32_t number;
        uint64_t size;
        struct slice checksum; /* "SUFFIX BASE64", or empty */
    } v[S3_LIST_MAX];
    size_t n;
    uint64_t count, last; /* of all parts; the number behind which the next page begins */
    bool truncated;
    bool is_count; /* nothing but the count is known */
};

static void page_of_list(const struct part_list *l, const struct wanted *wanted, struct arena *a,
                         struct page *ret)
{
    struct part_cursor at = {0};
    struct part_entry one;

    *ret = (struct page){.count = l->n, .last = wanted->after};
    while (!ret->truncated && part_list_next(l, &at, &one)) {
        if (one.number <= wanted->after)
            continue;
        ret->truncated = ret->n == wanted->max;
        if (ret->truncated)
            break;
        ret->v[ret->n++] =
            (struct one){.number = one.number,
                         .size = one.size,
                         .checksum = one.has_sum ? put_checksum_text(a, l->sums.kind, one.sum) : SLICE_NULL};
        ret->last = one.number;
    }
}

static void put_parts(struct xml *x, const struct page *p, const struct wanted *wanted)
{
    xml_open(x, "ObjectParts");
    for (size_t i = 0; i < p->n; i++) {
        xml_open(x, "Part");
        attributes_put_checksum(x, p->v[i].checksum);
        xml_u64(x, "PartNumber", p->v[i].number);
        xml_u64(x, "Size", p->v[i].size);
        xml_close(x, "Part");
    }
    if (!p->is_count) {
        xml_bool(x, "IsTruncated", p->truncated);
        xml_u64(x, "MaxParts", wanted->max);
        xml_u64(x, "NextPartNumberMarker", p->last);
        xml_u64(x, "PartNumberMarker", wanted->after);
    }
    xml_u64(x, "PartsCount", p->count);
    xml_close(x, "ObjectParts");
}

/* The object's attributes, and its parts where they are wanted and known. */
static enum s3_error look(struct s3_request *r, const struct wanted *wanted, struct arena *a,
                          struct wire_attr *ret_attr, struct part_list *ret_parts)
{
    struct wire_stat_req req = {.bucket = r->bucket, .key = r->key};
    enum s3_error error = S3_ERR_CONFLICT;

    *ret_parts = (struct part_list){0};
    for (int i = 0; error == S3_ERR_CONFLICT && i < TRIES; i++) {
        struct wire_stat_rep rep;
        struct err e = {0};
        int status;

        arena_clear(a);
        status = object_stat(r->s3->session, &req, a, &rep, &e);
        if (status)
            return reply_failed(r, status, &e);
        *ret_attr = rep.attr;
        error = wanted->parts ? attributes_parts(r, rep.attr.etag, a, ret_parts) : S3_OK;
    }
    return error;
}

/* ---- parts that the origin knows ---- */

struct asking {
    struct s3_request *r;
    const struct wire_attr *attr;
    struct arena *own; /* of one question */
};

static int ask(struct asking *x, uint64_t number, struct wire_part_rep *ret)
{
    const struct wire_part_req req = {
        .bucket = x->r->bucket, .key = x->r->key, .etag = x->attr->etag, .number = (uint32_t)number};

    arena_clear(x->own);
    *ret = (struct wire_part_rep){0};
    return object_part(x->r->s3->session, &req, x->own, ret, NULL);
}

static bool is_last(const struct asking *x, const struct wire_part_rep *part)
{
    return part->offset + part->size >= x->attr->size_bytes;
}

/* The next number; *ret_end: there is no part behind it. Numbers may leave gaps. */
static int ask_into(struct asking *x, uint64_t number, struct arena *a, struct page *p, bool *ret_end)
{
    struct wire_part_rep part;
    int status = ask(x, number, &part);

    if (status == -ESTALE || (status < 0 && retry_is_transient(status)))
        return status;
    p->last = number;
    if (status < 0 || part.n_parts == 0)
        return 0;
    p->v[p->n++] =
        (struct one){.number = (uint32_t)number, .size = part.size, .checksum = arena_dup(a, part.checksum)};
    *ret_end = is_last(x, &part);
    return 0;
}

/* Whether behind `after` nothing comes: so it is where numbers have no gaps, and it is that of the last one.
 */
static bool is_behind_all(struct asking *x, uint64_t after, uint64_t count)
{
    struct wire_part_rep part;

    return after >= count && ask(x, count, &part) == 0 && part.n_parts == count && is_last(x, &part);
}

/* False: the object is in one piece, or nobody knows. */
static bool page_at_origin(struct s3_request *r, const struct wire_attr *attr, const struct wanted *wanted,
                           struct arena *a, struct page *ret)
{
    _cleanup_(arena_freep) struct arena *own = arena_new(PARTS_ARENA_BYTES);
    struct asking x = {.r = r, .attr = attr, .own = own};
    const uint64_t max = MIN(wanted->max, (uint64_t)ASKED_MAX), until_ns = sys->mono_ns() + ASKED_MAX_NS;
    uint64_t number = wanted->after + 1;
    struct wire_part_rep first;
    bool end;

    if (slice_find(attr->etag, '-') < 0 || ask(&x, 1, &first) < 0 || first.n_parts == 0)
        return false;
    *ret = (struct page){.count = first.n_parts, .last = wanted->after};
    end = wanted->after >= PART_LIST_NUMBER_MAX || is_behind_all(&x, wanted->after, first.n_parts);
    for (; !end && number <= MIN(wanted->after + max, (uint64_t)PART_LIST_NUMBER_MAX); number++) {
        if (ask_into(&x, number, a, ret, &end) < 0) {
            *ret = (struct page){.count = first.n_parts, .is_count = true};
            return true;
        }
        if (sys->mono_ns() > until_ns)
            break;
    }
    ret->truncated = !end && ret->last < PART_LIST_NUMBER_MAX;
    return true;
}

/* What nothing is known of is left out, as S3 does for objects that have none: parts, checksums. */
enum s3_error s3_op_get_object_attributes(struct s3_request *r)
{
    _cleanup_buf_ struct buf b = BUF_INIT(S3_XML_MAX_BYTES);
    _cleanup_(arena_freep) struct arena *a = arena_new(PARTS_ARENA_BYTES);
    _cleanup_free_ struct page *page = calloc(1, sizeof *page);
    struct wanted wanted = {0};
    bool has_page = false;
    struct part_list parts;
    struct wire_attr attr = {0};
    struct xml x = {&b, 0};
    char date[32];
    enum s3_error error = read_wanted(r, &wanted);

    if (!page)
        abort();
    if (!error)
        error = look(r, &wanted, a, &attr, &parts);
    if (error)
        return error;
    if (parts.n)
        page_of_list(&parts, &wanted, a, page);
    has_page = parts.n || (wanted.parts && page_at_origin(r, &attr, &wanted, a, page));
    xml_start(&x);
    xml_root(&x, "GetObjectAttributesResponse");
    if (wanted.etag && attr.etag.n)
        xml_text(&x, "ETag", attr.etag);
    if (wanted.checksum)
        put_checksum(&x, meta_get(attr.meta, META_CHECKSUM));
    if (has_page)
        put_parts(&x, page, &wanted);
    if (wanted.storage_class)
        xml_text(&x, "StorageClass", SLICE_LIT("STANDARD"));
    if (wanted.size)
        xml_u64(&x, "ObjectSize", attr.size_bytes);
    xml_close(&x, "GetObjectAttributesResponse");
    assert(x.status == 0);
    text_http_date(attr.mtime_ns, date);
    reply_header(r, "Last-Modified", slice_str(date));
    reply_send(r, 200, "application/xml", buf_view(&b));
    return S3_OK;
}

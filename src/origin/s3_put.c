/*
 * PutObject and DeleteObject.
 *
 * One PUT carries a body of which the service gets a digest: a small one, which is read twice for it; what
 * the caller knows the SHA-256 of, up to four parts' worth of bytes; and with `whole` whatever has that or an
 * MD5. Larger bodies go to s3_multipart.c.
 *
 * The time of the new object is not in S3's answer: mtime_ns is the answer's Date, an estimate that the next
 * HEAD or listing corrects; 0 when there is none.
 *
 * Invariants:
 *  1. A connection is taken only once the first byte of the body is there, so that slow writers hold none.
 *  2. Conditions go to the origin: unchanged, but for If-Match with "*", which goes as the ETag that is there
 * now, because few services know "*" in a write. A conditional delete is checked by a HEAD before, because
 * not every service knows If-Match there; one that refuses it (501) is asked again without. Without
 * origin.conditional_put a write is looked at before, too, and goes without; so does one over an object whose
 * ETag is weak, which by RFC 9110 no If-Match holds for.
 *  3. Services decide conditions in steps that others come between, too (versitygw: If-Match of a PUT and of
 * a DELETE both hold). So what this process does to a key under a condition, it does alone (s3_enter).
 *
 * Failure modes: as in origin.h. After a timeout or a lost connection the object may have been written.
 */
#include "origin/s3_internal.h"

#include "base/hash.h"
#include "base/text.h"
#include "origin/meta.h"

#define HASH_MAX_BYTES (8 * MIB)

int s3_enter(struct s3 *s, struct slice key, bool alone, const atomic_bool *cancel, struct key_order *x,
             struct err *e)
{
    struct buf _cleanup_buf_ whole = BUF_INIT(WEB_URL_MAX); /* of buckets with other prefixes, too */
    if (buf_str(&whole, s->prefix) < 0 || buf_slice(&whole, key) < 0)
        return err_set(e, -ENAMETOOLONG, "the key is too long");
    uint64_t hash = hash_mix(hash_table(slice_str(s->service)), hash_table(slice_str(s->bucket)));
    return origin_enter(&s->base, hash_mix(hash, hash_table(buf_view(&whole))), alone, cancel, x, e);
}

bool s3_is_conditional(const struct origin_put *p)
{
    return p->if_none_match || p->if_match.n > 0;
}

int s3_look_first(struct s3 *s, const struct origin_put *p, struct origin_put *plain,
                  const struct origin_put **ret, struct err *e)
{
    *ret = p;
    bool is_checked = s->base.capabilities & ORIGIN_CAN_CONDITIONAL_PUT;
    if (!s3_is_conditional(p) || (is_checked && !web_etag_is_weak(p->if_match)))
        return 0;
    struct arena *_cleanup_(arena_freep) a = arena_new(64 * KIB);
    struct origin_attr now;
    int r = web_head(&s->web, p->key, SLICE_NULL, a, &now, e);
    if (r < 0 && r != -ENOENT)
        return r;
    if (p->if_none_match && r == 0)
        return err_set(e, ERR_PRECONDITION, "the object exists already");
    if (p->if_match.n > 0 && (r < 0 || !(slice_eq_str(p->if_match, "*") || slice_eq(p->if_match, now.etag))))
        return err_set(e, ERR_PRECONDITION, "the object is another one now");
    if (e)
        e->code = 0;
    *plain = *p;
    plain->if_none_match = false;
    plain->if_match = SLICE_NULL;
    *ret = plain;
    return 0;
}

bool s3_wants_any(const struct s3 *s, struct slice if_match)
{
    return slice_eq_str(if_match, "*") && !s->web.kind->is_node;
}

int s3_pin_any(struct s3 *s, struct slice key, char ret_etag[WEB_ETAG_MAX + 1], struct err *e)
{
    struct arena *_cleanup_(arena_freep) a = arena_new(64 * KIB);
    struct origin_attr now;
    int r = web_head(&s->web, key, SLICE_NULL, a, &now, e);
    if (r < 0)
        return r;
    bool weak = web_etag_is_weak(now.etag); /* no condition of a write holds for it: looking must do */
    (void)snprintf(ret_etag, WEB_ETAG_MAX + 1, SLICE_FMT, SLICE_ARG(weak ? SLICE_LIT("*") : now.etag));
    return 0;
}

int s3_put_conditions(struct web_call *c, const struct origin_put *p, char *etag_buf, struct err *e)
{
    c->once = s3_is_conditional(p);
    c->reach = p->reach;
    if (p->if_none_match)
        web_header(c, SLICE_LIT("if-none-match"), SLICE_LIT("*"));
    if (p->if_match.n) {
        int r = web_etag_header(p->if_match, etag_buf, e);
        if (r < 0)
            return r;
        web_header(c, SLICE_LIT("if-match"), slice_str(etag_buf));
    }
    return 0;
}

static void text_header(struct web_call *c, struct slice name, const char *value)
{
    if (value[0])
        web_header(c, name, slice_str(value));
}

void s3_keeping_headers(const struct s3 *s, const struct s3_source *source, struct web_call *c)
{
    const char *own_key = s->sse_key ? s->sse_key : "";
    text_header(c, SLICE_LIT("x-amz-storage-class"),
                s->base.storage_class ? s->base.storage_class
                : source              ? source->class
                                      : "");
    text_header(c, SLICE_LIT("x-amz-server-side-encryption"), s->sse ? s->sse : source ? source->sse : "");
    text_header(c, SLICE_LIT("x-amz-server-side-encryption-aws-kms-key-id"),
                s->sse   ? own_key
                : source ? source->sse_key
                         : "");
}

/* The checksum that the client sent with the object, of all its bytes, goes along: the origin verifies and
 * keeps it. Room for one header's name and value in `a`. */
static void checksum_header(struct web_call *c, struct slice meta, struct arena *a)
{
    struct slice sum = meta_get(meta, META_CHECKSUM), suffix = slice_split(&sum, ' ');
    if (sum.n > 0 && slice_find(sum, '-') < 0)
        web_header(c, slice_str(arena_printf(a, META_CHECKSUM "-" SLICE_FMT, SLICE_ARG(suffix))), sum);
}

int s3_payload_hash(const struct s3 *s, const struct origin_body *body, uint64_t offset, uint64_t n,
                    char ret[65], struct err *e)
{
    uint8_t sum[32];
    ret[0] = '\0';
    if ((!s->keys.fixed.access_key && !s->keys.provider) || n > HASH_MAX_BYTES || body->once)
        return 0;
    int r = web_body_digest(body, offset, n, "SHA256", sum, e);
    if (r == 0)
        text_hex(sum, sizeof(sum), ret);
    return r;
}

static int put_single(struct s3 *s, const struct origin_put *p, const struct origin_body *body,
                      struct arena *a, struct origin_attr *ret_attr, struct err *e)
{
    char hash[65], etag[WEB_ETAG_MAX + 3];
    hash[0] = '\0';
    int r = web_wait_for_body(body, 0, e);
    if (r == 0 && p->payload_sha256.n == 0)
        r = s3_payload_hash(s, body, 0, body->size_bytes, hash, e);
    if (r < 0)
        return r;
    struct web_call _cleanup_(web_call_fini) c;
    web_call_init(&c, &s->web, WEB_PUT, "put");
    c.has_key = true;
    c.key = p->key;
    c.meta = p->meta;
    c.cancel = p->cancel;
    c.body = body;
    c.body_n = body->size_bytes;
    c.payload_sha256 = p->payload_sha256.n ? p->payload_sha256 : slice_str(hash);
    if (p->content_type.n)
        web_header(&c, SLICE_LIT("content-type"), p->content_type);
    if (p->content_md5.n)
        web_header(&c, SLICE_LIT("content-md5"), p->content_md5);
    checksum_header(&c, p->meta, a);
    s3_keeping_headers(s, NULL, &c);
    r = s3_put_conditions(&c, p, etag, e);
    if (r == 0)
        r = web_perform(&c, e);
    if (r == 0)
        web_put_attr(p, body->size_bytes, slice_str(c.response.etag), c.response.date_ns, a, ret_attr);
    return r;
}

/* Over whatever is there: of a writer in between the ETag tells, and it is looked again. */
static int put_over_any(struct s3 *s, const struct origin_put *p, const struct origin_body *body,
                        struct arena *a, struct origin_attr *ret_attr, struct err *e)
{
    char etag[WEB_ETAG_MAX + 1] = "";
    struct origin_put pinned = *p;
    for (int i = 0; i < S3_ANY_TRIES; i++) {
        if (e)
            e->code = 0;
        int r = web_wait_for_body(body, 0, e); /* which may take long: the look comes just before the write */
        if (r == 0)
            r = s3_pin_any(s, p->key, etag, e);
        pinned.if_match = slice_str(etag);
        if (r == 0)
            r = put_single(s, &pinned, body, a, ret_attr, e);
        if (r != ERR_PRECONDITION)
            return r;
    }
    return err_set(e, ERR_CONFLICT, "the object is written again and again");
}

/* A body that is cut off must leave nothing. Servers were seen to keep the beginning of one of which they
 * have no digest; an upload in parts becomes an object only when it is completed. The hash goes with the
 * signature: requests without keys have none. */
static uint64_t single_max(const struct s3 *s, const struct origin_put *p)
{
    bool signs = s->keys.fixed.access_key || s->keys.provider, hashed = signs && p->payload_sha256.n > 0;
    if (p->whole && (hashed || p->content_md5.n > 0))
        return S3_PUT_MAX_BYTES;
    return hashed ? MIN(4 * s->part_bytes, S3_PUT_MAX_BYTES) : HASH_MAX_BYTES;
}

int s3_put(struct origin *o, const struct origin_put *p, const struct origin_body *body, struct arena *a,
           struct origin_attr *ret_attr, struct err *e)
{
    struct s3 *s = s3_of(o);
    origin_set_reach(p, ORIGIN_REACH_NOTHING);
    int r = web_check_key(s->prefix, p->key, e);
    if (r < 0)
        return r;
    if (body->size_bytes > single_max(s, p))
        return s3_put_multipart(s, p, body, a, ret_attr, e);
    struct key_order _cleanup_(key_order_leave) order = {0};
    struct origin_put plain;
    if (body->slow && body->size_bytes > 0) /* all of it is there before others wait */
        r = web_wait_for_body(body, body->size_bytes - 1, e);
    if (r == 0)
        r = s3_enter(s, p->key, s3_is_conditional(p), p->cancel, &order, e);
    if (r == 0)
        r = s3_look_first(s, p, &plain, &p, e);
    if (r < 0)
        return r;
    if (s3_wants_any(s, p->if_match))
        return put_over_any(s, p, body, a, ret_attr, e);
    return put_single(s, p, body, a, ret_attr, e);
}

/* etag: quoted, for If-Match; "": without. */
static int remove_once(struct s3 *s, struct slice key, const char *etag, struct err *e)
{
    struct web_call _cleanup_(web_call_fini) c;
    web_call_init(&c, &s->web, WEB_DELETE, "delete");
    c.has_key = true;
    c.key = key;
    c.once = true;
    if (etag[0])
        web_header(&c, SLICE_LIT("if-match"), slice_str(etag));
    return web_perform(&c, e);
}

/* One look, and the removal of what it saw. `any`: whatever that is. */
static int remove_seen(struct s3 *s, struct slice key, struct slice if_match, bool any, struct err *e)
{
    struct arena *_cleanup_(arena_freep) a = arena_new(64 * KIB);
    char etag[WEB_ETAG_MAX + 3];
    struct origin_attr now;
    int r = web_head(&s->web, key, any ? SLICE_NULL : if_match, a, &now, e);
    if (any && r == 0)
        if_match = now.etag;
    if (r == 0)
        r = web_etag_header(if_match, etag, e);
    if (r < 0)
        return r;
    bool weak = web_etag_is_weak(if_match);
    r = remove_once(s, key, weak ? "" : etag, e);
    if (r != ERR_NOT_IMPLEMENTED || weak)
        return r;
    if (e)
        e->code = 0;
    return remove_once(s, key, "", e); /* no conditions there: the look is all there can be */
}

int s3_remove(struct origin *o, struct slice key, struct slice if_match, struct err *e)
{
    struct s3 *s = s3_of(o);
    bool any = s3_wants_any(s, if_match);
    struct key_order _cleanup_(key_order_leave) order = {0};
    int r = web_check_key(s->prefix, key, e);
    if (r == 0)
        r = s3_enter(s, key, if_match.n > 0, /* cancel= */ NULL, &order, e);
    if (r < 0)
        return r;
    if (if_match.n == 0)
        return remove_once(s, key, "", e);
    for (int i = 0; i < S3_ANY_TRIES; i++) {
        if (e)
            e->code = 0;
        r = remove_seen(s, key, if_match, any, e);
        if (r != ERR_PRECONDITION || !any)
            return r;
    }
    return err_set(e, ERR_CONFLICT, "the object is written again and again");
}

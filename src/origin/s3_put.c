/*
 * PutObject and DeleteObject.
 *
 * One PUT carries up to four parts' worth of bytes; larger bodies go to s3_multipart.c. Over https the
 * payload is not hashed (TLS protects it); over http it is when the caller knows the hash, or when the body
 * is small enough to be read twice.
 *
 * The time of the new object is not in S3's answer: mtime_ns is the answer's Date, an estimate that the next
 * HEAD or listing corrects; 0 when there is none.
 *
 * Invariants:
 *  1. A connection is taken only once the first byte of the body is there, so that slow writers hold none.
 *  2. Conditions go to the origin unchanged; it decides them atomically. A conditional delete is checked by a
 * HEAD before, because not every service knows If-Match there.
 *
 * Failure modes: as in origin.h. After a timeout or a lost connection the object may have been written.
 */
#include "origin/s3_internal.h"

#include "base/text.h"

#include <openssl/evp.h>

#define HASH_MAX_BYTES   (8 * MIB)
#define HASH_PIECE_BYTES (64 * KIB)

int s3_put_conditions(struct s3_call *c, const struct origin_put *p, char *etag_buf, struct err *e)
{
    if (p->if_none_match)
        s3_call_header(c, SLICE_LIT("if-none-match"), SLICE_LIT("*"));
    if (p->if_match.n) {
        int r = s3_etag_header(p->if_match, etag_buf, e);
        if (r < 0)
            return r;
        s3_call_header(c, SLICE_LIT("if-match"), slice_str(etag_buf));
    }
    return 0;
}

static void digest_freep(EVP_MD_CTX **c)
{
    EVP_MD_CTX_free(*c);
}

int s3_payload_hash(const struct s3 *s, const struct origin_body *body, uint64_t offset, uint64_t n,
                    char ret[65], struct err *e)
{
    ret[0] = '\0';
    if (!s->credentials.access_key || n > HASH_MAX_BYTES)
        return 0;
    EVP_MD_CTX *_cleanup_(digest_freep) c = EVP_MD_CTX_new();
    char _cleanup_free_ *piece = malloc(HASH_PIECE_BYTES);
    if (!piece || !c || EVP_DigestInit_ex(c, EVP_sha256(), NULL) != 1)
        return err_set(e, -ENOMEM, "no memory to hash the body");
    for (uint64_t have = 0; have < n;) {
        ssize_t r = body->read(body->arg, piece, MIN(n - have, (uint64_t)HASH_PIECE_BYTES), offset + have);
        if (r <= 0)
            return r < 0 ? err_set(e, (int)r, "body: %s", err_text((int)r))
                         : err_set(e, -ENODATA, "the body to be uploaded ended early");
        if (EVP_DigestUpdate(c, piece, (size_t)r) != 1)
            return err_set(e, -ENOMEM, "no memory to hash the body");
        have += (uint64_t)r;
    }
    uint8_t sum[32];
    if (EVP_DigestFinal_ex(c, sum, NULL) != 1)
        return err_set(e, -ENOMEM, "no memory to hash the body");
    text_hex(sum, sizeof(sum), ret);
    return 0;
}

int s3_wait_for_body(const struct origin_body *body, uint64_t offset, struct err *e)
{
    char first;
    if (offset >= body->size_bytes)
        return 0;
    ssize_t r = body->read(body->arg, &first, 1, offset);
    return r < 0 ? err_set(e, (int)r, "body: %s", err_text((int)r)) : 0;
}

void s3_put_attr(const struct origin_put *p, uint64_t size, struct slice etag, uint64_t date_ns,
                 struct arena *a, struct origin_attr *ret)
{
    *ret = (struct origin_attr){
        .size_bytes = size,
        .mtime_ns = date_ns,
        .etag = arena_dup(a, etag),
        .content_type = p->content_type.n ? arena_dup(a, p->content_type) : SLICE_NULL,
        .meta = p->meta.n ? arena_dup(a, p->meta) : SLICE_NULL,
    };
}

static int put_single(struct s3 *s, const struct origin_put *p, const struct origin_body *body,
                      struct arena *a, struct origin_attr *ret_attr, struct err *e)
{
    char hash[65], etag[S3_ETAG_MAX + 3];
    hash[0] = '\0';
    int r = s3_wait_for_body(body, 0, e);
    if (r == 0 && p->payload_sha256.n == 0)
        r = s3_payload_hash(s, body, 0, body->size_bytes, hash, e);
    if (r < 0)
        return r;
    struct s3_call _cleanup_(s3_call_fini) c;
    s3_call_init(&c, s, S3_PUT, "put");
    c.has_key = true;
    c.key = p->key;
    c.meta = p->meta;
    c.cancel = p->cancel;
    c.body = body;
    c.body_n = body->size_bytes;
    c.payload_sha256 = p->payload_sha256.n ? p->payload_sha256 : slice_str(hash);
    if (p->content_type.n)
        s3_call_header(&c, SLICE_LIT("content-type"), p->content_type);
    if (p->content_md5.n)
        s3_call_header(&c, SLICE_LIT("content-md5"), p->content_md5);
    r = s3_put_conditions(&c, p, etag, e);
    if (r == 0)
        r = s3_perform(&c, e);
    if (r == 0)
        s3_put_attr(p, body->size_bytes, slice_str(c.response.etag), c.response.date_ns, a, ret_attr);
    return r;
}

int s3_put(struct origin *o, const struct origin_put *p, const struct origin_body *body, struct arena *a,
           struct origin_attr *ret_attr, struct err *e)
{
    struct s3 *s = s3_of(o);
    int r = s3_check_key(s, p->key, e);
    if (r < 0)
        return r;
    /* A body that is cut off must leave nothing. Servers were seen to keep the beginning of one that is not
     * hashed; an upload in parts becomes an object only when it is completed. */
    uint64_t single_max = p->payload_sha256.n ? MIN(4 * s->part_bytes, S3_PUT_MAX_BYTES) : HASH_MAX_BYTES;
    if (body->size_bytes > single_max)
        return s3_put_multipart(s, p, body, a, ret_attr, e);
    return put_single(s, p, body, a, ret_attr, e);
}

static int ignore(void *arg, const struct origin_attr *attr, const void *p, size_t n)
{
    (void)arg, (void)attr, (void)p, (void)n;
    return 0;
}

int s3_head(struct s3 *s, struct slice key, struct slice if_match, struct arena *a, struct origin_attr *ret,
            struct err *e)
{
    struct origin_get g = {.key = key, .if_match = if_match, .attributes_only = true};
    return s3_get(&s->base, &g, a, ret, ignore, NULL, e);
}

int s3_remove(struct origin *o, struct slice key, struct slice if_match, struct err *e)
{
    struct s3 *s = s3_of(o);
    char etag[S3_ETAG_MAX + 3];
    int r = s3_check_key(s, key, e);
    if (r < 0)
        return r;
    struct s3_call _cleanup_(s3_call_fini) c;
    s3_call_init(&c, s, S3_DELETE, "delete");
    c.has_key = true;
    c.key = key;
    if (if_match.n) {
        struct arena *_cleanup_(arena_freep) a = arena_new(64 * KIB);
        struct origin_attr now;
        r = s3_head(s, key, if_match, a, &now, e);
        if (r == 0)
            r = s3_etag_header(if_match, etag, e);
        if (r < 0)
            return r;
        if (!s3_etag_is_weak(if_match))
            s3_call_header(&c, SLICE_LIT("if-match"), slice_str(etag));
    }
    return s3_perform(&c, e);
}

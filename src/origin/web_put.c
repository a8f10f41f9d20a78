/*
 * Bodies that go to an origin: waiting for their first byte, digests, attributes of the new object.
 *
 * Failure modes: what the body's own read gives, -ENODATA when it ends early.
 */
#include "origin/web_internal.h"

#include <openssl/evp.h>

#define PIECE_BYTES (64 * KIB)

static void digest_freep(EVP_MD_CTX **c)
{
    EVP_MD_CTX_free(*c);
}

int web_body_digest(const struct origin_body *body, uint64_t offset, uint64_t n, const char *digest,
                    uint8_t *ret, struct err *e)
{
    EVP_MD_CTX *_cleanup_(digest_freep) c = EVP_MD_CTX_new();
    char _cleanup_free_ *piece = malloc(PIECE_BYTES);
    const EVP_MD *md = EVP_get_digestbyname(digest);
    if (!piece || !c || !md || EVP_DigestInit_ex(c, md, NULL) != 1)
        return err_set(e, -ENOMEM, "no memory to hash the body");
    for (uint64_t have = 0; have < n;) {
        ssize_t r = body->read(body->arg, piece, MIN(n - have, (uint64_t)PIECE_BYTES), offset + have);
        if (r <= 0)
            return r < 0 ? err_set(e, (int)r, "body: %s", err_text((int)r))
                         : err_set(e, -ENODATA, "the body to be uploaded ended early");
        if (EVP_DigestUpdate(c, piece, (size_t)r) != 1)
            return err_set(e, -ENOMEM, "no memory to hash the body");
        have += (uint64_t)r;
    }
    if (EVP_DigestFinal_ex(c, ret, NULL) != 1)
        return err_set(e, -ENOMEM, "no memory to hash the body");
    return 0;
}

int web_wait_for_body(const struct origin_body *body, uint64_t offset, struct err *e)
{
    char first;
    if (offset >= body->size_bytes)
        return 0;
    ssize_t r = body->read(body->arg, &first, 1, offset);
    return r < 0 ? err_set(e, (int)r, "body: %s", err_text((int)r)) : 0;
}

int web_wait_for_part(const struct web *w, const struct origin_body *body, uint64_t offset, uint64_t n,
                      struct err *e)
{
    bool is_all = w->limit == 1 && body->slow && !body->once && n > 0;
    return web_wait_for_body(body, is_all ? offset + n - 1 : offset, e);
}

void web_put_attr(const struct origin_put *p, uint64_t size, struct slice etag, uint64_t date_ns,
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

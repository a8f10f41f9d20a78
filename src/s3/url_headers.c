/*
 * Headers in signed URLs: some who sign (the SDK for JavaScript) put x-amz- headers there, because nobody may
 * be there to send them. They count as headers, as in S3.
 *
 * 1. A header that is sent goes before one of the same name in the URL.
 * 2. What is in the URL twice counts twice, as a header that is sent twice does.
 * 3. Nothing gets among the headers that could not stand in a head.
 */
#include "s3/s3_internal.h"

#define OWN(name)                                                                                            \
    {                                                                                                        \
        name, sizeof(name) - 1                                                                               \
    }

/* Written so by nearly everybody: compared as it is first. */
static bool is_own(struct slice name, struct slice own)
{
    return name.n == own.n && (slice_eq(name, own) || slice_eq_case(name, own));
}

/* Whether a parameter of a signed URL is a header that its signer put there, and not about the signature or
 * the form of a body. Checksums are left out, as S3 does, and what says their kind: such a signer has made
 * them of no body. */
static bool is_header_of_url(struct slice name)
{
    static const struct slice own[] = {OWN("X-Amz-Algorithm"),
                                       OWN("X-Amz-Credential"),
                                       OWN("X-Amz-Date"),
                                       OWN("X-Amz-Expires"),
                                       OWN("X-Amz-SignedHeaders"),
                                       OWN("X-Amz-Signature"),
                                       OWN("X-Amz-Security-Token"),
                                       OWN("x-amz-content-sha256"),
                                       OWN("x-amz-trailer"),
                                       OWN("x-amz-decoded-content-length"),
                                       OWN("x-amz-sdk-checksum-algorithm")};
    const struct slice amz = SLICE_LIT("X-Amz-");

    if (name.n <= amz.n || !is_own(slice_of(name.p, amz.n), amz))
        return false;
    for (size_t i = 0; i < ARRAY_SIZE(own); i++)
        if (is_own(name, own[i]))
            return false;
    return checksum_of_header(name) == CHECKSUM_NONE && !checksum_header_is_unknown(name);
}

/* Whether the text, which was decoded, can stand in a head. */
static bool fits_head(struct slice s, bool is_name)
{
    for (size_t i = 0; i < s.n; i++) {
        unsigned char c = (unsigned char)s.p[i];

        if (c < 0x20 || c == 0x7f || (is_name && (c == ' ' || c == ':')))
            return false;
    }
    return true;
}

static bool has_header(const struct http_request *http, struct slice name)
{
    for (size_t i = 0; i < http->n_headers; i++)
        if (slice_eq_case(http->headers[i].name, name))
            return true;
    return false;
}

enum s3_error url_headers_take(struct s3_request *r)
{
    const struct http_request *sent = r->http;
    struct http_request *http = NULL;

    for (size_t i = 0; i < r->n_query; i++) {
        struct slice name = r->query[i].name, value = r->query[i].value;

        if (!is_header_of_url(name) || has_header(sent, name))
            continue;
        if (!fits_head(name, /* is_name= */ true) || !fits_head(value, /* is_name= */ false))
            return reply_refuse(r, S3_ERR_INVALID_ARGUMENT,
                                "a header in the URL has a character that no header may have");
        if (!http) {
            http = arena_alloc(r->arena, sizeof *http);
            *http = *r->http;
            r->http = http;
        }
        if (http->n_headers == HTTP_HEADERS_MAX)
            return reply_refuse(r, S3_ERR_INVALID_REQUEST, "too many headers");
        http->headers[http->n_headers++] = (struct http_header){name, slice_trim(value)};
    }
    return S3_OK;
}

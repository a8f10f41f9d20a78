/*
 * The conditional headers of GET, HEAD and copies (RFC 9110 section 13, in S3's reading of it). Pure.
 */
#pragma once

#include "net/http.h"
#include "net/wire.h"
#include "s3/s3_error.h"

struct condition {
    /* Has the ETags: "*", or some separated by commas, with or without quotes. */
    const struct http_request *http;
    const char *prefix;
    bool has_match, has_none_match;
    bool has_modified_since, has_unmodified_since;
    uint64_t modified_since_s, unmodified_since_s;
    /* Another ETag that the object is known by; the caller's to set, empty: none. */
    struct slice also;
};

/* Reads If-Match and its kin; `prefix` comes before each name ("" or "x-amz-copy-source-"). Dates that cannot
 * be read are ignored, as RFC 9110 asks. Both arguments live as long as *ret. */
void condition_read(const struct http_request *r, const char *prefix, struct condition *ret);
/* S3_OK, S3_ERR_NOT_MODIFIED or S3_ERR_PRECONDITION. */
enum s3_error condition_check(const struct condition *c, const struct wire_attr *attr);
/* Whether an ETag, as attributes have it (a weak one with W/ and quotes), is in a list as above. */
bool condition_etag_in(struct slice list, struct slice etag);
/* Whether the request has this header at most once, with one ETag or "*": all that writes and removals can
 * decide together with what they do. */
bool condition_is_single(const struct http_request *r, const char *name);
/* If-Range: true when the range counts, because the value is the object's ETag, `also`, or its date. */
bool condition_if_range(struct slice value, const struct wire_attr *attr, struct slice also);
/* One ETag without its quotes and without W/; NULL only when the value is. */
struct slice condition_bare_etag(struct slice value);

/* Shared by auth.c, auth_headers.c and auth_v2.c. */
#pragma once

#include "s3/auth.h"

/* First pair of that name, NULL when there is none. */
static inline const struct http_pair *auth_query(const struct auth_request *r, const char *name)
{
    return http_pair_named(r->query, r->n_query, slice_str(name));
}
/* Lower-case copy. */
struct slice auth_lower(struct arena *a, struct slice s);

/* ---- auth_headers.c: pure ---- */

/* Headers in the byte order of their names, each name once and in lower case. Values of headers that came
 * more than once are joined by commas, as signatures see them; of one that did not come: SLICE_NULL. */
struct auth_list {
    size_t n;
    size_t compared; /* bytes of names that were looked at so far, for the test that bounds it */
    ssize_t place[HTTP_HEADERS_MAX]; /* of each header of the request, or -1 */
    struct sigv4_pair v[HTTP_HEADERS_MAX];
};
/* Those that "a;b;c" names. AUTH_MALFORMED: an empty name, one that is there twice, more than a request can
 * have. */
enum s3_error auth_list_signed(struct auth_list *l, const struct http_request *http, struct slice names,
                               struct arena *a);
/* Those of the request whose names begin so, in any case. */
void auth_list_starting(struct auth_list *l, const struct http_request *http, struct slice prefix,
                        struct arena *a);
/* Place of a name, in any case, or -1. */
ssize_t auth_list_find(struct auth_list *l, struct slice name);

/* Version 2 of the signature of a POST form's policy. */
enum s3_error auth_v2_verify_policy(struct slice policy, struct slice signature, struct slice secret_key);
/* The value of a Date header, whose zone some clients write as +0000 or -0000. */
int auth_parse_date(struct slice s, uint64_t *ret_ns);

/* "AWS KEY:SIGNATURE" in the Authorization header. */
enum s3_error auth_v2_parse_header(const struct auth_request *r, struct slice value, struct auth_claim *ret,
                                   const char **ret_reason);
/* Version 2 of the signature, in a URL or a header. */
enum s3_error auth_v2_parse(const struct auth_request *r, struct auth_claim *ret, const char **ret_reason);
enum s3_error auth_v2_verify(const struct auth_request *r, const struct auth_claim *claim,
                             struct slice secret_key, struct arena *a);

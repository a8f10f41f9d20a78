/* Shared by auth.c and auth_v2.c. */
#pragma once

#include "s3/auth.h"

/* First pair of that name, NULL when there is none. */
static inline const struct http_pair *auth_query(const struct auth_request *r, const char *name)
{
    return http_pair_named(r->query, r->n_query, slice_str(name));
}
/* Lower-case copy. */
struct slice auth_lower(struct arena *a, struct slice s);
/* All values of a header joined by commas, as signatures see repeated headers. SLICE_NULL when absent. */
struct slice auth_header(const struct auth_request *r, struct slice name, struct arena *a);

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

/* The policy of a POST form: JSON that says which fields a form may have. Pure. */
#pragma once

#include "base/slice.h"
#include "s3/s3_error.h"

struct policy_field {
    const char *name; /* lower case */
    struct slice value;
};

struct policy_limits {
    uint64_t least, most; /* bytes of the file */
};

/*
 * Whether the policy, decoded, holds at `now_ns` for these fields, all of which must be named by it but those
 * that no policy names. INVALID_POLICY when it is not one, ACCESS_DENIED when it does not hold; *ret_reason
 * is static text.
 */
enum s3_error policy_check(struct slice document, const struct policy_field *fields, size_t n,
                           uint64_t now_ns, struct policy_limits *ret, const char **ret_reason);

/*
 * Policies of POST forms (contract in policy.h). Source: "POST Policy" of the Amazon S3 API reference.
 *
 * 1. A form holds only when every condition does and every field is covered by one: nobody can add a field to
 * a form that somebody else signed, but for a checksum of the file, which changes nothing that is stored.
 */
#include "s3/policy.h"

#include "s3/checksum.h"

#include "base/text.h"

#include <jansson.h>

#define CONDITIONS_MAX 256

#define REFUSE(error, reason) (*ret_reason = (reason), S3_ERR_##error)

static inline void free_json(json_t **j)
{
    json_decref(*j);
}

/* Fields that need no condition. */
static bool is_exempt(const char *name)
{
    static const char *const exempt[] = {"policy", "signature", "x-amz-signature", "awsaccesskeyid", "file"};

    for (size_t i = 0; i < ARRAY_SIZE(exempt); i++)
        if (strcmp(name, exempt[i]) == 0)
            return true;
    return strncmp(name, "x-ignore-", 9) == 0 || checksum_of_header(slice_str(name)) != CHECKSUM_NONE;
}

struct form {
    const struct policy_field *fields;
    bool *covered;
    size_t n;
    struct policy_limits *limits;
};

/* Index of a field, n when there is none. */
static size_t find(const struct form *f, const char *name)
{
    size_t i = 0;

    while (i < f->n && !slice_eq_case(slice_str(f->fields[i].name), slice_str(name)))
        i++;
    return i;
}

static bool holds(struct form *f, const char *name, const char *value, bool prefix)
{
    size_t i = find(f, name);

    if (i == f->n)
        return false;
    f->covered[i] = true;
    return prefix ? slice_starts(f->fields[i].value, slice_str(value))
                  : slice_eq_str(f->fields[i].value, value);
}

/* {"name": "value", ...} */
static enum s3_error check_object(struct form *f, json_t *condition, const char **ret_reason)
{
    const char *name;
    json_t *value;

    if (json_object_size(condition) == 0)
        return REFUSE(INVALID_POLICY, "a condition of the policy is empty");
    json_object_foreach(condition, name, value)
    {
        if (!json_is_string(value))
            return REFUSE(INVALID_POLICY, "a condition of the policy has a value that is no text");
        if (!holds(f, name, json_string_value(value), /* prefix= */ false))
            return REFUSE(ACCESS_DENIED, "Invalid according to Policy: a condition does not hold");
    }
    return S3_OK;
}

static bool number(const json_t *j, uint64_t *ret)
{
    if (json_is_string(j))
        return slice_u64(slice_str(json_string_value(j)), ret) == 0;
    *ret = json_is_integer(j) ? (uint64_t)json_integer_value(j) : 0;
    return json_is_integer(j) && json_integer_value(j) >= 0;
}

/* ["eq" or "starts-with", "$name", "value"], ["content-length-range", least, most] */
static enum s3_error check_array(struct form *f, json_t *condition, const char **ret_reason)
{
    const char *op = json_string_value(json_array_get(condition, 0));
    const char *name = json_string_value(json_array_get(condition, 1));
    const char *value = json_string_value(json_array_get(condition, 2));
    struct slice kind = slice_str(op ? op : "");
    bool prefix = slice_eq_case(kind, SLICE_LIT("starts-with"));

    if (json_array_size(condition) != 3)
        return REFUSE(INVALID_POLICY, "a condition of the policy has not three parts");
    if (slice_eq_case(kind, SLICE_LIT("content-length-range"))) {
        uint64_t least, most;

        if (!number(json_array_get(condition, 1), &least) || !number(json_array_get(condition, 2), &most))
            return REFUSE(INVALID_POLICY, "content-length-range of the policy needs two numbers");
        f->limits->least = MAX(f->limits->least, least); /* of several each holds */
        f->limits->most = MIN(f->limits->most, most);
        return S3_OK;
    }
    if ((!prefix && !slice_eq_case(kind, SLICE_LIT("eq"))) || !name || name[0] != '$' || !value)
        return REFUSE(INVALID_POLICY, "a condition of the policy is none of eq, starts-with and "
                                      "content-length-range");
    if (!holds(f, name + 1, value, prefix))
        return REFUSE(ACCESS_DENIED, "Invalid according to Policy: a condition does not hold");
    return S3_OK;
}

static enum s3_error check_conditions(struct form *f, json_t *conditions, const char **ret_reason)
{
    enum s3_error error = S3_OK;

    for (size_t i = 0; i < json_array_size(conditions) && !error; i++) {
        json_t *one = json_array_get(conditions, i);

        error = json_is_object(one)  ? check_object(f, one, ret_reason)
                : json_is_array(one) ? check_array(f, one, ret_reason)
                                     : REFUSE(INVALID_POLICY, "a condition of the policy is none");
    }
    for (size_t i = 0; i < f->n && !error; i++)
        if (!f->covered[i] && !is_exempt(f->fields[i].name))
            error =
                REFUSE(ACCESS_DENIED, "Invalid according to Policy: the form has a field that no condition "
                                      "names");
    return error;
}

enum s3_error policy_check(struct slice document, const struct policy_field *fields, size_t n,
                           uint64_t now_ns, struct policy_limits *ret, const char **ret_reason)
{
    json_t *_cleanup_(free_json) policy =
        text_json_is_deep(document) ? NULL : json_loadb(document.p ? document.p : "", document.n, 0, NULL);
    _cleanup_free_ bool *covered = calloc(n + 1, sizeof *covered);
    struct form f = {fields, covered, n, ret};
    const char *expiration = json_string_value(json_object_get(policy, "expiration"));
    json_t *conditions = json_object_get(policy, "conditions");
    uint64_t until_ns;

    if (!covered)
        abort();
    *ret = (struct policy_limits){0, UINT64_MAX};
    if (!expiration || text_parse_date(slice_str(expiration), &until_ns))
        return REFUSE(INVALID_POLICY, "the policy has no expiration, as 2026-01-31T00:00:00Z");
    if (!json_is_array(conditions) || json_array_size(conditions) == 0 ||
        json_array_size(conditions) > CONDITIONS_MAX)
        return REFUSE(INVALID_POLICY, "the policy has no list of conditions");
    if (now_ns >= until_ns)
        return REFUSE(ACCESS_DENIED, "Invalid according to Policy: Policy expired.");
    return check_conditions(&f, conditions, ret_reason);
}

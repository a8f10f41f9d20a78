/* layer: s3 */
/* Policies of POST forms: each condition counts, each field must be named, and no document is too much for
 * the thread that reads it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "s3/policy.h"

#define WHOLE(conditions, more)                                                                              \
    "{\"expiration\": \"2099-01-01T00:00:00Z\", \"conditions\": [{\"bucket\": \"b\"}" conditions "]" more "}"

static const struct policy_field fields[] = {{"bucket", {"b", 1}}, {"key", {"k", 1}}, {"key", {"l", 1}}};

/* What becomes of the document for the first n of the fields above. */
static enum s3_error check(const char *document, size_t n, struct policy_limits *ret)
{
    const char *reason = NULL;

    return policy_check(slice_str(document), fields, n, /* now_ns= */ 1, ret, &reason);
}

/* Who signs forms may not end the node: the parser goes down the stack for each bracket. Brackets that stand
 * side by side, or in a text, are no matter. (Seen to be accepted without text_json_is_deep, and 2,000 of
 * them to end the process on a stack like a worker's.) */
static void policies_that_nest_too_deep(void **state)
{
    struct policy_limits limits;
    _cleanup_buf_ struct buf b = BUF_INIT(64 * KIB);
    (void)state;

    for (size_t deep = 0; deep <= 1000; deep = deep ? 10 * deep : 1) {
        buf_clear(&b);
        assert_int_equal(buf_str(&b, "{\"expiration\": \"2099-01-01T00:00:00Z\", \"more\": "), 0);
        for (size_t i = 0; i < deep; i++)
            assert_int_equal(buf_str(&b, "["), 0);
        assert_int_equal(buf_str(&b, "\"[[[{{{\""), 0);
        for (size_t i = 0; i < deep; i++)
            assert_int_equal(buf_str(&b, "]"), 0);
        assert_int_equal(buf_str(&b, ", \"conditions\": [{\"bucket\": \"b\"}]}"), 0);
        assert_int_equal(check(b.p, 1, &limits), deep < 64 ? S3_OK : S3_ERR_INVALID_POLICY);
    }
}

/* A range that is given twice is as narrow as both together, in whichever order they stand. */
static void ranges_of_lengths_all_hold(void **state)
{
    static const char *const documents[] = {
        WHOLE(",[\"content-length-range\", 5, 100],[\"content-length-range\", 2, 50]", ""),
        WHOLE(",[\"content-length-range\", 2, 50],[\"content-length-range\", 5, 100]", ""),
    };
    struct policy_limits limits;
    (void)state;

    for (size_t i = 0; i < ARRAY_SIZE(documents); i++) {
        assert_int_equal(check(documents[i], 1, &limits), S3_OK);
        assert_int_equal(limits.least, 5);
        assert_int_equal(limits.most, 50);
    }
    assert_int_equal(check(WHOLE("", ""), 1, &limits), S3_OK);
    assert_true(limits.least == 0 && limits.most == UINT64_MAX);
}

/* A field that no condition names is refused, and so is the second one of a name that is. */
static void fields_are_all_named(void **state)
{
    const char *document = WHOLE(",[\"starts-with\", \"$key\", \"\"]", "");
    struct policy_limits limits;
    (void)state;

    assert_int_equal(check(WHOLE("", ""), 2, &limits), S3_ERR_ACCESS_DENIED);
    assert_int_equal(check(document, 2, &limits), S3_OK);
    assert_int_equal(check(document, 3, &limits), S3_ERR_ACCESS_DENIED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(policies_that_nest_too_deep),
        cmocka_unit_test(ranges_of_lengths_all_hold),
        cmocka_unit_test(fields_are_all_named),
    };

    return cmocka_run_group_tests_name("s3_policy", tests, NULL, NULL);
}

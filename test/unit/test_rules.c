/* layer: namespace */
#include "namespace/rules.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static struct rules parse(const char *text)
{
    struct rules r = {0};
    struct err e = {0};
    if (rules_parse(text, &r, &e) < 0)
        fail_msg("%s", e.text);
    return r;
}

static void change(struct rules *r, const char *prefix, const char *setting)
{
    struct err e = {0};
    if (rules_change(r, slice_str(prefix), slice_str(setting), &e) < 0)
        fail_msg("%s", e.text);
}

static void expect_text(const struct rules *r, const char *text)
{
    _cleanup_buf_ struct buf b = BUF_INIT(RULES_TEXT_MAX_BYTES);
    assert_int_equal(rules_format(r, &b), 0);
    assert_string_equal(b.p ? b.p : "", text);
}

/* The longest prefix decides, for what is kept and for times each by itself. */
static void test_longest_prefix_decides(void **state)
{
    (void)state;
    struct rules r = parse("pin:a/;never:a/tmp/;ttl=5:a/tmp/;ttl=9:;pin:a/tmp/x/");
    uint64_t ttl = 0;
    assert_int_equal(rules_keep(&r, SLICE_LIT("a/1")), RULE_KEEP_PINNED);
    assert_int_equal(rules_keep(&r, SLICE_LIT("a/tmp/1")), RULE_KEEP_NEVER);
    assert_int_equal(rules_keep(&r, SLICE_LIT("a/tmp/x/1")), RULE_KEEP_PINNED);
    assert_int_equal(rules_keep(&r, SLICE_LIT("b")), RULE_KEEP_UNSAID);
    assert_true(rules_ttl(&r, SLICE_LIT("a/tmp/x/1"), &ttl));
    assert_int_equal(ttl, 5);
    assert_true(rules_ttl(&r, SLICE_LIT("b"), &ttl));
    assert_int_equal(ttl, 9);
    rules_fini(&r);
    r = parse(NULL);
    assert_false(rules_ttl(&r, SLICE_LIT("b"), &ttl));
    rules_fini(&r);
}

/* Changes say one thing of one prefix; what says nothing any more is gone; the text comes back as it went. */
static void test_changes_and_text(void **state)
{
    (void)state;
    struct rules r = {0};
    change(&r, "a b;c:d/", "pin=true");
    change(&r, "x", "ttl=2s");
    expect_text(&r, "pin:a%20b%3Bc%3Ad/;ttl=2000:x");
    struct rules again = parse("pin:a%20b%3Bc%3Ad/;ttl=2000:x");
    expect_text(&again, "pin:a%20b%3Bc%3Ad/;ttl=2000:x");
    change(&again, "a b;c:d/", "cache=never");
    expect_text(&again, "never:a%20b%3Bc%3Ad/;ttl=2000:x");
    change(&again, "a b;c:d/", "pin=false"); /* it is not pinned: nothing */
    change(&again, "x", "ttl=");
    change(&again, "nobody", "pin=false");
    expect_text(&again, "never:a%20b%3Bc%3Ad/");
    change(&again, "a b;c:d/", "cache=auto");
    expect_text(&again, "");
    rules_fini(&r);
    rules_fini(&again);
}

/* What cannot be understood is refused, and more than there is room for. */
static void test_nonsense_is_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {"pin", "pin=1:x", "ttl:x", "ttl=soon:x", "keep:x", "pin:%zz", ":x"};
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        struct rules r = {0};
        struct err e = {0};
        assert_int_equal(rules_parse(bad[i], &r, &e), ERR_BAD_OPTION);
        assert_non_null(strstr(e.text, "rules"));
        rules_fini(&r);
    }
    static const char *const settings[] = {"pin=perhaps", "cache=", "ttl=soon", "pins=true", ""};
    struct rules r = {0};
    for (size_t i = 0; i < ARRAY_SIZE(settings); i++)
        assert_int_equal(rules_change(&r, SLICE_LIT("p"), slice_str(settings[i]), NULL), ERR_BAD_OPTION);
    expect_text(&r, "");
    for (int i = 0; i < RULES_MAX; i++) {
        char prefix[16];
        (void)snprintf(prefix, sizeof(prefix), "%d", i);
        change(&r, prefix, "pin=true");
    }
    assert_int_equal(rules_change(&r, SLICE_LIT("one more"), SLICE_LIT("pin=true"), NULL), ERR_BAD_OPTION);
    rules_fini(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_longest_prefix_decides),
        cmocka_unit_test(test_changes_and_text),
        cmocka_unit_test(test_nonsense_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* layer: s3 */
/* Tags, CORS rules and lifecycle rules: what is accepted, in which form it is kept, what it then means. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/text.h"
#include "net/http.h"
#include "origin/meta.h"
#include "s3/cors.h"
#include "s3/lifecycle.h"
#include "s3/tags.h"

#define DAY_NS (24 * 3600 * (uint64_t)1000000000)

/* Tags come back from their kept form as they were, in both directions, and cannot break a line. */
static void tags_keep_their_bytes(void **state)
{
    _cleanup_(arena_freep) struct arena *a = arena_new(4 * MIB);
    _cleanup_buf_ struct buf kept = BUF_INIT(KIB), xml = BUF_INIT(4 * KIB), again = BUF_INIT(KIB);
    struct tags *t = arena_alloc(a, sizeof *t), *u = arena_alloc(a, sizeof *u);
    const char *reason;

    assert_int_equal(tags_parse(SLICE_LIT("a=1&%C3%BC+x=%26%0A%3D&e"), 10, a, t, &reason), S3_OK);
    assert_int_equal(t->n, 3);
    assert_true(slice_eq_str(t->v[2].key, "\xc3\xbc x") && slice_eq_str(t->v[2].value, "&\n="));
    assert_int_equal(tags_put(t, &kept), 0);
    assert_string_equal(kept.p, "a=1&e=&%C3%BC%20x=%26%0A%3D");
    assert_int_equal(tags_count(buf_view(&kept)), 3);
    assert_int_equal(tags_count(SLICE_LIT("")), 0);
    assert_int_equal(tags_put_xml(t, &xml), 0);
    assert_int_equal(tags_parse_xml(buf_view(&xml), 10, a, u, &reason), S3_OK);
    assert_int_equal(tags_put(u, &again), 0);
    assert_string_equal(again.p, kept.p);
}

/* What S3 does not allow is refused with its error, in both forms. */
static void tags_that_are_not_allowed(void **state)
{
    static const struct {
        const char *text;
        enum s3_error error;
    } rows[] = {
        {"a=1&a=2", S3_ERR_INVALID_TAG}, {"=x", S3_ERR_INVALID_TAG},
        {"aws:x=1", S3_ERR_INVALID_TAG}, {"%zz=1", S3_ERR_INVALID_ARGUMENT},
        {"a=%ff", S3_ERR_INVALID_TAG},   {"a=&b=&c=&d=&e=&f=&g=&h=&i=&j=&k=", S3_ERR_INVALID_TAG},
    };
    static const char *const documents[] = {
        "<Tagging/>",
        "<Tagging><TagSet><Tag><Key>a</Key></Tag></TagSet></Tagging>",
        "<Tagging><TagSet><Tag><Key>a</Key><Key>b</Key><Value/></Tag></TagSet></Tagging>",
        "<Tagging><TagSet><Other/></TagSet></Tagging>",
        "<Other><TagSet/></Other>",
        "",
    };
    _cleanup_(arena_freep) struct arena *a = arena_new(4 * MIB);
    struct tags *t = arena_alloc(a, sizeof *t);
    const char *reason;

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        reason = NULL;
        assert_int_equal(tags_parse(slice_str(rows[i].text), TAGS_OBJECT_MAX, a, t, &reason), rows[i].error);
        assert_non_null(reason);
    }
    for (size_t i = 0; i < ARRAY_SIZE(documents); i++)
        assert_int_equal(tags_parse_xml(slice_str(documents[i]), 10, a, t, &reason), S3_ERR_MALFORMED_XML);
}

/* The line in an object's metadata is found, replaced and removed; the other lines stay as they were. */
static void tags_live_in_the_metadata(void **state)
{
    static const char meta[] = "cache-control: x\nx-amz-meta-forebay-tags: a=1\nx-amz-meta-b: c\n";
    _cleanup_buf_ struct buf with = BUF_INIT(KIB), without = BUF_INIT(KIB);

    assert_true(slice_eq_str(meta_get(slice_str(meta), META_TAGS), "a=1"));
    assert_int_equal(meta_set(slice_str(meta), META_TAGS, SLICE_LIT("z=2"), &with), 0);
    assert_string_equal(with.p, "cache-control: x\nx-amz-meta-b: c\nx-amz-meta-forebay-tags: z=2\n");
    assert_int_equal(meta_set(buf_view(&with), META_TAGS, SLICE_LIT(""), &without), 0);
    assert_string_equal(without.p, "cache-control: x\nx-amz-meta-b: c\n");
    assert_int_equal(meta_get(buf_view(&without), META_TAGS).n, 0);
}

#define CORS(inside) "<CORSConfiguration>" inside "</CORSConfiguration>"
#define RULE(inside) "<CORSRule>" inside "</CORSRule>"

/* Rules are kept in one line that reads as the same rules. */
static void cors_keeps_its_rules(void **state)
{
    static const char document[] =
        CORS("\n " RULE("<ID>a</ID>\n<AllowedMethod>GET</AllowedMethod><AllowedMethod>PUT</AllowedMethod>"
                        "<AllowedOrigin>https://*.x</AllowedOrigin><AllowedHeader>*</AllowedHeader>"
                        "<ExposeHeader>ETag</ExposeHeader><MaxAgeSeconds>5</MaxAgeSeconds>") "\n");
    _cleanup_(arena_freep) struct arena *a = arena_new(8 * MIB);
    _cleanup_buf_ struct buf kept = BUF_INIT(4 * KIB), again = BUF_INIT(4 * KIB);
    const char *reason;
    struct cors c, d;

    assert_int_equal(cors_parse(SLICE_LIT(document), a, &c, &reason), S3_OK);
    assert_int_equal(cors_put(&c, &kept), 0);
    assert_null(strchr(kept.p, '\n'));
    assert_int_equal(cors_parse(buf_view(&kept), a, &d, &reason), S3_OK);
    assert_int_equal(cors_put(&d, &again), 0);
    assert_string_equal(kept.p, again.p);
}

/* A rule fits only when origin, method and every header do; the first one that fits counts. */
static void cors_matches(void **state)
{
    static const char document[] =
        CORS(RULE("<AllowedMethod>PUT</AllowedMethod><AllowedOrigin>https://*.x</AllowedOrigin>"
                  "<AllowedHeader>x-*-b</AllowedHeader><AllowedHeader>Content-Type</AllowedHeader>")
                 RULE("<AllowedMethod>GET</AllowedMethod><AllowedOrigin>*</AllowedOrigin>"));
    static const struct {
        const char *origin, *method, *headers;
        int rule;
    } rows[] = {
        {"https://a.x", "PUT", "", 0},     {"https://.x", "PUT", "X-A-B, content-type", 0},
        {"https://a.x", "GET", "", 1},     {"https://a.y", "PUT", "", -1},
        {"https:/.x", "PUT", "", -1},      {"HTTPS://a.x", "PUT", "", -1},
        {"https://a.x", "PUT", "x-a", -1}, {"https://a.x", "PUT", "content-type,range", -1},
        {"https://a.x", "DELETE", "", -1}, {"anything", "GET", "", 1},
        {"anything", "GET", "range", -1},  {"https://a.x", "PUT", "x-b", -1},
    };
    _cleanup_(arena_freep) struct arena *a = arena_new(8 * MIB);
    const char *reason;
    struct slice origin;
    struct cors c;

    assert_int_equal(cors_parse(SLICE_LIT(document), a, &c, &reason), S3_OK);
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        const struct cors_question q = {slice_str(rows[i].origin), slice_str(rows[i].method),
                                        slice_str(rows[i].headers)};
        const struct cors_rule *rule = cors_match(&c, &q, &origin);

        assert_int_equal(rule ? rule - c.rules : -1, rows[i].rule);
    }
}

/* Nobody signs what a browser asks first: it cannot ask about more headers than it could send, by which each
 * header of each rule would be compared with thousands. */
static void cors_of_more_headers_than_there_are(void **state)
{
    static const char document[] = CORS(RULE("<AllowedMethod>GET</AllowedMethod><AllowedOrigin>*</"
                                             "AllowedOrigin><AllowedHeader>*</AllowedHeader>"));
    _cleanup_(arena_freep) struct arena *a = arena_new(8 * MIB);
    char headers[2 * HTTP_HEADERS_MAX + 2];
    const char *reason;
    struct slice origin;
    struct cors c;

    assert_int_equal(cors_parse(SLICE_LIT(document), a, &c, &reason), S3_OK);
    for (size_t i = 0; i < sizeof headers; i++)
        headers[i] = i % 2 ? ',' : 'a';
    struct cors_question q = {SLICE_LIT("https://a.x"), SLICE_LIT("GET"),
                              slice_of(headers, 2 * HTTP_HEADERS_MAX - 1)};
    assert_non_null(cors_match(&c, &q, &origin));
    q.headers.n += 2;
    assert_null(cors_match(&c, &q, &origin));
}

/* Documents that are no rules are refused. */
static void cors_that_is_not_one(void **state)
{
    static const struct {
        const char *text;
        enum s3_error error;
    } rows[] = {
        {CORS(""), S3_ERR_MALFORMED_XML},
        {CORS(RULE("")), S3_ERR_MALFORMED_XML},
        {CORS(RULE("<AllowedMethod>GET</AllowedMethod>")), S3_ERR_MALFORMED_XML},
        {CORS(RULE("<AllowedOrigin>*</AllowedOrigin>")), S3_ERR_MALFORMED_XML},
        {CORS("<Other/>"), S3_ERR_MALFORMED_XML},
        {CORS(RULE("<Other/>")), S3_ERR_MALFORMED_XML},
        {CORS(RULE("<AllowedMethod>OPTIONS</AllowedMethod>")), S3_ERR_INVALID_REQUEST},
        {CORS(RULE("<AllowedOrigin>*.*</AllowedOrigin>")), S3_ERR_INVALID_REQUEST},
        {"nothing", S3_ERR_MALFORMED_XML},
    };
    _cleanup_(arena_freep) struct arena *a = arena_new(8 * MIB);
    const char *reason;
    struct cors c;

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
        assert_int_equal(cors_parse(slice_str(rows[i].text), a, &c, &reason), rows[i].error);
}

#define LIFECYCLE(inside) "<LifecycleConfiguration>" inside "</LifecycleConfiguration>"
#define ENABLED(inside)   "<Rule><Status>Enabled</Status>" inside "</Rule>"
#define DAY               "<Expiration><Days>1</Days></Expiration>"

static struct lifecycle rules_of(const char *document, struct arena *a)
{
    const char *reason = "";
    struct lifecycle l;

    assert_int_equal(lifecycle_parse(slice_str(document), a, &l, &reason), S3_OK);
    return l;
}

static bool expires(const struct lifecycle_rule *r, struct slice key, uint64_t size, uint64_t mtime_ns,
                    uint64_t now_ns)
{
    uint64_t ns = lifecycle_ends_ns(r, key, size, mtime_ns);

    return ns && ns <= now_ns;
}

/* Days count to the midnight after them, dates from their midnight on; prefix and sizes are bounds. */
static void lifecycle_comes_due(void **state)
{
    _cleanup_(arena_freep) struct arena *a = arena_new(8 * MIB);
    struct lifecycle l = rules_of(
        LIFECYCLE(ENABLED("<Filter><Prefix>p/</Prefix></Filter><Expiration><Days>2</Days></Expiration>")
                      ENABLED("<Filter><And><Prefix/><ObjectSizeGreaterThan>5</ObjectSizeGreaterThan>"
                              "<ObjectSizeLessThan>9</ObjectSizeLessThan></And></Filter>"
                              "<Expiration><Date>2026-01-31T00:00:00Z</Date></Expiration>")
                          ENABLED("<Prefix>p/</Prefix><AbortIncompleteMultipartUpload><DaysAfterInitiation>1"
                                  "</DaysAfterInitiation></AbortIncompleteMultipartUpload>")),
        a);
    const struct lifecycle_rule *days = &l.rules[0], *date = &l.rules[1], *uploads = &l.rules[2];
    const uint64_t noon = 1000 * DAY_NS + DAY_NS / 2;
    uint64_t then;

    assert_int_equal(l.n, 3);
    assert_false(expires(days, SLICE_LIT("p/k"), 1, noon, noon + 2 * DAY_NS));
    assert_false(expires(days, SLICE_LIT("p/k"), 1, noon, 1003 * DAY_NS - 1));
    assert_true(expires(days, SLICE_LIT("p/k"), 1, noon, 1003 * DAY_NS));
    assert_true(expires(days, SLICE_LIT("p/k"), 1, 1000 * DAY_NS, 1002 * DAY_NS));
    assert_false(expires(days, SLICE_LIT("q/k"), 1, noon, 2000 * DAY_NS));
    assert_false(expires(days, SLICE_LIT("p/k"), 1, /* nobody knows since when */ 0, 2000 * DAY_NS));
    for (int i = 0; i < 4; i++) /* the end of what can be counted, and what becomes of times before 1970 */
        assert_false(expires(days, SLICE_LIT("p/k"), 1, UINT64_MAX - (uint64_t)i * DAY_NS, 2000 * DAY_NS));
    assert_int_equal(text_parse_date(SLICE_LIT("2026-01-31T00:00:00Z"), &then), 0);
    assert_false(expires(date, SLICE_LIT("k"), 6, 0, then - 1));
    assert_true(expires(date, SLICE_LIT("k"), 6, 0, then));
    assert_false(expires(date, SLICE_LIT("k"), 5, 0, then));
    assert_false(expires(date, SLICE_LIT("k"), 9, 0, then));
    assert_false(expires(uploads, SLICE_LIT("k"), 6, 0, then));
    assert_false(lifecycle_aborts(days, SLICE_LIT("p/k"), noon, 2000 * DAY_NS));
    assert_false(lifecycle_aborts(uploads, SLICE_LIT("p/k"), noon, 1002 * DAY_NS - 1));
    assert_true(lifecycle_aborts(uploads, SLICE_LIT("p/k"), noon, 1002 * DAY_NS));
    assert_false(lifecycle_aborts(uploads, SLICE_LIT("p"), noon, 2000 * DAY_NS));
    l.rules[2].has_larger = true; /* 0 is a size, too */
    assert_false(lifecycle_aborts(uploads, SLICE_LIT("p/k"), noon, 2000 * DAY_NS));
    l.rules[2].has_larger = false;
    assert_false(lifecycle_aborts(uploads, SLICE_LIT("p/k"), UINT64_MAX, 2000 * DAY_NS));
    l.rules[0].enabled = l.rules[2].enabled = false;
    assert_false(expires(days, SLICE_LIT("p/k"), 1, noon, 2000 * DAY_NS));
    assert_false(lifecycle_aborts(uploads, SLICE_LIT("p/k"), noon, 2000 * DAY_NS));
}

/* A rule for what is larger than nothing leaves empty objects alone, also after it was kept. */
static void lifecycle_spares_empty_objects(void **state)
{
    _cleanup_(arena_freep) struct arena *a = arena_new(8 * MIB);
    _cleanup_buf_ struct buf kept = BUF_INIT(4 * KIB);
    struct lifecycle l =
        rules_of(LIFECYCLE(ENABLED("<Filter><ObjectSizeGreaterThan>0</ObjectSizeGreaterThan></Filter>"
                                   "<Expiration><Days>1</Days></Expiration>")),
                 a);

    for (int i = 0; i < 2; i++) {
        assert_false(expires(&l.rules[0], SLICE_LIT("dir/"), 0, DAY_NS, 1000 * DAY_NS));
        assert_true(expires(&l.rules[0], SLICE_LIT("k"), 1, DAY_NS, 1000 * DAY_NS));
        buf_clear(&kept);
        assert_int_equal(lifecycle_put(&l, &kept), 0);
        l = rules_of(kept.p, a);
    }
}

/* A rule that says no more than `false` is kept with that word: without it the document would have a rule
 * that does nothing, and would not be read again, so that no rule of the bucket had any effect. */
static void lifecycle_keeps_a_rule_that_says_false(void **state)
{
    _cleanup_(arena_freep) struct arena *a = arena_new(8 * MIB);
    _cleanup_buf_ struct buf kept = BUF_INIT(4 * KIB);
    struct lifecycle l = rules_of(
        LIFECYCLE(ENABLED("<Filter/><Expiration><ExpiredObjectDeleteMarker>false</ExpiredObjectDeleteMarker>"
                          "</Expiration>") ENABLED("<Filter/>" DAY)),
        a);

    assert_int_equal(lifecycle_put(&l, &kept), 0);
    assert_non_null(strstr(kept.p, "<ExpiredObjectDeleteMarker>false</ExpiredObjectDeleteMarker>"));
    l = rules_of(kept.p, a);
    assert_int_equal(l.n, 2);
    assert_false(expires(&l.rules[0], SLICE_LIT("k"), 1, DAY_NS, 1000 * DAY_NS));
    assert_true(expires(&l.rules[1], SLICE_LIT("k"), 1, DAY_NS, 1000 * DAY_NS));
}

/* Rules are kept in one line that reads as the same rules. */
static void lifecycle_keeps_its_rules(void **state)
{
    static const char document[] = LIFECYCLE(
        "\n<Rule><ID>a&lt;b</ID><Status>Disabled</Status><Filter/><Expiration><Days>1</Days></Expiration></"
        "Rule>\n"
        "<Rule><Status>Enabled</Status><Prefix>x</Prefix><Expiration><Date>2030-01-01</Date></Expiration></"
        "Rule>"
        "<Rule><Status>Enabled</Status><Prefix/><Expiration><ExpiredObjectDeleteMarker>true</"
        "ExpiredObjectDeleteMarker>"
        "</Expiration><NoncurrentVersionExpiration><NoncurrentDays>3</"
        "NoncurrentDays><NewerNoncurrentVersions>2"
        "</NewerNoncurrentVersions></NoncurrentVersionExpiration></Rule>"
        "<Rule><Status>Enabled</Status><Filter><ObjectSizeGreaterThan>4</ObjectSizeGreaterThan></Filter>"
        "<AbortIncompleteMultipartUpload><DaysAfterInitiation>9</DaysAfterInitiation>"
        "</AbortIncompleteMultipartUpload></Rule>"
        "<Rule><Status>Enabled</Status><Filter><Tag><Key>a&amp;</Key><Value/></Tag></Filter>"
        "<Expiration><Days>1</Days></Expiration></Rule>");
    _cleanup_(arena_freep) struct arena *a = arena_new(8 * MIB);
    _cleanup_buf_ struct buf kept = BUF_INIT(4 * KIB), again = BUF_INIT(4 * KIB);
    struct lifecycle l = rules_of(document, a);

    assert_int_equal(lifecycle_put(&l, &kept), 0);
    assert_null(strchr(kept.p, '\n'));
    l = rules_of(kept.p, a);
    assert_int_equal(lifecycle_put(&l, &again), 0);
    assert_string_equal(kept.p, again.p);
}

/* A rule for tags means objects that have all of them, with these values, whatever else they have. */
static void lifecycle_asks_for_tags(void **state)
{
    static const struct {
        const char *kept;
        bool fits;
    } rows[] = {{"a=1&b%20c=2", true}, {"a=1&b%20c=2&d=3", true}, {"b%20c=2&a=1", true},
                {"a=1", false},        {"a=2&b%20c=2", false},    {"", false},
                {"%zz", false}};
    _cleanup_(arena_freep) struct arena *a = arena_new(8 * MIB);
    struct lifecycle l =
        rules_of(LIFECYCLE(ENABLED(
                     "<Filter><And><Tag><Key>a</Key><Value>1</Value></Tag><Tag><Value>2</Value><Key>b c</Key>"
                     "</Tag></And></Filter><Expiration><Days>2</Days></Expiration>")
                               ENABLED("<Filter/><Expiration><Days>2</Days></Expiration>")),
                 a);

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        assert_int_equal(lifecycle_has_tags(&l.rules[0], slice_str(rows[i].kept), a), rows[i].fits);
        assert_true(lifecycle_has_tags(&l.rules[1], slice_str(rows[i].kept), a));
    }
}

/* What is not done here is refused, and so is what is no rule. */
static void lifecycle_that_is_refused(void **state)
{
    static const struct {
        const char *text;
        enum s3_error error;
    } rows[] = {
        {LIFECYCLE(""), S3_ERR_MALFORMED_XML},
        {LIFECYCLE("<Rule/>"), S3_ERR_MALFORMED_XML},
        {LIFECYCLE(ENABLED("<Expiration><Days>1</Days></Expiration>")), S3_ERR_MALFORMED_XML},
        {LIFECYCLE(ENABLED("<Prefix/>")), S3_ERR_INVALID_REQUEST},
        {LIFECYCLE("<Rule><Status>enabled</Status></Rule>"), S3_ERR_MALFORMED_XML},
        {LIFECYCLE(ENABLED("<Prefix/><Expiration><Days>0</Days></Expiration>")), S3_ERR_INVALID_ARGUMENT},
        {LIFECYCLE(ENABLED("<Prefix/><Expiration><Days>-1</Days></Expiration>")), S3_ERR_INVALID_ARGUMENT},
        {LIFECYCLE(ENABLED("<Prefix/><Expiration><Date>soon</Date></Expiration>")), S3_ERR_MALFORMED_XML},
        {LIFECYCLE(ENABLED("<Prefix/><Expiration><Date>2026-01-31T00:00:01Z</Date></Expiration>")),
         S3_ERR_INVALID_ARGUMENT},
        {LIFECYCLE(ENABLED("<Prefix/><Expiration><Days>1</Days><Date>2026-01-31</Date></Expiration>")),
         S3_ERR_MALFORMED_XML},
        {LIFECYCLE(ENABLED("<Prefix/><Transition><Days>1</Days></Transition>")), S3_ERR_NOT_IMPLEMENTED},
        {LIFECYCLE(ENABLED("<Prefix/><NoncurrentVersionTransition/>")), S3_ERR_NOT_IMPLEMENTED},
        {LIFECYCLE(ENABLED("<Prefix/><NoncurrentVersionExpiration/>")), S3_ERR_MALFORMED_XML},
        {LIFECYCLE(ENABLED("<Prefix/><Transition><Date>20220927</Date></Transition>")), S3_ERR_MALFORMED_XML},
        {LIFECYCLE(ENABLED("<Prefix/><Transition><Date>2026-01-31T00:00:01Z</Date></Transition>")),
         S3_ERR_INVALID_ARGUMENT},
        {LIFECYCLE(ENABLED("<Prefix/><Transition><Date>2026-01-31</Date></Transition>")),
         S3_ERR_NOT_IMPLEMENTED},
        {LIFECYCLE(ENABLED("<Filter><Tag><Key>a</Key></Tag></Filter>")), S3_ERR_MALFORMED_XML},
        {LIFECYCLE(
             ENABLED("<Filter><And><Tag><Key>a</Key><Value>b</Value></Tag><Tag><Value>b</Value></Tag></And>"
                     "</Filter><Expiration><Days>1</Days></Expiration>")),
         S3_ERR_MALFORMED_XML},
        {LIFECYCLE(ENABLED(
             "<Filter><Tag><Key>a</Key><Value>b</Value></Tag></Filter><AbortIncompleteMultipartUpload>"
             "<DaysAfterInitiation>9</DaysAfterInitiation></AbortIncompleteMultipartUpload>")),
         S3_ERR_INVALID_REQUEST},
        {LIFECYCLE(ENABLED("<Prefix/><Expiration/>")), S3_ERR_MALFORMED_XML},
        /* what would be lost of these is what keeps the rule from removing more */
        {LIFECYCLE(
             ENABLED("<Prefix>a/</Prefix><Filter><Tag><Key>a</Key><Value>b</Value></Tag></Filter>" DAY)),
         S3_ERR_MALFORMED_XML},
        {LIFECYCLE(ENABLED("<Filter><Prefix>a/b</Prefix></Filter><Prefix>a/</Prefix>" DAY)),
         S3_ERR_MALFORMED_XML},
        {LIFECYCLE(ENABLED("<Filter><Prefix>a/</Prefix></Filter><Filter><Prefix/></Filter>" DAY)),
         S3_ERR_MALFORMED_XML},
        {LIFECYCLE(ENABLED("<Filter/><Filter/>" DAY)), S3_ERR_MALFORMED_XML},
        {LIFECYCLE(ENABLED("<Filter><Prefix>a/</Prefix><And><Prefix/></And></Filter>" DAY)),
         S3_ERR_MALFORMED_XML},
        {LIFECYCLE(ENABLED("<Prefix>a/</Prefix><Prefix/>" DAY)), S3_ERR_MALFORMED_XML},
        {LIFECYCLE(ENABLED("<Filter><ObjectSizeLessThan>1</ObjectSizeLessThan><ObjectSizeLessThan>9"
                           "</ObjectSizeLessThan></Filter>" DAY)),
         S3_ERR_MALFORMED_XML},
        {LIFECYCLE(ENABLED("<Prefix/>" DAY DAY)), S3_ERR_MALFORMED_XML},
        {LIFECYCLE(ENABLED("<Prefix/><Status>Disabled</Status>" DAY)), S3_ERR_MALFORMED_XML},
        {"<Other/>", S3_ERR_MALFORMED_XML},
    };
    _cleanup_(arena_freep) struct arena *a = arena_new(8 * MIB);
    const char *reason;
    struct lifecycle l;

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
        assert_int_equal(lifecycle_parse(slice_str(rows[i].text), a, &l, &reason), rows[i].error);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tags_keep_their_bytes),
        cmocka_unit_test(tags_that_are_not_allowed),
        cmocka_unit_test(tags_live_in_the_metadata),
        cmocka_unit_test(cors_keeps_its_rules),
        cmocka_unit_test(cors_matches),
        cmocka_unit_test(cors_of_more_headers_than_there_are),
        cmocka_unit_test(cors_that_is_not_one),
        cmocka_unit_test(lifecycle_comes_due),
        cmocka_unit_test(lifecycle_spares_empty_objects),
        cmocka_unit_test(lifecycle_keeps_a_rule_that_says_false),
        cmocka_unit_test(lifecycle_keeps_its_rules),
        cmocka_unit_test(lifecycle_asks_for_tags),
        cmocka_unit_test(lifecycle_that_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

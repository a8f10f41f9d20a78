/* layer: origin */
/* threaded */
/*
 * Views of versioned buckets: what was there at a time, one version; and tags; before a scripted server.
 */
#include "origin/meta.h"
#include "origin_s3_common.h"

#define XML(text) "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: application/xml\r\n\r\n" text
#define VERSIONS(more, text)                                                                                 \
    XML("<ListVersionsResult>" more "<EncodingType>url</EncodingType>" text "</ListVersionsResult>")
#define WHOLE "<IsTruncated>false</IsTruncated>"
#define CUT(key, id)                                                                                         \
    "<IsTruncated>true</IsTruncated><NextKeyMarker>" key "</NextKeyMarker><NextVersionIdMarker>" id          \
    "</NextVersionIdMarker>"
#define VERSION(key, id, day, size)                                                                          \
    "<Version><Key>" key "</Key><VersionId>" id "</VersionId><LastModified>2026-01-" day                     \
    "T00:00:00.000Z</LastModified><ETag>&quot;e" id "&quot;</ETag><Size>" size "</Size></Version>"
#define MARKER(key, id, day)                                                                                 \
    "<DeleteMarker><Key>" key "</Key><VersionId>" id "</VersionId><LastModified>2026-01-" day                \
    "T00:00:00.000Z</LastModified></DeleteMarker>"

static const char *const as_of[] = {"origin.as_of", "2026-01-15T00:00:00Z", NULL};

/* Before a bucket that is known to keep versions. */
static void kept(struct fixture *f, const char *url, const struct script_step *steps, size_t n)
{
    fixture_start(f, url, steps, n, as_of);
    atomic_store(&s3_of(f->origin)->view.is_kept, true);
}

/* "key etag size" of a page, a line each. */
static void list(struct fixture *f, struct slice token, struct origin_page *ret, struct buf *lines)
{
    struct err e = {0};
    struct origin_list l = {.max = 100, .token = token};
    if (origin_list(f->origin, &l, f->arena, ret, &e) != 0)
        fail_msg("%s", e.text);
    buf_clear(lines);
    assert_int_equal(buf_str(lines, ""), 0);
    for (size_t i = 0; i < ret->n; i++)
        assert_int_equal(buf_printf(lines, SLICE_FMT " " SLICE_FMT " %lu\n", SLICE_ARG(ret->entries[i].key),
                                    SLICE_ARG(ret->entries[i].attr.etag),
                                    (unsigned long)ret->entries[i].attr.size_bytes),
                         0);
}

/* Of each key the newest version that is not too new is listed, or nothing where that is a marker; also when
 * a page ends among the versions of a key, and when nothing of a page was there then. Keys may be encoded. */
static void test_list_as_of(void **state)
{
    static const struct script_step steps[] = {
        {.answer = VERSIONS(CUT("p/c+d", "3"),
                            VERSION("p/a", "9", "20", "5") VERSION("p/a", "8", "15", "4") VERSION(
                                "p/a", "7", "10", "3") MARKER("p/b", "6", "12") VERSION("p/b", "5", "11", "2")
                                VERSION("p/c+d", "4", "30", "9") VERSION("p/c+d", "3", "14", "7")),
         .close = true},
        {.answer = VERSIONS(CUT("p/e", "1"), VERSION("p/c+d", "2", "13", "6") VERSION("p/e", "1", "28", "1")),
         .close = true},
        {.answer = VERSIONS(WHOLE, VERSION("p/e", "0", "02", "8") MARKER("p/f", "x", "25")
                                       VERSION("p/f", "y", "24", "1")),
         .close = true},
    };
    struct fixture f;
    struct origin_page page;
    struct buf _cleanup_buf_ lines = BUF_INIT(KIB);
    kept(&f, "s3://b/p", steps, ARRAY_SIZE(steps));
    list(&f, SLICE_NULL, &page, &lines);
    assert_string_equal(lines.p, "a e8 4\nc d e3 7\n");
    assert_true(page.truncated);
    list(&f, page.next_token, &page, &lines); /* of what it tells nothing was there then */
    assert_true(page.n == 0 && page.truncated);
    list(&f, page.next_token, &page, &lines);
    assert_string_equal(lines.p, "e e0 8\n");
    assert_false(page.truncated);
    assert_non_null(
        strstr(script_head(&f.script, 0), "GET /b?versions=&encoding-type=url&max-keys=1000&prefix=p%2F "));
    assert_non_null(strstr(script_head(&f.script, 1), "key-marker=p%2Fc%20d&"));
    assert_non_null(strstr(script_head(&f.script, 1), "version-id-marker=3"));
    assert_non_null(strstr(script_head(&f.script, 2), "version-id-marker=1"));
    fixture_stop(&f);
}

/* A key whose newest version of then is on one page is not listed again for an older one on the next. (With
 * the token's mark left out it is.) */
static void test_decided_keys_stay_decided(void **state)
{
    static const struct script_step steps[] = {
        {.answer = VERSIONS(CUT("a", "2"), VERSION("a", "2", "10", "5")), .close = true},
        {.answer = VERSIONS(WHOLE, VERSION("a", "1", "09", "4") VERSION("b", "3", "01", "1")), .close = true},
    };
    struct fixture f;
    struct origin_page page;
    struct buf _cleanup_buf_ lines = BUF_INIT(KIB);
    kept(&f, "s3://b", steps, ARRAY_SIZE(steps));
    list(&f, SLICE_NULL, &page, &lines);
    assert_string_equal(lines.p, "a e2 5\n");
    list(&f, page.next_token, &page, &lines);
    assert_string_equal(lines.p, "b e3 1\n");
    fixture_stop(&f);
}

#define BYTES(id)                                                                                            \
    "HTTP/1.1 206 Partial Content\r\nETag: \"e8\"\r\nContent-Range: bytes 0-9/100\r\nContent-Length: "       \
    "10\r\nx-amz-version-id: " id "\r\n\r\n"

/* A read asks for the versions of its key, and then for that version by its id; keys that only begin alike do
 * not count. The next read of the same key knows it. */
static void test_get_as_of(void **state)
{
    static const struct script_step steps[] = {
        {.answer = VERSIONS(WHOLE, VERSION("p/k", "9", "20", "5") VERSION("p/k", "8", "15", "100")
                                       VERSION("p/k2", "7", "10", "3")),
         .close = true},
        {.answer = BYTES("8"), .pad = 10},
        {.answer = BYTES("8"), .pad = 10},
    };
    struct fixture f;
    struct sink s;
    struct err e = {0};
    fixture_start(&f, "s3://b/p", steps, ARRAY_SIZE(steps), as_of);
    for (int i = 0; i < 2; i++) {
        if (get(&f, 0, 10, &s, &e) != 0)
            fail_msg("%s", e.text);
        assert_int_equal(s.bytes, 10);
    }
    assert_non_null(strstr(script_head(&f.script, 0), "prefix=p%2Fk "));
    assert_non_null(strstr(script_head(&f.script, 1), "GET /b/p/k?versionId=8 "));
    assert_non_null(strstr(script_head(&f.script, 2), "GET /b/p/k?versionId=8 "));
    fixture_stop(&f);
}

/* What was not there yet, or was removed then, is not there. */
static void test_get_of_nothing(void **state)
{
    static const struct script_step steps[] = {
        {.answer = VERSIONS(WHOLE, VERSION("k", "9", "20", "5") VERSION("k2", "7", "10", "3")),
         .close = true},
        {.answer = VERSIONS(WHOLE,
                            VERSION("k", "9", "20", "5") MARKER("k", "8", "12") VERSION("k", "7", "10", "5")),
         .close = true},
        {.answer = VERSIONS(WHOLE, ""), .close = true},
    };
    struct fixture f;
    struct sink s;
    struct err e = {0};
    fixture_start(&f, "s3://b", steps, ARRAY_SIZE(steps), as_of);
    for (size_t i = 0; i < ARRAY_SIZE(steps); i++)
        assert_int_equal(get(&f, 0, 10, &s, &e), -ENOENT);
    assert_int_equal(script_steps_taken(&f.script), 3);
    fixture_stop(&f);
}

/* What a listing told of is read without another question. */
static void test_listed_keys_are_known(void **state)
{
    static const struct script_step steps[] = {
        {.answer = VERSIONS(WHOLE, VERSION("p/k", "9", "20", "5") VERSION("p/k", "8", "15", "100")),
         .close = true},
        {.answer = BYTES("8"), .pad = 10},
    };
    struct fixture f;
    struct origin_page page;
    struct sink s;
    struct err e = {0};
    struct buf _cleanup_buf_ lines = BUF_INIT(KIB);
    kept(&f, "s3://b/p", steps, ARRAY_SIZE(steps));
    list(&f, SLICE_NULL, &page, &lines);
    assert_int_equal(get(&f, 0, 10, &s, &e), 0);
    assert_non_null(strstr(script_head(&f.script, 1), "GET /b/p/k?versionId=8 "));
    fixture_stop(&f);
}

/* Bytes of another version than the one that was asked for, or of one that is not told, reach nobody.
 * (Without s3_view_check they do.) */
static void test_other_versions_are_refused(void **state)
{
    static const struct script_step steps[] = {
        {.answer = VERSIONS(WHOLE, VERSION("k", "8", "15", "100")), .close = true},
        {.answer = BYTES("9"), .pad = 10, .close = true},
        {.answer = OK206("0-9/100", "10"), .pad = 10, .close = true},
    };
    struct fixture f;
    struct sink s;
    struct err e = {0};
    fixture_start(&f, "s3://b", steps, ARRAY_SIZE(steps), as_of);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(get(&f, 0, 10, &s, &e), ERR_ORIGIN_REFUSED);
        assert_int_equal(s.calls, 0);
        assert_non_null(strstr(e.text, "asked for version 8"));
    }
    fixture_stop(&f);
}

/* What was there before versions were kept has the version "null", whether the service says so or not. */
static void test_null_version(void **state)
{
    static const struct script_step steps[] = {
        {.answer = VERSIONS(WHOLE, VERSION("k", "null", "15", "100")), .close = true},
        {.answer = OK206("0-9/100", "10"), .pad = 10},
        {.answer = BYTES("null"), .pad = 10},
    };
    struct fixture f;
    struct sink s;
    struct err e = {0};
    fixture_start(&f, "s3://b", steps, ARRAY_SIZE(steps), as_of);
    assert_int_equal(get(&f, 0, 10, &s, &e), 0);
    assert_int_equal(get(&f, 0, 10, &s, &e), 0);
    assert_non_null(strstr(script_head(&f.script, 1), "versionId=null "));
    fixture_stop(&f);
}

/* Attributes tell which version they are of; a bucket without a date tells nothing of the sort. */
static void test_attributes_name_the_version(void **state)
{
    static const struct script_step steps[] = {
        {.answer = VERSIONS(WHOLE, VERSION("k", "8", "15", "100")), .close = true},
        {.answer = BYTES("8"), .pad = 10},
    };
    static const struct script_step plain[] = {{.answer = BYTES("8"), .pad = 10}};
    struct origin_get g = {.key = SLICE_LIT("k"), .n = 10};
    for (int i = 0; i < 2; i++) {
        struct fixture f;
        struct origin_attr attr;
        struct sink s = {0};
        struct err e = {0};
        fixture_start(&f, "s3://b", i == 0 ? steps : plain, i == 0 ? ARRAY_SIZE(steps) : ARRAY_SIZE(plain),
                      i == 0 ? as_of : NULL);
        assert_int_equal(origin_get(f.origin, &g, f.arena, &attr, on_bytes, &s, &e), 0);
        assert_true(slice_eq_str(meta_get(attr.meta, META_VERSION), i == 0 ? "8" : ""));
        fixture_stop(&f);
    }
}

/* `n` versions of a key, from number `first` down, a second apart; heap. */
static char *versions_of(const char *key, unsigned first, unsigned n, const char *more)
{
    struct buf _cleanup_buf_ b = BUF_INIT(MIB);
    int r = buf_printf(&b,
                       "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: application/xml\r\n\r\n"
                       "<ListVersionsResult>%s",
                       more);
    for (unsigned i = first; i > first - n && r == 0; i--)
        r = buf_printf(
            &b,
            "<Version><Key>%s</Key><VersionId>%u</VersionId><LastModified>2026-01-14T%02u:%02u:%02u"
            ".000Z</LastModified><ETag>&quot;e%u&quot;</ETag><Size>%u</Size></Version>",
            key, i, i / 3600, i / 60 % 60, i % 60, i, i);
    if (r == 0)
        r = buf_str(&b, "</ListVersionsResult>");
    assert_int_equal(r, 0);
    return slice_dup(buf_view(&b));
}

/* A key with 2,000 versions, of which one in the middle was there then: found over several pages, by a
 * listing, which has it once and none of the older ones, and by a read. */
static void test_two_thousand_versions(void **state)
{
    static const char *const date[] = {"origin.as_of", "2026-01-14T00:11:40Z", NULL}; /* version 700 */
    char *pages[] = {versions_of("k", 2000, 1000, CUT("k", "1001")),
                     versions_of("k", 1000, 1000, CUT("k", "1")), versions_of("l", 3, 3, WHOLE)};
    char *looks[] = {versions_of("k", 2000, 64, CUT("k", "1937")),
                     versions_of("k", 1936, 1000, CUT("k", "937")), versions_of("k", 936, 936, WHOLE)};
    const struct script_step steps[] = {
        {.answer = pages[0], .close = true}, {.answer = pages[1], .close = true},
        {.answer = pages[2], .close = true}, {.answer = looks[0], .close = true},
        {.answer = looks[1], .close = true}, {.answer = looks[2], .close = true},
        {.answer = BYTES("700"), .pad = 10}};
    struct fixture f;
    struct origin_page page = {.truncated = true};
    struct buf _cleanup_buf_ lines = BUF_INIT(KIB), all = BUF_INIT(KIB), token = BUF_INIT(KIB);
    fixture_start(&f, "s3://b", steps, 3, date);
    atomic_store(&s3_of(f.origin)->view.is_kept, true);
    while (page.truncated) {
        list(&f, buf_view(&token), &page, &lines);
        assert_int_equal(buf_slice(&all, buf_view(&lines)), 0);
        buf_clear(&token);
        assert_int_equal(buf_slice(&token, page.next_token), 0);
    }
    assert_string_equal(all.p, "k e700 700\nl e3 3\n");
    assert_non_null(strstr(script_head(&f.script, 1), "key-marker=k&version-id-marker=1001 "));
    fixture_stop(&f);

    struct sink s;
    struct err e = {0};
    fixture_start(&f, "s3://b", steps + 3, 4, date);
    if (get(&f, 0, 10, &s, &e) != 0)
        fail_msg("%s", e.text);
    assert_non_null(strstr(script_head(&f.script, 1), "key-marker=k&version-id-marker=1937 "));
    assert_non_null(strstr(script_head(&f.script, 3), "GET /b/k?versionId=700 "));
    fixture_stop(&f);
    for (size_t i = 0; i < 3; i++) {
        free(pages[i]);
        free(looks[i]);
    }
}

#define ONE_HEAD "HTTP/1.1 200 OK\r\nETag: \"e8\"\r\nContent-Length: 100\r\nx-amz-version-id: 8\r\n\r\n"

/* One version is the only object of its bucket; nothing is listed for it. What else there is is not asked
 * for. */
static void test_one_version(void **state)
{
    static const char *const version[] = {"origin.version", "8", NULL};
    static const struct script_step steps[] = {
        {.answer = ONE_HEAD},
        {.answer = BYTES("8"), .pad = 10},
        {.answer = "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"},
    };
    struct fixture f;
    struct origin_page page;
    struct sink s;
    struct err e = {0};
    struct origin_attr attr;
    struct buf _cleanup_buf_ lines = BUF_INIT(KIB);
    fixture_start(&f, "s3://b/dir/k", steps, ARRAY_SIZE(steps), version);
    list(&f, SLICE_NULL, &page, &lines);
    assert_string_equal(lines.p, "k e8 100\n");
    assert_memory_equal(script_head(&f.script, 0), "HEAD /b/dir/k?versionId=8 ", 26);
    assert_int_equal(get(&f, 0, 10, &s, &e), 0);
    assert_non_null(strstr(script_head(&f.script, 1), "GET /b/dir/k?versionId=8 "));
    const struct origin_list others[] = {{.prefix = SLICE_LIT("k/")}, {.after = SLICE_LIT("k")}};
    for (size_t i = 0; i < ARRAY_SIZE(others); i++) {
        assert_int_equal(origin_list(f.origin, &others[i], f.arena, &page, &e), 0);
        assert_true(page.n == 0 && !page.truncated);
    }
    struct origin_get g = {.key = SLICE_LIT("other"), .n = 10};
    assert_int_equal(origin_get(f.origin, &g, f.arena, &attr, on_bytes, &s, &e), -ENOENT);
    assert_int_equal(script_steps_taken(&f.script), 2);
    struct origin_list l = {.max = 1};
    assert_int_equal(origin_list(f.origin, &l, f.arena, &page, &e), -ENOENT);
    assert_non_null(strstr(e.text, "version 8 of k"));
    fixture_stop(&f);
}

#define TAGS(text)      XML("<Tagging><TagSet>" text "</TagSet></Tagging>")
#define TAG(key, value) "<Tag><Key>" key "</Key><Value>" value "</Value></Tag>"

/* An object has a tag when both its key and its value are those; no tags are no error, no object is one. */
static void test_tags(void **state)
{
    static const struct {
        struct script_step step;
        int result;
        bool has;
    } cases[] = {
        {{.answer = TAGS(TAG("epoch", "1") TAG("step", "100")), .close = true}, 0, true},
        {{.answer = TAGS(TAG("step", "1000") TAG("epoch", "100")), .close = true}, 0, false},
        {{.answer = TAGS("<Tag><Key>step</Key></Tag><Tag><Value>100</Value></Tag>"), .close = true},
         0,
         false},
        {{.answer = TAGS(""), .close = true}, 0, false},
        {{.answer = XML_ERROR("404 Not Found", "NoSuchTagSet", "none"), .close = true}, 0, false},
        {{.answer = XML_ERROR("404 Not Found", "NoSuchKey", "none"), .close = true}, -ENOENT, false},
        {{.answer = XML_ERROR("403 Forbidden", "AccessDenied", "no"), .close = true},
         ERR_ORIGIN_DENIED,
         false},
        {{.answer = XML("<Other/>"), .close = true}, ERR_ORIGIN_FAILED, false},
        {{.answer = XML("<Tagging><TagSet>"), .close = true}, ERR_ORIGIN_FAILED, false},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct fixture f;
        struct err e = {0};
        bool has = false;
        fixture_start(&f, "s3://b/p", &cases[i].step, 1, NULL);
        int r =
            origin_has_tag(f.origin, SLICE_LIT("a b"), SLICE_LIT("step"), SLICE_LIT("100"), NULL, &has, &e);
        assert_int_equal(r, cases[i].result);
        assert_int_equal(has, cases[i].has);
        assert_non_null(strstr(script_head(&f.script, 0), "GET /b/p/a%20b?tagging= "));
        fixture_stop(&f);
    }
}

/* The tags of a view are those of its version. */
static void test_tags_as_of(void **state)
{
    static const struct script_step steps[] = {
        {.answer = VERSIONS(WHOLE, VERSION("k", "9", "20", "5") VERSION("k", "8", "15", "100")),
         .close = true},
        {.answer = TAGS(TAG("step", "100")), .close = true},
    };
    struct fixture f;
    struct err e = {0};
    bool has = false;
    fixture_start(&f, "s3://b", steps, ARRAY_SIZE(steps), as_of);
    assert_int_equal(
        origin_has_tag(f.origin, SLICE_LIT("k"), SLICE_LIT("step"), SLICE_LIT("100"), NULL, &has, &e), 0);
    assert_true(has);
    assert_non_null(strstr(script_head(&f.script, 1), "GET /b/k?tagging=&versionId=8 "));
    fixture_stop(&f);
}

/* A bucket, or a service, that keeps no versions: no listing. Who may not ask whether it does goes on, and
 * asks once. */
static void test_buckets_without_versions(void **state)
{
    static const struct script_step never[] = {
        {.answer = XML("<VersioningConfiguration/>"), .close = true},
        {.answer = XML_ERROR("501 Not Implemented", "VersioningNotConfigured", "no"), .close = true},
    };
    static const struct script_step forbidden[] = {
        {.answer = XML_ERROR("403 Forbidden", "AccessDenied", "no"), .close = true},
        {.answer = VERSIONS(WHOLE, VERSION("a", "8", "15", "4")), .close = true},
        {.answer = VERSIONS(WHOLE, ""), .close = true},
    };
    static const struct script_step suspended[] = {
        {.answer = XML("<VersioningConfiguration><Status>Suspended</Status></VersioningConfiguration>"),
         .close = true},
        {.answer = XML("<ListBucketResult></ListBucketResult>"), .close = true},
    };
    struct fixture f;
    struct origin_page page;
    struct err e = {0};
    struct origin_list l = {.max = 100};
    struct buf _cleanup_buf_ lines = BUF_INIT(KIB);
    fixture_start(&f, "s3://b", never, ARRAY_SIZE(never), as_of);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(origin_list(f.origin, &l, f.arena, &page, &e), ERR_NOT_IMPLEMENTED);
        assert_non_null(strstr(e.text, "keeps no versions"));
    }
    fixture_stop(&f);
    fixture_start(&f, "s3://b", forbidden, ARRAY_SIZE(forbidden), as_of);
    list(&f, SLICE_NULL, &page, &lines);
    assert_string_equal(lines.p, "a e8 4\n");
    list(&f, SLICE_NULL, &page, &lines);
    assert_non_null(strstr(script_head(&f.script, 0), "GET /b?versioning= "));
    fixture_stop(&f);
    fixture_start(&f, "s3://b", suspended, ARRAY_SIZE(suspended), as_of);
    assert_int_equal(origin_list(f.origin, &l, f.arena, &page, &e), ERR_NOT_IMPLEMENTED);
    assert_non_null(strstr(e.text, "ListBucketResult"));
    fixture_stop(&f);
}

/* A node that stops asks no more pages, however many there are. */
static void test_stop_ends_a_listing(void **state)
{
    struct fixture f;
    struct origin_page page;
    struct err e = {0};
    struct origin_list l = {.max = 100};
    atomic_bool stop = true;
    fixture_start(&f, "s3://b", NULL, 0, as_of);
    f.origin->stop = &stop;
    assert_int_equal(origin_list(f.origin, &l, f.arena, &page, &e), -ECANCELED);
    assert_int_equal(script_connections(&f.script), 0);
    fixture_stop(&f);
}

/* A date of whole seconds is all of its second, one with a fraction that moment. */
static void test_seconds(void **state)
{
    static const uint64_t second = 1000000000;
    struct s3_version x = {.exact_ns = 5 * second + 300};
    assert_true(s3_version_is_of(&x, 5 * second));
    assert_true(s3_version_is_of(&x, 5 * second + 300));
    assert_false(s3_version_is_of(&x, 5 * second + 299));
    assert_false(s3_version_is_of(&x, 4 * second));
    assert_true(s3_version_is_of(&x, 6 * second));
}

/* A page has no more entries than were asked for, and the next one goes on behind the last of them, whatever
 * the service told beyond it. */
static void test_short_pages(void **state)
{
    static const struct script_step steps[] = {
        {.answer = VERSIONS(CUT("c", "1"), VERSION("a", "9", "20", "5") VERSION("a", "1", "10", "5")
                                               VERSION("b", "1", "10", "6") VERSION("c", "1", "10", "7")),
         .close = true},
        {.answer = VERSIONS(WHOLE, VERSION("b", "1", "10", "6") VERSION("c", "1", "10", "7")), .close = true},
    };
    struct fixture f;
    struct origin_page page;
    struct err e = {0};
    kept(&f, "s3://b", steps, ARRAY_SIZE(steps));
    struct origin_list l = {.max = 1};
    assert_int_equal(origin_list(f.origin, &l, f.arena, &page, &e), 0);
    assert_true(page.n == 1 && slice_eq_str(page.entries[0].key, "a") && page.truncated);
    l.token = page.next_token;
    assert_int_equal(origin_list(f.origin, &l, f.arena, &page, &e), 0);
    assert_true(page.n == 1 && slice_eq_str(page.entries[0].key, "b") && page.truncated);
    assert_non_null(strstr(script_head(&f.script, 1), "key-marker=a "));
    fixture_stop(&f);
}

/* Services that begin a page with the key of the marker, instead of behind it, tell its versions twice; it is
 * listed once. */
static void test_pages_that_begin_with_the_marker(void **state)
{
    static const struct script_step steps[] = {
        {.answer = VERSIONS(WHOLE, VERSION("a", "2", "10", "5") VERSION("b", "3", "01", "1")), .close = true},
        {.answer = VERSIONS(WHOLE, VERSION("a", "2", "10", "5") VERSION("a", "1", "09", "4")
                                       VERSION("b", "3", "01", "1")),
         .close = true},
    };
    struct fixture f;
    struct origin_page page;
    struct err e = {0};
    struct origin_list l = {.max = 1};
    kept(&f, "s3://b", steps, ARRAY_SIZE(steps));
    for (int i = 0; i < 2; i++, l.token = page.next_token) {
        assert_int_equal(origin_list(f.origin, &l, f.arena, &page, &e), 0);
        assert_true(page.n == 1 && slice_eq_str(page.entries[0].key, i == 0 ? "a" : "b"));
    }
    assert_false(page.truncated);
    fixture_stop(&f);
}

/* With a delimiter folders are told beside objects. */
static void test_folders(void **state)
{
    static const struct script_step steps[] = {
        {.answer = VERSIONS(WHOLE, VERSION("p/b", "2", "10",
                                           "5") "<CommonPrefixes><Prefix>p/a%20/</Prefix></CommonPrefixes>"),
         .close = true}};
    struct fixture f;
    struct origin_page page;
    struct err e = {0};
    struct origin_list l = {.max = 10, .delimiter = '/'};
    kept(&f, "s3://b/p", steps, ARRAY_SIZE(steps));
    assert_int_equal(origin_list(f.origin, &l, f.arena, &page, &e), 0);
    assert_true(page.n == 2 && slice_eq_str(page.entries[0].key, "a /") && page.entries[0].is_prefix);
    assert_true(slice_eq_str(page.entries[1].key, "b") && !page.entries[1].is_prefix);
    assert_non_null(strstr(script_head(&f.script, 0), "max-keys=10&prefix=p%2F&delimiter=%2F "));
    fixture_stop(&f);
}

/* A service that tells all versions of a page before all its markers, and times within one second. */
static void test_markers_apart(void **state)
{
    static const struct script_step steps[] = {
        {.answer = VERSIONS(
             WHOLE,
             VERSION("a", "1", "10", "5") VERSION("b", "2", "10", "6") VERSION("c", "3", "10", "7") MARKER(
                 "a", "9", "12") "<DeleteMarker><Key>b</Key><VersionId>8</VersionId><IsLatest>true</IsLatest>"
                                 "<LastModified>2026-01-10T00:00:00.000Z</LastModified></DeleteMarker>"
                                 "<DeleteMarker><Key>c</Key><VersionId>7</VersionId>"
                                 "<LastModified>2026-01-09T23:59:59.900Z</LastModified></DeleteMarker>"),
         .close = true},
    };
    struct fixture f;
    struct origin_page page;
    struct buf _cleanup_buf_ lines = BUF_INIT(KIB);
    kept(&f, "s3://b", steps, ARRAY_SIZE(steps));
    list(&f, SLICE_NULL, &page, &lines);
    assert_string_equal(lines.p, "c e3 7\n");
    fixture_stop(&f);
}

#define TIME "<LastModified>2026-01-10T00:00:00Z</LastModified>"

/* Answers that make no sense, that leave open what was there when, or that lead nowhere, are the origin's
 * fault and no listing. */
static void test_wrong_answers(void **state)
{
    static const struct {
        const char *answer, *words;
    } cases[] = {
        {VERSIONS("<IsTruncated>true</IsTruncated>", VERSION("a", "1", "10", "5")), "no continuation"},
        {VERSIONS("<IsTruncated>perhaps</IsTruncated>", ""), "truncated"},
        {VERSIONS(WHOLE, VERSION("a%zz", "1", "10", "5")), "broken escape"},
        {VERSIONS(CUT("a%zz", "1"), ""), "broken escape"},
        {VERSIONS(WHOLE, VERSION("a", "1", "10", "many")), "size"},
        {VERSIONS(WHOLE, VERSION("a", "1", "10", "-5")), "size"},
        {VERSIONS(WHOLE, VERSION("a", "1", "10", "99999999999999999999999")), "size"},
        {VERSIONS(WHOLE, "<Version><Key>a</Key><VersionId>1</VersionId>" TIME "</Version>"), "size"},
        {VERSIONS(WHOLE, VERSION("a", "1", "32", "5")), "time"},
        {VERSIONS(WHOLE, "<Version><Key>a</Key><VersionId>1</VersionId><Size>5</Size></Version>"), "time"},
        {VERSIONS(WHOLE, "<DeleteMarker><Key>a</Key><VersionId>1</VersionId></DeleteMarker>"), "time"},
        {VERSIONS(WHOLE, "<Version><Key>a</Key><Size>5</Size>" TIME "</Version>"), "id"},
        {VERSIONS(WHOLE, "<DeleteMarker><VersionId>1</VersionId>" TIME "</DeleteMarker>"), "key"},
        {VERSIONS(WHOLE, VERSION("a", "1", "10", "5") "<Version></Version>"), "key"},
        {VERSIONS(WHOLE, VERSION("q/a", "1", "10", "5")), "outside the prefix"},
        {VERSIONS(WHOLE, "<CommonPrefixes><Prefix>p/a/</Prefix></CommonPrefixes>"), "nobody asked for"},
        {XML("<ListVersionsResult><Version>"), "line"},
        {XML(""), "line"},
        {XML("<!DOCTYPE x [<!ENTITY a \"b\">]><ListVersionsResult/>"), "document type"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        const struct script_step step = {.answer = cases[i].answer, .close = true};
        struct fixture f;
        struct origin_page page;
        struct err e = {0};
        struct origin_list l = {.max = 2};
        kept(&f, "s3://b/p", &step, 1);
        assert_int_equal(origin_list(f.origin, &l, f.arena, &page, &e), ERR_ORIGIN_FAILED);
        if (!strstr(e.text, cases[i].words))
            fail_msg("%zu: %s", i, e.text);
        fixture_stop(&f);
    }
}

/* More entries than were asked for, a page that goes on where it began, and a token of somebody else. */
static void test_wrong_pages(void **state)
{
    static const struct script_step steps[] = {
        {.answer = VERSIONS(WHOLE, VERSION("a", "1", "10", "5") VERSION("b", "1", "10", "5")), .close = true},
        {.answer = VERSIONS(CUT("a", "1"), VERSION("a", "1", "10", "5")), .close = true},
        {.answer = VERSIONS(CUT("a", "1"), ""), .close = true},
    };
    static const char *const tokens[] = {"9:", "0", "1:", "01:", "2:0:a", "0x:a", "0999:a"};
    struct fixture f;
    struct origin_page page;
    struct err e = {0};
    struct origin_list l = {.max = 1, .delimiter = '/'};
    kept(&f, "s3://b", steps, ARRAY_SIZE(steps));
    assert_int_equal(origin_list(f.origin, &l, f.arena, &page, &e), ERR_ORIGIN_FAILED);
    l.delimiter = 0;
    assert_int_equal(origin_list(f.origin, &l, f.arena, &page, &e), 0);
    l.token = page.next_token;
    assert_int_equal(origin_list(f.origin, &l, f.arena, &page, &e), ERR_ORIGIN_FAILED);
    assert_non_null(strstr(e.text, "where it began"));
    for (size_t i = 0; i < ARRAY_SIZE(tokens); i++) {
        l.token = slice_str(tokens[i]);
        assert_int_equal(origin_list(f.origin, &l, f.arena, &page, &e), -EINVAL);
    }
    fixture_stop(&f);
}

static ssize_t no_bytes(void *arg, void *p, size_t n, uint64_t offset)
{
    (void)arg, (void)p, (void)n, (void)offset;
    return 0;
}

/* Nothing is written through a view, and nothing is sent for it. */
static void test_read_only(void **state)
{
    struct fixture f;
    struct err e = {0};
    struct origin_attr attr;
    struct origin_put p = {.key = SLICE_LIT("k"), .if_match = SLICE_LIT("x")};
    struct origin_body b = {.read = no_bytes};
    char id[ORIGIN_UPLOAD_ID_MAX];
    bool sums;
    fixture_start(&f, "s3://b", NULL, 0, as_of);
    assert_int_equal(origin_put(f.origin, &p, &b, f.arena, &attr, &e), -EROFS);
    assert_int_equal(origin_remove(f.origin, p.key, SLICE_NULL, &e), -EROFS);
    assert_int_equal(origin_copy(f.origin, p.key, SLICE_LIT("n"), SLICE_NULL, f.arena, &attr, &e), -EROFS);
    assert_int_equal(origin_set_meta(f.origin, &p, 1, f.arena, &attr, &e), -EROFS);
    assert_int_equal(origin_upload_create(f.origin, &p, id, &sums, &e), -EROFS);
    char etag[ORIGIN_ETAG_MAX + 1];
    struct origin_part part = {1, SLICE_LIT("x"), SLICE_NULL};
    assert_int_equal(origin_upload_part(f.origin, &p, SLICE_LIT("u"), 1, &b, etag, &e), -EROFS);
    assert_int_equal(origin_upload_complete(f.origin, &p, SLICE_LIT("u"), &part, 1, 1, f.arena, &attr, &e),
                     -EROFS);
    assert_int_equal(script_connections(&f.script), 0);
    fixture_stop(&f);
}

/* What cannot be is told by the option's name; kinds without versions say so. */
static void test_options(void **state)
{
    static const struct {
        const char *url, *as_of, *version, *words;
    } cases[] = {{"s3://b", "soon", NULL, "origin.as_of soon"},
                 {"s3://b", "2026-02-30", NULL, "origin.as_of 2026-02-30"},
                 {"s3://b", "2026-01-15", "8", "one of them"},
                 {"s3://b", NULL, "8", "one object"},
                 {"file:///tmp", "2026-01-15", NULL, "origin.as_of: an origin of file:// keeps no versions"},
                 {"forebay://h:1/b", "2026-01-15", NULL, "forebay:// keeps no versions"},
                 {"forebay://h:1/b/k", NULL, "8", "origin.version: an origin of forebay://"},
                 {"az://b", "2026-01-15", NULL, "when a blob was removed"},
                 {"gs://b/k", NULL, "x8", "origin.version x8"},
                 {"http://h/", "2026-01-15", NULL, "http:// keeps no versions"}};
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct origin_options o;
        struct origin *x = NULL;
        struct err e = {0};
        assert_int_equal(option_init(&origin_option_table, &o, &e), 0);
        if (cases[i].as_of)
            set_option(&o, "origin.as_of", cases[i].as_of);
        if (cases[i].version)
            set_option(&o, "origin.version", cases[i].version);
        assert_int_equal(origin_open(cases[i].url, &o, "b", &x, &e), ERR_BAD_OPTION);
        if (!strstr(e.text, cases[i].words))
            fail_msg("%zu: %s", i, e.text);
        option_fini(&origin_option_table, &o);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_list_as_of),
        cmocka_unit_test(test_decided_keys_stay_decided),
        cmocka_unit_test(test_get_as_of),
        cmocka_unit_test(test_get_of_nothing),
        cmocka_unit_test(test_listed_keys_are_known),
        cmocka_unit_test(test_other_versions_are_refused),
        cmocka_unit_test(test_null_version),
        cmocka_unit_test(test_attributes_name_the_version),
        cmocka_unit_test(test_two_thousand_versions),
        cmocka_unit_test(test_one_version),
        cmocka_unit_test(test_tags),
        cmocka_unit_test(test_tags_as_of),
        cmocka_unit_test(test_buckets_without_versions),
        cmocka_unit_test(test_stop_ends_a_listing),
        cmocka_unit_test(test_seconds),
        cmocka_unit_test(test_short_pages),
        cmocka_unit_test(test_pages_that_begin_with_the_marker),
        cmocka_unit_test(test_folders),
        cmocka_unit_test(test_markers_apart),
        cmocka_unit_test(test_wrong_answers),
        cmocka_unit_test(test_wrong_pages),
        cmocka_unit_test(test_read_only),
        cmocka_unit_test(test_options),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

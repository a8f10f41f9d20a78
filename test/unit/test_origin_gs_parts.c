/* layer: origin */
/* threaded */
/*
 * Uploads in parts to Cloud Storage against a server that answers whatever the test scripts: what is asked,
 * in which order, and what comes of refusals and lost answers. The same against a server that is not ours,
 * which knows no conditions of compose: test/system/test_s3_uploads_gs.py.
 */
#include "origin/gs_internal.h"

#include "web_fixture.h"

static const char *const plain[] = {"origin.endpoint", "http://127.0.0.1:%p", "origin.storage_class",
                                    "NEARLINE", NULL};

#define ID    "000102030405060708090a0b0c0d0e0f"
#define PART  "0011223344556677"
#define BELOW "p/.forebay-parts/" ID "/"
#define OK    "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n"
#define CLOSED(status)                                                                                       \
    {                                                                                                        \
        .answer = "HTTP/1.1 " status "\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n",      \
        .close = true                                                                                        \
    }
#define OBJECT(generation, size, mark)                                                                       \
    {                                                                                                        \
        .answer = OK "{\"name\":\"p/k\",\"generation\":\"" generation "\",\"size\":\"" size                  \
                     "\",\"contentType\":\"a/b\",\"metadata\":{\"m\":\"1\"" mark "}}",                       \
        .close = true                                                                                        \
    }
#define OURS ",\"forebay-upload\":\"" ID "\""
#define NOTHING                                                                                              \
    {                                                                                                        \
        .answer = OK "{}", .close = true                                                                     \
    }
#define ITEM(name, generation) "{\"name\":\"" name "\",\"generation\":\"" generation "\"}"
#define ITEMS(items)                                                                                         \
    {                                                                                                        \
        .answer = OK "{\"items\":[" items "]}", .close = true                                                \
    }

static const struct origin_put put = {
    .key = SLICE_LIT("k"), .content_type = SLICE_LIT("a/b"), .meta = SLICE_LIT("x-amz-meta-m: 1\n")};

static void expect_line(struct web_fixture *f, size_t i, const char *line)
{
    if (strncmp(script_head(&f->script, i), line, strlen(line)) != 0)
        fail_msg("request %zu: \"%s\", not \"%s\"", i, script_head(&f->script, i), line);
}

static void expect_body(struct web_fixture *f, const char *text)
{
    if (!strstr(f->script.body, text))
        fail_msg("\"%s\" is not in \"%s\"", text, f->script.body);
}

/* Of two parts with bytes and one without, 30 bytes in all. */
static int complete(struct web_fixture *f, const struct origin_put *p, struct origin_attr *ret, struct err *e)
{
    const struct origin_part parts[] = {
        {.number = 1, .etag = SLICE_LIT("11-" PART)},
        {.number = 2, .etag = SLICE_LIT("empty")},
        {.number = 9, .etag = SLICE_LIT("99-" PART)},
    };
    *e = (struct err){0};
    return origin_upload_complete(f->origin, p, SLICE_LIT(ID), parts, ARRAY_SIZE(parts), 30, f->arena, ret,
                                  e);
}

/* ---- parts ---- */

/* A part is an object of its own in the class of the target, whose name no two tries have in common; one
 * without bytes is none. Its ETag tells which generation is meant. An upload of another kind of origin is not
 * known. */
static void test_a_part_is_an_object(void **state)
{
    static const struct script_step steps[] = {OBJECT("42", "5", ""), OBJECT("43", "5", ""),
                                               OBJECT("44", "4", "")};
    const struct origin_put bad = {.key = SLICE_LIT("k"), .meta = SLICE_LIT("x-amz-meta-a: \xff\xfe\n")};
    const struct origin_body b = {.size_bytes = 5, .read = web_fixture_bytes}, none = {.size_bytes = 0};
    struct origin_body no_bytes = none;
    char id[ORIGIN_UPLOAD_ID_MAX], etags[2][ORIGIN_ETAG_MAX + 1], name[128];
    struct web_fixture f;
    struct err e = {0};
    bool sums = true;
    no_bytes.read = web_fixture_bytes;
    web_fixture_start(&f, "gs://bucket/p", steps, ARRAY_SIZE(steps), plain);
    assert_true(origin_has_uploads(f.origin) && origin_begins_uploads(f.origin));
    assert_int_equal(origin_upload_create(f.origin, &bad, id, &sums, &e), -EINVAL);
    WEB_FIXTURE_OK(origin_upload_create(f.origin, &put, id, &sums, &e), e);
    assert_false(sums);
    for (size_t i = 0; i < 2; i++) {
        WEB_FIXTURE_OK(origin_upload_part(f.origin, &put, slice_str(id), 7, &b, etags[i], &e), e);
        expect_line(&f, i, "POST /upload/storage/v1/b/bucket/o?uploadType=multipart HTTP/1.1\r\n");
        assert_int_equal(strncmp(etags[i], i ? "43-" : "42-", 3), 0);
        assert_int_equal(strlen(etags[i]), 3 + 16);
        (void)snprintf(name, sizeof(name), "{\"name\":\"p/.forebay-parts/%s/00007-%s\",", id, etags[i] + 3);
        expect_body(&f, name);
        expect_body(&f, "\"storageClass\":\"NEARLINE\"");
        expect_body(&f, "xxxxx");
    }
    assert_string_not_equal(etags[0] + 3, etags[1] + 3);
    assert_int_equal(origin_upload_part(f.origin, &put, slice_str(id), 7, &b, etags[0], &e),
                     ERR_ORIGIN_SHORT);
    WEB_FIXTURE_OK(origin_upload_part(f.origin, &put, slice_str(id), 8, &no_bytes, etags[0], &e), e);
    assert_string_equal(etags[0], "empty");
    assert_int_equal(origin_upload_part(f.origin, &put, SLICE_LIT("of-s3"), 1, &b, etags[0], &e), -ENOENT);
    assert_int_equal(origin_upload_abort(f.origin, SLICE_LIT("k"), SLICE_LIT("of-s3"), &e), 0);
    assert_int_equal(script_steps_taken(&f.script), 3);
    web_fixture_stop(&f);
}

/* ---- the end ---- */

/* One request makes the object of the generations that were told, with type, class and metadata as a put
 * gives them and the mark of its upload, and the sources go with it; what else there is of the upload is
 * removed by generation, and is noted until then. */
static void test_compose(void **state)
{
    static const struct script_step steps[] = {OBJECT("50", "30", OURS),
                                               ITEMS(ITEM(BELOW "00001-0000000000000000", "12")),
                                               {.answer = "HTTP/1.1 204 No Content\r\n\r\n"},
                                               NOTHING};
    struct web_fixture f;
    struct origin_attr attr;
    struct err e;
    web_fixture_start(&f, "gs://bucket/p", steps, ARRAY_SIZE(steps), plain);
    WEB_FIXTURE_OK(complete(&f, &put, &attr, &e), e);
    assert_true(slice_eq_str(attr.etag, "50") && attr.size_bytes == 30);
    assert_true(slice_eq_str(attr.meta, "x-amz-meta-m: 1\n")); /* the mark is nobody's business */
    expect_line(&f, 0, "POST /storage/v1/b/bucket/o/p%2Fk/compose HTTP/1.1\r\n");
    expect_body(&f,
                "{\"sourceObjects\":[{\"name\":\"" BELOW "00001-" PART
                "\",\"generation\":\"11\"},{\"name\":\"" BELOW "00009-" PART "\",\"generation\":\"99\"}],");
    expect_body(&f, "\"destination\":{\"name\":\"p/k\",\"contentType\":\"a/b\",\"storageClass\":\"NEARLINE\","
                    "\"metadata\":{\"m\":\"1\",\"forebay-upload\":\"" ID "\"}}");
    expect_body(&f, "\"deleteSourceObjects\":true");
    expect_line(&f, 1, "GET /storage/v1/b/bucket/o?maxResults=1000&");
    assert_non_null(
        strstr(script_head(&f.script, 1), "&versions=true&prefix=p%2F.forebay-parts%2F" ID "%2F "));
    expect_line(&f, 2,
                "DELETE /storage/v1/b/bucket/o/p%2F.forebay-parts%2F" ID
                "%2F00001-0000000000000000?generation=12 ");
    assert_int_equal(script_steps_taken(&f.script), 4);
    web_fixture_stop(&f);
}

/* Of more sources than one request takes some are composed before, and no part goes until the object is
 * there. A rest of one is taken as it is. */
static void test_more_sources_than_one_request_takes(void **state)
{
    static const struct script_step steps[] = {OBJECT("1000", "32", ""), OBJECT("50", "33", OURS), NOTHING};
    static char etags[33][32];
    struct origin_part parts[33];
    struct web_fixture f;
    struct origin_attr attr;
    struct err e = {0};
    for (uint32_t i = 0; i < 33; i++) {
        (void)snprintf(etags[i], sizeof(etags[i]), "%u-" PART, 100 + i);
        parts[i] = (struct origin_part){.number = i + 1, .etag = slice_str(etags[i])};
    }
    web_fixture_start(&f, "gs://bucket/p", steps, ARRAY_SIZE(steps), plain);
    WEB_FIXTURE_OK(origin_upload_complete(f.origin, &put, SLICE_LIT(ID), parts, 33, 33, f.arena, &attr, &e),
                   e);
    expect_line(&f, 0, "POST /storage/v1/b/bucket/o/p%2F.forebay-parts%2F" ID "%2Fc-");
    expect_line(&f, 1, "POST /storage/v1/b/bucket/o/p%2Fk/compose HTTP/1.1\r\n");
    expect_body(&f, "{\"sourceObjects\":[{\"name\":\"" BELOW "c-");
    expect_body(&f, "\",\"generation\":\"1000\"},{\"name\":\"" BELOW "00033-" PART
                    "\",\"generation\":\"132\"}],");
    web_fixture_stop(&f);
    /* What is composed on the way: in order, in the class of the target, and nothing goes. */
    static const struct script_step refused[] = {CLOSED("403 No")};
    web_fixture_start(&f, "gs://bucket/p", refused, ARRAY_SIZE(refused), plain);
    assert_int_equal(origin_upload_complete(f.origin, &put, SLICE_LIT(ID), parts, 33, 33, f.arena, &attr, &e),
                     ERR_ORIGIN_DENIED);
    expect_body(&f,
                "{\"sourceObjects\":[{\"name\":\"" BELOW "00001-" PART
                "\",\"generation\":\"100\"},{\"name\":\"" BELOW "00002-" PART "\",\"generation\":\"101\"},");
    expect_body(&f, "\"storageClass\":\"NEARLINE\"");
    assert_null(strstr(f.script.body, "deleteSourceObjects"));
    web_fixture_stop(&f);
}

/* Who may not remove, as before a retention policy, gets the object all the same; that parts stay fails
 * nobody. */
static void test_sources_that_may_not_go(void **state)
{
    static const struct script_step steps[] = {CLOSED("403 Retention"), OBJECT("50", "30", OURS),
                                               ITEMS(ITEM(BELOW "00001-" PART, "11")),
                                               CLOSED("403 Retention")};
    struct web_fixture f;
    struct origin_attr attr;
    struct err e;
    web_fixture_start(&f, "gs://bucket/p", steps, ARRAY_SIZE(steps), plain);
    WEB_FIXTURE_OK(complete(&f, &put, &attr, &e), e);
    assert_null(strstr(f.script.body, "deleteSourceObjects"));
    assert_int_equal(script_steps_taken(&f.script), 4);
    web_fixture_stop(&f);
}

static const struct end {
    const char *what;
    struct script_step steps[4];
    const char *if_match;
    bool if_none_match;
    int code;
    size_t n_steps, composed; /* composed: number of the request, when it is to have `query` */
    const char *query;
    const char *etag;
} ends[] = {
    {"nothing there",
     {CLOSED("404 No"), OBJECT("50", "30", OURS), NOTHING},
     "",
     true,
     0,
     3,
     1,
     "?ifGenerationMatch=0 ",
     "50"},
    {"something there", {OBJECT("7", "30", "")}, "", true, ERR_PRECONDITION, 1, 0, NULL, NULL},
    {"of this upload", {OBJECT("50", "30", OURS), NOTHING}, "", true, 0, 2, 0, NULL, "50"},
    {"of this upload, another size",
     {OBJECT("50", "31", OURS)},
     "",
     true,
     ERR_PRECONDITION,
     1,
     0,
     NULL,
     NULL},
    {"somebody was faster",
     {CLOSED("404 No"), CLOSED("412 No"), OBJECT("7", "30", "")},
     "",
     true,
     ERR_PRECONDITION,
     3,
     1,
     "?ifGenerationMatch=0 ",
     NULL},
    {"it was this upload",
     {CLOSED("404 No"), CLOSED("412 No"), OBJECT("50", "30", OURS), NOTHING},
     "",
     true,
     0,
     4,
     1,
     "?ifGenerationMatch=0 ",
     "50"},
    {"a version",
     {OBJECT("7", "1", ""), OBJECT("50", "30", OURS), NOTHING},
     "7",
     false,
     0,
     3,
     1,
     "?ifGenerationMatch=7 ",
     "50"},
    {"another version", {OBJECT("8", "1", "")}, "7", false, ERR_PRECONDITION, 1, 0, NULL, NULL},
    {"no version", {CLOSED("404 No")}, "7", false, ERR_PRECONDITION, 1, 0, NULL, NULL},
    {"no generation", {OBJECT("8", "1", "")}, "0x1", false, ERR_PRECONDITION, 1, 0, NULL, NULL},
    {"whatever is there",
     {OBJECT("8", "1", ""), OBJECT("50", "30", OURS), NOTHING},
     "*",
     false,
     0,
     3,
     1,
     "?ifGenerationMatch=8 ",
     "50"},
    {"nothing is there", {CLOSED("404 No")}, "*", false, ERR_PRECONDITION, 1, 0, NULL, NULL},
    {"lost answer", {CLOSED("500 Oh"), OBJECT("50", "30", OURS), NOTHING}, "", false, 0, 3, 0, NULL, "50"},
    {"lost answer, and somebody else's by now",
     {CLOSED("404 No"), CLOSED("500 Oh"), CLOSED("404 No"), OBJECT("7", "30", "")},
     "",
     true,
     ERR_ORIGIN_FAILED,
     4,
     0,
     NULL,
     NULL},
    {"gone, and there",
     {CLOSED("404 No"), OBJECT("50", "30", OURS), NOTHING},
     "",
     false,
     0,
     3,
     0,
     NULL,
     "50"},
    {"gone", {CLOSED("404 No"), OBJECT("7", "30", "")}, "", false, -ENOENT, 2, 0, NULL, NULL},
    {"gone, nobody knows",
     {CLOSED("404 No"), CLOSED("403 No")},
     "",
     false,
     ERR_ORIGIN_DENIED,
     2,
     0,
     NULL,
     NULL},
    {"shorter than the parts",
     {OBJECT("50", "29", OURS), OBJECT("50", "29", OURS), OBJECT("51", "30", OURS), NOTHING},
     "",
     false,
     0,
     4,
     0,
     NULL,
     "51"},
};

/* Conditions are looked at before anything is composed, and go with the request that makes the object as a
 * generation, the only condition that it knows. What this upload has made by itself fails none of them, is
 * told as its own after a lost answer, and when its parts are gone; what anybody else wrote is not. (Fails
 * where `look` does not compare the mark, and where `judge` is left out. Seen to say that nothing was done,
 * 412, where a try before may have made the object.) */
static void test_conditions_and_lost_answers(void **state)
{
    for (size_t i = 0; i < ARRAY_SIZE(ends); i++) {
        struct origin_put p = put;
        struct web_fixture f;
        struct origin_attr attr;
        struct err e;
        p.if_match = slice_str(ends[i].if_match);
        p.if_none_match = ends[i].if_none_match;
        web_fixture_start(&f, "gs://bucket/p", ends[i].steps, ends[i].n_steps, plain);
        int r = complete(&f, &p, &attr, &e);
        if (r != ends[i].code || script_steps_taken(&f.script) != ends[i].n_steps)
            fail_msg("%s: %s after %zu requests: %s", ends[i].what, err_name(r),
                     script_steps_taken(&f.script), e.text);
        if (ends[i].etag)
            assert_true(slice_eq_str(attr.etag, ends[i].etag));
        if (ends[i].query && !strstr(script_head(&f.script, ends[i].composed), ends[i].query))
            fail_msg("%s: %s", ends[i].what, script_head(&f.script, ends[i].composed));
        web_fixture_stop(&f);
    }
}

/* If-Match "*" holds for what was written meanwhile, too. */
static void test_any_version_is_followed(void **state)
{
    static const struct script_step steps[] = {OBJECT("8", "1", ""),     CLOSED("412 No"),
                                               OBJECT("9", "1", ""),     OBJECT("9", "1", ""),
                                               OBJECT("50", "30", OURS), NOTHING};
    struct origin_put p = put;
    struct web_fixture f;
    struct origin_attr attr;
    struct err e;
    p.if_match = SLICE_LIT("*");
    web_fixture_start(&f, "gs://bucket/p", steps, ARRAY_SIZE(steps), plain);
    WEB_FIXTURE_OK(complete(&f, &p, &attr, &e), e);
    assert_non_null(strstr(script_head(&f.script, 4), "?ifGenerationMatch=9 "));
    web_fixture_stop(&f);
}

/* Busy says that nothing was done: not when a try before may have made the object. */
static void test_busy_after_a_lost_answer(void **state)
{
    static const struct script_step steps[] = {CLOSED("500 Oh"),   CLOSED("404 No"),   CLOSED("503 Slow"),
                                               CLOSED("404 No"),   CLOSED("503 Slow"), CLOSED("404 No"),
                                               CLOSED("503 Slow"), CLOSED("404 No")};
    struct web_fixture f;
    struct origin_attr attr;
    struct err e;
    web_fixture_start(&f, "gs://bucket/p", steps, ARRAY_SIZE(steps), plain);
    assert_int_equal(complete(&f, &put, &attr, &e), ERR_ORIGIN_FAILED);
    assert_non_null(strstr(e.text, "was lost, and now: 503"));
    web_fixture_stop(&f);
}

/* Of no bytes there is nothing to compose: the object is written, with its condition. */
static void test_an_end_without_bytes(void **state)
{
    static const struct script_step steps[] = {CLOSED("404 No"), OBJECT("50", "0", OURS), NOTHING};
    const struct origin_part part = {.number = 1, .etag = SLICE_LIT("empty")};
    struct origin_put p = put;
    struct web_fixture f;
    struct origin_attr attr;
    struct err e = {0};
    p.if_none_match = true;
    web_fixture_start(&f, "gs://bucket/p", steps, ARRAY_SIZE(steps), plain);
    WEB_FIXTURE_OK(origin_upload_complete(f.origin, &p, SLICE_LIT(ID), &part, 1, 0, f.arena, &attr, &e), e);
    expect_line(&f, 1, "POST /upload/storage/v1/b/bucket/o?uploadType=multipart&ifGenerationMatch=0 ");
    expect_body(&f, "\"forebay-upload\":\"" ID "\"");
    web_fixture_stop(&f);
}

/* ETags that are none of this service's, as after the bucket got another origin, end an upload. */
static void test_parts_of_another_service(void **state)
{
    static const char *const etags[] = {"9e107d9d372bb6826bd81d3542a419d6", "11-", "-" PART, "x-" PART,
                                        "11-" PART "0"};
    for (size_t i = 0; i < ARRAY_SIZE(etags); i++) {
        const struct origin_part part = {.number = 1, .etag = slice_str(etags[i])};
        struct web_fixture f;
        struct origin_attr attr;
        struct err e = {0};
        web_fixture_start(&f, "gs://bucket/p", NULL, 0, plain);
        assert_int_equal(
            origin_upload_complete(f.origin, &put, SLICE_LIT(ID), &part, 1, 5, f.arena, &attr, &e), -ENOENT);
        web_fixture_stop(&f);
    }
}

/* ---- abort ---- */

/* An abort removes what there is, in every version, by pages; what is gone already is no failure, and
 * anything else is told. Nothing is removed that is not the upload's, whatever the answer says. */
static void test_abort(void **state)
{
    static const struct script_step steps[] = {
        {.answer = OK "{\"items\":[],\"nextPageToken\":\"next\"}", .close = true},
        ITEMS(ITEM(BELOW "00001-" PART, "11")),
        CLOSED("404 No"),
        ITEMS(ITEM(BELOW "00001-" PART, "12")),
        {.answer = "HTTP/1.1 204 No Content\r\n\r\n"},
        NOTHING};
    struct web_fixture f;
    struct err e = {0};
    web_fixture_start(&f, "gs://bucket/p", steps, ARRAY_SIZE(steps), plain);
    WEB_FIXTURE_OK(origin_upload_abort(f.origin, SLICE_LIT("k"), SLICE_LIT(ID), &e), e);
    assert_int_equal(script_steps_taken(&f.script), 6);
    assert_non_null(strstr(script_head(&f.script, 1), "&pageToken=next "));
    assert_null(strstr(script_head(&f.script, 3), "pageToken"));
    web_fixture_stop(&f);
    static const struct script_step refused[] = {ITEMS(ITEM(BELOW "00001-" PART, "11")), CLOSED("403 No")};
    web_fixture_start(&f, "gs://bucket/p", refused, ARRAY_SIZE(refused), plain);
    assert_int_equal(origin_upload_abort(f.origin, SLICE_LIT("k"), SLICE_LIT(ID), &e), ERR_ORIGIN_DENIED);
    web_fixture_stop(&f);
    static const char *const names[] = {"p/other", "q/.forebay-parts/x/1", ""};
    for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
        char answer[512];
        (void)snprintf(answer, sizeof(answer), OK "{\"items\":[{\"name\":\"%s\",\"generation\":\"1\"}]}",
                       names[i]);
        const struct script_step step = {.answer = answer, .close = true};
        web_fixture_start(&f, "gs://bucket/p", &step, 1, plain);
        assert_int_equal(origin_upload_abort(f.origin, SLICE_LIT("k"), SLICE_LIT(ID), &e), ERR_ORIGIN_FAILED);
        assert_int_equal(script_connections(&f.script), 1);
        web_fixture_stop(&f);
    }
}

#define TEN(generation)                                                                                                                                  \
    "{\"items\":[" ITEM(BELOW "0", generation) "," ITEM(BELOW "1", generation) "," ITEM(BELOW "2", generation) "," ITEM(BELOW "3", generation) "," ITEM( \
        BELOW "4",                                                                                                                                       \
        generation) "," ITEM(BELOW "5",                                                                                                                  \
                             generation) "," ITEM(BELOW "6",                                                                                             \
                                                  generation) "," ITEM(BELOW "7",                                                                        \
                                                                       generation) "," ITEM(BELOW "8",                                                   \
                                                                                            generation) "," ITEM(BELOW                                   \
                                                                                                                 "9",                                    \
                                                                                                                 generation) "]}"

/* Many are removed in one request. Where the next listing still has the first of them, or the service takes
 * no such request, they go one by one, so that whatever keeps them is told; nothing else goes that way
 * either. */
static void test_many_are_removed_together(void **state)
{
    static const struct script_step ten = {.answer = OK TEN("7"), .close = true};
    const struct script_step steps[] = {ten, {.answer = OK "--x--", .close = true}, NOTHING};
    struct web_fixture f;
    struct err e = {0};
    web_fixture_start(&f, "gs://bucket/p", steps, ARRAY_SIZE(steps), plain);
    WEB_FIXTURE_OK(origin_upload_abort(f.origin, SLICE_LIT("k"), SLICE_LIT(ID), &e), e);
    expect_line(&f, 1, "POST /batch/storage/v1 HTTP/1.1\r\n");
    assert_non_null(strstr(script_head(&f.script, 1), "multipart/mixed; boundary="));
    expect_body(&f, "\r\nContent-Type: application/http\r\nContent-ID: <9>\r\n\r\n"
                    "DELETE /storage/v1/b/bucket/o/p%2F.forebay-parts%2F" ID
                    "%2F9?generation=7 HTTP/1.1\r\n\r\n");
    web_fixture_stop(&f);
    const struct script_step stay[] = {ten,
                                       {.answer = OK "--x--", .close = true},
                                       ten,
                                       CLOSED("403 Kept"),
                                       CLOSED("403 Kept"),
                                       CLOSED("403 Kept"),
                                       CLOSED("403 Kept")};
    web_fixture_start(&f, "gs://bucket/p", stay, ARRAY_SIZE(stay), plain);
    assert_int_equal(origin_upload_abort(f.origin, SLICE_LIT("k"), SLICE_LIT(ID), &e), ERR_ORIGIN_DENIED);
    assert_non_null(strstr(e.text, "403 Kept"));
    web_fixture_stop(&f);
    struct script_step unknown[13];
    unknown[0] = ten;
    unknown[1] = (struct script_step)CLOSED("404 No");
    for (size_t i = 2; i < 12; i++)
        unknown[i] = (struct script_step)CLOSED("204 Gone");
    unknown[12] = (struct script_step)NOTHING;
    web_fixture_start(&f, "gs://bucket/p", unknown, ARRAY_SIZE(unknown), plain);
    WEB_FIXTURE_OK(origin_upload_abort(f.origin, SLICE_LIT("k"), SLICE_LIT(ID), &e), e);
    assert_int_equal(script_steps_taken(&f.script), 13);
    web_fixture_stop(&f);
}

/* ---- the folder ---- */

static const char reserved[] = "the name .forebay-parts is reserved for the parts of uploads";

/* Keys with the reserved name are refused in one line, however they are used and wherever it is in them, and
 * no origin lies there; names that only look alike are keys as others. (Fails without gs_is_reserved in
 * gs_check_key.) */
static void test_reserved_keys(void **state)
{
    static const char *const keys[] = {".forebay-parts/" ID "/00001-" PART, ".forebay-parts",
                                       "a/.forebay-parts/b"};
    static const struct script_step steps[] = {OBJECT("5", "10", "")};
    const struct origin_body b = {.size_bytes = 10, .read = web_fixture_bytes};
    struct web_fixture f;
    struct origin_attr attr;
    struct web_sink s = {0};
    char id[ORIGIN_UPLOAD_ID_MAX];
    bool sums;
    web_fixture_start(&f, "gs://bucket/p", steps, ARRAY_SIZE(steps), plain);
    for (size_t i = 0; i < ARRAY_SIZE(keys); i++) {
        struct origin_put p = {.key = slice_str(keys[i]), .if_match = SLICE_LIT("1")};
        struct origin_get g = {.key = p.key, .whole = true};
        struct slice none = SLICE_NULL, k = SLICE_LIT("k");
        struct err e[8] = {0};
        size_t n = 0;
        assert_int_equal(origin_put(f.origin, &p, &b, f.arena, &attr, &e[n++]), -EINVAL);
        assert_int_equal(origin_get(f.origin, &g, f.arena, &attr, web_sink_take, &s, &e[n++]), -EINVAL);
        assert_int_equal(origin_remove(f.origin, p.key, none, &e[n++]), -EINVAL);
        assert_int_equal(origin_copy(f.origin, k, p.key, none, f.arena, &attr, &e[n++]), -EINVAL);
        assert_int_equal(origin_copy(f.origin, p.key, k, none, f.arena, &attr, &e[n++]), -EINVAL);
        assert_int_equal(origin_set_meta(f.origin, &p, 1, f.arena, &attr, &e[n++]), -EINVAL);
        assert_int_equal(origin_takes(f.origin, &p, 1, &e[n++]), -EINVAL);
        assert_int_equal(origin_upload_create(f.origin, &p, id, &sums, &e[n++]), -EINVAL);
        assert_int_equal(n, ARRAY_SIZE(e));
        for (size_t j = 0; j < n; j++)
            if (!strstr(e[j].text, reserved))
                fail_msg("%zu: %s", j, e[j].text);
    }
    assert_int_equal(script_connections(&f.script), 0);
    struct err e = {0};
    const struct origin_put alike = {.key = SLICE_LIT("a/.forebay-parts-b/.forebay-part")};
    WEB_FIXTURE_OK(origin_put(f.origin, &alike, &b, f.arena, &attr, &e), e);
    web_fixture_stop(&f);
    struct origin_options o;
    struct origin *opened = NULL;
    assert_int_equal(option_init(&origin_option_table, &o, &e), 0);
    assert_int_equal(origin_open("gs://bucket/a/.forebay-parts/b", &o, "n", &opened, &e), ERR_BAD_OPTION);
    option_fini(&origin_option_table, &o);
}

/* Listings have neither parts nor their folder, at any depth; pages are cut and gone on from as if they had:
 * nothing behind them is lost. (Fails without hide_parts, and where it comes before `cut`: "b" is lost.) */
static void test_listings_without_parts(void **state)
{
    static const struct script_step steps[] = {
        {.answer = OK "{\"items\":[" ITEM(BELOW "00001-" PART, "1") "," ITEM(
             "p/a/.forebay-parts/x/00001-" PART,
             "1") "],"
                  "\"prefixes\":[\"p/.forebay-parts/\",\"p/z/\"],\"nextPageToken\":\"p/b\"}",
         .close = true},
        ITEMS(ITEM("p/b", "1")),
    };
    struct web_fixture f;
    struct origin_page page;
    struct err e = {0};
    web_fixture_start(&f, "gs://bucket/p", steps, ARRAY_SIZE(steps), plain);
    struct origin_list l = {.max = 2, .delimiter = '/'};
    WEB_FIXTURE_OK(origin_list(f.origin, &l, f.arena, &page, &e), e);
    assert_true(page.n == 0 && page.truncated);
    l.token = page.next_token;
    WEB_FIXTURE_OK(origin_list(f.origin, &l, f.arena, &page, &e), e);
    assert_non_null(strstr(script_head(&f.script, 1), "&startOffset=p%2F"));
    assert_true(page.n == 1 && slice_eq_str(page.entries[0].key, "b"));
    web_fixture_stop(&f);
}

/* With origin.parts=false no upload is begun; those that were are ended and aborted still, and the folder
 * stays hidden. */
static void test_without_parts(void **state)
{
    static const char *const without[] = {"origin.endpoint", "http://127.0.0.1:%p", "origin.parts", "false",
                                          NULL};
    static const struct script_step steps[] = {NOTHING, ITEMS(ITEM(".forebay-parts/x/1", "1"))};
    struct web_fixture f;
    struct origin_page page;
    struct err e = {0};
    web_fixture_start(&f, "gs://bucket", steps, ARRAY_SIZE(steps), without);
    assert_true(origin_has_uploads(f.origin) && !origin_begins_uploads(f.origin));
    WEB_FIXTURE_OK(origin_upload_abort(f.origin, SLICE_LIT("k"), SLICE_LIT(ID), &e), e);
    struct origin_list l = {.max = 2};
    WEB_FIXTURE_OK(origin_list(f.origin, &l, f.arena, &page, &e), e);
    assert_int_equal(page.n, 0);
    web_fixture_stop(&f);
}

/* ---- what is noted ---- */

static struct {
    unsigned begun, ended;
    bool is_gone;
} noted;

static void on_begun(const struct origin *o, struct slice key, struct slice id)
{
    (void)o;
    assert_true(slice_eq_str(key, "k") && slice_eq_str(id, ID));
    noted.begun++;
}

static void on_ended(const struct origin *o, struct slice id, bool is_gone)
{
    (void)o, (void)id;
    noted.ended++;
    noted.is_gone = is_gone;
}

/* From the moment the object is there until its parts are gone the upload is noted, so that they are removed
 * later when they could not be; one that did not end is not: its parts are its client's. */
static void test_what_is_noted(void **state)
{
    static const struct {
        struct script_step steps[2];
        bool is_noted, is_gone;
    } cases[] = {
        {{OBJECT("50", "30", OURS), NOTHING}, true, true},
        {{OBJECT("50", "30", OURS), CLOSED("403 No")}, true, false},
        {{CLOSED("404 No"), CLOSED("404 No")}, false, false},
    };
    static const struct origin_uploads uploads = {.begun = on_begun, .ended = on_ended};
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct web_fixture f;
        struct origin_attr attr;
        struct err e;
        memset(&noted, 0, sizeof(noted));
        web_fixture_start(&f, "gs://bucket/p", cases[i].steps, 2, plain);
        f.origin->uploads = &uploads;
        assert_int_equal(complete(&f, &put, &attr, &e), cases[i].is_noted ? 0 : -ENOENT);
        assert_int_equal(noted.begun, cases[i].is_noted);
        assert_int_equal(noted.ended, cases[i].is_noted);
        assert_int_equal(noted.is_gone, cases[i].is_gone);
        web_fixture_stop(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_part_is_an_object),
        cmocka_unit_test(test_compose),
        cmocka_unit_test(test_more_sources_than_one_request_takes),
        cmocka_unit_test(test_sources_that_may_not_go),
        cmocka_unit_test(test_conditions_and_lost_answers),
        cmocka_unit_test(test_any_version_is_followed),
        cmocka_unit_test(test_busy_after_a_lost_answer),
        cmocka_unit_test(test_an_end_without_bytes),
        cmocka_unit_test(test_parts_of_another_service),
        cmocka_unit_test(test_abort),
        cmocka_unit_test(test_many_are_removed_together),
        cmocka_unit_test(test_reserved_keys),
        cmocka_unit_test(test_listings_without_parts),
        cmocka_unit_test(test_without_parts),
        cmocka_unit_test(test_what_is_noted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* layer: object */
/* threaded */
/* What changed at the origin and is told: by notifications, by who asks for it, by a listing. */
#include "base/metrics.h"
#include "base/sys.h"
#include "node_fixture.h"
#include "object/object_internal.h"
#include "origin/origin_internal.h"

#include <fcntl.h>
#include <poll.h>
#include <time.h>

static void make_bucket(struct fixture *f, const char *name, const char *settings)
{
    struct bucket *b = NULL;
    struct err e = {0};
    if (bucket_create(f->service->buckets, slice_str(name), slice_str(settings), &b, &e) < 0)
        fail_msg("%s", e.text);
    bucket_unref(b);
}

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    assert_non_null(f);
    node_around(f);
    node_open(f);
    make_bucket(f, "data",
                arena_printf(f->arena, "origin=file://%s\nvalidate=never\nevents.token=hush\n", f->origin));
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    node_close(f, store_close);
    node_gone(f);
    free(f);
    return 0;
}

static void origin_write(struct fixture *f, const char *key, const char *text)
{
    char *path = arena_printf(f->arena, "%s/%s", f->origin, key),
         *tmp = arena_printf(f->arena, "%s.new", path);
    int fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    assert_true(fd >= 0);
    assert_int_equal(sys_pwrite_all(fd, text, strlen(text), 0), 0);
    (void)close(fd);
    assert_int_equal(rename(tmp, path), 0);
}

/* What a reader gets of the object; its attributes. NULL: there is none. */
static const char *read_all(struct fixture *f, const char *key, struct wire_attr *ret)
{
    struct wire_open_req req = {
        .bucket = SLICE_LIT("data"), .key = slice_str(key), .expect = KIB, .via = WIRE_VIA_API};
    struct wire_open_rep rep;
    int r = object_open(f->session, &req, f->arena, &rep, NULL);
    if (r == -ENOENT)
        return NULL;
    assert_int_equal(r, 0);
    struct wire_fetch_req fetch = {.handle = rep.handle, .n = KIB, .flags = WIRE_INLINE};
    struct wire_fetch_rep got;
    assert_int_equal(object_fetch(f->session, &fetch, f->arena, &got, NULL), 0);
    struct wire_close_req close_req = {.handle = rep.handle};
    struct wire_close_rep closed;
    assert_int_equal(object_close(f->session, &close_req, f->arena, &closed, NULL), 0);
    if (ret)
        *ret = rep.attr;
    return arena_printf(f->arena, SLICE_FMT, SLICE_ARG(got.data));
}

static bool is_cached(struct fixture *f, const char *key)
{
    struct wire_cached_req req = {.bucket = SLICE_LIT("data"), .prefix = slice_str(key), .flags = WIRE_EXACT};
    struct wire_cached_rep rep;
    assert_int_equal(object_cached(f->session, &req, f->arena, &rep, NULL), 0);
    return rep.n_entries == 1;
}

/* ---- notifications ---- */

/* Posts one record; whether it changed anything. */
static bool tell(struct fixture *f, const char *bucket, const char *record)
{
    char *json = arena_printf(f->arena, "{\"Records\": [%s]}", record);
    struct wire_events_req req = {
        .bucket = slice_str(bucket), .token = SLICE_LIT("hush"), .json = slice_str(json)};
    struct wire_events_rep rep;
    struct err e = {0};
    if (object_events(f->session, &req, f->arena, &rep, &e) < 0)
        fail_msg("%s", e.text);
    assert_int_equal(rep.changed + rep.ignored, 1);
    return rep.changed == 1;
}

/* Which object an event is about: the origin's bucket, where its URL names one, and what lies below its
 * folder. Each row: the origin, the event's bucket and key, whether it is one of ours. (Without the host's
 * step in origin_names, or the look at the slash in own_key, the rows with them go wrong.) */
static void test_whose_an_event_is(void **state)
{
    struct fixture *f = *state;
    static const struct {
        const char *origin, *bucket, *key;
        bool ours;
    } rows[] = {
        {"s3://there", "there", "k", true},
        {"s3://there", "elsewhere", "k", false},
        {"s3://there/in/side", "there", "in/side/k", true},
        {"s3://there/in/side/", "there", "in/side/k", true},
        {"s3://there/in/side", "there", "in/side/", false},
        {"s3://there/in/side", "there", "in/side", false},
        {"s3://there/in/side", "there", "in/sidekick", false},
        {"s3://there/in/side", "there", "other/side/k", false},
        {"s3://there/a+b", "there", "a%2Bb/k", true},
        {"gs://there/p", "there", "p/k", true},
        {"az://there/p", "another", "p/k", false},
        {"forebay://127.0.0.1:1/there/p", "there", "p/k", true},
        {"forebay://127.0.0.1:1/there/p", "p", "k", false},
        {"forebay://127.0.0.1:1/there", "there", "there/k", true},
        {"http://127.0.0.1:1/there", "whatever", "k", true},
    };
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        char *name = arena_printf(f->arena, "row-%zu", i);
        make_bucket(f, name, arena_printf(f->arena, "origin=%s\nevents.token=hush\n", rows[i].origin));
        char *record =
            arena_printf(f->arena,
                         "{\"eventName\": \"s3:ObjectCreated:Put\", \"s3\": {\"bucket\": {\"name\": \"%s\"}, "
                         "\"object\": {\"key\": \"%s\"}}}",
                         rows[i].bucket, rows[i].key);
        if (tell(f, name, record) != rows[i].ours)
            fail_msg("%s: %s of %s", rows[i].origin, rows[i].key, rows[i].bucket);
    }
}

static const char *event(struct fixture *f, const char *name, struct slice etag, const char *quote,
                         uint64_t at_ns)
{
    time_t at = (time_t)(at_ns / 1000000000);
    struct tm tm;
    char text[32];
    assert_true(strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S.000Z", gmtime_r(&at, &tm)) > 0);
    return arena_printf(
        f->arena,
        "{\"eventName\": \"%s\", \"eventTime\": \"%s\", \"s3\": {\"object\": {\"key\": \"k\", \"eTag\": "
        "\"%s" SLICE_FMT "%s\"}}}",
        name, text, quote, SLICE_ARG(etag), quote);
}

/* An event of the very version that is cached, at the time that is known of it, changes nothing, whether its
 * ETag is quoted or not; at another time its attributes are asked for and its bytes stay; a removal ends it
 * whatever ETag it tells; other kinds of events are not about bytes. */
static void test_events_of_what_is_cached(void **state)
{
    struct fixture *f = *state;
    struct wire_attr attr;
    origin_write(f, "k", "one");
    assert_string_equal(read_all(f, "k", &attr), "one");
    assert_true(attr.mtime_ns > 0 && attr.etag.n > 0);
    assert_false(tell(f, "data", event(f, "ObjectCreated:Put", attr.etag, "", attr.mtime_ns)));
    assert_false(tell(f, "data", event(f, "s3:ObjectCreated:Put", attr.etag, "\\\"", attr.mtime_ns)));
    assert_false(tell(f, "data", event(f, "ObjectCreated:Put", attr.etag, "", attr.mtime_ns + 900000000)));
    assert_false(tell(f, "data", event(f, "ObjectTagging:Put", SLICE_LIT("other"), "", attr.mtime_ns)));
    assert_true(is_cached(f, "k"));
    assert_true(tell(f, "data", event(f, "ObjectCreated:Put", attr.etag, "", attr.mtime_ns + 60000000000)));
    assert_true(is_cached(f, "k"));
    origin_write(f, "k", "another"); /* its attributes are doubted now: the origin is asked */
    assert_string_equal(read_all(f, "k", &attr), "another");
    assert_true(tell(f, "data", event(f, "ObjectCreated:Put", SLICE_LIT("other"), "", attr.mtime_ns)));
    assert_false(is_cached(f, "k"));
    assert_string_equal(read_all(f, "k", &attr), "another");
    assert_int_equal(unlink(arena_printf(f->arena, "%s/k", f->origin)), 0);
    assert_string_equal(read_all(f, "k", NULL), "another");
    assert_true(tell(f, "data", event(f, "ObjectRemoved:Delete", attr.etag, "", attr.mtime_ns)));
    assert_null(read_all(f, "k", NULL));
}

/* Who knows the token may not end the node either: the parser goes down the stack for each bracket. */
static void test_events_that_nest_too_deep(void **state)
{
    struct fixture *f = *state;
    _cleanup_buf_ struct buf b = BUF_INIT(KIB);
    struct wire_events_req req = {.bucket = SLICE_LIT("data"), .token = SLICE_LIT("hush")};
    struct wire_events_rep rep;
    struct err e = {0};
    assert_int_equal(buf_str(&b, "{\"Records\": "), 0);
    for (int i = 0; i < 100; i++)
        assert_int_equal(buf_str(&b, "["), 0);
    for (int i = 0; i < 100; i++)
        assert_int_equal(buf_str(&b, "]"), 0);
    assert_int_equal(buf_str(&b, "}"), 0);
    req.json = buf_view(&b);
    assert_int_equal(object_events(f->session, &req, f->arena, &rep, &e), -EINVAL);
}

/* Who does not know the token is refused, also with a beginning of it, more than it, or none; and where the
 * bucket has none. */
static void test_tokens_of_events(void **state)
{
    struct fixture *f = *state;
    make_bucket(f, "silent", "origin=s3://there\n");
    static const char *const wrong[] = {"", "h", "hus", "hush!", "hushhush", "HUSH"};
    struct wire_events_req req = {.bucket = SLICE_LIT("data"), .json = SLICE_LIT("{\"Records\": []}")};
    struct wire_events_rep rep;
    for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
        req.token = slice_str(wrong[i]);
        assert_int_equal(object_events(f->session, &req, f->arena, &rep, NULL), -EACCES);
    }
    req.token = SLICE_LIT("hush");
    assert_int_equal(object_events(f->session, &req, f->arena, &rep, NULL), 0);
    req.bucket = SLICE_LIT("silent");
    assert_int_equal(object_events(f->session, &req, f->arena, &rep, NULL), -EACCES);
    req.token = SLICE_NULL;
    assert_int_equal(object_events(f->session, &req, f->arena, &rep, NULL), -EACCES);
}

/* ---- uploads in parts ---- */

static int begin_upload(struct origin *o, const struct origin_put *p, char ret_id[ORIGIN_UPLOAD_ID_MAX],
                        struct err *e)
{
    (void)o, (void)p, (void)e;
    (void)snprintf(ret_id, ORIGIN_UPLOAD_ID_MAX, "id");
    return 0;
}

static int take_part(struct origin *o, const struct origin_put *p, struct slice id, uint32_t number,
                     const struct origin_body *body, char ret_etag[ORIGIN_ETAG_MAX + 1], struct err *e)
{
    (void)o, (void)p, (void)id, (void)number, (void)e;
    char piece[KIB];
    for (uint64_t at = 0; at < body->size_bytes;) {
        ssize_t n = body->read(body->arg, piece, MIN(body->size_bytes - at, sizeof(piece)), at);
        if (n <= 0) /* it was given up */
            return -EIO;
        at += (uint64_t)n;
    }
    (void)snprintf(ret_etag, ORIGIN_ETAG_MAX + 1, "part");
    return 0;
}

static struct fixture *completing;

/* The answer has no ETag, and somebody else has put an object of that size in the place of this one. */
static int complete_upload(struct origin *o, const struct origin_put *p, struct slice id,
                           const struct origin_part *parts, size_t n, uint64_t size_bytes, struct arena *a,
                           struct origin_attr *ret_attr, struct err *e)
{
    (void)o, (void)p, (void)id, (void)parts, (void)n, (void)a, (void)e;
    origin_write(completing, "k", "theirs");
    *ret_attr = (struct origin_attr){.size_bytes = size_bytes};
    return 0;
}

/* An upload of the key k and its part 1, of which nothing was written yet. */
static struct wire_upload_part_req begin_part(struct fixture *f, uint64_t size,
                                              struct wire_upload_part_rep *ret)
{
    struct err e = {0};
    struct wire_upload_create_req create = {.bucket = SLICE_LIT("data"), .key = SLICE_LIT("k")};
    struct wire_upload_create_rep made;
    if (object_upload_create(f->session, &create, f->arena, &made, &e) < 0)
        fail_msg("%s", e.text);
    struct wire_upload_part_req part = {
        .bucket = SLICE_LIT("data"), .key = SLICE_LIT("k"), .id = made.id, .number = 1, .size = size};
    assert_int_equal(object_upload_part(f->session, &part, f->arena, ret, NULL), 0);
    return part;
}

/* The origin of the bucket takes uploads in parts from now on, until end_uploads; `ops` lives as long. */
static struct upstream *begin_uploads(struct fixture *f, struct origin_ops *ops)
{
    struct upstream *u = NULL;
    assert_int_equal(object_upstream(f->service, SLICE_LIT("data"), &u, NULL), 0);
    *ops = origin_file_ops;
    ops->upload_create = begin_upload;
    ops->upload_part = take_part;
    u->origin->ops = ops;
    return u;
}

static void end_uploads(struct upstream *u)
{
    u->origin->ops = &origin_file_ops;
    upstream_unref(u);
}

static void upload_in_parts(struct fixture *f, const char *text)
{
    struct err e = {0};
    struct wire_upload_part_rep begun;
    struct wire_upload_part_req part = begin_part(f, strlen(text), &begun);
    struct wire_upload_write_req w = {.handle = begun.handle, .data = slice_str(text)};
    struct wire_upload_write_rep written;
    assert_int_equal(object_upload_write(f->session, &w, f->arena, &written, NULL), 0);
    struct wire_upload_end_req end = {.handle = begun.handle, .etag = SLICE_LIT("e")};
    struct wire_upload_end_rep ended;
    assert_int_equal(object_upload_end(f->session, &end, f->arena, &ended, NULL), 0);
    struct wire_upload_complete_req done = {
        .bucket = SLICE_LIT("data"), .key = SLICE_LIT("k"), .id = part.id, .parts = SLICE_LIT("1 e\n")};
    struct wire_upload_complete_rep rep;
    if (object_upload_complete(f->session, &done, f->arena, &rep, &e) < 0)
        fail_msg("%s", e.text);
}

/* An origin whose answer to the end of an upload has no ETag is asked for it; by then it may be that of
 * somebody else's object, under which our bytes must not be kept. (Without answer_is_own in upload_end.c they
 * are, and every question to the origin confirms them.) */
static void test_an_upload_that_is_told_no_etag(void **state)
{
    struct fixture *f = *state;
    struct origin_ops ops;
    struct upstream *u = begin_uploads(f, &ops);
    ops.upload_complete = complete_upload;
    completing = f;
    upload_in_parts(f, "ours 1");
    end_uploads(u);
    assert_string_equal(read_all(f, "k", NULL), "theirs");
}

/* Who asked for a part and never heard the answer cannot end it: it ends when that is known, with its place
 * in the session and its memory. (Without UPLOAD_PART in session.c's opened_by it stays until the session
 * ends.)
 */
static void test_a_part_whose_reply_was_lost_is_ended(void **state)
{
    struct fixture *f = *state;
    struct origin_ops ops;
    struct upstream *u = begin_uploads(f, &ops);
    struct wire_upload_part_rep begun;
    struct wire_upload_part_req part = begin_part(f, 5, &begun);
    object_unsent(f->session, WIRE_OP_UPLOAD_PART, &part, &begun, f->arena);
    struct wire_upload_write_req w = {.handle = begun.handle, .data = SLICE_LIT("bytes")};
    struct wire_upload_write_rep written;
    assert_int_equal(object_upload_write(f->session, &w, f->arena, &written, NULL), -EBADF);
    end_uploads(u);
}

/* ---- asking ---- */

static uint32_t confirm(struct fixture *f, const char *key)
{
    struct wire_confirm_req req = {.bucket = SLICE_LIT("data"), .key = slice_str(key)};
    struct wire_confirm_rep rep;
    struct err e = {0};
    if (object_confirm(f->session, &req, f->arena, &rep, &e) < 0)
        fail_msg("%s", e.text);
    return rep.state;
}

/* CONFIRM tells what became of what is cached, and drops what the origin has no more; what is the same stays.
 */
static void test_confirm(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(confirm(f, "k"), WIRE_CONFIRM_NOT_CACHED);
    origin_write(f, "k", "one");
    assert_int_equal(confirm(f, "k"), WIRE_CONFIRM_NOT_CACHED);
    assert_string_equal(read_all(f, "k", NULL), "one");
    assert_int_equal(confirm(f, "k"), WIRE_CONFIRM_SAME);
    assert_true(is_cached(f, "k"));
    origin_write(f, "k", "two");
    assert_string_equal(read_all(f, "k", NULL), "one");
    assert_int_equal(confirm(f, "k"), WIRE_CONFIRM_CHANGED);
    assert_false(is_cached(f, "k"));
    assert_string_equal(read_all(f, "k", NULL), "two");
    assert_int_equal(unlink(arena_printf(f->arena, "%s/k", f->origin)), 0);
    assert_string_equal(read_all(f, "k", NULL), "two");
    assert_int_equal(confirm(f, "k"), WIRE_CONFIRM_GONE);
    assert_false(is_cached(f, "k"));
    assert_null(read_all(f, "k", NULL));
}

static size_t list(struct fixture *f, unsigned flags)
{
    struct wire_list_req req = {.bucket = SLICE_LIT("data"), .flags = flags};
    struct wire_list_rep rep;
    assert_int_equal(object_list(f->session, &req, f->arena, &rep, NULL), 0);
    return rep.n_entries;
}

/* CONFIRM without a key forgets what is remembered without data, and ends the watches of the bucket: who
 * keeps names has to ask. (Without watch_end_bucket a mount shows for ever what it showed.) */
static void test_confirm_of_names(void **state)
{
    struct fixture *f = *state;
    struct wire_watch_req req = {.bucket = SLICE_LIT("data")};
    struct wire_watch_rep watch;
    assert_int_equal(list(f, 0), 0);
    origin_write(f, "k", "one");
    assert_int_equal(list(f, 0), 0);
    assert_int_equal(object_watch(f->session, &req, f->arena, &watch, NULL), 0);
    struct pollfd p = {.fd = watch.fd, .events = POLLIN};
    assert_int_equal(poll(&p, 1, 0), 0);
    assert_int_equal(confirm(f, ""), WIRE_CONFIRM_NOT_CACHED);
    assert_int_equal(poll(&p, 1, 0), 1);
    assert_true(p.revents & POLLHUP);
    assert_int_equal(list(f, 0), 1);
    struct wire_close_req close_req = {.handle = watch.handle};
    struct wire_close_rep closed;
    assert_int_equal(object_close(f->session, &close_req, f->arena, &closed, NULL), 0);
}

/* A listing that asks the origin whatever is remembered shows what is there, and what it says of another
 * version counts for the next reader, with validate=never too. */
static void test_what_a_listing_says_counts(void **state)
{
    struct fixture *f = *state;
    origin_write(f, "k", "one");
    assert_string_equal(read_all(f, "k", NULL), "one");
    assert_int_equal(list(f, 0), 1);
    origin_write(f, "k", "another");
    origin_write(f, "l", "new");
    assert_int_equal(list(f, 0), 1);
    assert_string_equal(read_all(f, "k", NULL), "one");
    assert_int_equal(list(f, WIRE_FRESH), 2);
    assert_string_equal(read_all(f, "k", NULL), "another");
}

/* ---- what is never cached, pinned, or more than the quota ---- */

static void rule(struct fixture *f, const char *prefix, const char *setting)
{
    struct wire_bucket_rule_req req = {
        .bucket = SLICE_LIT("data"), .prefix = slice_str(prefix), .settings = slice_str(setting)};
    struct wire_bucket_rule_rep rep;
    assert_int_equal(object_bucket_rule(f->session, &req, f->arena, &rep, NULL), 0);
}

static int evict(struct fixture *f, const char *key)
{
    struct wire_evict_req req = {.bucket = SLICE_LIT("data"), .key = slice_str(key)};
    struct wire_evict_rep rep;
    return object_evict(f->session, &req, f->arena, &rep, NULL);
}

/* What a new rule says is never cached goes at once, more than one page of it, and nothing is kept of it from
 * then on; what a longer prefix pins stays, and is not dropped for who asks, until it is unpinned. */
static void test_rules_of_what_is_cached(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(mkdir(arena_printf(f->arena, "%s/tmp", f->origin), 0755), 0);
    assert_int_equal(mkdir(arena_printf(f->arena, "%s/tmp/keep", f->origin), 0755), 0);
    origin_write(f, "tmp/keep/k", "kept");
    assert_string_equal(read_all(f, "tmp/keep/k", NULL), "kept");
    for (int i = 0; i < 300; i++) {
        char *key = arena_printf(f->arena, "tmp/%d", i);
        origin_write(f, key, "x");
        assert_string_equal(read_all(f, key, NULL), "x");
    }
    rule(f, "tmp/keep/", "pin=true\n");
    rule(f, "tmp/", "cache=never\n");
    for (int i = 0; i < 300; i++)
        assert_false(is_cached(f, arena_printf(f->arena, "tmp/%d", i)));
    assert_true(is_cached(f, "tmp/keep/k"));
    assert_string_equal(read_all(f, "tmp/7", NULL), "x");
    assert_false(is_cached(f, "tmp/7"));
    assert_int_equal(evict(f, "tmp/keep/k"), -EBUSY);
    assert_true(is_cached(f, "tmp/keep/k"));
    rule(f, "tmp/keep/", "pin=false\n");
    assert_string_equal(read_all(f, "tmp/keep/k", NULL), "kept");
    assert_int_equal(evict(f, "tmp/keep/k"), 0);
    assert_false(is_cached(f, "tmp/keep/k"));
    rule(f, "tmp/", "cache=auto\n");
    assert_string_equal(read_all(f, "tmp/7", NULL), "x");
    assert_true(is_cached(f, "tmp/7"));
}

static void set_bucket(struct fixture *f, const char *setting)
{
    struct wire_bucket_set_req req = {.name = SLICE_LIT("data"), .settings = slice_str(setting)};
    struct wire_bucket_set_rep rep;
    assert_int_equal(object_bucket_set(f->session, &req, f->arena, &rep, NULL), 0);
}

/* Another origin that is not there, or whose URL is wrong, is refused before anything of the bucket is
 * changed or dropped. (Without try_changed in bucket_ops.c it is the bucket's from then on, and its cache is
 * gone.) */
static void test_another_origin_must_be_there(void **state)
{
    static const char *const wrong[] = {"origin=file:///nowhere/at/all\n", "origin=ftp://x\n",
                                        "origin=s3://k:hush@b\n"};
    struct fixture *f = *state;
    struct wire_bucket_get_req get = {.name = SLICE_LIT("data")};
    struct wire_bucket_get_rep before, after;
    origin_write(f, "k", "text");
    assert_string_equal(read_all(f, "k", NULL), "text");
    assert_int_equal(object_bucket_get(f->session, &get, f->arena, &before, NULL), 0);
    for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
        struct wire_bucket_set_req req = {.name = SLICE_LIT("data"), .settings = slice_str(wrong[i])};
        struct wire_bucket_set_rep rep;
        struct err e = {0};
        assert_true(object_bucket_set(f->session, &req, f->arena, &rep, &e) < 0);
        assert_non_null(strstr(e.text, "bucket data stays as it was"));
        assert_null(strstr(e.text, "hush"));
        assert_int_equal(object_bucket_get(f->session, &get, f->arena, &after, NULL), 0);
        assert_true(slice_eq(before.settings, after.settings));
        assert_true(is_cached(f, "k"));
    }
}

/* A bucket whose origin is not there is never written down. (Without try_new in bucket_ops.c it is, for a
 * moment or until the next start.) */
static void test_a_new_bucket_is_tried_before_it_is_made(void **state)
{
    struct fixture *f = *state;
    struct wire_bucket_create_req req = {.name = SLICE_LIT("fresh"),
                                         .settings = SLICE_LIT("origin=file:///nowhere\n")};
    struct wire_bucket_create_rep rep;
    _cleanup_buf_ struct buf before = BUF_INIT(64), after = BUF_INIT(64);
    uint64_t version;
    assert_int_equal(kv_get(f->kv, SLICE_LIT("n/bucket"), &before, &version, NULL), 0);
    assert_true(object_bucket_create(f->session, &req, f->arena, &rep, NULL) < 0);
    assert_int_equal(kv_get(f->kv, SLICE_LIT("n/bucket"), &after, &version, NULL), 0);
    assert_true(slice_eq(buf_view(&before), buf_view(&after)));
    req.name = SLICE_LIT("data");
    assert_int_equal(object_bucket_create(f->session, &req, f->arena, &rep, NULL), ERR_BUCKET_EXISTS);
}

/* Of a bucket with a quota the next object that does not fit is read around the cache, to the byte. */
static void test_quota_to_the_byte(void **state)
{
    struct fixture *f = *state;
    set_bucket(f, "quota=10\n");
    origin_write(f, "a", "1234567");
    origin_write(f, "b", "1234");
    origin_write(f, "c", "123");
    assert_string_equal(read_all(f, "a", NULL), "1234567");
    assert_string_equal(read_all(f, "b", NULL), "1234");
    assert_string_equal(read_all(f, "c", NULL), "123");
    assert_true(is_cached(f, "a") && !is_cached(f, "b") && is_cached(f, "c"));
    set_bucket(f, "quota=7\n");
    bool fits = false;
    for (int i = 0; i < 6000 && !fits; i++) { /* the steward drops what was not read for longest */
        steward_hurry(f->service->steward);
        sys->sleep_ns(10000000);
        fits = is_cached(f, "a") + is_cached(f, "c") < 2;
    }
    assert_true(fits);
}

/* When the quota is lowered what is pinned stays, however long ago it was read. (Without the look at the
 * rules in may_go, quota.c, it goes first.) */
static void test_what_is_pinned_stays_within_a_quota(void **state)
{
    struct fixture *f = *state;
    origin_write(f, "a", "pinned");
    origin_write(f, "b", "1234567");
    rule(f, "a", "pin=true\n");
    assert_string_equal(read_all(f, "a", NULL), "pinned");
    assert_string_equal(read_all(f, "b", NULL), "1234567");
    set_bucket(f, "quota=4\n");
    for (int i = 0; i < 6000 && is_cached(f, "b"); i++) {
        steward_hurry(f->service->steward);
        sys->sleep_ns(10000000);
    }
    assert_true(is_cached(f, "a") && !is_cached(f, "b"));
}

/* A scan over more than the quota does not empty the bucket: what is there is not given up for what is read
 * once. (Without store_would_evict in drop_unwanted it goes.) */
static void test_a_scan_does_not_empty_a_quota(void **state)
{
    struct fixture *f = *state;
    set_bucket(f, "quota=700\n");
    quota_turn(f->service); /* no count is begun while something comes */
    char *text = arena_zalloc(f->arena, 101);
    memset(text, 'x', 100);
    for (int i = 0; i < 20; i++) {
        char *key = arena_printf(f->arena, "%02d", i);
        origin_write(f, key, text);
        assert_string_equal(read_all(f, key, NULL), text);
        quota_turn(f->service);
    }
    for (int i = 0; i < 20; i++)
        assert_int_equal(is_cached(f, arena_printf(f->arena, "%02d", i)), i < 7);
}

/* A bucket that is never cached keeps nothing, but what a rule says otherwise of. */
static void test_a_bucket_that_is_never_cached(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(mkdir(arena_printf(f->arena, "%s/keep", f->origin), 0755), 0);
    origin_write(f, "k", "one");
    origin_write(f, "keep/k", "two");
    set_bucket(f, "cache=never\n");
    rule(f, "keep/", "pin=true\n");
    assert_string_equal(read_all(f, "k", NULL), "one");
    assert_string_equal(read_all(f, "keep/k", NULL), "two");
    assert_true(!is_cached(f, "k") && is_cached(f, "keep/k"));
    set_bucket(f, "cache=auto\n");
    assert_string_equal(read_all(f, "k", NULL), "one");
    assert_true(is_cached(f, "k"));
}

static struct slice stored(struct fixture *f, const char *bucket, const char *key)
{
    _cleanup_(bucket_unrefp) struct bucket *b = NULL;
    _cleanup_buf_ struct buf k = BUF_INIT(KIB);
    assert_int_equal(bucket_find(f->service->buckets, slice_str(bucket), &b, NULL), 0);
    object_store_key(b, slice_str(key), &k);
    return arena_dup(f->arena, buf_view(&k));
}

/* Whether the object of 7 bytes stays when a newcomer of a bucket wants its room. */
static bool is_held(struct fixture *f, const char *key, const char *newcomer, bool takes)
{
    return keep_from(f->service, stored(f, "data", key), stored(f, newcomer, "new"), 7, takes);
}

/* What is pinned is given to nobody. Of what a bucket keeps, what was taken or removed since it was counted
 * counts no more; its own newcomers are another matter. (Without keep_leave in keep_from or keep_removed, or
 * the look at the rules, it goes.) */
static void test_what_is_kept_from_others(void **state)
{
    struct fixture *f = *state;
    static const char *const keys[] = {"a", "b", "c", "d"};
    make_bucket(f, "other", arena_printf(f->arena, "origin=file://%s\n", f->origin));
    for (size_t i = 0; i < ARRAY_SIZE(keys); i++) {
        origin_write(f, keys[i], "1234567");
        assert_string_equal(read_all(f, keys[i], NULL), "1234567");
    }
    rule(f, "a", "pin=true\n");
    assert_true(is_held(f, "a", "other", false) && is_held(f, "a", "data", false));
    assert_false(is_held(f, "b", "other", false));
    rule(f, "a", "pin=false\n");
    assert_false(is_held(f, "a", "other", false));
    set_bucket(f, "keep=10\n");
    keep_turn(f->service);
    assert_false(is_held(f, "a", "other", true));
    keep_removed(f->service, stored(f, "data", "b"), 7);
    assert_true(is_held(f, "c", "other", false)); /* of 14 bytes */
    assert_false(is_held(f, "c", "data", false));
}

static void count_one(void *arg, const struct store_listed *x)
{
    (void)x;
    ++*(int *)arg;
}

/* What is counted while the bucket's settings change is not all, and is not taken for it: else a quota would
 * be passed, and less than is promised kept, for ever. */
static void test_a_count_that_is_cut_short_says_so(void **state)
{
    struct fixture *f = *state;
    struct bucket *before, *now;
    int n = 0;
    origin_write(f, "a", "1234567");
    assert_string_equal(read_all(f, "a", NULL), "1234567");
    assert_int_equal(bucket_find(f->service->buckets, SLICE_LIT("data"), &before, NULL), 0);
    set_bucket(f, "quota=10\n");
    assert_int_equal(object_each_cached(f->service, before, count_one, &n), -ECANCELED);
    assert_int_equal(n, 0);
    assert_int_equal(bucket_find(f->service->buckets, SLICE_LIT("data"), &now, NULL), 0);
    assert_int_equal(object_each_cached(f->service, now, count_one, &n), 0);
    assert_int_equal(n, 1);
    bucket_unref(before);
    bucket_unref(now);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_whose_an_event_is),
        TEST(test_events_of_what_is_cached),
        TEST(test_events_that_nest_too_deep),
        TEST(test_tokens_of_events),
        TEST(test_an_upload_that_is_told_no_etag),
        TEST(test_a_part_whose_reply_was_lost_is_ended),
        TEST(test_confirm),
        TEST(test_confirm_of_names),
        TEST(test_what_a_listing_says_counts),
        TEST(test_rules_of_what_is_cached),
        TEST(test_another_origin_must_be_there),
        TEST(test_a_new_bucket_is_tried_before_it_is_made),
        TEST(test_quota_to_the_byte),
        TEST(test_what_is_pinned_stays_within_a_quota),
        TEST(test_a_scan_does_not_empty_a_quota),
        TEST(test_a_bucket_that_is_never_cached),
        TEST(test_what_is_kept_from_others),
        TEST(test_a_count_that_is_cut_short_says_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

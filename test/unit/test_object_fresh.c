/* layer: object */
/* threaded */
/* What changed at the origin and is told: by notifications, by who asks for it, by a listing. */
#include "object_fresh_common.h"
#include "origin/origin_internal.h"

#include <poll.h>
#include <time.h>

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
    struct wire_attr attr = {0};
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

/* What a lifecycle rule of the origin's bucket removed is gone, too: S3 tells of it by other names. (Without
 * LifecycleExpiration in take_event it is served for ever with validate=never.) */
static void test_events_of_what_expired(void **state)
{
    static const char *const names[] = {"LifecycleExpiration:Delete",
                                        "s3:LifecycleExpiration:DeleteMarkerCreated"};
    struct fixture *f = *state;
    for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
        struct wire_attr attr = {0};
        origin_write(f, "k", "text");
        assert_string_equal(read_all(f, "k", &attr), "text");
        assert_int_equal(unlink(arena_printf(f->arena, "%s/k", f->origin)), 0);
        assert_true(tell(f, "data", event(f, names[i], attr.etag, "", attr.mtime_ns)));
        assert_null(read_all(f, "k", NULL));
        sys->sleep_ns(1100000000); /* that it is not there is believed for a second */
    }
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

/* Who does not know the token is refused, also with a beginning of it, more than it, or none; where the
 * bucket has none, and where there is no such bucket: none of them is told which. (Seen to be told that there
 * is no bucket where it is looked for before the token.) */
static void test_tokens_of_events(void **state)
{
    struct fixture *f = *state;
    make_bucket(f, "silent", "origin=s3://there\n");
    static const char *const wrong[] = {"", "h", "hus", "hush!", "hushhush", "HUSH"};
    struct wire_events_req req = {.bucket = SLICE_LIT("data"), .json = SLICE_LIT("{\"Records\": []}")};
    struct wire_events_rep rep;
    struct err said = {0};
    for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
        req.token = slice_str(wrong[i]);
        assert_int_equal(object_events(f->session, &req, f->arena, &rep, &said), -EACCES);
    }
    req.token = SLICE_LIT("hush");
    assert_int_equal(object_events(f->session, &req, f->arena, &rep, NULL), 0);
    const struct slice others[] = {SLICE_LIT("silent"), SLICE_LIT("none"), SLICE_LIT("")};
    for (size_t i = 0; i < 2 * ARRAY_SIZE(others); i++) {
        struct err e = {0};
        req.bucket = others[i / 2];
        req.token = i % 2 ? SLICE_LIT("hush") : SLICE_NULL;
        assert_int_equal(object_events(f->session, &req, f->arena, &rep, &e), -EACCES);
        assert_string_equal(e.text, said.text);
    }
}

/* ---- uploads in parts ---- */

static int begin_upload(struct origin *o, const struct origin_put *p, char ret_id[ORIGIN_UPLOAD_ID_MAX],
                        bool *ret_sums, struct err *e)
{
    (void)o, (void)p, (void)ret_sums, (void)e;
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

/* The origin of the bucket takes uploads in parts from now on, until end_uploads; `ops` lives as long. The
 * steward, who looks after origins, too, makes no turns any more. */
static struct upstream *begin_uploads(struct fixture *f, struct origin_ops *ops)
{
    struct upstream *u = NULL;
    steward_stop(TAKE_PTR(f->service->steward));
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

/* Gives the upload's id. */
static struct slice upload_part_of(struct fixture *f, const char *text)
{
    struct wire_upload_part_rep begun;
    struct wire_upload_part_req part = begin_part(f, strlen(text), &begun);
    struct wire_upload_write_req w = {.handle = begun.handle, .data = slice_str(text)};
    struct wire_upload_write_rep written;
    assert_int_equal(object_upload_write(f->session, &w, f->arena, &written, NULL), 0);
    struct wire_upload_end_req end = {.handle = begun.handle, .etag = SLICE_LIT("e")};
    struct wire_upload_end_rep ended;
    assert_int_equal(object_upload_end(f->session, &end, f->arena, &ended, NULL), 0);
    return part.id;
}

static void complete_upload_of(struct fixture *f, struct slice id)
{
    struct err e = {0};
    struct wire_upload_complete_req done = {
        .bucket = SLICE_LIT("data"), .key = SLICE_LIT("k"), .id = id, .parts = SLICE_LIT("1 e\n")};
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
    complete_upload_of(f, upload_part_of(f, "ours 1"));
    end_uploads(u);
    assert_string_equal(read_all(f, "k", NULL), "theirs");
}

static int complete_plainly(struct origin *o, const struct origin_put *p, struct slice id,
                            const struct origin_part *parts, size_t n, uint64_t size_bytes, struct arena *a,
                            struct origin_attr *ret_attr, struct err *e)
{
    (void)o, (void)p, (void)id, (void)parts, (void)n, (void)a, (void)e;
    *ret_attr = (struct origin_attr){.size_bytes = size_bytes, .etag = SLICE_LIT("whole")};
    return 0;
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

static atomic_int patience_of_aborts_ms = -1;

static int abort_upload(struct origin *o, struct slice key, struct slice id, struct err *e)
{
    (void)o, (void)key, (void)id, (void)e;
    atomic_store(&patience_of_aborts_ms, (int)quit_patience_ms(600000));
    return 0;
}

/* The steward aborts what was abandoned, and waits no longer for an origin that says nothing than for one
 * that is asked again later. (Fails without quit_enter_impatient in upload_turn: all else that he does waits
 * with him.) */
static void test_an_abandoned_upload_holds_nobody_up(void **state)
{
    struct fixture *f = *state;
    struct origin_ops ops;
    set_bucket(f, "upload_expiry=1s\n");
    struct upstream *u = begin_uploads(f, &ops);
    ops.upload_abort = abort_upload;
    (void)upload_part_of(f, "ours");
    for (int i = 0; i < 600 && atomic_load(&patience_of_aborts_ms) < 0; i++) {
        (void)usleep(100000);
        upload_turn(f->service);
    }
    assert_int_equal(atomic_load(&patience_of_aborts_ms), QUIT_SILENCE_MS);
    end_uploads(u);
}

static unsigned begun, aborted;

static int begin_numbered(struct origin *o, const struct origin_put *p, char ret_id[ORIGIN_UPLOAD_ID_MAX],
                          bool *ret_sums, struct err *e)
{
    (void)o, (void)p, (void)ret_sums, (void)e;
    (void)snprintf(ret_id, ORIGIN_UPLOAD_ID_MAX, "%u", ++begun);
    return 0;
}

static int abort_all_but_two(struct origin *o, struct slice key, struct slice id, struct err *e)
{
    (void)o, (void)key;
    if (slice_eq_str(id, "1") || slice_eq_str(id, "3"))
        return err_set(e, ERR_ORIGIN_DENIED, "it may not be aborted");
    aborted++;
    return 0;
}

/* Those that the origin will not have aborted keep no others of their bucket from it. (Fails where each turn
 * begins with the first.) */
static void test_an_abandoned_upload_that_is_refused(void **state)
{
    struct fixture *f = *state;
    struct origin_ops ops;
    set_bucket(f, "upload_expiry=1s\n");
    struct upstream *u = begin_uploads(f, &ops);
    ops.upload_create = begin_numbered;
    ops.upload_abort = abort_all_but_two;
    for (int i = 0; i < 5; i++) {
        struct wire_upload_create_req create = {.bucket = SLICE_LIT("data"), .key = SLICE_LIT("k")};
        struct wire_upload_create_rep made;
        assert_int_equal(object_upload_create(f->session, &create, f->arena, &made, NULL), 0);
    }
    for (int i = 0; i < 600 && aborted < 3; i++) {
        (void)usleep(100000);
        f->service->upload_turn_ns = 0;
        upload_turn(f->service);
    }
    assert_int_equal(aborted, 3);
    end_uploads(u);
}

static int abort_counted(struct origin *o, struct slice key, struct slice id, struct err *e)
{
    (void)o, (void)key, (void)id, (void)e;
    aborted++;
    return 0;
}

/* Many that are older than abandoned ones may be, and still get parts, keep none of those from being ended.
 * (Fails where they have places in what one walk finds.) */
static void test_abandoned_uploads_among_many_that_are_in_use(void **state)
{
    enum { IN_USE = 200, ABANDONED = 8 };
    struct fixture *f = *state;
    struct origin_ops ops;
    set_bucket(f, "upload_expiry=1s\n");
    struct upstream *u = begin_uploads(f, &ops);
    ops.upload_abort = abort_counted;
    aborted = 0;
    struct object_session *own = f->session;
    f->session = object_session_new(f->service, WIRE_VIA_API);
    for (int i = 0; i < IN_USE; i++) {
        struct wire_upload_part_rep coming;
        (void)begin_part(f, 5, &coming);
    }
    for (int i = 0; i < ABANDONED; i++) {
        struct wire_upload_create_req create = {.bucket = SLICE_LIT("data"), .key = SLICE_LIT("k")};
        struct wire_upload_create_rep made;
        assert_int_equal(object_upload_create(f->session, &create, f->arena, &made, NULL), 0);
    }
    for (int i = 0; i < 600 && aborted < ABANDONED; i++) {
        (void)usleep(100000);
        f->service->upload_turn_ns = 0;
        upload_turn(f->service);
    }
    assert_int_equal(aborted, ABANDONED);
    object_session_free(f->session); /* which ends the parts */
    f->session = own;
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

struct other_opening {
    struct object_service *service;
    struct opening opening;
    atomic_bool is_over, is_late; /* nobody waits for it any more; it ended before */
};

static void *leave_main(void *arg)
{
    struct other_opening *x = arg;
    for (int i = 0; i < 6000 && !atomic_load(&x->is_over); i++)
        sys->sleep_ns(10000000);
    atomic_store(&x->is_late, !atomic_load(&x->is_over));
    object_opening_leave(x->service, &x->opening);
    return NULL;
}

/* CONFIRM waits for who is asking the origin about the key, but no longer than its job is wanted. (With
 * object_opening_enter in confirm of fresh.c it waits until that one has an answer.) */
static void test_confirm_that_is_cancelled(void **state)
{
    struct fixture *f = *state;
    struct other_opening other = {.service = f->service, .opening.key = SLICE_LIT("k")};
    struct wire_confirm_req req = {.bucket = SLICE_LIT("data"), .key = SLICE_LIT("k")};
    struct wire_confirm_rep rep;
    struct bucket *b = NULL;
    atomic_bool stop = true;
    pthread_t thread;
    origin_write(f, "k", "one");
    assert_string_equal(read_all(f, "k", NULL), "one");
    assert_int_equal(bucket_find(f->service->buckets, SLICE_LIT("data"), &b, NULL), 0);
    other.opening.bucket = b;
    struct object_session *own = object_session_new(f->service, WIRE_VIA_API);
    object_session_set_quit(own, &stop);
    object_opening_enter(f->service, &other.opening);
    assert_int_equal(pthread_create(&thread, NULL, leave_main, &other), 0);
    assert_int_equal(object_confirm(own, &req, f->arena, &rep, NULL), -ECANCELED);
    atomic_store(&other.is_over, true);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_false(atomic_load(&other.is_late));
    object_session_free(own);
    bucket_unref(b);
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

/* ---- a bucket's origin ---- */

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

/* An upload in parts that began before its key was said to be never cached is not kept when it is complete;
 * without such a rule it is. (Without the look at the rules in upload_end.c's make_current it is kept.) */
static void test_an_upload_that_is_not_to_be_cached_any_more(void **state)
{
    struct fixture *f = *state;
    for (int never = 0; never < 2; never++) {
        struct origin_ops ops;
        struct upstream *u = begin_uploads(f, &ops), *then = NULL;
        struct slice id = upload_part_of(f, "ours");
        if (never)
            rule(f, "k", "cache=never\n");
        end_uploads(u);
        then = begin_uploads(f, &ops); /* that of the bucket as it is now */
        ops.upload_complete = complete_plainly;
        complete_upload_of(f, id);
        assert_int_equal(is_cached(f, "k"), !never);
        end_uploads(then);
    }
}

/* ---- an origin that is away ---- */

static uint64_t asked_in_vain(const char *op)
{
    return metrics_value(metrics_series(METRIC_ORIGIN_REQUESTS, "data", op, "502"));
}

static int stat_of(struct fixture *f, const char *key, uint32_t flags, struct wire_attr *ret)
{
    struct wire_stat_req req = {.bucket = SLICE_LIT("data"), .key = slice_str(key), .flags = flags};
    struct wire_stat_rep rep;
    int r = object_stat(f->session, &req, f->arena, &rep, NULL);
    if (r == 0)
        *ret = rep.attr;
    return r;
}

/* What is cached is served while its origin is away, opened or asked for, and directories that are known with
 * it; the origin is waited for as long as `retry` says once, and not by each reader. Who asks for the
 * origin's word gets none, nor with validate=always. When the origin has answered somebody it is asked again.
 * (The count fails without upstream_doubt_begin in reader.c and name_ops.c; the STATs without stat_doubted.)
 */
static void test_what_is_cached_while_the_origin_is_away(void **state)
{
    struct fixture *f = *state;
    char *away = arena_printf(f->arena, "%s.away", f->origin);
    struct wire_attr attr;
    assert_int_equal(mkdir(arena_printf(f->arena, "%s/d", f->origin), 0755), 0);
    origin_write(f, "d/k", "one");
    set_bucket(f, "validate=ttl:1ms\nretry=8s\n");
    assert_string_equal(read_all(f, "d/k", NULL), "one");
    assert_int_equal(stat_of(f, "d", WIRE_POSIX, &attr), 0);
    (void)usleep(2000);
    assert_int_equal(rename(f->origin, away), 0);
    uint64_t before = asked_in_vain("head");
    assert_string_equal(read_all(f, "d/k", NULL), "one");
    assert_true(asked_in_vain("head") - before > 1);
    before = asked_in_vain("head");
    for (int i = 0; i < 20; i++) {
        assert_string_equal(read_all(f, "d/k", NULL), "one");
        assert_int_equal(stat_of(f, "d/k", WIRE_POSIX, &attr), 0);
        assert_int_equal(attr.size_bytes, 3);
        assert_int_equal(stat_of(f, "d", WIRE_POSIX, &attr), 0);
    }
    assert_true(asked_in_vain("head") - before <=
                3); /* one in five seconds, should that have taken so long */
    set_bucket(f, "retry=0s\n");
    assert_int_equal(stat_of(f, "d/k", WIRE_FRESH, &attr), ERR_ORIGIN_DOWN);
    set_bucket(f, "validate=always\n");
    assert_int_equal(stat_of(f, "d/k", 0, &attr), ERR_ORIGIN_DOWN);
    set_bucket(f, "validate=ttl:1ms\n");
    assert_string_equal(read_all(f, "d/k", NULL), "one");
    assert_int_equal(rename(away, f->origin), 0);
    origin_write(f, "d/k", "two!");
    assert_int_equal(list(f, WIRE_FRESH), 1);
    assert_string_equal(read_all(f, "d/k", NULL), "two!");
    assert_int_equal(stat_of(f, "d/k", 0, &attr), 0);
    assert_int_equal(attr.size_bytes, 4);
}

static int try_list(struct fixture *f, uint32_t flags)
{
    struct wire_list_req req = {.bucket = SLICE_LIT("data"), .flags = flags};
    struct wire_list_rep rep;
    int r = object_list(f->session, &req, f->arena, &rep, NULL);
    return r < 0 ? r : (int)rep.n_entries;
}

/* What was listed is, too: by who comes first after its origin was waited for, by the others at once; not for
 * who asks for the origin's word, nor where listings are always asked for. (Without upstream_doubt_begin in
 * mirror_list the first waits and fails, and so does each.) */
static void test_what_was_listed_while_the_origin_is_away(void **state)
{
    struct fixture *f = *state;
    char *away = arena_printf(f->arena, "%s.away", f->origin);
    origin_write(f, "k", "one");
    set_bucket(f, "validate=ttl:1ms\nretry=8s\n");
    assert_int_equal(try_list(f, 0), 1);
    (void)usleep(2000);
    assert_int_equal(rename(f->origin, away), 0);
    uint64_t before = asked_in_vain("list");
    assert_int_equal(try_list(f, 0), 1);
    assert_true(asked_in_vain("list") - before > 1);
    before = asked_in_vain("list");
    for (int i = 0; i < 20; i++)
        assert_int_equal(try_list(f, 0), 1);
    assert_true(asked_in_vain("list") - before <= 1); /* should that have taken five seconds */
    assert_int_equal(try_list(f, WIRE_FRESH), ERR_ORIGIN_DOWN);
    set_bucket(f, "validate.listing=always\nretry=0s\n");
    assert_int_equal(try_list(f, 0), ERR_ORIGIN_DOWN);
    set_bucket(f, "validate.listing=\n");
    assert_int_equal(rename(away, f->origin), 0);
    origin_write(f, "l", "two");
    assert_int_equal(try_list(f, WIRE_FRESH), 2);
    (void)usleep(2000);
    assert_int_equal(try_list(f, 0), 2);
}

static struct {
    struct fixture *f;
    struct upstream *u;
    bool is_overtaken;
} A;

static int list_in_vain(struct origin *o, const struct origin_list *l, struct arena *a,
                        struct origin_page *ret, struct err *e)
{
    if (A.is_overtaken)
        (void)mirror_changed(A.f->service->mirror, A.u->bucket, SLICE_LIT("k"));
    return err_set(e, ERR_ORIGIN_DOWN, "it is away");
}

/* What was changed here while the origin was waited for in vain is not told as it was listed before. (Fails
 * without is_overtaken in mirror_list.) */
static void test_an_old_listing_that_a_change_overtakes(void **state)
{
    struct fixture *f = *state;
    struct origin_ops ops = origin_file_ops;
    ops.list = list_in_vain;
    origin_write(f, "k", "one");
    set_bucket(f, "validate=ttl:1ms\nretry=0s\n");
    A.f = f;
    steward_stop(TAKE_PTR(f->service->steward)); /* as in begin_uploads */
    assert_int_equal(object_upstream(f->service, SLICE_LIT("data"), &A.u, NULL), 0);
    for (int overtaken = 1; overtaken >= 0; overtaken--) {
        assert_int_equal(try_list(f, 0), 1);
        (void)usleep(2000);
        A.is_overtaken = overtaken;
        A.u->origin->ops = &ops;
        assert_int_equal(try_list(f, 0), overtaken ? ERR_ORIGIN_DOWN : 1);
        A.u->origin->ops = &origin_file_ops;
        assert_int_equal(try_list(f, WIRE_FRESH), 1); /* it is there again */
    }
    upstream_unref(A.u);
}

/* ---- an origin whose bytes come alone ---- */

struct bare_sink {
    origin_sink_fn sink;
    void *arg;
};

static int without_meta(void *arg, const struct origin_attr *attr, const void *p, size_t n)
{
    const struct bare_sink *x = arg;
    struct origin_attr bare = *attr;
    bare.meta = SLICE_NULL;
    bare.mtime_ns = 0;
    return x->sink(x->arg, &bare, p, n);
}

static int get_bytes_alone(struct origin *o, const struct origin_get *g, struct arena *a,
                           struct origin_attr *ret, origin_sink_fn sink, void *arg, struct err *e)
{
    struct bare_sink x = {sink, arg};
    return g->attributes_only ? origin_file_ops.get(o, g, a, ret, sink, arg, e)
                              : origin_file_ops.get(o, g, a, ret, without_meta, &x, e);
}

static struct wire_attr open_in(struct fixture *f, const char *bucket, const char *key, uint32_t flags)
{
    struct wire_open_req req = {.bucket = slice_str(bucket),
                                .key = slice_str(key),
                                .expect = KIB,
                                .via = WIRE_VIA_API,
                                .flags = flags};
    struct wire_open_rep rep;
    struct err e = {0};
    if (object_open(f->session, &req, f->arena, &rep, &e) < 0)
        fail_msg("%s", e.text);
    struct wire_close_req close_req = {.handle = rep.handle};
    struct wire_close_rep closed;
    assert_int_equal(object_close(f->session, &close_req, f->arena, &closed, NULL), 0);
    return rep.attr;
}

/* Where metadata does not come with the bytes (gs://) it is asked for apart, by who opens a cold object and
 * wants it, and where not even a time came; once for all. (Without lacks_meta at the end of settle in
 * reader.c the first has none, and the second is of 1970.) */
static void test_metadata_that_comes_apart(void **state)
{
    struct fixture *f = *state;
    struct origin_ops ops = origin_file_ops;
    struct upstream *u = NULL;
    ops.get = get_bytes_alone;
    make_bucket(f, "bare", arena_printf(f->arena, "origin=file://%s\nvalidate=never\nposix=on\n", f->origin));
    assert_int_equal(object_upstream(f->service, SLICE_LIT("bare"), &u, NULL), 0);
    steward_stop(TAKE_PTR(f->service->steward)); /* as in begin_uploads */
    u->origin->ops = &ops;
    u->origin->capabilities |= ORIGIN_BYTES_ALONE;
    origin_write(f, "k", "one");
    origin_write(f, "l", "two");
    struct metric_series *heads = metrics_series(METRIC_ORIGIN_REQUESTS, "bare", "head", "200");
    struct wire_attr attr = open_in(f, "bare", "k", WIRE_META);
    assert_true(slice_find_slice(attr.meta, SLICE_LIT("x-amz-meta-mode")) >= 0 && attr.mtime_ns > 0);
    assert_int_equal(metrics_value(heads), 1);
    attr = open_in(f, "bare", "l", 0);
    assert_true(attr.mtime_ns > 0);
    assert_int_equal(metrics_value(heads), 2);
    for (int i = 0; i < 2; i++) {
        attr = open_in(f, "bare", i ? "k" : "l", WIRE_META);
        assert_true(slice_find_slice(attr.meta, SLICE_LIT("x-amz-meta-mode")) >= 0);
    }
    assert_int_equal(metrics_value(heads), 2);
    u->origin->ops = &origin_file_ops;
    upstream_unref(u);
}

/* ---- look-ups of a mount ---- */

static struct {
    int code; /* of each request; 0: the origin's own */
    unsigned gets, heads;
} L;

static int get_counted(struct origin *o, const struct origin_get *g, struct arena *a, struct origin_attr *ret,
                       origin_sink_fn sink, void *arg, struct err *e)
{
    L.gets += !g->attributes_only;
    L.heads += g->attributes_only;
    return L.code < 0 ? err_set(e, L.code, "told so") : origin_file_ops.get(o, g, a, ret, sink, arg, e);
}

/* From now on requests are counted, and look-ups of names of this kind bring bytes. The steward is ended as
 * in begin_uploads. */
static struct upstream *begin_look_ups(struct fixture *f, struct origin_ops *ops, const char *ending,
                                       int code)
{
    struct upstream *u = NULL;
    steward_stop(TAKE_PTR(f->service->steward));
    assert_int_equal(object_upstream(f->service, SLICE_LIT("data"), &u, NULL), 0);
    *ops = origin_file_ops;
    ops->get = get_counted;
    u->origin->ops = ops;
    for (int i = 0; i < LOOKUPS_FIRST; i++) {
        struct slice key = slice_str(arena_printf(f->arena, "before-%d%s", i, ending));
        lookups_note(f->service->lookups, u->bucket->place, key, /* is_small= */ true,
                     /* is_fetched= */ false);
        (void)lookups_opened(f->service->lookups, u->bucket->place, key);
    }
    memset(&L, 0, sizeof(L));
    L.code = code;
    return u;
}

static int look_up(struct fixture *f, const char *key)
{
    struct object_session *own = f->session;
    struct wire_attr attr;
    f->session = object_session_new(f->service, WIRE_VIA_MOUNT);
    int r = stat_of(f, key, WIRE_POSIX, &attr);
    object_session_free(f->session);
    f->session = own;
    return r;
}

/* An origin that is away is waited for once, and not first for bytes and then for attributes. (Fails without
 * is_final in name_ops.c.) */
static void test_a_look_up_while_the_origin_is_away(void **state)
{
    struct fixture *f = *state;
    struct origin_ops ops;
    set_bucket(f, "retry=0s\n");
    struct upstream *u = begin_look_ups(f, &ops, ".bin", ERR_ORIGIN_DOWN);
    assert_int_equal(look_up(f, "k.bin"), ERR_ORIGIN_DOWN);
    assert_int_equal(L.gets, 1);
    assert_int_equal(L.heads, 0);
    end_uploads(u);
}

/* What may not be read is not asked for twice each time. (Fails without ERR_ORIGIN_DENIED in object_look_up.)
 */
static void test_look_ups_of_what_may_not_be_read(void **state)
{
    struct fixture *f = *state;
    struct origin_ops ops;
    struct upstream *u = begin_look_ups(f, &ops, ".bin", ERR_ORIGIN_DENIED);
    for (int i = 0; i < 5; i++)
        assert_int_equal(look_up(f, arena_printf(f->arena, "%d.bin", i)), ERR_ORIGIN_DENIED);
    assert_int_equal(L.gets, 1);
    assert_int_equal(L.heads, 5);
    end_uploads(u);
}

/* Bytes of files that have none are not asked for: of S3 that is refused, and their attributes are another
 * request. (Fails where op_stat counts them as small.) */
static void test_look_ups_of_empty_files(void **state)
{
    enum { FILES = 4 * LOOKUPS_FIRST };
    struct fixture *f = *state;
    struct origin_ops ops;
    struct upstream *u = begin_look_ups(f, &ops, ".bin", 0);
    for (int i = 0; i < FILES; i++) {
        const char *key = arena_printf(f->arena, "%d.done", i);
        origin_write(f, key, "");
        assert_int_equal(look_up(f, key), 0);
        (void)lookups_opened(f->service->lookups, u->bucket->place, slice_str(key));
    }
    assert_int_equal(L.gets, 0);
    assert_int_equal(L.heads, FILES);
    end_uploads(u);
}

/* No origin is asked for a name that no key can be. (Fails without the look at its length in may_fetch.) */
static void test_look_ups_of_names_that_are_too_long(void **state)
{
    struct fixture *f = *state;
    struct origin_ops ops;
    struct upstream *u = begin_look_ups(f, &ops, ".bin", 0);
    char *key = arena_printf(f->arena, "before-0");
    while (strlen(key) <= ORIGIN_KEY_MAX_BYTES)
        key = arena_printf(f->arena, "%s/%0200d", key, 0);
    key = arena_printf(f->arena, "%s/k.bin", key);
    for (int i = 0; i < LOOKUPS_FIRST; i++) {
        struct slice taught = slice_str(arena_printf(f->arena, "before-0/%d.bin", i));
        lookups_note(f->service->lookups, u->bucket->place, taught, /* is_small= */ true,
                     /* is_fetched= */ false);
        (void)lookups_opened(f->service->lookups, u->bucket->place, taught);
    }
    assert_int_equal(look_up(f, key), -ENOENT);
    assert_int_equal(L.gets + L.heads, 0);
    end_uploads(u);
}

/* What is only looked at takes nobody's place in a quota, which counts whole objects. (Fails without the look
 * at it in admit_looked_up.) */
static void test_a_look_up_of_a_large_file_of_a_bucket_with_a_quota(void **state)
{
    struct fixture *f = *state;
    struct origin_ops ops;
    set_bucket(f, "quota=4MiB\n");
    struct upstream *u = begin_look_ups(f, &ops, ".bin", 0);
    origin_write(f, "large.bin", "");
    assert_int_equal(truncate(arena_printf(f->arena, "%s/large.bin", f->origin), 4 * MIB), 0);
    assert_int_equal(look_up(f, "large.bin"), 0);
    assert_int_equal(L.gets, 1);
    assert_int_equal(L.heads, 0);
    origin_write(f, "k", "one");
    assert_string_equal(read_all(f, "k", NULL), "one");
    assert_true(is_cached(f, "k"));
    assert_false(is_cached(f, "large.bin"));
    end_uploads(u);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_whose_an_event_is),
        TEST(test_events_of_what_is_cached),
        TEST(test_events_of_what_expired),
        TEST(test_events_that_nest_too_deep),
        TEST(test_tokens_of_events),
        TEST(test_an_upload_that_is_told_no_etag),
        TEST(test_a_part_whose_reply_was_lost_is_ended),
        TEST(test_an_abandoned_upload_holds_nobody_up),
        TEST(test_an_abandoned_upload_that_is_refused),
        TEST(test_abandoned_uploads_among_many_that_are_in_use),
        TEST(test_confirm),
        TEST(test_confirm_that_is_cancelled),
        TEST(test_confirm_of_names),
        TEST(test_what_a_listing_says_counts),
        TEST(test_an_upload_that_is_not_to_be_cached_any_more),
        TEST(test_another_origin_must_be_there),
        TEST(test_a_new_bucket_is_tried_before_it_is_made),
        TEST(test_what_is_cached_while_the_origin_is_away),
        TEST(test_what_was_listed_while_the_origin_is_away),
        TEST(test_an_old_listing_that_a_change_overtakes),
        TEST(test_metadata_that_comes_apart),
        TEST(test_a_look_up_while_the_origin_is_away),
        TEST(test_look_ups_of_what_may_not_be_read),
        TEST(test_look_ups_of_empty_files),
        TEST(test_look_ups_of_names_that_are_too_long),
        TEST(test_a_look_up_of_a_large_file_of_a_bucket_with_a_quota),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

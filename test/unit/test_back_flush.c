/* layer: object */
/* threaded */
/* Write-back: what a flush of a prefix sends and counts, and what waits on; at how much of it writers wait;
 * what commits take that send nothing; by which ETags a version is known that was sent. */
#include "test_back_common.h"

#include "name_watch.h"
#include "object/back_internal.h"

#define ROUNDS 8

/* Another bucket with write-back, whose origin is "origin2". */
static void create_other(struct fixture *f)
{
    struct err e = {0};
    char *origin = arena_printf(f->arena, "%s2", f->origin);
    assert_int_equal(mkdir(origin, 0755), 0);
    char *text = arena_printf(f->arena, "origin=file://%s\nretry=0s\nwrite=back\nwrite_delay=1h\n", origin);
    struct wire_bucket_create_req req = {.name = SLICE_LIT("other"), .settings = slice_str(text)};
    struct wire_bucket_create_rep rep;
    if (object_bucket_create(f->session, &req, f->arena, &rep, &e) < 0)
        fail_msg("%s", e.text);
}

static void put_small(struct fixture *f, const char *bucket, const char *key, struct slice body)
{
    struct wire_put_open_req open = {
        .bucket = slice_str(bucket), .key = slice_str(key), .size = body.n, .via = WIRE_VIA_API};
    struct wire_put_open_rep o;
    assert_int_equal(object_put_open(f->session, &open, f->arena, &o, NULL), 0);
    struct wire_put_write_req w = {.handle = o.handle, .data = body};
    struct wire_put_write_rep wrep;
    assert_int_equal(object_put_write(f->session, &w, f->arena, &wrep, NULL), 0);
    assert_int_equal(commit_file(f, o.handle, body.n, 0), 0);
}

static struct wire_flush_rep ask(struct fixture *f, const char *bucket, const char *prefix, uint32_t flags)
{
    struct wire_flush_req req = {.bucket = slice_str(bucket), .prefix = slice_str(prefix), .flags = flags};
    struct wire_flush_rep rep = {0};
    assert_int_equal(object_flush(f->session, &req, f->arena, &rep, NULL), 0);
    return rep;
}

static uint64_t left(struct fixture *f, const char *bucket, const char *prefix)
{
    return ask(f, bucket, prefix, WIRE_NO_WAIT).objects;
}

/* As forebay flush --wait does: asks once, and then looks. */
static void flush_below(struct fixture *f, const char *bucket, const char *prefix)
{
    struct wire_flush_rep rep = ask(f, bucket, prefix, 0);
    for (int i = 0; i < 60000 && rep.objects > 0; i++) {
        sys->sleep_ns(1000000);
        rep = ask(f, bucket, prefix, WIRE_NO_WAIT);
    }
    if (rep.objects > 0)
        fail_msg("not in the origin: " SLICE_FMT, SLICE_ARG(rep.error));
}

/* A flush is of what is below its prefix, in its bucket: that is counted and sent, although what was written
 * before it waits for an hour, in this bucket and in the other. (Fails when op_flush counts or hurries with
 * SLICE_NULL, and when back_hurry hurries all.) */
static void test_a_flush_is_of_its_prefix(void **state)
{
    (void)state;
    struct fixture *f = fixture_new();
    set_bucket(f, "write_delay=1h\n");
    create_other(f);
    put_small(f, "data", "b/1", SLICE_LIT("bb"));
    put_small(f, "data", "ab", SLICE_LIT("ccc"));
    put_small(f, "other", "a/1", SLICE_LIT("dddd"));
    for (int i = 0; i < ROUNDS; i++) {
        const char *key = arena_printf(f->arena, "a/%d", i);
        put_small(f, "data", key, SLICE_LIT("x"));
        put_small(f, "data", "a/again", SLICE_LIT("yy"));
        struct wire_flush_rep rep = ask(f, "data", "a/", WIRE_NO_WAIT);
        assert_true(rep.objects == 2 && rep.bytes == 3);
        flush_below(f, "data", "a/");
        assert_int_equal(origin_look(f, key), 'x');
        assert_int_equal(left(f, "data", ""), 2);
        assert_int_equal(left(f, "other", ""), 1);
    }
    assert_int_equal(origin_look(f, "b/1"), 0);
    assert_int_equal(origin_look(f, "ab"), 0);
    assert_int_equal(left(f, "data", "b/"), 1);
    flush_below(f, "data", "");
    assert_int_equal(origin_look(f, "b/1"), 'b');
    assert_int_equal(left(f, "other", ""), 1);
    flush_below(f, "other", "a/1");
    fixture_free(f);
}

/* Where the origin has directories what is below a prefix may need a name above it to change first: that goes
 * along. (Without is_above in back.c the flush never ends.) */
static void test_a_flush_sends_what_is_in_its_way(void **state)
{
    (void)state;
    struct fixture *f = fixture_new();
    origin_write(f, "d", 'o');
    set_bucket(f, "write_delay=1h\n");
    put_small(f, "data", "e", SLICE_LIT("x"));
    assert_int_equal(remove_key(f, "d"), 0);
    put_small(f, "data", "d/k", SLICE_LIT("x"));
    flush_below(f, "data", "d/k");
    assert_int_equal(origin_look(f, "d/k"), 'x');
    assert_int_equal(left(f, "data", ""), 1);
    fixture_free(f);
}

/* A copy that waits for its target to be sent makes nothing else go. (Fails when back_wait_sent hurries all.)
 */
static void test_who_waits_for_one_key_hurries_it_alone(void **state)
{
    (void)state;
    struct fixture *f = fixture_new();
    set_bucket(f, "write_delay=1h\nretry=120s\n");
    for (int i = 0; i < ROUNDS; i++) {
        origin_write(f, arena_printf(f->arena, "from%d", i), 'o');
        put_small(f, "data", arena_printf(f->arena, "first%d", i), SLICE_LIT("x"));
        put_small(f, "data", "k", SLICE_LIT("k"));
        struct wire_copy_req req = {.bucket = SLICE_LIT("data"),
                                    .from = slice_str(arena_printf(f->arena, "from%d", i)),
                                    .to = SLICE_LIT("k")};
        struct wire_copy_rep rep;
        assert_int_equal(object_copy(f->session, &req, f->arena, &rep, NULL), 0);
        assert_int_equal(origin_look(f, "k"), 'o');
        assert_int_equal(left(f, "data", ""), i + 1);
    }
    fixture_free(f);
}

/* Writers wait at the share of the disks that the node was told, to the byte; what there is over it after a
 * start stays, and one write alone may be larger. Nothing is sent meanwhile: the origin is away. (Fails with
 * BACK_DIRTY_MAX alone in watermark, back.c.) */
static void test_writers_wait_at_the_mark(void **state)
{
    (void)state;
    struct fixture *f = fixture_new();
    struct store_disk_status d;
    struct err e = {0};
    set_bucket(f, "write_delay=1h\n");
    assert_int_equal(store_disk_status(f->store, 0, &d), 0);
    static const unsigned marks[] = {90, 10, 1};
    for (size_t i = 0; i < ARRAY_SIZE(marks); i++) {
        struct bucket *bucket = NULL;
        uint64_t most = d.limit_bytes / 100 * marks[i];
        node_close(f, store_abandon);
        f->dirty_max_percent = marks[i];
        node_open(f);
        struct back *b = f->service->back;
        assert_int_equal(bucket_find(f->service->buckets, SLICE_LIT("data"), &bucket, NULL), 0);
        if (i == 0) {
            assert_int_equal(back_wait_room(b, bucket, GIB, /* may_refuse= */ true, NULL), 0);
            assert_int_equal(put_by(f->session, f->arena, "k", 'a'), 0);
            assert_int_equal(rename(f->origin, arena_printf(f->arena, "%s.away", f->origin)), 0);
        }
        uint64_t room = most > SIZE ? most - SIZE : 0;
        assert_int_equal(back_wait_room(b, bucket, room, /* may_refuse= */ true, NULL),
                         most >= SIZE ? 0 : -ENOSPC);
        assert_int_equal(back_wait_room(b, bucket, room + 1, /* may_refuse= */ true, &e), -ENOSPC);
        assert_non_null(strstr(e.text, "--dirty-max"));
        assert_int_equal(look(f, "k"), 'a');
        bucket_unref(bucket);
    }
    fixture_free(f);
}

static int make_directory(struct fixture *f, const char *key)
{
    struct wire_mkdir_req req = {.bucket = SLICE_LIT("data"), .key = slice_str(key)};
    struct wire_mkdir_rep rep;
    return object_mkdir(f->session, &req, f->arena, &rep, NULL);
}

static int copy(struct fixture *f, const char *from, const char *to, uint32_t flags)
{
    struct wire_copy_req req = {
        .bucket = SLICE_LIT("data"), .from = slice_str(from), .to = slice_str(to), .flags = flags};
    struct wire_copy_rep rep;
    return object_copy(f->session, &req, f->arena, &rep, NULL);
}

/* All that makes a key more wait at their most, not those alone that bring bytes: directories, copies of what
 * is not in the origin, renames. (Seen to fail without back_wait_record in put_marker, and without
 * wait_for_records, name_ops.c.) */
static void test_whatever_makes_a_key_waits(void **state)
{
    (void)state;
    struct fixture *f = fixture_new();
    struct back *b = f->service->back;
    origin_write(f, "there", 'o');
    assert_int_equal(look(f, "there"), 'o');
    set_bucket(f, "write_delay=1h\n");
    put_small(f, "data", "k", SLICE_LIT("body"));
    put_small(f, "data", "l", SLICE_LIT("body"));
    (void)atomic_fetch_add(&b->n, BACK_KEYS_MAX); /* as many more */
    assert_int_equal(remove_key(f, "there"), -ENOSPC);
    assert_int_equal(make_directory(f, "d"), -ENOSPC);
    assert_int_equal(copy(f, "k", "new", 0), -ENOSPC);
    assert_int_equal(copy(f, "k", "new", WIRE_MOVE), -ENOSPC);
    assert_int_equal(copy(f, "there", "new", WIRE_MOVE), -ENOSPC);
    assert_int_equal(copy(f, "k", "l", 0), 0);       /* has one */
    assert_int_equal(copy(f, "there", "new", 0), 0); /* takes none */
    (void)atomic_fetch_sub(&b->n, BACK_KEYS_MAX);
    assert_int_equal(make_directory(f, "d"), 0);
    assert_int_equal(copy(f, "k", "newer", WIRE_MOVE), 0);
    flush(f);
    fixture_free(f);
}

/* Each record takes memory, whose key and error are kept there: with little memory writers wait at fewer of
 * them. (Seen to fail where BACK_KEYS_MAX alone is looked at.) */
static void test_records_take_their_share_of_memory(void **state)
{
    (void)state;
    assert_int_equal(back_keys_max(24 * MIB), 32768); /* of --memory 64MiB */
    assert_int_equal(back_keys_max(192 * MIB), BACK_KEYS_MAX);
    assert_int_equal(back_keys_max(TIB), BACK_KEYS_MAX);
    struct fixture *f = fixture_new();
    struct back *b = f->service->back;
    assert_int_equal(b->keys_max, back_keys_max(budget_total(f->budget)));
    set_bucket(f, "write_delay=1h\n");
    b->keys_max = 2;
    put_small(f, "data", "k", SLICE_LIT("body"));
    put_small(f, "data", "l", SLICE_LIT("body"));
    assert_int_equal(make_directory(f, "d"), -ENOSPC);
    flush(f);
    assert_int_equal(make_directory(f, "d"), 0);
    flush(f);
    fixture_free(f);
}

/* A file that is committed again and again while nobody writes to it takes no more memory each time, whatever
 * its checksum is said to be. (Seen to end the process when what is answered was kept until the next upload.)
 */
static void test_commits_that_send_nothing(void **state)
{
    (void)state;
    struct fixture *f = fixture_new();
    struct wire_put_open_rep o;
    struct wire_put_commit_rep rep;
    char sum[1000];
    (void)memset(sum, 'x', sizeof(sum));
    set_bucket(f, "write_delay=1h\n");
    assert_int_equal(stage(f, "k", &o), 0);
    assert_int_equal(pwrite(o.fd, "bytes", 5, 0), 5);
    struct wire_put_commit_req req = {
        .handle = o.handle, .size = 5, .checksum = slice_of(sum, sizeof(sum)), .flags = WIRE_KEEP};
    for (int i = 0; i < 200; i++)
        assert_int_equal(object_put_commit(f->session, &req, f->arena, &rep, NULL), 0);
    abort_file(f, o.handle);
    fixture_free(f);
}

/* Who watches names is told when an object has got to the origin, whose ETag and time it has from then on.
 * (Seen to fail where nobody was told after the write itself.) */
static void test_what_has_got_to_the_origin_is_told(void **state)
{
    (void)state;
    struct fixture *f = fixture_new();
    set_bucket(f, "write_delay=1h\n");
    struct wire_watch_names_rep watch = watch_names(f);
    put_small(f, "data", "k", SLICE_LIT("body"));
    assert_non_null(strstr(names_told(watch.fd).text, " k"));
    assert_string_equal(names_told(watch.fd).text, "");
    flush(f);
    struct pollfd p = {.fd = watch.fd, .events = POLLIN};
    assert_int_equal(poll(&p, 1, 60000), 1);
    assert_string_equal(names_told(watch.fd).text, " k");
    fixture_free(f);
}

/* What the metrics say of a bucket is true also after it has got write=through and nothing is left of it.
 * (Seen to fail when back_refresh_metrics leaves the series of such a bucket as they were.) */
static void test_metrics_end_with_write_back(void **state)
{
    (void)state;
    struct fixture *f = fixture_new();
    set_bucket(f, "write_delay=1h\n");
    put_small(f, "data", "k", SLICE_LIT("body"));
    object_service_refresh_metrics(f->service);
    assert_int_equal(metrics_value(metrics_series(METRIC_BACK_OBJECTS, "data", NULL, NULL)), 1);
    assert_int_equal(metrics_value(metrics_series(METRIC_BACK_BYTES, "data", NULL, NULL)), 4);
    set_bucket(f, "write=through\n");
    flush(f);
    object_service_refresh_metrics(f->service);
    _cleanup_buf_ struct buf text = BUF_INIT(16 * MIB);
    assert_int_equal(metrics_text(&text), 0);
    assert_true(slice_find_slice(buf_view(&text), SLICE_LIT("forebay_write_back_objects{")) < 0);
    assert_true(slice_find_slice(buf_view(&text), SLICE_LIT("forebay_write_back_bytes{")) < 0);
    assert_true(slice_find_slice(buf_view(&text), SLICE_LIT("forebay_write_back_oldest_seconds{")) < 0);
    fixture_free(f);
}

/* ---- ETags ---- */

static int open_if(struct fixture *f, struct slice match, struct slice none_match)
{
    struct wire_open_req req = {.bucket = SLICE_LIT("data"),
                                .key = SLICE_LIT("k"),
                                .if_match = match,
                                .if_none_match = none_match,
                                .via = WIRE_VIA_API};
    struct wire_open_rep rep;
    return object_open(f->session, &req, f->arena, &rep, NULL);
}

static struct slice etag_of(struct fixture *f)
{
    struct wire_stat_req req = {.bucket = SLICE_LIT("data"), .key = SLICE_LIT("k")};
    struct wire_stat_rep rep;
    assert_int_equal(object_stat(f->session, &req, f->arena, &rep, NULL), 0);
    return rep.attr.etag;
}

/* A version that was sent, and has its ETag from the origin since, is opened by the one that its writer was
 * told as well, whoever asks, and by nobody who means another: neither what is written over it here, nor what
 * somebody else puts there. (Seen to fail with SLICE_NULL for the other one in reader.c.) */
static void test_a_version_is_opened_by_the_etag_of_before(void **state)
{
    (void)state;
    struct fixture *f = fixture_new();
    set_bucket(f, "validate=always\n");
    put_small(f, "data", "k", SLICE_LIT("body"));
    struct slice told = etag_of(f), now = told;
    assert_int_equal(open_if(f, told, SLICE_NULL), 0);
    flush(f);
    for (int i = 0; i < 60000 && slice_eq(now, told); i++) {
        sys->sleep_ns(1000000);
        now = etag_of(f);
    }
    assert_false(slice_eq(now, told));
    assert_int_equal(open_if(f, told, SLICE_NULL), 0);
    assert_int_equal(open_if(f, now, SLICE_NULL), 0);
    assert_int_equal(open_if(f, SLICE_LIT("x"), SLICE_NULL), ERR_PRECONDITION);
    assert_int_equal(open_if(f, SLICE_NULL, told), ERR_NOT_MODIFIED);
    assert_int_equal(open_if(f, SLICE_NULL, SLICE_LIT("x,,y")), 0);
    assert_true(
        slice_eq(object_other_etag(f->service, SLICE_LIT("data"), SLICE_LIT("k"), now, f->arena), told));
    origin_write(f, "k", 'z');
    assert_int_equal(open_if(f, told, SLICE_NULL), ERR_PRECONDITION);
    assert_int_equal(open_if(f, SLICE_NULL, told), 0);
    put_small(f, "data", "k", SLICE_LIT("another"));
    assert_int_equal(open_if(f, told, SLICE_NULL), ERR_PRECONDITION);
    flush(f);
    assert_int_equal(open_if(f, told, SLICE_NULL), ERR_PRECONDITION);
    fixture_free(f);
}

/* A rename of a directory that was copied, given up, and is finished by the same run, which has written the
 * originals itself: they go, but for one that was written anew since, the same bytes though it be. (The first
 * stays without back_is_copy in is_copied_already, move_tree.c; the second goes without back_is_new.) */
static void test_a_rename_that_was_given_up_is_finished(void **state)
{
    (void)state;
    const struct intent_record x = {.kind = INTENT_MOVE,
                                    .state = INTENT_COPIED,
                                    .is_tree = true,
                                    .key = SLICE_LIT("d"),
                                    .to = SLICE_LIT("e")};
    for (int is_anew = 0; is_anew < 2; is_anew++) {
        struct fixture *f = fixture_new();
        struct upstream *u = NULL;
        struct err e = {0};
        set_bucket(f, "write_delay=1h\n");
        put_small(f, "data", "d/k", SLICE_LIT("x"));
        assert_int_equal(copy(f, "d/k", "e/k", 0), 0);
        if (is_anew)
            put_small(f, "data", "d/k", SLICE_LIT("x"));
        assert_int_equal(object_upstream(f->service, SLICE_LIT("data"), &u, NULL), 0);
        if (object_finish_move_tree(f->service, u, &x, &e) < 0)
            fail_msg("%s", e.text);
        upstream_unref(u);
        assert_int_equal(look(f, "e/k"), 'x');
        assert_int_equal(look(f, "d/k"), is_anew ? 'x' : 0);
        fixture_free(f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_flush_is_of_its_prefix),
        cmocka_unit_test(test_a_flush_sends_what_is_in_its_way),
        cmocka_unit_test(test_who_waits_for_one_key_hurries_it_alone),
        cmocka_unit_test(test_writers_wait_at_the_mark),
        cmocka_unit_test(test_whatever_makes_a_key_waits),
        cmocka_unit_test(test_records_take_their_share_of_memory),
        cmocka_unit_test(test_commits_that_send_nothing),
        cmocka_unit_test(test_what_has_got_to_the_origin_is_told),
        cmocka_unit_test(test_metrics_end_with_write_back),
        cmocka_unit_test(test_a_version_is_opened_by_the_etag_of_before),
        cmocka_unit_test(test_a_rename_that_was_given_up_is_finished),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* layer: object */
/* threaded */
/* Uploads in parts that the node drives: what the control store keeps of them over a kill, and who tries to
 * abort them. The service of these tests is never there. */
#include "node_fixture.h"
#include "object/object_internal.h"
#include "object/unfinished.h"

#define URL      "origin=s3://there/prefix\norigin.endpoint=http://127.0.0.1:1\n"
#define KEYS     "origin.access_key=a\norigin.secret_key=b\n"
#define NEW_KEYS "origin.access_key=c\norigin.secret_key=d\n"

static struct fixture *fixture_new(void)
{
    struct fixture *f = calloc(1, sizeof(*f));
    assert_non_null(f);
    node_around(f);
    node_open(f);
    return f;
}

static void fixture_free(struct fixture *f)
{
    node_close(f, store_abandon);
    node_gone(f);
    free(f);
}

/* The upstream of a job's URL, whose guest is `name` until object_guest_close. */
static struct upstream *guest_of(struct fixture *f, const char *settings, char name[BUCKET_GUEST_NAME_SIZE])
{
    struct upstream *u = NULL;
    struct err e = {0};
    if (object_guest_open(f->service, "s3", slice_str(settings), /* probe= */ false, name, &e) < 0 ||
        object_upstream(f->service, slice_str(name), &u, &e) < 0)
        fail_msg("%s", e.text);
    return u;
}

static void close_guest(struct fixture *f, struct upstream *u, const char *name)
{
    upstream_unref(u);
    object_guest_close(f->service, name);
}

static void kill_node(struct fixture *f)
{
    node_close(f, store_abandon);
    node_open(f);
}

static size_t left(struct fixture *f)
{
    return unfinished_left(f->service->unfinished);
}

/* One that has ended is forgotten, one that runs is nobody's business; what is under way when the node is
 * killed, or could not be aborted, is left over every restart until its service says that it is gone. (Fails
 * without save in on_begun, or in on_ended, unfinished.c.) */
static void test_what_is_under_way_is_left_by_a_kill(void **state)
{
    (void)state;
    struct fixture *f = fixture_new();
    char name[BUCKET_GUEST_NAME_SIZE];
    struct upstream *u = guest_of(f, URL KEYS, name);
    origin_note_upload(u->origin, SLICE_LIT("done"), SLICE_LIT("1"));
    origin_note_upload(u->origin, SLICE_LIT("failed"), SLICE_LIT("2"));
    origin_note_upload(u->origin, SLICE_LIT("running"), SLICE_LIT("3"));
    origin_note_upload_end(u->origin, SLICE_LIT("1"), /* is_gone= */ true);
    assert_int_equal(left(f), 0);
    origin_note_upload_end(u->origin, SLICE_LIT("2"), /* is_gone= */ false);
    assert_int_equal(left(f), 1);
    assert_true(unfinished_tidy(f->service->unfinished, u) < 0); /* the service is away */
    assert_int_equal(left(f), 1);
    close_guest(f, u, name);
    for (int i = 0; i < 2; i++) {
        kill_node(f);
        assert_int_equal(left(f), 2);
    }
    u = guest_of(f, URL KEYS, name);
    assert_int_equal(left(f), 2);
    origin_note_upload_end(u->origin, SLICE_LIT("2"), /* is_gone= */ true);
    origin_note_upload_end(u->origin, SLICE_LIT("3"), /* is_gone= */ true);
    origin_note_upload_end(u->origin, SLICE_LIT("of nobody"), /* is_gone= */ true);
    close_guest(f, u, name);
    kill_node(f);
    assert_int_equal(left(f), 0);
    fixture_free(f);
}

/* Of an upload that two have noted, as who drives it and a kind that has its rest to remove, each ends its
 * own: what one has left stays left when the other is done. (Fails where `take` gives the first of that id.)
 */
static void test_two_may_note_one(void **state)
{
    (void)state;
    struct fixture *f = fixture_new();
    char name[BUCKET_GUEST_NAME_SIZE];
    struct upstream *u = guest_of(f, URL KEYS, name);
    origin_note_upload(u->origin, SLICE_LIT("k"), SLICE_LIT("1"));
    origin_note_upload(u->origin, SLICE_LIT("k"), SLICE_LIT("1"));
    origin_note_upload_end(u->origin, SLICE_LIT("1"), /* is_gone= */ false);
    assert_int_equal(left(f), 1);
    origin_note_upload_end(u->origin, SLICE_LIT("1"), /* is_gone= */ true);
    assert_int_equal(left(f), 1);
    close_guest(f, u, name);
    kill_node(f);
    assert_int_equal(left(f), 1);
    fixture_free(f);
}

/* Only the place where it was begun is asked about it: the same URL at the same endpoint, whatever the
 * credentials. (Fails when place_of leaves out the endpoint, or is_at is always true.) */
static void test_one_place_is_asked(void **state)
{
    (void)state;
    struct fixture *f = fixture_new();
    static const struct {
        const char *settings;
        bool is_it;
    } rows[] = {
        {URL KEYS, true},
        {URL NEW_KEYS, true},
        {"origin=s3://there/other\norigin.endpoint=http://127.0.0.1:1\n" KEYS, false},
        {"origin=s3://there/prefix\norigin.endpoint=http://127.0.0.1:2\n" KEYS, false},
    };
    char name[BUCKET_GUEST_NAME_SIZE];
    struct upstream *u = guest_of(f, URL KEYS, name);
    origin_note_upload(u->origin, SLICE_LIT("k"), SLICE_LIT("1"));
    close_guest(f, u, name);
    kill_node(f);
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        u = guest_of(f, rows[i].settings, name);
        assert_int_equal(unfinished_tidy(f->service->unfinished, u) < 0, rows[i].is_it);
        assert_int_equal(left(f), 1);
        close_guest(f, u, name);
    }
    fixture_free(f);
}

static int abort_unless_refused(struct origin *o, struct slice key, struct slice id, struct err *e)
{
    (void)o, (void)id;
    return slice_eq_str(key, "refused") ? err_set(e, ERR_ORIGIN_DENIED, "it may not be aborted") : 0;
}

/* One that the service will not have aborted keeps none of the others from it. (Fails where it is put in
 * front again.) */
static void test_one_that_is_refused_comes_last(void **state)
{
    (void)state;
    struct fixture *f = fixture_new();
    char name[BUCKET_GUEST_NAME_SIZE];
    struct upstream *u = guest_of(f, URL KEYS, name);
    const struct origin_ops *own = u->origin->ops;
    struct origin_ops refusing = *own;
    refusing.upload_abort = abort_unless_refused;
    steward_stop(TAKE_PTR(f->service->steward)); /* who looks at what is changed here */
    u->origin->ops = &refusing;
    const struct slice keys[] = {SLICE_LIT("a"), SLICE_LIT("refused"), SLICE_LIT("b"), SLICE_LIT("refused")};
    for (size_t i = 0; i < ARRAY_SIZE(keys); i++) {
        char id[] = {(char)('1' + i), '\0'};
        origin_note_upload(u->origin, keys[i], slice_str(id));
        origin_note_upload_end(u->origin, slice_str(id), /* is_gone= */ false);
    }
    assert_int_equal(left(f), ARRAY_SIZE(keys));
    for (size_t i = 0; i < ARRAY_SIZE(keys); i++)
        assert_int_equal(unfinished_tidy(f->service->unfinished, u), ERR_ORIGIN_DENIED);
    assert_int_equal(left(f), 2);
    u->origin->ops = own;
    close_guest(f, u, name);
    fixture_free(f);
}

/* Records that are damaged keep no node from starting. */
static void test_damaged_records_are_passed_over(void **state)
{
    (void)state;
    struct fixture *f = fixture_new();
    struct kv_txn *t = kv_txn_new(f->kv);
    kv_txn_put_plain(t, SLICE_LIT("n/left/short"), SLICE_LIT("\1\1\0k\1\0i"));
    kv_txn_put_plain(t, SLICE_LIT("n/left/0123456789abcdef00000000"), SLICE_LIT("\2\1\0k\1\0i"));
    kv_txn_put_plain(t, SLICE_LIT("n/left/0123456789abcdef00000001"), SLICE_LIT("\1\1\0k\1"));
    kv_txn_put_plain(t, SLICE_LIT("n/left/0123456789abcdef00000002"), SLICE_LIT("\1\1\0k\1\0i"));
    assert_int_equal(kv_txn_commit(t, KV_DURABLE, NULL), 0);
    kv_txn_free(t);
    kill_node(f);
    assert_int_equal(left(f), 1);
    fixture_free(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_under_way_is_left_by_a_kill),
        cmocka_unit_test(test_two_may_note_one),
        cmocka_unit_test(test_one_place_is_asked),
        cmocka_unit_test(test_one_that_is_refused_comes_last),
        cmocka_unit_test(test_damaged_records_are_passed_over),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

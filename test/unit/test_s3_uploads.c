/* layer: s3 */
/* threaded */
/* Open multipart uploads: parts never share bytes, the last good part of a number counts, ends wait for what
 * runs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/quit.h"
#include "s3/uploads_internal.h"
#include "support/clock_sys.h"
#include "support/fault_sys.h"

#include <pthread.h>

#define START_NS (1700000000ull * 1000000000)

static const struct slice bucket = {"bucket", 6}, key = {"a/key", 5};
static const struct part_sums sums = {.kind = CHECKSUM_CRC32C};

/* An upload whose staged file is never touched: the sink counts as open, nothing is written. */
static struct upload *new_upload(struct uploads *u, char *ret_id)
{
    struct sink sink;
    struct upload *w;

    sink_init(&sink, NULL);
    sink.handle = 1;
    sink.fd = 0;
    sink.open.content_type = SLICE_LIT("a/b");
    assert_int_equal(uploads_add(u, bucket, key, &sums, /* opaque= */ false, &sink, ret_id), S3_OK);
    w = uploads_find(u, slice_str(ret_id), bucket, key);
    assert_non_null(w);
    upload_sink(w)->handle = 0; /* nothing to abort */
    return w;
}

static const uint8_t digest[16] = {1, 2, 3};

static void add_part(struct upload *w, uint32_t number, uint64_t size, struct upload_region *ret)
{
    assert_int_equal(upload_part_begin(w, number, size, ret), S3_OK);
    upload_part_end(w, ret, /* ok= */ true, digest, NULL, NULL);
}

/* Parts of equal size lie one behind the other in the order of their numbers, whatever the order they come
 * in. */
static void equal_parts_need_no_copying(void **state)
{
    static const uint32_t order[] = {4, 1, 3, 2};
    struct uploads *u = uploads_new(NULL);
    char id[UPLOAD_ID_SIZE];
    struct upload *w = new_upload(u, id);
    struct upload_region region;
    struct upload_part *parts;
    size_t n;
    (void)state;

    for (size_t i = 0; i < ARRAY_SIZE(order); i++)
        add_part(w, order[i], 8 * MIB, &region);
    add_part(w, 5, 17, &region);
    parts = upload_parts(w, &n);
    assert_int_equal(n, 5);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(parts[i].number, i + 1);
        assert_int_equal(parts[i].offset, i * 8 * MIB);
        assert_memory_equal(parts[i].md5, digest, sizeof digest);
    }
    free(parts);
    upload_unref(w);
    uploads_free(u);
}

/* Random parts, sizes, repetitions and failures: regions in use never overlap, and what counts is what ended
 * last. */
static void regions_never_overlap(void **state)
{
    enum { NUMBERS = 12, STEPS = 3000, RUNNING = 6 };
    struct uploads *u = uploads_new(NULL);
    char id[UPLOAD_ID_SIZE];
    struct upload *w = new_upload(u, id);
    struct upload_region running[RUNNING];
    bool busy[RUNNING] = {false};
    uint64_t expected[NUMBERS + 1] = {0}, random = 1;
    (void)state;

    for (int step = 0; step < STEPS; step++) {
        random = random * 6364136223846793005ull + 1442695040888963407ull;
        size_t slot = (random >> 33) % RUNNING;
        if (busy[slot]) {
            bool ok = (random >> 40) % 3 != 0;
            upload_part_end(w, &running[slot], ok, digest, NULL, NULL);
            if (ok)
                expected[running[slot].number] = running[slot].offset;
            busy[slot] = false;
        } else {
            uint32_t number = 1 + (uint32_t)((random >> 45) % NUMBERS);
            assert_int_equal(upload_part_begin(w, number, 1 + (random >> 50) % 4 * MIB, &running[slot]),
                             S3_OK);
            busy[slot] = true;
        }
        size_t n;
        struct upload_part *parts = upload_parts(w, &n);
        for (size_t i = 0; i < n; i++) {
            assert_int_equal(parts[i].offset, expected[parts[i].number]);
            for (size_t k = i + 1; k < n; k++)
                assert_true(parts[i].offset + parts[i].size <= parts[k].offset ||
                            parts[k].offset + parts[k].size <= parts[i].offset);
            for (size_t k = 0; k < RUNNING; k++)
                assert_true(!busy[k] || parts[i].offset + parts[i].size <= running[k].offset ||
                            running[k].offset + running[k].size <= parts[i].offset);
        }
        free(parts);
    }
    for (size_t k = 0; k < RUNNING; k++)
        if (busy[k])
            upload_part_end(w, &running[k], false, digest, NULL, NULL);
    upload_unref(w);
    uploads_free(u);
}

/* A part that fails leaves the older part of its number as it was. */
static void failed_parts_change_nothing(void **state)
{
    struct uploads *u = uploads_new(NULL);
    char id[UPLOAD_ID_SIZE];
    struct upload *w = new_upload(u, id);
    struct upload_region first, second;
    struct upload_part *parts;
    size_t n;
    (void)state;

    add_part(w, 1, MIB, &first);
    assert_int_equal(upload_part_begin(w, 1, MIB, &second), S3_OK);
    assert_true(second.offset >= UPLOAD_PART_NUMBER_MAX * MIB);
    upload_part_end(w, &second, /* ok= */ false, digest, NULL, NULL);
    assert_int_equal(upload_part_begin(w, 2, MIB, &second), S3_OK);
    upload_part_end(w, &second, /* ok= */ false, digest, NULL, NULL);
    parts = upload_parts(w, &n);
    assert_int_equal(n, 1);
    assert_int_equal(parts[0].offset, first.offset);
    free(parts);
    add_part(w, 2, MIB, &second);
    assert_int_equal(second.offset, MIB); /* its slot was free again */
    upload_unref(w);
    uploads_free(u);
}

/* A part's checksum counts with the part: a part that comes again brings its own, or none. */
static void checksums_belong_to_their_part(void **state)
{
    static const uint8_t first[4] = {1, 2, 3, 4}, second[4] = {5, 6, 7, 8};
    struct uploads *u = uploads_new(NULL);
    char id[UPLOAD_ID_SIZE];
    struct upload *w = new_upload(u, id);
    const struct {
        bool ok;
        const uint8_t *sum, *expected;
    } steps[] = {{true, first, first}, {false, second, first}, {true, second, second}, {true, NULL, NULL}};
    (void)state;

    assert_int_equal(upload_sums(w).kind, CHECKSUM_CRC32C);
    for (size_t i = 0; i < ARRAY_SIZE(steps); i++) {
        struct upload_region region;
        struct upload_part *parts;
        size_t n;

        assert_int_equal(upload_part_begin(w, 7, 100, &region), S3_OK);
        upload_part_end(w, &region, steps[i].ok, digest, steps[i].sum, NULL);
        parts = upload_parts(w, &n);
        assert_int_equal(n, 1);
        assert_int_equal(parts[0].has_sum, steps[i].expected != NULL);
        if (steps[i].expected)
            assert_memory_equal(parts[0].sum, steps[i].expected, 4);
        free(parts);
    }
    upload_unref(w);
    uploads_free(u);
}

/* Uploads are found by id, bucket and key together; a completed one is remembered, an aborted one is not. */
static void ids_belong_to_their_key(void **state)
{
    struct uploads *u = uploads_new(NULL);
    char id[UPLOAD_ID_SIZE], other[UPLOAD_ID_SIZE];
    struct upload_result done;
    struct upload *w = new_upload(u, id), *aborted = new_upload(u, other);
    struct upload_region region;
    (void)state;

    assert_string_not_equal(id, other);
    assert_null(uploads_find(u, slice_str(id), bucket, SLICE_LIT("b")));
    assert_null(uploads_find(u, slice_str(id), SLICE_LIT("b"), key));
    assert_null(uploads_find(u, SLICE_LIT("0"), bucket, key));
    assert_true(slice_eq_str(upload_content_type(w), "a/b"));
    assert_int_equal(upload_close(w), S3_OK);
    assert_int_equal(upload_close(w), S3_ERR_CONFLICT);
    assert_int_equal(upload_part_begin(w, 1, 1, &region), S3_ERR_NO_SUCH_UPLOAD);
    upload_reopen(w);
    assert_int_equal(upload_part_begin(w, 1, 1, &region), S3_OK);
    upload_part_end(w, &region, true, digest, NULL, NULL);
    assert_int_equal(upload_close(w), S3_OK);
    upload_finish(w, SLICE_LIT("the-etag"), SLICE_LIT("sha1 x-1"));
    upload_unref(w);
    assert_int_equal(upload_close(aborted), S3_OK);
    upload_finish(aborted, SLICE_NULL, SLICE_NULL);
    assert_int_equal(upload_close(aborted), S3_ERR_NO_SUCH_UPLOAD);
    upload_unref(aborted);
    assert_null(uploads_find(u, slice_str(id), bucket, key));
    uploads_completed(u, slice_str(id), bucket, key, &done);
    assert_string_equal(done.etag, "the-etag");
    assert_string_equal(done.checksum, "sha1 x-1");
    uploads_completed(u, slice_str(id), bucket, SLICE_LIT("b"), &done);
    assert_string_equal(done.etag, "");
    uploads_completed(u, slice_str(other), bucket, key, &done);
    assert_string_equal(done.etag, "");
    uploads_free(u);
}

struct closer {
    struct upload *upload;
    _Atomic bool closed;
};

static void *close_it(void *arg)
{
    struct closer *c = arg;

    assert_int_equal(upload_close(c->upload), S3_OK);
    c->closed = true;
    return NULL;
}

static void *give_up(void *arg)
{
    struct closer *c = arg;

    assert_int_equal(upload_close(c->upload), S3_ERR_CONFLICT);
    c->closed = true;
    return NULL;
}

/* A completion waits for what is being done with the file, and for no client of a part: that is told to stop,
 * counts for nothing, and writes no more. Fails without the wait in upload_close, and where that is for parts
 * that have begun. */
static void closing_waits_for_the_file(void **state)
{
    struct uploads *u = uploads_new(NULL);
    char id[UPLOAD_ID_SIZE];
    struct closer c = {new_upload(u, id), false};
    struct upload_region region, other;
    struct upload_part *parts;
    pthread_t thread;
    size_t n;
    (void)state;

    assert_int_equal(upload_part_begin(c.upload, 1, 1, &region), S3_OK);
    assert_int_equal(upload_part_begin(c.upload, 2, 1, &other), S3_OK);
    assert_true(upload_part_enter(c.upload, &region));
    assert_int_equal(pthread_create(&thread, NULL, close_it, &c), 0);
    while (upload_part_enter(c.upload, &other)) {
        upload_part_leave(c.upload);
        (void)usleep(1000);
    }
    assert_false(c.closed || upload_has_ended(c.upload));
    upload_part_leave(c.upload);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_true(c.closed);
    assert_int_equal(upload_part_end(c.upload, &region, true, digest, NULL, NULL), -ENOENT);
    assert_int_equal(upload_part_end(c.upload, &other, false, digest, NULL, NULL), 0);
    parts = upload_parts(c.upload, &n);
    assert_int_equal(n, 0);
    free(parts);
    upload_finish(c.upload, SLICE_NULL, SLICE_NULL);
    upload_unref(c.upload);
    uploads_free(u);
}

/* A part that an end has stopped comes no more when that end failed, as the file may have been cut under it;
 * it ends without a say about the slot, which is another part's by then. Fails where parts are stopped only
 * for as long as an end runs, and where the slot is free with them. */
static void a_stopped_part_stays_stopped(void **state)
{
    struct uploads *u = uploads_new(NULL);
    char id[UPLOAD_ID_SIZE];
    struct upload *w = new_upload(u, id);
    struct upload_region stale, again, third;
    (void)state;

    assert_int_equal(upload_part_begin(w, 1, 8 * MIB, &stale), S3_OK);
    assert_true(stale.is_slot);
    add_part(w, 1, 8 * MIB, &again); /* in its place, by another connection */
    assert_false(again.is_slot);
    assert_int_equal(upload_close(w), S3_OK);
    upload_lose_parts(w, 0);
    upload_reopen(w);
    assert_false(upload_part_enter(w, &stale));
    assert_int_equal(upload_part_begin(w, 1, 8 * MIB, &again), S3_OK);
    assert_true(again.is_slot && upload_part_enter(w, &again));
    assert_int_equal(upload_part_end(w, &stale, true, digest, NULL, NULL), -ENOENT);
    assert_int_equal(upload_part_begin(w, 1, 8 * MIB, &third), S3_OK);
    assert_false(third.is_slot);
    upload_part_leave(w);
    upload_part_end(w, &third, false, digest, NULL, NULL);
    assert_int_equal(upload_part_end(w, &again, true, digest, NULL, NULL), 0);
    upload_unref(w);
    uploads_free(u);
}

/* An end that failed has left the upload open: its part's disk is done, and then the upload ends. */
static void is_open_as_before(struct uploads *u, struct upload *w, struct upload_region *region)
{
    assert_false(upload_has_ended(w));
    upload_part_leave(w);
    upload_part_end(w, region, false, digest, NULL, NULL);
    assert_int_equal(upload_close(w), S3_OK);
    upload_finish(w, SLICE_NULL, SLICE_NULL);
    upload_unref(w);
    uploads_free(u);
}

/* A completion that is given up waits no longer for a disk, and leaves the upload open. Without the look in
 * upload_close it takes a minute, and is a conflict. */
static void closing_is_given_up(void **state)
{
    struct uploads *u = uploads_new(NULL);
    char id[UPLOAD_ID_SIZE];
    struct upload *w = new_upload(u, id);
    struct upload_region region;
    const atomic_bool now = true;
    struct quit q = {.now = &now};
    (void)state;

    assert_int_equal(upload_part_begin(w, 1, 1, &region), S3_OK);
    assert_true(upload_part_enter(w, &region));
    quit_enter(&q);
    assert_int_equal(upload_close(w), S3_ERR_UNAVAILABLE);
    quit_leave(&q);
    is_open_as_before(u, w, &region);
}

/* An abort waits for no part, and what that still does harms nobody: it is told to stop, and the memory goes
 * with it. Fails where an abort waits as a completion does. */
static void aborting_waits_for_nobody(void **state)
{
    struct uploads *u = uploads_new(NULL);
    char id[UPLOAD_ID_SIZE], other[UPLOAD_ID_SIZE];
    struct upload *w = new_upload(u, id), *completing = new_upload(u, other);
    struct upload_region region, next;
    (void)state;

    assert_int_equal(upload_part_begin(w, 1, 1, &region), S3_OK);
    assert_int_equal(upload_abort(w), S3_OK);
    assert_null(uploads_find(u, slice_str(id), bucket, key));
    assert_true(upload_has_ended(w) && !upload_part_enter(w, &region));
    assert_int_equal(upload_part_begin(w, 2, 1, &next), S3_ERR_NO_SUCH_UPLOAD);
    assert_int_equal(upload_abort(w), S3_ERR_NO_SUCH_UPLOAD);
    assert_int_equal(upload_close(w), S3_ERR_NO_SUCH_UPLOAD);
    upload_part_end(w, &region, true, digest, NULL, NULL);
    upload_unref(w);
    assert_int_equal(upload_close(completing), S3_OK);
    assert_int_equal(upload_abort(completing), S3_ERR_CONFLICT);
    upload_reopen(completing);
    assert_int_equal(upload_abort(completing), S3_OK);
    upload_unref(completing);
    uploads_free(u);
}

/* Who copies to a part is told by an end of its upload, and by no other's: that its parts were stopped, then
 * that it is gone; also of an upload that is elsewhere, and of one whose bucket goes. (Fails without
 * uploads_stop_copies_locked in upload_close, in upload_unlink_locked, or in uploads_drop_bucket.) */
static void copies_hear_of_the_end(void **state)
{
    struct uploads *u = uploads_new(NULL);
    char id[UPLOAD_ID_SIZE], other[UPLOAD_ID_SIZE];
    struct upload *w = new_upload(u, id), *another = new_upload(u, other);
    const struct slice there = SLICE_LIT("11223344556677889900112233445566"),
                       bucket_there = SLICE_LIT("there");
    struct upload_watch first, second, third, fourth;
    (void)state;

    uploads_watch(u, bucket, slice_str(id), &first);
    uploads_watch(u, bucket, slice_str(other), &second);
    assert_int_equal(upload_close(w), S3_OK);
    assert_true(atomic_load(&first.stop));
    upload_reopen(w);
    assert_int_equal(uploads_unwatch(u, &first), S3_ERR_UNAVAILABLE);
    uploads_watch(u, bucket, slice_str(id), &first);
    assert_false(atomic_load(&first.stop));
    assert_int_equal(upload_abort(w), S3_OK);
    assert_true(atomic_load(&first.stop));
    assert_int_equal(uploads_unwatch(u, &first), S3_ERR_NO_SUCH_UPLOAD);
    assert_false(atomic_load(&second.stop));
    uploads_watch(u, bucket_there, there, &third);
    uploads_watch(u, bucket_there, there, &fourth);
    uploads_tell_end(u, there);
    assert_int_equal(uploads_unwatch(u, &third), S3_ERR_NO_SUCH_UPLOAD);
    assert_int_equal(uploads_unwatch(u, &fourth), S3_ERR_NO_SUCH_UPLOAD);
    uploads_watch(u, bucket_there, there, &third);
    uploads_drop_bucket(u, SLICE_LIT("ther"));
    assert_false(atomic_load(&third.stop));
    uploads_drop_bucket(u, bucket_there);
    assert_int_equal(uploads_unwatch(u, &third), S3_ERR_NO_SUCH_UPLOAD);
    assert_int_equal(uploads_unwatch(u, &second), S3_OK);
    upload_unref(w);
    upload_unref(another);
    uploads_free(u);
}

static void count_one(void *arg, struct slice k, const char *id, uint64_t created_ns)
{
    (void)k, (void)id, (void)created_ns;
    ++*(size_t *)arg;
}

/* A bucket that is removed takes its uploads with it, also where a part still comes, and no others. */
static void uploads_end_with_their_bucket(void **state)
{
    struct uploads *u = uploads_new(NULL);
    char id[UPLOAD_ID_SIZE], other[UPLOAD_ID_SIZE];
    struct upload *w = new_upload(u, id), *idle = new_upload(u, other);
    struct upload_region region;
    size_t n = 0;
    (void)state;

    upload_unref(idle);
    assert_int_equal(upload_part_begin(w, 1, 1, &region), S3_OK);
    uploads_drop_bucket(u, SLICE_LIT("buck"));
    uploads_each(u, bucket, count_one, &n);
    assert_int_equal(n, 2);
    uploads_drop_bucket(u, bucket);
    uploads_each(u, bucket, count_one, &n);
    assert_int_equal(n, 2);
    assert_null(uploads_find(u, slice_str(other), bucket, key));
    assert_true(upload_has_ended(w));
    upload_part_end(w, &region, true, digest, NULL, NULL);
    upload_unref(w);
    uploads_free(u);
}

/* One that is being completed meanwhile is left alone, and goes when that has failed: nobody could end it any
 * more. */
static void a_failed_completion_of_a_removed_bucket(void **state)
{
    struct uploads *u = uploads_new(NULL);
    char id[UPLOAD_ID_SIZE];
    struct upload *w = new_upload(u, id);
    size_t n = 0;
    (void)state;

    assert_int_equal(upload_close(w), S3_OK);
    uploads_drop_bucket(u, bucket);
    uploads_each(u, bucket, count_one, &n);
    assert_int_equal(n, 1);
    upload_reopen(w);
    uploads_each(u, bucket, count_one, &n);
    assert_int_equal(n, 1);
    assert_int_equal(upload_close(w), S3_ERR_NO_SUCH_UPLOAD);
    upload_unref(w);
    uploads_free(u);
}

/* A disk that never answers keeps nobody for ever: the upload is open again, and can be ended when it has. */
static void closing_gives_up(void **state)
{
    struct uploads *u;
    struct upload_region region;
    struct upload *w;
    char id[UPLOAD_ID_SIZE];
    (void)state;

    clock_sys_start(1, START_NS);
    u = uploads_new(NULL);
    w = new_upload(u, id);
    assert_int_equal(upload_part_begin(w, 1, 1, &region), S3_OK);
    assert_true(upload_part_enter(w, &region));
    struct closer c = {w, false};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, give_up, &c), 0);
    while (upload_part_enter(w, &region)) {
        upload_part_leave(w);
        (void)usleep(1000);
    }
    clock_sys_advance(61 * 1000000000ull);
    for (int i = 0; i < 6000 && !c.closed; i++)
        (void)usleep(10000);
    assert_true(c.closed); /* else the thread waits for ever */
    assert_int_equal(pthread_join(thread, NULL), 0);
    is_open_as_before(u, w, &region);
    clock_sys_stop();
}

/* Setting the wall clock makes no upload old. */
static void the_wall_clock_forgets_nothing(void **state)
{
    struct uploads *u;
    char first[UPLOAD_ID_SIZE], second[UPLOAD_ID_SIZE];
    struct upload *w;
    (void)state;

    clock_sys_start(1, START_NS);
    u = uploads_new(NULL);
    upload_unref(new_upload(u, first));
    clock_sys_set_real(START_NS + 1000 * UPLOADS_IDLE_S * 1000000000ull);
    upload_unref(new_upload(u, second));
    w = uploads_find(u, slice_str(first), bucket, key);
    assert_non_null(w);
    upload_unref(w);
    uploads_free(u);
    clock_sys_stop();
}

/* What the disk did not take is never believed to be there, also where the kernel, which told it once, finds
 * nothing wrong any more. (Seen to fail without `fault`.) */
static void a_sync_that_failed_fails_again(void **state)
{
    FILE *file = tmpfile();
    struct uploads *u = uploads_new(NULL);
    char id[UPLOAD_ID_SIZE];
    struct upload *w = new_upload(u, id);
    (void)state;

    assert_non_null(file);
    upload_sink(w)->fd = fileno(file);
    assert_int_equal(upload_close(w), S3_OK);
    assert_int_equal(upload_sync(w), 0);
    fault_sys_start();
    fault_sys_arm(FAULT_FDATASYNC, 1, EIO, FAULT_ONCE);
    assert_int_equal(upload_sync(w), -EIO);
    assert_true(fault_sys_hit());
    fault_sys_stop();
    upload_reopen(w);
    assert_int_equal(upload_close(w), S3_OK);
    assert_int_equal(upload_sync(w), -EIO);
    upload_reopen(w);
    upload_sink(w)->fd = -1;
    upload_unref(w);
    uploads_free(u);
    (void)fclose(file);
}

/* A file that was cut has none of the parts behind its end, nor one that it has in part: their slots are free
 * for new ones. (Seen to be listed all the same, with a hole for their bytes, without upload_lose_parts.) */
static void parts_behind_the_cut_are_gone(void **state)
{
    static const uint32_t left[] = {1, 2, 5};
    struct uploads *u = uploads_new(NULL);
    char id[UPLOAD_ID_SIZE];
    struct upload *w = new_upload(u, id);
    struct upload_region region;
    struct upload_part *parts;
    size_t n;
    (void)state;

    for (uint32_t i = 1; i <= 5; i++)
        add_part(w, i, 8 * MIB, &region);
    add_part(w, 1, MIB, &region); /* far behind the slots */
    add_part(w, 6, 8 * MIB, &region);
    assert_int_equal(upload_close(w), S3_OK);
    upload_lose_parts(w, UINT64_MAX);
    parts = upload_parts(w, &n);
    assert_int_equal(n, 6);
    free(parts);
    upload_lose_parts(w, 24 * MIB - 1);
    upload_reopen(w);
    parts = upload_parts(w, &n);
    assert_int_equal(n, 1);
    assert_int_equal(parts[0].number, 2);
    free(parts);
    add_part(w, 5, 8 * MIB, &region);
    assert_int_equal(region.offset, 32 * MIB);
    add_part(w, 1, 8 * MIB, &region);
    assert_int_equal(region.offset, 0);
    parts = upload_parts(w, &n);
    assert_int_equal(n, ARRAY_SIZE(left));
    for (size_t i = 0; i < n; i++)
        assert_int_equal(parts[i].number, left[i]);
    free(parts);
    upload_unref(w);
    uploads_free(u);
}

/* Where the file does not say how long it is, the parts that were listed stay: no commit cuts them. (Seen to
 * be lost, with their records, where that counted as a file without bytes.) */
static void parts_before_the_cut_stay(void **state)
{
    struct uploads *u = uploads_new(NULL);
    char id[UPLOAD_ID_SIZE];
    struct upload *w = new_upload(u, id);
    struct upload_region region;
    struct upload_part *parts;
    size_t n;
    (void)state;

    for (uint32_t i = 1; i <= 3; i++)
        add_part(w, i, 8 * MIB, &region);
    assert_int_equal(upload_close(w), S3_OK);
    fault_sys_start();
    fault_sys_arm(FAULT_FSTAT, 1, EIO, FAULT_ONCE);
    upload_lose_cut(w, 16 * MIB);
    assert_true(fault_sys_hit());
    fault_sys_stop();
    upload_reopen(w);
    parts = upload_parts(w, &n);
    assert_int_equal(n, 2);
    assert_true(parts[0].number == 1 && parts[1].number == 2);
    free(parts);
    upload_unref(w);
    uploads_free(u);
}

static size_t count(struct uploads *u)
{
    size_t n = 0;

    uploads_each(u, bucket, count_one, &n);
    return n;
}

/* An upload that nobody touched for its bucket's upload_expiry is forgotten when the next one begins, and
 * without one, too; one in use is not. */
static void idle_uploads_are_forgotten(void **state)
{
    struct uploads *u;
    char first[UPLOAD_ID_SIZE], second[UPLOAD_ID_SIZE], third[UPLOAD_ID_SIZE];
    struct upload *held;
    (void)state;

    clock_sys_start(1, START_NS);
    u = uploads_new(NULL);
    upload_unref(new_upload(u, first));
    held = new_upload(u, second);
    clock_sys_advance((UPLOADS_IDLE_S + 1) * 1000000000ull);
    upload_unref(new_upload(u, third));
    assert_null(uploads_find(u, slice_str(first), bucket, key));
    for (size_t i = 0; i < 2; i++) {
        struct upload *w = uploads_find(u, slice_str(i ? third : second), bucket, key);

        assert_non_null(w);
        upload_unref(w);
    }
    uploads_drop_idle(u);
    assert_int_equal(count(u), 2);
    clock_sys_advance((UPLOADS_IDLE_S + 1) * 1000000000ull);
    uploads_drop_idle(u);
    assert_int_equal(count(u), 1);
    upload_unref(held);
    uploads_free(u);
    clock_sys_stop();
}

/* Of an upload that was found again the time counts from its last part, also where the machine has run for
 * less long than that; a clock that was set back makes it new. (Fails where the time begins with the node.)
 */
static void time_goes_on_over_a_restart(void **state)
{
    const uint64_t day_ns = 86400000000000ull;
    (void)state;

    assert_int_equal(uploads_touched_ns(9 * day_ns, START_NS + day_ns, START_NS), 8 * (int64_t)day_ns);
    assert_int_equal(uploads_touched_ns(5, START_NS + day_ns, START_NS), 5 - (int64_t)day_ns);
    assert_int_equal(uploads_touched_ns(5, START_NS - day_ns, START_NS), 5);
}

/* There is a stated maximum of open uploads. */
static void uploads_are_bounded(void **state)
{
    struct uploads *u = uploads_new(NULL);
    char id[UPLOAD_ID_SIZE];
    struct sink sink;
    (void)state;

    for (size_t i = 0; i < UPLOADS_MAX; i++)
        upload_unref(new_upload(u, id));
    sink_init(&sink, NULL);
    sink.handle = 1;
    sink.fd = 0;
    assert_int_equal(uploads_add(u, bucket, key, &sums, /* opaque= */ false, &sink, id),
                     S3_ERR_TOO_MANY_UPLOADS);
    sink.handle = 0;
    sink_fini(&sink);
    uploads_free(u);
}

/* There is a stated maximum of parts, of all uploads together: what is above it is refused, a part that is
 * there may be sent again, and an upload that ends makes room. (Fails where parts are not counted.) */
static void parts_are_bounded(void **state)
{
    enum { N = UPLOADS_PARTS_MAX / UPLOAD_PART_NUMBER_MAX };
    struct uploads *u = uploads_new(NULL);
    struct upload *w[N + 1];
    char id[UPLOAD_ID_SIZE];
    struct upload_region region;
    (void)state;

    for (size_t i = 0; i <= N; i++)
        w[i] = new_upload(u, id);
    for (size_t i = 0; i < N; i++)
        for (uint32_t n = 1; n <= UPLOAD_PART_NUMBER_MAX; n++)
            add_part(w[i], n, 4096, &region);
    assert_int_equal(upload_part_begin(w[N], 1, 4096, &region), S3_ERR_TOO_MANY_UPLOADS);
    add_part(w[0], 7, 4096, &region);
    assert_int_equal(upload_abort(w[0]), S3_OK);
    add_part(w[N], 1, 4096, &region);
    for (size_t i = 0; i <= N; i++)
        upload_unref(w[i]);
    uploads_free(u);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_parts_need_no_copying),
        cmocka_unit_test(regions_never_overlap),
        cmocka_unit_test(failed_parts_change_nothing),
        cmocka_unit_test(ids_belong_to_their_key),
        cmocka_unit_test(closing_waits_for_the_file),
        cmocka_unit_test(a_stopped_part_stays_stopped),
        cmocka_unit_test(closing_is_given_up),
        cmocka_unit_test(aborting_waits_for_nobody),
        cmocka_unit_test(copies_hear_of_the_end),
        cmocka_unit_test(uploads_end_with_their_bucket),
        cmocka_unit_test(a_failed_completion_of_a_removed_bucket),
        cmocka_unit_test(a_sync_that_failed_fails_again),
        cmocka_unit_test(parts_behind_the_cut_are_gone),
        cmocka_unit_test(parts_before_the_cut_stay),
        cmocka_unit_test(idle_uploads_are_forgotten),
        cmocka_unit_test(time_goes_on_over_a_restart),
        cmocka_unit_test(uploads_are_bounded),
        cmocka_unit_test(parts_are_bounded),
        cmocka_unit_test(checksums_belong_to_their_part),
        cmocka_unit_test(closing_gives_up),
        cmocka_unit_test(the_wall_clock_forgets_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

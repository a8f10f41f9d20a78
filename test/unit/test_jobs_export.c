/* layer: jobs */
/* threaded */
/* Exports: objects that are carried to an origin out of the node's own files. */
#include "jobs/carry.h"
#include "jobs/jobs_internal.h"
#include "jobs_common.h"

#include <glob.h>
#include <unistd.h>

#define PIECE (1 * MIB)
#define LARGE (36 * MIB) /* more than half of the fixture's disk */

static bool is_final(struct fixture *f, uint64_t id)
{
    json_t *o = get(f, id);
    bool final = json_is_true(json_object_get(o, "final"));
    json_decref(o);
    return final;
}

/* wait_for, as long as many megabytes may take on a machine with other things to do. */
static void wait_long(struct fixture *f, uint64_t id, const char *state)
{
    for (int i = 0; i < 60000 && !is_final(f, id); i++)
        sys->sleep_ns(5000000);
    assert_true(is_in(f, id, state));
}

static void piece_put(char *p, uint64_t seed, uint64_t at)
{
    for (size_t i = 0; i < PIECE; i += sizeof(uint64_t)) {
        uint64_t word = (seed << 32) + at + i;
        memcpy(p + i, &word, sizeof(word));
    }
}

static void put_scratch(struct fixture *f, const char *bucket, const char *key, uint64_t size)
{
    struct wire_put_open_req open_req = {
        .bucket = slice_str(bucket), .key = slice_str(key), .size = size, .via = WIRE_VIA_API};
    struct wire_put_open_rep to;
    struct err e = {0};
    char *p = malloc(PIECE);
    assert_non_null(p);
    if (object_put_open(f->session, &open_req, f->arena, &to, &e) < 0)
        fail_msg("%s", e.text);
    for (uint64_t at = 0; at < size; at += PIECE) {
        struct wire_put_write_req w = {
            .handle = to.handle, .offset = at, .data = slice_of(p, MIN(PIECE, size - at))};
        struct wire_put_write_rep written;
        piece_put(p, 1, at);
        assert_int_equal(object_put_write(f->session, &w, f->arena, &written, &e), 0);
    }
    struct wire_put_commit_req commit = {.handle = to.handle, .size = size};
    struct wire_put_commit_rep done;
    if (object_put_commit(f->session, &commit, f->arena, &done, &e) < 0)
        fail_msg("%s", e.text);
    free(p);
}

static void assert_file(struct fixture *f, const char *dir, const char *name, uint64_t size)
{
    const char *path = arena_printf(f->arena, "%s/%s", dir, name);
    char *wanted = malloc(PIECE), *found = malloc(PIECE);
    struct stat st;
    assert_true(wanted && found);
    int fd = open(path, O_RDONLY);
    assert_true(fd >= 0);
    assert_int_equal(fstat(fd, &st), 0);
    assert_int_equal(st.st_size, size);
    for (uint64_t at = 0; at < size; at += PIECE) {
        size_t n = MIN(PIECE, size - at);
        piece_put(wanted, 1, at);
        assert_int_equal(sys_pread_all(fd, found, n, at), 0);
        assert_memory_equal(found, wanted, n);
    }
    (void)close(fd);
    free(wanted);
    free(found);
}

static const char *make_dir(struct fixture *f, const char *name)
{
    const char *path = arena_printf(f->arena, "%s/%s", f->dir, name);
    assert_int_equal(mkdir(path, 0755), 0);
    return path;
}

static uint64_t start_export(struct fixture *f, const char *from, const char *dir, const char *spec)
{
    struct wire_job_start_req req = {.kind = SLICE_LIT("export"),
                                     .source = slice_str(from),
                                     .target = slice_str(arena_printf(f->arena, "file://%s", dir)),
                                     .spec = slice_str(spec)};
    struct wire_job_start_rep rep;
    struct err e = {0};
    if (object_job_start(f->session, &req, f->arena, &rep, &e) < 0)
        fail_msg("%s", e.text);
    return rep.id;
}

static void add_scratch(struct fixture *f, const char *name)
{
    struct wire_bucket_create_req req = {.name = slice_str(name)};
    struct wire_bucket_create_rep rep;
    assert_int_equal(object_bucket_create(f->session, &req, f->arena, &rep, NULL), 0);
}

/* What lies in a file of this node is exported out of that file: the disks need no room for it, and nothing
 * is written to them. (With carry_can in carry.c always false there is no room for the large one.) */
static void test_exports_need_no_room(void **state)
{
    struct fixture *f = *state;
    struct store_disk_status before, after;
    const char *out = make_dir(f, "out");
    add_scratch(f, "own");
    put_scratch(f, "own", "large", LARGE);
    put_scratch(f, "own", "small", 3 * PIECE / 2);
    put_scratch(f, "own", "none", 0);
    assert_int_equal(store_disk_status(f->store, 0, &before), 0);
    uint64_t id = start_export(f, "own/", out, "");
    wait_long(f, id, "done");
    assert_int_equal(number(f, id, "done_objects"), 3);
    assert_file(f, out, "large", LARGE);
    assert_file(f, out, "small", 3 * PIECE / 2);
    assert_file(f, out, "none", 0);
    assert_int_equal(store_disk_status(f->store, 0, &after), 0);
    assert_int_equal(after.extents, before.extents);
}

/* Objects that are fetched while they are exported arrive whole, those of one request and larger ones. */
static void test_cold_objects_arrive(void **state)
{
    struct fixture *f = *state;
    const char *out = make_dir(f, "out");
    static const uint64_t sizes[] = {1, PIECE, 9 * PIECE + 5};
    char *p = malloc(PIECE);
    assert_non_null(p);
    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
        int fd = open(arena_printf(f->arena, "%s/%zu", f->origin, i), O_WRONLY | O_CREAT, 0644);
        assert_true(fd >= 0);
        for (uint64_t at = 0; at < sizes[i]; at += PIECE) {
            piece_put(p, 1, at);
            assert_int_equal(sys_pwrite_all(fd, p, MIN(PIECE, sizes[i] - at), at), 0);
        }
        (void)close(fd);
    }
    free(p);
    uint64_t id = start_export(f, "data/", out, "");
    wait_long(f, id, "done");
    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++)
        assert_file(f, out, arena_printf(f->arena, "%zu", i), sizes[i]);
    id = start_export(f, "data/", out, "verify=read\n");
    wait_long(f, id, "done");
    assert_int_equal(number(f, id, "skipped_objects"), ARRAY_SIZE(sizes));
}

/* A cached file that lost its bytes is no failure of an export: they are fetched again. (Without the second
 * way in pour the object fails.) */
static void test_a_short_file_is_fetched_again(void **state)
{
    struct fixture *f = *state;
    const char *out = make_dir(f, "out");
    uint64_t id = 0;
    glob_t found;
    write_objects(f, 1, 3000);
    assert_int_equal(start(f, "prefetch", "", &id), 0);
    wait_long(f, id, "done");
    assert_int_equal(glob(arena_printf(f->arena, "%s/extents/*/*", f->disk), 0, NULL, &found), 0);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        struct stat st;
        if (stat(found.gl_pathv[i], &st) == 0 && st.st_size == 3000)
            assert_int_equal(truncate(found.gl_pathv[i], 10), 0);
    }
    globfree(&found);
    id = start_export(f, "data/", out, "");
    wait_long(f, id, "done");
    struct stat st;
    assert_int_equal(stat(arena_printf(f->arena, "%s/k000", out), &st), 0);
    assert_int_equal(st.st_size, 3000);
}

/* An export that is stopped in the middle of an object leaves none of it, and is done when it goes on. */
static void test_a_stopped_export_leaves_nothing(void **state)
{
    struct fixture *f = *state;
    const char *out = make_dir(f, "out");
    add_scratch(f, "own");
    put_scratch(f, "own", "large", LARGE);
    uint64_t id = start_export(f, "own/", out, "rate=1000\n");
    for (int i = 0; i < 60000 && is_in(f, id, "queued"); i++)
        sys->sleep_ns(1000000);
    close_node(f);
    assert_int_not_equal(access(arena_printf(f->arena, "%s/large", out), F_OK), 0);
    open_node(f);
    assert_int_equal(change(f, id, "cancel"), 0);
    id = start_export(f, "own/", out, "");
    wait_long(f, id, "done");
    assert_file(f, out, "large", LARGE);
}

/* What a carried object asks of its job. */
struct asked {
    _Atomic unsigned takes, taken, gives, given;
    _Atomic uint64_t moved, most; /* bytes, and after how many the upload is stopped */
};

static int on_move(void *arg, uint64_t n)
{
    struct asked *x = arg;
    return atomic_fetch_add(&x->moved, n) + n > atomic_load(&x->most) ? -ECANCELED : 0;
}

static int on_take_requests(void *arg, unsigned n)
{
    struct asked *x = arg;
    (void)atomic_fetch_add(&x->takes, 1);
    (void)atomic_fetch_add(&x->taken, n);
    return 0;
}

static void on_give_requests(void *arg, unsigned n)
{
    struct asked *x = arg;
    assert_true(atomic_fetch_add(&x->given, n) + n <= atomic_load(&x->taken));
    (void)atomic_fetch_add(&x->gives, 1);
}

static int carry_one(struct fixture *f, const char *dir, bool sends_parts, struct asked *x)
{
    char guest[BUCKET_GUEST_NAME_SIZE];
    bool elsewhere;
    struct err e = {0};
    struct digest_sums sums;
    struct wire_open_req open_req = {
        .bucket = SLICE_LIT("own"), .key = SLICE_LIT("large"), .via = WIRE_VIA_API};
    struct wire_open_rep from;
    if (object_guest_open(f->service, "export", slice_str(arena_printf(f->arena, "origin=file://%s\n", dir)),
                          /* probe= */ false, guest, &e) < 0)
        fail_msg("%s", e.text);
    assert_int_equal(object_open(f->session, &open_req, f->arena, &from, &e), 0);
    struct kind_work w = {.session = f->session,
                          .target_bucket = slice_str(guest),
                          .to_origin = true,
                          .part_bytes = 5 * MIB,
                          .sums = DIGEST_OF_PARTS | DIGEST_SHA256_OF_ALL,
                          .arena = f->arena,
                          .move = on_move,
                          .take_requests = on_take_requests,
                          .give_requests = on_give_requests,
                          .sends_parts = sends_parts,
                          .arg = x};
    assert_true(carry_can(&w, &from));
    int r = carry(&w, &from, SLICE_LIT("large"), SLICE_NULL, SLICE_NULL, &sums, &elsewhere, &e);
    struct wire_close_req close_req = {.handle = from.handle};
    struct wire_close_rep closed;
    assert_int_equal(object_close(f->session, &close_req, f->arena, &closed, NULL), 0);
    object_guest_close(f->service, guest);
    return r;
}

/* An object that leaves in several parts at a time counts as so many of its job's, in all that is given back
 * at the end, one after the other as fewer are left; also where it fails. One that leaves in one counts as it
 * is. (Without give_requests in moved_on it is one step; without that in end_upload a job whose objects fail
 * comes to a stop.) */
static void test_parts_count_as_requests(void **state)
{
    struct fixture *f = *state;
    const char *out = make_dir(f, "out");
    add_scratch(f, "own");
    put_scratch(f, "own", "large", LARGE);
    struct asked whole = {.most = UINT64_MAX}, cut = {.most = 10 * MIB}, single = {.most = UINT64_MAX};
    assert_int_equal(carry_one(f, out, /* sends_parts= */ true, &whole), 0);
    assert_int_equal(whole.takes, 1);
    assert_int_equal(whole.taken, 8);
    assert_int_equal(whole.given, 8);
    assert_int_equal(whole.gives, 8);
    assert_file(f, out, "large", LARGE);
    assert_int_equal(carry_one(f, out, /* sends_parts= */ true, &cut), -ECANCELED);
    assert_int_equal(cut.taken, 8);
    assert_int_equal(cut.given, 8);
    assert_in_range(cut.gives, 1, 4);
    assert_int_equal(carry_one(f, out, /* sends_parts= */ false, &single), 0);
    assert_int_equal(single.takes + single.gives, 0);
}

/* Records of the control store that begin so. */
static unsigned count_records(struct fixture *f, const char *head)
{
    _cleanup_buf_ struct buf to = BUF_INIT(64);
    assert_int_equal(kv_prefix_end(slice_str(head), &to), 0);
    struct kv_iter *it = kv_iter_new(f->kv, slice_str(head), buf_view(&to));
    struct slice k, v;
    unsigned n = 0;
    while (kv_iter_next(it, &k, &v, NULL) == 0)
        n++;
    kv_iter_free(it);
    return n;
}

#define LONG_BYTES 801

/* Exports the newest hundred of 103 objects, of which one fails, for a directory is in its place: *ret_taken.
 */
static uint64_t export_long_names(struct fixture *f, const char *dir, char folder[LONG_BYTES],
                                  const char **ret_taken)
{
    struct arena *a = arena_new(MIB);
    add_bucket(f, "own", "");
    memset(folder, 'd', LONG_BYTES);
    for (size_t i = 200; i < LONG_BYTES; i += 200)
        folder[i - 1] = '/';
    folder[LONG_BYTES - 1] = '\0';
    for (unsigned i = 0; i < 103; i++, arena_clear(a))
        put_object(f, a, "own", arena_printf(a, "%sk%03u", folder, i), "text");
    arena_free(a);
    *ret_taken = make_dir(f, "exported/k050");
    uint64_t id = start_export(f, arena_printf(f->arena, "own/%s", folder), dir, "newest=100\n");
    wait_long(f, id, "partly failed");
    return id;
}

/* The newest hundred have names that are together longer than a record: they are chosen, and still are after
 * a restart, and nothing of it stays when all are done. (With the names in the record the job fails, "its
 * record is too long"; without load_choice in jobs.c the retry leaves out what had failed.) */
static void test_a_choice_of_long_names(void **state)
{
    struct fixture *f = *state;
    const char *dir = make_dir(f, "exported"), *taken;
    char folder[LONG_BYTES];
    uint64_t id = export_long_names(f, dir, folder, &taken);
    assert_int_equal(number(f, id, "total_objects"), 100);
    assert_int_equal(number(f, id, "failed_objects"), 1);
    assert_int_equal(count_records(f, "j/c/"), 100);
    json_t *o = get(f, id);
    assert_int_equal(json_array_size(json_object_get(o, "options")), 1);
    json_decref(o);
    close_node(f);
    open_node(f);
    lock_take(&f->jobs->lock);
    const struct job *job = jobs_find_locked(f->jobs, id);
    size_t n = job->record.spec.chosen.n, n_long = 0;
    for (size_t i = 0; i < n; i++)
        n_long += strlen(job->record.spec.chosen.v[i]) == strlen(folder) + 4;
    lock_drop(&f->jobs->lock);
    assert_true(n == 100 && n_long == 100);
    assert_int_equal(rmdir(taken), 0);
    assert_int_equal(change(f, id, "retry"), 0);
    wait_long(f, id, "done");
    assert_int_equal(number(f, id, "done_objects"), 100);
    assert_int_equal(count_records(f, "j/c/"), 0);
    for (unsigned i = 0; i < 103; i++)
        assert_int_equal(access(arena_printf(f->arena, "%s/k%03u", dir, i), F_OK), i < 3 ? -1 : 0);
}

/* What a count chose goes when another one, after it, chose nothing, or what the record has room for: a
 * restart brings back the last choice, and no earlier one. (Where put_choice in jobs.c is only for what is
 * apart the hundred names are back.) */
static void test_a_later_count_chooses_anew(void **state)
{
    struct fixture *f = *state;
    char folder[LONG_BYTES];
    const char *dir = make_dir(f, "exported"), *taken;
    uint64_t id = export_long_names(f, dir, folder, &taken);
    for (size_t left = 2; left-- > 0;) {
        struct err e = {0};
        lock_take(&f->jobs->lock);
        struct job *job = jobs_find_locked(f->jobs, id);
        struct option_list *l = &job->record.spec.chosen;
        while (l->n > left)
            free(l->v[--l->n]);
        job->has_choice = false;
        int r = jobs_commit_locked(f->jobs, job, NULL, &e);
        lock_drop(&f->jobs->lock);
        assert_int_equal(r, 0);
        assert_int_equal(count_records(f, "j/c/"), 0);
        close_node(f);
        open_node(f);
        lock_take(&f->jobs->lock);
        size_t n = jobs_find_locked(f->jobs, id)->record.spec.chosen.n;
        lock_drop(&f->jobs->lock);
        assert_int_equal(n, left);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_exports_need_no_room, setup, teardown),
        cmocka_unit_test_setup_teardown(test_cold_objects_arrive, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_short_file_is_fetched_again, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_stopped_export_leaves_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(test_parts_count_as_requests, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_choice_of_long_names, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_later_count_chooses_anew, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* layer: object */
/* threaded */
/*
 * Scratch buckets across restarts, faults and settling: a model knows what was acknowledged.
 *
 * Run with FOREBAY_TEST_SEEDS=N for more seeds. Seen to fail without the writing record in scratch_create
 * (files are swept), and without the lease test in settling (bytes written through kept descriptors are not
 * seen).
 */
#include "scratch_service.h"

#include "support/fault_sys.h"
#include "support/seeds.h"

#include <stdlib.h>

#define ROOT      1
#define NAMES     6
#define STEPS     80
#define SETTLE_NS 120000000000ull
#define TEXT_MAX  64
#define SWEEP_MAX 400

static uint64_t random_state;

static uint64_t below(uint64_t n)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state % n;
}

static int64_t status_number(struct fixture *f, const char *name)
{
    struct wire_status_req req = {0};
    struct wire_status_rep rep;
    arena_clear(f->arena);
    assert_int_equal(object_status(f->session, &req, f->arena, &rep, &f->e), 0);
    char *text = arena_printf(f->arena, "\"%s\": ", name);
    ssize_t at = slice_find_slice(rep.json, slice_str(text));
    assert_true(at >= 0);
    return atoll(rep.json.p + at + strlen(text));
}

/* Waits until nothing is unsettled any more. */
static bool wait_settled(struct fixture *f)
{
    uint64_t end_ns = sys->mono_ns() + SETTLE_NS;
    while (status_number(f, "unsettled_files") > 0) {
        if (sys->mono_ns() > end_ns)
            return false;
        sys->sleep_ns(20000000);
    }
    return true;
}

/* ---- settling ---- */

static bool no_problem(const struct store_check_report *so_far, const char *problem, void *arg)
{
    (void)so_far, (void)arg;
    if (problem)
        fail_msg("%s", problem);
    return true;
}

/* Files that nobody writes any more are sealed: a restart has nothing to do for them and the store's check
 * verifies them. Opened for writing they are unsettled again, and what is written is there after kill -9. */
static void test_files_are_settled(void **state)
{
    struct fixture *f = *state;
    struct wire_tree_open_rep o;
    struct wire_inode x;
    uint64_t ino = write_file(f, ROOT, "a", "by mount");
    assert_int_equal(put(f, "b", "by key", NULL), 0);
    assert_int_equal(set_size(f, ino, 2, NULL), 0);
    struct wire_tree_create_rep empty;
    assert_int_equal(create_file(f, ROOT, "empty", WIRE_WRITE, &empty), 0);
    assert_int_equal(close_handle(f, empty.handle), 0);
    assert_true(wait_settled(f));
    restart(f);
    assert_int_equal(status_number(f, "unsettled_files"), 0);
    struct store_check_report report;
    assert_int_equal(store_check(f->store, /* repair= */ false, no_problem, NULL, &report, &f->e), 0);
    assert_int_equal(report.hard_extents, 2);
    assert_int_equal(report.hard_bad, 0);
    assert_file(f, ino, "by");
    assert_string_equal(get(f, "b"), "by key");
    assert_int_equal(open_ino(f, ino, WIRE_WRITE, &o), 0);
    assert_int_equal(status_number(f, "unsettled_files"), 1);
    assert_int_equal(pwrite(o.fd, "X longer", 8, 0), 8);
    restart(f);
    assert_int_equal(getattr(f, ino, &x), 0);
    assert_int_equal(x.size_bytes, 8);
    assert_file(f, ino, "X longer");
    assert_true(wait_settled(f));
}

/* A descriptor that a mount keeps while the node restarts goes on: what is written through it is seen, and
 * the file is settled only when it is closed. */
static void test_kept_descriptors_go_on(void **state)
{
    struct fixture *f = *state;
    struct wire_tree_create_rep c;
    struct wire_inode x;
    assert_int_equal(create_file(f, ROOT, "a", WIRE_WRITE, &c), 0);
    int kept = dup(c.fd);
    assert_int_equal(pwrite(kept, "one", 3, 0), 3);
    restart(f);
    assert_int_equal(getattr(f, c.inode.ino, &x), 0);
    assert_int_equal(x.size_bytes, 3);
    assert_int_equal(pwrite(kept, "two", 3, 3), 3);
    assert_int_equal(getattr(f, c.inode.ino, &x), 0);
    assert_int_equal(x.size_bytes, 6);
    sys->sleep_ns(900000000); /* longer than settling waits */
    assert_int_equal(status_number(f, "unsettled_files"), 1);
    assert_int_equal(pwrite(kept, "TWO!", 4, 3), 4);
    assert_file(f, c.inode.ino, "oneTWO!");
    assert_int_equal(close(kept), 0);
    assert_true(wait_settled(f));
    assert_file(f, c.inode.ino, "oneTWO!");
}

/* The same of files in which nothing was written yet, when the node is stopped as well as when the session of
 * a mount was lost: the extent that a program has open stays the file's. Fails without keep_if_open
 * (scratch_open.c). */
static void test_empty_files_that_are_open_go_on(void **state)
{
    struct fixture *f = *state;
    struct wire_tree_create_rep c, e;
    struct wire_tree_open_rep o;
    assert_int_equal(create_file(f, ROOT, "new", WIRE_WRITE, &c), 0);
    assert_int_equal(create_file(f, ROOT, "empty", 0, &e), 0);
    assert_int_equal(open_ino(f, e.inode.ino, WIRE_WRITE, &o), 0);
    int kept[] = {dup(c.fd), dup(o.fd)};
    restart(f);
    assert_int_equal(pwrite(kept[0], "late", 4, 0), 4);
    assert_file(f, c.inode.ino, "late");
    assert_int_equal(pwrite(kept[1], "later", 5, 0), 5);
    assert_file(f, e.inode.ino, "later");
    assert_true(close(kept[0]) == 0 && close(kept[1]) == 0);
    struct object_session *own = f->session, *lost = object_session_new(f->service, WIRE_VIA_MOUNT);
    f->session = lost;
    assert_int_equal(create_file(f, ROOT, "lost", WIRE_WRITE, &c), 0);
    kept[0] = dup(c.fd);
    f->session = own;
    object_session_free(lost);
    struct wire_bucket_remove_req req = {.name = BUCKET}; /* ends the waiting for who was lost */
    struct wire_bucket_remove_rep rep;
    assert_int_equal(object_bucket_remove(f->session, &req, f->arena, &rep, &f->e), -ENOTEMPTY);
    assert_int_equal(open_ino(f, c.inode.ino, WIRE_WRITE, &o), 0);
    assert_int_equal(close_handle(f, o.handle), 0); /* the last one that the node knows */
    assert_int_equal(pwrite(kept[0], "found", 5, 0), 5);
    assert_file(f, c.inode.ino, "found");
    assert_int_equal(close(kept[0]), 0);
    assert_true(wait_settled(f));
    assert_file(f, c.inode.ino, "found");
}

/* A file that got its first bytes while somebody had it open for reading is settled when that one closes it.
 * Fails when let_go is left out for handles without an extent (scratch_open.c). */
static void test_a_reader_without_bytes_is_the_last(void **state)
{
    struct fixture *f = *state;
    struct wire_tree_create_rep c;
    struct wire_tree_open_rep o;
    assert_int_equal(create_file(f, ROOT, "a", 0, &c), 0);
    assert_int_equal(open_ino(f, c.inode.ino, 0, &o), 0);
    assert_int_equal(o.fd, -1);
    assert_int_equal(set_size(f, c.inode.ino, 100, NULL), 0);
    assert_int_equal(close_handle(f, o.handle), 0);
    assert_true(wait_settled(f));
}

/* ---- what is set of a settled file ---- */

static int set_mtime(struct fixture *f, uint64_t ino, int64_t mtime_ns)
{
    struct wire_tree_setattr_req req = {
        .bucket = BUCKET, .ino = ino, .what = WIRE_SET_MTIME, .mtime_ns = mtime_ns};
    struct wire_tree_setattr_rep rep = {0};
    return object_tree_setattr(f->session, &req, f->arena, &rep, &f->e);
}

/* A sync of a settled file by who reads it leaves the time that was set, and the ETag. Fails when sync_data
 * (scratch_attr.c) asks the file although it is settled. */
static void test_a_sync_leaves_what_was_set(void **state)
{
    struct fixture *f = *state;
    struct wire_attr put_attr, now = {0};
    struct wire_inode x = {0};
    struct wire_tree_open_rep o;
    assert_int_equal(put(f, "k", "bytes", &put_attr), 0);
    char *etag = slice_dup(put_attr.etag);
    assert_int_equal(lookup(f, ROOT, "k", &x), 0);
    assert_true(wait_settled(f));
    assert_int_equal(set_mtime(f, x.ino, 1000000000), 0);
    assert_int_equal(open_ino(f, x.ino, 0, &o), 0);
    assert_int_equal(sync_ino(f, x.ino), 0);
    assert_int_equal(close_handle(f, o.handle), 0);
    assert_int_equal(getattr(f, x.ino, &x), 0);
    assert_int_equal(x.mtime_ns, 1000000000);
    assert_int_equal(stat_key(f, "k", &now), 0);
    assert_true(slice_eq_str(now.etag, etag));
    free(etag);
}

/* ---- a model ---- */

struct model {
    char text[NAMES][TEXT_MAX];
    bool there[NAMES];
    unsigned number;
};

static const char *name_of(size_t i)
{
    static const char *const names[NAMES] = {"a", "b", "c", "d", "e", "f"};
    return names[i];
}

static void compare(struct fixture *f, const struct model *m)
{
    for (size_t i = 0; i < NAMES; i++) {
        arena_clear(f->arena);
        const char *got = get(f, name_of(i));
        if (!m->there[i])
            assert_null(got);
        else if (!got || strcmp(got, m->text[i]) != 0)
            fail_msg("%s: '%s', not '%s'", name_of(i), got ? got : "(none)", m->text[i]);
        struct wire_inode x;
        int r = lookup(f, ROOT, name_of(i), &x);
        assert_int_equal(r, m->there[i] ? 0 : -ENOENT);
        if (r == 0)
            assert_file(f, x.ino, m->text[i]);
    }
}

/* A write through the tree: the file made or emptied, its bytes written at once or behind others. */
static void write_step(struct fixture *f, struct model *m, size_t i)
{
    struct wire_tree_create_rep c;
    bool append = m->there[i] && below(2) && strlen(m->text[i]) + 8 < TEXT_MAX;
    char *text = m->text[i];
    assert_int_equal(create_file(f, ROOT, name_of(i), WIRE_WRITE | (append ? 0 : WIRE_TRUNCATE), &c), 0);
    size_t old = append ? strlen(text) : 0;
    (void)snprintf(text + old, TEXT_MAX - old, "m%u", m->number++ % 1000);
    assert_int_equal(pwrite(c.fd, text + old, strlen(text + old), (off_t)old), (ssize_t)strlen(text + old));
    m->there[i] = true;
    if (below(4) == 0)
        assert_int_equal(sync_ino(f, c.inode.ino), 0);
    if (below(4) > 0) /* else the session's end closes it */
        assert_int_equal(close_handle(f, c.handle), 0);
}

static void step(struct fixture *f, struct model *m)
{
    size_t i = below(NAMES), j = below(NAMES);
    struct wire_inode x;
    switch (below(8)) {
    case 0:
    case 1:
        (void)snprintf(m->text[i], TEXT_MAX, "%s", below(5) == 0 ? "" : "key");
        assert_int_equal(put(f, name_of(i), m->text[i], NULL), 0);
        m->there[i] = true;
        break;
    case 2:
    case 3:
    case 4:
        write_step(f, m, i);
        break;
    case 5:
        assert_int_equal(unlink_name(f, ROOT, name_of(i)), m->there[i] ? 0 : -ENOENT);
        m->there[i] = false;
        break;
    case 6:
        assert_int_equal(rename_name(f, ROOT, name_of(i), ROOT, name_of(j), 0), m->there[i] ? 0 : -ENOENT);
        if (m->there[i] && i != j) {
            memcpy(m->text[j], m->text[i], TEXT_MAX);
            m->there[j] = true;
            m->there[i] = false;
        }
        break;
    case 7:
        if (m->there[i] && lookup(f, ROOT, name_of(i), &x) == 0) {
            assert_int_equal(set_size(f, x.ino, strlen(m->text[i]) / 2, NULL), 0);
            m->text[i][strlen(m->text[i]) / 2] = 0;
        }
        break;
    }
}

static uint64_t hard_files(struct fixture *f)
{
    struct store_disk_status d;
    assert_int_equal(store_disk_status(f->store, 0, &d), 0);
    return d.hard_extents;
}

static void run_seed(struct fixture *f, uint64_t seed)
{
    struct model m = {.number = 0};
    random_state = seed * 0x9e3779b97f4a7c15u + 1;
    for (size_t i = 0; i < NAMES; i++)
        m.there[i] = lookup(f, ROOT, name_of(i), NULL) == 0 && unlink_name(f, ROOT, name_of(i)) != 0;
    for (int i = 0; i < STEPS; i++) {
        step(f, &m);
        arena_clear(f->arena);
        if (below(24) == 0) {
            restart(f);
            compare(f, &m);
        }
    }
    compare(f, &m);
    restart(f);
    compare(f, &m);
    assert_true(wait_settled(f));
    compare(f, &m);
}

/* Whatever is written, renamed, cut and removed, by key and by mount, is there as it was acknowledged after
 * any kill, and when it is settled; and the disk holds nothing else. */
static void test_random_changes_survive_kills(void **state)
{
    struct fixture *f = *state;
    for (uint64_t seed = seeds_first(); seed < seeds_end(1); seed++)
        run_seed(f, seeds_tell(seed));
    for (size_t i = 0; i < NAMES; i++)
        (void)unlink_name(f, ROOT, name_of(i));
    struct wire_bucket_remove_req req = {.name = BUCKET};
    struct wire_bucket_remove_rep rep;
    assert_int_equal(object_bucket_remove(f->session, &req, f->arena, &rep, &f->e), 0);
    restart(f); /* sweeps the pool too */
    assert_int_equal(hard_files(f), 0);
}

/* ---- faults ---- */

static int setup_faults(void **state)
{
    fault_sys_start();
    return setup_local(state);
}

static int teardown_faults(void **state)
{
    int r = teardown(state);
    fault_sys_stop();
    return r;
}

/* One object put and one file written, with the Nth call to the system failing: what was acknowledged is
 * there, what was not is the old or the new, whole; after a restart the same, and everything works again. */
static void test_a_failing_disk_tears_nothing(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(put(f, "k", "old", NULL), 0);
    char last[TEXT_MAX] = "old", next[TEXT_MAX];
    bool done = false;
    for (uint64_t n = 1; n <= SWEEP_MAX && !done; n++) {
        struct wire_tree_create_rep c;
        (void)snprintf(next, sizeof(next), "new %u", (unsigned)n);
        fault_sys_arm(FAULT_ALL, n, EIO, FAULT_ONCE);
        int r = put(f, "k", next, NULL);
        int made = create_file(f, ROOT, "file", WIRE_WRITE | WIRE_EXCLUSIVE, &c), synced = made, wrote = made;
        if (made == 0) {
            wrote = pwrite(c.fd, "bytes", 5, 0) == 5 ? 0 : -EIO;
            synced = sync_ino(f, c.inode.ino);
            assert_int_equal(close_handle(f, c.handle), 0);
        }
        done = !fault_sys_hit();
        fault_sys_disarm();
        if (n % 8 == 0)
            restart(f);
        const char *got = get(f, "k");
        assert_non_null(got);
        if (strcmp(got, next) != 0 && (r == 0 || strcmp(got, last) != 0))
            fail_msg("call %u: '%s' after '%s' was put with %d", (unsigned)n, got, next, r);
        memcpy(last, got, strlen(got) + 1);
        got = get(f, "file");
        if (made == 0 && wrote == 0 && synced == 0 && (!got || strcmp(got, "bytes") != 0))
            fail_msg("call %u: the file has '%s'", (unsigned)n, got ? got : "(none)");
        if (got)
            assert_int_equal(unlink_name(f, ROOT, "file"), 0);
        arena_clear(f->arena);
    }
    assert_true(done);
    restart(f);
    assert_string_equal(get(f, "k"), last);
    assert_true(wait_settled(f));
    assert_string_equal(get(f, "k"), last);
}

/* A commit whose sync failed does not succeed when it is asked for again: the disk tells a single time that
 * it did not take the bytes. Fails without `fault` in scratch_writer.c. */
static void test_a_commit_is_not_tried_until_it_works(void **state)
{
    struct fixture *f = *state;
    struct wire_put_open_req po = {.bucket = BUCKET, .key = SLICE_LIT("k"), .size = 5, .via = WIRE_VIA_API};
    struct wire_put_open_rep por = {0};
    assert_int_equal(object_put_open(f->session, &po, f->arena, &por, &f->e), 0);
    struct wire_put_write_req pw = {.handle = por.handle, .data = SLICE_LIT("bytes")};
    struct wire_put_write_rep pwr = {0};
    assert_int_equal(object_put_write(f->session, &pw, f->arena, &pwr, &f->e), 0);
    struct wire_put_commit_req pc = {.handle = por.handle, .size = 5};
    struct wire_put_commit_rep pcr = {0};
    fault_sys_arm(FAULT_FSYNC | FAULT_FDATASYNC, 1, EIO, FAULT_ONCE);
    assert_int_equal(object_put_commit(f->session, &pc, f->arena, &pcr, &f->e), -EIO);
    assert_true(fault_sys_hit());
    fault_sys_disarm();
    assert_int_equal(object_put_commit(f->session, &pc, f->arena, &pcr, &f->e), -EIO);
    assert_null(get(f, "k"));
    struct wire_put_abort_req pa = {.handle = por.handle};
    struct wire_put_abort_rep par = {0};
    assert_int_equal(object_put_abort(f->session, &pa, f->arena, &par, &f->e), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_files_are_settled, setup_local, teardown),
        cmocka_unit_test_setup_teardown(test_kept_descriptors_go_on, setup_loop, teardown),
        BOTH(test_empty_files_that_are_open_go_on),
        cmocka_unit_test_setup_teardown(test_a_reader_without_bytes_is_the_last, setup_local, teardown),
        cmocka_unit_test_setup_teardown(test_a_sync_leaves_what_was_set, setup_local, teardown),
        cmocka_unit_test_setup_teardown(test_a_commit_is_not_tried_until_it_works, setup_faults,
                                        teardown_faults),
        BOTH(test_random_changes_survive_kills),
        cmocka_unit_test_setup_teardown(test_a_failing_disk_tears_nothing, setup_faults, teardown_faults),
    };
    return cmocka_run_group_tests_name("object_scratch_model", tests, NULL, NULL);
}

/* layer: jobs */
/* threaded */
/* sync: what it removes, what it takes for being there already, and what is replaced while it is copied. */
#include "jobs_common.h"

static _Atomic(struct fixture *) armed; /* whose bucket "src" is written to by the next fstat */

static int write_meanwhile(int fd, struct stat *ret)
{
    struct fixture *f = atomic_exchange(&armed, NULL);
    struct arena *a = f ? arena_new(MIB) : NULL;
    if (f)
        put_object(f, a, "src", "meanwhile", "x");
    arena_free(a);
    return sys_real.fstat(fd, ret);
}

/* A file of a scratch bucket that is open for writing, to which is written when its bytes were read next. */
static _Atomic int open_fd = -1;

static void write_in_place(const void *p, ssize_t got)
{
    int fd = got == 6 && memcmp(p, "early!", 6) == 0 ? atomic_exchange(&open_fd, -1) : -1;
    if (fd < 0)
        return;
    sys_real.sleep_ns(10000000); /* as below */
    assert_int_equal(sys_pwrite_all(fd, "later!", 6, 0), 0);
}

/* Bytes of "src" are replaced by others, as many, when they are read next; so often. */
static _Atomic int replacing;
static _Atomic(struct fixture *) replaced;

static ssize_t read_and_replace(int fd, void *p, size_t n, uint64_t offset)
{
    struct fixture *f = atomic_load(&replaced);
    ssize_t got = sys_real.pread(fd, p, n, offset);
    write_in_place(p, got);
    if (!f || n < 6 || got < 6 || memcmp(p, "bytes", 5) != 0 || atomic_fetch_sub(&replacing, 1) <= 0)
        return got;
    char text[] = "bytes?";
    struct arena *a = arena_new(MIB);
    text[5] = (char)('a' + atomic_load(&replacing));
    sys_real.sleep_ns(10000000); /* another time by the kernel's clock for files, too */
    int file = open(arena_printf(a, "%s/k", f->origin), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    assert_true(file >= 0);
    assert_int_equal(sys_pwrite_all(file, text, 6, 0), 0);
    (void)close(file);
    arena_free(a);
    return got;
}

/* The object "k" of "src" is replaced when a job first looks at the directory "out", to which it writes: then
 * it has looked at the object, and has not opened it. */
static _Atomic(struct fixture *) looked_at;
static pthread_t tester;
/* Then its origin, a directory, is away: so many times that it is asked. */
static _Atomic int away_after, away;

static int open_and_replace(const char *path, int flags, mode_t mode)
{
    struct fixture *f = atomic_load(&looked_at);
    size_t n = f ? strlen(f->dir) : 0;
    bool is_it = f && strncmp(path, f->dir, n) == 0 && strcmp(path + n, "/out") == 0 &&
                 !pthread_equal(pthread_self(), tester);
    if (is_it && atomic_exchange(&looked_at, NULL)) {
        struct arena *a = arena_new(MIB);
        sys_real.sleep_ns(10000000); /* as above */
        put_object(f, a, "src", "k", "after");
        arena_free(a);
        atomic_store(&away, atomic_load(&away_after));
    }
    const char *name = strrchr(path, '/');
    if (atomic_load(&away) > 0 && name && strcmp(name, "/origin") == 0 && atomic_fetch_sub(&away, 1) > 0)
        return -EIO;
    return sys_real.open(path, flags, mode);
}

static int setup_hooked(void **state)
{
    static struct sys table;
    table = sys_real;
    table.open = open_and_replace;
    table.fstat = write_meanwhile;
    table.pread = read_and_replace;
    sys = &table;
    return setup(state);
}

static int teardown_hooked(void **state)
{
    int r = teardown(state);
    sys = &sys_real;
    return r;
}

static void expect_text(struct fixture *f, const char *bucket, const char *key, const char *text)
{
    struct wire_open_req open = {.bucket = slice_str(bucket), .key = slice_str(key), .via = WIRE_VIA_API};
    struct wire_open_rep o;
    assert_int_equal(object_open(f->session, &open, f->arena, &o, NULL), 0);
    assert_int_equal(o.attr.size_bytes, strlen(text));
    struct wire_fetch_req fetch = {.handle = o.handle, .n = strlen(text), .flags = WIRE_INLINE};
    struct wire_fetch_rep got;
    assert_int_equal(object_fetch(f->session, &fetch, f->arena, &got, NULL), 0);
    assert_true(slice_eq_str(got.data, text));
    struct wire_close_req close_it = {.handle = o.handle};
    struct wire_close_rep closed;
    assert_int_equal(object_close(f->session, &close_it, f->arena, &closed, NULL), 0);
}

static uint64_t begin(struct fixture *f, const char *kind, const char *source, const char *target,
                      const char *spec)
{
    struct wire_job_start_req req = {.kind = slice_str(kind),
                                     .source = slice_str(source),
                                     .target = slice_str(target),
                                     .spec = slice_str(spec)};
    struct wire_job_start_rep rep;
    struct err e = {0};
    if (object_job_start(f->session, &req, f->arena, &rep, &e) < 0)
        fail_msg("%s", e.text);
    return rep.id;
}

static bool reason_has(struct fixture *f, uint64_t id, const char *words)
{
    json_t *o = get(f, id);
    bool has = strstr(json_string_value(json_object_get(o, "reason")), words) != NULL;
    json_decref(o);
    return has;
}

/* A source without any object is as likely one that is away, an empty directory where a share was: sync
 * --delete fails and removes nothing. When it is back the job goes on and removes what is missing. (Without
 * see_witness in kind_copy.c all of the target goes.) */
static void test_an_empty_source_removes_nothing(void **state)
{
    struct fixture *f = *state;
    const char *aside = arena_printf(f->arena, "%s/away", f->dir);
    const char *back = add_mirror(f, "back", "back");
    add_bucket(f, "src", arena_printf(f->arena, "origin=file://%s\nretry=0s\nvalidate=always\n", f->origin));
    write_objects(f, 3, 100);
    wait_for(f, begin(f, "sync", "src/", "back/", "delete=true\n"), "done");
    assert_int_equal(rename(f->origin, aside), 0);
    assert_int_equal(mkdir(f->origin, 0755), 0);
    uint64_t id = begin(f, "sync", "src/", "back/", "delete=true\n");
    wait_for(f, id, "failed");
    assert_int_equal(number(f, id, "removed_objects"), 0);
    assert_true(reason_has(f, id, "no objects at all"));
    assert_true(is_there(f, back, "k000") && is_there(f, back, "k001") && is_there(f, back, "k002"));
    assert_int_equal(rmdir(f->origin), 0);
    assert_int_equal(rename(aside, f->origin), 0);
    assert_int_equal(unlink(arena_printf(f->arena, "%s/k001", f->origin)), 0);
    assert_int_equal(change(f, id, "resume"), 0);
    wait_for(f, id, "done");
    assert_int_equal(number(f, id, "removed_objects"), 1);
    assert_true(is_there(f, back, "k000") && !is_there(f, back, "k001") && is_there(f, back, "k002"));
}

/* What the job's own listing saw is what is copied, though the bucket believes what it remembers for ever,
 * and was written to while it was listed, so that the listing taught it nothing. (Without stat_source in
 * kind_copy.c the bytes of before arrive, verified.) */
static void test_what_was_listed_is_what_is_copied(void **state)
{
    struct fixture *f = *state;
    struct wire_stat_req req = {.bucket = SLICE_LIT("src"), .key = SLICE_LIT("k")};
    struct wire_stat_rep known;
    (void)add_mirror(f, "back", "back");
    add_bucket(f, "src", arena_printf(f->arena, "origin=file://%s\nretry=0s\nvalidate=never\n", f->origin));
    put_file(f, f->origin, "k", "before");
    wait_for(f, begin(f, "prefetch", "src/", NULL, ""), "done");
    assert_int_equal(object_stat(f->session, &req, f->arena, &known, NULL), 0);
    put_file(f, f->origin, "k", "and after");
    atomic_store(&armed, f);
    wait_for(f, begin(f, "sync", "src/", "back/", ""), "done");
    assert_null(atomic_load(&armed));
    expect_text(f, "back", "k", "and after");
}

/* An object of other bytes, as both MD5s say, that is younger by less than clocks differ is not taken for a
 * copy. (Without may_be_older in kind_copy.c it is: its size is the same.) */
static void test_clocks_that_differ_hide_no_change(void **state)
{
    struct fixture *f = *state;
    add_bucket(f, "one", "");
    add_bucket(f, "two", "");
    put_object(f, f->arena, "one", "k", "changed");
    put_object(f, f->arena, "two", "k", "earlier");
    uint64_t id = begin(f, "sync", "one/", "two/", "");
    wait_for(f, id, "done");
    assert_int_equal(number(f, id, "skipped_objects"), 0);
    expect_text(f, "two", "k", "changed");
    id = begin(f, "sync", "one/", "two/", "");
    wait_for(f, id, "done");
    assert_int_equal(number(f, id, "skipped_objects"), 1);
}

/* What is replaced by as many bytes while it is copied is copied anew: the next sync would take the copy,
 * which is younger, for one of what is there now. What does not rest fails. (Without was_replaced in
 * kind_copy.c the bytes of before stay there, and each sync says that all is done.) */
static void test_what_is_replaced_meanwhile_is_copied_anew(void **state)
{
    struct fixture *f = *state;
    (void)add_mirror(f, "back", "back");
    add_bucket(f, "src", arena_printf(f->arena, "origin=file://%s\nretry=0s\nvalidate=never\n", f->origin));
    put_file(f, f->origin, "k", "bytes!");
    wait_for(f, begin(f, "prefetch", "src/", NULL, ""), "done");
    atomic_store(&replacing, 1);
    atomic_store(&replaced, f);
    uint64_t id = begin(f, "sync", "src/", "back/", "verify=size\n");
    wait_for(f, id, "done");
    assert_true(atomic_load(&replacing) <= 0);
    expect_text(f, "back", "k", "bytesa");
    assert_int_equal(number(f, id, "done_objects"), 1);
    put_file(f, f->origin, "k", "bytes!");
    atomic_store(&replacing, 20);
    id = begin(f, "sync", "src/", "back/", "verify=size\n");
    wait_for(f, id, "partly failed");
    atomic_store(&replaced, NULL);
    assert_int_equal(change(f, id, "retry"), 0);
    wait_for(f, id, "done");
}

/* ... so is a file of a scratch bucket that a mount writes to in place while it is copied, though both
 * objects have MD5s for ETags until then: it has none any more, and the next sync would go by times. (Without
 * from_tree in kind_copy.c the bytes of before stay there.) */
static void test_what_is_written_to_meanwhile_is_copied_anew(void **state)
{
    struct fixture *f = *state;
    struct wire_tree_lookup_req look = {.bucket = SLICE_LIT("src"), .parent = 1, .name = SLICE_LIT("k")};
    struct wire_tree_lookup_rep found;
    struct wire_tree_open_rep opened;
    struct wire_close_rep closed;
    add_bucket(f, "src", "");
    add_bucket(f, "back", "");
    put_object(f, f->arena, "src", "k", "early!");
    assert_int_equal(object_tree_lookup(f->session, &look, f->arena, &found, NULL), 0);
    struct wire_tree_open_req open = {.bucket = look.bucket, .ino = found.inode.ino, .flags = WIRE_WRITE};
    assert_int_equal(object_tree_open(f->session, &open, f->arena, &opened, NULL), 0);
    atomic_store(&open_fd, opened.fd);
    wait_for(f, begin(f, "sync", "src/", "back/", ""), "done");
    assert_int_equal(atomic_load(&open_fd), -1);
    expect_text(f, "back", "k", "later!");
    struct wire_close_req close_it = {.handle = opened.handle};
    assert_int_equal(object_close(f->session, &close_it, f->arena, &closed, NULL), 0);
}

/* What is replaced after the job has looked at it, and before it opens it, is copied with what belongs to
 * those bytes, as its time. (Without open_to_send in kind_copy.c the file has the time of the object before.)
 */
static void test_bytes_and_metadata_are_of_one_version(void **state)
{
    struct fixture *f = *state;
    struct wire_stat_req req = {.bucket = SLICE_LIT("src"), .key = SLICE_LIT("k")};
    struct wire_stat_rep now;
    struct stat st;
    char text[8] = "";
    const char *out = arena_printf(f->arena, "%s/out", f->dir), *file = arena_printf(f->arena, "%s/k", out);
    assert_int_equal(mkdir(out, 0755), 0);
    add_bucket(f, "src", "");
    put_object(f, f->arena, "src", "k", "earlier");
    tester = pthread_self();
    atomic_store(&looked_at, f);
    wait_for(f, begin(f, "export", "src/", arena_printf(f->arena, "file://%s", out), ""), "done");
    assert_null(atomic_load(&looked_at));
    assert_int_equal(object_stat(f->session, &req, f->arena, &now, NULL), 0);
    int fd = open(file, O_RDONLY);
    assert_true(fd >= 0 && read(fd, text, sizeof(text)) == 5);
    (void)close(fd);
    assert_string_equal(text, "after");
    assert_int_equal(stat(file, &st), 0);
    assert_int_equal(st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec, now.attr.mtime_ns);
}

/* ... also where the origin is away when it is asked what belongs to them: the object fails, and is for the
 * retry. (Where the error is not told in open_to_send of kind_copy.c the file has the time of before.) */
static void test_bytes_whose_metadata_cannot_be_had_fail(void **state)
{
    struct fixture *f = *state;
    const struct timespec before[2] = {{.tv_sec = 1700000000}, {.tv_sec = 1700000000}};
    struct stat there, copied;
    const char *out = arena_printf(f->arena, "%s/out", f->dir), *file = arena_printf(f->arena, "%s/k", out);
    const char *source = arena_printf(f->arena, "%s/k", f->origin);
    assert_int_equal(mkdir(out, 0755), 0);
    add_bucket(f, "src", arena_printf(f->arena, "origin=file://%s\nretry=0s\nvalidate=ttl:1h\n", f->origin));
    put_file(f, f->origin, "k", "earlier");
    assert_int_equal(utimensat(AT_FDCWD, source, before, 0), 0);
    tester = pthread_self();
    atomic_store(&away_after, 1);
    atomic_store(&looked_at, f);
    uint64_t id = begin(f, "export", "src/", arena_printf(f->arena, "file://%s", out), "");
    wait_for(f, id, "partly failed");
    atomic_store(&away_after, 0);
    assert_int_equal(atomic_load(&away), 0);
    assert_int_equal(number(f, id, "failed_objects"), 1);
    assert_int_equal(change(f, id, "retry"), 0);
    wait_for(f, id, "done");
    assert_int_equal(stat(source, &there), 0);
    assert_int_equal(stat(file, &copied), 0);
    assert_int_equal(copied.st_size, 5);
    assert_int_equal(copied.st_mtim.tv_sec, there.st_mtim.tv_sec);
}

/* A source that tells whole seconds may have changed within the one in which it was copied: it is copied once
 * more, unless the ETags tell. (Without is_younger in kind_copy.c it is left alone.) */
static void test_a_copy_of_the_same_second_is_made_again(void **state)
{
    struct fixture *f = *state;
    const char *back = add_mirror(f, "back", "back");
    const struct timespec whole[2] = {{.tv_sec = 1700000000}, {.tv_sec = 1700000000}};
    const struct timespec within[2] = {{1700000000, 500000000}, {1700000000, 500000000}};
    const struct timespec behind[2] = {{.tv_sec = 1700000001}, {.tv_sec = 1700000001}};
    add_bucket(f, "src", arena_printf(f->arena, "origin=file://%s\nretry=0s\nvalidate=always\n", f->origin));
    put_file(f, f->origin, "k", "after");
    put_file(f, back, "k", "early");
    assert_int_equal(utimensat(AT_FDCWD, arena_printf(f->arena, "%s/k", f->origin), whole, 0), 0);
    assert_int_equal(utimensat(AT_FDCWD, arena_printf(f->arena, "%s/k", back), behind, 0), 0);
    uint64_t id = begin(f, "sync", "src/", "back/", "");
    wait_for(f, id, "done");
    assert_int_equal(number(f, id, "skipped_objects"), 1);
    assert_int_equal(utimensat(AT_FDCWD, arena_printf(f->arena, "%s/k", back), within, 0), 0);
    wait_for(f, begin(f, "sync", "src/", "back/", ""), "done");
    expect_text(f, "back", "k", "after");
}

/* A dry run of sync --delete counts what it would remove, and removes nothing. (Without dry_run in next_phase
 * of run.c it counts none; without that in kind_sweep they go.) */
static void test_a_dry_run_counts_removals(void **state)
{
    struct fixture *f = *state;
    const char *back = add_mirror(f, "back", "back");
    add_bucket(f, "src", arena_printf(f->arena, "origin=file://%s\nretry=0s\nvalidate=always\n", f->origin));
    write_objects(f, 3, 100);
    put_file(f, back, "k001", "there, too");
    put_file(f, back, "x", "only there");
    put_file(f, back, "y", "only there");
    uint64_t id = begin(f, "sync", "src/", "back/", "delete=true\nexclude=y\ndry-run=true\n");
    wait_for(f, id, "done");
    assert_int_equal(number(f, id, "total_objects"), 3);
    assert_int_equal(number(f, id, "done_objects"), 0);
    assert_int_equal(number(f, id, "removed_objects"), 1);
    assert_true(is_there(f, back, "x") && is_there(f, back, "y") && !is_there(f, back, "k000"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_an_empty_source_removes_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(test_what_was_listed_is_what_is_copied, setup_hooked,
                                        teardown_hooked),
        cmocka_unit_test_setup_teardown(test_clocks_that_differ_hide_no_change, setup, teardown),
        cmocka_unit_test_setup_teardown(test_what_is_replaced_meanwhile_is_copied_anew, setup_hooked,
                                        teardown_hooked),
        cmocka_unit_test_setup_teardown(test_what_is_written_to_meanwhile_is_copied_anew, setup_hooked,
                                        teardown_hooked),
        cmocka_unit_test_setup_teardown(test_bytes_and_metadata_are_of_one_version, setup_hooked,
                                        teardown_hooked),
        cmocka_unit_test_setup_teardown(test_bytes_whose_metadata_cannot_be_had_fail, setup_hooked,
                                        teardown_hooked),
        cmocka_unit_test_setup_teardown(test_a_copy_of_the_same_second_is_made_again, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_dry_run_counts_removals, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* layer: mount */
/* What a process that takes over learns of the table of inodes, after an end and after a kill anywhere. */
#include "base/sys.h"
#include "mount/kept.h"
#include "mount/node.h"
#include "mount/node_kept.h"
#include "mount/request.h"
#include "support/kept_memory.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define LONG_NAME 255
#define KILLS     25
#define FILES     6

static struct node *look(struct node_table *t, struct node *parent, const char *name, const char *etag)
{
    struct node_attr a = {
        .is_dir = !etag, .size_bytes = 7, .mtime_ns = 9, .etag = slice_str(etag ? etag : "")};
    struct node *n = node_look_up(t, parent, slice_str(name), &a);
    return n;
}

static void keep(struct node_table *t, struct node *n)
{
    LOCK_SCOPE(node_table_lock(t));
    node_keep_locked(t, n);
}

static void unkeep(struct node_table *t, struct node *n)
{
    LOCK_SCOPE(node_table_lock(t));
    node_unkeep_locked(t, n);
}

/* However many directories the kernel knows of, there is room left for files that are open; a directory that
 * was kept stays so when it is renamed. */
static void test_directories_leave_room(void **state)
{
    struct kept *k = *state;
    kept_begin(k);
    while (kept_has_plenty(k))
        assert_non_null(kept_take(k, KEPT_LOCK));
    kept_give(k, kept_next(k, KEPT_LOCK, NULL));
    struct node_table *t = node_table_new(k, /* keeps_all= */ false);
    struct node *root = node_get(t, NODE_ROOT_ID), *d = look(t, root, "d", NULL),
                *e = look(t, root, "e", NULL);
    struct node *f = look(t, root, "f", "etag");
    keep(t, f);
    assert_non_null(d->kept);
    assert_null(e->kept);
    assert_non_null(f->kept);
    node_move(t, d, root, SLICE_LIT("renamed"));
    assert_non_null(d->kept);
    assert_true(kept_has_room(k));
    node_table_free(t);
}

static void count_file(void *arg, struct node *n)
{
    assert_false(n->is_dir);
    (*(size_t *)arg)++;
}

/* The table of a process that takes over, and how many open files it found. */
static struct node_table *take_over(struct kept *k, bool keeps_all, size_t *ret_files)
{
    kept_begin(k);
    struct node_table *t = node_table_new(k, keeps_all);
    *ret_files = 0;
    node_table_resume(t, count_file, ret_files);
    return t;
}

static void assert_path(struct node_table *t, uint64_t id, const char *path)
{
    _cleanup_buf_ struct buf b = BUF_INIT(4096);
    struct node *n = node_get(t, id);
    assert_non_null(n);
    assert_int_equal(node_path(t, n, &b), 0);
    assert_true(slice_eq_str(buf_view(&b), path));
    node_unref(t, n);
}

/* So many that nothing else was looked up last; the kernel forgets them at once. */
static void look_up_others(struct node_table *t, struct node *parent, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        char name[16];
        (void)snprintf(name, sizeof(name), "other%u", i);
        struct node *other = look(t, parent, name, "e");
        uint64_t id = other->id;
        node_unref(t, other);
        node_forget(t, id, 1);
    }
}

/* Ids: dirs 2 and 3, files from 4. The test's process dies without freeing anything. */
static void make_tree(struct kept *k)
{
    char name[LONG_NAME + 1];
    memset(name, 'n', LONG_NAME);
    name[LONG_NAME] = '\0';
    kept_begin(k);
    struct node_table *t = node_table_new(k, /* keeps_all= */ false);
    struct node *root = node_get(t, NODE_ROOT_ID), *a = look(t, root, "a", NULL), *b = look(t, a, "b", NULL);
    struct node *open = look(t, b, "open", "etag-1"), *closed = look(t, b, "closed", "etag-2");
    struct node *long_one = look(t, b, name, "a long ETag, longer than what one cell has room for together");
    struct node *gone = look(t, a, "gone", "etag-3");
    keep(t, open);
    keep(t, long_one);
    keep(t, gone);
    keep(t, closed);
    unkeep(t, closed);
    look_up_others(t, root, NODE_RECENT);
    node_detach(t, gone, /* is_unlinked= */ true);
    struct node_attr written = {.size_bytes = 1000,
                                .mtime_ns = 11,
                                .etag = SLICE_LIT("etag-4"),
                                .has_owner = true,
                                .mode = S_IFREG | 0640,
                                .uid = 12,
                                .gid = 13};
    struct node_attr given = {.is_dir = true, .has_owner = true, .mode = S_IFDIR | 0710};
    node_set_attr(t, open, &written);
    node_set_attr(t, b, &given);
    node_move(t, b, root, SLICE_LIT("c"));
    node_move(t, open, a, SLICE_LIT("renamed"));
}

/* Directories and open files are known under their numbers, by their last names, with their last versions;
 * those that were closed and looked up long ago are not, and no number is given twice. */
static void test_another_process_knows_them(void **state)
{
    struct kept *k = *state;
    char path[LONG_NAME + 3] = "c/";
    memset(path + 2, 'n', LONG_NAME);
    path[LONG_NAME + 2] = '\0';
    kept_memory_in_child(k, make_tree);
    size_t n_files;
    _cleanup_(node_table_freep) struct node_table *t = take_over(k, /* keeps_all= */ false, &n_files);
    node_table_check(t);
    assert_int_equal(n_files, 3);
    assert_int_equal(node_table_count(t), 5);
    assert_path(t, 2, "a");
    assert_path(t, 3, "c");
    assert_path(t, 4, "a/renamed");
    assert_path(t, 6, path);
    assert_null(node_get(t, 5));
    struct node *open = node_get(t, 4), *gone = node_get(t, 7);
    assert_true(slice_eq_str(slice_of(open->etag, open->etag_n), "etag-4"));
    assert_int_equal(open->size_bytes, 1000);
    assert_true(open->has_owner && open->mode == (S_IFREG | 0640) && open->uid == 12 && open->gid == 13);
    assert_true(gone->is_unlinked && !gone->is_attached && open->is_attached && !open->is_unlinked);
    struct node *root = node_get(t, NODE_ROOT_ID), *c = node_find(t, root, SLICE_LIT("c"));
    assert_int_equal(c->id, 3);
    assert_true(c->has_owner && c->mode == (S_IFDIR | 0710) && !gone->has_owner);
    struct node *fresh = look(t, c, "fresh", "e");
    assert_true(fresh->id > 7);
    node_unref(t, fresh);
    node_forget(t, fresh->id, 1);
    node_unref(t, gone);
    node_unref(t, open);
    node_unref(t, c);
    node_unref(t, root);
}

static void look_up_some_twice(struct kept *k)
{
    kept_begin(k);
    struct node_table *t = node_table_new(k, /* keeps_all= */ false);
    struct node *root = node_get(t, NODE_ROOT_ID);
    (void)look(t, root, "again", "e");
    (void)look(t, root, "once", "e");
    look_up_others(t, root, NODE_RECENT - 2);
    (void)look(t, root, "again", "e");
    (void)look(t, root, "last", "e");
    look_up_others(t, root, NODE_RECENT - 2);
}

/* What the kernel was told of last is known, as a call may be about to use it. */
static void test_what_was_looked_up_last_is_known(void **state)
{
    struct kept *k = *state;
    kept_memory_in_child(k, look_up_some_twice);
    size_t n_files;
    _cleanup_(node_table_freep) struct node_table *t = take_over(k, /* keeps_all= */ false, &n_files);
    node_table_check(t);
    assert_int_equal(n_files, 2);
    assert_path(t, 2, "again");
    assert_null(node_get(t, 3));
    struct node *root = node_get(t, NODE_ROOT_ID), *last = node_find(t, root, SLICE_LIT("last"));
    assert_non_null(last);
    node_unref(t, last);
    node_unref(t, root);
}

/* A directory "d" that the kernel looked up three times, the last time as one that was found already, and
 * gave back once. */
static void look_up_and_forget(struct kept *k)
{
    kept_begin(k);
    struct node_table *t = node_table_new(k, /* keeps_all= */ false);
    struct node *root = node_get(t, NODE_ROOT_ID), *d = look(t, root, "d", NULL);
    (void)look(t, root, "d", NULL);
    node_looked_up_locked(d);
    node_forget(t, d->id, 1);
}

/* The kernel gives back what it was told before the kill while it is told of the directory anew: who does not
 * know how much that was frees a directory in which the kernel goes on looking up names. */
static void test_what_the_kernel_holds_is_known(void **state)
{
    struct kept *k = *state;
    kept_memory_in_child(k, look_up_and_forget);
    size_t n_files;
    _cleanup_(node_table_freep) struct node_table *t = take_over(k, /* keeps_all= */ false, &n_files);
    struct node *root = node_get(t, NODE_ROOT_ID), *d = look(t, root, "d", NULL);
    uint64_t id = d->id;
    node_unref(t, d);
    assert_int_equal(id, 2);
    node_forget(t, id, 2); /* which the kernel sent before it looked up "d", and which comes late */
    d = node_get(t, id);
    assert_non_null(d);
    assert_int_equal(d->lookups, 1);
    node_unref(t, d);
    node_forget(t, id, 1);
    assert_null(node_get(t, id));
    node_unref(t, root);
}

static void look_up_two_versions(struct kept *k)
{
    kept_begin(k);
    struct node_table *t = node_table_new(k, /* keeps_all= */ true);
    struct node *root = node_get(t, NODE_ROOT_ID);
    (void)look(t, root, "f", "e1");
    (void)look(t, root, "f", "e2"); /* another version: the first one has no name any more */
}

/* With keeps_all every file is known. */
static void test_all_are_kept_where_all_are_asked_for(void **state)
{
    struct kept *k = *state;
    kept_memory_in_child(k, look_up_two_versions);
    size_t n_files;
    _cleanup_(node_table_freep) struct node_table *t = take_over(k, /* keeps_all= */ true, &n_files);
    node_table_check(t);
    assert_int_equal(n_files, 2);
    struct node *root = node_get(t, NODE_ROOT_ID), *f = node_find(t, root, SLICE_LIT("f"));
    assert_int_equal(f->id, 3);
    node_unref(t, f);
    node_unref(t, root);
}

static void begin_request(uint64_t unique)
{
    uint64_t header[2] = {0, unique};
    request_begin(header, sizeof(header));
}

static void rename_by_a_request(struct kept *k)
{
    kept_begin(k);
    struct node_table *t = node_table_new(k, /* keeps_all= */ true);
    struct node *root = node_get(t, NODE_ROOT_ID), *f = look(t, root, "f", "e1");
    (void)look(t, root, "stays", "e2");
    begin_request(18);
    node_move(t, f, root, SLICE_LIT("g"));
}

/* A process that takes over learns which request gave a file its name: when that comes again, it is done. */
static void test_who_renamed_it_is_known(void **state)
{
    struct kept *k = *state;
    kept_memory_in_child(k, rename_by_a_request);
    size_t n_files;
    _cleanup_(node_table_freep) struct node_table *t = take_over(k, /* keeps_all= */ true, &n_files);
    struct node *root = node_get(t, NODE_ROOT_ID), *g = node_find(t, root, SLICE_LIT("g"));
    struct node *stays = node_find(t, root, SLICE_LIT("stays"));
    assert_non_null(g);
    assert_int_equal(g->moved_by, 18);
    assert_int_equal(stays->moved_by, 0);
    assert_null(node_find(t, root, SLICE_LIT("f")));
    node_unref(t, g);
    node_unref(t, stays);
    node_unref(t, root);
}

static void forget_a_directory(struct kept *k)
{
    kept_begin(k);
    struct node_table *t = node_table_new(k, /* keeps_all= */ false);
    struct node *root = node_get(t, NODE_ROOT_ID), *above = look(t, root, "above", NULL);
    struct node *f = look(t, look(t, above, "d", NULL), "f", "e");
    keep(t, f);
    node_kept_free(k, TAKE_PTR(above->kept));
    if (f->id != 4)
        _exit(1);
}

/* A directory that found no room is not known: what lies below it has no path then, rather than one below the
 * root, under which it would be written. */
static void test_what_lies_in_an_unknown_directory_has_no_path(void **state)
{
    struct kept *k = *state;
    kept_memory_in_child(k, forget_a_directory);
    size_t n_files;
    struct node_table *t = take_over(k, /* keeps_all= */ false, &n_files);
    assert_int_equal(n_files, 1);
    for (uint64_t id = 3; id <= 4; id++) {
        _cleanup_buf_ struct buf b = BUF_INIT(1024);
        struct node *n = node_get(t, id);
        assert_non_null(n);
        assert_int_equal(node_path(t, n, &b), -ESTALE);
        node_unref(t, n);
    }
    node_table_free(t);
}

/* How many of the files below are found by a name. */
static size_t count_names(struct node_table *t)
{
    size_t n = 0;
    struct node *root = node_get(t, NODE_ROOT_ID);
    for (unsigned i = 0; i < 4 * FILES; i++) {
        char name[8];
        struct node *dir = node_find(t, root, i % 2 ? SLICE_LIT("d1") : SLICE_LIT("d0"));
        (void)snprintf(name, sizeof(name), "%c%u", i / 2 % 2 ? 'f' : 'g', i / 4);
        struct node *f = node_find(t, dir, slice_str(name));
        n += f != NULL;
        node_unref(t, f);
        node_unref(t, dir);
    }
    node_unref(t, root);
    return n;
}

/* Renames files and directories for ever, each to one of its two names. */
__attribute__((noreturn)) static void churn(struct kept *k)
{
    kept_begin(k);
    struct node_table *t = node_table_new(k, /* keeps_all= */ false);
    struct node *root = node_get(t, NODE_ROOT_ID), *dirs[2], *files[FILES];
    dirs[0] = look(t, root, "d0", NULL);
    dirs[1] = look(t, root, "d1", NULL);
    for (int i = 0; i < FILES; i++) {
        char name[8];
        (void)snprintf(name, sizeof(name), "f%d", i);
        files[i] = look(t, dirs[0], name, "an ETag that together with the name takes more than a cell");
        keep(t, files[i]);
    }
    kept_facts(k)->root = 1; /* begun */
    for (unsigned n = 0;; n++) {
        struct node *f = files[n % FILES];
        char name[8];
        (void)snprintf(name, sizeof(name), "%c%u", n / FILES % 2 ? 'f' : 'g', n % FILES);
        node_move(t, f, dirs[n / 3 % 2], slice_str(name));
        struct node_attr a = {
            .size_bytes = n, .mtime_ns = n, .etag = SLICE_LIT("another one, as long as the first one was")};
        node_set_attr(t, f, &a);
    }
}

/* Killed between any two instructions of a rename or a change, each file has one of its names, once, and no
 * room is lost. */
static void test_killed_anywhere(void **state)
{
    struct kept *k = *state;
    for (int i = 0; i < KILLS; i++) {
        kept_facts(k)->root = 0;
        pid_t pid = fork();
        if (pid == 0)
            churn(k);
        while (kept_facts(k)->root == 0)
            sys->sleep_ns(100000);
        sys->sleep_ns((uint64_t)(i % 7) * 300000 + 50000);
        assert_int_equal(kill(pid, SIGKILL), 0);
        int status;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        size_t n_files;
        struct node_table *t = take_over(k, /* keeps_all= */ false, &n_files);
        node_table_check(t);
        assert_int_equal(n_files, FILES);
        assert_int_equal(count_names(t), FILES);
        assert_int_equal(node_table_count(t), FILES + 2);
        assert_int_equal(kept_memory_count(k, KEPT_NODE), FILES + 2);
        assert_in_range(kept_memory_count(k, KEPT_TEXT), FILES - 1, 2 * FILES);
        node_table_free(t);
        assert_int_equal(kept_memory_count(k, KEPT_NODE), 0);
        assert_int_equal(kept_memory_count(k, KEPT_TEXT), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_directories_leave_room, kept_memory_setup, kept_memory_teardown),
        cmocka_unit_test_setup_teardown(test_another_process_knows_them, kept_memory_setup,
                                        kept_memory_teardown),
        cmocka_unit_test_setup_teardown(test_what_the_kernel_holds_is_known, kept_memory_setup,
                                        kept_memory_teardown),
        cmocka_unit_test_setup_teardown(test_what_was_looked_up_last_is_known, kept_memory_setup,
                                        kept_memory_teardown),
        cmocka_unit_test_setup_teardown(test_all_are_kept_where_all_are_asked_for, kept_memory_setup,
                                        kept_memory_teardown),
        cmocka_unit_test_setup_teardown(test_who_renamed_it_is_known, kept_memory_setup,
                                        kept_memory_teardown),
        cmocka_unit_test_setup_teardown(test_what_lies_in_an_unknown_directory_has_no_path, kept_memory_setup,
                                        kept_memory_teardown),
        cmocka_unit_test_setup_teardown(test_killed_anywhere, kept_memory_setup, kept_memory_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

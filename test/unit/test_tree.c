/* layer: origin */
/*
 * Listings of trees of directories against a model: all keys, sorted by their bytes, whatever the size of the
 * pages, the prefix and the delimiter.
 */
#include "base/buf.h"
#include "base/sys.h"
#include "origin/tree.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

/* Names with a slash at their end are directories. The order is not that of the keys. */
static const char *const paths[] = {
    "z",        "a0", "a/",   "a-b",     "a/b",     "a/c/",  "a/c/d",   "a/c/e",   "empty/",
    "big",      "m/", "m/n/", "m/n/o/",  "m/n/o/p", "loop/", "loop/me", "hidden/", "hidden/.forebay-tmp-1",
    "\xc3\xa4", "A",  "a/c-", "m/n/o/q", "m/n0",
};

static struct {
    unsigned reads;
    const char *fail; /* directory that cannot be read */
    int error;
} T;

static uint64_t id_of(const char *path)
{
    return strcmp(path, "loop/again") == 0 ? 7 : strcmp(path, "loop") == 0 ? 7 : 0;
}

static int read_folder(void *arg, const char *path, struct tree_folder **ret, struct err *e)
{
    (void)arg;
    T.reads++;
    if (T.fail && strcmp(T.fail, path) == 0)
        return err_set(e, T.error, "cannot");
    size_t n = strlen(path);
    bool there = n == 0;
    struct tree_folder *f = tree_folder_new();
    f->self = (struct tree_name){.id = id_of(path)};
    tree_etag(1, 2, 3, f->self.etag);
    for (size_t i = 0; i < ARRAY_SIZE(paths); i++) {
        struct slice p = slice_str(paths[i]);
        bool is_dir = slice_ends(p, SLICE_LIT("/"));
        p = slice_sub(p, 0, p.n - is_dir);
        there |= is_dir && slice_eq_str(p, path);
        if (n > 0 && (!slice_starts(p, slice_str(path)) || p.n <= n || p.p[n] != '/'))
            continue;
        struct slice name = slice_from(p, n ? n + 1 : 0);
        if (name.n == 0 || slice_find(name, '/') >= 0)
            continue;
        struct tree_name x = {.size = i, .mtime_ns = 1000 + i};
        tree_etag(x.mtime_ns, x.size, i, x.etag);
        assert_int_equal(tree_folder_add(f, name, is_dir, &x), 0);
    }
    if (strcmp(path, "loop") == 0) { /* a link that leads back */
        struct tree_name x = {.id = 7};
        assert_int_equal(tree_folder_add(f, SLICE_LIT("again"), true, &x), 0);
    }
    if (!there) {
        tree_folder_unref(f);
        return err_set(e, -ENOENT, "no such directory");
    }
    *ret = f;
    return 0;
}

/* All pages as lines; prefixes end with "*". */
static int list_all(const char *prefix, char delimiter, uint32_t max, const char *after, struct buf *ret)
{
    struct tree t;
    tree_init(&t, read_folder, NULL);
    char token[2048] = "";
    int r = 0;
    for (int pages = 0; pages < 100 && r == 0; pages++) {
        struct arena *_cleanup_(arena_freep) a = arena_new(1 * MIB);
        struct origin_list l = {.prefix = slice_str(prefix),
                                .delimiter = delimiter,
                                .max = max,
                                .token = slice_str(token),
                                .after = slice_str(after)};
        struct origin_page page = {0};
        r = tree_list(&t, &l, a, &page, NULL);
        for (size_t i = 0; i < page.n && r == 0; i++)
            assert_int_equal(buf_printf(ret, SLICE_FMT "%s\n", SLICE_ARG(page.entries[i].key),
                                        page.entries[i].is_prefix ? "*" : ""),
                             0);
        if (r < 0 || !page.truncated)
            break;
        assert_true(page.n > 0);
        (void)snprintf(token, sizeof(token), SLICE_FMT, SLICE_ARG(page.next_token));
    }
    tree_fini(&t);
    return r;
}

static void expect(const char *prefix, char delimiter, const char *after, const char *lines)
{
    for (uint32_t max = 1; max <= 30; max++) {
        struct buf _cleanup_buf_ got = BUF_INIT(64 * KIB);
        assert_int_equal(list_all(prefix, delimiter, max, after, &got), 0);
        assert_int_equal(buf_char(&got, '\0'), 0);
        assert_string_equal(got.p, lines);
    }
}

/* Every object once, in byte order of keys, for pages of any size; an empty directory is an object, one that
 * only leads back is told once, and files that are being written are none. */
static void test_order(void **state)
{
    expect("", 0, "",
           "A\na-b\na/b\na/c-\na/c/d\na/c/e\na0\nbig\nempty/\nhidden/\nloop/me\nm/n/o/p\nm/n/o/q\nm/n0\nz\n"
           "\xc3\xa4\n");
    expect("", 0, "a/c/d", "a/c/e\na0\nbig\nempty/\nhidden/\nloop/me\nm/n/o/p\nm/n/o/q\nm/n0\nz\n\xc3\xa4\n");
    expect("m", 0, "m/n/o/p", "m/n/o/q\nm/n0\n");
}

/* Directories are common prefixes of a slash; other delimiters cut keys. */
static void test_delimiters(void **state)
{
    expect("", '/', "", "A\na-b\na/*\na0\nbig\nempty/*\nhidden/*\nloop/*\nm/*\nz\n\xc3\xa4\n");
    expect("a/", '/', "", "a/\na/b\na/c-\na/c/*\n");
    expect("a/c", '/', "", "a/c-\na/c/*\n");
    expect("empty/", '/', "", "empty/\n");
    expect("", 'b', "",
           "A\na-b*\na/b*\na/c-\na/c/d\na/c/e\na0\nb*\nempty/\nhidden/\nloop/me\nm/n/o/p\nm/n/o/q\nm/n0\nz\n"
           "\xc3\xa4\n");
    expect("nothing/here/", '/', "", "");
    expect("../", '/', "", "");
}

/* A directory that cannot be read fails the listing; one that vanished meanwhile does not, but the origin's
 * own. */
static void test_failures(void **state)
{
    struct buf _cleanup_buf_ got = BUF_INIT(64 * KIB);
    T.fail = "a/c";
    T.error = ERR_ORIGIN_DENIED;
    assert_int_equal(list_all("", 0, 0, "", &got), ERR_ORIGIN_DENIED);
    T.error = -ENOENT;
    buf_clear(&got);
    assert_int_equal(list_all("", 0, 0, "", &got), 0);
    assert_true(slice_find_slice(buf_view(&got), SLICE_LIT("a/c-\na0\n")) > 0);
    T.fail = "";
    assert_int_equal(list_all("", 0, 0, "", &got), -ENOENT);
    T.fail = NULL;
}

/* Later pages read no directory again that an earlier one read; a new listing does. */
static void test_memory(void **state)
{
    struct buf _cleanup_buf_ got = BUF_INIT(64 * KIB);
    T.reads = 0;
    assert_int_equal(list_all("", 0, 1000, "", &got), 0);
    unsigned once = T.reads;
    T.reads = 0;
    assert_int_equal(list_all("", 0, 1, "", &got), 0);
    assert_int_equal(T.reads, once);
}

/* One page of a tree that is kept. */
static void page_of(struct tree *t, const char *after, const char *token, uint32_t max)
{
    struct arena *_cleanup_(arena_freep) a = arena_new(1 * MIB);
    struct origin_list l = {.max = max, .after = slice_str(after), .token = slice_str(token)};
    struct origin_page page;
    T.reads = 0;
    assert_int_equal(tree_list(t, &l, a, &page, NULL), 0);
}

/* A page that begins behind the last key of the one before is a later page, too. What was written meanwhile
 * is read anew, and so is all that an earlier listing left behind. */
static void test_memory_and_changes(void **state)
{
    struct tree t;
    tree_init(&t, read_folder, NULL);
    page_of(&t, "", "", 1000); /* all are remembered */
    page_of(&t, "a/b", "", 1);
    assert_int_equal(T.reads, 0);
    page_of(&t, "", "a/b", 1);
    assert_int_equal(T.reads, 0);
    tree_forget(&t, SLICE_LIT("a/c/new"));
    page_of(&t, "a/c-", "", 1); /* "a/c/d": the root, a and a/c */
    assert_int_equal(T.reads, 3);
    page_of(&t, "m/n/o/p", "", 1);
    assert_int_equal(T.reads, 0);
    page_of(&t, "", "", 1); /* a listing begins */
    page_of(&t, "", "m/n/o/p", 1);
    assert_true(T.reads > 0);
    tree_fini(&t);
}

/* What is remembered of all directories is bounded: the oldest go, but not those in which the one that was
 * read last lies. (Without surplus_locked in tree.c all ten stay.) */
static void test_memory_is_bounded(void **state)
{
    struct tree t;
    size_t n = 0, names = 0;
    bool has_root = false;
    tree_init(&t, read_folder, NULL);
    t.kept_max = 3;
    page_of(&t, "", "", 1000);
    for (size_t i = 0; i < TREE_FOLDERS; i++) {
        has_root = has_root || (t.memory[i].path && !t.memory[i].path[0]);
        n += t.memory[i].path != NULL;
        names += t.memory[i].path && t.memory[i].path[0] ? t.memory[i].folder->n : 0;
    }
    assert_true(has_root && n > 1);
    assert_in_range(names, 0, 3 + 4); /* and those of the last one with what it lies in */
    page_of(&t, "a/b", "", 1);
    assert_in_range(T.reads, 0, 3);
    tree_fini(&t);
}

/* A folder with itself in it, as long as keys are, and in each two files whose names begin alike. */
static int read_endless(void *arg, const char *path, struct tree_folder **ret, struct err *e)
{
    (void)arg, (void)path, (void)e;
    char name[251] = "";
    struct tree_folder *f = tree_folder_new();
    struct tree_name x = {.size = 1};
    memset(name, 'k', 250);
    assert_int_equal(tree_folder_add(f, slice_str(name), true, &x), 0);
    name[249] = 'x';
    assert_int_equal(tree_folder_add(f, slice_str(name), false, &x), 0);
    name[249] = 'y';
    assert_int_equal(tree_folder_add(f, slice_str(name), false, &x), 0);
    *ret = f;
    return 0;
}

static unsigned count_endless(uint32_t max, bool unfit, unsigned *ret_told)
{
    struct tree t;
    unsigned all = 0;
    char token[ORIGIN_KEY_MAX_BYTES + 1] = "";
    tree_init(&t, read_endless, NULL);
    for (bool more = true; more;) {
        struct arena *_cleanup_(arena_freep) a = arena_new(1 * MIB);
        struct origin_list l = {.max = max, .token = slice_str(token), .unfit = unfit};
        struct origin_page page = {0};
        assert_int_equal(tree_list(&t, &l, a, &page, NULL), 0);
        for (size_t i = 0; i < page.n; i++)
            *ret_told += slice_eq_str(page.entries[i].attr.etag, ORIGIN_ETAG_UNFIT);
        all += (unsigned)page.n;
        more = page.truncated;
        (void)snprintf(token, sizeof(token), SLICE_FMT, SLICE_ARG(page.next_token));
    }
    tree_fini(&t);
    return all;
}

/* Names longer than any key are told where they are asked for, those that begin alike as one. (Four folders
 * fit, with 20 bytes left in the last, to which all three names are cut; without walk_page_add_unfit in
 * `visit` nothing is told.) */
static void test_names_longer_than_any_key(void **state)
{
    (void)state;
    for (uint32_t max = 1; max <= 12; max++) {
        unsigned told = 0;
        assert_int_equal(count_endless(max, /* unfit= */ false, &told), 8);
        assert_int_equal(told, 0);
        assert_int_equal(count_endless(max, /* unfit= */ true, &told), 9);
        assert_int_equal(told, 1);
    }
}

/* ETags are what they are documented to be. */
static void test_etag(void **state)
{
    char etag[TREE_ETAG_SIZE];
    tree_etag(0xabcdef, 255, 16, etag);
    assert_string_equal(etag, "abcdef-ff-10");
    tree_etag(UINT64_MAX, UINT64_MAX, UINT64_MAX, etag);
    assert_int_equal(strlen(etag), 50);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_delimiters),
        cmocka_unit_test(test_failures),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_memory_and_changes),
        cmocka_unit_test(test_memory_is_bounded),
        cmocka_unit_test(test_names_longer_than_any_key),
        cmocka_unit_test(test_etag),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

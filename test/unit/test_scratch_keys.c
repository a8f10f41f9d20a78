/* layer: namespace */
/* A scratch bucket as S3 sees it: a flat, sorted set of keys, whatever they look like. */
#include "scratch_common.h"
#include "support/seeds.h"

#define KEYS_MAX 64

/* Keys that clash with each other, sort around '/', or cannot be paths. */
static const char *const pool[] = {
    "a",    "a/",    "a/b",    "a/b/",  "a/b/c", "a/b/c/d", "a-",      "a-b", "a.b",     "a0",
    "a/-",  "a-b/x", "a-/y",   "//",    "a//b",  "..",      "x/../y",  ".",   "b/c/d/e", "b/c",
    "b",    "b/d",   "c!/d/e", "c/d",   "c!",    "/",       "/a",      "c",   "é/ü",     "zz/a",
    "zz/b", "zz/c",  "zz.",    "zz/b/", "zz/d",  "a/b/c-e", "a/b-c/e",
};

struct model {
    bool has[ARRAY_SIZE(pool)];
    uint64_t size[ARRAY_SIZE(pool)];
};

static size_t sorted[ARRAY_SIZE(pool)];

static int by_key(const void *x, const void *y)
{
    return slice_cmp(slice_str(pool[*(const size_t *)x]), slice_str(pool[*(const size_t *)y]));
}

struct listed {
    char keys[KEYS_MAX][64];
    uint64_t sizes[KEYS_MAX];
    size_t n;
};

static void remember(struct listed *l, struct slice key, uint64_t size)
{
    assert_true(l->n < KEYS_MAX && key.n < 64);
    memcpy(l->keys[l->n], key.p, key.n);
    l->keys[l->n][key.n] = 0;
    l->sizes[l->n++] = size;
}

static int on_key(void *arg, const struct scratch_listed *x)
{
    assert_true(x->is_prefix == (x->inode == NULL));
    remember(arg, x->key, x->inode ? x->inode->size_bytes : 0);
    return 0;
}

/* What S3 would list. */
static bool model_list(const struct model *m, const struct scratch_list *q, struct listed *ret)
{
    struct listed l = {.n = 0};
    for (size_t i = 0; i < ARRAY_SIZE(pool); i++) {
        size_t k = sorted[i];
        struct slice key = slice_str(pool[k]);
        if (!m->has[k] || !slice_starts(key, q->prefix))
            continue;
        ssize_t at = q->delimiter ? slice_find(slice_from(key, q->prefix.n), q->delimiter) : -1;
        struct slice shown = at < 0 ? key : slice_sub(key, 0, q->prefix.n + (size_t)at + 1);
        if ((q->after.n > 0 && slice_cmp(shown, q->after) <= 0) ||
            (l.n > 0 && slice_eq_str(shown, l.keys[l.n - 1])))
            continue;
        if (l.n == q->max) {
            *ret = l;
            return true;
        }
        remember(&l, shown, at < 0 ? m->size[k] : 0);
    }
    *ret = l;
    return false;
}

static void compare_list(struct fixture *f, const struct model *m, const struct scratch_list *q)
{
    struct listed want, got = {.n = 0};
    bool more = model_list(m, q, &want), truncated = !more;
    assert_int_equal(scratch_list(f->s, B, q, on_key, &got, &truncated, NULL), 0);
    bool same = got.n == want.n && truncated == more;
    for (size_t i = 0; same && i < got.n; i++)
        same = strcmp(got.keys[i], want.keys[i]) == 0 && got.sizes[i] == want.sizes[i];
    if (same)
        return;
    for (size_t i = 0; i < MAX(got.n, want.n); i++)
        print_message("got '%s' want '%s'\n", i < got.n ? got.keys[i] : "", i < want.n ? want.keys[i] : "");
    fail_msg("prefix '" SLICE_FMT "' delimiter %d after '" SLICE_FMT "' max %zu truncated %d %d",
             SLICE_ARG(q->prefix), q->delimiter, SLICE_ARG(q->after), q->max, truncated, more);
}

static void compare_all(struct fixture *f, const struct model *m)
{
    static const char *const prefixes[] = {"",  "a", "a/",      "a/b",   "zz/",
                                           "/", "c", "nothing", "a-b/x", "b/c/d/e"};
    static const char delimiters[] = {0, '/', '-', 'b'};
    for (size_t p = 0; p < ARRAY_SIZE(prefixes); p++)
        for (size_t d = 0; d < ARRAY_SIZE(delimiters); d++)
            for (int i = 0; i < 4; i++) {
                struct scratch_list q = {.prefix = slice_str(prefixes[p]),
                                         .delimiter = delimiters[d],
                                         .max = i % 2 ? 1 + below(f, 6) : 60};
                if (i > 1)
                    q.after = slice_str(pool[below(f, ARRAY_SIZE(pool))]);
                compare_list(f, m, &q);
            }
    for (size_t k = 0; k < ARRAY_SIZE(pool); k++) {
        struct scratch_inode x;
        arena_clear(f->a);
        int r = scratch_find(f->s, B, slice_str(pool[k]), f->a, &x, NULL);
        assert_int_equal(r, m->has[k] ? 0 : -ENOENT);
        if (r == 0)
            assert_int_equal(x.size_bytes, m->size[k]);
    }
}

static int put(struct fixture *f, const char *key, uint64_t size, bool if_none_match,
               struct scratch_orphans *o)
{
    struct scratch_put p = {.size_bytes = size,
                            .allocated_bytes = size,
                            .if_none_match = if_none_match,
                            .location = size > 0 ? SLICE_LIT("loc") : SLICE_NULL};
    struct scratch_inode x;
    if (size > 0 || !slice_ends(slice_str(key), SLICE_LIT("/")))
        assert_int_equal(scratch_reserve(f->s, B, slice_str(key), &p.ino, NULL), 0);
    return scratch_put(f->s, &f->call, slice_str(key), &p, f->a, &x, o, NULL);
}

static void bury(struct fixture *f, const struct scratch_orphans *o)
{
    for (size_t i = 0; i < o->n; i++)
        assert_int_equal(scratch_bury(f->s, B, o->v[i].ino, NULL), 0);
}

static void random_change(struct fixture *f, struct model *m)
{
    struct scratch_orphans o = {0};
    size_t k = below(f, ARRAY_SIZE(pool)), to = below(f, ARRAY_SIZE(pool));
    uint64_t size = below(f, 3);
    bool exclusive = below(f, 4) == 0;
    int r;
    arena_clear(f->a);
    switch (below(f, 8)) {
    case 0:
    case 1:
    case 2:
        r = scratch_remove_key(f->s, &f->call, slice_str(pool[k]), SLICE_NULL, &o, NULL);
        assert_int_equal(r, m->has[k] ? 0 : -ENOENT);
        m->has[k] = false;
        break;
    case 3:
        r = scratch_move_key(f->s, &f->call, slice_str(pool[k]), slice_str(pool[to]),
                             exclusive ? SCRATCH_NOREPLACE : 0, &o, NULL);
        if (slice_ends(slice_str(pool[to]), SLICE_LIT("/"))) {
            assert_int_equal(r, -EINVAL);
        } else if (slice_ends(slice_str(pool[k]), SLICE_LIT("/")) && r == -ENOENT) {
            /* a directory's own key stays with its directory */
        } else {
            assert_int_equal(r, !m->has[k] ? -ENOENT : exclusive && m->has[to] ? -EEXIST : 0);
            if (r == 0 && k != to) {
                m->has[k] = false;
                m->has[to] = true;
                m->size[to] = m->size[k];
            }
        }
        break;
    default:
        r = put(f, pool[k], size, exclusive, &o);
        assert_int_equal(r, exclusive && m->has[k] ? ERR_PRECONDITION : 0);
        if (r == 0) {
            m->has[k] = true;
            m->size[k] = size;
        }
        break;
    }
    bury(f, &o);
}

/* Through keys the bucket is a sorted map, with clashing keys and keys that are no paths among the others:
 * each listing, page and lookup is the model's. */
static void test_keys_follow_a_sorted_model(void **state)
{
    for (size_t i = 0; i < ARRAY_SIZE(pool); i++)
        sorted[i] = i;
    qsort(sorted, ARRAY_SIZE(pool), sizeof(sorted[0]), by_key);
    for (uint64_t seed = seeds_first(); seed < seeds_end(12); seed++) {
        void *fresh;
        setup(&fresh);
        struct fixture *f = fresh;
        struct model m = {{false}};
        f->random = seeds_tell(seed);
        for (int i = 0; i < 200; i++) {
            random_change(f, &m);
            if (i % 10 == 0)
                compare_all(f, &m);
        }
        for (size_t k = 0; k < ARRAY_SIZE(pool); k++) {
            struct scratch_orphans o = {0};
            (void)scratch_remove_key(f->s, &f->call, slice_str(pool[k]), SLICE_NULL, &o, NULL);
            bury(f, &o);
        }
        /* Implied directories went with their keys, and so nothing is left. */
        struct scratch_counts counts;
        assert_int_equal(scratch_statfs(f->s, B, &counts, NULL), 0);
        assert_int_equal(counts.inodes, 0);
        assert_int_equal(counts.bytes, 0);
        assert_int_equal(counts.keyed, 0);
        assert_int_equal(scratch_bucket_remove(f->s, B, NULL), 0);
        assert_int_equal(keys_of(f, 's') + keys_of(f, 'z'), 0);
        teardown(&fresh);
    }
}

/* What POSIX made is an object: files by their path, made directories with '/', no links and special files.
 */
static void test_posix_files_are_objects(void **state)
{
    struct fixture *f = *state;
    struct scratch_inode x;
    struct scratch_orphans o;
    uint64_t dir = (uint64_t)make(f, SCRATCH_ROOT, "d", S_IFDIR | 0755);
    (void)make(f, dir, "file", S_IFREG | 0644);
    (void)make(f, dir, "link", S_IFLNK | 0777);
    (void)make(f, dir, "pipe", S_IFIFO | 0644);
    assert_int_equal(put(f, "i/k", 1, false, &o), 0);
    struct listed got = {.n = 0};
    struct scratch_list q = {.max = 100};
    bool truncated = true;
    assert_int_equal(scratch_list(f->s, B, &q, on_key, &got, &truncated, NULL), 0);
    assert_int_equal(got.n, 3);
    assert_string_equal(got.keys[0], "d/");
    assert_string_equal(got.keys[1], "d/file");
    assert_string_equal(got.keys[2], "i/k");
    assert_int_equal(scratch_find(f->s, B, SLICE_LIT("d/link"), f->a, &x, NULL), -ENOENT);
    assert_int_equal(scratch_path(f->s, B, SLICE_LIT("i"), f->a, &x, NULL), 0);
    assert_true(x.flags & SCRATCH_IMPLIED);
    assert_int_equal(scratch_find(f->s, B, SLICE_LIT("i/"), f->a, &x, NULL), -ENOENT);
    /* Touched through POSIX it stays when its last key goes. */
    (void)make(f, x.ino, "other", S_IFREG | 0644);
    assert_int_equal(scratch_remove_key(f->s, &f->call, SLICE_LIT("i/k"), SLICE_NULL, &o, NULL), 0);
    bury(f, &o);
    assert_int_equal(scratch_remove_key(f->s, &f->call, SLICE_LIT("i/other"), SLICE_NULL, &o, NULL), 0);
    assert_int_equal(scratch_find(f->s, B, SLICE_LIT("i/"), f->a, &x, NULL), 0);
}

/* A listing for people who see a file system: empty directories are there, the key table and directories' own
 * keys are not, and pages go on behind a directory. */
static void test_listing_paths_only(void **state)
{
    struct fixture *f = *state;
    struct scratch_orphans o;
    uint64_t dir = (uint64_t)make(f, SCRATCH_ROOT, "d", S_IFDIR | 0755);
    (void)make(f, dir, "empty", S_IFDIR | 0755);
    (void)make(f, dir, "file", S_IFREG | 0644);
    (void)make(f, SCRATCH_ROOT, "d-file", S_IFREG | 0644);
    assert_int_equal(put(f, "d", 1, false, &o), 0); /* clashes with the directory */
    assert_int_equal(put(f, "//", 1, false, &o), 0);
    static const char *const want[2][3] = {{"d-file", "d/", NULL}, {"d/empty/", "d/file", NULL}};
    static const char *const prefixes[2] = {"", "d/"};
    for (size_t i = 0; i < 2; i++) {
        for (size_t max = 1; max <= 10; max += 9) {
            struct scratch_list q = {
                .prefix = slice_str(prefixes[i]), .delimiter = '/', .max = max, .paths_only = true};
            bool truncated = true;
            size_t n = 0;
            char after[64];
            while (truncated) {
                struct listed got = {.n = 0};
                assert_int_equal(scratch_list(f->s, B, &q, on_key, &got, &truncated, NULL), 0);
                for (size_t k = 0; k < got.n; k++)
                    assert_string_equal(got.keys[k], want[i][n++]);
                (void)snprintf(after, sizeof(after), "%s", got.keys[got.n - 1]);
                q.after = slice_str(after);
            }
            assert_int_equal(n, 2);
        }
    }
}

/* Conditions name the ETag that listings and lookups give, own or made up; a failed one leaves no
 * directories. */
static void test_conditions_of_a_put(void **state)
{
    struct fixture *f = *state;
    struct scratch_orphans o;
    struct scratch_inode x;
    struct scratch_put p = {.etag = SLICE_LIT("e1"), .if_match = SLICE_LIT("*")};
    assert_int_equal(scratch_reserve(f->s, B, SLICE_LIT("a/b/c"), &p.ino, NULL), 0);
    assert_int_equal(scratch_put(f->s, &f->call, SLICE_LIT("a/b/c"), &p, f->a, &x, &o, NULL), -ENOENT);
    assert_int_equal(scratch_path(f->s, B, SLICE_LIT("a"), f->a, &x, NULL), -ENOENT);
    p.if_match = SLICE_NULL;
    p.if_none_etag = SLICE_LIT("e1"); /* there is none yet that could have it */
    f->call.commit = KV_DURABLE;
    assert_int_equal(scratch_put(f->s, &f->call, SLICE_LIT("a/b/c"), &p, f->a, &x, &o, NULL), 0);
    assert_int_equal(scratch_reserve(f->s, B, SLICE_LIT("a/b/c"), &p.ino, NULL), 0);
    assert_int_equal(scratch_put(f->s, &f->call, SLICE_LIT("a/b/c"), &p, f->a, &x, &o, NULL),
                     ERR_PRECONDITION);
    p.if_none_etag = SLICE_LIT("e2");
    p.if_match = SLICE_LIT("e2");
    assert_int_equal(scratch_reserve(f->s, B, SLICE_LIT("a/b/c"), &p.ino, NULL), 0);
    assert_int_equal(scratch_put(f->s, &f->call, SLICE_LIT("a/b/c"), &p, f->a, &x, &o, NULL),
                     ERR_PRECONDITION);
    p.if_match = SLICE_LIT("e1");
    p.etag = SLICE_NULL;
    assert_int_equal(scratch_put(f->s, &f->call, SLICE_LIT("a/b/c"), &p, f->a, &x, &o, NULL), 0);
    assert_int_equal(scratch_remove_key(f->s, &f->call, SLICE_LIT("a/b/c"), SLICE_LIT("e1"), &o, NULL),
                     ERR_PRECONDITION);
    assert_int_equal(scratch_remove_key(f->s, &f->call, SLICE_LIT("a/b/c"), scratch_etag(&x, f->a), &o, NULL),
                     0);
    assert_int_equal(scratch_path(f->s, B, SLICE_LIT("a"), f->a, &x, NULL), -ENOENT);
}

static int parts_of(struct fixture *f, uint64_t ino, struct buf *b)
{
    buf_clear(b);
    return scratch_parts(f->s, B, ino, b, NULL);
}

/* The list of parts comes with its object in one transaction and goes with it: with what replaces it, when a
 * reader of it is the last, when it is removed; its record is a 1 and the list as it was given. */
static void test_parts_go_with_their_object(void **state)
{
    struct fixture *f = *state;
    _cleanup_buf_ struct buf b = BUF_INIT(SCRATCH_PARTS_MAX + 1), key = BUF_INIT(64);
    static const char list[] = {1, 0, 'x'};
    struct scratch_orphans o = {0};
    struct scratch_inode x, y;
    struct scratch_put p = {.etag = SLICE_LIT("e-1"), .parts = slice_of(list, sizeof(list))};
    f->call.commit = KV_DURABLE;
    assert_int_equal(scratch_reserve(f->s, B, SLICE_LIT("k"), &p.ino, NULL), 0);
    assert_int_equal(scratch_put(f->s, &f->call, SLICE_LIT("k"), &p, f->a, &x, &o, NULL), 0);
    assert_true(x.flags & SCRATCH_PARTED);
    assert_int_equal(parts_of(f, x.ino, &b), 0);
    assert_true(slice_eq(buf_view(&b), p.parts));
    scratch_key(B, x.ino, SCRATCH_KEY_PARTS, SLICE_NULL, &key);
    buf_clear(&b);
    assert_int_equal(kv_get(f->kv, buf_view(&key), &b, NULL, NULL), 0);
    assert_int_equal(b.n, 4);
    assert_memory_equal(b.p, "\1\1\0x", 4);
    assert_int_equal(key.p[17], 'p');
    assert_int_equal(scratch_hold(f->s, B, x.ino, NULL), 0); /* somebody reads it */
    p.parts = SLICE_NULL;
    assert_int_equal(scratch_reserve(f->s, B, SLICE_LIT("k"), &p.ino, NULL), 0);
    assert_int_equal(scratch_put(f->s, &f->call, SLICE_LIT("k"), &p, f->a, &y, &o, NULL), 0);
    assert_false(y.flags & SCRATCH_PARTED);
    assert_int_equal(parts_of(f, y.ino, &b), -ENOENT);
    assert_int_equal(parts_of(f, x.ino, &b), 0);
    assert_int_equal(scratch_release(f->s, B, x.ino, &o, NULL), 0);
    assert_int_equal(parts_of(f, x.ino, &b), -ENOENT);
    p.parts = slice_of(list, sizeof(list));
    assert_int_equal(scratch_reserve(f->s, B, SLICE_LIT("k"), &p.ino, NULL), 0);
    assert_int_equal(scratch_put(f->s, &f->call, SLICE_LIT("k"), &p, f->a, &x, &o, NULL), 0);
    assert_int_equal(scratch_remove_key(f->s, &f->call, SLICE_LIT("k"), SLICE_NULL, &o, NULL), 0);
    assert_int_equal(parts_of(f, x.ino, &b), -ENOENT);
    p.parts = slice_of(f, SCRATCH_PARTS_MAX + 1); /* never looked at */
    assert_int_equal(scratch_put(f->s, &f->call, SLICE_LIT("k"), &p, f->a, &x, &o, NULL), -E2BIG);
}

/* A put whose commit fails leaves no list behind, and one that replaces an object leaves that one's: at each
 * commit of a put that makes directories on the way. */
static void test_a_failed_put_leaves_no_parts(void **state)
{
    struct fixture *f = *state;
    _cleanup_buf_ struct buf b = BUF_INIT(64);
    struct scratch_orphans o = {0};
    struct scratch_inode old, x;
    struct scratch_put p = {.etag = SLICE_LIT("e-1"), .parts = SLICE_LIT("old")};
    assert_int_equal(scratch_reserve(f->s, B, SLICE_LIT("k"), &p.ino, NULL), 0);
    assert_int_equal(scratch_put(f->s, &f->call, SLICE_LIT("k"), &p, f->a, &old, &o, NULL), 0);
    p.parts = SLICE_LIT("new");
    for (int deep = 0; deep < 2; deep++) {
        struct slice key = deep ? SLICE_LIT("d/e/f") : SLICE_LIT("k");
        int r = -EIO;
        assert_int_equal(scratch_reserve(f->s, B, key, &p.ino, NULL), 0);
        for (uint64_t n = 1; r < 0; n++) {
            f->failing->fail_in = n;
            r = scratch_put(f->s, &f->call, key, &p, f->a, &x, &o, NULL);
            f->failing->fail_in = 0;
            assert_true(r == 0 || r == -EIO);
            assert_int_equal(parts_of(f, p.ino, &b), r == 0 ? 0 : -ENOENT);
            if (r < 0 || deep)
                assert_int_equal(parts_of(f, deep ? p.ino : old.ino, &b), deep && r < 0 ? -ENOENT : 0);
        }
        assert_true(slice_eq_str(buf_view(&b), "new") || !deep);
    }
}

/* A record that is not one of ours is found to be broken. */
static void test_broken_parts(void **state)
{
    struct fixture *f = *state;
    _cleanup_buf_ struct buf b = BUF_INIT(64), key = BUF_INIT(64);
    static const struct slice values[] = {{"", 0}, {"\1", 1}, {"\2x", 2}};
    scratch_key(B, 99, SCRATCH_KEY_PARTS, SLICE_NULL, &key);
    for (size_t i = 0; i < ARRAY_SIZE(values); i++) {
        struct kv_txn *t = kv_txn_new(f->kv);
        kv_txn_put_plain(t, buf_view(&key), values[i]);
        assert_int_equal(kv_txn_commit(t, KV_VISIBLE, NULL), 0);
        kv_txn_free(t);
        assert_int_equal(parts_of(f, 99, &b), ERR_CORRUPT);
    }
}

/* Renaming an object takes what its path hid in the key table, so that nothing is there under the old key.
 * Fails without `left` in scratch_rename.c. */
static void test_a_renamed_object_leaves_nothing(void **state)
{
    struct fixture *f = *state;
    struct scratch_orphans o = {0};
    struct scratch_inode x;
    struct scratch_counts counts;
    assert_true(make(f, SCRATCH_ROOT, "a", S_IFDIR | 0755) > 0);
    assert_int_equal(put(f, "a", 10, false, &o), 0); /* into the key table */
    assert_int_equal(scratch_rmdir(f->s, &f->call, SCRATCH_ROOT, SLICE_LIT("a"), NULL), 0);
    int64_t ino = make(f, SCRATCH_ROOT, "a", S_IFREG | 0644);
    assert_int_equal(put(f, "b", 5, false, &o), 0);
    assert_int_equal(scratch_move_key(f->s, &f->call, SLICE_LIT("a"), SLICE_LIT("b"), 0, &o, NULL), 0);
    assert_int_equal(o.n, 2); /* what was at b, and what was hidden */
    bury(f, &o);
    assert_int_equal(scratch_find(f->s, B, SLICE_LIT("a"), f->a, &x, NULL), -ENOENT);
    assert_int_equal(scratch_find(f->s, B, SLICE_LIT("b"), f->a, &x, NULL), 0);
    assert_int_equal(x.ino, ino);
    assert_int_equal(scratch_statfs(f->s, B, &counts, NULL), 0);
    assert_true(counts.keyed == 0 && counts.inodes == 1);
}

/* Two names of one file stay as they are when a program renames one to the other; an object that is renamed
 * is not at its old key any more. (Without by_key in prepare_rename of scratch_rename.c it is.) */
static void test_an_object_is_renamed_to_another_name_of_its_own(void **state)
{
    struct fixture *f = *state;
    struct scratch_orphans o = {0};
    struct scratch_inode x;
    int64_t ino = make(f, SCRATCH_ROOT, "a", S_IFREG | 0644);
    assert_int_equal(
        scratch_link(f->s, &f->call, (uint64_t)ino, SCRATCH_ROOT, SLICE_LIT("b"), f->a, &x, NULL), 0);
    assert_int_equal(scratch_rename(f->s, &f->call, SCRATCH_ROOT, SLICE_LIT("a"), SCRATCH_ROOT,
                                    SLICE_LIT("b"), 0, &o, NULL, NULL),
                     0);
    assert_int_equal(attr(f, (uint64_t)ino).links, 2);
    assert_int_equal(scratch_move_key(f->s, &f->call, SLICE_LIT("a"), SLICE_LIT("b"), 0, &o, NULL), 0);
    assert_int_equal(o.n, 0);
    assert_int_equal(scratch_find(f->s, B, SLICE_LIT("a"), f->a, &x, NULL), -ENOENT);
    assert_int_equal(scratch_find(f->s, B, SLICE_LIT("b"), f->a, &x, NULL), 0);
    assert_true(x.ino == (uint64_t)ino && x.links == 1);
    assert_int_equal(attr(f, SCRATCH_ROOT).entries, 1);
}

/* A replaced object that is held keeps its data until it is released; the new one keeps owner and
 * permissions.
 */
static void test_a_replaced_object_stays_for_its_readers(void **state)
{
    struct fixture *f = *state;
    struct scratch_orphans o = {0};
    struct scratch_inode old, x;
    assert_int_equal(put(f, "k", 1, false, &o), 0);
    assert_int_equal(scratch_find(f->s, B, SLICE_LIT("k"), f->a, &old, NULL), 0);
    struct scratch_set set = {.what = SCRATCH_SET_MODE | SCRATCH_SET_UID, .mode = 0600, .uid = 9};
    assert_int_equal(scratch_setattr(f->s, &f->call, old.ino, &set, f->a, &x, NULL), 0);
    assert_int_equal(scratch_hold(f->s, B, old.ino, NULL), 0);
    assert_int_equal(put(f, "k", 2, false, &o), 0);
    assert_int_equal(o.n, 0);
    assert_int_equal(scratch_find(f->s, B, SLICE_LIT("k"), f->a, &x, NULL), 0);
    assert_true(x.ino != old.ino);
    assert_int_equal(x.uid, 9);
    assert_int_equal(x.mode, S_IFREG | 0600);
    assert_int_equal(attr(f, old.ino).size_bytes, 1);
    assert_int_equal(scratch_release(f->s, B, old.ino, &o, NULL), 0);
    assert_int_equal(o.n, 1);
    bury(f, &o);
}

/* Each commit of putting, removing and renaming by key that fails leaves keys as they were. */
static void test_failing_commits_leave_the_keys(void **state)
{
    struct fixture *f = *state;
    struct scratch_orphans o = {0};
    struct scratch_inode x;
    assert_int_equal(put(f, "old/key", 5, false, &o), 0);
    for (uint64_t nth = 1;; nth++) {
        f->failing->hit = false;
        f->failing->fail_in = nth;
        int r = put(f, "new/dir/key", 1, false, &o);
        f->failing->fail_in = 0;
        if (!f->failing->hit) {
            assert_int_equal(r, 0);
            break;
        }
        assert_int_equal(r, -EIO);
        assert_int_equal(scratch_find(f->s, B, SLICE_LIT("new/dir/key"), f->a, &x, NULL), -ENOENT);
        assert_true(nth < 10);
    }
    f->failing->fail_in = 1;
    assert_int_equal(
        scratch_move_key(f->s, &f->call, SLICE_LIT("old/key"), SLICE_LIT("new/dir/key"), 0, &o, NULL), -EIO);
    assert_int_equal(scratch_find(f->s, B, SLICE_LIT("old/key"), f->a, &x, NULL), 0);
    assert_int_equal(x.size_bytes, 5);
    assert_int_equal(scratch_find(f->s, B, SLICE_LIT("new/dir/key"), f->a, &x, NULL), 0);
    assert_int_equal(x.size_bytes, 1);
    f->failing->fail_in = 1;
    assert_int_equal(scratch_remove_key(f->s, &f->call, SLICE_LIT("old/key"), SLICE_NULL, &o, NULL), -EIO);
    assert_int_equal(scratch_find(f->s, B, SLICE_LIT("old/key"), f->a, &x, NULL), 0);
}

struct replacing {
    struct fixture *f;
    struct listed l;
};

/* With the first key that is given all others are replaced, or removed, and what they led to is gone. */
static int replace_meanwhile(void *arg, const struct scratch_listed *x)
{
    struct replacing *g = arg;
    struct fixture *f = g->f;
    struct scratch_orphans o = {0};
    bool is_first = g->l.n == 0;
    (void)on_key(&g->l, x);
    if (!is_first)
        return 0;
    assert_int_equal(put(f, "k/put", 22, false, &o), 0);
    bury(f, &o);
    assert_int_equal(put(f, "k/z//t", 33, false, &o), 0);
    bury(f, &o);
    struct scratch_inode dir;
    assert_int_equal(scratch_path(f->s, B, SLICE_LIT("k"), f->a, &dir, NULL), 0);
    assert_int_equal(scratch_rename(f->s, &f->call, dir.ino, SLICE_LIT("aside"), dir.ino,
                                    SLICE_LIT("renamed"), 0, &o, NULL, NULL),
                     0);
    bury(f, &o);
    assert_int_equal(scratch_remove_key(f->s, &f->call, SLICE_LIT("k/removed"), SLICE_NULL, &o, NULL), 0);
    bury(f, &o);
    return 0;
}

/* A key that is put again, or renamed over, while a listing runs is in it: it was there all the time.
 * (Without take_named in scratch_list.c it is left out, as if it were removed.) */
static void test_a_listing_has_what_is_replaced_meanwhile(void **state)
{
    struct fixture *f = *state;
    struct scratch_orphans o = {0};
    struct replacing g = {.f = f};
    const struct scratch_list q = {.prefix = SLICE_LIT("k/"), .max = 10};
    static const struct {
        const char *key;
        uint64_t size;
    } want[] = {{"k/z//t", 33}, {"k/a", 1}, {"k/put", 22}, {"k/renamed", 44}};
    bool truncated;
    assert_int_equal(put(f, "k/a", 1, false, &o), 0);
    assert_int_equal(put(f, "k/put", 2, false, &o), 0);
    assert_int_equal(put(f, "k/z//t", 3, false, &o), 0);
    assert_int_equal(put(f, "k/renamed", 4, false, &o), 0);
    assert_int_equal(put(f, "k/removed", 5, false, &o), 0);
    assert_int_equal(put(f, "k/aside", 44, false, &o), 0);
    assert_int_equal(scratch_list(f->s, B, &q, replace_meanwhile, &g, &truncated, NULL), 0);
    for (size_t i = 0; i < ARRAY_SIZE(want); i++) {
        size_t k = 0;
        while (k < g.l.n && strcmp(g.l.keys[k], want[i].key) != 0)
            k++;
        if (k == g.l.n)
            fail_msg("%s is not in the listing", want[i].key);
        assert_int_equal(g.l.sizes[k], want[i].size);
    }
    for (size_t k = 0; k < g.l.n; k++)
        assert_string_not_equal(g.l.keys[k], "k/removed");
}

int main(void)
{
#define WITH(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_keys_follow_a_sorted_model),
        WITH(test_posix_files_are_objects),
        WITH(test_listing_paths_only),
        WITH(test_conditions_of_a_put),
        WITH(test_parts_go_with_their_object),
        WITH(test_a_failed_put_leaves_no_parts),
        WITH(test_broken_parts),
        WITH(test_a_renamed_object_leaves_nothing),
        WITH(test_an_object_is_renamed_to_another_name_of_its_own),
        WITH(test_a_replaced_object_stays_for_its_readers),
        WITH(test_failing_commits_leave_the_keys),
        WITH(test_a_listing_has_what_is_replaced_meanwhile),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

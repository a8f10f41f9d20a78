/* layer: namespace */
/* The scratch namespace as POSIX sees it. */
#include "scratch_common.h"

#include "support/clock_sys.h"
#include "support/seeds.h"

/* ---- formats ---- */

static void assert_hex(const void *p, size_t n, const char *hex)
{
    char text[1024];
    assert_true(2 * n < sizeof(text));
    for (size_t i = 0; i < n; i++)
        (void)snprintf(text + 2 * i, 3, "%02x", ((const uint8_t *)p)[i]);
    assert_string_equal(text, hex);
}

/* The bytes of every record and key are those of the format's table, and reading gives back what was written.
 */
static void test_formats_are_as_written_down(void **state)
{
    struct buf _cleanup_buf_ b = BUF_INIT(4 * KIB);
    struct scratch_inode y, x = {.ino = 5,
                                 .flags = 1,
                                 .mode = 0100644,
                                 .uid = 2,
                                 .gid = 3,
                                 .links = 4,
                                 .rdev = 6,
                                 .size_bytes = 7,
                                 .allocated_bytes = 8,
                                 .atime_ns = -1,
                                 .mtime_ns = 9,
                                 .ctime_ns = 10,
                                 .birth_ns = 11,
                                 .parent = 12,
                                 .entries = 13,
                                 .next_cookie = 14,
                                 .xattrs = 15,
                                 .xattr_name_bytes = 16,
                                 .location = SLICE_LIT("L"),
                                 .target = SLICE_LIT("T"),
                                 .etag = SLICE_LIT("E"),
                                 .content_type = SLICE_LIT("C"),
                                 .meta = SLICE_LIT("M")};
    assert_int_equal(scratch_inode_encode(&x, &b), 0);
    assert_hex(b.p, b.n,
               "01010f0010000000a4810000020000000300000004000000060000000700000000000000"
               "0800000000000000ffffffffffffffff09000000000000000a000000000000000b00000000000000"
               "0c000000000000000d000000000000000e00000000000000"
               "01004c010054010045010043"
               "01004d");
    assert_int_equal(scratch_inode_decode(buf_view(&b), 5, &y), 0);
    assert_int_equal(y.atime_ns, -1);
    assert_int_equal(y.next_cookie, 14);
    assert_true(slice_eq_str(y.meta, "M"));
    for (size_t n = 0; n < b.n; n++)
        assert_int_equal(scratch_inode_decode(slice_of(b.p, n), 5, &y), ERR_CORRUPT);

    struct scratch_dirent d = {8, 0x1122, 3}, e;
    uint8_t entry[SCRATCH_DIRENT_BYTES], counts[SCRATCH_COUNTS_BYTES], answer[SCRATCH_ANSWER_BYTES];
    scratch_dirent_encode(&d, entry);
    assert_hex(entry, sizeof(entry), "0108000022110000000000000300000000000000");
    assert_int_equal(scratch_dirent_decode(slice_of(entry, 19), &e), ERR_CORRUPT);
    buf_clear(&b);
    assert_int_equal(scratch_order_encode(&d, SLICE_LIT("n"), &b), 0);
    assert_hex(b.p, b.n, "010822110000000000006e");
    scratch_counts_encode(&(struct scratch_counts){1, -1, 2}, counts);
    assert_hex(counts, sizeof(counts), "010100000000000000ffffffffffffffff0200000000000000");
    scratch_answer_encode(&(struct scratch_answer){1, 2, 3}, answer);
    assert_hex(answer, sizeof(answer), "01010000000000000002000000000000000300000000000000");
    scratch_key(1, 0x0203, SCRATCH_KEY_ENTRY, SLICE_LIT("n"), &b);
    assert_hex(b.p, b.n, "7300000000000000010000000000000203646e");
    scratch_key_order(1, 2, 3, &b);
    assert_hex(b.p, b.n, "73000000000000000100000000000000026f0000000000000003");
    scratch_key_counts(1, 2, &b);
    assert_hex(b.p, b.n, "7300000000000000010000000000000000630002");
    scratch_key_orphan(1, 2, &b);
    assert_hex(b.p, b.n, "7a00000000000000010000000000000002");
    scratch_key_answer((struct id128){{1}}, 2, &b);
    assert_hex(b.p, b.n, "710100000000000000000000000000000000000002");
}

static int note_opened(void *arg, const struct scratch_opened *x)
{
    struct buf *seen = arg;
    assert_int_equal(buf_printf(seen, "%llu/%llu %u %u;", (unsigned long long)x->bucket,
                                (unsigned long long)x->ino, x->mount.b[0], x->how),
                     0);
    return 0;
}

/* What a mount has open by calls is a record of its bucket, inode and mount; what is none of ours is told. */
static void test_what_is_open_is_as_written_down(void **state)
{
    struct fixture *f = *state;
    struct buf _cleanup_buf_ b = BUF_INIT(4 * KIB), seen = BUF_INIT(4 * KIB);
    struct scratch_opened x = {.bucket = 1, .ino = 0x0203, .mount = {{4}}, .how = SCRATCH_OPENED_WRITES};
    scratch_key_opened(&x, &b);
    assert_hex(b.p, b.n, "790000000000000001000000000000020304000000000000000000000000000000");
    assert_int_equal(scratch_opened_put(f->s, &x, NULL), 0);
    assert_int_equal(kv_get(f->kv, buf_view(&b), &seen, NULL, NULL), 0);
    assert_hex(seen.p, seen.n, "0102");
    buf_clear(&seen);
    x.mount.b[0] = 5;
    x.how |= SCRATCH_OPENED_READS;
    assert_int_equal(scratch_opened_put(f->s, &x, NULL), 0);
    assert_int_equal(scratch_opened_each(f->s, note_opened, &seen, NULL), 0);
    assert_true(slice_eq_str(buf_view(&seen), "1/515 4 2;1/515 5 3;"));
    x.how = 0;
    assert_int_equal(scratch_opened_put(f->s, &x, NULL), 0);
    buf_clear(&seen);
    assert_int_equal(scratch_opened_each(f->s, note_opened, &seen, NULL), 0);
    assert_true(slice_eq_str(buf_view(&seen), "1/515 4 2;"));

    _cleanup_(kv_txn_freep) struct kv_txn *t = kv_txn_new(f->kv);
    kv_txn_put_plain(t, buf_view(&b), SLICE_LIT("\x02\x01")); /* of a format that does not exist */
    assert_int_equal(kv_txn_commit(t, KV_VISIBLE, NULL), 0);
    assert_int_equal(scratch_opened_each(f->s, note_opened, &seen, NULL), ERR_CORRUPT);
}

/* ---- against a model ---- */

#define NODES   64
#define ENTRIES 256
#define NAMES   5

struct node {
    uint64_t ino;
    uint32_t type;
    uint32_t links;
    size_t parent;
};

struct entry {
    size_t dir, node;
    int name;
};

struct model {
    struct node nodes[NODES];
    size_t n_nodes;
    struct entry entries[ENTRIES];
    size_t n_entries;
};

static const char *const names[NAMES] = {"a", "b", "a-x", "c", "long name with spaces"};

static struct entry *find(struct model *m, size_t dir, int name)
{
    for (size_t i = 0; i < m->n_entries; i++)
        if (m->entries[i].dir == dir && m->entries[i].name == name)
            return &m->entries[i];
    return NULL;
}

static size_t entries_in(const struct model *m, size_t dir)
{
    size_t n = 0;
    for (size_t i = 0; i < m->n_entries; i++)
        n += m->entries[i].dir == dir;
    return n;
}

static bool is_dir(const struct model *m, size_t node)
{
    return m->nodes[node].type == S_IFDIR;
}

static void drop(struct model *m, struct entry *x)
{
    struct node *n = &m->nodes[x->node];
    if (n->type == S_IFDIR)
        n->links = 0;
    else
        n->links--;
    *x = m->entries[--m->n_entries];
}

static void add(struct model *m, size_t dir, int name, size_t node)
{
    m->entries[m->n_entries++] = (struct entry){dir, node, name};
    if (is_dir(m, node))
        m->nodes[node].parent = dir;
}

static bool below_itself(const struct model *m, size_t dir, size_t node)
{
    while (dir != 0 && dir != node)
        dir = m->nodes[dir].parent;
    return dir == node;
}

static int model_rename(struct model *m, size_t fd, int fn, size_t td, int tn, uint32_t flags)
{
    struct entry *f = find(m, fd, fn), *t = find(m, td, tn);
    bool exchange = flags & SCRATCH_EXCHANGE;
    if (m->nodes[fd].links == 0 || m->nodes[td].links == 0 || !f)
        return -ENOENT;
    if (t && t->node == f->node)
        return flags & SCRATCH_NOREPLACE ? -EEXIST : 0;
    if (t && flags & SCRATCH_NOREPLACE)
        return -EEXIST;
    if (!t && exchange)
        return -ENOENT;
    if (t && !exchange && is_dir(m, f->node) != is_dir(m, t->node))
        return is_dir(m, f->node) ? -ENOTDIR : -EISDIR;
    if (is_dir(m, f->node) && below_itself(m, td, f->node))
        return -EINVAL;
    if (exchange && is_dir(m, t->node) && below_itself(m, fd, t->node))
        return -EINVAL;
    if (t && !exchange && is_dir(m, t->node) && entries_in(m, t->node) > 0)
        return -ENOTEMPTY;
    size_t fnode = f->node, tnode = t ? t->node : 0;
    if (t && !exchange)
        drop(m, t);
    f = find(m, fd, fn);
    *f = m->entries[--m->n_entries];
    if (exchange) {
        t = find(m, td, tn);
        *t = m->entries[--m->n_entries];
        add(m, fd, fn, tnode);
    }
    add(m, td, tn, fnode);
    return 0;
}

struct seen {
    struct fixture *f;
    struct model *m;
    size_t dir, n;
    uint64_t last;
};

static int see(void *arg, const struct scratch_entry *x)
{
    struct seen *q = arg;
    bool known = false;
    assert_true(x->cookie > q->last);
    q->last = x->cookie;
    for (int i = 0; i < NAMES; i++) {
        struct entry *w = slice_eq_str(x->name, names[i]) ? find(q->m, q->dir, i) : NULL;
        if (!w)
            continue;
        known = true;
        assert_int_equal(x->ino, q->m->nodes[w->node].ino);
        assert_int_equal(x->mode, q->m->nodes[w->node].type);
    }
    assert_true(known);
    q->n++;
    return 0;
}

/* Everything that can be seen is what the model has. */
static void compare(struct fixture *f, struct model *m)
{
    int64_t alive = 0;
    for (size_t i = 0; i < m->n_nodes; i++) {
        struct node *n = &m->nodes[i];
        struct scratch_inode x;
        arena_clear(f->a);
        int r = scratch_getattr(f->s, B, n->ino, f->a, &x, NULL);
        assert_int_equal(r, n->links > 0 ? 0 : -ENOENT);
        if (r < 0)
            continue;
        alive++;
        assert_int_equal(x.mode & S_IFMT, n->type);
        if (n->type != S_IFDIR) {
            assert_int_equal(x.links, n->links);
            continue;
        }
        struct seen q = {.f = f, .m = m, .dir = i};
        uint32_t dirs = 0;
        for (size_t k = 0; k < m->n_entries; k++)
            dirs += m->entries[k].dir == i && is_dir(m, m->entries[k].node);
        assert_int_equal(scratch_readdir(f->s, B, n->ino, 0, 0, see, &q, NULL), 0);
        assert_int_equal(q.n, entries_in(m, i));
        assert_int_equal(x.entries, q.n);
        assert_int_equal(x.links, 2 + dirs);
        assert_int_equal(x.parent, m->nodes[n->parent].ino);
    }
    struct scratch_counts counts;
    assert_int_equal(scratch_statfs(f->s, B, &counts, NULL), 0);
    assert_int_equal(counts.inodes, alive - 1);
}

static size_t any_dir(struct fixture *f, const struct model *m)
{
    for (;;) {
        size_t i = below(f, m->n_nodes);
        if (is_dir(m, i) && (m->nodes[i].links > 0 || below(f, 8) == 0))
            return i;
    }
}

static int model_remove(struct model *m, size_t dir, int name, bool rmdir)
{
    struct entry *x = find(m, dir, name);
    if (m->nodes[dir].links == 0 || !x)
        return -ENOENT;
    if (is_dir(m, x->node) != rmdir)
        return rmdir ? -ENOTDIR : -EISDIR;
    if (rmdir && entries_in(m, x->node) > 0)
        return -ENOTEMPTY;
    drop(m, x);
    return 0;
}

static void random_make(struct fixture *f, struct model *m)
{
    static const uint32_t types[] = {S_IFREG, S_IFDIR, S_IFLNK, S_IFIFO, S_IFDIR};
    size_t dir = any_dir(f, m);
    int name = (int)below(f, NAMES);
    uint32_t type = types[below(f, ARRAY_SIZE(types))];
    if (m->n_nodes == NODES)
        return;
    int want = m->nodes[dir].links == 0 ? -ENOENT : find(m, dir, name) ? -EEXIST : 0;
    int64_t r = make(f, m->nodes[dir].ino, names[name], type | 0644);
    assert_int_equal(r < 0 ? r : 0, want);
    if (r < 0)
        return;
    m->nodes[m->n_nodes] = (struct node){(uint64_t)r, type, type == S_IFDIR ? 2 : 1, dir};
    add(m, dir, name, m->n_nodes++);
}

static void random_link(struct fixture *f, struct model *m)
{
    size_t dir = any_dir(f, m), node = below(f, m->n_nodes);
    int name = (int)below(f, NAMES);
    struct scratch_inode x;
    int want = m->nodes[dir].links == 0 || m->nodes[node].links == 0 ? -ENOENT
               : is_dir(m, node)                                     ? -EPERM
               : find(m, dir, name)                                  ? -EEXIST
                                                                     : 0;
    int r = scratch_link(f->s, &f->call, m->nodes[node].ino, m->nodes[dir].ino, slice_str(names[name]), f->a,
                         &x, NULL);
    assert_int_equal(r, want);
    if (r == 0) {
        m->nodes[node].links++;
        add(m, dir, name, node);
    }
}

static void random_change(struct fixture *f, struct model *m)
{
    size_t d1 = any_dir(f, m), d2 = any_dir(f, m);
    int n1 = (int)below(f, NAMES), n2 = (int)below(f, NAMES);
    struct slice s1 = slice_str(names[n1]), s2 = slice_str(names[n2]);
    struct scratch_orphans o;
    static const uint32_t flags[] = {0, 0, SCRATCH_NOREPLACE, SCRATCH_EXCHANGE};
    uint32_t flag = flags[below(f, 4)];
    switch (below(f, 6)) {
    case 0:
        assert_int_equal(scratch_unlink(f->s, &f->call, m->nodes[d1].ino, s1, &o, NULL, NULL),
                         model_remove(m, d1, n1, /* rmdir= */ false));
        break;
    case 1:
        assert_int_equal(scratch_rmdir(f->s, &f->call, m->nodes[d1].ino, s1, NULL),
                         model_remove(m, d1, n1, /* rmdir= */ true));
        break;
    case 2:
        random_make(f, m);
        break;
    case 3:
        random_link(f, m);
        break;
    default:
        assert_int_equal(
            scratch_rename(f->s, &f->call, m->nodes[d1].ino, s1, m->nodes[d2].ino, s2, flag, &o, NULL, NULL),
            model_rename(m, d1, n1, d2, n2, flag));
        break;
    }
}

static void run_model(struct fixture *f, uint64_t seed, int changes)
{
    struct model m = {.nodes = {{SCRATCH_ROOT, S_IFDIR, 2, 0}}, .n_nodes = 1};
    f->random = seed;
    for (int i = 0; i < changes; i++) {
        random_change(f, &m);
        if (below(f, 50) == 0)
            reopen(f);
        if (i % 20 == 0)
            compare(f, &m);
    }
    compare(f, &m);
}

/* Whatever is made, linked, removed, renamed and exchanged: results and the whole tree are the model's, also
 * when the cache is lost in between. */
static void test_random_changes_follow_the_model(void **state)
{
    for (uint64_t seed = seeds_first(); seed < seeds_end(12); seed++) {
        void *fresh;
        setup(&fresh);
        run_model(fresh, seeds_tell(seed), 600);
        teardown(&fresh);
    }
}

/* The same on the engine that nodes use, closed and opened again now and then. */
static void test_random_changes_on_disk_follow_the_model(void **state)
{
    void *fresh;
    setup_in(&fresh, tmpdir_new());
    run_model(fresh, seeds_first(), 200);
    teardown(&fresh);
}

/* ---- orphans ---- */

static int note_orphan(void *arg, const struct scratch_orphan *x)
{
    int *n = arg;
    assert_int_equal(x->location_bytes, x->location_bytes > 0 ? 5 : 0);
    assert_memory_equal(x->location, "there", x->location_bytes);
    (*n) += x->location_bytes > 0 ? 1 : 100;
    return 0;
}

/* A removed file that is held stays with its attributes; its data is handed out once, at the last release. */
static void test_a_held_file_outlives_its_name(void **state)
{
    struct fixture *f = *state;
    uint64_t ino = (uint64_t)make(f, SCRATCH_ROOT, "a", S_IFREG | 0644);
    struct scratch_orphans o = {0};
    give_location(f, ino, "there");
    assert_int_equal(scratch_hold(f->s, B, ino, NULL), 0);
    assert_int_equal(scratch_hold(f->s, B, ino, NULL), 0);
    assert_int_equal(scratch_unlink(f->s, &f->call, SCRATCH_ROOT, SLICE_LIT("a"), &o, NULL, NULL), 0);
    assert_int_equal(o.n, 0);
    assert_int_equal(attr(f, ino).size_bytes, 10);
    assert_int_equal(attr(f, ino).links, 0);
    assert_int_equal(scratch_bury(f->s, B, ino, NULL), -EBUSY);
    assert_int_equal(scratch_release(f->s, B, ino, &o, NULL), 0);
    assert_int_equal(o.n, 0);
    assert_int_equal(scratch_bucket_remove(f->s, B, NULL), -ENOTEMPTY);
    assert_int_equal(scratch_release(f->s, B, ino, &o, NULL), 0);
    assert_int_equal(o.n, 1);
    assert_int_equal(o.v[0].ino, ino);
    assert_memory_equal(o.v[0].location, "there", 5);
    assert_int_equal(scratch_hold(f->s, B, ino, NULL), -ENOENT);
    assert_int_equal(scratch_bury(f->s, B, ino, NULL), 0);
    assert_int_equal(attr(f, ino).ino, 0);
    assert_int_equal(keys_of(f, 'z'), 0);
    assert_int_equal(scratch_bucket_remove(f->s, B, NULL), 0);
    assert_int_equal(keys_of(f, 's'), 0);
}

/* Orphans that a dead process left are handed out at the next start, once, whether they were held or not. */
static void test_a_sweep_finds_what_was_left(void **state)
{
    struct fixture *f = *state;
    struct scratch_orphans o;
    int n = 0;
    for (int i = 0; i < 2; i++) {
        uint64_t ino = (uint64_t)make(f, SCRATCH_ROOT, "a", S_IFREG | 0644);
        give_location(f, ino, "there");
        if (i == 0)
            assert_int_equal(scratch_hold(f->s, B, ino, NULL), 0);
        assert_int_equal(scratch_unlink(f->s, &f->call, SCRATCH_ROOT, SLICE_LIT("a"), &o, NULL, NULL), 0);
    }
    struct scratch_new nameless = {.mode = S_IFREG | 0600};
    struct scratch_inode x;
    assert_int_equal(
        scratch_create(f->s, &f->call, SCRATCH_ROOT, SLICE_NULL, &nameless, f->a, &x, NULL, NULL), 0);
    assert_int_equal(keys_of(f, 'z'), 3);
    /* What other parts keep in the control store is left alone. */
    struct kv_txn *_cleanup_(kv_txn_freep) t = kv_txn_new(f->kv);
    static const char *const others[] = {"b/data", "n/bucket", "u/a-user-of-14-ch"};
    for (size_t i = 0; i < ARRAY_SIZE(others); i++)
        kv_txn_put(t, slice_str(others[i]), SLICE_LIT("x"));
    assert_int_equal(kv_txn_commit(t, KV_VISIBLE, NULL), 0);
    reopen(f);
    assert_int_equal(scratch_sweep(f->s, note_orphan, &n, NULL), 0);
    assert_int_equal(n, 102); /* the nameless one has no data */
    assert_int_equal(keys_of(f, 'z'), 0);
    assert_int_equal(scratch_sweep(f->s, note_orphan, &n, NULL), 0);
    assert_int_equal(n, 102);
    assert_int_equal(scratch_bucket_remove(f->s, B, NULL), 0);
    for (size_t i = 0; i < ARRAY_SIZE(others); i++)
        assert_int_equal(kv_get(f->kv, slice_str(others[i]), NULL, NULL, NULL), 0);
}

/* A file made without a name can be given one, and is no orphan from then on. */
static void test_a_nameless_file_gets_a_name(void **state)
{
    struct fixture *f = *state;
    struct scratch_new nameless = {.mode = S_IFREG | 0600};
    struct scratch_inode x;
    struct scratch_orphans o;
    assert_int_equal(
        scratch_create(f->s, &f->call, SCRATCH_ROOT, SLICE_NULL, &nameless, f->a, &x, NULL, NULL), 0);
    assert_int_equal(x.links, 0);
    assert_int_equal(scratch_link(f->s, &f->call, x.ino, SCRATCH_ROOT, SLICE_LIT("n"), f->a, &x, NULL), 0);
    assert_int_equal(x.links, 1);
    assert_int_equal(scratch_release(f->s, B, x.ino, &o, NULL), 0);
    assert_int_equal(keys_of(f, 'z'), 0);
    assert_int_equal(attr(f, x.ino).links, 1);
}

/* ---- resent requests ---- */

/* A request that comes again answers as the first time and changes nothing, also after a restart; another
 * request is carried out. */
static void test_a_resent_request_answers_as_the_first(void **state)
{
    struct fixture *f = *state;
    struct scratch_orphans o;
    f->call.mount = (struct id128){{1, 2, 3}};
    f->call.request = 1;
    int64_t ino = make(f, SCRATCH_ROOT, "a", S_IFREG | 0644);
    assert_true(ino > 0);
    assert_int_equal(make(f, SCRATCH_ROOT, "a", S_IFREG | 0644), ino);
    f->call.request = 2;
    assert_int_equal(make(f, SCRATCH_ROOT, "a", S_IFREG | 0644), -EEXIST);
    assert_int_equal(scratch_rename(f->s, &f->call, SCRATCH_ROOT, SLICE_LIT("a"), SCRATCH_ROOT,
                                    SLICE_LIT("b"), 0, &o, NULL, NULL),
                     0);
    reopen(f);
    assert_int_equal(scratch_rename(f->s, &f->call, SCRATCH_ROOT, SLICE_LIT("a"), SCRATCH_ROOT,
                                    SLICE_LIT("b"), 0, &o, NULL, NULL),
                     0);
    f->call.request = 2 + SCRATCH_ANSWERS_MAX; /* takes the place of 2 */
    assert_int_equal(scratch_unlink(f->s, &f->call, SCRATCH_ROOT, SLICE_LIT("b"), &o, NULL, NULL), 0);
    assert_int_equal(scratch_unlink(f->s, &f->call, SCRATCH_ROOT, SLICE_LIT("b"), &o, NULL, NULL), 0);
    assert_int_equal(keys_of(f, 'q'), 2);
    assert_int_equal(scratch_forget_mount(f->s, f->call.mount, NULL), 0);
    assert_int_equal(keys_of(f, 'q'), 0);
    assert_int_equal(scratch_unlink(f->s, &f->call, SCRATCH_ROOT, SLICE_LIT("b"), &o, NULL, NULL), -ENOENT);
}

/* A mount's numbers go on, four for each request of its kernel, while one of its threads waits before it asks
 * a node again that was restarted: its request is still known then. */
static void test_a_request_comes_again_after_many_others(void **state)
{
    struct fixture *f = *state;
    f->call.mount = (struct id128){{1, 2, 3}};
    f->call.request = 4;
    int64_t ino = make(f, SCRATCH_ROOT, "a", S_IFDIR | 0755);
    assert_true(ino > 0);
    for (uint64_t i = 1; i <= 16; i++) {
        char name[16];
        (void)snprintf(name, sizeof(name), "%llu", (unsigned long long)i);
        f->call.request = 4 + 4 * 1024 * i;
        assert_true(make(f, SCRATCH_ROOT, name, S_IFDIR | 0755) > 0);
    }
    f->call.request = 4;
    assert_int_equal(make(f, SCRATCH_ROOT, "a", S_IFDIR | 0755), ino);
}

#define HOUR_NS (3600 * (uint64_t)1000000000)

/* Answers that are older than a day are forgotten, at any time, and no others. */
static void test_old_answers_are_forgotten(void **state)
{
    struct fixture *f = *state;
    clock_sys_start(HOUR_NS, 1000000 * HOUR_NS);
    f->call.mount = (struct id128){{1, 2, 3}};
    f->call.request = 1;
    int64_t a = make(f, SCRATCH_ROOT, "a", S_IFREG | 0644);
    clock_sys_advance(23 * HOUR_NS);
    f->call.request = 2;
    int64_t b = make(f, SCRATCH_ROOT, "b", S_IFREG | 0644);
    int early = scratch_forget_old_answers(f->s, NULL);
    size_t n_early = keys_of(f, 'q');
    clock_sys_advance(2 * HOUR_NS);
    int late = scratch_forget_old_answers(f->s, NULL);
    size_t n_late = keys_of(f, 'q');
    int64_t b_again = make(f, SCRATCH_ROOT, "b", S_IFREG | 0644);
    f->call.request = 1;
    int64_t a_again = make(f, SCRATCH_ROOT, "a", S_IFREG | 0644);
    clock_sys_stop();
    assert_true(a > 0 && b > 0 && early == 0 && late == 0);
    assert_int_equal(n_early, 2);
    assert_int_equal(n_late, 1);
    assert_int_equal(b_again, b);
    assert_int_equal(a_again, -EEXIST);
}

/* ---- directories ---- */

struct page {
    uint64_t cookies[64];
    char names[64][16];
    size_t n, max;
};

static int take_entry(void *arg, const struct scratch_entry *x)
{
    struct page *p = arg;
    if (p->n == p->max)
        return 1;
    p->cookies[p->n] = x->cookie;
    (void)snprintf(p->names[p->n++], 16, SLICE_FMT, SLICE_ARG(x->name));
    return 0;
}

/* Going on from a cookie gives every entry that stayed once, none twice, whatever was removed, made or
 * renamed in between, the entry of the cookie itself among it; entries made meanwhile end the reading at
 * `until`. */
static void test_reading_goes_on_while_the_directory_changes(void **state)
{
    struct fixture *f = *state;
    struct scratch_orphans o;
    char name[16];
    for (int i = 0; i < 40; i++) {
        (void)snprintf(name, sizeof(name), "stay%02d", i);
        assert_true(make(f, SCRATCH_ROOT, name, S_IFREG | 0644) > 0);
        (void)snprintf(name, sizeof(name), "go%02d", i);
        assert_true(make(f, SCRATCH_ROOT, name, S_IFREG | 0644) > 0);
    }
    uint64_t until, cookie = 0;
    assert_int_equal(scratch_readdir_end(f->s, B, SCRATCH_ROOT, &until, NULL), 0);
    int stayed[40] = {0}, step = 0;
    for (;;) {
        struct page p = {.max = 3};
        assert_int_equal(scratch_readdir(f->s, B, SCRATCH_ROOT, cookie, until, take_entry, &p, NULL), 0);
        if (p.n == 0)
            break;
        for (size_t i = 0; i < p.n; i++) {
            if (strncmp(p.names[i], "stay", 4) == 0)
                stayed[atoi(p.names[i] + 4)]++;
            assert_true(strncmp(p.names[i], "new", 3) != 0);
        }
        cookie = p.cookies[p.n - 1];
        (void)snprintf(name, sizeof(name), "go%02d", step);
        (void)scratch_unlink(f->s, &f->call, SCRATCH_ROOT, slice_str(name), &o, NULL, NULL);
        (void)snprintf(name, sizeof(name), "go%02d", 39 - step);
        (void)scratch_rename(f->s, &f->call, SCRATCH_ROOT, slice_str(name), SCRATCH_ROOT, SLICE_LIT("new"), 0,
                             &o, NULL, NULL);
        (void)snprintf(name, sizeof(name), "new%02d", step++);
        assert_true(make(f, SCRATCH_ROOT, name, S_IFREG | 0644) > 0);
    }
    assert_true(step > 10);
    for (int i = 0; i < 40; i++)
        assert_int_equal(stayed[i], 1);
}

/* ---- rules ---- */

/* Owner, group and set-group-ID of what is made in a set-group-ID directory, and the caller's umask. */
static void test_new_files_get_the_right_owner(void **state)
{
    struct fixture *f = *state;
    uint64_t dir = (uint64_t)make(f, SCRATCH_ROOT, "d", S_IFDIR | 0777);
    struct scratch_set set = {.what = SCRATCH_SET_MODE | SCRATCH_SET_GID, .mode = 02777, .gid = 50};
    struct scratch_inode x;
    assert_int_equal(scratch_setattr(f->s, &f->call, dir, &set, f->a, &x, NULL), 0);
    struct scratch_cred cred = {.uid = 10, .gid = 20, .umask = 022, .check = true};
    f->call.cred = &cred;
    x = attr(f, (uint64_t)make(f, dir, "file", S_IFREG | 02777));
    assert_int_equal(x.uid, 10);
    assert_int_equal(x.gid, 50);
    assert_int_equal(x.mode, S_IFREG | 0755); /* not in the group: no set-group-ID program */
    cred.is_group_checked = true;
    x = attr(f, (uint64_t)make(f, dir, "by a member", S_IFREG | 02777));
    assert_int_equal(x.mode, S_IFREG | 02755);
    x = attr(f, (uint64_t)make(f, dir, "sub", S_IFDIR | 0777));
    assert_int_equal(x.gid, 50);
    assert_int_equal(x.mode, S_IFDIR | 02755);
}

/* Without the kernel's check: who may write, remove from a sticky directory, change owner and permissions. */
static void test_permissions_are_checked_when_asked(void **state)
{
    struct fixture *f = *state;
    struct scratch_orphans o;
    struct scratch_inode x;
    uint64_t dir = (uint64_t)make(f, SCRATCH_ROOT, "d", S_IFDIR | 0777);
    struct scratch_set sticky = {.what = SCRATCH_SET_MODE, .mode = 01777};
    assert_int_equal(scratch_setattr(f->s, &f->call, dir, &sticky, f->a, &x, NULL), 0);
    struct scratch_cred a = {.uid = 10, .gid = 10, .check = true}, b = {.uid = 11, .gid = 11, .check = true};
    f->call.cred = &a;
    assert_int_equal(make(f, SCRATCH_ROOT, "no", S_IFREG | 0644), -EACCES);
    uint64_t ino = (uint64_t)make(f, dir, "mine", S_IFREG | 0644);
    f->call.cred = &b;
    assert_int_equal(scratch_unlink(f->s, &f->call, dir, SLICE_LIT("mine"), &o, NULL, NULL), -EPERM);
    assert_int_equal(
        scratch_rename(f->s, &f->call, dir, SLICE_LIT("mine"), dir, SLICE_LIT("x"), 0, &o, NULL, NULL),
        -EPERM);
    assert_int_equal(scratch_setattr(f->s, &f->call, ino, &sticky, f->a, &x, NULL), -EPERM);
    f->call.cred = &a;
    struct scratch_set give = {.what = SCRATCH_SET_UID, .uid = 11};
    assert_int_equal(scratch_setattr(f->s, &f->call, ino, &give, f->a, &x, NULL), -EPERM);
    assert_int_equal(scratch_unlink(f->s, &f->call, dir, SLICE_LIT("mine"), &o, NULL, NULL), 0);
}

static int set_as(struct fixture *f, const struct scratch_cred *cred, uint64_t ino, struct scratch_set set,
                  struct scratch_inode *ret)
{
    f->call.cred = cred;
    return scratch_setattr(f->s, &f->call, ino, &set, f->a, ret, NULL);
}

/* Without the kernel's check: each of the caller's groups counts, for what it may make, and for the group and
 * the set-group-ID bit that it may give. */
static void test_groups_of_the_caller_count(void **state)
{
    struct fixture *f = *state;
    static const uint32_t groups[] = {70, 71};
    struct scratch_cred member = {.uid = 10, .gid = 10, .groups = groups, .n_groups = 2, .check = true};
    struct scratch_cred stranger = {.uid = 12, .gid = 12, .check = true};
    struct scratch_inode x;
    uint64_t dir = (uint64_t)make(f, SCRATCH_ROOT, "d", S_IFDIR | 0777);
    for (size_t i = 0; i < ARRAY_SIZE(groups); i++) {
        struct scratch_set set = {.what = SCRATCH_SET_MODE | SCRATCH_SET_GID, .mode = 0770, .gid = groups[i]};
        assert_int_equal(set_as(f, NULL, dir, set, &x), 0);
        f->call.cred = &stranger;
        assert_int_equal(make(f, dir, "no", S_IFREG | 0644), -EACCES);
        f->call.cred = &member;
        assert_true(make(f, dir, i == 0 ? "one" : "other", S_IFREG | 0644) > 0);
    }
    uint64_t ino = (uint64_t)make(f, dir, "mine", S_IFREG | 0755);
    struct scratch_set group = {.what = SCRATCH_SET_GID, .gid = 72};
    assert_int_equal(set_as(f, &member, ino, group, &x), -EPERM);
    group.gid = 71;
    assert_int_equal(set_as(f, &member, ino, group, &x), 0);
    assert_int_equal(x.gid, 71);
    struct scratch_set mode = {.what = SCRATCH_SET_MODE, .mode = 02755};
    assert_int_equal(set_as(f, &member, ino, mode, &x), 0);
    assert_int_equal(x.mode, S_IFREG | 02755);
    group.gid = 72;
    assert_int_equal(set_as(f, NULL, ino, group, &x), 0);
    assert_int_equal(x.mode, S_IFREG | 0755); /* a change of the group takes the bit */
    assert_int_equal(set_as(f, &member, ino, mode, &x), 0);
    assert_int_equal(x.mode, S_IFREG | 0755); /* and who is not in the group does not give it */
}

/* A write takes set-user-ID, and set-group-ID where the group may execute; where it may not, only when it is
 * said that who wrote is not in the group. Directories keep theirs. */
static void test_bits_of_rank_go_as_far_as_is_asked(void **state)
{
    struct fixture *f = *state;
    struct scratch_inode x;
    static const struct {
        uint32_t kind, mode, what, left;
    } cases[] = {
        {S_IFREG, 06777, SCRATCH_SET_DROP_PRIVILEGE, 0777},
        {S_IFREG, 06767, SCRATCH_SET_DROP_PRIVILEGE, 02767},
        {S_IFREG, 06767, SCRATCH_SET_DROP_GROUP, 04767},
        {S_IFREG, 02644, SCRATCH_SET_DROP_GROUP, 0644},
        {S_IFDIR, 02775, SCRATCH_SET_DROP_PRIVILEGE, 02775},
        {S_IFDIR, 02765, SCRATCH_SET_DROP_GROUP, 02765},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        char name[16];
        (void)snprintf(name, sizeof(name), "n%zu", i);
        uint64_t ino = (uint64_t)make(f, SCRATCH_ROOT, name, cases[i].kind | 0777);
        struct scratch_set mode = {.what = SCRATCH_SET_MODE, .mode = cases[i].mode},
                           drop = {.what = cases[i].what};
        assert_int_equal(set_as(f, NULL, ino, mode, &x), 0);
        assert_int_equal(set_as(f, NULL, ino, drop, &x), 0);
        assert_int_equal(x.mode, cases[i].kind | cases[i].left);
    }
}

/* Without the kernel's check: removing takes writing and searching, and a sticky directory's owner may remove
 * what is others'; the owner sets the time to now without a right to write, others with one. */
static void test_owners_and_writers(void **state)
{
    struct fixture *f = *state;
    struct scratch_cred owner = {.uid = 10, .gid = 10, .check = true},
                        other = {.uid = 11, .gid = 11, .check = true};
    struct scratch_orphans o;
    struct scratch_inode x;
    uint64_t dir = (uint64_t)make(f, SCRATCH_ROOT, "d", S_IFDIR | 0777);
    struct scratch_set sticky = {.what = SCRATCH_SET_MODE | SCRATCH_SET_UID, .mode = 01777, .uid = 10};
    assert_int_equal(set_as(f, NULL, dir, sticky, &x), 0);
    f->call.cred = &other;
    uint64_t ino = (uint64_t)make(f, dir, "theirs", S_IFREG | 0444);
    assert_true(make(f, dir, "more", S_IFREG | 0644) > 0);
    f->call.cred = &owner;
    assert_int_equal(scratch_unlink(f->s, &f->call, dir, SLICE_LIT("more"), &o, NULL, NULL), 0);
    struct scratch_set now = {.what = SCRATCH_SET_ATIME_NOW | SCRATCH_SET_MTIME_NOW};
    assert_int_equal(set_as(f, &other, ino, now, &x), 0);
    assert_int_equal(set_as(f, &owner, ino, now, &x), -EACCES);
    struct scratch_set mode = {.what = SCRATCH_SET_MODE, .mode = 0446};
    assert_int_equal(set_as(f, NULL, ino, mode, &x), 0);
    assert_int_equal(set_as(f, &owner, ino, now, &x), 0);
    static const uint32_t too_little[] = {0100, 0200, 0500};
    for (size_t i = 0; i < ARRAY_SIZE(too_little); i++) {
        mode.mode = too_little[i];
        assert_int_equal(set_as(f, NULL, dir, mode, &x), 0);
        f->call.cred = &owner;
        assert_int_equal(scratch_unlink(f->s, &f->call, dir, SLICE_LIT("theirs"), &o, NULL, NULL), -EACCES);
    }
    mode.mode = 0300;
    assert_int_equal(set_as(f, NULL, dir, mode, &x), 0);
    f->call.cred = &owner;
    assert_int_equal(scratch_unlink(f->s, &f->call, dir, SLICE_LIT("theirs"), &o, NULL, NULL), 0);
}

/* Names, targets and links beyond their limits get the errors that POSIX names. */
static void test_limits_are_refused(void **state)
{
    struct fixture *f = *state;
    char name[SCRATCH_NAME_MAX + 2], target[SCRATCH_TARGET_MAX + 2];
    memset(name, 'n', sizeof(name));
    memset(target, 't', sizeof(target));
    struct scratch_new n = {
        .mode = S_IFLNK, .target = slice_of(target, SCRATCH_TARGET_MAX), .exclusive = true};
    struct scratch_inode x;
    struct slice longest = slice_of(name, SCRATCH_NAME_MAX), longer = slice_of(name, SCRATCH_NAME_MAX + 1);
    assert_int_equal(scratch_create(f->s, &f->call, SCRATCH_ROOT, longer, &n, f->a, &x, NULL, NULL),
                     -ENAMETOOLONG);
    assert_int_equal(scratch_create(f->s, &f->call, SCRATCH_ROOT, longest, &n, f->a, &x, NULL, NULL), 0);
    assert_true(slice_eq(attr(f, x.ino).target, n.target));
    n.target.n++;
    assert_int_equal(scratch_create(f->s, &f->call, SCRATCH_ROOT, SLICE_LIT("b"), &n, f->a, &x, NULL, NULL),
                     -ENAMETOOLONG);
    assert_int_equal(make(f, SCRATCH_ROOT, "..", S_IFDIR), -EEXIST);
    assert_int_equal(make(f, SCRATCH_ROOT, "a/b", S_IFDIR), -EINVAL);
    assert_int_equal(make(f, (uint64_t)make(f, SCRATCH_ROOT, "f", S_IFREG), "x", S_IFREG), -ENOTDIR);
}

/* Writes the inode's record with as many links as there may be. */
static void fill_links(struct fixture *f, uint64_t ino)
{
    struct buf _cleanup_buf_ key = BUF_INIT(KIB), value = BUF_INIT(SCRATCH_RECORD_MAX);
    struct kv_txn *_cleanup_(kv_txn_freep) t = kv_txn_new(f->kv);
    struct scratch_inode x = attr(f, ino);
    x.links = SCRATCH_LINK_MAX;
    assert_int_equal(scratch_inode_encode(&x, &value), 0);
    scratch_key(B, ino, SCRATCH_KEY_INODE, SLICE_NULL, &key);
    kv_txn_put(t, buf_view(&key), buf_view(&value));
    assert_int_equal(kv_txn_commit(t, KV_VISIBLE, NULL), 0);
    reopen(f);
}

/* A file with all the links it may have gets no further one, a directory no further directory, made or moved
 * there; other entries are still welcome. */
static void test_links_have_a_limit(void **state)
{
    struct fixture *f = *state;
    struct scratch_orphans o;
    struct scratch_inode x;
    uint64_t file = (uint64_t)make(f, SCRATCH_ROOT, "file", S_IFREG | 0644);
    uint64_t dir = (uint64_t)make(f, SCRATCH_ROOT, "dir", S_IFDIR | 0755);
    (void)make(f, SCRATCH_ROOT, "other", S_IFDIR | 0755);
    fill_links(f, file);
    fill_links(f, dir);
    assert_int_equal(scratch_link(f->s, &f->call, file, SCRATCH_ROOT, SLICE_LIT("l"), f->a, &x, NULL),
                     -EMLINK);
    assert_int_equal(make(f, dir, "sub", S_IFDIR | 0755), -EMLINK);
    assert_int_equal(scratch_rename(f->s, &f->call, SCRATCH_ROOT, SLICE_LIT("other"), dir, SLICE_LIT("sub"),
                                    0, &o, NULL, NULL),
                     -EMLINK);
    assert_true(make(f, dir, "sub", S_IFREG | 0644) > 0);
}

/* Attributes come and go with their flags and limits, are listed by name, and leave with their inode. */
static void test_extended_attributes(void **state)
{
    struct fixture *f = *state;
    uint64_t ino = (uint64_t)make(f, SCRATCH_ROOT, "a", S_IFREG | 0644);
    struct buf _cleanup_buf_ b = BUF_INIT(SCRATCH_XATTR_MAX + 1);
    struct slice name = SLICE_LIT("user.n");
    struct scratch_orphans o;
    assert_int_equal(
        scratch_xattr_set(f->s, &f->call, ino, name, SLICE_LIT("1"), SCRATCH_XATTR_REPLACE, NULL), -ENODATA);
    assert_int_equal(scratch_xattr_set(f->s, &f->call, ino, name, SLICE_LIT("1"), SCRATCH_XATTR_CREATE, NULL),
                     0);
    assert_int_equal(scratch_xattr_set(f->s, &f->call, ino, name, SLICE_LIT("2"), SCRATCH_XATTR_CREATE, NULL),
                     -EEXIST);
    assert_int_equal(scratch_xattr_set(f->s, &f->call, ino, name, SLICE_NULL, 0, NULL), 0);
    assert_int_equal(scratch_xattr_set(f->s, &f->call, ino, SLICE_LIT("security.x"), SLICE_LIT("v"), 0, NULL),
                     0);
    assert_int_equal(scratch_xattr_get(f->s, B, ino, name, &b, NULL), 0);
    assert_int_equal(b.n, 0);
    assert_int_equal(scratch_xattr_list(f->s, B, ino, &b, NULL), 0);
    assert_true(slice_eq(buf_view(&b), SLICE_LIT("security.x\0user.n\0")));
    assert_int_equal(scratch_xattr_remove(f->s, &f->call, ino, name, NULL), 0);
    assert_int_equal(scratch_xattr_remove(f->s, &f->call, ino, name, NULL), -ENODATA);
    char *big = calloc(1, SCRATCH_XATTR_MAX + 1);
    assert_int_equal(
        scratch_xattr_set(f->s, &f->call, ino, name, slice_of(big, SCRATCH_XATTR_MAX + 1), 0, NULL), -E2BIG);
    assert_int_equal(scratch_xattr_set(f->s, &f->call, ino, name, slice_of(big, SCRATCH_XATTR_MAX), 0, NULL),
                     0);
    free(big);
    char many[256];
    memset(many, 'm', sizeof(many));
    int r = 0, count = 0;
    while (r == 0) {
        int digits = snprintf(many, sizeof(many), "%08d", count++);
        many[digits] = 'm';
        r = scratch_xattr_set(f->s, &f->call, ino, slice_of(many, 255), SLICE_NULL, 0, NULL);
    }
    assert_int_equal(r, -ENOSPC);
    assert_true(count > 250);
    assert_int_equal(scratch_unlink(f->s, &f->call, SCRATCH_ROOT, SLICE_LIT("a"), &o, NULL, NULL), 0);
    assert_int_equal(scratch_bucket_remove(f->s, B, NULL), 0);
    assert_int_equal(keys_of(f, 's'), 0);
}

/* Size, times and location are what was set; a new size takes the ETag away; directories have none of it. */
static void test_attributes_are_what_was_set(void **state)
{
    struct fixture *f = *state;
    uint64_t ino = (uint64_t)make(f, SCRATCH_ROOT, "a", S_IFREG | 0644);
    struct scratch_inode x;
    struct scratch_set set = {.what = SCRATCH_SET_ETAG | SCRATCH_SET_MTIME | SCRATCH_SET_LOCATION |
                                      SCRATCH_SET_SIZE | SCRATCH_SET_ALLOCATED,
                              .etag = SLICE_LIT("abc"),
                              .mtime_ns = -5,
                              .location = SLICE_LIT("here"),
                              .size_bytes = 1 << 20,
                              .allocated_bytes = 8192};
    assert_int_equal(scratch_setattr(f->s, &f->call, ino, &set, f->a, &x, NULL), 0);
    reopen(f);
    x = attr(f, ino);
    assert_int_equal(x.mtime_ns, -5);
    assert_true(slice_eq_str(x.location, "here"));
    assert_true(slice_eq_str(scratch_etag(&x, f->a), "abc"));
    struct scratch_counts counts;
    assert_int_equal(scratch_statfs(f->s, B, &counts, NULL), 0);
    assert_int_equal(counts.bytes, 8192);
    set = (struct scratch_set){.what = SCRATCH_SET_SIZE, .size_bytes = 5};
    assert_int_equal(scratch_setattr(f->s, &f->call, ino, &set, f->a, &x, NULL), 0);
    assert_int_equal(x.etag.n, 0);
    assert_true(scratch_etag(&x, f->a).n > 10);
    assert_int_equal(scratch_setattr(f->s, &f->call, SCRATCH_ROOT, &set, f->a, &x, NULL), -EISDIR);
    set = (struct scratch_set){.what = SCRATCH_SET_MODE, .mode = 06755};
    assert_int_equal(scratch_setattr(f->s, &f->call, ino, &set, f->a, &x, NULL), 0);
    set = (struct scratch_set){.what = SCRATCH_SET_UID, .uid = 3};
    assert_int_equal(scratch_setattr(f->s, &f->call, ino, &set, f->a, &x, NULL), 0);
    assert_int_equal(x.mode, S_IFREG | 0755);
}

/* The numbers that no inode has, 0, the key table's and those above all shards, are nowhere: nothing is found
 * there, nothing goes there, and a directory that a client moves to them stays. */
static void test_numbers_of_no_inode_are_nowhere(void **state)
{
    struct fixture *f = *state;
    const uint64_t nowhere[] = {0, SCRATCH_INO_KEYS,
                                (uint64_t)1 << (SCRATCH_SHARD_BITS + SCRATCH_SEQUENCE_BITS), UINT64_MAX};
    struct scratch_orphans o = {0};
    assert_true(make(f, SCRATCH_ROOT, "dir", S_IFDIR | 0755) > 0);
    assert_true(make(f, SCRATCH_ROOT, "file", S_IFREG | 0644) > 0);
    for (size_t i = 0; i < ARRAY_SIZE(nowhere); i++) {
        uint64_t no = nowhere[i];
        assert_int_equal(scratch_hold(f->s, B, no, NULL), -ENOENT);
        assert_int_equal(make(f, no, "x", S_IFREG | 0644), -ENOENT);
        assert_int_equal(scratch_rename(f->s, &f->call, SCRATCH_ROOT, SLICE_LIT("dir"), no, SLICE_LIT("x"), 0,
                                        &o, NULL, NULL),
                         -ENOENT);
        assert_int_equal(scratch_rename(f->s, &f->call, SCRATCH_ROOT, SLICE_LIT("file"), no, SLICE_LIT("x"),
                                        0, &o, NULL, NULL),
                         -ENOENT);
        assert_int_equal(scratch_rename(f->s, &f->call, no, SLICE_LIT("x"), SCRATCH_ROOT, SLICE_LIT("y"), 0,
                                        &o, NULL, NULL),
                         -ENOENT);
    }
}

int main(void)
{
#define WITH(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formats_are_as_written_down),
        WITH(test_what_is_open_is_as_written_down),
        cmocka_unit_test(test_random_changes_follow_the_model),
        cmocka_unit_test(test_random_changes_on_disk_follow_the_model),
        WITH(test_numbers_of_no_inode_are_nowhere),
        WITH(test_a_held_file_outlives_its_name),
        WITH(test_a_sweep_finds_what_was_left),
        WITH(test_a_nameless_file_gets_a_name),
        WITH(test_a_resent_request_answers_as_the_first),
        WITH(test_a_request_comes_again_after_many_others),
        WITH(test_old_answers_are_forgotten),
        WITH(test_reading_goes_on_while_the_directory_changes),
        WITH(test_new_files_get_the_right_owner),
        WITH(test_permissions_are_checked_when_asked),
        WITH(test_groups_of_the_caller_count),
        WITH(test_bits_of_rank_go_as_far_as_is_asked),
        WITH(test_owners_and_writers),
        WITH(test_limits_are_refused),
        WITH(test_links_have_a_limit),
        WITH(test_extended_attributes),
        WITH(test_attributes_are_what_was_set),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

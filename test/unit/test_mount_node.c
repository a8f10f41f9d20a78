/* layer: mount */
/* threaded */
/* The table of inodes: versions, references, names, and a long random run. */
#include "mount/node.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>

#include <cmocka.h>

static struct node_attr file_attr(const char *etag, uint64_t size)
{
    return (struct node_attr){.size_bytes = size, .mtime_ns = 5, .etag = slice_str(etag)};
}

static struct node *look(struct node_table *t, struct node *parent, const char *name, const char *etag,
                         uint64_t size)
{
    struct node_attr a = etag ? file_attr(etag, size) : (struct node_attr){.is_dir = true};
    return node_look_up(t, parent, slice_str(name), &a);
}

static struct node *root_of(struct node_table *t)
{
    return node_get(t, NODE_ROOT_ID);
}

/* Of every node but the root. */
static void test_ids_of_all(void **state)
{
    (void)state;
    _cleanup_(node_table_freep) struct node_table *t = node_table_new(NULL, /* keeps_all= */ false);
    struct node *root = root_of(t), *d = look(t, root, "d", NULL, 0), *f = look(t, d, "f", "e", 1);
    uint64_t *ids;
    assert_int_equal(node_table_ids(t, &ids), 2);
    assert_true(ids[0] + ids[1] == d->id + f->id && ids[0] != ids[1]);
    free(ids);
    node_unref(t, f);
    node_unref(t, d);
    node_unref(t, root);
}

/* A detached inode gets its name back from the one that had it meanwhile, which is not opened any more; but
 * not from one that is written, and not when it is unlinked. */
static void test_a_name_that_is_given_back(void **state)
{
    (void)state;
    _cleanup_(node_table_freep) struct node_table *t = node_table_new(NULL, /* keeps_all= */ false);
    struct node *root = root_of(t), *a = look(t, root, "f", "e1", 10);
    assert_null(node_attach(t, a)); /* it has it */
    node_detach(t, a, /* is_unlinked= */ false);
    a->is_spoilt = true;
    struct node *b = look(t, root, "f", "e2", 10);
    b->staging = (struct staging *)(uintptr_t)1;
    assert_null(node_attach(t, a));
    assert_true(b->is_attached && !a->is_attached);
    b->staging = NULL;
    struct node *there = node_attach(t, a);
    assert_ptr_equal(there, b);
    assert_true(a->is_attached && !a->is_spoilt && !b->is_attached && b->is_spoilt);
    node_table_check(t);
    node_unref(t, there);
    node_detach(t, a, /* is_unlinked= */ true);
    assert_null(node_attach(t, a));
    assert_false(a->is_attached);
    node_table_check(t);
    struct node *nodes[] = {a, b};
    for (size_t i = 0; i < 2; i++) {
        uint64_t id = nodes[i]->id;
        node_unref(t, nodes[i]);
        node_forget(t, id, 1);
    }
    assert_int_equal(node_table_count(t), 0);
    node_unref(t, root);
}

/* A lookup of the same version gives the same inode, and each counts. */
static void test_same_version_same_inode(void **state)
{
    (void)state;
    _cleanup_(node_table_freep) struct node_table *t = node_table_new(NULL, /* keeps_all= */ false);
    struct node *root = root_of(t), *a = look(t, root, "f", "e1", 10), *b = look(t, root, "f", "e1", 10);
    assert_ptr_equal(a, b);
    assert_int_equal(a->lookups, 2);
    node_table_check(t);
    uint64_t id = a->id;
    node_unref(t, a);
    node_unref(t, b);
    node_forget(t, id, 1);
    struct node *c = node_get(t, id);
    assert_non_null(c);
    node_unref(t, c);
    node_forget(t, id, 1);
    assert_null(node_get(t, id));
    assert_int_equal(node_table_count(t), 0);
    node_unref(t, root);
}

/* A new version is a new inode under the same number of stat; the old one stays for who holds it. */
static void test_new_version_new_inode(void **state)
{
    (void)state;
    _cleanup_(node_table_freep) struct node_table *t = node_table_new(NULL, /* keeps_all= */ false);
    struct node *root = root_of(t), *a = look(t, root, "f", "e1", 10), *b = look(t, root, "f", "e2", 10);
    assert_ptr_not_equal(a, b);
    assert_int_not_equal(a->id, b->id);
    assert_int_equal(a->ino, b->ino);
    assert_false(a->is_attached);
    assert_true(b->is_attached);
    struct node *found = node_find(t, root, SLICE_LIT("f"));
    assert_ptr_equal(found, b);
    node_unref(t, found);
    node_table_check(t);
    uint64_t id = a->id;
    node_unref(t, a);
    node_forget(t, id, 1);
    assert_null(node_get(t, id));
    node_unref(t, b);
    node_unref(t, root);
    node_table_check(t);
}

/* The size tells versions apart too, and the time does where there is no ETag, and only there. */
static void test_what_makes_a_version(void **state)
{
    (void)state;
    _cleanup_(node_table_freep) struct node_table *t = node_table_new(NULL, /* keeps_all= */ false);
    struct node *root = root_of(t), *n = look(t, root, "f", "e", 10), *other;
    struct node_attr a = file_attr("e", 10);
    a.mtime_ns = 6;
    other = node_look_up(t, root, SLICE_LIT("f"), &a);
    assert_ptr_equal(other, n);
    node_unref(t, other);
    a.size_bytes = 11;
    other = node_look_up(t, root, SLICE_LIT("f"), &a);
    assert_ptr_not_equal(other, n);
    node_unref(t, other);
    node_unref(t, n);
    n = look(t, root, "g", "", 10);
    a = file_attr("", 10);
    other = node_look_up(t, root, SLICE_LIT("g"), &a);
    assert_ptr_equal(other, n);
    node_unref(t, other);
    a.mtime_ns = 6;
    other = node_look_up(t, root, SLICE_LIT("g"), &a);
    assert_ptr_not_equal(other, n);
    node_unref(t, other);
    node_unref(t, n);
    node_unref(t, root);
}

/* An inode that waits for another mode is replaced by the next lookup, once. */
static void test_renewal(void **state)
{
    (void)state;
    _cleanup_(node_table_freep) struct node_table *t = node_table_new(NULL, /* keeps_all= */ false);
    struct node *root = root_of(t), *a = look(t, root, "f", "e", 1);
    a->wants_renewal = true;
    struct node *b = look(t, root, "f", "e", 1), *c = look(t, root, "f", "e", 1);
    assert_ptr_not_equal(a, b);
    assert_ptr_equal(b, c);
    node_unref(t, a);
    node_unref(t, b);
    node_unref(t, c);
    node_unref(t, root);
}

/* A file being written here is of every version, whatever the node says. */
static void test_staged_files_keep_their_inode(void **state)
{
    (void)state;
    _cleanup_(node_table_freep) struct node_table *t = node_table_new(NULL, /* keeps_all= */ false);
    struct node *root = root_of(t), *a = look(t, root, "f", "e", 1);
    a->staging = (struct staging *)(void *)t;
    struct node *b = look(t, root, "f", "other", 9);
    assert_ptr_equal(a, b);
    a->staging = NULL;
    node_unref(t, a);
    node_unref(t, b);
    node_unref(t, root);
}

/* A directory outlives the kernel's interest while something below it is known. */
static void test_parents_outlive_children(void **state)
{
    (void)state;
    _cleanup_(node_table_freep) struct node_table *t = node_table_new(NULL, /* keeps_all= */ false);
    struct node *root = root_of(t), *d = look(t, root, "d", NULL, 0), *e = look(t, d, "e", NULL, 0),
                *f = look(t, e, "f", "x", 1);
    uint64_t ids[] = {d->id, e->id, f->id};
    node_unref(t, d);
    node_unref(t, e);
    node_forget(t, ids[0], 1);
    node_forget(t, ids[1], 1);
    assert_int_equal(node_table_count(t), 3);
    node_table_check(t);
    _cleanup_buf_ struct buf b = BUF_INIT(100);
    assert_int_equal(node_path(t, f, &b), 0);
    assert_string_equal(b.p, "d/e/f");
    node_unref(t, f);
    node_forget(t, ids[2], 1);
    assert_int_equal(node_table_count(t), 0);
    node_unref(t, root);
}

/* A path over the buffer's maximum is refused; the root's is empty. */
static void test_paths(void **state)
{
    (void)state;
    _cleanup_(node_table_freep) struct node_table *t = node_table_new(NULL, /* keeps_all= */ false);
    struct node *root = root_of(t), *d = look(t, root, "dir", NULL, 0), *f = look(t, d, "file", "x", 1);
    _cleanup_buf_ struct buf exact = BUF_INIT(8), small = BUF_INIT(7);
    assert_int_equal(node_path(t, f, &exact), 0);
    assert_string_equal(exact.p, "dir/file");
    assert_int_equal(node_path(t, f, &small), -ENAMETOOLONG);
    assert_int_equal(small.n, 0);
    assert_int_equal(node_path(t, root, &small), 0);
    assert_int_equal(small.n, 0);
    node_unref(t, d);
    node_unref(t, f);
    node_unref(t, root);
}

/* A rename changes name, path and number; what was at the target is detached as unlinked. */
static void test_rename(void **state)
{
    (void)state;
    _cleanup_(node_table_freep) struct node_table *t = node_table_new(NULL, /* keeps_all= */ false);
    struct node *root = root_of(t), *d = look(t, root, "d", NULL, 0), *a = look(t, root, "a", "1", 1),
                *b = look(t, d, "b", "2", 2);
    uint64_t id = a->id;
    node_move(t, a, d, SLICE_LIT("b"));
    node_table_check(t);
    assert_int_equal(a->id, id);
    assert_true(b->is_unlinked);
    assert_false(b->is_attached);
    assert_int_equal(a->ino, node_ino(d->ino, SLICE_LIT("b")));
    assert_null(node_find(t, root, SLICE_LIT("a")));
    _cleanup_buf_ struct buf path = BUF_INIT(100);
    assert_int_equal(node_path(t, a, &path), 0);
    assert_string_equal(path.p, "d/b");
    node_move(t, a, d, SLICE_LIT("b"));
    assert_true(a->is_attached);
    node_unref(t, a);
    node_unref(t, b);
    node_unref(t, d);
    node_unref(t, root);
    node_table_check(t);
}

struct renumbered {
    size_t n;
    struct node *last;
};

static void on_renumbered(void *arg, struct node *n)
{
    struct renumbered *seen = arg;
    seen->n++;
    seen->last = n;
}

/* What lies in a directory that was moved, at any depth, has other numbers than what is made under the old
 * names; what lies elsewhere keeps its own. */
static void test_renumbering(void **state)
{
    (void)state;
    _cleanup_(node_table_freep) struct node_table *t = node_table_new(NULL, /* keeps_all= */ false);
    struct node *root = root_of(t), *p = look(t, root, "p", NULL, 0), *s = look(t, p, "s", NULL, 0),
                *f = look(t, s, "f", "1", 1), *other = look(t, root, "f", "2", 2);
    uint64_t others = other->ino;
    struct renumbered seen = {0};
    node_move(t, p, root, SLICE_LIT("q"));
    node_renumber(t, p, on_renumbered, &seen);
    assert_int_equal(seen.n, 3);
    seen = (struct renumbered){0};
    node_renumber(t, p, on_renumbered, &seen);
    assert_true(seen.n == 1 && seen.last == p);
    struct node *p2 = look(t, root, "p", NULL, 0), *s2 = look(t, p2, "s", NULL, 0),
                *f2 = look(t, s2, "f", "1", 1);
    assert_int_not_equal(p->ino, p2->ino);
    assert_int_not_equal(s->ino, s2->ino);
    assert_int_not_equal(f->ino, f2->ino);
    assert_int_equal(f->ino, node_ino(s->ino, SLICE_LIT("f")));
    assert_int_equal(s->ino, node_ino(p->ino, SLICE_LIT("s")));
    assert_int_equal(other->ino, others);
    node_table_check(t);
    struct node *all[] = {f2, s2, p2, other, f, s, p, root};
    for (size_t i = 0; i < ARRAY_SIZE(all); i++)
        node_unref(t, all[i]);
}

/* A directory's number and its parent's are those of one moment, whoever renames it meanwhile, and the parent
 * that was left may be gone. Fails under TSan without the lock in node_inos. */
struct mover {
    struct node_table *t;
    struct node *root, *n;
    atomic_bool has_ended;
};

static void *move_about(void *arg)
{
    struct mover *m = arg;
    for (int i = 0; i < 20000; i++) {
        struct node *d = look(m->t, m->root, i % 2 ? "a" : "b", NULL, 0);
        uint64_t id = d->id;
        node_move(m->t, m->n, d, SLICE_LIT("n"));
        node_unref(m->t, d);
        node_forget(m->t, id, 1); /* it goes when n leaves it */
    }
    atomic_store(&m->has_ended, true);
    return NULL;
}

static void test_numbers_while_it_moves(void **state)
{
    (void)state;
    _cleanup_(node_table_freep) struct node_table *t = node_table_new(NULL, /* keeps_all= */ false);
    struct node *root = root_of(t), *n = look(t, root, "n", NULL, 0);
    uint64_t own, parent, in_a = node_ino(NODE_ROOT_ID, SLICE_LIT("a")),
                          in_b = node_ino(NODE_ROOT_ID, SLICE_LIT("b"));
    struct mover m = {.t = t, .root = root, .n = n};
    node_inos(t, root, &own, &parent);
    assert_true(own == NODE_ROOT_ID && parent == NODE_ROOT_ID);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, move_about, &m), 0);
    while (!atomic_load(&m.has_ended)) {
        node_inos(t, n, &own, &parent);
        assert_true(parent == NODE_ROOT_ID || parent == in_a || parent == in_b);
        assert_int_equal(own, node_ino(parent, SLICE_LIT("n")));
    }
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(n->parent->ino, in_a);
    node_table_check(t);
    node_unref(t, n);
    node_unref(t, root);
}

/* Ids that are unknown or forgotten too often do no harm, and the root is never forgotten. */
static void test_wrong_forgets(void **state)
{
    (void)state;
    _cleanup_(node_table_freep) struct node_table *t = node_table_new(NULL, /* keeps_all= */ false);
    node_forget(t, 12345, 1);
    node_forget(t, NODE_ROOT_ID, 100);
    struct node *root = root_of(t), *a = look(t, root, "a", "1", 1);
    assert_non_null(root);
    uint64_t id = a->id;
    node_forget(t, id, 100);
    node_unref(t, a);
    assert_null(node_get(t, id));
    node_unref(t, root);
}

/* The trimmer gets those looked up least recently, each once in a round, and none that is open or a parent.
 */
static void test_oldest(void **state)
{
    (void)state;
    _cleanup_(node_table_freep) struct node_table *t = node_table_new(NULL, /* keeps_all= */ false);
    struct node *root = root_of(t), *d = look(t, root, "d", NULL, 0), *a = look(t, d, "a", "1", 1),
                *b = look(t, d, "b", "1", 1), *c = look(t, d, "c", "1", 1);
    node_unref(t, d);
    node_unref(t, a);
    node_unref(t, b);
    node_unref(t, c);
    b->n_plain = 1;
    struct node *again = look(t, d, "a", "1", 1);
    node_unref(t, again);
    struct node *first = node_table_oldest(t), *second = node_table_oldest(t);
    assert_ptr_equal(first, c);
    assert_ptr_equal(second, a);
    node_unref(t, first);
    node_unref(t, second);
    b->n_plain = 0;
    node_table_check(t);
    node_unref(t, root);
}

/* Numbers of stat are positive as signed ones, differ by path and never are the root's. */
static void test_inode_numbers(void **state)
{
    (void)state;
    uint64_t seen[1000];
    for (size_t i = 0; i < ARRAY_SIZE(seen); i++) {
        char name[16];
        (void)snprintf(name, sizeof(name), "%zu", i);
        seen[i] = node_ino(NODE_ROOT_ID, slice_str(name));
        assert_true(seen[i] > NODE_ROOT_ID && seen[i] <= INT64_MAX);
        for (size_t k = 0; k < i; k++)
            assert_int_not_equal(seen[i], seen[k]);
    }
    assert_int_not_equal(node_ino(7, SLICE_LIT("x")), node_ino(8, SLICE_LIT("x")));
}

/* A seeded run of 20,000 lookups, references, renames, detachments and forgets against counts kept beside;
 * the structure holds all the time, and nothing is left when the kernel has given everything back. */
static void test_random_operations(void **state)
{
    (void)state;
    enum { MOST = 4000 };
    _cleanup_(node_table_freep) struct node_table *t = node_table_new(NULL, /* keeps_all= */ false);
    struct node *root = root_of(t);
    struct {
        uint64_t id, lookups;
    } held[MOST];
    size_t n_held = 0;
    unsigned seed = 12345;
    for (int i = 0; i < 20000; i++) {
        int what = rand_r(&seed) % 10;
        char name[16], etag[16];
        (void)snprintf(name, sizeof(name), "n%d", rand_r(&seed) % 200);
        (void)snprintf(etag, sizeof(etag), "e%d", rand_r(&seed) % 3);
        if (what < 6 && n_held < MOST) {
            struct node *n = look(t, root, name, etag, 1);
            size_t k = 0;
            while (k < n_held && held[k].id != n->id)
                k++;
            if (k == n_held) {
                held[n_held].id = n->id;
                held[n_held++].lookups = 0;
            }
            held[k].lookups++;
            assert_int_equal(n->lookups, held[k].lookups);
            node_unref(t, n);
        } else if (what < 9 && n_held > 0) {
            size_t k = (size_t)rand_r(&seed) % n_held;
            uint64_t give = 1 + (uint64_t)rand_r(&seed) % held[k].lookups;
            node_forget(t, held[k].id, give);
            held[k].lookups -= give;
            struct node *n = node_get(t, held[k].id);
            assert_int_equal(n != NULL, held[k].lookups > 0);
            node_unref(t, n);
            if (held[k].lookups == 0)
                held[k] = held[--n_held];
        } else {
            struct node *n = node_find(t, root, slice_str(name));
            if (n && rand_r(&seed) % 2)
                node_detach(t, n, rand_r(&seed) % 2);
            else if (n)
                node_move(t, n, root, slice_str(etag));
            node_unref(t, n);
        }
        if (i % 100 == 0)
            node_table_check(t);
        assert_int_equal(node_table_count(t), n_held);
    }
    while (n_held > 0) {
        n_held--;
        node_forget(t, held[n_held].id, held[n_held].lookups);
    }
    assert_int_equal(node_table_count(t), 0);
    node_unref(t, root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_version_same_inode),
        cmocka_unit_test(test_new_version_new_inode),
        cmocka_unit_test(test_what_makes_a_version),
        cmocka_unit_test(test_renewal),
        cmocka_unit_test(test_ids_of_all),
        cmocka_unit_test(test_a_name_that_is_given_back),
        cmocka_unit_test(test_staged_files_keep_their_inode),
        cmocka_unit_test(test_parents_outlive_children),
        cmocka_unit_test(test_paths),
        cmocka_unit_test(test_rename),
        cmocka_unit_test(test_renumbering),
        cmocka_unit_test(test_numbers_while_it_moves),
        cmocka_unit_test(test_wrong_forgets),
        cmocka_unit_test(test_oldest),
        cmocka_unit_test(test_inode_numbers),
        cmocka_unit_test(test_random_operations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

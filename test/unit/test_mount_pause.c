/* layer: mount */
/* threaded */
/* Renames that run, and who waits for whom beside them: a tree d/{e/{f},g}, h, and one thread for who waits.
 */
#include "mount/pause.h"

#include "mount/mount_internal.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#define A_WHILE_US 100000 /* who has not gone on by then waits */

enum { ROOT, D, E, F, G, H, NODES };

struct tree {
    struct mount m;
    struct node *n[NODES];
};

static struct tree *tree_new(void)
{
    static const struct {
        const char *name;
        int parent;
        bool is_dir;
    } rows[NODES] = {[D] = {"d", ROOT, true},
                     [E] = {"e", D, true},
                     [F] = {"f", E, false},
                     [G] = {"g", D, false},
                     [H] = {"h", ROOT, true}};
    struct tree *t = calloc(1, sizeof(*t));
    assert_non_null(t);
    t->m.nodes = node_table_new(NULL, /* keeps_all= */ false);
    cond_init(&t->m.stagings.changed);
    t->n[ROOT] = node_get(t->m.nodes, NODE_ROOT_ID);
    for (int i = D; i < NODES; i++) {
        struct node_attr a = {.is_dir = rows[i].is_dir, .size_bytes = 1, .etag = SLICE_LIT("v")};
        t->n[i] = node_look_up(t->m.nodes, t->n[rows[i].parent], slice_str(rows[i].name), &a);
    }
    return t;
}

static void tree_free(struct tree *t)
{
    assert_null(t->m.pauses.first);
    assert_null(t->m.pauses.users);
    assert_int_equal(t->m.pauses.n_running, 0);
    for (int i = 0; i < NODES; i++)
        node_unref(t->m.nodes, t->n[i]);
    node_table_free(t->m.nodes);
    cond_fini(&t->m.stagings.changed);
    free(t);
}

/* ---- who waits ---- */

enum deed { ENTER, BEGIN, WAIT, WAS };

struct actor {
    struct tree *t;
    enum deed deed;
    int a, b; /* nodes; b of ENTER only, -1: none */
    const struct pause_user *own;
    uint64_t serial;
    struct pause pause;
    struct pause_user user;
    bool was;
    atomic_bool is_over;
    pthread_t thread;
};

static void *act(void *arg)
{
    struct actor *x = arg;
    struct mount *m = &x->t->m;
    const struct node *a = x->t->n[x->a];
    switch (x->deed) {
    case ENTER:
        pause_enter(m, &x->user, a, x->b < 0 ? NULL : x->t->n[x->b]);
        break;
    case BEGIN:
        pause_begin(m, &x->pause, a, x->own);
        break;
    case WAIT:
        pause_wait(m, a);
        break;
    case WAS:
        x->was = pause_was(m, x->serial, a);
        break;
    }
    atomic_store(&x->is_over, true);
    return NULL;
}

static void start(struct actor *x)
{
    assert_int_equal(pthread_create(&x->thread, NULL, act, x), 0);
}

static void join(struct actor *x)
{
    assert_int_equal(pthread_join(x->thread, NULL), 0);
}

static bool waits(struct actor *x)
{
    (void)usleep(A_WHILE_US);
    return !atomic_load(&x->is_over);
}

/* Does it in the caller's thread: it must not wait. */
static void act_now(struct actor *x)
{
    start(x);
    join(x);
}

/* ---- tests ---- */

/* While a directory is renamed, who wants to change it or something below it waits, whichever of two places
 * that is; who changes anything else does not. */
static void test_who_comes_waits_for_the_rename(void **state)
{
    (void)state;
    static const struct {
        int a, b;
        bool waits;
    } rows[] = {{D, -1, true},   {E, -1, true},    {F, -1, true}, {ROOT, E, true},
                {E, ROOT, true}, {ROOT, H, false}, {H, -1, false}};
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        struct tree *t = tree_new();
        struct actor rename = {.t = t, .deed = BEGIN, .a = D};
        struct actor x = {.t = t, .deed = ENTER, .a = rows[i].a, .b = rows[i].b};
        act_now(&rename);
        start(&x);
        assert_int_equal(rows[i].waits && waits(&x), rows[i].waits);
        if (!rows[i].waits)
            join(&x);
        pause_end(&t->m, &rename.pause);
        if (rows[i].waits)
            join(&x);
        pause_leave(&t->m, &x.user);
        tree_free(t);
    }
}

/* The rename waits for those that began below what it renames, and for all of them; not for who works
 * elsewhere, nor for its own. */
static void test_the_rename_waits_for_who_came_before(void **state)
{
    (void)state;
    struct tree *t = tree_new();
    struct actor in_e = {.t = t, .deed = ENTER, .a = E, .b = -1};
    struct actor across = {.t = t, .deed = ENTER, .a = H, .b = D};
    struct actor elsewhere = {.t = t, .deed = ENTER, .a = H, .b = ROOT};
    struct actor own = {.t = t, .deed = ENTER, .a = ROOT, .b = D};
    act_now(&in_e);
    act_now(&across);
    act_now(&elsewhere);
    act_now(&own);
    struct actor rename = {.t = t, .deed = BEGIN, .a = D, .own = &own.user};
    start(&rename);
    assert_true(waits(&rename));
    pause_leave(&t->m, &in_e.user);
    assert_true(waits(&rename));
    pause_leave(&t->m, &across.user);
    join(&rename);
    pause_end(&t->m, &rename.pause);
    pause_leave(&t->m, &own.user);
    pause_leave(&t->m, &elsewhere.user);
    tree_free(t);
}

/* From the moment in which a rename waits nobody new begins below it: it waits for a bounded number. */
static void test_nobody_overtakes_a_rename_that_waits(void **state)
{
    (void)state;
    struct tree *t = tree_new();
    struct actor first = {.t = t, .deed = ENTER, .a = E, .b = -1},
                 second = {.t = t, .deed = ENTER, .a = E, .b = -1};
    struct actor rename = {.t = t, .deed = BEGIN, .a = D};
    act_now(&first);
    start(&rename);
    while (atomic_load(&t->m.pauses.n_running) == 0) /* until it has come that far */
        (void)usleep(1000);
    assert_true(waits(&rename));
    start(&second);
    assert_true(waits(&second));
    pause_leave(&t->m, &first.user);
    join(&rename);
    assert_true(waits(&second));
    pause_end(&t->m, &rename.pause);
    join(&second);
    pause_leave(&t->m, &second.user);
    tree_free(t);
}

/* A file's rename keeps who writes the file from beginning, and waits for nobody; names that are looked up do
 * not wait for it. */
static void test_of_a_file(void **state)
{
    (void)state;
    struct tree *t = tree_new();
    struct actor user = {.t = t, .deed = ENTER, .a = F, .b = -1};
    struct actor rename = {.t = t, .deed = BEGIN, .a = F}, look = {.t = t, .deed = WAIT, .a = F};
    act_now(&user);
    act_now(&rename);
    lock_take(node_table_lock(t->m.nodes));
    assert_true(pause_covers_locked(&t->m, t->n[F]));
    assert_false(pause_covers_locked(&t->m, t->n[E]) || pause_covers_locked(&t->m, t->n[G]));
    lock_drop(node_table_lock(t->m.nodes));
    act_now(&look);
    assert_int_equal(pause_serial(&t->m), 0);
    pause_end(&t->m, &rename.pause);
    pause_leave(&t->m, &user.user);
    tree_free(t);
}

/* Who found no name asks again when a directory's rename began, ran or ended since the question, wherever it
 * is; who lies below one that runs waits for its end before. */
static void test_a_name_that_was_not_found(void **state)
{
    (void)state;
    struct tree *t = tree_new();
    uint64_t before = pause_serial(&t->m);
    struct actor rename = {.t = t, .deed = BEGIN, .a = D};
    struct actor nothing = {.t = t, .deed = WAS, .a = E, .serial = before};
    struct actor below = {.t = t, .deed = WAS, .a = E, .serial = before};
    struct actor beside = {.t = t, .deed = WAS, .a = H, .serial = before};
    act_now(&nothing);
    assert_false(nothing.was);
    act_now(&rename);
    act_now(&beside);
    assert_true(beside.was);
    start(&below);
    assert_true(waits(&below));
    uint64_t meanwhile = pause_serial(&t->m);
    pause_end(&t->m, &rename.pause);
    join(&below);
    assert_true(below.was);
    assert_true(pause_was(&t->m, meanwhile, t->n[E])); /* asked while it ran */
    assert_false(pause_was(&t->m, pause_serial(&t->m), t->n[E]));
    tree_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_who_comes_waits_for_the_rename),
        cmocka_unit_test(test_the_rename_waits_for_who_came_before),
        cmocka_unit_test(test_nobody_overtakes_a_rename_that_waits),
        cmocka_unit_test(test_of_a_file),
        cmocka_unit_test(test_a_name_that_was_not_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* layer: mount */
/* Memory that outlives the process that serves a mount, and the numbers of changes. */
#include "mount/kept.h"
#include "mount/mount_internal.h"
#include "mount/node_kept.h"
#include "mount/request.h"
#include "mount/staging_internal.h"
#include "mount/tree.h"
#include "mount/tree_held.h"
#include "support/kept_memory.h"

#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* Cells come zeroed, are found by their kind, and one that was given back is taken again, zeroed. */
static void test_cells(void **state)
{
    static const uint8_t zero[KEPT_CELL_BYTES];
    struct kept *k = *state;
    kept_begin(k);
    void *a = kept_take(k, KEPT_HANDLE), *b = kept_take(k, KEPT_LOCK);
    assert_true(a && b && a != b);
    assert_memory_equal(a, zero, sizeof(zero));
    memset(a, 0xff, KEPT_CELL_BYTES);
    assert_ptr_equal(kept_next(k, KEPT_HANDLE, NULL), a);
    assert_ptr_equal(kept_next(k, KEPT_LOCK, NULL), b);
    assert_null(kept_next(k, KEPT_HANDLE, a));
    kept_give(k, a);
    assert_null(kept_next(k, KEPT_HANDLE, NULL));
    assert_ptr_equal(kept_take(k, KEPT_DIRECTORY), a);
    assert_memory_equal(a, zero, sizeof(zero));
}

/* Who comes after a process finds its cells and facts at the same place, and takes those that it gave back.
 */
static void test_another_process(void **state)
{
    struct kept *k = *state;
    pid_t pid = fork();
    if (pid == 0) {
        kept_begin(k);
        uint32_t *first = kept_take(k, KEPT_HANDLE), *second = kept_take(k, KEPT_HANDLE);
        *first = 1;
        *second = 2;
        kept_give(k, first);
        kept_facts(k)->root = 77;
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    kept_begin(k);
    assert_int_equal(kept_memory_count(k, KEPT_HANDLE), 1);
    uint32_t *left = kept_next(k, KEPT_HANDLE, NULL);
    assert_int_equal(*left, 2);
    assert_int_equal(kept_facts(k)->root, 77);
    void *again = kept_take(k, KEPT_LOCK), *fresh = kept_take(k, KEPT_LOCK);
    assert_true(again != left && fresh != left && again != fresh);
    assert_int_equal(kept_memory_count(k, KEPT_LOCK), 2);
}

/* A program that takes over needs the same addresses, and has its own mappings elsewhere in each process: so
 * nothing that the kernel places may lie near. The sanitizer of threads leaves no such place. */
static void test_its_place_is_nobody_elses(void **state)
{
#ifdef __SANITIZE_THREAD__
    skip();
#endif
    const uint64_t far = UINT64_C(1) << 40, ours = (uintptr_t)kept_address(*state);
    char line[PATH_MAX + 128];
    size_t n = 0;
    FILE *maps = fopen("/proc/self/maps", "re");
    assert_non_null(maps);
    while (fgets(line, sizeof(line), maps)) {
        uint64_t begin = strtoull(line, NULL, 16);
        if (begin == ours)
            continue;
        n++;
        assert_true(begin > ours ? begin - ours > far : ours - begin > far);
    }
    (void)fclose(maps);
    assert_true(n > 2);
}

/* Nothing is taken beyond the last cell; before that, those who may be refused are, and long before that
 * those who can do without. What is given back fills first what is held back for those who may not. */
static void test_all_are_taken(void **state)
{
    struct kept *k = *state;
    size_t n = 0, scarce_at = 0, refused_at = 0, given = 0;
    kept_begin(k);
    for (void *p; (p = kept_take(k, KEPT_HANDLE)); n++) {
        if (scarce_at == 0 && !kept_has_plenty(k))
            scarce_at = n + 1;
        if (refused_at == 0 && !kept_has_room(k))
            refused_at = n + 1;
    }
    assert_int_equal(n, KEPT_CELLS_MAX);
    assert_true(scarce_at > 0 && refused_at - scarce_at > KEPT_CELLS_MAX / 8 && refused_at < n);
    for (; !kept_has_room(k); given++)
        kept_give(k, kept_next(k, KEPT_HANDLE, NULL));
    assert_int_equal(given, n - refused_at + 1);
    kept_begin(k);
    assert_true(kept_has_room(k));
    assert_non_null(kept_take(k, KEPT_HANDLE));
    assert_false(kept_has_room(k));
}

static void begin(uint64_t unique)
{
    uint8_t header[40] = {0};
    memcpy(header + 8, &unique, sizeof(unique));
    request_begin(header, sizeof(header));
}

/* A request that comes again gives its changes the same numbers; no two requests share one. */
static void test_numbers_of_changes(void **state)
{
    (void)state;
    uint64_t seen[4 * REQUEST_CHANGES];
    size_t n = 0;
    for (uint64_t unique = 2; unique < 10; unique += 2) {
        begin(unique);
        for (int i = 0; i < REQUEST_CHANGES; i++)
            seen[n++] = request_next_change();
        assert_int_equal(request_next_change(), 0);
        begin(unique | 1ull << 63);
        assert_int_equal(request_next_change(), seen[n - REQUEST_CHANGES]);
        assert_int_equal(request_next_change(), seen[n - REQUEST_CHANGES + 1]);
    }
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < i; j++)
            assert_true(seen[i] != seen[j] && seen[i] != 0);
    request_begin("short", 5);
    assert_int_equal(request_next_change(), 0);
}

/* Another version of the program may read this memory: who changes a size here counts KEPT_LAYOUT up. */
static void test_layout(void **state)
{
    (void)state;
    assert_int_equal(KEPT_LAYOUT, 7);
    assert_int_equal(sizeof(struct kept_facts), 4432);
    assert_int_equal(sizeof(struct kept_told), 73728);
    assert_int_equal(sizeof(struct handle), 72);
    assert_int_equal(sizeof(struct backing), 16);
    assert_int_equal(sizeof(struct node_kept), 112);
    assert_int_equal(sizeof(struct staging_kept), 88);
    assert_int_equal(sizeof(struct tree_handle), 80);
    assert_int_equal(sizeof(struct tree_held), 64);
}

/* What another version left is not read; whoever wanted to take over hears what to do instead. (Fails without
 * the comparison in kept_open, and with a text that does not say it.) */
static void test_another_layout_is_refused(void **state)
{
    struct kept *k = *state, *other = NULL;
    struct err e = {0};
    kept_facts(k)->layout = KEPT_LAYOUT - 1;
    assert_int_equal(kept_open(dup(kept_fd(k)), kept_address(k), &other, &e), -ENOTSUP);
    assert_non_null(strstr(e.text, "unmount it and mount it again"));
    kept_facts(k)->layout = KEPT_LAYOUT;
    assert_int_equal(kept_open(dup(kept_fd(k)), kept_address(k), &other, &e), -EEXIST);
    assert_null(other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layout),
        cmocka_unit_test_setup_teardown(test_another_layout_is_refused, kept_memory_setup,
                                        kept_memory_teardown),
        cmocka_unit_test_setup_teardown(test_cells, kept_memory_setup, kept_memory_teardown),
        cmocka_unit_test_setup_teardown(test_another_process, kept_memory_setup, kept_memory_teardown),
        cmocka_unit_test_setup_teardown(test_its_place_is_nobody_elses, kept_memory_setup,
                                        kept_memory_teardown),
        cmocka_unit_test_setup_teardown(test_all_are_taken, kept_memory_setup, kept_memory_teardown),
        cmocka_unit_test(test_numbers_of_changes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* What the tests of the file kind share: an origin over a directory of its own. */
#pragma once

#include "base/sys.h"
#include "origin/origin.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static struct {
    char dir[64];
    struct origin *origin;
    struct arena *arena;
    struct err err;
} T;

static inline struct origin *open_dir(const char *dir)
{
    struct origin_options o;
    struct origin *x = NULL;
    char url[256];
    (void)snprintf(url, sizeof(url), "file://%s", dir);
    assert_int_equal(option_init(&origin_option_table, &o, &T.err), 0);
    if (origin_open(url, &o, "files", &x, &T.err) != 0)
        fail_msg("%s", T.err.text);
    option_fini(&origin_option_table, &o);
    return x;
}

static inline int setup(void **state)
{
    (void)snprintf(T.dir, sizeof(T.dir), "/tmp/forebay-file-XXXXXX");
    assert_non_null(mkdtemp(T.dir));
    T.origin = open_dir(T.dir);
    T.arena = arena_new(64 * MIB);
    return 0;
}

static inline int teardown(void **state)
{
    sys = &sys_real;
    origin_close(T.origin);
    arena_free(T.arena);
    char command[256];
    (void)snprintf(command, sizeof(command), "chmod -R u+rwx %s && rm -rf %s", T.dir, T.dir);
    return system(command) == 0 ? 0 : -1;
}

static inline const char *path_of(const char *key)
{
    static char path[4096];
    (void)snprintf(path, sizeof(path), "%s/%s", T.dir, key);
    return path;
}

static inline void write_file(const char *key, const char *text)
{
    FILE *f = fopen(path_of(key), "w");
    assert_non_null(f);
    assert_int_equal(fputs(text, f) >= 0, 1);
    assert_int_equal(fclose(f), 0);
}

static inline char byte_at(uint64_t i)
{
    return (char)('a' + i % 23);
}

static inline ssize_t pattern(void *arg, void *p, size_t n, uint64_t offset)
{
    uint64_t *reads = arg;
    if (reads)
        (*reads)++;
    n = MIN(n, (size_t)10000); /* short reads */
    for (size_t i = 0; i < n; i++)
        ((char *)p)[i] = byte_at(offset + i);
    return (ssize_t)n;
}

static inline int put(const char *key, uint64_t size, struct origin_attr *ret)
{
    struct origin_put p = {.key = slice_str(key)};
    struct origin_body b = {.size_bytes = size, .read = pattern};
    return origin_put(T.origin, &p, &b, T.arena, ret, &T.err);
}

/* The keys of all pages: "key\n", common prefixes with " P". */
static bool tells_unfit; /* list_all asks for names that no key can have, too */

static inline void list_all(const char *prefix, char delimiter, uint32_t max, const char *after,
                            struct buf *ret)
{
    struct slice token = SLICE_NULL;
    for (int pages = 0; pages < 5000; pages++) {
        struct origin_list l = {.prefix = slice_str(prefix),
                                .delimiter = delimiter,
                                .max = max,
                                .token = token,
                                .after = slice_str(after),
                                .unfit = tells_unfit};
        struct origin_page page;
        if (origin_list(T.origin, &l, T.arena, &page, &T.err) != 0)
            fail_msg("%s", T.err.text);
        assert_true(page.n <= max);
        for (size_t i = 0; i < page.n; i++)
            assert_int_equal(buf_printf(ret, SLICE_FMT "%s\n", SLICE_ARG(page.entries[i].key),
                                        page.entries[i].is_prefix ? " P" : ""),
                             0);
        if (!page.truncated)
            return;
        assert_true(page.n > 0);
        token = page.next_token;
    }
    fail();
}

/* layer: origin */
/*
 * The pure parts of the NFS kind: URLs, errors, settings. What it does with a server is in
 * test/system/test_origins.py and test_origin_nfs.py.
 */
#include "origin/nfs_internal.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

/* Server, port and path come out of a URL; the path is taken as it is written. */
static void test_urls(void **state)
{
    static const struct {
        const char *rest, *host, *path;
        uint64_t port;
    } good[] = {
        {"nas/export/train", "nas", "/export/train", 0},
        {"10.0.0.5:2049/data", "10.0.0.5", "/data", 2049},
        {"[fe80::1]:111/data/a b%20//", "fe80::1", "/data/a b%20", 111},
        {"[::1]/d", "::1", "/d", 0},
    };
    for (size_t i = 0; i < ARRAY_SIZE(good); i++) {
        char _cleanup_free_ *host = NULL;
        char _cleanup_free_ *path = NULL;
        uint64_t port = 77;
        struct err e = {0};
        if (nfs_parse_url(slice_str(good[i].rest), &host, &port, &path, &e) < 0)
            fail_msg("%s: %s", good[i].rest, e.text);
        assert_string_equal(host, good[i].host);
        assert_string_equal(path, good[i].path);
        assert_int_equal(port, good[i].port);
    }
}

/* A URL that cannot be is told with how to write it, and one with libnfs's own settings with where they go.
 */
static void test_bad_urls(void **state)
{
    static const char *const bad[] = {
        "",          "/",           "/data",          "nas",         "nas/",
        "nas:/data", "nas:0/data",  "nas:70000/data", "n as/d",      "::1/data",
        "[::1/data", "[::1]x/data", "user@nas/data",  "nas/d?uid=0",
    };
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        char *host = NULL, *path = NULL;
        uint64_t port = 0;
        struct err e = {0};
        assert_int_equal(nfs_parse_url(slice_str(bad[i]), &host, &port, &path, &e), ERR_BAD_OPTION);
        assert_non_null(strstr(e.text, "write nfs://HOST[:PORT]/EXPORT[/DIR]"));
        assert_null(host);
        assert_null(path);
    }
}

/* Who asks for another version, or for Kerberos, is told what there is instead. */
static void test_other_versions(void **state)
{
    static const struct {
        const char *rest, *words;
    } rows[] = {
        {"nas/d?version=4", "version 3 of NFS is spoken, no other"},
        {"nas/d?uid=0&vers=4.1", "version 3 of NFS is spoken, no other"},
        {"nas/d?sec=krb5p", "Kerberos is not spoken: the server must export with sec=sys"},
        {"nas/d?version=3&sec=sys", "settings are properties of the bucket"},
        {"nas/d?", "settings are properties of the bucket"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        char *host = NULL, *path = NULL;
        uint64_t port = 0;
        struct err e = {0};
        assert_int_equal(nfs_parse_url(slice_str(rows[i].rest), &host, &port, &path, &e), ERR_BAD_OPTION);
        assert_non_null(strstr(e.text, rows[i].words));
    }
}

/* What time may heal is told apart from what it cannot. */
static void test_error_classes(void **state)
{
    static const struct {
        int error, class;
    } rows[] = {
        {-ENOENT, -ENOENT},          {-ENOTDIR, -ENOENT},        {-EACCES, ERR_ORIGIN_DENIED},
        {-EROFS, ERR_ORIGIN_DENIED}, {-ESTALE, ERR_ORIGIN_DOWN}, {-EFAULT, ERR_ORIGIN_DOWN},
        {-EINTR, ERR_ORIGIN_DOWN},   {-EAGAIN, ERR_ORIGIN_BUSY}, {-EDQUOT, -ENOSPC},
        {-ETIMEDOUT, -ETIMEDOUT},    {-ECANCELED, -ECANCELED},   {-EIO, ERR_ORIGIN_FAILED},
    };
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
        assert_int_equal(nfs_error_class(rows[i].error), rows[i].class);
    assert_true(retry_is_transient(nfs_error_class(-ESTALE)));
}

static int open_with(const char *url, const char *name, const char *value, struct err *e)
{
    struct origin_options o;
    struct origin *x = NULL;
    assert_int_equal(option_init(&origin_option_table, &o, e), 0);
    int r = name ? option_set(&origin_option_table, &o, name, value, name, e) : 0;
    if (r == 0)
        r = origin_open(url, &o, "b", &x, e);
    option_fini(&origin_option_table, &o);
    if (r == 0)
        origin_close(x);
    return r;
}

/* Nothing is sent at open; settings that cannot be are named. */
static void test_open(void **state)
{
    struct err e = {0};
    assert_int_equal(open_with("nfs://127.0.0.1:9/export", NULL, NULL, &e), 0);
    assert_int_equal(open_with("nfs://127.0.0.1:9/export", "origin.uid", "1000", &e), 0);
    assert_int_equal(open_with("nfs://127.0.0.1:9/export", "origin.uid", "me", &e), ERR_BAD_OPTION);
    assert_non_null(strstr(e.text, "origin.uid \"me\""));
    assert_int_equal(open_with("nfs://127.0.0.1:9/export", "origin.storage_class", "Cool", &e),
                     ERR_BAD_OPTION);
}

/* A server that is not there is ERR_ORIGIN_DOWN, with its name and the path; keys that are no paths are never
 * found. */
static void test_no_server(void **state)
{
    struct origin_options o;
    struct origin *x = NULL;
    struct err e = {0};
    struct arena *_cleanup_(arena_freep) a = arena_new(1 * MIB);
    struct origin_page page;
    assert_int_equal(option_init(&origin_option_table, &o, &e), 0);
    assert_int_equal(option_set(&origin_option_table, &o, "origin.mount_port", "9", "x", &e), 0);
    assert_int_equal(origin_open("nfs://127.0.0.1:9/export", &o, "b", &x, &e), 0);
    option_fini(&origin_option_table, &o);
    struct origin_list l = {.max = 10};
    assert_int_equal(origin_list(x, &l, a, &page, &e), ERR_ORIGIN_DOWN);
    assert_non_null(strstr(e.text, "/export: mount: "));
    assert_non_null(strstr(e.text, "origin.mount_port"));
    assert_int_equal(origin_remove(x, SLICE_LIT("../x"), SLICE_NULL, &e), -ENOENT);
    origin_close(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_urls),           cmocka_unit_test(test_bad_urls),
        cmocka_unit_test(test_other_versions), cmocka_unit_test(test_error_classes),
        cmocka_unit_test(test_open),           cmocka_unit_test(test_no_server),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

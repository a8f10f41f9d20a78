/* layer: origin */
/* threaded */
/*
 * The HDFS kind: documents as text, and a server that answers whatever the test scripts (HttpFS among them).
 * The same kind against a namenode and a datanode: test/system/test_origins.py, test_origin_hdfs.py.
 */
#include "origin/hdfs_internal.h"

#include "web_fixture.h"

static const char *const one_at_a_time[] = {"origin.connections", "1", "origin.user", "me", NULL};

#define STATUS(size, mtime)                                                                                  \
    "{\"FileStatus\":{\"fileId\":16,\"length\":" size ",\"modificationTime\":" mtime ",\"type\":\"FILE\"}}"
#define OK(length) "HTTP/1.1 200 OK\r\nContent-Length: " length "\r\n\r\n"
#define JSON(body) "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n" body

/* Statuses as a namenode (3.3) and HttpFS tell them. */
static void test_status(void **state)
{
    struct hdfs_status st;
    struct err e = {0};
    char etag[TREE_ETAG_SIZE];
    WEB_FIXTURE_OK(hdfs_json_status(
                       SLICE_LIT("{\"FileStatus\":{\"accessTime\":1795276444724,\"blockSize\":134217728,"
                                 "\"childrenNum\":0,\"fileId\":16387,\"group\":\"supergroup\",\"length\":12,"
                                 "\"modificationTime\":1795276445480,\"owner\":\"root\",\"pathSuffix\":\"\","
                                 "\"permission\":\"644\",\"replication\":1,\"storagePolicy\":0,\"type\":"
                                 "\"FILE\"}}"),
                       &st, &e),
                   e);
    assert_true(st.is_file && !st.is_dir && st.size == 12 && st.mtime_ms == 1795276445480 && st.id == 16387);
    hdfs_etag(&st, etag);
    assert_string_equal(etag, "1a1fed09728-c-4003");
    WEB_FIXTURE_OK(hdfs_json_status(SLICE_LIT("{\"FileStatus\":{\"pathSuffix\":\"\",\"type\":\"DIRECTORY\","
                                              "\"length\":0,\"modificationTime\":5}}"),
                                    &st, &e),
                   e);
    assert_true(st.is_dir && !st.is_file && st.id == 0);
    static const char *const bad[] = {
        "",
        "{}",
        "[]",
        "null",
        "{\"FileStatus\":7}",
        "{\"FileStatus\":{\"type\":\"FILE\",\"length\":-1,\"modificationTime\":5}}",
        "{\"FileStatus\":{\"type\":\"FILE\",\"length\":1}}",
        "{\"FileStatus\":{\"length\":1,\"modificationTime\":5}}",
        "{\"FileStatus\":{\"type\":\"FILE\",\"length\":1,\"modificationTime\":9223372036854775807}}",
        "{\"FileStatus\":{\"type\":\"FILE\",\"length\":1.5,\"modificationTime\":5}}",
    };
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
        assert_int_equal(hdfs_json_status(slice_str(bad[i]), &st, &e), ERR_ORIGIN_FAILED);
}

/* What nests deeper than any answer is refused before it is parsed, which would take a thread's whole stack.
 * All kinds whose answers are JSON have it from web_json. */
static void test_deep_answers(void **state)
{
    for (int deep = 10; deep <= 1000; deep *= 10) {
        _cleanup_buf_ struct buf b = BUF_INIT(4 * KIB);
        struct hdfs_status st;
        struct err e = {0};
        int good = buf_str(&b, "{\"FileStatus\":{\"pathSuffix\":\"\",\"type\":\"DIRECTORY\",\"fileId\":1,"
                               "\"length\":0,\"modificationTime\":5,\"more\":");
        for (int i = 0; i < 2 * deep && good == 0; i++)
            good = buf_str(&b, i < deep ? "[" : "]");
        assert_int_equal(good < 0 ? good : buf_str(&b, "}}"), 0);
        assert_int_equal(hdfs_json_status(buf_view(&b), &st, &e), deep < 64 ? 0 : ERR_ORIGIN_FAILED);
    }
}

/* Batches say what follows; links and our own temporary files are not listed; a file is no directory. */
static void test_listing(void **state)
{
    struct err e = {0};
    char *last = NULL;
    uint64_t left = 9;
    struct tree_folder *f = tree_folder_new();
#define ENTRY(name, type)                                                                                    \
    "{\"pathSuffix\":\"" name "\",\"type\":\"" type "\",\"length\":3,\"modificationTime\":5,\"fileId\":7}"
    WEB_FIXTURE_OK(
        hdfs_json_listing(
            SLICE_LIT("{\"DirectoryListing\":{\"partialListing\":{\"FileStatuses\":{"
                      "\"FileStatus\":[" ENTRY("a b+%", "FILE") "," ENTRY("d", "DIRECTORY") "," ENTRY(
                          "l", "SYMLINK") "," ENTRY(".forebay-tmp-1", "FILE") "]}},"
                                                                              "\"remainingEntries\":2}}"),
            f, &last, &left, &e),
        e);
    assert_int_equal(f->n, 2);
    assert_string_equal(f->v[0].name, "a b+%");
    assert_string_equal(f->v[0].etag, "5-3-7");
    assert_string_equal(f->v[1].name, "d/");
    assert_int_equal(f->v[1].size, 0);
    assert_string_equal(last, ".forebay-tmp-1");
    assert_int_equal(left, 2);
    assert_true(f->hides);
    free(last);
    last = NULL;
    WEB_FIXTURE_OK(
        hdfs_json_listing(SLICE_LIT("{\"FileStatuses\":{\"FileStatus\":[]}}"), f, &last, &left, &e), e);
    assert_true(last == NULL && left == 0);
    static const struct {
        const char *text;
        int code;
    } bad[] = {
        {"{\"FileStatuses\":{\"FileStatus\":[" ENTRY("", "FILE") "]}}", -ENOENT},
        {"{\"FileStatuses\":{\"FileStatus\":[7]}}", ERR_ORIGIN_FAILED},
        {"{\"FileStatuses\":{}}", ERR_ORIGIN_FAILED},
        {"{\"DirectoryListing\":{\"partialListing\":{\"FileStatuses\":{\"FileStatus\":[]}}}}",
         ERR_ORIGIN_FAILED},
        {"{\"DirectoryListing\":{\"partialListing\":{\"FileStatuses\":{\"FileStatus\":[]}},"
         "\"remainingEntries\":1}}",
         ERR_ORIGIN_FAILED},
        {"<html>", ERR_ORIGIN_FAILED},
    };
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
        assert_int_equal(hdfs_json_listing(slice_str(bad[i].text), f, &last, &left, &e), bad[i].code);
    tree_folder_unref(f);
}

/* Errors have the class of their exception; one without has that of its status. */
static void test_errors(void **state)
{
    static const struct {
        int status, code;
        const char *exception;
    } rows[] = {
        {404, -ENOENT, "FileNotFoundException"},
        {403, ERR_ORIGIN_DENIED, "AccessControlException"},
        {403, ERR_ORIGIN_FAILED, "IOException"},
        {403, ERR_ORIGIN_DOWN, "StandbyException"},
        {403, ERR_ORIGIN_BUSY, "SafeModeException"},
        {403, ERR_PRECONDITION, "FileAlreadyExistsException"},
        {403, -ENOSPC, "DSQuotaExceededException"},
        {401, ERR_ORIGIN_DENIED, "SomethingElse"},
        {403, ERR_ORIGIN_FAILED, "BlockMissingException"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        struct web_response r = {.status = rows[i].status};
        struct err e = {0};
        char body[256];
        (void)snprintf(body, sizeof(body),
                       "{\"RemoteException\":{\"exception\":\"%s\",\"message\":\"words\\n\\tat "
                       "stack\"}}",
                       rows[i].exception);
        assert_int_equal(hdfs_json_refused(&r, slice_str(body), &e), rows[i].code);
        assert_non_null(strstr(e.text, rows[i].exception));
        assert_non_null(strstr(e.text, "words"));
        assert_null(strstr(e.text, "stack"));
        if (rows[i].status == 401)
            assert_non_null(strstr(e.text, "; Kerberos is not spoken: set origin.delegation_token"));
        if (rows[i].code == ERR_ORIGIN_DOWN)
            assert_non_null(strstr(e.text, "; name the namenode that is active"));
    }
    struct web_response r = {.status = 503, .reason = "Busy"};
    struct err e = {0};
    assert_int_equal(hdfs_json_refused(&r, SLICE_LIT("<html>"), &e), ERR_ORIGIN_BUSY);
    assert_string_equal(e.text, "503 Busy");
    r.status = 404; /* of a proxy: it says nothing about files */
    assert_int_equal(hdfs_json_refused(&r, SLICE_LIT("<html>"), &e), ERR_ORIGIN_FAILED);
    assert_int_equal(hdfs_json_refused(&r, SLICE_LIT("{\"RemoteException\":{\"exc"), &e), ERR_ORIGIN_FAILED);
    r.status = 403; /* of a gateway */
    assert_int_equal(hdfs_json_refused(&r, SLICE_LIT("<html>"), &e), ERR_ORIGIN_DENIED);
    assert_int_equal(hdfs_json_refused(&r,
                                       SLICE_LIT("{\"RemoteException\":{\"exception\":"
                                                 "\"AccessControlException\",\"message\":"
                                                 "\"/data/k (is not a directory)\"}}"),
                                       &e),
                     -ENOENT);
}

/* A server that answers OPEN at once (HttpFS) is read without a datanode; the version is looked at before and
 * after. */
static void test_read_without_redirect(void **state)
{
    static const struct script_step steps[] = {
        {.answer = JSON(STATUS("100", "5")), .close = true},
        {.answer = OK("40"), .pad = 40},
        {.answer = JSON(STATUS("100", "5")), .close = true},
        /* changed meanwhile */
        {.answer = JSON(STATUS("100", "5")), .close = true},
        {.answer = OK("40"), .pad = 40},
        {.answer = JSON(STATUS("100", "6")), .close = true},
        /* cut */
        {.answer = JSON(STATUS("100", "5")), .close = true},
        {.answer = OK("39"), .pad = 39},
        /* longer */
        {.answer = JSON(STATUS("100", "5")), .close = true},
        {.answer = OK("41"), .pad = 41, .close = true},
    };
    struct web_fixture f;
    struct web_sink s;
    struct err e = {0};
    web_fixture_start(&f, "hdfs://127.0.0.1:%p/data", steps, ARRAY_SIZE(steps), one_at_a_time);
    WEB_FIXTURE_OK(web_fixture_get(&f, 10, 40, "5-64-10", &s, &e), e);
    assert_int_equal(s.bytes, 40);
    assert_string_equal(s.etag, "5-64-10");
    assert_int_equal(web_fixture_get(&f, 10, 40, "5-64-10", &s, &e), ERR_PRECONDITION);
    assert_int_equal(web_fixture_get(&f, 10, 40, NULL, &s, &e), ERR_ORIGIN_SHORT);
    assert_int_equal(web_fixture_get(&f, 10, 40, NULL, &s, &e), ERR_ORIGIN_SHORT);
    web_fixture_stop(&f);
}

#define GONE                                                                                                 \
    "HTTP/1.1 404 Not Found\r\nConnection: close\r\n\r\n"                                                    \
    "{\"RemoteException\":{\"exception\":\"FileNotFoundException\",\"message\":\"no such inode\"}}"

static void assert_asked(struct web_fixture *f, size_t i, const char *what)
{
    pthread_mutex_lock(&f->script.mutex);
    bool is = i < f->script.n_heads && strncmp(f->script.heads[i], what, strlen(what)) == 0;
    if (!is)
        fail_msg("request %zu is not %s: %.100s", i, what,
                 i < f->script.n_heads ? f->script.heads[i] : "(none)");
    pthread_mutex_unlock(&f->script.mutex);
}

/* Bytes are asked for by the file's id: those of a file that takes its path just then never come. A file that
 * is gone by then was changed; a server that knows no ids is asked by the path from then on. */
static void test_read_by_id(void **state)
{
    static const struct script_step steps[] = {
        {.answer = JSON(STATUS("100", "5")), .close = true},
        {.answer = OK("40"), .pad = 40},
        {.answer = JSON(STATUS("100", "5")), .close = true},
        /* replaced between the look and the read */
        {.answer = JSON(STATUS("100", "5")), .close = true},
        {.answer = GONE, .close = true},
        {.answer = JSON(STATUS("100", "6")), .close = true},
        /* no ids: a gateway that knows no such path */
        {.answer = JSON(STATUS("100", "5")), .close = true},
        {.answer = "HTTP/1.1 404 Not Found\r\nConnection: close\r\n\r\n<html>", .close = true},
        {.answer = JSON(STATUS("100", "5")), .close = true},
        {.answer = OK("40"), .pad = 40},
        {.answer = JSON(STATUS("100", "5")), .close = true},
        {.answer = JSON(STATUS("100", "5")), .close = true},
        {.answer = OK("40"), .pad = 40},
        {.answer = JSON(STATUS("100", "5")), .close = true},
    };
    struct web_fixture f;
    struct web_sink s;
    struct err e = {0};
    web_fixture_start(&f, "hdfs://127.0.0.1:%p/data", steps, ARRAY_SIZE(steps), one_at_a_time);
    WEB_FIXTURE_OK(web_fixture_get(&f, 10, 40, NULL, &s, &e), e);
    assert_asked(&f, 1, "GET /webhdfs/v1/.reserved/.inodes/16?op=OPEN");
    assert_int_equal(web_fixture_get(&f, 10, 40, NULL, &s, &e), ERR_ORIGIN_SHORT);
    assert_int_equal(s.bytes, 0);
    for (int i = 0; i < 2; i++) {
        WEB_FIXTURE_OK(web_fixture_get(&f, 10, 40, NULL, &s, &e), e);
        assert_int_equal(s.bytes, 40);
    }
    assert_asked(&f, 7, "GET /webhdfs/v1/.reserved/.inodes/16?op=OPEN");
    assert_asked(&f, 9, "GET /webhdfs/v1/data/");
    assert_asked(&f, 12, "GET /webhdfs/v1/data/");
    web_fixture_stop(&f);
}

#define FOLDER JSON("{\"FileStatus\":{\"type\":\"DIRECTORY\",\"length\":0,\"modificationTime\":5}}")
#define BATCH(entries)                                                                                       \
    JSON("{\"DirectoryListing\":{\"partialListing\":{\"FileStatuses\":{\"FileStatus\":[" entries             \
         "]}},\"remainingEntries\":0}}")

/* Batches that each say that more follows, and bring the same names again, are no directory: after a hundred
 * of them the listing fails. (Without origin_walk_on in read_batches a hundred thousand are asked for.) */
static void test_batches_that_lead_nowhere(void **state)
{
    static const char body[] =
        "{\"DirectoryListing\":{\"partialListing\":{\"FileStatuses\":{\"FileStatus\":[" ENTRY(
            "a", "FILE") "]}},\"remainingEntries\":5}}";
    struct script_step steps[ORIGIN_IDLE_PAGES_MAX + 2] = {{.answer = FOLDER, .close = true}};
    struct web_fixture f;
    struct origin_list l = {.max = 10};
    struct origin_page page;
    struct err e = {0};
    char answer[512];
    (void)snprintf(answer, sizeof(answer), "HTTP/1.1 200 OK\r\nContent-Length: %zu\r\n\r\n%s", strlen(body),
                   body);
    for (size_t i = 1; i < ARRAY_SIZE(steps); i++)
        steps[i].answer = answer;
    web_fixture_start(&f, "hdfs://127.0.0.1:%p/data", steps, ARRAY_SIZE(steps), one_at_a_time);
    assert_int_equal(origin_list(f.origin, &l, f.arena, &page, &e), ERR_ORIGIN_FAILED);
    assert_non_null(strstr(e.text, "lead nowhere"));
    web_fixture_stop(&f);
}

/* A 404 that is not the server's own says nothing of the folder: the listing fails. One that the server says
 * is gone is left out. (Seen to fail with the class of the status.) */
static void test_a_folder_that_a_proxy_does_not_find(void **state)
{
    static const struct script_step steps[] = {
        {.answer = FOLDER, .close = true}, /* the origin's own */
        {.answer = BATCH(ENTRY("d", "DIRECTORY") "," ENTRY("f", "FILE")), .close = true},
        {.answer = "HTTP/1.1 404 Not Found\r\nConnection: close\r\n\r\n<html>", .close = true},
        {.answer = FOLDER, .close = true},
        {.answer = BATCH(ENTRY("d", "DIRECTORY") "," ENTRY("f", "FILE")), .close = true},
        {.answer = GONE, .close = true},
    };
    struct web_fixture f;
    struct origin_list l = {.max = 10};
    struct origin_page page;
    struct err e = {0};
    web_fixture_start(&f, "hdfs://127.0.0.1:%p/data", steps, ARRAY_SIZE(steps), one_at_a_time);
    assert_int_equal(origin_list(f.origin, &l, f.arena, &page, &e), ERR_ORIGIN_FAILED);
    assert_non_null(strstr(e.text, "404 Not Found"));
    WEB_FIXTURE_OK(origin_list(f.origin, &l, f.arena, &page, &e), e);
    assert_true(page.n == 1 && slice_eq_str(page.entries[0].key, "f"));
    web_fixture_stop(&f);
}

#define N64  "nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn"
#define N255 N64 N64 N64 "nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn"

/* Names longer than one in a key may be are told to jobs by how they begin, files and directories, those that
 * begin alike once; nobody else sees them. (Seen to fail with them left out by tree_folder_add.) */
static void test_names_longer_than_any_in_a_key(void **state)
{
    static const char answer[] = BATCH(ENTRY(N255, "FILE") "," ENTRY(N255 "n", "FILE") "," ENTRY(
        N255 "nn", "DIRECTORY") "," ENTRY("z", "FILE"));
    static const struct script_step steps[] = {
        {.answer = FOLDER, .close = true},
        {.answer = answer, .close = true},
        {.answer = FOLDER, .close = true},
        {.answer = answer, .close = true},
    };
    struct web_fixture f;
    struct origin_list l = {.max = 10, .unfit = true};
    struct origin_page page;
    struct err e = {0};
    web_fixture_start(&f, "hdfs://127.0.0.1:%p/data", steps, ARRAY_SIZE(steps), one_at_a_time);
    WEB_FIXTURE_OK(origin_list(f.origin, &l, f.arena, &page, &e), e);
    assert_int_equal(page.n, 3);
    assert_true(slice_eq_str(page.entries[0].key, N255) && slice_eq_str(page.entries[1].key, N255 "n"));
    assert_true(slice_eq_str(page.entries[0].attr.etag, "5-3-7"));
    assert_true(slice_eq_str(page.entries[1].attr.etag, ORIGIN_ETAG_UNFIT));
    assert_true(slice_eq_str(page.entries[2].key, "z"));
    l.unfit = false;
    WEB_FIXTURE_OK(origin_list(f.origin, &l, f.arena, &page, &e), e);
    assert_true(page.n == 2 && slice_eq_str(page.entries[1].key, "z"));
    web_fixture_stop(&f);
}

/* A server whose rename knows no options (HttpFS): the target is deleted first, and it is not tried again
 * with them. */
static void test_put_without_options(void **state)
{
    static const struct script_step steps[] = {
        {.answer = "HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n"}, /* CREATE at once, empty */
        {.answer = "HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n"}, /* again, with the bytes */
        {.answer = JSON(STATUS("10", "5")), .close = true},
        {.answer = JSON("{\"boolean\":false}"), .close = true}, /* RENAME */
        {.answer = JSON(STATUS("3", "4")), .close = true},
        {.answer = JSON("{\"boolean\":true}"), .close = true}, /* DELETE */
        {.answer = JSON("{\"boolean\":true}"), .close = true}, /* RENAME */
        {.answer = JSON(STATUS("10", "5")), .close = true},    /* it is no directory */
        /* The second time the rename fails: the new file stays. */
        {.answer = "HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n"},
        {.answer = "HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n"},
        {.answer = JSON(STATUS("10", "5")), .close = true},
        {.answer = JSON(STATUS("3", "4")), .close = true},
        {.answer = JSON("{\"boolean\":true}"), .close = true},
        {.answer = JSON("{\"boolean\":false}"), .close = true},
    };
    struct web_fixture f;
    struct origin_attr attr;
    struct err e = {0};
    web_fixture_start(&f, "hdfs://127.0.0.1:%p/data", steps, ARRAY_SIZE(steps), one_at_a_time);
    WEB_FIXTURE_OK(web_fixture_put(&f, 10, &attr, &e), e);
    assert_true(slice_eq_str(attr.etag, "5-a-10"));
    assert_int_equal(web_fixture_put(&f, 10, &attr, &e), ERR_ORIGIN_FAILED);
    assert_non_null(strstr(e.text, "the new one is .forebay-tmp-"));
    web_fixture_stop(&f);
}

#define CREATED "HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n"
#define NOT_FOUND                                                                                            \
    "HTTP/1.1 404 Not Found\r\nConnection: close\r\n\r\n"                                                    \
    "{\"RemoteException\":{\"exception\":\"FileNotFoundException\",\"message\":\"no such file\"}}"
#define EXISTS                                                                                               \
    "HTTP/1.1 403 Forbidden\r\nConnection: close\r\n\r\n"                                                    \
    "{\"RemoteException\":{\"exception\":\"FileAlreadyExistsException\",\"message\":\"it is there\"}}"
#define BUSY                                                                                                 \
    "HTTP/1.1 403 Forbidden\r\nConnection: close\r\n\r\n"                                                    \
    "{\"RemoteException\":{\"exception\":\"RetriableException\",\"message\":\"later\"}}"
#define KEPT      OK("75") STATUS("10", "5") /* over a connection that stays */
#define DIRECTORY "{\"FileStatus\":{\"type\":\"DIRECTORY\",\"length\":0,\"modificationTime\":5}}"

/* Without options a rename moves the file into a directory of the target's name and says true: the put fails,
 * and the file is removed from there. */
static void test_put_at_a_directory_without_options(void **state)
{
    static const struct script_step steps[] = {
        {.answer = CREATED},
        {.answer = CREATED},
        {.answer = JSON(STATUS("10", "5")), .close = true},
        {.answer = JSON("{\"boolean\":true}"), .close = true}, /* RENAME */
        {.answer = JSON(DIRECTORY), .close = true},            /* where it went */
        {.answer = JSON("{\"boolean\":true}"), .close = true}, /* DELETE */
    };
    struct web_fixture f;
    struct origin_attr attr;
    struct err e = {0};
    web_fixture_start(&f, "hdfs://127.0.0.1:%p/data", steps, ARRAY_SIZE(steps), one_at_a_time);
    assert_int_equal(web_fixture_put(&f, 10, &attr, &e), -EINVAL);
    assert_non_null(strstr(e.text, "a directory of that name is there"));
    assert_int_equal(script_steps_taken(&f.script), ARRAY_SIZE(steps));
    assert_non_null(strstr(script_head(&f.script, 5), "DELETE /webhdfs/v1/data/k/.forebay-tmp-"));
    web_fixture_stop(&f);
}

/* Where nothing was deleted nothing is kept: a rename that fails leaves no reserved name. */
static void test_put_of_a_new_file_without_options(void **state)
{
    static const struct script_step steps[] = {
        {.answer = CREATED},
        {.answer = CREATED},
        {.answer = JSON(STATUS("10", "5")), .close = true},
        {.answer = JSON("{\"boolean\":false}"), .close = true}, /* RENAME */
        {.answer = NOT_FOUND, .close = true},                   /* the target */
        {.answer = JSON("{\"boolean\":false}"), .close = true}, /* RENAME */
        {.answer = JSON("{\"boolean\":true}"), .close = true},  /* DELETE */
    };
    struct web_fixture f;
    struct origin_attr attr;
    struct err e = {0};
    web_fixture_start(&f, "hdfs://127.0.0.1:%p/data", steps, ARRAY_SIZE(steps), one_at_a_time);
    assert_int_equal(web_fixture_put(&f, 10, &attr, &e), ERR_ORIGIN_FAILED);
    assert_null(strstr(e.text, "is deleted"));
    assert_int_equal(script_steps_taken(&f.script), ARRAY_SIZE(steps));
    web_fixture_stop(&f);
}

/* An old file whose removal was answered by nobody may be gone: the new one takes its place. */
static void test_put_whose_removal_of_the_old_file_is_not_answered(void **state)
{
    static const struct script_step steps[] = {
        {.answer = CREATED},
        {.answer = CREATED},
        {.answer = JSON(STATUS("10", "5")), .close = true},
        {.answer = JSON("{\"boolean\":false}"), .close = true}, /* RENAME */
        {.answer = JSON(STATUS("3", "4")), .close = true},
        {.answer = "", .close = true},                         /* DELETE */
        {.answer = NOT_FOUND, .close = true},                  /* it is gone */
        {.answer = JSON("{\"boolean\":true}"), .close = true}, /* RENAME */
        {.answer = JSON(STATUS("10", "5")), .close = true},    /* it is no directory */
    };
    struct web_fixture f;
    struct origin_attr attr;
    struct err e = {0};
    web_fixture_start(&f, "hdfs://127.0.0.1:%p/data", steps, ARRAY_SIZE(steps), one_at_a_time);
    WEB_FIXTURE_OK(web_fixture_put(&f, 10, &attr, &e), e);
    assert_int_equal(script_steps_taken(&f.script), ARRAY_SIZE(steps));
    web_fixture_stop(&f);
}

/* A rename that curl sent twice, because a kept connection closed without an answer, has happened when the
 * reserved name is gone: the put is none that failed, and nothing is deleted for its sake. */
static void test_rename_sent_twice(void **state)
{
    static const struct script_step steps[] = {
        /* as a namenode tells it */
        {.answer = CREATED},
        {.answer = CREATED},
        {.answer = KEPT},
        {.answer = "", .close = true},
        {.answer = NOT_FOUND, .close = true},
        {.answer = NOT_FOUND, .close = true}, /* the reserved name */
        /* as HttpFS does */
        {.answer = CREATED},
        {.answer = CREATED},
        {.answer = KEPT},
        {.answer = "", .close = true},
        {.answer = JSON("{\"boolean\":false}"), .close = true},
        {.answer = NOT_FOUND, .close = true},
        {.answer = JSON(STATUS("10", "5")), .close = true}, /* it is no directory */
        /* one that did not happen */
        {.answer = CREATED},
        {.answer = CREATED},
        {.answer = KEPT},
        {.answer = "", .close = true},
        {.answer = BUSY, .close = true},
        {.answer = JSON(STATUS("10", "5")), .close = true},
        {.answer = JSON("{\"boolean\":true}"), .close = true}, /* DELETE */
    };
    struct web_fixture f;
    struct origin_attr attr;
    struct err e = {0};
    web_fixture_start(&f, "hdfs://127.0.0.1:%p/data", steps, ARRAY_SIZE(steps), one_at_a_time);
    WEB_FIXTURE_OK(web_fixture_put(&f, 10, &attr, &e), e);
    WEB_FIXTURE_OK(web_fixture_put(&f, 10, &attr, &e), e);
    assert_int_equal(web_fixture_put(&f, 10, &attr, &e), ERR_ORIGIN_BUSY);
    assert_int_equal(script_steps_taken(&f.script), ARRAY_SIZE(steps));
    web_fixture_stop(&f);
}

/* So a file that was created twice is no condition of the caller's that failed, and a removal may have
 * removed what is not there now. */
static void test_create_and_remove_sent_twice(void **state)
{
    static const struct script_step steps[] = {
        {.answer = KEPT},
        {.answer = "", .close = true},
        {.answer = EXISTS, .close = true},
        {.answer = JSON("{\"boolean\":true}"), .close = true}, /* DELETE of the reserved name */
        {.answer = KEPT},
        {.answer = "", .close = true},
        {.answer = JSON("{\"boolean\":false}"), .close = true},
    };
    struct web_fixture f;
    struct origin_attr attr;
    struct err e = {0};
    web_fixture_start(&f, "hdfs://127.0.0.1:%p/data", steps, ARRAY_SIZE(steps), one_at_a_time);
    WEB_FIXTURE_OK(web_fixture_stat(&f, &attr, &e), e);
    assert_int_equal(web_fixture_put(&f, 10, &attr, &e), ERR_ORIGIN_FAILED);
    assert_int_equal(origin_remove(f.origin, SLICE_LIT("k"), SLICE_NULL, &e), ERR_ORIGIN_FAILED);
    assert_non_null(strstr(e.text, "sent again"));
    assert_int_equal(script_steps_taken(&f.script), ARRAY_SIZE(steps));
    web_fixture_stop(&f);
}

#define PIECE (4 * MIB) /* that a copy reads at a time */

/* A copy reads while it writes, also where one request at a time is asked for. */
static void test_copy_over_one_connection(void **state)
{
    static const struct script_step steps[] = {
        {.answer = JSON(STATUS("4194404", "5")), .close = true},
        {.answer = OK("4194304"), .pad = PIECE}, /* the first piece, before anything is created */
        {.answer = CREATED},
        {.answer = CREATED, .close = true}, /* meanwhile: */
        {.answer = OK("100"), .pad = 100},
        {.answer = JSON(STATUS("4194404", "5")), .close = true},
        {.answer = JSON(STATUS("4194404", "6")), .close = true},
        {.answer = OK("0"), .close = true}, /* RENAME */
    };
    struct web_fixture f;
    struct origin_attr attr;
    struct err e = {0};
    web_fixture_start(&f, "hdfs://127.0.0.1:%p/data", steps, ARRAY_SIZE(steps), one_at_a_time);
    WEB_FIXTURE_OK(origin_copy(f.origin, SLICE_LIT("k"), SLICE_LIT("to"), SLICE_NULL, f.arena, &attr, &e), e);
    assert_int_equal(attr.size_bytes, PIECE + 100);
    assert_int_equal(f.script.body_bytes, PIECE + 100);
    web_fixture_stop(&f);
}

static int open_with(const char *url, const char *const *more, struct err *e)
{
    struct origin_options o;
    struct origin *x = NULL;
    assert_int_equal(option_init(&origin_option_table, &o, e), 0);
    for (; *more; more += 2)
        web_fixture_option(&o, more[0], more[1]);
    int r = origin_open(url, &o, "b", &x, e);
    option_fini(&origin_option_table, &o);
    if (r == 0)
        origin_close(x);
    return r;
}

/* URLs and settings that cannot be are one line that says how to write them. */
static void test_open(void **state)
{
    static const char *const none[] = {NULL};
    static const char *const both[] = {"origin.user", "me", "origin.delegation_token", "hush", NULL};
    static const char *const gateway[] = {"origin.endpoint", "https://gate:8443/cluster", NULL};
    static const char *const bad[] = {"hdfs://",
                                      "hdfs://nn",
                                      "hdfs:///x",
                                      "hdfs://nn/x",
                                      "hdfs://nn:9870/../x",
                                      "hdfs://nn:9870/a//b",
                                      "hdfs://nn:9870/x?op=DELETE"};
    struct err e = {0};
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        assert_int_equal(open_with(bad[i], none, &e), ERR_BAD_OPTION);
        assert_non_null(strstr(e.text, "write hdfs://HOST:PORT[/PATH]"));
    }
    assert_int_equal(open_with("hdfs://me@nn:9870/x", none, &e), ERR_BAD_OPTION);
    assert_non_null(strstr(e.text, "origin.user"));
    assert_int_equal(open_with("hdfs://nn:9870", none, &e), 0);
    assert_int_equal(open_with("hdfs://[::1]:9870/a b/", none, &e), 0);
    assert_int_equal(open_with("hdfs://cluster/x", gateway, &e), 0);
    assert_int_equal(open_with("hdfs://nn:9870/x", both, &e), ERR_BAD_OPTION);
    assert_null(strstr(e.text, "hush"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_status),
        cmocka_unit_test(test_deep_answers),
        cmocka_unit_test(test_listing),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_read_without_redirect),
        cmocka_unit_test(test_read_by_id),
        cmocka_unit_test(test_a_folder_that_a_proxy_does_not_find),
        cmocka_unit_test(test_batches_that_lead_nowhere),
        cmocka_unit_test(test_names_longer_than_any_in_a_key),
        cmocka_unit_test(test_open),
        cmocka_unit_test(test_put_without_options),
        cmocka_unit_test(test_put_at_a_directory_without_options),
        cmocka_unit_test(test_put_of_a_new_file_without_options),
        cmocka_unit_test(test_put_whose_removal_of_the_old_file_is_not_answered),
        cmocka_unit_test(test_rename_sent_twice),
        cmocka_unit_test(test_create_and_remove_sent_twice),
        cmocka_unit_test(test_copy_over_one_connection),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

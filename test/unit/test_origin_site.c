/* layer: origin */
/* threaded */
/*
 * The read-only kind: index pages and manifests as text, and a server that answers whatever the test scripts.
 * The same kind against a server that is not ours: test/system/test_origins.py.
 */
#include "origin/site_internal.h"

#include "web_fixture.h"

static const char *const one_at_a_time[] = {"origin.connections", "1", NULL};
static const char *const with_manifest[] = {"origin.connections", "1", "origin.manifest", "list.tsv", NULL};

#define CLOSED(status) "HTTP/1.1 " status "\r\nConnection: close\r\n\r\n"
#define HEAD(etag, length)                                                                                   \
    "HTTP/1.1 200 OK\r\nETag: " etag "\r\nContent-Length: " length "\r\nConnection: close\r\n\r\n"
#define MEDIA(etag, range, length)                                                                           \
    "HTTP/1.1 206 Partial Content\r\nETag: \"" etag "\"\r\nContent-Range: bytes " range                      \
    "\r\nContent-Length: " length "\r\n\r\n"

static void expect_names(const char *text, const char *path, const char *expected)
{
    struct site_folder *f = NULL;
    struct err e = {0};
    struct buf _cleanup_buf_ names = BUF_INIT(4096);
    WEB_FIXTURE_OK(site_index_parse(slice_str(text), slice_str(path), &f, &e), e);
    for (size_t i = 0; i < f->n; i++)
        assert_int_equal(buf_printf(&names, "%s|", f->v[i].name), 0);
    if (strcmp(names.p ? names.p : "", expected) != 0)
        fail_msg("%s", names.p ? names.p : "");
    site_folder_unref(f);
}

/* Links to children are names; sorting links, parents, other places, scripts and broken escapes are not. */
static void test_index_html(void **state)
{
    expect_names(
        "<html><pre><a href=\"../\">../</a>\n<a href=\"sub%20dir/\">sub dir/</a> 1\n"
        "<a href=\"b%25%2B%26%27%3C.txt\">x</a>\n<a href=\"a.txt\">a</a><a href=\"a.txt\">again</a></pre>",
        "/d/", "a.txt|b%+&'<.txt|sub dir/|");
    expect_names(
        "<table><tr><th><a href=\"?C=N;O=D\">Name</a></th></tr><tr><td><A class='x' HREF='/d/whole.bin'>w</A>"
        "<a href=\"/other/x\">o</a><a href=\"/\">root</a><a href=\"http://h/d/full\">f</a><a "
        "href=\"./dot\">d</a>"
        "<a href=\"a&amp;b\">e</a><a href=\"q?x\">q</a><a href=\"x#y\">h</a><a href=\"%zz\">z</a>"
        "<a href=\"deep/er\">d</a><a href=\"..\">u</a><a href=\"%2e%2e/\">u</a><a href=\"n%00l\">n</a>"
        "<a name=\"here\">n</a><abbr href=\"no\">n</abbr><a href=unquoted>u</a></table>",
        "/d/", "a&b|dot|full|whole.bin|");
    expect_names("", "/", "");
    expect_names("no page at all", "/", "");
    expect_names("<a href=\"cut", "/", "");
    expect_names("<a ", "/", "");
    expect_names("<a href=\"x\"", "/", "");
    expect_names("<a href=\"\">empty</a><a href=\"/\">root</a>", "/", "");
}

/* A page as large as may be, of links none of which ends, is read once and not once for each of them. (With
 * the search for '>' going on behind the first that finds none it takes hours.) */
static void test_index_of_tags_without_an_end(void **state)
{
    (void)state;
    char *text = malloc(SITE_INDEX_MAX);
    struct site_folder *f;
    struct err e = {0};
    assert_non_null(text);
    for (size_t i = 0; i < SITE_INDEX_MAX; i++)
        text[i] = "<a "[i % 3];
    WEB_FIXTURE_OK(site_index_parse(slice_of(text, SITE_INDEX_MAX), SLICE_LIT("/"), &f, &e), e);
    assert_int_equal(f->n, 0);
    site_folder_unref(f);
    free(text);
}

/* nginx's JSON tells names and kinds; what is neither file nor directory is left out. */
static void test_index_json(void **state)
{
    expect_names(
        "[{\"name\":\"b\",\"type\":\"file\",\"size\":3},{\"name\":\"a\",\"type\":\"directory\"},"
        "{\"name\":\"dev\",\"type\":\"other\"},{\"name\":\"../x\",\"type\":\"file\"},{\"type\":\"file\"}]",
        "/", "a/|b|");
    struct site_folder *f;
    struct err e = {0};
    assert_int_equal(site_index_parse(SLICE_LIT("[{\"name\":"), SLICE_LIT("/"), &f, &e), ERR_ORIGIN_FAILED);
}

/* A manifest's lines are keys with what is known of them; lines that make no sense are told by number. */
static void test_manifest(void **state)
{
    struct site_folder *f;
    struct err e = {0};
    WEB_FIXTURE_OK(site_manifest_parse(
                       SLICE_LIT("# comment\n\nz\t5\t\"e1\"\t2026-01-31T23:59:59Z\r\na/b\nc\t7\n"), &f, &e),
                   e);
    assert_int_equal(f->n, 3);
    assert_true(strcmp(f->v[0].name, "a/b") == 0 && !f->v[0].has_attr);
    assert_true(strcmp(f->v[1].name, "c") == 0 && !f->v[1].has_attr);
    assert_true(f->v[2].has_attr && f->v[2].size == 5 && strcmp(f->v[2].etag, "e1") == 0 &&
                f->v[2].mtime_ns > 0);
    site_folder_unref(f);
    static const char *const bad[] = {"ok\na\tx\n", "ok\nfolder/\n", "ok\n/a\n", "ok\na\t1\te\tnever\n"};
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        assert_int_equal(site_manifest_parse(slice_str(bad[i]), &f, &e), ERR_ORIGIN_FAILED);
        assert_non_null(strstr(e.text, "line 2"));
    }
}

/* Reads are pinned and checked; redirects and refusals are told in words. */
static void test_wrong_answers(void **state)
{
    static const struct {
        struct script_step step;
        int code;
        const char *text;
    } cases[] = {
        {{.answer = MEDIA("v1", "50-149/1000", "100"), .pad = 100}, 0, NULL},
        {{.answer = MEDIA("v1", "50-149/1000", "100"), .pad = 40, .close = true}, ERR_ORIGIN_SHORT, NULL},
        {{.answer = MEDIA("v1", "50-149/1000", "90"), .pad = 90}, ERR_ORIGIN_SHORT, "Content-Length 90"},
        {{.answer = MEDIA("v2", "50-149/1000", "100"), .pad = 100}, ERR_PRECONDITION, "no longer v1"},
        {{.answer = "HTTP/1.1 200 OK\r\nETag: \"v1\"\r\nContent-Length: 1000\r\n\r\n", .pad = 1000},
         ERR_ORIGIN_FAILED,
         "ignores ranges"},
        {{.answer = "HTTP/1.1 301 Moved\r\nLocation: http://h/d/k/\r\nContent-Length: 0\r\n\r\n"},
         -ENOENT,
         "folder"},
        {{.answer =
              "HTTP/1.1 302 Found\r\nLocation: http://elsewhere/k?sig=secret\r\nContent-Length: 0\r\n\r\n"},
         ERR_ORIGIN_REFUSED,
         "redirect to http://elsewhere/k, which"},
        {{.answer = CLOSED("403 Forbidden") "no way\n", .close = true},
         ERR_ORIGIN_DENIED,
         "403 Forbidden: no way"},
        {{.answer = CLOSED("404 Not Found"), .close = true}, -ENOENT, "404"},
        {{.answer = CLOSED("429 Slow"), .close = true}, ERR_ORIGIN_BUSY, "429"},
        {{.answer = CLOSED("500 Oh"), .close = true}, ERR_ORIGIN_FAILED, "500"},
        {{.answer = CLOSED("503 Oh"), .close = true}, ERR_ORIGIN_BUSY, "503"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct web_fixture f;
        struct web_sink s;
        struct err e;
        web_fixture_start(&f, "http://127.0.0.1:%p/d", &cases[i].step, 1, NULL);
        assert_int_equal(web_fixture_get(&f, 50, 100, "v1", &s, &e), cases[i].code);
        if (cases[i].text && !strstr(e.text, cases[i].text))
            fail_msg("\"%s\" is not in \"%s\"", cases[i].text, e.text);
        assert_non_null(strstr(script_head(&f.script, 0), "GET /d/k HTTP/1.1\r\n"));
        assert_non_null(strstr(script_head(&f.script, 0), "if-match: \"v1\"\r\n"));
        web_fixture_stop(&f);
    }
}

/* A redirect that only adds a slash is known however the server encodes names: nginx leaves parentheses and
 * '+' as they are, Apache writes lower-case digits. */
static void test_redirects_of_folders(void **state)
{
    static const struct script_step steps[] = {
        {.answer = "HTTP/1.1 301 Moved\r\nLocation: http://h/d/c++(1)/\r\nContent-Length: 0\r\n\r\n"},
        {.answer = "HTTP/1.1 301 Moved\r\nLocation: http://h/d/c++(1)%c3%a4/\r\nContent-Length: 0\r\n\r\n"},
        {.answer = "HTTP/1.1 301 Moved\r\nLocation: http://h/d/c%2b%2b(2)/\r\nContent-Length: 0\r\n\r\n"}};
    static const char *const keys[] = {"c++(1)", "c++(1)\xc3\xa4", "c++(1)"};
    static const int codes[] = {-ENOENT, -ENOENT, ERR_ORIGIN_REFUSED};
    struct web_fixture f;
    struct web_sink s = {0};
    struct origin_attr attr;
    struct err e = {0};
    web_fixture_start(&f, "http://127.0.0.1:%p/d", steps, ARRAY_SIZE(steps), NULL);
    for (size_t i = 0; i < ARRAY_SIZE(keys); i++) {
        struct origin_get g = {.key = slice_str(keys[i]), .attributes_only = true};
        assert_int_equal(origin_get(f.origin, &g, f.arena, &attr, web_sink_take, &s, &e), codes[i]);
    }
    web_fixture_stop(&f);
}

/* Nothing is asked for names that lead out of the folder or name a folder, and nothing is written. */
static void test_what_it_cannot(void **state)
{
    struct web_fixture f;
    struct web_sink s = {0};
    struct err e = {0};
    struct origin_attr attr;
    struct origin_page page;
    web_fixture_start(&f, "http://127.0.0.1:%p/d", NULL, 0, NULL);
    static const char *const keys[] = {"../k", "a/../../k", "a/", ".", "a/./b", "..\\k", "a/..\\..\\k"};
    for (size_t i = 0; i < ARRAY_SIZE(keys); i++) {
        struct origin_get g = {.key = slice_str(keys[i]), .whole = true};
        assert_int_equal(origin_get(f.origin, &g, f.arena, &attr, web_sink_take, &s, &e), -ENOENT);
    }
    struct origin_list l = {.prefix = SLICE_LIT("../")};
    WEB_FIXTURE_OK(origin_list(f.origin, &l, f.arena, &page, &e), e);
    assert_int_equal(page.n, 0);
    assert_int_equal(web_fixture_put(&f, 10, &attr, &e), -EROFS);
    assert_non_null(strstr(e.text, "read-only"));
    assert_int_equal(origin_remove(f.origin, SLICE_LIT("k"), SLICE_NULL, &e), -EROFS);
    assert_int_equal(origin_copy(f.origin, SLICE_LIT("k"), SLICE_LIT("l"), SLICE_NULL, f.arena, &attr, &e),
                     -EROFS);
    assert_int_equal(script_steps_taken(&f.script), 0);
    web_fixture_stop(&f);
}

/* A walk in byte order of whole keys, by pages: versions by HEAD, names that are nothing left out, an index
 * read once. */
static void test_pages(void **state)
{
    static const struct script_step steps[] = {
        {.answer = CLOSED("200 OK") "<a href=\"a/\"><a href=\"a-b\"><a href=\"z\"></html>", .close = true},
        {.answer = CLOSED("200 OK") "<a href=\"gone\"><a href=\"x\"></HTML> \n", .close = true},
        {.answer = HEAD("\"e\"", "5"), .close = true},      /* a-b */
        {.answer = CLOSED("404 Not Found"), .close = true}, /* a/gone */
        {.answer = HEAD("\"f\"", "6"), .close = true},      /* a/x, on the second page */
        {.answer = HEAD("\"g\"", "7"), .close = true},      /* z */
    };
    struct web_fixture f;
    struct origin_page page;
    struct err e = {0};
    web_fixture_start(&f, "http://127.0.0.1:%p/d", steps, ARRAY_SIZE(steps), one_at_a_time);
    struct origin_list l = {.max = 2};
    WEB_FIXTURE_OK(origin_list(f.origin, &l, f.arena, &page, &e), e);
    assert_true(page.n == 1 && page.truncated && slice_eq_str(page.entries[0].key, "a-b"));
    assert_true(page.entries[0].attr.size_bytes == 5 && slice_eq_str(page.entries[0].attr.etag, "e"));
    assert_true(slice_eq_str(page.next_token, "a/gone"));
    l.token = page.next_token;
    WEB_FIXTURE_OK(origin_list(f.origin, &l, f.arena, &page, &e), e);
    assert_true(page.n == 2 && !page.truncated && slice_eq_str(page.entries[0].key, "a/x") &&
                slice_eq_str(page.entries[1].key, "z"));
    assert_int_equal(script_steps_taken(&f.script), ARRAY_SIZE(steps));
    web_fixture_stop(&f);
}

/* Folders are common prefixes without being read; a HEAD that fails for another reason fails the page. */
static void test_folders(void **state)
{
    static const struct script_step steps[] = {
        {.answer = CLOSED("200 OK") "<a href=\"a/\"><a href=\"b/\"></html>", .close = true},
        {.answer = CLOSED("200 OK") "<a href=\"k\"></html>", .close = true},
        {.answer = CLOSED("401 Who"), .close = true},
        {.answer = CLOSED("200 OK") "<a href=\"k\"></html>", .close = true},
        {.answer = CLOSED("400 Bad"), .close = true},
        {.answer = CLOSED("403 No"), .close = true},
    };
    struct web_fixture f;
    struct origin_page page;
    struct err e = {0};
    web_fixture_start(&f, "http://127.0.0.1:%p/d", steps, ARRAY_SIZE(steps), one_at_a_time);
    struct origin_list l = {.delimiter = '/'};
    WEB_FIXTURE_OK(origin_list(f.origin, &l, f.arena, &page, &e), e);
    assert_true(page.n == 2 && page.entries[0].is_prefix && slice_eq_str(page.entries[1].key, "b/"));
    l.prefix = SLICE_LIT("a/");
    assert_int_equal(origin_list(f.origin, &l, f.arena, &page, &e), ERR_ORIGIN_DENIED);
    assert_non_null(strstr(e.text, "a/k: 401"));
    assert_int_equal(origin_list(f.origin, &l, f.arena, &page, &e), ERR_ORIGIN_REFUSED);
    assert_int_equal(origin_list(f.origin, &l, f.arena, &page, &e), ERR_ORIGIN_DENIED);
    assert_non_null(strstr(e.text, "origin.manifest"));
    web_fixture_stop(&f);
}

/* Folders that lie deeper in each other than is walked fail the listing: what they hold would be missing in
 * it. (Seen to fail with them left out.) */
static void test_folders_too_deep(void **state)
{
    static struct script_step steps[66];
    struct web_fixture f;
    struct origin_page page;
    struct origin_list l = {0};
    struct err e = {0};
    for (size_t i = 0; i < ARRAY_SIZE(steps); i++)
        steps[i].answer = i < 65 ? "HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n<a href=\"d/\"></html>"
                                 : "HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n</html>";
    web_fixture_start(&f, "http://127.0.0.1:%p/d", steps, ARRAY_SIZE(steps), one_at_a_time);
    assert_int_equal(origin_list(f.origin, &l, f.arena, &page, &e), ERR_ORIGIN_REFUSED);
    if (!strstr(e.text, "/d/d/") || !strstr(e.text, "64"))
        fail_msg("%s", e.text);
    web_fixture_stop(&f);
}

/* With a manifest that tells all, a listing is one request, cut by prefix and delimiter here. */
static void test_listing_by_manifest(void **state)
{
    static const struct script_step steps[] = {
        {.answer = CLOSED("200 OK") "p/a\t1\te1\np/q/b\t2\te2\np/q/c\t3\te3\nz\t4\te4\n# end\n",
         .close = true}};
    struct web_fixture f;
    struct origin_page page;
    struct err e = {0};
    web_fixture_start(&f, "http://127.0.0.1:%p/d", steps, ARRAY_SIZE(steps), with_manifest);
    struct origin_list l = {.prefix = SLICE_LIT("p/"), .delimiter = '/', .max = 1};
    WEB_FIXTURE_OK(origin_list(f.origin, &l, f.arena, &page, &e), e);
    assert_true(page.n == 1 && page.truncated && slice_eq_str(page.entries[0].attr.etag, "e1"));
    l.token = page.next_token;
    WEB_FIXTURE_OK(origin_list(f.origin, &l, f.arena, &page, &e), e);
    assert_true(page.n == 1 && !page.truncated && page.entries[0].is_prefix &&
                slice_eq_str(page.entries[0].key, "p/q/"));
    assert_non_null(strstr(script_head(&f.script, 0), "GET /d/list.tsv "));
    web_fixture_stop(&f);
}

static uint64_t later_ns;

static uint64_t later(void)
{
    return sys_real.mono_ns() + later_ns;
}

/* An index page longer than any may be is refused in words. */
static void test_an_index_that_is_too_long(void **state)
{
    (void)state;
    static const struct script_step step = {.answer = "HTTP/1.1 200 OK\r\nContent-Length: 33554433\r\n\r\n",
                                            .pad = SITE_INDEX_MAX + 1};
    struct web_fixture f;
    struct origin_list l = {.max = 10};
    struct origin_page page;
    struct err e = {0};
    web_fixture_start(&f, "http://127.0.0.1:%p/p", &step, 1, NULL);
    assert_int_equal(origin_list(f.origin, &l, f.arena, &page, &e), ERR_ORIGIN_FAILED);
    assert_non_null(strstr(e.text, "longer than 33554432 bytes"));
    web_fixture_stop(&f);
}

/* An index page or a manifest that was cut is an error that names it and says what helps, never a shorter
 * listing; one that comes without a length must say itself that it has ended. */
static void test_cut_listings(void **state)
{
#define HTML   "<html><a href=\"a/\"><a href=\"b/\">"
#define LINES  "a/x\t1\te1\nb/x\t2\te2\n"
#define LENGTH "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: "
#define CHUNKS "HTTP/1.1 200 OK\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    static const struct {
        const char *answer, *says;
        bool is_manifest;
        size_t n; /* entries; 0: it is cut */
    } cases[] = {
        {CLOSED("200 OK") HTML "</html>", NULL, false, 2},
        {LENGTH "32\r\n\r\n" HTML, NULL, false, 2}, /* whole by its length */
        {CHUNKS "20\r\n" HTML "\r\n0\r\n\r\n", NULL, false, 2},
        {CLOSED("200 OK") HTML "</htm", "index page of /d/ came without a length", false, 0},
        {CLOSED("200 OK") HTML, "origin.manifest", false, 0},
        {CLOSED("200 OK"), "index page", false, 0},
        {"HTTP/1.0 200 OK\r\n\r\n" HTML, "index page", false, 0},
        {LENGTH "39\r\n\r\n" HTML, "", false, 0},
        {CHUNKS "20\r\n" HTML "\r\n", "", false, 0},
        {CHUNKS "ff\r\n" HTML "</html>", "", false, 0},
        {CLOSED("200 OK") LINES "# end\n", NULL, true, 2},
        {LENGTH "18\r\n\r\n" LINES, NULL, true, 2},
        {CLOSED("200 OK") LINES, "the manifest /d/list.tsv came without a length", true, 0},
        {CLOSED("200 OK") LINES "# en", "# end", true, 0},
        {CLOSED("200 OK"), "Content-Length", true, 0},
        {LENGTH "30\r\n\r\n" LINES, "", true, 0},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct script_step step = {.answer = cases[i].answer, .close = true};
        struct web_fixture f;
        struct origin_page page;
        struct err e = {0};
        struct origin_list l = {.delimiter = '/'};
        web_fixture_start(&f, "http://127.0.0.1:%p/d", &step, 1,
                          cases[i].is_manifest ? with_manifest : one_at_a_time);
        int r = origin_list(f.origin, &l, f.arena, &page, &e);
        if (r != (cases[i].n > 0 ? 0 : ERR_ORIGIN_SHORT) || (r == 0 && page.n != cases[i].n) ||
            (r < 0 && !strstr(e.text, cases[i].says)))
            fail_msg("case %zu: %d, %s", i, r, e.text);
        web_fixture_stop(&f);
    }
    /* What nginx tells in JSON is whole or no JSON. */
    struct script_step step = {.answer = CLOSED("200 OK") "[{\"name\":\"a\",\"type\":\"directory\"}",
                               .close = true};
    struct web_fixture f;
    struct origin_page page;
    struct err e = {0};
    struct origin_list l = {.delimiter = '/'};
    web_fixture_start(&f, "http://127.0.0.1:%p/d", &step, 1, one_at_a_time);
    assert_int_equal(origin_list(f.origin, &l, f.arena, &page, &e), ERR_ORIGIN_FAILED);
    web_fixture_stop(&f);
}

/* What is remembered grows old however often it is used. */
static void test_memory_ends(void **state)
{
    static const struct script_step steps[] = {
        {.answer = CLOSED("200 OK") "a\t1\te1\nb\t2\te2\n# end", .close = true},
        {.answer = CLOSED("200 OK") "a\t1\te1\nb\t2\te2\nc\t3\te3\n# end\n\n", .close = true}};
    struct web_fixture f;
    struct origin_page page;
    struct err e = {0};
    struct sys clock = sys_real;
    clock.mono_ns = later;
    later_ns = 0;
    sys = &clock;
    web_fixture_start(&f, "http://127.0.0.1:%p/d", steps, ARRAY_SIZE(steps), with_manifest);
    struct origin_list l = {0};
    for (int i = 0; i < 3; i++) { /* at 0, 20 and 40 s */
        arena_clear(f.arena);
        WEB_FIXTURE_OK(origin_list(f.origin, &l, f.arena, &page, &e), e);
        l.after = SLICE_LIT("b");
        later_ns += 20000000000ull;
    }
    assert_int_equal(script_steps_taken(&f.script), 2);
    assert_true(page.n == 1 && slice_eq_str(page.entries[0].key, "c"));
    web_fixture_stop(&f);
    sys = &sys_real;
}

/* Wrong URLs and manifests are told by name. */
static void test_options(void **state)
{
    static const char *const cases[][3] = {
        {"http://", NULL, "http://HOST"},
        {"http://u:hush@h/", NULL, "neither user nor query"},
        {"s3://u:hush@b/p", NULL, "origin s3://b/p: must have neither user"},
        {"forebay://u:hush@h:1/b", NULL, "neither user nor query"},
        {"http://h/d?x=hush", NULL, "neither user nor query"},
        {"htp://u:hush@h/d?hush", NULL, "htp://h/d?...: unknown kind"},
        {"az://c?sv=1&sig=hush", NULL, "is no name of a container"},
        {"http://h/%zz", NULL, "escape"},
        {"http://h", "/abs", "origin.manifest"},
        {"https://h", "http://x/y", "origin.manifest"}};
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct origin_options o;
        struct origin *x = NULL;
        struct err e = {0};
        assert_int_equal(option_init(&origin_option_table, &o, &e), 0);
        if (cases[i][1])
            web_fixture_option(&o, "origin.manifest", cases[i][1]);
        assert_int_equal(origin_open(cases[i][0], &o, "t", &x, &e), ERR_BAD_OPTION);
        if (!strstr(e.text, cases[i][2]) || strstr(e.text, "hush")) /* what may be secret is not shown */
            fail_msg("%s", e.text);
        option_fini(&origin_option_table, &o);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_index_html),
        cmocka_unit_test(test_index_of_tags_without_an_end),
        cmocka_unit_test(test_index_json),
        cmocka_unit_test(test_manifest),
        cmocka_unit_test(test_wrong_answers),
        cmocka_unit_test(test_what_it_cannot),
        cmocka_unit_test(test_pages),
        cmocka_unit_test(test_folders),
        cmocka_unit_test(test_listing_by_manifest),
        cmocka_unit_test(test_options),
        cmocka_unit_test(test_an_index_that_is_too_long),
        cmocka_unit_test(test_cut_listings),
        cmocka_unit_test(test_memory_ends),
        cmocka_unit_test(test_redirects_of_folders),
        cmocka_unit_test(test_folders_too_deep),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

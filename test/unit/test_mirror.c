/* layer: namespace */
#include "script_origin.h"

#include "namespace/mirror.h"
#include "net/wire.h"
#include "support/clock_sys.h"
#include "support/tmpdir.h"

#define SECOND 1000000000ull

struct fixture {
    char *dir;
    struct kv *kv;
    struct bucket_table *table;
    struct script *script;
    struct upstream *u;
    struct mirror *m;
    struct arena *arena;
};

static struct fixture *make(const char *settings)
{
    clock_sys_start(1000 * SECOND, 1000000 * SECOND);
    struct fixture *f = calloc(1, sizeof(*f));
    assert_non_null(f);
    f->dir = tmpdir_new();
    assert_int_equal(kv_open_memory(&f->kv), 0);
    f->script = script_new();
    f->u = script_upstream(f->script, f->kv, f->dir, settings, &f->table);
    f->m = mirror_new(8 * MIB);
    f->arena = arena_new(64 * MIB);
    return f;
}

static void drop(struct fixture *f)
{
    upstream_unref(f->u);
    mirror_free(f->m);
    script_free(f->script);
    bucket_table_close(f->table);
    kv_close(f->kv);
    arena_free(f->arena);
    tmpdir_free(f->dir);
    free(f);
    clock_sys_stop();
}

static int stat_key(struct fixture *f, const char *key, bool posix, struct attr *ret)
{
    return mirror_stat(f->m, f->u, slice_str(key), posix, /* full= */ false, /* fresh= */ false, f->arena,
                       ret, NULL);
}

static unsigned asked(struct fixture *f)
{
    return script_count(f->script, SCRIPT_HEAD) + script_count(f->script, SCRIPT_LIST);
}

/* ttl: asked once within the time, and again after it; a change outside shows then. */
static void test_ttl_is_kept_to_the_millisecond(void **state)
{
    (void)state;
    struct fixture *f = make("validate=ttl:10s\n");
    script_set(f->script, "k", 10, 1);
    struct attr a;
    assert_int_equal(stat_key(f, "k", false, &a), 0);
    script_set(f->script, "k", 20, 2);
    clock_sys_advance(10 * SECOND - 1000000);
    assert_int_equal(stat_key(f, "k", false, &a), 0);
    assert_int_equal(a.size_bytes, 10);
    assert_int_equal(asked(f), 1);
    clock_sys_advance(1000000);
    assert_int_equal(stat_key(f, "k", false, &a), 0);
    assert_int_equal(a.size_bytes, 20);
    drop(f);
}

/* always: every question goes to the origin; never: the first answer is believed for ever. */
static void test_always_asks_and_never_does_not(void **state)
{
    (void)state;
    struct attr a;
    struct fixture *f = make("validate=always\n");
    script_set(f->script, "k", 10, 1);
    for (int i = 0; i < 3; i++)
        assert_int_equal(stat_key(f, "k", false, &a), 0);
    assert_int_equal(asked(f), 3);
    drop(f);
    f = make("validate=never\n");
    script_set(f->script, "k", 10, 1);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(stat_key(f, "k", false, &a), 0);
        clock_sys_advance(1000000 * SECOND);
    }
    assert_int_equal(asked(f), 1);
    drop(f);
}

/* For how long something may be believed from now: what is left of its time, for ever with never, not at all
 * with always, when its time is over, or when nobody confirmed it; a rule for its prefix goes before. */
static void test_how_long_it_is_believed(void **state)
{
    (void)state;
    static const struct {
        const char *settings, *key;
        uint64_t age_ms, valid_ms;
    } rows[] = {
        {"validate=ttl:10s\n", "k", 0, 10000},
        {"validate=ttl:10s\n", "k", 9999, 1},
        {"validate=ttl:10s\n", "k", 10000, 0},
        {"validate=never\n", "k", 3600000, UINT64_MAX},
        {"validate=always\n", "k", 0, 0},
        {"validate=never\nrules=ttl=5000:live/\n", "live/k", 2000, 3000},
        {"validate=never\nrules=ttl=5000:live/\n", "still/k", 2000, UINT64_MAX},
        {"validate=always\nrules=ttl=5000:live/\n", "live/k", 2000, 3000},
    };
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        struct fixture *f = make(rows[i].settings);
        struct slice key = slice_str(rows[i].key);
        uint64_t confirmed_ns = sys->real_ns() - rows[i].age_ms * 1000000;
        assert_int_equal(mirror_valid_ms(f->u->bucket, key, confirmed_ns), rows[i].valid_ms);
        assert_int_equal(mirror_valid_ms(f->u->bucket, key, 0), 0);
        drop(f);
    }
}

/* A clock that was set back does not make answers live longer than their time. */
static void test_clock_set_back_is_no_reason_to_believe(void **state)
{
    (void)state;
    struct fixture *f = make("validate=ttl:10s\n");
    script_set(f->script, "k", 10, 1);
    struct attr a;
    assert_int_equal(stat_key(f, "k", false, &a), 0);
    clock_sys_set_real(900000 * SECOND);
    assert_int_equal(stat_key(f, "k", false, &a), 0);
    assert_int_equal(asked(f), 2);
    drop(f);
}

/* That a key is not there is believed for a second, even with validate=never. */
static void test_absence_is_believed_for_a_second(void **state)
{
    (void)state;
    struct fixture *f = make("validate=never\n");
    struct attr a;
    assert_int_equal(stat_key(f, "k", false, &a), -ENOENT);
    assert_int_equal(stat_key(f, "k", false, &a), -ENOENT);
    assert_int_equal(asked(f), 1);
    script_set(f->script, "k", 10, 1);
    clock_sys_advance(SECOND + 2000000);
    assert_int_equal(stat_key(f, "k", false, &a), 0);
    drop(f);
}

/* Also where it is asked meanwhile whether there is a directory, which says nothing new of the object. (Fails
 * where stat_directory's answer counts as one of now.) */
static void test_absence_is_believed_for_no_more_than_a_second(void **state)
{
    (void)state;
    struct fixture *f = make("validate=never\n");
    struct attr a;
    assert_int_equal(stat_key(f, "k", false, &a), -ENOENT);
    clock_sys_advance(SECOND * 9 / 10);
    assert_int_equal(stat_key(f, "k", true, &a), -ENOENT);
    assert_int_equal(script_count(f->script, SCRIPT_HEAD), 1);
    script_set(f->script, "k", 10, 1);
    clock_sys_advance(SECOND / 5);
    assert_int_equal(stat_key(f, "k", true, &a), 0);
    drop(f);
}

/* That no object has a name does not mean that no directory has it. */
static void test_absent_object_may_be_a_directory(void **state)
{
    (void)state;
    struct fixture *f = make("");
    script_set(f->script, "dir/file", 10, 1);
    struct attr a;
    assert_int_equal(stat_key(f, "dir", false, &a), -ENOENT);
    assert_int_equal(stat_key(f, "dir", true, &a), 0);
    assert_true(a.is_directory);
    assert_int_equal(stat_key(f, "dir", false, &a), -ENOENT);
    drop(f);
}

/* An answer that a local write overtook is not kept, neither for the key nor for its parents. */
static void test_overtaken_answers_are_not_kept(void **state)
{
    (void)state;
    struct fixture *f = make("");
    struct bucket *b = f->u->bucket;
    struct slice key = SLICE_LIT("a/b/c");
    uint64_t seen = mirror_generation(f->m, b, key), parent = mirror_generation(f->m, b, SLICE_LIT("a/b"));
    struct attr attr = {.size_bytes = 5, .confirmed_ns = sys->real_ns(), .etag = SLICE_LIT("old")}, got;
    uint64_t made = mirror_changed(f->m, b, key);
    assert_int_equal(made, mirror_generation(f->m, b, key));
    mirror_learn(f->m, b, key, &attr, seen);
    mirror_learn(f->m, b, SLICE_LIT("a/b"), &attr, parent);
    assert_int_equal(mirror_recall(f->m, b, key, f->arena, &got), -ENOENT);
    assert_int_equal(mirror_recall(f->m, b, SLICE_LIT("a/b"), f->arena, &got), -ENOENT);
    mirror_learn(f->m, b, key, &attr, made);
    assert_int_equal(mirror_recall(f->m, b, key, f->arena, &got), 0);
    drop(f);
}

static struct fixture *writing;

/* The wall clock, whose first question is when somebody writes "k". */
static uint64_t write_meanwhile(void)
{
    struct fixture *f = writing;
    writing = NULL;
    if (f) {
        struct bucket *b = f->u->bucket;
        struct attr attr = {.size_bytes = 5, .confirmed_ns = sys->real_ns(), .etag = SLICE_LIT("new")};
        mirror_learn(f->m, b, SLICE_LIT("k"), &attr, mirror_changed(f->m, b, SLICE_LIT("k")));
    }
    return 1000000 * SECOND;
}

/* That there is no such object was recalled before it was written, and only then asked whether there is a
 * directory: what is written stays known. (Fails where the generation is looked at after what is recalled.)
 */
static void test_a_write_while_absence_is_recalled(void **state)
{
    (void)state;
    struct fixture *f = make("validate=never\n");
    struct attr a;
    assert_int_equal(stat_key(f, "k", false, &a), -ENOENT); /* which says nothing of a directory */
    const struct sys *before = sys;
    struct sys table = *sys;
    table.real_ns = write_meanwhile;
    writing = f;
    sys = &table;
    (void)stat_key(f, "k", true, &a); /* meanwhile: either answer is right */
    sys = before;
    assert_null(writing);
    assert_int_equal(stat_key(f, "k", true, &a), 0);
    assert_int_equal(a.size_bytes, 5);
    drop(f);
}

/* What is asked on behalf of a bucket that was changed since is not kept for the one that took its place. */
static void test_changed_bucket_learns_nothing_more(void **state)
{
    (void)state;
    struct fixture *f = make("");
    struct bucket *b = NULL;
    script_set(f->script, "k", 10, 1);
    assert_int_equal(bucket_change(f->table, SLICE_LIT("data"), SLICE_LIT("validate=never\n"), &b, NULL), 0);
    struct attr a;
    assert_int_equal(stat_key(f, "k", false, &a), 0);
    assert_int_equal(mirror_recall(f->m, b, SLICE_LIT("k"), f->arena, &a), -ENOENT);
    bucket_unref(b);
    drop(f);
}

/* ---- listings ---- */

/* Lists everything page by page; the names with a space after each. */
static char *names(struct fixture *f, const char *prefix, char delimiter, uint32_t max, uint32_t flags)
{
    _cleanup_buf_ struct buf all = BUF_INIT(64 * KIB);
    struct slice after = SLICE_NULL;
    for (int pages = 0;; pages++) {
        assert_true(pages < 200);
        struct wire_list_req q = {.prefix = slice_str(prefix),
                                  .delimiter = (unsigned char)delimiter,
                                  .after = after,
                                  .max = max,
                                  .flags = flags};
        struct wire_list_rep rep;
        assert_int_equal(mirror_list(f->m, f->u, &q, f->arena, &rep, NULL), 0);
        struct slice rest = rep.entries;
        uint32_t n = 0;
        for (struct wire_entry x; rest.n > 0; n++) {
            assert_int_equal(wire_entry_decode(&rest, &x), 0);
            assert_int_equal(buf_printf(&all, SLICE_FMT " ", SLICE_ARG(x.key)), 0);
        }
        assert_int_equal(n, rep.n_entries);
        assert_true(n <= max);
        if (!rep.truncated)
            return buf_take(&all);
        assert_true(slice_cmp(rep.next, after) > 0);
        after = arena_dup(f->arena, rep.next);
    }
}

static void expect_names(struct fixture *f, const char *prefix, char delimiter, uint32_t flags,
                         const char *want)
{
    static const uint32_t sizes[] = {1000, 7, 3, 2, 1};
    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
        _cleanup_free_ char *got = names(f, prefix, delimiter, sizes[i], flags);
        assert_string_equal(got, want);
    }
}

/* Every page size gives the same names: prefixes that equal markers, double slashes and all. */
static void test_pages_of_any_size_give_the_same_names(void **state)
{
    (void)state;
    struct fixture *f = make("");
    static const char *const keys[] = {"a/", "a//x", "a/1", "a/2/3", "b", "c/", "c/d/", "c/d/e", "d//"};
    for (size_t i = 0; i < ARRAY_SIZE(keys); i++)
        script_set(f->script, keys[i], i, 1);
    expect_names(f, "", 0, 0, "a/ a//x a/1 a/2/3 b c/ c/d/ c/d/e d// ");
    expect_names(f, "", '/', 0, "a/ b c/ d/ ");
    expect_names(f, "a/", '/', 0, "a/ a// a/1 a/2/ ");
    expect_names(f, "a/", '/', WIRE_POSIX, "a/1 a/2/ ");
    expect_names(f, "", 0, WIRE_POSIX, "a/1 a/2/3 b c/d/e ");
    expect_names(f, "zzz", '/', 0, "");
    drop(f);
}

/* Beyond the last key there is nothing, and no error. */
static void test_listing_after_everything_is_empty(void **state)
{
    (void)state;
    struct fixture *f = make("");
    script_set(f->script, "a", 1, 1);
    struct wire_list_req q = {.after = SLICE_LIT("zzzz"), .max = 10};
    struct wire_list_rep rep;
    assert_int_equal(mirror_list(f->m, f->u, &q, f->arena, &rep, NULL), 0);
    assert_int_equal(rep.n_entries, 0);
    assert_false(rep.truncated);
    drop(f);
}

/* A directory hides the file of its name, also when a page ends between the two. */
static void test_directory_hides_the_file_across_pages(void **state)
{
    (void)state;
    struct fixture *f = make("");
    static const char *const keys[] = {"a", "b", "b/x", "c"};
    for (size_t i = 0; i < ARRAY_SIZE(keys); i++)
        script_set(f->script, keys[i], i, 1);
    _cleanup_free_ char *whole = names(f, "", '/', 1000, WIRE_POSIX), *two = names(f, "", '/', 2, WIRE_POSIX);
    assert_string_equal(whole, "a b/ c ");
    assert_string_equal(two, "a b/ c ");
    drop(f);
}

static void empty_at_first(struct script *s, enum script_op op, unsigned nth, const struct origin_get *g,
                           struct script_fate *fate)
{
    (void)s, (void)g;
    fate->empty_page = op == SCRIPT_LIST && nth <= 3;
}

/* Empty pages that a service sends before others end neither a listing nor the look for a directory. */
static void test_empty_pages_are_passed_over(void **state)
{
    (void)state;
    struct fixture *f = make("");
    script_set(f->script, "dir/a", 1, 1);
    f->script->fn = empty_at_first;
    _cleanup_free_ char *got = names(f, "dir/", '/', 10, 0);
    assert_string_equal(got, "dir/a ");
    f->script->count[SCRIPT_LIST] = 0;
    struct attr a;
    assert_int_equal(
        mirror_stat(f->m, f->u, SLICE_LIT("dir"), true, false, /* fresh= */ true, f->arena, &a, NULL), 0);
    assert_true(a.is_directory);
    drop(f);
}

static void empty_for_ever(struct script *s, enum script_op op, unsigned nth, const struct origin_get *g,
                           struct script_fate *fate)
{
    (void)s, (void)g;
    fate->empty_page = op == SCRIPT_LIST && nth <= 100000; /* or a node without the look would never end */
    fate->same_token = true;
}

/* A service whose empty pages lead to themselves ends the listing with an error, and soon. (Without the look
 * at the token it is asked 100,000 times here, and for ever elsewhere.) */
static void test_a_listing_that_leads_to_itself_ends(void **state)
{
    (void)state;
    struct fixture *f = make("retry=0s\n");
    struct wire_list_req req = {.bucket = SLICE_LIT("b"), .max = 10, .flags = WIRE_FRESH};
    struct wire_list_rep rep;
    script_set(f->script, "a", 1, 1);
    f->script->fn = empty_for_ever;
    assert_int_equal(mirror_list(f->m, f->u, &req, f->arena, &rep, NULL), ERR_ORIGIN_FAILED);
    assert_true(script_count(f->script, SCRIPT_LIST) <= 4);
    drop(f);
}

static void empty_further_on(struct script *s, enum script_op op, unsigned nth, const struct origin_get *g,
                             struct script_fate *fate)
{
    (void)s, (void)g;
    fate->empty_page = op == SCRIPT_LIST && nth <= 10000; /* or a node without the look would never end */
}

/* Empty pages that each lead to another one end the listing with an error, and soon, too. (Without the look
 * at what a page brings, origin_walk_on, it is asked 10,000 times here, and for ever elsewhere.) */
static void test_a_listing_of_empty_pages_alone_ends(void **state)
{
    (void)state;
    struct fixture *f = make("retry=0s\n");
    struct wire_list_req req = {.bucket = SLICE_LIT("b"), .max = 10, .flags = WIRE_FRESH};
    struct wire_list_rep rep;
    script_set(f->script, "a", 1, 1);
    f->script->fn = empty_further_on;
    assert_int_equal(mirror_list(f->m, f->u, &req, f->arena, &rep, NULL), ERR_ORIGIN_FAILED);
    assert_int_equal(script_count(f->script, SCRIPT_LIST), ORIGIN_IDLE_PAGES_MAX);
    drop(f);
}

/* Of many names that no mount can show no single answer waits for all: the caller, if it is still
 * there, asks for what is behind them, and finds the one that it can. (With PAGES_MAX of mirror_list.c
 * away the first answer comes after all of them.) */
static void test_many_names_that_cannot_be_shown_are_passed_in_several_answers(void **state)
{
    (void)state;
    struct fixture *f = make("");
    char key[32];
    for (int i = 0; i < 120; i++) {
        (void)snprintf(key, sizeof(key), "a//%03d", i);
        script_set(f->script, key, 1, 1);
    }
    script_set(f->script, "b", 1, 1);
    struct wire_list_req req = {.max = 1, .flags = WIRE_POSIX};
    struct wire_list_rep rep;
    assert_int_equal(mirror_list(f->m, f->u, &req, f->arena, &rep, NULL), 0);
    assert_int_equal(rep.n_entries, 0);
    assert_true(rep.truncated);
    assert_int_equal(script_count(f->script, SCRIPT_LIST), 100);
    _cleanup_free_ char *got = names(f, "", 0, 1, WIRE_POSIX);
    assert_string_equal(got, "b ");
    drop(f);
}

/* Pages that reach further than those before go on without end, also with nothing in them, as those of
 * versions that are not asked for; of the others a hundred in a row are too many. */
static void test_only_pages_that_lead_nowhere_end_a_walk(void **state)
{
    (void)state;
    struct origin_walk w = {0};
    char reached[16];
    for (int i = 0; i < 1000; i++) {
        (void)snprintf(reached, sizeof(reached), "k%04d", i);
        struct origin_page further = {.truncated = true, .reached = slice_str(reached)};
        assert_int_equal(origin_walk_on(&w, &further, NULL), 0);
    }
    struct origin_entry same = {.key = SLICE_LIT("k0999")};
    struct origin_page again = {.entries = &same, .n = 1, .truncated = true}, last = again;
    for (int i = 1; i < ORIGIN_IDLE_PAGES_MAX; i++)
        assert_int_equal(origin_walk_on(&w, &again, NULL), 0);
    last.truncated = false;
    assert_int_equal(origin_walk_on(&w, &last, NULL), 0);
    assert_int_equal(origin_walk_on(&w, &again, NULL), ERR_ORIGIN_FAILED);
}

/* A page is asked for once within the ttl, its entries answer questions for their keys, and a local write
 * ends both. */
static void test_pages_and_their_entries_are_remembered(void **state)
{
    (void)state;
    struct fixture *f = make("validate=ttl:10s\n");
    script_set(f->script, "d/a", 3, 1);
    for (int i = 0; i < 2; i++) {
        _cleanup_free_ char *got = names(f, "d/", '/', 10, 0);
        assert_string_equal(got, "d/a ");
    }
    struct attr a;
    assert_int_equal(stat_key(f, "d/a", true, &a), 0);
    assert_int_equal(asked(f), 1);
    script_set(f->script, "d/b", 3, 1);
    (void)mirror_changed(f->m, f->u->bucket, SLICE_LIT("d/b"));
    _cleanup_free_ char *got = names(f, "d/", '/', 10, 0);
    assert_string_equal(got, "d/a d/b ");
    drop(f);
}

/* Forgetting a bucket forgets its pages and attributes, and no other bucket's; what was known of a key before
 * it was written stays. */
static void test_a_bucket_is_forgotten_alone(void **state)
{
    (void)state;
    struct fixture *f = make("validate=never\n");
    struct bucket other = {.place = f->u->bucket->place + 1};
    struct attr a, before = {.size_bytes = 7, .etag = SLICE_LIT("seven"), .confirmed_ns = 1};
    script_set(f->script, "d/a", 3, 1);
    mirror_note_before(f->m, f->u->bucket, SLICE_LIT("d/a"), &before);
    for (int i = 0; i < 3; i++) { /* the other is forgotten before the second, this one before the third */
        _cleanup_free_ char *got = names(f, "d/", '/', 10, 0);
        assert_string_equal(got, "d/a ");
        assert_int_equal(stat_key(f, "d/a", true, &a), 0);
        assert_int_equal(asked(f), i < 2 ? 1 : 2);
        mirror_forget_bucket(f->m, i == 0 ? &other : f->u->bucket);
    }
    assert_int_equal(mirror_recall_stale(f->m, f->u->bucket, SLICE_LIT("d/a"), f->arena, &a), -ENOENT);
    assert_int_equal(mirror_recall_before(f->m, f->u->bucket, SLICE_LIT("d/a"), f->arena, &a), 0);
    assert_true(slice_eq_str(a.etag, "seven"));
    drop(f);
}

/* What a rule says of keys holds for every page that shows them, whatever its prefix; a page that shows them
 * as a common prefix is believed as before. */
static void test_rules_hold_for_pages_above_them(void **state)
{
    (void)state;
    struct fixture *f = make("validate=never\nrules=ttl=5000:live/\n");
    script_set(f->script, "live/a", 3, 1);
    free(names(f, "", 0, 10, 0));
    free(names(f, "", '/', 10, 0));
    script_set(f->script, "live/b", 3, 1);
    script_set(f->script, "other", 3, 1);
    clock_sys_advance(4 * SECOND);
    _cleanup_free_ char *early = names(f, "", 0, 10, 0);
    assert_string_equal(early, "live/a ");
    clock_sys_advance(2 * SECOND);
    _cleanup_free_ char *late = names(f, "", 0, 10, 0), *folded = names(f, "", '/', 10, 0);
    assert_string_equal(late, "live/a live/b other ");
    assert_string_equal(folded, "live/ ");
    drop(f);
}

/* Listings have an age of their own where validate.listing says so, longer or shorter than that of what they
 * show; a rule for a prefix is of both. Without the property they are believed as objects are. (Seen to fail
 * with the ages of objects in mirror_listing_is_fresh.) */
static void test_listings_have_an_age_of_their_own(void **state)
{
    (void)state;
    static const struct {
        const char *properties;
        const char *early, *late; /* the names 4 and 10 seconds after the first listing */
    } rows[] = {
        {"validate=never\nvalidate.listing=ttl:5s\n", "a ", "a b "},
        {"validate=always\nvalidate.listing=never\n", "a ", "a "},
        {"validate=never\nvalidate.listing=always\n", "a b ", "a b "},
        {"validate=ttl:1s\nvalidate.listing=ttl:5s\n", "a ", "a b "},
        {"validate=ttl:5s\n", "a ", "a b "},
        {"validate=ttl:5s\nvalidate.listing=\n", "a ", "a b "},
        {"validate=never\nvalidate.listing=never\nrules=ttl=5000:\n", "a ", "a b "},
    };
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        struct fixture *f = make(rows[i].properties);
        script_set(f->script, "a", 3, 1);
        free(names(f, "", '/', 10, 0));
        script_set(f->script, "b", 3, 1);
        clock_sys_advance(4 * SECOND);
        _cleanup_free_ char *early = names(f, "", '/', 10, 0);
        clock_sys_advance(6 * SECOND);
        _cleanup_free_ char *late = names(f, "", '/', 10, 0);
        assert_string_equal(early, rows[i].early);
        assert_string_equal(late, rows[i].late);
        drop(f);
    }
}

/* What a listing of another age shows is asked about by the age of objects. */
static void test_what_a_listing_shows_has_the_age_of_objects(void **state)
{
    (void)state;
    struct fixture *f = make("validate=ttl:5s\nvalidate.listing=never\n");
    struct attr attr;
    script_set(f->script, "a", 3, 1);
    free(names(f, "", '/', 10, 0));
    assert_int_equal(mirror_recall(f->m, f->u->bucket, SLICE_LIT("a"), f->arena, &attr), 0);
    clock_sys_advance(6 * SECOND);
    free(names(f, "", '/', 10, 0));
    assert_int_equal(mirror_recall(f->m, f->u->bucket, SLICE_LIT("a"), f->arena, &attr), -ENOENT);
    drop(f);
}

/* A directory is empty only with its marker alone below it, which is told as the listing has it. */
static void test_emptiness_is_asked_afresh(void **state)
{
    (void)state;
    struct fixture *f = make("");
    struct origin_attr marker = {0};
    struct slice d = SLICE_LIT("d");
    assert_int_equal(mirror_check_empty(f->u, d, f->arena, &marker, NULL), -ENOENT);
    script_set(f->script, "d/", 0, 7);
    assert_int_equal(mirror_check_empty(f->u, d, f->arena, &marker, NULL), 0);
    assert_true(marker.etag.n > 0);
    struct attr seen;
    assert_int_equal(mirror_stat(f->m, f->u, SLICE_LIT("d/"), /* posix= */ false, /* full= */ true,
                                 /* fresh= */ true, f->arena, &seen, NULL),
                     0);
    assert_true(slice_eq(marker.etag, seen.etag));
    assert_int_equal(marker.mtime_ns, seen.mtime_ns);
    script_set(f->script, "d/x", 0, 1);
    assert_int_equal(mirror_check_empty(f->u, d, f->arena, &marker, NULL), -ENOTEMPTY);
    drop(f);
}

static void token_each_time(struct script *s, enum script_op op, unsigned nth, const struct origin_get *g,
                            struct script_fate *fate)
{
    (void)s, (void)nth, (void)g;
    fate->always_token = op == SCRIPT_LIST;
}

/* Services may give a token with the last entries as well: a directory with nothing but its marker is empty,
 * and one with an object on the next page is not. (Seen to fail where a token alone counts as more.) */
static void test_a_token_does_not_make_a_directory_full(void **state)
{
    (void)state;
    struct fixture *f = make("");
    struct origin_attr marker = {0};
    struct slice d = SLICE_LIT("d");
    f->script->fn = token_each_time;
    script_set(f->script, "d/", 0, 7);
    script_set(f->script, "e", 0, 7);
    assert_int_equal(mirror_check_empty(f->u, d, f->arena, &marker, NULL), 0);
    assert_true(marker.etag.n > 0);
    script_set(f->script, "d/x", 0, 1);
    assert_int_equal(mirror_check_empty(f->u, d, f->arena, &marker, NULL), -ENOTEMPTY);
    script_set(f->script, "d/", 0, 0);
    assert_int_equal(mirror_check_empty(f->u, d, f->arena, &marker, NULL), -ENOTEMPTY);
    drop(f);
}

/* Names that a directory cannot hold are told from those that it can. */
static void test_keys_that_are_no_paths(void **state)
{
    (void)state;
    static const char *const good[] = {"a", "a/b", "...", "a/.b"}, *const bad[] = {"",     "/", "a/",    "/a",
                                                                                   "a//b", ".", "a/../b"};
    for (size_t i = 0; i < ARRAY_SIZE(good); i++)
        assert_true(mirror_key_is_path(slice_str(good[i])));
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
        assert_false(mirror_key_is_path(slice_str(bad[i])));
    assert_false(mirror_key_is_path(slice_of("a\0b", 3)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ttl_is_kept_to_the_millisecond),
        cmocka_unit_test(test_always_asks_and_never_does_not),
        cmocka_unit_test(test_how_long_it_is_believed),
        cmocka_unit_test(test_clock_set_back_is_no_reason_to_believe),
        cmocka_unit_test(test_absence_is_believed_for_a_second),
        cmocka_unit_test(test_absence_is_believed_for_no_more_than_a_second),
        cmocka_unit_test(test_absent_object_may_be_a_directory),
        cmocka_unit_test(test_overtaken_answers_are_not_kept),
        cmocka_unit_test(test_a_write_while_absence_is_recalled),
        cmocka_unit_test(test_changed_bucket_learns_nothing_more),
        cmocka_unit_test(test_pages_of_any_size_give_the_same_names),
        cmocka_unit_test(test_listing_after_everything_is_empty),
        cmocka_unit_test(test_directory_hides_the_file_across_pages),
        cmocka_unit_test(test_empty_pages_are_passed_over),
        cmocka_unit_test(test_a_listing_that_leads_to_itself_ends),
        cmocka_unit_test(test_a_listing_of_empty_pages_alone_ends),
        cmocka_unit_test(test_many_names_that_cannot_be_shown_are_passed_in_several_answers),
        cmocka_unit_test(test_only_pages_that_lead_nowhere_end_a_walk),
        cmocka_unit_test(test_pages_and_their_entries_are_remembered),
        cmocka_unit_test(test_a_bucket_is_forgotten_alone),
        cmocka_unit_test(test_rules_hold_for_pages_above_them),
        cmocka_unit_test(test_listings_have_an_age_of_their_own),
        cmocka_unit_test(test_what_a_listing_shows_has_the_age_of_objects),
        cmocka_unit_test(test_emptiness_is_asked_afresh),
        cmocka_unit_test(test_a_token_does_not_make_a_directory_full),
        cmocka_unit_test(test_keys_that_are_no_paths),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

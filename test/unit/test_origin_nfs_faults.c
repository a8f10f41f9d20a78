/* layer: origin */
/* threaded */
/*
 * The NFS kind with its server failing: each call of each operation once, in every way. It succeeds or says
 * what is true; a name has the old object or the new one, whole and on the server's disk; nothing is left
 * open.
 */
#define FAKE_ROOT ""
#include "nfs_fake.h"
#include "origin/nfs_internal.h"
#include "origin_faults_common.h"

#include <dlfcn.h>
#include <netdb.h>

static uint64_t clock_ns(void)
{
    return sys_real.mono_ns() + fake.clock_ns;
}

/* In the place of the system's: "two.test" has two addresses. */
int getaddrinfo(const char *name, const char *service, const struct addrinfo *hints, struct addrinfo **ret)
{
    int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
    *(void **)&real = dlsym(RTLD_NEXT, "getaddrinfo");
    if (!name || strcmp(name, "two.test") != 0)
        return real(name, service, hints, ret);
    int r = hints->ai_flags & AI_NUMERICHOST ? EAI_NONAME : real("192.0.2.1", service, hints, ret);
    return r != 0 ? r : real("192.0.2.2", service, hints, &(*ret)->ai_next);
}

static void open_at(const char *url, const char *connections)
{
    struct origin_options o;
    assert_int_equal(option_init(&origin_option_table, &o, &T.err), 0);
    assert_int_equal(option_set(&origin_option_table, &o, "origin.connections", connections, "x", &T.err), 0);
    if (origin_open(url, &o, "b", &T.origin, &T.err) != 0)
        fail_msg("%s", T.err.text);
    option_fini(&origin_option_table, &o);
}

static void open_with(const char *connections)
{
    open_at("nfs://127.0.0.1/export", connections);
}

static void open_origin(void)
{
    open_with("1");
}

/* ---- what holds ---- */

static bool holds(const char *name, const char *text)
{
    const struct fake_file *f = fake_file_at(name);
    if (!f || !text)
        return !f && !text;
    return f->is_stable && f->n == strlen(text) && memcmp(f->bytes, text, f->n) == 0;
}

static size_t reserved_names(void)
{
    size_t n = 0;
    for (size_t i = 0; i < FAKE_NAMES_MAX; i++)
        n += fake.names[i].file && strstr(fake.names[i].path, "/" FILE_TMP_PREFIX);
    return n;
}

/* A reserved name may stay where removing it is what failed, where the server makes it after everything, or
 * where a copy has lost the only session that it may use. */
static bool may_leave_one(size_t op, bool is_late)
{
    bool lost = fake.fault >= FAKE_NOT_DONE || fake.fault == FAKE_STALE || fake.fault == FAKE_NOT_QUEUED;
    return strcmp(fake.failed, "unlink") == 0 || (is_late && strcmp(fake.failed, "create") == 0) ||
           (ops[op].run == do_copy && lost);
}

static bool is_truthful(int r)
{
    if (fake.not_wanted && atomic_load(fake.not_wanted))
        return r == -ECANCELED || r == ERR_ORIGIN_DOWN;
    return r == -ETIMEDOUT || r == ERR_ORIGIN_DOWN || r == ERR_ORIGIN_FAILED;
}

static void fresh(void)
{
    struct nfs_stat_64 st;
    fake_clear();
    fake_write("/k", OLD);
    (void)fake_make("/d", true);
    fake_write("/d/f", OLD);
    (void)fake_make("/e", true);
    fake_stat(fake_file_at("/k"), &st);
    nfs_etag(&st, T.etag);
}

/* One operation with the Nth call failing. False when there were fewer calls. */
static bool round_of(size_t op, enum fake_fault fault, uint64_t n)
{
    fresh();
    open_origin();
    if (fake.not_wanted)
        atomic_store(fake.not_wanted, false);
    T.err = (struct err){0};
    fake.failed[0] = '\0';
    fake.fault = fault;
    fake.left = n;
    struct quit scope = {.now = fake.not_wanted};
    quit_enter(&scope);
    int r = ops[op].run();
    quit_leave(&scope);
    bool hit = fake.failed[0] != '\0', late = fake.has_late;
    fake.left = 0;
    bool before = holds(ops[op].name, ops[op].before), after = holds(ops[op].name, ops[op].after);
    bool ok = r == 0 ? after : hit && is_truthful(r) && T.err.text[0] && (before || after);
    if (!ok)
        fail_msg("%s, fault %d at call %lu (%s): %d, %s; before %d, after %d", ops[op].what, (int)fault,
                 (unsigned long)n, fake.failed, r, T.err.text, before, after);
    fake_arrive();
    if (!holds(ops[op].name, ops[op].before) && !holds(ops[op].name, ops[op].after))
        fail_msg("%s, fault %d at call %lu: a half object", ops[op].what, (int)fault, (unsigned long)n);
    if (reserved_names() > (may_leave_one(op, late) ? 1u : 0u))
        fail_msg("%s, fault %d at call %lu (%s): a reserved name is left", ops[op].what, (int)fault,
                 (unsigned long)n, fake.failed);
    /* The origin goes on. */
    assert_int_equal(put("other", false, ""), 0);
    assert_true(holds("/other", NEW) && holds("/d/f", OLD));
    origin_close(T.origin);
    assert_true(fake.contexts == 0 && fake.handles == 0 && fake.dirs == 0);
    arena_clear(T.arena);
    return hit;
}

static void sweep(enum fake_fault fault)
{
    struct sys table = sys_real;
    table.mono_ns = clock_ns;
    sys = &table;
    T.arena = arena_new(4 * MIB);
    for (size_t op = 0; op < ARRAY_SIZE(ops); op++) {
        uint64_t n = 1;
        while (round_of(op, fault, n))
            n++;
        assert_true(n > 2 && n < 100); /* a mount and something else */
    }
    fake_clear();
    fake_unlink(fake_find("/"));
    arena_free(T.arena);
    sys = &sys_real;
}

/* libnfs does not take a call. */
static void test_calls_that_are_not_queued(void **state)
{
    sweep(FAKE_NOT_QUEUED);
}

/* The server refuses one with an I/O error. */
static void test_refused_calls(void **state)
{
    sweep(FAKE_IO_ERROR);
}

/* The server has forgotten the handle. */
static void test_stale_handles(void **state)
{
    sweep(FAKE_STALE);
}

/* The connection breaks, before the server sees the call or after it has done it. */
static void test_broken_connections(void **state)
{
    sweep(FAKE_NOT_DONE);
    sweep(FAKE_NOT_HEARD);
}

/* No answer comes, and then nobody wants it any more: the operation ends, and what it made is removed. */
static void test_what_is_not_wanted_any_more(void **state)
{
    atomic_bool not_wanted = false;
    fake.not_wanted = &not_wanted;
    sweep(FAKE_NO_ANSWER);
    fake.not_wanted = NULL;
}

/* No answer comes; the server may do it when nobody waits any more. */
static void test_missing_answers(void **state)
{
    sweep(FAKE_NO_ANSWER);
    sweep(FAKE_LATE);
}

/* The bytes of a body come once its sender has read from this very origin. */
static ssize_t bytes_of_a_reader(void *arg, void *p, size_t n, uint64_t offset)
{
    bool *is_there = arg;
    int r = *is_there ? 0 : do_head();
    *is_there = *is_there || offset + n == strlen(NEW);
    return r < 0 ? r : new_bytes(NULL, p, n, offset);
}

/* With one session only a file that comes slowly holds up neither its own sender nor others: the session is
 * taken when all of it is here. (Without wait_for_all in nfs_put.c who sends it waits for the session.) */
static void test_one_session_is_enough(void **state)
{
    atomic_bool soon = true; /* who waits in vain says so in three seconds */
    bool is_there = false;
    struct quit scope = {.soon = &soon};
    struct origin_put p = {.key = SLICE_LIT("k")};
    struct origin_body b = {
        .size_bytes = strlen(NEW), .read = bytes_of_a_reader, .arg = &is_there, .slow = true};
    struct origin_attr attr;
    T.arena = arena_new(4 * MIB);
    fresh();
    open_origin();
    quit_enter(&scope);
    int r = origin_put(T.origin, &p, &b, T.arena, &attr, &T.err);
    quit_leave(&scope);
    if (r < 0)
        fail_msg("%s", T.err.text);
    assert_true(is_there && holds("/k", NEW));
    origin_close(T.origin);
    fake_clear();
    fake_unlink(fake_find("/"));
    arena_free(T.arena);
}

struct putting {
    pthread_t thread;
    atomic_bool cancel, ended;
    int result;
};

static int put_cancellable(struct putting *x)
{
    struct arena *a = arena_new(MIB);
    struct origin_put p = {.key = SLICE_LIT("k"), .cancel = &x->cancel};
    struct origin_body b = {.size_bytes = strlen(NEW), .read = new_bytes};
    struct origin_attr attr;
    x->result = origin_put(T.origin, &p, &b, a, &attr, NULL);
    atomic_store(&x->ended, true);
    arena_free(a);
    return x->result;
}

static void *put_main(void *arg)
{
    (void)put_cancellable(arg);
    return NULL;
}

static void *cancel_main(void *arg)
{
    sys->sleep_ns(300000000);
    atomic_store((atomic_bool *)arg, true);
    return NULL;
}

/* Who is behind another one's change of the same file, of which nothing is heard, ends when he is cancelled,
 * and before that one. (With a lock in place of key_order he waits for it.) The thread that hears nothing
 * touches nothing of the server meanwhile. */
static void test_who_is_cancelled_waits_for_nobody(void **state)
{
    struct putting first = {0}, second = {0};
    pthread_t canceller;
    atomic_bool is_hung = false;
    T.arena = arena_new(4 * MIB);
    fresh();
    open_with("2");
    assert_int_equal(do_put(), 0); /* a session that is kept */
    fake.failed[0] = '\0';
    fake.left = 1000;
    assert_int_equal(put_cancellable(&first), 0);
    fake.left = 1000 - fake.left; /* the last call is RENAME */
    fake.fault = FAKE_NO_ANSWER;
    fake.not_wanted = &is_hung;
    first.ended = false;
    assert_int_equal(pthread_create(&first.thread, NULL, put_main, &first), 0);
    while (!atomic_load(&is_hung))
        sys->sleep_ns(1000000);
    assert_string_equal(fake.failed, "rename");
    assert_int_equal(pthread_create(&canceller, NULL, cancel_main, &second.cancel), 0);
    assert_int_equal(put_cancellable(&second), -ECANCELED);
    assert_false(atomic_load(&first.ended));
    assert_int_equal(reserved_names(), 1);
    atomic_store(&first.cancel, true);
    assert_int_equal(pthread_join(first.thread, NULL), 0);
    assert_int_equal(pthread_join(canceller, NULL), 0);
    fake.not_wanted = NULL;
    origin_close(T.origin);
    fake_clear();
    fake_unlink(fake_find("/"));
    arena_free(T.arena);
}

/* Where nothing is at the first address of a name, the server is found at the second. (Seen to fail: it was
 * asked at the first alone.) */
static void test_an_address_that_is_away(void **state)
{
    (void)state;
    T.arena = arena_new(4 * MIB);
    fresh();
    open_at("nfs://two.test/export", "1");
    fake.away = "192.0.2.1";
    if (do_put() != 0)
        fail_msg("%s", T.err.text);
    fake.away = NULL;
    assert_int_equal(fake.n_away, 1);
    assert_true(holds("/k", NEW));
    origin_close(T.origin);
    fake_clear();
    fake_unlink(fake_find("/"));
    arena_free(T.arena);
}

/* A session that nobody uses any more is ended, also when nobody asks that origin again. */
static void test_sessions_end_when_nobody_uses_them(void **state)
{
    T.arena = arena_new(4 * MIB);
    fresh();
    open_origin();
    uint64_t began_ms = sys_mono_ms();
    assert_int_equal(put("other", false, ""), 0);
    assert_int_equal(fake.contexts, 1);
    assert_int_equal(origin_rest(T.origin, began_ms + ORIGIN_REST_MS), 0);
    assert_int_equal(origin_rest(T.origin, sys_mono_ms() + ORIGIN_REST_MS + 1), 1);
    assert_int_equal(fake.contexts, 0);
    assert_int_equal(put("other", false, ""), 0);
    assert_int_equal(fake.contexts, 1);
    origin_close(T.origin);
    fake_clear();
    fake_unlink(fake_find("/"));
    arena_free(T.arena);
}

/* A directory whose listing goes on for ever, each answer in time, is an error after so many requests; it
 * held its thread and took memory without end. */
static void test_a_listing_that_does_not_end(void **state)
{
    struct origin_list l = {.max = 10};
    struct origin_page page;
    T.arena = arena_new(4 * MIB);
    fresh();
    open_origin();
    fake.is_endless = true;
    assert_int_equal(origin_list(T.origin, &l, T.arena, &page, &T.err), ERR_ORIGIN_FAILED);
    assert_non_null(strstr(T.err.text, "does not end"));
    fake.is_endless = false;
    assert_int_equal(origin_list(T.origin, &l, T.arena, &page, &T.err), 0);
    origin_close(T.origin);
    assert_true(fake.contexts == 0 && fake.dirs == 0);
    fake_clear();
    fake_unlink(fake_find("/"));
    arena_free(T.arena);
}

/* An answer to a listing whose bytes trickle is none: it has as long as any other to be whole. (Seen to fail
 * where each byte is progress.) */
static void test_a_listing_that_trickles(void **state)
{
    (void)state;
    struct origin_list l = {.max = 10};
    struct origin_page page;
    struct sys table = sys_real;
    table.mono_ns = clock_ns;
    sys = &table;
    T.arena = arena_new(4 * MIB);
    fresh();
    open_origin();
    fake.trickle = 20;
    assert_int_equal(origin_list(T.origin, &l, T.arena, &page, &T.err), 0);
    fake.trickle = 1000;
    fake.clock_ns += 60ull * 1000000000; /* for which it is not remembered */
    assert_int_equal(origin_list(T.origin, &l, T.arena, &page, &T.err), -ETIMEDOUT);
    assert_non_null(strstr(T.err.text, "no answer for 30000 ms"));
    fake.trickle = 0;
    assert_int_equal(origin_list(T.origin, &l, T.arena, &page, &T.err), 0);
    origin_close(T.origin);
    assert_true(fake.contexts == 0 && fake.dirs == 0);
    fake_clear();
    fake_unlink(fake_find("/"));
    arena_free(T.arena);
    sys = &sys_real;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_calls_that_are_not_queued),
        cmocka_unit_test(test_refused_calls),
        cmocka_unit_test(test_stale_handles),
        cmocka_unit_test(test_broken_connections),
        cmocka_unit_test(test_what_is_not_wanted_any_more),
        cmocka_unit_test(test_missing_answers),
        cmocka_unit_test(test_one_session_is_enough),
        cmocka_unit_test(test_who_is_cancelled_waits_for_nobody),
        cmocka_unit_test(test_an_address_that_is_away),
        cmocka_unit_test(test_sessions_end_when_nobody_uses_them),
        cmocka_unit_test(test_a_listing_that_does_not_end),
        cmocka_unit_test(test_a_listing_that_trickles),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

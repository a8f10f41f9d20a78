/* layer: client */
/* threaded */
/* Files that a library keeps open: opened again without a question, and never with bytes that the node has
 * let go. */
#include "client/client_kept.h"

#include "client_fake.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

#define KEPT_MAX 8
#define LATE_MS  5000 /* where a timeout is waited for that nothing else may meet */

struct library {
    struct client *c;
    struct client_kept *k;
};

static struct library begin_within(struct fake *f, uint32_t max, uint64_t timeout_ms)
{
    atomic_store(&f->gives_fds, true);
    atomic_store(&f->is_complete, true);
    struct library l = {.c = connect_for(f, 8, timeout_ms)};
    l.k = client_kept_new(l.c, max);
    return l;
}

static struct library begin(struct fake *f, uint32_t max)
{
    return begin_within(f, max, PATIENCE_MS);
}

static void end(struct library *l)
{
    client_kept_free(l->k);
    client_free(l->c);
}

static struct client_kept_file *open_key(const struct library *l, const char *key)
{
    struct client_file_open o = {.bucket = SLICE_LIT("b"), .key = slice_str(key)};
    struct client_kept_file *f = NULL;
    struct err e = {0};
    assert_int_equal(client_kept_open(l->k, &o, &f, &e), 0);
    return f;
}

static void read_key(const struct library *l, const char *key)
{
    struct client_kept_file *f = open_key(l, key);
    expect_bytes(client_kept_of(f), 1000, 5000);
    client_kept_close(f);
}

static int opens(struct fake *f)
{
    return atomic_load(&f->seen[WIRE_OP_OPEN]);
}

/* Handles that were closed. */
static int closes(struct fake *f)
{
    return atomic_load(&f->n_closed);
}

static int close_calls(struct fake *f)
{
    return atomic_load(&f->seen[WIRE_OP_CLOSE]) + atomic_load(&f->seen[WIRE_OP_CLOSE_MANY]);
}

/* ---- kept ---- */

static void test_a_file_is_opened_again_without_a_question(void **state)
{
    struct fake *f = *state;
    struct library l = begin(f, KEPT_MAX);
    for (int i = 0; i < 5; i++)
        read_key(&l, "a");
    assert_int_equal(opens(f), 1);
    assert_int_equal(closes(f), 0);
    end(&l);
    assert_int_equal(closes(f), 2); /* the file and the watch */
}

static void test_two_opens_at_once_share_a_file(void **state)
{
    struct fake *f = *state;
    struct library l = begin(f, KEPT_MAX);
    struct client_kept_file *a = open_key(&l, "a"), *b = open_key(&l, "a");
    client_kept_close(a);
    expect_bytes(client_kept_of(b), 0, 100);
    client_kept_close(b);
    assert_int_equal(opens(f), 1);
    end(&l);
}

/* What came once has no claim: what is new takes the place of the one that was not opened for longest. */
static void test_the_file_that_was_not_opened_for_longest_goes(void **state)
{
    struct fake *f = *state;
    struct library l = begin(f, 2);
    read_key(&l, "a");
    read_key(&l, "b");
    read_key(&l, "a");
    read_key(&l, "c"); /* in the place of b */
    assert_int_equal(closes(f), 1);
    read_key(&l, "a");
    assert_int_equal(opens(f), 3);
    read_key(&l, "b");
    assert_int_equal(opens(f), 4);
    end(&l);
}

static void read_number(const struct library *l, unsigned i)
{
    char key[16];
    (void)snprintf(key, sizeof(key), "%u", i);
    read_key(l, key);
}

#define EPOCH_KEPT 160
#define EPOCH      200

/* So many of them in an order that is another one in each epoch. */
static void read_epoch(const struct library *l, unsigned from, unsigned epoch)
{
    unsigned order[EPOCH];
    for (unsigned i = 0; i < EPOCH; i++) {
        unsigned k = (unsigned)(hash_mix(epoch, i) % (i + 1));
        order[i] = order[k];
        order[k] = from + i;
    }
    for (unsigned i = 0; i < EPOCH; i++)
        read_number(l, order[i]);
}

/* A training on more files than may be kept: of each epoch as many are hits as are kept, and what is none
 * costs its open and its share of a close. (With what was not opened for longest closed, 68 of 200 were hits
 * here.) Another data set takes the place. */
static void test_epochs_of_more_files_than_may_be_kept(void **state)
{
    struct fake *f = *state;
    struct library l = begin(f, EPOCH_KEPT);
    unsigned epoch = 0;
    for (unsigned from = 0; from <= 1000; from += 1000) {
        for (int i = 0; i < 4; i++) /* the sets' first ones */
            read_epoch(&l, from, epoch++);
        for (int i = 0; i < 3; i++) {
            int opened = opens(f), closed = closes(f), calls = close_calls(f);
            read_epoch(&l, from, epoch++);
            int misses = opens(f) - opened;
            assert_in_range(misses, EPOCH - EPOCH_KEPT, EPOCH - EPOCH_KEPT + EPOCH_KEPT / 8 + EPOCH / 20);
            assert_in_range(closes(f) - closed, misses - EPOCH_KEPT / 8, misses + EPOCH_KEPT / 8);
            assert_in_range(close_calls(f) - calls, 1, misses / 10);
        }
    }
    end(&l);
    assert_int_equal(closes(f), opens(f) + 1);
}

/* Many that are let go at once are closed by few calls, each once, whatever the node told last. */
static void test_what_is_closed_together_is_told_together(void **state)
{
    struct fake *f = *state;
    struct library l = begin(f, EPOCH_KEPT);
    for (unsigned i = 0; i < 100; i++)
        read_number(&l, i);
    assert_int_equal(closes(f), 0);
    end(&l);
    assert_int_equal(closes(f), 101);
    assert_int_equal(close_calls(f), 3); /* of 64 and 36 files, and of the watch */
}

/* A node of an earlier version is told of one after the other. */
static void test_a_node_that_cannot_be_told_together(void **state)
{
    struct fake *f = *state;
    struct library l = begin(f, EPOCH_KEPT);
    atomic_store(&f->is_earlier, true);
    for (unsigned i = 0; i < 100; i++)
        read_number(&l, i);
    end(&l);
    assert_int_equal(closes(f), 101);
    assert_int_equal(atomic_load(&f->seen[WIRE_OP_CLOSE]), 101);
}

static void test_descriptors_leave_the_low_numbers_alone(void **state)
{
    struct library l = begin(*state, KEPT_MAX);
    struct client_kept_file *a = open_key(&l, "a");
    assert_true(client_file_fd(client_kept_of(a)) >= 1024);
    client_kept_close(a);
    end(&l);
}

/* All places for descriptors that the process may have are taken, one of them by a kept file. */
static void test_kept_files_make_room_where_descriptors_are_short(void **state)
{
    struct fake *f = *state;
    struct library l = begin(f, KEPT_MAX);
    struct rlimit before, limit;
    int held[256];
    size_t n = 0;
    read_key(&l, "a");
    fake_tell(f, "a");
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    limit = (struct rlimit){.rlim_cur = ARRAY_SIZE(held), .rlim_max = before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    read_key(&l, "a"); /* with a low number: there are no high ones now */
    while (n < ARRAY_SIZE(held) && (held[n] = dup(STDERR_FILENO)) >= 0)
        n++;
    read_key(&l, "b");
    read_key(&l, "c");
    assert_int_equal(opens(f), 6); /* b and c twice each */
    while (n > 0)
        (void)close(held[--n]);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    end(&l);
}

/* Not even one for what listens to the node: the open fails, the process goes on, and listens later. */
static void test_a_process_without_descriptors_goes_on(void **state)
{
    struct fake *f = *state;
    struct library l = begin(f, KEPT_MAX);
    struct rlimit before, limit;
    int held[256];
    size_t n = 0;
    struct client_file_open o = {.bucket = SLICE_LIT("b"), .key = SLICE_LIT("a")};
    struct client_kept_file *a = NULL;
    struct err e = {0};
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    limit = (struct rlimit){.rlim_cur = ARRAY_SIZE(held), .rlim_max = before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    while (n < ARRAY_SIZE(held) && (held[n] = dup(STDERR_FILENO)) >= 0)
        n++;
    int r = client_kept_open(l.k, &o, &a, &e);
    while (n > 0)
        (void)close(held[--n]);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(r, -EMFILE);
    read_key(&l, "a");
    read_key(&l, "a");
    assert_int_equal(opens(f), 2);
    end(&l);
}

/* Nor does any other call fail, or wait, for want of a connection while files are kept that nobody has open.
 */
static void test_kept_files_make_room_for_connections(void **state)
{
    struct fake *f = *state;
    struct library l = begin_within(f, KEPT_MAX, LATE_MS);
    struct rlimit before, limit;
    int held[256];
    size_t n = 0;
    pthread_t asking;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    limit = (struct rlimit){.rlim_cur = ARRAY_SIZE(held), .rlim_max = before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    for (const char *key = "abcdef"; *key; key++)
        read_key(&l, (const char[]){*key, 0});
    atomic_store(&f->hang_ms[WIRE_OP_STAT], 3600000);
    start_one(f, stat_one, l.c, WIRE_OP_STAT, &asking); /* by the only connection */
    while (n < ARRAY_SIZE(held) && (held[n] = dup(STDERR_FILENO)) >= 0)
        n++;
    assert_int_equal(closes(f), 0);
    int r = make_dir(l.c);
    atomic_store(&f->hang_ms[WIRE_OP_STAT], 0);
    while (n > 0)
        (void)close(held[--n]);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(r, 0);
    assert_int_equal(closes(f), 3);
    (void)pthread_join(asking, NULL);
    end(&l);
}

/* ---- the program's signals ---- */

static atomic_int n_signals;

static void on_signal(int number)
{
    (void)number;
    (void)atomic_fetch_add(&n_signals, 1);
}

/* A program that blocks a signal for a moment gets it afterwards, not in a thread of the library. */
static void test_signals_are_for_the_threads_of_the_program(void **state)
{
    struct fake *f = *state;
    struct sigaction handler = {.sa_handler = on_signal}, before;
    sigset_t set;
    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGUSR1);
    assert_int_equal(sigaction(SIGUSR1, &handler, &before), 0);
    (void)pthread_sigmask(SIG_BLOCK, &set, NULL);
    fake_stop(f);
    fake_start(f); /* its threads block it, too */
    (void)pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    struct library l = begin(f, KEPT_MAX);
    read_key(&l, "a");
    (void)pthread_sigmask(SIG_BLOCK, &set, NULL);
    assert_int_equal(kill(getpid(), SIGUSR1), 0);
    sys->sleep_ns(50000000);
    assert_int_equal(atomic_load(&n_signals), 0);
    (void)pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    assert_int_equal(atomic_load(&n_signals), 1);
    end(&l);
    assert_int_equal(sigaction(SIGUSR1, &before, NULL), 0);
}

/* ---- not kept ---- */

static void test_nothing_is_kept_where_nothing_may_be(void **state)
{
    struct fake *f = *state;
    struct library l = begin(f, 0);
    read_key(&l, "a");
    read_key(&l, "a");
    assert_int_equal(opens(f), 2);
    assert_int_equal(closes(f), 2);
    assert_int_equal(atomic_load(&f->seen[WIRE_OP_WATCH]), 0);
    end(&l);
}

/* Whoever watches such a bucket is counted as a mount of it. */
static void test_files_of_a_bucket_without_origin_are_not_kept(void **state)
{
    struct fake *f = *state;
    struct library l = begin(f, KEPT_MAX);
    atomic_store(&f->is_scratch, true);
    read_key(&l, "a");
    read_key(&l, "a");
    assert_int_equal(opens(f), 2);
    assert_int_equal(atomic_load(&f->seen[WIRE_OP_BUCKET_GET]), 1);
    assert_int_equal(atomic_load(&f->seen[WIRE_OP_WATCH]), 0);
    end(&l);
}

static void test_a_file_of_which_bytes_are_missing_is_not_kept(void **state)
{
    struct fake *f = *state;
    struct library l = begin(f, KEPT_MAX);
    atomic_store(&f->is_complete, false);
    read_key(&l, "a");
    read_key(&l, "a");
    assert_int_equal(opens(f), 2);
    assert_int_equal(closes(f), 2);
    end(&l);
}

static void test_an_answer_is_used_no_longer_than_the_bucket_allows(void **state)
{
    struct fake *f = *state;
    struct library l = begin(f, KEPT_MAX);
    atomic_store(&f->valid_ms, 30);
    read_key(&l, "a");
    sys->sleep_ns(50000000);
    read_key(&l, "a");
    assert_int_equal(opens(f), 2);
    end(&l);
}

/* ... and is closed with others then: who opens the file waits for one answer. What the node lets go is
 * closed at once all the same. */
static void test_files_whose_time_is_over_are_closed_together(void **state)
{
    struct fake *f = *state;
    struct library l = begin(f, EPOCH_KEPT);
    atomic_store(&f->valid_ms, 1);
    for (unsigned i = 0; i < 100; i++) {
        read_number(&l, i % 10);
        sys->sleep_ns(2000000);
    }
    assert_int_equal(opens(f), 100);
    assert_in_range(closes(f), 60, 99);
    assert_in_range(close_calls(f), 1, 5);
    int closed = closes(f);
    for (unsigned i = 0; i < 10; i++) {
        char key[16];
        (void)snprintf(key, sizeof(key), "%u", i);
        fake_tell(f, key);
    }
    for (int i = 0; i < 60000 && opens(f) > closes(f); i++)
        sys->sleep_ns(1000000);
    assert_int_equal(closes(f), opens(f));
    assert_true(closes(f) > closed);
    end(&l);
}

/* ---- told ---- */

static void test_what_the_node_has_let_go_is_asked_for_at_once(void **state)
{
    struct fake *f = *state;
    struct library l = begin(f, KEPT_MAX);
    for (int i = 1; i <= 200; i++) {
        read_key(&l, "a");
        read_key(&l, "b");
        assert_int_equal(opens(f), i + 1);
        fake_tell(f, "a"); /* and whoever opens it now has not to wait for a thread that reads this */
    }
    end(&l);
}

static void test_a_file_that_is_open_reads_on_and_is_not_kept(void **state)
{
    struct fake *f = *state;
    struct library l = begin(f, KEPT_MAX);
    struct client_kept_file *a = open_key(&l, "a");
    fake_tell(f, "a");
    read_key(&l, "a");
    assert_int_equal(opens(f), 2);
    expect_bytes(client_kept_of(a), 0, 100);
    client_kept_close(a);
    assert_int_equal(closes(f), 1);
    read_key(&l, "a"); /* the newer one */
    assert_int_equal(opens(f), 2);
    end(&l);
}

static void *open_in_a_thread(void *arg)
{
    read_key(arg, "a");
    return NULL;
}

static void test_what_was_told_while_the_node_was_asked_counts(void **state)
{
    struct fake *f = *state;
    struct library l = begin(f, KEPT_MAX);
    pthread_t thread;
    read_key(&l, "b"); /* the bucket is watched from here on */
    atomic_store(&f->hang_ms[WIRE_OP_OPEN], 200);
    assert_int_equal(pthread_create(&thread, NULL, open_in_a_thread, &l), 0);
    while (opens(f) < 2)
        sys->sleep_ns(1000000);
    fake_tell(f, "a");
    read_key(&l, "b"); /* takes the record, if the library's thread has not */
    (void)pthread_join(thread, NULL);
    atomic_store(&f->hang_ms[WIRE_OP_OPEN], 0);
    read_key(&l, "a");
    assert_int_equal(opens(f), 3);
    end(&l);
}

static void test_the_end_of_the_pipe_means_that_anything_may_have_changed(void **state)
{
    struct fake *f = *state;
    struct library l = begin(f, KEPT_MAX);
    read_key(&l, "a");
    end_watches(f);
    for (int i = 0; i < 60000 && opens(f) == 1; i++) { /* soon */
        read_key(&l, "a");
        sys->sleep_ns(1000000);
    }
    assert_int_equal(opens(f), 2);
    bool is_kept = false;
    for (int i = 0; i < 60000 && !is_kept; i++) { /* another watch comes, from when on files are kept again */
        int before = opens(f);
        read_key(&l, "a");
        is_kept = opens(f) == before && atomic_load(&f->n_watches) > 0;
        if (!is_kept)
            sys->sleep_ns(1000000);
    }
    assert_true(is_kept);
    end(&l);
}

static void test_a_restarted_node_is_asked_anew(void **state)
{
    struct fake *f = *state;
    struct library l = begin(f, KEPT_MAX);
    read_key(&l, "a");
    struct client_kept_file *open_all_along = open_key(&l, "a");
    fake_stop(f);
    fake_start(f);
    read_key(&l, "a");
    assert_int_equal(opens(f), 2);
    expect_bytes(client_kept_of(open_all_along), 10, 100);
    client_kept_close(open_all_along);
    end(&l);
    /* The pipe's end may be seen before that of the connections: CLOSE with a number of the other life, which
     * a node does not know. */
    atomic_store(&f->strangers, 0);
}

/* A node that gives no pipe with a watch, as one that passes this client no descriptors any more, is not left
 * with the handles of watches that nobody reads, one in every second. (Seen to fail without close_handle in
 * `begin`, client_watch.c.) */
static void test_a_watch_without_a_pipe_is_ended(void **state)
{
    struct fake *f = *state;
    atomic_store(&f->gives_no_pipes, true);
    struct library l = begin(f, KEPT_MAX);
    read_key(&l, "a");
    read_key(&l, "a");
    assert_int_equal(opens(f), 2);
    while (atomic_load(&f->seen[WIRE_OP_WATCH]) < 3)
        sys->sleep_ns(10000000);
    end(&l);
    assert_int_equal(closes(f), opens(f) + atomic_load(&f->seen[WIRE_OP_WATCH]));
}

/* Whether a bucket is to be watched is asked again where the node did not say. */
static void test_a_bucket_that_was_not_heard_of_is_watched_later(void **state)
{
    struct fake *f = *state;
    struct library l = begin_within(f, KEPT_MAX, LATE_MS);
    atomic_store(&f->hang_ms[WIRE_OP_BUCKET_GET], LATE_MS + 500);
    read_key(&l, "a");
    assert_int_equal(atomic_load(&f->seen[WIRE_OP_WATCH]), 0);
    atomic_store(&f->hang_ms[WIRE_OP_BUCKET_GET], 0);
    read_key(&l, "a");
    assert_int_equal(atomic_load(&f->seen[WIRE_OP_WATCH]), 1);
    int before = opens(f);
    read_key(&l, "a");
    assert_int_equal(opens(f), before);
    end(&l);
}

/* The library's thread asks a node that is gone again and again; a program that ends does not wait for that.
 * (Without client_hurry in forebay_disconnect the deadline of that question ends it.) */
static void test_disconnecting_does_not_wait_for_a_node_that_is_gone(void **state)
{
    struct fake *f = *state;
    struct forebay_options o = {.socket_path = f->path, .timeout_ms = 30000};
    struct forebay *library;
    struct forebay_file *a;
    char byte;
    atomic_store(&f->gives_fds, true);
    atomic_store(&f->is_complete, true);
    assert_int_equal(forebay_connect(&o, &library), 0);
    assert_int_equal(forebay_open(library, "b", "a", &a), 0);
    assert_int_equal(forebay_pread(a, &byte, 1, 0), 1);
    forebay_close(a);
    fake_stop(f);
    sys->sleep_ns(200000000); /* the pipe has ended, and the thread asks for another one */
    uint64_t began_ms = sys_mono_ms();
    forebay_disconnect(library);
    assert_true(sys_mono_ms() - began_ms < 15000);
    fake_start(f);
    atomic_store(&f->strangers, 0); /* as above */
}

static void *open_one(void *arg)
{
    struct forebay_file *file;
    static atomic_int n;
    char key[16];
    (void)snprintf(key, sizeof(key), "o%d", atomic_fetch_add(&n, 1));
    assert_int_equal(forebay_open(arg, "b", key, &file), 0);
    forebay_close(file);
    return NULL;
}

/* A program that ends tells a node that hangs once of what it has kept, however much that is and however many
 * connections it has: it waits for one timeout. */
static void test_disconnecting_from_a_node_that_hangs_waits_once(void **state)
{
    struct fake *f = *state;
    struct forebay_options o = {.socket_path = f->path, .timeout_ms = LATE_MS, .kept_files = 400};
    struct forebay *library;
    pthread_t threads[4];
    atomic_store(&f->gives_fds, true);
    atomic_store(&f->is_complete, true);
    assert_int_equal(forebay_connect(&o, &library), 0);
    (void)open_one(library);
    atomic_store(&f->hang_ms[WIRE_OP_OPEN], 200); /* so that each has a connection of its own */
    for (size_t i = 0; i < ARRAY_SIZE(threads); i++)
        assert_int_equal(pthread_create(&threads[i], NULL, open_one, library), 0);
    for (size_t i = 0; i < ARRAY_SIZE(threads); i++)
        (void)pthread_join(threads[i], NULL);
    atomic_store(&f->hang_ms[WIRE_OP_OPEN], 0);
    for (int i = 0; i < 300; i++)
        (void)open_one(library);
    assert_int_equal(close_calls(f), 0);
    atomic_store(&f->hang_ms[WIRE_OP_CLOSE], 3600000);
    atomic_store(&f->hang_ms[WIRE_OP_CLOSE_MANY], 3600000);
    forebay_disconnect(library);
    assert_int_equal(close_calls(f), 1);
}

/* As many files as a number can say are as many as a process can have open. */
static void test_any_number_of_files_may_be_asked_for(void **state)
{
    struct fake *f = *state;
    struct forebay_options o = {
        .socket_path = f->path, .timeout_ms = PATIENCE_MS, .kept_files = FOREBAY_KEPT_NONE - 1};
    struct forebay *library;
    atomic_store(&f->gives_fds, true);
    atomic_store(&f->is_complete, true);
    assert_int_equal(forebay_connect(&o, &library), 0);
    (void)open_one(library);
    forebay_disconnect(library);
    assert_int_equal(closes(f), 2); /* and the watch */
}

/* ---- forked ---- */

/* In the child. No assertions, which would run the parent's tests on. */
static int child(const struct library *l, struct client_kept_file *open_before)
{
    struct client_file_open o = {.bucket = SLICE_LIT("b"), .key = SLICE_LIT("a")};
    struct client_kept_file *mine = NULL;
    struct err e = {0};
    char byte = 0;
    for (int i = 0; i < 3; i++) {
        if (client_kept_open(l->k, &o, &mine, &e) < 0)
            return 1;
        if (client_file_pread(client_kept_of(mine), &byte, 1, 7, &e) != 1 || byte != content(7))
            return 2;
        client_kept_close(mine);
    }
    if (client_file_pread(client_kept_of(open_before), &byte, 1, 9, &e) != 1 || byte != content(9))
        return 3;
    client_kept_close(open_before);
    client_kept_free(l->k);
    client_free(l->c);
    return 0;
}

static void test_a_forked_process_keeps_files_of_its_own(void **state)
{
#ifdef __SANITIZE_THREAD__
    skip(); /* it does not know threads that are made after a fork */
#endif
    struct fake *f = *state;
    struct library l = begin(f, KEPT_MAX);
    read_key(&l, "a");
    struct client_kept_file *b = open_key(&l, "b");
    int status = -1;
    wait_until_others_rest();
    pid_t pid = fork();
    if (pid == 0)
        _exit(child(&l, b));
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_int_equal(opens(f), 3); /* a and b by the parent, a by the child, once */
    read_key(&l, "a");
    expect_bytes(client_kept_of(b), 0, 10);
    client_kept_close(b);
    assert_int_equal(opens(f), 3);
    end(&l);
}

/* ---- many at once ---- */

#define THREADS 6
#define ROUNDS  300

struct busy {
    const struct library *l;
    unsigned seed;
};

static void *read_at_random(void *arg)
{
    struct busy *b = arg;
    char key[2] = "a";
    for (unsigned i = 0; i < ROUNDS; i++) {
        key[0] = (char)('a' + hash_mix(b->seed, i) % 12);
        read_key(b->l, key);
    }
    return NULL;
}

static void test_threads_that_open_while_the_node_lets_go(void **state)
{
    struct fake *f = *state;
    struct library l = begin(f, KEPT_MAX);
    pthread_t threads[THREADS];
    struct busy busy[THREADS];
    read_key(&l, "a");
    for (unsigned i = 0; i < THREADS; i++) {
        busy[i] = (struct busy){.l = &l, .seed = i};
        assert_int_equal(pthread_create(&threads[i], NULL, read_at_random, &busy[i]), 0);
    }
    char key[2] = "a";
    for (unsigned i = 0; i < ROUNDS; i++) {
        key[0] = (char)('a' + i % 12);
        fake_tell(f, key);
        sys->sleep_ns(100000);
    }
    for (unsigned i = 0; i < THREADS; i++)
        (void)pthread_join(threads[i], NULL);
    end(&l);
    assert_int_equal(closes(f), opens(f) + 1);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(test_##name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(a_file_is_opened_again_without_a_question),
        TEST(two_opens_at_once_share_a_file),
        TEST(the_file_that_was_not_opened_for_longest_goes),
        TEST(epochs_of_more_files_than_may_be_kept),
        TEST(what_is_closed_together_is_told_together),
        TEST(a_node_that_cannot_be_told_together),
        TEST(descriptors_leave_the_low_numbers_alone),
        TEST(kept_files_make_room_where_descriptors_are_short),
        TEST(a_process_without_descriptors_goes_on),
        TEST(kept_files_make_room_for_connections),
        TEST(signals_are_for_the_threads_of_the_program),
        TEST(nothing_is_kept_where_nothing_may_be),
        TEST(files_of_a_bucket_without_origin_are_not_kept),
        TEST(a_file_of_which_bytes_are_missing_is_not_kept),
        TEST(an_answer_is_used_no_longer_than_the_bucket_allows),
        TEST(files_whose_time_is_over_are_closed_together),
        TEST(what_the_node_has_let_go_is_asked_for_at_once),
        TEST(a_file_that_is_open_reads_on_and_is_not_kept),
        TEST(what_was_told_while_the_node_was_asked_counts),
        TEST(the_end_of_the_pipe_means_that_anything_may_have_changed),
        TEST(a_restarted_node_is_asked_anew),
        TEST(a_watch_without_a_pipe_is_ended),
        TEST(a_bucket_that_was_not_heard_of_is_watched_later),
        TEST(disconnecting_does_not_wait_for_a_node_that_is_gone),
        TEST(disconnecting_from_a_node_that_hangs_waits_once),
        TEST(any_number_of_files_may_be_asked_for),
        TEST(a_forked_process_keeps_files_of_its_own),
        TEST(threads_that_open_while_the_node_lets_go),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* layer: client */
/* threaded */
/* A client against a node made for the purpose, which drops connections, restarts, hangs and lies as told. */
#include "client/client_internal.h"
#include "client_fake.h"

#include <sys/resource.h>
#include <sys/stat.h>

/* ---- tests ---- */

/* Nothing says where the node is; the place is too long; nobody is there: told at once, each in its way. */
static void test_where_is_the_node(void **state)
{
    struct fake *f = *state;
    struct err e = {0};
    struct client *c = NULL;
    (void)unsetenv("FOREBAY_SOCKET");
    (void)unsetenv("FOREBAY_DATA");
    (void)unsetenv("FOREBAY_ENDPOINT");
    struct client_options o = {.timeout_ms = PATIENCE_MS};
    assert_int_equal(client_new(&o, &c, &e), ERR_BAD_OPTION);
    assert_non_null(strstr(e.text, "FOREBAY_SOCKET"));
    char place[300];
    memset(place, 'x', sizeof(place) - 1);
    place[sizeof(place) - 1] = '\0';
    o.socket_path = place;
    assert_int_equal(client_new(&o, &c, &e), ERR_BAD_OPTION);
    o.socket_path = "/nonexistent/socket";
    assert_int_equal(client_new(&o, &c, &e), -ENOENT);
    assert_non_null(strstr(e.text, "/nonexistent/socket"));
    o.socket_path = NULL;
    (void)setenv("FOREBAY_SOCKET", f->path, 1);
    assert_int_equal(client_new(&o, &c, &e), 0);
    assert_non_null(strstr(client_address(c), f->path));
    client_free(c);
    (void)unsetenv("FOREBAY_SOCKET");
    o.socket_path = f->path;
    o.timeout_ms = UINT64_MAX; /* as long as can be */
    assert_int_equal(client_new(&o, &c, &e), 0);
    assert_int_equal(stat_key(c, "k"), 0);
    client_free(c);
}

/* A relative path means the working directory of the beginning, in connections that are made later and in
 * what is told of the node. (Seen to fail without getcwd in set_socket, client.c.) */
static void test_a_relative_socket(void **state)
{
    struct fake *f = *state;
    _cleanup_free_ char *here = getcwd(NULL, 0), *dir = strdup(f->path);
    char *name = strrchr(dir, '/');
    *name++ = '\0';
    struct client_options o = {.timeout_ms = PATIENCE_MS, .socket_path = name};
    struct client *c = NULL;
    struct err e = {0};
    assert_int_equal(chdir(dir), 0);
    assert_int_equal(client_new(&o, &c, &e), 0);
    assert_int_equal(chdir(here), 0);
    assert_non_null(strstr(client_address(c), f->path));
    fake_stop(f);
    fake_start(f);
    assert_int_equal(stat_key(c, "k"), 0);
    client_free(c);
}

/* The signature is over the nonce and the session; wrong or missing credentials are told, not tried again. */
static void test_credentials(void **state)
{
    struct fake *f = *state;
    struct err e = {0};
    struct client *c = NULL;
    atomic_store(&f->wants_signature, true);
    struct client_options o = {.socket_path = f->path, .timeout_ms = PATIENCE_MS};
    assert_int_equal(client_new(&o, &c, &e), ERR_UNAUTHENTICATED);
    o.access_key = "the key";
    o.secret_key = "wrong";
    assert_int_equal(client_new(&o, &c, &e), ERR_UNAUTHENTICATED);
    o.secret_key = SECRET;
    assert_int_equal(client_new(&o, &c, &e), 0);
    assert_int_equal(stat_key(c, "k"), 0);
    client_free(c);
    assert_int_equal(atomic_load(&f->seen[WIRE_OP_HELLO]), 3);
}

/* The keys of a data directory's credentials file are used. */
static void test_credentials_file(void **state)
{
    struct fake *f = *state;
    struct err e = {0};
    struct client *c = NULL;
    char path[256], from[256];
    static const char text[] =
        "# made at the first start\nFOREBAY_ACCESS_KEY=the key\nFOREBAY_SECRET_KEY=" SECRET "\n";
    atomic_store(&f->wants_signature, true);
    (void)snprintf(path, sizeof(path), "%s/credentials", f->dir);
    assert_int_equal(sys_write_file_atomic(path, text, strlen(text), 0600), 0);
    (void)snprintf(from, sizeof(from), "%s/run/forebay.sock", f->dir);
    assert_int_equal(symlink(f->path, from), 0);
    struct client_options o = {.data_dir = f->dir, .timeout_ms = PATIENCE_MS};
    assert_int_equal(client_new(&o, &c, &e), 0);
    client_free(c);
}

/* The node's word about an object comes through as it is, and costs one request. */
static void test_answers(void **state)
{
    struct fake *f = *state;
    _cleanup_(client_freep) struct client *c = connect_to(f, 0);
    assert_int_equal(stat_key(c, "absent"), -ENOENT);
    assert_int_equal(stat_key(c, "there"), 0);
    assert_int_equal(atomic_load(&f->seen[WIRE_OP_STAT]), 2);
}

/* A question whose connection broke is asked again, as often as it takes. */
static void test_questions_are_repeated(void **state)
{
    struct fake *f = *state;
    _cleanup_(client_freep) struct client *c = connect_to(f, 0);
    atomic_store(&f->cut[WIRE_OP_STAT], 3);
    assert_int_equal(stat_key(c, "k"), 0);
    assert_int_equal(atomic_load(&f->seen[WIRE_OP_STAT]), 4);
}

/* A change whose connection broke after it was sent is never sent twice: the caller is told that nobody
 * knows. */
static void test_changes_are_not_repeated(void **state)
{
    struct fake *f = *state;
    _cleanup_(client_freep) struct client *c = connect_to(f, 0);
    atomic_store(&f->cut[WIRE_OP_MKDIR], 1);
    assert_int_equal(make_dir(c), -EIO);
    assert_int_equal(atomic_load(&f->seen[WIRE_OP_MKDIR]), 1);
    assert_int_equal(make_dir(c), 0);
}

static uint64_t number_of(uint32_t op)
{
    return op == WIRE_OP_MKDIR || op == WIRE_OP_COPY ? WIRE_NUMBERED | op : 0;
}

static struct client *connect_numbered(struct fake *f, uint64_t timeout_ms)
{
    struct client_options o = {.socket_path = f->path, .timeout_ms = timeout_ms, .number = number_of};
    struct err e = {0};
    struct client *c = NULL;
    int r = -ETIMEDOUT;
    for (int i = 0; i < TRIES && is_late(r); i++)
        r = client_new(&o, &c, &e);
    assert_int_equal(r, 0);
    return c;
}

static int copy(struct client *c)
{
    struct wire_copy_req req = {.bucket = SLICE_LIT("b"), .from = SLICE_LIT("a"), .to = SLICE_LIT("z")};
    struct wire_copy_rep rep;
    struct err e = {0};
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    return client_copy(c, &req, &b, &rep, &e);
}

/* A change that has a number is sent again, with that: the node knows whether it has made it. */
static void test_numbered_changes_are_sent_again(void **state)
{
    struct fake *f = *state;
    _cleanup_(client_freep) struct client *c = connect_numbered(f, PATIENCE_MS);
    struct wire_rmdir_req not_numbered = {.bucket = SLICE_LIT("b"), .key = SLICE_LIT("d")};
    struct wire_rmdir_rep ignored;
    struct err e = {0};
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    atomic_store(&f->cut[WIRE_OP_MKDIR], 2);
    assert_int_equal(make_dir(c), 0);
    assert_int_equal(atomic_load(&f->seen[WIRE_OP_MKDIR]), 3);
    assert_true(atomic_load(&f->id[WIRE_OP_MKDIR]) == number_of(WIRE_OP_MKDIR));
    assert_true(atomic_load(&f->id_before[WIRE_OP_MKDIR]) == number_of(WIRE_OP_MKDIR));
    atomic_store(&f->cut[WIRE_OP_RMDIR], 1);
    assert_int_equal(client_rmdir(c, &not_numbered, &b, &ignored, &e), -EIO);
    assert_false(atomic_load(&f->id[WIRE_OP_RMDIR]) & WIRE_NUMBERED);
}

/* A long one that is cut after it had run for longer than the timeout has all of that before it. */
static void test_a_long_numbered_change_that_is_cut_late(void **state)
{
    struct fake *f = *state;
    _cleanup_(client_freep) struct client *c = connect_numbered(f, TIMEOUT_MS);
    int r = -ETIMEDOUT, n_sent = 0;
    for (int i = 0; i < TRIES && is_late(r); i++) {
        int before = atomic_load(&f->seen[WIRE_OP_COPY]);
        atomic_store(&f->hang_ms[WIRE_OP_COPY], TIMEOUT_MS + TIMEOUT_MS / 2);
        atomic_store(&f->cut[WIRE_OP_COPY], 1);
        r = copy(c);
        n_sent = atomic_load(&f->seen[WIRE_OP_COPY]) - before;
    }
    assert_int_equal(r, 0);
    assert_int_equal(n_sent, 2);
}

/* A change that is cut each time ends: a node that dies of it is not asked for ever. */
static void test_a_change_that_is_always_cut_ends(void **state)
{
    struct fake *f = *state;
    _cleanup_(client_freep) struct client *c = connect_numbered(f, 5000);
    atomic_store(&f->cut[WIRE_OP_COPY], 1 << 30);
    assert_true(copy(c) < 0);
    assert_true(atomic_load(&f->seen[WIRE_OP_COPY]) > 3);
}

/* A job whose start may have been seen is not started a second time. */
static void test_jobs_are_not_started_twice(void **state)
{
    struct fake *f = *state;
    _cleanup_(client_freep) struct client *c = connect_to(f, 0);
    struct wire_job_start_req req = {.kind = SLICE_LIT("copy")};
    struct wire_job_start_rep rep;
    struct err e = {0};
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    atomic_store(&f->cut[WIRE_OP_JOB_START], 1);
    assert_int_equal(client_job_start(c, &req, &b, &rep, &e), -EIO);
    assert_int_equal(atomic_load(&f->seen[WIRE_OP_JOB_START]), 1);
}

/* Nor is one changed twice: what was resumed cannot be resumed again, and would seem to have failed. */
static void test_jobs_are_not_changed_twice(void **state)
{
    struct fake *f = *state;
    _cleanup_(client_freep) struct client *c = connect_to(f, 0);
    struct wire_job_change_req req = {.id = 1, .action = SLICE_LIT("resume")};
    struct wire_job_change_rep rep;
    struct err e = {0};
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    atomic_store(&f->cut[WIRE_OP_JOB_CHANGE], 1);
    assert_int_equal(client_job_change(c, &req, &b, &rep, &e), -EIO);
    assert_int_equal(atomic_load(&f->seen[WIRE_OP_JOB_CHANGE]), 1);
}

/* An upload that may have begun is not begun a second time: nobody would ever end the first. */
static void test_uploads_are_not_begun_twice(void **state)
{
    struct fake *f = *state;
    _cleanup_(client_freep) struct client *c = connect_to(f, 0);
    struct wire_upload_create_req req = {.bucket = SLICE_LIT("b"), .key = SLICE_LIT("k")};
    struct wire_upload_create_rep rep;
    struct err e = {0};
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    atomic_store(&f->cut[WIRE_OP_UPLOAD_CREATE], 1000);
    assert_int_equal(client_upload_create(c, &req, &b, &rep, &e), -EIO);
    assert_int_equal(atomic_load(&f->seen[WIRE_OP_UPLOAD_CREATE]), 1);
}

/* A restart is noticed before an idle connection is used: even a change gets through. */
static void test_restart_between_calls(void **state)
{
    struct fake *f = *state;
    _cleanup_(client_freep) struct client *c = connect_to(f, 0);
    assert_int_equal(stat_key(c, "k"), 0);
    uint64_t epoch = client_epoch(c);
    struct id128 before = f->last_session;
    fake_stop(f);
    fake_start(f);
    assert_int_equal(make_dir(c), 0);
    assert_int_equal(atomic_load(&f->seen[WIRE_OP_MKDIR]), 1);
    assert_true(client_epoch(c) > epoch);
    assert_false(id_eq(before, f->last_session));
}

/* While the node is down a call waits for the timeout and then says so, never "no such file". */
static void test_node_down(void **state)
{
    struct fake *f = *state;
    _cleanup_(client_freep) struct client *c = connect_in_haste(f, 0);
    fake_stop(f);
    int r = stat_key(c, "k");
    assert_true(r < 0 && r != -ENOENT);
    assert_int_equal(stat_key(c, "k"), -EHOSTDOWN); /* by no connection of before */
    assert_int_equal(unlink(f->path), 0);
    assert_int_equal(stat_key(c, "k"), -EHOSTDOWN);
    fake_start(f);
    for (int i = 0; i < TRIES && r < 0; i++)
        r = stat_key(c, "k");
    assert_int_equal(r, 0);
}

/* A node that accepts nobody and whose queue is full costs the timeout, not for ever. */
static void test_node_that_does_not_accept(void **state)
{
    struct fake *f = *state;
    struct err e = {0};
    struct client *c = NULL;
    char path[300];
    int listening;
    (void)snprintf(path, sizeof(path), "%s/run/deaf.sock", f->dir);
    assert_int_equal(sock_listen_unix(path, /* backlog= */ 0, &listening, &e), 0);
    struct client_options o = {.socket_path = path, .timeout_ms = 200};
    for (int i = 0; i < 3; i++)
        assert_int_equal(client_new(&o, &c, &e), -ETIMEDOUT);
    (void)close(listening);
}

/* A reply to another request is not taken. */
static void test_lying_node(void **state)
{
    struct fake *f = *state;
    _cleanup_(client_freep) struct client *patient = connect_to(f, 0), *c = connect_in_haste(f, 0);
    int r = -EHOSTDOWN;
    atomic_store(&f->lies, true);
    assert_int_equal(make_dir(patient), -EIO);
    assert_int_not_equal(stat_key(c, "k"), 0);
    atomic_store(&f->lies, false);
    for (int i = 0; i < TRIES && is_late(r); i++)
        r = stat_key(c, "k");
    assert_int_equal(r, 0);
}

/* Descriptors of this process that are of the file. */
static int open_of(const char *path)
{
    struct stat st, x;
    int n = 0;
    assert_int_equal(stat(path, &st), 0);
    for (int fd = 0; fd < 1024; fd++)
        n += fstat(fd, &x) == 0 && x.st_dev == st.st_dev && x.st_ino == st.st_ino;
    return n;
}

/* A descriptor with a reply to what brings none is closed, and so is the connection: whoever asked knows
 * nothing of it. */
static void test_a_descriptor_that_nobody_asked_for(void **state)
{
    struct fake *f = *state;
    _cleanup_(client_freep) struct client *c = connect_to(f, 0);
    int before = open_of(f->file);
    atomic_store(&f->gives_unasked, true);
    assert_int_equal(make_dir(c), -EIO);
    assert_int_equal(open_of(f->file), before);
    atomic_store(&f->gives_unasked, false);
    assert_int_equal(make_dir(c), 0);
}

static void *many_stats(void *arg)
{
    for (int i = 0; i < 100; i++)
        assert_int_equal(stat_key(arg, "k"), 0);
    return NULL;
}

/* What a process that was forked does with its parent's client: 0 when all is well. No assertions, which
 * would go on with the other tests here. */
static int use_inherited(struct client *c, struct client_file *file, uint64_t epoch_of_parent)
{
    struct err e = {0};
    char p[100];
    if (stat_key(c, "absent") != -ENOENT || client_epoch(c) == epoch_of_parent)
        return 1;
    if (client_file_pread(file, p, sizeof(p), 5000, &e) != (ssize_t)sizeof(p) || p[0] != content(5000))
        return 2;
    client_file_close(file);
    client_free(c);
    return 0;
}

/* A child uses connections of its own, on which it reads on what was open; it closes nothing of its parent.
 */
static void test_fork(void **state)
{
    struct fake *f = *state;
    _cleanup_(client_freep) struct client *c = connect_to(f, 1);
    struct client_file_open o = {.bucket = SLICE_LIT("b"), .key = SLICE_LIT("k")};
    struct client_file *file;
    struct err e = {0};
    assert_int_equal(client_file_open(c, &o, &file, &e), 0);
    expect_bytes(file, 0, 1000);
    uint64_t epoch = client_epoch(c);
    wait_until_others_rest();
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0)
        _exit(use_inherited(c, file, epoch));
    int status = -1;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_int_equal(atomic_load(&f->seen[WIRE_OP_HELLO]), 2);
    assert_int_equal(client_epoch(c), epoch);
    expect_bytes(file, 1000, 1000);
    assert_int_equal(atomic_load(&f->seen[WIRE_OP_OPEN]), 2); /* the child's, not the parent's again */
    client_file_close(file);
}

/* Eight threads share two connections. */
static void test_pool_is_bounded(void **state)
{
    struct fake *f = *state;
    _cleanup_(client_freep) struct client *c = connect_to(f, 2);
    pthread_t threads[8];
    for (size_t i = 0; i < ARRAY_SIZE(threads); i++)
        assert_int_equal(pthread_create(&threads[i], NULL, many_stats, c), 0);
    for (size_t i = 0; i < ARRAY_SIZE(threads); i++)
        (void)pthread_join(threads[i], NULL);
    assert_in_range(atomic_load(&f->open_most), 1, 2);
    assert_int_equal(atomic_load(&f->seen[WIRE_OP_STAT]), 800);
}

/* As many connections stay open as were asked for: who has as many threads as connections connects each once.
 */
static void test_idle_connections_stay(void **state)
{
    struct fake *f = *state;
    struct client_options o = {
        .socket_path = f->path, .timeout_ms = 60000, .connections = 3 * CLIENT_IDLE, .idle = 3 * CLIENT_IDLE};
    struct err e = {0};
    _cleanup_(client_freep) struct client *c = NULL;
    pthread_t threads[3 * CLIENT_IDLE];
    assert_int_equal(client_new(&o, &c, &e), 0);
    for (int round = 1; round <= 2; round++) {
        atomic_store(&f->hang_ms[WIRE_OP_STAT], 60000);
        for (size_t i = 0; i < ARRAY_SIZE(threads); i++)
            assert_int_equal(pthread_create(&threads[i], NULL, stat_one, c), 0);
        while (atomic_load(&f->seen[WIRE_OP_STAT]) < round * (int)ARRAY_SIZE(threads))
            sys->sleep_ns(1000000);
        atomic_store(&f->hang_ms[WIRE_OP_STAT], 0); /* all at once are answered */
        for (size_t i = 0; i < ARRAY_SIZE(threads); i++)
            (void)pthread_join(threads[i], NULL);
    }
    assert_int_equal(atomic_load(&f->seen[WIRE_OP_HELLO]), ARRAY_SIZE(threads));
}

/* Bytes inline and bytes by descriptor: every range, and nothing beyond the end. */
static void test_file_reads(void **state)
{
    struct fake *f = *state;
    for (int gives_fds = 0; gives_fds < 2; gives_fds++) {
        atomic_store(&f->gives_fds, gives_fds == 1);
        struct client *c = connect_to(f, 0);
        struct client_file_open o = {.bucket = SLICE_LIT("b"), .key = SLICE_LIT("k")};
        struct client_file *file;
        struct err e = {0};
        assert_int_equal(client_file_open(c, &o, &file, &e), 0);
        assert_int_equal(client_file_attr(file)->size_bytes, BODY_BYTES);
        for (uint64_t at = 0; at < BODY_BYTES; at += 999)
            expect_bytes(file, at, 999);
        expect_bytes(file, 5, BODY_BYTES);
        expect_bytes(file, BODY_BYTES - 1, 10);
        expect_bytes(file, BODY_BYTES, 10);
        expect_bytes(file, UINT64_MAX, 10);
        client_file_close(file);
        client_free(c);
    }
}

/* A sequential reader of small pieces asks rarely where it has the descriptor. */
static void test_sequential_reads_ask_rarely(void **state)
{
    struct fake *f = *state;
    atomic_store(&f->gives_fds, true);
    _cleanup_(client_freep) struct client *c = connect_to(f, 0);
    struct client_file_open o = {.bucket = SLICE_LIT("b"), .key = SLICE_LIT("k")};
    struct client_file *file;
    struct err e = {0};
    assert_int_equal(client_file_open(c, &o, &file, &e), 0);
    for (uint64_t at = 0; at < BODY_BYTES; at += 1000)
        expect_bytes(file, at, 1000);
    client_file_close(file);
    assert_in_range(atomic_load(&f->seen[WIRE_OP_FETCH]), 1, 10);
}

/* Also what is closed meanwhile makes no room. */
static struct rlimit allow_no_more_files(void)
{
    struct rlimit before;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    const struct rlimit full = {.rlim_cur = STDERR_FILENO + 1, .rlim_max = before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &full), 0);
    return before;
}

/* A process that may not have one more descriptor is told so at once, the node closes what it opened, and
 * nothing else of the session ends. */
static void test_no_room_for_a_descriptor(void **state)
{
    struct fake *f = *state;
    atomic_store(&f->gives_fds, true);
    _cleanup_(client_freep) struct client *c = connect_to(f, 0);
    struct client_file_open o = {.bucket = SLICE_LIT("b"), .key = SLICE_LIT("k")};
    struct client_writer_open wo = {.bucket = SLICE_LIT("b"), .key = SLICE_LIT("k"), .size_bytes = 3};
    struct client_file *file = NULL;
    struct client_writer *w;
    struct err e = {0};
    assert_int_equal(client_writer_open(c, &wo, &w, &e), 0);
    assert_int_equal(client_writer_write(w, "ab", 2, &e), 0);
    struct rlimit before = allow_no_more_files();
    int r = client_file_open(c, &o, &file, &e);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(r, -EMFILE);
    assert_int_equal(atomic_load(&f->seen[WIRE_OP_OPEN]), 1);
    assert_int_equal(atomic_load(&f->seen[WIRE_OP_CLOSE]), 1);
    assert_int_equal(client_writer_write(w, "c", 1, &e), 0);
    assert_int_equal(client_writer_commit(w, NULL, &e), 0);
    client_writer_free(w);
    assert_int_equal(client_file_open(c, &o, &file, &e), 0);
    expect_bytes(file, 0, 1000);
    client_file_close(file);
}

/* Nor is it said that the node is down when this process may not have one more connection. */
static void test_no_room_for_a_connection(void **state)
{
    struct fake *f = *state;
    _cleanup_(client_freep) struct client *c = connect_in_haste(f, 0);
    pthread_t asking;
    atomic_store(&f->hang_ms[WIRE_OP_STAT], 3600000);
    start_one(f, stat_one, c, WIRE_OP_STAT, &asking);
    struct rlimit before = allow_no_more_files();
    int r = make_dir(c);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(r, -EMFILE);
    atomic_store(&f->hang_ms[WIRE_OP_STAT], 0);
    (void)pthread_join(asking, NULL);
}

/* After a restart the file is opened again with the ETag it had, and reads on. */
static void test_file_survives_a_restart(void **state)
{
    struct fake *f = *state;
    _cleanup_(client_freep) struct client *c = connect_to(f, 0);
    struct client_file_open o = {.bucket = SLICE_LIT("b"), .key = SLICE_LIT("k")};
    struct client_file *file;
    struct err e = {0};
    assert_int_equal(client_file_open(c, &o, &file, &e), 0);
    for (int i = 0; i < 3; i++) {
        expect_bytes(file, 1000, 5000);
        fake_stop(f);
        fake_start(f);
    }
    atomic_store(&f->cut[WIRE_OP_FETCH], 1);
    expect_bytes(file, 100, 200000);
    client_file_close(file);
}

/* When the object is another one by then, every later read says so. */
static void test_file_whose_version_is_gone(void **state)
{
    struct fake *f = *state;
    _cleanup_(client_freep) struct client *c = connect_to(f, 0);
    struct client_file_open o = {.bucket = SLICE_LIT("b"), .key = SLICE_LIT("k")};
    struct client_file *file;
    struct err e = {0};
    char p[10];
    assert_int_equal(client_file_open(c, &o, &file, &e), 0);
    fake_stop(f);
    atomic_store(&f->etag, "v2");
    fake_start(f);
    assert_int_equal(client_file_pread(file, p, sizeof(p), 0, &e), -ESTALE);
    atomic_store(&f->etag, "v1");
    assert_int_equal(client_file_pread(file, p, sizeof(p), 0, &e), -ESTALE);
    client_file_close(file);
}

/* Of an origin that tells neither ETags nor times nobody knows which version it has: after a restart it is
 * the one that was open where it is the same file of the cache, and else it is none. (Without is_same_file in
 * client_file.c a file went on with whatever had as many bytes.) */
static void test_file_without_a_version(void **state)
{
    struct fake *f = *state;
    _cleanup_(client_freep) struct client *c = connect_to(f, 0);
    struct client_file_open o = {.bucket = SLICE_LIT("b"), .key = SLICE_LIT("k")};
    struct client_file *file, *inline_file;
    struct err e = {0};
    char p[10];
    atomic_store(&f->etag, "");
    assert_int_equal(client_file_open(c, &o, &inline_file, &e), 0);
    expect_bytes(inline_file, 1000, 5000);
    fake_stop(f);
    atomic_store(&f->gives_fds, true);
    fake_start(f);
    assert_int_equal(client_file_open(c, &o, &file, &e), 0);
    expect_bytes(file, 1000, 5000);
    assert_int_equal(client_file_pread(inline_file, p, sizeof(p), 0, &e), -ESTALE);
    client_file_close(inline_file);
    fake_stop(f);
    fake_start(f);
    expect_bytes(file, 200000, 5000);
    fake_stop(f);
    _cleanup_free_ char *bytes = malloc(BODY_BYTES);
    for (uint64_t i = 0; i < BODY_BYTES; i++)
        bytes[i] = content(i);
    assert_int_equal(sys_write_file_atomic(f->file, bytes, BODY_BYTES, 0600), 0); /* another inode */
    assert_int_equal(close(f->extent_fd), 0);
    f->extent_fd = open(f->file, O_RDONLY | O_CLOEXEC);
    assert_true(f->extent_fd >= 0);
    fake_start(f);
    assert_int_equal(client_file_pread(file, p, sizeof(p), 0, &e), -ESTALE);
    assert_int_equal(client_file_pread(file, p, sizeof(p), 0, &e), -ESTALE);
    client_file_close(file);
}

struct reading {
    struct client_file *file;
    atomic_bool stop;
};

static void *read_on(void *arg)
{
    struct reading *r = arg;
    for (uint64_t i = 0; !atomic_load(&r->stop); i++)
        expect_bytes(r->file, i * 7919 % BODY_BYTES, 3000);
    return NULL;
}

/* Four threads read one file while the node is restarted: right bytes only, and no old handle in a new
 * session. */
static void test_restarts_under_readers(void **state)
{
    struct fake *f = *state;
    atomic_store(&f->gives_fds, true);
    _cleanup_(client_freep) struct client *c = connect_to(f, 0);
    struct client_file_open o = {.bucket = SLICE_LIT("b"), .key = SLICE_LIT("k")};
    struct reading reading = {0};
    struct err e = {0};
    pthread_t threads[4];
    assert_int_equal(client_file_open(c, &o, &reading.file, &e), 0);
    for (size_t i = 0; i < ARRAY_SIZE(threads); i++)
        assert_int_equal(pthread_create(&threads[i], NULL, read_on, &reading), 0);
    for (int i = 0; i < 5; i++) {
        sys->sleep_ns(50000000);
        fake_stop(f);
        fake_start(f);
    }
    atomic_store(&reading.stop, true);
    for (size_t i = 0; i < ARRAY_SIZE(threads); i++)
        (void)pthread_join(threads[i], NULL);
    client_file_close(reading.file);
}

static void *read_once(void *arg)
{
    expect_bytes(arg, 1000, 1000);
    return NULL;
}

/* Readers that open a file again at the same time after a restart keep one handle of it at the node. */
static void test_opened_again_once(void **state)
{
    struct fake *f = *state;
    _cleanup_(client_freep) struct client *c = connect_to(f, 0);
    struct client_file_open o = {.bucket = SLICE_LIT("b"), .key = SLICE_LIT("k")};
    struct client_file *file;
    struct err e = {0};
    pthread_t threads[4];
    assert_int_equal(client_file_open(c, &o, &file, &e), 0);
    fake_stop(f);
    fake_start(f);
    assert_int_equal(stat_key(c, "k"), 0); /* the client knows of the restart */
    atomic_store(&f->hang_ms[WIRE_OP_OPEN], 200);
    for (size_t i = 0; i < ARRAY_SIZE(threads); i++)
        assert_int_equal(pthread_create(&threads[i], NULL, read_once, file), 0);
    for (size_t i = 0; i < ARRAY_SIZE(threads); i++)
        (void)pthread_join(threads[i], NULL);
    client_file_close(file);
    /* all but the one of before the restart */
    assert_int_equal(atomic_load(&f->seen[WIRE_OP_CLOSE]), atomic_load(&f->seen[WIRE_OP_OPEN]) - 1);
}

/* A writer commits what it wrote; after a restart it fails for good, because the node's part is gone. */
static void test_writer(void **state)
{
    struct fake *f = *state;
    _cleanup_(client_freep) struct client *c = connect_to(f, 0);
    struct client_writer_open o = {.bucket = SLICE_LIT("b"), .key = SLICE_LIT("k"), .size_bytes = 3};
    struct client_writer *w;
    const struct client_attr *attr;
    struct err e = {0};
    assert_int_equal(client_writer_open(c, &o, &w, &e), 0);
    assert_int_equal(client_writer_write(w, "ab", 2, &e), 0);
    assert_int_equal(client_writer_commit(w, &attr, &e), -EINVAL); /* fewer bytes than announced */
    client_writer_free(w);
    assert_int_equal(client_writer_open(c, &o, &w, &e), 0);
    assert_int_equal(client_writer_write(w, "abc", 3, &e), 0);
    assert_int_equal(client_writer_commit(w, &attr, &e), 0);
    assert_string_equal(attr->etag, "new");
    client_writer_free(w);
    assert_int_equal(client_writer_open(c, &o, &w, &e), 0);
    assert_int_equal(client_writer_write(w, "ab", 2, &e), 0);
    fake_stop(f);
    fake_start(f);
    assert_int_equal(client_writer_write(w, "c", 1, &e), -EIO);
    assert_int_equal(client_writer_commit(w, &attr, &e), -EIO);
    client_writer_free(w);
}

/* Bytes whose answer was lost, or is late, are not sent a second time; the writer fails for good. */
static void test_bytes_are_not_sent_twice(void **state)
{
    struct fake *f = *state;
    _cleanup_(client_freep) struct client *c = connect_in_haste(f, 0);
    struct client_writer_open o = {.bucket = SLICE_LIT("b"), .key = SLICE_LIT("k"), .size_bytes = UINT64_MAX};
    for (int late = 0; late < 2; late++) {
        struct client_writer *w;
        const struct client_attr *attr;
        struct err e = {0};
        int before = atomic_load(&f->seen[WIRE_OP_PUT_WRITE]), r = -ETIMEDOUT;
        for (int i = 0; i < TRIES && is_late(r); i++)
            r = client_writer_open(c, &o, &w, &e);
        assert_int_equal(r, 0);
        atomic_store(late ? &f->hang_ms[WIRE_OP_PUT_WRITE] : &f->cut[WIRE_OP_PUT_WRITE],
                     late ? 10 * TIMEOUT_MS : 1000);
        atomic_store(&f->hang_ms[WIRE_OP_HELLO], late ? 10 * TIMEOUT_MS : 0); /* nor does it answer others */
        assert_int_equal(client_writer_write(w, "abc", 3, &e), late ? -ETIMEDOUT : -EIO);
        assert_non_null(strstr(e.text, "not known"));
        assert_int_equal(atomic_load(&f->seen[WIRE_OP_PUT_WRITE]), before + 1);
        atomic_store(&f->cut[WIRE_OP_PUT_WRITE], 0);
        assert_true(client_writer_write(w, "abc", 3, &e) < 0);
        assert_true(client_writer_commit(w, &attr, &e) < 0);
        assert_int_equal(atomic_load(&f->seen[WIRE_OP_PUT_WRITE]), before + 1);
        client_writer_free(w);
    }
}

static int list_all(struct client *c, const char *bucket, size_t *ret_n)
{
    struct client_lister_open o = {.bucket = slice_str(bucket)};
    _cleanup_(client_lister_freep) struct client_lister *l = client_lister_new(c, &o);
    struct wire_entry entry;
    struct err e = {0};
    int r;
    *ret_n = 0;
    while ((r = client_lister_next(l, &entry, &e)) == 1 && *ret_n < 100)
        (*ret_n)++;
    return r;
}

/* Pages follow each other; a listing that stands still or breaks off is an error, not a loop. */
static void test_lister(void **state)
{
    struct fake *f = *state;
    _cleanup_(client_freep) struct client *c = connect_to(f, 0);
    size_t n;
    assert_int_equal(list_all(c, "b", &n), 0);
    assert_int_equal(n, 2);
    assert_int_equal(list_all(c, "stuck", &n), ERR_PROTOCOL);
    assert_int_equal(list_all(c, "broken", &n), ERR_PROTOCOL);
}

/* Nor is a page that broke off the end for whoever asks on, as the next READDIR of a mount does. */
static void test_a_broken_page_is_no_end(void **state)
{
    struct fake *f = *state;
    _cleanup_(client_freep) struct client *c = connect_to(f, 0);
    struct client_lister_open o = {.bucket = SLICE_LIT("broken")};
    _cleanup_(client_lister_freep) struct client_lister *l = client_lister_new(c, &o);
    struct wire_entry entry;
    for (int i = 0; i < 3; i++) {
        struct err e = {0};
        assert_int_equal(client_lister_next(l, &entry, &e), ERR_PROTOCOL);
        assert_true(e.text[0]);
    }
}

/* ---- the public interface ---- */

struct source {
    const char *text;
    size_t at;
};

/* Two bytes at a time, and -EXDEV after the text's '!'. */
static ssize_t give(void *arg, void *p, size_t n)
{
    struct source *s = arg;
    size_t left = strlen(s->text) - s->at, some = MIN(MIN(n, left), (size_t)2);
    if (left > 0 && s->text[s->at] == '!')
        return -EXDEV;
    memcpy(p, s->text + s->at, some);
    s->at += some;
    return (ssize_t)some;
}

/* With a number that no int can be: as one, it would be 0. */
static ssize_t give_up(void *arg, void *p, size_t n)
{
    (void)arg, (void)p, (void)n;
    return (ssize_t)INT64_MIN;
}

/* Names, reading by position and by offset, whole objects, listings: results, and an error's text per thread.
 */
static void test_public_interface(void **state)
{
    struct fake *f = *state;
    struct forebay_options o = {.socket_path = f->path, .timeout_ms = PATIENCE_MS};
    struct forebay *node;
    struct forebay_stat st;
    struct forebay_file *file;
    char p[5000];
    assert_int_equal(forebay_connect(&o, &node), 0);
    assert_string_equal(forebay_error(), "");
    assert_int_equal(forebay_stat(node, "b", "there", &st), 0);
    assert_int_equal(st.size_bytes, 7);
    assert_int_equal(forebay_stat(node, "b", "absent", &st), -ENOENT);
    assert_string_equal(forebay_error(), "as told");
    assert_string_equal(forebay_error_name(-ENOENT), "ENOENT");
    assert_int_equal(forebay_open(node, "b", "k", &file), 0);
    assert_string_equal(forebay_error(), "");
    for (uint64_t at = 0; at < 3 * sizeof(p); at += sizeof(p)) {
        assert_int_equal(forebay_read(file, p, sizeof(p)), sizeof(p));
        assert_int_equal(p[17], content(at + 17));
    }
    assert_int_equal(forebay_pread(file, p, sizeof(p), BODY_BYTES - 3), 3);
    assert_int_equal(p[2], content(BODY_BYTES - 1));
    assert_int_equal(forebay_fstat(file, &st), 0);
    assert_int_equal(st.size_bytes, BODY_BYTES);
    assert_string_equal(st.etag, "v1");
    forebay_close(file);
    forebay_close(NULL);
    assert_int_equal(forebay_put(node, "b", "k", "abc", 3, NULL, &st), 0);
    assert_string_equal(st.etag, "new");
    assert_int_equal(forebay_copy(node, "b", "k", "l"), 0);
    forebay_disconnect(node);
    forebay_disconnect(NULL);
    o.socket_path = "/nonexistent/socket";
    assert_int_equal(forebay_connect(&o, &node), -ENOENT);
    assert_non_null(strstr(forebay_error(), "/nonexistent/socket"));
}

/* Whatever the node says of a version that is not there any more, for a program it is -ESTALE, as forebay.h
 * has it, with the node's words; of an object that is not opened yet it is what the node says. */
static void test_public_read_of_a_version_that_is_gone(void **state)
{
    static const int codes[] = {-ESTALE, -ENOENT, ERR_PRECONDITION, ERR_VERSION_CHANGED};
    struct fake *f = *state;
    struct forebay_options o = {
        .socket_path = f->path, .timeout_ms = PATIENCE_MS, .kept_files = FOREBAY_KEPT_NONE};
    struct forebay *node;
    struct forebay_file *file;
    char p[10];
    assert_int_equal(forebay_connect(&o, &node), 0);
    assert_int_equal(forebay_open(node, "b", "k", &file), 0);
    for (size_t i = 0; i < ARRAY_SIZE(codes); i++) {
        atomic_store(&f->fails[WIRE_OP_FETCH], codes[i]);
        assert_int_equal(forebay_pread(file, p, sizeof(p), 5), -ESTALE);
        assert_string_equal(forebay_error(), "b/k: as told");
        assert_int_equal(forebay_read(file, p, sizeof(p)), -ESTALE);
    }
    atomic_store(&f->fails[WIRE_OP_FETCH], -EIO);
    assert_int_equal(forebay_read(file, p, sizeof(p)), -EIO);
    atomic_store(&f->fails[WIRE_OP_FETCH], 0);
    assert_int_equal(forebay_read(file, p, sizeof(p)), sizeof(p));
    assert_int_equal(p[9], content(9));
    forebay_close(file);
    atomic_store(&f->fails[WIRE_OP_OPEN], -ENOENT);
    assert_int_equal(forebay_open(node, "b", "k", &file), -ENOENT);
    forebay_disconnect(node);
}

/* A source gives its bytes piece by piece; what it fails with is what the caller gets, and nothing is
 * committed. */
static void test_public_put_from(void **state)
{
    struct fake *f = *state;
    struct forebay_options o = {.socket_path = f->path, .timeout_ms = PATIENCE_MS};
    struct forebay *node;
    struct source good = {.text = "abcde"}, bad = {.text = "ab!"};
    assert_int_equal(forebay_connect(&o, &node), 0);
    assert_int_equal(forebay_put_from(node, "b", "k", 5, give, &good, NULL, NULL), 0);
    assert_int_equal(atomic_load(&f->seen[WIRE_OP_PUT_WRITE]), 3);
    assert_int_equal(atomic_load(&f->seen[WIRE_OP_PUT_COMMIT]), 1);
    assert_int_equal(forebay_put_from(node, "b", "k", UINT64_MAX, give, &bad, NULL, NULL), -EXDEV);
    good.at = 0;
    assert_int_equal(forebay_put_from(node, "b", "k", 9, give, &good, NULL, NULL), -EINVAL);
    assert_int_equal(forebay_put_from(node, "b", "k", UINT64_MAX, give_up, NULL, NULL, NULL), -EIO);
    const struct forebay_put_options none = {.if_match = ""}; /* the ETag of a store that tells none */
    assert_int_equal(forebay_put(node, "b", "k", "abc", 3, &none, NULL), -EINVAL);
    assert_int_equal(atomic_load(&f->seen[WIRE_OP_PUT_COMMIT]), 1);
    assert_int_equal(atomic_load(&f->seen[WIRE_OP_PUT_ABORT]), 3);
    forebay_disconnect(node);
}

/* An object whose last answer was lost may be there: the caller hears that this is not known, and it is not
 * sent again, which could undo what somebody else wrote since. Where bytes before it were lost it is not
 * there. (Fails with PUT_COMMIT repeatable in client_call.c.) */
static void test_public_put_whose_answer_is_lost(void **state)
{
    struct fake *f = *state;
    struct forebay_options o = {.socket_path = f->path, .timeout_ms = PATIENCE_MS};
    struct forebay *node;
    assert_int_equal(forebay_connect(&o, &node), 0);
    atomic_store(&f->cut[WIRE_OP_PUT_WRITE], 1000);
    assert_int_equal(forebay_put(node, "b", "k", "abc", 3, NULL, NULL), -EIO);
    assert_int_equal(atomic_load(&f->seen[WIRE_OP_PUT_COMMIT]), 0);
    atomic_store(&f->cut[WIRE_OP_PUT_WRITE], 0);
    atomic_store(&f->cut[WIRE_OP_PUT_COMMIT], 1000);
    assert_int_equal(forebay_put(node, "b", "k", "abc", 3, NULL, NULL), -EIO);
    assert_non_null(strstr(forebay_error(), "not known"));
    assert_int_equal(atomic_load(&f->seen[WIRE_OP_PUT_COMMIT]), 1);
    forebay_disconnect(node);
}

/* A listing is walked to its end and keeps its keys apart. */
static void test_public_listing(void **state)
{
    struct fake *f = *state;
    struct forebay_options o = {.socket_path = f->path, .timeout_ms = PATIENCE_MS};
    struct forebay *node;
    struct forebay_listing *l;
    const char *key;
    assert_int_equal(forebay_connect(&o, &node), 0);
    assert_int_equal(forebay_list(node, "b", "", 0, &l), 0);
    assert_int_equal(forebay_list_next(l, &key, NULL), 1);
    assert_string_equal(key, "a");
    assert_int_equal(forebay_list_next(l, &key, NULL), 1);
    assert_string_equal(key, "z");
    assert_int_equal(forebay_list_next(l, &key, NULL), 0);
    forebay_list_close(l);
    assert_int_equal(forebay_list(node, "broken", "", 0, &l), 0);
    assert_int_equal(forebay_list_next(l, &key, NULL), ERR_PROTOCOL);
    forebay_list_close(l);
    forebay_list_close(NULL);
    forebay_disconnect(node);
}

static int count_bucket(void *arg, const char *name, const char *origin)
{
    int *n = arg;
    assert_string_equal(name, "b");
    assert_string_equal(origin, "");
    return ++*n > 5;
}

/* Nor is a list of buckets that stands still walked for ever. */
static void test_public_list_of_buckets_that_stands_still(void **state)
{
    struct fake *f = *state;
    struct forebay_options o = {.socket_path = f->path, .timeout_ms = PATIENCE_MS};
    struct forebay *node;
    int n = 0;
    assert_int_equal(forebay_connect(&o, &node), 0);
    assert_int_equal(forebay_bucket_list(node, count_bucket, &n), ERR_PROTOCOL);
    assert_int_equal(n, 1);
    forebay_disconnect(node);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        NODE_TEST(test_where_is_the_node),
        NODE_TEST(test_a_relative_socket),
        NODE_TEST(test_credentials),
        NODE_TEST(test_credentials_file),
        NODE_TEST(test_answers),
        NODE_TEST(test_questions_are_repeated),
        NODE_TEST(test_changes_are_not_repeated),
        NODE_TEST(test_numbered_changes_are_sent_again),
        NODE_TEST(test_a_long_numbered_change_that_is_cut_late),
        NODE_TEST(test_a_change_that_is_always_cut_ends),
        NODE_TEST(test_jobs_are_not_started_twice),
        NODE_TEST(test_jobs_are_not_changed_twice),
        NODE_TEST(test_uploads_are_not_begun_twice),
        NODE_TEST(test_restart_between_calls),
        NODE_TEST(test_node_down),
        NODE_TEST(test_node_that_does_not_accept),
        NODE_TEST(test_lying_node),
        NODE_TEST(test_a_descriptor_that_nobody_asked_for),
        NODE_TEST(test_fork),
        NODE_TEST(test_pool_is_bounded),
        NODE_TEST(test_idle_connections_stay),
        NODE_TEST(test_file_reads),
        NODE_TEST(test_sequential_reads_ask_rarely),
        NODE_TEST(test_no_room_for_a_descriptor),
        NODE_TEST(test_no_room_for_a_connection),
        NODE_TEST(test_file_survives_a_restart),
        NODE_TEST(test_file_without_a_version),
        NODE_TEST(test_file_whose_version_is_gone),
        NODE_TEST(test_restarts_under_readers),
        NODE_TEST(test_opened_again_once),
        NODE_TEST(test_writer),
        NODE_TEST(test_bytes_are_not_sent_twice),
        NODE_TEST(test_lister),
        NODE_TEST(test_a_broken_page_is_no_end),
        NODE_TEST(test_public_interface),
        NODE_TEST(test_public_read_of_a_version_that_is_gone),
        NODE_TEST(test_public_put_from),
        NODE_TEST(test_public_put_whose_answer_is_lost),
        NODE_TEST(test_public_listing),
        NODE_TEST(test_public_list_of_buckets_that_stands_still),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

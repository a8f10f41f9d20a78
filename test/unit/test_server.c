/* layer: server */
/* A whole node in this process: it starts, stops cleanly and starts again on the same data; a start that
 * fails says why and leaves nothing behind. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/sys.h"
#include "net/sock.h"
#include "server/server.h"
#include "support/tmpdir.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdatomic.h>

static size_t count_fds(void)
{
    DIR *d = opendir("/proc/self/fd");
    size_t n = 0;
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

/* A configuration as the command line would make it; `more` ends with NULL. */
static void configure(struct config *c, const char *data, const char *const *more)
{
    const char *args[16] = {"--data", data,          "--listen",    "127.0.0.1:0",
                            "--wire", "127.0.0.1:0", "--log-level", "error"};
    int n = 8;
    struct err e = {0};
    while (more && *more)
        args[n++] = *more++;
    if (config_load(c, n, (char **)(uintptr_t)args, &e) < 0)
        fail_msg("%s", e.text);
}

static int start(const char *data, const char *const *more, struct server **ret, struct err *e)
{
    struct config c;
    configure(&c, data, more);
    int k = server_start(&c, ret, e);
    config_fini(&c);
    return k;
}

/* The text behind `label` in the ready line, up to the next blank. */
static void part_of(const struct server *s, const char *label, char ret[128])
{
    const char *at = strstr(server_ready_line(s), label);
    assert_non_null(at);
    at += strlen(label);
    size_t n = strcspn(at, " ");
    assert_true(n < 128);
    memcpy(ret, at, n);
    ret[n] = '\0';
}

static void ask_health(const char *address)
{
    struct err e = {0};
    int fd;
    char answer[15];
    assert_int_equal(sock_connect_tcp(address, 5000, &fd, &e), 0);
    assert_int_equal(sock_send_all(fd, "GET /-/health HTTP/1.0\r\n\r\n", 26, 0), 0);
    assert_int_equal(sock_recv_all(fd, answer, sizeof(answer)), 0);
    assert_memory_equal(answer, "HTTP/1.1 200 OK", 15);
    (void)close(fd);
}

/* Starting and stopping again and again on one directory works and leaks no descriptor. */
static void starts_and_stops_again_and_again(void **state)
{
    char *_cleanup_tmpdir_ dir = tmpdir_new();
    size_t fds = 0;
    for (int round = 0; round < 4; round++) {
        struct server *s = NULL;
        struct err e = {0};
        char http[128], path[128];
        assert_int_equal(start(dir, NULL, &s, &e), 0);
        part_of(s, "s3 http://", http);
        part_of(s, "socket ", path);
        ask_health(http);
        int fd;
        assert_int_equal(sock_connect_unix(path, &fd, &e), 0);
        (void)close(fd);
        server_stop(s);
        assert_int_equal(sock_connect_tcp(http, 1000, &fd, &e), -ECONNREFUSED);
        server_free(s);
        if (round == 0)
            fds = count_fds(); /* libraries keep some for the life of the process */
        assert_int_equal(count_fds(), fds);
    }
}

/* A start that fails names what was wrong, frees everything, and the directory can be used at once. */
static void failed_starts_leave_nothing_behind(void **state)
{
    char *_cleanup_tmpdir_ dir = tmpdir_new();
    char taken[128];
    int listener;
    struct err e = {0};
    assert_int_equal(sock_listen_tcp("127.0.0.1:0", 8, &listener, taken, &e), 0);
    char *file = tmpdir_path(dir, "file");
    int fd = open(file, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    (void)close(fd);
    const char *const cases[][3] = {
        {"--listen", taken, taken},
        {"--wire", taken, taken},
        {"--listen", "no-such-host.invalid:1", "no-such-host.invalid:1"},
        {"--disk", file, file},
    };
    char *data = tmpdir_path(dir, "data");
    struct server *s = NULL;
    assert_int_equal(start(data, NULL, &s, &e), 0);
    server_stop(s);
    server_free(s);
    size_t fds = count_fds();
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        s = NULL;
        e = (struct err){0};
        assert_true(start(data, (const char *const[]){cases[i][0], cases[i][1], NULL}, &s, &e) < 0);
        assert_null(s);
        if (!strstr(e.text, cases[i][2]))
            fail_msg("%s: %s", cases[i][0], e.text);
        assert_int_equal(count_fds(), fds);
    }
    assert_int_equal(start(data, NULL, &s, &e), 0);
    server_free(s); /* without stopping first: stops */
    (void)close(listener);
    free(file);
    free(data);
}

/* A second node on the same data is refused while the first one runs. */
static void one_node_per_directory(void **state)
{
    char *_cleanup_tmpdir_ dir = tmpdir_new();
    struct server *first = NULL, *second = NULL;
    struct err e = {0};
    assert_int_equal(start(dir, NULL, &first, &e), 0);
    assert_int_equal(start(dir, NULL, &second, &e), -EBUSY);
    assert_non_null(strstr(e.text, "--data: "));
    server_stop(first);
    server_free(first);
    assert_int_equal(start(dir, NULL, &second, &e), 0);
    server_stop(second);
    server_free(second);
}

static _Atomic uint64_t set_back_ns;

static uint64_t clock_set_back(void)
{
    return sys_real.real_ns() - atomic_load(&set_back_ns);
}

/* How long a node has been up is not a matter of the wall clock, which somebody may set back behind its
 * start. (It was up for 585 years then.) */
static void uptime_goes_on_when_the_clock_is_set_back(void **state)
{
    char *_cleanup_tmpdir_ dir = tmpdir_new();
    static struct sys table;
    table = sys_real;
    table.real_ns = clock_set_back;
    sys = &table;
    struct server *s = NULL;
    struct err e = {0};
    char http[128], answer[4096] = "";
    int fd;
    assert_int_equal(start(dir, NULL, &s, &e), 0);
    part_of(s, "s3 http://", http);
    atomic_store(&set_back_ns, (uint64_t)3600 * 1000000000);
    assert_int_equal(sock_connect_tcp(http, 60000, &fd, &e), 0);
    assert_int_equal(sock_send_all(fd, "GET /-/health HTTP/1.0\r\n\r\n", 26, 0), 0);
    for (size_t n = 0; n < sizeof(answer) - 1;) {
        ssize_t k = sock_recv_some(fd, answer + n, sizeof(answer) - 1 - n);
        if (k < 0)
            break;
        n += (size_t)k;
    }
    (void)close(fd);
    const char *at = strstr(answer, "\"uptime_s\": ");
    assert_non_null(at);
    double up_s = strtod(at + strlen("\"uptime_s\": "), NULL);
    assert_true(up_s >= 0 && up_s < 3600);
    server_stop(s);
    server_free(s);
    sys = &sys_real;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(starts_and_stops_again_and_again),
        cmocka_unit_test(failed_starts_leave_nothing_behind),
        cmocka_unit_test(one_node_per_directory),
        cmocka_unit_test(uptime_goes_on_when_the_clock_is_set_back),
    };
    return cmocka_run_group_tests_name("server", tests, NULL, NULL);
}

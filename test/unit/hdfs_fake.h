/*
 * A namenode and a datanode with files in memory, of which one request fails in turn. Bytes go by way of a
 * redirect to "/datanode/...". Without options (`knows_options` false) renames are those of HttpFS: nothing
 * is replaced, and the answer says whether it was done.
 */
#pragma once

#include "base/buf.h"
#include "base/sys.h"
#include "http_script.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>

#include <cmocka.h>

#define FAKE_FILES_MAX 64
#define FAKE_BYTES_MAX 4096
#define FAKE_CONNS_MAX 64
#define FAKE_HEAD_MAX  16384

/* How a request ends that shall fail. */
enum fake_fault {
    FAKE_REFUSED,   /* 500, an IOException */
    FAKE_BUSY,      /* 503 */
    FAKE_NOT_DONE,  /* the connection breaks before it is done; of a body half has come */
    FAKE_NOT_HEARD, /* ... after it is done, without an answer */
    FAKE_CUT,       /* ... within the answer */
    FAKE_EMPTY,     /* ... behind the head of an answer without a length */
    FAKE_LATE,      /* nothing comes, and the connection stays; it is done when all else is (fake_arrive) */
};

#define FAKE_TIMEOUT_MS 100 /* by the clock below, which stands still but when nothing comes */

struct fake_file {
    char path[700]; /* empty: unused */
    bool is_dir;
    uint64_t id, mtime_ms;
    size_t n;
    char bytes[FAKE_BYTES_MAX];
};

static struct {
    int listener;
    uint16_t port;
    pthread_t acceptor, threads[FAKE_CONNS_MAX];
    pthread_mutex_t mutex; /* covers what follows */
    int fds[FAKE_CONNS_MAX];
    size_t n_threads;
    bool stop, knows_options;
    struct fake_file files[FAKE_FILES_MAX];
    uint64_t last_id, clock_ms;
    uint64_t left; /* requests until one fails; 0: none */
    enum fake_fault fault;
    char failed[32];         /* the operation that did; empty: none yet */
    _Atomic uint64_t now_ns; /* without the mutex */
} fake = {.mutex = PTHREAD_MUTEX_INITIALIZER};

/* ---- files; under the mutex ---- */

static struct fake_file *fake_find(const char *path)
{
    for (size_t i = 0; i < FAKE_FILES_MAX; i++)
        if (fake.files[i].path[0] && strcmp(fake.files[i].path, path) == 0)
            return &fake.files[i];
    return NULL;
}

static struct fake_file *fake_make(const char *path, bool is_dir, const char *p, size_t n)
{
    struct fake_file *f = fake_find(path);
    for (size_t i = 0; i < FAKE_FILES_MAX && !f; i++)
        f = fake.files[i].path[0] ? NULL : &fake.files[i];
    assert_true(f && n <= FAKE_BYTES_MAX);
    *f = (struct fake_file){.is_dir = is_dir, .id = ++fake.last_id, .mtime_ms = ++fake.clock_ms, .n = n};
    (void)snprintf(f->path, sizeof(f->path), "%s", path);
    if (n > 0)
        memcpy(f->bytes, p, n);
    return f;
}

/* The directories around a path. */
static void fake_make_parents(const char *path)
{
    char part[700];
    (void)snprintf(part, sizeof(part), "%s", path);
    for (char *p = part + 1; (p = strchr(p, '/')); p++) {
        *p = '\0';
        if (!fake_find(part))
            (void)fake_make(part, true, NULL, 0);
        *p = '/';
    }
}

static bool fake_has_below(const char *path)
{
    size_t n = strlen(path);
    for (size_t i = 0; i < FAKE_FILES_MAX; i++)
        if (strncmp(fake.files[i].path, path, n) == 0 && fake.files[i].path[n] == '/')
            return true;
    return false;
}

/* ---- one request ---- */

struct fake_request {
    char method[8], path[1200], op[32], query[1200];
    const char *body;
    size_t body_n;
    int status; /* the answer */
    char location[1500];
    struct buf answer;
};

/* A value of the query, decoded as far as needed: slashes. */
static void fake_param(const struct fake_request *q, const char *name, char *ret, size_t room)
{
    char want[64];
    size_t n = 0;
    (void)snprintf(want, sizeof(want), "%s=", name);
    const char *p = strstr(q->query, want);
    p = p ? p + strlen(want) : "";
    while (*p && *p != '&' && n + 1 < room) {
        bool slash = strncasecmp(p, "%2F", 3) == 0;
        ret[n++] = slash ? '/' : *p;
        p += slash ? 3 : 1;
    }
    ret[n] = '\0';
}

static void fake_say(struct fake_request *q, int status, const char *text)
{
    q->status = status;
    buf_clear(&q->answer);
    assert_int_equal(buf_str(&q->answer, text), 0);
}

static void fake_refuse(struct fake_request *q, int status, const char *exception)
{
    q->status = status;
    buf_clear(&q->answer);
    assert_int_equal(buf_printf(&q->answer,
                                "{\"RemoteException\":{\"exception\":\"%s\",\"message\":\"as told\"}}",
                                exception),
                     0);
}

static void fake_add_status(struct fake_request *q, const struct fake_file *f, const char *name)
{
    assert_int_equal(
        buf_printf(&q->answer,
                   "{\"pathSuffix\":\"%s\",\"fileId\":%lu,\"length\":%zu,\"modificationTime\":%lu,"
                   "\"type\":\"%s\"}",
                   name, (unsigned long)f->id, f->n, (unsigned long)f->mtime_ms,
                   f->is_dir ? "DIRECTORY" : "FILE"),
        0);
}

static void do_status(struct fake_request *q)
{
    const struct fake_file *f = fake_find(q->path);
    if (!f) {
        fake_refuse(q, 404, "FileNotFoundException");
        return;
    }
    fake_say(q, 200, "{\"FileStatus\":");
    fake_add_status(q, f, "");
    assert_int_equal(buf_str(&q->answer, "}"), 0);
}

static void do_list(struct fake_request *q)
{
    size_t n = strlen(q->path);
    bool any = false;
    fake_say(q, 200, "{\"DirectoryListing\":{\"partialListing\":{\"FileStatuses\":{\"FileStatus\":[");
    for (size_t i = 0; i < FAKE_FILES_MAX; i++) {
        const struct fake_file *f = &fake.files[i];
        if (strncmp(f->path, q->path, n) != 0 || f->path[n] != '/' || strchr(f->path + n + 1, '/'))
            continue;
        assert_int_equal(any ? buf_str(&q->answer, ",") : 0, 0);
        fake_add_status(q, f, f->path + n + 1);
        any = true;
    }
    assert_int_equal(buf_str(&q->answer, "]}},\"remainingEntries\":0}}"), 0);
}

static void fake_redirect(struct fake_request *q)
{
    q->status = 307;
    (void)snprintf(q->location, sizeof(q->location), "http://127.0.0.1:%u/datanode%s?%s", fake.port, q->path,
                   q->query);
}

static void do_open(struct fake_request *q, bool at_datanode)
{
    static const char by_id[] = "/.reserved/.inodes/";
    const struct fake_file *f = fake_find(q->path);
    char offset[32], length[32];
    if (strncmp(q->path, by_id, strlen(by_id)) == 0)
        for (size_t i = 0; i < FAKE_FILES_MAX; i++)
            if (fake.files[i].path[0] && fake.files[i].id == strtoull(q->path + strlen(by_id), NULL, 10))
                f = &fake.files[i];
    if (!f) {
        fake_refuse(q, 404, "FileNotFoundException");
        return;
    }
    if (!at_datanode) {
        fake_redirect(q);
        return;
    }
    fake_param(q, "offset", offset, sizeof(offset));
    fake_param(q, "length", length, sizeof(length));
    size_t from = MIN(strtoull(offset, NULL, 10), (unsigned long long)f->n);
    size_t n = MIN(strtoull(length, NULL, 10), (unsigned long long)(f->n - from));
    q->status = 200;
    assert_int_equal(buf_append(&q->answer, f->bytes + from, n), 0);
}

static void do_create(struct fake_request *q, bool at_datanode)
{
    if (fake_find(q->path)) {
        fake_refuse(q, 403, "FileAlreadyExistsException");
    } else if (!at_datanode) {
        fake_redirect(q);
    } else {
        fake_make_parents(q->path);
        (void)fake_make(q->path, false, q->body, q->body_n);
        q->status = 201;
    }
}

static void do_rename(struct fake_request *q)
{
    char to[700], options[32];
    struct fake_file *f = fake_find(q->path);
    fake_param(q, "destination", to, sizeof(to));
    fake_param(q, "renameoptions", options, sizeof(options));
    struct fake_file *there = fake_find(to);
    if (!fake.knows_options) {
        fake_say(q, 200, f && !there ? "{\"boolean\":true}" : "{\"boolean\":false}");
    } else if (!f) {
        fake_refuse(q, 404, "FileNotFoundException");
    } else if (there && strcmp(options, "OVERWRITE") != 0) {
        fake_refuse(q, 403, "FileAlreadyExistsException");
    } else {
        q->status = 200;
        if (there)
            there->path[0] = '\0';
        there = NULL;
    }
    if (q->status == 200 && f && !there)
        (void)snprintf(f->path, sizeof(f->path), "%s", to);
}

static void do_delete(struct fake_request *q)
{
    struct fake_file *f = fake_find(q->path);
    if (f && fake_has_below(q->path)) {
        fake_refuse(q, 403, "PathIsNotEmptyDirectoryException");
        return;
    }
    fake_say(q, 200, f ? "{\"boolean\":true}" : "{\"boolean\":false}");
    if (f)
        f->path[0] = '\0';
}

static void do_mkdirs(struct fake_request *q)
{
    fake_make_parents(q->path);
    if (!fake_find(q->path))
        (void)fake_make(q->path, true, NULL, 0);
    fake_say(q, 200, "{\"boolean\":true}");
}

static void do_set_times(struct fake_request *q)
{
    char time[32];
    struct fake_file *f = fake_find(q->path);
    fake_param(q, "modificationtime", time, sizeof(time));
    if (f)
        f->mtime_ms = strtoull(time, NULL, 10);
    q->status = 200;
}

static void fake_run(struct fake_request *q)
{
    static const char datanode[] = "/datanode", service[] = "/webhdfs/v1";
    bool at_datanode = strncmp(q->path, datanode, strlen(datanode)) == 0;
    size_t skip = at_datanode ? strlen(datanode) : strlen(service);
    memmove(q->path, q->path + skip, strlen(q->path + skip) + 1);
    if (strcmp(q->op, "GETFILESTATUS") == 0)
        do_status(q);
    else if (strcmp(q->op, "LISTSTATUS_BATCH") == 0)
        do_list(q);
    else if (strcmp(q->op, "OPEN") == 0)
        do_open(q, at_datanode);
    else if (strcmp(q->op, "CREATE") == 0)
        do_create(q, at_datanode);
    else if (strcmp(q->op, "RENAME") == 0)
        do_rename(q);
    else if (strcmp(q->op, "DELETE") == 0)
        do_delete(q);
    else if (strcmp(q->op, "MKDIRS") == 0)
        do_mkdirs(q);
    else if (strcmp(q->op, "SETTIMES") == 0)
        do_set_times(q);
    else
        fake_refuse(q, 400, "IllegalArgumentException");
}

/* ---- connections ---- */

/* `more`: bytes that are announced and do not come; -1: no length is told. False: the connection ends. */
static bool fake_answer(int fd, struct fake_request *q, int more)
{
    struct buf _cleanup_buf_ head = BUF_INIT(128 * KIB);
    assert_int_equal(buf_printf(&head, "HTTP/1.1 %d As told\r\n", q->status), 0);
    if (q->location[0])
        assert_int_equal(buf_printf(&head, "Location: %s\r\n", q->location), 0);
    if (more >= 0)
        assert_int_equal(buf_printf(&head, "Content-Length: %zu\r\n", q->answer.n + (size_t)more), 0);
    assert_int_equal(buf_str(&head, more == 0 ? "\r\n" : "Connection: close\r\n\r\n"), 0);
    if (more >= 0)
        assert_int_equal(buf_slice(&head, buf_view(&q->answer)), 0);
    return script_send(fd, head.p, head.n) && more == 0; /* at once: two sends would wait for each other */
}

static uint64_t fake_clock(void)
{
    return atomic_load(&fake.now_ns);
}

/* What nobody waits for any more by the time it is done. */
static struct {
    struct fake_request request; /* without op: none */
    char body[FAKE_BYTES_MAX];
} fake_late;

static void fake_keep(const struct fake_request *q)
{
    assert_true(q->body_n <= sizeof(fake_late.body));
    fake_late.request = *q;
    if (q->body_n > 0)
        memcpy(fake_late.body, q->body, q->body_n);
    fake_late.request.body = fake_late.body;
    fake_late.request.answer = BUF_INIT(64 * KIB);
    (void)atomic_fetch_add(&fake.now_ns, FAKE_TIMEOUT_MS * 1000000ull);
}

/* Under the mutex. */
static void fake_arrive(void)
{
    if (fake_late.request.op[0]) {
        fake_run(&fake_late.request);
        buf_fini(&fake_late.request.answer);
    }
    fake_late.request.op[0] = '\0';
}

/* True: the connection goes on. */
static bool fake_fail(int fd, struct fake_request *q, enum fake_fault fault)
{
    if (fault == FAKE_LATE) {
        fake_keep(q);
        return true;
    }
    if (fault == FAKE_REFUSED)
        fake_refuse(q, 500, "IOException");
    else if (fault == FAKE_BUSY)
        fake_say(q, 503, "later");
    if (fault == FAKE_REFUSED || fault == FAKE_BUSY)
        return fake_answer(fd, q, 0);
    if (fault == FAKE_NOT_DONE) {
        q->body_n /= 2;
        bool is_half = q->body_n > 0;
        if (is_half)
            fake_run(q);
        return false;
    }
    fake_run(q);
    if (fault == FAKE_CUT)
        (void)fake_answer(fd, q, 10);
    else if (fault == FAKE_EMPTY)
        (void)fake_answer(fd, q, -1);
    return false;
}

/* False: the connection ends. */
static bool fake_serve(int fd, struct fake_request *q)
{
    pthread_mutex_lock(&fake.mutex);
    bool hit = fake.left > 0 && --fake.left == 0;
    enum fake_fault fault = fake.fault;
    if (hit)
        (void)snprintf(fake.failed, sizeof(fake.failed), "%s", q->op);
    if (!hit)
        fake_run(q);
    bool goes_on = hit ? fake_fail(fd, q, fault) : true;
    pthread_mutex_unlock(&fake.mutex);
    return goes_on && (hit || fake_answer(fd, q, 0));
}

static bool fake_read_head(int fd, char *head, size_t *have, char **ret_body)
{
    *have = 0;
    for (;;) {
        ssize_t r = recv(fd, head + *have, FAKE_HEAD_MAX - 1 - *have, 0);
        if (r <= 0)
            return false;
        *have += (size_t)r;
        head[*have] = '\0';
        char *end = strstr(head, "\r\n\r\n");
        if (end) {
            *ret_body = end + 4;
            return true;
        }
    }
}

/* The body behind the head. */
static bool fake_read_body(int fd, const char *head, char *body, size_t have, struct fake_request *q)
{
    const char *length = strcasestr(head, "\r\ncontent-length: "), *expect = strcasestr(head, "\r\nexpect: ");
    size_t want = length && length < body ? strtoull(length + 18, NULL, 10) : 0;
    assert_true(body + want < head + FAKE_HEAD_MAX);
    if (want > have && expect && expect < body)
        (void)script_send(fd, "HTTP/1.1 100 Continue\r\n\r\n", 25);
    while (have < want) {
        ssize_t r = recv(fd, body + have, want - have, 0);
        if (r <= 0)
            return false;
        have += (size_t)r;
    }
    q->body = body;
    q->body_n = want;
    return true;
}

static void *fake_connection(void *arg)
{
    int fd = (int)(intptr_t)arg;
    char *head = malloc(FAKE_HEAD_MAX), *body;
    size_t have;
    bool goes_on = true;
    assert_non_null(head);
    while (goes_on && fake_read_head(fd, head, &have, &body)) {
        struct fake_request q = {.answer = BUF_INIT(64 * KIB)};
        (void)sscanf(head, "%7s %1199[^? ]?%1199s", q.method, q.path, q.query);
        fake_param(&q, "op", q.op, sizeof(q.op));
        goes_on = fake_read_body(fd, head, body, have - (size_t)(body - head), &q) && fake_serve(fd, &q);
        buf_fini(&q.answer);
    }
    free(head);
    (void)shutdown(fd, SHUT_RDWR); /* closed when all are joined */
    return NULL;
}

static void *fake_accept(void *arg)
{
    (void)arg;
    for (;;) {
        int fd = accept(fake.listener, NULL, NULL);
        if (fd < 0)
            return NULL;
        pthread_mutex_lock(&fake.mutex);
        assert_true(fake.n_threads < FAKE_CONNS_MAX);
        fake.fds[fake.n_threads] = fd;
        assert_int_equal(
            pthread_create(&fake.threads[fake.n_threads++], NULL, fake_connection, (void *)(intptr_t)fd), 0);
        pthread_mutex_unlock(&fake.mutex);
    }
}

static void fake_start(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof(a);
    memset(fake.files, 0, sizeof(fake.files));
    fake.n_threads = 0;
    fake.left = 0;
    fake.failed[0] = '\0';
    fake.listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fake.listener >= 0);
    assert_int_equal(bind(fake.listener, (struct sockaddr *)&a, sizeof(a)), 0);
    assert_int_equal(listen(fake.listener, 64), 0);
    assert_int_equal(getsockname(fake.listener, (struct sockaddr *)&a, &n), 0);
    fake.port = ntohs(a.sin_port);
    assert_int_equal(pthread_create(&fake.acceptor, NULL, fake_accept, NULL), 0);
}

static void fake_stop(void)
{
    (void)shutdown(fake.listener, SHUT_RDWR);
    (void)pthread_join(fake.acceptor, NULL);
    (void)close(fake.listener);
    for (size_t i = 0; i < fake.n_threads; i++)
        (void)shutdown(fake.fds[i], SHUT_RDWR);
    for (size_t i = 0; i < fake.n_threads; i++) {
        (void)pthread_join(fake.threads[i], NULL);
        (void)close(fake.fds[i]);
    }
}

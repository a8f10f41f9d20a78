/*
 * A small HTTP server for tests of what an origin may do wrong: it answers each request with the next
 * scripted bytes, whatever they are, and keeps the heads it was sent. One thread per connection; all joined
 * at the end.
 */
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#define SCRIPT_CONNECTIONS 64
#define SCRIPT_HEADS       64
#define SCRIPT_HEAD_MAX    16384
#define SCRIPT_BODY_MAX    4096

struct script_step {
    const char *answer;      /* bytes sent */
    size_t pad;              /* then so many times 'x' */
    unsigned delay_ms;       /* before the answer */
    unsigned trickle_ms;     /* before each of those 'x', which then come one by one */
    size_t after;            /* before the answer: until so many steps were taken, or the connection goes */
    const atomic_bool *gate; /* before the answer: until it is set, or the connection goes; may be NULL */
    bool silent;             /* no answer: nothing is said until the client goes */
    bool holds;              /* after it: nothing more, and no end, until the client goes */
    bool close, reset;       /* afterwards; otherwise the connection is kept */
    bool ignore_body;        /* answer without waiting for the request's body, and close */
    bool mute;               /* no 100 Continue before the body */
};

struct script {
    int listener;
    int keeper; /* has the port, so that it is nobody else's once the listener is closed */
    uint16_t port;
    pthread_t acceptor, threads[SCRIPT_CONNECTIONS];
    int fds[SCRIPT_CONNECTIONS];
    pthread_mutex_t mutex; /* covers what follows */
    size_t n_threads, n_asked;
    const struct script_step *steps;
    size_t n_steps, at;
    char *heads[SCRIPT_HEADS];
    size_t n_heads;
    uint64_t body_bytes;
    char body[SCRIPT_BODY_MAX + 1]; /* what that of the last request with a Content-Length begins with */
    size_t body_n;
    bool stop;
};

struct script_connection {
    struct script *script;
    int fd;
};

static inline void script_sleep_ms(unsigned ms)
{
    usleep(ms * 1000);
}

static inline bool script_send(int fd, const char *p, size_t n)
{
    while (n > 0) {
        ssize_t r = send(fd, p, n, MSG_NOSIGNAL);
        if (r <= 0)
            return false;
        p += r;
        n -= (size_t)r;
    }
    return true;
}

/* The value of a header in a head, or NULL. */
static inline const char *script_header(const char *head, const char *name)
{
    size_t n = strlen(name);
    for (const char *p = strstr(head, "\r\n"); p && p[2]; p = strstr(p + 2, "\r\n"))
        if (strncasecmp(p + 2, name, n) == 0 && p[2 + n] == ':')
            return p + 2 + n + 1 + strspn(p + 2 + n + 1, " ");
    return NULL;
}

static inline void script_keep_body(struct script *s, bool first, const char *p, size_t n)
{
    pthread_mutex_lock(&s->mutex);
    s->body_n = first ? 0 : s->body_n;
    n = n < SCRIPT_BODY_MAX - s->body_n ? n : SCRIPT_BODY_MAX - s->body_n;
    memcpy(s->body + s->body_n, p, n);
    s->body_n += n;
    s->body[s->body_n] = '\0';
    pthread_mutex_unlock(&s->mutex);
}

/* Reads one head; bytes behind it are counted into *extra. False at the end of the connection. */
static inline bool script_read_head(struct script *s, int fd, char *head, size_t *extra)
{
    size_t n = 0;
    for (;;) {
        ssize_t r = recv(fd, head + n, SCRIPT_HEAD_MAX - 1 - n, 0);
        if (r <= 0)
            return false;
        n += (size_t)r;
        head[n] = '\0';
        char *end = strstr(head, "\r\n\r\n");
        if (end) {
            *extra = n - (size_t)(end + 4 - head);
            if (script_header(head, "content-length"))
                script_keep_body(s, /* first= */ true, end + 4, *extra);
            end[4] = '\0';
            return true;
        }
    }
}

static inline bool script_take_step(struct script *s, const char *head, struct script_step *ret)
{
    pthread_mutex_lock(&s->mutex);
    bool any = s->at < s->n_steps;
    if (any)
        *ret = s->steps[s->at++];
    if (s->n_heads < SCRIPT_HEADS)
        s->heads[s->n_heads++] = strdup(head);
    pthread_mutex_unlock(&s->mutex);
    return any;
}

static inline bool script_read_body(struct script *s, int fd, const char *head, size_t have, bool mute)
{
    const char *length = script_header(head, "content-length"), *expect = script_header(head, "expect");
    uint64_t left = length ? strtoull(length, NULL, 10) : 0;
    if (expect && left > have && !mute)
        (void)script_send(fd, "HTTP/1.1 100 Continue\r\n\r\n", 25);
    pthread_mutex_lock(&s->mutex);
    s->body_bytes += left;
    pthread_mutex_unlock(&s->mutex);
    left -= have < left ? have : left;
    static const size_t piece = 65536;
    char *p = malloc(piece);
    while (left > 0) {
        ssize_t r = recv(fd, p, left < piece ? left : piece, 0);
        if (r <= 0)
            break;
        script_keep_body(s, /* first= */ false, p, (size_t)r);
        left -= (uint64_t)r;
    }
    free(p);
    return left == 0;
}

static inline bool script_has_gone(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLRDHUP};
    return poll(&p, 1, 0) > 0;
}

static inline size_t script_steps_taken(struct script *s)
{
    pthread_mutex_lock(&s->mutex);
    size_t n = s->at;
    pthread_mutex_unlock(&s->mutex);
    return n;
}

static inline bool script_answer(struct script *s, int fd, const struct script_step *step)
{
    if (step->delay_ms)
        script_sleep_ms(step->delay_ms);
    while (step->silent || script_steps_taken(s) < step->after || (step->gate && !atomic_load(step->gate))) {
        if (script_has_gone(fd))
            return false;
        script_sleep_ms(5);
    }
    bool ok = script_send(fd, step->answer, strlen(step->answer));
    char pad[4096];
    memset(pad, 'x', sizeof(pad));
    for (size_t left = step->pad; left > 0 && ok;) {
        size_t n = step->trickle_ms ? 1 : left < sizeof(pad) ? left : sizeof(pad);
        script_sleep_ms(step->trickle_ms);
        ok = script_send(fd, pad, n);
        left -= n;
    }
    while (ok && step->holds && !script_has_gone(fd))
        script_sleep_ms(5);
    if (ok && step->ignore_body) { /* a close now could take the answer away from who is still sending */
        (void)shutdown(fd, SHUT_WR);
        while (recv(fd, pad, sizeof(pad), 0) > 0)
            ;
    }
    return ok && !step->close && !step->reset && !step->ignore_body;
}

static inline void script_count_asked(struct script *s)
{
    pthread_mutex_lock(&s->mutex);
    s->n_asked++;
    pthread_mutex_unlock(&s->mutex);
}

static inline void *script_serve(void *arg)
{
    struct script_connection *c = arg;
    struct script_step step;
    char *head = malloc(SCRIPT_HEAD_MAX);
    size_t extra = 0;
    for (size_t asked = 0; script_read_head(c->script, c->fd, head, &extra); asked++) {
        if (asked == 0)
            script_count_asked(c->script);
        bool any = script_take_step(c->script, head, &step);
        if (!any || (!step.ignore_body && !script_read_body(c->script, c->fd, head, extra, step.mute)))
            break;
        if (!script_answer(c->script, c->fd, &step)) {
            struct linger hard = {1, 0};
            if (step.reset)
                (void)setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
            break;
        }
    }
    free(head);
    pthread_mutex_lock(&c->script->mutex);
    for (size_t i = 0; i < c->script->n_threads; i++)
        if (c->script->fds[i] == c->fd)
            c->script->fds[i] = -1;
    (void)close(c->fd);
    pthread_mutex_unlock(&c->script->mutex);
    free(c);
    return NULL;
}

static inline void *script_accept(void *arg)
{
    struct script *s = arg;
    for (;;) {
        int fd = accept(s->listener, NULL, NULL);
        pthread_mutex_lock(&s->mutex);
        bool stop = s->stop || s->n_threads == SCRIPT_CONNECTIONS;
        if (fd >= 0 && !stop) {
            struct script_connection *c = malloc(sizeof(*c));
            *c = (struct script_connection){s, fd};
            s->fds[s->n_threads] = fd;
            if (pthread_create(&s->threads[s->n_threads], NULL, script_serve, c) != 0)
                abort();
            s->n_threads++;
        }
        pthread_mutex_unlock(&s->mutex);
        if (stop) {
            if (fd >= 0)
                (void)close(fd);
            return NULL;
        }
    }
}

/* Two of them may have one port, as long as the other does not listen there. */
static inline int script_socket(void)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) < 0)
        abort();
    return fd;
}

static inline void script_start(struct script *s, const struct script_step *steps, size_t n)
{
    memset(s, 0, sizeof(*s));
    s->steps = steps;
    s->n_steps = n;
    (void)pthread_mutex_init(&s->mutex, NULL);
    s->keeper = script_socket();
    s->listener = script_socket();
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(a);
    if (bind(s->keeper, (struct sockaddr *)&a, sizeof(a)) < 0 ||
        getsockname(s->keeper, (struct sockaddr *)&a, &len) < 0 ||
        bind(s->listener, (struct sockaddr *)&a, sizeof(a)) < 0 || listen(s->listener, 64) < 0)
        abort();
    s->port = ntohs(a.sin_port);
    if (pthread_create(&s->acceptor, NULL, script_accept, s) != 0)
        abort();
}

/* From here on connections are refused. */
static inline void script_deafen(struct script *s)
{
    pthread_mutex_lock(&s->mutex);
    bool deaf = s->stop;
    s->stop = true;
    pthread_mutex_unlock(&s->mutex);
    if (deaf)
        return;
    (void)shutdown(s->listener, SHUT_RDWR);
    (void)pthread_join(s->acceptor, NULL);
    (void)close(s->listener);
}

/* Connections so far on which something was asked: nobody knows who else on the machine tries a port. */
static inline size_t script_connections(struct script *s)
{
    pthread_mutex_lock(&s->mutex);
    size_t n = s->n_asked;
    pthread_mutex_unlock(&s->mutex);
    return n;
}

/* The head of request i; "" when there was none. */
static inline const char *script_head(struct script *s, size_t i)
{
    pthread_mutex_lock(&s->mutex);
    const char *head = i < s->n_heads ? s->heads[i] : "";
    pthread_mutex_unlock(&s->mutex);
    return head;
}

static inline void script_stop(struct script *s)
{
    script_deafen(s);
    pthread_mutex_lock(&s->mutex);
    for (size_t i = 0; i < s->n_threads; i++)
        if (s->fds[i] >= 0)
            (void)shutdown(s->fds[i], SHUT_RDWR);
    pthread_mutex_unlock(&s->mutex);
    for (size_t i = 0; i < s->n_threads; i++)
        (void)pthread_join(s->threads[i], NULL);
    (void)close(s->keeper);
    for (size_t i = 0; i < s->n_heads; i++)
        free(s->heads[i]);
    (void)pthread_mutex_destroy(&s->mutex);
}

/*
 * The session table (contract in session.h).
 *
 * Invariants:
 *  1. A session is in the table exactly while refs > 0, and its `user` is open exactly as long.
 *  2. `user` is closed without the lock: closing drops uncommitted writes and may wait for operations that
 * run.
 */
#include "server/session.h"

#include "base/hash.h"
#include "base/metrics.h"

#include <sys/socket.h>

void session_table_init(struct session_table *t,
                        void *(*open)(void *arg, struct id128 id, enum wire_via via, struct slice access_key),
                        void (*close)(void *user), void (*abandon)(void *user), void *arg)
{
    memset(t, 0, sizeof(*t));
    lock_init(&t->lock, LOCK_SERVER);
    t->open = open;
    t->close = close;
    t->abandon = abandon;
    t->arg = arg;
}

void session_table_fini(struct session_table *t)
{
    assert(t->n == 0);
    lock_fini(&t->lock);
}

static struct session **bucket_of(struct session_table *t, struct id128 id)
{
    return &t->buckets[hash_table(slice_of(id.b, sizeof(id.b))) % SESSION_BUCKETS];
}

static void publish_count(const struct session_table *t)
{
    metrics_set(metrics_series(METRIC_SESSIONS, NULL, NULL, NULL), (int64_t)t->n);
}

static void add_locked(struct session *s, int fd)
{
    s->fds = realloc(s->fds, (s->refs + 1) * sizeof(s->fds[0]));
    if (!s->fds)
        abort();
    s->fds[s->refs++] = fd;
}

static void remove_locked(struct session *s, int fd)
{
    unsigned i = 0;
    while (i < s->refs && s->fds[i] != fd)
        i++;
    assert(i < s->refs);
    s->fds[i] = s->fds[--s->refs];
}

static bool is_of(const struct session *s, const struct sock_peer *peer)
{
    return s->has_peer == (peer != NULL) && (!peer || sock_peer_eq(&s->peer, peer));
}

int session_join(struct session_table *t, struct id128 id, enum wire_via via, struct slice access_key,
                 struct sock_peer *peer, int fd, struct session **ret)
{
    LOCK_SCOPE(&t->lock);
    struct session **bucket = bucket_of(t, id);
    for (struct session *s = *bucket; s; s = s->next) {
        if (!id_eq(s->id, id))
            continue;
        if (s->via != via || !slice_eq_str(access_key, s->access_key) || !is_of(s, peer))
            return ERR_PROTOCOL;
        add_locked(s, fd);
        *ret = s;
        return 0;
    }
    void *user = t->open(t->arg, id, via, access_key);
    if (!user)
        return ERR_UNAUTHENTICATED;
    struct session *s = calloc(1, sizeof(*s));
    if (!s)
        abort();
    *s = (struct session){
        .next = *bucket, .id = id, .via = via, .access_key = slice_dup(access_key), .user = user};
    if (peer) {
        s->has_peer = true;
        s->peer = *peer;
        *peer = (struct sock_peer){0};
        if (t->identify)
            t->identify(user, &s->peer);
    }
    add_locked(s, fd);
    *bucket = s;
    t->n++;
    publish_count(t);
    *ret = s;
    return 0;
}

size_t session_end_siblings(struct session_table *t, const struct session *s)
{
    size_t n = 0;
    LOCK_SCOPE(&t->lock);
    for (size_t i = 0; i < SESSION_BUCKETS; i++) {
        for (const struct session *x = t->buckets[i]; x; x = x->next) {
            if (x == s || memcmp(x->id.b, s->id.b, WIRE_FAMILY_BYTES) != 0 ||
                strcmp(x->access_key, s->access_key) != 0 || !is_of(x, s->has_peer ? &s->peer : NULL))
                continue;
            for (unsigned k = 0; k < x->refs; k++)
                (void)shutdown(x->fds[k], SHUT_RD); /* whoever serves it reads the end, and closes it */
            if (t->abandon)
                t->abandon(x->user);
            n++;
        }
    }
    return n;
}

void session_leave(struct session_table *t, struct session *s, int fd)
{
    lock_take(&t->lock);
    remove_locked(s, fd);
    bool last = s->refs == 0;
    if (last) {
        struct session **at = bucket_of(t, s->id);
        while (*at != s)
            at = &(*at)->next;
        *at = s->next;
        t->n--;
        publish_count(t);
    }
    lock_drop(&t->lock);
    if (!last)
        return;
    t->close(s->user);
    sock_peer_fini(&s->peer);
    free(s->access_key);
    free(s->fds);
    free(s);
}

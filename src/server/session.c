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

void session_table_init(struct session_table *t,
                        void *(*open)(void *arg, enum wire_via via, struct slice access_key),
                        void (*close)(void *user), void *arg)
{
    memset(t, 0, sizeof(*t));
    lock_init(&t->lock, LOCK_SERVER);
    t->open = open;
    t->close = close;
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

int session_join(struct session_table *t, struct id128 id, enum wire_via via, struct slice access_key,
                 struct session **ret)
{
    LOCK_SCOPE(&t->lock);
    struct session **bucket = bucket_of(t, id);
    for (struct session *s = *bucket; s; s = s->next) {
        if (!id_eq(s->id, id))
            continue;
        if (s->via != via || !slice_eq_str(access_key, s->access_key))
            return ERR_PROTOCOL;
        s->refs++;
        *ret = s;
        return 0;
    }
    void *user = t->open(t->arg, via, access_key);
    if (!user)
        return ERR_UNAUTHENTICATED;
    struct session *s = calloc(1, sizeof(*s));
    if (!s)
        abort();
    *s = (struct session){
        .next = *bucket, .id = id, .via = via, .access_key = slice_dup(access_key), .refs = 1, .user = user};
    *bucket = s;
    t->n++;
    publish_count(t);
    *ret = s;
    return 0;
}

size_t session_siblings(struct session_table *t, const struct session *s)
{
    size_t n = 0;
    LOCK_SCOPE(&t->lock);
    for (size_t i = 0; i < SESSION_BUCKETS; i++)
        for (const struct session *x = t->buckets[i]; x; x = x->next)
            n += x != s && memcmp(x->id.b, s->id.b, WIRE_FAMILY_BYTES) == 0;
    return n;
}

void session_leave(struct session_table *t, struct session *s)
{
    lock_take(&t->lock);
    assert(s->refs > 0);
    bool last = --s->refs == 0;
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
    free(s->access_key);
    free(s);
}

/*
 * Services (contract in service.h).
 *
 * Invariant: a service is in its table as long as somebody has a reference, and one that is found there has
 * one: both change under the table's lock.
 */
#include "namespace/service.h"

#include "base/lock.h"

struct service_table {
    struct lock lock; /* covers the list, and ends of references */
    struct service *first;
};

/* ---- keys ---- */

static void add(struct buf *b, const char *text)
{
    (void)buf_str(b, text ? text : "");
    (void)buf_str(b, "\n"); /* in no URL and no name */
}

static bool is_set(const char *text)
{
    return text && text[0];
}

bool service_key(const char *url, const struct origin_options *o, struct buf *ret)
{
    struct slice all = slice_str(url);
    ssize_t colon = slice_find_slice(all, SLICE_LIT("://"));
    if (colon < 0)
        return false;
    struct slice scheme = slice_sub(all, 0, (size_t)colon), rest = slice_from(all, (size_t)colon + 3);
    struct slice host = slice_split(&rest, '/');
    if (slice_eq_str(scheme, "file") || slice_eq_str(scheme, "nfs"))
        return false;
    bool is_cloud = slice_eq_str(scheme, "s3") || slice_eq_str(scheme, "gs"),
         is_az = slice_eq_str(scheme, "az");
    (void)buf_append(ret, scheme.p, scheme.n);
    add(ret, "");
    if (!is_az && !(is_cloud && is_set(o->endpoint)))
        (void)buf_append(ret, host.p, host.n);
    add(ret, "");
    add(ret, o->endpoint);
    add(ret, o->account);
    add(ret, o->access_key);
    add(ret, o->profile);
    add(ret, o->user);
    add(ret, o->credentials_file);
    return true;
}

/* ---- the table ---- */

struct service_table *service_table_new(void)
{
    struct service_table *t = calloc(1, sizeof(*t));
    assert(t);
    lock_init(&t->lock, LOCK_LEAF);
    return t;
}

void service_table_free(struct service_table *t)
{
    if (!t)
        return;
    assert(!t->first);
    lock_fini(&t->lock);
    free(t);
}

struct service *service_find(struct service_table *t, struct slice key)
{
    LOCK_SCOPE(&t->lock);
    struct service *s = t->first;
    while (s && !slice_eq_str(key, s->key))
        s = s->next;
    if (!s) {
        s = calloc(1, sizeof(*s) + key.n + 1);
        assert(s);
        s->table = t;
        memcpy(s->key, key.p, key.n);
        s->next = t->first;
        t->first = s;
    }
    s->refs++;
    return s;
}

void service_unref(struct service *s)
{
    if (!s)
        return;
    LOCK_SCOPE(&s->table->lock);
    if (--s->refs > 0)
        return;
    struct service **at = &s->table->first;
    while (*at != s)
        at = &(*at)->next;
    *at = s->next;
    free(s);
}

bool service_is_slow(const struct service *s, uint64_t now_ms)
{
    uint64_t busy_ms = atomic_load(&s->busy_ms);
    return busy_ms > 0 && now_ms < busy_ms + SERVICE_SLOW_MS;
}

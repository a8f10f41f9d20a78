/*
 * An origin in memory that does what a test tells it. Objects have a size and a version; their bytes follow
 * from both (script_byte), so that any mixture of versions shows. Requests are counted, and a hook may make
 * each fail, wait or send wrong bytes.
 *
 * It stands under a struct upstream that script_upstream makes for a bucket of a real table.
 */
#pragma once

#include "base/quit.h"
#include "base/sys.h"
#include "namespace/upstream.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#define SCRIPT_OBJECTS_MAX 128

struct script_object {
    char key[64];
    uint64_t size;
    unsigned version; /* 0: not there */
};

enum script_op { SCRIPT_GET, SCRIPT_HEAD, SCRIPT_LIST, SCRIPT_PUT, SCRIPT_REMOVE, SCRIPT_OPS };

struct script;

/* What happens to one request. */
struct script_fate {
    int error;          /* given before anything is sent */
    uint64_t cut_after; /* of a GET: the connection breaks behind so many bytes; UINT64_MAX: it does not */
    int cut_error;      /* what is given then */
    unsigned version;   /* of a GET: answers as if the object had this version; 0: its own */
    bool empty_page;    /* of a LIST: nothing but a token to go on with */
    bool same_token;    /* ... which is the one that was asked with */
    bool always_token;  /* of a LIST: goes on with a token also when nothing comes any more */
    bool is_unsent;     /* of a PUT that fails: nothing of it left, and it says so */
};
/* Called without the lock; `nth` counts from 1. May block. */
typedef void (*script_fn)(struct script *s, enum script_op op, unsigned nth, const struct origin_get *g,
                          struct script_fate *fate);

struct script {
    struct origin origin;
    pthread_mutex_t lock;                             /* covers what follows */
    struct script_object objects[SCRIPT_OBJECTS_MAX]; /* in byte order */
    size_t n;
    unsigned count[SCRIPT_OPS];
    uint64_t bytes_sent;
    unsigned running, most_running;
    script_fn fn;
    void *arg;
};

static inline char script_byte(uint64_t i, unsigned version)
{
    return (char)(i * 31 + (i >> 12) * 7 + version * 101 + 1);
}

/* Bytes [offset, offset + n) of a version. Not watched by sanitizers: it is the bulk of what the tests do. */
__attribute__((no_sanitize("thread", "address", "undefined"), noinline, unused)) static void
script_bytes(char *p, uint64_t n, uint64_t offset, unsigned version)
{
    for (uint64_t i = 0; i < n; i++)
        p[i] = script_byte(offset + i, version);
}

static inline void script_etag(const struct script_object *x, unsigned version, char ret[64])
{
    (void)snprintf(ret, 64, "v%u-%llu", version ? version : x->version, (unsigned long long)x->size);
}

static inline struct script *script_of(struct origin *o)
{
    return (struct script *)o;
}

static inline struct script_object *script_find_locked(struct script *s, struct slice key)
{
    for (size_t i = 0; i < s->n; i++)
        if (slice_eq_str(key, s->objects[i].key) && s->objects[i].version > 0)
            return &s->objects[i];
    return NULL;
}

/* Makes or replaces an object; version 0 removes it. */
static inline void script_set(struct script *s, const char *key, uint64_t size, unsigned version)
{
    (void)pthread_mutex_lock(&s->lock);
    size_t i = 0;
    while (i < s->n && strcmp(s->objects[i].key, key) < 0)
        i++;
    if (i == s->n || strcmp(s->objects[i].key, key) != 0) {
        assert(s->n < SCRIPT_OBJECTS_MAX && strlen(key) < sizeof(s->objects[0].key));
        memmove(s->objects + i + 1, s->objects + i, (s->n - i) * sizeof(s->objects[0]));
        s->n++;
        (void)snprintf(s->objects[i].key, sizeof(s->objects[i].key), "%s", key);
    }
    s->objects[i].size = size;
    s->objects[i].version = version;
    (void)pthread_mutex_unlock(&s->lock);
}

static inline unsigned script_count(struct script *s, enum script_op op)
{
    (void)pthread_mutex_lock(&s->lock);
    unsigned n = s->count[op];
    (void)pthread_mutex_unlock(&s->lock);
    return n;
}

static inline struct script_fate script_begin(struct script *s, enum script_op op, const struct origin_get *g)
{
    (void)pthread_mutex_lock(&s->lock);
    unsigned nth = ++s->count[op];
    s->running++;
    s->most_running = MAX(s->most_running, s->running);
    script_fn fn = s->fn;
    (void)pthread_mutex_unlock(&s->lock);
    struct script_fate fate = {.cut_after = UINT64_MAX, .cut_error = ERR_ORIGIN_DOWN};
    if (fn)
        fn(s, op, nth, g, &fate);
    return fate;
}

static inline int script_end(struct script *s, int r, struct err *e)
{
    (void)pthread_mutex_lock(&s->lock);
    s->running--;
    (void)pthread_mutex_unlock(&s->lock);
    return r < 0 ? err_set(e, r, "scripted: %s", err_text(r)) : 0;
}

static inline int script_send(struct script *s, const struct origin_get *g, const struct origin_attr *attr,
                              unsigned version, const struct script_fate *fate, origin_sink_fn sink,
                              void *arg)
{
    uint64_t end = g->whole ? attr->size_bytes : MIN(attr->size_bytes, g->offset + g->n), sent = 0;
    char piece[16 * KIB];
    for (uint64_t at = g->offset; at < end;) {
        if (g->cancel && atomic_load(g->cancel))
            return -ECANCELED;
        uint64_t n = MIN(sizeof(piece), end - at);
        n = MIN(n, fate->cut_after - sent);
        script_bytes(piece, n, at, version);
        (void)pthread_mutex_lock(&s->lock);
        s->bytes_sent += n; /* before a reader can have them */
        (void)pthread_mutex_unlock(&s->lock);
        int r = n > 0 ? sink(arg, attr, piece, n) : 0;
        if (r < 0)
            return r;
        at += n;
        sent += n;
        if (sent == fate->cut_after)
            return fate->cut_error;
    }
    return sent > 0 ? 0 : sink(arg, attr, piece, 0);
}

static inline int script_get(struct origin *o, const struct origin_get *g, struct arena *a,
                             struct origin_attr *ret, origin_sink_fn sink, void *arg, struct err *e)
{
    struct script *s = script_of(o);
    struct script_fate fate = script_begin(s, g->attributes_only ? SCRIPT_HEAD : SCRIPT_GET, g);
    if (fate.error)
        return script_end(s, fate.error, e);
    if ((g->cancel && atomic_load(g->cancel)) || quit_is_now())
        return script_end(s, -ECANCELED, e);
    (void)pthread_mutex_lock(&s->lock);
    const struct script_object *x = script_find_locked(s, g->key);
    struct script_object copy = x ? *x : (struct script_object){0};
    (void)pthread_mutex_unlock(&s->lock);
    if (!x)
        return script_end(s, -ENOENT, e);
    unsigned version = fate.version ? fate.version : copy.version;
    char etag[64];
    script_etag(&copy, version, etag);
    if (g->if_match.n > 0 && !slice_eq_str(g->if_match, etag) && !fate.version)
        return script_end(s, ERR_PRECONDITION, e);
    struct origin_attr attr = {.size_bytes = copy.size,
                               .mtime_ns = version * 1000000000ull,
                               .etag = arena_dup(a, slice_str(etag)),
                               .content_type = SLICE_LIT("text/plain")};
    *ret = attr;
    if (g->attributes_only)
        return script_end(s, sink(arg, &attr, NULL, 0), e);
    if (g->offset > 0 && g->offset >= copy.size)
        return script_end(s, ERR_RANGE, e);
    return script_end(s, script_send(s, g, &attr, version, &fate, sink, arg), e);
}

static inline bool script_add(struct origin_page *page, const struct origin_list *l, struct slice key,
                              bool is_prefix, const struct script_object *x, struct arena *a)
{
    if (page->n > 0 && slice_eq(page->entries[page->n - 1].key, key))
        return true;
    struct slice after = slice_cmp(l->after, l->token) > 0 ? l->after : l->token;
    if (after.n > 0 && slice_cmp(key, after) <= 0)
        return true;
    if (page->n == MIN(l->max, 1000u)) {
        page->truncated = true;
        return false;
    }
    char etag[64];
    script_etag(x, 0, etag);
    page->entries[page->n++] = (struct origin_entry){
        .key = arena_dup(a, key),
        .is_prefix = is_prefix,
        .attr = {.size_bytes = is_prefix ? 0 : x->size,
                 .mtime_ns = x->version * 1000000000ull,
                 .etag = is_prefix ? SLICE_NULL : arena_dup(a, slice_str(etag))},
    };
    return true;
}

static inline int script_list(struct origin *o, const struct origin_list *l, struct arena *a,
                              struct origin_page *ret, struct err *e)
{
    struct script *s = script_of(o);
    struct script_fate fate = script_begin(s, SCRIPT_LIST, NULL);
    if (fate.error)
        return script_end(s, fate.error, e);
    struct origin_page page = {.entries = arena_alloc(a, MIN(l->max, 1000u) * sizeof(struct origin_entry))};
    struct slice from = slice_cmp(l->after, l->token) > 0 ? l->after : l->token;
    if (fate.empty_page) {
        const char *more = from.n == 0 ? " " : fate.same_token ? "" : "\1"; /* before every key behind it */
        *ret = (struct origin_page){.truncated = true,
                                    .next_token =
                                        slice_str(arena_printf(a, SLICE_FMT "%s", SLICE_ARG(from), more))};
        return script_end(s, 0, e);
    }
    (void)pthread_mutex_lock(&s->lock);
    for (size_t i = 0; i < s->n; i++) {
        const struct script_object *x = &s->objects[i];
        struct slice key = slice_str(x->key);
        if (x->version == 0 || !slice_starts(key, l->prefix))
            continue;
        ssize_t cut = l->delimiter ? slice_find(slice_from(key, l->prefix.n), l->delimiter) : -1;
        if (cut >= 0)
            key = slice_sub(key, 0, l->prefix.n + (size_t)cut + 1);
        if (!script_add(&page, l, key, cut >= 0, x, a))
            break;
    }
    (void)pthread_mutex_unlock(&s->lock);
    page.truncated |= fate.always_token && page.n > 0;
    if (page.truncated)
        page.next_token = page.entries[page.n - 1].key;
    *ret = page;
    return script_end(s, 0, e);
}

static inline int script_put(struct origin *o, const struct origin_put *p, const struct origin_body *body,
                             struct arena *a, struct origin_attr *ret, struct err *e)
{
    struct script *s = script_of(o);
    struct script_fate fate = script_begin(s, SCRIPT_PUT, NULL);
    if (p->reach && fate.is_unsent)
        atomic_store(p->reach, ORIGIN_REACH_NOTHING);
    if (fate.error)
        return script_end(s, fate.error, e);
    char key[64];
    (void)snprintf(key, sizeof(key), SLICE_FMT, SLICE_ARG(p->key));
    (void)pthread_mutex_lock(&s->lock);
    unsigned version = s->count[SCRIPT_PUT] + 1000;
    (void)pthread_mutex_unlock(&s->lock);
    script_set(s, key, body->size_bytes, version);
    struct script_object x = {.size = body->size_bytes, .version = version};
    char etag[64];
    script_etag(&x, 0, etag);
    *ret = (struct origin_attr){.size_bytes = x.size, .etag = arena_dup(a, slice_str(etag))};
    return script_end(s, 0, e);
}

static inline int script_remove(struct origin *o, struct slice key, struct slice if_match, struct err *e)
{
    (void)if_match;
    struct script *s = script_of(o);
    struct script_fate fate = script_begin(s, SCRIPT_REMOVE, NULL);
    if (fate.error)
        return script_end(s, fate.error, e);
    (void)pthread_mutex_lock(&s->lock);
    struct script_object *x = script_find_locked(s, key);
    if (x)
        x->version = 0;
    (void)pthread_mutex_unlock(&s->lock);
    return script_end(s, x ? 0 : -ENOENT, e);
}

static inline void script_close(struct origin *o)
{
    (void)o; /* the test frees it */
}

static const struct origin_ops script_ops = {.scheme = "script",
                                             .close = script_close,
                                             .get = script_get,
                                             .list = script_list,
                                             .put = script_put,
                                             .remove = script_remove};

/* Puts the scripted origin under an upstream that was opened on another. */
static inline void script_take_over(struct script *s, struct upstream *u)
{
    s->origin = (struct origin){.ops = &script_ops,
                                .capabilities = ORIGIN_CAN_RANGE | ORIGIN_CAN_IF_MATCH,
                                .bucket_name = slice_dup(slice_str(u->bucket->name)),
                                .url = slice_dup(SLICE_LIT("script://")),
                                .meter = u->origin->meter,
                                .meter_arg = u->origin->meter_arg};
    origin_close(u->origin);
    u->origin = &s->origin;
}

static inline struct script *script_new(void)
{
    struct script *s = calloc(1, sizeof(*s));
    assert(s);
    (void)pthread_mutex_init(&s->lock, NULL);
    return s;
}

static inline void script_free(struct script *s)
{
    (void)pthread_mutex_destroy(&s->lock);
    free(s);
}

/* An upstream of a new bucket "data" of these settings, over the script. *ret_table is to be closed after it.
 */
static inline struct upstream *script_upstream(struct script *s, struct kv *kv, const char *dir,
                                               const char *settings, struct bucket_table **ret_table)
{
    struct err e = {0};
    char text[1024];
    (void)snprintf(text, sizeof(text), "origin=file://%s\n%s", dir, settings);
    struct bucket *b = NULL;
    struct upstream *u = NULL;
    if (bucket_table_open(kv, NULL, ret_table, &e) < 0 ||
        bucket_create(*ret_table, SLICE_LIT("data"), slice_str(text), &b, &e) < 0 ||
        upstream_open(b, &u, &e) < 0)
        fail_msg("%s", e.text);
    bucket_unref(b);
    script_take_over(s, u);
    return u;
}

/*
 * The table of kinds; prefetch and evict.
 *
 * Prefetch reads behind everybody else (WIRE_BACKGROUND) and counts an object as done when the store says
 * that every byte of the version it opened is present and has a checksum; with --verify read, when the disk
 * has given back every byte, also of what was here before.
 */
#include "net/job_spec.h"

#include "jobs/kind.h"

#include <inttypes.h>

#define PIECE_BYTES     (8 * MIB)
#define READ_BACK_TRIES 3

/* Present bytes of the source object; -ENOENT when nothing of it is cached. */
static int present(struct kind_work *w, struct slice key, struct wire_cached *ret, struct err *e)
{
    struct wire_cached_req req = {.bucket = w->source_bucket, .prefix = key, .max = 1, .flags = WIRE_EXACT};
    struct wire_cached_rep rep;
    int r = object_cached(w->session, &req, w->arena, &rep, e);
    return r < 0 ? r : wire_cached_decode(&rep.entries, ret);
}

/* *ret_state: of the object once the last byte is here. */
static int fetch_all(struct kind_work *w, uint64_t handle, uint64_t size, uint32_t *ret_state, struct err *e)
{
    for (uint64_t at = 0; at < size;) {
        uint64_t n = MIN(PIECE_BYTES, size - at);
        int r = w->move(w->arg, n);
        for (uint64_t end = at + n; r == 0 && at < end;) {
            struct wire_fetch_req req = {
                .handle = handle, .offset = at, .n = end - at, .flags = WIRE_BACKGROUND};
            struct wire_fetch_rep rep;
            arena_clear(w->arena);
            r = object_fetch(w->session, &req, w->arena, &rep, e);
            uint64_t got = r < 0 ? 0 : MAX(rep.available, (uint64_t)rep.data.n);
            *ret_state = r < 0 ? *ret_state : rep.state;
            if (r == 0 && got == 0)
                r = err_set(e, ERR_ORIGIN_SHORT, "ended at byte %" PRIu64 " of %" PRIu64, at, size);
            at += got;
        }
        if (r < 0)
            return r;
    }
    return 0;
}

/* Whether the disk gives back every byte that is said to be here: what does not match its checksum is
 * dropped, and is fetched by nobody but the caller. Past the page cache, which has what was written last. */
static int read_back(struct kind_work *w, uint64_t handle, uint64_t size, bool *ret_whole, struct err *e)
{
    struct wire_fetch_req doubt = {.handle = handle, .n = size, .flags = WIRE_UNREADABLE};
    struct wire_fetch_rep rep;
    int r = size > 0 ? object_fetch(w->session, &doubt, w->arena, &rep, e) : 0;
    bool whole = true;
    for (uint64_t at = 0; r == 0 && whole && at < size;) {
        struct wire_fetch_req req = {.handle = handle,
                                     .offset = at,
                                     .n = MIN(PIECE_BYTES, size - at),
                                     .flags = WIRE_NO_WAIT | WIRE_BACKGROUND};
        arena_clear(w->arena);
        r = w->move(w->arg, 0); /* the job may be to stop */
        if (r == 0)
            r = object_fetch(w->session, &req, w->arena, &rep, e);
        uint64_t got = r < 0 ? 0 : MAX(rep.available, (uint64_t)rep.data.n);
        whole = got > 0;
        at += got;
    }
    *ret_whole = whole;
    return r;
}

static int no_room(uint64_t size, struct err *e)
{
    return err_set(e, ERR_NOT_ADMITTED, "the cache has no room for its %" PRIu64 " bytes", size);
}

/* Fetches it and sees that all of it is here and believed. Where the handle does not say (verify=read) the
 * index does, which is written behind what is done and has to be waited for. */
static int fetch_object(struct kind_work *w, struct slice key, const struct wire_open_rep *o, struct err *e)
{
    uint64_t size = o->attr.size_bytes;
    uint32_t state = o->state;
    struct wire_cached c = {0};
    int r = fetch_all(w, o->handle, size, &state, e);
    arena_clear(w->arena);
    if (r < 0 || state == WIRE_COMPLETE)
        return r < 0 ? r : KIND_WORKED;
    r = present(w, key, &c, e);
    if (r == -ENOENT)
        return no_room(size, e);
    if (r == 0 && (c.size_bytes != size || c.present_bytes != size))
        r = err_set(e, ERR_NOT_ADMITTED, "%" PRIu64 " of %" PRIu64 " bytes are in the cache", c.present_bytes,
                    size);
    return r < 0 ? r : KIND_WORKED;
}

static int fill_object(struct kind_work *w, struct slice key, const struct wire_open_rep *o, struct err *e)
{
    uint64_t size = o->attr.size_bytes;
    bool is_here = o->state == WIRE_COMPLETE && o->present == size;
    struct wire_cached c = {0};
    w->bytes = size;
    int r = o->state == WIRE_UNCACHED ? present(w, key, &c, e) : 0;
    if (r < 0)
        return r == -ENOENT ? no_room(size, e) : r;
    if (o->state == WIRE_UNCACHED)
        is_here = c.size_bytes == size && c.present_bytes == size;
    int result = is_here ? KIND_SKIPPED : fetch_object(w, key, o, e);
    bool whole = w->spec->verify != JOB_VERIFY_READ;
    for (int i = 0; result >= 0 && !whole; i++) {
        if (i == READ_BACK_TRIES)
            return err_set(e, ERR_CORRUPT, "the disk does not give back what was written to it");
        r = read_back(w, o->handle, size, &whole, e);
        result = r < 0 ? r : whole ? result : fetch_object(w, key, o, e);
    }
    return result;
}

static int prefetch(struct kind_work *w, const struct kind_object *o, struct err *e)
{
    if (w->spec->metadata_only) {
        struct wire_stat_req req = {.bucket = w->source_bucket, .key = o->key};
        struct wire_stat_rep rep;
        return object_stat(w->session, &req, w->arena, &rep, e);
    }
    struct wire_open_req open = {.bucket = w->source_bucket, .key = o->key, .via = WIRE_VIA_API};
    struct wire_open_rep rep;
    int r = object_open(w->session, &open, w->arena, &rep, e);
    if (r < 0)
        return r;
    r = fill_object(w, o->key, &rep, e);
    struct wire_close_req close = {.handle = rep.handle};
    struct wire_close_rep closed;
    (void)object_close(w->session, &close, w->arena, &closed, NULL);
    return r;
}

static int evict(struct kind_work *w, const struct kind_object *o, struct err *e)
{
    struct wire_evict_req req = {.bucket = w->source_bucket, .key = o->key};
    struct wire_evict_rep rep;
    struct wire_cached c = {0};
    int was = w->is_named ? present(w, o->key, &c, e) : 0; /* else the walk is over what is cached */
    if (was < 0 && was != -ENOENT)
        return was;
    if (e)
        *e = (struct err){0};
    w->bytes = w->is_named ? c.present_bytes : o->counted_bytes;
    int r = object_evict(w->session, &req, w->arena, &rep, e);
    return r < 0 || was == 0 ? r : KIND_SKIPPED;
}

static int validate(struct kind_work *w, const struct kind_object *o, struct err *e)
{
    struct wire_confirm_req req = {.bucket = w->source_bucket, .key = o->key};
    struct wire_confirm_rep rep;
    w->bytes = o->counted_bytes;
    int r = object_confirm(w->session, &req, w->arena, &rep, e);
    if (r < 0)
        return r;
    return rep.state == WIRE_CONFIRM_CHANGED || rep.state == WIRE_CONFIRM_GONE ? KIND_WORKED : KIND_SKIPPED;
}

static int ask_cached(struct object_session *session, struct slice bucket, struct slice key, uint32_t flags,
                      struct err *e)
{
    _cleanup_(arena_freep) struct arena *a = arena_new(MIB);
    struct wire_cached_req req = {.bucket = bucket, .prefix = key, .max = 1, .flags = flags};
    struct wire_cached_rep rep;
    return object_cached(session, &req, a, &rep, e);
}

/* The store writes its index behind what it does; a listing of it waits until that is written. Where it
 * cannot be, what was dropped does not count after the next start (object_note_forgetful). */
static int keep_dropped(struct object_session *session, struct slice bucket, struct err *e)
{
    return ask_cached(session, bucket, SLICE_NULL, /* flags= */ 0, e);
}

static int keep_cached(struct object_session *session, struct slice bucket, struct err *e)
{
    return ask_cached(session, bucket, SLICE_NULL, WIRE_FRESH, e);
}

static int kept_cached(struct object_session *session, struct slice bucket, struct slice key, struct err *e)
{
    return ask_cached(session, bucket, key, WIRE_EXACT | WIRE_FRESH, e);
}

/* X(name, doc, over, source, target, has_manifest, work, keep, sweep) */
#define KINDS(X)                                                                                             \
    X(prefetch, "fetch objects into the cache", ORIGIN, BUCKET, NOWHERE, false, prefetch, keep_cached, NULL) \
    X(evict, "drop cached data", HERE, BUCKET, NOWHERE, false, evict, keep_dropped, NULL)                    \
    X(validate, "compare what is cached with the origin", CACHE, BUCKET, NOWHERE, false, validate,           \
      keep_dropped, NULL)                                                                                    \
    X(copy, "copy objects to another place", ORIGIN, EITHER, EITHER, false, kind_copy, NULL, NULL)           \
    X(sync, "make the target as the source", ORIGIN, EITHER, EITHER, false, kind_sync, NULL, kind_sweep)     \
    X(export, "copy objects to an origin", ORIGIN, BUCKET, URL, true, kind_export, NULL, NULL)               \
    X(import, "copy objects from an origin", ORIGIN, URL, BUCKET, false, kind_import, NULL, NULL)

#define KEPT_prefetch kept_cached
#define KEPT_evict    NULL
#define KEPT_validate NULL
#define KEPT_copy     NULL
#define KEPT_sync     NULL
#define KEPT_export   NULL
#define KEPT_import   NULL

#define DIR_export   kind_export_dir
#define DIR_import   kind_import_dir
#define DIR_prefetch NULL
#define DIR_evict    NULL
#define DIR_validate NULL
#define DIR_copy     NULL
#define DIR_sync     NULL

static const struct kind kinds[] = {
#define X(name, doc, over, source, target, manifest, work, keep, sweep)                                      \
    {#name, doc,  KIND_OVER_##over, KIND_##source, KIND_##target, manifest,                                  \
     work,  keep, KEPT_##name,      DIR_##name,    sweep},
    KINDS(X)
#undef X
};

const struct kind *kind_find(struct slice name)
{
    for (size_t i = 0; i < ARRAY_SIZE(kinds); i++)
        if (slice_eq_str(name, kinds[i].name))
            return &kinds[i];
    return NULL;
}

const char *kind_names(void)
{
#define X(name, ...) ", " #name
    return &(KINDS(X))[2];
#undef X
}

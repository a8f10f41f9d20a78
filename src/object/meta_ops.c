/*
 * SET_META: lines of metadata of an object of a mirror bucket that is there already. TAGS, SET_TAGS: its
 * tags, which are nowhere but at the origin.
 *
 * The lines are laid over what the origin has at this moment, and written on the condition that the object
 * still is that version: no bytes travel, and nobody's new version gets an old one's lines. An ETag does not
 * tell of metadata, so that of two who change the same line at the same moment the later wins; lines that
 * only one of them changes can be lost only when both ask before either writes.
 *
 * Invariants:
 *  1. What is cached of the version stays cached, under the ETag that the origin gave it; mounts are told
 * before the change is acknowledged.
 *  2. After a failure nothing that is remembered of the attributes is believed: it may have happened.
 *
 * Who knows which version he means says so (if_match), and nothing happens to another one.
 *
 * A mount that asks again because the node was killed (intent.h) is answered by what the object has: the
 * change that was made may have given it another ETag than the one that is meant.
 *
 * Failure modes: the origin's errors; ERR_NOT_IMPLEMENTED where it cannot; -EBUSY when the object was another
 * one each time, ERR_PRECONDITION when it is not the one that was meant.
 */
#include "object/back_internal.h"
#include "object/object_internal.h"

#include "base/sys.h"
#include "net/posix_meta.h"

#define TRIES          3
#define ENTRY_KEY_MAX  (ORIGIN_KEY_MAX_BYTES + 8)
#define TAGS_MAX_BYTES (16 * KIB)

struct meta_change {
    struct object_service *service;
    struct upstream *upstream;
    struct slice key, set, if_match;
    struct intent *intent; /* NULL: nobody asks again */
    struct arena *arena;
};

/* ---- what is remembered ---- */

/* Gives the bytes that are cached of the version before the attributes of now; for good, because those of
 * before may be of the same version and would be believed after kill -9. */
static void keep_cached(struct meta_change *c, struct slice before_etag, const struct attr *now)
{
    const struct bucket *b = c->upstream->bucket;
    _cleanup_buf_ struct buf k = BUF_INIT(ENTRY_KEY_MAX), blob = BUF_INIT(ATTR_BLOB_MAX_BYTES),
                             next = BUF_INIT(ATTR_BLOB_MAX_BYTES);
    _cleanup_(extent_unrefp) struct extent *x = NULL;
    struct attr known;
    object_store_key(b, c->key, &k);
    bool is_it = store_find(c->service->config.store, buf_view(&k), &x) == 0 && extent_attr(x, &blob) == 0 &&
                 attr_decode(buf_view(&blob), &known) == 0 && slice_eq(known.etag, before_etag) &&
                 known.size_bytes == now->size_bytes;
    bool kept = is_it && object_encode_attr(c->service, b, c->key, now, &next) == 0 &&
                extent_set_attr(x, buf_view(&next)) == 0 && extent_record_attr(x) == 0;
    if (x && !kept)
        store_remove_extent(c->service->config.store, x);
    object_note_forgetful(c->service);
    (void)watch_note(c->service, buf_view(&k));
}

/* seen: the generation that this change made before it asked the origin. */
static void changed(struct meta_change *c, struct slice before_etag, uint64_t seen, const struct attr *now,
                    struct object_change *change)
{
    struct object_service *s = c->service;
    struct opening opening = {.bucket = c->upstream->bucket, .key = c->key};
    object_opening_enter(s, &opening);
    bool current = object_making_begin(s, &opening, seen);
    if (current) {
        object_change_end_known(s, change);
        seen = mirror_changed(s->mirror, opening.bucket, opening.key);
        keep_cached(c, before_etag, now);
        mirror_learn(s->mirror, opening.bucket, opening.key, now, seen);
        object_making_end(s, &opening);
        watch_changed(s, opening.bucket, opening.key);
    }
    object_opening_leave(s, &opening);
    if (!current)
        object_change_end(s, change);
}

/* ---- files ---- */

static int merged(struct meta_change *c, struct slice meta, struct slice *ret, struct err *e)
{
    _cleanup_buf_ struct buf b = BUF_INIT(ORIGIN_META_MAX_BYTES);
    if (posix_meta_merge(meta, c->set, &b) < 0)
        return err_set(e, -E2BIG, "the object has too much metadata");
    *ret = arena_dup(c->arena, buf_view(&b));
    return 0;
}

static struct extent *cached(struct meta_change *c, struct arena *a, struct attr *ret)
{
    _cleanup_buf_ struct buf k = BUF_INIT(ENTRY_KEY_MAX);
    struct extent *x = NULL;
    object_store_key(c->upstream->bucket, c->key, &k);
    if (store_find(c->service->config.store, buf_view(&k), &x) < 0 ||
        object_entry_attr(c->service, x, a, ret) < 0)
        extent_unref(TAKE_PTR(x));
    return x;
}

/* A kill that comes before the answer would leave attributes of before that are believed. */
static void begin(struct meta_change *c, struct object_change *ret)
{
    _cleanup_(arena_freep) struct arena *a = arena_new(4 * ATTR_BLOB_MAX_BYTES);
    struct attr known;
    object_change_begin_kept(c->service, ret, c->upstream->bucket, c->key);
    _cleanup_(extent_unrefp) struct extent *x = cached(c, a, &known);
    if (x)
        object_doubt_entry(c->service, x, &known);
}

/* It may have happened: also what the cached entry says of itself is asked for again. */
static void doubt(struct meta_change *c)
{
    struct object_service *s = c->service;
    const struct bucket *b = c->upstream->bucket;
    _cleanup_(arena_freep) struct arena *a = arena_new(4 * ATTR_BLOB_MAX_BYTES);
    struct attr known;
    _cleanup_(extent_unrefp) struct extent *x = cached(c, a, &known);
    if (x)
        object_doubt_key(s, b, c->key, x, &known);
    else
        (void)mirror_changed(s->mirror, b, c->key);
    watch_changed(s, b, c->key); /* also of what is not cached */
}

static int note(struct meta_change *c, struct err *e)
{
    const struct intent_record now = {.state = INTENT_BEGUN};
    return intent_note(c->intent, &now, KV_VISIBLE, e);
}

static int change_once(struct meta_change *c, const struct attr *there, struct attr *ret, struct err *e)
{
    struct origin_put p = {.key = c->key, .content_type = there->content_type, .if_match = there->etag};
    struct origin_attr answer;
    int r = merged(c, there->meta, &p.meta, e);
    if (r == 0 && there->etag.n == 0)
        r = err_set(e, ERR_NOT_IMPLEMENTED, "the origin does not say which version it has");
    if (r < 0)
        return r;
    r = note(c, e);
    if (r < 0)
        return r;
    struct object_change change;
    begin(c, &change);
    uint64_t seen = mirror_changed(c->service->mirror, c->upstream->bucket, c->key),
             asked_ns = sys->real_ns();
    r = upstream_set_meta(c->upstream, &p, there->size_bytes, c->arena, &answer, e);
    if (r < 0) {
        doubt(c);
        object_change_end_known(c->service, &change);
        return r;
    }
    *ret = attr_of_origin(&answer, /* has_meta= */ true, asked_ns);
    ret->size_bytes = there->size_bytes;
    ret->content_type = there->content_type;
    ret->meta = p.meta;
    changed(c, there->etag, seen, ret, &change);
    return 0;
}

/* Whether it is the version that was meant, which may have gone to the origin since. */
static int check_version(const struct meta_change *c, const struct attr *there, struct err *e)
{
    const struct bucket *b = c->upstream->bucket;
    if (c->if_match.n == 0 || slice_eq(c->if_match, there->etag) ||
        back_is_sent_as(c->service->back, b->id, c->key, c->if_match, there->etag))
        return 0;
    return err_set(e, ERR_PRECONDITION, "the object is another one now");
}

/* there: what the origin has, as it said just now. */
static int change_file(struct meta_change *c, struct attr *there, struct attr *ret, struct err *e)
{
    int r = check_version(c, there, e);
    if (r < 0)
        return r;
    r = change_once(c, there, ret, e);
    for (int i = 1; r == ERR_PRECONDITION && i < TRIES; i++) {
        r = mirror_stat(c->service->mirror, c->upstream, c->key, /* posix= */ false, /* full= */ true,
                        /* fresh= */ true, c->arena, there, e);
        if (r == 0 && check_version(c, there, e) < 0)
            return ERR_PRECONDITION;
        r = r < 0 ? r : change_once(c, there, ret, e);
    }
    return r == ERR_PRECONDITION ? err_set(e, -EBUSY, "the object was written to meanwhile, %d times", TRIES)
                                 : r;
}

/* ---- directories ---- */

static ssize_t no_bytes(void *arg, void *p, size_t n, uint64_t offset)
{
    (void)arg, (void)p, (void)n, (void)offset;
    return 0;
}

static int make_marker(struct meta_change *c, struct attr *ret, struct err *e)
{
    struct origin_put p = {.key = c->key, .meta = c->set};
    struct origin_body body = {.read = no_bytes};
    struct origin_attr answer;
    struct object_change change;
    object_change_begin(c->service, &change, c->upstream->bucket, c->key);
    int r = note(c, e);
    r = r < 0 ? r : upstream_put(c->upstream, &p, &body, c->arena, &answer, e);
    object_change_end(c->service, &change);
    if (r == 0)
        *ret = attr_of_origin(&answer, /* has_meta= */ true, sys->real_ns());
    if (r == 0)
        ret->meta = c->set;
    return r;
}

/* What a directory has is its marker's. */
static int change_directory(struct meta_change *c, struct attr *ret, struct err *e)
{
    struct slice dir = c->key;
    struct attr marker;
    c->key = slice_str(arena_printf(c->arena, SLICE_FMT "/", SLICE_ARG(dir)));
    int r = mirror_stat(c->service->mirror, c->upstream, c->key, /* posix= */ false, /* full= */ true,
                        /* fresh= */ true, c->arena, &marker, e);
    if (r == -ENOENT)
        r = make_marker(c, ret, e);
    else if (r == 0)
        r = change_file(c, &marker, ret, e);
    uint64_t seen = mirror_changed(c->service->mirror, c->upstream->bucket, dir);
    watch_changed(c->service, c->upstream->bucket, dir);
    if (r < 0)
        return r;
    *ret = (struct attr){.is_directory = true,
                         .has_meta = true,
                         .meta = ret->meta,
                         .mtime_ns = ret->mtime_ns,
                         .confirmed_ns = ret->confirmed_ns};
    mirror_learn(c->service->mirror, c->upstream->bucket, dir, ret, seen);
    return 0;
}

/* ---- the operation ---- */

/* Whether it has the lines that were asked for before. */
static bool was_changed(const struct meta_change *c, const struct attr *there)
{
    struct posix_meta has, set;
    if (intent_state(c->intent) == INTENT_NEW)
        return false;
    posix_meta_decode(there->meta, there->is_directory, &has);
    posix_meta_decode(c->set, there->is_directory, &set);
    return set.has != 0 && (has.has & set.has) == set.has &&
           (!(set.has & POSIX_HAS_MODE) || has.mode == set.mode) &&
           (!(set.has & POSIX_HAS_UID) || has.uid == set.uid) &&
           (!(set.has & POSIX_HAS_GID) || has.gid == set.gid) &&
           (!(set.has & POSIX_HAS_MTIME) || has.mtime_ns == set.mtime_ns);
}

static int set_meta(struct meta_change *c, const struct wire_set_meta_req *q, struct attr *ret, struct err *e)
{
    struct attr there;
    int r = mirror_stat(c->service->mirror, c->upstream, c->key, q->flags & WIRE_POSIX, /* full= */ true,
                        /* fresh= */ true, c->arena, &there, e);
    if (r < 0)
        return r;
    if (q->kind != 0 && q->kind != (there.is_directory ? WIRE_DIRECTORY : WIRE_FILE))
        return err_set(e, ERR_PRECONDITION, "is a %s now", there.is_directory ? "directory" : "file");
    if (intent_state(c->intent) == INTENT_DONE || was_changed(c, &there)) {
        doubt(c); /* who asked for it was killed before the cached entry heard of it */
        *ret = there;
        return 0;
    }
    return there.is_directory ? change_directory(c, ret, e) : change_file(c, &there, ret, e);
}

int op_set_meta(struct object_session *ses, const struct wire_set_meta_req *req, struct arena *a,
                struct wire_set_meta_rep *rep, struct err *e)
{
    int r = object_check_key(req->key, e);
    if (r == 0)
        r = object_check_meta(req->meta, e);
    if (r < 0)
        return r;
    _cleanup_(upstream_unrefp) struct upstream *u = NULL;
    r = object_upstream(ses->service, req->bucket, &u, e);
    if (r < 0)
        return r;
    struct attr attr;
    struct meta_change c = {.service = ses->service,
                            .upstream = u,
                            .key = req->key,
                            .set = req->meta,
                            .if_match = req->if_match,
                            .arena = a};
    struct intent_record what = {.kind = INTENT_META, .bucket_id = u->bucket->id, .key = req->key};
    c.intent = intent_begin(ses, req->request_id, &what);
    r = set_meta(&c, req, &attr, e);
    intent_end(c.intent, r);
    if (r < 0)
        return err_prefix(e, r, "metadata of %s/" SLICE_FMT, u->bucket->name, SLICE_ARG(req->key));
    attr_to_wire(&attr, a, &rep->attr);
    return 0;
}

/* ---- tags ---- */

/* The origin that has the tags of the key. */
static int find_tags(struct object_session *ses, struct slice bucket, struct slice key, struct upstream **ret,
                     struct err *e)
{
    int r = object_check_key(key, e);
    if (r == 0)
        r = object_upstream(ses->service, bucket, ret, e);
    if (r < 0)
        return r;
    if (!((*ret)->origin->capabilities & ORIGIN_CAN_TAGS))
        return err_set(e, ERR_NOT_IMPLEMENTED, "the origin of bucket %s keeps no tags", (*ret)->bucket->name);
    if (back_has(ses->service->back, (*ret)->bucket->id, key))
        return err_set(e, ERR_NOT_IMPLEMENTED, "it is not in the origin yet");
    return 0;
}

/* The service's own refusal, which is not ours: nobody keeps them elsewhere because of it. */
static int tags_result(int r, struct slice bucket, struct slice key, struct err *e)
{
    if (r == ERR_NOT_IMPLEMENTED)
        r = err_prefix(e, -EOPNOTSUPP, "with origin.tags=false tags are kept as metadata");
    return r < 0 ? err_prefix(e, r, "tags of " SLICE_FMT "/" SLICE_FMT, SLICE_ARG(bucket), SLICE_ARG(key))
                 : 0;
}

int op_tags(struct object_session *ses, const struct wire_tags_req *req, struct arena *a,
            struct wire_tags_rep *rep, struct err *e)
{
    _cleanup_(upstream_unrefp) struct upstream *u = NULL;
    _cleanup_buf_ struct buf tags = BUF_INIT(TAGS_MAX_BYTES);
    int r = find_tags(ses, req->bucket, req->key, &u, e);
    if (r == 0)
        r = tags_result(upstream_tags(u, req->key, &tags, e), req->bucket, req->key, e);
    if (r < 0)
        return r;
    rep->tags = arena_dup(a, buf_view(&tags));
    return 0;
}

int op_set_tags(struct object_session *ses, const struct wire_set_tags_req *req, struct arena *a,
                struct wire_set_tags_rep *rep, struct err *e)
{
    (void)a, (void)rep;
    _cleanup_(upstream_unrefp) struct upstream *u = NULL;
    struct meta_change c = {.service = ses->service, .key = req->key};
    int r = req->tags.n > TAGS_MAX_BYTES ? err_set(e, -E2BIG, "tags of %zu bytes", req->tags.n) : 0;
    if (r == 0)
        r = find_tags(ses, req->bucket, req->key, &u, e);
    if (r == 0) {
        struct object_change change;
        c.upstream = u;
        begin(&c, &change);
        r = tags_result(upstream_set_tags(u, req->key, req->tags, e), req->bucket, req->key, e);
        doubt(&c);
        object_change_end_known(c.service, &change);
    }
    return r;
}

/*
 * Freshness on demand: CONFIRM asks the origin about a cached object at once; EVENTS takes its notifications.
 *
 * An event says that a key changed, not what is there now: what is cached of it is forgotten, unless it is
 * the very version that the event tells of, as after a write of our own; an event that comes before its own
 * writer was answered is remembered for him (struct object_told). Where that was written at another
 * time than we know of, as after a copy onto itself, its bytes stay and its attributes are asked for again.
 */
#include "object/object_internal.h"

#include "base/sys.h"
#include "base/text.h"

#include <jansson.h>
#include <openssl/crypto.h>

#define ENTRY_KEY_MAX (ORIGIN_KEY_MAX_BYTES + 8)
#define EVENT_ARENA   (64 * KIB)
#define EVENT_TRIES   4             /* while others change the key */
#define SAME_WRITE_NS 2000000000ull /* times of answers are rounded to seconds */

/* The cached entry of a key and its attributes, in the arena; a reference, or NULL. */
static struct extent *cached(struct object_service *s, const struct bucket *b, struct slice key,
                             struct arena *a, struct attr *ret)
{
    _cleanup_buf_ struct buf k = BUF_INIT(ENTRY_KEY_MAX);
    _cleanup_(extent_unrefp) struct extent *x = NULL;
    object_store_key(b, key, &k);
    if (store_find(s->config.store, buf_view(&k), &x) < 0 || object_entry_attr(s, x, a, ret) < 0)
        return NULL;
    return TAKE_PTR(x);
}

/* ---- CONFIRM ---- */

static void confirmed(struct object_service *s, const struct bucket *b, struct slice key, struct extent *x,
                      struct attr *attr, uint64_t seen)
{
    _cleanup_buf_ struct buf blob = BUF_INIT(ATTR_BLOB_MAX_BYTES);
    attr->confirmed_ns = sys->real_ns();
    mirror_learn(s->mirror, b, key, attr, seen);
    if (object_encode_attr(s, b, key, attr, &blob) == 0)
        (void)extent_set_attr(x, buf_view(&blob));
}

/* With the key's opening held: what is confirmed here is not older than what an open hears of it. */
static int ask(struct object_service *s, struct upstream *u, struct opening *o, struct arena *a,
               uint32_t *ret_state, struct err *e)
{
    struct attr known;
    struct origin_attr now;
    uint64_t seen = mirror_generation(s->mirror, u->bucket, o->key);
    _cleanup_(extent_unrefp) struct extent *x = cached(s, u->bucket, o->key, a, &known);
    *ret_state = WIRE_CONFIRM_NOT_CACHED;
    if (!x)
        return 0;
    int r = upstream_head(u, o->key, known.etag, a, &now, e);
    bool same = r == 0 && object_is_same_version(&now, &known);
    if (r < 0 && r != -ENOENT)
        return r;
    if (same)
        attr_take_meta(&known, &now, a);
    if (same && object_making_begin(s, o, seen)) {
        confirmed(s, u->bucket, o->key, x, &known, seen);
        object_making_end(s, o);
    }
    *ret_state = same ? WIRE_CONFIRM_SAME : r == -ENOENT ? WIRE_CONFIRM_GONE : WIRE_CONFIRM_CHANGED;
    return 0;
}

static int confirm(struct object_service *s, struct upstream *u, struct slice key, struct arena *a,
                   uint32_t *ret_state, struct err *e)
{
    struct opening o = {.bucket = u->bucket, .key = key};
    int r = object_opening_try(s, &o, e);
    if (r < 0)
        return r;
    r = ask(s, u, &o, a, ret_state, e);
    object_opening_leave(s, &o);
    if (r == 0 && (*ret_state == WIRE_CONFIRM_GONE || *ret_state == WIRE_CONFIRM_CHANGED))
        (void)object_forget_key(s, u->bucket, key);
    if (r == 0 && *ret_state == WIRE_CONFIRM_GONE)
        watch_gone(s, /* by= */ NULL, u->bucket, key);
    return r;
}

int op_confirm(struct object_session *ses, const struct wire_confirm_req *req, struct arena *a,
               struct wire_confirm_rep *rep, struct err *e)
{
    struct object_service *s = ses->service;
    _cleanup_(upstream_unrefp) struct upstream *u = NULL;
    int r = object_upstream(s, req->bucket, &u, e);
    if (r < 0)
        return r;
    if (req->key.n == 0) { /* everything that is remembered without data */
        mirror_forget_bucket(s->mirror, u->bucket);
        watch_end_bucket(s, u->bucket->id);
        rep->state = WIRE_CONFIRM_NOT_CACHED;
        return 0;
    }
    r = object_check_key(req->key, e);
    if (r == 0)
        r = confirm(s, u, req->key, a, &rep->state, e);
    return r < 0 ? err_prefix(e, r, "%s/" SLICE_FMT, u->bucket->name, SLICE_ARG(req->key)) : 0;
}

/* ---- EVENTS ---- */

/* What of an origin's URL names its bucket, and the folder that keys of ours lie below ("" or ends with '/').
 * Kinds without a bucket have neither. */
static void origin_names(const char *url, struct slice *ret_name, struct slice *ret_prefix)
{
    struct slice rest = slice_str(url), scheme = rest;
    *ret_name = *ret_prefix = SLICE_NULL;
    ssize_t colon = slice_find_slice(rest, SLICE_LIT("://"));
    if (colon < 0)
        return;
    scheme = slice_sub(rest, 0, (size_t)colon);
    rest = slice_from(rest, (size_t)colon + 3);
    if (slice_eq_str(scheme, "forebay"))
        (void)slice_split(&rest, '/'); /* the host */
    else if (!slice_eq_str(scheme, "s3") && !slice_eq_str(scheme, "gs") && !slice_eq_str(scheme, "az"))
        return;
    *ret_name = slice_split(&rest, '/');
    *ret_prefix = rest;
}

/* The key of ours that an event's object is; false when it is none. */
static bool own_key(const struct bucket *b, const json_t *bucket, const json_t *object, struct buf *ret)
{
    struct slice name, prefix;
    const char *key = json_string_value(json_object_get(object, "key"));
    const char *of = json_string_value(json_object_get(bucket, "name"));
    origin_names(b->p.origin, &name, &prefix);
    if (!key || text_uri_decode(ret, slice_str(key), /* plus_is_space= */ true) < 0)
        return false;
    if (of && name.n > 0 && !slice_eq_str(name, of))
        return false;
    if (prefix.n == 0)
        return ret->n > 0;
    if (slice_ends(prefix, SLICE_LIT("/")))
        prefix.n--;
    bool below = slice_starts(buf_view(ret), prefix) && ret->n > prefix.n + 1 && ret->p[prefix.n] == '/';
    if (below)
        buf_consume(ret, prefix.n + 1);
    return below;
}

/* The ETag of an event without quotes; empty: it has none. */
static struct slice event_etag(const json_t *object)
{
    struct slice etag = slice_str(json_string_value(json_object_get(object, "eTag")));
    return etag.n >= 2 && etag.p[0] == '"' ? slice_sub(etag, 1, etag.n - 2) : etag;
}

/* The cached entry when it is the very version that the event tells of; a reference, or NULL. */
static struct extent *cached_version(struct object_service *s, const struct bucket *b, struct slice key,
                                     struct slice etag, struct arena *a, struct attr *ret)
{
    _cleanup_(extent_unrefp) struct extent *x = etag.n > 0 ? cached(s, b, key, a, ret) : NULL;
    return x && slice_eq(ret->etag, etag) ? TAKE_PTR(x) : NULL;
}

/* Whether the event tells of another write than the one that we know of: both are times of the origin. */
static bool is_another_write(const json_t *record, const struct attr *known)
{
    uint64_t at_ns;
    struct slice text = slice_str(json_string_value(json_object_get(record, "eventTime")));
    if (text.n == 0 || known->mtime_ns == 0 || text_parse_date(text, &at_ns) < 0)
        return false;
    uint64_t apart_ns = at_ns > known->mtime_ns ? at_ns - known->mtime_ns : known->mtime_ns - at_ns;
    return apart_ns >= SAME_WRITE_NS;
}

enum event_says { EVENT_KNOWN, EVENT_DOUBTED, EVENT_CHANGED };

/* What an event says of what is cached. Where it is the very version (empty ETag: none is), written at
 * another time, its attributes are doubted here. */
static enum event_says event_about(struct object_service *s, const struct bucket *b, struct slice key,
                                   struct slice etag, const json_t *record)
{
    _cleanup_(arena_freep) struct arena *a = arena_new(EVENT_ARENA);
    struct attr known;
    _cleanup_(extent_unrefp) struct extent *x = cached_version(s, b, key, etag, a, &known);
    if (!x || !is_another_write(record, &known))
        return x ? EVENT_KNOWN : EVENT_CHANGED;
    object_doubt_key(s, b, key, x, &known);
    return EVENT_DOUBTED;
}

/* One record: whether it changed anything. */
static bool take_event(struct object_service *s, const struct bucket *b, const json_t *record)
{
    const json_t *s3 = json_object_get(record, "s3"), *object = json_object_get(s3, "object");
    struct slice event = slice_str(json_string_value(json_object_get(record, "eventName")));
    _cleanup_buf_ struct buf key = BUF_INIT(2 * ORIGIN_KEY_MAX_BYTES);
    if (slice_starts(event, SLICE_LIT("s3:")))
        event = slice_from(event, 3);
    bool made = slice_starts(event, SLICE_LIT("ObjectCreated:"));
    bool gone = slice_starts(event, SLICE_LIT("ObjectRemoved:")) ||
                slice_starts(event, SLICE_LIT("LifecycleExpiration:"));
    if (!made && !gone)
        return false;
    if (!own_key(b, json_object_get(s3, "bucket"), object, &key) || key.n > ORIGIN_KEY_MAX_BYTES)
        return false;
    struct slice etag = made ? event_etag(object) : SLICE_NULL;
    for (int i = 0; i < EVENT_TRIES; i++) {
        uint64_t seen = object_settled(s, b, buf_view(&key));
        enum event_says says = event_about(s, b, buf_view(&key), etag, record);
        if (says != EVENT_CHANGED)
            return says == EVENT_DOUBTED;
        if (object_forget_told(s, b, buf_view(&key), etag, seen))
            break;
        if (i == EVENT_TRIES - 1)
            (void)object_forget_key(s, b, buf_view(&key));
    }
    if (gone)
        watch_gone(s, /* by= */ NULL, b, buf_view(&key));
    return true;
}

/* The bucket that takes events from who knows this token, a reference. All others hear the same: whether
 * there is such a bucket, and what it is, is not told. */
static int find_told(struct object_service *s, struct slice name, struct slice token, struct bucket **ret,
                     struct err *e)
{
    _cleanup_(bucket_unrefp) struct bucket *b = NULL;
    struct slice own =
        bucket_find(s->buckets, name, &b, NULL) == 0 ? slice_str(b->p.events_token) : SLICE_NULL;
    if (own.n == 0 || token.n != own.n || CRYPTO_memcmp(token.p, own.p, own.n) != 0)
        return err_set(e, -EACCES, "the token is not the events.token of a bucket of that name");
    *ret = TAKE_PTR(b);
    return 0;
}

int op_events(struct object_session *ses, const struct wire_events_req *req, struct arena *a,
              struct wire_events_rep *rep, struct err *e)
{
    (void)a;
    struct object_service *s = ses->service;
    _cleanup_(bucket_unrefp) struct bucket *b = NULL;
    int r = find_told(s, req->bucket, req->token, &b, e);
    if (r == 0 && bucket_is_scratch(b))
        r = err_set(e, -EINVAL, "bucket %s has no origin that could tell of changes", b->name);
    if (r < 0)
        return r;
    if (text_json_is_deep(req->json))
        return err_set(e, -EINVAL, "no S3 event: nested too deep");
    json_error_t why;
    json_t *o = json_loadb(req->json.p ? req->json.p : "", req->json.n, 0, &why);
    const json_t *records = json_object_get(o, "Records"), *one;
    size_t i;
    if (!json_is_array(records)) {
        json_decref(o);
        return err_set(e, -EINVAL, "no S3 event: %s", o ? "it has no Records" : why.text);
    }
    json_array_foreach(records, i, one)
    {
        bool changed = take_event(s, b, one);
        rep->changed += changed;
        rep->ignored += !changed;
    }
    json_decref(o);
    return 0;
}

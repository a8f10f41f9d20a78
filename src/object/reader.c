/*
 * Reading: open, fetch, close.
 *
 * Opening finds the version to serve: the cached one when the bucket's `validate` allows or the origin
 * confirms it, else what the origin has now. A reader is bound to one version; all bytes it ever gives are of
 * that one.
 *
 * Invariants:
 *  1. An entry is made in the store only while its key's opening is held, and only when no local write
 * overtook the answer it is made from (object_making_begin).
 *  2. A complete, fresh entry is opened without taking part in openings and without asking the origin. So is
 * what write-back has the bytes of: a key with a record is what that says.
 */
#include "object/ahead.h"
#include "object/back.h"
#include "object/object_internal.h"
#include "object/scratch_object_ops.h"

#include "base/log.h"
#include "base/often.h"
#include "base/sys.h"

#include <fcntl.h>
#include <inttypes.h>

#define READER_MAGIC 0x72656164u
#define OPEN_TRIES   4

struct reader {
    uint32_t magic;
    _Atomic uint32_t refs;
    struct object_service *service;
    struct upstream *upstream;
    size_t key_n;
    uint32_t via;
    uint64_t size;
    uint64_t most_ahead; /* of its own, beside the bucket's readahead */
    char etag[ORIGIN_ETAG_MAX + 1];
    struct extent *extent; /* NULL: not cached */
    struct ahead ahead;
    struct lock lock;  /* covers what follows */
    struct fill *fill; /* NULL while complete or not yet needed */
    int passed_fd;     /* on its way to another process; -1: none */
    bool is_in_use;    /* the extent's own descriptor was given to a caller in this one */
    char key[];        /* key_n, and NUL */
};

/* What an open works with. */
struct opener {
    struct object_session *session;
    struct object_service *service;
    const struct wire_open_req *req;
    struct arena *arena;
    struct upstream *upstream;
    struct bucket *bucket;
    struct opening *opening;
    uint64_t seen;    /* generation of the key before the origin was asked */
    bool overtaken;   /* no entry was made because of a local write meanwhile */
    bool is_outdated; /* the entry's version is known to be another one than the origin's */
    struct attr attr;
    const struct attr *listed; /* what a listing said of it before it was discovered; or NULL */
    struct extent *extent;
    struct fill *fill;
};

/* ---- life ---- */

void reader_ref(struct reader *r)
{
    assert(r->magic == READER_MAGIC);
    (void)atomic_fetch_add(&r->refs, 1);
}

static void give_descriptor_back(struct reader *r)
{
    LOCK_SCOPE(&r->lock);
    macro_close(&r->passed_fd);
    r->passed_fd = -1;
    if (r->is_in_use)
        extent_leave(r->extent);
    r->is_in_use = false;
}

void reader_unref(struct reader *r)
{
    if (!r)
        return;
    assert(r->magic == READER_MAGIC);
    if (atomic_fetch_sub(&r->refs, 1) != 1)
        return;
    (void)atomic_fetch_sub(&r->service->readers, 1);
    give_descriptor_back(r);
    ahead_fini(&r->ahead);
    fill_unref(r->fill);
    extent_unref(r->extent);
    upstream_unref(r->upstream);
    lock_fini(&r->lock);
    r->magic = 0;
    free(r);
}

/* A ranged request of S3 says all that will be read through its handle: not more is had ahead than that, or
 * the first window. */
static uint64_t most_ahead(const struct wire_open_req *req)
{
    bool is_range = req->via == WIRE_VIA_S3 && req->expect > 0 && req->expect < UINT64_MAX;
    return is_range ? MAX(req->expect, (uint64_t)PLAN_WINDOW_BYTES) : UINT64_MAX;
}

static struct reader *reader_new(struct opener *o)
{
    struct reader *r = calloc(1, sizeof(*r) + o->req->key.n + 1);
    assert(r);
    r->magic = READER_MAGIC;
    atomic_init(&r->refs, 1);
    r->service = o->service;
    r->upstream = upstream_ref(o->upstream);
    r->key_n = o->req->key.n;
    if (r->key_n > 0)
        memcpy(r->key, o->req->key.p, r->key_n);
    r->via = o->req->via;
    r->size = o->attr.size_bytes;
    r->most_ahead = most_ahead(o->req);
    memcpy(r->etag, o->attr.etag.p ? o->attr.etag.p : "", MIN(o->attr.etag.n, (size_t)ORIGIN_ETAG_MAX));
    r->extent = TAKE_PTR(o->extent);
    r->fill = TAKE_PTR(o->fill);
    lock_init(&r->lock, LOCK_READER);
    r->passed_fd = -1;
    ahead_init(&r->ahead, r->service->config.budget, r->upstream->bucket->name, slice_of(r->key, r->key_n),
               r->size);
    (void)atomic_fetch_add(&o->service->readers, 1);
    return r;
}

/* ---- which version ---- */

static int load_entry(struct opener *o)
{
    int r = store_find(o->service->config.store, object_store_key_in(o->bucket, o->req->key, o->arena),
                       &o->extent);
    if (r < 0)
        return r;
    r = object_entry_attr(o->service, o->extent, o->arena, &o->attr);
    if (r < 0 || o->attr.size_bytes != extent_size(o->extent)) {
        store_remove_extent(o->service->config.store, o->extent);
        extent_unref(TAKE_PTR(o->extent));
        return -ENOENT;
    }
    return 0;
}

/* S3's answers carry it; who copies an object sends it along. */
static bool wants_meta(const struct opener *o)
{
    return o->req->via == WIRE_VIA_S3 || o->req->flags & WIRE_META;
}

/* Whether what is known of the object does not do for this open. */
static bool lacks_meta(const struct opener *o)
{
    bool is_timeless = o->upstream->origin->capabilities & ORIGIN_BYTES_ALONE && o->attr.mtime_ns == 0;
    return !o->attr.has_meta && (wants_meta(o) || is_timeless);
}

/* A word of the origin about the entry's version: whether it confirms its metadata, too. A listing tells of
 * them by the time of the last change alone. */
static bool hear_of_meta(struct opener *o, const struct attr *heard)
{
    if (heard->has_meta && heard->confirmed_ns > o->attr.confirmed_ns) {
        o->attr.has_meta = true;
        o->attr.mtime_ns = heard->mtime_ns;
        o->attr.content_type = heard->content_type;
        o->attr.meta = heard->meta;
    }
    return heard->has_meta || !o->attr.has_meta || attr_same_time(heard->mtime_ns, o->attr.mtime_ns);
}

/* Whether the entry may be served without asking: its own age, or a later word of the origin about the same
 * version. */
static bool entry_is_fresh(struct opener *o)
{
    struct attr heard;
    bool any = mirror_recall(o->service->mirror, o->bucket, o->req->key, o->arena, &heard) == 0 &&
               !heard.is_directory;
    bool same = any && !heard.is_absent && slice_eq(heard.etag, o->attr.etag) &&
                heard.size_bytes == o->attr.size_bytes;
    if (same && (heard.etag.n > 0 || heard.mtime_ns > 0) && hear_of_meta(o, &heard))
        return true;
    o->is_outdated = any && !same && heard.confirmed_ns > o->attr.confirmed_ns;
    if (o->is_outdated)
        return false;
    return mirror_is_fresh(o->bucket, o->req->key, o->attr.confirmed_ns, /* is_absent= */ false);
}

/* What is under way of it goes with it. */
static void drop_entry(struct opener *o)
{
    if (o->extent)
        store_remove_extent(o->service->config.store, o->extent);
    extent_unref(TAKE_PTR(o->extent));
    fill_unref(TAKE_PTR(o->fill));
}

/* Remembers that the origin confirmed the entry's version, unless something was heard of the key since. */
static void entry_confirmed(struct opener *o, uint64_t confirmed_ns)
{
    o->attr.confirmed_ns = confirmed_ns;
    _cleanup_buf_ struct buf blob = BUF_INIT(ATTR_BLOB_MAX_BYTES);
    if (!object_making_begin(o->service, o->opening, o->seen))
        return;
    mirror_learn(o->service->mirror, o->bucket, o->req->key, &o->attr, o->seen);
    if (o->extent && object_encode_attr(o->service, o->bucket, o->req->key, &o->attr, &blob) == 0)
        (void)extent_set_attr(o->extent, buf_view(&blob));
    object_making_end(o->service, o->opening);
}

bool object_is_same_version(const struct origin_attr *now, const struct attr *known)
{
    return slice_eq(now->etag, known->etag) && now->size_bytes == known->size_bytes &&
           (now->etag.n > 0 || (now->mtime_ns > 0 && now->mtime_ns == known->mtime_ns));
}

/* Asks the origin about the entry's version. 0: goes on with it, also where there is no answer; 1: it is gone
 * from the cache, o->attr is what the origin has now. */
static int revalidate(struct opener *o, struct err *e)
{
    struct origin_attr now;
    struct upstream_doubt doubt;
    bool may_doubt = o->bucket->validate != BUCKET_VALIDATE_ALWAYS && !o->is_outdated;
    if (may_doubt && !upstream_doubt_begin(o->upstream, &doubt)) /* which was told a moment ago */
        return 0;
    int r = upstream_head(o->upstream, o->req->key, o->attr.etag, o->arena, &now, e);
    if (may_doubt && upstream_doubt_end(&doubt, r)) {
        log_warn("object", "%s/" SLICE_FMT ": served from cache unconfirmed: %s", o->bucket->name,
                 SLICE_ARG(o->req->key), e ? e->text : err_text(r));
        return 0;
    }
    if (r == 0 && object_is_same_version(&now, &o->attr)) {
        attr_take_meta(&o->attr, &now, o->arena);
        entry_confirmed(o, sys->real_ns());
        return 0;
    }
    if (r == -ENOENT) {
        drop_entry(o);
        mirror_changed(o->service->mirror, o->bucket, o->req->key);
        watch_gone(o->service, /* by= */ NULL, o->bucket, o->req->key);
        return err_set(e, -ENOENT, "no such key");
    }
    if (r < 0)
        return r;
    drop_entry(o);
    o->attr = attr_of_origin(&now, /* has_meta= */ true, sys->real_ns());
    mirror_learn(o->service->mirror, o->bucket, o->req->key, &o->attr, o->seen);
    watch_changed(o->service, o->bucket, o->req->key);
    return 1;
}

/* An entry made from a listing, or of bytes that come without them, lacks content type and metadata. 1: as
 * revalidate. */
static int complete_meta(struct opener *o, struct err *e)
{
    struct attr full;
    int r = mirror_stat(o->service->mirror, o->upstream, o->req->key, /* posix= */ false, /* full= */ true,
                        /* fresh= */ false, o->arena, &full, e);
    if (r == -ENOENT)
        drop_entry(o);
    if (r < 0)
        return r;
    bool same = slice_eq(full.etag, o->attr.etag) && full.size_bytes == o->attr.size_bytes;
    if (!same)
        drop_entry(o);
    else
        attr_keep_checksum(&full, o->attr.meta, o->arena);
    o->attr = full;
    if (same)
        entry_confirmed(o, full.confirmed_ns);
    return same ? 0 : 1;
}

/* ---- conditions ---- */

/* An ETag without the marks around it: quotes, and W/ of a weak one. */
static struct slice etag_core(struct slice etag)
{
    if (slice_starts(etag, SLICE_LIT("W/")))
        etag = slice_from(etag, 2);
    bool quoted = etag.n >= 2 && etag.p[0] == '"' && etag.p[etag.n - 1] == '"';
    return quoted ? slice_sub(etag, 1, etag.n - 2) : etag;
}

static bool etag_matches(struct slice wanted, struct slice etag)
{
    while (wanted.n > 0) {
        struct slice one = slice_trim(slice_split(&wanted, ','));
        if (slice_eq_str(one, "*") || slice_eq(etag_core(one), etag_core(etag)))
            return true;
    }
    return false;
}

int object_check_conditions(const struct wire_open_req *req, struct slice etag, struct slice also,
                            struct err *e)
{
    bool is_known_otherwise = also.n > 0;
    if (req->if_match.n > 0 && !etag_matches(req->if_match, etag) &&
        !(is_known_otherwise && etag_matches(req->if_match, also)))
        return err_set(e, ERR_PRECONDITION, "the object's ETag is " SLICE_FMT, SLICE_ARG(etag));
    if (etag_matches(req->if_none_match, etag) ||
        (is_known_otherwise && etag_matches(req->if_none_match, also)))
        return err_set(e, ERR_NOT_MODIFIED, "the object is still " SLICE_FMT, SLICE_ARG(etag));
    return 0;
}

/* Who knows the version by the ETag that it had here, before it was sent to the origin, means this one. */
static int check_conditions(struct opener *o, struct slice etag, struct err *e)
{
    char other[ORIGIN_ETAG_MAX + 1] = "";
    if (o->req->if_match.n > 0 || o->req->if_none_match.n > 0)
        (void)back_other_etag(o->service->back, o->bucket->id, o->req->key, etag, other);
    return object_check_conditions(o->req, etag, slice_str(other), e);
}

struct slice object_other_etag(struct object_service *s, struct slice bucket, struct slice key,
                               struct slice etag, struct arena *a)
{
    char other[ORIGIN_ETAG_MAX + 1];
    _cleanup_(bucket_unrefp) struct bucket *b = NULL;
    if (bucket_find(s->buckets, bucket, &b, NULL) < 0 || !back_other_etag(s->back, b->id, key, etag, other))
        return SLICE_NULL;
    return arena_dup(a, slice_str(other));
}

/* ---- cold ---- */

/* Makes the entry of a version that the origin was just seen to have. *ret stays NULL when it is not
 * admitted, or when a local write overtook the question: who began before that write was acknowledged may
 * read what was there before it, but nobody after them. */
static int admit(struct opener *o, const struct attr *attr, struct extent **ret, struct err *e)
{
    if (attr->size_bytes > STORE_SIZE_MAX_BYTES || attr->etag.n > ORIGIN_ETAG_MAX)
        return err_set(e, ERR_ORIGIN_REFUSED, "an object of %" PRIu64 " bytes with an ETag of %zu: too large",
                       attr->size_bytes, attr->etag.n);
    _cleanup_buf_ struct buf blob = BUF_INIT(ATTR_BLOB_MAX_BYTES);
    enum rule_keep keep = bucket_keep(o->bucket, o->req->key);
    if (keep == RULE_KEEP_NEVER)
        return 0;
    if (!object_making_begin(o->service, o->opening, o->seen)) {
        o->overtaken = true;
        metrics_count(METRIC_NOT_ADMITTED, "overtaken", NULL, NULL);
        return 0;
    }
    int r = object_encode_attr(o->service, o->bucket, o->req->key, attr, &blob);
    if (r < 0 || !quota_admit(o->service, o->bucket, o->req->key, attr->size_bytes)) {
        object_making_end(o->service, o->opening);
        return r < 0 ? err_set(e, ERR_ORIGIN_REFUSED, "attributes of the object are too large") : 0;
    }
    struct store_new n = {.key = object_store_key_in(o->bucket, o->req->key, o->arena),
                          .attr = buf_view(&blob),
                          .size_bytes = attr->size_bytes,
                          .pinned_admission = keep == RULE_KEEP_PINNED};
    struct err local = {0};
    r = store_create(o->service->config.store, &n, ret, &local);
    object_making_end(o->service, o->opening);
    if (r == 0)
        return 0;
    metrics_count(METRIC_NOT_ADMITTED, r == ERR_NOT_ADMITTED ? "policy" : err_name(r), NULL, NULL);
    if (r != ERR_NOT_ADMITTED)
        log_often("object", "%s/" SLICE_FMT ": served without caching: %s", o->bucket->name,
                  SLICE_ARG(o->req->key), local.text);
    return 0; /* reading goes on around the cache whatever is wrong with the disk */
}

/* Listings of gs:// tell times to the millisecond, answers to the second: a file whose time was looked at
 * keeps it. */
static struct attr keep_listed_time(const struct opener *o, const struct attr *attr)
{
    const struct attr *was = o->listed;
    struct attr now = *attr;
    bool same = was && slice_eq(was->etag, now.etag) && was->size_bytes == now.size_bytes;
    if (same && was->mtime_ns > 0 && attr_same_time(was->mtime_ns, now.mtime_ns))
        now.mtime_ns = was->mtime_ns;
    return now;
}

static struct attr learn_discovered(struct opener *o, const struct attr *attr)
{
    const struct attr found = keep_listed_time(o, attr);
    if (found.has_meta || found.mtime_ns > 0) /* else nobody shows it before it is asked for */
        mirror_learn(o->service->mirror, o->bucket, o->req->key, &found, o->seen);
    return found;
}

static int admit_discovered(void *arg, const struct attr *attr, struct extent **ret, struct err *e)
{
    struct opener *o = arg;
    const struct attr found = learn_discovered(o, attr);
    return admit(o, &found, ret, e);
}

/* The first ranged GET brings the attributes. whole: it is of all bytes, as far as anybody knows, and nothing
 * is done before they are there. */
static int discover(struct opener *o, bool whole, struct err *e)
{
    struct plan_range first = plan_discover(o->req->offset, whole ? UINT64_MAX : o->req->expect);
    int r = fill_discover(o->service->fills, o->upstream, o->req->key, first, whole, admit_discovered, o,
                          o->arena, &o->attr, &o->fill, e);
    if (r == 0) {
        struct extent *x = fill_extent(o->fill);
        o->extent = x ? extent_ref(x) : NULL;
        o->attr = keep_listed_time(o, &o->attr);
        return 0;
    }
    if (r == -ENOENT) {
        struct attr absent = {.is_absent = true, .confirmed_ns = sys->real_ns()};
        mirror_learn(o->service->mirror, o->bucket, o->req->key, &absent, o->seen);
        return r;
    }
    if (r != ERR_RANGE)
        return r;
    r = mirror_stat(o->service->mirror, o->upstream, o->req->key, /* posix= */ false, /* full= */ true,
                    /* fresh= */ true, o->arena, &o->attr, e);
    return r < 0 ? r : admit(o, &o->attr, &o->extent, e);
}

/* For a look-up alone: bytes that the cache does not take would come twice. What more there is than them
 * would count for a quota. */
static int admit_looked_up(void *arg, const struct attr *attr, struct extent **ret, struct err *e)
{
    struct opener *o = arg;
    const struct attr found = learn_discovered(o, attr);
    bool counts = found.size_bytes > STORE_BLOCK_BYTES && o->bucket->p.quota > 0;
    int r = counts ? 0 : admit(o, &found, ret, e);
    return r == 0 && !*ret ? err_set(e, ERR_NOT_ADMITTED, "not cached") : r;
}

/* Whether of so large an object all is waited for at once: when a mount opens it, and by S3 where no less is
 * sent (FILL_LEAST_BYTES). */
static bool waits_for_all(const struct opener *o, uint64_t size)
{
    bool is_all = o->req->offset == 0 && o->bucket->p.verify != BUCKET_VERIFY_READ;
    if (o->req->via == WIRE_VIA_S3)
        return is_all && o->req->expect >= size && size <= FILL_LEAST_BYTES;
    return is_all && o->req->via == WIRE_VIA_MOUNT && size <= OBJECT_WHOLE_AT_OPEN;
}

/* A name that a listing told. The entry of a small object is made while its origin looks for it, and not
 * before it was asked: that is most of what there is to do besides waiting. */
static int open_listed(struct opener *o, struct err *e)
{
    const struct attr listed = o->attr;
    bool whole = listed.size_bytes > 0 && waits_for_all(o, listed.size_bytes);
    if (listed.has_meta ||
        (!whole && !wants_meta(o))) /* no listing: all that there is to know, checksums too */
        return admit(o, &listed, &o->extent, e);
    o->listed = &listed;
    int r = discover(o, whole, e);
    o->listed = NULL;
    return r;
}

/* Under the key's opening: finds or makes what to read from. */
static int settle(struct opener *o, struct err *e)
{
    o->seen = mirror_generation(o->service->mirror, o->bucket, o->req->key);
    if (load_entry(o) == 0) {
        int r = entry_is_fresh(o) ? 0 : revalidate(o, e);
        if (r == 0 && lacks_meta(o))
            r = complete_meta(o, e);
        if (r <= 0)
            return r;
        return admit(o, &o->attr, &o->extent, e);
    }
    int r = mirror_recall(o->service->mirror, o->bucket, o->req->key, o->arena, &o->attr);
    if (r == 0 && o->attr.is_absent)
        return err_set(e, -ENOENT, "no such key");
    r = r == 0 && !o->attr.is_directory ? open_listed(o, e) : discover(o, /* whole= */ false, e);
    if (r == 0 && lacks_meta(o))
        r = complete_meta(o, e);
    return r <= 0 ? r : admit(o, &o->attr, &o->extent, e);
}

static int settle_alone(struct opener *o, struct err *e)
{
    struct opening opening = {.bucket = o->bucket, .key = o->req->key};
    o->opening = &opening;
    int r = 0;
    for (int i = 0; i < OPEN_TRIES; i++) {
        o->overtaken = false;
        r = object_opening_try(o->service, &opening, e);
        if (r < 0)
            break;
        r = settle(o, e);
        object_opening_leave(o->service, &opening);
        if (r < 0 || !o->overtaken || o->fill) /* a fill has begun: it goes on around the cache */
            break;
    }
    o->opening = NULL;
    return r;
}

/* A complete, fresh entry needs nobody's leave. */
static bool open_warm(struct opener *o)
{
    if (load_entry(o) < 0)
        return false;
    if (extent_is_complete(o->extent) && entry_is_fresh(o) && !lacks_meta(o))
        return true;
    extent_unref(TAKE_PTR(o->extent));
    return false;
}

/* All bytes are here, of a version that is confirmed where it is too old; or is given as it is, where the
 * origin says nothing (revalidate). */
static bool is_here(struct opener *o)
{
    if (o->bucket->validate == BUCKET_VALIDATE_ALWAYS || load_entry(o) < 0)
        return false;
    bool is_whole = extent_is_complete(o->extent) && !lacks_meta(o) && (entry_is_fresh(o) || !o->is_outdated);
    extent_unref(TAKE_PTR(o->extent));
    return is_whole;
}

/* ---- look-ups ---- */

static int look_up(struct opener *o, struct err *e)
{
    o->seen = mirror_generation(o->service->mirror, o->bucket, o->req->key);
    if (mirror_recall(o->service->mirror, o->bucket, o->req->key, o->arena, &o->attr) == 0 ||
        load_entry(o) == 0)
        return err_set(e, -EEXIST, "known meanwhile");
    int r = fill_discover(o->service->fills, o->upstream, o->req->key, plan_discover(0, o->req->expect),
                          /* whole= */ true, admit_looked_up, o, o->arena, &o->attr, &o->fill, e);
    if (r == -ENOENT) {
        struct attr absent = {.is_absent = true, .confirmed_ns = sys->real_ns()};
        mirror_learn(o->service->mirror, o->bucket, o->req->key, &absent, o->seen);
    }
    return r;
}

int object_look_up(struct object_session *ses, struct upstream *u, struct slice key, struct arena *a,
                   struct attr *ret, struct err *e)
{
    const struct wire_open_req req = {.bucket = slice_str(u->bucket->name),
                                      .key = key,
                                      .via = WIRE_VIA_MOUNT,
                                      .expect = OBJECT_WHOLE_AT_OPEN};
    struct opening opening = {.bucket = u->bucket, .key = key};
    struct opener o = {.session = ses,
                       .service = ses->service,
                       .req = &req,
                       .arena = a,
                       .upstream = u,
                       .bucket = u->bucket,
                       .opening = &opening};
    int r = object_opening_try(o.service, &opening, e);
    if (r < 0)
        return r;
    r = look_up(&o, e);
    object_opening_leave(o.service, &opening);
    if (r == ERR_NOT_ADMITTED ||
        r == ERR_ORIGIN_DENIED) /* as of what is archived, whose attributes are told */
        lookups_doubt(o.service->lookups, u->bucket->place, key);
    if (r == 0)
        *ret = o.attr;
    fill_unref(o.fill);
    extent_unref(o.extent);
    return r;
}

/* ---- OPEN ---- */

static struct fill *reader_fill(struct reader *r)
{
    LOCK_SCOPE(&r->lock);
    if (!r->fill) {
        struct slice key = slice_of(r->key, r->key_n), etag = slice_str(r->etag);
        r->fill = r->extent ? fill_of_extent(r->service->fills, r->upstream, key, r->extent, etag)
                            : fill_of_uncached(r->service->fills, r->upstream, key, etag, r->size);
    }
    return fill_ref(r->fill);
}

static bool reader_is_complete(struct reader *r)
{
    return r->size == 0 || (r->extent && extent_is_complete(r->extent));
}

/* Descriptors leave only where every byte may be read without a check of ours. */
static bool reader_gives_fd(const struct reader *r)
{
    return r->extent && r->upstream->bucket->p.verify != BUCKET_VERIFY_READ;
}

static uint32_t reader_state(struct reader *r)
{
    if (!reader_gives_fd(r))
        return WIRE_UNCACHED;
    return reader_is_complete(r) ? WIRE_COMPLETE : WIRE_PARTIAL;
}

/* Starts what the caller is about to read, and waits for small files on behalf of a mount. */
static int start_reading(struct reader *r, const struct wire_open_req *req, struct err *e)
{
    if (reader_is_complete(r))
        return 0;
    _cleanup_(fill_unrefp) struct fill *f = reader_fill(r);
    bool whole = req->via == WIRE_VIA_MOUNT && r->size <= OBJECT_WHOLE_AT_OPEN && reader_gives_fd(r);
    if (whole)
        return fill_wait_all(f, e);
    if (req->expect == 0 || req->offset >= r->size)
        return 0;
    uint64_t n = MIN(req->expect, r->size - req->offset);
    struct plan_range want = {req->offset, req->offset + MIN(n, r->upstream->bucket->p.readahead)};
    fill_want(f, want, /* urgent= */ true);
    return 0;
}

/* What a peer writes may be any number. */
static size_t via_place(uint32_t via)
{
    return via == WIRE_VIA_S3 || via == WIRE_VIA_MOUNT ? via : WIRE_VIA_API;
}

/* The series of these labels of a bucket, which is kept at *place. Those of a job's own buckets, which are
 * among no buckets, end while it runs. */
static struct metric_series *kept_series(_Atomic(struct metric_series *) *place, enum metric m,
                                         const struct bucket *b, uint32_t via, const char *how)
{
    struct metric_series *s = atomic_load_explicit(place, memory_order_acquire);
    if (s)
        return s;
    s = metrics_series(m, b->name, object_via_name(via), how);
    if (!bucket_is_guest(b))
        atomic_store_explicit(place, s, memory_order_release);
    return s;
}

static void count_open(const struct opener *o, uint32_t state, bool cold)
{
    static const char *const names[UPSTREAM_OPENS] = {"cold", "complete", "partial"};
    size_t how = cold ? 0 : state == WIRE_COMPLETE ? 1 : 2;
    metrics_add(kept_series(&o->upstream->opens[via_place(o->req->via)][how], METRIC_OPENS, o->bucket,
                            o->req->via, names[how]),
                1);
    usage_opened(o->service->usage, o->bucket->id, o->req->key);
}

/* Another process gets a descriptor of its own, by which it can only read; here the extent's is lent. */
static int lend_descriptor(struct opener *o, struct reader *r)
{
    if (!reader_gives_fd(r))
        return -1;
    int fd = o->session->is_remote ? extent_open_fd(r->extent, O_RDONLY) : extent_use(r->extent);
    LOCK_SCOPE(&r->lock);
    r->passed_fd = o->session->is_remote && fd >= 0 ? fd : -1;
    r->is_in_use = !o->session->is_remote && fd >= 0;
    return fd;
}

void reader_passed(struct object_session *ses, const struct wire_open_rep *rep)
{
    struct err ignored = {0}; /* closed already */
    struct reader *r = rep->fd >= 0 ? session_get(ses, HANDLE_READ, rep->handle, &ignored) : NULL;
    if (r)
        give_descriptor_back(r);
    reader_unref(r);
}

static int give_handle(struct opener *o, struct reader *r, struct wire_open_rep *rep, struct err *e)
{
    uint64_t handle;
    int fd = lend_descriptor(o, r);
    if (fd == -ENOENT) { /* somebody removed the file: without it there is nothing to read from */
        store_remove_extent(o->service->config.store, r->extent);
        return err_set(e, ERR_VERSION_CHANGED, "the file of the cached copy is gone");
    }
    reader_ref(r);
    int result = session_put(o->session, HANDLE_READ, r, &handle);
    if (result < 0) {
        reader_unref(r);
        return session_no_room(result, e);
    }
    rep->handle = handle;
    rep->state = fd >= 0 ? reader_state(r) : WIRE_UNCACHED; /* without one, bytes come inline */
    rep->fd = MAX(fd, -1);
    bool may_be_kept = r->extent && o->req->via != WIRE_VIA_S3; /* who serves S3 opens for each request */
    rep->valid_ms = may_be_kept ? mirror_valid_ms(o->bucket, o->req->key, o->attr.confirmed_ns) : 0;
    attr_to_wire(&o->attr, o->arena, &rep->attr);
    return 0;
}

/* What write-back has the bytes of, and is not cached beside that: from there. -ENOENT: it has none, or they
 * are to be read like others, with their checksums. */
static int open_unsent(struct opener *o, struct wire_open_rep *rep, struct err *e)
{
    struct origin_attr found;
    struct hard *h;
    int r = 0;
    if (o->bucket->p.verify == BUCKET_VERIFY_READ) {
        r = back_settle_key(o->service->back, o->bucket, o->req->key, e);
        return r < 0 ? r : -ENOENT;
    }
    uint64_t seen = mirror_generation(o->service->mirror, o->bucket, o->req->key);
    r = back_open_bytes(o->service->back, o->bucket, o->req->key, o->arena, &found, &h, e);
    if (r < 0)
        return r;
    struct attr attr = attr_of_origin(&found, /* has_meta= */ true, sys->real_ns());
    r = check_conditions(o, attr.etag, e);
    if (r < 0) {
        /* Its writer is about to say so itself; who asks until then would be told of the former version, and
         * come back with that. */
        if (r == ERR_PRECONDITION)
            mirror_learn(o->service->mirror, o->bucket, o->req->key, &attr, seen);
        hard_unref(h);
        return r;
    }
    attr_to_wire(&attr, o->arena, &rep->attr);
    usage_opened(o->service->usage, o->bucket->id, o->req->key);
    return sreader_open(o->session, o->bucket, o->req, h, rep, e);
}

static int open_version(struct opener *o, struct wire_open_rep *rep, struct err *e)
{
    bool warm = open_warm(o);
    int unsent = warm ? -ENOENT : open_unsent(o, rep, e);
    if (unsent != -ENOENT)
        return unsent;
    if (!warm && o->req->flags & WIRE_NO_WAIT && !is_here(o))
        return err_set(e, -EAGAIN, "not all of it is here");
    int result = warm ? 0 : settle_alone(o, e);
    if (result == 0)
        result = check_conditions(o, o->attr.etag, e);
    if (result < 0)
        return result;
    /* What this open itself fetches was not there before it, however soon it arrives; nor was what its
     * look-up fetched. */
    bool has_come =
        o->req->via == WIRE_VIA_MOUNT && lookups_opened(o->service->lookups, o->bucket->place, o->req->key);
    uint64_t present = o->fill || !o->extent || has_come ? 0 : extent_present_bytes(o->extent);
    bool cold = present == 0 && (!warm || has_come);
    struct reader *r = reader_new(o);
    result = start_reading(r, o->req, e);
    if (result == 0)
        result = give_handle(o, r, rep, e);
    if (result == 0)
        rep->present = present;
    if (result == 0)
        count_open(o, rep->state, cold);
    reader_unref(r);
    return result;
}

/* What it was under the name that a rename of a directory took from it counts as well: a mount that has it
 * open knows it by no other ETag. */
static bool follow_move(struct object_service *s, const struct upstream *u, struct wire_open_req *asked,
                        struct arena *a)
{
    _cleanup_free_ char *now = NULL;
    if (asked->via == WIRE_VIA_MOUNT && asked->if_match.n > 0)
        now = moved_now(&s->moved, u->bucket->place, asked->key, asked->if_match);
    if (now)
        asked->if_match = arena_dup(a, slice_str(now));
    return now != NULL;
}

int op_open(struct object_session *ses, const struct wire_open_req *req, struct arena *a,
            struct wire_open_rep *rep, struct err *e)
{
    int r = object_check_key(req->key, e);
    if (r < 0)
        return r;
    _cleanup_(upstream_unrefp) struct upstream *u = NULL;
    r = object_upstream(ses->service, req->bucket, &u, e);
    if (r < 0)
        return r;
    struct wire_open_req asked = *req;
    for (int i = 0; i < OPEN_TRIES; i++) {
        struct opener o = {.session = ses,
                           .service = ses->service,
                           .req = &asked,
                           .arena = a,
                           .upstream = u,
                           .bucket = u->bucket};
        r = open_version(&o, rep, e);
        fill_unref(o.fill);
        extent_unref(o.extent);
        /* Changed between a listing and the first byte: nothing was given yet, so begin again with what is
         * there now. */
        if (r != ERR_VERSION_CHANGED && !(r == ERR_PRECONDITION && follow_move(ses->service, u, &asked, a)))
            break;
    }
    return r < 0 ? err_prefix(e, r, "%s/" SLICE_FMT, u->bucket->name, SLICE_ARG(req->key)) : 0;
}

/* ---- FETCH ---- */

static void count_read(struct reader *r, uint64_t n, bool from_origin)
{
    if (n == 0)
        return;
    metrics_add(kept_series(&r->upstream->read_bytes[via_place(r->via)][from_origin], METRIC_READ_BYTES,
                            r->upstream->bucket, r->via, from_origin ? "origin" : "cache"),
                n);
    usage_read(r->service->usage, r->upstream->bucket->id, slice_of(r->key, r->key_n), n);
}

static ssize_t read_extent(struct extent *x, void *p, size_t n, uint64_t offset)
{
    int fd = extent_use(x);
    if (fd < 0)
        return fd;
    int r = sys_pread_all(fd, p, n, offset);
    extent_leave(x);
    return r < 0 ? -EIO : (ssize_t)n;
}

/* Present bytes of the extent into the reply. */
static int read_inline(struct reader *r, uint64_t offset, uint64_t n, struct arena *a,
                       struct wire_fetch_rep *rep, struct err *e)
{
    n = MIN(n, FILL_INLINE_MAX_BYTES);
    char *p = arena_alloc(a, n);
    ssize_t got;
    if (r->upstream->bucket->p.verify == BUCKET_VERIFY_READ)
        got = extent_read_verified(r->extent, p, n, offset);
    else
        got = read_extent(r->extent, p, n, offset);
    if (got == -EIO) { /* a bad sector: what the disk does not give is fetched again */
        extent_doubt(r->extent, offset, n);
        return err_errno(e, ERR_CORRUPT, "read from cache");
    }
    if (got < 0)
        return err_errno(e, (int)got, "read from cache");
    rep->data = slice_of(p, (size_t)got);
    return 0;
}

static int fetch_present(struct reader *r, const struct wire_fetch_req *q, uint64_t available, bool waited,
                         struct arena *a, struct wire_fetch_rep *rep, struct err *e)
{
    if (!(q->flags & WIRE_INLINE) && reader_gives_fd(r)) {
        rep->available = available;
        return 0;
    }
    int result = read_inline(r, q->offset, available, a, rep, e);
    if (result == 0)
        count_read(r, rep->data.n, waited);
    return result;
}

static int fetch_missing(struct reader *r, const struct wire_fetch_req *q, uint64_t n, struct arena *a,
                         struct wire_fetch_rep *rep, struct err *e)
{
    bool patient = q->flags & WIRE_BACKGROUND;
    if (patient && q->flags & WIRE_NO_WAIT) { /* only looks */
        uint64_t run = r->extent ? extent_present_run(r->extent, q->offset, n) : 0;
        return run > 0 ? fetch_present(r, q, run, /* waited= */ false, a, rep, e) : 0;
    }
    _cleanup_(fill_unrefp) struct fill *f = reader_fill(r);
    bool there = r->extent && extent_present_run(r->extent, q->offset, 1) > 0;
    if (!patient || r->size > STORE_BLOCK_BYTES) /* else all of it is what fill_wait asks for */
        ahead_read(&r->ahead, f, q->offset, n, MIN(r->upstream->bucket->p.readahead, r->most_ahead),
                   /* urgent= */ !there && !patient && !(q->flags & WIRE_NO_WAIT));
    if ((q->flags & WIRE_NO_WAIT) && !there)
        return 0;
    struct fill_bytes got;
    unsigned how = r->upstream->bucket->p.verify == BUCKET_VERIFY_READ ? FILL_CHECKED : 0;
    how |= patient ? FILL_PATIENT : 0;
    int result = fill_wait(f, q->offset, n, how, a, &got, e);
    if (result < 0)
        return result;
    if (got.data.n == 0)
        return fetch_present(r, q, got.available, got.waited, a, rep, e);
    rep->data = got.data;
    count_read(r, got.data.n, /* from_origin= */ true);
    return 0;
}

int op_fetch(struct object_session *ses, const struct wire_fetch_req *req, struct arena *a,
             struct wire_fetch_rep *rep, struct err *e)
{
    struct reader *r = session_get(ses, HANDLE_READ, req->handle, e);
    if (!r)
        return -EBADF;
    int result = 0;
    bool only_doubts = req->flags & WIRE_UNREADABLE && !(req->flags & WIRE_INLINE);
    if (req->flags & WIRE_UNREADABLE && r->extent)
        extent_doubt(r->extent, req->offset, req->n);
    if (req->offset < r->size && req->n > 0 && !only_doubts) {
        uint64_t n = MIN(req->n, r->size - req->offset);
        for (int i = 0; i < OPEN_TRIES; i++) { /* a block found corrupt while it was read is fetched again */
            result = reader_is_complete(r) ? fetch_present(r, req, n, /* waited= */ false, a, rep, e)
                                           : fetch_missing(r, req, n, a, rep, e);
            if (result != ERR_CORRUPT)
                break;
        }
    }
    rep->state = only_doubts ? WIRE_PARTIAL : reader_state(r); /* that would verify */
    if (result < 0)
        result = err_prefix(e, result, "%s/%s", r->upstream->bucket->name, r->key);
    reader_unref(r);
    return result;
}

/* None where the caller reads from the descriptor, unless its disk has no room for what is missing. */
uint64_t reader_reply_bytes(struct reader *r, const struct wire_fetch_req *q)
{
    bool comes = q->flags & WIRE_INLINE || !reader_gives_fd(r);
    if (!comes) {
        LOCK_SCOPE(&r->lock);
        comes = r->fill && fill_is_uncached(r->fill);
    }
    uint64_t left = r->size - MIN(q->offset, r->size);
    return comes ? MIN(MIN(q->n, left), FILL_INLINE_MAX_BYTES) : 0;
}

/* ---- CLOSE ---- */

int op_close(struct object_session *ses, const struct wire_close_req *req, struct arena *a,
             struct wire_close_rep *rep, struct err *e)
{
    (void)a, (void)rep;
    struct reader *r = session_take(ses, HANDLE_READ, req->handle);
    struct watch *w = r ? NULL : session_take(ses, HANDLE_WATCH, req->handle);
    if (w) {
        watch_free(w);
        return 0;
    }
    if (!r)
        return err_set(e, -EBADF, "handle is not open");
    const struct object_claim claim = object_claim(ses, req);
    count_read(r, claim.cached, /* from_origin= */ false);
    count_read(r, claim.origin, /* from_origin= */ true);
    if (r->extent)
        extent_touch(r->extent, MAX(claim.cached + claim.origin, 1));
    reader_unref(r);
    return 0;
}

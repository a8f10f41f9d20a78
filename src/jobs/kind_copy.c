/*
 * copy, sync, export, import: objects from one place to another, through both places' own code paths.
 *
 * An object that the target has already is left alone: one with the same size and the same ETag, where that
 * is a hash of the content; for sync also one that is as large and not older; for export and import one that
 * is as large and has the same modification time, which both keep as metadata (net/posix_meta.h).
 */
#include "net/job_spec.h"
#include "net/posix_meta.h"

#include "base/text.h"
#include "jobs/pour.h"
#include "origin/meta.h"

#include <inttypes.h>

#define MD5_DIGITS  32
#define VERSION_MAX (4 * KIB) /* of its encoded id */

enum mode { MODE_COPY, MODE_SYNC, MODE_EXPORT, MODE_IMPORT };

/* The key on the other side: behind the other prefix what this one has behind its own. */
static struct slice other_key(struct arena *a, struct slice key, struct slice prefix, struct slice other)
{
    struct slice rest = slice_from(key, prefix.n);
    return slice_str(arena_printf(a, SLICE_FMT SLICE_FMT, SLICE_ARG(other), SLICE_ARG(rest)));
}

/* As other_key, where a URL is a folder: what is exported does not begin with a slash, and what is imported
 * lies below its target's prefix. */
static struct slice target_key(struct kind_work *w, enum mode mode, struct slice key)
{
    struct slice to = w->target_prefix;
    struct slice made = other_key(w->arena, key, w->source_prefix, to);
    if (mode == MODE_EXPORT && slice_starts(made, SLICE_LIT("/")))
        return slice_from(made, 1);
    if (mode == MODE_IMPORT && to.n > 0 && !slice_ends(to, SLICE_LIT("/")))
        return slice_str(arena_printf(w->arena, SLICE_FMT "/" SLICE_FMT, SLICE_ARG(to), SLICE_ARG(key)));
    return made;
}

static int stat_at(struct kind_work *w, struct slice bucket, struct slice key, uint32_t flags,
                   struct wire_attr *ret, struct err *e)
{
    struct wire_stat_req req = {.bucket = bucket, .key = key, .flags = flags};
    struct wire_stat_rep rep;
    int r = object_stat(w->session, &req, w->arena, &rep, e);
    if (r == 0)
        *ret = rep.attr;
    return r;
}

static bool is_hash(struct slice etag)
{
    return etag.n == MD5_DIGITS && slice_find(etag, '-') < 0;
}

static bool same_content(const struct wire_attr *x, const struct wire_attr *y)
{
    return is_hash(x->etag) && x->size_bytes == y->size_bytes && slice_eq(x->etag, y->etag);
}

/* The time of the object's last change: as it travels with it, else its place's own. */
static uint64_t changed_ns(const struct wire_attr *x)
{
    struct posix_meta p;
    posix_meta_decode(x->meta, /* is_dir= */ false, &p);
    return p.has & POSIX_HAS_MTIME ? p.mtime_ns : x->mtime_ns;
}

static bool as_there(enum mode mode, const struct wire_attr *from, const struct wire_attr *there)
{
    if (same_content(from, there))
        return true;
    if (from->size_bytes != there->size_bytes || mode == MODE_COPY)
        return false;
    if (mode == MODE_SYNC) /* 0: the source does not tell */
        return from->mtime_ns > 0 && there->mtime_ns >= from->mtime_ns;
    return changed_ns(there) == changed_ns(from);
}

/* What goes along: export and import add the time, where it does not travel yet. */
static struct slice meta_of(struct kind_work *w, enum mode mode, const struct wire_attr *from)
{
    struct posix_meta p;
    bool keeps = mode == MODE_EXPORT || mode == MODE_IMPORT;
    posix_meta_decode(from->meta, /* is_dir= */ false, &p);
    if (!keeps || from->mtime_ns == 0 || p.has & POSIX_HAS_MTIME)
        return from->meta;
    _cleanup_buf_ struct buf line = BUF_INIT(POSIX_META_MAX_BYTES), all = BUF_INIT(from->meta.n + KIB);
    p = (struct posix_meta){.has = POSIX_HAS_MTIME, .mtime_ns = from->mtime_ns};
    int r = posix_meta_encode(&p, &line);
    if (r == 0)
        r = posix_meta_merge(from->meta, buf_view(&line), &all);
    assert(r == 0);
    return arena_dup(w->arena, buf_view(&all));
}

/* "SIZE<TAB>CHECKSUM<TAB>TIME", and of an earlier version "<TAB>VERSION", percent-encoded. */
static struct slice line_of(struct kind_work *w, const struct wire_attr *from, const char *sum,
                            struct slice hex)
{
    char date[32] = "-";
    _cleanup_buf_ struct buf version = BUF_INIT(VERSION_MAX);
    if (changed_ns(from) > 0)
        text_iso8601(changed_ns(from), date);
    if (w->version.n > 0 &&
        (buf_char(&version, '\t') < 0 || text_uri_encode(&version, w->version, /* keep_slash= */ true) < 0))
        buf_clear(&version);
    return slice_str(arena_printf(w->arena, "%" PRIu64 "\t%s:" SLICE_FMT "\t%s" SLICE_FMT, from->size_bytes,
                                  sum, SLICE_ARG(hex), date, SLICE_ARG(buf_view(&version))));
}

/* Which version it is stands in the manifest; the copy is an object like any other. */
static void take_version(struct kind_work *w, struct wire_attr *from)
{
    w->version = meta_get(from->meta, META_VERSION);
    from->meta = meta_without(from->meta, META_VERSION, w->arena);
}

/* Opens the source and puts it under `key` of the target, verified. */
static int send(struct kind_work *w, enum mode mode, const struct kind_object *o, struct wire_attr *from,
                struct slice key, struct err *e)
{
    struct wire_open_req open = {.bucket = w->source_bucket, .key = o->key, .via = WIRE_VIA_API};
    struct wire_open_rep rep;
    struct digest_sums sent;
    int r = object_open(w->session, &open, w->arena, &rep, e);
    if (r < 0)
        return r;
    w->bytes = from->size_bytes = rep.attr.size_bytes;
    r = pour(w, &rep, key, from->content_type, meta_of(w, mode, from), &sent, e);
    struct wire_close_req close = {.handle = rep.handle, .read_cached = w->read_here};
    struct wire_close_rep closed;
    (void)object_close(w->session, &close, w->arena, &closed, NULL);
    if (r == 0)
        r = pour_verify(w, key, &sent, e);
    if (r < 0)
        return r;
    char hex[2 * DIGEST_SHA256 + 1];
    text_hex(sent.sha256, DIGEST_SHA256, hex);
    w->line = line_of(w, from, "sha256", slice_str(hex));
    return KIND_WORKED;
}

/* An export takes the slash behind its prefix away, so that "run/1/x" of b/run becomes "1/x", as "run1/x"
 * does: where both are there, the one with the slash is refused, or one would replace the other. */
static int check_alone(struct kind_work *w, enum mode mode, struct slice key, struct slice other,
                       struct err *e)
{
    if (mode != MODE_EXPORT)
        return 0;
    struct slice twin = other_key(w->arena, other, w->target_prefix, w->source_prefix);
    if (slice_eq(twin, key))
        return 0;
    struct wire_attr attr;
    int r = stat_at(w, w->source_bucket, twin, WIRE_FRESH, &attr, e);
    if (r == 0)
        return err_set(e, -EEXIST, "'" SLICE_FMT "' would have the same name there", SLICE_ARG(twin));
    return r == -ENOENT ? 0 : r;
}

static int copy(struct kind_work *w, const struct kind_object *o, enum mode mode, struct err *e)
{
    struct slice key = target_key(w, mode, o->key);
    struct wire_attr from = {0}, there = {0};
    int r = stat_at(w, w->source_bucket, o->key, 0, &from, e);
    if (r < 0)
        return r;
    take_version(w, &from);
    if (key.n == 0 && from.size_bytes == 0 && slice_ends(o->key, SLICE_LIT("/"))) {
        w->line = line_of(w, &from, "etag", from.etag); /* the folder whose contents go */
        return KIND_SKIPPED;
    }
    if (key.n == 0)
        return err_set(e, -EINVAL, "it is the prefix itself and has no name of its own there");
    w->bytes = from.size_bytes;
    r = check_alone(w, mode, o->key, key, e);
    if (r < 0)
        return r;
    r = stat_at(w, w->target_bucket, key, WIRE_FRESH, &there, e);
    if (r < 0 && r != -ENOENT)
        return r;
    if (r == -ENOENT || !as_there(mode, &from, &there))
        return send(w, mode, o, &from, key, e);
    bool hash = is_hash(from.etag) && slice_eq(from.etag, there.etag);
    w->line = line_of(w, &from, hash ? "md5" : "etag", there.etag);
    return KIND_SKIPPED;
}

int kind_copy(struct kind_work *w, const struct kind_object *o, struct err *e)
{
    return copy(w, o, MODE_COPY, e);
}

int kind_sync(struct kind_work *w, const struct kind_object *o, struct err *e)
{
    return copy(w, o, MODE_SYNC, e);
}

int kind_export(struct kind_work *w, const struct kind_object *o, struct err *e)
{
    return copy(w, o, MODE_EXPORT, e);
}

int kind_import(struct kind_work *w, const struct kind_object *o, struct err *e)
{
    return copy(w, o, MODE_IMPORT, e);
}

int kind_sweep(struct kind_work *w, const struct kind_object *o, struct err *e)
{
    struct slice source = other_key(w->arena, o->key, w->target_prefix, w->source_prefix);
    struct wire_attr attr;
    int r = stat_at(w, w->source_bucket, source, 0, &attr, e);
    if (r == -ENOENT) /* remembered is not enough for a removal */
        r = stat_at(w, w->source_bucket, source, WIRE_FRESH, &attr, e);
    if (r != -ENOENT)
        return r < 0 ? r : KIND_SKIPPED;
    struct wire_remove_req req = {.bucket = w->target_bucket, .key = o->key};
    struct wire_remove_rep rep;
    return object_remove(w->session, &req, w->arena, &rep, e);
}

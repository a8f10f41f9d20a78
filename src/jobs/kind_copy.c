/*
 * copy, sync, export, import: objects from one place to another, through both places' own code paths.
 *
 * An object that the target has already is left alone: one with the same size and the same ETag, where that
 * is a hash of the content; for sync also one that is as large and not older; for export and import one that
 * is as large and has the same modification time, which both keep as metadata (net/posix_meta.h).
 *
 * What is not older must not be a copy of what was there before: a sync whose ETags do not tell looks at the
 * source again when it has written, and copies anew what was replaced meanwhile.
 *
 * Where the bucket of an export or import has modes and owners (w->modes), they go along as that metadata,
 * and what is there already gets those that changed. A target's directory is made before what is in it, so
 * that it can be written to, and gets its mode and time when all is there (kind_*_dir).
 */
#include "net/job_spec.h"
#include "net/posix_meta.h"

#include "base/text.h"
#include "jobs/pour.h"
#include "namespace/attr.h"
#include "origin/meta.h"

#include <inttypes.h>
#include <sys/stat.h>

#define MD5_DIGITS  32
#define VERSION_MAX (4 * KIB) /* of its encoded id */
/* S3 takes signatures that are a quarter of an hour off, either way, of who asks both services. */
#define CLOCKS_APART_NS ((uint64_t)3600000000000)
#define SECOND_NS       ((uint64_t)1000000000)
#define SEND_TRIES      3   /* of what is replaced while it is copied */
#define AT_ONCE_MAX     MIB /* of an object whose attributes and bytes come with one answer */

enum mode { MODE_COPY, MODE_SYNC, MODE_EXPORT, MODE_IMPORT };

/* What it puts has the time of its source, and else the one of its arrival. */
static bool keeps_times(enum mode mode)
{
    return mode == MODE_EXPORT || mode == MODE_IMPORT;
}

/* What the source has: its attributes, and the object, where it had to be opened for them. */
struct source_object {
    struct wire_attr attr;
    bool is_opened;
    struct wire_open_rep open;
};

/* The key on the other side: behind the other prefix what this one has behind its own. */
static struct slice other_key(struct arena *a, struct slice key, struct slice prefix, struct slice other)
{
    struct slice rest = slice_from(key, prefix.n);
    return slice_str(arena_printf(a, SLICE_FMT SLICE_FMT, SLICE_ARG(other), SLICE_ARG(rest)));
}

/* As other_key, where a URL is a folder: what goes there does not begin with the slash behind a prefix (of an
 * export with none at all), and what comes from there lies below its target's prefix. */
static struct slice target_key(struct kind_work *w, enum mode mode, struct slice key)
{
    struct slice to = w->target_prefix, from = w->source_prefix;
    struct slice made = other_key(w->arena, key, from, to);
    bool is_behind = mode == MODE_EXPORT || (from.n > 0 && !slice_ends(from, SLICE_LIT("/")));
    if (w->to_origin && is_behind && slice_starts(made, SLICE_LIT("/")))
        return slice_from(made, 1);
    if (w->from_origin && to.n > 0 && !slice_ends(to, SLICE_LIT("/")))
        return slice_str(arena_printf(w->arena, SLICE_FMT "/" SLICE_FMT, SLICE_ARG(to), SLICE_ARG(key)));
    return made;
}

static int stat_at(struct kind_work *w, struct slice bucket, struct slice key, uint32_t flags,
                   struct wire_attr *ret, struct err *e)
{
    struct wire_stat_req req = {.bucket = bucket, .key = key, .flags = flags | pour_flags(w)};
    struct wire_stat_rep rep;
    int r = object_stat(w->session, &req, w->arena, &rep, e);
    if (r == 0)
        *ret = rep.attr;
    return r;
}

/* ---- modes and owners ---- */

static bool is_dir_key(struct slice key)
{
    return slice_ends(key, SLICE_LIT("/"));
}

struct compared {
    bool kind, mode, owner, time; /* the same there; what the source does not say is */
};

static struct compared compare(const struct wire_attr *from, const struct wire_attr *there, bool is_dir)
{
    struct posix_meta x, y;
    posix_meta_decode(from->meta, is_dir, &x);
    posix_meta_decode(there->meta, is_dir, &y);
    uint32_t bits = is_dir ? 07777 : 01777; /* as origins give them to files */
    bool is_link = x.has & POSIX_HAS_MODE && S_ISLNK(x.mode);
    bool has_link = y.has & POSIX_HAS_MODE && S_ISLNK(y.mode);
    bool says = y.has & POSIX_HAS_MODE;
    return (struct compared){
        .kind = is_link == has_link,
        .mode = is_link || !(x.has & POSIX_HAS_MODE) || (says && (x.mode & bits) == (y.mode & bits)),
        .owner = (!(x.has & POSIX_HAS_UID) || (y.has & POSIX_HAS_UID && x.uid == y.uid)) &&
                 (!(x.has & POSIX_HAS_GID) || (y.has & POSIX_HAS_GID && x.gid == y.gid)),
        .time = !(x.has & POSIX_HAS_MTIME) ||
                x.mtime_ns == (y.has & POSIX_HAS_MTIME ? y.mtime_ns : there->mtime_ns),
    };
}

static bool is_link(const struct wire_attr *x)
{
    struct posix_meta p;
    posix_meta_decode(x->meta, /* is_dir= */ false, &p);
    return p.has & POSIX_HAS_MODE && S_ISLNK(p.mode);
}

/* Gives what is at the target the source's mode, owner and time. */
static int give_modes(struct kind_work *w, struct slice key, const struct wire_attr *from,
                      const struct wire_attr *there, struct err *e)
{
    bool is_dir = is_dir_key(key);
    struct posix_meta p;
    _cleanup_buf_ struct buf lines = BUF_INIT(POSIX_META_MAX_BYTES);
    posix_meta_decode(from->meta, is_dir, &p);
    if (!is_dir)
        p.mode &= ~(uint32_t)(S_ISUID | S_ISGID);
    int r = posix_meta_encode(&p, &lines);
    assert(r == 0);
    struct wire_set_meta_req req = {.bucket = w->target_bucket,
                                    .key = key,
                                    .meta = buf_view(&lines),
                                    .if_match = is_dir ? SLICE_NULL : there->etag,
                                    .flags = WIRE_MODES};
    struct wire_set_meta_rep rep;
    struct wire_attr now = {0};
    r = object_set_meta(w->session, &req, w->arena, &rep, e);
    if (r == 0)
        r = stat_at(w, w->target_bucket, key, WIRE_FRESH, &now, e);
    if (r < 0)
        return r;
    struct compared c = compare(from, &now, is_dir);
    w->modes_lost = !c.mode || !c.owner;
    return KIND_WORKED;
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

static bool are_hashes(const struct wire_attr *x, const struct wire_attr *y)
{
    return is_hash(x->etag) && is_hash(y->etag);
}

/* Whose clock the times are of may not be the same: of other bytes, as MD5s say, one that was written within
 * what clocks differ may be a copy of what was there before. (Other ETags that look like them make another
 * copy of what changed shortly before it was copied.) */
static bool may_be_older(const struct wire_attr *from, const struct wire_attr *there)
{
    uint64_t x = from->mtime_ns, y = there->mtime_ns;
    return are_hashes(from, there) && !slice_eq(from->etag, there->etag) &&
           (x < y ? y - x : x - y) < CLOCKS_APART_NS;
}

/* Whether what is there was written after the source's last change. A source that tells whole seconds may
 * have changed until the end of that one. 0: it does not tell. Of a source that has changed since the job was
 * asked for, what is there may be what this job has read before and, being killed or failing behind that,
 * has not compared with it again (send). */
static bool is_younger(const struct kind_work *w, const struct wire_attr *from, const struct wire_attr *there)
{
    uint64_t changed_ns = from->mtime_ns + (from->mtime_ns % SECOND_NS == 0 ? SECOND_NS - 1 : 0);
    return from->mtime_ns > 0 && there->mtime_ns >= changed_ns && changed_ns < w->created_ns;
}

static bool as_there(const struct kind_work *w, enum mode mode, const struct wire_attr *from,
                     const struct wire_attr *there)
{
    struct compared c = compare(from, there, /* is_dir= */ false);
    bool says = slice_find_slice(there->meta, SLICE_LIT(POSIX_META_MODE)) >= 0;
    if (w->modes && (!c.kind || (w->no_set && says && !c.mode)))
        return false;
    if (same_content(from, there))
        return true;
    if (from->size_bytes != there->size_bytes || mode == MODE_COPY)
        return false;
    if (may_be_older(from, there))
        return false;
    return mode == MODE_SYNC ? is_younger(w, from, there) : changed_ns(there) == changed_ns(from);
}

/* What goes along: export and import add the time, where it does not travel yet. `open`: of a directory into
 * which this job will write. */
static struct slice meta_of(struct kind_work *w, enum mode mode, const struct wire_attr *from, bool open)
{
    struct posix_meta p;
    posix_meta_decode(from->meta, open, &p);
    open = open && p.has & POSIX_HAS_MODE && (p.mode & S_IRWXU) != S_IRWXU;
    bool timed = keeps_times(mode) && from->mtime_ns > 0 && !(p.has & POSIX_HAS_MTIME);
    if (!timed && !open)
        return from->meta;
    _cleanup_buf_ struct buf line = BUF_INIT(POSIX_META_MAX_BYTES), all = BUF_INIT(from->meta.n + KIB);
    p = (struct posix_meta){.has = (timed ? POSIX_HAS_MTIME : 0u) | (open ? POSIX_HAS_MODE : 0u),
                            .mode = p.mode | S_IRWXU,
                            .mtime_ns = from->mtime_ns};
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

/* Which tags it has, where the source's origin keeps them, and told only that there are some. */
static int take_tags(struct kind_work *w, struct slice key, struct wire_attr *from, struct err *e)
{
    if (meta_get(from->meta, META_TAG_COUNT).n == 0)
        return 0;
    struct wire_tags_req req = {.bucket = w->source_bucket, .key = key};
    struct wire_tags_rep rep;
    int r = object_tags(w->session, &req, w->arena, &rep, e);
    if (r < 0)
        return r;
    from->meta = meta_without(from->meta, META_TAG_COUNT, w->arena);
    from->meta = meta_with(from->meta, META_TAGS, rep.tags, ORIGIN_META_MAX_BYTES, w->arena);
    return 0;
}

/* ---- sending ---- */

/* expect: how much of it the first answer shall bring, with the metadata; 0: as it comes, without. */
static int source_open(struct kind_work *w, const struct kind_object *o, uint64_t expect,
                       struct source_object *s, struct err *e)
{
    struct wire_open_req open = {.bucket = w->source_bucket,
                                 .key = o->key,
                                 .expect = expect,
                                 .via = WIRE_VIA_API,
                                 .flags = pour_flags(w) | (expect > 0 ? WIRE_META : 0)};
    int r = object_open(w->session, &open, w->arena, &s->open, e);
    s->is_opened = r == 0;
    return r;
}

static void source_close(struct kind_work *w, struct source_object *s)
{
    struct wire_close_req close = {.handle = s->open.handle, .read_cached = w->read_here};
    struct wire_close_rep closed;
    if (s->is_opened)
        (void)object_close(w->session, &close, w->arena, &closed, NULL);
    s->is_opened = false;
}

/* Opens what is to be sent. It may be another version than was looked at, whose type, metadata and tags do
 * not belong to these bytes: where they would stay, no later job would see it, as the ETags are the same. */
static int open_to_send(struct kind_work *w, const struct kind_object *o, struct source_object *source,
                        struct err *e)
{
    struct wire_attr now = {0};
    int r = source_open(w, o, /* expect= */ 0, source, e);
    if (r < 0 || slice_eq(source->open.attr.etag, source->attr.etag))
        return r;
    r = stat_at(w, w->source_bucket, o->key, WIRE_FRESH, &now, e);
    if (r < 0 || !slice_eq(source->open.attr.etag, now.etag))
        return r;
    source->attr = now;
    take_version(w, &source->attr);
    return take_tags(w, o->key, &source->attr, e);
}

/* Opens the source, unless it is, and puts it under `key` of the target, verified. ret_is_put: the target has
 * it, whatever came after. */
static int send_once(struct kind_work *w, enum mode mode, const struct kind_object *o,
                     struct source_object *source, struct slice key, bool is_open,
                     struct wire_attr *ret_there, bool *ret_is_put, struct err *e)
{
    struct wire_attr there = {0}, *from = &source->attr;
    struct digest_sums sent;
    int r = source->is_opened ? 0 : open_to_send(w, o, source, e);
    if (r < 0)
        return r;
    w->bytes = from->size_bytes = source->open.attr.size_bytes;
    from->etag = source->open.attr.etag;
    r = pour(w, &source->open, key, from->content_type, meta_of(w, mode, from, is_open), &sent, e);
    source_close(w, source);
    *ret_is_put = r == 0;
    if (r == 0)
        r = pour_verify(w, key, &sent, &there, e);
    if (r < 0)
        return r;
    struct compared c = compare(from, &there, is_dir_key(key));
    w->modes_lost = w->modes && (!c.owner || (!is_open && !c.mode));
    char hex[2 * DIGEST_SHA256 + 1];
    text_hex(sent.sha256, DIGEST_SHA256, hex);
    w->line = line_of(w, from, "sha256", slice_str(hex));
    *ret_there = there;
    return KIND_WORKED;
}

/* Whether the source is another one than was sent, by its origin's word, of which it becomes `from`: 1, 0, or
 * the error. One that is gone is for the walk over the target. */
static int was_replaced(struct kind_work *w, const struct kind_object *o, struct wire_attr *from,
                        struct err *e)
{
    struct wire_attr now = {0};
    int r = stat_at(w, w->source_bucket, o->key, WIRE_FRESH, &now, e);
    if (r == -ENOENT && e)
        e->code = 0;
    if (r < 0)
        return r == -ENOENT ? 0 : r;
    bool is_same = slice_eq(now.etag, from->etag);
    *from = now;
    return !is_same;
}

/* Whether the next sync will see by ETags that the source has changed since it was copied. A file that is
 * written to where it is has another one then, which is no hash. */
static bool etags_tell(const struct kind_work *w, const struct wire_attr *from, const struct wire_attr *there)
{
    return are_hashes(from, there) && !w->from_tree;
}

/* As send_once. The next sync goes by times where ETags do not tell, and what it finds is younger than what
 * replaced the source while this one read it, also where it could not be verified. */
static int send(struct kind_work *w, enum mode mode, const struct kind_object *o,
                struct source_object *source, struct slice key, bool is_open, struct err *e)
{
    struct wire_attr *from = &source->attr;
    for (int i = 0; i < SEND_TRIES; i++) {
        struct wire_attr there = {0};
        bool is_put = false;
        int r = take_tags(w, o->key, from, e);
        r = r < 0 ? r : send_once(w, mode, o, source, key, is_open, &there, &is_put, e);
        if (keeps_times(mode) || !is_put || (r >= 0 && etags_tell(w, from, &there)))
            return r;
        int replaced = was_replaced(w, o, from, r < 0 ? NULL : e);
        if (replaced <= 0)
            return r >= 0 && replaced < 0 ? replaced : r;
        if (e)
            *e = (struct err){0};
        take_version(w, from);
    }
    return err_set(e, ERR_VERSION_CHANGED, "it was replaced at its source each time that it was copied");
}

/* What goes to a URL loses the slash behind its prefix, so that "run/1/x" of b/run becomes "1/x", as "run1/x"
 * does: where both are there, the one with the slash is refused, or one would replace the other. */
static int check_alone(struct kind_work *w, struct slice key, struct slice other, struct err *e)
{
    if (!w->to_origin)
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

static bool is_as_listed(const struct kind_object *o, const struct wire_attr *x)
{
    return o->size_bytes == x->size_bytes && attr_same_time(o->mtime_ns, x->mtime_ns);
}

/* What is remembered of the source may be older than the listing that the job has walked: that was fresh. */
static int stat_source(struct kind_work *w, const struct kind_object *o, struct wire_attr *ret, struct err *e)
{
    int r = stat_at(w, w->source_bucket, o->key, 0, ret, e);
    if (o->mtime_ns == 0 || (r == 0 && is_as_listed(o, ret)) || (r < 0 && r != -ENOENT))
        return r;
    return stat_at(w, w->source_bucket, o->key, WIRE_FRESH, ret, e);
}

/* What the target has not is opened at once where that is worth it: a question for its attributes would take
 * as long as the object itself. */
static bool opens_at_once(const struct kind_work *w, const struct kind_object *o)
{
    return w->from_origin && !w->to_origin && !job_spec_restores(w->spec) && o->mtime_ns > 0 &&
           o->size_bytes > 0 && o->size_bytes <= AT_ONCE_MAX;
}

static int find_source(struct kind_work *w, const struct kind_object *o, bool at_once,
                       struct source_object *ret, struct err *e)
{
    if (at_once) {
        int r = source_open(w, o, o->size_bytes, ret, e);
        if (r < 0)
            return r;
        ret->attr = ret->open.attr;
        if (is_as_listed(o, &ret->attr))
            return 0;
        source_close(w, ret);
    }
    return stat_source(w, o, &ret->attr, e);
}

/* there: NULL when the target has none. */
static int copy_found(struct kind_work *w, const struct kind_object *o, enum mode mode,
                      struct source_object *source, struct slice key, const struct wire_attr *there,
                      struct err *e)
{
    const struct wire_attr *from = &source->attr;
    bool is_dir = w->has_dirs && is_dir_key(key) && from->size_bytes == 0;
    bool has_dir = is_dir && there; /* what it is like is a matter of the end */
    if (!there || (!has_dir && !as_there(w, mode, from, there)))
        return send(w, mode, o, source, key, /* is_open= */ is_dir, e);
    bool hash = is_hash(from->etag) && slice_eq(from->etag, there->etag);
    w->line = line_of(w, from, hash ? "md5" : "etag", there->etag);
    struct compared c = compare(from, there, is_dir_key(key));
    if (!w->modes || has_dir || (c.mode && c.owner && c.time))
        return KIND_SKIPPED;
    w->modes_lost = !c.mode || !c.owner;
    return w->no_set ? KIND_SKIPPED : give_modes(w, key, from, there, e);
}

/* Whether the target has the key: 1, 0, or the error. */
static int find_target(struct kind_work *w, struct slice key, struct wire_attr *ret, struct err *e)
{
    int r = stat_at(w, w->target_bucket, key, WIRE_FRESH, ret, e);
    return r == -ENOENT ? 0 : r < 0 ? r : 1;
}

static int copy_from(struct kind_work *w, const struct kind_object *o, enum mode mode,
                     struct source_object *source, struct err *e)
{
    struct slice key = target_key(w, mode, o->key);
    struct wire_attr there = {0};
    bool asks_first = key.n > 0 && opens_at_once(w, o);
    int has = asks_first ? find_target(w, key, &there, e) : 0;
    int r = has < 0 ? has : find_source(w, o, asks_first && !has, source, e);
    if (r < 0)
        return r;
    take_version(w, &source->attr);
    if (key.n == 0 && source->attr.size_bytes == 0 && slice_ends(o->key, SLICE_LIT("/"))) {
        /* the folder whose contents go */
        w->line = line_of(w, &source->attr, "etag", source->attr.etag);
        return KIND_SKIPPED;
    }
    if (key.n == 0)
        return err_set(e, -EINVAL, "it is the prefix itself and has no name of its own there");
    if (w->no_links && is_link(&source->attr))
        return err_set(e, ERR_NOT_IMPLEMENTED, "is a symbolic link, and the target keeps none");
    w->bytes = source->attr.size_bytes;
    r = check_alone(w, o->key, key, e);
    if (r < 0)
        return r;
    has = asks_first ? has : find_target(w, key, &there, e);
    return has < 0 ? has : copy_found(w, o, mode, source, key, has ? &there : NULL, e);
}

static int copy(struct kind_work *w, const struct kind_object *o, enum mode mode, struct err *e)
{
    struct source_object source = {0};
    int r = copy_from(w, o, mode, &source, e);
    source_close(w, &source);
    return r;
}

/* The directory as the source's is, now that nothing more is put into it. What is not there has failed
 * before, or was removed since. */
static int copy_dir(struct kind_work *w, const struct kind_object *o, enum mode mode, struct err *e)
{
    struct slice key = target_key(w, mode, o->key);
    struct source_object source = {0};
    struct wire_attr *from = &source.attr, there = {0};
    if (key.n == 0)
        return KIND_SKIPPED;
    int r = stat_at(w, w->source_bucket, o->key, 0, from, e);
    if (r == 0)
        r = stat_at(w, w->target_bucket, key, WIRE_FRESH, &there, e);
    if (r == -ENOENT || (r == 0 && from->size_bytes > 0))
        return KIND_SKIPPED;
    if (r < 0)
        return r;
    struct compared c = compare(from, &there, /* is_dir= */ true);
    if (c.mode && c.owner && c.time)
        return KIND_SKIPPED;
    return w->no_set ? send(w, mode, o, &source, key, /* is_open= */ false, e)
                     : give_modes(w, key, from, &there, e);
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

int kind_export_dir(struct kind_work *w, const struct kind_object *o, struct err *e)
{
    return copy_dir(w, o, MODE_EXPORT, e);
}

int kind_import_dir(struct kind_work *w, const struct kind_object *o, struct err *e)
{
    return copy_dir(w, o, MODE_IMPORT, e);
}

/* The first object of the source, which is there now. */
static int find_witness(struct kind_work *w, struct err *e)
{
    struct wire_list_req req = {.bucket = w->source_bucket,
                                .prefix = w->source_prefix,
                                .max = 1,
                                .flags = WIRE_FRESH | pour_flags(w)};
    struct wire_list_rep rep;
    struct wire_entry first;
    int r = object_list(w->session, &req, w->arena, &rep, e);
    if (r == 0 && rep.n_entries == 0)
        return err_set(e, ERR_ORIGIN_FAILED,
                       "the source has no objects at all, as one that is away would: nothing is removed. "
                       "`forebay rm -r` empties the target");
    if (r == 0)
        r = wire_entry_decode(&rep.entries, &first);
    if (r < 0)
        return r;
    LOCK_SCOPE(&w->witness->lock);
    buf_clear(&w->witness->key);
    return buf_slice(&w->witness->key, first.key);
}

/* That an object is missing is believed of a source only that has one: where the place is away, or somebody
 * else answers for it, all are missing. */
static int see_witness(struct kind_work *w, struct err *e)
{
    struct wire_attr attr;
    lock_take(&w->witness->lock);
    struct slice key = arena_dup(w->arena, buf_view(&w->witness->key));
    lock_drop(&w->witness->lock);
    int r = key.n > 0 ? stat_at(w, w->source_bucket, key, WIRE_FRESH, &attr, e) : -ENOENT;
    return r == -ENOENT ? find_witness(w, e) : r;
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
    r = see_witness(w, e);
    if (r < 0 || w->spec->dry_run)
        return r < 0 ? r : KIND_WORKED;
    struct wire_remove_req req = {.bucket = w->target_bucket, .key = o->key};
    struct wire_remove_rep rep;
    return object_remove(w->session, &req, w->arena, &rep, e);
}

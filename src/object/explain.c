/*
 * EXPLAIN: where the bytes of one object are, which of them are here, and whether an open of it could leave
 * reading to the kernel. Nothing is fetched, the origin is not asked, and it counts as no read.
 *
 * Failure modes: what is said is true of the moment; bytes may come and go right after it.
 */
#include "object/back.h"
#include "object/scratch_object_ops.h"

#include "base/sys.h"
#include "base/text.h"

#include <inttypes.h>
#include <jansson.h>

#define WHY_MAX 256
#define MILLION 1000000ull

static void put_number(json_t *o, const char *name, uint64_t n)
{
    (void)json_object_set_new(o, name, json_integer((json_int_t)MIN(n, (uint64_t)INT64_MAX)));
}

static void put_bool(json_t *o, const char *name, bool value)
{
    (void)json_object_set_new(o, name, json_boolean(value));
}

/* What is not UTF-8 is left out. */
static void put_text(json_t *o, const char *name, struct slice s)
{
    (void)json_object_set_new(o, name, json_stringn(s.p ? s.p : "", s.n));
}

/* NULL: it would be. */
static void put_passthrough(json_t *o, const char *why_not)
{
    put_bool(o, "passthrough", !why_not);
    put_text(o, "why_not", slice_str(why_not ? why_not : ""));
}

/* Who asks is in another directory than the node. */
static void put_path(json_t *o, const char *name, const char *path)
{
    _cleanup_free_ char *here = path[0] == '/' || !path[0] ? NULL : getcwd(NULL, 0);
    _cleanup_buf_ struct buf b = BUF_INIT(16 * KIB);
    if (here && buf_printf(&b, "%s/%s", here, path) == 0)
        put_text(o, name, slice_of(b.p, b.n));
    else
        put_text(o, name, slice_str(path));
}

static void put_place(json_t *o, const struct store_place *place)
{
    put_path(o, "disk", place->disk);
    put_path(o, "file", place->file);
}

static int finish(json_t *o, struct arena *a, struct slice *ret, struct err *e)
{
    _cleanup_free_ char *text = json_dumps(o, JSON_COMPACT | JSON_PRESERVE_ORDER);
    json_decref(o);
    if (!text)
        return err_set(e, -ENOMEM, "explain");
    if (strlen(text) >= arena_left(a))
        return err_set(e, -E2BIG, "explain: %zu bytes are too many to be sent", strlen(text));
    *ret = arena_dup(a, slice_str(text));
    return 0;
}

/* ---- mirror buckets ---- */

static const char *keep_name(enum rule_keep keep)
{
    return keep == RULE_KEEP_PINNED ? "pinned" : keep == RULE_KEEP_NEVER ? "never" : "auto";
}

/* The bucket's, or that of a rule for the key. */
static void put_validate(const struct bucket *b, struct slice key, json_t *o)
{
    char text[TEXT_SIZE_MAX + 4] = "ttl:";
    uint64_t ttl_ms;
    if (rules_ttl(&b->rules, key, &ttl_ms))
        (void)text_duration(ttl_ms, text + 4);
    put_text(o, "validate", slice_str(text[4] ? text : b->p.validate ? b->p.validate : ""));
}

/* Whether the origin would be asked before the cached version is served. */
static void put_freshness(struct object_service *s, const struct bucket *b, struct slice key,
                          struct extent *x, struct arena *a, json_t *o)
{
    struct attr known, heard;
    if (object_entry_attr(s, x, a, &known) < 0)
        return;
    bool fresh = !object_heard_otherwise(s, b, key, &known, a) &&
                 (mirror_is_fresh(b, key, known.confirmed_ns, /* is_absent= */ false) ||
                  (mirror_recall(s->mirror, b, key, a, &heard) == 0 && !heard.is_absent &&
                   slice_eq(heard.etag, known.etag) && heard.size_bytes == known.size_bytes));
    put_text(o, "etag", known.etag);
    put_number(o, "confirmed_ms", known.confirmed_ns / MILLION);
    put_bool(o, "fresh", fresh);
}

static void put_why_mirror(const struct bucket *b, const struct extent_counts *c, uint64_t size,
                           bool complete, json_t *o)
{
    char why[WHY_MAX];
    if (b->p.verify == BUCKET_VERIFY_READ)
        (void)snprintf(why, sizeof(why), "verify=read: the node compares every read with its checksum");
    else if (complete)
        why[0] = '\0';
    else if (c->present < c->blocks)
        (void)snprintf(
            why, sizeof(why), "%" PRIu32 " of %" PRIu32 " blocks are not here%s", c->blocks - c->present,
            c->blocks,
            size <= OBJECT_WHOLE_AT_OPEN ? "; an open fetches so small a file first, and then it is" : "");
    else
        (void)snprintf(why, sizeof(why), "%" PRIu32 " blocks are to be verified after an unclean stop",
                       c->suspect);
    put_passthrough(o, why[0] ? why : NULL);
}

static void put_extent(struct object_service *s, const struct bucket *b, struct slice key, struct extent *x,
                       struct arena *a, json_t *o)
{
    struct store_place *place = arena_alloc(a, sizeof(*place));
    struct extent_counts c;
    uint64_t missing_at, missing;
    bool complete =
        extent_size(x) == 0 || extent_is_complete(x); /* as an open would, verifies a few blocks */
    extent_place(x, place);
    extent_count(x, &c);
    put_number(o, "size_bytes", extent_size(x));
    put_number(o, "present_bytes", extent_present_bytes(x));
    put_number(o, "block_bytes", STORE_BLOCK_BYTES);
    put_number(o, "blocks", c.blocks);
    put_number(o, "blocks_present", c.present);
    put_number(o, "blocks_suspect", c.suspect);
    put_bool(o, "complete", complete);
    if (!complete && extent_next_missing(x, 0, &missing_at, &missing) == 0)
        put_number(o, "first_missing_at", missing_at);
    put_number(o, "last_read_ms", c.last_read_ms);
    put_place(o, place);
    put_freshness(s, b, key, x, a, o);
    put_why_mirror(b, &c, extent_size(x), complete, o);
}

/* What is not cached: of what is not in the origin yet write-back has the bytes. */
static void put_uncached(struct object_service *s, const struct bucket *b, struct slice key, json_t *o)
{
    bool is_here = back_has_bytes(s->back, b, key), is_checked = b->p.verify == BUCKET_VERIFY_READ;
    put_bool(o, "unsent", is_here);
    if (is_here)
        put_passthrough(o, is_checked ? "verify=read: it is cached first" : NULL);
    else
        put_passthrough(o, bucket_keep(b, key) == RULE_KEEP_NEVER
                               ? "cache=never: it is read around the cache"
                               : "nothing of it is here: the first read fetches it");
}

int op_explain(struct object_session *ses, const struct wire_explain_req *req, struct arena *a,
               struct wire_explain_rep *rep, struct err *e)
{
    struct object_service *s = ses->service;
    _cleanup_(bucket_unrefp) struct bucket *b = NULL;
    int r = object_check_key(req->key, e);
    if (r == 0)
        r = bucket_find(s->buckets, req->bucket, &b, e);
    if (r < 0)
        return r;
    _cleanup_buf_ struct buf k = BUF_INIT(ORIGIN_KEY_MAX_BYTES + 16);
    _cleanup_(extent_unrefp) struct extent *x = NULL;
    object_store_key(b, req->key, &k);
    r = store_find(s->config.store, buf_view(&k), &x);
    if (r < 0 && r != -ENOENT)
        return err_errno(e, r, "bucket %s", b->name);
    enum rule_keep keep = bucket_keep(b, req->key);
    json_t *o = json_object();
    put_text(o, "kind", SLICE_LIT("mirror"));
    put_bool(o, "cached", x != NULL);
    put_text(o, "keep", slice_str(keep_name(keep)));
    put_validate(b, req->key, o);
    put_text(o, "verify", slice_str(b->p.verify == BUCKET_VERIFY_READ ? "read" : "fill"));
    if (x)
        put_extent(s, b, req->key, x, a, o);
    else
        put_uncached(s, b, req->key, o);
    return finish(o, a, &rep->json, e);
}

/* ---- scratch buckets ---- */

/* How far the node knows the bytes to be what was written. */
static const char *state_of(struct snode *n, uint64_t bucket, uint64_t ino, struct hard *h)
{
    struct sfile *f = sfile_peek(n, bucket, ino);
    uint32_t writers = 0;
    if (f) {
        lock_take(&n->lock);
        writers = f->writers;
        lock_drop(&n->lock);
        sfile_put(n, f);
    }
    return writers > 0 ? "open for writing" : hard_is_sealed(h) ? "sealed" : "to be sealed";
}

static int put_file(struct scratch_op *o, struct scratch_inode *x, struct arena *a, json_t *j, struct err *e)
{
    _cleanup_(hard_unrefp) struct hard *h = NULL;
    int r = snode_find_hard(o->node, o->call.bucket, a, x, &h, e);
    if (r < 0)
        return r;
    put_number(j, "size_bytes", x->size_bytes);
    put_number(j, "allocated_bytes", x->allocated_bytes);
    put_bool(j, "complete", true);
    put_text(j, "etag", scratch_etag(x, a));
    if (h) {
        struct store_place *place = arena_alloc(a, sizeof(*place));
        hard_place(h, place);
        put_place(j, place);
        put_text(j, "state", slice_str(state_of(o->node, o->call.bucket, x->ino, h)));
    }
    const char *why = sroom_quota(o->session->service, o->bucket) > 0
                          ? "the bucket has a quota: what is written is counted first"
                          : NULL;
    put_passthrough(j, why); /* an empty file gets its place when it is opened */
    return 0;
}

static const char *type_name(uint32_t mode)
{
    switch (mode & S_IFMT) {
    case S_IFREG:
        return "file";
    case S_IFDIR:
        return "directory";
    case S_IFLNK:
        return "symbolic link";
    default:
        return "special file";
    }
}

int op_scratch_explain(struct scratch_op *o, const struct wire_explain_req *req, struct arena *a,
                       struct wire_explain_rep *rep, struct err *e)
{
    struct scratch_inode x;
    int r = req->ino ? scratch_getattr(o->node->names, o->call.bucket, req->ino, a, &x, e)
                     : object_check_key(req->key, e);
    if (r == 0 && req->ino == 0)
        r = scratch_find(o->node->names, o->call.bucket, req->key, a, &x, e);
    if (r < 0)
        return r;
    snode_fresh(o->node, o->call.bucket, a, &x);
    json_t *j = json_object();
    put_text(j, "kind", SLICE_LIT("scratch"));
    put_text(j, "type", slice_str(type_name(x.mode)));
    put_number(j, "inode", x.ino);
    put_number(j, "links", x.links);
    if (S_ISREG(x.mode))
        r = put_file(o, &x, a, j, e);
    else
        put_passthrough(j, "it has no bytes of its own");
    if (r < 0) {
        json_decref(j);
        return r;
    }
    return finish(j, a, &rep->json, e);
}

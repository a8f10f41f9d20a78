/* Operations on names: stat, list, remove, copy and rename, directories. */
#include "object/back.h"
#include "object/object_internal.h"

#include "base/sys.h"

#define ENTRY_KEY_MAX (ORIGIN_KEY_MAX_BYTES + 8)
#define MOVE_TRIES    4
#define GONE_ARENA    (64 * KIB)

/* What the cached entry says: *ret_believed when it may be believed, which saves the question after a
 * restart. */
static int stat_cached(struct object_service *s, const struct bucket *b, const struct wire_stat_req *q,
                       struct arena *a, struct attr *ret, bool *ret_believed)
{
    *ret_believed = false;
    if (q->key.n == 0 || q->key.n > ORIGIN_KEY_MAX_BYTES)
        return -ENOENT;
    _cleanup_buf_ struct buf k = BUF_INIT(ENTRY_KEY_MAX);
    object_store_key(b, q->key, &k);
    _cleanup_(extent_unrefp) struct extent *x = NULL;
    int r = store_find(s->config.store, buf_view(&k), &x);
    if (r == 0)
        r = object_entry_attr(s, x, a, ret);
    if (r < 0)
        return r;
    bool enough = ((q->flags & WIRE_POSIX) && !(q->flags & WIRE_META)) || ret->has_meta;
    bool fresh = mirror_is_fresh(b, q->key, ret->confirmed_ns, /* is_absent= */ false) &&
                 !object_heard_otherwise(s, b, q->key, ret, a);
    *ret_believed = enough && fresh && !(q->flags & WIRE_FRESH);
    return 0;
}

/* Whether both are of the same bytes; those of write-back have had another ETag here. */
static bool is_same_version(struct object_service *s, const struct bucket *b, struct slice key,
                            const struct attr *cached, const struct attr *now)
{
    return cached->size_bytes == now->size_bytes && now->etag.n > 0 &&
           (slice_eq(cached->etag, now->etag) ||
            back_is_sent_as(s->back, b->id, key, cached->etag, now->etag));
}

/* Of a mirror bucket only the origin knows: PART asks it. */
int op_parts(struct object_session *ses, const struct wire_parts_req *req, struct arena *a,
             struct wire_parts_rep *rep, struct err *e)
{
    (void)a, (void)rep;
    _cleanup_(upstream_unrefp) struct upstream *u = NULL;
    return object_upstream(ses->service, req->bucket, &u, e);
}

/* Origins do not agree in how they refuse a number beyond the last part: its first says how many there are.
 */
static int find_part(struct upstream *u, const struct wire_part_req *q, struct arena *a,
                     struct origin_attr *ret, struct err *e)
{
    struct err local = {0};
    int r = upstream_part(u, q->key, q->etag, q->number, a, ret, &local);
    if (r < 0 && r != -ENOENT && r != ERR_PRECONDITION && !retry_is_transient(r) && q->number > 1) {
        int first = upstream_part(u, q->key, q->etag, 1, a, ret, NULL);
        if (first == 0 && ret->n_parts > 0 && q->number > ret->n_parts)
            return err_set(e, ERR_RANGE, "the object has %u parts", ret->n_parts);
    }
    if (r < 0 && e)
        *e = local;
    return r;
}

int op_part(struct object_session *ses, const struct wire_part_req *req, struct arena *a,
            struct wire_part_rep *rep, struct err *e)
{
    _cleanup_(upstream_unrefp) struct upstream *u = NULL;
    struct origin_attr attr = {0};
    int r = object_check_key(req->key, e);
    if (r == 0)
        r = object_upstream(ses->service, req->bucket, &u, e);
    if (r < 0 || req->number == 0 || !(u->origin->capabilities & ORIGIN_CAN_PARTS))
        return r;
    r = find_part(u, req, a, &attr, e);
    if (r == 0 && !slice_eq(attr.etag, req->etag))
        r = ERR_PRECONDITION;
    if (r == ERR_PRECONDITION || r == -ENOENT)
        return err_set(e, -ESTALE, "the object has another ETag");
    if (r < 0)
        return err_prefix(e, r, "%s/" SLICE_FMT, u->bucket->name, SLICE_ARG(req->key));
    rep->n_parts = attr.n_parts;
    rep->offset = attr.part_offset;
    rep->size = attr.part_bytes;
    return 0;
}

int op_stat(struct object_session *ses, const struct wire_stat_req *req, struct arena *a,
            struct wire_stat_rep *rep, struct err *e)
{
    struct object_service *s = ses->service;
    _cleanup_(upstream_unrefp) struct upstream *u = NULL;
    int r = object_upstream(s, req->bucket, &u, e);
    if (r < 0)
        return r;
    bool posix = req->flags & WIRE_POSIX, full = !posix || (req->flags & WIRE_META);
    struct attr attr, cached;
    bool believed, has_cached = stat_cached(s, u->bucket, req, a, &cached, &believed) == 0;
    if (believed) {
        attr = cached;
    } else {
        r = mirror_stat(s->mirror, u, req->key, posix, full, req->flags & WIRE_FRESH, a, &attr, e);
        if (r < 0)
            return err_prefix(e, r, "%s/" SLICE_FMT, u->bucket->name, SLICE_ARG(req->key));
        if (has_cached && is_same_version(s, u->bucket, req->key, &cached, &attr))
            attr_keep_checksum(&attr, cached.meta, a);
    }
    attr_to_wire(&attr, a, &rep->attr);
    return 0;
}

int op_list(struct object_session *ses, const struct wire_list_req *req, struct arena *a,
            struct wire_list_rep *rep, struct err *e)
{
    _cleanup_(upstream_unrefp) struct upstream *u = NULL;
    int r = object_upstream(ses->service, req->bucket, &u, e);
    if (r < 0)
        return r;
    r = mirror_list(ses->service->mirror, u, req, a, rep, e);
    return r < 0 ? err_prefix(e, r, "list %s/" SLICE_FMT, u->bucket->name, SLICE_ARG(req->prefix)) : 0;
}

/* ---- remove ---- */

static int must_be_file(struct object_service *s, struct upstream *u, struct slice key, struct arena *a,
                        struct attr *ret, struct err *e)
{
    int r =
        mirror_stat(s->mirror, u, key, /* posix= */ true, /* full= */ false, /* fresh= */ false, a, ret, e);
    if (r == 0 && ret->is_directory)
        return err_set(e, -EISDIR, "is a directory");
    return r;
}

/* What is not there counts as removed, whatever the condition; kinds of origins differ in what they say of
 * one where nothing is. */
static bool is_gone(struct upstream *u, struct slice key)
{
    _cleanup_(arena_freep) struct arena *a = arena_new(GONE_ARENA);
    struct origin_attr now;
    return upstream_head(u, key, SLICE_NULL, a, &now, NULL) == -ENOENT;
}

int op_remove(struct object_session *ses, const struct wire_remove_req *req, struct arena *a,
              struct wire_remove_rep *rep, struct err *e)
{
    (void)rep;
    struct object_service *s = ses->service;
    int r = object_check_key(req->key, e);
    if (r < 0)
        return r;
    _cleanup_(upstream_unrefp) struct upstream *u = NULL;
    r = object_upstream(s, req->bucket, &u, e);
    if (r < 0)
        return r;
    struct attr attr;
    if (req->flags & WIRE_POSIX)
        r = must_be_file(s, u, req->key, a, &attr, e);
    if (r == 0 && u->bucket->p.write == BUCKET_WRITE_BACK)
        r = back_wait_record(s->back, u->bucket, req->key, e);
    if (r == 0)
        r = upstream_remove(u, req->key, req->if_match, e);
    (void)object_forget_key(s, u->bucket, req->key); /* also after a failure: it may have happened */
    bool posix = req->flags & WIRE_POSIX;
    if (!posix && (r == -ENOENT || (r == ERR_PRECONDITION && is_gone(u, req->key))))
        r = 0;
    return r < 0 ? err_prefix(e, r, "remove %s/" SLICE_FMT, u->bucket->name, SLICE_ARG(req->key)) : 0;
}

/* ---- copy, rename ---- */

static int check_target(struct object_service *s, struct upstream *u, const struct wire_copy_req *q,
                        struct arena *a, struct err *e)
{
    bool exclusive = q->flags & WIRE_NOREPLACE;
    if (!exclusive && !(q->flags & WIRE_POSIX))
        return 0;
    struct attr there;
    int r = mirror_stat(s->mirror, u, q->to, /* posix= */ q->flags & WIRE_POSIX, /* full= */ false,
                        /* fresh= */ exclusive, a, &there, e);
    if (r == -ENOENT)
        return 0;
    if (r < 0)
        return r;
    if (exclusive)
        return err_set(e, -EEXIST, "the target exists");
    return there.is_directory ? err_set(e, -EISDIR, "the target is a directory") : 0;
}

/* Copies, and removes what was copied: the version that was there just before, so that nothing that somebody
 * writes under the old name meanwhile is lost. ERR_PRECONDITION: somebody did. */
static int move_once(struct object_service *s, struct upstream *u, const struct wire_copy_req *q,
                     struct arena *a, struct origin_attr *ret, struct err *e)
{
    struct origin_attr from = {0};
    /* What write-back carries out between the two has another ETag there: ERR_PRECONDITION, too. */
    int r = upstream_head(u, q->from, SLICE_NULL, a, &from, e);
    if (r == 0)
        r = back_copy_moved(s->back, u, q->from, q->to, a, ret, e);
    if (r == -EAGAIN)
        r = upstream_copy(u, q->from, q->to, a, ret, e);
    (void)object_forget_key(s, u->bucket, q->to);
    if (r < 0)
        return r;
    r = upstream_remove(u, q->from, from.etag, e);
    (void)object_forget_key(s, u->bucket, q->from);
    ret->size_bytes = from.etag.n > 0 ? from.size_bytes : ret->size_bytes;
    return r == -ENOENT ? 0 : r;
}

static int move(struct object_service *s, struct upstream *u, const struct wire_copy_req *q, struct arena *a,
                struct origin_attr *ret, struct err *e)
{
    int r = ERR_PRECONDITION;
    for (int i = 0; r == ERR_PRECONDITION && i < MOVE_TRIES; i++)
        r = move_once(s, u, q, a, ret, e);
    return r == ERR_PRECONDITION
               ? err_set(e, -EBUSY, "it is being written again and again; both names are there now")
               : r;
}

static int copy(struct object_service *s, struct upstream *u, const struct wire_copy_req *q, struct arena *a,
                struct attr *ret, struct err *e)
{
    if (!(u->origin->capabilities & ORIGIN_CAN_COPY))
        return err_set(e, ERR_NOT_IMPLEMENTED, "the origin cannot copy objects by itself");
    struct attr from;
    int r = q->flags & WIRE_POSIX
                ? must_be_file(s, u, q->from, a, &from, e)
                : mirror_stat(s->mirror, u, q->from, /* posix= */ false, /* full= */ false,
                              /* fresh= */ false, a, &from, e); /* any key is an object's, "dir/" too */
    if (r == -EISDIR && q->flags & WIRE_MOVE)
        return object_move_tree(s, u, q, a, ret, e);
    if (r == 0)
        r = check_target(s, u, q, a, e);
    if (r < 0)
        return r;
    struct origin_attr answer = {0};
    if (slice_eq(q->from, q->to)) {
        *ret = from;
        return 0;
    }
    answer.size_bytes = from.size_bytes;
    if (q->flags & WIRE_MOVE) {
        r = move(s, u, q, a, &answer, e);
    } else {
        r = upstream_copy(u, q->from, q->to, a, &answer, e);
        (void)object_forget_key(s, u->bucket, q->to);
    }
    if (r == 0)
        *ret = attr_of_origin(&answer, /* has_meta= */ false, sys->real_ns());
    return r;
}

int op_copy(struct object_session *ses, const struct wire_copy_req *req, struct arena *a,
            struct wire_copy_rep *rep, struct err *e)
{
    int r = object_check_key(req->from, e);
    if (r == 0)
        r = object_check_key(req->to, e);
    if (r < 0)
        return r;
    _cleanup_(upstream_unrefp) struct upstream *u = NULL;
    r = object_upstream(ses->service, req->bucket, &u, e);
    if (r < 0)
        return r;
    struct attr attr;
    r = copy(ses->service, u, req, a, &attr, e);
    if (r < 0)
        return err_prefix(e, r, "%s %s/" SLICE_FMT, req->flags & WIRE_MOVE ? "rename" : "copy",
                          u->bucket->name, SLICE_ARG(req->from));
    attr_to_wire(&attr, a, &rep->attr);
    return 0;
}

/* ---- directories ---- */

static ssize_t empty_body(void *arg, void *p, size_t n, uint64_t offset)
{
    (void)arg, (void)p, (void)n, (void)offset;
    return 0;
}

static int check_directory_key(struct slice key, struct err *e)
{
    int r = object_check_key(key, e);
    if (r == 0 && !mirror_key_is_path(key))
        return err_set(e, -EINVAL, "not a path");
    return r;
}

static int make_directory(struct object_service *s, struct upstream *u, struct slice key, struct slice meta,
                          struct arena *a, struct attr *ret, struct err *e)
{
    struct attr there;
    int r =
        mirror_stat(s->mirror, u, key, /* posix= */ true, /* full= */ false, /* fresh= */ true, a, &there, e);
    if (r == 0)
        return err_set(e, -EEXIST, "exists already");
    if (r != -ENOENT)
        return r;
    struct slice marker = slice_str(arena_printf(a, SLICE_FMT "/", SLICE_ARG(key)));
    struct origin_put put = {.key = marker, .meta = meta};
    struct origin_body body = {.read = empty_body};
    struct origin_attr answer;
    r = upstream_put(u, &put, &body, a, &answer, e);
    (void)object_forget_key(s, u->bucket, marker);
    uint64_t seen = object_forget_key(s, u->bucket, key);
    if (r < 0)
        return r;
    *ret = (struct attr){.is_directory = true,
                         .has_meta = true,
                         .meta = meta,
                         .mtime_ns = sys->real_ns(),
                         .confirmed_ns = sys->real_ns()};
    mirror_learn(s->mirror, u->bucket, key, ret, seen);
    return 0;
}

int op_mkdir(struct object_session *ses, const struct wire_mkdir_req *req, struct arena *a,
             struct wire_mkdir_rep *rep, struct err *e)
{
    int r = check_directory_key(req->key, e);
    if (r == 0)
        r = object_check_meta(req->meta, e);
    if (r < 0)
        return r;
    _cleanup_(upstream_unrefp) struct upstream *u = NULL;
    r = object_upstream(ses->service, req->bucket, &u, e);
    if (r < 0)
        return r;
    struct attr attr;
    r = make_directory(ses->service, u, req->key, req->meta, a, &attr, e);
    if (r < 0)
        return err_prefix(e, r, "mkdir %s/" SLICE_FMT, u->bucket->name, SLICE_ARG(req->key));
    attr_to_wire(&attr, a, &rep->attr);
    return 0;
}

int op_rmdir(struct object_session *ses, const struct wire_rmdir_req *req, struct arena *a,
             struct wire_rmdir_rep *rep, struct err *e)
{
    (void)rep;
    struct object_service *s = ses->service;
    int r = check_directory_key(req->key, e);
    if (r < 0)
        return r;
    _cleanup_(upstream_unrefp) struct upstream *u = NULL;
    r = object_upstream(s, req->bucket, &u, e);
    if (r < 0)
        return r;
    bool has_marker = false;
    r = mirror_check_empty(s->mirror, u, req->key, a, &has_marker, e);
    struct slice marker = slice_str(arena_printf(a, SLICE_FMT "/", SLICE_ARG(req->key)));
    if (r == 0 && has_marker)
        r = upstream_remove(u, marker, SLICE_NULL, e);
    (void)object_forget_key(s, u->bucket, marker);
    (void)object_forget_key(s, u->bucket, req->key);
    return r < 0 ? err_prefix(e, r, "rmdir %s/" SLICE_FMT, u->bucket->name, SLICE_ARG(req->key)) : 0;
}

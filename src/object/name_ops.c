/*
 * Operations on names: stat, list, remove, copy and rename, directories.
 *
 * Changes that a mount asks for under a number have an intent (intent.h): what it is when it is begun says
 * whether they were asked for before, by a mount that did not get the answer because the node was killed.
 * What may have been done then is looked for, and done when it was not; what can only be somebody else's
 * stays.
 */
#include "object/back.h"
#include "object/object_internal.h"

#include "base/md5.h"
#include "base/sys.h"
#include "net/posix_meta.h"

#define ENTRY_KEY_MAX (ORIGIN_KEY_MAX_BYTES + 8)
#define MOVE_TRIES    4
#define GONE_ARENA    (64 * KIB)

enum believed { BELIEVED_NOT, BELIEVED_AT_NEED, BELIEVED };

/* What the cached entry says, and whether it may be believed, which saves the question after a restart:
 * AT_NEED where it is too old for that and tells enough. */
static int stat_cached(struct object_service *s, const struct bucket *b, const struct wire_stat_req *q,
                       struct arena *a, struct attr *ret, enum believed *ret_believed)
{
    *ret_believed = BELIEVED_NOT;
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
    bool fresh = mirror_is_fresh(b, q->key, ret->confirmed_ns, /* is_absent= */ false);
    if (enough && !(q->flags & WIRE_FRESH) && !object_heard_otherwise(s, b, q->key, ret, a))
        *ret_believed = fresh ? BELIEVED : BELIEVED_AT_NEED;
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
    rep->checksum = attr.part_sum;
    return 0;
}

/* What was said of the key before, for the case that nobody says anything now. False: nothing, or nothing
 * that would do: not for a job, which says what is there. */
static bool recall_old(struct object_session *ses, const struct bucket *b, const struct wire_stat_req *q,
                       enum believed believed, const struct attr *cached, struct arena *a, struct attr *ret)
{
    bool posix = q->flags & WIRE_POSIX, full = !posix || (q->flags & WIRE_META);
    bool of_job = ses->quit.now && ses->via != WIRE_VIA_S3; /* whose copies have a flag, too */
    if (q->flags & WIRE_FRESH || b->validate == BUCKET_VALIDATE_ALWAYS || of_job)
        return false;
    if (mirror_stat_before(ses->service->mirror, b, q->key, posix, full, a, ret) == 0)
        return true;
    if (believed == BELIEVED_AT_NEED)
        *ret = *cached;
    return believed == BELIEVED_AT_NEED;
}

/* What the origin says, or `old` where it says nothing. */
static int stat_doubted(struct object_service *s, struct upstream *u, const struct wire_stat_req *q,
                        const struct attr *old, struct arena *a, struct attr *ret, struct err *e)
{
    bool posix = q->flags & WIRE_POSIX, full = !posix || (q->flags & WIRE_META);
    struct upstream_doubt doubt;
    bool is_fresh = mirror_is_fresh(u->bucket, q->key, old->confirmed_ns, /* is_absent= */ false);
    if (!is_fresh && upstream_doubt_begin(u, &doubt)) {
        int r = mirror_stat(s->mirror, u, q->key, posix, full, /* fresh= */ false, a, ret, e);
        if (!upstream_doubt_end(&doubt, r))
            return r;
    }
    *ret = *old;
    return 0;
}

/* Whether a mount asks for a name of which nothing is known here, so that the origin is asked. */
static bool is_looked_up(struct object_session *ses, const struct upstream *u, const struct wire_stat_req *q,
                         struct arena *a)
{
    struct attr known;
    return ses->via == WIRE_VIA_MOUNT && q->flags & WIRE_POSIX && !(q->flags & WIRE_FRESH) &&
           mirror_key_is_path(q->key) &&
           mirror_recall(ses->service->mirror, u->bucket, q->key, a, &known) < 0;
}

/* Whether the open that is likely to follow would find what came with its look-up, and ask for no less. */
static bool may_fetch(struct object_service *s, const struct upstream *u, struct slice key)
{
    const struct bucket *b = u->bucket;
    unsigned can = u->origin->capabilities;
    return can & ORIGIN_CAN_RANGE && !(can & ORIGIN_BYTES_ALONE) && key.n <= ORIGIN_KEY_MAX_BYTES &&
           mirror_is_fresh(b, key, sys->real_ns(), /* is_absent= */ false) &&
           bucket_keep(b, key) != RULE_KEEP_NEVER && !back_has(s->back, b->id, key) &&
           lookups_expect_open(s->lookups, b->place, key);
}

/* An origin that is away was waited for as long as it may be, and whoever gives up waits for nothing more. */
static bool is_final(int r)
{
    return retry_is_transient(r) || r == -ECANCELED || r == ERR_CLOSED;
}

/* What there is by a name that a mount looks up: with the first bytes of a file that is likely to be opened
 * next. Where they cannot be had, it is asked for as always. */
static int look_up(struct object_session *ses, struct upstream *u, const struct wire_stat_req *q,
                   struct arena *a, struct attr *ret, struct err *e)
{
    struct object_service *s = ses->service;
    struct err why = {0};
    int r = may_fetch(s, u, q->key) ? object_look_up(ses, u, q->key, a, ret, &why) : -EEXIST;
    bool is_fetched = r == 0;
    if (is_final(r) && is_looked_up(ses, u, q, a)) { /* its attributes may have come nevertheless */
        if (e)
            *e = why;
        return r;
    }
    if (r < 0)
        r = mirror_stat(s->mirror, u, q->key, /* posix= */ true, q->flags & WIRE_META, /* fresh= */ false, a,
                        ret, e);
    if (r == 0 && !ret->is_directory)
        lookups_note(s->lookups, u->bucket->place, q->key,
                     ret->size_bytes > 0 && ret->size_bytes <= STORE_BLOCK_BYTES, is_fetched);
    return r;
}

/* Where nothing is known of it, who must not wait is told so. What is old is asked for: the origin is not
 * waited for longer than it may be silent, and then the old is told. */
static bool would_wait(struct object_session *ses, const struct upstream *u, const struct wire_stat_req *q,
                       bool has_old, struct arena *a)
{
    bool posix = q->flags & WIRE_POSIX, full = !posix || (q->flags & WIRE_META);
    if (!(q->flags & WIRE_NO_WAIT) || has_old)
        return false;
    return q->flags & WIRE_FRESH || !mirror_knows(ses->service->mirror, u->bucket, q->key, posix, full, a);
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
    struct attr attr, cached, old;
    enum believed believed;
    bool has_cached = stat_cached(s, u->bucket, req, a, &cached, &believed) == 0;
    if (believed == BELIEVED) {
        attr = cached;
    } else {
        bool has_old = recall_old(ses, u->bucket, req, believed, &cached, a, &old);
        if (would_wait(ses, u, req, has_old, a))
            r = err_set(e, -EAGAIN, "nothing is known of it here");
        else if (has_old)
            r = stat_doubted(s, u, req, &old, a, &attr, e);
        else if (!has_cached && is_looked_up(ses, u, req, a))
            r = look_up(ses, u, req, a, &attr, e);
        else
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

static int remove_once(struct object_service *s, struct upstream *u, const struct wire_remove_req *q,
                       struct intent *x, struct arena *a, struct err *e)
{
    struct intent_record now = {.state = INTENT_BEGUN};
    struct attr attr;
    int r = 0;
    if (q->flags & WIRE_POSIX) {
        r = must_be_file(s, u, q->key, a, &attr, e);
        now.etag = r == 0 ? attr.etag : SLICE_NULL;
    }
    if (r == 0 && u->bucket->p.write == BUCKET_WRITE_BACK)
        r = back_wait_record(s->back, u->bucket, q->key, e);
    if (r == 0)
        r = intent_note(x, &now, KV_VISIBLE, e);
    if (r < 0)
        return r;
    return upstream_remove(u, q->key, q->if_match, e);
}

/* Whether what is there now can be the version that a run before knew by this ETag. With write-back it may
 * have been sent since, and has another ETag then; but what was written since the start is not. */
static bool may_be_of_before(struct object_service *s, const struct upstream *u, struct slice key,
                             struct slice etag, struct slice now)
{
    uint64_t id = u->bucket->id;
    if (slice_eq(etag, now) || back_is_sent_as(s->back, id, key, etag, now))
        return true;
    bool says = object_is_md5(etag) && object_is_md5(now);
    return u->bucket->p.write == BUCKET_WRITE_BACK && !says && !back_is_new(s->back, id, key, now);
}

static bool is_removable(struct object_service *s, const struct upstream *u, const struct intent_record *x,
                         const struct origin_attr *now)
{
    bool says = x->etag.n > 0 && now->etag.n > 0;
    return !says || may_be_of_before(s, u, x->key, x->etag, now->etag);
}

/* Another version than the one that was to be removed came after it: the removal was before. */
static int remove_again(struct object_service *s, struct upstream *u, const struct wire_remove_req *q,
                        const struct intent *x, struct arena *a, struct err *e)
{
    struct origin_attr now = {0};
    int r = intent_state(x) == INTENT_DONE ? -ENOENT : ERR_PRECONDITION;
    for (int i = 0; r == ERR_PRECONDITION && i < MOVE_TRIES; i++) {
        r = upstream_head(u, q->key, SLICE_NULL, a, &now, e);
        if (r < 0 || !is_removable(s, u, intent_known(x), &now))
            break;
        r = u->bucket->p.write == BUCKET_WRITE_BACK ? back_wait_record(s->back, u->bucket, q->key, e) : 0;
        r = r < 0 ? r : upstream_remove(u, q->key, now.etag, e);
    }
    return r == -ENOENT || r == ERR_PRECONDITION ? 0 : r;
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
    struct intent_record what = {.kind = INTENT_REMOVE, .bucket_id = u->bucket->id, .key = req->key};
    struct intent *x = intent_begin(ses, req->request_id, &what);
    struct object_change change;
    object_change_begin(s, &change, u->bucket, req->key);
    r = intent_state(x) == INTENT_NEW ? remove_once(s, u, req, x, a, e) : remove_again(s, u, req, x, a, e);
    object_change_end(s, &change); /* also after a failure: it may have happened */
    watch_gone(s, ses, u->bucket, req->key);
    bool posix = req->flags & WIRE_POSIX;
    if (!posix && (r == -ENOENT || (r == ERR_PRECONDITION && is_gone(u, req->key))))
        r = 0;
    intent_end(x, r);
    return r < 0 ? err_prefix(e, r, "remove %s/" SLICE_FMT, u->bucket->name, SLICE_ARG(req->key)) : 0;
}

/* No origin removes by time: what has the ETag goes. */
int op_remove_since(struct object_session *ses, const struct wire_remove_since_req *req, struct arena *a,
                    struct wire_remove_since_rep *rep, struct err *e)
{
    (void)rep;
    const struct wire_remove_req same = {.bucket = req->bucket, .key = req->key, .if_match = req->if_match};
    struct wire_remove_rep none;
    return op_remove(ses, &same, a, &none, e);
}

/* ---- copy, rename ---- */

bool object_is_md5(struct slice etag)
{
    return etag.n == 2 * (size_t)MD5_BYTES && slice_find(etag, '-') < 0;
}

static int sum(void *arg, const struct origin_attr *attr, const void *p, size_t n)
{
    (void)attr;
    md5_update(arg, p, n);
    return 0;
}

/* The MD5 of the bytes of this version. */
static int read_md5(struct upstream *u, struct slice key, struct slice etag, uint8_t ret[MD5_BYTES],
                    struct err *e)
{
    _cleanup_(arena_freep) struct arena *a = arena_new(GONE_ARENA);
    struct origin_get g = {.key = key, .whole = true, .if_match = etag};
    struct origin_attr attr;
    struct md5 md5;
    int r = back_settle_key(u->layer_arg, u->bucket, key, e);
    if (r < 0)
        return r;
    md5_init(&md5);
    upstream_enter(u);
    r = upstream_get_once(u, &g, a, &attr, sum, &md5, e);
    upstream_leave(u, r);
    if (r == 0)
        md5_final(&md5, ret);
    return r;
}

/* Of a rename that was begun before and replaces nothing: 1 when what has the new name is its copy, 0 when it
 * is somebody else's, or an error. It is one of the version that was noted then. Copies of what was uploaded
 * in parts have other ETags, and those of some origins always: then the bytes tell, as long as that version
 * is there. */
static int is_own_copy(struct upstream *u, const struct wire_copy_req *q, const struct attr *from,
                       const struct attr *to, const struct intent *x, struct err *e)
{
    const struct intent_record *known = intent_known(x);
    uint8_t one[MD5_BYTES], other[MD5_BYTES];
    if (intent_state(x) == INTENT_NEW || to->is_directory || known->size_bytes != to->size_bytes)
        return 0;
    if (object_is_md5(known->etag) && object_is_md5(to->etag))
        return slice_eq(known->etag, to->etag);
    if (!slice_eq(from->etag, known->etag))
        return 0;
    int r = read_md5(u, q->from, from->etag, one, e);
    r = r < 0 ? r : read_md5(u, q->to, to->etag, other, e);
    if (r == ERR_PRECONDITION || r == -ENOENT) /* somebody writes there */
        return 0;
    return r < 0 ? r : memcmp(one, other, MD5_BYTES) == 0;
}

static int check_target(struct object_service *s, struct upstream *u, const struct wire_copy_req *q,
                        const struct attr *from, const struct intent *x, struct arena *a, struct err *e)
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
    int own = exclusive ? is_own_copy(u, q, from, &there, x, e) : 1;
    if (own < 0)
        return own;
    if (own == 0)
        return err_set(e, -EEXIST, "the target exists");
    return there.is_directory ? err_set(e, -EISDIR, "the target is a directory") : 0;
}

/* Copies, and removes what was copied: the version that was there just before, so that nothing that somebody
 * writes under the old name meanwhile is lost. ERR_PRECONDITION: somebody did. */
static int move_once(struct object_service *s, struct upstream *u, const struct wire_copy_req *q,
                     struct intent *x, struct arena *a, struct origin_attr *ret, struct err *e)
{
    struct origin_attr from = {0};
    /* What write-back carries out between the two has another ETag there: ERR_PRECONDITION, too. */
    int r = upstream_head(u, q->from, SLICE_NULL, a, &from, e);
    struct intent_record now = {
        .state = INTENT_BEGUN, .size_bytes = from.size_bytes, .mtime_ns = from.mtime_ns, .etag = from.etag};
    if (r == 0)
        r = intent_note(x, &now, KV_VISIBLE, e);
    struct object_change change;
    object_change_begin(s, &change, u->bucket, q->to);
    if (r == 0)
        r = back_copy_moved(s->back, u, q->from, q->to, a, ret, e);
    if (r == -EAGAIN)
        r = upstream_copy(u, q->from, q->to, a, ret, e);
    object_change_end(s, &change);
    now.state = INTENT_COPIED;
    if (r == 0)
        r = intent_note(x, &now, KV_VISIBLE, e);
    if (r < 0)
        return r;
    object_change_begin(s, &change, u->bucket, q->from);
    r = upstream_remove(u, q->from, from.etag, e);
    object_change_end(s, &change);
    ret->size_bytes = from.etag.n > 0 ? from.size_bytes : ret->size_bytes;
    return r == -ENOENT ? 0 : r;
}

static int move(struct object_service *s, struct upstream *u, const struct wire_copy_req *q, struct intent *x,
                struct arena *a, struct origin_attr *ret, struct err *e)
{
    int r = ERR_PRECONDITION;
    for (int i = 0; r == ERR_PRECONDITION && i < MOVE_TRIES; i++)
        r = move_once(s, u, q, x, a, ret, e);
    return r == ERR_PRECONDITION
               ? err_set(e, -EBUSY, "it is being written again and again; both names are there now")
               : r;
}

/* Whether what has the old name still is what was copied. */
static bool is_as_copied(struct object_service *s, const struct upstream *u, const struct intent_record *x,
                         const struct origin_attr *now)
{
    if (u->bucket->p.write == BUCKET_WRITE_BACK)
        return now->size_bytes == x->size_bytes && may_be_of_before(s, u, x->key, x->etag, now->etag);
    return slice_eq(now->etag, x->etag) && now->mtime_ns == x->mtime_ns;
}

int object_finish_move(struct object_service *s, struct upstream *u, const struct intent_record *x,
                       struct arena *a, struct err *e)
{
    struct origin_attr now = {0};
    if (x->is_tree)
        return object_finish_move_tree(s, u, x, e);
    int r = ERR_PRECONDITION;
    struct object_change change;
    object_change_begin(s, &change, u->bucket, x->key);
    for (int i = 0; r == ERR_PRECONDITION && i < MOVE_TRIES; i++) {
        r = upstream_head(u, x->key, SLICE_NULL, a, &now, e);
        if (r < 0 || !is_as_copied(s, u, x, &now))
            break;
        r = upstream_remove(u, x->key, now.etag, e);
    }
    object_change_end(s, &change);
    (void)object_forget_key(s, u->bucket, x->to);
    return r == -ENOENT || r == ERR_PRECONDITION ? 0 : r;
}

/* Of a rename of which nothing is left to be done: whoever asked is told what has the new name now. */
static int move_on(struct object_service *s, struct upstream *u, const struct intent *x, struct arena *a,
                   struct attr *ret, struct err *e)
{
    const struct intent_record *known = intent_known(x);
    int r = intent_state(x) == INTENT_COPIED ? object_finish_move(s, u, known, a, e) : 0;
    struct attr there;
    if (r < 0)
        return r;
    *ret = (struct attr){.is_directory = known->is_tree,
                         .size_bytes = known->size_bytes,
                         .mtime_ns = sys->real_ns(),
                         .confirmed_ns = sys->real_ns()};
    if (!known->is_tree && mirror_stat(s->mirror, u, known->to, /* posix= */ false, /* full= */ false,
                                       /* fresh= */ true, a, &there, NULL) == 0)
        *ret = there;
    return 0;
}

/* With write-back a copy of what is not in the origin yet is a record, and so is the removal of what a rename
 * copied there. */
static int wait_for_records(struct object_service *s, struct upstream *u, const struct wire_copy_req *q,
                            struct err *e)
{
    bool has = back_has(s->back, u->bucket->id, q->from);
    if (u->bucket->p.write != BUCKET_WRITE_BACK || !(has || q->flags & WIRE_MOVE))
        return 0;
    return back_wait_record(s->back, u->bucket, has ? q->to : q->from, e);
}

/* The origin kind looks at the source and has that version copied. One that was replaced in between is looked
 * at again: nobody gave a condition that could have failed. */
static int copy_at_origin(struct object_service *s, struct upstream *u, const struct wire_copy_req *q,
                          struct arena *a, struct origin_attr *ret, struct err *e)
{
    int r = ERR_PRECONDITION;
    struct object_change change;
    object_change_begin(s, &change, u->bucket, q->to);
    for (int i = 0; r == ERR_PRECONDITION && i < MOVE_TRIES; i++)
        r = upstream_copy(u, q->from, q->to, a, ret, e);
    object_change_end(s, &change);
    return r == ERR_PRECONDITION ? err_set(e, -EBUSY, "what is to be copied is being written again and again")
                                 : r;
}

static int copy(struct object_service *s, struct upstream *u, const struct wire_copy_req *q, struct intent *x,
                struct arena *a, struct attr *ret, struct err *e)
{
    if (intent_state(x) >= INTENT_COPIED)
        return move_on(s, u, x, a, ret, e);
    if (!(u->origin->capabilities & ORIGIN_CAN_COPY))
        return err_set(e, ERR_NOT_IMPLEMENTED, "the origin cannot copy objects by itself");
    struct attr from;
    int r = q->flags & WIRE_POSIX
                ? must_be_file(s, u, q->from, a, &from, e)
                : mirror_stat(s->mirror, u, q->from, /* posix= */ false, /* full= */ false,
                              /* fresh= */ false, a, &from, e); /* any key is an object's, "dir/" too */
    if (r == -EISDIR && q->flags & WIRE_MOVE)
        return object_move_tree(s, u, q, x, a, ret, e);
    if (r == 0)
        r = check_target(s, u, q, &from, x, a, e);
    if (r < 0)
        return r;
    struct origin_attr answer = {0};
    if (slice_eq(q->from, q->to)) {
        *ret = from;
        return 0;
    }
    r = wait_for_records(s, u, q, e);
    if (r < 0)
        return r;
    answer.size_bytes = from.size_bytes;
    r = q->flags & WIRE_MOVE ? move(s, u, q, x, a, &answer, e) : copy_at_origin(s, u, q, a, &answer, e);
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
    struct intent_record what = {
        .kind = INTENT_MOVE, .bucket_id = u->bucket->id, .key = req->from, .to = req->to};
    struct intent *x = req->flags & WIRE_MOVE ? intent_begin(ses, req->request_id, &what) : NULL;
    r = copy(ses->service, u, req, x, a, &attr, e);
    if (req->flags & WIRE_MOVE)
        watch_gone(ses->service, ses, u->bucket, req->from);
    intent_end(x, r);
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

static int put_marker(struct object_service *s, struct upstream *u, struct slice marker, struct slice meta,
                      struct intent *x, struct arena *a, struct err *e)
{
    struct intent_record now = {.state = INTENT_BEGUN};
    struct origin_put put = {.key = marker, .meta = meta};
    struct origin_body body = {.read = empty_body};
    struct origin_attr answer;
    int r = 0;
    if (u->bucket->p.write == BUCKET_WRITE_BACK)
        r = back_wait_record(s->back, u->bucket, marker, e);
    struct object_change change;
    object_change_begin(s, &change, u->bucket, marker);
    r = r < 0 ? r : intent_note(x, &now, KV_VISIBLE, e);
    r = r < 0 ? r : upstream_put(u, &put, &body, a, &answer, e);
    object_change_end(s, &change);
    return r;
}

/* Whether the marker can be the one that was begun with this metadata: where origins keep it as it was sent,
 * one with another mode, owner or time is somebody else's. */
static bool may_be_made(const struct upstream *u, struct slice meta, const struct origin_attr *made)
{
    struct posix_meta x, y;
    posix_meta_decode(meta, /* is_dir= */ true, &x);
    posix_meta_decode(made->meta, /* is_dir= */ true, &y);
    return !(u->origin->capabilities & ORIGIN_CAN_META) ||
           ((x.has & y.has) == x.has && (!(x.has & POSIX_HAS_MODE) || x.mode == y.mode) &&
            (!(x.has & POSIX_HAS_UID) || x.uid == y.uid) && (!(x.has & POSIX_HAS_GID) || x.gid == y.gid) &&
            (!(x.has & POSIX_HAS_MTIME) || x.mtime_ns == y.mtime_ns));
}

/* A directory that is there when it is asked for again is the one that was made then, as far as can be told,
 * unless all that it has came from others: then it gets its marker. */
static int make_marker(struct object_service *s, struct upstream *u, struct slice key, struct slice meta,
                       struct intent *x, struct arena *a, struct err *e)
{
    struct slice marker = slice_str(arena_printf(a, SLICE_FMT "/", SLICE_ARG(key)));
    bool again = intent_state(x) != INTENT_NEW;
    struct attr there;
    struct origin_attr made;
    int r =
        mirror_stat(s->mirror, u, key, /* posix= */ true, /* full= */ false, /* fresh= */ true, a, &there, e);
    if (r == 0 && !(again && there.is_directory))
        return err_set(e, -EEXIST, "exists already");
    if (r == 0)
        r = upstream_head(u, marker, SLICE_NULL, a, &made, e);
    if (r == 0 && !may_be_made(u, meta, &made))
        return err_set(e, -EEXIST, "somebody else has made it");
    return r == -ENOENT ? put_marker(s, u, marker, meta, x, a, e) : r;
}

static int make_directory(struct object_service *s, struct upstream *u, struct slice key, struct slice meta,
                          struct intent *x, struct arena *a, struct attr *ret, struct err *e)
{
    int r = intent_state(x) == INTENT_DONE ? 0 : make_marker(s, u, key, meta, x, a, e);
    if (r == -EEXIST)
        return r;
    uint64_t seen = object_forget_key(s, u->bucket, key);
    if (r < 0)
        return r;
    *ret = (struct attr){.is_directory = true,
                         .has_meta = true,
                         .meta = meta,
                         .mtime_ns = sys->real_ns(),
                         .confirmed_ns = sys->real_ns()};
    if (intent_state(x) != INTENT_DONE)
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
    struct intent_record what = {.kind = INTENT_MKDIR, .bucket_id = u->bucket->id, .key = req->key};
    struct intent *x = intent_begin(ses, req->request_id, &what);
    r = make_directory(ses->service, u, req->key, req->meta, x, a, &attr, e);
    intent_end(x, r);
    if (r < 0)
        return err_prefix(e, r, "mkdir %s/" SLICE_FMT, u->bucket->name, SLICE_ARG(req->key));
    attr_to_wire(&attr, a, &rep->attr);
    return 0;
}

/* Of a removal that was begun: whether the directory can be the one that was to go, and not one that somebody
 * made in its place. Markers have the same ETag all, and another time each. */
static bool may_be_marker(struct object_service *s, const struct upstream *u, const struct intent_record *x,
                          struct slice marker, const struct origin_attr *now)
{
    if (x->etag.n == 0 && x->mtime_ns == 0) /* that is not known */
        return true;
    if (u->bucket->p.write == BUCKET_WRITE_BACK)
        return may_be_of_before(s, u, marker, x->etag, now->etag);
    return slice_eq(now->etag, x->etag) && now->mtime_ns == x->mtime_ns;
}

/* Origins with directories keep one, and say nothing of it, in which somebody writes what is no object yet,
 * or has put one since it was looked at. What write-back has written down goes there later. */
static int check_gone(struct upstream *u, struct slice marker, struct arena *a, struct err *e)
{
    struct origin_attr there;
    struct err local = {0};
    if (!(u->origin->capabilities & ORIGIN_HAS_DIRECTORIES) || u->bucket->p.write == BUCKET_WRITE_BACK)
        return 0;
    int r = upstream_head(u, marker, SLICE_NULL, a, &there, &local);
    if (r == 0)
        return err_set(e, -ENOTEMPTY,
                       "somebody writes there, or was cut while writing there, what is no object yet");
    if (r != -ENOENT && e)
        *e = local;
    return r == -ENOENT ? 0 : r;
}

static int remove_directory(struct object_service *s, struct upstream *u, struct slice key, struct intent *x,
                            struct arena *a, struct err *e)
{
    struct origin_attr there = {0};
    bool again = intent_state(x) != INTENT_NEW;
    int r = mirror_check_empty(u, key, a, &there, e);
    struct slice marker = slice_str(arena_printf(a, SLICE_FMT "/", SLICE_ARG(key)));
    /* Another one than was to go stays: that went then. */
    bool removes = r == 0 && (!again || may_be_marker(s, u, intent_known(x), marker, &there));
    const struct intent_record now = {.state = INTENT_BEGUN,
                                      .size_bytes = there.size_bytes,
                                      .mtime_ns = there.mtime_ns,
                                      .etag = there.etag};
    if (removes)
        r = intent_note(x, &now, KV_VISIBLE, e);
    struct object_change change;
    object_change_begin(s, &change, u->bucket, marker);
    if (removes && r == 0)
        r = upstream_remove(u, marker, SLICE_NULL, e);
    if (removes && r == 0)
        r = check_gone(u, marker, a, e);
    object_change_end(s, &change);
    (void)object_forget_key(s, u->bucket, key);
    return again && r == -ENOENT ? 0 : r;
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
    struct intent_record what = {.kind = INTENT_RMDIR, .bucket_id = u->bucket->id, .key = req->key};
    struct intent *x = intent_begin(ses, req->request_id, &what);
    r = intent_state(x) == INTENT_DONE ? 0 : remove_directory(s, u, req->key, x, a, e);
    watch_gone(s, ses, u->bucket, req->key);
    intent_end(x, r);
    return r < 0 ? err_prefix(e, r, "rmdir %s/" SLICE_FMT, u->bucket->name, SLICE_ARG(req->key)) : 0;
}

/*
 * A scratch bucket seen through keys: finding, putting, removing and renaming objects.
 *
 * A key has up to two records, one found by its path and one in the key table. The path's hides the other;
 * removing or replacing the object takes both, in one transaction.
 *
 * Failure modes: places are looked up before they are locked. A place that is another one by then is looked
 * up again (MOVED below); after SCRATCH_TRIES of these the call gives ERR_CONFLICT.
 */
#include "namespace/scratch_object.h"

#include "namespace/expiry.h"
#include "namespace/upload.h"

#define MOVED (-ESTALE) /* within this file: the place is not the one that was looked up */

static bool ends_with_slash(struct slice key)
{
    return key.n > 0 && key.p[key.n - 1] == '/';
}

static struct slice path_of(struct slice key)
{
    return ends_with_slash(key) ? slice_sub(key, 0, key.n - 1) : key;
}

/* Whether this inode, reached by a path, is the object of the key. */
static bool is_object(const struct scratch_inode *x, struct slice key)
{
    if (ends_with_slash(key))
        return S_ISDIR(x->mode) && !(x->flags & SCRATCH_IMPLIED);
    return S_ISREG(x->mode);
}

/* ---- finding ---- */

static int find_once(struct scratch *s, uint64_t bucket, struct slice key, struct buf *raw,
                     struct scratch_inode *ret, struct err *e)
{
    struct scratch_walk w = {.found = SCRATCH_FREE};
    uint64_t version;
    int r = scratch_key_is_path(key) ? scratch_walk(s, bucket, path_of(key), &w, e) : 0;
    if (r == 0 && w.found == SCRATCH_FOUND) {
        r = scratch_record_inode(s, bucket, w.d.ino, raw, ret, &version, e);
        if (r == -ENOENT)
            return MOVED;
        if (r == 0 && is_object(ret, key))
            return 0;
    }
    struct scratch_dirent d;
    if (r == 0)
        r = scratch_record_entry(s, bucket, SCRATCH_INO_KEYS, key, &d, &version, e);
    if (r < 0)
        return r;
    r = scratch_record_inode(s, bucket, d.ino, raw, ret, &version, e);
    return r == -ENOENT ? MOVED : r;
}

int scratch_find(struct scratch *s, uint64_t bucket, struct slice key, struct arena *a,
                 struct scratch_inode *ret, struct err *e)
{
    _cleanup_buf_ struct buf raw = BUF_INIT(SCRATCH_RECORD_MAX);
    struct scratch_inode x;
    int r = scratch_check_key(key, e);
    if (r < 0)
        return r;
    r = MOVED;
    for (int i = 0; r == MOVED && i < SCRATCH_TRIES; i++)
        r = find_once(s, bucket, key, &raw, &x, e);
    if (r == MOVED)
        return err_set(e, ERR_CONFLICT, "the object changes too fast");
    if (r == -ENOENT)
        return err_set(e, -ENOENT, "no such object");
    if (r == 0)
        *ret = scratch_inode_dup(&x, a);
    return r;
}

int scratch_parts(struct scratch *s, uint64_t bucket, uint64_t ino, struct buf *ret, struct err *e)
{
    _cleanup_buf_ struct buf key = BUF_INIT(SCRATCH_KEY_MAX), value = BUF_INIT(SCRATCH_PARTS_MAX + 1);
    scratch_key(bucket, ino, SCRATCH_KEY_PARTS, SLICE_NULL, &key);
    int r = kv_get(s->kv, buf_view(&key), &value, NULL, e);
    if (r < 0)
        return r;
    if (value.n < 2 || value.p[0] != SCRATCH_FORMAT)
        return err_set(e, ERR_CORRUPT, "control store: parts of inode %llu are not ours",
                       (unsigned long long)ino);
    return buf_slice(ret, slice_from(buf_view(&value), 1));
}

int scratch_reserve(struct scratch *s, uint64_t bucket, struct slice key, uint64_t *ret_ino, struct err *e)
{
    struct scratch_walk w = {.found = SCRATCH_NO_DIR};
    int r = scratch_check_key(key, e);
    if (r == 0 && scratch_key_is_path(key))
        r = scratch_walk(s, bucket, path_of(key), &w, e);
    if (r < 0)
        return r;
    uint32_t shard = w.found == SCRATCH_NO_DIR ? (uint32_t)(hash_table(key) >> (64 - SCRATCH_SHARD_BITS))
                                               : scratch_shard_of(w.place.dir);
    return scratch_number_new(s, shard, ret_ino, e);
}

/* ---- changing ---- */

struct object_arg {
    struct slice key;
    const struct scratch_put *put; /* NULL: the object is removed */
    struct slice if_match;
    bool in_tree;  /* walk says where; else the key table alone */
    bool to_table; /* what is put goes to the key table all the same */
    bool clashes;  /* not in_tree because of what walk found, which must still be there */
    struct scratch_walk walk;
    uint64_t ino;                          /* of what is put */
    uint64_t ttl_ms, over_ns;              /* over_ns not 0: only what has ended by then is removed */
    const struct scratch_version *version; /* not NULL: only this one is removed */
    /* while it is prepared: */
    struct scratch_dirent keyed_d, tree_d;
    struct scratch_loaded *dir, *tree, *keyed;
    struct scratch_inode result;
};

/* Without what is in the way the key is a path, and others may have put it there meanwhile. */
static int check_clash(struct scratch_change *c, const struct object_arg *q, struct err *e)
{
    struct scratch_dirent d = {0};
    int r = scratch_change_entry(c, q->walk.place.dir, q->walk.place.name, &d, e);
    if (r < 0 && r != -ENOENT)
        return r;
    return d.ino == q->walk.d.ino ? 0 : MOVED;
}

/* Locks and loads both records of the key, and the directory. */
static int load_object(struct scratch_change *c, struct object_arg *q, struct err *e)
{
    struct scratch_dirent keyed = {0}, d = {0};
    uint64_t version;
    q->dir = q->tree = q->keyed = NULL;
    int r = scratch_record_entry(c->s, c->call->bucket, SCRATCH_INO_KEYS, q->key, &keyed, &version, e);
    if (r < 0 && r != -ENOENT)
        return r;
    uint64_t dir = q->in_tree ? q->walk.place.dir : SCRATCH_ROOT;
    const uint64_t inos[] = {
        scratch_key_number(q->key),        dir, q->in_tree ? q->walk.d.ino : 0, keyed.ino, q->ino,
        q->clashes ? q->walk.place.dir : 0};
    scratch_change_lock(c, inos, ARRAY_SIZE(inos));
    r = scratch_change_entry(c, SCRATCH_INO_KEYS, q->key, &d, e);
    if (r < 0 && r != -ENOENT)
        return r;
    if (d.ino != keyed.ino)
        return ERR_CONFLICT;
    q->keyed_d = d;
    r = d.ino != 0 ? scratch_change_inode(c, d.ino, &q->keyed, e) : 0;
    if (r == 0)
        r = scratch_change_dir(c, dir, &q->dir, e);
    if (r < 0)
        return r == -ENOENT && dir != SCRATCH_ROOT ? MOVED : r;
    if (!q->in_tree)
        return q->clashes ? check_clash(c, q, e) : 0;
    q->tree_d = (struct scratch_dirent){0};
    r = scratch_change_entry(c, dir, q->walk.place.name, &q->tree_d, e);
    if (r < 0 && r != -ENOENT)
        return r;
    if (q->tree_d.ino != q->walk.d.ino)
        return MOVED;
    return q->tree_d.ino != 0 ? scratch_change_inode(c, q->tree_d.ino, &q->tree, e) : 0;
}

static int check_conditions(struct scratch_change *c, const struct object_arg *q, struct err *e)
{
    const struct scratch_loaded *old = q->tree && is_object(&q->tree->x, q->key) ? q->tree : q->keyed;
    if (old && q->put && q->put->now_ns != 0 && scratch_is_over(&old->x, q->put->ttl_ms, q->put->now_ns))
        old = NULL;
    if (q->put && q->put->if_none_match && old)
        return err_set(e, ERR_PRECONDITION, "the object exists");
    if (q->put && q->put->if_none_etag.n > 0 && old &&
        slice_eq(q->put->if_none_etag, scratch_etag(&old->x, c->a)))
        return err_set(e, ERR_PRECONDITION, "the object has this ETag");
    if (q->if_match.n == 0)
        return 0;
    if (!old)
        return q->put ? err_set(e, -ENOENT, "the object does not exist")
                      : err_set(e, ERR_PRECONDITION, "the object does not exist");
    if (!slice_eq_str(q->if_match, "*") && !slice_eq(q->if_match, scratch_etag(&old->x, c->a)))
        return err_set(e, ERR_PRECONDITION, "the object has another ETag");
    return 0;
}

/* What is removed because it has ended must have. */
static int check_over(const struct object_arg *q, struct err *e)
{
    const struct scratch_loaded *old = q->tree && is_object(&q->tree->x, q->key) ? q->tree : q->keyed;
    if (q->over_ns == 0 || scratch_is_over(&old->x, q->ttl_ms, q->over_ns))
        return 0;
    return err_set(e, -ENOENT, "no such object that has ended");
}

static int check_version(struct scratch_change *c, const struct object_arg *q, struct err *e)
{
    const struct scratch_loaded *old = q->tree && is_object(&q->tree->x, q->key) ? q->tree : q->keyed;
    if (!q->version || (scratch_since_ns(&old->x) == q->version->since_ns &&
                        slice_eq(scratch_etag(&old->x, c->a), q->version->etag)))
        return 0;
    return err_set(e, ERR_PRECONDITION, "the object has another ETag, or is as it is since another time");
}

static int take_keyed(struct scratch_change *c, struct object_arg *q, struct err *e)
{
    if (!q->keyed)
        return 0;
    scratch_change_take(c, NULL, q->key, &q->keyed_d, q->keyed);
    return scratch_change_unlink(c, q->keyed, e);
}

/* The tree's object of the key goes; a directory stays when there is something below it. */
static int take_tree(struct scratch_change *c, struct object_arg *q, struct err *e)
{
    if (S_ISDIR(q->tree->x.mode) && q->tree->x.entries > 0) {
        q->tree->x.flags |= SCRATCH_IMPLIED; /* the keys below it keep it */
        q->tree->x.etag = q->tree->x.content_type = q->tree->x.meta = SLICE_NULL;
        q->tree->dirty = true;
        return 0;
    }
    scratch_change_take(c, q->dir, q->walk.place.name, &q->tree_d, q->tree);
    return scratch_change_unlink(c, q->tree, e);
}

static void put_parts(struct scratch_change *c, struct scratch_loaded *x, struct slice parts)
{
    _cleanup_buf_ struct buf value = BUF_INIT(SCRATCH_PARTS_MAX + 1);
    int r = buf_char(&value, SCRATCH_FORMAT);
    if (r == 0)
        r = buf_slice(&value, parts);
    assert(r == 0); /* check_put */
    scratch_key(c->call->bucket, x->x.ino, SCRATCH_KEY_PARTS, SLICE_NULL, &c->key);
    kv_txn_put_plain(c->txn, buf_view(&c->key), buf_view(&value));
    x->x.flags |= SCRATCH_PARTED;
}

/* What is put says of itself whose it is. */
static void fill_own(struct scratch_loaded *x, const struct scratch_set *s)
{
    if (s->what & SCRATCH_SET_MODE)
        x->x.mode = (x->x.mode & S_IFMT) | (s->mode & 07777);
    if (s->what & SCRATCH_SET_UID)
        x->x.uid = s->uid;
    if (s->what & SCRATCH_SET_GID)
        x->x.gid = s->gid;
    if (s->what & SCRATCH_SET_MTIME)
        x->x.mtime_ns = s->mtime_ns;
}

static void fill_object(struct scratch_change *c, struct scratch_loaded *x, const struct object_arg *q,
                        const struct scratch_loaded *old)
{
    const struct scratch_cred *cred = c->call->cred;
    const struct scratch_put *p = q->put;
    x->x.mode = old ? old->x.mode : S_IFREG | 0644;
    x->x.uid = old ? old->x.uid : cred ? cred->uid : 0;
    x->x.gid = old ? old->x.gid : q->dir->x.mode & S_ISGID ? q->dir->x.gid : cred ? cred->gid : 0;
    x->x.links = 1;
    x->x.size_bytes = p->size_bytes;
    x->x.allocated_bytes = p->allocated_bytes;
    if (p->mtime_ns != 0)
        x->x.mtime_ns = p->mtime_ns;
    if (p->set)
        fill_own(x, p->set);
    x->x.mode &= ~(uint32_t)(S_ISUID | S_ISGID);
    if (p->target.n > 0) {
        x->x.mode = S_IFLNK | 0777;
        x->x.target = arena_dup(c->a, p->target);
    }
    x->x.location = arena_dup(c->a, p->location);
    x->x.etag = arena_dup(c->a, p->etag);
    x->x.content_type = arena_dup(c->a, p->content_type);
    x->x.meta = arena_dup(c->a, p->meta);
    if (p->parts.n > 0)
        put_parts(c, x, p->parts);
}

/* The upload that the object was is completed with it. */
static int put_upload(struct scratch_change *c, const struct object_arg *q, struct err *e)
{
    return q->put->upload ? upload_put(c->txn, c->call->bucket, q->put->upload, e) : 0;
}

static int prepare_put(struct scratch_change *c, void *arg, struct err *e)
{
    struct object_arg *q = arg;
    int r = load_object(c, q, e);
    if (r == 0)
        r = check_conditions(c, q, e);
    if (r < 0)
        return r;
    bool replaces = q->tree && is_object(&q->tree->x, q->key);
    const struct scratch_loaded *old = q->to_table || !q->in_tree ? q->keyed : q->tree;
    if (old && S_ISLNK(old->x.mode)) {
        replaces = true;
        old = NULL; /* what a link may is nobody's */
    }
    if (q->in_tree && q->tree)
        r = scratch_may(&q->tree->x, c->call->cred, 2, e);
    else if (q->in_tree)
        r = scratch_may(&q->dir->x, c->call->cred, 2 | 1, e);
    if (r < 0)
        return r;
    struct scratch_loaded *x = scratch_change_new(c, q->ino);
    fill_object(c, x, q, old);
    if (x->x.location.n > 0)
        scratch_change_writing(c, x);
    if (replaces)
        r = take_tree(c, q, e);
    if (r == 0)
        r = take_keyed(c, q, e);
    if (q->to_table || !q->in_tree)
        scratch_change_add(c, NULL, q->key, /* cookie= */ 0, x);
    else
        scratch_change_add(c, q->dir, q->walk.place.name, replaces ? q->tree_d.cookie : 0, x);
    c->answer_ino = q->ino;
    q->result = x->x;
    return r == 0 ? put_upload(c, q, e) : r;
}

/* The directory that the key "dir/" names: made, or explicit from now on. */
static int prepare_put_dir(struct scratch_change *c, void *arg, struct err *e)
{
    struct object_arg *q = arg;
    if (!q->in_tree) /* it clashes */
        return prepare_put(c, arg, e);
    int r = load_object(c, q, e);
    if (r == 0)
        r = check_conditions(c, q, e);
    if (r == 0 && !q->tree)
        r = scratch_may(&q->dir->x, c->call->cred, 2 | 1, e);
    if (r < 0)
        return r;
    struct scratch_loaded *x = q->tree;
    if (!x) {
        x = scratch_change_new(c, q->ino);
        fill_object(c, x, q, NULL);
        x->x.mode = S_IFDIR | 0755 | (q->dir->x.mode & S_ISGID);
        x->x.links = 2;
        x->x.next_cookie = SCRATCH_COOKIE_FIRST;
        scratch_change_add(c, q->dir, q->walk.place.name, /* cookie= */ 0, x);
    }
    x->x.flags &= ~(uint32_t)SCRATCH_IMPLIED;
    x->x.etag = arena_dup(c->a, q->put->etag);
    x->x.content_type = arena_dup(c->a, q->put->content_type);
    x->x.meta = arena_dup(c->a, q->put->meta);
    if (q->put->set)
        fill_own(x, q->put->set);
    scratch_change_touch(c, x, /* contents= */ false);
    c->answer_ino = x->x.ino;
    q->result = x->x;
    r = take_keyed(c, q, e);
    return r == 0 ? put_upload(c, q, e) : r;
}

static int prepare_remove(struct scratch_change *c, void *arg, struct err *e)
{
    struct object_arg *q = arg;
    int r = load_object(c, q, e);
    if (r < 0)
        return r;
    bool in_tree = q->tree && is_object(&q->tree->x, q->key);
    if (!in_tree && !q->keyed)
        return err_set(e, -ENOENT, "no such object");
    r = check_conditions(c, q, e);
    if (r == 0)
        r = check_over(q, e);
    if (r == 0)
        r = check_version(c, q, e);
    if (r == 0 && in_tree)
        r = scratch_may_remove(&q->dir->x, &q->tree->x, c->call->cred, e);
    if (r == 0)
        r = take_keyed(c, q, e);
    if (r < 0 || !in_tree)
        return r;
    return take_tree(c, q, e);
}

/* Runs a change of an object at the place that `find` gives, again when it is another place by then. */
static int run_at_place(struct scratch *s, const struct scratch_call *call, struct object_arg *q,
                        int (*find)(struct scratch *s, const struct scratch_call *call, struct object_arg *q,
                                    struct err *e),
                        int (*prepare)(struct scratch_change *c, void *arg, struct err *e), struct arena *a,
                        struct scratch_inode *ret, struct scratch_orphans *ret_orphans, struct err *e)
{
    int r = MOVED;
    for (int i = 0; r == MOVED && i < SCRATCH_TRIES; i++) {
        r = find(s, call, q, e);
        if (r < 0)
            return r;
        _cleanup_change_ struct scratch_change c;
        scratch_change_init(&c, s, call);
        c.by_key = true;
        r = scratch_change_run(&c, prepare, q, e);
        if (r < 0)
            continue;
        *ret_orphans = c.orphans;
        if (c.replayed && ret)
            return scratch_getattr(s, call->bucket, c.answer_ino, a, ret, e);
        if (ret)
            *ret = scratch_inode_dup(&q->result, a);
    }
    return r == MOVED ? err_set(e, ERR_CONFLICT, "the object's directory changes too fast") : r;
}

/* Where the key goes; directories on the way are made. What is there already and is no object is a clash. */
static int find_for_put(struct scratch *s, const struct scratch_call *call, struct object_arg *q,
                        struct err *e)
{
    bool dir_key = ends_with_slash(q->key);
    q->in_tree = q->to_table = q->clashes = false;
    bool is_path = scratch_key_is_path(q->key), with_data = dir_key && q->put->ino != 0;
    if (q->put->fail_if_clash && (!is_path || with_data))
        return err_set(e, -EINVAL, "the key is not a path");
    if (!is_path)
        return 0;
    if (with_data) { /* in the table, in place of the directory's own key */
        int r = scratch_walk(s, call->bucket, path_of(q->key), &q->walk, e);
        q->in_tree = q->to_table = r == 0 && q->walk.found == SCRATCH_FOUND;
        return r;
    }
    int r = scratch_place_make(s, call, path_of(q->key), &q->walk, e);
    if (r < 0)
        return r;
    bool is_link = q->put->set && !dir_key && q->walk.d.type == S_IFLNK >> 12;
    bool fits =
        q->walk.found == SCRATCH_FREE || (q->walk.found == SCRATCH_FOUND &&
                                          (is_link || q->walk.d.type == (dir_key ? S_IFDIR : S_IFREG) >> 12));
    q->in_tree = fits;
    q->clashes = !fits;
    if (fits || !q->put->fail_if_clash)
        return 0;
    return q->walk.found == SCRATCH_CLASH ? err_set(e, -ENOTDIR, "a directory on the way is a file")
                                          : err_set(e, -EISDIR, "something else has this name");
}

static int check_put(const struct scratch_put *p, struct err *e)
{
    if (p->location.n > SCRATCH_LOCATION_MAX || p->etag.n > SCRATCH_ETAG_MAX ||
        p->content_type.n > SCRATCH_CONTENT_MAX || p->meta.n > SCRATCH_META_MAX ||
        p->parts.n > SCRATCH_PARTS_MAX)
        return err_set(e, -E2BIG, "location, ETag, content type, metadata or list of parts is too long");
    if (p->target.n > SCRATCH_TARGET_MAX || slice_find(p->target, 0) >= 0)
        return err_set(e, p->target.n > SCRATCH_TARGET_MAX ? -ENAMETOOLONG : -EINVAL, "no target of a link");
    assert(p->target.n == 0 || (p->fail_if_clash && p->ino != 0 && p->location.n == 0));
    return 0;
}

int scratch_put(struct scratch *s, const struct scratch_call *call, struct slice key,
                const struct scratch_put *p, struct arena *a, struct scratch_inode *ret,
                struct scratch_orphans *ret_orphans, struct err *e)
{
    struct object_arg q = {.key = key, .put = p, .if_match = p->if_match, .ino = p->ino};
    int r = scratch_check_key(key, e);
    if (r == 0)
        r = check_put(p, e);
    if (r == 0 && p->ino == 0)
        r = ends_with_slash(key) ? scratch_reserve(s, call->bucket, key, &q.ino, e)
                                 : err_set(e, -EINVAL, "an object needs a number");
    if (r < 0)
        return r;
    r = run_at_place(s, call, &q, find_for_put,
                     p->ino == 0 && scratch_key_is_path(key) ? prepare_put_dir : prepare_put, a, ret,
                     ret_orphans, e);
    if (r < 0 || q.to_table)
        scratch_prune(s, call, key); /* directories made on the way, or above one that gave way to data */
    return r;
}

static int find_for_remove(struct scratch *s, const struct scratch_call *call, struct object_arg *q,
                           struct err *e)
{
    q->in_tree = false;
    if (!scratch_key_is_path(q->key))
        return 0;
    int r = scratch_walk(s, call->bucket, path_of(q->key), &q->walk, e);
    q->in_tree = r == 0 && (q->walk.found == SCRATCH_FOUND || q->walk.found == SCRATCH_FREE);
    return r;
}

static int remove_object(struct scratch *s, const struct scratch_call *call, struct object_arg *q,
                         struct scratch_orphans *ret_orphans, struct err *e)
{
    int r = scratch_check_key(q->key, e);
    if (r == 0)
        r = run_at_place(s, call, q, find_for_remove, prepare_remove, NULL, NULL, ret_orphans, e);
    if (r == 0)
        scratch_prune(s, call, q->key);
    return r;
}

int scratch_remove_key(struct scratch *s, const struct scratch_call *call, struct slice key,
                       struct slice if_match, struct scratch_orphans *ret_orphans, struct err *e)
{
    struct object_arg q = {.key = key, .if_match = if_match};
    return remove_object(s, call, &q, ret_orphans, e);
}

int scratch_remove_version(struct scratch *s, const struct scratch_call *call, struct slice key,
                           const struct scratch_version *v, struct scratch_orphans *ret_orphans,
                           struct err *e)
{
    struct object_arg q = {.key = key, .version = v};
    return remove_object(s, call, &q, ret_orphans, e);
}

int scratch_remove_over(struct scratch *s, const struct scratch_call *call, struct slice key, uint64_t ttl_ms,
                        uint64_t now_ns, struct scratch_orphans *ret_orphans, struct err *e)
{
    struct object_arg q = {.key = key, .ttl_ms = ttl_ms, .over_ns = now_ns};
    assert(now_ns != 0);
    return remove_object(s, call, &q, ret_orphans, e);
}

uint64_t scratch_since_ns(const struct scratch_inode *x)
{
    int64_t ns = MAX(x->mtime_ns, x->ctime_ns);
    return ns > 0 ? (uint64_t)ns : 0;
}

bool scratch_is_over(const struct scratch_inode *x, uint64_t ttl_ms, uint64_t now_ns)
{
    return S_ISREG(x->mode) && (ttl_ms != 0 || x->meta.n > 0) &&
           expiry_is_over(ttl_ms, scratch_since_ns(x), x->meta, now_ns);
}

/* ---- renaming ---- */

static int move_source(struct scratch *s, const struct scratch_call *call, struct slice key,
                       struct scratch_place *ret, struct err *e)
{
    struct scratch_walk w = {.found = SCRATCH_FREE};
    int r = scratch_key_is_path(key) && !ends_with_slash(key) ? scratch_walk(s, call->bucket, key, &w, e) : 0;
    if (r < 0)
        return r;
    bool in_tree = w.found == SCRATCH_FOUND && w.d.type == S_IFREG >> 12;
    *ret = in_tree ? w.place : (struct scratch_place){SCRATCH_INO_KEYS, key};
    if (in_tree)
        return 0;
    struct scratch_dirent d;
    uint64_t version;
    r = scratch_record_entry(s, call->bucket, SCRATCH_INO_KEYS, key, &d, &version, e);
    return r == -ENOENT ? err_set(e, -ENOENT, "no such object") : r;
}

static int move_target(struct scratch *s, const struct scratch_call *call, struct slice key,
                       struct scratch_place *ret, struct err *e)
{
    const struct scratch_put as_put = {.ino = 1};
    struct object_arg q = {.key = key, .put = &as_put};
    int r = find_for_put(s, call, &q, e);
    if (r == 0)
        *ret = q.in_tree ? q.walk.place : (struct scratch_place){SCRATCH_INO_KEYS, key};
    return r;
}

int scratch_move_key(struct scratch *s, const struct scratch_call *call, struct slice from, struct slice to,
                     uint32_t flags, struct scratch_orphans *ret_orphans, struct err *e)
{
    int r = scratch_check_key(from, e);
    if (r == 0)
        r = scratch_check_key(to, e);
    if (r == 0 && ends_with_slash(to))
        return err_set(e, -EINVAL, "the key of a directory cannot be given to an object");
    if (r < 0)
        return r;
    if (slice_eq(from, to)) { /* its own place may be another one by now; it stays where it is */
        struct scratch_place at;
        r = move_source(s, call, from, &at, e);
        if (r == 0 && flags & SCRATCH_NOREPLACE)
            return err_set(e, -EEXIST, "the object exists");
        ret_orphans->n = 0;
        return r;
    }
    r = -ENOENT;
    for (int i = 0; r == -ENOENT && i < SCRATCH_TRIES; i++) {
        struct scratch_place a, b;
        r = move_source(s, call, from, &a, e);
        if (r == 0)
            r = move_target(s, call, to, &b, e);
        if (r < 0)
            break;
        r = scratch_rename_between(s, call, from, to, &a, &b, flags & SCRATCH_NOREPLACE, ret_orphans,
                                   /* ret_changed_ns= */ NULL, e);
    }
    scratch_prune(s, call, r == 0 ? from : to);
    return r;
}

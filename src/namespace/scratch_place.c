/*
 * Where a key is, or goes: walking its path, making the directories that it implies, and removing them again
 * once nothing is below them.
 *
 * Failure modes: a crash between the making of a directory and of what goes into it leaves an implied
 * directory without entries, which no listing of keys shows and the next removal of a key there takes away.
 */
#include "namespace/scratch_object.h"

static bool component_is_legal(struct slice c)
{
    return c.n > 0 && c.n <= SCRATCH_NAME_MAX && !slice_eq_str(c, ".") && !slice_eq_str(c, "..") &&
           slice_find(c, 0) < 0;
}

bool scratch_key_is_path(struct slice key)
{
    if (key.n > 0 && key.p[key.n - 1] == '/')
        key.n--;
    if (key.n == 0)
        return false;
    bool more = true;
    while (more) {
        more = slice_find(key, '/') >= 0;
        if (!component_is_legal(slice_split(&key, '/')))
            return false;
    }
    return true;
}

int scratch_check_key(struct slice key, struct err *e)
{
    if (key.n == 0 || key.n > SCRATCH_OBJECT_KEY_MAX)
        return err_set(e, key.n == 0 ? -EINVAL : -ENAMETOOLONG, "a key has 1 to %d bytes",
                       SCRATCH_OBJECT_KEY_MAX);
    return 0;
}

int scratch_walk(struct scratch *s, uint64_t bucket, struct slice path, struct scratch_walk *ret,
                 struct err *e)
{
    struct scratch_walk w = {.found = SCRATCH_FREE, .place = {SCRATCH_ROOT, path}};
    for (;;) {
        struct slice rest = w.place.name;
        struct slice name = slice_split(&rest, '/');
        uint64_t version;
        bool last = name.n == w.place.name.n;
        int r = scratch_record_entry(s, bucket, w.place.dir, name, &w.d, &version, e);
        if (r < 0 && r != -ENOENT)
            return r;
        bool is_dir = r == 0 && w.d.type == S_IFDIR >> 12;
        if (r == 0 && !last && is_dir) {
            w.place = (struct scratch_place){w.d.ino, rest};
            continue;
        }
        if (r == -ENOENT)
            w.d = (struct scratch_dirent){0};
        w.found = r == 0 ? (last ? SCRATCH_FOUND : SCRATCH_CLASH) : (last ? SCRATCH_FREE : SCRATCH_NO_DIR);
        w.place.name = name;
        *ret = w;
        return 0;
    }
}

/* ---- implied directories ---- */

struct imply_arg {
    struct scratch_place place;
    uint64_t ino;
};

static int prepare_imply(struct scratch_change *c, void *arg, struct err *e)
{
    struct imply_arg *q = arg;
    struct scratch_loaded *dir;
    struct scratch_dirent d;
    const uint64_t inos[] = {q->place.dir, q->ino};
    scratch_change_lock(c, inos, ARRAY_SIZE(inos));
    int r = scratch_change_dir(c, q->place.dir, &dir, e);
    if (r < 0)
        return r;
    r = scratch_change_entry(c, q->place.dir, q->place.name, &d, e);
    if (r == 0)
        return -EEXIST;
    if (r == -ENOENT)
        r = scratch_may(&dir->x, c->call->cred, 2 | 1, e);
    if (r < 0)
        return r;
    struct scratch_loaded *x = scratch_change_new(c, q->ino);
    x->x.flags = SCRATCH_IMPLIED;
    x->x.uid = c->call->cred ? c->call->cred->uid : 0;
    x->x.gid = dir->x.mode & S_ISGID ? dir->x.gid : c->call->cred ? c->call->cred->gid : 0;
    x->x.mode = S_IFDIR | 0755 | (dir->x.mode & S_ISGID);
    x->x.links = 2;
    x->x.next_cookie = SCRATCH_COOKIE_FIRST;
    scratch_change_add(c, dir, q->place.name, /* cookie= */ 0, x);
    return 0;
}

/* A call like this one whose changes are steps on the way: not noted, not waited for. */
static struct scratch_call step_of(const struct scratch_call *call)
{
    struct scratch_call step = *call;
    step.request = 0;
    step.commit = KV_VISIBLE;
    return step;
}

static int imply(struct scratch *s, const struct scratch_call *call, const struct scratch_place *place,
                 struct err *e)
{
    struct scratch_call step = step_of(call);
    struct imply_arg q = {.place = *place};
    uint32_t shard = (uint32_t)(hash_mix(place->dir, hash_table(place->name)) >> (64 - SCRATCH_SHARD_BITS));
    int r = scratch_number_new(s, shard, &q.ino, e);
    if (r < 0)
        return r;
    _cleanup_change_ struct scratch_change c;
    scratch_change_init(&c, s, &step);
    c.by_key = true;
    return scratch_change_run(&c, prepare_imply, &q, e);
}

int scratch_place_make(struct scratch *s, const struct scratch_call *call, struct slice path,
                       struct scratch_walk *ret, struct err *e)
{
    for (int i = 0; i < SCRATCH_TRIES; i++) {
        int r = scratch_walk(s, call->bucket, path, ret, e);
        if (r < 0 || ret->found != SCRATCH_NO_DIR)
            return r;
        r = imply(s, call, &ret->place, e);
        if (r < 0 && r != -EEXIST && (r != -ENOENT || ret->place.dir == SCRATCH_ROOT))
            return r; /* else others were there meanwhile: look again */
    }
    return err_set(e, ERR_CONFLICT, "directories on the way come and go");
}

struct prune_arg {
    struct scratch_walk w;
};

static int prepare_prune(struct scratch_change *c, void *arg, struct err *e)
{
    struct prune_arg *q = arg;
    struct scratch_loaded *dir, *x;
    struct scratch_dirent d = {0};
    const uint64_t inos[] = {q->w.place.dir, q->w.d.ino};
    scratch_change_lock(c, inos, ARRAY_SIZE(inos));
    int r = scratch_change_dir(c, q->w.place.dir, &dir, e);
    if (r == 0)
        r = scratch_change_entry(c, q->w.place.dir, q->w.place.name, &d, e);
    if (r == 0 && d.ino == q->w.d.ino)
        r = scratch_change_inode(c, d.ino, &x, e);
    if (r < 0)
        return r;
    if (d.ino != q->w.d.ino || !(x->x.flags & SCRATCH_IMPLIED) || x->x.entries > 0)
        return -ENOTEMPTY;
    scratch_change_take(c, dir, q->w.place.name, &d, x);
    return scratch_change_unlink(c, x, e);
}

void scratch_prune(struct scratch *s, const struct scratch_call *call, struct slice path)
{
    struct scratch_call step = step_of(call);
    step.cred = NULL;
    int r = 0;
    if (path.n > 0 && path.p[path.n - 1] == '/')
        path.n--;
    for (ssize_t slash = slice_rfind(path, '/'); r == 0 && slash > 0; slash = slice_rfind(path, '/')) {
        path.n = (size_t)slash;
        struct prune_arg q;
        r = scratch_walk(s, call->bucket, path, &q.w, NULL);
        if (r == 0 && (q.w.found == SCRATCH_NO_DIR || q.w.found == SCRATCH_FREE))
            continue; /* gone already; look at the one above */
        if (r < 0 || q.w.found != SCRATCH_FOUND || q.w.d.type != S_IFDIR >> 12)
            return;
        _cleanup_change_ struct scratch_change c;
        scratch_change_init(&c, s, &step);
        c.by_key = true;
        r = scratch_change_run(&c, prepare_prune, &q, NULL);
    }
}

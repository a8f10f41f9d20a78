/*
 * Listings of a scratch bucket as S3 sees it: keys in byte order, from the tree and from the key table.
 *
 * Entries of a directory lie in the store by name. A directory counts as its name with '/', so it comes after
 * those names that begin with it and go on with a byte below '/'. While a directory's entries are read,
 * directories whose turn has not come wait on a stack: each is a prefix of the one above it, so there are at
 * most SCRATCH_NAME_MAX of them, and the top one is the next to come. What is below a directory is read when
 * its turn comes. Memory: one frame for each level, at most one per byte of a key.
 *
 * Invariant: the keys that a cursor gives rise. What is made or removed while it runs may or may not be seen.
 */
#include "namespace/scratch_object.h"

#define PASSED_MAX 10000 /* keys that one page passes by without showing them */

struct waiting {
    uint64_t ino;
    size_t name_bytes;
};

/* One directory that is being read. */
struct frame {
    struct frame *up;
    uint64_t ino;
    size_t path_bytes; /* of the directory's path with its '/', in the cursor's buffer */
    struct kv_iter *it;
    struct buf name; /* of the next entry; all waiting names are its prefixes, or those of one before */
    struct scratch_dirent d;
    bool has_next;
    struct buf waiting_name; /* of the top one; the others are its prefixes */
    struct waiting waiting[SCRATCH_NAME_MAX];
    size_t n_waiting;
    bool own_key; /* the directory's own key is still to be given */
};

struct cursor {
    struct scratch *s;
    uint64_t bucket;
    const struct scratch_list *l;
    struct frame *top;
    struct buf path;        /* of the top frame, with a '/' at its end unless it is the root */
    struct buf tree;        /* next key of the tree, empty at its end */
    struct scratch_inode x; /* its inode; slices in raw */
    struct buf raw;
    struct kv_iter *keys; /* the key table */
    struct buf keyed;     /* its next key, empty at its end */
    struct scratch_dirent keyed_d;
};

static int keep(struct buf *b, struct slice s)
{
    buf_clear(b);
    return buf_slice(b, s);
}

/* ---- one directory ---- */

static int frame_next(struct cursor *c, struct frame *f, struct err *e)
{
    struct slice key, value;
    f->has_next = false;
    int r = kv_iter_next(f->it, &key, &value, e);
    if (r == -ENOENT)
        return 0;
    if (r == 0 && (key.n <= 18 || scratch_dirent_decode(value, &f->d) < 0))
        r = err_set(e, ERR_CORRUPT, "control store: directory %llu has an entry that is not ours",
                    (unsigned long long)f->ino);
    if (r == 0)
        r = keep(&f->name, slice_from(key, 18));
    f->has_next = r == 0;
    (void)c;
    return r;
}

static int frame_wait(struct frame *f, struct slice name, uint64_t ino)
{
    assert(f->n_waiting < SCRATCH_NAME_MAX);
    f->waiting[f->n_waiting++] = (struct waiting){ino, name.n};
    return keep(&f->waiting_name, name);
}

/* Directories that are prefixes of `name` and whose turn comes after it. */
static int frame_find_waiting(struct cursor *c, struct frame *f, struct slice name, struct err *e)
{
    for (size_t n = 1; n < name.n && n <= SCRATCH_NAME_MAX; n++) {
        struct scratch_dirent d;
        uint64_t version;
        if ((uint8_t)name.p[n] >= '/')
            continue;
        int r = scratch_record_entry(c->s, c->bucket, f->ino, slice_sub(name, 0, n), &d, &version, e);
        if (r == 0 && d.type == S_IFDIR >> 12)
            r = frame_wait(f, slice_sub(name, 0, n), d.ino);
        if (r < 0 && r != -ENOENT)
            return r;
    }
    return 0;
}

static void cursor_pop(struct cursor *c)
{
    struct frame *f = c->top;
    c->top = f->up;
    kv_iter_free(f->it);
    buf_fini(&f->name);
    buf_fini(&f->waiting_name);
    free(f);
    if (c->top) {
        c->path.n = c->top->path_bytes;
        if (c->path.p)
            c->path.p[c->path.n] = 0;
    }
}

/* Reads directory `ino`, whose path is in c->path; of its keys those from `target` on, which is relative to
 * it. When target leads into a directory below, that one is read first. */
static int cursor_push(struct cursor *c, uint64_t ino, struct slice target, bool own_key, uint64_t *ret_below,
                       struct err *e)
{
    struct frame *f = calloc(1, sizeof(*f));
    assert(f);
    f->up = c->top;
    f->ino = ino;
    f->path_bytes = c->path.n;
    f->own_key = own_key;
    f->name = BUF_INIT(SCRATCH_KEY_MAX);
    f->waiting_name = BUF_INIT(SCRATCH_KEY_MAX);
    c->top = f;
    struct slice rest = target, name = slice_split(&rest, '/');
    bool into = name.n < target.n;
    _cleanup_buf_ struct buf from = BUF_INIT(SCRATCH_KEY_MAX), to = BUF_INIT(SCRATCH_KEY_MAX);
    scratch_key(c->bucket, ino, SCRATCH_KEY_ENTRY, name, &from);
    if (into)
        (void)buf_char(&from, '/' + 1); /* every name from here on comes after name + "/" */
    scratch_key(c->bucket, ino, SCRATCH_KEY_ENTRY, SLICE_NULL, &to);
    to.p[to.n - 1]++;
    f->it = kv_iter_new(c->s->kv, buf_view(&from), buf_view(&to));
    int r = frame_find_waiting(c, f, name, e);
    struct scratch_dirent d;
    uint64_t version;
    *ret_below = 0;
    if (r == 0 && into && name.n > 0) {
        r = scratch_record_entry(c->s, c->bucket, ino, name, &d, &version, e);
        if (r == 0 && d.type == S_IFDIR >> 12)
            *ret_below = d.ino;
        r = r == -ENOENT ? 0 : r;
    }
    return r < 0 ? r : frame_next(c, f, e);
}

/* From the root down to the first key that is not below `target`. */
static int cursor_seek(struct cursor *c, struct slice target, struct err *e)
{
    while (c->top)
        cursor_pop(c);
    buf_clear(&c->path);
    uint64_t ino = SCRATCH_ROOT;
    for (;;) {
        uint64_t below;
        bool own_key = c->path.n > 0 && target.n == 0;
        int r = cursor_push(c, ino, target, own_key, &below, e);
        if (r < 0 || below == 0)
            return r;
        struct slice name = slice_split(&target, '/');
        r = buf_slice(&c->path, name);
        if (r == 0)
            r = buf_char(&c->path, '/');
        if (r < 0)
            return err_set(e, r, "prefix or marker is too long");
        ino = below;
    }
}

/* ---- the tree ---- */

/* The next thing of the top frame: its own key, a directory whose turn has come, or a file. */
enum step { STEP_END, STEP_OWN, STEP_DIRECTORY, STEP_FILE };

static int frame_step(struct cursor *c, struct frame *f, enum step *ret, struct buf *ret_name,
                      uint64_t *ret_ino, struct err *e)
{
    if (f->own_key) {
        f->own_key = false;
        *ret_ino = f->ino;
        *ret = STEP_OWN;
        return 0;
    }
    for (;;) {
        struct slice next = buf_view(&f->name);
        if (f->n_waiting > 0) {
            struct waiting w = f->waiting[f->n_waiting - 1];
            struct slice name = slice_sub(buf_view(&f->waiting_name), 0, w.name_bytes);
            bool before =
                f->has_next && slice_starts(next, name) && next.n > name.n && (uint8_t)next.p[name.n] < '/';
            if (!before) {
                f->n_waiting--;
                *ret_ino = w.ino;
                *ret = STEP_DIRECTORY;
                return keep(ret_name, name);
            }
        }
        if (!f->has_next) {
            *ret = STEP_END;
            return 0;
        }
        bool is_dir = f->d.type == S_IFDIR >> 12;
        bool is_file = f->d.type == S_IFREG >> 12 || (c->l->links && f->d.type == S_IFLNK >> 12);
        *ret_ino = f->d.ino;
        int r = is_dir ? frame_wait(f, next, f->d.ino) : keep(ret_name, next);
        if (r == 0)
            r = frame_next(c, f, e);
        *ret = STEP_FILE;
        if (r < 0 || is_file)
            return r;
    }
}

/* Whether the directory is there and has a key of its own, in c->x. */
static int take_own(struct cursor *c, uint64_t ino, bool *ret, struct err *e)
{
    uint64_t version;
    int r = scratch_record_inode(c->s, c->bucket, ino, &c->raw, &c->x, &version, e);
    *ret = r == 0 && S_ISDIR(c->x.mode) && !(c->x.flags & SCRATCH_IMPLIED);
    return r == -ENOENT ? 0 : r;
}

/* Whether the name is there and leads to an object, in *ret_x; ino: where it led when the scan began.
 * Something else may have taken that one's place since, by a PUT or a rename: the name was there all the
 * time, and a listing without it would say that it is gone. Slices lie in raw. */
static int take_named(struct cursor *c, uint64_t dir, struct slice name, uint64_t ino, struct buf *raw,
                      struct scratch_inode *ret_x, bool *ret, struct err *e)
{
    uint64_t version;
    int r = scratch_record_inode(c->s, c->bucket, ino, raw, ret_x, &version, e);
    for (int i = 0; r == -ENOENT && i < SCRATCH_TRIES; i++) {
        struct scratch_dirent d;
        r = scratch_record_entry(c->s, c->bucket, dir, name, &d, &version, e);
        if (r < 0)
            break;
        r = scratch_record_inode(c->s, c->bucket, d.ino, raw, ret_x, &version, e);
    }
    *ret =
        r == 0 && (S_ISREG(ret_x->mode) || dir == SCRATCH_INO_KEYS || (c->l->links && S_ISLNK(ret_x->mode)));
    return r == -ENOENT ? 0 : r;
}

static int enter(struct cursor *c, uint64_t ino, struct slice name, struct err *e)
{
    uint64_t below;
    int r = buf_slice(&c->path, name);
    if (r == 0)
        r = buf_char(&c->path, '/');
    assert(r == 0); /* the path's maximum has room for one name more than a key */
    if (c->path.n <= SCRATCH_OBJECT_KEY_MAX)
        return cursor_push(c, ino, SLICE_NULL, /* own_key= */ true, &below, e);
    c->path.n = c->top->path_bytes; /* deeper than any key */
    return 0;
}

/* The next key of the tree into c->tree, which is empty at the end. */
static int tree_next(struct cursor *c, struct err *e)
{
    _cleanup_buf_ struct buf name = BUF_INIT(SCRATCH_KEY_MAX);
    buf_clear(&c->tree);
    while (c->top) {
        enum step step = STEP_END;
        uint64_t ino = 0;
        bool wanted = false;
        int r = frame_step(c, c->top, &step, &name, &ino, e);
        if (r == 0 && step == STEP_DIRECTORY)
            r = enter(c, ino, buf_view(&name), e);
        if (r < 0)
            return r;
        if (step == STEP_END)
            cursor_pop(c);
        if (step == STEP_END || step == STEP_DIRECTORY)
            continue;
        if (step == STEP_OWN)
            buf_clear(&name);
        if (c->path.n + name.n > SCRATCH_OBJECT_KEY_MAX)
            continue;
        r = step == STEP_OWN ? take_own(c, ino, &wanted, e)
                             : take_named(c, c->top->ino, buf_view(&name), ino, &c->raw, &c->x, &wanted, e);
        if (r < 0)
            return r;
        if (!wanted)
            continue;
        r = keep(&c->tree, buf_view(&c->path));
        return r < 0 ? r : buf_slice(&c->tree, buf_view(&name));
    }
    return 0;
}

/* ---- the key table ---- */

static int keyed_next(struct cursor *c, struct err *e)
{
    struct slice key, value;
    buf_clear(&c->keyed);
    if (!c->keys)
        return 0;
    int r = kv_iter_next(c->keys, &key, &value, e);
    if (r == -ENOENT)
        return 0;
    if (r == 0 && (key.n <= 18 || scratch_dirent_decode(value, &c->keyed_d) < 0))
        r = err_set(e, ERR_CORRUPT, "control store: the key table has an entry that is not ours");
    return r < 0 ? r : keep(&c->keyed, slice_from(key, 18));
}

static int keyed_seek(struct cursor *c, struct slice target, struct err *e)
{
    _cleanup_buf_ struct buf from = BUF_INIT(SCRATCH_KEY_MAX), to = BUF_INIT(SCRATCH_KEY_MAX);
    kv_iter_free(c->keys);
    scratch_key(c->bucket, SCRATCH_INO_KEYS, SCRATCH_KEY_ENTRY, target, &from);
    scratch_key(c->bucket, SCRATCH_INO_KEYS, SCRATCH_KEY_ENTRY, SLICE_NULL, &to);
    to.p[to.n - 1]++;
    c->keys = c->l->paths_only ? NULL : kv_iter_new(c->s->kv, buf_view(&from), buf_view(&to));
    return keyed_next(c, e);
}

/* ---- both ---- */

static int seek_both(struct cursor *c, struct slice target, struct err *e)
{
    int r = cursor_seek(c, target, e);
    if (r == 0)
        r = tree_next(c, e);
    return r < 0 ? r : keyed_seek(c, target, e);
}

/* The lower of the two keys; NULL slice at the end. The tree's hides the same key of the table. */
static int lowest(struct cursor *c, struct slice *ret, bool *ret_keyed, struct err *e)
{
    for (;;) {
        if (c->keyed.n == 0 || c->tree.n == 0)
            break;
        int order = slice_cmp(buf_view(&c->keyed), buf_view(&c->tree));
        if (order != 0)
            break;
        int r = keyed_next(c, e);
        if (r < 0)
            return r;
    }
    *ret_keyed = c->keyed.n > 0 && (c->tree.n == 0 || slice_cmp(buf_view(&c->keyed), buf_view(&c->tree)) < 0);
    *ret = *ret_keyed ? buf_view(&c->keyed) : c->tree.n > 0 ? buf_view(&c->tree) : SLICE_NULL;
    return 0;
}

static int give_key(struct cursor *c, struct slice key, bool keyed,
                    int (*on_key)(void *arg, const struct scratch_listed *x), void *arg, bool *ret_given,
                    struct err *e)
{
    *ret_given = true;
    _cleanup_buf_ struct buf raw = BUF_INIT(SCRATCH_RECORD_MAX);
    struct scratch_inode of_table;
    if (keyed) {
        int r = take_named(c, SCRATCH_INO_KEYS, key, c->keyed_d.ino, &raw, &of_table, ret_given, e);
        if (r < 0 || !*ret_given)
            return r;
    }
    struct scratch_listed x = {.key = key, .inode = keyed ? &of_table : &c->x};
    return on_key(arg, &x);
}

/* Gives all keys below `prefix` as one, and goes on behind them. */
static int give_prefix(struct cursor *c, struct slice prefix,
                       int (*on_key)(void *arg, const struct scratch_listed *x), void *arg, struct err *e)
{
    struct scratch_listed x = {.key = prefix, .is_prefix = true};
    int r = on_key ? on_key(arg, &x) : 0;
    if (r < 0)
        return r;
    _cleanup_buf_ struct buf behind = BUF_INIT(SCRATCH_KEY_MAX);
    if (kv_prefix_end(prefix, &behind) < 0 || behind.n == 0) { /* nothing can follow */
        buf_clear(&c->tree);
        buf_clear(&c->keyed);
        return 0;
    }
    return seek_both(c, buf_view(&behind), e);
}

/* The common prefix that the key belongs to; empty when it stands for itself. */
static struct slice common_prefix(const struct scratch_list *l, struct slice key)
{
    if (l->delimiter == 0)
        return SLICE_NULL;
    ssize_t at = slice_find(slice_from(key, l->prefix.n), l->delimiter);
    return at < 0 ? SLICE_NULL : slice_sub(key, 0, l->prefix.n + (size_t)at + 1);
}

static int advance(struct cursor *c, bool keyed, struct err *e)
{
    return keyed ? keyed_next(c, e) : tree_next(c, e);
}

static int list_run(struct cursor *c, int (*on_key)(void *arg, const struct scratch_listed *x), void *arg,
                    bool *ret_truncated, struct err *e)
{
    const struct scratch_list *l = c->l;
    size_t n = 0, passed = 0;
    *ret_truncated = false;
    for (;;) {
        struct slice key;
        bool keyed, given = true;
        int r = lowest(c, &key, &keyed, e);
        if (r < 0 || key.n == 0 || !slice_starts(key, l->prefix))
            return r;
        _cleanup_buf_ struct buf p = BUF_INIT(SCRATCH_KEY_MAX);
        r = buf_slice(&p, common_prefix(l, key));
        bool old = slice_cmp(p.n > 0 ? buf_view(&p) : key, l->after) <= 0 && l->after.n > 0;
        old = old || (p.n == 0 && l->paths_only && slice_ends(key, SLICE_LIT("/")));
        if (r == 0 && !old && (n == l->max || passed == PASSED_MAX)) {
            *ret_truncated = true;
            return 0;
        }
        if (r == 0 && p.n > 0)
            r = give_prefix(c, buf_view(&p), old ? NULL : on_key, arg, e);
        else if (r == 0 && !old)
            r = give_key(c, key, keyed, on_key, arg, &given, e);
        if (r == SCRATCH_PASS_BY) {
            given = false;
            passed++;
            r = 0;
        }
        if (r == -E2BIG) {
            *ret_truncated = true;
            return 0;
        }
        if (r == 0 && p.n == 0)
            r = advance(c, keyed, e);
        if (r < 0)
            return r;
        n += !old && given;
    }
}

static void cursor_fini(struct cursor *c)
{
    while (c->top)
        cursor_pop(c);
    kv_iter_free(c->keys);
    buf_fini(&c->path);
    buf_fini(&c->tree);
    buf_fini(&c->raw);
    buf_fini(&c->keyed);
}

int scratch_list(struct scratch *s, uint64_t bucket, const struct scratch_list *l,
                 int (*on_key)(void *arg, const struct scratch_listed *x), void *arg, bool *ret_truncated,
                 struct err *e)
{
    if (l->prefix.n > SCRATCH_OBJECT_KEY_MAX || l->after.n > SCRATCH_OBJECT_KEY_MAX)
        return err_set(e, -ENAMETOOLONG, "prefix or marker longer than %d bytes", SCRATCH_OBJECT_KEY_MAX);
    struct cursor _cleanup_(cursor_fini) c = {
        .s = s,
        .bucket = bucket,
        .l = l,
        .path = BUF_INIT(SCRATCH_KEY_MAX + SCRATCH_NAME_MAX),
        .tree = BUF_INIT(SCRATCH_KEY_MAX),
        .raw = BUF_INIT(SCRATCH_RECORD_MAX),
        .keyed = BUF_INIT(SCRATCH_KEY_MAX),
    };
    bool truncated = false;
    struct slice from = slice_cmp(l->after, l->prefix) > 0 ? l->after : l->prefix;
    int r = seek_both(&c, from, e);
    if (r == 0)
        r = list_run(&c, on_key, arg, &truncated, e);
    if (r == 0)
        *ret_truncated = truncated;
    return r;
}

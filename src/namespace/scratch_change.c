/*
 * One change of the scratch namespace: locks, what was read as conditions, what is written as one
 * transaction with the bucket's sums and the answer to a request that may be resent.
 *
 * Invariants:
 *  1. Every inode and entry that a change read is a condition of its commit, so that the change is right even
 *     where the locks of this process do not reach.
 *  2. Nothing in memory (cache, sums, holds) changes before the commit succeeded.
 *
 * Failure modes: a commit that fails leaves the old state. What the cache held of the keys is forgotten then,
 * so that the store says what is true.
 */
#include "namespace/scratch_internal.h"

#include "base/sys.h"

#define ANSWER_SLOTS SCRATCH_ANSWERS_MAX

void scratch_change_init(struct scratch_change *c, struct scratch *s, const struct scratch_call *call)
{
    *c = (struct scratch_change){.s = s, .call = call};
    c->key = BUF_INIT(SCRATCH_KEY_MAX);
    c->value = BUF_INIT(SCRATCH_RECORD_MAX);
    c->a = arena_new(SCRATCH_CHANGE_BYTES);
    c->txn = kv_txn_new(s->kv);
}

static void change_unlock(struct scratch_change *c)
{
    if (c->locked)
        scratch_stripes_drop(c->s, &c->stripes);
    if (c->bucket)
        scratch_bucket_leave(c->s, c->bucket);
    c->locked = false;
    c->bucket = NULL;
}

void scratch_change_fini(struct scratch_change *c)
{
    change_unlock(c);
    kv_txn_free(c->txn);
    arena_free(c->a);
    buf_fini(&c->key);
    buf_fini(&c->value);
}

/* Ready for a try. */
static int change_begin(struct scratch_change *c, struct err *e)
{
    change_unlock(c);
    kv_txn_clear(c->txn);
    arena_clear(c->a);
    c->n_inodes = c->n_writes = 0;
    c->keyed = 0;
    c->moves = false;
    c->answer_ino = c->hold_ino = 0;
    c->changed_ns = 0;
    c->orphans.n = 0;
    c->stripes = (struct scratch_stripe_set){{0}};
    c->now_ns = (int64_t)sys->real_ns();
    return scratch_bucket_enter(c->s, c->call->bucket, &c->bucket, e);
}

void scratch_change_lock(struct scratch_change *c, const uint64_t *inos, size_t n)
{
    assert(!c->locked);
    for (size_t i = 0; i < n; i++) {
        unsigned stripe = scratch_stripe_of(c->call->bucket, inos[i]);
        if (inos[i] != 0)
            c->stripes.bits[stripe / 64] |= (uint64_t)1 << stripe % 64;
    }
    if (c->moves)
        c->stripes.bits[SCRATCH_STRIPE_MOVES / 64] |= (uint64_t)1 << SCRATCH_STRIPE_MOVES % 64;
    scratch_stripes_take(c->s, &c->stripes);
    c->locked = true;
}

/* ---- reading ---- */

static void must_hold(const struct scratch_change *c, uint64_t ino)
{
    unsigned stripe = scratch_stripe_of(c->call->bucket, ino);
    assert(c->locked && c->stripes.bits[stripe / 64] >> stripe % 64 & 1);
}

static struct scratch_loaded *slot(struct scratch_change *c)
{
    assert(c->n_inodes < SCRATCH_INODES_MAX);
    struct scratch_loaded *x = &c->inodes[c->n_inodes++];
    *x = (struct scratch_loaded){.version = 0};
    return x;
}

static void check_inode(struct scratch_change *c, uint64_t ino, uint64_t version)
{
    scratch_key(c->call->bucket, ino, SCRATCH_KEY_INODE, SLICE_NULL, &c->key);
    kv_txn_check(c->txn, buf_view(&c->key), version);
}

int scratch_change_inode(struct scratch_change *c, uint64_t ino, struct scratch_loaded **ret, struct err *e)
{
    if (ino == 0) /* locked by nobody: no inode has it, but a client may ask for it */
        return err_set(e, -ENOENT, "inode 0 does not exist");
    must_hold(c, ino);
    for (size_t i = 0; i < c->n_inodes; i++)
        if (c->inodes[i].x.ino == ino) {
            *ret = &c->inodes[i];
            return 0;
        }
    _cleanup_buf_ struct buf raw = BUF_INIT(SCRATCH_RECORD_MAX);
    struct scratch_inode x;
    uint64_t version;
    int r = scratch_record_inode(c->s, c->call->bucket, ino, &raw, &x, &version, e);
    if (r == -ENOENT)
        return err_set(e, -ENOENT, "inode %llu does not exist", (unsigned long long)ino);
    if (r < 0)
        return r;
    struct scratch_loaded *l = slot(c);
    l->x = scratch_inode_dup(&x, c->a);
    l->version = version;
    l->bytes_before = (int64_t)x.allocated_bytes;
    check_inode(c, ino, version);
    *ret = l;
    return 0;
}

int scratch_change_dir(struct scratch_change *c, uint64_t ino, struct scratch_loaded **ret, struct err *e)
{
    struct scratch_loaded *l = NULL;
    int r = scratch_change_inode(c, ino, &l, e);
    if (r < 0)
        return r;
    if (!S_ISDIR(l->x.mode))
        return err_set(e, -ENOTDIR, "not a directory");
    if (l->x.links == 0)
        return err_set(e, -ENOENT, "the directory was removed");
    /* First of all: who may not search it is not told either what is in it. */
    r = scratch_may(&l->x, c->call->cred, 1, e);
    if (r == 0)
        *ret = l;
    return r;
}

struct scratch_loaded *scratch_change_fresh(struct scratch_change *c, uint64_t ino)
{
    must_hold(c, ino);
    struct scratch_loaded *l = slot(c);
    l->x.ino = ino;
    l->x.atime_ns = l->x.mtime_ns = l->x.ctime_ns = l->x.birth_ns = c->now_ns;
    l->dirty = true;
    return l;
}

struct scratch_loaded *scratch_change_new(struct scratch_change *c, uint64_t ino)
{
    check_inode(c, ino, 0);
    return scratch_change_fresh(c, ino);
}

int scratch_change_entry(struct scratch_change *c, uint64_t dir, struct slice name,
                         struct scratch_dirent *ret, struct err *e)
{
    uint64_t version = 0;
    int r = scratch_record_entry(c->s, c->call->bucket, dir, name, ret, &version, e);
    if (r < 0 && r != -ENOENT)
        return r;
    scratch_key(c->call->bucket, dir, SCRATCH_KEY_ENTRY, name, &c->key);
    kv_txn_check(c->txn, buf_view(&c->key), version);
    return r;
}

/* ---- changing ---- */

/* Remembers what the key of the change becomes, for the cache; a key that is removed and put becomes what was
 * put, and nobody shall find it absent in between. */
static void note_write(struct scratch_change *c, struct slice value, bool removed)
{
    size_t i = 0;
    while (i < c->n_writes && !slice_eq(c->writes[i].key, buf_view(&c->key)))
        i++;
    assert(i < SCRATCH_WRITES_MAX);
    c->writes[i] =
        (struct scratch_write){arena_dup(c->a, buf_view(&c->key)), arena_dup(c->a, value), removed};
    c->n_writes = MAX(c->n_writes, i + 1);
}

void scratch_change_touch(struct scratch_change *c, struct scratch_loaded *x, bool contents)
{
    x->x.ctime_ns = c->now_ns;
    if (contents)
        x->x.mtime_ns = c->now_ns;
    if (!c->by_key)
        x->x.flags &= ~(uint32_t)SCRATCH_IMPLIED;
    x->dirty = true;
}

void scratch_change_add(struct scratch_change *c, struct scratch_loaded *dir, struct slice name,
                        uint64_t cookie, struct scratch_loaded *x)
{
    struct scratch_dirent d = {(uint8_t)(x->x.mode >> 12), x->x.ino, cookie};
    if (dir && cookie == 0)
        d.cookie = dir->x.next_cookie++;
    uint8_t entry[SCRATCH_DIRENT_BYTES];
    scratch_dirent_encode(&d, entry);
    scratch_key(c->call->bucket, dir ? dir->x.ino : SCRATCH_INO_KEYS, SCRATCH_KEY_ENTRY, name, &c->key);
    struct slice value = slice_of(entry, sizeof(entry));
    kv_txn_put(c->txn, buf_view(&c->key), value);
    note_write(c, value, /* removed= */ false);
    x->x.flags = dir ? x->x.flags & ~(uint32_t)SCRATCH_KEYED : x->x.flags | SCRATCH_KEYED;
    x->dirty = true;
    if (!dir) {
        c->keyed++;
        return;
    }
    buf_clear(&c->value);
    int r = scratch_order_encode(&d, name, &c->value);
    assert(r == 0);
    scratch_key_order(c->call->bucket, dir->x.ino, d.cookie, &c->key);
    kv_txn_put_plain(c->txn, buf_view(&c->key), buf_view(&c->value));
    dir->x.entries++;
    if (S_ISDIR(x->x.mode)) {
        dir->x.links++;
        x->x.parent = dir->x.ino;
    }
    scratch_change_touch(c, dir, /* contents= */ true);
}

void scratch_change_take(struct scratch_change *c, struct scratch_loaded *dir, struct slice name,
                         const struct scratch_dirent *d, struct scratch_loaded *x)
{
    scratch_key(c->call->bucket, dir ? dir->x.ino : SCRATCH_INO_KEYS, SCRATCH_KEY_ENTRY, name, &c->key);
    kv_txn_delete(c->txn, buf_view(&c->key));
    note_write(c, SLICE_NULL, /* removed= */ true);
    if (!dir) {
        c->keyed--;
        return;
    }
    scratch_key_order(c->call->bucket, dir->x.ino, d->cookie, &c->key);
    kv_txn_delete(c->txn, buf_view(&c->key));
    dir->x.entries--;
    if (S_ISDIR(x->x.mode))
        dir->x.links--;
    scratch_change_touch(c, dir, /* contents= */ true);
}

static int erase_xattrs(struct scratch_change *c, const struct scratch_inode *x, struct err *e)
{
    _cleanup_buf_ struct buf from = BUF_INIT(SCRATCH_KEY_MAX), to = BUF_INIT(SCRATCH_KEY_MAX);
    scratch_key(c->call->bucket, x->ino, SCRATCH_KEY_XATTR, SLICE_NULL, &from);
    (void)kv_prefix_end(buf_view(&from), &to);
    _cleanup_(kv_iter_freep) struct kv_iter *it = kv_iter_new(c->s->kv, buf_view(&from), buf_view(&to));
    struct slice key, value;
    int r;
    while ((r = kv_iter_next(it, &key, &value, e)) == 0)
        kv_txn_delete(c->txn, key);
    return r == -ENOENT ? 0 : r;
}

void scratch_change_writing(struct scratch_change *c, const struct scratch_loaded *x)
{
    scratch_key_writing(c->call->bucket, x->x.ino, &c->key);
    if (x->x.location.n == 0) {
        kv_txn_delete(c->txn, buf_view(&c->key));
        return;
    }
    buf_clear(&c->value);
    int r = scratch_writing_encode(x->x.location, &c->value);
    assert(r == 0);
    kv_txn_put_plain(c->txn, buf_view(&c->key), buf_view(&c->value));
}

int scratch_change_erase(struct scratch_change *c, struct scratch_loaded *x, struct err *e)
{
    int r = x->x.xattrs > 0 ? erase_xattrs(c, &x->x, e) : 0;
    if (x->x.flags & SCRATCH_PARTED) {
        scratch_key(c->call->bucket, x->x.ino, SCRATCH_KEY_PARTS, SLICE_NULL, &c->key);
        kv_txn_delete(c->txn, buf_view(&c->key));
    }
    scratch_key_orphan(c->call->bucket, x->x.ino, &c->key);
    kv_txn_delete(c->txn, buf_view(&c->key));
    if (x->x.location.n > 0) {
        scratch_key_writing(c->call->bucket, x->x.ino, &c->key);
        kv_txn_delete(c->txn, buf_view(&c->key));
    }
    x->gone = true;
    return r;
}

int scratch_change_unlink(struct scratch_change *c, struct scratch_loaded *x, struct err *e)
{
    x->x.links = S_ISDIR(x->x.mode) ? 0 : x->x.links - 1;
    scratch_change_touch(c, x, /* contents= */ false);
    if (x->x.links > 0)
        return 0;
    bool held = scratch_held(c->s, c->call->bucket, x->x.ino);
    if (!held && x->x.location.n == 0)
        return scratch_change_erase(c, x, e);
    const char format = SCRATCH_FORMAT;
    scratch_key_orphan(c->call->bucket, x->x.ino, &c->key);
    kv_txn_put_plain(c->txn, buf_view(&c->key), slice_of(&format, 1));
    if (held) /* said too early where the commit fails: somebody waits a little for nothing */
        atomic_store(&c->bucket->orphaned_ns, sys->mono_ns());
    if (!held) {
        assert(c->orphans.n < ARRAY_SIZE(c->orphans.v));
        struct scratch_orphan *o = &c->orphans.v[c->orphans.n++];
        *o = (struct scratch_orphan){.bucket = c->call->bucket, .ino = x->x.ino};
        o->location_bytes = x->x.location.n;
        memcpy(o->location, x->x.location.p, x->x.location.n);
    }
    return 0;
}

/* ---- answers to requests that may come again ---- */

static void answer_key(struct scratch_change *c)
{
    scratch_key_answer(c->call->mount, (uint32_t)(c->call->request % ANSWER_SLOTS), &c->key);
}

/* Whether the request was done before; a condition that nobody does it meanwhile. */
static int answer_find(struct scratch_change *c, struct err *e)
{
    struct scratch_answer old = {0};
    uint64_t version = 0;
    answer_key(c);
    buf_clear(&c->value);
    int r = kv_get(c->s->kv, buf_view(&c->key), &c->value, &version, e);
    if (r == -ENOENT)
        version = 0;
    else if (r < 0)
        return r;
    else if (scratch_answer_decode(buf_view(&c->value), &old) < 0)
        return err_set(e, ERR_CORRUPT, "control store: answer of a request is not one of ours");
    kv_txn_check(c->txn, buf_view(&c->key), version);
    c->replayed = version != 0 && old.request == c->call->request;
    c->answer_ino = c->replayed ? old.ino : 0;
    return 0;
}

int scratch_noted(struct scratch *s, const struct scratch_call *call, bool *ret, uint64_t *ret_what,
                  struct err *e)
{
    *ret = false;
    if (call->request == 0)
        return 0;
    _cleanup_change_ struct scratch_change c;
    scratch_change_init(&c, s, call);
    int r = answer_find(&c, e);
    *ret = r == 0 && c.replayed;
    if (*ret)
        *ret_what = c.answer_ino;
    return r;
}

int scratch_is_done(struct scratch *s, const struct scratch_call *call, bool *ret, struct err *e)
{
    uint64_t what;
    return scratch_noted(s, call, ret, &what, e);
}

static void answer_note(struct scratch_change *c)
{
    struct scratch_answer x = {c->call->request, (uint64_t)c->now_ns, c->answer_ino};
    uint8_t value[SCRATCH_ANSWER_BYTES];
    scratch_answer_encode(&x, value);
    answer_key(c);
    kv_txn_put(c->txn, buf_view(&c->key), slice_of(value, sizeof(value)));
}

int scratch_note(struct scratch *s, const struct scratch_call *call, uint64_t what, struct err *e)
{
    if (call->request == 0)
        return 0;
    _cleanup_change_ struct scratch_change c;
    scratch_change_init(&c, s, call);
    c.now_ns = (int64_t)sys->real_ns();
    c.answer_ino = what;
    answer_note(&c);
    return kv_txn_commit(c.txn, call->commit, e);
}

/* ---- commit ---- */

static int put_inodes(struct scratch_change *c, struct scratch_counts *ret_grown, struct err *e)
{
    for (size_t i = 0; i < c->n_inodes; i++) {
        struct scratch_loaded *x = &c->inodes[i];
        scratch_key(c->call->bucket, x->x.ino, SCRATCH_KEY_INODE, SLICE_NULL, &c->key);
        if (x->gone) {
            kv_txn_delete(c->txn, buf_view(&c->key));
            note_write(c, SLICE_NULL, /* removed= */ true);
        } else if (x->dirty) {
            buf_clear(&c->value);
            int r = scratch_inode_encode(&x->x, &c->value);
            if (r < 0)
                return err_set(e, r, "attributes of inode %llu are too long", (unsigned long long)x->x.ino);
            kv_txn_put(c->txn, buf_view(&c->key), buf_view(&c->value));
            note_write(c, buf_view(&c->value), /* removed= */ false);
        }
        ret_grown->inodes += !x->gone - (x->version != 0);
        ret_grown->bytes += (x->gone ? 0 : (int64_t)x->x.allocated_bytes) - x->bytes_before;
    }
    ret_grown->keyed += c->keyed;
    return 0;
}

/* The part of the sums that this change rewrites: of its first stripe. */
static unsigned lane_of(const struct scratch_change *c)
{
    for (unsigned i = 0; i < SCRATCH_STRIPES; i++)
        if (c->stripes.bits[i / 64] >> i % 64 & 1)
            return i;
    assert(false);
    return 0;
}

static struct scratch_counts put_counts(struct scratch_change *c, const struct scratch_counts *grown)
{
    unsigned lane = lane_of(c);
    struct scratch_counts n = {
        atomic_load(&c->bucket->lanes[lane].inodes) + grown->inodes,
        atomic_load(&c->bucket->lanes[lane].bytes) + grown->bytes,
        atomic_load(&c->bucket->lanes[lane].keyed) + grown->keyed,
    };
    if (grown->inodes != 0 || grown->bytes != 0 || grown->keyed != 0) {
        uint8_t value[SCRATCH_COUNTS_BYTES];
        scratch_counts_encode(&n, value);
        scratch_key_counts(c->call->bucket, (uint16_t)lane, &c->key);
        kv_txn_put_plain(c->txn, buf_view(&c->key), slice_of(value, sizeof(value)));
    }
    return n;
}

static void move_holds(struct scratch_change *c)
{
    if (c->hold_ino != 0)
        scratch_hold_add(c->s, c->call->bucket, c->hold_ino);
    if (c->drop_ino != 0)
        scratch_hold_drop(c->s, c->call->bucket, c->drop_ino);
}

/* Removals last: who does not find the old name of a file any more finds the new one. */
static void cache_writes(struct scratch_change *c, uint64_t version)
{
    for (size_t i = 0; i < c->n_writes; i++)
        if (!c->writes[i].removed)
            scratch_record_written(c->s, c->writes[i].key, c->writes[i].value, version);
    for (size_t i = 0; i < c->n_writes; i++)
        if (c->writes[i].removed)
            scratch_record_written(c->s, c->writes[i].key, SLICE_NULL, /* version= */ 0);
}

/* Files that are open have holds; what else a program may have open is known to its kernel alone, which asks
 * for its attributes still. */
static void keep_removed(struct scratch_change *c)
{
    for (size_t i = 0; i < c->n_inodes; i++) {
        const struct scratch_loaded *x = &c->inodes[i];
        if (!x->gone || S_ISREG(x->x.mode))
            continue;
        scratch_key(c->call->bucket, x->x.ino, SCRATCH_KEY_INODE, SLICE_NULL, &c->key);
        buf_clear(&c->value);
        if (scratch_inode_encode(&x->x, &c->value) == 0)
            lru_put(c->s->removed, buf_view(&c->key), buf_view(&c->value));
    }
}

static void after_commit(struct scratch_change *c, uint64_t version, const struct scratch_counts *counts)
{
    keep_removed(c);
    cache_writes(c, version);
    unsigned lane = lane_of(c);
    atomic_store(&c->bucket->lanes[lane].inodes, counts->inodes);
    atomic_store(&c->bucket->lanes[lane].bytes, counts->bytes);
    atomic_store(&c->bucket->lanes[lane].keyed, counts->keyed);
    move_holds(c);
}

static void forget_all_read(struct scratch_change *c)
{
    for (size_t i = 0; i < c->n_writes; i++)
        scratch_record_forget(c->s, c->writes[i].key);
    for (size_t i = 0; i < c->n_inodes; i++) {
        scratch_key(c->call->bucket, c->inodes[i].x.ino, SCRATCH_KEY_INODE, SLICE_NULL, &c->key);
        scratch_record_forget(c->s, buf_view(&c->key));
    }
}

static bool anything_to_write(const struct scratch_change *c)
{
    for (size_t i = 0; i < c->n_inodes; i++)
        if (c->inodes[i].dirty || c->inodes[i].gone)
            return true;
    return c->n_writes > 0;
}

static int change_commit(struct scratch_change *c, struct err *e)
{
    struct scratch_counts grown = {0};
    if (!anything_to_write(c)) {
        move_holds(c);
        return 0;
    }
    int r = put_inodes(c, &grown, e);
    if (r < 0)
        return r;
    struct scratch_counts counts = put_counts(c, &grown);
    if (c->moves) {
        const char format = SCRATCH_FORMAT;
        scratch_key(c->call->bucket, SCRATCH_INO_BUCKET, SCRATCH_KEY_MOVES, SLICE_NULL, &c->key);
        kv_txn_put(c->txn, buf_view(&c->key), slice_of(&format, 1));
    }
    if (c->call->request != 0)
        answer_note(c);
    uint64_t version;
    r = kv_txn_commit_version(c->txn, KV_VISIBLE, &version, e);
    if (r < 0) {
        forget_all_read(c);
        return r;
    }
    after_commit(c, version, &counts);
    return 0;
}

/* With the locks of a change that cannot be made: whether that is because it has just been made. A process
 * that was killed may have sent it, whose successor sends it again while it runs. */
static bool is_done_meanwhile(struct scratch_change *c)
{
    struct err ignored = {0};
    return c->call->request != 0 && answer_find(c, &ignored) == 0 && c->replayed;
}

int scratch_change_run(struct scratch_change *c,
                       int (*prepare)(struct scratch_change *c, void *arg, struct err *e), void *arg,
                       struct err *e)
{
    int r = ERR_CONFLICT;
    for (int i = 0; r == ERR_CONFLICT && i < SCRATCH_TRIES; i++) {
        r = change_begin(c, e);
        if (r == 0 && c->call->request != 0)
            r = answer_find(c, e);
        if (r == 0 && c->replayed)
            break;
        if (r == 0)
            r = prepare(c, arg, e);
        if (r < 0 && r != ERR_CONFLICT && is_done_meanwhile(c))
            r = 0;
        else if (r == 0)
            r = change_commit(c, e);
    }
    change_unlock(c);
    /* The sync is waited for without locks: changes of one directory share it. */
    if (r == 0 && c->call->commit == KV_DURABLE)
        r = kv_sync(c->s->kv, e);
    return r;
}

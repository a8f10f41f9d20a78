/*
 * Holds and orphans. A hold is a count in memory, in the list of its inode's stripe; an inode without links
 * that is held, or has data to be freed, stands in the store's list of orphans until it is buried.
 *
 * Failure modes: a process that dies loses its holds; scratch_sweep of the next start hands out every orphan.
 */
#include "namespace/scratch_internal.h"

#include "base/le.h"
#include "base/sys.h"

#define ANSWER_LIFE_NS (24 * 3600 * (uint64_t)1000000000)
#define SWEEP_BATCH    256
#define HOLD_LISTS_MIN 8

static struct scratch_hold **list_of(const struct scratch_holds *t, uint64_t bucket, uint64_t ino)
{
    return &t->lists[hash_mix(bucket, ino) / SCRATCH_STRIPES & (t->n_lists - 1)];
}

/* Where the hold of an inode is, or would be put. */
static struct scratch_hold **hold_find(struct scratch *s, uint64_t bucket, uint64_t ino)
{
    struct scratch_holds *t = &s->holds[scratch_stripe_of(bucket, ino)];
    struct scratch_hold **h = t->n_lists > 0 ? list_of(t, bucket, ino) : &t->none;
    while (*h && ((*h)->bucket != bucket || (*h)->ino != ino))
        h = &(*h)->next;
    return h;
}

/* One list for each hold, so that none is searched for longer the more there are. */
static void make_room(struct scratch_holds *t)
{
    struct scratch_holds larger = {.n_lists = MAX(2 * t->n_lists, (size_t)HOLD_LISTS_MIN), .n = t->n};
    if (t->n < t->n_lists)
        return;
    larger.lists = calloc(larger.n_lists, sizeof(*larger.lists));
    assert(larger.lists);
    for (size_t i = 0; i < t->n_lists; i++)
        for (struct scratch_hold *h; (h = t->lists[i]);) {
            struct scratch_hold **to = list_of(&larger, h->bucket, h->ino);
            t->lists[i] = h->next;
            h->next = *to;
            *to = h;
        }
    free(t->lists);
    *t = larger;
}

void scratch_holds_fini(struct scratch_holds *t)
{
    for (size_t i = 0; i < t->n_lists; i++)
        for (struct scratch_hold *h; (h = t->lists[i]);) {
            t->lists[i] = h->next;
            free(h);
        }
    free(t->lists);
}

bool scratch_held(struct scratch *s, uint64_t bucket, uint64_t ino)
{
    return *hold_find(s, bucket, ino) != NULL;
}

void scratch_hold_add(struct scratch *s, uint64_t bucket, uint64_t ino)
{
    struct scratch_hold **h = hold_find(s, bucket, ino);
    if (!*h) {
        struct scratch_holds *t = &s->holds[scratch_stripe_of(bucket, ino)];
        make_room(t);
        t->n++;
        h = list_of(t, bucket, ino);
        struct scratch_hold *made = calloc(1, sizeof(*made));
        assert(made);
        *made = (struct scratch_hold){.next = *h, .bucket = bucket, .ino = ino};
        *h = made;
    }
    (*h)->count++;
}

static int prepare_hold(struct scratch_change *c, void *arg, struct err *e)
{
    const uint64_t *ino = arg;
    struct scratch_loaded *x;
    scratch_change_lock(c, ino, 1);
    int r = scratch_change_inode(c, *ino, &x, e);
    if (r == 0 && x->x.links == 0 && !scratch_held(c->s, c->call->bucket, *ino))
        return err_set(e, -ENOENT, "inode %llu was removed", (unsigned long long)*ino);
    c->hold_ino = *ino;
    return r;
}

int scratch_hold(struct scratch *s, uint64_t bucket, uint64_t ino, struct err *e)
{
    struct scratch_call call = {.bucket = bucket};
    _cleanup_change_ struct scratch_change c;
    scratch_change_init(&c, s, &call);
    return scratch_change_run(&c, prepare_hold, &ino, e);
}

static int prepare_hold_orphan(struct scratch_change *c, void *arg, struct err *e)
{
    const uint64_t *ino = arg;
    struct scratch_loaded *x;
    scratch_change_lock(c, ino, 1);
    c->hold_ino = *ino;
    return scratch_change_inode(c, *ino, &x, e);
}

int scratch_hold_orphan(struct scratch *s, uint64_t bucket, uint64_t ino, struct err *e)
{
    struct scratch_call call = {.bucket = bucket};
    _cleanup_change_ struct scratch_change c;
    scratch_change_init(&c, s, &call);
    return scratch_change_run(&c, prepare_hold_orphan, &ino, e);
}

/* The last hold of an inode without links: what has no data goes at once. */
static int let_go(struct scratch_change *c, struct scratch_loaded *x, struct err *e)
{
    if (x->x.location.n == 0)
        return scratch_change_erase(c, x, e);
    struct scratch_orphan *o = &c->orphans.v[c->orphans.n++];
    *o = (struct scratch_orphan){.bucket = c->call->bucket, .ino = x->x.ino};
    o->location_bytes = x->x.location.n;
    memcpy(o->location, x->x.location.p, x->x.location.n);
    return 0;
}

static int prepare_release(struct scratch_change *c, void *arg, struct err *e)
{
    const uint64_t *ino = arg;
    struct scratch_loaded *x;
    scratch_change_lock(c, ino, 1);
    struct scratch_hold **h = hold_find(c->s, c->call->bucket, *ino);
    assert(*h && (*h)->count > 0);
    if ((*h)->count > 1)
        return 0;
    int r = scratch_change_inode(c, *ino, &x, e);
    return r < 0 || x->x.links > 0 ? r : let_go(c, x, e);
}

void scratch_hold_drop(struct scratch *s, uint64_t bucket, uint64_t ino)
{
    struct scratch_hold **h = hold_find(s, bucket, ino), *gone = *h;
    if (--gone->count > 0)
        return;
    *h = gone->next;
    s->holds[scratch_stripe_of(bucket, ino)].n--;
    free(gone);
}

/* Under the inode's lock. Whether nothing is to be written when a hold of it goes: others hold it, too, or it
 * has links. */
static bool goes_quietly(struct scratch *s, uint64_t bucket, uint64_t ino)
{
    const struct scratch_hold *h = *hold_find(s, bucket, ino);
    assert(h && h->count > 0);
    if (h->count > 1)
        return true;
    _cleanup_buf_ struct buf raw = BUF_INIT(SCRATCH_RECORD_MAX);
    struct scratch_inode x;
    uint64_t version;
    return scratch_record_inode(s, bucket, ino, &raw, &x, &version, NULL) == 0 && x.links > 0;
}

/* As most holds end, without what a change costs. */
static bool release_quietly(struct scratch *s, uint64_t bucket, uint64_t ino)
{
    struct scratch_bucket *b;
    struct scratch_stripe_set set = {{0}};
    unsigned stripe = scratch_stripe_of(bucket, ino);
    if (scratch_bucket_enter(s, bucket, &b, NULL) < 0)
        return false;
    set.bits[stripe / 64] |= (uint64_t)1 << stripe % 64;
    scratch_stripes_take(s, &set);
    bool done = goes_quietly(s, bucket, ino);
    if (done)
        scratch_hold_drop(s, bucket, ino);
    scratch_stripes_drop(s, &set);
    scratch_bucket_leave(s, b);
    return done;
}

int scratch_release(struct scratch *s, uint64_t bucket, uint64_t ino, struct scratch_orphans *ret_orphans,
                    struct err *e)
{
    struct scratch_call call = {.bucket = bucket};
    ret_orphans->n = 0;
    if (release_quietly(s, bucket, ino))
        return 0;
    _cleanup_change_ struct scratch_change c;
    scratch_change_init(&c, s, &call);
    c.drop_ino = ino;
    int r = scratch_change_run(&c, prepare_release, &ino, e);
    if (r == 0)
        *ret_orphans = c.orphans;
    return r;
}

/* ---- orphans ---- */

static int prepare_bury(struct scratch_change *c, void *arg, struct err *e)
{
    const uint64_t *ino = arg;
    struct scratch_loaded *x;
    scratch_change_lock(c, ino, 1);
    int r = scratch_change_inode(c, *ino, &x, e);
    if (r < 0)
        return r;
    if (x->x.links > 0 || scratch_held(c->s, c->call->bucket, *ino))
        return err_set(e, -EBUSY, "inode %llu is in use", (unsigned long long)*ino);
    return scratch_change_erase(c, x, e);
}

int scratch_bury(struct scratch *s, uint64_t bucket, uint64_t ino, struct err *e)
{
    struct scratch_call call = {.bucket = bucket};
    _cleanup_change_ struct scratch_change c;
    scratch_change_init(&c, s, &call);
    int r = scratch_change_run(&c, prepare_bury, &ino, e);
    return r == -ENOENT ? 0 : r;
}

/* The next orphans after the key `from`, which moves on; 0 when there are no more. */
static int next_orphans(struct scratch *s, struct buf *from, struct scratch_orphan *v, size_t max,
                        size_t *ret_n, struct err *e)
{
    _cleanup_(kv_iter_freep) struct kv_iter *it = kv_iter_new(s->kv, buf_view(from), SLICE_LIT("{"));
    struct slice key = SLICE_NULL, value;
    size_t n = 0;
    int r = 0;
    while (n < max && (r = kv_iter_next(it, &key, &value, e)) == 0) {
        if (key.n != 17 || value.n != 1 || value.p[0] != SCRATCH_FORMAT)
            return err_set(e, ERR_CORRUPT, "control store: list of orphans is not ours");
        v[n++] = (struct scratch_orphan){.bucket = be_get64(key.p + 1), .ino = be_get64(key.p + 9)};
    }
    if (r < 0 && r != -ENOENT)
        return r;
    *ret_n = n;
    if (n == 0)
        return 0;
    scratch_key_orphan(v[n - 1].bucket, v[n - 1].ino + 1, from);
    return 0;
}

static int sweep_one(struct scratch *s, struct scratch_orphan *o,
                     int (*on_orphan)(void *arg, const struct scratch_orphan *x), void *arg, struct err *e)
{
    _cleanup_buf_ struct buf raw = BUF_INIT(SCRATCH_RECORD_MAX);
    struct scratch_inode x;
    uint64_t version;
    int r = scratch_record_inode(s, o->bucket, o->ino, &raw, &x, &version, e);
    if (r < 0)
        return r == -ENOENT ? 0 : r;
    o->location_bytes = x.location.n;
    if (x.location.n > 0)
        memcpy(o->location, x.location.p, x.location.n);
    if (on_orphan(arg, o) < 0)
        return 0; /* the caller has it, or the next start tries again */
    return scratch_bury(s, o->bucket, o->ino, e);
}

static bool is_old(struct slice value, uint64_t now_ns)
{
    struct scratch_answer x;
    return scratch_answer_decode(value, &x) < 0 || x.at_ns + ANSWER_LIFE_NS < now_ns;
}

/* Another answer may take its place meanwhile: that one stays. */
static int forget_answer(struct scratch *s, struct kv_txn *t, struct slice key, uint64_t now_ns,
                         struct err *e)
{
    _cleanup_buf_ struct buf value = BUF_INIT(SCRATCH_RECORD_MAX);
    uint64_t version;
    int r = kv_get(s->kv, key, &value, &version, e);
    if (r < 0 || !is_old(buf_view(&value), now_ns))
        return r == -ENOENT ? 0 : r;
    kv_txn_check(t, key, version);
    kv_txn_delete(t, key);
    r = kv_txn_commit(t, KV_VISIBLE, e);
    return r == ERR_CONFLICT ? 0 : r;
}

int scratch_forget_old_answers(struct scratch *s, struct err *e)
{
    _cleanup_(kv_iter_freep) struct kv_iter *it = kv_iter_new(s->kv, SLICE_LIT("q"), SLICE_LIT("r"));
    _cleanup_(kv_txn_freep) struct kv_txn *t = kv_txn_new(s->kv);
    uint64_t now_ns = sys->real_ns();
    struct slice key, value;
    int r;
    while ((r = kv_iter_next(it, &key, &value, e)) == 0)
        if (is_old(value, now_ns) && (r = forget_answer(s, t, key, now_ns, e)) < 0)
            return r;
    return r == -ENOENT ? 0 : r;
}

int scratch_sweep(struct scratch *s, int (*on_orphan)(void *arg, const struct scratch_orphan *x), void *arg,
                  struct err *e)
{
    _cleanup_buf_ struct buf from = BUF_INIT(SCRATCH_KEY_MAX);
    _cleanup_free_ struct scratch_orphan *v = calloc(SWEEP_BATCH, sizeof(*v));
    assert(v);
    scratch_key_orphan(0, 0, &from);
    size_t n = 0;
    do {
        int r = next_orphans(s, &from, v, SWEEP_BATCH, &n, e);
        for (size_t i = 0; r == 0 && i < n; i++)
            r = sweep_one(s, &v[i], on_orphan, arg, e);
        if (r < 0)
            return r;
    } while (n > 0);
    return scratch_forget_old_answers(s, e);
}

int scratch_forget_mount(struct scratch *s, struct id128 mount, struct err *e)
{
    _cleanup_buf_ struct buf from = BUF_INIT(SCRATCH_KEY_MAX), to = BUF_INIT(SCRATCH_KEY_MAX);
    scratch_key_answer(mount, 0, &from);
    scratch_key_answer(mount, UINT32_MAX, &to);
    _cleanup_(kv_txn_freep) struct kv_txn *t = kv_txn_new(s->kv);
    kv_txn_delete_range(t, buf_view(&from), buf_view(&to));
    return kv_txn_commit(t, KV_VISIBLE, e);
}

/*
 * The scratch namespace as a whole: opening, buckets and their sums, numbers of inodes, locks of inodes.
 *
 * Locks of inodes are stripes. A change takes all it needs at once, waiting until every one of them is free;
 * it holds no mutex while it reads and commits. A bucket's sums lie in one part per stripe: a transaction
 * rewrites the part of one stripe that it holds, so that sums are exact after any crash and no two
 * transactions meet in one record.
 *
 * Failure modes: numbers of inodes are taken from the store in steps; those left over at the end are lost.
 */
#include "namespace/scratch_internal.h"

#include "base/le.h"
#include "base/sys.h"

#include <inttypes.h>

#define REMOVED_SHARE 32 /* of the cache, for attributes of what was removed */

int scratch_open(struct kv *kv, uint64_t cache_bytes, struct scratch **ret, struct err *e)
{
    (void)e;
    assert(kv && ret);
    struct scratch *s = calloc(1, sizeof(*s));
    assert(s);
    s->kv = kv;
    s->removed = lru_new(cache_bytes / REMOVED_SHARE);
    s->cache = lru_new(cache_bytes - cache_bytes / REMOVED_SHARE);
    lock_init(&s->lock, LOCK_LEAF);
    lock_init(&s->sequence_lock, LOCK_NAMESPACE);
    cond_init(&s->freed);
    *ret = s;
    return 0;
}

void scratch_close(struct scratch *s)
{
    if (!s)
        return;
    for (size_t i = 0; i < SCRATCH_STRIPES; i++)
        scratch_holds_fini(&s->holds[i]);
    while (s->buckets) {
        struct scratch_bucket *b = s->buckets;
        s->buckets = b->next;
        free(b);
    }
    lru_free(s->cache);
    lru_free(s->removed);
    cond_fini(&s->freed);
    lock_fini(&s->lock);
    lock_fini(&s->sequence_lock);
    free(s);
}

/* ---- locks of inodes ---- */

unsigned scratch_stripe_of(uint64_t bucket, uint64_t ino)
{
    return (unsigned)(hash_mix(bucket, ino) % SCRATCH_STRIPES);
}

static bool stripes_meet(const struct scratch_stripe_set *a, const struct scratch_stripe_set *b)
{
    uint64_t both = 0;
    for (size_t i = 0; i < SCRATCH_STRIPE_WORDS; i++)
        both |= a->bits[i] & b->bits[i];
    return both != 0;
}

void scratch_stripes_take(struct scratch *s, const struct scratch_stripe_set *set)
{
    LOCK_SCOPE(&s->lock);
    s->waiting++;
    while (stripes_meet(&s->taken, set))
        cond_wait(&s->freed, &s->lock);
    s->waiting--;
    for (size_t i = 0; i < SCRATCH_STRIPE_WORDS; i++)
        s->taken.bits[i] |= set->bits[i];
}

void scratch_stripes_drop(struct scratch *s, const struct scratch_stripe_set *set)
{
    LOCK_SCOPE(&s->lock);
    for (size_t i = 0; i < SCRATCH_STRIPE_WORDS; i++)
        s->taken.bits[i] &= ~set->bits[i];
    if (s->waiting > 0)
        cond_broadcast(&s->freed);
}

/* ---- buckets ---- */

static struct scratch_bucket *bucket_known_locked(struct scratch *s, uint64_t bucket)
{
    lock_assert_held(&s->lock);
    struct scratch_bucket *b = s->buckets;
    while (b && b->id != bucket)
        b = b->next;
    return b;
}

/* The sums as the store has them. */
static int bucket_load(struct scratch *s, struct scratch_bucket *b, struct err *e)
{
    _cleanup_buf_ struct buf from = BUF_INIT(SCRATCH_KEY_MAX), to = BUF_INIT(SCRATCH_KEY_MAX);
    scratch_key(b->id, SCRATCH_INO_BUCKET, SCRATCH_KEY_COUNTS, SLICE_NULL, &from);
    (void)kv_prefix_end(buf_view(&from), &to);
    _cleanup_(kv_iter_freep) struct kv_iter *it = kv_iter_new(s->kv, buf_view(&from), buf_view(&to));
    struct slice key, value;
    int r;
    while ((r = kv_iter_next(it, &key, &value, e)) == 0) {
        struct scratch_counts part;
        struct slice lane = slice_from(key, from.n);
        unsigned i = lane.n == 2 ? be_get16(lane.p) : SCRATCH_STRIPES;
        if (i >= SCRATCH_STRIPES || scratch_counts_decode(value, &part) < 0)
            return err_set(e, ERR_CORRUPT, "control store: sums of bucket %" PRIu64 " are not ours", b->id);
        atomic_init(&b->lanes[i].inodes, part.inodes);
        atomic_init(&b->lanes[i].bytes, part.bytes);
        atomic_init(&b->lanes[i].keyed, part.keyed);
    }
    return r == -ENOENT ? 0 : r;
}

/* Puts b among the known ones unless another thread was first. */
static void bucket_add(struct scratch *s, struct scratch_bucket *b)
{
    lock_take(&s->lock);
    bool first = !bucket_known_locked(s, b->id);
    if (first) {
        b->next = s->buckets;
        s->buckets = b;
    }
    lock_drop(&s->lock);
    if (!first)
        free(b);
}

int scratch_bucket_enter(struct scratch *s, uint64_t bucket, struct scratch_bucket **ret, struct err *e)
{
    for (;;) {
        lock_take(&s->lock);
        struct scratch_bucket *b = bucket_known_locked(s, bucket);
        s->waiting++;
        while (b && b->closing) {
            cond_wait(&s->freed, &s->lock);
            b = bucket_known_locked(s, bucket);
        }
        s->waiting--;
        if (b)
            b->users++;
        lock_drop(&s->lock);
        if (b) {
            *ret = b;
            return 0;
        }
        b = calloc(1, sizeof(*b));
        assert(b);
        b->id = bucket;
        int r = bucket_load(s, b, e);
        if (r < 0) {
            free(b);
            return r;
        }
        bucket_add(s, b);
    }
}

void scratch_bucket_leave(struct scratch *s, struct scratch_bucket *b)
{
    LOCK_SCOPE(&s->lock);
    b->users--;
    if (s->waiting > 0)
        cond_broadcast(&s->freed);
}

static struct scratch_counts bucket_sum(struct scratch_bucket *b)
{
    struct scratch_counts sum = {0};
    for (size_t i = 0; i < SCRATCH_STRIPES; i++) {
        sum.inodes += atomic_load(&b->lanes[i].inodes);
        sum.bytes += atomic_load(&b->lanes[i].bytes);
        sum.keyed += atomic_load(&b->lanes[i].keyed);
    }
    return sum;
}

int scratch_statfs(struct scratch *s, uint64_t bucket, struct scratch_counts *ret, struct err *e)
{
    struct scratch_bucket *b;
    int r = scratch_bucket_enter(s, bucket, &b, e);
    if (r < 0)
        return r;
    *ret = bucket_sum(b);
    scratch_bucket_leave(s, b);
    ret->inodes -= ret->inodes > 0; /* the root */
    return 0;
}

struct make_arg {
    uint32_t mode, uid, gid;
};

static int prepare_root(struct scratch_change *c, void *arg, struct err *e)
{
    const struct make_arg *m = arg;
    const uint64_t ino = SCRATCH_ROOT;
    struct scratch_loaded *root;
    scratch_change_lock(c, &ino, 1);
    int r = scratch_change_inode(c, ino, &root, e);
    if (r != -ENOENT)
        return r;
    root = scratch_change_new(c, ino);
    root->x.mode = S_IFDIR | (m->mode & 07777);
    root->x.uid = m->uid;
    root->x.gid = m->gid;
    root->x.links = 2;
    root->x.parent = SCRATCH_ROOT;
    root->x.next_cookie = SCRATCH_COOKIE_FIRST;
    return 0;
}

int scratch_bucket_make(struct scratch *s, uint64_t bucket, uint32_t mode, uint32_t uid, uint32_t gid,
                        struct err *e)
{
    struct scratch_call call = {.bucket = bucket, .commit = KV_DURABLE};
    struct make_arg m = {mode, uid, gid};
    _cleanup_change_ struct scratch_change c;
    scratch_change_init(&c, s, &call);
    return scratch_change_run(&c, prepare_root, &m, e);
}

int scratch_orphaned(struct scratch *s, uint64_t bucket, bool *ret, struct err *e)
{
    _cleanup_buf_ struct buf from = BUF_INIT(SCRATCH_KEY_MAX), to = BUF_INIT(SCRATCH_KEY_MAX);
    scratch_key_orphan(bucket, 0, &from);
    scratch_key_orphan(bucket + 1, 0, &to);
    _cleanup_(kv_iter_freep) struct kv_iter *it = kv_iter_new(s->kv, buf_view(&from), buf_view(&to));
    struct slice key, value;
    int r = kv_iter_next(it, &key, &value, e);
    *ret = r == 0;
    return r == -ENOENT ? 0 : r;
}

bool scratch_orphaned_since(struct scratch *s, uint64_t bucket, uint64_t ns)
{
    struct scratch_bucket *b;
    if (scratch_bucket_enter(s, bucket, &b, NULL) < 0)
        return false;
    uint64_t at_ns = atomic_load(&b->orphaned_ns);
    scratch_bucket_leave(s, b);
    return at_ns > 0 && at_ns >= ns;
}

int scratch_note_ttl(struct scratch *s, uint64_t bucket, struct err *e)
{
    _cleanup_buf_ struct buf key = BUF_INIT(SCRATCH_KEY_MAX);
    _cleanup_(kv_txn_freep) struct kv_txn *t = kv_txn_new(s->kv);
    const char format = SCRATCH_FORMAT;
    scratch_key(bucket, SCRATCH_INO_BUCKET, SCRATCH_KEY_ENDS, SLICE_NULL, &key);
    kv_txn_put_plain(t, buf_view(&key), slice_of(&format, 1));
    return kv_txn_commit(t, KV_DURABLE, e);
}

bool scratch_had_ttl(struct scratch *s, uint64_t bucket)
{
    _cleanup_buf_ struct buf key = BUF_INIT(SCRATCH_KEY_MAX);
    scratch_key(bucket, SCRATCH_INO_BUCKET, SCRATCH_KEY_ENDS, SLICE_NULL, &key);
    return kv_get(s->kv, buf_view(&key), /* ret_value= */ NULL, /* ret_version= */ NULL, /* e= */ NULL) == 0;
}

static int bucket_erase(struct scratch *s, uint64_t bucket, struct err *e)
{
    _cleanup_buf_ struct buf from = BUF_INIT(SCRATCH_KEY_MAX), to = BUF_INIT(SCRATCH_KEY_MAX);
    scratch_key(bucket, 0, 0, SLICE_NULL, &from);
    scratch_key(bucket + 1, 0, 0, SLICE_NULL, &to);
    _cleanup_(kv_txn_freep) struct kv_txn *t = kv_txn_new(s->kv);
    kv_txn_delete_range(t, buf_view(&from), buf_view(&to));
    return kv_txn_commit(t, KV_DURABLE, e);
}

/* Nobody else is in the bucket. */
static int remove_empty(struct scratch *s, struct scratch_bucket *b, struct err *e)
{
    struct scratch_counts sum = bucket_sum(b);
    bool orphans = false;
    int r = scratch_orphaned(s, b->id, &orphans, e);
    if (r < 0)
        return r;
    if (sum.inodes > 1 || orphans)
        return err_set(e, -ENOTEMPTY, "the bucket holds %lld files and directories",
                       (long long)MAX(sum.inodes - 1, 1));
    r = bucket_erase(s, b->id, e);
    scratch_record_forget_all(s);
    return r;
}

int scratch_bucket_remove(struct scratch *s, uint64_t bucket, struct err *e)
{
    struct scratch_bucket *b;
    int r = scratch_bucket_enter(s, bucket, &b, e);
    if (r < 0)
        return r;
    lock_take(&s->lock);
    b->users--;
    if (b->closing) {
        cond_broadcast(&s->freed);
        lock_drop(&s->lock);
        return err_set(e, -EBUSY, "the bucket is being removed");
    }
    b->closing = true;
    s->waiting++;
    while (b->users > 0)
        cond_wait(&s->freed, &s->lock);
    s->waiting--;
    lock_drop(&s->lock);

    r = remove_empty(s, b, e);
    lock_take(&s->lock);
    b->closing = false;
    for (struct scratch_bucket **at = &s->buckets; r == 0 && *at; at = &(*at)->next)
        if (*at == b) {
            *at = b->next;
            break;
        }
    cond_broadcast(&s->freed);
    lock_drop(&s->lock);
    if (r == 0)
        free(b);
    return r;
}

int scratch_sync(struct scratch *s, struct err *e)
{
    return kv_sync(s->kv, e);
}

/* ---- numbers of inodes ---- */

uint32_t scratch_shard_of(uint64_t ino)
{
    return (uint32_t)(ino >> SCRATCH_SEQUENCE_BITS);
}

uint64_t scratch_key_number(struct slice key)
{
    return hash_table(key) | 1;
}

/* Takes the next step of numbers from the store; durable, because data may lie under a number before the
 * inode is known. */
static int sequence_refill(struct scratch *s, struct err *e)
{
    _cleanup_(kv_txn_freep) struct kv_txn *t = kv_txn_new(s->kv);
    int r = ERR_CONFLICT;
    for (int i = 0; r == ERR_CONFLICT && i < SCRATCH_TRIES; i++) {
        _cleanup_buf_ struct buf value = BUF_INIT(32);
        uint64_t version = 0, last = SCRATCH_INO_FIRST - 1;
        r = kv_get(s->kv, SLICE_LIT("n/inode"), &value, &version, e);
        if (r < 0 && r != -ENOENT)
            return r;
        if (r == 0 && (slice_u64(buf_view(&value), &last) < 0 || last >> (SCRATCH_SEQUENCE_BITS - 1)))
            return err_set(e, ERR_CORRUPT, "control store: counter of inodes is not a number");
        char text[32];
        (void)snprintf(text, sizeof(text), "%" PRIu64, last + SCRATCH_SEQUENCE_STEP);
        kv_txn_check(t, SLICE_LIT("n/inode"), version);
        kv_txn_put(t, SLICE_LIT("n/inode"), slice_str(text));
        r = kv_txn_commit(t, KV_DURABLE, e);
        if (r == 0) {
            LOCK_SCOPE(&s->lock);
            s->next_sequence = last + 1;
            s->end_sequence = last + 1 + SCRATCH_SEQUENCE_STEP;
        }
    }
    return r;
}

static bool sequence_take(struct scratch *s, uint64_t *ret)
{
    LOCK_SCOPE(&s->lock);
    if (s->next_sequence == s->end_sequence)
        return false;
    *ret = s->next_sequence++;
    return true;
}

int scratch_number_new(struct scratch *s, uint32_t shard, uint64_t *ret_ino, struct err *e)
{
    assert(shard < 1u << SCRATCH_SHARD_BITS);
    uint64_t sequence;
    while (!sequence_take(s, &sequence)) {
        LOCK_SCOPE(&s->sequence_lock); /* over the commit: others need the same numbers */
        if (sequence_take(s, &sequence))
            break;
        int r = sequence_refill(s, e);
        if (r < 0)
            return r;
    }
    *ret_ino = (uint64_t)shard << SCRATCH_SEQUENCE_BITS | sequence;
    return 0;
}

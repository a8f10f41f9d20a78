/*
 * Records through the cache. A cached record is its version (8 bytes, this process's order) and its value; a
 * key that is known to be absent has version 0.
 *
 * Failure modes: a record that cannot be read as one of ours is ERR_CORRUPT, raised here only.
 */
#include "namespace/scratch_internal.h"

static _Atomic uint64_t *generation_of(struct scratch *s, struct slice key)
{
    return &s->generations[hash_table(key) % SCRATCH_GENERATIONS];
}

static void cached_value(struct slice value, uint64_t version, struct buf *b)
{
    int r = buf_append(b, &version, sizeof(version));
    if (r == 0)
        r = buf_slice(b, value);
    assert(r == 0);
}

int scratch_record_get(struct scratch *s, struct slice key, struct buf *ret_value, uint64_t *ret_version,
                       struct err *e)
{
    _cleanup_buf_ struct buf b = BUF_INIT(SCRATCH_RECORD_MAX + sizeof(uint64_t));
    uint64_t version = 0;
    if (lru_get(s->cache, key, &b) == 0) {
        memcpy(&version, b.p, sizeof(version));
        *ret_version = version;
        return version == 0 ? -ENOENT : buf_append(ret_value, b.p + sizeof(version), b.n - sizeof(version));
    }
    _Atomic uint64_t *generation = generation_of(s, key);
    uint64_t seen = atomic_load(generation);
    size_t before = ret_value->n;
    int r = kv_get(s->kv, key, ret_value, &version, e);
    if (r < 0 && r != -ENOENT)
        return r;
    *ret_version = r == 0 ? version : 0;
    cached_value(slice_of(ret_value->p + before, ret_value->n - before), *ret_version, &b);
    lru_put_if(s->cache, key, buf_view(&b), generation, seen);
    return r;
}

void scratch_record_written(struct scratch *s, struct slice key, struct slice value, uint64_t version)
{
    _cleanup_buf_ struct buf b = BUF_INIT(SCRATCH_RECORD_MAX + sizeof(uint64_t));
    cached_value(value, version, &b);
    (void)atomic_fetch_add(generation_of(s, key), 1); /* who read the old one does not put it in any more */
    lru_put(s->cache, key, buf_view(&b));
}

void scratch_record_forget(struct scratch *s, struct slice key)
{
    (void)atomic_fetch_add(generation_of(s, key), 1);
    lru_remove(s->cache, key);
}

void scratch_record_forget_all(struct scratch *s)
{
    for (size_t i = 0; i < SCRATCH_GENERATIONS; i++)
        (void)atomic_fetch_add(&s->generations[i], 1);
    lru_clear(s->cache);
}

int scratch_record_inode(struct scratch *s, uint64_t bucket, uint64_t ino, struct buf *raw,
                         struct scratch_inode *ret, uint64_t *ret_version, struct err *e)
{
    _cleanup_buf_ struct buf key = BUF_INIT(SCRATCH_KEY_MAX);
    scratch_key(bucket, ino, SCRATCH_KEY_INODE, SLICE_NULL, &key);
    buf_clear(raw);
    int r = scratch_record_get(s, buf_view(&key), raw, ret_version, e);
    if (r == 0 && scratch_inode_decode(buf_view(raw), ino, ret) < 0)
        r = err_set(e, ERR_CORRUPT, "control store: inode %llu is not one of ours", (unsigned long long)ino);
    return r;
}

int scratch_record_entry(struct scratch *s, uint64_t bucket, uint64_t dir, struct slice name,
                         struct scratch_dirent *ret, uint64_t *ret_version, struct err *e)
{
    _cleanup_buf_ struct buf key = BUF_INIT(SCRATCH_KEY_MAX), value = BUF_INIT(SCRATCH_RECORD_MAX);
    scratch_key(bucket, dir, SCRATCH_KEY_ENTRY, name, &key);
    int r = scratch_record_get(s, buf_view(&key), &value, ret_version, e);
    if (r == 0 && scratch_dirent_decode(buf_view(&value), ret) < 0)
        r = err_set(e, ERR_CORRUPT,
                    "control store: entry '" SLICE_FMT "' of directory %llu is not one of ours",
                    SLICE_ARG(slice_sub(name, 0, 80)), (unsigned long long)dir);
    return r;
}

struct scratch_inode scratch_inode_dup(const struct scratch_inode *x, struct arena *a)
{
    struct scratch_inode y = *x;
    y.location = arena_dup(a, x->location);
    y.target = arena_dup(a, x->target);
    y.etag = arena_dup(a, x->etag);
    y.content_type = arena_dup(a, x->content_type);
    y.meta = arena_dup(a, x->meta);
    return y;
}

/* Keys and values of scratch buckets; the formats are in the header. Bytes come from disk, so every length is
 * checked. */
#include "namespace/scratch_format.h"

#include <sys/stat.h>

static void put_le(uint8_t *p, size_t n, uint64_t v)
{
    for (size_t i = 0; i < n; i++)
        p[i] = (uint8_t)(v >> (8 * i));
}

static void put_be(uint8_t *p, size_t n, uint64_t v)
{
    for (size_t i = 0; i < n; i++)
        p[n - 1 - i] = (uint8_t)(v >> (8 * i));
}

static uint64_t get_le(const char *p, size_t n)
{
    uint64_t v = 0;
    while (n > 0)
        v = v << 8 | (uint8_t)p[--n];
    return v;
}

/* ---- keys ---- */

static void add(struct buf *b, const void *p, size_t n)
{
    int r = buf_append(b, p, n);
    assert(r == 0); /* names and keys are checked before they come here */
}

void scratch_key(uint64_t bucket, uint64_t ino, enum scratch_record kind, struct slice rest,
                 struct buf *ret_key)
{
    uint8_t head[18] = {'s'};
    put_be(head + 1, 8, bucket);
    put_be(head + 9, 8, ino);
    head[17] = (uint8_t)kind;
    buf_clear(ret_key);
    add(ret_key, head, sizeof(head));
    add(ret_key, rest.p, rest.n);
}

void scratch_key_order(uint64_t bucket, uint64_t ino, uint64_t cookie, struct buf *ret_key)
{
    uint8_t be[8];
    put_be(be, 8, cookie);
    scratch_key(bucket, ino, SCRATCH_KEY_ORDER, slice_of(be, sizeof(be)), ret_key);
}

void scratch_key_counts(uint64_t bucket, uint16_t lane, struct buf *ret_key)
{
    uint8_t be[2];
    put_be(be, 2, lane);
    scratch_key(bucket, SCRATCH_INO_BUCKET, SCRATCH_KEY_COUNTS, slice_of(be, sizeof(be)), ret_key);
}

void scratch_key_orphan(uint64_t bucket, uint64_t ino, struct buf *ret_key)
{
    uint8_t key[17] = {'z'};
    put_be(key + 1, 8, bucket);
    put_be(key + 9, 8, ino);
    buf_clear(ret_key);
    add(ret_key, key, sizeof(key));
}

void scratch_key_writing(uint64_t bucket, uint64_t ino, struct buf *ret_key)
{
    uint8_t key[17] = {'w'};
    put_be(key + 1, 8, bucket);
    put_be(key + 9, 8, ino);
    buf_clear(ret_key);
    add(ret_key, key, sizeof(key));
}

void scratch_key_answer(struct id128 mount, uint32_t slot, struct buf *ret_key)
{
    uint8_t key[21] = {'q'};
    memcpy(key + 1, mount.b, sizeof(mount.b));
    put_be(key + 17, 4, slot);
    buf_clear(ret_key);
    add(ret_key, key, sizeof(key));
}

/* ---- inodes ---- */

static int put_string(struct buf *b, struct slice s)
{
    if (s.n > UINT16_MAX)
        return -E2BIG;
    uint8_t n[2];
    put_le(n, 2, s.n);
    int r = buf_append(b, n, sizeof(n));
    return r < 0 ? r : buf_slice(b, s);
}

int scratch_inode_encode(const struct scratch_inode *x, struct buf *b)
{
    uint8_t p[SCRATCH_INODE_FIXED] = {SCRATCH_FORMAT, (uint8_t)x->flags};
    put_le(p + 2, 2, x->xattrs);
    put_le(p + 4, 4, x->xattr_name_bytes);
    put_le(p + 8, 4, x->mode);
    put_le(p + 12, 4, x->uid);
    put_le(p + 16, 4, x->gid);
    put_le(p + 20, 4, x->links);
    put_le(p + 24, 4, x->rdev);
    put_le(p + 28, 8, x->size_bytes);
    put_le(p + 36, 8, x->allocated_bytes);
    put_le(p + 44, 8, (uint64_t)x->atime_ns);
    put_le(p + 52, 8, (uint64_t)x->mtime_ns);
    put_le(p + 60, 8, (uint64_t)x->ctime_ns);
    put_le(p + 68, 8, (uint64_t)x->birth_ns);
    put_le(p + 76, 8, x->parent);
    put_le(p + 84, 8, x->entries);
    put_le(p + 92, 8, x->next_cookie);
    int r = buf_append(b, p, sizeof(p));
    const struct slice *strings[] = {&x->location, &x->target, &x->etag, &x->content_type, &x->meta};
    for (size_t i = 0; r == 0 && i < ARRAY_SIZE(strings); i++)
        r = put_string(b, *strings[i]);
    return r;
}

static int get_string(struct slice *s, size_t max, struct slice *ret)
{
    if (s->n < 2)
        return ERR_CORRUPT;
    size_t n = (size_t)get_le(s->p, 2);
    if (s->n - 2 < n || n > max)
        return ERR_CORRUPT;
    *ret = slice_sub(*s, 2, n);
    *s = slice_from(*s, 2 + n);
    return 0;
}

int scratch_inode_decode(struct slice value, uint64_t ino, struct scratch_inode *ret)
{
    if (value.n < SCRATCH_INODE_FIXED || value.p[0] != SCRATCH_FORMAT)
        return ERR_CORRUPT;
    const char *p = value.p;
    struct scratch_inode x = {
        .ino = ino,
        .flags = (uint8_t)p[1],
        .xattrs = (uint32_t)get_le(p + 2, 2),
        .xattr_name_bytes = (uint32_t)get_le(p + 4, 4),
        .mode = (uint32_t)get_le(p + 8, 4),
        .uid = (uint32_t)get_le(p + 12, 4),
        .gid = (uint32_t)get_le(p + 16, 4),
        .links = (uint32_t)get_le(p + 20, 4),
        .rdev = (uint32_t)get_le(p + 24, 4),
        .size_bytes = get_le(p + 28, 8),
        .allocated_bytes = get_le(p + 36, 8),
        .atime_ns = (int64_t)get_le(p + 44, 8),
        .mtime_ns = (int64_t)get_le(p + 52, 8),
        .ctime_ns = (int64_t)get_le(p + 60, 8),
        .birth_ns = (int64_t)get_le(p + 68, 8),
        .parent = get_le(p + 76, 8),
        .entries = get_le(p + 84, 8),
        .next_cookie = get_le(p + 92, 8),
    };
    struct slice rest = slice_from(value, SCRATCH_INODE_FIXED);
    if (get_string(&rest, SCRATCH_LOCATION_MAX, &x.location) < 0 ||
        get_string(&rest, SCRATCH_TARGET_MAX, &x.target) < 0 ||
        get_string(&rest, SCRATCH_ETAG_MAX, &x.etag) < 0 ||
        get_string(&rest, SCRATCH_CONTENT_MAX, &x.content_type) < 0 ||
        get_string(&rest, SCRATCH_META_MAX, &x.meta) < 0 || rest.n != 0 || !(x.mode & S_IFMT))
        return ERR_CORRUPT;
    *ret = x;
    return 0;
}

/* ---- entries ---- */

void scratch_dirent_encode(const struct scratch_dirent *d, uint8_t ret[SCRATCH_DIRENT_BYTES])
{
    memset(ret, 0, SCRATCH_DIRENT_BYTES);
    ret[0] = SCRATCH_FORMAT;
    ret[1] = d->type;
    put_le(ret + 4, 8, d->ino);
    put_le(ret + 12, 8, d->cookie);
}

int scratch_dirent_decode(struct slice value, struct scratch_dirent *ret)
{
    if (value.n != SCRATCH_DIRENT_BYTES || value.p[0] != SCRATCH_FORMAT)
        return ERR_CORRUPT;
    *ret = (struct scratch_dirent){(uint8_t)value.p[1], get_le(value.p + 4, 8), get_le(value.p + 12, 8)};
    return ret->ino == 0 ? ERR_CORRUPT : 0;
}

int scratch_order_encode(const struct scratch_dirent *d, struct slice name, struct buf *b)
{
    uint8_t p[SCRATCH_ORDER_FIXED] = {SCRATCH_FORMAT, d->type};
    put_le(p + 2, 8, d->ino);
    int r = buf_append(b, p, sizeof(p));
    return r < 0 ? r : buf_slice(b, name);
}

int scratch_order_decode(struct slice value, struct scratch_dirent *ret, struct slice *ret_name)
{
    if (value.n <= SCRATCH_ORDER_FIXED || value.n > SCRATCH_ORDER_FIXED + SCRATCH_NAME_MAX ||
        value.p[0] != SCRATCH_FORMAT)
        return ERR_CORRUPT;
    *ret = (struct scratch_dirent){(uint8_t)value.p[1], get_le(value.p + 2, 8), 0};
    *ret_name = slice_from(value, SCRATCH_ORDER_FIXED);
    return 0;
}

/* ---- unsettled data ---- */

int scratch_writing_encode(struct slice location, struct buf *b)
{
    if (location.n > SCRATCH_LOCATION_MAX)
        return -E2BIG;
    int r = buf_char(b, SCRATCH_FORMAT);
    return r < 0 ? r : buf_slice(b, location);
}

int scratch_writing_decode(struct slice value, struct slice *ret_location)
{
    if (value.n < 2 || value.n > 1 + SCRATCH_LOCATION_MAX || value.p[0] != SCRATCH_FORMAT)
        return ERR_CORRUPT;
    *ret_location = slice_from(value, 1);
    return 0;
}

/* ---- counts, answers ---- */

void scratch_counts_encode(const struct scratch_counts *c, uint8_t ret[SCRATCH_COUNTS_BYTES])
{
    ret[0] = SCRATCH_FORMAT;
    put_le(ret + 1, 8, (uint64_t)c->inodes);
    put_le(ret + 9, 8, (uint64_t)c->bytes);
    put_le(ret + 17, 8, (uint64_t)c->keyed);
}

int scratch_counts_decode(struct slice value, struct scratch_counts *ret)
{
    if (value.n != SCRATCH_COUNTS_BYTES || value.p[0] != SCRATCH_FORMAT)
        return ERR_CORRUPT;
    *ret = (struct scratch_counts){(int64_t)get_le(value.p + 1, 8), (int64_t)get_le(value.p + 9, 8),
                                   (int64_t)get_le(value.p + 17, 8)};
    return 0;
}

void scratch_answer_encode(const struct scratch_answer *x, uint8_t ret[SCRATCH_ANSWER_BYTES])
{
    ret[0] = SCRATCH_FORMAT;
    put_le(ret + 1, 8, x->request);
    put_le(ret + 9, 8, x->at_ns);
    put_le(ret + 17, 8, x->ino);
}

int scratch_answer_decode(struct slice value, struct scratch_answer *ret)
{
    if (value.n != SCRATCH_ANSWER_BYTES || value.p[0] != SCRATCH_FORMAT)
        return ERR_CORRUPT;
    *ret = (struct scratch_answer){get_le(value.p + 1, 8), get_le(value.p + 9, 8), get_le(value.p + 17, 8)};
    return 0;
}

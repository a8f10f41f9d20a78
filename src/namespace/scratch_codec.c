/* Keys and values of scratch buckets; the formats are in the header. Bytes come from disk, so every length is
 * checked. */
#include "namespace/scratch_format.h"

#include "base/le.h"

#include <sys/stat.h>

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
    be_put64(head + 1, bucket);
    be_put64(head + 9, ino);
    head[17] = (uint8_t)kind;
    buf_clear(ret_key);
    add(ret_key, head, sizeof(head));
    add(ret_key, rest.p, rest.n);
}

void scratch_key_order(uint64_t bucket, uint64_t ino, uint64_t cookie, struct buf *ret_key)
{
    uint8_t be[8];
    be_put64(be, cookie);
    scratch_key(bucket, ino, SCRATCH_KEY_ORDER, slice_of(be, sizeof(be)), ret_key);
}

void scratch_key_counts(uint64_t bucket, uint16_t lane, struct buf *ret_key)
{
    uint8_t be[2];
    be_put16(be, lane);
    scratch_key(bucket, SCRATCH_INO_BUCKET, SCRATCH_KEY_COUNTS, slice_of(be, sizeof(be)), ret_key);
}

void scratch_key_orphan(uint64_t bucket, uint64_t ino, struct buf *ret_key)
{
    uint8_t key[17] = {'z'};
    be_put64(key + 1, bucket);
    be_put64(key + 9, ino);
    buf_clear(ret_key);
    add(ret_key, key, sizeof(key));
}

void scratch_key_writing(uint64_t bucket, uint64_t ino, struct buf *ret_key)
{
    uint8_t key[17] = {'w'};
    be_put64(key + 1, bucket);
    be_put64(key + 9, ino);
    buf_clear(ret_key);
    add(ret_key, key, sizeof(key));
}

void scratch_key_opened(const struct scratch_opened *x, struct buf *ret_key)
{
    uint8_t key[33] = {'y'};
    be_put64(key + 1, x->bucket);
    be_put64(key + 9, x->ino);
    memcpy(key + 17, x->mount.b, sizeof(x->mount.b));
    buf_clear(ret_key);
    add(ret_key, key, sizeof(key));
}

void scratch_key_answer(struct id128 mount, uint32_t slot, struct buf *ret_key)
{
    uint8_t key[21] = {'q'};
    memcpy(key + 1, mount.b, sizeof(mount.b));
    be_put32(key + 17, slot);
    buf_clear(ret_key);
    add(ret_key, key, sizeof(key));
}

/* ---- inodes ---- */

int scratch_inode_encode(const struct scratch_inode *x, struct buf *b)
{
    uint8_t p[SCRATCH_INODE_FIXED] = {SCRATCH_FORMAT, (uint8_t)x->flags};
    le_put16(p + 2, (uint16_t)x->xattrs);
    le_put32(p + 4, x->xattr_name_bytes);
    le_put32(p + 8, x->mode);
    le_put32(p + 12, x->uid);
    le_put32(p + 16, x->gid);
    le_put32(p + 20, x->links);
    le_put32(p + 24, x->rdev);
    le_put64(p + 28, x->size_bytes);
    le_put64(p + 36, x->allocated_bytes);
    le_put64(p + 44, (uint64_t)x->atime_ns);
    le_put64(p + 52, (uint64_t)x->mtime_ns);
    le_put64(p + 60, (uint64_t)x->ctime_ns);
    le_put64(p + 68, (uint64_t)x->birth_ns);
    le_put64(p + 76, x->parent);
    le_put64(p + 84, x->entries);
    le_put64(p + 92, x->next_cookie);
    struct le_writer w = le_writer_of(b);
    le_add(&w, slice_of(p, sizeof(p)));
    le_add_text(&w, x->location);
    le_add_text(&w, x->target);
    le_add_text(&w, x->etag);
    le_add_text(&w, x->content_type);
    le_add_text(&w, x->meta);
    return le_add_end(&w);
}

int scratch_inode_decode(struct slice value, uint64_t ino, struct scratch_inode *ret)
{
    if (value.n < SCRATCH_INODE_FIXED || value.p[0] != SCRATCH_FORMAT)
        return ERR_CORRUPT;
    const char *p = value.p;
    struct scratch_inode x = {
        .ino = ino,
        .flags = (uint8_t)p[1],
        .xattrs = le_get16(p + 2),
        .xattr_name_bytes = le_get32(p + 4),
        .mode = le_get32(p + 8),
        .uid = le_get32(p + 12),
        .gid = le_get32(p + 16),
        .links = le_get32(p + 20),
        .rdev = le_get32(p + 24),
        .size_bytes = le_get64(p + 28),
        .allocated_bytes = le_get64(p + 36),
        .atime_ns = (int64_t)le_get64(p + 44),
        .mtime_ns = (int64_t)le_get64(p + 52),
        .ctime_ns = (int64_t)le_get64(p + 60),
        .birth_ns = (int64_t)le_get64(p + 68),
        .parent = le_get64(p + 76),
        .entries = le_get64(p + 84),
        .next_cookie = le_get64(p + 92),
    };
    struct le_reader rest = le_reader_of(slice_from(value, SCRATCH_INODE_FIXED));
    x.location = le_take_text(&rest, SCRATCH_LOCATION_MAX);
    x.target = le_take_text(&rest, SCRATCH_TARGET_MAX);
    x.etag = le_take_text(&rest, SCRATCH_ETAG_MAX);
    x.content_type = le_take_text(&rest, SCRATCH_CONTENT_MAX);
    x.meta = le_take_text(&rest, SCRATCH_META_MAX);
    if (!le_took_all(&rest) || !(x.mode & S_IFMT))
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
    le_put64(ret + 4, d->ino);
    le_put64(ret + 12, d->cookie);
}

int scratch_dirent_decode(struct slice value, struct scratch_dirent *ret)
{
    if (value.n != SCRATCH_DIRENT_BYTES || value.p[0] != SCRATCH_FORMAT)
        return ERR_CORRUPT;
    *ret = (struct scratch_dirent){(uint8_t)value.p[1], le_get64(value.p + 4), le_get64(value.p + 12)};
    return ret->ino == 0 ? ERR_CORRUPT : 0;
}

int scratch_order_encode(const struct scratch_dirent *d, struct slice name, struct buf *b)
{
    uint8_t p[SCRATCH_ORDER_FIXED] = {SCRATCH_FORMAT, d->type};
    le_put64(p + 2, d->ino);
    int r = buf_append(b, p, sizeof(p));
    return r < 0 ? r : buf_slice(b, name);
}

int scratch_order_decode(struct slice value, struct scratch_dirent *ret, struct slice *ret_name)
{
    if (value.n <= SCRATCH_ORDER_FIXED || value.n > SCRATCH_ORDER_FIXED + SCRATCH_NAME_MAX ||
        value.p[0] != SCRATCH_FORMAT)
        return ERR_CORRUPT;
    *ret = (struct scratch_dirent){(uint8_t)value.p[1], le_get64(value.p + 2), 0};
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
    le_put64(ret + 1, (uint64_t)c->inodes);
    le_put64(ret + 9, (uint64_t)c->bytes);
    le_put64(ret + 17, (uint64_t)c->keyed);
}

int scratch_counts_decode(struct slice value, struct scratch_counts *ret)
{
    if (value.n != SCRATCH_COUNTS_BYTES || value.p[0] != SCRATCH_FORMAT)
        return ERR_CORRUPT;
    *ret = (struct scratch_counts){(int64_t)le_get64(value.p + 1), (int64_t)le_get64(value.p + 9),
                                   (int64_t)le_get64(value.p + 17)};
    return 0;
}

void scratch_answer_encode(const struct scratch_answer *x, uint8_t ret[SCRATCH_ANSWER_BYTES])
{
    ret[0] = SCRATCH_FORMAT;
    le_put64(ret + 1, x->request);
    le_put64(ret + 9, x->at_ns);
    le_put64(ret + 17, x->ino);
}

int scratch_answer_decode(struct slice value, struct scratch_answer *ret)
{
    if (value.n != SCRATCH_ANSWER_BYTES || value.p[0] != SCRATCH_FORMAT)
        return ERR_CORRUPT;
    *ret = (struct scratch_answer){le_get64(value.p + 1), le_get64(value.p + 9), le_get64(value.p + 17)};
    return 0;
}

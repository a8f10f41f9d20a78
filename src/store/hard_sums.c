/*
 * Checksums of hard extents: collecting them block by block, and comparing with them.
 *
 * Of a file that is being measured at most one chunk (1024 blocks, 4 KiB) is kept in memory; full ones go to
 * the index at once, visibly. They count only once the hard record of the same generation is committed, which
 * is durable and thereby makes them durable too.
 *
 * Holes cost nothing: a chunk without data has no record, and a block without data the checksum of zeros.
 *
 * Failure modes: a block that does not match, cannot be read, or whose checksum is lost is ERR_CORRUPT, each
 * time it is asked for; nothing is dropped, because the bytes exist nowhere else.
 */
#include "base/crc32c.h"
#include "base/log.h"
#include "base/sys.h"
#include "store/hard_internal.h"

#include <string.h>

/* ---- zeros and holes ---- */

uint32_t hard_zero_crc(uint64_t n)
{
    static const char zeros[4096];
    static uint32_t whole; /* atomic; of a whole block, 0: not known yet */
    uint32_t crc = n == STORE_BLOCK_BYTES ? __atomic_load_n(&whole, __ATOMIC_RELAXED) : 0;
    if (crc)
        return crc;
    for (uint64_t done = 0; done < n; done += MIN(n - done, sizeof(zeros)))
        crc = crc32c(crc, zeros, MIN(n - done, sizeof(zeros)));
    if (n == STORE_BLOCK_BYTES)
        __atomic_store_n(&whole, crc, __ATOMIC_RELAXED);
    return crc;
}

uint64_t hard_block_bytes(uint64_t size, uint64_t block)
{
    return MIN(size - block * STORE_BLOCK_BYTES, STORE_BLOCK_BYTES);
}

int64_t hard_next_data(int fd, uint64_t offset)
{
    int64_t at = sys->lseek(fd, offset, SEEK_DATA);
    return at == -ENXIO ? -ENOENT : at == -EINVAL ? (int64_t)offset : at;
}

/* ---- collecting ---- */

struct hard_sums *hard_sums_new(void)
{
    struct hard_sums *m = calloc(1, sizeof(*m));
    if (!m)
        abort();
    m->v = &m->one;
    m->room = 1;
    sys->random(&m->generation, sizeof(m->generation));
    return m;
}

void hard_sums_free(struct hard_sums *m)
{
    if (!m)
        return;
    if (m->v != &m->one)
        free(m->v);
    free(m);
}

static void push(struct hard_sums *m, uint32_t crc)
{
    if (m->n == m->room) {
        m->room = MIN(MAX(m->room * 4, 16), FORMAT_CHUNK_BLOCKS);
        uint32_t *v = malloc(m->room * sizeof(v[0]));
        if (!v)
            abort();
        memcpy(v, m->v, m->n * sizeof(v[0]));
        if (m->v != &m->one)
            free(m->v);
        m->v = v;
    }
    assert(m->n < m->room);
    m->v[m->n++] = crc;
}

void hard_chunks_range(struct id128 id, struct format_key *ret_from, struct format_key *ret_to)
{
    format_key_hard_chunk(id, 0, ret_from);
    format_key_hard_chunk(id, UINT64_MAX, ret_to);
}

static void put_record(const struct hard_sums *m, struct id128 id, struct kv_txn *t)
{
    struct format_key k;
    struct format_hard_chunk c = {.generation = m->generation, .n_blocks = m->n};
    struct buf _cleanup_buf_ b = BUF_INIT(FORMAT_HARD_CHUNK_MAX);
    memcpy(c.crc, m->v, m->n * sizeof(c.crc[0]));
    format_key_hard_chunk(id, m->chunk, &k);
    format_hard_chunk_encode(&c, &b);
    kv_txn_put_plain(t, format_key_view(&k), buf_view(&b));
}

/* The chunk in memory is full: to the index with it. What an earlier attempt left goes first. */
static int spill(struct hard *h, struct hard_sums *m, struct err *e)
{
    struct kv_txn *_cleanup_(kv_txn_freep) t = kv_txn_new(h->disk->kv);
    while (m->n < FORMAT_CHUNK_BLOCKS)
        push(m, hard_zero_crc(STORE_BLOCK_BYTES));
    if (m->n_chunks == 0) {
        struct format_key from, to;
        hard_chunks_range(h->id, &from, &to);
        kv_txn_delete_range(t, format_key_view(&from), format_key_view(&to));
    }
    put_record(m, h->id, t);
    m->n_chunks++;
    m->n = 0;
    struct hard_shard *shard = hard_shard_of(h->store, h->id);
    lock_take(&shard->lock);
    h->stale_chunks = true;
    lock_drop(&shard->lock);
    int r = kv_txn_commit(t, KV_VISIBLE, e);
    return r < 0 ? err_prefix(e, r, "disk %s: index", h->disk->path) : 0;
}

int hard_sums_add(struct hard *h, struct hard_sums *m, uint64_t block, uint32_t crc, struct err *e)
{
    uint64_t chunk = block / FORMAT_CHUNK_BLOCKS;
    uint32_t i = (uint32_t)(block % FORMAT_CHUNK_BLOCKS);
    if (chunk != m->chunk) {
        assert(chunk > m->chunk);
        int r = m->n > 0 ? spill(h, m, e) : 0;
        if (r < 0)
            return r;
        m->chunk = chunk;
    }
    assert(m->n <= i);
    while (m->n < i)
        push(m, hard_zero_crc(STORE_BLOCK_BYTES));
    push(m, crc);
    return 0;
}

void hard_sums_finish(struct hard_sums *m, uint64_t size, struct format_hard *ret)
{
    uint64_t blocks = format_blocks(size);
    uint64_t in_chunk = MIN(blocks - m->chunk * FORMAT_CHUNK_BLOCKS, FORMAT_CHUNK_BLOCKS);
    bool one = blocks == 1;
    if (m->n > 0 || one)
        while (m->n < in_chunk)
            push(m, hard_zero_crc(hard_block_bytes(size, m->chunk * FORMAT_CHUNK_BLOCKS + m->n)));
    *ret = (struct format_hard){
        .size_bytes = size,
        .generation = m->generation,
        .n_chunks = m->n_chunks + (m->n > 0 && !one),
        .crc = one ? m->v[0] : 0,
    };
}

void hard_sums_put(const struct hard_sums *m, struct id128 id, struct kv_txn *t)
{
    if (m->n > 0)
        put_record(m, id, t);
}

/* ---- looking them up ---- */

int hard_head(struct disk *d, struct id128 id, struct format_hard *ret)
{
    struct format_key k;
    struct buf _cleanup_buf_ b = BUF_INIT(FORMAT_HARD_BYTES + 16);
    format_key_id('h', id, &k);
    int r = kv_get(d->kv, format_key_view(&k), &b, NULL, NULL);
    if (r == -E2BIG)
        return -EBADMSG;
    return r < 0 ? r : format_hard_decode(buf_view(&b), ret);
}

/* The record of a chunk into l; one that is not there, or not of this generation, is a hole. */
static int read_chunk(struct disk *d, struct id128 id, const struct format_hard *head, uint64_t chunk,
                      struct hard_lookup *l)
{
    struct format_key k;
    struct buf _cleanup_buf_ b = BUF_INIT(FORMAT_HARD_CHUNK_MAX + 16);
    uint64_t blocks = format_blocks(head->size_bytes) - chunk * FORMAT_CHUNK_BLOCKS;
    l->chunk = UINT64_MAX;
    format_key_hard_chunk(id, chunk, &k);
    int r = kv_get(d->kv, format_key_view(&k), &b, NULL, NULL);
    l->hole = r == -ENOENT;
    if (r == 0)
        r = format_hard_chunk_decode(buf_view(&b), &l->record);
    if (r == 0 && l->record.generation != head->generation)
        l->hole = true;
    else if (r == 0 && l->record.n_blocks != MIN(blocks, FORMAT_CHUNK_BLOCKS))
        r = -EBADMSG;
    if (r < 0 && r != -ENOENT)
        return r == -E2BIG ? -EBADMSG : r;
    l->found += !l->hole;
    l->chunk = chunk;
    return 0;
}

int hard_block_crc(struct disk *d, struct id128 id, const struct format_hard *head, uint64_t block,
                   struct hard_lookup *l, uint32_t *ret_crc)
{
    uint64_t blocks = format_blocks(head->size_bytes), chunk = block / FORMAT_CHUNK_BLOCKS;
    if (block >= blocks)
        return -ENOENT;
    if (blocks == 1) {
        *ret_crc = head->crc;
        return 0;
    }
    int r = l->chunk == chunk ? 0 : read_chunk(d, id, head, chunk, l);
    if (r < 0)
        return r;
    *ret_crc = l->hole ? hard_zero_crc(hard_block_bytes(head->size_bytes, block))
                       : l->record.crc[block % FORMAT_CHUNK_BLOCKS];
    return 0;
}

/* ---- reading with verification ---- */

int hard_is_still(struct disk *d, struct id128 id, const struct format_hard *head)
{
    struct format_hard now;
    int r = hard_head(d, id, &now);
    return r == 0 ? now.generation == head->generation : r == -ENOENT ? 0 : r == -EBADMSG ? 1 : r;
}

static int report_bad(struct hard *h, uint64_t block, struct err *e)
{
    char hex[ID_TEXT_SIZE];
    id_text(h->id, hex);
    metrics_count(METRIC_CORRUPT_BLOCKS, h->disk->path, "read", NULL);
    return err_errno(e, ERR_CORRUPT, "disk %s: hard extent %s: block %llu", h->disk->path, hex,
                     (unsigned long long)block);
}

/* The block into buf. -EAGAIN: it is not sealed any more. */
static int read_block(struct hard *h, const struct format_hard *head, uint64_t block, char *buf,
                      struct hard_lookup *l, struct err *e)
{
    uint32_t crc = 0;
    uint64_t n = hard_block_bytes(head->size_bytes, block);
    int r = hard_block_crc(h->disk, h->id, head, block, l, &crc);
    if (r < 0 && r != -EBADMSG)
        return err_errno(e, r, "disk %s: index", h->disk->path);
    int got = r == 0 ? sys_pread_all(h->fd, buf, n, block * STORE_BLOCK_BYTES) : r;
    metrics_add(h->disk->m_verified, 1);
    if (got == 0 && crc32c(0, buf, n) == crc)
        return 0;
    /* Writing begins only after the hard record is gone: what is still sealed was so while it was read. Where
     * that cannot be told, the bytes are neither good nor bad. */
    int still = hard_is_sealed(h) ? hard_is_still(h->disk, h->id, head) : 0;
    if (still < 0)
        return err_errno(e, still, "disk %s: hard record", h->disk->path);
    return still ? report_bad(h, block, e) : -EAGAIN;
}

static ssize_t read_plain(struct hard *h, char *p, size_t n, uint64_t offset)
{
    size_t done = 0;
    while (done < n) {
        ssize_t got = sys->pread(h->fd, p + done, n - done, offset + done);
        if (got < 0)
            return got;
        if (got == 0)
            break;
        done += (size_t)got;
    }
    return (ssize_t)done;
}

static ssize_t read_sealed(struct hard *h, const struct format_hard *head, char *p, size_t n, uint64_t offset,
                           struct err *e)
{
    if (offset >= head->size_bytes)
        return 0;
    n = MIN(n, head->size_bytes - offset);
    struct hard_lookup *l = malloc(sizeof(*l));
    char *buf = malloc(STORE_BLOCK_BYTES);
    if (!l || !buf)
        abort();
    l->chunk = UINT64_MAX;
    int r = 0;
    for (size_t done = 0; done < n && r == 0;) {
        uint64_t at = offset + done;
        size_t skip = at % STORE_BLOCK_BYTES, part = MIN(n - done, STORE_BLOCK_BYTES - skip);
        r = read_block(h, head, at / STORE_BLOCK_BYTES, buf, l, e);
        if (r == 0)
            memcpy(p + done, buf + skip, part);
        done += part;
    }
    free(l);
    free(buf);
    return r < 0 ? r : (ssize_t)n;
}

ssize_t hard_read_verified(struct hard *h, void *p, size_t n, uint64_t offset, struct err *e)
{
    assert(h && h->magic == HARD_MAGIC && (p || n == 0));
    struct format_hard head;
    ssize_t r = -EAGAIN;
    if (hard_is_sealed(h)) {
        int code = hard_head(h->disk, h->id, &head);
        if (code == 0)
            r = read_sealed(h, &head, p, n, offset, e);
        else if (code != -ENOENT)
            return err_errno(e, code == -EBADMSG ? ERR_CORRUPT : code, "disk %s: hard record", h->disk->path);
    }
    if (r != -EAGAIN)
        return r;
    r = read_plain(h, p, n, offset);
    return r < 0 ? err_errno(e, (int)r, "disk %s: read a hard extent", h->disk->path) : r;
}

/*
 * Verifying sealed hard extents: every byte against its checksum, holes included.
 *
 * Works on a running store and on a read-only one. Hard records are visited a page at a time. What is wrong
 * is named and counted, never dropped: the bytes exist nowhere else.
 *
 * Failure modes: an extent that is written to, sealed anew or removed during the check is left out: writing
 * begins only after its hard record is gone, so what differs is believed only while the record is still
 * there. A file that cannot be read is damaged, and told; where the index cannot be read, the error is the
 * page's, and the next page begins behind that extent. Without a free descriptor it begins with it again.
 */
#include "base/crc32c.h"
#include "base/le.h"
#include "base/sys.h"
#include "store/hard_internal.h"

#include <fcntl.h>
#include <string.h>

#define PAGE 256

struct page {
    struct id128 id[PAGE];
    struct format_hard head[PAGE];
    bool damaged[PAGE];
    size_t n;
};

struct one {
    struct disk *d;
    const struct hard_check *h;
    struct id128 id;
    const struct format_hard *head;
    int fd;
    bool is_direct;
    uint64_t blocks, bytes, bad, first_bad;
    int unreadable; /* what the file system said; 0: it can be read */
    struct hard_lookup l;
    char *buf;
};

/* Past the page cache where that was asked for and can be. */
static int read_block(struct one *o, uint64_t n, uint64_t offset)
{
    int r = o->is_direct ? extent_pread_direct(o->fd, o->buf, n, offset) : -EINVAL;
    if (o->is_direct && r == -EINVAL) {
        (void)fcntl(o->fd, F_SETFL, O_RDONLY);
        o->is_direct = false;
    }
    return r == -EINVAL ? sys_pread_all(o->fd, o->buf, n, offset) : r;
}

static int check_block(struct one *o, uint64_t block)
{
    uint32_t crc = 0;
    uint64_t n = hard_block_bytes(o->head->size_bytes, block);
    if (o->h->before && !o->h->before(o->h->arg, n))
        return -ECANCELED;
    int r = hard_block_crc(o->d, o->id, o->head, block, &o->l, &crc);
    if (r < 0 && r != -EBADMSG)
        return r;
    bool good = r == 0 && read_block(o, n, block * STORE_BLOCK_BYTES) == 0 && crc32c(0, o->buf, n) == crc;
    metrics_add(o->d->m_verified, 1);
    o->blocks++;
    o->bytes += n;
    if (!good && o->bad++ == 0)
        o->first_bad = block;
    return 0;
}

/* The first block at or behind `block` whose chunk has a record, or `end`. */
static int next_recorded(const struct one *o, uint64_t block, uint64_t end, uint64_t *ret)
{
    struct format_key from, to, unused;
    struct slice k, v;
    format_key_hard_chunk(o->id, block / FORMAT_CHUNK_BLOCKS, &from);
    hard_chunks_range(o->id, &unused, &to);
    struct kv_iter *_cleanup_(kv_iter_freep) it =
        kv_iter_new(o->d->kv, format_key_view(&from), format_key_view(&to));
    int r = kv_iter_next(it, &k, &v, NULL);
    if (r < 0 && r != -ENOENT)
        return r;
    uint64_t chunk = r == 0 ? be_get64(k.p + k.n - sizeof(chunk)) : UINT64_MAX;
    *ret = chunk > end / FORMAT_CHUNK_BLOCKS ? end : MIN(MAX(chunk * FORMAT_CHUNK_BLOCKS, block), end);
    return 0;
}

/* A hole in the file: right where the index knows of one too. Gives the block behind it, or behind the part
 * that was compared. A hole may be as large as a file can be: it is not gone through chunk by chunk. */
static int check_hole(struct one *o, uint64_t block, uint64_t end, uint64_t *ret_next)
{
    uint32_t crc = 0;
    int r = hard_block_crc(o->d, o->id, o->head, block, &o->l, &crc);
    if (r == 0 && format_blocks(o->head->size_bytes) > 1 && o->l.hole)
        return next_recorded(o, MIN((block / FORMAT_CHUNK_BLOCKS + 1) * FORMAT_CHUNK_BLOCKS, end), end,
                             ret_next);
    if (r < 0 && r != -EBADMSG)
        return r;
    uint64_t n = hard_block_bytes(o->head->size_bytes, block);
    o->blocks++;
    if ((r < 0 || crc != hard_zero_crc(n)) && o->bad++ == 0)
        o->first_bad = block;
    *ret_next = block + 1;
    return 0;
}

static int check_blocks(struct one *o)
{
    uint64_t blocks = format_blocks(o->head->size_bytes);
    for (uint64_t b = 0; b < blocks;) {
        int64_t at = hard_next_data(o->fd, b * STORE_BLOCK_BYTES);
        uint64_t data = at == -ENOENT ? blocks : MIN((uint64_t)MAX(at, 0) / STORE_BLOCK_BYTES, blocks);
        if (at < 0 && at != -ENOENT) {
            o->unreadable = (int)at;
            return 0;
        }
        int r = data > b ? check_hole(o, b, data, &b) : check_block(o, b++);
        if (r < 0)
            return r;
    }
    return 0;
}

/* Of descriptors or memory: it says nothing of the file. */
static bool is_for_want(int code)
{
    return code == -EMFILE || code == -ENFILE || code == -ENOMEM;
}

/* What is wrong with one extent; an empty text when nothing is, or when it changed meanwhile. */
static int check_one(struct one *o, char *problem, size_t problem_size)
{
    char path[DISK_PATH_MAX], hex[ID_TEXT_SIZE];
    struct stat st = {0};
    id_text(o->id, hex);
    hard_path(o->d, o->id, path);
    problem[0] = 0;
    o->is_direct = o->h->past_cache;
    o->fd = sys->open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | (o->is_direct ? O_DIRECT : 0), 0);
    if (o->fd == -EINVAL && o->is_direct) {
        o->is_direct = false;
        o->fd = sys->open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW, 0);
    }
    if (is_for_want(o->fd))
        return o->fd;
    int r = o->unreadable = o->fd < 0 ? o->fd : sys->fstat(o->fd, &st);
    uint64_t size = (uint64_t)st.st_size;
    if (r == 0 && size == o->head->size_bytes)
        r = check_blocks(o);
    if (o->fd >= 0)
        (void)sys->close(o->fd);
    if (r < 0 && !o->unreadable)
        return r;
    int still = hard_is_still(o->d, o->id, o->head);
    if (still <= 0) {
        o->bad = 0;
        return still;
    }
    if (o->unreadable == -ENOENT)
        (void)snprintf(problem, problem_size, "disk %s: hard extent %s: its file is missing", o->d->path,
                       hex);
    else if (o->unreadable)
        (void)snprintf(problem, problem_size, "disk %s: hard extent %s: its file cannot be read: %s",
                       o->d->path, hex, err_text(o->unreadable));
    else if (size != o->head->size_bytes)
        (void)snprintf(problem, problem_size, "disk %s: hard extent %s: %llu bytes, sealed with %llu",
                       o->d->path, hex, (unsigned long long)size, (unsigned long long)o->head->size_bytes);
    else if (o->bad > 0)
        (void)snprintf(problem, problem_size,
                       "disk %s: hard extent %s: %llu blocks with wrong checksum, the first is %llu",
                       o->d->path, hex, (unsigned long long)o->bad, (unsigned long long)o->first_bad);
    return 0;
}

/* The next page of hard records; -ENOENT when there is none. */
static int read_page(struct disk *d, struct buf *from, struct page *p, struct err *e)
{
    struct kv_iter *_cleanup_(kv_iter_freep) it = kv_iter_new(d->kv, buf_view(from), SLICE_LIT("i"));
    struct slice k, v;
    int r = 0;
    struct buf _cleanup_buf_ last = BUF_INIT(FORMAT_KEY_MAX + 1);
    for (p->n = 0; p->n < PAGE && (r = kv_iter_next(it, &k, &v, e)) == 0;) {
        buf_clear(&last);
        if (buf_append(&last, k.p, MIN(k.n, (size_t)FORMAT_KEY_MAX)) < 0 || buf_char(&last, 0) < 0)
            abort(); /* its maximum is larger */
        if (format_key_parse_id(k, &p->id[p->n]) < 0)
            continue;
        p->damaged[p->n] = format_hard_decode(v, &p->head[p->n]) < 0;
        p->n++;
    }
    if (last.n > 0) {
        buf_clear(from);
        if (buf_slice(from, buf_view(&last)) < 0)
            abort(); /* its maximum is larger */
    }
    return p->n > 0 ? 0 : r; /* an error is met again by the next page */
}

static int check_entry(struct disk *d, const struct hard_check *h, const struct page *p, size_t i,
                       struct one *o, char *problem, size_t problem_size)
{
    struct store_check_report *report = h->report;
    char hex[ID_TEXT_SIZE];
    if (p->damaged[i]) {
        id_text(p->id[i], hex);
        (void)snprintf(problem, problem_size, "disk %s: hard extent %s: its record is damaged", d->path, hex);
        report->hard_extents++; /* what it cannot be checked by is gone; the file is as it was */
        report->hard_bad++;
        return 0;
    }
    *o = (struct one){
        .d = d, .h = h, .id = p->id[i], .head = &p->head[i], .l.chunk = UINT64_MAX, .buf = h->buf};
    int r = check_one(o, problem, problem_size);
    if (r < 0)
        return r;
    report->hard_extents++;
    report->hard_blocks += o->blocks;
    report->hard_bytes += o->bytes;
    report->hard_bad += problem[0] != 0;
    if (o->bad > 0)
        metrics_add(metrics_series(METRIC_CORRUPT_BLOCKS, d->path, h->found, NULL), o->bad);
    return 0;
}

/* The next page begins with this extent again, or behind it. */
static void move_to(struct buf *from, struct id128 id, bool behind)
{
    struct format_key k;
    format_key_id(HARD_CHECK_FIRST[0], id, &k);
    buf_clear(from);
    if (buf_slice(from, format_key_view(&k)) < 0 || (behind && buf_char(from, '\0') < 0))
        abort(); /* its maximum is larger */
}

int hard_check_page(struct disk *d, const struct hard_check *h, struct buf *from, bool *ret_stopped,
                    struct err *e)
{
    struct page *p = malloc(sizeof(*p));
    struct one *o = malloc(sizeof(*o));
    if (!p || !o)
        abort();
    *ret_stopped = false;
    int r = read_page(d, from, p, e);
    for (size_t i = 0; i < p->n && r == 0 && !*ret_stopped; i++) {
        char problem[ERR_TEXT_MAX] = "";
        r = check_entry(d, h, p, i, o, problem, sizeof(problem));
        if (r == -ECANCELED) {
            move_to(from, p->id[i], /* behind= */ false);
            *ret_stopped = true;
            r = 0;
            break;
        }
        if (r < 0) {
            move_to(from, p->id[i], /* behind= */ !is_for_want(r));
            (void)err_errno(e, r, "disk %s: check hard extents", d->path);
        } else {
            *ret_stopped = !h->tell(h->arg, problem[0] ? problem : NULL);
        }
    }
    if (r == 0 && p->n == 0)
        r = -ENOENT;
    free(p);
    free(o);
    return r;
}

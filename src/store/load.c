/*
 * From the index to memory: the entry record of a key, its presence map, its file.
 *
 * Failure modes: a record that does not decode is queued for deletion and reads as no entry. An entry whose
 * file is gone is dropped, and so is one whose file is shorter than what it says is there: as long as the
 * index says so durably, a file that had grown again would be believed to have what is a hole. A chunk record
 * that does not decode loses its blocks.
 */
#include "base/le.h"
#include "base/log.h"
#include "base/sys.h"
#include "store/placement.h"
#include "store/store_internal.h"

#include <fcntl.h>
#include <string.h>

#define RECORD_MAX (STORE_ATTR_MAX_BYTES + FORMAT_ENTRY_HEAD_BYTES)

static int read_record(struct disk *d, struct slice key, struct format_entry *ret, struct buf *b)
{
    struct format_key k;
    format_key_bytes('o', key, &k);
    buf_clear(b);
    struct err e = {0};
    int r = kv_get(d->kv, format_key_view(&k), b, NULL, &e);
    if (r == -ENOENT)
        return r;
    if (r < 0 && r != -EBADMSG && r != -E2BIG) {
        log_error("store", "disk %s: index: %s", d->path, e.text);
        return r;
    }
    if (r == 0)
        r = format_entry_decode(buf_view(b), ret);
    if (r < 0) {
        log_warn("store", "disk %s: index record of " SLICE_FMT " is damaged and is dropped", d->path,
                 SLICE_ARG(key));
        if (!d->store->read_only)
            doom_bad_record(d, format_key_view(&k));
        return -EBADMSG;
    }
    return 0;
}

int load_record(struct disk *d, struct slice key, struct format_entry *ret, struct buf *b)
{
    for (;;) {
        uint64_t before = doom_rounds(d);
        int r = read_record(d, key, ret, b);
        if (r < 0)
            return r;
        if (doom_contains(d, ret->id))
            return -ENOENT;
        /* An id leaves the doomed set when its records are gone: was that between the read and the look? */
        if (doom_rounds(d) == before)
            return 0;
    }
}

static bool epoch_is_suspect(struct disk *d, uint64_t epoch)
{
    LOCK_SCOPE(&d->lock);
    return format_epoch_is_suspect(&d->epoch, epoch);
}

/* Presence of an extent of several blocks, chunk by chunk. Blocks at or behind `end` are left out. */
static int load_chunks(struct extent *x, uint32_t end, uint32_t *ret_left_out)
{
    struct format_key from, to;
    format_key_chunk(x->id, 0, &from);
    format_key_chunk(x->id, UINT32_MAX, &to);
    struct kv_iter *_cleanup_(kv_iter_freep) it =
        kv_iter_new(x->disk->kv, format_key_view(&from), format_key_view(&to));
    struct slice k, v;
    struct err e = {0};
    int r;
    while ((r = kv_iter_next(it, &k, &v, &e)) == 0) {
        struct format_chunk c;
        uint32_t chunk = be_get32(k.p + k.n - 4);
        if (format_chunk_decode(v, &c) < 0) {
            log_warn("store", "disk %s: a chunk record of %s is damaged and is dropped", x->disk->path,
                     format_key_text(x->key, (char[FORMAT_KEY_TEXT_MAX]){0}));
            continue;
        }
        bool suspect = epoch_is_suspect(x->disk, c.epoch);
        /* The entry of an extent with suspect blocks carries an older epoch than its newest chunks. */
        x->blocks_epoch = MAX(x->blocks_epoch, c.epoch);
        for (uint32_t i = 0; i < c.n_blocks; i++) {
            uint64_t block = (uint64_t)chunk * FORMAT_CHUNK_BLOCKS + i;
            if (!(c.present[i / 8] >> (i % 8) & 1) || block >= x->n_blocks)
                continue;
            if (block >= end)
                ++*ret_left_out;
            else
                extent_set_present_locked(x, (uint32_t)block, suspect);
        }
    }
    return r == -ENOENT ? 0 : err_prefix(&e, r, "chunks");
}

/* The blocks that the record and the file agree on. x is not shared yet, so that its lock is not needed. */
static int load_presence(struct extent *x, const struct format_entry *r, uint64_t file_bytes)
{
    uint32_t whole_blocks = file_bytes >= x->size ? x->n_blocks : (uint32_t)(file_bytes / STORE_BLOCK_BYTES);
    uint32_t left_out = 0;
    bool suspect = epoch_is_suspect(x->disk, r->epoch);
    int code = 0;
    if (x->n_blocks <= 1) {
        if (r->present_blocks > 0 && whole_blocks > 0)
            extent_set_present_locked(x, 0, suspect);
        left_out = r->present_blocks - x->n_present;
    } else if (r->flags & FORMAT_ENTRY_COMPLETE && !suspect && whole_blocks == x->n_blocks) {
        extent_set_all_present_locked(x);
    } else {
        code = load_chunks(x, whole_blocks, &left_out);
    }
    if (left_out > 0) {
        log_warn("store", "disk %s: file of %s is %llu bytes short: %u blocks dropped", x->disk->path,
                 format_key_text(x->key, (char[FORMAT_KEY_TEXT_MAX]){0}),
                 (unsigned long long)(x->size - file_bytes), left_out);
        metrics_add(metrics_series(METRIC_CORRUPT_BLOCKS, x->disk->path, "start", NULL), left_out);
    }
    x->n_lost = left_out;
    /* A record that claims more than was found is written anew. */
    x->entry_changed = x->chunks_changed = x->n_present != r->present_blocks;
    return code;
}

static int open_file(struct extent *x, uint64_t *ret_bytes)
{
    int fd = descriptors_open(x);
    if (fd < 0)
        return fd;
    struct stat st;
    int r = sys->fstat(fd, &st);
    if (r == 0)
        *ret_bytes = (uint64_t)st.st_size;
    descriptors_add(x, fd, /* in_use= */ false);
    return r;
}

/* The part behind the end of the file, where nothing is, becomes a hole again. */
static int make_long(struct extent *x)
{
    int fd = extent_use(x);
    int r = fd < 0 ? fd : sys->ftruncate(fd, x->size);
    if (fd >= 0)
        extent_leave(x);
    return r;
}

/* Builds the extent of a record; -ENOENT when its file is gone, -ENODATA when it is too short. */
static int build(struct disk *d, struct slice key, uint64_t hash, const struct format_entry *r,
                 struct extent **ret)
{
    struct extent *x = extent_new(d, r->id, r->size_bytes);
    extent_set_key(x, key, hash);
    extent_copy_attr_locked(x, r->attr);
    x->data_set = r->data_set;
    x->last_read_ms = x->set_read_ms = x->recorded_read_ms = r->last_read_ms;
    x->crc = r->crc;
    x->blocks_epoch = r->epoch;
    x->recorded = true;
    x->recorded_charge = x->charged = x->written = format_charge(r->size_bytes, r->present_blocks);
    uint64_t file_bytes = 0;
    int code = open_file(x, &file_bytes);
    if (code == 0)
        code = load_presence(x, r, file_bytes);
    if (code == 0 && x->n_lost > 0 && !d->store->read_only)
        code = -ENODATA;
    if (code == 0 && file_bytes < x->size && !d->store->read_only)
        code = make_long(x);
    if (code < 0) {
        x->refs = 0;
        extent_free(x);
        return code;
    }
    *ret = x;
    return 0;
}

static int load_from(struct disk *d, struct slice key, uint64_t hash, struct extent **ret)
{
    struct buf _cleanup_buf_ b = BUF_INIT(RECORD_MAX);
    struct format_entry r;
    int code = load_record(d, key, &r, &b);
    if (code == -EBADMSG)
        return -ENOENT;
    if (code < 0)
        return code;
    code = build(d, key, hash, &r, ret);
    if ((code != -ENOENT && code != -ENODATA) || d->store->read_only)
        return code;
    log_warn("store", "disk %s: the file of " SLICE_FMT " is %s; its entry is dropped", d->path,
             SLICE_ARG(key), code == -ENODATA ? "too short" : "gone");
    doom_record(d, key, &r);
    return -ENOENT;
}

static void distrust(struct extent *x)
{
    LOCK_SCOPE(&x->lock);
    extent_distrust_locked(x);
}

int load_extent(struct store *s, struct slice key, uint64_t hash, struct extent **ret)
{
    uint32_t order[STORE_DISKS_MAX];
    store_place(s, key, order);
    int result = -ENOENT;
    for (size_t i = 0; i < s->n_disks; i++) {
        struct disk *d = &s->disks[order[i]];
        struct extent *x = NULL;
        uint64_t lost_flushes = disk_lost_flushes(d);
        int r = load_from(d, key, hash, &x);
        if (r == 0) {
            table_insert(s, x);
            /* Whoever distrusts what the disk lost finds extents in the table: that was perhaps too early. */
            if (disk_lost_flushes(d) != lost_flushes)
                distrust(x);
            if (x->entry_changed && !s->read_only)
                writer_queue(x);
            *ret = x;
            return 0;
        }
        if (r != -ENOENT)
            result = r;
    }
    return result;
}

/*
 * Bulk loading. Records are written in the order of their keys, so that the engine only appends sorted runs:
 * first the entries by key, then the back references by data id. Both passes must agree which id belongs to
 * which key without a table of either; id number j belongs to key number j * STEP mod n, and ids rise with j.
 */
#include "store/store_synthetic.h"

#include "base/crc32c.h"
#include "base/hash.h"
#include "base/le.h"
#include "base/sys.h"
#include "store/store_internal.h"

#include <string.h>

#define PER_COMMIT 10000
#define ATTR_BYTES 100 /* about what an ETag, times and a content type take */

static const uint64_t STEP_PRIME =
    2654435761u; /* larger than any number of entries that is a multiple of it */

struct load {
    const struct store_synthetic *what;
    struct kv *kv;
    struct kv_txn *txn;
    struct disk disk; /* only for paths */
    uint64_t step, inverse;
    uint32_t crc;
    uint64_t now_ms;
};

struct slice store_synthetic_key(uint64_t i, char ret[STORE_SYNTHETIC_KEY_MAX])
{
    int n = snprintf(ret, STORE_SYNTHETIC_KEY_MAX, "synthetic/train/shard-%06llu/sample-%012llu.jpg",
                     (unsigned long long)(i / 1000), (unsigned long long)i);
    return slice_of(ret, (size_t)n);
}

static struct id128 nth_id(const struct load *l, uint64_t j)
{
    struct id128 id;
    uint64_t high = (uint64_t)(((unsigned __int128)j << 64) / l->what->entries), low = hash_mix(j, 1);
    be_put64(id.b, high);
    be_put64(id.b + 8, low);
    return id;
}

/* x with a * x = 1 mod n, for a coprime to n (extended Euclid). */
static uint64_t inverse_mod(uint64_t a, uint64_t n)
{
    __int128 t = 0, next_t = 1, r = n, next_r = a % n;
    while (next_r != 0) {
        __int128 q = r / next_r, keep;
        keep = t - q * next_t;
        t = next_t;
        next_t = keep;
        keep = r - q * next_r;
        r = next_r;
        next_r = keep;
    }
    assert(r == 1 || n == 1);
    return (uint64_t)(t < 0 ? t + n : t);
}

static uint64_t mul_mod(uint64_t a, uint64_t b, uint64_t n)
{
    return (uint64_t)((unsigned __int128)a * b % n);
}

static int make_file(struct load *l, struct id128 id, struct err *e)
{
    int fd = disk_create_file(&l->disk, id);
    if (fd < 0)
        return err_errno(e, fd, "create an extent file");
    int r = sys->ftruncate(fd, l->what->size_bytes);
    (void)sys->close(fd);
    return r < 0 ? err_errno(e, r, "ftruncate") : 0;
}

static int put_entry(struct load *l, uint64_t i, struct buf *b, struct err *e)
{
    char key[STORE_SYNTHETIC_KEY_MAX], attr[ATTR_BYTES];
    struct format_key k;
    for (size_t c = 0; c < sizeof(attr); c++)
        attr[c] = (char)hash_mix(i, c / 8);
    struct format_entry r = {
        .flags = FORMAT_ENTRY_COMPLETE,
        .id = nth_id(l, mul_mod(i, l->inverse, l->what->entries)),
        .size_bytes = l->what->size_bytes,
        .epoch = 1,
        .last_read_ms = l->now_ms,
        .present_blocks = (uint32_t)format_blocks(l->what->size_bytes),
        .crc = l->crc,
        .attr = slice_of(attr, sizeof(attr)),
    };
    format_entry_encode(&r, b);
    format_key_bytes('o', store_synthetic_key(i, key), &k);
    kv_txn_put_plain(l->txn, format_key_view(&k), buf_view(b));
    return l->what->file_every > 0 && i % l->what->file_every == 0 ? make_file(l, r.id, e) : 0;
}

static int put_all(struct load *l, struct err *e)
{
    struct buf _cleanup_buf_ b = BUF_INIT(64 * KIB);
    char key[STORE_SYNTHETIC_KEY_MAX];
    struct format_key k;
    uint64_t n = l->what->entries;
    int r = 0;
    for (uint64_t i = 0; i < n && r == 0; i++) {
        r = put_entry(l, i, &b, e);
        if (r == 0 && (i + 1) % PER_COMMIT == 0)
            r = kv_txn_commit(l->txn, KV_VISIBLE, e);
    }
    for (uint64_t j = 0; j < n && r == 0; j++) {
        format_key_id('x', nth_id(l, j), &k);
        kv_txn_put_plain(l->txn, format_key_view(&k), store_synthetic_key(mul_mod(j, l->step, n), key));
        if ((j + 1) % PER_COMMIT == 0)
            r = kv_txn_commit(l->txn, KV_VISIBLE, e);
    }
    if (r < 0)
        return r;
    struct format_count count = {n * format_charge(l->what->size_bytes, format_blocks(l->what->size_bytes)),
                                 n};
    struct format_epoch epoch = {.durable = 1};
    format_count_encode(&count, &b);
    kv_txn_put_plain(l->txn, SLICE_LIT("mcount"), buf_view(&b));
    format_epoch_encode(&epoch, &b);
    kv_txn_put_plain(l->txn, SLICE_LIT("mepoch"), buf_view(&b));
    return kv_txn_commit(l->txn, KV_DURABLE, e);
}

static int write_mark(const char *disk, struct err *e)
{
    struct buf _cleanup_buf_ b = BUF_INIT(FORMAT_DISK_FILE_MAX), path = BUF_INIT(DISK_PATH_MAX);
    struct format_disk mark = {.boot = "synthetic", .clean = true};
    id_new(&mark.id);
    format_disk_encode(&mark, &b);
    int r = buf_printf(&path, "%s/forebay-disk", disk);
    if (r == 0)
        r = sys_write_file_atomic(path.p, b.p, b.n, 0600);
    return r < 0 ? err_errno(e, r, "write the mark") : 0;
}

int store_synthetic_load(const char *disk, const struct store_synthetic *what, struct err *e)
{
    assert(disk && what && what->entries > 0 && what->size_bytes > 0 &&
           what->size_bytes <= STORE_BLOCK_BYTES);
    struct load l = {.what = what, .now_ms = store_now_ms()};
    l.step = what->entries % STEP_PRIME == 0 ? 1 : STEP_PRIME % what->entries;
    l.step = MAX(l.step, 1);
    l.inverse = what->entries == 1 ? 0 : inverse_mod(l.step, what->entries);
    _cleanup_free_ char *path = slice_dup(slice_str(disk)), *zeros = calloc(1, what->size_bytes);
    l.disk.path = path;
    if (!zeros)
        abort();
    l.crc = crc32c(0, zeros, what->size_bytes);
    struct buf _cleanup_buf_ extents = BUF_INIT(DISK_PATH_MAX), index = BUF_INIT(DISK_PATH_MAX);
    int r = buf_printf(&extents, "%s/extents", disk);
    if (r == 0)
        r = buf_printf(&index, "%s/index", disk);
    if (r == 0)
        r = sys_mkdir_p(extents.p, 0700);
    if (r < 0)
        return err_errno(e, r, "make directory %s/extents", disk);
    struct kv_options o = {
        .cache_bytes = 8 * MIB, .write_buffer_bytes = MAX(what->memory_bytes / 2, 8 * MIB), .bulk = true};
    r = kv_open_rocksdb(index.p, &o, &l.kv, e);
    if (r < 0)
        return r;
    l.txn = kv_txn_new(l.kv);
    r = put_all(&l, e);
    kv_txn_free(l.txn);
    kv_close(l.kv);
    return r < 0 ? r : write_mark(disk, e);
}

int store_synthetic_lookup(struct store *s, struct slice key)
{
    uint32_t order[STORE_DISKS_MAX];
    struct buf _cleanup_buf_ b = BUF_INIT(STORE_ATTR_MAX_BYTES + FORMAT_ENTRY_HEAD_BYTES);
    struct format_entry r;
    store_place(s, key, order);
    int result = -ENOENT;
    for (size_t i = 0; i < s->n_disks && result == -ENOENT; i++)
        result = load_record(&s->disks[order[i]], key, &r, &b);
    return result;
}

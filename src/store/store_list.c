/*
 * What is cached, in the order of keys (contract in store.h).
 *
 * Each disk has an index of its own: the first `max` entries of each are gathered, one disk after the other,
 * and what is beyond `max` is left for the next call. Keys are on the heap until it is known which are given:
 * the caller's arena is for those of one page, however many disks there are.
 */
#include "base/hash.h"
#include "base/sys.h"
#include "store/store_internal.h"

/* Presence and last read as they are in memory, where it is newer than the index. */
static void refresh(struct store *s, struct store_listed *l)
{
    struct extent *x = table_find(s, l->key, hash_table(l->key));
    if (!x)
        return;
    l->size_bytes = extent_size(x);
    l->present_bytes = extent_present_bytes(x);
    l->last_read_ms = __atomic_load_n(&x->last_read_ms, __ATOMIC_RELAXED);
    extent_unref(x);
}

static int list_disk(struct disk *d, struct slice from, struct slice to, size_t max, struct store_listed *out,
                     size_t *n)
{
    _cleanup_(kv_iter_freep) struct kv_iter *it = kv_iter_new(d->kv, from, to);
    struct slice k, v;
    struct format_entry r;
    int code = 0;
    for (size_t taken = 0; taken < max && (code = kv_iter_next(it, &k, &v, NULL)) == 0;) {
        if (format_entry_decode(v, &r) < 0 || doom_contains(d, r.id))
            continue;
        out[*n] = (struct store_listed){
            .key = {slice_dup(slice_from(k, 1)), k.n - 1},
            .size_bytes = r.size_bytes,
            .present_bytes = record_present_bytes(&r),
            .last_read_ms = r.last_read_ms,
        };
        (*n)++;
        taken++;
    }
    return code == -ENOENT ? 0 : code;
}

static int by_key(const void *x, const void *y)
{
    return slice_cmp(((const struct store_listed *)x)->key, ((const struct store_listed *)y)->key);
}

/* Sorts them and gives up what is beyond `max`; how many are left. */
static size_t cut(struct store_listed *all, size_t n, size_t max)
{
    qsort(all, n, sizeof(*all), by_key);
    for (; n > max; n--)
        free((char *)(uintptr_t)all[n - 1].key.p);
    return n;
}

int64_t store_list(struct store *s, struct slice prefix, struct slice after, size_t max, struct arena *a,
                   struct store_listed *ret)
{
    assert(s && max > 0 && max <= STORE_LIST_MAX);
    if (prefix.n > STORE_KEY_MAX_BYTES || after.n > STORE_KEY_MAX_BYTES)
        return 0;
    struct format_key k;
    struct buf _cleanup_buf_ from = BUF_INIT(FORMAT_KEY_MAX + 1), to = BUF_INIT(FORMAT_KEY_MAX + 1);
    format_key_bytes('o', prefix, &k);
    int r = kv_prefix_end(format_key_view(&k), &to);
    if (slice_cmp(after, prefix) >= 0) /* the NUL makes it the next key */
        r = r < 0 || buf_char(&from, 'o') < 0 || buf_slice(&from, after) < 0 || buf_char(&from, '\0') < 0
                ? -ENOMEM
                : 0;
    else if (r == 0)
        r = buf_slice(&from, format_key_view(&k));
    _cleanup_free_ struct store_listed *all = calloc(2 * max, sizeof(*all));
    assert(all);
    size_t n = 0;
    for (size_t i = 0; i < s->n_disks && r == 0; i++) {
        if (!s->read_only) /* what was made a moment ago must be in the index to be seen */
            writer_drain(&s->disks[i]);
        r = list_disk(&s->disks[i], buf_view(&from), buf_view(&to), max, all, &n);
        n = cut(all, n, max);
    }
    for (size_t i = 0; i < n && r == 0; i++) {
        ret[i] = all[i];
        ret[i].key = arena_dup(a, all[i].key);
        refresh(s, &ret[i]);
    }
    (void)cut(all, n, /* max= */ 0);
    return r < 0 ? r : (int64_t)n;
}

int store_record(struct store *s, struct err *e)
{
    int r = 0;
    for (size_t i = 0; i < s->n_disks && !s->read_only; i++) {
        struct disk *d = &s->disks[i];
        if (!writer_drain(d) && r == 0)
            r = err_set(e, -EIO, "disk %s: its index cannot be written", d->path);
    }
    return r;
}

bool store_would_evict(struct store *s, const struct store_listed *l, struct slice newcomer)
{
    uint64_t now = store_now_ms();
    LOCK_SCOPE(&s->sets_lock);
    struct evict_candidate c = {
        .set = evict_set_find(s->sets, l->key), .last_read_ms = l->last_read_ms, .size_bytes = l->size_bytes};
    return evict_judge(s->sets, &c, evict_set_find(s->sets, newcomer), now) != EVICT_KEEP;
}

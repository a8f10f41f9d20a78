/* Counters by prefix (contract and stored form in usage.h). A hash table with linear probing; rows are taken
 * out with their bucket, or when there are too many, and the table is built anew then. */
#include "object/usage.h"

#include "base/hash.h"
#include "base/lock.h"
#include "base/log.h"
#include "base/sys.h"
#include "base/text.h"

#include <inttypes.h>

#define SLOTS        (2 * USAGE_ROWS_MAX) /* a power of two */
#define PREFIX_MAX   512
#define RECORD_HEAD  "forebay usage 1\n"
#define RECORD_KEY   SLICE_LIT("n/usage")
#define LINE_NUMBERS 5
#define LINE_MAX     (21 * LINE_NUMBERS + 3 * PREFIX_MAX + 1) /* every byte of a prefix may be three in it */
#define SAVED_MAX    (sizeof(RECORD_HEAD) + USAGE_ROWS_MAX * LINE_MAX)
#define OWN_ROOM     64 /* rows left for whole buckets */
#define ROOM_SHARE   8  /* one row in so many goes when there is no room */

struct usage {
    struct kv *kv;
    struct lock lock;       /* covers what follows */
    struct usage_row *rows; /* SLOTS; prefix.p NULL: free, else owned */
    size_t n;
    bool changed;
};

/* ---- the table ---- */

static bool is_row_of(const struct usage_row *r, uint64_t bucket_id, struct slice prefix)
{
    return r->prefix.p && r->bucket_id == bucket_id && slice_eq(r->prefix, prefix);
}

static size_t slot_of(const struct usage *u, uint64_t bucket_id, struct slice prefix)
{
    size_t i = hash_mix(hash_table(prefix), bucket_id) % SLOTS;
    while (u->rows[i].prefix.p && !is_row_of(&u->rows[i], bucket_id, prefix))
        i = (i + 1) % SLOTS;
    return i;
}

static struct usage_row *new_rows(void)
{
    struct usage_row *rows = calloc(SLOTS, sizeof(*rows));
    assert(rows);
    return rows;
}

static void free_rows(struct usage_row *rows)
{
    for (size_t i = 0; i < SLOTS; i++)
        free((char *)(uintptr_t)rows[i].prefix.p);
    free(rows);
}

/* The row takes the place that is its; `from` has it no more. */
static void move_row_locked(struct usage *u, struct usage_row *from)
{
    u->rows[slot_of(u, from->bucket_id, from->prefix)] = *from;
    from->prefix.p = NULL;
    u->n++;
}

static int by_use(const void *a, const void *b)
{
    const struct usage_row *x = *(struct usage_row *const *)a, *y = *(struct usage_row *const *)b;
    if (x->opens != y->opens)
        return x->opens < y->opens ? -1 : 1;
    if (x->read_bytes != y->read_bytes)
        return x->read_bytes < y->read_bytes ? -1 : 1;
    return x->last_read_ms < y->last_read_ms ? -1 : x->last_read_ms > y->last_read_ms;
}

static struct usage_row *row_locked(struct usage *u, uint64_t bucket_id, struct slice prefix);

static void add_row(struct usage_row *to, const struct usage_row *x)
{
    to->opens += x->opens;
    to->read_bytes += x->read_bytes;
    to->fetched_bytes += x->fetched_bytes;
    to->last_read_ms = MAX(to->last_read_ms, x->last_read_ms);
}

/* What was used least of prefixes counts for its bucket from here on: else what is new would not be seen once
 * there were so many prefixes, however much it is read. */
static void make_room_locked(struct usage *u)
{
    struct usage_row *old = u->rows;
    struct usage_row **prefixes = calloc(SLOTS, sizeof(struct usage_row *));
    size_t n = 0;
    lock_assert_held(&u->lock);
    assert(prefixes);
    for (size_t i = 0; i < SLOTS; i++)
        if (old[i].prefix.p && old[i].prefix.n > 0)
            prefixes[n++] = &old[i];
    qsort(prefixes, n, sizeof(struct usage_row *), by_use);
    u->rows = new_rows();
    u->n = 0;
    for (size_t i = 0; i < SLOTS; i++)
        if (old[i].prefix.p && old[i].prefix.n == 0)
            move_row_locked(u, &old[i]);
    for (size_t i = n / ROOM_SHARE; i < n; i++)
        move_row_locked(u, prefixes[i]);
    for (size_t i = 0; i < n / ROOM_SHARE; i++) {
        struct usage_row *bucket = row_locked(u, prefixes[i]->bucket_id, SLICE_NULL);
        if (bucket)
            add_row(bucket, prefixes[i]);
    }
    free(prefixes);
    free_rows(old);
}

/* The row of a prefix; that of the bucket may be missing, where there are as many buckets: NULL. What a
 * thread counts is mostly of the same row as what it counted before. */
static struct usage_row *row_locked(struct usage *u, uint64_t bucket_id, struct slice prefix)
{
    static _Thread_local size_t last;
    lock_assert_held(&u->lock);
    if (!is_row_of(&u->rows[last], bucket_id, prefix))
        last = slot_of(u, bucket_id, prefix);
    struct usage_row *row = &u->rows[last];
    if (row->prefix.p)
        return row;
    if (prefix.n > 0 && u->n >= USAGE_ROWS_MAX - OWN_ROOM) {
        make_room_locked(u);
        if (u->n >= USAGE_ROWS_MAX - OWN_ROOM)
            return row_locked(u, bucket_id, SLICE_NULL);
        row = &u->rows[last = slot_of(u, bucket_id, prefix)];
    }
    if (u->n >= USAGE_ROWS_MAX)
        return NULL;
    u->n++;
    *row = (struct usage_row){.bucket_id = bucket_id, .prefix = {slice_dup(prefix), prefix.n}};
    return row;
}

/* The first directories of a key. */
static struct slice prefix_of(struct slice key)
{
    size_t end = 0;
    unsigned depth = 0;
    for (size_t i = 0; i < key.n && depth < USAGE_DEPTH; i++) {
        if (key.p[i] != '/')
            continue;
        end = i + 1;
        depth++;
    }
    return slice_sub(key, 0, end <= PREFIX_MAX ? end : 0);
}

struct added {
    uint64_t opens, read_bytes, fetched_bytes;
};

static void add(struct usage *u, uint64_t bucket_id, struct slice key, struct added a)
{
    LOCK_SCOPE(&u->lock);
    struct usage_row *row = row_locked(u, bucket_id, prefix_of(key));
    if (!row)
        return;
    row->opens += a.opens;
    row->read_bytes += a.read_bytes;
    row->fetched_bytes += a.fetched_bytes;
    if (a.opens > 0 || a.read_bytes > 0)
        row->last_read_ms = sys->real_ns() / 1000000;
    u->changed = true;
}

void usage_opened(struct usage *u, uint64_t bucket_id, struct slice key)
{
    add(u, bucket_id, key, (struct added){.opens = 1});
}

void usage_read(struct usage *u, uint64_t bucket_id, struct slice key, uint64_t bytes)
{
    add(u, bucket_id, key, (struct added){.read_bytes = bytes});
}

void usage_fetched(struct usage *u, uint64_t bucket_id, struct slice key, uint64_t bytes)
{
    add(u, bucket_id, key, (struct added){.fetched_bytes = bytes});
}

void usage_forget(struct usage *u, uint64_t bucket_id)
{
    LOCK_SCOPE(&u->lock);
    struct usage_row *old = u->rows;
    u->rows = new_rows();
    u->n = 0;
    u->changed = true;
    for (size_t i = 0; i < SLOTS; i++) {
        if (!old[i].prefix.p || old[i].bucket_id == bucket_id)
            continue;
        move_row_locked(u, &old[i]);
    }
    free_rows(old);
}

void usage_each(struct usage *u, void (*fn)(void *arg, const struct usage_row *r), void *arg)
{
    LOCK_SCOPE(&u->lock);
    for (size_t i = 0; i < SLOTS; i++)
        if (u->rows[i].prefix.p)
            fn(arg, &u->rows[i]);
}

/* ---- stored ---- */

static int encode_locked(const struct usage *u, struct buf *b)
{
    int r = buf_str(b, RECORD_HEAD);
    for (size_t i = 0; i < SLOTS && r == 0; i++) {
        const struct usage_row *x = &u->rows[i];
        if (!x->prefix.p)
            continue;
        r = buf_printf(b, "%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\t", x->bucket_id,
                       x->opens, x->read_bytes, x->fetched_bytes, x->last_read_ms);
        r = r < 0 ? r : text_uri_encode(b, x->prefix, /* keep_slash= */ true);
        r = r < 0 ? r : buf_char(b, '\n');
    }
    return r;
}

static int decode_line(struct usage *u, struct slice line)
{
    uint64_t v[LINE_NUMBERS];
    _cleanup_buf_ struct buf prefix = BUF_INIT(PREFIX_MAX);
    for (size_t i = 0; i < LINE_NUMBERS; i++)
        if (slice_u64(slice_split(&line, '\t'), &v[i]) < 0)
            return ERR_CORRUPT;
    if (text_uri_decode(&prefix, line, /* plus_is_space= */ false) < 0)
        return ERR_CORRUPT;
    struct usage_row *row = row_locked(u, v[0], buf_view(&prefix));
    if (!row)
        return 0;
    row->opens += v[1];
    row->read_bytes += v[2];
    row->fetched_bytes += v[3];
    row->last_read_ms = MAX(row->last_read_ms, v[4]);
    return 0;
}

static int load(struct usage *u)
{
    _cleanup_buf_ struct buf b = BUF_INIT(SAVED_MAX);
    int r = kv_get(u->kv, RECORD_KEY, &b, NULL, NULL);
    if (r < 0)
        return r == -ENOENT ? 0 : r;
    struct slice rest = buf_view(&b);
    if (!slice_starts(rest, SLICE_LIT(RECORD_HEAD)))
        return ERR_CORRUPT;
    rest = slice_from(rest, strlen(RECORD_HEAD));
    LOCK_SCOPE(&u->lock);
    while (rest.n > 0 && r == 0)
        r = decode_line(u, slice_split(&rest, '\n'));
    return r;
}

struct usage *usage_new(struct kv *kv)
{
    struct usage *u = calloc(1, sizeof(*u));
    assert(u);
    u->kv = kv;
    u->rows = new_rows();
    lock_init(&u->lock, LOCK_LEAF);
    int r = load(u);
    if (r < 0)
        log_warn("object", "counters of reads by prefix are not known from before: %s", err_text(r));
    return u;
}

void usage_free(struct usage *u)
{
    if (!u)
        return;
    free_rows(u->rows);
    lock_fini(&u->lock);
    free(u);
}

int usage_save(struct usage *u, struct err *e)
{
    _cleanup_buf_ struct buf b = BUF_INIT(SAVED_MAX);
    lock_take(&u->lock);
    bool changed = u->changed;
    int r = changed ? encode_locked(u, &b) : 0;
    u->changed = false;
    lock_drop(&u->lock);
    if (!changed || r < 0)
        return r < 0 ? err_set(e, r, "counters of reads by prefix are too many") : 0;
    _cleanup_(kv_txn_freep) struct kv_txn *t = kv_txn_new(u->kv);
    kv_txn_put(t, RECORD_KEY, buf_view(&b));
    r = kv_txn_commit(t, KV_VISIBLE, e);
    LOCK_SCOPE(&u->lock);
    u->changed = u->changed || r < 0; /* the next time, then */
    return r;
}

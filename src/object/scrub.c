/*
 * The scrub: one thread that reads, again and again and behind everybody else, what the disks have, and
 * compares it with the checksums (store_scrub). What is bad of cached objects is dropped, and fetched again
 * by whoever reads it next; of scratch files it is told, for there is no other copy.
 *
 * It is slow on purpose: at most `rate` bytes a second, and no block is begun while somebody reads or writes
 * data through the node, prefetch included, or has begun to since the scrub looked last. What the kernel
 * reads for a mount by itself is not seen. A node that never rests is never scrubbed; status says when the
 * last pass ended.
 *
 * A pass over a disk begins a day after the one before began. Where it is stands in the control store,
 * written after each step, so that a pass goes on where it was when the node is started again:
 *
 *     n/scrub/DISK-ID    "1 BEGAN ENDED BLOCKS BAD SCRATCH PLACE\n": ns since 1970 (ENDED 0: the pass runs),
 * what this pass has counted, and the place in hex, "-" when there is none
 *
 * Failure modes: an index that cannot be read is logged, and the pass over this disk waits for the next look.
 * A record that is not understood begins a pass. What was counted since the last step that ended is forgotten
 * by kill -9, and done again.
 */
#include "object/scrub.h"

#include "object/object_internal.h"

#include "base/chore.h"
#include "base/log.h"
#include "base/sys.h"
#include "base/text.h"

#include <inttypes.h>
#include <jansson.h>

#define MAGIC         0x73637275u
#define PASS_NS       ((uint64_t)86400 * 1000000000)
#define LOOK_NS       ((uint64_t)60 * 1000000000) /* whether a pass is due */
#define HOLD_NS       ((uint64_t)100000000)       /* from one look at who reads to the next */
#define PLACE_MAX     (64 * KIB)
#define RECORD_MAX    (3 * PLACE_MAX)
#define KEY_HEAD      "n/scrub/"
#define HARD_TEXT_MAX 512

struct scrubbed {
    struct buf at; /* of store_scrub; the thread's */
    struct id128 id;
    char path[256];
    struct lock lock; /* covers what follows */
    uint64_t began_ns, ended_ns;
    uint64_t blocks, bad,
        scratch; /* of this pass, or the last one: looked at, dropped; scratch files with bad bytes */
};

struct scrub {
    uint32_t magic;
    struct object_service *service;
    struct chore chore;
    uint64_t rate;    /* bytes a second */
    uint64_t next_ns; /* before then no block is read */
    uint64_t seen;    /* of begun, at the last look */
    struct scrubbed *disks;
    size_t n;
    struct scrubbed *current;
};

/* ---- who goes first ---- */

static bool is_data(uint32_t op)
{
    return op == WIRE_OP_OPEN || op == WIRE_OP_FETCH || op == WIRE_OP_PUT_WRITE || op == WIRE_OP_PUT_COMMIT ||
           op == WIRE_OP_UPLOAD_WRITE;
}

bool scrub_enter(struct object_service *s, uint32_t op)
{
    if (!s->scrub || !is_data(op))
        return false;
    (void)atomic_fetch_add(&s->data_begun, 1);
    (void)atomic_fetch_add(&s->data_running, 1);
    return true;
}

void scrub_leave(struct object_service *s)
{
    (void)atomic_fetch_sub(&s->data_running, 1);
}

bool scrub_must_wait(uint64_t running, uint64_t begun, uint64_t *seen)
{
    bool waits = running > 0 || begun != *seen;
    *seen = begun;
    return waits;
}

/* store_before_fn: paces, and lets everybody else go first. False: the node stops. */
static bool before(void *arg, uint64_t bytes)
{
    struct scrub *w = CAST_MAGIC(scrub, arg, MAGIC);
    struct object_service *s = w->service;
    for (uint64_t now; (now = sys->mono_ns()) < w->next_ns && !chore_is_stopping(&w->chore);)
        chore_pause(&w->chore, w->next_ns - now);
    while (!chore_is_stopping(&w->chore) &&
           scrub_must_wait(atomic_load(&s->data_running), atomic_load(&s->data_begun), &w->seen)) {
        metrics_count(METRIC_SCRUB_WAITS, NULL, NULL, NULL);
        chore_pause(&w->chore, HOLD_NS);
    }
    if (chore_is_stopping(&w->chore))
        return false;
    w->next_ns = sys->mono_ns() + (uint64_t)((double)bytes * 1e9 / (double)w->rate);
    metrics_add(metrics_series(METRIC_SCRUBBED_BYTES, w->current->path, NULL, NULL), bytes);
    return true;
}

/* ---- where it is ---- */

static void key_of(const struct scrubbed *d, char ret[sizeof(KEY_HEAD) + ID_TEXT_SIZE])
{
    char id[ID_TEXT_SIZE];
    id_text(d->id, id);
    (void)snprintf(ret, sizeof(KEY_HEAD) + ID_TEXT_SIZE, KEY_HEAD "%s", id);
}

static int next_u64(struct slice *rest, uint64_t *ret)
{
    return slice_u64(slice_split(rest, ' '), ret);
}

/* A record that is not understood leaves the disk as one that was never scrubbed. */
static void parse(struct scrubbed *d, struct slice record)
{
    uint64_t version = 0, began = 0, ended = 0, blocks = 0, bad = 0, scratch = 0;
    struct slice line = slice_split(&record, '\n');
    if (next_u64(&line, &version) < 0 || version != 1 || next_u64(&line, &began) < 0 ||
        next_u64(&line, &ended) < 0 || next_u64(&line, &blocks) < 0 || next_u64(&line, &bad) < 0 ||
        next_u64(&line, &scratch) < 0)
        return;
    size_t n = slice_eq_str(line, "-") ? 0 : line.n / 2;
    char *to = n > 0 && n <= PLACE_MAX ? buf_reserve(&d->at, n) : NULL;
    if (to && text_unhex(line, (uint8_t *)to, n) == 0)
        buf_used(&d->at, n);
    else if (n > 0)
        return;
    d->began_ns = began;
    d->ended_ns = ended;
    d->blocks = blocks;
    d->bad = bad;
    d->scratch = scratch;
}

static void load(struct scrub *w, struct scrubbed *d)
{
    char key[sizeof(KEY_HEAD) + ID_TEXT_SIZE];
    _cleanup_buf_ struct buf b = BUF_INIT(RECORD_MAX);
    key_of(d, key);
    if (kv_get(w->service->config.control, slice_str(key), &b, NULL, NULL) == 0)
        parse(d, buf_view(&b));
}

static void save(struct scrub *w, struct scrubbed *d)
{
    char key[sizeof(KEY_HEAD) + ID_TEXT_SIZE];
    _cleanup_buf_ struct buf b = BUF_INIT(RECORD_MAX);
    _cleanup_free_ char *hex = calloc(2, d->at.n + 1);
    struct err e = {0};
    assert(hex);
    key_of(d, key);
    if (d->at.n > 0)
        text_hex((const uint8_t *)d->at.p, d->at.n, hex);
    int r = buf_printf(&b, "1 %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %s\n", d->began_ns,
                       d->ended_ns, d->blocks, d->bad, d->scratch, d->at.n > 0 ? hex : "-");
    _cleanup_(kv_txn_freep) struct kv_txn *t = kv_txn_new(w->service->config.control);
    if (r == 0)
        kv_txn_put_plain(t, slice_str(key), buf_view(&b));
    if (r == 0)
        r = kv_txn_commit(t, KV_VISIBLE, &e);
    if (r < 0)
        log_warn("object", "scrub: where it is cannot be written down: %s", e.text[0] ? e.text : err_text(r));
}

/* ---- passes ---- */

/* store_check_fn: what is wrong. Blocks that are dropped have been logged by the store. */
static bool on_extent(const struct store_check_report *so_far, const char *problem, void *arg)
{
    (void)so_far, (void)arg;
    if (problem)
        log_warn("object", "scrub: %s", problem);
    return true; /* the node's stop ends the step before a block, where it goes on afterwards */
}

enum scrub_due scrub_due(uint64_t began_ns, uint64_t ended_ns, uint64_t now_ns)
{
    if (began_ns == 0)
        return SCRUB_BEGIN;
    if (ended_ns == 0)
        return SCRUB_GO_ON;
    return now_ns >= began_ns && now_ns - began_ns < PASS_NS ? SCRUB_REST : SCRUB_BEGIN;
}

static bool is_due(struct scrubbed *d, uint64_t now_ns)
{
    LOCK_SCOPE(&d->lock);
    enum scrub_due due = scrub_due(d->began_ns, d->ended_ns, now_ns);
    if (due != SCRUB_BEGIN)
        return due == SCRUB_GO_ON;
    d->began_ns = now_ns;
    d->ended_ns = d->blocks = d->bad = d->scratch = 0;
    buf_clear(&d->at);
    return true;
}

/* One step. True: there is more to do at once. */
static bool step(struct scrub *w, size_t i)
{
    struct scrubbed *d = w->current = &w->disks[i];
    struct store_check_report sum = {0};
    struct err e = {0};
    if (!is_due(d, sys->real_ns()))
        return false;
    int r = store_scrub(w->service->config.store, i, &d->at, before, on_extent, w, &sum, &e);
    lock_take(&d->lock);
    d->blocks += sum.blocks + sum.hard_blocks;
    d->bad += sum.bad_blocks + sum.missing_files + sum.bad_records;
    d->scratch += sum.hard_bad;
    if (r == -ENOENT || r == -EINVAL) /* a place that is none: the next pass begins at once */
        d->ended_ns = r == -ENOENT ? sys->real_ns() : 0;
    if (r == -EINVAL)
        d->began_ns = 0;
    lock_drop(&d->lock);
    if (r == -ENOENT)
        log_info("object",
                 "scrub of disk %s: %" PRIu64 " blocks read, %" PRIu64
                 " of cached objects were bad and are dropped, "
                 "%" PRIu64 " scratch files have bad bytes",
                 d->path, d->blocks, d->bad, d->scratch);
    else if (r < 0 && r != -EINVAL)
        log_warn("object", "scrub of disk %s: %s", d->path, e.text[0] ? e.text : err_text(r));
    save(w, d);
    return r == 0 || r == -EINVAL;
}

static uint64_t turn(void *arg)
{
    struct scrub *w = CAST_MAGIC(scrub, arg, MAGIC);
    bool more = true;
    while (more && !chore_is_stopping(&w->chore)) {
        more = false;
        for (size_t i = 0; i < w->n && !chore_is_stopping(&w->chore); i++)
            more = step(w, i) || more;
    }
    return LOOK_NS;
}

/* ---- life ---- */

struct scrub *scrub_start(struct object_service *s, uint64_t rate_bytes_per_s)
{
    if (rate_bytes_per_s == 0)
        return NULL;
    struct scrub *w = calloc(1, sizeof(*w));
    assert(w);
    *w = (struct scrub){
        .magic = MAGIC, .service = s, .rate = rate_bytes_per_s, .n = store_n_disks(s->config.store)};
    w->disks = calloc(MAX(w->n, (size_t)1), sizeof(*w->disks));
    assert(w->disks);
    for (size_t i = 0; i < w->n; i++) {
        struct store_disk_status st = {0};
        (void)store_disk_status(s->config.store, i, &st);
        w->disks[i].at = BUF_INIT(PLACE_MAX);
        w->disks[i].id = st.id;
        (void)snprintf(w->disks[i].path, sizeof(w->disks[i].path), "%s", st.path);
        lock_init(&w->disks[i].lock, LOCK_LEAF);
        load(w, &w->disks[i]);
    }
    return w;
}

void scrub_begin(struct scrub *w)
{
    if (w && chore_start(&w->chore, 0, turn, w) < 0)
        log_warn("object", "no thread for the scrub: nothing is scrubbed");
}

void scrub_stop(struct scrub *w)
{
    if (!w)
        return;
    chore_stop(&w->chore);
    for (size_t i = 0; i < w->n; i++) {
        buf_fini(&w->disks[i].at);
        lock_fini(&w->disks[i].lock);
    }
    free(w->disks);
    w->magic = 0;
    free(w);
}

json_t *scrub_json(struct scrub *w)
{
    if (!w)
        return json_null();
    json_t *list = json_array();
    for (size_t i = 0; i < w->n; i++) {
        struct scrubbed *d = &w->disks[i];
        _cleanup_buf_ struct buf path = BUF_INIT(3 * sizeof(d->path) + 1);
        LOCK_SCOPE(&d->lock);
        (void)json_array_append_new(
            list, json_pack("{s:s, s:I, s:I, s:I, s:I, s:I}", "path", text_utf8(&path, slice_str(d->path)),
                            "began_ms", (json_int_t)(d->began_ns / 1000000), "ended_ms",
                            (json_int_t)(d->ended_ns / 1000000), "blocks", (json_int_t)d->blocks, "dropped",
                            (json_int_t)d->bad, "bad_scratch_files", (json_int_t)d->scratch));
    }
    return json_pack("{s:I, s:o}", "rate_bytes_per_s", (json_int_t)w->rate, "disks", list);
}

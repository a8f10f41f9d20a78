/*
 * Write-back: the layer between upstreams and origins.
 *
 * A key with a record is answered from here. A write to a bucket with write=back, or to a key that still has
 * a record, becomes one: bytes into a fresh hard extent, synced; then the record, durably; then the answer.
 * All other requests go on to the origin as they are.
 *
 * What the origin had before (the record's base) is what this node may believe without asking, else what the
 * origin says now. Answers that went wrong are asked for again, at most for the bucket's `retry`: a base that
 * is not known makes a conflict of whatever is there. Where the last question had no answer at all one try is
 * enough, so that writes do not wait for an origin that is away. Then it is what was heard last, also before
 * a restart, else unknown. A record that takes the place of another keeps its base.
 *
 * Invariants:
 *  1. A put is answered only after its bytes and then its record are durable. What the node was sent lies in
 * an extent that becomes the record's (origin_file). A staged file is kept by another name instead of a copy:
 * live bytes (back.h), while somebody may write to it.
 *  2. Conditions are checked while busy with the key, against what a reader would see at that moment.
 * Metadata that changes at the origin gives what is there another ETag perhaps: no conflict of our own doing.
 *  3. An extent is in a record, or in several that were copied from one (back_share.c), or is given back.
 */
#include "object/back_internal.h"

#include "base/sys.h"

#define PIECE_BYTES     MIB
#define HASHED_BYTES    (512 * KIB) /* of a body that is written, two of them */
#define ASK_ARENA       (64 * KIB)
#define FILE_PAGE_BYTES ((uint64_t)4096) /* files take whole ones */
#define READ_TRIES      3                /* the record may go between the look and the bytes */
#define WAIT_MS         50               /* a wait looks this often whether it is cancelled */

/* ---- small ---- */

static bool takes(struct back *b, const struct upstream *u, struct slice key)
{
    return u->bucket->p.write == BUCKET_WRITE_BACK || back_has(b, u->bucket->id, key);
}

struct origin_attr back_attr(const struct back_record *r, struct arena *a)
{
    char *etag = arena_alloc(a, BACK_ETAG_SIZE);
    back_record_etag(r, etag);
    return (struct origin_attr){.size_bytes = r->size_bytes,
                                .mtime_ns = r->acked_ns,
                                .etag = slice_str(etag),
                                .content_type = arena_dup(a, r->content_type),
                                .meta = arena_dup(a, r->meta)};
}

ssize_t back_body_read(void *arg, void *p, size_t n, uint64_t offset)
{
    int r = sys_pread_all(hard_fd(arg), p, n, offset);
    return r < 0 ? (r == -ENODATA ? -EIO : r) : (ssize_t)n;
}

static int no_bytes(void *arg, const struct origin_attr *attr, const void *p, size_t n)
{
    (void)arg, (void)attr, (void)p, (void)n;
    return 0;
}

static int ask(struct upstream *u, struct slice key, struct arena *a, struct origin_attr *ret, struct err *e)
{
    struct origin_get g = {.key = key, .attributes_only = true, .whole = true};
    return origin_get(u->origin, &g, a, ret, no_bytes, NULL, e);
}

/* ---- reading ---- */

static int send_range(struct hard *h, const struct origin_get *g, const struct origin_attr *attr,
                      origin_sink_fn sink, void *arg, struct err *e)
{
    uint64_t at = g->offset, end = attr->size_bytes;
    if (!g->whole && g->n < end - at)
        end = at + g->n;
    _cleanup_free_ char *piece = malloc(PIECE_BYTES);
    assert(piece);
    do {
        size_t n = (size_t)MIN((uint64_t)PIECE_BYTES, end - at);
        if (g->cancel && atomic_load(g->cancel))
            return -ECANCELED;
        int r = n > 0 ? (int)MIN(back_body_read(h, piece, n, at), 0) : 0;
        if (r < 0)
            return err_errno(e, r, "read bytes that are not in the origin yet");
        r = sink(arg, attr, piece, n);
        if (r != 0)
            return r;
        at += n;
    } while (at < end);
    return 0;
}

/* Nobody was given bytes of a live version, so that who asks for another one is told so without a copy. */
static bool may_be_wanted(const struct origin_get *g, const struct back_record *live)
{
    char etag[BACK_ETAG_SIZE];
    back_record_etag(live, etag);
    return g->if_match.n == 0 || slice_eq_str(g->if_match, etag);
}

/* -EAGAIN: the record was replaced meanwhile, or is gone: then the origin has what it said. */
static int get_here(struct back *b, struct upstream *u, const struct origin_get *g, struct arena *a,
                    struct origin_attr *ret, origin_sink_fn sink, void *arg, bool *ret_gone, struct err *e)
{
    _cleanup_buf_ struct buf value = BUF_INIT(BACK_RECORD_MAX_BYTES);
    _cleanup_(hard_unrefp) struct hard *h = NULL;
    struct back_record rec;
    int r = back_load(b, u->bucket->id, g->key, &value, &rec, e);
    if (r == 0 && rec.is_live && !g->attributes_only && may_be_wanted(g, &rec))
        r = back_load_settled(b, u->bucket, g->key, &value, &rec, e);
    *ret_gone = r == -ENOENT; /* seen before the entry in memory says so: a durable commit takes a while */
    if (r < 0)
        return r == -ENOENT ? -EAGAIN : r;
    if (rec.removal)
        return err_set(e, -ENOENT, "the object was removed");
    struct origin_attr attr = back_attr(&rec, a);
    if (g->if_match.n > 0 && !slice_eq(g->if_match, attr.etag))
        return err_set(e, ERR_PRECONDITION, "the object is another one now");
    if (!g->attributes_only && g->offset > 0 && g->offset >= attr.size_bytes)
        return err_set(e, ERR_RANGE, "behind the object's end");
    if (!g->attributes_only && rec.location.n > 0) {
        r = hard_find(b->store, rec.location, &h, e);
        if (r < 0)
            return r == -ENOENT ? -EAGAIN : r;
    }
    *ret = attr;
    return h ? send_range(h, g, &attr, sink, arg, e) : sink(arg, &attr, NULL, 0);
}

/* A version that readers know by the ETag it had here: asked for by the origin's, shown by theirs. */
struct renamed {
    origin_sink_fn sink;
    void *arg;
    struct slice etag;
};

static int sink_renamed(void *arg, const struct origin_attr *attr, const void *p, size_t n)
{
    struct renamed *x = arg;
    struct origin_attr shown = *attr;
    shown.etag = x->etag;
    return x->sink(x->arg, &shown, p, n);
}

static int get_there(struct back *b, struct upstream *u, const struct origin_get *g, struct arena *a,
                     struct origin_attr *ret, origin_sink_fn sink, void *arg, struct err *e)
{
    char now[ORIGIN_ETAG_MAX + 1];
    struct origin_get ask_for = *g;
    struct renamed x = {.sink = sink, .arg = arg, .etag = g->if_match};
    if (back_alias_find(b, u->bucket->id, g->key, g->known, now)) {
        int r = origin_get(u->origin, g, a, ret, sink, arg, e);
        if (r == 0 && slice_eq_str(ret->etag, now))
            ret->etag = arena_dup(a, g->known);
        return r;
    }
    if (!back_alias_find(b, u->bucket->id, g->key, g->if_match, now))
        return origin_get(u->origin, g, a, ret, sink, arg, e);
    ask_for.if_match = slice_str(now);
    int r = origin_get(u->origin, &ask_for, a, ret, sink_renamed, &x, e);
    if (r == 0)
        ret->etag = arena_dup(a, g->if_match);
    return r;
}

static int layer_get(void *arg, struct upstream *u, const struct origin_get *g, struct arena *a,
                     struct origin_attr *ret, origin_sink_fn sink, void *sink_arg, struct err *e)
{
    struct back *b = CAST_MAGIC(back, arg, BACK_MAGIC);
    bool gone = false;
    for (int i = 0; i < READ_TRIES && !gone && back_has(b, u->bucket->id, g->key); i++) {
        int r = get_here(b, u, g, a, ret, sink, sink_arg, &gone, e);
        if (r != -EAGAIN)
            return r;
        if (!gone && i + 1 == READ_TRIES)
            return err_set(e, -EIO, "the bytes of a write that is not in the origin are missing");
    }
    return get_there(b, u, g, a, ret, sink, sink_arg, e);
}

/* ---- writing ---- */

struct change {
    struct back *back;
    struct upstream *upstream;
    struct back_entry *entry; /* busy */
    bool had;                 /* it has a record */
    struct back_record old;
    struct buf old_value;
    struct arena *arena;
    atomic_bool *cancel; /* may be NULL */
    bool pays;           /* nobody has paid yet for asking the origin */
    bool asked;          /* the origin was asked: `there` or not */
    bool there;
    struct origin_attr found;
};

static int change_begin(struct change *c, struct back *b, struct upstream *u, struct slice key,
                        atomic_bool *cancel, struct err *e)
{
    *c = (struct change){.back = b,
                         .upstream = u,
                         .cancel = cancel,
                         .entry = back_enter(b, u->bucket->id, key),
                         .old_value = BUF_INIT(BACK_RECORD_MAX_BYTES),
                         .arena = arena_new(ASK_ARENA)};
    if (!c->entry->recorded)
        return 0;
    int r = back_load(b, u->bucket->id, key, &c->old_value, &c->old, e);
    c->had = r == 0;
    return r;
}

static void change_end(struct change *c)
{
    back_leave(c->back, c->entry);
    buf_fini(&c->old_value);
    arena_free(c->arena);
}

static bool is_given_up(const struct change *c)
{
    return atomic_load(&c->back->stop) || (c->cancel && atomic_load(c->cancel)) ||
           upstream_is_quitting(c->upstream);
}

/* A moment before the question is asked again. False: it is not. */
static bool wait_to_ask(const struct change *c, const struct retry *retry, int code)
{
    uint64_t now_ms = sys_mono_ms(), random;
    sys->random(&random, sizeof(random));
    uint64_t until_ms = retry->started_ms + c->upstream->bucket->p.retry_time;
    uint64_t pause_ms = origin_pause_ms(c->upstream->origin, now_ms);
    int64_t wait_ms =
        retry_delay_ms(retry, code, now_ms, until_ms, pause_ms, /* budget_left= */ true, random);
    if (wait_ms < 0)
        return false;
    for (int64_t left_ms = wait_ms; left_ms > 0 && !is_given_up(c); left_ms -= WAIT_MS)
        sys->sleep_ns((uint64_t)MIN(left_ms, (int64_t)WAIT_MS) * 1000000);
    return !is_given_up(c);
}

/* What is known to be silent is not waited for by each writer. */
static int ask_impatiently(struct change *c, struct err *e)
{
    struct quit soon;
    quit_enter_impatient(&soon);
    int r = ask(c->upstream, back_key(c->entry), c->arena, &c->found, e);
    quit_leave(&soon);
    return r == -ECANCELED && !is_given_up(c) ? -ETIMEDOUT : r;
}

static int ask_again(struct change *c, struct err *e)
{
    struct retry retry = {.started_ms = sys_mono_ms()};
    bool patient = !back_is_silent(c->back, c->entry);
    int r;
    for (;; retry_count(&retry, r)) {
        if (c->pays && !upstream_enter_slowly(c->upstream, c->cancel))
            return err_set(e, -ECANCELED, "it was given up while it waited for the limits of its origin");
        r = patient ? ask(c->upstream, back_key(c->entry), c->arena, &c->found, e) : ask_impatiently(c, e);
        if (!retry_is_transient(r) || !patient || !wait_to_ask(c, &retry, r))
            break;
    }
    back_note_silence(c->back, c->entry, retry_is_transient(r));
    return r;
}

/* At most once for each change, if there is an answer. */
static int ask_once(struct change *c, struct err *e)
{
    if (c->asked)
        return 0;
    int r = ask_again(c, e);
    if (r < 0 && r != -ENOENT)
        return r;
    c->asked = true;
    c->there = r == 0;
    return 0;
}

/* What a reader sees now. */
static int current(struct change *c, bool *ret_there, char ret_etag[ORIGIN_ETAG_MAX + 1], struct err *e)
{
    ret_etag[0] = '\0';
    if (c->had) {
        *ret_there = !c->old.removal;
        back_record_etag(&c->old, ret_etag);
        return 0;
    }
    int r = ask_once(c, e);
    if (r < 0)
        return r;
    *ret_there = c->there;
    if (c->there)
        (void)snprintf(ret_etag, ORIGIN_ETAG_MAX + 1, SLICE_FMT, SLICE_ARG(c->found.etag));
    return 0;
}

static int check_conditions(struct change *c, struct slice if_match, bool if_none_match, struct err *e)
{
    char etag[ORIGIN_ETAG_MAX + 1], now[ORIGIN_ETAG_MAX + 1];
    bool there;
    if (if_match.n == 0 && !if_none_match)
        return 0;
    int r = current(c, &there, etag, e);
    if (r < 0)
        return r;
    /* The version that was meant may have gone to the origin since, and have its ETag from there. */
    if (!c->had && !slice_eq_str(if_match, etag) &&
        back_alias_find(c->back, c->upstream->bucket->id, back_key(c->entry), if_match, now))
        if_match = slice_str(now);
    if (if_none_match && there)
        return err_set(e, ERR_PRECONDITION, "the object exists already");
    if (if_match.n > 0 && (!there || !(slice_eq_str(if_match, "*") || slice_eq_str(if_match, etag))))
        return err_set(e, ERR_PRECONDITION, "the object is another one now");
    return 0;
}

/* What is remembered may have the ETag that a version had here until a moment ago: the origin's counts. */
static void base_of_attr(struct change *c, const struct attr *x, struct back_record *r)
{
    char now[ORIGIN_ETAG_MAX + 1];
    bool none = x->is_absent || x->is_directory;
    bool renamed =
        !none && back_alias_find(c->back, c->upstream->bucket->id, back_key(c->entry), x->etag, now);
    r->base = none ? BACK_BASE_ABSENT : BACK_BASE_ETAG;
    r->base_etag = none ? SLICE_NULL : arena_dup(c->arena, renamed ? slice_str(now) : x->etag);
}

/* What was heard last, however long ago. Who writes has had it forgotten by now. */
static int recall_stale(struct change *c, struct attr *ret)
{
    struct mirror *m = c->back->service->mirror;
    int r = mirror_recall_stale(m, c->upstream->bucket, back_key(c->entry), c->arena, ret);
    return r < 0 ? mirror_recall_before(m, c->upstream->bucket, back_key(c->entry), c->arena, ret) : r;
}

/* Fills base and what follows the record that was there. */
static void set_base(struct change *c, struct back_record *r)
{
    struct mirror *m = c->back->service->mirror;
    struct attr known;
    r->since_ns = r->acked_ns;
    if (c->had) {
        r->base = c->old.base;
        r->base_etag = c->old.base_etag;
        r->since_ns = c->old.since_ns;
        r->n_sent = c->old.n_sent;
        memcpy(r->sent, c->old.sent, sizeof(r->sent));
    } else if (!c->asked &&
               mirror_recall(m, c->upstream->bucket, back_key(c->entry), c->arena, &known) == 0 &&
               !known.is_directory) {
        base_of_attr(c, &known, r);
    } else if (ask_once(c, NULL) == 0) {
        r->base = c->there ? BACK_BASE_ETAG : BACK_BASE_ABSENT;
        r->base_etag = c->there ? c->found.etag : SLICE_NULL;
    } else if (recall_stale(c, &known) == 0 && !known.is_directory) {
        base_of_attr(c, &known, r);
    }
}

/* In the place of what there was, whose bytes stay. Live bytes that had a record keep the moment of their
 * acknowledgement: what was written since is not. */
static int replace(struct change *c, struct back_record *r, bool *ret_unknown, struct err *e)
{
    r->seq = atomic_fetch_add(&c->back->seq, 1) + 1;
    if (!r->is_live || r->acked_ns == 0)
        r->acked_ns = sys->real_ns();
    set_base(c, r);
    return back_save(c->back, c->entry, c->upstream->bucket, r, KV_DURABLE, ret_unknown, e);
}

static int commit(struct change *c, struct back_record *r, bool *ret_unknown, struct err *e)
{
    int result = replace(c, r, ret_unknown, e);
    if (result == 0 && c->had)
        back_free_extent(c->back, c->old.location);
    return result;
}

/* ---- put ---- */

/* What takes room on a disk: bytes of a file, or, without, the promise of so many. */
struct taking {
    struct hard *hard;
    struct slice piece;
    uint64_t at, promised;
};

static int take(const struct taking *t, struct err *e)
{
    if (t->promised == 0)
        return hard_write(t->hard, t->piece.p, t->piece.n, t->at, e);
    int r = hard_reserve(t->hard, t->promised);
    return r == ERR_NOT_ADMITTED ? -ENOSPC : r;
}

static int take_waiting(struct back *b, const struct bucket *bucket, const struct taking *t,
                        atomic_bool *cancel, struct err *e)
{
    uint64_t until_ms = sys_mono_ms() + (bucket ? bucket->p.retry_time : 0), bytes = t->piece.n + t->promised;
    int r = take(t, e);
    if (r != -ENOSPC)
        return r;
    if (!bucket)
        return back_no_room(b, bytes, e);
    (void)atomic_fetch_add(&b->hungry, 1);
    while (r == -ENOSPC && !(cancel && atomic_load(cancel)) && back_wait_freed(b, until_ms))
        r = take(t, e);
    (void)atomic_fetch_sub(&b->hungry, 1);
    return r == -ENOSPC ? back_no_room(b, bytes, e) : r;
}

int back_write(struct back *b, const struct bucket *bucket, struct hard *h, struct slice piece, uint64_t at,
               atomic_bool *cancel, struct err *e)
{
    const struct taking t = {.hard = h, .piece = piece, .at = at};
    return take_waiting(b, bucket, &t, cancel, e);
}

/* Before the first byte of a body that is copied: who waits for room has none then, and several that would
 * not fit beside each other do not wait for one another. */
static int wait_for_all(struct back *b, const struct bucket *bucket, struct hard *h, uint64_t size_bytes,
                        atomic_bool *cancel, struct err *e)
{
    const struct taking t = {.hard = h, .promised = ALIGN_UP(size_bytes, FILE_PAGE_BYTES)};
    return take_waiting(b, bucket, &t, cancel, e);
}

/* Writes and hashes the body, by two pieces in turn: one is written and hashed while the next one comes. md5
 * NULL: without a hash. */
static int write_body(struct back *b, const struct bucket *bucket, struct hard *h,
                      const struct origin_body *body, struct hasher_stream *md5, char *pieces,
                      atomic_bool *cancel, struct err *e)
{
    unsigned turn = 0;
    for (uint64_t at = 0; at < body->size_bytes; turn = !turn) {
        char *piece = pieces + turn * HASHED_BYTES;
        if (cancel && atomic_load(cancel))
            return err_set(e, -ECANCELED, "cancelled");
        if (md5)
            hasher_stream_wait(md5, piece, HASHED_BYTES);
        ssize_t n = body->read(body->arg, piece, (size_t)MIN(HASHED_BYTES, body->size_bytes - at), at);
        if (n <= 0)
            return err_errno(e, n < 0 ? (int)n : -EIO, "read the body");
        if (md5)
            hasher_stream_add(md5, piece, (size_t)n);
        int r = back_write(b, bucket, h, slice_of(piece, (size_t)n), at, cancel, e);
        if (r < 0)
            return r;
        at += (uint64_t)n;
    }
    return 0;
}

/* The body in an extent of its own, synced. */
static int keep_bytes(struct back *b, const struct bucket *bucket, const struct origin_body *body,
                      struct hasher_stream *md5, atomic_bool *cancel, struct hard **ret, struct err *e)
{
    struct hard *h = NULL;
    int r = hard_take(b->store, &h, e);
    if (r < 0)
        return r;
    r = hard_begin_writing(h, e);
    if (r == 0) {
        char *pieces = malloc(2 * HASHED_BYTES);
        assert(pieces);
        r = wait_for_all(b, bucket, h, body->size_bytes, cancel, e);
        r = r < 0 ? r : write_body(b, bucket, h, body, md5, pieces, cancel, e);
        r = r < 0 ? r : hard_sync(h, e);
        hard_end_writing(h);
        if (md5)
            hasher_stream_wait(md5, pieces, 2 * HASHED_BYTES);
        free(pieces);
    }
    if (r < 0)
        hard_give_back(h);
    else
        *ret = h;
    return r;
}

/* Of bytes that have an extent, and no MD5 yet. */
static void tag_body(struct hard *h, uint64_t size, struct back_body *ret)
{
    *ret = (struct back_body){.hard = h, .has_tag = true, .size_bytes = size};
    sys->random(ret->tag, sizeof(ret->tag));
}

int back_keep_body(struct back *b, const struct bucket *bucket, const struct origin_body *body,
                   atomic_bool *cancel, struct back_body *ret, struct err *e)
{
    struct hasher_stream md5;
    struct hard *h = NULL;
    int r = 0;
    if (body->file) {
        r = keep_bytes(b, bucket, body, /* md5= */ NULL, cancel, &h, e);
        if (r == 0)
            tag_body(h, body->size_bytes, ret);
        return r;
    }
    hasher_stream_init(&md5, body->size_bytes >= 2 * HASHED_BYTES ? b->service->hasher : NULL);
    if (body->size_bytes > 0)
        r = keep_bytes(b, bucket, body, &md5, cancel, &h, e);
    if (r == 0) {
        *ret = (struct back_body){.hard = h, .size_bytes = body->size_bytes};
        hasher_stream_digest(&md5, ret->md5);
    }
    hasher_stream_fini(&md5);
    return r;
}

/* The file that the body is, synced, by another name. ERR_NOT_ADMITTED: it must be copied. */
static int keep_file(struct back *b, const struct origin_body *body, struct back_body *ret, struct err *e)
{
    struct hard *h;
    struct err local = {0};
    struct stat st;
    int r = hard_of_staged(b->store, body->file->extent, &h, &local);
    if (r < 0) {
        if (e && r != ERR_NOT_ADMITTED)
            *e = local;
        return r;
    }
    r = hard_stat(h, &st);
    if (r < 0 || (uint64_t)st.st_size != body->size_bytes) { /* it was changed meanwhile, or has more bytes */
        hard_give_back(h);
        return ERR_NOT_ADMITTED;
    }
    tag_body(h, body->size_bytes, ret);
    ret->is_live = body->file->may_change;
    body->file->is_kept = true;
    return 0;
}

/* What was written for this record alone, and synced. ERR_NOT_ADMITTED: a record may name it already. */
static int keep_hard(const struct origin_body *body, struct back_body *ret)
{
    struct origin_file *f = body->file;
    if (f->is_kept)
        return ERR_NOT_ADMITTED;
    tag_body(hard_ref(f->hard), body->size_bytes, ret);
    ret->has_tag = !f->has_md5;
    memcpy(ret->md5, f->md5, BACK_MD5_BYTES);
    ret->lent = f;
    return 0;
}

static int keep_body(struct back *b, struct upstream *u, const struct origin_put *p,
                     const struct origin_body *body, struct back_body *ret, struct err *e)
{
    struct origin_body plain = *body;
    int r = ERR_NOT_ADMITTED;
    if (body->file && body->file->hard)
        r = keep_hard(body, ret);
    else if (body->file && body->file->extent)
        r = keep_file(b, body, ret, e);
    if (r != ERR_NOT_ADMITTED)
        return r;
    if (body->file && body->file->hard)
        plain.file = NULL; /* with an MD5 */
    return back_keep_body(b, u->bucket, &plain, p->cancel, ret, e);
}

/* Takes over the body's extent, unless it is lent and the record is not there for certain. */
static int put_record(struct back *b, struct upstream *u, const struct origin_put *p, struct back_body *body,
                      struct arena *a, struct origin_attr *ret, struct err *e)
{
    uint8_t location[HARD_LOCATION_BYTES];
    struct back_record rec = {.has_tag = body->has_tag,
                              .has_md5 = body->has_md5,
                              .is_live = body->is_live,
                              .acked_ns = body->acked_ns,
                              .size_bytes = body->size_bytes,
                              .content_type = p->content_type,
                              .meta = p->meta,
                              .upload = body->lent ? body->lent->upload : NULL};
    struct change c;
    bool unknown = false;
    memcpy(rec.md5, body->md5, BACK_MD5_BYTES);
    memcpy(rec.tag, body->tag, BACK_TAG_BYTES);
    if (body->hard) {
        hard_location(body->hard, location);
        rec.location = slice_of(location, sizeof(location));
    }
    int r = change_begin(&c, b, u, p->key, p->cancel, e);
    c.pays = u->bucket->p.write == BUCKET_WRITE_BACK; /* upstream_put takes no place then */
    if (r == 0)
        r = check_conditions(&c, p->if_match, p->if_none_match, e);
    if (r == 0)
        r = commit(&c, &rec, &unknown, e);
    change_end(&c);
    if (body->lent)
        body->lent->is_kept = r == 0 || unknown;
    if (r < 0 && body->hard && !unknown && !body->is_shared && !body->lent) {
        hard_give_back(body->hard);
    } else {
        hard_unref(body->hard);
        if (r < 0 && !unknown && body->is_shared)
            back_free_extent(b, rec.location);
    }
    if (r == 0)
        *ret = back_attr(&rec, a);
    return r;
}

static int layer_put(void *arg, struct upstream *u, const struct origin_put *p,
                     const struct origin_body *body, struct arena *a, struct origin_attr *ret, struct err *e)
{
    struct back *b = CAST_MAGIC(back, arg, BACK_MAGIC);
    if (!takes(b, u, p->key))
        return origin_put(u->origin, p, body, a, ret, e);
    struct back_body kept;
    int r = origin_takes(u->origin, p, body->size_bytes,
                         e); /* or it would be acknowledged, and never get there */
    if (r == 0)
        r = keep_body(b, u, p, body, &kept, e);
    return r < 0 ? r : put_record(b, u, p, &kept, a, ret, e);
}

/* ---- remove ---- */

/* Nothing was there before, and nothing of the record has been sent: who is about to says so in it first, and
 * one of a run before counts as sent.
 * Where the origin has directories one may be there by what was written below it. */
static bool is_only_here(const struct change *c)
{
    bool is_directory = c->upstream->origin->capabilities & ORIGIN_HAS_DIRECTORIES &&
                        slice_ends(back_key(c->entry), SLICE_LIT("/"));
    return c->had && c->old.n_sent == 0 && c->old.base == BACK_BASE_ABSENT && !is_directory;
}

static int drop(struct change *c, struct err *e)
{
    int r = back_drop(c->back, c->entry, e);
    if (r == 0)
        back_free_extent(c->back, c->old.location);
    return r;
}

/* A removal that the origin never takes would stay here for ever. What it has can be removed, whatever the
 * name; of a name that it can never have, as of a key that is too long with the prefix, it gives no answer.
 */
static int check_removable(const struct change *c, struct err *e)
{
    struct origin_put p = {.key = back_key(c->entry)};
    struct err local = {0};
    int r = origin_takes(c->upstream->origin, &p, /* size_bytes= */ 0, &local);
    if (r == 0 || (c->asked && r != -EROFS))
        return 0;
    if (e)
        *e = local;
    return r;
}

static int layer_remove(void *arg, struct upstream *u, struct slice key, struct slice if_match, struct err *e)
{
    struct back *b = CAST_MAGIC(back, arg, BACK_MAGIC);
    if (!takes(b, u, key))
        return origin_remove(u->origin, key, if_match, e);
    struct back_record rec = {.removal = true};
    struct change c;
    bool unknown;
    int r = change_begin(&c, b, u, key, /* cancel= */ NULL, e);
    if (r == 0)
        r = check_conditions(&c, if_match, /* if_none_match= */ false, e);
    bool is_gone = r == 0 && (c.had ? c.old.removal : ask_once(&c, NULL) == 0 && !c.there);
    if (r == 0 && !c.had && !is_gone)
        r = check_removable(&c, e);
    if (is_gone)
        r = err_set(e, -ENOENT, "no such key");
    else if (r == 0 && is_only_here(&c))
        r = drop(&c, e);
    else if (r == 0)
        r = commit(&c, &rec, &unknown, e);
    change_end(&c);
    return r;
}

/* ---- copy ---- */

/* A key's record, whose extent is shared from now on. may_be_live: the key itself is about to go. */
static int load_shared(struct back *b, const struct bucket *bucket, struct slice key, bool may_be_live,
                       struct buf *value, struct back_record *ret, struct err *e)
{
    struct back_entry *x = NULL;
    int r;
    if (may_be_live) {
        x = back_enter(b, bucket->id, key);
        r = back_load(b, bucket->id, key, value, ret, e);
    } else {
        r = back_enter_settled(b, bucket, key, value, ret, &x, e);
    }
    if (r == 0 && ret->location.n > 0)
        back_share(b, ret->location);
    if (x)
        back_leave(b, x);
    return r;
}

/* Another record of the same bytes. -EAGAIN: the source has no record. */
static int copy_here(struct back *b, struct upstream *u, struct slice from, struct slice to, bool may_be_live,
                     struct arena *a, struct origin_attr *ret, struct err *e)
{
    _cleanup_buf_ struct buf value = BUF_INIT(BACK_RECORD_MAX_BYTES);
    struct back_record rec;
    int r = load_shared(b, u->bucket, from, may_be_live, &value, &rec, e);
    if (r < 0)
        return r == -ENOENT ? -EAGAIN : r;
    if (rec.removal)
        return err_set(e, -ENOENT, "the object was removed");
    struct back_body kept = {.is_shared = true,
                             .has_tag = rec.has_tag,
                             .has_md5 = rec.has_md5,
                             .is_live = rec.is_live,
                             .acked_ns = rec.acked_ns,
                             .size_bytes = rec.size_bytes};
    memcpy(kept.md5, rec.md5, BACK_MD5_BYTES);
    memcpy(kept.tag, rec.tag, BACK_TAG_BYTES);
    struct origin_put p = {.key = to, .content_type = rec.content_type, .meta = rec.meta};
    r = origin_takes(u->origin, &p, rec.size_bytes, e);
    if (r == 0 && rec.location.n > 0) {
        r = hard_find(b->store, rec.location, &kept.hard, e);
        if (r == -ENOENT) /* nobody gave it back: what the origin has is older */
            r = err_set(e, -EIO, "the bytes of a write that is not in the origin are missing");
    }
    if (r < 0) {
        back_free_extent(b, rec.location);
        return r;
    }
    return put_record(b, u, &p, &kept, a, ret, e);
}

/* Whoever holds a place at the origin waits for nothing that senders make, who need one themselves: the place
 * goes meanwhile. It is taken again by who is busy with no key, as holders of places wait for those. */
static int settle_aside(struct back *b, struct upstream *u, struct slice key, struct err *e)
{
    _cleanup_buf_ struct buf value = BUF_INIT(BACK_RECORD_MAX_BYTES);
    struct back_record rec;
    if (!back_has(b, u->bucket->id, key) || back_load(b, u->bucket->id, key, &value, &rec, NULL) < 0 ||
        !rec.is_live)
        return 0;
    upstream_step_back(u);
    int r = back_settle_key(b, u->bucket, key, e);
    upstream_enter(u);
    return r;
}

/* Until the key has no record, also after there is a place again. */
static int wait_aside(struct back *b, struct upstream *u, struct slice key, struct err *e)
{
    int r = 0;
    for (int i = 0; r == 0 && back_has(b, u->bucket->id, key); i++) {
        if (i == READ_TRIES)
            return err_set(e, -EBUSY, "the target is being written again and again");
        upstream_step_back(u);
        r = back_wait_sent(b, u->bucket, key, e);
        upstream_enter(u);
    }
    return r;
}

/* An origin with directories takes nothing below a name that is a file there, and no file where a directory
 * is: what was removed of those around the key has to be gone there, too. */
static int wait_around(struct back *b, struct upstream *u, struct slice key, struct err *e)
{
    int r = 0;
    if (!(u->origin->capabilities & ORIGIN_HAS_DIRECTORIES))
        return 0;
    for (size_t i = 1; r == 0 && i < key.n; i++)
        if (key.p[i] == '/')
            r = wait_aside(b, u, slice_sub(key, 0, i), e);
    char *below = NULL;
    while (r == 0 && (below = back_first_below(b, u->bucket->id, key))) {
        r = wait_aside(b, u, slice_str(below), e);
        free(below);
    }
    return r;
}

/* By the origin. What is written to the target meanwhile, over what was there before, is no conflict with it:
 * it follows. -EAGAIN: the target has a record by now. */
static int copy_there(struct back *b, struct upstream *u, struct slice from, struct slice to, struct arena *a,
                      struct origin_attr *ret, struct err *e)
{
    if (u->bucket->p.write != BUCKET_WRITE_BACK)
        return origin_copy(u->origin, from, to, SLICE_NULL, a, ret, e);
    struct back_entry *x = back_begin_changing(b, u->bucket->id, to);
    if (!x)
        return -EAGAIN;
    int r = origin_copy(u->origin, from, to, SLICE_NULL, a, ret, e);
    back_end_changing(b, x, u->bucket, SLICE_NULL, r == 0 ? ret->etag : SLICE_NULL);
    return r;
}

static int layer_copy(void *arg, struct upstream *u, struct slice from, struct slice to, struct arena *a,
                      struct origin_attr *ret, struct err *e)
{
    struct back *b = CAST_MAGIC(back, arg, BACK_MAGIC);
    int r = settle_aside(b, u, from, e);
    if (r < 0)
        return r;
    for (int i = 0; i < READ_TRIES && back_has(b, u->bucket->id, from); i++) {
        r = copy_here(b, u, from, to, /* may_be_live= */ false, a, ret, e);
        if (r != -EAGAIN)
            return r;
    }
    for (int i = 0; i < READ_TRIES; i++) {
        r = wait_aside(b, u, to, e); /* the origin copies by itself: nothing older may follow it */
        r = r < 0 ? r : wait_around(b, u, to, e);
        r = r < 0 ? r : copy_there(b, u, from, to, a, ret, e);
        if (r != -EAGAIN)
            return r;
    }
    return err_set(e, -EBUSY, "the target is being written again and again");
}

int back_copy_moved(struct back *b, struct upstream *u, struct slice from, struct slice to, struct arena *a,
                    struct origin_attr *ret, struct err *e)
{
    return back_has(b, u->bucket->id, from) ? copy_here(b, u, from, to, /* may_be_live= */ true, a, ret, e)
                                            : -EAGAIN;
}

/* ---- metadata ---- */

/* The record says so from now on, of the same bytes. -EAGAIN: there is no record. */
static int set_meta_here(struct back *b, struct upstream *u, const struct origin_put *p, struct arena *a,
                         struct origin_attr *ret, struct err *e)
{
    struct change c;
    bool unknown;
    int r = change_begin(&c, b, u, p->key, p->cancel, e);
    if (r == 0 && !c.had)
        r = -EAGAIN;
    if (r == 0)
        r = check_conditions(&c, p->if_match, /* if_none_match= */ false, e);
    if (r == 0)
        r = origin_takes(u->origin, p, c.old.size_bytes, e);
    if (r == 0) {
        struct back_record rec = c.old;
        rec.content_type = p->content_type;
        rec.meta = p->meta;
        r = replace(&c, &rec, &unknown, e);
        if (r == 0)
            *ret = back_attr(&rec, a);
    }
    change_end(&c);
    return r;
}

/* Of what is in the origin. -EAGAIN: it has a record by now. */
static int set_meta_there(struct back *b, struct upstream *u, const struct origin_put *p, uint64_t size_bytes,
                          struct arena *a, struct origin_attr *ret, struct err *e)
{
    if (u->bucket->p.write != BUCKET_WRITE_BACK)
        return origin_set_meta(u->origin, p, size_bytes, a, ret, e);
    struct back_entry *x = back_begin_changing(b, u->bucket->id, p->key);
    if (!x)
        return -EAGAIN;
    int r = origin_set_meta(u->origin, p, size_bytes, a, ret, e);
    back_end_changing(b, x, u->bucket, p->if_match, r == 0 ? ret->etag : SLICE_NULL);
    return r;
}

/* What is in the origin already is changed there, before the answer: there are no bytes here to send again.
 */
static int layer_set_meta(void *arg, struct upstream *u, const struct origin_put *p, uint64_t size_bytes,
                          struct arena *a, struct origin_attr *ret, struct err *e)
{
    struct back *b = CAST_MAGIC(back, arg, BACK_MAGIC);
    int r = -EAGAIN;
    for (int i = 0; r == -EAGAIN && i < READ_TRIES; i++) {
        if (back_has(b, u->bucket->id, p->key))
            r = set_meta_here(b, u, p, a, ret, e);
        if (r == -EAGAIN)
            r = set_meta_there(b, u, p, size_bytes, a, ret, e);
    }
    return r == -EAGAIN ? err_set(e, ERR_PRECONDITION, "the object is being written again and again") : r;
}

const struct upstream_layer back_layer = {.get = layer_get,
                                          .list = back_layer_list,
                                          .put = layer_put,
                                          .remove = layer_remove,
                                          .copy = layer_copy,
                                          .set_meta = layer_set_meta};

/*
 * The object service: what it holds, and the one way in.
 *
 * Invariants:
 *  1. Only object_call decides where an operation runs; alone the answer is always "here", or in loop mode
 * "here, by way of encode, socket and decode", so that no operation can come to depend on sharing memory with
 * its caller.
 *  2. What a session's user may not do is refused there too, before anything else happens (access.c).
 *  3. What concerns a scratch bucket, or a handle of one, goes to scratch_route.c; nothing else here knows
 * that there are such buckets.
 *  4. At most one thread at a time asks the origin what an object is (openings): of a thousand opens of a
 * cold object one goes out and the others find its entry.
 */
#include "object/back.h"
#include "object/scratch_node.h"
#include "object/stranded.h"
#include "object/unfinished.h"
#include "object/upload_here.h"

#include "base/hash.h"
#include "base/le.h"
#include "base/log.h"
#include "base/sys.h"

#include <malloc.h>

#define FILL_THREADS_MAX   256 /* for one bucket alone half of them */
#define UPLOAD_SHARE       4 /* one part in so many of the memory budget, for parts of uploads on their way */
#define VALUES_SHARE       3 /* an eighth of --memory; nothing of it is used before values are put */
#define NOTE_ARENA         (64 * KIB)
#define START_KEY          SLICE_LIT("n/start") /* in the control store: 16 bytes, its last start */
#define CACHED_PAGE        1000 /* objects of the cache that are looked at at a time, and memory for their keys */
#define CACHED_ARENA       (8 * MIB)
#define TRIM_AT            16 /* connections that end together, from which on their memory is given back */
#define MIRROR_CACHE_SHARE 16 /* one part in so many of the memory budget; names of scratch as much */

void object_note_forgetful(struct object_service *s)
{
    uint64_t n = store_n_forgetful(s->config.store);
    if (n == atomic_load(&s->forgetful))
        return;
    struct id128 none;
    struct err e = {0};
    id_new(&none); /* no disk was used last by that start */
    _cleanup_(kv_txn_freep) struct kv_txn *t = kv_txn_new(s->config.control);
    kv_txn_put_plain(t, START_KEY, slice_of(none.b, sizeof(none.b)));
    if (kv_txn_commit(t, KV_DURABLE, &e) == 0)
        atomic_store(&s->forgetful, n);
    else
        log_error("object",
                  "a disk failed, and that cannot be noted: what is removed or replaced now may be there "
                  "again after the next start: %s",
                  e.text);
}

static void on_version_changed(void *arg, struct upstream *u, struct slice key, struct extent *x)
{
    struct object_service *s = arg;
    if (x)
        store_remove_extent(s->config.store, x);
    mirror_changed(s->mirror, u->bucket, key);
    watch_changed(s, u->bucket, key);
}

static void on_fetched(void *arg, struct upstream *u, struct slice key, uint64_t bytes)
{
    struct object_service *s = arg;
    usage_fetched(s->usage, u->bucket->id, key, bytes);
}

/* Disks that were away since the last start of this control store may have what was replaced or removed
 * meanwhile; those of another one, what other buckets held that had the same ids. */
static int note_start(struct object_service *s, struct err *e)
{
    struct kv *kv = s->config.control;
    struct id128 last = {{0}}, now;
    _cleanup_buf_ struct buf b = BUF_INIT(sizeof(last.b));
    int r = kv_get(kv, START_KEY, &b, NULL, e);
    if (r < 0 && r != -ENOENT)
        return r;
    if (b.n == sizeof(last.b))
        memcpy(last.b, b.p, b.n);
    id_new(&now);
    r = store_note_start(s->config.store, last, now, e);
    if (r < 0)
        return r;
    s->doubted_before_ns = store_doubted_before_ns(s->config.store);
    _cleanup_(kv_txn_freep) struct kv_txn *t = kv_txn_new(kv);
    kv_txn_put_plain(t, START_KEY, slice_of(now.b, sizeof(now.b)));
    return kv_txn_commit(t, KV_DURABLE, e);
}

static void init_locks(struct object_service *s)
{
    lock_init(&s->lock, LOCK_OBJECT);
    lock_init(&s->watch_lock, LOCK_LEAF);
    lock_init(&s->expire_lock, LOCK_LEAF);
    lock_init(&s->walk_lock, LOCK_STEWARD);
    lock_init(&s->quota_lock, LOCK_OBJECT);
    lock_init(&s->keep_lock, LOCK_LEAF);
    lock_init(&s->upload_lock, LOCK_OBJECT);
    cond_init(&s->upload_ended);
    for (size_t i = 0; i < OBJECT_STRIPES; i++) {
        lock_init(&s->stripes[i].lock, LOCK_OBJECT);
        cond_init(&s->stripes[i].ended);
    }
}

int object_service_open(const struct object_config *config, struct object_service **ret, struct err *e)
{
    struct object_service *s = calloc(1, sizeof(*s));
    assert(s);
    s->magic = OBJECT_SERVICE_MAGIC;
    s->config = *config;
    atomic_init(&s->of_users_max, OBJECT_OF_USERS_MAX);
    s->crowd.most = config->gate.waiting;
    init_locks(s);
    moved_init(&s->moved);
    s->lookups = lookups_new();
    s->gate = gate_new(&config->gate);
    s->services = service_table_new();
    s->values = values_new(budget_total(config->budget) / VALUES_SHARE);
    s->value_budget = budget_new(values_max_bytes(s->values) / 2);
    s->part_budget = budget_new(budget_total(config->budget) / UPLOAD_SHARE);
    int r = bucket_table_open(config->control, config->seal, &s->buckets, e);
    if (r == 0)
        r = user_table_open(config->control, &s->users, e);
    if (r == 0)
        r = note_start(s, e);
    if (r == 0)
        r = intents_open(s, &s->intents, e);
    if (r == 0)
        r = unfinished_open(s, &s->unfinished, e);
    if (r < 0) {
        object_service_close(s);
        return r;
    }
    uint64_t cache_bytes = budget_total(config->budget) / MIRROR_CACHE_SHARE;
    s->mirror = mirror_new(cache_bytes);
    mirror_on_learned(s->mirror, watch_listens, watch_learned, s);
    s->fills = fill_engine_new(config->budget, FILL_THREADS_MAX, on_version_changed, s);
    if (config->route == OBJECT_ROUTE_LOOP)
        s->loop = route_loop_new();
    store_on_gone(config->store, watch_note, s);
    store_on_evict(config->store, keep_from, keep_removed, s);
    fill_engine_on_fetched(s->fills, on_fetched);
    s->usage = usage_new(config->control);
    s->scrub = scrub_start(s, config->scrub_bytes_per_s);
    s->hasher = hasher_start(/* processors= */ 0);
    r = back_open(s, &s->back, e); /* protects what it needs before the sweep of snode_open */
    if (r == 0)
        r = stranded_open(s, e);
    if (r == 0)
        r = upload_here_open(s, e);
    if (r == 0)
        r = snode_open(s, &s->scratch, e);
    if (r < 0) {
        object_service_close(s);
        return r;
    }
    s->steward =
        steward_start(s); /* not sooner: he looks after what was opened here, however long that took */
    back_start(s->back);
    scrub_begin(s->scrub);
    shaped_look(s);
    *ret = s;
    return 0;
}

void object_service_close(struct object_service *s)
{
    if (!s)
        return;
    assert(s->magic == OBJECT_SERVICE_MAGIC);
    assert(!s->sessions);
    back_stop(s->back);
    scrub_stop(s->scrub);
    steward_stop(s->steward);
    store_on_gone(s->config.store, NULL, NULL);
    store_on_evict(s->config.store, NULL, NULL, NULL);
    route_loop_free(s->loop);
    snode_close(s->scratch);
    if (s->fills)
        fill_engine_stop(s->fills);
    fill_engine_free(s->fills);
    while (s->upstreams) {
        struct upstream_slot *slot = s->upstreams;
        s->upstreams = slot->next;
        upstream_unref(slot->upstream);
        free(slot);
    }
    back_close(s->back);
    intents_close(s->intents);
    unfinished_close(s->unfinished);
    hasher_stop(s->hasher);
    mirror_free(s->mirror);
    bucket_table_close(s->buckets);
    user_table_close(s->users);
    for (size_t i = 0; i < OBJECT_STRIPES; i++) {
        lock_fini(&s->stripes[i].lock);
        cond_fini(&s->stripes[i].ended);
    }
    usage_free(s->usage);
    quota_free(s);
    sobject_expire_free(s);
    keep_free(s);
    upload_slots_free(s);
    service_table_free(s->services);
    gate_free(s->gate);
    values_free(s->values);
    budget_free(s->value_budget);
    budget_free(s->part_budget);
    moved_fini(&s->moved);
    lookups_free(s->lookups);
    cond_fini(&s->upload_ended);
    lock_fini(&s->upload_lock);
    lock_fini(&s->keep_lock);
    lock_fini(&s->quota_lock);
    lock_fini(&s->walk_lock);
    lock_fini(&s->expire_lock);
    lock_fini(&s->watch_lock);
    lock_fini(&s->lock);
    s->magic = 0;
    free(s);
}

struct hasher *object_hasher(struct object_service *s)
{
    assert(s->magic == OBJECT_SERVICE_MAGIC);
    return s->hasher;
}

/* ---- dispatch ---- */

void subject_find_bucket(struct subject *s, struct slice name)
{
    _cleanup_(bucket_unrefp) struct bucket *b = NULL;
    if (s->has_bucket)
        return;
    s->has_bucket = true;
    if (bucket_find(s->session->service->buckets, name, &b, NULL) < 0)
        return;
    s->is_memory = bucket_is_memory(b);
    s->is_scratch = bucket_is_scratch(b);
}

enum handle_kind subject_kind(struct subject *s, uint64_t handle)
{
    if (!s->has_kind)
        s->kind = handle != 0 ? session_kind(s->session, handle) : HANDLE_FREE;
    s->has_kind = true;
    return s->kind;
}

static int run(struct object_session *ses, uint32_t op, const void *req, struct arena *a, void *rep,
               struct err *e)
{
    struct subject s = {.session = ses};
    if (value_is_its(&s, op, req))
        return value_call(ses, op, req, a, rep, e);
    if (scratch_is_its(&s, op, req))
        return scratch_call_local(ses, op, req, a, rep, e);
    if (through_is_its(&s, op, req))
        return through_call(ses, op, req, a, rep, e);
    switch (op) {
#define X(NAME, name, number)                                                                                \
    case WIRE_OP_##NAME: {                                                                                   \
        struct wire_##name##_rep *typed = rep;                                                               \
        *typed = (struct wire_##name##_rep){.fd = -1};                                                       \
        return op_##name(ses, req, a, typed, e);                                                             \
    }
        WIRE_OPS(X)
#undef X
    default:
        return err_set(e, ERR_PROTOCOL, "operation %u is not one of ours", op);
    }
}

/* Whether the change may be asked for again by whoever asks for it, and is known then (intent.h). */
static bool is_numbered(const struct object_session *ses, uint64_t request_id)
{
    return ses->is_remote && ses->family != 0 && request_id & WIRE_NUMBERED;
}

/* Of a change of names, and of metadata, by other clients than S3's. */
static bool is_known_again(const struct object_session *ses, uint32_t op, const void *req)
{
    const struct wire_copy_req *copy = req;
    switch ((enum wire_op)op) {
    case WIRE_OP_REMOVE:
        return is_numbered(ses, ((const struct wire_remove_req *)req)->request_id);
    case WIRE_OP_COPY:
        return copy->flags & WIRE_MOVE && is_numbered(ses, copy->request_id);
    case WIRE_OP_MKDIR:
        return is_numbered(ses, ((const struct wire_mkdir_req *)req)->request_id);
    case WIRE_OP_RMDIR:
        return is_numbered(ses, ((const struct wire_rmdir_req *)req)->request_id);
    case WIRE_OP_SET_META:
        return is_numbered(ses, ((const struct wire_set_meta_req *)req)->request_id);
    default:
        return false;
    }
}

/* Whether a thread of the front waits for an origin while it does that for a client. Of changes that other
 * clients than S3's ask for the commits of bodies count, and what mounts ask for under a number: what became
 * of a name must not be left open. */
static bool is_crowded(const struct object_session *ses, uint32_t op, const void *req)
{
    bool is_s3 = ses->via == WIRE_VIA_S3;
    switch ((enum wire_op)op) {
    case WIRE_OP_OPEN:
    case WIRE_OP_FETCH:
    case WIRE_OP_STAT:
    case WIRE_OP_LIST:
    case WIRE_OP_PUT_COMMIT:
        return is_s3 || ses->is_remote;
    case WIRE_OP_PUT_OPEN:
    case WIRE_OP_PUT_WRITE:
    case WIRE_OP_UPLOAD_CREATE:
    case WIRE_OP_UPLOAD_PART:
    case WIRE_OP_UPLOAD_WRITE:
    case WIRE_OP_UPLOAD_END:
    case WIRE_OP_UPLOAD_COMPLETE:
    case WIRE_OP_UPLOAD_ABORT:
    case WIRE_OP_UPLOAD_COPY:
    case WIRE_OP_COPY_FROM:
    case WIRE_OP_SET_TAGS:
    case WIRE_OP_TAGS:
    case WIRE_OP_PART:
    case WIRE_OP_REMOVE_SINCE:
        return is_s3;
    case WIRE_OP_REMOVE:
    case WIRE_OP_COPY:
    case WIRE_OP_SET_META:
        return is_s3 || is_known_again(ses, op, req);
    case WIRE_OP_MKDIR:
    case WIRE_OP_RMDIR:
        return is_known_again(ses, op, req);
    default:
        return false;
    }
}

/* What clients other than S3's do when they are given up: ERR_CLOSED: they ask again by themselves. A body of
 * which the origin may have all is sent again only where that makes no difference. */
static int crowded_out(struct object_session *ses, uint32_t op, const void *req)
{
    bool again =
        op != WIRE_OP_PUT_COMMIT || writer_may_repeat(ses, ((const struct wire_put_commit_req *)req)->handle);
    return again && ses->via != WIRE_VIA_S3 ? ERR_CLOSED : ERR_ORIGIN_BUSY;
}

void object_wait_begin(struct object_session *ses, struct object_wait *w)
{
    *w = (struct object_wait){.quit = {.turn = &w->turn}, .before = quit_use(&ses->quit)};
    quit_turn_begin(&w->turn, &ses->service->crowd);
    quit_enter(&w->quit);
}

bool object_wait_end(struct object_wait *w)
{
    quit_leave(&w->quit);
    (void)quit_use(w->before);
    return quit_turn_end(&w->turn);
}

/* So that the threads of the front do not all wait for an origin that hangs. S3 clients are told to slow
 * down, others ask again by themselves. */
static int run_in_crowd(struct object_session *ses, uint32_t op, const void *req, struct arena *a, void *rep,
                        struct err *e)
{
    struct object_wait wait;
    object_wait_begin(ses, &wait);
    int r = run(ses, op, req, a, rep, e);
    bool given_up = object_wait_end(&wait);
    bool is_cut = r == -ECANCELED || (r == -ETIMEDOUT && is_known_again(ses, op, req)); /* back_wait_sent */
    if (!is_cut || !given_up)
        return r;
    metrics_count(METRIC_CROWD_REFUSED, "origins", NULL, NULL);
    return err_set(e, crowded_out(ses, op, req),
                   "half of the threads of this node wait for origins that do not answer; slow down");
}

int object_call_local(struct object_session *ses, uint32_t op, const void *req, struct arena *a, void *rep,
                      struct err *e)
{
    const struct quit *before = quit_use(&ses->quit);
    int r = is_crowded(ses, op, req) ? run_in_crowd(ses, op, req, a, rep, e) : run(ses, op, req, a, rep, e);
    scratch_tell_change(ses, op, req); /* also after a failure: it may have happened */
    (void)quit_use(before);
    return r;
}

int object_call(struct object_session *ses, uint32_t op, const void *req, struct arena *a, void *rep,
                struct err *e)
{
    assert(ses->magic == OBJECT_SESSION_MAGIC);
    int r = access_check(ses, op, req, e);
    if (r < 0)
        return r;
    struct object_service *s = ses->service;
    bool noted = scrub_enter(s, op);
    r = s->loop ? route_loop_call(s->loop, ses, op, req, a, rep, e)
                : object_call_local(ses, op, req, a, rep, e);
    if (noted)
        scrub_leave(s);
    return r;
}

/* CHALLENGE and HELLO open a connection; the server answers them before there is a session. */
int op_challenge(struct object_session *ses, const struct wire_challenge_req *req, struct arena *a,
                 struct wire_challenge_rep *rep, struct err *e)
{
    (void)ses, (void)req, (void)a, (void)rep;
    return err_set(e, ERR_PROTOCOL, "CHALLENGE is only understood before HELLO");
}

int op_hello(struct object_session *ses, const struct wire_hello_req *req, struct arena *a,
             struct wire_hello_rep *rep, struct err *e)
{
    (void)ses, (void)req, (void)a, (void)rep;
    return err_set(e, ERR_PROTOCOL, "HELLO is only understood as the first operation");
}

int op_end_siblings(struct object_session *ses, const struct wire_end_siblings_req *req, struct arena *a,
                    struct wire_end_siblings_rep *rep, struct err *e)
{
    (void)ses, (void)req, (void)a, (void)rep;
    return err_set(e, ERR_PROTOCOL, "END_SIBLINGS is answered by who has the connections");
}

/* ---- upstreams ---- */

static struct upstream_slot **find_slot_locked(struct object_service *s, uint64_t bucket_id)
{
    struct upstream_slot **at = &s->upstreams;
    while (*at && (*at)->upstream->bucket->id != bucket_id)
        at = &(*at)->next;
    return at;
}

/* Puts `u` (NULL: nothing) in the place of what the bucket had. Takes over the reference. */
static void replace_upstream(struct object_service *s, uint64_t bucket_id, struct upstream *u)
{
    struct upstream_slot *fresh = u ? calloc(1, sizeof(*fresh)) : NULL;
    assert(!u || fresh);
    lock_take(&s->lock);
    struct upstream_slot **at = find_slot_locked(s, bucket_id), *old = *at;
    if (old)
        *at = old->next;
    if (fresh) {
        fresh->upstream = u;
        fresh->next = s->upstreams;
        s->upstreams = fresh;
    }
    lock_drop(&s->lock);
    if (old)
        upstream_unref(old->upstream);
    free(old);
}

void object_forget_upstream(struct object_service *s, uint64_t bucket_id)
{
    replace_upstream(s, bucket_id, NULL);
}

/* What the bucket has: of its present properties, or of earlier ones until somebody asks. NULL: nothing. */
static struct upstream *upstream_known(struct object_service *s, const struct bucket *b)
{
    LOCK_SCOPE(&s->lock);
    struct upstream_slot *slot = *find_slot_locked(s, b->id);
    return slot ? upstream_ref(slot->upstream) : NULL;
}

void object_rest_origins(struct object_service *s)
{
    size_t n = 0, i = 0;
    lock_take(&s->lock);
    for (struct upstream_slot *x = s->upstreams; x; x = x->next)
        n++;
    struct upstream **all = calloc(n + 1, sizeof(struct upstream *));
    assert(all);
    for (struct upstream_slot *x = s->upstreams; x; x = x->next)
        all[i++] = upstream_ref(x->upstream);
    lock_drop(&s->lock);
    uint64_t now_ms = sys_mono_ms();
    size_t ended = 0;
    for (i = 0; i < n; i++) {
        ended += origin_rest(all[i]->origin, now_ms);
        upstream_unref(all[i]);
    }
    free(all);
    if (ended >= TRIM_AT)
        (void)malloc_trim(0); /* what they had lies between what others have: free, and the process's still */
}

int object_upstream(struct object_service *s, struct slice bucket, struct upstream **ret, struct err *e)
{
    _cleanup_(bucket_unrefp) struct bucket *b = NULL;
    int r = bucket_find(s->buckets, bucket, &b, e);
    if (r < 0)
        return r;
    _cleanup_(upstream_unrefp) struct upstream *known = upstream_known(s, b);
    struct upstream *u = known && known->bucket == b ? TAKE_PTR(known) : NULL;
    if (!u) {
        r = upstream_open(b, &u, e);
        if (r < 0)
            return err_prefix(e, r, "bucket %s", b->name);
        upstream_join(u, s->services);
        if (known && !atomic_load(&b->retired))
            upstream_succeed(u, known);
        u->layer = &back_layer;
        u->layer_arg = s->back;
        u->unlimited = &s->unlimited;
        u->origin->stop_soon = &s->stopping_soon;
        u->origin->stop = &s->stopping;
        unfinished_watch(s->unfinished, u);
        if (!atomic_load(&b->retired)) /* in the place of one of older properties, or of one just as new */
            replace_upstream(s, b->id, upstream_ref(u));
    }
    *ret = u;
    return 0;
}

/* ---- keys ---- */

void object_store_key(const struct bucket *b, struct slice key, struct buf *ret)
{
    uint8_t id[8];
    be_put64(id, b->place);
    int r = buf_append(ret, id, sizeof(id));
    r = r < 0 ? r : buf_slice(ret, key);
    assert(r == 0);
}

struct slice object_store_key_in(const struct bucket *b, struct slice key, struct arena *a)
{
    uint8_t *p = arena_alloc(a, sizeof(uint64_t) + key.n);
    be_put64(p, b->place);
    if (key.n > 0)
        memcpy(p + sizeof(uint64_t), key.p, key.n);
    return slice_of(p, sizeof(uint64_t) + key.n);
}

int object_each_cached(struct object_service *s, const struct bucket *b, object_cached_fn fn, void *arg)
{
    _cleanup_buf_ struct buf prefix = BUF_INIT(16), after = BUF_INIT(STORE_KEY_MAX_BYTES);
    _cleanup_(arena_freep) struct arena *a = arena_new(CACHED_ARENA);
    _cleanup_free_ struct store_listed *page = calloc(CACHED_PAGE, sizeof(*page));
    assert(page);
    object_store_key(b, SLICE_NULL, &prefix);
    int64_t n = CACHED_PAGE;
    while (n == CACHED_PAGE) {
        if (atomic_load(&b->retired))
            return -ECANCELED;
        arena_clear(a);
        n = store_list(s->config.store, buf_view(&prefix), buf_view(&after), CACHED_PAGE, a, page);
        for (int64_t i = 0; i < n; i++)
            fn(arg, &page[i]);
        buf_clear(&after);
        if (n > 0 && buf_slice(&after, page[n - 1].key) < 0)
            n = -E2BIG;
    }
    return n < 0 ? (int)n : 0;
}

static struct object_stripe *stripe_of_key(struct object_service *s, const struct bucket *b, struct slice key)
{
    return &s->stripes[hash_mix(hash_table(key), b->id) % OBJECT_STRIPES];
}

static struct object_stripe *stripe_of(struct object_service *s, const struct opening *o)
{
    return stripe_of_key(s, o->bucket, o->key);
}

static bool same_key(const struct opening *x, const struct opening *y)
{
    return x->bucket->id == y->bucket->id && slice_eq(x->key, y->key);
}

static bool is_changing(struct object_service *s, const struct bucket *b, struct slice key)
{
    struct object_stripe *t = stripe_of_key(s, b, key);
    LOCK_SCOPE(&t->lock);
    const struct object_change *c = t->changes;
    while (c && !(c->bucket->id == b->id && slice_eq(c->key, key)))
        c = c->next;
    return c;
}

int object_encode_attr(struct object_service *s, const struct bucket *b, struct slice key,
                       const struct attr *attr, struct buf *ret)
{
    struct attr kept = *attr;
    if (is_changing(s, b, key) || back_may_rename(s->back, b->id, key, attr->etag))
        kept.confirmed_ns = 0;
    return attr_encode(&kept, ret);
}

int object_entry_attr(struct object_service *s, struct extent *x, struct arena *a, struct attr *ret)
{
    int r = attr_decode(extent_attr_in(x, a), ret);
    if (r < 0)
        return r;
    bool is_of_this_run = ret->confirmed_ns >= s->doubted_before_ns && ret->confirmed_ns <= sys->real_ns();
    if (s->doubted_before_ns > 0 && !is_of_this_run) {
        ret->confirmed_ns = 0;
        ret->has_meta = false;
    }
    return 0;
}

int object_check_key(struct slice key, struct err *e)
{
    if (key.n == 0)
        return err_set(e, -EINVAL, "key is empty");
    if (key.n > ORIGIN_KEY_MAX_BYTES)
        return err_set(e, -ENAMETOOLONG, "key is %zu bytes long, at most %d are allowed", key.n,
                       ORIGIN_KEY_MAX_BYTES);
    if (slice_find(key, '\0') >= 0) /* what is behind it would be another key's to who takes it for an end */
        return err_set(e, -EINVAL, "key with a NUL");
    return 0;
}

int object_check_meta(struct slice meta, struct err *e)
{
    if (meta.n > ORIGIN_META_MAX_BYTES)
        return err_set(e, -E2BIG, "metadata of the object is %zu bytes, at most %d are allowed", meta.n,
                       (int)ORIGIN_META_MAX_BYTES);
    return 0;
}

static bool is_opening_locked(const struct object_stripe *t, const struct opening *o)
{
    for (const struct opening *x = t->openings; x; x = x->next)
        if (same_key(x, o))
            return true;
    return false;
}

void object_opening_enter(struct object_service *s, struct opening *o)
{
    struct object_stripe *t = stripe_of(s, o);
    LOCK_SCOPE(&t->lock);
    while (is_opening_locked(t, o))
        cond_wait(&t->ended, &t->lock);
    o->next = t->openings;
    t->openings = o;
}

int object_opening_try(struct object_service *s, struct opening *o, struct err *e)
{
    struct object_stripe *t = stripe_of(s, o);
    LOCK_SCOPE(&t->lock);
    while (is_opening_locked(t, o)) {
        if (quit_is_now())
            return err_set(e, -ECANCELED, "canceled");
        (void)cond_wait_for(&t->ended, &t->lock, (uint64_t)QUIT_LOOK_MS * 1000000);
    }
    o->next = t->openings;
    t->openings = o;
    return 0;
}

void object_opening_leave(struct object_service *s, struct opening *o)
{
    struct object_stripe *t = stripe_of(s, o);
    LOCK_SCOPE(&t->lock);
    struct opening **at = &t->openings;
    while (*at != o)
        at = &(*at)->next;
    *at = o->next;
    cond_broadcast(&t->ended);
}

/* ---- entries and what overtakes them ---- */

bool object_making_begin(struct object_service *s, struct opening *o, uint64_t seen)
{
    struct object_stripe *t = stripe_of(s, o);
    LOCK_SCOPE(&t->lock);
    assert(!o->making);
    o->making = !atomic_load(&o->bucket->retired) && mirror_generation(s->mirror, o->bucket, o->key) == seen;
    return o->making;
}

bool object_making_begin_own(struct object_service *s, struct opening *o, uint64_t seen, struct slice etag)
{
    struct object_stripe *t = stripe_of(s, o);
    struct object_told told;
    lock_take(&t->lock);
    told = t->told;
    lock_drop(&t->lock);
    bool is_it = etag.n > 0 && told.before == seen && told.place == o->bucket->place &&
                 told.key_hash == hash_table(o->key) && slice_eq(slice_of(told.etag, told.etag_n), etag);
    return object_making_begin(s, o, seen) || (is_it && object_making_begin(s, o, told.made));
}

void object_making_end(struct object_service *s, struct opening *o)
{
    struct object_stripe *t = stripe_of(s, o);
    LOCK_SCOPE(&t->lock);
    assert(o->making);
    o->making = false;
    cond_broadcast(&t->ended);
}

static bool is_making_locked(const struct object_stripe *t, const struct opening *key)
{
    for (const struct opening *x = t->openings; x; x = x->next)
        if (x->making && (key ? same_key(x, key) : true))
            return true;
    return false;
}

/* Write-back asks what the origin had before a write, and has to know when there is no answer. */
static void note_before(struct object_service *s, const struct bucket *b, struct slice key)
{
    _cleanup_(arena_freep) struct arena *a = arena_new(NOTE_ARENA);
    _cleanup_buf_ struct buf k = BUF_INIT(ORIGIN_KEY_MAX_BYTES + 16);
    _cleanup_(extent_unrefp) struct extent *x = NULL;
    struct attr known;
    if (key.n > ORIGIN_KEY_MAX_BYTES)
        return;
    object_store_key(b, key, &k);
    bool is_known =
        mirror_recall_stale(s->mirror, b, key, a, &known) == 0 ||
        (store_find(s->config.store, buf_view(&k), &x) == 0 && object_entry_attr(s, x, a, &known) == 0);
    if (is_known)
        mirror_note_before(s->mirror, b, key, &known);
}

static void drop_attributes_locked(struct object_service *s, struct object_stripe *t, struct opening *o,
                                   uint64_t *ret_made)
{
    lock_assert_held(&t->lock);
    *ret_made = mirror_changed(s->mirror, o->bucket, o->key);
    while (is_making_locked(t, o)) /* from what was true before; whoever comes after sees the generation */
        cond_wait(&t->ended, &t->lock);
}

static uint64_t forget_attributes(struct object_service *s, const struct bucket *b, struct slice key)
{
    struct opening o = {.bucket = b, .key = key};
    struct object_stripe *t = stripe_of(s, &o);
    uint64_t made;
    if (b->p.write == BUCKET_WRITE_BACK)
        note_before(s, b, key);
    LOCK_SCOPE(&t->lock);
    drop_attributes_locked(s, t, &o, &made);
    return made;
}

void object_doubt_entry(struct object_service *s, struct extent *x, const struct attr *known)
{
    _cleanup_buf_ struct buf blob = BUF_INIT(ATTR_BLOB_MAX_BYTES);
    struct attr doubted = *known;
    doubted.confirmed_ns = 0;
    bool kept = attr_encode(&doubted, &blob) == 0 && extent_set_attr(x, buf_view(&blob)) == 0 &&
                extent_record_attr(x) == 0; /* those of before would be believed after kill -9 */
    if (!kept)
        store_remove_extent(s->config.store, x);
    object_note_forgetful(s);
}

void object_doubt_key(struct object_service *s, const struct bucket *b, struct slice key, struct extent *x,
                      const struct attr *known)
{
    _cleanup_buf_ struct buf k = BUF_INIT(ORIGIN_KEY_MAX_BYTES + 16);
    (void)forget_attributes(s, b, key);
    object_doubt_entry(s, x, known);
    object_store_key(b, key, &k);
    (void)watch_note(s, buf_view(&k));
    watch_changed(s, b, key);
}

void object_forget_entry(struct object_service *s, const struct bucket *b, struct slice key)
{
    _cleanup_buf_ struct buf k = BUF_INIT(ORIGIN_KEY_MAX_BYTES + 16);
    object_store_key(b, key, &k);
    (void)store_remove(s->config.store, buf_view(&k));
    object_note_forgetful(s);
}

uint64_t object_forget_key(struct object_service *s, const struct bucket *b, struct slice key)
{
    uint64_t made = forget_attributes(s, b, key);
    object_forget_entry(s, b, key);
    watch_changed(s, b, key);
    return made;
}

/* ---- changes ----
 *
 * What is seen of a key while it is changed may be from before, and is no more than that until whoever
 * changes it forgets it. A kill comes before that, so the disk has it as what is to be asked about. Makings
 * that began before the change was known are waited for: what they made is let go of with the rest. */

void object_change_begin_kept(struct object_service *s, struct object_change *c, const struct bucket *b,
                              struct slice key)
{
    struct opening o = {.bucket = b, .key = key};
    struct object_stripe *t = stripe_of(s, &o);
    *c = (struct object_change){.bucket = b, .key = key};
    LOCK_SCOPE(&t->lock);
    c->next = t->changes;
    t->changes = c;
    while (is_making_locked(t, &o))
        cond_wait(&t->ended, &t->lock);
}

void object_change_begin(struct object_service *s, struct object_change *c, const struct bucket *b,
                         struct slice key)
{
    object_change_begin_kept(s, c, b, key);
    if (b->p.write == BUCKET_WRITE_BACK)
        note_before(s, b, key);
    object_forget_entry(s, b, key);
}

void object_change_end_known(struct object_service *s, struct object_change *c)
{
    struct object_stripe *t = stripe_of_key(s, c->bucket, c->key);
    LOCK_SCOPE(&t->lock);
    struct object_change **at = &t->changes;
    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
}

void object_change_end(struct object_service *s, struct object_change *c)
{
    (void)object_forget_key(s, c->bucket, c->key);
    object_change_end_known(s, c);
}

/* ---- events ---- */

uint64_t object_settled(struct object_service *s, const struct bucket *b, struct slice key)
{
    struct opening o = {.bucket = b, .key = key};
    struct object_stripe *t = stripe_of(s, &o);
    LOCK_SCOPE(&t->lock);
    while (is_making_locked(t, &o))
        cond_wait(&t->ended, &t->lock);
    return mirror_generation(s->mirror, b, key);
}

static bool forget_told_attributes(struct object_service *s, const struct bucket *b, struct slice key,
                                   struct slice etag, uint64_t seen)
{
    struct opening o = {.bucket = b, .key = key};
    struct object_stripe *t = stripe_of(s, &o);
    uint64_t made;
    if (b->p.write == BUCKET_WRITE_BACK)
        note_before(s, b, key);
    LOCK_SCOPE(&t->lock);
    if (is_making_locked(t, &o) || mirror_generation(s->mirror, b, key) != seen)
        return false;
    drop_attributes_locked(s, t, &o, &made);
    if (etag.n == 0 || etag.n > ORIGIN_ETAG_MAX || made != seen + 1)
        return true;
    t->told = (struct object_told){
        .place = b->place, .key_hash = hash_table(key), .before = seen, .made = made, .etag_n = etag.n};
    memcpy(t->told.etag, etag.p, etag.n);
    return true;
}

bool object_forget_told(struct object_service *s, const struct bucket *b, struct slice key, struct slice etag,
                        uint64_t seen)
{
    if (!forget_told_attributes(s, b, key, etag, seen))
        return false;
    object_forget_entry(s, b, key);
    watch_changed(s, b, key);
    return true;
}

void object_await_makings(struct object_service *s)
{
    for (size_t i = 0; i < OBJECT_STRIPES; i++) {
        struct object_stripe *t = &s->stripes[i];
        LOCK_SCOPE(&t->lock);
        while (is_making_locked(t, NULL))
            cond_wait(&t->ended, &t->lock);
    }
}

int64_t object_forget_bucket(struct object_service *s, const struct bucket *b)
{
    mirror_forget_bucket(s->mirror, b);
    object_await_makings(s);
    _cleanup_buf_ struct buf prefix = BUF_INIT(16);
    object_store_key(b, SLICE_NULL, &prefix);
    int64_t n = store_remove_prefix(s->config.store, buf_view(&prefix));
    watch_end_bucket(s, b->id);
    return n;
}

bool object_heard_otherwise(struct object_service *s, const struct bucket *b, struct slice key,
                            const struct attr *known, struct arena *a)
{
    struct attr heard;
    if (mirror_recall(s->mirror, b, key, a, &heard) < 0 || heard.is_directory)
        return false;
    bool same =
        !heard.is_absent && slice_eq(heard.etag, known->etag) && heard.size_bytes == known->size_bytes;
    return !same && heard.confirmed_ns > known->confirmed_ns;
}

const char *object_via_name(uint32_t via)
{
    return via == WIRE_VIA_S3 ? "s3" : via == WIRE_VIA_MOUNT ? "mount" : "api";
}

/* The table counts for itself, without a cache line that all of its readers share. */
static void refresh_values(struct values *v)
{
    struct values_count c = values_count(v);
    metrics_set(metrics_series(METRIC_VALUES_BYTES, NULL, NULL, NULL), (int64_t)c.bytes);
    metrics_set(metrics_series(METRIC_VALUES, NULL, NULL, NULL), (int64_t)c.objects);
    metrics_set(metrics_series(METRIC_VALUE_GETS, "hit", NULL, NULL), (int64_t)c.hits);
    metrics_set(metrics_series(METRIC_VALUE_GETS, "miss", NULL, NULL), (int64_t)c.misses);
    metrics_set(metrics_series(METRIC_VALUES_GONE, "evicted", NULL, NULL), (int64_t)c.evicted);
    metrics_set(metrics_series(METRIC_VALUES_GONE, "expired", NULL, NULL), (int64_t)c.expired);
    metrics_set(metrics_series(METRIC_VALUES_GONE, "replaced", NULL, NULL), (int64_t)c.replaced);
}

void object_keep_metrics(struct object_service *s)
{
    size_t n;
    _cleanup_free_ const char **names = bucket_labels(s->buckets, &n);
    metrics_keep_buckets(names, n);
}

void object_service_refresh_metrics(struct object_service *s)
{
    object_keep_metrics(s);
    refresh_values(s->values);
    back_refresh_metrics(s->back);
    metrics_set(metrics_series(METRIC_HANDLES, "read", NULL, NULL), (int64_t)atomic_load(&s->readers));
    metrics_set(metrics_series(METRIC_HANDLES, "write", NULL, NULL), (int64_t)atomic_load(&s->writers));
    metrics_set(metrics_series(METRIC_MEMORY_BUDGET_BYTES, "used", NULL, NULL),
                (int64_t)budget_used(s->config.budget));
    metrics_set(metrics_series(METRIC_MEMORY_BUDGET_BYTES, "total", NULL, NULL),
                (int64_t)budget_total(s->config.budget));
    snode_refresh_metrics(s->scratch);
}

/* Operations on buckets. A mirror is made only when its origin answers, and gets another origin only when
 * that one does, so that a wrong URL or key shows at once, before anything is written down or dropped; a
 * bucket without origin is a scratch bucket. */
#include "object/back.h"
#include "object/scratch_node.h"
#include "object/stranded.h"
#include "object/unfinished.h"
#include "object/upload_here.h"

#include "base/log.h"
#include "base/sys.h"
#include "base/text.h"
#include "origin/origin_check.h"

#define SETTINGS_MAX_BYTES (64 * KIB)
#define PAGE_BUCKETS       1000
#define PAGE_MAX_BYTES     (2 * MIB)
#define GUEST_ANSWER_BYTES (64 * KIB)

/* Whether another node leads back here: below a name of which none on the way remembers anything. */
static int probe_way(struct upstream *u, struct arena *a, struct err *e)
{
    uint8_t random[8];
    char prefix[32] = ".forebay-way-";
    struct origin_page page;
    sys->random(random, sizeof(random));
    text_hex(random, sizeof(random), prefix + strlen(prefix));
    struct origin_list l = {.prefix = slice_str(prefix), .max = 1};
    return origin_list(u->origin, &l, a, &page, e);
}

static void probing_begin(struct object_service *s, struct probing *x)
{
    LOCK_SCOPE(&s->lock);
    x->next = s->probing;
    s->probing = x;
}

static void probing_end(struct object_service *s, struct probing *x)
{
    LOCK_SCOPE(&s->lock);
    struct probing **at = &s->probing;
    while (*at != x)
        at = &(*at)->next;
    *at = x->next;
}

/* Whether a request for the bucket follows on the question whether an origin may become that bucket's. */
static bool is_probing(struct object_service *s, struct slice bucket, struct slice trail)
{
    LOCK_SCOPE(&s->lock);
    for (const struct probing *x = s->probing; x; x = x->next)
        if (slice_eq(bucket, x->bucket) && trail_has(trail, x->name))
            return true;
    return false;
}

/* Asks for one entry: shows that the origin is there, the bucket exists and the keys are right. */
static int probe(struct object_service *s, struct bucket *b, struct arena *a, struct err *e)
{
    _cleanup_(upstream_unrefp) struct upstream *u = NULL;
    int r = upstream_open(b, &u, e);
    if (r < 0)
        return r;
    struct origin_list l = {.max = 1};
    struct origin_page page;
    struct probing probing = {.bucket = slice_str(b->name), .name = u->origin->trail.own};
    probing_begin(s, &probing);
    upstream_enter(u); /* one try: a person waits */
    r = origin_list(u->origin, &l, a, &page, e);
    if (r == 0 && strcmp(u->origin->ops->scheme, "forebay") == 0)
        r = probe_way(u, a, e);
    upstream_leave(u, r);
    probing_end(s, &probing);
    return r;
}

/* The settings of a new bucket, and its origin if it is to have one. */
static int try_new(struct object_service *s, struct slice name, struct slice settings, struct arena *a,
                   struct err *e)
{
    _cleanup_(bucket_unrefp) struct bucket *b = NULL, *there = NULL;
    int r = bucket_preview(name, settings, &b, e);
    if (r == 0 && bucket_find(s->buckets, name, &there, NULL) == 0)
        return err_set(e, ERR_BUCKET_EXISTS, "bucket '%s' exists already", b->name);
    if (r < 0 || bucket_is_scratch(b))
        return r;
    r = probe(s, b, a, e);
    return r < 0 ? err_prefix(e, r, "bucket %s", b->name) : 0;
}

/* Of a bucket that is to get another origin, that one: what is cached is dropped for it, and what is written
 * can only go there. */
static int try_changed(struct object_service *s, struct slice name, struct slice settings, struct arena *a,
                       struct err *e)
{
    _cleanup_(bucket_unrefp) struct bucket *old = NULL, *b = NULL;
    int r = bucket_find(s->buckets, name, &old, e);
    if (r == 0)
        r = bucket_preview_of(old, settings, &b, e);
    if (r < 0 || bucket_is_scratch(b) || bucket_same_origin(old, b))
        return r;
    r = back_check_gone(s->back, old, "change its origin", e); /* what is to be done first is said first */
    if (r < 0)
        return r;
    r = probe(s, b, a, e); /* writers are not held up for it */
    return r < 0 ? err_prefix(e, r, "bucket %s stays as it was", b->name) : 0;
}

/* Takes a bucket with an origin out of the table, unless writes of it are not in the origin. */
static int remove_record(struct object_service *s, const struct bucket *b, struct err *e)
{
    int r = stranded_check_gone(s, b, "remove it", e);
    if (r == 0)
        r = back_hold(s->back, b, "remove it", e);
    if (r < 0)
        return r;
    r = bucket_delete(s->buckets, b, e);
    back_release(s->back, b);
    return r;
}

int op_bucket_create(struct object_session *ses, const struct wire_bucket_create_req *req, struct arena *a,
                     struct wire_bucket_create_rep *rep, struct err *e)
{
    struct object_service *s = ses->service;
    _cleanup_(bucket_unrefp) struct bucket *b = NULL;
    if (req->settings.n > SETTINGS_MAX_BYTES)
        return err_set(e, -E2BIG, "settings are too long");
    int r = keep_check(s, req->name, req->settings, e);
    if (r == 0)
        r = try_new(s, req->name, req->settings, a, e);
    if (r == 0)
        r = bucket_create(s->buckets, req->name, req->settings, &b, e);
    if (r < 0)
        return r;
    bool scratch = bucket_is_scratch(b);
    r = scratch ? scratch_bucket_make(s->scratch->names, b->id, b->root_mode, b->owner_uid, b->owner_gid, e)
                : 0;
    if (r < 0) {
        struct err local = {0};
        if (bucket_delete(s->buckets, b, &local) < 0)
            log_warn("object", "bucket %s stays: %s", b->name, local.text);
        return err_prefix(e, r, "bucket %s", b->name);
    }
    shaped_look(s);
    log_info("object", "bucket %s created: %s", b->name, scratch ? "scratch" : b->p.origin);
    rep->id = b->id;
    return 0;
}

/* What jobs that were killed left at its origin, or could not abort. */
static void tidy_guest(struct object_service *s, const char *name)
{
    _cleanup_(upstream_unrefp) struct upstream *u = NULL;
    if (unfinished_left(s->unfinished) > 0 && object_upstream(s, slice_str(name), &u, NULL) == 0)
        (void)unfinished_tidy(s->unfinished, u);
}

int object_guest_open(struct object_service *s, const char *label, struct slice settings, bool probe_it,
                      char ret_name[BUCKET_GUEST_NAME_SIZE], struct err *e)
{
    _cleanup_(bucket_unrefp) struct bucket *b = NULL;
    _cleanup_buf_ struct buf all = BUF_INIT(SETTINGS_MAX_BYTES);
    int r = buf_slice(&all, settings);
    r = r < 0 ? r : buf_str(&all, "\ncache=never\n");
    if (r < 0)
        return err_set(e, r, "settings are too long");
    r = bucket_guest_add(s->buckets, label, buf_view(&all), ret_name, &b, e);
    explicit_bzero(all.p, all.n);
    if (r == 0)
        tidy_guest(s, ret_name);
    if (r < 0 || !probe_it)
        return r;
    _cleanup_(arena_freep) struct arena *a = arena_new(MIB);
    r = probe(s, b, a, e);
    if (r < 0)
        object_guest_close(s, ret_name);
    return r;
}

void object_guest_close(struct object_service *s, const char *name)
{
    _cleanup_(bucket_unrefp) struct bucket *b = NULL;
    if (bucket_find(s->buckets, slice_str(name), &b, NULL) < 0)
        return;
    tidy_guest(s, name);
    (void)bucket_guest_remove(s->buckets, slice_str(name));
    object_forget_upstream(s, b->id);
    mirror_forget_bucket(s->mirror, b);
    usage_forget(s->usage, b->id);
}

int object_guest_put(struct object_session *ses, struct slice guest, const struct origin_put *p,
                     const struct origin_body *body, struct err *e)
{
    struct object_service *s = ses->service;
    _cleanup_(upstream_unrefp) struct upstream *u = NULL;
    int r = object_check_key(p->key, e);
    if (r == 0)
        r = object_check_meta(p->meta, e);
    if (r == 0)
        r = object_upstream(s, guest, &u, e);
    if (r < 0)
        return r;
    assert(bucket_keep(u->bucket, p->key) == RULE_KEEP_NEVER);
    _cleanup_(arena_freep) struct arena *a = arena_new(GUEST_ANSWER_BYTES);
    struct origin_attr answer;
    (void)atomic_fetch_add(&s->writers, 1);
    (void)object_forget_key(s, u->bucket, p->key); /* from here on the origin may have either */
    const struct quit *before = quit_use(&ses->quit);
    r = body->slow ? upstream_put_slowly(u, p, body, a, &answer, e) : upstream_put(u, p, body, a, &answer, e);
    (void)quit_use(before);
    (void)object_forget_key(s, u->bucket, p->key);
    (void)atomic_fetch_sub(&s->writers, 1);
    if (r < 0)
        return err_prefix(e, r, "%s/" SLICE_FMT, u->bucket->name, SLICE_ARG(p->key));
    metrics_add(
        metrics_series(METRIC_WRITTEN_BYTES, u->bucket->name, object_via_name((uint32_t)ses->via), NULL),
        body->size_bytes);
    return 0;
}

unsigned object_guest_capabilities(struct object_service *s, struct slice guest)
{
    _cleanup_(upstream_unrefp) struct upstream *u = NULL;
    return object_upstream(s, guest, &u, NULL) < 0 ? 0 : u->origin->capabilities;
}

int object_guest_has_tag(struct object_service *s, struct slice guest, struct slice key, struct slice name,
                         struct slice value, atomic_bool *cancel, bool *ret, struct err *e)
{
    _cleanup_(upstream_unrefp) struct upstream *u = NULL;
    int r = object_upstream(s, guest, &u, e);
    return r < 0 ? r : upstream_has_tag(u, key, name, value, cancel, ret, e);
}

/* Encodes what `u` may see of the buckets after `after`, until max of them are there: how many, or an error.
 * *ret_more: there may be further ones. */
static ssize_t encode_buckets(struct object_service *s, const struct user *u, struct slice after, size_t max,
                              struct arena *a, struct buf *out, bool *ret_more)
{
    struct bucket **page = arena_alloc(a, PAGE_BUCKETS * sizeof(*page));
    char last[BUCKET_NAME_MAX + 1];
    size_t n, taken = 0;
    int r = 0;
    *ret_more = false;
    do {
        n = bucket_page(s->buckets, after, page, PAGE_BUCKETS);
        for (size_t i = 0; i < n; i++) {
            struct wire_bucket w = {.name = slice_str(page[i]->name),
                                    .origin = slice_str(page[i]->p.origin),
                                    .created_ns = page[i]->created_ns};
            (void)snprintf(last, sizeof(last), "%s", page[i]->name);
            after = slice_str(last);
            if (r == 0 && user_may(u, USER_MAY_READ, w.name)) {
                *ret_more = taken == max;
                r = taken == max ? 0 : wire_bucket_encode(&w, out);
                taken += !*ret_more;
            }
            bucket_unref(page[i]);
        }
    } while (r == 0 && n == PAGE_BUCKETS && !*ret_more);
    return r < 0 ? r : (ssize_t)taken;
}

int op_bucket_list(struct object_session *ses, const struct wire_bucket_list_req *req, struct arena *a,
                   struct wire_bucket_list_rep *rep, struct err *e)
{
    _cleanup_(user_unrefp) struct user *u = NULL;
    _cleanup_buf_ struct buf out = BUF_INIT(PAGE_MAX_BYTES);
    bool more;
    int r = access_user(ses, &u, e);
    if (r < 0)
        return r;
    ssize_t n = encode_buckets(ses->service, u, req->after, PAGE_BUCKETS, a, &out, &more);
    if (n < 0)
        return err_set(e, (int)n, "listing of buckets is too long");
    rep->buckets = arena_dup(a, buf_view(&out));
    rep->truncated = more;
    return 0;
}

bool object_bucket_lifecycle(struct object_service *s, struct slice bucket, struct buf *ret)
{
    _cleanup_(bucket_unrefp) struct bucket *b = NULL;
    if (!bucket_any_lifecycle(s->buckets)) /* each GET asks */
        return false;
    if (bucket_find(s->buckets, bucket, &b, NULL) < 0 || !b->p.s3_lifecycle)
        return false;
    if (buf_str(ret, b->p.s3_lifecycle) < 0)
        buf_clear(ret);
    return bucket_is_scratch(b);
}

bool object_follow_trail(struct object_service *s, struct slice bucket, struct slice trail)
{
    _cleanup_(bucket_unrefp) struct bucket *b = NULL;
    _cleanup_(upstream_unrefp) struct upstream *u = NULL;
    if (is_probing(s, bucket, trail))
        return false;
    if (bucket_find(s->buckets, bucket, &b, NULL) < 0 || bucket_is_scratch(b) ||
        object_upstream(s, bucket, &u, NULL) < 0)
        return true;
    if (trail_has(trail, u->origin->trail.own))
        return false;
    trail_note(&u->origin->trail, trail, sys_mono_ms());
    return true;
}

int op_bucket_get(struct object_session *ses, const struct wire_bucket_get_req *req, struct arena *a,
                  struct wire_bucket_get_rep *rep, struct err *e)
{
    _cleanup_(bucket_unrefp) struct bucket *b = NULL;
    int r = bucket_find(ses->service->buckets, req->name, &b, e);
    if (r < 0)
        return r;
    _cleanup_buf_ struct buf out = BUF_INIT(BUCKET_SETTINGS_MAX);
    r = bucket_settings(b, /* show_secrets= */ false, &out);
    if (r < 0)
        return err_set(e, r, "settings of bucket %s are too long", b->name);
    rep->id = b->id;
    rep->created_ns = b->created_ns;
    rep->settings = arena_dup(a, buf_view(&out));
    return 0;
}

/* Owner and permissions of a scratch bucket's root directory, where they were changed. */
static int set_root(struct object_service *s, const struct bucket *old, const struct bucket *b,
                    struct arena *a, struct err *e)
{
    struct scratch_call call = {.bucket = b->id, .commit = KV_DURABLE};
    struct scratch_set set = {.mode = b->root_mode, .uid = b->owner_uid, .gid = b->owner_gid};
    struct scratch_inode x;
    if (old->owner_uid != b->owner_uid || old->owner_gid != b->owner_gid)
        set.what |= SCRATCH_SET_UID | SCRATCH_SET_GID;
    if (old->root_mode != b->root_mode)
        set.what |= SCRATCH_SET_MODE;
    return set.what ? scratch_setattr(s->scratch->names, &call, SCRATCH_ROOT, &set, a, &x, e) : 0;
}

static bool is_rule(struct slice name)
{
    return slice_eq_str(name, "cache") || slice_eq_str(name, "rules"); /* what is never cached */
}

static bool is_ttl(struct slice name)
{
    return slice_eq_str(name, "ttl");
}

/* Whether one of the settings is such. */
static bool names_one(struct slice settings, bool (*is_such)(struct slice name))
{
    while (settings.n > 0) {
        struct slice line = slice_split(&settings, '\n'), name = slice_split(&line, '=');
        if (is_such(name))
            return true;
    }
    return false;
}

/* Objects keep the ends that they were given while their bucket has had a ttl, and are to be freed then. */
static int note_ttl(struct object_service *s, const struct bucket *old, struct slice settings, struct err *e)
{
    bool has_files = bucket_is_scratch(old) && !bucket_is_memory(old);
    return has_files && names_one(settings, is_ttl) ? scratch_note_ttl(s->scratch->names, old->id, e) : 0;
}

int op_bucket_set(struct object_session *ses, const struct wire_bucket_set_req *req, struct arena *a,
                  struct wire_bucket_set_rep *rep, struct err *e)
{
    (void)rep;
    struct object_service *s = ses->service;
    _cleanup_(bucket_unrefp) struct bucket *old = NULL, *b = NULL;
    if (req->settings.n > SETTINGS_MAX_BYTES)
        return err_set(e, -E2BIG, "settings are too long");
    int r = names_one(req->settings, bucket_is_place) ? try_changed(s, req->name, req->settings, a, e) : 0;
    if (r == 0)
        r = bucket_find(s->buckets, req->name, &old, e);
    bool held = r == 0 && names_one(req->settings, bucket_is_place);
    if (held && (r = back_hold(s->back, old, "change its origin", e)) < 0)
        return r;
    if (r == 0)
        r = keep_check(s, req->name, req->settings, e);
    if (r == 0)
        r = note_ttl(s, old, req->settings, e);
    if (r == 0)
        r = bucket_change(s->buckets, req->name, req->settings, &b, e);
    if (held)
        back_release(s->back, old);
    if (r < 0)
        return r;
    shaped_look(s);
    if (b->p.keep > 0)
        steward_hurry(s->steward); /* until it has counted, everything of the bucket is held */
    if (bucket_is_scratch(b)) {
        r = set_root(s, old, b, a, e);
        watch_bucket_changed(s, b->id); /* also after a failure: it may have happened */
        return r;
    }
    if (old->p.quota != b->p.quota)
        quota_changed(s, b->id);
    if (old->p.write_delay != b->p.write_delay || old->p.write != b->p.write)
        back_hurry(s->back, b->id, SLICE_NULL); /* what waits does so by what was said before */
    /* What was cached came from somewhere else. Nobody finds it any more; this is for the room. */
    int64_t n = old->place != b->place ? object_forget_bucket(s, old) : 0;
    watch_end_bucket(s, b->id); /* for how long who watches may believe is another matter now */
    if (n < 0)
        log_warn("object", "bucket %s: what was cached of its former origin stays until it is evicted: %s",
                 b->name, err_text((int)n));
    return names_one(req->settings, is_rule) ? object_drop_never(s, b, SLICE_NULL, e) : 0;
}

void object_on_bucket_removed(struct object_service *s, object_removed_fn fn, void *arg)
{
    assert(s->magic == OBJECT_SERVICE_MAGIC);
    s->on_removed = fn;
    s->on_removed_arg = arg;
}

static void tell_removed(struct object_service *s, const struct bucket *b)
{
    if (s->on_removed)
        s->on_removed(s->on_removed_arg, b->id);
}

/* A scratch bucket goes only when it is empty. Its tree goes first: a bucket without one is an error to
 * everybody, and is removed by asking again. */
static int remove_scratch(struct object_service *s, const struct bucket *b, struct err *e)
{
    if (bucket_is_memory(b) && values_count_bucket(s->values, b->id, sys->real_ns()).objects > 0)
        return err_set(e, -ENOTEMPTY, "bucket %s is not empty", b->name);
    stree_end_lingering(s->scratch, b->id, /* now_ms= */ 0);
    snode_wait_freed(s->scratch); /* what was removed a moment ago is no reason to refuse */
    int r = scratch_bucket_remove(s->scratch->names, b->id, e);
    if (r == 0)
        r = bucket_delete(s->buckets, b, e);
    if (r < 0)
        return err_prefix(e, r, "bucket %s", b->name);
    upload_here_forget_bucket(s, b->id);
    values_forget_bucket(s->values, b->id);
    watch_end_bucket(s, b->id);
    object_keep_metrics(s);
    log_info("object", "bucket %s removed", b->name);
    tell_removed(s, b);
    return 0;
}

static int remove_mirror(struct object_service *s, struct bucket *b, struct err *e)
{
    int r = remove_record(s, b, e);
    if (r < 0)
        return r;
    object_forget_upstream(s, b->id);
    upload_here_forget_bucket(s, b->id);
    upload_forget_bucket(s, b);
    int64_t n = object_forget_bucket(s, b);
    usage_forget(s->usage, b->id);
    object_keep_metrics(s);
    log_info("object", "bucket %s removed, %lld cached objects dropped", b->name, (long long)n);
    tell_removed(s, b);
    return n < 0 ? err_errno(e, (int)n, "drop cached data of bucket %s", b->name) : 0;
}

int op_bucket_remove(struct object_session *ses, const struct wire_bucket_remove_req *req, struct arena *a,
                     struct wire_bucket_remove_rep *rep, struct err *e)
{
    (void)a, (void)rep;
    struct object_service *s = ses->service;
    _cleanup_(bucket_unrefp) struct bucket *b = NULL;
    int r = bucket_find(s->buckets, req->name, &b, e);
    if (r < 0)
        return r;
    return bucket_is_scratch(b) ? remove_scratch(s, b, e) : remove_mirror(s, b, e);
}

/* Properties of an origin out of lines "origin.NAME=VALUE". */
static int origin_settings(struct slice settings, struct origin_options *ret, struct err *e)
{
    int r = 0;
    while (settings.n > 0 && r == 0) {
        struct slice value = slice_split(&settings, '\n'), name = slice_split(&value, '=');
        if (name.n == 0)
            continue;
        _cleanup_free_ char *n = slice_dup(name), *v = slice_dup(value);
        r = option_set(&origin_option_table, ret, n, v, n, e);
        explicit_bzero(v, value.n);
    }
    return r;
}

int op_origin_check(struct object_session *ses, const struct wire_origin_check_req *req, struct arena *a,
                    struct wire_origin_check_rep *rep, struct err *e)
{
    if (req->settings.n > SETTINGS_MAX_BYTES || req->url.n > ORIGIN_KEY_MAX_BYTES * 4)
        return err_set(e, -E2BIG, "settings are too long");
    struct origin_options o;
    int r = option_init(&origin_option_table, &o, e);
    if (r < 0)
        return r;
    _cleanup_(origin_closep) struct origin *origin = NULL;
    _cleanup_free_ char *url = slice_dup(req->url);
    _cleanup_buf_ struct buf results = BUF_INIT(SETTINGS_MAX_BYTES);
    r = origin_settings(req->settings, &o, e);
    if (r == 0)
        r = origin_open(url, &o, "-", &origin, e);
    option_fini(&origin_option_table, &o);
    if (r == 0) { /* nobody else would end it when the node stops */
        origin->stop_soon = &ses->service->stopping_soon;
        origin->stop = &ses->service->stopping;
        r = origin_check(origin, req->flags & WIRE_READ_ONLY, &results);
    }
    if (r == 0)
        rep->results = arena_dup(a, buf_view(&results));
    return r;
}

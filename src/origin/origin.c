/*
 * The table of kinds, and what is common to them: dispatch by scheme, arguments checked, bytes and time
 * counted, errors told with the origin's URL.
 *
 * Invariants:
 *  1. A kind sees only requests whose arguments make sense: keys that are not empty, ranges that do not wrap.
 *  2. On success of a read the bytes given to the sink are counted and add up to what was asked for, cut at
 * the object's size, whatever the kind checked itself.
 *  3. The err of a failure is filled, also when a kind or a sink left it empty.
 *
 * Failure modes: as in origin.h.
 */
#include "origin/origin_internal.h"

#include "base/metrics.h"
#include "base/quit.h"
#include "base/sys.h"
#include "base/text.h"
#include "net/posix_meta.h"

#include <inttypes.h>

#define NS_PER_S     ((uint64_t)1000000000)
#define VIEW_REFUSES "earlier versions are read-only"

static const struct origin_ops *const kinds[] = {&origin_s3_ops,   &origin_gs_ops,    &origin_az_ops,
                                                 &origin_http_ops, &origin_https_ops, &origin_forebay_ops,
                                                 &origin_nfs_ops,  &origin_hdfs_ops,  &origin_file_ops};

static const struct option rows[] = {
#define X(field, option_type, option_name, argument, default_value, least, most, choice_list, is_secret,     \
          text)                                                                                              \
    {.name = option_name,                                                                                    \
     .type = OPTION_##option_type,                                                                           \
     .offset = offsetof(struct origin_options, field),                                                       \
     .def = default_value,                                                                                   \
     .min = least,                                                                                           \
     .max = most,                                                                                            \
     .choices = choice_list,                                                                                 \
     .arg = argument,                                                                                        \
     .doc = text,                                                                                            \
     .secret = is_secret},
    ORIGIN_OPTIONS(X)
#undef X
};

const struct option_table origin_option_table = {rows, ARRAY_SIZE(rows), NULL};

const char *origin_schemes(void)
{
    static const char text[] = "s3, gs, az, http, https, forebay, hdfs, nfs, file";
    return text;
}

static bool is_set(const char *value)
{
    return value && value[0];
}

static bool is_view(const struct origin_options *o)
{
    return is_set(o->as_of) || is_set(o->version);
}

static int check_view(const struct origin_ops *ops, const struct origin_options *o, struct err *e)
{
    if (is_set(o->as_of) && is_set(o->version))
        return err_set(e, ERR_BAD_OPTION, "origin.as_of and origin.version: one of them only");
    if (!is_view(o) || ops->keeps & ORIGIN_CAN_VERSIONS)
        return 0;
    const char *name = is_set(o->version) ? "origin.version" : "origin.as_of";
    return err_set(e, ERR_BAD_OPTION, "%s: an origin of %s:// keeps no versions that can be asked for", name,
                   ops->scheme);
}

/* Whoever wants no signature and gives what to sign with means something else. */
static int check_anonymous(const struct origin_options *o, struct err *e)
{
    const struct {
        const char *name, *value;
    } given[] = {
        {"origin.access_key", o->access_key},
        {"origin.profile", o->profile},
        {"origin.account_key", o->account_key},
        {"origin.sas", o->sas},
        {"origin.session_token", o->session_token},
        {"origin.metadata_endpoint", o->metadata_endpoint},
        {"origin.credentials_file", o->credentials_file},
    };
    for (size_t i = 0; o->anonymous && i < ARRAY_SIZE(given); i++)
        if (is_set(given[i].value))
            return err_set(e, ERR_BAD_OPTION, "origin.anonymous and %s: one of them only", given[i].name);
    return 0;
}

/* Without what may be secret in it: user and password, and what is behind a '?'. For errors of URLs that are
 * refused because of it. A heap copy. */
static char *shown_url(struct slice url)
{
    char *shown = NULL;
    struct slice rest = url, whole = slice_split(&rest, '?');
    ssize_t colon = slice_find_slice(whole, SLICE_LIT("://"));
    size_t from = colon < 0 ? 0 : (size_t)colon + 3;
    struct slice path = slice_from(whole, from), host = slice_split(&path, '/');
    ssize_t at = slice_rfind(host, '@');
    if (asprintf(&shown, SLICE_FMT SLICE_FMT "%s", SLICE_ARG(slice_sub(whole, 0, at < 0 ? whole.n : from)),
                 SLICE_ARG(slice_from(whole, at < 0 ? whole.n : from + (size_t)at + 1)),
                 whole.n < url.n ? "?..." : "") < 0)
        abort();
    return shown;
}

/* A URL is shown, logged and stored as it is. */
static bool has_user(struct slice rest)
{
    return slice_find(slice_split(&rest, '/'), '@') >= 0;
}

int origin_open(const char *url, const struct origin_options *o, const char *bucket_name, struct origin **ret,
                struct err *e)
{
    assert(url && o && bucket_name && ret);
    struct slice all = slice_str(url);
    ssize_t colon = slice_find_slice(all, SLICE_LIT("://"));
    struct slice scheme = colon > 0 ? slice_sub(all, 0, (size_t)colon) : SLICE_NULL;
    for (size_t i = 0; i < ARRAY_SIZE(kinds); i++) {
        if (!slice_eq_str(scheme, kinds[i]->scheme))
            continue;
        struct origin *x = NULL;
        int r = check_view(kinds[i], o, e);
        if (r == 0)
            r = check_anonymous(o, e);
        if (r == 0 && has_user(slice_from(all, (size_t)colon + 3)))
            r = err_set(e, ERR_BAD_OPTION,
                        "must have neither user nor query: who asks, and by which key, say properties as "
                        "origin.user and origin.secret_key");
        if (r == 0)
            r = kinds[i]->open(slice_from(all, (size_t)colon + 3), o, &x, e);
        if (r < 0) {
            char _cleanup_free_ *shown = shown_url(all);
            return err_prefix(e, r, "origin %s", shown);
        }
        trail_init(&x->trail);
        x->capabilities |= kinds[i]->keeps;
        x->is_view = is_view(o);
        if (!o->tags)
            x->capabilities &= ~(unsigned)ORIGIN_CAN_TAGS;
        if (!o->conditional_put)
            x->capabilities &= ~(unsigned)ORIGIN_CAN_CONDITIONAL_PUT;
        x->bucket_name = slice_dup(slice_str(bucket_name));
        x->url = slice_dup(all);
        if (o->storage_class && o->storage_class[0])
            x->storage_class = slice_dup(slice_str(o->storage_class));
        if (x->storage_class && !(x->capabilities & ORIGIN_CAN_META)) {
            origin_close(x);
            return err_set(e, ERR_BAD_OPTION, "origin %s: origin.storage_class: this kind has no classes",
                           url);
        }
        *ret = x;
        return 0;
    }
    char _cleanup_free_ *shown = shown_url(all);
    return err_set(e, ERR_BAD_OPTION, "origin %s: unknown kind; known are %s", shown, origin_schemes());
}

uint64_t origin_as_of_end(uint64_t as_of_ns)
{
    return as_of_ns % NS_PER_S == 0 ? as_of_ns + (NS_PER_S - 1) : as_of_ns;
}

int origin_parse_as_of(const struct origin_options *o, uint64_t *ret_ns, struct err *e)
{
    return text_parse_when(slice_str(o->as_of), ret_ns) < 0
               ? err_set(e, ERR_BAD_OPTION,
                         "origin.as_of %s: must be a date as 2026-01-31 or 2026-01-31T00:00:00Z", o->as_of)
               : 0;
}

void origin_close(struct origin *o)
{
    if (!o)
        return;
    free(o->bucket_name);
    free(o->url);
    free(o->storage_class);
    o->bucket_name = o->url = o->storage_class = NULL;
    trail_fini(&o->trail);
    o->ops->close(o);
}

size_t origin_rest(struct origin *o, uint64_t now_ms)
{
    return o->ops->rest ? o->ops->rest(o, now_ms) : 0;
}

/* One operation, from operation_begin to operation_end; in between the node may stop it. */
struct operation {
    struct origin *origin;
    const char *name; /* for the metrics; NULL: its time is not counted */
    uint64_t started_ns;
    struct quit quit;
    struct quit_deaf deaf;
    struct err err; /* filled by who fails, without the origin's URL */
};

/* What is not wanted any more is not begun. */
static int operation_begin(struct operation *x, struct origin *o, const char *name)
{
    *x = (struct operation){.origin = o,
                            .name = name,
                            .started_ns = sys->mono_ns(),
                            .quit = {.soon = o->stop_soon, .now = o->stop}};
    quit_enter(&x->quit);
    return (o->ops->is_deaf ? quit_deaf_begin(&x->deaf) : quit_level()) == QUIT_NOW
               ? err_set(&x->err, -ECANCELED, "canceled")
               : 0;
}

/* The same of one that changes something. */
static int operation_begin_change(struct operation *x, struct origin *o, const char *name)
{
    int r = operation_begin(x, o, name);
    return o->is_view ? err_set(&x->err, -EROFS, VIEW_REFUSES) : r;
}

/* Counts its time, and fills and prefixes the error. Also after a begin that failed. */
static int operation_end(struct operation *x, int r, struct err *e)
{
    quit_deaf_end(&x->deaf);
    quit_leave(&x->quit);
    if (x->name)
        metrics_observe_ns(metrics_series(METRIC_ORIGIN_SECONDS, x->origin->bucket_name, x->name, NULL),
                           sys->mono_ns() - x->started_ns);
    if (r >= 0)
        return r;
    if (x->err.code == 0)
        (void)err_set(&x->err, r, "%s", err_text(r));
    if (e) {
        *e = x->err;
        (void)err_prefix(e, r, "origin %s", x->origin->url);
        e->code = r;
    }
    return r;
}

int origin_identify(struct origin *o, struct buf *b, struct err *e)
{
    struct operation x;
    int r = operation_begin(&x, o, /* name= */ NULL);
    if (r == 0)
        r = o->ops->identify ? o->ops->identify(o, b, &x.err) : buf_str(b, "this kind of origin needs none");
    return operation_end(&x, r, e);
}

/* ---- for the kinds ---- */

void origin_count_request(struct origin *o, const char *op, int status)
{
    char text[16];
    (void)snprintf(text, sizeof(text), "%d", status);
    metrics_count(METRIC_ORIGIN_REQUESTS, o->bucket_name, op, text);
}

void origin_moved(struct origin *o, uint64_t bytes)
{
    if (bytes > 0)
        quit_lives();
    if (o->meter && bytes > 0)
        o->meter->moved(o->meter_arg, bytes);
}

static bool is_set_flag(const atomic_bool *flag)
{
    return flag && atomic_load(flag);
}

void origin_wait_turn(struct origin *o, const atomic_bool *cancel, const atomic_bool *stop)
{
    uint64_t wait_ms;
    while (o->meter && !is_set_flag(cancel) && !is_set_flag(stop) && quit_level() == QUIT_NO &&
           (wait_ms = o->meter->turn(o->meter_arg)) > 0)
        sys->sleep_ns(MIN(wait_ms, (uint64_t)QUIT_LOOK_MS) * 1000000);
}

void origin_step_aside(const struct origin *o)
{
    if (o->meter)
        o->meter->aside(o->meter_arg);
}

void origin_step_back(const struct origin *o, bool goes_on)
{
    if (o->meter)
        o->meter->back(o->meter_arg, goes_on);
}

int origin_enter(const struct origin *o, uint64_t key, bool alone, const atomic_bool *cancel,
                 struct key_order *x, struct err *e)
{
    if (key_order_begin(x, key, alone))
        return 0;
    origin_step_aside(o);
    int r = key_order_wait(x, cancel, e);
    origin_step_back(o, r == 0);
    return r;
}

void origin_pause(struct origin *o, uint64_t for_ms)
{
    _Atomic uint64_t *pause = o->shared_pause ? o->shared_pause : &o->paused_until_ms;
    uint64_t until_ms = sys_mono_ms() + MIN(for_ms, (uint64_t)ORIGIN_PAUSE_MAX_MS);
    uint64_t now = atomic_load(pause);
    while (for_ms > 0 && now < until_ms && !atomic_compare_exchange_weak(pause, &now, until_ms))
        ;
}

uint64_t origin_pause_ms(const struct origin *o, uint64_t now_ms)
{
    uint64_t until_ms = atomic_load(o->shared_pause ? o->shared_pause : &o->paused_until_ms);
    return until_ms > now_ms ? until_ms - now_ms : 0;
}

int origin_attr_dup(struct arena *a, const struct origin_attr *from, struct origin_attr *ret, struct err *e)
{
    size_t need = from->etag.n + from->content_type.n + from->meta.n + from->part_sum.n;
    if (arena_left(a) < need + 128)
        return err_set(e, -ENOMEM, "the object's headers need %zu bytes, more than the request has", need);
    struct origin_attr x = *from;
    x.etag = from->etag.n ? arena_dup(a, from->etag) : SLICE_NULL;
    x.content_type = from->content_type.n ? arena_dup(a, from->content_type) : SLICE_NULL;
    x.meta = from->meta.n ? arena_dup(a, from->meta) : SLICE_NULL;
    x.part_sum = from->part_sum.n ? arena_dup(a, from->part_sum) : SLICE_NULL;
    *ret = x;
    return 0;
}

bool origin_is_meta_header(struct slice name)
{
    static const char *const kept[] = {"cache-control", "content-encoding", "content-disposition",
                                       "content-language", "expires"};
    if (slice_starts(name, SLICE_LIT("x-amz-meta-")))
        return name.n > strlen("x-amz-meta-");
    for (size_t i = 0; i < ARRAY_SIZE(kept); i++)
        if (slice_eq_str(name, kept[i]))
            return true;
    return false;
}

bool origin_next_meta(struct slice *meta, struct slice *ret_name, struct slice *ret_value)
{
    while (meta->n > 0) {
        struct slice line = slice_split(meta, '\n');
        ssize_t colon = slice_find(line, ':');
        if (colon <= 0 || !origin_is_meta_header(slice_sub(line, 0, (size_t)colon)))
            continue;
        *ret_name = slice_sub(line, 0, (size_t)colon);
        *ret_value = slice_trim(slice_from(line, (size_t)colon + 1));
        return true;
    }
    return false;
}

bool origin_meta_mtime(struct slice meta, uint64_t *ret_ns)
{
    struct posix_meta p;
    posix_meta_decode(meta, /* is_dir= */ false, &p);
    if (p.has & POSIX_HAS_MTIME)
        *ret_ns = p.mtime_ns;
    return p.has & POSIX_HAS_MTIME;
}

static int compare_entries(const void *a, const void *b)
{
    const struct origin_entry *x = a, *y = b;
    return slice_cmp(x->key, y->key);
}

void origin_order_entries(struct origin_entry *entries, size_t *n, struct slice after)
{
    if (*n == 0)
        return;
    bool ordered = true;
    for (size_t i = 1; i < *n && ordered; i++)
        ordered = slice_cmp(entries[i - 1].key, entries[i].key) < 0;
    if (!ordered)
        qsort(entries, *n, sizeof(*entries), compare_entries);
    size_t kept = 0;
    for (size_t i = 0; i < *n; i++) {
        bool again = kept > 0 && slice_eq(entries[kept - 1].key, entries[i].key);
        bool early = after.n > 0 && slice_cmp(entries[i].key, after) <= 0;
        if (!again && !early)
            entries[kept++] = entries[i];
    }
    *n = kept;
}

/* ---- operations ---- */

struct watch {
    origin_sink_fn sink;
    void *arg;
    const char *bucket_name;
    uint64_t bytes;
    bool called;
    uint64_t size;
};

static int on_bytes(void *arg, const struct origin_attr *attr, const void *p, size_t n)
{
    struct watch *w = arg;
    w->called = true;
    w->bytes += n;
    w->size = attr->size_bytes;
    /* Before they are handed on: readers have these bytes while the rest is still on its way. */
    if (n > 0)
        metrics_add(metrics_series(METRIC_ORIGIN_READ_BYTES, w->bucket_name, NULL, NULL), n);
    return w->sink(w->arg, attr, p, n);
}

static int check_bytes(const struct origin_get *g, const struct watch *w, const struct origin_attr *attr,
                       struct err *e)
{
    uint64_t left = g->offset < attr->size_bytes ? attr->size_bytes - g->offset : 0;
    uint64_t want = g->attributes_only ? 0 : g->whole ? attr->size_bytes : MIN(g->n, left);
    if (w->called && w->bytes == want && w->size == attr->size_bytes)
        return 0;
    return err_set(e, ERR_ORIGIN_SHORT, "got %" PRIu64 " bytes, %" PRIu64 " were announced", w->bytes, want);
}

int origin_get(struct origin *o, const struct origin_get *g, struct arena *a, struct origin_attr *ret_attr,
               origin_sink_fn sink, void *arg, struct err *e)
{
    assert(o && g && a && ret_attr && sink);
    assert(g->attributes_only || (g->whole ? g->offset == 0 : g->n > 0));
    struct watch w = {.sink = sink, .arg = arg, .bucket_name = o->bucket_name};
    struct origin_attr attr;
    struct operation x;
    int r = operation_begin(&x, o, g->attributes_only ? "head" : "get");
    if (r == 0)
        r = o->ops->get(o, g, a, &attr, on_bytes, &w, &x.err);
    origin_moved(o, w.bytes);
    if (r == 0)
        r = check_bytes(g, &w, &attr, &x.err);
    if (r == 0)
        *ret_attr = attr;
    return operation_end(&x, r, e);
}

int origin_list(struct origin *o, const struct origin_list *l, struct arena *a, struct origin_page *ret,
                struct err *e)
{
    assert(o && l && a && ret);
    if (l->prefix.n >
        ORIGIN_KEY_MAX_BYTES) { /* no key is as long: what a directory of that name would hold */
        *ret = (struct origin_page){0};
        return 0;
    }
    struct origin_list asked = *l;
    asked.directories = o->posix && o->of_job;
    struct operation x;
    int r = operation_begin(&x, o, "list");
    if (r == 0)
        r = o->ops->list(o, &asked, a, ret, &x.err);
    /* Callers ask until there is no more. */
    if (r == 0 && ret->truncated && l->token.n > 0 && slice_eq(ret->next_token, l->token))
        r = err_set(&x.err, ERR_ORIGIN_FAILED, "the listing goes on where it began: it would never end");
    return operation_end(&x, r, e);
}

int origin_walk_on(struct origin_walk *w, const struct origin_page *page, struct err *e)
{
    struct slice last = page->n > 0 ? page->entries[page->n - 1].key : SLICE_NULL;
    struct slice reached = page->reached.n > 0 ? page->reached : last;
    reached = slice_sub(reached, 0, MIN(reached.n, sizeof(w->reached)));
    if (slice_cmp(reached, slice_of(w->reached, w->n)) > 0) {
        memcpy(w->reached, reached.p, reached.n);
        w->n = reached.n;
        w->n_idle = 0;
        return 0;
    }
    if (!page->truncated || ++w->n_idle < ORIGIN_IDLE_PAGES_MAX)
        return 0;
    return err_set(e, ERR_ORIGIN_FAILED, "%d pages of a listing one after the other that lead nowhere",
                   ORIGIN_IDLE_PAGES_MAX);
}

int origin_put(struct origin *o, const struct origin_put *p, const struct origin_body *body, struct arena *a,
               struct origin_attr *ret_attr, struct err *e)
{
    assert(o && p && body && body->read && a && ret_attr);
    struct operation x;
    int r = operation_begin_change(&x, o, "put");
    if (body->slow) /* it may be its client who is waited for */
        quit_deaf_end(&x.deaf);
    if (r == 0)
        r = o->ops->put(o, p, body, a, ret_attr, &x.err);
    if (r == 0)
        metrics_add(metrics_series(METRIC_ORIGIN_WRITTEN_BYTES, o->bucket_name, NULL, NULL),
                    body->size_bytes);
    return operation_end(&x, r, e);
}

bool origin_heeds_conditions(const struct origin *o)
{
    return o->capabilities & (ORIGIN_CAN_CONDITIONAL_PUT | ORIGIN_LOOKS_FIRST);
}

int origin_takes(struct origin *o, const struct origin_put *p, uint64_t size_bytes, struct err *e)
{
    assert(o && p);
    if (o->is_view)
        return err_set(e, -EROFS, "origin %s: " VIEW_REFUSES, o->url);
    int r = o->ops->takes ? o->ops->takes(o, p, size_bytes, e) : 0;
    return r < 0 ? err_prefix(e, r, "origin %s", o->url) : 0;
}

int origin_remove(struct origin *o, struct slice key, struct slice if_match, struct err *e)
{
    assert(o);
    struct operation x;
    int r = operation_begin_change(&x, o, "delete");
    if (r == 0)
        r = o->ops->remove(o, key, if_match, &x.err);
    return operation_end(&x, r, e);
}

int origin_copy(struct origin *o, struct slice from, struct slice to, struct slice if_match, struct arena *a,
                struct origin_attr *ret_attr, struct err *e)
{
    assert(o && a && ret_attr);
    struct operation x;
    int r = operation_begin_change(&x, o, "copy");
    if (r == 0)
        r = o->ops->copy(o, from, to, if_match, a, ret_attr, &x.err);
    return operation_end(&x, r, e);
}

int origin_set_meta(struct origin *o, const struct origin_put *p, uint64_t size_bytes, struct arena *a,
                    struct origin_attr *ret_attr, struct err *e)
{
    assert(o && p && p->if_match.n > 0 && a && ret_attr);
    struct operation x;
    int r = operation_begin_change(&x, o, "set_meta");
    if (r == 0)
        r = o->ops->set_meta
                ? o->ops->set_meta(o, p, size_bytes, a, ret_attr, &x.err)
                : err_set(&x.err, ERR_NOT_IMPLEMENTED, "the origin cannot change metadata of objects");
    return operation_end(&x, r, e);
}

/* ---- uploads in parts ---- */

bool origin_has_uploads(const struct origin *o)
{
    return o->ops->upload_create != NULL;
}

bool origin_begins_uploads(const struct origin *o)
{
    return origin_has_uploads(o) && !o->begins_no_uploads;
}

int origin_upload_create(struct origin *o, const struct origin_put *p, char ret_id[ORIGIN_UPLOAD_ID_MAX],
                         bool *ret_sums, struct err *e)
{
    assert(o && p && ret_id && ret_sums && origin_has_uploads(o));
    struct operation x;
    int r = operation_begin_change(&x, o, "upload");
    if (r == 0)
        r = o->ops->upload_create(o, p, ret_id, ret_sums, &x.err);
    return operation_end(&x, r, e);
}

int origin_upload_part(struct origin *o, const struct origin_put *p, struct slice id, uint32_t number,
                       const struct origin_body *body, char ret_etag[ORIGIN_ETAG_MAX + 1], struct err *e)
{
    assert(o && p && body && body->read && ret_etag && number > 0 && origin_has_uploads(o));
    struct operation x;
    int r = operation_begin_change(&x, o, "part");
    if (r == 0)
        r = o->ops->upload_part(o, p, id, number, body, ret_etag, &x.err);
    if (r == 0)
        metrics_add(metrics_series(METRIC_ORIGIN_WRITTEN_BYTES, o->bucket_name, NULL, NULL),
                    body->size_bytes);
    return operation_end(&x, r, e);
}

int origin_upload_complete(struct origin *o, const struct origin_put *p, struct slice id,
                           const struct origin_part *parts, size_t n, uint64_t size_bytes, struct arena *a,
                           struct origin_attr *ret_attr, struct err *e)
{
    assert(o && p && parts && n > 0 && a && ret_attr && origin_has_uploads(o));
    struct operation x;
    int r = operation_begin_change(&x, o, "complete");
    if (r == 0)
        r = o->ops->upload_complete(o, p, id, parts, n, size_bytes, a, ret_attr, &x.err);
    return operation_end(&x, r, e);
}

int origin_upload_abort(struct origin *o, struct slice key, struct slice id, struct err *e)
{
    assert(o && origin_has_uploads(o));
    struct operation x;
    int r = operation_begin(&x, o, "abort");
    if (r == 0)
        r = o->ops->upload_abort(o, key, id, &x.err);
    return operation_end(&x, r, e);
}

void origin_note_upload(const struct origin *o, struct slice key, struct slice id)
{
    if (o->uploads)
        o->uploads->begun(o, key, id);
}

void origin_note_upload_end(const struct origin *o, struct slice id, bool is_gone)
{
    if (o->uploads)
        o->uploads->ended(o, id, is_gone);
}

/* ---- tags ---- */

static int refuse_tags(const struct origin *o, struct err *e)
{
    return err_set(e, ERR_NOT_IMPLEMENTED, "an origin of %s:// keeps no tags", o->ops->scheme);
}

int origin_has_tag(struct origin *o, struct slice key, struct slice name, struct slice value,
                   atomic_bool *cancel, bool *ret, struct err *e)
{
    assert(o && name.n > 0 && ret);
    struct operation x;
    int r = operation_begin(&x, o, "tags");
    if (r == 0)
        r = o->capabilities & ORIGIN_CAN_TAGS ? o->ops->has_tag(o, key, name, value, cancel, ret, &x.err)
                                              : refuse_tags(o, &x.err);
    return operation_end(&x, r, e);
}

int origin_tags(struct origin *o, struct slice key, struct buf *ret, struct err *e)
{
    assert(o && ret);
    struct operation x;
    int r = operation_begin(&x, o, "tags");
    if (r == 0)
        r = o->capabilities & ORIGIN_CAN_TAGS ? o->ops->tags(o, key, ret, &x.err) : refuse_tags(o, &x.err);
    return operation_end(&x, r, e);
}

int origin_set_tags(struct origin *o, struct slice key, struct slice tags, struct err *e)
{
    assert(o);
    struct operation x;
    int r = operation_begin_change(&x, o, "set_tags");
    if (r == 0)
        r = o->capabilities & ORIGIN_CAN_TAGS ? o->ops->set_tags(o, key, tags, &x.err)
                                              : refuse_tags(o, &x.err);
    return operation_end(&x, r, e);
}

/* ---- copies between buckets of one service ---- */

bool origin_is_beside(const struct origin *o, const struct origin *source)
{
    return o->ops == source->ops && o->ops->is_beside && !o->is_view && !source->is_view &&
           o->ops->is_beside(o, source);
}

int origin_copy_from(struct origin *o, const struct origin_copy *c, struct arena *a,
                     struct origin_attr *ret_attr, struct err *e)
{
    assert(o && c && a && ret_attr && origin_is_beside(o, c->source));
    struct operation x;
    int r = operation_begin(&x, o, "copy");
    if (r == 0)
        r = o->ops->copy_from(o, c, a, ret_attr, &x.err);
    return operation_end(&x, r, e);
}

int origin_upload_copy(struct origin *o, const struct origin_put *p, struct slice id, uint32_t number,
                       const struct origin_copy *c, uint64_t offset, uint64_t n,
                       char ret_etag[ORIGIN_ETAG_MAX + 1], struct err *e)
{
    assert(o && p && c && n > 0 && number > 0 && ret_etag && origin_is_beside(o, c->source));
    struct operation x;
    int r = operation_begin(&x, o, "part");
    if (r == 0)
        r = o->ops->upload_copy(o, p, id, number, c, offset, n, ret_etag, &x.err);
    return operation_end(&x, r, e);
}

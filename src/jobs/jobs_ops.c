/* The operations JOB_*: start, list, show, change, errors. */
#include "jobs/ends.h"
#include "jobs/filter.h"
#include "jobs/jobs_internal.h"

#include "base/sys.h"
#include "base/text.h"

#include "origin/origin.h"

#include <inttypes.h>
#include <jansson.h>

#define LIST_PAGE      100
#define ERRORS_PAGE    1000
#define PAGE_MAX_BYTES (4 * MIB)
#define KEYS_MAX_BYTES (4 * MIB)
#define TEXT_MAX_BYTES (16 * KIB)
#define WAIT_MAX_MS    1000
#define WAITERS_MAX    16 /* each has a thread of the node; who comes then is answered at once */
#define LIST_COMES     "its list has not come whole"

/* ---- start ---- */

/* What is to be restored. */
static int check_restore(const struct job_spec *s, const struct kind *k, struct err *e)
{
    bool dated = s->as_of && s->as_of[0], one = s->version && s->version[0], tagged = s->tag && s->tag[0];
    struct slice name, value;
    uint64_t ns = 0;
    if (job_spec_restores(s) && k->source != KIND_URL)
        return err_set(e, ERR_BAD_OPTION, "%s: only for import",
                       dated ? "--as-of"
                       : one ? "--version"
                             : "--tag");
    if (s->manifest && k->source != KIND_URL)
        return err_set(e, ERR_BAD_OPTION, "--manifest: only for import; an export always writes one");
    if (dated && text_parse_when(slice_str(s->as_of), &ns) < 0)
        return err_set(e, ERR_BAD_OPTION, "--as-of %s: must be a date as 2026-01-31 or 2026-01-31T00:00:00Z",
                       s->as_of);
    if (dated && ns > sys->real_ns())
        return err_set(e, ERR_BAD_OPTION, "--as-of %s: has not come yet", s->as_of);
    if (dated && one)
        return err_set(e, ERR_BAD_OPTION, "--as-of, --version: one of them only");
    if (one && s->listed)
        return err_set(e, ERR_BAD_OPTION, "--version: not with --list: it is one object's");
    if (tagged && !job_spec_tag(s, &name, &value))
        return err_set(e, ERR_BAD_OPTION, "--tag %s: must be KEY=VALUE", s->tag);
    return 0;
}

/* Options that only some kinds know. */
static int check_options(const struct job_record *r, const struct kind *k, struct err *e)
{
    const struct job_spec *s = &r->spec;
    uint64_t rate;
    if (s->remove && !k->sweep)
        return err_set(e, ERR_BAD_OPTION, "--delete: only for sync");
    if (s->remove && !(ends_is_folder(r->source) && ends_is_folder(r->target)))
        return err_set(e, ERR_BAD_OPTION,
                       "--delete: %s and %s must each be a bucket or end with '/', else what lies beside "
                       "them would be removed, too",
                       r->source, r->target);
    if (s->newest > 0 && k->over != KIND_OVER_ORIGIN)
        return err_set(e, ERR_BAD_OPTION, "--newest: not for %s", k->name);
    if (s->newest > 0 && (s->listed || s->remove))
        return err_set(e, ERR_BAD_OPTION, "--newest: not with --list or --delete");
    bool dated = (s->newer && s->newer[0]) || (s->older && s->older[0]);
    if (dated && k->over != KIND_OVER_ORIGIN && !s->listed)
        return err_set(
            e, ERR_BAD_OPTION,
            "--newer, --older: not for %s without --list: the cache does not tell when its objects "
            "changed, and all of them would be chosen",
            k->name);
    if (s->pin && strcmp(k->name, "prefetch") != 0)
        return err_set(e, ERR_BAD_OPTION, "--pin: only for prefetch");
    if (s->metadata_only && strcmp(k->name, "prefetch") != 0)
        return err_set(e, ERR_BAD_OPTION, "--metadata-only: only for prefetch");
    bool fetches = k->target == KIND_NOWHERE && k->over == KIND_OVER_ORIGIN;
    if (s->verify != JOB_VERIFY_AUTO && k->target == KIND_NOWHERE && !fetches)
        return err_set(e, ERR_BAD_OPTION, "--verify: not for %s, which writes nothing", k->name);
    if (fetches && (s->verify == JOB_VERIFY_SIZE || (s->verify == JOB_VERIFY_READ && s->metadata_only)))
        return err_set(e, ERR_BAD_OPTION, "--verify: only `read` for %s, and not with --metadata-only",
                       k->name);
    if (s->listed && s->remove)
        return err_set(e, ERR_BAD_OPTION, "--list: not with --delete");
    if (s->storage_class && s->storage_class[0] && k->target != KIND_URL)
        return err_set(e, ERR_BAD_OPTION, "--storage-class: only for export");
    int c = check_restore(s, k, e);
    if (c < 0)
        return c;
    if (s->rate && s->rate[0] && job_spec_parse_rate(s->rate, &rate) < 0)
        return err_set(e, ERR_BAD_OPTION, "--rate %s: must be a size a second, as 500MiB/s", s->rate);
    return 0;
}

static int check_record(struct jobs *j, const struct job_record *r, struct err *e)
{
    const struct kind *k = kind_find(slice_str(r->kind));
    if (!k)
        return err_set(e, ERR_BAD_OPTION, "'%s': no such kind of job; there are %s", r->kind, kind_names());
    _cleanup_(filter_freep) struct filter *f = NULL;
    int c = check_options(r, k, e);
    if (c == 0)
        c = filter_open(&r->spec, &f, e);
    struct ends x;
    if (c == 0)
        c = ends_open(j->objects, j->session, r, k, /* probe= */ true, &x, e);
    if (c < 0)
        return c;
    if (r->spec.tag && r->spec.tag[0] &&
        !(object_guest_capabilities(j->objects, x.source_bucket) & ORIGIN_CAN_TAGS))
        c = err_set(e, ERR_BAD_OPTION,
                    "--tag: %s is of a kind whose tags cannot be asked for: s3:// and forebay:// have them",
                    r->source);
    ends_close(j->objects, &x);
    return c;
}

/* The prefix is pinned before its first object is fetched. */
static int pin(struct jobs *j, const struct job_record *r, struct arena *a, struct err *e)
{
    struct wire_bucket_rule_req req = {.settings = SLICE_LIT("pin=true\n")};
    struct wire_bucket_rule_rep rep;
    job_split(r->source, &req.bucket, &req.prefix);
    return object_bucket_rule(j->session, &req, a, &rep, e);
}

/* What has to happen before the first object. */
static int before(struct jobs *j, const struct job_record *r, struct arena *a, struct err *e)
{
    if (r->spec.dry_run)
        return 0;
    if (strcmp(r->kind, "validate") == 0) { /* also what is remembered without data: listings, attributes */
        struct slice prefix;
        struct wire_confirm_req req = {0};
        struct wire_confirm_rep rep;
        job_split(r->source, &req.bucket, &prefix);
        return object_confirm(j->session, &req, a, &rep, e);
    }
    return r->spec.pin ? pin(j, r, a, e) : 0;
}

static int op_start(struct jobs *j, const struct wire_job_start_req *req, struct arena *a,
                    struct wire_job_start_rep *rep, struct err *e)
{
    struct job_record r = {.state = JOB_QUEUED, .phase = JOB_COUNT, .created_ns = sys->real_ns()};
    if (req->spec.n > JOB_SPEC_MAX_BYTES || req->source.n > 4 * KIB || req->target.n > 4 * KIB)
        return err_set(e, -E2BIG, "the job's options are too long");
    job_set_text(&r.kind, req->kind);
    job_set_text(&r.source, req->source);
    job_set_text(&r.target, req->target);
    job_set_text(&r.cursor, SLICE_NULL);
    job_set_text(&r.reason, SLICE_NULL);
    int k = job_spec_decode(req->spec, &r.spec, e);
    if (k == 0)
        k = check_record(j, &r, e);
    if (k == 0)
        k = jobs_check_room(j, e); /* before something is pinned for it */
    if (k == 0)
        k = before(j, &r, a, e);
    if (k == 0 && r.spec.listed) { /* until its keys have come */
        r.state = JOB_PAUSED;
        r.list_comes = 1;
        job_set_text(&r.reason, SLICE_LIT(LIST_COMES));
    }
    if (k == 0)
        k = jobs_add(j, &r, &rep->id, e);
    job_record_fini(&r);
    return k;
}

static int op_keys(struct jobs *j, const struct wire_job_keys_req *req, struct err *e)
{
    if (req->keys.n > KEYS_MAX_BYTES)
        return err_set(e, -E2BIG, "keys of a job: %zu bytes at once", req->keys.n);
    return jobs_add_keys(j, req->id, req->keys, e);
}

/* ---- show ---- */

static json_t *record_json(const struct job_record *r)
{
    char created[32], ended[32] = "";
    _cleanup_buf_ struct buf source = BUF_INIT(TEXT_MAX_BYTES), target = BUF_INIT(TEXT_MAX_BYTES),
                             reason = BUF_INIT(TEXT_MAX_BYTES);
    text_iso8601(r->created_ns, created);
    if (r->ended_ns > 0)
        text_iso8601(r->ended_ns, ended);
    /* Objects that are named are not asked about before. */
    bool has_bytes = !r->spec.listed || r->total_bytes > 0;
    return json_pack(
        "{s:I, s:s, s:s, s:s, s:s, s:s, s:s, s:b, s:b, s:b, s:I, s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:s}",
        "id", (json_int_t)r->id, "kind", r->kind, "state", job_state_name((enum job_state)r->state), "source",
        text_utf8(&source, slice_str(r->source)), "target", text_utf8(&target, slice_str(r->target)),
        "created", created, "ended", ended, "final", (int)job_state_is_final((enum job_state)r->state),
        "counted", (int)(r->phase != JOB_COUNT || r->state == JOB_DONE), "dry_run", (int)r->spec.dry_run,
        "total_objects", (json_int_t)r->total_objects, "total_bytes",
        has_bytes ? json_integer((json_int_t)r->total_bytes) : json_null(), "done_objects",
        (json_int_t)r->done_objects, "done_bytes", (json_int_t)r->done_bytes, "skipped_objects",
        (json_int_t)r->skipped_objects, "removed_objects", (json_int_t)r->removed_objects, "failed_objects",
        (json_int_t)r->failed_objects, "modes_lost", (json_int_t)r->modes_lost, "reason",
        text_utf8(&reason, slice_str(r->reason)));
}

/* What was asked for, ["--as-of=2026-01-31", "--pin"]: but for the properties of origins, which may be
 * secret, and keys. */
static json_t *options_json(const struct job_spec *s)
{
    static const char *const hidden[] = {"set", "listed", "only", "chosen"};
    json_t *list = json_array();
    _cleanup_buf_ struct buf b = BUF_INIT(JOB_SPEC_MAX_BYTES);
    struct job_spec told = *s; /* borrowed */
    told.chosen = told.only = (struct option_list){0};
    if (job_spec_encode(&told, &b, NULL) < 0)
        return list;
    for (struct slice rest = buf_view(&b); rest.n > 0;) {
        struct slice value = slice_split(&rest, '\n'), name = slice_split(&value, '=');
        const struct option *row = NULL;
        bool is_shown = name.n > 0;
        for (size_t i = 0; i < ARRAY_SIZE(hidden); i++)
            is_shown = is_shown && !slice_eq_str(name, hidden[i]);
        if (!is_shown)
            continue;
        _cleanup_free_ char *text = slice_dup(name);
        row = option_find(&job_spec_table, text);
        _cleanup_buf_ struct buf line = BUF_INIT(2 * JOB_SPEC_MAX_BYTES),
                                 utf8 = BUF_INIT(8 * JOB_SPEC_MAX_BYTES);
        int r = buf_printf(&line, "--%s", text);
        if (r == 0 && !(row && row->type == OPTION_BOOL))
            r = buf_printf(&line, "=" SLICE_FMT, SLICE_ARG(value));
        if (r == 0)
            (void)json_array_append_new(list, json_string(text_utf8(&utf8, buf_view(&line))));
    }
    if (s->listed)
        (void)json_array_append_new(list, json_string("--list"));
    return list;
}

/* Takes over `o`. */
static int give_json(json_t *o, struct arena *a, struct slice *ret, struct err *e)
{
    _cleanup_free_ char *text = o ? json_dumps(o, JSON_PRESERVE_ORDER) : NULL;
    json_decref(o);
    if (!text)
        return err_set(e, -ENOMEM, "job");
    size_t n = strlen(text); /* which keys full of what JSON escapes can make six times as long */
    if (n >= arena_left(a))
        return err_set(e, -E2BIG, "job: %zu bytes are too many to be sent", n);
    *ret = arena_dup(a, slice_of(text, n));
    return 0;
}

static int describe_locked(struct jobs *j, uint64_t id, struct arena *a, struct slice *ret_json,
                           uint32_t *ret_final, struct err *e)
{
    struct job *job = jobs_find_locked(j, id);
    if (!job)
        return err_set(e, -ENOENT, "job %" PRIu64 " does not exist", id);
    *ret_final = job_state_is_final((enum job_state)job->record.state);
    json_t *o = record_json(&job->record);
    if (o)
        (void)json_object_set_new(o, "options", options_json(&job->record.spec));
    return give_json(o, a, ret_json, e);
}

static int op_get(struct jobs *j, const struct wire_job_get_req *req, struct arena *a,
                  struct wire_job_get_rep *rep, struct err *e)
{
    LOCK_SCOPE(&j->lock);
    return describe_locked(j, req->id, a, &rep->json, &rep->final, e);
}

static bool has_ended_locked(struct jobs *j, uint64_t id)
{
    const struct job *job = jobs_find_locked(j, id);
    return !job || job_state_is_final((enum job_state)job->record.state);
}

static int op_wait(struct jobs *j, const struct wire_job_wait_req *req, struct arena *a,
                   struct wire_job_wait_rep *rep, struct err *e)
{
    uint64_t now_ms = sys_mono_ms(), end_ms = now_ms + MIN(req->timeout_ms, (uint32_t)WAIT_MAX_MS);
    LOCK_SCOPE(&j->lock);
    bool may_wait = j->waiting < WAITERS_MAX;
    j->waiting++;
    while (may_wait && now_ms < end_ms && !j->closing && !has_ended_locked(j, req->id)) {
        (void)cond_wait_for(&j->ended, &j->lock, (end_ms - now_ms) * 1000000);
        now_ms = sys_mono_ms();
    }
    j->waiting--;
    return describe_locked(j, req->id, a, &rep->json, &rep->final, e);
}

static int op_list(struct jobs *j, const struct wire_job_list_req *req, struct arena *a,
                   struct wire_job_list_rep *rep, struct err *e)
{
    json_t *list = json_array();
    lock_take(&j->lock);
    for (struct job *job = j->first; job; job = job->next) {
        if (job->record.id <= req->after)
            continue;
        if (json_array_size(list) == LIST_PAGE) {
            rep->truncated = 1;
            break;
        }
        (void)json_array_append_new(list, record_json(&job->record));
    }
    lock_drop(&j->lock);
    return give_json(list, a, &rep->json, e);
}

/* ---- change ---- */

static void apply_event(struct job_record *r, enum job_event ev, enum job_state next)
{
    bool again = ev == JOB_ON_RETRY && r->state == JOB_PARTIAL;
    r->state = next;
    if (again) {
        r->phase = JOB_AGAIN;
        job_set_text(&r->cursor, SLICE_NULL);
    }
    if (ev == JOB_ON_RESUME || ev == JOB_ON_RETRY || ev == JOB_ON_LISTED)
        job_set_text(&r->reason, SLICE_NULL);
    if (ev == JOB_ON_LISTED)
        r->list_comes = 0;
    r->ended_ns = job_state_is_final(next) ? sys->real_ns() : 0;
}

static int op_change(struct jobs *j, const struct wire_job_change_req *req, struct err *e)
{
    enum job_event ev;
    if (slice_eq_str(req->action, "rm"))
        return jobs_remove(j, req->id, e);
    if (job_event_of_word(req->action, &ev) < 0)
        return err_set(e, ERR_BAD_OPTION, "'" SLICE_FMT "': no such action", SLICE_ARG(req->action));
    LOCK_SCOPE(&j->lock);
    struct job *job = jobs_find_locked(j, req->id);
    if (!job)
        return err_set(e, -ENOENT, "job %" PRIu64 " does not exist", req->id);
    struct job_record *r = &job->record;
    enum job_state next, before = (enum job_state)r->state;
    if (ev == JOB_ON_LISTED && r->spec.listed && !r->list_comes) /* it was heard before */
        return 0;
    if (job_next_state(before, ev, &next) < 0)
        return err_set(e, -EINVAL, "job %" PRIu64 " is %s: " SLICE_FMT " makes no sense", req->id,
                       job_state_name(before), SLICE_ARG(req->action));
    if (ev == JOB_ON_RESUME && r->list_comes)
        return err_set(e, -EINVAL,
                       "job %" PRIu64 ": " LIST_COMES ": the command that sent it has ended, or is still "
                       "at it; cancel the job and start it again",
                       req->id);
    uint64_t phase = r->phase, ended_ns = r->ended_ns, list_comes = r->list_comes;
    _cleanup_free_ char *cursor = slice_dup(slice_str(r->cursor)), *reason = slice_dup(slice_str(r->reason));
    apply_event(r, ev, next);
    int k = jobs_commit_state_locked(j, job, e);
    if (k < 0) { /* nothing has happened */
        r->state = before;
        r->phase = phase;
        r->ended_ns = ended_ns;
        r->list_comes = list_comes;
        job_set_text(&r->cursor, slice_str(cursor));
        job_set_text(&r->reason, slice_str(reason));
        return k;
    }
    if (next == JOB_PAUSED || next == JOB_CANCELLED)
        atomic_store(&job->stop, true);
    cond_broadcast(&j->ended);
    jobs_kick_locked(j);
    return 0;
}

/* ---- errors ---- */

static int errors_page(struct jobs *j, const struct wire_job_errors_req *req, json_t *list, struct arena *a,
                       struct wire_job_errors_rep *rep, struct err *e)
{
    _cleanup_buf_ struct buf all = BUF_INIT(JOB_KEY_MAX), from = BUF_INIT(64 * KIB),
                             to = BUF_INIT(JOB_KEY_MAX);
    job_key_error(req->id, SLICE_NULL, &all);
    job_key_error(req->id, req->after, &from);
    int r = kv_prefix_end(buf_view(&all), &to);
    if (r == 0 && req->after.n > 0)
        r = buf_char(&from, '\0');
    if (r < 0)
        return err_set(e, r, "errors of a job");
    _cleanup_(kv_iter_freep) struct kv_iter *it = kv_iter_new(j->kv, buf_view(&from), buf_view(&to));
    struct slice key, value, reason;
    size_t bytes = 0;
    while ((r = kv_iter_next(it, &key, &value, e)) == 0) {
        int code = 0;
        if (json_array_size(list) == ERRORS_PAGE || bytes > PAGE_MAX_BYTES) {
            rep->truncated = 1;
            return 0;
        }
        if (job_error_decode(value, &code, &reason) < 0)
            return err_set(e, ERR_CORRUPT, "an error record of job %" PRIu64 " is damaged", req->id);
        key = slice_from(key, JOB_KEY_HEAD);
        rep->next = arena_dup(a, key);
        bytes += key.n + value.n;
        json_t *k = json_stringn(key.p, key.n); /* NULL when it is not UTF-8 */
        _cleanup_buf_ struct buf escaped = BUF_INIT(4 * KIB);
        if (!k && text_uri_encode(&escaped, key, /* keep_slash= */ true) == 0)
            k = json_string(escaped.p);
        _cleanup_buf_ struct buf why = BUF_INIT(TEXT_MAX_BYTES);
        (void)json_array_append_new(list, json_pack("{s:o, s:s, s:s}", "key", k, "code", err_name(code),
                                                    "reason", text_utf8(&why, reason)));
    }
    return r == -ENOENT ? 0 : r;
}

static int op_errors(struct jobs *j, const struct wire_job_errors_req *req, struct arena *a,
                     struct wire_job_errors_rep *rep, struct err *e)
{
    lock_take(&j->lock);
    bool known = jobs_find_locked(j, req->id) != NULL;
    lock_drop(&j->lock);
    if (!known)
        return err_set(e, -ENOENT, "job %" PRIu64 " does not exist", req->id);
    if (req->after.n > ORIGIN_KEY_MAX_BYTES)
        return err_set(e, -ENAMETOOLONG, "errors of a job: key too long");
    json_t *list = json_array();
    int r = errors_page(j, req, list, a, rep, e);
    if (r < 0) {
        json_decref(list);
        return r;
    }
    return give_json(list, a, &rep->json, e);
}

int jobs_call(void *arg, uint32_t op, const void *req, struct arena *a, void *rep, struct err *e)
{
    struct jobs *j = CAST_MAGIC(jobs, arg, JOBS_MAGIC);
    switch (op) {
    case WIRE_OP_JOB_START:
        return op_start(j, req, a, rep, e);
    case WIRE_OP_JOB_LIST:
        return op_list(j, req, a, rep, e);
    case WIRE_OP_JOB_GET:
        return op_get(j, req, a, rep, e);
    case WIRE_OP_JOB_WAIT:
        return op_wait(j, req, a, rep, e);
    case WIRE_OP_JOB_CHANGE:
        return op_change(j, req, e);
    case WIRE_OP_JOB_ERRORS:
        return op_errors(j, req, a, rep, e);
    case WIRE_OP_JOB_KEYS:
        return op_keys(j, req, e);
    default:
        return err_set(e, ERR_PROTOCOL, "operation %u is not one of a job", op);
    }
}

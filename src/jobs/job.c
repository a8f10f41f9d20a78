/* States, records and keys of jobs (contract and formats in job.h). */
#include "jobs/job.h"

#include "base/le.h"
#include "base/text.h"
#include "namespace/seal.h"

#include <inttypes.h>

#define RECORD_HEAD "forebay job 1\n"
#define PLAIN_HEAD  "set="
#define MODES_LOST  "modes_lost"
#define LIST_COMES  "list_comes"
#define SEALED_HEAD "set@1="
#define NO          JOB_N_STATES

const char *job_state_name(enum job_state s)
{
    static const char *const names[] = {
#define X(NAME, name, final) name,
        JOB_STATES(X)
#undef X
    };
    assert(s < JOB_N_STATES);
    return names[s];
}

bool job_state_is_final(enum job_state s)
{
    static const bool finals[] = {
#define X(NAME, name, final) final,
        JOB_STATES(X)
#undef X
    };
    assert(s < JOB_N_STATES);
    return finals[s];
}

int job_next_state(enum job_state s, enum job_event ev, enum job_state *ret)
{
    static const unsigned char next[JOB_N_STATES][JOB_N_EVENTS] = {
        /* BEGIN, PAUSE, RESUME, LISTED, CANCEL, RETRY, FINISH, FINISH_PARTLY, FAIL, INTERRUPT */
        [JOB_QUEUED] = {JOB_RUNNING, JOB_PAUSED, NO, NO, JOB_CANCELLED, NO, NO, NO, NO, JOB_QUEUED},
        [JOB_RUNNING] = {NO, JOB_PAUSED, NO, NO, JOB_CANCELLED, NO, JOB_DONE, JOB_PARTIAL, JOB_FAILED,
                         JOB_QUEUED},
        [JOB_PAUSED] = {NO, JOB_PAUSED, JOB_QUEUED, JOB_QUEUED, JOB_CANCELLED, NO, NO, NO, NO, JOB_PAUSED},
        [JOB_DONE] = {NO, NO, NO, NO, NO, NO, NO, NO, NO, JOB_DONE},
        [JOB_PARTIAL] = {NO, NO, NO, NO, NO, JOB_QUEUED, NO, NO, NO, JOB_PARTIAL},
        [JOB_FAILED] = {NO, NO, JOB_QUEUED, NO, JOB_CANCELLED, JOB_QUEUED, NO, NO, NO, JOB_FAILED},
        [JOB_CANCELLED] = {NO, NO, NO, NO, JOB_CANCELLED, NO, NO, NO, NO, JOB_CANCELLED},
    };
    assert(s < JOB_N_STATES && ev < JOB_N_EVENTS);
    if (next[s][ev] == NO)
        return -EINVAL;
    *ret = next[s][ev];
    return 0;
}

int job_event_of_word(struct slice word, enum job_event *ret)
{
    static const char *const words[] = {
#define X(NAME, word) word,
        JOB_EVENTS(X)
#undef X
    };
    for (unsigned i = 0; i < JOB_N_EVENTS; i++) {
        if (words[i] && slice_eq_str(word, words[i])) {
            *ret = (enum job_event)i;
            return 0;
        }
    }
    return -ENOENT;
}

/* ---- records ---- */

static void fini_text(char **p)
{
    free(*p);
    *p = NULL;
}

static void fini_u64(uint64_t *p)
{
    *p = 0;
}

void job_record_fini(struct job_record *r)
{
#define X(type, name) fini_##type(&r->name);
    JOB_FIELDS(X)
#undef X
    job_spec_fini(&r->spec);
}

void job_set_text(char **field, struct slice s)
{
    char *copy = slice_dup(s);
    free(*field);
    *field = copy;
}

static int put_u64(struct buf *b, const char *name, uint64_t v)
{
    return buf_printf(b, "%s=%" PRIu64 "\n", name, v);
}

static int put_text(struct buf *b, const char *name, const char *v)
{
    int r = buf_printf(b, "%s=", name);
    r = r < 0 ? r : text_uri_encode(b, slice_str(v), /* keep_slash= */ true);
    return r < 0 ? r : buf_char(b, '\n');
}

/* ---- secrets ---- */

static void seal_context(const struct job_record *rec, char ret[32], struct slice *ret_context)
{
    int n = snprintf(ret, 32, "job%c%" PRIu64, '\0', rec->id);
    *ret_context = slice_of(ret, (size_t)n);
}

static int put_spec_line(const struct job_record *rec, const struct seal *seal, struct slice line,
                         struct buf *b)
{
    char text[32];
    struct slice context;
    if (!seal || !slice_starts(line, SLICE_LIT(PLAIN_HEAD)))
        return buf_printf(b, SLICE_FMT "\n", SLICE_ARG(line));
    seal_context(rec, text, &context);
    int r = buf_str(b, SEALED_HEAD);
    r = r < 0 ? r : seal_wrap(seal, context, slice_from(line, strlen(PLAIN_HEAD)), b);
    return r < 0 ? r : buf_char(b, '\n');
}

/* The spec's lines with what is sealed opened. */
static int open_spec(const struct job_record *rec, const struct seal *seal, struct slice lines, struct buf *b,
                     struct err *e)
{
    char text[32];
    struct slice context;
    seal_context(rec, text, &context);
    int r = 0;
    while (r == 0 && lines.n > 0) {
        struct slice line = slice_split(&lines, '\n');
        bool sealed = slice_starts(line, SLICE_LIT(SEALED_HEAD));
        if (sealed && !seal)
            return err_set(e, ERR_CORRUPT, "a secret is sealed, and there is no key");
        r = sealed ? buf_str(b, PLAIN_HEAD) : buf_slice(b, line);
        if (r == 0 && sealed)
            r = seal_unwrap(seal, context, slice_from(line, strlen(SEALED_HEAD)), b, e);
        r = r < 0 ? r : buf_char(b, '\n');
    }
    return r;
}

bool job_choice_is_apart(const struct job_record *r)
{
    _cleanup_buf_ struct buf spec = BUF_INIT(JOB_SPEC_MAX_BYTES);
    bool is_apart = r->spec.chosen.n > 0 && job_spec_encode(&r->spec, &spec, NULL) < 0;
    if (spec.p)
        explicit_bzero(spec.p, spec.n);
    return is_apart;
}

int job_record_encode(const struct job_record *rec, const struct seal *seal, struct buf *b, struct err *e)
{
    int r = buf_str(b, RECORD_HEAD);
#define X(type, name) r = r < 0 ? r : put_##type(b, #name, rec->name);
    JOB_FIELDS(X)
#undef X
    if (r == 0 && rec->modes_lost > 0)
        r = put_u64(b, MODES_LOST, rec->modes_lost);
    if (r == 0 && rec->list_comes > 0)
        r = put_u64(b, LIST_COMES, rec->list_comes);
    r = r < 0 ? r : buf_char(b, '\n');
    _cleanup_buf_ struct buf spec = BUF_INIT(JOB_SPEC_MAX_BYTES);
    struct job_spec kept = rec->spec; /* borrowed */
    if (job_choice_is_apart(rec))
        kept.chosen = (struct option_list){0};
    if (r == 0 && (r = job_spec_encode(&kept, &spec, e)) < 0)
        return r;
    for (struct slice lines = buf_view(&spec); r == 0 && lines.n > 0;)
        r = put_spec_line(rec, seal, slice_split(&lines, '\n'), b);
    if (spec.p)
        explicit_bzero(spec.p, spec.n);
    return r < 0 ? err_set(e, r, "job %" PRIu64 ": its record is too long", rec->id) : 0;
}

static int get_u64(struct slice v, uint64_t *ret)
{
    return slice_u64(v, ret);
}

static int get_text(struct slice v, char **ret)
{
    _cleanup_buf_ struct buf b = BUF_INIT(JOB_RECORD_MAX);
    int r = text_uri_decode(&b, v, /* plus_is_space= */ false);
    if (r == 0)
        job_set_text(ret, buf_view(&b));
    return r;
}

static int field(struct slice *s, const char *name, struct slice *ret)
{
    struct slice value = slice_split(s, '\n');
    struct slice key = slice_split(&value, '=');
    *ret = value;
    return slice_eq_str(key, name) ? 0 : -EINVAL;
}

/* A number whose line may be missing. */
static int optional(struct slice *s, const char *name, uint64_t *ret)
{
    struct slice v;
    if (!slice_starts(*s, slice_str(name)))
        return 0;
    int r = field(s, name, &v);
    return r < 0 ? r : get_u64(v, ret);
}

int job_record_decode(struct slice value, const struct seal *seal, struct job_record *rec, struct err *e)
{
    if (!slice_starts(value, SLICE_LIT(RECORD_HEAD)))
        return err_set(e, ERR_CORRUPT, "record of a job is not one of ours");
    struct slice rest = slice_from(value, sizeof(RECORD_HEAD) - 1), v;
    int r = 0;
#define X(type, name)                                                                                        \
    r = r < 0 ? r : field(&rest, #name, &v);                                                                 \
    r = r < 0 ? r : get_##type(v, &rec->name);
    JOB_FIELDS(X)
#undef X
    r = r < 0 ? r : optional(&rest, MODES_LOST, &rec->modes_lost);
    r = r < 0 ? r : optional(&rest, LIST_COMES, &rec->list_comes);
    bool ends = slice_starts(rest, SLICE_LIT("\n"));
    if (r < 0 || !ends || rec->state >= JOB_N_STATES || rec->phase >= JOB_N_PHASES)
        return err_set(e, ERR_CORRUPT, "record of a job is damaged");
    _cleanup_buf_ struct buf spec = BUF_INIT(JOB_RECORD_MAX);
    r = open_spec(rec, seal, slice_from(rest, 1), &spec, e);
    if (r == 0)
        r = job_spec_decode(buf_view(&spec), &rec->spec, e);
    if (spec.p)
        explicit_bzero(spec.p, spec.n);
    return r < 0 ? err_prefix(e, ERR_CORRUPT, "record of a job") : 0;
}

/* ---- keys ---- */

void job_key_record(uint64_t id, struct buf *b)
{
    buf_clear(b);
    if (buf_printf(b, "j/r/%016" PRIx64, id) < 0)
        abort(); /* callers give room for JOB_KEY_MAX */
}

static void object_key(char kind, uint64_t id, struct slice key, struct buf *b)
{
    buf_clear(b);
    if (buf_printf(b, "j/%c/%016" PRIx64 "/", kind, id) < 0 || buf_slice(b, key) < 0)
        abort(); /* as above; keys are at most ORIGIN_KEY_MAX_BYTES long */
}

void job_key_error(uint64_t id, struct slice key, struct buf *b)
{
    object_key('e', id, key, b);
}

void job_key_choice(uint64_t id, struct slice number, struct buf *b)
{
    object_key('c', id, number, b);
}

void job_key_listed(uint64_t id, struct slice key, struct buf *b)
{
    object_key('l', id, key, b);
}

void job_key_manifest(uint64_t id, struct slice key, struct buf *b)
{
    object_key('m', id, key, b);
}

int job_parse_key_record(struct slice k, uint64_t *ret_id)
{
    uint8_t p[8];
    if (k.n != 20 || !slice_starts(k, SLICE_LIT("j/r/")) || text_unhex(slice_from(k, 4), p, sizeof(p)) < 0)
        return -EINVAL;
    *ret_id = be_get64(p);
    return 0;
}

int job_error_encode(int code, const char *reason, struct buf *b)
{
    return buf_printf(b, "%d\n%s", code, reason);
}

int job_error_decode(struct slice value, int *ret_code, struct slice *ret_reason)
{
    struct slice code = slice_split(&value, '\n');
    uint64_t v;
    if (code.n < 2 || code.p[0] != '-' || slice_u64(slice_from(code, 1), &v) < 0 || v > INT32_MAX)
        return ERR_CORRUPT;
    *ret_code = -(int)v;
    *ret_reason = value;
    return 0;
}

bool job_is_url(struct slice path)
{
    return slice_find_slice(path, SLICE_LIT("://")) > 0;
}

void job_split(const char *path, struct slice *ret_bucket, struct slice *ret_prefix)
{
    struct slice s = slice_str(path);
    *ret_bucket = slice_split(&s, '/');
    *ret_prefix = s;
}

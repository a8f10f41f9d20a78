/* Arming and matching faults; contract in fault.h. What they do is done in respond.c. */
#include "fault.h"

#include "base/text.h"

void faults_init(struct faults *f)
{
    lock_init(&f->lock, LOCK_LEAF);
    f->n = 0;
    f->releases = 0;
}

void faults_fini(struct faults *f)
{
    lock_fini(&f->lock);
}

void faults_clear(struct faults *f)
{
    LOCK_SCOPE(&f->lock);
    f->n = 0;
}

void faults_release(struct faults *f)
{
    LOCK_SCOPE(&f->lock);
    f->releases++;
}

bool faults_is_released(struct faults *f, const struct fault *taken)
{
    LOCK_SCOPE(&f->lock);
    return f->releases != taken->releases;
}

static int set_kind(struct fault *f, struct slice value, struct err *e)
{
    static const char *const names[] = {
#define X(name, text, meaning) text,
        FAULT_KINDS(X)
#undef X
    };
    struct slice code = value, name = slice_split(&code, ':');
    for (size_t i = 0; i < ARRAY_SIZE(names); i++)
        if (slice_eq_str(name, names[i]))
            f->kind = (enum fault_kind)(i + 1);
    uint64_t status = 0;
    if (f->kind == FAULT_STATUS && (slice_u64(code, &status) < 0 || status < 400 || status > 599))
        return err_set(e, ERR_BAD_OPTION, "kind " SLICE_FMT ": not status:CODE with 400 to 599",
                       SLICE_ARG(value));
    f->status = (int)status;
    if (f->kind == FAULT_NONE || (f->kind != FAULT_STATUS && code.n))
        return err_set(e, ERR_BAD_OPTION,
                       "kind " SLICE_FMT ": not truncate, reset, stall, flip, wrong-length or status:CODE",
                       SLICE_ARG(value));
    return 0;
}

static int set_parameter(struct fault *f, struct slice name, struct slice value, struct err *e)
{
    int r = -EINVAL;
    if (slice_eq_str(name, "kind"))
        return set_kind(f, value, e);
    if (slice_eq_str(name, "count"))
        r = slice_u64(value, &f->count);
    else if (slice_eq_str(name, "skip"))
        r = slice_u64(value, &f->skip);
    else if (slice_eq_str(name, "at"))
        r = slice_u64(value, &f->at);
    else if (slice_eq_str(name, "for"))
        r = text_parse_duration(value, &f->stall_ms);
    else if (slice_eq_str(name, "match") && value.n < sizeof(f->match)) {
        memcpy(f->match, value.p, value.n);
        f->match[value.n] = '\0';
        r = 0;
    }
    if (r < 0)
        return err_set(e, ERR_BAD_OPTION,
                       SLICE_FMT " " SLICE_FMT ": no such parameter, or not a value for it", SLICE_ARG(name),
                       SLICE_ARG(value));
    return 0;
}

int faults_arm(struct faults *f, struct slice query, struct err *e)
{
    struct fault new = {.at = FAULT_HALF, .stall_ms = 3600000, .count = 1};
    while (query.n) {
        struct slice value = slice_split(&query, '&'), name = slice_split(&value, '=');
        struct buf _cleanup_buf_ b = BUF_INIT(FAULT_MATCH_MAX);
        if (text_uri_decode(&b, value, /* plus_is_space= */ true) < 0)
            return err_set(e, ERR_BAD_OPTION, SLICE_FMT ": not percent-encoded, or too long",
                           SLICE_ARG(name));
        int r = set_parameter(&new, name, buf_view(&b), e);
        if (r < 0)
            return r;
    }
    if (new.kind == FAULT_NONE || new.count == 0)
        return err_set(e, ERR_BAD_OPTION, "kind or count: missing");
    LOCK_SCOPE(&f->lock);
    if (f->n == FAULTS_MAX)
        return err_set(e, -ENOSPC, "%d faults are armed already", FAULTS_MAX);
    f->v[f->n++] = new;
    return 0;
}

uint64_t faults_armed(struct faults *f)
{
    LOCK_SCOPE(&f->lock);
    uint64_t n = 0;
    for (size_t i = 0; i < f->n; i++)
        n += f->v[i].count;
    return n;
}

static bool matches(const struct fault *f, struct slice method, struct slice target)
{
    char line[FAULT_LINE_MAX];
    int n = snprintf(line, sizeof(line), SLICE_FMT " " SLICE_FMT, SLICE_ARG(method), SLICE_ARG(target));
    return slice_find_slice(slice_of(line, MIN((size_t)n, sizeof(line) - 1)), slice_str(f->match)) >= 0;
}

void faults_take(struct faults *f, struct slice method, struct slice target, struct fault *ret)
{
    LOCK_SCOPE(&f->lock);
    ret->kind = FAULT_NONE;
    for (size_t i = 0; i < f->n; i++) {
        if (!matches(&f->v[i], method, target))
            continue;
        if (f->v[i].skip > 0) {
            f->v[i].skip--;
            continue;
        }
        *ret = f->v[i];
        ret->releases = f->releases;
        if (--f->v[i].count == 0)
            memmove(&f->v[i], &f->v[i + 1], (--f->n - i) * sizeof(f->v[0]));
        return;
    }
}

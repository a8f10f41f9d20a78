/* Selection of objects (contract in filter.h). */
#include "jobs/filter.h"

#include "base/text.h"

#include <regex.h>

/* glibc compiles by recursion, into memory that repetitions multiply, and a thread's stack may be 256 KiB. */
#define REGEX_MAX_BYTES 1024
#define REGEX_DEPTH_MAX 32
#define REGEX_ATOMS_MAX 512

struct filter {
    const struct job_spec *spec;
    bool has_regex;
    regex_t regex;
    uint64_t newer_ns, older_ns;
};

/* A set at glob[at] ('['): whether c is in it, and where it ends. 0 when it is not closed: a plain '['. */
static size_t match_set(struct slice glob, size_t at, char c, bool *ret_in)
{
    size_t i = at + 1;
    bool negated = i < glob.n && (glob.p[i] == '!' || glob.p[i] == '^'), in = false;
    i += negated;
    for (size_t first = i; i < glob.n; i++) {
        if (glob.p[i] == ']' && i > first) {
            *ret_in = in != negated;
            return i + 1;
        }
        unsigned char lo = (unsigned char)glob.p[i], hi = lo;
        if (i + 2 < glob.n && glob.p[i + 1] == '-' && glob.p[i + 2] != ']') {
            hi = (unsigned char)glob.p[i + 2];
            i += 2;
        }
        in |= lo <= (unsigned char)c && (unsigned char)c <= hi;
    }
    return 0;
}

/* One element of the glob against one byte: where the next element begins, or 0. */
static size_t match_one(struct slice glob, size_t at, char c)
{
    if (at >= glob.n)
        return 0;
    bool in;
    size_t end;
    switch (glob.p[at]) {
    case '?':
        return at + 1;
    case '[':
        end = match_set(glob, at, c, &in);
        if (end > 0)
            return in ? end : 0;
        return c == '[' ? at + 1 : 0;
    case '\\':
        if (at + 1 < glob.n)
            return glob.p[at + 1] == c ? at + 2 : 0;
        return c == '\\' ? at + 1 : 0;
    default:
        return glob.p[at] == c ? at + 1 : 0;
    }
}

bool filter_glob(struct slice glob, struct slice s)
{
    size_t g = 0, i = 0, star = SIZE_MAX, from = 0;
    while (i < s.n) {
        size_t next;
        if (g < glob.n && glob.p[g] == '*') {
            star = ++g;
            from = i;
        } else if ((next = match_one(glob, g, s.p[i])) > 0) {
            g = next;
            i++;
        } else if (star != SIZE_MAX) {
            g = star;
            i = ++from;
        } else {
            return false;
        }
    }
    while (g < glob.n && glob.p[g] == '*')
        g++;
    return g == glob.n;
}

static int parse_date(const char *name, const char *text, uint64_t *ret, struct err *e)
{
    if (text && text[0] && text_parse_when(slice_str(text), ret) < 0)
        return err_set(e, ERR_BAD_OPTION, "--%s %s: must be a date as 2026-01-31 or 2026-01-31T00:00:00Z",
                       name, text);
    return 0;
}

/* How often the repetition at text[at] ('+' or '{') puts what stands before it; where it ends. */
static uint64_t repetition(struct slice text, size_t at, size_t *ret_end)
{
    uint64_t v = 0, most = 1;
    size_t i = at + 1;
    *ret_end = i;
    if (text.p[at] == '+') /* "a+" becomes "aa*" */
        return 2;
    for (; i < text.n && text.p[i] != '}'; i++) {
        bool digit = text.p[i] >= '0' && text.p[i] <= '9';
        v = digit ? MIN(v * 10 + (uint64_t)(text.p[i] - '0'), (uint64_t)UINT16_MAX) : 0;
        most = MAX(most, v);
    }
    *ret_end = MIN(i + 1, text.n);
    return most + 1; /* "a{3,}" becomes "aaaa*" */
}

/* Behind the set that begins at text[at]. */
static size_t behind_set(struct slice text, size_t at)
{
    size_t i = at + 1;
    i += i < text.n && text.p[i] == '^';
    i += i < text.n && text.p[i] == ']';
    while (i < text.n && text.p[i] != ']') {
        char kind = text.p[i] == '[' && i + 1 < text.n ? text.p[i + 1] : '\0';
        i++;
        if (kind != ':' && kind != '.' && kind != '=')
            continue;
        for (i++; i + 1 < text.n && !(text.p[i] == kind && text.p[i + 1] == ']'); i++)
            ;
        i += 2;
    }
    return MIN(i + 1, text.n);
}

/* Whether the expression may be given to regcomp: no deeper and, with its repetitions written out, no longer
 * than the limits above. References back would make matching take time without bound. */
static int check_regex(struct slice text, struct err *e)
{
    uint64_t sums[REGEX_DEPTH_MAX + 1] = {0}, last = 0;
    size_t depth = 0;
    bool too_large = text.n > REGEX_MAX_BYTES;
    for (size_t i = 0; i < text.n && !too_large;) {
        char c = text.p[i];
        size_t end = i + 1;
        uint64_t was = last;
        if (c == '(') {
            too_large = ++depth > REGEX_DEPTH_MAX;
            if (!too_large)
                sums[depth] = 0;
            last = 0;
        } else if (c == ')' && depth > 0) {
            last = sums[depth--] + 1;
            sums[depth] += last;
        } else if (c == '+' || c == '{') {
            last = MAX(was, (uint64_t)1) * repetition(text, i, &end);
            sums[depth] += last - was;
        } else {
            if (c == '\\' && end < text.n) {
                if (text.p[end] >= '1' && text.p[end] <= '9')
                    return err_set(e, ERR_BAD_OPTION, "--regex: references back, as \\1, are not possible");
                end++;
            } else if (c == '[') {
                end = behind_set(text, i);
            }
            last = c == '*' || c == '?' ? was + 1 : 1;
            sums[depth] += c == '*' || c == '?' ? 1 : last;
        }
        too_large = too_large || sums[depth] > REGEX_ATOMS_MAX;
        i = end;
    }
    if (too_large)
        return err_set(e, ERR_BAD_OPTION,
                       "--regex: too large: at most %d bytes, %d levels of parentheses, and %d characters "
                       "with the repetitions written out",
                       REGEX_MAX_BYTES, REGEX_DEPTH_MAX, REGEX_ATOMS_MAX);
    return 0;
}

int filter_open(const struct job_spec *s, struct filter **ret, struct err *e)
{
    _cleanup_(filter_freep) struct filter *f = calloc(1, sizeof(*f));
    assert(f);
    f->spec = s;
    int r = parse_date("newer", s->newer, &f->newer_ns, e);
    if (r == 0)
        r = parse_date("older", s->older, &f->older_ns, e);
    if (r < 0)
        return r;
    if (s->max_size > 0 && s->max_size < s->min_size)
        return err_set(e, ERR_BAD_OPTION, "--max-size: below --min-size, nothing would match");
    if (f->newer_ns > 0 && f->older_ns > 0 && f->older_ns <= f->newer_ns)
        return err_set(e, ERR_BAD_OPTION, "--older %s: not behind --newer %s, nothing would match", s->older,
                       s->newer);
    if (s->regex && s->regex[0]) {
        r = check_regex(slice_str(s->regex), e);
        if (r < 0)
            return r;
        int k = regcomp(&f->regex, s->regex, REG_EXTENDED | REG_NOSUB);
        if (k != 0) {
            char why[128];
            (void)regerror(k, &f->regex, why, sizeof(why));
            return err_set(e, ERR_BAD_OPTION, "--regex %s: %s", s->regex, why);
        }
        f->has_regex = true;
    }
    *ret = TAKE_PTR(f);
    return 0;
}

void filter_free(struct filter *f)
{
    if (!f)
        return;
    if (f->has_regex)
        regfree(&f->regex);
    free(f);
}

static bool any_glob(const struct option_list *l, struct slice key)
{
    for (size_t i = 0; i < l->n; i++)
        if (filter_glob(slice_str(l->v[i]), key))
            return true;
    return false;
}

bool filter_needs_attributes(const struct filter *f)
{
    const struct job_spec *s = f->spec;
    return s->min_size > 0 || s->max_size > 0 || f->newer_ns > 0 || f->older_ns > 0;
}

bool filter_match(const struct filter *f, struct slice key, uint64_t size_bytes, uint64_t mtime_ns)
{
    const struct job_spec *s = f->spec;
    if (size_bytes < s->min_size || (s->max_size > 0 && size_bytes > s->max_size))
        return false;
    if (mtime_ns > 0 && (mtime_ns < f->newer_ns || (f->older_ns > 0 && mtime_ns >= f->older_ns)))
        return false;
    if (s->include.n > 0 && !any_glob(&s->include, key))
        return false;
    if (any_glob(&s->exclude, key))
        return false;
    if (!f->has_regex)
        return true;
    _cleanup_free_ char *text = slice_dup(key);
    return regexec(&f->regex, text, 0, NULL, 0) == 0;
}

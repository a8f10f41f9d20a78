/* Selection of objects (contract in filter.h). */
#include "jobs/filter.h"

#include "base/text.h"

#include <regex.h>

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
    if (text && text[0] && text_parse_date(slice_str(text), ret) < 0)
        return err_set(e, ERR_BAD_OPTION, "--%s %s: must be a date as 2026-01-31T00:00:00Z", name, text);
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
    if (s->regex && s->regex[0]) {
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

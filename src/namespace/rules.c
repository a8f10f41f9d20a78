/* Rules for prefixes of a bucket (contract and text form in rules.h). */
#include "namespace/rules.h"

#include "base/text.h"
#include "origin/origin.h"

#include <inttypes.h>

void rules_fini(struct rules *r)
{
    for (size_t i = 0; i < r->n; i++)
        free(r->v[i].prefix);
    free(r->v);
    *r = (struct rules){0};
}

/* The rule of exactly this prefix; made when there is none. NULL when there are too many. */
static struct rule *rule_of(struct rules *r, struct slice prefix)
{
    for (size_t i = 0; i < r->n; i++)
        if (slice_eq(prefix, slice_of(r->v[i].prefix, r->v[i].prefix_n)))
            return &r->v[i];
    if (r->n == RULES_MAX)
        return NULL;
    r->v = realloc(r->v, (r->n + 1) * sizeof(*r->v));
    assert(r->v);
    r->v[r->n] = (struct rule){.prefix = slice_dup(prefix), .prefix_n = prefix.n};
    return &r->v[r->n++];
}

/* ---- text ---- */

static int apply(struct rule *rule, struct slice name, struct slice value)
{
    bool bare = value.n == 0;
    if (slice_eq_str(name, "pin") && bare)
        rule->keep = RULE_KEEP_PINNED;
    else if (slice_eq_str(name, "never") && bare)
        rule->keep = RULE_KEEP_NEVER;
    else if (slice_eq_str(name, "ttl") && slice_u64(value, &rule->ttl_ms) == 0)
        rule->has_ttl = true;
    else
        return -EINVAL;
    return 0;
}

static int parse_one(struct slice text, struct rules *ret)
{
    ssize_t colon = slice_find(text, ':');
    if (colon < 0)
        return -EINVAL;
    struct slice value = slice_sub(text, 0, (size_t)colon), name = slice_split(&value, '=');
    _cleanup_buf_ struct buf prefix = BUF_INIT(ORIGIN_KEY_MAX_BYTES);
    int r = text_uri_decode(&prefix, slice_from(text, (size_t)colon + 1), /* plus_is_space= */ false);
    struct rule *rule = r < 0 ? NULL : rule_of(ret, buf_view(&prefix));
    return rule ? apply(rule, name, value) : -EINVAL;
}

int rules_parse(const char *text, struct rules *ret, struct err *e)
{
    struct slice rest = slice_str(text);
    if (rest.n > RULES_TEXT_MAX_BYTES)
        return err_set(e, ERR_BAD_OPTION, "rules: longer than %d bytes", (int)RULES_TEXT_MAX_BYTES);
    while (rest.n > 0) {
        struct slice one = slice_split(&rest, ';');
        if (one.n > 0 && parse_one(one, ret) < 0)
            return err_set(e, ERR_BAD_OPTION,
                           "rules '" SLICE_FMT "': must be pin:PREFIX, never:PREFIX or ttl=MS:PREFIX",
                           SLICE_ARG(slice_sub(one, 0, 100)));
    }
    return 0;
}

static int put(struct buf *b, const struct rule *rule, const char *what)
{
    int r = buf_printf(b, "%s%s:", b->n > 0 ? ";" : "", what);
    return r < 0 ? r : text_uri_encode(b, slice_of(rule->prefix, rule->prefix_n), /* keep_slash= */ true);
}

int rules_format(const struct rules *rules, struct buf *b)
{
    int r = 0;
    for (size_t i = 0; i < rules->n && r == 0; i++) {
        const struct rule *x = &rules->v[i];
        char ttl[32];
        (void)snprintf(ttl, sizeof(ttl), "ttl=%" PRIu64, x->ttl_ms);
        if (x->keep != RULE_KEEP_UNSAID)
            r = put(b, x, x->keep == RULE_KEEP_PINNED ? "pin" : "never");
        if (r == 0 && x->has_ttl)
            r = put(b, x, ttl);
    }
    return r;
}

/* ---- questions ---- */

static bool holds(const struct rule *x, struct slice key)
{
    return slice_starts(key, slice_of(x->prefix, x->prefix_n));
}

enum rule_keep rules_keep(const struct rules *r, struct slice key)
{
    const struct rule *best = NULL;
    for (size_t i = 0; i < r->n; i++) {
        const struct rule *x = &r->v[i];
        if (x->keep != RULE_KEEP_UNSAID && holds(x, key) && (!best || x->prefix_n > best->prefix_n))
            best = x;
    }
    return best ? best->keep : RULE_KEEP_UNSAID;
}

bool rules_ttl(const struct rules *r, struct slice key, uint64_t *ret_ttl_ms)
{
    const struct rule *best = NULL;
    for (size_t i = 0; i < r->n; i++) {
        const struct rule *x = &r->v[i];
        if (x->has_ttl && holds(x, key) && (!best || x->prefix_n > best->prefix_n))
            best = x;
    }
    if (best)
        *ret_ttl_ms = best->ttl_ms;
    return best != NULL;
}

/* ---- changes ---- */

static int change_keep(struct rule *rule, enum rule_keep keep, bool on)
{
    if (on)
        rule->keep = keep;
    else if (rule->keep == keep)
        rule->keep = RULE_KEEP_UNSAID;
    return 0;
}

static int change(struct rule *rule, struct slice name, struct slice value)
{
    bool on;
    if (slice_eq_str(name, "pin") && text_parse_bool(value, &on) == 0)
        return change_keep(rule, RULE_KEEP_PINNED, on);
    if (slice_eq_str(name, "cache") && (slice_eq_str(value, "never") || slice_eq_str(value, "auto")))
        return change_keep(rule, RULE_KEEP_NEVER, slice_eq_str(value, "never"));
    if (!slice_eq_str(name, "ttl"))
        return -EINVAL;
    int r = value.n > 0 ? text_parse_duration(value, &rule->ttl_ms) : 0;
    rule->has_ttl = r == 0 ? value.n > 0 : rule->has_ttl;
    return r;
}

/* Rules that say nothing any more. */
static void tidy(struct rules *r)
{
    size_t kept = 0;
    for (size_t i = 0; i < r->n; i++) {
        if (r->v[i].keep == RULE_KEEP_UNSAID && !r->v[i].has_ttl)
            free(r->v[i].prefix);
        else
            r->v[kept++] = r->v[i];
    }
    r->n = kept;
}

int rules_change(struct rules *r, struct slice prefix, struct slice setting, struct err *e)
{
    if (prefix.n > ORIGIN_KEY_MAX_BYTES)
        return err_set(e, ERR_BAD_OPTION, "the prefix is longer than any key");
    struct rule *rule = rule_of(r, prefix);
    if (!rule)
        return err_set(e, ERR_BAD_OPTION, "more than %d prefixes with rules", RULES_MAX);
    struct slice value = setting, name = slice_split(&value, '=');
    int k = change(rule, name, value);
    tidy(r);
    if (k < 0)
        return err_set(e, ERR_BAD_OPTION,
                       "'" SLICE_FMT "': must be pin=true, pin=false, cache=never, cache=auto or ttl=TIME",
                       SLICE_ARG(slice_sub(setting, 0, 100)));
    return 0;
}

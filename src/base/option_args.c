/*
 * Options from the command line and the environment, and the guess at what a mistyped name meant.
 *
 * Invariants:
 *  1. A LIST given by a stronger source replaces the weaker source's values; within one source, values add
 * up.
 *  2. Operands keep their order.
 *
 * Failure modes: ERR_BAD_OPTION naming the argument; -ECANCELED for --help.
 */
#include "base/option_internal.h"

#include <ctype.h>

static bool is_off(const char *name)
{
    return strncmp(name, "no-", 3) == 0;
}

/*
 * Distance of two names in steps of one letter added, left out, changed, or swapped with its neighbour
 * (optimal string alignment). Names longer than OPTION_NAME_MAX are as far as can be.
 */
static size_t distance(const char *a, const char *b)
{
    size_t rows[3][OPTION_NAME_MAX + 1];
    size_t n = strlen(a), m = strlen(b);
    if (n > OPTION_NAME_MAX || m > OPTION_NAME_MAX)
        return SIZE_MAX;
    size_t *before = rows[0], *last = rows[1], *now = rows[2];
    for (size_t j = 0; j <= m; j++)
        last[j] = j;
    for (size_t i = 1; i <= n; i++) {
        now[0] = i;
        for (size_t j = 1; j <= m; j++) {
            now[j] = MIN(MIN(last[j], now[j - 1]) + 1, last[j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                now[j] = MIN(now[j], before[j - 2] + 1);
        }
        size_t *spare = before;
        before = last;
        last = now;
        now = spare;
    }
    return last[m];
}

int option_unknown(const struct option_table *t, const char *name, const char *dashes, struct err *e)
{
    const struct option *best = NULL;
    size_t best_distance = MAX((size_t)1, MIN((size_t)3, strlen(name) / 3)) + 1;
    for (size_t i = 0; i < t->n_rows; i++) {
        size_t d = t->rows[i].hidden ? SIZE_MAX : distance(name, t->rows[i].name);
        if (d < best_distance) {
            best_distance = d;
            best = &t->rows[i];
        }
    }
    if (best)
        return err_set(e, ERR_BAD_OPTION, "unknown option %s%s (did you mean %s%s?)", dashes, name, dashes,
                       best->name);
    return err_set(e, ERR_BAD_OPTION, "unknown option %s%s", dashes, name);
}

struct args {
    const struct option_table *t;
    void *opts;
    int argc, at;
    char **argv;
    bool *seen; /* per row: given before in this run */
};

static int give(struct args *a, const struct option *row, const char *value, const char *shown_as,
                struct err *e)
{
    bool *seen = &a->seen[row - a->t->rows];
    if (!*seen)
        option_list_restart(row, a->opts);
    *seen = true;
    return option_set_row(row, a->opts, value, shown_as, e);
}

/* The value behind a flag that needs one; the next argument, unless that is a flag itself. */
static int next_value(struct args *a, const struct option *row, const char *shown_as, const char **ret,
                      struct err *e)
{
    if (a->at + 1 >= a->argc || strncmp(a->argv[a->at + 1], "--", 2) == 0)
        return err_set(e, ERR_BAD_OPTION, "%s: needs a value (%s)", shown_as, row->arg ? row->arg : "VALUE");
    *ret = a->argv[++a->at];
    return 0;
}

static int on_long(struct args *a, const char *arg, struct err *e)
{
    const char *equals = strchr(arg, '=');
    _cleanup_free_ char *flag = slice_dup(slice_of(arg, equals ? (size_t)(equals - arg) : strlen(arg)));
    const char *name = flag + 2, *value = equals ? equals + 1 : NULL;
    const struct option *row = option_find(a->t, name);
    if (!row && is_off(name)) {
        row = option_find(a->t, name + 3);
        if (row && row->type == OPTION_BOOL) {
            if (value)
                return err_set(e, ERR_BAD_OPTION, "%s: takes no value", flag);
            return give(a, row, "false", flag, e);
        }
        row = NULL;
    }
    if (!row && strcmp(name, "help") == 0)
        return -ECANCELED;
    if (!row)
        return option_unknown(a->t, name, "--", e);
    if (!value && row->type == OPTION_BOOL)
        value = "true";
    int r = value ? 0 : next_value(a, row, flag, &value, e);
    return r < 0 ? r : give(a, row, value, flag, e);
}

static int on_short(struct args *a, const char *arg, struct err *e)
{
    const struct option *row = NULL;
    for (size_t i = 0; i < a->t->n_rows && !row; i++)
        if (a->t->rows[i].short_flag && a->t->rows[i].short_flag == arg[1])
            row = &a->t->rows[i];
    if (!row && strcmp(arg, "-h") == 0)
        return -ECANCELED;
    const char *value = arg[2] ? arg + 2 : NULL;
    char flag[3] = {'-', arg[1], '\0'};
    if (!row || (value && row->type == OPTION_BOOL))
        return err_set(e, ERR_BAD_OPTION, "unknown option %s", arg);
    if (!value && row->type == OPTION_BOOL)
        value = "true";
    int r = value ? 0 : next_value(a, row, flag, &value, e);
    return r < 0 ? r : give(a, row, value, flag, e);
}

int option_args(const struct option_table *t, void *opts, int argc, char **argv, int *ret_operands,
                struct err *e)
{
    assert(t && opts && argc >= 0 && (argv || argc == 0));
    _cleanup_free_ bool *seen = calloc(t->n_rows + 1, sizeof(*seen));
    if (!seen)
        abort();
    struct args a = {t, opts, argc, 0, argv, seen};
    bool ended = false;
    int operands = 0;
    for (; a.at < argc; a.at++) {
        char *arg = argv[a.at];
        int r = 0;
        if (!ended && strcmp(arg, "--") == 0)
            ended = true;
        else if (ended || arg[0] != '-' || arg[1] == '\0')
            argv[operands++] = arg;
        else
            r = arg[1] == '-' ? on_long(&a, arg, e) : on_short(&a, arg, e);
        if (r < 0)
            return r;
    }
    *ret_operands = operands;
    return 0;
}

/* prefix + "MAX_CONNECTIONS" from "max-connections". */
static char *env_name(const char *prefix, const char *name)
{
    size_t skip = strlen(prefix);
    char *text = malloc(skip + strlen(name) + 1);
    if (!text)
        abort();
    memcpy(text, prefix, skip);
    strcpy(text + skip, name);
    for (char *p = text + skip; *p; p++)
        *p = *p == '-' || *p == '.' ? '_' : (char)toupper((unsigned char)*p);
    return text;
}

int option_env(const struct option_table *t, void *opts, struct err *e)
{
    assert(t && opts);
    if (!t->env_prefix)
        return 0;
    for (size_t i = 0; i < t->n_rows; i++) {
        const struct option *row = &t->rows[i];
        _cleanup_free_ char *name = env_name(t->env_prefix, row->name);
        const char *value = getenv(name);
        int r = 0;
        if (!value || !*value)
            continue;
        if (row->type != OPTION_LIST) {
            r = option_set_row(row, opts, value, name, e);
        } else {
            option_list_restart(row, opts);
            struct slice left = slice_str(value);
            while (left.n && r == 0) {
                _cleanup_free_ char *one = slice_dup(slice_split(&left, ','));
                r = *one ? option_set_row(row, opts, one, name, e) : 0;
            }
        }
        if (r < 0)
            return r;
    }
    return 0;
}

/*
 * The option engine: values by row.
 *
 * Invariants:
 *  1. A field holds a value that its row allows, or the zero value when the row has no default.
 *  2. A value that is refused leaves the field as it was.
 *  3. option_get writes what option_set reads back to the same value.
 *
 * Failure modes: ERR_BAD_OPTION with a text that names the option, the value and what is allowed. Values of
 * secret rows never appear in a text.
 */
#include "base/option_internal.h"

#include "base/text.h"

const struct option *option_find(const struct option_table *t, const char *name)
{
    for (size_t i = 0; i < t->n_rows; i++)
        if (strcmp(t->rows[i].name, name) == 0)
            return &t->rows[i];
    return NULL;
}

static void put_duration(uint64_t ms, struct buf *b)
{
    static const struct {
        uint64_t ms;
        const char *name;
    } units[] = {{86400000, "d"}, {3600000, "h"}, {60000, "m"}, {1000, "s"}};
    for (size_t i = 0; i < ARRAY_SIZE(units); i++) {
        if (ms && ms % units[i].ms == 0) {
            (void)buf_printf(b, "%llu%s", (unsigned long long)(ms / units[i].ms), units[i].name);
            return;
        }
    }
    (void)buf_printf(b, "%llums", (unsigned long long)ms);
}

int option_put_number(const struct option *row, uint64_t v, struct buf *b)
{
    char text[TEXT_SIZE_MAX];
    size_t before = b->n;
    if (row->type == OPTION_DURATION)
        put_duration(v, b);
    else if (row->type == OPTION_SIZE)
        (void)buf_str(b, text_size_exact(v, text));
    else
        (void)buf_printf(b, "%llu", (unsigned long long)v);
    return b->n > before ? 0 : -E2BIG;
}

/* "--memory 64K: below the minimum of 64MiB" */
static int refuse(const struct option *row, const char *value, const char *shown_as, const char *why,
                  struct err *e)
{
    return err_set(e, ERR_BAD_OPTION, "%s %s: %s", shown_as, row->secret ? "***" : value, why);
}

static int refuse_limit(const struct option *row, const char *value, const char *shown_as, const char *what,
                        uint64_t limit, struct err *e)
{
    _cleanup_buf_ struct buf why = BUF_INIT(256);
    (void)buf_str(&why, what);
    (void)option_put_number(row, limit, &why);
    return refuse(row, value, shown_as, why.p, e);
}

static int parse_number(const struct option *row, const char *value, uint64_t *ret)
{
    struct slice s = slice_str(value);
    switch (row->type) {
    case OPTION_SIZE:
        return text_parse_size(s, ret);
    case OPTION_DURATION:
        return text_parse_duration(s, ret);
    default:
        return slice_u64(slice_trim(s), ret);
    }
}

static int set_number(const struct option *row, void *opts, const char *value, const char *shown_as,
                      struct err *e)
{
    uint64_t v = 0;
    int r = parse_number(row, value, &v);
    if (r == -ERANGE)
        return refuse(row, value, shown_as, "too large", e);
    if (r < 0) {
        const char *why = row->type == OPTION_SIZE       ? "not a size; write it as 512MiB, 1.5G or 4096"
                          : row->type == OPTION_DURATION ? "not a time; write it as 500ms, 30s, 5m, 24h or 7d"
                                                         : "not a whole number";
        return refuse(row, value, shown_as, why, e);
    }
    if (v < row->min)
        return refuse_limit(row, value, shown_as, "below the minimum of ", row->min, e);
    if (row->max && v > row->max)
        return refuse_limit(row, value, shown_as, "above the maximum of ", row->max, e);
    *(uint64_t *)option_field(row, opts) = v;
    return 0;
}

static int set_enum(const struct option *row, void *opts, const char *value, const char *shown_as,
                    struct err *e)
{
    struct slice left = slice_str(row->choices);
    for (int i = 0; left.n; i++) {
        if (slice_eq_str(slice_split(&left, '|'), value)) {
            *(int *)option_field(row, opts) = i;
            return 0;
        }
    }
    _cleanup_buf_ struct buf why = BUF_INIT(ERR_TEXT_MAX);
    (void)buf_str(&why, "must be ");
    left = slice_str(row->choices);
    while (left.n) {
        (void)buf_slice(&why, slice_split(&left, '|'));
        if (left.n)
            (void)buf_str(&why, slice_find(left, '|') < 0 ? " or " : ", ");
    }
    return refuse(row, value, shown_as, why.p, e);
}

static void append(struct option_list *list, const char *value)
{
    char **grown = reallocarray(list->v, list->n + 1, sizeof(*list->v));
    if (!grown)
        abort();
    list->v = grown;
    list->v[list->n++] = slice_dup(slice_str(value));
}

int option_set_row(const struct option *row, void *opts, const char *value, const char *shown_as,
                   struct err *e)
{
    void *field = option_field(row, opts);
    bool truth;
    switch (row->type) {
    case OPTION_BOOL:
        if (text_parse_bool(slice_str(value), &truth) < 0)
            return refuse(row, value, shown_as, "must be true or false", e);
        *(bool *)field = truth;
        return 0;
    case OPTION_UINT:
    case OPTION_SIZE:
    case OPTION_DURATION:
        return set_number(row, opts, value, shown_as, e);
    case OPTION_STRING: {
        char *copy = slice_dup(slice_str(value)); /* before free: value may be the field's own */
        free(*(char **)field);
        *(char **)field = copy;
        return 0;
    }
    case OPTION_LIST:
        append(field, value);
        return 0;
    case OPTION_ENUM:
        return set_enum(row, opts, value, shown_as, e);
    }
    abort(); /* a row of a type that does not exist */
}

int option_set(const struct option_table *t, void *opts, const char *name, const char *value,
               const char *shown_as, struct err *e)
{
    assert(t && opts && name && value && shown_as);
    const struct option *row = option_find(t, name);
    if (!row)
        return option_unknown(t, name, strncmp(shown_as, "--", 2) == 0 ? "--" : "", e);
    return option_set_row(row, opts, value, shown_as, e);
}

void option_list_restart(const struct option *row, void *opts)
{
    if (row->type != OPTION_LIST)
        return;
    struct option_list *list = option_field(row, opts);
    for (size_t i = 0; i < list->n; i++)
        free(list->v[i]);
    free(list->v);
    *list = (struct option_list){NULL, 0};
}

static void clear_field(const struct option *row, void *opts)
{
    void *field = option_field(row, opts);
    switch (row->type) {
    case OPTION_BOOL:
        *(bool *)field = false;
        break;
    case OPTION_UINT:
    case OPTION_SIZE:
    case OPTION_DURATION:
        *(uint64_t *)field = 0;
        break;
    case OPTION_STRING:
        *(char **)field = NULL;
        break;
    case OPTION_LIST:
        *(struct option_list *)field = (struct option_list){NULL, 0};
        break;
    case OPTION_ENUM:
        *(int *)field = 0;
        break;
    }
}

int option_init(const struct option_table *t, void *opts, struct err *e)
{
    assert(t && opts);
    for (size_t i = 0; i < t->n_rows; i++)
        clear_field(&t->rows[i], opts);
    for (size_t i = 0; i < t->n_rows; i++) {
        const struct option *row = &t->rows[i];
        int r = row->def ? option_set_row(row, opts, row->def, row->name, e) : 0;
        if (r < 0) {
            option_fini(t, opts);
            return err_prefix(e, r, "default");
        }
    }
    return 0;
}

void option_fini(const struct option_table *t, void *opts)
{
    for (size_t i = 0; i < t->n_rows; i++) {
        const struct option *row = &t->rows[i];
        if (row->type == OPTION_STRING)
            free(TAKE_PTR(*(char **)option_field(row, opts)));
        else
            option_list_restart(row, opts);
    }
}

static int put_list(const struct option_list *list, struct buf *b)
{
    int r = 0;
    for (size_t i = 0; i < list->n && r == 0; i++) {
        if (i)
            r = buf_char(b, ',');
        if (r == 0)
            r = buf_str(b, list->v[i]);
    }
    return r;
}

int option_get(const struct option_table *t, const void *opts, const char *name, struct buf *b)
{
    const struct option *row = option_find(t, name);
    if (!row)
        return ERR_BAD_OPTION;
    const void *field = option_field_const(row, opts);
    struct slice left;
    switch (row->type) {
    case OPTION_BOOL:
        return buf_str(b, *(const bool *)field ? "true" : "false");
    case OPTION_UINT:
    case OPTION_SIZE:
    case OPTION_DURATION:
        return option_put_number(row, *(const uint64_t *)field, b);
    case OPTION_STRING:
        return buf_slice(b, slice_str(*(char *const *)field));
    case OPTION_LIST:
        return put_list(field, b);
    case OPTION_ENUM:
        left = slice_str(row->choices);
        for (int i = *(const int *)field; i > 0; i--)
            (void)slice_split(&left, '|');
        return buf_slice(b, slice_split(&left, '|'));
    }
    abort(); /* a row of a type that does not exist */
}

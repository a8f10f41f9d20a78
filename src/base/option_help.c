/*
 * What a table says about itself: the --help lines and the manual, of flags and of properties (KEY=VALUE).
 *
 * Invariants:
 *  1. Every row that is not hidden appears once, in the order of the table.
 *  2. No --help line is longer than 100 columns, unless one word is.
 *
 * Failure modes: -E2BIG when the buffer's maximum is too small.
 */
#include "base/option_internal.h"

#define HELP_WIDTH  100
#define HELP_COLUMN 30 /* where the texts begin */

/* What a person writes behind the name; NULL: nothing. A flag that is a BOOL is complete without. */
static const char *value_of(const struct option *row, bool is_key)
{
    return row->type != OPTION_BOOL ? row->arg : is_key ? "true|false" : NULL;
}

/* " (default 512MiB; at least 64MiB)", the facts of a row that its text need not repeat. */
static int put_facts(const struct option *row, bool is_key, struct buf *b)
{
    const char *sep = "";
    int r = 0;
    bool is_number = row->type == OPTION_UINT || row->type == OPTION_SIZE || row->type == OPTION_DURATION;
    if (row->type == OPTION_ENUM) {
        struct slice left = slice_str(row->choices);
        while (left.n && r == 0) {
            r = buf_slice(b, slice_split(&left, '|'));
            if (r == 0 && left.n)
                r = buf_str(b, slice_find(left, '|') < 0 ? " or " : ", ");
        }
        sep = "; ";
    }
    if (r == 0 && row->def && (is_key || row->type != OPTION_BOOL)) {
        r = buf_printf(b, "%sdefault %s", sep, row->def);
        sep = "; ";
    }
    if (r == 0 && is_number && row->min) {
        r = buf_printf(b, "%sat least ", sep);
        if (r == 0)
            r = option_put_number(row, row->min, b);
        sep = "; ";
    }
    if (r == 0 && is_number && row->max) {
        r = buf_printf(b, "%sat most ", sep);
        if (r == 0)
            r = option_put_number(row, row->max, b);
    }
    return r;
}

static size_t column_of(const struct buf *b)
{
    ssize_t newline = slice_rfind(buf_view(b), '\n');
    return b->n - (size_t)(newline + 1);
}

/* Words of `text` from HELP_COLUMN on, new lines where HELP_WIDTH would be passed. */
static int put_wrapped(struct slice text, struct buf *b)
{
    int r = 0;
    while (text.n && r == 0) {
        struct slice word = slice_split(&text, ' ');
        size_t at = column_of(b);
        if (at > HELP_COLUMN && at + 1 + word.n > HELP_WIDTH) {
            r = buf_printf(b, "\n%*s", HELP_COLUMN, "");
        } else if (at > HELP_COLUMN) {
            r = buf_char(b, ' ');
        }
        if (r == 0)
            r = buf_slice(b, word);
    }
    return r;
}

/* The doc text with the facts in brackets behind it. */
static int put_text(const struct option *row, bool is_key, struct buf *b)
{
    _cleanup_buf_ struct buf facts = BUF_INIT(1024), text = BUF_INIT(4096);
    int r = put_facts(row, is_key, &facts);
    if (r == 0)
        r = buf_str(&text, row->doc);
    if (r == 0 && facts.n)
        r = buf_printf(&text, " (%s)", facts.p);
    return r < 0 ? r : put_wrapped(buf_view(&text), b);
}

static int put_name(const struct option *row, bool is_key, struct buf *b)
{
    const char *value = value_of(row, is_key);
    int r = is_key            ? buf_printf(b, "  %s", row->name)
            : row->short_flag ? buf_printf(b, "  -%c, --%s", row->short_flag, row->name)
                              : buf_printf(b, "      --%s", row->name);
    return r < 0 || !value ? r : buf_printf(b, "%c%s", is_key ? '=' : ' ', value);
}

static int put_row(const struct option *row, bool is_key, struct buf *b)
{
    int r = put_name(row, is_key, b);
    if (r == 0 && column_of(b) + 2 > HELP_COLUMN)
        r = buf_char(b, '\n');
    if (r == 0)
        r = buf_printf(b, "%*s", (int)(HELP_COLUMN - column_of(b)), "");
    if (r == 0)
        r = put_text(row, is_key, b);
    return r < 0 ? r : buf_char(b, '\n');
}

static int put_rows(const struct option_table *t, bool is_key, struct buf *b,
                    int (*put)(const struct option *row, bool is_key, struct buf *b))
{
    assert(t && b);
    int r = 0;
    for (size_t i = 0; i < t->n_rows && r == 0; i++)
        if (!t->rows[i].hidden)
            r = put(&t->rows[i], is_key, b);
    return r;
}

int option_help(const struct option_table *t, struct buf *b)
{
    return put_rows(t, /* is_key= */ false, b, put_row);
}

int option_help_keys(const struct option_table *t, struct buf *b)
{
    return put_rows(t, /* is_key= */ true, b, put_row);
}

/* roff takes a backslash as its escape, a hyphen as a soft one, and a dot or quote in front as a request. */
static int put_roff(struct slice s, struct buf *b)
{
    int r = 0;
    if (s.n && (s.p[0] == '.' || s.p[0] == '\''))
        r = buf_str(b, "\\&");
    for (size_t i = 0; i < s.n && r == 0; i++) {
        if (s.p[i] == '\\')
            r = buf_str(b, "\\e");
        else if (s.p[i] == '-')
            r = buf_str(b, "\\-");
        else
            r = buf_char(b, s.p[i]);
    }
    return r;
}

/* "Fl a , Fl \\-all Ar X", or "Cm all Ns = Ns Ar X". */
static int put_item_name(const struct option *row, bool is_key, struct buf *b)
{
    const char *value = value_of(row, is_key);
    int r = buf_str(b, is_key ? ".It Cm " : ".It ");
    if (r == 0 && !is_key && row->short_flag)
        r = buf_printf(b, "Fl %c , ", row->short_flag);
    if (r == 0 && !is_key)
        r = buf_str(b, "Fl \\-");
    if (r == 0)
        r = put_roff(slice_str(row->name), b);
    if (r == 0 && value)
        r = buf_printf(b, "%s Ar %s", is_key ? " Ns = Ns" : "", value);
    return r < 0 ? r : buf_char(b, '\n');
}

static int put_item(const struct option *row, bool is_key, struct buf *b)
{
    _cleanup_buf_ struct buf facts = BUF_INIT(1024);
    int r = put_facts(row, is_key, &facts);
    if (r == 0)
        r = put_item_name(row, is_key, b);
    if (r == 0)
        r = put_roff(slice_str(row->doc), b);
    if (r == 0 && facts.n)
        r = buf_str(b, "\n(");
    if (r == 0 && facts.n)
        r = put_roff(buf_view(&facts), b);
    if (r == 0)
        r = buf_str(b, facts.n ? ").\n" : ".\n");
    if (r == 0 && row->reloadable && !is_key)
        r = buf_str(b, "May be changed without a restart.\n");
    return r;
}

int option_mdoc(const struct option_table *t, struct buf *b)
{
    return put_rows(t, /* is_key= */ false, b, put_item);
}

int option_mdoc_keys(const struct option_table *t, struct buf *b)
{
    return put_rows(t, /* is_key= */ true, b, put_item);
}

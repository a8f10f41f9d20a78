/*
 * What a table says about itself: the --help lines and the manual.
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

/* " (default 512MiB; at least 64MiB)", the facts of a row that its text need not repeat. */
static int put_facts(const struct option *row, struct buf *b)
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
    if (r == 0 && row->def && row->type != OPTION_BOOL) {
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
static int put_text(const struct option *row, struct buf *b)
{
    _cleanup_buf_ struct buf facts = BUF_INIT(1024), text = BUF_INIT(4096);
    int r = put_facts(row, &facts);
    if (r == 0)
        r = buf_str(&text, row->doc);
    if (r == 0 && facts.n)
        r = buf_printf(&text, " (%s)", facts.p);
    return r < 0 ? r : put_wrapped(buf_view(&text), b);
}

static int put_row(const struct option *row, struct buf *b)
{
    int r = row->short_flag ? buf_printf(b, "  -%c, --%s", row->short_flag, row->name)
                            : buf_printf(b, "      --%s", row->name);
    if (r == 0 && row->arg && row->type != OPTION_BOOL)
        r = buf_printf(b, " %s", row->arg);
    if (r == 0 && column_of(b) + 2 > HELP_COLUMN)
        r = buf_char(b, '\n');
    if (r == 0)
        r = buf_printf(b, "%*s", (int)(HELP_COLUMN - column_of(b)), "");
    if (r == 0)
        r = put_text(row, b);
    return r < 0 ? r : buf_char(b, '\n');
}

int option_help(const struct option_table *t, struct buf *b)
{
    assert(t && b);
    int r = 0;
    for (size_t i = 0; i < t->n_rows && r == 0; i++)
        if (!t->rows[i].hidden)
            r = put_row(&t->rows[i], b);
    return r;
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

static int put_item(const struct option *row, struct buf *b)
{
    _cleanup_buf_ struct buf facts = BUF_INIT(1024);
    int r = put_facts(row, &facts);
    if (r == 0)
        r = buf_str(b, ".It ");
    if (r == 0 && row->short_flag)
        r = buf_printf(b, "Fl %c , ", row->short_flag);
    if (r == 0)
        r = buf_str(b, "Fl \\-");
    if (r == 0)
        r = put_roff(slice_str(row->name), b);
    if (r == 0 && row->arg && row->type != OPTION_BOOL)
        r = buf_printf(b, " Ar %s", row->arg);
    if (r == 0)
        r = buf_char(b, '\n');
    if (r == 0)
        r = put_roff(slice_str(row->doc), b);
    if (r == 0 && facts.n)
        r = buf_str(b, "\n(");
    if (r == 0 && facts.n)
        r = put_roff(buf_view(&facts), b);
    if (r == 0)
        r = buf_str(b, facts.n ? ").\n" : ".\n");
    if (r == 0 && row->reloadable)
        r = buf_str(b, "May be changed without a restart.\n");
    return r;
}

int option_mdoc(const struct option_table *t, struct buf *b)
{
    assert(t && b);
    int r = 0;
    for (size_t i = 0; i < t->n_rows && r == 0; i++)
        if (!t->rows[i].hidden)
            r = put_item(&t->rows[i], b);
    return r;
}

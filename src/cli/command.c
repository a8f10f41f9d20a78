/* What commands share: parsing, connecting, names, messages. */
#include "cli/command.h"

#include "base/text.h"

#include <jansson.h>

#define HELP_MAX_BYTES (64 * KIB)

static int print_help(const struct command_usage *u, const struct option_table *t)
{
    _cleanup_buf_ struct buf b = BUF_INIT(HELP_MAX_BYTES);
    if (option_help(t, &b) < 0)
        return 2;
    (void)printf("usage: %s [OPTIONS] %s\n\n%s\n\n%s", u->command, u->operands, u->about, b.p);
    return 0;
}

static bool has_empty(const struct option *row, const void *opts)
{
    const void *field = (const char *)opts + row->offset;
    const struct option_list *list = field;
    if (row->type == OPTION_STRING)
        return *(char *const *)field && !**(char *const *)field;
    for (size_t i = 0; row->type == OPTION_LIST && i < list->n; i++)
        if (!list->v[i][0])
            return true;
    return false;
}

/* As of a variable of a script that is not set: that would mean as much as without the option, as all buckets
 * for a user, no origin for a bucket, or all objects for a job. */
static int expect_values(const struct option_table *t, const void *opts, struct err *e)
{
    for (size_t i = 0; i < t->n_rows; i++)
        if (has_empty(&t->rows[i], opts))
            return err_set(e, ERR_BAD_OPTION, "--%s: is empty", t->rows[i].name);
    return 0;
}

/* The same of operands: as a directory it would be the one that has all others. */
static int expect_operands(const struct command_usage *u, char **argv, int n, struct err *e)
{
    for (int i = 0; i < n; i++)
        if (!argv[i][0])
            return err_set(e, ERR_BAD_OPTION, "an operand is empty: expects %s; see %s --help", u->operands,
                           u->command);
    return 0;
}

bool command_parse(const struct command_usage *u, const struct option_table *t, void *opts, int argc,
                   char **argv, int *ret_n, int *ret_status)
{
    struct err e = {0};
    int n = 0;
    int r = option_init(t, opts, &e);
    if (r == 0)
        r = option_args(t, opts, argc, argv, &n, &e);
    if (r == -ECANCELED) {
        *ret_status = print_help(u, t);
        return false;
    }
    if (r == 0 && (n < u->min_operands || (u->max_operands >= 0 && n > u->max_operands)))
        r = u->operands[0]
                ? err_set(&e, ERR_BAD_OPTION, "expects %s; see %s --help", u->operands, u->command)
                : err_set(&e, ERR_BAD_OPTION, "%s: takes only options; see %s --help", argv[0], u->command);
    if (r == 0)
        r = expect_values(t, opts, &e);
    if (r == 0)
        r = expect_operands(u, argv, n, &e);
    if (r < 0) {
        *ret_status = command_fail(u->command, ERR_BAD_OPTION, &e);
        return false;
    }
    *ret_n = n;
    *ret_status = 0;
    return true;
}

void command_complain(const char *command, const char *text)
{
    flockfile(stderr); /* threads complain, too */
    (void)fprintf(stderr, "%s: ", command);
    command_print_name(stderr, slice_str(text));
    (void)fputc('\n', stderr);
    funlockfile(stderr);
}

int command_fail(const char *command, int code, const struct err *e)
{
    command_complain(command, e && e->code ? e->text : err_text(code));
    return code == ERR_BAD_OPTION ? 2 : 1;
}

int command_blame(struct err *e, int code, const char *path)
{
    return strstr(e->text, path) ? code : err_prefix(e, code, "%s", path);
}

int command_connect(const struct command_node *n, struct client **ret, struct err *e)
{
    struct client_options o = {
        .socket_path = n->socket,
        .data_dir = n->data,
        .endpoint = n->endpoint,
        .name = "cli",
        .via = WIRE_VIA_API,
        .timeout_ms = n->timeout_ms,
        .connections = n->connections,
    };
    return client_new(&o, ret, e);
}

size_t command_option_length(const char *text)
{
    size_t n = 0;
    for (bool is_quoted = false; text[n] && (is_quoted || text[n] != ','); n++)
        is_quoted ^= text[n] == '"';
    return n;
}

char *command_next_option(char **rest)
{
    char *one = *rest;
    if (!one)
        return NULL;
    size_t n = command_option_length(one);
    *rest = one[n] ? one + n + 1 : NULL;
    one[n] = '\0';
    return one;
}

int command_path(const char *text, struct slice *ret_bucket, struct slice *ret_key, struct err *e)
{
    struct slice s = slice_str(text);
    if (slice_starts(s, SLICE_LIT("forebay://")))
        s = slice_from(s, 10);
    struct slice bucket = slice_split(&s, '/');
    if (bucket.n == 0)
        return err_set(e, ERR_BAD_OPTION, "'%s': must be BUCKET or BUCKET/KEY", text);
    *ret_bucket = bucket;
    *ret_key = s;
    return 0;
}

uint64_t command_number(const json_t *o, const char *name)
{
    json_int_t v = json_integer_value(json_object_get(o, name));
    return v < 0 ? 0 : (uint64_t)v;
}

const char *command_text(const json_t *o, const char *name)
{
    const char *s = json_string_value(json_object_get(o, name));
    return s ? s : "";
}

void command_json_end(bool began, bool is_whole)
{
    if (began || is_whole)
        (void)puts(began ? "]" : "[]");
}

/* How many bytes at the front are one control character: U+0080 to U+009F are some, too, which terminals take
 * for beginnings of commands. */
static size_t control_bytes(struct slice s)
{
    unsigned char c = (unsigned char)s.p[0];
    if (c == 0xc2 && s.n > 1)
        return (unsigned char)s.p[1] >= 0x80 && (unsigned char)s.p[1] < 0xa0 ? 2 : 0;
    return c < 0x20 || c == 0x7f;
}

void command_print_name(FILE *to, struct slice name)
{
    for (size_t i = 0, control = 0; i < name.n; i++) {
        control = control > 0 ? control : control_bytes(slice_from(name, i));
        if (control > 0)
            (void)fprintf(to, "\\x%02x", (unsigned char)name.p[i]);
        else
            (void)fputc((unsigned char)name.p[i], to);
        control -= control > 0;
    }
}

void command_json_text(FILE *to, struct slice text)
{
    for (size_t i = 0; i < text.n; i++) {
        size_t control = control_bytes(slice_from(text, i));
        i += control == 2;
        unsigned char c = (unsigned char)text.p[i];
        if (control == 2 || c == 0x7f)
            (void)fprintf(to, "\\u%04x", c);
        else
            (void)fputc(c, to);
    }
}

void command_json_print(const json_t *j, size_t flags)
{
    _cleanup_free_ char *text = json_dumps(j, flags);
    if (!text)
        abort();
    command_json_text(stdout, slice_str(text));
}

void command_json_string(FILE *to, struct slice s)
{
    _cleanup_buf_ struct buf text = BUF_INIT(3 * s.n + 1);
    if (!slice_is_utf8(s))
        s = slice_str(text_utf8(&text, s));
    (void)fputc('"', to);
    for (size_t i = 0; i < s.n; i++) {
        unsigned char c = (unsigned char)s.p[i];
        size_t control = control_bytes(slice_from(s, i));
        if (c == '"' || c == '\\')
            (void)fprintf(to, "\\%c", c);
        else if (control > 0)
            (void)fprintf(to, "\\u%04x", (unsigned char)s.p[i += control - 1]);
        else
            (void)fputc(c, to);
    }
    (void)fputc('"', to);
}

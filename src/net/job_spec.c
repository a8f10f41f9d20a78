/* A job's spec as text and back (contract in job_spec.h). */
#include "net/job_spec.h"

#include "base/text.h"

struct owner {
    struct job_spec spec;
};

static const struct option rows[] = {
#define X(field, type, name, arg, def, min, max, choices, doc)                                               \
    JOB_SPEC_ROW(owner, field, type, name, arg, def, min, max, choices, doc)
    JOB_SPEC_OPTIONS(X)
#undef X
};
const struct option_table job_spec_table = {rows, ARRAY_SIZE(rows), NULL};

static int encode_line(const char *name, struct slice value, struct buf *b, struct err *e)
{
    if (slice_find(value, '\n') >= 0)
        return err_set(e, ERR_BAD_OPTION, "--%s: a value with a line break is not possible", name);
    if (buf_printf(b, "%s=" SLICE_FMT "\n", name, SLICE_ARG(value)) < 0)
        return err_set(e, -E2BIG, "--%s: the options of a job are longer than %d bytes together", name,
                       (int)JOB_SPEC_MAX_BYTES);
    return 0;
}

int job_spec_encode(const struct job_spec *s, struct buf *b, struct err *e)
{
    int r = 0;
    for (size_t i = 0; i < ARRAY_SIZE(rows) && r == 0; i++) {
        const struct option *row = &rows[i];
        const char *field = (const char *)s + row->offset;
        if (row->type == OPTION_LIST) { /* a line for each: values may hold commas */
            const struct option_list *l = (const struct option_list *)(const void *)field;
            for (size_t k = 0; k < l->n && r == 0; k++)
                r = encode_line(row->name, slice_str(l->v[k]), b, e);
            continue;
        }
        _cleanup_buf_ struct buf value = BUF_INIT(JOB_SPEC_MAX_BYTES);
        if (option_get(&job_spec_table, s, row->name, &value) < 0 || value.n == 0)
            continue;
        bool is_default = slice_eq_str(buf_view(&value), row->def ? row->def : "") ||
                          (row->type == OPTION_BOOL && slice_eq_str(buf_view(&value), "false"));
        if (!is_default)
            r = encode_line(row->name, buf_view(&value), b, e);
    }
    return r;
}

int job_spec_decode(struct slice lines, struct job_spec *ret, struct err *e)
{
    int r = option_init(&job_spec_table, ret, e);
    while (r == 0 && lines.n > 0) {
        struct slice value = slice_split(&lines, '\n');
        if (value.n == 0)
            continue;
        struct slice name = slice_split(&value, '=');
        _cleanup_free_ char *n = slice_dup(name), *v = slice_dup(value);
        r = option_set(&job_spec_table, ret, n, v, n, e);
    }
    return r;
}

void job_spec_fini(struct job_spec *s)
{
    option_fini(&job_spec_table, s);
}

int job_spec_parse_rate(const char *text, uint64_t *ret_bytes_per_s)
{
    struct slice s = slice_str(text);
    uint64_t v;
    if (slice_ends(s, SLICE_LIT("/s")))
        s = slice_sub(s, 0, s.n - 2);
    if (text_parse_size(s, &v) < 0 || v == 0)
        return -EINVAL;
    *ret_bytes_per_s = v;
    return 0;
}

static bool is_set(const char *value)
{
    return value && value[0];
}

bool job_spec_restores(const struct job_spec *s)
{
    return is_set(s->as_of) || is_set(s->version) || is_set(s->tag);
}

bool job_spec_tag(const struct job_spec *s, struct slice *ret_name, struct slice *ret_value)
{
    struct slice value = slice_str(s->tag), name = slice_split(&value, '=');
    if (name.n == 0 || !strchr(s->tag, '='))
        return false;
    *ret_name = name;
    *ret_value = value;
    return true;
}

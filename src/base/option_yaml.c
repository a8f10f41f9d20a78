/*
 * Options from a YAML file: one mapping of names to scalars or lists of scalars.
 *
 * Invariants:
 *  1. Every error but "cannot be read" names file and line.
 *  2. A name stands at most once in a file, so that no line is silently without effect.
 *
 * Failure modes: ERR_BAD_OPTION for what the file says, a negated errno when it cannot be read. Values that
 * were set before the bad line stay set; the caller throws the struct away.
 */
#include "base/option_internal.h"

#include "base/sys.h"

#include <yaml.h>

#define YAML_FILE_MAX ((size_t)1 << 20)

struct yaml_file {
    const struct option_table *t;
    void *opts;
    const char *path;
    yaml_document_t *doc;
    bool *seen; /* per row */
};

static size_t line_of(const yaml_node_t *node)
{
    return node->start_mark.line + 1;
}

static int bad(const struct yaml_file *f, const yaml_node_t *at, const char *what, struct err *e)
{
    return err_set(e, ERR_BAD_OPTION, "%s:%zu: %s", f->path, line_of(at), what);
}

/* The text of a scalar, or NULL when it is none or holds a NUL byte. */
static const char *scalar_text(const yaml_node_t *node)
{
    if (node->type != YAML_SCALAR_NODE)
        return NULL;
    const char *text = (const char *)node->data.scalar.value;
    return strlen(text) == node->data.scalar.length ? text : NULL;
}

/* "key:" and "key: ~" give no value; "key: ''" gives the empty one. */
static bool is_null(const yaml_node_t *node)
{
    const char *text = scalar_text(node);
    return text && node->data.scalar.style == YAML_PLAIN_SCALAR_STYLE &&
           (!*text || strcmp(text, "~") == 0 || strcmp(text, "null") == 0);
}

static int set_scalar(const struct yaml_file *f, const struct option *row, const yaml_node_t *node,
                      struct err *e)
{
    const char *text = scalar_text(node);
    if (!text || is_null(node))
        return err_set(e, ERR_BAD_OPTION, "%s:%zu: %s: needs a value (%s)", f->path, line_of(node), row->name,
                       row->arg ? row->arg : "true or false");
    int r = option_set_row(row, f->opts, text, row->name, e);
    return r < 0 ? err_prefix(e, r, "%s:%zu", f->path, line_of(node)) : 0;
}

static int set_sequence(const struct yaml_file *f, const struct option *row, const yaml_node_t *node,
                        struct err *e)
{
    if (row->type != OPTION_LIST)
        return err_set(e, ERR_BAD_OPTION, "%s:%zu: %s: takes one value, not a list", f->path, line_of(node),
                       row->name);
    const yaml_node_item_t *item = node->data.sequence.items.start;
    for (; item < node->data.sequence.items.top; item++) {
        int r = set_scalar(f, row, yaml_document_get_node(f->doc, *item), e);
        if (r < 0)
            return r;
    }
    return 0;
}

static int set_pair(const struct yaml_file *f, const yaml_node_t *key, const yaml_node_t *value,
                    struct err *e)
{
    const char *name = scalar_text(key);
    if (!name)
        return bad(f, key, "an option name must be plain text", e);
    const struct option *row = option_find(f->t, name);
    if (!row)
        return err_prefix(e, option_unknown(f->t, name, "", e), "%s:%zu", f->path, line_of(key));
    bool *seen = &f->seen[row - f->t->rows];
    if (*seen)
        return err_set(e, ERR_BAD_OPTION, "%s:%zu: %s: given twice", f->path, line_of(key), name);
    *seen = true;
    option_list_restart(row, f->opts);
    if (value->type == YAML_SEQUENCE_NODE)
        return set_sequence(f, row, value, e);
    return set_scalar(f, row, value, e);
}

static int apply(const struct yaml_file *f, struct err *e)
{
    const yaml_node_t *root = yaml_document_get_root_node(f->doc);
    if (!root || is_null(root)) /* empty, or comments only */
        return 0;
    if (root->type != YAML_MAPPING_NODE)
        return bad(f, root, "must be lines of the form NAME: VALUE", e);
    const yaml_node_pair_t *pair = root->data.mapping.pairs.start;
    for (; pair < root->data.mapping.pairs.top; pair++) {
        int r = set_pair(f, yaml_document_get_node(f->doc, pair->key),
                         yaml_document_get_node(f->doc, pair->value), e);
        if (r < 0)
            return r;
    }
    return 0;
}

static int parse_error(const yaml_parser_t *parser, const char *path, struct err *e)
{
    return err_set(e, ERR_BAD_OPTION, "%s:%zu: not valid YAML: %s", path, parser->problem_mark.line + 1,
                   parser->problem ? parser->problem : "unreadable");
}

/* One document from the parser; a second one in the file is refused, it would be ignored otherwise. */
static int load(struct yaml_file *f, yaml_parser_t *parser, struct err *e)
{
    yaml_document_t doc, extra;
    if (!yaml_parser_load(parser, &doc))
        return parse_error(parser, f->path, e);
    f->doc = &doc;
    int r = apply(f, e);
    bool has_root = yaml_document_get_root_node(&doc) != NULL;
    yaml_document_delete(&doc);
    f->doc = NULL;
    if (r < 0 || !has_root)
        return r;
    if (!yaml_parser_load(parser, &extra))
        return parse_error(parser, f->path, e);
    const yaml_node_t *root = yaml_document_get_root_node(&extra);
    if (root)
        r = bad(f, root, "a second document; only one is read", e);
    yaml_document_delete(&extra);
    return r;
}

int option_yaml(const struct option_table *t, void *opts, const char *path, struct err *e)
{
    assert(t && opts && path);
    _cleanup_free_ char *text = NULL;
    size_t n = 0;
    int r = sys_read_file(path, YAML_FILE_MAX, &text, &n);
    if (r < 0)
        return err_errno(e, r, "%s", path);
    _cleanup_free_ bool *seen = calloc(t->n_rows + 1, sizeof(*seen));
    yaml_parser_t parser;
    if (!seen || !yaml_parser_initialize(&parser))
        abort();
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, n);
    struct yaml_file f = {t, opts, path, NULL, seen};
    r = load(&f, &parser, e);
    yaml_parser_delete(&parser);
    return r;
}

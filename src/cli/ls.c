/* forebay ls, forebay stat */
#include "cli/cli.h"
#include "cli/command.h"

#include "base/text.h"

#include <inttypes.h>

struct ls_options {
    struct command_node node;
    bool recursive, json, fresh;
};

#define COMMON_ROWS                                                                                          \
    COMMAND_FLAG(ls_options, fresh, "fresh", 0, "ask the origin, whatever is remembered"),                   \
        COMMAND_NODE_ROWS(ls_options)

static const struct option ls_rows[] = {
    COMMAND_FLAG(ls_options, recursive, "recursive", 'r', "everything below, not one level"),
    COMMAND_FLAG(ls_options, json, "json", 0, "one JSON object per line; buckets are one array"),
    COMMON_ROWS,
};
static const struct option_table ls_table = {ls_rows, ARRAY_SIZE(ls_rows), NULL};

static const struct option stat_rows[] = {
    COMMAND_FLAG(ls_options, json, "json", 0, "one JSON object per line"),
    COMMON_ROWS,
};
static const struct option_table stat_table = {stat_rows, ARRAY_SIZE(stat_rows), NULL};

static const struct command_usage ls_usage = {
    .command = "forebay ls",
    .operands = "[BUCKET[/PREFIX]]",
    .about = "Lists objects: size, time, key; one level, or everything below with -r. Without an operand: "
             "the buckets.",
    .max_operands = 1,
};

static const struct command_usage stat_usage = {
    .command = "forebay stat",
    .operands = "BUCKET/KEY...",
    .about = "Shows what is known of objects: size, time, ETag, content type, metadata.",
    .min_operands = 1,
    .max_operands = -1,
};

static void print_entry(const struct ls_options *o, const struct wire_entry *x, struct slice bucket)
{
    bool directory = x->attr.kind == WIRE_DIRECTORY;
    char when[32], size[TEXT_SIZE_MAX];
    text_iso8601(x->attr.mtime_ns, when);
    if (o->json) {
        (void)fputs("{\"bucket\": ", stdout);
        command_json_string(stdout, bucket);
        (void)fputs(", \"key\": ", stdout);
        command_json_string(stdout, x->key);
        if (directory) {
            (void)puts(", \"kind\": \"directory\"}");
            return;
        }
        (void)printf(", \"kind\": \"file\", \"size_bytes\": %" PRIu64 ", \"modified\": \"%s\", \"etag\": ",
                     x->attr.size_bytes, when);
        command_json_string(stdout, x->attr.etag);
        (void)puts("}");
        return;
    }
    if (directory)
        (void)printf("%12s  %-20s  ", "-", "");
    else
        (void)printf("%12s  %.19sZ  ", text_size(x->attr.size_bytes, size), when);
    command_print_name(stdout, x->key);
    (void)putchar('\n');
}

static int list(struct client *c, const struct ls_options *o, const char *path, struct err *e)
{
    struct slice bucket, key;
    int r = command_path(path, &bucket, &key, e);
    if (r < 0)
        return r;
    struct client_lister_open q = {
        .bucket = bucket,
        .prefix = key,
        .delimiter = o->recursive ? 0 : '/',
        .flags = o->fresh ? WIRE_FRESH : 0,
    };
    _cleanup_(client_lister_freep) struct client_lister *l = client_lister_new(c, &q);
    struct wire_entry x;
    uint64_t n = 0;
    while ((r = client_lister_next(l, &x, e)) > 0) {
        print_entry(o, &x, bucket);
        n++;
    }
    if (r == 0 && n == 0 && key.n > 0)
        return err_set(e, -ENOENT, "%s: nothing there", path);
    return r;
}

int cmd_ls(int argc, char **argv)
{
    struct ls_options o = {0};
    int n, status;
    if (command_parse(&ls_usage, &ls_table, &o, argc, argv, &n, &status)) {
        struct err e = {0};
        _cleanup_(client_freep) struct client *c = NULL;
        int r = command_connect(&o.node, &c, &e);
        if (r == 0)
            r = n == 0 ? command_list_buckets(c, o.json, &e) : list(c, &o, argv[0], &e);
        if (r < 0)
            status = command_fail(ls_usage.command, r, &e);
    }
    option_fini(&ls_table, &o);
    return status;
}

static void print_line(const char *title, struct slice value)
{
    (void)fputs(title, stdout);
    command_print_name(stdout, value);
    (void)putchar('\n');
}

static void print_stat(const struct ls_options *o, const char *path, const struct wire_attr *a)
{
    char when[32];
    text_iso8601(a->mtime_ns, when);
    if (o->json) {
        (void)fputs("{\"path\": ", stdout);
        command_json_string(stdout, slice_str(path));
        (void)printf(", \"size_bytes\": %" PRIu64 ", \"modified\": \"%s\", \"etag\": ", a->size_bytes, when);
        command_json_string(stdout, a->etag);
        (void)fputs(", \"content_type\": ", stdout);
        command_json_string(stdout, a->content_type);
        (void)fputs(", \"meta\": ", stdout);
        command_json_string(stdout, a->meta);
        (void)puts("}");
        return;
    }
    print_line("path: ", slice_str(path));
    (void)printf("size: %" PRIu64 "\nmodified: %s\n", a->size_bytes, when);
    print_line("etag: ", a->etag);
    print_line("content-type: ", a->content_type);
    for (struct slice rest = a->meta; rest.n > 0;)
        print_line("", slice_split(&rest, '\n'));
}

static int stat_one(struct client *c, const struct ls_options *o, const char *path, struct err *e)
{
    struct slice bucket, key;
    int r = command_path(path, &bucket, &key, e);
    if (r < 0)
        return r;
    if (key.n == 0)
        return err_set(e, ERR_BAD_OPTION, "'%s': must be BUCKET/KEY", path);
    _cleanup_buf_ struct buf reply = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    struct wire_stat_req req = {.bucket = bucket, .key = key, .flags = o->fresh ? WIRE_FRESH : 0};
    struct wire_stat_rep rep;
    r = client_stat(c, &req, &reply, &rep, e);
    if (r == 0)
        print_stat(o, path, &rep.attr);
    return r < 0 ? command_blame(e, r, path) : 0;
}

int cmd_stat(int argc, char **argv)
{
    struct ls_options o = {0};
    int n, status;
    if (command_parse(&stat_usage, &stat_table, &o, argc, argv, &n, &status)) {
        struct err e = {0};
        _cleanup_(client_freep) struct client *c = NULL;
        int r = command_connect(&o.node, &c, &e);
        if (r < 0)
            status = command_fail(stat_usage.command, r, &e);
        for (int i = 0; c && i < n; i++) {
            r = stat_one(c, &o, argv[i], &e);
            if (r < 0)
                status = command_fail(stat_usage.command, r, &e);
        }
    }
    option_fini(&stat_table, &o);
    return status;
}

/* forebay rm: objects out of a bucket, and so out of its origin. */
#include "cli/cli.h"
#include "cli/command.h"

#include <inttypes.h>

#define PASSES_MAX 512 /* levels of directories that a key can have */

struct rm_options {
    struct command_node node;
    bool recursive, quiet, dry_run;
};

static const struct option rows[] = {
    COMMAND_FLAG(rm_options, recursive, "recursive", 'r', "everything below the prefix"),
    COMMAND_FLAG(rm_options, dry_run, "dry-run", 0, "only print what would be removed"),
    COMMAND_FLAG(rm_options, quiet, "quiet", 'q', "no progress and no summary"),
    COMMAND_NODE_ROWS(rm_options),
};
static const struct option_table table = {rows, ARRAY_SIZE(rows), NULL};

static const struct command_usage usage = {
    .command = "forebay rm",
    .operands = "BUCKET/KEY...",
    .about =
        "Removes objects at the origin and from the cache; with -r everything below a prefix, which ends "
        "with '/'. A key\n"
        "that does not exist is an error without -r.",
    .min_operands = 1,
    .max_operands = -1,
};

static int remove_key(struct client *c, struct slice bucket, struct slice key, struct err *e)
{
    _cleanup_buf_ struct buf reply = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    struct wire_remove_req req = {.bucket = bucket, .key = key};
    struct wire_remove_rep rep;
    return client_remove(c, &req, &reply, &rep, e);
}

static int must_exist(struct client *c, struct slice bucket, struct slice key, struct err *e)
{
    _cleanup_buf_ struct buf reply = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    struct wire_stat_req req = {.bucket = bucket, .key = key, .flags = WIRE_FRESH};
    struct wire_stat_rep rep;
    return client_stat(c, &req, &reply, &rep, e);
}

/* One pass; *ret_n: how many there were. */
static int remove_listed(struct client *c, const struct rm_options *o, struct slice bucket,
                         struct slice prefix, struct progress *p, uint64_t *ret_n, struct err *e)
{
    struct client_lister_open q = {.bucket = bucket, .prefix = prefix, .flags = WIRE_FRESH};
    _cleanup_(client_lister_freep) struct client_lister *l = client_lister_new(c, &q);
    struct wire_entry x;
    int r;
    *ret_n = 0;
    while ((r = client_lister_next(l, &x, e)) > 0) {
        if (o->dry_run) {
            command_print_name(stdout, x.key);
            (void)putchar('\n');
        } else if ((r = remove_key(c, bucket, x.key, e)) < 0) {
            break;
        }
        progress_add(p, 1, x.attr.size_bytes);
        ++*ret_n;
    }
    return r;
}

/* An origin that has directories shows those that became empty only now: they go in further passes, one for
 * each level. */
static int remove_tree(struct client *c, const struct rm_options *o, struct slice bucket, struct slice prefix,
                       struct err *e)
{
    struct progress *p = progress_new(o->dry_run ? "would remove" : "removed", 0, 0, o->quiet);
    uint64_t n;
    int r, passes = 0;
    do
        r = remove_listed(c, o, bucket, prefix, p, &n, e);
    while (r == 0 && n > 0 && !o->dry_run && ++passes < PASSES_MAX);
    progress_end(p);
    return r;
}

static int remove_one(struct client *c, const struct rm_options *o, const char *path, struct err *e)
{
    struct slice bucket, key;
    int r = command_path(path, &bucket, &key, e);
    if (r < 0)
        return r;
    if (o->recursive && key.n > 0 && !slice_ends(key, SLICE_LIT("/")) && !o->dry_run)
        return err_set(e, ERR_BAD_OPTION,
                       "-r %s: must be a bucket or end with '/', else what lies beside it and begins alike "
                       "would be removed, too",
                       path);
    if (o->recursive)
        return remove_tree(c, o, bucket, key, e);
    if (key.n == 0)
        return err_set(e, ERR_BAD_OPTION, "'%s': must be BUCKET/KEY, or give -r for all of it", path);
    r = must_exist(c, bucket, key, e);
    if (r == 0 && o->dry_run) {
        command_print_name(stdout, slice_str(path));
        (void)putchar('\n');
    }
    return r < 0 || o->dry_run ? r : remove_key(c, bucket, key, e);
}

int cmd_rm(int argc, char **argv)
{
    struct rm_options o = {0};
    int n, status;
    if (command_parse(&usage, &table, &o, argc, argv, &n, &status)) {
        struct err e = {0};
        _cleanup_(client_freep) struct client *c = NULL;
        int r = command_connect(&o.node, &c, &e);
        if (r < 0)
            status = command_fail(usage.command, r, &e);
        for (int i = 0; c && i < n; i++)
            if ((r = remove_one(c, &o, argv[i], &e)) < 0)
                status = command_fail(usage.command, command_blame(&e, r, argv[i]), &e);
    }
    option_fini(&table, &o);
    return status;
}

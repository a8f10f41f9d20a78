/*
 * forebay stranded: files that were written through a mount and closed, and that the origin did not take. The
 * node keeps them until it is told here what becomes of them.
 */
#include "cli/cli.h"
#include "cli/command.h"

#include "base/sys.h"
#include "base/text.h"

#include <inttypes.h>

#define NS_PER_MS 1000000u

struct stranded_options {
    struct command_node node;
    bool upload, discard, force, json, quiet;
};

static const struct option rows[] = {
    COMMAND_FLAG(stranded_options, upload, "upload", 0, "sends them to the origin"),
    COMMAND_FLAG(stranded_options, discard, "discard", 0, "drops them"),
    COMMAND_FLAG(stranded_options, force, "force", 0,
                 "with --upload: also over what somebody else has written there since"),
    COMMAND_FLAG(stranded_options, json, "json", 0, "JSON"),
    COMMAND_FLAG(stranded_options, quiet, "quiet", 'q', "print nothing"),
    COMMAND_NODE_ROWS(stranded_options),
};
static const struct option_table table = {rows, ARRAY_SIZE(rows), NULL};

static const struct command_usage usage = {
    .command = "forebay stranded",
    .operands = "BUCKET[/PREFIX]",
    .about = "Lists files that were written through a mount and closed, and that the origin did not take: "
             "the node\n"
             "keeps their bytes until they are uploaded or discarded.",
    .min_operands = 1,
    .max_operands = 1,
};

static void print_json(const struct wire_stranded_rep *x, size_t n)
{
    (void)fputs(n == 0 ? "[\n  {\"key\": " : ",\n  {\"key\": ", stdout);
    command_json_string(stdout, x->key);
    (void)printf(", \"size_bytes\": %" PRIu64 ", \"since_ms\": %" PRIu64 ", \"error\": ", x->size,
                 x->since_ns / NS_PER_MS);
    command_json_string(stdout, x->error);
    (void)putchar('}');
}

static void print_line(const struct wire_stranded_rep *x)
{
    char size[TEXT_SIZE_MAX], age[TEXT_SIZE_MAX];
    uint64_t now_ns = sys->real_ns();
    uint64_t age_ms = now_ns > x->since_ns ? (now_ns - x->since_ns) / NS_PER_MS : 0;
    (void)printf("%10s  %8s ago  ", text_size(x->size, size), text_duration(age_ms, age));
    command_print_name(stdout, x->key);
    (void)fputs(": ", stdout);
    command_print_name(stdout, x->error);
    (void)putchar('\n');
}

static void print(const struct stranded_options *o, const struct wire_stranded_rep *x, size_t n)
{
    if (o->quiet)
        return;
    if (o->json)
        print_json(x, n);
    else
        print_line(x);
}

static int end_one(struct client *c, const struct stranded_options *o, struct slice bucket,
                   const struct wire_stranded_rep *x, struct err *e)
{
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    struct wire_stranded_end_req req = {.bucket = bucket,
                                        .key = x->key,
                                        .since_ns = x->since_ns,
                                        .flags = o->upload ? WIRE_WRITE | (o->force ? WIRE_REPLACE : 0) : 0};
    struct wire_stranded_end_rep rep;
    return client_stranded_end(c, &req, &b, &rep, e);
}

/* Each below the prefix; what cannot be ended is told, and the others go on. */
static int each(struct client *c, const struct stranded_options *o, struct wire_stranded_req *req,
                int *status, struct err *e)
{
    _cleanup_buf_ struct buf after = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    int r;
    size_t n = 0;
    for (;; n++) {
        _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
        struct wire_stranded_rep x;
        struct err local = {0};
        req->after = buf_view(&after);
        r = client_stranded(c, req, &b, &x, e);
        if (r < 0)
            break;
        print(o, &x, n);
        int k = o->upload || o->discard ? end_one(c, o, req->bucket, &x, &local) : 0;
        if (k < 0)
            *status = command_fail(usage.command, k, &local);
        buf_clear(&after);
        r = buf_slice(&after, x.key);
        if (r < 0)
            break;
    }
    r = r == -ENOENT ? 0 : r;
    if (o->json && !o->quiet)
        command_json_end(n > 0, r == 0);
    return r;
}

static int check(const struct stranded_options *o, struct err *e)
{
    if (o->upload && o->discard)
        return err_set(e, ERR_BAD_OPTION, "--upload and --discard: one of them");
    if (o->force && !o->upload)
        return err_set(e, ERR_BAD_OPTION, "--force goes with --upload");
    return 0;
}

int cmd_stranded(int argc, char **argv)
{
    struct stranded_options o = {0};
    int n, status;
    if (command_parse(&usage, &table, &o, argc, argv, &n, &status)) {
        struct err e = {0};
        struct wire_stranded_req req = {0};
        _cleanup_(client_freep) struct client *c = NULL;
        int r = check(&o, &e);
        r = r < 0 ? r : command_path(argv[0], &req.bucket, &req.prefix, &e);
        r = r < 0 ? r : command_connect(&o.node, &c, &e);
        status = 0;
        r = r < 0 ? r : each(c, &o, &req, &status, &e);
        if (r < 0)
            status = command_fail(usage.command, r, &e);
    }
    option_fini(&table, &o);
    return status;
}

/* forebay flush: carries what is not in the origin yet there, and says what is left. */
#include "cli/cli.h"
#include "cli/command.h"

#include "base/sys.h"
#include "base/text.h"

#include <inttypes.h>
#include <jansson.h>

#define POLL_NS 200000000ull

struct flush_options {
    struct command_node node;
    bool wait, json, quiet;
};

static const struct option rows[] = {
    COMMAND_FLAG(flush_options, wait, "wait", 'w', "until everything is in the origin"),
    COMMAND_FLAG(flush_options, json, "json", 0, "JSON"),
    COMMAND_FLAG(flush_options, quiet, "quiet", 'q', "print nothing"),
    COMMAND_NODE_ROWS(flush_options),
};
static const struct option_table table = {rows, ARRAY_SIZE(rows), NULL};

static const struct command_usage usage = {
    .command = "forebay flush",
    .operands = "BUCKET[/PREFIX]",
    .about =
        "Tries at once what waits to be tried again, and says what of a bucket with write=back is not in "
        "the origin\n"
        "yet. With --wait it ends when nothing is left below the prefix.",
    .min_operands = 1,
    .max_operands = 1,
};

static void print_left(const struct flush_options *o, const struct wire_flush_rep *rep)
{
    char size[TEXT_SIZE_MAX], age[TEXT_SIZE_MAX];
    if (o->quiet)
        return;
    if (o->json) {
        _cleanup_buf_ struct buf error = BUF_INIT(4 * KIB);
        json_t *j = json_pack("{s:I, s:I, s:I, s:I, s:s}", "objects", (json_int_t)rep->objects, "bytes",
                              (json_int_t)rep->bytes, "oldest_ms", (json_int_t)rep->oldest_ms, "failing",
                              (json_int_t)rep->failing, "error", text_utf8(&error, rep->error));
        command_json_print(j, JSON_COMPACT);
        (void)putchar('\n');
        json_decref(j);
        return;
    }
    (void)printf("%" PRIu64 " objects, %s not in the origin yet", rep->objects, text_size(rep->bytes, size));
    if (rep->objects > 0)
        (void)printf(", for %s", text_duration(rep->oldest_ms, age));
    (void)putchar('\n');
    if (rep->failing > 0) {
        (void)printf("%" PRIu64 " failed so far and are tried again: ", rep->failing);
        command_print_name(stdout, rep->error);
        (void)putchar('\n');
    }
}

/* Once: why it may wait for ever. */
static void tell_failing(const struct flush_options *o, const struct wire_flush_rep *rep, bool *told)
{
    if (o->quiet || *told || rep->failing == 0)
        return;
    *told = true;
    (void)fprintf(stderr, "forebay flush: %" PRIu64 " failed so far and are tried again: ", rep->failing);
    command_print_name(stderr, rep->error);
    (void)fputc('\n', stderr);
}

static int flush(struct client *c, const struct flush_options *o, const char *path, struct err *e)
{
    struct wire_flush_req req = {0};
    bool told = false;
    int r = command_path(path, &req.bucket, &req.prefix, e);
    while (r == 0) {
        _cleanup_buf_ struct buf reply = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
        struct wire_flush_rep rep;
        r = client_flush(c, &req, &reply, &rep, e);
        if (r == 0 && (!o->wait || rep.objects == 0)) {
            print_left(o, &rep);
            break;
        }
        if (r == 0)
            tell_failing(o, &rep, &told);
        req.flags = WIRE_NO_WAIT; /* only looks from now on: what fails waits its time */
        sys->sleep_ns(POLL_NS);
    }
    return r;
}

int cmd_flush(int argc, char **argv)
{
    struct flush_options o = {0};
    int n, status;
    if (command_parse(&usage, &table, &o, argc, argv, &n, &status)) {
        struct err e = {0};
        _cleanup_(client_freep) struct client *c = NULL;
        int r = command_connect(&o.node, &c, &e);
        if (r == 0)
            r = flush(c, &o, argv[0], &e);
        if (r < 0)
            status = command_fail(usage.command, r, &e);
    }
    option_fini(&table, &o);
    return status;
}

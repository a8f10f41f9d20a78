/* forebay status: what the node says of itself. */
#include "cli/cli.h"
#include "cli/command.h"

struct status_options {
    struct command_node node;
};

static const struct option rows[] = {COMMAND_NODE_ROWS(status_options)};
static const struct option_table table = {rows, ARRAY_SIZE(rows), NULL};

static const struct command_usage usage = {
    .command = "forebay status",
    .operands = "",
    .about = "Prints the state of the node as JSON: disks, buckets, mounts and whether they use passthrough, "
             "memory.",
};

int cmd_status(int argc, char **argv)
{
    struct status_options o = {0};
    int n, status;
    if (command_parse(&usage, &table, &o, argc, argv, &n, &status)) {
        struct err e = {0};
        _cleanup_(client_freep) struct client *c = NULL;
        _cleanup_buf_ struct buf reply = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
        struct wire_status_req req = {0};
        struct wire_status_rep rep;
        int r = command_connect(&o.node, &c, &e);
        if (r == 0)
            r = client_status(c, &req, &reply, &rep, &e);
        if (r == 0)
            (void)printf(SLICE_FMT "\n", SLICE_ARG(rep.json));
        else
            status = command_fail(usage.command, r, &e);
    }
    option_fini(&table, &o);
    return status;
}

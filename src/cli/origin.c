/* forebay origin check: what the origin of a URL can, tried by the node. */
#include "cli/cli.h"
#include "cli/command.h"

#define SETTINGS_MAX_BYTES (64 * KIB)

struct origin_options {
    struct command_node node;
    struct option_list set;
    bool json, read_only;
};

static const struct option rows[] = {
    {.name = "set",
     .short_flag = 's',
     .type = OPTION_LIST,
     .offset = offsetof(struct origin_options, set),
     .arg = "origin.X=Y",
     .doc = "a property, for example origin.endpoint=http://10.0.0.5:9000; repeat for several"},
    COMMAND_FLAG(origin_options, read_only, "read-only", 0,
                 "write nothing; reads are tried with the first object that is listed"),
    COMMAND_FLAG(origin_options, json, "json", 0, "one JSON object"),
    COMMAND_NODE_ROWS(origin_options),
};
static const struct option_table table = {rows, ARRAY_SIZE(rows), NULL};

static const struct command_usage usage = {
    .command = "forebay origin",
    .operands = "check URL",
    .about = "Tries what an origin can, from the node's machine and with its environment: says what works, "
             "how long it took,\n"
             "what does not and what to do about it. Objects are written below .forebay-check-*/ of the URL "
             "only, and removed.\n"
             "Ends with 1 when something failed; what an origin cannot by its nature (\"no\") is no failure.",
    .min_operands = 2,
    .max_operands = 2,
};

static int settings_of(const struct origin_options *o, struct buf *b, struct err *e)
{
    int r = 0;
    for (size_t i = 0; r == 0 && i < o->set.n; i++) {
        const char *line = o->set.v[i];
        if (strchr(line, '\n') || !strchr(line, '=') || strncmp(line, "origin.", 7) != 0)
            return err_set(e, ERR_BAD_OPTION, "'%.*s': must be origin.NAME=VALUE", (int)strcspn(line, "="),
                           line);
        r = buf_printf(b, "%s\n", line);
    }
    return r < 0 ? err_set(e, r, "settings are too long") : 0;
}

static void show(bool json, bool first, struct slice name, struct slice state, uint64_t us, struct slice text)
{
    if (!json) {
        (void)printf("%-8.*s %-22.*s %9.1f ms  ", SLICE_ARG(state), SLICE_ARG(name), (double)us / 1000);
        command_print_name(stdout, text);
        (void)putchar('\n');
        return;
    }
    (void)printf("%s{\"name\": ", first ? "" : ",\n  ");
    command_json_string(stdout, name);
    (void)fputs(", \"state\": ", stdout);
    command_json_string(stdout, state);
    (void)printf(", \"ms\": %.3f, \"text\": ", (double)us / 1000);
    command_json_string(stdout, text);
    (void)fputs("}", stdout);
}

/* 1 when something failed. */
static int show_all(bool json, struct slice url, struct slice results)
{
    bool failed = false, first = true;
    if (json) {
        (void)fputs("{\"origin\": ", stdout);
        command_json_string(stdout, url);
        (void)fputs(", \"results\": [\n  ", stdout);
    }
    while (results.n > 0) {
        struct slice text = slice_split(&results, '\n'), name = slice_split(&text, '\t');
        struct slice state = slice_split(&text, '\t'), time = slice_split(&text, '\t');
        uint64_t us = 0;
        (void)slice_u64(time, &us);
        failed |= slice_eq_str(state, "failed");
        show(json, first, name, state, us, text);
        first = false;
    }
    if (json)
        (void)printf("],\n \"failed\": %s}\n", failed ? "true" : "false");
    return failed;
}

static int check(const struct origin_options *o, const char *url, int *ret_status, struct err *e)
{
    _cleanup_(client_freep) struct client *c = NULL;
    _cleanup_buf_ struct buf settings = BUF_INIT(SETTINGS_MAX_BYTES),
                             reply = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    struct wire_origin_check_rep rep;
    int r = settings_of(o, &settings, e);
    if (r == 0)
        r = command_connect(&o->node, &c, e);
    struct wire_origin_check_req req = {
        .url = slice_str(url), .settings = buf_view(&settings), .flags = o->read_only ? WIRE_READ_ONLY : 0};
    if (r == 0)
        r = client_origin_check(c, &req, &reply, &rep, e);
    if (r == 0)
        *ret_status = show_all(o->json, req.url, rep.results);
    return r;
}

int cmd_origin(int argc, char **argv)
{
    struct origin_options o = {0};
    int n, status;
    if (command_parse(&usage, &table, &o, argc, argv, &n, &status)) {
        struct err e = {0};
        int r = strcmp(argv[0], "check") == 0
                    ? check(&o, argv[1], &status, &e)
                    : err_set(&e, ERR_BAD_OPTION, "'%s': expects %s", argv[0], usage.operands);
        if (r < 0)
            status = command_fail(usage.command, r, &e);
    }
    option_fini(&table, &o);
    return status;
}

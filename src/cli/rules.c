/* forebay pin, unpin, rules: what is said of the cache below a prefix. */
#include "cli/cli.h"
#include "cli/command.h"

#include "base/text.h"

#include <inttypes.h>

#define SETTINGS_MAX_BYTES (4 * KIB)

struct rules_options {
    struct command_node node;
    bool json;
};

static const struct option rows[] = {
    COMMAND_FLAG(rules_options, json, "json", 0, "the rules of the bucket, after a change, too, as JSON"),
    COMMAND_NODE_ROWS(rules_options),
};
static const struct option_table table = {rows, ARRAY_SIZE(rows), NULL};

/* One rule of the text: "NAME:PREFIX" or "NAME=VALUE:PREFIX" (namespace/rules.h says how they are written).
 */
static int show_one(const struct rules_options *o, struct slice bucket, struct slice text, bool first)
{
    ssize_t colon = slice_find(text, ':');
    struct slice value = slice_sub(text, 0, (size_t)MAX(colon, 0)), name = slice_split(&value, '=');
    _cleanup_buf_ struct buf prefix = BUF_INIT(4 * KIB);
    uint64_t ttl_ms = 0;
    char time[TEXT_SIZE_MAX];
    if (colon < 0 || text_uri_decode(&prefix, slice_from(text, (size_t)colon + 1), false) < 0)
        return -EINVAL;
    bool is_ttl = slice_u64(value, &ttl_ms) == 0;
    if (o->json) {
        (void)printf("%s{\"rule\": ", first ? "" : ",\n ");
        command_json_string(stdout, name);
        (void)fputs(", \"prefix\": ", stdout);
        command_json_string(stdout, buf_view(&prefix));
        if (is_ttl)
            (void)printf(", \"ms\": %" PRIu64, ttl_ms);
        (void)putchar('}');
        return 0;
    }
    (void)printf(SLICE_FMT "%s%s\t" SLICE_FMT "/", SLICE_ARG(name), is_ttl ? "=" : "",
                 is_ttl ? text_duration(ttl_ms, time) : "", SLICE_ARG(bucket));
    command_print_name(stdout, buf_view(&prefix));
    (void)putchar('\n');
    return 0;
}

static int show(const struct rules_options *o, struct slice bucket, struct slice rules, struct err *e)
{
    int r = 0;
    bool first = true;
    if (o->json)
        (void)putchar('[');
    while (rules.n > 0 && r == 0) {
        r = show_one(o, bucket, slice_split(&rules, ';'), first);
        first = false;
    }
    if (o->json)
        (void)puts("]");
    return r < 0 ? err_set(e, ERR_PROTOCOL, "the node's rules are not understood") : 0;
}

/* Changes the rules of the path by the words, or shows them when there are none. */
static int run(const struct rules_options *o, const char *path, char **words, int n, struct err *e)
{
    _cleanup_(client_freep) struct client *c = NULL;
    _cleanup_buf_ struct buf settings = BUF_INIT(SETTINGS_MAX_BYTES),
                             reply = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    struct wire_bucket_rule_req req = {0};
    struct wire_bucket_rule_rep rep;
    int r = command_path(path, &req.bucket, &req.prefix, e);
    for (int i = 0; i < n && r == 0; i++)
        if (strchr(words[i], '\n') || buf_printf(&settings, "%s\n", words[i]) < 0)
            r = err_set(e, ERR_BAD_OPTION, "'%s': no setting", words[i]);
    req.settings = buf_view(&settings);
    if (r == 0)
        r = command_connect(&o->node, &c, e);
    if (r == 0)
        r = client_bucket_rule(c, &req, &reply, &rep, e);
    return r < 0 || (n > 0 && !o->json) ? r : show(o, req.bucket, rep.rules, e);
}

static int command(const struct command_usage *u, const char *setting, int argc, char **argv)
{
    struct rules_options o = {0};
    int n, status;
    if (command_parse(u, &table, &o, argc, argv, &n, &status)) {
        struct err e = {0};
        char *one = (char *)(uintptr_t)setting;
        int r = setting ? run(&o, argv[0], &one, 1, &e) : run(&o, argv[0], argv + 1, n - 1, &e);
        if (r < 0)
            status = command_fail(u->command, r, &e);
    }
    option_fini(&table, &o);
    return status;
}

int cmd_pin(int argc, char **argv)
{
    static const struct command_usage usage = {
        .command = "forebay pin",
        .operands = "BUCKET[/PREFIX]",
        .about =
            "What is cached below the prefix, now and later, is not evicted for the sake of other data, and "
            "is\nadmitted to the cache before other data. Nothing is fetched: see forebay prefetch --pin.",
        .min_operands = 1,
        .max_operands = 1,
    };
    return command(&usage, "pin=true", argc, argv);
}

int cmd_unpin(int argc, char **argv)
{
    static const struct command_usage usage = {
        .command = "forebay unpin",
        .operands = "BUCKET[/PREFIX]",
        .about = "Ends a pin of exactly this prefix. Nothing is dropped.",
        .min_operands = 1,
        .max_operands = 1,
    };
    return command(&usage, "pin=false", argc, argv);
}

int cmd_rules(int argc, char **argv)
{
    static const struct command_usage usage = {
        .command = "forebay rules",
        .operands = "BUCKET[/PREFIX] [pin=true|false] [cache=never|auto] [ttl=TIME]",
        .about = "Without settings: shows what is said of the cache of a bucket, by prefix. With settings: "
                 "changes "
                 "what is\nsaid for exactly this prefix. The longest prefix decides.\n"
                 "  pin=true     cached data is not evicted for the sake of other data\n"
                 "  cache=never  nothing is kept on the node's disks; what is there is dropped\n"
                 "  ttl=TIME     how long the cached is believed before the origin is asked; ttl= as the "
                 "bucket says",
        .min_operands = 1,
        .max_operands = -1,
    };
    return command(&usage, NULL, argc, argv);
}

/* forebay bucket create | ls | show | set | rm. Properties go to the node as text; --help shows its table of
 * them. */
#include "cli/cli.h"
#include "cli/command.h"

#include "base/text.h"
#include "namespace/bucket.h"

#include <inttypes.h>

#define SETTINGS_MAX_BYTES (64 * KIB)
#define ABOUT_MAX_BYTES    (64 * KIB)

struct bucket_options {
    struct command_node node;
    char *origin;
    struct option_list set;
    bool json;
};

static const struct option rows[] = {
    {.name = "origin",
     .type = OPTION_STRING,
     .offset = offsetof(struct bucket_options, origin),
     .arg = "URL",
     .doc = "create, set: where the data is, s3://, gs://, az://, hdfs://, nfs://, http[s]://, forebay:// or "
            "file:///, as docs/ORIGINS.md says"},
    {.name = "set",
     .short_flag = 's',
     .type = OPTION_LIST,
     .offset = offsetof(struct bucket_options, set),
     .arg = "KEY=VALUE",
     .doc = "create, set: a property, for example origin.endpoint=http://10.0.0.5:9000; repeat for several"},
    COMMAND_FLAG(bucket_options, json, "json", 0, "ls, show: JSON"),
    COMMAND_NODE_ROWS(bucket_options),
};
static const struct option_table table = {rows, ARRAY_SIZE(rows), NULL};

static const struct command_usage usage = {
    .command = "forebay bucket",
    .operands = "create NAME [KEY=VALUE...] | ls | show NAME | set NAME KEY=VALUE... | rm NAME",
    .about =
        "Makes, shows, changes and forgets buckets. A bucket is the top of every path; a mirror bucket "
        "shows the\n"
        "objects of its origin. `rm` forgets the bucket and drops what is cached of it; the origin is "
        "not touched.\n"
        "Without --origin `create` makes a scratch bucket: its objects are on the node's disks only; `rm` "
        "refuses one\n"
        "that is not empty.",
    .min_operands = 1,
    .max_operands = -1,
};

/* Properties by themselves and as --set, as lines. */
static int settings_of(const struct bucket_options *o, char **words, int n, struct buf *b, struct err *e)
{
    int r = o->origin ? buf_printf(b, "origin=%s\n", o->origin) : 0;
    for (size_t i = 0; r == 0 && i < o->set.n + (size_t)n; i++) {
        const char *line = i < o->set.n ? o->set.v[i] : words[i - o->set.n];
        if (strchr(line, '\n') || !strchr(line, '='))
            return err_set(e, ERR_BAD_OPTION, "'%.*s': must be KEY=VALUE, in one line",
                           (int)strcspn(line, "="), line);
        r = buf_printf(b, "%s\n", line);
    }
    return r < 0 ? err_set(e, r, "settings are too long") : 0;
}

static int create(struct client *c, const struct bucket_options *o, const char *name, char **words, int n,
                  struct err *e)
{
    _cleanup_buf_ struct buf settings = BUF_INIT(SETTINGS_MAX_BYTES),
                             reply = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    int r = settings_of(o, words, n, &settings, e);
    if (r < 0)
        return r;
    struct wire_bucket_create_req req = {.name = slice_str(name), .settings = buf_view(&settings)};
    struct wire_bucket_create_rep rep;
    return client_bucket_create(c, &req, &reply, &rep, e);
}

static int change(struct client *c, const struct bucket_options *o, const char *name, char **words, int n,
                  struct err *e)
{
    _cleanup_buf_ struct buf settings = BUF_INIT(SETTINGS_MAX_BYTES),
                             reply = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    int r = settings_of(o, words, n, &settings, e);
    if (r == 0 && settings.n == 0)
        r = err_set(e, ERR_BAD_OPTION, "set: give at least one KEY=VALUE");
    if (r < 0)
        return r;
    struct wire_bucket_set_req req = {.name = slice_str(name), .settings = buf_view(&settings)};
    struct wire_bucket_set_rep rep;
    return client_bucket_set(c, &req, &reply, &rep, e);
}

static void show_json(const char *name, const struct wire_bucket_get_rep *rep)
{
    char created[32];
    text_iso8601(rep->created_ns, created);
    (void)printf("{\"name\": ");
    command_json_string(stdout, slice_str(name));
    (void)printf(", \"id\": %" PRIu64 ", \"created\": \"%s\", \"properties\": {", rep->id, created);
    const char *comma = "";
    for (struct slice rest = rep->settings; rest.n > 0;) {
        struct slice value = slice_split(&rest, '\n'), key = slice_split(&value, '=');
        if (key.n == 0)
            continue;
        (void)fputs(comma, stdout);
        command_json_string(stdout, key);
        (void)fputs(": ", stdout);
        command_json_string(stdout, value);
        comma = ", ";
    }
    (void)puts("}}");
}

static int show(struct client *c, const struct bucket_options *o, const char *name, struct err *e)
{
    _cleanup_buf_ struct buf reply = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    struct wire_bucket_get_req req = {.name = slice_str(name)};
    struct wire_bucket_get_rep rep;
    int r = client_bucket_get(c, &req, &reply, &rep, e);
    if (r < 0)
        return r;
    if (o->json) {
        show_json(name, &rep);
        return 0;
    }
    char created[32];
    text_iso8601(rep.created_ns, created);
    (void)printf("name=%s\nid=%" PRIu64 "\ncreated=%s\n" SLICE_FMT, name, rep.id, created,
                 SLICE_ARG(rep.settings));
    return 0;
}

static void list_line(bool json, const struct wire_bucket *b, bool *first)
{
    char created[32];
    text_iso8601(b->created_ns, created);
    if (json) {
        (void)printf("%s{\"name\": ", *first ? "[" : ",\n ");
        command_json_string(stdout, b->name);
        (void)printf(", \"created\": \"%s\", \"origin\": ", created);
        command_json_string(stdout, b->origin);
        (void)fputs("}", stdout);
    } else {
        (void)printf("%.19sZ  %-24.*s  ", created, SLICE_ARG(b->name));
        command_print_name(stdout, b->origin);
        (void)putchar('\n');
    }
    *first = false;
}

int command_list_buckets(struct client *c, bool json, struct err *e)
{
    _cleanup_free_ char *after = NULL;
    bool first = true;
    for (;;) {
        _cleanup_buf_ struct buf reply = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
        struct wire_bucket_list_req req = {.after = slice_str(after)};
        struct wire_bucket_list_rep rep;
        int r = client_bucket_list(c, &req, &reply, &rep, e);
        struct wire_bucket b;
        while (r == 0 && (r = wire_bucket_decode(&rep.buckets, &b)) == 0) {
            list_line(json, &b, &first);
            free(after);
            after = slice_dup(b.name);
        }
        if (r < 0 && r != -ENOENT) {
            command_json_end(json && !first, /* is_whole= */ false);
            return r;
        }
        if (!rep.truncated)
            break;
    }
    if (json)
        command_json_end(!first, /* is_whole= */ true);
    return 0;
}

/* What is asked for is understood before a node is looked for: a typing error is told as one, whether a node
 * runs or not. */
static int check_verb(const struct bucket_options *o, char **argv, int n, struct err *e)
{
    const char *verb = argv[0];
    bool changes = strcmp(verb, "create") == 0 || strcmp(verb, "set") == 0;
    bool of_one = strcmp(verb, "show") == 0 || strcmp(verb, "rm") == 0;
    if ((o->origin || o->set.n > 0) && !changes)
        return err_set(e, ERR_BAD_OPTION, "%s: --origin and --set are for create and set", verb);
    if ((changes && n >= 2) || (of_one && n == 2) || (strcmp(verb, "ls") == 0 && n == 1))
        return 0;
    return err_set(e, ERR_BAD_OPTION, "'%s': expects %s", verb, usage.operands);
}

static int run(struct client *c, const struct bucket_options *o, char **argv, int n, struct err *e)
{
    const char *verb = argv[0];
    if (strcmp(verb, "ls") == 0)
        return command_list_buckets(c, o->json, e);
    if (strcmp(verb, "create") == 0)
        return create(c, o, argv[1], argv + 2, n - 2, e);
    if (strcmp(verb, "set") == 0)
        return change(c, o, argv[1], argv + 2, n - 2, e);
    if (strcmp(verb, "show") == 0)
        return show(c, o, argv[1], e);
    _cleanup_buf_ struct buf reply = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    struct wire_bucket_remove_req req = {.name = slice_str(argv[1])};
    struct wire_bucket_remove_rep rep;
    return client_bucket_remove(c, &req, &reply, &rep, e);
}

int cmd_bucket(int argc, char **argv)
{
    struct bucket_options o = {0};
    int n, status;
    _cleanup_buf_ struct buf about = BUF_INIT(ABOUT_MAX_BYTES);
    if (buf_printf(&about, "%s\n\nProperties (forebay bucket show prints their values):\n", usage.about) <
            0 ||
        option_help_keys(&bucket_property_table, &about) < 0)
        return command_fail(usage.command, -E2BIG, NULL);
    about.p[about.n - 1] = '\0'; /* print_help ends the line */
    struct command_usage whole = usage;
    whole.about = about.p;
    if (command_parse(&whole, &table, &o, argc, argv, &n, &status)) {
        struct err e = {0};
        _cleanup_(client_freep) struct client *c = NULL;
        int r = check_verb(&o, argv, n, &e);
        r = r < 0 ? r : command_connect(&o.node, &c, &e);
        if (r == 0)
            r = run(c, &o, argv, n, &e);
        if (r < 0)
            status = command_fail(usage.command, r, &e);
    }
    option_fini(&table, &o);
    return status;
}

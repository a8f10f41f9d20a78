/* forebay user create | ls | show | limit | rm | add-key | rm-key */
#include "cli/cli.h"
#include "cli/command.h"

#include "base/text.h"

#include <limits.h>

struct user_options {
    struct command_node node;
    char *role, *buckets;
    bool json;
};

static const struct option rows[] = {
    {.name = "role",
     .type = OPTION_STRING,
     .offset = offsetof(struct user_options, role),
     .arg = "ROLE",
     .doc = "create: reader (default), writer or admin"},
    {.name = "buckets",
     .type = OPTION_STRING,
     .offset = offsetof(struct user_options, buckets),
     .arg = "PATTERN[,PATTERN...]",
     .doc = "create: the buckets it may use, '*' for any characters; default all"},
    COMMAND_FLAG(user_options, json, "json", 0, "create, add-key, ls, show: JSON"),
    COMMAND_NODE_ROWS(user_options),
};
static const struct option_table table = {rows, ARRAY_SIZE(rows), NULL};

static const struct command_usage usage = {
    .command = "forebay user",
    .operands = "create NAME | ls | show NAME | limit NAME SETTING... | rm NAME | add-key NAME | rm-key NAME "
                "ACCESS_KEY",
    .about =
        "Makes, shows and removes users: access keys for S3 and the wire protocol beside the node's own "
        "pair.\n"
        "A reader lists and reads the buckets that its pattern fits, a writer also writes and deletes "
        "objects in\n"
        "them, an admin does everything. A secret is shown once, when its key is made. For rotation add a "
        "key,\n"
        "move the clients, then remove the old one; it is refused from then on, also on open connections.\n"
        "SETTING is share=N (weight beside other users when requests wait; 100), limit.requests=N or\n"
        "limit.bytes=SIZE (a second; 0: no limit).",
    .min_operands = 1,
    .max_operands = -1,
};

static int print_key(const struct user_options *o, const char *name, struct slice access_key,
                     struct slice secret_key)
{
    if (!o->json) {
        (void)printf("FOREBAY_ACCESS_KEY=" SLICE_FMT "\nFOREBAY_SECRET_KEY=" SLICE_FMT "\n",
                     SLICE_ARG(access_key), SLICE_ARG(secret_key));
        return 0;
    }
    (void)printf("{\"name\": ");
    command_json_string(stdout, slice_str(name));
    (void)printf(", \"access_key\": ");
    command_json_string(stdout, access_key);
    (void)printf(", \"secret_key\": ");
    command_json_string(stdout, secret_key);
    (void)puts("}");
    return 0;
}

/* Those that are not the usual ones. */
static void print_limits(struct slice share, struct slice requests, struct slice bytes)
{
    char size[TEXT_SIZE_MAX];
    uint64_t n;
    if (!slice_eq_str(share, "100"))
        (void)printf("  share=" SLICE_FMT, SLICE_ARG(share));
    if (!slice_eq_str(requests, "0"))
        (void)printf("  limit.requests=" SLICE_FMT, SLICE_ARG(requests));
    if (slice_u64(bytes, &n) == 0 && n > 0)
        (void)printf("  limit.bytes=%s", text_size(n, size));
    (void)putchar('\n');
}

/* One line as the node sends it, without its end. */
static int print_user(bool json, struct slice line, struct err *e)
{
    struct slice name = slice_split(&line, ' '), role = slice_split(&line, ' '),
                 buckets = slice_split(&line, ' '), created = slice_split(&line, ' '),
                 keys = slice_split(&line, ' '), share = slice_split(&line, ' '),
                 requests = slice_split(&line, ' '), bytes = line;
    uint64_t created_ns;
    char date[32];
    if (slice_u64(created, &created_ns) < 0 || keys.n == 0 || bytes.n == 0)
        return err_set(e, ERR_PROTOCOL, "the node sent a user that is not understood");
    text_iso8601(created_ns, date);
    if (!json) {
        (void)printf(SLICE_FMT "  " SLICE_FMT "  " SLICE_FMT "  %s  " SLICE_FMT, SLICE_ARG(name),
                     SLICE_ARG(role), SLICE_ARG(buckets), date, SLICE_ARG(keys));
        print_limits(share, requests, bytes);
        return 0;
    }
    (void)printf("{\"name\": ");
    command_json_string(stdout, name);
    (void)printf(", \"role\": ");
    command_json_string(stdout, role);
    (void)printf(", \"buckets\": ");
    command_json_string(stdout, buckets);
    (void)printf(", \"created\": \"%s\", \"access_keys\": [", date);
    for (const char *comma = ""; keys.n > 0; comma = ", ") {
        (void)fputs(comma, stdout);
        command_json_string(stdout, slice_split(&keys, ','));
    }
    (void)printf("], \"share\": " SLICE_FMT ", \"limit_requests\": " SLICE_FMT ", \"limit_bytes\": " SLICE_FMT
                 "}",
                 SLICE_ARG(share), SLICE_ARG(requests), SLICE_ARG(bytes));
    return 0;
}

static int list(struct client *c, bool json, struct err *e)
{
    _cleanup_free_ char *after = NULL;
    const char *before = "[";
    for (bool more = true; more;) {
        _cleanup_buf_ struct buf reply = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
        struct wire_user_list_req req = {.after = slice_str(after)};
        struct wire_user_list_rep rep;
        int r = client_user_list(c, &req, &reply, &rep, e);
        while (r == 0 && rep.users.n > 0) {
            struct slice line = slice_split(&rep.users, '\n'), rest = line;
            free(after);
            after = slice_dup(slice_split(&rest, ' '));
            if (json)
                (void)fputs(before, stdout);
            before = ",\n ";
            r = print_user(json, line, e);
        }
        if (r < 0) {
            command_json_end(json && before[0] != '[', /* is_whole= */ false);
            return r;
        }
        more = rep.truncated;
    }
    if (json)
        command_json_end(before[0] != '[', /* is_whole= */ true);
    return 0;
}

static int show(struct client *c, const struct user_options *o, const char *name, struct err *e)
{
    _cleanup_buf_ struct buf reply = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    struct wire_user_get_req req = {.name = slice_str(name)};
    struct wire_user_get_rep rep;
    int r = client_user_get(c, &req, &reply, &rep, e);
    if (r == 0)
        r = print_user(o->json, slice_split(&rep.user, '\n'), e);
    if (r == 0 && o->json)
        (void)puts("");
    return r;
}

static int create(struct client *c, const struct user_options *o, const char *name, struct err *e)
{
    _cleanup_buf_ struct buf reply = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    struct wire_user_create_req req = {
        .name = slice_str(name), .role = slice_str(o->role), .buckets = slice_str(o->buckets)};
    struct wire_user_create_rep rep;
    int r = client_user_create(c, &req, &reply, &rep, e);
    return r < 0 ? r : print_key(o, name, rep.access_key, rep.secret_key);
}

static int add_key(struct client *c, const struct user_options *o, const char *name, struct err *e)
{
    _cleanup_buf_ struct buf reply = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    struct wire_user_add_key_req req = {.name = slice_str(name)};
    struct wire_user_add_key_rep rep;
    int r = client_user_add_key(c, &req, &reply, &rep, e);
    return r < 0 ? r : print_key(o, name, rep.access_key, rep.secret_key);
}

static int limit(struct client *c, const char *name, char **words, int n, struct err *e)
{
    _cleanup_buf_ struct buf reply = BUF_INIT(CLIENT_REPLY_MAX_BYTES), settings = BUF_INIT(4 * KIB);
    struct wire_user_limit_req req = {.name = slice_str(name)};
    struct wire_user_limit_rep rep;
    for (int i = 0; i < n; i++)
        if (strchr(words[i], '\n') || buf_printf(&settings, "%s\n", words[i]) < 0)
            return err_set(e, ERR_BAD_OPTION, "'%s': must be NAME=VALUE", words[i]);
    req.settings = buf_view(&settings);
    return client_user_limit(c, &req, &reply, &rep, e);
}

/* What is asked for is understood before a node is looked for: a typing error is told as one, whether a node
 * runs or not. */
static int check_verb(const struct user_options *o, char **argv, int n, struct err *e)
{
    static const struct {
        const char *name;
        int min, max; /* words, itself included */
    } verbs[] = {{"ls", 1, 1},      {"create", 2, 2}, {"show", 2, 2},  {"limit", 3, INT_MAX},
                 {"add-key", 2, 2}, {"rm", 2, 2},     {"rm-key", 3, 3}};
    const char *verb = argv[0];
    if ((o->role || o->buckets) && strcmp(verb, "create") != 0)
        return err_set(e, ERR_BAD_OPTION, "%s: --role and --buckets are for create", verb);
    for (size_t i = 0; i < ARRAY_SIZE(verbs); i++)
        if (strcmp(verb, verbs[i].name) == 0 && n >= verbs[i].min && n <= verbs[i].max)
            return 0;
    return err_set(e, ERR_BAD_OPTION, "'%s': expects %s", verb, usage.operands);
}

static int run(struct client *c, const struct user_options *o, char **argv, int n, struct err *e)
{
    const char *verb = argv[0];
    _cleanup_buf_ struct buf reply = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    if (strcmp(verb, "ls") == 0)
        return list(c, o->json, e);
    if (strcmp(verb, "create") == 0)
        return create(c, o, argv[1], e);
    if (strcmp(verb, "show") == 0)
        return show(c, o, argv[1], e);
    if (strcmp(verb, "limit") == 0)
        return limit(c, argv[1], argv + 2, n - 2, e);
    if (strcmp(verb, "add-key") == 0)
        return add_key(c, o, argv[1], e);
    if (strcmp(verb, "rm") == 0) {
        struct wire_user_remove_req req = {.name = slice_str(argv[1])};
        struct wire_user_remove_rep rep;
        return client_user_remove(c, &req, &reply, &rep, e);
    }
    struct wire_user_remove_key_req req = {.name = slice_str(argv[1]), .access_key = slice_str(argv[2])};
    struct wire_user_remove_key_rep rep;
    return client_user_remove_key(c, &req, &reply, &rep, e);
}

int cmd_user(int argc, char **argv)
{
    struct user_options o = {0};
    int n, status;
    if (command_parse(&usage, &table, &o, argc, argv, &n, &status)) {
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

/*
 * forebay explain: where the bytes of one file are, whether all of them are here, and whether opening it
 * leaves reading to the kernel; if not, why; of a path below a mount also what its last slow operations
 * waited for. A path below a mount is asked of the mount first, which knows the object and how it is open;
 * the rest the node knows.
 */
#include "cli/cli.h"
#include "cli/command.h"
#include "cli/mount_stats.h"

#include "base/sys.h"
#include "base/text.h"
#include "mount/explain.h"

#include <inttypes.h>
#include <jansson.h>
#include <string.h>

struct explain_options {
    struct command_node node;
    bool json;
};

static const struct option rows[] = {
    COMMAND_FLAG(explain_options, json, "json", 0, "JSON"),
    COMMAND_NODE_ROWS(explain_options),
};
static const struct option_table table = {rows, ARRAY_SIZE(rows), NULL};

static const struct command_usage usage = {
    .command = "forebay explain",
    .operands = "PATH|BUCKET/KEY",
    .about =
        "Says where the bytes of a file are, which of them are on this machine, and whether the kernel "
        "would read it\n"
        "by itself when it is opened, or why not. PATH is below a mount, which tells what its last slow\n"
        "reads of it waited for; anything else is BUCKET/KEY.",
    .min_operands = 1,
    .max_operands = 1,
};

/* What is asked about: an object of a bucket, and with a path the mount's word on it. */
struct subject {
    struct explain_report mount;
    bool has_mount;
    struct slice bucket, key;
    uint64_t ino;
};

static bool is_true(const json_t *o, const char *name)
{
    return json_is_true(json_object_get(o, name));
}

/* ---- asking ---- */

static bool looks_like_path(const char *s)
{
    return s[0] == '/' || strncmp(s, "./", 2) == 0 || strncmp(s, "../", 3) == 0;
}

static int find_subject(const char *arg, struct subject *ret, struct err *e)
{
    int r = explain_ask(arg, &ret->mount, e);
    ret->has_mount = r == 0;
    if (r < 0 && !looks_like_path(arg) && (r == -ENOENT || r == -ENOTDIR || r == -ENOTTY)) {
        r = command_path(arg, &ret->bucket, &ret->key, e);
        return r == 0 && ret->key.n == 0
                   ? err_set(e, ERR_BAD_OPTION, "%s: is a bucket, name a file in it", arg)
                   : r;
    }
    if (r < 0)
        return r;
    if (ret->mount.is_directory)
        return err_set(e, -EISDIR, "%s: is a directory, name a file in it", arg);
    ret->bucket = slice_str(ret->mount.bucket);
    ret->key = slice_str(ret->mount.key);
    ret->ino = ret->mount.ino;
    return 0;
}

static bool names_a_node(const struct command_node *n)
{
    return n->data || n->socket || n->endpoint;
}

/* The node of the mount, unless another way to it is given. */
static int connect_node(const struct explain_options *o, const struct subject *s, struct client **ret,
                        struct err *e)
{
    struct command_node n = o->node;
    static const char unix_prefix[] = "unix:";
    char *path =
        s->has_mount && !names_a_node(&n) && strncmp(s->mount.node, unix_prefix, sizeof(unix_prefix) - 1) == 0
            ? slice_dup(slice_str(s->mount.node + sizeof(unix_prefix) - 1))
            : NULL;
    if (path)
        n.socket = path;
    int r = command_connect(&n, ret, e);
    free(path);
    return r;
}

static int ask_node(struct client *c, const struct subject *s, json_t **ret, struct err *e)
{
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    struct wire_explain_req req = {.bucket = s->bucket, .key = s->key, .ino = s->ino};
    struct wire_explain_rep rep;
    int r = client_explain(c, &req, &b, &rep, e);
    if (r < 0)
        return r;
    *ret = json_loadb(rep.json.p, rep.json.n, 0, NULL);
    return json_is_object(*ret) ? 0 : err_set(e, ERR_PROTOCOL, "the node's answer is not understood");
}

/* ---- the mount's word ---- */

/* What in the mount is in the way of passthrough; NULL: nothing. */
static const char *mount_why_not(const struct explain_report *m)
{
    if (m->is_openless)
        return "the mount has the read-only profile, which reads through the page cache";
    if (!m->is_passthrough)
        return m->reason[0] ? m->reason : "the mount does without";
    if (m->n_plain > 0)
        return "it is open through the mount's process now, and the kernel takes no second way beside that";
    return NULL;
}

/* Puts the mount's word into the node's answer. */
static void add_mount(const struct explain_report *m, json_t *o)
{
    const char *why = mount_why_not(m);
    _cleanup_buf_ struct buf directory = BUF_INIT(16 * KIB);
    json_t *j = json_pack(
        "{s:s, s:b, s:i, s:i, s:b, s:b}", "directory", text_utf8(&directory, slice_str(m->directory)),
        "passthrough", (int)m->is_passthrough, "opens_by_passthrough", (int)m->n_passthrough, "other_opens",
        (int)m->n_plain, "kept_open", (int)m->is_kept, "being_written", (int)m->is_written);
    if (j)
        (void)json_object_set_new(j, "slow", mount_stats_slow_json(m->slow, m->n_slow));
    if (j)
        (void)json_object_set_new(o, "mount", j);
    if (!why)
        return;
    char both[2 * ERR_TEXT_MAX];
    (void)snprintf(both, sizeof(both), "%s%s%s", why,
                   is_true(o, "passthrough") ? "" : "; also: ", command_text(o, "why_not"));
    (void)json_object_set_new(o, "passthrough", json_false());
    (void)json_object_set_new(o, "why_not", json_string(both));
}

/* ---- for people ---- */

static void line(const char *title)
{
    (void)printf("  %-13s", title);
}

static void print_name_line(const char *title, const char *value)
{
    line(title);
    command_print_name(stdout, slice_str(value));
    (void)putchar('\n');
}

static void print_ago(uint64_t real_ms)
{
    char ago[TEXT_SIZE_MAX];
    uint64_t now_ms = sys->real_ns() / 1000000;
    (void)printf("%s ago", text_duration(now_ms > real_ms ? now_ms - real_ms : 0, ago));
}

static void print_size(const json_t *o)
{
    char size[TEXT_SIZE_MAX];
    line("size");
    (void)printf("%" PRIu64 " bytes (%s)", command_number(o, "size_bytes"),
                 text_size(command_number(o, "size_bytes"), size));
    if (command_text(o, "etag")[0]) {
        (void)fputs(", ETag ", stdout);
        command_print_name(stdout, slice_str(command_text(o, "etag")));
    }
    (void)putchar('\n');
}

static void print_cached(const json_t *o)
{
    char block[TEXT_SIZE_MAX];
    uint64_t blocks = command_number(o, "blocks"), present = command_number(o, "blocks_present");
    print_size(o);
    line("here");
    (void)printf("%s: %" PRIu64 " of %" PRIu64 " blocks of %s", is_true(o, "complete") ? "all" : "a part",
                 present, blocks, text_size(command_number(o, "block_bytes"), block));
    if (command_number(o, "blocks_suspect") > 0)
        (void)printf(", %" PRIu64 " to be verified", command_number(o, "blocks_suspect"));
    if (json_object_get(o, "first_missing_at"))
        (void)printf("; the first missing byte is %" PRIu64, command_number(o, "first_missing_at"));
    (void)putchar('\n');
    print_name_line("file", command_text(o, "file"));
    line("version");
    (void)printf("%s by validate=%s; confirmed ",
                 is_true(o, "fresh") ? "served without asking the origin"
                                     : "the origin is asked at the next open,",
                 command_text(o, "validate"));
    print_ago(command_number(o, "confirmed_ms"));
    (void)putchar('\n');
    line("last read");
    if (command_number(o, "last_read_ms") > 0)
        print_ago(command_number(o, "last_read_ms"));
    else
        (void)fputs("never", stdout);
    (void)printf("%s\n", strcmp(command_text(o, "keep"), "pinned") == 0 ? "; pinned" : "");
}

static void print_mirror(const json_t *o)
{
    if (is_true(o, "cached")) {
        print_cached(o);
        return;
    }
    line("here");
    if (is_true(o, "unsent")) {
        (void)puts("all; it is not in the origin yet");
        return;
    }
    (void)printf("nothing%s\n", strcmp(command_text(o, "keep"), "never") == 0
                                    ? ", and it is never cached (cache=never)"
                                : strcmp(command_text(o, "keep"), "pinned") == 0 ? " yet; pinned"
                                                                                 : "");
}

static void print_scratch(const json_t *o)
{
    line("inode");
    (void)printf("%" PRIu64 ", %s, links: %" PRIu64 "\n", command_number(o, "inode"), command_text(o, "type"),
                 command_number(o, "links"));
    if (!json_object_get(o, "size_bytes"))
        return;
    print_size(o);
    char size[TEXT_SIZE_MAX];
    line("here");
    (void)printf("all; this is the only copy; %s on disk\n",
                 text_size(command_number(o, "allocated_bytes"), size));
    if (command_text(o, "file")[0])
        print_name_line("file", command_text(o, "file"));
    if (command_text(o, "state")[0])
        print_name_line("state", command_text(o, "state"));
}

static void print_mount(const json_t *m)
{
    uint64_t by_kernel = command_number(m, "opens_by_passthrough"), others = command_number(m, "other_opens");
    line("mount");
    command_print_name(stdout, slice_str(command_text(m, "directory")));
    if (by_kernel + others > 0)
        (void)printf(": open %" PRIu64 " times by passthrough, %" PRIu64 " times otherwise%s", by_kernel,
                     others, is_true(m, "being_written") ? ", being written" : "");
    else
        (void)fputs(is_true(m, "kept_open") ? ": not open, kept ready" : ": not open", stdout);
    (void)putchar('\n');
}

static void print_slow(const struct explain_report *m)
{
    for (uint32_t i = 0; i < m->n_slow; i++) {
        line(i == 0 ? "slow" : "");
        mount_stats_print_slow(&m->slow[i]);
        (void)putchar('\n');
    }
}

static void print_people(const struct subject *s, const json_t *o)
{
    bool scratch = strcmp(command_text(o, "kind"), "scratch") == 0;
    (void)printf("%s bucket ", scratch ? "scratch" : "mirror");
    command_print_name(stdout, s->bucket);
    if (s->key.n > 0) {
        (void)fputs(", key ", stdout);
        command_print_name(stdout, s->key);
    }
    (void)putchar('\n');
    if (scratch)
        print_scratch(o);
    else
        print_mirror(o);
    if (json_object_get(o, "mount"))
        print_mount(json_object_get(o, "mount"));
    print_slow(&s->mount);
    line("passthrough");
    if (is_true(o, "passthrough")) {
        (void)printf("yes%s\n", s->has_mount ? "" : ", where the mount uses it");
        return;
    }
    (void)fputs("no: ", stdout);
    command_print_name(stdout, slice_str(command_text(o, "why_not")));
    (void)putchar('\n');
}

static void print_json(const struct subject *s, json_t *o)
{
    _cleanup_buf_ struct buf bucket = BUF_INIT(3 * s->bucket.n + 1), key = BUF_INIT(3 * s->key.n + 1);
    (void)json_object_set_new(o, "bucket", json_string(text_utf8(&bucket, s->bucket)));
    if (s->key.n > 0)
        (void)json_object_set_new(o, "key", json_string(text_utf8(&key, s->key)));
    command_json_print(o, JSON_INDENT(2) | JSON_SORT_KEYS);
    (void)putchar('\n');
}

static int run(const struct explain_options *o, const char *arg, struct err *e)
{
    _cleanup_(client_freep) struct client *c = NULL;
    struct subject s = {0};
    json_t *answer = NULL;
    int r = find_subject(arg, &s, e);
    if (r == 0)
        r = connect_node(o, &s, &c, e);
    if (r == 0)
        r = ask_node(c, &s, &answer, e);
    if (r < 0 && c)
        r = command_blame(e, r, arg);
    if (r == 0) {
        if (s.has_mount)
            add_mount(&s.mount, answer);
        if (o->json)
            print_json(&s, answer);
        else
            print_people(&s, answer);
    }
    json_decref(answer);
    return r;
}

int cmd_explain(int argc, char **argv)
{
    struct explain_options o = {0};
    int n, status;
    if (command_parse(&usage, &table, &o, argc, argv, &n, &status)) {
        struct err e = {0};
        int r = run(&o, argv[0], &e);
        status = r < 0 ? command_fail(usage.command, r, &e) : 0;
    }
    option_fini(&table, &o);
    return status;
}

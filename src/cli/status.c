/* forebay status: what the node says of itself, for people or as JSON. */
#include "cli/cli.h"
#include "cli/command.h"

#include "base/text.h"

#include <inttypes.h>
#include <jansson.h>

struct status_options {
    struct command_node node;
    bool json;
};

static const struct option rows[] = {
    COMMAND_FLAG(status_options, json, "json", 0, "JSON"),
    COMMAND_NODE_ROWS(status_options),
};
static const struct option_table table = {rows, ARRAY_SIZE(rows), NULL};

static const struct command_usage usage = {
    .command = "forebay status",
    .operands = "",
    .about = "Prints the state of the node: disks, buckets, mounts and whether they use passthrough, memory.",
};

/* "title:" before the first line of a group, blanks before the others. */
static void print_title(const char *title, size_t i)
{
    (void)printf("%-9s", i == 0 ? title : "");
}

static void print_disks(const json_t *disks)
{
    const json_t *d;
    size_t i;
    json_array_foreach(disks, i, d)
    {
        char used[TEXT_SIZE_MAX], limit[TEXT_SIZE_MAX], left[TEXT_SIZE_MAX];
        print_title("disks:", i);
        command_print_name(stdout, slice_str(command_text(d, "path")));
        (void)printf(": %s of %s used, %" PRIu64 " files, %s free on its file system%s\n",
                     text_size(command_number(d, "used_bytes"), used),
                     text_size(command_number(d, "limit_bytes"), limit), command_number(d, "extents"),
                     text_size(command_number(d, "free_bytes"), left),
                     json_is_true(json_object_get(d, "was_clean")) ? "" : ", not stopped cleanly before");
    }
}

/* What a bucket has that its origin has not. */
static void print_write_back(const json_t *w)
{
    char size[TEXT_SIZE_MAX], age[TEXT_SIZE_MAX];
    if (!w)
        return;
    (void)printf(" (write=back: %" PRIu64 " objects, %s not in the origin yet", command_number(w, "objects"),
                 text_size(command_number(w, "bytes"), size));
    if (command_number(w, "objects") > 0)
        (void)printf(", for %s", text_duration(command_number(w, "oldest_ms"), age));
    if (command_number(w, "conflicts") > 0)
        (void)printf(", %" PRIu64 " conflicts", command_number(w, "conflicts"));
    (void)putchar(')');
    if (command_number(w, "failing") > 0) {
        (void)fputs("\n    tried again: ", stdout);
        command_print_name(stdout, slice_str(command_text(w, "error")));
    }
}

/* Files that were written through mounts, closed, and not taken by the origin. */
static void print_stranded(const json_t *w, const char *bucket)
{
    char size[TEXT_SIZE_MAX];
    const json_t *first = json_object_get(w, "first"), *x;
    size_t i;
    if (!w)
        return;
    (void)printf("\n    kept, because the origin did not take them: %" PRIu64
                 " files, %s; see forebay stranded %s",
                 command_number(w, "files"), text_size(command_number(w, "bytes"), size), bucket);
    json_array_foreach(first, i, x)
    {
        (void)fputs("\n      ", stdout);
        command_print_name(stdout, slice_str(command_text(x, "key")));
        (void)printf(" (%s): ", text_size(command_number(x, "size_bytes"), size));
        command_print_name(stdout, slice_str(command_text(x, "error")));
    }
    if (command_number(w, "files") > i)
        (void)fputs("\n      ...", stdout);
}

static void print_buckets(const json_t *buckets)
{
    const json_t *b;
    size_t i;
    json_array_foreach(buckets, i, b)
    {
        print_title("buckets:", i);
        (void)printf("%-24s ", command_text(b, "name"));
        command_print_name(stdout, slice_str(command_text(b, "origin")));
        char size[TEXT_SIZE_MAX];
        if (json_object_get(b, "inodes"))
            (void)printf("scratch: %" PRIu64 " files and directories, %s", command_number(b, "inodes"),
                         text_size(command_number(b, "bytes"), size));
        const json_t *values = json_object_get(b, "values");
        if (values)
            (void)printf("values in memory: %" PRIu64 " objects, %s", command_number(values, "objects"),
                         text_size(command_number(values, "bytes"), size));
        print_write_back(json_object_get(b, "write_back"));
        print_stranded(json_object_get(b, "stranded"), command_text(b, "name"));
        (void)putchar('\n');
    }
}

static void print_mounts(const json_t *mounts)
{
    const json_t *m;
    size_t i;
    json_array_foreach(mounts, i, m)
    {
        bool passthrough = json_is_true(json_object_get(m, "passthrough"));
        print_title("mounts:", i);
        command_print_name(stdout, slice_str(command_text(m, "mount_point")));
        (void)fputs(": ", stdout);
        command_print_name(stdout, slice_str(command_text(m, "bucket")));
        (void)fputs(passthrough ? ", passthrough" : ", no passthrough", stdout);
        if (!passthrough && command_text(m, "reason")[0]) {
            (void)fputs(": ", stdout);
            command_print_name(stdout, slice_str(command_text(m, "reason"))); /* whoever mounts says it */
        }
        (void)putchar('\n');
    }
}

/* Whom limits and shares made wait. */
static void print_shaping(const json_t *s)
{
    const json_t *x, *limits = json_object_get(s, "limits");
    size_t i, n = 0;
    json_array_foreach(limits, i, x)
    {
        char time[TEXT_SIZE_MAX];
        if (command_number(x, "waited") == 0 && command_number(x, "refused") == 0)
            continue;
        print_title("limits:", n++);
        (void)printf("%s ", command_text(x, "limit"));
        command_print_name(stdout, slice_str(command_text(x, "name")));
        (void)printf(": %" PRIu64 " of %" PRIu64 " requests waited, %s together, %" PRIu64 " refused\n",
                     command_number(x, "waited"), command_number(x, "requests"),
                     text_duration(command_number(x, "waited_ms"), time), command_number(x, "refused"));
    }
}

static void print_scrub(const json_t *scrub)
{
    const json_t *d;
    size_t i;
    json_array_foreach(json_object_get(scrub, "disks"), i, d)
    {
        char date[32];
        text_iso8601(command_number(d, "ended_ms") * 1000000, date);
        print_title("scrub:", i);
        command_print_name(stdout, slice_str(command_text(d, "path")));
        (void)printf(": %" PRIu64 " blocks read%s%s, %" PRIu64 " dropped", command_number(d, "blocks"),
                     command_number(d, "ended_ms") > 0 ? " until " : " so far",
                     command_number(d, "ended_ms") > 0 ? date : "", command_number(d, "dropped"));
        if (command_number(d, "bad_scratch_files") > 0)
            (void)printf("; %" PRIu64 " scratch files with bad bytes, which the log names",
                         command_number(d, "bad_scratch_files"));
        (void)putchar('\n');
    }
}

static void print_status(const json_t *o, const char *address)
{
    char used[TEXT_SIZE_MAX], budget[TEXT_SIZE_MAX];
    (void)printf("node:    forebay %s at %s\n", command_text(o, "version"), address);
    (void)printf("memory:  %s of buffers in use, at most %s; %" PRIu64 " objects open for reading, %" PRIu64
                 " for writing\n",
                 text_size(command_number(o, "memory_used_bytes"), used),
                 text_size(command_number(o, "memory_budget_bytes"), budget), command_number(o, "readers"),
                 command_number(o, "writers"));
    print_disks(json_object_get(o, "disks"));
    print_scrub(json_object_get(o, "scrub"));
    print_buckets(json_object_get(o, "buckets"));
    if (command_number(o, "buckets_left_out") > 0)
        (void)printf("%-9sand %" PRIu64 " more: forebay bucket ls\n", "",
                     command_number(o, "buckets_left_out"));
    print_mounts(json_object_get(o, "mounts"));
    print_shaping(json_object_get(o, "shaping"));
}

static int show(const struct status_options *o, struct err *e)
{
    _cleanup_(client_freep) struct client *c = NULL;
    _cleanup_buf_ struct buf reply = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    struct wire_status_req req = {0};
    struct wire_status_rep rep;
    int r = command_connect(&o->node, &c, e);
    if (r == 0)
        r = client_status(c, &req, &reply, &rep, e);
    if (r < 0)
        return r;
    if (o->json) {
        command_json_text(stdout, rep.json);
        (void)putchar('\n');
        return 0;
    }
    json_t *state = json_loadb(rep.json.p, rep.json.n, 0, NULL);
    if (!state)
        return err_set(e, ERR_PROTOCOL, "the node's description of itself is not understood");
    print_status(state, client_address(c));
    json_decref(state);
    return 0;
}

int cmd_status(int argc, char **argv)
{
    struct status_options o = {0};
    int n, status;
    if (command_parse(&usage, &table, &o, argc, argv, &n, &status)) {
        struct err e = {0};
        int r = show(&o, &e);
        if (r < 0)
            status = command_fail(usage.command, r, &e);
    }
    option_fini(&table, &o);
    return status;
}

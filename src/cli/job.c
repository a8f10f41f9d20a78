/*
 * forebay prefetch, evict, copy, sync: start a job on the node. forebay job: looks after jobs.
 *
 * Exit status of --wait and `job wait`: 0 all done, 3 partly failed, 1 failed or cancelled.
 */
#include "cli/cli.h"
#include "cli/command.h"

#include "base/sys.h"
#include "base/text.h"
#include "net/job_spec.h"

#include <inttypes.h>
#include <jansson.h>

#define STATUS_PARTLY 3
#define POLL_NS       ((uint64_t)200000000)
#define REDRAW_LINES  50 /* piped: a line every so many polls */

struct job_options {
    struct command_node node;
    struct job_spec spec;
    bool wait, json, quiet, check;
};

static const struct option start_rows[] = {
#define X(field, type, name, arg, def, min, max, choices, doc)                                               \
    JOB_SPEC_ROW(job_options, field, type, name, arg, def, min, max, choices, doc)
    JOB_SPEC_OPTIONS(X)
#undef X
        COMMAND_FLAG(job_options, wait, "wait", 'w', "wait for its end and show progress"),
    COMMAND_FLAG(job_options, check, "check", 0,
                 "prefetch: start nothing, print how much is cached; no data is read"),
    COMMAND_FLAG(job_options, json, "json", 0, "JSON"),
    COMMAND_FLAG(job_options, quiet, "quiet", 'q', "no progress and no summary"),
    COMMAND_NODE_ROWS(job_options),
};
static const struct option_table start_table = {start_rows, ARRAY_SIZE(start_rows), NULL};

static const struct option rows[] = {
    COMMAND_FLAG(job_options, json, "json", 0, "JSON"),
    COMMAND_FLAG(job_options, quiet, "quiet", 'q', "wait: no progress and no summary"),
    COMMAND_NODE_ROWS(job_options),
};
static const struct option_table table = {rows, ARRAY_SIZE(rows), NULL};

/* ---- one job, as the node describes it ---- */

static uint64_t number(const json_t *o, const char *name)
{
    json_int_t v = json_integer_value(json_object_get(o, name));
    return v < 0 ? 0 : (uint64_t)v;
}

static const char *text(const json_t *o, const char *name)
{
    const char *s = json_string_value(json_object_get(o, name));
    return s ? s : "";
}

/* The job's description; json_decref. */
static int get_job(struct client *c, uint64_t id, json_t **ret, struct err *e)
{
    _cleanup_buf_ struct buf reply = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    struct wire_job_get_req req = {.id = id};
    struct wire_job_get_rep rep;
    int r = client_job_get(c, &req, &reply, &rep, e);
    if (r < 0)
        return r;
    json_t *o = json_loadb(rep.json.p, rep.json.n, 0, NULL);
    if (!o)
        return err_set(e, ERR_PROTOCOL, "the node's description of the job is not understood");
    *ret = o;
    return 0;
}

static void print_counts(FILE *to, const json_t *o)
{
    char done[TEXT_SIZE_MAX], total[TEXT_SIZE_MAX];
    (void)fprintf(to, "%" PRIu64, number(o, "done_objects"));
    if (json_is_true(json_object_get(o, "counted")))
        (void)fprintf(to, "/%" PRIu64, number(o, "total_objects"));
    (void)fprintf(to, " objects, %s", text_size(number(o, "done_bytes"), done));
    if (json_is_true(json_object_get(o, "counted")))
        (void)fprintf(to, " of %s", text_size(number(o, "total_bytes"), total));
    if (number(o, "removed_objects") > 0)
        (void)fprintf(to, ", %" PRIu64 " removed", number(o, "removed_objects"));
    (void)fprintf(to, ", %" PRIu64 " failed", number(o, "failed_objects"));
}

static void print_job(const json_t *o)
{
    (void)printf("%-5" PRIu64 " %-9s %-14s ", number(o, "id"), text(o, "kind"), text(o, "state"));
    command_print_name(stdout, slice_str(text(o, "source")));
    if (text(o, "target")[0]) {
        (void)fputs(" to ", stdout);
        command_print_name(stdout, slice_str(text(o, "target")));
    }
    (void)fputs(": ", stdout);
    print_counts(stdout, o);
    if (text(o, "reason")[0])
        (void)printf(": %s", text(o, "reason"));
    (void)putchar('\n');
}

/* ---- wait ---- */

struct waiting {
    bool terminal;
    uint64_t began_ns, first_bytes, polls;
};

static void draw(struct waiting *w, const json_t *o)
{
    uint64_t bytes = number(o, "done_bytes"), total = number(o, "total_bytes");
    double s = (double)(sys->mono_ns() - w->began_ns) / 1e9;
    if (w->polls++ == 0)
        w->first_bytes = bytes;
    double per_s = s > 0.2 && bytes > w->first_bytes ? (double)(bytes - w->first_bytes) / s : 0;
    if (!w->terminal && w->polls % REDRAW_LINES != 0)
        return;
    char rate[TEXT_SIZE_MAX], left[TEXT_SIZE_MAX];
    if (w->terminal)
        (void)fputc('\r', stderr);
    (void)fprintf(stderr, "%s: ", text(o, "state"));
    print_counts(stderr, o);
    (void)fprintf(stderr, ", %s/s", text_size((uint64_t)per_s, rate));
    if (per_s > 1 && total > bytes)
        (void)fprintf(stderr, ", %s left",
                      text_duration((uint64_t)((double)(total - bytes) / per_s * 1000), left));
    (void)fputs(w->terminal ? "\033[K" : "\n", stderr);
}

static int status_of(const json_t *o)
{
    const char *state = text(o, "state");
    return strcmp(state, "done") == 0 ? 0 : strcmp(state, "partly failed") == 0 ? STATUS_PARTLY : 1;
}

/* Waits for the end of the job; a paused one is waited for too. Gives the exit status in *ret_status. */
static int wait_for(struct client *c, const struct job_options *o, uint64_t id, int *ret_status,
                    struct err *e)
{
    struct waiting w = {.terminal = isatty(STDERR_FILENO), .began_ns = sys->mono_ns()};
    for (;;) {
        json_t *job = NULL;
        int r = get_job(c, id, &job, e);
        if (r < 0)
            return r;
        bool final = json_is_true(json_object_get(job, "final"));
        if (!o->quiet && !final)
            draw(&w, job);
        if (final) {
            if (w.terminal && !o->quiet)
                (void)fputs("\r\033[K", stderr);
            *ret_status = status_of(job);
            if (o->json)
                (void)json_dumpf(job, stdout, JSON_PRESERVE_ORDER), (void)putchar('\n');
            else if (!o->quiet)
                print_job(job);
        }
        json_decref(job);
        if (final)
            return 0;
        sys->sleep_ns(POLL_NS);
    }
}

/* ---- start ---- */

static int start(struct client *c, const struct job_options *o, const char *kind, char **paths, int n,
                 uint64_t *ret_id, struct err *e)
{
    _cleanup_buf_ struct buf spec = BUF_INIT(JOB_SPEC_MAX_BYTES), reply = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    int r = job_spec_encode(&o->spec, &spec, e);
    if (r < 0)
        return r;
    struct wire_job_start_req req = {.kind = slice_str(kind),
                                     .source = slice_str(paths[0]),
                                     .target = n > 1 ? slice_str(paths[1]) : SLICE_NULL,
                                     .spec = buf_view(&spec)};
    struct wire_job_start_rep rep;
    r = client_job_start(c, &req, &reply, &rep, e);
    if (r == 0)
        *ret_id = rep.id;
    return r;
}

/* ---- prefetch --check ---- */

/* What is cached of a prefix, an entry at a time in byte order. */
struct cached_walk {
    struct client *client;
    struct slice bucket, prefix;
    struct buf reply, after;
    struct slice page;
    struct wire_cached now;
    bool have, last;
};

static int cached_next(struct cached_walk *w, struct err *e)
{
    while (w->page.n == 0 && !w->last) {
        struct wire_cached_req req = {
            .bucket = w->bucket, .prefix = w->prefix, .after = buf_view(&w->after), .max = 1000};
        struct wire_cached_rep rep;
        int r = client_cached(w->client, &req, &w->reply, &rep, e);
        if (r < 0)
            return r;
        w->page = rep.entries;
        w->last = !rep.truncated;
    }
    w->have = wire_cached_decode(&w->page, &w->now) == 0;
    if (w->have) {
        buf_clear(&w->after);
        return buf_slice(&w->after, w->now.key);
    }
    return 0;
}

struct check {
    uint64_t objects, bytes, cached_objects, cached_bytes;
};

static int check_all(struct client *c, struct slice bucket, struct slice prefix, struct check *k,
                     struct err *e)
{
    struct client_lister_open q = {.bucket = bucket, .prefix = prefix};
    _cleanup_(client_lister_freep) struct client_lister *l = client_lister_new(c, &q);
    struct cached_walk w = {.client = c,
                            .bucket = bucket,
                            .prefix = prefix,
                            .reply = BUF_INIT(CLIENT_REPLY_MAX_BYTES),
                            .after = BUF_INIT(4 * KIB)};
    struct wire_entry x;
    int r = cached_next(&w, e);
    while (r >= 0 && (r = client_lister_next(l, &x, e)) > 0) {
        while (r >= 0 && w.have && slice_cmp(w.now.key, x.key) < 0)
            r = cached_next(&w, e);
        k->objects++;
        k->bytes += x.attr.size_bytes;
        if (w.have && slice_eq(w.now.key, x.key) && w.now.size_bytes == x.attr.size_bytes) {
            k->cached_bytes += w.now.present_bytes;
            k->cached_objects += w.now.present_bytes == x.attr.size_bytes;
        }
    }
    buf_fini(&w.reply);
    buf_fini(&w.after);
    return MIN(r, 0);
}

static int check(struct client *c, const struct job_options *o, const char *path, struct err *e)
{
    struct slice bucket, prefix;
    struct check k = {0};
    int r = command_path(path, &bucket, &prefix, e);
    if (r == 0)
        r = check_all(c, bucket, prefix, &k, e);
    if (r < 0)
        return r;
    double percent = k.bytes > 0 ? 100.0 * (double)k.cached_bytes / (double)k.bytes : 100.0;
    if (o->json)
        (void)printf("{\"objects\": %" PRIu64 ", \"bytes\": %" PRIu64 ", \"cached_objects\": %" PRIu64
                     ", \"cached_bytes\": %" PRIu64 "}\n",
                     k.objects, k.bytes, k.cached_objects, k.cached_bytes);
    else
        (void)printf("%.1f%% cached: %" PRIu64 " of %" PRIu64 " objects whole, %" PRIu64 " of %" PRIu64
                     " bytes\n",
                     percent, k.cached_objects, k.objects, k.cached_bytes, k.bytes);
    return 0;
}

static int run_kind(const struct command_usage *u, const char *kind, int argc, char **argv)
{
    struct job_options o = {0};
    int n, status;
    if (command_parse(u, &start_table, &o, argc, argv, &n, &status)) {
        struct err e = {0};
        uint64_t id = 0;
        _cleanup_(client_freep) struct client *c = NULL;
        int r = command_connect(&o.node, &c, &e);
        if (r == 0 && o.check) {
            r = strcmp(kind, "prefetch") == 0 ? check(c, &o, argv[0], &e)
                                              : err_set(&e, ERR_BAD_OPTION, "--check: only for prefetch");
        } else if (r == 0) {
            r = start(c, &o, kind, argv, n, &id, &e);
            if (r == 0 && !o.wait)
                (void)printf(o.json ? "{\"id\": %" PRIu64 "}\n" : "%" PRIu64 "\n", id);
            if (r == 0 && o.wait)
                r = wait_for(c, &o, id, &status, &e);
        }
        if (r < 0)
            status = command_fail(u->command, r, &e);
    }
    option_fini(&start_table, &o);
    return status;
}

#define KIND(name, operands_, about_, n)                                                                     \
    int cmd_##name(int argc, char **argv)                                                                    \
    {                                                                                                        \
        static const struct command_usage usage = {.command = "forebay " #name,                              \
                                                   .operands = operands_,                                    \
                                                   .about = about_,                                          \
                                                   .min_operands = n,                                        \
                                                   .max_operands = n};                                       \
        return run_kind(&usage, #name, argc, argv);                                                          \
    }

#define OUTLIVES                                                                                             \
    "\nThe job runs in the node, outlives this command and restarts; its number is printed. See forebay "    \
    "job."

KIND(prefetch, "BUCKET[/PREFIX]",
     "Fetches the objects below a prefix into the cache, behind everybody who reads. Done means verified: "
     "every byte\nis present." OUTLIVES,
     1)
KIND(evict, "BUCKET[/PREFIX]", "Drops what is cached below a prefix. The origin is not touched." OUTLIVES, 1)
KIND(copy, "BUCKET[/PREFIX] BUCKET[/PREFIX]",
     "Copies the objects below the first prefix to below the second." OUTLIVES, 2)
KIND(sync, "BUCKET[/PREFIX] BUCKET[/PREFIX]",
     "Copies what is missing below the second prefix, or older than below the first; with --delete removes "
     "what the\nfirst does not have." OUTLIVES,
     2)

/* ---- forebay job ---- */

static const struct command_usage usage = {
    .command = "forebay job",
    .operands = "ls | show ID | wait ID | pause ID | resume ID | cancel ID | errors ID | retry ID | rm ID",
    .about =
        "Looks after jobs. `errors` lists each object that failed with its reason; `retry` works on "
        "those again;\n`rm` forgets a job that has ended. Status of `wait`: 0 all done, 3 partly failed, "
        "1 failed or cancelled.",
    .min_operands = 1,
    .max_operands = 2,
};

static int list_jobs(struct client *c, const struct job_options *o, struct err *e)
{
    json_t *all = json_array();
    uint64_t after = 0;
    for (bool more = true; more;) {
        _cleanup_buf_ struct buf reply = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
        struct wire_job_list_req req = {.after = after};
        struct wire_job_list_rep rep;
        int r = client_job_list(c, &req, &reply, &rep, e);
        json_t *page = r == 0 ? json_loadb(rep.json.p, rep.json.n, 0, NULL) : NULL;
        if (!page) {
            json_decref(all);
            return r < 0 ? r : err_set(e, ERR_PROTOCOL, "the node's list of jobs is not understood");
        }
        more = rep.truncated && json_array_size(page) > 0;
        if (more)
            after = number(json_array_get(page, json_array_size(page) - 1), "id");
        (void)json_array_extend(all, page);
        json_decref(page);
    }
    if (o->json)
        (void)json_dumpf(all, stdout, JSON_PRESERVE_ORDER), (void)putchar('\n');
    for (size_t i = 0; !o->json && i < json_array_size(all); i++)
        print_job(json_array_get(all, i));
    json_decref(all);
    return 0;
}

static void print_errors(const struct job_options *o, json_t *page, bool *first)
{
    for (size_t i = 0; i < json_array_size(page); i++) {
        const json_t *x = json_array_get(page, i);
        if (o->json) {
            (void)fputs(*first ? "[" : ",\n ", stdout);
            (void)json_dumpf(x, stdout, JSON_PRESERVE_ORDER);
        } else {
            command_print_name(stdout, slice_str(text(x, "key")));
            (void)printf("\t%s\t", text(x, "code"));
            command_print_name(stdout, slice_str(text(x, "reason")));
            (void)putchar('\n');
        }
        *first = false;
    }
}

static int list_errors(struct client *c, const struct job_options *o, uint64_t id, struct err *e)
{
    _cleanup_buf_ struct buf after = BUF_INIT(4 * KIB);
    bool first = true;
    for (bool more = true; more;) {
        _cleanup_buf_ struct buf reply = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
        struct wire_job_errors_req req = {.id = id, .after = buf_view(&after)};
        struct wire_job_errors_rep rep;
        int r = client_job_errors(c, &req, &reply, &rep, e);
        json_t *page = r == 0 ? json_loadb(rep.json.p, rep.json.n, 0, NULL) : NULL;
        if (!page)
            return r < 0 ? r : err_set(e, ERR_PROTOCOL, "the node's list of errors is not understood");
        print_errors(o, page, &first);
        json_decref(page);
        more = rep.truncated && rep.next.n > 0;
        buf_clear(&after);
        r = buf_slice(&after, rep.next);
        if (r < 0)
            return err_set(e, r, "list of errors");
    }
    if (o->json)
        (void)puts(first ? "[]" : "]");
    return 0;
}

static int show_job(struct client *c, const struct job_options *o, uint64_t id, struct err *e)
{
    json_t *job = NULL;
    int r = get_job(c, id, &job, e);
    if (r == 0 && o->json)
        (void)json_dumpf(job, stdout, JSON_PRESERVE_ORDER), (void)putchar('\n');
    else if (r == 0)
        print_job(job);
    json_decref(job);
    return r;
}

static int change_job(struct client *c, uint64_t id, const char *action, struct err *e)
{
    _cleanup_buf_ struct buf reply = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    struct wire_job_change_req req = {.id = id, .action = slice_str(action)};
    struct wire_job_change_rep rep;
    return client_job_change(c, &req, &reply, &rep, e);
}

static int run_verb(struct client *c, const struct job_options *o, char **argv, int n, int *ret_status,
                    struct err *e)
{
    const char *verb = argv[0];
    uint64_t id = 0;
    if (strcmp(verb, "ls") == 0 && n == 1)
        return list_jobs(c, o, e);
    if (n != 2 || slice_u64(slice_str(argv[1]), &id) < 0)
        return err_set(e, ERR_BAD_OPTION, "expects %s; see %s --help", usage.operands, usage.command);
    if (strcmp(verb, "show") == 0)
        return show_job(c, o, id, e);
    if (strcmp(verb, "wait") == 0)
        return wait_for(c, o, id, ret_status, e);
    if (strcmp(verb, "errors") == 0)
        return list_errors(c, o, id, e);
    return change_job(c, id, verb, e);
}

int cmd_job(int argc, char **argv)
{
    struct job_options o = {0};
    int n, status;
    if (command_parse(&usage, &table, &o, argc, argv, &n, &status)) {
        struct err e = {0};
        _cleanup_(client_freep) struct client *c = NULL;
        int r = command_connect(&o.node, &c, &e);
        if (r == 0)
            r = run_verb(c, &o, argv, n, &status, &e);
        if (r < 0)
            status = command_fail(usage.command, r, &e);
    }
    option_fini(&table, &o);
    return status;
}

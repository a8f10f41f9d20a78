/*
 * forebay job: looks after jobs. What is started is in job_start.c.
 *
 * Exit status of --wait and `job wait`: 0 all done, 3 partly failed, 1 failed or cancelled.
 */
#include "cli/job.h"
#include "cli/cli.h"
#include "cli/command.h"

#include "base/sys.h"
#include "base/text.h"

#include <inttypes.h>
#include <jansson.h>

#define STATUS_PARTLY 3
#define DRAW_MS       200
#define WAIT_MS       1000
#define POLL_MIN_NS   ((uint64_t)10000000) /* where the node does not wait */
#define POLL_MAX_NS   ((uint64_t)200000000)
#define POLL_SHARE    100 /* of the time that was waited already: a short job is not made long by the asking */
#define LINE_NS       ((uint64_t)10000000000) /* piped: a line as often */

struct job_options {
    struct job_common job;
};

static const struct option rows[] = {
    COMMAND_FLAG(job_options, job.json, "json", 0, "JSON"),
    COMMAND_FLAG(job_options, job.quiet, "quiet", 'q', "wait: no progress and no summary"),
    JOB_NODE_ROWS(job_options),
};
static const struct option_table table = {rows, ARRAY_SIZE(rows), NULL};

/* ---- one job, as the node describes it ---- */

static int parse_job(struct slice text, json_t **ret, struct err *e)
{
    json_t *o = json_loadb(text.p, text.n, 0, NULL);
    if (!o)
        return err_set(e, ERR_PROTOCOL, "the node's description of the job is not understood");
    *ret = o;
    return 0;
}

/* The job's description; json_decref. */
static int get_job(struct client *c, uint64_t id, json_t **ret, struct err *e)
{
    _cleanup_buf_ struct buf reply = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    struct wire_job_get_req req = {.id = id};
    struct wire_job_get_rep rep;
    int r = client_job_get(c, &req, &reply, &rep, e);
    return r < 0 ? r : parse_job(rep.json, ret, e);
}

/* The same when it has ended, or after a time; ERR_NOT_IMPLEMENTED by an older node. */
static int await_job(struct client *c, uint64_t id, uint32_t timeout_ms, json_t **ret, struct err *e)
{
    _cleanup_buf_ struct buf reply = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    struct wire_job_wait_req req = {.id = id, .timeout_ms = timeout_ms};
    struct wire_job_wait_rep rep;
    int r = client_job_wait(c, &req, &reply, &rep, e);
    return r < 0 ? r : parse_job(rep.json, ret, e);
}

/* Of the objects of a --list nobody may know before how many bytes they are. */
static bool has_total_bytes(const json_t *o)
{
    return json_is_true(json_object_get(o, "counted")) && json_is_integer(json_object_get(o, "total_bytes"));
}

static void print_counts(FILE *to, const json_t *o)
{
    char done[TEXT_SIZE_MAX], total[TEXT_SIZE_MAX];
    (void)fprintf(to, "%" PRIu64, command_number(o, "done_objects"));
    if (json_is_true(json_object_get(o, "counted")))
        (void)fprintf(to, "/%" PRIu64, command_number(o, "total_objects"));
    (void)fprintf(to, " objects, %s", text_size(command_number(o, "done_bytes"), done));
    if (has_total_bytes(o))
        (void)fprintf(to, " of %s", text_size(command_number(o, "total_bytes"), total));
    if (command_number(o, "skipped_objects") > 0)
        (void)fprintf(to, ", %" PRIu64 " %s", command_number(o, "skipped_objects"),
                      strcmp(command_text(o, "kind"), "evict") == 0 ? "not cached" : "unchanged");
    if (command_number(o, "removed_objects") > 0)
        (void)fprintf(to, ", %" PRIu64 " %s", command_number(o, "removed_objects"),
                      json_is_true(json_object_get(o, "dry_run")) ? "to remove" : "removed");
    (void)fprintf(to, ", %" PRIu64 " failed", command_number(o, "failed_objects"));
    if (command_number(o, "modes_lost") > 0)
        (void)fprintf(to, ", %" PRIu64 " with another mode or owner there", command_number(o, "modes_lost"));
}

static void print_job(const json_t *o)
{
    (void)printf("%-5" PRIu64 " %-9s %-14s ", command_number(o, "id"), command_text(o, "kind"),
                 command_text(o, "state"));
    command_print_name(stdout, slice_str(command_text(o, "source")));
    if (command_text(o, "target")[0]) {
        (void)fputs(" to ", stdout);
        command_print_name(stdout, slice_str(command_text(o, "target")));
    }
    (void)fputs(": ", stdout);
    print_counts(stdout, o);
    if (command_text(o, "reason")[0]) {
        (void)fputs(": ", stdout);
        command_print_name(stdout, slice_str(command_text(o, "reason")));
    }
    (void)putchar('\n');
}

/* ---- wait ---- */

struct waiting {
    bool terminal, asked;
    bool polls; /* the node does not know JOB_WAIT */
    uint64_t began_ns, line_ns, first_bytes, first_objects;
};

/* What was done of it since the first look, a second. */
static double rate_of(uint64_t now, uint64_t first, double s)
{
    return s > 0.2 && now > first ? (double)(now - first) / s : 0;
}

/* How long the rest of it takes, in seconds; 0: nobody knows. */
static double time_left(uint64_t now, uint64_t total, double per_s)
{
    return per_s > 0 && total > now ? (double)(total - now) / per_s : 0;
}

static void draw(struct waiting *w, const json_t *o)
{
    uint64_t bytes = command_number(o, "done_bytes"), objects = command_number(o, "done_objects");
    uint64_t now_ns = sys->mono_ns();
    double s = (double)(now_ns - w->began_ns) / 1e9;
    if (!w->asked) {
        w->first_bytes = bytes;
        w->first_objects = objects;
    }
    w->asked = true;
    double per_s = rate_of(bytes, w->first_bytes, s);
    double left_s = time_left(bytes, command_number(o, "total_bytes"), per_s);
    if (bytes == 0 || !has_total_bytes(o)) /* as for attributes, where none move, and of a --list */
        left_s =
            time_left(objects, command_number(o, "total_objects"), rate_of(objects, w->first_objects, s));
    if (!w->terminal && now_ns - w->line_ns < LINE_NS)
        return;
    w->line_ns = now_ns;
    char rate[TEXT_SIZE_MAX], left[TEXT_SIZE_MAX];
    _cleanup_free_ char *line = NULL;
    size_t n = 0;
    FILE *to = open_memstream(&line, &n);
    if (!to)
        abort();
    (void)fprintf(to, "%s: ", command_text(o, "state"));
    print_counts(to, o);
    (void)fprintf(to, ", %s/s", text_size((uint64_t)per_s, rate));
    if (left_s > 0)
        (void)fprintf(to, ", %s left", text_duration((uint64_t)(MIN(left_s, 1e9) * 1000), left));
    (void)fclose(to);
    if (w->terminal)
        command_redraw(slice_of(line, n));
    else
        (void)fprintf(stderr, "%s\n", line);
}

static int status_of(const json_t *o)
{
    const char *state = command_text(o, "state");
    return strcmp(state, "done") == 0 ? 0 : strcmp(state, "partly failed") == 0 ? STATUS_PARTLY : 1;
}

/* A prefix with a typing error is a job without objects, and none of its failures. */
static void tell_nothing(const json_t *o)
{
    if (!json_is_true(json_object_get(o, "counted")) || command_number(o, "total_objects") > 0 ||
        status_of(o) != 0)
        return;
    (void)fputs("no object was chosen: nothing is below ", stderr);
    command_print_name(stderr, slice_str(command_text(o, "source")));
    (void)fputs(", or the filters leave nothing\n", stderr);
}

/* The job as it is when it has ended, or when it is time to draw: at once for the first time. */
static int next_look(struct client *c, const struct job_common *o, uint64_t id, struct waiting *w,
                     json_t **ret, struct err *e)
{
    uint64_t now_ns = sys->mono_ns();
    uint32_t draw_ms = w->terminal ? DRAW_MS : WAIT_MS;
    uint32_t most_ms = (uint32_t)MIN(o->node.timeout_ms / 2, (uint64_t)WAIT_MS); /* else the answer is late */
    uint32_t timeout_ms = o->quiet ? most_ms : w->asked ? MIN(draw_ms, most_ms) : 0;
    int r = w->polls ? ERR_NOT_IMPLEMENTED : await_job(c, id, timeout_ms, ret, e);
    bool waited = r == 0 && sys->mono_ns() - now_ns >= POLL_MIN_NS;
    w->polls = r == ERR_NOT_IMPLEMENTED;
    if (w->polls)
        r = get_job(c, id, ret, e);
    if (r == 0 && !waited && !json_is_true(json_object_get(*ret, "final")) && timeout_ms > 0)
        sys->sleep_ns(MIN(MAX((now_ns - w->began_ns) / POLL_SHARE, POLL_MIN_NS), POLL_MAX_NS));
    return r;
}

int job_wait(struct client *c, const struct job_common *o, uint64_t id, int *ret_status, struct err *e)
{
    uint64_t now_ns = sys->mono_ns();
    struct waiting w = {.terminal = isatty(STDERR_FILENO), .began_ns = now_ns, .line_ns = now_ns};
    for (;;) {
        json_t *job = NULL;
        int r = next_look(c, o, id, &w, &job, e);
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
                command_json_print(job, JSON_PRESERVE_ORDER), (void)putchar('\n');
            else if (!o->quiet)
                print_job(job);
            if (!o->quiet && !o->json)
                tell_nothing(job);
        }
        json_decref(job);
        if (final)
            return 0;
    }
}

/* ---- forebay job ---- */

static const struct command_usage usage = {
    .command = "forebay job",
    .operands = "ls | show ID | wait ID | pause ID | resume ID | cancel ID | errors ID | retry ID | rm ID",
    .about = "Looks after jobs. `errors` lists each object that failed with its reason; `retry` works on "
             "those again;\n`rm` forgets a job that has ended; of those the last 1,000 are kept. Status of "
             "`wait`: 0 all "
             "done, 3 partly failed,\n1 failed or cancelled.",
    .min_operands = 1,
    .max_operands = 2,
};

static int list_jobs(struct client *c, const struct job_common *o, struct err *e)
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
            after = command_number(json_array_get(page, json_array_size(page) - 1), "id");
        (void)json_array_extend(all, page);
        json_decref(page);
    }
    if (o->json)
        command_json_print(all, JSON_PRESERVE_ORDER), (void)putchar('\n');
    for (size_t i = 0; !o->json && i < json_array_size(all); i++)
        print_job(json_array_get(all, i));
    json_decref(all);
    return 0;
}

static void print_errors(const struct job_common *o, json_t *page, bool *first)
{
    for (size_t i = 0; i < json_array_size(page); i++) {
        const json_t *x = json_array_get(page, i);
        if (o->json) {
            (void)fputs(*first ? "[" : ",\n ", stdout);
            command_json_print(x, JSON_PRESERVE_ORDER);
        } else {
            command_print_name(stdout, slice_str(command_text(x, "key")));
            (void)printf("\t%s\t", command_text(x, "code"));
            command_print_name(stdout, slice_str(command_text(x, "reason")));
            (void)putchar('\n');
        }
        *first = false;
    }
}

static int list_errors(struct client *c, const struct job_common *o, uint64_t id, struct err *e)
{
    _cleanup_buf_ struct buf after = BUF_INIT(4 * KIB);
    bool first = true;
    for (bool more = true; more;) {
        _cleanup_buf_ struct buf reply = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
        struct wire_job_errors_req req = {.id = id, .after = buf_view(&after)};
        struct wire_job_errors_rep rep;
        int r = client_job_errors(c, &req, &reply, &rep, e);
        json_t *page = r == 0 ? json_loadb(rep.json.p, rep.json.n, 0, NULL) : NULL;
        if (!page) {
            command_json_end(o->json && !first, /* is_whole= */ false);
            return r < 0 ? r : err_set(e, ERR_PROTOCOL, "the node's list of errors is not understood");
        }
        print_errors(o, page, &first);
        json_decref(page);
        more = rep.truncated && rep.next.n > 0;
        buf_clear(&after);
        r = buf_slice(&after, rep.next);
        if (r < 0)
            return err_set(e, r, "list of errors");
    }
    if (o->json)
        command_json_end(!first, /* is_whole= */ true);
    return 0;
}

/* What was asked for, below the job. */
static void print_options(const json_t *o)
{
    const json_t *options = json_object_get(o, "options");
    for (size_t i = 0; i < json_array_size(options); i++) {
        (void)fputs(i == 0 ? "      " : " ", stdout);
        command_print_name(stdout, slice_str(json_string_value(json_array_get(options, i))));
    }
    if (json_array_size(options) > 0)
        (void)putchar('\n');
}

static int show_job(struct client *c, const struct job_common *o, uint64_t id, struct err *e)
{
    json_t *job = NULL;
    int r = get_job(c, id, &job, e);
    if (r == 0 && o->json)
        command_json_print(job, JSON_PRESERVE_ORDER), (void)putchar('\n');
    else if (r == 0)
        print_job(job), print_options(job);
    json_decref(job);
    return r;
}

int job_change(struct client *c, uint64_t id, const char *action, struct err *e)
{
    _cleanup_buf_ struct buf reply = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    struct wire_job_change_req req = {.id = id, .action = slice_str(action)};
    struct wire_job_change_rep rep;
    return client_job_change(c, &req, &reply, &rep, e);
}

/* What is asked for is understood before a node is looked for: a typing error is told as one, whether a node
 * runs or not. ID 0: of all jobs. */
static int parse_verb(char **argv, int n, uint64_t *ret_id, struct err *e)
{
    static const char *const verbs[] = {"show", "wait", "errors", "pause", "resume", "cancel", "retry", "rm"};
    *ret_id = 0;
    if (strcmp(argv[0], "ls") == 0 && n == 1)
        return 0;
    for (size_t i = 0; i < ARRAY_SIZE(verbs); i++)
        if (strcmp(argv[0], verbs[i]) == 0 && n == 2 && slice_u64(slice_str(argv[1]), ret_id) == 0)
            return 0;
    return err_set(e, ERR_BAD_OPTION, "'%s%s%s': expects %s; see %s --help", argv[0], n > 1 ? " " : "",
                   n > 1 ? argv[1] : "", usage.operands, usage.command);
}

static int run_verb(struct client *c, const struct job_common *o, const char *verb, uint64_t id,
                    int *ret_status, struct err *e)
{
    if (strcmp(verb, "ls") == 0)
        return list_jobs(c, o, e);
    if (strcmp(verb, "show") == 0)
        return show_job(c, o, id, e);
    if (strcmp(verb, "wait") == 0)
        return job_wait(c, o, id, ret_status, e);
    if (strcmp(verb, "errors") == 0)
        return list_errors(c, o, id, e);
    return job_change(c, id, verb, e);
}

int cmd_job(int argc, char **argv)
{
    struct job_options o = {0};
    int n, status;
    if (command_parse(&usage, &table, &o, argc, argv, &n, &status)) {
        struct err e = {0};
        _cleanup_(client_freep) struct client *c = NULL;
        uint64_t id;
        int r = parse_verb(argv, n, &id, &e);
        r = r < 0 ? r : command_connect(&o.job.node, &c, &e);
        if (r == 0)
            r = run_verb(c, &o.job, argv[0], id, &status, &e);
        if (r < 0)
            status = command_fail(usage.command, r, &e);
    }
    option_fini(&table, &o);
    return status;
}

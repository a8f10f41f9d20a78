/* forebay prefetch, evict, copy, sync, export, import: start a job on the node. */
#include "cli/cli.h"
#include "cli/command.h"
#include "cli/job.h"

#include <inttypes.h>

#define LIST_PIECE_BYTES (1 * MIB)
#define LIST_LINE_MAX    (8 * KIB)

struct start_options {
    struct job_common job; /* first */
    struct job_spec spec;
    char *list;
    bool wait, check;
};

static const struct option start_rows[] = {
#define X(field, type, name, arg, def, min, max, choices, doc)                                               \
    JOB_SPEC_ROW(start_options, field, type, name, arg, def, min, max, choices, doc)
    JOB_SPEC_OPTIONS(X)
#undef X
        {.name = "list",
         .type = OPTION_STRING,
         .offset = offsetof(struct start_options, list),
         .arg = "FILE",
         .doc = "only the objects named in this file, a key a line, without the bucket; '-': standard input"},
    COMMAND_FLAG(start_options, wait, "wait", 'w', "wait for its end and show progress"),
    COMMAND_FLAG(start_options, check, "check", 0,
                 "prefetch: start nothing, list the origin and print how much of what it has is cached; no "
                 "data is read"),
    COMMAND_FLAG(start_options, job.json, "json", 0, "JSON"),
    COMMAND_FLAG(start_options, job.quiet, "quiet", 'q', "no progress and no summary"),
    JOB_NODE_ROWS(start_options),
};
static const struct option_table start_table = {start_rows, ARRAY_SIZE(start_rows), NULL};

/* ---- start ---- */

static int start(struct client *c, const struct start_options *o, const char *kind, char **paths, int n,
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
        struct wire_cached_req req = {.bucket = w->bucket,
                                      .prefix = w->prefix,
                                      .after = buf_view(&w->after),
                                      .max = 1000,
                                      .flags = WIRE_ETAG};
        struct wire_cached_rep rep;
        int r = client_cached(w->client, &req, &w->reply, &rep, e);
        if (r < 0)
            return r;
        w->page = rep.entries;
        w->last = !rep.truncated;
    }
    w->have = wire_cached_decode(&w->page, &w->now) == 0;
    if (w->have && !(w->now.flags & WIRE_CACHED_VERSION))
        return err_set(e, ERR_NOT_IMPLEMENTED,
                       "the node does not say which versions it has: it is an older one");
    if (w->have) {
        buf_clear(&w->after);
        return buf_slice(&w->after, w->now.key);
    }
    return 0;
}

struct check {
    uint64_t objects, bytes, cached_objects, cached_bytes;
    uint64_t stale_objects; /* cached as they were before: the origin has another version */
};

/* Of the size that the origin lists, and of its ETag; where it lists none, of its time. */
static bool is_same_version(const struct wire_cached *w, const struct wire_attr *now)
{
    return w->size_bytes == now->size_bytes && slice_eq(w->etag, now->etag) &&
           (now->etag.n > 0 || w->mtime_ns == now->mtime_ns);
}

static int check_all(struct client *c, struct slice bucket, struct slice prefix, struct check *k,
                     struct err *e)
{
    struct client_lister_open q = {.bucket = bucket, .prefix = prefix, .flags = WIRE_FRESH};
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
        if (!w.have || !slice_eq(w.now.key, x.key))
            continue;
        if (!is_same_version(&w.now, &x.attr)) {
            k->stale_objects += w.now.present_bytes > 0;
        } else {
            k->cached_bytes += w.now.present_bytes;
            k->cached_objects += w.now.present_bytes == x.attr.size_bytes;
        }
    }
    buf_fini(&w.reply);
    buf_fini(&w.after);
    return MIN(r, 0);
}

/* All objects are counted: options that choose some would be an answer to another question. */
static int check_alone(const struct start_options *o, struct err *e)
{
    _cleanup_buf_ struct buf spec = BUF_INIT(JOB_SPEC_MAX_BYTES);
    int r = job_spec_encode(&o->spec, &spec, e);
    if (r == 0 && (spec.n > 0 || (o->list && o->list[0])))
        return err_set(e, ERR_BAD_OPTION,
                       "--check: counts all objects below the prefix; no other options of the job");
    return r;
}

/* Tenths of a percent, rounded down, so that 1000 is all of it: of the bytes, or of objects without any. */
static uint64_t check_permille(const struct check *k)
{
    return k->bytes > 0 ? (uint64_t)((__uint128_t)k->cached_bytes * 1000 / k->bytes)
                        : k->cached_objects * 1000 / k->objects;
}

static void print_check_json(const struct check *k)
{
    (void)printf("{\"objects\": %" PRIu64 ", \"bytes\": %" PRIu64 ", \"cached_objects\": %" PRIu64
                 ", \"cached_bytes\": %" PRIu64 ", \"stale_objects\": %" PRIu64 ", \"percent\": ",
                 k->objects, k->bytes, k->cached_objects, k->cached_bytes, k->stale_objects);
    if (k->objects > 0)
        (void)printf("%" PRIu64 ".%" PRIu64 "}\n", check_permille(k) / 10, check_permille(k) % 10);
    else
        (void)printf("null}\n");
}

static void print_check(const char *path, const struct check *k)
{
    if (k->objects == 0) {
        (void)printf("no objects below ");
        command_print_name(stdout, slice_str(path));
        (void)putchar('\n');
        return;
    }
    (void)printf("%" PRIu64 ".%" PRIu64 "%% cached: %" PRIu64 " of %" PRIu64 " objects whole, %" PRIu64
                 " of %" PRIu64 " bytes",
                 check_permille(k) / 10, check_permille(k) % 10, k->cached_objects, k->objects,
                 k->cached_bytes, k->bytes);
    if (k->stale_objects > 0)
        (void)printf("; of %" PRIu64 " there is another version", k->stale_objects);
    (void)putchar('\n');
}

static int check(struct client *c, const struct start_options *o, const char *path, struct err *e)
{
    struct slice bucket, prefix;
    struct check k = {0};
    int r = check_alone(o, e);
    if (r == 0)
        r = command_path(path, &bucket, &prefix, e);
    if (r == 0)
        r = check_all(c, bucket, prefix, &k, e);
    if (r < 0)
        return r;
    if (o->job.json)
        print_check_json(&k);
    else
        print_check(path, &k);
    return 0;
}

/* ---- --list ---- */

static int send_keys(struct client *c, uint64_t id, struct buf *keys, struct err *e)
{
    _cleanup_buf_ struct buf reply = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    struct wire_job_keys_req req = {.id = id, .keys = buf_view(keys)};
    struct wire_job_keys_rep rep;
    int r = keys->n > 0 ? client_job_keys(c, &req, &reply, &rep, e) : 0;
    buf_clear(keys);
    return r;
}

/* The next line, without its end; of one that is too long the first LIST_LINE_MAX bytes, and no more is kept
 * in memory of a file that is no list and has no lines. */
static bool read_line(FILE *f, char line[LIST_LINE_MAX], struct slice *ret)
{
    size_t n = 0;
    int c = 0;
    while (n < LIST_LINE_MAX && (c = getc_unlocked(f)) != EOF && c != '\n')
        line[n++] = (char)c;
    *ret = slice_of(line, n);
    return c != EOF || n > 0;
}

/* Sends the lines of the file; -EINVAL when there are none: a job over nothing is a mistake. */
static int send_list(struct client *c, uint64_t id, const char *path, struct err *e)
{
    bool standard = strcmp(path, "-") == 0;
    _cleanup_fclose_ FILE *f = standard ? NULL : fopen(path, "re");
    if (!standard && !f)
        return err_errno(e, -errno, "--list %s", path);
    _cleanup_buf_ struct buf keys = BUF_INIT(LIST_PIECE_BYTES + LIST_LINE_MAX);
    char line[LIST_LINE_MAX];
    struct slice key;
    uint64_t lines = 0;
    int r = 0;
    while (r == 0 && read_line(standard ? stdin : f, line, &key)) {
        if (key.n == 0)
            continue;
        lines++;
        if (key.n >= LIST_LINE_MAX || buf_slice(&keys, key) < 0 || buf_char(&keys, '\n') < 0)
            return err_set(e, ERR_BAD_OPTION, "--list %s: line %" PRIu64 " is longer than any key", path,
                           lines);
        if (keys.n >= LIST_PIECE_BYTES)
            r = send_keys(c, id, &keys, e);
    }
    if (r == 0 && ferror(standard ? stdin : f)) /* the rest of the list is not known */
        r = err_errno(e, errno > 0 ? -errno : -EIO, "--list %s", path);
    if (r == 0)
        r = send_keys(c, id, &keys, e);
    return r == 0 && lines == 0 ? err_set(e, ERR_BAD_OPTION, "--list %s: no key in it", path) : r;
}

/* Sends the list and lets the job begin; a job that gets no list is taken back. */
static int bring_list(struct client *c, uint64_t id, const char *path, struct err *e)
{
    int r = send_list(c, id, path, e);
    if (r == 0)
        return job_change(c, id, "listed", e);
    (void)job_change(c, id, "cancel", NULL);
    (void)job_change(c, id, "rm", NULL);
    return r;
}

static int run(struct client *c, struct start_options *o, const char *kind, char **paths, int n,
               int *ret_status, struct err *e)
{
    uint64_t id = 0;
    if (o->check && strcmp(kind, "prefetch") != 0)
        return err_set(e, ERR_BAD_OPTION, "--check: only for prefetch");
    if (o->check)
        return check(c, o, paths[0], e);
    o->spec.listed = o->list && o->list[0];
    int r = start(c, o, kind, paths, n, &id, e);
    if (r == 0 && o->spec.listed)
        r = bring_list(c, id, o->list, e);
    if (r < 0)
        return r;
    if (o->wait)
        return job_wait(c, &o->job, id, ret_status, e);
    (void)printf(o->job.json ? "{\"id\": %" PRIu64 "}\n" : "%" PRIu64 "\n", id);
    return 0;
}

/* Whether the help of a kind has the option: those of some kinds name them first, "export, import: ...". */
static bool is_helped(const struct option *row, const char *kind)
{
    static const char *const kinds[] = {"prefetch", "copy", "sync", "export", "import"};
    struct slice rest = slice_str(row->doc), of = slice_split(&rest, ':');
    bool is_of_some = false, is_of_this = false;
    while (rest.n > 0 && of.n > 0) {
        struct slice word = slice_trim(slice_split(&of, ','));
        for (size_t i = 0; i < ARRAY_SIZE(kinds); i++)
            is_of_some = is_of_some || slice_eq_str(word, kinds[i]);
        is_of_this = is_of_this || slice_eq_str(word, kind);
    }
    return !is_of_some || is_of_this;
}

static int run_kind(const struct command_usage *u, const char *kind, int argc, char **argv)
{
    struct start_options o = {0};
    struct option rows[ARRAY_SIZE(start_rows)];
    const struct option_table table = {rows, ARRAY_SIZE(rows), NULL};
    memcpy(rows, start_rows, sizeof(rows));
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) /* the others are taken, and the node says whose they are */
        rows[i].hidden = rows[i].hidden || !is_helped(&rows[i], kind);
    int n, status;
    if (command_parse(u, &table, &o, argc, argv, &n, &status)) {
        struct err e = {0};
        _cleanup_(client_freep) struct client *c = NULL;
        int r = command_connect(&o.job.node, &c, &e);
        if (r == 0)
            r = run(c, &o, kind, argv, n, &status, &e);
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
KIND(validate, "BUCKET[/PREFIX]",
     "Asks the origin about every object that is cached below a prefix, drops those that changed or are gone "
     "there, and\nforgets what is remembered of listings. `unchanged` counts the others." OUTLIVES,
     1)
KIND(
    copy, "BUCKET[/PREFIX]|URL BUCKET[/PREFIX]|URL",
    "Copies the objects below the first prefix to below the second. One of both may be the URL of an origin: "
    "s3://,\ngs://, az://, hdfs://, nfs://, file://, forebay://, and to read from also http://." OUTLIVES,
    2)
KIND(sync, "BUCKET[/PREFIX]|URL BUCKET[/PREFIX]|URL",
     "Copies what is missing below the second prefix, or older than below the first; with --delete removes "
     "what the\nfirst does not have. One of both may be the URL of an origin: s3://, gs://, az://, hdfs://, "
     "nfs://, file://,\nforebay://, and to read from also http://." OUTLIVES,
     2)
KIND(export, "BUCKET[/PREFIX] URL",
     "Copies the objects below a prefix to an origin: s3://BUCKET/PREFIX, gs://, az://, hdfs://, nfs://, "
     "file:///DIR, forebay://HOST:PORT/BUCKET.\nEach appears there whole or not at all and is verified; "
     "content type, "
     "metadata and modification time are kept.\nA manifest with sizes and checksums is written beside "
     "them." OUTLIVES,
     2)
KIND(import, "URL BUCKET[/PREFIX]",
     "Copies the objects of an origin (s3://, gs://, az://, hdfs://, nfs://, http://, file://, forebay://) "
     "into a bucket, "
     "verified, with\ncontent type, metadata and modification time. Restores with --as-of, --version or "
     "--tag, "
     "where the origin keeps\nversions or tags; a manifest names the versions." OUTLIVES,
     2)

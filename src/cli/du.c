/* forebay du: what is cached of buckets, by prefix, what of them is not in the origin yet, and what it cost.
 * forebay hot: what is read most. */
#include "cli/cli.h"
#include "cli/command.h"

#include "base/text.h"

#include <inttypes.h>
#include <jansson.h>

#define NAME_MAX_BYTES (4 * KIB)

/* What `hot` orders by, as the option's choices. */
enum by { BY_OPENS, BY_BYTES };

struct du_options {
    struct command_node node;
    uint64_t depth, top;
    int by; /* enum by */
    bool json;
};

static const struct option du_rows[] = {
    {.name = "depth",
     .type = OPTION_UINT,
     .offset = offsetof(struct du_options, depth),
     .arg = "N",
     .def = "1",
     .max = 12,
     .doc = "a line for each directory so many levels below the prefix; 0: one line"},
    COMMAND_FLAG(du_options, json, "json", 0, "JSON"),
    COMMAND_NODE_ROWS(du_options),
};
static const struct option_table du_table = {du_rows, ARRAY_SIZE(du_rows), NULL};

static const struct option hot_rows[] = {
    {.name = "top",
     .type = OPTION_UINT,
     .offset = offsetof(struct du_options, top),
     .arg = "N",
     .def = "20",
     .min = 1,
     .max = 100000,
     .doc = "so many prefixes"},
    {.name = "by",
     .type = OPTION_ENUM,
     .offset = offsetof(struct du_options, by),
     .arg = "WHAT",
     .def = "opens",
     .choices = "opens|bytes",
     .doc =
         "what comes first: what is opened most, by mounts too, or of what most bytes went through the node"},
    COMMAND_FLAG(du_options, json, "json", 0, "JSON"),
    COMMAND_NODE_ROWS(du_options),
};
static const struct option_table hot_table = {hot_rows, ARRAY_SIZE(hot_rows), NULL};

/* The node's counters of reads; json_decref. */
static int get_usage(struct client *c, struct slice bucket, struct slice prefix, json_t **ret, struct err *e)
{
    _cleanup_buf_ struct buf reply = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    struct wire_usage_req req = {.bucket = bucket, .prefix = prefix};
    struct wire_usage_rep rep;
    int r = client_usage(c, &req, &reply, &rep, e);
    if (r < 0)
        return r;
    *ret = json_loadb(rep.json.p, rep.json.n, 0, NULL);
    return *ret ? 0 : err_set(e, ERR_PROTOCOL, "the node's counters are not understood");
}

/* ---- du ---- */

struct du {
    struct client *client;
    const struct du_options *options;
    json_t *rows; /* by name: {objects, bytes, cached_bytes, dirty_bytes, pinned_bytes, fetched_bytes} */
};

static void add(json_t *row, const char *name, uint64_t n)
{
    (void)json_object_set_new(row, name, json_integer((json_int_t)(command_number(row, name) + n)));
}

static json_t *row_new(void)
{
    return json_pack("{s:i, s:i, s:i, s:i, s:i, s:i}", "objects", 0, "bytes", 0, "cached_bytes", 0,
                     "dirty_bytes", 0, "pinned_bytes", 0, "fetched_bytes", 0);
}

/* The row of a key: as many directories below the prefix as --depth says. */
static json_t *row_of(struct du *d, struct slice bucket, struct slice prefix, struct slice key)
{
    size_t end = prefix.n;
    uint64_t depth = 0;
    for (size_t i = prefix.n; i < key.n && depth < d->options->depth; i++) {
        if (key.p[i] != '/')
            continue;
        end = i + 1;
        depth++;
    }
    _cleanup_buf_ struct buf name = BUF_INIT(NAME_MAX_BYTES);
    if (buf_printf(&name, SLICE_FMT "/" SLICE_FMT, SLICE_ARG(bucket), SLICE_ARG(slice_sub(key, 0, end))) < 0)
        return NULL;
    json_t *row = json_object_getn(d->rows, name.p, name.n);
    if (row)
        return row;
    row = row_new();
    if (json_object_setn_new(d->rows, name.p, name.n, row) < 0) { /* a name that is no UTF-8 */
        _cleanup_buf_ struct buf escaped = BUF_INIT(4 * NAME_MAX_BYTES);
        if (text_uri_encode(&escaped, buf_view(&name), /* keep_slash= */ true) < 0)
            return NULL;
        row = json_object_get(d->rows, escaped.p);
        if (row)
            return row;
        row = row_new();
        if (json_object_set_new(d->rows, escaped.p, row) < 0)
            return NULL;
    }
    return row;
}

static void add_cached(struct du *d, struct slice bucket, struct slice prefix, const struct wire_cached *w)
{
    json_t *row = row_of(d, bucket, prefix, w->key);
    if (!row)
        return;
    if (w->flags & WIRE_CACHED_DIRTY) { /* it is no cache: evict does not drop it */
        add(row, "dirty_bytes", w->present_bytes);
        return;
    }
    add(row, "objects", 1);
    add(row, "bytes", w->size_bytes);
    add(row, "cached_bytes", w->present_bytes);
    if (w->flags & WIRE_CACHED_PINNED)
        add(row, "pinned_bytes", w->present_bytes);
}

static int walk(struct du *d, struct slice bucket, struct slice prefix, uint32_t flags, struct err *e)
{
    _cleanup_buf_ struct buf after = BUF_INIT(NAME_MAX_BYTES);
    for (bool more = true; more;) {
        _cleanup_buf_ struct buf reply = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
        struct wire_cached_req req = {
            .bucket = bucket, .prefix = prefix, .after = buf_view(&after), .max = 1000, .flags = flags};
        struct wire_cached_rep rep;
        int r = client_cached(d->client, &req, &reply, &rep, e);
        if (r < 0)
            return r;
        struct wire_cached w = {0};
        for (struct slice rest = rep.entries; wire_cached_decode(&rest, &w) == 0;)
            add_cached(d, bucket, prefix, &w);
        more = rep.truncated && rep.n_entries > 0;
        buf_clear(&after);
        if (more && buf_slice(&after, w.key) < 0)
            return err_set(e, ERR_PROTOCOL, "the node's list of what is cached is not understood");
    }
    return 0;
}

static int du_bucket(struct du *d, struct slice bucket, struct slice prefix, struct err *e)
{
    json_t *usage = NULL;
    int r = walk(d, bucket, prefix, /* flags= */ 0, e);
    if (r == 0)
        r = walk(d, bucket, prefix, WIRE_UNSENT, e);
    if (r == 0)
        r = get_usage(d->client, bucket, prefix, &usage, e);
    const json_t *u;
    size_t i;
    json_array_foreach(usage, i, u)
    {
        json_t *row = row_of(d, bucket, prefix, slice_str(command_text(u, "prefix")));
        if (row)
            add(row, "fetched_bytes", command_number(u, "fetched_bytes"));
    }
    json_decref(usage);
    return r;
}

static int du_all(struct du *d, struct err *e)
{
    _cleanup_buf_ struct buf after = BUF_INIT(NAME_MAX_BYTES);
    int r = 0;
    for (bool more = true; more && r == 0;) {
        _cleanup_buf_ struct buf reply = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
        struct wire_bucket_list_req req = {.after = buf_view(&after)};
        struct wire_bucket_list_rep rep;
        r = client_bucket_list(d->client, &req, &reply, &rep, e);
        struct wire_bucket w = {0};
        for (struct slice rest = r < 0 ? SLICE_NULL : rep.buckets;
             r == 0 && wire_bucket_decode(&rest, &w) == 0;) {
            if (w.origin.n > 0) /* the data of others is no cache */
                r = du_bucket(d, w.name, SLICE_NULL, e);
        }
        more = r == 0 && rep.truncated;
        buf_clear(&after);
        if (more)
            r = buf_slice(&after, w.name);
    }
    return r;
}

static void print_row(const char *name, const json_t *row)
{
    static const char *const columns[] = {"cached_bytes", "dirty_bytes", "pinned_bytes", "fetched_bytes"};
    for (size_t i = 0; i < ARRAY_SIZE(columns); i++) {
        char size[TEXT_SIZE_MAX];
        (void)printf("%-12s", text_size(command_number(row, columns[i]), size));
    }
    (void)printf("%-9" PRIu64, command_number(row, "objects"));
    command_print_name(stdout, slice_str(name));
    (void)putchar('\n');
}

static int by_name(const void *x, const void *y)
{
    return strcmp(*(const char *const *)x, *(const char *const *)y);
}

static void print_rows(const json_t *rows)
{
    size_t n = json_object_size(rows), i = 0;
    _cleanup_free_ const char **names = calloc(n + 1, sizeof(*names));
    assert(names);
    for (void *it = json_object_iter((json_t *)(uintptr_t)rows); it && i < n;
         it = json_object_iter_next((json_t *)(uintptr_t)rows, it))
        names[i++] = json_object_iter_key(it);
    qsort(names, i, sizeof(*names), by_name);
    (void)printf("%-12s%-12s%-12s%-12s%-9s%s\n", "cached", "dirty", "pinned", "fetched", "objects", "prefix");
    for (size_t k = 0; k < i; k++)
        print_row(names[k], json_object_get(rows, names[k]));
}

static int run_du(struct du_options *o, char **argv, int n, struct err *e)
{
    _cleanup_(client_freep) struct client *c = NULL;
    struct slice bucket, prefix;
    int r = n > 0 ? command_path(argv[0], &bucket, &prefix, e) : 0;
    if (r == 0)
        r = command_connect(&o->node, &c, e);
    if (r < 0)
        return r;
    if (n == 0)
        o->depth = 0;
    struct du d = {.client = c, .options = o, .rows = json_object()};
    r = n > 0 ? du_bucket(&d, bucket, prefix, e) : du_all(&d, e);
    if (r == 0 && o->json)
        command_json_print(d.rows, JSON_SORT_KEYS), (void)putchar('\n');
    else if (r == 0)
        print_rows(d.rows);
    json_decref(d.rows);
    return r;
}

/* ---- hot ---- */

static int falling(const json_t *x, const json_t *y, const char *name)
{
    uint64_t a = command_number(x, name), b = command_number(y, name);
    return a < b ? 1 : a > b ? -1 : 0;
}

static int by_bytes(const void *x, const void *y)
{
    const json_t *a = *(json_t *const *)x, *b = *(json_t *const *)y;
    int by = falling(a, b, "read_bytes");
    return by != 0 ? by : falling(a, b, "opens");
}

static int by_opens(const void *x, const void *y)
{
    const json_t *a = *(json_t *const *)x, *b = *(json_t *const *)y;
    int by = falling(a, b, "opens");
    return by != 0 ? by : falling(a, b, "read_bytes");
}

static void print_hot(const struct du_options *o, json_t **v, size_t n)
{
    json_t *list = json_array();
    if (!o->json)
        (void)printf("%-12s%-12s%-10s%s\n", "read", "fetched", "opens", "prefix");
    for (size_t i = 0; i < n && i < o->top; i++) {
        char read[TEXT_SIZE_MAX], fetched[TEXT_SIZE_MAX];
        (void)json_array_append(list, v[i]);
        if (o->json)
            continue;
        (void)printf("%-12s%-12s%-10" PRIu64 "%s/", text_size(command_number(v[i], "read_bytes"), read),
                     text_size(command_number(v[i], "fetched_bytes"), fetched), command_number(v[i], "opens"),
                     command_text(v[i], "bucket"));
        command_print_name(stdout, slice_str(command_text(v[i], "prefix")));
        (void)putchar('\n');
    }
    if (o->json)
        command_json_print(list, JSON_SORT_KEYS), (void)putchar('\n');
    json_decref(list);
}

static int run_hot(struct du_options *o, char **argv, int n, struct err *e)
{
    _cleanup_(client_freep) struct client *c = NULL;
    struct slice bucket = SLICE_NULL, prefix = SLICE_NULL;
    json_t *usage = NULL;
    int r = n > 0 ? command_path(argv[0], &bucket, &prefix, e) : 0;
    if (r == 0)
        r = command_connect(&o->node, &c, e);
    if (r == 0)
        r = get_usage(c, bucket, prefix, &usage, e);
    if (r < 0)
        return r;
    size_t rows = json_array_size(usage);
    _cleanup_free_ json_t **v = calloc(rows + 1, sizeof(*v));
    assert(v);
    for (size_t i = 0; i < rows; i++)
        v[i] = json_array_get(usage, i);
    qsort(v, rows, sizeof(*v), o->by == BY_BYTES ? by_bytes : by_opens);
    print_hot(o, v, rows);
    json_decref(usage);
    return 0;
}

static int command(const struct command_usage *u, const struct option_table *t,
                   int (*run)(struct du_options *o, char **argv, int n, struct err *e), int argc, char **argv)
{
    struct du_options o = {0};
    int n, status;
    if (command_parse(u, t, &o, argc, argv, &n, &status)) {
        struct err e = {0};
        int r = run(&o, argv, n, &e);
        if (r < 0)
            status = command_fail(u->command, r, &e);
    }
    option_fini(t, &o);
    return status;
}

int cmd_du(int argc, char **argv)
{
    static const struct command_usage usage = {
        .command = "forebay du",
        .operands = "[BUCKET[/PREFIX]]",
        .about = "Shows what is cached of a bucket, by prefix: bytes cached, bytes that were written and are "
                 "not in the origin\n"
                 "yet (dirty), bytes cached that are pinned, bytes that were fetched from the origin (and so "
                 "paid for) since the\n"
                 "bucket was made (counted for the first two directories of a key), and objects. Without a "
                 "bucket: a line for each.",
        .max_operands = 1,
    };
    return command(&usage, &du_table, run_du, argc, argv);
}

int cmd_hot(int argc, char **argv)
{
    static const struct command_usage usage = {
        .command = "forebay hot",
        .operands = "[BUCKET[/PREFIX]]",
        .about =
            "Shows what is read most: bytes read, bytes fetched from the origin and opens, by the first two "
            "directories of\nthe keys. Bytes that the kernel reads by itself for a mount are not seen; its "
            "opens "
            "are, but of what it has open\nor keeps open already.",
        .max_operands = 1,
    };
    return command(&usage, &hot_table, run_hot, argc, argv);
}

/*
 * The node's configuration: its table, its sources in their order, and the forms of addresses and disks.
 *
 * Invariants:
 *  1. A config that config_load gave passes every check a start needs that involves no system call.
 *  2. On failure nothing is left to free.
 *
 * Failure modes: ERR_BAD_OPTION with the option's name and what to do; -ECANCELED for --help.
 */
#include "base/config.h"

#include "base/text.h"

#define DISK_SIZE_MIN   (4 * MIB)
#define CONFIG_TEXT_MAX (1 * MIB) /* of one option's values */

static const struct option rows[] = {
#define X(field, option_type, option_name, argument, default_value, least, most, choice_list, can_reload,    \
          text)                                                                                              \
    {.name = option_name,                                                                                    \
     .type = OPTION_##option_type,                                                                           \
     .offset = offsetof(struct config, field),                                                               \
     .def = default_value,                                                                                   \
     .min = least,                                                                                           \
     .max = most,                                                                                            \
     .choices = choice_list,                                                                                 \
     .arg = argument,                                                                                        \
     .doc = text,                                                                                            \
     .reloadable = can_reload},
    CONFIG_TABLE(X)
#undef X
};

const struct option_table config_table = {rows, ARRAY_SIZE(rows), "FOREBAY_"};

void config_fini(struct config *c)
{
    option_fini(&config_table, c);
}

/* "10Gb" and the like: more likely a mistyped size than part of a directory's name. */
static bool looks_like_size(struct slice s)
{
    if (s.n == 0 || s.n > 8 || s.p[0] < '0' || s.p[0] > '9')
        return false;
    for (size_t i = 0; i < s.n; i++) {
        bool digit = (s.p[i] >= '0' && s.p[i] <= '9') || s.p[i] == '.';
        bool letter = (s.p[i] >= 'a' && s.p[i] <= 'z') || (s.p[i] >= 'A' && s.p[i] <= 'Z') || s.p[i] == ' ';
        if (!digit && !letter)
            return false;
    }
    return true;
}

/* `shown_as` begins the error texts: "--disk" or plain "disk". */
static int parse_disk(const char *shown_as, const char *text, struct config_disk *ret, struct err *e)
{
    struct slice path = slice_str(text);
    uint64_t size = 0;
    ssize_t colon = slice_rfind(path, ':');
    if (colon >= 0) {
        struct slice tail = slice_from(path, (size_t)colon + 1);
        int r = text_parse_size(tail, &size);
        if (r == 0)
            path = slice_sub(path, 0, (size_t)colon);
        else if (r == -ERANGE || looks_like_size(tail))
            return err_set(e, ERR_BAD_OPTION,
                           "%s %s: \"" SLICE_FMT "\" is not a size; write it as 100GiB or 1.5T, or end the "
                           "directory's name with '/'",
                           shown_as, text, SLICE_ARG(tail));
    }
    if (size && size < DISK_SIZE_MIN)
        return err_set(e, ERR_BAD_OPTION, "%s %s: size below the minimum of 4MiB", shown_as, text);
    while (path.n > 1 && path.p[path.n - 1] == '/')
        path.n--;
    if (path.n == 0)
        return err_set(e, ERR_BAD_OPTION, "%s %s: the directory is missing; write DIR or DIR:SIZE", shown_as,
                       text);
    *ret = (struct config_disk){slice_dup(path), size};
    return 0;
}

int config_parse_disk(const char *text, struct config_disk *ret, struct err *e)
{
    assert(text && ret);
    return parse_disk("disk", text, ret, e);
}

static const char port_missing[] = "the port is missing; write HOST:PORT";
static const char not_bracketed[] = "write an IPv6 address as [::1]:PORT";
static const char not_a_host[] = "not a host name or an address; write HOST:PORT";
static const char bad_port[] = "the port must be a number from 0 to 65535";

/* NULL, or what is wrong with the text. */
static const char *split_hostport(struct slice all, struct slice *ret_host, uint16_t *ret_port)
{
    uint64_t port;
    ssize_t colon = slice_rfind(all, ':'), bracket = slice_rfind(all, ']');
    if (colon < 0 || colon < bracket)
        return port_missing;
    struct slice host = slice_sub(all, 0, (size_t)colon);
    if (host.n && host.p[0] == '[') {
        if (host.n < 3 || host.p[host.n - 1] != ']')
            return not_bracketed;
        host = slice_sub(host, 1, host.n - 2);
    } else if (slice_find(host, ':') >= 0) {
        return not_bracketed;
    }
    for (size_t i = 0; i < host.n; i++)
        if ((unsigned char)host.p[i] <= ' ' || strchr("[]/@", host.p[i]))
            return not_a_host;
    if (slice_u64(slice_from(all, (size_t)colon + 1), &port) < 0 || port > UINT16_MAX)
        return bad_port;
    *ret_host = host;
    *ret_port = (uint16_t)port;
    return NULL;
}

static int parse_hostport(const char *shown_as, const char *text, char **ret_host, uint16_t *ret_port,
                          struct err *e)
{
    struct slice host;
    uint16_t port;
    const char *wrong = split_hostport(slice_str(text), &host, &port);
    if (wrong)
        return err_set(e, ERR_BAD_OPTION, "%s %s: %s", shown_as, text, wrong);
    *ret_host = slice_dup(host);
    *ret_port = port;
    return 0;
}

int config_parse_hostport(const char *text, char **ret_host, uint16_t *ret_port, struct err *e)
{
    assert(text && ret_host && ret_port);
    return parse_hostport("address", text, ret_host, ret_port, e);
}

static int check_disks(const struct config *c, struct err *e)
{
    _cleanup_free_ char **paths = calloc(c->disk.n + 1, sizeof(*paths));
    if (!paths)
        abort();
    int r = 0;
    size_t n = 0;
    for (; n < c->disk.n && r == 0; n++) {
        struct config_disk d = {NULL, 0};
        r = parse_disk("--disk", c->disk.v[n], &d, e);
        paths[n] = d.path;
        for (size_t i = 0; i < n && r == 0; i++)
            if (strcmp(paths[i], d.path) == 0)
                r = err_set(e, ERR_BAD_OPTION,
                            "--disk %s: given twice; each disk needs a directory of its own", d.path);
    }
    for (size_t i = 0; i < n; i++)
        free(paths[i]);
    return r;
}

static int check_address(const char *flag, const char *text, uint16_t *ret_port, struct err *e)
{
    _cleanup_free_ char *host = NULL;
    return parse_hostport(flag, text, &host, ret_port, e);
}

/* What one option alone cannot show. */
static int check(const struct config *c, struct err *e)
{
    uint16_t listen_port = 0, wire_port = 0;
    if (!c->data || !*c->data)
        return err_set(e, ERR_BAD_OPTION,
                       "--data: missing; name the directory for the control store and credentials");
    int r = check_disks(c, e);
    if (r == 0)
        r = check_address("--listen", c->listen, &listen_port, e);
    if (r == 0)
        r = check_address("--wire", c->wire, &wire_port, e);
    if (r == 0 && !c->tls_cert != !c->tls_key)
        r = err_set(e, ERR_BAD_OPTION, "%s: %s is missing; TLS takes both",
                    c->tls_cert ? "--tls-cert" : "--tls-key", c->tls_cert ? "--tls-key" : "--tls-cert");
    if (r == 0 && listen_port && strcmp(c->listen, c->wire) == 0)
        r = err_set(e, ERR_BAD_OPTION,
                    "--wire %s: the same address as --listen; each needs a port of its own", c->wire);
    return r;
}

/* Flags into `c`, refusing operands. argv is copied, because option_args moves operands in it. */
static int load_args(struct config *c, int argc, char **argv, struct err *e)
{
    _cleanup_free_ char **copy = calloc((size_t)argc + 1, sizeof(*copy));
    int operands = 0;
    if (!copy)
        abort();
    if (argc)
        memcpy(copy, argv, (size_t)argc * sizeof(*copy));
    int r = option_args(&config_table, c, argc, copy, &operands, e);
    if (r == 0 && operands)
        r = err_set(e, ERR_BAD_OPTION, "unexpected argument %s", copy[0]);
    return r;
}

/* --config or FOREBAY_CONFIG; NULL when neither is given. Finds wrong flags before any file is read. */
static int find_file(int argc, char **argv, char **ret_path, struct err *e)
{
    struct config c;
    int r = option_init(&config_table, &c, e);
    if (r < 0)
        return r;
    r = load_args(&c, argc, argv, e);
    if (r == 0) {
        const char *env = getenv("FOREBAY_CONFIG");
        *ret_path = c.config ? TAKE_PTR(c.config) : env && *env ? slice_dup(slice_str(env)) : NULL;
    }
    config_fini(&c);
    return r;
}

static int load_file(struct config *c, const char *path, struct err *e)
{
    int r = option_yaml(&config_table, c, path, e);
    if (r < 0 && r != ERR_BAD_OPTION) { /* a wrong path is a wrong option, to whoever typed it */
        r = err_set(e, ERR_BAD_OPTION, "--config %s: %s", path, err_text(r));
    } else if (r == 0 && c->config) {
        r = err_set(e, ERR_BAD_OPTION, "%s: config: cannot be set in a file", path);
    }
    return r;
}

int config_load(struct config *c, int argc, char **argv, struct err *e)
{
    assert(c && argc >= 0);
    _cleanup_free_ char *path = NULL;
    struct config loaded;
    int r = find_file(argc, argv, &path, e);
    if (r < 0)
        return r;
    r = option_init(&config_table, &loaded, e);
    if (r < 0)
        return r;
    if (path)
        r = load_file(&loaded, path, e);
    if (r == 0)
        r = option_env(&config_table, &loaded, e);
    if (r == 0)
        r = load_args(&loaded, argc, argv, e);
    if (r == 0)
        r = check(&loaded, e);
    if (r < 0) {
        config_fini(&loaded);
        return r;
    }
    *c = loaded;
    return 0;
}

static char **string_of(const struct option *row, void *config)
{
    return (char **)(void *)((char *)config + row->offset);
}

void config_adopt(struct config *c, const struct config *fresh, config_change_fn fn, void *arg)
{
    for (size_t i = 0; i < config_table.n_rows; i++) {
        const struct option *row = &config_table.rows[i];
        _cleanup_buf_ struct buf from = BUF_INIT(CONFIG_TEXT_MAX), to = BUF_INIT(CONFIG_TEXT_MAX);
        int r = option_get(&config_table, c, row->name, &from);
        if (r == 0)
            r = option_get(&config_table, fresh, row->name, &to);
        assert(r == 0); /* both came from texts that were shorter */
        if (slice_eq(buf_view(&from), buf_view(&to)))
            continue;
        fn(arg, row, from.n ? from.p : "", to.n ? to.p : "");
        if (!row->reloadable)
            continue;
        r = option_set(&config_table, c, row->name, to.p, row->name, NULL);
        assert(r == 0); /* it was set in `fresh` */
        if (row->type == OPTION_STRING && !*string_of(row, (void *)(uintptr_t)fresh))
            free(TAKE_PTR(*string_of(row, c))); /* none is another value than an empty one */
    }
}

/*
 * Life of a client: where the node is, with which credentials, first contact (contract in client.h).
 *
 * Failure modes: ERR_BAD_OPTION when nothing says where the node is; the node's or the system's error when it
 * cannot be reached, prefixed with its address.
 */
#include "client/client_internal.h"

#include "base/sys.h"

#include <openssl/crypto.h>
#include <sched.h>
#include <sys/un.h>

#define CREDENTIALS_MAX_BYTES 4096

/* ---- where ---- */

static const char *env(const char *name)
{
    const char *v = getenv(name);
    return v && v[0] ? v : NULL;
}

static int set_address(struct client *c, const char *value, struct err *e)
{
    if (strlen(value) >= sizeof(c->address))
        return err_set(e, ERR_BAD_OPTION, "%s: address of the node is too long", value);
    memcpy(c->address, value, strlen(value) + 1);
    return 0;
}

/* A relative path is completed, where the result still fits: what is told of the node (`forebay explain` asks
 * a mount for it) and connections that are made later must not depend on anybody's working directory. */
static int set_socket(struct client *c, const char *dir, const char *name, struct err *e)
{
    size_t most = sizeof(((struct sockaddr_un *)0)->sun_path) - 1;
    if (strlen(dir) + strlen(name) > most)
        return err_set(e, ERR_BAD_OPTION, "%s%s: the path of a Unix socket may have at most %zu bytes", dir,
                       name, most);
    _cleanup_free_ char *here = dir[0] == '/' ? NULL : getcwd(NULL, 0);
    bool is_completed = here && strlen(here) + 1 + strlen(dir) + strlen(name) <= most;
    (void)snprintf(c->address, sizeof(c->address), "unix:%s%s%s%s", is_completed ? here : "",
                   is_completed ? "/" : "", dir, name);
    return 0;
}

/* *ret_dir: the data directory, when one was given; its credentials may be read. */
static int locate(struct client *c, const struct client_options *o, const char **ret_dir, struct err *e)
{
    const char *dir = o->data_dir, *path = o->socket_path, *endpoint = o->endpoint;
    if (!path && !dir && !endpoint) {
        path = env("FOREBAY_SOCKET");
        dir = env("FOREBAY_DATA");
        endpoint = env("FOREBAY_ENDPOINT");
    }
    *ret_dir = dir;
    if (path)
        return set_socket(c, path, "", e);
    if (dir)
        return set_socket(c, dir, "/run/forebay.sock", e);
    if (endpoint)
        return set_address(c, endpoint, e);
    return err_set(
        e, ERR_BAD_OPTION,
        "where is the node? Give --data DIR, --socket PATH or --endpoint HOST:PORT, or set FOREBAY_DATA, "
        "FOREBAY_SOCKET or FOREBAY_ENDPOINT");
}

/* ---- credentials ---- */

static void take_line(struct slice line, const char *name, char **into)
{
    struct slice key = slice_split(&line, '=');
    if (slice_eq_str(key, name) && line.n > 0 && !*into)
        *into = slice_dup(line);
}

/* The file is optional: on the Unix socket trusted users need none, and others see in the refusal that they
 * do. */
static void read_credentials(struct client *c, const char *dir)
{
    char path[4096];
    _cleanup_free_ char *text = NULL;
    size_t n = 0;
    if (snprintf(path, sizeof(path), "%s/credentials", dir) >= (int)sizeof(path) ||
        sys_read_file(path, CREDENTIALS_MAX_BYTES, &text, &n) < 0)
        return;
    struct slice rest = slice_of(text, n);
    while (rest.n > 0) {
        struct slice line = slice_trim(slice_split(&rest, '\n'));
        take_line(line, "FOREBAY_ACCESS_KEY", &c->access_key);
        take_line(line, "FOREBAY_SECRET_KEY", &c->secret_key);
    }
    OPENSSL_cleanse(text, n);
}

static void find_credentials(struct client *c, const struct client_options *o, const char *dir)
{
    const char *access_key = o->access_key ? o->access_key : env("FOREBAY_ACCESS_KEY");
    const char *secret_key = o->secret_key ? o->secret_key : env("FOREBAY_SECRET_KEY");
    if (access_key && secret_key) {
        c->access_key = slice_dup(slice_str(access_key));
        c->secret_key = slice_dup(slice_str(secret_key));
    } else if (dir) {
        read_credentials(c, dir);
    }
}

/* ---- life ---- */

static void close_idle_locked(struct client *c)
{
    while (c->idle) {
        struct client_conn *conn = c->idle;
        c->idle = conn->next;
        client_conn_free(conn);
        c->n_idle--;
        c->n_open--;
    }
    assert(c->n_idle == 0);
}

static void new_session(struct client *c)
{
    id_new(&c->session);
    if (!id_is_zero(c->family))
        memcpy(c->session.b, c->family.b, WIRE_FAMILY_BYTES);
}

void client_new_epoch_locked(struct client *c)
{
    lock_assert_held(&c->lock);
    close_idle_locked(c);
    c->epoch++;
    c->n_current = 0;
    new_session(c);
    cond_broadcast(&c->freed);
}

/* Nothing that another thread of the parent may have held is waited for or counted on. What such a thread had
 * on its connection stays open here, unused. */
static void forget_parent(struct client *c)
{
    lock_init(&c->lock, LOCK_CLIENT);
    cond_init(&c->freed);
    for (struct client_conn *next, *conn = c->idle; conn; conn = next) {
        next = conn->next;
        client_conn_free(conn);
    }
    c->idle = NULL;
    c->n_idle = c->n_open = c->n_current = 0;
    atomic_store(&c->n_short, 0);
    atomic_store(&c->n_long, 0);
    c->epoch++;
    new_session(c);
}

void client_own(struct client *c)
{
    pid_t me = getpid(), owner = atomic_load(&c->owner);
    while (owner != me) {
        if (owner == -me) { /* another thread is at it */
            (void)sched_yield();
            owner = atomic_load(&c->owner);
        } else if (atomic_compare_exchange_weak(&c->owner, &owner, -me)) {
            forget_parent(c);
            atomic_store(&c->owner, me);
            owner = me;
        }
    }
}

static int first_contact(struct client *c, struct err *e)
{
    struct client_conn *conn;
    struct err why = {0};
    int r = client_conn_open(c, c->session, sys_mono_ms() + c->timeout_ms, &conn, &why);
    if (r == -ENOENT || r == -ECONNREFUSED)
        return err_set(e, r, "node at %s: %s: no node runs there; `forebay serve` starts one", c->address,
                       why.text);
    if (r < 0)
        return err_set(e, r, "node at %s: %s", c->address, why.text);
    conn->epoch = c->epoch;
    c->passes_fds = conn->passes_fds;
    c->idle = conn;
    c->n_idle = c->n_open = c->n_current = 1;
    return 0;
}

static void sleep_at_once(void)
{
}

int client_new(const struct client_options *o, struct client **ret, struct err *e)
{
    assert(o != NULL && ret != NULL);
    _cleanup_(client_freep) struct client *c = calloc(1, sizeof(*c));
    const char *dir = NULL;
    if (!c)
        abort();
    c->magic = CLIENT_MAGIC;
    atomic_init(&c->owner, getpid());
    lock_init(&c->lock, LOCK_CLIENT);
    cond_init(&c->freed);
    c->via = o->via ? o->via : WIRE_VIA_API;
    c->before_call = o->before_call;
    c->number = o->number;
    c->before_sleep = o->before_sleep ? o->before_sleep : sleep_at_once;
    c->is_unwanted = o->is_unwanted;
    c->must_not_wait = o->must_not_wait;
    c->family = o->family ? *o->family : (struct id128){0};
    c->timeout_ms = MIN(o->timeout_ms ? o->timeout_ms : CLIENT_TIMEOUT_MS, (uint64_t)CLIENT_TIMEOUT_MAX_MS);
    c->max_connections = o->connections ? o->connections : CLIENT_CONNECTIONS;
    c->max_idle = o->idle ? o->idle : CLIENT_IDLE;
    c->name = slice_dup(slice_str(o->name ? o->name : "client"));
    c->epoch = 1;
    new_session(c);
    int r = locate(c, o, &dir, e);
    if (r < 0)
        return r;
    find_credentials(c, o, dir);
    r = first_contact(c, e);
    if (r < 0)
        return r;
    *ret = TAKE_PTR(c);
    return 0;
}

void client_free(struct client *c)
{
    if (!c)
        return;
    assert(c->magic == CLIENT_MAGIC);
    client_own(c);
    close_idle_locked(c); /* no call runs: the lock is not needed */
    assert(c->n_open == 0);
    if (c->secret_key)
        OPENSSL_cleanse(c->secret_key, strlen(c->secret_key));
    free(c->access_key);
    free(c->secret_key);
    free(c->name);
    cond_fini(&c->freed);
    lock_fini(&c->lock);
    c->magic = 0;
    free(c);
}

void client_hurry(struct client *c)
{
    atomic_store(&c->hurries, true);
}

void client_on_no_room(struct client *c, bool (*make_room)(void *arg), void *arg)
{
    c->make_room = make_room;
    c->room_arg = arg;
}

const char *client_address(const struct client *c)
{
    return c->address;
}

bool client_passes_fds(const struct client *c)
{
    return c->passes_fds;
}

enum wire_via client_via(const struct client *c)
{
    return c->via;
}

uint32_t client_no_wait(const struct client *c)
{
    return c->must_not_wait && c->must_not_wait() ? WIRE_NO_WAIT : 0;
}

uint64_t client_epoch(struct client *c)
{
    client_own(c);
    LOCK_SCOPE(&c->lock);
    return c->epoch;
}

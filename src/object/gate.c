/*
 * The gate (contract in gate.h).
 *
 * A *node* stands for whoever may be limited (the node itself, a bucket, a user, a client) or has a share (a
 * user; a bucket of that user; a client of that user in that bucket). Nodes are made when they are met, and
 * dropped when nobody is inside and their debts are paid: the clock of their siblings then stands for them.
 *
 * Invariants:
 *  1. A waiting request is in `waiting` or admitted, never both; who is admitted is counted as running.
 *  2. A node is kept while a request that names it waits or runs (`uses`).
 *  3. What a request will cost is estimated from its client's last ones and charged when it is admitted, so
 * that many that run at once do not all go on the same account; leaving corrects it.
 *
 * Failure modes: none. A waiter looks again at the time that the decision gave, or when somebody leaves.
 */
#include "object/gate.h"

#include "base/hash.h"
#include "base/lock.h"
#include "base/metrics.h"
#include "base/sys.h"

#define MAGIC          0x67617465u
#define SLOTS          1024
#define SWEEP_AT       2048 /* nodes; then those that nobody needs are dropped */
#define NAME_MAX_BYTES 320
#define WAITING_MAX    4095 /* and one that is let through */
#define ESTIMATE_FIRST (16 * KIB)
#define REQUEST_COST   (4 * KIB) /* what a request costs a share besides its bytes */
#define LOOK_AGAIN_NS  ((uint64_t)100000000)
#define SLOW_NS        ((uint64_t)500000000)   /* who runs for longer waits for something else */
#define WAIT_MAX_NS    ((uint64_t)60000000000) /* of who may be refused: its client has given up by then */

enum { NODE, BUCKET, USER, CLIENT, USER_BUCKET, USER_BUCKET_CLIENT, KINDS };

static const char *const kind_names[KINDS] = {"node", "bucket", "user", "client", "", ""};

struct gate_node {
    struct gate_node *next;
    uint64_t hash;
    int kind;
    unsigned uses;
    struct shape_share share;
    struct shape_limit requests, bytes;
    uint64_t estimate; /* bytes of a request, of late */
    unsigned n_waiting;
    uint64_t n_requests, n_bytes, n_waited, waited_ns, n_refused;
    char name[];
};

struct waiter {
    struct shape_request request;
    struct gate_pass *pass;
    bool admitted;
};

struct gate {
    uint32_t magic;
    struct gate_config config;
    atomic_bool closed; /* requests are looked at */
    struct lock lock;   /* covers what follows */
    struct cond moved;
    struct gate_node *slots[SLOTS];
    size_t n_nodes;
    struct shape_request *waiting[WAITING_MAX + 1];
    size_t n_waiting;
    unsigned active; /* slots */
    struct gate_pass *inside;
    unsigned n_inside;
    struct shape_share root; /* its children are users */
    bool open;               /* for good */
    uint64_t next_number, n_waited, n_refused;
};

/* ---- nodes ---- */

static bool is_needed(const struct gate_node *x, uint64_t now_ns)
{
    return x->uses > 0 || x->kind == NODE || shape_wait_ns(&x->requests, now_ns) > 0 ||
           shape_wait_ns(&x->bytes, now_ns) > 0;
}

static void sweep_locked(struct gate *g, uint64_t now_ns)
{
    for (size_t i = 0; i < SLOTS; i++)
        for (struct gate_node **at = &g->slots[i]; *at;) {
            struct gate_node *x = *at;
            if (is_needed(x, now_ns)) {
                at = &x->next;
                continue;
            }
            *at = x->next;
            free(x);
            g->n_nodes--;
        }
}

static struct gate_node *node_locked(struct gate *g, int kind, struct slice name)
{
    uint64_t hash = hash_mix(hash_table(name), (uint64_t)kind);
    struct gate_node **slot = &g->slots[hash % SLOTS], *x = *slot;
    while (x && !(x->hash == hash && x->kind == kind && slice_eq_str(name, x->name)))
        x = x->next;
    if (!x) {
        x = calloc(1, sizeof(*x) + name.n + 1);
        if (!x)
            abort();
        x->next = *slot;
        x->hash = hash;
        x->kind = kind;
        x->share.weight = SHAPE_WEIGHT_ONE;
        x->estimate = ESTIMATE_FIRST;
        memcpy(x->name, name.p, name.n);
        *slot = x;
        g->n_nodes++;
    }
    x->uses++;
    return x;
}

static void set_limits(struct gate_node *x, uint64_t requests_per_s, uint64_t bytes_per_s, uint64_t now_ns)
{
    shape_limit_set(&x->requests, requests_per_s, now_ns);
    shape_limit_set(&x->bytes, bytes_per_s, now_ns);
}

/* The nodes of a request, as its bucket and user say now. */
static void find_nodes_locked(struct gate *g, const struct gate_who *w, struct gate_node *ret[KINDS])
{
    char text[NAME_MAX_BYTES];
    const char *bucket = w->bucket ? w->bucket->name : "", *user = w->user ? w->user->name : "";
    struct slice client = slice_sub(w->client, 0, MIN(w->client.n, (size_t)128));
    ret[NODE] = node_locked(g, NODE, SLICE_LIT("all"));
    ret[BUCKET] = node_locked(g, BUCKET, slice_str(bucket));
    ret[USER] = node_locked(g, USER, slice_str(user));
    ret[CLIENT] = node_locked(g, CLIENT, client);
    (void)snprintf(text, sizeof(text), "%s/%s", user, bucket);
    ret[USER_BUCKET] = node_locked(g, USER_BUCKET, slice_str(text));
    (void)snprintf(text, sizeof(text), "%s/%s/" SLICE_FMT, user, bucket, SLICE_ARG(client));
    ret[USER_BUCKET_CLIENT] = node_locked(g, USER_BUCKET_CLIENT, slice_str(text));
    uint64_t now_ns = sys->mono_ns();
    set_limits(ret[NODE], g->config.requests_per_s, g->config.bytes_per_s, now_ns);
    set_limits(ret[CLIENT], g->config.client_requests_per_s, g->config.client_bytes_per_s, now_ns);
    set_limits(ret[BUCKET], w->bucket ? w->bucket->p.limit_requests : 0,
               w->bucket ? w->bucket->p.limit_bytes : 0, now_ns);
    set_limits(ret[USER], w->user ? w->user->limits.requests_per_s : 0,
               w->user ? w->user->limits.bytes_per_s : 0, now_ns);
    ret[USER]->share.weight = w->user ? w->user->limits.share : SHAPE_WEIGHT_ONE;
    ret[USER_BUCKET]->share.weight = w->bucket ? (uint32_t)w->bucket->p.share : SHAPE_WEIGHT_ONE;
}

/* ---- admitting ---- */

static const int share_kinds[SHAPE_LEVELS] = {USER, USER_BUCKET, USER_BUCKET_CLIENT};

static struct shape_share *parent_of(struct gate *g, const struct gate_pass *p, size_t level)
{
    return level == 0 ? &g->root : &p->nodes[share_kinds[level - 1]]->share;
}

static void charge(struct gate_pass *p, int64_t requests, int64_t bytes, int64_t cost, uint64_t now_ns)
{
    for (int i = NODE; i <= CLIENT; i++) {
        shape_charge(&p->nodes[i]->requests, requests, now_ns);
        shape_charge(&p->nodes[i]->bytes, bytes, now_ns);
    }
    for (size_t i = 0; i < SHAPE_LEVELS; i++)
        shape_share_charge(&p->nodes[share_kinds[i]]->share, cost);
}

static void admit_locked(struct gate *g, size_t at, uint64_t now_ns)
{
    struct waiter *w = container_of(g->waiting[at], struct waiter, request);
    struct gate_pass *p = w->pass;
    memmove(g->waiting + at, g->waiting + at + 1, (--g->n_waiting - at) * sizeof(g->waiting[0]));
    p->since_ns = now_ns;
    p->next = g->inside;
    p->link = &g->inside;
    if (p->next)
        p->next->link = &p->next;
    g->inside = p;
    g->n_inside++;
    for (size_t i = 0; i < SHAPE_LEVELS; i++) {
        struct shape_share *parent = parent_of(g, p, i);
        parent->children_clock = MAX(parent->children_clock, p->nodes[share_kinds[i]]->share.virtual_time);
    }
    p->estimate = p->nodes[USER_BUCKET_CLIENT]->estimate;
    charge(p, 1, (int64_t)p->estimate, (int64_t)(p->estimate + REQUEST_COST), now_ns);
    w->admitted = true;
}

/* Those inside that count. */
static struct shape_room room_locked(const struct gate *g, uint64_t now_ns)
{
    struct shape_room room = {.slots = g->active};
    for (const struct gate_pass *p = g->inside; p; p = p->next) {
        bool counts = now_ns < p->since_ns + SLOW_NS;
        room.running += counts;
        room.running_background += counts && p->background;
    }
    return room;
}

/* Lets in whoever may go; gives how long until somebody else may. */
static uint64_t turn_locked(struct gate *g)
{
    uint64_t now_ns = sys->mono_ns(), wait_ns;
    bool any = false;
    for (;;) {
        const struct shape_room room = room_locked(g, now_ns);
        ssize_t at = shape_pick(g->waiting, g->n_waiting, &room, now_ns, &wait_ns);
        if (g->open)
            at = g->n_waiting > 0 ? 0 : -1;
        if (at < 0)
            break;
        admit_locked(g, (size_t)at, now_ns);
        any = true;
    }
    if (any)
        cond_broadcast(&g->moved);
    return MIN(wait_ns, LOOK_AGAIN_NS);
}

/* ---- entering and leaving ---- */

static void begin_locked(struct gate *g, const struct gate_who *who, struct waiter *w)
{
    struct gate_pass *p = w->pass;
    *p = (struct gate_pass){.background = who->background};
    find_nodes_locked(g, who, p->nodes);
    w->request = (struct shape_request){.background = who->background, .number = g->next_number++};
    for (int i = NODE; i <= CLIENT; i++) {
        w->request.limits[w->request.n_limits++] = &p->nodes[i]->requests;
        w->request.limits[w->request.n_limits++] = &p->nodes[i]->bytes;
    }
    for (size_t i = 0; i < SHAPE_LEVELS; i++) {
        struct shape_share *s = &p->nodes[share_kinds[i]]->share;
        shape_share_begin(s, parent_of(g, p, i)->children_clock);
        w->request.shares[i] = s;
    }
}

static void end_locked(struct gate *g, struct gate_pass *p)
{
    for (size_t i = 0; i < SHAPE_LEVELS; i++)
        shape_share_end(&p->nodes[share_kinds[i]]->share);
    for (size_t i = 0; i < KINDS; i++)
        p->nodes[i]->uses--;
    if (g->n_nodes > SWEEP_AT)
        sweep_locked(g, sys->mono_ns());
    *p = (struct gate_pass){.nodes = {NULL}};
}

/* Which node it waits for: that of the longest wait, or, with none, the user whose share it is. */
static struct gate_node *waits_for(const struct waiter *w, uint64_t now_ns)
{
    size_t limit = 0;
    return shape_longest_ns(&w->request, now_ns, &limit) > 0 ? w->pass->nodes[limit / 2]
                                                             : w->pass->nodes[USER];
}

static bool is_too_many(const struct gate *g, const struct gate_who *who, const struct gate_pass *p)
{
    return g->n_waiting >= MIN(g->config.waiting, (unsigned)WAITING_MAX) ||
           (who->may_refuse && p->nodes[CLIENT]->n_waiting >= GATE_WAITING_MAX);
}

/* Waits until it is admitted, or has waited for too long; gives how long that took. */
static uint64_t wait_locked(struct gate *g, struct waiter *w, bool may_refuse)
{
    uint64_t from_ns = sys->mono_ns(), next_ns = 0, waited_ns = 0;
    struct gate_node *client = w->pass->nodes[CLIENT];
    client->n_waiting++;
    while (!w->admitted && !(may_refuse && waited_ns >= WAIT_MAX_NS)) {
        next_ns = turn_locked(g);
        if (!w->admitted)
            (void)cond_wait_for(&g->moved, &g->lock, next_ns);
        waited_ns = sys->mono_ns() - from_ns;
    }
    client->n_waiting--;
    return waited_ns;
}

/* One of the waiting waits no more. */
static void refuse_locked(struct gate *g, struct waiter *w, struct gate_node *held)
{
    size_t at = 0;
    while (g->waiting[at] != &w->request)
        at++;
    memmove(g->waiting + at, g->waiting + at + 1, (--g->n_waiting - at) * sizeof(g->waiting[0]));
    held->n_refused++;
    g->n_refused++;
    end_locked(g, w->pass);
}

static void observe(const struct gate_node *x, bool limited, uint64_t waited_ns, bool refused)
{
    const char *limit = limited ? kind_names[x->kind] : "share", *name = x->kind == CLIENT ? "" : x->name;
    if (refused)
        metrics_count(METRIC_LIMIT_REFUSED, limit, name, NULL);
    else
        metrics_observe_ns(metrics_series(METRIC_LIMIT_WAITED, limit, name, NULL), waited_ns);
}

/* What is said in metrics is copied under the lock and counted behind it. */
struct account {
    bool limited, refused, waited;
    uint64_t waited_ns;
    struct gate_node *held; /* has a use of its own */
};

static int enter_locked(struct gate *g, const struct gate_who *who, struct gate_pass *p, struct account *c)
{
    struct waiter w = {.pass = p};
    uint64_t now_ns = sys->mono_ns();
    size_t limit;
    begin_locked(g, who, &w);
    bool too_many = is_too_many(g, who, p);
    struct gate_node *held = waits_for(&w, now_ns);
    *c = (struct account){.limited = shape_longest_ns(&w.request, now_ns, &limit) > 0, .held = held};
    held->uses++;
    g->waiting[g->n_waiting++] = &w.request;
    (void)turn_locked(g);
    if (w.admitted)
        return 0;
    if (too_many && who->may_refuse) {
        c->refused = true;
        refuse_locked(g, &w, held);
        return -EBUSY;
    }
    if (too_many) {
        admit_locked(g, g->n_waiting - 1, now_ns);
        return 0;
    }
    c->waited = true;
    c->waited_ns = wait_locked(g, &w, who->may_refuse);
    held->n_waited++;
    held->waited_ns += c->waited_ns;
    g->n_waited++;
    c->refused = !w.admitted;
    if (c->refused)
        refuse_locked(g, &w, held);
    return c->refused ? -EBUSY : 0;
}

int gate_enter(struct gate *g, const struct gate_who *who, struct gate_pass *ret, struct err *e)
{
    struct account c;
    *ret = (struct gate_pass){.nodes = {NULL}};
    if (!atomic_load_explicit(&g->closed, memory_order_relaxed))
        return 0;
    lock_take(&g->lock);
    int r = enter_locked(g, who, ret, &c);
    lock_drop(&g->lock);
    if (c.refused || c.waited)
        observe(c.held, c.limited, c.waited_ns, c.refused);
    lock_take(&g->lock);
    c.held->uses--;
    lock_drop(&g->lock);
    return r < 0 ? err_set(e, r, "too many requests wait for the limits of this node; slow down") : 0;
}

void gate_leave(struct gate *g, struct gate_pass *p, uint64_t bytes)
{
    if (!p->nodes[NODE])
        return;
    LOCK_SCOPE(&g->lock);
    int64_t more = (int64_t)bytes - (int64_t)p->estimate;
    struct gate_node *client = p->nodes[USER_BUCKET_CLIENT];
    charge(p, 0, more, more, sys->mono_ns());
    client->estimate = (client->estimate * 3 + bytes) / 4;
    for (int i = NODE; i <= CLIENT; i++) {
        p->nodes[i]->n_requests++;
        p->nodes[i]->n_bytes += bytes;
    }
    *p->link = p->next;
    if (p->next)
        p->next->link = p->link;
    g->n_inside--;
    end_locked(g, p);
    (void)turn_locked(g);
    cond_broadcast(&g->moved); /* times to look again may have come nearer */
}

void gate_charge(struct gate *g, const struct gate_who *who, uint64_t bytes)
{
    struct gate_pass pass;
    struct waiter w = {.pass = &pass};
    if (bytes == 0 || !gate_is_closed(g))
        return;
    LOCK_SCOPE(&g->lock);
    begin_locked(g, who, &w);
    charge(&pass, 0, (int64_t)bytes, (int64_t)bytes, sys->mono_ns());
    for (int i = NODE; i <= CLIENT; i++)
        pass.nodes[i]->n_bytes += bytes;
    end_locked(g, &pass);
}

/* ---- life, state ---- */

struct gate *gate_new(const struct gate_config *config)
{
    struct gate *g = calloc(1, sizeof(*g));
    if (!g)
        abort();
    g->magic = MAGIC;
    g->config = *config;
    g->active = MAX(config->active, 1u);
    g->root.weight = SHAPE_WEIGHT_ONE;
    lock_init(&g->lock, LOCK_LEAF);
    cond_init(&g->moved);
    atomic_init(&g->closed, config->requests_per_s || config->bytes_per_s || config->client_requests_per_s ||
                                config->client_bytes_per_s);
    return g;
}

void gate_free(struct gate *g)
{
    if (!g)
        return;
    assert(g->magic == MAGIC && g->n_waiting == 0 && g->n_inside == 0);
    for (size_t i = 0; i < SLOTS; i++)
        for (struct gate_node *x = g->slots[i], *next; x; x = next) {
            next = x->next;
            free(x);
        }
    cond_fini(&g->moved);
    lock_fini(&g->lock);
    g->magic = 0;
    free(g);
}

void gate_close(struct gate *g)
{
    atomic_store(&g->closed, true);
}

bool gate_is_closed(const struct gate *g)
{
    return atomic_load_explicit(&g->closed, memory_order_relaxed);
}

void gate_open(struct gate *g)
{
    atomic_store(&g->closed, false);
    LOCK_SCOPE(&g->lock);
    g->open = true;
    (void)turn_locked(g);
}

static json_t *node_json(const struct gate_node *x)
{
    return json_pack("{s:s, s:s, s:I, s:I, s:I, s:I, s:I}", "limit", kind_names[x->kind], "name", x->name,
                     "requests", (json_int_t)x->n_requests, "bytes", (json_int_t)x->n_bytes, "waited",
                     (json_int_t)x->n_waited, "waited_ms", (json_int_t)(x->waited_ns / 1000000), "refused",
                     (json_int_t)x->n_refused);
}

json_t *gate_json(struct gate *g)
{
    json_t *list = json_array();
    LOCK_SCOPE(&g->lock);
    for (size_t i = 0; i < SLOTS; i++)
        for (struct gate_node *x = g->slots[i]; x; x = x->next)
            if (x->kind <= CLIENT && x->name[0])
                (void)json_array_append_new(list, node_json(x));
    return json_pack("{s:b, s:i, s:i, s:I, s:I, s:o}", "closed", (int)atomic_load(&g->closed), "active",
                     (int)g->n_inside, "waiting", (int)g->n_waiting, "waited", (json_int_t)g->n_waited,
                     "refused", (json_int_t)g->n_refused, "limits", list);
}

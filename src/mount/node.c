/*
 * The table of inodes (contract in node.h).
 *
 * Two hash tables over the same nodes: by id, and of the attached ones by (parent, name).
 *
 * Invariants:
 *  1. At most one attached node per (parent, name). The root is attached under no name.
 *  2. A node is freed when lookups and refs are both 0; then it holds no open file. Each child holds a
 * reference to its parent, each parent outlives its children.
 *  3. Ids are never reused.
 *  4. ino depends on the names on the path only.
 *  5. What is kept of a node (node->kept) says what the node says.
 */
#include "mount/node.h"

#include "base/hash.h"
#include "mount/holdings.h"
#include "mount/node_kept.h"
#include "mount/request.h"

#include <errno.h>
#include <sys/stat.h>

#define NODE_MAGIC   0x6e6f6465u
#define TABLE_MIN    1024 /* places, a power of two */
#define OLDEST_TRIES 16

struct node_table {
    struct lock lock;
    struct node **by_id, **by_name;
    size_t n_places; /* of each */
    size_t n_nodes;
    struct kept *kept; /* NULL: nobody takes over */
    bool keeps_all;
    _Atomic uint64_t own_next_id, *next_id;
    struct node *root;
    struct node *oldest, *newest; /* all but the root */
    uint64_t recent[NODE_RECENT]; /* ids of the files that were looked up last, in turn; 0: none */
    uint64_t n_recent;            /* ever */
};

/* ---- hashing ---- */

static size_t place_of_id(const struct node_table *t, uint64_t id)
{
    return hash_mix(id, 0) & (t->n_places - 1);
}

static size_t place_of_name(const struct node_table *t, const struct node *parent, struct slice name)
{
    return hash_mix(parent->id, hash_table(name)) & (t->n_places - 1);
}

uint64_t node_ino(uint64_t parent_ino, struct slice name)
{
    uint64_t ino =
        hash_mix(parent_ino, hash_placement(name)) >> 1; /* some programs keep it in a signed number */
    return ino > NODE_ROOT_ID ? ino : NODE_ROOT_ID + 1;
}

static struct slice name_of(const struct node *n)
{
    return slice_of(n->name, n->name_n);
}

static void link_id(struct node_table *t, struct node *n)
{
    struct node **at = &t->by_id[place_of_id(t, n->id)];
    n->id_next = *at;
    *at = n;
}

static void link_name(struct node_table *t, struct node *n)
{
    struct node **at = &t->by_name[place_of_name(t, n->parent, name_of(n))];
    n->hash_next = *at;
    *at = n;
}

/* ---- memory ---- */

/* Its name or its ETag is another one than when it was counted last. */
static void count_again(struct node *n)
{
    size_t bytes = holdings_chunk(sizeof(*n)) + holdings_chunk(n->name_n + 1) + holdings_chunk(n->etag_n + 1);
    holdings_take(HOLDING_INODES, bytes);
    holdings_give(HOLDING_INODES, n->held_bytes);
    n->held_bytes = (uint32_t)bytes;
}

static size_t table_bytes(const struct node_table *t)
{
    return t->n_places * (sizeof(t->by_id[0]) + sizeof(t->by_name[0]));
}

static void grow(struct node_table *t)
{
    if (t->n_nodes < t->n_places)
        return;
    free(t->by_id);
    free(t->by_name);
    holdings_take(HOLDING_INODES, table_bytes(t)); /* as much again */
    t->n_places *= 2;
    t->by_id = calloc(t->n_places, sizeof(t->by_id[0]));
    t->by_name = calloc(t->n_places, sizeof(t->by_name[0]));
    if (!t->by_id || !t->by_name)
        abort();
    link_id(t, t->root);
    for (struct node *n = t->oldest; n; n = n->lru_newer) {
        link_id(t, n);
        if (n->is_attached)
            link_name(t, n);
    }
}

static struct node *find_id(const struct node_table *t, uint64_t id)
{
    for (struct node *n = t->by_id[place_of_id(t, id)]; n; n = n->id_next)
        if (n->id == id)
            return n;
    return NULL;
}

static struct node *find_name(const struct node_table *t, const struct node *parent, struct slice name)
{
    for (struct node *n = t->by_name[place_of_name(t, parent, name)]; n; n = n->hash_next)
        if (n->parent == parent && slice_eq(name_of(n), name))
            return n;
    return NULL;
}

/* ---- order of use ---- */

static void lru_remove(struct node_table *t, struct node *n)
{
    *(n->lru_older ? &n->lru_older->lru_newer : &t->oldest) = n->lru_newer;
    *(n->lru_newer ? &n->lru_newer->lru_older : &t->newest) = n->lru_older;
    n->lru_older = n->lru_newer = NULL;
}

static void lru_add(struct node_table *t, struct node *n)
{
    n->lru_older = t->newest;
    n->lru_newer = NULL;
    *(t->newest ? &t->newest->lru_newer : &t->oldest) = n;
    t->newest = n;
}

static void lru_touch(struct node_table *t, struct node *n)
{
    if (n == t->newest || n == t->root)
        return;
    lru_remove(t, n);
    lru_add(t, n);
}

/* ---- for a process that takes over ---- */

/* Says anew what is known of a kept node. */
static void keep_again(struct node_table *t, struct node *n)
{
    struct node_kept_facts x = {.id = n->id,
                                .parent_id = n->parent->id,
                                .ino = n->ino,
                                .size_bytes = n->size_bytes,
                                .mtime_ns = n->mtime_ns,
                                .moved_by = n->moved_by,
                                .lookups = n->lookups,
                                .name = name_of(n),
                                .etag = slice_of(n->etag, n->etag_n),
                                .is_dir = n->is_dir,
                                .is_attached = n->is_attached,
                                .is_unlinked = n->is_unlinked,
                                .has_owner = n->has_owner,
                                .mode = n->mode,
                                .uid = n->uid,
                                .gid = n->gid};
    struct node_kept *old = n->kept;
    bool is_many = n->is_dir || t->keeps_all; /* without one the kernel looks the name up again */
    n->kept = node_kept_new(t->kept, &x, /* is_needed= */ old || !is_many);
    node_kept_free(t->kept, old);
}

void node_changed_locked(struct node_table *t, struct node *n)
{
    if (n->kept)
        keep_again(t, n);
}

void node_keep_locked(struct node_table *t, struct node *n)
{
    n->n_keepers++;
    if (t->kept && n->parent && !n->kept)
        keep_again(t, n);
}

void node_unkeep_locked(struct node_table *t, struct node *n)
{
    assert(n->n_keepers > 0);
    if (--n->n_keepers == 0 && n->kept)
        node_kept_free(t->kept, TAKE_PTR(n->kept));
}

/* What is kept has it before the kernel is answered: who takes over may believe that the kernel holds more
 * than it does, and then keeps a node for nothing. Believing less would free one that is in use. */
static void set_lookups(struct node *n, uint64_t lookups)
{
    n->lookups = lookups;
    if (n->kept)
        n->kept->lookups = lookups;
}

void node_looked_up_locked(struct node *n)
{
    set_lookups(n, n->lookups + 1);
}

/* ---- life ---- */

static void set_unlinked(struct node *n)
{
    n->is_unlinked = true;
    if (n->kept)
        n->kept->is_unlinked = true;
}

static void unlink_name(struct node_table *t, struct node *n)
{
    struct node **at = &t->by_name[place_of_name(t, n->parent, name_of(n))];
    while (*at != n)
        at = &(*at)->hash_next;
    *at = n->hash_next;
    n->hash_next = NULL;
    n->is_attached = false;
}

static void detach_locked(struct node_table *t, struct node *n)
{
    if (!n->is_attached || !n->parent)
        return;
    unlink_name(t, n);
    if (n->kept)
        n->kept->is_attached = false;
}

static void remove_id(struct node_table *t, struct node *n)
{
    struct node **at = &t->by_id[place_of_id(t, n->id)];
    while (*at != n)
        at = &(*at)->id_next;
    *at = n->id_next;
}

static void node_free(struct node *n)
{
    holdings_give(HOLDING_INODES, n->held_bytes);
    free(n->name);
    free(n->etag);
    n->magic = 0;
    free(n);
}

/* Frees it and, by the references they lose, its parents. */
static void release_locked(struct node_table *t, struct node *n)
{
    while (n && n != t->root && n->lookups == 0 && n->refs == 0) {
        assert(n->n_passthrough == 0 && n->n_plain == 0 && !n->staging && !n->backing_file && !n->warm);
        struct node *parent = n->parent;
        detach_locked(t, n);
        if (n->kept)
            node_kept_free(t->kept, TAKE_PTR(n->kept));
        remove_id(t, n);
        lru_remove(t, n);
        t->n_nodes--;
        node_free(n);
        parent->refs--;
        n = parent;
    }
}

static void set_etag(struct node *n, struct slice etag)
{
    if (n->etag && slice_eq(slice_of(n->etag, n->etag_n), etag))
        return;
    free(n->etag);
    n->etag = slice_dup(etag);
    n->etag_n = etag.n;
    count_again(n);
}

static void set_attr_locked(struct node_table *t, struct node *n, const struct node_attr *a)
{
    n->size_bytes = a->size_bytes;
    if (a->has_owner || !n->has_owner) /* else it is known better: the time is not that of the object */
        n->mtime_ns = a->mtime_ns;
    if (a->has_owner) {
        n->has_owner = true;
        n->mode = a->mode;
        n->uid = a->uid;
        n->gid = a->gid;
    }
    set_etag(n, a->etag);
    if (!n->is_dir || a->has_owner)
        node_changed_locked(t, n);
}

static struct node *node_new(struct node_table *t, struct node *parent, struct slice name,
                             const struct node_attr *a)
{
    struct node *n = calloc(1, sizeof(*n));
    if (!n)
        abort();
    n->magic = NODE_MAGIC;
    n->id = atomic_fetch_add(t->next_id, 1);
    n->parent = parent;
    n->name = slice_dup(name);
    n->name_n = name.n;
    n->ino = parent ? node_ino(parent->ino, name) : NODE_ROOT_ID;
    n->is_attached = true;
    n->is_dir = a->is_dir;
    set_attr_locked(t, n, a);
    return n;
}

static struct node *add_locked(struct node_table *t, struct node *parent, struct slice name,
                               const struct node_attr *a)
{
    grow(t);
    struct node *n = node_new(t, parent, name, a);
    parent->refs++;
    t->n_nodes++;
    link_id(t, n);
    link_name(t, n);
    lru_add(t, n);
    if (n->is_dir || t->keeps_all)
        node_keep_locked(t, n); /* until it is freed */
    return n;
}

struct node_table *node_table_new(struct kept *k, bool keeps_all)
{
    struct node_table *t = calloc(1, sizeof(*t));
    if (!t)
        abort();
    lock_init(&t->lock, LOCK_MOUNT);
    t->n_places = TABLE_MIN;
    t->by_id = calloc(t->n_places, sizeof(t->by_id[0]));
    t->by_name = calloc(t->n_places, sizeof(t->by_name[0]));
    if (!t->by_id || !t->by_name)
        abort();
    t->kept = k;
    t->keeps_all = k && keeps_all;
    holdings_take(HOLDING_INODES, table_bytes(t));
    atomic_init(&t->own_next_id, NODE_ROOT_ID);
    t->next_id = &t->own_next_id;
    struct node_attr root = {.is_dir = true};
    t->root = node_new(t, NULL, SLICE_LIT(""), &root);
    if (k) {
        uint64_t none = 0;
        t->next_id = &kept_facts(k)->next_node;
        (void)atomic_compare_exchange_strong(t->next_id, &none, NODE_ROOT_ID + 1);
    }
    link_id(t, t->root);
    return t;
}

void node_table_free(struct node_table *t)
{
    if (!t)
        return;
    while (t->oldest) {
        struct node *n = t->oldest;
        lru_remove(t, n);
        if (n->kept)
            node_kept_free(t->kept, TAKE_PTR(n->kept));
        node_free(n);
    }
    node_free(t->root);
    holdings_give(HOLDING_INODES, table_bytes(t));
    free(t->by_id);
    free(t->by_name);
    lock_fini(&t->lock);
    free(t);
}

struct lock *node_table_lock(struct node_table *t)
{
    return &t->lock;
}

/* ---- references ---- */

struct node *node_get(struct node_table *t, uint64_t id)
{
    LOCK_SCOPE(&t->lock);
    struct node *n = find_id(t, id);
    if (n)
        n->refs++;
    return n;
}

struct node *node_ref(struct node_table *t, struct node *n)
{
    LOCK_SCOPE(&t->lock);
    assert(n->magic == NODE_MAGIC);
    n->refs++;
    return n;
}

void node_unref(struct node_table *t, struct node *n)
{
    if (!n)
        return;
    LOCK_SCOPE(&t->lock);
    assert(n->magic == NODE_MAGIC && n->refs > 0);
    n->refs--;
    release_locked(t, n);
}

void node_forget(struct node_table *t, uint64_t id, uint64_t n_lookups)
{
    LOCK_SCOPE(&t->lock);
    struct node *n = find_id(t, id);
    if (!n || n == t->root)
        return;
    set_lookups(n, n->lookups - MIN(n->lookups, n_lookups));
    release_locked(t, n);
}

/* ---- names ---- */

struct node *node_find(struct node_table *t, struct node *parent, struct slice name)
{
    LOCK_SCOPE(&t->lock);
    struct node *n = find_name(t, parent, name);
    if (n)
        n->refs++;
    return n;
}

bool node_is_version_locked(const struct node *n, const struct node_attr *a)
{
    if (n->is_dir || a->is_dir)
        return n->is_dir == a->is_dir;
    bool is_other_kind = n->has_owner && a->has_owner && ((n->mode ^ a->mode) & S_IFMT) != 0;
    if (n->size_bytes != a->size_bytes || is_other_kind)
        return false;
    /* A listing gives times finer than an answer about one object does: they count only where there is no
     * ETag. */
    if (n->etag_n > 0 && a->etag.n > 0)
        return slice_eq(slice_of(n->etag, n->etag_n), a->etag);
    return n->mtime_ns == a->mtime_ns;
}

/*
 * The kernel is about to be told of a file, and will ask for it by its id: what was looked up last is kept,
 * so that a call which began before a process was killed finds its file afterwards. On one that is forgotten
 * the kernel tries again, once only, which was not enough when the next process was killed, too.
 */
static void keep_recent_locked(struct node_table *t, struct node *n)
{
    if (!t->kept || t->keeps_all || n->is_dir)
        return;
    uint32_t place = (uint32_t)(t->n_recent++ % NODE_RECENT);
    struct node *old = t->recent[place] ? find_id(t, t->recent[place]) : NULL;
    bool is_kept = n->recent > 0;
    t->recent[place] = n->id;
    if (old && old != n && old->recent == place + 1) { /* else it was looked up again since */
        old->recent = 0;
        node_unkeep_locked(t, old);
    }
    n->recent = place + 1;
    if (!is_kept)
        node_keep_locked(t, n);
}

struct node *node_look_up(struct node_table *t, struct node *parent, struct slice name,
                          const struct node_attr *a)
{
    LOCK_SCOPE(&t->lock);
    assert(parent->magic == NODE_MAGIC && parent->is_dir);
    struct node *n = find_name(t, parent, name);
    if (n && !n->staging && (n->wants_renewal || !node_is_version_locked(n, a))) {
        detach_locked(t, n);
        n = NULL;
    }
    if (!n)
        n = add_locked(t, parent, name, a);
    else if (n->is_dir || (a->has_owner && !n->staging))
        set_attr_locked(t, n, a);
    n->is_told_absent = false;
    node_looked_up_locked(n);
    n->refs++;
    lru_touch(t, n);
    keep_recent_locked(t, n);
    return n;
}

void node_tell_absent(struct node_table *t, struct node *parent, struct slice name)
{
    LOCK_SCOPE(&t->lock);
    struct node *n = find_name(t, parent, name);
    if (n)
        n->is_told_absent = true;
}

bool node_is_told_absent(struct node_table *t, const struct node *n)
{
    LOCK_SCOPE(&t->lock);
    return n->is_told_absent;
}

void node_detach_locked(struct node_table *t, struct node *n, bool is_unlinked)
{
    detach_locked(t, n);
    if (is_unlinked)
        set_unlinked(n);
}

void node_detach(struct node_table *t, struct node *n, bool is_unlinked)
{
    LOCK_SCOPE(&t->lock);
    node_detach_locked(t, n, is_unlinked);
}

struct node *node_attach(struct node_table *t, struct node *n)
{
    LOCK_SCOPE(&t->lock);
    struct node *there = n->is_attached || n->is_unlinked ? n : find_name(t, n->parent, name_of(n));
    if (there == n || (there && there->staging))
        return NULL;
    if (there) {
        detach_locked(t, there);
        there->is_spoilt = true;
        there->refs++;
    }
    n->is_attached = true;
    n->is_spoilt = false;
    link_name(t, n);
    if (n->kept)
        n->kept->is_attached = true;
    return there;
}

static void rename_locked(struct node_table *t, struct node *n, struct node *new_parent,
                          struct slice new_name, bool is_attached)
{
    struct node *old_parent = n->parent;
    if (n->is_attached)
        unlink_name(t, n); /* what is kept has the old name until it has the new one */
    free(n->name);
    n->name = slice_dup(new_name);
    n->name_n = new_name.n;
    count_again(n);
    n->parent = new_parent;
    new_parent->refs++;
    n->ino = node_ino(new_parent->ino, new_name);
    n->is_attached = is_attached;
    n->moved_by = request_unique();
    if (is_attached)
        link_name(t, n);
    node_changed_locked(t, n);
    old_parent->refs--;
    release_locked(t, old_parent);
}

static void move_locked(struct node_table *t, struct node *n, struct node *new_parent, struct slice new_name)
{
    struct node *there = find_name(t, new_parent, new_name);
    if (there == n)
        return;
    if (there) {
        detach_locked(t, there);
        set_unlinked(there);
    }
    rename_locked(t, n, new_parent, new_name, /* is_attached= */ true);
}

void node_move(struct node_table *t, struct node *n, struct node *new_parent, struct slice new_name)
{
    LOCK_SCOPE(&t->lock);
    move_locked(t, n, new_parent, new_name);
}

void node_move_along(struct node_table *t, struct node *n, struct node *new_parent, struct slice new_name)
{
    LOCK_SCOPE(&t->lock);
    if (n->is_attached)
        move_locked(t, n, new_parent, new_name);
    else
        rename_locked(t, n, new_parent, new_name, /* is_attached= */ false);
}

bool node_is_within_locked(const struct node *n, const struct node *dir)
{
    while (n && n != dir)
        n = n->parent;
    return n != NULL;
}

static uint64_t ino_of_path(const struct node *n)
{
    return n->parent ? node_ino(ino_of_path(n->parent), name_of(n)) : NODE_ROOT_ID;
}

/* Whatever is made under the old name would have the numbers of what was moved: to programs it would be the
 * same files, and a directory that is moved into it a loop. */
void node_renumber(struct node_table *t, struct node *dir, void (*each)(void *arg, struct node *n), void *arg)
{
    LOCK_SCOPE(&t->lock);
    for (struct node *n = t->oldest; n; n = n->lru_newer) {
        if (!node_is_within_locked(n, dir))
            continue;
        uint64_t ino = ino_of_path(n);
        if (n != dir && ino == n->ino)
            continue;
        n->ino = ino;
        node_changed_locked(t, n);
        each(arg, n);
    }
}

void node_set_attr(struct node_table *t, struct node *n, const struct node_attr *a)
{
    LOCK_SCOPE(&t->lock);
    set_attr_locked(t, n, a);
}

void node_follow(struct node_table *t, struct node *n, struct slice from, struct slice to)
{
    LOCK_SCOPE(&t->lock);
    if (!slice_eq(slice_of(n->etag, n->etag_n), from))
        return;
    set_etag(n, to);
    node_changed_locked(t, n);
}

bool node_confirm(struct node_table *t, struct node *n, const struct node_attr *a)
{
    LOCK_SCOPE(&t->lock);
    if (!n->is_attached || !node_is_version_locked(n, a))
        return false;
    if (a->has_owner && !n->staging)
        set_attr_locked(t, n, a);
    return true;
}

int node_path(struct node_table *t, struct node *n, struct buf *b)
{
    LOCK_SCOPE(&t->lock);
    size_t bytes = 0;
    for (const struct node *x = n; x->parent; x = x->parent) {
        if (x->is_lost)
            return -ESTALE;
        bytes += x->name_n + (x->parent->parent ? 1 : 0);
    }
    char *end = buf_reserve(b, bytes);
    if (!end)
        return -ENAMETOOLONG;
    end += bytes;
    for (const struct node *x = n; x->parent; x = x->parent) {
        end -= x->name_n;
        memcpy(end, x->name, x->name_n);
        if (x->parent->parent)
            *--end = '/';
    }
    buf_used(b, bytes);
    return 0;
}

void node_inos(struct node_table *t, const struct node *n, uint64_t *ret_own, uint64_t *ret_parent)
{
    LOCK_SCOPE(&t->lock);
    *ret_own = n->ino;
    *ret_parent = n->parent ? n->parent->ino : n->ino;
}

/* ---- taking over ---- */

/* Its parent may come later. */
static void resume_node(struct node_table *t, struct node_kept *c)
{
    grow(t);
    struct node *n = calloc(1, sizeof(*n));
    char *etag;
    if (!n)
        abort();
    n->magic = NODE_MAGIC;
    n->id = c->id;
    n->ino = c->ino;
    node_kept_text(c, &n->name, &etag);
    n->name_n = c->name_n;
    n->etag = etag;
    n->etag_n = c->etag_n;
    n->is_dir = c->is_dir;
    n->is_unlinked = c->is_unlinked;
    n->size_bytes = c->size_bytes;
    n->mtime_ns = c->mtime_ns;
    n->moved_by = c->moved_by;
    n->has_owner = c->has_owner;
    n->mode = c->mode;
    n->uid = c->uid;
    n->gid = c->gid;
    n->lookups = MAX(c->lookups, (uint64_t)1);
    n->kept = c;
    n->n_keepers = n->is_dir || t->keeps_all;
    count_again(n);
    t->n_nodes++;
    link_id(t, n);
    lru_add(t, n);
}

/* A directory that could not be kept: what lies in it has no name any more. */
static void resume_place(struct node_table *t, struct node *n)
{
    struct node *parent = find_id(t, n->kept->parent_id);
    bool is_attached = n->kept->is_attached && parent && parent->is_dir;
    n->is_lost = !parent || !parent->is_dir;
    n->parent = n->is_lost ? t->root : parent;
    n->parent->refs++;
    struct node *other = is_attached ? find_name(t, n->parent, name_of(n)) : NULL;
    if (other && other->kept->serial > n->kept->serial)
        is_attached = false;
    else if (other)
        detach_locked(t, other);
    n->is_attached = n->kept->is_attached = is_attached;
    if (is_attached)
        link_name(t, n);
}

void node_table_resume(struct node_table *t, void (*each)(void *arg, struct node *n), void *arg)
{
    node_kept_sweep(t->kept);
    LOCK_SCOPE(&t->lock);
    for (struct node_kept *c = NULL; (c = kept_next(t->kept, KEPT_NODE, c));)
        resume_node(t, c);
    for (struct node *n = t->oldest; n; n = n->lru_newer)
        resume_place(t, n);
    for (struct node *n = t->oldest; n; n = n->lru_newer)
        if (!n->is_dir)
            each(arg, n);
}

struct node *node_resume_lost(struct node_table *t, uint64_t id)
{
    LOCK_SCOPE(&t->lock);
    grow(t);
    struct node *n = calloc(1, sizeof(*n));
    if (!n)
        abort();
    n->magic = NODE_MAGIC;
    n->id = id;
    n->parent = t->root;
    t->root->refs++;
    n->name = slice_dup(SLICE_LIT(""));
    n->etag = slice_dup(SLICE_LIT(""));
    n->is_unlinked = n->is_lost = true;
    n->lookups = n->refs = 1;
    count_again(n);
    t->n_nodes++;
    link_id(t, n);
    lru_add(t, n);
    return n;
}

/* ---- limits and checks ---- */

size_t node_table_count(struct node_table *t)
{
    LOCK_SCOPE(&t->lock);
    return t->n_nodes;
}

size_t node_table_ids(struct node_table *t, uint64_t **ret)
{
    LOCK_SCOPE(&t->lock);
    uint64_t *ids = malloc(MAX(t->n_nodes, (size_t)1) * sizeof(*ids));
    if (!ids)
        abort();
    size_t n = 0;
    for (const struct node *x = t->newest; x; x = x->lru_older)
        ids[n++] = x->id;
    *ret = ids;
    return n;
}

struct node *node_table_oldest(struct node_table *t)
{
    LOCK_SCOPE(&t->lock);
    for (int i = 0; i < OLDEST_TRIES && t->oldest; i++) {
        struct node *n = t->oldest;
        lru_touch(t, n);
        bool idle = n->refs == 0 && n->n_passthrough == 0 && n->n_plain == 0 && !n->staging;
        if (!idle)
            continue;
        n->refs++;
        return n;
    }
    return NULL;
}

void node_table_check(struct node_table *t)
{
    LOCK_SCOPE(&t->lock);
    size_t n_listed = 0, n_attached = 0, n_named = 0;
    for (struct node *n = t->oldest; n; n = n->lru_newer) {
        assert(n->magic == NODE_MAGIC && n->parent && n->parent->magic == NODE_MAGIC);
        assert(n->lookups > 0 || n->refs > 0);
        assert(find_id(t, n->id) == n);
        assert(!n->is_attached || find_name(t, n->parent, name_of(n)) == n);
        assert(!n->lru_newer || n->lru_newer->lru_older == n);
        n_listed++;
        n_attached += n->is_attached;
    }
    for (size_t i = 0; i < t->n_places; i++)
        for (struct node *n = t->by_name[i]; n; n = n->hash_next)
            n_named++;
    assert(n_listed == t->n_nodes && n_attached == n_named);
}

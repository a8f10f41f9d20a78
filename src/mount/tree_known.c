/*
 * Knowledge of directories (contract in tree_known.h).
 *
 * A directory has a place in one of SETS sets of WAYS places, by its number, and takes the one that was used
 * longest ago. Names are kept as hashes in a set that only grows: a name that was removed, or whose hash is
 * another's, is asked for. When there are too many names, those of directories that were used longest ago go.
 *
 * Single names that are absent have a place each, by both their hashes: here a false answer would hide a
 * file, and one of 128 bits is not met.
 *
 * Invariants:
 *  1. A name is in the set, and not among the absent ones, before the node is asked to make it.
 *  2. Attributes are known only when no change was under way in the directory from before they were asked for
 * until they are noted. That is counted in lanes, by the directory's number, whether or not it has a place;
 * who shares a lane with another one is asked about more often. The serial of a lane counts what began, ended
 * or was forgotten, and never goes back.
 *  3. All sets of names together have at most NAMES_MAX hashes.
 */
#include "mount/tree_known.h"

#include "base/hash.h"
#include "base/lock.h"
#include "base/sys.h"
#include "mount/holdings.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define SETS        256
#define WAYS        8
#define LANES       4096
#define ABSENT      4096
#define NAMES_MAX   262144
#define ATTR_MS     60000 /* for how long attributes are known: as long as the kernel believes them */
#define NAMES_FIRST 64    /* slots of a set at first; it is at most half full */

struct lane {
    uint64_t serial; /* without those of `forgotten` */
    uint32_t n_changing;
};

struct place {
    uint64_t dir;  /* 0: of nobody */
    uint64_t used; /* when, by the clock */
    bool has_attr, is_whole;
    uint64_t attr_forgotten; /* as `forgotten` was when they were noted: else they are not known any more */
    struct wire_inode attr;  /* without target */
    uint64_t attr_until_ms;
    uint64_t *names; /* of a whole one; NULL: empty. 0: a free slot */
    uint32_t n_names, n_slots;
};

/* A name that is not in a directory. */
struct absent {
    uint64_t dir, hash, second_hash; /* dir 0: none */
};

struct tree_known {
    struct lock lock; /* covers all */
    uint64_t generation;
    uint64_t forgotten; /* how often the attributes of all were */
    uint64_t clock;     /* counts uses */
    uint32_t n_names;   /* of all sets */
    struct lane lanes[LANES];
    struct place places[SETS * WAYS];
    struct absent absent[ABSENT];
};

static struct lane *lane_of(struct tree_known *k, uint64_t dir)
{
    return &k->lanes[hash_mix(dir, 0) % LANES];
}

static uint64_t serial_of(const struct tree_known *k, const struct lane *l)
{
    return l->serial + k->forgotten;
}

static struct place *set_of(struct tree_known *k, uint64_t dir)
{
    return &k->places[hash_mix(dir, 0) / LANES % SETS * WAYS];
}

/* Its place, which is used now; NULL: it has none. */
static struct place *find_locked(struct tree_known *k, uint64_t dir)
{
    lock_assert_held(&k->lock);
    struct place *set = set_of(k, dir);
    for (size_t i = 0; i < WAYS; i++)
        if (set[i].dir == dir) {
            set[i].used = ++k->clock;
            return &set[i];
        }
    return NULL;
}

/* ---- sets of names ---- */

static uint64_t hash_of(struct slice name)
{
    uint64_t hash = hash_table(name);
    return hash ? hash : 1;
}

static uint64_t *slot_of(const struct place *p, uint64_t hash)
{
    uint32_t at = (uint32_t)hash & (p->n_slots - 1);
    while (p->names[at] != 0 && p->names[at] != hash)
        at = (at + 1) & (p->n_slots - 1);
    return &p->names[at];
}

static void drop_names_locked(struct tree_known *k, struct place *p)
{
    k->n_names -= p->n_names;
    holdings_give(HOLDING_NAMES, p->n_slots * sizeof(*p->names));
    free(p->names);
    p->names = NULL;
    p->n_names = p->n_slots = 0;
    p->is_whole = false;
}

static void grow(struct place *p)
{
    struct place old = *p;
    p->n_slots = old.n_slots > 0 ? 2 * old.n_slots : NAMES_FIRST;
    p->names = calloc(p->n_slots, sizeof(*p->names));
    if (!p->names)
        abort();
    holdings_take(HOLDING_NAMES, (p->n_slots - old.n_slots) * sizeof(*p->names));
    for (uint32_t i = 0; i < old.n_slots; i++)
        if (old.names[i] != 0)
            *slot_of(p, old.names[i]) = old.names[i];
    free(old.names);
}

/* Whose names were used longest ago, but for p; NULL: nobody else has any. */
static struct place *oldest_names_locked(struct tree_known *k, const struct place *p)
{
    struct place *oldest = NULL;
    for (size_t i = 0; i < SETS * WAYS; i++) {
        struct place *x = &k->places[i];
        if (x != p && x->n_names > 0 && (!oldest || x->used < oldest->used))
            oldest = x;
    }
    return oldest;
}

static void add_name_locked(struct tree_known *k, struct place *p, uint64_t hash)
{
    if (k->n_names >= NAMES_MAX) {
        struct place *oldest = oldest_names_locked(k, p);
        drop_names_locked(k, oldest ? oldest : p);
        if (!oldest)
            return;
    }
    if (2 * p->n_names >= p->n_slots)
        grow(p);
    uint64_t *slot = slot_of(p, hash);
    k->n_names += *slot == 0;
    p->n_names += *slot == 0;
    *slot = hash;
}

/* ---- absent names ---- */

static struct absent absent_of(uint64_t dir, struct slice name)
{
    return (struct absent){.dir = dir, .hash = hash_of(name), .second_hash = hash_placement(name)};
}

static struct absent *absent_place(struct tree_known *k, const struct absent *x)
{
    return &k->absent[hash_mix(x->dir, x->hash) % ABSENT];
}

static bool is_absent_locked(struct tree_known *k, const struct absent *x)
{
    const struct absent *at = absent_place(k, x);
    return at->dir == x->dir && at->hash == x->hash && at->second_hash == x->second_hash;
}

static void note_absent_locked(struct tree_known *k, uint64_t dir, struct slice name)
{
    struct absent x = absent_of(dir, name);
    *absent_place(k, &x) = x;
}

static void forget_absent_locked(struct tree_known *k, uint64_t dir, struct slice name)
{
    struct absent x = absent_of(dir, name);
    if (is_absent_locked(k, &x))
        absent_place(k, &x)->dir = 0;
}

/* ---- places ---- */

static void clear_locked(struct tree_known *k, struct place *p)
{
    drop_names_locked(k, p);
    p->dir = 0;
    p->has_attr = false;
}

/* A place that is the directory's from here on. */
static struct place *take_place_locked(struct tree_known *k, uint64_t dir)
{
    struct place *p = find_locked(k, dir);
    if (p)
        return p;
    struct place *set = set_of(k, dir);
    p = &set[0];
    for (size_t i = 1; i < WAYS && p->dir != 0; i++)
        if (set[i].dir == 0 || set[i].used < p->used)
            p = &set[i];
    clear_locked(k, p);
    p->dir = dir;
    p->used = ++k->clock;
    return p;
}

struct tree_known *tree_known_new(void)
{
    struct tree_known *k = calloc(1, sizeof(*k));
    if (!k)
        abort();
    lock_init(&k->lock, LOCK_LEAF);
    return k;
}

void tree_known_free(struct tree_known *k)
{
    if (!k)
        return;
    tree_known_forget(k);
    lock_fini(&k->lock);
    free(k);
}

void tree_known_forget(struct tree_known *k)
{
    LOCK_SCOPE(&k->lock);
    k->generation++;
    k->forgotten++;
    for (size_t i = 0; i < SETS * WAYS; i++)
        clear_locked(k, &k->places[i]);
    memset(k->absent, 0, sizeof(k->absent));
}

/* ---- changes ---- */

void tree_known_begin(struct tree_known *k, uint64_t dir, struct slice name, struct tree_change *ret)
{
    LOCK_SCOPE(&k->lock);
    struct lane *l = lane_of(k, dir);
    l->n_changing++;
    l->serial++;
    *ret = (struct tree_change){.dir = dir, .serial = serial_of(k, l)};
    struct place *p = find_locked(k, dir);
    if (p && p->is_whole && name.n > 0)
        add_name_locked(k, p, hash_of(name));
    if (name.n > 0)
        forget_absent_locked(k, dir, name);
}

static bool has_attr_locked(const struct tree_known *k, const struct place *p)
{
    return p->has_attr && p->attr_forgotten == k->forgotten;
}

/* Whether nothing else changed in its lane since it began. */
static bool is_alone_locked(struct tree_known *k, const struct tree_change *c)
{
    const struct lane *l = lane_of(k, c->dir);
    return l->n_changing == 1 && serial_of(k, l) == c->serial;
}

/* changed_ns: the directory's times from now on; 0: not known. */
static void end_locked(struct tree_known *k, const struct tree_change *c, int64_t changed_ns, bool more_dirs)
{
    struct lane *l = lane_of(k, c->dir);
    l->n_changing--;
    l->serial++;
    struct place *p = find_locked(k, c->dir);
    if (!p)
        return;
    p->has_attr = has_attr_locked(k, p) && changed_ns != 0;
    if (p->has_attr) {
        p->attr.mtime_ns = p->attr.ctime_ns = changed_ns;
        p->attr.links += more_dirs;
    }
}

void tree_known_end(struct tree_known *k, const struct tree_change *c, const struct wire_inode *made)
{
    if (c->dir == 0)
        return;
    LOCK_SCOPE(&k->lock);
    bool knows = made && is_alone_locked(k, c);
    end_locked(k, c, knows ? made->birth_ns : 0, knows && S_ISDIR(made->mode));
}

void tree_known_end_gone(struct tree_known *k, const struct tree_change *c, struct slice name,
                         int64_t changed_ns)
{
    LOCK_SCOPE(&k->lock);
    bool alone = is_alone_locked(k, c);
    end_locked(k, c, alone ? changed_ns : 0, /* more_dirs= */ false);
    if (alone)
        note_absent_locked(k, c->dir, name);
}

void tree_known_end_moved(struct tree_known *k, const struct tree_change *from, struct slice name,
                          const struct tree_change *to, int64_t changed_ns)
{
    LOCK_SCOPE(&k->lock);
    const struct lane *l = lane_of(k, from->dir);
    bool alone = is_alone_locked(k, from), to_alone = is_alone_locked(k, to);
    if (l == lane_of(k, to->dir)) /* the second began within the first */
        alone = to_alone =
            l->n_changing == 2 && to->serial == from->serial + 1 && serial_of(k, l) == to->serial;
    end_locked(k, to, to_alone ? changed_ns : 0, /* more_dirs= */ false);
    end_locked(k, from, alone ? changed_ns : 0, /* more_dirs= */ false);
    if (alone)
        note_absent_locked(k, from->dir, name);
}

void tree_known_forget_attrs(struct tree_known *k)
{
    LOCK_SCOPE(&k->lock);
    k->generation++;
    k->forgotten++;
}

/* ---- what the node said ---- */

uint64_t tree_known_serial(struct tree_known *k, uint64_t dir)
{
    LOCK_SCOPE(&k->lock);
    return dir == 0 ? k->generation : serial_of(k, lane_of(k, dir));
}

static void set_attr_locked(const struct tree_known *k, struct place *p, const struct wire_inode *x)
{
    p->attr = *x;
    p->attr.target = SLICE_NULL; /* it lies in the caller's buffer */
    p->has_attr = true;
    p->attr_forgotten = k->forgotten;
    p->attr_until_ms = sys_mono_ms() + ATTR_MS;
}

void tree_known_note(struct tree_known *k, const struct wire_inode *x, uint64_t serial)
{
    LOCK_SCOPE(&k->lock);
    const struct lane *l = lane_of(k, x->ino);
    if (serial_of(k, l) == serial && l->n_changing == 0)
        set_attr_locked(k, take_place_locked(k, x->ino), x);
}

void tree_known_note_absent(struct tree_known *k, uint64_t dir, struct slice name, uint64_t serial)
{
    LOCK_SCOPE(&k->lock);
    const struct lane *l = lane_of(k, dir);
    if (serial_of(k, l) == serial && l->n_changing == 0)
        note_absent_locked(k, dir, name);
}

void tree_known_made(struct tree_known *k, const struct wire_inode *x, uint64_t serial)
{
    LOCK_SCOPE(&k->lock);
    if (k->generation != serial)
        return;
    struct place *p = take_place_locked(k, x->ino);
    drop_names_locked(k, p);
    p->is_whole = true;
    if (lane_of(k, x->ino)->n_changing == 0)
        set_attr_locked(k, p, x);
}

/* ---- what is known ---- */

bool tree_known_attr(struct tree_known *k, uint64_t dir, struct wire_inode *ret, double *ret_left_s)
{
    LOCK_SCOPE(&k->lock);
    const struct place *p = find_locked(k, dir);
    uint64_t now_ms = sys_mono_ms();
    bool known = p && has_attr_locked(k, p) && lane_of(k, dir)->n_changing == 0 && now_ms < p->attr_until_ms;
    if (!known)
        return false;
    *ret = p->attr;
    *ret_left_s = (double)(p->attr_until_ms - now_ms) / 1000;
    return true;
}

bool tree_known_lacks(struct tree_known *k, uint64_t dir, struct slice name)
{
    LOCK_SCOPE(&k->lock);
    const struct absent x = absent_of(dir, name);
    const struct place *p = find_locked(k, dir);
    if (is_absent_locked(k, &x))
        return true;
    if (!p || !p->is_whole)
        return false;
    return p->n_names == 0 || *slot_of(p, hash_of(name)) == 0;
}

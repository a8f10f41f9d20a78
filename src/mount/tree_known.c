/*
 * Knowledge of directories (contract in tree_known.h).
 *
 * A directory has one place in a table, by its number, and takes it from another one. Names are kept as
 * hashes in a set that only grows: a name that was removed, or whose hash is another's, is asked for.
 *
 * Invariants:
 *  1. A name is in the set before the node is asked to make it.
 *  2. Attributes are known only when no change was under way, at the directory's place, from before they were
 * asked for until they are noted. The serial of a place counts what began, ended or was forgotten there, and
 * never goes back, whoever has the place.
 *  3. All sets together have at most NAMES_MAX hashes.
 */
#include "mount/tree_known.h"

#include "base/hash.h"
#include "base/lock.h"
#include "base/sys.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define PLACES      1024
#define NAMES_MAX   262144
#define ATTR_MS     60000 /* for how long attributes are known: as long as the kernel believes them */
#define NAMES_FIRST 64    /* slots of a set at first; it is at most half full */

struct place {
    uint64_t dir; /* 0: of nobody */
    uint64_t serial;
    uint32_t n_changing;
    bool has_attr, is_whole;
    struct wire_inode attr; /* without target */
    uint64_t attr_until_ms;
    uint64_t *names; /* of a whole one; NULL: empty. 0: a free slot */
    uint32_t n_names, n_slots;
};

struct tree_known {
    struct lock lock; /* covers all */
    uint64_t generation;
    uint32_t n_names; /* of all sets */
    struct place places[PLACES];
};

static struct place *place_of(struct tree_known *k, uint64_t dir)
{
    return &k->places[hash_mix(dir, 0) % PLACES];
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
    for (uint32_t i = 0; i < old.n_slots; i++)
        if (old.names[i] != 0)
            *slot_of(p, old.names[i]) = old.names[i];
    free(old.names);
}

static void add_name_locked(struct tree_known *k, struct place *p, uint64_t hash)
{
    if (k->n_names >= NAMES_MAX) {
        drop_names_locked(k, p);
        return;
    }
    if (2 * p->n_names >= p->n_slots)
        grow(p);
    uint64_t *slot = slot_of(p, hash);
    k->n_names += *slot == 0;
    p->n_names += *slot == 0;
    *slot = hash;
}

/* ---- places ---- */

static void clear_locked(struct tree_known *k, struct place *p)
{
    drop_names_locked(k, p);
    p->dir = 0;
    p->has_attr = false;
    p->serial++;
}

/* The place is the directory's from here on; false: another one is being changed in it. */
static bool take_place_locked(struct tree_known *k, struct place *p, uint64_t dir)
{
    if (p->dir == dir)
        return true;
    if (p->n_changing > 0)
        return false;
    drop_names_locked(k, p);
    p->dir = dir;
    p->has_attr = false;
    return true;
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
    for (size_t i = 0; i < PLACES; i++)
        clear_locked(k, &k->places[i]);
}

/* ---- changes ---- */

void tree_known_begin(struct tree_known *k, uint64_t dir, struct slice name, struct tree_change *ret)
{
    LOCK_SCOPE(&k->lock);
    struct place *p = place_of(k, dir);
    p->n_changing++;
    p->serial++;
    *ret = (struct tree_change){.dir = dir, .serial = p->serial};
    if (p->dir == dir && p->is_whole && name.n > 0)
        add_name_locked(k, p, hash_of(name));
}

void tree_known_end(struct tree_known *k, const struct tree_change *c, const struct wire_inode *made)
{
    if (c->dir == 0)
        return;
    LOCK_SCOPE(&k->lock);
    struct place *p = place_of(k, c->dir);
    bool alone = --p->n_changing == 0 && p->serial == c->serial;
    p->serial++;
    if (p->dir != c->dir)
        return;
    p->has_attr = p->has_attr && made && alone;
    if (!p->has_attr)
        return;
    p->attr.mtime_ns = p->attr.ctime_ns = made->birth_ns;
    p->attr.links += S_ISDIR(made->mode);
}

void tree_known_forget_attrs(struct tree_known *k)
{
    LOCK_SCOPE(&k->lock);
    k->generation++;
    for (size_t i = 0; i < PLACES; i++) {
        k->places[i].has_attr = false;
        k->places[i].serial++;
    }
}

/* ---- what the node said ---- */

uint64_t tree_known_serial(struct tree_known *k, uint64_t dir)
{
    LOCK_SCOPE(&k->lock);
    return dir == 0 ? k->generation : place_of(k, dir)->serial;
}

static void set_attr(struct place *p, const struct wire_inode *x)
{
    p->attr = *x;
    p->attr.target = SLICE_NULL; /* it lies in the caller's buffer */
    p->has_attr = true;
    p->attr_until_ms = sys_mono_ms() + ATTR_MS;
}

void tree_known_note(struct tree_known *k, const struct wire_inode *x, uint64_t serial)
{
    LOCK_SCOPE(&k->lock);
    struct place *p = place_of(k, x->ino);
    if (p->serial == serial && p->n_changing == 0 && take_place_locked(k, p, x->ino))
        set_attr(p, x);
}

void tree_known_made(struct tree_known *k, const struct wire_inode *x, uint64_t serial)
{
    LOCK_SCOPE(&k->lock);
    struct place *p = place_of(k, x->ino);
    if (k->generation != serial || !take_place_locked(k, p, x->ino))
        return;
    drop_names_locked(k, p);
    p->is_whole = true;
    if (p->n_changing == 0)
        set_attr(p, x);
}

/* ---- what is known ---- */

bool tree_known_attr(struct tree_known *k, uint64_t dir, struct wire_inode *ret)
{
    LOCK_SCOPE(&k->lock);
    const struct place *p = place_of(k, dir);
    bool known = p->dir == dir && p->has_attr && p->n_changing == 0 && sys_mono_ms() < p->attr_until_ms;
    if (known)
        *ret = p->attr;
    return known;
}

bool tree_known_lacks(struct tree_known *k, uint64_t dir, struct slice name)
{
    LOCK_SCOPE(&k->lock);
    const struct place *p = place_of(k, dir);
    if (p->dir != dir || !p->is_whole)
        return false;
    return p->n_names == 0 || *slot_of(p, hash_of(name)) == 0;
}

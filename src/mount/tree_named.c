/*
 * Names of inodes (contract in tree_named.h).
 *
 * Each inode has one place, by its number, and takes it from whoever had it. Places are found by a name only
 * when that is taken away or changed: then all directories are looked through, 64 KiB.
 *
 * Failure modes: a name of more than NAME_BYTES - 1 bytes is kept, and told, without its end.
 */
#include "mount/tree_named.h"

#include "base/hash.h"
#include "base/lock.h"

#include <stdlib.h>
#include <string.h>

#define PLACES     8192
#define NAME_BYTES 48
#define DEPTH_MAX  64
#define ABOVE      ".../"

struct tree_named {
    struct lock lock; /* covers the rest */
    uint64_t dirs[PLACES];
    struct named {
        uint64_t ino; /* 0: of nobody */
        uint64_t name_hash;
        char name[NAME_BYTES];
    } names[PLACES];
};

struct tree_named *tree_named_new(void)
{
    struct tree_named *t = calloc(1, sizeof(*t));
    if (!t)
        abort();
    lock_init(&t->lock, LOCK_LEAF);
    return t;
}

void tree_named_free(struct tree_named *t)
{
    if (!t)
        return;
    lock_fini(&t->lock);
    free(t);
}

static size_t place_of(uint64_t ino)
{
    return hash_mix(ino, 0) % PLACES;
}

static void set_locked(struct tree_named *t, size_t at, uint64_t dir, struct slice name)
{
    size_t n = MIN(name.n, (size_t)NAME_BYTES - 1);
    t->dirs[at] = dir;
    t->names[at].name_hash = hash_table(name);
    memcpy(t->names[at].name, name.p, n);
    t->names[at].name[n] = '\0';
}

static void clear_locked(struct tree_named *t, size_t at)
{
    t->names[at].ino = t->dirs[at] = 0;
}

/* PLACES: nobody is known to be called so. */
static size_t find_locked(const struct tree_named *t, uint64_t dir, struct slice name)
{
    uint64_t hash = hash_table(name);
    size_t i = 0;
    while (i < PLACES && !(t->dirs[i] == dir && t->names[i].name_hash == hash))
        i++;
    return i;
}

void tree_named_note(struct tree_named *t, uint64_t ino, uint64_t dir, struct slice name)
{
    LOCK_SCOPE(&t->lock);
    size_t at = place_of(ino);
    t->names[at].ino = ino;
    set_locked(t, at, dir, name);
}

void tree_named_gone(struct tree_named *t, uint64_t dir, struct slice name)
{
    LOCK_SCOPE(&t->lock);
    size_t at = find_locked(t, dir, name);
    if (at < PLACES)
        clear_locked(t, at);
}

void tree_named_moved(struct tree_named *t, uint64_t dir, struct slice name, uint64_t to_dir,
                      struct slice to_name, bool exchange)
{
    LOCK_SCOPE(&t->lock);
    size_t from = find_locked(t, dir, name), to = find_locked(t, to_dir, to_name);
    if (to < PLACES && exchange)
        set_locked(t, to, dir, name);
    else if (to < PLACES)
        clear_locked(t, to);
    if (from < PLACES)
        set_locked(t, from, to_dir, to_name);
}

/* Puts text before what is there, from *at on; as much of its end as finds room. */
static void prepend(char *p, size_t *at, const char *text)
{
    size_t n = strlen(text), room = MIN(n, *at);
    *at -= room;
    memcpy(p + *at, text + n - room, room);
}

bool tree_named_path(struct tree_named *t, uint64_t root, uint64_t ino, char *ret, size_t n)
{
    assert(n > 0);
    LOCK_SCOPE(&t->lock);
    size_t at = n - 1;
    char *p = malloc(n);
    if (!p)
        abort();
    p[at] = '\0';
    bool is_first = true;
    for (int depth = 0; ino != root && depth < DEPTH_MAX; depth++) {
        const struct named *x = &t->names[place_of(ino)];
        bool is_known = x->ino == ino;
        if (!is_known && is_first)
            break;
        if (!is_first)
            prepend(p, &at, is_known ? "/" : ABOVE);
        if (!is_known)
            break;
        prepend(p, &at, x->name);
        is_first = false;
        ino = t->dirs[place_of(ino)];
    }
    bool is_named = !is_first || ino == root;
    if (is_named)
        memmove(ret, p + at, n - at);
    free(p);
    return is_named;
}

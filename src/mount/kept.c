/*
 * Memory that outlives a process (contract in kept.h). In the shared mapping: struct shared, then the cells.
 * Which cells are free is each process's own list, found by looking at their kinds.
 *
 * Invariant: cells from `used` on were never taken; their pages take no memory.
 */
#include "mount/kept.h"

#include "base/lock.h"

#include <string.h>
#include <sys/mman.h>

#define KEPT_MAGIC 0x6b657074u
#define HELD_BACK  4096 /* cells for those who cannot be refused */

struct cell {
    _Atomic uint32_t kind;
    uint32_t next_free; /* index + 1; 0: the last */
    _Alignas(16) uint8_t bytes[KEPT_CELL_BYTES];
};

struct shared {
    struct kept_facts facts;
    _Atomic uint32_t used;
    struct cell cells[KEPT_CELLS_MAX];
};

struct kept {
    uint32_t magic;
    struct shared *shared;
    struct lock lock; /* covers what follows */
    uint32_t free_head;
};

int kept_new(struct kept **ret, struct err *e)
{
    void *p = mmap(NULL, sizeof(struct shared), PROT_READ | PROT_WRITE,
                   MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return err_errno(e, -errno, "shared memory of the mount");
    struct kept *k = calloc(1, sizeof(*k));
    if (!k)
        abort();
    k->magic = KEPT_MAGIC;
    k->shared = p;
    lock_init(&k->lock, LOCK_LEAF);
    *ret = k;
    return 0;
}

void kept_begin(struct kept *k)
{
    assert(k->magic == KEPT_MAGIC);
    LOCK_SCOPE(&k->lock);
    k->free_head = 0;
    for (uint32_t i = 0; i < atomic_load(&k->shared->used); i++) {
        struct cell *c = &k->shared->cells[i];
        if (atomic_load(&c->kind) != KEPT_FREE)
            continue;
        c->next_free = k->free_head;
        k->free_head = i + 1;
    }
}

void kept_free(struct kept *k)
{
    if (!k)
        return;
    assert(k->magic == KEPT_MAGIC);
    (void)munmap(k->shared, sizeof(*k->shared));
    lock_fini(&k->lock);
    k->magic = 0;
    free(k);
}

struct kept_facts *kept_facts(struct kept *k)
{
    assert(k && k->magic == KEPT_MAGIC);
    return &k->shared->facts;
}

bool kept_has_room(struct kept *k)
{
    assert(k && k->magic == KEPT_MAGIC);
    LOCK_SCOPE(&k->lock);
    return k->free_head != 0 || atomic_load(&k->shared->used) < KEPT_CELLS_MAX - HELD_BACK;
}

void *kept_take(struct kept *k, enum kept_kind kind)
{
    assert(k && k->magic == KEPT_MAGIC && kind != KEPT_FREE);
    struct shared *s = k->shared;
    LOCK_SCOPE(&k->lock);
    struct cell *c;
    if (k->free_head != 0) {
        c = &s->cells[k->free_head - 1];
        k->free_head = c->next_free;
    } else if (atomic_load(&s->used) < KEPT_CELLS_MAX) {
        c = &s->cells[atomic_fetch_add(&s->used, 1)];
    } else {
        return NULL;
    }
    memset(c->bytes, 0, sizeof(c->bytes));
    atomic_store(&c->kind, kind);
    return c->bytes;
}

static struct cell *cell_of(struct kept *k, const void *p)
{
    uintptr_t first = (uintptr_t)k->shared->cells[0].bytes, at = (uintptr_t)p;
    assert(at >= first && (at - first) % sizeof(struct cell) == 0);
    size_t i = (at - first) / sizeof(struct cell);
    assert(i < atomic_load(&k->shared->used));
    return &k->shared->cells[i];
}

void kept_give(struct kept *k, void *cell)
{
    assert(k && k->magic == KEPT_MAGIC);
    struct cell *c = cell_of(k, cell);
    LOCK_SCOPE(&k->lock);
    assert(atomic_load(&c->kind) != KEPT_FREE);
    atomic_store(&c->kind, KEPT_FREE);
    c->next_free = k->free_head;
    k->free_head = (uint32_t)(c - k->shared->cells) + 1;
}

void *kept_next(struct kept *k, enum kept_kind kind, const void *after)
{
    assert(k && k->magic == KEPT_MAGIC);
    struct shared *s = k->shared;
    uint32_t n = atomic_load(&s->used);
    for (size_t i = after ? (size_t)(cell_of(k, after) - s->cells) + 1 : 0; i < n; i++)
        if (atomic_load(&s->cells[i].kind) == kind)
            return s->cells[i].bytes;
    return NULL;
}

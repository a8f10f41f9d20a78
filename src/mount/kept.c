/*
 * Memory that outlives a process (contract in kept.h). In the shared mapping: struct shared, then the cells.
 * Which cells are free is each process's own list, found by looking at their kinds.
 *
 * Invariant: cells from `used` on were never taken; their pages take no memory.
 */
#include "mount/kept.h"

#include "base/lock.h"
#include "base/sys.h"
#include "mount/holdings.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define KEPT_MAGIC 0x6b657074u
#define HELD_BACK  4096                 /* cells for those who cannot be refused */
#define PLENTY     (KEPT_CELLS_MAX / 4) /* cells for those without which a program would be refused */

/* Between what a kernel gives to a program and to its mappings, whose places differ in each process: there a
 * successor finds the same addresses free, whichever program it is. Where an address space is smaller, or
 * the place is taken, the kernel chooses, and one in some two thousand finds them taken. */
#define KEPT_PLACE ((void *)(UINT64_C(1) << 45))

struct cell {
    _Atomic uint32_t kind;
    uint32_t next_free; /* index + 1; 0: the last */
    _Alignas(16) uint8_t bytes[KEPT_CELL_BYTES];
};

struct shared {
    struct kept_facts facts;
    _Atomic uint32_t used;
    int held[KEPT_SLOTS_MAX];
    struct kept_told told;
    struct cell cells[KEPT_CELLS_MAX];
};

struct kept {
    uint32_t magic;
    struct shared *shared;
    int fd;
    struct lock lock; /* covers what follows */
    uint32_t free_head, n_free;
};

static struct kept *wrap(int fd, void *p)
{
    struct kept *k = calloc(1, sizeof(*k));
    if (!k)
        abort();
    k->magic = KEPT_MAGIC;
    k->shared = p;
    k->fd = fd;
    lock_init(&k->lock, LOCK_LEAF);
    return k;
}

int kept_new(struct kept **ret, struct err *e)
{
    _cleanup_close_ int fd = memfd_create("forebay-mount", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, sizeof(struct shared)) < 0)
        return err_errno(e, -errno, "shared memory of the mount");
    void *p =
        mmap(KEPT_PLACE, sizeof(struct shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (p == MAP_FAILED)
        return err_errno(e, -errno, "shared memory of the mount");
    *ret = wrap(TAKE_FD(fd), p);
    (*ret)->shared->facts.layout = KEPT_LAYOUT;
    return 0;
}

int kept_open(int passed, void *at, struct kept **ret, struct err *e)
{
    _cleanup_close_ int fd = passed;
    uint32_t layout = 0;
    ssize_t n = sys->pread(fd, &layout, sizeof(layout), offsetof(struct shared, facts.layout));
    if (n != (ssize_t)sizeof(layout))
        return err_errno(e, n < 0 ? (int)n : -EINVAL, "shared memory of the mount");
    if (layout != KEPT_LAYOUT)
        return err_set(e, -ENOTSUP,
                       "the mount was begun by a version that keeps other things (%u, not %u): "
                       "to have this one, unmount it and mount it again",
                       layout, KEPT_LAYOUT);
    void *p = mmap(at, sizeof(struct shared), PROT_READ | PROT_WRITE,
                   MAP_SHARED | MAP_NORESERVE | MAP_FIXED_NOREPLACE, fd, 0);
    if (p == MAP_FAILED)
        return err_errno(e, -errno, "shared memory of the mount");
    if (p != at) { /* a kernel that does not know the flag */
        (void)munmap(p, sizeof(struct shared));
        return err_set(e, -EEXIST, "shared memory of the mount: its address is taken");
    }
    *ret = wrap(TAKE_FD(fd), p);
    return 0;
}

int kept_fd(const struct kept *k)
{
    return k->fd;
}

void *kept_address(const struct kept *k)
{
    return k->shared;
}

int *kept_held(struct kept *k)
{
    assert(k && k->magic == KEPT_MAGIC);
    return k->shared->held;
}

void kept_begin(struct kept *k)
{
    assert(k->magic == KEPT_MAGIC);
    LOCK_SCOPE(&k->lock);
    k->free_head = k->n_free = 0;
    holdings_take(HOLDING_CELLS, atomic_load(&k->shared->used) * sizeof(struct cell));
    for (uint32_t i = 0; i < atomic_load(&k->shared->used); i++) {
        struct cell *c = &k->shared->cells[i];
        if (atomic_load(&c->kind) != KEPT_FREE)
            continue;
        c->next_free = k->free_head;
        k->free_head = i + 1;
        k->n_free++;
    }
}

void kept_free(struct kept *k)
{
    if (!k)
        return;
    assert(k->magic == KEPT_MAGIC);
    (void)munmap(k->shared, sizeof(*k->shared));
    macro_close(&k->fd);
    lock_fini(&k->lock);
    k->magic = 0;
    free(k);
}

struct kept_facts *kept_facts(struct kept *k)
{
    assert(k && k->magic == KEPT_MAGIC);
    return &k->shared->facts;
}

struct kept_told *kept_told(struct kept *k)
{
    assert(k && k->magic == KEPT_MAGIC);
    return &k->shared->told;
}

static uint32_t n_left(struct kept *k)
{
    assert(k && k->magic == KEPT_MAGIC);
    LOCK_SCOPE(&k->lock);
    return k->n_free + (KEPT_CELLS_MAX - atomic_load(&k->shared->used));
}

bool kept_has_room(struct kept *k)
{
    return n_left(k) > HELD_BACK;
}

static bool has_free(struct kept *k)
{
    LOCK_SCOPE(&k->lock);
    return k->n_free > 0;
}

bool kept_has_plenty(struct kept *k)
{
    return n_left(k) > PLENTY && (has_free(k) || holdings_may(sizeof(struct cell)));
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
        k->n_free--;
    } else if (atomic_load(&s->used) < KEPT_CELLS_MAX) {
        c = &s->cells[atomic_fetch_add(&s->used, 1)];
        holdings_take(HOLDING_CELLS, sizeof(*c)); /* for good: its page stays */
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
    k->n_free++;
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

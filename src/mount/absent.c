/* Names that are not there (contract in absent.h). */
#include "mount/absent.h"

#include "base/lock.h"

#include <stdlib.h>
#include <string.h>

struct absent_name {
    uint64_t parent_id;
    char *text;
    size_t n;
};

struct absent {
    struct lock lock; /* covers the rest */
    uint64_t n;       /* noted since the last take, of which the last are in: */
    struct absent_name names[ABSENT_MAX];
};

struct absent *absent_new(void)
{
    struct absent *a = calloc(1, sizeof(*a));
    if (!a)
        abort();
    lock_init(&a->lock, LOCK_LEAF);
    return a;
}

void absent_free(struct absent *a)
{
    if (!a)
        return;
    for (size_t i = 0; i < ABSENT_MAX; i++)
        free(a->names[i].text);
    lock_fini(&a->lock);
    free(a);
}

/* Programs ask again and again for the same one, on a kernel that forgets it between. */
static bool is_last_locked(const struct absent *a, uint64_t parent_id, struct slice name)
{
    const struct absent_name *x = &a->names[(a->n - 1) % ABSENT_MAX];
    return a->n > 0 && x->parent_id == parent_id && slice_eq(slice_of(x->text, x->n), name);
}

void absent_note(struct absent *a, uint64_t parent_id, struct slice name)
{
    LOCK_SCOPE(&a->lock);
    if (is_last_locked(a, parent_id, name))
        return;
    struct absent_name *x = &a->names[a->n++ % ABSENT_MAX];
    free(x->text);
    *x = (struct absent_name){.parent_id = parent_id, .text = slice_dup(name), .n = name.n};
}

bool absent_take(struct absent *a, void (*each)(void *arg, uint64_t parent_id, struct slice name), void *arg)
{
    struct absent_name names[ABSENT_MAX];
    lock_take(&a->lock);
    memcpy(names, a->names, sizeof(names));
    memset(a->names, 0, sizeof(a->names));
    bool is_all = a->n <= ABSENT_MAX;
    a->n = 0;
    lock_drop(&a->lock);
    for (size_t i = 0; i < ABSENT_MAX; i++) {
        if (names[i].text)
            each(arg, names[i].parent_id, slice_of(names[i].text, names[i].n));
        free(names[i].text);
    }
    return is_all;
}

/* Names that are not there (contract in absent.h). */
#include "mount/absent.h"

#include "base/lock.h"
#include "base/macro.h"

#include <stdlib.h>
#include <string.h>

struct absent_name {
    uint64_t parent_id;
    char *text;
    size_t n;
    uint64_t until_ms;
};

struct absent {
    struct lock lock;       /* covers the rest */
    uint64_t lost_until_ms; /* when none of those is believed any more that others took the places of */
    uint64_t n;             /* noted since the last take, of which the last are in: */
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

/* Programs ask again and again for the same one, on a kernel that forgets it between. NULL: it is another. */
static struct absent_name *last_locked(struct absent *a, uint64_t parent_id, struct slice name)
{
    struct absent_name *x = a->n > 0 ? &a->names[(a->n - 1) % ABSENT_MAX] : NULL;
    return x && x->parent_id == parent_id && slice_eq(slice_of(x->text, x->n), name) ? x : NULL;
}

void absent_note(struct absent *a, uint64_t parent_id, struct slice name, uint64_t until_ms)
{
    LOCK_SCOPE(&a->lock);
    struct absent_name *x = last_locked(a, parent_id, name);
    if (x) {
        x->until_ms = MAX(x->until_ms, until_ms);
        return;
    }
    x = &a->names[a->n++ % ABSENT_MAX];
    a->lost_until_ms = MAX(a->lost_until_ms, x->until_ms); /* 0 of nobody */
    free(x->text);
    *x = (struct absent_name){
        .parent_id = parent_id, .text = slice_dup(name), .n = name.n, .until_ms = until_ms};
}

bool absent_take(struct absent *a, uint64_t now_ms,
                 void (*each)(void *arg, uint64_t parent_id, struct slice name), void *arg)
{
    struct absent_name names[ABSENT_MAX];
    lock_take(&a->lock);
    memcpy(names, a->names, sizeof(names));
    memset(a->names, 0, sizeof(a->names));
    bool is_all = now_ms >= a->lost_until_ms;
    a->n = a->lost_until_ms = 0;
    lock_drop(&a->lock);
    for (size_t i = 0; i < ABSENT_MAX; i++) {
        if (names[i].text)
            each(arg, names[i].parent_id, slice_of(names[i].text, names[i].n));
        free(names[i].text);
    }
    return is_all;
}

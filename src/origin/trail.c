/*
 * Names of the buckets by whose requests a bucket is asked.
 *
 * Invariants: at most TRAIL_MAX names, each once; what is sent has no other characters than those of our own
 * names, whatever came.
 *
 * Failure modes: none. Of a circle of more than TRAIL_MAX buckets nothing is seen.
 */
#include "origin/trail.h"

#include "base/sys.h"
#include "base/text.h"

#include <ctype.h>

#define START "forebay-"

void trail_init(struct trail *t)
{
    uint8_t random[8];
    *t = (struct trail){.own = START};
    sys->random(random, sizeof(random));
    text_hex(random, sizeof(random), t->own + strlen(START));
    lock_init(&t->lock, LOCK_LEAF);
}

void trail_fini(struct trail *t)
{
    lock_fini(&t->lock);
}

static bool is_name(struct slice s)
{
    if (s.n != TRAIL_NAME_SIZE - 1 || !slice_starts(s, SLICE_LIT(START)))
        return false;
    for (size_t i = strlen(START); i < s.n; i++)
        if (!isxdigit((unsigned char)s.p[i]))
            return false;
    return true;
}

/* The next name of our form; parameters, which others may have added, are not looked at. */
static bool next_name(struct slice *value, struct slice *ret)
{
    while (value->n > 0) {
        struct slice item = slice_split(value, ',');
        *ret = slice_trim(slice_split(&item, ';'));
        if (is_name(*ret))
            return true;
    }
    return false;
}

bool trail_has(struct slice value, const char *name)
{
    struct slice one;
    while (next_name(&value, &one))
        if (slice_eq_str(one, name))
            return true;
    return false;
}

/* Where the name is, else where there is room, else where that is which was seen last longest ago. */
static struct trail_name *place_locked(struct trail *t, struct slice name)
{
    struct trail_name *oldest = &t->names[0];
    for (size_t i = 0; i < t->n; i++) {
        if (slice_eq_str(name, t->names[i].name))
            return &t->names[i];
        if (t->names[i].seen_ms < oldest->seen_ms)
            oldest = &t->names[i];
    }
    return t->n < TRAIL_MAX ? &t->names[t->n++] : oldest;
}

void trail_note(struct trail *t, struct slice value, uint64_t now_ms)
{
    struct slice one;
    LOCK_SCOPE(&t->lock);
    while (next_name(&value, &one)) {
        struct trail_name *x = place_locked(t, one);
        memcpy(x->name, one.p, one.n);
        x->name[one.n] = '\0';
        x->seen_ms = now_ms;
    }
}

void trail_tell(struct trail *t, uint64_t now_ms, struct buf *ret)
{
    LOCK_SCOPE(&t->lock);
    for (size_t i = 0; i < t->n; i++)
        if (now_ms < t->names[i].seen_ms + TRAIL_MS && buf_printf(ret, "%s, ", t->names[i].name) < 0)
            break;
    (void)buf_str(ret, t->own);
}

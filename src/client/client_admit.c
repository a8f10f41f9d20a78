/*
 * What is kept open and what is not (contract in client_admit.h).
 *
 * A place of the table has the last two uses of one file, as the low 32 bits of their times; how long ago
 * they were is computed from those. One that is older than 2^32 uses may be taken for younger, which lets one
 * file in too early.
 */
#include "client/client_admit.h"

#include "base/hash.h"
#include "base/macro.h"

#include <stdlib.h>
#include <string.h>

#define PLACES_MIN      64
#define PLACES_PER_FILE 4
#define WAYS            4 /* places in which one file may be */
#define STAY            8 /* one in so many takes the place of another that may still count */

struct seen {
    uint32_t tag;          /* of the key; 0: nothing */
    uint32_t last, before; /* the same: used once */
};

struct client_admit {
    uint64_t n; /* a power of two */
    struct seen places[];
};

struct client_admit *client_admit_new(uint32_t max)
{
    uint64_t n = PLACES_MIN;
    while (n < (uint64_t)max * PLACES_PER_FILE)
        n *= 2;
    struct client_admit *a = calloc(1, sizeof(*a) + n * sizeof(a->places[0]));
    if (!a)
        abort();
    a->n = n;
    return a;
}

void client_admit_free(struct client_admit *a)
{
    free(a);
}

void client_admit_forget(struct client_admit *a)
{
    memset(a->places, 0, a->n * sizeof(a->places[0]));
}

static uint32_t tag_of(uint64_t key)
{
    return (uint32_t)(key >> 32) | 1;
}

static uint32_t age_of(uint64_t now, uint32_t at)
{
    return (uint32_t)now - at;
}

static struct seen *places_of(struct client_admit *a, uint64_t key)
{
    return &a->places[key % (a->n / WAYS) * WAYS];
}

static struct seen *find(struct client_admit *a, uint64_t key)
{
    struct seen *s = places_of(a, key);
    for (int i = 0; i < WAYS; i++)
        if (s[i].tag == tag_of(key))
            return &s[i];
    return NULL;
}

/* A free place, else that of what was used before all others. */
static struct seen *worst(struct client_admit *a, uint64_t key, uint64_t now)
{
    struct seen *s = places_of(a, key), *ret = s;
    for (int i = 1; i < WAYS && ret->tag != 0; i++)
        if (s[i].tag == 0 || age_of(now, s[i].last) > age_of(now, ret->last))
            ret = &s[i];
    return ret;
}

static struct seen seen_once(uint64_t key, uint64_t at)
{
    return (struct seen){.tag = tag_of(key), .last = (uint32_t)at, .before = (uint32_t)at};
}

/* Of what was not seen before. Another stays mostly in its place, while it may still count. */
static void note(struct client_admit *a, uint64_t key, uint64_t now, uint64_t oldest_age)
{
    struct seen *s = worst(a, key, now);
    if (s->tag == 0 || age_of(now, s->last) >= oldest_age || hash_mix(key, now) % STAY == 0)
        *s = seen_once(key, now);
}

bool client_admit_use(struct client_admit *a, uint64_t key, uint64_t now, struct client_admit_kept oldest)
{
    struct seen *s = find(a, key);
    uint64_t oldest_age = now > oldest.used ? now - oldest.used : 0;
    if (!s && !oldest.has_returned) {
        *worst(a, oldest.key, now) = seen_once(oldest.key, oldest.used);
        return true;
    }
    if (!s) {
        note(a, key, now, oldest_age);
        return false;
    }
    if (s->before != s->last && age_of(now, s->before) < oldest_age) {
        s->tag = 0;
        return true;
    }
    s->before = s->last;
    s->last = (uint32_t)now;
    return false;
}

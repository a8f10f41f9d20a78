/*
 * The newest entries (contract in newest.h).
 *
 * In byte order the keys of one folder follow each other, so that one entry at a time is being gathered; when
 * it ends, it takes the place of the oldest of the chosen ones, if it is newer.
 */
#include "jobs/newest.h"

#include "origin/origin.h"

struct entry {
    char *name; /* whole key, or prefix with its '/' */
    size_t name_n;
    uint64_t objects, bytes, mtime_ns;
};

struct newest {
    uint64_t max, n;
    size_t prefix_bytes;
    struct entry now, *chosen;
};

struct newest *newest_new(uint64_t n, size_t prefix_bytes)
{
    assert(n > 0 && n <= 100);
    struct newest *w = calloc(1, sizeof(*w));
    assert(w);
    w->max = n;
    w->prefix_bytes = prefix_bytes;
    w->chosen = calloc(n, sizeof(*w->chosen));
    assert(w->chosen);
    return w;
}

void newest_free(struct newest *w)
{
    if (!w)
        return;
    for (uint64_t i = 0; i < w->n; i++)
        free(w->chosen[i].name);
    free(w->now.name);
    free(w->chosen);
    free(w);
}

/* Of two that changed at the same time, the one with the earlier key: the places are not in its order. */
static bool is_older(const struct entry *x, const struct entry *y)
{
    if (x->mtime_ns != y->mtime_ns)
        return x->mtime_ns < y->mtime_ns;
    return slice_cmp(slice_of(x->name, x->name_n), slice_of(y->name, y->name_n)) < 0;
}

/* The entry being gathered has ended. */
static void settle(struct newest *w)
{
    struct entry e = w->now;
    w->now = (struct entry){0};
    if (!e.name)
        return;
    if (w->n < w->max) {
        w->chosen[w->n++] = e;
        return;
    }
    struct entry *oldest = &w->chosen[0];
    for (uint64_t i = 1; i < w->n; i++)
        if (is_older(&w->chosen[i], oldest))
            oldest = &w->chosen[i];
    if (e.mtime_ns >= oldest->mtime_ns) {
        struct entry out = *oldest;
        *oldest = e;
        e = out;
    }
    free(e.name);
}

/* The entry's name within a key: up to the slash that ends its first name below the prefix, or all of it. A
 * slash right behind the prefix belongs to the prefix. */
static struct slice entry_of(struct slice key, size_t prefix_bytes)
{
    size_t from = prefix_bytes < key.n && key.p[prefix_bytes] == '/' ? prefix_bytes + 1 : prefix_bytes;
    if (from >= key.n)
        return SLICE_NULL;
    ssize_t slash = slice_find(slice_from(key, from), '/');
    return slash < 0 ? key : slice_sub(key, 0, from + (size_t)slash + 1);
}

void newest_add(struct newest *w, struct slice key, uint64_t size_bytes, uint64_t mtime_ns)
{
    struct slice name = entry_of(key, w->prefix_bytes);
    if (name.n == 0)
        return;
    if (!w->now.name || !slice_eq(name, slice_of(w->now.name, w->now.name_n))) {
        settle(w);
        w->now.name = slice_dup(name);
        w->now.name_n = name.n;
    }
    w->now.objects++;
    w->now.bytes += size_bytes;
    w->now.mtime_ns = MAX(w->now.mtime_ns, mtime_ns);
}

/* Of 3 n bytes at most. Byte by byte, so that what begins with a name does so encoded, too. */
static size_t encode(struct slice name, char *ret)
{
    static const char hex[] = "0123456789ABCDEF";
    char *to = ret;
    for (size_t i = 0; i < name.n; i++) {
        unsigned char c = (unsigned char)name.p[i];
        bool plain = c >= 0x20 && c != 0x7f && c != '%';
        *to++ = plain ? (char)c : '%';
        if (!plain) {
            *to++ = hex[c >> 4];
            *to++ = hex[c & 15];
        }
    }
    return (size_t)(to - ret);
}

static char *encoded(struct slice name)
{
    char *text = malloc(3 * name.n + 1);
    assert(text);
    text[encode(name, text)] = '\0';
    return text;
}

void newest_end(struct newest *w, struct option_list *ret, uint64_t *ret_objects, uint64_t *ret_bytes)
{
    settle(w);
    *ret_objects = *ret_bytes = 0;
    for (uint64_t i = 0; i < w->n; i++) {
        *ret_objects += w->chosen[i].objects;
        *ret_bytes += w->chosen[i].bytes;
        ret->v = realloc(ret->v, (ret->n + 1) * sizeof(*ret->v));
        assert(ret->v);
        ret->v[ret->n++] = encoded(slice_of(w->chosen[i].name, w->chosen[i].name_n));
        free(TAKE_PTR(w->chosen[i].name));
    }
    w->n = 0;
}

bool newest_holds(const struct option_list *chosen, struct slice key)
{
    char text[3 * ORIGIN_KEY_MAX_BYTES];
    return chosen->n > 0 && key.n <= ORIGIN_KEY_MAX_BYTES &&
           newest_holds_plain(chosen, slice_of(text, encode(key, text)));
}

bool newest_holds_plain(const struct option_list *chosen, struct slice key)
{
    for (size_t i = 0; i < chosen->n; i++) {
        struct slice name = slice_str(chosen->v[i]);
        bool folder = slice_ends(name, SLICE_LIT("/"));
        if (folder ? slice_starts(key, name) : slice_eq(key, name))
            return true;
    }
    return false;
}

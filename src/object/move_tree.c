/*
 * Renaming a directory of a mirror bucket: everything below it is copied at the origin, then the originals
 * are removed. Origins have no rename, so this is not atomic for others, who may see both for a while; what
 * it never does is to end with an error and half a directory.
 *
 * A mount that asks again, because the node was killed meanwhile, has it gone on with (intent.h): copying
 * begins anew, and once all is known to be copied only the originals are left to be removed, those of which
 * the target has the bytes.
 *
 * Invariants:
 *  1. Nothing is removed before everything was copied. When a copy fails, the copies made are removed again
 * and the source is as it was; a copy whose original others have taken away meanwhile stays.
 *  2. Objects and directories that others put below the source meanwhile are neither copied nor removed; one
 * that they put in the place of what was copied is copied again before it is removed. One that they took away
 * is no failure: so two that rename the same directory do not undo each other's work.
 *  3. Of what is gone on with, a directory that is younger than its copy is one that others made, and stays,
 * where its origin tells.
 *
 * Failure modes: -EXDEV above MOVE_OBJECTS_MAX objects, on which mv copies by itself; the origin's errors,
 * naming the key. When the process ends in the middle and nobody asks again, source and copies are both
 * there, or, when all was copied, the rest is removed some time after the next start. When an original cannot
 * be removed after all were copied, the error says how many are left; the target is whole then.
 */
#include "object/back.h"
#include "object/object_internal.h"

#include "base/hash.h"
#include "base/log.h"
#include "base/sys.h"
#include "base/thread.h"

#include <inttypes.h>
#include <stdatomic.h>

#define MOVE_OBJECTS_MAX 10000 /* above, a program should see the progress of its own copying */
#define MOVE_THREADS     16
#define MOVE_AGAIN       2                   /* copies of an original that was written to meanwhile */
#define MOVE_PASSES_MAX  512                 /* levels of directories that may have become empty */
#define MARKERS_FACTOR   0x9e3779b97f4a7c15u /* odd */
#define LIST_ARENA       (4 * MIB)
#define ITEM_ARENA       (64 * KIB)
#define NAMES_ARENA      (16 * KIB)
#define KEYS_ARENA       ((size_t)(MOVE_OBJECTS_MAX + 4) * (ORIGIN_KEY_MAX_BYTES + 64))
#define STACK_BYTES      (256 * KIB)

struct item {
    struct slice suffix; /* of the key, behind "dir/" */
    bool is_marker;      /* a directory's own key, without bytes */
    bool is_copied;      /* its thread's, until the threads have ended */
    bool is_gone;        /* likewise: others took the original away before it was copied */

    /* Of the original just before it was copied; "": not known. */
    char etag[ORIGIN_ETAG_MAX + 1];
    char copy_etag[ORIGIN_ETAG_MAX + 1]; /* of what was made of it; "": not known */
};

struct move {
    struct object_service *service;
    struct upstream *upstream;
    struct intent *intent; /* NULL: nobody asks again */
    struct slice from, to; /* "dir/" */
    struct arena *arena;   /* of the two */
    struct arena *keys;    /* of the items: emptied by every listing */
    struct item *items;    /* in byte order */
    size_t n;
    int (*step)(struct move *m, struct item *i, struct arena *a, struct err *e);
    bool goes_on; /* after an error, with the other items */
    _Atomic size_t next;
    _Atomic size_t failed;
    struct lock lock; /* covers the first error */
    int result;
    struct err err;
};

/* ---- what there is ---- */

static int add(struct move *m, const struct origin_entry *x, struct err *e)
{
    if (m->n == MOVE_OBJECTS_MAX)
        return err_set(e, -EXDEV, "more than %d objects lie below it", MOVE_OBJECTS_MAX);
    struct slice suffix = slice_from(x->key, m->from.n);
    m->items[m->n++] = (struct item){.suffix = arena_dup(m->keys, suffix),
                                     .is_marker = (suffix.n == 0 || slice_ends(suffix, SLICE_LIT("/"))) &&
                                                  x->attr.size_bytes == 0};
    return 0;
}

/* With write-back an origin that has directories has things still that are removed here already: that a
 * directory of it is empty no listing of all below tells. It is asked for each by itself. */
static bool is_by_directory(const struct move *m)
{
    return m->upstream->bucket->p.write == BUCKET_WRITE_BACK &&
           m->upstream->origin->capabilities & ORIGIN_HAS_DIRECTORIES;
}

/* Deep as directories are: what is large is not on the stack. */
static int list_below(struct move *m, struct slice prefix, struct err *e)
{
    _cleanup_(arena_freep) struct arena *a = arena_new(LIST_ARENA);
    struct origin_page page = {.truncated = true};
    _cleanup_free_ char *token = NULL;
    struct origin_walk _cleanup_free_ *walk = calloc(1, sizeof(*walk));
    int r = 0;
    assert(walk);
    while (r == 0 && page.truncated) {
        struct origin_list l = {.prefix = prefix,
                                .delimiter = is_by_directory(m) ? '/' : '\0',
                                .token = token ? slice_str(token) : SLICE_NULL,
                                .max = 1000};
        r = upstream_list(m->upstream, &l, a, &page, e);
        if (r == 0)
            r = origin_walk_on(walk, &page, e);
        for (size_t i = 0; r == 0 && i < page.n; i++)
            r = page.entries[i].is_prefix ? list_below(m, page.entries[i].key, e)
                                          : add(m, &page.entries[i], e);
        free(token);
        token = r == 0 && page.truncated ? slice_dup(page.next_token) : NULL;
    }
    return r;
}

static int list(struct move *m, struct err *e)
{
    m->n = 0;
    arena_clear(m->keys);
    return list_below(m, m->from, e);
}

static void items_init(struct move *m)
{
    m->keys = arena_new(KEYS_ARENA);
    m->items = calloc(MOVE_OBJECTS_MAX, sizeof(m->items[0]));
    m->n = 0;
    assert(m->items);
}

static void items_fini(struct move *m)
{
    free(m->items);
    arena_free(m->keys);
}

/* ---- many at a time ---- */

static void note_error(struct move *m, int r, const struct err *e)
{
    (void)atomic_fetch_add(&m->failed, 1);
    LOCK_SCOPE(&m->lock);
    if (m->result == 0) {
        m->result = r;
        m->err = *e;
    }
}

static void *work(void *arg)
{
    struct move *m = arg;
    _cleanup_(arena_freep) struct arena *a = arena_new(ITEM_ARENA);
    for (;;) {
        size_t i = atomic_fetch_add(&m->next, 1);
        if (i >= m->n || (!m->goes_on && atomic_load(&m->failed) > 0))
            return NULL;
        struct err e = {0};
        arena_clear(a);
        int r = m->step(m, &m->items[i], a, &e);
        if (r < 0)
            note_error(m, r, &e);
    }
}

/* Runs the step for every item. The first error. */
static int run(struct move *m, int (*step)(struct move *m, struct item *i, struct arena *a, struct err *e),
               bool goes_on, struct err *e)
{
    pthread_t threads[MOVE_THREADS];
    size_t n = 0;
    m->step = step;
    m->goes_on = goes_on;
    m->result = 0;
    atomic_store(&m->next, 0);
    atomic_store(&m->failed, 0);
    while (n < MIN(m->n, (size_t)MOVE_THREADS) && thread_start(&threads[n], STACK_BYTES, work, m) == 0)
        n++;
    if (n == 0)
        (void)work(m);
    for (size_t i = 0; i < n; i++)
        (void)pthread_join(threads[i], NULL);
    if (m->result < 0 && e)
        *e = m->err;
    return m->result;
}

/* ---- the steps ---- */

static struct slice key_in(struct slice dir, const struct item *i, struct arena *a)
{
    return slice_str(arena_printf(a, SLICE_FMT SLICE_FMT, SLICE_ARG(dir), SLICE_ARG(i->suffix)));
}

static ssize_t no_body(void *arg, void *p, size_t n, uint64_t offset)
{
    (void)arg, (void)p, (void)n, (void)offset;
    return 0;
}

/* A directory has bytes nowhere; mode, owner and time it has where the bucket keeps them. */
static int copy_marker(struct move *m, struct slice from, struct slice to, struct arena *a, struct err *e)
{
    struct origin_put put = {.key = to};
    struct origin_body body = {.read = no_body};
    struct origin_attr there = {0}, answer;
    int r = 0;
    if (m->upstream->bucket->p.posix == BUCKET_POSIX_ON)
        r = upstream_head(m->upstream, from, SLICE_NULL, a, &there, e);
    if (r < 0 && r != -ENOENT)
        return r;
    put.content_type = there.content_type;
    put.meta = there.meta;
    return upstream_put(m->upstream, &put, &body, a, &answer, e);
}

static int copy_one(struct move *m, struct item *i, struct arena *a, struct err *e)
{
    struct slice from = key_in(m->from, i, a), to = key_in(m->to, i, a);
    struct origin_attr was = {0}, answer;
    struct object_change change;
    int r;
    if (to.n > ORIGIN_KEY_MAX_BYTES)
        return err_set(e, -ENAMETOOLONG, "%zu bytes of key", to.n);
    object_change_begin(m->service, &change, m->upstream->bucket, to);
    if (i->is_marker) {
        r = copy_marker(m, from, to, a, e);
    } else {
        r = upstream_head(m->upstream, from, SLICE_NULL, a, &was, e);
        r = r < 0 ? r : back_copy_moved(m->service->back, m->upstream, from, to, a, &answer, e);
        if (r == -EAGAIN)
            r = upstream_copy(m->upstream, from, to, a, &answer, e);
        if (r == 0 && answer.etag.n <= ORIGIN_ETAG_MAX)
            (void)snprintf(i->copy_etag, sizeof(i->copy_etag), SLICE_FMT, SLICE_ARG(answer.etag));
        if (r == 0 && was.etag.n <= ORIGIN_ETAG_MAX)
            (void)snprintf(i->etag, sizeof(i->etag), SLICE_FMT, SLICE_ARG(was.etag));
    }
    object_change_end(m->service, &change);
    if (r == -ENOENT && upstream_head(m->upstream, from, SLICE_NULL, a, &was, NULL) == -ENOENT) {
        i->is_gone = true;
        return 0;
    }
    i->is_copied = true; /* also after a failure: it may have happened */
    return r < 0 ? err_prefix(e, r, SLICE_FMT, SLICE_ARG(from)) : 0;
}

static int remove_key(struct move *m, struct slice key, struct slice if_match, struct err *e)
{
    struct object_change change;
    object_change_begin(m->service, &change, m->upstream->bucket, key);
    int r = upstream_remove(m->upstream, key, if_match, e);
    object_change_end(m->service, &change);
    return r < 0 && r != -ENOENT ? err_prefix(e, r, SLICE_FMT, SLICE_ARG(key)) : 0;
}

static int remove_source(struct move *m, struct item *i, struct arena *a, struct err *e)
{
    struct slice key = key_in(m->from, i, a);
    int r = i->is_gone ? 0 : remove_key(m, key, slice_str(i->etag), e);
    for (int k = 0; r == ERR_PRECONDITION && k < MOVE_AGAIN; k++) {
        r = copy_one(m, i, a, e);
        r = r < 0 || i->is_gone ? r : remove_key(m, key, slice_str(i->etag), e);
    }
    if (r == 0 && !i->is_gone && i->etag[0] && i->copy_etag[0] && strcmp(i->etag, i->copy_etag) != 0)
        moved_note(&m->service->moved, m->upstream->bucket->place, key, slice_str(i->etag),
                   key_in(m->to, i, a), slice_str(i->copy_etag));
    return r == -ENOENT ? 0 : r;
}

/* What somebody else wrote over it stays, as far as can be told; and what is the only one by now, as another
 * node that renames the same directory has removed the original. */
static int remove_copy(struct move *m, struct item *i, struct arena *a, struct err *e)
{
    struct origin_attr original;
    if (!i->is_copied)
        return 0;
    int r = upstream_head(m->upstream, key_in(m->from, i, a), SLICE_NULL, a, &original, e);
    if (r == 0)
        r = remove_key(m, key_in(m->to, i, a), slice_str(i->copy_etag), e);
    return r == -ENOENT || r == ERR_PRECONDITION ? 0 : r;
}

/* Of a rename that was copied before: whether the original is what was copied then. One that somebody has
 * made since is younger than the copy, as the origin tells times; write-back has others, and knows itself
 * what was written since the start, and of what is not in the origin yet which are copies: of a rename that
 * was given up in this run the originals may have been written since the start, too. */
static bool is_copied_already(const struct move *m, struct slice key, struct slice copy,
                              const struct origin_attr *from, const struct origin_attr *to)
{
    const struct bucket *b = m->upstream->bucket;
    struct back *back = m->service->back;
    bool says = object_is_md5(from->etag) && object_is_md5(to->etag);
    bool is_younger = b->p.write == BUCKET_WRITE_BACK
                          ? back_is_new(back, b->id, key, from->etag) && !back_is_copy(back, b->id, key, copy)
                          : from->mtime_ns > to->mtime_ns;
    return from->size_bytes == to->size_bytes && (!says || slice_eq(from->etag, to->etag)) && !is_younger;
}

/* Whether the time of a directory tells one that others have made since: where it is an object of its own,
 * which is younger than the copy then. Real ones are as old as what was last made or removed in them, and
 * write-back has other times. */
static bool directories_tell(const struct move *m)
{
    return !(m->upstream->origin->capabilities & ORIGIN_HAS_DIRECTORIES) &&
           m->upstream->bucket->p.write != BUCKET_WRITE_BACK;
}

/* What has no copy came later, and stays. */
static int remove_copied(struct move *m, struct item *i, struct arena *a, struct err *e)
{
    struct slice from = key_in(m->from, i, a), to = key_in(m->to, i, a);
    struct origin_attr was = {0}, copy = {0};
    if (atomic_load(&m->service->stopping))
        return err_set(e, -ECANCELED, "the node stops");
    int r = upstream_head(m->upstream, to, SLICE_NULL, a, &copy, e);
    bool looks = !i->is_marker || directories_tell(m);
    if (r == 0 && looks)
        r = upstream_head(m->upstream, from, SLICE_NULL, a, &was, e);
    bool is_ours =
        i->is_marker ? !looks || was.mtime_ns <= copy.mtime_ns : is_copied_already(m, from, to, &was, &copy);
    if (r == 0 && is_ours)
        r = remove_key(m, from, i->is_marker ? SLICE_NULL : was.etag, e);
    return r == -ENOENT || r == ERR_PRECONDITION ? 0 : r;
}

/* With write-back the origin has the objects still, and shows no directory around them as empty: the removals
 * of directories are written down with theirs, and go there after them (back_send.c). */
static int remove_around(struct move *m, struct err *e)
{
    _cleanup_(arena_freep) struct arena *a = arena_new(ITEM_ARENA);
    for (size_t i = m->n; i-- > 0;) {
        struct slice suffix = m->items[i].suffix, before = i > 0 ? m->items[i - 1].suffix : SLICE_NULL;
        for (ssize_t at; (at = slice_rfind(suffix, '/')) >= 0; suffix = slice_sub(suffix, 0, (size_t)at)) {
            struct item dir = {.suffix = slice_sub(suffix, 0, (size_t)at + 1)};
            if (slice_starts(before, dir.suffix)) /* its turn comes, and that of those around it */
                break;
            arena_clear(a);
            int r = remove_key(m, key_in(m->from, &dir, a), SLICE_NULL, e);
            if (r < 0)
                return r;
        }
    }
    return 0;
}

/* Whether something of what was moved lay in the directory: in byte order that follows its name. */
static bool was_there(const struct item *moved, size_t n, struct slice dir)
{
    size_t low = 0, high = n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (slice_cmp(moved[middle].suffix, dir) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low < n && slice_starts(moved[low].suffix, dir);
}

/* Markers that are the same as in the pass before cannot be removed: somebody writes there what is no object
 * yet. */
static int remove_markers(struct move *m, const struct item *moved, size_t n_moved, struct err *e)
{
    uint64_t before = 0;
    for (int pass = 0; pass < MOVE_PASSES_MAX; pass++) {
        int r = list(m, e);
        size_t markers = 0;
        uint64_t now = 0;
        for (size_t i = 0; r == 0 && i < m->n; i++) {
            if (!m->items[i].is_marker || !was_there(moved, n_moved, m->items[i].suffix))
                continue;
            now = now * MARKERS_FACTOR + hash_placement(m->items[i].suffix) + 1;
            m->items[markers++] = m->items[i];
        }
        m->n = markers;
        if (r < 0 || markers == 0 || (pass > 0 && now == before))
            return r == -EXDEV ? 0 : r;
        before = now;
        r = run(m, remove_source, /* goes_on= */ true, e);
        if (r < 0)
            return r;
    }
    return 0;
}

/* An origin that has directories shows those that are empty now as markers: they go in further passes, one
 * for each level. What others have put there meanwhile stays. */
static int remove_emptied(struct move *m, struct err *e)
{
    int r = is_by_directory(m) ? remove_around(m, e) : 0;
    if (r < 0)
        return r;
    struct item *moved = m->items;
    struct arena *keys = m->keys;
    size_t n = m->n;
    items_init(m);
    r = remove_markers(m, moved, n, e);
    items_fini(m);
    m->items = moved;
    m->keys = keys;
    m->n = n;
    return r;
}

/* ---- all of it ---- */

static int check_target(struct move *m, struct slice to, bool exclusive, struct arena *a, struct err *e)
{
    struct attr there;
    struct origin_attr marker;
    int r = mirror_stat(m->service->mirror, m->upstream, to, /* posix= */ true, /* full= */ false,
                        /* fresh= */ true, a, &there, e);
    if (r == -ENOENT)
        return 0;
    if (r < 0)
        return r;
    if (exclusive)
        return err_set(e, -EEXIST, "the target exists");
    if (!there.is_directory)
        return err_set(e, -ENOTDIR, "the target is a file");
    r = mirror_check_empty(m->upstream, to, a, &marker, e);
    return r == -ENOENT ? 0 : r;
}

/* Directories that are real ones got another time by what was made in them: they take theirs again, those
 * within others first. */
static int settle_markers(struct move *m, struct err *e)
{
    const struct origin *o = m->upstream->origin;
    bool are_real = o->posix && !(o->capabilities & ORIGIN_CAN_META);
    _cleanup_(arena_freep) struct arena *a = arena_new(ITEM_ARENA);
    int r = 0;
    for (size_t i = m->n; r == 0 && are_real && i-- > 0;) {
        arena_clear(a);
        if (m->items[i].is_marker)
            r = copy_marker(m, key_in(m->from, &m->items[i], a), key_in(m->to, &m->items[i], a), a, e);
    }
    return r;
}

static int note(struct move *m, enum intent_state state, struct err *e)
{
    const struct intent_record now = {.state = state, .is_tree = true};
    return intent_note(m->intent, &now, KV_DURABLE, e);
}

/* As when another node has renamed the directory meanwhile. */
static bool is_all_gone(const struct move *m)
{
    size_t i = 0;
    while (i < m->n && m->items[i].is_gone)
        i++;
    return i == m->n;
}

static int move_all(struct move *m, struct err *e)
{
    int r = list(m, e);
    if (r == 0 && m->n == 0)
        return err_set(e, -ENOENT, "no such directory");
    r = r < 0 ? r : note(m, INTENT_BEGUN, e);
    if (r < 0)
        return r;
    r = run(m, copy_one, /* goes_on= */ false, e);
    if (r == 0 && is_all_gone(m))
        return err_set(e, -ENOENT, "no such directory any more");
    r = r < 0 ? r : settle_markers(m, e);
    r = r < 0 ? r : note(m, INTENT_COPIED, e);
    if (r < 0) {
        struct err why = {0};
        if (run(m, remove_copy, /* goes_on= */ true, &why) < 0)
            log_warn("object", "%s: %zu copies of a rename that failed could not be removed: %s",
                     m->upstream->bucket->name, atomic_load(&m->failed), why.text);
        return r;
    }
    r = run(m, remove_source, /* goes_on= */ true, e);
    if (r < 0)
        return err_prefix(e, r, "all was copied, but %zu of %zu originals could not be removed",
                          atomic_load(&m->failed), m->n);
    return remove_emptied(m, e);
}

static void move_init(struct move *m, struct object_service *s, struct upstream *u, struct slice from,
                      struct slice to)
{
    *m = (struct move){.service = s, .upstream = u, .arena = arena_new(NAMES_ARENA)};
    m->from = slice_str(arena_printf(m->arena, SLICE_FMT "/", SLICE_ARG(from)));
    m->to = slice_str(arena_printf(m->arena, SLICE_FMT "/", SLICE_ARG(to)));
    items_init(m);
    lock_init(&m->lock, LOCK_LEAF);
}

static void move_fini(struct move *m)
{
    const struct bucket *b = m->upstream->bucket;
    (void)object_forget_key(m->service, b, slice_sub(m->from, 0, m->from.n - 1));
    (void)object_forget_key(m->service, b, slice_sub(m->to, 0, m->to.n - 1));
    items_fini(m);
    arena_free(m->arena);
    lock_fini(&m->lock);
}

int object_finish_move_tree(struct object_service *s, struct upstream *u, const struct intent_record *x,
                            struct err *e)
{
    struct move m;
    move_init(&m, s, u, x->key, x->to);
    struct slice from = m.from;
    int r = list(&m, e);
    if (r == 0 && m.n > 0)
        r = run(&m, remove_copied, /* goes_on= */ true, e);
    bool is_all = directories_tell(&m); /* none shows only when it is empty */
    m.from = m.to; /* which directories there were says the target: of the source nothing may be left */
    r = r < 0 || is_all ? r : list(&m, e);
    m.from = from;
    r = r < 0 || is_all ? r : remove_emptied(&m, e);
    move_fini(&m);
    return r;
}

int object_move_tree(struct object_service *s, struct upstream *u, const struct wire_copy_req *q,
                     struct intent *x, struct arena *a, struct attr *ret, struct err *e)
{
    struct move m;
    move_init(&m, s, u, q->from, q->to);
    m.intent = x;
    int r = slice_starts(m.to, m.from) ? err_set(e, -EINVAL, "the target lies below it") : 0;
    if (r == 0 && intent_state(x) == INTENT_NEW) /* else there are copies by now */
        r = check_target(&m, q->to, q->flags & WIRE_NOREPLACE, a, e);
    if (r == 0)
        r = move_all(&m, e);
    move_fini(&m);
    *ret = (struct attr){.is_directory = true, .mtime_ns = sys->real_ns(), .confirmed_ns = sys->real_ns()};
    return r;
}

/*
 * Listings of trees of directories in the order of S3: by the bytes of whole keys, so that a directory sorts
 * by its name with '/' appended ("a-b" before "a/" before "a0").
 *
 * What is listed: files; directories as common prefixes when the delimiter is '/', else their contents;
 * "dir/" itself, without bytes, when exactly that prefix was asked for or when the directory is empty. A
 * directory that is one of those around it (a link that leads back) is not walked again.
 *
 * Invariants:
 *  1. Entries are in byte order, each begins with the prefix and is after `after` and the token.
 *  2. A truncated page has entries, and its token is the key of the last.
 *  3. No lock is held while a directory is read.
 *  4. What this node has written is in every page asked for afterwards: a directory that was read before a
 *     change in it is neither kept nor remembered after it.
 *
 * Failure modes: those of the kind's read. A directory that cannot be read fails the listing: a shorter one
 * would look whole. One that vanished meanwhile is left out, but not the origin's own.
 */
#include "origin/tree.h"

#include "base/hash.h"
#include "base/sys.h"
#include "origin/file_internal.h"
#include "origin/walk_page.h"

#include <inttypes.h>
#include <limits.h>

#define PAGE_MAX 1000

/* ---- folders ---- */

struct tree_folder *tree_folder_new(void)
{
    struct tree_folder *f = calloc(1, sizeof(*f));
    if (!f)
        abort();
    f->refs = 1;
    return f;
}

void tree_folder_unref(struct tree_folder *f)
{
    if (!f || --f->refs > 0)
        return;
    for (size_t i = 0; i < f->n; i++)
        free(f->v[i].name);
    for (size_t i = 0; i < f->n_left; i++)
        free(f->left[i]);
    free(f->v);
    free(f);
}

/* Whether a name can be part of a key, or is too long for it. */
static bool fits(struct slice name)
{
    return name.n > 0 && !memchr(name.p, '/', name.n) && !memchr(name.p, '\0', name.n) &&
           !slice_eq_str(name, ".") && !slice_eq_str(name, "..") &&
           !slice_starts(name, SLICE_LIT(FILE_TMP_PREFIX));
}

void tree_folder_add_left(struct tree_folder *f, struct slice name)
{
    if (f->n_left < TREE_LEFT_MAX)
        f->left[f->n_left++] = slice_dup(name);
}

int tree_folder_add(struct tree_folder *f, struct slice name, bool is_dir, const struct tree_name *x)
{
    if (!fits(name)) {
        f->hides |= name.n > 0 && name.p[0] != '.';
        return 0;
    }
    if (f->n >= TREE_NAMES_MAX)
        return -E2BIG;
    if (f->n == f->room) {
        f->room = f->room ? 2 * f->room : 64;
        f->v = realloc(f->v, f->room * sizeof(*f->v));
        if (!f->v)
            abort();
    }
    struct tree_name *to = &f->v[f->n++];
    *to = *x;
    if (name.n > NAME_MAX) { /* told by how it begins: one byte more than any name has */
        name.n = NAME_MAX + 1;
        is_dir = false;
    }
    if (asprintf(&to->name, SLICE_FMT "%s", SLICE_ARG(name), is_dir ? "/" : "") < 0)
        abort();
    return 0;
}

static int compare(const void *a, const void *b)
{
    const struct tree_name *x = a, *y = b;
    return strcmp(x->name, y->name);
}

void tree_etag(uint64_t mtime, uint64_t size, uint64_t id, char ret[TREE_ETAG_SIZE])
{
    (void)snprintf(ret, TREE_ETAG_SIZE, "%" PRIx64 "-%" PRIx64 "-%" PRIx64, mtime, size, id);
}

/* ---- memory ---- */

void tree_init(struct tree *t, tree_read_fn read, void *arg)
{
    *t = (struct tree){.read = read, .arg = arg, .kept_max = TREE_KEPT_MAX};
    lock_init(&t->lock, LOCK_ORIGIN);
}

void tree_fini(struct tree *t)
{
    if (!t->read)
        return;
    for (size_t i = 0; i < TREE_FOLDERS; i++) {
        free(t->memory[i].path);
        tree_folder_unref(t->memory[i].folder);
    }
    lock_fini(&t->lock);
    t->read = NULL;
}

static struct tree_folder *recall(struct tree *t, const char *path)
{
    uint64_t now_ms = sys_mono_ms();
    LOCK_SCOPE(&t->lock);
    for (size_t i = 0; i < TREE_FOLDERS; i++) {
        struct tree_memory *m = &t->memory[i];
        if (m->path && strcmp(m->path, path) == 0 && now_ms - m->read_ms <= TREE_FOLDER_MS) {
            m->folder->refs++;
            return m->folder;
        }
    }
    return NULL;
}

static uint64_t *changes_of(struct tree *t, struct slice path)
{
    return &t->changes[hash_table(path) % TREE_CHANGES];
}

static uint64_t changes(struct tree *t, const char *path)
{
    LOCK_SCOPE(&t->lock);
    return *changes_of(t, slice_str(path));
}

/* Takes one out of memory; the caller frees it without the lock. */
static struct tree_memory take_out_locked(struct tree *t, size_t i)
{
    lock_assert_held(&t->lock);
    struct tree_memory old = t->memory[i];
    t->memory[i] = (struct tree_memory){0};
    return old;
}

static void free_all(struct tree_memory *v, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        tree_folder_unref(v[i].folder);
        free(v[i].path);
    }
}

/* Whether `key` is the directory `path` itself or lies below it. */
static bool lies_in(struct slice key, struct slice path)
{
    return path.n == 0 || (slice_starts(key, path) && (key.n == path.n || key.p[path.n] == '/'));
}

/* Which one goes, for there are too many names, or it is believed no more; TREE_FOLDERS: none. Not `path`,
 * and not those that it lies in, to which the walk comes back. */
static size_t surplus_locked(const struct tree *t, struct slice path, uint64_t now_ms)
{
    size_t names = 0, oldest = TREE_FOLDERS;
    for (size_t i = 0; i < TREE_FOLDERS; i++) {
        const struct tree_memory *m = &t->memory[i];
        if (!m->path || lies_in(path, slice_str(m->path)))
            continue;
        names += m->folder->n;
        if (oldest == TREE_FOLDERS || m->read_ms < t->memory[oldest].read_ms)
            oldest = i;
    }
    bool is_old = oldest < TREE_FOLDERS && now_ms - t->memory[oldest].read_ms > TREE_FOLDER_MS;
    return is_old || names > t->kept_max ? oldest : TREE_FOLDERS;
}

/* `before`: what `changes` was before the directory was read. */
static void remember(struct tree *t, const char *path, struct tree_folder *f, uint64_t before)
{
    struct tree_memory old[TREE_FOLDERS + 1];
    uint64_t now_ms = sys_mono_ms();
    size_t n = 0;
    lock_take(&t->lock);
    if (*changes_of(t, slice_str(path)) != before) {
        lock_drop(&t->lock);
        return;
    }
    size_t at = t->next % TREE_FOLDERS;
    for (size_t i = 0; i < TREE_FOLDERS; i++)
        if (t->memory[i].path && strcmp(t->memory[i].path, path) == 0)
            at = i;
    t->next += at == t->next % TREE_FOLDERS;
    old[n++] = take_out_locked(t, at);
    f->refs++;
    t->memory[at] = (struct tree_memory){slice_dup(slice_str(path)), f, now_ms};
    for (size_t i; (i = surplus_locked(t, slice_str(path), now_ms)) < TREE_FOLDERS;)
        old[n++] = take_out_locked(t, i);
    lock_drop(&t->lock);
    free_all(old, n);
}

void tree_forget(struct tree *t, struct slice key)
{
    struct tree_memory old[TREE_FOLDERS];
    size_t n = 0;
    lock_take(&t->lock);
    for (size_t end = 0; end <= key.n; end++)
        if (end == 0 || end == key.n || key.p[end] == '/')
            (*changes_of(t, slice_sub(key, 0, end)))++;
    for (size_t i = 0; i < TREE_FOLDERS; i++)
        if (t->memory[i].path && lies_in(key, slice_str(t->memory[i].path)))
            old[n++] = take_out_locked(t, i);
    lock_drop(&t->lock);
    free_all(old, n);
}

/* What an earlier listing remembered at and below a directory is none of a new listing's. */
static void forget_below(struct tree *t, struct slice dir)
{
    struct tree_memory old[TREE_FOLDERS];
    size_t n = 0;
    lock_take(&t->lock);
    for (size_t i = 0; i < TREE_FOLDERS; i++)
        if (t->memory[i].path && lies_in(slice_str(t->memory[i].path), dir))
            old[n++] = take_out_locked(t, i);
    lock_drop(&t->lock);
    free_all(old, n);
}

/* ---- the walk ---- */

struct place {
    uint64_t id;
    const struct place *above;
};

struct walk {
    struct tree *tree;
    struct walk_page page;
    bool directories;                      /* each is an entry */
    bool first;                            /* the listing begins: nothing remembered counts */
    char key[ORIGIN_KEY_MAX_BYTES + 260];  /* of the directory being walked: "" or ends with '/' */
    char path[ORIGIN_KEY_MAX_BYTES + 260]; /* of the one being read; not in a frame for each */
    struct err *err;
};

/* 0, 1 when the page is full, or an error. */
static int emit(struct walk *w, struct slice key, const struct tree_name *x, bool is_prefix)
{
    struct origin_entry *to;
    int r = walk_page_add(&w->page, key, is_prefix, TREE_ETAG_SIZE, &to, w->err);
    if (r == 0 && to && !to->is_prefix)
        to->attr = (struct origin_attr){.size_bytes = x->size,
                                        .mtime_ns = x->mtime_ns,
                                        .etag = arena_dup(w->page.arena, slice_str(x->etag))};
    return r;
}

/* The directory w->key[0..key_n), from memory or from the origin. */
static int read_folder(struct walk *w, size_t key_n, struct tree_folder **ret)
{
    char *path = w->path;
    memcpy(path, w->key, key_n);
    path[key_n ? key_n - 1 : 0] = '\0';
    struct tree_folder *f = w->first ? NULL : recall(w->tree, path);
    if (!f) {
        uint64_t before = changes(w->tree, path);
        int r = w->tree->read(w->tree->arg, path, &f, w->err);
        if (r < 0)
            return r;
        if (f->n > 0)
            qsort(f->v, f->n, sizeof(*f->v), compare);
        remember(w->tree, path, f, before);
    }
    *ret = f;
    return 0;
}

static bool leads_back(uint64_t id, const struct place *p)
{
    for (; p; p = p->above)
        if (id != 0 && p->id == id)
            return true;
    return false;
}

static int walk_folder(struct walk *w, size_t key_n, const struct place *above);

/* As deep as a key goes: each directory is two bytes of it at least. */
static int visit(struct walk *w, size_t key_n, const struct tree_name *x, const struct place *here)
{
    size_t n = strlen(x->name);
    assert(key_n + n < sizeof(w->key)); /* tree_folder_add takes no longer names */
    memcpy(w->key + key_n, x->name, n + 1);
    if (key_n + n > ORIGIN_KEY_MAX_BYTES || n - (x->name[n - 1] == '/') > NAME_MAX) {
        size_t begin_n = MIN(key_n + n, (size_t)ORIGIN_KEY_MAX_BYTES);
        int k = walk_page_add_unfit(&w->page, slice_of(w->key, begin_n), w->err);
        w->key[key_n] = '\0';
        return k;
    }
    struct slice key = slice_of(w->key, key_n + n);
    int r = 0;
    if (x->name[n - 1] != '/') {
        if (slice_starts(key, w->page.prefix) && slice_cmp(key, w->page.after) > 0)
            r = emit(w, key, x, false);
    } else if (!walk_page_may_have(&w->page, key)) {
        r = 0;
    } else if (w->page.delimiter == '/' && key.n > w->page.prefix.n) {
        r = emit(w, key, NULL, true);
    } else if (!leads_back(x->id, here)) {
        r = walk_folder(w, key_n + n, here);
    }
    w->key[key_n] = '\0';
    return r;
}

static int walk_folder(struct walk *w, size_t key_n, const struct place *above)
{
    struct tree_folder *_cleanup_(tree_folder_unrefp) f = NULL;
    int r = read_folder(w, key_n, &f);
    if (r == -ENOENT && key_n > 0)
        return 0; /* gone, or never there */
    if (r < 0)
        return r;
    struct slice key = slice_of(w->key, key_n);
    bool empty = f->n == 0 && !f->hides, asked = w->directories || slice_eq(key, w->page.prefix);
    if (key_n > 0 && (asked || empty) && slice_starts(key, w->page.prefix))
        r = emit(w, key, &f->self, false);
    struct place here = {f->self.id, above};
    for (size_t i = 0; i < f->n && r == 0; i++)
        r = visit(w, key_n, &f->v[i], &here);
    return r;
}

/* ---- the page ---- */

/* Where the walk begins: the directory part of the prefix. False when no path can begin so. */
static bool start_of(struct walk *w, size_t *ret_n)
{
    char path[ORIGIN_KEY_MAX_BYTES + 1];
    bool is_dir;
    struct slice dir = slice_sub(w->page.prefix, 0, (size_t)(slice_rfind(w->page.prefix, '/') + 1));
    if (w->page.prefix.n > ORIGIN_KEY_MAX_BYTES || (dir.n > 0 && file_key_path(dir, path, &is_dir, NULL) < 0))
        return false;
    memcpy(w->key, dir.p ? dir.p : "", dir.n);
    w->key[dir.n] = '\0';
    *ret_n = dir.n;
    return true;
}

int tree_list(struct tree *t, const struct origin_list *l, struct arena *a, struct origin_page *ret,
              struct err *e)
{
    struct walk w = {.tree = t, .directories = l->directories, .err = e};
    int r = walk_page_init(&w.page, l, PAGE_MAX, a, e);
    if (r < 0)
        return r;
    w.first = w.page.after.n == 0; /* callers go on with a token or with the last key */
    size_t n = 0;
    bool can_be = start_of(&w, &n);
    if (can_be && w.first && w.page.delimiter != '/') /* else one directory is read, and anew */
        forget_below(t, slice_of(w.key, n ? n - 1 : 0));
    r = can_be ? walk_folder(&w, n, NULL) : 0;
    if (r < 0)
        return r;
    walk_page_end(&w.page, ret);
    return 0;
}

/*
 * Listing the directory in S3's order: by the bytes of whole keys, so that a directory sorts by its name with
 * '/' appended ("a-b" before "a/" before "a0").
 *
 * A page needs the smallest names after the last one returned. A directory is scanned once per page and only
 * as many names as the page still has room for are kept (a heap with the largest on top), so that memory does
 * not grow with the directory; names that turned out to be nothing (vanished, a device) are made up for by
 * scanning on.
 *
 * What is listed: regular files; directories as common prefixes when the delimiter is '/', else their
 * contents; "dir/" itself, without bytes, when exactly that prefix was asked for or when the directory is
 * empty. Links to directories are walked unless they lead back to where the walk came from.
 *
 * Invariants:
 *  1. Entries are in byte order, each begins with the prefix and is after `after` and the token.
 *  2. A truncated page has entries, and its token is the key of the last.
 *
 * Failure modes: as file_error; a directory or file that cannot be read fails the listing rather than
 * shortening it; one that vanished meanwhile is left out.
 */
#include "origin/file_internal.h"

#include "base/hash.h"
#include "base/log.h"
#include "origin/walk_page.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>

#define PAGE_MAX   1000
#define NAME_BYTES (PATH_MAX + 1) /* with '/' and the end; not every file system keeps to NAME_MAX */

struct place {
    dev_t dev;
    ino_t ino;
    const struct place *above;
};

struct walk {
    const struct file_origin *origin;
    int root;
    struct walk_page page;
    bool directories;                            /* each is an entry */
    char key[ORIGIN_KEY_MAX_BYTES + NAME_BYTES]; /* of the directory being walked: "" or ends with '/' */
    struct err *err;
};

/* Names kept of one directory: a heap with the largest on top, sorted at the end. A directory's name ends in
 * '/'. */
struct names {
    char **v;
    size_t n, max;
    bool dropped; /* there were more than max */
};

/* A key may lead through 500 directories, each with a frame on the stack of a thread of the node, which is
 * small: what is large is on the heap, or in functions that have come back by then. */
#define STACK_ITS_OWN __attribute__((noinline))
struct level {
    struct place here;
    struct stat st;
    char past[NAME_BYTES]; /* the last name dealt with */
};

static void names_fini(struct names *x)
{
    for (size_t i = 0; i < x->n; i++)
        free(x->v[i]);
    free(x->v);
}

static void sift_down(struct names *x, size_t i)
{
    for (;;) {
        size_t big = i, left = 2 * i + 1;
        for (size_t child = left; child < left + 2 && child < x->n; child++)
            if (strcmp(x->v[child], x->v[big]) > 0)
                big = child;
        if (big == i)
            return;
        char *t = x->v[i];
        x->v[i] = x->v[big];
        x->v[big] = t;
        i = big;
    }
}

static void names_add(struct names *x, char *name)
{
    if (x->n == x->max) {
        x->dropped = true;
        if (strcmp(name, x->v[0]) >= 0) {
            free(name);
            return;
        }
        free(x->v[0]);
        x->v[0] = name;
        sift_down(x, 0);
        return;
    }
    size_t i = x->n++;
    for (; i > 0 && strcmp(x->v[(i - 1) / 2], name) < 0; i = (i - 1) / 2)
        x->v[i] = x->v[(i - 1) / 2];
    x->v[i] = name;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* ---- entries ---- */

/* 0, 1 when the page is full, or an error. */
STACK_ITS_OWN static int emit(struct walk *w, struct slice key, const struct stat *st, bool is_prefix)
{
    char etag[FILE_ETAG_SIZE] = "";
    struct origin_entry *x;
    int r = walk_page_add(&w->page, key, is_prefix, FILE_ETAG_SIZE, &x, w->err);
    if (r != 0 || !x || x->is_prefix)
        return r;
    file_etag(st, etag);
    x->attr = file_attr(st, arena_dup(w->page.arena, slice_str(etag)));
    if (S_ISLNK(st->st_mode))
        x->attr.size_bytes = (uint64_t)st->st_size;
    return 0;
}

/* ---- one directory ---- */

static bool is_dot(const char *s)
{
    return s[0] == '.' && (!s[1] || (s[1] == '.' && !s[2]));
}

/* Whether an error says that there is nothing for us, and not that it could not be seen. */
static bool is_nothing(int r)
{
    return r == -ENOENT || r == -ENOTDIR || r == -EXDEV || r == -ELOOP;
}

static int kind_of_stat(const struct stat *st)
{
    return S_ISREG(st->st_mode) || S_ISLNK(st->st_mode) ? 'f' : S_ISDIR(st->st_mode) ? 'd' : 0;
}

/* What a link is that stat could not follow: where it leads out, or nowhere, the reason does not matter. */
STACK_ITS_OWN static int kind_of_link(struct walk *w, size_t key_n, const char *name)
{
    struct stat st;
    memcpy(w->key + key_n, name, strlen(name) + 1);
    int _cleanup_close_ fd = file_open_below(w->root, w->key, O_PATH, 0);
    w->key[key_n] = '\0';
    int r = fd < 0 ? fd : sys->fstat(fd, &st);
    if (r < 0)
        return is_nothing(r) || r == -ENAMETOOLONG ? 0 : r;
    return kind_of_stat(&st);
}

/* What a directory entry is: 'f' file, 'd' directory, 0 nothing for us, or a negated errno. A link is what it
 * leads to, or a file; one that leads nowhere is nothing. */
static int kind_of(struct walk *w, int dir, size_t key_n, const struct dirent *d)
{
    bool posix = w->origin->base.posix;
    if (d->d_type == DT_REG || (d->d_type == DT_LNK && posix))
        return 'f';
    if (d->d_type == DT_DIR)
        return 'd';
    if (d->d_type != DT_LNK && d->d_type != DT_UNKNOWN)
        return 0;
    struct stat st;
    if (fstatat(dir, d->d_name, &st, posix ? AT_SYMLINK_NOFOLLOW : 0) == 0)
        return kind_of_stat(&st);
    int r = -errno;
    return is_nothing(r) ? 0 : posix ? r : kind_of_link(w, key_n, d->d_name);
}

static void closedirp(DIR **d)
{
    if (*d)
        (void)closedir(*d);
}

/* What was taken aside when its node ended: the version that was to be removed or replaced goes, and so does
 * the one that was to replace it; another one comes back. What has lost its name to a third stays aside. */
static void meet_away(const struct file_origin *f, int dir, const char *name, const char *own_name,
                      const uint64_t hash[2], uint64_t ctime_ns)
{
    struct stat st;
    char etag[FILE_ETAG_SIZE];
    bool both = false;
    uint64_t now_ns = sys->real_ns();
    bool is_old = now_ns > ctime_ns && now_ns - ctime_ns > FILE_AWAY_KEEP_NS;
    if ((!is_old && !file_tmp_is_of_killed(name, ctime_ns)) ||
        fstatat(dir, name, &st, f->base.posix ? AT_SYMLINK_NOFOLLOW : 0) < 0)
        return;
    file_etag(&st, etag);
    uint64_t now_hash = hash_placement(slice_str(etag));
    bool is_it = !S_ISDIR(st.st_mode) && (now_hash == hash[0] || now_hash == hash[1]);
    if (!is_it && file_rename_new(dir, name, own_name, &both) < 0)
        return;
    if (is_it || both)
        (void)unlinkat(dir, name, 0);
    log_info("origin",
             is_it ? "what was aside of %s is removed: its removal or replacement ended halfway"
                   : "%s is back: it was not to be removed",
             own_name);
}

/* A file being written, or one that will never be whole. */
void file_meet_tmp(const struct file_origin *f, int dir, const char *name)
{
    struct stat st;
    uint64_t hash[2];
    const char *own_name = file_away_name(name, hash);
    if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return;
    uint64_t ctime_ns = (uint64_t)st.st_ctim.tv_sec * 1000000000 + (uint64_t)st.st_ctim.tv_nsec;
    if (own_name)
        meet_away(f, dir, name, own_name, hash, ctime_ns);
    if (S_ISDIR(st.st_mode) || !file_tmp_is_left(name, ctime_ns))
        return;
    if (unlinkat(dir, name, 0) == 0)
        log_info("origin", "removed %s: its writer has ended", name);
}

/* Keeps the smallest names of the directory that the page may need; `past` is the last one dealt with. */
STACK_ITS_OWN static int scan(struct walk *w, int fd, size_t key_n, const char *past, struct names *x,
                              bool *ret_any)
{
    int own = dup(fd);
    DIR *_cleanup_(closedirp) dir = own < 0 ? NULL : fdopendir(own);
    if (!dir) {
        int r = -errno;
        macro_close(&own);
        return r;
    }
    rewinddir(dir);
    struct dirent *d = NULL;
    int r;
    while ((r = sys->readdir(dir, &d)) == 0 && d) {
        size_t n = strlen(d->d_name);
        if (is_dot(d->d_name))
            continue;
        if (strncmp(d->d_name, FILE_TMP_PREFIX, strlen(FILE_TMP_PREFIX)) == 0) {
            file_meet_tmp(w->origin, fd, d->d_name);
            continue;
        }
        *ret_any = true;
        if (key_n + n > ORIGIN_KEY_MAX_BYTES && !w->page.tells_unfit)
            continue; /* no key can name it */
        int kind = kind_of(w, fd, key_n, d);
        if (kind < 0) {
            memcpy(w->key + key_n, d->d_name, n + 1); /* for the words */
            return kind;
        }
        bool fits = key_n + n + (kind == 'd') <= ORIGIN_KEY_MAX_BYTES;
        if (!kind || (!fits && !w->page.tells_unfit))
            continue;
        memcpy(w->key + key_n, d->d_name, n);
        if (kind == 'd')
            w->key[key_n + n++] = '/';
        w->key[key_n + n] = '\0';
        struct slice key = slice_of(w->key, key_n + n);
        bool wanted = kind == 'd' && fits
                          ? walk_page_may_have(&w->page, key)
                          : slice_starts(key, w->page.prefix) && slice_cmp(key, w->page.after) > 0;
        if (wanted && strcmp(w->key + key_n, past) > 0)
            names_add(x, slice_dup(slice_from(key, key_n)));
    }
    w->key[key_n] = '\0';
    return r;
}

static int walk_dir(struct walk *w, size_t key_n, const struct place *above);

STACK_ITS_OWN static int visit_file(struct walk *w, struct slice key)
{
    struct stat st;
    int _cleanup_close_ file = file_open_below(w->root, w->key, O_PATH | file_nofollow(w->origin), 0);
    int r = file < 0 ? file : sys->fstat(file, &st);
    if (r < 0)
        return is_nothing(r) ? 0 : file_error(w->err, r, "list", key);
    return S_ISREG(st.st_mode) || S_ISLNK(st.st_mode) ? emit(w, key, &st, false) : 0;
}

/* One name of the directory w->key[0..key_n): a file's entry, a common prefix, or what lies in a directory.
 */
static int visit(struct walk *w, size_t key_n, const char *name, const struct place *here)
{
    size_t n = strlen(name);
    memcpy(w->key + key_n, name, n + 1);
    struct slice key = slice_of(w->key, key_n + n);
    int r = 0;
    if (key.n > ORIGIN_KEY_MAX_BYTES) {
        r = walk_page_add_unfit(&w->page, slice_of(w->key, ORIGIN_KEY_MAX_BYTES), w->err);
    } else if (name[n - 1] != '/') {
        r = visit_file(w, key);
    } else if (w->page.delimiter == '/' && key.n > w->page.prefix.n) {
        r = emit(w, key, NULL, true);
    } else {
        r = walk_dir(w, key_n + n, here);
    }
    w->key[key_n] = '\0';
    return r;
}

static bool leads_back(const struct stat *st, const struct place *p)
{
    for (; p; p = p->above)
        if (p->dev == st->st_dev && p->ino == st->st_ino)
            return true;
    return false;
}

/* The names in rounds, each with as many as the page has room for, until the page is full or the names are.
 */
static int walk_names(struct walk *w, int fd, size_t key_n, struct level *v, bool *ret_any)
{
    for (;;) {
        struct names _cleanup_(names_fini) x = {.max = w->page.max - w->page.n + 1};
        x.v = calloc(x.max, sizeof(char *));
        if (!x.v)
            abort();
        int r = scan(w, fd, key_n, v->past, &x, ret_any);
        if (r < 0)
            return file_error(w->err, r, "list", slice_str(w->key));
        qsort(x.v, x.n, sizeof(char *), compare_names);
        for (size_t i = 0; i < x.n && r == 0; i++)
            r = visit(w, key_n, x.v[i], &v->here);
        if (r != 0 || !x.dropped)
            return r;
        (void)snprintf(v->past, sizeof(v->past), "%s", x.v[x.n - 1]);
    }
}

static int walk_dir(struct walk *w, size_t key_n, const struct place *above)
{
    int _cleanup_close_ fd =
        file_open_below(w->root, w->key, O_RDONLY | O_DIRECTORY | file_nofollow(w->origin), 0);
    if (fd == -ENOENT || fd == -ENOTDIR || ((fd == -EXDEV || fd == -ELOOP) && above) ||
        (fd == -ELOOP && w->origin->base.posix))
        return 0; /* gone, or a link that leads out */
    struct level *_cleanup_free_ v = calloc(1, sizeof(*v));
    if (!v)
        abort();
    int r = fd < 0 ? fd : sys->fstat(fd, &v->st);
    if (r < 0)
        return file_error(w->err, r, "list", slice_of(w->key, key_n));
    if (leads_back(&v->st, above))
        return 0;
    struct slice key = slice_of(w->key, key_n);
    bool any = false;
    if (key_n > 0 &&
        (slice_eq(key, w->page.prefix) || (w->directories && slice_starts(key, w->page.prefix)))) {
        r = emit(w, key, &v->st, false);
        any = true;
    }
    v->here = (struct place){v->st.st_dev, v->st.st_ino, above};
    if (r == 0)
        r = walk_names(w, fd, key_n, v, &any);
    if (r == 0 && !any && key_n > 0)
        r = emit(w, key, &v->st, false);
    return r;
}

/* ---- the page ---- */

/* Where the walk begins: the directory part of the prefix. False when no path can begin so. */
static bool start_of(struct walk *w, size_t *ret_n)
{
    char path[ORIGIN_KEY_MAX_BYTES + 1];
    bool is_dir;
    ssize_t slash = slice_rfind(w->page.prefix, '/');
    struct slice dir = slice_sub(w->page.prefix, 0, (size_t)(slash + 1));
    if (dir.n > 0 && file_key_path(dir, path, &is_dir, NULL) < 0)
        return false;
    memcpy(w->key, dir.p ? dir.p : "", dir.n);
    w->key[dir.n] = '\0';
    *ret_n = dir.n;
    return true;
}

static int list(struct file_origin *f, const struct origin_list *l, struct arena *a, struct origin_page *ret,
                struct err *e)
{
    int _cleanup_close_ root = file_open_root(f, e);
    if (root < 0)
        return root;
    struct walk w = {.origin = f, .root = root, .directories = l->directories, .err = e};
    size_t n = 0;
    int r = walk_page_init(&w.page, l, PAGE_MAX, a, e);
    if (r == 0 && start_of(&w, &n))
        r = walk_dir(&w, n, NULL);
    if (r < 0)
        return r;
    walk_page_end(&w.page, ret);
    return 0;
}

int file_list(struct origin *o, const struct origin_list *l, struct arena *a, struct origin_page *ret,
              struct err *e)
{
    int r = list(file_of(o), l, a, ret, e);
    origin_count_request(o, "list", err_http_status(r < 0 ? r : 0));
    return r;
}

/*
 * OPENDIR, READDIR, READDIRPLUS: a directory is a listing with the delimiter '/', walked page by page.
 *
 * The offset of an entry is its number: 1 and 2 are "." and "..", then files that are being written here and
 * are not in the origin yet, then the listing. Going on from where the last call ended is the normal case;
 * for seeks, the first key and the number of each page are remembered (32 bytes and a key for every 1000
 * entries).
 *
 * Invariants:
 *  1. Memory is one page and the list of its beginnings. The page goes when memory is scarce and nobody reads
 * the directory just then (dirs_let_go): where it was is a beginning, from which the listing goes on.
 *  2. An entry that did not fit into a reply is given again by the next one.
 *  3. In a process that took over, entries have the numbers that a new walk gives them: who was in the middle
 * of a directory that changed may miss some or meet them again.
 *  4. With READDIRPLUS every entry that the kernel takes counts as one lookup; above MOUNT_NODES_MAX inodes,
 * above the mount's memory, and where the node has told of the name since the listing began (inval.h),
 * entries are given without attributes, and count nothing. Where it tells of one later, while the entries
 * behind it are waited for, the kernel is to ask again.
 *
 * Failure modes: a listing that fails in the middle gives the entries before it and then its error.
 */
#include "mount/mount_internal.h"

#include "client/client_lister.h"
#include "mount/holdings.h"
#include "mount/request.h"

#include <limits.h>
#include <stdlib.h>

#define DIR_MAGIC  0x6d646972u
#define OPEN_MAGIC 0x6d646f70u
#define SHUT_MAGIC 0x6d647368u /* its RELEASEDIR is not answered yet */

/* What the kernel has of an open directory. A kept cell (kept.h). */
struct dir_open {
    uint32_t magic; /* set last */
    uint64_t node_id;
    uint64_t unique; /* of the kernel's request */
    struct dir *dir; /* of the process that serves now */
};

static_assert(sizeof(struct dir_open) <= KEPT_CELL_BYTES, "fits into a cell");

/* Entry number `first` begins with the key behind `after`. */
struct page_start {
    uint64_t first;
    char *after;
};

struct dir {
    uint32_t magic;
    struct dir *next, *previous; /* all of the mount; covered by the node table's lock */
    struct dir_open *open;
    struct node *node;
    uint32_t n_readers; /* covered by the node table's lock, too: who has `lock`, or is about to take it */
    size_t held_bytes;  /* of the page, as counted in holdings.h */
    struct lock lock;   /* covers the rest: programs may read one directory from several threads */
    char *prefix;       /* of the listing, ends with '/' unless it is the whole bucket */
    size_t prefix_n;
    int code;                     /* < 0: there is none, and what reading gives */
    struct client_lister *lister; /* NULL: at its beginning */
    uint64_t told;                /* inval_serial before it was begun */
    uint64_t at;                  /* number of the entry that `next` will be */
    struct wire_entry entry;      /* given next; slices point into the lister */
    bool has_entry, ended;
    struct node **staged; /* not in the origin yet; referenced */
    size_t n_staged;
    struct page_start *starts;
    size_t n_starts, since_start;
    char *last_key;
};

#define FIRST_LISTED(d) (2 + (d)->n_staged)
#define PAGE_ENTRIES    1000
#define GIVEN_MIN       64 /* entries; as many as fit into a reply */

/* ---- staged files ---- */

static void add_staged(void *arg, struct node *n)
{
    struct dir *d = arg;
    d->staged = realloc(d->staged, (d->n_staged + 1) * sizeof(d->staged[0]));
    if (!d->staged)
        abort();
    d->staged[d->n_staged++] = n;
}

static void drop_staged(struct mount *m, struct dir *d)
{
    for (size_t i = 0; i < d->n_staged; i++)
        node_unref(m->nodes, d->staged[i]);
    free(d->staged);
    d->staged = NULL;
    d->n_staged = 0;
}

/* It may be renamed by now, to another directory too, or removed. */
static bool is_here_locked(const struct dir *d, const struct node *n)
{
    return n->is_attached && n->parent == d->node;
}

static bool is_staged(struct mount *m, const struct dir *d, struct slice name)
{
    LOCK_SCOPE(node_table_lock(m->nodes));
    for (size_t i = 0; i < d->n_staged; i++) {
        const struct node *n = d->staged[i];
        if (is_here_locked(d, n) && slice_eq(slice_of(n->name, n->name_n), name))
            return true;
    }
    return false;
}

/* ---- walking ---- */

static struct slice name_of_entry(const struct dir *d)
{
    struct slice name = slice_from(d->entry.key, d->prefix_n);
    return slice_ends(name, SLICE_LIT("/")) ? slice_sub(name, 0, name.n - 1) : name;
}

static void forget_starts(struct dir *d)
{
    for (size_t i = 0; i < d->n_starts; i++)
        free(d->starts[i].after);
    free(d->starts);
    d->starts = NULL;
    d->n_starts = 0;
}

static void add_start(struct dir *d)
{
    d->starts = realloc(d->starts, (d->n_starts + 1) * sizeof(d->starts[0]));
    if (!d->starts)
        abort();
    d->starts[d->n_starts++] =
        (struct page_start){.first = d->at, .after = slice_dup(slice_str(d->last_key ? d->last_key : ""))};
}

static void remember_start(struct dir *d)
{
    if (d->since_start++ < PAGE_ENTRIES || (d->n_starts > 0 && d->starts[d->n_starts - 1].first >= d->at))
        return;
    d->since_start = 0;
    add_start(d);
}

/* Begins the listing behind a key; the entry then is number `at`. */
static void start_at(struct mount *m, struct dir *d, const char *after, uint64_t at)
{
    struct client_lister_open o = {
        .bucket = slice_str(m->bucket),
        .prefix = slice_of(d->prefix, d->prefix_n),
        .delimiter = '/',
        .after = slice_str(after),
        .flags = WIRE_POSIX,
        .page = PAGE_ENTRIES,
    };
    client_lister_free(d->lister);
    d->told = inval_serial(m->inval);
    d->lister = client_lister_new(m->client, &o);
    char *last_key = slice_dup(o.after);
    free(d->last_key);
    d->last_key = last_key;
    d->at = at;
    d->since_start = 0;
    d->has_entry = d->ended = false;
}

/* Makes d->entry the entry number d->at. 1, 0 at the end, or an error. */
static int peek(struct mount *m, struct dir *d, struct err *e)
{
    while (!d->has_entry && !d->ended) {
        int r = client_lister_next(d->lister, &d->entry, e);
        if (r < 0)
            return r;
        d->ended = r == 0;
        if (d->ended)
            break;
        struct slice name =
            slice_starts(d->entry.key, slice_of(d->prefix, d->prefix_n)) ? name_of_entry(d) : SLICE_NULL;
        d->has_entry = name.n > 0 && !is_staged(m, d, name);
    }
    return d->has_entry;
}

/* What the page takes, counted anew. */
static void count_page(struct dir *d)
{
    size_t bytes = client_lister_bytes(d->lister);
    holdings_take(HOLDING_LISTINGS, bytes);
    holdings_give(HOLDING_LISTINGS, d->held_bytes);
    d->held_bytes = bytes;
}

static void advance(struct dir *d)
{
    free(d->last_key);
    d->last_key = slice_dup(d->entry.key);
    d->has_entry = false;
    d->at++;
    remember_start(d);
}

/* Stands before entry number `offset` of the listing. */
static int seek(struct mount *m, struct dir *d, uint64_t offset, struct err *e)
{
    if (d->lister && d->at == offset)
        return 0;
    if (!d->lister || offset < d->at) {
        size_t i = d->n_starts;
        while (i > 0 && d->starts[i - 1].first > offset)
            i--;
        if (i > 0)
            start_at(m, d, d->starts[i - 1].after, d->starts[i - 1].first);
        else
            start_at(m, d, "", FIRST_LISTED(d));
    }
    while (d->at < offset) {
        int r = peek(m, d, e);
        if (r < 0)
            return r;
        if (r == 0)
            break;
        advance(d);
    }
    return 0;
}

/* The same order in each process that serves. */
static int by_id(const void *a, const void *b)
{
    uint64_t x = (*(struct node *const *)a)->id, y = (*(struct node *const *)b)->id;
    return (x > y) - (x < y);
}

static void collect_staged(struct mount *m, struct dir *d)
{
    staging_each(m, d->node, STAGING_UNPUBLISHED, add_staged, d);
    if (d->n_staged > 1)
        qsort(d->staged, d->n_staged, sizeof(d->staged[0]), by_id);
}

static void rewind_dir(struct mount *m, struct dir *d)
{
    drop_staged(m, d);
    forget_starts(d);
    client_lister_free(TAKE_PTR(d->lister));
    collect_staged(m, d);
}

/* ---- filling a reply ---- */

struct given {
    struct node *node; /* referenced */
    double told_s;     /* how long the kernel may believe it */
};

struct filler {
    fuse_req_t req;
    struct mount *m;
    struct dir *d;
    bool plus;
    char *p;
    size_t size, used;
    uint64_t ino, parent_ino; /* of the directory, which may be renamed meanwhile */
    struct given *given;      /* whose attributes go along */
    size_t n_given, given_room;
};

/* Adds one entry without attributes of its own. false: no room. */
static bool add_plain(struct filler *f, const char *name, uint64_t ino, mode_t type, uint64_t next)
{
    struct fuse_entry_param entry = {.attr = {.st_ino = ino, .st_mode = type}};
    size_t left = f->size - f->used;
    size_t n = f->plus ? fuse_add_direntry_plus(f->req, f->p + f->used, left, name, &entry, (off_t)next)
                       : fuse_add_direntry(f->req, f->p + f->used, left, name, &entry.attr, (off_t)next);
    if (n > left)
        return false;
    f->used += n;
    return true;
}

static void note_given(struct filler *f, struct node *n, double told_s)
{
    if (f->n_given == f->given_room) {
        f->given_room = MAX(2 * f->given_room, GIVEN_MIN);
        f->given = realloc(f->given, f->given_room * sizeof(f->given[0]));
        if (!f->given)
            abort();
    }
    f->given[f->n_given++] = (struct given){node_ref(f->m->nodes, n), told_s};
}

/* After the reply: of what the node has told meanwhile the kernel was told before it had the entry. serial,
 * told: warm_serial and inval_serial before the first of them. */
static void check_given(struct filler *f, uint64_t serial, uint64_t told)
{
    for (size_t i = 0; i < f->n_given; i++) {
        struct node *n = f->given[i].node;
        mount_check_told(f->m, serial, n, f->given[i].told_s);
        inval_check_node(f->m->inval, told, n);
        node_unref(f->m->nodes, n);
    }
    free(f->given);
}

/* Adds an entry that counts as a lookup of n, which was counted. */
static bool add_node(struct filler *f, const char *name, struct node *n, uint64_t next)
{
    struct fuse_entry_param entry;
    mount_entry(f->m, n, &entry);
    size_t left = f->size - f->used;
    size_t used = fuse_add_direntry_plus(f->req, f->p + f->used, left, name, &entry, (off_t)next);
    if (used > left) {
        node_forget(f->m->nodes, n->id, 1);
        return false;
    }
    f->used += used;
    note_given(f, n, entry.attr_timeout);
    return true;
}

/*
 * What a listing says of an entry, which is not all where the bucket keeps modes and links: a small object
 * may be a link, which only its metadata tells, and is then 0, "unknown", on which programs ask. No
 * attributes go with such entries: they would be those of the object, and a question for each would make a
 * listing of strangers' objects as many requests.
 */
static mode_t kind_of_entry(struct mount *m, struct dir *d, struct slice name)
{
    if (d->entry.attr.kind == WIRE_DIRECTORY)
        return S_IFDIR;
    if (!m->posix || d->entry.attr.size_bytes == 0 || d->entry.attr.size_bytes >= PATH_MAX)
        return S_IFREG;
    mode_t kind = 0;
    struct node *n = node_find(m->nodes, d->node, name);
    if (!n)
        return kind;
    lock_take(node_table_lock(m->nodes));
    if (n->has_owner)
        kind = n->mode & S_IFMT;
    lock_drop(node_table_lock(m->nodes));
    node_unref(m->nodes, n);
    return kind;
}

/* Of a file that was written here another version may be there by now: LOOKUP finds that out. */
static bool may_be_replaced(struct filler *f, struct slice name)
{
    struct node *n = node_find(f->m->nodes, f->d->node, name);
    bool may = n && staging_is_left(f->m, n);
    node_unref(f->m->nodes, n);
    return may;
}

static bool add_listed(struct filler *f)
{
    struct dir *d = f->d;
    struct slice name = name_of_entry(d);
    _cleanup_free_ char *text = slice_dup(name);
    uint64_t ino = node_ino(f->ino, name);
    bool has_room = node_table_count(f->m->nodes) < MOUNT_NODES_MAX && !holdings_is_over();
    /* The page may be older than what was told since: what the kernel has of then stays. */
    if (!f->plus || f->m->posix || !has_room || !inval_is_current(f->m->inval, d->told, ino) ||
        may_be_replaced(f, name))
        return add_plain(f, text, ino, kind_of_entry(f->m, d, name), d->at + 1);
    struct node_attr a = mount_node_attr(f->m, &d->entry.attr, /* has_meta= */ false);
    struct node *n = node_look_up(f->m->nodes, d->node, name, &a);
    bool fits = add_node(f, text, n, d->at + 1);
    node_unref(f->m->nodes, n);
    return fits;
}

static bool add_staged_entry(struct filler *f, size_t i)
{
    struct node *n = f->d->staged[i];
    lock_take(node_table_lock(f->m->nodes));
    _cleanup_free_ char *name = slice_dup(slice_of(n->name, n->name_n));
    uint64_t ino = n->ino;
    bool is_here = is_here_locked(f->d, n);
    lock_drop(node_table_lock(f->m->nodes));
    return !is_here || add_plain(f, name, ino, S_IFREG,
                                 3 + i); /* the kernel asks for its attributes when it needs them */
}

/* Fills what comes before the listing; false when the reply is full. */
static bool fill_head(struct filler *f, uint64_t offset)
{
    struct dir *d = f->d;
    if (offset < 1 && !add_plain(f, ".", f->ino, S_IFDIR, 1))
        return false;
    if (offset < 2 && !add_plain(f, "..", f->parent_ino, S_IFDIR, 2))
        return false;
    for (uint64_t i = offset < 2 ? 0 : offset - 2; i < d->n_staged; i++)
        if (!add_staged_entry(f, i))
            return false;
    return true;
}

static int fill(struct filler *f, uint64_t offset, struct err *e)
{
    struct dir *d = f->d;
    if (offset == 0)
        rewind_dir(f->m, d);
    node_inos(f->m->nodes, d->node, &f->ino, &f->parent_ino);
    if (!fill_head(f, offset))
        return 0;
    int r = seek(f->m, d, MAX(offset, (uint64_t)FIRST_LISTED(d)), e);
    while (r == 0) {
        r = peek(f->m, d, e);
        if (r <= 0 || !add_listed(f))
            break;
        advance(d);
        r = 0;
    }
    return r < 0 && f->used == 0 ? r : 0;
}

/* What its names begin with in a listing. */
static int prefix_of(struct mount *m, struct node *n, struct buf *b)
{
    int r = mount_key(m, n, SLICE_NULL, b);
    return r == 0 && b->n > 0 && b->p[b->n - 1] != '/' ? buf_char(b, '/') : r;
}

/* Who reads it next asks for its page again, from where it was. */
static void drop_page(struct dir *d)
{
    if (!d->lister)
        return;
    if (d->n_starts == 0 || d->starts[d->n_starts - 1].first < d->at)
        add_start(d);
    client_lister_free(TAKE_PTR(d->lister));
    d->has_entry = false;
}

/* Another name for what begins with the directory's. */
static void move_key(const struct dir *d, struct slice prefix, char **key)
{
    if (!*key || !slice_starts(slice_str(*key), slice_of(d->prefix, d->prefix_n)))
        return; /* "": the beginning */
    _cleanup_buf_ struct buf moved = BUF_INIT(prefix.n + strlen(*key) + 1);
    int r = buf_slice(&moved, prefix);
    r = r < 0 ? r : buf_slice(&moved, slice_from(slice_str(*key), d->prefix_n));
    assert(r == 0);
    free(*key);
    *key = slice_dup(buf_view(&moved));
}

/* It, or a directory above it, may be renamed while it is open: it is read on under its new name. */
static int follow(struct mount *m, struct dir *d)
{
    _cleanup_buf_ struct buf prefix = BUF_INIT(MOUNT_KEY_MAX_BYTES + 1);
    pause_wait(m, d->node);
    d->code = MIN(prefix_of(m, d->node, &prefix), 0);
    if (d->code < 0 || slice_eq(buf_view(&prefix), slice_of(d->prefix, d->prefix_n)))
        return d->code;
    drop_page(d);
    for (size_t i = 0; i < d->n_starts; i++)
        move_key(d, buf_view(&prefix), &d->starts[i].after);
    move_key(d, buf_view(&prefix), &d->last_key);
    free(d->prefix);
    d->prefix_n = prefix.n;
    d->prefix = buf_take(&prefix);
    return 0;
}

static struct dir *dir_of(const struct fuse_file_info *fi)
{
    struct dir_open *o = CAST_MAGIC(dir_open, (void *)(uintptr_t)fi->fh, OPEN_MAGIC);
    return CAST_MAGIC(dir, o->dir, DIR_MAGIC);
}

static void note_reader(struct mount *m, struct dir *d, uint32_t n)
{
    LOCK_SCOPE(node_table_lock(m->nodes));
    d->n_readers += n;
}

static void let_go_locked(struct dir *d)
{
    if (!d->lister || d->n_readers > 0)
        return;
    drop_page(d);
    count_page(d);
}

void dirs_let_go(struct mount *m)
{
    LOCK_SCOPE(node_table_lock(m->nodes));
    for (struct dir *d = m->dirs; d; d = d->next)
        let_go_locked(d);
}

static void read_dir(fuse_req_t req, size_t size, off_t offset, struct fuse_file_info *fi, bool plus)
{
    struct err e = {0};
    struct filler f = {
        .req = req, .m = mount_of(req), .d = dir_of(fi), .plus = plus, .p = malloc(size), .size = size};
    if (!f.p)
        abort();
    uint64_t serial = warm_serial(f.m->warm), told = inval_serial(f.m->inval);
    note_reader(f.m, f.d, 1);
    lock_take(&f.d->lock); /* held over the listing: the position is one per open directory */
    int r = follow(f.m, f.d);
    r = r < 0 ? r : fill(&f, (uint64_t)offset, &e);
    count_page(f.d);
    lock_drop(&f.d->lock);
    note_reader(f.m, f.d, -1u);
    if (r < 0)
        mount_reply_error(req, "readdir", r, &e);
    else
        (void)fuse_reply_buf(req, f.p, f.used);
    check_given(&f, serial, told);
    free(f.p);
    if (plus)
        notifier_poke(f.m->notifier);
}

void mount_op_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t offset, struct fuse_file_info *fi)
{
    (void)ino;
    read_dir(req, size, offset, fi, /* plus= */ false);
}

void mount_op_readdirplus(fuse_req_t req, fuse_ino_t ino, size_t size, off_t offset,
                          struct fuse_file_info *fi)
{
    (void)ino;
    read_dir(req, size, offset, fi, /* plus= */ true);
}

/* ---- opening and closing ---- */

/* The cell stays, until RELEASEDIR is answered. */
static struct dir_open *dir_shut(struct mount *m, struct dir *d)
{
    struct dir_open *o = d->open;
    lock_take(node_table_lock(m->nodes));
    *(d->previous ? &d->previous->next : &m->dirs) = d->next;
    if (d->next)
        d->next->previous = d->previous;
    o->magic = SHUT_MAGIC;
    lock_drop(node_table_lock(m->nodes));
    drop_staged(m, d);
    forget_starts(d);
    client_lister_free(TAKE_PTR(d->lister));
    count_page(d);
    holdings_give(HOLDING_DIRECTORIES, holdings_chunk(sizeof(*d)));
    node_unref(m->nodes, d->node);
    lock_fini(&d->lock);
    free(d->prefix);
    free(d->last_key);
    d->magic = 0;
    free(d);
    return o;
}

static void open_give(struct mount *m, struct dir_open *o)
{
    assert(o->magic == SHUT_MAGIC);
    o->magic = 0;
    kept_give(m->seat.kept, o);
}

/* Takes over the reference to n. */
static void dir_new(struct mount *m, struct node *n, struct dir_open *o)
{
    _cleanup_buf_ struct buf prefix = BUF_INIT(MOUNT_KEY_MAX_BYTES + 1);
    int r = prefix_of(m, n, &prefix);
    struct dir *d = calloc(1, sizeof(*d));
    if (!d)
        abort();
    holdings_take(HOLDING_DIRECTORIES, holdings_chunk(sizeof(*d)));
    d->magic = DIR_MAGIC;
    d->open = o;
    d->node = n;
    d->code = MIN(r, 0);
    d->prefix_n = prefix.n;
    d->prefix = buf_take(&prefix);
    lock_init(&d->lock, LOCK_SESSION); /* above the client's and the node table's */
    LOCK_SCOPE(node_table_lock(m->nodes));
    o->dir = d;
    d->next = m->dirs;
    if (d->next)
        d->next->previous = d;
    m->dirs = d;
}

/* As handle_of_before in open.c. */
static struct dir_open *open_of_before(struct mount *m)
{
    if (!request_comes_again())
        return NULL;
    LOCK_SCOPE(node_table_lock(m->nodes));
    for (struct dir *d = m->dirs; d; d = d->next)
        if (d->open->unique == request_unique())
            return d->open;
    return NULL;
}

static int open_dir(struct mount *m, fuse_ino_t ino, struct dir_open **ret)
{
    struct node *n = node_get(m->nodes, ino);
    bool has_room = kept_has_room(m->seat.kept) && holdings_may(sizeof(struct dir) + KEPT_CELL_BYTES);
    struct dir_open *o = n && has_room ? kept_take(m->seat.kept, KEPT_DIRECTORY) : NULL;
    if (!o) {
        bool is_known = n != NULL;
        node_unref(m->nodes, n);
        return is_known ? -ENFILE : -ESTALE;
    }
    o->node_id = n->id;
    o->unique = request_unique();
    dir_new(m, n, o);
    int r = o->dir->code;
    if (r < 0) {
        open_give(m, dir_shut(m, o->dir));
        return r;
    }
    atomic_signal_fence(memory_order_seq_cst);
    o->magic = OPEN_MAGIC;
    *ret = o;
    return 0;
}

void mount_op_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct mount *m = mount_of(req);
    struct dir_open *o = open_of_before(m);
    int r = o ? 0 : open_dir(m, ino, &o);
    if (r < 0) {
        mount_reply_error(req, "opendir", r, NULL);
        return;
    }
    fi->fh = (uintptr_t)o;
    if (fuse_reply_open(req, fi) < 0)
        open_give(m, dir_shut(m, o->dir));
}

void dir_close_all(struct mount *m)
{
    while (m->dirs) /* no other thread runs */
        open_give(m, dir_shut(m, m->dirs));
}

void mount_op_releasedir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    (void)ino;
    struct mount *m = mount_of(req);
    struct dir_open *o = (struct dir_open *)(uintptr_t)fi->fh;
    if (o->magic != SHUT_MAGIC) /* else by a process before this one */
        (void)dir_shut(m, dir_of(fi));
    (void)fuse_reply_err(req, 0);
    open_give(m, o);
}

static void resume_dir(struct mount *m, struct dir_open *o)
{
    struct node *n = node_get(m->nodes, o->node_id);
    if (!n)
        n = node_resume_lost(m->nodes, o->node_id);
    dir_new(m, n, o); /* which has no prefix when a directory above it has a longer name by now */
    collect_staged(m, o->dir);
}

void dirs_resume(struct mount *m)
{
    for (struct dir_open *o = NULL, *next = kept_next(m->seat.kept, KEPT_DIRECTORY, NULL); (o = next);) {
        next = kept_next(m->seat.kept, KEPT_DIRECTORY, o);
        if (o->magic == OPEN_MAGIC)
            resume_dir(m, o);
        else if (o->magic == 0)
            kept_give(m->seat.kept, o);
    }
}

/* Names are in the origin before the call that made them returns. */
void mount_op_fsyncdir(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi)
{
    (void)ino, (void)datasync, (void)fi;
    (void)fuse_reply_err(req, 0);
}

/*
 * OPENDIR, READDIR, READDIRPLUS, RELEASEDIR, FSYNCDIR.
 *
 * The offset of an entry is its cookie, which the node gave its name when it was made and gives no other: 1
 * and 2 are "." and "..". So a position holds however the directory changes, and each reply is a question of
 * its own: nothing is kept but where the reading began, so that it does not meet what is made meanwhile.
 *
 * Failure modes: what of the node's answer does not fit into the kernel's buffer is dropped and asked again.
 */
#include "mount/tree.h"

#include "mount/holdings.h"

#define DIR_MAGIC         0x74646972u
#define SHUT_MAGIC        0x74647368u /* its RELEASEDIR is not answered yet */
#define COOKIE_DOT        1
#define COOKIE_DOT_DOT    2
#define PARENT_UNKNOWN    1
#define ENTRIES_MIN_BYTES (8 * KIB) /* holds any one entry, also with the longest target of a link */

/* A kept cell (kept.h). */
struct tree_dir {
    uint32_t magic;                   /* set last */
    struct tree_dir *next, *previous; /* all of the mount; covered by the table's lock */
    _Atomic uint64_t until;           /* as the node said when the reading began; 0: it has not */
    uint64_t unique;                  /* of the kernel's request that it answers */
};

static_assert(sizeof(struct tree_dir) <= KEPT_CELL_BYTES, "fits into a cell");

struct filler {
    fuse_req_t req;
    struct mount *m;
    uint64_t ino;
    bool plus;
    char *p;
    size_t size, used;
};

static struct tree_dir *dir_of(const struct fuse_file_info *fi)
{
    return CAST_MAGIC(tree_dir, (void *)(uintptr_t)fi->fh, DIR_MAGIC);
}

/* Adds an entry. inode: its attributes, which the kernel then believes; NULL: none. false: no room. */
static bool add(struct filler *f, const char *name, uint64_t ino, mode_t type, const struct wire_inode *inode,
                uint64_t cookie)
{
    struct fuse_entry_param entry = {.attr = {.st_ino = ino, .st_mode = type}};
    size_t left = f->size - f->used;
    if (inode)
        tree_fill_entry(f->m, inode, &entry);
    size_t n = f->plus ? fuse_add_direntry_plus(f->req, f->p + f->used, left, name, &entry, (off_t)cookie)
                       : fuse_add_direntry(f->req, f->p + f->used, left, name, &entry.attr, (off_t)cookie);
    if (n > left)
        return false;
    f->used += n;
    return true;
}

/* Of the directory above; of the mount's root itself, as of every file system. */
static uint64_t parent_of(struct filler *f)
{
    struct wire_tree_lookup_req req = {
        .bucket = slice_str(f->m->bucket), .parent = f->ino, .name = SLICE_LIT("..")};
    struct wire_tree_lookup_rep rep;
    struct err e = {0};
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    if (f->ino == f->m->tree->root)
        return f->ino;
    return client_tree_lookup(f->m->client, &req, &b, &rep, &e) == 0 ? rep.inode.ino : PARENT_UNKNOWN;
}

/* "." and ".."; false when the reply is full. */
static bool fill_head(struct filler *f, uint64_t after)
{
    if (after < COOKIE_DOT && !add(f, ".", f->ino, S_IFDIR, NULL, COOKIE_DOT))
        return false;
    return after >= COOKIE_DOT_DOT || add(f, "..", parent_of(f), S_IFDIR, NULL, COOKIE_DOT_DOT);
}

static int fill_entries(struct filler *f, struct slice entries)
{
    struct wire_dirent x;
    int r;
    while ((r = wire_dirent_decode(&entries, &x)) == 0) {
        char name[MOUNT_NAME_MAX_BYTES + 1];
        if (x.name.n == 0 || x.name.n > MOUNT_NAME_MAX_BYTES)
            return ERR_PROTOCOL;
        memcpy(name, x.name.p, x.name.n);
        name[x.name.n] = '\0';
        if (f->plus && x.has_inode)
            tree_file_note(f->m, &x.inode);
        if (f->plus && x.has_inode)
            tree_named_note(f->m->tree->named, x.ino, f->ino, x.name);
        if (!add(f, name, x.ino, x.mode & S_IFMT, x.has_inode ? &x.inode : NULL, x.cookie))
            return 0;
    }
    return r == -ENOENT ? 0 : r;
}

static int fill(struct filler *f, struct tree_dir *d, uint64_t after, struct err *e)
{
    if (!fill_head(f, after))
        return 0;
    if (after == 0)
        atomic_store(&d->until, 0);
    /* With attributes an entry takes a quarter less on the wire than in the kernel's buffer. */
    size_t room = f->size - f->used, max = f->plus ? room - room / 4 : room;
    struct wire_tree_readdir_req req = {
        .bucket = slice_str(f->m->bucket),
        .ino = f->ino,
        .after = after <= COOKIE_DOT_DOT ? 0 : after,
        .until = atomic_load(&d->until),
        .max = (uint32_t)max,
        .flags = f->plus ? WIRE_PLUS : 0,
    };
    struct wire_tree_readdir_rep rep;
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    int r = client_tree_readdir(f->m->client, &req, &b, &rep, e);
    if (r == -EINVAL && req.max < ENTRIES_MIN_BYTES) { /* too small for the next one */
        req.max = ENTRIES_MIN_BYTES;
        r = client_tree_readdir(f->m->client, &req, &b, &rep, e);
    }
    if (r == 0) {
        atomic_store(&d->until, rep.until);
        r = fill_entries(f, rep.entries);
    }
    return r < 0 && f->used == 0 ? r : 0;
}

static void read_dir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t offset, struct fuse_file_info *fi,
                     bool plus)
{
    struct mount *m = mount_of(req);
    struct err e = {0};
    _cleanup_free_ char *p = malloc(size ? size : 1);
    if (!p)
        abort();
    struct filler f = {.req = req, .m = m, .ino = tree_ino(m, ino), .plus = plus, .p = p, .size = size};
    int r = fill(&f, dir_of(fi), (uint64_t)offset, &e);
    if (r < 0)
        mount_reply_error(req, "readdir", r, &e);
    else
        (void)fuse_reply_buf(req, f.p, f.used);
}

void tree_op_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t offset, struct fuse_file_info *fi)
{
    read_dir(req, ino, size, offset, fi, /* plus= */ false);
}

void tree_op_readdirplus(fuse_req_t req, fuse_ino_t ino, size_t size, off_t offset, struct fuse_file_info *fi)
{
    read_dir(req, ino, size, offset, fi, /* plus= */ true);
}

static void dir_shut(struct mount *m, struct tree_dir *d)
{
    LOCK_SCOPE(&m->tree->lock);
    *(d->previous ? &d->previous->next : &m->tree->dirs) = d->next;
    if (d->next)
        d->next->previous = d->previous;
    d->magic = SHUT_MAGIC;
}

static void dir_give(struct mount *m, struct tree_dir *d)
{
    assert(d->magic == SHUT_MAGIC);
    d->magic = 0;
    kept_give(m->seat.kept, d);
}

static void dir_free(struct mount *m, struct tree_dir *d)
{
    dir_shut(m, d);
    dir_give(m, d);
}

void tree_dirs_fini(struct mount *m)
{
    while (m->tree->dirs)
        dir_free(m, m->tree->dirs);
}

static void dir_link(struct mount *m, struct tree_dir *d)
{
    LOCK_SCOPE(&m->tree->lock);
    d->previous = NULL;
    d->next = m->tree->dirs;
    if (d->next)
        d->next->previous = d;
    m->tree->dirs = d;
}

void tree_dirs_resume(struct mount *m)
{
    for (struct tree_dir *d = NULL, *next = kept_next(m->seat.kept, KEPT_DIRECTORY, NULL); (d = next);) {
        next = kept_next(m->seat.kept, KEPT_DIRECTORY, d);
        if (d->magic == DIR_MAGIC)
            dir_link(m, d);
        else if (d->magic == 0)
            kept_give(m->seat.kept, d);
    }
}

/* Of a request that comes again: what a process before this one made for it. */
static struct tree_dir *dir_of_before(struct mount *m)
{
    if (!request_comes_again())
        return NULL;
    LOCK_SCOPE(&m->tree->lock);
    struct tree_dir *d = m->tree->dirs;
    while (d && d->unique != request_unique())
        d = d->next;
    return d;
}

static struct tree_dir *dir_new(struct mount *m)
{
    bool has_room = kept_has_room(m->seat.kept) && holdings_may(KEPT_CELL_BYTES);
    struct tree_dir *d = has_room ? kept_take(m->seat.kept, KEPT_DIRECTORY) : NULL;
    if (!d)
        return NULL;
    d->unique = request_unique();
    dir_link(m, d);
    atomic_signal_fence(memory_order_seq_cst);
    d->magic = DIR_MAGIC;
    return d;
}

void tree_op_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    (void)ino;
    struct mount *m = mount_of(req);
    struct tree_dir *d = dir_of_before(m);
    if (!d)
        d = dir_new(m);
    if (!d) {
        (void)fuse_reply_err(req, ENFILE);
        return;
    }
    fi->fh = (uintptr_t)d;
    if (fuse_reply_open(req, fi) < 0) /* no RELEASEDIR comes */
        dir_free(m, d);
}

/* May come again when the process that did it was killed before it answered. */
void tree_op_releasedir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    (void)ino;
    struct mount *m = mount_of(req);
    struct tree_dir *d = (struct tree_dir *)(uintptr_t)fi->fh;
    if (d->magic != SHUT_MAGIC)
        dir_shut(m, dir_of(fi));
    (void)fuse_reply_err(req, 0);
    dir_give(m, d);
}

void tree_op_fsyncdir(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi)
{
    (void)datasync, (void)fi;
    struct mount *m = mount_of(req);
    struct err e = {0};
    struct wire_tree_sync_req q = {.bucket = slice_str(m->bucket), .ino = tree_ino(m, ino)};
    struct wire_tree_sync_rep rep;
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    tree_reply(req, "fsyncdir", client_tree_sync(m->client, &q, &b, &rep, &e), &e);
}

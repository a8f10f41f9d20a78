/*
 * What is open: one tree_file per inode, one tree_handle per open of the kernel.
 *
 * The node is asked for a descriptor by the first open, and again by the first open for writing; all others
 * share what is there. With passthrough the inode's first open registers its descriptor with the kernel, and
 * every further one gets the same id, because the kernel takes no two. A file without bytes has no
 * descriptor; where passthrough is used it is opened for writing for that reason, if that is possible, so
 * that those who write it later can use passthrough, too. One that is made where files stay empty
 * (tree_habit.h) has none until it is written, and is plain.
 *
 * | open already   | the next open                                                            |
 * | -------------- | ------------------------------------------------------------------------ |
 * | nothing        | passthrough when the kernel takes the descriptor, else plain             |
 * | by passthrough | passthrough with the same id                                             |
 * | plainly        | plain: the kernel does not take one that is mapped in both ways          |
 *
 * With a quota of the bucket every file is plain, but of a read-only mount, so that room is asked for before
 * bytes are written (tree_room.c); one that was open by passthrough when the quota was set stays so until its
 * last close.
 *
 * Pages of a plain file stay in the kernel's cache when nobody here has it open for writing, and size and
 * ctime are as they were when it was opened last, some time after that ctime (tree_seen.h); otherwise an open
 * drops them, so that what other mounts closed before is seen. Where the kernel was told another size than
 * the file has by now it is to ask again: without that it reads no further.
 *
 * Invariants:
 *  1. While n_open > 0 a grant of the node is held, unless the node was restarted and has forgotten the
 * inode; then the descriptors are all that is left of it, and enough.
 *  2. Descriptors are closed, and the backing file is unregistered, before CLOSE is sent: the node may then
 * find the file unused.
 *  3. A handle of the node is used in the session it was given in only.
 *
 * Failure modes: a file that the kernel refuses as backing file is plain. A CLOSE that does not reach the
 * node is not repeated: the session has ended, and its handles with it.
 */
#include "mount/tree.h"

#include "base/hash.h"
#include "base/log.h"
#include "base/sys.h"
#include "mount/holdings.h"
#include "mount/queue.h"

#define FILE_MAGIC   0x7466696cu
#define HANDLE_MAGIC 0x7468616eu
#define SHUT_MAGIC   0x74687368u /* of a handle whose RELEASE is not answered yet */

#define TOLD_EVERY 64 /* files that a process which takes over has opened again */

#define FILE_BYTES holdings_chunk(sizeof(struct tree_file))

static_assert(sizeof(struct tree_handle) <= KEPT_CELL_BYTES, "fits into a cell");

static size_t place_of(uint64_t ino)
{
    return hash_mix(ino, 0) % TREE_PLACES;
}

static int64_t ns_of(struct timespec t)
{
    return (int64_t)t.tv_sec * 1000000000ll + t.tv_nsec;
}

/* ---- the table ---- */

void tree_files_init(struct tree *t)
{
    lock_init(&t->lock, LOCK_MOUNT);
}

static struct tree_file *find_locked(struct tree *t, uint64_t ino)
{
    for (struct tree_file *f = t->files[place_of(ino)]; f; f = f->next)
        if (f->ino == ino)
            return f;
    return NULL;
}

struct tree_file *tree_file_find(struct mount *m, uint64_t ino)
{
    LOCK_SCOPE(&m->tree->lock);
    struct tree_file *f = find_locked(m->tree, ino);
    if (f)
        f->refs++;
    return f;
}

static struct tree_file *file_get(struct mount *m, uint64_t ino)
{
    struct tree *t = m->tree;
    LOCK_SCOPE(&t->lock);
    struct tree_file *f = find_locked(t, ino);
    if (!f) {
        f = calloc(1, sizeof(*f));
        if (!f)
            abort();
        holdings_take(HOLDING_FILES, FILE_BYTES);
        f->magic = FILE_MAGIC;
        f->ino = ino;
        f->read_fd = f->write_fd = -1;
        lock_init(&f->room_lock, LOCK_JOBS); /* above `lock`: the lowest rank there is for it */
        lock_init(&f->lock, LOCK_SESSION);   /* above the client's and the table's */
        lock_init(&f->sync_lock, LOCK_READER);
        lock_init(&f->order_lock, LOCK_READER);
        f->next = t->files[place_of(ino)];
        t->files[place_of(ino)] = f;
    }
    f->refs++;
    return f;
}

struct tree_file *tree_file_ref(struct mount *m, struct tree_file *f)
{
    LOCK_SCOPE(&m->tree->lock);
    assert(f->magic == FILE_MAGIC && f->refs > 0);
    f->refs++;
    return f;
}

void tree_file_unref(struct mount *m, struct tree_file *f)
{
    struct tree *t = m->tree;
    LOCK_SCOPE(&t->lock);
    assert(f->magic == FILE_MAGIC && f->refs > 0);
    if (--f->refs > 0)
        return;
    assert(f->n_open == 0 && f->backing_id == 0 && !f->locks);
    struct tree_file **at = &t->files[place_of(f->ino)];
    while (*at != f)
        at = &(*at)->next;
    *at = f->next;
    lock_fini(&f->room_lock);
    lock_fini(&f->lock);
    lock_fini(&f->sync_lock);
    lock_fini(&f->order_lock);
    f->magic = 0;
    free(f);
    holdings_give(HOLDING_FILES, FILE_BYTES);
}

void tree_file_note(struct mount *m, const struct wire_inode *x)
{
    LOCK_SCOPE(&m->tree->lock);
    struct tree_file *f = find_locked(m->tree, x->ino);
    if (!f)
        return;
    f->known = *x;
    f->known.target = SLICE_NULL; /* it lies in the caller's buffer */
    f->is_known = true;
}

bool tree_file_known(struct mount *m, struct tree_file *f, struct wire_inode *ret)
{
    LOCK_SCOPE(&m->tree->lock);
    if (f->is_known)
        *ret = f->known;
    return f->is_known;
}

/* ---- descriptors ---- */

int tree_file_fd(const struct tree_file *f)
{
    int fd = atomic_load(&f->write_fd);
    return fd >= 0 ? fd : atomic_load(&f->read_fd);
}

/* Keeps a descriptor that came along, unless one is there. */
static void take_fd(struct tree_file *f, bool is_write, int fd)
{
    _Atomic int *at = is_write ? &f->write_fd : &f->read_fd;
    if (fd < 0)
        return;
    if (atomic_load(at) < 0)
        atomic_store(at, fd);
    else
        (void)close(fd);
}

/* Asks the node; the grant and the descriptor become the file's. */
static int ask(struct mount *m, struct tree_file *f, uint32_t flags, struct err *e)
{
    struct wire_tree_open_req req = {
        .bucket = slice_str(m->bucket), .ino = f->ino, .flags = flags, TREE_CHANGE(m)};
    struct wire_tree_open_rep rep;
    struct tree_grant grant = {.is_held = true};
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    lock_assert_held(&f->lock);
    int r = client_call_at(m->client, &grant.epoch, WIRE_OP_TREE_OPEN, &req, &b, &rep, e);
    if (r < 0)
        return r;
    bool is_write = flags & WIRE_WRITE;
    struct tree_grant old = is_write ? f->writing : f->reading;
    grant.handle = rep.handle;
    *(is_write ? &f->writing : &f->reading) = grant;
    if (is_write)
        atomic_store(&f->is_room_lost, true); /* what the old handle had ends with it */
    if (rep.is_limited)
        atomic_store(&f->is_limited, true);
    tree_close_later(m, &old);
    take_fd(f, is_write, rep.fd);
    tree_file_note(m, &rep.inode);
    return 0;
}

static bool is_good(struct mount *m, const struct tree_grant *g, const struct tree_grant *bad)
{
    bool is_bad = bad->is_held && bad->epoch == g->epoch && bad->handle == g->handle;
    return g->is_held && g->epoch == client_epoch(m->client) && !is_bad;
}

int tree_file_grant(struct mount *m, struct tree_file *f, bool writes, struct tree_grant *grant,
                    struct err *e)
{
    LOCK_SCOPE(&f->lock);
    bool reads = !writes && is_good(m, &f->reading, grant);
    int r = 0;
    if (!reads && !is_good(m, &f->writing, grant)) {
        r = ask(m, f, writes ? WIRE_WRITE : 0, e);
        reads = !writes;
    }
    if (r < 0)
        return r;
    *grant = reads ? f->reading : f->writing;
    grant->is_for_writing = !reads;
    return 0;
}

int tree_file_fd_again(struct mount *m, struct tree_file *f, int *ret_fd, struct err *e)
{
    int r = 0;
    if (tree_file_fd(f) < 0) {
        LOCK_SCOPE(&f->lock);
        if (tree_file_fd(f) < 0)
            r = ask(m, f, /* flags= */ 0, e);
    }
    if (r == 0)
        *ret_fd = tree_file_fd(f);
    return r;
}

int tree_file_write_fd_again(struct mount *m, struct tree_file *f, int *ret_fd, struct err *e)
{
    int r = 0;
    if (atomic_load(&f->write_fd) < 0) {
        LOCK_SCOPE(&f->lock);
        if (atomic_load(&f->write_fd) < 0)
            r = ask(m, f, WIRE_WRITE, e);
    }
    if (r == 0)
        *ret_fd = atomic_load(&f->write_fd);
    return r;
}

/* ---- whether pages of the last open may stay ---- */

/* Whether the file is as it was when it was opened last, and remembers how it is now. */
static bool is_unchanged(struct mount *m, struct tree_file *f)
{
    struct stat st;
    int fd = tree_file_fd(f);
    if (fd < 0 || sys->fstat(fd, &st) < 0)
        return false;
    LOCK_SCOPE(&m->tree->lock);
    return tree_seen_again(&m->tree->seen[place_of(f->ino)], f->ino, (uint64_t)st.st_size, ns_of(st.st_ctim),
                           (int64_t)sys->real_ns());
}

/* ---- whether the kernel knows the size ---- */

void tree_file_told(struct mount *m, const struct wire_inode *x)
{
    if (!S_ISREG(x->mode) || tree_is_alone(m))
        return;
    LOCK_SCOPE(&m->tree->lock);
    m->tree->told[hash_mix(x->ino, 0) % TREE_TOLD] =
        (struct tree_told){.ino = x->ino, .size_bytes = x->size_bytes};
}

static bool is_told(struct mount *m, const struct tree_file *f)
{
    struct stat st = {0}; /* without a file: no bytes */
    int fd = tree_file_fd(f);
    if (m->tree->is_remote)
        return false;
    if (atomic_load(&f->write_fd) >= 0 || (fd >= 0 && sys->fstat(fd, &st) < 0))
        return false; /* the kernel counts by itself what is written here */
    LOCK_SCOPE(&m->tree->lock);
    const struct tree_told *told = &m->tree->told[hash_mix(f->ino, 0) % TREE_TOLD];
    return told->ino == f->ino && told->size_bytes == (uint64_t)st.st_size;
}

/* ---- opening ---- */

/* Gets what an open of this kind needs from the node, where it is not there yet. */
static int get_grant(struct mount *m, struct tree_file *f, uint32_t flags, struct err *e)
{
    bool may_passthrough = atomic_load(&m->is_passthrough) && !m->read_only;
    if (f->n_open == 0) {
        struct err ignored = {0}; /* without passthrough, then: also a full disk has empty files to be read */
        int r = ask(m, f, flags, e);
        if (r == 0 && tree_file_fd(f) < 0 && may_passthrough && !atomic_load(&f->is_limited))
            (void)ask(m, f, WIRE_WRITE, &ignored);
        return r;
    }
    if (flags & WIRE_TRUNCATE || (flags & WIRE_WRITE && !f->writing.is_held))
        return ask(m, f, flags, e);
    bool lacks_fd = !m->tree->is_remote && tree_file_fd(f) < 0;
    if (lacks_fd || (!f->writing.is_held && !f->reading.is_held))
        return ask(m, f, flags, e);
    return 0;
}

/* The kernel asks again for the attributes. It does not wait for anybody here, as it would for pages. */
static void forget(struct mount *m, struct tree_file *f)
{
    (void)fuse_lowlevel_notify_inval_inode(m->se, tree_id(m, f->ino), -1, 0);
}

/* What another mount has written and closed is read whole by who opens the file then, although the kernel may
 * still believe in an older size. */
static void forget_old_size(struct mount *m, struct tree_file *f)
{
    if (!tree_is_alone(m) && m->timeout_s > 0 && !is_told(m, f))
        forget(m, f);
}

/* What was stored through a mapping has changed times that the kernel may believe in, or still will. st: of
 * the file, NULL when it cannot be had. */
static void forget_attributes(struct mount *m, struct tree_file *f, const struct stat *st)
{
    struct wire_inode known;
    bool same = !tree_may_be_mapped(m, f->ino) && tree_file_known(m, f, &known) && st &&
                (uint64_t)st->st_size == known.size_bytes && ns_of(st->st_mtim) == known.mtime_ns;
    if (!same)
        forget(m, f);
}

/* Whether files that are made in its directory stay empty. */
static void note_habit(struct mount *m, struct tree_file *f, bool has_bytes)
{
    lock_assert_held(&f->lock);
    if (f->made_in != 0)
        tree_habit_note(&m->tree->habit, f->made_in, has_bytes, f->is_late);
    f->made_in = 0;
    f->is_late = false;
}

static void close_all(struct mount *m, struct tree_file *f)
{
    struct stat st = {0};
    lock_assert_held(&f->lock);
    if (f->backing_id > 0)
        passthrough_unregister(m->se, f->backing_id);
    f->backing_id = 0;
    int read_fd = atomic_load(&f->read_fd), write_fd = atomic_load(&f->write_fd);
    bool is_stat = write_fd >= 0 && sys->fstat(write_fd, &st) == 0;
    if (write_fd >= 0 || (m->tree->is_remote && atomic_load(&f->was_written)))
        forget_attributes(m, f, is_stat ? &st : NULL);
    note_habit(m, f, write_fd >= 0 && (!is_stat || st.st_size > 0 || st.st_blocks > 0));
    atomic_store(&f->read_fd, -1);
    atomic_store(&f->write_fd, -1);
    macro_close(&read_fd);
    macro_close(&write_fd);
    tree_close_later(m, &f->reading);
    tree_close_later(m, &f->writing);
    f->is_passthrough = false;
    atomic_store(&f->was_written, false);
    atomic_store(&f->is_limited, false);
    atomic_store(&f->is_room_lost, true);
}

/* The first open decides for the others. */
static void choose(struct mount *m, struct tree_file *f)
{
    int fd = tree_file_fd(f);
    if (f->n_open > 0)
        return;
    bool may = atomic_load(&m->is_passthrough) && (m->read_only || !atomic_load(&f->is_limited));
    int id = may && fd >= 0 ? passthrough_register(m->se, fd) : 0;
    if (id < 0)
        mount_passthrough_refused(m, id);
    f->backing_id = MAX(id, 0);
    f->is_passthrough = id > 0;
}

/* Counts one more open. */
static void link_handle(struct mount *m, struct tree_file *f, struct tree_handle *h)
{
    lock_assert_held(&f->lock);
    f->n_open++;
    if (h->is_writable)
        atomic_store(&f->was_written, true);
    LOCK_SCOPE(&m->tree->lock);
    h->file = f;
    h->faults_told = atomic_load(&f->faults);
    h->previous = NULL;
    h->next = m->tree->handles;
    if (h->next)
        h->next->previous = h;
    m->tree->handles = h;
}

/* Of a request that comes again: the handle that a process before this one made for it, and of which the
 * kernel was not told any more. */
static struct tree_handle *handle_of_before(struct mount *m, const struct tree_file *f)
{
    if (!request_comes_again())
        return NULL;
    LOCK_SCOPE(&m->tree->lock);
    struct tree_handle *h = m->tree->handles;
    while (h && (h->unique != request_unique() || h->file != f))
        h = h->next;
    return h;
}

static struct tree_handle *handle_new(struct mount *m, struct tree_file *f, bool is_writable)
{
    struct tree_handle *h = kept_take(m->seat.kept, KEPT_HANDLE); /* of what is held back, if need be */
    if (!h)
        return NULL;
    choose(m, f);
    h->ino = f->ino;
    h->is_writable = is_writable;
    h->backing_id = f->backing_id;
    h->unique = request_unique();
    link_handle(m, f, h);
    atomic_signal_fence(memory_order_seq_cst);
    h->magic = HANDLE_MAGIC;
    return h;
}

/* Takes over the caller's reference, but when it fails. */
static int add_handle(struct mount *m, struct tree_file *f, bool is_writable, struct tree_opened *ret)
{
    struct tree_handle *h = handle_of_before(m, f);
    if (h)
        tree_file_unref(m, f); /* it has one of its own */
    else
        h = handle_new(m, f, is_writable);
    if (!h)
        return -EMFILE;
    *ret = (struct tree_opened){.handle = h, .backing_id = f->backing_id};
    ret->keep_cache = !f->is_passthrough && !atomic_load(&f->was_written) && is_unchanged(m, f);
    return 0;
}

/* Others may take it meanwhile; then the file is made, and the open of it fails all the same. */
static bool has_descriptor(const struct mount *m)
{
    int fd = fcntl(fuse_session_fd(m->se), F_DUPFD_CLOEXEC, 0);
    bool has = fd >= 0;
    macro_close(&fd);
    return has;
}

int tree_files_check_room(const struct mount *m, bool makes)
{
    if (request_comes_again())
        return 0;
    if (!holdings_may(FILE_BYTES + KEPT_CELL_BYTES))
        return -ENFILE;
    return kept_has_room(m->seat.kept) && (!makes || has_descriptor(m)) ? 0 : -EMFILE;
}

int tree_file_open(struct mount *m, uint64_t ino, uint32_t flags, struct tree_opened *ret, struct err *e)
{
    int r = tree_files_check_room(m, /* makes= */ flags & WIRE_TRUNCATE);
    if (r < 0)
        return r;
    struct tree_file *f = file_get(m, ino);
    queue_lock(&f->lock); /* held over the call to the node, see tree.h */
    r = get_grant(m, f, flags, e);
    if (r == 0)
        r = add_handle(m, f, (flags & WIRE_WRITE) != 0, ret);
    if (r == 0)
        forget_old_size(m, f);
    if (r < 0 && f->n_open == 0)
        close_all(m, f);
    lock_drop(&f->lock);
    if (r < 0)
        tree_file_unref(m, f);
    return r;
}

int tree_file_ask_again(struct mount *m, struct tree_file *f, struct err *e)
{
    LOCK_SCOPE(&f->lock);
    return ask(m, f, WIRE_WRITE, e);
}

/* What the node gave becomes the file's. */
static void take_made(struct mount *m, struct tree_file *f, const struct tree_made *made)
{
    struct tree_grant *grant = made->is_late ? &f->reading : &f->writing, old = *grant;
    lock_assert_held(&f->lock);
    *grant = made->grant;
    atomic_store(&f->is_room_lost, true);
    if (made->rep->is_limited)
        atomic_store(&f->is_limited, true);
    tree_close_later(m, &old); /* an inode just made has none; a request that was sent again may */
    take_fd(f, /* is_write= */ !made->is_late, made->rep->fd);
    if (f->n_open > 0)
        return;
    f->made_in = made->dir;
    f->is_late = made->is_late;
}

int tree_file_adopt(struct mount *m, const struct tree_made *made, struct tree_opened *ret, struct err *e)
{
    struct tree_file *f = file_get(m, made->rep->inode.ino);
    queue_lock(&f->lock);
    take_made(m, f, made);
    tree_file_note(m, &made->rep->inode);
    /* Who was faster to open it may have it by passthrough, and so must this one. */
    int r = made->is_late && f->n_open > 0 ? get_grant(m, f, WIRE_WRITE, e) : 0;
    if (r == 0)
        r = add_handle(m, f, /* is_writable= */ true, ret);
    if (r < 0 && f->n_open == 0)
        close_all(m, f);
    lock_drop(&f->lock);
    if (r < 0)
        tree_file_unref(m, f);
    return r;
}

/* ---- closing ---- */

struct tree_handle *tree_handle_of(const struct fuse_file_info *fi)
{
    return CAST_MAGIC(tree_handle, (void *)(uintptr_t)fi->fh, HANDLE_MAGIC);
}

bool tree_handle_is_shut(const struct fuse_file_info *fi)
{
    return ((struct tree_handle *)(uintptr_t)fi->fh)->magic == SHUT_MAGIC;
}

void tree_handle_free(struct mount *m, struct tree_handle *h)
{
    assert(h->magic == SHUT_MAGIC);
    h->magic = 0;
    kept_give(m->seat.kept, h);
}

void tree_file_close(struct mount *m, struct tree_handle *h)
{
    tree_file_shut(m, h);
    tree_handle_free(m, h);
}

void tree_file_shut(struct mount *m, struct tree_handle *h)
{
    struct tree_file *f = h->file;
    tree_unlock_handle(m, h);
    lock_take(&m->tree->lock);
    *(h->previous ? &h->previous->next : &m->tree->handles) = h->next;
    if (h->next)
        h->next->previous = h->previous;
    lock_drop(&m->tree->lock);
    h->file = NULL;
    h->magic = SHUT_MAGIC;
    queue_lock(&f->lock);
    assert(f->n_open > 0);
    if (--f->n_open == 0)
        close_all(m, f);
    h->backing_id = 0; /* is closed, or others have it */
    lock_drop(&f->lock);
    tree_file_unref(m, f);
}

void tree_files_fini(struct mount *m)
{
    while (m->tree->handles) /* no other thread runs */
        tree_file_close(m, m->tree->handles);
}

/* ---- a new session ---- */

/* Whether the node gave a descriptor of another file than the one that is in use here. */
static bool is_other_file(struct mount *m, const struct tree_file *f, int fd)
{
    struct stat ours, theirs;
    int have = tree_file_fd(f);
    return have >= 0 && fd >= 0 && sys->fstat(have, &ours) == 0 && sys->fstat(fd, &theirs) == 0 &&
           (ours.st_ino != theirs.st_ino || ours.st_dev != theirs.st_dev);
}

/* Whether the node did not answer, and is to be asked again. */
static bool is_silence(int r)
{
    return r == -EHOSTDOWN || r == -ETIMEDOUT;
}

/* The node has the inode open for this mount in the session of now, after 0. */
static int renew_grant(struct mount *m, struct tree_file *f, uint64_t epoch)
{
    bool is_write = f->writing.is_held;
    struct err e = {0};
    if ((is_write ? f->writing.epoch : f->reading.epoch) == epoch)
        return 0;
    struct wire_tree_open_req req = {
        .bucket = slice_str(m->bucket), .ino = f->ino, .flags = is_write ? WIRE_WRITE : 0, TREE_CHANGE(m)};
    struct wire_tree_open_rep rep;
    struct tree_grant grant = {.is_held = true};
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    int r = client_call_at(m->client, &grant.epoch, WIRE_OP_TREE_OPEN, &req, &b, &rep, &e);
    if (is_silence(r))
        return r;
    f->reading.is_held = f->writing.is_held = false;
    if (r < 0) {
        log_info("mount", "inode %llu is open here, and the node does not know it any more: %s",
                 (unsigned long long)f->ino, e.text);
        return r;
    }
    grant.handle = rep.handle;
    *(is_write ? &f->writing : &f->reading) = grant;
    if (is_write)
        atomic_store(&f->is_room_lost, true);
    if (rep.is_limited && !f->is_passthrough)
        atomic_store(&f->is_limited, true);
    if (is_other_file(m, f, rep.fd))
        log_error("mount", "inode %llu has other data since the node's restart: close it and open it again",
                  (unsigned long long)f->ino);
    take_fd(f, is_write, rep.fd);
    return 0;
}

/* A file that was opened once more since has its grant, but not its locks. false: to be done again. */
static bool renew(struct mount *m, struct tree_file *f)
{
    LOCK_SCOPE(&f->lock); /* held over calls to the node, as by opens */
    uint64_t epoch = client_epoch(m->client);
    int r = f->n_open > 0 ? renew_grant(m, f, epoch) : -ENOENT;
    return r == 0 ? tree_relock(m, f, epoch, /* is_open= */ true) : !is_silence(r);
}

static bool relock(struct mount *m, struct tree_file *f)
{
    return tree_relock(m, f, client_epoch(m->client), /* is_open= */ false);
}

/* The next file of a place after inode `after`, by its number, referenced: one that goes meanwhile hides no
 * other, whose locks nobody would take again. */
static struct tree_file *next_of_place(struct tree *t, size_t place, uint64_t after)
{
    LOCK_SCOPE(&t->lock);
    struct tree_file *next = NULL;
    for (struct tree_file *f = t->files[place]; f; f = f->next)
        if (f->ino > after && (!next || f->ino < next->ino))
            next = f;
    if (next)
        next->refs++;
    return next;
}

/* Files that come meanwhile are of the new session already. false: one of them said so. */
static bool for_each(struct mount *m, bool (*fn)(struct mount *m, struct tree_file *f))
{
    bool all = true;
    for (size_t place = 0; place < TREE_PLACES; place++) {
        struct tree_file *f;
        for (uint64_t after = 0; (f = next_of_place(m->tree, place, after));) {
            after = f->ino;
            all &= fn(m, f);
            tree_file_unref(m, f);
        }
    }
    return all;
}

bool tree_files_renew(struct mount *m)
{
    return for_each(m, renew);
}

void tree_files_relock(struct mount *m)
{
    (void)for_each(m, relock); /* what it lacks tree_files_renew gets: see notifier_main */
}

static bool forget_one(struct mount *m, struct tree_file *f)
{
    forget(m, f);
    return true;
}

void tree_files_forget(struct mount *m)
{
    (void)for_each(m, forget_one);
}

/* ---- taking over ---- */

static void resume_handle(struct mount *m, struct tree_handle *h)
{
    struct tree_file *f = file_get(m, h->ino);
    LOCK_SCOPE(&f->lock);
    f->backing_id = h->backing_id; /* the kernel still has it */
    f->is_passthrough = h->backing_id > 0;
    if (f->is_passthrough && h->is_writable)
        tree_expect_mapping(m, f->ino);
    link_handle(m, f, h);
}

/* One that was being closed: the kernel's backing file goes, unless others have it. */
static void resume_shut(struct mount *m, struct tree_handle *h)
{
    struct tree_file *f = tree_file_find(m, h->ino);
    if (!f || f->backing_id != h->backing_id)
        passthrough_unregister(m->se, h->backing_id);
    h->backing_id = 0;
    if (f)
        tree_file_unref(m, f);
}

void tree_files_resume(struct mount *m)
{
    for (struct tree_handle *h = NULL, *next = kept_next(m->seat.kept, KEPT_HANDLE, NULL); (h = next);) {
        next = kept_next(m->seat.kept, KEPT_HANDLE, h);
        if (h->magic == HANDLE_MAGIC)
            resume_handle(m, h);
        else if (h->magic == 0)
            kept_give(m->seat.kept, h);
    }
    for (struct tree_handle *h = NULL; (h = kept_next(m->seat.kept, KEPT_HANDLE, h));)
        if (h->magic == SHUT_MAGIC && h->backing_id > 0)
            resume_shut(m, h);
}

void tree_files_reopen(struct mount *m)
{
    unsigned n = 0;
    for (struct tree_handle *h = m->tree->handles; h; h = h->next) { /* no other thread opens or closes */
        struct tree_file *f = h->file;
        struct err e = {0};
        if (++n % TOLD_EVERY == 0)
            keeper_tell_going_on(&m->seat);
        LOCK_SCOPE(&f->lock); /* held over calls to the node, as by opens */
        bool is_held = h->is_writable ? f->writing.is_held : f->writing.is_held || f->reading.is_held;
        int r = is_held ? 0 : ask(m, f, h->is_writable ? WIRE_WRITE : 0, &e);
        if (r < 0)
            log_warn("mount", "inode %llu is open here, and the node does not know it any more: %s",
                     (unsigned long long)f->ino, e.text);
    }
}

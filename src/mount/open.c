/*
 * OPEN, CREATE, RELEASE: in which of its modes an inode is open.
 *
 * The kernel lets an inode be open either by passthrough, all with one backing file, or in other ways. A file
 * opened for direct I/O may be followed by passthrough opens, but not once it was mapped, which this process
 * is not told. Hence:
 *
 * | open already    | the next open                                                                       |
 * | --------------- | ----------------------------------------------------------------------------------- |
 * | nothing         | passthrough when every byte is here, else plain; a file that was kept open (warm.h) |
 * |                 | as it was open, without asking the node                                             |
 * | by passthrough  | passthrough with the same backing file, without asking the node                     |
 * | plainly         | plain; when passthrough would be possible, the next lookup makes a new inode for it |
 *
 * Where the mount has no passthrough, plain opens of a file whose bytes are all here share the inode's
 * backing file (`is_shared`): the second one asks the node no more than a second one by passthrough would.
 *
 * A file opened for reading and writing (O_RDWR) may be mapped for writing. The kernel drops our file when a
 * passthrough mapping is made, so that RELEASE comes although stores still can; such a file is therefore
 * opened plainly, through the page cache. Only where an inode is open by passthrough already there is no
 * choice: then its staging file does not become the cached copy (staging_expect_mapping), and is looked at
 * until the mapping has ended (staging_late.c). O_SYNC and O_DSYNC open plainly, too, so that each write is
 * published; beside one that is open by passthrough they cannot. Nor can whoever opens it while it is looked
 * at: what is stored into the mapping is not in the pages that the kernel has for plain opens, and what is
 * stored into a mapping of those would go over it.
 *
 * A file is opened for writing only when it is not open, or is being written here; otherwise the program's
 * open fails with ESTALE inside the kernel, which looks the name up again, gets a new inode and opens that.
 *
 * Invariants:
 *  1. While n_passthrough > 0 or the file is kept open from then, backing_id is registered, and what keeps
 * its bytes in place is held: backing_file, or the staging that every such handle references.
 *  2. A handle counts in exactly one of n_passthrough and n_plain; of the latter those that are shared count
 * in n_shared, too, and backing_file stays while there is one.
 *  3. While a node has a staging, whoever opens it uses that: a file that was opened to be read while the
 * staging began, and perhaps ended, is closed again, lest it become the backing file of those who write, or
 * of those who open what was written.
 *  4. Pages that the kernel keeps of an inode are of its version. An inode of which a close could not publish
 * what was written is opened no more (staging_is_refused): its name gets another one.
 *  5. RELEASE, which nobody waits for, has ended its handle's mode before the next request is read: an open
 * that follows a close of the same file is not bound to how that was open.
 *
 * Failure modes: a file that the kernel refuses as backing file is served plainly; without the capability
 * passthrough is given up for the whole mount, and the log says so.
 */
#include "mount/mount_internal.h"

#include "base/hash.h"
#include "base/log.h"
#include "base/sys.h"
#include "mount/holdings.h"
#include "mount/queue.h"
#include "mount/request.h"

#include <fcntl.h>

#define HANDLE_MAGIC  0x6d68616eu
#define SHUT_MAGIC    0x6d687368u /* of a handle whose RELEASE is not answered yet */
#define BACKING_MAGIC 0x6d62616bu

#define OPEN_BYTES 1024 /* of an open file: what stands behind its handle, or its share of that */

static_assert(sizeof(struct handle) <= KEPT_CELL_BYTES, "fits into a cell");
static_assert(sizeof(struct backing) <= KEPT_CELL_BYTES, "fits into a cell");

struct handle *handle_of(const struct fuse_file_info *fi)
{
    return CAST_MAGIC(handle, (void *)(uintptr_t)fi->fh, HANDLE_MAGIC);
}

static void link_locked(struct mount *m, struct handle *h, struct node *n)
{
    h->node = n;
    holdings_take(HOLDING_FILES, OPEN_BYTES);
    node_keep_locked(m->nodes, n);
    h->previous = NULL;
    h->next = m->handles;
    if (h->next)
        h->next->previous = h;
    m->handles = h;
}

/* NULL: too many are open, or there is no memory for one more. */
static struct handle *handle_new(struct mount *m, struct node *n, bool is_writable)
{
    bool has_room = kept_has_room(m->seat.kept) && holdings_may(OPEN_BYTES + KEPT_CELL_BYTES);
    struct handle *h = has_room ? kept_take(m->seat.kept, KEPT_HANDLE) : NULL;
    if (!h)
        return NULL;
    h->is_writable = is_writable;
    h->node_id = n->id;
    h->unique = request_unique();
    (void)node_ref(m->nodes, n);
    LOCK_SCOPE(node_table_lock(m->nodes));
    link_locked(m, h, n);
    return h;
}

/* It is open: a process that takes over finds it so. */
static void handle_ready(struct mount *m, struct handle *h)
{
    LOCK_SCOPE(node_table_lock(m->nodes));
    h->backing_id = h->is_passthrough ? h->node->backing_id : 0;
    h->is_staged = h->staging != NULL;
    atomic_signal_fence(memory_order_seq_cst);
    h->magic = HANDLE_MAGIC;
}

/* Of a request that comes again: the handle that it was given by a process before this one, which did not
 * say so any more. */
static struct handle *handle_of_before(struct mount *m)
{
    if (!request_comes_again())
        return NULL;
    LOCK_SCOPE(node_table_lock(m->nodes));
    for (struct handle *h = m->handles; h; h = h->next)
        if (h->unique == request_unique() && h->magic == HANDLE_MAGIC)
            return h;
    return NULL;
}

/* ---- modes ---- */

/* Registers fd as the inode's backing file. Whether the inode is open by passthrough then. */
static bool register_locked(struct mount *m, struct node *n, int fd)
{
    assert(n->n_passthrough == 0 && n->backing_id == 0);
    int id = fd < 0 ? -EBADF : passthrough_register(m->se, fd);
    if (id < 0) {
        mount_passthrough_refused(m, id);
        return false;
    }
    n->backing_id = id;
    n->backing = kept_has_room(m->seat.kept) ? kept_take(m->seat.kept, KEPT_BACKING) : NULL;
    if (n->backing) { /* else the kernel has it until the mount ends, if this process is killed */
        n->backing->id = id;
        n->backing->node_id = n->id;
        atomic_signal_fence(memory_order_seq_cst);
        n->backing->magic = BACKING_MAGIC;
    }
    return true;
}

void mount_unregister_locked(struct mount *m, struct node *n)
{
    if (n->backing_id > 0)
        passthrough_unregister(m->se, n->backing_id);
    n->backing_id = 0;
    if (!n->backing)
        return;
    n->backing->magic = 0;
    kept_give(m->seat.kept, TAKE_PTR(n->backing));
}

/* One more open by passthrough, when the inode is open so. */
static bool join_passthrough_locked(struct node *n, struct handle *h)
{
    if (n->n_passthrough == 0)
        return false;
    n->n_passthrough++;
    h->is_passthrough = true;
    return true;
}

/* One more open that reads from the inode's backing file in this process, when there is such a one. */
static bool join_shared_locked(struct node *n, struct handle *h)
{
    if (n->n_shared == 0)
        return false;
    n->n_shared++;
    n->n_plain++;
    h->is_shared = true;
    return true;
}

static void count_locked(struct node *n, struct handle *h)
{
    n->n_passthrough += h->is_passthrough;
    n->n_plain += !h->is_passthrough;
    n->n_shared += h->is_shared;
}

/* flags: of open(2). By passthrough nobody hears of a write that is to be published before it returns. */
static void choose_for_staging_locked(struct mount *m, struct node *n, struct handle *h, int flags,
                                      struct warm_trash **trash)
{
    bool is_mappable = (flags & O_ACCMODE) == O_RDWR, is_synced = flags & O_DSYNC && h->is_writable;
    if (join_passthrough_locked(n, h)) {
        if (is_mappable)
            staging_expect_mapping(h->staging);
        return;
    }
    warm_forget_locked(m->warm, n, trash);
    bool is_late = staging_may_be_mapped(h->staging); /* by who had it open by passthrough */
    bool may = atomic_load(&m->is_passthrough) && staging_tells_changes(h->staging) && n->n_plain == 0 &&
               (is_late || (!is_mappable && !is_synced));
    h->is_passthrough = may && register_locked(m, n, staging_fd(h->staging));
    count_locked(n, h);
}

static void choose_for_staging(struct mount *m, struct node *n, struct handle *h, int flags)
{
    struct warm_trash *trash = NULL;
    lock_take(node_table_lock(m->nodes));
    choose_for_staging_locked(m, n, h, flags, &trash);
    lock_drop(node_table_lock(m->nodes));
    warm_empty(m->warm, trash);
}

/* Takes `o->file` where it is used; what is left there is the caller's to close. */
static void choose_for_reading_locked(struct mount *m, struct node *n, struct handle *h,
                                      struct mount_opened *o, bool is_complete, struct warm_trash **trash)
{
    if (join_passthrough_locked(n, h) || join_shared_locked(n, h))
        return;
    warm_forget_locked(m->warm, n, trash); /* kept meanwhile by another one's close: this one is newer */
    bool may = is_complete && atomic_load(&m->is_passthrough);
    if (may && n->n_plain > 0 && !n->wants_renewal) {
        n->wants_renewal = true;
        notifier_drop_name(m->notifier, n->parent->id, n->name, n->name_n);
    }
    h->is_passthrough = may && n->n_plain == 0 && register_locked(m, n, client_file_fd(o->file));
    h->is_shared = is_complete && atomic_load(&m->is_cached); /* not before it is known what the mount has */
    uint64_t valid_ms = client_file_valid_ms(o->file);
    bool is_backing = h->is_passthrough || h->is_shared;
    *(is_backing ? &n->backing_file : &h->file) = TAKE_PTR(o->file);
    count_locked(n, h);
    if (is_backing)
        warm_track_locked(m->warm, n, o->key_hash, o->serial, valid_ms);
}

/* false: somebody began to write it meanwhile, or did, also when that is over by now: the file may be the
 * version of before then, and the inode, with the kernel's pages, is of the next one. */
static bool choose_for_reading(struct mount *m, struct node *n, struct handle *h, struct mount_opened *o)
{
    struct warm_trash *trash = NULL;
    bool is_here = client_file_is_complete(o->file);
    lock_take(node_table_lock(m->nodes));
    bool may = !n->staging && !n->is_spoilt && n->n_writings == o->n_writings;
    if (may)
        choose_for_reading_locked(m, n, h, o, is_here, &trash);
    /* The kernel has the file now; descriptors are few. */
    int fd = may && h->is_passthrough && n->backing_file ? client_file_take_fd(n->backing_file) : -1;
    lock_drop(node_table_lock(m->nodes));
    macro_close(&fd);
    warm_empty(m->warm, trash);
    if (may && is_here)
        stats_add(m->stats, STATS_HERE_OPENS, 1);
    return may;
}

/* A file that was kept open is open again as it was: by passthrough, for which nobody may have it open
 * otherwise, or shared. */
static bool use_kept_locked(struct mount *m, struct node *n, struct handle *h, struct warm_trash **trash)
{
    bool is_passthrough = n->backing_id > 0;
    if ((is_passthrough && n->n_plain > 0) || !warm_use_locked(m->warm, n, /* needs_fd= */ true, trash))
        return false;
    h->is_passthrough = is_passthrough;
    h->is_shared = !is_passthrough;
    count_locked(n, h);
    return true;
}

/* A file that is open by passthrough or shared already, or was kept so. */
static bool open_without_asking(struct mount *m, struct node *n, struct handle *h)
{
    struct warm_trash *trash = NULL;
    lock_take(node_table_lock(m->nodes));
    bool done =
        !n->staging && !n->is_spoilt &&
        (join_passthrough_locked(n, h) || join_shared_locked(n, h) || use_kept_locked(m, n, h, &trash));
    lock_drop(node_table_lock(m->nodes));
    warm_empty(m->warm, trash);
    return done;
}

/* ---- opening ---- */

int mount_open_file(struct mount *m, struct node *n, struct mount_opened *ret, struct err *e)
{
    _cleanup_buf_ struct buf key = BUF_INIT(MOUNT_KEY_MAX_BYTES);
    int r = mount_key(m, n, SLICE_NULL, &key);
    if (r < 0)
        return r;
    _cleanup_free_ char *etag = NULL;
    struct client_file_open o = {.bucket = slice_str(m->bucket), .key = buf_view(&key)};
    ret->serial = warm_serial(m->warm);
    ret->key_hash = hash_placement(buf_view(&key));
    lock_take(node_table_lock(m->nodes));
    ret->n_writings = n->n_writings;
    lock_drop(node_table_lock(m->nodes));
    r = mount_open_version(m, n, &o, &ret->file, &etag, e);
    if (r != ERR_PRECONDITION)
        return r;
    /* What is written here, or was published from here since it was asked for, stays found by its name. */
    lock_take(node_table_lock(m->nodes));
    bool is_gone = !n->staging && slice_eq(slice_of(n->etag, n->etag_n), slice_str(etag));
    lock_drop(node_table_lock(m->nodes));
    if (is_gone)
        node_detach(m->nodes, n, /* is_unlinked= */ false);
    return -ESTALE;
}

/* 1: somebody began to write it meanwhile. */
static int try_open_reading(struct mount *m, struct node *n, struct handle *h, struct err *e)
{
    if (open_without_asking(m, n, h)) {
        stats_add(m->stats, STATS_HERE_OPENS, 1);
        stats_add(m->stats, STATS_UNASKED_OPENS, 1);
        return 0;
    }
    queue_may_wait();
    int r = staging_is_refused(m, n) ? -ESTALE : staging_check_left(m, n, e);
    if (r == 0)
        r = staging_acquire(m, n, STAGING_JOIN, &h->staging, e);
    if (r == 0) {
        stats_add(m->stats, STATS_HERE_OPENS, 1);
        choose_for_staging(m, n, h, O_RDONLY); /* for writing */
        return 0;
    }
    struct mount_opened o = {0};
    if (r == -ENOENT)
        r = staging_is_refused(m, n) ? -ESTALE : mount_open_file(m, n, &o, e);
    if (r == 0 && !choose_for_reading(m, n, h, &o))
        r = 1;
    client_file_close(o.file);
    return r;
}

static int open_reading(struct mount *m, struct node *n, struct handle *h, struct err *e)
{
    int r;
    while ((r = try_open_reading(m, n, h, e)) == 1)
        ;
    return r;
}

static int open_writing(struct mount *m, struct node *n, struct handle *h, enum staging_start start,
                        int flags, struct err *e)
{
    queue_may_wait();
    int r = staging_is_refused(m, n) ? -ESTALE : staging_acquire(m, n, start, &h->staging, e);
    if (r == 0)
        choose_for_staging(m, n, h, flags);
    return r;
}

/* Nothing is open through it any more. */
static void handle_leave(struct mount *m, struct handle *h)
{
    struct node *n = h->node;
    lock_take(node_table_lock(m->nodes));
    *(h->previous ? &h->previous->next : &m->handles) = h->next;
    if (h->next)
        h->next->previous = h->previous;
    node_unkeep_locked(m->nodes, n);
    holdings_give(HOLDING_FILES, OPEN_BYTES);
    h->magic = SHUT_MAGIC;
    lock_drop(node_table_lock(m->nodes));
    node_unref(m->nodes, n);
}

static void handle_give(struct mount *m, struct handle *h)
{
    assert(h->magic == SHUT_MAGIC);
    h->magic = 0;
    kept_give(m->seat.kept, h);
}

static void handle_free(struct mount *m, struct handle *h)
{
    handle_leave(m, h);
    handle_give(m, h);
}

/* Ends what choose_* began; the cell stays, until RELEASE is answered. */
static void handle_shut(struct mount *m, struct handle *h)
{
    struct node *n = h->node;
    struct warm_trash *trash = NULL;
    lock_take(node_table_lock(m->nodes));
    struct client_file *file = TAKE_PTR(h->file);
    uint32_t *users = h->is_passthrough ? &n->n_passthrough : &n->n_shared;
    h->backing_id = 0; /* a process that takes over before RELEASE was answered gives it to nobody */
    n->n_plain -= !h->is_passthrough;
    if ((h->is_passthrough || h->is_shared) && --*users == 0 && !warm_keep_locked(m->warm, n, &trash)) {
        mount_unregister_locked(m, n);
        file = TAKE_PTR(n->backing_file);
    }
    if (h->staging && h->is_writable)
        staging_end_writing_locked(h->staging);
    lock_drop(node_table_lock(m->nodes));
    /* Only now: who opens the file after a close returned finds it open no more (invariant 5). */
    if (h->staging)
        queue_may_wait();
    warm_empty(m->warm, trash);
    client_file_close(file);
    if (h->staging)
        staging_release(m, h->staging);
    handle_leave(m, h);
}

static void handle_close(struct mount *m, struct handle *h)
{
    handle_shut(m, h);
    handle_give(m, h);
}

void handle_close_all(struct mount *m)
{
    while (m->handles) /* no other thread runs */
        handle_close(m, m->handles);
}

/* Flags of the reply, and the backing id for it. */
static int reply_flags(struct mount *m, struct handle *h, struct fuse_file_info *fi)
{
    stats_opened(m->stats, h->is_writable, h->is_passthrough);
    fi->fh = (uintptr_t)h;
    fi->noflush = !h->is_writable;
    if (!h->is_passthrough) {
        fi->direct_io = !h->staging && !atomic_load(&m->is_cached);
        fi->keep_cache = 1; /* another version is another inode */
        return 0;
    }
    /* Beside passthrough the kernel takes no other flag than no flush. */
    LOCK_SCOPE(node_table_lock(m->nodes));
    return h->node->backing_id;
}

static int open_node(struct mount *m, struct node *n, int flags, struct handle **ret, struct err *e)
{
    bool is_writable = (flags & O_ACCMODE) != O_RDONLY || flags & O_TRUNC;
    if (n->is_dir)
        return -EISDIR;
    if (is_writable && m->read_only)
        return -EROFS;
    struct handle *h = handle_new(m, n, is_writable);
    if (!h)
        return -ENFILE;
    int r = is_writable ? open_writing(m, n, h, flags & O_TRUNC ? STAGING_EMPTY : STAGING_COPY, flags, e)
                        : open_reading(m, n, h, e);
    if (r < 0) {
        handle_free(m, h);
        return r;
    }
    handle_ready(m, h);
    *ret = h;
    return 0;
}

void mount_op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct mount *m = mount_of(req);
    struct err e = {0};
    struct handle *h = handle_of_before(m);
    struct node *n = h ? NULL : node_get(m->nodes, ino);
    int r = h ? 0 : n ? open_node(m, n, fi->flags, &h, &e) : -ESTALE;
    node_unref(m->nodes, n);
    if (r < 0) { /* removed elsewhere: the kernel looks again, and O_CREAT makes it anew */
        mount_reply_error(req, "open", r == -ENOENT ? -ESTALE : r, &e);
        return;
    }
    int backing_id = reply_flags(m, h, fi);
    if (passthrough_reply_open(req, fi, backing_id) < 0) /* the program was interrupted: no RELEASE comes */
        handle_close(m, h);
}

/* ---- creating ---- */

/* Whether there is something of a name, when no file of that name is being written here. */
static int ask_for_name(struct mount *m, struct node *parent, struct slice name, struct err *e)
{
    _cleanup_buf_ struct buf key = BUF_INIT(MOUNT_KEY_MAX_BYTES), b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    struct wire_attr ignored;
    uint64_t serial;
    int r;
    do {
        serial = pause_serial(m);
        buf_clear(&key);
        buf_clear(&b);
        r = mount_key(m, parent, name, &key);
        if (r == 0)
            r = mount_ask(m, buf_view(&key), &b, &ignored, e);
    } while (r == -ENOENT && pause_was(m, serial, parent));
    return r;
}

/* The node of a name that shall be created: a new one, or the one that this request has made already. Counted
 * for the kernel. -ESTALE of one that exists after all: the kernel looks it up then, and opens it as its mode
 * allows, and what a link leads to. */
static int find_or_make(struct mount *m, struct node *parent, struct slice name, const struct node_attr *made,
                        struct node **ret, enum staging_start *ret_start, int flags, struct err *e)
{
    struct node *staged = node_find(m->nodes, parent, name);
    lock_take(node_table_lock(m->nodes));
    bool exists = staged && staged->staging;
    bool is_own = exists && request_comes_again(); /* begun by a process before this one */
    lock_drop(node_table_lock(m->nodes));
    node_unref(m->nodes, staged);
    if (!exists) {
        int r = ask_for_name(m, parent, name, e);
        if (r < 0 && r != -ENOENT)
            return r;
        exists = r == 0;
    }
    if (exists && !is_own)
        return flags & O_EXCL ? -EEXIST : -ESTALE;
    *ret_start = !exists ? STAGING_NEW : flags & O_TRUNC ? STAGING_EMPTY : STAGING_COPY;
    *ret = node_look_up(m->nodes, parent, name, made);
    return 0;
}

/* made: attributes of what is new. */
static int create(struct mount *m, struct node *parent, struct slice name, const struct node_attr *made,
                  int flags, struct node **ret_node, struct handle **ret_handle, struct err *e)
{
    struct node *n;
    enum staging_start start;
    if (m->read_only)
        return -EROFS;
    int r = find_or_make(m, parent, name, made, &n, &start, flags, e);
    if (r < 0)
        return r;
    struct handle *h = handle_new(m, n, /* is_writable= */ true);
    r = !h ? -ENFILE : n->is_dir ? -EISDIR : open_writing(m, n, h, start, flags, e);
    if (r < 0) {
        if (h)
            handle_free(m, h);
        if (start == STAGING_NEW)
            node_detach(m->nodes, n, /* is_unlinked= */ true);
        node_forget(m->nodes, n->id, 1);
        node_unref(m->nodes, n);
        return r;
    }
    handle_ready(m, h);
    *ret_node = n;
    *ret_handle = h;
    return 0;
}

void mount_op_create(fuse_req_t req, fuse_ino_t parent_id, const char *name, mode_t mode,
                     struct fuse_file_info *fi)
{
    struct mount *m = mount_of(req);
    struct err e = {0};
    if (mount_parks(req))
        return;
    struct node *parent = node_get(m->nodes, parent_id), *n = NULL;
    struct handle *h = handle_of_before(m);
    struct node_attr made = {.mtime_ns = sys->real_ns()};
    if (parent)
        mount_own_attr(req, parent, S_IFREG | (mode & 07777), &made);
    int r = h ? 0 : parent ? create(m, parent, slice_str(name), &made, fi->flags, &n, &h, &e) : -ESTALE;
    node_unref(m->nodes, parent);
    if (r == 0 && !n)
        n = node_get(m->nodes, h->node_id); /* it counts as looked up already */
    if (r < 0) {
        mount_reply_error(req, "create", r, &e);
        return;
    }
    struct fuse_entry_param entry;
    mount_entry(m, n, &entry);
    int backing_id = reply_flags(m, h, fi);
    if (passthrough_reply_create(req, &entry, fi, backing_id) < 0) {
        handle_close(m, h);
        node_forget(m->nodes, n->id, 1);
    }
    node_unref(m->nodes, n);
}

void mount_op_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    (void)ino;
    struct mount *m = mount_of(req);
    struct handle *h = (struct handle *)(uintptr_t)fi->fh;
    if (h->magic != SHUT_MAGIC) /* else by a process before this one */
        handle_shut(m, h = handle_of(fi));
    (void)fuse_reply_err(req, 0);
    handle_give(m, h);
}

/* ---- taking over ---- */

static void resume_handle(struct mount *m, struct handle *h)
{
    struct node *n = node_get(m->nodes, h->node_id);
    if (!n) { /* could not be kept: nothing is known of it but that it is open */
        n = node_resume_lost(m->nodes, h->node_id);
        h->is_staged = false;
    }
    LOCK_SCOPE(node_table_lock(m->nodes));
    h->file = NULL;
    h->is_shared = false;
    h->staging = h->is_staged ? staging_join_locked(n, h->is_writable) : NULL;
    h->is_passthrough = h->backing_id > 0;
    if (h->is_passthrough)
        n->backing_id = h->backing_id; /* the kernel still has it */
    count_locked(n, h);
    link_locked(m, h, n);
}

/* Which of the kernel's backing files are open; the others were kept open by a process before. */
static void resume_backing(struct mount *m, struct backing *b)
{
    struct node *n = node_get(m->nodes, b->node_id);
    if (n && n->n_passthrough > 0 && n->backing_id == b->id) {
        n->backing = b;
    } else {
        passthrough_unregister(m->se, b->id);
        b->magic = 0;
        kept_give(m->seat.kept, b);
    }
    node_unref(m->nodes, n);
}

void handles_resume(struct mount *m)
{
    for (struct handle *h = NULL, *next = kept_next(m->seat.kept, KEPT_HANDLE, NULL); (h = next);) {
        next = kept_next(m->seat.kept, KEPT_HANDLE, h);
        if (h->magic == HANDLE_MAGIC)
            resume_handle(m, h);
        else if (h->magic == 0)
            kept_give(m->seat.kept, h);
    }
    for (struct backing *b = NULL, *next = kept_next(m->seat.kept, KEPT_BACKING, NULL); (b = next);) {
        next = kept_next(m->seat.kept, KEPT_BACKING, b);
        if (b->magic == BACKING_MAGIC)
            resume_backing(m, b);
        else
            kept_give(m->seat.kept, b);
    }
}

/* The next inode that is open by passthrough for reading and of which the node does not know; referenced. */
static struct node *next_unheld(struct mount *m, size_t skip)
{
    LOCK_SCOPE(node_table_lock(m->nodes));
    for (struct handle *h = m->handles; h; h = h->next)
        if (h->is_passthrough && !h->staging && !h->node->backing_file && skip-- == 0) {
            h->node->refs++;
            return h->node;
        }
    return NULL;
}

void handles_hold_bytes(struct mount *m)
{
    struct node *n;
    for (size_t failed = 0; !mount_has_ended() && (n = next_unheld(m, failed));) {
        struct mount_opened o = {0};
        struct err e = {0};
        int r = mount_open_file(m, n, &o, &e);
        if (r < 0)
            log_info("mount", "inode %llu is open here, and its bytes are not here any more: %s",
                     (unsigned long long)n->ino, e.text);
        lock_take(node_table_lock(m->nodes));
        bool taken = r == 0 && n->n_passthrough > 0 && !n->backing_file && !n->staging;
        if (taken)
            n->backing_file = TAKE_PTR(o.file);
        failed += n->n_passthrough > 0 && !n->backing_file;
        int fd = taken ? client_file_take_fd(n->backing_file) : -1;
        lock_drop(node_table_lock(m->nodes));
        macro_close(&fd);
        client_file_close(o.file);
        node_unref(m->nodes, n);
    }
}

int handle_file(struct mount *m, struct handle *h, struct client_file **ret, struct err *e)
{
    struct mount_opened o = {0};
    lock_take(node_table_lock(m->nodes));
    *ret = h->is_shared ? h->node->backing_file : h->file;
    lock_drop(node_table_lock(m->nodes));
    if (*ret || h->is_passthrough)
        return *ret ? 0 : -EIO; /* by passthrough the kernel reads it itself */
    int r = mount_open_file(m, h->node, &o, e);
    if (r ==
        -ENOENT) /* the name has gone, and with it what was open: no read says that there is no such file */
        return err_set(e, -ESTALE, "the version that was opened is gone");
    if (r < 0)
        return r;
    lock_take(node_table_lock(m->nodes));
    if (!h->file)
        h->file = TAKE_PTR(o.file);
    *ret = h->file;
    lock_drop(node_table_lock(m->nodes));
    client_file_close(o.file);
    return 0;
}

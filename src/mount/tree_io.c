/*
 * READ, WRITE, FSYNC, FALLOCATE, LSEEK, COPY_FILE_RANGE: on the descriptor that the node gave, or, when it
 * gives none, by calls to it (tree_remote.c). READ and WRITE come only for files that the kernel does not
 * read and write itself (passthrough).
 *
 * Appending happens at the file's own end (RWF_APPEND), whatever the kernel believes it to be, so that
 * several mounts may append to one file. Pages that the kernel writes back have their place and go there. An
 * append that comes again, because the process that made it was killed, is made once: the open file's cell
 * says where the file ended before (the kernel lets one program at a time append to a file of a mount). One
 * that another mount makes in between, within microseconds, has it looked for in the wrong place, and made
 * twice.
 */
#include "mount/tree.h"

#include "base/sys.h"

#include <fcntl.h>
#include <sys/uio.h>

#define COPY_PIECE_BYTES (16 * MIB) /* of copy_file_range, with a quota */

/* ---- READ ---- */

static ssize_t read_file(struct mount *m, struct tree_file *f, char *p, size_t n, uint64_t offset,
                         struct err *e)
{
    if (m->tree->is_remote)
        return tree_remote_read(m, f, p, n, offset, e);
    int fd, r = tree_file_fd_again(m, f, &fd, e);
    if (r < 0 || fd < 0)
        return r; /* 0: still without bytes */
    size_t done = 0;
    while (done < n) {
        ssize_t got = sys->pread(fd, p + done, n - done, offset + done);
        if (got < 0)
            return err_errno(e, (int)got, "read of the data file");
        if (got == 0)
            break;
        done += (size_t)got;
    }
    return (ssize_t)done;
}

void tree_op_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t offset, struct fuse_file_info *fi)
{
    (void)ino;
    struct err e = {0};
    _cleanup_free_ char *p = malloc(size ? size : 1);
    if (!p)
        abort();
    ssize_t got = read_file(mount_of(req), tree_handle_of(fi)->file, p, size, (uint64_t)offset, &e);
    if (got < 0) {
        mount_reply_error(req, "read", (int)got, &e);
        return;
    }
    stats_read(mount_of(req)->stats, (size_t)got, /* is_here= */ true);
    (void)fuse_reply_buf(req, p, (size_t)got);
}

/* ---- FSYNC ---- */

static int ask_sync(struct mount *m, struct tree_file *f, uint32_t flags, struct err *e)
{
    struct wire_tree_sync_req req = {.bucket = slice_str(m->bucket), .ino = f->ino, .flags = flags};
    struct wire_tree_sync_rep rep;
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    int r = client_tree_sync(m->client, &req, &b, &rep, e);
    int fd = r == -ENOENT ? tree_file_fd(f) : -1;
    if (fd < 0)
        return r;
    r = sys->fsync(fd); /* the node has forgotten the inode: there is only the data */
    return r < 0 ? err_errno(e, r, "fsync of the data file") : 0;
}

/*
 * What the disk did not take is told once to everybody who has the file open, as POSIX has it, although the
 * disk tells each open file of the kernel's once, and the node and this process have one each for all of
 * them. Nothing is left to write when the node has answered, so that asking our own costs nothing. Where the
 * node did not answer nobody was told: a node that starts meanwhile has a new open file, which the disk tells
 * nothing, and who tries again must not hear that all is well.
 */
static int sync_handle(struct mount *m, struct tree_handle *h, uint32_t flags, struct err *e)
{
    struct tree_file *f = h->file;
    LOCK_SCOPE(&f->sync_lock); /* over I/O: see tree.h */
    int r = ask_sync(m, f, flags, e), fd = tree_file_fd(f);
    int own = fd < 0 ? 0 : sys_take_fault(fd, /* waits= */ true);
    if (sys_is_fault(r) || sys_is_fault(own)) {
        atomic_store(&f->fault_code, sys_is_fault(r) ? r : own);
        (void)atomic_fetch_add(&f->faults, 1);
    }
    uint32_t faults = atomic_load(&f->faults);
    if (r < 0 && !sys_is_fault(r))
        return r;
    if (r == 0 && h->faults_told != faults)
        r = err_errno(e, atomic_load(&f->fault_code), "what was written to the data file");
    h->faults_told = faults;
    return r;
}

int tree_sync_opened(struct mount *m, const struct fuse_file_info *fi, struct err *e)
{
    struct wire_tree_sync_req req = {.bucket = slice_str(m->bucket), .ino = m->tree->root};
    struct wire_tree_sync_rep rep;
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    return fi->flags & O_DSYNC ? client_tree_sync(m->client, &req, &b, &rep, e) : 0;
}

void tree_op_fsync(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi)
{
    (void)ino;
    struct err e = {0};
    uint32_t flags = datasync ? WIRE_DATA_ONLY : 0;
    tree_reply(req, "fsync", sync_handle(mount_of(req), tree_handle_of(fi), flags, &e), &e);
}

/* ---- WRITE ---- */

/* How much was appended before an error; the error when nothing was: a program that was told nothing of the
 * first part would append it once more. */
static ssize_t append_all(int fd, const char *p, size_t n)
{
    size_t done = 0;
    while (done < n) {
        struct iovec v = {.iov_base = (void *)(uintptr_t)(p + done), .iov_len = n - done};
        ssize_t k = pwritev2(fd, &v, 1, /* offset= */ 0, RWF_APPEND);
        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0 && done == 0)
            return -errno;
        if (k < 0)
            break;
        done += (size_t)k;
    }
    return (ssize_t)done;
}

/* How much of it was appended at `at` already. Another mount's append there is another text. */
static ssize_t appended(int fd, uint64_t at, const char *p, size_t n)
{
    char have[64 * KIB];
    size_t done = 0;
    while (done < n) {
        ssize_t got = sys->pread(fd, have, MIN(n - done, sizeof(have)), at + done);
        if (got < 0 || memcmp(have, p + done, (size_t)got) != 0)
            return got < 0 ? got : 0;
        if (got == 0)
            break;
        done += (size_t)got;
    }
    return (ssize_t)done;
}

static void note_append(struct tree_handle *h, uint64_t end)
{
    h->append_by = 0;
    atomic_signal_fence(memory_order_seq_cst);
    h->append_at = end;
    atomic_signal_fence(memory_order_seq_cst);
    h->append_by = request_unique();
    atomic_signal_fence(memory_order_seq_cst);
}

static bool append_comes_again(const struct tree_handle *h)
{
    return request_comes_again() && h->append_by == request_unique();
}

/* For whom the request comes again. */
static int note_end(struct tree_handle *h, int fd)
{
    struct stat st;
    int r = sys->fstat(fd, &st);
    if (r == 0)
        note_append(h, (uint64_t)st.st_size);
    return r;
}

/* How much a process before this one appended for the same request. It needs no room any more, and is what
 * the program is told of whatever becomes of the rest: else it would append it once more. */
static ssize_t appended_before(const struct tree_handle *h, int fd, const char *p, size_t n)
{
    return append_comes_again(h) ? appended(fd, h->append_at, p, n) : 0;
}

/* `before` is of the bytes before p, which are there. */
static ssize_t append_rest(struct tree_handle *h, int fd, size_t before, const char *p, size_t n)
{
    int r = before == 0 ? note_end(h, fd) : 0;
    return r < 0 ? r : append_all(fd, p, n);
}

/* The descriptor for writing of whoever has it open so. */
static int fd_for_writing(struct mount *m, const struct fuse_file_info *fi, struct err *e)
{
    int fd = -EIO, r = tree_file_write_fd_again(m, tree_handle_of(fi)->file, &fd, e);
    return r == -ENOENT ? -EIO : r < 0 ? r : fd;
}

/* The bytes from p on, for which room is taken: at the file's end, behind `before` of them, or at an offset.
 * How many, or an error. */
static ssize_t write_rest(fuse_req_t req, struct fuse_file_info *fi, int fd, size_t before, const char *p,
                          size_t n, off_t offset, struct err *e)
{
    struct mount *m = mount_of(req);
    struct tree_handle *h = tree_handle_of(fi);
    bool appends = fi->flags & O_APPEND && !fi->writepage;
    struct tree_room room = {0};
    int r = fi->writepage ? 0 : tree_drop_privilege(req, h->file, e);
    if (r == 0)
        r = tree_room_begin(m, h->file, fd, appends ? TREE_ROOM_AT_END : (uint64_t)offset, n,
                            fi->writepage ? NULL : &n, &room, e);
    if (r < 0)
        return r;
    ssize_t done = (ssize_t)n;
    if (appends)
        done = append_rest(h, fd, before, p, n);
    else if ((r = sys_pwrite_all(fd, p, n, (uint64_t)offset)) < 0)
        done = r;
    tree_room_end(m, &room);
    return done;
}

/* To the descriptor. How much is written, by this process or the one before. */
static ssize_t write_here(fuse_req_t req, struct fuse_file_info *fi, bool appends, const char *p, size_t size,
                          off_t offset, struct err *e)
{
    int fd = fd_for_writing(mount_of(req), fi, e);
    ssize_t before = fd >= 0 && appends ? appended_before(tree_handle_of(fi), fd, p, size) : MIN(fd, 0);
    ssize_t done = before;
    if (before >= 0 && ((size_t)before < size || size == 0))
        done = write_rest(req, fi, fd, (size_t)before, p + before, size - (size_t)before, offset, e);
    else if (before >= 0)
        done = 0;
    if (done < 0 && before <= 0)
        return done;
    return before + MAX(done, (ssize_t)0);
}

void tree_op_write(fuse_req_t req, fuse_ino_t ino, const char *p, size_t size, off_t offset,
                   struct fuse_file_info *fi)
{
    (void)ino;
    struct mount *m = mount_of(req);
    struct err e = {0};
    bool appends = fi->flags & O_APPEND && !fi->writepage;
    enum tree_write how_to = appends ? TREE_WRITE_APPEND : fi->writepage ? TREE_WRITE_PAGES : TREE_WRITE_AT;
    ssize_t all = m->tree->is_remote
                      ? tree_remote_write(m, tree_handle_of(fi)->file, how_to, p, size, (uint64_t)offset, &e)
                      : write_here(req, fi, appends, p, size, offset, &e);
    int r = (int)MIN(all, (ssize_t)0);
    uint32_t how = (fi->flags & O_SYNC) == O_SYNC ? 0 : WIRE_DATA_ONLY;
    if (all > 0 && !fi->writepage && fi->flags & O_DSYNC) /* the kernel does not for direct_io */
        r = sync_handle(m, tree_handle_of(fi), how, &e);
    if (r < 0) {
        mount_reply_error(req, "write", r, &e);
        return;
    }
    stats_add(m->stats, STATS_WRITTEN_BYTES, (size_t)all);
    (void)fuse_reply_write(req, (size_t)all);
}

/* ---- FALLOCATE, LSEEK, COPY_FILE_RANGE ---- */

void tree_op_fallocate(fuse_req_t req, fuse_ino_t ino, int mode, off_t offset, off_t length,
                       struct fuse_file_info *fi)
{
    (void)ino;
    struct err e = {0};
    struct tree_room room = {0};
    if (mount_of(req)->tree->is_remote) {
        int k = tree_remote_allocate(mount_of(req), tree_handle_of(fi)->file, mode, (uint64_t)offset,
                                     (uint64_t)length, &e);
        tree_reply(req, "fallocate", k, &e);
        return;
    }
    int fd = fd_for_writing(mount_of(req), fi, &e), r = fd;
    if (fd >= 0)
        r = tree_room_begin(mount_of(req), tree_handle_of(fi)->file, fd, (uint64_t)offset,
                            mode & FALLOC_FL_PUNCH_HOLE ? 0 : (uint64_t)length, /* n_short= */ NULL, &room,
                            &e);
    if (r >= 0)
        r = sys->fallocate(fd, mode, (uint64_t)offset, (uint64_t)length);
    tree_room_end(mount_of(req), &room);
    (void)fuse_reply_err(req, r < 0 ? mount_errno(r) : 0);
}

/* The position of the descriptor is used by nothing else. */
void tree_op_lseek(fuse_req_t req, fuse_ino_t ino, off_t offset, int whence, struct fuse_file_info *fi)
{
    (void)ino;
    struct err e = {0};
    bool is_remote = mount_of(req)->tree->is_remote;
    uint64_t found = 0;
    int fd = -1, r = is_remote ? tree_remote_seek(mount_of(req), tree_handle_of(fi)->file, (uint64_t)offset,
                                                  whence, &found, &e)
                               : tree_file_fd_again(mount_of(req), tree_handle_of(fi)->file, &fd, &e);
    if (r < 0) {
        mount_reply_error(req, "lseek", r, &e);
        return;
    }
    if (is_remote) {
        (void)fuse_reply_lseek(req, (off_t)found);
        return;
    }
    off_t at = fd < 0 ? -1 : lseek(fd, offset, whence);
    if (at < 0) /* without bytes there is neither data nor a hole */
        (void)fuse_reply_err(req, fd < 0 ? ENXIO : errno);
    else
        (void)fuse_reply_lseek(req, at);
}

/* With a quota no more than what is there, and a piece at a time: callers go on with the rest. */
static int copy_limit(struct tree_file *to, int in, uint64_t offset, size_t *n, struct err *e)
{
    struct stat st;
    if (!atomic_load(&to->is_limited))
        return 0;
    int r = sys->fstat(in, &st);
    if (r < 0)
        return err_errno(e, r, "state of the data file");
    uint64_t there = (uint64_t)st.st_size > offset ? (uint64_t)st.st_size - offset : 0;
    *n = (size_t)MIN(MIN((uint64_t)*n, there), (uint64_t)COPY_PIECE_BYTES);
    return 0;
}

static ssize_t copy_range(struct mount *m, const struct fuse_file_info *from, off_t from_offset,
                          const struct fuse_file_info *to, off_t to_offset, size_t n, int flags,
                          struct err *e)
{
    int in, out = fd_for_writing(m, to, e), r = tree_file_fd_again(m, tree_handle_of(from)->file, &in, e);
    if (r < 0 || out < 0)
        return r < 0 ? r : out;
    if (in < 0)
        return 0;
    struct tree_file *f = tree_handle_of(to)->file;
    struct tree_room room;
    r = copy_limit(f, in, (uint64_t)from_offset, &n, e);
    if (r == 0)
        r = tree_room_begin(m, f, out, (uint64_t)to_offset, n, &n, &room, e);
    if (r < 0)
        return r;
    ssize_t done = copy_file_range(in, &from_offset, out, &to_offset, n, (unsigned)flags);
    if (done < 0)
        done = -errno;
    tree_room_end(m, &room);
    return done;
}

void tree_op_copy_file_range(fuse_req_t req, fuse_ino_t from, off_t from_offset,
                             struct fuse_file_info *from_fi, fuse_ino_t to, off_t to_offset,
                             struct fuse_file_info *to_fi, size_t n, int flags)
{
    (void)from, (void)to;
    struct err e = {0};
    if (mount_of(req)->tree->is_remote) { /* the kernel copies through its pages */
        (void)fuse_reply_err(req, EOPNOTSUPP);
        return;
    }
    ssize_t done = copy_range(mount_of(req), from_fi, from_offset, to_fi, to_offset, n, flags, &e);
    if (done < 0)
        mount_reply_error(req, "copy_file_range", (int)done, &e);
    else
        (void)fuse_reply_write(req, (size_t)done);
}

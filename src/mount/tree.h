/*
 * Shared by the files of a mount of a scratch bucket (tree*.c). The number that the kernel calls an inode by
 * is its number in the bucket; only the root of a mount of BUCKET/PREFIX has another, 1. Nothing is kept of
 * inodes that are not open.
 */
#pragma once

#include "mount/mount_internal.h"

#include "base/id.h"
#include "mount/request.h"
#include "mount/tree_habit.h"
#include "mount/tree_known.h"
#include "mount/tree_named.h"
#include "mount/tree_seen.h"

struct tree_waiters;
struct tree_held;
struct tree_dir;
struct tree_watch;
struct tree_closer;
struct tree_room_giver;

/* A handle of the node, of one session. */
struct tree_grant {
    uint64_t handle, epoch;
    bool is_held;
    bool is_for_writing; /* as tree_file_grant told */
};

/* An inode that is open here. */
struct tree_file {
    uint32_t magic;
    uint64_t ino;

    /* Covered by the table's lock. */
    struct tree_file *next; /* of its place in the table */
    uint32_t refs;
    bool is_known;
    struct wire_inode
        known; /* what the node said last, without target; for when it has forgotten the inode */

    /* Descriptors of its extent, -1: none yet. Once set they stay until the last close, so that whoever has
     * it open may use them without a lock. */
    _Atomic int read_fd, write_fd;
    _Atomic bool was_written; /* somebody here had it open for writing */

    /* Held over calls to the node, so that opens of one inode come one after the other; covers the rest. */
    struct lock lock;
    uint32_t n_open;
    bool is_passthrough; /* all of them are, with backing_id; else none is */
    int backing_id;      /* > 0: registered */
    struct tree_grant reading, writing;
    uint64_t made_in; /* the directory, when it was open since it was made; else 0 */
    bool is_late;     /* made without data (tree_habit.h) */

    /* Of a bucket with a quota (tree_room.c). */
    _Atomic bool is_limited;       /* room is asked for before bytes are written */
    _Atomic bool is_room_lost;     /* the node's handle that it belonged to is another one now */
    _Atomic uint64_t room_used_ms; /* monotonic, when room was used last; 0: there is none to be given back */
    struct lock room_lock; /* held over a write and calls to the node; before `lock`; covers what follows */
    uint64_t room_bytes;   /* granted and not used */
    uint64_t spent_bytes;  /* used, or not to be used any more, and not told yet */
    uint64_t room_epoch;   /* the session that it was granted in */
    uint64_t rooms_lost;   /* of the tree, when that was looked at last */

    struct tree_held *locks; /* covered by the lock of tree_lock.c */
    /* Held over calls to the node, so that what it says of locks is noted in the order in which it said it.
     */
    struct lock order_lock;
    uint64_t locks_epoch; /* the session in which the locks were taken again; covered by it */

    /* Held over calls to the node, so that no fsync goes past one that is about to learn of a fault. */
    struct lock sync_lock;
    _Atomic uint32_t faults; /* how often the disk did not take what was written; counted under sync_lock */
    _Atomic int fault_code;  /* of the last time */
};

/* What the kernel has of an open file. A kept cell (kept.h): it outlives this process. */
struct tree_handle {
    uint32_t magic; /* set last */
    bool is_writable;
    _Atomic bool is_closing; /* one of its descriptors was closed since a lock was taken through it */
    _Atomic bool has_stayed; /* and yet it did not end while somebody waited for that */
    int backing_id;
    uint64_t ino;
    /* Of the process that serves now. */
    struct tree_handle *next, *previous; /* all of the mount; covered by the table's lock */
    struct tree_file *file;              /* referenced */
    uint32_t faults_told;                /* of file->faults; covered by file->sync_lock */
    /* Kept as well. */
    uint64_t unique;    /* of the kernel's request that it answers */
    uint64_t append_by; /* the kernel's last request to append, set after: */
    uint64_t append_at; /* where the file ended before */
};

#define TREE_PLACES 4096 /* of the table of open files, and of what is remembered of files */

#define TREE_TOLD 65536 /* files whose size, as the kernel was told it, is remembered */

/* What the kernel was told last, while there is another mount. */
struct tree_told {
    uint64_t ino, size_bytes;
};

struct tree {
    struct id128 id;       /* of this mount, in numbered requests */
    bool is_remote;        /* the node passes no descriptors and checks permissions: tree_remote.c */
    _Atomic uint64_t root; /* the inode that the kernel calls 1; see tree_find_root_again */
    struct lock lock;      /* the table's; covers the rest */
    struct tree_file *files[TREE_PLACES];
    struct tree_handle *handles;
    struct tree_dir *dirs;
    struct tree_seen seen[TREE_PLACES];
    struct tree_told told[TREE_TOLD];
    struct tree_waiters *waiters;
    struct tree_watch *watch;
    struct tree_closer *closer;
    struct tree_room_giver *room_giver;
    struct tree_known *known; /* to be used while tree_is_alone */
    struct tree_named *named;
    struct tree_habit habit;
    _Atomic uint64_t rooms_lost; /* how often what was granted to all files may have been lost */
};

/* ---- tree.c ---- */

static inline uint64_t tree_ino(const struct mount *m, fuse_ino_t id)
{
    return id == FUSE_ROOT_ID ? m->tree->root : id;
}

static inline fuse_ino_t tree_id(const struct mount *m, uint64_t ino)
{
    return ino == m->tree->root ? FUSE_ROOT_ID : ino;
}

/* The directory that was mounted (BUCKET/PREFIX) is gone: another one that has its name by now is the root
 * from here on: true. Asks the node. */
bool tree_find_root_again(struct mount *m);

static inline struct slice tree_mount_id(const struct mount *m)
{
    return slice_of(m->tree->id.b, sizeof(m->tree->id.b));
}

#define TREE_OWN_REQUESTS (1ull << 63) /* numbers of changes that no request of the kernel asked for */

static inline uint64_t tree_next_request(struct mount *m)
{
    uint64_t n = request_next_change();
    return n ? n : TREE_OWN_REQUESTS | atomic_fetch_add(&kept_facts(m->seat.kept)->own_requests, 1);
}

/* Fields of every request that changes something. */
#define TREE_CHANGE(m) .mount = tree_mount_id(m), .request = tree_next_request(m)

/* 0 or an error, which is logged where it is unexpected. */
void tree_reply(fuse_req_t req, const char *what, int r, const struct err *e);

/* ---- tree_attr.c ---- */

void tree_stat(const struct wire_inode *x, struct stat *ret);
/* Answers with an inode that the node gave, and notes it. */
void tree_reply_entry(fuse_req_t req, const struct wire_inode *x);
/* Before a change of the bytes that the kernel did not prepare for (O_TRUNC, writing past its pages): unless
 * root asks, nobody runs the file as its owner any more. */
int tree_drop_privilege(fuse_req_t req, struct tree_file *f, struct err *e);
void tree_fill_entry(struct mount *m, const struct wire_inode *x, struct fuse_entry_param *ret);

/* ---- tree_file.c: what is open ---- */

void tree_files_init(struct tree *t);
/* Closes what is still open, telling the node. */
void tree_files_fini(struct mount *m);
/* The file of an inode that is open here, referenced (tree_file_unref), or NULL. */
struct tree_file *tree_file_find(struct mount *m, uint64_t ino);
struct tree_file *tree_file_ref(struct mount *m, struct tree_file *f);
void tree_file_unref(struct mount *m, struct tree_file *f);
/* Attributes of an inode as the node has just said; remembered while it is open. */
void tree_file_note(struct mount *m, const struct wire_inode *x);
/* The kernel is being told of its size. */
void tree_file_told(struct mount *m, const struct wire_inode *x);
/* What was noted last. false: nothing. */
bool tree_file_known(struct mount *m, struct tree_file *f, struct wire_inode *ret);
/* A descriptor for reading or writing, or -1; for those who have it open. */
int tree_file_fd(const struct tree_file *f);
/* As tree_file_fd for an inode that was empty when it was opened: asks the node whether it has bytes now.
 * *ret_fd -1: it has none. */
int tree_file_fd_again(struct mount *m, struct tree_file *f, int *ret_fd, struct err *e);
/* The same of one for writing, for somebody who has it open so. */
int tree_file_write_fd_again(struct mount *m, struct tree_file *f, int *ret_fd, struct err *e);

/* How the kernel shall see an open file. */
struct tree_opened {
    struct tree_handle *handle;
    int backing_id; /* 0: not by passthrough */
    bool keep_cache;
};
/* Opens an inode; flags WIRE_WRITE, WIRE_TRUNCATE. */
int tree_file_open(struct mount *m, uint64_t ino, uint32_t flags, struct tree_opened *ret, struct err *e);
/* -EMFILE when too many are open already, -ENFILE without memory for one more. makes: something is made or
 * emptied before its descriptor comes. */
int tree_files_check_room(const struct mount *m, bool makes);
/* The same for an inode that was just made, with what the node gave: takes the descriptor. */
struct tree_made {
    const struct wire_tree_create_rep *rep;
    struct tree_grant grant;
    uint64_t dir;
    bool is_late; /* the grant is for reading, there is no descriptor, and it will be written all the same */
};
int tree_file_adopt(struct mount *m, const struct tree_made *made, struct tree_opened *ret, struct err *e);
void tree_file_close(struct mount *m, struct tree_handle *h);
/* The same in two steps, for RELEASE, which may come again: between them, when it was answered. */
void tree_file_shut(struct mount *m, struct tree_handle *h);
void tree_handle_free(struct mount *m, struct tree_handle *h);
/* Shut by a process before this one, which did not answer any more. */
bool tree_handle_is_shut(const struct fuse_file_info *fi);
struct tree_handle *tree_handle_of(const struct fuse_file_info *fi);
/* After a new session of the client: gets handles for what is open, and its locks. false: the node did not
 * answer for some, which are asked for when this is called again. */
bool tree_files_renew(struct mount *m);
void tree_files_relock(struct mount *m);
/* The kernel asks again for the attributes of what is open. */
void tree_files_forget(struct mount *m);

/* Of a node that passes no descriptors: the handle to write or read by, in the session of now. *grant: zero,
 * or what this gave before and is not good any more, in place of which another one is asked for. */
int tree_file_grant(struct mount *m, struct tree_file *f, bool writes, struct tree_grant *grant,
                    struct err *e);

/* ---- tree_remote.c: the bytes of such a node's files ---- */

/* Fewer than n at the end of the file only. */
ssize_t tree_remote_read(struct mount *m, struct tree_file *f, char *p, size_t n, uint64_t offset,
                         struct err *e);
enum tree_write {
    TREE_WRITE_AT,
    TREE_WRITE_APPEND, /* at the end, whatever offset says */
    TREE_WRITE_PAGES,  /* that the kernel writes back: it takes a part for all */
};
/* How much, or an error. */
ssize_t tree_remote_write(struct mount *m, struct tree_file *f, enum tree_write how, const char *p, size_t n,
                          uint64_t offset, struct err *e);
int tree_remote_seek(struct mount *m, struct tree_file *f, uint64_t offset, int whence, uint64_t *ret,
                     struct err *e);
int tree_remote_allocate(struct mount *m, struct tree_file *f, int mode, uint64_t offset, uint64_t length,
                         struct err *e);

/* ---- taking over from a process that was killed ---- */

/* Before the first request, in this order: what the kernel has open; its locks; its descriptors. Locks go
 * first to the node, so that nobody else gets them while thousands of files are opened. */
void tree_files_resume(struct mount *m);
void tree_dirs_resume(struct mount *m);
void tree_locks_resume(struct mount *m);
void tree_files_reopen(struct mount *m);

/* ---- tree_room.c: quotas ---- */

/* One change of a file's bytes for which there is room. */
struct tree_room {
    struct tree_file *file; /* NULL: the bucket has no quota */
    int fd;
    uint64_t before_bytes; /* that the file had on disk */
};
#define TREE_ROOM_AT_END UINT64_MAX

/* Before n bytes from `offset` on (TREE_ROOM_AT_END: behind the last) change: takes room for them, and the
 * file's lock until tree_room_end. Where n_short is given and there is room for fewer it takes that, and says
 * in *n_short for how many. -EDQUOT and other failures leave nothing to be ended. */
int tree_room_begin(struct mount *m, struct tree_file *f, int fd, uint64_t offset, uint64_t n,
                    size_t *n_short, struct tree_room *ret, struct err *e);
/* They have changed, or not. */
void tree_room_end(struct mount *m, struct tree_room *r);
/* A thread that gives back what files have that nobody writes at the moment. */
struct tree_room_giver *tree_room_giver_start(struct mount *m);
void tree_room_giver_end(struct tree_room_giver *g); /* NULL accepted */
/* The node is asked for a handle again. */
int tree_file_ask_again(struct mount *m, struct tree_file *f, struct err *e);

/* ---- tree_watch.c: for how long the kernel may believe what it is told ---- */

struct tree_watch *tree_watch_start(struct mount *m);
/* In a process that takes over, when it knows what is open: whatever the kernel was told by the process
 * before is asked for again. Nobody told what changed between the two. */
void tree_watch_resumed(struct tree_watch *w);
/* Ends its thread. */
void tree_watch_end(struct tree_watch *w);
void tree_watch_free(struct tree_watch *w); /* NULL accepted */
/* Nobody else changes the bucket without our being told. */
bool tree_is_alone(const struct mount *m);
/* Of a name, also one that is not there. */
double tree_name_timeout_s(const struct mount *m);
double tree_attr_timeout_s(struct mount *m, const struct wire_inode *x);
/* The file was opened by passthrough so that it can be mapped and stored into. The kernel forgets our open
 * file with that: stores go on after RELEASE, and nobody sees them. Its attributes are not believed for long
 * any more. */
void tree_expect_mapping(struct mount *m, uint64_t ino);
bool tree_may_be_mapped(struct mount *m, uint64_t ino);

/* ---- tree_close.c ---- */

struct tree_closer *tree_closer_start(struct mount *m);
/* When all that is pending was told. NULL accepted. */
void tree_closer_end(struct tree_closer *c);
/* Tells the node that a handle of it is not used any more, if it is held: soon, without waiting for that. */
void tree_close_later(struct mount *m, struct tree_grant *g);
/* Waits until all that is pending now was told. false: nothing was. */
bool tree_closer_drain(struct tree_closer *c);
/* As tree_close_later, but at once. */
void tree_close_grant(struct mount *m, struct tree_grant *g);

/* ---- tree_dir.c ---- */

/* When no other thread runs any more. */
void tree_dirs_fini(struct mount *m);

/* ---- tree_lock.c ---- */

struct tree_waiters *tree_waiters_start(struct mount *m);
/* Ends the thread; who waits gets EINTR. */
void tree_waiters_end(struct tree_waiters *w);
/* When nothing is open any more. NULL accepted. */
void tree_waiters_free(struct tree_waiters *w);
/* All POSIX locks of an owner on a file that it closes; nothing when there are none. */
void tree_unlock_owner(struct mount *m, struct tree_file *f, uint64_t owner);
/* All locks that were asked through an open that ends: those of flock(2) and of open file descriptions
 * (F_OFD_*) end with it, others have ended. */
void tree_unlock_handle(struct mount *m, struct tree_handle *h);
/* Takes the locks of a file again in this session of the client, unless that was done. is_open: where it was
 * opened again; before that a node that checks may refuse what it will give then. false: the node did not
 * answer. */
bool tree_relock(struct mount *m, struct tree_file *f, uint64_t epoch, bool is_open);

/* ---- operations, one file per group ---- */

void tree_op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name);
void tree_op_forget(fuse_req_t req, fuse_ino_t ino, uint64_t n);
void tree_op_forget_multi(fuse_req_t req, size_t count, struct fuse_forget_data *forgets);
void tree_op_readlink(fuse_req_t req, fuse_ino_t ino);
void tree_op_statfs(fuse_req_t req, fuse_ino_t ino);

void tree_op_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void tree_op_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *attr, int to_set,
                     struct fuse_file_info *fi);

void tree_op_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void tree_op_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t offset, struct fuse_file_info *fi);
void tree_op_readdirplus(fuse_req_t req, fuse_ino_t ino, size_t size, off_t offset,
                         struct fuse_file_info *fi);
void tree_op_releasedir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void tree_op_fsyncdir(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi);

void tree_op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void tree_op_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
                    struct fuse_file_info *fi);
void tree_op_tmpfile(fuse_req_t req, fuse_ino_t parent, mode_t mode, struct fuse_file_info *fi);
void tree_op_flush(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void tree_op_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);

void tree_op_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t offset, struct fuse_file_info *fi);
void tree_op_write(fuse_req_t req, fuse_ino_t ino, const char *p, size_t size, off_t offset,
                   struct fuse_file_info *fi);
/* All names so far are durable, if the file was opened with O_SYNC or O_DSYNC. */
int tree_sync_opened(struct mount *m, const struct fuse_file_info *fi, struct err *e);
void tree_op_fsync(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi);
void tree_op_fallocate(fuse_req_t req, fuse_ino_t ino, int mode, off_t offset, off_t length,
                       struct fuse_file_info *fi);
void tree_op_lseek(fuse_req_t req, fuse_ino_t ino, off_t offset, int whence, struct fuse_file_info *fi);
void tree_op_copy_file_range(fuse_req_t req, fuse_ino_t from, off_t from_offset,
                             struct fuse_file_info *from_fi, fuse_ino_t to, off_t to_offset,
                             struct fuse_file_info *to_fi, size_t n, int flags);

void tree_op_mknod(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, dev_t rdev);
void tree_op_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode);
void tree_op_symlink(fuse_req_t req, const char *target, fuse_ino_t parent, const char *name);
void tree_op_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t new_parent, const char *new_name);
void tree_op_unlink(fuse_req_t req, fuse_ino_t parent, const char *name);
void tree_op_rmdir(fuse_req_t req, fuse_ino_t parent, const char *name);
void tree_op_rename(fuse_req_t req, fuse_ino_t parent, const char *name, fuse_ino_t new_parent,
                    const char *new_name, unsigned flags);

void tree_op_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name, size_t size);
void tree_op_listxattr(fuse_req_t req, fuse_ino_t ino, size_t size);
void tree_op_setxattr(fuse_req_t req, fuse_ino_t ino, const char *name, const char *value, size_t size,
                      int flags);
void tree_op_removexattr(fuse_req_t req, fuse_ino_t ino, const char *name);

void tree_op_getlk(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi, struct flock *lock);
void tree_op_setlk(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi, struct flock *lock, int sleep);
void tree_op_flock(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi, int op);

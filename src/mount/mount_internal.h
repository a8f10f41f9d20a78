/* Shared by the files of the mount. */
#pragma once

#include "client/client.h"
#include "client/client_file.h"
#include "mount/absent.h"
#include "mount/explain.h"
#include "mount/inval.h"
#include "mount/keeper.h"
#include "mount/mount.h"
#include "mount/node.h"
#include "mount/notify.h"
#include "mount/passthrough.h"
#include "mount/pause.h"
#include "mount/staging.h"
#include "mount/stats.h"
#include "mount/versions.h"
#include "mount/warm.h"

#include <stdatomic.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#define MOUNT_MAGIC          0x6d6f756eu
#define MOUNT_NAME_MAX_BYTES 255    /* of one name, as file systems have it */
#define MOUNT_KEY_MAX_BYTES  1024   /* of a whole key, as S3 has it */
#define MOUNT_BLOCK_BYTES    MIB    /* st_blksize: what programs read at once */
#define MOUNT_FOLLOWS        8      /* questions about one object that its owner keeps changing through us */
#define MOUNT_NODES_MAX      500000 /* above, the kernel is asked to drop what it does not use */
/* What `forebay umount`, `forebay mount --stats`, `--upgrade` and `forebay explain` ask a directory of the
 * mount. The sizes are part of the numbers, so that another version's answer is not taken for one. */
#define MOUNT_IOC_FLUSH   _IOR('F', 1, struct mount_flush_report)
#define MOUNT_IOC_STATS   _IOR('F', 2, struct stats_report)
#define MOUNT_IOC_EXPLAIN _IOWR('F', 3, struct explain_report)
#define MOUNT_IOC_UPGRADE _IOR('F', 4, struct mount_upgrade_report)
#define MOUNT_IOC_MAX     (1 << 14) /* bytes that an ioctl may carry */

/* What the kernel asked of us when it opened a file. A kept cell (kept.h): it outlives this process. */
struct handle {
    uint32_t magic; /* set last */
    bool is_passthrough, is_writable, is_staged;
    bool is_shared; /* of the process that serves now: plain reading from the node's backing file */
    int backing_id; /* by passthrough */
    uint64_t node_id;
    uint64_t unique; /* of the kernel's request */
    /* Of the process that serves now. */
    struct handle *next, *previous; /* all of the mount; covered by the node table's lock */
    struct node *node;              /* referenced */
    struct client_file *file; /* plain reading; NULL when the node's backing file or `staging` serves it, or
                               * after another process took over; then set once, under the table's lock */
    struct staging *staging;  /* referenced; reading and writing what is written here */
};

/* An id of a backing file that the kernel has from us. A kept cell. */
struct backing {
    uint32_t magic; /* set last */
    int id;
    uint64_t node_id;
};

/*
 * What differs between a mount of a mirror bucket (mirror.c) and one of a scratch bucket (tree.c). `open` is
 * called once, before anything is mounted; `start` when the directory is mounted and before the first
 * request; `end` after the last one, and `stop` when no other thread of the mount runs any more.
 */
struct mount_kind {
    const struct fuse_lowlevel_ops *operations;
    uint64_t quick; /* QUEUE_BITs of the operations that keep to queue_may_wait (queue.h) */
    bool parks;     /* its changes ask mount_parks, and its errors are told by mount_reply_error */
    int (*open)(struct mount *m, struct err *e);
    void (*start)(struct mount *m);
    void (*listen)(struct mount *m); /* after the notifier was started; may be NULL */
    /* Instead of open, and after start, in a process that takes over; and when it serves, on the notifier's
     * thread (may be NULL). NULL: nobody can. */
    int (*open_again)(struct mount *m, struct err *e);
    void (*resume)(struct mount *m);
    void (*resumed)(struct mount *m);
    /* On the notifier's thread: the client has a new session, the handles of the old one are gone. false: not
     * all could be done, as the node did not answer; called again a moment later. */
    bool (*on_session)(struct mount *m);
    /* On the notifier's thread: memory is scarce, lets go of about so many bytes of what can be had again,
     * but for inodes. */
    void (*let_go)(struct mount *m, uint64_t bytes);
    /* Writes out what is pending, for `forebay umount`. */
    void (*flush)(struct mount *m, struct mount_flush_report *ret);
    void (*end)(struct mount *m);                /* may be NULL */
    int (*stop)(struct mount *m, struct err *e); /* an error: what could not be written */
    void (*free)(struct mount *m);               /* what open made; also when it failed half-way */
};
extern const struct mount_kind mount_mirror, mount_mirror_openless, mount_tree;
enum mount_kind_id { MOUNT_TREE, MOUNT_MIRROR, MOUNT_MIRROR_OPENLESS }; /* for a process that takes over */

struct mount {
    uint32_t magic;
    const struct mount_kind *kind;
    const struct mount_options *options;
    const struct mount_callbacks *calls;
    struct keeper_seat seat;
    struct client *client;
    char *bucket;
    char *prefix; /* "" or "dir/" */
    struct fuse_session *se;
    struct notifier *notifier;
    struct stats *stats;
    struct tree *tree; /* of a scratch bucket; what follows is of mirror buckets */
    struct node_table *nodes;
    struct warm *warm;
    struct inval *inval;
    struct absent *absent;
    struct staging_list stagings;
    struct pauses pauses;
    struct versions versions; /* which of our own changes led to which version */
    struct handle *handles;   /* covered by the node table's lock, as is: */
    struct dir *dirs;
    struct takeover *takeover; /* NULL: this is the first process */
    uint32_t uid, gid, umask;
    uint64_t started_ns;
    bool is_write_passthrough; /* the kernel can tell changes of a file apart, see staging.c */
    bool posix;                /* the bucket keeps mode, owner, time and links */

    double timeout_s; /* of names and attributes in the kernel; from here on of both kinds */
    bool read_only;
    bool can_expire;             /* the kernel can ask for a name again that stays in place; since INIT */
    _Atomic bool is_offered;     /* the kernel has passthrough; set before the first request */
    _Atomic bool is_passthrough; /* it works; set once by the notifier's first act, unset by a refusal */
    _Atomic bool is_cached;      /* plain files go through the kernel's page cache; set once, too */
    _Atomic bool is_given_up;    /* passthrough was demanded, and there is none */
    char reason[ERR_TEXT_MAX];   /* why there is no passthrough, "" when there is */
    _Atomic uint64_t last_log_ms;
};

static inline struct mount *mount_of(fuse_req_t req)
{
    return CAST_MAGIC(mount, fuse_req_userdata(req), MOUNT_MAGIC);
}

static inline bool mount_takes_over(const struct mount *m)
{
    return m->seat.fuse_fd >= 0;
}

/* ---- errors.c ---- */

/* The errno (positive) that a program gets for a code. */
int mount_errno(int code);
/* Answers a request with an error; what programs do not expect in normal work is logged, in the origin's
 * words. One that shall wait for a thread (parking.h) is parked instead. */
void mount_reply_error(fuse_req_t req, const char *what, int code, const struct err *e);
/* Asked before a change that may wait for the origin begins: true: it waits for a thread, and nothing of it
 * may be used any more. */
bool mount_parks(fuse_req_t req);
void mount_log_failure(struct mount *m, const char *what, int code, const struct err *e);

/* ---- attr.c ---- */

/* Key of a node, or of a name in one, in the bucket. -ENAMETOOLONG for the name or the key. */
int mount_key(struct mount *m, struct node *n, struct slice name, struct buf *b);
/* has_meta: its metadata was asked for, and none means that there is none. */
struct node_attr mount_node_attr(const struct mount *m, const struct wire_attr *a, bool has_meta);
/* Of something that is made now by this request, in a bucket that keeps it: mode with its kind, the caller as
 * owner, or the directory's group where it says so. */
void mount_own_attr(fuse_req_t req, struct node *parent, uint32_t mode, struct node_attr *a);
/* What stat shows of a node now: the staged file while it is being written here, else its version. */
void mount_stat(struct mount *m, struct node *n, struct stat *ret);
void mount_stat_of(struct mount *m, uint64_t ino, const struct node_attr *a, struct stat *ret);
/* The answer of LOOKUP, CREATE, MKDIR about a node that was counted for the kernel. As mount_timeout_s. */
void mount_entry(struct mount *m, struct node *n, struct fuse_entry_param *ret);
/* For how long the kernel may believe the attributes that it is being told of a node; mount_check_told with
 * that after the reply, and with the warm_serial read before. */
double mount_timeout_s(struct mount *m, struct node *n);
void mount_check_told(struct mount *m, uint64_t serial, struct node *n, double told_s);
/* Asks the node about a name. */
int mount_ask(struct mount *m, struct slice key, struct buf *b, struct wire_attr *ret, struct err *e);
/* The same, whatever the node remembers of it. */
int mount_ask_origin(struct mount *m, struct slice key, struct buf *b, struct wire_attr *ret, struct err *e);
/* Opens the version that the node stands for, or what our own changes have made of it (versions.h), which it
 * stands for from then on. ERR_PRECONDITION: it is another one. o: all but the version. *ret_etag: the
 * version that was asked for, the caller's to free. */
int mount_open_version(struct mount *m, struct node *n, struct client_file_open *o, struct client_file **ret,
                       char **ret_etag, struct err *e);
/* When what the node stands for is this version's predecessor by our own changes, it stands for this one from
 * now on. false: what is told here is a predecessor itself, and what is there now is to be asked again. */
bool mount_follow(struct mount *m, struct node *n, struct slice key, struct slice etag);

/* ---- setattr.c ---- */

struct posix_meta;
/* Gives the object of a node this mode, owner and time, where the bucket keeps them, and the node what the
 * object is then. -ESTALE, and the node is detached, when it is another version. */
int mount_change_object(struct mount *m, struct node *n, const struct posix_meta *change, struct err *e);

/* ---- unmount.c ---- */

/* Takes the mount away at once, also while it is in use or its process is gone. */
int mount_detach(const char *directory, struct err *e);
/* MOUNT_IOC_*, of both kinds. */
void mount_op_ioctl(fuse_req_t req, fuse_ino_t ino, unsigned cmd, void *arg, struct fuse_file_info *fi,
                    unsigned flags, const void *in_buf, size_t in_size, size_t out_size);

/* ---- stats_ask.c, explain.c: answers of mount_op_ioctl ---- */

/* Sends an ioctl to a directory. -ENOTTY: not a mount of forebay, or one of another version. */
/* Whether the node answers now, asked in a session of its own. */
int mount_probe_node(const struct mount *m, struct err *e);
int mount_ask_directory(const char *directory, unsigned long what, void *argument, struct err *e);
void stats_tell(struct mount *m, struct stats_report *ret);
/* ret->name says of what in the directory. */
int explain_tell(struct mount *m, fuse_ino_t directory, struct explain_report *ret, struct err *e);

/* ---- mount.c ---- */

/* Capabilities, in the callback of INIT: what both kinds want and do not want, and this kind's own. */
void mount_negotiate(struct mount *m, struct fuse_conn_info *conn, unsigned wanted, unsigned unwanted,
                     enum passthrough_extra extra);
/* Passthrough was refused with this code: without the right to it it is given up for the whole mount. */
void mount_passthrough_refused(struct mount *m, int code);
/* No request is served any more, or soon none is: what this process asks the node for itself is left. */
bool mount_has_ended(void);

/* ---- operations on mirror buckets, one file per group ---- */

void mount_op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name);
void mount_op_forget(fuse_req_t req, fuse_ino_t ino, uint64_t n);
void mount_op_forget_multi(fuse_req_t req, size_t count, struct fuse_forget_data *forgets);
void mount_op_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void mount_op_statfs(fuse_req_t req, fuse_ino_t ino);

void mount_op_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void mount_op_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t offset, struct fuse_file_info *fi);
void mount_op_readdirplus(fuse_req_t req, fuse_ino_t ino, size_t size, off_t offset,
                          struct fuse_file_info *fi);
void mount_op_releasedir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void mount_op_fsyncdir(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi);

void mount_op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void mount_op_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
                     struct fuse_file_info *fi);
void mount_op_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);

/* Of the read-only profile (openless.c). */
void mount_op_open_not_needed(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void mount_op_read_not_opened(fuse_req_t req, fuse_ino_t ino, size_t size, off_t offset,
                              struct fuse_file_info *fi);

void mount_op_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t offset, struct fuse_file_info *fi);
void mount_op_write(fuse_req_t req, fuse_ino_t ino, const char *p, size_t size, off_t offset,
                    struct fuse_file_info *fi);
void mount_op_flush(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void mount_op_fsync(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi);
void mount_op_fallocate(fuse_req_t req, fuse_ino_t ino, int mode, off_t offset, off_t length,
                        struct fuse_file_info *fi);
void mount_op_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *attr, int to_set,
                      struct fuse_file_info *fi);

void mount_op_unlink(fuse_req_t req, fuse_ino_t parent, const char *name);
void mount_op_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode);
void mount_op_rmdir(fuse_req_t req, fuse_ino_t parent, const char *name);
void mount_op_rename(fuse_req_t req, fuse_ino_t parent, const char *name, fuse_ino_t new_parent,
                     const char *new_name, unsigned flags);
void mount_op_mknod(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, dev_t rdev);
void mount_op_symlink(fuse_req_t req, const char *target, fuse_ino_t parent, const char *name);
void mount_op_readlink(fuse_req_t req, fuse_ino_t ino);
void mount_op_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t new_parent, const char *new_name);

/* ---- open.c, for others ---- */

/* A file of the node that is open for reading, and what it was when it was asked for. */
struct mount_opened {
    struct client_file *file;
    uint64_t key_hash, serial; /* as warm_track_locked takes them */
    uint32_t n_writings;       /* of the node: where it is another one by now, so may the bytes be */
};
/* Opens the version that the node stands for; -ESTALE, and the node is detached, when it is gone. */
int mount_open_file(struct mount *m, struct node *n, struct mount_opened *ret, struct err *e);
struct handle *handle_of(const struct fuse_file_info *fi);
/* Under the node table's lock: the inode is open by passthrough no more. */
void mount_unregister_locked(struct mount *m, struct node *n);
/* The file behind a plain handle, opened again when it was opened by a process before this one. */
int handle_file(struct mount *m, struct handle *h, struct client_file **ret, struct err *e);
/* After the loop has ended: closes what the kernel did not release any more, publishing what was written. */
void handle_close_all(struct mount *m);
void dir_close_all(struct mount *m);
/* Memory is scarce: the pages of listings that nobody reads just now are let go of. */
void dirs_let_go(struct mount *m);

/* ---- taking over from a process that was killed: takeover.c, and what it asks of others ---- */

void mirror_resume(struct mount *m);
void mirror_resumed(struct mount *m);
/* From here on nothing is let go of that nobody has asked for again, but by takeover_free. Before the
 * notifier ends. */
void takeover_end(struct mount *m);
void takeover_free(struct mount *m);
/* After the nodes and what is being written. */
void handles_resume(struct mount *m);
/* Opens again, for what is open by passthrough, what keeps its bytes in place. May wait for the node, until
 * the session ends. */
void handles_hold_bytes(struct mount *m);
void dirs_resume(struct mount *m);
/* The attached node of a name, or the one that a question to the node makes; referenced, not counted for the
 * kernel. */
int mount_resolve(struct mount *m, struct node *parent, const char *name, struct node **ret, struct err *e);

/*
 * `forebay mount`: a bucket, or a part of one, as a directory. One process per mount; it talks to the node of
 * this machine over its Unix socket.
 */
#pragma once

#include "base/err.h"

enum mount_profile {
    MOUNT_PROFILE_DEFAULT,
    MOUNT_PROFILE_READ_ONLY, /* files are opened inside the kernel and read through its page cache */
};
enum mount_passthrough { MOUNT_PASSTHROUGH_AUTO, MOUNT_PASSTHROUGH_ON, MOUNT_PASSTHROUGH_OFF };

struct mount_options {
    const char *bucket;                            /* BUCKET or BUCKET/PREFIX */
    const char *directory;                         /* the mount point */
    const char *data_dir, *socket_path, *endpoint; /* as in client.h */
    uint64_t timeout_ms;      /* how long an operation waits for a node that does not answer */
    uint64_t attr_timeout_ms; /* how long the kernel may believe attributes and names */
    uint64_t threads;
    uint64_t kept_files;   /* most files kept open after their last close */
    uint64_t memory_bytes; /* most memory of the process that serves; at least holdings_least (holdings.h) */
    enum mount_profile profile;
    enum mount_passthrough passthrough;
    bool read_only, allow_other;
    uint32_t uid, gid, umask;        /* uid, gid UINT32_MAX: the caller's */
    const char *const *fuse_options; /* further ones for libfuse, "name[=value]" */
    size_t n_fuse_options;
};

/* Called once in each process when the tree can be used. May be NULL. */
struct mount_callbacks {
    void (*ready)(void *arg);   /* in one that serves, on another thread */
    void (*keeping)(void *arg); /* in the keeper */
    void *arg;
};

/*
 * Splits into the process that serves and its keeper. The former mounts and serves until the directory is
 * unmounted or SIGTERM or SIGINT comes; there this returns 0 after a clean end, an error when it could not be
 * mounted, or -EIO when files that were closed could not be written, with a text. In the keeper it does not
 * return, see keeper.h.
 */
int mount_run(const struct mount_options *o, const struct mount_callbacks *calls, struct err *e);

/* Whether this process was started to take over a mount (an upgrade). Then mount_run is to be called without
 * further ado; the mount point, which it must not ask about, is known. */
bool mount_is_taken_over_here(void);
/* For a mount that leaves the directory in which it was begun: `path` (NULL accepted) with its whole name;
 * the caller's to free. Before mount_run. */
char *mount_whole_path(const char *path);

/*
 * Runs mount_run in the background, where the paths of o must be whole: returns in the caller's process once
 * the mount works, or has failed, and then the process of the mount is gone. log_path: where its log goes;
 * NULL: nowhere.
 */
int mount_run_in_background(const struct mount_options *o, const char *log_path, struct err *e);

/* What a mount tells whoever is about to unmount it. */
struct mount_flush_report {
    uint32_t pid;            /* of the mount's process */
    uint32_t n_failed;       /* files that could not be written so far */
    char text[ERR_TEXT_MAX]; /* about the last of them */
};
/* Who serves a mount after `forebay mount --upgrade`. */
struct mount_upgrade_report {
    uint32_t pid;
    bool is_upgraded; /* it is the program as it lies on the disk now; false: that could not take over */
    char version[64];
};
/* Has the program that lies where the mount's was started from take over: all that is open stays open.
 * -EPERM: only root and who mounted it may. -EOPNOTSUPP: this mount cannot be taken over. -EHOSTDOWN: its
 * node does not answer, and nothing was begun. -ETIMEDOUT: no answer so far. */
int mount_upgrade(const char *directory, uint64_t timeout_ms, struct mount_upgrade_report *ret,
                  struct err *e);

/* Writes out what files that are open have pending. -ENOTTY: not one of our mounts. */
int mount_flush(const char *directory, struct mount_flush_report *ret, struct err *e);
/* Flushes, unmounts and waits until the process has ended. -EBUSY while in use; -EIO when files could not be
 * written (it is unmounted then). */
int mount_unmount(const char *directory, uint64_t timeout_ms, struct err *e);

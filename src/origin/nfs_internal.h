/*
 * The NFS kind, between its files: nfs.c (URL, opening, reads), nfs_conn.c (sessions with the server, one
 * call, errors), nfs_put.c (writes), nfs_list.c (directories).
 */
#pragma once

#include "base/lock.h"
#include "base/quit.h"
#include "base/sys.h"
#include "origin/file_internal.h"
#include "origin/tree.h"

#include <fcntl.h>
#include <nfsc/libnfs.h>

#define NFS_MAGIC       0x4e46534fu
#define NFS_PIECE_BYTES (1 * MIB)
#define NFS_PATH_SIZE   (ORIGIN_KEY_MAX_BYTES + 2 + sizeof(FILE_TMP_PREFIX) + 64)

struct nfs_conn;

struct nfs {
    struct origin base; /* first */
    uint32_t magic;
    char *host, *path; /* path: the directory, as the server calls it; begins with '/' */
    char *settings;    /* of a session, as libnfs takes them in a URL */
    uint64_t timeout_ms, connect_timeout_ms;
    struct tree tree;

    struct lock lock; /* covers what follows */
    struct cond freed;
    struct nfs_conn **idle; /* used as a stack, the oldest first; room for `limit` */
    size_t n_idle, in_use, limit;
    size_t uploading;    /* of those in use: for slow bodies */
    uint64_t generation; /* sessions of an earlier one are not used again */
};

static inline struct nfs *nfs_of(struct origin *o)
{
    struct nfs *x = container_of(o, struct nfs, base);
    assert(x->magic == NFS_MAGIC);
    return x;
}

/* ---- sessions (nfs_conn.c) ---- */

/* A session that nobody else uses; mounts when none is idle. `cancel` may be NULL. */
int nfs_conn_take(struct nfs *x, atomic_bool *cancel, struct nfs_conn **ret, struct err *e);
/* The same for a slow body (origin.h): leaves some sessions to the others. */
int nfs_conn_take_for_slow(struct nfs *x, atomic_bool *cancel, struct nfs_conn **ret, struct err *e);
/* Gives it back; one that failed is ended. NULL is accepted. */
void nfs_conn_give(struct nfs_conn *c);
static inline void nfs_conn_givep(struct nfs_conn **c)
{
    nfs_conn_give(*c);
}
/* Whose session it is. */
const struct nfs *nfs_conn_owner(const struct nfs_conn *c);
/* What is called from now on does not look at the cancel flag. */
void nfs_conn_uncancel(struct nfs_conn *c);
/* Whether the session can be used no more. */
bool nfs_conn_is_broken(const struct nfs_conn *c);
/* As origin_rest. */
size_t nfs_conn_rest(struct nfs *x, uint64_t now_ms);
/* Ends all idle sessions. */
void nfs_conn_close_all(struct nfs *x);

/* Calls: 0 or more, or a negated errno for nfs_error. Paths are below the directory and begin with '/'. The
 * files and directories are closed with the functions here, also after a failure. */
int nfs_call_stat(struct nfs_conn *c, const char *path, struct nfs_stat_64 *ret);
int nfs_call_fstat(struct nfs_conn *c, struct nfsfh *fh, struct nfs_stat_64 *ret);
int nfs_call_open(struct nfs_conn *c, const char *path, struct nfsfh **ret);
int nfs_call_create(struct nfs_conn *c, const char *path, struct nfsfh **ret);
int nfs_call_read(struct nfs_conn *c, struct nfsfh *fh, void *p, size_t n, uint64_t offset);
int nfs_call_write(struct nfs_conn *c, struct nfsfh *fh, const void *p, size_t n, uint64_t offset);
int nfs_call_sync(struct nfs_conn *c, struct nfsfh *fh);
int nfs_call_close(struct nfs_conn *c, struct nfsfh *fh);
int nfs_call_opendir(struct nfs_conn *c, const char *path, struct nfsdir **ret);
struct nfsdirent *nfs_call_readdir(struct nfs_conn *c, struct nfsdir *dir);
void nfs_call_closedir(struct nfs_conn *c, struct nfsdir *dir);
int nfs_call_rename(struct nfs_conn *c, const char *from, const char *to);
int nfs_call_link(struct nfs_conn *c, const char *from, const char *to);
int nfs_call_unlink(struct nfs_conn *c, const char *path);
int nfs_call_mkdir(struct nfs_conn *c, const char *path);
int nfs_call_rmdir(struct nfs_conn *c, const char *path);
int nfs_call_utimes(struct nfs_conn *c, const char *path, uint64_t mtime_ns);
int nfs_call_chmod(struct nfs_conn *c, const char *path, uint32_t mode);
int nfs_call_chown(struct nfs_conn *c, const char *path, uint32_t uid, uint32_t gid);

/* Classifies what a call gave; `what` is what was being done. */
int nfs_error(const struct nfs_conn *c, struct err *e, int error, const char *what, struct slice key);
/* The class alone; pure. */
int nfs_error_class(int error);

/* ---- attributes (nfs.c) ---- */

uint64_t nfs_mtime_ns(const struct nfs_stat_64 *st);
void nfs_etag(const struct nfs_stat_64 *st, char ret[TREE_ETAG_SIZE]);
/* The ETag is put into the arena, and with origin->posix lines of metadata (net/posix_meta.h). */
struct origin_attr nfs_attr(const struct nfs_conn *c, const struct nfs_stat_64 *st, struct arena *a);
/* "/a/b" of a key; *ret_is_dir: it ended with '/'. -EINVAL when it cannot be a path. */
int nfs_key_path(struct slice key, char ret[NFS_PATH_SIZE], bool *ret_is_dir, struct err *e);
/* HOST[:PORT]/PATH of a URL: heap copies, `port` 0 when there is none. Pure. */
int nfs_parse_url(struct slice rest, char **ret_host, uint64_t *ret_port, char **ret_path, struct err *e);

/* ---- verbs ---- */

int nfs_get_file(struct nfs_conn *c, const struct origin_get *g, const char *path, struct arena *a,
                 struct origin_attr *ret, origin_sink_fn sink, void *arg, struct err *e);
int nfs_read_folder(void *arg, const char *path, struct tree_folder **ret, struct err *e);
int nfs_put(struct origin *o, const struct origin_put *p, const struct origin_body *body, struct arena *a,
            struct origin_attr *ret_attr, struct err *e);
int nfs_remove(struct origin *o, struct slice key, struct slice if_match, struct err *e);
int nfs_copy(struct origin *o, struct slice from, struct slice to, struct slice if_match, struct arena *a,
             struct origin_attr *ret_attr, struct err *e);

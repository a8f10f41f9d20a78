/*
 * The namespace of scratch buckets: a POSIX tree of inodes and directory entries in the control store, which
 * S3 sees as objects. It knows names and attributes and nothing of data: an inode carries a location blob
 * that the object layer sets and reads.
 *
 * **Every change is one transaction** and takes effect at once and whole. With KV_VISIBLE it survives kill -9
 * and, after power loss, goes only together with what came later; with KV_DURABLE it is on disk on return
 * (when that sync fails the error is given, and the change is visible but may not survive power loss).
 * scratch_sync makes durable what was visible: fsync of a directory.
 *
 * **What the object layer does**, by example:
 *  - S3 PUT: scratch_reserve gives a number for placement; the data is written; scratch_put makes the inode
 *    under its key, with directories on the way, in place of what was there. What is replaced keeps its
 *    inode and data as long as it is held, so that readers keep their version.
 *  - POSIX open with O_CREAT: scratch_create with `hold`. Open: scratch_lookup, scratch_hold. Close:
 *    scratch_release.
 *  - First write into an inode without location, truncation to another extent: scratch_setattr with
 *    SCRATCH_SET_LOCATION. Size, allocation and times while and after writing: scratch_setattr; they are what
 *    the object layer last said.
 *  - S3 GET, HEAD: scratch_find. S3 DELETE: scratch_remove_key. Listings: scratch_list.
 *  - Freeing data: an inode that lost its last link and is not held is handed out as *orphan*, by the call
 *    that took the link or by the scratch_release that was last. The object layer frees what the location
 *    names and then calls scratch_bury. Until then the inode is in the store's list of orphans, and
 *    scratch_sweep at start hands it out again: nothing leaks, whatever happens in between. Freeing must
 *    therefore accept that the data is gone already. Inodes without location come as orphans only there.
 *    A location that scratch_setattr replaces is not listed: whoever replaces it keeps the old one until the
 *    call returned, and at start believes the location that scratch_getattr gives.
 *
 * **Unsettled data.** The bytes of a file that somebody may be writing change without any call of this
 * header, and the disk may still hold them for nobody's. Such an inode has a *writing record*: it is made in
 * the transaction that gives the inode a location (scratch_create, scratch_put, scratch_setattr) or says that
 * it will be written to (SCRATCH_SET_WRITING), and goes with the location, with the inode, or by
 * scratch_settled, when the object layer has made inode and disk agree for good. scratch_unsettled gives them
 * all at start.
 *
 * **Keys and paths.** A key is the path of a file. "dir/" is the key of a directory that someone made (mkdir,
 * or PUT of "dir/" without data); directories that a key implies have none and go with the last key below
 * them; any change through POSIX makes them ordinary ones. Keys that cannot be paths, or whose path is taken
 * by something else (`a` beside `a/b`), live in the bucket's key table: S3 finds and lists them, POSIX does
 * not. A path hides the same key of the key table. Symbolic links and special files are no objects; paths
 * over SCRATCH_OBJECT_KEY_MAX bytes have no key.
 *
 * **Resent requests.** With `mount` and `request` set, a change notes in its own transaction that it was
 * done; the same request again gives the same answer and changes nothing. Kept are the last
 * SCRATCH_ANSWERS_MAX numbers of each mount, so a mount numbers its changes one after the other: by its
 * kernel's requests, which go on while one of them waits to ask a node again that was restarted. Failures
 * change nothing and are not noted.
 *
 * Threads: any. No call waits for another but for those that change the same inodes. Errors: errno values as
 * POSIX names them, ERR_CORRUPT for a broken record, and what the engine says. Slices of a returned inode
 * live in the arena of the call.
 */
#pragma once

#include "base/arena.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/id.h"
#include "kv/kv.h"

#define SCRATCH_ROOT           1 /* number of the root directory, in every bucket */
#define SCRATCH_NAME_MAX       255
#define SCRATCH_TARGET_MAX     4095
#define SCRATCH_LOCATION_MAX   64
#define SCRATCH_META_MAX       (8 * KIB)
#define SCRATCH_CONTENT_MAX    KIB
#define SCRATCH_ETAG_MAX       128
#define SCRATCH_PARTS_MAX      (512 * KIB)
#define SCRATCH_XATTR_MAX      (64 * KIB) /* bytes of one value */
#define SCRATCH_XATTR_LIST_MAX (64 * KIB) /* bytes of all names of an inode, each with its NUL */
#define SCRATCH_LINK_MAX       0x7fffffffu
#define SCRATCH_OBJECT_KEY_MAX 1024
#define SCRATCH_ANSWERS_MAX    (1 << 18)
#define SCRATCH_COOKIE_FIRST   3 /* 1 and 2 are for "." and "..", which the caller gives */

struct scratch;

/* Who asks. */
struct scratch_cred {
    uint32_t uid, gid;
    const uint32_t *groups; /* supplementary */
    size_t n_groups;
    uint32_t umask;
    bool check;            /* check permissions here; false when the kernel does it (default_permissions) */
    bool is_group_checked; /* the kernel knows all groups, and has taken set-group-ID off where it has to */
};

/* What every change takes. */
struct scratch_call {
    uint64_t bucket; /* its id */
    enum kv_commit commit;
    const struct scratch_cred *cred; /* NULL: the node itself, as root with umask 0 */
    struct id128 mount;
    uint64_t request; /* 0: not noted */
};

enum scratch_inode_flag {
    SCRATCH_IMPLIED = 1,  /* directory that exists only because of the keys below it */
    SCRATCH_LINKABLE = 2, /* made without a name; may get one */
    SCRATCH_KEYED = 4,    /* its name is in the key table */
    SCRATCH_PARTED = 8,   /* scratch_parts has something; true of the bytes while the ETag is there */
};

struct scratch_inode {
    uint64_t ino;
    uint32_t flags; /* enum scratch_inode_flag */
    uint32_t mode;  /* type and permissions as st_mode */
    uint32_t uid, gid, links, rdev;
    uint64_t size_bytes, allocated_bytes;
    int64_t atime_ns, mtime_ns, ctime_ns, birth_ns;
    uint64_t parent, entries, next_cookie; /* of a directory */
    uint32_t xattrs, xattr_name_bytes;
    struct slice location, target, etag, content_type, meta;
};

/* Of a bucket: inodes without the root, bytes allocated to files, how many keys are in the key table. */
struct scratch_counts {
    int64_t inodes, bytes, keyed;
};

/* Inodes whose data is to be freed now, see above. */
struct scratch_orphans {
    size_t n;
    struct scratch_orphan {
        uint64_t bucket, ino;
        uint8_t location[SCRATCH_LOCATION_MAX];
        size_t location_bytes;
    } v[3];
};

/* ---- scratch.c ---- */

/* kv stays the caller's and outlives it. cache_bytes: records kept in memory. */
int scratch_open(struct kv *kv, uint64_t cache_bytes, struct scratch **ret, struct err *e);
void scratch_close(struct scratch *s);
DEFINE_CLEANUP(struct scratch, scratch_close)

/* Makes the root directory of a new bucket; nothing when it is there. Durable. Every other call on a bucket
 * without root gives -ENOENT. */
int scratch_bucket_make(struct scratch *s, uint64_t bucket, uint32_t mode, uint32_t uid, uint32_t gid,
                        struct err *e);
/* -ENOTEMPTY while it has anything but its root, orphans included. Durable. */
int scratch_bucket_remove(struct scratch *s, uint64_t bucket, struct err *e);
int scratch_statfs(struct scratch *s, uint64_t bucket, struct scratch_counts *ret, struct err *e);
/* That the bucket has, or has had, a ttl, so that objects of it may have ends of their own: written down for
 * good, durably, and asked for. False also when it cannot be read. */
int scratch_note_ttl(struct scratch *s, uint64_t bucket, struct err *e);
bool scratch_had_ttl(struct scratch *s, uint64_t bucket);
/* Whether an inode of the bucket has lost its last link and is not gone: held, or not freed yet. */
int scratch_orphaned(struct scratch *s, uint64_t bucket, bool *ret, struct err *e);
/* Whether one lost its last link while it was held, since the monotonic time. */
bool scratch_orphaned_since(struct scratch *s, uint64_t bucket, uint64_t ns);
/* Everything committed so far is durable on return. */
int scratch_sync(struct scratch *s, struct err *e);

/* ---- scratch_inode.c ---- */

int scratch_getattr(struct scratch *s, uint64_t bucket, uint64_t ino, struct arena *a,
                    struct scratch_inode *ret, struct err *e);
/* What a directory, link or special file had that was removed, without links: remembered of some thousands,
 * as long as the process lives. -ENOENT. */
int scratch_getattr_removed(struct scratch *s, uint64_t bucket, uint64_t ino, struct arena *a,
                            struct scratch_inode *ret);

enum scratch_set_bit {
    SCRATCH_SET_MODE = 1 << 0, /* permissions only, the type stays */
    SCRATCH_SET_UID = 1 << 1,
    SCRATCH_SET_GID = 1 << 2,
    SCRATCH_SET_SIZE = 1 << 3, /* also forgets the ETag unless SET_ETAG comes along */
    SCRATCH_SET_ALLOCATED = 1 << 4,
    SCRATCH_SET_ATIME = 1 << 5,
    SCRATCH_SET_MTIME = 1 << 6,
    SCRATCH_SET_CTIME = 1 << 7, /* else it becomes now */
    SCRATCH_SET_ATIME_NOW = 1 << 8,
    SCRATCH_SET_MTIME_NOW = 1 << 9,
    SCRATCH_SET_LOCATION = 1 << 10, /* with a writing record; an empty one takes both away */
    SCRATCH_SET_ETAG = 1 << 11,
    SCRATCH_SET_CONTENT_TYPE = 1 << 12,
    SCRATCH_SET_META = 1 << 13,
    SCRATCH_SET_DROP_PRIVILEGE = 1 << 14, /* a write: set-user-ID and set-group-ID go */
    SCRATCH_SET_WRITING = 1 << 15,        /* a writing record for the location that it has */
    SCRATCH_SET_DROP_GROUP = 1 << 16,     /* by who is not in the group: set-group-ID goes in any case */
};

struct scratch_set {
    uint32_t what; /* enum scratch_set_bit */
    uint32_t mode, uid, gid;
    uint64_t size_bytes, allocated_bytes;
    int64_t atime_ns, mtime_ns, ctime_ns;
    struct slice location, etag, content_type, meta;
};

/* Works on held inodes without links too. -EISDIR: size or location of a directory; -EINVAL: of anything else
 * that is no file. */
int scratch_setattr(struct scratch *s, const struct scratch_call *call, uint64_t ino,
                    const struct scratch_set *set, struct arena *a, struct scratch_inode *ret, struct err *e);

/* The inode's own ETag, or one made of its number, size and mtime for what was not written through S3. */
struct slice scratch_etag(const struct scratch_inode *x, struct arena *a);

/* ---- scratch_change.c ---- */

/* Whether this request was done. For changes that are more than one call of this header. */
int scratch_is_done(struct scratch *s, const struct scratch_call *call, bool *ret, struct err *e);
/* The same of one that scratch_note noted, with what: the caller does that once, before it does the rest. */
int scratch_noted(struct scratch *s, const struct scratch_call *call, bool *ret, uint64_t *ret_what,
                  struct err *e);
int scratch_note(struct scratch *s, const struct scratch_call *call, uint64_t what, struct err *e);

/* ---- scratch_hold.c ---- */

/* Holds an inode: while it is held it outlives its last link. -ENOENT. Holds are this process's own. */
int scratch_hold(struct scratch *s, uint64_t bucket, uint64_t ino, struct err *e);
/* At start: holds an orphan, which somebody may still have open. */
int scratch_hold_orphan(struct scratch *s, uint64_t bucket, uint64_t ino, struct err *e);
/* Takes one hold back; the last one of an inode without links hands it out (or removes it, when it has no
 * location). */
int scratch_release(struct scratch *s, uint64_t bucket, uint64_t ino, struct scratch_orphans *ret_orphans,
                    struct err *e);
/* An orphan's data is freed: removes what is left of the inode. */
int scratch_bury(struct scratch *s, uint64_t bucket, uint64_t ino, struct err *e);
/* At start: calls on_orphan for every orphan of any bucket, and buries those for which it gives 0, which must
 * not be held; others stay for the next start. Also forgets old answers. */
int scratch_sweep(struct scratch *s, int (*on_orphan)(void *arg, const struct scratch_orphan *x), void *arg,
                  struct err *e);
/* What requests of mounts had done more than a day ago, for those that never said that they are gone. At any
 * time. */
int scratch_forget_old_answers(struct scratch *s, struct err *e);
/* The mount is gone: forgets what its requests had done. */
int scratch_forget_mount(struct scratch *s, struct id128 mount, struct err *e);

/* ---- scratch_writing.c ---- */

/* An inode with a writing record. */
struct scratch_unsettled {
    uint64_t bucket, ino;
    uint8_t location[SCRATCH_LOCATION_MAX];
    size_t location_bytes;
};

/* Calls on_inode for every inode of any bucket that has a writing record, until it gives a negative code,
 * which is passed on. Records made or removed meanwhile may or may not be seen. */
int scratch_unsettled(struct scratch *s, int (*on_inode)(void *arg, const struct scratch_unsettled *x),
                      void *arg, struct err *e);
/* Calls on_inode for every inode of any bucket that has a location, settled or not, likewise. Reads every
 * record. */
int scratch_located(struct scratch *s, int (*on_inode)(void *arg, const struct scratch_unsettled *x),
                    void *arg, struct err *e);
/* Takes their writing records away, in one transaction. The caller knows that nobody makes them again
 * meanwhile. */
int scratch_settled(struct scratch *s, const struct scratch_unsettled *v, size_t n, struct err *e);
#define SCRATCH_UNLOCATE_MAX 8
/* Different inodes, up to SCRATCH_UNLOCATE_MAX, have no location any more, nor a writing record; their times
 * stay. One transaction: on failure all are as they were. */
int scratch_unlocate(struct scratch *s, uint64_t bucket, const uint64_t *inos, size_t n, struct err *e);

/* ---- scratch_opened.c: what mounts have open of which nothing but the node has the file ---- */

enum scratch_opened_how { SCRATCH_OPENED_READS = 1, SCRATCH_OPENED_WRITES = 2 };

struct scratch_opened {
    uint64_t bucket, ino;
    struct id128 mount;
    uint32_t how; /* enum scratch_opened_how; 0: not any more */
};

/* Written down for the next start, where a process that dies leaves it. */
int scratch_opened_put(struct scratch *s, const struct scratch_opened *x, struct err *e);
/* Calls on_opened for each, until it gives a negative code, which is passed on. */
int scratch_opened_each(struct scratch *s, int (*on_opened)(void *arg, const struct scratch_opened *x),
                        void *arg, struct err *e);

/* ---- scratch_lookup.c ---- */

/* "." and ".." too. */
int scratch_lookup(struct scratch *s, const struct scratch_call *call, uint64_t parent, struct slice name,
                   struct arena *a, struct scratch_inode *ret, struct err *e);
/* A path below the root, without following links; "" is the root, one trailing '/' is allowed for
 * directories. */
int scratch_path(struct scratch *s, uint64_t bucket, struct slice path, struct arena *a,
                 struct scratch_inode *ret, struct err *e);

struct scratch_entry {
    struct slice name; /* lives until the function returns */
    uint64_t ino;
    uint32_t mode; /* type only */
    uint64_t cookie;
};

/*
 * Entries with cookies after `after` (0: from the beginning), in the order of their making, until on_entry
 * gives something other than 0 (which is not passed on) or cookie `until` is reached. Names that exist all
 * the time are given once, whatever else is made or removed meanwhile, and whatever takes the place of what
 * they led to. An entry made meanwhile comes at the end: a reader that shall not meet those passes the cookie
 * that scratch_readdir_end gave when it began (0: no end).
 */
int scratch_readdir(struct scratch *s, uint64_t bucket, uint64_t dir, uint64_t after, uint64_t until,
                    int (*on_entry)(void *arg, const struct scratch_entry *x), void *arg, struct err *e);
int scratch_readdir_end(struct scratch *s, uint64_t bucket, uint64_t dir, uint64_t *ret_until, struct err *e);

/* ---- scratch_create.c ---- */

struct scratch_new {
    uint32_t mode; /* with type; umask of the caller is applied */
    uint32_t rdev;
    struct slice target;   /* of a symbolic link */
    struct slice location; /* of a new file, with a writing record; unused when the file exists */
    bool exclusive;        /* -EEXIST when the name exists; else an existing file is given (only for files) */
    bool hold;             /* the inode is held on return, also an existing one */
};

/* Any type of inode: mknod, mkdir, symlink, create. An empty name makes a file without links, held
 * (O_TMPFILE); ret_made may be NULL. */
int scratch_create(struct scratch *s, const struct scratch_call *call, uint64_t parent, struct slice name,
                   const struct scratch_new *n, struct arena *a, struct scratch_inode *ret, bool *ret_made,
                   struct err *e);

/* ---- scratch_perm.c: all give what they give to root unless cred->check ---- */

/* want: 4 read, 2 write, 1 search, as access(2). -EACCES. */
int scratch_may(const struct scratch_inode *x, const struct scratch_cred *cred, unsigned want, struct err *e);
/* Whether these attributes may be set: -EPERM, -EACCES. */
int scratch_may_set(const struct scratch_inode *x, const struct scratch_set *set,
                    const struct scratch_cred *cred, struct err *e);
/* Whether it is its owner, or nobody checks. */
bool scratch_is_owner(const struct scratch_inode *x, const struct scratch_cred *cred);
bool scratch_in_group(const struct scratch_cred *cred, uint32_t gid);

/* ---- scratch_link.c ---- */

int scratch_link(struct scratch *s, const struct scratch_call *call, uint64_t ino, uint64_t parent,
                 struct slice name, struct arena *a, struct scratch_inode *ret, struct err *e);
/* ret_changed_ns, here and of scratch_rename; may be NULL: the times of change that the directories of the
 * names have now; 0: the request was made before, nothing was changed, or a directory got another place, of
 * which more is different than that. */
int scratch_unlink(struct scratch *s, const struct scratch_call *call, uint64_t parent, struct slice name,
                   struct scratch_orphans *ret_orphans, int64_t *ret_changed_ns, struct err *e);
int scratch_rmdir(struct scratch *s, const struct scratch_call *call, uint64_t parent, struct slice name,
                  struct err *e);

/* ---- scratch_rename.c ---- */

enum scratch_rename_flag { SCRATCH_NOREPLACE = 1, SCRATCH_EXCHANGE = 2 }; /* as renameat2 */

int scratch_rename(struct scratch *s, const struct scratch_call *call, uint64_t from_parent,
                   struct slice from_name, uint64_t to_parent, struct slice to_name, uint32_t flags,
                   struct scratch_orphans *ret_orphans, int64_t *ret_changed_ns, struct err *e);

/* ---- scratch_xattr.c ---- */

enum scratch_xattr_flag { SCRATCH_XATTR_CREATE = 1, SCRATCH_XATTR_REPLACE = 2 }; /* as setxattr */

/* -ENODATA. Value appended. */
int scratch_xattr_get(struct scratch *s, uint64_t bucket, uint64_t ino, struct slice name, struct buf *ret,
                      struct err *e);
/* Names, each with a NUL behind it, appended. */
int scratch_xattr_list(struct scratch *s, uint64_t bucket, uint64_t ino, struct buf *ret, struct err *e);
int scratch_xattr_set(struct scratch *s, const struct scratch_call *call, uint64_t ino, struct slice name,
                      struct slice value, uint32_t flags, struct err *e);
int scratch_xattr_remove(struct scratch *s, const struct scratch_call *call, uint64_t ino, struct slice name,
                         struct err *e);

/* ---- scratch_object.c: by key ---- */

/* Whether a file system can hold this key: components of 1 to 255 bytes, none "." or "..", no NUL; one
 * trailing '/' is allowed. */
bool scratch_key_is_path(struct slice key);
/* The object with this key: a file, or an explicit directory when it ends with '/'. -ENOENT. */
int scratch_find(struct scratch *s, uint64_t bucket, struct slice key, struct arena *a,
                 struct scratch_inode *ret, struct err *e);
/* A new number for an inode under this key, for scratch_put. Nothing is stored under it yet. */
int scratch_reserve(struct scratch *s, uint64_t bucket, struct slice key, uint64_t *ret_ino, struct err *e);

struct upload_record; /* namespace/upload.h */
struct scratch_put {
    uint64_t ino; /* from scratch_reserve; 0 for a key that ends with '/' and has no data */
    uint64_t size_bytes, allocated_bytes;
    int64_t mtime_ns; /* 0: now */
    struct slice location, etag, content_type, meta;
    struct slice parts;        /* for scratch_parts; empty: none */
    struct slice if_match;     /* ETag, or "*": -ENOENT without object, ERR_PRECONDITION if it has another */
    bool if_none_match;        /* ERR_PRECONDITION when there is an object */
    struct slice if_none_etag; /* the same when it has this ETag; empty: none */
    bool fail_if_clash;        /* -EISDIR, -ENOTDIR instead of using the key table */
    uint64_t ttl_ms,
        now_ns; /* now_ns not 0: an object that has ended (namespace/expiry.h) is none to these */
    /* Not NULL: what it says of mode (permissions only), owner and mtime is so of what is put; a link of that
     * name is replaced, too. */
    const struct scratch_set *set;
    struct slice target;                /* not empty: a symbolic link is put. Only for keys that are paths */
    const struct upload_record *upload; /* not NULL: is completed by the same transaction, as this says */
};

/* Owner and permissions of a replaced file are kept; new ones get the caller's and 0644. No file gets
 * set-user-ID or set-group-ID bits. */
int scratch_put(struct scratch *s, const struct scratch_call *call, struct slice key,
                const struct scratch_put *p, struct arena *a, struct scratch_inode *ret,
                struct scratch_orphans *ret_orphans, struct err *e);
/* What scratch_put was given of this inode's parts, appended. -ENOENT: nothing. */
int scratch_parts(struct scratch *s, uint64_t bucket, uint64_t ino, struct buf *ret, struct err *e);
/* -ENOENT when there is no such object. */
int scratch_remove_key(struct scratch *s, const struct scratch_call *call, struct slice key,
                       struct slice if_match, struct scratch_orphans *ret_orphans, struct err *e);
/* The same of an object that is as it was when it was looked at: with this ETag, since that time
 * (scratch_since_ns). ERR_PRECONDITION, also when the same bytes were put since. */
struct scratch_version {
    struct slice etag;
    uint64_t since_ns;
};
int scratch_remove_version(struct scratch *s, const struct scratch_call *call, struct slice key,
                           const struct scratch_version *v, struct scratch_orphans *ret_orphans,
                           struct err *e);
/* The same of an object that has ended by now_ns; -ENOENT also when there is one that has not. */
int scratch_remove_over(struct scratch *s, const struct scratch_call *call, struct slice key, uint64_t ttl_ms,
                        uint64_t now_ns, struct scratch_orphans *ret_orphans, struct err *e);
/* Since when an object is as it is: the later of its times of writing and of change. The first can be set to
 * what a copied file had elsewhere (cp -p, rsync -a, tar); the second nobody can set back. 0: not known. */
uint64_t scratch_since_ns(const struct scratch_inode *x);
/* Whether an object has ended (namespace/expiry.h). Directories never do. */
bool scratch_is_over(const struct scratch_inode *x, uint64_t ttl_ms, uint64_t now_ns);
/* Gives the object another key, in place of what was there unless SCRATCH_NOREPLACE. */
int scratch_move_key(struct scratch *s, const struct scratch_call *call, struct slice from, struct slice to,
                     uint32_t flags, struct scratch_orphans *ret_orphans, struct err *e);

/* ---- scratch_list.c ---- */

struct scratch_list {
    struct slice prefix;
    char delimiter; /* 0: none */
    struct slice after;
    size_t max;
    bool paths_only; /* leave out the key table and directories' own keys (they still make prefixes) */
    bool links;      /* symbolic links are keys, too */
};

struct scratch_listed {
    struct slice key;                  /* lives until the function returns */
    bool is_prefix;                    /* common prefix, ends with the delimiter */
    const struct scratch_inode *inode; /* of a key; NULL for a prefix */
};

/* Keys and common prefixes after `after` in byte order, at most `max`. *ret_truncated: there are more, which
 * follow the last one given. Memory does not grow with the bucket. on_key gives 0 or a negative code, which
 * ends the listing and is passed on, or -E2BIG, which ends the page before this key, or SCRATCH_PASS_BY: the
 * key is none of the `max`, and only a page that would pass by very many ends without having as many. */
#define SCRATCH_PASS_BY 1
int scratch_list(struct scratch *s, uint64_t bucket, const struct scratch_list *l,
                 int (*on_key)(void *arg, const struct scratch_listed *x), void *arg, bool *ret_truncated,
                 struct err *e);

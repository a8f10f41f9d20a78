/*
 * The inodes that the kernel knows of. A node stands for one version of one file, or for a directory; the
 * kernel names it by its id and holds a number of references (lookups) that it gives back with FORGET. Memory
 * is that of what the kernel holds; above a limit, node_table_oldest says what it should be asked to drop.
 *
 * A new version of a file is a new node: the old one is *detached* (no longer found by its name) and lives as
 * long as the kernel holds it, so that its pages, its backing file and its readers stay with the old bytes.
 *
 * The table's lock is taken by each function here and is never held over a call to the node.
 */
#pragma once

#include "base/buf.h"
#include "base/lock.h"

#define NODE_ROOT_ID 1

struct backing;
struct client_file;
struct kept;
struct node_kept;
struct staging;
struct warm_file;

/* What is known of the version. */
struct node_attr {
    bool is_dir;
    uint64_t size_bytes;
    uint64_t mtime_ns;
    struct slice etag; /* empty for directories */
    /* Of a bucket that keeps them (`posix=on`), where they are known; else all 0. */
    bool has_owner;
    uint32_t mode, uid, gid; /* mode with its kind */
};

struct node {
    uint32_t magic;
    /* Fixed while the node lives, but for a rename, which happens under the table's lock. */
    uint64_t id;
    struct node *parent; /* referenced; NULL for the root */
    char *name;
    size_t name_n;
    bool is_dir;
    uint64_t ino;      /* what stat shows: a hash of the path, the same for all versions */
    uint64_t moved_by; /* request_unique of the last rename; 0: none */

    /* Covered by the table's lock. */
    uint64_t lookups; /* held by the kernel */
    uint32_t refs;    /* children, and users in this process */
    bool is_attached;
    bool is_unlinked;
    bool is_lost; /* where it lies is not known: of a process before this one, which could not keep it all */
    bool is_told_absent; /* the kernel, since it looked the name up last, that there is none */
    bool wants_renewal;  /* the next lookup makes a new node, so that it can be opened in another mode */
    bool is_spoilt; /* not to be opened: the kernel may have pages of it with bytes that no version has */
    uint64_t size_bytes, mtime_ns;
    bool has_owner; /* and mode; as in node_attr */
    uint32_t mode, uid, gid;
    char *etag;
    size_t etag_n;
    struct node *hash_next, *id_next;
    struct node *lru_older, *lru_newer;
    struct node_kept *kept; /* for a process that takes over; NULL: it need not know this node */
    uint32_t n_keepers;     /* node_keep_locked */
    uint32_t recent;        /* one of them: its place among those looked up last, from 1; 0: none */
    uint32_t held_bytes;    /* counted in holdings.h; 0: not yet */

    /* How it is open (open.c). Covered by the table's lock. */
    uint32_t n_passthrough;           /* opens with backing_id */
    uint32_t n_plain;                 /* opens served by this process */
    uint32_t n_shared;                /* of those, opens that read from backing_file */
    uint32_t n_writings;              /* stagings that began, and that ended */
    int backing_id;                   /* > 0 while n_passthrough > 0, or kept open (warm.h) */
    struct backing *backing;          /* of backing_id, for a process that takes over */
    struct client_file *backing_file; /* keeps the bytes in place; NULL when `staging` does */
    struct staging *staging;          /* being written here; counted there */
    struct warm_file *warm;           /* watched, so that it can be kept open */
};

struct node_table;

/* k: where the nodes are kept of which a process that takes over has to know (node_kept.h): directories, what
 * node_keep_locked says, and, with keeps_all, every file. NULL: nobody takes over. */
struct node_table *node_table_new(struct kept *k, bool keeps_all);
/* In a process that takes over, before anything else: makes the nodes that were kept. The kernel is taken to
 * hold one lookup of each. Calls `each` with every file among them. */
void node_table_resume(struct node_table *t, void (*each)(void *arg, struct node *n), void *arg);
void node_table_free(struct node_table *t); /* forgets all */
DEFINE_CLEANUP(struct node_table, node_table_free)
/* For code that changes the fields above together. */
struct lock *node_table_lock(struct node_table *t);

/* A node of which nothing could be kept, not even a name; referenced. */
struct node *node_resume_lost(struct node_table *t, uint64_t id);
/* The node is of use to a process that takes over, and, when this was undone as often, no longer so. Without
 * room it is not kept. */
void node_keep_locked(struct node_table *t, struct node *n);
void node_unkeep_locked(struct node_table *t, struct node *n);
/* What is known of the node was changed by other means than the functions below. */
void node_changed_locked(struct node_table *t, struct node *n);

/* The node of an id, referenced (node_unref), or NULL. */
struct node *node_get(struct node_table *t, uint64_t id);
struct node *node_ref(struct node_table *t, struct node *n);
void node_unref(struct node_table *t, struct node *n);

#define NODE_RECENT 4096 /* files that were looked up last and are kept: half a MiB */

/* The attached node of that name, referenced, or NULL. */
struct node *node_find(struct node_table *t, struct node *parent, struct slice name);
/*
 * The node that a lookup of `name` shall give: the attached one when it is of this version, else a new one in
 * its place. Counts one lookup for the kernel and returns it referenced. Never NULL. A node that is being
 * written here is always of this version.
 */
struct node *node_look_up(struct node_table *t, struct node *parent, struct slice name,
                          const struct node_attr *a);
/* Of a node that was found otherwise: counts one lookup for the kernel. */
void node_looked_up_locked(struct node *n);
/* The kernel gives back n lookups. */
void node_forget(struct node_table *t, uint64_t id, uint64_t n);

/* The kernel is about to be told that there is no such name; who has it in use keeps what had it. */
void node_tell_absent(struct node_table *t, struct node *parent, struct slice name);
/* Whether it was, and nothing else since. */
bool node_is_told_absent(struct node_table *t, const struct node *n);

/* No longer found by its name. unlinked: stat shows no link any more. */
void node_detach(struct node_table *t, struct node *n, bool is_unlinked);
void node_detach_locked(struct node_table *t, struct node *n, bool is_unlinked);
/* The contrary, of one that is not unlinked: found by its name again, unless one is that is written here.
 * What was found by it until now is detached, spoilt and returned, referenced; NULL: nothing was. */
struct node *node_attach(struct node_table *t, struct node *n);
/* Renames; what was at the target is detached as unlinked. */
void node_move(struct node_table *t, struct node *n, struct node *new_parent, struct slice new_name);
/* After node_move of what had the same name before: the name of one that is detached, too, by which it is
 * published later. One that got the old name back meanwhile (node_attach) is moved. */
void node_move_along(struct node_table *t, struct node *n, struct node *new_parent, struct slice new_name);
/* After node_move of a directory: what lies in it has the numbers of its new path. Calls `each`, under the
 * table's lock, with the directory and every node that got another number. */
void node_renumber(struct node_table *t, struct node *dir, void (*each)(void *arg, struct node *n),
                   void *arg);
/* The node is of this version from now on (it was written here, or its attributes were asked again). */
void node_set_attr(struct node_table *t, struct node *n, const struct node_attr *a);
/* Of a file: `from` has become `to`, with the same bytes. Nothing, when the node is another version than
 * `from`. */
void node_follow(struct node_table *t, struct node *n, struct slice from, struct slice to);
/* Whether the node is attached and of this version; takes over what else is known of it then. */
bool node_confirm(struct node_table *t, struct node *n, const struct node_attr *a);
bool node_is_version_locked(const struct node *n, const struct node_attr *a);
/* Whether n is `dir`, or lies in it at any depth. Of NULL: no. */
bool node_is_within_locked(const struct node *n, const struct node *dir);

/* "dir/name" below the root, without slashes at the ends, appended to b. -ENAMETOOLONG over b's maximum;
 * -ESTALE of what is lost, and what lies in it. */
int node_path(struct node_table *t, struct node *n, struct buf *b);

/* What stat shows for the directory and for the one it lies in; the root lies in itself. */
void node_inos(struct node_table *t, const struct node *n, uint64_t *ret_own, uint64_t *ret_parent);
/* What stat shows for a name in a directory. */
uint64_t node_ino(uint64_t parent_ino, struct slice name);

size_t node_table_count(struct node_table *t);
/* The ids of all nodes but the root, freed by the caller. */
size_t node_table_ids(struct node_table *t, uint64_t **ret);
/* The node that was looked up least recently, is not open and has no children, referenced; NULL when there is
 * none among the oldest few. It becomes the newest, so that the next call gives another. */
struct node *node_table_oldest(struct node_table *t);
/* Walks the structure and asserts what must hold; for tests. */
void node_table_check(struct node_table *t);

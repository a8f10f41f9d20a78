/*
 * What a process that takes over (keeper.h) has to know of a node: cells of kept memory (kept.h). A cell is
 * never changed but for its flags and its lookups: what is known now is put into another one, and the former
 * is given back, so that a process may be killed between any two instructions.
 *
 * Kept are directories, files that are open or believed in by the kernel for long, and, where the kernel
 * opens files without asking, all files. Everything else the kernel looks up again.
 *
 * Threads: each cell belongs to its node, and is covered by the node table's lock.
 */
#pragma once

#include "base/slice.h"
#include "mount/kept.h"

#define NODE_KEPT_TEXT_BYTES 16

struct node_kept {
    uint32_t magic; /* set last */
    uint16_t name_n, etag_n;
    uint64_t id, parent_id, ino;
    uint64_t size_bytes, mtime_ns;
    uint64_t serial; /* of two cells of one node, the higher one is true */
    uint64_t moved_by;
    uint64_t lookups;            /* held by the kernel; more by what a kill took the answer or a FORGET of */
    struct node_kept_text *more; /* what does not fit into: */
    char text[NODE_KEPT_TEXT_BYTES]; /* the name, then the ETag */
    uint32_t mode, uid, gid;         /* has_owner */
    bool is_dir, is_attached, is_unlinked, has_owner;
};

struct node_kept_facts {
    uint64_t id, parent_id, ino, size_bytes, mtime_ns, moved_by, lookups;
    struct slice name, etag;
    uint32_t mode, uid, gid; /* has_owner */
    bool is_dir, is_attached, is_unlinked, has_owner;
};

/* NULL: there is no room, which is sooner so for what is not needed. */
struct node_kept *node_kept_new(struct kept *k, const struct node_kept_facts *x, bool is_needed);
void node_kept_free(struct kept *k, struct node_kept *c); /* NULL accepted */
/* The name and the ETag, allocated and followed by a 0. */
void node_kept_text(const struct node_kept *c, char **ret_name, char **ret_etag);
/* In a process that takes over: gives back what was left half-made, and all but the newest cell of a node. */
void node_kept_sweep(struct kept *k);

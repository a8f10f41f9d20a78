/*
 * What outlives the process that serves a mount: memory shared with its keeper (keeper.h) and with the
 * process that takes over. All of them are forked from the keeper, so it lies at the same address in each,
 * and pointers into it hold. It is never written to a disk and never read by another version of the program.
 *
 * Most of it is cells: small objects that the kernel, or another cell, points to. A cell's bytes are zero
 * until its owner sets them; what a process that was killed left half-made is recognised by its owner (a
 * magic of 0) and freed.
 *
 * Threads: any.
 */
#pragma once

#include "base/err.h"
#include "base/id.h"

#include <stdatomic.h>

#define KEPT_CELL_BYTES 112
#define KEPT_CELLS_MAX  (1u << 20) /* what is open, directories and locks of a mount */
#define KEPT_INIT_BYTES 256        /* of the kernel's first request */

enum kept_kind {
    KEPT_FREE,
    KEPT_HANDLE,    /* struct tree_handle, or handle */
    KEPT_DIRECTORY, /* struct tree_dir, or dir_open */
    KEPT_LOCK,      /* struct tree_held */
    KEPT_NODE,      /* struct node_kept */
    KEPT_TEXT,      /* struct node_kept_text */
    KEPT_BACKING,   /* struct backing */
    KEPT_STAGING,   /* struct staging_kept */
};

/* Facts about the mount, set while its first process starts. */
struct kept_facts {
    bool can_resume;     /* the rest is true, and the kernel sends again what was not answered */
    bool is_passthrough; /* as the first process found out */
    uint8_t kind;        /* enum mount_kind_id */
    uint32_t init_bytes;
    uint8_t init[KEPT_INIT_BYTES];
    struct id128 id;               /* of the mount, in numbered requests */
    uint64_t root;                 /* inode */
    _Atomic uint64_t own_requests; /* numbered ones that no request of the kernel asked for */
    _Atomic uint64_t next_node;    /* id, of a mirror bucket's mount */
    _Atomic uint64_t node_serial;
    uint64_t started_ns;
    int32_t keeper_pid;
};

struct kept;

/* Maps the shared memory. Before the first fork. */
int kept_new(struct kept **ret, struct err *e);
/* In a process that serves: what is free is what the processes before it left. */
void kept_begin(struct kept *k);
void kept_free(struct kept *k); /* the mapping too; NULL accepted */
struct kept_facts *kept_facts(struct kept *k);

/* Whether some more cells can be taken; a few are held back. */
bool kept_has_room(struct kept *k);
/* Zeroed. NULL: all are in use. */
void *kept_take(struct kept *k, enum kept_kind kind);
void kept_give(struct kept *k, void *cell);
/* The next cell of a kind after another one (NULL: the first), in no order. While no other thread runs. */
void *kept_next(struct kept *k, enum kept_kind kind, const void *after);

/*
 * What outlives the process that serves a mount: memory shared with its keeper (keeper.h) and with the
 * process that takes over. All of them are forked from the keeper, so it lies at the same address in each,
 * and pointers into it hold. It is never written to a disk. Another version of the program may read it, after
 * an upgrade: KEPT_LAYOUT counts the changes of what lies in it, in this file and in the structs of enum
 * kept_kind, and a version with another layout does not take over.
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

#define KEPT_LAYOUT     7
#define KEPT_CELL_BYTES 112
#define KEPT_CELLS_MAX  (1u << 20) /* what is open, directories and locks of a mount */
#define KEPT_INIT_BYTES 256        /* of the kernel's first request */
#define KEPT_SLOTS_MAX  65536      /* descriptors that the keeper holds for who takes over */
#define KEPT_PATH_BYTES 4096
#define KEPT_DIRS       8192  /* places of a table; a directory that finds its place taken is not in it */
#define KEPT_MAPPED     65536 /* bits of a set */

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
    uint32_t layout;     /* KEPT_LAYOUT; first, so that any version finds it */
    bool can_resume;     /* the rest is true, and the kernel sends again what was not answered */
    bool is_passthrough; /* as the first process found out */
    uint8_t kind;        /* enum mount_kind_id */
    bool is_posix;       /* the bucket keeps mode, owner, time and links */
    uint32_t init_bytes;
    uint8_t init[KEPT_INIT_BYTES];
    struct id128 id;               /* of the mount, in numbered requests and the sessions of its clients */
    _Atomic uint64_t root;         /* inode */
    _Atomic uint64_t own_requests; /* numbered ones that no request of the kernel asked for */
    _Atomic uint64_t next_node;    /* id, of a mirror bucket's mount */
    _Atomic uint64_t node_serial;
    uint64_t started_ns;
    int32_t keeper_pid;
    char directory[KEPT_PATH_BYTES]; /* the mount point */
};

/* What the kernel was told of a scratch bucket (tree_watch.c). */
struct kept_told {
    _Atomic uint64_t dirs[KEPT_DIRS]; /* inodes of directories whose attributes are believed; 0: none */
    _Atomic uint64_t mapped[KEPT_MAPPED / 64]; /* files that may be mapped, by a hash of the inode */
};

struct kept;

/* Maps the shared memory. Before the first fork. */
int kept_new(struct kept **ret, struct err *e);
/* In a program that was started to take over: maps the memory behind `fd`, which it takes, at its address.
 * -ENOTSUP: its layout is another one; -EEXIST: something else lies at that address. */
int kept_open(int fd, void *at, struct kept **ret, struct err *e);
/* What kept_open is given there. */
int kept_fd(const struct kept *k);
void *kept_address(const struct kept *k);
/* By slot, the number of the descriptor that the keeper holds, plus 1; 0: none. The keeper's to write. */
int *kept_held(struct kept *k);
/* In a process that serves: what is free is what the processes before it left. */
void kept_begin(struct kept *k);
void kept_free(struct kept *k); /* the mapping too; NULL accepted */
struct kept_facts *kept_facts(struct kept *k);
struct kept_told *kept_told(struct kept *k);

/* Whether some more cells can be taken; a few are held back. */
bool kept_has_room(struct kept *k);
/* The same for what can be done without: a quarter stays for what programs would be refused, and memory that
 * is not there is not taken for it. */
bool kept_has_plenty(struct kept *k);
/* Zeroed. NULL: all are in use. */
void *kept_take(struct kept *k, enum kept_kind kind);
void kept_give(struct kept *k, void *cell);
/* The next cell of a kind after another one (NULL: the first), in no order. While no other thread runs. */
void *kept_next(struct kept *k, enum kept_kind kind, const void *after);

/* Shared by staging.c (who uses a staging) and staging_publish.c (how its bytes leave). */
#pragma once

#include "mount/mount_internal.h"

enum staging_state { STAGING_STARTING, STAGING_READY, STAGING_ENDING };

struct staging {
    struct node *node;          /* referenced */
    _Atomic int fd;             /* where writers write; -1 while STARTING */
    _Atomic uint64_t n_changes; /* made by this process */
    _Atomic bool is_unlinked;
    _Atomic bool may_be_mapped; /* by somebody who writes, beyond the last release */
    _Atomic bool is_published;  /* the origin has an object of that name */

    /* Covered by the node table's lock. */
    struct staging *next;
    uint32_t refs;
    enum staging_state state;
    bool is_busy; /* someone publishes */

    /* Owned by whoever set is_busy. */
    bool has_handle; /* the node has a staging file of it: */
    uint64_t handle, epoch;
    int target_fd;     /* that file when it is another than `fd`, else -1 */
    bool is_committed; /* the handle has been committed at least once */
    bool is_clean;     /* seen_* was published */
    bool has_failed;   /* seen_* could not be published, and somebody was told */
    struct stat seen_stat;
    uint64_t seen_changes;
};

/* Asks the node for a staging file for the node's present key. The descriptor is the caller's. */
int staging_target(struct mount *m, struct staging *s, int *ret_fd, struct err *e);
/* Drops the node's staging file, if it still has it. */
void staging_drop_target(struct mount *m, struct staging *s);
/* Remembers the state of the file as published. */
void staging_mark_clean(struct staging *s);
/* Alone (is_busy). is_last: no writer is left. */
int staging_publish_alone(struct mount *m, struct staging *s, bool is_last, struct err *e);

/* Shared by staging.c (who uses a staging) and staging_publish.c (how its bytes leave). */
#pragma once

#include "mount/mount_internal.h"

enum staging_state { STAGING_STARTING, STAGING_READY, STAGING_ENDING };

/* What a process that takes over has to know of a staging. A kept cell; the keeper holds the descriptor. */
struct staging_kept {
    uint32_t magic; /* set last */
    uint32_t slot;  /* of the keeper */
    uint64_t node_id;
    bool is_published, is_unlinked, may_be_mapped;
    bool may_be_published; /* the node was asked to, and the answer did not come */
    bool is_ending;        /* the file may be the published version already, and is written no more */
    bool is_moving;        /* between staging_hold and staging_end_move */
    bool is_overtaken;     /* as in struct staging, and what follows could not be published */
    _Atomic int32_t fault; /* as in struct staging, and from the same moment on */
    bool is_clean;         /* what follows was published */
    int64_t size;
    struct timespec mtime;
    bool has_time; /* as in struct staging: */
    uint64_t time_ns;
    struct timespec time_of_file;
};

struct staging {
    struct staging_kept *kept;  /* NULL: a process that takes over will not know of it */
    struct node *node;          /* referenced */
    _Atomic int fd;             /* where writers write; -1 while STARTING */
    _Atomic uint64_t n_changes; /* made by this process */
    bool tells_changes;         /* set once, before others can know of it */
    _Atomic bool is_unlinked;
    _Atomic bool may_be_mapped; /* by somebody who writes, beyond the last release */
    _Atomic bool is_published;  /* the origin has an object of that name */
    _Atomic int fault; /* of the disk, which did not take what was written: nothing is published any more,
                          until the file is cut to 0 bytes */
    _Atomic bool was_faulty; /* until then; the node, which knows of it, still has to give another file */
    bool is_of_before;       /* begun by a process before this one, whose publication may still run; set
                                once, before others can know of it */

    /* Covered by the node table's lock. */
    struct staging *next;
    /* The time that was set: shown while the file is as it was then. */
    bool has_time;
    uint64_t time_ns, time_changes;
    struct timespec time_of_file;
    /* While ENDING, as it was when that began: the file becomes the node's meanwhile, which changes its time.
     */
    bool has_last_time;
    uint64_t last_time_ns;
    uint32_t refs;
    uint32_t n_writers; /* of those, who may change it */
    bool is_replaced;   /* by others, when only readers were left; set while is_busy, too */
    enum staging_state state;
    bool is_busy;        /* someone publishes */
    bool is_awaited;     /* is_busy by a process before this one, whose rename comes again */
    bool is_resumed;     /* one of its users is stagings_resumed */
    bool is_late;        /* one of its users is the thread of staging_late.c, */
    uint64_t late_round; /* which looked at it last then; 0: never */
    bool is_doubtful;    /* between staging_begin_unlink and staging_end_unlink */
    bool is_counted;     /* in the list's n_failed */
    bool is_overtaken;   /* its name was written anew, and published, since it lost it */

    /* Owned by whoever set is_busy. */
    bool has_handle; /* the node has a staging file of it: */
    uint64_t handle, epoch;
    int target_fd;         /* that file when it is another than `fd`, else -1 */
    bool is_committed;     /* the handle has been committed at least once */
    bool may_be_published; /* asked for, and not refused: the origin may have it, whoever was told what */
    bool is_clean;         /* seen_* was published */
    bool has_failed;       /* seen_* could not be published, and somebody was told */
    int failed_code;       /* has_failed: what, */
    struct stat seen_stat;
    uint64_t seen_changes;
    char failed_text[ERR_TEXT_MAX]; /* and why */
};

/* What is kept is as the staging is now. While it is one's own (is_busy), or before others can know of it. */
void staging_keep(struct mount *m, struct staging *s);

/* Asks the node for a staging file for the node's present key. The descriptor is the caller's; -1 where the
 * node gives no files: the bytes are sent to it. */
int staging_target(struct mount *m, struct staging *s, int *ret_fd, struct err *e);
/* Drops the node's staging file, if it still has it. */
void staging_drop_target(struct mount *m, struct staging *s);
/* Remembers the state of the file as published. */
void staging_mark_clean(struct staging *s);
/* What the file's time is for those who look at it. */
uint64_t staging_time_locked(const struct staging *s, const struct stat *st);
/* From now on, until it is written to. */
void staging_set_time_locked(struct staging *s, uint64_t time_ns);
/* Whether its name is gone, or was replaced; waits until that is known. */
bool staging_is_unlinked(struct mount *m, struct staging *s);
/* Alone (is_busy): whether all that was written is published. */
bool staging_is_clean_alone(struct staging *s);
/* Alone (is_busy). is_last: no writer is left. */
int staging_publish_alone(struct mount *m, struct staging *s, bool is_last, struct err *e);
/* Alone (is_busy), and nobody writes any more: what could not be published is given to the node, which keeps
 * it until the user says what becomes of it. 0 also when there is nothing to be kept. */
int staging_strand(struct mount *m, struct staging *s, struct err *e);
/* Alone (ENDING, is_busy), with the node's staging file dropped: whether it goes on without users of the
 * kernel's, because it is still mapped. It is READY and has the caller's reference then. */
bool staging_goes_on_late(struct mount *m, struct staging *s);

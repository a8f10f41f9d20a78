/*
 * A file being written through the mount: a staging file of the node, written by the kernel (passthrough) or
 * by us, and published to the origin at flush, fsync and the last release. All writers of a node share one,
 * and so do readers that open it meanwhile.
 *
 * Threads: any. A staging is found through its node (node->staging, under the node table's lock).
 */
#pragma once

#include "base/err.h"
#include "base/lock.h"
#include "client/client.h"

#include <pthread.h>
#include <sys/stat.h>

struct mount;
struct node;
struct staging;

/* All of a mount. Covered by the node table's lock. */
struct staging_list {
    struct cond changed; /* the state of any of them, or what renames there are (pause.h) */
    struct staging *first;
    pthread_t late_thread; /* has_thread; staging_late.c */
    struct cond late_wake; /* is_over */
    bool has_thread, is_over;
    bool *slots; /* of the keeper: which are taken */
    size_t n_slots;
    uint32_t n_failed; /* files whose last bytes could not be published, nor were since */
    char failed_text[ERR_TEXT_MAX];
};

void staging_list_init(struct staging_list *l);
void staging_list_fini(struct staging_list *l);

enum staging_start {
    STAGING_JOIN,  /* only an existing one: -ENOENT */
    STAGING_NEW,   /* there is no object of that name yet */
    STAGING_EMPTY, /* begins, or is cut to, 0 bytes */
    STAGING_COPY,  /* begins with the bytes that the object has now */
};
/*
 * Joins the node's staging, or makes it; one that is just ending is waited for. Referenced: staging_release
 * with STAGING_JOIN, staging_release_writing with the others. -ESTALE: the node is open for reading another
 * way and cannot change under its readers, or its name is another version's by now; it was detached, look it
 * up again.
 */
int staging_acquire(struct mount *m, struct node *n, enum staging_start start, struct staging **ret,
                    struct err *e);
/* The last one publishes what is not published yet; its failure is logged and counted, as nobody can receive
 * it. What could not be published, now or before, is given to the node to keep. */
void staging_release(struct mount *m, struct staging *s);
void staging_release_writing(struct mount *m, struct staging *s);
/* The first half of that; the other one is staging_release. */
void staging_end_writing_locked(struct staging *s);

/* When only those who read what was written here are left, others may replace or remove it. Asks the node
 * whether the name stands for it still; if not, the node is detached as unlinked, and its readers keep its
 * bytes: -ESTALE. 0 also of every other node. Waits for renames around it. */
int staging_check_left(struct mount *m, struct node *n, struct err *e);
bool staging_is_left(struct mount *m, const struct node *n);

/* Publishes what changed since the last time. 0 when nothing did. */
int staging_publish(struct mount *m, struct staging *s, struct err *e);
/* The same for a close of one of perhaps many descriptors. When it fails, whoever opens the name from then on
 * finds what the origin has, before this returns: the release that ends the staging comes later, or never
 * while another descriptor is open. Those go on with their bytes; when they are published after all, the name
 * is theirs again. */
int staging_close(struct mount *m, struct staging *s, struct err *e);
/* Whether a close of what is written to the node has failed: it is not to be opened, the kernel shall look
 * its name up again. */
bool staging_is_refused(struct mount *m, const struct node *n);
/* The kernel may have pages of the node with other bytes than its name has: who opens the name from now on
 * gets another one, and what the origin has. */
void staging_spoil(struct mount *m, struct node *n);
/* All of the mount's; failures are counted in the list. */
void staging_publish_all(struct mount *m);

int staging_fd(const struct staging *s);
/* Whether each change gives the file another time, so that those are found that this process does not see. */
bool staging_tells_changes(const struct staging *s);
/* Somebody may go on storing into a mapping after the last release: the file is not handed over to the cache,
 * and looked at until the mapping has ended. */
void staging_expect_mapping(struct staging *s);
bool staging_may_be_mapped(const struct staging *s);
/* After a change made by this process. */
void staging_changed(struct staging *s);
int staging_truncate(struct staging *s, uint64_t size_bytes);
/* For the node table's lock's holder. The time is the one that was set last, or that of the last write after
 * it. */
int staging_stat_locked(const struct staging *s, struct stat *ret);
/* Mode, owner and time, in a bucket that keeps them: what is written already gets them at once, else they go
 * with the bytes. `change`: what is in its `has`. */
struct posix_meta;
int staging_set_attr(struct mount *m, struct staging *s, const struct posix_meta *change, struct err *e);

/* Around the removal or replacement of its name: between the two, who would publish waits to hear whether
 * there still is a name; while it is gone nothing is published. The first gives whether the origin has an
 * object of that name. */
bool staging_begin_unlink(struct mount *m, struct staging *s);
void staging_end_unlink(struct mount *m, struct staging *s, bool is_unlinked);
/* Around a rename of the node, or of a directory above it. After the first nobody else publishes before
 * staging_end_move: bytes that went to the old key meanwhile would be acknowledged, and neither copied nor
 * sent again. In a process that takes over it comes before anything that waits: a rename that comes again
 * finds the file held until then, but not for ever. Between the two what was written so far is published; by
 * staging_publish_to_move only where the name is the file's own still, else -ESTALE. staging_end_move makes
 * later bytes go to the node's key as it is then, if it was renamed. */
void staging_hold(struct mount *m, struct staging *s);
int staging_publish_held(struct mount *m, struct staging *s, struct err *e);
int staging_publish_to_move(struct mount *m, struct staging *s, struct err *e);
void staging_end_move(struct mount *m, struct staging *s, bool has_moved);
enum staging_which {
    STAGING_UNPUBLISHED, /* files in the directory that the origin does not have yet */
    STAGING_BELOW,       /* all files being written, at any depth, and those that had names there likewise */
    STAGING_SPOILT,      /* that had names in the directory until a close could not publish them */
};
/* Calls `each` with the nodes of those, referenced, without locks. */
void staging_each(struct mount *m, struct node *dir, enum staging_which which,
                  void (*each)(void *arg, struct node *n), void *arg);
/* Under the node table's lock: one more user of the node's staging, who may write to it or not. NULL: there
 * is none. */
struct staging *staging_join_locked(struct node *n, bool is_writing);
/* In a process that takes over: makes what was being written, each with one user more than it has, who is to
 * leave (staging_resumed) when the kernel has said again what it had not been answered. */
void stagings_resume(struct mount *m);
void stagings_resumed(struct mount *m);
/* Whether one of them was being renamed, by a request that is still to come again. */
bool stagings_are_awaited(struct mount *m);
/* From here on none is kept for a mapping that outlives the last close; those that are, are given up. */
void stagings_end_late(struct mount *m);
/* For the node table's lock's holder: whether the node's file has never been published. */
bool staging_is_unpublished(const struct staging *s);

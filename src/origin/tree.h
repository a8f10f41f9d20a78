/*
 * Listings of origins that are trees of directories and are read one whole directory at a time (nfs, hdfs):
 * the walk in the order of S3, and directories remembered between the pages of a listing.
 *
 * A kind embeds a `struct tree` and says how one directory is read.
 */
#pragma once

#include "base/lock.h"
#include "origin/origin.h"

#define TREE_ETAG_SIZE 64
#define TREE_NAMES_MAX 2000000 /* in one directory */
#define TREE_FOLDERS   16      /* directories remembered */
#define TREE_FOLDER_MS 30000   /* for so long */
#define TREE_KEPT_MAX                                                                                        \
    500000              /* names in all of them together, but for the one read last and those above it       \
                         */
#define TREE_CHANGES 64 /* counters of changes, by path */

struct tree_name {
    char *name;  /* a directory's ends with '/' */
    uint64_t id; /* of a directory, 0 when unknown: links that lead back are found by it */
    uint64_t size, mtime_ns;
    char etag[TREE_ETAG_SIZE];
};

#define TREE_LEFT_MAX 64 /* the next listing meets the others */

/* What a directory holds. Filled by one thread, then sorted and never changed; counted. */
struct tree_folder {
    _Atomic unsigned refs;
    struct tree_name self; /* without name */
    struct tree_name *v;
    size_t n, room;
    bool hides;                /* it has names that are no objects: it is not empty */
    char *left[TREE_LEFT_MAX]; /* reserved names that a killed run of this node left: the kind removes them */
    size_t n_left;
};

struct tree_folder *tree_folder_new(void);
void tree_folder_unref(struct tree_folder *f);
DEFINE_CLEANUP(struct tree_folder, tree_folder_unref)
/* Copies the name. What cannot be part of a key, and our own temporary files, are left out; names that
 * are too long for it are cut, and told as such (ORIGIN_ETAG_UNFIT). -E2BIG. */
int tree_folder_add(struct tree_folder *f, struct slice name, bool is_dir, const struct tree_name *x);
/* At most TREE_LEFT_MAX; more are dropped. */
void tree_folder_add_left(struct tree_folder *f, struct slice name);
/* "MTIME-SIZE-ID" in hexadecimal. */
void tree_etag(uint64_t mtime, uint64_t size, uint64_t id, char ret[TREE_ETAG_SIZE]);

/* Reads the directory `path` ("" or "a/b", below the origin's own) whole. -ENOENT when it is not there or is
 * no directory. */
typedef int (*tree_read_fn)(void *arg, const char *path, struct tree_folder **ret, struct err *e);

struct tree {
    tree_read_fn read;
    void *arg;
    struct lock lock; /* covers what follows */
    struct tree_memory {
        char *path; /* NULL: unused */
        struct tree_folder *folder;
        uint64_t read_ms;
    } memory[TREE_FOLDERS];
    size_t next;
    size_t kept_max;                /* TREE_KEPT_MAX; tests lower it */
    uint64_t changes[TREE_CHANGES]; /* of the directories whose path falls there, by tree_forget */
};

void tree_init(struct tree *t, tree_read_fn read, void *arg);
void tree_fini(struct tree *t);
/* The key was written or removed, or may have been: directories that it lies in are read anew. */
void tree_forget(struct tree *t, struct slice key);
/* A page. Directories are read anew when a listing begins (no `after`, no token), and remembered for its
 * later pages, which may come with a token or with the last key as `after`. */
int tree_list(struct tree *t, const struct origin_list *l, struct arena *a, struct origin_page *ret,
              struct err *e);

/* The file kind, between file.c (paths, opening, reading), file_put.c (writing) and file_list.c (listing). */
#pragma once

#include "base/lock.h"
#include "base/sys.h"
#include "origin/origin_internal.h"

#define FILE_MAGIC       0x46694c6fu
#define FILE_PIECE_BYTES (256 * KIB)
#define FILE_ETAG_SIZE   64
/* Files that are being written; names that begin so are in no listing and are no keys. */
#define FILE_TMP_PREFIX ".forebay-tmp-"

struct file_origin {
    struct origin base; /* first */
    uint32_t magic;
    char *root;
    /* One writer at a time looks at a condition and renames: makes If-Match atomic among the writers of this
     * node. Held over these two calls on the directory; the bytes are on disk before. */
    struct lock commit;
};

static inline struct file_origin *file_of(struct origin *o)
{
    struct file_origin *f = container_of(o, struct file_origin, base);
    assert(f->magic == FILE_MAGIC);
    return f;
}

/* The directory itself; ERR_ORIGIN_DOWN when it is not there (an unmounted share, say). */
int file_open_root(const struct file_origin *f, struct err *e);
/* openat2 below `root`: no way out by "..", absolute or magic links. A descriptor or a negated errno. */
int file_open_below(int root, const char *path, uint64_t flags, uint64_t mode);
/* Classifies an errno of the file system. */
int file_error(struct err *e, int error, const char *what, struct slice key);
/* -EINVAL when the key cannot be a path below a directory. *ret_is_dir: it ends with '/'. `ret` is the path
 * without that slash, ORIGIN_KEY_MAX_BYTES + 1 bytes. */
int file_key_path(struct slice key, char *ret, bool *ret_is_dir, struct err *e);
void file_etag(const struct stat *st, char ret[FILE_ETAG_SIZE]);
uint64_t file_mtime_ns(const struct stat *st);
struct origin_attr file_attr(const struct stat *st, struct slice etag);
/* Whether `etag` satisfies If-Match: `want` empty or "*" or equal. */
bool file_matches(struct slice want, struct slice etag);
/* Opens a regular file for reading and stats it; -ENOENT for directories and special files. */
int file_open_key(int root, struct slice key, const char *path, struct stat *ret_st, struct err *e);

int file_list(struct origin *o, const struct origin_list *l, struct arena *a, struct origin_page *ret,
              struct err *e);
int file_put(struct origin *o, const struct origin_put *p, const struct origin_body *body, struct arena *a,
             struct origin_attr *ret_attr, struct err *e);
int file_remove(struct origin *o, struct slice key, struct slice if_match, struct err *e);
int file_copy(struct origin *o, struct slice from, struct slice to, struct slice if_match, struct arena *a,
              struct origin_attr *ret_attr, struct err *e);

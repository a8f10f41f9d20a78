/* The file kind, between file.c (paths, opening, reading), file_put.c (writing) and file_list.c (listing). */
#pragma once

#include "base/id.h"
#include "base/lock.h"
#include "base/sys.h"
#include "origin/origin_internal.h"

#include <fcntl.h>

#define FILE_MAGIC       0x46694c6fu
#define FILE_PIECE_BYTES (256 * KIB)
#define FILE_ETAG_SIZE   64
/* Files that are being written; names that begin so are in no listing and are no keys. */
#define FILE_TMP_PREFIX  ".forebay-tmp-"
#define FILE_TMP_KEEP_NS (24 * 3600 * 1000000000ull) /* after its last change nobody writes it any more */
/* A file that is taken aside to be removed or replaced, and looked at there: FILE_TMP_PREFIX, an id, '-', 16
 * digits of the hash of the ETag that is to go, '-', its own name. One that is to be replaced has behind
 * those digits '+' and 16 more, of the new file's ETag: the new file has the name before the two change
 * places. Where that is too long, "away-" and an id, which nobody touches again, or (of one that is to be
 * replaced) the name of a file that is being written. */
#define FILE_AWAY_KEEP_NS (60 * 1000000000ull) /* after which whoever did that is gone, if not before */
#define FILE_NAME_MAX     255

struct file_origin {
    struct origin base; /* first */
    uint32_t magic;
    char *root, *above;   /* the directory, and the one that it lies in */
    atomic_bool is_mount; /* a file system is mounted there, or should be */
    /* One writer at a time looks at a condition and renames: makes If-Match atomic among the writers of this
     * node where the file system cannot exchange two files, and keeps them from undoing each other's work
     * where it can. Held over these few calls on the directory; the bytes are on disk before. */
    struct lock commit;
};

static inline struct file_origin *file_of(struct origin *o)
{
    struct file_origin *f = container_of(o, struct file_origin, base);
    assert(f->magic == FILE_MAGIC);
    return f;
}

/* The directory itself; ERR_ORIGIN_DOWN when it is not there, or is the empty one below a share that is not
 * mounted. */
int file_open_root(struct file_origin *f, struct err *e);
/* Whether a text as /etc/fstab has it says that a file system is to be mounted at the path, and not only when
 * somebody asks for it. Pure. */
bool file_is_in_fstab(struct slice text, struct slice path);
/* openat2 below `root`: no way out by "..", absolute or magic links; with O_NOFOLLOW no symbolic link is
 * followed anywhere on the way, either. A descriptor or a negated errno. */
int file_open_below(int root, const char *path, uint64_t flags, uint64_t mode);
/* Classifies an errno of the file system. */
int file_error(struct err *e, int error, const char *what, struct slice key);
/* -EINVAL when the key cannot be a path below a directory. *ret_is_dir: it ends with '/'. `ret` is the path
 * without that slash, ORIGIN_KEY_MAX_BYTES + 1 bytes. */
int file_key_path(struct slice key, char *ret, bool *ret_is_dir, struct err *e);
/* -EINVAL: a directory is put that has bytes. */
int file_no_bytes(struct err *e);
/* origin_takes of the kinds whose objects are files and directories. */
int file_takes(struct origin *o, const struct origin_put *p, uint64_t size_bytes, struct err *e);
/* An id for a reserved name, by which a later run of this node knows it (origin_set_node). */
void file_tmp_id(char ret[ID_TEXT_SIZE]);
/* Whether the name is one of this node's, of whichever run. */
bool file_tmp_is_own(const char *name);
/* Whether a run of this node that was killed gave that name: nobody writes the file any more. */
bool file_tmp_is_of_killed(const char *name, uint64_t ctime_ns);
/* Deals with a reserved name in the directory that a killed run left, or anybody long ago: removes it, or
 * gives what was taken aside its name again. */
void file_meet_tmp(const struct file_origin *f, int dir, const char *name);
/* Whether the name is one that we gave to a file being written, and the file was left behind by a crash: a
 * listing that meets it removes it, that of a killed run of this node at once, others a day later. By its
 * ctime: a file that is being written has the mtime that it shall have already when it gets its name, years
 * ago perhaps. */
bool file_tmp_is_left(const char *name, uint64_t ctime_ns);
/* The own name of a file that was taken aside, in `name`, and the hashes of the ETags that were to go, which
 * may be one; NULL when it is none. */
const char *file_away_name(const char *name, uint64_t ret_hash[2]);
/* Renames within a directory, over nothing: -EEXIST. File systems that know no such rename have link; then
 * `from` stays, too, and *ret_both says so (not for directories). */
int file_rename_new(int dir, const char *from, const char *to, bool *ret_both);
void file_etag(const struct stat *st, char ret[FILE_ETAG_SIZE]);
uint64_t file_mtime_ns(const struct stat *st);
struct origin_attr file_attr(const struct stat *st, struct slice etag);
/* Whether `etag` satisfies If-Match: `want` empty or "*" or equal. */
bool file_matches(struct slice want, struct slice etag);
/* Opens a regular file for reading and stats it; -ENOENT for directories and special files. Where links are
 * objects
 * (`posix`) the descriptor of one is O_PATH, and S_ISLNK tells. */
int file_open_object(const struct file_origin *f, int root, struct slice key, const char *path,
                     struct stat *ret_st, struct err *e);
/* O_NOFOLLOW where links are objects, else 0. */
static inline uint64_t file_nofollow(const struct file_origin *f)
{
    return f->base.posix ? O_NOFOLLOW : 0;
}

/* ---- file_posix.c ---- */

#define FILE_TARGET_SIZE 4096 /* of a link, with its NUL */

/* The lines of what the file is, where the bucket keeps them, and the size of a link. */
void file_add_meta(const struct file_origin *f, const struct stat *st, struct arena *a,
                   struct origin_attr *attr);
int file_open_link(int root, struct slice key, const char *path, struct stat *ret_st, struct err *e);
bool file_put_is_link(const struct file_origin *f, const struct origin_put *p);
int file_read_target(const struct origin_put *p, const struct origin_body *body, char ret[FILE_TARGET_SIZE],
                     struct err *e);
/* Gives a new file (fd, or a link dir/name with fd -1) what the metadata of `p` says: its time, and where the
 * bucket keeps them mode and owner. A negated errno. */
int file_keep_meta(const struct file_origin *f, int fd, int dir, const char *name,
                   const struct origin_put *p);
/* The same for one that is there, `now`. A classified error. */
int file_change_meta(const struct file_origin *f, int fd, int dir, const char *name, const struct stat *now,
                     const struct origin_put *p, struct err *e);
int file_set_meta(struct origin *o, const struct origin_put *p, uint64_t size_bytes, struct arena *a,
                  struct origin_attr *ret_attr, struct err *e);

int file_list(struct origin *o, const struct origin_list *l, struct arena *a, struct origin_page *ret,
              struct err *e);
int file_put(struct origin *o, const struct origin_put *p, const struct origin_body *body, struct arena *a,
             struct origin_attr *ret_attr, struct err *e);
int file_remove(struct origin *o, struct slice key, struct slice if_match, struct err *e);
int file_copy(struct origin *o, struct slice from, struct slice to, struct slice if_match, struct arena *a,
              struct origin_attr *ret_attr, struct err *e);

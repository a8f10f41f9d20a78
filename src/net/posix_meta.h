/*
 * Mode, owner and time of a file as lines of its object's metadata, under the names that s3fs and others use,
 * so that what one wrote the other reads. Pure.
 *
 * | line                              | what it says | | --------------------------------- |
 * --------------------------------------------------------------------- | | `x-amz-meta-mode: 33188` |
 * st_mode, kind and permissions, as a decimal number                    | | `x-amz-meta-uid: 1000` | owner,
 * decimal                                                        | | `x-amz-meta-gid: 1000`            |
 * group, decimal                                                        | | `x-amz-meta-mtime: 5.000000007`
 * | last change of the bytes: seconds since 1970, '.', nine digits of ns  |
 *
 * Read are also a mode in octal, with a leading 0 or as rclone writes it (100644), one without a kind, and
 * times with fewer digits or none behind the point. A number that cannot be read counts as not there.
 *
 * A symbolic link is an object whose mode says so (0120777, 41471) and whose bytes are its target. Other
 * kinds than files, directories and links are shown as files.
 */
#pragma once

#include "base/buf.h"

#define POSIX_META_MODE  "x-amz-meta-mode"
#define POSIX_META_UID   "x-amz-meta-uid"
#define POSIX_META_GID   "x-amz-meta-gid"
#define POSIX_META_MTIME "x-amz-meta-mtime"

#define POSIX_META_MAX_BYTES 256              /* of the four lines */
#define POSIX_META_MAX_NS    (UINT64_MAX / 2) /* the latest time, in the year 2262 */

enum posix_meta_field {
    POSIX_HAS_MODE = 1 << 0,
    POSIX_HAS_UID = 1 << 1,
    POSIX_HAS_GID = 1 << 2,
    POSIX_HAS_MTIME = 1 << 3,
    POSIX_HAS_ALL = 15,
};

struct posix_meta {
    unsigned has;  /* enum posix_meta_field: which of those below are known */
    uint32_t mode; /* with its kind: S_IFREG, S_IFDIR or S_IFLNK */
    uint32_t uid, gid;
    uint64_t mtime_ns;
};

/* is_dir: of the marker of a directory, whose kind is known by its key. */
void posix_meta_decode(struct slice meta, bool is_dir, struct posix_meta *ret);
/* The lines of the fields that it has. */
int posix_meta_encode(const struct posix_meta *p, struct buf *b);
/* `meta` with the lines of `set` in the place of those of the same names. */
int posix_meta_merge(struct slice meta, struct slice set, struct buf *b);
/* `meta` without lines of the four names. */
int posix_meta_rest(struct slice meta, struct buf *b);

/*
 * How scratch buckets lie in the control store, byte by byte.
 *
 * An inode number is 63 bits: 12 bits of shard, 51 bits of sequence (never reused, one counter for the node).
 * A file, link or special file is made in the shard of its directory, a directory in a shard of its own
 * choice. Numbers in keys are big-endian, so that keys begin with (bucket, shard) and scans are in order;
 * numbers in values are little-endian. Every value but that of an xattr begins with its format (1 byte).
 *
 * | key                                  | value                                                        |
 * | ------------------------------------ | ------------------------------------------------------------ |
 * | "s" bucket(8) inode(8) "i"           | the inode, see below                                         |
 * | "s" bucket(8) directory(8) "d" name  | 1, type(1), 0(2), inode(8), cookie(8): an entry, by name     |
 * | "s" bucket(8) directory(8) "o"       | 1, type(1), inode(8), name: the same entry, by cookie        |
 * |                           cookie(8)  |                                                              |
 * | "s" bucket(8) inode(8) "x" name      | an extended attribute as it came                             |
 * | "s" bucket(8) inode(8) "p"           | 1, the parts of an object that was uploaded in parts, as the |
 * |                                      | front end wrote them (s3/part_list.h)                        |
 * | "s" bucket(8) 2(8) "d" key           | as an entry, cookie 0: the key table, keys that are no path  |
 * | "s" bucket(8) 0(8) "c" lane(2)       | 1, inodes(8), bytes(8), keyed(8): part of the bucket's sums  |
 * | "s" bucket(8) 0(8) "m"               | 1: rewritten when a directory gets another parent            |
 * | "s" bucket(8) 0(8) "e"               | 1: the bucket has had a ttl                                  |
 * | "z" bucket(8) inode(8)               | 1: no link leads to the inode; its data is still to be freed |
 * | "w" bucket(8) inode(8)               | 1, location: the inode's data is not settled                 |
 * | "q" mount(16) slot(4)                | 1, request(8), time(8), inode(8): what a request had done;   |
 * |                                      | of an append, where the file ended before it, in its place   |
 * | "y" bucket(8) inode(8) mount(16)     | 1, how(1): what a mount without descriptors has open, 1 to   |
 * |                                      | be read, 2 to be written                                     |
 * | "n/inode"                            | last sequence given out, decimal text                        |
 *
 * Buckets ("b/"), users ("u/") and other records of the control store begin with other bytes.
 *
 * type is the file type as in the upper four bits of st_mode. cookie counts up per directory and is never
 * given to another name there: what takes an entry's place, by a rename or a PUT, takes its cookie, too.
 * Numbers 0 to 2 of the inodes are the bucket itself, its root directory and its key table.
 *
 * | offset | size | inode                                                                    |
 * | ------ | ---- | ------------------------------------------------------------------------ |
 * | 0      | 1    | format, 1                                                                |
 * | 1      | 1    | flags: 1 directory that only a key implies, 2 unnamed and may be linked, |
 * |        |      | 4 reached by the key table, 8 there is a record "p" of its parts         |
 * | 2      | 2    | number of xattrs                                                         |
 * | 4      | 4    | bytes of the xattrs' names, each with a NUL                              |
 * | 8      | 4    | st_mode                                                                  |
 * | 12     | 4    | uid                                                                      |
 * | 16     | 4    | gid                                                                      |
 * | 20     | 4    | links                                                                    |
 * | 24     | 4    | st_rdev as FUSE carries it                                               |
 * | 28     | 8    | size                                                                     |
 * | 36     | 8    | bytes allocated                                                          |
 * | 44     | 8    | atime, ns since 1970, signed                                             |
 * | 52     | 8    | mtime                                                                    |
 * | 60     | 8    | ctime                                                                    |
 * | 68     | 8    | birth                                                                    |
 * | 76     | 8    | directory: its parent                                                    |
 * | 84     | 8    | directory: number of entries                                             |
 * | 92     | 8    | directory: cookie of the next entry                                      |
 * | 100    | 2+n  | location blob: length, bytes                                             |
 * |        | 2+n  | target of a symbolic link                                                |
 * |        | 2+n  | ETag                                                                     |
 * |        | 2+n  | content type                                                             |
 * |        | 2+n  | metadata lines                                                           |
 *
 * A crash leaves whole transactions. Each call of scratch.h is one, so that names, counts and links always
 * agree; what it can leave behind is an entry of "z", which scratch_sweep finds, and entries of "w", which
 * scratch_unsettled gives, and those of "y", of which the mounts come back.
 */
#pragma once

#include "namespace/scratch.h"

#define SCRATCH_FORMAT       1
#define SCRATCH_INODE_FIXED  100
#define SCRATCH_DIRENT_BYTES 20
#define SCRATCH_ORDER_FIXED  10
#define SCRATCH_COUNTS_BYTES 25
#define SCRATCH_ANSWER_BYTES 25
#define SCRATCH_RECORD_MAX   (24 * KIB)
#define SCRATCH_KEY_MAX      (SCRATCH_OBJECT_KEY_MAX + 32)

#define SCRATCH_SHARD_BITS    12
#define SCRATCH_SEQUENCE_BITS 51
#define SCRATCH_INO_BUCKET    0
#define SCRATCH_INO_KEYS      2
#define SCRATCH_INO_FIRST     16 /* first sequence given out */

enum scratch_record {
    SCRATCH_KEY_INODE = 'i',
    SCRATCH_KEY_ENTRY = 'd',
    SCRATCH_KEY_ORDER = 'o',
    SCRATCH_KEY_XATTR = 'x',
    SCRATCH_KEY_PARTS = 'p',
    SCRATCH_KEY_COUNTS = 'c',
    SCRATCH_KEY_MOVES = 'm',
    SCRATCH_KEY_ENDS = 'e',
};

struct scratch_dirent {
    uint8_t type; /* st_mode >> 12 */
    uint64_t ino, cookie;
};

struct scratch_answer {
    uint64_t request, at_ns, ino;
};

/* Keys, into a buffer that is emptied first. `rest` is the name, xattr name or key; empty for those without.
 */
void scratch_key(uint64_t bucket, uint64_t ino, enum scratch_record kind, struct slice rest,
                 struct buf *ret_key);
void scratch_key_order(uint64_t bucket, uint64_t ino, uint64_t cookie, struct buf *ret_key);
void scratch_key_counts(uint64_t bucket, uint16_t lane, struct buf *ret_key);
void scratch_key_orphan(uint64_t bucket, uint64_t ino, struct buf *ret_key);
void scratch_key_writing(uint64_t bucket, uint64_t ino, struct buf *ret_key);
void scratch_key_opened(const struct scratch_opened *x, struct buf *ret_key);
void scratch_key_answer(struct id128 mount, uint32_t slot, struct buf *ret_key);

/* Values. Encoders append; -E2BIG when a string is longer than the format can say. Decoders give ERR_CORRUPT;
 * slices point into the value. The number of an inode is in its key, not in its record. */
int scratch_inode_encode(const struct scratch_inode *x, struct buf *b);
int scratch_inode_decode(struct slice value, uint64_t ino, struct scratch_inode *ret);
void scratch_dirent_encode(const struct scratch_dirent *d, uint8_t ret[SCRATCH_DIRENT_BYTES]);
int scratch_dirent_decode(struct slice value, struct scratch_dirent *ret);
int scratch_order_encode(const struct scratch_dirent *d, struct slice name, struct buf *b);
int scratch_order_decode(struct slice value, struct scratch_dirent *ret, struct slice *ret_name);
int scratch_writing_encode(struct slice location, struct buf *b);
int scratch_writing_decode(struct slice value, struct slice *ret_location);
void scratch_counts_encode(const struct scratch_counts *c, uint8_t ret[SCRATCH_COUNTS_BYTES]);
int scratch_counts_decode(struct slice value, struct scratch_counts *ret);
void scratch_answer_encode(const struct scratch_answer *x, uint8_t ret[SCRATCH_ANSWER_BYTES]);
int scratch_answer_decode(struct slice value, struct scratch_answer *ret);

/*
 * The wire protocol: length-prefixed little-endian frames, one request and one reply at a time per
 * connection.
 *
 * | offset | size | frame header (WIRE_HEADER_BYTES)                          |
 * | ------ | ---- | ---------------------------------------------------------- |
 * | 0      | 4    | length of the body in bytes, at most WIRE_BODY_MAX_BYTES   |
 * | 4      | 2    | operation (wire_ops.h)                                     |
 * | 6      | 2    | flags: 1 reply, 2 a descriptor comes along                 |
 * | 8      | 8    | request id, repeated in the reply                          |
 * | 16     | 4    | request: 0; reply: 0 or a negative error code              |
 * | 20     | 4    | crc32c of the body                                         |
 *
 * Body of a request or successful reply: its fields in table order. Body of a failed reply: one str, the
 * error text. A decoder refuses bodies that end early or have bytes left over (ERR_PROTOCOL); it never reads
 * beyond them.
 */
#pragma once

#include "base/arena.h"
#include "base/buf.h"
#include "base/err.h"
#include "net/wire_ops.h"

#define WIRE_VERSION        1
#define WIRE_FAMILY_BYTES   8            /* of a session's id: the same in all processes of one mount */
#define WIRE_NUMBERED       (1ull << 63) /* request id of a change that its mount may ask for again by it */
#define WIRE_HEADER_BYTES   24
#define WIRE_BODY_MAX_BYTES (8 * MIB)
#define WIRE_FLAG_REPLY     1
#define WIRE_FLAG_FD        2

enum wire_via { WIRE_VIA_S3 = 1, WIRE_VIA_MOUNT = 2, WIRE_VIA_API = 3 };
/* COMPLETE: all bytes present. PARTIAL: being filled. UNCACHED: not admitted, bytes come inline. */
enum wire_state { WIRE_COMPLETE = 1, WIRE_PARTIAL = 2, WIRE_UNCACHED = 3, WIRE_INLINED = 4 };
/* Records of a WATCH on a scratch bucket. */
enum wire_watch {
    WIRE_WATCH_CHANGED = 1, /* somebody else changed something */
    WIRE_WATCH_ALONE = 2,   /* nobody else watches the bucket */
    WIRE_WATCH_SHARED = 3,  /* somebody does */
};
enum wire_confirm {
    WIRE_CONFIRM_NOT_CACHED,
    WIRE_CONFIRM_SAME,
    WIRE_CONFIRM_CHANGED,
    WIRE_CONFIRM_GONE,
};
enum wire_kind { WIRE_FILE = 1, WIRE_DIRECTORY = 2 };

enum wire_flag {
    WIRE_POSIX = 1 << 0,
    WIRE_FRESH = 1 << 1,
    WIRE_INLINE = 1 << 2,
    WIRE_NO_WAIT = 1 << 3,
    WIRE_STAGED = 1 << 4,
    WIRE_KEEP = 1 << 5,
    WIRE_MOVE = 1 << 6,
    WIRE_NOREPLACE = 1 << 7,
    WIRE_READ_ONLY = 1 << 8,  /* ORIGIN_CHECK */
    WIRE_BACKGROUND = 1 << 9, /* FETCH: waits, but behind everybody who reads */
    WIRE_EXACT = 1 << 10,
    WIRE_EXCLUSIVE = 1 << 11,
    WIRE_WRITE = 1 << 12,
    WIRE_TRUNCATE = 1 << 13,
    WIRE_PLUS = 1 << 14,
    WIRE_EXCHANGE = 1 << 15,
    WIRE_REPLACE = 1 << 16,
    WIRE_WAIT = 1 << 17,
    WIRE_TEST = 1 << 18,
    WIRE_CANCEL = 1 << 19,
    WIRE_META = 1 << 20,
    WIRE_SINCE = 1 << 21,
    WIRE_UNREADABLE = 1 << 22, /* FETCH: the descriptor gave an error for these bytes */
    WIRE_UNSENT = 1 << 23,     /* CACHED: what is not in the origin yet, instead */
    WIRE_UNMAPPED = 1 << 24,   /* PUT_COMMIT: nobody can have the staged file mapped to write */
    WIRE_MODES = 1 << 25,      /* of scratch buckets: modes, owners, times and links, see STAT */
    WIRE_ETAG = 1 << 26,       /* PUT_OPEN: the commit brings the ETag. CACHED: tell of versions */
    WIRE_LATE = 1 << 27,       /* TREE_CREATE: opened, and gets its data when it is written */
    WIRE_LASTING = 1 << 29,    /* PUT_OPEN: the staged file can become an upload */
    WIRE_UNFIT = 1 << 28,      /* LIST: also names that no key can have, see origin.h */
    WIRE_DATA_ONLY = 1 << 30,  /* TREE_SYNC: times need not last, as fdatasync has it */
};

/* What TREE_SETATTR sets. */
enum wire_set_bit {
    WIRE_SET_MODE = 1 << 0, /* permissions only, the type stays */
    WIRE_SET_UID = 1 << 1,
    WIRE_SET_GID = 1 << 2,
    WIRE_SET_SIZE = 1 << 3,
    WIRE_SET_ATIME = 1 << 5,
    WIRE_SET_MTIME = 1 << 6,
    WIRE_SET_ATIME_NOW = 1 << 8,
    WIRE_SET_MTIME_NOW = 1 << 9,
    WIRE_SET_DROP_PRIVILEGE = 1 << 14, /* set-user-ID and set-group-ID go, as a write does */
    WIRE_SET_DROP_GROUP = 1 << 16,     /* by who is not in the group: set-group-ID in any case */
};
#define WIRE_SET_ALL                                                                                         \
    (WIRE_SET_MODE | WIRE_SET_UID | WIRE_SET_GID | WIRE_SET_SIZE | WIRE_SET_ATIME | WIRE_SET_MTIME |         \
     WIRE_SET_ATIME_NOW | WIRE_SET_MTIME_NOW | WIRE_SET_DROP_PRIVILEGE | WIRE_SET_DROP_GROUP)

enum wire_lock_kind { WIRE_LOCK_FLOCK = 1, WIRE_LOCK_POSIX = 2 };
enum wire_lock_type { WIRE_LOCK_NONE = 0, WIRE_LOCK_READ = 1, WIRE_LOCK_WRITE = 2 };

enum wire_op {
#define X(NAME, name, number) WIRE_OP_##NAME = number,
    WIRE_OPS(X)
#undef X
};

struct wire_attr {
    uint32_t kind; /* enum wire_kind */
    uint64_t size_bytes;
    uint64_t mtime_ns;
    struct slice etag; /* without quotes; empty for directories */
    struct slice content_type;
    struct slice meta; /* "name: value\n" lines, see origin.h */
};

/* An inode of a scratch bucket. */
struct wire_inode {
    uint64_t ino;
    uint32_t mode; /* type and permissions as st_mode */
    uint32_t uid, gid, links, rdev;
    uint32_t flags; /* none today: 0 */
    uint64_t size_bytes, allocated_bytes;
    int64_t atime_ns, mtime_ns, ctime_ns, birth_ns;
    struct slice target; /* of a symbolic link */
};

/* An entry of a directory of a scratch bucket. */
struct wire_dirent {
    struct slice name;
    uint64_t ino;
    uint32_t mode; /* type only */
    uint64_t cookie;
    uint32_t has_inode; /* 1: `inode` is there too (WIRE_PLUS, unless it went meanwhile); else 0 */
    struct wire_inode inode;
};

struct wire_entry {
    struct slice key; /* whole key; common prefixes end with the delimiter and have kind DIRECTORY */
    struct wire_attr attr;
};

struct wire_cached {
    struct slice key;
    uint64_t size_bytes, present_bytes;
    uint64_t last_read_ms; /* real time */
    uint32_t flags;        /* WIRE_CACHED_* */
    uint64_t mtime_ns;     /* these two: with WIRE_CACHED_VERSION */
    struct slice etag;
};

#define WIRE_CACHED_PINNED  1
#define WIRE_CACHED_DIRTY   2 /* not in the origin yet */
#define WIRE_CACHED_VERSION 4 /* time and ETag follow, as the origin told them of what is here */

struct wire_bucket {
    struct slice name;
    struct slice origin; /* URL, empty for scratch */
    uint64_t created_ns;
};

/* An upload in parts that is open, and a part of one. */
struct wire_upload {
    struct slice id, key;
    uint64_t created_ns;
};
struct wire_part {
    uint32_t number;
    uint64_t size_bytes, at_ns;
    struct slice etag, checksum;
    uint64_t offset, slot_bytes; /* of one that is here, as UPLOAD_KEEP_PART had them */
};

/* A handle that is closed, as in CLOSE. */
struct wire_closed {
    uint64_t handle, read_cached, read_origin;
};

#define WIRE_C_u32   uint32_t
#define WIRE_C_u64   uint64_t
#define WIRE_C_i64   int64_t
#define WIRE_C_str   struct slice
#define WIRE_C_attr  struct wire_attr
#define WIRE_C_inode struct wire_inode

#define WIRE_FIELD(kind, field) WIRE_C_##kind field;
#define X(NAME, name, number)                                                                                \
    struct wire_##name##_req {                                                                               \
        uint64_t request_id;                                                                                 \
        WIRE_REQ_##name(WIRE_FIELD)                                                                          \
    };                                                                                                       \
    struct wire_##name##_rep {                                                                               \
        int fd; /* -1 or the descriptor that came along; not part of the body */                             \
        WIRE_REP_##name(WIRE_FIELD)                                                                          \
    };
WIRE_OPS(X)
#undef X
#undef WIRE_FIELD

struct wire_header {
    uint32_t body_bytes;
    uint16_t op, flags;
    uint64_t request_id;
    int32_t status;
    uint32_t crc;
};

void wire_header_encode(const struct wire_header *h, uint8_t ret[WIRE_HEADER_BYTES]);
/* ERR_PROTOCOL when the length is over the maximum or unknown flags are set. */
int wire_header_decode(const uint8_t p[WIRE_HEADER_BYTES], struct wire_header *ret);

/* Generic access by operation: structs as above, sizes and coders. NULL for unknown numbers. */
struct wire_op_info {
    const char *name;
    size_t req_bytes, rep_bytes; /* sizeof the structs */
    int (*encode_req)(const void *req, struct buf *b);
    int (*decode_req)(struct slice body, void *ret_req); /* slices point into body */
    int (*encode_rep)(const void *rep, struct buf *b);
    int (*decode_rep)(struct slice body, void *ret_rep);
};
const struct wire_op_info *wire_op_info(uint32_t op);

int wire_entry_encode(const struct wire_entry *w, struct buf *b);
/* Takes the next entry off the front of *s; -ENOENT when it is empty, ERR_PROTOCOL when broken. */
int wire_entry_decode(struct slice *s, struct wire_entry *ret);
/* As wire_entry_*. */
int wire_cached_encode(const struct wire_cached *w, struct buf *b);
int wire_cached_decode(struct slice *s, struct wire_cached *ret);
int wire_bucket_encode(const struct wire_bucket *w, struct buf *b);
int wire_bucket_decode(struct slice *s, struct wire_bucket *ret);
int wire_upload_encode(const struct wire_upload *w, struct buf *b);
int wire_upload_decode(struct slice *s, struct wire_upload *ret);
int wire_part_encode(const struct wire_part *w, struct buf *b);
int wire_part_decode(struct slice *s, struct wire_part *ret);
int wire_closed_encode(const struct wire_closed *w, struct buf *b);
int wire_closed_decode(struct slice *s, struct wire_closed *ret);
int wire_dirent_encode(const struct wire_dirent *w, struct buf *b);
int wire_dirent_decode(struct slice *s, struct wire_dirent *ret);
int wire_handle_encode(uint64_t handle, struct buf *b);
int wire_handle_decode(struct slice *s, uint64_t *ret);

/* Body of a failed reply; texts are cut at ERR_TEXT_MAX bytes. */
int wire_error_encode(struct slice text, struct buf *b);
int wire_error_decode(struct slice body, struct slice *ret_text);

/* ---- over a socket, waiting as net/sock.h says ---- */

/* Sends a request or a reply; pass_fd -1 or a descriptor (Unix sockets). */
int wire_send(int fd, uint32_t op, uint16_t flags, uint64_t request_id, int status, struct slice body,
              int pass_fd);
/* Receives one frame: header, body into b (cleared first; its maximum bounds it), descriptor or -1. Checks
 * the crc. -EMFILE: all of it is there but the descriptor, of which this process may not have one more. */
int wire_recv(int fd, struct wire_header *ret, struct buf *b, int *ret_fd);
/* One call: sends the request, waits for its reply, decodes into rep; slices of rep point into b. A failed
 * reply gives its code, with its text in e. */
int wire_call(int fd, uint32_t op, const void *req, struct buf *b, void *rep, struct err *e);

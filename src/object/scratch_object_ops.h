/*
 * Operations on objects of scratch buckets, one for each of the operations on mirror buckets that names a
 * bucket; scratch_route.c calls them. Those on handles are in scratch_reader.c and scratch_writer.c.
 */
#pragma once

#include "object/scratch_node.h"

/* One call. */
struct scratch_op {
    struct object_session *session;
    struct snode *node;
    struct bucket *bucket;
    struct scratch_cred cred;
    struct scratch_call call; /* as the bucket's owner, visible */
};

/* X(NAME, name): operations whose requests have a field `bucket`. */
#define SCRATCH_BUCKET_OPS(X)                                                                                \
    X(STAT, stat)                                                                                            \
    X(LIST, list)                                                                                            \
    X(OPEN, open)                                                                                            \
    X(EXPLAIN, explain)                                                                                      \
    X(CACHED, cached)                                                                                        \
    X(EVICT, evict)                                                                                          \
    X(PARTS, parts)                                                                                          \
    X(PUT_OPEN, put_open)                                                                                    \
    X(REMOVE, remove)                                                                                        \
    X(REMOVE_SINCE, remove_since)                                                                            \
    X(SET_META, set_meta)                                                                                    \
    X(SET_TAGS, set_tags)                                                                                    \
    X(COPY, copy)                                                                                            \
    X(MKDIR, mkdir)                                                                                          \
    X(RMDIR, rmdir)                                                                                          \
    X(UPLOAD_RESUME, upload_resume)

/* X(NAME, name, kind): operations on a handle of this kind. */
#define SCRATCH_HANDLE_OPS(X)                                                                                \
    X(FETCH, fetch, HANDLE_SREAD)                                                                            \
    X(CLOSE, close, HANDLE_SREAD)                                                                            \
    X(CLOSE, close, HANDLE_TREE)                                                                             \
    X(PUT_WRITE, put_write, HANDLE_SWRITE)                                                                   \
    X(PUT_COMMIT, put_commit, HANDLE_SWRITE)                                                                 \
    X(PUT_ABORT, put_abort, HANDLE_SWRITE)                                                                   \
    X(PUT_ROOM, put_room, HANDLE_SWRITE)                                                                     \
    X(UPLOAD_KEEP, upload_keep, HANDLE_SWRITE)                                                               \
    X(UPLOAD_KEEP_PART, upload_keep_part, HANDLE_SWRITE)

#define X(NAME, name)                                                                                        \
    int op_scratch_##name(struct scratch_op *o, const struct wire_##name##_req *req, struct arena *a,        \
                          struct wire_##name##_rep *rep, struct err *e);
SCRATCH_BUCKET_OPS(X)
#undef X

/* Opens for reading what an object of a mirror bucket has for bytes, in an extent that nobody changes any
 * more and which it takes over; rep->attr is filled. */
int sreader_open(struct object_session *ses, struct bucket *b, const struct wire_open_req *req,
                 struct hard *h, struct wire_open_rep *rep, struct err *e);
int op_scratch_fetch(struct object_session *ses, const struct wire_fetch_req *req, struct arena *a,
                     struct wire_fetch_rep *rep, struct err *e);
int op_scratch_close(struct object_session *ses, const struct wire_close_req *req, struct arena *a,
                     struct wire_close_rep *rep, struct err *e);
int op_scratch_put_write(struct object_session *ses, const struct wire_put_write_req *req, struct arena *a,
                         struct wire_put_write_rep *rep, struct err *e);
int op_scratch_put_commit(struct object_session *ses, const struct wire_put_commit_req *req, struct arena *a,
                          struct wire_put_commit_rep *rep, struct err *e);
int op_scratch_put_abort(struct object_session *ses, const struct wire_put_abort_req *req, struct arena *a,
                         struct wire_put_abort_rep *rep, struct err *e);
int op_scratch_put_room(struct object_session *ses, const struct wire_put_room_req *req, struct arena *a,
                        struct wire_put_room_rep *rep, struct err *e);
int op_scratch_upload_keep(struct object_session *ses, const struct wire_upload_keep_req *req,
                           struct arena *a, struct wire_upload_keep_rep *rep, struct err *e);
int op_scratch_upload_keep_part(struct object_session *ses, const struct wire_upload_keep_part_req *req,
                                struct arena *a, struct wire_upload_keep_part_rep *rep, struct err *e);

/* What the wire says of an object as it is now; *x too. */
void sobject_attr(struct snode *n, uint64_t bucket, struct scratch_inode *x, bool posix, struct arena *a,
                  struct wire_attr *ret);

/* The object of the key; -ENOENT also when it has ended. *x is as it is now when that had to be known. */
int sobject_find(struct scratch_op *o, struct slice key, struct arena *a, struct scratch_inode *ret,
                 struct err *e);
/* The object as it is now, and its extent, or NULL when it has no bytes. One that was replaced and freed
 * between the two is looked up again: a key that has an object all the time is always found. */
int sobject_find_data(struct scratch_op *o, struct slice key, struct arena *a, struct scratch_inode *ret,
                      struct hard **ret_hard, struct err *e);
/* Makes the record of the key's object say what its file says, for conditions that are compared with it. Not
 * busy. */
int sobject_record(struct snode *n, uint64_t bucket, struct slice key, struct arena *a, struct err *e);
/* Whether it has ended by now; *x may become as it is now. */
bool sobject_is_over(struct snode *n, const struct bucket *b, struct arena *a, struct scratch_inode *x);

/* ---- scratch_modes.c ---- */

/* Mode, owner and time of the inode as lines of *attr's metadata, in the place of others of these names; of a
 * link the size of its target, too. */
void smodes_add(const struct scratch_inode *x, struct arena *a, struct wire_attr *attr);
/* What the lines say, without set-user-ID and set-group-ID bits of files, and the metadata without them.
 * True: it is a symbolic link. */
bool smodes_take(struct slice meta, bool is_dir, struct arena *a, struct slice *ret_meta,
                 struct scratch_set *ret);
/* The object of the key, or the symbolic link. */
int smodes_find(struct scratch_op *o, struct slice key, struct arena *a, struct scratch_inode *ret,
                struct err *e);

/* ---- scratch_copy.c ---- */

/* The first `size` bytes of `from` into a fresh extent, which is given referenced and not yet durable; holes
 * stay holes, and file systems that share blocks do. */
int scopy_extent(struct snode *n, struct hard *from, uint64_t size, struct hard **ret, struct err *e);

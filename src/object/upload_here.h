/*
 * Uploads in parts whose bytes are in a file of this node (namespace/upload.h: an upload that is here). Who
 * writes that file embeds struct upload_here; the parts are the front end's, which tells of each that is to
 * outlive the node.
 *
 * Any thread.
 */
#pragma once

#include "namespace/upload.h"
#include "net/wire.h"

struct hard;
struct object_service;

struct upload_here {
    struct upload_here *next;
    uint64_t bucket;
    struct id128 id;
    /* Covered by service->upload_lock: */
    bool is_linked;   /* of those of the service: it stands for an upload, perhaps of one that has ended */
    bool is_recorded; /* the control store has a record that names the file, or may have one */
    bool syncing;
    uint64_t begun, done; /* syncs of the file */
    int fault;            /* of the first that failed: what the disk did not take once counts as lost */
};

/* Makes an upload of the file: `u` has all but the id, which is filled in, and the location. Durable. After a
 * failure too the struct is to be left. */
int upload_here_begin(struct object_service *s, struct upload_here *x, uint64_t bucket, struct hard *h,
                      struct upload_record *u, struct err *e);
/* The same of an upload that the control store has already. -EBUSY: somebody has it open. */
int upload_here_adopt(struct object_service *s, struct upload_here *x, uint64_t bucket, struct id128 id,
                      struct err *e);
/* Whether it stands for an upload that has not ended. */
bool upload_here_is_open(struct object_service *s, struct upload_here *x);
/* UPLOAD_KEEP_PART. Many at once share their syncs. */
int upload_here_keep_part(struct object_service *s, struct upload_here *x, struct hard *h,
                          const struct wire_upload_keep_part_req *q, struct err *e);
/* What was written to the file so far is durable. */
int upload_here_sync(struct object_service *s, struct upload_here *x, struct hard *h, struct err *e);
/* 0, or what a sync of the file has said: then its bytes are not to be trusted. */
int upload_here_fault(struct object_service *s, struct upload_here *x);
/* The struct goes. Whether the file must stay, for the record. Also of one that was never begun. */
bool upload_here_leave(struct object_service *s, struct upload_here *x);

/* The upload's record is gone, or says that it was completed: its file is nobody's but its writer's. */
void upload_here_ended(struct object_service *s, uint64_t bucket, struct id128 id);
/* Removes record and file; `u` as it was found. -ENOENT: it was completed meanwhile, or aborted. */
int upload_here_abort(struct object_service *s, uint64_t bucket, const struct upload_record *u,
                      struct err *e);
/* The open upload of that id and key that is here; strings are in the arena. -ENOENT. */
struct bucket;
int upload_here_find(struct object_service *s, const struct bucket *b, struct slice key, struct slice id,
                     struct arena *a, struct upload_record *ret, struct err *e);
/* Those of a bucket that was removed. */
void upload_here_forget_bucket(struct object_service *s, uint64_t bucket);

/* Before the sweep of hard extents: protects the files of uploads. Records whose file is gone are dropped,
 * and said; so are those of buckets that are gone. */
int upload_here_open(struct object_service *s, struct err *e);

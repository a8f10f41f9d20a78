/* What uploads.c, upload.c and uploads_kept.c share: the table of open uploads and its uploads. */
#pragma once

#include "s3/uploads.h"

#define UPLOAD_MAGIC 0x75706c64u

struct part {
    struct upload_part p;
    bool slot_taken;
    bool keeping; /* its record is being written: one at a time, in the order in which they count */
};

struct upload {
    uint32_t magic;
    struct uploads *all;
    char id[UPLOAD_ID_SIZE];
    char *bucket, *key, *content_type, *meta;
    char *name;   /* of the bucket */
    bool is_kept; /* the object layer has a record of it */
    struct part_sums sums;
    bool opaque;
    uint64_t created_ns;
    struct sink sink;
    int fault; /* of whoever has closed it: of the sync that failed */
    /* Covered by all->lock: */
    struct upload *next;
    unsigned refs, working; /* working: who is at the file or the sink just now, for a part */
    unsigned ends;          /* how often an end was begun: parts from before it come no more */
    bool closing, gone;
    bool doomed;        /* its bucket was removed while it was being completed */
    bool broken;        /* records tell of parts that are lost: no part can come any more */
    int64_t touched_ns; /* monotonic, the wall clock may be set; before the machine's start is negative */
    uint64_t part_bytes, overflow_at;
    struct part *parts; /* sorted by number */
    size_t n_parts, cap_parts;
};

struct done {
    char id[UPLOAD_ID_SIZE];
    struct upload_result result;
    char *bucket, *key;
};

struct uploads {
    struct s3 *s3;
    struct lock lock; /* covers all below and the marked fields of uploads */
    struct cond ended;
    struct upload *list;
    struct upload_watch *watches;
    size_t n, n_parts;
    struct done done[UPLOADS_DONE_MAX];
    size_t next_done;
};

/* ---- uploads.c ---- */

/* Takes the sink over, when there is room for one more. */
enum s3_error uploads_link(struct uploads *u, struct upload *w, struct sink *sink);
/* Of uploads of that id. ended: it is gone; else its parts were stopped. */
void uploads_stop_copies_locked(struct uploads *u, struct slice id, bool ended);
/* What an upload became, for clients that ask again. */
void uploads_remember_locked(struct uploads *u, const struct upload *w, struct slice etag,
                             struct slice checksum);

/* ---- upload.c ---- */

/* A new one without a place in the table. */
struct upload *upload_new(struct uploads *u, const struct part_sums *sums, bool opaque);
void upload_free(struct upload *w);
/* Out of the table, for good. */
void upload_unlink_locked(struct upload *w);
/* The part of that number, made when there is none; NULL: there are too many. */
struct part *upload_record_locked(struct upload *w, uint32_t number);
void upload_place_overflow_locked(struct upload *w, uint64_t slot_bytes);

/* ---- uploads_kept.c: what the object layer is asked, no lock held ---- */

/* Of a part that was written: its record. */
int upload_keep_part(struct upload *w, const struct upload_region *region, uint64_t slot_bytes,
                     const uint8_t md5[16], const uint8_t *sum, struct err *e);
/* The record of a part goes. */
int upload_unkeep_part(struct upload *w, uint32_t number, struct err *e);
/* Pure: when something was touched last, by the monotonic clock, that was so at `last_ns` of the wall clock.
 */
int64_t uploads_touched_ns(uint64_t mono_ns, uint64_t real_ns, uint64_t last_ns);
/* After how long without anything new uploads of a bucket are dropped. */
uint64_t uploads_expiry_ns(struct s3 *s3, const char *name);

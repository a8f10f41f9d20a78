/*
 * Multipart uploads that are open and whose bytes are on this node alone: those to scratch buckets, and to
 * origins that take no parts. (Parts for other buckets go to the origin: parts.h.) Where each part's bytes
 * lie in the staged file of its upload, and which parts are there.
 *
 * They are *kept*: the object layer has a record of the upload and of each part (UPLOAD_KEEP), which is
 * durable before its client hears of it, and uploads_resume finds them again when the node starts. (Those of
 * unit tests are not.)
 *
 * Any thread; one lock over the table and all uploads in it, never held over I/O.
 */
#pragma once

#include "origin/origin.h"
#include "s3/part_list.h"
#include "s3/s3_internal.h"
#include "s3/sink.h"

#define UPLOADS_MAX            1024
#define UPLOADS_PARTS_MAX      200000      /* of all uploads together, about 20 MiB */
#define UPLOADS_IDLE_S         (7 * 86400) /* then dropped by uploads_drop_idle, where no bucket says */
#define UPLOADS_DONE_MAX       64          /* completed ones that are remembered for clients that ask again */
#define UPLOAD_ID_SIZE         S3_UPLOAD_ID_SIZE
#define UPLOAD_PART_NUMBER_MAX 10000
#define UPLOAD_PART_MIN_BYTES  (5 * MIB) /* all but the last */
#define UPLOAD_PART_ETAG_SIZE  35        /* 32 hex digits, "-1" and the end */
#define UPLOAD_PART_MAX_BYTES  (5 * GIB)
#define UPLOAD_OVERFLOW_BYTES                                                                                \
    (8 * TIB) /* parts that do not fit their slot lie from here on, at the latest                            \
               */

struct uploads;
struct upload;

struct upload_part {
    uint32_t number;
    bool present;
    uint64_t offset, size; /* in the staged file */
    uint64_t mtime_ns;
    uint8_t md5[16]; /* of its bytes, or random ones (opaque) */
    bool opaque;
    bool has_sum; /* `sum` is its checksum of the upload's kind */
    uint8_t sum[CHECKSUM_MAX_BYTES];
};

struct uploads *uploads_new(struct s3 *s3);
/* Forgets all of them; those that are kept are there when the node starts again. */
void uploads_free(struct uploads *u);
/* Those that were kept: before the first request. What cannot be gone on with is said, and stays for another
 * start. */
void uploads_resume(struct uploads *u);

/* A bucket is what buckets_identity says, so that one that is made again with the name of a former one has
 * none of that one's uploads. */

/* Takes over *sink, which is open and staged; when it is kept it has the id. TOO_MANY_UPLOADS leaves it with
 * the caller. opaque: the ETags of parts are no MD5s. */
enum s3_error uploads_add(struct uploads *u, struct slice bucket, struct slice key,
                          const struct part_sums *sums, bool opaque, struct sink *sink,
                          char ret_id[UPLOAD_ID_SIZE]);
/* What the object layer remembers of one that is kept. */
#define UPLOADS_TAG_SIZE 64
const char *uploads_tag(const struct part_sums *sums, bool opaque, uint64_t ttl_ms,
                        char ret[UPLOADS_TAG_SIZE]);
/* Removes the record of an upload that is kept, durably. */
int uploads_unkeep(struct s3 *s3, struct slice bucket_name, struct slice key, const char *id, struct err *e);
/* Drops those that nobody has touched for the `upload_expiry` of their bucket, and gives the room that their
 * parts take back; uploads_add begins with it. */
void uploads_drop_idle(struct uploads *u);
/* Aborts those of a bucket that was removed; one that is being completed goes when that has failed. */
void uploads_drop_bucket(struct uploads *u, struct slice bucket);
/* A reference, for upload_unref; NULL when there is none of that id for this bucket and key. */
struct upload *uploads_find(struct uploads *u, struct slice id, struct slice bucket, struct slice key);
void upload_unref(struct upload *w);
/* What an upload became that was completed of late: "" when it is not known. The checksum is as part_list.h
 * writes it. */
struct upload_result {
    char etag[ORIGIN_ETAG_MAX + 1], checksum[64];
};
void uploads_completed(struct uploads *u, struct slice id, struct slice bucket, struct slice key,
                       struct upload_result *ret);

/* Calls fn for each upload of the bucket, sorted by nothing; under the lock. */
void uploads_each(struct uploads *u, struct slice bucket,
                  void (*fn)(void *arg, struct slice key, const char *id, uint64_t created_ns), void *arg);

/* ---- parts ---- */

/* As clients see it: an opaque one has a dash, which says that it is no MD5. */
void upload_part_etag(const uint8_t md5[16], bool opaque, char ret[UPLOAD_PART_ETAG_SIZE]);

/* Where the bytes of a part go. */
struct upload_region {
    uint32_t number;
    bool is_slot, opaque;
    uint64_t offset, size;
    unsigned ends; /* of the upload, when the part began */
};

/* Reserves the region of a part of known size; end with upload_part_end. A part that is there stays until the
 * new one has ended well. NO_SUCH_UPLOAD when the upload is being completed or aborted. */
enum s3_error upload_part_begin(struct upload *w, uint32_t number, uint64_t size, struct upload_region *ret);
/* Around all that is done for the part with the file or the sink, but for upload_part_end; for so long an end
 * waits. False: an end was begun since the part was, and it comes no more. */
bool upload_part_enter(struct upload *w, const struct upload_region *region);
void upload_part_leave(struct upload *w);
/* Whether there is no such upload any more. A part that was stopped while there is may come again: its end
 * may fail, or has. */
bool upload_has_ended(struct upload *w);
/* sum: its checksum of the upload's kind, or NULL. Of an upload that is kept the part is durable with 0;
 * after a failure its place is not used again: who was not answered may find it all the same. -ENOENT: the
 * upload was aborted, or an end has stopped the part. Without ok nothing can fail. */
int upload_part_end(struct upload *w, const struct upload_region *region, bool ok, const uint8_t md5[16],
                    const uint8_t *sum, struct err *e);
int upload_fd(const struct upload *w);
/* As they came with the upload's creation. */
struct slice upload_content_type(const struct upload *w);
struct slice upload_meta(const struct upload *w);
struct part_sums upload_sums(const struct upload *w);
/* Copy of all records, sorted by number; free(). */
struct upload_part *upload_parts(struct upload *w, size_t *ret_n);

/* ---- parts that are copies ---- */

/* Who reads elsewhere what a part is to be, from uploads_watch to uploads_unwatch: `stop` is set when the
 * upload has ended, or an end that was begun has stopped its parts; also of uploads whose parts are at the
 * origin, by uploads_tell_end. */
struct upload_watch {
    struct upload_watch *next;
    struct slice bucket, id; /* the caller's */
    atomic_bool stop;
    bool ended; /* of the upload; uploads->lock */
};
void uploads_watch(struct uploads *u, struct slice bucket, struct slice id, struct upload_watch *ret);
/* What a copy comes to that was stopped: NO_SUCH_UPLOAD, or UNAVAILABLE where the end may fail, or has; OK:
 * it was not. */
enum s3_error uploads_unwatch(struct uploads *u, struct upload_watch *x);
/* The upload of that id, whose parts are at the origin, was completed or aborted. */
void uploads_tell_end(struct uploads *u, struct slice id);

/* ---- end ---- */

/* No part can begin any more, and those that still come are stopped: nobody waits for their clients, but only
 * for what is being done with the file. CONFLICT when someone else is at it, or that is not done in a minute,
 * UNAVAILABLE when it is given up (base/quit.h); then the upload is open as before, but for those parts. */
enum s3_error upload_close(struct upload *w);
/* Takes the upload out of the table at once; parts that still come are told to stop, and its staged file goes
 * with the last reference. One that is kept has no record any more: INTERNAL when that cannot be made so, and
 * the upload is as before. CONFLICT when someone is completing it. */
enum s3_error upload_abort(struct upload *w);
/* Between upload_close and upload_reopen: whether the disk has taken all that was written to the staged file.
 * What it did not take once fails each time: the kernel tells it a single time, and what is read then may be
 * other bytes. */
int upload_sync(struct upload *w);
/* In the same place: the staged file may have been cut. Parts of which it has not all bytes are not there any
 * more, nor after a restart. */
void upload_lose_parts(struct upload *w, uint64_t file_bytes);
/* The same after a commit that may have cut it behind `listed` bytes: where the file does not say how long it
 * is, what lies before that is there. */
void upload_lose_cut(struct upload *w, uint64_t listed);
/* After a failed completion: parts may come again. */
void upload_reopen(struct upload *w);
/* Takes the upload out of the table; its staged file goes with the last reference unless it was committed.
 * etag, checksum: of the object it became, or empty. */
void upload_finish(struct upload *w, struct slice etag, struct slice checksum);
struct sink *upload_sink(struct upload *w); /* between upload_close and upload_finish */

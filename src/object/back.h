/*
 * Write-back: what was acknowledged here and is not in the origin yet.
 *
 * Each such key has a record in the control store (table below) and, for a put, its bytes in a hard extent of
 * the store. Both are durable before the write is acknowledged. A layer under every upstream (namespace/
 * upstream.h) answers reads, listings and writes of such keys from here, so that all that stands above, S3,
 * mounts and jobs, sees one state: the origin as it will be. Threads carry the records to the origin, each
 * key's in order, for ever until they succeed.
 *
 * Key: "d/", bucket id (8 bytes, big endian), key of the object. Value, numbers little endian:
 *
 * | offset | size | record                                                                                |
 * | ------ | ---- | ------------------------------------------------------------------------------------- |
 * | 0      | 1    | format: 1; 2 when there are older sent versions; 3 when the version has a tag         |
 * | 1      | 1    | flags: 1 removal, 2 something was sent to the origin; format 3 only: 4 the MD5 is     |
 * |        |      | known, 8 the bytes are live                                                           |
 * | 2      | 1    | base, what the origin had before the first of these writes: 0 unknown, 1 nothing,     |
 * |        |      | 2 the ETag below                                                                      |
 * | 3      | 1    | bytes of the location: 33 (store/hard.h), or 0 when there are no bytes                |
 * | 4      | 8    | sequence of the write                                                                 |
 * | 12     | 8    | when it was acknowledged, ns since 1970                                               |
 * | 20     | 8    | since when the key is not as in the origin                                            |
 * | 28     | 8    | size in bytes                                                                         |
 * | 36     | 16   | MD5 of the bytes; zeros when it is not known                                          |
 * | 52     | 8    | size of what was sent last                                                            |
 * | 60     | 16   | MD5 of what was sent last                                                             |
 * | 76     | n    | location                                                                              |
 * |        | 2+n  | base ETag: length, bytes                                                              |
 * |        | 2+n  | content type                                                                          |
 * |        | 2+n  | meta lines                                                                            |
 * |        | 1    | formats 2 and 3: how many older versions were sent, 1 to 7; 0 to 7 in format 3        |
 * |        | 24*n | of each, the latest first: size (8), MD5 (16)                                         |
 * |        | 16   | format 3 only: tag, random bytes                                                      |
 *
 * What was sent counts as long as nobody heard what became of it: it may be in the origin, or get there late.
 * Nodes of before know format 1 only, or 1 and 2, and refuse to start over a record of another.
 *
 * The ETag of a version is its MD5 in hex digits. One with a tag has that of the tag and "-1" instead, which
 * says that it is no MD5: who wrote it did not ask for one, and it was acknowledged without reading all bytes
 * again for it. Its MD5 is computed before it is sent for the first time, and noted in the record; the note
 * that it was sent, which comes with or after that, is durable. Nodes of before wrote both at once, and take
 * a version whose MD5 is known at their start for one that was sent.
 *
 * Live bytes are those of a file that its writer may still have open (origin_file): the extent is another
 * name of it. Nobody is given a byte of them. Who needs them, a reader, a copy or the sender, first has the
 * record name bytes that stay as they are: the same extent when nobody has the file open for writing any
 * more, else a copy. Until then the version has no bytes that anybody saw, so that its ETag goes with them.
 *
 * A crash leaves the record or not, never a half; extents without a record are removed at the next start.
 */
#pragma once

#include "namespace/upstream.h"

#define BACK_MD5_BYTES        16
#define BACK_TAG_BYTES        16
#define BACK_ETAG_SIZE        35 /* of either kind, with the NUL */
#define BACK_RECORD_MAX_BYTES (12 * KIB)
#define BACK_SENT_MAX         8 /* versions; who sends a ninth without an answer forgets the first */

enum back_base { BACK_BASE_UNKNOWN, BACK_BASE_ABSENT, BACK_BASE_ETAG };

/* A version that was sent under the key, and may be there. */
struct back_sent {
    uint64_t size_bytes;
    uint8_t md5[BACK_MD5_BYTES];
};

struct upload_record; /* namespace/upload.h */

struct back_record {
    bool removal;
    bool has_tag; /* `tag`, not `md5`, makes its ETag */
    bool has_md5; /* of one with a tag; without it, always */
    bool is_live; /* of one with a tag */
    enum back_base base;
    uint64_t seq, acked_ns, since_ns, size_bytes;
    uint8_t md5[BACK_MD5_BYTES], tag[BACK_TAG_BYTES];
    unsigned n_sent;
    struct back_sent sent[BACK_SENT_MAX]; /* the latest first, each once */
    struct slice location, base_etag, content_type, meta;
    const struct upload_record *upload; /* not kept: what the commit of the record completes, or NULL */
};

/* ---- back_record.c: pure ---- */

int back_record_encode(const struct back_record *r, struct buf *b);
/* Slices point into the value. ERR_CORRUPT. */
int back_record_decode(struct slice value, struct back_record *ret);

/* The ETag of its version. */
void back_record_etag(const struct back_record *r, char ret[BACK_ETAG_SIZE]);
/* Whether the MD5 of its bytes is known. */
bool back_record_knows_md5(const struct back_record *r);
/* Whether the record's own version is among those that were sent. */
bool back_record_was_sent(const struct back_record *r);
/* Puts the record's own version, whose MD5 is known, before the others that were sent. True: the oldest of
 * them had to go. */
bool back_record_note_sent(struct back_record *r);
/* Takes the version of `which` away from those that were sent. */
void back_record_forget_sent(struct back_record *r, const struct back_record *which);

/* What the origin has now under the key of a record. */
struct back_found {
    bool exists;
    struct slice etag;
    bool is_sent;   /* it is what was sent for this key before */
    bool is_wanted; /* it is what the record wants there */
    /* It is a directory: its ETag says nothing of who wrote it. Making it again changes nothing of what is in
     * it, and it is removed only when nothing is. */
    bool is_directory;
};
enum back_step {
    BACK_SEND,     /* carry it out */
    BACK_DONE,     /* the origin is as the record wants it */
    BACK_CONFLICT, /* somebody else wrote there */
};
enum back_step back_decide(const struct back_record *r, const struct back_found *now);

/* The name of the second copy: the key without its last `cut` bytes or a few more, and cut where it would be
 * too long for any origin, ".conflict-", the time of the write in ms, "-", the first 8 digits of its ETag.
 * The same for the same write. */
#define BACK_COPY_SUFFIX_MAX 48
int back_copy_key(struct slice key, size_t cut, const struct back_record *r, struct buf *ret);

/* For how long after the Nth failure in a row nothing is tried: 100 ms doubled up to a minute. */
uint64_t back_delay_ms(uint32_t tries);

/* ---- back_merge.c: pure ---- */

/* A key, or a common prefix, of which there are records. */
struct back_listed {
    struct slice key;
    bool is_prefix;
    bool gone; /* a removal; of a prefix: nothing is below it any more */
    struct origin_attr attr;
};
struct back_merged {
    size_t n;
    bool cut;          /* there was more than max */
    struct slice last; /* everything up to here was looked at */
};
/* Lays records over a page of the origin: both in byte order, at most max entries into ret. */
void back_merge(const struct origin_entry *page, size_t n_page, const struct back_listed *mine, size_t n_mine,
                size_t max, struct origin_entry *ret, struct back_merged *ret_merged);

/* Tokens of listings: decimal length of the position, ':', the position, the origin's own token. */
int back_token_encode(struct slice position, struct slice inner, struct buf *ret);
/* -EINVAL. */
int back_token_decode(struct slice token, struct slice *ret_position, struct slice *ret_inner);

/* ---- back.c, back_layer.c, back_send.c ---- */

struct back;
struct object_service;

struct back_count {
    uint64_t objects, bytes, failing;
    uint64_t since_ns; /* real time, of the oldest; 0: none */
    char error[160];   /* the last one of the oldest that fails */
};

/* Reads the records; protects their extents, so that this comes before hard_sweep. Any record that cannot be
 * read is an error: nothing acknowledged may be swept. */
int back_open(struct object_service *s, struct back **ret, struct err *e);
void back_start(struct back *b);
/* Waits for the threads; what is not in the origin stays for the next start. NULL accepted. */
void back_stop(struct back *b);
void back_close(struct back *b);
/*
 * The bytes of a key that has a record, in an extent that nobody changes any more, and its attributes, in the
 * arena. -ENOENT: there is no record, or one without bytes. Readers keep the extent also when it was given
 * back.
 */
struct hard;
int back_open_bytes(struct back *b, const struct bucket *bucket, struct slice key, struct arena *a,
                    struct origin_attr *ret, struct hard **ret_hard, struct err *e);
/* A copy of a rename, whose source is removed then: of a key that has a record, by another one. Unlike a
 * copy that stays beside its source it may have live bytes, too, so that a file that is renamed while it is
 * closed is not copied. -EAGAIN: there is no record, upstream_copy. */
int back_copy_moved(struct back *b, struct upstream *u, struct slice from, struct slice to, struct arena *a,
                    struct origin_attr *ret, struct err *e);
/* Before bytes of the key are asked for by who holds what senders may wait for, a place at the origin or the
 * key's opening: settles them, if need be, which may wait for room. */
int back_settle_key(struct back *b, const struct bucket *bucket, struct slice key, struct err *e);
/* Whether the key has a record: a quick look. */
bool back_has(struct back *b, uint64_t bucket_id, struct slice key);
/* Whether there are some; nothing is settled for it. */
bool back_has_bytes(struct back *b, const struct bucket *bucket, struct slice key);
/* Nobody will write any more to the file that was kept as this version (origin_file). */
void back_end_live(struct back *b, const struct bucket *bucket, struct slice key, struct slice etag);

/* Whether a version of this ETag may have another one in the origin, now or soon. */
bool back_may_rename(struct back *b, uint64_t bucket_id, struct slice key, struct slice etag);
/* Whether the version that had this ETag here is `there` in the origin now. False also when that is not
 * remembered any more. */
bool back_is_sent_as(struct back *b, uint64_t bucket_id, struct slice key, struct slice etag,
                     struct slice there);
/* The other ETag of the version of this one: the origin's of what had this one here, or what it had here. As
 * long as that is remembered: else false. */
bool back_other_etag(struct back *b, uint64_t bucket_id, struct slice key, struct slice etag,
                     char ret[ORIGIN_ETAG_MAX + 1]);

/* Whether the version of this ETag, as readers see it, was written since this start, and not by a run before:
 * true for certain; false also when that is not known any more. */
bool back_is_new(struct back *b, uint64_t bucket_id, struct slice key, struct slice etag);
/* Whether both keys have records, of the same extent and with the same metadata, as a copy has them. */
bool back_is_copy(struct back *b, uint64_t bucket_id, struct slice from, struct slice to);

extern const struct upstream_layer back_layer;

/* Waits until so many bytes more may be acknowledged: at most the bucket's `retry`, then -ENOSPC. At once
 * where back_begin_wait says so. ERR_CLOSED as soon as the node is told to stop. */
int back_wait_room(struct back *b, const struct bucket *bucket, uint64_t size_bytes, bool may_refuse,
                   struct err *e);
/* A thread of a front is about to wait for room. False: as many do already as may wait for the gate, and this
 * one can be told to come again; the rest of the threads is for who wants no room. Then back_end_wait. */
bool back_begin_wait(struct back *b, bool may_refuse);
void back_end_wait(struct back *b);
/* After a disk had no room for something: waits a moment for writes that take some to get to their origins.
 * Whether to try once more: there were any, and it is before until_ms (monotonic). */
bool back_wait_freed(struct back *b, uint64_t until_ms);
/* Whether a body that is on a disk already waits for room for its record's bytes: who has nothing there yet
 * lets it go first, or all would wait for each other. */
bool back_is_hungry(const struct back *b);
/* hard_write, which waits for room as back_wait_freed says, at most for the bucket's `retry`. bucket NULL:
 * not at all. */
int back_write(struct back *b, const struct bucket *bucket, struct hard *h, struct slice piece, uint64_t at,
               atomic_bool *cancel, struct err *e);
/* -ENOSPC, in words that name no file; ERR_CLOSED when the node is stopping, so that nobody waited. */
int back_no_room(struct back *b, uint64_t size_bytes, struct err *e);
/* The same for what takes a record and no bytes, as a removal; a key that has one is let through. */
int back_wait_record(struct back *b, const struct bucket *bucket, struct slice key, struct err *e);
/* What below a prefix is not in the origin; bucket_id 0: of all buckets. */
void back_count(struct back *b, uint64_t bucket_id, struct slice prefix, struct back_count *ret);
/* Tries what failed again now, and sends what waits for its bucket's `write_delay`: below the prefix, and the
 * names on the way to it. All else waits on. */
void back_hurry(struct back *b, uint64_t bucket_id, struct slice prefix);
/* What status shows of a bucket; NULL when there is nothing to show. */
struct json_t;
struct json_t *back_json(struct back *b, const struct bucket *bucket);
void back_refresh_metrics(struct back *b);
/* -EBUSY, naming what was asked, while writes of the bucket are not in the origin. */
int back_check_gone(struct back *b, const struct bucket *bucket, const char *what, struct err *e);
/* The same for a bucket that is about to be removed, or to get another origin: when it gives 0, no write of
 * the bucket is recorded until back_release; those that wait for that look at the bucket then. */
int back_hold(struct back *b, const struct bucket *bucket, const char *what, struct err *e);
void back_release(struct back *b, const struct bucket *bucket);
/* Conflicts since the start. */
uint64_t back_conflicts(struct back *b, uint64_t bucket_id);

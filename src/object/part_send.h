/*
 * One part of an upload on its way to the origin: bytes come in order, a thread of its own sends them while
 * they come. They wait in memory, at most PART_BUFFER_MAX of them, or fewer where all parts together may not
 * have that; of a part that fits there whole every try is made that the bucket's `retry` allows, a longer one
 * is sent once.
 *
 * One thread at a time per struct, but where it says otherwise.
 */
#pragma once

#include "object/object_internal.h"

#define PART_BUFFER_MAX (16 * MIB)

struct part_send;

#define PART_WAIT_MS 30000

struct part_plan {
    struct slice key, origin_id; /* of its upload, there */
    struct slice sums;           /* the same: origin_put.sums; empty: its parts have none */
    uint32_t number;
    uint64_t size;
    struct slice sum; /* its checksum in hex, when it is known before the bytes; else empty */
};

/* Strings are copied. ERR_ORIGIN_BUSY: too many parts are on their way, for their number, or for their memory
 * also after wait_ms. -ECANCELED: who waits for that is given up (base/quit.h). */
int part_send_new(struct object_service *s, struct upstream *u, const struct part_plan *plan,
                  uint64_t wait_ms, struct part_send **ret, struct err *e);
/* Stops sending; the origin has no such part then. NULL accepted. */
void part_send_free(struct part_send *p);
/* Waits for room. Gives what went wrong at the origin, if something did. */
int part_send_write(struct part_send *p, struct slice data, struct err *e);
/* From any thread, as long as `p` is there: the part is given up as soon as may be, whoever waits in one of
 * the others gets -ECANCELED; not where the last byte may go already, unless `whole_too`. */
void part_send_stop(struct part_send *p, bool whole_too);
/* Whether nothing is sent any more, from any thread. */
bool part_send_has_ended(struct part_send *p);
/* Before the last byte may go: its checksum, in hex, which counts when its upload has checksums. */
void part_send_sum(struct part_send *p, struct slice sum);
/* Lets the last byte go, without waiting for the end; when all bytes were written. */
void part_send_finish(struct part_send *p);
/* Waits until a part whose last byte may go has ended, until then at most (monotonic time). True: nothing of
 * it still comes at the origin when it is given up now. False: all of it may be there, and without an answer
 * the origin may keep it after the upload was aborted. */
bool part_send_settle(struct part_send *p, uint64_t until_ns);
/* The last byte leaves only now: waits until the origin has acknowledged the part. The ETag lives with `p`.
 */
int part_send_end(struct part_send *p, struct slice *ret_etag, struct err *e);
uint64_t part_send_written(const struct part_send *p);

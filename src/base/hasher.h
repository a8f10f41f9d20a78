/*
 * MD5 beside: a thread that computes the MD5 of what other threads go on receiving and writing, of several
 * streams at once (md5_lanes.h). A stream is told of memory and goes on; it waits only before it changes that
 * memory, and for the end.
 *
 * Memory: none but the callers' own. One thread at a time per stream; the hasher is for any number of them.
 */
#pragma once

#include "base/lock.h"
#include "base/md5.h"

#define HASHER_PIECES_MAX 2 /* that a stream may have on their way; who adds more waits */

struct hasher;

/* NULL when there is only one processor, or no thread to be had: streams without a hasher compute at once.
 * processors: how many there are, 0 to ask the system. */
struct hasher *hasher_start(unsigned processors);
/* No stream uses it any more. */
void hasher_stop(struct hasher *h);

/* Embedded; nothing in it is for others. */
struct hasher_stream {
    struct hasher *hasher; /* NULL: computes at once */
    struct md5 md5;        /* of who has it in work, else of the owner */
    struct cond moved;
    /* covered by the hasher's lock: */
    struct hasher_stream *next; /* in the queue */
    enum { HASHER_IDLE, HASHER_QUEUED, HASHER_IN_WORK } place;
    unsigned n_pieces;
    struct {
        const uint8_t *p;
        size_t n;
    } pieces[HASHER_PIECES_MAX]; /* what is not computed yet */
};

/* Of no bytes yet. The stream must not move until hasher_stream_fini. */
void hasher_stream_init(struct hasher_stream *s, struct hasher *h);
/* At any time, also twice, and of a zeroed one: what is not computed yet is dropped. Afterwards no memory of
 * the stream is used any more. */
void hasher_stream_fini(struct hasher_stream *s);
/* The next bytes, which must stay as they are until hasher_stream_wait for them, or one of the two below. */
void hasher_stream_add(struct hasher_stream *s, const void *p, size_t n);
/* Waits until none of the n bytes at p is needed any more. */
void hasher_stream_wait(struct hasher_stream *s, const void *p, size_t n);
/* Waits for all of them: the MD5. Nothing can be added then. */
void hasher_stream_digest(struct hasher_stream *s, uint8_t ret[MD5_BYTES]);

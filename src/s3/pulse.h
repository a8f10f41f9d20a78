/*
 * Signs of life of an operation that may take long: after PULSE_MS its client gets the head of the answer and
 * the XML line, and every PULSE_MS from then on a blank, so that it does not take the node for dead. How it
 * ended is then told in the body, whatever the status said, as S3 does it for copies and completions. What
 * ends before that gets its true status.
 *
 * The thread of the request works and does not touch the connection between pulse_start and pulse_stop; one
 * other thread sends for all requests.
 */
#pragma once

#include "s3/s3_internal.h"

#define PULSE_MS 5000

struct pulse {
    struct s3_request *r;
    struct buf lines; /* of the head, as they were at the start */
    bool told;        /* the head is gone */
    int status;       /* of the sending; nothing more is sent after a failure */
    /* The rest is covered by the pulser's lock. */
    struct pulse *next;
    uint64_t due_ns;
    bool is_over;
};

struct pulser;

/* The thread that sends. Never NULL: without a thread there are no signs of life, which is logged. */
struct pulser *pulser_start(void);
/* When no pulse is left. NULL accepted. */
void pulser_stop(struct pulser *ps);

/* The header lines that the answer is to have must be there already. */
void pulse_start(struct pulse *p, struct s3_request *r);
/* From then on r->status says whether the head is gone. */
void pulse_stop(struct pulse *p);

struct xml;
typedef void (*pulse_put_fn)(struct s3_request *r, struct xml *x, const void *arg);
/* After pulse_stop: the XML answer that `put` writes without its first line, or the error; as a whole, or
 * what follows a head that was sent. Gives S3_OK, or the error that is still to be answered. */
enum s3_error pulse_answer(struct s3_request *r, enum s3_error error, pulse_put_fn put, const void *arg);

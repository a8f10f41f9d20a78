/*
 * Signs of life of an operation that may take long: after PULSE_MS its client gets the head of the answer and
 * the XML line, and every PULSE_MS from then on a blank, so that it does not take the node for dead. How it
 * ended is then told in the body, whatever the status said, as S3 does it for copies and completions. What
 * ends before that gets its true status.
 *
 * The thread of the request works and does not touch the connection between pulse_start and pulse_stop;
 * another thread sends.
 */
#pragma once

#include "s3/s3_internal.h"

#define PULSE_MS 5000

struct pulse {
    struct s3_request *r;
    pthread_t thread;
    bool started;
    struct buf lines; /* of the head, as they were at the start */
    struct lock lock; /* covers what follows */
    struct cond stopped;
    bool stop, told;
};

/* The header lines that the answer is to have must be there already. */
void pulse_start(struct pulse *p, struct s3_request *r);
/* From then on r->status says whether the head is gone. */
void pulse_stop(struct pulse *p);

struct xml;
typedef void (*pulse_put_fn)(struct s3_request *r, struct xml *x, const void *arg);
/* After pulse_stop: the XML answer that `put` writes without its first line, or the error; as a whole, or
 * what follows a head that was sent. Gives S3_OK, or the error that is still to be answered. */
enum s3_error pulse_answer(struct s3_request *r, enum s3_error error, pulse_put_fn put, const void *arg);

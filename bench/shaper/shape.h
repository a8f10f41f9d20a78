/*
 * Rates and delays of the emulated link: pure arithmetic over a clock that the caller passes, and one wait.
 *
 * A rate is a queue of bytes: each take() books the time that its bytes need after those booked before. While
 * bodies are on their way, up to SHAPE_BEHIND_NS of unused time is kept, so that a thread that was not run in
 * time catches up and the mean holds on a busy machine. Idle time before a body gives nothing: the time to
 * its first byte is not made up for.
 */
#pragma once

#include "base/err.h"
#include "base/lock.h"

#define SHAPE_BEHIND_NS 50000000ull

struct shape_rate {
    struct lock lock;     /* covers the rest */
    uint64_t bytes_per_s; /* 0: no limit */
    uint64_t booked_until_ns;
    unsigned bodies; /* between begin and end */
};

void shape_rate_init(struct shape_rate *r, uint64_t bytes_per_s);
void shape_rate_fini(struct shape_rate *r);
void shape_rate_set(struct shape_rate *r, uint64_t bytes_per_s);
/* Around each body. */
void shape_rate_begin(struct shape_rate *r, uint64_t now_ns);
void shape_rate_end(struct shape_rate *r);
/* Books n bytes of a body at `now_ns`; gives the time at which they may be sent, and what the rate lost for
 * good because nothing was booked in time (0 without a limit). Any thread. */
uint64_t shape_rate_take(struct shape_rate *r, uint64_t n, uint64_t now_ns, uint64_t *ret_lost_ns);

/* Requests per second: up to SHAPE_BURST_NS worth of them may come at once, and what comes above is refused.
 * Refused ones cost nothing of what is let through. */
#define SHAPE_BURST_NS 100000000ull

struct shape_limit {
    uint64_t per_s; /* 0: no limit */
    uint64_t booked_until_ns;
};

/* Whether a request at now_ns is let through, and books it. One thread at a time. */
bool shape_limit_admit(struct shape_limit *l, uint64_t now_ns);

/* Time to the first byte: constant, or log-normal with the given median and 99th percentile. */
struct shape_delay {
    uint64_t median_ns;
    uint64_t p99_ns; /* 0: constant */
    uint64_t seed;
};

/* "20ms" or "20ms,p99=80ms"; ERR_BAD_OPTION with a text that begins with `name`. The seed stays as it is. */
int shape_delay_parse(const char *text, const char *name, struct shape_delay *ret, struct err *e);
/* The n-th delay of the seed's sequence: the same for the same seed and n, on any machine. */
uint64_t shape_delay_draw(const struct shape_delay *d, uint64_t n);
/* "50MB/s", "50MB", "0" (no limit). */
int shape_rate_parse(const char *text, const char *name, uint64_t *ret_bytes_per_s, struct err *e);

/* Bytes to move at a time: about 2 ms of the slower of two rates (0: no limit), 4 to 256 KiB; 1 MiB without
 * limits. */
size_t shape_piece(uint64_t a_bytes_per_s, uint64_t b_bytes_per_s);
/* Sleeps until the monotonic time is reached; returns at once when it is past. */
void shape_wait(uint64_t until_ns);

/* Faults to inject into responses, armed through the control interface. Any thread. */
#pragma once

#include "base/err.h"
#include "base/lock.h"
#include "base/slice.h"

#define FAULT_MATCH_MAX 1024
#define FAULTS_MAX      64
#define FAULT_LINE_MAX  (8 * KIB)
#define FAULT_HALF      UINT64_MAX /* `at`: in the middle of the body */

/* X(NAME, name, meaning) */
#define FAULT_KINDS(X)                                                                                       \
    X(TRUNCATE, "truncate", "the body ends early: the connection is closed after `at` bytes")                \
    X(RESET, "reset", "the connection is reset (RST) after `at` bytes of the body")                          \
    X(STALL, "stall", "nothing more comes after `at` bytes, for `for`; then it goes on")                     \
    X(FLIP, "flip", "one bit of byte `at` of the body is inverted")                                          \
    X(WRONG_LENGTH, "wrong-length", "one byte less is announced and sent, all else as it was")               \
    X(STATUS, "status", "status:CODE: the request is not passed on, an S3 error is the answer")

enum fault_kind {
    FAULT_NONE,
#define X(name, text, meaning) FAULT_##name,
    FAULT_KINDS(X)
#undef X
};

struct fault {
    enum fault_kind kind;
    int status;                  /* FAULT_STATUS */
    uint64_t at;                 /* offset in the body, or FAULT_HALF */
    uint64_t stall_ms;           /* FAULT_STALL */
    uint64_t skip;               /* matching requests left alone first */
    uint64_t count;              /* times still to inject */
    char match[FAULT_MATCH_MAX]; /* part of "METHOD target"; empty: every request */
    unsigned releases;           /* FAULT_STALL: how often was released before the request began */
};

struct faults {
    struct lock lock; /* covers all below */
    struct fault v[FAULTS_MAX];
    size_t n;
    unsigned releases;
};

void faults_init(struct faults *f);
void faults_fini(struct faults *f);
void faults_clear(struct faults *f);
/* Whatever stalls goes on: requests whose fault was taken until now. */
void faults_release(struct faults *f);
/* Whether that was said since the fault was taken. */
bool faults_is_released(struct faults *f, const struct fault *taken);
/* From a query string: kind, count, match, at, for, skip (percent-encoded). ERR_BAD_OPTION; -ENOSPC when
 * FAULTS_MAX are armed. */
int faults_arm(struct faults *f, struct slice query, struct err *e);
/* How often faults are still to be injected. */
uint64_t faults_armed(struct faults *f);
/* The first armed fault that matches, counted down; kind FAULT_NONE when there is none. */
void faults_take(struct faults *f, struct slice method, struct slice target, struct fault *ret);

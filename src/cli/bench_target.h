/*
 * What the measurements read and write: a directory, a bucket of a node over the wire protocol, or any S3
 * endpoint, behind one table of functions. A target is shared by all threads; each thread has a connection of
 * its own, and makes one call at a time on it.
 *
 * Objects that measurements write hold a pattern (base/pattern.h) of their key, and whoever reads them
 * compares every byte as it arrives.
 */
#pragma once

#include "cli/command.h"

#include "base/pattern.h"

/* First member of the options of a measurement that has a target. */
struct bench_target_options {
    struct command_node node;
    char *s3_endpoint, *region;
    uint64_t block;
    uint64_t connections; /* most at a time; set by the measurement before it opens its target */
};

#define BENCH_TARGET_ROWS(owner)                                                                             \
    {.name = "s3-endpoint",                                                                                  \
     .type = OPTION_STRING,                                                                                  \
     .offset = offsetof(struct owner, target.s3_endpoint),                                                   \
     .arg = "URL",                                                                                           \
     .doc = "s3://: where, else AWS_ENDPOINT_URL; keys come from AWS_ACCESS_KEY_ID and "                     \
            "AWS_SECRET_ACCESS_KEY"},                                                                        \
        {.name = "region",                                                                                   \
         .type = OPTION_STRING,                                                                              \
         .offset = offsetof(struct owner, target.region),                                                    \
         .arg = "NAME",                                                                                      \
         .doc = "s3://: the region to sign for, else AWS_REGION, else us-east-1"},                           \
        {.name = "block",                                                                                    \
         .type = OPTION_SIZE,                                                                                \
         .offset = offsetof(struct owner, target.block),                                                     \
         .def = "1MiB",                                                                                      \
         .min = 512,                                                                                         \
         .max = GIB,                                                                                         \
         .arg = "SIZE",                                                                                      \
         .doc = "bytes per read or write of a file"},                                                        \
        {.name = "data",                                                                                     \
         .type = OPTION_STRING,                                                                              \
         .offset = offsetof(struct owner, target.node.data),                                                 \
         .arg = "DIR",                                                                                       \
         .doc = "a bucket: the node's data directory"},                                                      \
        {.name = "socket",                                                                                   \
         .type = OPTION_STRING,                                                                              \
         .offset = offsetof(struct owner, target.node.socket),                                               \
         .arg = "PATH",                                                                                      \
         .doc = "a bucket: the node's Unix socket"},                                                         \
        {.name = "endpoint",                                                                                 \
         .type = OPTION_STRING,                                                                              \
         .offset = offsetof(struct owner, target.node.endpoint),                                             \
         .arg = "HOST:PORT",                                                                                 \
         .doc = "a bucket: the node's wire address"},                                                        \
    {                                                                                                        \
        .name = "timeout", .type = OPTION_DURATION,                                                          \
        .offset = offsetof(struct owner, target.node.timeout_ms), .arg = "TIME", .def = "60s", .min = 100,   \
        .max = 86400000, .doc = "how long to wait for an answer"                                             \
    }

struct bench_conn;

/* Gets bytes of an object in order; a negative code ends the transfer and is its result. */
typedef int (*bench_sink_fn)(void *arg, uint64_t offset, const void *p, size_t n);
/* Called for each entry of a listing; a negative code ends it. `name` is below the target's prefix. */
typedef int (*bench_entry_fn)(void *arg, struct slice name, uint64_t size);

struct bench_target {
    const struct bench_target_ops *ops;
    const struct bench_target_options *options;
    char *root;   /* directory, or bucket */
    char *prefix; /* of keys, with its last '/', or empty */
    void *state;  /* of the kind */
};

struct bench_target_ops {
    const char *kind;              /* "directory", "bucket", "s3" */
    uint64_t files_per_connection; /* descriptors, at most */
    int (*open)(struct bench_target *t, struct err *e);
    void (*close)(struct bench_target *t);
    int (*connect)(struct bench_target *t, struct bench_conn **ret, struct err *e);
    void (*disconnect)(struct bench_conn *c); /* NULL accepted */
    /* n UINT64_MAX: to the end. *ret_first_ns: time of the first byte, untouched when there is none. */
    int (*get)(struct bench_conn *c, const char *key, uint64_t offset, uint64_t n, bench_sink_fn sink,
               void *arg, uint64_t *ret_first_ns, struct err *e);
    int (*put)(struct bench_conn *c, const char *key, uint64_t size, struct pattern p, struct err *e);
    int (*remove)(struct bench_conn *c, const char *key, struct err *e);
    /* All objects below `prefix`, which is itself below the target's. */
    int (*list)(struct bench_conn *c, const char *prefix, bench_entry_fn entry, void *arg, struct err *e);
};

extern const struct bench_target_ops bench_dir_ops, bench_bucket_ops, bench_s3_ops;

#define BENCH_FILES_FREE 64 /* descriptors for all else */

/* "s3://BUCKET[/PREFIX]"; a directory, which is there or begins with '/' or '.'; else BUCKET[/PREFIX] of a
 * node. `options` must live as long. ERR_BAD_OPTION when it is none of these, or when the process may not
 * have as many open files as its connections need. */
int bench_target_open(const char *text, const struct bench_target_options *options, struct bench_target *ret,
                      struct err *e);
void bench_target_close(struct bench_target *t);

/* A sink that compares with a pattern. Starts at byte `from`; `bytes` counts. */
struct bench_verify {
    struct pattern pattern;
    const char *key; /* for the message */
    uint64_t bytes;
    struct err *e;
};
int bench_verify_sink(void *verify, uint64_t offset, const void *p, size_t n);
/* ERR_CORRUPT with key and offset in the text, 0 when the piece is right. */
int bench_verify_piece(struct pattern p, const char *key, uint64_t offset, const void *from, size_t n,
                       struct err *e);

/*
 * `forebay explain PATH`, the part that the mount knows: which object or inode a path is, how it is open
 * there now, what took long about it lately, and whether the mount uses passthrough at all. What is on the
 * disks the node says (EXPLAIN of the wire protocol).
 */
#pragma once

#include "base/err.h"
#include "mount/stats.h"

#define EXPLAIN_NAME_BYTES 256
#define EXPLAIN_KEY_BYTES  1040

struct explain_report {
    char name[EXPLAIN_NAME_BYTES]; /* asked for: a name in the directory; "": the directory itself */
    char bucket[256];
    char key[EXPLAIN_KEY_BYTES]; /* of a mirror bucket: prefix of the mount included */
    uint64_t ino;                /* of a scratch bucket */
    bool is_scratch, is_directory;
    bool is_passthrough, is_read_only, is_openless; /* the mount, as in struct stats_report */
    char directory[1024];                           /* where it is mounted */
    char node[256];
    char reason[ERR_TEXT_MAX];
    uint32_t n_plain, n_passthrough; /* opens of it now, by this mount */
    bool is_kept;                    /* kept open after its last close */
    bool is_written;                 /* being written through this mount */
    uint32_t n_slow;                 /* of the mount's last slow operations those that were about it */
    struct stats_slow slow[STATS_SLOW_MAX];
};

/* Asks the mount that a path lies in; symbolic links are followed. -ENOENT, -ENOTTY: not in a mount of
 * forebay. */
int explain_ask(const char *path, struct explain_report *ret, struct err *e);

/*
 * One object being written from beginning to end. Nothing is visible to anyone before client_writer_commit
 * succeeds, and then the origin has it. One thread at a time.
 */
#pragma once

#include "client/client.h"
#include "client/client_file.h"

struct client_writer;

struct client_writer_open {
    struct slice bucket, key;
    uint64_t size_bytes;       /* UINT64_MAX: unknown. Known sizes go to the origin while they are written */
    struct slice content_type; /* may be empty */
    struct slice meta;         /* "name: value\n" lines, may be empty */
    struct slice if_match;     /* replace only this version */
    bool if_none_match;        /* only when there is none: ERR_PRECONDITION from the commit otherwise */
};

int client_writer_open(struct client *c, const struct client_writer_open *o, struct client_writer **ret,
                       struct err *e);
/* Appends. -EFBIG beyond an announced size; -EIO when the node restarted meanwhile: begin again. */
int client_writer_write(struct client_writer *w, const void *p, size_t n, struct err *e);
/* Publishes. ret_attr (may be NULL) points into the writer. After success only client_writer_free is allowed.
 */
int client_writer_commit(struct client_writer *w, const struct client_attr **ret_attr, struct err *e);
/* Drops what was not committed. NULL accepted. */
void client_writer_free(struct client_writer *w);
DEFINE_CLEANUP(struct client_writer, client_writer_free)

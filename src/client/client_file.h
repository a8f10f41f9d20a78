/*
 * One object open for reading. All bytes that it ever gives are of the version it was opened with: when the
 * node restarts, the file is opened again by that version's ETag, and reading goes on; when the object is
 * another one by then, or nobody can tell (an origin with neither ETags nor times, and another file of the
 * cache, or none), every later read fails with -ESTALE.
 *
 * Where the node passes descriptors, bytes are read from the cache's own file; else they come inline.
 */
#pragma once

#include "client/client.h"

struct client_file;

struct client_file_open {
    struct slice bucket, key;
    struct slice if_match;   /* ETag without quotes; empty: any version */
    uint64_t offset, expect; /* what will be read first, so that the origin is asked for the right range;
                                expect 0: unknown */
    bool no_fd;              /* do not use a descriptor: bytes inline */
    bool high_fd;            /* the descriptor's number is 1024 or more, which select(2) cannot use anyhow */
};

/* Attributes of the version that is open; strings live as long as the file. */
struct client_attr {
    uint64_t size_bytes;
    uint64_t mtime_ns;
    const char *etag;
    const char *content_type;
    const char *meta; /* "name: value\n" lines */
};

/* What its key is, or a directory on the way to it, was renamed from `from` to `to`. Where the node has to be
 * asked again for the version it is asked by that name. etag: what the object has there; empty: as before. */
void client_file_moved(struct client_file *f, struct slice from, struct slice to, struct slice etag);
/* -ENOENT, ERR_NO_BUCKET, ERR_PRECONDITION, ... with a text. Freed with client_file_close. */
int client_file_open(struct client *c, const struct client_file_open *o, struct client_file **ret,
                     struct err *e);
/* Ends it at the node too, which is told how much was read. NULL accepted. */
void client_file_close(struct client_file *f);
DEFINE_CLEANUP(struct client_file, client_file_close)
/* Closes n files of one client, not NULL, of which the node is told by one call. */
void client_file_close_all(struct client_file *const *v, size_t n);

const struct client_attr *client_file_attr(const struct client_file *f);
/* Bytes at `offset`: n, or fewer only at the end of the object; 0 beyond it. Any thread, several at once.
 * -ESTALE: the version is gone; -EIO, -ETIMEDOUT: the node does not answer; -EAGAIN: it would have to wait
 * (must_not_wait); the origin's errors with its words. */
ssize_t client_file_pread(struct client_file *f, void *p, size_t n, uint64_t offset, struct err *e);
/* Whether every byte may be read from the descriptor now. Never turns false again. */
bool client_file_is_complete(struct client_file *f);
/* For how long after the open the node would have answered another one alike without asking the origin,
 * unless a WATCH says otherwise; UINT64_MAX for ever. */
uint64_t client_file_valid_ms(const struct client_file *f);
/* What it holds in memory. */
size_t client_file_bytes(const struct client_file *f);
/* The O_RDONLY descriptor, or -1; borrowed, and only until the file's first read or close, because a later
 * one may open it again. Only all bytes of a complete file are known to be there. The node keeps them in
 * place until client_file_close, or until it ends. */
int client_file_fd(struct client_file *f);
/* Takes that descriptor away, for the caller to close, of a file whose bytes are read in another way; what is
 * read here from now on comes inline. -1: there is none, or it is being read from. */
int client_file_take_fd(struct client_file *f);

/* Walks a listing in byte order, page by page; memory is one page. One thread at a time. */
#pragma once

#include "client/client.h"

struct client_lister;

struct client_lister_open {
    struct slice bucket, prefix;
    char delimiter;     /* 0 or '/': keys below a '/' are shown as one entry "dir/" of kind WIRE_DIRECTORY */
    struct slice after; /* first key is behind this one; may be empty */
    uint32_t flags;     /* WIRE_POSIX, WIRE_FRESH */
    uint32_t page;      /* keys per request; 0: 1000 */
};

/* Never fails: the first request is made by client_lister_next. */
struct client_lister *client_lister_new(struct client *c, const struct client_lister_open *o);
void client_lister_free(struct client_lister *l);
DEFINE_CLEANUP(struct client_lister, client_lister_free)
/* What it holds in memory. NULL accepted. */
size_t client_lister_bytes(const struct client_lister *l);
/* 1 and the next entry (its slices are valid until the next call), 0 at the end, or an error. */
int client_lister_next(struct client_lister *l, struct wire_entry *ret, struct err *e);

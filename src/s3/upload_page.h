/*
 * One page of a listing of multipart uploads: the first ones behind a marker in the order of their keys and,
 * of one key, of their ids, in whatever order they are found. Memory is one page. Pure; one thread.
 */
#pragma once

#include "s3/uploads.h"

struct upload_page_entry {
    struct slice name;       /* key, or common prefix; heap */
    char id[UPLOAD_ID_SIZE]; /* empty: a common prefix */
    uint64_t created_ns;
};

struct upload_page {
    struct slice prefix, delimiter; /* delimiter empty: none */
    struct slice key_marker;        /* empty: from the beginning */
    struct slice id_marker; /* of the uploads of key_marker only those behind it; empty: none of them */
    size_t max;
    struct upload_page_entry *v; /* room for max, from upload_page_init; in order */
    size_t n;
    bool truncated; /* more follow the last one */
};

/* What is to be listed is filled in already. */
void upload_page_init(struct upload_page *p);
void upload_page_fini(struct upload_page *p);
void upload_page_add(struct upload_page *p, struct slice key, const char *id, uint64_t created_ns);

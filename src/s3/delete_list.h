/*
 * The list of keys in the body of a DeleteObjects. Pure.
 */
#pragma once

#include "base/arena.h"
#include "base/err.h"

#define DELETE_KEYS_MAX 1000

struct delete_key {
    struct slice key;     /* not empty; longer than any key, perhaps */
    struct slice etag;    /* bare; NULL where none is asked for, empty where it can be nobody's */
    struct slice version; /* empty: none is named */
    bool has_other;       /* a condition that is not here */
};

struct delete_list {
    struct delete_key *keys; /* 1 to DELETE_KEYS_MAX, as they came */
    size_t n;
    bool quiet; /* only failures are to be told */
};

/* In the arena, as are the texts, each once: room for DELETE_KEYS_MAX is taken there at once. ERR_PROTOCOL,
 * and what xml_parse gives, for a document that is no such list. */
int delete_list_read(struct slice document, struct arena *a, struct delete_list *ret, struct err *e);

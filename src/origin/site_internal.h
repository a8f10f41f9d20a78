/*
 * The read-only kind over plain HTTP servers, between its files: site.c (opening, reads, refusals),
 * site_index.c (index pages and manifests), site_list.c (listings).
 */
#pragma once

#include "origin/web_internal.h"

#define SITE_MAGIC     0x53495445u
#define SITE_INDEX_MAX (32 * MIB) /* bytes of one index page or manifest */
#define SITE_NAMES_MAX 2000000    /* names in one */
#define SITE_FOLDERS   16         /* folders remembered between pages of a listing */
#define SITE_FOLDER_MS 30000      /* for so long */

/* A name below a folder; a folder's own name ends with '/'. Of a manifest: the whole key. */
struct site_name {
    char *name;
    bool has_attr; /* the manifest says size and ETag */
    uint64_t size, mtime_ns;
    char *etag; /* may be NULL */
};

/* What a folder holds, sorted by name in byte order, each once. Never changed once made; counted. */
struct site_folder {
    _Atomic unsigned refs;
    struct site_name *v;
    size_t n, room;
};

void site_folder_unref(struct site_folder *f);
DEFINE_CLEANUP(struct site_folder, site_folder_unref)
/* Names out of an index page: HTML of a server's automatic index, or nginx's JSON. `path` is the decoded path
 * of the folder itself, with a slash at its end, for links that are written whole. */
int site_index_parse(struct slice text, struct slice path, struct site_folder **ret, struct err *e);
/* Whether a page says itself that it has ended. */
bool site_index_is_whole(struct slice text);
/* Lines "KEY[<TAB>SIZE[<TAB>ETAG[<TAB>TIME]]]"; '#' begins a comment. */
int site_manifest_parse(struct slice text, struct site_folder **ret, struct err *e);
/* Whether its last line is the comment "# end". */
bool site_manifest_is_whole(struct slice text);

struct site_memory {
    char *path; /* NULL: unused */
    struct site_folder *folder;
    uint64_t read_ms;
};

struct site {
    struct origin base; /* first */
    uint32_t magic;
    struct web web;
    struct web_endpoint endpoint; /* its path: of the folder, as written in the URL */
    char *path;                   /* decoded, with a slash at its end */
    char *manifest;               /* below the folder; NULL: index pages */

    struct lock lock; /* covers what follows */
    struct site_memory memory[SITE_FOLDERS];
    size_t next;
};

static inline struct site *site_of(struct origin *o)
{
    struct site *s = container_of(o, struct site, base);
    assert(s->magic == SITE_MAGIC);
    return s;
}

int site_list(struct origin *o, const struct origin_list *l, struct arena *a, struct origin_page *ret,
              struct err *e);
int site_stat(struct site *s, struct slice key, struct arena *a, struct origin_attr *ret, struct err *e);

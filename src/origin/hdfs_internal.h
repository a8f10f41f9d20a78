/*
 * The HDFS kind, between its files: hdfs.c (URL, opening, reads), hdfs_request.c (addressing, datanodes,
 * refusals), hdfs_json.c (documents), hdfs_list.c (directories), hdfs_put.c (writes).
 *
 * WebHDFS over HTTP: a namenode's own, or HttpFS, which speaks alike.
 */
#pragma once

#include "origin/file_internal.h"
#include "origin/tree.h"
#include "origin/web_internal.h"

#include <jansson.h>

#define HDFS_MAGIC     0x48444653u
#define HDFS_PATH_SIZE (2 * ORIGIN_KEY_MAX_BYTES + sizeof(FILE_TMP_PREFIX) + 64)

struct hdfs {
    struct origin base; /* first */
    uint32_t magic;
    struct web web;
    struct web_endpoint endpoint;
    char *root;                               /* "" or begins with '/', no slash at its end; not encoded */
    char *user, *token;                       /* one of them */
    atomic_bool no_batch, no_options, no_ids; /* what the server was found not to have */
    struct tree tree;
};

static inline struct hdfs *hdfs_of(struct origin *o)
{
    struct hdfs *h = container_of(o, struct hdfs, base);
    assert(h->magic == HDFS_MAGIC);
    return h;
}

/* What the server tells of a file or directory. */
struct hdfs_status {
    bool is_dir, is_file;
    uint64_t size, mtime_ms, id;
};

/* ---- documents (hdfs_json.c); pure ---- */

json_t *hdfs_json_parse(struct slice text, struct err *e);
static inline void hdfs_json_unrefp(json_t **j)
{
    json_decref(*j);
}
/* {"FileStatus": ...}. ERR_ORIGIN_FAILED for what is none. */
int hdfs_json_status(struct slice text, struct hdfs_status *ret, struct err *e);
/* {"boolean": true}. ERR_ORIGIN_SHORT for an empty body, which was cut. */
int hdfs_json_boolean(struct slice text, bool *ret, struct err *e);
/* {"FileStatuses": ...} or {"DirectoryListing": ...}: the entries into the folder. *ret_last is the last name
 * (heap, NULL when there is none), *ret_left how many follow. */
int hdfs_json_listing(struct slice text, struct tree_folder *f, char **ret_last, uint64_t *ret_left,
                      struct err *e);
/* Class and words of {"RemoteException": ...}, or of a body that is no such document. */
int hdfs_json_refused(const struct web_response *r, struct slice body, struct err *e);

/* ---- requests (hdfs_request.c) ---- */

extern const struct web_kind hdfs_web_kind;

/* "/ROOT/PATH", not encoded. */
int hdfs_path(const struct hdfs *h, const char *path, char ret[HDFS_PATH_SIZE], struct err *e);
/* A call with op; `path` is below the origin's own. Answers are collected into `body`, which may be NULL. */
struct hdfs_call {
    struct web_call web;
    char path[HDFS_PATH_SIZE];
};
int hdfs_call_init(struct hdfs_call *c, struct hdfs *h, enum web_method method, const char *counted,
                   const char *op, const char *path, struct buf *body, struct err *e);
void hdfs_call_fini(struct hdfs_call *c);
/* Whether curl sent it more than once: the first may have done it, and what the last was told is of that. */
bool hdfs_is_sent_again(const struct hdfs_call *c);
/* Attributes; -ENOENT. */
int hdfs_stat(struct hdfs *h, const char *path, atomic_bool *cancel, struct hdfs_status *ret, struct err *e);
void hdfs_etag(const struct hdfs_status *st, char ret[TREE_ETAG_SIZE]);
struct origin_attr hdfs_attr(const struct hdfs_status *st, struct arena *a);
/* ERR_ORIGIN_SHORT when it is another file by now, or there is none. */
int hdfs_check_unchanged(struct hdfs *h, const char *path, const struct hdfs_status *before,
                         atomic_bool *cancel, struct err *e);
/* The bytes [offset, offset + n) of the file that `st` is of, from whatever node has them: by its id, so that
 * those of a file that took its path never come; where the server knows no ids by the path. Calls on_body in
 * pieces; gives ERR_ORIGIN_SHORT when it were not so many, or the file is gone. */
int hdfs_open_range(struct hdfs *h, const char *path, const struct hdfs_status *st, uint64_t offset,
                    uint64_t n, atomic_bool *cancel, int (*on_body)(void *arg, const void *p, size_t n),
                    void *arg, struct err *e);
/* Creates the file, which must not be there, with the body. */
int hdfs_create(struct hdfs *h, const char *path, const struct origin_body *body, atomic_bool *cancel,
                struct err *e);

/* DELETE, not recursive. *ret_was_there as the server says. */
int hdfs_remove_path(struct hdfs *h, const char *path, bool *ret_was_there, struct err *e);

/* ---- verbs ---- */

int hdfs_read_folder(void *arg, const char *path, struct tree_folder **ret, struct err *e);
int hdfs_put(struct origin *o, const struct origin_put *p, const struct origin_body *body, struct arena *a,
             struct origin_attr *ret_attr, struct err *e);
int hdfs_remove(struct origin *o, struct slice key, struct slice if_match, struct err *e);
int hdfs_copy(struct origin *o, struct slice from, struct slice to, struct slice if_match, struct arena *a,
              struct origin_attr *ret_attr, struct err *e);

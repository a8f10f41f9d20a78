/*
 * The kinds of jobs: one row each, and the function that does one object.
 *
 * Every kind is idempotent per object: doing one again that is done already changes nothing.
 */
#pragma once

#include "base/buf.h"
#include "base/lock.h"
#include "object/object.h"

#include <stdatomic.h>

enum kind_over {
    KIND_OVER_ORIGIN, /* the listing of the source */
    KIND_OVER_CACHE,  /* what is cached of the source */
    KIND_OVER_HERE,   /* the same, and what is not in the origin yet */
};

/* URL: an origin that is no bucket. EITHER: a bucket or a URL, as the job's text says (ends.c). */
enum kind_end { KIND_NOWHERE, KIND_BUCKET, KIND_URL, KIND_EITHER };

struct kind_object {
    struct slice key;
    uint64_t size_bytes, mtime_ns; /* mtime 0: not known */
    uint64_t counted_bytes;        /* of a walk over what is cached those that are here, else all */
    bool is_unknown;               /* both could not be asked for */
    bool is_unfit;                 /* stands for names longer than any key, which begin so (origin.h) */
};

/* An object that the source was found to have: who removes at the target what the source lacks looks whether
 * it is still there, because a place that is away may answer as one without objects. Shared by the workers.
 */
struct kind_witness {
    struct lock lock; /* covers what follows */
    struct buf key;   /* empty: none yet */
};

/* What the work on one object gets. One thread's. */
struct kind_work {
    struct object_session *session;
    const struct job_spec *spec;
    uint64_t created_ns; /* when the job was asked for, by this machine's clock */
    struct slice source_bucket, source_prefix, target_bucket, target_prefix;
    bool to_origin;        /* the target is a URL: an origin that is no bucket */
    bool from_origin;      /* so is the source */
    bool from_tree;        /* the source's files may be written to where they are (ends.h) */
    uint64_t part_bytes;   /* of uploads to the target */
    unsigned sums;         /* what is to be known of what is sent, of enum digest_sum */
    bool modes;            /* mode, owner and time go along (ends.h) */
    bool has_dirs;         /* the target's directories are set when all that is in them is there */
    bool no_set, no_links; /* the target changes no attributes alone; it keeps no symbolic links */
    bool is_named;         /* what is worked on was named (listed, or failed before), not walked over */
    struct hasher *hasher; /* who computes MD5s beside; may be NULL */
    struct arena *arena;   /* empty at the start */
    /* Before n bytes move: waits as the rate says. -ECANCELED when the job is to stop. Any thread's. */
    int (*move)(void *arg, uint64_t n);
    /* Requests at a time of an upload, each of which is one of those that the job may have: waits for n of
     * them, as move; and gives them back, at once or in steps. */
    int (*take_requests)(void *arg, unsigned n);
    void (*give_requests)(void *arg, unsigned n);
    bool sends_parts; /* the upload of a large object has several (origin_parts_at_once) */
    void *arg;
    uint64_t read_here; /* out: bytes that were read from the source's descriptor */
    uint64_t bytes;     /* out: size of what was done */
    bool modes_lost;    /* out: its mode or owner is another one at the target, which did not take it */
    struct kind_witness *witness; /* of a sweep */
    struct slice version;         /* of the source, where that is one of several */
    struct slice line;            /* out, in the arena: the object's line of the manifest, without its key */
};

/* LEFT_OUT: the job is not about it, which only its origin could tell. */
enum kind_result { KIND_WORKED = 0, KIND_SKIPPED = 1, KIND_LEFT_OUT = 2 };

struct kind {
    const char *name, *doc;
    enum kind_over over;
    enum kind_end source, target;
    bool has_manifest; /* what was done is written down beside it */
    /* Verified when it returns: an enum kind_result, or an error. */
    int (*work)(struct kind_work *w, const struct kind_object *o, struct err *e);
    /* Before objects that were worked on count as done for good: what was done to them outlives kill -9.
     * NULL: it does when work returns. */
    int (*keep)(struct object_session *session, struct slice bucket, struct err *e);
    /* Of one of them, where keep gave -EIO: an error when it is one of those that do not. NULL: keep gives no
     * -EIO. */
    int (*kept)(struct object_session *session, struct slice bucket, struct slice key, struct err *e);
    /* After a walk whose target has_dirs: the same for the key of a directory. NULL: none. */
    int (*dir)(struct kind_work *w, const struct kind_object *o, struct err *e);
    /* With --delete, after a walk without failures: an object of the target. NULL: none. */
    int (*sweep)(struct kind_work *w, const struct kind_object *o, struct err *e);
};

/* NULL when there is none. */
const struct kind *kind_find(struct slice name);
/* "prefetch, evict, ..." */
const char *kind_names(void);

/* ---- kind_copy.c ---- */
int kind_copy(struct kind_work *w, const struct kind_object *o, struct err *e);
int kind_sync(struct kind_work *w, const struct kind_object *o, struct err *e);
int kind_sweep(struct kind_work *w, const struct kind_object *o, struct err *e);
int kind_export(struct kind_work *w, const struct kind_object *o, struct err *e);
int kind_import(struct kind_work *w, const struct kind_object *o, struct err *e);
int kind_export_dir(struct kind_work *w, const struct kind_object *o, struct err *e);
int kind_import_dir(struct kind_work *w, const struct kind_object *o, struct err *e);

/*
 * What a job works between: its source and its target, each a bucket, or a URL that becomes a guest of the
 * bucket table while the job runs.
 */
#pragma once

#include "jobs/job.h"
#include "jobs/kind.h"

struct ends {
    struct slice source_bucket, source_prefix, target_bucket, target_prefix; /* of the record, or a guest's */
    uint64_t requests_max; /* of the source's origin at a time */
    bool is_limited;       /* it has limits of bytes or requests a second */
    uint64_t part_bytes;   /* of uploads to the target */
    bool sends_parts;      /* several of them at a time, of one object */
    bool from_url, to_url; /* the source, the target is an origin that is no bucket */
    bool is_tree;          /* the source is a scratch bucket, whose files may be written to where they are */
    unsigned etags;        /* what ETags the target may give, of enum digest_sum (jobs/digest.h) */
    /* export and import of a bucket that has modes and owners, which is a scratch bucket or one with
     * posix=on: they go along, with times and symbolic links (net/posix_meta.h). Files at a URL then are what
     * they are: nothing is followed, and directories have names of their own. */
    bool modes;
    bool has_dirs; /* so do directories, whose times change with what is put into them */
    bool no_set;   /* what the target has already gets other attributes only together with its bytes */
    bool no_links; /* the target has no place for symbolic links */
    char source_guest[BUCKET_GUEST_NAME_SIZE], target_guest[BUCKET_GUEST_NAME_SIZE]; /* "": none */
};

/* A place at an origin: the settings of a bucket as lines "name=value\n", the last one of a name counts, and
 * a prefix in it. */
struct ends_place {
    struct slice settings, prefix;
};
/* Whether one may lie in the other: who walks over one and writes to the other would meet what it has
 * written. Endpoints are compared as they are written; accounts where both say one. Pure. */
bool ends_overlap(const struct ends_place *x, const struct ends_place *y, struct arena *a);

/* Whether a text names a whole bucket, a folder of it, or a URL. Any other prefix also begins names beside
 * what it means: `b/train` those of b/train-old/. Pure. */
bool ends_is_folder(const char *path);
/* Whether the record's source and target are what its kind takes, exist, and do not overlap; with `probe`
 * the origins of URLs are asked. ERR_BAD_OPTION names the fault. On success the ends must be closed. The
 * record must outlive them. */
int ends_open(struct object_service *objects, struct object_session *session, const struct job_record *r,
              const struct kind *k, bool probe, struct ends *ret, struct err *e);
void ends_close(struct object_service *objects, struct ends *x);

/*
 * What a job works between: its source and its target, each a bucket, or a URL that becomes a guest of the
 * bucket table while the job runs.
 */
#pragma once

#include "jobs/job.h"
#include "jobs/kind.h"

struct ends {
    struct slice source_bucket, source_prefix, target_bucket, target_prefix; /* of the record, or a guest's */
    uint64_t part_bytes;                                                     /* of uploads to the target */
    unsigned etags; /* what ETags the target may give, of enum digest_sum (jobs/digest.h) */
    char source_guest[BUCKET_GUEST_NAME_SIZE], target_guest[BUCKET_GUEST_NAME_SIZE]; /* "": none */
};

/* Whether the record's source and target are what its kind takes, exist, and do not overlap; with `probe`
 * the origins of URLs are asked. ERR_BAD_OPTION names the fault. On success the ends must be closed. The
 * record must outlive them. */
int ends_open(struct object_service *objects, struct object_session *session, const struct job_record *r,
              const struct kind *k, bool probe, struct ends *ret, struct err *e);
void ends_close(struct object_service *objects, struct ends *x);

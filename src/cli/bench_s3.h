/* Pages of S3 listings, as the S3 target of measurements reads them. */
#pragma once

#include "cli/bench_target.h"

struct bench_s3_page {
    size_t skip; /* bytes of each key that are left away: the target's prefix */
    bench_entry_fn entry;
    void *arg;
    struct buf *next; /* the continuation token; empty after the last page */
};

/* Calls `entry` for each object of a ListBucketResult. -EBADMSG with a text when it is none, or
 * when more keys follow and nothing says how to ask for them; `entry`'s own code when that ended it. */
int bench_s3_page_parse(struct bench_s3_page *page, struct slice xml, struct err *e);

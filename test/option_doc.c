/*
 * Prints what the tables of options say for the manual: `option_doc serve` the options of a node, `option_doc
 * bucket` the properties of buckets. scripts/man-doc puts it into docs/forebay.1.
 */
#include "base/config.h"
#include "namespace/bucket.h"

#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
    _cleanup_buf_ struct buf b = BUF_INIT(64 * KIB);
    int r = argc != 2                        ? -EINVAL
            : strcmp(argv[1], "serve") == 0  ? option_mdoc(&config_table, &b)
            : strcmp(argv[1], "bucket") == 0 ? option_mdoc_keys(&bucket_property_table, &b)
                                             : -EINVAL;
    if (r < 0) {
        (void)fprintf(stderr, "usage: option_doc serve|bucket\n");
        return 2;
    }
    return fwrite(b.p, 1, b.n, stdout) == b.n && fflush(stdout) == 0 ? 0 : 1;
}

/* forebay mount --stats: what a running mount does. */
#pragma once

#include "base/err.h"
#include "mount/stats.h"

#include <jansson.h>

/* Prints it: as JSON once, for people once, or on a terminal again every second until SIGINT, SIGTERM or the
 * end of the mount. */
int mount_stats_show(const char *directory, bool json, struct err *e);

/* What took long: for `forebay explain`, too. The second is one of them, on a line that goes on. */
json_t *mount_stats_slow_json(const struct stats_slow *v, uint32_t n);
void mount_stats_print_slow(const struct stats_slow *x);

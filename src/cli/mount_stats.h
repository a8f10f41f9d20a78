/* forebay mount --stats: what a running mount does. */
#pragma once

#include "base/err.h"

/* Prints it: as JSON once, for people once, or on a terminal again every second until SIGINT, SIGTERM or the
 * end of the mount. */
int mount_stats_show(const char *directory, bool json, struct err *e);

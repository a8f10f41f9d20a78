/*
 * Files of a library that stay open after their last close, so that the next open of one asks nobody. The
 * node tells which cached bytes it lets go (client_watch.h); what that names is closed and asked for anew.
 * What the node has acknowledged to anybody before an open, that open sees.
 *
 * Only whole files of buckets with an origin are kept, whose bytes are read from the cache's own file, at
 * most `max` of them, each for no longer than the bucket's `validate` lets an answer of the origin be used.
 * How much was read from a file is told to the node when it is let go.
 *
 * A process that was forked begins with nothing kept; files that were open read on.
 */
#pragma once

#include "client/client_file.h"

struct client_kept;      /* of one client */
struct client_kept_file; /* one open of a file */

/* max 0: nothing is kept; more than a process can have open: as many as that. Never NULL. The client must
 * outlive it. */
struct client_kept *client_kept_new(struct client *c, uint32_t max);
/* When no file is open any more. NULL accepted. */
void client_kept_free(struct client_kept *k);

/* As client_file_open. Closed with client_kept_close. */
int client_kept_open(struct client_kept *k, const struct client_file_open *o, struct client_kept_file **ret,
                     struct err *e);
void client_kept_close(struct client_kept_file *f); /* NULL accepted */
DEFINE_CLEANUP(struct client_kept_file, client_kept_close)
/* For reading; borrowed. */
struct client_file *client_kept_of(const struct client_kept_file *f);

/* How many are kept when nobody says: an eighth of the descriptors that this process may have, at most 32768.
 */
uint32_t client_kept_default(void);

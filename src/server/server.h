/*
 * A node: start-up, listeners, poller, workers, stop. `cli/serve.c` is the only caller.
 */
#pragma once

#include "base/config.h"
#include "base/err.h"

struct server;

/*
 * Locks the data directory (-EBUSY names the holder's pid), opens control store, disks, object service,
 * listeners. On return the node answers requests; *ret is stopped with server_stop and freed with
 * server_free.
 */
int server_start(const struct config *config, struct server **ret, struct err *e);
/* The one line for people: "forebay 0.1.0 ready: s3 http://127.0.0.1:7070 wire 127.0.0.1:7071 socket
 * /d/run/forebay.sock". */
const char *server_ready_line(const struct server *s);
/* Takes up the options of `config` that may change while the node runs, and reads the certificate again; the
 * others are not looked at. What is wrong is logged and changes nothing. By the thread that will stop the
 * server. */
void server_set_options(struct server *s, const struct config *config);
/* Stops listening, lets running requests end within the drain timeout, then marks a clean stop. */
void server_stop(struct server *s);
void server_free(struct server *s);

/*
 * The data directory of a node: who may use it, who the node is, and where its parts lie.
 *
 * | path             | contents                                                                             |
 * | ---------------- | ------------------------------------------------------------------------------------ |
 * | lock             | flock of the process that uses the directory; "PID COMMAND" for people               |
 * | credentials      | FOREBAY_ACCESS_KEY= (20 characters) and FOREBAY_SECRET_KEY= (40), mode 0600          |
 * | secret-key       | seals the secrets in control/ (namespace/seal.h), mode 0600, made once | | node-id |
 * 32 hex digits, minted once                                                           | | control/         |
 * the embedded control store                                                           | | cache/           |
 * the disk that is used when no --disk is given                                        | | run/forebay.sock |
 * Unix socket of the wire protocol; run/ is 0700                                       |
 *
 * A crash leaves each file whole or absent: they are written beside and renamed.
 */
#pragma once

#include "base/err.h"
#include "base/id.h"

#define DATA_DIR_ACCESS_KEY_LEN 20
#define DATA_DIR_SECRET_KEY_LEN 40

struct data_dir {
    int lock_fd;
    char node_id[ID_TEXT_SIZE];
    char *access_key, *secret_key; /* heap */
    char *control_path, *seal_path, *cache_path, *socket_path;
};

/* Makes what is missing and locks it: -EBUSY names the process that holds it. Close with data_dir_close. */
int data_dir_open(const char *path, struct data_dir *ret, struct err *e);
/* Unlocks. Accepts a zeroed struct with lock_fd -1. */
void data_dir_close(struct data_dir *d);

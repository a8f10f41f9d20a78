/*
 * The data directory of a node: who may use it, who the node is, and where its parts lie.
 *
 * | path             | contents                                                                             |
 * | ---------------- | ------------------------------------------------------------------------------------ |
 * | lock             | flock of the process that uses the directory; "PID COMMAND" for people               |
 * | credentials      | FOREBAY_ACCESS_KEY= (20 characters) and FOREBAY_SECRET_KEY= (40), mode 0600          |
 * | secret-key       | seals the secrets in control/ (namespace/seal.h), mode 0600, made once               |
 * | node-id          | 32 hex digits, minted once                                                           |
 * | disks            | the disks of the last start, for `forebay store check`; see below                    |
 * | control/         | the embedded control store                                                           |
 * | cache/           | the disk that is used when no --disk is given                                        |
 * | run/forebay.sock | Unix socket of the wire protocol; run/ is 0700                                       |
 *
 * disks, version 1: lines of text, each ended by a newline.
 *
 *     forebay-disks 1
 *     <directory>                one line for each disk, in their order: absolute, or "cache", which lies in
 *                                this directory
 *
 * Written at each start once the disks are open, so that it never names a directory that is no disk.
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
    char *control_path, *seal_path, *cache_path, *socket_path, *disks_path;
};

/* Makes what is missing and locks it: -EBUSY names the process that holds it. Close with data_dir_close. */
int data_dir_open(const char *path, struct data_dir *ret, struct err *e);
/* Unlocks. Accepts a zeroed struct with lock_fd -1. */
void data_dir_close(struct data_dir *d);

/* Notes the n disks of this start (paths[i] exist; relative ones are those of the working directory); n == 0:
 * the one in cache/. ERR_BAD_OPTION: a name holds a line end. What was noted before stays when it fails. */
int data_dir_note_disks(const struct data_dir *d, char *const *paths, size_t n, struct err *e);
/* Before the disks of a start are opened: -ENODEV when a directory that the last start had a disk in has
 * none, as the place has where a drive is not mounted. One that is not there at all may be of such a drive,
 * too, or was given up on purpose, and there are fresh drives: these are as good, where there is nothing that
 * only the disks have (`has_hard`). n == 0 as above. */
int data_dir_expect_disks(const struct data_dir *d, char *const *paths, size_t n, bool has_hard,
                          struct err *e);
/* The directories of the disks that the last start in `dir` noted; the array and each name are the caller's
 * to free. -ENOENT: none was noted; -EPROTONOSUPPORT: by another version; -EINVAL: not such a file. Takes no
 * lock. */
int data_dir_noted_disks(const char *dir, char ***ret_paths, size_t *ret_n, struct err *e);

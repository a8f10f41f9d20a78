/* Shared by crash_sys.c (the table), crash_data.c (bytes of files) and crash_name.c (names of files). */
#pragma once

#include "support/crash_sys.h"

#include "base/slice.h"

#include <sys/stat.h>
#include <sys/types.h>

struct crash_rng {
    uint64_t seed; /* as given: CRASH_DROP_ALL and CRASH_KEEP_ALL decide alone */
    uint64_t state;
    uint64_t percent; /* share of things that survive in this crash */
};

/* A random number below n. */
uint64_t crash_below(struct crash_rng *rng, uint64_t n);
/* Whether something that may or may not have reached the disk did. */
bool crash_keeps(struct crash_rng *rng);
/* The simulation itself failed: says so with errno and aborts. */
void crash_abort(const char *what, const char *path) __attribute__((noreturn));
/* Index of the file system that a path lies on. */
unsigned crash_fs_of(const char *path);

/* -- Bytes: one record per file (inode) with unsynced changes or a lost name. -- */

enum crash_change { CRASH_WRITE, CRASH_TRUNCATE, CRASH_FALLOCATE };

struct crash_file;

/* The record of a file, made when missing; it holds a descriptor of its own. */
struct crash_file *crash_data_of_fd(int fd);
struct crash_file *crash_data_of_path(const char *path);
/* A record lives while it has changes or references. */
struct crash_file *crash_data_ref(struct crash_file *f);
void crash_data_unref(struct crash_file *f);
/* Before a change: remembers the size and the bytes of [offset, offset + n). */
void crash_data_before(struct crash_file *f, uint64_t offset, uint64_t n);
/* After it: what it was. n: bytes written, new size, or bytes allocated. bytes: CRASH_WRITE; mode:
 * CRASH_FALLOCATE. */
void crash_data_after(struct crash_file *f, enum crash_change change, const void *bytes, uint64_t n,
                      int mode);
/* Instead of _after, when the change did not happen. */
void crash_data_cancel(struct crash_file *f);
/* The file's changes are on disk. */
void crash_data_synced(int fd);
void crash_data_synced_fs(unsigned fs);
/* Plays every file back to what is on disk, and the changes that `rng` chooses forward. */
void crash_data_crash(struct crash_rng *rng);
/* A copy of the file as it is now, at `path`: for a file that lost its last name. */
void crash_data_copy(const struct crash_file *f, const char *path);

/* -- Names: by absolute path. -- */

void crash_name_start(const char *graveyard);
void crash_name_stop(void);
/* A file or directory was made. */
void crash_name_made(const char *path);
/* lost: the file that had the name, from crash_data_of_path before the call; the reference is taken over. */
void crash_name_removed(const char *path, struct crash_file *lost);
/* lost: the file that `to` named before, or NULL. */
void crash_name_renamed(const char *from, const char *to, struct crash_file *lost);
/* fsync of a directory. */
void crash_name_synced(const char *dir);
void crash_name_synced_fs(unsigned fs);
void crash_name_crash(struct crash_rng *rng);

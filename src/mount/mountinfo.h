/* What is mounted at a directory, by the kernel's list of mounts: a file system that is asked may not answer,
 * and a process that asked its own mount could not be killed before it had answered itself. */
#pragma once

#include "base/macro.h"

#include <limits.h>
#include <stdbool.h>

struct mountinfo {
    unsigned major, minor; /* of the file system's device */
    bool is_ours;          /* mounted by `forebay mount`, whichever process */
    char flags[128];       /* of this mount: "rw,nosuid,nodev,relatime" */
    char type[64];         /* "fuse.forebay" */
    char source[256];      /* of ours the bucket, BUCKET or BUCKET/PREFIX; cut when it is longer */
};

/* A process for which a file system is still mounted, and where. */
struct mountinfo_holder {
    unsigned pid;
    bool is_here; /* it is our own, and every process of our mount namespace */
    char command[64];
    char where[PATH_MAX];
};

/* The mount on top at `directory`, which is compared as it is. False: nothing is mounted exactly there. */
bool mountinfo_find(const char *directory, struct mountinfo *ret);
/* Some process that has this file system mounted, in whichever mount namespace; of those that the caller may
 * look into. */
bool mountinfo_holder(const struct mountinfo *of, struct mountinfo_holder *ret);
/* As the list names a directory: absolute, without symbolic links, "..", or slashes at its end; as it was
 * given where it cannot be resolved. Never asks the file system that is mounted there. */
void mountinfo_resolve(const char *directory, char ret[PATH_MAX]);

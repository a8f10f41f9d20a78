/*
 * mount.forebay: how mount(8), /etc/fstab and systemd's mount units reach `forebay mount`.
 */
#pragma once

#include <stdbool.h>

/* Whether the program was started by one of the names that mount(8) looks for: "mount.forebay", and
 * "mount.fuse.forebay" for the type fuse.forebay. */
bool mount_helper_is(const char *program);

/* Everything behind the program's name: SPEC DIR [-sfnv] [-N NAMESPACE] [-t TYPE] [-o OPTIONS]. Mounts, and
 * gives the exit status as mount(8) understands it: 0 done, 1 wrongly called, 32 the mount failed. */
int mount_helper_run(int argc, char **argv);

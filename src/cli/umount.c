/* forebay umount: ends a mount, and tells whether all that was written has arrived. */
#include "cli/cli.h"
#include "cli/command.h"

#include "mount/mount.h"

struct umount_command {
    uint64_t timeout_ms;
};

static const struct option rows[] = {
    {.name = "timeout",
     .type = OPTION_DURATION,
     .offset = offsetof(struct umount_command, timeout_ms),
     .def = "60s",
     .min = 100,
     .max = 86400000,
     .arg = "TIME",
     .doc = "how long to wait for the mount's process to end"},
};

static const struct option_table table = {.rows = rows, .n_rows = ARRAY_SIZE(rows)};

static const struct command_usage usage = {
    .command = "forebay umount",
    .operands = "DIR",
    .about = "Writes out what the mount at DIR has pending, unmounts it and waits for its end.",
    .min_operands = 1,
    .max_operands = 1,
};

int cmd_umount(int argc, char **argv)
{
    struct umount_command c = {0};
    struct err e = {0};
    int n, status;
    if (command_parse(&usage, &table, &c, argc, argv, &n, &status)) {
        int r = mount_unmount(argv[0], c.timeout_ms, &e);
        status = r < 0 ? command_fail(usage.command, r, &e) : 0;
    }
    option_fini(&table, &c);
    return status;
}

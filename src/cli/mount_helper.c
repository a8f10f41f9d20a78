/*
 * mount.forebay: the arguments of mount(8) as those of forebay mount, which knows its own options in -o, too
 * ("data=/var/lib/forebay"). What mount(8) and systemd write there for themselves is dropped here.
 *
 * Invariant: nothing is mounted by a call that was understood in part.
 */
#include "cli/mount_helper.h"

#include "cli/cli.h"
#include "cli/command.h"
#include "mount/mountinfo.h"
#include "mount/stats.h"

#include <errno.h>
#include <string.h>
#include <sys/mount.h>

struct mount_helper {
    bool is_sloppy, is_fake, has_no_mtab, is_verbose, read_only, read_write;
    char *name_space, *type;
    struct option_list o;
};

static const struct option rows[] = {
    COMMAND_FLAG(mount_helper, is_sloppy, "sloppy", 's', "nothing: options that are not known stay errors"),
    COMMAND_FLAG(mount_helper, is_fake, "fake", 'f', "look at the arguments, and mount nothing"),
    COMMAND_FLAG(mount_helper, has_no_mtab, "no-mtab", 'n', "nothing: there is no such file"),
    COMMAND_FLAG(mount_helper, is_verbose, "verbose", 'v', "nothing"),
    COMMAND_FLAG(mount_helper, read_only, "read-only", 'r', "refuse every change"),
    COMMAND_FLAG(mount_helper, read_write, "read-write", 'w', "allow changes, as without it"),
    {.name = "namespace",
     .short_flag = 'N',
     .type = OPTION_STRING,
     .offset = offsetof(struct mount_helper, name_space),
     .arg = "NAMESPACE",
     .doc = "refused"},
    {.name = "type",
     .short_flag = 't',
     .type = OPTION_STRING,
     .offset = offsetof(struct mount_helper, type),
     .arg = "TYPE",
     .doc = "nothing: forebay and fuse.forebay are the same"},
    {.name = "options",
     .short_flag = 'o',
     .type = OPTION_LIST,
     .offset = offsetof(struct mount_helper, o),
     .arg = "OPTION[,OPTION]",
     .doc = "those of forebay mount without their dashes (data=DIR, passthrough=off, allow-other), and what "
            "fuse(8) "
            "knows; those that are mount(8)'s or systemd's are left to them"},
};

static const struct option_table table = {.rows = rows, .n_rows = ARRAY_SIZE(rows)};

static const struct command_usage usage = {
    .command = "mount.forebay",
    .operands = "BUCKET[/PREFIX] DIR",
    .about = "What mount(8) runs for the type forebay, in /etc/fstab and at its command line:\n"
             "forebay mount, with options in -o.",
    .min_operands = 2,
    .max_operands = 2,
};

enum { OPTIONS_MAX = 64 << 10 };

/* Exit statuses of mount(8). */
enum { MOUNT_WRONGLY_CALLED = 1, MOUNT_FAILED = 32 };

bool mount_helper_is(const char *program)
{
    const char *slash = strrchr(program, '/'), *name = slash ? slash + 1 : program;
    return strcmp(name, "mount.forebay") == 0 || strcmp(name, "mount.fuse.forebay") == 0;
}

/* What is for mount(8), systemd or nobody, and says nothing to a file system; and what libfuse does not know
 * by its name because it is so anyway. */
static bool is_for_others(const char *option)
{
    static const char *const words[] = {"defaults", "auto",    "noauto",  "user",  "nouser",
                                        "users",    "nousers", "owner",   "group", "_netdev",
                                        "_rnetdev", "nofail",  "relatime"};
    static const char *const beginnings[] = {"x-", "X-", "comment=", "user=", "helper=", "uhelper="};
    for (size_t i = 0; i < ARRAY_SIZE(words); i++)
        if (strcmp(option, words[i]) == 0)
            return true;
    for (size_t i = 0; i < ARRAY_SIZE(beginnings); i++)
        if (strncmp(option, beginnings[i], strlen(beginnings[i])) == 0)
            return true;
    return false;
}

/* What the kernel keeps of a mount by itself, and can change without its process. */
static const struct mount_flag {
    const char *name;
    unsigned long set, clear;
} mount_flags[] = {
    {"ro", MS_RDONLY, 0},        {"rw", 0, MS_RDONLY},         {"nosuid", MS_NOSUID, 0},
    {"suid", 0, MS_NOSUID},      {"nodev", MS_NODEV, 0},       {"dev", 0, MS_NODEV},
    {"noexec", MS_NOEXEC, 0},    {"exec", 0, MS_NOEXEC},       {"noatime", MS_NOATIME, 0},
    {"atime", 0, MS_NOATIME},    {"relatime", MS_RELATIME, 0}, {"norelatime", 0, MS_RELATIME},
    {"sync", MS_SYNCHRONOUS, 0}, {"async", 0, MS_SYNCHRONOUS}, {"dirsync", MS_DIRSYNC, 0},
};

static void change_flags(unsigned long *flags, char *options)
{
    for (char *one; (one = command_next_option(&options));)
        for (size_t k = 0; k < ARRAY_SIZE(mount_flags); k++)
            if (strcmp(one, mount_flags[k].name) == 0)
                *flags = (*flags & ~mount_flags[k].clear) | mount_flags[k].set;
}

/* What a process was begun with to refuse changes it does not give up with the kernel's flag. */
static int check_writable(const char *directory, struct err *e)
{
    struct stats_report report = {0};
    int r = stats_ask(directory, &report, e);
    if (r < 0)
        return err_prefix(e, r, "remount");
    return report.is_read_only
               ? err_set(e, -EROFS,
                         "%s: remount: it was mounted read-only and stays so; unmount it, and "
                         "mount it again without ro",
                         directory)
               : 0;
}

/* mount -o remount: mount(8) gives the options that fstab has for the mount, or without such a line those
 * that it has now, and behind them what is to be changed. That fstab says nothing of set-user-ID bits and
 * devices does not mean that they count: it did not when the file system was mounted. */
static int remount(struct option_list *given, bool read_only, const char *directory, struct err *e)
{
    struct mountinfo at;
    char where[PATH_MAX];
    unsigned long before = 0;
    mountinfo_resolve(directory, where);
    if (!mountinfo_find(where, &at) || !at.is_ours)
        return err_set(e, -EINVAL, "%s: remount: nothing of forebay is mounted there", directory);
    change_flags(&before, at.flags);
    unsigned long flags = before & (MS_NOSUID | MS_NODEV);
    for (size_t i = 0; i < given->n; i++)
        change_flags(&flags, given->v[i]);
    flags |= read_only ? MS_RDONLY : 0;
    int r = before & MS_RDONLY && !(flags & MS_RDONLY) ? check_writable(where, e) : 0;
    if (r < 0)
        return r;
    if (mount(NULL, where, NULL, MS_REMOUNT | flags, NULL) < 0)
        return err_set(e, -errno, "%s: remount: %s", directory, strerror(errno));
    return 0;
}

static bool has_option(const struct option_list *given, const char *name)
{
    for (size_t i = 0; i < given->n; i++) {
        const char *at = given->v[i];
        for (size_t n; *at; at += n + (at[n] == ',')) {
            n = command_option_length(at);
            if (slice_eq_str(slice_of(at, n), name))
                return true;
        }
    }
    return false;
}

/* What is left for forebay mount, separated by commas. */
static int sort_options(struct option_list *given, bool read_only, struct buf *kept, struct err *e)
{
    for (size_t i = 0; i < given->n; i++) {
        char *rest = given->v[i], *one;
        while ((one = command_next_option(&rest))) {
            if (one[0] && !is_for_others(one) && buf_printf(kept, "%s%s", kept->n ? "," : "", one) < 0)
                return err_set(e, ERR_BAD_OPTION, "-o: more than %zu bytes of options", kept->max);
        }
    }
    return read_only && buf_str(kept, kept->n ? ",ro" : "ro") < 0 ? -E2BIG : 0;
}

static int run(struct mount_helper *h, char **operands, struct err *e)
{
    _cleanup_buf_ struct buf options = BUF_INIT(OPTIONS_MAX);
    if (h->name_space)
        return err_set(e, ERR_BAD_OPTION, "-N %s: not possible; enter the namespace by nsenter(1) first",
                       h->name_space);
    if (has_option(&h->o, "remount"))
        return h->is_fake ? 0 : remount(&h->o, h->read_only, operands[1], e);
    int r = sort_options(&h->o, h->read_only, &options, e);
    if (r < 0 || h->is_fake)
        return r;
    char *argv[] = {"-o", options.p, "--", operands[0], operands[1], NULL};
    int skip = options.n > 0 ? 0 : 2; /* -o takes no value that is empty */
    return cmd_mount((int)ARRAY_SIZE(argv) - 1 - skip, argv + skip);
}

int mount_helper_run(int argc, char **argv)
{
    struct mount_helper h = {0};
    struct err e = {0};
    int n, status;
    if (command_parse(&usage, &table, &h, argc - 1, argv + 1, &n, &status)) {
        int r = run(&h, argv + 1, &e);
        status = r < 0 ? command_fail(usage.command, r, &e) : r;
    }
    option_fini(&table, &h);
    return status == 2 ? MOUNT_WRONGLY_CALLED : status != 0 ? MOUNT_FAILED : 0;
}

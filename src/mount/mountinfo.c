/*
 * The list of mounts (contract in mountinfo.h).
 *
 * Failure modes: without /proc nothing is found.
 */
#include "mount/mountinfo.h"

#include "base/sys.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PROC_NAME_MAX 64 /* of a file below /proc */

/* "\\040" stands for a space, and so on; where the text was cut it may end within one. */
static void unescape(char *p)
{
    char *to = p;
    for (; *p; p++) {
        unsigned code;
        if (p[0] == '\\' && strspn(p + 1, "01234567") >= 3 && sscanf(p + 1, "%3o", &code) == 1) {
            *to++ = (char)code;
            p += 3;
        } else {
            *to++ = *p;
        }
    }
    *to = '\0';
}

/* "ID PARENT MAJOR:MINOR ROOT WHERE OPTIONS [FIELD...] - TYPE SOURCE OPTIONS" */
static bool parse(const char *line, char where[PATH_MAX], struct mountinfo *ret)
{
    struct mountinfo m = {0};
    if (sscanf(line, "%*u %*u %u:%u %*s %4095s %127s", &m.major, &m.minor, where, m.flags) != 4)
        return false;
    unescape(where);
    const char *rest = strstr(line, " - ");
    if (rest && sscanf(rest + 3, "%63s %255s", m.type, m.source) == 2)
        unescape(m.source);
    m.is_ours = strcmp(m.type, "fuse.forebay") == 0;
    *ret = m;
    return true;
}

bool mountinfo_find(const char *directory, struct mountinfo *ret)
{
    _cleanup_fclose_ FILE *f = fopen("/proc/self/mountinfo", "re");
    _cleanup_free_ char *line = NULL;
    char where[PATH_MAX];
    struct mountinfo m;
    size_t room = 0;
    bool found = false;
    while (f && getline(&line, &room, f) >= 0) { /* the last one is on top */
        if (!parse(line, where, &m) || strcmp(where, directory) != 0)
            continue;
        *ret = m;
        found = true;
    }
    return found;
}

/* ---- other processes ---- */

static void read_command(unsigned pid, char *ret, size_t n)
{
    char path[PROC_NAME_MAX];
    (void)snprintf(path, sizeof(path), "/proc/%u/comm", pid);
    _cleanup_fclose_ FILE *f = fopen(path, "re");
    ret[0] = '\0';
    if (f && fgets(ret, (int)n, f))
        ret[strcspn(ret, "\n")] = '\0';
}

/* Where the process has it mounted. A device's number is soon another file system's. */
static bool find_same(unsigned pid, const struct mountinfo *of, char where[PATH_MAX])
{
    char path[PROC_NAME_MAX];
    (void)snprintf(path, sizeof(path), "/proc/%u/mountinfo", pid);
    _cleanup_fclose_ FILE *f = fopen(path, "re");
    _cleanup_free_ char *line = NULL;
    struct mountinfo m;
    size_t room = 0;
    while (f && getline(&line, &room, f) >= 0)
        if (parse(line, where, &m) && m.major == of->major && m.minor == of->minor &&
            strcmp(m.type, of->type) == 0 && strcmp(m.source, of->source) == 0)
            return true;
    return false;
}

bool mountinfo_holder(const struct mountinfo *of, struct mountinfo_holder *ret)
{
    ret->pid = (unsigned)getpid();
    ret->is_here = find_same(ret->pid, of, ret->where);
    bool found = ret->is_here;
    DIR *all = found ? NULL : opendir("/proc");
    struct dirent *d = NULL;
    while (all && !found && sys->readdir(all, &d) == 0 && d) { /* without it nobody is named */
        char *end;
        unsigned long pid = strtoul(d->d_name, &end, 10);
        if (end == d->d_name || *end != '\0' || !find_same((unsigned)pid, of, ret->where))
            continue;
        found = true;
        ret->pid = (unsigned)pid;
        read_command(ret->pid, ret->command, sizeof(ret->command));
    }
    if (all)
        (void)closedir(all);
    return found;
}

void mountinfo_resolve(const char *directory, char ret[PATH_MAX])
{
    char plain[PATH_MAX]; /* a slash at the end would have realpath(3) ask what is mounted there */
    size_t n = strnlen(directory, sizeof(plain) - 1);
    while (n > 1 && directory[n - 1] == '/')
        n--;
    memcpy(plain, directory, n);
    plain[n] = '\0';
    if (!realpath(plain, ret))
        memcpy(ret, plain, n + 1);
}

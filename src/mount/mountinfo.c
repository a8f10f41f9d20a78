/*
 * The list of mounts (contract in mountinfo.h).
 *
 * Failure modes: without /proc nothing is found.
 */
#include "mount/mountinfo.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* "\\040" stands for a space, and so on. */
static void unescape(char *p)
{
    char *to = p;
    for (; *p; p++) {
        unsigned code;
        if (p[0] == '\\' && sscanf(p + 1, "%3o", &code) == 1) {
            *to++ = (char)code;
            p += 3;
        } else {
            *to++ = *p;
        }
    }
    *to = '\0';
}

/* "ID PARENT MAJOR:MINOR ROOT WHERE OPTIONS [FIELD...] - TYPE SOURCE OPTIONS" */
static bool parse(const char *line, const char *directory, struct mountinfo *ret)
{
    char where[PATH_MAX];
    struct mountinfo m = {0};
    if (sscanf(line, "%*u %*u %u:%u %*s %4095s %127s", &m.major, &m.minor, where, m.flags) != 4)
        return false;
    unescape(where);
    if (strcmp(where, directory) != 0)
        return false;
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
    size_t room = 0;
    bool found = false;
    while (f && getline(&line, &room, f) >= 0) /* the last one is on top */
        found = parse(line, directory, ret) || found;
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

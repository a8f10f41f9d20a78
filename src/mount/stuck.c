#include "mount/stuck.h"

#include "base/sys.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STATUS_BYTES 8192 /* and the same of the line of pending signals */
#define STAT_BYTES   256  /* enough for what stands before the state */

char stuck_state(const char *stat)
{
    const char *end = strrchr(stat, ')');
    return end && end[1] == ' ' ? end[2] : 0;
}

static char state_of(pid_t pid, const char *task)
{
    char path[64], stat[STAT_BYTES];
    (void)snprintf(path, sizeof(path), "/proc/%d/task/%.16s/stat", (int)pid, task);
    _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, stat, sizeof(stat) - 1);
    if (n < 0)
        return 0;
    stat[n] = '\0';
    return stuck_state(stat);
}

bool stuck_is(pid_t pid)
{
    char path[64], first[16];
    unsigned n_waiting = 0, n_running = 0;
    (void)snprintf(first, sizeof(first), "%d", (int)pid);
    if (state_of(pid, first) != 'Z')
        return false;
    (void)snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
    DIR *dir = opendir(path);
    if (!dir)
        return false;
    struct dirent *d = NULL;
    int r;
    while ((r = sys->readdir(dir, &d)) == 0 && d) {
        char state = d->d_name[0] == '.' || strcmp(d->d_name, first) == 0 ? 0 : state_of(pid, d->d_name);
        n_running += state == 'R';
        n_waiting += state != 0 && state != 'R';
    }
    (void)closedir(dir);
    return r == 0 && n_waiting > 0 && n_running == 0;
}

bool stuck_has_kill(const char *status)
{
    static const char name[] = "\nSigPnd:";
    const char *at = strstr(status, name);
    return at && strtoull(at + strlen(name), NULL, 16) >> (SIGKILL - 1) & 1;
}

static pid_t process_of(const char *status)
{
    static const char name[] = "\nTgid:";
    const char *at = strstr(status, name);
    return at ? (pid_t)strtol(at + strlen(name), NULL, 10) : 0;
}

static bool has_ended(pid_t pid)
{
    return kill(pid, 0) < 0 && errno == ESRCH;
}

bool stuck_is_gone(pid_t tid, pid_t *process)
{
    char path[64], status[STATUS_BYTES];
    (void)snprintf(path, sizeof(path), "/proc/%d/status", (int)tid);
    _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, status, sizeof(status) - 1);
    if (n < 0) /* or hidden from us */
        return *process > 0 && has_ended(tid) && has_ended(*process);
    status[n] = '\0';
    *process = process_of(status);
    return stuck_has_kill(status);
}

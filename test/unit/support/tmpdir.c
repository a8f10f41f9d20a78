/*
 * Directories for tests.
 *
 * Invariants:
 *  1. Nothing outside the directory is touched: symbolic links are removed, not followed.
 *  2. What a test that failed has not given back goes when its program ends, but for one that ends by a
 * signal.
 *
 * Failure modes: abort; a test without its directory has nothing to test.
 */
#include "support/tmpdir.h"

#include <ftw.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#define LEFT_MAX 256 /* more than these are left where they are */

static struct {
    pthread_mutex_t mutex;
    pid_t pid; /* of the program: forked ones leave them alone */
    char *paths[LEFT_MAX];
} left = {.mutex = PTHREAD_MUTEX_INITIALIZER};

char *tmpdir_path(const char *dir, const char *name)
{
    char *path = NULL;
    if (asprintf(&path, "%s/%s", dir, name) < 0)
        abort();
    return path;
}

static int on_entry(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    return remove(path);
}

static int remove_tree(const char *path)
{
    return nftw(path, on_entry, /* descriptors= */ 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
}

static void remove_left(void)
{
    if (getpid() != left.pid)
        return;
    for (size_t i = 0; i < LEFT_MAX; i++)
        if (left.paths[i])
            (void)remove_tree(left.paths[i]); /* where threads of a failed test write still, some may stay */
}

static void note(const char *path)
{
    (void)pthread_mutex_lock(&left.mutex);
    if (!left.pid) {
        left.pid = getpid();
        (void)atexit(remove_left);
    }
    for (size_t i = 0; i < LEFT_MAX; i++)
        if (!left.paths[i]) {
            left.paths[i] = strdup(path);
            break;
        }
    (void)pthread_mutex_unlock(&left.mutex);
}

static void forget(const char *path)
{
    (void)pthread_mutex_lock(&left.mutex);
    for (size_t i = 0; i < LEFT_MAX; i++)
        if (left.paths[i] && strcmp(left.paths[i], path) == 0) {
            free(left.paths[i]);
            left.paths[i] = NULL;
            break;
        }
    (void)pthread_mutex_unlock(&left.mutex);
}

char *tmpdir_new(void)
{
    const char *base = getenv("TMPDIR");
    _cleanup_free_ char *template = tmpdir_path(base && *base ? base : "/tmp", "forebay-test-XXXXXX");
    if (!mkdtemp(template)) {
        perror(template);
        abort();
    }
    char *real = realpath(template, NULL);
    if (!real)
        abort();
    note(real);
    return real;
}

void tmpdir_free(char *path)
{
    if (!path)
        return;
    if (remove_tree(path) != 0)
        perror(path);
    forget(path);
    free(path);
}

/*
 * Directories for tests.
 *
 * Invariants:
 *  1. Nothing outside the directory is touched: symbolic links are removed, not followed.
 *
 * Failure modes: abort; a test without its directory has nothing to test.
 */
#include "support/tmpdir.h"

#include <ftw.h>
#include <string.h>

char *tmpdir_path(const char *dir, const char *name)
{
    char *path = NULL;
    if (asprintf(&path, "%s/%s", dir, name) < 0)
        abort();
    return path;
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
    return real;
}

static int on_entry(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    return remove(path);
}

void tmpdir_free(char *path)
{
    if (!path)
        return;
    if (nftw(path, on_entry, /* descriptors= */ 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT) != 0)
        perror(path);
    free(path);
}

/* Directories for tests: made under TMPDIR or /tmp, removed with all they hold. */
#pragma once

#include "base/macro.h"

/* Absolute, without symbolic links; the caller's to free through tmpdir_free. Aborts when it cannot be made.
 */
char *tmpdir_new(void);
/* Removes the directory with its contents and frees the path. NULL accepted. */
void tmpdir_free(char *path);
DEFINE_CLEANUP(char, tmpdir_free)
#define _cleanup_tmpdir_ _cleanup_(tmpdir_freep)

/* "DIR/NAME"; free(). */
char *tmpdir_path(const char *dir, const char *name);

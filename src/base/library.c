/*
 * Shared libraries that are loaded when the first of their functions is needed.
 *
 * Invariant: a library is `loaded` once all of its functions were found, and is never closed: what it started
 * may run until the process ends.
 *
 * Failure mode: what is not installed, or lacks a function, is told in the loader's own words.
 */
#include "base/library.h"

#include <dlfcn.h>

static int find_functions(struct library *l, void *handle, struct err *e)
{
    for (size_t i = 0; i < l->n; i++) {
        _cleanup_free_ char *name = NULL;
        if (asprintf(&name, "%s%s", l->prefix, l->names[i]) < 0)
            abort();
        l->functions[i] = dlsym(handle, name);
        if (!l->functions[i])
            return err_set(e, -ELIBACC, "%s", dlerror());
    }
    return 0;
}

int library_load(struct library *l, struct err *e)
{
    int r = 0;
    (void)pthread_mutex_lock(&l->mutex);
    if (!l->loaded) {
        void *handle = dlopen(l->file, RTLD_LAZY | RTLD_LOCAL);
        r = handle ? find_functions(l, handle, e)
                   : err_set(e, -ELIBACC, "%s (is its package installed?)", dlerror());
        l->loaded = r == 0;
        if (handle && r < 0)
            (void)dlclose(handle);
    }
    (void)pthread_mutex_unlock(&l->mutex);
    return r;
}

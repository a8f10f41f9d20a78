/* Contract in kept_memory.h. */
#include "support/kept_memory.h"

#include "base/macro.h"

#include <sys/wait.h>
#include <unistd.h>

int kept_memory_setup(void **state)
{
    return kept_new((struct kept **)state, NULL);
}

int kept_memory_teardown(void **state)
{
    kept_free(*state);
    return 0;
}

size_t kept_memory_count(struct kept *k, enum kept_kind kind)
{
    size_t n = 0;
    for (void *p = NULL; (p = kept_next(k, kind, p));)
        n++;
    return n;
}

void kept_memory_in_child(struct kept *k, void (*fn)(struct kept *k))
{
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        fn(k);
        _exit(0);
    }
    assert(pid > 0 && waitpid(pid, &status, 0) == pid);
    assert(status == 0);
}

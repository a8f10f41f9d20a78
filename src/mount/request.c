#include "mount/request.h"

#include <string.h>

#define OPCODE_AT     4
#define UNIQUE_AT     8
#define PID_AT        32
#define UNIQUE_RESENT (1ull << 63)

static _Thread_local uint64_t unique, changes;
static _Thread_local uint32_t opcode, pid;
static _Thread_local pid_t process;
static _Thread_local bool comes_again;

/* X(NAME, opcode): of linux/fuse.h. */
#define QUESTIONS(X)                                                                                         \
    X(LOOKUP, 1)                                                                                             \
    X(GETATTR, 3)                                                                                            \
    X(READLINK, 5)                                                                                           \
    X(OPEN, 14)                                                                                              \
    X(READ, 15)                                                                                              \
    X(STATFS, 17)                                                                                            \
    X(GETXATTR, 22)                                                                                          \
    X(LISTXATTR, 23)                                                                                         \
    X(OPENDIR, 27)                                                                                           \
    X(READDIR, 28)                                                                                           \
    X(READDIRPLUS, 44)

static uint32_t u32_at(const void *request, size_t n, size_t at)
{
    uint32_t v = 0;
    if (n >= at + sizeof(v))
        memcpy(&v, (const uint8_t *)request + at, sizeof(v));
    return v;
}

void request_begin(const void *request, size_t n)
{
    opcode = u32_at(request, n, OPCODE_AT);
    pid = u32_at(request, n, PID_AT);
    process = 0;
    unique = 0;
    changes = 0;
    if (n >= UNIQUE_AT + sizeof(unique))
        memcpy(&unique, (const uint8_t *)request + UNIQUE_AT, sizeof(unique));
    comes_again = unique & UNIQUE_RESENT;
    unique &= ~UNIQUE_RESENT;
}

uint64_t request_unique(void)
{
    return unique;
}

pid_t request_asker(void)
{
    return (pid_t)pid;
}

pid_t *request_process(void)
{
    return &process;
}

bool request_is_question(void)
{
    switch (opcode) {
#define X(NAME, number) case number:
        QUESTIONS(X)
#undef X
        return true;
    default:
        return false;
    }
}

bool request_comes_again(void)
{
    return comes_again;
}

uint64_t request_next_change(void)
{
    if (unique == 0 || changes >= REQUEST_CHANGES)
        return 0;
    return unique / 2 * REQUEST_CHANGES + changes++;
}

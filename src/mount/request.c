#include "mount/request.h"

#include <string.h>

#define UNIQUE_AT     8
#define UNIQUE_RESENT (1ull << 63)

static _Thread_local uint64_t unique, changes;
static _Thread_local bool comes_again;

void request_begin(const void *request, size_t n)
{
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

/* Records of WATCH_NAMES (contract in wire_names.h). */
#include "net/wire_names.h"

#include "base/le.h"
#include "base/macro.h"

#include <errno.h>
#include <string.h>

#define WORD         sizeof(uint64_t)
#define KNOWN_FLAGS  ((uint32_t)WIRE_NAME_GONE)
#define PADDED(n)    (((n) + WORD - 1) / WORD * WORD)
#define KEY_BYTES(h) ((size_t)(uint32_t)(h))

static_assert(WIRE_NAME_MAX_BYTES % sizeof(uint64_t) == 0, "the longest key needs no padding");

size_t wire_name_put(uint8_t ret[WIRE_NAME_RECORD_BYTES], struct slice key, uint32_t flags)
{
    assert(key.n > 0 && key.n <= WIRE_NAME_MAX_BYTES && (flags & ~KNOWN_FLAGS) == 0);
    size_t padded = PADDED(key.n);
    le_put32(ret, (uint32_t)key.n);
    le_put32(ret + 4, flags);
    memcpy(ret + WORD, key.p, key.n);
    memset(ret + WORD + key.n, 0, padded - key.n);
    return WORD + padded;
}

int wire_names_take(struct wire_names *p, const uint64_t *words, size_t n,
                    void (*each)(void *arg, struct slice key, uint32_t flags), void *arg)
{
    for (size_t i = 0; i < n; i++) {
        if (p->head == 0) {
            if (KEY_BYTES(words[i]) == 0 || KEY_BYTES(words[i]) > WIRE_NAME_MAX_BYTES ||
                (words[i] >> 32 & ~(uint64_t)KNOWN_FLAGS) != 0)
                return -EPROTO;
            p->head = words[i];
            p->filled = 0;
            continue;
        }
        le_put64(p->key + p->filled, words[i]);
        p->filled += WORD;
        if (p->filled < KEY_BYTES(p->head))
            continue;
        each(arg, slice_of((const char *)p->key, KEY_BYTES(p->head)), (uint32_t)(p->head >> 32));
        p->head = 0;
    }
    return 0;
}

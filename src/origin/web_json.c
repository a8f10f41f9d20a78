/*
 * JSON out of the answers of origins and of those who give out credentials. Where what came nests deeper than
 * any answer does it is refused before it is parsed: the parser's depth is that of a thread's stack.
 *
 * Some of it is keys and tokens. The parser has copies of all that it reads, in its tree and beside it, so
 * whatever it frees is wiped from the first parse on.
 */
#include "origin/web_internal.h"

#include "base/text.h"

#include <jansson.h>
#include <malloc.h>
#include <pthread.h>
#include <string.h>

/* Without a size in front of what is allocated: texts that the parser makes are freed by free(), too. */
static void free_wiped(void *p)
{
    if (p)
        explicit_bzero(p, malloc_usable_size(p));
    free(p);
}

/* What others have from malloc by now, and give back by this, is freed all the same. */
static void wipe_from_now_on(void)
{
    json_set_alloc_funcs(malloc, free_wiped);
}

json_t *web_json(struct slice text, size_t flags, json_error_t *ret_why)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    int r = pthread_once(&once, wipe_from_now_on);
    assert(r == 0);
    if (!text_json_is_deep(text))
        return json_loadb(text.p ? text.p : "", text.n, flags, ret_why);
    if (ret_why) {
        *ret_why = (json_error_t){.line = 1};
        (void)snprintf(ret_why->text, sizeof(ret_why->text), "nested too deep");
    }
    return NULL;
}

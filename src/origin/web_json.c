/*
 * JSON out of the answers of origins and of those who give out credentials. Where what came nests deeper than
 * any answer does it is refused before it is parsed: the parser's depth is that of a thread's stack.
 */
#include "origin/web_internal.h"

#include "base/text.h"

#include <jansson.h>

json_t *web_json(struct slice text, size_t flags, json_error_t *ret_why)
{
    if (!text_json_is_deep(text))
        return json_loadb(text.p ? text.p : "", text.n, flags, ret_why);
    if (ret_why) {
        *ret_why = (json_error_t){.line = 1};
        (void)snprintf(ret_why->text, sizeof(ret_why->text), "nested too deep");
    }
    return NULL;
}

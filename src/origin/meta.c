/*
 * Our own lines of metadata (contract in meta.h).
 *
 * 1. The client's lines stay as they were, in their order.
 */
#include "origin/meta.h"

bool meta_is_ours(struct slice name)
{
    return slice_eq_case(name, SLICE_LIT(META_TAGS)) || slice_eq_case(name, SLICE_LIT(META_CHECKSUM)) ||
           slice_eq_case(name, SLICE_LIT(META_EXPIRES)) || slice_eq_case(name, SLICE_LIT(META_VERSION)) ||
           slice_eq_case(name, SLICE_LIT(META_DIGESTS)) || slice_eq_case(name, SLICE_LIT(META_TAG_COUNT));
}

static bool is_line(struct slice line, const char *name, struct slice *ret_value)
{
    struct slice found = slice_split(&line, ':');

    *ret_value = slice_trim(line);
    return slice_eq_case(found, slice_str(name));
}

struct slice meta_get(struct slice meta, const char *name)
{
    while (meta.n) {
        struct slice value;

        if (is_line(slice_split(&meta, '\n'), name, &value))
            return value;
    }
    return SLICE_LIT("");
}

int meta_set(struct slice meta, const char *name, struct slice value, struct buf *ret)
{
    int status = 0;

    while (meta.n && status == 0) {
        struct slice line = slice_split(&meta, '\n'), former;

        if (line.n && !is_line(line, name, &former))
            status = buf_printf(ret, SLICE_FMT "\n", SLICE_ARG(line));
    }
    if (value.n && status == 0)
        status = buf_printf(ret, "%s: " SLICE_FMT "\n", name, SLICE_ARG(value));
    return status;
}

struct slice meta_with(struct slice meta, const char *name, struct slice value, size_t max, struct arena *a)
{
    _cleanup_buf_ struct buf b = BUF_INIT(max);

    if (value.n == 0 || meta_set(meta, name, value, &b))
        return meta;
    return arena_dup(a, buf_view(&b));
}

struct slice meta_without(struct slice meta, const char *name, struct arena *a)
{
    _cleanup_buf_ struct buf b = BUF_INIT(meta.n + 1);

    if (meta_get(meta, name).n == 0)
        return meta;
    if (meta_set(meta, name, SLICE_NULL, &b)) /* a line that no line feed ends grows by one */
        abort();
    return arena_dup(a, buf_view(&b));
}

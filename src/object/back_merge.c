/* Write-back: listings that show records and origin as one. Pure. */
#include "object/back.h"

void back_merge(const struct origin_entry *page, size_t n_page, const struct back_listed *mine, size_t n_mine,
                size_t max, struct origin_entry *ret, struct back_merged *ret_merged)
{
    struct back_merged out = {0};
    size_t i = 0, k = 0;
    while (i < n_page || k < n_mine) {
        int c = i == n_page ? 1 : k == n_mine ? -1 : slice_cmp(page[i].key, mine[k].key);
        bool shown = c < 0 || !mine[k].gone;
        if (shown && out.n == max) {
            out.cut = true;
            break;
        }
        out.last = c <= 0 ? page[i].key : mine[k].key;
        if (shown && c < 0)
            ret[out.n++] = page[i];
        else if (shown)
            ret[out.n++] = (struct origin_entry){
                .key = mine[k].key, .is_prefix = mine[k].is_prefix, .attr = mine[k].attr};
        i += c <= 0;
        k += c >= 0;
    }
    *ret_merged = out;
}

int back_token_encode(struct slice position, struct slice inner, struct buf *ret)
{
    int r = buf_printf(ret, "%zu:", position.n);
    r = r < 0 ? r : buf_slice(ret, position);
    return r < 0 ? r : buf_slice(ret, inner);
}

int back_token_decode(struct slice token, struct slice *ret_position, struct slice *ret_inner)
{
    ssize_t colon = slice_find(token, ':');
    uint64_t n;
    if (colon <= 0 || slice_u64(slice_sub(token, 0, (size_t)colon), &n) < 0)
        return -EINVAL;
    struct slice rest = slice_from(token, (size_t)colon + 1);
    if (n > rest.n)
        return -EINVAL;
    *ret_position = slice_sub(rest, 0, n);
    *ret_inner = slice_from(rest, n);
    return 0;
}

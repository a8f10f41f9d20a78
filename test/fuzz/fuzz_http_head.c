/*
 * Fuzz target: request heads, queries and ranges. A head that parses must give slices inside its text and the
 * same result when it is parsed again from exactly its own bytes; cut before its end it must not be complete.
 */
#include "net/http.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void check_inside(struct slice text, struct slice s)
{
    if (s.n > 0)
        assert(s.p >= text.p && s.p + s.n <= text.p + text.n);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static struct http_request r, again;
    struct slice text = slice_of(data, n);
    int status = 0;
    int k = http_parse_head(text, &r, &status, NULL);
    assert(k == 0 || k == -EAGAIN || (k == ERR_PROTOCOL && status >= 400));
    if (k != 0)
        return 0;
    assert(r.head_bytes <= n && r.n_headers <= HTTP_HEADERS_MAX);
    struct slice head = slice_of(data, r.head_bytes);
    check_inside(head, r.method);
    check_inside(head, r.target);
    check_inside(head, r.raw_path);
    check_inside(head, r.raw_query);
    for (size_t i = 0; i < r.n_headers; i++) {
        check_inside(head, r.headers[i].name);
        check_inside(head, r.headers[i].value);
        struct http_range range;
        if (http_parse_range(r.headers[i].value, n, &range) == 0)
            assert(range.n > 0 && range.offset < n && range.n <= n - range.offset);
    }
    k = http_parse_head(head, &again, &status, NULL);
    assert(k == 0 && again.head_bytes == r.head_bytes && again.n_headers == r.n_headers);
    k = http_parse_head(slice_of(data, r.head_bytes - 1), &again, &status, NULL);
    assert(k == -EAGAIN);
    struct arena *_cleanup_(arena_freep) a = arena_new(MIB);
    struct http_pair *pairs;
    size_t n_pairs;
    if (http_parse_query(r.raw_query, a, &pairs, &n_pairs) == 0)
        assert(n_pairs <= HTTP_PAIRS_MAX);
    return 0;
}

/*
 * Fuzz target: frame headers and bodies of the wire protocol. The first byte chooses the operation and the
 * direction. What decodes must encode to the same bytes again.
 */
#include "net/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void check_body(const struct wire_op_info *info, bool reply, struct slice body)
{
    void *w = calloc(1, MAX(info->req_bytes, info->rep_bytes));
    assert(w != NULL);
    int k = reply ? info->decode_rep(body, w) : info->decode_req(body, w);
    assert(k == 0 || k == ERR_PROTOCOL);
    if (k == 0) {
        _cleanup_buf_ struct buf b = BUF_INIT(WIRE_BODY_MAX_BYTES);
        k = reply ? info->encode_rep(w, &b) : info->encode_req(w, &b);
        assert(k == 0 && slice_eq(buf_view(&b), body));
    }
    free(w);
}

static void check_lists(struct slice body)
{
    struct slice rest = body;
    struct wire_entry entry;
    while (wire_entry_decode(&rest, &entry) == 0)
        ;
    struct wire_bucket bucket;
    rest = body;
    while (wire_bucket_decode(&rest, &bucket) == 0)
        ;
    struct wire_dirent dirent;
    rest = body;
    while (wire_dirent_decode(&rest, &dirent) == 0)
        ;
    struct wire_cached cached;
    rest = body;
    while (wire_cached_decode(&rest, &cached) == 0)
        ;
    struct wire_closed closed;
    rest = body;
    while (wire_closed_decode(&rest, &closed) == 0)
        ;
    struct slice text;
    (void)wire_error_decode(body, &text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct wire_header h;
    if (n >= WIRE_HEADER_BYTES && wire_header_decode(data, &h) == 0) {
        uint8_t again[WIRE_HEADER_BYTES];
        wire_header_encode(&h, again);
        assert(memcmp(again, data, sizeof(again)) == 0);
    }
    if (n == 0)
        return 0;
    struct slice body = slice_of(data + 1, n - 1);
    const struct wire_op_info *info = wire_op_info(data[0] & 0x7f);
    if (info)
        check_body(info, data[0] & 0x80, body);
    check_lists(body);
    return 0;
}

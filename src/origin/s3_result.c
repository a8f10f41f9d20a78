/*
 * The small documents that answer uploads and copies.
 *
 * Invariants: values that do not fit their field are left out whole; the root's name is always told.
 * Failure modes: ERR_ORIGIN_FAILED for what is no XML, with the line.
 */
#include "origin/s3_internal.h"

#include "base/text.h"

#define NS_PER_S ((uint64_t)1000000000)

static void take_text(char *to, size_t room, struct slice s)
{
    if (s.n >= room)
        return;
    if (s.n > 0)
        memcpy(to, s.p, s.n);
    to[s.n] = '\0';
}

uint64_t s3_date(struct slice text)
{
    uint64_t ns = 0;
    (void)text_parse_date(slice_trim(text), &ns);
    return ns - ns % NS_PER_S;
}

static int on_element(void *arg, unsigned depth, const char *parent, const char *name, struct slice text,
                      struct err *e)
{
    (void)parent, (void)e;
    struct s3_result *x = arg;
    text = slice_trim(text);
    if (depth == 1) {
        take_text(x->root, sizeof(x->root), slice_str(name));
    } else if (depth == 2 && strcmp(name, "UploadId") == 0) {
        take_text(x->upload_id, sizeof(x->upload_id), text);
    } else if (depth == 2 && strcmp(name, "LastModified") == 0) {
        x->mtime_ns = s3_date(text);
    } else if (depth == 2 && strcmp(name, "ETag") == 0) {
        if (text.n >= 2 && text.p[0] == '"' && text.p[text.n - 1] == '"')
            text = slice_sub(text, 1, text.n - 2);
        take_text(x->etag, sizeof(x->etag), text);
    }
    return 0;
}

int s3_result_parse(struct slice body, struct s3_result *ret, struct err *e)
{
    struct s3_result x = {0};
    struct web_xml *_cleanup_(web_xml_freep) xml = web_xml_new(MIB, on_element, &x);
    int r = web_xml_feed(xml, body.p, body.n, e);
    if (r == 0)
        r = web_xml_end(xml, e);
    if (r == 0)
        *ret = x;
    return r;
}

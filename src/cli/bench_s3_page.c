/* Pages of S3 listings by expat; contract in bench_s3.h. Texts are bounded, and unknown elements skipped. */
#include "cli/bench_s3.h"

#include <expat.h>

#define TEXT_BYTES (4 * KIB)

struct parse {
    struct bench_s3_page *page;
    XML_Parser parser;
    struct buf text, key;
    uint64_t size;
    bool listing, truncated;
    int result;
};

static bool is(const char *name, const char *wanted)
{
    return strcmp(name, wanted) == 0;
}

static void on_start(void *arg, const char *name, const char **attributes)
{
    struct parse *p = arg;
    buf_clear(&p->text);
    p->listing = p->listing || is(name, "ListBucketResult");
    if (is(name, "Contents"))
        buf_clear(&p->key);
}

static void on_text(void *arg, const char *s, int n)
{
    struct parse *p = arg;
    if (buf_append(&p->text, s, (size_t)n) < 0)
        p->result = -EBADMSG;
}

static void keep(struct parse *p, struct buf *to)
{
    buf_clear(to);
    if (buf_slice(to, buf_view(&p->text)) < 0)
        p->result = -EBADMSG;
}

static void on_end(void *arg, const char *name)
{
    struct parse *p = arg;
    if (p->result < 0)
        return;
    if (is(name, "Key"))
        keep(p, &p->key);
    else if (is(name, "Size"))
        p->result = slice_u64(buf_view(&p->text), &p->size) < 0 ? -EBADMSG : 0;
    else if (is(name, "IsTruncated"))
        p->truncated = slice_eq_str(buf_view(&p->text), "true");
    else if (is(name, "NextContinuationToken"))
        keep(p, p->page->next);
    else if (is(name, "Contents") && p->key.n >= p->page->skip)
        p->result = p->page->entry(p->page->arg, slice_from(buf_view(&p->key), p->page->skip), p->size);
    if (p->result < 0)
        (void)XML_StopParser(p->parser, XML_FALSE);
    buf_clear(&p->text);
}

int bench_s3_page_parse(struct bench_s3_page *page, struct slice xml, struct err *e)
{
    struct parse p = {.page = page, .text = BUF_INIT(TEXT_BYTES), .key = BUF_INIT(TEXT_BYTES)};
    p.parser = XML_ParserCreate(NULL);
    assert(p.parser);
    buf_clear(page->next);
    XML_SetUserData(p.parser, &p);
    XML_SetElementHandler(p.parser, on_start, on_end);
    XML_SetCharacterDataHandler(p.parser, on_text);
    enum XML_Status status = XML_Parse(p.parser, xml.p ? xml.p : "", (int)xml.n, XML_TRUE);
    XML_ParserFree(p.parser);
    buf_fini(&p.text);
    buf_fini(&p.key);
    if (!p.truncated)
        buf_clear(page->next);
    if (p.result < 0 && p.result != -EBADMSG)
        return p.result;
    if (p.result < 0 || status != XML_STATUS_OK || !p.listing)
        return err_set(e, -EBADMSG, "LIST: the answer is not a listing");
    if (p.truncated && page->next->n == 0)
        return err_set(e, -EBADMSG,
                       "LIST: the answer says that there are more keys, and not how to ask for them");
    return 0;
}

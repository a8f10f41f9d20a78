/*
 * XML writer and reader.
 *
 * 1. What the writer makes is well formed whatever bytes the texts hold, with one exception that is S3's own:
 * control characters that XML 1.0 cannot hold appear as numeric references; clients that list such keys ask
 * for encoding-type=url. Bytes that are no UTF-8 (names that a mount or an origin has) become U+FFFD, so that
 * one of them does not take a whole page from its readers.
 * 2. The reader's memory is bounded: depth, length of paths and texts and number of elements have limits, and
 *    documents with a document type are refused, so that no entity is ever expanded.
 */
#include "s3/xml.h"

#include "base/text.h"

#include <expat.h>

static void put(struct xml *x, struct slice s)
{
    if (x->status == 0)
        x->status = buf_slice(x->b, s);
}

static void put_tag(struct xml *x, const char *before, const char *name, const char *after)
{
    put(x, slice_str(before));
    put(x, slice_str(name));
    put(x, slice_str(after));
}

/* Bytes of the character that s begins with; 0: it begins with none that XML can hold. */
static size_t character(struct slice s)
{
    size_t n = 1;

    while (n < 4 && n <= s.n && !slice_is_utf8(slice_sub(s, 0, n)))
        n++;
    if (n > s.n || !slice_is_utf8(slice_sub(s, 0, n)))
        return 0;
    return n == 3 && memcmp(s.p, "\xef\xbf", 2) == 0 && (unsigned char)s.p[2] >= 0xbe ? 0
                                                                                      : n; /* U+FFFE, FFFF */
}

/* How what s begins with is written; NULL: as it is. *ret_n: its bytes. */
static const char *written_as(struct slice s, size_t *ret_n, char reference[8])
{
    unsigned char c = (unsigned char)s.p[0];

    *ret_n = 1;
    switch (c) {
    case '&':
        return "&amp;";
    case '<':
        return "&lt;";
    case '>':
        return "&gt;";
    case '"':
        return "&quot;";
    default:
        break;
    }
    if (c == 0) /* no XML has it, as a reference neither; others are written as S3 does */
        return "\xef\xbf\xbd";
    if (c < 0x20 || c == 0x7f) {
        (void)snprintf(reference, 8, "&#x%X;", c);
        return reference;
    }
    if (c < 0x80)
        return NULL;
    *ret_n = character(s);
    if (*ret_n)
        return NULL;
    *ret_n = 1;
    return "\xef\xbf\xbd";
}

static void put_escaped(struct xml *x, struct slice s)
{
    size_t from = 0, n;

    for (size_t i = 0; i < s.n; i += n) {
        char reference[8];
        const char *r = written_as(slice_from(s, i), &n, reference);

        if (!r)
            continue;
        put(x, slice_sub(s, from, i - from));
        put(x, slice_str(r));
        from = i + n;
    }
    put(x, slice_from(s, from));
}

void xml_start(struct xml *x)
{
    put(x, SLICE_LIT("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"));
}

void xml_root(struct xml *x, const char *name)
{
    put_tag(x, "<", name, " xmlns=\"" XML_S3_NAMESPACE "\">");
}

void xml_open(struct xml *x, const char *name)
{
    put_tag(x, "<", name, ">");
}

void xml_close(struct xml *x, const char *name)
{
    put_tag(x, "</", name, ">");
}

void xml_text(struct xml *x, const char *name, struct slice text)
{
    if (text.n == 0) {
        put_tag(x, "<", name, "/>");
        return;
    }
    xml_open(x, name);
    put_escaped(x, text);
    xml_close(x, name);
}

void xml_name(struct xml *x, bool url_encoded, const char *element, struct slice name)
{
    _cleanup_buf_ struct buf b = BUF_INIT(16 * KIB);

    if (!url_encoded) {
        xml_text(x, element, name);
        return;
    }
    if (text_uri_encode(&b, name, /* keep_slash= */ true))
        x->status = -E2BIG;
    xml_text(x, element, buf_view(&b));
}

void xml_u64(struct xml *x, const char *name, uint64_t value)
{
    char digits[24];

    (void)snprintf(digits, sizeof digits, "%llu", (unsigned long long)value);
    xml_text(x, name, slice_str(digits));
}

void xml_bool(struct xml *x, const char *name, bool value)
{
    xml_text(x, name, slice_str(value ? "true" : "false"));
}

void xml_owner(struct xml *x, const char *node_id)
{
    xml_text(x, "ID", slice_str(node_id));
    xml_text(x, "DisplayName", SLICE_LIT("forebay"));
}

void xml_chars(struct xml *x, struct slice text)
{
    put_escaped(x, text);
}

void xml_raw(struct xml *x, struct slice s)
{
    put(x, s);
}

struct reader {
    XML_Parser parser;
    xml_element_fn fn;
    void *arg;
    int status;
    const char *reason;
    unsigned depth;
    size_t elements;
    size_t path_ends[XML_DEPTH_MAX]; /* length of the path before each open element */
    char path[XML_PATH_MAX];
    size_t path_n;
    struct buf text; /* of the innermost element since its last child */
};

static void refuse(struct reader *r, int status, const char *reason)
{
    if (r->status)
        return;
    r->status = status;
    r->reason = reason;
    (void)XML_StopParser(r->parser, XML_FALSE);
}

static void XMLCALL on_start(void *arg, const XML_Char *name, const XML_Char **attributes)
{
    struct reader *r = arg;
    const char *colon = strrchr(name, ':');

    name = colon ? colon + 1 : name;
    size_t n = strlen(name);
    if (r->status)
        return;
    if (n == 0) {
        refuse(r, ERR_PROTOCOL, "an element has a prefix and no name");
        return;
    }
    if (r->depth == XML_DEPTH_MAX || r->path_n + n + 2 > sizeof r->path) {
        refuse(r, ERR_PROTOCOL, "elements nested too deep");
        return;
    }
    if (++r->elements > XML_ELEMENTS_MAX) {
        refuse(r, ERR_PROTOCOL, "too many elements");
        return;
    }
    r->path_ends[r->depth++] = r->path_n;
    if (r->path_n)
        r->path[r->path_n++] = '/';
    memcpy(r->path + r->path_n, name, n + 1);
    r->path_n += n;
    buf_clear(&r->text);
}

static void XMLCALL on_end(void *arg, const XML_Char *name)
{
    struct reader *r = arg;
    int status;

    if (r->status)
        return;
    assert(r->depth > 0);
    status = r->fn(r->arg, r->path, buf_view(&r->text));
    if (status)
        refuse(r, status, "refused");
    r->path_n = r->path_ends[--r->depth];
    r->path[r->path_n] = 0;
    buf_clear(&r->text);
}

static void XMLCALL on_text(void *arg, const XML_Char *p, int n)
{
    struct reader *r = arg;

    if (!r->status && buf_append(&r->text, p, (size_t)n))
        refuse(r, ERR_PROTOCOL, "text too long");
}

static void XMLCALL on_doctype(void *arg, const XML_Char *name, const XML_Char *system_id,
                               const XML_Char *public_id, int has_internal_subset)
{
    refuse(arg, ERR_PROTOCOL, "a document type is not allowed");
}

int xml_parse(struct slice document, xml_element_fn fn, void *arg, struct err *e)
{
    struct reader r = {.fn = fn, .arg = arg, .text = BUF_INIT(XML_TEXT_MAX)};
    int result;

    assert(fn);
    if (document.n > INT32_MAX)
        return err_set(e, ERR_PROTOCOL, "XML document too long");
    r.parser = XML_ParserCreate("UTF-8");
    if (!r.parser)
        abort();
    XML_SetUserData(r.parser, &r);
    XML_SetElementHandler(r.parser, on_start, on_end);
    XML_SetCharacterDataHandler(r.parser, on_text);
    XML_SetStartDoctypeDeclHandler(r.parser, on_doctype);
    if (XML_Parse(r.parser, document.p ? document.p : "", (int)document.n, 1) == XML_STATUS_OK)
        result = 0;
    else if (r.status)
        result = err_set(e, r.status, "XML line %lu: %s", XML_GetCurrentLineNumber(r.parser), r.reason);
    else
        result = err_set(e, ERR_PROTOCOL, "XML line %lu: %s", XML_GetCurrentLineNumber(r.parser),
                         XML_ErrorString(XML_GetErrorCode(r.parser)));
    XML_ParserFree(r.parser);
    buf_fini(&r.text);
    return result;
}

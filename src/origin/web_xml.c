/*
 * XML documents, read by expat as they arrive.
 *
 * A reader is told of each element at its end, with its text; that is all the services' flat documents need.
 * What the peer chooses is bounded here: bytes in all, depth, length of one text and of one tag. Document
 * types are refused, so that there are no entities but the five of XML and no amplification.
 *
 * Invariants:
 *  1. After the first error nothing more is parsed and on_end is not called again.
 *  2. text holds what stood directly inside the element that is open; an element inside it starts its own.
 *     What its element says to be percent-encoded (Encoded="true") is decoded when it is told.
 *
 * Failure modes: ERR_ORIGIN_FAILED with the line, or what on_end returned.
 */
#include "origin/web_internal.h"

#include "base/text.h"

#include <expat.h>

#define NAME_MAX_BYTES 47 /* longer names are known to nobody here and are cut */
/* A tag, or what begins as one: the parser (before expat 2.6) begins such a piece anew with all that comes of
 * it, so that one of megabytes takes minutes. Texts come in pieces. */
#define PIECE_MAX_BYTES (64 * KIB)

struct web_xml {
    XML_Parser parser;
    uint64_t max_bytes, seen;
    web_xml_fn on_end;
    void *arg;
    unsigned depth;
    int failed;
    struct err err;                                        /* what on_end said */
    char names[WEB_XML_DEPTH_MAX + 1][NAME_MAX_BYTES + 1]; /* [0] is "": around the root */
    struct buf text;
    bool is_encoded; /* says the element (Azure's, of names that XML cannot have) */
};

static void stop(struct web_xml *x, int code, const char *what)
{
    if (x->failed)
        return;
    x->failed = what ? err_set(&x->err, code, "answer, line %lu: %s",
                               (unsigned long)XML_GetCurrentLineNumber(x->parser), what)
                     : code;
    (void)XML_StopParser(x->parser, XML_FALSE);
}

static bool is_said_encoded(const char **attributes)
{
    for (size_t i = 0; attributes[i]; i += 2)
        if (strcmp(attributes[i], "Encoded") == 0)
            return strcmp(attributes[i + 1], "true") == 0;
    return false;
}

static void on_start_element(void *arg, const char *name, const char **attributes)
{
    struct web_xml *x = arg;
    if (x->failed)
        return;
    if (x->depth >= WEB_XML_DEPTH_MAX) {
        stop(x, ERR_ORIGIN_FAILED, "elements lie too deep in each other");
        return;
    }
    const char *colon = strrchr(name, ':');
    const char *local = colon ? colon + 1 : name;
    char *to = x->names[++x->depth];
    size_t n = MIN(strlen(local), (size_t)NAME_MAX_BYTES);
    memcpy(to, local, n);
    to[n] = '\0';
    buf_clear(&x->text);
    x->is_encoded = is_said_encoded(attributes);
}

static int decode(struct web_xml *x)
{
    struct buf plain = BUF_INIT(WEB_XML_TEXT_MAX);
    int r = text_uri_decode(&plain, buf_view(&x->text), /* plus_is_space= */ false);
    if (r < 0) {
        buf_fini(&plain);
        return r;
    }
    buf_fini(&x->text);
    x->text = plain;
    x->is_encoded = false;
    return 0;
}

static void on_end_element(void *arg, const char *name)
{
    (void)name;
    struct web_xml *x = arg;
    if (x->failed)
        return;
    assert(x->depth > 0);
    struct err e = {0};
    if (x->is_encoded && decode(x) < 0) {
        stop(x, ERR_ORIGIN_FAILED, "a text with a broken escape");
        return;
    }
    int r = x->on_end(x->arg, x->depth, x->names[x->depth - 1], x->names[x->depth], buf_view(&x->text), &e);
    x->depth--;
    buf_clear(&x->text);
    if (r != 0) {
        x->err = e;
        stop(x, r, NULL);
    }
}

static void on_text(void *arg, const char *p, int n)
{
    struct web_xml *x = arg;
    if (!x->failed && n > 0 && buf_append(&x->text, p, (size_t)n) < 0)
        stop(x, ERR_ORIGIN_FAILED, "a text is too long");
}

static void on_doctype(void *arg, const char *name, const char *sysid, const char *pubid, int has_internal)
{
    (void)name, (void)sysid, (void)pubid, (void)has_internal;
    stop(arg, ERR_ORIGIN_FAILED, "it declares a document type");
}

struct web_xml *web_xml_new(uint64_t max_bytes, web_xml_fn on_end, void *arg)
{
    assert(on_end && max_bytes <= INT32_MAX);
    struct web_xml *x = calloc(1, sizeof(*x));
    if (!x)
        abort();
    x->parser = XML_ParserCreate(NULL);
    if (!x->parser)
        abort();
    x->max_bytes = max_bytes;
    x->on_end = on_end;
    x->arg = arg;
    x->text = BUF_INIT(WEB_XML_TEXT_MAX);
    XML_SetUserData(x->parser, x);
    XML_SetElementHandler(x->parser, on_start_element, on_end_element);
    XML_SetCharacterDataHandler(x->parser, on_text);
    XML_SetStartDoctypeDeclHandler(x->parser, on_doctype);
    return x;
}

void web_xml_free(struct web_xml *x)
{
    if (!x)
        return;
    XML_ParserFree(x->parser);
    buf_fini(&x->text);
    free(x);
}

static bool is_piece_too_long(const struct web_xml *x)
{
    XML_Index at = XML_GetCurrentByteIndex(x->parser);
    return at >= 0 && x->seen > (uint64_t)at && x->seen - (uint64_t)at > PIECE_MAX_BYTES;
}

static int parse(struct web_xml *x, const void *p, size_t n, bool final, struct err *e)
{
    if (!x->failed && XML_Parse(x->parser, p, (int)n, final) == XML_STATUS_ERROR && !x->failed)
        x->failed = err_set(&x->err, ERR_ORIGIN_FAILED, "answer, line %lu: %s",
                            (unsigned long)XML_GetCurrentLineNumber(x->parser),
                            XML_ErrorString(XML_GetErrorCode(x->parser)));
    if (!x->failed && !final && is_piece_too_long(x))
        stop(x, ERR_ORIGIN_FAILED, "a tag is too long");
    if (x->failed && e)
        *e = x->err;
    return x->failed;
}

int web_xml_feed(struct web_xml *x, const void *p, size_t n, struct err *e)
{
    if (n == 0)
        return x->failed;
    if (n > x->max_bytes - x->seen)
        return x->failed = err_set(e, ERR_ORIGIN_FAILED, "the answer is longer than %llu bytes",
                                   (unsigned long long)x->max_bytes);
    x->seen += n;
    return parse(x, p, n, /* final= */ false, e);
}

int web_xml_end(struct web_xml *x, struct err *e)
{
    return parse(x, "", 0, /* final= */ true, e);
}

int web_xml_escape(struct buf *b, struct slice s)
{
    int r = 0;
    for (size_t i = 0; i < s.n && r == 0; i++) {
        unsigned char c = (unsigned char)s.p[i];
        if (c < ' ' && c != '\t' && c != '\n' && c != '\r')
            return -EILSEQ;
        switch (c) {
        case '&':
            r = buf_str(b, "&amp;");
            break;
        case '<':
            r = buf_str(b, "&lt;");
            break;
        case '>':
            r = buf_str(b, "&gt;");
            break;
        case '"':
            r = buf_str(b, "&quot;");
            break;
        default:
            r = buf_char(b, (char)c);
        }
    }
    return r;
}

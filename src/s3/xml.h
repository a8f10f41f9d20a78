/*
 * XML as S3 speaks it: a writer that escapes into a buffer, and a reader for the small documents that clients
 * send.
 *
 * Any thread; no state outside the arguments.
 */
#pragma once

#include "base/buf.h"
#include "base/err.h"

/* The writer keeps its first error (-E2BIG of the buffer) in `status`; later calls do nothing, so that
 * callers check once at the end. */
struct xml {
    struct buf *b;
    int status;
};

#define XML_S3_NAMESPACE "http://s3.amazonaws.com/doc/2006-03-01/"

void xml_start(struct xml *x); /* the <?xml ...?> line */
/* As xml_open("NAME") with S3's name space. */
void xml_root(struct xml *x, const char *name);
void xml_open(struct xml *x, const char *name);
void xml_close(struct xml *x, const char *name);
/* <name>text</name>, escaped. Control characters become numeric references, as S3 writes them. */
void xml_text(struct xml *x, const char *name, struct slice text);
/* A name of a listing, percent-encoded but for slashes where the client asks for encoding-type=url. */
void xml_name(struct xml *x, bool url_encoded, const char *element, struct slice name);
void xml_u64(struct xml *x, const char *name, uint64_t value);
void xml_bool(struct xml *x, const char *name, bool value);
/* Who owns all there is, inside <Owner>, <Initiator> or <Grantee>: the node's id, and a name for people. */
void xml_owner(struct xml *x, const char *node_id);
/* Text alone, escaped. */
void xml_chars(struct xml *x, struct slice text);
/* Already XML. */
void xml_raw(struct xml *x, struct slice s);

#define XML_DEPTH_MAX    8
#define XML_PATH_MAX     256
#define XML_TEXT_MAX     (16 * KIB)
#define XML_ELEMENTS_MAX 50000

/* Called at the end of each element with its path ("Delete/Object/Key"; without prefixes of namespaces, which
 * their writers choose) and the text directly inside it. Anything but 0 stops the parser and becomes its
 * result. */
typedef int (*xml_element_fn)(void *arg, const char *path, struct slice text);

/*
 * ERR_PROTOCOL when the document is not well formed, has a document type, or is larger than the limits above
 * in any way; the reason is in e.
 */
int xml_parse(struct slice document, xml_element_fn fn, void *arg, struct err *e);

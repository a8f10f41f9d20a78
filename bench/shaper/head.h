/* Heads of HTTP/1.x messages as far as a proxy must understand them: where a body ends, and what a request
 * is. */
#pragma once

#include "base/slice.h"

#define HEAD_MAX_BYTES (64 * KIB)

/* X(NAME, name in JSON) */
#define HEAD_VERBS(X)                                                                                        \
    X(GET, "GET")                                                                                            \
    X(HEAD, "HEAD")                                                                                          \
    X(PUT, "PUT")                                                                                            \
    X(POST, "POST")                                                                                          \
    X(DELETE, "DELETE")                                                                                      \
    X(OTHER, "other")

enum head_verb {
#define X(name, text) VERB_##name,
    HEAD_VERBS(X)
#undef X
        VERB_COUNT
};

/* Kinds of S3 requests, path style. X(NAME, name in JSON) */
#define HEAD_KINDS(X)                                                                                        \
    X(GET, "get")             /* of a whole object */                                                        \
    X(GET_RANGE, "get_range") /* with a Range header */                                                      \
    X(HEAD, "head")                                                                                          \
    X(LIST, "list") /* of a bucket's objects, or of the buckets */                                           \
    X(PUT, "put")                                                                                            \
    X(POST, "post")                                                                                          \
    X(DELETE, "delete")                                                                                      \
    X(OTHER, "other") /* also GET of a bucket's or an object's properties */

enum head_kind {
#define X(name, text) KIND_##name,
    HEAD_KINDS(X)
#undef X
        KIND_COUNT
};

enum body_form { BODY_NONE, BODY_LENGTH, BODY_CHUNKED, BODY_TO_END };

struct head {
    struct slice raw;            /* with the blank line */
    struct slice method, target; /* requests */
    int status;                  /* responses */
    enum body_form body;
    uint64_t body_bytes;       /* BODY_LENGTH */
    struct slice length_value; /* of Content-Length, within raw; empty when there is none */
    bool close;                /* the connection ends with this message */
    bool expects_continue, has_range;
    uint64_t range_bytes; /* of "bytes=A-B"; 0: another form, or none */
};

/* Length of the head at the beginning of `s`, blank line included; 0 when it is not complete. */
size_t head_length(struct slice s);
/* -EINVAL: not HTTP/1.x, or its length is ambiguous. Slices point into raw. */
int head_parse_request(struct slice raw, struct head *ret);
/* `verb` of the request tells whether there is a body. */
int head_parse_response(struct slice raw, enum head_verb verb, struct head *ret);
enum head_verb head_verb(struct slice method);
enum head_kind head_kind(const struct head *request);

/* Finds the end of a chunked body in a stream of bytes. Begin with zeros. */
struct chunk_scan {
    int state;
    uint64_t left;
    bool done;
};
/* Takes up to the end of the body; gives how many bytes belong to it, or -EINVAL. */
ssize_t chunk_scan(struct chunk_scan *c, struct slice s);

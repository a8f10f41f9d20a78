/*
 * Attributes of objects as they are kept with cached data (extent attribute blob) and in the attribute cache.
 *
 * | offset | size | blob                                                                            |
 * | ------ | ---- | ------------------------------------------------------------------------------- |
 * | 0      | 1    | format, 1                                                                       |
 * | 1      | 1    | flags: 1 content type and meta are known, 2 directory, 4 known not to exist,    |
 * |        |      | 8 no keys below it either                                                       |
 * | 2      | 8    | size in bytes, little endian                                                    |
 * | 10     | 8    | mtime, ns since 1970                                                            |
 * | 18     | 8    | when the origin last confirmed it, ns since 1970                                |
 * | 26     | 2+n  | ETag: length, bytes                                                             |
 * |        | 2+n  | content type                                                                    |
 * |        | 2+n  | meta lines                                                                      |
 */
#pragma once

#include "base/arena.h"
#include "base/buf.h"
#include "base/err.h"
#include "net/wire.h"
#include "origin/origin.h"

#define ATTR_BLOB_MAX_BYTES (12 * KIB)

struct attr {
    bool has_meta; /* content_type and meta are known (not from a listing) */
    bool is_directory;
    bool is_absent;    /* negative entry */
    bool is_childless; /* of an absent one: no keys lie below it either, so it is no directory */
    uint64_t size_bytes;
    uint64_t mtime_ns;
    uint64_t confirmed_ns; /* real time */
    struct slice etag, content_type, meta;
};

int attr_encode(const struct attr *a, struct buf *b);
/* Slices point into blob. ERR_CORRUPT. */
int attr_decode(struct slice blob, struct attr *ret);
struct attr attr_of_origin(const struct origin_attr *o, bool has_meta, uint64_t now_ns);
/* What a HEAD of the same version says besides its bytes, which may have changed alone. A checksum that was
 * verified here stays where the origin has none to tell. */
void attr_take_meta(struct attr *a, const struct origin_attr *now, struct arena *arena);
/* The same of the checksum alone, which `before` may name: metadata of the same version. */
void attr_keep_checksum(struct attr *a, struct slice before, struct arena *arena);
/* Whether two times of the last change that an origin told can be the same: services round some of them to
 * seconds. One that is not known (0) can be any. Who changes metadata alone changes this time, but no ETag.
 */
bool attr_same_time(uint64_t a_ns, uint64_t b_ns);
/* Copies the strings into the arena. */
void attr_to_wire(const struct attr *a, struct arena *arena, struct wire_attr *ret);

/* Encoding of attributes; the format is in the header. Bytes come from disk, so every length is checked. */
#include "namespace/attr.h"

#include "base/le.h"
#include "origin/meta.h"

#define NS_PER_S 1000000000ull

enum {
    ATTR_FORMAT = 1,
    ATTR_HAS_META = 1,
    ATTR_DIRECTORY = 2,
    ATTR_ABSENT = 4,
    ATTR_CHILDLESS = 8,
    ATTR_FIXED_BYTES = 26
};

int attr_encode(const struct attr *a, struct buf *b)
{
    uint8_t head[ATTR_FIXED_BYTES] = {
        ATTR_FORMAT, (uint8_t)((a->has_meta ? ATTR_HAS_META : 0) | (a->is_directory ? ATTR_DIRECTORY : 0) |
                               (a->is_absent ? ATTR_ABSENT : 0) | (a->is_childless ? ATTR_CHILDLESS : 0))};
    le_put64(head + 2, a->size_bytes);
    le_put64(head + 10, a->mtime_ns);
    le_put64(head + 18, a->confirmed_ns);
    struct le_writer w = le_writer_of(b);
    le_add(&w, slice_of(head, sizeof(head)));
    le_add_text(&w, a->etag);
    le_add_text(&w, a->content_type);
    le_add_text(&w, a->meta);
    return le_add_end(&w);
}

int attr_decode(struct slice blob, struct attr *ret)
{
    if (blob.n < ATTR_FIXED_BYTES || blob.p[0] != ATTR_FORMAT)
        return ERR_CORRUPT;
    unsigned flags = (uint8_t)blob.p[1];
    struct attr a = {
        .has_meta = flags & ATTR_HAS_META,
        .is_directory = flags & ATTR_DIRECTORY,
        .is_absent = flags & ATTR_ABSENT,
        .is_childless = flags & ATTR_CHILDLESS,
        .size_bytes = le_get64(blob.p + 2),
        .mtime_ns = le_get64(blob.p + 10),
        .confirmed_ns = le_get64(blob.p + 18),
    };
    struct le_reader rest = le_reader_of(slice_from(blob, ATTR_FIXED_BYTES));
    a.etag = le_take_text(&rest, UINT16_MAX);
    a.content_type = le_take_text(&rest, UINT16_MAX);
    a.meta = le_take_text(&rest, UINT16_MAX);
    if (!le_took_all(&rest))
        return ERR_CORRUPT;
    *ret = a;
    return 0;
}

struct attr attr_of_origin(const struct origin_attr *o, bool has_meta, uint64_t now_ns)
{
    return (struct attr){
        .has_meta = has_meta,
        .size_bytes = o->size_bytes,
        .mtime_ns = o->mtime_ns,
        .confirmed_ns = now_ns,
        .etag = o->etag,
        .content_type = o->content_type,
        .meta = o->meta,
    };
}

void attr_take_meta(struct attr *a, const struct origin_attr *now, struct arena *arena)
{
    struct slice before = a->meta;
    a->has_meta = true;
    a->mtime_ns = now->mtime_ns > 0 ? now->mtime_ns : a->mtime_ns;
    a->content_type = now->content_type;
    a->meta = now->meta;
    attr_keep_checksum(a, before, arena);
}

void attr_keep_checksum(struct attr *a, struct slice before, struct arena *arena)
{
    struct slice sum = meta_get(before, META_CHECKSUM);
    if (sum.n > 0 && meta_get(a->meta, META_CHECKSUM).n == 0)
        a->meta = meta_with(a->meta, META_CHECKSUM, sum, ORIGIN_META_MAX_BYTES, arena);
}

bool attr_same_time(uint64_t a_ns, uint64_t b_ns)
{
    uint64_t apart_ns = a_ns > b_ns ? a_ns - b_ns : b_ns - a_ns;
    return a_ns == 0 || b_ns == 0 || apart_ns < NS_PER_S;
}

void attr_to_wire(const struct attr *a, struct arena *arena, struct wire_attr *ret)
{
    *ret = (struct wire_attr){
        .kind = a->is_directory ? WIRE_DIRECTORY : WIRE_FILE,
        .size_bytes = a->size_bytes,
        .mtime_ns = a->mtime_ns,
        .etag = arena_dup(arena, a->etag),
        .content_type = arena_dup(arena, a->content_type),
        .meta = arena_dup(arena, a->meta),
    };
}

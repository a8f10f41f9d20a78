/*
 * Lists of completions (contract in complete_list.h).
 *
 * 1. Never more parts than there is room for, whatever their numbers are.
 */
#include "s3/complete_list.h"

#include "s3/condition.h"
#include "s3/part_list.h"
#include "s3/xml.h"

struct reader {
    struct arena *arena;
    struct complete_part *parts;
    size_t n;
    bool in_part;
};

/* "/ChecksumCRC32" and its kin; the rest of what is in a part is not looked at. */
static int on_checksum(struct reader *r, struct complete_part *part, struct slice name, struct slice text)
{
    const struct slice prefix = SLICE_LIT("/Checksum");

    if (!slice_starts(name, prefix))
        return 0;
    for (size_t i = CHECKSUM_NONE + 1; i < CHECKSUM_MD5; i++) {
        if (!slice_eq_str(slice_from(name, prefix.n), checksum_name((enum checksum_kind)i)))
            continue;
        if (part->sum_kind != CHECKSUM_NONE)
            return ERR_PROTOCOL;
        part->sum_kind = (enum checksum_kind)i;
        part->sum = arena_dup(r->arena, slice_trim(text));
    }
    return 0;
}

static int on_element(void *arg, const char *path, struct slice text)
{
    const struct slice prefix = SLICE_LIT("CompleteMultipartUpload/Part");
    struct reader *r = arg;
    struct slice name = slice_str(path);
    struct complete_part *part;
    const char *reason;

    if (!slice_starts(name, prefix))
        return 0;
    name = slice_from(name, prefix.n);
    if (!r->in_part) {
        if (r->n == PART_LIST_NUMBER_MAX)
            return ERR_PROTOCOL;
        r->parts[r->n] = (struct complete_part){0};
        r->in_part = true;
    }
    part = &r->parts[r->n];
    if (slice_eq_str(name, "/PartNumber")) {
        if (part->number || part_list_number(slice_trim(text), &part->number, &reason))
            return ERR_PROTOCOL;
    } else if (slice_eq_str(name, "/ETag")) {
        if (part->etag.p)
            return ERR_PROTOCOL;
        part->etag = condition_bare_etag(arena_dup(r->arena, text));
    } else if (name.n == 0) {
        r->in_part = false;
        r->n++;
        return part->number && part->etag.n ? 0 : ERR_PROTOCOL;
    }
    return on_checksum(r, part, name, text);
}

int complete_list_read(struct slice document, struct arena *a, const struct complete_part **ret,
                       size_t *ret_n, struct err *e)
{
    struct reader r = {.arena = a, .parts = arena_alloc(a, PART_LIST_NUMBER_MAX * sizeof r.parts[0])};
    int status = xml_parse(document, on_element, &r, e);

    if (status == 0 && r.n == 0)
        status = ERR_PROTOCOL;
    if (status)
        return status;
    *ret = r.parts;
    *ret_n = r.n;
    return 0;
}

/*
 * A view of one version of one blob (origin.version), of an account that keeps versions. It is read and never
 * written (origin.c).
 *
 * What was there at a time is not told: an account remembers when a version was made, and not when a blob was
 * removed, so that what had gone by then would come back. origin.as_of is refused.
 *
 * Invariant: nothing is given of which the service does not say that it is of the version asked for. One that
 * knows no versions (Azurite) answers with the blob of now, and says nothing.
 *
 * Failure modes: those of web_perform; ERR_ORIGIN_REFUSED where the answer is of another version.
 */
#include "origin/az_internal.h"

#include "base/text.h"

#define ID_PARAMETER "versionid"

/* As the service writes it: 2026-01-31T23:59:59.1234567Z. */
static bool is_version(struct slice s)
{
    uint64_t ns;
    bool is_iso = s.n > 0 && s.n <= 40 && s.p[0] >= '0' && s.p[0] <= '9' && slice_ends(s, SLICE_LIT("Z"));
    return is_iso && slice_find(s, ' ') < 0 && text_parse_date(s, &ns) == 0;
}

int az_view_open(struct az *z, const struct origin_options *o, struct err *e)
{
    if (o->as_of && o->as_of[0])
        return err_set(e, ERR_BAD_OPTION,
                       "origin.as_of: an account of az:// does not tell when a blob was removed, and so not "
                       "what was there at a time: name one version of one blob (origin.version), or have the "
                       "container restored to that time, and import that");
    if (!o->version || !o->version[0])
        return 0;
    if (!is_version(slice_str(o->version)))
        return err_set(e, ERR_BAD_OPTION,
                       "origin.version %.100s: a version of az:// is a time as 2026-01-31T23:59:59.1234567Z",
                       o->version);
    z->version = web_dup(o->version);
    return web_cut_object(z->prefix, &z->version_key, e);
}

int az_view_pin(struct web_call *c, const struct origin_get *g, struct arena *scratch, struct err *e)
{
    const struct az *z = az_of(c->web->origin);
    if (!slice_eq_str(g->key, z->version_key))
        return err_set(e, -ENOENT, "only %s is seen here", z->version_key);
    web_query(c, SLICE_LIT(ID_PARAMETER), slice_str(z->version));
    return web_pin_etag(c, g, scratch, e);
}

int az_view_check(const struct web_call *c, struct err *e)
{
    const struct az *z = az_of(c->web->origin);
    const char *told = c->response.version_id;
    if (strcmp(told, z->version) == 0)
        return 0;
    return err_set(e, ERR_ORIGIN_REFUSED, "asked for version %s, the answer is of %s%.100s", z->version,
                   told[0] ? "version " : "no version: the service keeps none", told);
}

int az_view_list(struct az *z, const struct origin_list *l, struct arena *a, struct origin_page *ret,
                 struct err *e)
{
    struct slice key = slice_str(z->version_key);
    struct origin_entry x;
    *ret = (struct origin_page){0};
    if (!web_list_one(key, l, a, &x))
        return 0;
    int r = x.is_prefix ? 0 : web_head(&z->web, key, SLICE_NULL, a, &x.attr, e);
    if (r < 0)
        return err_prefix(e, r, "version %s of %.200s", z->version, z->version_key);
    x.attr.meta = SLICE_NULL;
    *ret = (struct origin_page){.entries = arena_alloc(a, sizeof(x)), .n = 1};
    ret->entries[0] = x;
    return 0;
}

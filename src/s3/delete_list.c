/*
 * Lists of deletions (contract in delete_list.h).
 *
 * 1. Never more keys than there is room for.
 */
#include "s3/delete_list.h"

#include "s3/condition.h"
#include "s3/xml.h"

struct reader {
    struct arena *arena;
    struct delete_list *list;
    bool in_object;
};

static int on_field(struct reader *r, struct delete_key *k, const char *name, struct slice text)
{
    if (strcmp(name, "/Key") == 0) {
        if (k->key.n)
            return ERR_PROTOCOL;
        k->key = arena_dup(r->arena, text);
    } else if (strcmp(name, "/ETag") == 0) {
        if (k->etag.p) /* of two conditions one would be lost */
            return ERR_PROTOCOL;
        k->etag = condition_bare_etag(arena_dup(r->arena, text));
    } else if (strcmp(name, "/VersionId") == 0) {
        if (k->version.p)
            return ERR_PROTOCOL;
        k->version = arena_dup(r->arena, text);
    } else if (strcmp(name, "/LastModifiedTime") == 0 || strcmp(name, "/Size") == 0) {
        k->has_other = true;
    } else if (name[0] == '\0') {
        r->in_object = false;
        r->list->n++;
        return k->key.n ? 0 : ERR_PROTOCOL;
    }
    return 0;
}

static int on_element(void *arg, const char *path, struct slice text)
{
    const struct slice prefix = SLICE_LIT("Delete/Object");
    struct reader *r = arg;

    if (strcmp(path, "Delete/Quiet") == 0) {
        r->list->quiet = slice_eq_case(slice_trim(text), SLICE_LIT("true"));
        return 0;
    }
    if (!slice_starts(slice_str(path), prefix))
        return 0;
    if (!r->in_object) {
        if (r->list->n == DELETE_KEYS_MAX)
            return ERR_PROTOCOL;
        r->list->keys[r->list->n] = (struct delete_key){0};
        r->in_object = true;
    }
    return on_field(r, &r->list->keys[r->list->n], path + prefix.n, text);
}

int delete_list_read(struct slice document, struct arena *a, struct delete_list *ret, struct err *e)
{
    *ret = (struct delete_list){.keys = arena_alloc(a, DELETE_KEYS_MAX * sizeof ret->keys[0])};
    struct reader r = {.arena = a, .list = ret};
    int status = xml_parse(document, on_element, &r, e);

    return status == 0 && ret->n == 0 ? ERR_PROTOCOL : status;
}

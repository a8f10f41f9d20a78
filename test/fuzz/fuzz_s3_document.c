/*
 * Fuzz target: XML documents of S3 clients, each read as any document, as the list of a completion and as
 * that of a deletion.
 */
#include "s3/complete_list.h"
#include "s3/delete_list.h"
#include "s3/part_list.h"
#include "s3/xml.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static int on_element(void *arg, const char *path, struct slice text)
{
    size_t *n = arg;

    assert(path[0] && strlen(path) < XML_PATH_MAX && text.n <= XML_TEXT_MAX);
    return ++*n > 1000 ? -ECANCELED : 0;
}

static void completion(struct slice text)
{
    _cleanup_(arena_freep) struct arena *a = arena_new(4 * MIB);
    const struct complete_part *parts = NULL;
    size_t n = 0;

    if (complete_list_read(text, a, &parts, &n, NULL))
        return;
    assert(n >= 1 && n <= PART_LIST_NUMBER_MAX);
    for (size_t i = 0; i < n; i++)
        assert(parts[i].number >= 1 && parts[i].number <= PART_LIST_NUMBER_MAX && parts[i].etag.n > 0);
}

static void deletion(struct slice text)
{
    _cleanup_(arena_freep) struct arena *a = arena_new(4 * MIB);
    struct delete_list l;

    if (delete_list_read(text, a, &l, NULL))
        return;
    assert(l.n >= 1 && l.n <= DELETE_KEYS_MAX);
    for (size_t i = 0; i < l.n; i++)
        assert(l.keys[i].key.n > 0 && l.keys[i].key.n <= XML_TEXT_MAX);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct slice text = slice_of(data, n);
    size_t elements = 0;

    (void)xml_parse(text, on_element, &elements, NULL);
    completion(text);
    deletion(text);
    return 0;
}

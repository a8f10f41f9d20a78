/*
 * Tags (contract in tags.h).
 *
 * 1. Limits are S3's: keys of 1 to 128 characters, values of up to 256, no key twice, none that begins with
 * "aws:".
 * 2. Tags are in byte order of their keys, whoever gave them in which order.
 * 3. The kept form has no line breaks and no bytes outside ASCII, whatever the tags hold.
 */
#include "s3/tags.h"

#include "base/text.h"

#define KEY_MAX_CHARS   128
#define VALUE_MAX_CHARS 256

#define REFUSE(error, reason) (*ret_reason = (reason), S3_ERR_##error)

static size_t count_chars(struct slice s)
{
    size_t n = 0;

    for (size_t i = 0; i < s.n; i++)
        n += ((unsigned char)s.p[i] & 0xc0) != 0x80;
    return n;
}

static enum s3_error add(struct tags *t, size_t max, struct slice key, struct slice value,
                         const char **ret_reason)
{
    if (t->n == max)
        return REFUSE(INVALID_TAG, max == TAGS_OBJECT_MAX ? "an object has at most 10 tags"
                                                          : "a bucket has at most 50 tags");
    if (!slice_is_utf8(key) || !slice_is_utf8(value))
        return REFUSE(INVALID_TAG, "tags must be UTF-8");
    if (key.n == 0 || count_chars(key) > KEY_MAX_CHARS)
        return REFUSE(INVALID_TAG, "the key of a tag has 1 to 128 characters");
    if (count_chars(value) > VALUE_MAX_CHARS)
        return REFUSE(INVALID_TAG, "the value of a tag has at most 256 characters");
    if (slice_starts(key, SLICE_LIT("aws:")))
        return REFUSE(INVALID_TAG, "keys of tags that begin with aws: are reserved");
    for (size_t i = 0; i < t->n; i++)
        if (slice_eq(t->v[i].key, key))
            return REFUSE(INVALID_TAG, "a tag is given twice");
    size_t at = t->n++; /* in byte order of the keys */
    for (; at > 0 && slice_cmp(t->v[at - 1].key, key) > 0; at--)
        t->v[at] = t->v[at - 1];
    t->v[at] = (struct tag){key, value};
    return S3_OK;
}

static int decode(struct slice s, struct arena *a, struct slice *ret)
{
    _cleanup_buf_ struct buf b = BUF_INIT(s.n + 1);
    int status = text_uri_decode(&b, s, /* plus_is_space= */ true);

    if (status == 0)
        *ret = arena_dup(a, buf_view(&b));
    return status;
}

enum s3_error tags_parse(struct slice text, size_t max, struct arena *a, struct tags *ret,
                         const char **ret_reason)
{
    *ret = (struct tags){.n = 0};
    while (text.n) {
        struct slice value = slice_split(&text, '&'), name = slice_split(&value, '=');
        struct slice k, v;
        enum s3_error error;

        if (decode(name, a, &k) || decode(value, a, &v))
            return REFUSE(INVALID_ARGUMENT, "the tags are not well encoded: write KEY=VALUE&KEY=VALUE");
        error = add(ret, max, k, v, ret_reason);
        if (error)
            return error;
    }
    return S3_OK;
}

struct reader {
    struct arena *arena;
    struct tags *tags;
    size_t max;
    struct slice key, value;
    bool has_key, has_value, has_set;
    enum s3_error error;
    const char *reason;
};

static int on_element(void *arg, const char *path, struct slice text)
{
    struct reader *r = arg;

    if (strcmp(path, "Tagging/TagSet/Tag/Key") == 0) {
        if (r->has_key)
            return ERR_PROTOCOL;
        r->key = arena_dup(r->arena, text);
        r->has_key = true;
    } else if (strcmp(path, "Tagging/TagSet/Tag/Value") == 0) {
        if (r->has_value)
            return ERR_PROTOCOL;
        r->value = arena_dup(r->arena, text);
        r->has_value = true;
    } else if (strcmp(path, "Tagging/TagSet/Tag") == 0) {
        if (!r->has_key || !r->has_value)
            return ERR_PROTOCOL;
        r->has_key = r->has_value = false;
        r->error = add(r->tags, r->max, r->key, r->value, &r->reason);
        return r->error ? -ECANCELED : 0;
    } else if (strcmp(path, "Tagging/TagSet") == 0) {
        r->has_set = true;
    } else if (strcmp(path, "Tagging") != 0) {
        return ERR_PROTOCOL;
    }
    return 0;
}

enum s3_error tags_parse_xml(struct slice document, size_t max, struct arena *a, struct tags *ret,
                             const char **ret_reason)
{
    struct reader r = {.arena = a, .tags = ret, .max = max};

    *ret = (struct tags){.n = 0};
    if (xml_parse(document, on_element, &r, NULL) == 0 && r.has_set)
        return S3_OK;
    if (!r.error)
        return REFUSE(MALFORMED_XML,
                      "the document must be Tagging with one TagSet of Tags with Key and Value");
    *ret_reason = r.reason;
    return r.error;
}

int tags_put(const struct tags *t, struct buf *b)
{
    int status = 0;

    for (size_t i = 0; i < t->n && status == 0; i++) {
        status = i ? buf_char(b, '&') : 0;
        if (status == 0)
            status = text_uri_encode(b, t->v[i].key, /* keep_slash= */ false);
        if (status == 0)
            status = buf_char(b, '=');
        if (status == 0)
            status = text_uri_encode(b, t->v[i].value, /* keep_slash= */ false);
    }
    return status;
}

int tags_put_xml(const struct tags *t, struct buf *b)
{
    struct xml x = {b, 0};

    xml_start(&x);
    xml_root(&x, "Tagging");
    xml_open(&x, "TagSet");
    for (size_t i = 0; i < t->n; i++) {
        xml_open(&x, "Tag");
        xml_text(&x, "Key", t->v[i].key);
        xml_text(&x, "Value", t->v[i].value);
        xml_close(&x, "Tag");
    }
    xml_close(&x, "TagSet");
    xml_close(&x, "Tagging");
    return x.status;
}

size_t tags_count(struct slice kept)
{
    size_t n = kept.n > 0;

    for (size_t i = 0; i < kept.n; i++)
        n += kept.p[i] == '&';
    return n;
}

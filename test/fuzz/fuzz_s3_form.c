/*
 * Fuzz target: browser forms. The first byte chooses the reader: a form ('f', its second byte says in what
 * pieces it comes), a policy ('p'), tags as a query ('t'), documents of tags, CORS rules and lifecycle rules
 * ('d'). Forms must come out the same in whatever pieces they come; what was accepted must read the same from
 * its kept form.
 */
#include "pieces.h"
#include "s3/cors.h"
#include "s3/form.h"
#include "s3/lifecycle.h"
#include "s3/policy.h"
#include "s3/tags.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

#define ARENA_BYTES (8 * MIB)

/* All parts, their names and bytes one after the other. */
static enum s3_error read_form(struct slice type, struct slice text, size_t piece, size_t step,
                               struct buf *out)
{
    struct source s = {text, piece};
    struct form_part part;
    struct form f;
    char p[100];
    bool more = true;
    ssize_t k = 0;
    enum s3_error error = form_init(&f, type, give, &s);

    while (!error && more) {
        error = form_next(&f, &part, &more);
        if (error || !more)
            break;
        if (buf_printf(out, "%s|%s|%s\n", part.name, part.filename, part.type))
            abort();
        while ((k = form_read(&f, p, step, &error)) > 0)
            if (buf_append(out, p, (size_t)k))
                abort();
        if (k < 0 && !error)
            abort();
    }
    form_fini(&f);
    return error;
}

static void form(struct slice text)
{
    _cleanup_buf_ struct buf whole = BUF_INIT(16 * MIB), pieces = BUF_INIT(16 * MIB);
    struct slice type = slice_split(&text, '\n');
    size_t piece = text.n ? (unsigned char)text.p[0] % 40 + 1 : 1;
    enum s3_error a = read_form(type, text, SIZE_MAX, /* step= */ 100, &whole);
    enum s3_error b = read_form(type, text, piece, 7, &pieces);

    if (!a != !b || (!a && !slice_eq(buf_view(&whole), buf_view(&pieces))))
        abort();
}

static void policy(struct slice text)
{
    static const struct policy_field fields[] = {
        {"key", SLICE_LIT("k")}, {"bucket", SLICE_LIT("b")}, {"x-amz-meta-a", SLICE_LIT("x")}};
    struct policy_limits limits;
    const char *reason = NULL;

    if (policy_check(text, fields, ARRAY_SIZE(fields), 1000000000, &limits, &reason) && !reason)
        abort();
}

static void tags(struct slice text)
{
    _cleanup_(arena_freep) struct arena *a = arena_new(ARENA_BYTES);
    _cleanup_buf_ struct buf kept = BUF_INIT(MIB), again = BUF_INIT(MIB);
    struct tags *t = arena_alloc(a, sizeof *t);
    const char *reason;

    if (tags_parse(text, TAGS_OBJECT_MAX, a, t, &reason) || tags_put(t, &kept))
        return;
    if (tags_parse(buf_view(&kept), TAGS_OBJECT_MAX, a, t, &reason) || tags_put(t, &again) ||
        !slice_eq(buf_view(&kept), buf_view(&again)) || memchr(kept.n ? kept.p : "", '\n', kept.n))
        abort();
}

static void documents(struct slice text)
{
    _cleanup_(arena_freep) struct arena *a = arena_new(ARENA_BYTES);
    _cleanup_buf_ struct buf kept = BUF_INIT(MIB);
    struct tags *t = arena_alloc(a, sizeof *t);
    struct lifecycle l;
    struct cors c;
    const char *reason;

    (void)tags_parse_xml(text, TAGS_BUCKET_MAX, a, t, &reason);
    if (cors_parse(text, a, &c, &reason) == S3_OK && cors_put(&c, &kept) == 0 &&
        (cors_parse(buf_view(&kept), a, &c, &reason) || memchr(kept.p, '\n', kept.n)))
        abort();
    buf_clear(&kept);
    if (lifecycle_parse(text, a, &l, &reason) == S3_OK && lifecycle_put(&l, &kept) == 0 &&
        (lifecycle_parse(buf_view(&kept), a, &l, &reason) || memchr(kept.p, '\n', kept.n)))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n == 0)
        return 0;
    struct slice text = slice_of(data + 1, n - 1);
    switch (data[0]) {
    case 'f':
        form(text);
        break;
    case 'p':
        policy(text);
        break;
    case 't':
        tags(text);
        break;
    case 'd':
        documents(text);
        break;
    default:
        break;
    }
    return 0;
}

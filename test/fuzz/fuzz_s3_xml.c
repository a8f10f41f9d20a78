/*
 * Fuzz target: what an S3 service answers. The first byte chooses the reader: a listing, one of versions, an
 * error, a small result, what STS gives, the lines of a head, an INI file of credentials. A page that is
 * accepted must keep the promises of the listing, and must be the same when the bytes come one at a time.
 */
#include "origin/s3_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static int read_page(struct slice text, size_t piece, struct arena *a, struct origin_page *ret)
{
    struct origin_list q = {.prefix = SLICE_LIT("a"), .after = SLICE_LIT("a0"), .max = 5};
    struct s3_list *_cleanup_(s3_list_freep) l = s3_list_new(&q, "p/", a, NULL);
    int r = 0;
    for (size_t at = 0; at < text.n && r == 0; at += piece)
        r = s3_list_feed(l, text.p + at, MIN(piece, text.n - at), NULL);
    return r < 0 ? r : s3_list_end(l, ret, NULL);
}

static void page(struct slice text)
{
    struct arena *_cleanup_(arena_freep) a = arena_new(MIB);
    struct origin_page whole, pieces;
    int r = read_page(text, MAX(text.n, (size_t)1), a, &whole);
    int again = read_page(text, 1, a, &pieces);
    assert((r == 0) == (again == 0));
    if (r != 0)
        return;
    assert(whole.n == pieces.n && whole.n <= 5 && whole.truncated == pieces.truncated);
    assert(!whole.truncated || whole.next_token.n > 0);
    for (size_t i = 0; i < whole.n; i++) {
        struct slice key = whole.entries[i].key;
        assert(slice_eq(key, pieces.entries[i].key));
        assert(slice_starts(key, SLICE_LIT("a")) && key.n <= ORIGIN_KEY_MAX_BYTES);
        assert(slice_cmp(key, SLICE_LIT("a0")) > 0);
        assert(i == 0 || slice_cmp(whole.entries[i - 1].key, key) < 0);
        assert(whole.entries[i].attr.etag.n <= ORIGIN_ETAG_MAX);
    }
}

static int read_versions(struct s3_version_reader *x, struct slice text, size_t piece,
                         struct s3_version_page *ret)
{
    int r = 0;
    for (size_t at = 0; at < text.n && r == 0; at += piece)
        r = s3_version_reader_feed(x, text.p + at, MIN(piece, text.n - at), NULL);
    return r < 0 ? r : s3_version_reader_end(x, ret, NULL);
}

static void versions(struct slice text)
{
    struct s3_version_reader *_cleanup_(s3_version_reader_freep) x = s3_version_reader_new(5);
    struct s3_version_reader *_cleanup_(s3_version_reader_freep) y = s3_version_reader_new(5);
    struct s3_version_page whole, pieces;
    int r = read_versions(x, text, MAX(text.n, (size_t)1), &whole);
    int again = read_versions(y, text, 1, &pieces);
    assert((r == 0) == (again == 0));
    if (r != 0)
        return;
    assert(whole.n == pieces.n && whole.n_prefixes == pieces.n_prefixes && whole.n + whole.n_prefixes <= 5);
    assert(!whole.truncated || whole.next_key.n > 0);
    for (size_t i = 0; i < whole.n; i++) {
        const struct s3_version *v = &whole.v[i];
        assert(slice_eq(v->key, pieces.v[i].key) && slice_eq(v->id, pieces.v[i].id));
        assert(v->key.n > 0 && v->id.n > 0 && v->id.n <= WEB_VERSION_ID_MAX && v->etag.n <= ORIGIN_ETAG_MAX);
        assert(v->mtime_ns <= v->exact_ns);
        assert(i == 0 || slice_cmp(v[-1].key, v->key) < 0 ||
               (slice_eq(v[-1].key, v->key) && v[-1].exact_ns >= v->exact_ns));
    }
}

static void error(struct slice text)
{
    struct web_error x;
    web_error_parse(text, &x);
    assert(s3_error_class(500, slice_str(x.code)) < 0);
    for (const char *p = x.message; *p; p++)
        assert((unsigned char)*p >= ' ');
}

static void head(struct slice text)
{
    struct web_response r;
    web_response_init(&r);
    while (text.n > 0)
        web_response_line(&r, slice_split(&text, '\n'));
    if (r.has_range)
        assert(r.range_first <= r.range_last && r.range_last < r.range_total);
    struct slice meta = web_response_attr(&r).meta, name, value;
    while (origin_next_meta(&meta, &name, &value))
        assert(origin_is_meta_header(name));
    web_response_fini(&r);
}

/* What is accepted is whole, and can be a header. */
static void sts(struct slice text)
{
    struct s3_credentials k;
    uint64_t ends_ns = 0;
    if (s3_sts_parse(text, &k, &ends_ns, NULL) < 0)
        return;
    assert(ends_ns > 0 && k.secret_key[0]);
    for (const char *p = k.session_token; *p; p++)
        assert(*p > ' ' && *p < 0x7f);
    s3_credentials_fini(&k);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n == 0)
        return 0;
    struct slice text = slice_of(data + 1, n - 1);
    struct s3_result result;
    switch (data[0]) {
    case 'p':
        page(text);
        break;
    case 'v':
        versions(text);
        break;
    case 'e':
        error(text);
        break;
    case 'r':
        (void)s3_result_parse(text, &result, NULL);
        break;
    case 's':
        sts(text);
        break;
    case 'h':
        head(text);
        break;
    case 'i':
        free(s3_ini_get(text, "profile a", "key"));
        break;
    default:
        break;
    }
    return 0;
}

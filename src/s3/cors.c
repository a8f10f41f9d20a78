/*
 * CORS rules (contract in cors.h).
 *
 * 1. Anybody may ask: nobody may ask for more headers than a request can have.
 * 2. A rule that was accepted has origins and methods; each pattern has at most one '*', which stands for any
 * bytes.
 */
#include "s3/cors.h"

#include "net/http.h"

#define REFUSE(error, reason) (*ret_reason = (reason), S3_ERR_##error)

#define ROOT "CORSConfiguration"
#define RULE ROOT "/CORSRule"

static const char *const known_methods[] = {"GET", "PUT", "POST", "DELETE", "HEAD"};

struct reader {
    struct arena *arena;
    struct cors *cors;
    bool in_rule;
    enum s3_error error;
    const char *reason;
};

static int fail(struct reader *r, enum s3_error error, const char *reason)
{
    r->error = error;
    r->reason = reason;
    return -ECANCELED;
}

static int append(struct reader *r, struct cors_list *list, struct slice text)
{
    if (!list->v)
        list->v = arena_alloc(r->arena, CORS_VALUES_MAX * sizeof list->v[0]);
    if (list->n == CORS_VALUES_MAX)
        return fail(r, S3_ERR_INVALID_REQUEST, "a rule has at most 100 values of a kind");
    list->v[list->n++] = arena_dup(r->arena, slice_trim(text));
    return 0;
}

/* At most one '*' in it. */
static int append_pattern(struct reader *r, struct cors_list *list, struct slice text)
{
    ssize_t star = slice_find(text, '*');

    if (star >= 0 && slice_find(slice_from(text, (size_t)star + 1), '*') >= 0)
        return fail(r, S3_ERR_INVALID_REQUEST, "origins and headers can have one * at most");
    return append(r, list, text);
}

static int append_method(struct reader *r, struct cors_list *list, struct slice text)
{
    for (size_t i = 0; i < ARRAY_SIZE(known_methods); i++)
        if (slice_eq_str(slice_trim(text), known_methods[i]))
            return append(r, list, text);
    return fail(r, S3_ERR_INVALID_REQUEST, "AllowedMethod must be GET, PUT, POST, DELETE or HEAD");
}

static int end_rule(struct reader *r)
{
    const struct cors_rule *rule = &r->cors->rules[r->cors->n];

    r->in_rule = false;
    if (rule->origins.n == 0 || rule->methods.n == 0)
        return ERR_PROTOCOL;
    r->cors->n++;
    return 0;
}

static int on_element(void *arg, const char *path, struct slice text)
{
    struct reader *r = arg;
    struct cors_rule *rule;

    if (strcmp(path, ROOT) == 0)
        return 0;
    if (strncmp(path, RULE, sizeof RULE - 1) != 0)
        return ERR_PROTOCOL;
    if (!r->in_rule) {
        if (r->cors->n == CORS_RULES_MAX)
            return fail(r, S3_ERR_INVALID_REQUEST, "there can be 100 rules at most");
        r->cors->rules[r->cors->n] = (struct cors_rule){0};
        r->in_rule = true;
    }
    rule = &r->cors->rules[r->cors->n];
    path += sizeof RULE - 1;
    if (path[0] == '\0')
        return end_rule(r);
    if (strcmp(path, "/AllowedOrigin") == 0)
        return append_pattern(r, &rule->origins, text);
    if (strcmp(path, "/AllowedMethod") == 0)
        return append_method(r, &rule->methods, text);
    if (strcmp(path, "/AllowedHeader") == 0)
        return append_pattern(r, &rule->headers, text);
    if (strcmp(path, "/ExposeHeader") == 0)
        return append(r, &rule->exposed, text);
    if (strcmp(path, "/MaxAgeSeconds") == 0) {
        rule->has_age = true;
        return slice_u64(slice_trim(text), &rule->age_s) ? ERR_PROTOCOL : 0;
    }
    if (strcmp(path, "/ID") != 0)
        return ERR_PROTOCOL;
    rule->id = arena_dup(r->arena, text);
    return 0;
}

enum s3_error cors_parse(struct slice document, struct arena *a, struct cors *ret, const char **ret_reason)
{
    struct reader r = {.arena = a, .cors = ret};

    *ret = (struct cors){.rules = arena_alloc(a, CORS_RULES_MAX * sizeof ret->rules[0])};
    if (xml_parse(document, on_element, &r, NULL) == 0 && ret->n > 0)
        return S3_OK;
    if (!r.error)
        return REFUSE(MALFORMED_XML, "the document must be CORSConfiguration with rules of AllowedOrigin, "
                                     "AllowedMethod, AllowedHeader, ExposeHeader, MaxAgeSeconds and ID");
    *ret_reason = r.reason;
    return r.error;
}

static void put_list(struct xml *x, const char *name, const struct cors_list *list)
{
    for (size_t i = 0; i < list->n; i++)
        xml_text(x, name, list->v[i]);
}

int cors_put(const struct cors *c, struct buf *b)
{
    struct xml x = {b, 0};

    xml_root(&x, ROOT);
    for (size_t i = 0; i < c->n; i++) {
        const struct cors_rule *r = &c->rules[i];

        xml_open(&x, "CORSRule");
        if (r->id.n)
            xml_text(&x, "ID", r->id);
        put_list(&x, "AllowedMethod", &r->methods);
        put_list(&x, "AllowedOrigin", &r->origins);
        put_list(&x, "AllowedHeader", &r->headers);
        put_list(&x, "ExposeHeader", &r->exposed);
        if (r->has_age)
            xml_u64(&x, "MaxAgeSeconds", r->age_s);
        xml_close(&x, "CORSRule");
    }
    xml_close(&x, ROOT);
    return x.status;
}

/* ---- matching ---- */

static bool fits(struct slice pattern, struct slice s, bool any_case)
{
    bool (*eq)(struct slice, struct slice) = any_case ? slice_eq_case : slice_eq;
    ssize_t star = slice_find(pattern, '*');
    struct slice before, after;

    if (star < 0)
        return eq(pattern, s);
    before = slice_sub(pattern, 0, (size_t)star);
    after = slice_from(pattern, (size_t)star + 1);
    return s.n >= before.n + after.n && eq(slice_sub(s, 0, before.n), before) &&
           eq(slice_from(s, s.n - after.n), after);
}

static const struct slice *find(const struct cors_list *list, struct slice s, bool any_case)
{
    for (size_t i = 0; i < list->n; i++)
        if (fits(list->v[i], s, any_case))
            return &list->v[i];
    return NULL;
}

static bool allows_headers(const struct cors_rule *r, struct slice headers)
{
    while (headers.n) {
        struct slice one = slice_trim(slice_split(&headers, ','));

        if (one.n && !find(&r->headers, one, /* any_case= */ true))
            return false;
    }
    return true;
}

/* Empty ones, too. */
static size_t count_headers(struct slice headers)
{
    size_t n = headers.n > 0;

    for (size_t i = 0; i < headers.n; i++)
        n += headers.p[i] == ',';
    return n;
}

const struct cors_rule *cors_match(const struct cors *c, const struct cors_question *q,
                                   struct slice *ret_origin)
{
    if (count_headers(q->headers) > HTTP_HEADERS_MAX)
        return NULL;
    for (size_t i = 0; i < c->n; i++) {
        const struct cors_rule *r = &c->rules[i];
        const struct slice *origin = find(&r->origins, q->origin, /* any_case= */ false);

        if (!origin || !find(&r->methods, q->method, /* any_case= */ false) || !allows_headers(r, q->headers))
            continue;
        *ret_origin = *origin;
        return r;
    }
    return NULL;
}

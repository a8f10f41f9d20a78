/*
 * What the tests of HTTP origins against a scripted server share: an origin opened before a script, a sink
 * that counts, and answers that come in every kind.
 */
#pragma once

#include "base/sys.h"
#include "http_script.h"
#include "origin/web_internal.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

struct web_fixture {
    struct script script;
    struct origin *origin;
    struct arena *arena;
};

static inline void web_fixture_option(struct origin_options *o, const char *name, const char *value)
{
    struct err e = {0};
    if (option_set(&origin_option_table, o, name, value, name, &e) != 0)
        fail_msg("%s", e.text);
}

/* `more`: pairs of option names and values, ended by NULL. "%p" in a value or the URL stands for the port. */
static inline void web_fixture_start(struct web_fixture *f, const char *url, const struct script_step *steps,
                                     size_t n, const char *const *more)
{
    struct origin_options o;
    struct err e = {0};
    memset(f, 0, sizeof(*f));
    script_start(&f->script, steps, n);
    assert_int_equal(option_init(&origin_option_table, &o, &e), 0);
    for (; more && *more; more += 2) {
        char value[8192];
        const char *at = strstr(more[1], "%p");
        if (at)
            (void)snprintf(value, sizeof(value), "%.*s%u%s", (int)(at - more[1]), more[1], f->script.port,
                           at + 2);
        web_fixture_option(&o, more[0], at ? value : more[1]);
    }
    char whole[256];
    const char *at = strstr(url, "%p");
    if (at)
        (void)snprintf(whole, sizeof(whole), "%.*s%u%s", (int)(at - url), url, f->script.port, at + 2);
    if (origin_open(at ? whole : url, &o, "scripted", &f->origin, &e) != 0)
        fail_msg("%s", e.text);
    option_fini(&origin_option_table, &o);
    f->arena = arena_new(8 * MIB);
}

static inline void web_fixture_stop(struct web_fixture *f)
{
    origin_close(f->origin);
    arena_free(f->arena);
    script_stop(&f->script);
}

struct web_sink {
    uint64_t bytes;
    unsigned calls;
    char etag[WEB_ETAG_MAX + 1];
};

static inline int web_sink_take(void *arg, const struct origin_attr *attr, const void *p, size_t n)
{
    (void)p;
    struct web_sink *s = arg;
    s->bytes += n;
    s->calls++;
    (void)snprintf(s->etag, sizeof(s->etag), SLICE_FMT, SLICE_ARG(attr->etag));
    return 0;
}

/* A GET of n bytes from offset of "k", or of all of it with n 0, pinned when version is not NULL. */
static inline int web_fixture_get(struct web_fixture *f, uint64_t offset, uint64_t n, const char *version,
                                  struct web_sink *s, struct err *e)
{
    struct origin_get g = {
        .key = SLICE_LIT("k"), .offset = offset, .n = n, .whole = n == 0, .if_match = slice_str(version)};
    struct origin_attr attr;
    arena_clear(f->arena);
    *s = (struct web_sink){0};
    *e = (struct err){0};
    return origin_get(f->origin, &g, f->arena, &attr, web_sink_take, s, e);
}

static inline int web_fixture_stat(struct web_fixture *f, struct origin_attr *ret, struct err *e)
{
    struct origin_get g = {.key = SLICE_LIT("k"), .attributes_only = true};
    struct web_sink s = {0};
    arena_clear(f->arena);
    *e = (struct err){0};
    return origin_get(f->origin, &g, f->arena, ret, web_sink_take, &s, e);
}

static inline ssize_t web_fixture_bytes(void *arg, void *p, size_t n, uint64_t offset)
{
    (void)arg, (void)offset;
    memset(p, 'x', n);
    return (ssize_t)n;
}

static inline int web_fixture_put(struct web_fixture *f, uint64_t size, struct origin_attr *ret,
                                  struct err *e)
{
    struct origin_put p = {.key = SLICE_LIT("k")};
    struct origin_body b = {.size_bytes = size, .read = web_fixture_bytes};
    arena_clear(f->arena);
    *e = (struct err){0};
    return origin_put(f->origin, &p, &b, f->arena, ret, e);
}

#define WEB_FIXTURE_OK(expr, e)                                                                              \
    do {                                                                                                     \
        int _r = (expr);                                                                                     \
        if (_r != 0)                                                                                         \
            fail_msg("%s: %s", err_name(_r), (e).text);                                                      \
    } while (0)

/* What the tests of the S3 kind share: an origin before a server that answers what is scripted. */
#pragma once

#include "base/log.h"
#include "base/metrics.h"
#include "base/sys.h"
#include "http_script.h"
#include "origin/s3_internal.h"
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

struct fixture {
    struct script script;
    struct origin *origin;
    struct arena *arena;
};

static inline void set_option(struct origin_options *o, const char *name, const char *value)
{
    struct err e = {0};
    if (option_set(&origin_option_table, o, name, value, name, &e) != 0)
        fail_msg("%s", e.text);
}

/* `more`: pairs of option names and values, ended by NULL. */
static inline void fixture_start(struct fixture *f, const char *url, const struct script_step *steps,
                                 size_t n, const char *const *more)
{
    static const char *const away[] = {
        "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE",      "AWS_DEFAULT_PROFILE",
        "AWS_REGION",        "AWS_DEFAULT_REGION",    "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"};
    for (size_t i = 0; i < ARRAY_SIZE(away); i++)
        (void)unsetenv(away[i]);
    (void)setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent", 1);
    (void)setenv("AWS_CONFIG_FILE", "/nonexistent", 1);
    script_start(&f->script, steps, n);
    struct origin_options o;
    struct err e = {0};
    char endpoint[64];
    (void)snprintf(endpoint, sizeof(endpoint), "http://127.0.0.1:%u", f->script.port);
    assert_int_equal(option_init(&origin_option_table, &o, &e), 0);
    set_option(&o, "origin.endpoint", endpoint);
    set_option(&o, "origin.access_key", "AK");
    set_option(&o, "origin.secret_key", "SK");
    set_option(&o, "origin.part_size", "5MiB");
    for (; more && *more; more += 2)
        set_option(&o, more[0], more[1]);
    f->origin = NULL;
    if (origin_open(url, &o, "scripted", &f->origin, &e) != 0)
        fail_msg("%s", e.text);
    option_fini(&origin_option_table, &o);
    f->arena = arena_new(8 * MIB);
}

static inline void fixture_stop(struct fixture *f)
{
    origin_close(f->origin);
    arena_free(f->arena);
    script_stop(&f->script);
}

struct sink {
    uint64_t bytes;
    unsigned calls;
    int stop_with;
    atomic_bool *cancel;
    char etag[64];
};

static inline int on_bytes(void *arg, const struct origin_attr *attr, const void *p, size_t n)
{
    struct sink *s = arg;
    s->bytes += n;
    s->calls++;
    (void)snprintf(s->etag, sizeof(s->etag), SLICE_FMT, SLICE_ARG(attr->etag));
    if (s->cancel && n > 0) /* not the head, which may come long before the bytes */
        atomic_store(s->cancel, true);
    return s->stop_with;
}

static inline int get(struct fixture *f, uint64_t offset, uint64_t n, struct sink *s, struct err *e)
{
    struct origin_get g = {.key = SLICE_LIT("k"), .offset = offset, .n = n, .whole = n == 0};
    struct origin_attr attr;
    arena_clear(f->arena);
    *s = (struct sink){0};
    return origin_get(f->origin, &g, f->arena, &attr, on_bytes, s, e);
}

#define OK206(range, length)                                                                                 \
    "HTTP/1.1 206 Partial Content\r\nETag: \"v1\"\r\nContent-Range: bytes " range                            \
    "\r\nContent-Length: " length "\r\n\r\n"
#define OK200(length) "HTTP/1.1 200 OK\r\nETag: \"v1\"\r\nContent-Length: " length "\r\n\r\n"
#define XML_ERROR(status, code, message)                                                                     \
    "HTTP/1.1 " status "\r\nContent-Type: application/xml\r\nConnection: close\r\n\r\n"                      \
    "<?xml version=\"1.0\"?><Error><Code>" code "</Code><Message>" message "</Message></Error>"

struct one_get {
    struct fixture *f;
    int result;
    uint64_t bytes;
};

static inline void *get_in_thread(void *arg)
{
    struct one_get *x = arg;
    struct arena *_cleanup_(arena_freep) a = arena_new(MIB);
    struct origin_get g = {.key = SLICE_LIT("k"), .n = 100};
    struct origin_attr attr;
    struct sink s = {0};
    struct err e = {0};
    x->result = origin_get(x->f->origin, &g, a, &attr, on_bytes, &s, &e);
    x->bytes = s.bytes;
    return NULL;
}

/* Whether the request had the header, its value beginning so. */
static inline bool has_value(struct fixture *f, size_t head, const char *name, const char *line)
{
    const char *found = script_header(script_head(&f->script, head), name);
    return found && strncmp(found, line, strlen(line)) == 0;
}

/*
 * Tries what an origin can.
 *
 * The steps are rows of a table, in order. A step gives 0 (works), 1 (does not, with the reason in the text)
 * or an error. Steps that need an object are skipped when the one that makes it failed. With read_only the
 * first object of a listing stands in for the one that would be written.
 *
 * Invariants:
 *  1. Only keys below the run's own random prefix are written or removed, and what was written is removed
 * also when a step fails.
 *  2. No step is tried twice: what a user sees once in this run, a node sees now and then.
 *
 * Failure modes: none of its own; what a request gives is told.
 */
#include "origin/origin_check.h"

#include "base/sys.h"
#include "base/text.h"

#include <inttypes.h>
#include <stdarg.h>

#define ARENA_BYTES (8 * MIB)
#define SMALL_BYTES 5000
#define LARGE_BYTES (9 * MIB) /* above what every kind sends in one request */
#define TEXT_BYTES  500
#define KEY_BYTES   128

struct run {
    struct origin *o;
    bool read_only;
    struct arena *arena;
    char small[KEY_BYTES], copy[KEY_BYTES], large[KEY_BYTES];
    char key[ORIGIN_KEY_MAX_BYTES + 1]; /* what reads are tried with */
    char etag[ORIGIN_ETAG_MAX + 1];     /* of it */
    uint64_t size;
    bool have;             /* there is such an object */
    bool wrote[3];         /* small, copy, large */
    char text[TEXT_BYTES]; /* of the step */
};

const char *origin_check_state_text(enum origin_check_state s)
{
    static const char *const texts[] = {
#define X(name, text) text,
        ORIGIN_CHECK_STATES(X)
#undef X
    };
    assert((size_t)s < ARRAY_SIZE(texts));
    return texts[s];
}

/* ---- bodies ---- */

static char byte_at(uint64_t i)
{
    return (char)(i * 2654435761u >> 11);
}

static ssize_t body_read(void *arg, void *p, size_t n, uint64_t offset)
{
    (void)arg;
    for (size_t i = 0; i < n; i++)
        ((char *)p)[i] = byte_at(offset + i);
    return (ssize_t)n;
}

struct reader {
    uint64_t at, n;
    bool check, same;
};

static int take(void *arg, const struct origin_attr *attr, const void *p, size_t n)
{
    (void)attr;
    struct reader *r = arg;
    for (size_t i = 0; i < n && r->check; i++)
        r->same &= ((const char *)p)[i] == byte_at(r->at + i);
    r->at += n;
    r->n += n;
    return 0;
}

static int get(struct run *x, const char *key, uint64_t offset, uint64_t n, const char *etag,
               struct reader *r, struct origin_attr *ret, struct err *e)
{
    struct origin_get g = {
        .key = slice_str(key), .offset = offset, .n = n, .whole = n == 0, .if_match = slice_str(etag)};
    *r = (struct reader){.at = offset, .check = !x->read_only, .same = true};
    return origin_get(x->o, &g, x->arena, ret, take, r, e);
}

static int put(struct run *x, const char *key, uint64_t size, bool if_none_match, const char *if_match,
               struct origin_attr *ret, struct err *e)
{
    struct origin_put p = {.key = slice_str(key),
                           .content_type = SLICE_LIT("text/x-forebay-check"),
                           .meta = SLICE_LIT("x-amz-meta-forebay: check\n"),
                           .if_none_match = if_none_match,
                           .if_match = slice_str(if_match)};
    struct origin_body b = {.size_bytes = size, .read = body_read};
    return origin_put(x->o, &p, &b, x->arena, ret, e);
}

static void say(struct run *x, const char *fmt, ...) PRINTF_LIKE(2, 3);
static void say(struct run *x, const char *fmt, ...)
{
    va_list v;
    va_start(v, fmt);
    (void)vsnprintf(x->text, sizeof(x->text), fmt, v);
    va_end(v);
}

/* ---- steps ---- */

/* Who asks: what everything behind it goes with. */
static int step_credentials(struct run *x, struct err *e)
{
    struct buf _cleanup_buf_ b = BUF_INIT(16 * KIB);
    int r = origin_identify(x->o, &b, e);
    say(x, "%.*s", (int)MIN(b.n, (size_t)TEXT_BYTES - 1), b.n ? b.p : "");
    return r;
}

/* Also finds what a read-only run reads. */
static int step_list(struct run *x, struct err *e)
{
    struct origin_list l = {.max = 10};
    struct origin_page page;
    int r = origin_list(x->o, &l, x->arena, &page, e);
    if (r < 0)
        return r;
    for (size_t i = 0; i < page.n && !x->key[0]; i++) {
        const struct origin_entry *o = &page.entries[i];
        if (o->is_prefix || o->attr.size_bytes == 0 || o->key.n > ORIGIN_KEY_MAX_BYTES)
            continue;
        memcpy(x->key, o->key.p, o->key.n);
        x->key[o->key.n] = '\0';
    }
    x->have = x->read_only && x->key[0];
    say(x, "%zu object%s on the first page%s", page.n, page.n == 1 ? "" : "s",
        page.truncated ? ", more follow" : "");
    return 0;
}

static int step_write(struct run *x, struct err *e)
{
    struct origin_attr attr;
    int r = put(x, x->small, SMALL_BYTES, false, NULL, &attr, e);
    if (r == -EROFS) {
        say(x, "read-only: buckets of this origin cannot be written");
        return 1;
    }
    if (r < 0)
        return r;
    x->wrote[0] = x->have = true;
    (void)snprintf(x->key, sizeof(x->key), "%s", x->small);
    return 0;
}

static int step_attributes(struct run *x, struct err *e)
{
    struct origin_get g = {.key = slice_str(x->key), .attributes_only = true};
    struct reader reader = {0};
    struct origin_attr attr;
    int r = origin_get(x->o, &g, x->arena, &attr, take, &reader, e);
    if (r < 0)
        return r;
    (void)snprintf(x->etag, sizeof(x->etag), SLICE_FMT, SLICE_ARG(attr.etag));
    x->size = attr.size_bytes;
    bool as_put = slice_eq_str(attr.content_type, "text/x-forebay-check") &&
                  slice_find_slice(attr.meta, SLICE_LIT("x-amz-meta-forebay: check")) >= 0;
    if (!x->read_only && x->size != SMALL_BYTES)
        return err_set(e, ERR_ORIGIN_FAILED, "%d bytes were written, %" PRIu64 " are there", SMALL_BYTES,
                       x->size);
    if (attr.etag.n == 0) {
        say(x, "no ETag and no time: changes behind the node's back go unnoticed");
        return 1;
    }
    if (!x->read_only && !as_put) {
        say(x, "size and version; content type and metadata are not kept");
        return 1;
    }
    return 0;
}

static int step_read(struct run *x, struct err *e)
{
    struct reader reader;
    struct origin_attr attr;
    int r = get(x, x->key, 0, 0, x->etag, &reader, &attr, e);
    if (r == 0 && (!reader.same || reader.n != x->size))
        return err_set(e, ERR_ORIGIN_FAILED, "the bytes are not the ones that were written");
    return r;
}

static int step_ranges(struct run *x, struct err *e)
{
    struct reader reader;
    struct origin_attr attr;
    uint64_t n = MAX(x->size / 2, (uint64_t)1);
    int r = get(x, x->key, x->size - n, n, x->etag, &reader, &attr, e);
    if (r == 0 && (!reader.same || reader.n != n))
        return err_set(e, ERR_ORIGIN_FAILED, "the bytes of the range are others");
    return r;
}

/* A version that never was must be refused. */
static int step_pinned(struct run *x, struct err *e)
{
    struct reader reader;
    struct origin_attr attr;
    int r = get(x, x->key, 0, 1, "1", &reader, &attr, e);
    if (r == 0)
        return err_set(e, ERR_ORIGIN_FAILED, "a read of a version that is not there was answered");
    return r == ERR_PRECONDITION ? 0 : r;
}

static int conditional(struct run *x, bool if_none_match, const char *if_match, struct err *e)
{
    struct origin_attr attr;
    if (!(x->o->capabilities & ORIGIN_CAN_CONDITIONAL_PUT)) {
        say(x, "not asked for (origin.conditional_put=no): such a PUT is refused by the node");
        return 1;
    }
    int r = put(x, x->small, SMALL_BYTES, if_none_match, if_match, &attr, e);
    if (r == 0 || r == ERR_NOT_IMPLEMENTED) {
        say(x, "%s: writers can overwrite each other; set origin.conditional_put=no",
            r == 0 ? "ignored by the service" : "refused by the service");
        return 1;
    }
    return r == ERR_PRECONDITION ? 0 : r;
}

static int step_if_absent(struct run *x, struct err *e)
{
    return conditional(x, true, NULL, e);
}

static int step_if_same(struct run *x, struct err *e)
{
    return conditional(x, false, "1", e);
}

static int step_copy(struct run *x, struct err *e)
{
    struct origin_attr attr;
    int r = ERR_NOT_IMPLEMENTED;
    if (x->o->capabilities & ORIGIN_CAN_COPY)
        r = origin_copy(x->o, slice_str(x->small), slice_str(x->copy), SLICE_NULL, x->arena, &attr, e);
    x->wrote[1] = r == 0;
    if (r == ERR_NOT_IMPLEMENTED) {
        say(x, "not inside the origin: renames and copies are refused");
        return 1;
    }
    return r;
}

static void say_rate(struct run *x, uint64_t bytes, uint64_t ns)
{
    char rate[TEXT_SIZE_MAX];
    say(x, "%s/s", text_size(bytes * 1000000000 / MAX(ns, (uint64_t)1), rate));
}

static int step_large_write(struct run *x, struct err *e)
{
    struct origin_attr attr;
    uint64_t started_ns = sys->mono_ns();
    int r = put(x, x->large, LARGE_BYTES, false, NULL, &attr, e);
    x->wrote[2] = r == 0;
    if (r == 0)
        say_rate(x, LARGE_BYTES, sys->mono_ns() - started_ns);
    return r;
}

static int step_large_read(struct run *x, struct err *e)
{
    struct reader reader;
    struct origin_attr attr;
    uint64_t started_ns = sys->mono_ns();
    const char *key = x->read_only ? x->key : x->large;
    uint64_t n = x->read_only ? MIN(x->size, (uint64_t)LARGE_BYTES) : LARGE_BYTES;
    if (!x->read_only && !x->wrote[2])
        return -ECANCELED;
    int r = get(x, key, 0, n, NULL, &reader, &attr, e);
    if (r == 0 && (!reader.same || reader.n != n))
        return err_set(e, ERR_ORIGIN_FAILED, "the bytes are not the ones that were written");
    if (r == 0)
        say_rate(x, n, sys->mono_ns() - started_ns);
    return r;
}

/* How many of the objects that were written a listing of their folder gives behind `after`. Where folders are
 * more than parts of names, the folder itself may be listed too. */
static int count_listed(struct run *x, const char *after, size_t *ret_n, bool *ret_folder, struct err *e)
{
    struct origin_page page;
    struct slice prefix = slice_of(x->small, (size_t)(strchr(x->small, '/') + 1 - x->small));
    struct origin_list l = {.prefix = prefix, .after = slice_str(after), .max = 10};
    int r = origin_list(x->o, &l, x->arena, &page, e);
    if (r < 0)
        return r;
    *ret_n = 0;
    *ret_folder = false;
    for (size_t i = 0; i < page.n; i++) {
        bool folder = slice_eq(page.entries[i].key, prefix);
        *ret_folder |= folder;
        *ret_n += !folder;
    }
    return 0;
}

/* The keys that were written are listed, and a listing may begin behind a key. */
static int step_find(struct run *x, struct err *e)
{
    size_t n = 0, wanted = (size_t)x->wrote[0] + x->wrote[1] + x->wrote[2];
    bool folder;
    int r = count_listed(x, NULL, &n, &folder, e);
    if (r == 0 && n != wanted)
        return err_set(e, ERR_ORIGIN_FAILED, "%zu objects were written, %zu are listed", wanted, n);
    if (r == 0)
        r = count_listed(x, x->small, &n, &folder, e); /* the first in byte order */
    if (r == 0 && n != wanted - 1)
        return err_set(e, ERR_ORIGIN_FAILED, "behind the first of %zu keys %zu are listed", wanted, n);
    return r;
}

/* The folder that an origin of folders made for the objects. */
static int remove_folder(struct run *x, struct err *e)
{
    size_t n;
    bool folder;
    int r = count_listed(x, NULL, &n, &folder, e);
    struct slice key = slice_of(x->small, (size_t)(strchr(x->small, '/') + 1 - x->small));
    return r == 0 && folder ? origin_remove(x->o, key, SLICE_NULL, e) : r;
}

static int step_remove(struct run *x, struct err *e)
{
    const char *keys[] = {x->small, x->copy, x->large};
    struct reader reader;
    struct origin_attr attr;
    int result = 0;
    for (size_t i = 0; i < ARRAY_SIZE(keys); i++) {
        if (!x->wrote[i])
            continue;
        int r = origin_remove(x->o, slice_str(keys[i]), SLICE_NULL, e);
        x->wrote[i] = r < 0;
        result = result == 0 ? r : result;
    }
    if (result == 0)
        result = remove_folder(x, e);
    if (result == 0 && get(x, x->small, 0, 1, NULL, &reader, &attr, e) != -ENOENT)
        return err_set(e, ERR_ORIGIN_FAILED, "an object that was removed is still there");
    if (result < 0)
        (void)err_prefix(e, result, "objects are left below %.*s", (int)(strchr(x->small, '/') - x->small),
                         x->small);
    return result;
}

/* ---- the table ---- */

enum { NEEDS_NOTHING = 0, NEEDS_OBJECT = 1, WRITES = 2 };

static const struct step {
    const char *name;
    unsigned needs;
    int (*run)(struct run *x, struct err *e);
} steps[] = {
    {"credentials", NEEDS_NOTHING, step_credentials},
    {"list", NEEDS_NOTHING, step_list},
    {"write", WRITES, step_write},
    {"attributes", NEEDS_OBJECT, step_attributes},
    {"read", NEEDS_OBJECT, step_read},
    {"ranges", NEEDS_OBJECT, step_ranges},
    {"pinned reads", NEEDS_OBJECT, step_pinned},
    {"put if absent", NEEDS_OBJECT | WRITES, step_if_absent},
    {"put if unchanged", NEEDS_OBJECT | WRITES, step_if_same},
    {"copy", NEEDS_OBJECT | WRITES, step_copy},
    {"large write", NEEDS_OBJECT | WRITES, step_large_write},
    {"large read", NEEDS_OBJECT, step_large_read},
    {"list what was written", NEEDS_OBJECT | WRITES, step_find},
    {"remove", NEEDS_OBJECT | WRITES, step_remove},
};

/* What to do about an error. */
static const char *advice(const struct run *x, int code)
{
    switch (code) {
    case ERR_ORIGIN_DENIED:
        return "check the credentials, and what they are allowed to do";
    case ERR_ORIGIN_DOWN:
        if (strncmp(x->o->url, "file://", strlen("file://")) == 0)
            return "make the directory, or mount what it lies on";
        return "check origin.endpoint, the network and proxies";
    case -ETIMEDOUT:
        return "the origin is slow; origin.timeout says how long to wait";
    case ERR_ORIGIN_BUSY:
        return "the origin limits requests; lower origin.connections";
    case ERR_ORIGIN_SHORT:
        return "a proxy or the network cuts answers";
    case -ENOENT:
        return "check the name of the bucket, container or folder";
    default:
        return NULL;
    }
}

static void tell(struct run *x, int r, const struct err *e)
{
    const char *what = advice(x, r);
    say(x, "%.*s%s%s", TEXT_BYTES / 2, e->code ? e->text : err_text(r), what ? "; " : "", what ? what : "");
}

static int append(struct buf *b, const struct step *s, enum origin_check_state state, uint64_t ns, char *text)
{
    for (char *p = text; *p; p++)
        if ((unsigned char)*p < ' ')
            *p = ' ';
    return buf_printf(b, "%s\t%s\t%" PRIu64 "\t%s\n", s->name, origin_check_state_text(state), ns / 1000,
                      text);
}

static int run_step(struct run *x, const struct step *s, struct buf *b)
{
    struct err e = {0};
    x->text[0] = '\0';
    arena_clear(x->arena);
    if ((s->needs & WRITES) && x->read_only)
        return append(b, s, ORIGIN_CHECK_SKIPPED, 0, strcpy(x->text, "nothing may be written"));
    if ((s->needs & NEEDS_OBJECT) && !x->have)
        return append(b, s, ORIGIN_CHECK_SKIPPED, 0, strcpy(x->text, "there is no object to try it with"));
    uint64_t started_ns = sys->mono_ns();
    int r = s->run(x, &e);
    uint64_t ns = sys->mono_ns() - started_ns;
    if (r == -ECANCELED)
        return append(b, s, ORIGIN_CHECK_SKIPPED, 0, strcpy(x->text, "what it needs was not written"));
    if (r < 0)
        tell(x, r, &e);
    return append(b, s, r < 0 ? ORIGIN_CHECK_FAILED : r > 0 ? ORIGIN_CHECK_NO : ORIGIN_CHECK_OK, ns, x->text);
}

int origin_check(struct origin *o, bool read_only, struct buf *b)
{
    assert(o && b);
    uint8_t random[8];
    char hex[17];
    struct run x = {.o = o, .read_only = read_only, .arena = arena_new(ARENA_BYTES)};
    sys->random(random, sizeof(random));
    text_hex(random, sizeof(random), hex);
    (void)snprintf(x.small, sizeof(x.small), ".forebay-check-%s/a b+%%\xc3\xa4", hex);
    (void)snprintf(x.copy, sizeof(x.copy), ".forebay-check-%s/copy", hex);
    (void)snprintf(x.large, sizeof(x.large), ".forebay-check-%s/large", hex);
    int r = 0;
    for (size_t i = 0; i < ARRAY_SIZE(steps) && r == 0; i++) {
        r = run_step(&x, &steps[i], b);
        if (steps[i].run == step_write && !x.wrote[0]) {
            x.read_only = true; /* what cannot be written is still read */
            x.have = x.key[0];
        }
    }
    arena_free(x.arena);
    return r;
}

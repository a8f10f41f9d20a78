/*
 * Buckets in memory and in the control store.
 *
 * Records: key "b/NAME", value text lines:
 *
 *     forebay-bucket 2
 *     id=7
 *     created=1767225600000000000
 *     place=9                  in "forebay-bucket 3" only
 *     origin=s3://data
 *     ...                      one line per property that differs from its default
 *     origin.secret_key@1=...  a secret, sealed (namespace/seal.h) with the context "NAME\0origin.secret_key"
 *
 * What is cached of a bucket goes by its place: its id, until origin or BUCKET_PLACE change. With that
 * change, in its transaction, the bucket gets another number from the same counter, and its records are
 * "forebay-bucket 3", which have it. Records "forebay-bucket 1" have secrets as plain lines; they are read,
 * and written anew where there is a key to seal with (without a key to seal with, as in tests, records are of
 * that form). And key "n/bucket", the last id given out, as decimal text. Both are changed in one durable
 * transaction.
 *
 * Invariants:
 *  1. Ids rise and are never reused, also not after a bucket is deleted: cached data of a deleted bucket can
 * never be taken for data of a new one of the same name.
 *  2. A struct bucket never changes once it is in the table; a change replaces it.
 *  3. Nor is a place: what is cached of a place that is no bucket's any more is found by nobody, whatever a
 * crash left of it.
 */
#include "namespace/bucket.h"

#include "base/id.h"
#include "base/lock.h"
#include "base/sys.h"
#include "base/text.h"
#include "namespace/seal.h"

#include <inttypes.h>

#define BUCKET_MAGIC         0x62636b74u
#define BUCKET_RECORD_HEAD   "forebay-bucket 2\n"
#define BUCKET_RECORD_OLD    "forebay-bucket 1\n"
#define BUCKET_RECORD_PLACED "forebay-bucket 3\n"
#define PLACE_LINE           SLICE_LIT("place=")
#define SEALED_MARK          "@1"
#define BUCKET_RECORD_MAX    (64 * KIB)
#define BUCKET_VALUE_MAX     (16 * KIB)

struct guest {
    struct guest *next;
    char name[BUCKET_GUEST_NAME_SIZE]; /* "~" and 32 hex digits */
    struct bucket *bucket;
};

struct bucket_table {
    struct lock lock; /* covers v, n, cap, guests */
    struct guest *guests;
    struct kv *kv;
    const struct seal *seal; /* may be NULL */
    struct bucket **v;       /* sorted by name */
    size_t n, cap;
    atomic_bool any_lifecycle; /* one has rules, or had some */
};

#define ROW(base, field, type_, name_, arg_, def_, min_, max_, choices_, secret_, doc_)                      \
    {.name = (name_),                                                                                        \
     .type = OPTION_##type_,                                                                                 \
     .offset = (base) + offsetof(struct BUCKET_ROW_STRUCT, field),                                           \
     .def = (def_),                                                                                          \
     .min = (min_),                                                                                          \
     .max = (max_),                                                                                          \
     .choices = (choices_),                                                                                  \
     .arg = (arg_),                                                                                          \
     .doc = (doc_),                                                                                          \
     .secret = (secret_),                                                                                    \
     .reloadable = true},

static const struct option bucket_rows[] = {
#define BUCKET_ROW_STRUCT bucket_properties
#define X(...)            ROW(0, __VA_ARGS__)
    BUCKET_PROPERTIES(X)
#undef X
#undef BUCKET_ROW_STRUCT
#define BUCKET_ROW_STRUCT origin_options
#define X(...)            ROW(offsetof(struct bucket_properties, origin_options), __VA_ARGS__)
        ORIGIN_OPTIONS(X)
#undef X
#undef BUCKET_ROW_STRUCT
};

const struct option_table bucket_property_table = {bucket_rows, ARRAY_SIZE(bucket_rows), NULL};

struct bucket *bucket_ref(struct bucket *b)
{
    assert(b->magic == BUCKET_MAGIC);
    (void)atomic_fetch_add(&b->refs, 1);
    return b;
}

void bucket_unref(struct bucket *b)
{
    if (!b)
        return;
    assert(b->magic == BUCKET_MAGIC);
    if (atomic_fetch_sub(&b->refs, 1) != 1)
        return;
    option_fini(&bucket_property_table, &b->p);
    rules_fini(&b->rules);
    b->magic = 0;
    free(b);
}

int bucket_check_name(struct slice name, struct err *e)
{
    if (name.n < 3 || name.n > BUCKET_NAME_MAX)
        return err_set(e, ERR_BAD_OPTION, "bucket name '" SLICE_FMT "': must have 3 to %d characters",
                       SLICE_ARG(name), BUCKET_NAME_MAX);
    for (size_t i = 0; i < name.n; i++) {
        char c = name.p[i];
        bool alnum = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
        bool inner = (c == '.' || c == '-') && i > 0 && i + 1 < name.n;
        if (!alnum && !inner)
            return err_set(e, ERR_BAD_OPTION,
                           "bucket name '" SLICE_FMT
                           "': only a-z, 0-9, '-' and '.', beginning and ending with a "
                           "letter or digit",
                           SLICE_ARG(name));
    }
    return 0;
}

int bucket_parse_validate(const char *property, const char *text, enum bucket_validate *ret,
                          uint64_t *ret_ttl_ms, struct err *e)
{
    struct slice s = slice_str(text);
    uint64_t ttl_ms = 0;
    if (slice_eq_str(s, "never")) {
        *ret = BUCKET_VALIDATE_NEVER;
    } else if (slice_eq_str(s, "always")) {
        *ret = BUCKET_VALIDATE_ALWAYS;
    } else if (slice_starts(s, SLICE_LIT("ttl:")) && text_parse_duration(slice_from(s, 4), &ttl_ms) == 0) {
        *ret = BUCKET_VALIDATE_TTL;
    } else {
        return err_set(e, ERR_BAD_OPTION, "%s '%s': one of never, ttl:TIME (for example ttl:60s), always",
                       property, text ? text : "");
    }
    *ret_ttl_ms = ttl_ms;
    return 0;
}

bool bucket_is_scratch(const struct bucket *b)
{
    return !b->p.origin;
}

bool bucket_is_memory(const struct bucket *b)
{
    return b->p.values == BUCKET_VALUES_MEMORY;
}

static bool same_text(const char *a, const char *b)
{
    return slice_eq(slice_str(a), slice_str(b));
}

bool bucket_same_origin(const struct bucket *a, const struct bucket *b)
{
    const struct origin_options *x = &a->p.origin_options, *y = &b->p.origin_options;
#define X(field) &&same_text(x->field, y->field)
    return same_text(a->p.origin, b->p.origin) BUCKET_PLACE(X);
#undef X
}

bool bucket_is_place(struct slice property)
{
#define X(field) || slice_eq_str(property, "origin." #field)
    return slice_eq_str(property, "origin") BUCKET_PLACE(X);
#undef X
}

/* Whether buckets of this kind have the property. */
static bool property_applies(const struct bucket *b, const char *name)
{
#define X(name_) name_,
    static const char *const mirror_only[] = {BUCKET_MIRROR_ONLY(X)}, *const scratch_only[] = {
                                                                          BUCKET_SCRATCH_ONLY(X)};
#undef X
    bool scratch = bucket_is_scratch(b);
    if (scratch && strncmp(name, "origin.", strlen("origin.")) == 0)
        return false;
    for (size_t i = 0; scratch && i < ARRAY_SIZE(mirror_only); i++)
        if (strcmp(name, mirror_only[i]) == 0)
            return false;
    for (size_t i = 0; !scratch && i < ARRAY_SIZE(scratch_only); i++)
        if (strcmp(name, scratch_only[i]) == 0)
            return false;
    return true;
}

/* What does not apply must be as it is by default. */
static int check_row(const struct bucket *b, const struct bucket_properties *by_default,
                     const struct option *row, struct err *e)
{
    _cleanup_buf_ struct buf value = BUF_INIT(BUCKET_VALUE_MAX + 1), usual = BUF_INIT(BUCKET_VALUE_MAX + 1);
    if (property_applies(b, row->name) || option_get(&bucket_property_table, &b->p, row->name, &value) < 0 ||
        option_get(&bucket_property_table, by_default, row->name, &usual) < 0 ||
        slice_eq(buf_view(&value), buf_view(&usual)))
        return 0;
    return err_set(e, ERR_BAD_OPTION,
                   bucket_is_scratch(b) ? "%s is of buckets with an origin: a scratch bucket has none"
                                        : "%s is of scratch buckets: this one has an origin",
                   row->name);
}

static int check_applies(const struct bucket *b, struct err *e)
{
    struct bucket_properties by_default;
    int r = option_init(&bucket_property_table, &by_default, e);
    for (size_t i = 0; r == 0 && i < bucket_property_table.n_rows; i++)
        r = check_row(b, &by_default, &bucket_property_table.rows[i], e);
    option_fini(&bucket_property_table, &by_default);
    return r;
}

/* "UID:GID"; nothing: the node's own. */
static int parse_owner(const char *text, uint32_t *ret_uid, uint32_t *ret_gid, struct err *e)
{
    uint64_t uid = getuid(), gid = getgid();
    struct slice rest = slice_str(text);
    if (rest.n > 0) {
        struct slice first = slice_split(&rest, ':');
        if (slice_u64(first, &uid) < 0 || slice_u64(rest, &gid) < 0 || uid >= UINT32_MAX || gid >= UINT32_MAX)
            return err_set(e, ERR_BAD_OPTION, "owner '%s': must be UID:GID, two numbers", text);
    }
    *ret_uid = (uint32_t)uid;
    *ret_gid = (uint32_t)gid;
    return 0;
}

static int parse_mode(const char *text, uint32_t *ret, struct err *e)
{
    uint32_t mode = 0;
    size_t n = text ? strlen(text) : 0;
    for (size_t i = 0; i < n && n <= 5; i++)
        mode = text[i] >= '0' && text[i] <= '7' ? mode * 8 + (uint32_t)(text[i] - '0') : UINT16_MAX;
    if (n == 0 || n > 5 || mode > 07777)
        return err_set(e, ERR_BAD_OPTION, "mode '%s': must be octal digits, 0 to 7777", text ? text : "");
    *ret = mode;
    return 0;
}

/* Earlier versions are read-only: what a node acknowledged could never get there. */
static int check_view(const struct bucket *b, struct err *e)
{
    const struct origin_options *o = &b->p.origin_options;
    bool is_view = slice_str(o->as_of).n > 0 || slice_str(o->version).n > 0;
    uint64_t ns;
    if (o->as_of && o->as_of[0] && text_parse_when(slice_str(o->as_of), &ns) < 0)
        return err_set(e, ERR_BAD_OPTION,
                       "origin.as_of '%s': must be a date as 2026-01-31 or 2026-01-31T00:00:00Z", o->as_of);
    if (is_view && b->p.write == BUCKET_WRITE_BACK)
        return err_set(e, ERR_BAD_OPTION,
                       "write=back: not with origin.as_of or origin.version, which are read-only");
    return 0;
}

static int parse_ages(struct bucket *b, struct err *e)
{
    int r = bucket_parse_validate("validate", b->p.validate, &b->validate, &b->ttl_ms, e);
    const char *own = b->p.validate_listing;
    if (r == 0 && own && own[0])
        return bucket_parse_validate("validate.listing", own, &b->validate_listing, &b->listing_ttl_ms, e);
    b->validate_listing = b->validate;
    b->listing_ttl_ms = b->ttl_ms;
    return r;
}

/* Checks what one property alone cannot show, and fills the derived fields. */
static int bucket_finish(struct bucket *b, struct err *e)
{
    if (b->p.origin && !*b->p.origin) {
        free(b->p.origin);
        b->p.origin = NULL;
    }
    rules_fini(&b->rules);
    int r = rules_parse(b->p.rules, &b->rules, e);
    if (r == 0)
        r = parse_ages(b, e);
    if (r == 0)
        r = parse_owner(b->p.owner, &b->owner_uid, &b->owner_gid, e);
    if (r == 0)
        r = parse_mode(b->p.mode, &b->root_mode, e);
    if (r == 0 && bucket_is_memory(b) && b->p.quota > 0)
        r = err_set(e, ERR_BAD_OPTION, "quota is of buckets with files: one with values=memory has none");
    if (r == 0)
        r = check_view(b, e);
    if (r == 0 && b->p.keep > 0 && b->p.quota > 0 && b->p.keep > b->p.quota)
        r = err_set(e, ERR_BAD_OPTION, "keep: more than the bucket's quota can never be in the cache");
    return r < 0 ? r : check_applies(b, e);
}

enum rule_keep bucket_keep(const struct bucket *b, struct slice key)
{
    enum rule_keep said = rules_keep(&b->rules, key);
    return said == RULE_KEEP_UNSAID && b->p.cache == BUCKET_CACHE_NEVER ? RULE_KEEP_NEVER : said;
}

static struct bucket *bucket_new(struct slice name, struct err *e)
{
    struct bucket *b = calloc(1, sizeof(*b));
    assert(b && name.n <= BUCKET_NAME_MAX);
    b->magic = BUCKET_MAGIC;
    atomic_init(&b->refs, 1);
    memcpy(b->name, name.p, name.n);
    if (option_init(&bucket_property_table, &b->p, e) < 0) {
        bucket_unref(b);
        return NULL;
    }
    return b;
}

static int bucket_apply_line(struct bucket *b, struct slice line, struct err *e)
{
    ssize_t eq = slice_find(line, '=');
    if (eq <= 0)
        return err_set(e, ERR_BAD_OPTION, "setting '" SLICE_FMT "': must be NAME=VALUE", SLICE_ARG(line));
    struct slice value = slice_from(line, (size_t)eq + 1);
    if (value.n > BUCKET_VALUE_MAX)
        return err_set(e, ERR_BAD_OPTION, "setting '" SLICE_FMT "': value longer than %d bytes", (int)eq,
                       line.p, (int)BUCKET_VALUE_MAX);
    _cleanup_free_ char *name = slice_dup(slice_sub(line, 0, (size_t)eq));
    _cleanup_free_ char *text = slice_dup(value);
    const struct option *row = option_find(&bucket_property_table, name);
    const char *wanted = text;
    if (row && value.n == 0)
        wanted = row->def ? row->def : "";
    return option_set(&bucket_property_table, &b->p, name, wanted, name, e);
}

static int bucket_apply(struct bucket *b, struct slice settings, struct err *e)
{
    while (settings.n > 0) {
        struct slice line = slice_split(&settings, '\n');
        if (line.n == 0)
            continue;
        int r = bucket_apply_line(b, line, e);
        if (r < 0)
            return r;
    }
    return bucket_finish(b, e);
}

int bucket_settings(const struct bucket *b, bool show_secrets, struct buf *out)
{
    for (size_t i = 0; i < bucket_property_table.n_rows; i++) {
        const struct option *row = &bucket_property_table.rows[i];
        _cleanup_buf_ struct buf value = BUF_INIT(BUCKET_VALUE_MAX + 1);
        if (option_get(&bucket_property_table, &b->p, row->name, &value) < 0 || value.n == 0)
            continue;
        if (!property_applies(b, row->name))
            continue;
        bool hide = row->secret && !show_secrets;
        int r =
            buf_printf(out, "%s=" SLICE_FMT "\n", row->name, hide ? 3 : (int)value.n, hide ? "***" : value.p);
        if (r < 0)
            return r;
    }
    return 0;
}

/* ---- records ---- */

/* What a secret is of: the bucket and the property. */
static void seal_context(const struct bucket *b, struct slice property, struct buf *out)
{
    int r = buf_append(out, b->name, strlen(b->name) + 1);
    if (r == 0)
        r = buf_slice(out, property);
    assert(r == 0);
}

static int seal_line(const struct bucket *b, const struct seal *seal, const char *name, struct slice value,
                     struct buf *out)
{
    _cleanup_buf_ struct buf context = BUF_INIT(KIB);
    seal_context(b, slice_str(name), &context);
    int r = buf_printf(out, "%s" SEALED_MARK "=", name);
    if (r == 0)
        r = seal_wrap(seal, buf_view(&context), value, out);
    return r == 0 ? buf_char(out, '\n') : r;
}

static int record_encode(const struct bucket *b, const struct seal *seal, struct buf *out)
{
    bool is_placed = b->place != b->id;
    const char *head = !seal ? BUCKET_RECORD_OLD : is_placed ? BUCKET_RECORD_PLACED : BUCKET_RECORD_HEAD;
    int r = buf_printf(out, "%sid=%" PRIu64 "\ncreated=%" PRIu64 "\n", head, b->id, b->created_ns);
    if (r == 0 && is_placed)
        r = buf_printf(out, SLICE_FMT "%" PRIu64 "\n", SLICE_ARG(PLACE_LINE), b->place);
    for (size_t i = 0; r == 0 && i < bucket_property_table.n_rows; i++) {
        const struct option *row = &bucket_property_table.rows[i];
        _cleanup_buf_ struct buf value = BUF_INIT(BUCKET_VALUE_MAX + 1);
        if (option_get(&bucket_property_table, &b->p, row->name, &value) < 0 || value.n == 0)
            continue;
        if (row->def && slice_eq_str(buf_view(&value), row->def))
            continue;
        r = row->secret && seal
                ? seal_line(b, seal, row->name, buf_view(&value), out)
                : buf_printf(out, "%s=" SLICE_FMT "\n", row->name, SLICE_ARG(buf_view(&value)));
        if (row->secret)
            explicit_bzero(value.p, value.n);
    }
    return r;
}

/* The lines of a record with their secrets opened. */
static int open_secrets(const struct bucket *b, const struct seal *seal, struct slice lines, struct buf *out,
                        struct err *e)
{
    int r = 0;
    while (lines.n > 0 && r == 0) {
        struct slice line = slice_split(&lines, '\n'), value = line, name = slice_split(&value, '=');
        if (!slice_ends(name, SLICE_LIT(SEALED_MARK))) {
            r = buf_printf(out, SLICE_FMT "\n", SLICE_ARG(line));
            continue;
        }
        _cleanup_buf_ struct buf context = BUF_INIT(KIB);
        name = slice_sub(name, 0, name.n - strlen(SEALED_MARK));
        if (!seal || name.n > BUCKET_NAME_MAX)
            return err_set(e, ERR_CORRUPT, "a secret is sealed, and there is no key");
        seal_context(b, name, &context);
        r = buf_printf(out, SLICE_FMT "=", SLICE_ARG(name));
        if (r == 0)
            r = seal_unwrap(seal, buf_view(&context), value, out, e);
        if (r == 0)
            r = buf_char(out, '\n');
    }
    return r;
}

static int record_field(struct slice *s, const char *name, uint64_t *ret)
{
    struct slice line = slice_split(s, '\n');
    struct slice key = slice_split(&line, '=');
    return slice_eq_str(key, name) ? slice_u64(line, ret) : -EINVAL;
}

static int record_decode(struct slice name, struct slice value, const struct seal *seal, struct bucket **ret,
                         struct err *e)
{
    if (name.n == 0 || name.n > BUCKET_NAME_MAX ||
        (!slice_starts(value, SLICE_LIT(BUCKET_RECORD_HEAD)) &&
         !slice_starts(value, SLICE_LIT(BUCKET_RECORD_PLACED)) &&
         !slice_starts(value, SLICE_LIT(BUCKET_RECORD_OLD))))
        return err_set(e, ERR_CORRUPT, "record of bucket '" SLICE_FMT "' is not one of ours",
                       SLICE_ARG(name));
    struct slice rest = slice_from(value, sizeof(BUCKET_RECORD_HEAD) - 1);
    _cleanup_(bucket_unrefp) struct bucket *b = bucket_new(name, e);
    if (!b)
        return -ENOMEM;
    if (record_field(&rest, "id", &b->id) < 0 || record_field(&rest, "created", &b->created_ns) < 0)
        return err_set(e, ERR_CORRUPT, "record of bucket '%s' lacks its id", b->name);
    b->place = b->id;
    bool is_placed = slice_starts(value, SLICE_LIT(BUCKET_RECORD_PLACED)) || slice_starts(rest, PLACE_LINE);
    if (is_placed && record_field(&rest, "place", &b->place) < 0)
        return err_set(e, ERR_CORRUPT, "record of bucket '%s' lacks its place", b->name);
    _cleanup_buf_ struct buf lines = BUF_INIT(BUCKET_RECORD_MAX);
    int r = open_secrets(b, seal, rest, &lines, e);
    if (r == 0)
        r = bucket_apply(b, buf_view(&lines), e);
    if (lines.p)
        explicit_bzero(lines.p, lines.n);
    if (r < 0)
        return err_prefix(e, r, "record of bucket '%s'", b->name);
    *ret = TAKE_PTR(b);
    return 0;
}

/* ---- table ---- */

static size_t table_position(const struct bucket_table *t, struct slice name, bool *ret_found)
{
    size_t low = 0, high = t->n;
    *ret_found = false;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        int c = slice_cmp(slice_str(t->v[mid]->name), name);
        if (c == 0) {
            *ret_found = true;
            return mid;
        }
        if (c < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

/* Takes over the reference; replaces a bucket of the same name. */
static void table_put_locked(struct bucket_table *t, struct bucket *b)
{
    lock_assert_held(&t->lock);
    bool found;
    size_t i = table_position(t, slice_str(b->name), &found);
    if (b->p.s3_lifecycle)
        atomic_store(&t->any_lifecycle, true);
    if (found) {
        atomic_store(&t->v[i]->retired, true);
        bucket_unref(t->v[i]);
        t->v[i] = b;
        return;
    }
    if (t->n == t->cap) {
        t->cap = t->cap ? t->cap * 2 : 16;
        t->v = realloc(t->v, t->cap * sizeof(t->v[0]));
        assert(t->v);
    }
    memmove(t->v + i + 1, t->v + i, (t->n - i) * sizeof(t->v[0]));
    t->v[i] = b;
    t->n++;
}

static int record_commit(struct bucket_table *t, struct kv_txn *txn, struct bucket *b, struct err *e);

/* Writes a record of before secrets were sealed in today's form. */
static int record_renew(struct bucket_table *t, struct bucket *b, struct err *e)
{
    _cleanup_(kv_txn_freep) struct kv_txn *txn = kv_txn_new(t->kv);
    return record_commit(t, txn, b, e);
}

static int table_load(struct bucket_table *t, struct err *e)
{
    _cleanup_(kv_iter_freep) struct kv_iter *it = kv_iter_new(t->kv, SLICE_LIT("b/"), SLICE_LIT("b0"));
    for (;;) {
        struct slice key, value;
        int r = kv_iter_next(it, &key, &value, e);
        if (r == -ENOENT)
            return 0;
        if (r < 0)
            return r;
        struct bucket *b = NULL;
        bool old = t->seal && slice_starts(value, SLICE_LIT(BUCKET_RECORD_OLD));
        r = record_decode(slice_from(key, 2), value, t->seal, &b, e);
        if (r < 0)
            return r;
        _cleanup_buf_ struct buf again = BUF_INIT(BUCKET_RECORD_MAX);
        r = kv_get(t->kv, key, &again, &b->version, e);
        if (r == 0 && old)
            r = record_renew(t, b, e);
        LOCK_SCOPE(&t->lock);
        table_put_locked(t, b);
        if (r < 0)
            return r;
    }
}

int bucket_table_open(struct kv *kv, const struct seal *seal, struct bucket_table **ret, struct err *e)
{
    _cleanup_(bucket_table_closep) struct bucket_table *t = calloc(1, sizeof(*t));
    assert(t);
    lock_init(&t->lock, LOCK_BUCKET);
    t->kv = kv;
    t->seal = seal;
    int r = table_load(t, e);
    if (r < 0)
        return err_prefix(e, r, "control store");
    *ret = TAKE_PTR(t);
    return 0;
}

void bucket_table_close(struct bucket_table *t)
{
    if (!t)
        return;
    for (size_t i = 0; i < t->n; i++)
        bucket_unref(t->v[i]);
    free(t->v);
    while (t->guests)
        (void)bucket_guest_remove(t, slice_str(t->guests->name));
    lock_fini(&t->lock);
    free(t);
}

/* ---- guests ---- */

#define GUEST_BIT ((uint64_t)1 << 63) /* of ids: numbers that are counted never get there */

bool bucket_is_guest(const struct bucket *b)
{
    return b->id & GUEST_BIT;
}

static struct guest **guest_locked(struct bucket_table *t, struct slice name)
{
    struct guest **at = &t->guests;
    while (*at && !slice_eq_str(name, (*at)->name))
        at = &(*at)->next;
    return at;
}

int bucket_guest_add(struct bucket_table *t, const char *label, struct slice settings,
                     char ret_name[BUCKET_GUEST_NAME_SIZE], struct bucket **ret, struct err *e)
{
    assert(strlen(label) <= BUCKET_NAME_MAX);
    _cleanup_(bucket_unrefp) struct bucket *b = bucket_new(slice_str(label), e);
    if (!b)
        return -ENOMEM;
    int r = bucket_apply(b, settings, e);
    if (r < 0)
        return r;
    struct id128 id;
    id_new(&id);
    memcpy(&b->id, id.b, sizeof(b->id));
    b->id |= GUEST_BIT;
    b->place = b->id;
    b->created_ns = sys->real_ns();
    struct guest *g = calloc(1, sizeof(*g));
    assert(g);
    g->name[0] = '~';
    id_new(&id);
    id_text(id, g->name + 1);
    g->bucket = bucket_ref(b);
    memcpy(ret_name, g->name, sizeof(g->name));
    LOCK_SCOPE(&t->lock);
    g->next = t->guests;
    t->guests = g;
    *ret = TAKE_PTR(b);
    return 0;
}

bool bucket_guest_remove(struct bucket_table *t, struct slice name)
{
    lock_take(&t->lock);
    struct guest **at = guest_locked(t, name), *g = *at;
    if (g)
        *at = g->next;
    lock_drop(&t->lock);
    if (!g)
        return false;
    atomic_store(&g->bucket->retired, true);
    bucket_unref(g->bucket);
    free(g);
    return true;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

const char **bucket_labels(struct bucket_table *t, size_t *ret_n)
{
    LOCK_SCOPE(&t->lock);
    size_t n = t->n, i = 0;
    for (const struct guest *g = t->guests; g; g = g->next)
        n++;
    const char **names = calloc(MAX(n, (size_t)1), sizeof(*names) + BUCKET_NAME_MAX + 1);
    assert(names);
    char *text = (char *)(names + n);
    for (const struct guest *g = t->guests; i < n; i++, text += BUCKET_NAME_MAX + 1) {
        names[i] = text;
        (void)snprintf(text, BUCKET_NAME_MAX + 1, "%s", i < t->n ? t->v[i]->name : g->bucket->name);
        if (i >= t->n)
            g = g->next;
    }
    qsort(names, n, sizeof(*names), by_text);
    *ret_n = n;
    return names;
}

int bucket_find(struct bucket_table *t, struct slice name, struct bucket **ret, struct err *e)
{
    LOCK_SCOPE(&t->lock);
    bool found;
    size_t i = table_position(t, name, &found);
    const struct guest *g = found ? NULL : *guest_locked(t, name);
    if (!found && !g)
        return err_set(e, ERR_NO_BUCKET, "bucket '" SLICE_FMT "' does not exist",
                       SLICE_ARG(slice_sub(name, 0, 80)));
    *ret = bucket_ref(g ? g->bucket : t->v[i]);
    return 0;
}

bool bucket_any_lifecycle(const struct bucket_table *t)
{
    return atomic_load_explicit(&t->any_lifecycle, memory_order_relaxed);
}

struct bucket *bucket_find_id(struct bucket_table *t, uint64_t id)
{
    LOCK_SCOPE(&t->lock);
    for (size_t i = 0; i < t->n; i++)
        if (t->v[i]->id == id)
            return bucket_ref(t->v[i]);
    for (const struct guest *g = t->guests; g; g = g->next)
        if (g->bucket->id == id)
            return bucket_ref(g->bucket);
    return NULL;
}

struct bucket *bucket_find_place(struct bucket_table *t, uint64_t place)
{
    LOCK_SCOPE(&t->lock);
    for (size_t i = 0; i < t->n; i++)
        if (t->v[i]->place == place)
            return bucket_ref(t->v[i]);
    for (const struct guest *g = t->guests; g; g = g->next)
        if (g->bucket->place == place)
            return bucket_ref(g->bucket);
    return NULL;
}

size_t bucket_page(struct bucket_table *t, struct slice after, struct bucket **ret, size_t max)
{
    LOCK_SCOPE(&t->lock);
    bool found;
    size_t i = table_position(t, after, &found), n = 0;
    if (found)
        i++;
    for (; i < t->n && n < max; i++)
        ret[n++] = bucket_ref(t->v[i]);
    return n;
}

struct bucket *bucket_next(struct bucket_table *t, struct bucket *before)
{
    struct bucket *next = NULL;
    (void)bucket_page(t, before ? slice_str(before->name) : SLICE_NULL, &next, 1);
    bucket_unref(before);
    return next;
}

static void record_key(const char *name, struct buf *key)
{
    int r = buf_printf(key, "b/%s", name);
    assert(r == 0);
}

static int record_commit(struct bucket_table *t, struct kv_txn *txn, struct bucket *b, struct err *e)
{
    _cleanup_buf_ struct buf key = BUF_INIT(BUCKET_NAME_MAX + 3), value = BUF_INIT(BUCKET_RECORD_MAX);
    record_key(b->name, &key);
    int r = record_encode(b, t->seal, &value);
    if (r < 0)
        return err_set(e, r, "bucket '%s': settings are too long", b->name);
    kv_txn_check(txn, buf_view(&key), b->version);
    kv_txn_put(txn, buf_view(&key), buf_view(&value));
    return kv_txn_commit_version(txn, KV_DURABLE, &b->version, e);
}

/* The last number given out, 0 before the first, and the version of its record. */
static int last_number(struct bucket_table *t, uint64_t *ret, uint64_t *ret_version, struct err *e)
{
    _cleanup_buf_ struct buf value = BUF_INIT(32);
    uint64_t version = 0, last = 0;
    int r = kv_get(t->kv, SLICE_LIT("n/bucket"), &value, &version, e);
    if (r < 0 && r != -ENOENT)
        return r;
    if (r == 0 && slice_u64(buf_view(&value), &last) < 0)
        return err_set(e, ERR_CORRUPT, "control store: counter of bucket ids is not a number");
    *ret = last;
    *ret_version = version;
    return 0;
}

uint64_t bucket_last_place(struct bucket_table *t)
{
    uint64_t last = 0, version;
    return last_number(t, &last, &version, NULL) < 0 ? 0 : last;
}

/* The next id, and its change as part of txn. */
static int next_id(struct bucket_table *t, struct kv_txn *txn, uint64_t *ret, struct err *e)
{
    uint64_t version = 0, last = 0;
    int r = last_number(t, &last, &version, e);
    if (r < 0)
        return r;
    char text[32];
    (void)snprintf(text, sizeof(text), "%" PRIu64, last + 1);
    kv_txn_check(txn, SLICE_LIT("n/bucket"), version);
    kv_txn_put(txn, SLICE_LIT("n/bucket"), slice_str(text));
    *ret = last + 1;
    return 0;
}

int bucket_preview(struct slice name, struct slice settings, struct bucket **ret, struct err *e)
{
    int r = bucket_check_name(name, e);
    if (r < 0)
        return r;
    _cleanup_(bucket_unrefp) struct bucket *b = bucket_new(name, e);
    if (!b)
        return -ENOMEM;
    r = bucket_apply(b, settings, e);
    if (r == 0)
        *ret = TAKE_PTR(b);
    return r;
}

int bucket_create(struct bucket_table *t, struct slice name, struct slice settings, struct bucket **ret,
                  struct err *e)
{
    _cleanup_(bucket_unrefp) struct bucket *b = NULL;
    int r = bucket_preview(name, settings, &b, e);
    if (r < 0)
        return r;
    b->created_ns = sys->real_ns();

    LOCK_SCOPE(
        &t->lock); /* held over the commit: creation is rare, and two of one name must not both succeed */
    bool found;
    (void)table_position(t, name, &found);
    if (found)
        return err_set(e, ERR_BUCKET_EXISTS, "bucket '%s' exists already", b->name);
    _cleanup_(kv_txn_freep) struct kv_txn *txn = kv_txn_new(t->kv);
    r = next_id(t, txn, &b->id, e);
    b->place = b->id;
    if (r == 0)
        r = record_commit(t, txn, b, e);
    if (r < 0)
        return err_prefix(e, r, "create bucket %s", b->name);
    table_put_locked(t, bucket_ref(b));
    *ret = TAKE_PTR(b);
    return 0;
}

int bucket_change(struct bucket_table *t, struct slice name, struct slice settings, struct bucket **ret,
                  struct err *e)
{
    _cleanup_(bucket_unrefp) struct bucket *old = NULL;
    int r = bucket_find(t, name, &old, e);
    return r < 0 ? r : bucket_change_of(t, old, settings, ret, e);
}

/* "s3" of "s3://data". */
static struct slice scheme_of(struct slice url)
{
    return slice_split(&url, ':');
}

/* Whether settings give the bucket an origin of another kind. */
static bool changes_kind(const struct bucket *old, struct slice settings)
{
    bool changes = false;
    while (settings.n > 0) {
        struct slice line = slice_split(&settings, '\n'), name = slice_split(&line, '=');
        if (slice_eq_str(name, "origin"))
            changes = !slice_eq(scheme_of(line), scheme_of(slice_str(old->p.origin)));
    }
    return changes && !bucket_is_scratch(old);
}

static bool is_of_one_kind(struct slice name)
{
#define X(field) || slice_eq_str(name, "origin." #field)
    return slice_starts(name, SLICE_LIT("origin.")) && !(false BUCKET_ANY_ORIGIN(X));
#undef X
}

/* What the bucket has when `settings` come: an origin of another kind begins with nothing of the former's
 * address, account and keys, which would be sent elsewhere. */
static int settings_that_stay(const struct bucket *old, struct slice settings, struct buf *ret)
{
    _cleanup_buf_ struct buf now = BUF_INIT(BUCKET_SETTINGS_MAX);
    int r = bucket_settings(old, /* show_secrets= */ true, &now);
    bool other = changes_kind(old, settings);
    for (struct slice rest = buf_view(&now); r == 0 && rest.n > 0;) {
        struct slice line = slice_split(&rest, '\n'), value = line, name = slice_split(&value, '=');
        if (!other || !is_of_one_kind(name))
            r = buf_printf(ret, SLICE_FMT "\n", SLICE_ARG(line));
    }
    explicit_bzero(now.p, now.n);
    return r;
}

int bucket_preview_of(const struct bucket *old, struct slice settings, struct bucket **ret, struct err *e)
{
    _cleanup_(bucket_unrefp) struct bucket *b = bucket_new(slice_str(old->name), e);
    if (!b)
        return -ENOMEM;
    b->id = old->id;
    b->place = old->place;
    b->created_ns = old->created_ns;
    b->version = old->version;
    _cleanup_buf_ struct buf now = BUF_INIT(BUCKET_SETTINGS_MAX);
    int r = settings_that_stay(old, settings, &now);
    if (r == 0)
        r = bucket_apply(b, buf_view(&now), e);
    if (r == 0)
        r = bucket_apply(b, settings, e);
    if (r == 0 && bucket_is_scratch(b) != bucket_is_scratch(old))
        r = err_set(e, ERR_BAD_OPTION,
                    bucket_is_scratch(old) ? "origin: a scratch bucket cannot become a mirror of one"
                                           : "origin: a mirror cannot become a scratch bucket");
    if (r == 0 && b->p.values != old->p.values)
        r = err_set(e, ERR_BAD_OPTION, "values: is chosen when a bucket is made, and stays");
    if (r == 0)
        *ret = TAKE_PTR(b);
    return r;
}

int bucket_change_of(struct bucket_table *t, const struct bucket *old, struct slice settings,
                     struct bucket **ret, struct err *e)
{
    _cleanup_(bucket_unrefp) struct bucket *b = NULL;
    int r = bucket_preview_of(old, settings, &b, e);
    if (r < 0)
        return r;
    LOCK_SCOPE(&t->lock); /* as in bucket_create */
    _cleanup_(kv_txn_freep) struct kv_txn *txn = kv_txn_new(t->kv);
    if (!bucket_same_origin(old, b))
        r = next_id(t, txn, &b->place, e);
    if (r == 0)
        r = record_commit(t, txn, b, e);
    if (r < 0)
        return err_prefix(e, r, "change bucket %s", b->name);
    table_put_locked(t, bucket_ref(b));
    *ret = TAKE_PTR(b);
    return 0;
}

int bucket_delete(struct bucket_table *t, const struct bucket *b, struct err *e)
{
    LOCK_SCOPE(&t->lock); /* as in bucket_create */
    bool found;
    size_t i = table_position(t, slice_str(b->name), &found);
    if (!found || t->v[i]->id != b->id)
        return err_set(e, ERR_NO_BUCKET, "bucket '%s' does not exist any more", b->name);
    _cleanup_buf_ struct buf key = BUF_INIT(BUCKET_NAME_MAX + 3);
    record_key(t->v[i]->name, &key);
    _cleanup_(kv_txn_freep) struct kv_txn *txn = kv_txn_new(t->kv);
    kv_txn_check(txn, buf_view(&key), t->v[i]->version);
    kv_txn_delete(txn, buf_view(&key));
    int r = kv_txn_commit(txn, KV_DURABLE, e);
    if (r < 0)
        return err_prefix(e, r, "remove bucket %s", t->v[i]->name);
    atomic_store(&t->v[i]->retired, true);
    bucket_unref(t->v[i]);
    memmove(t->v + i, t->v + i + 1, (t->n - i - 1) * sizeof(t->v[0]));
    t->n--;
    return 0;
}

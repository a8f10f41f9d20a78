/*
 * Lifecycle rules (contract in lifecycle.h).
 *
 * 1. What a document asks for and is not done here is refused, never ignored: nobody counts on a rule that
 * does nothing.
 * 2. A rule says each thing once, and what it is about either by Prefix or by Filter: of two that differ one
 * would be lost, and the rule would remove more than was meant.
 * 3. An object whose time nobody knows never ends by days.
 */
#include "s3/lifecycle.h"

#include "base/text.h"

#define REFUSE(error, reason) (*ret_reason = (reason), S3_ERR_##error)

#define ROOT   "LifecycleConfiguration"
#define RULE   ROOT "/Rule"
#define DAY_NS (24 * 3600 * (uint64_t)1000000000)

/* What a rule may say once. */
enum said {
    SAID_ID = 1 << 0,
    SAID_STATUS = 1 << 1,
    SAID_PREFIX = 1 << 2, /* of the rule itself */
    SAID_FILTER = 1 << 3,
    SAID_AND = 1 << 4,
    SAID_FILTER_PREFIX = 1 << 5,
    SAID_LARGER = 1 << 6,
    SAID_LESS = 1 << 7,
    SAID_EXPIRATION = 1 << 8,
    SAID_DAYS = 1 << 9,
    SAID_DATE = 1 << 10,
    SAID_ABORT = 1 << 11,
};

struct reader {
    struct arena *arena;
    struct lifecycle *rules;
    unsigned said; /* enum said, of the rule that is being read */
    bool in_rule, has_action, has_key, has_value;
    struct tag tag; /* that is being read */
    enum s3_error error;
    const char *reason;
};

static int fail(struct reader *r, enum s3_error error, const char *reason)
{
    r->error = error;
    r->reason = reason;
    return -ECANCELED;
}

static int once(struct reader *r, enum said what)
{
    if (r->said & what)
        return ERR_PROTOCOL;
    r->said |= what;
    return 0;
}

static int read_days(struct reader *r, struct slice text, uint64_t *ret)
{
    if (slice_u64(slice_trim(text), ret) || *ret < 1 || *ret > LIFECYCLE_DAYS_MAX)
        return fail(r, S3_ERR_INVALID_ARGUMENT, "days must be a number from 1 to 36500");
    r->has_action = true;
    return 0;
}

static int read_date(struct reader *r, struct slice text, uint64_t *ret)
{
    text = slice_trim(text);
    if (text.n == strlen("2026-01-31")) /* a day alone is its midnight */
        text = slice_str(arena_printf(r->arena, SLICE_FMT "T00:00:00Z", SLICE_ARG(text)));
    if (text_parse_date(text, ret) || *ret == 0)
        return ERR_PROTOCOL;
    if (*ret % DAY_NS)
        return fail(r, S3_ERR_INVALID_ARGUMENT, "Date must be midnight, as 2026-01-31T00:00:00Z");
    r->has_action = true;
    return 0;
}

static int read_prefix(struct reader *r, struct slice text, struct slice *ret)
{
    if (text.n > LIFECYCLE_PREFIX_MAX)
        return fail(r, S3_ERR_INVALID_REQUEST, "a prefix has at most 1024 bytes");
    *ret = arena_dup(r->arena, text);
    return 0;
}

static int read_status(struct slice text, bool *ret)
{
    text = slice_trim(text);
    *ret = slice_eq_str(text, "Enabled");
    return *ret || slice_eq_str(text, "Disabled") ? 0 : ERR_PROTOCOL;
}

static int end_rule(struct reader *r)
{
    struct lifecycle_rule *rule = &r->rules->rules[r->rules->n];

    r->in_rule = false;
    if (!(r->said & SAID_STATUS) || !(r->said & SAID_PREFIX) == !(r->said & SAID_FILTER))
        return ERR_PROTOCOL;
    if (!r->has_action)
        return fail(r, S3_ERR_INVALID_REQUEST,
                    "a rule must do something: Expiration or "
                    "AbortIncompleteMultipartUpload");
    if (rule->days && rule->date_ns)
        return ERR_PROTOCOL;
    if (rule->abort_days && rule->n_tags)
        return fail(r, S3_ERR_INVALID_REQUEST,
                    "uploads have no tags: AbortIncompleteMultipartUpload needs a rule "
                    "without Tag");
    if (rule->larger_than >= rule->less_than)
        return fail(r, S3_ERR_INVALID_REQUEST, "ObjectSizeGreaterThan must be below ObjectSizeLessThan");
    for (size_t i = 0; i < r->rules->n; i++)
        if (rule->id.n && slice_eq(r->rules->rules[i].id, rule->id))
            return fail(r, S3_ERR_INVALID_ARGUMENT, "two rules have the same ID");
    r->rules->n++;
    return 0;
}

/* Elements of a tag. */
static int in_tag(struct reader *r, struct lifecycle_rule *rule, const char *path, struct slice text)
{
    if (strcmp(path, "/Key") == 0) {
        r->tag.key = arena_dup(r->arena, text);
        r->has_key = true;
        return 0;
    }
    if (strcmp(path, "/Value") == 0) {
        r->tag.value = arena_dup(r->arena, text);
        r->has_value = true;
        return 0;
    }
    if (path[0] || !r->has_key || !r->has_value)
        return ERR_PROTOCOL;
    if (rule->n_tags == TAGS_OBJECT_MAX)
        return fail(r, S3_ERR_INVALID_REQUEST, "a rule names 10 tags at most, as many as an object has");
    if (!rule->tags)
        rule->tags = arena_alloc(r->arena, TAGS_OBJECT_MAX * sizeof rule->tags[0]);
    rule->tags[rule->n_tags++] = r->tag;
    r->has_key = r->has_value = false;
    return 0;
}

/* Filter itself, and what is below it and below its And. */
static int in_filter(struct reader *r, struct lifecycle_rule *rule, const char *path, struct slice text)
{
    if (path[0] == '\0')
        return once(r, SAID_FILTER);
    if (strcmp(path, "/And") == 0)
        return once(r, SAID_AND);
    if (strncmp(path, "/And/", 5) == 0) {
        rule->has_and = true;
        path += 4;
    }
    if (strcmp(path, "/Prefix") == 0)
        return once(r, SAID_FILTER_PREFIX) ? ERR_PROTOCOL : read_prefix(r, text, &rule->prefix);
    if (strcmp(path, "/ObjectSizeGreaterThan") == 0) {
        rule->has_larger = true;
        return once(r, SAID_LARGER) || slice_u64(slice_trim(text), &rule->larger_than) ? ERR_PROTOCOL : 0;
    }
    if (strcmp(path, "/ObjectSizeLessThan") == 0)
        return once(r, SAID_LESS) || slice_u64(slice_trim(text), &rule->less_than) ? ERR_PROTOCOL : 0;
    return strncmp(path, "/Tag", 4) == 0 ? in_tag(r, rule, path + 4, text) : ERR_PROTOCOL;
}

/* The elements of a rule that may come once; 0 for others. */
static enum said said_by(const char *path)
{
    static const struct {
        const char *path;
        enum said what;
    } rows[] = {{"/ID", SAID_ID},
                {"/Status", SAID_STATUS},
                {"/Prefix", SAID_PREFIX},
                {"/Expiration", SAID_EXPIRATION},
                {"/Expiration/Days", SAID_DAYS},
                {"/Expiration/Date", SAID_DATE},
                {"/AbortIncompleteMultipartUpload", SAID_ABORT}};

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
        if (strcmp(path, rows[i].path) == 0)
            return rows[i].what;
    return 0;
}

static int in_rule(struct reader *r, struct lifecycle_rule *rule, const char *path, struct slice text)
{
    uint64_t unused;
    int status = once(r, said_by(path));

    if (status)
        return status;
    if (strcmp(path, "/ID") == 0) {
        rule->id = arena_dup(r->arena, text);
        return text.n > LIFECYCLE_ID_MAX
                   ? fail(r, S3_ERR_INVALID_ARGUMENT, "the ID of a rule has at most 255 characters")
                   : 0;
    }
    if (strcmp(path, "/Status") == 0)
        return read_status(text, &rule->enabled);
    if (strcmp(path, "/Prefix") == 0) {
        rule->old_prefix = true;
        return read_prefix(r, text, &rule->prefix);
    }
    if (strncmp(path, "/Filter", 7) == 0)
        return in_filter(r, rule, path + 7, text);
    if (strcmp(path, "/Expiration/Days") == 0)
        return read_days(r, text, &rule->days);
    if (strcmp(path, "/Expiration/Date") == 0)
        return read_date(r, text, &rule->date_ns);
    if (strcmp(path, "/Expiration/ExpiredObjectDeleteMarker") == 0) {
        r->has_action = rule->has_marker = true;
        return text_parse_bool(slice_trim(text), &rule->delete_marker) ? ERR_PROTOCOL : 0;
    }
    if (strcmp(path, "/Expiration") == 0)
        return r->has_action ? 0 : ERR_PROTOCOL;
    if (strcmp(path, "/NoncurrentVersionExpiration/NoncurrentDays") == 0)
        return read_days(r, text, &rule->noncurrent_days);
    if (strcmp(path, "/NoncurrentVersionExpiration/NewerNoncurrentVersions") == 0)
        return read_days(r, text, &rule->noncurrent_keep);
    if (strcmp(path, "/NoncurrentVersionExpiration") == 0)
        return rule->noncurrent_days ? 0 : ERR_PROTOCOL;
    if (strcmp(path, "/AbortIncompleteMultipartUpload/DaysAfterInitiation") == 0)
        return read_days(r, text, &rule->abort_days);
    if (strcmp(path, "/AbortIncompleteMultipartUpload") == 0)
        return rule->abort_days ? 0 : ERR_PROTOCOL;
    if (strcmp(path, "/Transition/Date") == 0 && (status = read_date(r, text, &unused)) != 0)
        return status;
    if (strncmp(path, "/Transition", 11) == 0 || strncmp(path, "/NoncurrentVersionTransition", 28) == 0)
        return fail(r, S3_ERR_NOT_IMPLEMENTED, "transitions are not implemented here");
    return ERR_PROTOCOL;
}

static int on_element(void *arg, const char *path, struct slice text)
{
    struct reader *r = arg;

    if (strcmp(path, ROOT) == 0)
        return 0;
    if (strncmp(path, RULE, sizeof RULE - 1) != 0)
        return ERR_PROTOCOL;
    if (!r->in_rule) {
        if (r->rules->n == LIFECYCLE_RULES_MAX)
            return fail(r, S3_ERR_INVALID_REQUEST, "there can be 100 rules at most");
        r->rules->rules[r->rules->n] =
            (struct lifecycle_rule){.prefix = SLICE_LIT(""), .less_than = UINT64_MAX};
        r->said = 0;
        r->has_action = r->has_key = r->has_value = false;
        r->in_rule = true;
    }
    path += sizeof RULE - 1;
    return path[0] ? in_rule(r, &r->rules->rules[r->rules->n], path, text) : end_rule(r);
}

enum s3_error lifecycle_parse(struct slice document, struct arena *a, struct lifecycle *ret,
                              const char **ret_reason)
{
    struct reader r = {.arena = a, .rules = ret};

    *ret = (struct lifecycle){.rules = arena_alloc(a, LIFECYCLE_RULES_MAX * sizeof ret->rules[0])};
    if (xml_parse(document, on_element, &r, NULL) == 0 && ret->n > 0)
        return S3_OK;
    if (!r.error)
        return REFUSE(MALFORMED_XML,
                      "the document must be LifecycleConfiguration with rules of Status, Filter "
                      "or Prefix, and Expiration or AbortIncompleteMultipartUpload");
    *ret_reason = r.reason;
    return r.error;
}

bool lifecycle_has_sizes(const struct lifecycle_rule *r)
{
    return r->has_larger || r->less_than < UINT64_MAX;
}

/* ---- writing ---- */

static void put_filter(struct xml *x, const struct lifecycle_rule *r)
{
    bool sizes = lifecycle_has_sizes(r);

    if (r->old_prefix) {
        xml_text(x, "Prefix", r->prefix);
        return;
    }
    xml_open(x, "Filter");
    if (r->has_and)
        xml_open(x, "And");
    if (r->prefix.n || (!sizes && r->n_tags == 0))
        xml_text(x, "Prefix", r->prefix);
    if (r->has_larger)
        xml_u64(x, "ObjectSizeGreaterThan", r->larger_than);
    if (r->less_than < UINT64_MAX)
        xml_u64(x, "ObjectSizeLessThan", r->less_than);
    for (size_t i = 0; i < r->n_tags; i++) {
        xml_open(x, "Tag");
        xml_text(x, "Key", r->tags[i].key);
        xml_text(x, "Value", r->tags[i].value);
        xml_close(x, "Tag");
    }
    if (r->has_and)
        xml_close(x, "And");
    xml_close(x, "Filter");
}

static void put_rule(struct xml *x, const struct lifecycle_rule *r)
{
    char date[32];

    xml_open(x, "Rule");
    if (r->id.n)
        xml_text(x, "ID", r->id);
    put_filter(x, r);
    xml_text(x, "Status", r->enabled ? SLICE_LIT("Enabled") : SLICE_LIT("Disabled"));
    if (r->days || r->date_ns || r->has_marker) {
        xml_open(x, "Expiration");
        if (r->days)
            xml_u64(x, "Days", r->days);
        text_iso8601(r->date_ns, date);
        if (r->date_ns)
            xml_text(x, "Date", slice_str(date));
        if (r->has_marker)
            xml_bool(x, "ExpiredObjectDeleteMarker", r->delete_marker);
        xml_close(x, "Expiration");
    }
    if (r->noncurrent_days) {
        xml_open(x, "NoncurrentVersionExpiration");
        xml_u64(x, "NoncurrentDays", r->noncurrent_days);
        if (r->noncurrent_keep)
            xml_u64(x, "NewerNoncurrentVersions", r->noncurrent_keep);
        xml_close(x, "NoncurrentVersionExpiration");
    }
    if (r->abort_days) {
        xml_open(x, "AbortIncompleteMultipartUpload");
        xml_u64(x, "DaysAfterInitiation", r->abort_days);
        xml_close(x, "AbortIncompleteMultipartUpload");
    }
    xml_close(x, "Rule");
}

int lifecycle_put(const struct lifecycle *l, struct buf *b)
{
    struct xml x = {b, 0};

    xml_root(&x, ROOT);
    for (size_t i = 0; i < l->n; i++)
        put_rule(&x, &l->rules[i]);
    xml_close(&x, ROOT);
    return x.status;
}

/* ---- what is due ---- */

/* The midnight at or after `days` days from then; 0, never, beyond the year 2554, where ns since 1970 end: of
 * times before 1970 some origins make such numbers. */
static uint64_t due_ns(uint64_t then_ns, uint64_t days)
{
    uint64_t most_ns = UINT64_MAX - (days + 1) * DAY_NS;

    return then_ns > most_ns ? 0 : ALIGN_UP(then_ns + days * DAY_NS, DAY_NS);
}

uint64_t lifecycle_ends_ns(const struct lifecycle_rule *r, struct slice key, uint64_t size_bytes,
                           uint64_t since_ns)
{
    if (!r->enabled || !slice_starts(key, r->prefix))
        return 0;
    if ((r->has_larger && size_bytes <= r->larger_than) || size_bytes >= r->less_than)
        return 0;
    if (r->days)
        return since_ns ? due_ns(since_ns, r->days) : 0;
    return r->date_ns;
}

bool lifecycle_has_tags(const struct lifecycle_rule *r, struct slice kept_tags, struct arena *a)
{
    struct tags *has;
    const char *reason;
    size_t found = 0;

    if (r->n_tags == 0)
        return true;
    has = arena_alloc(a, sizeof *has);
    if (tags_parse(kept_tags, TAGS_BUCKET_MAX, a, has, &reason))
        return false;
    for (size_t i = 0; i < r->n_tags; i++)
        for (size_t j = 0; j < has->n; j++)
            found += slice_eq(r->tags[i].key, has->v[j].key) && slice_eq(r->tags[i].value, has->v[j].value);
    return found >= r->n_tags;
}

bool lifecycle_aborts(const struct lifecycle_rule *r, struct slice key, uint64_t began_ns, uint64_t now_ns)
{
    uint64_t ns = r->abort_days && began_ns ? due_ns(began_ns, r->abort_days) : 0;

    return r->enabled && ns && !lifecycle_has_sizes(r) && slice_starts(key, r->prefix) && now_ns >= ns;
}

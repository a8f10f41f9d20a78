/*
 * Source and target of a job (contract in ends.h).
 *
 * Writing into what is being walked would never end, or would remove what is to be kept: a bucket must not
 * overlap with itself, and two ends not by what they stand for at the same service, however it is spelled.
 */
#include "jobs/ends.h"

#include "base/text.h"
#include "jobs/digest.h"
#include "origin/origin.h"

#include <stdlib.h>

#define SETTINGS_MAX_BYTES (64 * KIB)
#define URL_MAX_BYTES      (4 * KIB)
#define PART_BYTES         (16 * MIB)
#define ARENA_BYTES        (256 * KIB)
#define FILE_SCHEME        "file://"

static const char *const with_hosts[] = {"http://", "https://", "hdfs://", "nfs://", "forebay://"};

static int check_bucket(const char *what, const char *path, struct err *e)
{
    struct slice bucket, prefix;
    if (job_is_url(slice_str(path)))
        return err_set(e, ERR_BAD_OPTION, "%s '%s': must be BUCKET or BUCKET/PREFIX here", what, path);
    job_split(path, &bucket, &prefix);
    if (bucket.n == 0)
        return err_set(e, ERR_BAD_OPTION, "%s '%s': must be BUCKET or BUCKET/PREFIX", what, path);
    if (prefix.n > ORIGIN_KEY_MAX_BYTES)
        return err_set(e, ERR_BAD_OPTION, "%s: its prefix is longer than any key", what);
    return 0;
}

static int check_url(const char *what, const char *url, bool is_target, struct err *e)
{
    struct slice s = slice_str(url);
    if (!job_is_url(s))
        return err_set(e, ERR_BAD_OPTION,
                       "%s '%s': must be a URL: s3://, gs://, az://, hdfs://, nfs://, file://, forebay://%s",
                       what, url, is_target ? "" : " or http[s]://");
    bool web = slice_starts(s, SLICE_LIT("http://")) || slice_starts(s, SLICE_LIT("https://"));
    if (is_target && web)
        return err_set(e, ERR_BAD_OPTION, "%s '%s': a plain HTTP server is read-only", what, url);
    return s.n > URL_MAX_BYTES ? err_set(e, ERR_BAD_OPTION, "%s: the URL is too long", what) : 0;
}

static int check_end(const char *what, enum kind_end end, const char *path, bool is_target, struct err *e)
{
    if (end == KIND_NOWHERE)
        return 0;
    return end == KIND_URL ? check_url(what, path, is_target, e) : check_bucket(what, path, e);
}

static int put_settings(const struct job_record *r, const char *url, bool posix, struct buf *b, struct err *e)
{
    int k = buf_printf(b, "origin=%s\n%s", url, posix ? "posix=on\n" : "");
    for (size_t i = 0; k == 0 && i < r->spec.set.n; i++) {
        const char *line = r->spec.set.v[i];
        if (strncmp(line, "origin.", 7) != 0 || !strchr(line, '='))
            return err_set(e, ERR_BAD_OPTION, "--set %.*s: must be origin.NAME=VALUE",
                           (int)strcspn(line, "="), line);
        k = buf_printf(b, "%s\n", line);
    }
    if (k == 0 && r->spec.storage_class && r->spec.storage_class[0])
        k = buf_printf(b, "origin.storage_class=%s\n", r->spec.storage_class);
    const char *const view[][2] = {{"origin.as_of", r->spec.as_of}, {"origin.version", r->spec.version}};
    for (size_t i = 0; k == 0 && i < ARRAY_SIZE(view); i++)
        if (view[i][1] && view[i][1][0])
            k = buf_printf(b, "%s=%s\n", view[i][0], view[i][1]);
    return k < 0 ? err_set(e, k, "the job's options are too long") : 0;
}

/* ---- overlap ---- */

/* Value of a setting in lines "name=value\n", the last one; empty when it is not there. */
static struct slice setting(struct slice lines, const char *name)
{
    struct slice found = SLICE_NULL;
    while (lines.n > 0) {
        struct slice value = slice_split(&lines, '\n'), key = slice_split(&value, '=');
        if (slice_eq_str(key, name) && value.n > 0)
            found = value;
    }
    return found;
}

static struct slice without_slash(struct slice s)
{
    return slice_ends(s, SLICE_LIT("/")) ? slice_sub(s, 0, s.n - 1) : s;
}

/* One spelling of "SCHEME://HOST[:PORT]/PATH": small letters before the path, no port that is the scheme's
 * own, no slashes at the end. What is behind s3://, gs:// and az:// is a name, whose letters count. */
static struct slice one_spelling(struct slice url, struct arena *a)
{
    static const char *const own_ports[][2] = {{"http://", ":80"}, {"https://", ":443"}, {"nfs://", ":2049"}};
    ssize_t colon = slice_find_slice(url, SLICE_LIT("://"));
    if (colon < 0)
        return url;
    while (url.n > (size_t)colon + 3 && slice_ends(url, SLICE_LIT("/")))
        url.n--;
    char *text = arena_printf(a, SLICE_FMT, SLICE_ARG(url));
    struct slice scheme = slice_sub(url, 0, (size_t)colon + 3);
    ssize_t slash = slice_find(slice_from(url, scheme.n), '/');
    size_t host_end = slash < 0 ? url.n : scheme.n + (size_t)slash;
    bool is_host = false;
    for (size_t i = 0; i < ARRAY_SIZE(with_hosts); i++)
        is_host = is_host || slice_eq_case(scheme, slice_str(with_hosts[i]));
    for (size_t i = 0; i < (is_host ? host_end : scheme.n); i++)
        text[i] = (char)(text[i] >= 'A' && text[i] <= 'Z' ? text[i] - 'A' + 'a' : text[i]);
    struct slice head = slice_of(text, host_end);
    for (size_t i = 0; i < ARRAY_SIZE(own_ports); i++)
        if (slice_starts(head, slice_str(own_ports[i][0])) && slice_ends(head, slice_str(own_ports[i][1])))
            head.n -= strlen(own_ports[i][1]);
    return slice_str(
        arena_printf(a, SLICE_FMT SLICE_FMT, SLICE_ARG(head), SLICE_ARG(slice_from(url, host_end))));
}

/* The directory that a URL of files means, however it is written. */
static struct slice one_path(struct slice url, struct arena *a)
{
    char *path = arena_printf(a, SLICE_FMT, SLICE_ARG(slice_from(url, strlen(FILE_SCHEME))));
    char _cleanup_free_ *real = realpath(path, NULL);
    return real ? slice_str(arena_printf(a, FILE_SCHEME "%s", real)) : url;
}

/* Where the service is: as is said, else by the environment (s3_credentials.c). */
static struct slice endpoint_of(const struct ends_place *x, struct arena *a)
{
    struct slice endpoint = setting(x->settings, "origin.endpoint"), origin = setting(x->settings, "origin");
    const char *own = getenv("AWS_ENDPOINT_URL_S3"), *all = getenv("AWS_ENDPOINT_URL");
    if (endpoint.n == 0 && slice_starts(origin, SLICE_LIT("s3://")))
        endpoint = slice_str(own && own[0] ? own : all);
    return one_spelling(endpoint, a);
}

static bool overlap(struct slice x, struct slice y)
{
    return slice_starts(x, y) || slice_starts(y, x);
}

/* The lines of a bucket's settings, in the arena. */
static int settings_of(struct object_session *session, struct slice bucket, struct arena *a,
                       struct slice *ret, struct err *e)
{
    struct wire_bucket_get_req req = {.name = bucket};
    struct wire_bucket_get_rep rep;
    int k = object_bucket_get(session, &req, a, &rep, e);
    if (k == 0)
        *ret = rep.settings;
    return k;
}

/* What a place stands for at its origin, "URL/PREFIX" in the arena; empty where there is no origin. */
static struct slice whole_of(const struct ends_place *x, struct arena *a)
{
    struct slice origin = one_spelling(setting(x->settings, "origin"), a);
    if (slice_starts(origin, SLICE_LIT(FILE_SCHEME)))
        origin = one_path(origin, a);
    return origin.n == 0 ? SLICE_NULL
                         : slice_str(arena_printf(a, SLICE_FMT "/" SLICE_FMT,
                                                  SLICE_ARG(without_slash(origin)), SLICE_ARG(x->prefix)));
}

/* One that is not said may be what the environment says. */
static bool are_told_apart(const struct ends_place *x, const struct ends_place *y, const char *name)
{
    struct slice v = setting(x->settings, name), w = setting(y->settings, name);
    return v.n > 0 && w.n > 0 && !slice_eq(v, w);
}

bool ends_overlap(const struct ends_place *x, const struct ends_place *y, struct arena *a)
{
    struct slice v = whole_of(x, a), w = whole_of(y, a);
    bool same_service =
        slice_eq(endpoint_of(x, a), endpoint_of(y, a)) && !are_told_apart(x, y, "origin.account");
    return v.n > 0 && w.n > 0 && same_service && overlap(v, w);
}

static int place_of(struct object_session *session, const char *path, struct arena *a, struct ends_place *ret,
                    struct err *e)
{
    struct slice bucket;
    job_split(path, &bucket, &ret->prefix);
    return settings_of(session, bucket, a, &ret->settings, e);
}

/* Two buckets, which may be windows on one origin. */
static int check_buckets(struct object_session *session, const struct job_record *r, struct err *e)
{
    struct slice from, from_prefix, to, to_prefix;
    struct ends_place source, target;
    job_split(r->source, &from, &from_prefix);
    job_split(r->target, &to, &to_prefix);
    if (slice_eq(from, to))
        return overlap(from_prefix, to_prefix)
                   ? err_set(e, ERR_BAD_OPTION, "%s and %s overlap", r->source, r->target)
                   : 0;
    _cleanup_(arena_freep) struct arena *a = arena_new(2 * ARENA_BYTES);
    int k = place_of(session, r->source, a, &source, e);
    if (k == 0)
        k = place_of(session, r->target, a, &target, e);
    if (k < 0 || !ends_overlap(&source, &target, a))
        return k;
    struct slice x = whole_of(&source, a), y = whole_of(&target, a);
    return err_set(e, ERR_BAD_OPTION, "%s and %s overlap: their origins are " SLICE_FMT " and " SLICE_FMT,
                   r->source, r->target, SLICE_ARG(x), SLICE_ARG(y));
}

/* A bucket and a URL at the same service. */
static int check_service(struct object_session *session, const struct job_record *r, const char *bucket_path,
                         const char *url, struct err *e)
{
    struct ends_place bucket, other;
    _cleanup_(arena_freep) struct arena *a = arena_new(ARENA_BYTES);
    _cleanup_buf_ struct buf lines = BUF_INIT(SETTINGS_MAX_BYTES);
    int k = place_of(session, bucket_path, a, &bucket, e);
    if (k == 0)
        k = put_settings(r, url, /* posix= */ false, &lines, e);
    other = (struct ends_place){.settings = buf_view(&lines)};
    bool overlaps = k == 0 && ends_overlap(&bucket, &other, a);
    if (lines.p)
        explicit_bzero(lines.p, lines.n);
    if (!overlaps)
        return k;
    struct slice whole = whole_of(&bucket, a);
    return err_set(e, ERR_BAD_OPTION, "%s and %s overlap: the bucket's origin is " SLICE_FMT, r->source,
                   r->target, SLICE_ARG(whole));
}

static int check_overlap(struct object_session *session, const struct job_record *r, const struct kind *k,
                         struct err *e)
{
    if (k->source == KIND_BUCKET && k->target == KIND_BUCKET)
        return check_buckets(session, r, e);
    if (k->source == KIND_URL)
        return check_service(session, r, r->target, r->source, e);
    return k->target == KIND_URL ? check_service(session, r, r->source, r->target, e) : 0;
}

/* ---- opening ---- */

static int open_end(struct object_service *objects, const struct job_record *r, enum kind_end end,
                    const char *path, bool posix, bool probe, char guest[BUCKET_GUEST_NAME_SIZE],
                    struct slice *ret_bucket, struct slice *ret_prefix, struct err *e)
{
    if (end != KIND_URL) {
        job_split(path, ret_bucket, ret_prefix);
        return 0;
    }
    _cleanup_buf_ struct buf settings = BUF_INIT(SETTINGS_MAX_BYTES);
    int k = put_settings(r, path, posix, &settings, e);
    if (k == 0)
        k = object_guest_open(objects, r->kind, buf_view(&settings), probe, guest, e);
    if (settings.p)
        explicit_bzero(settings.p, settings.n);
    *ret_bucket = slice_str(guest);
    *ret_prefix = SLICE_NULL;
    return k;
}

/* What a bucket's ETags may be: what is in the origin has those of the origin, for uploads in parts S3's;
 * what is here only the MD5 of its bytes. */
static unsigned etags_of(struct slice settings)
{
    unsigned in_origin = setting(settings, "origin").n > 0 ? DIGEST_OF_PARTS : 0;
    bool is_here = in_origin == 0 || slice_eq_str(setting(settings, "write"), "back");
    return in_origin | (is_here ? DIGEST_OF_ALL : 0);
}

static uint64_t requests_max(struct slice settings)
{
    struct origin_options o;
    uint64_t v;
    int k = option_init(&origin_option_table, &o, NULL);
    assert(k == 0);
    if (slice_u64(setting(settings, "origin.connections"), &v) < 0)
        v = o.connections;
    option_fini(&origin_option_table, &o);
    return v;
}

static bool is_limited(struct slice settings)
{
    uint64_t v;
    return (slice_u64(setting(settings, "limit.origin-requests"), &v) == 0 && v > 0) ||
           (text_parse_size(setting(settings, "limit.origin-bytes"), &v) == 0 && v > 0);
}

/* What a job has to know of a bucket. */
struct end_bucket {
    uint64_t part_bytes;   /* of uploads */
    unsigned etags;        /* what they may be */
    uint64_t requests_max; /* that its origin gets at a time */
    bool is_limited;       /* so are those of a second, or their bytes */
    bool is_tree;          /* it has no origin */
};

/* The bucket exists. `cached`: what the cache holds of it is meant, which needs an origin. */
static int look_at(struct object_session *session, struct slice bucket, const char *cached,
                   struct end_bucket *ret, struct err *e)
{
    _cleanup_(arena_freep) struct arena *a = arena_new(ARENA_BYTES);
    struct slice settings;
    int k = settings_of(session, bucket, a, &settings, e);
    if (k < 0)
        return k;
    if (cached && setting(settings, "origin").n == 0)
        return err_set(
            e, ERR_BAD_OPTION,
            "%s: bucket '" SLICE_FMT
            "' is a scratch bucket: its objects are on this node only, and nothing of it is cached",
            cached, SLICE_ARG(bucket));
    struct slice text = setting(settings, "origin.part_size");
    uint64_t v;
    *ret = (struct end_bucket){.part_bytes = text_parse_size(text, &v) == 0 && v > 0 ? v : PART_BYTES,
                               .etags = etags_of(settings),
                               .requests_max = requests_max(settings),
                               .is_limited = is_limited(settings),
                               .is_tree = setting(settings, "origin").n == 0};
    return 0;
}

/* ---- modes and owners ---- */

static bool is_of(const char *url, const char *scheme)
{
    return strncmp(url, scheme, strlen(scheme)) == 0;
}

static bool has_files(const char *url)
{
    return is_of(url, "file://") || is_of(url, "nfs://");
}

/* What the bucket of an export or import has of them, and the URL can keep. Copies go as objects go. */
static int look_at_modes(struct object_session *session, const struct job_record *r, const struct kind *k,
                         struct ends *ret, struct err *e)
{
    if (!k->dir)
        return 0;
    _cleanup_(arena_freep) struct arena *a = arena_new(ARENA_BYTES);
    struct slice bucket, prefix, settings;
    bool to_url = k->target == KIND_URL;
    const char *url = to_url ? r->target : r->source;
    job_split(to_url ? r->source : r->target, &bucket, &prefix);
    int c = settings_of(session, bucket, a, &settings, e);
    if (c < 0)
        return c;
    struct slice origin = setting(settings, "origin");
    bool is_tree = origin.n == 0 && !slice_eq_str(setting(settings, "values"), "memory");
    ret->modes = is_tree || slice_eq_str(setting(settings, "posix"), "on");
    if (!ret->modes)
        return 0;
    bool into_files = slice_starts(origin, SLICE_LIT("file://"));
    ret->has_dirs = to_url ? has_files(url) : is_tree || into_files;
    ret->no_set = to_url && (is_of(url, "nfs://") || is_of(url, "hdfs://"));
    ret->no_links = ret->no_set;
    return 0;
}

bool ends_is_folder(const char *path)
{
    struct slice bucket, prefix;
    job_split(path, &bucket, &prefix);
    return job_is_url(slice_str(path)) || prefix.n == 0 || slice_ends(prefix, SLICE_LIT("/"));
}

static enum kind_end resolved(enum kind_end end, const char *path)
{
    if (end != KIND_EITHER)
        return end;
    return job_is_url(slice_str(path)) ? KIND_URL : KIND_BUCKET;
}

int ends_open(struct object_service *objects, struct object_session *session, const struct job_record *r,
              const struct kind *any, bool probe, struct ends *ret, struct err *e)
{
    struct kind own = *any;
    const struct kind *k = &own;
    own.source = resolved(any->source, r->source);
    own.target = resolved(any->target, r->target);
    *ret = (struct ends){
        .part_bytes = PART_BYTES, .from_url = own.source == KIND_URL, .to_url = own.target == KIND_URL};
    struct end_bucket source, target;
    bool has_url = ret->from_url || ret->to_url;
    int c = check_end("source", k->source, r->source, /* is_target= */ false, e);
    if (c == 0)
        c = check_end("target", k->target, r->target, /* is_target= */ true, e);
    if (c == 0 && r->spec.set.n > 0 && !has_url)
        c = err_set(e, ERR_BAD_OPTION,
                    "--set: only where the source or the target is a URL, whose origin it is for");
    if (c == 0 && ret->from_url && ret->to_url)
        c = err_set(
            e, ERR_BAD_OPTION,
            "%s and %s: one of them must be a bucket (forebay bucket create --origin makes one of a URL)",
            r->source, r->target);
    if (c == 0)
        c = look_at_modes(session, r, k, ret, e);
    if (c == 0)
        c = open_end(objects, r, k->source, r->source, ret->modes && has_files(r->source), probe,
                     ret->source_guest, &ret->source_bucket, &ret->source_prefix, e);
    if (c == 0)
        c = open_end(objects, r, k->target, r->target, ret->modes && has_files(r->target), probe,
                     ret->target_guest, &ret->target_bucket, &ret->target_prefix, e);
    if (c == 0)
        c = look_at(session, ret->source_bucket, k->target == KIND_NOWHERE ? k->name : NULL, &source, e);
    if (c == 0) {
        ret->requests_max = source.requests_max;
        ret->is_limited = source.is_limited;
        ret->is_tree = source.is_tree;
    }
    if (c == 0 && k->target != KIND_NOWHERE)
        c = look_at(session, ret->target_bucket, NULL, &target, e);
    if (c == 0 && k->target != KIND_NOWHERE) {
        ret->part_bytes = target.part_bytes;
        ret->etags = target.etags;
    }
    if (c == 0 && ret->to_url && object_guest_capabilities(objects, ret->target_bucket) & ORIGIN_SENDS_PARTS)
        ret->sends_parts = true;
    if (c == 0)
        c = check_overlap(session, r, k, e);
    if (c < 0)
        ends_close(objects, ret);
    return c;
}

void ends_close(struct object_service *objects, struct ends *x)
{
    if (x->source_guest[0])
        object_guest_close(objects, x->source_guest);
    if (x->target_guest[0])
        object_guest_close(objects, x->target_guest);
    x->source_guest[0] = x->target_guest[0] = '\0';
}

/*
 * Uploads that outlive the node (contract in uploads.h): what the object layer remembers of them, and finding
 * them again.
 *
 * 1. Found is what was acknowledged: a part whose record is there but not all of its bytes, because a
 * completion was killed that had cut the file, is none, and loses its record before another can come.
 * 2. How long nobody has touched an upload is told by the wall clock once, when it is found: by the time of
 * its last part. A clock that was set back since makes it new; one that was set forward makes it old.
 */
#include "s3/uploads_internal.h"

#include "base/log.h"
#include "base/sys.h"
#include "base/text.h"

#include <sys/stat.h>

#define CALL_ARENA_BYTES (256 * KIB)
#define PAGE_ARENA_BYTES (8 * MIB)
#define PAGE_PARTS       1000

/* ---- one call each ---- */

const char *uploads_tag(const struct part_sums *sums, bool opaque, uint64_t ttl_ms,
                        char ret[UPLOADS_TAG_SIZE])
{
    char text[PART_SUMS_TAG_SIZE];

    (void)snprintf(ret, UPLOADS_TAG_SIZE, "%s;%s;%llu", part_sums_tag(sums, text), opaque ? "opaque" : "md5",
                   (unsigned long long)ttl_ms);
    return ret;
}

static int read_tag(struct slice tag, struct upload *w)
{
    struct slice sums = slice_split(&tag, ';'), etag = slice_split(&tag, ';');

    w->sums = part_sums_of_tag(sums);
    w->opaque = slice_eq_str(etag, "opaque");
    return slice_u64(tag, &w->sink.ttl_ms);
}

int uploads_unkeep(struct s3 *s3, struct slice bucket_name, struct slice key, const char *id, struct err *e)
{
    _cleanup_(arena_freep) struct arena *a = arena_new(CALL_ARENA_BYTES);
    struct wire_upload_abort_req req = {.bucket = bucket_name, .key = key, .id = slice_str(id)};
    struct wire_upload_abort_rep rep;

    return object_upload_abort(s3->session, &req, a, &rep, e);
}

int upload_keep_part(struct upload *w, const struct upload_region *region, uint64_t slot_bytes,
                     const uint8_t md5[16], const uint8_t *sum, struct err *e)
{
    char etag[33], hex[2 * CHECKSUM_MAX_BYTES + 1];
    struct wire_part part = {.number = region->number,
                             .size_bytes = region->size,
                             .offset = region->offset,
                             .slot_bytes = slot_bytes};

    text_hex(md5, 16, etag);
    text_hex(sum, sum ? checksum_bytes(w->sums.kind) : 0, hex);
    part.etag = slice_str(etag);
    part.checksum = slice_str(hex);
    return sink_keep_part(&w->sink, &part, /* is_gone= */ false, e);
}

int upload_unkeep_part(struct upload *w, uint32_t number, struct err *e)
{
    return sink_keep_part(&w->sink, &(struct wire_part){.number = number}, /* is_gone= */ true, e);
}

uint64_t uploads_expiry_ns(struct s3 *s3, const char *name)
{
    _cleanup_(arena_freep) struct arena *a = arena_new(MIB); /* all properties may be many */
    struct wire_bucket_get_req req = {.name = slice_str(name)};
    struct wire_bucket_get_rep rep;
    uint64_t ms = UPLOADS_IDLE_S * 1000ull;

    if (object_bucket_get(s3->session, &req, a, &rep, NULL))
        return ms * 1000000;
    while (rep.settings.n) {
        struct slice value = slice_split(&rep.settings, '\n');

        if (slice_eq_str(slice_split(&value, '='), "upload_expiry") && text_parse_duration(value, &ms) < 0)
            ms = UPLOADS_IDLE_S * 1000ull;
    }
    return ms * 1000000;
}

/* ---- finding one again ---- */

int64_t uploads_touched_ns(uint64_t mono_ns, uint64_t real_ns, uint64_t last_ns)
{
    return (int64_t)mono_ns - (real_ns > last_ns ? (int64_t)(real_ns - last_ns) : 0);
}

/* Where a part lies in the file, as upload_part_begin chose it. Nobody else knows the upload yet. */
static int place_part(struct upload *w, const struct wire_part *p, uint64_t file_bytes, uint64_t *last_ns)
{
    const size_t sum_bytes = checksum_bytes(w->sums.kind);
    struct upload_part found = {.number = p->number,
                                .present = true,
                                .offset = p->offset,
                                .size = p->size_bytes,
                                .mtime_ns = p->at_ns,
                                .opaque = w->opaque};
    struct part *part;

    if (p->etag.n != 32 || text_unhex(p->etag, found.md5, sizeof found.md5) < 0 || p->number < 1 ||
        p->number > UPLOAD_PART_NUMBER_MAX)
        return ERR_CORRUPT;
    found.has_sum =
        sum_bytes > 0 && p->checksum.n == 2 * sum_bytes && text_unhex(p->checksum, found.sum, sum_bytes) == 0;
    upload_place_overflow_locked(w, p->slot_bytes);
    if (p->size_bytes > 0 && p->offset + p->size_bytes > file_bytes) {
        struct err e = {0};
        int status = upload_unkeep_part(w, p->number, &e);

        log_warn("s3", "multipart upload %s: part %u is not whole, and dropped", w->id, p->number);
        return status;
    }
    part = upload_record_locked(w, p->number);
    if (!part)
        return -ENOSPC;
    part->p = found;
    part->slot_taken = p->offset < w->overflow_at && p->offset == (p->number - 1) * w->part_bytes &&
                       p->size_bytes <= w->part_bytes;
    if (!part->slot_taken)
        w->overflow_at = MAX(w->overflow_at, p->offset + ALIGN_UP(p->size_bytes, 4096));
    *last_ns = MAX(*last_ns, p->at_ns);
    return 0;
}

/* The parts; with the first page also what came with the upload's creation, and the file. */
static int load(struct upload *w, uint64_t *last_ns, struct err *e)
{
    _cleanup_(arena_freep) struct arena *a = arena_new(PAGE_ARENA_BYTES);
    struct wire_upload_parts_req req = {.bucket = slice_str(w->name),
                                        .key = slice_str(w->key),
                                        .id = slice_str(w->id),
                                        .max = PAGE_PARTS,
                                        .flags = WIRE_STAGED};
    struct wire_upload_parts_rep rep = {.truncated = 1};
    struct stat st = {0};

    while (rep.truncated) {
        struct wire_part p;
        int status = object_upload_parts(w->all->s3->session, &req, a, &rep, e);

        if (status == 0 && !w->meta) {
            w->content_type = slice_dup(rep.content_type);
            w->meta = slice_dup(rep.meta);
            status = read_tag(rep.tag, w);
            if (status == 0)
                status = sink_resume(&w->sink, w->id, e);
            if (status == 0)
                status = sys->fstat(w->sink.fd, &st);
        }
        while (status == 0 && wire_part_decode(&rep.parts, &p) == 0) {
            status = place_part(w, &p, (uint64_t)st.st_size, last_ns);
            req.after = p.number;
        }
        if (status)
            return status;
        arena_clear(a);
    }
    return 0;
}

static int resume(struct uploads *u, struct slice bucket, struct slice name, struct slice key, const char *id,
                  uint64_t created_ns, struct err *e)
{
    struct upload *w;
    uint64_t last_ns = created_ns;
    struct sink sink;
    enum s3_error error;
    int status;

    if (u->n == UPLOADS_MAX) /* a kill may leave the record of one that was refused for that */
        return err_set(e, -ENOSPC, "%d are open, and no more may be", UPLOADS_MAX);
    w = upload_new(u, &(struct part_sums){0}, /* opaque= */ false);
    memcpy(w->id, id, sizeof w->id);
    w->is_kept = true;
    w->created_ns = created_ns;
    w->bucket = slice_dup(bucket);
    w->name = slice_dup(name);
    w->key = slice_dup(key);
    sink_init(&w->sink, u->s3);
    w->sink.open.bucket = slice_str(w->name);
    w->sink.open.key = slice_str(w->key);
    status = load(w, &last_ns, e);
    if (status) {
        u->n_parts -= w->n_parts;
        upload_free(w);
        return status;
    }
    w->touched_ns = uploads_touched_ns(sys->mono_ns(), sys->real_ns(), last_ns);
    sink = w->sink;
    error = uploads_link(u, w, &sink);
    assert(!error); /* nobody else begins one yet */
    return 0;
}

/* ---- finding all ---- */

struct found {
    struct slice key;
    char id[UPLOAD_ID_SIZE];
    uint64_t created_ns;
};

static void resume_bucket(struct uploads *u, struct slice name)
{
    _cleanup_(arena_freep) struct arena *a = arena_new(PAGE_ARENA_BYTES);
    const struct slice bucket = buckets_identity(u->s3, name, a);
    struct wire_upload_list_req req = {.bucket = name, .flags = WIRE_STAGED};
    struct wire_upload_list_rep rep = {.truncated = 1};
    char last[UPLOAD_ID_SIZE] = "";
    struct err e = {0};
    int status = 0;

    while (rep.truncated && status == 0) {
        struct wire_upload x;

        status = object_upload_list(u->s3->session, &req, a, &rep, &e);
        while (status == 0 && wire_upload_decode(&rep.uploads, &x) == 0 && x.id.n == sizeof last - 1) {
            struct err why = {0};
            int r;

            memcpy(last, x.id.p, x.id.n);
            r = resume(u, bucket, name, x.key, last, x.created_ns, &why);
            if (r)
                log_warn("s3",
                         "multipart upload %s to " SLICE_FMT "/" SLICE_FMT " cannot be gone on with: %s",
                         last, SLICE_ARG(name), SLICE_ARG(x.key), why.text[0] ? why.text : err_text(r));
        }
        req.after = slice_str(last);
    }
    if (status)
        log_warn("s3", "multipart uploads of bucket " SLICE_FMT ": %s", SLICE_ARG(name), e.text);
}

void uploads_resume(struct uploads *u)
{
    _cleanup_(arena_freep) struct arena *a = arena_new(PAGE_ARENA_BYTES);
    _cleanup_free_ char *after = NULL;
    struct wire_bucket_list_req req = {0};
    struct wire_bucket_list_rep rep = {.truncated = 1};

    while (rep.truncated) {
        struct wire_bucket bucket;
        struct slice last = SLICE_LIT("");
        struct err e = {0};

        if (object_bucket_list(u->s3->session, &req, a, &rep, &e)) {
            log_warn("s3", "multipart uploads of the last run: %s", e.text);
            return;
        }
        while (wire_bucket_decode(&rep.buckets, &bucket) == 0) {
            last = bucket.name;
            resume_bucket(u, bucket.name);
        }
        free(after);
        after = slice_dup(last);
        req.after = slice_of(after, last.n);
        arena_clear(a);
    }
}

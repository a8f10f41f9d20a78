/*
 * Multipart uploads: create, parts in parallel, complete; abort when anything fails for good. The same steps
 * one by one, for uploads that a client of the node drives (origin_upload_*); there nothing is tried again
 * but the completion, and the caller aborts. Completing is in s3_complete.c.
 *
 * Part sizes grow so that the largest object still fits into S3_PARTS_MAX parts.
 *
 * Invariants:
 *  1. The object appears only when the end succeeds, and then with every part in its place.
 *  2. Each part is uploaded by one thread; etags[i] is written by it alone and read after all were joined.
 *  3. After a failure the upload is aborted, so that no parts are paid for; when the abort fails too (the
 * origin is down), or the node is killed, who was told of it (origin_note_upload) aborts it later.
 *
 * Failure modes: the first lasting error of a part, or that of create or the end. After a timeout of the end
 * the object may have been written.
 */
#include "origin/s3_multipart.h"

#include "origin/meta.h"

#include <inttypes.h>

#define TAGS_MAX (12 * KIB) /* ten of 128 and 256 characters, encoded; services take less in one header */

static void upload_fini(struct s3_upload *u)
{
    for (uint32_t i = 0; u->etags && i < u->n_parts; i++)
        free(u->etags[i]);
    free(u->etags);
}

void s3_upload_call(struct s3_upload *u, struct web_call *c, enum web_method method, const char *op)
{
    web_call_init(c, &u->s3->web, method, op);
    c->has_key = true;
    c->key = u->put->key;
    c->cancel = u->put->cancel;
}

/* ---- create ---- */

static int create(struct s3_upload *u, struct err *e)
{
    struct buf _cleanup_buf_ body = BUF_INIT(WEB_RESULT_MAX);
    struct web_call _cleanup_(web_call_fini) c;
    s3_upload_call(u, &c, WEB_POST, "create_upload");
    c.meta = u->put->meta;
    c.on_body = web_collect;
    c.arg = &body;
    web_query(&c, SLICE_LIT("uploads"), SLICE_NULL);
    if (u->put->content_type.n)
        web_header(&c, SLICE_LIT("content-type"), u->put->content_type);
    if (u->tags.n)
        web_header(&c, SLICE_LIT("x-amz-tagging"), u->tags);
    s3_keeping_headers(u->s3, u->source, &c);
    if (u->asks)
        s3_sums_ask(&c, &u->sums);
    int r = web_perform(&c, e);
    if (r < 0)
        return r;
    u->told = u->asks ? s3_sums_told(&c.response, &u->sums) : S3_SUMS_NONE;
    struct s3_result result;
    r = s3_result_parse(buf_view(&body), &result, e);
    if (r == 0 && strcmp(result.root, "Error") == 0)
        return s3_error_of(u->s3, &c.response, buf_view(&body), e);
    if (r == 0 && !result.upload_id[0])
        return err_set(e, ERR_ORIGIN_FAILED, "the answer to the start of an upload has no UploadId");
    if (r == 0)
        memcpy(u->id, result.upload_id, sizeof(u->id));
    return r;
}

/* ---- parts ---- */

static void part_init(struct s3_upload *u, struct web_call *c, uint32_t i, char number[16], atomic_bool *stop,
                      const char *op)
{
    (void)snprintf(number, 16, "%u", s3_upload_number(u, i));
    s3_upload_call(u, c, WEB_PUT, op);
    c->also_cancel = stop;
    web_query(c, SLICE_LIT("partNumber"), slice_str(number));
    web_query(c, SLICE_LIT("uploadId"), slice_str(u->id));
}

static int copy_part(struct s3_upload *u, uint32_t i, atomic_bool *stop, struct err *e)
{
    uint64_t at = (uint64_t)i * u->part_bytes, offset = u->source_offset + at;
    uint64_t n = MIN(u->part_bytes, u->size - at);
    char number[16], range[64], etag[WEB_ETAG_MAX + 3];
    struct origin_body none = {0};
    struct buf _cleanup_buf_ body = BUF_INIT(WEB_RESULT_MAX);
    struct web_call _cleanup_(web_call_fini) c;
    part_init(u, &c, i, number, stop, "copy_part");
    int r = web_etag_header(u->source->attr.etag, etag, e);
    if (r < 0)
        return r;
    c.body = &none;
    c.on_body = web_collect;
    c.arg = &body;
    (void)snprintf(range, sizeof(range), "bytes=%" PRIu64 "-%" PRIu64, offset, offset + n - 1);
    s3_copy_headers(&c, u->source, etag);
    web_header(&c, SLICE_LIT("x-amz-copy-source-range"), slice_str(range));
    r = web_perform(&c, e);
    struct s3_result result;
    if (r == 0)
        r = s3_copy_result(&c, buf_view(&body), "CopyPartResult", &result, e);
    if (r == 0)
        u->etags[i] = slice_dup(slice_str(result.etag));
    return r;
}

static int put_part(struct s3_upload *u, uint32_t i, atomic_bool *stop, struct err *e)
{
    uint64_t offset = (uint64_t)i * u->part_bytes;
    uint64_t n = MIN(u->part_bytes, u->size - offset);
    char number[16], hash[65];
    int r = web_wait_for_part(&u->s3->web, u->body, offset, n, e);
    if (r == 0)
        r = s3_payload_hash(u->s3, u->body, offset, n, hash, e);
    if (r < 0)
        return r;
    struct s3_framed framed;
    struct web_call _cleanup_(web_call_fini) c;
    part_init(u, &c, i, number, stop, "put_part");
    c.body = u->body;
    c.body_offset = offset;
    c.body_n = n;
    c.payload_sha256 = slice_str(hash);
    if (u->gives && u->body->sum)
        r = s3_sums_part(&c, &u->sums, &framed, e);
    if (r == 0)
        r = web_perform(&c, e);
    if (r == 0 && !c.response.etag[0])
        return err_set(e, ERR_ORIGIN_FAILED, "the answer has no ETag");
    if (r == 0)
        u->etags[i] = slice_dup(slice_str(c.response.etag));
    return r;
}

static int one_part(void *arg, uint32_t i, atomic_bool *stop, struct err *e)
{
    struct s3_upload *u = arg;
    return u->source ? copy_part(u, i, stop, e) : put_part(u, i, stop, e);
}

static int put_parts(struct s3_upload *u, struct err *e)
{
    struct web_parts p = {.origin = &u->s3->base,
                          .n = u->n_parts,
                          .limit = (uint32_t)u->s3->web.limit,
                          .cancel = u->put->cancel,
                          .patience_ms = u->put->patience_ms,
                          .one = one_part,
                          .arg = u};
    return web_parts_run(&p, e);
}

/* ---- abort ---- */

static int abort_once(struct s3_upload *u, struct err *e)
{
    struct web_call _cleanup_(web_call_fini) c;
    s3_upload_call(u, &c, WEB_DELETE, "abort_upload");
    c.cancel = NULL; /* also when the upload was canceled */
    web_query(&c, SLICE_LIT("uploadId"), slice_str(u->id));
    return web_perform(&c, e);
}

/* Whether it is gone. */
static bool abort_upload(struct s3_upload *u)
{
    struct err e = {0};
    struct quit _cleanup_(quit_leave) tidy;
    quit_enter_tidy(&tidy);
    int r = abort_once(u, &e);
    bool is_gone = r == 0 || slice_starts(slice_str(e.text), SLICE_LIT("404"));
    if (!is_gone)
        log_warn("origin", "s3://%s/%s" SLICE_FMT ": parts of a failed upload are left behind: %s",
                 u->s3->bucket, u->s3->prefix, SLICE_ARG(u->put->key), e.text);
    return is_gone;
}

/* Parts of the size asked for, or larger when they would be too many. */
static int plan_parts(struct s3_upload *u, uint64_t part_bytes, struct err *e)
{
    uint64_t size = u->size, least = (size + S3_PARTS_MAX - 1) / S3_PARTS_MAX;
    u->part_bytes = MAX(part_bytes, ALIGN_UP(least, MIB));
    if (u->part_bytes > S3_PUT_MAX_BYTES)
        return err_set(e, -EFBIG, "%" PRIu64 " bytes are more than S3 takes in %d parts", size, S3_PARTS_MAX);
    u->n_parts = (uint32_t)((size + u->part_bytes - 1) / u->part_bytes);
    u->etags = calloc(u->n_parts, sizeof(char *));
    if (!u->etags)
        abort();
    return 0;
}

static int run_upload(struct s3_upload *u, uint64_t part_bytes, struct arena *a, struct origin_attr *ret_attr,
                      struct err *e)
{
    assert(u->size > 0);
    int r = plan_parts(u, part_bytes, e);
    if (r == 0)
        r = create(u, e);
    if (r < 0)
        return r;
    origin_note_upload(&u->s3->base, u->put->key, slice_str(u->id));
    r = put_parts(u, e);
    if (r == 0)
        r = s3_upload_end(u, a, ret_attr, e);
    origin_note_upload_end(&u->s3->base, slice_str(u->id), r == 0 || abort_upload(u));
    return r;
}

int s3_put_multipart(struct s3 *s, const struct origin_put *p, const struct origin_body *body,
                     struct arena *a, struct origin_attr *ret_attr, struct err *e)
{
    struct s3_upload _cleanup_(upload_fini) u = {.s3 = s, .put = p, .body = body, .size = body->size_bytes};
    return run_upload(&u, s->part_bytes, a, ret_attr, e);
}

int s3_copy_multipart(struct s3 *s, const struct s3_source *source, struct slice to, struct arena *a,
                      struct origin_attr *ret_attr, struct err *e)
{
    struct origin_put p = {.key = to, .content_type = source->attr.content_type, .meta = source->attr.meta};
    /* Onto itself: each part says what it is made of, but somebody may write behind the last one. */
    if (source->is_itself && (s->base.capabilities & ORIGIN_CAN_CONDITIONAL_PUT) &&
        !web_etag_is_weak(source->attr.etag))
        p.if_match = source->attr.etag;
    struct buf _cleanup_buf_ tags = BUF_INIT(TAGS_MAX);
    /* To another node they go as what its metadata says, if it does. */
    bool is_known =
        source->replaces_tags || (s->web.kind->is_node && meta_get(source->attr.meta, META_TAGS).n > 0);
    if (s->web.sends_tags && !is_known)
        p.meta = meta_without(p.meta, META_TAGS, a);
    int r = is_known ? 0 : s3_tags_of(source->s3, source->key, &tags, e);
    if (r < 0)
        return r;
    struct s3_upload _cleanup_(upload_fini)
        u = {.s3 = s, .put = &p, .source = source, .tags = buf_view(&tags), .size = source->attr.size_bytes};
    return run_upload(&u, s->copy_part_bytes, a, ret_attr, e);
}

/* ---- driven from outside, one step at a time ---- */

static int step_init(struct s3_upload *u, struct origin *o, const struct origin_put *p, struct slice id,
                     struct err *e)
{
    *u = (struct s3_upload){.s3 = s3_of(o), .put = p};
    u->gives = s3_sums_of(p->sums, &u->sums);
    if (id.n >= sizeof(u->id))
        return err_set(e, -EINVAL, "an upload id of %zu bytes", id.n);
    memcpy(u->id, id.p, id.n);
    return web_check_key(u->s3->prefix, p->key, e);
}

/* An upload that is driven from outside and that the service does not know: nobody begins it anew here. */
static int step_result(int r, struct err *e)
{
    if (r != ERR_ORIGIN_FAILED || !e || !slice_starts(slice_str(e->text), SLICE_LIT("404")))
        return r;
    e->code = -ENOENT;
    return -ENOENT;
}

/* The one part that is sent or copied: n bytes, under this number. */
static int step_part(struct s3_upload *u, uint32_t number, uint64_t n, char ret_etag[ORIGIN_ETAG_MAX + 1],
                     struct err *e)
{
    const struct origin_part numbered = {.number = number};
    char *etag = NULL;
    u->size = u->part_bytes = n;
    u->numbered = &numbered;
    u->n_parts = 1;
    u->etags = &etag;
    int r = one_part(u, 0, NULL, e);
    if (r == 0)
        memcpy(ret_etag, etag, strlen(etag) + 1);
    free(etag);
    return step_result(r, e);
}

/* Whether a refusal may be about what was asked for beside the upload itself. */
static bool refuses_more(int r)
{
    return r == ERR_NOT_IMPLEMENTED || r == ERR_ORIGIN_REFUSED || r == -EINVAL;
}

/* With checksums of its parts, where the service takes exactly those; else without any. */
int s3_upload_create(struct origin *o, const struct origin_put *p, char ret_id[ORIGIN_UPLOAD_ID_MAX],
                     bool *ret_sums, struct err *e)
{
    struct s3_upload u;
    int r = step_init(&u, o, p, SLICE_LIT(""), e);
    if (r < 0)
        return r;
    u.asks = u.gives && u.s3->gives_sums;
    r = create(&u, e);
    bool again = u.asks && (r == 0 ? u.told == S3_SUMS_OTHER : refuses_more(r));
    if (again && r == 0) {
        origin_note_upload(o, p->key, slice_str(u.id));
        origin_note_upload_end(o, slice_str(u.id), abort_upload(&u));
    }
    if (again) {
        u.asks = false;
        if (e)
            e->code = 0;
        r = create(&u, e);
    }
    if (r < 0)
        return r;
    memcpy(ret_id, u.id, sizeof(u.id));
    *ret_sums = u.told == S3_SUMS_SAME;
    return 0;
}

int s3_upload_part(struct origin *o, const struct origin_put *p, struct slice id, uint32_t number,
                   const struct origin_body *body, char ret_etag[ORIGIN_ETAG_MAX + 1], struct err *e)
{
    struct s3_upload u;
    int r = step_init(&u, o, p, id, e);
    if (r < 0)
        return r;
    u.body = body;
    return step_part(&u, number, body->size_bytes, ret_etag, e);
}

int s3_upload_copy(struct origin *o, const struct origin_put *p, struct slice id, uint32_t number,
                   const struct origin_copy *c, uint64_t offset, uint64_t n,
                   char ret_etag[ORIGIN_ETAG_MAX + 1], struct err *e)
{
    struct s3_source source = {.s3 = s3_of(c->source), .key = c->from, .attr = {.etag = c->if_match}};
    struct buf _cleanup_buf_ path = BUF_INIT(8 * KIB);
    struct s3_upload u;
    int r = step_init(&u, o, p, id, e);
    if (r == 0)
        r = web_check_key(source.s3->prefix, c->from, e);
    if (r == 0)
        r = s3_copy_path(source.s3, c->from, &path, e);
    if (r < 0)
        return r;
    source.path = buf_view(&path);
    u.source = &source;
    u.source_offset = offset;
    return step_part(&u, number, n, ret_etag, e);
}

int s3_upload_complete(struct origin *o, const struct origin_put *p, struct slice id,
                       const struct origin_part *parts, size_t n, uint64_t size_bytes, struct arena *a,
                       struct origin_attr *ret_attr, struct err *e)
{
    struct s3_upload _cleanup_(upload_fini) u;
    assert(n > 0 && n <= S3_PARTS_MAX);
    int r = step_init(&u, o, p, id, e);
    if (r < 0)
        return r;
    u.etags = calloc(n, sizeof(char *));
    if (!u.etags)
        abort();
    u.n_parts = (uint32_t)n;
    u.numbered = parts;
    u.size = size_bytes;
    for (size_t i = 0; i < n; i++)
        u.etags[i] = slice_dup(parts[i].etag);
    r = s3_upload_end(&u, a, ret_attr, e);
    /* The object that If-Match names is missing, and not the upload. */
    if (r == -ENOENT && p->if_match.n > 0 && !u.unsure && e &&
        slice_starts(slice_str(e->text), SLICE_LIT("404 NoSuchKey"))) {
        e->code = ERR_PRECONDITION;
        return ERR_PRECONDITION;
    }
    return step_result(r, e);
}

int s3_upload_abort(struct origin *o, struct slice key, struct slice id, struct err *e)
{
    struct origin_put p = {.key = key};
    struct s3_upload u;
    int r = step_init(&u, o, &p, id, e);
    return r < 0 ? r : step_result(abort_once(&u, e), e);
}

/*
 * CompleteMultipartUpload: checks the client's list of parts, brings them in order, and commits.
 *
 * 1. The object has exactly the listed parts, in rising order; nothing is published when one is missing or
 * another.
 * 2. A completion that failed leaves the upload as it was: the client may try again.
 * 3. The client hears something every KEEPALIVE_MS however long the origin takes: as in S3, blanks in front
 * of the XML, whose root then says how it ended although the status was sent as 200 long before.
 *
 * Parts of equal size lie in order in the staged file already; others are copied into a second one first, as
 * are those of completions with conditions, which only a new write can carry.
 */
#include "s3/condition.h"
#include "s3/uploads.h"
#include "s3/xml.h"

#include "base/log.h"
#include "base/sys.h"
#include "base/text.h"

#include <pthread.h>

#define DOCUMENT_MAX_BYTES (8 * MIB)
#define KEEPALIVE_MS       10000
#define COPY_BYTES         MIB
#define COMMIT_ARENA_BYTES (256 * KIB)

struct listed {
    uint32_t number;
    struct slice etag; /* bare */
};

struct complete {
    struct s3_request *r;
    struct arena *arena; /* of the list */
    struct upload *upload;
    struct listed *listed;
    size_t n;
    bool in_part;
    struct upload_part *parts; /* the listed ones, in order */
    uint64_t total;
    struct sink *target; /* what is committed: the upload's own, or `second` */
    struct sink second;
};

/* ---- the client's list ---- */

static int on_element(void *arg, const char *path, struct slice text)
{
    const struct slice prefix = SLICE_LIT("CompleteMultipartUpload/Part");
    struct complete *c = arg;
    struct slice name = slice_str(path);
    struct listed *listed;
    uint64_t number;

    if (!slice_starts(name, prefix))
        return 0;
    name = slice_from(name, prefix.n);
    if (!c->in_part) {
        if (c->n == UPLOAD_PART_NUMBER_MAX)
            return ERR_PROTOCOL;
        c->listed[c->n] = (struct listed){0};
        c->in_part = true;
    }
    listed = &c->listed[c->n];
    if (slice_eq_str(name, "/PartNumber")) {
        if (slice_u64(slice_trim(text), &number) || number < 1 || number > UPLOAD_PART_NUMBER_MAX)
            return ERR_PROTOCOL;
        listed->number = (uint32_t)number;
    } else if (slice_eq_str(name, "/ETag")) {
        if (listed->etag.p)
            return ERR_PROTOCOL;
        listed->etag = condition_bare_etag(arena_dup(c->arena, text));
    } else if (name.n == 0) {
        c->in_part = false;
        c->n++;
        return listed->number && listed->etag.n ? 0 : ERR_PROTOCOL;
    }
    return 0;
}

static enum s3_error read_list(struct complete *c)
{
    _cleanup_buf_ struct buf document = BUF_INIT(DOCUMENT_MAX_BYTES);
    struct err e = {0};
    /* A checksum header of this request is one of the object, not of this document. */
    enum s3_error error = put_document(c->r, &document, /* with_checksum= */ false);

    if (error)
        return error;
    c->listed = arena_alloc(c->arena, UPLOAD_PART_NUMBER_MAX * sizeof c->listed[0]);
    if (xml_parse(buf_view(&document), on_element, c, &e) || c->n == 0) {
        if (e.text[0])
            c->r->message = arena_dup(c->r->arena, slice_str(e.text));
        return S3_ERR_MALFORMED_XML;
    }
    return S3_OK;
}

/* The listed parts out of those that are there. */
static enum s3_error choose_parts(struct complete *c)
{
    size_t n_all, at = 0;
    _cleanup_free_ struct upload_part *all = upload_parts(c->upload, &n_all);

    c->parts = arena_alloc(c->arena, c->n * sizeof c->parts[0]);
    for (size_t i = 0; i < c->n; i++) {
        char hex[33];

        if (i > 0 && c->listed[i].number <= c->listed[i - 1].number)
            return S3_ERR_INVALID_PART_ORDER;
        while (at < n_all && all[at].number < c->listed[i].number)
            at++;
        if (at == n_all || all[at].number != c->listed[i].number)
            return S3_ERR_INVALID_PART;
        text_hex(all[at].md5, sizeof all[at].md5, hex);
        if (!slice_eq_case(c->listed[i].etag, slice_str(hex)))
            return S3_ERR_INVALID_PART;
        c->parts[i] = all[at];
        c->total += all[at].size;
    }
    for (size_t i = 0; i + 1 < c->n; i++)
        if (c->parts[i].size < UPLOAD_PART_MIN_BYTES)
            return S3_ERR_ENTITY_TOO_SMALL;
    return c->total > BODY_SIZE_MAX ? S3_ERR_ENTITY_TOO_LARGE : S3_OK;
}

/* ---- bringing the parts in order ---- */

/* A checksum of the whole object, when the client gave one. One of the parts' checksums ("...-3") says
 * nothing that was not verified with each part. */
static enum s3_error check_object(struct complete *c)
{
    _cleanup_buf_ struct buf base64 = BUF_INIT(64);
    _cleanup_free_ char *piece = malloc(COPY_BYTES);
    struct slice given = SLICE_NULL;
    uint8_t digest[CHECKSUM_MAX_BYTES];
    struct checksum sum;
    int status = 0;

    if (!piece)
        abort();
    checksum_init(&sum, CHECKSUM_NONE);
    for (size_t i = 0; i < c->r->http->n_headers && !given.p; i++) {
        const struct http_header *h = &c->r->http->headers[i];
        enum checksum_kind kind = checksum_of_header(h->name);

        if (kind == CHECKSUM_NONE || slice_find(h->value, '-') >= 0)
            continue;
        given = h->value;
        checksum_init(&sum, kind);
    }
    for (size_t i = 0; given.p && i < c->n && status == 0; i++) {
        for (uint64_t at = 0; at < c->parts[i].size && status == 0; at += COPY_BYTES) {
            size_t n = (size_t)MIN((uint64_t)COPY_BYTES, c->parts[i].size - at);

            status = sys_pread_all(upload_fd(c->upload), piece, n, c->parts[i].offset + at);
            checksum_update(&sum, piece, n);
        }
    }
    if (text_base64(&base64, slice_of(digest, checksum_final(&sum, digest))))
        abort();
    checksum_fini(&sum);
    if (status)
        return S3_ERR_INTERNAL;
    return given.p && !slice_eq(given, buf_view(&base64)) ? S3_ERR_BAD_DIGEST : S3_OK;
}

static bool lies_in_order(const struct complete *c)
{
    uint64_t at = 0;

    for (size_t i = 0; i < c->n; i++) {
        if (c->parts[i].offset != at)
            return false;
        at += c->parts[i].size;
    }
    return true;
}

static int copy_bytes(int from, uint64_t offset, int to, uint64_t at, uint64_t n, char *piece)
{
    while (n > 0) {
        size_t part = (size_t)MIN(n, (uint64_t)COPY_BYTES);
        int status = sys_pread_all(from, piece, part, offset);

        if (status == 0)
            status = sys_pwrite_all(to, piece, part, at);
        if (status)
            return status;
        offset += part;
        at += part;
        n -= part;
    }
    return 0;
}

static int assemble(struct complete *c, struct err *e)
{
    _cleanup_free_ char *piece = malloc(COPY_BYTES);
    const struct sink *own = upload_sink(c->upload);
    uint64_t at = 0;
    int status;

    if (!piece)
        abort();
    status = sink_open(&c->second, UINT64_MAX, e);
    for (size_t i = 0; i < c->n && status == 0; i++) {
        status = copy_bytes(own->fd, c->parts[i].offset, c->second.fd, at, c->parts[i].size, piece);
        if (status)
            (void)err_errno(e, status, "copy of part %u", c->parts[i].number);
        at += c->parts[i].size;
    }
    c->target = &c->second;
    return status;
}

/* As S3 makes them: the MD5 of the parts' MD5s, and how many there are. Origins make their own. */
static void name_etag(const struct complete *c, char ret[S3_ETAG_GIVEN_SIZE])
{
    uint8_t digest[CHECKSUM_MAX_BYTES];
    struct checksum sum;
    char hex[33];

    checksum_init(&sum, CHECKSUM_MD5);
    for (size_t i = 0; i < c->n; i++)
        checksum_update(&sum, c->parts[i].md5, sizeof c->parts[i].md5);
    text_hex(digest, checksum_final(&sum, digest), hex);
    checksum_fini(&sum);
    (void)snprintf(ret, S3_ETAG_GIVEN_SIZE, "%s-%zu", hex, c->n);
}

/* ---- the commit, with signs of life ---- */

struct commit {
    struct complete *c;
    struct arena *arena;
    struct lock lock; /* covers what follows */
    struct cond ended;
    bool done;
    int status;
    struct wire_attr attr;
    struct err err;
};

static int arrange_and_commit(struct commit *m)
{
    struct complete *c = m->c;
    int status = c->target ? 0 : assemble(c, &m->err);

    if (status)
        return status;
    c->target->written = c->total;
    name_etag(c, c->target->etag);
    return sink_commit(c->target, SLICE_NULL, SLICE_NULL, m->arena, &m->attr, &m->err);
}

static void *commit_main(void *arg)
{
    struct commit *m = arg;
    int status = arrange_and_commit(m);

    LOCK_SCOPE(&m->lock);
    m->status = status;
    m->done = true;
    cond_signal(&m->ended);
    return NULL;
}

static bool wait_done(struct commit *m, uint64_t timeout_ms)
{
    LOCK_SCOPE(&m->lock);
    while (!m->done)
        if (cond_wait_for(&m->ended, &m->lock, timeout_ms * 1000000) == -ETIMEDOUT)
            break;
    return m->done;
}

/* Runs the commit; while it lasts the client gets a head and blanks. */
static void run_commit(struct s3_request *r, struct commit *m)
{
    pthread_t thread;

    if (pthread_create(&thread, NULL, commit_main, m)) {
        (void)commit_main(m);
        return;
    }
    if (!wait_done(m, KEEPALIVE_MS)) {
        reply_header(r, "Content-Type", SLICE_LIT("application/xml"));
        if (reply_head(r, 200, UINT64_MAX) == 0)
            (void)http_conn_write(r->conn, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n", 39);
        while (!wait_done(m, KEEPALIVE_MS))
            (void)http_conn_write(r->conn, " ", 1);
    }
    (void)pthread_join(thread, NULL);
}

static void put_result(struct s3_request *r, struct xml *x, struct slice etag)
{
    xml_root(x, "CompleteMultipartUploadResult");
    xml_text(x, "Location", r->path);
    xml_text(x, "Bucket", r->bucket);
    xml_text(x, "Key", r->key);
    xml_text(x, "ETag", slice_str(arena_printf(r->arena, "\"" SLICE_FMT "\"", SLICE_ARG(etag))));
    xml_close(x, "CompleteMultipartUploadResult");
    assert(x->status == 0);
}

/* The answer, whole, or what follows a head that was sent already. */
static enum s3_error answer(struct s3_request *r, enum s3_error error, struct slice etag)
{
    _cleanup_buf_ struct buf b = BUF_INIT(32 * KIB);
    struct xml x = {&b, 0};

    if (r->status == 0) {
        if (error)
            return error;
        xml_start(&x);
        put_result(r, &x, etag);
        reply_send(r, 200, "application/xml", buf_view(&b));
        return S3_OK;
    }
    if (!error)
        put_result(r, &x, etag);
    else if (s3_error_xml_root(&b, error, r->message, r->path, r->id, r->extra))
        buf_clear(&b);
    (void)http_conn_write(r->conn, b.p, b.n);
    return S3_OK;
}

static enum s3_error commit(struct complete *c)
{
    struct s3_request *r = c->r;
    struct commit m = {.c = c, .arena = arena_new(COMMIT_ARENA_BYTES)};
    enum s3_error error = S3_OK;

    lock_init(&m.lock, LOCK_LEAF);
    cond_init(&m.ended);
    run_commit(r, &m);
    if (m.status) {
        upload_reopen(c->upload);
        error = reply_failed(r, m.status, &m.err);
    } else {
        upload_finish(c->upload, m.attr.etag);
    }
    error = answer(r, error, m.status ? SLICE_NULL : m.attr.etag);
    cond_fini(&m.ended);
    lock_fini(&m.lock);
    arena_free(m.arena);
    return error;
}

/* ---- the operation ---- */

/* Where the object is put together, and under which conditions. */
static enum s3_error prepare(struct complete *c)
{
    struct s3_request *r = c->r;
    enum s3_error error = choose_parts(c);

    if (!error)
        error = check_object(c);
    if (!error)
        error = put_conditions(r, &c->second.open);
    if (error)
        return error;
    c->second.open.bucket = r->bucket;
    c->second.open.key = r->key;
    c->second.open.flags = WIRE_STAGED;
    c->second.open.content_type = upload_content_type(c->upload);
    c->second.open.meta = upload_meta(c->upload);
    if (lies_in_order(c) && !c->second.open.if_none_match && !c->second.open.if_match.n)
        c->target = upload_sink(c->upload);
    return S3_OK;
}

static enum s3_error complete(struct complete *c)
{
    enum s3_error error = upload_close(c->upload);

    if (error)
        return error;
    error = prepare(c);
    if (error) {
        upload_reopen(c->upload);
        return error;
    }
    return commit(c);
}

enum s3_error s3_op_complete_multipart_upload(struct s3_request *r)
{
    _cleanup_(arena_freep) struct arena *a = arena_new(S3_ARENA_BYTES);
    struct complete c = {.r = r, .arena = a};
    struct slice id = request_query(r, "uploadId");
    char etag[ORIGIN_ETAG_MAX + 1];
    enum s3_error error;

    c.upload = uploads_find(r->s3->uploads, id, r->bucket, r->key);
    if (!c.upload) {
        uploads_completed(r->s3->uploads, id, r->bucket, r->key, etag);
        return etag[0] ? answer(r, S3_OK, slice_str(etag)) : S3_ERR_NO_SUCH_UPLOAD;
    }
    sink_init(&c.second, r->s3);
    error = read_list(&c);
    if (!error)
        error = complete(&c);
    sink_fini(&c.second);
    upload_unref(c.upload);
    return error;
}

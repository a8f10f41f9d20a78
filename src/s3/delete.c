/*
 * DeleteObject and DeleteObjects.
 *
 * 1. A key that is not there counts as deleted, as in S3.
 * 2. DeleteObjects answers for each key of the request exactly once; keys in quiet mode only when they
 * failed.
 * 3. A condition that is not checked here is refused: nothing is deleted in spite of one.
 *
 * Texts are copied once each, so the arena holds at most what the document did.
 *
 * The keys of one DeleteObjects are deleted by up to DELETE_THREADS threads, because each waits for the
 * origin; when that takes long all the same the client hears something (pulse.h).
 */
#include "s3/condition.h"
#include "s3/delete_list.h"
#include "s3/pulse.h"
#include "s3/s3_internal.h"
#include "s3/xml.h"

#include "base/text.h"
#include "base/thread.h"

#include <pthread.h>
#include <stdatomic.h>

#define DELETE_BODY_MAX    (8 * MIB) /* 1000 keys of 1024 bytes, each byte escaped */
#define DELETE_THREADS     8
#define DELETE_PER_THREAD  4 /* fewer keys than this are not worth one more thread */
#define DELETE_STACK_BYTES (512 * KIB)
#define DELETE_CALL_BYTES  MIB

#define VERSION_SHOWN_BYTES 128 /* of one that is none here; all of them have room in the answer */

/* Conditions of DeleteObject that are not here. */
static const char *const conditions_not_here[] = {"x-amz-if-match-last-modified-time", "x-amz-if-match-size"};

static enum s3_error refuse_conditions(struct s3_request *r)
{
    struct condition c;

    for (size_t i = 0; i < ARRAY_SIZE(conditions_not_here); i++)
        if (request_header(r, conditions_not_here[i]).p)
            return reply_refuse(
                r, S3_ERR_NOT_IMPLEMENTED,
                arena_printf(r->arena, "the header %s is not implemented here", conditions_not_here[i]));
    condition_read(r->http, "", &c);
    if (c.has_none_match || (c.has_unmodified_since && !c.has_match) ||
        !condition_is_single(r->http, "if-match"))
        return reply_refuse(r, S3_ERR_NOT_IMPLEMENTED,
                            "only If-Match with one ETag can be a condition of a DELETE");
    return S3_OK;
}

enum s3_error s3_op_delete_object(struct s3_request *r)
{
    struct wire_remove_req req = {.bucket = r->bucket, .key = r->key};
    struct slice match = request_header(r, "if-match");
    struct wire_remove_rep rep;
    struct err e = {0};
    enum s3_error error = refuse_conditions(r);
    int status;

    if (error)
        return error;
    if (match.p)
        req.if_match = condition_bare_etag(match);
    if (match.p && req.if_match.n == 0) /* no object has it; below it would mean no condition */
        return S3_ERR_PRECONDITION;
    status = object_remove(r->s3->session, &req, r->arena, &rep, &e);
    if (status)
        return reply_failed(r, status, &e);
    reply_send(r, 204, NULL, SLICE_NULL);
    return S3_OK;
}

/* ---- many ---- */

struct item {
    enum s3_error error;
    struct slice message;
};

struct delete
{
    struct s3_request *r;
    struct arena *arena; /* keys */
    struct delete_list list;
    struct item *items; /* what became of each */
    atomic_size_t next;
};

static enum s3_error delete_read(struct delete *d)
{
    _cleanup_buf_ struct buf document = BUF_INIT(DELETE_BODY_MAX);
    struct err e = {0};
    enum s3_error error = put_document(d->r, &document, /* with_checksum= */ true);

    if (error)
        return error;
    if (delete_list_read(buf_view(&document), d->arena, &d->list, &e)) {
        if (e.text[0])
            d->r->message = arena_dup(d->r->arena, slice_str(e.text));
        return S3_ERR_MALFORMED_XML;
    }
    d->items = arena_zalloc(d->arena, d->list.n * sizeof d->items[0]);
    return S3_OK;
}

static void delete_one(struct s3_request *r, const struct delete_key *k, struct item *item, struct arena *a)
{
    struct wire_remove_req req = {.bucket = r->bucket, .key = k->key, .if_match = k->etag};
    struct wire_remove_rep rep;
    struct err e = {0};
    int status;

    if (k->has_other || (k->version.n && !slice_eq_str(k->version, "null"))) {
        item->error = S3_ERR_NOT_IMPLEMENTED;
        return;
    }
    if (k->etag.p && k->etag.n == 0) {
        item->error = S3_ERR_PRECONDITION;
        return;
    }
    if (k->key.n > S3_KEY_MAX_BYTES) {
        item->error = S3_ERR_KEY_TOO_LONG;
        return;
    }
    status = object_remove(r->s3->session, &req, a, &rep, &e);
    if (status == 0)
        return;
    item->error = s3_error_from(status);
    if (s3_error_wants_text(status) && e.text[0])
        item->message = slice_of(slice_dup(slice_str(e.text)), strlen(e.text));
}

static void *delete_some(void *arg)
{
    _cleanup_(arena_freep) struct arena *a = arena_new(DELETE_CALL_BYTES);
    struct delete *d = arg;
    size_t i;

    while ((i = atomic_fetch_add(&d->next, 1)) < d->list.n) {
        delete_one(d->r, &d->list.keys[i], &d->items[i], a);
        arena_clear(a);
    }
    return NULL;
}

static void delete_all(struct delete *d)
{
    pthread_t threads[DELETE_THREADS];
    size_t wanted = MIN((size_t)DELETE_THREADS, d->list.n / DELETE_PER_THREAD), n = 0;

    while (n < wanted && thread_start(&threads[n], DELETE_STACK_BYTES, delete_some, d) == 0)
        n++;
    (void)delete_some(d);
    while (n > 0)
        (void)pthread_join(threads[--n], NULL);
}

static void put_result(struct s3_request *r, struct xml *x, const void *arg)
{
    const struct delete *d = arg;

    (void)r;
    xml_root(x, "DeleteResult");
    for (size_t i = 0; i < d->list.n; i++) {
        const struct item *item = &d->items[i];

        if (!item->error && d->list.quiet)
            continue;
        xml_open(x, item->error ? "Error" : "Deleted");
        xml_text(x, "Key", slice_sub(d->list.keys[i].key, 0, S3_KEY_MAX_BYTES)); /* of one that is too long */
        if (d->list.keys[i].version.n)
            xml_text(x, "VersionId", slice_sub(d->list.keys[i].version, 0, VERSION_SHOWN_BYTES));
        if (item->error) {
            const struct s3_error_info *info = s3_error_info(item->error);

            xml_text(x, "Code", slice_str(info->code));
            xml_text(x, "Message", item->message.n ? item->message : slice_str(info->message));
        }
        xml_close(x, item->error ? "Error" : "Deleted");
    }
    xml_close(x, "DeleteResult");
}

enum s3_error s3_op_delete_objects(struct s3_request *r)
{
    _cleanup_(arena_freep) struct arena *a = arena_new(S3_ARENA_BYTES);
    struct delete d = {.r = r, .arena = a};
    struct pulse pulse;
    enum s3_error error;

    error = delete_read(&d);
    if (error)
        return error;
    pulse_start(&pulse, r);
    delete_all(&d);
    pulse_stop(&pulse);
    error = pulse_answer(r, S3_OK, put_result, &d);
    for (size_t i = 0; i < d.list.n; i++)
        free((void *)(uintptr_t)d.items[i].message.p);
    return error;
}

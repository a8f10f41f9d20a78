/*
 * Uploads in parts to buckets with an origin that lie in a file of this node (upload_here.h): the writer of
 * that file, which is a hard extent, as an upload; what is done with it when the object is in the origin.
 *
 * With write=back the record takes the file over, and completes the upload in the same transaction; else the
 * upload is completed after the origin has acknowledged: a node that dies in between has it open again, and
 * who asks again completes it once more.
 */
#include "object/writer_internal.h"

#include "base/log.h"
#include "base/sys.h"

bool writer_fill_upload(struct writer *w, const struct wire_put_commit_req *q, struct upload_record *ret)
{
    bool is_own = upload_here_is_open(w->service, &w->here);
    *ret = (struct upload_record){.id = is_own ? w->here.id : w->other,
                                  .completed = true,
                                  .at_ns = sys->real_ns(),
                                  .key = w->put.key,
                                  .content_type = w->put.content_type,
                                  .meta = w->put.meta,
                                  .tag = q->checksum};
    return is_own || w->has_other;
}

void writer_complete_upload(struct writer *w, const struct wire_put_commit_req *q)
{
    struct upload_record done;
    struct err e = {0};
    if (!writer_fill_upload(w, q, &done))
        return;
    done.etag = w->answer.etag;
    bool is_done = w->file.hard && w->file.is_kept;
    if (is_done || upload_save(w->service->config.control, w->upstream->bucket->id, &done, &e) == 0)
        upload_here_ended(w->service, w->upstream->bucket->id, done.id);
    else
        log_warn("object", "%s/" SLICE_FMT ": completed, but the upload's record stays: %s",
                 w->upstream->bucket->name, SLICE_ARG(w->put.key), e.text);
}

void writer_stage_upload(struct writer *w, uint64_t size)
{
    _cleanup_buf_ struct buf key = BUF_INIT(ORIGIN_KEY_MAX_BYTES + 8);
    if (!w->staged || !w->hard || w->is_named || w->extent || size == 0)
        return;
    if (upload_here_is_open(w->service, &w->here)) /* its record stayed: it may be written to once more */
        return;
    writer_end_writing(w);
    object_store_key(w->upstream->bucket, w->put.key, &key);
    if (store_stage_hard(w->service->config.store, buf_view(&key), w->hard, size, /* sums= */ NULL,
                         &w->extent, NULL) == 0)
        (void)extent_use(w->extent);
}

/* ---- uploads ---- */

/* There is no quota; but nothing may be written any more to what a record names. */
int op_put_room(struct object_session *ses, const struct wire_put_room_req *req, struct arena *a,
                struct wire_put_room_rep *rep, struct err *e)
{
    (void)a, (void)rep;
    struct writer *w = writer_enter(ses, req->handle, e);
    if (!w)
        return -EBADF;
    int r = w->staged && w->is_named ? err_set(e, -EBADF, "it was committed, perhaps") : 0;
    writer_leave(w, /* ended= */ false);
    writer_unref(w);
    return r;
}

static int keep_upload(struct writer *w, const struct wire_upload_keep_req *q, struct arena *a,
                       struct slice *ret_id, struct err *e)
{
    char text[ID_TEXT_SIZE];
    if (w->fd < 0 || w->has_other || upload_here_is_open(w->service, &w->here))
        return err_set(e, -EINVAL, "an upload is made of a file that is written through a descriptor, once");
    struct upload_record u = {
        .key = w->put.key, .content_type = w->put.content_type, .meta = w->put.meta, .tag = q->tag};
    int r = upload_here_begin(w->service, &w->here, w->upstream->bucket->id, w->hard, &u, e);
    id_text(u.id, text);
    *ret_id = slice_str(arena_str(a, slice_str(text)));
    return r;
}

int op_upload_keep(struct object_session *ses, const struct wire_upload_keep_req *req, struct arena *a,
                   struct wire_upload_keep_rep *rep, struct err *e)
{
    struct upload_record u = {0};
    int r;
    struct writer *w = writer_enter(ses, req->handle, e);
    if (!w)
        return -EBADF;
    if (req->id.n > 0) {
        r = upload_here_find(w->service, w->upstream->bucket, w->put.key, req->id, a, &u, e);
        w->other = u.id;
        w->has_other = r == 0;
        rep->id = req->id;
    } else {
        r = keep_upload(w, req, a, &rep->id, e);
    }
    writer_leave(w, /* ended= */ false);
    writer_unref(w);
    return r;
}

/* Not one at a time: parts share their syncs. */
int op_upload_keep_part(struct object_session *ses, const struct wire_upload_keep_part_req *req,
                        struct arena *a, struct wire_upload_keep_part_rep *rep, struct err *e)
{
    (void)a, (void)rep;
    struct writer *w = session_get(ses, HANDLE_WRITE, req->handle, e);
    if (!w)
        return -EBADF;
    int r = upload_here_keep_part(w->service, &w->here, w->hard, req, e);
    writer_unref(w);
    return r;
}

static int resume(struct writer *w, const struct upload_record *u, struct err *e)
{
    int r = upload_here_adopt(w->service, &w->here, w->upstream->bucket->id, u->id, e);
    if (r == 0)
        r = hard_find(w->service->config.store, u->location, &w->hard, e);
    return r == 0 ? writer_begin_staged(w, e) : r;
}

int op_upload_resume(struct object_session *ses, const struct wire_upload_resume_req *req, struct arena *a,
                     struct wire_upload_resume_rep *rep, struct err *e)
{
    _cleanup_(upstream_unrefp) struct upstream *up = NULL;
    struct upload_record u;
    int r = object_upstream(ses->service, req->bucket, &up, e);
    if (r == 0)
        r = upload_here_find(ses->service, up->bucket, req->key, req->id, a, &u, e);
    if (r < 0)
        return r;
    const struct wire_put_open_req q = {.key = u.key,
                                        .size = UINT64_MAX,
                                        .content_type = u.content_type,
                                        .meta = u.meta,
                                        .via = WIRE_VIA_S3,
                                        .flags = WIRE_STAGED | WIRE_LASTING};
    struct writer *w = writer_new(ses->service, up, !ses->is_remote, &q);
    uint64_t handle;
    r = resume(w, &u, e);
    if (r == 0)
        r = session_put(ses, HANDLE_WRITE, w, &handle);
    if (r < 0) {
        writer_unref(w);
        return err_prefix(e, r, "%s/" SLICE_FMT, up->bucket->name, SLICE_ARG(req->key));
    }
    rep->handle = handle;
    rep->fd = w->fd;
    return 0;
}

/*
 * Resumable uploads: a session is begun, then the bytes follow in chunks, in order.
 *
 * After a chunk the service says how much it has ("308", Range: bytes=0-n), which may be less than was sent;
 * the next chunk begins there. When a chunk fails for a reason that time may heal, the service is asked how
 * much it has before it goes on.
 *
 * Invariants:
 *  1. The object appears with the last chunk only; what was begun and given up is deleted.
 *  2. What the service says it has never goes beyond what was sent.
 *
 * Failure modes: as in origin.h. A session that the service forgot (404, 410) ends as ERR_ORIGIN_FAILED: a
 * new upload may succeed.
 */
#include "origin/gs_internal.h"

#include <inttypes.h>

#define STATUS_MORE 308

struct upload {
    struct gs *gs;
    const struct origin_put *put;
    const struct origin_body *body;
    char session[GS_SESSION_MAX];
    uint64_t chunk_bytes, have, sent; /* sent: the end of the last chunk that was tried */
    bool broken;                      /* asking again makes no sense */
    bool unsure;                      /* the object may have been made */
    struct buf result;                /* the resource, at the end */
};

static void upload_fini(struct upload *u)
{
    buf_fini(&u->result);
}

static int begin(struct upload *u, struct err *e)
{
    char size[24];
    struct gs *g = u->gs;
    struct buf _cleanup_buf_ resource = BUF_INIT(WEB_RESULT_MAX), url = BUF_INIT(WEB_URL_MAX);
    struct web_call _cleanup_(web_call_fini) c;
    web_call_init(&c, &g->web, WEB_POST, "create_upload");
    int r = gs_json_resource(g, u->put, SLICE_NULL, &resource, e);
    if (r == 0)
        r = gs_object_url(g, "/upload", false, SLICE_NULL, &url);
    if (r == 0)
        r = gs_put_conditions(&c, u->put, e);
    if (r < 0)
        return r;
    (void)snprintf(size, sizeof(size), "%" PRIu64, u->body->size_bytes);
    c.url = buf_view(&url);
    c.cancel = u->put->cancel;
    c.post = buf_view(&resource);
    web_query(&c, SLICE_LIT("uploadType"), SLICE_LIT("resumable"));
    web_header(&c, SLICE_LIT("content-type"), SLICE_LIT("application/json; charset=UTF-8"));
    web_header(&c, SLICE_LIT("x-upload-content-length"), slice_str(size));
    if (u->put->content_type.n)
        web_header(&c, SLICE_LIT("x-upload-content-type"), u->put->content_type);
    r = web_perform(&c, e);
    if (r == 0 && !c.response.location[0])
        return err_set(e, ERR_ORIGIN_FAILED, "the answer to the start of an upload has no Location");
    if (r == 0)
        memcpy(u->session, c.response.location, sizeof(u->session));
    return r;
}

/* Sends bytes [have, have + n), or with n 0 asks how many there are. 1 when the object is made. */
static int send_chunk(struct upload *u, uint64_t n, struct err *e)
{
    char range[80];
    struct origin_body none = {0};
    struct web_call _cleanup_(web_call_fini) c;
    web_call_init(&c, &u->gs->web, WEB_PUT, n ? "put_part" : "ask_upload");
    c.url = slice_str(u->session);
    c.cancel = u->put->cancel;
    c.body = n ? u->body : &none;
    c.body_offset = u->have;
    c.body_n = n;
    c.accept = STATUS_MORE;
    c.once = true;
    c.on_body = web_collect;
    c.arg = &u->result;
    if (n)
        (void)snprintf(range, sizeof(range), "bytes %" PRIu64 "-%" PRIu64 "/%" PRIu64, u->have,
                       u->have + n - 1, u->body->size_bytes);
    else
        (void)snprintf(range, sizeof(range), "bytes */%" PRIu64, u->body->size_bytes);
    web_header(&c, SLICE_LIT("content-range"), slice_str(range));
    buf_clear(&u->result);
    u->sent = MAX(u->sent, u->have + n);
    int r = web_perform(&c, e);
    if (r == 0 && c.response.status != STATUS_MORE)
        return 1;
    if (n && u->have + n == u->body->size_bytes)
        u->unsure = r < 0 && r != ERR_ORIGIN_BUSY;
    else if (r == 0)
        u->unsure = false;
    uint64_t have = c.response.has_upload ? c.response.upload_last + 1 : 0;
    u->broken = r == -ENOENT || (r == 0 && have > u->sent);
    if (r == -ENOENT)
        return err_set(e, ERR_ORIGIN_FAILED, "the service has forgotten the upload");
    if (r == 0 && u->broken)
        return err_set(e, ERR_ORIGIN_FAILED,
                       "the service says it has %" PRIu64 " bytes, but %" PRIu64 " were sent", have, u->sent);
    if (r < 0)
        return r;
    u->have = have;
    return 0;
}

static int send_patiently(struct upload *u, struct err *e)
{
    uint64_t left = u->body->size_bytes - u->have, n = MIN(u->chunk_bytes, left);
    int r = web_wait_for_part(&u->gs->web, u->body, u->have, n, e);
    if (r == 0)
        r = send_chunk(u, n, e);
    struct retry retry = {0};
    while (r < 0 && !u->broken &&
           web_try_again(&u->gs->base, u->put->cancel, NULL, u->put->patience_ms, &retry, r)) {
        if (e)
            e->code = 0;
        r = send_chunk(u, 0, e);
        left = u->body->size_bytes - u->have;
        if (r == 0 && left > 0)
            r = send_chunk(u, MIN(u->chunk_bytes, left), e);
    }
    return r;
}

static void give_up(struct upload *u)
{
    struct quit _cleanup_(quit_leave) tidy;
    struct web_call _cleanup_(web_call_fini) c;
    quit_enter_tidy(&tidy);
    web_call_init(&c, &u->gs->web, WEB_DELETE, "abort_upload");
    c.url = slice_str(u->session);
    (void)web_perform(&c, NULL); /* a session that stays ends by itself after a week */
}

int gs_upload(struct gs *g, const struct origin_put *p, const struct origin_body *body, struct arena *a,
              struct origin_attr *ret_attr, struct err *e)
{
    struct upload _cleanup_(upload_fini)
        u = {.gs = g, .put = p, .body = body, .result = BUF_INIT(WEB_RESULT_MAX)};
    u.chunk_bytes = ALIGN_UP(g->part_bytes, GS_CHUNK);
    int r = begin(&u, e);
    if (r < 0)
        return r;
    uint64_t before;
    do {
        before = u.have;
        origin_wait_turn(&g->base, p->cancel, /* stop= */ NULL);
        r = send_patiently(&u, e);
    } while (r == 0 && u.have > before);
    if (r == 0)
        r = err_set(e, ERR_ORIGIN_FAILED, "the upload stands still at %" PRIu64 " bytes", u.have);
    if (r == ERR_ORIGIN_BUSY && u.unsure) /* which tells callers that nothing was done */
        r = err_prefix(e, ERR_ORIGIN_FAILED, "the answer to the end of the upload was lost, and now");
    if (r < 0) {
        give_up(&u);
        return r;
    }
    json_t *_cleanup_(gs_json_unrefp) j = gs_json_parse(buf_view(&u.result), e);
    return j ? gs_json_attr(j, a, ret_attr, e) : ERR_ORIGIN_FAILED;
}

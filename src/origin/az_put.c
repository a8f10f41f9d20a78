/*
 * Writes of the Azure Blob kind: Put Blob, Delete Blob, Copy Blob. Larger bodies go as blocks (az_blocks.c).
 *
 * Invariants:
 *  1. The blob appears with one request: Put Blob or Put Block List, and conditions go with that one.
 *  2. A copy is told as done only when the service says so. One that is not waited for any more is aborted,
 * so that nothing appears after its failure was told.
 *
 * Failure modes: as in origin.h. -EINVAL for metadata whose name the service does not take: letters, digits
 * and '_' only.
 */
#include "origin/az_internal.h"

#include <inttypes.h>

#define COPY_LOOK_MS  200
#define STOP_LOOK_MS  50
#define COPY_MAX_MS   3600000ull
#define LOOK_FAILURES 10 /* one after another, of looks at a copy, are borne in any case */

/* ---- headers ---- */

static int check_meta_name(struct slice name, struct err *e)
{
    bool good = name.n > 0 && !(name.p[0] >= '0' && name.p[0] <= '9');
    for (size_t i = 0; i < name.n && good; i++) {
        char c = name.p[i];
        good = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
    }
    return good
               ? 0
               : err_set(e, -EINVAL,
                         "metadata \"" SLICE_FMT "\": this service takes names of letters, digits and _ only",
                         SLICE_ARG(name));
}

/* The lines of one header become one: metadata may have a line as often as a client sent it. */
static int kept_header(struct web_call *c, struct slice meta, const char *header, struct arena *a)
{
    struct buf _cleanup_buf_ all = BUF_INIT(ORIGIN_META_MAX_BYTES * 2);
    struct slice name, value;
    bool any = false;
    int r = 0;
    while (r == 0 && origin_next_meta(&meta, &name, &value)) {
        if (!slice_eq_str(name, header))
            continue;
        r = buf_printf(&all, "%s" SLICE_FMT, any ? ", " : "", SLICE_ARG(value));
        any = true;
    }
    if (r == 0 && any)
        web_header(c, slice_str(arena_printf(a, "x-ms-blob-%s", header)), arena_dup(a, buf_view(&all)));
    return r;
}

int az_put_headers(struct web_call *c, const struct origin_put *p, struct arena *a, struct err *e)
{
    static const char *const kept[] = {"cache-control", "content-encoding", "content-disposition",
                                       "content-language"};
    static const struct slice ours = {"x-amz-meta-", sizeof("x-amz-meta-") - 1};
    struct buf _cleanup_buf_ own = BUF_INIT(ORIGIN_META_MAX_BYTES * 2);
    struct slice meta = p->meta, name, value;
    int r = 0;
    c->once = p->if_none_match || p->if_match.n > 0;
    c->reach = p->reach;
    while (r == 0 && origin_next_meta(&meta, &name, &value)) {
        if (slice_starts(name, ours)) {
            r = check_meta_name(slice_from(name, ours.n), e);
            if (r == 0)
                r = buf_printf(&own, SLICE_FMT ": " SLICE_FMT "\n", SLICE_ARG(name), SLICE_ARG(value));
        }
    }
    for (size_t i = 0; i < ARRAY_SIZE(kept) && r == 0; i++)
        r = kept_header(c, p->meta, kept[i], a);
    if (r < 0)
        return r;
    c->meta = own.n ? arena_dup(a, buf_view(&own)) : SLICE_NULL;
    if (p->content_type.n)
        web_header(c, SLICE_LIT("x-ms-blob-content-type"), p->content_type);
    if (p->if_none_match)
        web_header(c, SLICE_LIT("if-none-match"), SLICE_LIT("*"));
    if (p->if_match.n) {
        char *etag = arena_alloc(a, WEB_ETAG_MAX + 3);
        r = web_etag_header(p->if_match, etag, e);
        web_header(c, SLICE_LIT("if-match"), slice_str(r == 0 ? etag : ""));
    }
    return r;
}

void az_class_header(const struct az *z, struct web_call *c)
{
    if (z->base.storage_class)
        web_header(c, SLICE_LIT("x-ms-access-tier"), slice_str(z->base.storage_class));
}

int az_put_result(const struct web_call *c, const struct origin_put *p, uint64_t size, struct arena *a,
                  struct origin_attr *ret, struct err *e)
{
    if (!c->response.etag[0])
        return err_set(e, ERR_ORIGIN_FAILED, "the answer has no ETag");
    uint64_t time_ns = c->response.mtime_ns ? c->response.mtime_ns : c->response.date_ns;
    web_put_attr(p, size, slice_str(c->response.etag), time_ns, a, ret);
    return 0;
}

/* ---- one request ---- */

static int put_single(struct az *z, const struct origin_put *p, const struct origin_body *body,
                      struct arena *a, struct origin_attr *ret_attr, struct err *e)
{
    struct arena *_cleanup_(arena_freep) scratch = arena_new(64 * KIB);
    int r = web_wait_for_part(&z->web, body, 0, body->size_bytes, e);
    if (r < 0)
        return r;
    struct web_call _cleanup_(web_call_fini) c;
    web_call_init(&c, &z->web, WEB_PUT, "put");
    c.has_key = true;
    c.key = p->key;
    c.cancel = p->cancel;
    c.body = body;
    c.body_n = body->size_bytes;
    web_header(&c, SLICE_LIT("x-ms-blob-type"), SLICE_LIT("BlockBlob"));
    az_class_header(z, &c);
    if (p->content_md5.n)
        web_header(&c, SLICE_LIT("content-md5"), p->content_md5);
    r = az_put_headers(&c, p, scratch, e);
    if (r == 0)
        r = web_perform(&c, e);
    return r == 0 ? az_put_result(&c, p, body->size_bytes, a, ret_attr, e) : r;
}

int az_put(struct origin *o, const struct origin_put *p, const struct origin_body *body, struct arena *a,
           struct origin_attr *ret_attr, struct err *e)
{
    struct az *z = az_of(o);
    origin_set_reach(p, ORIGIN_REACH_NOTHING);
    int r = az_check_written(z, p->key, e);
    if (r < 0)
        return r;
    return body->size_bytes > AZ_SINGLE_MAX ? az_put_blocks(z, p, body, a, ret_attr, e)
                                            : put_single(z, p, body, a, ret_attr, e);
}

int az_takes(struct origin *o, const struct origin_put *p, uint64_t size_bytes, struct err *e)
{
    struct az *z = az_of(o);
    struct slice meta = p->meta, name, value, ours = SLICE_LIT("x-amz-meta-");
    (void)size_bytes;
    int r = web_takes(&z->web, z->prefix, p, e);
    if (r == 0)
        r = az_check_written(z, p->key, e);
    while (r == 0 && origin_next_meta(&meta, &name, &value))
        if (slice_starts(name, ours))
            r = check_meta_name(slice_from(name, ours.n), e);
    return r;
}

/* ---- metadata, removal, copies ---- */

/* Only what is metadata: what Set Blob Properties would change stays as it is. */
int az_set_meta(struct origin *o, const struct origin_put *p, uint64_t size_bytes, struct arena *a,
                struct origin_attr *ret_attr, struct err *e)
{
    (void)size_bytes;
    struct az *z = az_of(o);
    struct arena *_cleanup_(arena_freep) scratch = arena_new(64 * KIB);
    struct origin_put only = {.key = p->key, .meta = p->meta, .if_match = p->if_match};
    struct origin_body none = {0};
    int r = az_check_written(z, p->key, e);
    if (r < 0)
        return r;
    struct web_call _cleanup_(web_call_fini) c;
    web_call_init(&c, &z->web, WEB_PUT, "set_meta");
    c.has_key = true;
    c.key = p->key;
    c.body = &none;
    web_query(&c, SLICE_LIT("comp"), SLICE_LIT("metadata"));
    r = az_put_headers(&c, &only, scratch, e);
    if (r == 0)
        r = web_perform(&c, e);
    if (r == 0 && !c.response.etag[0])
        return err_set(e, ERR_ORIGIN_FAILED, "the answer has no ETag");
    /* Of this very version: callers keep the bytes they have under the ETag that is told. */
    return r == 0 ? web_head(&z->web, p->key, slice_str(c.response.etag), a, ret_attr, e) : r;
}

int az_remove(struct origin *o, struct slice key, struct slice if_match, struct err *e)
{
    struct az *z = az_of(o);
    char etag[WEB_ETAG_MAX + 3];
    int r = az_check_written(z, key, e);
    if (r < 0)
        return r;
    struct web_call _cleanup_(web_call_fini) c;
    web_call_init(&c, &z->web, WEB_DELETE, "delete");
    c.has_key = true;
    c.key = key;
    c.once = true;
    web_header(&c, SLICE_LIT("x-ms-delete-snapshots"), SLICE_LIT("include"));
    if (if_match.n) {
        r = web_etag_header(if_match, etag, e);
        if (r < 0)
            return r;
        web_header(&c, SLICE_LIT("if-match"), slice_str(etag));
    }
    return web_perform(&c, e);
}

struct copy {
    struct az *az;
    struct slice to;
    char id[64]; /* empty: the service did not say */
};

/* What became of the copy: *ret is its target's head. ERR_CONFLICT when the target is somebody else's by now.
 */
static int look_at_copy(const struct copy *x, struct web_call *ret, struct err *e)
{
    web_call_init(ret, &x->az->web, WEB_HEAD, "head");
    ret->has_key = true;
    ret->key = x->to;
    int r = web_perform(ret, e);
    if (r == 0 && x->id[0] && strcmp(x->id, ret->response.copy_id) != 0)
        return err_set(e, ERR_CONFLICT, "somebody else wrote the target while it was copied to");
    return r;
}

static bool copy_is(const struct web_call *c, const char *status)
{
    return strcmp(c->response.copy_status, status) == 0;
}

static int abort_copy(const struct copy *x, struct err *e)
{
    struct origin_body none = {0};
    struct web_call _cleanup_(web_call_fini) c;
    web_call_init(&c, &x->az->web, WEB_PUT, "abort_copy");
    c.has_key = true;
    c.key = x->to;
    c.body = &none;
    web_query(&c, SLICE_LIT("comp"), SLICE_LIT("copy"));
    web_query(&c, SLICE_LIT("copyid"), slice_str(x->id));
    web_header(&c, SLICE_LIT("x-ms-copy-action"), SLICE_LIT("abort"));
    return web_perform(&c, e);
}

/* A copy that came to nothing leaves a blob without bytes in the target's place, which nobody wrote: away
 * with it. */
static int remove_rest(const struct copy *x, const struct web_call *head, struct err *e)
{
    const struct web_response *h = &head->response;
    if (!h->has_length || h->length > 0 || !h->etag[0])
        return 0;
    int r = az_remove(&x->az->base, x->to, slice_str(h->etag), e);
    return r == -ENOENT || r == ERR_PRECONDITION ? 0 : r;
}

/* `code` and `why` are what is told, also of what is left behind; 0 when the copy was done meanwhile. */
static int give_up(const struct copy *x, int code, const char *why, struct err *e)
{
    struct err local = {0};
    struct quit _cleanup_(quit_leave) tidy;
    struct web_call _cleanup_(web_call_fini) c = {0};
    quit_enter_tidy(&tidy);
    int r = x->id[0] ? abort_copy(x, &local) : err_set(&local, -ENOSYS, "the service named no copy");
    if (r == 0 || r == ERR_CONFLICT) { /* ERR_CONFLICT: it has ended already */
        local = (struct err){0};
        r = look_at_copy(x, &c, &local);
        if (r == 0 && copy_is(&c, "success"))
            return 0;
        if (r == 0 && copy_is(&c, "pending"))
            r = err_set(&local, ERR_ORIGIN_FAILED, "it is still pending");
        r = r < 0 ? r : remove_rest(x, &c, &local);
    }
    return r < 0 ? err_set(e, code, "%s; aborting it failed (%s): it may go on, or leave an empty object",
                           why, local.text)
                 : err_set(e, code, "%s; it was aborted", why);
}

/* Ends early when the copy is given up. */
static void wait_a_little(void)
{
    for (int i = 0; i < COPY_LOOK_MS && !quit_is_now(); i += STOP_LOOK_MS)
        sys->sleep_ns((uint64_t)STOP_LOOK_MS * 1000000);
}

/* Until the service has copied: 0, or what went wrong. */
static int wait_for_copy(const struct copy *x, struct err *e)
{
    unsigned failures = 0;
    uint64_t began_ms = sys_mono_ms(), heard_ms = began_ms;
    char why[ERR_TEXT_MAX];
    for (;;) {
        struct web_call _cleanup_(web_call_fini) c;
        int r = look_at_copy(x, &c, e);
        uint64_t now_ms = sys_mono_ms();
        if (r == -ECANCELED || quit_is_now())
            return give_up(x, -ECANCELED, "given up before the service has copied", e);
        if (r < 0 && (r == ERR_CONFLICT || !retry_is_transient(r)))
            return r;
        if (r < 0 && ++failures >= LOOK_FAILURES && now_ms - heard_ms >= x->az->base.patience_ms) {
            memcpy(why, e->text, sizeof(why));
            return give_up(x, r, why, e);
        }
        if (r == 0 && copy_is(&c, "success"))
            return 0;
        if (r == 0 && !copy_is(&c, "pending")) {
            (void)remove_rest(x, &c, NULL);
            return err_set(e, ERR_ORIGIN_FAILED, "the copy ended as \"%s\"", c.response.copy_status);
        }
        failures = r == 0 ? 0 : failures;
        heard_ms = r == 0 ? now_ms : heard_ms;
        if (now_ms - began_ms >= COPY_MAX_MS)
            return give_up(x, -ETIMEDOUT, "the copy was not done within an hour", e);
        wait_a_little();
    }
}

int az_copy(struct origin *o, struct slice from, struct slice to, struct slice if_match, struct arena *a,
            struct origin_attr *ret_attr, struct err *e)
{
    struct az *z = az_of(o);
    struct buf _cleanup_buf_ url = BUF_INIT(WEB_URL_MAX);
    struct origin_attr source;
    char etag[WEB_ETAG_MAX + 3];
    int r = az_check_key(z, from, e);
    if (r == 0)
        r = az_check_written(z, to, e);
    if (r == 0)
        r = web_head(&z->web, from, if_match, a, &source, e);
    if (r == 0)
        r = web_etag_header(source.etag, etag, e);
    if (r < 0)
        return r;
    if (az_url(z, true, from, &url) < 0 || (z->sas && buf_printf(&url, "?%s", z->sas) < 0))
        return err_set(e, -ENAMETOOLONG, "the key is too long");
    struct origin_body none = {0};
    struct web_call _cleanup_(web_call_fini) c;
    web_call_init(&c, &z->web, WEB_PUT, "copy");
    c.has_key = true;
    c.key = to;
    c.body = &none;
    web_header(&c, SLICE_LIT("x-ms-copy-source"), buf_view(&url));
    web_header(&c, SLICE_LIT("x-ms-source-if-match"), slice_str(etag));
    r = web_perform(&c, e);
    if (r == 0 && !copy_is(&c, "success")) {
        struct copy x = {.az = z, .to = to};
        memcpy(x.id, c.response.copy_id, sizeof(x.id));
        r = wait_for_copy(&x, e);
    }
    struct quit _cleanup_(quit_leave) tidy;
    quit_enter_tidy(&tidy); /* what is done is told */
    return r == 0 ? web_head(&z->web, to, SLICE_NULL, a, ret_attr, e) : r;
}

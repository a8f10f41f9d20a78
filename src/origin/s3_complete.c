/*
 * The end of an upload in parts: the list of its parts, and what a refusal or a lost answer means.
 *
 * Invariants:
 *  1. The end is told as a success after a lost answer, or in spite of a refusal, only when the service has
 * the upload no more and the object is its own: of its size, with the checksum of these parts, or the ETag
 * that S3 makes of them. While the upload is still there nothing was done, and a condition that does not hold
 * is told as such. (Who may not list its parts goes by the object alone, and only after a lost answer.)
 *  2. Where the service keeps no checksums, and its ETags are no MD5s, the key is looked at before the end:
 * after a lost answer another object of the size, and of as many parts, is the upload's own. Asked again in
 * another call, nobody can tell.
 *
 * Failure modes: those of the service. After a timeout the object may have been written.
 */
#include "origin/s3_multipart.h"

#include "base/text.h"
#include "origin/meta.h"

#include <openssl/evp.h>

#define COMPLETE_MAX (4 * MIB)
#define MD5_BYTES    16

/* ---- one request ---- */

/* A part's checksum, which it was sent with. */
static int add_sum(const struct s3_upload *u, uint32_t i, struct buf *b)
{
    const char *name = u->gives ? u->sums.kind->name : "";
    if (!u->gives || u->numbered[i].sum.n == 0)
        return 0;
    int r = buf_printf(b, "<Checksum%s>", name);
    if (r == 0)
        r = s3_sum_base64(&u->sums, u->numbered[i].sum, b, NULL);
    return r == 0 ? buf_printf(b, "</Checksum%s>", name) : r;
}

static int make_document(const struct s3_upload *u, struct buf *b)
{
    int r = buf_str(b, "<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">");
    for (uint32_t i = 0; i < u->n_parts && r == 0; i++) {
        bool weak = web_etag_is_weak(slice_str(u->etags[i]));
        r = buf_printf(b, "<Part><PartNumber>%u</PartNumber><ETag>%s", s3_upload_number(u, i),
                       weak ? "" : "&quot;");
        if (r == 0)
            r = web_xml_escape(b, slice_str(u->etags[i]));
        if (r == 0)
            r = buf_printf(b, "%s</ETag>", weak ? "" : "&quot;");
        if (r == 0)
            r = add_sum(u, i, b);
        if (r == 0)
            r = buf_str(b, "</Part>");
    }
    return r == 0 ? buf_str(b, "</CompleteMultipartUpload>") : r;
}

static int complete_once(struct s3_upload *u, struct slice document, struct s3_result *ret,
                         uint64_t *ret_date_ns, struct err *e)
{
    char etag[WEB_ETAG_MAX + 3], hash[65];
    struct buf _cleanup_buf_ body = BUF_INIT(WEB_RESULT_MAX);
    struct web_call _cleanup_(web_call_fini) c;
    s3_upload_call(u, &c, WEB_POST, "complete_upload");
    c.post = document;
    c.on_body = web_collect;
    c.arg = &body;
    sigv4_sha256_hex(document, hash);
    c.payload_sha256 = slice_str(hash);
    web_query(&c, SLICE_LIT("uploadId"), slice_str(u->id));
    web_header(&c, SLICE_LIT("content-type"), SLICE_LIT("application/xml"));
    int r = s3_put_conditions(&c, u->put, etag, e);
    if (r == 0)
        r = web_perform(&c, e);
    if (r == 0)
        r = s3_result_parse(buf_view(&body), ret, e);
    if (r == 0 && strcmp(ret->root, "Error") == 0) /* 200 was sent before the outcome was known */
        return s3_error_of(u->s3, &c.response, buf_view(&body), e);
    if (r == 0 && strcmp(ret->root, "CompleteMultipartUploadResult") != 0)
        return err_set(e, ERR_ORIGIN_FAILED, "the answer to the end of an upload is a %s", ret->root);
    if (r == 0)
        *ret_date_ns = c.response.date_ns;
    return r;
}

/* The same with If-Match "*", which goes as the ETag that is there now. */
static int complete_over_any(struct s3_upload *u, struct slice document, struct s3_result *ret,
                             uint64_t *ret_date_ns, struct err *e)
{
    const struct origin_put *asked = u->put;
    char etag[WEB_ETAG_MAX + 1] = "";
    struct origin_put pinned = *asked;
    for (int i = 0; i < S3_ANY_TRIES; i++) {
        if (e)
            e->code = 0;
        int r = s3_pin_any(u->s3, asked->key, etag, e);
        if (r == -ENOENT) /* which would mean the upload */
            return err_set(e, ERR_PRECONDITION, "there is no object");
        pinned.if_match = slice_str(etag);
        u->put = &pinned;
        if (r == 0)
            r = complete_once(u, document, ret, ret_date_ns, e);
        u->put = asked;
        if (r != ERR_PRECONDITION)
            return r;
    }
    return err_set(e, ERR_PRECONDITION, "the object is written again and again");
}

/* ---- what a refusal of the end means ---- */

/* The MD5 that a part's ETag is; false: it is none, or not that of its bytes, as with SSE-KMS. */
static bool part_md5(const struct s3_upload *u, uint32_t i, uint8_t ret[MD5_BYTES])
{
    struct slice etag = slice_str(u->etags[i]), known = u->numbered ? u->numbered[i].md5 : SLICE_NULL;
    return etag.n == 2 * MD5_BYTES && text_unhex(etag, ret, MD5_BYTES) == 0 &&
           (known.n == 0 || slice_eq_case(known, etag));
}

static bool etags_tell(const struct s3_upload *u)
{
    uint8_t one[MD5_BYTES];
    uint32_t i = 0;
    while (i < u->n_parts && part_md5(u, i, one))
        i++;
    return i == u->n_parts;
}

/* The ETag that S3 makes of parts: MD5 of their MD5s, and how many there are. False when the service's ETags
 * of the parts are none. */
static bool expected_etag(const struct s3_upload *u, char ret[WEB_ETAG_MAX + 1])
{
    uint8_t digest[EVP_MAX_MD_SIZE];
    char hex[2 * MD5_BYTES + 1];
    EVP_MD_CTX *md5 = EVP_MD_CTX_new();
    bool good = md5 && EVP_DigestInit_ex(md5, EVP_md5(), NULL) == 1;
    assert(good);
    for (uint32_t i = 0; i < u->n_parts && good; i++) {
        uint8_t one[MD5_BYTES];
        good = part_md5(u, i, one) && EVP_DigestUpdate(md5, one, sizeof(one)) == 1;
    }
    good = good && EVP_DigestFinal_ex(md5, digest, NULL) == 1;
    EVP_MD_CTX_free(md5);
    if (!good)
        return false;
    text_hex(digest, MD5_BYTES, hex);
    (void)snprintf(ret, WEB_ETAG_MAX + 1, "%s-%u", hex, u->n_parts);
    return true;
}

/* "...-N", as far as it says: N is how many parts there are. */
static bool has_count(const struct s3_upload *u, struct slice etag)
{
    ssize_t dash = slice_rfind(etag, '-');
    uint64_t n;
    return dash < 0 || slice_u64(slice_from(etag, (size_t)dash + 1), &n) < 0 || n == u->n_parts;
}

/* Of two "SUFFIX BASE64". */
static bool is_same_kind(struct slice a, struct slice b)
{
    return slice_eq(slice_split(&a, ' '), slice_split(&b, ' '));
}

/* Whether the object that is there is what these parts make. */
static bool is_own(const struct s3_upload *u, const struct origin_attr *now, bool unsure)
{
    char etag[WEB_ETAG_MAX + 1];
    struct slice told = u->gives ? meta_get(now->meta, META_CHECKSUM) : SLICE_NULL;
    if (now->size_bytes != u->size)
        return false;
    if (told.n > 0 && is_same_kind(told, u->put->whole_sum))
        return slice_eq(told, u->put->whole_sum);
    if (expected_etag(u, etag)) /* which some services write in capitals */
        return slice_eq_case(now->etag, slice_str(etag));
    return unsure && u->looked && !slice_eq_str(now->etag, u->before) && has_count(u, now->etag);
}

/* What nobody could tell from the upload's own object afterwards. A look that fails is none. */
static void look_before(struct s3_upload *u)
{
    struct arena *_cleanup_(arena_freep) a = arena_new(64 * KIB);
    struct origin_attr now;
    if ((u->gives && u->put->whole_sum.n > 0) || etags_tell(u))
        return;
    int r = web_head(&u->s3->web, u->put->key, SLICE_NULL, a, &now, NULL);
    u->looked = r == 0 || r == -ENOENT;
    if (r == 0)
        (void)snprintf(u->before, sizeof(u->before), SLICE_FMT, SLICE_ARG(now.etag));
}

static bool begins(const struct err *e, const char *text)
{
    return slice_starts(slice_str(e->text), slice_str(text));
}

/* Whether the service has the upload no more. */
static int look_for_upload(struct s3_upload *u, bool *ret_gone, struct err *e)
{
    struct buf _cleanup_buf_ body = BUF_INIT(WEB_RESULT_MAX);
    struct web_call _cleanup_(web_call_fini) c;
    s3_upload_call(u, &c, WEB_GET, "list_parts");
    c.on_body = web_collect;
    c.arg = &body;
    web_query(&c, SLICE_LIT("max-parts"), SLICE_LIT("1"));
    web_query(&c, SLICE_LIT("uploadId"), slice_str(u->id));
    int r = web_perform(&c, e);
    *ret_gone = r < 0 && begins(e, "404");
    return *ret_gone ? 0 : r;
}

/* Whether the object is the upload's own; *ret_attr is it then. */
static int look_for_object(struct s3_upload *u, bool unsure, bool *ret_own, struct arena *a,
                           struct origin_attr *ret_attr, struct err *e)
{
    struct arena *_cleanup_(arena_freep) scratch = arena_new(64 * KIB);
    struct origin_attr now;
    int r = web_head(&u->s3->web, u->put->key, SLICE_NULL, scratch, &now, e);
    *ret_own = r == 0 && is_own(u, &now, unsure);
    if (*ret_own)
        web_put_attr(u->put, u->size, now.etag, now.mtime_ns, a, ret_attr);
    return r == -ENOENT ? 0 : r;
}

/* A refusal may have met what this upload itself has made, before an answer was lost: now, or when a client
 * asked for the same before. 0: it has, and ret_attr is it. Who may not list parts goes by the object alone,
 * and only where a try of this call may have made it. */
static int judge(struct s3_upload *u, int r, bool unsure, struct arena *a, struct origin_attr *ret_attr,
                 struct err *e)
{
    bool no_object = u->put->if_match.n > 0 && begins(e, "404 NoSuchKey") && !unsure;
    bool gone = begins(e, "404") && !no_object, own = false;
    struct err local = {0};
    int k = 0;
    u->judged = r == ERR_PRECONDITION || gone;
    if (!u->judged)
        return r;
    if (!gone)
        k = look_for_upload(u, &gone, &local);
    bool looks = gone || (k < 0 && unsure && !retry_is_transient(k));
    local.code = 0;
    if (looks)
        k = look_for_object(u, unsure, &own, a, ret_attr, &local);
    if (own)
        return 0;
    if (k < 0 && retry_is_transient(k)) { /* nobody knows now */
        u->judged = false;
        *e = local;
        return k;
    }
    bool lost = r == ERR_PRECONDITION && unsure && looks;
    return lost ? err_set(e, ERR_ORIGIN_FAILED,
                          "the answer to the end of an upload was lost; its condition does not hold now")
                : r;
}

/* The same upload may be completed twice; the second answer is that of the first, or a refusal. */
static int complete_in_turn(struct s3_upload *u, struct arena *a, struct origin_attr *ret_attr, struct err *e)
{
    struct buf _cleanup_buf_ document = BUF_INIT(COMPLETE_MAX);
    if (make_document(u, &document) < 0)
        return err_set(e, ERR_ORIGIN_FAILED, "ETags or checksums of the parts cannot be written down");
    struct s3_result result;
    uint64_t date_ns = 0;
    struct retry retry = {0};
    bool unsure = false; /* a try before may have done it: what its condition meets now may be our own */
    bool any = s3_wants_any(u->s3, u->put->if_match);
    int r;
    look_before(u);
    do {
        e->code = 0;
        r = any ? complete_over_any(u, buf_view(&document), &result, &date_ns, e)
                : complete_once(u, buf_view(&document), &result, &date_ns, e);
        u->unsure = unsure;
        if (r == 0) {
            web_put_attr(u->put, u->size, slice_str(result.etag), date_ns, a, ret_attr);
            return 0;
        }
        bool refused = r == ERR_PRECONDITION || begins(e, "404");
        r = judge(u, r, unsure, a, ret_attr, e);
        unsure = unsure || (!refused && r != ERR_ORIGIN_BUSY);
    } while (r < 0 && !u->judged &&
             web_try_again(&u->s3->base, u->put->cancel, NULL, u->put->patience_ms, &retry, r));
    if (r == ERR_ORIGIN_BUSY && unsure) /* which tells callers that nothing was done */
        r = err_prefix(e, ERR_ORIGIN_FAILED, "an answer to the end of an upload was lost, and now");
    return r;
}

int s3_upload_end(struct s3_upload *u, struct arena *a, struct origin_attr *ret_attr, struct err *e)
{
    const struct origin_put *asked = u->put;
    struct key_order _cleanup_(key_order_leave) order = {0};
    struct origin_put plain;
    struct err local = {0};
    int r = s3_enter(u->s3, asked->key, s3_is_conditional(asked), asked->cancel, &order, &local);
    if (r == 0) {
        r = s3_look_first(u->s3, asked, &plain, &u->put, &local);
        r = r == 0 ? complete_in_turn(u, a, ret_attr, &local)
                   : judge(u, r, /* unsure= */ false, a, ret_attr, &local);
    }
    u->put = asked;
    if (r < 0 && e)
        *e = local;
    return r;
}

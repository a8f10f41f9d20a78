/*
 * What a bucket or an object does not have: ACLs other than the owner's, policies, encryption, lifecycle
 * rules and their kin. Clients ask for them on the way to something else, and are answered as S3 answers for
 * a bucket on which nothing of the kind was ever set.
 *
 * 1. Nothing can be set here but what kept.c keeps: what a client asks to be set is either what already holds
 * or refused.
 * 2. The answers are about the bucket here. What its origin has set for itself is neither asked nor shown.
 */
#include "origin/meta.h"
#include "s3/s3_internal.h"
#include "s3/xml.h"

#include "base/text.h"

#define SETTING_MAX_BYTES (16 * KIB)

static const struct {
    enum s3_error error;
    const char *parameter, *root, *inside;
} settings[] = {
#define X(parameter, error, root, inside) {S3_##error, parameter, root, inside},
    S3_SETTINGS(X)
#undef X
};

enum s3_error s3_op_get_bucket_setting(struct s3_request *r)
{
    _cleanup_buf_ struct buf b = BUF_INIT(SETTING_MAX_BYTES);
    ssize_t at = route_setting(r->query, r->n_query);
    struct xml x = {&b, 0};
    enum s3_error error = buckets_find(r);

    assert(at >= 0);
    if (error || kept_show(r, settings[at].parameter, &error))
        return error;
    error = settings[at].error;
    if (error)
        return error;
    xml_start(&x);
    xml_root(&x, settings[at].root);
    xml_raw(&x, slice_str(settings[at].inside));
    xml_close(&x, settings[at].root);
    assert(x.status == 0);
    reply_send(r, 200, "application/xml", buf_view(&b));
    return S3_OK;
}

/* Removing what is not there succeeds, as in S3. */
enum s3_error s3_op_delete_bucket_setting(struct s3_request *r)
{
    ssize_t at = route_setting(r->query, r->n_query);
    enum s3_error error = buckets_find(r);
    const char *property;

    assert(at >= 0);
    property = route_kept_property(settings[at].parameter);
    if (!error && property)
        error = s3_check_access(r, USER_MAY_MANAGE, r->bucket);
    if (!error && property)
        error = kept_change(r, property, SLICE_LIT(""));
    if (!error)
        reply_send(r, 204, NULL, SLICE_NULL);
    return error;
}

/* ---- ACLs: the canned one called private, which cannot be changed ---- */

static enum s3_error find_target(struct s3_request *r)
{
    struct wire_stat_req req = {.bucket = r->bucket, .key = r->key};
    struct wire_stat_rep rep;
    struct err e = {0};
    int status;

    if (r->key.n == 0)
        return buckets_find(r);
    status = object_stat(r->s3->session, &req, r->arena, &rep, &e);
    return status ? reply_failed(r, status, &e) : S3_OK;
}

enum s3_error s3_op_get_acl(struct s3_request *r)
{
    _cleanup_buf_ struct buf b = BUF_INIT(SETTING_MAX_BYTES);
    struct xml x = {&b, 0};
    enum s3_error error = find_target(r);

    if (error)
        return error;
    xml_start(&x);
    xml_root(&x, "AccessControlPolicy");
    xml_open(&x, "Owner");
    xml_owner(&x, r->s3->node_id);
    xml_close(&x, "Owner");
    xml_open(&x, "AccessControlList");
    xml_open(&x, "Grant");
    xml_raw(&x, SLICE_LIT("<Grantee xmlns:xsi=\"http://www.w3.org/2001/XMLSchema-instance\" "
                          "xsi:type=\"CanonicalUser\">"));
    xml_owner(&x, r->s3->node_id);
    xml_close(&x, "Grantee");
    xml_text(&x, "Permission", SLICE_LIT("FULL_CONTROL"));
    xml_close(&x, "Grant");
    xml_close(&x, "AccessControlList");
    xml_close(&x, "AccessControlPolicy");
    assert(x.status == 0);
    reply_send(r, 200, "application/xml", buf_view(&b));
    return S3_OK;
}

/* What a document of an ACL grants. */
struct granted {
    const char *owner;
    bool is_owner, is_all; /* of the grant that is being read: to the owner, everything */
    bool all;              /* there was one of everything to the owner */
    bool others;           /* and one of something else */
};

static int on_acl_element(void *arg, const char *path, struct slice text)
{
    static const char grant[] = "AccessControlPolicy/AccessControlList/Grant";
    struct granted *g = arg;

    if (strncmp(path, "AccessControlPolicy", strlen("AccessControlPolicy")) != 0)
        return ERR_PROTOCOL;
    if (strncmp(path, grant, sizeof grant - 1) != 0)
        return 0;
    path += sizeof grant - 1;
    text = slice_trim(text);
    if (strcmp(path, "/Grantee/ID") == 0) {
        g->is_owner = slice_eq_str(text, g->owner);
    } else if (strcmp(path, "/Permission") == 0) {
        g->is_all = slice_eq_str(text, "FULL_CONTROL");
    } else if (strcmp(path, "/Grantee/URI") == 0 || strcmp(path, "/Grantee/EmailAddress") == 0) {
        g->others = true;
    } else if (path[0] == 0) {
        g->all = g->all || (g->is_owner && g->is_all);
        g->others = g->others || !g->is_owner || !g->is_all;
        g->is_owner = g->is_all = false;
    }
    return 0;
}

/* What is granted by headers: nobody but the owner has anything. */
static bool has_grants(const struct s3_request *r)
{
    const struct slice grant = SLICE_LIT("x-amz-grant-");

    for (size_t i = 0; i < r->http->n_headers; i++)
        if (slice_eq_case(slice_sub(r->http->headers[i].name, 0, grant.n), grant))
            return true;
    return false;
}

/* The ACL that holds may be set again, as clients do after a copy, by its name or as a document. */
enum s3_error s3_op_put_acl(struct s3_request *r)
{
    _cleanup_buf_ struct buf document = BUF_INIT(SETTING_MAX_BYTES);
    struct granted granted = {.owner = r->s3->node_id};
    struct slice canned = request_header(r, "x-amz-acl");
    enum s3_error error = find_target(r);

    if (!error && !canned.p)
        error = put_document(r, &document, /* with_checksum= */ true);
    if (error)
        return error;
    if (!canned.p && document.n && xml_parse(buf_view(&document), on_acl_element, &granted, NULL))
        return S3_ERR_MALFORMED_XML;
    if (has_grants(r) || (canned.p ? !slice_eq_str(canned, "private") : !granted.all || granted.others))
        return S3_ERR_NO_ACLS;
    reply_send(r, 200, NULL, SLICE_NULL);
    return S3_OK;
}

enum s3_error s3_op_get_object_lock(struct s3_request *r)
{
    enum s3_error error = find_target(r);

    return error ? error
                 : reply_refuse(r, S3_ERR_INVALID_REQUEST, "the bucket has no object lock configuration");
}

/*
 * The Google Cloud Storage kind, between its files: gs.c (options, URLs, opening, reads), gs_token.c
 * (credentials and access tokens), gs_federation.c (those without a key), gs_json.c (documents), gs_list.c
 * (listings), gs_put.c (writes), gs_upload.c (resumable uploads), gs_parts.c (uploads in parts),
 * gs_versions.c (what there was before).
 *
 * Versions are generations: the decimal number stands where other kinds have an ETag.
 */
#pragma once

#include "origin/web_internal.h"

#include <jansson.h>

#define GS_MAGIC       0x47534f52u
#define GS_ENDPOINT    "https://storage.googleapis.com"
#define GS_CHUNK       (256 * KIB) /* chunks of resumable uploads are multiples of it */
#define GS_SINGLE_MAX  (8 * MIB)   /* larger objects are sent in resumable uploads */
#define GS_SESSION_MAX WEB_LOCATION_MAX
#define GS_PARTS       ".forebay-parts" /* a folder of that name, anywhere, has parts of uploads: gs_parts.c */
#define GS_MARK        "forebay-upload" /* metadata: which upload in parts made the object; not shown */
#define GS_SCOPE_ALL   "https://www.googleapis.com/auth/cloud-platform" /* to act for another account */

/* ---- tokens ---- */

struct gs_token;

/* Finds credentials: origin.credentials_file, else, unless `emulator`, GOOGLE_APPLICATION_CREDENTIALS, the
 * user's application default file, the metadata service. *ret is NULL when there are none. Errors name the
 * file. */
int gs_token_new(const struct origin_options *o, bool emulator, struct gs_token **ret, struct err *e);
void gs_token_free(struct gs_token *t);
/* A token that lives for a while still, appended to `b`, nothing on a machine without an account; asks for
 * one when needed. Any thread; one asks, the others wait. */
int gs_token_get(struct gs_token *t, struct buf *b, uint64_t *ret_version, struct err *e);
/* What was refused with 401 is not given again. */
void gs_token_drop(struct gs_token *t, uint64_t version);
/* The signed assertion of a service account, for a time; for tests. */
int gs_token_assertion(const struct gs_token *t, uint64_t real_s, struct buf *b, struct err *e);
/* Who gives the tokens, for people: never a secret. Lasts as long as `t`. */
const char *gs_token_told(const struct gs_token *t);

/* Of credentials files without a key: gs_federation.c. Members are NULL where nothing is said. */
struct gs_federation {
    char *file, *field; /* the token's, and the member of its JSON */
    char *audience, *subject_type;
    char *account_uri; /* where a token becomes one of a service account; NULL: it stays as it is */
    uint64_t life_s;   /* of that */
};
void gs_federation_fini(struct gs_federation *f);
/* An external account; ERR_BAD_OPTION. fini also after a failure. */
int gs_federation_take(const json_t *j, const char *path, struct gs_federation *ret, struct err *e);
/* Only the service account that a token is to become one of. */
int gs_federation_account(const json_t *j, const char *path, struct gs_federation *ret, struct err *e);
/* The question for a token, with the one that is in the file now. */
int gs_federation_form(const struct gs_federation *f, const char *scope, struct buf *form, struct err *e);
/* Exchanges *token (on the heap) for one of the service account; w's kind goes where the call says. */
int gs_federation_impersonate(const struct gs_federation *f, struct web *w, const char *scope, void **token,
                              uint64_t *ret_life_ms, struct err *e);

/* ---- the origin ---- */

/* What of a bucket that keeps versions is seen: gs_versions.c. */
struct gs_view {
    bool is_on;
    uint64_t as_of_ns;      /* without `generation` */
    char *generation, *key; /* the one that is seen, and of which object below the prefix */
    _Atomic bool is_kept;   /* the bucket is known to keep versions */
};

struct gs {
    struct origin base; /* first */
    uint32_t magic;
    char *bucket;
    char *prefix;          /* "" or ends with '/' */
    char *billing_project; /* NULL: the bucket's owner pays */
    struct web web;
    struct web_endpoint endpoint;
    struct gs_token *token; /* NULL: requests are not signed */
    uint64_t part_bytes;
    struct gs_view view;
};

static inline struct gs *gs_of(struct origin *o)
{
    struct gs *g = container_of(o, struct gs, base);
    assert(g->magic == GS_MAGIC);
    return g;
}

/* ---- documents ---- */

json_t *gs_json_parse(struct slice text, struct err *e);
/* A document that a call's answer is, collected in `body`; NULL: *ret_code says why. */
json_t *gs_ask(struct web_call *c, struct buf *body, int *ret_code, struct err *e);
static inline void gs_json_unrefp(json_t **j)
{
    json_decref(*j);
}
/* Attributes of an object resource, in the arena. */
int gs_json_attr(const json_t *j, struct arena *a, struct origin_attr *ret, struct err *e);
/* The type and metadata of `p` as a resource that patches another. */
int gs_json_patch(const struct origin_put *p, struct buf *b, struct err *e);
/* The resource of a new object as text: name, type, class, metadata. mark: its GS_MARK, empty: none. */
int gs_json_resource(const struct gs *g, const struct origin_put *p, struct slice mark, struct buf *b,
                     struct err *e);
/* The question for an object like that, made of others: `sources` is an array, which is taken. With `deletes`
 * they go with it. */
int gs_json_compose(const struct gs *g, const struct origin_put *p, struct slice mark, json_t *sources,
                    bool deletes, struct buf *b, struct err *e);
/* GS_MARK of a resource; empty: it has none. */
struct slice gs_json_mark(const json_t *j);
/* Error of a refused answer, whose body is JSON or not. */
int gs_json_refused(const struct web_response *r, struct slice body, struct err *e);

/* ---- verbs ---- */

/* "BASE/storage/v1/b/BUCKET/o[/KEY]" and the upload form. */
int gs_object_url(const struct gs *g, const char *before, bool has_key, struct slice key, struct buf *b);
int gs_stat(struct gs *g, struct slice key, struct slice if_match, struct arena *a, struct origin_attr *ret,
            struct err *e);
int gs_list(struct origin *o, const struct origin_list *l, struct arena *a, struct origin_page *ret,
            struct err *e);
int gs_put(struct origin *o, const struct origin_put *p, const struct origin_body *body, struct arena *a,
           struct origin_attr *ret_attr, struct err *e);
int gs_takes(struct origin *o, const struct origin_put *p, uint64_t size_bytes, struct err *e);
int gs_remove(struct origin *o, struct slice key, struct slice if_match, struct err *e);
int gs_copy(struct origin *o, struct slice from, struct slice to, struct slice if_match, struct arena *a,
            struct origin_attr *ret_attr, struct err *e);
int gs_set_meta(struct origin *o, const struct origin_put *p, uint64_t size_bytes, struct arena *a,
                struct origin_attr *ret_attr, struct err *e);
int gs_upload(struct gs *g, const struct origin_put *p, const struct origin_body *body, struct arena *a,
              struct origin_attr *ret_attr, struct err *e);
/* web_check_key, and names that are reserved. */
int gs_check_key(const struct gs *g, struct slice key, struct err *e);
bool gs_is_reserved(struct slice key);
/* An object in one request; the key is not looked at. */
int gs_put_single(struct gs *g, const struct origin_put *p, struct slice mark, const struct origin_body *body,
                  const char *op, struct arena *a, struct origin_attr *ret_attr, struct err *e);

/* ---- uploads in parts, as of origin_ops ---- */

int gs_upload_create(struct origin *o, const struct origin_put *p, char ret_id[ORIGIN_UPLOAD_ID_MAX],
                     bool *ret_sums, struct err *e);
int gs_upload_part(struct origin *o, const struct origin_put *p, struct slice id, uint32_t number,
                   const struct origin_body *body, char ret_etag[ORIGIN_ETAG_MAX + 1], struct err *e);
int gs_upload_complete(struct origin *o, const struct origin_put *p, struct slice id,
                       const struct origin_part *parts, size_t n, uint64_t size_bytes, struct arena *a,
                       struct origin_attr *ret_attr, struct err *e);
int gs_upload_abort(struct origin *o, struct slice key, struct slice id, struct err *e);

/* ---- earlier versions ---- */

int gs_view_open(struct gs *g, const struct origin_options *o, struct err *e);
/* Whether a resource, with its times, was there then. ERR_ORIGIN_FAILED: its times cannot be read. */
int gs_view_has(const struct gs_view *v, const json_t *j, bool *ret, struct err *e);
/* Whether the bucket keeps versions at all: ERR_NOT_IMPLEMENTED. */
int gs_view_check(struct gs *g, struct err *e);
/* The attributes of the version of a key; -ENOENT. */
int gs_view_stat(struct gs *g, const struct origin_get *q, struct arena *a, struct origin_attr *ret,
                 struct err *e);
/* Of a read: names the generation; and whether the answer is of it. */
int gs_view_pin(struct gs *g, struct web_call *c, const struct origin_get *q, struct arena *scratch,
                struct err *e);
int gs_view_answer(const struct web_call *c, struct err *e);
/* The page of a view of one version. */
int gs_view_list_one(struct gs *g, const struct origin_list *l, struct arena *a, struct origin_page *ret,
                     struct err *e);

/* ifGenerationMatch of a write. */
int gs_put_conditions(struct web_call *c, const struct origin_put *p, struct err *e);
bool gs_is_generation(struct slice s);

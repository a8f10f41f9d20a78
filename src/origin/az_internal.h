/*
 * The Azure Blob kind, between its files: az.c (options, URLs, opening, reads), az_request.c (addressing,
 * SharedKey, SAS), az_token.c (tokens of identities), az_list.c (listings), az_put.c (writes, copies),
 * az_blocks.c (blobs in blocks, uploads in parts).
 */
#pragma once

#include "origin/web_internal.h"

#define AZ_MAGIC      0x415a4f52u
#define AZ_FOLDER     "hdi_isfolder" /* metadata of blobs that stand for directories */
#define AZ_VERSION    "2021-12-02"   /* of the service's protocol */
#define AZ_BLOCKS_MAX 50000
#define AZ_BLOCK_MAX  (4000 * MIB)
#define AZ_SINGLE_MAX (8 * MIB) /* larger blobs are sent in blocks */
#define AZ_KEY_MAX    256       /* bytes of an account's key, decoded */

/* Where earlier pages of listings began and ended. */
#define AZ_HINTS   64
#define AZ_NEXT_MS 30000 /* for so long what comes behind a page's end is believed to begin there */

struct az_hint {
    char *list;         /* heap, as what follows; NULL: unused */
    char *first, *last; /* of its keys */
    char *began, *next; /* the markers that it was asked with, and that lead on; "": none */
    uint64_t asked_ms;  /* monotonic */
};

struct az_hints {
    struct lock lock; /* covers what follows */
    struct az_hint v[AZ_HINTS];
    size_t next;
};

void az_hints_init(struct az_hints *h);
void az_hints_fini(struct az_hints *h);

struct az {
    struct origin base; /* first */
    uint32_t magic;
    char *account;
    char *container;
    char *prefix; /* "" or ends with '/' */
    struct web web;
    struct web_endpoint endpoint; /* its path holds the account where the address does */
    uint8_t key[AZ_KEY_MAX];      /* of SharedKey */
    size_t key_n;                 /* 0: none */
    char *sas;                    /* "sv=...&sig=..." as given, without '?'; NULL: none */
    struct az_token *token;       /* NULL: none */
    const char *told;             /* where key or signature are from, for people; NULL: there are none */
    uint64_t part_bytes;
    char *version,
        *version_key; /* the only one that is seen, and of which blob below the prefix; NULL: of now */
    struct az_hints hints;
};

static inline struct az *az_of(struct origin *o)
{
    struct az *z = container_of(o, struct az, base);
    assert(z->magic == AZ_MAGIC);
    return z;
}

extern const struct web_kind az_web_kind, az_view_kind;

/* What the account signs, by its version 2009-09-19 of SharedKey; all headers of the request are in `pairs`,
 * lower-case names. `path` is the encoded path of the URL. For the request and for tests. */
int az_string_to_sign(struct slice method, const char *account, struct slice path,
                      const struct sigv4_pair *query, size_t n_query, const struct sigv4_pair *pairs,
                      size_t n, uint64_t body_bytes, struct buf *b);
/* "BASE/CONTAINER[/KEY]" without a query. */
int az_url(const struct az *z, bool has_key, struct slice key, struct buf *b);
int az_request_prepare(struct web_call *c, struct web_request *q, struct err *e);
int az_request_refused(struct web_call *c, struct err *e);

/* ---- az.c ---- */

/* web_check_key, and -ENOENT for names that no blob has, because the service takes them for others: they
 * could lead out of the prefix, and out of the container. */
int az_check_key(const struct az *z, struct slice key, struct err *e);
/* The same of a key that is written or removed: -EINVAL, also for names with a part that ends with a dot,
 * which the service leaves off. */
int az_check_written(const struct az *z, struct slice key, struct err *e);

/* ---- az_token.c ---- */

/* NULL where nobody gives tokens, or they must not go to the endpoint. ERR_BAD_OPTION. */
int az_token_new(const struct origin_options *o, const struct web_endpoint *endpoint, struct az_token **ret,
                 struct err *e);
void az_token_free(struct az_token *t);
/* Appends the token; nothing where there is none. As web_renewed_get. */
int az_token_get(struct az_token *t, struct buf *b, uint64_t *ret_version, struct err *e);
/* Who gives them, for people: never a secret. Lasts as long as `t`. */
const char *az_token_told(const struct az_token *t);
void az_token_drop(struct az_token *t, uint64_t version);
/* What is posted for a workload: the file's assertion, of a client. ERR_ORIGIN_DENIED. For the request and
 * for tests.
 */
int az_token_form(const char *assertion_file, const char *identity, struct buf *form, struct err *e);

/* ---- az_versions.c ---- */

/* origin.version, after the prefix is known; ERR_BAD_OPTION, also for origin.as_of. */
int az_view_open(struct az *z, const struct origin_options *o, struct err *e);
/* Of a read: names the version; and whether the answer is of it. */
int az_view_pin(struct web_call *c, const struct origin_get *g, struct arena *scratch, struct err *e);
int az_view_check(const struct web_call *c, struct err *e);
/* The page of the one blob. */
int az_view_list(struct az *z, const struct origin_list *l, struct arena *a, struct origin_page *ret,
                 struct err *e);

/* ---- verbs ---- */

int az_list(struct origin *o, const struct origin_list *l, struct arena *a, struct origin_page *ret,
            struct err *e);
int az_put(struct origin *o, const struct origin_put *p, const struct origin_body *body, struct arena *a,
           struct origin_attr *ret_attr, struct err *e);
int az_takes(struct origin *o, const struct origin_put *p, uint64_t size_bytes, struct err *e);
int az_remove(struct origin *o, struct slice key, struct slice if_match, struct err *e);
int az_set_meta(struct origin *o, const struct origin_put *p, uint64_t size_bytes, struct arena *a,
                struct origin_attr *ret_attr, struct err *e);
int az_copy(struct origin *o, struct slice from, struct slice to, struct slice if_match, struct arena *a,
            struct origin_attr *ret_attr, struct err *e);

/* ---- az_put.c, for az_blocks.c ---- */

/* Type, metadata and conditions of a new blob; texts go to the arena, which must outlive the call. */
int az_put_headers(struct web_call *c, const struct origin_put *p, struct arena *a, struct err *e);
void az_class_header(const struct az *z, struct web_call *c);
int az_put_result(const struct web_call *c, const struct origin_put *p, uint64_t size, struct arena *a,
                  struct origin_attr *ret, struct err *e);

/* ---- az_blocks.c ---- */

/* The blob in blocks that are sent in parallel. */
int az_put_blocks(struct az *z, const struct origin_put *p, const struct origin_body *body, struct arena *a,
                  struct origin_attr *ret_attr, struct err *e);
int az_upload_create(struct origin *o, const struct origin_put *p, char ret_id[ORIGIN_UPLOAD_ID_MAX],
                     bool *ret_sums, struct err *e);
int az_upload_part(struct origin *o, const struct origin_put *p, struct slice id, uint32_t number,
                   const struct origin_body *body, char ret_etag[ORIGIN_ETAG_MAX + 1], struct err *e);
int az_upload_complete(struct origin *o, const struct origin_put *p, struct slice id,
                       const struct origin_part *parts, size_t n, uint64_t size_bytes, struct arena *a,
                       struct origin_attr *ret_attr, struct err *e);
int az_upload_abort(struct origin *o, struct slice key, struct slice id, struct err *e);

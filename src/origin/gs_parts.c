/*
 * Uploads in parts: each part is an object of its own, and compose makes the object of them.
 *
 *     PREFIX.forebay-parts/UPLOAD/NNNNN-RANDOM   a part, or one try of it
 *     PREFIX.forebay-parts/UPLOAD/c-RANDOM       32 of them, composed on the way to an object of more
 *
 * UPLOAD is 32, RANDOM 16 hexadecimal digits. No listing of ours shows a folder of that name, and no key has
 * it (gs_is_reserved). The service wants sources of one class, and what it makes of them has that class: they
 * are in the one that the object is to have.
 *
 * "ETag" of a part: its generation, '-', RANDOM; "empty" of one without bytes, which is no object.
 *
 * Invariants:
 *  1. The object appears with one request, and conditions go with that one. It is made of the generations
 * that the caller names, whatever else was sent in their place.
 *  2. Until then no part goes, so that a completion that is refused can be asked for again. Sources of the
 * last request go with it where the service does that (deleteSourceObjects), and it takes no copy of them
 * then; what else the upload has is removed by generation afterwards, so that no version of it stays.
 *  3. The object is told as this upload's own after a lost answer, or in spite of a condition that fails,
 * only when GS_MARK in its metadata says so.
 *  4. From the moment the object is there until nothing else of the upload is, who was told of it
 * (origin_note_upload) removes that after a kill.
 *
 * Failure modes: as in origin.h. -ENOENT: the upload's parts are gone.
 */
#include "origin/gs_internal.h"

#include "base/text.h"

#include <inttypes.h>

#define SOURCES_MAX     32 /* of one request */
#define PARTS_MAX       10000
#define UPLOAD_RANDOM   16
#define PIECE_RANDOM    8
#define RANDOM_SIZE     (2 * PIECE_RANDOM + 1)
#define NUMBER_SIZE     24
#define NAME_SIZE       (ORIGIN_KEY_MAX_BYTES + 128)
#define COMPOSE_MAX     (1 * MIB)
#define ANSWER_ARENA    (64 * KIB)
#define ANY_TRIES       8
#define EMPTY           "empty"
#define REMOVED_AT_ONCE 1000
#define ROUNDS_MAX      256
#define BATCH           100 /* removals in one request */
#define BATCH_MIN       9   /* fewer go one by one */
#define BATCH_MAX_BYTES (1 * MIB)

/* An object of the upload; number 0: composed on the way. */
struct piece {
    uint32_t number;
    char random[RANDOM_SIZE], generation[NUMBER_SIZE];
};

static void new_piece(uint32_t number, struct piece *ret)
{
    uint8_t random[PIECE_RANDOM];
    *ret = (struct piece){.number = number};
    sys->random(random, sizeof(random));
    text_hex(random, sizeof(random), ret->random);
}

/* Its key below the origin's prefix. */
static struct slice key_of(struct slice id, const struct piece *x, char ret[NAME_SIZE])
{
    int n = snprintf(ret, NAME_SIZE, GS_PARTS "/" SLICE_FMT "/", SLICE_ARG(id));
    n += x->number ? snprintf(ret + n, NAME_SIZE - (size_t)n, "%05" PRIu32 "-%s", x->number, x->random)
                   : snprintf(ret + n, NAME_SIZE - (size_t)n, "c-%s", x->random);
    return slice_of(ret, (size_t)n);
}

static bool is_id(struct slice id)
{
    uint8_t random[UPLOAD_RANDOM];
    return id.n == 2 * (size_t)UPLOAD_RANDOM && text_unhex(id, random, UPLOAD_RANDOM) == 0;
}

static int take_generation(const struct origin_attr *attr, struct piece *x, struct err *e)
{
    if (attr->etag.n >= sizeof(x->generation))
        return err_set(e, ERR_ORIGIN_FAILED, "a generation of %zu digits", attr->etag.n);
    memcpy(x->generation, attr->etag.p, attr->etag.n);
    x->generation[attr->etag.n] = '\0';
    return 0;
}

/* ---- create, parts ---- */

/* Nothing is asked: the first part makes what the service knows of it. It keeps no checksums of parts. */
int gs_upload_create(struct origin *o, const struct origin_put *p, char ret_id[ORIGIN_UPLOAD_ID_MAX],
                     bool *ret_sums, struct err *e)
{
    uint8_t random[UPLOAD_RANDOM];
    char name[NAME_SIZE];
    struct piece longest;
    *ret_sums = false;
    int r = gs_takes(o, p, 0, e);
    if (r < 0)
        return r;
    sys->random(random, sizeof(random));
    text_hex(random, sizeof(random), ret_id);
    new_piece(PARTS_MAX, &longest);
    if (web_check_length(gs_of(o)->prefix, key_of(slice_str(ret_id), &longest, name), NULL) < 0)
        return err_set(e, ERR_NOT_IMPLEMENTED, "the origin's prefix is too long for " GS_PARTS " below it");
    return 0;
}

int gs_upload_part(struct origin *o, const struct origin_put *p, struct slice id, uint32_t number,
                   const struct origin_body *body, char ret_etag[ORIGIN_ETAG_MAX + 1], struct err *e)
{
    struct gs *g = gs_of(o);
    struct arena *_cleanup_(arena_freep) a = arena_new(ANSWER_ARENA);
    struct origin_attr attr;
    struct piece x;
    char name[NAME_SIZE];
    int r = gs_check_key(g, p->key, e);
    if (r < 0)
        return r;
    if (!is_id(id))
        return err_set(e, -ENOENT, "the upload is none of this service's");
    (void)snprintf(ret_etag, ORIGIN_ETAG_MAX + 1, EMPTY);
    if (body->size_bytes == 0)
        return 0;
    new_piece(number, &x);
    struct origin_put part = {.key = key_of(id, &x, name), .cancel = p->cancel};
    r = gs_put_single(g, &part, SLICE_NULL, body, "put_part", a, &attr, e);
    if (r == 0)
        r = take_generation(&attr, &x, e);
    if (r == 0)
        (void)snprintf(ret_etag, ORIGIN_ETAG_MAX + 1, "%s-%s", x.generation, x.random);
    return r;
}

static int parse_part(const struct origin_part *part, struct piece *ret, struct err *e)
{
    struct slice hex = part->etag, generation = slice_split(&hex, '-');
    uint8_t random[PIECE_RANDOM];
    *ret = (struct piece){.number = part->number};
    if (!gs_is_generation(generation) || generation.n >= sizeof(ret->generation) ||
        hex.n != RANDOM_SIZE - 1 || text_unhex(hex, random, PIECE_RANDOM) < 0)
        return err_set(e, -ENOENT, "part %" PRIu32 " is none of this service's", part->number);
    memcpy(ret->generation, generation.p, generation.n);
    memcpy(ret->random, hex.p, hex.n);
    return 0;
}

/* ---- removal of what an upload has ---- */

struct removal {
    struct gs *gs;
    const json_t *items;
    uint32_t n;
};

static const char *text_of(const struct removal *x, uint32_t i, const char *name)
{
    return json_string_value(json_object_get(json_array_get(x->items, i), name));
}

/* The item's key below the origin's prefix. Nothing else goes than what may be an upload's. */
static int take_item(const struct removal *x, uint32_t i, struct slice *ret_key, struct slice *ret_generation,
                     struct err *e)
{
    struct slice prefix = slice_str(x->gs->prefix), full = slice_str(text_of(x, i, "name"));
    *ret_generation = slice_str(text_of(x, i, "generation"));
    if (!slice_starts(full, prefix) || !gs_is_reserved(slice_from(full, prefix.n)) ||
        !gs_is_generation(*ret_generation))
        return err_set(e, ERR_ORIGIN_FAILED, "the page has what was not asked for");
    *ret_key = slice_from(full, prefix.n);
    return 0;
}

static int remove_one(void *arg, uint32_t i, atomic_bool *stop, struct err *e)
{
    const struct removal *x = arg;
    struct slice key, generation;
    int r = take_item(x, i, &key, &generation, e);
    if (r < 0)
        return r;
    struct web_call _cleanup_(web_call_fini) c;
    web_call_init(&c, &x->gs->web, WEB_DELETE, "abort_upload");
    c.has_key = true;
    c.key = key;
    c.also_cancel = stop;
    web_query(&c, SLICE_LIT("generation"), generation);
    r = web_perform(&c, e);
    return r == -ENOENT ? 0 : r;
}

static int add_to_batch(const struct removal *x, uint32_t i, const char *boundary, struct buf *b,
                        struct err *e)
{
    struct buf _cleanup_buf_ url = BUF_INIT(WEB_URL_MAX);
    struct slice key, generation;
    int r = take_item(x, i, &key, &generation, e);
    if (r < 0)
        return r;
    r = gs_object_url(x->gs, "", true, key, &url);
    if (r == 0)
        r = buf_printf(b,
                       "--%s\r\nContent-Type: application/http\r\nContent-ID: <%" PRIu32 ">\r\n\r\n"
                       "DELETE " SLICE_FMT "?generation=" SLICE_FMT " HTTP/1.1\r\n\r\n\r\n",
                       boundary, i, SLICE_ARG(slice_from(buf_view(&url), strlen(x->gs->endpoint.base))),
                       SLICE_ARG(generation));
    return r < 0 ? err_set(e, -ENAMETOOLONG, "the removals are too long for one request") : 0;
}

/* Many in one request. What came of each is seen by the next listing. */
static int remove_batch(void *arg, uint32_t i, atomic_bool *stop, struct err *e)
{
    const struct removal *x = arg;
    struct buf _cleanup_buf_ url = BUF_INIT(WEB_URL_MAX), post = BUF_INIT(BATCH_MAX_BYTES);
    char boundary[RANDOM_SIZE], type[96];
    uint8_t random[PIECE_RANDOM];
    sys->random(random, sizeof(random));
    text_hex(random, sizeof(random), boundary);
    (void)snprintf(type, sizeof(type), "multipart/mixed; boundary=%s", boundary);
    uint32_t at = i * BATCH, end = MIN(at + BATCH, x->n);
    int r = 0;
    for (; at < end && r == 0; at++)
        r = add_to_batch(x, at, boundary, &post, e);
    if (r < 0)
        return r;
    if (buf_printf(&post, "--%s--\r\n", boundary) < 0 ||
        buf_printf(&url, "%s%s/batch/storage/v1", x->gs->endpoint.base, x->gs->endpoint.path) < 0)
        return err_set(e, -ENAMETOOLONG, "the removals are too long for one request");
    struct web_call _cleanup_(web_call_fini) c;
    web_call_init(&c, &x->gs->web, WEB_POST, "abort_upload");
    c.url = buf_view(&url);
    c.also_cancel = stop;
    c.post = buf_view(&post);
    web_header(&c, SLICE_LIT("content-type"), slice_str(type));
    return web_perform(&c, e);
}

/* Removes what one page has: many in few requests, unless it begins as the one before, whose first one
 * stayed, or the service takes none such; then one by one, so that there is a reason to tell. */
static int remove_page(struct removal *x, struct buf *first, bool *singly, struct err *e)
{
    struct web_parts parts = {
        .origin = &x->gs->base, .n = x->n, .limit = (uint32_t)x->gs->web.limit, .one = remove_one, .arg = x};
    struct slice name = slice_str(text_of(x, 0, "name"));
    *singly = *singly || x->n < BATCH_MIN || slice_eq(name, buf_view(first));
    buf_clear(first);
    if (!*singly && buf_slice(first, name) == 0) {
        struct err local = {0};
        struct web_parts batches = parts;
        batches.n = (x->n + BATCH - 1) / BATCH;
        batches.one = remove_batch;
        int r = web_parts_run(&batches, &local);
        if (r == 0)
            return 0;
        *singly = true;
    }
    int r = web_parts_run(&parts, e);
    return r < 0 ? err_prefix(e, r, "removing what an upload has below " GS_PARTS) : 0;
}

/* A page of what is there; `token` becomes that of the next one. */
static json_t *list_pieces(struct gs *g, struct slice prefix, struct buf *token, int *ret_code, struct err *e)
{
    struct buf _cleanup_buf_ body = BUF_INIT(WEB_LIST_MAX_BYTES);
    struct web_call _cleanup_(web_call_fini) c;
    char max[NUMBER_SIZE];
    (void)snprintf(max, sizeof(max), "%d", REMOVED_AT_ONCE);
    web_call_init(&c, &g->web, WEB_GET, "list_parts");
    web_query(&c, SLICE_LIT("maxResults"), slice_str(max));
    web_query(&c, SLICE_LIT("fields"), SLICE_LIT("items(name,generation),nextPageToken"));
    web_query(&c, SLICE_LIT("versions"), SLICE_LIT("true"));
    web_query(&c, SLICE_LIT("prefix"), prefix);
    if (token->n > 0)
        web_query(&c, SLICE_LIT("pageToken"), buf_view(token));
    json_t *j = gs_ask(&c, &body, ret_code, e);
    const char *next = json_string_value(json_object_get(j, "nextPageToken"));
    buf_clear(token);
    if (*ret_code == 0 && next && buf_str(token, next) < 0)
        *ret_code = err_set(e, ERR_ORIGIN_FAILED, "the page's token has %zu bytes", strlen(next));
    return j;
}

/* Removes all that the upload has, in the versions that there are of it. */
static int remove_all(struct gs *g, struct slice id, struct err *e)
{
    struct buf _cleanup_buf_ prefix = BUF_INIT(NAME_SIZE), token = BUF_INIT(WEB_XML_TEXT_MAX);
    struct buf _cleanup_buf_ first = BUF_INIT(NAME_SIZE);
    bool singly = false;
    if (buf_printf(&prefix, "%s" GS_PARTS "/" SLICE_FMT "/", g->prefix, SLICE_ARG(id)) < 0)
        return err_set(e, -ENAMETOOLONG, "the prefix is too long");
    for (int i = 0; i < ROUNDS_MAX; i++) {
        int r;
        json_t *_cleanup_(gs_json_unrefp) j = list_pieces(g, buf_view(&prefix), &token, &r, e);
        if (r < 0)
            return r;
        struct removal x = {.gs = g, .items = json_object_get(j, "items")};
        x.n = (uint32_t)json_array_size(x.items);
        if (x.n == 0 && token.n == 0)
            return 0;
        if (x.n == 0)
            continue;
        r = remove_page(&x, &first, &singly, e);
        if (r < 0)
            return r;
        buf_clear(&token); /* what it went on behind is gone */
    }
    return err_set(e, ERR_ORIGIN_FAILED, "what an upload has below " GS_PARTS " does not go");
}

int gs_upload_abort(struct origin *o, struct slice key, struct slice id, struct err *e)
{
    (void)key;
    return is_id(id) ? remove_all(gs_of(o), id, e) : 0;
}

/* ---- compose ---- */

struct ending {
    struct gs *gs;
    const struct origin_put *put;
    struct slice id;
    struct piece *pieces; /* what the object is made of, in order */
    size_t n;
    uint64_t size;
    struct piece *merged;  /* the next level */
    char pin[NUMBER_SIZE]; /* of a condition: the generation that must be there */
    bool asked;            /* by the last try, for the object */
    bool keeps;            /* the service does not remove sources */
};

/* `pin`: ifGenerationMatch; empty: none. */
static int compose(struct ending *x, const struct piece *from, size_t n, const struct origin_put *to,
                   struct slice mark, struct slice pin, bool deletes, const char *op, atomic_bool *stop,
                   struct arena *a, struct origin_attr *ret_attr, struct err *e)
{
    struct gs *g = x->gs;
    struct buf _cleanup_buf_ url = BUF_INIT(WEB_URL_MAX), post = BUF_INIT(COMPOSE_MAX);
    struct buf _cleanup_buf_ result = BUF_INIT(WEB_RESULT_MAX);
    char name[NAME_SIZE];
    json_t *sources = json_array();
    for (size_t i = 0; i < n; i++)
        (void)json_array_append_new(sources, json_pack("{s:o, s:s}", "name",
                                                       json_sprintf("%s" SLICE_FMT, g->prefix,
                                                                    SLICE_ARG(key_of(x->id, &from[i], name))),
                                                       "generation", from[i].generation));
    int r = gs_json_compose(g, to, mark, sources, deletes, &post, e);
    if (r == 0 && (gs_object_url(g, "", true, to->key, &url) < 0 || buf_str(&url, "/compose") < 0))
        r = err_set(e, -ENAMETOOLONG, "the request's URL is too long");
    if (r < 0)
        return r;
    struct web_call _cleanup_(web_call_fini) c;
    web_call_init(&c, &g->web, WEB_POST, op);
    c.url = buf_view(&url);
    c.cancel = x->put->cancel;
    c.also_cancel = stop;
    c.post = buf_view(&post);
    c.once = pin.n > 0;
    web_header(&c, SLICE_LIT("content-type"), SLICE_LIT("application/json; charset=UTF-8"));
    if (pin.n > 0)
        web_query(&c, SLICE_LIT("ifGenerationMatch"), pin);
    json_t *_cleanup_(gs_json_unrefp) j = gs_ask(&c, &result, &r, e);
    return r == 0 ? gs_json_attr(j, a, ret_attr, e) : r;
}

static int merge_one(void *arg, uint32_t i, atomic_bool *stop, struct err *e)
{
    struct ending *x = arg;
    struct arena *_cleanup_(arena_freep) a = arena_new(ANSWER_ARENA);
    const struct piece *from = &x->pieces[(size_t)i * SOURCES_MAX];
    size_t n = MIN((size_t)SOURCES_MAX, x->n - (size_t)i * SOURCES_MAX);
    struct origin_attr attr;
    char name[NAME_SIZE];
    if (n == 1) {
        x->merged[i] = *from;
        return 0;
    }
    new_piece(0, &x->merged[i]);
    struct origin_put to = {.key = key_of(x->id, &x->merged[i], name)};
    int r =
        compose(x, from, n, &to, SLICE_NULL, SLICE_NULL, /* deletes= */ false, "compose", stop, a, &attr, e);
    return r == 0 ? take_generation(&attr, &x->merged[i], e) : r;
}

/* Until one request takes all. What is done stays for another try. */
static int merge(struct ending *x, struct err *e)
{
    while (x->n > SOURCES_MAX) {
        size_t n = (x->n + SOURCES_MAX - 1) / SOURCES_MAX;
        struct piece _cleanup_free_ *merged = calloc(n, sizeof(*merged));
        if (!merged)
            abort();
        x->merged = merged;
        struct web_parts parts = {.origin = &x->gs->base,
                                  .n = (uint32_t)n,
                                  .limit = (uint32_t)x->gs->web.limit,
                                  .cancel = x->put->cancel,
                                  .patience_ms = x->put->patience_ms,
                                  .one = merge_one,
                                  .arg = x};
        int r = web_parts_run(&parts, e);
        if (r < 0)
            return err_prefix(e, r, "compose");
        memcpy(x->pieces, merged, n * sizeof(*merged));
        x->n = n;
    }
    return 0;
}

/* What the key has now. *ret_own: this upload made it. */
static int look(struct ending *x, struct arena *a, struct origin_attr *ret_attr, bool *ret_own, struct err *e)
{
    struct buf _cleanup_buf_ body = BUF_INIT(WEB_RESULT_MAX);
    struct web_call _cleanup_(web_call_fini) c;
    *ret_own = false;
    web_call_init(&c, &x->gs->web, WEB_GET, "head");
    c.has_key = true;
    c.key = x->put->key;
    c.cancel = x->put->cancel;
    int r;
    json_t *_cleanup_(gs_json_unrefp) j = gs_ask(&c, &body, &r, e);
    if (r == 0)
        r = gs_json_attr(j, a, ret_attr, e);
    *ret_own = r == 0 && slice_eq(gs_json_mark(j), x->id) && ret_attr->size_bytes == x->size;
    return r;
}

/* Whether the conditions hold, as far as one can see before; x->pin is what the request is to say. Compose
 * knows no other condition than a generation. */
static int check_conditions(struct ending *x, struct arena *a, struct origin_attr *ret_attr, bool *ret_own,
                            struct err *e)
{
    const struct origin_put *p = x->put;
    int r = look(x, a, ret_attr, ret_own, e);
    if (*ret_own || (r < 0 && r != -ENOENT))
        return r;
    bool there = r == 0, any = slice_eq_str(p->if_match, "*");
    if (p->if_none_match && there)
        return err_set(e, ERR_PRECONDITION, "an object is there");
    if (p->if_match.n && !there)
        return err_set(e, ERR_PRECONDITION, "there is no object");
    if (p->if_match.n && !any && !slice_eq(p->if_match, ret_attr->etag))
        return err_set(e, ERR_PRECONDITION, "the object's generation is " SLICE_FMT,
                       SLICE_ARG(ret_attr->etag));
    struct slice pin = p->if_match.n ? ret_attr->etag : SLICE_LIT("0");
    if (pin.n >= sizeof(x->pin))
        return err_set(e, ERR_ORIGIN_FAILED, "a generation of %zu digits", pin.n);
    memcpy(x->pin, pin.p, pin.n);
    x->pin[pin.n] = '\0';
    if (e)
        e->code = 0;
    return 0;
}

/* The object itself. Of no bytes there is nothing to compose. */
static int make_object(struct ending *x, struct arena *a, struct origin_attr *ret_attr, struct err *e)
{
    static const struct origin_body nothing = {0};
    x->asked = true;
    if (x->n == 0) {
        struct origin_put p = *x->put;
        p.content_md5 = SLICE_NULL;
        return gs_put_single(x->gs, &p, x->id, &nothing, "complete_upload", a, ret_attr, e);
    }
    int r = compose(x, x->pieces, x->n, x->put, x->id, slice_str(x->pin), !x->keeps, "complete_upload", NULL,
                    a, ret_attr, e);
    if (!x->keeps && (r == ERR_ORIGIN_DENIED || r == ERR_ORIGIN_REFUSED)) { /* a retention policy, perhaps */
        x->keeps = true;
        if (e)
            e->code = 0;
        r = compose(x, x->pieces, x->n, x->put, x->id, slice_str(x->pin), /* deletes= */ false,
                    "complete_upload", NULL, a, ret_attr, e);
    }
    if (r == 0 && ret_attr->size_bytes != x->size)
        return err_set(e, ERR_ORIGIN_SHORT, "the object has %" PRIu64 " bytes, the parts have %" PRIu64,
                       ret_attr->size_bytes, x->size);
    return r;
}

/* What a failure means: the object may be there all the same. */
static int judge(struct ending *x, int r, struct arena *a, struct origin_attr *ret_attr, struct err *e)
{
    struct err local = {0};
    bool own = false;
    if (r == -ECANCELED || (!x->asked && r != -ENOENT))
        return r;
    int k = look(x, a, ret_attr, &own, &local);
    if (own)
        return 0;
    if (k < 0 && k != -ENOENT && (r == ERR_PRECONDITION || r == -ENOENT)) { /* nobody knows */
        *e = local;
        return k;
    }
    return r == -ENOENT ? err_prefix(e, r, "the upload's parts are gone") : r;
}

static int try_once(struct ending *x, struct arena *a, struct origin_attr *ret_attr, struct err *e)
{
    bool own = false;
    int r = 0;
    x->asked = false;
    if (x->put->if_none_match || x->put->if_match.n > 0)
        r = check_conditions(x, a, ret_attr, &own, e);
    if (r < 0 || own)
        return r;
    r = merge(x, e);
    if (r == 0)
        r = make_object(x, a, ret_attr, e);
    return r == 0 ? 0 : judge(x, r, a, ret_attr, e);
}

static int complete(struct ending *x, struct arena *a, struct origin_attr *ret_attr, struct err *e)
{
    struct retry retry = {0};
    uint32_t lost = 0;
    bool unsure = false, again; /* unsure: a try may have made it, which was not seen yet */
    int r;
    do {
        struct arena *_cleanup_(arena_freep) own = arena_new(ANSWER_ARENA);
        struct origin_attr attr;
        *e = (struct err){0};
        r = try_once(x, own, &attr, e);
        if (r == 0)
            return origin_attr_dup(a, &attr, ret_attr, e);
        unsure = unsure || (x->asked && r != ERR_ORIGIN_BUSY && r != ERR_PRECONDITION);
        /* Whatever is there was another one when it was written. */
        again =
            r == ERR_PRECONDITION && x->asked && slice_eq_str(x->put->if_match, "*") && lost++ < ANY_TRIES;
    } while (again || web_try_again(&x->gs->base, x->put->cancel, NULL, x->put->patience_ms, &retry, r));
    if (unsure && (r == ERR_ORIGIN_BUSY || r == ERR_PRECONDITION)) /* which say that nothing was done */
        r = err_prefix(e, ERR_ORIGIN_FAILED, "an answer to the end of an upload was lost, and now");
    return r;
}

/* The object is there: what else the upload has goes now, or later. */
static void tidy(struct gs *g, struct slice key, struct slice id)
{
    struct err e = {0};
    struct quit _cleanup_(quit_leave) scope;
    quit_enter_tidy(&scope);
    origin_note_upload(&g->base, key, id);
    int r = remove_all(g, id, &e);
    origin_note_upload_end(&g->base, id, r == 0);
    if (r < 0)
        log_warn("origin", "gs://%s/%s" SLICE_FMT ": uploaded, but its parts are left behind: %s", g->bucket,
                 g->prefix, SLICE_ARG(key), e.text);
}

int gs_upload_complete(struct origin *o, const struct origin_put *p, struct slice id,
                       const struct origin_part *parts, size_t n, uint64_t size_bytes, struct arena *a,
                       struct origin_attr *ret_attr, struct err *e)
{
    struct gs *g = gs_of(o);
    struct piece _cleanup_free_ *pieces = calloc(n, sizeof(*pieces));
    struct ending x = {.gs = g, .put = p, .id = id, .pieces = pieces, .size = size_bytes};
    struct err local = {0};
    if (!pieces)
        abort();
    int r = gs_check_key(g, p->key, e);
    if (r == 0 && !is_id(id))
        return err_set(e, -ENOENT, "the upload is none of this service's");
    for (size_t i = 0; i < n && r == 0; i++)
        if (!slice_eq_str(parts[i].etag, EMPTY))
            r = parse_part(&parts[i], &pieces[x.n++], e);
    if (r < 0)
        return r;
    r = complete(&x, a, ret_attr, &local);
    if (r < 0 && e)
        *e = local;
    if (r == 0)
        tidy(g, p->key, id);
    return r;
}

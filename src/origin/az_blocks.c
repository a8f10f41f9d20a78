/*
 * Blobs in blocks: Put Block, Put Block List, Get Block List. A body goes as blocks in parallel, and an
 * upload that a client drives has blocks of its own for each part.
 *
 * The service knows no uploads: a blob has blocks that are in no list yet, whoever sent them. What ends an
 * upload here is:
 *  - the list of its blocks, which makes the blob and drops all other unlisted blocks of it;
 *  - any other write of the blob, which drops them too: the end of another upload, Put Blob;
 *  - a week in which nobody sent a block for that blob.
 * So there is nothing to abort, and of several uploads of one key one can be completed.
 *
 * A block's id is the base64 of 16 bytes, as all of one blob must be equally long:
 *
 * | offset | size | meaning                                        |
 * | ------ | ---- | ---------------------------------------------- |
 * | 0      | 12   | random, of one body, or of one try of one part |
 * | 12     | 4    | number of the block in it, big-endian          |
 *
 * "ETag" of a part: the random bytes in hex, '-', how many blocks it has.
 *
 * Invariants:
 *  1. The blob appears with one Put Block List, and conditions go with that one.
 *  2. Each block is sent by one thread, and no two tries of a part have a block in common: what is listed is
 * what the caller was told of, whatever else was sent in its place.
 *  3. The blob is told as this upload's own after a lost answer, or in spite of a condition that fails, only
 * when its blocks are these, and there are some: of no bytes there are none, and a blob that was written in
 * one request has none either.
 *
 * Failure modes: as in origin.h. -ENOENT: the upload's blocks are gone.
 */
#include "origin/az_internal.h"

#include "base/le.h"
#include "base/text.h"

#include <inttypes.h>

#define ID_RANDOM     12
#define ID_MAX        64 /* bytes of text */
#define UPLOAD_RANDOM 16
#define LIST_MAX      (4 * MIB)
#define COMMITTED_MAX (16 * MIB)

/* Blocks with the same random bytes, in order. */
struct run {
    uint8_t random[ID_RANDOM];
    uint32_t n;
};

static void block_id(const struct run *x, uint32_t i, struct buf *b)
{
    uint8_t id[ID_RANDOM + 4];
    memcpy(id, x->random, ID_RANDOM);
    be_put32(id + ID_RANDOM, i);
    int r = text_base64(b, slice_of(id, sizeof(id)));
    assert(r == 0);
}

/* ---- one block ---- */

static int put_block(struct az *z, const struct origin_put *p, const struct origin_body *body,
                     uint64_t offset, uint64_t n, const struct run *x, uint32_t i, atomic_bool *stop,
                     struct err *e)
{
    struct buf _cleanup_buf_ id = BUF_INIT(ID_MAX);
    int r = web_wait_for_part(&z->web, body, offset, n, e);
    if (r < 0)
        return r;
    block_id(x, i, &id);
    struct web_call _cleanup_(web_call_fini) c;
    web_call_init(&c, &z->web, WEB_PUT, "put_part");
    c.has_key = true;
    c.key = p->key;
    c.cancel = p->cancel;
    c.also_cancel = stop;
    c.body = body;
    c.body_offset = offset;
    c.body_n = n;
    web_query(&c, SLICE_LIT("comp"), SLICE_LIT("block"));
    web_query(&c, SLICE_LIT("blockid"), buf_view(&id));
    return web_perform(&c, e);
}

/* ---- their list ---- */

static ssize_t text_read(void *arg, void *p, size_t n, uint64_t offset)
{
    const struct buf *b = arg;
    n = MIN(n, b->n - offset);
    memcpy(p, b->p + offset, n);
    return (ssize_t)n;
}

static int make_list(const struct run *runs, size_t n, struct buf *list)
{
    int r = buf_str(list, "<?xml version=\"1.0\" encoding=\"utf-8\"?><BlockList>");
    for (size_t k = 0; k < n; k++) {
        for (uint32_t i = 0; i < runs[k].n && r == 0; i++) {
            struct buf _cleanup_buf_ id = BUF_INIT(ID_MAX);
            block_id(&runs[k], i, &id);
            r = buf_printf(list, "<Uncommitted>%s</Uncommitted>", id.p);
        }
    }
    return r == 0 ? buf_str(list, "</BlockList>") : r;
}

static int put_list(struct az *z, const struct origin_put *p, const struct run *runs, size_t n, uint64_t size,
                    struct arena *a, struct origin_attr *ret_attr, struct err *e)
{
    struct buf _cleanup_buf_ list = BUF_INIT(LIST_MAX);
    int r = make_list(runs, n, &list);
    if (r < 0)
        return err_set(e, -EFBIG, "the list of blocks is longer than the service takes");
    struct arena *_cleanup_(arena_freep) scratch = arena_new(64 * KIB);
    struct origin_body body = {.size_bytes = list.n, .read = text_read, .arg = &list};
    struct web_call _cleanup_(web_call_fini) c;
    web_call_init(&c, &z->web, WEB_PUT, "complete_upload");
    c.has_key = true;
    c.key = p->key;
    c.cancel = p->cancel;
    c.body = &body;
    c.body_n = list.n;
    web_query(&c, SLICE_LIT("comp"), SLICE_LIT("blocklist"));
    web_header(&c, SLICE_LIT("content-type"), SLICE_LIT("application/xml"));
    az_class_header(z, &c);
    r = az_put_headers(&c, p, scratch, e);
    if (r == 0)
        r = web_perform(&c, e);
    return r == 0 ? az_put_result(&c, p, size, a, ret_attr, e) : r;
}

/* ---- a whole body ---- */

struct sending {
    struct az *az;
    const struct origin_put *put;
    const struct origin_body *body;
    uint64_t part_bytes;
    struct run blocks;
};

static int put_one(void *arg, uint32_t i, atomic_bool *stop, struct err *e)
{
    struct sending *u = arg;
    uint64_t offset = (uint64_t)i * u->part_bytes, n = MIN(u->part_bytes, u->body->size_bytes - offset);
    return put_block(u->az, u->put, u->body, offset, n, &u->blocks, i, stop, e);
}

int az_put_blocks(struct az *z, const struct origin_put *p, const struct origin_body *body, struct arena *a,
                  struct origin_attr *ret_attr, struct err *e)
{
    struct sending u = {.az = z, .put = p, .body = body};
    uint64_t least = (body->size_bytes + AZ_BLOCKS_MAX - 1) / AZ_BLOCKS_MAX;
    u.part_bytes = MAX(MIN(z->part_bytes, AZ_BLOCK_MAX), ALIGN_UP(least, MIB));
    if (u.part_bytes > AZ_BLOCK_MAX)
        return err_set(e, -EFBIG, "%" PRIu64 " bytes are more than the service takes", body->size_bytes);
    u.blocks.n = (uint32_t)((body->size_bytes + u.part_bytes - 1) / u.part_bytes);
    sys->random(u.blocks.random, sizeof(u.blocks.random));
    struct web_parts parts = {.origin = &z->base,
                              .n = u.blocks.n,
                              .limit = (uint32_t)z->web.limit,
                              .cancel = p->cancel,
                              .patience_ms = p->patience_ms,
                              .one = put_one,
                              .arg = &u};
    int r = web_parts_run(&parts, e);
    return r < 0 ? r : put_list(z, p, &u.blocks, 1, body->size_bytes, a, ret_attr, e);
}

/* ---- whether the blob is made of these blocks ---- */

struct comparing {
    const struct run *runs;
    size_t n, at; /* at: the run of the next block */
    uint32_t i;   /* its number there */
    bool differs;
    struct web_xml *xml;
    struct err *err;
};

/* Runs of parts without bytes have no blocks. */
static void skip_ended(struct comparing *x)
{
    while (x->at < x->n && x->i == x->runs[x->at].n) {
        x->at++;
        x->i = 0;
    }
}

static int on_block(void *arg, unsigned depth, const char *parent, const char *name, struct slice text,
                    struct err *e)
{
    struct comparing *x = arg;
    (void)depth, (void)e;
    if (strcmp(parent, "Block") != 0 || strcmp(name, "Name") != 0)
        return 0;
    struct buf _cleanup_buf_ id = BUF_INIT(ID_MAX);
    skip_ended(x);
    x->differs |= x->at == x->n;
    if (x->differs)
        return 0;
    block_id(&x->runs[x->at], x->i++, &id);
    x->differs = !slice_eq(slice_trim(text), buf_view(&id));
    return 0;
}

static int on_body(void *arg, const void *p, size_t n)
{
    struct comparing *x = arg;
    return web_xml_feed(x->xml, p, n, x->err);
}

static bool has_blocks(const struct run *runs, size_t n)
{
    for (size_t k = 0; k < n; k++)
        if (runs[k].n > 0)
            return true;
    return false;
}

/* 0: it is, and ret_attr is it. ERR_CONFLICT: it is not. */
static int look_for_blob(struct az *z, const struct origin_put *p, const struct run *runs, size_t n,
                         uint64_t size, struct arena *a, struct origin_attr *ret_attr, struct err *e)
{
    if (!has_blocks(runs, n))
        return err_set(e, ERR_CONFLICT, "without blocks nothing tells whose the blob is");
    struct comparing x = {.runs = runs, .n = n, .err = e};
    struct web_xml *_cleanup_(web_xml_freep) xml = web_xml_new(COMMITTED_MAX, on_block, &x);
    struct web_call _cleanup_(web_call_fini) c;
    x.xml = xml;
    web_call_init(&c, &z->web, WEB_GET, "list_blocks");
    c.has_key = true;
    c.key = p->key;
    c.cancel = p->cancel;
    c.on_body = on_body;
    c.arg = &x;
    web_query(&c, SLICE_LIT("comp"), SLICE_LIT("blocklist"));
    web_query(&c, SLICE_LIT("blocklisttype"), SLICE_LIT("committed"));
    int r = web_perform(&c, e);
    if (r == 0)
        r = web_xml_end(xml, e);
    if (r < 0)
        return r == -ENOENT ? err_set(e, ERR_CONFLICT, "there is no blob") : r;
    skip_ended(&x);
    if (x.differs || x.at < x.n)
        return err_set(e, ERR_CONFLICT, "the blob is another one");
    return az_put_result(&c, p, size, a, ret_attr, e);
}

/* ---- uploads that are driven from outside ---- */

/* Nothing is asked: the first block makes what the service knows of it. It keeps no checksums of blocks. */
int az_upload_create(struct origin *o, const struct origin_put *p, char ret_id[ORIGIN_UPLOAD_ID_MAX],
                     bool *ret_sums, struct err *e)
{
    uint8_t random[UPLOAD_RANDOM];
    int r = az_takes(o, p, 0, e);
    *ret_sums = false;
    if (r < 0)
        return r;
    sys->random(random, sizeof(random));
    text_hex(random, sizeof(random), ret_id);
    return 0;
}

int az_upload_part(struct origin *o, const struct origin_put *p, struct slice id, uint32_t number,
                   const struct origin_body *body, char ret_etag[ORIGIN_ETAG_MAX + 1], struct err *e)
{
    (void)id, (void)number;
    struct az *z = az_of(o);
    struct run x = {.n = 0};
    char hex[2 * ID_RANDOM + 1];
    sys->random(x.random, sizeof(x.random));
    int r = az_check_written(z, p->key, e);
    for (uint64_t at = 0; r == 0 && at < body->size_bytes; at += AZ_BLOCK_MAX) {
        uint64_t n = MIN(AZ_BLOCK_MAX, body->size_bytes - at);
        r = put_block(z, p, body, at, n, &x, x.n++, /* stop= */ NULL, e);
    }
    if (r < 0)
        return r;
    text_hex(x.random, sizeof(x.random), hex);
    (void)snprintf(ret_etag, ORIGIN_ETAG_MAX + 1, "%s-%u", hex, x.n);
    return 0;
}

static int parse_part(const struct origin_part *part, struct run *ret, struct err *e)
{
    struct slice count = part->etag, hex = slice_split(&count, '-');
    uint64_t n;
    if (hex.n != 2 * (size_t)ID_RANDOM || text_unhex(hex, ret->random, ID_RANDOM) < 0 ||
        slice_u64(count, &n) < 0 || n > AZ_BLOCKS_MAX)
        return err_set(e, -ENOENT, "part %u is none of this service's", part->number);
    ret->n = (uint32_t)n;
    return 0;
}

static bool begins(const struct err *e, const char *text)
{
    return slice_starts(slice_str(e->text), slice_str(text));
}

/* What a refusal of the list means. Whether the blob is there all the same, in *ret_done. */
static int judge(struct az *z, const struct origin_put *p, const struct run *runs, size_t n, uint64_t size,
                 int r, struct arena *a, struct origin_attr *ret_attr, bool *ret_done, struct err *e)
{
    bool gone = begins(e, "400 InvalidBlockList");
    bool none = r == -ENOENT && p->if_match.n > 0 && begins(e, "404 BlobNotFound");
    *ret_done = false;
    if (!gone && r != ERR_PRECONDITION)
        return none ? err_prefix(e, ERR_PRECONDITION, "there is no object") : r;
    struct err local = {0};
    int k = look_for_blob(z, p, runs, n, size, a, ret_attr, &local);
    *ret_done = k == 0;
    if (k == 0)
        return 0;
    if (k != ERR_CONFLICT) { /* nobody knows */
        *e = local;
        return k;
    }
    return gone ? err_prefix(e, -ENOENT, "another write of the key, or a week, has ended the upload") : r;
}

static int complete(struct az *z, const struct origin_put *p, const struct run *runs, size_t n, uint64_t size,
                    struct arena *a, struct origin_attr *ret_attr, struct err *e)
{
    struct retry retry = {0};
    bool done, unsure = false, was_unsure; /* a try may have done it; one before the last one */
    int r;
    do {
        *e = (struct err){0};
        was_unsure = unsure;
        r = put_list(z, p, runs, n, size, a, ret_attr, e);
        if (r < 0)
            r = judge(z, p, runs, n, size, r, a, ret_attr, &done, e);
        unsure = unsure || (r < 0 && r != ERR_ORIGIN_BUSY);
    } while (r < 0 && web_try_again(&z->base, p->cancel, NULL, p->patience_ms, &retry, r));
    bool nobody_knows = r == ERR_PRECONDITION && was_unsure && !has_blocks(runs, n);
    if (nobody_knows || (r == ERR_ORIGIN_BUSY && unsure)) /* they tell callers that nothing was done */
        r = err_prefix(e, ERR_ORIGIN_FAILED, "an answer to the end of an upload was lost, and now");
    return r;
}

int az_upload_complete(struct origin *o, const struct origin_put *p, struct slice id,
                       const struct origin_part *parts, size_t n, uint64_t size_bytes, struct arena *a,
                       struct origin_attr *ret_attr, struct err *e)
{
    (void)id;
    struct az *z = az_of(o);
    struct run _cleanup_free_ *runs = calloc(n, sizeof(*runs));
    struct err local = {0};
    if (!runs)
        abort();
    int r = az_check_written(z, p->key, e);
    for (size_t i = 0; i < n && r == 0; i++)
        r = parse_part(&parts[i], &runs[i], e);
    if (r < 0)
        return r;
    r = complete(z, p, runs, n, size_bytes, a, ret_attr, &local);
    if (r < 0 && e)
        *e = local;
    return r;
}

/* The service drops blocks that nobody lists. */
int az_upload_abort(struct origin *o, struct slice key, struct slice id, struct err *e)
{
    (void)o, (void)key, (void)id, (void)e;
    return 0;
}

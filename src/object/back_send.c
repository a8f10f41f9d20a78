/*
 * Write-back: the threads that carry records to the origin.
 *
 * A round takes the first key in the queue that is due (after the bucket's `write_delay`, unless somebody
 * waits for it) and not on its way, and reads its record: the version that this round sends. What is sent is
 * noted in the record before, so that it is known again there when the answer is lost or the node is killed.
 * Records found at a start count as sent: that note is written without a sync, which a power failure undoes.
 * What has a tag in the place of its MD5 is read first, before there is a place at the origin: the MD5 goes
 * into the record. The note that it was sent is durable then, so that a record that lacks it was never sent.
 * With the origin's answer the record goes, durably, and then the extent; a record that was replaced
 * meanwhile stays, with what was just written as its new base.
 *
 * Versions of ours whose answers were lost may be in the origin under a name that we never heard, or get
 * there late: the record knows the last eight of them. Before another is sent, what was found there becomes
 * the base.
 *
 * Where the origin has directories ("a/b/"), which are removed only when they are empty, the removal of one
 * waits for those below it.
 *
 * The origin is asked what it has where it cannot check conditions itself, where the base is not known, and
 * where a condition failed; back_decide says what follows. In a conflict the origin's object stays under the
 * key and ours is written beside it (`conflict=copy`), or ours takes its place (`conflict=overwrite`). A
 * removal is given up. Each is logged and counted.
 *
 * Sending goes behind all else that the node asks of an origin (upstream_try_enter_behind), and is paid for
 * with its limits. A bucket whose origin has no place for it is passed over for PLACE_MS, so that it keeps no
 * thread from the others.
 *
 * Invariants:
 *  1. An object of the origin that is neither the base nor what was sent before is overwritten or removed
 * only with `conflict=overwrite`.
 *  2. A record goes only when the origin has what it says, or the second copy of it. That an object is not
 * there is believed of an object store only when its bucket is.
 *
 * Failure modes: every failure is tried again, after back_delay_ms, for ever; the first of a row is logged.
 */
#include "object/back_internal.h"

#include "base/crc32c.h"
#include "base/log.h"
#include "base/often.h"
#include "base/sys.h"
#include "base/text.h"
#include "net/posix_meta.h"
#include "origin/meta.h"

#include <openssl/evp.h>

#define IDLE_MS         500
#define PLACE_MS        20
#define AGAIN_MAX       3 /* looks in a row, at once, where an object changes between look and removal */
#define SEND_ARENA      (8 * MIB) /* ETags of the parts of an upload */
#define PIECE_BYTES     STORE_BLOCK_BYTES
#define BELOW_MAX_MS    2000      /* after which it is looked again whether what lies below is removed */
#define DIGEST_SENT_MAX (8 * MIB) /* larger bodies are sent in parts, without their MD5 */
#define CHECKED_MS      600000 /* for which bytes that were read are believed: so long may sending take, too */
#define SUMS_MAX        (64 * KIB) /* blocks whose checksums are computed beside the MD5 */

struct sending {
    struct back *back;
    struct back_bucket *bucket;
    struct upstream *upstream;
    struct slice key;
    struct buf value;
    struct back_record rec;
    struct hard *hard;
    struct arena *arena;
    struct origin_attr answer; /* of what was sent under the key */
    bool answered;
    bool conflict;
    unsigned n_asked;
    struct back_entry *entry;
    uint32_t *sums; /* of all blocks, when they were read in this round; else NULL */
};

/* ---- what the origin has ---- */

/* The origin, which is asked something. The place of this round is paid for as one request. */
static struct origin *asked(struct sending *s)
{
    if (s->n_asked++ > 0)
        upstream_charge_request(s->upstream);
    return s->upstream->origin;
}

struct summer {
    EVP_MD_CTX *md;
    uint64_t n;
};

static int sum(void *arg, const struct origin_attr *attr, const void *p, size_t n)
{
    (void)attr;
    struct summer *s = arg;
    s->n += n;
    return EVP_DigestUpdate(s->md, p, n) == 1 ? 0 : -EIO;
}

/* MD5 of the origin's object of this version. */
static int read_md5(struct sending *s, const struct origin_attr *now, uint8_t ret[BACK_MD5_BYTES],
                    struct err *e)
{
    EVP_MD_CTX *md = EVP_MD_CTX_new();
    int ok = md ? EVP_DigestInit_ex(md, EVP_md5(), NULL) : 0;
    assert(ok == 1);
    struct summer to = {.md = md};
    struct origin_get g = {.key = s->key, .whole = true, .if_match = now->etag, .cancel = &s->back->stop};
    struct origin_attr attr;
    int r = origin_get(asked(s), &g, s->arena, &attr, sum, &to, e);
    if (r == 0 && EVP_DigestFinal_ex(md, ret, NULL) != 1)
        r = -EIO;
    EVP_MD_CTX_free(md);
    return r;
}

static bool etag_is(struct slice etag, const uint8_t md5[BACK_MD5_BYTES])
{
    char text[2 * BACK_MD5_BYTES + 1];
    text_hex(md5, BACK_MD5_BYTES, text);
    return slice_eq_case(etag, slice_str(text));
}

/* Whether the ETag is the one that the version has here. */
static bool is_own_etag(const struct back_record *r, struct slice etag)
{
    char text[BACK_ETAG_SIZE];
    back_record_etag(r, text);
    return slice_eq_case(etag, slice_str(text));
}

/* Whether all lines of `a` that go to origins are in `b`. */
static bool has_lines(struct slice a, struct slice b)
{
    while (a.n > 0) {
        struct slice line = slice_split(&a, '\n'), rest = b;
        bool found = line.n == 0 || slice_starts(line, SLICE_LIT(META_CHECKSUM)) ||
                     slice_starts(line, SLICE_LIT(META_EXPIRES)) ||
                     slice_starts(line, SLICE_LIT(META_VERSION));
        while (!found && rest.n > 0)
            found = slice_eq(slice_split(&rest, '\n'), line);
        if (!found)
            return false;
    }
    return true;
}

/* Whether the object has the mode, owner and time, the type and the metadata that the record wants: they may
 * be all that a newer record changes. Where a service writes them in another way it is sent once more.
 */
static bool has_meta(const struct sending *s, const struct origin_attr *now)
{
    struct posix_meta wanted, there;
    const struct origin *o = s->upstream->origin;
    if (!(o->capabilities & ORIGIN_CAN_META) && !o->posix)
        return true;
    bool is_dir = slice_ends(s->key, SLICE_LIT("/"));
    posix_meta_decode(s->rec.meta, is_dir, &wanted);
    posix_meta_decode(now->meta, is_dir, &there);
    unsigned has = wanted.has;
    bool same = (!(has & POSIX_HAS_MODE) || wanted.mode == there.mode) &&
                (!(has & POSIX_HAS_UID) || wanted.uid == there.uid) &&
                (!(has & POSIX_HAS_GID) || wanted.gid == there.gid) &&
                (!(has & POSIX_HAS_MTIME) || wanted.mtime_ns == there.mtime_ns);
    if (!same || (has & there.has) != has || !(o->capabilities & ORIGIN_CAN_META))
        return same && (has & there.has) == has;
    struct slice type = s->rec.content_type;
    return (type.n == 0 || slice_eq(type, now->content_type)) && has_lines(s->rec.meta, now->meta) &&
           has_lines(now->meta, s->rec.meta);
}

static bool is_directory(const struct sending *s)
{
    return s->upstream->origin->capabilities & ORIGIN_HAS_DIRECTORIES && slice_ends(s->key, SLICE_LIT("/"));
}

/* Whether the object is one of ours: by its ETag, else by its bytes. */
static int compare(struct sending *s, const struct origin_attr *now, struct back_found *f, struct err *e)
{
    const struct back_record *r = &s->rec;
    f->is_directory = is_directory(s);
    if (f->is_directory) {
        f->is_wanted = !r->removal && has_meta(s, now);
        return 0;
    }
    bool may_be_sent = false;
    bool may_be_wanted = r->n_sent > 0 && !r->removal && r->size_bytes == now->size_bytes;
    may_be_wanted = may_be_wanted && has_meta(s, now);
    for (unsigned i = 0; i < r->n_sent; i++) {
        bool may_be_it = r->sent[i].size_bytes == now->size_bytes;
        may_be_sent = may_be_sent || may_be_it;
        f->is_sent = f->is_sent || (may_be_it && etag_is(now->etag, r->sent[i].md5));
    }
    f->is_wanted = may_be_wanted && etag_is(now->etag, r->md5);
    bool as_before = r->base == BACK_BASE_ETAG && slice_eq(r->base_etag, now->etag);
    if (f->is_sent || f->is_wanted || as_before || !(may_be_sent || may_be_wanted))
        return 0;
    uint8_t md5[BACK_MD5_BYTES];
    int k = read_md5(s, now, md5, e);
    if (k < 0)
        return k;
    for (unsigned i = 0; i < r->n_sent; i++)
        f->is_sent = f->is_sent || (r->sent[i].size_bytes == now->size_bytes &&
                                    memcmp(md5, r->sent[i].md5, BACK_MD5_BYTES) == 0);
    f->is_wanted = may_be_wanted && memcmp(md5, r->md5, BACK_MD5_BYTES) == 0;
    return 0;
}

static int no_bytes(void *arg, const struct origin_attr *attr, const void *p, size_t n)
{
    (void)arg, (void)attr, (void)p, (void)n;
    return 0;
}

static int look(struct sending *s, struct origin_attr *now, enum back_step *ret, struct err *e)
{
    struct origin_get g = {.key = s->key, .attributes_only = true, .whole = true};
    struct back_found f = {0};
    int r = origin_get(asked(s), &g, s->arena, now, no_bytes, NULL, e);
    if (r < 0 && r != -ENOENT)
        return r;
    f.exists = r == 0;
    f.etag = f.exists ? now->etag : SLICE_NULL;
    r = f.exists ? compare(s, now, &f, e) : 0;
    if (r < 0)
        return r;
    *ret = back_decide(&s->rec, &f);
    if (!f.exists)
        now->etag = SLICE_NULL;
    if (*ret == BACK_DONE && f.exists) {
        s->answer = *now;
        s->answered = true;
    }
    return 0;
}

/* An object store whose bucket is gone says of each object that there is no such one, a HEAD as if it were
 * the object alone: of a listing's answer -ENOENT can mean the bucket only. What has directories tells that
 * its place is away by itself. */
static int bucket_is_there(struct sending *s, struct err *e)
{
    const struct origin_list l = {.prefix = s->key, .max = 1};
    struct origin_page page;
    if (s->upstream->origin->capabilities & ORIGIN_HAS_DIRECTORIES)
        return 0;
    int r = origin_list(asked(s), &l, s->arena, &page, e);
    return r == -ENOENT ? err_set(e, ERR_ORIGIN_SETUP,
                                  "its removal: the origin's bucket is not there, so that nobody knows "
                                  "whether the object is gone")
                        : r;
}

/* The removal's result, with what the origin answered to it. */
static int removed(struct sending *s, int answer, struct err *e)
{
    return answer == -ENOENT ? bucket_is_there(s, e) : answer;
}

/* ---- sending ---- */

/* Notes in the record what is about to be sent, over what: `found` as a look found it, NULL without one.
 * -ECANCELED: it is another one by now. */
static int note_sent(struct sending *s, const struct origin_attr *found, struct err *e)
{
    struct back *b = s->back;
    _cleanup_buf_ struct buf value = BUF_INIT(BACK_RECORD_MAX_BYTES);
    struct back_record now;
    bool unknown;
    if (back_record_was_sent(&s->rec))
        return 0;
    struct back_entry *x = back_enter(b, s->upstream->bucket->id, s->key);
    int r = back_load(b, s->upstream->bucket->id, s->key, &value, &now, e);
    if (r == -ENOENT || (r == 0 && now.seq != s->rec.seq))
        r = -ECANCELED;
    if (r == 0) {
        now.has_md5 = s->rec.has_md5;
        memcpy(now.md5, s->rec.md5, BACK_MD5_BYTES);
        if (found) {
            now.base = found->etag.n > 0 ? BACK_BASE_ETAG : BACK_BASE_ABSENT;
            now.base_etag = found->etag;
        }
        if (back_record_note_sent(&now))
            log_warn("object",
                     "%s/" SLICE_FMT
                     ": %d versions were sent without an answer: if the one before them arrives "
                     "now, it is taken for somebody else's",
                     s->upstream->bucket->name, SLICE_ARG(s->key), BACK_SENT_MAX);
        enum kv_commit kind = now.has_tag ? KV_DURABLE : KV_VISIBLE;
        r = back_save(b, x, s->upstream->bucket, &now, kind, &unknown, e);
    }
    back_leave(b, x);
    return r;
}

/* The put was refused, so that nothing of it is there: what it was noted as goes, or what others write there
 * could be taken for it, and what had to make room for it is known again. Nothing else was sent meanwhile. */
static void note_refused(struct sending *s)
{
    struct back *b = s->back;
    _cleanup_buf_ struct buf value = BUF_INIT(BACK_RECORD_MAX_BYTES);
    struct back_record now;
    bool unknown;
    if (s->rec.n_sent == 0 || back_record_was_sent(&s->rec))
        return;
    struct back_entry *x = back_enter(b, s->upstream->bucket->id, s->key);
    int r = back_load(b, s->upstream->bucket->id, s->key, &value, &now, NULL);
    if (r == 0 && now.n_sent > 0 && now.sent[0].size_bytes == s->rec.size_bytes &&
        memcmp(now.sent[0].md5, s->rec.md5, BACK_MD5_BYTES) == 0) {
        now.n_sent = s->rec.n_sent;
        memcpy(now.sent, s->rec.sent, sizeof(now.sent));
        (void)back_save(b, x, s->upstream->bucket, &now, KV_VISIBLE, &unknown, NULL);
    }
    back_leave(b, x);
}

/* The MD5 of the bytes, and the checksums of their blocks. */
static int digest_bytes(struct sending *s, uint8_t ret[BACK_MD5_BYTES], struct err *e)
{
    const struct back_record *r = &s->rec;
    uint8_t md5[EVP_MAX_MD_SIZE];
    _cleanup_free_ char *piece = malloc(PIECE_BYTES);
    uint64_t n_blocks = (r->size_bytes + PIECE_BYTES - 1) / PIECE_BYTES;
    _cleanup_free_ uint32_t *sums = n_blocks <= SUMS_MAX ? malloc(n_blocks * sizeof(*sums)) : NULL;
    EVP_MD_CTX *md = EVP_MD_CTX_new();
    int ok = md && piece ? EVP_DigestInit_ex(md, EVP_md5(), NULL) : 0, k = 0;
    assert(ok == 1);
    for (uint64_t at = 0; at < r->size_bytes && k == 0 && ok == 1;) {
        ssize_t n =
            back_body_read(s->hard, piece, (size_t)MIN((uint64_t)PIECE_BYTES, r->size_bytes - at), at);
        if (sums && n > 0)
            sums[at / PIECE_BYTES] = crc32c(0, piece, (size_t)n);
        if (atomic_load(&s->back->stop))
            k = err_set(e, -ECANCELED, "the node stops");
        else if (n <= 0)
            k = err_errno(e, n < 0 ? (int)n : -EIO, "read bytes that are not in the origin yet");
        else
            ok = EVP_DigestUpdate(md, piece, (size_t)n);
        at += n > 0 ? (uint64_t)n : 0;
    }
    ok = ok == 1 ? EVP_DigestFinal_ex(md, md5, NULL) : ok;
    EVP_MD_CTX_free(md);
    if (k == 0 && ok != 1)
        k = err_set(e, -EIO, "MD5");
    if (k == 0)
        memcpy(ret, md5, BACK_MD5_BYTES);
    free(s->sums);
    s->sums = k == 0 ? TAKE_PTR(sums) : NULL;
    return k;
}

/* Whether the bytes were found to be the record's not long ago, and the file was not written to since: that
 * is not computed anew for each look for a place, nor for each try. */
static bool was_checked(const struct sending *s)
{
    const struct back_entry *x = s->entry;
    struct stat st;
    return s->hard && x->checked_seq == s->rec.seq && sys_mono_ms() - x->checked_ms < CHECKED_MS &&
           hard_stat(s->hard, &st) == 0 && st.st_mtim.tv_sec == x->checked_mtim.tv_sec &&
           st.st_mtim.tv_nsec == x->checked_mtim.tv_nsec;
}

/* Origins are told the MD5 of small bodies only, or of none. */
static bool must_be_checked(const struct sending *s)
{
    return s->rec.size_bytes > DIGEST_SENT_MAX || !(s->upstream->origin->capabilities & ORIGIN_CAN_META);
}

/* Whether the bytes are still the ones that were written: origins are told the MD5 of small bodies only, or
 * of none, and what is there is believed from then on. */
static int check_bytes(struct sending *s, struct err *e)
{
    uint8_t md5[BACK_MD5_BYTES];
    struct stat st = {0};
    if (was_checked(s))
        return 0;
    int k = s->hard ? hard_stat(s->hard, &st) : 0;
    if (k < 0)
        return err_errno(e, k, "look at bytes that are not in the origin yet");
    bool has_turn = atomic_fetch_add(&s->back->checking, 1) < BACK_THREADS / 2;
    k = has_turn ? digest_bytes(s, md5, e) : -EINPROGRESS;
    (void)atomic_fetch_sub(&s->back->checking, 1);
    if (k == 0 && back_record_knows_md5(&s->rec) && memcmp(md5, s->rec.md5, BACK_MD5_BYTES) != 0)
        k = err_set(e, ERR_CORRUPT, "the disk has other bytes than were written: they stay here, unsent");
    if (k < 0)
        return k;
    memcpy(s->rec.md5, md5, BACK_MD5_BYTES);
    s->rec.has_md5 = s->rec.has_tag;
    s->entry->checked_seq = s->rec.seq;
    s->entry->checked_ms = sys_mono_ms();
    s->entry->checked_mtim = st.st_mtim;
    return 0;
}

/* Into the record, so that it is not computed again, and the version is known again at the origin by it.
 * -ECANCELED: it is another one by now. */
static int keep_md5(struct sending *s, struct err *e)
{
    struct back *b = s->back;
    _cleanup_buf_ struct buf value = BUF_INIT(BACK_RECORD_MAX_BYTES);
    struct back_record now;
    bool unknown;
    struct back_entry *x = back_enter(b, s->upstream->bucket->id, s->key);
    int r = back_load(b, s->upstream->bucket->id, s->key, &value, &now, e);
    if (r == -ENOENT || (r == 0 && now.seq != s->rec.seq))
        r = -ECANCELED;
    if (r == 0 && !back_record_knows_md5(&now)) {
        now.has_md5 = true;
        memcpy(now.md5, s->rec.md5, BACK_MD5_BYTES);
        r = back_save(b, x, s->upstream->bucket, &now, KV_VISIBLE, &unknown, e);
    }
    back_leave(b, x);
    return r;
}

/* Before there is a place at the origin, which others may want meanwhile: all bytes are read where the origin
 * does not compare them itself, and where their MD5 is not known yet. */
static int check_before(struct sending *s, struct err *e)
{
    const struct back_record *r = &s->rec;
    bool knows = back_record_knows_md5(r);
    if (knows && (!s->hard || !must_be_checked(s)))
        return 0;
    int k = check_bytes(s, e);
    return k == 0 && !knows ? keep_md5(s, e) : k;
}

static int send_to(struct sending *s, struct slice key, struct slice if_match, bool if_none_match,
                   struct origin_attr *ret, struct err *e)
{
    const struct back_record *r = &s->rec;
    _cleanup_buf_ struct buf md5 = BUF_INIT(64);
    int k = text_base64(&md5, slice_of(r->md5, BACK_MD5_BYTES)); /* the origin finds what rotted here */
    assert(k == 0);
    if (s->hard && must_be_checked(s))
        k = check_bytes(s, e);
    if (k < 0)
        return k;
    bool conditional = origin_heeds_conditions(s->upstream->origin);
    struct origin_put p = {.key = key,
                           .content_type = r->content_type,
                           .meta = r->meta,
                           .content_md5 = buf_view(&md5),
                           .if_match = conditional ? if_match : SLICE_NULL,
                           .if_none_match = conditional && if_none_match,
                           .cancel = &s->back->stop};
    struct origin_body body = {.size_bytes = r->size_bytes, .read = back_body_read, .arg = s->hard};
    return origin_put(asked(s), &p, &body, s->arena, ret, e);
}

/* The answer's ETag, asked for where the answer had none: by then another may have written there. It is left
 * out where it does not tell whose it is. */
static int complete_answer(struct sending *s, struct err *e)
{
    s->answered = true;
    if (s->answer.etag.n > 0)
        return 0;
    struct origin_get g = {.key = s->key, .attributes_only = true, .whole = true};
    int r = origin_get(asked(s), &g, s->arena, &s->answer, no_bytes, NULL, e);
    if (r == 0 && !is_directory(s) && !etag_is(s->answer.etag, s->rec.md5))
        s->answer.etag = SLICE_NULL;
    return r;
}

static int send_put(struct sending *s, const struct origin_attr *found, struct slice if_match,
                    bool if_none_match, struct err *e)
{
    int r = note_sent(s, found, e);
    if (r == 0)
        r = send_to(s, s->key, if_match, if_none_match, &s->answer, e);
    if (r == ERR_PRECONDITION || r == ERR_CONFLICT)
        note_refused(s);
    return r == 0 ? complete_answer(s, e) : r;
}

/* A name that the origin takes: names in directories, and keys with the origin's prefix, have bounds of their
 * own. */
static void name_second_copy(const struct sending *s, struct buf *ret)
{
    const struct back_record *rec = &s->rec;
    int r = -EINVAL;
    for (size_t cut = 0; r < 0 && cut < s->key.n; cut += BACK_COPY_SUFFIX_MAX) {
        buf_clear(ret);
        int k = back_copy_key(s->key, cut, rec, ret);
        assert(k == 0);
        struct origin_put p = {.key = buf_view(ret), .content_type = rec->content_type, .meta = rec->meta};
        r = origin_takes(s->upstream->origin, &p, rec->size_bytes, NULL);
    }
    if (r == 0)
        return;
    buf_clear(ret); /* it is not the name: the origin says what it is */
    r = back_copy_key(s->key, /* cut= */ 0, rec, ret);
    assert(r == 0);
}

static int second_copy(struct sending *s, struct err *e)
{
    _cleanup_buf_ struct buf key = BUF_INIT(ORIGIN_KEY_MAX_BYTES);
    struct origin_attr answer;
    name_second_copy(s, &key);
    int r = send_to(s, buf_view(&key), SLICE_NULL, false, &answer, e);
    if (r < 0)
        return r;
    (void)object_forget_key(s->back->service, s->upstream->bucket, buf_view(&key));
    log_warn("object",
             "%s/" SLICE_FMT
             ": the origin's object changed before the write got there: it stays, ours is " SLICE_FMT,
             s->upstream->bucket->name, SLICE_ARG(s->key), SLICE_ARG(buf_view(&key)));
    return 0;
}

static void count_conflict(struct sending *s)
{
    back_note_conflict(s->back, s->upstream->bucket->id);
    metrics_count(METRIC_BACK_CONFLICTS, s->upstream->bucket->name, NULL, NULL);
}

static int conflict(struct sending *s, struct origin_attr *now, struct err *e)
{
    bool overwrite = s->upstream->bucket->p.conflict == BUCKET_CONFLICT_OVERWRITE;
    int r = 0;
    if (!overwrite) {
        s->conflict = true;
        if (s->rec.removal)
            log_warn("object",
                     "%s/" SLICE_FMT ": the origin's object changed before it was removed: it stays",
                     s->upstream->bucket->name, SLICE_ARG(s->key));
        r = s->rec.removal ? 0 : second_copy(s, e);
    } else if (s->rec.removal) {
        r = removed(s, origin_remove(asked(s), s->key, SLICE_NULL, e), e);
    } else {
        r = send_put(s, now, now->etag, false, e);
    }
    if (r == 0 && overwrite)
        log_warn("object", "%s/" SLICE_FMT ": what somebody else wrote to the origin meanwhile was replaced",
                 s->upstream->bucket->name, SLICE_ARG(s->key));
    if (r == 0)
        count_conflict(s);
    return r;
}

/* After a look. A condition that fails now means that it changed again: another round looks again. Where that
 * happens time after time, as with a service whose condition never holds, it is a failure like others. */
static int looked(struct sending *s, struct err *e)
{
    struct origin_attr now = {0};
    enum back_step step;
    int r = look(s, &now, &step, e);
    if (r == 0 && step == BACK_DONE && s->rec.removal)
        return removed(s, -ENOENT, e);
    if (r < 0 || step == BACK_DONE)
        return r;
    if (step == BACK_CONFLICT)
        return conflict(s, &now, e);
    struct slice if_match = is_directory(s) ? SLICE_NULL : now.etag;
    if (!s->rec.removal)
        return send_put(s, &now, if_match, now.etag.n == 0, e);
    r = origin_remove(asked(s), s->key, if_match, e);
    if ((r == ERR_PRECONDITION || r == ERR_CONFLICT) && s->entry->again < AGAIN_MAX)
        return -EAGAIN;
    return removed(s, r, e);
}

/* Whether something below a directory is to be removed. */
static int removals_below(struct sending *s, bool *ret, struct err *e)
{
    _cleanup_buf_ struct buf from = BUF_INIT(BACK_KEY_BYTES), to = BUF_INIT(BACK_KEY_BYTES);
    back_range(s->upstream->bucket->id, s->key, s->key, &from, &to); /* behind itself */
    _cleanup_(kv_iter_freep) struct kv_iter *it = kv_iter_new(s->back->kv, buf_view(&from), buf_view(&to));
    struct slice k, value;
    struct back_record rec;
    int r = 0;
    *ret = false;
    while (!*ret && (r = kv_iter_next(it, &k, &value, e)) == 0)
        *ret = back_record_decode(value, &rec) == 0 && rec.removal;
    return r == -ENOENT ? 0 : r;
}

static int carry_out(struct sending *s, struct err *e)
{
    const struct back_record *r = &s->rec;
    bool below = false;
    int found = r->removal && is_directory(s) ? removals_below(s, &below, e) : 0;
    if (found < 0 || below)
        return found < 0 ? found : -EINPROGRESS;
    bool sure = (s->upstream->origin->capabilities & ORIGIN_CAN_CONDITIONAL_PUT) && !r->removal &&
                r->base != BACK_BASE_UNKNOWN && r->n_sent == 0;
    if (!sure)
        return looked(s, e);
    int k = send_put(s, NULL, r->base_etag, r->base == BACK_BASE_ABSENT, e);
    return k == ERR_PRECONDITION || k == -ENOENT ? -EAGAIN : k; /* sent is noted now: looks */
}

/* ---- what follows ---- */

/* The newer record learns what the origin has. */
static void take_base(const struct sending *s, struct back_record *now)
{
    now->since_ns = now->acked_ns;
    if (s->answered && s->answer.etag.n == 0) /* that is not known: it stays among what was sent */
        return;
    now->base = s->answered ? BACK_BASE_ETAG : BACK_BASE_ABSENT;
    now->base_etag = s->answered ? s->answer.etag : SLICE_NULL;
    if (s->answered && !back_record_was_sent(&s->rec)) /* once, and that was heard: it is the base */
        back_record_forget_sent(now, &s->rec);
}

/* The record was carried out: it goes, or the newer one in its place learns what the origin has. */
static int finish(struct sending *s, struct err *e)
{
    struct back *b = s->back;
    _cleanup_buf_ struct buf value = BUF_INIT(BACK_RECORD_MAX_BYTES);
    struct back_record now;
    bool unknown, is_told = s->answered && s->answer.etag.n > 0 && !s->conflict;
    if (s->hard && is_told)
        back_cache(b, s->upstream->bucket, s->key, &s->rec, s->hard, s->sums);
    struct back_entry *x = back_enter(b, s->upstream->bucket->id, s->key);
    int r = back_load(b, s->upstream->bucket->id, s->key, &value, &now, e);
    bool same = r == 0 && now.seq == s->rec.seq;
    if (same && is_told && !is_own_etag(&s->rec, s->answer.etag)) {
        char from[BACK_ETAG_SIZE];
        back_record_etag(&s->rec, from);
        back_alias_add(b, x, s->rec.seq, from, s->answer.etag);
    }
    bool is_others = same && (s->conflict || (s->answered && !is_told));
    if (is_others) /* before a flush has its end, and who asked for it reads */
        (void)object_forget_key(b->service, s->upstream->bucket, s->key);
    if (same) {
        r = back_drop(b, x, e);
        if (r == 0)
            back_free_extent(b, s->rec.location);
    } else if (r == 0 && !s->conflict) {
        take_base(s, &now);
        r = back_save(b, x, s->upstream->bucket, &now, KV_VISIBLE, &unknown, e);
    }
    back_leave(b, x);
    if (r == -ENOENT)
        r = 0;
    if (r == 0 && is_others) /* and what was read meanwhile */
        (void)object_forget_key(b->service, s->upstream->bucket, s->key);
    else if (r == 0 && same && is_told && !is_own_etag(&s->rec, s->answer.etag))
        back_rename_cached(b, s->upstream->bucket, s->key, &s->rec, s->answer.etag);
    return r;
}

/* A place at the origin, behind all others: upstream_leave_behind gives it back. */
static bool take_place(struct sending *s)
{
    struct back *b = s->back;
    struct back_bucket *x = s->bucket;
    uint64_t now_ns = sys->mono_ns();
    lock_take(&b->lock);
    uint64_t since_ns = x->full_since_ns;
    lock_drop(&b->lock);
    bool has_place = upstream_try_enter_behind(s->upstream, since_ns > 0 ? now_ns - since_ns : 0);
    LOCK_SCOPE(&b->lock);
    if (has_place)
        x->full_since_ns = 0;
    else if (x->full_since_ns == 0)
        x->full_since_ns = now_ns;
    x->full_ms = has_place ? 0 : sys_mono_ms() + PLACE_MS;
    return has_place;
}

/* The next round sends what is settled then. */
static int settle_first(struct sending *s, struct err *e)
{
    struct back *b = s->back;
    struct back_entry *x = back_enter(b, s->upstream->bucket->id, s->key);
    buf_clear(&s->value);
    int r = back_load(b, s->upstream->bucket->id, s->key, &s->value, &s->rec, e);
    if (r == 0 && s->rec.is_live)
        r = back_settle(b, x, s->upstream->bucket, &s->rec, e);
    back_leave(b, x);
    if (r == -ENOSPC) /* here, not at the origin */
        r = ERR_NOT_ADMITTED;
    return r < 0 && r != -ENOENT ? r : -EAGAIN;
}

static int send_record(struct sending *s, struct err *e)
{
    struct back *b = s->back;
    int r = back_load(b, s->upstream->bucket->id, s->key, &s->value, &s->rec, e);
    if (r < 0)
        return r == -ENOENT ? 0 : r;
    if (s->rec.is_live)
        return settle_first(s, e);
    r = s->rec.location.n > 0 ? hard_find(b->store, s->rec.location, &s->hard, e) : 0;
    if (r == -ENOENT || r == 0) {
        struct back_record now; /* replaced between the two */
        _cleanup_buf_ struct buf value = BUF_INIT(BACK_RECORD_MAX_BYTES);
        int k = back_load(b, s->upstream->bucket->id, s->key, &value, &now, NULL);
        if (k == -ENOENT || (k == 0 && now.seq != s->rec.seq))
            return -ECANCELED;
    }
    if (r == -ENOENT)
        r = err_set(
            e, -EIO,
            "its bytes, which were acknowledged, are missing on the disk: they are lost, unless the disk "
            "gets them back. Write the object again, or remove it");
    if (r < 0)
        return r;
    r = check_before(s, e);
    if (r < 0)
        return r;
    if (!take_place(s))
        return -ECANCELED;
    struct upstream_held place;
    upstream_hold(&place, s->upstream, /* behind= */ true);
    r = carry_out(s, e);
    upstream_unhold(&place);
    upstream_leave_behind(s->upstream, r); /* what follows may wait for an opening that wants a place */
    return r < 0 ? r : finish(s, e);
}

static int send_key(struct back *b, struct back_entry *x, struct err *e)
{
    struct slice key = back_key(x);
    _cleanup_(bucket_unrefp) struct bucket *bucket = bucket_find_id(b->service->buckets, x->bucket_id);
    struct sending s = {
        .back = b, .bucket = x->bucket, .entry = x, .key = key, .value = BUF_INIT(BACK_RECORD_MAX_BYTES)};
    if (!bucket)
        return err_set(e, ERR_NO_BUCKET, "the bucket is gone");
    int r = object_upstream(b->service, slice_str(bucket->name), &s.upstream, e);
    if (r < 0)
        return r;
    s.arena = arena_new(SEND_ARENA);
    r = send_record(&s, e);
    if (r < 0)
        r = err_prefix(e, r, "%s/" SLICE_FMT, bucket->name, SLICE_ARG(key));
    upstream_unref(s.upstream);
    hard_unref(s.hard);
    free(s.sums);
    arena_free(s.arena);
    buf_fini(&s.value);
    return r;
}

/* ---- threads ---- */

static void note_result(struct back *b, struct back_entry *x, int r, const struct err *e)
{
    LOCK_SCOPE(&b->lock);
    b->n_doubted -= x->doubted;
    bool stopped = atomic_load(&b->stop);
    if (r != -ECANCELED)
        x->again = r == -EAGAIN ? x->again + 1 : 0;
    if (r != -EAGAIN && r != -ECANCELED) /* of these another try follows: what the one before said holds */
        free(TAKE_PTR(x->error));
    if ((r == -EINPROGRESS || r == -ETXTBSY || r == ERR_NOT_ADMITTED) && !stopped) {
        uint64_t delay_ms = back_delay_ms(x->waits++); /* a copy that finds no room costs more than a look */
        x->retry_ms =
            sys_mono_ms() + (r == ERR_NOT_ADMITTED ? delay_ms : MIN(delay_ms, (uint64_t)BELOW_MAX_MS));
        x->error = x->recorded && r != -EINPROGRESS ? slice_dup(slice_str(e->text)) : NULL;
    } else if (r == 0 || r == -EAGAIN || r == -ECANCELED || stopped) {
        x->tries = r == 0 ? 0 : x->tries;
        x->bucket->failed = r == 0 ? 0 : x->bucket->failed;
        x->bucket->silent = r == 0 ? false : x->bucket->silent;
        x->retry_ms = 0;
    } else {
        if (x->tries == 0)
            log_often("object", "write-back: %s; it is tried again until it succeeds", e->text);
        x->retry_ms = sys_mono_ms() + back_delay_ms(x->tries);
        x->tries++;
        x->bucket->failed = MIN(x->bucket->failed + 1, (unsigned)BACK_DOUBT);
        x->error = x->recorded ? slice_dup(slice_str(e->text)) : NULL;
    }
    back_queue_send_locked(b, x, /* sends= */ false, sys_mono_ms());
    cond_broadcast(&b->moved);
    back_forget_unused_locked(b, x);
}

void *back_sender_main(void *back)
{
    struct back *b = CAST_MAGIC(back, back, BACK_MAGIC);
    lock_take(&b->lock);
    while (!atomic_load(&b->stop)) {
        uint64_t wait_ms = IDLE_MS;
        struct back_entry *x = back_queue_next_locked(b, sys_mono_ms(), &wait_ms);
        if (!x) {
            (void)cond_wait_for(&b->work, &b->lock, wait_ms * 1000000);
            continue;
        }
        back_queue_send_locked(b, x, /* sends= */ true, 0); /* keeps it alive */
        x->doubted = back_is_doubted_locked(x->bucket);
        b->n_doubted += x->doubted;
        lock_drop(&b->lock);
        struct err e = {0};
        int r = send_key(b, x, &e);
        note_result(b, x, r, &e);
        lock_take(&b->lock);
    }
    lock_drop(&b->lock);
    return NULL;
}

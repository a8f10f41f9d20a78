/*
 * Writing to HDFS: put, remove, copy.
 *
 * A file is created under a reserved name beside its place and renamed there. A crash leaves the old file or
 * the new one whole, and perhaps a file whose name begins with FILE_TMP_PREFIX, which nobody sees as an
 * object. The first listing that meets it in a later run of the same node removes it; those of others anyone
 * may delete, but for the case of 3.
 *
 * Invariants:
 *  1. put returns 0 only after the file was closed with all its bytes, as its status tells, and has its name.
 *  2. If-None-Match is the namenode's own atomicity (a rename that replaces nothing); If-Match is atomic
 * among the writers of this node only, for there is no call that renames if the target is a certain file.
 *  3. Replacing is one step of the namenode (renameoptions=OVERWRITE). A server that does not know it
 * (HttpFS) is found by its answer: there the target is deleted first, and for a moment no file has the name;
 * it is the old or the new one before and after, and the new one is kept under the reserved name if the
 * rename fails, or if nobody can tell whether the old one is deleted: under one that no run of this node
 * takes for left. Such a rename moves a file into a directory that has the target's name and calls that done:
 * it is looked after, and put fails.
 *  4. On failure the reserved name is removed again, as far as the server can be reached, but for the case
 * of 3.
 *
 * Failure modes: those of web_perform; -EINVAL for keys that cannot be paths; ERR_PRECONDITION; what
 * body->read gave. A rename whose answer was lost may have happened.
 */
#include "origin/hdfs_internal.h"

#include "base/hash.h"
#include "base/id.h"

#include <inttypes.h>

#define SOURCE_BYTES (4 * MIB) /* of a copy, read at a time */

struct target {
    struct hdfs *hdfs;
    struct slice key;
    char path[ORIGIN_KEY_MAX_BYTES + 1];
    char tmp[HDFS_PATH_SIZE];
    bool is_dir, has_tmp;
};

int hdfs_remove_path(struct hdfs *h, const char *path, bool *ret_was_there, struct err *e)
{
    struct buf _cleanup_buf_ body = BUF_INIT(WEB_RESULT_MAX);
    struct hdfs_call _cleanup_(hdfs_call_fini) c;
    int r = hdfs_call_init(&c, h, WEB_DELETE, "delete", "DELETE", path, &body, e);
    if (r < 0)
        return r;
    web_query(&c.web, SLICE_LIT("recursive"), SLICE_LIT("false"));
    c.web.once = true;
    r = web_perform(&c.web, e);
    if (r == 0)
        r = hdfs_json_boolean(buf_view(&body), ret_was_there, e);
    if (r == 0 && !*ret_was_there && hdfs_is_sent_again(&c))
        return err_set(e, ERR_ORIGIN_FAILED, "sent again, and nothing was there: the first may have done it");
    return r;
}

static void target_fini(struct target *t)
{
    bool there;
    if (!t->has_tmp)
        return;
    struct quit _cleanup_(quit_leave) tidy;
    quit_enter_tidy(&tidy);
    (void)hdfs_remove_path(t->hdfs, t->tmp, &there, NULL);
}

static int target_open(struct hdfs *h, struct target *t, struct slice key, struct err *e)
{
    *t = (struct target){.hdfs = h, .key = key};
    return file_key_path(key, t->path, &t->is_dir, e);
}

/* One writer of a file at a time looks at a condition and renames: makes If-Match atomic among the writers of
 * this node, through whichever bucket. */
static int enter(const struct target *t, const atomic_bool *cancel, struct key_order *x, struct err *e)
{
    char whole[HDFS_PATH_SIZE];
    int r = hdfs_path(t->hdfs, t->path, whole, e);
    uint64_t server = hash_table(slice_str(t->hdfs->endpoint.base));
    return r < 0 ? r
                 : origin_enter(&t->hdfs->base, hash_mix(server, hash_table(slice_str(whole))),
                                /* alone= */ true, cancel, x, e);
}

/* ---- the reserved name ---- */

static int make_dir(struct hdfs *h, const char *path, struct err *e)
{
    struct buf _cleanup_buf_ body = BUF_INIT(WEB_RESULT_MAX);
    struct hdfs_call _cleanup_(hdfs_call_fini) c;
    bool done = false;
    int r = hdfs_call_init(&c, h, WEB_PUT, "put", "MKDIRS", path, &body, e);
    if (r == 0)
        r = web_perform(&c.web, e);
    if (r == 0)
        r = hdfs_json_boolean(buf_view(&body), &done, e);
    return r == 0 && !done ? err_set(e, ERR_ORIGIN_FAILED, "the directory was not made") : r;
}

static int set_time(struct hdfs *h, const char *path, uint64_t mtime_ns, struct err *e)
{
    char text[24];
    struct hdfs_call _cleanup_(hdfs_call_fini) c;
    (void)snprintf(text, sizeof(text), "%" PRIu64, mtime_ns / 1000000);
    int r = hdfs_call_init(&c, h, WEB_PUT, "put", "SETTIMES", path, NULL, e);
    if (r < 0)
        return r;
    web_query(&c.web, SLICE_LIT("modificationtime"), slice_str(text));
    return web_perform(&c.web, e);
}

/* A reserved name beside the target. is_kept: one that no later run of this node takes for left. */
static void choose_tmp(const struct target *t, bool is_kept, char ret[HDFS_PATH_SIZE])
{
    struct id128 id;
    char text[ID_TEXT_SIZE];
    const char *slash = strrchr(t->path, '/');
    if (is_kept) {
        id_new(&id);
        id_text(id, text);
    } else {
        file_tmp_id(text);
    }
    (void)snprintf(ret, HDFS_PATH_SIZE, "%.*s" FILE_TMP_PREFIX "%s", slash ? (int)(slash + 1 - t->path) : 0,
                   t->path, text);
}

/* Writes the reserved name; its status is the object's. */
static int write_tmp(struct target *t, const struct origin_put *p, const struct origin_body *body,
                     struct hdfs_status *ret_st, struct err *e)
{
    uint64_t mtime_ns;
    choose_tmp(t, /* is_kept= */ atomic_load(&t->hdfs->no_options), t->tmp);
    t->has_tmp = true; /* a CREATE that failed may have made it */
    int r = hdfs_create(t->hdfs, t->tmp, body, p->cancel, e);
    if (r == ERR_PRECONDITION) { /* nobody else makes that name: curl sent it twice. No condition failed */
        if (e)
            e->code = ERR_ORIGIN_FAILED;
        return err_prefix(e, ERR_ORIGIN_FAILED, "%s", t->tmp);
    }
    if (r == 0 && origin_meta_mtime(p->meta, &mtime_ns))
        r = set_time(t->hdfs, t->tmp, mtime_ns, e);
    if (r == 0)
        r = hdfs_stat(t->hdfs, t->tmp, p->cancel, ret_st, e);
    if (r == 0 && ret_st->size != body->size_bytes)
        return err_set(e, ERR_ORIGIN_SHORT, "the file has %" PRIu64 " bytes, %" PRIu64 " were sent",
                       ret_st->size, body->size_bytes);
    if (r == -EINVAL)
        return err_prefix(e, r, SLICE_FMT, SLICE_ARG(t->key));
    return r;
}

/* ---- the name ---- */

/* What is at the target: 0 nothing, 1 a file, 2 a directory. */
static int look(struct target *t, struct hdfs_status *ret, struct err *e)
{
    int r = hdfs_stat(t->hdfs, t->path, NULL, ret, e);
    if (r == -ENOENT)
        return 0;
    return r < 0 ? r : ret->is_dir ? 2 : 1;
}

static int is_directory(const struct target *t, struct err *e)
{
    return err_set(e, -EINVAL, SLICE_FMT ": a directory of that name is there", SLICE_ARG(t->key));
}

/* Whether a rename that knows no options put the file into a directory instead: it is removed there. */
static int check_moved(struct target *t, struct err *e)
{
    struct hdfs_status st;
    char inside[HDFS_PATH_SIZE];
    const char *slash = strrchr(t->tmp, '/');
    int r = look(t, &st, e);
    if (r != 2)
        return r < 0 ? r : 0;
    int n = snprintf(inside, sizeof(inside), "%s/%s", t->path, slash ? slash + 1 : t->tmp);
    t->has_tmp = n > 0 && (size_t)n < sizeof(inside);
    memcpy(t->tmp, inside, sizeof(inside));
    return is_directory(t, e);
}

/* Whether the first of two that curl sent, because a kept connection closed without an answer, has renamed
 * the file, or one whose answer was cut: nobody else takes the reserved name away. `r`: what the second came
 * to.
 */
static int check_sent_again(struct target *t, int r, bool *ret_done, struct err *e)
{
    struct hdfs_status st;
    struct err local = {0};
    int there = hdfs_stat(t->hdfs, t->tmp, NULL, &st, &local);
    *ret_done = there == -ENOENT;
    if (there < 0 && !*ret_done)
        return err_set(e, there, "after a rename without a whole answer: %s", local.text);
    if (*ret_done && e)
        e->code = 0;
    return *ret_done ? 0 : r;
}

/* Whether the answer has no body, and had none when it was sent. */
static bool is_empty_answer(const struct hdfs_call *c, const struct buf *body)
{
    const struct web_response *r = &c->web.response;
    return slice_trim(buf_view(body)).n == 0 && (r->has_length || r->is_chunked);
}

/* RENAME of the reserved name. `options` may be NULL. *ret_done: whether the server did it, also when it is
 * found afterwards that it was the wrong thing. A server that knows the options answers without a document.
 */
static int rename_tmp(struct target *t, const char *options, bool *ret_done, struct err *e)
{
    char to[HDFS_PATH_SIZE];
    struct buf _cleanup_buf_ body = BUF_INIT(WEB_RESULT_MAX);
    struct hdfs_call _cleanup_(hdfs_call_fini) c;
    int r = hdfs_call_init(&c, t->hdfs, WEB_PUT, "put", "RENAME", t->tmp, &body, e);
    if (r == 0)
        r = hdfs_path(t->hdfs, t->path, to, e);
    if (r < 0)
        return r;
    web_query(&c.web, SLICE_LIT("destination"), slice_str(to));
    if (options)
        web_query(&c.web, SLICE_LIT("renameoptions"), slice_str(options));
    r = web_perform(&c.web, e);
    /* The answer of a server that knows the options, unless another one's was cut. */
    bool is_empty = r == 0 && options && is_empty_answer(&c, &body);
    *ret_done = is_empty;
    if (r == 0 && !is_empty)
        r = hdfs_json_boolean(buf_view(&body), ret_done, e);
    bool is_cut = r == ERR_ORIGIN_SHORT;
    if ((r < 0 || !*ret_done) && (hdfs_is_sent_again(&c) || is_cut))
        r = check_sent_again(t, r, ret_done, e);
    if (r < 0 || !*ret_done)
        return r;
    t->has_tmp = false;
    return is_cut || slice_trim(buf_view(&body)).n > 0 ? check_moved(t, e) : 0;
}

static int check_etag(struct target *t, struct slice if_match, struct err *e)
{
    struct hdfs_status st;
    char etag[TREE_ETAG_SIZE];
    if (if_match.n == 0)
        return 0;
    int r = look(t, &st, e);
    if (r < 0)
        return r;
    if (r != 1)
        return err_set(e, ERR_PRECONDITION, "there is no such file");
    hdfs_etag(&st, etag);
    if (file_matches(if_match, slice_str(etag)))
        return 0;
    return err_set(e, ERR_PRECONDITION, "the file's ETag is %s and not " SLICE_FMT, etag,
                   SLICE_ARG(if_match));
}

static int place_new(struct target *t, struct err *e)
{
    struct hdfs_status st;
    bool done = false;
    int r = rename_tmp(t, "NONE", &done, e);
    if (done)
        return r;
    if (r < 0 && r != ERR_PRECONDITION && r != ERR_ORIGIN_FAILED)
        return r;
    /* Servers word it differently: is something there? */
    int there = look(t, &st, r < 0 ? NULL : e);
    if (there > 0)
        return err_set(e, ERR_PRECONDITION, "the file exists");
    if (there < 0)
        return there;
    return r < 0 ? r : err_set(e, ERR_ORIGIN_FAILED, "the server did not rename the file");
}

/* Removes the old file. Where the answer was lost it may be gone: then the new one takes its place or, when
 * that cannot be known, stays under the reserved name. It cannot be known of a file that is there, either,
 * where no answer came: the server may do it still, when nobody waits any more. */
static int remove_old(struct target *t, bool *ret_deleted, struct err *e)
{
    struct hdfs_status st;
    int r = hdfs_remove_path(t->hdfs, t->path, ret_deleted, e);
    int there = r < 0 ? look(t, &st, NULL) : 0;
    bool may_come = there > 0 && (r == -ETIMEDOUT || r == ERR_ORIGIN_DOWN);
    if (there < 0 || may_come) {
        t->has_tmp = false;
        return err_prefix(e, r, "the old file may be deleted, and the new one is %s", t->tmp);
    }
    if (r == 0 || there != 0)
        return r;
    *ret_deleted = true;
    if (e)
        e->code = 0;
    return 0;
}

/* Before the old file goes: should the node end then, this is the only copy, and no later run may take it for
 * left. */
static int keep_tmp(struct target *t, struct err *e)
{
    char kept[HDFS_PATH_SIZE], to[HDFS_PATH_SIZE];
    const char *slash = strrchr(t->tmp, '/');
    bool done = false, there;
    if (!file_tmp_is_own(slash ? slash + 1 : t->tmp))
        return 0;
    struct buf _cleanup_buf_ body = BUF_INIT(WEB_RESULT_MAX);
    struct hdfs_call _cleanup_(hdfs_call_fini) c;
    choose_tmp(t, /* is_kept= */ true, kept);
    int r = hdfs_call_init(&c, t->hdfs, WEB_PUT, "put", "RENAME", t->tmp, &body, e);
    r = r < 0 ? r : hdfs_path(t->hdfs, kept, to, e);
    if (r < 0)
        return r;
    web_query(&c.web, SLICE_LIT("destination"), slice_str(to));
    r = web_perform(&c.web, e);
    if (r == 0)
        r = hdfs_json_boolean(buf_view(&body), &done, e);
    if (r == 0 && !done)
        r = err_set(e, ERR_ORIGIN_FAILED, "the server did not rename the file");
    if (r < 0) /* it may have, all the same */
        (void)hdfs_remove_path(t->hdfs, kept, &there, NULL);
    else
        memcpy(t->tmp, kept, sizeof(kept));
    return r;
}

/* For servers that do not replace. */
static int delete_and_rename(struct target *t, struct err *e)
{
    struct hdfs_status st;
    bool deleted = false, done = false;
    int there = look(t, &st, e);
    if (there == 2)
        return is_directory(t, e);
    int r = there == 1 ? keep_tmp(t, e) : there;
    if (r == 0 && there == 1)
        r = remove_old(t, &deleted, e);
    if (r < 0)
        return r;
    r = rename_tmp(t, NULL, &done, e);
    if (done)
        return r;
    if (!deleted)
        return r < 0 ? r : err_set(e, ERR_ORIGIN_FAILED, "the server did not rename the file");
    t->has_tmp = false; /* now the only copy */
    (void)err_set(e, r < 0 ? r : ERR_ORIGIN_FAILED, "the old file is deleted, and the new one is %s", t->tmp);
    return r < 0 ? r : ERR_ORIGIN_FAILED;
}

static int place_over(struct target *t, struct err *e)
{
    struct hdfs_status st;
    bool done = false;
    if (!atomic_load(&t->hdfs->no_options)) {
        int r = rename_tmp(t, "OVERWRITE", &done, e);
        if (r == ERR_ORIGIN_FAILED && look(t, &st, NULL) == 2)
            return is_directory(t, e);
        if (r < 0 || done)
            return r;
        atomic_store(&t->hdfs->no_options, true); /* the answer of a rename that knows no options */
    }
    return delete_and_rename(t, e);
}

static int place(struct target *t, const struct origin_put *p, struct err *e)
{
    struct key_order _cleanup_(key_order_leave) order = {0};
    int r = enter(t, p->cancel, &order, e);
    if (r == 0)
        r = check_etag(t, p->if_match, e);
    if (r < 0)
        return r;
    origin_set_reach(p, ORIGIN_REACH_PERHAPS);
    return p->if_none_match ? place_new(t, e) : place_over(t, e);
}

/* "a/b/": the object without bytes that a directory is. */
static int put_dir(struct target *t, const struct origin_put *p, const struct origin_body *body,
                   struct hdfs_status *ret_st, struct err *e)
{
    if (body->size_bytes > 0)
        return file_no_bytes(e);
    int r = look(t, ret_st, e);
    if (r == 1)
        return err_set(e, -EINVAL, SLICE_FMT ": a file of that name is there", SLICE_ARG(t->key));
    if (r == 2 && p->if_none_match)
        return err_set(e, ERR_PRECONDITION, "the directory exists");
    if (r == 0) {
        origin_set_reach(p, ORIGIN_REACH_PERHAPS);
        r = make_dir(t->hdfs, t->path, e);
    }
    return r < 0 ? r : hdfs_stat(t->hdfs, t->path, p->cancel, ret_st, e);
}

static int put(struct hdfs *h, const struct origin_put *p, const struct origin_body *body, struct arena *a,
               struct origin_attr *ret_attr, struct err *e)
{
    struct target _cleanup_(target_fini) t;
    struct hdfs_status st;
    origin_set_reach(p, ORIGIN_REACH_NOTHING);
    int r = target_open(h, &t, p->key, e);
    if (r == 0 && t.is_dir) {
        r = put_dir(&t, p, body, &st, e);
    } else if (r == 0) {
        r = write_tmp(&t, p, body, &st, e);
        if (r == 0)
            r = place(&t, p, e);
    }
    if (r == 0)
        *ret_attr = hdfs_attr(&st, a);
    return r;
}

int hdfs_put(struct origin *o, const struct origin_put *p, const struct origin_body *body, struct arena *a,
             struct origin_attr *ret_attr, struct err *e)
{
    int r = put(hdfs_of(o), p, body, a, ret_attr, e);
    tree_forget(&hdfs_of(o)->tree, p->key); /* also after a failure: it may have happened */
    return r;
}

/* ---- remove ---- */

static int do_remove(struct hdfs *h, struct slice key, struct slice if_match, struct err *e)
{
    struct target _cleanup_(target_fini) t;
    struct hdfs_status st;
    bool there = false;
    if (target_open(h, &t, key, e) < 0) /* such an object cannot be there */
        return err_set(e, -ENOENT, "no such file");
    struct key_order _cleanup_(key_order_leave) order = {0};
    int r = enter(&t, /* cancel= */ NULL, &order, e);
    if (r == 0 && !t.is_dir)
        r = check_etag(&t, if_match, e);
    if (r == 0)
        r = look(&t, &st, e); /* DELETE takes files and empty directories alike */
    if (r < 0)
        return r;
    if (r != (t.is_dir ? 2 : 1))
        return err_set(e, -ENOENT, "no such %s", t.is_dir ? "directory" : "file");
    r = hdfs_remove_path(t.hdfs, t.path, &there, e);
    if (r == -ENOTEMPTY && t.is_dir) {
        if (e)
            e->code = 0;
        return 0; /* as in S3: what lies below stays, and with it the directory */
    }
    return r == 0 && !there ? err_set(e, -ENOENT, "no such file") : r;
}

int hdfs_remove(struct origin *o, struct slice key, struct slice if_match, struct err *e)
{
    int r = do_remove(hdfs_of(o), key, if_match, e);
    tree_forget(&hdfs_of(o)->tree, key);
    return r;
}

/* ---- copy: read and written again, for WebHDFS has no other way ---- */

struct source {
    struct hdfs *hdfs;
    const char *path;
    struct hdfs_status st;
    char *piece;
    uint64_t at, have; /* the piece's place in the file */
    uint64_t filled;
};

static int take(void *arg, const void *p, size_t n)
{
    struct source *s = arg;
    memcpy(s->piece + s->filled, p, n);
    s->filled += n;
    return 0;
}

/* Before the last piece is given the file must still be the one whose first bytes were. */
static int load(struct source *s, uint64_t offset)
{
    uint64_t n = MIN(s->st.size - offset, (uint64_t)SOURCE_BYTES);
    s->have = s->filled = 0;
    int r = hdfs_open_range(s->hdfs, s->path, &s->st, offset, n, NULL, take, s, NULL);
    if (r == 0 && offset + n == s->st.size)
        r = hdfs_check_unchanged(s->hdfs, s->path, &s->st, NULL, NULL);
    if (r < 0)
        return r;
    s->at = offset;
    s->have = n;
    return 0;
}

static ssize_t read_source(void *arg, void *p, size_t n, uint64_t offset)
{
    struct source *s = arg;
    if (quit_is_now())
        return -ECANCELED;
    if (offset < s->at || offset >= s->at + s->have) {
        int r = load(s, offset);
        if (r < 0)
            return r;
    }
    n = (size_t)MIN((uint64_t)n, s->at + s->have - offset);
    memcpy(p, s->piece + (offset - s->at), n);
    return (ssize_t)n;
}

int hdfs_copy(struct origin *o, struct slice from, struct slice to, struct slice if_match, struct arena *a,
              struct origin_attr *ret_attr, struct err *e)
{
    struct hdfs *h = hdfs_of(o);
    char path[ORIGIN_KEY_MAX_BYTES + 1], etag[TREE_ETAG_SIZE];
    bool is_dir;
    struct source s = {.hdfs = h, .path = path};
    struct origin_put p = {.key = to};
    if (file_key_path(from, path, &is_dir, e) < 0)
        return err_set(e, -ENOENT, "no such file");
    int r = hdfs_stat(h, path, NULL, &s.st, e);
    if (r < 0)
        return r;
    if (is_dir ? !s.st.is_dir : !s.st.is_file)
        return err_set(e, -ENOENT, "no such %s", is_dir ? "directory" : "file");
    hdfs_etag(&s.st, etag);
    if (!file_matches(if_match, slice_str(etag)))
        return err_set(e, ERR_PRECONDITION, "the file's ETag is %s and not " SLICE_FMT, etag,
                       SLICE_ARG(if_match));
    char _cleanup_free_ *piece = malloc((size_t)MAX(MIN(s.st.size, (uint64_t)SOURCE_BYTES), (uint64_t)1));
    if (!piece)
        return err_set(e, -ENOMEM, "no memory to copy");
    s.piece = piece;
    /* Slow: it leaves a connection to its own reads. */
    struct origin_body body = {.size_bytes = s.st.size, .read = read_source, .arg = &s, .slow = true};
    r = put(h, &p, &body, a, ret_attr, e);
    tree_forget(&h->tree, to);
    return r;
}

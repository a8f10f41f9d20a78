/*
 * Writing through NFS: put, remove, copy.
 *
 * A file is written under a reserved name beside its place, committed to the server's disk (COMMIT), and
 * renamed there. A crash leaves the old file or the new one whole, and perhaps a file whose name begins with
 * FILE_TMP_PREFIX, which nobody sees as an object and a listing removes: at once in a later run of the same
 * node, else a day later.
 *
 * Invariants:
 *  1. put returns 0 only after the server said that bytes and name are stable (COMMIT; RENAME is
 * synchronous). Bytes and COMMIT go over one connection: a server that started anew between them is noticed.
 *  2. If-None-Match is the server's own atomicity (LINK); If-Match is atomic among the writers of this node
 * only, for there is no call that renames if the target is a certain file.
 *  3. On failure the reserved name is removed again, as far as the server can be reached.
 *
 * Failure modes: as nfs_error; -EINVAL for keys that cannot be paths; ERR_PRECONDITION; what body->read gave.
 * A rename whose answer was lost may have happened.
 */
#include "origin/nfs_internal.h"

#include "base/hash.h"
#include "net/posix_meta.h"

#include <inttypes.h>
#include <sys/stat.h>

struct target {
    struct nfs *nfs;
    struct nfs_conn *conn;
    struct slice key;
    char path[NFS_PATH_SIZE];
    char tmp[NFS_PATH_SIZE];
    bool is_dir, has_tmp, borrowed; /* borrowed: the session is the caller's */
};

/* Over another session where this one was given up with what was canceled or failed. (Not for copies: they
 * would wait for a second session while each holds one.) */
static void remove_tmp(struct target *t)
{
    struct quit _cleanup_(quit_leave) tidy;
    quit_enter_tidy(&tidy);
    nfs_conn_uncancel(t->conn);
    (void)nfs_call_unlink(t->conn, t->tmp);
    if (!nfs_conn_is_broken(t->conn) || t->borrowed)
        return;
    nfs_conn_give(TAKE_PTR(t->conn));
    if (nfs_conn_take(t->nfs, NULL, &t->conn, NULL) == 0)
        (void)nfs_call_unlink(t->conn, t->tmp);
}

static void target_fini(struct target *t)
{
    if (t->conn && t->has_tmp)
        remove_tmp(t);
    if (!t->borrowed)
        nfs_conn_give(t->conn);
}

/* Reads of bodies may be short: a piece is filled before it is sent. */
static int fill_piece(const struct origin_body *body, char *piece, size_t n, uint64_t offset, struct err *e)
{
    for (size_t done = 0; done < n;) {
        ssize_t r = body->read(body->arg, piece + done, n - done, offset + done);
        if (r <= 0)
            return r < 0 ? err_set(e, (int)r, "body: %s", err_text((int)r))
                         : err_set(e, -ENODATA, "the body to be written ended early");
        done += (size_t)r;
    }
    return 0;
}

/* Where there is one session only, who has it waits for nobody's bytes: they may be read from this very
 * origin, and others want the session meanwhile. */
static int wait_for_all(const struct nfs *x, const struct origin_body *body, struct err *e)
{
    char last;
    bool is_to_wait = x->limit == 1 && body->size_bytes > 0;
    return is_to_wait ? fill_piece(body, &last, 1, body->size_bytes - 1, e) : 0;
}

/* `conn`: NULL, or the session to use. `body`: NULL, or what is to be written. */
static int target_open(struct nfs *x, struct nfs_conn *conn, struct target *t, struct slice key,
                       const struct origin_body *body, atomic_bool *cancel, struct err *e)
{
    *t = (struct target){.nfs = x, .key = key, .conn = conn, .borrowed = conn != NULL};
    int r = nfs_key_path(key, t->path, &t->is_dir, e);
    if (r < 0 || conn)
        return r;
    if (!body || !body->slow)
        return nfs_conn_take(x, cancel, &t->conn, e);
    r = wait_for_all(x, body, e);
    return r < 0 ? r : nfs_conn_take_for_slow(x, cancel, &t->conn, e);
}

/* One writer of a file at a time looks at a condition and renames: makes If-Match atomic among the writers of
 * this node, through whichever bucket. Who waits keeps his session, and his place among the requests: who is
 * in has his own, and takes no other. */
static int enter(const struct target *t, const atomic_bool *cancel, struct key_order *x, struct err *e)
{
    char whole[ORIGIN_KEY_MAX_BYTES + NFS_PATH_SIZE];
    (void)snprintf(whole, sizeof(whole), "%s%s", t->nfs->path, t->path);
    uint64_t key = hash_mix(hash_table(slice_str(t->nfs->host)), hash_table(slice_str(whole)));
    return key_order_begin(x, key, /* alone= */ true) ? 0 : key_order_wait(x, cancel, e);
}

/* mkdir -p of path[0..n). */
static int make_dirs(struct nfs_conn *c, const char *path, size_t n)
{
    char part[NFS_PATH_SIZE];
    int r = 0;
    for (size_t i = 1; i <= n && r >= 0; i++) {
        if (i < n && path[i] != '/')
            continue;
        memcpy(part, path, i);
        part[i] = '\0';
        r = nfs_call_mkdir(c, part);
        if (r == -EEXIST)
            r = 0;
    }
    return r;
}

static size_t parent_of(const char *path)
{
    return (size_t)(strrchr(path, '/') - path);
}

/* ---- bytes ---- */

static int write_piece(struct nfs_conn *c, struct nfsfh *fh, const char *p, size_t n, uint64_t offset)
{
    for (size_t done = 0; done < n;) {
        int r = nfs_call_write(c, fh, p + done, n - done, offset + done);
        if (r <= 0)
            return r < 0 ? r : -EIO;
        done += (size_t)r;
    }
    return 0;
}

static int write_body(struct target *t, struct nfsfh *fh, const struct origin_body *body, struct err *e)
{
    size_t room = (size_t)MIN(body->size_bytes, (uint64_t)NFS_PIECE_BYTES);
    char _cleanup_free_ *piece = malloc(MAX(room, (size_t)1));
    if (!piece)
        return err_set(e, -ENOMEM, "no memory to write");
    for (uint64_t at = 0; at < body->size_bytes;) {
        size_t n = (size_t)MIN(body->size_bytes - at, (uint64_t)room);
        int r = fill_piece(body, piece, n, at, e);
        if (r < 0)
            return r;
        origin_moved(&t->nfs->base, n);
        r = write_piece(t->conn, fh, piece, n, at);
        if (r < 0)
            return nfs_error(t->conn, e, r, "write", t->key);
        at += n;
    }
    return 0;
}

/* Creates the reserved name, and the directories on the way to it when they are missing. */
static int create_tmp(struct target *t, struct nfsfh **ret, struct err *e)
{
    char text[ID_TEXT_SIZE];
    size_t parent = parent_of(t->path);
    file_tmp_id(text);
    (void)snprintf(t->tmp, sizeof(t->tmp), "%.*s/" FILE_TMP_PREFIX "%s", (int)parent, t->path, text);
    t->has_tmp = true; /* a CREATE that failed may have made it */
    int r = nfs_call_create(t->conn, t->tmp, ret);
    if (r == -ENOENT && parent > 0) {
        r = make_dirs(t->conn, t->path, parent);
        if (r >= 0)
            r = nfs_call_create(t->conn, t->tmp, ret);
    }
    if (r == -ENOTDIR)
        return err_set(e, -EINVAL, SLICE_FMT ": a name on the way to it is a file", SLICE_ARG(t->key));
    return r < 0 ? nfs_error(t->conn, e, r, "create", t->key) : 0;
}

/* By the server's rules or its file system: the job looks at what became of it, and says so. */
static bool is_refused(int r)
{
    return r == -EPERM || r == -EACCES || r == -EINVAL || r == -ENOTSUP;
}

/* What the metadata says of mode, owner and time; what may not be given the file keeps of its own. Who
 * gives a file away does not give away what it may do as its owner. */
static int keep_meta(struct target *t, const char *path, const struct nfs_stat_64 *now, struct slice meta)
{
    struct posix_meta p;
    posix_meta_decode(meta, t->is_dir, &p);
    uint32_t uid = p.has & POSIX_HAS_UID ? p.uid : (uint32_t)now->nfs_uid;
    uint32_t gid = p.has & POSIX_HAS_GID ? p.gid : (uint32_t)now->nfs_gid;
    uint32_t old = (uint32_t)now->nfs_mode & 07777, mode = p.has & POSIX_HAS_MODE ? p.mode & 07777 : old;
    if (!t->is_dir)
        mode &= ~(uint32_t)(S_ISUID | S_ISGID);
    bool posix = t->nfs->base.posix, gives = uid != (uint32_t)now->nfs_uid || gid != (uint32_t)now->nfs_gid;
    int r = posix && gives ? nfs_call_chown(t->conn, path, uid, gid) : 0;
    if (is_refused(r))
        r = 0;
    if (r >= 0 && posix && (gives || mode != old))
        r = nfs_call_chmod(t->conn, path, mode);
    if (is_refused(r))
        r = 0;
    if (r >= 0 && p.has & POSIX_HAS_MTIME && (posix || !t->is_dir))
        r = nfs_call_utimes(t->conn, path, p.mtime_ns);
    return r;
}

/* Writes the reserved name and commits it; its attributes are the object's. */
static int write_tmp(struct target *t, const struct origin_put *p, const struct origin_body *body,
                     struct nfs_stat_64 *ret_st, struct err *e)
{
    struct nfsfh *fh = NULL;
    int r = create_tmp(t, &fh, e);
    if (r < 0)
        return r;
    r = write_body(t, fh, body, e);
    if (r < 0) {
        (void)nfs_call_close(t->conn, fh);
        return r;
    }
    r = nfs_call_sync(t->conn, fh);
    int closed = nfs_call_close(t->conn, fh);
    r = r < 0 ? r : closed;
    *ret_st = (struct nfs_stat_64){0};
    if (r >= 0 && t->nfs->base.posix)
        r = nfs_call_stat(t->conn, t->tmp, ret_st);
    if (r >= 0)
        r = keep_meta(t, t->tmp, ret_st, p->meta);
    if (r >= 0)
        r = nfs_call_stat(t->conn, t->tmp, ret_st);
    if (r >= 0 && ret_st->nfs_size != body->size_bytes)
        return err_set(e, ERR_ORIGIN_SHORT, "the file has %" PRIu64 " bytes, %" PRIu64 " were written",
                       ret_st->nfs_size, body->size_bytes);
    return r < 0 ? nfs_error(t->conn, e, r, "sync", t->key) : 0;
}

/* ---- the name ---- */

static int check_etag(struct target *t, struct slice if_match, struct err *e)
{
    struct nfs_stat_64 st;
    char etag[TREE_ETAG_SIZE];
    if (if_match.n == 0)
        return 0;
    int r = nfs_call_stat(t->conn, t->path, &st);
    if (r == -ENOENT || (r >= 0 && !S_ISREG(st.nfs_mode)))
        return err_set(e, ERR_PRECONDITION, "there is no such file");
    if (r < 0)
        return nfs_error(t->conn, e, r, "stat", t->key);
    nfs_etag(&st, etag);
    if (file_matches(if_match, slice_str(etag)))
        return 0;
    return err_set(e, ERR_PRECONDITION, "the file's ETag is %s and not " SLICE_FMT, etag,
                   SLICE_ARG(if_match));
}

/* The reserved name goes with the target. */
static int place_new(struct target *t, struct err *e)
{
    int r = nfs_call_link(t->conn, t->tmp, t->path);
    if (r == -EEXIST)
        return err_set(e, ERR_PRECONDITION, "the file exists");
    if (r == -ENOTSUP || r == -EOPNOTSUPP || r == -EMLINK)
        return err_set(e, ERR_NOT_IMPLEMENTED,
                       "the server has no links, without which If-None-Match cannot be kept");
    return r < 0 ? nfs_error(t->conn, e, r, "name", t->key) : 0;
}

static int place_over(struct target *t, struct err *e)
{
    struct nfs_stat_64 st;
    int r = nfs_call_rename(t->conn, t->tmp, t->path);
    if (r >= 0) {
        t->has_tmp = false;
        return 0;
    }
    bool dir = r == -EISDIR || r == -ENOTEMPTY || r == -EEXIST || r == -ENOTDIR || r == -EINVAL;
    if (dir && nfs_call_stat(t->conn, t->path, &st) >= 0 && S_ISDIR(st.nfs_mode))
        return err_set(e, -EINVAL, SLICE_FMT ": a directory of that name is there", SLICE_ARG(t->key));
    return nfs_error(t->conn, e, r, "rename", t->key);
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
                   struct nfs_stat_64 *ret_st, struct err *e)
{
    if (body->size_bytes > 0)
        return file_no_bytes(e);
    int r = nfs_call_stat(t->conn, t->path, ret_st);
    if (r >= 0 && S_ISDIR(ret_st->nfs_mode) && p->if_none_match)
        return err_set(e, ERR_PRECONDITION, "the directory exists");
    origin_set_reach(p, ORIGIN_REACH_PERHAPS);
    r = make_dirs(t->conn, t->path, strlen(t->path));
    if (r >= 0)
        r = nfs_call_stat(t->conn, t->path, ret_st);
    if (r == -ENOTDIR || (r >= 0 && !S_ISDIR(ret_st->nfs_mode)))
        return err_set(e, -EINVAL, SLICE_FMT ": a file of that name is there", SLICE_ARG(t->key));
    if (r >= 0 && p->meta.n > 0 && t->nfs->base.posix) {
        r = keep_meta(t, t->path, ret_st, p->meta);
        r = r < 0 ? r : nfs_call_stat(t->conn, t->path, ret_st);
    }
    return r < 0 ? nfs_error(t->conn, e, r, "create", t->key) : 0;
}

static int put(struct nfs *x, struct nfs_conn *conn, const struct origin_put *p,
               const struct origin_body *body, struct arena *a, struct origin_attr *ret_attr, struct err *e)
{
    struct target _cleanup_(target_fini) t;
    struct nfs_stat_64 st;
    origin_set_reach(p, ORIGIN_REACH_NOTHING);
    int r = target_open(x, conn, &t, p->key, body, p->cancel, e);
    if (r == 0 && t.is_dir) {
        r = put_dir(&t, p, body, &st, e);
    } else if (r == 0) {
        r = write_tmp(&t, p, body, &st, e);
        if (r == 0)
            r = place(&t, p, e);
    }
    if (r == 0)
        *ret_attr = nfs_attr(t.conn, &st, a);
    return r;
}

int nfs_put(struct origin *o, const struct origin_put *p, const struct origin_body *body, struct arena *a,
            struct origin_attr *ret_attr, struct err *e)
{
    int r = put(nfs_of(o), NULL, p, body, a, ret_attr, e);
    tree_forget(&nfs_of(o)->tree, p->key); /* also after a failure: it may have happened */
    origin_count_request(o, "put", err_http_status(r < 0 ? r : 0));
    return r;
}

/* ---- remove ---- */

static int remove_dir(struct target *t, struct err *e)
{
    int r = nfs_call_rmdir(t->conn, t->path);
    if (r == -ENOTEMPTY || r == -EEXIST)
        return 0; /* as in S3: what lies below stays, and with it the directory */
    return r < 0 ? nfs_error(t->conn, e, r, "remove", t->key) : 0;
}

static int do_remove(struct nfs *x, struct slice key, struct slice if_match, struct err *e)
{
    struct target _cleanup_(target_fini) t;
    struct nfs_stat_64 st;
    int r = target_open(x, NULL, &t, key, /* body= */ NULL, NULL, e);
    if (r == -EINVAL) /* such an object cannot be there */
        return err_set(e, -ENOENT, "no such file");
    if (r < 0)
        return r;
    struct key_order _cleanup_(key_order_leave) order = {0};
    r = enter(&t, /* cancel= */ NULL, &order, e);
    if (r == 0 && t.is_dir)
        return remove_dir(&t, e);
    if (r == 0)
        r = check_etag(&t, if_match, e);
    if (r < 0)
        return r;
    r = nfs_call_unlink(t.conn, t.path);
    if ((r == -EISDIR || r == -EPERM) && nfs_call_stat(t.conn, t.path, &st) >= 0 && S_ISDIR(st.nfs_mode))
        return err_set(e, -ENOENT, SLICE_FMT " is no file", SLICE_ARG(key));
    return r < 0 ? nfs_error(t.conn, e, r, "remove", key) : 0;
}

int nfs_remove(struct origin *o, struct slice key, struct slice if_match, struct err *e)
{
    int r = do_remove(nfs_of(o), key, if_match, e);
    tree_forget(&nfs_of(o)->tree, key);
    origin_count_request(o, "delete", r < 0 ? err_http_status(r) : 204);
    return r;
}

/* ---- copy: read and written again, for NFSv3 has no other way ---- */

struct source {
    struct nfs_conn *conn;
    struct nfsfh *fh;
    uint64_t size;
    char etag[TREE_ETAG_SIZE];
};

/* The last bytes are given only if the file still is the one whose first bytes were. */
static ssize_t read_source(void *arg, void *p, size_t n, uint64_t offset)
{
    const struct source *s = arg;
    struct nfs_stat_64 st;
    char now[TREE_ETAG_SIZE];
    if (quit_is_now())
        return -ECANCELED;
    int got = nfs_call_read(s->conn, s->fh, p, n, offset);
    if (got < 0)
        return nfs_error_class(got);
    if (got == 0 || offset + (uint64_t)got < s->size)
        return got;
    int r = nfs_call_fstat(s->conn, s->fh, &st);
    if (r < 0)
        return nfs_error_class(r);
    nfs_etag(&st, now);
    return strcmp(now, s->etag) == 0 ? got : ERR_ORIGIN_SHORT;
}

static int copy_open(struct nfs *x, struct source *s, const struct origin_put *p, struct slice from,
                     struct slice if_match, struct arena *a, struct origin_attr *ret_attr, struct err *e)
{
    struct nfs_stat_64 st;
    int r = nfs_call_fstat(s->conn, s->fh, &st);
    if (r < 0)
        return nfs_error(s->conn, e, r, "stat", from);
    if (!S_ISREG(st.nfs_mode))
        return err_set(e, -ENOENT, SLICE_FMT " is no file", SLICE_ARG(from));
    s->size = st.nfs_size;
    nfs_etag(&st, s->etag);
    if (!file_matches(if_match, slice_str(s->etag)))
        return err_set(e, ERR_PRECONDITION, "the file's ETag is %s and not " SLICE_FMT, s->etag,
                       SLICE_ARG(if_match));
    struct origin_body body = {.size_bytes = s->size, .read = read_source, .arg = s};
    return put(x, s->conn, p, &body, a, ret_attr, e); /* one session: copies cannot wait for each other */
}

static int copy_from(struct nfs *x, struct slice from, struct slice to, struct slice if_match,
                     struct arena *a, struct origin_attr *ret_attr, struct err *e)
{
    char path[NFS_PATH_SIZE];
    bool is_dir;
    struct nfs_conn *_cleanup_(nfs_conn_givep) c = NULL;
    struct origin_put p = {.key = to};
    struct source s = {0};
    if (nfs_key_path(from, path, &is_dir, e) < 0)
        return err_set(e, -ENOENT, "no such file");
    int r = nfs_conn_take(x, NULL, &c, e);
    if (r < 0)
        return r;
    if (is_dir) {
        struct nfs_stat_64 st;
        struct origin_body none = {.read = read_source};
        r = nfs_call_stat(c, path, &st);
        return r < 0 ? nfs_error(c, e, r, "open", from) : put(x, c, &p, &none, a, ret_attr, e);
    }
    r = nfs_call_open(c, path, &s.fh);
    if (r < 0)
        return nfs_error(c, e, r, "open", from);
    s.conn = c;
    r = copy_open(x, &s, &p, from, if_match, a, ret_attr, e);
    (void)nfs_call_close(c, s.fh); /* of a file that was read */
    return r;
}

int nfs_copy(struct origin *o, struct slice from, struct slice to, struct slice if_match, struct arena *a,
             struct origin_attr *ret_attr, struct err *e)
{
    int r = copy_from(nfs_of(o), from, to, if_match, a, ret_attr, e);
    tree_forget(&nfs_of(o)->tree, to);
    origin_count_request(o, "copy", err_http_status(r < 0 ? r : 0));
    return r;
}

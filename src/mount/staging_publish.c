/*
 * Publishing what was written (contract in staging.h).
 *
 * What changed is known from the file itself, because passthrough and mapped writes do not pass this process:
 * the file is another one when its size or times are. fdatasync write-protects mapped pages, so that the next
 * store into one moves the times again; where nobody can have it mapped the node alone syncs it. Kernels
 * before 6.13, and later ones on some file systems, move times in steps of some ms, or of seconds, and a
 * change right after a publication could be missed: there, writes are not passed through but counted here
 * (staging_tells_changes).
 *
 * Invariants:
 *  1. The state that is remembered as published was taken before the bytes left: whatever changes meanwhile
 * counts as a change.
 *  2. Writers write into one file (`fd`) for the staging's whole life. When the node was restarted or the
 * file renamed, the node's staging file is gone: a new one is made, and each publication copies the bytes
 * there.
 *  3. What the disk did not take is published by nobody, also when the node was restarted, which then knows
 * of it no more (fault): pages may be as they were before. `fd` is an open file of our own, so that the
 * kernel tells us as well as the node.
 *  4. An error is returned to whoever asked for the publication, and the bytes stay: the next one tries
 * again. The last release does not repeat what failed before in the same state: then the node keeps the bytes
 * (STRAND), and only when it cannot they are lost, which the log says.
 *  5. Who publishes while somebody else cuts the file is told of no failure: what is there then is published.
 *  6. What could not be published is not tried again, unless it was changed, once its name has been written
 * anew: the close of a descriptor that a child inherited would put the older version over the newer one.
 *
 * Failure modes: the node's and the origin's errors.
 */
#include "mount/staging_internal.h"

#include "base/log.h"
#include "base/sys.h"
#include "mount/before.h"
#include "net/posix_meta.h"

#include <fcntl.h>

#define COPY_BYTES MIB
#define TRIES      3

/* ---- the node's staging file ---- */

int staging_target(struct mount *m, struct staging *s, int *ret_fd, struct err *e)
{
    _cleanup_buf_ struct buf key = BUF_INIT(MOUNT_KEY_MAX_BYTES), b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    int r = mount_key(m, s->node, SLICE_NULL, &key);
    if (r < 0)
        return r;
    struct wire_put_open_req req = {.bucket = slice_str(m->bucket),
                                    .key = buf_view(&key),
                                    .size = UINT64_MAX,
                                    .via = WIRE_VIA_MOUNT,
                                    .flags = WIRE_STAGED};
    struct wire_put_open_rep rep;
    uint64_t epoch = 0;
    r = client_call_at(m->client, &epoch, WIRE_OP_PUT_OPEN, &req, &b, &rep, e);
    if (r < 0)
        return r;
    s->handle = rep.handle;
    s->epoch = epoch;
    s->has_handle = true;
    s->is_committed = false;
    if (rep.fd < 0 && client_passes_fds(m->client))
        return err_set(e, ERR_PROTOCOL, "the node gave no staging file");
    *ret_fd = rep.fd;
    return 0;
}

void staging_drop_target(struct mount *m, struct staging *s)
{
    if (!s->has_handle)
        return;
    struct wire_put_abort_req req = {.handle = s->handle};
    struct wire_put_abort_rep rep;
    struct err ignored = {0}; /* a node that is gone has dropped it */
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    if (s->epoch == client_epoch(m->client))
        (void)client_call_at(m->client, &s->epoch, WIRE_OP_PUT_ABORT, &req, &b, &rep, &ignored);
    s->has_handle = false;
}

static int copy_bytes(int from, int to, uint64_t size, struct err *e)
{
    _cleanup_free_ char *piece = malloc(COPY_BYTES);
    if (!piece)
        abort();
    int r = 0;
    for (uint64_t at = 0; r == 0 && at < size; at += COPY_BYTES) {
        size_t n = MIN((uint64_t)COPY_BYTES, size - at);
        r = sys_pread_all(from, piece, n, at);
        if (r == 0)
            r = sys_pwrite_all(to, piece, n, at);
    }
    if (r == 0)
        r = sys->ftruncate(to, size);
    return r < 0 ? err_errno(e, r, "copy of the staging file") : 0;
}

static int send_piece(struct mount *m, struct staging *s, struct slice data, uint64_t at, struct err *e)
{
    struct wire_put_write_req req = {.handle = s->handle, .offset = at, .data = data};
    struct wire_put_write_rep rep;
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    int r = client_call_at(m->client, &s->epoch, WIRE_OP_PUT_WRITE, &req, &b, &rep, e);
    if (r < 0 && (r == -EBADF || s->epoch != client_epoch(m->client))) {
        s->has_handle = false; /* the node was restarted, or the connection broke: all is sent again */
        return -EBADF;
    }
    return r;
}

/* The same where the node gives no file. */
static int send_copy(struct mount *m, struct staging *s, uint64_t size, struct err *e)
{
    _cleanup_free_ char *piece = malloc(COPY_BYTES);
    if (!piece)
        abort();
    int r = 0;
    for (uint64_t at = 0; r == 0 && at < size; at += COPY_BYTES) {
        size_t n = MIN((uint64_t)COPY_BYTES, size - at);
        r = sys_pread_all(staging_fd(s), piece, n, at);
        if (r < 0)
            return err_errno(e, r, "copy of the staging file");
        r = send_piece(m, s, slice_of(piece, n), at, e);
    }
    return r;
}

/* The kernel does not tell it again: from here on a process that takes over knows of it, too. */
static void note_fault(struct staging *s, int r)
{
    atomic_store(&s->fault, r);
    if (s->kept)
        atomic_store(&s->kept->fault, r);
}

/* What the disk did not take, as the kernel has told us now or before. */
static int look_for_fault(struct staging *s, bool waits, struct err *e)
{
    int r = atomic_load(&s->fault) < 0 ? 0 : sys_take_fault(staging_fd(s), waits);
    if (r < 0)
        note_fault(s, r);
    r = atomic_load(&s->fault);
    return r < 0 ? err_errno(e, r, "what was written to the staging file") : 0;
}

/* Makes the node's staging file hold the bytes, and its handle usable. */
static int prepare(struct mount *m, struct staging *s, uint64_t size, struct err *e)
{
    int r;
    if (atomic_exchange(&s->was_faulty, false))
        staging_drop_target(m, s);
    if (!s->has_handle) {
        int fd = -1;
        r = staging_target(m, s, &fd, e);
        if (r < 0) {
            staging_drop_target(m, s);
            return r;
        }
        macro_close(&s->target_fd);
        s->target_fd = fd;
    }
    bool is_sent = !client_passes_fds(m->client), is_copy = is_sent || s->target_fd >= 0;
    if (is_sent)
        r = send_copy(m, s, size, e);
    else
        r = is_copy ? copy_bytes(staging_fd(s), s->target_fd, size, e) : 0;
    return r == 0 && is_copy ? look_for_fault(s, /* waits= */ true, e) : r;
}

/* Mode, owner and time as they are now: of the bytes that were seen. */
static int own_meta(struct mount *m, struct staging *s, struct buf *b)
{
    LOCK_SCOPE(node_table_lock(m->nodes));
    const struct node *n = s->node;
    struct posix_meta p = {.has = n->has_owner ? POSIX_HAS_ALL : POSIX_HAS_MTIME,
                           .mode = n->mode,
                           .uid = n->uid,
                           .gid = n->gid,
                           .mtime_ns = staging_time_locked(s, &s->seen_stat)};
    return posix_meta_encode(&p, b);
}

/* is_new: the bytes are not there yet, and mode, owner and time go with them. */
static int commit(struct mount *m, struct staging *s, uint64_t size, bool is_new, bool is_last, struct err *e)
{
    _cleanup_buf_ struct buf meta = BUF_INIT(POSIX_META_MAX_BYTES);
    bool has_meta = m->posix && is_new;
    if (has_meta && own_meta(m, s, &meta) < 0)
        return err_set(e, -EINVAL, "the file's time cannot be kept");
    bool is_sent = !client_passes_fds(m->client); /* whole each time, and nobody here has that file */
    if (is_sent)
        is_last = true;
    else if (s->target_fd < 0 && atomic_load(&s->may_be_mapped))
        is_last = false; /* published, but the file stays ours and is dropped by staging_release */
    struct wire_put_commit_req req = {.handle = s->handle,
                                      .size = size,
                                      .meta = buf_view(&meta),
                                      .flags =
                                          (is_last ? 0 : WIRE_KEEP) | (has_meta ? WIRE_META : 0) |
                                          (!is_sent && atomic_load(&s->may_be_mapped) ? 0 : WIRE_UNMAPPED)};
    struct wire_put_commit_rep rep;
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    int r = client_call_at(m->client, &s->epoch, WIRE_OP_PUT_COMMIT, &req, &b, &rep, e);
    if (r < 0 && (r == -EBADF || s->epoch != client_epoch(m->client))) {
        s->has_handle = false; /* the node was restarted: the same bytes may be sent again */
        return -EBADF;
    }
    if (r < 0)
        return r;
    s->is_committed = true;
    s->has_handle = !is_last;
    atomic_store(&s->is_published, true);
    if (!is_new && m->posix) /* modes and times may have been changed since, without the bytes */
        return 0;
    struct node_attr a = mount_node_attr(m, &rep.attr, /* has_meta= */ true);
    a.size_bytes = size;
    node_set_attr(m->nodes, s->node, &a);
    return 0;
}

/* ---- what changed ---- */

static bool is_same_time(struct timespec a, struct timespec b)
{
    return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

/* Not by ctime: it also moves when the node gives the file a name, or takes one away. Nobody sets the file's
 * mtime, for a time that is set is kept beside it (staging_set_time_locked). */
static bool is_same(const struct stat *a, const struct stat *b)
{
    return a->st_size == b->st_size && is_same_time(a->st_mtim, b->st_mtim);
}

/* Where the disk does not even say how large the file is, that is no size of 0. */
static int look(struct staging *s, struct stat *ret_stat, uint64_t *ret_changes)
{
    *ret_changes = atomic_load(&s->n_changes);
    return sys->fstat(staging_fd(s), ret_stat);
}

enum seen { AS_SEEN, CHANGED_SINCE, UNSEEN };

/* What became of the file since it was last published, or that failed. UNSEEN: the disk does not tell. */
static enum seen look_again(struct staging *s)
{
    struct stat now;
    uint64_t changes;
    if (look(s, &now, &changes) < 0)
        return UNSEEN;
    bool is_as_seen =
        (s->is_clean || s->has_failed) && changes == s->seen_changes && is_same(&now, &s->seen_stat);
    return is_as_seen ? AS_SEEN : CHANGED_SINCE;
}

void staging_mark_clean(struct staging *s)
{
    s->is_clean = look(s, &s->seen_stat, &s->seen_changes) == 0; /* else it is published once more */
}

bool staging_is_clean_alone(struct staging *s)
{
    return s->is_clean && look_again(s) == AS_SEEN;
}

/* ---- publishing ---- */

static int send_bytes(struct mount *m, struct staging *s, uint64_t size, bool is_last, struct err *e)
{
    int r = look_for_fault(s, /* waits= */ false, e);
    bool tries = r == 0;
    for (int i = 0; tries && i < TRIES; i++) {
        r = prepare(m, s, size, e);
        if (r == 0)
            r = commit(m, s, size, /* is_new= */ true, is_last, e);
        tries = r == -EBADF;
    }
    if (r < 0) { /* the node may have been told of a fault */
        struct err ignored = {0};
        (void)look_for_fault(s, /* waits= */ true, &ignored);
        if (s->target_fd >= 0 ||
            !client_passes_fds(
                m->client)) /* of that file, and takes no other commit of it: the next try makes a new one */
            staging_drop_target(m, s);
    }
    return r;
}

static int publish_once(struct mount *m, struct staging *s, bool is_last, struct err *e)
{
    struct stat seen;
    uint64_t changes;
    /* First the look: a store into a page that was touched after it, and before pages are write-protected,
     * goes with these bytes or, by another store's new time, with the next; after the protection each store
     * moves the time on. */
    int r = look(s, &seen, &changes);
    if (r < 0)
        return err_errno(e, r, "state of the staging file");
    r = atomic_load(&s->may_be_mapped) ? sys->fdatasync(staging_fd(s)) : 0;
    if (r < 0 && atomic_load(&s->fault) == 0)
        note_fault(s, r);
    s->seen_stat = seen;
    s->seen_changes = changes;
    uint64_t size = (uint64_t)s->seen_stat.st_size;
    if (s->is_of_before) /* lest what that one asked the node for comes after this, or removes it */
        before_wait();
    bool may_before = s->may_be_published;
    s->may_be_published = true; /* the origin may have it whatever the answer is, or that it does not come, */
    if (s->kept)                /* also to a process that is killed meanwhile */
        s->kept->may_be_published = true;
    r = send_bytes(m, s, size, is_last, e);
    if (r == ERR_ORIGIN_DENIED)
        s->may_be_published = may_before;
    return r;
}

/* Whether somebody changed the file meanwhile so that what was to be sent was not there any more: it was cut,
 * by another one's O_TRUNC, or cut and written anew. */
static bool was_cut(struct staging *s, int code)
{
    struct stat now;
    uint64_t changes;
    if (look(s, &now, &changes) < 0)
        return false;
    bool is_other = changes != s->seen_changes || !is_same(&now, &s->seen_stat);
    return now.st_size < s->seen_stat.st_size || (is_other && (code == -ENODATA || code == ERR_PROTOCOL));
}

static void set_overtaken_locked(struct staging *s, bool is_overtaken)
{
    s->is_overtaken = is_overtaken;
    if (s->kept)
        s->kept->is_overtaken = is_overtaken;
}

/* Files that had the same name until a close could not publish them are older than this one from now on. */
static void overtake(struct mount *m, const struct staging *by)
{
    LOCK_SCOPE(node_table_lock(m->nodes));
    const struct node *there = by->node;
    for (struct staging *s = m->stagings.first; s; s = s->next) {
        const struct node *n = s->node;
        bool is_left = s != by && s->state == STAGING_READY; /* one that ends is not tried again */
        if (is_left && !n->is_attached && !n->is_unlinked && n->parent == there->parent &&
            slice_eq(slice_of(n->name, n->name_n), slice_of(there->name, there->name_n)))
            set_overtaken_locked(s, true);
    }
}

/* What was written since is the later one. */
static bool is_overtaken(struct mount *m, struct staging *s, enum seen seen)
{
    LOCK_SCOPE(node_table_lock(m->nodes));
    if (seen == CHANGED_SINCE)
        set_overtaken_locked(s, false);
    return s->is_overtaken;
}

static int publish_bytes(struct mount *m, struct staging *s, bool is_last, struct err *e)
{
    int r;
    for (int i = 0; (r = publish_once(m, s, is_last, e)) < 0 && i + 1 < TRIES && was_cut(s, r); i++)
        ;
    r = r == -EBADF ? -EIO : r;
    s->is_clean = r == 0;
    s->has_failed = r < 0;
    s->failed_code = r;
    (void)snprintf(s->failed_text, sizeof(s->failed_text), "%s", e && e->text[0] ? e->text : err_text(r));
    if (r == 0)
        overtake(m, s);
    return r;
}

/* Nothing changed since the last publication: the node may make the file its cached copy. */
static void hand_over(struct mount *m, struct staging *s)
{
    struct err e = {0};
    bool worth = s->has_handle && s->is_committed && s->epoch == client_epoch(m->client);
    if (worth &&
        commit(m, s, (uint64_t)s->seen_stat.st_size, /* is_new= */ false, /* is_last= */ true, &e) < 0)
        log_debug("mount", "written, but not kept in the cache: %s", e.text);
}

int staging_publish_alone(struct mount *m, struct staging *s, bool is_last, struct err *e)
{
    if (staging_is_unlinked(m, s))
        return 0;
    enum seen seen = look_again(s);
    if (seen == AS_SEEN && s->is_clean) {
        if (is_last)
            hand_over(m, s);
        return 0;
    }
    if (seen == AS_SEEN && is_last) /* failed in this very state, and a flush or fsync said so */
        return 0;
    if (is_overtaken(m, s, seen))
        return err_set(e, s->failed_code, "%s", s->failed_text);
    return publish_bytes(m, s, is_last, e);
}

/* ---- what could not be published ---- */

/* The node goes by the time of its file where it knows nothing else of how old the bytes are: one that was
 * made anew is as old as ours, not of now. Never of what is still to be published, of which the node tells
 * by the time whether it has it already. */
static void set_own_time(struct staging *s)
{
    const struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, s->seen_stat.st_mtim};
    if (s->target_fd >= 0)
        (void)futimens(s->target_fd, times);
}

static int strand_once(struct mount *m, struct staging *s, uint64_t size, struct err *e)
{
    _cleanup_buf_ struct buf meta = BUF_INIT(POSIX_META_MAX_BYTES), b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    struct wire_strand_rep rep;
    int r = prepare(m, s, size, e);
    if (r < 0)
        return r;
    set_own_time(s);
    if (m->posix && own_meta(m, s, &meta) < 0)
        buf_clear(&meta); /* a time that no object can have */
    lock_take(node_table_lock(m->nodes));
    _cleanup_free_ char *etag =
        slice_dup(slice_of(s->node->etag, atomic_load(&s->is_published) ? s->node->etag_n : 0));
    lock_drop(node_table_lock(m->nodes));
    struct wire_strand_req req = {.handle = s->handle,
                                  .size = size,
                                  .meta = buf_view(&meta),
                                  .base = slice_str(etag),
                                  .error = slice_str(s->failed_text)};
    r = client_call_at(m->client, &s->epoch, WIRE_OP_STRAND, &req, &b, &rep, e);
    if (r < 0 && (r == -EBADF || s->epoch != client_epoch(m->client))) {
        s->has_handle = false; /* the node was restarted */
        return -EBADF;
    }
    return r;
}

int staging_strand(struct mount *m, struct staging *s, struct err *e)
{
    if (s->is_clean || !s->has_failed || staging_is_unlinked(m, s))
        return 0;
    int r = look_for_fault(s, /* waits= */ true, e);
    r = r < 0 ? r : -EBADF;
    for (int i = 0; i < TRIES && r == -EBADF; i++)
        r = strand_once(m, s, (uint64_t)s->seen_stat.st_size, e);
    return r == -EBADF ? -EIO : r;
}

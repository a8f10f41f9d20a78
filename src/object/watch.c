/*
 * Telling mounts that cached bytes are no longer what a key has, so that what they hold open may be used
 * again without asking.
 *
 * WATCH gives the reading end of a pipe. Whenever the store lets go of an entry of the bucket (replaced,
 * removed, evicted), or would like to, the hash of its key (hash_placement, 8 bytes, little endian) is
 * written into it. The same when another version of an entry that is in use has been heard of.
 *
 * Of a scratch bucket the records are enum wire_watch: whether the watcher is the only one, and that somebody
 * else changed something.
 *
 * WATCH_NAMES gives another pipe, of a mirror bucket: whole keys (net/wire_names.h), of whatever an answer
 * about a name could say otherwise from now on, cached or not: kernels believe also that a name is absent,
 * and a hash does not tell which directory to ask for it.
 *
 * Invariants:
 *  1. The record is in the pipe before the operation that changed the key is acknowledged, and after all
 * that an answer about it is made of has changed.
 *  2. Nobody waits for a watcher: when its pipe is full it is closed.
 *  3. The end of the pipe means that anything may have changed. The node's own end brings it about, too.
 */
#include "object/object_internal.h"

#include "base/hash.h"
#include "base/le.h"
#include "base/metrics.h"
#include "base/sys.h"
#include "net/wire_names.h"

#include <fcntl.h>
#include <unistd.h>

#define OF_SESSION_MAX   256         /* each is a pipe, and told of what changes; a mount has two */
#define NAMES_PIPE_BYTES (256 * KIB) /* some thousand names that the mount has not taken yet */

static_assert(ORIGIN_KEY_MAX_BYTES == WIRE_NAME_MAX_BYTES, "each key has a record");

struct watch {
    struct object_service *service;
    struct watch *next; /* covered by service->watch_lock, as is: */
    int write_fd;       /* -1: the end has come */
    int read_fd;
    uint64_t bucket_id, place;
    const struct object_session *session; /* whose own changes are no news to it */
    bool is_tree;                         /* of a scratch bucket */
    char *prefix;                         /* of names; NULL: of the hashes of their keys */
    size_t prefix_n;
};

static void end_locked(struct watch *w)
{
    macro_close(&w->write_fd);
    w->write_fd = -1;
}

static void write_locked(struct watch *w, const uint8_t *record, size_t n)
{
    if (w->write_fd >= 0 && write(w->write_fd, record, n) != (ssize_t)n)
        end_locked(w);
}

static void tell_locked(struct watch *w, uint64_t what)
{
    uint8_t record[8];
    le_put64(record, what);
    write_locked(w, record, sizeof(record));
}

bool watch_note(void *arg, struct slice store_key)
{
    struct object_service *s = arg;
    if (atomic_load(&s->n_watches) == 0 || store_key.n < sizeof(uint64_t))
        return false;
    uint64_t place = be_get64(store_key.p);
    uint64_t hash = hash_placement(slice_sub(store_key, sizeof(place), store_key.n));
    bool any = false;
    LOCK_SCOPE(&s->watch_lock);
    for (struct watch *w = s->watches; w; w = w->next)
        if (w->place == place && !w->prefix) {
            tell_locked(w, hash);
            any = true;
        }
    return any;
}

/* ---- names ---- */

static void tell_name(struct object_service *s, const struct object_session *except, const struct bucket *b,
                      struct slice key, uint32_t flags)
{
    uint8_t record[WIRE_NAME_RECORD_BYTES];
    if (atomic_load(&s->n_name_watches) == 0 || key.n == 0 || key.n > WIRE_NAME_MAX_BYTES)
        return;
    size_t n = wire_name_put(record, key, flags);
    LOCK_SCOPE(&s->watch_lock);
    for (struct watch *w = s->watches; w; w = w->next)
        if (w->prefix && w->place == b->place && (!except || w->session != except) &&
            slice_starts(key, slice_of(w->prefix, w->prefix_n)))
            write_locked(w, record, n);
}

void watch_changed(struct object_service *s, const struct bucket *b, struct slice key)
{
    tell_name(s, /* except= */ NULL, b, key, /* flags= */ 0);
}

void watch_gone(struct object_service *s, const struct object_session *by, const struct bucket *b,
                struct slice key)
{
    tell_name(s, by, b, key, WIRE_NAME_GONE);
}

bool watch_listens(void *arg)
{
    struct object_service *s = arg;
    return atomic_load(&s->n_name_watches) > 0;
}

/* Another version than the cached one was heard of, by a listing for one: an open would ask the origin now,
 * and whoever has been told of the version may expect to find it. Entries that nobody uses are kept by
 * nobody. */
void watch_learned(void *arg, const struct bucket *b, struct slice key, bool is_news, bool is_gone)
{
    struct object_service *s = arg;
    if (is_news)
        tell_name(s, /* except= */ NULL, b, key, is_gone ? WIRE_NAME_GONE : 0);
    if (atomic_load(&s->n_watches) == 0 || key.n > ORIGIN_KEY_MAX_BYTES)
        return;
    _cleanup_buf_ struct buf k = BUF_INIT(ORIGIN_KEY_MAX_BYTES + 16);
    _cleanup_(extent_unrefp) struct extent *x = NULL;
    object_store_key(b, key, &k);
    if (store_find_used(s->config.store, buf_view(&k), &x) < 0)
        return;
    _cleanup_(arena_freep) struct arena *a = arena_new(4 * ATTR_BLOB_MAX_BYTES);
    struct attr known;
    if (object_entry_attr(s, x, a, &known) == 0 && object_heard_otherwise(s, b, key, &known, a))
        (void)watch_note(s, buf_view(&k));
}

void watch_end_bucket(struct object_service *s, uint64_t bucket_id)
{
    LOCK_SCOPE(&s->watch_lock);
    for (struct watch *w = s->watches; w; w = w->next)
        if (w->bucket_id == bucket_id)
            end_locked(w);
}

void watch_end_users(struct object_service *s)
{
    LOCK_SCOPE(&s->watch_lock);
    for (struct watch *w = s->watches; w; w = w->next)
        if (w->session->access_key)
            end_locked(w);
}

/* ---- scratch buckets ---- */

static unsigned count_trees_locked(const struct object_service *s, uint64_t bucket_id, struct watch **ret_any)
{
    unsigned n = 0;
    for (struct watch *w = s->watches; w; w = w->next)
        if (w->is_tree && w->bucket_id == bucket_id) {
            *ret_any = w;
            n++;
        }
    return n;
}

static void tell_trees_locked(struct object_service *s, uint64_t bucket_id,
                              const struct object_session *except, enum wire_watch what)
{
    for (struct watch *w = s->watches; w; w = w->next)
        if (w->is_tree && w->bucket_id == bucket_id && (!except || w->session != except))
            tell_locked(w, what);
}

/* Who watches a tree has come or gone. */
static void tell_company_locked(struct object_service *s, uint64_t bucket_id)
{
    struct watch *any = NULL;
    unsigned n = count_trees_locked(s, bucket_id, &any);
    if (n == 1)
        tell_locked(any, WIRE_WATCH_ALONE);
    else if (n > 1)
        tell_trees_locked(s, bucket_id, NULL, WIRE_WATCH_SHARED);
}

bool watch_has_trees(const struct object_service *s)
{
    return atomic_load(&s->n_watches) > 0;
}

void watch_tree_changed(const struct object_session *ses, uint64_t bucket_id)
{
    struct object_service *s = ses->service;
    if (!watch_has_trees(s))
        return;
    LOCK_SCOPE(&s->watch_lock);
    tell_trees_locked(s, bucket_id, ses, WIRE_WATCH_CHANGED);
}

void watch_bucket_changed(struct object_service *s, uint64_t bucket_id)
{
    if (!watch_has_trees(s))
        return;
    LOCK_SCOPE(&s->watch_lock);
    tell_trees_locked(s, bucket_id, NULL, WIRE_WATCH_CHANGED);
}

/* ---- life ---- */

void watch_free(struct watch *w)
{
    if (!w)
        return;
    struct object_service *s = w->service;
    lock_take(&s->watch_lock);
    struct watch **at = &s->watches;
    while (*at != w)
        at = &(*at)->next;
    *at = w->next;
    (void)atomic_fetch_sub(w->prefix ? &s->n_name_watches : &s->n_watches, 1);
    if (w->is_tree)
        tell_company_locked(s, w->bucket_id);
    lock_drop(&s->watch_lock);
    macro_close(&w->write_fd);
    macro_close(&w->read_fd);
    free(w->prefix);
    free(w);
}

struct watch *watch_company(const struct object_session *ses, const struct bucket *b)
{
    struct object_service *s = ses->service;
    struct watch *w = calloc(1, sizeof(*w));
    assert(w);
    *w = (struct watch){.service = s,
                        .read_fd = -1,
                        .write_fd = -1,
                        .bucket_id = b->id,
                        .place = b->place,
                        .session = ses,
                        .is_tree = true};
    LOCK_SCOPE(&s->watch_lock);
    w->next = s->watches;
    s->watches = w;
    (void)atomic_fetch_add(&s->n_watches, 1);
    tell_company_locked(s, w->bucket_id);
    return w;
}

/* prefix: of names; NULL: of hashes, or of a tree. */
static int watch_new(const struct object_session *ses, const struct bucket *b, const struct slice *prefix,
                     struct watch **ret)
{
    struct object_service *s = ses->service;
    int fds[2];
    if (pipe2(fds, O_CLOEXEC) < 0)
        return -errno;
    if (fcntl(fds[1], F_SETFL, O_NONBLOCK) < 0) {
        int r = -errno;
        macro_close(&fds[0]);
        macro_close(&fds[1]);
        return r;
    }
    struct watch *w = calloc(1, sizeof(*w));
    assert(w);
    *w = (struct watch){.service = s,
                        .read_fd = fds[0],
                        .write_fd = fds[1],
                        .bucket_id = b->id,
                        .place = b->place,
                        .session = ses,
                        .prefix = prefix ? slice_dup(*prefix) : NULL,
                        .prefix_n = prefix ? prefix->n : 0,
                        .is_tree = bucket_is_scratch(b)};
    if (prefix) /* refused to who has too many of that size: then it is full sooner */
        (void)fcntl(fds[1], F_SETPIPE_SZ, (int)NAMES_PIPE_BYTES);
    LOCK_SCOPE(&s->watch_lock);
    w->next = s->watches;
    s->watches = w;
    (void)atomic_fetch_add(prefix ? &s->n_name_watches : &s->n_watches, 1);
    if (w->is_tree)
        tell_company_locked(s, w->bucket_id);
    else if (atomic_load(&b->retired)) /* perhaps of another place now, after those who watched were told */
        end_locked(w);
    *ret = w;
    return 0;
}

static bool has_many(const struct object_session *ses)
{
    unsigned n = 0;
    LOCK_SCOPE(&ses->service->watch_lock);
    for (const struct watch *w = ses->service->watches; w; w = w->next)
        n += w->session == ses;
    return n >= OF_SESSION_MAX;
}

/* Begins a watch of the bucket; it is the session's. */
static int begin(struct object_session *ses, const struct bucket *b, const struct slice *prefix,
                 uint64_t *ret_handle, int *ret_fd, struct err *e)
{
    struct watch *w = NULL;
    uint64_t handle;
    if (has_many(ses))
        return err_set(e, -EMFILE, "too many watches: one session may have %d", OF_SESSION_MAX);
    int r = watch_new(ses, b, prefix, &w);
    if (r < 0)
        return err_errno(e, r, "pipe");
    int fd = w->read_fd;
    r = session_put(ses, HANDLE_WATCH, w, &handle);
    if (r < 0) {
        watch_free(w);
        return session_no_room(r, e);
    }
    *ret_handle = handle;
    *ret_fd = fd;
    return 0;
}

int op_watch(struct object_session *ses, const struct wire_watch_req *req, struct arena *a,
             struct wire_watch_rep *rep, struct err *e)
{
    (void)a;
    struct bucket *_cleanup_(bucket_unrefp) b = NULL;
    int r = bucket_find(ses->service->buckets, req->bucket, &b, e);
    return r < 0 ? r : begin(ses, b, NULL, &rep->handle, &rep->fd, e);
}

int op_watch_names(struct object_session *ses, const struct wire_watch_names_req *req, struct arena *a,
                   struct wire_watch_names_rep *rep, struct err *e)
{
    (void)a;
    struct bucket *_cleanup_(bucket_unrefp) b = NULL;
    int r = bucket_find(ses->service->buckets, req->bucket, &b, e);
    if (r < 0)
        return r;
    if (bucket_is_scratch(b))
        return err_set(e, -EINVAL, "bucket '%s' has no origin: WATCH tells of its names", b->name);
    if (req->prefix.n > WIRE_NAME_MAX_BYTES)
        return err_set(e, -ENAMETOOLONG, "a prefix of %zu bytes, at most %d are allowed", req->prefix.n,
                       WIRE_NAME_MAX_BYTES);
    return begin(ses, b, &req->prefix, &rep->handle, &rep->fd, e);
}

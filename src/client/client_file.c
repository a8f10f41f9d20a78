/*
 * Reading one version of an object (contract in client_file.h).
 *
 * A read asks the node to have the bytes there (FETCH), then takes them from the cache's own file by its
 * descriptor, or from the reply. A sequential reader of small pieces asks for WINDOW_BYTES at a time and
 * remembers how far the bytes are there, so that most of its reads make no call.
 *
 * Invariants:
 *  1. All bytes are of the version whose ETag was seen at open: a file is opened again only with If-Match, by
 * the name and the ETag that it has since it was renamed. Of an origin that tells no version it is the same
 * one only in the same file of the cache.
 *  2. A read from the descriptor lies in a range that the node has said to be there, on this very descriptor:
 * `ready` is forgotten with the descriptor.
 *  3. A descriptor is closed only when no read uses it: a reopened file keeps the old ones until then (struct
 * source is counted).
 *
 * Failure modes: -ESTALE once the version is gone; -EIO when a descriptor ends before the object does; the
 * node's and the origin's errors pass through.
 */
#include "client/client_file.h"

#include "base/lock.h"
#include "base/sys.h"

#include <fcntl.h>
#include <stdatomic.h>

#define FILE_MAGIC         0x636c6669u
#define WINDOW_BYTES       MIB
#define REOPEN_TRIES       4
#define HIGH_FD            1024
#define FETCH_INLINE_BYTES (4 * MIB) /* most bytes asked for in one reply */

/* One handle at the node with its descriptor. */
struct source {
    _Atomic uint32_t refs;
    uint64_t handle, epoch;
    int fd; /* -1: bytes come inline */
    _Atomic bool complete;
    _Atomic uint64_t missing; /* bytes not there when it was opened, less those read since */
};

struct client_file {
    uint32_t magic;
    struct client *c;
    char *bucket, *key, *etag, *content_type, *meta;
    size_t bucket_n, key_n;
    bool no_fd, high_fd;
    struct client_attr attr;
    uint64_t valid_ms;
    _Atomic uint64_t read_cached, read_origin;

    struct lock lock; /* covers what follows */
    struct source *source;
    char *now_key, *now_etag;       /* as it is called since it was renamed; NULL: as it was opened */
    bool is_moved;                  /* since `source` was opened */
    uint64_t ready_from, ready_end; /* known to be there, of `source` */
    uint64_t last_end, last_n;      /* where the last client_file_pread ended, and its bytes */
    bool is_stale;
};

/* ---- sources ---- */

static struct source *source_ref(struct source *s)
{
    (void)atomic_fetch_add(&s->refs, 1);
    return s;
}

static void source_unref(struct source *s)
{
    if (!s || atomic_fetch_sub(&s->refs, 1) != 1)
        return;
    macro_close(&s->fd);
    free(s);
}
DEFINE_CLEANUP(struct source, source_unref)

static struct source *current(struct client_file *f)
{
    LOCK_SCOPE(&f->lock);
    return source_ref(f->source);
}

/* ---- opening ---- */

/* The numbers below are left to those who need them; where there are none above, it stays. */
static int move_up(int fd)
{
    int high = fd < 0 || fd >= HIGH_FD ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, HIGH_FD);
    if (high < 0)
        return fd;
    macro_close(&fd);
    return high;
}

static int ask_open(struct client *c, const struct client_file_open *o, struct buf *b,
                    struct wire_open_rep *rep, struct source **ret, struct err *e)
{
    struct wire_open_req req = {
        .bucket = o->bucket,
        .key = o->key,
        .if_match = o->if_match,
        .offset = o->offset,
        .expect = o->expect,
        .flags = client_no_wait(c),
    };
    uint64_t epoch = 0;
    req.via = client_via(c);
    int r = client_call_at(c, &epoch, WIRE_OP_OPEN, &req, b, rep, e);
    if (r < 0)
        return r;
    struct source *s = calloc(1, sizeof(*s));
    if (!s)
        abort();
    atomic_init(&s->refs, 1);
    s->handle = rep->handle;
    s->epoch = epoch;
    s->fd = rep->fd;
    atomic_init(&s->missing, rep->attr.size_bytes - MIN(rep->present, rep->attr.size_bytes));
    if (o->no_fd) {
        macro_close(&s->fd);
        s->fd = -1;
    }
    if (o->high_fd)
        s->fd = move_up(s->fd);
    atomic_init(&s->complete, rep->state == WIRE_COMPLETE);
    *ret = s;
    return 0;
}

static struct client_file *file_new(struct client *c, const struct client_file_open *o,
                                    const struct wire_attr *a)
{
    struct client_file *f = calloc(1, sizeof(*f));
    if (!f)
        abort();
    f->magic = FILE_MAGIC;
    f->c = c;
    f->bucket = slice_dup(o->bucket);
    f->bucket_n = o->bucket.n;
    f->key = slice_dup(o->key);
    f->key_n = o->key.n;
    f->etag = slice_dup(a->etag);
    f->content_type = slice_dup(a->content_type);
    f->meta = slice_dup(a->meta);
    f->no_fd = o->no_fd;
    f->high_fd = o->high_fd;
    f->attr = (struct client_attr){
        .size_bytes = a->size_bytes,
        .mtime_ns = a->mtime_ns,
        .etag = f->etag,
        .content_type = f->content_type,
        .meta = f->meta,
    };
    lock_init(&f->lock, LOCK_LEAF);
    return f;
}

int client_file_open(struct client *c, const struct client_file_open *o, struct client_file **ret,
                     struct err *e)
{
    assert(c != NULL && o != NULL && ret != NULL);
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    struct wire_open_rep rep;
    struct source *s;
    int r = ask_open(c, o, &b, &rep, &s, e);
    if (r < 0)
        return r;
    struct client_file *f = file_new(c, o, &rep.attr);
    f->source = s;
    f->valid_ms = rep.valid_ms;
    *ret = f;
    return 0;
}

/* Ends it at the node, too, unless its session is over. */
static void source_drop(struct client_file *f, struct source *s)
{
    struct wire_close_req req = {
        .handle = s->handle,
        .read_cached = atomic_exchange(&f->read_cached, 0),
        .read_origin = atomic_exchange(&f->read_origin, 0),
    };
    struct wire_close_rep rep;
    struct err ignored = {0}; /* a node that is gone has closed it */
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    if (s->epoch == client_epoch(f->c))
        (void)client_call_at(f->c, &s->epoch, WIRE_OP_CLOSE, &req, &b, &rep, &ignored);
    source_unref(s);
}

void client_file_moved(struct client_file *f, struct slice from, struct slice to, struct slice etag)
{
    LOCK_SCOPE(&f->lock);
    struct slice key = f->now_key ? slice_str(f->now_key) : slice_of(f->key, f->key_n);
    struct slice rest = slice_from(key, MIN(from.n, key.n));
    if (!slice_starts(key, from) || (rest.n > 0 && rest.p[0] != '/'))
        return;
    size_t size = to.n + rest.n + 1;
    char *now = malloc(size);
    if (!now)
        abort();
    (void)snprintf(now, size, SLICE_FMT SLICE_FMT, SLICE_ARG(to), SLICE_ARG(rest));
    free(f->now_key);
    f->now_key = now;
    if (etag.n > 0) {
        free(f->now_etag);
        f->now_etag = slice_dup(etag);
    }
    f->is_moved = true;
    f->is_stale = false; /* it was looked for under the name from before, perhaps */
}

/* A node that has itself renamed a directory around the file finds it by the ETag from before: what it is
 * called there counts from now on, also for a node that was restarted. */
static void learn_etag_locked(struct client_file *f, const char *asked, struct slice found)
{
    if (found.n == 0 || slice_eq_str(found, asked) ||
        !slice_eq_str(slice_str(asked), f->now_etag ? f->now_etag : f->etag))
        return;
    free(f->now_etag);
    f->now_etag = slice_dup(found);
}

/* Both descriptors are open, so that the number is of one file all the while. */
static bool is_same_file(const struct source *x, const struct source *y)
{
    struct stat a, b;
    return x->fd >= 0 && y->fd >= 0 && sys->fstat(x->fd, &a) == 0 && sys->fstat(y->fd, &b) == 0 &&
           a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

/* Whether what was opened anew is another version than the one before. */
static bool is_another(const struct client_file *f, const char *etag, const struct source *lost,
                       const struct source *s, const struct wire_attr *now)
{
    return now->size_bytes != f->attr.size_bytes || (!etag[0] && !is_same_file(lost, s));
}

/* The source's session is over, or what it was opened as has another name: opens the same version anew,
 * unless another thread did so already. */
static int reopen(struct client_file *f, const struct source *lost, struct err *e)
{
    lock_take(&f->lock);
    bool done = f->source != lost, was_stale = f->is_stale;
    _cleanup_free_ char *key = slice_dup(slice_str(f->now_key ? f->now_key : f->key));
    _cleanup_free_ char *etag = slice_dup(slice_str(f->now_etag ? f->now_etag : f->etag));
    lock_drop(&f->lock);
    if (was_stale)
        return err_set(e, -ESTALE, "the version that was opened is gone");
    if (done)
        return 0;
    struct client_file_open o = {
        .bucket = slice_of(f->bucket, f->bucket_n),
        .key = slice_str(key),
        .if_match = slice_str(etag),
        .no_fd = f->no_fd,
        .high_fd = f->high_fd,
    };
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    struct wire_open_rep rep;
    struct source *s = NULL;
    int r = ask_open(f->c, &o, &b, &rep, &s, e);
    bool changed =
        r == ERR_PRECONDITION || r == -ENOENT || (r == 0 && is_another(f, etag, lost, s, &rep.attr));
    if (r < 0 && !changed)
        return r;
    lock_take(&f->lock);
    bool is_late = f->source != lost; /* another thread was faster */
    bool has_moved =
        !slice_eq_str(slice_str(key), f->now_key ? f->now_key : f->key); /* since it was asked for */
    bool is_stale = changed && !is_late && !has_moved;
    if (is_stale) {
        f->is_stale = true;
    } else if (!is_late && !changed) {
        source_unref(f->source);
        f->source = s;
        f->ready_from = f->ready_end = 0;
        f->is_moved = f->is_moved && has_moved;
        learn_etag_locked(f, etag, rep.attr.etag);
    }
    lock_drop(&f->lock);
    if (r == 0 && (changed || is_late))
        source_drop(f, s);
    return is_stale ? err_set(e, -ESTALE, "the version that was opened is gone") : 0;
}

static void file_free(struct client_file *f)
{
    lock_fini(&f->lock);
    free(f->bucket);
    free(f->key);
    free(f->etag);
    free(f->now_key);
    free(f->now_etag);
    free(f->content_type);
    free(f->meta);
    f->magic = 0;
    free(f);
}

void client_file_close(struct client_file *f)
{
    if (!f)
        return;
    assert(f->magic == FILE_MAGIC);
    source_drop(f, f->source);
    file_free(f);
}

/* Ends them at the node, by one call. Of another session than that of now the node knows nothing any more.
 * ERR_NOT_IMPLEMENTED: none is closed. */
static int close_many(struct client *c, struct client_file *const *v, size_t n)
{
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES), items = BUF_INIT(WIRE_BODY_MAX_BYTES);
    uint64_t epoch = client_epoch(c);
    for (size_t i = 0; i < n; i++) {
        const struct wire_closed x = {.handle = v[i]->source->handle,
                                      .read_cached = atomic_load(&v[i]->read_cached),
                                      .read_origin = atomic_load(&v[i]->read_origin)};
        if (v[i]->source->epoch == epoch && wire_closed_encode(&x, &items) < 0)
            return -E2BIG;
    }
    struct wire_close_many_req req = {.closed = buf_view(&items)};
    struct wire_close_many_rep rep;
    struct err ignored = {0}; /* a node that is gone has closed them */
    return items.n > 0 ? client_call_at(c, &epoch, WIRE_OP_CLOSE_MANY, &req, &b, &rep, &ignored) : 0;
}

void client_file_close_all(struct client_file *const *v, size_t n)
{
    for (size_t i = 0; i < n; i++) { /* first: the call may need a place for a descriptor */
        assert(v[i]->magic == FILE_MAGIC && v[i]->c == v[0]->c);
        macro_close(&v[i]->source->fd);
        v[i]->source->fd = -1;
    }
    int r = n > 1 ? close_many(v[0]->c, v, n) : ERR_NOT_IMPLEMENTED;
    for (size_t i = 0; i < n; i++) {
        if (r == ERR_NOT_IMPLEMENTED || r == -E2BIG)
            source_drop(v[i], v[i]->source);
        else
            source_unref(v[i]->source);
        file_free(v[i]);
    }
}

size_t client_file_bytes(const struct client_file *f)
{
    return sizeof(*f) + sizeof(struct source) + f->bucket_n + f->key_n + strlen(f->etag) +
           strlen(f->content_type) + strlen(f->meta);
}

const struct client_attr *client_file_attr(const struct client_file *f)
{
    return &f->attr;
}

bool client_file_is_complete(struct client_file *f)
{
    _cleanup_(source_unrefp) struct source *s = current(f);
    return s->fd >= 0 && atomic_load(&s->complete);
}

uint64_t client_file_valid_ms(const struct client_file *f)
{
    return f->valid_ms;
}

int client_file_fd(struct client_file *f)
{
    _cleanup_(source_unrefp) struct source *s = current(f);
    return s->fd;
}

int client_file_take_fd(struct client_file *f)
{
    LOCK_SCOPE(&f->lock);
    int fd = f->source->fd;
    if (fd < 0 || atomic_load(&f->source->refs) > 1) /* whoever reads took its reference under the lock */
        return -1;
    f->source->fd = -1;
    return fd;
}

/* ---- reading ---- */

static ssize_t from_descriptor(const struct source *s, void *p, size_t n, uint64_t offset, struct err *e)
{
    int r = sys_pread_all(s->fd, p, n, offset);
    if (r < 0)
        return err_errno(e, r == -ENODATA ? -EIO : r, "read of the cache's file");
    return (ssize_t)n;
}

/* How many bytes at offset need no question; 0: ask. */
static uint64_t known_bytes(struct client_file *f, const struct source *s, uint64_t offset, uint64_t n)
{
    if (s->fd < 0)
        return 0;
    if (atomic_load(&s->complete))
        return n;
    LOCK_SCOPE(&f->lock);
    if (f->source != s || offset < f->ready_from || offset >= f->ready_end)
        return 0;
    return MIN(n, f->ready_end - offset);
}

/* What to ask for: the next bytes too of who reads small pieces one after the other. A small piece behind a
 * large one is the rest of what the kernel had to divide. */
static uint64_t ask_bytes(struct client_file *f, const struct source *s, uint64_t offset, uint64_t n)
{
    if (s->fd < 0)
        return MIN(n, (uint64_t)FETCH_INLINE_BYTES);
    LOCK_SCOPE(&f->lock);
    bool sequential = offset > 0 && offset == f->last_end && f->last_n < WINDOW_BYTES / 2;
    return sequential ? MIN(MAX(n, (uint64_t)WINDOW_BYTES), f->attr.size_bytes - offset) : n;
}

static void learn(struct client_file *f, struct source *s, uint64_t offset, const struct wire_fetch_rep *rep)
{
    if (rep->state == WIRE_COMPLETE)
        atomic_store(&s->complete, true);
    LOCK_SCOPE(&f->lock);
    if (f->source != s || rep->available == 0)
        return;
    if (offset == f->ready_end && f->ready_end > f->ready_from) {
        f->ready_end += rep->available;
    } else {
        f->ready_from = offset;
        f->ready_end = offset + rep->available;
    }
}

/* Of `got` bytes read, those that came from the origin because of this file: as many as were missing when it
 * was opened, however soon they arrived. The node counts what it sends itself. */
static void count_read(struct client_file *f, struct source *s, uint64_t got, bool by_node)
{
    uint64_t missing = atomic_load(&s->missing), of_origin = MIN(got, missing);
    while (of_origin > 0 && !atomic_compare_exchange_weak(&s->missing, &missing, missing - of_origin))
        of_origin = MIN(got, missing);
    if (by_node)
        return;
    (void)atomic_fetch_add(&f->read_origin, of_origin);
    (void)atomic_fetch_add(&f->read_cached, got - of_origin);
}

/* The descriptor gave an error for these bytes, of a bad sector perhaps: the node fetches them again and
 * sends them.
 */
static ssize_t fetch_unreadable(struct client_file *f, struct source *s, void *p, size_t n, uint64_t offset,
                                struct err *e)
{
    struct wire_fetch_req req = {.handle = s->handle,
                                 .offset = offset,
                                 .n = MIN(n, (size_t)FETCH_INLINE_BYTES),
                                 .flags = WIRE_INLINE | WIRE_UNREADABLE};
    struct wire_fetch_rep rep;
    uint64_t epoch = s->epoch;
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    int r = client_call_at(f->c, &epoch, WIRE_OP_FETCH, &req, &b, &rep, e);
    if (r < 0)
        return r;
    macro_close(&rep.fd);
    if (rep.data.n == 0)
        return err_set(e, -EIO, "read of the cache's file");
    n = MIN(n, rep.data.n);
    memcpy(p, rep.data.p, n);
    count_read(f, s, n, /* by_node= */ true);
    return (ssize_t)n;
}

/* Bytes that the node said can be read. */
static ssize_t read_known(struct client_file *f, struct source *s, void *p, size_t n, uint64_t offset,
                          struct err *e)
{
    ssize_t got = from_descriptor(s, p, n, offset, e);
    if (got == -EIO)
        return fetch_unreadable(f, s, p, n, offset, e);
    if (got > 0)
        count_read(f, s, (uint64_t)got, /* by_node= */ false);
    return got;
}

static ssize_t fetch(struct client_file *f, struct source *s, void *p, size_t n, uint64_t offset,
                     struct err *e)
{
    struct wire_fetch_req req = {.handle = s->handle, .offset = offset, .n = ask_bytes(f, s, offset, n)};
    struct wire_fetch_rep rep;
    uint64_t epoch = s->epoch;
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    req.flags = (s->fd < 0 ? WIRE_INLINE : 0) | client_no_wait(f->c);
    int r = client_call_at(f->c, &epoch, WIRE_OP_FETCH, &req, &b, &rep, e);
    if (r < 0)
        return r;
    macro_close(&rep.fd);
    learn(f, s, offset, &rep);
    if (rep.data.n > 0) {
        n = MIN(n, rep.data.n);
        memcpy(p, rep.data.p, n);
        count_read(f, s, n, /* by_node= */ true);
        return (ssize_t)n;
    }
    if (rep.available == 0 && req.flags & WIRE_NO_WAIT)
        return err_set(e, -EAGAIN, "not here yet");
    if (rep.available == 0 || s->fd < 0)
        return err_set(e, ERR_PROTOCOL, "no bytes before the end of the object");
    return read_known(f, s, p, MIN(n, rep.available), offset, e);
}

/* After an answer of the node: whether the version that it does not find any more may have another name. */
static bool is_elsewhere(struct client_file *f, const struct source *s, ssize_t got)
{
    LOCK_SCOPE(&f->lock);
    bool is_gone = got == -ESTALE || got == -ENOENT || got == ERR_PRECONDITION || got == ERR_VERSION_CHANGED;
    return is_gone && (f->is_moved || f->source != s);
}

/* Some bytes at offset, at least one. */
static ssize_t read_some(struct client_file *f, void *p, size_t n, uint64_t offset, struct err *e)
{
    for (int i = 0;; i++) {
        _cleanup_(source_unrefp) struct source *s = current(f);
        uint64_t known = known_bytes(f, s, offset, n);
        ssize_t got = known > 0 ? read_known(f, s, p, known, offset, e) : fetch(f, s, p, n, offset, e);
        if (i >= REOPEN_TRIES || (got != -EBADF && !is_elsewhere(f, s, got)))
            return got == -EBADF ? -EIO : got;
        int r = reopen(f, s, e);
        if (r < 0)
            return r;
    }
}

ssize_t client_file_pread(struct client_file *f, void *p, size_t n, uint64_t offset, struct err *e)
{
    assert(f != NULL && f->magic == FILE_MAGIC);
    if (offset >= f->attr.size_bytes)
        return 0;
    n = MIN((uint64_t)n, f->attr.size_bytes - offset);
    size_t done = 0;
    while (done < n) {
        ssize_t got = read_some(f, (char *)p + done, n - done, offset + done, e);
        if (got < 0)
            return err_prefix(e, (int)got, "%s/%s", f->bucket, f->key);
        done += (size_t)got;
    }
    LOCK_SCOPE(&f->lock);
    f->last_end = offset + done;
    f->last_n = done;
    return (ssize_t)done;
}

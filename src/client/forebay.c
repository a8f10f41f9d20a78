/*
 * The public API: connection, errors, reading (contract in forebay/forebay.h). A thin skin over client_*.h:
 * it owns the per-thread error text and turns NUL-terminated arguments into slices.
 */
#include "client/forebay_internal.h"

#include "base/lock.h"

struct forebay_file {
    struct client_kept_file *kept;
    struct client_file *file; /* of kept */
    struct lock lock;         /* covers position */
    uint64_t position;
};

static _Thread_local struct err last_error;

struct err *forebay_err_begin(void)
{
    last_error.code = 0;
    last_error.text[0] = '\0';
    return &last_error;
}

int forebay_err_end(int r)
{
    if (r < 0 && last_error.text[0] == '\0')
        (void)err_set(&last_error, r, "%s", err_text(r));
    return r;
}

const char *forebay_error(void)
{
    return last_error.text;
}

const char *forebay_error_name(int code)
{
    return err_name(code);
}

static uint32_t kept_files(const struct forebay_options *o)
{
    uint32_t n = o ? o->kept_files : 0;
    return n == 0 ? client_kept_default() : n == FOREBAY_KEPT_NONE ? 0 : n;
}

int forebay_connect(const struct forebay_options *options, struct forebay **ret)
{
    struct err *e = forebay_err_begin();
    struct client_options o = {.name = "libforebay", .via = WIRE_VIA_API};
    if (options) {
        o.socket_path = options->socket_path;
        o.data_dir = options->data_dir;
        o.endpoint = options->endpoint;
        o.access_key = options->access_key;
        o.secret_key = options->secret_key;
        o.timeout_ms = options->timeout_ms;
        o.connections = options->connections;
    }
    struct client *c;
    int r = client_new(&o, &c, e);
    if (r < 0)
        return forebay_err_end(r);
    struct forebay *f = calloc(1, sizeof(*f));
    if (!f)
        abort();
    f->client = c;
    f->kept = client_kept_new(c, kept_files(options));
    *ret = f;
    return 0;
}

void forebay_disconnect(struct forebay *f)
{
    if (!f)
        return;
    client_hurry(f->client); /* who watches buckets may be waiting for a node that is gone */
    client_kept_free(f->kept);
    client_free(f->client);
    free(f);
}

static void copy_text(char *to, size_t size, const char *from)
{
    size_t n = MIN(strlen(from), size - 1);
    memcpy(to, from, n);
    to[n] = '\0';
}

void forebay_stat_fill(struct forebay_stat *ret, const struct client_attr *a)
{
    memset(ret, 0, sizeof(*ret));
    ret->size_bytes = a->size_bytes;
    ret->mtime_ns = a->mtime_ns;
    copy_text(ret->etag, sizeof(ret->etag), a->etag);
    copy_text(ret->content_type, sizeof(ret->content_type), a->content_type);
}

/* ---- reading ---- */

int forebay_open(struct forebay *f, const char *bucket, const char *key, struct forebay_file **ret)
{
    struct err *e = forebay_err_begin();
    struct client_file_open o = {.bucket = slice_str(bucket), .key = slice_str(key)};
    struct client_kept_file *kept;
    int r = client_kept_open(f->kept, &o, &kept, e);
    if (r < 0)
        return forebay_err_end(r);
    struct forebay_file *x = calloc(1, sizeof(*x));
    if (!x)
        abort();
    x->kept = kept;
    x->file = client_kept_of(kept);
    lock_init(&x->lock, LOCK_SESSION); /* above the client's: held over a read, as the position demands */
    *ret = x;
    return 0;
}

/* Whatever the node calls it when a version is not there any more, as mounts do (mount/errors.c). */
static ssize_t end_read(ssize_t got)
{
    if (got >= 0)
        return got;
    bool is_gone = got == -ENOENT || got == ERR_PRECONDITION || got == ERR_VERSION_CHANGED;
    return forebay_err_end(is_gone ? -ESTALE : (int)got);
}

ssize_t forebay_read(struct forebay_file *file, void *p, size_t n)
{
    struct err *e = forebay_err_begin();
    LOCK_SCOPE(&file->lock); /* held over the read: two readers get consecutive bytes */
    ssize_t got = client_file_pread(file->file, p, n, file->position, e);
    if (got > 0)
        file->position += (uint64_t)got;
    return end_read(got);
}

ssize_t forebay_pread(struct forebay_file *file, void *p, size_t n, uint64_t offset)
{
    struct err *e = forebay_err_begin();
    ssize_t got = client_file_pread(file->file, p, n, offset, e);
    return end_read(got);
}

int forebay_fstat(struct forebay_file *file, struct forebay_stat *ret)
{
    (void)forebay_err_begin();
    forebay_stat_fill(ret, client_file_attr(file->file));
    return 0;
}

void forebay_close(struct forebay_file *file)
{
    if (!file)
        return;
    client_kept_close(file->kept);
    lock_fini(&file->lock);
    free(file);
}

/*
 * What programs see of a failure. Conditions that errno can name pass through; those of the origin and of the
 * cache become EIO, EACCES or ENOSPC, with a line in the log that carries the origin's own words.
 *
 * Invariant: -ENOENT and the like reach a program only when the node said so about the object. Failures to
 * reach the node never look like an answer.
 */
#include "mount/mount_internal.h"

#include "base/log.h"
#include "base/sys.h"
#include "mount/parking.h"

#define LOG_EVERY_MS 100 /* lines about failures: at most ten a second */

int mount_errno(int code)
{
    switch (code) {
    case ERR_PRECONDITION:
    case ERR_VERSION_CHANGED:
    case ERR_CONFLICT:
        return ESTALE;
    case ERR_ORIGIN_DENIED:
    case ERR_UNAUTHENTICATED:
        return EACCES;
    case ERR_NOT_ADMITTED:
        return ENOSPC;
    case ERR_RANGE:
        return EINVAL;
    case ERR_NOT_IMPLEMENTED:
        return ENOTSUP;
    case -EMFILE: /* ours or the node's table of descriptors is full, not the program's */
        return ENFILE;
    case -EBADF: /* a handle of ours, not of the program */
    case -EPIPE:
    case -EHOSTDOWN: /* the node is away; it, or its origin, says nothing: */
    case -ETIMEDOUT:
    case -ECONNRESET:
    case -ECONNREFUSED:
    case -EHOSTUNREACH:
    case -ENETUNREACH:
        return EIO;
    default:
        return code < 0 && code > -4096 ? -code : EIO;
    }
}

/* Answers that belong to normal work. */
static bool is_ordinary(int code)
{
    switch (code) {
    case -ENOENT:
    case -EEXIST:
    case -ENOTEMPTY:
    case -EISDIR:
    case -ENOTDIR:
    case -EROFS:
    case -EXDEV:
    case -EPERM:
    case -EINVAL:
    case -ENAMETOOLONG:
    case -EILSEQ:
    case -ESTALE:
    case -EAGAIN:
    case -EDEADLK:
    case -EINTR:
    case -EFBIG:
    case -EMLINK:
    case -ENODATA:
    case -ENXIO:
    case -EOPNOTSUPP:
    case -ERANGE:
        return true;
    default:
        return false;
    }
}

void mount_log_failure(struct mount *m, const char *what, int code, const struct err *e)
{
    uint64_t now_ms = sys_mono_ms(), last_ms = atomic_load(&m->last_log_ms);
    if (is_ordinary(code)) {
        log_debug("mount", "%s: %s", what, e && e->text[0] ? e->text : err_text(code));
        return;
    }
    stats_add(m->stats, STATS_FAILURES, 1);
    if (now_ms - last_ms < LOG_EVERY_MS || !atomic_compare_exchange_strong(&m->last_log_ms, &last_ms, now_ms))
        return;
    log_error("mount", "%s: %s", what, e && e->text[0] ? e->text : err_text(code));
}

static void park(fuse_req_t req)
{
    fuse_reply_none(req); /* libfuse forgets it; the kernel waits */
    parking_park();
}

bool mount_parks(fuse_req_t req)
{
    bool is_parked = !parking_may_begin();
    if (is_parked)
        park(req);
    return is_parked;
}

void mount_reply_error(fuse_req_t req, const char *what, int code, const struct err *e)
{
    assert(code < 0);
    if (parking_is_due(code)) {
        park(req);
        return;
    }
    mount_log_failure(mount_of(req), what, code, e);
    (void)fuse_reply_err(req, mount_errno(code));
}

/*
 * Kernel passthrough (contract in passthrough.h).
 *
 * | offset | size | struct fuse_in_header, then struct fuse_init_in                |
 * | ------ | ---- | --------------------------------------------------------------- |
 * | 0      | 4    | length                                                          |
 * | 4      | 4    | operation, 26: INIT                                             |
 * | 40     | 4    | major                                                           |
 * | 44     | 4    | minor                                                           |
 * | 52     | 4    | flags, lower half                                               |
 * | 56     | 4    | flags, upper half, when the lower has FLAG_INIT_EXT             |
 *
 * | offset | size | struct fuse_init_out                | struct fuse_open_out       |
 * | ------ | ---- | ----------------------------------- | -------------------------- |
 * | 0      |      |                                     | 8: handle                  |
 * | 4      | 4    | minor                               |                            |
 * | 8      | 4    |                                     | flags (bit 7: passthrough) |
 * | 12     | 4    | flags, lower half                   | backing id                 |
 * | 32     | 4    | flags, upper half                   |                            |
 * | 36     | 4    | how deep backing files may be stacked |                          |
 *
 * Invariants:
 *  1. Nothing is accepted that the kernel did not offer; writeback caching is never accepted beside
 * passthrough (the kernel refuses the pair).
 *  2. Replies are completed in the thread that makes them, from a variable of that thread, set just before
 * and cleared just after: libfuse sends before its reply functions return.
 *
 * Failure modes: a kernel or a libfuse whose messages are shorter than described gets them unchanged, and
 * passthrough is reported as not offered.
 */
#include "mount/passthrough.h"

#include "base/log.h"
#include "base/slice.h"
#include "mount/parking.h"
#include "mount/queue.h"
#include "mount/request.h"

#include <linux/ioctl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/uio.h>

#define OP_INIT           26
#define OP_CREATE         35
#define OP_TMPFILE        51
#define IN_HEADER_BYTES   40
#define INIT_IN_MIN_BYTES (IN_HEADER_BYTES + 20) /* up to the upper half of the flags */
#define INIT_OUT_BYTES    64
#define OPEN_OUT_BYTES    16
#define MINOR_PASSTHROUGH 40
#define FLAG_WRITEBACK    (1u << 16)
#define OPEN_PASSTHROUGH  (1u << 7)

/* Source: struct fuse_backing_map and FUSE_DEV_IOC_BACKING_OPEN, _CLOSE of the kernel's header named above.
 */
struct backing_map {
    int32_t fd;
    uint32_t flags;
    uint64_t padding;
};
static_assert(sizeof(struct backing_map) == 16, "as the kernel has it");
#define IOC_BACKING_OPEN  _IOW(229, 1, struct backing_map)
#define IOC_BACKING_CLOSE _IOW(229, 2, uint32_t)

/* Source: struct fuse_out_header and enum fuse_notify_code, there. */
struct notification {
    uint32_t len;
    int32_t code;
    uint64_t unique; /* 0: nobody asked */
};
#define NOTIFY_INVAL_ENTRY 3
#define NOTIFY_RESEND      7
#define NOTIFY_INC_EPOCH   8

#define LIBRARY_SPEAKS_IT (FUSE_VERSION >= FUSE_MAKE_VERSION(3, 17))

static uint32_t get32(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof(v));
    return v;
}

static void put32(uint8_t *p, uint32_t v)
{
    memcpy(p, &v, sizeof(v));
}

int passthrough_parse_init(const void *request, size_t n, struct passthrough_offer *ret)
{
    const uint8_t *p = request;
    if (n < IN_HEADER_BYTES + 16 || get32(p) != n || get32(p + 4) != OP_INIT)
        return -EINVAL;
    uint64_t flags = get32(p + IN_HEADER_BYTES + 12);
    if (flags & PASSTHROUGH_FLAG_INIT_EXT && n >= INIT_IN_MIN_BYTES)
        flags |= (uint64_t)get32(p + IN_HEADER_BYTES + 16) << 32;
    *ret = (struct passthrough_offer){.minor = get32(p + IN_HEADER_BYTES + 4), .flags = flags};
    return 0;
}

int passthrough_patch_init(void *reply, size_t n, uint64_t flags)
{
    uint8_t *p = reply;
    if (n < INIT_OUT_BYTES)
        return -EINVAL;
    if (flags == 0)
        return 0;
    uint32_t low = get32(p + 12) | (uint32_t)flags | (uint32_t)PASSTHROUGH_FLAG_INIT_EXT;
    if (flags & PASSTHROUGH_FLAG_PASSTHROUGH) {
        low &= ~FLAG_WRITEBACK;
        put32(p + 4, MAX(get32(p + 4), (uint32_t)MINOR_PASSTHROUGH));
        put32(p + 36, 1);
    }
    put32(p + 12, low);
    put32(p + 32, get32(p + 32) | (uint32_t)(flags >> 32));
    return 0;
}

int passthrough_patch_open(void *reply, size_t n, int32_t backing_id)
{
    if (n < OPEN_OUT_BYTES || backing_id <= 0)
        return -EINVAL;
    uint8_t *p = (uint8_t *)reply + n - OPEN_OUT_BYTES;
    put32(p + 8, get32(p + 8) | OPEN_PASSTHROUGH);
    put32(p + 12, (uint32_t)backing_id);
    return 0;
}

/* Both requests have the same form; the name that comes with OP_TMPFILE is "/" already. */
bool passthrough_rewrite_tmpfile(void *request, size_t n)
{
    uint8_t *p = request;
    if (n <= IN_HEADER_BYTES || get32(p) != n || get32(p + 4) != OP_TMPFILE)
        return false;
    put32(p + 4, OP_CREATE);
    return true;
}

int passthrough_register(struct fuse_session *se, int fd)
{
    struct backing_map map = {.fd = fd};
    int id = ioctl(fuse_session_fd(se), IOC_BACKING_OPEN, &map);
    return id < 0 ? -errno : id;
}

void passthrough_unregister(struct fuse_session *se, int backing_id)
{
    uint32_t id = (uint32_t)backing_id;
    if (ioctl(fuse_session_fd(se), IOC_BACKING_CLOSE, &id) < 0)
        log_warn("mount", "closing backing file %d: %s", backing_id, err_text(-errno));
}

static int notify(struct fuse_session *se, int code)
{
    const struct notification out = {.len = sizeof(out), .code = code};
    return write(fuse_session_fd(se), &out, sizeof(out)) < 0 ? -errno : 0;
}

int passthrough_resend(struct fuse_session *se)
{
    return notify(se, NOTIFY_RESEND);
}

int passthrough_forget_names(struct fuse_session *se)
{
    return notify(se, NOTIFY_INC_EPOCH);
}

/* Source: struct fuse_notify_inval_entry_out, there; the name and a zero follow. */
struct inval_entry {
    uint64_t parent_id;
    uint32_t name_bytes;
    uint32_t flags;
};
#define EXPIRE_ONLY 1

int passthrough_expire_name(struct fuse_session *se, uint64_t parent_id, const char *name, size_t n)
{
    struct inval_entry entry = {.parent_id = parent_id, .name_bytes = (uint32_t)n, .flags = EXPIRE_ONLY};
    struct notification out = {.code = NOTIFY_INVAL_ENTRY};
    struct iovec iov[] = {
        {&out, sizeof(out)}, {&entry, sizeof(entry)}, {slice_dup(slice_of(name, n)), n + 1}};
    out.len = (uint32_t)(sizeof(out) + sizeof(entry) + n + 1);
    int r = writev(fuse_session_fd(se), iov, ARRAY_SIZE(iov)) < 0 ? -errno : 0;
    free(iov[2].iov_base);
    return r;
}

static bool survives_kills; /* set before the loop; a process has one mount */

/* The kernel fails a request with EIO, instead of keeping it for a successor, when its reader is killed while
 * a page of the buffer has to be made first: so they are all made before. */
static ssize_t read_request(int fd, void *p, size_t n)
{
    static _Thread_local void *made;
    if (survives_kills && made != p)
        memset(p, 0, n);
    made = p;
    ssize_t got = queue_read(fd, p, n);
    request_begin(p, got > 0 ? (size_t)got : 0);
    parking_begin(p, got > 0 ? (size_t)got : 0);
    return got;
}

#if LIBRARY_SPEAKS_IT

void passthrough_note_init(const void *request, size_t n)
{
    (void)request, (void)n;
}

static ssize_t hook_read(int fd, void *p, size_t n, void *userdata)
{
    (void)userdata;
    ssize_t got = read_request(fd, p, n);
    return got;
}

static ssize_t hook_writev(int fd, struct iovec *iov, int count, void *userdata)
{
    (void)userdata;
    return writev(fd, iov, count);
}

bool passthrough_on_init(struct fuse_conn_info *conn, bool wanted, enum passthrough_extra extra)
{
    bool offered = (conn->capable & FUSE_CAP_PASSTHROUGH) != 0;
    if (conn->capable & FUSE_CAP_DIRECT_IO_ALLOW_MMAP)
        conn->want |= FUSE_CAP_DIRECT_IO_ALLOW_MMAP;
    if (extra & PASSTHROUGH_KILLPRIV && conn->capable & FUSE_CAP_HANDLE_KILLPRIV_V2)
        conn->want |= FUSE_CAP_HANDLE_KILLPRIV_V2;
    if (wanted && offered) {
        conn->want |= FUSE_CAP_PASSTHROUGH;
        conn->max_backing_stack_depth = 1;
    }
    return offered;
}

int passthrough_reply_open(fuse_req_t req, struct fuse_file_info *fi, int backing_id)
{
    fi->backing_id = backing_id;
    return fuse_reply_open(req, fi);
}

int passthrough_reply_create(fuse_req_t req, const struct fuse_entry_param *entry, struct fuse_file_info *fi,
                             int backing_id)
{
    fi->backing_id = backing_id;
    return fuse_reply_create(req, entry, fi);
}

#else

/* What the reply being made by this thread lacks. */
static _Thread_local struct {
    uint64_t init_flags;
    int backing_id;
} lacking;

/* The kernel's offer; one INIT comes per session, before everything else. */
static _Thread_local struct passthrough_offer offer;

/* Requests of OP_TMPFILE are rewritten; a process has one mount. */
static _Atomic bool rewrites_tmpfile;

void passthrough_note_init(const void *request, size_t n)
{
    (void)passthrough_parse_init(request, n, &offer);
}

static ssize_t hook_read(int fd, void *p, size_t n, void *userdata)
{
    (void)userdata;
    ssize_t got = read_request(fd, p, n);
    if (got > 0 && atomic_load_explicit(&rewrites_tmpfile, memory_order_relaxed))
        (void)passthrough_rewrite_tmpfile(p, (size_t)got);
    else if (got > 0)
        (void)passthrough_parse_init(p, (size_t)got, &offer);
    return got;
}

static ssize_t hook_writev(int fd, struct iovec *iov, int count, void *userdata)
{
    (void)userdata;
    if (count >= 2 && iov[count - 1].iov_len > 0) {
        struct iovec *last = &iov[count - 1];
        if (lacking.init_flags)
            (void)passthrough_patch_init(last->iov_base, last->iov_len, lacking.init_flags);
        if (lacking.backing_id > 0)
            (void)passthrough_patch_open(last->iov_base, last->iov_len, lacking.backing_id);
    }
    lacking.init_flags = 0;
    lacking.backing_id = 0;
    return writev(fd, iov, count);
}

bool passthrough_on_init(struct fuse_conn_info *conn, bool wanted, enum passthrough_extra extra)
{
    (void)conn;
    uint64_t accept = PASSTHROUGH_FLAG_DIROPS | PASSTHROUGH_FLAG_DIRECT_MMAP |
                      (wanted ? PASSTHROUGH_FLAG_PASSTHROUGH : 0) |
                      (extra & PASSTHROUGH_KILLPRIV ? PASSTHROUGH_FLAG_KILLPRIV : 0);
    atomic_store(&rewrites_tmpfile, (extra & PASSTHROUGH_TMPFILE) != 0);
    lacking.init_flags = offer.flags & accept;
    return (offer.flags & PASSTHROUGH_FLAG_PASSTHROUGH) != 0;
}

int passthrough_reply_open(fuse_req_t req, struct fuse_file_info *fi, int backing_id)
{
    lacking.backing_id = backing_id;
    int r = fuse_reply_open(req, fi);
    lacking.backing_id = 0;
    return r;
}

int passthrough_reply_create(fuse_req_t req, const struct fuse_entry_param *entry, struct fuse_file_info *fi,
                             int backing_id)
{
    lacking.backing_id = backing_id;
    int r = fuse_reply_create(req, entry, fi);
    lacking.backing_id = 0;
    return r;
}

#endif

int passthrough_hook(struct fuse_session *se, bool may_be_killed, struct err *e)
{
    survives_kills = may_be_killed;
    static const struct fuse_custom_io io = {.read = hook_read, .writev = hook_writev};
    int r = fuse_session_custom_io(se, &io, fuse_session_fd(se));
    return r < 0 ? err_errno(e, r, "fuse_session_custom_io") : 0;
}

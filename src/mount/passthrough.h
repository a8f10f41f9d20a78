/*
 * Kernel passthrough: the kernel reads and writes a file of the cache itself, without asking this process,
 * once the file was registered and its id came with the reply to OPEN or CREATE. Linux 6.9 and later,
 * CAP_SYS_ADMIN.
 *
 * libfuse 3.17 speaks it. For older ones the replies are completed on their way to the kernel
 * (passthrough_hook). The numbers are those of the kernel's include/uapi/linux/fuse.h, protocol 7.40.
 *
 * Two other things that older libraries do not know of are done here too, because they need the same hook:
 * files without names (O_TMPFILE) and set-user-ID bits that the kernel leaves to us.
 */
#pragma once

#include "base/err.h"

#include <fuse_lowlevel.h>

/* What the kernel offers in its INIT request. */
struct passthrough_offer {
    uint32_t minor;
    uint64_t flags; /* both halves */
};

/* PARALLEL_DIROPS: names of one directory are looked up side by side. libfuse before 3.17 does not accept it,
 * whatever it is told: each look-up that has to ask an origin then holds up all others in its directory. */
#define PASSTHROUGH_FLAG_DIROPS      (1ull << 18)
#define PASSTHROUGH_FLAG_KILLPRIV    (1ull << 28) /* HANDLE_KILLPRIV_V2 */
#define PASSTHROUGH_FLAG_INIT_EXT    (1ull << 30) /* the second half of the flags counts */
#define PASSTHROUGH_FLAG_DIRECT_MMAP (1ull << 36) /* files opened for direct I/O may be mapped */
#define PASSTHROUGH_FLAG_PASSTHROUGH (1ull << 37)
#define PASSTHROUGH_FLAG_HAS_RESEND  (1ull << 39) /* knows the notification that passthrough_resend sends */

/* ---- bytes: pure ---- */

/* An INIT request of n bytes as read from /dev/fuse. -EINVAL: it is not one. */
int passthrough_parse_init(const void *request, size_t n, struct passthrough_offer *ret);
/* Completes an INIT reply (struct fuse_init_out, without header) so that it accepts `flags`. -EINVAL: too
 * short for it. */
int passthrough_patch_init(void *reply, size_t n, uint64_t flags);
/* Completes the reply to OPEN or CREATE, whose last 16 bytes are struct fuse_open_out. */
int passthrough_patch_open(void *reply, size_t n, int32_t backing_id);

/* A request of n bytes as read: one to make a file without a name becomes CREATE of the name
 * PASSTHROUGH_NO_NAME, which no file can have. Whether it was one. */
bool passthrough_rewrite_tmpfile(void *request, size_t n);
#define PASSTHROUGH_NO_NAME "/"

/* ---- one mount ---- */

enum passthrough_extra {
    PASSTHROUGH_TMPFILE = 1, /* the operations know PASSTHROUGH_NO_NAME, or libfuse has an operation for it */
    /* The operations take set-user-ID, set-group-ID and security.capability away: with SETATTR of nothing,
     * of an owner, and with a size or O_TRUNC unless root asks. The kernel then need not ask for
     * security.capability before each write. */
    PASSTHROUGH_KILLPRIV = 2,
};

/* After fuse_session_mount, before the loop. Also has each thread know its request (request.h).
 * may_be_killed: another process can take over. */
int passthrough_hook(struct fuse_session *se, bool may_be_killed, struct err *e);
/* An INIT that was read by a process before this one, before it is processed again. */
void passthrough_note_init(const void *request, size_t n);
/* The kernel asks again for every name; answers that are on their way count as old, too. -EINVAL: it cannot
 * (before Linux 6.16). */
int passthrough_forget_names(struct fuse_session *se);
/* The kernel asks again for this name when it is used next; what it names, and what is mounted below it,
 * stays as it is until the answer is another one. Waits for requests of programs about the directory. */
int passthrough_expire_name(struct fuse_session *se, uint64_t parent_id, const char *name, size_t n);
/* The kernel sends all requests again that were read and not answered. -EINVAL: it cannot. */
int passthrough_resend(struct fuse_session *se);
/* In the init callback: asks for passthrough when `wanted`, for mapping of direct I/O files, and for what
 * `extra` (a set of enum passthrough_extra) says, where the kernel has them. Whether it offered passthrough.
 */
bool passthrough_on_init(struct fuse_conn_info *conn, bool wanted, enum passthrough_extra extra);
/* Registers an open file. > 0: its id; -EPERM without the capability; -ELOOP, -EOPNOTSUPP, ... for files of
 * some file systems. The descriptor may be closed afterwards. */
int passthrough_register(struct fuse_session *se, int fd);
void passthrough_unregister(struct fuse_session *se, int backing_id);
/* Replies, with the file's id or 0. */
int passthrough_reply_open(fuse_req_t req, struct fuse_file_info *fi, int backing_id);
int passthrough_reply_create(fuse_req_t req, const struct fuse_entry_param *entry, struct fuse_file_info *fi,
                             int backing_id);

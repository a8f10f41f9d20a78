/*
 * Files being written: who uses them (contract in staging.h). How their bytes leave is in staging_publish.c.
 *
 * States: STARTING (the node is asked for a staging file, and it is filled) -> READY -> ENDING (the last user
 * publishes). Who comes in STARTING or ENDING waits; a start that failed leaves nothing behind. What is still
 * mapped at the end is READY again (staging_late.c).
 *
 * Invariants:
 *  1. node->staging is set from STARTING until the end of ENDING. After that no descriptor of it may write
 * any more: the file is the published version from then on.
 *  2. One publication at a time (is_busy).
 *  3. A node that is open in another way gets no staging: it cannot change under its readers.
 *  4. Nobody publishes over what others have put in the place of a file in which only readers were left: that
 * has lost its name then, as if it were unlinked, and nobody opens it for writing any more (is_replaced).
 *
 * Failure modes: the node's and the origin's errors; -ENOSPC of the cache's disk.
 */
#include "mount/staging_internal.h"

#include "base/log.h"
#include "base/sys.h"
#include "mount/before.h"
#include "mount/holdings.h"
#include "mount/parking.h"
#include "mount/queue.h"
#include "net/posix_meta.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/vfs.h>

#define COPY_BYTES         MIB
#define NS_PER_S           ((uint64_t)1000000000)
#define STAGING_KEPT_MAGIC 0x73746b65u

static_assert(sizeof(struct staging_kept) <= KEPT_CELL_BYTES, "fits into a cell");

void staging_list_init(struct staging_list *l)
{
    memset(l, 0, sizeof(*l));
    cond_init(&l->changed);
    cond_init(&l->late_wake);
}

void staging_list_fini(struct staging_list *l)
{
    assert(!l->first);
    free(l->slots);
    cond_fini(&l->changed);
    cond_fini(&l->late_wake);
}

/* Kernels that can give each change of a file a time of its own, once somebody has looked at the last, do so
 * on these file systems, and not where whole seconds are kept (ext4 with small inodes). Elsewhere a time is
 * that of the last tick of the clock. */
static bool has_fine_times(const struct mount *m, int fd)
{
    struct statfs fs;
    struct stat st;
    if (!m->is_write_passthrough || fstatfs(fd, &fs) < 0 || sys->fstat(fd, &st) < 0)
        return false;
    bool is_known = fs.f_type == EXT4_SUPER_MAGIC || fs.f_type == XFS_SUPER_MAGIC ||
                    fs.f_type == BTRFS_SUPER_MAGIC || fs.f_type == TMPFS_MAGIC;
    return is_known && st.st_mtim.tv_nsec != 0;
}

bool staging_tells_changes(const struct staging *s)
{
    return s->tells_changes;
}

/* ---- for a process that takes over ---- */

static uint32_t *take_slot_locked(struct staging_list *l, uint32_t *ret)
{
    size_t i = 0;
    while (i < l->n_slots && l->slots[i])
        i++;
    if (i == KEPT_SLOTS_MAX)
        return NULL;
    if (i == l->n_slots) {
        size_t n = MAX(2 * l->n_slots, (size_t)16);
        l->slots = realloc(l->slots, n * sizeof(l->slots[0]));
        if (!l->slots)
            abort();
        memset(l->slots + l->n_slots, 0, (n - l->n_slots) * sizeof(l->slots[0]));
        l->n_slots = n;
    }
    l->slots[i] = true;
    *ret = (uint32_t)i;
    return ret;
}

void staging_keep(struct mount *m, struct staging *s)
{
    struct staging_kept *c = s->kept;
    (void)m;
    if (!c)
        return;
    c->is_published = atomic_load(&s->is_published);
    c->may_be_mapped = atomic_load(&s->may_be_mapped);
    c->is_clean = c->has_time = false;
    atomic_signal_fence(memory_order_seq_cst);
    c->time_ns = s->time_ns;
    c->time_of_file = s->time_of_file;
    c->size = s->seen_stat.st_size;
    c->mtime = s->seen_stat.st_mtim;
    atomic_signal_fence(memory_order_seq_cst);
    /* Without fine times a change may leave them as they were. */
    c->is_clean = s->is_clean && s->tells_changes;
    c->has_time = s->has_time && s->tells_changes;
}

/* From here on the file outlives this process. */
static void begin_keeping(struct mount *m, struct staging *s)
{
    uint32_t slot;
    lock_take(node_table_lock(m->nodes));
    bool has_slot = take_slot_locked(&m->stagings, &slot) != NULL;
    lock_drop(node_table_lock(m->nodes));
    if (!has_slot)
        return;
    s->kept = keeper_hold(&m->seat, slot, staging_fd(s)) == 0 ? kept_take(m->seat.kept, KEPT_STAGING) : NULL;
    if (!s->kept) {
        keeper_drop(&m->seat, slot);
        LOCK_SCOPE(node_table_lock(m->nodes));
        m->stagings.slots[slot] = false;
        return;
    }
    s->kept->slot = slot;
    s->kept->node_id = s->node->id;
    s->kept->is_unlinked = atomic_load(&s->is_unlinked);
    atomic_store(&s->kept->fault, atomic_load(&s->fault));
    staging_keep(m, s);
    atomic_signal_fence(memory_order_seq_cst);
    s->kept->magic = STAGING_KEPT_MAGIC;
}

static void end_keeping(struct mount *m, struct staging *s)
{
    if (!s->kept)
        return;
    uint32_t slot = s->kept->slot;
    s->kept->magic = 0;
    kept_give(m->seat.kept, TAKE_PTR(s->kept));
    keeper_drop(&m->seat, slot);
    LOCK_SCOPE(node_table_lock(m->nodes));
    m->stagings.slots[slot] = false;
}

/* ---- starting ---- */

static int copy_object(struct mount *m, struct staging *s, int fd, struct err *e)
{
    _cleanup_buf_ struct buf key = BUF_INIT(MOUNT_KEY_MAX_BYTES);
    int r = mount_key(m, s->node, SLICE_NULL, &key);
    if (r < 0)
        return r;
    _cleanup_free_ char *etag = NULL;
    struct client_file_open o = {.bucket = slice_str(m->bucket), .key = buf_view(&key), .expect = UINT64_MAX};
    _cleanup_(client_file_closep) struct client_file *f = NULL;
    _cleanup_free_ char *piece = malloc(COPY_BYTES);
    if (!piece)
        abort();
    r = mount_open_version(m, s->node, &o, &f, &etag, e);
    for (uint64_t at = 0; r == 0;) {
        ssize_t got = client_file_pread(f, piece, COPY_BYTES, at, e);
        if (got <= 0)
            return (int)got;
        r = sys_pwrite_all(fd, piece, (size_t)got, at);
        if (r < 0)
            return err_errno(e, r, "write of the staging file");
        at += (uint64_t)got;
    }
    return r;
}

/* In the place of the node's: the kernel tells each open file once what the disk did not take, and what it
 * has told the node is lost when the node is killed. Who may not open it (another uid than the node's), or
 * has no /proc, makes do with the node's. */
static int open_own(int *fd)
{
    char path[32];
    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", *fd);
    int own = sys->open(path, O_RDWR | O_CLOEXEC, 0);
    if (own < 0)
        return own == -EACCES || own == -ENOENT ? 0 : own;
    (void)close(*fd);
    *fd = own;
    return 0;
}

/* Where the node gives no files: one of our own, on a disk. */
static int make_own(int *ret_fd, struct err *e)
{
    const char *given = getenv("TMPDIR"), *dir = given && given[0] ? given : "/var/tmp";
    int fd = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0)
        return err_errno(e, -errno, "%s: a file for what is written (TMPDIR names another directory)", dir);
    *ret_fd = fd;
    return 0;
}

static int begin(struct mount *m, struct staging *s, enum staging_start start, struct err *e)
{
    _cleanup_close_ int fd = -1;
    int r =
        staging_target(m, s, &fd, e); /* also where it gives none: whether it may be written is known then */
    if (r == 0 && fd < 0)
        r = make_own(&fd, e);
    if (r == 0 && start == STAGING_COPY)
        r = copy_object(m, s, fd, e);
    if (r < 0) {
        staging_drop_target(m, s);
        return r;
    }
    if (r == 0)
        r = open_own(&fd);
    if (r < 0) {
        staging_drop_target(m, s);
        return err_errno(e, r, "the staging file");
    }
    s->tells_changes = has_fine_times(m, fd);
    atomic_store(&s->is_published, start != STAGING_NEW);
    atomic_store(&s->fd, TAKE_FD(fd));
    if (start == STAGING_COPY)
        staging_mark_clean(s);
    if (start == STAGING_COPY && m->posix) {
        LOCK_SCOPE(node_table_lock(m->nodes));
        staging_set_time_locked(s, s->node->mtime_ns);
    }
    begin_keeping(m, s);
    return 0;
}

static struct staging *new_locked(struct mount *m, struct node *n)
{
    struct staging *s = calloc(1, sizeof(*s));
    if (!s)
        abort();
    holdings_take(HOLDING_FILES, holdings_chunk(sizeof(*s)));
    s->node = n;
    n->refs++;
    atomic_init(&s->fd, -1);
    s->target_fd = -1;
    s->refs = 1;
    s->state = STAGING_STARTING;
    s->next = m->stagings.first;
    m->stagings.first = s;
    n->staging = s;
    n->n_writings++;
    node_keep_locked(m->nodes, n);
    return s;
}

/* Takes it away from its node and the list, and frees it. */
static void end(struct mount *m, struct staging *s)
{
    end_keeping(m, s);
    lock_take(node_table_lock(m->nodes));
    struct staging **at = &m->stagings.first;
    while (*at != s)
        at = &(*at)->next;
    *at = s->next;
    s->node->staging = NULL;
    s->node->n_writings++;
    node_unkeep_locked(m->nodes, s->node);
    cond_broadcast(&m->stagings.changed);
    lock_drop(node_table_lock(m->nodes));
    int fd = atomic_load(&s->fd);
    macro_close(&fd);
    macro_close(&s->target_fd);
    node_unref(m->nodes, s->node);
    free(s);
    holdings_give(HOLDING_FILES, holdings_chunk(sizeof(*s)));
}

static bool must_wait_locked(struct mount *m, const struct node *n, enum staging_start start)
{
    if (n->staging)
        return n->staging->state != STAGING_READY;
    return start != STAGING_JOIN && pause_covers_locked(m, n);
}

/* 1: *ret is ready and referenced; 0: *ret is new and the caller's to start; or an error. */
static int join_or_make(struct mount *m, struct node *n, enum staging_start start, struct staging **ret)
{
    LOCK_SCOPE(node_table_lock(m->nodes));
    while (must_wait_locked(m, n, start)) {
        if (!parking_may_stay())
            return -EINTR;
        cond_wait(&m->stagings.changed, node_table_lock(m->nodes));
    }
    if (n->staging && n->staging->is_replaced && start != STAGING_JOIN)
        return -ESTALE;
    if (n->staging) {
        n->staging->refs++;
        n->staging->n_writers += start != STAGING_JOIN;
        *ret = n->staging;
        return 1;
    }
    if (start == STAGING_JOIN)
        return -ENOENT;
    if (!n->is_attached || n->n_plain > 0 || n->n_passthrough > 0) {
        n->wants_renewal = true;
        return -ESTALE;
    }
    *ret = new_locked(m, n);
    (*ret)->n_writers = 1;
    return 0;
}

/* A file that was kept open for reading is not the one that is published soon, also when nobody opens this
 * one (truncate by name). */
static void forget_kept(struct mount *m, struct node *n)
{
    struct warm_trash *trash = NULL;
    lock_take(node_table_lock(m->nodes));
    warm_forget_locked(m->warm, n, &trash);
    lock_drop(node_table_lock(m->nodes));
    warm_empty(m->warm, trash);
}

int staging_acquire(struct mount *m, struct node *n, enum staging_start start, struct staging **ret,
                    struct err *e)
{
    struct staging *s = NULL;
    int r = start == STAGING_JOIN ? 0 : staging_check_left(m, n, e);
    if (r == 0)
        r = join_or_make(m, n, start, &s);
    if (r < 0)
        return r;
    if (r == 1) {
        bool cut = start == STAGING_EMPTY || start == STAGING_NEW;
        r = cut ? staging_truncate(s, 0) : 0;
        if (r < 0) {
            staging_release_writing(m, s);
            return err_errno(e, r, "truncate of the staging file");
        }
        *ret = s;
        return 0;
    }
    forget_kept(m, n);
    r = begin(m, s, start, e);
    if (r < 0) {
        end(m, s);
        return r;
    }
    lock_take(node_table_lock(m->nodes));
    s->state = STAGING_READY;
    cond_broadcast(&m->stagings.changed);
    lock_drop(node_table_lock(m->nodes));
    *ret = s;
    return 0;
}

/* ---- publishing ---- */

static void enter(struct mount *m, struct staging *s)
{
    LOCK_SCOPE(node_table_lock(m->nodes));
    while (s->is_busy)
        cond_wait(&m->stagings.changed, node_table_lock(m->nodes));
    s->is_busy = true;
}

static void leave(struct mount *m, struct staging *s)
{
    LOCK_SCOPE(node_table_lock(m->nodes));
    s->is_busy = false;
    cond_broadcast(&m->stagings.changed);
}

/* What was written and not published is in the kernel's pages of this inode still. */
void staging_spoil(struct mount *m, struct node *n)
{
    notifier_drop_node(m->notifier, n); /* whose attributes the kernel may believe */
    lock_take(node_table_lock(m->nodes));
    n->is_spoilt = true;
    lock_drop(node_table_lock(m->nodes));
    node_detach(m->nodes, n, /* is_unlinked= */ false);
}

bool staging_is_refused(struct mount *m, const struct node *n)
{
    LOCK_SCOPE(node_table_lock(m->nodes));
    /* A process that took over knows it by this: nobody begins to write what has no name. */
    return n->is_spoilt || (n->staging && !n->is_attached && !n->is_unlinked);
}

/* What is written there is published after all. */
static void mend(struct mount *m, struct node *n)
{
    if (!staging_is_refused(m, n))
        return;
    struct node *there = node_attach(m->nodes, n);
    if (there)
        forget_kept(m, there);
    node_unref(m->nodes, there);
    notifier_drop_node(m->notifier, n); /* the kernel may know the other one by that name */
}

/* Each file once. */
static void count_failure(struct mount *m, struct staging *s, int code, const struct err *e)
{
    const char *text = e->text[0] ? e->text : err_text(code);
    log_error("mount", "a file that was closed could not be written: %s", text);
    LOCK_SCOPE(node_table_lock(m->nodes));
    m->stagings.n_failed += !s->is_counted;
    s->is_counted = true;
    (void)snprintf(m->stagings.failed_text, sizeof(m->stagings.failed_text), "%s", text);
}

/* It was published after all, or there is nothing to be published any more. */
static void uncount_failure(struct mount *m, struct staging *s)
{
    LOCK_SCOPE(node_table_lock(m->nodes));
    m->stagings.n_failed -= s->is_counted;
    s->is_counted = false;
}

static int publish(struct mount *m, struct staging *s, bool is_close, struct err *e)
{
    enter(m, s);
    int r = staging_publish_alone(m, s, /* is_last= */ false, e);
    if (r < 0 && is_close)
        staging_spoil(m, s->node);
    else if (r == 0)
        mend(m, s->node);
    if (r == 0)
        uncount_failure(m, s);
    staging_keep(m, s);
    leave(m, s);
    return r;
}

int staging_publish(struct mount *m, struct staging *s, struct err *e)
{
    return publish(m, s, /* is_close= */ false, e);
}

int staging_close(struct mount *m, struct staging *s, struct err *e)
{
    return publish(m, s, /* is_close= */ true, e);
}

static void apply_locked(struct staging *s, const struct posix_meta *change)
{
    struct node *n = s->node;
    n->mode = change->has & POSIX_HAS_MODE ? change->mode : n->mode;
    n->uid = change->has & POSIX_HAS_UID ? change->uid : n->uid;
    n->gid = change->has & POSIX_HAS_GID ? change->gid : n->gid;
    if (change->has & POSIX_HAS_MTIME)
        staging_set_time_locked(s, change->mtime_ns);
}

int staging_set_attr(struct mount *m, struct staging *s, const struct posix_meta *change, struct err *e)
{
    enter(m, s);
    bool is_there = !staging_is_unlinked(m, s) && staging_is_clean_alone(s);
    int r = is_there ? mount_change_object(m, s->node, change, e) : 0;
    if (r == 0) {
        LOCK_SCOPE(node_table_lock(m->nodes));
        apply_locked(s, change);
        node_changed_locked(m->nodes, s->node);
    }
    staging_keep(m, s);
    leave(m, s);
    return r;
}

/* The node says in its log what it keeps. */
static void strand(struct mount *m, struct staging *s)
{
    struct err e = {0};
    int r = staging_strand(m, s, &e);
    if (r < 0)
        log_error("mount", "what was written to inode %llu is lost, the node could not keep it: %s",
                  (unsigned long long)s->node->ino, e.text[0] ? e.text : err_text(r));
}

/* Nobody in this mount has it open any more. */
static void publish_last(struct mount *m, struct staging *s)
{
    struct err e = {0};
    int r = staging_publish_alone(m, s, /* is_last= */ true, &e);
    if (r < 0)
        count_failure(m, s, r, &e);
    else if (s->is_clean || staging_is_unlinked(m, s))
        uncount_failure(m, s);
    strand(m, s);
    if (r < 0 || !s->is_clean)
        staging_spoil(m, s->node);
    staging_keep(m, s);
    staging_drop_target(m, s);
}

static void begin_ending_locked(struct staging *s)
{
    struct stat st;
    s->has_last_time = sys->fstat(staging_fd(s), &st) == 0;
    s->last_time_ns = s->has_last_time ? staging_time_locked(s, &st) : 0;
    s->state = STAGING_ENDING;
}

void staging_release(struct mount *m, struct staging *s)
{
    lock_take(node_table_lock(m->nodes));
    bool is_last = s->refs == 1;
    if (is_last)
        begin_ending_locked(s);
    else
        s->refs--;
    if (is_last && s->kept)
        s->kept->is_ending = true;
    lock_drop(node_table_lock(m->nodes));
    if (!is_last)
        return;
    enter(m, s);
    publish_last(m, s);
    if (staging_goes_on_late(m, s))
        return;
    /* What was stored while that was published, before the mapping ended: now nobody stores any more. */
    if (atomic_load(&s->may_be_mapped) && s->is_clean && !staging_is_clean_alone(s))
        publish_last(m, s);
    end(m, s);
}

void staging_end_writing_locked(struct staging *s)
{
    assert(s->n_writers > 0);
    s->n_writers--;
}

void staging_release_writing(struct mount *m, struct staging *s)
{
    lock_take(node_table_lock(m->nodes));
    staging_end_writing_locked(s);
    lock_drop(node_table_lock(m->nodes));
    staging_release(m, s);
}

/* One that is ready and was not visited in this round, referenced. */
static struct staging *next_ready(struct mount *m, struct staging *const *seen, size_t n_seen)
{
    LOCK_SCOPE(node_table_lock(m->nodes));
    for (struct staging *s = m->stagings.first; s; s = s->next) {
        bool is_seen = false;
        for (size_t i = 0; i < n_seen; i++)
            is_seen |= seen[i] == s;
        if (is_seen || s->state != STAGING_READY)
            continue;
        s->refs++;
        return s;
    }
    return NULL;
}

static void wait_for_endings(struct mount *m)
{
    LOCK_SCOPE(node_table_lock(m->nodes));
    for (struct staging *s = m->stagings.first; s;) {
        if (s->state == STAGING_ENDING) {
            cond_wait(&m->stagings.changed, node_table_lock(m->nodes));
            s = m->stagings.first;
        } else {
            s = s->next;
        }
    }
}

void staging_publish_all(struct mount *m)
{
    struct staging **seen = NULL, *s;
    size_t n = 0;
    while ((s = next_ready(m, seen, n))) {
        struct err e = {0};
        seen = realloc(seen, (n + 1) * sizeof(seen[0]));
        if (!seen)
            abort();
        seen[n++] = s;
        int r = staging_publish(m, s, &e);
        if (r < 0)
            count_failure(m, s, r, &e);
    }
    for (size_t i = 0; i < n; i++)
        staging_release(m, seen[i]);
    free(seen);
    wait_for_endings(m);
}

/* ---- the file ---- */

int staging_fd(const struct staging *s)
{
    return atomic_load(&s->fd);
}

void staging_expect_mapping(struct staging *s)
{
    atomic_store(&s->may_be_mapped, true);
    if (s->kept)
        s->kept->may_be_mapped = true;
}

bool staging_may_be_mapped(const struct staging *s)
{
    return atomic_load(&s->may_be_mapped);
}

void staging_changed(struct staging *s)
{
    (void)atomic_fetch_add(&s->n_changes, 1);
}

int staging_truncate(struct staging *s, uint64_t size_bytes)
{
    int r = sys->ftruncate(staging_fd(s), size_bytes);
    if (r == 0 && size_bytes == 0 &&
        atomic_load(&s->fault) < 0) { /* whatever is there next is written anew */
        atomic_store(&s->was_faulty, true);
        atomic_store(&s->fault, 0);
        if (s->kept)
            atomic_store(&s->kept->fault, 0);
    }
    staging_changed(s);
    return r;
}

int staging_stat_locked(const struct staging *s, struct stat *ret)
{
    int fd = staging_fd(s);
    int r = fd < 0 ? -ENOENT : sys->fstat(fd, ret);
    if (r < 0)
        return r;
    bool is_ending = s->state == STAGING_ENDING && s->has_last_time;
    uint64_t ns = is_ending ? s->last_time_ns : staging_time_locked(s, ret);
    ret->st_mtim = (struct timespec){(time_t)(ns / NS_PER_S), (long)(ns % NS_PER_S)};
    return 0;
}

uint64_t staging_time_locked(const struct staging *s, const struct stat *st)
{
    bool as_then = s->has_time && st->st_mtim.tv_sec == s->time_of_file.tv_sec &&
                   st->st_mtim.tv_nsec == s->time_of_file.tv_nsec &&
                   atomic_load(&s->n_changes) == s->time_changes;
    return as_then ? s->time_ns : (uint64_t)st->st_mtim.tv_sec * NS_PER_S + (uint64_t)st->st_mtim.tv_nsec;
}

void staging_set_time_locked(struct staging *s, uint64_t time_ns)
{
    struct stat st;
    s->time_changes = atomic_load(&s->n_changes);
    s->has_time = sys->fstat(staging_fd(s), &st) == 0;
    s->time_of_file = s->has_time ? st.st_mtim : (struct timespec){0};
    s->time_ns = time_ns;
}

static void set_unlinked_locked(struct staging *s, bool is_unlinked, bool is_doubtful)
{
    atomic_store(&s->is_unlinked, is_unlinked);
    s->is_doubtful = is_doubtful;
    if (s->kept)
        s->kept->is_unlinked = is_unlinked;
}

bool staging_begin_unlink(struct mount *m, struct staging *s)
{
    enter(m, s);         /* a publication that runs ends first, so that its object is removed too */
    if (s->is_of_before) /* that publication, too */
        before_wait();
    bool is_published = atomic_load(&s->is_published) || s->may_be_published;
    lock_take(node_table_lock(m->nodes));
    set_unlinked_locked(s, /* is_unlinked= */ true, /* is_doubtful= */ true);
    lock_drop(node_table_lock(m->nodes));
    leave(m, s);
    return is_published;
}

/* Not by `enter`: who waits for this has entered. */
void staging_end_unlink(struct mount *m, struct staging *s, bool is_unlinked)
{
    LOCK_SCOPE(node_table_lock(m->nodes));
    set_unlinked_locked(s, is_unlinked, /* is_doubtful= */ false);
    cond_broadcast(&m->stagings.changed);
}

bool staging_is_unlinked(struct mount *m, struct staging *s)
{
    LOCK_SCOPE(node_table_lock(m->nodes));
    while (s->is_doubtful)
        cond_wait(&m->stagings.changed, node_table_lock(m->nodes));
    return atomic_load(&s->is_unlinked);
}

bool staging_is_unpublished(const struct staging *s)
{
    return !atomic_load(&s->is_published);
}

void staging_hold(struct mount *m, struct staging *s)
{
    LOCK_SCOPE(node_table_lock(m->nodes));
    while (s->is_busy && !s->is_awaited)
        cond_wait(&m->stagings.changed, node_table_lock(m->nodes));
    s->is_busy = true;
    s->is_awaited = false;
    if (s->kept)
        s->kept->is_moving = true;
}

int staging_publish_held(struct mount *m, struct staging *s, struct err *e)
{
    int r = staging_publish_alone(m, s, /* is_last= */ false, e);
    staging_keep(m, s);
    return r;
}

int staging_publish_to_move(struct mount *m, struct staging *s, struct err *e)
{
    return s->is_replaced ? -ESTALE : staging_publish_held(m, s, e);
}

void staging_end_move(struct mount *m, struct staging *s, bool has_moved)
{
    if (has_moved)
        staging_drop_target(m, s);
    if (s->kept)
        s->kept->is_moving = false;
    leave(m, s);
}

static bool is_wanted_locked(const struct staging *s, const struct node *dir, enum staging_which which)
{
    const struct node *n = s->node;
    if (which == STAGING_SPOILT)
        return n->parent == dir && !n->is_attached && !n->is_unlinked;
    if (which == STAGING_BELOW)
        return !n->is_unlinked && node_is_within_locked(n, dir);
    return n->is_attached && n->parent == dir && staging_is_unpublished(s);
}

void staging_each(struct mount *m, struct node *dir, enum staging_which which,
                  void (*each)(void *arg, struct node *n), void *arg)
{
    struct node **found = NULL;
    size_t n = 0;
    lock_take(node_table_lock(m->nodes));
    for (struct staging *s = m->stagings.first; s; s = s->next) {
        if (!is_wanted_locked(s, dir, which))
            continue;
        found = realloc(found, (n + 1) * sizeof(found[0]));
        if (!found)
            abort();
        s->node->refs++;
        found[n++] = s->node;
    }
    lock_drop(node_table_lock(m->nodes));
    for (size_t i = 0; i < n; i++)
        each(arg, found[i]);
    free(found);
}

/* ---- who is left ---- */

static bool is_left_locked(const struct node *n)
{
    const struct staging *s = n->staging;
    bool is_settled = s && s->state == STAGING_READY && !s->is_resumed && !s->is_doubtful;
    return is_settled && s->n_writers == 0 && n->is_attached && n->etag_n > 0 &&
           atomic_load(&s->is_published) && !atomic_load(&s->is_unlinked) && !atomic_load(&s->may_be_mapped);
}

bool staging_is_left(struct mount *m, const struct node *n)
{
    LOCK_SCOPE(node_table_lock(m->nodes));
    return is_left_locked(n);
}

/* Not when it is written again meanwhile, or was renamed. */
static bool lose_name(struct mount *m, struct node *n, struct slice etag, uint64_t moved_by)
{
    struct staging *s;
    if (staging_acquire(m, n, STAGING_JOIN, &s, NULL) < 0)
        return false;
    enter(m, s);
    bool is_clean = staging_is_clean_alone(s);
    lock_take(node_table_lock(m->nodes));
    bool loses = is_clean && is_left_locked(n) && n->moved_by == moved_by && !pause_covers_locked(m, n) &&
                 slice_eq(slice_of(n->etag, n->etag_n), etag);
    if (loses) {
        s->is_replaced = true;
        set_unlinked_locked(s, /* is_unlinked= */ true, /* is_doubtful= */ false);
        node_detach_locked(m->nodes, n, /* is_unlinked= */ true);
    }
    lock_drop(node_table_lock(m->nodes));
    leave(m, s);
    staging_release(m, s);
    return loses;
}

/* ERR_PRECONDITION: another one is there. By an open, which follows what our own changes have made of the
 * version, and what the node has sent since. */
static int ask_for_version(struct mount *m, struct node *n, char **ret_etag, struct err *e)
{
    _cleanup_buf_ struct buf key = BUF_INIT(MOUNT_KEY_MAX_BYTES);
    _cleanup_(client_file_closep) struct client_file *f = NULL;
    int r = mount_key(m, n, SLICE_NULL, &key);
    struct client_file_open o = {.bucket = slice_str(m->bucket), .key = buf_view(&key), .no_fd = true};
    return r < 0 ? r : mount_open_version(m, n, &o, &f, ret_etag, e);
}

int staging_check_left(struct mount *m, struct node *n, struct err *e)
{
    lock_take(node_table_lock(m->nodes));
    bool is_left = is_left_locked(n);
    uint64_t serial, moved_by = n->moved_by;
    lock_drop(node_table_lock(m->nodes));
    if (!is_left)
        return 0;
    queue_may_wait();
    _cleanup_free_ char *etag = NULL;
    bool is_gone;
    int r;
    do {
        free(TAKE_PTR(etag));
        serial = pause_serial(m);
        r = ask_for_version(m, n, &etag, e);
        is_gone = r == -ENOENT || r == ERR_PRECONDITION;
    } while (is_gone && pause_was(m, serial, n));
    if (!is_gone)
        return r;
    return etag && lose_name(m, n, slice_str(etag), moved_by) ? -ESTALE : 0;
}

/* ---- taking over ---- */

struct staging *staging_join_locked(struct node *n, bool is_writing)
{
    struct staging *s = n->staging;
    if (!s || s->state != STAGING_READY)
        return NULL;
    s->refs++;
    s->n_writers += is_writing;
    return s;
}

/* The staging file of the node is gone with the session of the process before: later publications copy. */
static void resume(struct mount *m, struct staging_kept *c, struct node *n, int fd)
{
    lock_take(node_table_lock(m->nodes));
    struct staging *s = new_locked(m, n);
    s->kept = c;
    s->state = c->is_ending ? STAGING_ENDING : STAGING_READY;
    s->is_resumed = true;
    s->is_busy = s->is_awaited = c->is_moving;
    while (c->slot >= m->stagings.n_slots || !m->stagings.slots[c->slot]) {
        uint32_t slot;
        (void)take_slot_locked(&m->stagings, &slot); /* those before it that are free: given back below */
    }
    lock_drop(node_table_lock(m->nodes));
    s->tells_changes = has_fine_times(m, fd);
    atomic_store(&s->fd, fd);
    atomic_store(&s->is_published, c->is_published);
    s->is_of_before = true;
    s->may_be_published = c->may_be_published;
    atomic_store(&s->is_unlinked, c->is_unlinked);
    atomic_store(&s->may_be_mapped, c->may_be_mapped);
    atomic_store(&s->fault, atomic_load(&c->fault));
    s->is_clean = c->is_clean;
    s->is_overtaken = s->has_failed = c->is_overtaken;
    s->failed_code = -EIO;
    (void)snprintf(s->failed_text, sizeof(s->failed_text), "%s", err_text(-EIO));
    s->seen_stat.st_size = c->size;
    s->seen_stat.st_mtim = c->mtime;
    s->has_time = c->has_time;
    s->time_ns = c->time_ns;
    s->time_of_file = c->time_of_file;
}

static bool is_slot_used(struct mount *m, size_t slot)
{
    for (const struct staging *s = m->stagings.first; s; s = s->next)
        if (s->kept && s->kept->slot == slot)
            return true;
    return false;
}

/* What nobody knows of is of a staging that had ended, or not quite begun. */
static void drop_unused_slots(struct mount *m)
{
    const int *held = kept_held(m->seat.kept);
    for (size_t i = 0; i < KEPT_SLOTS_MAX; i++) {
        bool is_known = i < m->stagings.n_slots && m->stagings.slots[i];
        if (!is_known && held[i] == 0)
            continue;
        bool is_used = is_slot_used(m, i);
        if (is_known)
            m->stagings.slots[i] = is_used;
        if (is_used || held[i] == 0)
            continue;
        (void)close(held[i] - 1);
        keeper_drop(&m->seat, (uint32_t)i);
    }
}

void stagings_resume(struct mount *m)
{
    for (struct staging_kept *c = NULL, *next = kept_next(m->seat.kept, KEPT_STAGING, NULL); (c = next);) {
        next = kept_next(m->seat.kept, KEPT_STAGING, c);
        bool is_whole = c->magic == STAGING_KEPT_MAGIC;
        int fd = is_whole && c->slot < KEPT_SLOTS_MAX ? kept_held(m->seat.kept)[c->slot] - 1 : -1;
        struct node *n = is_whole ? node_get(m->nodes, c->node_id) : NULL;
        if (n && fd >= 0 && !n->staging) {
            resume(m, c, n, fd);
        } else {
            if (is_whole)
                log_error("mount", "what was written to inode %llu and not published is lost",
                          (unsigned long long)(n ? n->ino : c->node_id));
            if (is_whole && n && !n->staging)
                staging_spoil(m, n);
            c->magic = 0;
            kept_give(m->seat.kept, c);
        }
        node_unref(m->nodes, n);
    }
    drop_unused_slots(m);
}

bool stagings_are_awaited(struct mount *m)
{
    LOCK_SCOPE(node_table_lock(m->nodes));
    bool any = false;
    for (const struct staging *s = m->stagings.first; s; s = s->next)
        any = any || s->is_awaited;
    return any;
}

void stagings_resumed(struct mount *m)
{
    for (;;) {
        lock_take(node_table_lock(m->nodes));
        struct staging *s = m->stagings.first;
        while (s && !s->is_resumed)
            s = s->next;
        bool was_awaited = s && s->is_awaited; /* in vain */
        if (s)
            s->is_resumed = s->is_awaited = false;
        lock_drop(node_table_lock(m->nodes));
        if (!s)
            return;
        if (was_awaited)
            staging_end_move(m, s, /* has_moved= */ false);
        staging_release(m, s);
    }
}

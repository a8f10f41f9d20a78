/*
 * The notifier (contract in notify.h).
 *
 * Invariants:
 *  1. The mount is said to be ready when the kernel's INIT is over and it is known whether backing files can
 * be registered.
 *  2. Of inodes that were not looked up for long as many names are dropped as bring the count below
 * MOUNT_NODES_MAX, and what is held (holdings.h) down to three quarters of the limit.
 *  3. Every name to be dropped is: the kernel may have been told to believe it for long. So many wait at most
 * as there are nodes.
 *  4. Of names that shall be asked for again EXPIRING_MAX wait at most; above, every name is.
 *
 * Failure modes: without the right to change the read-ahead of the mount, reads that are not passed through
 * come in pieces of 128 KiB; said in the log.
 */
#include "mount/holdings.h"
#include "mount/mount_internal.h"
#include "mount/mountinfo.h"
#include "mount/queue.h"

#include "base/log.h"
#include "base/sys.h"

#include <fcntl.h>
#include <malloc.h>
#include <string.h>
#include <sys/mman.h>

#define QUEUE_MIN      64
#define TRIM_AT_ONCE   256
#define EXPIRING_MAX   8192
#define LOOKED_BACK    16          /* at names that wait, for the same one */
#define TRIM_MISSES    64          /* turns in which no inode was found that can go, until it is given up */
#define NODE_BYTES     384         /* of an inode, about: what dropping its name brings */
#define EASE_NS        50000000ull /* most time that who makes inodes waits for others to go */
#define RETURN_EVERY   65536       /* dropped inodes, until their freed memory is given back */
#define LOOK_EVERY_NS  (5 * 1000000000ull) /* whether the node was restarted and needs a new report */
#define READ_AHEAD_KIB 1024
#define TELLING_NS     (1000000000ull) /* that take longer wait for a program */

struct name {
    uint64_t parent_id; /* without text: of the inode whose attributes are meant */
    char *text;         /* may be NULL */
    size_t n;
    struct node *node; /* referenced and kept; may be NULL */
    bool expires;      /* asked for again, and stays until the answer is another one; and then also: */
    bool is_dir;
    uint64_t id; /* the inode that it names, whose attributes are asked for again, too; 0: none */
};

struct notifier {
    struct mount *m;
    uint64_t epoch; /* at the start: what the node was asked for since may be of another session already */
    pthread_t thread;
    uint64_t n_trimmed, n_to_trim; /* the thread's own */
    unsigned n_misses;             /* the same */
    struct lock lock;              /* covers what follows */
    struct cond woken, eased;
    struct name *queue;
    size_t n_queue, queue_room;
    size_t n_expiring; /* in the queue */
    bool must_ease, must_expire_all;
    atomic_bool must_stop; /* set under the lock */
    bool is_telling;       /* the kernel, by the descriptor that unmounting closes */
};

/* ---- at the start ---- */

/* A file of no file system that could be refused, to learn what the kernel and our rights allow. */
static int try_passthrough(struct mount *m)
{
    _cleanup_close_ int fd = memfd_create("forebay", MFD_CLOEXEC);
    if (fd < 0)
        return -errno;
    int id = passthrough_register(m->se, fd);
    if (id > 0)
        passthrough_unregister(m->se, id);
    return id < 0 ? id : 0;
}

static void probe(struct mount *m)
{
    if (m->options->profile == MOUNT_PROFILE_READ_ONLY) {
        (void)snprintf(m->reason, sizeof(m->reason), "the read-only profile reads through the page cache");
    } else if (m->options->passthrough == MOUNT_PASSTHROUGH_OFF) {
        (void)snprintf(m->reason, sizeof(m->reason), "switched off");
    } else if (!client_passes_fds(m->client)) {
        (void)snprintf(m->reason, sizeof(m->reason), "the node at %s gives bytes and no files",
                       client_address(m->client));
    } else if (!atomic_load(&m->is_offered)) {
        (void)snprintf(m->reason, sizeof(m->reason), "the kernel does not have it (Linux 6.9 and later do)");
    } else {
        int r = try_passthrough(m);
        if (r == 0)
            atomic_store(&m->is_passthrough, true);
        else
            (void)snprintf(m->reason, sizeof(m->reason), "%s",
                           r == -EPERM ? "needs the capability CAP_SYS_ADMIN" : err_text(r));
    }
    atomic_store(&m->is_cached, !atomic_load(&m->is_passthrough));
}

static void raise_read_ahead(unsigned major, unsigned minor)
{
    char path[128], text[16];
    (void)snprintf(path, sizeof(path), "/sys/class/bdi/%u:%u/read_ahead_kb", major, minor);
    int n = snprintf(text, sizeof(text), "%d\n", READ_AHEAD_KIB);
    _cleanup_close_ int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, text, (size_t)n) != n)
        log_info("mount", "%s cannot be raised (%s): reads come in small pieces", path, err_text(-errno));
}

static void report(struct mount *m)
{
    struct wire_report_req req = {
        .mount_point = slice_str(m->options->directory),
        .bucket = slice_str(m->options->bucket),
        .passthrough = atomic_load(&m->is_passthrough),
        .reason = slice_str(m->reason),
    };
    struct wire_report_rep rep;
    struct err e = {0};
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    if (client_report(m->client, &req, &b, &rep, &e) < 0)
        log_debug("mount", "report: %s", e.text);
}

/* Passthrough was demanded and there is none: ends the mount, and with it the loop that serves it. */
static void give_up(struct mount *m)
{
    atomic_store(&m->is_given_up, true);
    fuse_session_exit(m->se);
    struct err e = {0};
    if (mount_detach(m->options->directory, &e) < 0)
        log_error("mount", "%s", e.text);
}

/* The line comes after `ready`, which turns the log to where it shall go; the keeper knows before anybody
 * else. */
static void begin_service(struct notifier *n)
{
    struct mount *m = n->m;
    struct kept_facts *facts = kept_facts(m->seat.kept);
    facts->is_passthrough = atomic_load(&m->is_passthrough);
    keeper_tell_ready(&m->seat, facts->can_resume ? fuse_session_fd(m->se) : -1);
    if (m->calls->ready)
        m->calls->ready(m->calls->arg);
    if (atomic_load(&m->is_passthrough))
        log_info("mount", "%s on %s: passthrough is used", m->options->bucket, m->options->directory);
    else
        log_info("mount", "%s on %s: no passthrough: %s", m->options->bucket, m->options->directory,
                 m->reason);
}

/* ---- work ---- */

/* Whether the kernel may still be told something. */
static bool begin_telling(struct notifier *n)
{
    LOCK_SCOPE(&n->lock);
    n->is_telling = !n->must_stop;
    return n->is_telling;
}

static void end_telling(struct notifier *n)
{
    LOCK_SCOPE(&n->lock);
    n->is_telling = false;
    cond_broadcast(&n->woken);
}

static void drop_name(struct mount *m, uint64_t parent_id, const char *name, size_t n)
{
    if (!begin_telling(m->notifier))
        return;
    (void)fuse_lowlevel_notify_inval_entry(m->se, parent_id, name,
                                           n); /* -ENOENT: it has dropped it already */
    end_telling(m->notifier);
}

static void drop_attributes(struct mount *m, uint64_t id)
{
    if (!begin_telling(m->notifier))
        return;
    (void)fuse_lowlevel_notify_inval_inode(m->se, id, /* off= */ -1, /* len= */ 0);
    end_telling(m->notifier);
}

/* What is in use stays in place, as do mounts below a directory. A kernel that cannot do this (before Linux
 * 6.2) drops the name, which of a directory would be too much. */
static void expire_name(struct mount *m, uint64_t parent_id, const char *name, size_t n, bool is_dir)
{
    if ((is_dir && !m->can_expire) || !begin_telling(m->notifier))
        return;
    if (m->can_expire)
        (void)passthrough_expire_name(m->se, parent_id, name, n);
    else
        (void)fuse_lowlevel_notify_inval_entry(m->se, parent_id, name, n);
    end_telling(m->notifier);
}

static void expire_node(struct mount *m, uint64_t id)
{
    drop_attributes(m, id);
    struct node *n = node_get(m->nodes, id);
    if (!n)
        return;
    lock_take(node_table_lock(m->nodes));
    bool has_name = n->is_attached && n->parent;
    uint64_t parent_id = has_name ? n->parent->id : 0;
    size_t name_n = n->name_n;
    _cleanup_free_ char *name = slice_dup(slice_of(n->name, name_n));
    bool is_dir = n->is_dir;
    lock_drop(node_table_lock(m->nodes));
    if (has_name)
        expire_name(m, parent_id, name, name_n, is_dir);
    node_unref(m->nodes, n);
}

static void expire_absent(void *arg, uint64_t parent_id, struct slice name)
{
    _cleanup_free_ char *text = slice_dup(name);
    expire_name(arg, parent_id, text, name.n, /* is_dir= */ false);
}

/* One by one: by an epoch the kernel drops names, and what is mounted below them; used where it believes more
 * names to be absent than are remembered. */
static void expire_all(struct mount *m)
{
    _cleanup_free_ uint64_t *ids = NULL;
    size_t n = node_table_ids(m->nodes, &ids);
    drop_attributes(m, NODE_ROOT_ID);
    for (size_t i = 0; i < n; i++)
        expire_node(m, ids[i]);
    if (absent_take(m->absent, sys_mono_ms(), expire_absent, m) || !begin_telling(m->notifier))
        return;
    (void)passthrough_forget_names(m->se);
    end_telling(m->notifier);
}

static void tell(struct mount *m, const struct name *x)
{
    if (x->expires && x->id)
        drop_attributes(m, x->id);
    if (x->expires)
        expire_name(m, x->parent_id, x->text, x->n, x->is_dir);
    else if (x->text)
        drop_name(m, x->parent_id, x->text, x->n);
    else
        drop_attributes(m, x->parent_id);
}

static size_t name_bytes(const struct name *x)
{
    return sizeof(*x) + (x->text ? holdings_chunk(x->n + 1) : 0);
}

static void name_fini(struct mount *m, struct name *x)
{
    holdings_give(HOLDING_INODES, name_bytes(x));
    free(x->text);
    if (!x->node)
        return;
    lock_take(node_table_lock(m->nodes));
    node_unkeep_locked(m->nodes, x->node);
    lock_drop(node_table_lock(m->nodes));
    node_unref(m->nodes, x->node);
}

/* One inode that was not looked up for long. false: none was found. */
static bool trim_one(struct mount *m)
{
    struct node *n = node_table_oldest(m->nodes);
    if (!n)
        return false;
    lock_take(node_table_lock(m->nodes)); /* a rename frees the old name */
    uint64_t parent_id = n->parent->id;
    size_t name_n = n->name_n;
    _cleanup_free_ char *name = slice_dup(slice_of(n->name, name_n));
    lock_drop(node_table_lock(m->nodes));
    drop_name(m, parent_id, name, name_n);
    node_unref(m->nodes, n);
    /* Threads allocate each for itself, and do not take what another one has freed. */
    if (++m->notifier->n_trimmed % RETURN_EVERY == 0)
        (void)malloc_trim(0);
    return true;
}

static void trim(struct notifier *n)
{
    for (int i = 0; i < TRIM_AT_ONCE && n->n_to_trim > 0; i++) {
        if (trim_one(n->m)) {
            n->n_to_trim--;
            n->n_misses = 0;
        } else if (++n->n_misses > TRIM_MISSES) {
            n->n_to_trim = 0;
        }
    }
    LOCK_SCOPE(&n->lock);
    cond_broadcast(&n->eased);
}

/* Whether so much is held that some has to go; how many bytes. */
static uint64_t excess(void)
{
    uint64_t bytes = holdings_excess(), resident = holdings_resident_excess();
    if (bytes == 0 && resident > 0) {
        (void)malloc_trim(0);
        resident = holdings_resident_excess();
    }
    return MAX(bytes, resident);
}

static void ease(struct notifier *n)
{
    struct mount *m = n->m;
    uint64_t bytes = excess(), before = holdings_total();
    if (bytes > 0 && m->kind->let_go)
        m->kind->let_go(m, bytes);
    if (!m->nodes)
        return;
    uint64_t gone = before - MIN(before, holdings_total()), count = node_table_count(m->nodes);
    uint64_t for_memory = bytes > gone ? (bytes - gone) / NODE_BYTES : 0;
    uint64_t for_count = count > MOUNT_NODES_MAX ? count - MOUNT_NODES_MAX : 0;
    n->n_to_trim = MIN(MAX(for_memory, for_count), count);
    n->n_misses = 0;
}

struct work {
    struct name *names;
    size_t n;
    bool eases, expires_all;
};

/* Takes what is to do; false: stop. */
static bool take_work(struct notifier *n, struct work *ret)
{
    LOCK_SCOPE(&n->lock);
    bool must_ease = n->must_ease;
    if (!n->must_stop && n->n_queue == 0 && !n->must_expire_all && !n->must_ease && n->n_to_trim == 0)
        must_ease = cond_wait_for(&n->woken, &n->lock, LOOK_EVERY_NS) < 0 || n->must_ease; /* now and then */
    *ret = (struct work){TAKE_PTR(n->queue), n->n_queue, must_ease, n->must_expire_all};
    n->n_queue = n->queue_room = n->n_expiring = 0;
    n->must_ease = n->must_expire_all = false;
    return !n->must_stop;
}

static void do_work(struct notifier *n, struct work *w, bool is_over)
{
    struct mount *m = n->m;
    for (size_t i = 0; i < w->n; i++) {
        if (!is_over)
            tell(m, &w->names[i]);
        name_fini(m, &w->names[i]);
    }
    free(w->names);
    if (w->expires_all && !is_over)
        expire_all(m);
    if (w->eases && !is_over && n->n_to_trim == 0)
        ease(n);
    if (!is_over)
        trim(n);
}

static void *notifier_main(void *arg)
{
    struct notifier *n = arg;
    struct mount *m = n->m;
    struct mountinfo at;
    client_stop_when(&n->must_stop);
    bool is_found = mountinfo_find(m->options->directory, &at);
    if (is_found || mount_takes_over(m)) { /* which may lie elsewhere by now: moved, or bound and detached */
        probe(m);
        if (is_found)
            raise_read_ahead(at.major, at.minor);
        if (!mount_takes_over(m))
            report(m);
        if (m->options->passthrough == MOUNT_PASSTHROUGH_ON && !atomic_load(&m->is_passthrough))
            give_up(m);
        else
            begin_service(n);
        /* Not before: the node may be away by now, and a keeper gives up who does not serve in time. */
        if (mount_takes_over(m))
            report(m);
        if (mount_takes_over(m) && m->kind->resumed)
            m->kind->resumed(m);
    }
    uint64_t epoch = n->epoch;
    bool is_renewed = !mount_takes_over(m) || !m->kind->on_session; /* what it began may have failed */
    struct work work;
    bool go_on;
    do {
        go_on = take_work(n, &work);
        do_work(n, &work, /* is_over= */ !go_on);
        if (go_on && client_epoch(m->client) != epoch) {
            epoch = client_epoch(m->client);
            report(m);
            is_renewed = !m->kind->on_session;
        }
        if (go_on && !is_renewed)
            is_renewed = m->kind->on_session(m);
    } while (go_on);
    return NULL;
}

void notifier_start(struct mount *m, uint64_t epoch)
{
    struct notifier *n = calloc(1, sizeof(*n));
    if (!n)
        abort();
    n->m = m;
    n->epoch = epoch;
    lock_init(&n->lock, LOCK_LEAF);
    cond_init(&n->woken);
    cond_init(&n->eased);
    m->notifier = n; /* its first act may need it */
    if (pthread_create(&n->thread, NULL, notifier_main, n) != 0)
        abort();
}

void notifier_silence(struct notifier *n)
{
    LOCK_SCOPE(&n->lock);
    n->must_stop = true;
    cond_broadcast(&n->woken);
    cond_broadcast(&n->eased);
    uint64_t until_ms = sys_mono_ms() + TELLING_NS / 1000000;
    while (n->is_telling && sys_mono_ms() < until_ms)
        (void)cond_wait_for(&n->woken, &n->lock, TELLING_NS / 10);
}

void notifier_stop(struct notifier *n)
{
    if (!n)
        return;
    (void)pthread_join(n->thread, NULL);
    for (size_t i = 0; i < n->n_queue; i++)
        name_fini(n->m, &n->queue[i]);
    free(n->queue);
    cond_fini(&n->woken);
    cond_fini(&n->eased);
    lock_fini(&n->lock);
    free(n);
}

static void add_name_locked(struct notifier *n, struct name x)
{
    if (n->n_queue == n->queue_room) {
        n->queue_room = MAX(2 * n->queue_room, QUEUE_MIN);
        n->queue = realloc(n->queue, n->queue_room * sizeof(n->queue[0]));
        if (!n->queue)
            abort();
    }
    holdings_take(HOLDING_INODES, name_bytes(&x));
    n->queue[n->n_queue++] = x;
    cond_signal(&n->woken);
}

static void add_name(struct notifier *n, struct name x)
{
    LOCK_SCOPE(&n->lock);
    add_name_locked(n, x);
}

static bool waits_locked(const struct notifier *n, uint64_t parent_id, struct slice name, uint64_t id)
{
    for (size_t i = n->n_queue; i > 0 && i + LOOKED_BACK > n->n_queue; i--) {
        const struct name *x = &n->queue[i - 1];
        if (x->expires && x->parent_id == parent_id && x->id == id && slice_eq(slice_of(x->text, x->n), name))
            return true;
    }
    return false;
}

void notifier_expire_name(struct notifier *n, uint64_t parent_id, struct slice name, bool is_dir, uint64_t id)
{
    LOCK_SCOPE(&n->lock);
    if (n->must_expire_all || waits_locked(n, parent_id, name, id))
        return;
    if (n->n_expiring >= EXPIRING_MAX) {
        n->must_expire_all = true;
        cond_signal(&n->woken);
        return;
    }
    n->n_expiring++;
    add_name_locked(n, (struct name){.parent_id = parent_id,
                                     .text = slice_dup(name),
                                     .n = name.n,
                                     .expires = true,
                                     .is_dir = is_dir,
                                     .id = id});
}

void notifier_expire_all(struct notifier *n)
{
    LOCK_SCOPE(&n->lock);
    n->must_expire_all = true;
    cond_signal(&n->woken);
}

void notifier_drop_name(struct notifier *n, uint64_t parent_id, const char *name, size_t name_n)
{
    add_name(n,
             (struct name){.parent_id = parent_id, .text = slice_dup(slice_of(name, name_n)), .n = name_n});
}

void notifier_drop_believed_locked(struct notifier *n, struct node *x)
{
    x->refs++;
    node_keep_locked(n->m->nodes, x);
    add_name(n, (struct name){.parent_id = x->parent->id,
                              .text = slice_dup(slice_of(x->name, x->name_n)),
                              .n = x->name_n,
                              .node = x});
}

void notifier_drop_node(struct notifier *n, struct node *x)
{
    if (!n)
        return;
    LOCK_SCOPE(node_table_lock(n->m->nodes));
    if (x->is_attached && x->parent)
        notifier_drop_name(n, x->parent->id, x->name, x->name_n);
}

void notifier_drop_attributes(struct notifier *n, uint64_t node_id)
{
    add_name(n, (struct name){.parent_id = node_id});
}

void notifier_poke(struct notifier *n)
{
    bool has_many = n->m->nodes && node_table_count(n->m->nodes) > MOUNT_NODES_MAX;
    if (!has_many && holdings_excess() == 0)
        return;
    bool waits = holdings_is_over() && n->m->nodes;
    if (waits)
        queue_may_wait();
    LOCK_SCOPE(&n->lock);
    n->must_ease = true;
    cond_signal(&n->woken);
    if (waits && !n->must_stop)
        (void)cond_wait_for(&n->eased, &n->lock, EASE_NS);
}

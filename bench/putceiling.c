/*
 * What a PUT can cost at the least: receives bodies, computes their MD5 and CRC-32C, writes them to files of
 * a directory, syncs each and answers. The same client that loads a node loads this, and a node's rate is
 * compared with it.
 *
 *     putceiling DIR [opaque | discard]
 *
 * Listens on a free port of the loopback, prints "putceiling: listening on HOST:PORT", and runs until it is
 * killed. With "opaque" no MD5 is computed, as where a service promises none; with "discard" bodies are
 * received and forgotten, which is the loopback's own rate.
 *
 * Nothing is done in a PUT's time that can be done before, beside or after it. One thread for each connection
 * receives, sums and writes, in pieces that stay in a processor's cache. The MD5 is computed by another
 * thread, of all connections at once (base/hasher.h). A third makes files ahead, whose names are on the disk
 * before anything is in them, and removes those that were replaced. Written pages are sent to the disk on the
 * way, and a fourth empties the disk's cache meanwhile, where that takes time, so that little is left for the
 * sync at the end.
 *
 * Invariants:
 *  1. An answer is sent after the file's data and its name are on the disk, but with "discard".
 *  2. The file of the body before it on the same connection is removed then, and a connection's last one when
 * it ends: the disk holds one with bytes for each connection, besides those being written and those about to
 * be removed, and READY empty ones.
 *
 * Failure modes: a request that is not a PUT with Content-Length, or a file that cannot be made or written,
 * ends the connection with one line on stderr. Nothing is authenticated: this is for the loopback.
 */
#include "base/chore.h"
#include "base/crc32c.h"
#include "base/err.h"
#include "base/hasher.h"
#include "base/slice.h"
#include "base/sys.h"
#include "net/sock.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#define PIECE_BYTES  (128 * KIB) /* as a node's: two of them stay in a processor's cache */
#define HEAD_BYTES   (16 * KIB)
#define SEND_BYTES   MIB       /* written pages are sent to the disk after so many */
#define EARLY_BYTES  (4 * MIB) /* and the file is synced after so many, beside */
#define WORTH_NS     ((uint64_t)1000000)
#define REST         256                   /* syncs that are left out after one that took less */
#define READY        64                    /* files that are made ahead */
#define LINGER_NS    ((uint64_t)200000000) /* freed after that, as a node frees */
#define GONE_AT_ONCE 16

struct file {
    int fd; /* -1: none */
    unsigned number;
};

struct gone {
    struct file file;
    uint64_t at_ns; /* given back */
};

static struct {
    int dir_fd;
    bool opaque;  /* no MD5 */
    bool discard; /* nothing at all */
    struct hasher *hasher;
    struct chore keeper, syncer;
    struct lock lock; /* covers what follows */
    struct cond filled;
    struct file ready[READY];
    unsigned n_ready, next;
    int failed;        /* what the last file that was to be made ahead failed with */
    struct gone *gone; /* to be removed, who waits longest first */
    size_t n_gone, room;
    int early_fd; /* to be synced; -1: none */
    bool is_syncing;
    unsigned rest;
} ceiling = {.early_fd = -1};

struct receiver {
    int fd;
    struct file kept; /* the body before */
    char *pieces[2];
    char head[HEAD_BYTES];
    size_t n; /* bytes in `head`: of a request, and what came with it */
};

struct request {
    size_t head;
    uint64_t length;
    bool has_length, expects;
};

struct sums {
    struct hasher_stream md5;
    uint32_t crc;
};

/* ---- files, ahead and behind ---- */

static void name_of(unsigned number, char ret[32])
{
    (void)snprintf(ret, 32, "object-%u", number);
}

static int make_file(struct file *ret)
{
    char name[32];
    lock_take(&ceiling.lock);
    struct file f = {.number = ceiling.next++};
    lock_drop(&ceiling.lock);
    name_of(f.number, name);
    f.fd = openat(ceiling.dir_fd, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (f.fd < 0)
        return -errno;
    *ret = f;
    return 0;
}

/* Of what nobody has used for LINGER_NS; how long it is until there is more. */
static uint64_t remove_gone(void)
{
    struct gone gone[GONE_AT_ONCE];
    size_t n = 0;
    uint64_t now_ns = sys->mono_ns(), left_ns = CHORE_UNTIL_CALLED;
    lock_take(&ceiling.lock);
    while (n < MIN(ceiling.n_gone, GONE_AT_ONCE) && ceiling.gone[n].at_ns + LINGER_NS <= now_ns) {
        gone[n] = ceiling.gone[n];
        n++;
    }
    ceiling.n_gone -= n;
    if (n > 0)
        memmove(ceiling.gone, ceiling.gone + n, ceiling.n_gone * sizeof(gone[0]));
    if (ceiling.n_gone > 0)
        left_ns = n > 0 ? 0 : ceiling.gone[0].at_ns + LINGER_NS - now_ns;
    lock_drop(&ceiling.lock);
    for (size_t i = 0; i < n; i++) {
        char name[32];
        name_of(gone[i].file.number, name);
        (void)unlinkat(ceiling.dir_fd, name, 0);
        (void)close(gone[i].file.fd);
    }
    return left_ns;
}

/* When half of the files are taken, as many as are missing, under names that are on the disk. */
static void make_ready(void)
{
    struct file made[READY];
    unsigned n = 0, wanted;
    int e = 0;
    lock_take(&ceiling.lock);
    wanted = ceiling.n_ready < READY / 2 ? READY - ceiling.n_ready : 0;
    lock_drop(&ceiling.lock);
    while (n < wanted && (e = make_file(&made[n])) == 0)
        n++;
    if (n > 0 && fsync(ceiling.dir_fd) < 0)
        e = -errno;
    LOCK_SCOPE(&ceiling.lock);
    ceiling.failed = e;
    for (unsigned i = 0; i < n; i++)
        if (e == 0)
            ceiling.ready[ceiling.n_ready++] = made[i];
        else
            (void)close(made[i].fd); /* nobody has it */
    cond_broadcast(&ceiling.filled);
}

static uint64_t keeper_turn(void *arg)
{
    (void)arg;
    make_ready(); /* what somebody waits for, first */
    return remove_gone();
}

static int take_ready(struct file *ret)
{
    LOCK_SCOPE(&ceiling.lock);
    while (ceiling.n_ready == 0) {
        chore_call(&ceiling.keeper);
        cond_wait(&ceiling.filled, &ceiling.lock);
        if (ceiling.n_ready == 0 && ceiling.failed)
            return ceiling.failed;
    }
    *ret = ceiling.ready[--ceiling.n_ready];
    if (ceiling.n_ready < READY / 2)
        chore_call(&ceiling.keeper);
    return 0;
}

static void give_back(struct file *f)
{
    if (f->fd < 0)
        return;
    LOCK_SCOPE(&ceiling.lock);
    if (ceiling.n_gone == ceiling.room) {
        ceiling.room = ceiling.room ? 2 * ceiling.room : 16;
        ceiling.gone = realloc(ceiling.gone, ceiling.room * sizeof(ceiling.gone[0]));
        assert(ceiling.gone);
    }
    ceiling.gone[ceiling.n_gone++] = (struct gone){*f, sys->mono_ns()};
    f->fd = -1;
    chore_call(&ceiling.keeper);
}

/* ---- to the disk, on the way ---- */

/* As hard_early.c of the store, of which it knows nothing. */
static uint64_t syncer_turn(void *arg)
{
    (void)arg;
    lock_take(&ceiling.lock);
    int fd = TAKE_FD(ceiling.early_fd);
    ceiling.is_syncing = fd >= 0;
    lock_drop(&ceiling.lock);
    if (fd < 0)
        return CHORE_UNTIL_CALLED;
    uint64_t began_ns = sys->mono_ns();
    (void)fdatasync(fd); /* a descriptor of its own: the sync at the end is told of errors, too */
    bool worth = sys->mono_ns() - began_ns >= WORTH_NS;
    (void)close(fd);
    LOCK_SCOPE(&ceiling.lock);
    ceiling.is_syncing = false;
    ceiling.rest = worth ? 0 : REST;
    return CHORE_UNTIL_CALLED;
}

static bool wants_early_sync(void)
{
    LOCK_SCOPE(&ceiling.lock);
    if (ceiling.early_fd >= 0 || ceiling.is_syncing)
        return false;
    if (ceiling.rest == 0)
        return true;
    ceiling.rest--;
    return false;
}

static void early_sync(struct file f)
{
    char name[32];
    name_of(f.number, name);
    int fd = wants_early_sync() ? openat(ceiling.dir_fd, name, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    lock_take(&ceiling.lock);
    if (ceiling.early_fd < 0)
        ceiling.early_fd = TAKE_FD(fd);
    lock_drop(&ceiling.lock);
    if (fd >= 0)
        (void)close(fd); /* another one came first */
    else
        chore_call(&ceiling.syncer);
}

/* ---- requests ---- */

static bool names(struct slice name, const char *text)
{
    return name.n == strlen(text) && strncasecmp(name.p, text, name.n) == 0;
}

static bool head_parse(struct slice head, struct request *ret)
{
    *ret = (struct request){.head = head.n};
    if (!slice_starts(head, SLICE_LIT("PUT ")))
        return false;
    while (head.n > 0) {
        struct slice value = slice_split(&head, '\r'), name = slice_split(&value, ':');
        (void)slice_split(&head, '\n');
        value = slice_trim(value);
        if (names(name, "content-length"))
            ret->has_length = slice_u64(value, &ret->length) == 0;
        else if (names(name, "expect"))
            ret->expects = true;
    }
    return ret->has_length;
}

/* A whole head at the front of the buffer: its length, or an error. */
static ssize_t head_read(struct receiver *r)
{
    for (;;) {
        char *end = memmem(r->head, r->n, "\r\n\r\n", 4);
        if (end)
            return end + 4 - r->head;
        if (r->n == HEAD_BYTES)
            return -E2BIG;
        ssize_t got = sock_recv_some(r->fd, r->head + r->n, HEAD_BYTES - r->n);
        if (got <= 0)
            return got == 0 ? -EPIPE : got;
        r->n += (size_t)got;
    }
}

/* The next n bytes of a body: first those that came with its head. */
static int piece_receive(struct receiver *r, char *p, size_t n)
{
    size_t have = MIN(r->n, n);
    memcpy(p, r->head, have);
    r->n -= have;
    memmove(r->head, r->head + have, r->n);
    while (have < n) {
        ssize_t got = sock_recv_some(r->fd, p + have, n - have);
        if (got <= 0)
            return got == 0 ? -EPIPE : (int)got;
        have += (size_t)got;
    }
    return 0;
}

/* A piece of the body: summed, and written. */
static int piece_take(struct sums *s, int fd, const char *p, size_t n)
{
    if (ceiling.discard)
        return 0;
    if (!ceiling.opaque)
        hasher_stream_add(&s->md5, p, n);
    s->crc = crc32c(s->crc, p, n);
    for (size_t done = 0; done < n;) {
        ssize_t w = write(fd, p + done, n - done);
        if (w < 0)
            return -errno;
        done += (size_t)w;
    }
    return 0;
}

static int body_take(struct receiver *r, uint64_t length, struct sums *s, struct file f)
{
    uint64_t at = 0, sent = 0, early = 0;
    int e = 0;
    for (unsigned turn = 0; at < length && e == 0; turn = !turn) {
        char *piece = r->pieces[turn];
        size_t n = MIN(length - at, PIECE_BYTES);
        hasher_stream_wait(&s->md5, piece, n);
        e = piece_receive(r, piece, n);
        e = e ? e : piece_take(s, f.fd, piece, n);
        at += n;
        if (ceiling.discard || at - sent < SEND_BYTES)
            continue;
        (void)sync_file_range(f.fd, (off_t)sent, (off_t)(at - sent), SYNC_FILE_RANGE_WRITE);
        sent = at;
        if (sent - early >= EARLY_BYTES) {
            early = sent;
            early_sync(f);
        }
    }
    return e;
}

/* A body to a file, which is on the disk then, and takes the place of the one before. */
static int body_keep(struct receiver *r, uint64_t length, struct sums *s)
{
    struct file f = {.fd = -1};
    int e = take_ready(&f);
    e = e ? e : body_take(r, length, s, f);
    if (e == 0 && fsync(f.fd) < 0)
        e = -errno;
    give_back(e ? &f : &r->kept);
    if (e == 0)
        r->kept = f;
    return e;
}

static int answer(int fd, struct sums *s)
{
    uint8_t sum[MD5_BYTES] = {0};
    char text[160], etag[2 * MD5_BYTES + 1];
    if (!ceiling.opaque)
        hasher_stream_digest(&s->md5, sum);
    for (unsigned i = 0; i < MD5_BYTES; i++)
        (void)snprintf(etag + 2 * i, 3, "%02x", sum[i]);
    int n = snprintf(text, sizeof(text),
                     "HTTP/1.1 200 OK\r\nETag: \"%s%s\"\r\nx-crc32c: %08x\r\nContent-Length: 0\r\n\r\n", etag,
                     ceiling.opaque ? "-1" : "", s->crc);
    return sock_send_all(fd, text, (size_t)n, MSG_NOSIGNAL);
}

static int serve_one(struct receiver *r)
{
    static const char go_on[] = "HTTP/1.1 100 Continue\r\n\r\n";
    struct request q;
    struct sums s = {0};
    ssize_t head = head_read(r);
    if (head < 0)
        return (int)head;
    if (!head_parse(slice_of(r->head, (size_t)head), &q))
        return -EINVAL;
    r->n -= q.head;
    memmove(r->head, r->head + q.head, r->n);
    if (q.expects && sock_send_all(r->fd, go_on, sizeof(go_on) - 1, MSG_NOSIGNAL) < 0)
        return -EPIPE;
    hasher_stream_init(&s.md5, ceiling.opaque ? NULL : ceiling.hasher);
    int e =
        ceiling.discard ? body_take(r, q.length, &s, (struct file){.fd = -1}) : body_keep(r, q.length, &s);
    e = e ? e : answer(r->fd, &s);
    hasher_stream_fini(&s.md5);
    return e;
}

static void *connection_main(void *arg)
{
    _cleanup_close_ int fd = (int)(intptr_t)arg;
    _cleanup_free_ char *pieces = malloc(2 * PIECE_BYTES);
    _cleanup_free_ struct receiver *r = calloc(1, sizeof(*r));
    assert(pieces && r);
    r->fd = fd;
    r->kept.fd = -1;
    r->pieces[0] = pieces;
    r->pieces[1] = pieces + PIECE_BYTES;
    int e;
    while ((e = serve_one(r)) == 0)
        ;
    if (e != -EPIPE)
        (void)fprintf(stderr, "putceiling: %s\n", err_text(e));
    give_back(&r->kept);
    return NULL;
}

static int start(const char *path, struct err *e)
{
    ceiling.dir_fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (ceiling.dir_fd < 0)
        return err_errno(e, -errno, "open %s", path);
    lock_init(&ceiling.lock, LOCK_DISK);
    cond_init(&ceiling.filled);
    ceiling.hasher = ceiling.opaque ? NULL : hasher_start(/* processors= */ 0);
    if (ceiling.discard)
        return 0;
    int r = chore_start(&ceiling.keeper, /* first_ns= */ 0, keeper_turn, NULL);
    r = r ? r : chore_start(&ceiling.syncer, CHORE_UNTIL_CALLED, syncer_turn, NULL);
    return r < 0 ? err_errno(e, r, "start a thread") : 0;
}

static int serve(const char *path)
{
    struct err e = {0};
    char address[128];
    _cleanup_close_ int listen_fd = -1;
    int r = start(path, &e);
    r = r ? r : sock_listen_tcp("127.0.0.1:0", 64, &listen_fd, address, &e);
    if (r < 0) {
        (void)fprintf(stderr, "putceiling: %s\n", e.text);
        return 1;
    }
    (void)printf("putceiling: listening on %s\n", address);
    (void)fflush(stdout);
    for (;;) {
        pthread_t id;
        int fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC);
        if (fd >= 0 && pthread_create(&id, NULL, connection_main, (void *)(intptr_t)fd) == 0)
            (void)pthread_detach(id);
    }
}

int main(int argc, char **argv)
{
    ceiling.discard = argc == 3 && strcmp(argv[2], "discard") == 0;
    ceiling.opaque = ceiling.discard || (argc == 3 && strcmp(argv[2], "opaque") == 0);
    if (argc != 2 && !ceiling.opaque) {
        (void)fputs("usage: putceiling DIR [opaque | discard]\n", stderr);
        return 2;
    }
    return serve(argv[1]);
}

/*
 * What a PUT can cost at the least: receives bodies, computes their MD5 and CRC-32C, writes them to files of
 * a directory, syncs each and answers. The same client that loads a node loads this, and a node's rate is
 * compared with it.
 *
 *     putceiling DIR [opaque | discard]
 *
 * Listens on a free port of the loopback, prints "putceiling: listening on HOST:PORT", and runs until it is
 * killed. One thread for each connection, which does all of it in turn, a piece at a time. With "opaque" no
 * MD5 is computed, as where a service promises none; with "discard" bodies are received and forgotten, which
 * is the loopback's own rate.
 *
 * Invariants:
 *  1. An answer is sent after the file's data, its new name and the directory are on the disk, but with
 * "discard".
 *  2. A name is used again by the next request of its connection: the disk holds no more than one file for
 * each connection, besides the one being written.
 *
 * Failure modes: a request that is not a PUT with Content-Length, or a file that cannot be written, ends the
 * connection with one line on stderr. Nothing is authenticated: this is for the loopback.
 */
#include "base/crc32c.h"
#include "base/err.h"
#include "base/macro.h"
#include "base/slice.h"
#include "base/sys.h"
#include "net/sock.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#define PIECE_BYTES MIB
#define HEAD_BYTES  (16 * KIB)
#define START_BYTES (4 * MIB)

static struct {
    int dir_fd;
    bool opaque;  /* no MD5 */
    bool discard; /* nothing at all */
} ceiling;

struct receiver {
    int fd;
    char name[32], part[40]; /* of the file, and while it is written */
    char *piece;
    size_t n; /* bytes in `piece` */
};

struct request {
    uint64_t length;
    bool has_length, expects;
};

static bool names(struct slice name, const char *text)
{
    return name.n == strlen(text) && strncasecmp(name.p, text, name.n) == 0;
}

static bool head_parse(struct slice head, struct request *ret)
{
    *ret = (struct request){0};
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
        char *end = memmem(r->piece, r->n, "\r\n\r\n", 4);
        if (end)
            return end + 4 - r->piece;
        if (r->n >= HEAD_BYTES)
            return -E2BIG;
        ssize_t got = sock_recv_some(r->fd, r->piece + r->n, HEAD_BYTES - r->n);
        if (got <= 0)
            return got == 0 ? -EPIPE : got;
        r->n += (size_t)got;
    }
}

/* A piece of the body: summed, and written. */
static int piece_take(EVP_MD_CTX *md5, uint32_t *crc, int file, const char *p, size_t n)
{
    if (ceiling.discard)
        return 0;
    if (!ceiling.opaque && EVP_DigestUpdate(md5, p, n) != 1)
        return -ENOMEM;
    *crc = crc32c(*crc, p, n);
    for (size_t done = 0; done < n;) {
        ssize_t w = write(file, p + done, n - done);
        if (w < 0)
            return -errno;
        done += (size_t)w;
    }
    return 0;
}

/* Has the kernel begin with the writing of what was written until now, so that little is left for the end. */
static void start_writing(int file, uint64_t from, uint64_t to)
{
    (void)sync_file_range(file, (off_t)from, (off_t)(to - from), SYNC_FILE_RANGE_WRITE);
}

/* The body, of which the buffer holds the first bytes from `from`. */
static int body_take(struct receiver *r, size_t from, uint64_t length, EVP_MD_CTX *md5, uint32_t *crc,
                     int file)
{
    size_t n = MIN(r->n - from, length);
    uint64_t started = 0;
    int e = piece_take(md5, crc, file, r->piece + from, n);
    r->n -= from + n;
    memmove(r->piece, r->piece + from + n, r->n);
    for (uint64_t left = length - n; left > 0 && e == 0;) {
        size_t have = 0, want = MIN(left, PIECE_BYTES);
        while (have < want && e == 0) {
            ssize_t got = sock_recv_some(r->fd, r->piece + have, want - have);
            e = got > 0 ? 0 : got == 0 ? -EPIPE : (int)got;
            have += got > 0 ? (size_t)got : 0;
        }
        e = e ? e : piece_take(md5, crc, file, r->piece, want);
        left -= want;
        if (!ceiling.discard && length - left - started >= START_BYTES) {
            start_writing(file, started, length - left);
            started = length - left;
        }
    }
    return e;
}

static int answer(int fd, EVP_MD_CTX *md5, uint32_t crc)
{
    unsigned char sum[EVP_MAX_MD_SIZE] = {0};
    unsigned sum_n = 16;
    char text[160], etag[40];
    if (!ceiling.opaque && EVP_DigestFinal_ex(md5, sum, &sum_n) != 1)
        return -ENOMEM;
    for (unsigned i = 0; i < 16; i++)
        (void)snprintf(etag + 2 * i, 3, "%02x", sum[i]);
    int n = snprintf(text, sizeof(text),
                     "HTTP/1.1 200 OK\r\nETag: \"%s%s\"\r\nx-crc32c: %08x\r\nContent-Length: 0\r\n\r\n", etag,
                     ceiling.opaque ? "-1" : "", crc);
    return sock_send_all(fd, text, (size_t)n, MSG_NOSIGNAL);
}

/* A body to a file, which is on the disk then. */
static int body_keep(struct receiver *r, size_t head, uint64_t length, EVP_MD_CTX *md5, uint32_t *crc)
{
    _cleanup_close_ int file =
        openat(ceiling.dir_fd, r->part, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (file < 0)
        return -errno;
    int e = body_take(r, head, length, md5, crc, file);
    if (e == 0 && (fsync(file) < 0 || renameat(ceiling.dir_fd, r->part, ceiling.dir_fd, r->name) < 0 ||
                   fsync(ceiling.dir_fd) < 0))
        e = -errno;
    return e;
}

static int serve_one(struct receiver *r)
{
    struct request q;
    uint32_t crc = 0;
    ssize_t head = head_read(r);
    if (head < 0)
        return (int)head;
    if (!head_parse(slice_of(r->piece, (size_t)head), &q))
        return -EINVAL;
    static const char go_on[] = "HTTP/1.1 100 Continue\r\n\r\n";
    if (q.expects && sock_send_all(r->fd, go_on, sizeof(go_on) - 1, MSG_NOSIGNAL) < 0)
        return -EPIPE;
    EVP_MD_CTX *md5 = EVP_MD_CTX_new();
    int e = !md5 || EVP_DigestInit_ex(md5, EVP_md5(), NULL) != 1 ? -ENOMEM : 0;
    if (e == 0)
        e = ceiling.discard ? body_take(r, (size_t)head, q.length, md5, &crc, /* file= */ -1)
                            : body_keep(r, (size_t)head, q.length, md5, &crc);
    e = e ? e : answer(r->fd, md5, crc);
    EVP_MD_CTX_free(md5);
    return e;
}

static void *connection_main(void *arg)
{
    _cleanup_close_ int fd = (int)(intptr_t)arg;
    _cleanup_free_ char *piece = malloc(PIECE_BYTES);
    assert(piece);
    struct receiver r = {.fd = fd, .piece = piece};
    (void)snprintf(r.name, sizeof(r.name), "object-%d", fd);
    (void)snprintf(r.part, sizeof(r.part), "%s.part", r.name);
    int e;
    while ((e = serve_one(&r)) == 0)
        ;
    if (e != -EPIPE)
        (void)fprintf(stderr, "putceiling: %s\n", err_text(e));
    return NULL;
}

static int serve(const char *path)
{
    struct err e = {0};
    char address[128];
    _cleanup_close_ int listen_fd = -1;
    ceiling.dir_fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int r = ceiling.dir_fd < 0 ? err_errno(&e, -errno, "open %s", path)
                               : sock_listen_tcp("127.0.0.1:0", 64, &listen_fd, address, &e);
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

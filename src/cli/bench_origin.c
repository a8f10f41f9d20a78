/* What a node says of the bytes that it took from its origins; contract in bench_pass.h. */
#include "cli/bench_pass.h"

#include "base/buf.h"
#include "net/sock.h"

#include <sys/socket.h>

#define METRICS_MAX_BYTES (8 * MIB)
#define METRICS_TIMEOUT   5000

static int64_t sum_of(struct slice text, struct slice name)
{
    double sum = 0;
    while (text.n > 0) {
        struct slice line = slice_split(&text, '\n');
        if (!slice_starts(line, name))
            continue;
        ssize_t space = slice_rfind(line, ' ');
        if (space < 0)
            continue;
        _cleanup_free_ char *number = slice_dup(slice_from(line, (size_t)space + 1));
        sum += strtod(number, NULL);
    }
    return (int64_t)sum;
}

int64_t bench_origin_bytes(const char *hostport)
{
    _cleanup_close_ int fd = -1;
    _cleanup_buf_ struct buf b = BUF_INIT(METRICS_MAX_BYTES), request = BUF_INIT(1024);
    if (sock_connect_tcp(hostport, METRICS_TIMEOUT, &fd, NULL) < 0 ||
        sock_set_timeouts(fd, METRICS_TIMEOUT, METRICS_TIMEOUT) < 0 ||
        buf_printf(&request, "GET /-/metrics HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", hostport) <
            0 ||
        sock_send_all(fd, request.p, request.n, MSG_NOSIGNAL) < 0)
        return -1;
    for (;;) {
        char *room = buf_reserve(&b, 64 * KIB);
        ssize_t n = room ? recv(fd, room, 64 * KIB, 0) : -1;
        if (n < 0)
            return -1;
        if (n == 0)
            break;
        buf_used(&b, (size_t)n);
    }
    if (!slice_starts(buf_view(&b), SLICE_LIT("HTTP/1.1 200")))
        return -1;
    return sum_of(buf_view(&b), SLICE_LIT("forebay_origin_read_bytes_total{"));
}

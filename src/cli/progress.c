/*
 * Progress of long work. On a terminal one line on stderr, redrawn at most ten times a second; piped, one
 * summary line at the end. The numbers are exact: what was added, since progress_new.
 */
#include "cli/command.h"

#include "base/buf.h"
#include "base/lock.h"
#include "base/sys.h"
#include "base/text.h"

#include <inttypes.h>
#include <sys/ioctl.h>

#define REDRAW_NS  100000000ull
#define LINE_BYTES 256

struct progress {
    struct lock lock; /* covers everything below */
    const char *verb;
    uint64_t objects, bytes, total_objects, total_bytes;
    uint64_t started_ns, drawn_ns;
    bool terminal, quiet;
};

void command_redraw(struct slice line)
{
    struct winsize size = {0};
    size_t n = line.n;
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) /* 0: nobody has told */
        n = MIN(n, size.ws_col - 1u);
    (void)fprintf(stderr, "\r" SLICE_FMT "\033[K", SLICE_ARG(slice_of(line.p, n)));
}

struct progress *progress_new(const char *verb, uint64_t total_objects, uint64_t total_bytes, bool quiet)
{
    struct progress *p = calloc(1, sizeof(*p));
    assert(p);
    lock_init(&p->lock, LOCK_LEAF);
    p->verb = verb;
    p->total_objects = total_objects;
    p->total_bytes = total_bytes;
    p->started_ns = sys->mono_ns();
    p->terminal = isatty(STDERR_FILENO);
    p->quiet = quiet;
    return p;
}

static double seconds_of(const struct progress *p)
{
    double s = (double)(sys->mono_ns() - p->started_ns) / 1e9;
    return s > 0.001 ? s : 0.001;
}

static void draw_locked(struct progress *p)
{
    char done[TEXT_SIZE_MAX], total[TEXT_SIZE_MAX], rate[TEXT_SIZE_MAX], left[TEXT_SIZE_MAX];
    _cleanup_buf_ struct buf line = BUF_INIT(LINE_BYTES);
    double per_s = (double)p->bytes / seconds_of(p);
    (void)buf_printf(&line, "%s %" PRIu64, p->verb, p->objects);
    if (p->total_objects > 0)
        (void)buf_printf(&line, "/%" PRIu64, p->total_objects);
    (void)buf_printf(&line, " objects, %s", text_size(p->bytes, done));
    if (p->total_bytes > 0)
        (void)buf_printf(&line, " of %s", text_size(p->total_bytes, total));
    (void)buf_printf(&line, ", %s/s", text_size((uint64_t)per_s, rate));
    if (p->total_bytes > p->bytes && per_s > 1) {
        uint64_t ms = (uint64_t)((double)(p->total_bytes - p->bytes) / per_s * 1000);
        (void)buf_printf(&line, ", %s left", text_duration(ms, left));
    }
    command_redraw(buf_view(&line));
}

void progress_add(struct progress *p, uint64_t objects, uint64_t bytes)
{
    LOCK_SCOPE(&p->lock);
    p->objects += objects;
    p->bytes += bytes;
    uint64_t now = sys->mono_ns();
    if (!p->terminal || p->quiet || now - p->drawn_ns < REDRAW_NS)
        return;
    p->drawn_ns = now;
    draw_locked(p);
}

void progress_grow(struct progress *p, uint64_t objects, uint64_t bytes)
{
    LOCK_SCOPE(&p->lock);
    p->total_objects += objects;
    p->total_bytes += bytes;
}

void progress_drop(struct progress *p)
{
    if (!p)
        return;
    if (p->drawn_ns > 0)
        (void)fputs("\r\033[K", stderr);
    lock_fini(&p->lock);
    free(p);
}

void progress_end(struct progress *p)
{
    if (!p)
        return;
    if (!p->quiet) {
        char done[TEXT_SIZE_MAX], rate[TEXT_SIZE_MAX], took[TEXT_SIZE_MAX];
        double s = seconds_of(p);
        if (p->terminal)
            (void)fputs("\r\033[K", stderr);
        p->drawn_ns = 0;
        (void)fprintf(stderr, "%s %" PRIu64 " object%s, %s in %s, %s/s\n", p->verb, p->objects,
                      p->objects == 1 ? "" : "s", text_size(p->bytes, done),
                      text_duration((uint64_t)(s * 1000), took),
                      text_size((uint64_t)((double)p->bytes / s), rate));
    }
    progress_drop(p);
}

/* Rates and delays of the emulated link; contract in shape.h. */
#include "shape.h"

#include "base/hash.h"
#include "base/sys.h"
#include "base/text.h"

#include <math.h>
#include <time.h>

#define NS_PER_S 1000000000ull

void shape_rate_init(struct shape_rate *r, uint64_t bytes_per_s)
{
    lock_init(&r->lock, LOCK_LEAF);
    r->bytes_per_s = bytes_per_s;
    r->booked_until_ns = 0;
    r->bodies = 0;
}

void shape_rate_fini(struct shape_rate *r)
{
    lock_fini(&r->lock);
}

void shape_rate_set(struct shape_rate *r, uint64_t bytes_per_s)
{
    LOCK_SCOPE(&r->lock);
    r->bytes_per_s = bytes_per_s;
    r->booked_until_ns = sys->mono_ns();
}

void shape_rate_begin(struct shape_rate *r, uint64_t now_ns)
{
    LOCK_SCOPE(&r->lock);
    if (r->bodies++ == 0)
        r->booked_until_ns = MAX(r->booked_until_ns, now_ns);
}

void shape_rate_end(struct shape_rate *r)
{
    LOCK_SCOPE(&r->lock);
    r->bodies--;
}

uint64_t shape_rate_take(struct shape_rate *r, uint64_t n, uint64_t now_ns, uint64_t *ret_lost_ns)
{
    LOCK_SCOPE(&r->lock);
    *ret_lost_ns = 0;
    if (!r->bytes_per_s)
        return 0;
    uint64_t earliest = now_ns > SHAPE_BEHIND_NS ? now_ns - SHAPE_BEHIND_NS : 0;
    if (earliest > r->booked_until_ns)
        *ret_lost_ns = earliest - r->booked_until_ns;
    uint64_t need_ns = (uint64_t)((__uint128_t)n * NS_PER_S / r->bytes_per_s);
    r->booked_until_ns = MAX(r->booked_until_ns, earliest) + need_ns;
    return r->booked_until_ns;
}

bool shape_limit_admit(struct shape_limit *l, uint64_t now_ns)
{
    if (!l->per_s)
        return true;
    uint64_t from = MAX(l->booked_until_ns, now_ns), each = NS_PER_S / l->per_s;
    if (from > now_ns && from - now_ns + each > MAX(SHAPE_BURST_NS, each))
        return false;
    l->booked_until_ns = from + each;
    return true;
}

static int bad(struct err *e, const char *name, const char *text, const char *expected)
{
    return err_set(e, ERR_BAD_OPTION, "%s %s: not %s", name, text, expected);
}

int shape_delay_parse(const char *text, const char *name, struct shape_delay *ret, struct err *e)
{
    struct slice rest = slice_str(text), median = slice_split(&rest, ',');
    uint64_t median_ms, p99_ms = 0;
    if (text_parse_duration(median, &median_ms) < 0 || median_ms > 3600000)
        return bad(e, name, text, "a time of at most 1h such as 20ms, or 20ms,p99=80ms");
    if (rest.n) {
        if (!slice_starts(rest, SLICE_LIT("p99=")) || text_parse_duration(slice_from(rest, 4), &p99_ms) < 0 ||
            p99_ms > 3600000)
            return bad(e, name, text, "of the form 20ms,p99=80ms");
        if (median_ms == 0 || p99_ms <= median_ms)
            return bad(e, name, text, "a time followed by a longer 99th percentile");
    }
    ret->median_ns = median_ms * 1000000;
    ret->p99_ns = p99_ms * 1000000;
    return 0;
}

uint64_t shape_delay_draw(const struct shape_delay *d, uint64_t n)
{
    if (!d->p99_ns)
        return d->median_ns;
    /* Two uniform numbers in (0, 1) give a normal one (Box and Muller, 1958); 2.3263 is its 99th percentile.
     */
    double u = ((double)(hash_mix(d->seed, 2 * n) >> 11) + 0.5) / 9007199254740992.0;
    double v = ((double)(hash_mix(d->seed, 2 * n + 1) >> 11) + 0.5) / 9007199254740992.0;
    double normal = sqrt(-2 * log(u)) * cos(2 * M_PI * v);
    double sigma = log((double)d->p99_ns / (double)d->median_ns) / 2.3263478740408408;
    return (uint64_t)fmin((double)d->median_ns * exp(sigma * normal), 3600.0 * NS_PER_S);
}

int shape_rate_parse(const char *text, const char *name, uint64_t *ret_bytes_per_s, struct err *e)
{
    struct slice s = slice_trim(slice_str(text));
    if (slice_ends(s, SLICE_LIT("/s")))
        s.n -= 2;
    uint64_t v;
    if (text_parse_size(s, &v) < 0 || (v > 0 && v < 1024))
        return bad(e, name, text, "a rate of at least 1KiB/s such as 50MB/s, or 0 for no limit");
    *ret_bytes_per_s = v;
    return 0;
}

size_t shape_piece(uint64_t a_bytes_per_s, uint64_t b_bytes_per_s)
{
    uint64_t slower =
        MIN(a_bytes_per_s ? a_bytes_per_s : UINT64_MAX, b_bytes_per_s ? b_bytes_per_s : UINT64_MAX);
    if (slower == UINT64_MAX)
        return MIB;
    return (size_t)MAX(MIN(slower / 500, 256 * KIB), 4 * KIB);
}

void shape_wait(uint64_t until_ns)
{
    if (until_ns <= sys->mono_ns())
        return;
    struct timespec t = {.tv_sec = (time_t)(until_ns / NS_PER_S), .tv_nsec = (long)(until_ns % NS_PER_S)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) != 0)
        ;
}

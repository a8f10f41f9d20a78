/*
 * Warnings that come often (contract in often.h).
 *
 * Each kind owes a second for every line that was written; it may owe OFTEN_MAX.
 *
 * Failure modes: two kinds that fall on one slot take turns there, and more is written then.
 */
#include "base/often.h"

#include "base/lock.h"
#include "base/sys.h"

#include <errno.h>
#include <pthread.h>

#define OFTEN_MAX   100
#define EVERY_NS    ((uint64_t)1000000000)
#define KINDS       256
#define LINE_BYTES  4096
#define NOTE_BYTES  64
#define HASH_FACTOR UINT64_C(0x9e3779b97f4a7c15) /* 2^64 by the golden ratio */

struct kind {
    const char *area, *fmt;
    uint64_t paid_ns; /* when it owes nothing any more, monotonic */
    uint64_t left_out;
};

static struct kind kinds[KINDS]; /* under lock */
static struct lock lock;         /* LOCK_LEAF */
static pthread_once_t lock_once = PTHREAD_ONCE_INIT;

static void make_lock(void)
{
    lock_init(&lock, LOCK_LEAF);
}

static struct kind *kind_locked(const char *area, const char *fmt)
{
    uint64_t h = ((uint64_t)(uintptr_t)area * 31 + (uint64_t)(uintptr_t)fmt) * HASH_FACTOR;
    struct kind *k = &kinds[(h >> 32) % KINDS];
    lock_assert_held(&lock);
    if (k->area != area || k->fmt != fmt)
        *k = (struct kind){.area = area, .fmt = fmt};
    return k;
}

/* Whether the line is written, and what it says of others. */
static bool may_write(const char *area, const char *fmt, char ret_note[NOTE_BYTES])
{
    uint64_t now_ns = sys->mono_ns();
    LOCK_SCOPE(&lock);
    struct kind *k = kind_locked(area, fmt);
    uint64_t from_ns = MAX(k->paid_ns, now_ns), owed_ns = from_ns - now_ns;
    if (owed_ns > (OFTEN_MAX - 1) * EVERY_NS) {
        k->left_out++;
        return false;
    }
    ret_note[0] = '\0';
    if (k->left_out > 0)
        (void)snprintf(ret_note, NOTE_BYTES, " (%llu like it were left out)",
                       (unsigned long long)k->left_out);
    else if (owed_ns > (OFTEN_MAX - 2) * EVERY_NS)
        (void)snprintf(ret_note, NOTE_BYTES, " (many like it: from now on one a second)");
    k->paid_ns = from_ns + EVERY_NS;
    k->left_out = 0;
    return true;
}

void log_often(const char *area, const char *fmt, ...)
{
    char text[LINE_BYTES - NOTE_BYTES], note[NOTE_BYTES];
    int saved = errno;
    if (!log_enabled(LOG_LEVEL_WARN))
        return;
    (void)pthread_once(&lock_once, make_lock);
    if (may_write(area, fmt, note)) {
        va_list ap;
        va_start(ap, fmt);
        (void)vsnprintf(text, sizeof(text), fmt, ap);
        va_end(ap);
        log_warn(area, "%s%s", text, note);
    }
    errno = saved;
}

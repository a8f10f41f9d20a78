/*
 * Log lines to stderr.
 *
 * Invariants:
 *  1. One call makes one line and one write(2); control characters in the text become '?', so that names
 * chosen by users cannot forge lines or drive a terminal: also U+0080 to U+009F, of which some take U+009B
 * for ESC [.
 *  2. errno is the same after a call as before it.
 *
 * Failure modes: a line that cannot be written is dropped; lines above LINE_MAX_BYTES are cut.
 */
#include "base/log.h"

#include "base/sys.h"
#include "base/text.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#define LINE_MAX_BYTES 4096
#define LEVEL_UNSET    (-1)

static const char *const level_names[] = {[LOG_LEVEL_ERROR] = "error",
                                          [LOG_LEVEL_WARN] = "warn",
                                          [LOG_LEVEL_INFO] = "info",
                                          [LOG_LEVEL_DEBUG] = "debug"};

static atomic_int level_set = LEVEL_UNSET; /* by log_set_level */
static int level_env = LOG_LEVEL_INFO;     /* written once, under level_once */
static pthread_once_t level_once = PTHREAD_ONCE_INIT;

void log_set_level(enum log_level level)
{
    assert((size_t)level < ARRAY_SIZE(level_names));
    atomic_store(&level_set, (int)level);
}

int log_parse_level(const char *name, enum log_level *ret)
{
    for (size_t i = 0; i < ARRAY_SIZE(level_names); i++) {
        if (strcmp(name, level_names[i]) == 0) {
            *ret = (enum log_level)i;
            return 0;
        }
    }
    return -EINVAL;
}

static void read_env(void)
{
    const char *name = getenv("FOREBAY_LOG");
    enum log_level level;
    if (name && log_parse_level(name, &level) == 0)
        level_env = (int)level;
}

static int current_level(void)
{
    int level = atomic_load_explicit(&level_set, memory_order_relaxed);
    if (level != LEVEL_UNSET)
        return level;
    (void)pthread_once(&level_once, read_env);
    return level_env;
}

bool log_enabled(enum log_level level)
{
    return (int)level <= current_level();
}

static void hide_controls(char *line, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)line[i], next = i + 1 < n ? (unsigned char)line[i + 1] : 0;
        if (c < 0x20 || c == 0x7f)
            line[i] = '?';
        else if (c == 0xc2 && next >= 0x80 && next < 0xa0)
            line[i] = line[i + 1] = '?';
    }
}

static void PRINTF_LIKE(3, 0) write_line(enum log_level level, const char *area, const char *fmt, va_list ap)
{
    char line[LINE_MAX_BYTES], when[32];
    const size_t room = sizeof(line) - 1; /* the newline */
    text_iso8601(sys->real_ns(), when);
    int n = snprintf(line, room, "%s %-5s %s: ", when, level_names[level], area);
    size_t used = n < 0 ? 0 : MIN((size_t)n, room - 1);
    n = vsnprintf(line + used, room - used, fmt, ap);
    used += n < 0 ? 0 : MIN((size_t)n, room - used - 1);
    hide_controls(line, used);
    line[used++] = '\n';
    ssize_t put;
    do {
        put = write(STDERR_FILENO, line, used);
    } while (put < 0 && errno == EINTR);
}

void log_at(enum log_level level, const char *area, const char *fmt, ...)
{
    assert((size_t)level < ARRAY_SIZE(level_names));
    if (!log_enabled(level))
        return;
    int saved = errno;
    va_list ap;
    va_start(ap, fmt);
    write_line(level, area, fmt, ap);
    va_end(ap);
    errno = saved;
}

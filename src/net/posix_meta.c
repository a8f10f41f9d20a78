/*
 * Mode, owner and time as lines of metadata (contract and format in posix_meta.h). What cannot be read is
 * left out, never an error: others write there, too.
 */
#include "net/posix_meta.h"

#include <inttypes.h>
#include <sys/stat.h>

#define NS_PER_S ((uint64_t)1000000000)

static bool parse_octal(struct slice s, uint64_t *ret)
{
    uint64_t v = 0;
    for (size_t i = 0; i < s.n; i++) {
        if (s.p[i] < '0' || s.p[i] > '7' || v > UINT32_MAX)
            return false;
        v = v * 8 + (uint64_t)(s.p[i] - '0');
    }
    *ret = v;
    return s.n > 0;
}

/* Whether the number is the mode of something that can be under such a key. */
static bool is_mode(uint64_t v, bool is_dir)
{
    uint64_t kind = v & S_IFMT;
    bool is_kind = kind == S_IFREG || kind == S_IFLNK || kind == S_IFIFO || kind == S_IFSOCK ||
                   kind == S_IFCHR || kind == S_IFBLK;
    return v <= UINT16_MAX && (is_dir ? kind == S_IFDIR : is_kind);
}

static uint32_t clean_mode(uint64_t v, bool is_dir)
{
    uint32_t kind = is_dir ? S_IFDIR : (v & S_IFMT) == S_IFLNK ? S_IFLNK : S_IFREG;
    return kind | (uint32_t)(v & 07777);
}

/* Decimal as s3fs has it, octal as rclone has it: which one it is tells the kind, that only one of them makes
 * sensible. A number of permissions alone is decimal, but for a leading 0. */
static bool parse_mode(struct slice s, bool is_dir, uint32_t *ret)
{
    uint64_t decimal, octal;
    bool has_octal = parse_octal(s, &octal);
    if (slice_u64(s, &decimal) < 0)
        return false;
    bool is_octal =
        has_octal && ((s.n > 1 && s.p[0] == '0') || (!is_mode(decimal, is_dir) && is_mode(octal, is_dir)));
    uint64_t v = is_octal ? octal : decimal;
    if (!is_mode(v, is_dir) && v > 07777)
        return false;
    *ret = clean_mode(v, is_dir);
    return true;
}

static bool parse_id(struct slice s, uint32_t *ret)
{
    uint64_t v;
    if (slice_u64(s, &v) < 0 || v >= UINT32_MAX) /* the last one means nobody */
        return false;
    *ret = (uint32_t)v;
    return true;
}

/* "SECONDS[.FRACTION]" */
static bool parse_time(struct slice s, uint64_t *ret_ns)
{
    uint64_t seconds, ns = 0, unit = NS_PER_S / 10;
    struct slice whole = slice_split(&s, '.');
    if (slice_u64(whole, &seconds) < 0 || seconds > POSIX_META_MAX_NS / NS_PER_S - 1)
        return false;
    for (size_t i = 0; i < s.n; i++, unit /= 10) {
        if (s.p[i] < '0' || s.p[i] > '9')
            return false;
        ns += (uint64_t)(s.p[i] - '0') * unit;
    }
    *ret_ns = seconds * NS_PER_S + ns;
    return true;
}

/* The name and value of a line; false when it is none. */
static bool split_line(struct slice line, struct slice *ret_name, struct slice *ret_value)
{
    ssize_t colon = slice_find(line, ':');
    if (colon <= 0)
        return false;
    *ret_name = slice_sub(line, 0, (size_t)colon);
    *ret_value = slice_trim(slice_from(line, (size_t)colon + 1));
    return true;
}

void posix_meta_decode(struct slice meta, bool is_dir, struct posix_meta *ret)
{
    struct slice name, value;
    unsigned seen = 0; /* the first line of a name counts */
    *ret = (struct posix_meta){0};
    while (meta.n > 0) {
        if (!split_line(slice_split(&meta, '\n'), &name, &value))
            continue;
        unsigned field = slice_eq_str(name, POSIX_META_MODE)    ? POSIX_HAS_MODE
                         : slice_eq_str(name, POSIX_META_UID)   ? POSIX_HAS_UID
                         : slice_eq_str(name, POSIX_META_GID)   ? POSIX_HAS_GID
                         : slice_eq_str(name, POSIX_META_MTIME) ? POSIX_HAS_MTIME
                                                                : 0;
        if (field & seen)
            continue;
        seen |= field;
        bool good = (field == POSIX_HAS_MODE && parse_mode(value, is_dir, &ret->mode)) ||
                    (field == POSIX_HAS_UID && parse_id(value, &ret->uid)) ||
                    (field == POSIX_HAS_GID && parse_id(value, &ret->gid)) ||
                    (field == POSIX_HAS_MTIME && parse_time(value, &ret->mtime_ns));
        ret->has |= good ? field : 0;
    }
}

int posix_meta_encode(const struct posix_meta *p, struct buf *b)
{
    int r = 0;
    if (p->has & POSIX_HAS_MODE)
        r = buf_printf(b, POSIX_META_MODE ": %" PRIu32 "\n", p->mode);
    if (r == 0 && p->has & POSIX_HAS_UID)
        r = buf_printf(b, POSIX_META_UID ": %" PRIu32 "\n", p->uid);
    if (r == 0 && p->has & POSIX_HAS_GID)
        r = buf_printf(b, POSIX_META_GID ": %" PRIu32 "\n", p->gid);
    if (r == 0 && p->has & POSIX_HAS_MTIME)
        r = buf_printf(b, POSIX_META_MTIME ": %" PRIu64 ".%09" PRIu64 "\n", p->mtime_ns / NS_PER_S,
                       p->mtime_ns % NS_PER_S);
    return r;
}

static bool has_line(struct slice lines, struct slice wanted)
{
    struct slice name, value;
    while (lines.n > 0)
        if (split_line(slice_split(&lines, '\n'), &name, &value) && slice_eq(name, wanted))
            return true;
    return false;
}

int posix_meta_merge(struct slice meta, struct slice set, struct buf *b)
{
    struct slice name, value;
    int r = 0;
    while (r == 0 && meta.n > 0) {
        struct slice line = slice_split(&meta, '\n');
        if (line.n > 0 && !(split_line(line, &name, &value) && has_line(set, name)))
            r = buf_printf(b, SLICE_FMT "\n", SLICE_ARG(line));
    }
    if (r == 0 && set.n > 0)
        r = buf_printf(b, SLICE_FMT "%s", SLICE_ARG(set), slice_ends(set, SLICE_LIT("\n")) ? "" : "\n");
    return r;
}

int posix_meta_rest(struct slice meta, struct buf *b)
{
    static const char ours[] =
        POSIX_META_MODE ":\n" POSIX_META_UID ":\n" POSIX_META_GID ":\n" POSIX_META_MTIME ":\n";
    struct slice name, value;
    int r = 0;
    while (r == 0 && meta.n > 0) {
        struct slice line = slice_split(&meta, '\n');
        if (line.n > 0 && !(split_line(line, &name, &value) && has_line(slice_str(ours), name)))
            r = buf_printf(b, SLICE_FMT "\n", SLICE_ARG(line));
    }
    return r;
}

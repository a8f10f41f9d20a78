/*
 * Sizes, durations, hex, percent encoding and base64.
 *
 * Invariants:
 *  1. Parsers take all of their input or nothing; results are untouched on failure. Encoders and decoders
 * into a struct buf leave it as it was on failure.
 *  2. text_parse_size reads back what text_size_exact wrote, to the byte.
 *
 * Failure modes: -EINVAL for text of another form, -ERANGE for values beyond 64 bits, -E2BIG from the buffer.
 * Dates live in text_date.c.
 */
#include "base/text.h"

#include <errno.h>

#define PIB (KIB * TIB)
#define EIB (KIB * PIB)

struct unit {
    const char *name;
    uint64_t factor;
};

static const struct unit size_units[] = {
    {"", 1},
    {"B", 1},
    {"K", KIB},
    {"KiB", KIB},
    {"M", MIB},
    {"MiB", MIB},
    {"G", GIB},
    {"GiB", GIB},
    {"T", TIB},
    {"TiB", TIB},
    {"P", PIB},
    {"PiB", PIB},
    {"E", EIB},
    {"EiB", EIB},
    {"kB", 1000},
    {"MB", 1000000},
    {"GB", 1000000000u},
    {"TB", 1000000000000u},
    {"PB", 1000000000000000u},
    {"EB", 1000000000000000000u},
};

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Cuts the leading digits off `s`. */
static struct slice take_digits(struct slice *s)
{
    size_t n = 0;
    while (n < s->n && is_digit(s->p[n]))
        n++;
    struct slice digits = slice_sub(*s, 0, n);
    *s = slice_from(*s, n);
    return digits;
}

static const struct unit *find_unit(const struct unit *units, size_t n, struct slice name)
{
    for (size_t i = 0; i < n; i++)
        if (slice_eq_str(name, units[i].name))
            return &units[i];
    return NULL;
}

int text_parse_size(struct slice s, uint64_t *ret_bytes)
{
    uint64_t whole, fraction = 0, scale = 1;
    struct slice left = slice_trim(s);
    int r = slice_u64(take_digits(&left), &whole);
    if (r < 0)
        return r;
    bool has_fraction = left.n && left.p[0] == '.';
    if (has_fraction) {
        left = slice_from(left, 1);
        struct slice digits = take_digits(&left);
        if (digits.n == 0 || digits.n > 18) /* 10^18 is the last power of ten in 64 bits */
            return -EINVAL;
        if (slice_u64(digits, &fraction) < 0)
            return -EINVAL;
        for (size_t i = 0; i < digits.n; i++)
            scale *= 10;
    }
    const struct unit *unit = find_unit(size_units, ARRAY_SIZE(size_units), slice_trim(left));
    if (!unit || (has_fraction && unit->factor == 1))
        return -EINVAL;
    unsigned __int128 bytes = (unsigned __int128)whole * unit->factor;
    bytes += (unsigned __int128)fraction * unit->factor / scale;
    if (bytes > UINT64_MAX)
        return -ERANGE;
    *ret_bytes = (uint64_t)bytes;
    return 0;
}

static const struct unit duration_units[] = {
    {"d", 86400000}, {"h", 3600000}, {"m", 60000}, {"s", 1000}, {"ms", 1}};

/* Also takes sums in falling units, "1h02m", which is what text_duration writes. */
int text_parse_duration(struct slice s, uint64_t *ret_ms)
{
    struct slice left = slice_trim(s);
    uint64_t total = 0, last = UINT64_MAX;
    bool first = true;
    if (left.n == 0)
        return -EINVAL;
    while (left.n) {
        uint64_t value;
        int r = slice_u64(take_digits(&left), &value);
        if (r < 0)
            return r;
        size_t n = 0;
        while (n < left.n && !is_digit(left.p[n]))
            n++;
        const struct unit *unit =
            find_unit(duration_units, ARRAY_SIZE(duration_units), slice_sub(left, 0, n));
        if (n == 0 && first)
            unit = &duration_units[3]; /* plain digits are seconds */
        left = slice_from(left, n);
        if (!unit || unit->factor >= last)
            return -EINVAL;
        last = unit->factor;
        first = false;
        if (__builtin_mul_overflow(value, unit->factor, &value) ||
            __builtin_add_overflow(total, value, &total))
            return -ERANGE;
    }
    *ret_ms = total;
    return 0;
}

int text_parse_bool(struct slice s, bool *ret)
{
    static const char *const words[] = {"false", "true", "no", "yes", "off", "on", "0", "1"};
    for (size_t i = 0; i < ARRAY_SIZE(words); i++) {
        if (slice_eq_case(s, slice_str(words[i]))) {
            *ret = i % 2;
            return 0;
        }
    }
    return -EINVAL;
}

char *text_size(uint64_t bytes, char ret[TEXT_SIZE_MAX])
{
    static const char *const names[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    size_t unit = 0;
    unsigned __int128 tenths = (unsigned __int128)bytes * 10;
    /* Rounding may lift 1023.96 KiB to 1024.0: the larger unit then says it shorter. */
    while (unit + 1 < ARRAY_SIZE(names) &&
           ((tenths + ((uint64_t)1 << (10 * unit)) / 2) >> (10 * unit)) >= 10240)
        unit++;
    uint64_t half = unit ? (uint64_t)1 << (10 * unit - 1) : 0;
    uint64_t t = (uint64_t)((tenths + half) >> (10 * unit));
    if (t % 10 && unit)
        (void)snprintf(ret, TEXT_SIZE_MAX, "%u.%u %s", (unsigned)(t / 10), (unsigned)(t % 10), names[unit]);
    else
        (void)snprintf(ret, TEXT_SIZE_MAX, "%u %s", (unsigned)(t / 10), names[unit]);
    return ret;
}

char *text_size_exact(uint64_t bytes, char ret[TEXT_SIZE_MAX])
{
    static const char *const names[] = {"", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    size_t unit = 0;
    while (unit + 1 < ARRAY_SIZE(names) && bytes && bytes % 1024 == 0) {
        bytes /= 1024;
        unit++;
    }
    (void)snprintf(ret, TEXT_SIZE_MAX, "%llu%s", (unsigned long long)bytes, names[unit]);
    return ret;
}

char *text_duration(uint64_t ms, char ret[TEXT_SIZE_MAX])
{
    unsigned long long s = ms / 1000;
    if (s >= 86400)
        (void)snprintf(ret, TEXT_SIZE_MAX, "%llud%02lluh", s / 86400, s / 3600 % 24);
    else if (s >= 3600)
        (void)snprintf(ret, TEXT_SIZE_MAX, "%lluh%02llum", s / 3600, s / 60 % 60);
    else if (s >= 60)
        (void)snprintf(ret, TEXT_SIZE_MAX, "%llum%02llus", s / 60, s % 60);
    else if (s >= 1)
        (void)snprintf(ret, TEXT_SIZE_MAX, "%llus", s);
    else
        (void)snprintf(ret, TEXT_SIZE_MAX, "%llums", (unsigned long long)ms);
    return ret;
}

void text_hex(const void *p, size_t n, char *ret_text)
{
    /* Two digits of each byte at once. */
#define ROW(high)                                                                                            \
    high "0" high "1" high "2" high "3" high "4" high "5" high "6" high "7" high "8" high "9" high "a" high  \
         "b" high "c" high "d" high "e" high "f"
    static const char digits[] = ROW("0") ROW("1") ROW("2") ROW("3") ROW("4") ROW("5") ROW("6") ROW("7")
        ROW("8") ROW("9") ROW("a") ROW("b") ROW("c") ROW("d") ROW("e") ROW("f");
#undef ROW
    static_assert(sizeof(digits) == 2 * 256 + 1, "two digits for each byte");
    const unsigned char *b = p;
    for (size_t i = 0; i < n; i++)
        memcpy(ret_text + 2 * i, digits + 2 * (size_t)b[i], 2);
    ret_text[2 * n] = '\0';
}

static int hex_digit(char c)
{
    if (is_digit(c))
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

int text_unhex(struct slice s, void *ret_p, size_t n)
{
    unsigned char *to = ret_p;
    if (s.n % 2 || s.n / 2 != n)
        return -EINVAL;
    for (size_t i = 0; i < s.n; i++)
        if (hex_digit(s.p[i]) < 0)
            return -EINVAL;
    for (size_t i = 0; i < n; i++)
        to[i] = (unsigned char)(hex_digit(s.p[2 * i]) << 4 | hex_digit(s.p[2 * i + 1]));
    return 0;
}

static bool is_unreserved(char c)
{
    return is_digit(c) || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '-' || c == '_' ||
           c == '.' || c == '~';
}

int text_uri_encode(struct buf *b, struct slice s, bool keep_slash)
{
    static const char hex_upper[] = "0123456789ABCDEF";
    size_t n = 0;
    for (size_t i = 0; i < s.n; i++)
        n += is_unreserved(s.p[i]) || (keep_slash && s.p[i] == '/') ? 1 : 3;
    char *to = buf_reserve(b, n);
    if (!to)
        return -E2BIG;
    for (size_t i = 0; i < s.n; i++) {
        unsigned char c = (unsigned char)s.p[i];
        if (is_unreserved(s.p[i]) || (keep_slash && c == '/')) {
            *to++ = s.p[i];
        } else {
            *to++ = '%';
            *to++ = hex_upper[c >> 4];
            *to++ = hex_upper[c & 15];
        }
    }
    buf_used(b, n);
    return 0;
}

/* Bytes of the character that s begins with; 0: it begins with none. */
static size_t character(struct slice s)
{
    for (size_t n = 1; n <= 4 && n <= s.n; n++)
        if (slice_is_utf8(slice_sub(s, 0, n)))
            return n;
    return 0;
}

const char *text_utf8(struct buf *b, struct slice s)
{
    buf_clear(b);
    int r = buf_slice(b, SLICE_LIT(""));
    while (r == 0 && s.n > 0) {
        size_t n = character(s);
        r = buf_slice(b, n > 0 ? slice_sub(s, 0, n) : SLICE_LIT("\xef\xbf\xbd"));
        s = slice_from(s, MAX(n, (size_t)1));
    }
    return r < 0 ? "?" : b->p;
}

bool text_json_is_deep(struct slice s)
{
    size_t depth = 0;
    bool quoted = false;
    for (size_t i = 0; i < s.n; i++) {
        char c = s.p[i];
        if (quoted && c == '\\')
            i++;
        else if (c == '"')
            quoted = !quoted;
        else if (!quoted && (c == '[' || c == '{') && ++depth > TEXT_JSON_DEPTH_MAX)
            return true;
        else if (!quoted && (c == ']' || c == '}') && depth > 0)
            depth--;
    }
    return false;
}

ssize_t text_uri_decode_to(char *to, struct slice s, bool plus_is_space)
{
    char *const from = to;
    while (s.n > 0) {
        ssize_t percent = slice_find(s, '%');
        size_t plain = percent >= 0 ? (size_t)percent : s.n;
        memcpy(to, s.p, plain);
        for (char *p = to; plus_is_space && (p = memchr(p, '+', (size_t)(to + plain - p)));)
            *p++ = ' ';
        to += plain;
        if (percent < 0)
            break;
        s = slice_from(s, plain);
        int high = s.n < 3 ? -1 : hex_digit(s.p[1]), low = high < 0 ? -1 : hex_digit(s.p[2]);
        if (low < 0)
            return -EINVAL;
        *to++ = (char)(high << 4 | low);
        s = slice_from(s, 3);
    }
    return to - from;
}

int text_uri_decode(struct buf *b, struct slice s, bool plus_is_space)
{
    size_t n = 0;
    for (size_t i = 0; i < s.n; i++, n++) {
        if (s.p[i] != '%')
            continue;
        if (s.n - i < 3 || hex_digit(s.p[i + 1]) < 0 || hex_digit(s.p[i + 2]) < 0)
            return -EINVAL;
        i += 2;
    }
    char *to = buf_reserve(b, n);
    if (!to)
        return -E2BIG;
    (void)text_uri_decode_to(to, s, plus_is_space); /* looked through above */
    buf_used(b, n);
    return 0;
}

static const char base64_digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

int text_base64(struct buf *b, struct slice s)
{
    if (s.n > SIZE_MAX / 2)
        return -E2BIG;
    size_t n = (s.n + 2) / 3 * 4;
    char *to = buf_reserve(b, n);
    if (!to)
        return -E2BIG;
    const unsigned char *p = (const unsigned char *)s.p;
    for (size_t i = 0; i < s.n; i += 3) {
        size_t have = MIN(s.n - i, (size_t)3);
        uint32_t v = (uint32_t)p[i] << 16;
        if (have > 1)
            v |= (uint32_t)p[i + 1] << 8;
        if (have > 2)
            v |= p[i + 2];
        *to++ = base64_digits[v >> 18];
        *to++ = base64_digits[v >> 12 & 63];
        *to++ = have > 1 ? base64_digits[v >> 6 & 63] : '=';
        *to++ = have > 2 ? base64_digits[v & 63] : '=';
    }
    buf_used(b, n);
    return 0;
}

static int base64_digit(char c)
{
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (is_digit(c))
        return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* Strict RFC 4648, section 4: padded, no other characters, unused bits zero. */
int text_unbase64(struct buf *b, struct slice s)
{
    if (s.n % 4)
        return -EINVAL;
    size_t pad = s.n && s.p[s.n - 1] == '=' ? (s.p[s.n - 2] == '=' ? 2 : 1) : 0;
    size_t digits = s.n - pad, n = s.n / 4 * 3 - pad;
    for (size_t i = 0; i < digits; i++)
        if (base64_digit(s.p[i]) < 0)
            return -EINVAL;
    if (pad && base64_digit(s.p[digits - 1]) & (pad == 2 ? 15 : 3))
        return -EINVAL;
    char *to = buf_reserve(b, n);
    if (!to)
        return -E2BIG;
    uint32_t v = 0;
    size_t put = 0;
    for (size_t i = 0; i < digits; i++) {
        v = v << 6 | (uint32_t)base64_digit(s.p[i]);
        if (i % 4) {
            unsigned shift = (unsigned)(6 - 2 * (i % 4));
            to[put++] = (char)(v >> shift & 255);
        }
    }
    assert(put == n);
    buf_used(b, n);
    return 0;
}

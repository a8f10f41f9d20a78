/*
 * Dates: ISO 8601 as S3 and the log write them, and the three forms of RFC 9110, section 5.6.7.
 *
 * Invariants:
 *  1. Independent of locale and time zone; all times are UTC.
 *  2. text_parse_date reads back what text_iso8601 (to the ms) and text_http_date (to the s) wrote.
 *
 * Failure modes: -EINVAL for text of another form, -ERANGE for years before 1970, -EOVERFLOW from 2554 on,
 * where ns since 1970 do not fit in 64 bits.
 */
#include "base/text.h"

#include <errno.h>
#include <time.h>

#define NS_PER_S 1000000000u

static const char day_names[] = "SunMonTueWedThuFriSat";
static const char month_names[] = "JanFebMarAprMayJunJulAugSepOctNovDec";

static char *put_two(char *to, int value)
{
    to[0] = (char)('0' + value / 10);
    to[1] = (char)('0' + value % 10);
    return to + 2;
}

/* What gmtime_r gives, without the lock on the time zone that it takes: answers of all threads have dates.
 * Source: H. Hinnant, "chrono-Compatible Low-Level Date Algorithms", civil_from_days; years begin in March.
 */
static void to_calendar(uint64_t s, struct tm *ret)
{
    uint64_t days = s / 86400, z = days + 719468, era_day = z % 146097;
    uint64_t year = (era_day - era_day / 1460 + era_day / 36524 - era_day / 146096) / 365;
    uint64_t day = era_day - (365 * year + year / 4 - year / 100), month = (5 * day + 2) / 153;
    *ret = (struct tm){.tm_sec = (int)(s % 60),
                       .tm_min = (int)(s / 60 % 60),
                       .tm_hour = (int)(s / 3600 % 24),
                       .tm_mday = (int)(day - (153 * month + 2) / 5 + 1),
                       .tm_mon = (int)(month < 10 ? month + 2 : month - 10),
                       .tm_year = (int)(year + z / 146097 * 400 + (month >= 10)) - 1900,
                       .tm_wday = (int)((days + 4) % 7)};
}

static void put_year(char *to, const struct tm *t)
{
    (void)put_two(put_two(to, (t->tm_year + 1900) / 100), (t->tm_year + 1900) % 100);
}

static void put_clock(char *to, const struct tm *t)
{
    (void)put_two(to, t->tm_hour);
    (void)put_two(to + 3, t->tm_min);
    (void)put_two(to + 6, t->tm_sec);
}

void text_iso8601(uint64_t real_ns, char ret[32])
{
    static const char form[] = "yyyy-mm-ddThh:mm:ss.fffZ";
    struct tm t;
    to_calendar(real_ns / NS_PER_S, &t);
    memcpy(ret, form, sizeof(form));
    put_year(ret, &t);
    (void)put_two(ret + 5, t.tm_mon + 1);
    (void)put_two(ret + 8, t.tm_mday);
    put_clock(ret + 11, &t);
    ret[20] = (char)('0' + real_ns % NS_PER_S / 100000000);
    (void)put_two(ret + 21, (int)(real_ns % 100000000 / 1000000));
}

void text_http_date(uint64_t real_ns, char ret[32])
{
    static const char form[] = "www, dd mmm yyyy hh:mm:ss GMT";
    struct tm t;
    to_calendar(real_ns / NS_PER_S, &t);
    memcpy(ret, form, sizeof(form));
    memcpy(ret, day_names + 3 * t.tm_wday, 3);
    (void)put_two(ret + 5, t.tm_mday);
    memcpy(ret + 8, month_names + 3 * t.tm_mon, 3);
    put_year(ret + 12, &t);
    put_clock(ret + 17, &t);
}

struct date {
    uint64_t year, month, day, hour, minute, second; /* month from 1 */
    uint64_t ns;
    int64_t east_s; /* seconds the zone is ahead of UTC */
};

static bool is_leap(uint64_t y)
{
    return (y % 4 == 0 && y % 100) || y % 400 == 0;
}

static int date_to_ns(const struct date *d, uint64_t *ret_real_ns)
{
    static const uint8_t month_days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    if (d->month < 1 || d->month > 12 || d->day < 1 || d->hour > 23 || d->minute > 59 || d->second > 60)
        return -EINVAL;
    if (d->day > month_days[d->month - 1] + (uint64_t)(d->month == 2 && is_leap(d->year)))
        return -EINVAL;
    if (d->year < 1970 || d->year > 2553)
        return d->year < 1970 ? -ERANGE : -EOVERFLOW;
    uint64_t y = d->year - 1, days = y * 365 + y / 4 - y / 100 + y / 400 - 719162; /* days to 1970-01-01 */
    for (uint64_t m = 1; m < d->month; m++)
        days += month_days[m - 1] + (uint64_t)(m == 2 && is_leap(d->year));
    days += d->day - 1;
    int64_t s = (int64_t)(days * 86400 + d->hour * 3600 + d->minute * 60 + d->second) - d->east_s;
    if (s < 0)
        return -ERANGE;
    *ret_real_ns = (uint64_t)s * NS_PER_S + d->ns;
    return 0;
}

/*
 * Matches `s` from its start against a pattern and cuts off what matched: 'Y' four-digit year, 'y' two-digit
 * year, 'O' two-digit month, 'N' month name, 'D' two-digit day, 'd' day padded with a space, 'h', 'm', 's'
 * two digits, anything else itself.
 */
static bool match(struct slice *s, const char *pattern, struct date *d)
{
    struct slice at = *s;
    for (; *pattern; pattern++) {
        uint64_t *field = *pattern == 'Y' || *pattern == 'y'   ? &d->year
                          : *pattern == 'O' || *pattern == 'N' ? &d->month
                          : *pattern == 'D' || *pattern == 'd' ? &d->day
                          : *pattern == 'h'                    ? &d->hour
                          : *pattern == 'm'                    ? &d->minute
                          : *pattern == 's'                    ? &d->second
                                                               : NULL;
        size_t n = *pattern == 'Y' ? 4 : *pattern == 'N' ? 3 : field ? 2 : 1;
        struct slice part = slice_sub(at, 0, n);
        if (part.n < n)
            return false;
        at = slice_from(at, n);
        if (!field) {
            if (part.p[0] != *pattern)
                return false;
        } else if (*pattern == 'N') {
            ssize_t found = slice_find_slice(slice_str(month_names), part);
            if (found < 0 || found % 3)
                return false;
            *field = (uint64_t)found / 3 + 1;
        } else {
            if (*pattern == 'd' && part.p[0] == ' ')
                part = slice_from(part, 1);
            if (slice_u64(part, field) < 0)
                return false;
        }
    }
    *s = at;
    return true;
}

/* ".123456" to ns; digits beyond nine are cut. */
static bool match_fraction(struct slice *s, uint64_t *ret_ns)
{
    uint64_t unit = NS_PER_S, ns = 0;
    size_t i = 1;
    for (; i < s->n && s->p[i] >= '0' && s->p[i] <= '9'; i++) {
        unit /= 10;
        ns += (uint64_t)(s->p[i] - '0') * unit;
    }
    if (i == 1)
        return false;
    *ret_ns = ns;
    *s = slice_from(*s, i);
    return true;
}

static bool match_zone(struct slice s, int64_t *ret_east_s)
{
    struct date zone = {0};
    if (slice_eq_str(s, "Z")) {
        *ret_east_s = 0;
        return true;
    }
    if (s.n == 0 || (s.p[0] != '+' && s.p[0] != '-'))
        return false;
    int64_t sign = s.p[0] == '-' ? -1 : 1;
    s = slice_from(s, 1);
    struct slice compact = s;
    if (!(match(&s, "h:m", &zone) && s.n == 0) && !(match(&compact, "hm", &zone) && compact.n == 0))
        return false;
    if (zone.hour > 23 || zone.minute > 59)
        return false;
    *ret_east_s = sign * (int64_t)(zone.hour * 3600 + zone.minute * 60);
    return true;
}

static bool match_iso(struct slice s, struct date *d)
{
    if (!match(&s, "Y-O-DTh:m:s", d))
        return false;
    if (s.n && s.p[0] == '.' && !match_fraction(&s, &d->ns))
        return false;
    return match_zone(s, &d->east_s);
}

static bool match_http(struct slice s, struct date *d)
{
    ssize_t comma = slice_find(s, ',');
    struct slice rest = slice_from(s, comma < 0 ? 3 : (size_t)comma + 1);
    struct slice day = slice_sub(s, 0, 3);
    ssize_t found = slice_find_slice(slice_str(day_names), day);
    if (day.n < 3 || found < 0 || found % 3)
        return false;
    if (comma < 0) /* "Sun Nov  6 08:49:37 1994" */
        return match(&rest, " N d h:m:s Y", d) && rest.n == 0;
    struct slice again = rest;
    if (comma == 3 && match(&rest, " D N Y h:m:s GMT", d) && rest.n == 0)
        return true;
    rest = again; /* "Sunday, 06-Nov-94 08:49:37 GMT" */
    if (!match(&rest, " D-N-y h:m:s GMT", d) || rest.n)
        return false;
    d->year += d->year < 70 ? 2000 : 1900;
    return true;
}

int text_parse_date(struct slice s, uint64_t *ret_real_ns)
{
    struct date d = {0};
    s = slice_trim(s);
    if (match_iso(s, &d))
        return date_to_ns(&d, ret_real_ns);
    d = (struct date){0};
    if (match_http(s, &d))
        return date_to_ns(&d, ret_real_ns);
    return -EINVAL;
}

int text_parse_when(struct slice s, uint64_t *ret_real_ns)
{
    struct date d = {0};
    struct slice day = slice_trim(s);
    if (match(&day, "Y-O-D", &d) && day.n == 0)
        return date_to_ns(&d, ret_real_ns);
    return text_parse_date(s, ret_real_ns);
}

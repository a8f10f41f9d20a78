/* Sizes, durations, rates, hex, percent encoding and base64: the forms that people and protocols write. */
#pragma once

#include "base/buf.h"

/* "512MiB", "512M", "1.5G", "4096", "10 GiB": K/M/G/T/P/E with or without iB are powers of 1024;
 * kB/MB/GB/TB/PB/EB are powers of 1000. -EINVAL on anything else, -ERANGE on overflow. */
int text_parse_size(struct slice s, uint64_t *ret_bytes);
/* "30s", "500ms", "5m", "24h", "7d"; plain digits are seconds. */
int text_parse_duration(struct slice s, uint64_t *ret_ms);
/* "true/yes/on/1", "false/no/off/0". */
int text_parse_bool(struct slice s, bool *ret);

#define TEXT_SIZE_MAX 32
/* "1.5 GiB", "17 B"; at most TEXT_SIZE_MAX bytes with the NUL. Returns `ret`. */
char *text_size(uint64_t bytes, char ret[TEXT_SIZE_MAX]);
/* Exact form for option defaults: "512MiB". */
char *text_size_exact(uint64_t bytes, char ret[TEXT_SIZE_MAX]);
/* "1h02m", "12s", "340ms". */
char *text_duration(uint64_t ms, char ret[TEXT_SIZE_MAX]);

void text_hex(const void *p, size_t n, char *ret_text /* 2n+1 */);
/* Lower or upper case; -EINVAL on a bad digit or a wrong length. */
int text_unhex(struct slice s, void *ret_p, size_t n);

/* RFC 3986: all but A-Za-z0-9-_.~ becomes %XX; '/' stays when keep_slash. */
int text_uri_encode(struct buf *b, struct slice s, bool keep_slash);
/* %XX decoded; plus_is_space for form bodies. -EINVAL on a broken escape. */
int text_uri_decode(struct buf *b, struct slice s, bool plus_is_space);
/* The same into s.n bytes of the caller's: how many it became. */
ssize_t text_uri_decode_to(char *to, struct slice s, bool plus_is_space);

/* Text of any bytes as JSON takes it: what is no UTF-8 becomes U+FFFD. Into b, which is cleared first; "?"
 * when it does not fit. */
const char *text_utf8(struct buf *b, struct slice s);

/* Whether the brackets of a JSON text nest deeper than TEXT_JSON_DEPTH_MAX; those in strings do not count.
 * jansson goes down its stack for each, to 2,048 of them, which is more than a thread of ours has: what peers
 * send is looked at with this before it is parsed. */
#define TEXT_JSON_DEPTH_MAX 64
bool text_json_is_deep(struct slice s);

int text_base64(struct buf *b, struct slice s);
int text_unbase64(struct buf *b, struct slice s);

/* "2026-01-31T23:59:59.000Z" (25 bytes with NUL) and "Sat, 31 Jan 2026 23:59:59 GMT" (30 with NUL). */
void text_iso8601(uint64_t real_ns, char ret[32]);
void text_http_date(uint64_t real_ns, char ret[32]);
/* Accepts the three HTTP date forms and ISO 8601 with or without fraction. */
int text_parse_date(struct slice s, uint64_t *ret_real_ns);
/* The same of what a person writes: also "2026-01-31", which is its beginning in UTC. */
int text_parse_when(struct slice s, uint64_t *ret_real_ns);

/*
 * What a bucket's owner wants of the cache below a prefix: pinned data, data that is never cached, how long
 * the cached is believed. Pure.
 *
 * As text, the bucket property `rules`, they are separated by ';', each NAME:PREFIX or NAME=VALUE:PREFIX, the
 * prefix percent-encoded but for '/':
 *
 *     pin:train/;never:tmp/;ttl=60000:live/        ttl in milliseconds
 *
 * Of rules that say pin or never the one with the longest prefix decides, and so for ttl.
 */
#pragma once

#include "base/buf.h"
#include "base/err.h"

#define RULES_MAX            256
#define RULES_TEXT_MAX_BYTES (16 * KIB)

enum rule_keep { RULE_KEEP_UNSAID, RULE_KEEP_PINNED, RULE_KEEP_NEVER };

struct rule {
    char *prefix; /* owned */
    size_t prefix_n;
    enum rule_keep keep;
    bool has_ttl;
    uint64_t ttl_ms;
};

struct rules {
    struct rule *v;
    size_t n;
};

void rules_fini(struct rules *r);
/* ret zeroed; to be freed also after a failure. ERR_BAD_OPTION. text may be NULL. */
int rules_parse(const char *text, struct rules *ret, struct err *e);
/* Appends the text. -E2BIG. */
int rules_format(const struct rules *r, struct buf *b);

enum rule_keep rules_keep(const struct rules *r, struct slice key);
/* False when no rule says. */
bool rules_ttl(const struct rules *r, struct slice key, uint64_t *ret_ttl_ms);

/* Changes what is said for exactly this prefix: "pin=true|false", "cache=never|auto", "ttl=TIME" or "ttl=".
 * Pinning a prefix ends that it is never cached, and the reverse. ERR_BAD_OPTION. */
int rules_change(struct rules *r, struct slice prefix, struct slice setting, struct err *e);

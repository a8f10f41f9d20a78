/*
 * Ends of objects (contract in expiry.h).
 *
 * 1. A line that is no number counts as none: metadata that somebody else wrote never makes an object vanish
 * early.
 * 2. What has no time does not end by the bucket's ttl: it would have ended in 1970.
 */
#include "namespace/expiry.h"

#include "origin/meta.h"

#define MS_NS 1000000

uint64_t expiry_ns(uint64_t ttl_ms, uint64_t since_ns, struct slice meta)
{
    uint64_t own;
    if (meta.n > 0 && slice_u64(meta_get(meta, META_EXPIRES), &own) == 0)
        return own;
    if (ttl_ms == 0 || since_ns == 0)
        return 0;
    return ttl_ms > (UINT64_MAX - since_ns) / MS_NS ? 0 : since_ns + ttl_ms * MS_NS;
}

bool expiry_is_over(uint64_t ttl_ms, uint64_t since_ns, struct slice meta, uint64_t now_ns)
{
    uint64_t end = expiry_ns(ttl_ms, since_ns, meta);
    return end != 0 && end <= now_ns;
}

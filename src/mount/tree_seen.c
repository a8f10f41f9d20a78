/* What a file was like (contract in tree_seen.h). */
#include "mount/tree_seen.h"

bool tree_seen_again(struct tree_seen *seen, uint64_t ino, uint64_t size_bytes, int64_t ctime_ns,
                     int64_t now_ns)
{
    bool is_same =
        seen->is_settled && seen->ino == ino && seen->size_bytes == size_bytes && seen->ctime_ns == ctime_ns;
    *seen = (struct tree_seen){.ino = ino,
                               .size_bytes = size_bytes,
                               .ctime_ns = ctime_ns,
                               .is_settled = ctime_ns < now_ns - TREE_SEEN_SETTLED_NS};
    return is_same;
}

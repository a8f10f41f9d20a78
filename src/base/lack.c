/* Which blocks of a file are on disk (contract in lack.h). */
#include "base/lack.h"

#include "base/sys.h"

#include <linux/fiemap.h>
#include <linux/fs.h>
#include <string.h>
#include <sys/ioctl.h>

#define BLOCK_MIN_BYTES 4096
#define BLOCK_MAX_BYTES MIB
#define MAP_EXTENTS     64 /* looked at, at once */

static void lacks(struct lack *l, uint64_t from, uint64_t to)
{
    if (!l->is_over && l->missing + (to - from) > l->room) {
        l->reach = from + (l->room - l->missing);
        l->is_over = true;
    }
    l->missing += to - from;
    if (!l->is_over)
        l->reach = to;
}

static void has(struct lack *l, uint64_t to)
{
    if (!l->is_over)
        l->reach = to;
}

/* By the file system's own map. false: it does not say. */
static bool look_at_extents(int fd, uint64_t from, uint64_t to, struct lack *l)
{
    union {
        struct fiemap map;
        char room[sizeof(struct fiemap) + MAP_EXTENTS * sizeof(struct fiemap_extent)];
    } u;
    while (from < to) {
        memset(&u, 0, sizeof(u));
        u.map.fm_start = from;
        u.map.fm_length = to - from;
        u.map.fm_extent_count = MAP_EXTENTS;
        if (ioctl(fd, FS_IOC_FIEMAP, &u.map) < 0)
            return false;
        uint64_t before = from;
        if (u.map.fm_mapped_extents == 0) {
            lacks(l, from, to);
            return true;
        }
        for (uint32_t i = 0; i < u.map.fm_mapped_extents && from < to; i++) {
            const struct fiemap_extent *x = &u.map.fm_extents[i];
            uint64_t begin = MIN(MAX(x->fe_logical, from), to);
            uint64_t end = MIN(MAX(x->fe_logical + x->fe_length, begin), to);
            lacks(l, from, begin);
            if (x->fe_flags & FIEMAP_EXTENT_SHARED) /* writing to those takes new ones */
                lacks(l, begin, end);
            has(l, end);
            from = end;
        }
        if (from == before) /* no answer to the question */
            return false;
    }
    return true;
}

void lack_look(int fd, uint64_t from, uint64_t to, uint64_t block, struct lack *l)
{
    struct lack start = *l;
    if (look_at_extents(fd, from, to, l)) {
        l->missing = ALIGN_UP(l->missing, block);
        return;
    }
    *l = start;
    int64_t hole = sys->lseek(fd, from, SEEK_HOLE);
    uint64_t first = hole < 0 ? from : MIN(ALIGN_UP((uint64_t)hole, block), to);
    has(l, first);
    lacks(l, first, to); /* of what is behind a hole nothing is known */
}

uint64_t lack_block(const struct stat *st)
{
    return MIN(MAX((uint64_t)st->st_blksize, (uint64_t)BLOCK_MIN_BYTES), (uint64_t)BLOCK_MAX_BYTES);
}

uint64_t lack_blocks(uint64_t block, uint64_t offset, uint64_t n, uint64_t *ret_from)
{
    uint64_t end = n > INT64_MAX - MIN(offset, (uint64_t)INT64_MAX) ? INT64_MAX : offset + n;
    *ret_from = offset / block * block;
    return end <= *ret_from ? 0 : ALIGN_UP(end - *ret_from, block);
}

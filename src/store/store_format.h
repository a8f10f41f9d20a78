/*
 * What the store keeps on a disk, byte by byte.
 *
 *     DISK/forebay-disk          the disk's identity and how its last stop was (text, replaced atomically)
 *     DISK/index/                the index: one RocksDB
 *     DISK/extents/xx/<32 hex>   the extent files; the name is the data id, xx its first two digits
 *     DISK/dying                 a table of data ids, 16 bytes each: of entries whose records count no more
 *                                and are not deleted yet, among others that are gone and zeros. A start
 *                                that finds the disk unclean deletes such records, and their files, and
 *                                empties the table. Not synced
 *     DISK/hard/xx/<32 hex>      the files of hard extents, named likewise; made when the first one is needed
 *     DISK/set-aside/<32 hex>    hard extents' files that no record led to any more after records were lost
 * with a damaged log; for people, nothing here reads or removes them
 *
 * forebay-disk, version 1: four lines, each ended by a newline, in this order.
 *
 *     forebay-disk 1
 *     id <32 hex digits>         drawn when the disk was made; goes into placement
 *     boot <text>                the kernel's boot id when the store was last opened; "unknown" where it has
 *                                none to be read
 *     state clean|unclean        unclean from before the first change until a clean stop
 *
 * Index keys begin with one letter. Integers are little endian in values and big endian in keys.
 *
 *     key                        value
 *     'o' key                    entry record: the current extent of a key
 *     'x' data id                the key: the way back from a file; ids are random, so that a seek to a
 *                                random id samples the entries evenly
 *     'c' data id, be32 chunk    chunk record: presence and checksums of blocks chunk*1024 ..; not for
 *                                one-block extents
 *     's' data id                empty: a file that no entry names yet. Committed before the file is made,
 *                                some at a time and ahead of need, deleted in the commit that writes the
 *                                entry or at a clean stop; what is left at start-up is removed with its
 *                                file, if there is one; also the file of an entry that is gone, where it
 *                                could not be removed
 *     'f' data id                mark: empty: a hard extent's file that maybe nobody names. Durable before
 *                                the file is made or a sealed one is removed; deleted when it is sealed, or
 *                                once its removal is on disk
 *     'h' data id                hard record: a sealed hard extent. Written and deleted durably
 *     'k' data id, be64 chunk    hard chunk record: checksums of blocks chunk*1024 .. of a sealed hard extent
 *     'd'                        the data-set table of the eviction policy, after an 8-byte generation
 *     'm' "epoch"                epoch record
 *     'm' "count"                count record: always the sums over the entry records, because each commit
 *                                that changes those writes it too
 *     'm' "hard"                 count record: likewise, of allocated bytes and number of the hard records
 *     'm' "doubt"                le64: real time in ns of the start after the last power loss, or after
 *                                starts of the node without this disk
 *     'm' "start"                16 bytes: the start of the node that used the disk last
 *     'm' "time"                 le64: real time in ns when the last epoch ended, and never less than before:
 *                                what a clock that went back over a power loss is compared with
 *     'm' "sweep"                empty: there was a power loss, and the walk after it has not ended yet
 *     'm' "cut"                  le64: "time" as it was when the index had just lost its last commits
 *                                (kv_is_cut); until somebody has seen to that
 *
 * Entry record, version 1
 *
 *     offset  size  meaning
 *     0       1     version, 1
 *     1       1     flags: FORMAT_ENTRY_*
 *     2       2     bytes of the attribute blob
 *     4       4     crc32c of the record with this field zero
 *     8       16    data id
 *     24      8     size of the object in bytes
 *     32      8     epoch of the last change to which blocks are present
 *     40      8     time of the last read, ms since 1970
 *     48      4     data set
 *     52      4     number of present blocks
 *     56      4     one-block extents whose block is present: its crc32c; else 0
 *     60      4     zero
 *     64      n     attribute blob
 *
 * Chunk record, version 1; n is the number of blocks, 1 .. 1024
 *
 *     offset  size            meaning
 *     0       1               version, 1
 *     1       1               zero
 *     2       2               n
 *     4       4               crc32c of the record with this field zero
 *     8       8               epoch of the last change
 *     16      (n + 7) / 8     presence: bit b % 8 of byte b / 8
 *     ..      4 n             crc32c of each block, 0 where it is missing
 *
 * Hard record, version 1. It vouches for every byte of the file: the file has this size, and its blocks these
 * checksums. Chunks that are holes throughout have no record; a block that is a hole has the checksum of
 * zeros.
 *
 *     offset  size  meaning
 *     0       1     version, 1
 *     1       3     zero
 *     4       4     crc32c of the record with this field zero
 *     8       8     size of the file in bytes
 *     16      8     bytes that the file system had allocated
 *     24      8     generation: drawn at each sealing; chunk records of another one do not count
 *     32      8     number of chunk records of this generation; 0 for files of up to one block
 *     40      4     files of one block: its crc32c; else 0
 *     44      4     zero
 *
 * Hard chunk record, version 1; n is the number of blocks, 1 .. 1024
 *
 *     offset  size  meaning
 *     0       1     version, 1
 *     1       1     zero
 *     2       2     n
 *     4       4     crc32c of the record with this field zero
 *     8       8     generation
 *     16      4 n   crc32c of each block
 *
 * A crash can leave: marks without files; marked files that nobody names (both go with the sweep,
 * hard_recover.c); chunk records without a hard record, or of an older generation (replaced at the next
 * sealing, or removed with the file). A hard record is committed after the bytes were synced and removed
 * before they may change, each time durably, so that one that is there is always true.
 *
 * Epoch record: 8 bytes of durable epoch D, then 16 bytes (first, last) for each range of suspect epochs,
 * rising. Count record: 8 bytes of used bytes, 8 bytes of extents.
 *
 * Epochs. Every record carries the number of the epoch in which it was written; the running epoch is above D.
 * To end epoch E the store waits until no commit is under way, begins E+1, calls syncfs, and then commits D =
 * E durably. A block is recorded only after its bytes were handed to the kernel, so the bytes of every record
 * of an epoch up to D are on disk. A crash can leave: records of epochs D+1 and D+2 whose bytes are not there
 * (never later ones: a new epoch begins only after the one before the last is durable); bytes without a
 * record (fetched again); files without a record (removed by marker, or after power loss found by the walk in
 * store_check.c). When a disk was not stopped cleanly, or syncfs reported an error, the epochs that were not
 * durable become a suspect range for ever, and D moves behind them. Blocks recorded in a suspect epoch are
 * read and compared before they are served; records rewritten after that carry the running epoch.
 */
#pragma once

#include "base/buf.h"
#include "base/err.h"
#include "base/id.h"

#define FORMAT_VERSION      1
#define FORMAT_CHUNK_BLOCKS 1024

#define FORMAT_ENTRY_COMPLETE 0x01 /* every block is present */
#define FORMAT_ENTRY_FLAGS    0x01

#define FORMAT_ENTRY_HEAD_BYTES 64
#define FORMAT_CHUNK_HEAD_BYTES 16
#define FORMAT_CHUNK_MAX_BYTES  (FORMAT_CHUNK_HEAD_BYTES + FORMAT_CHUNK_BLOCKS / 8 + 4 * FORMAT_CHUNK_BLOCKS)
#define FORMAT_HARD_BYTES       48
#define FORMAT_HARD_CHUNK_HEAD  16
#define FORMAT_HARD_CHUNK_MAX   (FORMAT_HARD_CHUNK_HEAD + 4 * FORMAT_CHUNK_BLOCKS)
#define FORMAT_RANGES_MAX       64
#define FORMAT_DISK_FILE_MAX    1024
#define FORMAT_BOOT_SIZE        64

/* The longest index key with its letter, for buffers on the stack. */
#define FORMAT_KEY_MAX 2049

struct format_key {
    size_t n;
    char p[FORMAT_KEY_MAX];
};

struct format_entry {
    uint8_t flags;
    struct id128 id;
    uint64_t size_bytes;
    uint64_t epoch;
    uint64_t last_read_ms;
    uint32_t data_set;
    uint32_t present_blocks;
    uint32_t crc;
    struct slice attr; /* decoded: into the value */
};

struct format_chunk {
    uint64_t epoch;
    uint32_t n_blocks;
    uint8_t present[FORMAT_CHUNK_BLOCKS / 8];
    uint32_t crc[FORMAT_CHUNK_BLOCKS];
};

struct format_hard {
    uint64_t size_bytes, allocated_bytes;
    uint64_t generation;
    uint64_t n_chunks;
    uint32_t crc;
};

struct format_hard_chunk {
    uint64_t generation;
    uint32_t n_blocks;
    uint32_t crc[FORMAT_CHUNK_BLOCKS];
};

struct format_range {
    uint64_t first, last;
};

struct format_epoch {
    uint64_t durable;
    uint32_t n_ranges;
    struct format_range ranges[FORMAT_RANGES_MAX];
};

struct format_count {
    uint64_t used_bytes, extents;
};

struct format_disk {
    struct id128 id;
    char boot[FORMAT_BOOT_SIZE];
    bool clean;
};

struct slice format_key_view(const struct format_key *k);
/* A key as messages show it: "#7/dir/name" when it begins with a number of 8 bytes, big endian, as the object
 * layer's bucket ids are; control bytes as \xNN; cut, with "...", when it is too long. Gives ret. */
#define FORMAT_KEY_TEXT_MAX 1200
char *format_key_text(struct slice key, char ret[FORMAT_KEY_TEXT_MAX]);
/* letter + bytes; the bytes are at most FORMAT_KEY_MAX - 1 long. */
void format_key_bytes(char letter, struct slice bytes, struct format_key *ret);
void format_key_id(char letter, struct id128 id, struct format_key *ret);
void format_key_chunk(struct id128 id, uint32_t chunk, struct format_key *ret);
void format_key_hard_chunk(struct id128 id, uint64_t chunk, struct format_key *ret);
/* The id in an 'x', 's', 'c', 'f', 'h' or 'k' key; -EBADMSG. */
int format_key_parse_id(struct slice key, struct id128 *ret_id);

/* Encoders replace what is in `b`. Decoders give -EBADMSG for anything they would not have written. */
void format_entry_encode(const struct format_entry *r, struct buf *b);
int format_entry_decode(struct slice s, struct format_entry *ret);
void format_chunk_encode(const struct format_chunk *r, struct buf *b);
int format_chunk_decode(struct slice s, struct format_chunk *ret);
void format_hard_encode(const struct format_hard *r, struct buf *b);
int format_hard_decode(struct slice s, struct format_hard *ret);
void format_hard_chunk_encode(const struct format_hard_chunk *r, struct buf *b);
int format_hard_chunk_decode(struct slice s, struct format_hard_chunk *ret);
void format_epoch_encode(const struct format_epoch *r, struct buf *b);
int format_epoch_decode(struct slice s, struct format_epoch *ret);
void format_count_encode(const struct format_count *r, struct buf *b);
int format_count_decode(struct slice s, struct format_count *ret);
void format_disk_encode(const struct format_disk *r, struct buf *b);
int format_disk_decode(struct slice s, struct format_disk *ret);

/* Blocks of an object of this size, and the bytes that an entry with so many present blocks counts as. */
uint64_t format_blocks(uint64_t size_bytes);
uint64_t format_charge(uint64_t size_bytes, uint64_t present_blocks);

bool format_epoch_is_suspect(const struct format_epoch *r, uint64_t epoch);
/* Makes (durable, last] suspect and `last` durable. When the table is full the two oldest ranges become one,
 * which makes the epochs between them suspect as well: more verification, never less. */
void format_epoch_distrust(struct format_epoch *r, uint64_t last);

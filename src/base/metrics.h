/*
 * The one metrics table. A row in METRICS_TABLE makes the enum, the Prometheus name, the help line and the
 * docs. A series is a metric with up to three label values; at most METRICS_SERIES_MAX series per metric
 * are shown, what comes after them is counted under label values "other". Updates are lock-free atomics once
 * the series is known: hot paths look a series up once and keep the pointer, which stays valid until the
 * process ends; but not one of a bucket, which goes with it (metrics_keep_buckets).
 */
#pragma once

#include "base/buf.h"

/* X(NAME, kind, prometheus name, labels (comma separated, may be ""), help) kind: COUNTER, GAUGE or
 * HISTOGRAM. Histograms are in seconds with fixed buckets from 50 us to 60 s. */
#define METRICS_TABLE(X)                                                                                     \
    X(ORIGIN_REQUESTS, COUNTER, "forebay_origin_requests_total", "bucket,op,code",                           \
      "Requests sent to the origin, by operation and HTTP status (0: no answer)")                            \
    X(ORIGIN_READ_BYTES, COUNTER, "forebay_origin_read_bytes_total", "bucket",                               \
      "Object bytes received from the origin")                                                               \
    X(ORIGIN_WRITTEN_BYTES, COUNTER, "forebay_origin_written_bytes_total", "bucket",                         \
      "Object bytes sent to the origin")                                                                     \
    X(ORIGIN_RETRIES, COUNTER, "forebay_origin_retries_total", "bucket,reason", "Requests sent again")       \
    X(ORIGIN_HEDGES, COUNTER, "forebay_origin_hedges_total", "bucket",                                       \
      "Second requests sent because the first was slower than the 95th percentile")                          \
    X(ORIGIN_SECONDS, HISTOGRAM, "forebay_origin_seconds", "bucket,op", "Time to the origin's last byte")    \
    X(ORIGIN_FIRST_BYTE_SECONDS, HISTOGRAM, "forebay_origin_first_byte_seconds", "bucket",                   \
      "Time to the origin's first byte of a ranged read")                                                    \
    X(READ_BYTES, COUNTER, "forebay_read_bytes_total", "bucket,via,from",                                    \
      "Bytes read by users; via s3, mount or api; from cache or origin")                                     \
    X(WRITTEN_BYTES, COUNTER, "forebay_written_bytes_total", "bucket,via", "Bytes written by users")         \
    X(REQUESTS, COUNTER, "forebay_requests_total", "via,op,code", "Requests answered")                       \
    X(REQUEST_SECONDS, HISTOGRAM, "forebay_request_seconds", "via,op",                                       \
      "Time from request head to last byte")                                                                 \
    X(OPENS, COUNTER, "forebay_opens_total", "bucket,via,state", "Opens; state complete, partial or cold")   \
    X(READ_PATTERNS, COUNTER, "forebay_read_patterns_total", "bucket,pattern",                               \
      "Open files of which a pattern of reading was recognised and read ahead for")                          \
    X(BACK_OBJECTS, GAUGE, "forebay_write_back_objects", "bucket", "Keys that are not in the origin yet")    \
    X(BACK_BYTES, GAUGE, "forebay_write_back_bytes", "bucket", "Bytes that are not in the origin yet")       \
    X(BACK_OLDEST_SECONDS, GAUGE, "forebay_write_back_oldest_seconds", "bucket",                             \
      "Age of the oldest write that is not in the origin yet")                                               \
    X(BACK_CONFLICTS, COUNTER, "forebay_write_back_conflicts_total", "bucket",                               \
      "Writes whose object in the origin was changed by somebody else meanwhile")                            \
    X(DISK_USED_BYTES, GAUGE, "forebay_disk_used_bytes", "disk", "Bytes of cached data on the disk")         \
    X(DISK_LIMIT_BYTES, GAUGE, "forebay_disk_limit_bytes", "disk", "Most bytes the disk may hold")           \
    X(DISK_EXTENTS, GAUGE, "forebay_disk_extents", "disk", "Extent files on the disk")                       \
    X(DISK_FREE_BYTES, GAUGE, "forebay_disk_free_bytes", "disk", "Free bytes the file system reports")       \
    X(DISK_HARD_BYTES, GAUGE, "forebay_disk_hard_bytes", "disk", "Bytes of files of scratch buckets")        \
    X(DISK_HARD_EXTENTS, GAUGE, "forebay_disk_hard_extents", "disk", "Files of scratch buckets on the disk") \
    X(SCRATCH_INODES, GAUGE, "forebay_scratch_inodes", "bucket",                                             \
      "Files and directories of the scratch bucket")                                                         \
    X(SCRATCH_BYTES, GAUGE, "forebay_scratch_bytes", "bucket",                                               \
      "Bytes on disk of the scratch bucket's files")                                                         \
    X(SCRATCH_RESERVED_BYTES, GAUGE, "forebay_scratch_reserved_bytes", "bucket",                             \
      "Room in the scratch bucket's quota that open files hold for what is about to be written")             \
    X(SCRATCH_UNSETTLED, GAUGE, "forebay_scratch_unsettled_files", "",                                       \
      "Files of scratch buckets that may be written to, or were a moment ago")                               \
    X(SCRATCH_FREEING, GAUGE, "forebay_scratch_files_to_free", "",                                           \
      "Removed files of scratch buckets whose space is still to be given back")                              \
    X(VALUES_BYTES, GAUGE, "forebay_values_bytes", "", "Memory of objects of buckets with values=memory")    \
    X(VALUES, GAUGE, "forebay_values", "", "Objects of buckets with values=memory")                          \
    X(VALUE_GETS, GAUGE, "forebay_value_gets_total", "result",                                               \
      "Lookups in buckets with values=memory; result hit or miss")                                           \
    X(VALUES_GONE, GAUGE, "forebay_values_gone_total", "reason",                                             \
      "Objects of buckets with values=memory that went; reason evicted, expired or replaced")                \
    X(EVICTED_BYTES, COUNTER, "forebay_evicted_bytes_total", "disk,reason", "Bytes evicted")                 \
    X(NOT_ADMITTED, COUNTER, "forebay_not_admitted_total", "reason", "Fills served without caching")         \
    X(CORRUPT_BLOCKS, COUNTER, "forebay_corrupt_blocks_total", "disk,found",                                 \
      "Blocks whose checksum was wrong; found by read, check, scrub or start; unread: the index did not "    \
      "tell it")                                                                                             \
    X(SCRUBBED_BYTES, COUNTER, "forebay_scrubbed_bytes_total", "disk", "Bytes read by the scrub")            \
    X(SCRUB_WAITS, COUNTER, "forebay_scrub_waits_total", "",                                                 \
      "Times that the scrub found somebody reading or writing, and waited")                                  \
    X(VERIFIED_BLOCKS, COUNTER, "forebay_verified_blocks_total", "disk", "Blocks verified")                  \
    X(SET_ASIDE_FILES, GAUGE, "forebay_set_aside_files", "disk",                                             \
      "Files in set-aside on the disk: scratch files whose names were lost")                                 \
    X(LOGS_CUT, COUNTER, "forebay_logs_cut_total", "database",                                               \
      "Starts that found the log of a database damaged and lost its last changes")                           \
    X(INDEX_ENTRIES, GAUGE, "forebay_index_entries", "disk", "Entries in the index (estimate)")              \
    X(RESIDENT_BYTES, GAUGE, "forebay_resident_bytes", "kind",                                               \
      "Memory of this process; kind anon, shmem, file")                                                      \
    X(MEMORY_BUDGET_BYTES, GAUGE, "forebay_memory_budget_bytes", "kind",                                     \
      "Memory budget; kind used or total")                                                                   \
    X(CONNECTIONS, GAUGE, "forebay_connections", "via", "Open connections; via http, wire or unix")          \
    X(CONNECTIONS_ACTIVE, GAUGE, "forebay_connections_active", "via", "Connections with a request running")  \
    X(REFUSED, COUNTER, "forebay_refused_total", "reason",                                                   \
      "Requests refused before they were run; slow: cut, because nearly all threads waited for clients")     \
    X(LIMIT_WAITED, HISTOGRAM, "forebay_limit_waited_seconds", "limit,name",                                 \
      "Time that requests waited for a limit; limit node, bucket, user, client, or share")                   \
    X(LIMIT_REFUSED, COUNTER, "forebay_limit_refused_total", "limit,name",                                   \
      "Requests refused because too many wait for a limit")                                                  \
    X(MEMORY_REFUSED, COUNTER, "forebay_memory_refused_total", "for",                                        \
      "Requests refused because others had the memory; for documents of S3 clients, parts of uploads, or "   \
      "bytes of the wire protocol (wire)")                                                                   \
    X(CROWD_REFUSED, COUNTER, "forebay_crowd_refused_total", "for",                                          \
      "Requests refused because too many others wait; for origins, or parts of uploads that are on their "   \
      "way")                                                                                                 \
    X(HANDLES, GAUGE, "forebay_handles", "kind", "Open handles; kind read or write")                         \
    X(SESSIONS, GAUGE, "forebay_sessions", "", "Clients connected by the wire protocol")                     \
    X(PASSTHROUGH, GAUGE, "forebay_mount_passthrough", "mount", "1 when the mount uses kernel passthrough")  \
    X(START_SECONDS, GAUGE, "forebay_start_seconds", "", "Time from start until ready")                      \
    X(UP_SINCE, GAUGE, "forebay_start_time_seconds", "", "Start time, seconds since 1970")                   \
    X(INFO, GAUGE, "forebay_info", "version", "Always 1; the version is in the label")

enum metric {
#define X(name, kind, prom, labels, help) METRIC_##name,
    METRICS_TABLE(X)
#undef X
        METRIC_COUNT
};

#define METRICS_SERIES_MAX 1024

/* More than all series of all metrics take with the longest names of buckets. */
#define METRICS_TEXT_MAX_BYTES ((size_t)32 << 20)

struct metric_series;

/* Finds or makes the series; label values in the order of the row, pass "" or NULL for those the row lacks.
 * Never NULL. Thread-safe. */
struct metric_series *metrics_series(enum metric m, const char *l0, const char *l1, const char *l2);
void metrics_add(struct metric_series *s, uint64_t n);
void metrics_set(struct metric_series *s, int64_t value);
void metrics_gauge_add(struct metric_series *s, int64_t delta);
void metrics_observe_ns(struct metric_series *s, uint64_t ns);
uint64_t metrics_value(struct metric_series *s);
/* Approximate quantile (0..1) of a histogram in ns, 0 when empty. */
uint64_t metrics_quantile_ns(struct metric_series *s, double q);
/* Series of buckets other than these end, once they were missing from two calls: they are not shown any more,
 * and begin anew when there is such a bucket again. `names` are in the order of strcmp. */
void metrics_keep_buckets(const char *const *names, size_t n);
/* What the series is about is gone: it is not shown any more, and begins anew when that comes again. Who
 * looked it up before may count into another one: by who sees to it that nobody does. */
void metrics_end(enum metric m, const char *l0, const char *l1, const char *l2);
/* Convenience for cold paths. */
#define metrics_count(m, l0, l1, l2) metrics_add(metrics_series((m), (l0), (l1), (l2)), 1)

/* Prometheus text exposition format 0.0.4 of everything. -E2BIG when b's maximum is too small. */
int metrics_text(struct buf *b);

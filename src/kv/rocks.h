/*
 * RocksDB's functions that the engine calls: rocks.open is rocksdb_open. The library is opened with the first
 * database and not with the program, whose other commands have none (base/library.h).
 */
#pragma once

#include "base/err.h"

#include <rocksdb/c.h>

#define ROCKS_FUNCTIONS(X)                                                                                   \
    X(block_based_options_create)                                                                            \
    X(block_based_options_destroy)                                                                           \
    X(block_based_options_set_block_cache)                                                                   \
    X(block_based_options_set_block_size)                                                                    \
    X(block_based_options_set_cache_index_and_filter_blocks)                                                 \
    X(block_based_options_set_cache_index_and_filter_blocks_with_high_priority)                              \
    X(block_based_options_set_filter_policy)                                                                 \
    X(block_based_options_set_format_version)                                                                \
    X(block_based_options_set_index_type)                                                                    \
    X(block_based_options_set_metadata_block_size)                                                           \
    X(block_based_options_set_partition_filters)                                                             \
    X(block_based_options_set_pin_top_level_index_and_filter)                                                \
    X(cache_create_lru)                                                                                      \
    X(cache_destroy)                                                                                         \
    X(cache_get_usage)                                                                                       \
    X(cancel_all_background_work)                                                                            \
    X(close)                                                                                                 \
    X(create_iterator)                                                                                       \
    X(create_snapshot)                                                                                       \
    X(filterpolicy_create_bloom_full)                                                                        \
    X(flush)                                                                                                 \
    X(flush_wal)                                                                                             \
    X(flushoptions_create)                                                                                   \
    X(flushoptions_destroy)                                                                                  \
    X(flushoptions_set_wait)                                                                                 \
    X(free)                                                                                                  \
    X(get_latest_sequence_number)                                                                            \
    X(get_pinned)                                                                                            \
    X(iter_destroy)                                                                                          \
    X(iter_get_error)                                                                                        \
    X(iter_key)                                                                                              \
    X(iter_next)                                                                                             \
    X(iter_seek)                                                                                             \
    X(iter_valid)                                                                                            \
    X(iter_value)                                                                                            \
    X(open)                                                                                                  \
    X(open_for_read_only)                                                                                    \
    X(options_create)                                                                                        \
    X(options_destroy)                                                                                       \
    X(options_set_block_based_table_factory)                                                                 \
    X(options_set_bytes_per_sync)                                                                            \
    X(options_set_compression)                                                                               \
    X(options_set_create_if_missing)                                                                         \
    X(options_set_db_write_buffer_size)                                                                      \
    X(options_set_info_log_level)                                                                            \
    X(options_set_keep_log_file_num)                                                                         \
    X(options_set_level0_slowdown_writes_trigger)                                                            \
    X(options_set_level0_stop_writes_trigger)                                                                \
    X(options_set_level_compaction_dynamic_level_bytes)                                                      \
    X(options_set_max_background_jobs)                                                                       \
    X(options_set_max_log_file_size)                                                                         \
    X(options_set_max_manifest_file_size)                                                                    \
    X(options_set_max_open_files)                                                                            \
    X(options_set_max_total_wal_size)                                                                        \
    X(options_set_max_write_buffer_number)                                                                   \
    X(options_set_memtable_prefix_bloom_size_ratio)                                                          \
    X(options_set_memtable_whole_key_filtering)                                                              \
    X(options_set_paranoid_checks)                                                                           \
    X(options_set_skip_checking_sst_file_sizes_on_db_open)                                                   \
    X(options_set_skip_stats_update_on_db_open)                                                              \
    X(options_set_stats_dump_period_sec)                                                                     \
    X(options_set_stats_persist_period_sec)                                                                  \
    X(options_set_wal_bytes_per_sync)                                                                        \
    X(options_set_wal_recovery_mode)                                                                         \
    X(options_set_write_buffer_size)                                                                         \
    X(pinnableslice_destroy)                                                                                 \
    X(pinnableslice_value)                                                                                   \
    X(property_int)                                                                                          \
    X(readoptions_create)                                                                                    \
    X(readoptions_destroy)                                                                                   \
    X(readoptions_set_fill_cache)                                                                            \
    X(readoptions_set_iterate_upper_bound)                                                                   \
    X(readoptions_set_snapshot)                                                                              \
    X(release_snapshot)                                                                                      \
    X(set_perf_level)                                                                                        \
    X(write)                                                                                                 \
    X(writebatch_clear)                                                                                      \
    X(writebatch_create)                                                                                     \
    X(writebatch_data)                                                                                       \
    X(writebatch_delete)                                                                                     \
    X(writebatch_delete_range)                                                                               \
    X(writebatch_destroy)                                                                                    \
    X(writebatch_put)                                                                                        \
    X(writebatch_putv)                                                                                       \
    X(writeoptions_create)                                                                                   \
    X(writeoptions_destroy)                                                                                  \
    X(writeoptions_disable_WAL)                                                                              \
    X(writeoptions_set_sync)

struct rocks {
#define X(name) __typeof__(rocksdb_##name) *name;
    ROCKS_FUNCTIONS(X)
#undef X
};

/* Filled by rocks_load; constant afterwards. */
extern struct rocks rocks;

/* Once is enough, again does no harm; any thread. -ELIBACC when the library is not installed. */
int rocks_load(struct err *e);

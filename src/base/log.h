/*
 * Log lines to stderr: "2026-01-31T23:59:59.123Z info  store: disk /d1: 3 blocks failed their check".
 * One write(2) per line, safe from any thread. Level from FOREBAY_LOG or --log-level: error, warn, info,
 * debug.
 */
#pragma once

#include "base/err.h"

enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARN, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG };

void log_set_level(enum log_level level);
int log_parse_level(const char *name, enum log_level *ret);
/* For lines whose arguments cost something to make. */
bool log_enabled(enum log_level level);
void log_at(enum log_level level, const char *area, const char *fmt, ...) PRINTF_LIKE(3, 4);

#define log_error(area, ...) log_at(LOG_LEVEL_ERROR, (area), __VA_ARGS__)
#define log_warn(area, ...)  log_at(LOG_LEVEL_WARN, (area), __VA_ARGS__)
#define log_info(area, ...)  log_at(LOG_LEVEL_INFO, (area), __VA_ARGS__)
#define log_debug(area, ...) log_at(LOG_LEVEL_DEBUG, (area), __VA_ARGS__)

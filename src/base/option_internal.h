/* Shared by the parts of the option engine: option.c, option_args.c, option_yaml.c, option_help.c. */
#pragma once

#include "base/option.h"

/* Longest option name a table may hold. */
#define OPTION_NAME_MAX 64

static inline void *option_field(const struct option *row, void *opts)
{
    return (char *)opts + row->offset;
}

static inline const void *option_field_const(const struct option *row, const void *opts)
{
    return (const char *)opts + row->offset;
}

/* Sets by row. `shown_as` as in option_set; a LIST appends. */
int option_set_row(const struct option *row, void *opts, const char *value, const char *shown_as,
                   struct err *e);
/* Empties a LIST before the first value of a stronger source; other types are left alone. */
void option_list_restart(const struct option *row, void *opts);
/* The error for a name that no row has. dashes: "--" on the command line, "" elsewhere. */
int option_unknown(const struct option_table *t, const char *name, const char *dashes, struct err *e);
/* Number of a row in messages and help: bytes, ms or a plain number as a person would write it. */
int option_put_number(const struct option *row, uint64_t v, struct buf *b);

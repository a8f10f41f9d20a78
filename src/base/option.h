/*
 * The one option engine: every command line flag, configuration file key, environment variable and bucket
 * property is a row of a table; parsing, checking, --help, the manual and `--json` forms come from the rows.
 *
 * A row writes into a field of a plain struct at `offset`. Values are checked against min and max. Errors
 * read
 * "--memory 64K: below the minimum of 64MiB" and carry ERR_BAD_OPTION; the CLI turns them into exit status 2.
 */
#pragma once

#include "base/buf.h"
#include "base/err.h"

enum option_type {
    OPTION_BOOL,     /* field bool; the bare flag means true, --no-NAME false */
    OPTION_UINT,     /* field uint64_t */
    OPTION_SIZE,     /* field uint64_t, bytes */
    OPTION_DURATION, /* field uint64_t, ms */
    OPTION_STRING,   /* field char *, heap, freed by option_fini; may be NULL */
    OPTION_LIST,     /* field struct option_list; the flag may be repeated */
    OPTION_ENUM,     /* field int, index into `choices` ("never|ttl|always" style, '|' between) */
};

struct option_list {
    char **v;
    size_t n;
};

struct option {
    const char *name; /* "memory": flag --memory, YAML key memory, environment FOREBAY_MEMORY */
    char short_flag;  /* 'r' or 0 */
    enum option_type type;
    size_t offset;       /* into the options struct */
    const char *def;     /* default as a person would write it; NULL: none */
    uint64_t min, max;   /* UINT, SIZE, DURATION; max 0: no limit */
    const char *choices; /* ENUM */
    const char *arg;     /* what --help shows for the value: "SIZE"; NULL for BOOL */
    const char *doc;     /* one line */
    bool reloadable;     /* may change without a restart */
    bool secret;         /* shown as "***" and never logged */
    bool hidden;         /* not in --help */
};

struct option_table {
    const struct option *rows;
    size_t n_rows;
    const char *env_prefix; /* "FOREBAY_" or NULL when environment variables do not apply */
};

/* Fills defaults. */
int option_init(const struct option_table *t, void *opts, struct err *e);
void option_fini(const struct option_table *t, void *opts);
/* One value by its name, a LIST appends; `shown_as` ("--memory", "memory", "FOREBAY_MEMORY") starts the error
 * text. */
int option_set(const struct option_table *t, void *opts, const char *name, const char *value,
               const char *shown_as, struct err *e);
/* Environment: every row whose PREFIX_NAME (upper case, '-' and '.' as '_') is set and not empty. The values
 * of a LIST are separated by commas. As everywhere but in option_set, a LIST given here replaces the one that
 * was there. */
int option_env(const struct option_table *t, void *opts, struct err *e);
/* YAML file: a mapping of names to scalars or lists of scalars. Unknown keys are errors that name the line.
 */
int option_yaml(const struct option_table *t, void *opts, const char *path, struct err *e);
/* argv[0..argc), without the names of program and command: flags may come before, between and after operands;
 * "--" ends them. On return the operands are moved to argv[0..*ret_operands). "--help" and "-h", where no row
 * has that name, give -ECANCELED with nothing in `e`: the caller prints help. */
int option_args(const struct option_table *t, void *opts, int argc, char **argv, int *ret_operands,
                struct err *e);
/* Current value as text, as option_set would take it (a LIST: separated by commas); nothing for an unset
 * STRING. Secrets come in the clear: who shows the text to people checks the row. ERR_BAD_OPTION: no such
 * name. */
int option_get(const struct option_table *t, const void *opts, const char *name, struct buf *b);
/* The --help lines, aligned, with defaults and ranges; width 100. */
int option_help(const struct option_table *t, struct buf *b);
/* mdoc(7) list items for the manual. */
int option_mdoc(const struct option_table *t, struct buf *b);
/* Both for a table of properties, which are written KEY=VALUE. */
int option_help_keys(const struct option_table *t, struct buf *b);
int option_mdoc_keys(const struct option_table *t, struct buf *b);
const struct option *option_find(const struct option_table *t, const char *name);

/*
 * What a job is asked to do: one table that the command line, the wire and the record in the control store
 * share. As text a spec is lines "name=value\n" in table order; defaults are left out. A value has no line
 * break.
 */
#pragma once

#include "base/buf.h"
#include "base/err.h"
#include "base/option.h"

#define JOB_SPEC_MAX_BYTES (64 * KIB)

/* X(field, type, name, argument, default, min, max, choices, doc). doc "": not in --help. `listed`: the job
 * is over the keys that JOB_KEYS brings; `chosen`: what --newest chose, percent-encoded but for '/'; `only`:
 * the same as it is, of records that earlier versions wrote. */
#define JOB_SPEC_OPTIONS(X)                                                                                  \
    X(include, LIST, "include", "GLOB", NULL, 0, 0, NULL,                                                    \
      "only keys that match (* ? [...], * also across '/'); may be repeated: one of them")                   \
    X(exclude, LIST, "exclude", "GLOB", NULL, 0, 0, NULL, "no keys that match; may be repeated")             \
    X(regex, STRING, "regex", "ERE", NULL, 0, 0, NULL,                                                       \
      "only keys in which this POSIX extended regular expression is found")                                  \
    X(min_size, SIZE, "min-size", "SIZE", "0", 0, 0, NULL, "only objects of at least this size")             \
    X(max_size, SIZE, "max-size", "SIZE", "0", 0, 0, NULL, "only objects of at most this size; 0: any")      \
    X(newer, STRING, "newer", "DATE", NULL, 0, 0, NULL,                                                      \
      "only objects changed at or after this time: 2026-01-31T08:00:00Z, or 2026-01-31, its beginning")      \
    X(older, STRING, "older", "DATE", NULL, 0, 0, NULL, "only objects changed before this time")             \
    X(rate, STRING, "rate", "SIZE/s", NULL, 0, 0, NULL, "at most so many bytes a second, as 500MiB/s")       \
    X(parallel, UINT, "parallel", "N", "0", 0, 256, NULL,                                                    \
      "objects worked on at the same time; 0: 16, of those that are copied 4 where more are above 256 MiB "  \
      "together, and for a prefetch of small ones (1 MiB) without limits as many as their origin gets "      \
      "requests (origin.connections)")                                                                       \
    X(pin, BOOL, "pin", NULL, NULL, 0, 0, NULL,                                                              \
      "prefetch: pin the prefix first, so that it is not evicted for the sake of other data")                \
    X(metadata_only, BOOL, "metadata-only", NULL, NULL, 0, 0, NULL, "prefetch: attributes, no data")         \
    X(remove, BOOL, "delete", NULL, NULL, 0, 0, NULL,                                                        \
      "sync: remove from the target what the source does not have")                                          \
    X(dry_run, BOOL, "dry-run", NULL, NULL, 0, 0, NULL, "only count what would be worked on")                \
    X(newest, UINT, "newest", "N", "0", 0, 100, NULL,                                                        \
      "only the N entries below the prefix that changed last: objects, or folders with all they hold")       \
    X(verify, ENUM, "verify", "HOW", "auto", 0, 0, "auto|size|read",                                         \
      "what was written is compared by the checksum that the target tells, or read back when it tells "      \
      "none (auto), by its size only (size), or always read back (read); prefetch: read: the disk gives "    \
      "back every byte, also of what was cached before")                                                     \
    X(storage_class, STRING, "storage-class", "CLASS", NULL, 0, 0, NULL,                                     \
      "export: class to write in, as STANDARD_IA, NEARLINE, Cool")                                           \
    X(set, LIST, "set", "origin.X=Y", NULL, 0, 0, NULL,                                                      \
      "copy, sync, export, import: a property of the URL's origin, as of `forebay origin check`; may be "    \
      "repeated")                                                                                            \
    X(as_of, STRING, "as-of", "DATE", NULL, 0, 0, NULL,                                                      \
      "import: what the origin had at this time, where it keeps versions (s3://, gs://)")                    \
    X(version, STRING, "version", "ID", NULL, 0, 0, NULL,                                                    \
      "import: this version of the one object that the URL names (s3://, gs://, az://)")                     \
    X(tag, STRING, "tag", "KEY=VALUE", NULL, 0, 0, NULL,                                                     \
      "import: only objects that have this tag; one more request for each that the other filters leave "     \
      "(s3://, forebay://)")                                                                                 \
    X(manifest, BOOL, "manifest", NULL, NULL, 0, 0, NULL,                                                    \
      "import: write a manifest with sizes and checksums below the target, as export does; always with "     \
      "--as-of, --version and --tag")                                                                        \
    X(listed, BOOL, "listed", NULL, NULL, 0, 0, NULL, "")                                                    \
    X(only, LIST, "only", "KEY", NULL, 0, 0, NULL, "")                                                       \
    X(chosen, LIST, "chosen", "KEY", NULL, 0, 0, NULL, "")

enum job_verify { JOB_VERIFY_AUTO, JOB_VERIFY_SIZE, JOB_VERIFY_READ };

#define JOB_SPEC_FIELD_LIST   struct option_list
#define JOB_SPEC_FIELD_STRING char *
#define JOB_SPEC_FIELD_SIZE   uint64_t
#define JOB_SPEC_FIELD_UINT   uint64_t
#define JOB_SPEC_FIELD_BOOL   bool
#define JOB_SPEC_FIELD_ENUM   int

struct job_spec {
#define X(field, type, ...) JOB_SPEC_FIELD_##type field;
    JOB_SPEC_OPTIONS(X)
#undef X
};

/* Rows of a table whose options struct has a `struct job_spec spec`. */
#define JOB_SPEC_ROW(owner, field, type_, name_, arg_, def_, min_, max_, choices_, doc_)                     \
    {.name = (name_),                                                                                        \
     .type = OPTION_##type_,                                                                                 \
     .offset = offsetof(struct owner, spec) + offsetof(struct job_spec, field),                              \
     .def = (def_),                                                                                          \
     .min = (min_),                                                                                          \
     .max = (max_),                                                                                          \
     .choices = (choices_),                                                                                  \
     .arg = (arg_),                                                                                          \
     .hidden = sizeof(doc_) == 1,                                                                            \
     .doc = (doc_)},

extern const struct option_table job_spec_table;

/* Appends the lines. ERR_BAD_OPTION: a value with a line break; -E2BIG. */
int job_spec_encode(const struct job_spec *s, struct buf *b, struct err *e);
/* Fills defaults, then what the lines say; ret must be zeroed and is to be freed with job_spec_fini also
 * after a failure. ERR_BAD_OPTION names the fault. */
int job_spec_decode(struct slice lines, struct job_spec *ret, struct err *e);
void job_spec_fini(struct job_spec *s);
/* Whether earlier versions, or tagged objects, are meant: --as-of, --version, --tag. */
bool job_spec_restores(const struct job_spec *s);
/* "KEY=VALUE" of --tag; false when there is none, or no key in it. */
bool job_spec_tag(const struct job_spec *s, struct slice *ret_name, struct slice *ret_value);

/* "500MiB/s", "500M": bytes a second, not 0. -EINVAL. */
int job_spec_parse_rate(const char *text, uint64_t *ret_bytes_per_s);

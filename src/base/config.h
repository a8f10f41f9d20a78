/*
 * The configuration of a node: one row per option. Flag --NAME, key NAME in the YAML file of --config,
 * environment FOREBAY_NAME; the flag wins over the environment, the environment over the file, the file over
 * the default.
 */
#pragma once

#include "base/option.h"

/* X(field, type, name, argument, default, min, max, choices, reloadable, doc) */
#define CONFIG_TABLE(X)                                                                                      \
    X(data, STRING, "data", "DIR", NULL, 0, 0, NULL, false,                                                  \
      "directory for the control store, credentials and, without --disk, the cache")                         \
    X(disk, LIST, "disk", "DIR[:SIZE]", NULL, 0, 0, NULL, false,                                             \
      "directory on a drive of its own, and the most bytes to use there; repeat for several, which share "   \
      "what there is where they are on one file system")                                                     \
    X(listen, STRING, "listen", "HOST:PORT", "127.0.0.1:7070", 0, 0, NULL, false, "address for S3 and HTTP") \
    X(tls_cert, STRING, "tls-cert", "FILE", NULL, 0, 0, NULL, true,                                          \
      "certificate chain in PEM: S3 and HTTP are served over TLS; read again on SIGHUP")                     \
    X(tls_key, STRING, "tls-key", "FILE", NULL, 0, 0, NULL, true, "private key of --tls-cert, in PEM")       \
    X(wire, STRING, "wire", "HOST:PORT", "127.0.0.1:7071", 0, 0, NULL, false,                                \
      "address for the wire protocol; the Unix socket is always DIR/run/forebay.sock")                       \
    X(memory, SIZE, "memory", "SIZE", "512MiB", 64 * MIB, 0, NULL, false,                                    \
      "most memory to use, page cache not counted")                                                          \
    X(reserve, SIZE, "reserve", "SIZE", "1GiB", 0, 0, NULL, false,                                           \
      "free bytes always left on each disk's file system")                                                   \
    X(dirty_max, UINT, "dirty-max", "PERCENT", "60", 1, 95, NULL, false,                                     \
      "share of the disks that writes of write=back buckets may take before they are in their origins; "     \
      "writers wait then")                                                                                   \
    X(threads, UINT, "threads", "N", "64", 4, 4096, NULL, false, "most requests served at the same time")    \
    X(max_connections, UINT, "max-connections", "N", "20000", 16, 1000000, NULL, false,                      \
      "most open connections; further ones are refused")                                                     \
    X(request_timeout, DURATION, "request-timeout", "TIME", "30s", 100, 3600000, NULL, true,                 \
      "most time a client may take to send a request head or to make progress on a body")                    \
    X(idle_timeout, DURATION, "idle-timeout", "TIME", "10m", 1000, 86400000, NULL, true,                     \
      "idle connections are closed after this time")                                                         \
    X(drain_timeout, DURATION, "drain-timeout", "TIME", "20s", 0, 3600000, NULL, true,                       \
      "SIGTERM: time given to running requests; those that wait for an origin which says nothing for three " \
      "seconds are answered sooner")                                                                         \
    X(flush_interval, DURATION, "flush-interval", "TIME", "30s", 100, 600000, NULL, false,                   \
      "how often cached data is made safe against power loss")                                               \
    X(scrub_rate, SIZE, "scrub-rate", "SIZE", "0", 0, 0, NULL, false,                                        \
      "most bytes a second that are read from the disks, when nobody else reads, to compare them with "      \
      "their checksums; each disk once a day; 0: none")                                                      \
    X(region, STRING, "region", "NAME", "us-east-1", 0, 0, NULL, false, "region that S3 clients sign for")   \
    X(domain, STRING, "domain", "NAME", NULL, 0, 0, NULL, false,                                             \
      "S3 requests for the host BUCKET.NAME are about that bucket")                                          \
    X(lifecycle_interval, DURATION, "lifecycle-interval", "TIME", "1h", 100, 86400000, NULL, false,          \
      "time between passes that carry out the lifecycle rules of buckets")                                   \
    X(limit_requests, UINT, "limit-requests", "N", "0", 0, 0, NULL, false,                                   \
      "most requests for data a second of all clients together; 0: no limit")                                \
    X(limit_bytes, SIZE, "limit-bytes", "SIZE", "0", 0, 0, NULL, false,                                      \
      "most bytes a second that all clients together read and write through the node; 0: no limit")          \
    X(client_limit_requests, UINT, "client-limit-requests", "N", "0", 0, 0, NULL, false,                     \
      "the same of each client: an address by S3, a session by mounts and libforebay")                       \
    X(client_limit_bytes, SIZE, "client-limit-bytes", "SIZE", "0", 0, 0, NULL, false,                        \
      "the same of each client, bytes a second")                                                             \
    X(limit_active, UINT, "limit-active", "N", "16", 1, 4096, NULL, false,                                   \
      "where limits or shares are set: most requests for data that run at once")                             \
    X(log_level, ENUM, "log-level", "LEVEL", "info", 0, 0, "error|warn|info|debug", true, "how much to log") \
    X(config, STRING, "config", "FILE", NULL, 0, 0, NULL, false, "YAML file with these options as keys")

#define CONFIG_FIELD_BOOL     bool
#define CONFIG_FIELD_UINT     uint64_t
#define CONFIG_FIELD_SIZE     uint64_t
#define CONFIG_FIELD_DURATION uint64_t
#define CONFIG_FIELD_STRING   char *
#define CONFIG_FIELD_LIST     struct option_list
#define CONFIG_FIELD_ENUM     int

struct config {
#define X(field, type, ...) CONFIG_FIELD_##type field;
    CONFIG_TABLE(X)
#undef X
};

extern const struct option_table config_table;

/* Defaults, then file, environment and flags in that order of strength; checks what one option alone cannot
 * show
 * (--data missing, a disk given twice, sizes of disks). argv as for option_args, and left as it is. On
 * failure *c is untouched. */
int config_load(struct config *c, int argc, char **argv, struct err *e);
void config_fini(struct config *c);

/* Hears of each option whose values differ. */
typedef void (*config_change_fn)(void *arg, const struct option *row, const char *from, const char *to);
/* Takes over from `fresh` the values of the options that may change without a restart; the others stay. fn is
 * called for both kinds (row->reloadable tells which), with texts that live during the call. */
void config_adopt(struct config *c, const struct config *fresh, config_change_fn fn, void *arg);

struct config_disk {
    char *path;          /* the caller's to free */
    uint64_t size_bytes; /* 0: as much as the file system has, less the reserve */
};
/* "DIR[:SIZE]". A colon belongs to DIR when what follows is neither a size nor looks like a mistyped one; a
 * '/' at the end makes it part of DIR in any case. */
int config_parse_disk(const char *text, struct config_disk *ret, struct err *e);
/* "HOST:PORT", "[::1]:PORT" (without brackets in *ret_host), ":PORT" (""); port 0 asks the kernel for one.
 * *ret_host is the caller's to free. */
int config_parse_hostport(const char *text, char **ret_host, uint16_t *ret_port, struct err *e);

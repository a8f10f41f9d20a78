/*
 * The command line: one file per command, one row per command here. A command gets the arguments behind its
 * name and returns the exit status: 0 done, 1 failed, 2 not understood. Its errors are one line on stderr
 * that begins with "forebay COMMAND: ".
 */
#pragma once

/* X(function, name, what --help says) */
#define CLI_COMMANDS(X)                                                                                      \
    X(serve, "serve", "run a node")                                                                          \
    X(bucket, "bucket", "make, show, change and forget buckets")                                             \
    X(user, "user", "make, show and remove users and their keys")                                            \
    X(origin, "origin", "try what an origin can")                                                            \
    X(ls, "ls", "list objects")                                                                              \
    X(stat, "stat", "show what is known of objects")                                                         \
    X(cat, "cat", "write objects to standard output")                                                        \
    X(get, "get", "fetch objects into files")                                                                \
    X(put, "put", "write files to objects")                                                                  \
    X(rm, "rm", "remove objects")                                                                            \
    X(mount, "mount", "show a bucket as a directory")                                                        \
    X(umount, "umount", "end a mount")                                                                       \
    X(prefetch, "prefetch", "fetch objects into the cache, as a job")                                        \
    X(evict, "evict", "drop cached data, as a job")                                                          \
    X(flush, "flush", "carry writes that are not in the origin yet there")                                   \
    X(stranded, "stranded", "say what becomes of written files that the origin did not take")                \
    X(validate, "validate", "compare what is cached with the origin, as a job")                              \
    X(copy, "copy", "copy objects to another bucket, as a job")                                              \
    X(sync, "sync", "make one bucket's prefix as another's, as a job")                                       \
    X(export, "export", "copy objects to an origin, as a job")                                               \
    X(import, "import", "copy objects from an origin, as a job")                                             \
    X(du, "du", "show what is cached, by prefix, and what it cost at the origin")                            \
    X(hot, "hot", "show what is read most")                                                                  \
    X(pin, "pin", "keep what is cached below a prefix")                                                      \
    X(unpin, "unpin", "end a pin")                                                                           \
    X(rules, "rules", "say what is pinned, never cached or believed how long, by prefix")                    \
    X(job, "job", "list, show, wait for and change jobs")                                                    \
    X(explain, "explain", "say where a file's bytes are, and how it would be opened")                        \
    X(status, "status", "show the state of the node")                                                        \
    X(store, "store", "verify the disks of a stopped node")                                                  \
    X(bench, "bench", "measure as training and serving do")                                                  \
    X(plan, "plan", "what a cluster of a given shape can be expected to do")

#define X(function, name, doc) int cmd_##function(int argc, char **argv);
CLI_COMMANDS(X)
#undef X

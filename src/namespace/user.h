/*
 * Users: access keys beside the node's own pair, each with a role and a pattern of buckets, and their records
 * in the control store.
 *
 * A user in memory is an immutable, counted snapshot, as a bucket is: a change makes a new one and marks the
 * old one as retired, so that whoever keeps one over several requests sees that it must look again.
 */
#pragma once

#include "base/buf.h"
#include "base/err.h"
#include "kv/kv.h"

#include <stdatomic.h>

#define USER_NAME_MAX       64
#define USER_PATTERN_MAX    512
#define USER_KEYS_MAX       8 /* of one user */
#define USERS_MAX           1000
#define USER_ACCESS_KEY_LEN 20
#define USER_SECRET_KEY_LEN 40

/* X(NAME, name): each may do what those after it may. */
#define USER_ROLES(X)                                                                                        \
    X(ADMIN, "admin")                                                                                        \
    X(WRITER, "writer")                                                                                      \
    X(READER, "reader")

enum user_role {
#define X(NAME, name) USER_##NAME,
    USER_ROLES(X)
#undef X
};

/* What a request needs. MANAGE: making and changing buckets and users, and the state of the whole node. */
enum user_right { USER_MAY_ANY, USER_MAY_READ, USER_MAY_WRITE, USER_MAY_MANAGE };

struct user_key {
    char access_key[USER_ACCESS_KEY_LEN + 1], secret_key[USER_SECRET_KEY_LEN + 1];
    uint64_t created_ns; /* real time */
};

#define USER_SHARE_MAX 10000

/* How much of the node a user may take (object/gate.h). */
struct user_limits {
    uint32_t share;                       /* weight among users when requests wait; 100 by default */
    uint64_t requests_per_s, bytes_per_s; /* 0: no limit */
};

struct user {
    uint32_t magic;
    _Atomic uint32_t refs;
    uint64_t created_ns; /* real time */
    uint64_t version;    /* of the kv record */
    char name[USER_NAME_MAX + 1];
    enum user_role role;
    char buckets[USER_PATTERN_MAX + 1]; /* patterns with commas between; '*' stands for any characters */
    struct user_limits limits;
    struct user_key keys[USER_KEYS_MAX];
    size_t n_keys;
    atomic_bool retired; /* the table has a newer one, or none */
};

struct user *user_ref(struct user *u);
void user_unref(struct user *u);
DEFINE_CLEANUP(struct user, user_unref)

const char *user_role_name(enum user_role role);
/* Whether a pattern ("train-*,images") fits a bucket's name. Pure. */
bool user_pattern_fits(struct slice patterns, struct slice bucket);
/* Whether the user may do it with this bucket; u NULL is the node's own pair, which may do everything. Pure.
 */
bool user_may(const struct user *u, enum user_right right, struct slice bucket);

struct user_table;

/* Reads all records. */
int user_table_open(struct kv *kv, struct user_table **ret, struct err *e);
void user_table_close(struct user_table *t);
DEFINE_CLEANUP(struct user_table, user_table_close)

/* The user that has this access key, and its secret (NULL: not wanted): a reference, or NULL. */
struct user *user_find_key(struct user_table *t, struct slice access_key,
                           char ret_secret_key[USER_SECRET_KEY_LEN + 1]);
/* A reference, or -ENOENT. */
int user_find(struct user_table *t, struct slice name, struct user **ret, struct err *e);
/* role and buckets empty: reader, "*". The first key is made. -EEXIST, ERR_BAD_OPTION. Durable on return, as
 * the other changes are; *ret is a reference. */
int user_create(struct user_table *t, struct slice name, struct slice role, struct slice buckets,
                struct user **ret, struct err *e);
/* Makes one more key, the last of (*ret)->keys. -ENOSPC: it has USER_KEYS_MAX. */
int user_add_key(struct user_table *t, struct slice name, struct user **ret, struct err *e);
/* -ENOENT; -EPERM for the last key: a user without keys is removed instead. */
int user_remove_key(struct user_table *t, struct slice name, struct slice access_key, struct err *e);
/* settings: lines "share=N", "limit.requests=N", "limit.bytes=SIZE"; what is not named stays. -ENOENT,
 * ERR_BAD_OPTION. */
int user_set_limits(struct user_table *t, struct slice name, struct slice settings, struct err *e);
int user_delete(struct user_table *t, struct slice name, struct err *e);
/* Up to max users with names after `after`, in byte order, each referenced; returns how many. */
size_t user_page(struct user_table *t, struct slice after, struct user **ret, size_t max);
/* "NAME ROLE BUCKETS CREATED KEY[,KEY...] SHARE REQUESTS BYTES\n", times in ns since 1970, limits a second:
 * how users travel. No secrets. */
int user_line(const struct user *u, struct buf *out);

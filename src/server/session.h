/*
 * Sessions of the wire protocol: what the connections of one client share. A session is named by 16 bytes
 * that the client chose, and lives until its last connection closes; with it go the handles that its
 * operations opened.
 */
#pragma once

#include "base/id.h"
#include "base/lock.h"
#include "net/sock.h"
#include "net/wire.h"

#define SESSION_BUCKETS 256

struct session {
    struct session *next; /* of its bucket */
    struct id128 id;
    enum wire_via via;
    char *access_key; /* who signed in; empty: who may do everything */
    int *fds;         /* of its connections, `refs` of them */
    unsigned refs;
    void *user; /* struct object_session */
    bool has_peer;
    struct sock_peer peer; /* of each of its connections */
};

struct session_table {
    struct lock lock; /* buckets, refs, n */
    struct session *buckets[SESSION_BUCKETS];
    size_t n;
    void *(*open)(void *arg, struct id128 id, enum wire_via via, struct slice access_key);
    void (*close)(void *user);
    void (*abandon)(void *user);                                /* NULL: nothing is to be done */
    void (*identify)(void *user, const struct sock_peer *peer); /* NULL: nobody wants to know */
    void *arg;
};

void session_table_init(struct session_table *t,
                        void *(*open)(void *arg, struct id128 id, enum wire_via via, struct slice access_key),
                        void (*close)(void *user), void (*abandon)(void *user), void *arg);
/* All sessions must have been released. */
void session_table_fini(struct session_table *t);
/* Finds or makes the session and adds a connection, whose descriptor is `fd`, to it. ERR_PROTOCOL when it
 * exists with another `via`, of another access key or of another peer; ERR_UNAUTHENTICATED when open() gives
 * nothing. peer: whose connection it is, taken over by a session that is made; NULL: it is not told. */
int session_join(struct session_table *t, struct id128 id, enum wire_via via, struct slice access_key,
                 struct sock_peer *peer, int fd, struct session **ret);
/* Ends the connections of other sessions of the same access key whose ids begin with the same
 * WIRE_FAMILY_BYTES: what was sent on them is still run, but they are abandoned at once. How many of those
 * sessions there are yet. */
size_t session_end_siblings(struct session_table *t, const struct session *s);
/* A connection leaves, and is closed after it; the last one ends the session. */
void session_leave(struct session_table *t, struct session *s, int fd);

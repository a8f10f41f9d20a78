/*
 * The operations that everything above calls. Each takes one struct that the wire can carry and answers with
 * one; `object_call` is the only way in, and the only place that asks where an operation runs.
 *
 * A session owns the handles that its operations opened: one per wire client, one per S3 request. Freeing it
 * closes them (uncommitted writes are dropped).
 *
 * Threads: any number may call at once; one handle is used by any number of threads for fetch, by one for
 * writes. Calls block while the origin is asked.
 */
#pragma once

#include "base/arena.h"
#include "base/budget.h"
#include "base/err.h"
#include "base/quit.h"
#include "kv/kv.h"
#include "namespace/bucket.h"
#include "namespace/user.h"
#include "net/wire.h"
#include "object/gate.h"
#include "origin/origin.h"
#include "store/store.h"

struct object_service;
struct object_session;

enum object_route { OBJECT_ROUTE_LOCAL, OBJECT_ROUTE_LOOP };

struct object_config {
    struct kv *control;      /* control store: buckets */
    const struct seal *seal; /* for the secrets in it; NULL: they stand there as they are */
    struct store *store;
    struct budget *budget;      /* --memory */
    struct gate_config gate;    /* limits of the node and of clients */
    uint64_t scrub_bytes_per_s; /* 0: no scrub */
    unsigned dirty_max_percent; /* of the disks, for writes that are not in their origins yet; 0: 60 */
    enum object_route route;    /* LOOP: every operation goes through encode, socket and decode (tests) */
};

int object_service_open(const struct object_config *config, struct object_service **ret, struct err *e);
/* Stops fills, waits for running operations. */
void object_service_close(struct object_service *s);
DEFINE_CLEANUP(struct object_service, object_service_close)

/* Who runs the operations JOB_*: a layer below this one. NULL: they answer NotImplemented. Not while
 * operations run. */
typedef int (*object_extension_fn)(void *arg, uint32_t op, const void *req, struct arena *a, void *rep,
                                   struct err *e);
void object_service_extend(struct object_service *s, object_extension_fn fn, void *arg);

/* Told of each bucket that was removed, by its id, when nobody can open anything of it any more; no lock is
 * held. For a layer below this one; NULL: nobody is. Not while operations run. */
typedef void (*object_removed_fn)(void *arg, uint64_t bucket_id);
void object_on_bucket_removed(struct object_service *s, object_removed_fn fn, void *arg);

/* A bucket for the time of some work on an origin that is none (namespace/bucket.h, guests): `settings` as of
 * BUCKET_CREATE with its origin; nothing of it is cached. With `probe` the origin is asked whether it is
 * there. Until object_guest_close, which waits for nothing: no operation may run on it any more. */
int object_guest_open(struct object_service *s, const char *label, struct slice settings, bool probe,
                      char ret_name[BUCKET_GUEST_NAME_SIZE], struct err *e);
void object_guest_close(struct object_service *s, const char *name);
/* Puts an object into a guest: its origin's requests read `body` themselves, as origin_put says, with the
 * retries of any upload. It is there whole or not at all; after an error whose outcome is unknown it may be.
 * An object that is `slow` leaves places to others. */
int object_guest_put(struct object_session *ses, struct slice guest, const struct origin_put *p,
                     const struct origin_body *body, struct err *e);
/* What a guest's origin can, of enum origin_capability; 0 when it cannot be opened. */
unsigned object_guest_capabilities(struct object_service *s, struct slice guest);
/* Of an object of a guest, at its origin: origin_has_tag. */
int object_guest_has_tag(struct object_service *s, struct slice guest, struct slice key, struct slice name,
                         struct slice value, atomic_bool *cancel, bool *ret, struct err *e);

struct object_session *object_session_new(struct object_service *s, enum wire_via via);
/* From now on the session may do only what the user of this access key may, and nothing once the key is
 * revoked. At most once, before the first call. ERR_UNAUTHENTICATED: no user has it. */
int object_session_sign_in(struct object_session *s, struct slice access_key, struct err *e);
void object_session_free(struct object_session *s);
/* Its client is gone, and another one takes its place: locks go at once and are not given any more, while
 * operations may still run. */
void object_session_abandon(struct object_session *s);
/* Before its first call: what it does ends soon with -ECANCELED once the flag is set, which outlives it. What
 * tidies up after that may ask origins for QUIT_TIDY_MS more. */
void object_session_set_quit(struct object_session *s, const atomic_bool *flag);
/* Before its first call: it is one of the sessions of a mount, whose ids begin with the same bytes: what is
 * asked for under one of its numbers it may ask for again in another one (object/intent.h). */
void object_session_set_family(struct object_session *s, const uint8_t family[WIRE_FAMILY_BYTES]);
/* Before its first call: replies go to another process. Descriptors for reading are then opened for it, and
 * closed here by object_sent, which is called after a reply with a descriptor was sent. */
void object_session_set_remote(struct object_session *s);
/* Before its first call: with whose uid and groups the session works on trees of scratch buckets (TREE_*),
 * and that the node checks permissions. Without it, who signed in as a user does not work on them at all. The
 * groups are copied. */
void object_session_set_peer(struct object_session *s, uint32_t uid, uint32_t gid, const uint32_t *groups,
                             size_t n_groups);
void object_sent(struct object_session *s, uint32_t op, const void *rep);
/* Instead, after one that was a success and that nobody got: who had asked waits no more. What it opened is
 * closed, and what it changed is told to the session's own watch, too. */
void object_unsent(struct object_session *s, uint32_t op, const void *req, const void *rep, struct arena *a);
/* The most bytes of an object that the reply to this request brings, for who has to find memory for it first;
 * 0: none to speak of, or the caller has a descriptor to read them from. */
uint64_t object_reply_bytes(struct object_session *s, uint32_t op, const void *req);
DEFINE_CLEANUP(struct object_session, object_session_free)

/*
 * Runs operation `op`. req and rep are its structs of net/wire.h; slices in rep live in `a`. rep->fd is -1 or
 * a descriptor borrowed from the handle: valid until the handle is closed.
 */
int object_call(struct object_session *ses, uint32_t op, const void *req, struct arena *a, void *rep,
                struct err *e);

/* Typed forms: object_stat(ses, &req, a, &rep, e) and so on, one per row of the table. */
#define X(NAME, name, number)                                                                                \
    static inline int object_##name(struct object_session *ses, const struct wire_##name##_req *req,         \
                                    struct arena *a, struct wire_##name##_rep *ret_rep, struct err *e)       \
    {                                                                                                        \
        return object_call(ses, WIRE_OP_##NAME, req, a, ret_rep, e);                                         \
    }
WIRE_OPS(X)
#undef X

/*
 * Limits and shares (object/gate.h), once for each request of a front. S3 enters and leaves by itself:
 * `bucket` may be unknown or empty, `user` NULL, `client` the peer's address without its port. -EBUSY: too
 * many wait. The wire front uses the third form in the place of object_call: requests for data wait there,
 * others pass.
 */
bool object_gate_is_closed(struct object_service *s); /* else nobody waits, and who asks need not be known */
int object_gate_enter(struct object_service *s, struct slice bucket, const struct user *user,
                      struct slice client, struct gate_pass *ret, struct err *e);
void object_gate_leave(struct object_service *s, struct gate_pass *p, uint64_t bytes);
int object_call_shaped(struct object_session *ses, uint32_t op, const void *req, struct arena *a, void *rep,
                       struct err *e);
/* The node stops: nobody waits any more. */
void object_gate_open(struct object_service *s);
/* The node stops: nothing is asked of an origin twice, and what has not heard of it for QUIT_SILENCE_MS fails
 * with -ETIMEDOUT, or -ECANCELED where it waited for its turn. */
void object_stop_soon(struct object_service *s);
/* Whatever is under way at origins ends with -ECANCELED. */
void object_stop_now(struct object_service *s);
/* Whether one of the two was called: what fails from then on may have failed because of that. */
bool object_is_stopping(const struct object_service *s);

/* The user that has this access key, and its secret (NULL: not wanted): a reference, or NULL. */
struct user *object_find_user(struct object_service *s, struct slice access_key,
                              char ret_secret_key[USER_SECRET_KEY_LEN + 1]);

/* Whether requests without any signature may read the bucket; false when there is none of that name. */
bool object_anonymous_read(struct object_service *s, struct slice bucket);
/* A request for the bucket, which may not be there, has this value of TRAIL_HEADER (origin/trail.h), which is
 * kept for what the bucket's origin is asked. False: its own requests have led here. No operation runs,
 * nothing is waited for. */
bool object_follow_trail(struct object_service *s, struct slice bucket, struct slice trail);
/* The lifecycle rules of a bucket (its property s3.lifecycle), appended; nothing when it has none or is not
 * there. Every S3 request needs them: no operation runs, nothing is waited for. Gives whether its objects
 * have times of change beside those of writing (WIRE_SINCE). */
bool object_bucket_lifecycle(struct object_service *s, struct slice bucket, struct buf *ret);
/* Another ETag that the version of this one is known by, in the arena: with write=back it has had one here
 * before the origin gave it its own. Empty: none that is remembered. No operation runs, nothing is waited
 * for. */
struct slice object_other_etag(struct object_service *s, struct slice bucket, struct slice key,
                               struct slice etag, struct arena *a);

/* What a thread of a front does that may wait for long: it is one of the crowd of those that wait for
 * origins. Between the two quit_is_now() says when to give it up. */
struct object_wait {
    struct quit quit;
    struct quit_turn turn;
    const struct quit *before;
};
void object_wait_begin(struct object_session *ses, struct object_wait *w);
/* Whether it was given up for others. */
bool object_wait_end(struct object_wait *w);

/* The thread that computes MD5s beside (base/hasher.h), as long as the service is open; NULL: there is none.
 */
struct hasher *object_hasher(struct object_service *s);

/* Service-wide gauges into the metrics table, called by the server before it prints them. */
void object_service_refresh_metrics(struct object_service *s);

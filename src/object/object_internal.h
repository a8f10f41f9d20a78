/* What the files of the object layer share: the service, sessions and their handles, and the operations. */
#pragma once

#include "base/hasher.h"
#include "base/lock.h"
#include "base/metrics.h"
#include "base/quit.h"
#include "namespace/mirror.h"
#include "object/fill.h"
#include "object/gate.h"
#include "object/intent.h"
#include "object/lookups.h"
#include "object/moved.h"
#include "object/object.h"
#include "object/usage.h"
#include "object/values.h"

#define OBJECT_SERVICE_MAGIC 0x6f626a73u
#define OBJECT_SESSION_MAGIC 0x6f736573u
#define OBJECT_STRIPES       256
#define UPLOADS_LEFT_MAX     16
#define OBJECT_HANDLES_MAX   65536  /* per session */
#define OBJECT_OF_USERS_MAX  131072 /* of all sessions of users together */
/* Most of one TREE_READ, TREE_WRITE or TREE_APPEND. */
#define OBJECT_TREE_PIECE_BYTES MIB
/* Files up to this size are filled before a mount's open returns: then it is passthrough. */
#define OBJECT_WHOLE_AT_OPEN (128 * KIB)

enum handle_kind {
    HANDLE_FREE,
    HANDLE_READ,
    HANDLE_WRITE,
    HANDLE_WATCH,
    HANDLE_SREAD,   /* struct sreader: an object of a scratch bucket */
    HANDLE_SWRITE,  /* struct swriter */
    HANDLE_PART,    /* struct part_write: a part of an upload */
    HANDLE_THROUGH, /* struct through: a put that is not kept */
    HANDLE_VALUE,   /* struct value_handle: a value in memory, being read or written */
    HANDLE_TREE,    /* struct stree: a file of one, open for a mount */
};

struct handle {
    enum handle_kind kind;
    uint32_t
        generation; /* upper half of the id, so that an id of a closed handle is not taken for a new one */
    uint32_t next_free; /* of a free place: index + 1 of the next free one */
    uint64_t bucket_id; /* of what it was opened on, where the front said so (shaped.c); 0: not known */
    void *object;       /* what the kind says; of a reader or writer one reference */
};

struct object_session {
    uint32_t magic;
    struct object_service *service;
    enum wire_via via;
    bool is_remote;    /* replies go to another process */
    bool is_abandoned; /* gets no locks any more; covered by those of slocks, as is */
    uint64_t n_locks;  /* of files in scratch buckets */
    uint64_t number;   /* of the service's sessions */
    struct quit quit;  /* the scope of what it does; nothing around it */
    uint64_t family;   /* the bytes with which the ids of a mount's sessions begin; 0: of none */
    bool has_peer;     /* the node checks for it, in trees of scratch buckets, by these: */
    uint32_t uid, gid, *groups;
    size_t n_groups;
    uint64_t tree_bucket;    /* whose tree it works on, 0: none yet; covered by `lock` */
    struct id128 tree_mount; /* whose changes it makes, 0: none yet; likewise */
    struct watch *company;   /* of the other mounts of that; NULL: none is needed */
    char *access_key;        /* of a user; NULL: may do everything */
    struct lock lock;        /* covers the handles and `user` */
    struct user *user;       /* as last seen */
    struct handle *handles;
    uint32_t n_handles, free_head; /* free_head: index + 1, 0 when none is free */
    /* service->lock: */
    char *mount_point, *mount_bucket, *mount_reason; /* of REPORT; NULL when it is no mount */
    bool mount_passthrough;
    struct object_session *next;
    struct route_session *route; /* loop mode: descriptors that came over the socket, by handle */
};

/* Keys whose opening asks the origin right now, or whose writing is published: one at a time per key. */
struct opening {
    struct opening *next;
    const struct bucket *bucket;
    struct slice key;
    bool making; /* its entry in the store is being made */
};

/* A key that this node has the origin change right now. */
struct object_change {
    struct object_change *next;
    const struct bucket *bucket;
    struct slice key;
};

/* What an event of the origin told of a key, which made this of its generation, and nothing else did. */
struct object_told {
    uint64_t place, key_hash, before, made;
    size_t etag_n;
    char etag[ORIGIN_ETAG_MAX];
};

struct object_stripe {
    struct lock lock;
    struct cond ended;
    struct opening *openings;
    struct object_change *changes;
    struct object_told told; /* the last one */
};

struct upstream_slot {
    struct upstream_slot *next;
    struct upstream *upstream; /* of the bucket's current properties */
};

/* On the stack of who tries it. */
struct probing {
    struct probing *next;
    struct slice bucket;
    const char *name; /* its trail's own */
};

struct object_service {
    uint32_t magic;
    struct object_config config;
    struct bucket_table *buckets;
    struct user_table *users;
    struct mirror *mirror;
    struct fill_engine *fills;
    struct snode *scratch;         /* scratch buckets */
    struct back *back;             /* what is not in the origin yet */
    struct intents *intents;       /* changes of names that mounts may ask for again */
    struct unfinished *unfinished; /* uploads that may be left at origins */
    struct moved moved;            /* by renames of directories */
    struct lookups *lookups;       /* by mounts, of files that nobody listed */
    struct object_stripe stripes[OBJECT_STRIPES];
    atomic_bool unlimited; /* the node stops: nobody waits for limits of origins any more */
    /* The node stops: what origins do not answer, and then all that is under way there, is given up. */
    struct quit_crowd crowd; /* threads of the front that wait for origins */
    atomic_bool stopping_soon, stopping;
    struct lock lock; /* covers what follows */
    struct upstream_slot *upstreams;
    struct probing *probing; /* origins that are tried before buckets have them */
    struct service_table *services;
    uint64_t doubted_before_ns; /* real time; what the origin confirmed earlier may be wrong; 0: nothing */
    _Atomic uint64_t forgetful; /* of store_n_forgetful, of which the control store knows */
    struct object_session *sessions;
    uint64_t n_sessions;                     /* made so far */
    _Atomic uint32_t of_users, of_users_max; /* handles of sessions of users */
    struct route_loop *loop;
    object_extension_fn extension; /* JOB_* */
    void *extension_arg;
    object_removed_fn on_removed;
    void *on_removed_arg;
    _Atomic uint64_t readers, writers, streams; /* streams: writers with a thread */
    struct lock watch_lock;                     /* covers what follows */
    struct watch *watches;
    _Atomic uint64_t n_watches, n_name_watches; /* of keys' bytes and trees; of names */
    _Atomic uint64_t n_stranded;                /* files that origins did not take */
    struct gate *gate;                          /* limits and shares */
    struct values *values;                      /* of buckets with values=memory */
    struct budget *value_budget;                /* memory of open handles of those */
    struct usage *usage;
    struct steward *steward;
    struct hasher *hasher;      /* NULL: MD5s are computed by who has the bytes */
    struct budget *part_budget; /* memory of parts of uploads on their way */
    _Atomic uint64_t parts;     /* how many those are */
    struct lock upload_lock;    /* covers what follows */
    struct cond upload_ended;
    struct upload_slot *upload_slots;
    struct upload_here *uploads_here; /* those that somebody has open */
    uint64_t upload_turn_ns;          /* the steward's: not before */
    struct upload_left {
        uint64_t bucket_id;
        struct id128 id;
    } uploads_left[UPLOADS_LEFT_MAX]; /* the steward's: where its next turn goes on in buckets that failed */
    size_t n_uploads_left;
    struct lock expire_lock; /* covers expire_turns */
    struct expire_turn *expire_turns;
    struct lock walk_lock;  /* of who counts for quota and keep: two would each drop what is too much */
    struct lock quota_lock; /* covers quotas; taken before the steward's own */
    struct quota *quotas;
    struct scrub *scrub;                       /* NULL: none */
    _Atomic uint64_t data_running, data_begun; /* operations on data, for the scrub */
    struct lock keep_lock;                     /* covers kept */
    struct keep_bucket *kept;
    uint64_t keep_walks; /* that have ended */
};

/* ---- object.c ---- */
int object_upstream(struct object_service *s, struct slice bucket, struct upstream **ret, struct err *e);
void object_forget_upstream(struct object_service *s, uint64_t bucket_id);
/* Series of buckets that were removed end (base/metrics.h). */
void object_keep_metrics(struct object_service *s);
/* Key of an object in the store: the bucket's place (8 bytes, big endian), key. */
void object_store_key(const struct bucket *b, struct slice key, struct buf *ret);
/* The same in the arena. */
struct slice object_store_key_in(const struct bucket *b, struct slice key, struct arena *a);
/* Calls fn for each object of the bucket that the store has something of; what comes and goes meanwhile may
 * be left out. -ECANCELED: it ended early, as the bucket was removed or its settings changed: what was seen
 * is not all. */
typedef void (*object_cached_fn)(void *arg, const struct store_listed *x);
int object_each_cached(struct object_service *s, const struct bucket *b, object_cached_fn fn, void *arg);
/* Attributes as the store keeps them, between object_making_begin and object_making_end. The origin is asked
 * about them after a restart where the version has the ETag of a write of ours, and may have another one
 * there: only this run knows that the two are the same; and where the key is being changed: only who changes
 * it knows whether they are of before or after. */
int object_encode_attr(struct object_service *s, const struct bucket *b, struct slice key,
                       const struct attr *attr, struct buf *ret);
/* Attributes of a cached entry, in the arena. After power loss an entry of before counts as never confirmed:
 * a version that was replaced or removed last may be there again. */
int object_entry_attr(struct object_service *s, struct extent *x, struct arena *a, struct attr *ret);
void object_opening_enter(struct object_service *s, struct opening *o);
/* The same for who may give up waiting: -ECANCELED. */
int object_opening_try(struct object_service *s, struct opening *o, struct err *e);
void object_opening_leave(struct object_service *s, struct opening *o);
/* Before an entry is made in the store while `o` is held: false when the key's generation is no longer `seen`
 * or the bucket is another one now, so that no entry may be made. Else object_forget_key waits for the end.
 */
bool object_making_begin(struct object_service *s, struct opening *o, uint64_t seen);
/* The same for a version that was written here, with the ETag that the origin gave it: an event that told of
 * just that one before its writer was answered has changed nothing. */
bool object_making_begin_own(struct object_service *s, struct opening *o, uint64_t seen, struct slice etag);
void object_making_end(struct object_service *s, struct opening *o);
/* Lets go of what a disk has of the key, which would be believed after kill -9: what is remembered of it
 * besides goes with the process. */
void object_forget_entry(struct object_service *s, const struct bucket *b, struct slice key);
/* Before the origin is asked to change or remove the key: a kill that comes before the answer leaves nothing
 * on a disk that is believed, neither what was there nor what somebody reads meanwhile. Not while holding the
 * key's opening; bucket and key stay where they are until the end. */
void object_change_begin(struct object_service *s, struct object_change *c, const struct bucket *b,
                         struct slice key);
/* The same for a change that leaves what is there (meta_ops.c): the entry stays. */
void object_change_begin_kept(struct object_service *s, struct object_change *c, const struct bucket *b,
                              struct slice key);
/* The origin was asked, whatever it said: the key is forgotten altogether (object_forget_key). */
void object_change_end(struct object_service *s, struct object_change *c);
/* The same for who knows what the key is now, between object_making_begin and object_making_end: nothing is
 * forgotten. */
void object_change_end_known(struct object_service *s, struct object_change *c);
/* Forgets all that is cached of the key, because it was or will be changed: nothing older is found after it.
 * Not while holding the key's opening. Gives the generation that this made (mirror_changed). */
uint64_t object_forget_key(struct object_service *s, const struct bucket *b, struct slice key);
/* The same in two steps for an event of a version with this ETag (empty: of none). The first waits until
 * nobody is making an entry of the key and gives its generation; whoever has looked at what is cached then
 * forgets it, unless it has changed since: false, and it is to be looked at again. */
uint64_t object_settled(struct object_service *s, const struct bucket *b, struct slice key);
bool object_forget_told(struct object_service *s, const struct bucket *b, struct slice key, struct slice etag,
                        uint64_t seen);
/* After something was removed from the store that must not be believed again: has the next start doubt what
 * the disks hold when one of them cannot promise that it is gone. Costs nothing otherwise. */
void object_note_forgetful(struct object_service *s);
/* Keeps the bytes of the entry `x` and asks the origin about its attributes, `known`, before they are shown
 * again: they may have changed alone. True: so it is, or the entry went, too. */
void object_doubt_key(struct object_service *s, const struct bucket *b, struct slice key, struct extent *x,
                      const struct attr *known);
/* The same before they change: nobody is told yet. */
void object_doubt_entry(struct object_service *s, struct extent *x, const struct attr *known);
/* Waits for the entries that are being made: those that begin later know what the buckets' table says now. */
void object_await_makings(struct object_service *s);
/* The same for a bucket that was changed or removed in the table. How many entries, or an error. */
int64_t object_forget_bucket(struct object_service *s, const struct bucket *b);
/* Whether the origin, asked now, has the version that is known. Without ETag and time nobody can say so. */
bool object_is_same_version(const struct origin_attr *now, const struct attr *known);
/* What was heard of the key after `known` was confirmed, and still counts, says that it is another version.
 */
bool object_heard_otherwise(struct object_service *s, const struct bucket *b, struct slice key,
                            const struct attr *known, struct arena *a);
const char *object_via_name(uint32_t via);
int object_check_key(struct slice key, struct err *e);
/* -E2BIG: more than an object may have. */
int object_check_meta(struct slice meta, struct err *e);

/* ---- access.c ---- */
/* Whether the session's user may run the operation: 0, -EACCES, ERR_UNAUTHENTICATED. */
int access_check(struct object_session *ses, uint32_t op, const void *req, struct err *e);
/* The session's user as it is now, a reference; NULL: it may do everything. ERR_UNAUTHENTICATED: revoked. */
int access_user(struct object_session *ses, struct user **ret, struct err *e);

/* ---- session.c ---- */
/* Takes over the reference. -EMFILE when the session, or all of users, have too many. */
int session_put(struct object_session *ses, enum handle_kind kind, void *object, uint64_t *ret_handle);
/* -EMFILE when there are too many now: before anything is made or emptied for a handle. */
int session_check_room(struct object_session *ses, struct err *e);
/* What is said of that; gives r. */
int session_no_room(int r, struct err *e);
/* A new reference to the object, or NULL with -EBADF in e. */
void *session_get(struct object_session *ses, enum handle_kind kind, uint64_t handle, struct err *e);
/* HANDLE_FREE: no such handle. */
enum handle_kind session_kind(struct object_session *ses, uint64_t handle);
/* The session's own reference; the handle is gone. NULL when there is none. */
void *session_take(struct object_session *ses, enum handle_kind kind, uint64_t handle);
/* The same of HANDLE_TREE, to be given back by stree_unuse: until then it is not closed. */
struct stree *session_use_tree(struct object_session *ses, uint64_t handle, struct err *e);

/* Notes the bucket of a handle, and gives it; 0: not known. */
void session_note_bucket(struct object_session *ses, uint64_t handle, uint64_t bucket_id);
uint64_t session_bucket(struct object_session *ses, uint64_t handle);

/* ---- rule_ops.c ---- */
/* Drops what is cached below the prefix and must not be by the properties of `b`, the bucket as the table has
 * it now; what a longer prefix pins stays. */
int object_drop_never(struct object_service *s, const struct bucket *b, struct slice prefix, struct err *e);

/* ---- shaped.c ---- */
/* Closes the gate when a bucket or a user has limits or a share of its own. */
void shaped_look(struct object_service *s);
/* What a client says that it has read from the descriptor of a handle, as far as its word counts: of users
 * nothing, who get no descriptors, of others at most CLAIM_MAX bytes. */
struct object_claim {
    uint64_t cached, origin;
};
struct object_claim object_claim(const struct object_session *ses, const struct wire_close_req *req);

/* ---- quota.c ---- */
struct quota;
/* Whether so many bytes more of the bucket may be cached; counts them when they may. Between
 * object_making_begin and object_making_end, as what is cached by it: a walk waits for those. */
bool quota_admit(struct object_service *s, const struct bucket *b, struct slice key, uint64_t size_bytes);
/* The bucket has another quota, or none: what is cached of it is counted anew. */
void quota_changed(struct object_service *s, uint64_t bucket_id);
/* Walks and trims the buckets for which that is due. The steward's. */
void quota_turn(struct object_service *s);
void quota_free(struct object_service *s);

/* ---- keep.c ---- */
struct keep_bucket;
/* The store's store_keep_fn and store_removed_fn: arg is the service, keys are those of object_store_key. */
bool keep_from(void *arg, struct slice key, struct slice newcomer, uint64_t bytes, bool takes);
void keep_removed(void *arg, struct slice key, uint64_t bytes);
/* Whether the disks hold what the bucket, with these settings, and all others promise to keep. */
int keep_check(struct object_service *s, struct slice bucket, struct slice settings, struct err *e);
/* Counts what is cached of the buckets for which that is due. The steward's. */
void keep_turn(struct object_service *s);
/* For who found no room, which a count that lags may be the reason of: waits a moment until one has ended.
 * False: none is due, or it takes longer. */
bool keep_wait_counted(struct object_service *s);
void keep_free(struct object_service *s);

/* ---- scrub.c ---- */
struct scrub;
struct json_t;
/* NULL where there is no rate. It reads nothing before scrub_begin. */
struct scrub *scrub_start(struct object_service *s, uint64_t rate_bytes_per_s);
void scrub_begin(struct scrub *w);
void scrub_stop(struct scrub *w);
/* An operation begins: whether the scrub waits for it, until it has ended. */
bool scrub_enter(struct object_service *s, uint32_t op);
void scrub_leave(struct object_service *s);
struct json_t *scrub_json(struct scrub *w);

/* Ends connections to origins that nobody uses any more. The steward's. */
void object_rest_origins(struct object_service *s);

/* ---- steward.c ---- */
struct steward;
struct steward *steward_start(struct object_service *s);
/* Wakes it now. */
void steward_hurry(struct steward *w);
/* Writes down what is to be kept. NULL accepted. */
void steward_stop(struct steward *w);

/* ---- reader.c, writer.c ---- */
struct reader;
struct writer;
void reader_ref(struct reader *r);
void reader_unref(struct reader *r);
/* The reply to OPEN is sent: the process that got its descriptor has its own now. */
void reader_passed(struct object_session *ses, const struct wire_open_rep *rep);
/* As object_reply_bytes, of a FETCH. */
uint64_t reader_reply_bytes(struct reader *r, const struct wire_fetch_req *q);
void writer_ref(struct writer *w);
void writer_unref(struct writer *w); /* the last one drops what was not committed */
/* Whether the commit may be asked for once more after one that was given up: the body is whole and here, and
 * it makes no difference whether the origin has it already. */
bool writer_may_repeat(struct object_session *ses, uint64_t handle);
/* What the origin has by a name of which nothing is known, with the first bytes, which are cached by then: as
 * many as an open of a small file would wait for. In the arena. -ENOENT; any other error says no more than
 * that it is to be asked for otherwise. */
int object_look_up(struct object_session *ses, struct upstream *u, struct slice key, struct arena *a,
                   struct attr *ret, struct err *e);
/* if_match and if_none_match of an open: ERR_PRECONDITION, ERR_NOT_MODIFIED. also: another ETag that the
 * version is known by; empty: none. */
int object_check_conditions(const struct wire_open_req *req, struct slice etag, struct slice also,
                            struct err *e);

/* ---- uploads in parts: upload_ops.c, upload_end.c, upload_table.c ---- */
struct part_write;
struct upload_record;
void part_write_ref(struct part_write *p);
void part_write_unref(struct part_write *p);
/* Record of an upload of that key; strings in the arena. -ENOENT. */
int upload_open_record(struct object_service *s, const struct bucket *b, struct slice key, struct slice id,
                       struct arena *a, struct upload_record *ret, struct err *e);
void upload_slots_free(struct object_service *s);
/* Aborts what was abandoned, here and at the origins. The steward's. */
void upload_turn(struct object_service *s);
/* Of a bucket that was removed. */
void upload_forget_bucket(struct object_service *s, struct bucket *b);

/* ---- object.c: what an operation is on ---- */
/* Found when it is first asked for, and once: each of those that may run the operation asks. */
struct subject {
    struct object_session *session;
    bool has_bucket, has_kind; /* what follows is known */
    bool is_memory, is_scratch;
    enum handle_kind kind;
};
/* Sets is_memory and is_scratch; neither where there is no such bucket. */
void subject_find_bucket(struct subject *s, struct slice name);
enum handle_kind subject_kind(struct subject *s, uint64_t handle);

/* ---- through.c: puts of what is too large for the disks ---- */
struct through;
/* How many bytes of one object are kept at most: more would cost everything else that is cached. */
uint64_t object_room(struct object_service *s);
bool through_is_wanted(struct object_service *s, struct upstream *u, const struct wire_put_open_req *q);
int through_open(struct object_session *ses, struct upstream *u, const struct wire_put_open_req *q,
                 struct wire_put_open_rep *rep, struct err *e);
/* Whether the operation is on a handle of one; runs it. */
bool through_is_its(struct subject *s, uint32_t op, const void *req);
int through_call(struct object_session *ses, uint32_t op, const void *req, struct arena *a, void *rep,
                 struct err *e);
void through_ref(struct through *t);
void through_unref(struct through *t); /* the last one drops what was not committed */

/* ---- value_ops.c: buckets with values=memory ---- */
struct value_handle;
/* Whether the operation is on such a bucket, or a handle of one; runs it. */
bool value_is_its(struct subject *s, uint32_t op, const void *req);
int value_call(struct object_session *ses, uint32_t op, const void *req, struct arena *a, void *rep,
               struct err *e);
void value_handle_ref(struct value_handle *h);
void value_handle_unref(struct value_handle *h); /* the last one drops what was not committed */

/* ---- scratch_expire.c ---- */
/* Removes objects of scratch buckets that have ended. The steward's. */
struct expire_turn;
void sobject_expire_turn(struct object_service *s);
/* Whether a bucket with this ttl (0: it had one) is to be walked now (monotonic). own_ends: the walk has seen
 * objects with an end of their own, or not all there are. */
bool sobject_expire_is_due(struct object_service *s, uint64_t bucket_id, uint64_t ttl_ms, uint64_t now_ns);
void sobject_expire_walked(struct object_service *s, uint64_t bucket_id, uint64_t began_ns, uint64_t ended_ns,
                           bool own_ends);
void sobject_expire_free(struct object_service *s);

/* ---- scratch buckets: scratch_open.c, scratch_close.c, scratch_reader.c, scratch_writer.c ---- */
struct stree;
struct sreader;
struct swriter;
struct snode;
void stree_free(struct stree *t);
/* Frees it a while later: the session is lost, and whoever takes the mount over shall find the inode still
 * there, also one without a name. */
void stree_linger(struct stree *t);
/* While it is used nobody closes it. */
void stree_use(struct stree *t);
void stree_unuse(struct stree *t);
void sreader_ref(struct sreader *r);
void sreader_unref(struct sreader *r);
uint64_t sreader_reply_bytes(const struct sreader *r, const struct wire_fetch_req *q); /* as of a reader */
void swriter_ref(struct swriter *w);
void swriter_unref(struct swriter *w); /* the last one drops what was not committed */

/* ---- watch.c ---- */
struct watch;
void watch_free(struct watch *w); /* NULL accepted */
/* One that is told of nothing, and counts as a mount of the scratch bucket to those that are there. */
struct watch *watch_company(const struct object_session *ses, const struct bucket *b);
/* The store's store_gone_fn: arg is the service, the key one of object_store_key. */
bool watch_note(void *arg, struct slice store_key);
/* The mirror's mirror_listens_fn and mirror_learned_fn: arg is the service. */
bool watch_listens(void *arg);
void watch_learned(void *arg, const struct bucket *b, struct slice key, bool is_news, bool is_gone);
/* An object of a mirror bucket was made, replaced or removed, its attributes changed, or that may have
 * happened. What is asked of the node from here on is answered by it; before it is acknowledged. */
void watch_changed(struct object_service *s, const struct bucket *b, struct slice key);
/* The same of what was removed: directories above it may be gone, too. by: the session that asked for it, and
 * knows; NULL: none. */
void watch_gone(struct object_service *s, const struct object_session *by, const struct bucket *b,
                struct slice key);
/* The session has changed something in a scratch bucket: told to the mounts of others. Before it is
 * acknowledged. */
void watch_tree_changed(const struct object_session *ses, uint64_t bucket_id);
/* The same of what the node did by itself: told to all of them. */
void watch_bucket_changed(struct object_service *s, uint64_t bucket_id);
bool watch_has_trees(const struct object_service *s); /* or watches of other buckets: a quick look */
/* Anything of the bucket may have changed. */
void watch_end_bucket(struct object_service *s, uint64_t bucket_id);
/* The same of all sessions of users: somebody may do less than before. Who still may watches anew. */
void watch_end_users(struct object_service *s);

/* ---- move_tree.c ---- */
/* Renames the directory q->from to q->to: see there. x: of its intent; NULL: nobody asks again. */
int object_move_tree(struct object_service *s, struct upstream *u, const struct wire_copy_req *q,
                     struct intent *x, struct arena *a, struct attr *ret, struct err *e);
/* Of one that was copied: removes what is left of the old name and lies under the new one. */
int object_finish_move_tree(struct object_service *s, struct upstream *u, const struct intent_record *x,
                            struct err *e);

/* ---- name_ops.c ---- */
/* Whether the ETag can be the MD5 of the bytes, so that those of copies are the same. */
bool object_is_md5(struct slice etag);
/* Of a rename that was copied: removes the old name, if it still is what was copied. */
int object_finish_move(struct object_service *s, struct upstream *u, const struct intent_record *x,
                       struct arena *a, struct err *e);

/* ---- status.c ---- */
/* The session is of no mount any more, or of another one; service->lock. What is shown of where it was ends,
 * unless another session is of that. */
void status_forget_mount_locked(struct object_session *ses);

/* ---- the operations, by file: bucket_ops.c, name_ops.c, reader.c, writer.c, status.c, watch.c,
 * user_ops.c, meta_ops.c, scratch_tree.c, scratch_attr.c ---- */
#define X(NAME, name, number)                                                                                \
    int op_##name(struct object_session *ses, const struct wire_##name##_req *req, struct arena *a,          \
                  struct wire_##name##_rep *rep, struct err *e);
WIRE_OPS(X)
#undef X

/* ---- scratch_route.c ---- */
/* Whether the operation is on a scratch bucket, or on a handle of one. */
bool scratch_is_its(struct subject *s, uint32_t op, const void *req);
/* After an operation: tells mounts of other sessions when it may have changed what they see. */
void scratch_tell_change(struct object_session *ses, uint32_t op, const void *req);
/* The session's own, too: it does not know. */
void scratch_tell_all(struct object_session *ses, uint32_t op, const void *req);
int scratch_call_local(struct object_session *ses, uint32_t op, const void *req, struct arena *a, void *rep,
                       struct err *e);

/* Runs op here, whatever the route. */
int object_call_local(struct object_session *ses, uint32_t op, const void *req, struct arena *a, void *rep,
                      struct err *e);

/* ---- route_loop.c ---- */
struct route_loop *route_loop_new(void);
/* The descriptor that came with a handle is in another process. */
void route_passed(struct object_session *ses, uint64_t handle);
void route_loop_free(struct route_loop *l);
int route_loop_call(struct route_loop *l, struct object_session *ses, uint32_t op, const void *req,
                    struct arena *a, void *rep, struct err *e);
void route_session_free(struct route_session *r);

/*
 * Intents: changes of names at an origin that a mount asks for under a number, so that it may ask again when
 * the node was killed before it answered, or stopped, or gave up an origin that says nothing for the sake of
 * others, and gets the answer that the first time would have had.
 *
 * Before the origin is asked for a change, a record in the control store says what is about to be done, and
 * to which version of the object; a rename says there, too, when all is under the new name. Who finds his own
 * record when he asks again goes on from there, and takes for his own doing only what it can be: a version
 * that the record does not name was made by somebody else since, and stays. What was done is kept for a
 * while, for an answer that was lost with the node.
 *
 * Of a directory that is removed the version is its marker's ("dir/"); markers have the same ETag all, so
 * that its time counts, too: one of another time was made by somebody else, and stays. Where directories are
 * real ones, what others made or removed in it meanwhile gives it another time as well: it stays then.
 *
 * Numbers are request ids of the wire protocol with the highest bit (docs/WIRE.md), of a family of sessions.
 * Without one nothing is recorded, and nobody asks again.
 *
 * Key: "i/", family (8 bytes), number (8 bytes, big endian). Value, numbers little endian:
 *
 * | offset | size | record                                                                              |
 * | ------ | ---- | ----------------------------------------------------------------------------------- |
 * | 0      | 1    | format: 1                                                                           |
 * | 1      | 1    | kind: 1 removal, 2 making a directory, 3 removing one, 4 renaming, 5 metadata       |
 * | 2      | 1    | state: 1 begun: the origin may have been asked for it; 2 copied: all that is renamed |
 * |        |      | is under the new name, and nothing is left to be done but to remove the old one;    |
 * |        |      | 3 done                                                                              |
 * | 3      | 1    | flags: 1 what is renamed is a directory                                             |
 * | 4      | 8    | bucket id                                                                           |
 * | 12     | 8    | size of the object in bytes, 0 when it is not known                                 |
 * | 20     | 8    | its time in the origin, ns since 1970, 0 when it is not known                       |
 * | 28     | 2+n  | key: length, bytes; of a directory without '/' at its end                           |
 * |        | 2+n  | new key of a rename; empty                                                          |
 * |        | 2+n  | ETag of the object; empty when it is not known                                      |
 *
 * Failure modes: a request of the run before that its origin carries out after it was made again, as one may
 * that had taken it in and not begun, meets what has the name by then; requests with an ETag do not.
 *
 * A crash leaves the record or not, never a half. Those that nobody has asked for again INTENT_WAIT_NS after
 * a start, or INTENT_GIVEN_UP_NS after they were given up, end: a rename that was copied is finished, and of
 * one that was begun the log says that both names may be there.
 *
 * Threads: any; an intent is of the thread that began it, until it ends it.
 */
#pragma once

#include "base/buf.h"
#include "base/err.h"
#include "kv/kv.h"

#define INTENT_RECORD_MAX_BYTES 4096
#define INTENT_DONE_MAX         256 /* answers that are kept */
#define INTENT_WAIT_NS          ((uint64_t)30000000000)
#define INTENT_GIVEN_UP_NS      ((uint64_t)600000000000) /* whoever asks again waits behind many others */

enum intent_kind { INTENT_REMOVE = 1, INTENT_MKDIR, INTENT_RMDIR, INTENT_MOVE, INTENT_META };
enum intent_state { INTENT_NEW, INTENT_BEGUN, INTENT_COPIED, INTENT_DONE };

struct intent_record {
    enum intent_kind kind;
    enum intent_state state; /* INTENT_NEW is never recorded */
    bool is_tree;
    uint64_t bucket_id, size_bytes, mtime_ns;
    struct slice key, to, etag;
};

/* Pure. -E2BIG. Slices of what was decoded point into the value. ERR_CORRUPT. */
int intent_encode(const struct intent_record *x, struct buf *b);
int intent_decode(struct slice value, struct intent_record *ret);

struct bucket;
struct intent;
struct intents;
struct object_service;
struct object_session;

/* Reads the records. */
int intents_open(struct object_service *s, struct intents **ret, struct err *e);
void intents_close(struct intents *t); /* NULL accepted */
/* Ends what nobody has asked for again; now_ns: monotonic. The steward's. */
void intents_turn(struct object_service *s, uint64_t now_ns);

/*
 * Begins a change that was asked for as `number` in a session: kind, bucket_id, key and to of `what` count.
 * Waits while another thread is at the same one. To be ended by intent_end. NULL: it has no number.
 */
struct intent *intent_begin(struct object_session *ses, uint64_t number, const struct intent_record *what);
/* How far it had come when it was begun, and with which version. x NULL: INTENT_NEW, and of no version
 * (NULL). */
enum intent_state intent_state(const struct intent *x);
const struct intent_record *intent_known(const struct intent *x);
/* Records what is about to be done: state, is_tree, size, time and ETag of `now` count. x NULL: 0. */
int intent_note(struct intent *x, const struct intent_record *now, enum kv_commit kind, struct err *e);
/* It was done, or it failed with `result` and whoever asked is told so; but for what was given up for others,
 * or by a node that stops (-ECANCELED, -ETIMEDOUT), which is asked for again. x NULL accepted. */
void intent_end(struct intent *x, int result);
